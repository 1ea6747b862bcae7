//! A server serves or ends, whatever becomes of its standard error: it is never alive and refuses everything.

#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "each test file uses its part")]
mod serving;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, PipeWriter, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serving::{Server, eventually, folder};

const DOCUMENT: &str = "workflow: one\nsteps:\n  - { id: a, task: work }\n";
/// A hang is a failure; a busy machine is not.
const PATIENCE: Duration = Duration::from_secs(120);

/// Kinds of standard error.
#[derive(Clone, Copy, Debug)]
enum Log {
    Closed,
    FullDevice,
    PipeWithoutReader,
    PipeThatIsNotRead,
    PipeThatIsReadSlowly,
}

const LOGS: [Log; 5] =
    [Log::Closed, Log::FullDevice, Log::PipeWithoutReader, Log::PipeThatIsNotRead, Log::PipeThatIsReadSlowly];

impl Log {
    /// A server with such a log, of which every request writes a line.
    fn server(self, name: &str, environment: &[(&str, &str)]) -> Server {
        let data = folder(&format!("dying-{name}-{self:?}"));
        let redirect = if matches!(self, Log::Closed) { "2>&-" } else { "" };
        let (stderr, _reader) = self.open();
        let server = Server::spawn(
            Command::new("sh")
                .args(["-c", &format!("exec \"$0\" \"$@\" {redirect}"), env!("CARGO_BIN_EXE_abide"), "serve"])
                .args(["--listen", "127.0.0.1:0", "--data"])
                .arg(data)
                .env("ABIDE_LOG", "debug")
                .envs(environment.iter().copied())
                .stderr(stderr),
        );
        // A pipe that is not read must stay open as long as the server runs.
        std::mem::forget(_reader);
        server
    }

    fn open(self) -> (Stdio, Option<std::io::PipeReader>) {
        let pipe = || std::io::pipe().expect("a pipe");
        match self {
            Log::Closed => (Stdio::null(), None),
            Log::FullDevice => (OpenOptions::new().write(true).open("/dev/full").expect("a device").into(), None),
            Log::PipeWithoutReader => (pipe().1.into(), None),
            Log::PipeThatIsNotRead => {
                let (reader, writer) = pipe();
                fill(&writer);
                (writer.into(), Some(reader))
            }
            Log::PipeThatIsReadSlowly => {
                let (mut reader, writer) = pipe();
                fill(&writer);
                std::thread::spawn(move || {
                    let mut few = [0; 64];
                    while reader.read(&mut few).is_ok_and(|read| read > 0) {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                });
                (writer.into(), None)
            }
        }
    }
}

/// Leaves no room in a pipe.
fn fill(pipe: &PipeWriter) {
    const NONBLOCK: i32 = 0o4000;
    let place = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let mut end = OpenOptions::new().write(true).custom_flags(NONBLOCK).open(place).expect("the same pipe");
    for size in [4_096, 1] {
        while end.write(&vec![b'.'; size]).map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock) {}
    }
}

