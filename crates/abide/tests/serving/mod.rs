//! A server as a process, and HTTP by hand: what the tests that start the real program share.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder of its own for a test, empty.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// A process that does not outlive its test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Server {
    process: Running,
    pub address: String,
    /// Sent with every request.
    pub key: Option<String>,
}

impl Server {
    /// `abide COMMAND` on a free port, as soon as it says where it listens.
    pub fn start(command: &str, data: &Path) -> Server {
        Server::start_with(command, data, &["--listen", "127.0.0.1:0"])
    }

    /// The same with arguments of its own; a folder that they name wins.
    pub fn start_with(command: &str, data: &Path, arguments: &[&str]) -> Server {
        let mut program = Command::new(env!("CARGO_BIN_EXE_abide"));
        Server::spawn(program.arg(command).args(arguments).env("ABIDE_DATA", data).stderr(Stdio::null()))
    }

    /// Any command that becomes a server.
    pub fn spawn(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it speaks");
        // What it says later is read and forgotten, so that it never waits for us.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("it said {line:?}"));
        Server { address: address.into(), key: None, process: Running(child) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// One request on a connection of its own: the status and the body.
    pub fn ask(&self, method: &str, path: &str, kind: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let (host, length) = (&self.address, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        let key = self.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let about = match body.is_empty() {
            true => String::new(),
            false => format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n"),
        };
        stream.write_all(format!("{head}{key}{about}\r\n{body}").as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("not HTTP: {answer}"));
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.into())
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, "", "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    pub fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, body) = self.ask("POST", path, "application/json", &body.to_string());
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    pub fn state(&self, run_id: &str) -> String {
        self.get(&format!("/v1/runs/{run_id}"))["state"].as_str().expect("a state").into()
    }

    /// Whether it has ended, and how.
    pub fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.process.0.try_wait().expect("a process")
    }

    /// SIGTERM; how it ended.
    pub fn stop(mut self) -> Option<i32> {
        let id = self.process.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
        self.process.0.wait().expect("it ends").code()
    }
}

/// Looks ten times a second until it is so, or fails after a while and says what it saw last.
pub fn eventually<T: std::fmt::Debug>(within: Duration, what: &str, mut look: impl FnMut() -> Result<(), T>) {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut waited = Duration::ZERO;
    while let Err(seen) = look() {
        assert!(waited < within, "{what}: not within {within:?}: {seen:?}");
        std::thread::sleep(PAUSE);
        waited += PAUSE;
    }
}
