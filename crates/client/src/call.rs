//! One call over HTTP: how it is sent, when it is sent again, how refusals are read.

use std::time::Duration;

use abide_api::{Problem, Raw};
use reqwest::{Method, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Error;
use crate::ids;

/// How long an answer may take when nothing else is said.
const PATIENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A call that is being put together: `client.call(Method::GET, &["v1", "runs"]).query("state", "open").send()`.
#[derive(Debug)]
pub struct Call {
    client: Client,
    method: Method,
    url: Url,
    body: Option<Vec<u8>>,
    content_type: &'static str,
    key: Option<String>,
    patience: Duration,
    retries: u32,
    minimal: bool,
    epoch: Option<u64>,
    fault: Option<Error>,
}

/// What came back, as it came.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    server: String,
}

impl Answer {
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Error::Unreadable { server: self.server.clone(), cause: error.to_string() })
    }

    pub fn raw(&self) -> Result<Raw, Error> {
        self.json()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Call {
    pub(crate) fn new(client: Client, method: Method, segments: &[&str]) -> Call {
        let mut url = client.base().clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        let retries = client.retries();
        Call {
            client,
            method,
            url,
            body: None,
            content_type: "application/json",
            key: None,
            patience: PATIENCE,
            retries,
            minimal: false,
            epoch: None,
            fault: None,
        }
    }

    pub fn query(mut self, name: &str, value: impl AsRef<str>) -> Call {
        self.url.query_pairs_mut().append_pair(name, value.as_ref());
        self
    }

    pub fn queries(self, pairs: &[(String, String)]) -> Call {
        pairs.iter().fold(self, |call, (name, value)| call.query(name, value))
    }

    pub fn json(mut self, body: &impl Serialize) -> Call {
        match serde_json::to_vec(body) {
            Ok(body) => self.body = Some(body),
            Err(error) => self.fault = Some(error.into()),
        }
        self
    }

    pub fn body(mut self, content_type: &'static str, body: Vec<u8>) -> Call {
        self.content_type = content_type;
        self.body = Some(body);
        self
    }

    /// The same key again means the same request: it is done once. It has 1 to 255 printable ASCII characters. Without one,
    /// every call gets its own.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Call {
        self.key = Some(key.into());
        self
    }

    /// Only what identifies the run is answered, which costs the server no look at it.
    pub fn minimal(mut self) -> Call {
        self.minimal = true;
        self
    }

    /// The lease that a report speaks for, beside its body: a report that cannot be read still ends its attempt.
    pub(crate) fn epoch(mut self, epoch: u64) -> Call {
        self.epoch = Some(epoch);
        self
    }

    /// How long the answer may take.
    pub fn patience(mut self, patience: Duration) -> Call {
        self.patience = patience;
        self
    }

    /// The caller decides itself when to ask again.
    pub(crate) fn once(mut self) -> Call {
        self.retries = 0;
        self
    }

    /// Sends it, and again while that may help. A POST carries the same idempotency key each time, so that it is done once.
    pub async fn send(mut self) -> Result<Answer, Error> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        // Calls about tasks are told apart by lease and claim: a key would only cost the server a row.
        if self.method == Method::POST && self.key.is_none() && !self.is_about_tasks() {
            self.key = Some(ids::fresh());
        }
        let mut pause = FIRST_PAUSE;
        for left in (0..=self.retries).rev() {
            let (error, wait) = match self.attempt().await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if left == 0 || !error.is_retryable() {
                return Err(error);
            }
            tracing::debug!(%error, "asking again");
            tokio::time::sleep(ids::jittered(pause).max(wait.unwrap_or_default().min(LONGEST_PAUSE))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        unreachable!("the last attempt returns")
    }

    pub async fn answer<T: DeserializeOwned>(self) -> Result<T, Error> {
        self.send().await?.json()
    }

    fn is_about_tasks(&self) -> bool {
        self.url.path().contains("/v1/tasks/")
    }

    pub(crate) fn request(&self) -> reqwest::RequestBuilder {
        let mut request = self.client.http().request(self.method.clone(), self.url.clone());
        if let Some(api_key) = self.client.api_key() {
            request = request.bearer_auth(api_key);
        }
        if let Some(key) = &self.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(epoch) = self.epoch {
            request = request.header("abide-epoch", epoch);
        }
        if self.minimal {
            request = request.header("prefer", "return=minimal");
        }
        match &self.body {
            Some(body) => request.header("content-type", self.content_type).body(body.clone()),
            None if self.method == Method::POST => request.header("content-type", "application/json").body("{}"),
            None => request,
        }
    }

    async fn attempt(&self) -> Result<Answer, (Error, Option<Duration>)> {
        let server = self.client.server();
        let unreachable = |error: reqwest::Error| (unreachable(&server, &error), None);
        let response = self.request().timeout(self.patience).send().await.map_err(unreachable)?;
        let status = response.status();
        let wait = retry_after(&response);
        let body = response.bytes().await.map_err(unreachable)?.to_vec();
        match status.is_success() {
            true => Ok(Answer { status: status.as_u16(), body, server }),
            false => Err((refusal(&server, status, &body), wait)),
        }
    }
}

pub(crate) fn unreachable(server: &str, error: &reqwest::Error) -> Error {
    // The outermost message repeats the address; what a person needs stands at the end of the chain.
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let cause = if error.is_timeout() { "no answer in time".to_owned() } else { cause.to_string() };
    Error::Unreachable { server: server.to_owned(), cause }
}

pub(crate) fn refusal(server: &str, status: StatusCode, body: &[u8]) -> Error {
    if let Ok(problem) = serde_json::from_slice::<Problem>(body) {
        return problem.into();
    }
    let cause = format!("{status}: {}", String::from_utf8_lossy(&body[..body.len().min(200)]));
    match status.as_u16() {
        // A proxy speaks for a server that it cannot reach.
        502..=504 => Error::Unreachable { server: server.to_owned(), cause },
        _ => Error::Unreadable { server: server.to_owned(), cause },
    }
}

fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