/// The status of an answer, if there is one.
fn send(server: &Server, method: &str, path: &str, kind: &str, body: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(&server.address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let (host, length) = (&server.address, body.len());
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: {kind}\r\n");
    stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

fn start(server: &Server, pad: usize) -> Option<u16> {
    let body = serde_json::json!({ "workflow": "one", "input": { "pad": "x".repeat(pad) } });
    send(server, "POST", "/v1/runs", "application/json", &body.to_string())
}

fn register(server: &Server) {
    let status = send(server, "PUT", "/v1/workflows/one", "application/yaml", DOCUMENT);
    assert_eq!(status, Some(201));
}

/// Starts runs until the server has ended, and says how.
fn ends(mut server: Server) -> Option<i32> {
    let mut code = None;
    eventually(PATIENCE, "it ends", || {
        for _ in 0..50 {
            start(&server, 10);
            if let Some(status) = server.has_ended() {
                code = status.code();
                return Ok(());
            }
        }
        Err("it is alive")
    });
    code
}

/// The library with the faults of disks, which the tests of the engine have.
fn shim() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(|| {
        let source = serving::repository().join("crates/engine/tests/crash/shim.c");
        let library = folder("dying-shim").join("shim.so");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
        assert!(built.expect("cc is needed for the faults of disks").success(), "shim.c does not compile");
        library.to_string_lossy().into_owned()
    })
}

#[test]
fn a_server_whose_log_cannot_be_written_serves_on_and_stops_in_order() {
    for log in LOGS {
        let server = log.server("serves", &[]);
        register(&server);
        for n in 0..300 {
            assert_eq!(start(&server, 10), Some(201), "{log:?}, run {n}");
        }
        assert_eq!(server.stop(), Some(0), "{log:?}");
    }
}

#[test]
fn a_failed_commit_ends_the_server_also_when_its_log_cannot_be_written() {
    for log in LOGS {
        let server = log.server("commit", &[("LD_PRELOAD", shim()), ("ABIDE_SHIM", "wal-sync-eio:25")]);
        register(&server);
        assert_eq!(ends(server), Some(70), "{log:?}");
    }
}

#[test]
fn a_panic_of_the_writer_ends_the_server_also_when_its_log_cannot_be_written() {
    for point in ["after_events:4:panic", "before_answer:9:panic"] {
        for log in LOGS {
            let server = log.server("panic", &[("ABIDE_FAILPOINT", point)]);
            register(&server);
            assert_eq!(ends(server), Some(70), "{log:?}, {point}");
        }
    }
}

/// A small file system in memory; gone when the test is over.
struct Small(PathBuf);

impl Small {
    /// None: this user may not mount.
    fn mounted(place: &Path) -> Option<Small> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"]).arg(place).output();
        if mounted.as_ref().is_ok_and(|output| output.status.success()) {
            return Some(Small(place.to_owned()));
        }
        let user = Command::new("id").arg("-u").output().map(|output| output.stdout).unwrap_or_default();
        assert_ne!(user.trim_ascii(), b"0", "root cannot mount a tmpfs for this test: {mounted:?}");
        eprintln!("not tested, because only root may mount: {mounted:?}");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Its data and its log are on the same disk.
#[test]
fn f38_a_server_on_a_full_disk_goes_on_without_its_log_and_recovers_when_there_is_room() {
    let Some(small) = Small::mounted(&folder("dying-full")) else { return };
    let (data, log, ballast) = (small.0.join("data"), small.0.join("log"), small.0.join("ballast"));
    let stderr = OpenOptions::new().create(true).append(true).open(&log).expect("a log");
    let mut server = Server::spawn(
        Command::new(env!("CARGO_BIN_EXE_abide"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data)
            .env("ABIDE_LOG", "debug")
            .stderr(stderr),
    );
    register(&server);
    assert_eq!(start(&server, 10), Some(201));
    let mut file = File::create(&ballast).expect("a ballast");
    while file.write(&[1; 1_024]).is_ok_and(|wrote| wrote > 0) {}
    for n in 0..200 {
        assert_eq!(start(&server, 60_000), Some(507), "run {n}");
    }
    assert_eq!(server.ask("GET", "/v1/runs", "", "").0, 200, "reads go on");
    assert!(server.has_ended().is_none());
    std::fs::remove_file(&ballast).expect("room");
    drop(file);
    eventually(PATIENCE, "it takes runs again", || match start(&server, 10) {
        Some(201) => Ok(()),
        other => Err(other),
    });
    eventually(PATIENCE, "the log says what it lacks", || {
        start(&server, 10);
        let text = std::fs::read_to_string(&log).expect("a log");
        if text.contains("lines of the log are missing") { Ok(()) } else { Err(text) }
    });
    assert_eq!(server.stop(), Some(0));
}
