//! A real server in a process of its own, and a client that sends exactly the bytes that a test wants.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

/// What takes longer hangs, on a busy machine, too.
pub const PATIENCE: Duration = Duration::from_secs(120);

static STAGES: AtomicUsize = AtomicUsize::new(0);

pub struct Stage {
    server: Child,
    pub address: SocketAddr,
    pub data: PathBuf,
    /// Sent with every request, unless a test sends its own.
    pub key: Option<String>,
}

#[derive(Debug)]
pub struct Heard {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Heard {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The status, and the code if it is a problem.
    pub fn said(&self) -> (u16, String) {
        let code = match self.header("content-type") {
            Some("application/problem+json") => self.json()["code"].as_str().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        (self.status, code)
    }
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(&[])
    }

    pub fn with(arguments: &[&str]) -> Stage {
        let n = STAGES.fetch_add(1, Ordering::SeqCst);
        let data = std::env::temp_dir().join(format!("abide-http-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        Stage::on(data, arguments)
    }

    pub fn on(data: PathBuf, arguments: &[&str]) -> Stage {
        let (server, address) = start(&data, arguments, &[]);
        Stage { server, address, data, key: None }
    }

    /// With more in the environment of the server.
    pub fn within(environment: &[(&str, &str)]) -> Stage {
        let n = STAGES.fetch_add(1, Ordering::SeqCst);
        let data = std::env::temp_dir().join(format!("abide-http-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let (server, address) = start(&data, &[], environment);
        Stage { server, address, data, key: None }
    }

    /// Ends the process at once, as a crash would, and starts another on the same data.
    pub fn crash_and_restart(&mut self, arguments: &[&str]) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        (self.server, self.address) = start(&self.data, arguments, &[]);
    }

    /// Ends the process at once; its data stays.
    pub fn stop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Sends exactly these bytes and reads one answer.
    pub fn raw(&self, bytes: &[u8]) -> Heard {
        let mut stream = self.connect();
        // The server may answer before it has read everything.
        let _ = stream.write_all(bytes);
        let head = bytes.starts_with(b"HEAD ");
        hear(&mut BufReader::new(stream), head).expect("an answer")
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Heard {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        if let Some(key) = self.key.as_ref().filter(|_| !headers.iter().any(|(name, _)| *name == "Authorization")) {
            head.push_str(&format!("Authorization: Bearer {key}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method != "GET" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.raw(&[head.as_bytes(), body].concat())
    }

    pub fn get(&self, path: &str) -> Heard {
        self.send("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: Value) -> Heard {
        self.post_text(path, &body.to_string())
    }

    pub fn post_text(&self, path: &str, body: &str) -> Heard {
        self.send("POST", path, &[("Content-Type", "application/json")], body.as_bytes())
    }

    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: Value) -> Heard {
        let headers: Vec<_> = headers.iter().copied().chain([("Content-Type", "application/json")]).collect();
        self.send("POST", path, &headers, body.to_string().as_bytes())
    }

    pub fn apply(&self, document: &str) -> Heard {
        let id = document.lines().find_map(|line| line.strip_prefix("workflow: ")).expect("a workflow");
        let path = format!("/v1/workflows/{}", id.trim());
        self.send("PUT", &path, &[("Content-Type", "application/yaml")], document.as_bytes())
    }

    pub fn start(&self, workflow: &str, input: Value) -> String {
        let heard = self.post("/v1/runs", json!({ "workflow": workflow, "input": input }));
        assert_eq!(heard.status, 201, "{}", heard.text());
        heard.json()["run_id"].as_str().expect("an id").to_owned()
    }

    /// The next task of the default queue.
    pub fn claim(&self, worker: &str) -> Value {
        let asked = json!({ "worker": worker, "queues": ["default"], "wait_ms": 10_000 });
        let claim = |_| {
            let heard = self.post("/v1/tasks/claim", asked.clone());
            assert!([200, 204].contains(&heard.status), "{}", heard.text());
            (heard.status == 200).then(|| heard.json()["tasks"][0].clone())
        };
        (0..12).find_map(claim).expect("a task")
    }

    pub fn report(&self, task: &Value, what: &str, mut said: Value) -> Heard {
        said["epoch"] = task["epoch"].clone();
        self.post(&format!("/v1/tasks/{}/{what}", task["task_id"].as_str().expect("a task")), said)
    }

    pub fn state(&self, run: &str) -> String {
        self.get(&format!("/v1/runs/{run}")).json()["state"].as_str().expect("a state").to_owned()
    }

    /// Waits until a run is in a state.
    pub fn until(&self, run: &str, state: &str) -> Value {
        let reached = || Some(self.get(&format!("/v1/runs/{run}")).json()).filter(|record| record["state"] == state);
        eventually(reached).unwrap_or_else(|| panic!("{run} is {} and not {state}", self.state(run)))
    }

    /// Waits until the log of a run has an event.
    pub fn until_event(&self, run: &str, kind: &str) {
        let there = || {
            let events = self.get(&format!("/v1/runs/{run}/events")).json();
            let mut events = events["events"].as_array()?.iter();
            events.any(|event| event["kind"] == kind).then_some(())
        };
        eventually(there).unwrap_or_else(|| panic!("{run} has no {kind}"));
    }
}

/// What is there at last; nothing after so long that it must hang.
pub fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    const PAUSE: Duration = Duration::from_millis(25);
    (0..PATIENCE.as_millis() / PAUSE.as_millis()).find_map(|_| {
        let found = look();
        if found.is_none() {
            std::thread::sleep(PAUSE);
        }
        found
    })
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.data);
        let _ = std::fs::remove_file(log_of(&self.data));
    }
}

fn start(data: &PathBuf, arguments: &[&str], environment: &[(&str, &str)]) -> (Child, SocketAddr) {
    let log = std::fs::File::create(log_of(data)).expect("a file for its log");
    let mut server = Command::new(env!("CARGO_BIN_EXE_abide"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .args(arguments)
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("it said {line:?}"));
    (server, address.parse().expect("an address"))
}

/// What the server of this data writes to its standard error.
pub fn log_of(data: &std::path::Path) -> PathBuf {
    data.with_extension("log")
}

/// Reads one answer, whatever its framing.
pub fn hear(reader: &mut impl BufRead, head: bool) -> Option<Heard> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut headers: Vec<(String, String)> = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_owned(), value.to_owned()));
    }
    let header =
        |wanted: &str| headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, v)| v.as_str());
    let mut body = Vec::new();
    if head {
        return Some(Heard { status, headers, body });
    }
    if header("transfer-encoding") == Some("chunked") {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    } else if let Some(length) = header("content-length").and_then(|text| text.parse::<usize>().ok()) {
        body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
    }
    Some(Heard { status, headers, body })
}
