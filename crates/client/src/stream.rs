//! Following a run: server-sent events, taken up where they were cut off.

use std::collections::VecDeque;
use std::time::Duration;

use abide_api::views::{Progress, Run};

use crate::call::{Call, refusal, unreachable};
use crate::client::Client;
use crate::error::Error;
use crate::ids;

/// A server says something at least this often; after longer the connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a stream shows.
#[derive(Clone, Debug)]
pub enum Seen {
    Run(Box<Run>),
    Progress(Progress),
}

/// One event of a stream, as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub event: String,
    pub id: Option<String>,
    pub data: String,
}

/// A stream that outlives its connections.
#[derive(Debug)]
pub struct Watch {
    call: Call,
    client: Client,
    response: Option<reqwest::Response>,
    reader: Reader,
    ready: VecDeque<Message>,
    last_id: Option<String>,
    failures: u32,
    over: bool,
}

impl Watch {
    pub(crate) fn new(call: Call, client: Client) -> Watch {
        Watch {
            call,
            client,
            response: None,
            reader: Reader::default(),
            ready: VecDeque::new(),
            last_id: None,
            failures: 0,
            over: false,
        }
    }

    /// The next record or progress; `None` after the record in which the run has ended.
    pub async fn next(&mut self) -> Result<Option<Seen>, Error> {
        loop {
            let Some(message) = self.next_message().await? else { return Ok(None) };
            match message.event.as_str() {
                "run" => return self.read(&message.data).map(|run| Some(Seen::Run(Box::new(run)))),
                "progress" => return self.read(&message.data).map(|progress| Some(Seen::Progress(progress))),
                _ => {}
            }
        }
    }

    /// The same as text, for programs that pass it on.
    pub async fn next_message(&mut self) -> Result<Option<Message>, Error> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                if message.id.is_some() {
                    self.last_id.clone_from(&message.id);
                }
                if message.event == "run" {
                    let run: Run = self.read(&message.data)?;
                    self.over = run.state.is_terminal();
                }
                return Ok(Some(message));
            }
            if self.over {
                return Ok(None);
            }
            if let Err(error) = self.read_more().await {
                self.pause_or_give_up(error).await?;
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Error> {
        let server = self.client.server();
        let mut response = match self.response.take() {
            Some(response) => response,
            None => self.open().await?,
        };
        let cut = |cause: &str| Error::Unreachable { server: server.clone(), cause: cause.into() };
        let chunk = tokio::time::timeout(SILENCE, response.chunk()).await.map_err(|_| cut("the stream fell silent"))?;
        match chunk.map_err(|error| unreachable(&server, &error))? {
            Some(chunk) => {
                self.failures = 0;
                self.ready.extend(self.reader.feed(&chunk));
                self.response = Some(response);
                Ok(())
            }
            None => Err(cut("the stream ended")),
        }
    }

    async fn open(&mut self) -> Result<reqwest::Response, Error> {
        let server = self.client.server();
        self.reader = Reader::default();
        let mut request = self.call.request().header("accept", "text/event-stream");
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        let response = request.send().await.map_err(|error| unreachable(&server, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await.map_err(|error| unreachable(&server, &error))?;
        Err(refusal(&server, status, &body))
    }

    async fn pause_or_give_up(&mut self, error: Error) -> Result<(), Error> {
        if !error.is_retryable() || self.failures >= self.client.retries().max(1) * 3 {
            return Err(error);
        }
        // A stream that was open and ends is opened again at once; only failures in a row are spaced out.
        let pause = Duration::from_millis(100) * 2_u32.pow(self.failures.min(6));
        self.failures += 1;
        tokio::time::sleep(ids::jittered(pause.min(LONGEST_PAUSE))).await;
        Ok(())
    }

    fn read<T: serde::de::DeserializeOwned>(&self, text: &str) -> Result<T, Error> {
        serde_json::from_str(text)
            .map_err(|error| Error::Unreadable { server: self.client.server(), cause: error.to_string() })
    }
}

/// Cuts bytes into messages; a message or a character may come in pieces.
#[derive(Debug, Default)]
struct Reader {
    left: Vec<u8>,
    message: Message,
}

impl Reader {
    fn feed(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.left.extend_from_slice(bytes);
        let mut messages = Vec::new();
        let mut begin = 0;
        while let Some(length) = self.left[begin..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.left[begin..begin + length]).into_owned();
            begin += length + 1;
            messages.extend(self.line(line.trim_end_matches('\r')));
        }
        self.left.drain(..begin);
        messages
    }

    fn line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            return (!message.data.is_empty()).then_some(message);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.message.event = value.to_owned(),
            "id" => self.message.id = Some(value.to_owned()),
            "data" if self.message.data.is_empty() => self.message.data = value.to_owned(),
            "data" => {
                self.message.data.push('\n');
                self.message.data.push_str(value);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_however_they_are_cut() {
        let text =
            ": hello\n\nevent: run\nid: 7\ndata: {\"state\":\"é\"}\n\nevent: progress\r\ndata: a\r\ndata: b\r\n\r\n";
        let whole = Reader::default().feed(text.as_bytes());
        let mut reader = Reader::default();
        let pieces: Vec<Message> = text.as_bytes().chunks(1).flat_map(|piece| reader.feed(piece)).collect();
        assert_eq!(whole, pieces);
        let run = Message { event: "run".into(), id: Some("7".into()), data: "{\"state\":\"é\"}".into() };
        let progress = Message { event: "progress".into(), id: None, data: "a\nb".into() };
        assert_eq!(whole, [run, progress]);
    }
}
