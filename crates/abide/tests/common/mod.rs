//! A real server process on a fresh store, for tests that speak with it.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use abide_client::Client;

pub struct Server {
    child: Child,
    pub url: String,
    directory: PathBuf,
}

impl Server {
    pub fn start() -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("server-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&directory);
        let mut child = Command::new(env!("CARGO_BIN_EXE_abide"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(&directory)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let url = line.trim().strip_prefix("listening on ").expect("it says where").to_owned();
        Server { child, url, directory }
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url).expect("an address")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Sends a signal to a process that this test has started.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().expect("kill runs");
    assert!(sent.success(), "{name} to {pid}");
}
