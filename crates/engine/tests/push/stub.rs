//! A target that answers what it is told to, and remembers what it was sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub line: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn token(&self) -> &str {
        self.header("abide-callback-url").rsplit('/').next().unwrap_or_default()
    }
}

#[derive(Clone, Debug)]
pub enum Answer {
    /// Status and body, with more headers.
    Says(u16, &'static str, &'static str),
    Bytes(Vec<u8>),
    /// Whatever it was sent: headers, then body.
    Echo(u16),
    Hangs,
    /// Once it is let go.
    Waits,
    Closes,
}

pub fn ok() -> Answer {
    Answer::Says(200, r#"{"ok":true}"#, "")
}

#[derive(Debug)]
pub struct Stub {
    pub port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    answers: Mutex<VecDeque<Answer>>,
    go: tokio::sync::Notify,
}

impl Stub {
    pub async fn start() -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::<Shared>::default();
        let serving = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, serving.clone()));
            }
        });
        Stub { port, shared }
    }

    /// The next answers; the last one is given for ever.
    pub fn answers(&self, answers: impl IntoIterator<Item = Answer>) {
        *self.shared.answers.lock().expect("a lock") = answers.into_iter().collect();
    }

    pub fn go(&self) {
        self.shared.go.notify_one();
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("a lock").clone()
    }

    /// Waits until so many requests came.
    pub async fn saw(&self, count: usize) -> Vec<Seen> {
        for _ in 0..12_000 {
            if self.seen().len() >= count {
                return self.seen();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} of {count} requests came", self.seen().len());
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let Some(seen) = read(&mut stream).await else { return };
    shared.seen.lock().expect("a lock").push(seen.clone());
    let answer = {
        let mut answers = shared.answers.lock().expect("a lock");
        if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
    };
    let bytes = match answer.unwrap_or_else(ok) {
        Answer::Says(status, body, headers) => said(status, body, headers),
        Answer::Bytes(bytes) => bytes,
        Answer::Echo(status) => said(status, &String::from_utf8_lossy(&echo(&seen)), ""),
        Answer::Hangs => std::future::pending().await,
        Answer::Waits => {
            shared.go.notified().await;
            said(200, r#"{"ok":true}"#, "")
        }
        Answer::Closes => return,
    };
    let _ = stream.write_all(&bytes).await;
    let _ = stream.shutdown().await;
}

/// As JSON, if what it was sent is JSON.
fn echo(seen: &Seen) -> Vec<u8> {
    let headers = serde_json::to_string(&seen.headers).expect("JSON");
    let line = serde_json::to_string(&seen.line).expect("JSON");
    let mut echoed = format!("{{\"line\":{line},\"headers\":{headers},\"body\":").into_bytes();
    echoed.extend_from_slice(if seen.body.is_empty() { b"null" } else { &seen.body });
    echoed.push(b'}');
    echoed
}

fn said(status: u16, body: &str, headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}

async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let mut lines = text.lines();
    let line = lines.next()?.to_owned();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = bytes[head + 4..].to_vec();
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Seen { line, headers, body })
}
