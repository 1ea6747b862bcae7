//! What a worker says about its tasks, and how it is sent: over HTTP, or to an engine in the same process.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use abide_api::tasks::{
    BatchDone, BatchResult, Beat, BlockTask, BodyState, CallbackMade, ClaimTasks, Claimed, CompleteTask, EffectKey,
    FailTask, Heartbeat, MakeCallback, Stopped, Task, TaskDone, TellEffect, TellSteps,
};
use abide_api::{Problem, Raw};
use reqwest::Method;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Error;

/// An answer that is on its way.
pub type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// How long the answer to a report may take; within a lease there is time to ask again.
const PATIENCE: Duration = Duration::from_secs(10);
/// Beyond the time a claim waits for work.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);

/// One thing that is said about one task.
#[derive(Debug)]
pub struct Item {
    pub task_id: String,
    pub said: Said,
}

#[derive(Debug)]
pub enum Said {
    Heartbeat(Heartbeat),
    Complete(CompleteTask),
    Fail(FailTask),
    Block(Box<BlockTask>),
    Callback(MakeCallback),
    Effect(TellEffect),
    Canceled(Stopped),
    Steps(TellSteps),
}

/// What came back for it.
#[derive(Debug)]
pub enum Reply {
    Beat(Beat),
    Done(Box<TaskDone>),
    Callback(CallbackMade),
    Effect(EffectKey),
    Body(BodyState),
    /// It was taken; there is nothing to add.
    Taken,
}

/// Where tasks come from and reports go.
pub trait Tasks: Send + Sync + 'static {
    fn claim<'a>(&'a self, ask: &'a ClaimTasks) -> Asking<'a, Vec<Task>>;

    /// Says one thing. It is said once; whether to repeat it is the caller's matter.
    fn tell<'a>(&'a self, item: &'a Item) -> Asking<'a, Reply>;

    /// Says many things in one call; each has its own answer, in the same order.
    fn batch<'a>(&'a self, items: &'a [Item]) -> Asking<'a, Vec<Result<Reply, Error>>>;

    fn heartbeat<'a>(&'a self, task_id: &'a str, ask: Heartbeat) -> Asking<'a, Beat> {
        told(self, task_id, Said::Heartbeat(ask), |reply| match reply {
            Reply::Beat(beat) => Some(beat),
            _ => None,
        })
    }

    fn complete<'a>(&'a self, task_id: &'a str, ask: CompleteTask) -> Asking<'a, TaskDone> {
        told(self, task_id, Said::Complete(ask), |reply| match reply {
            Reply::Done(done) => Some(*done),
            _ => None,
        })
    }

    fn fail<'a>(&'a self, task_id: &'a str, ask: FailTask) -> Asking<'a, ()> {
        told(self, task_id, Said::Fail(ask), |_| Some(()))
    }

    fn block<'a>(&'a self, task_id: &'a str, ask: BlockTask) -> Asking<'a, ()> {
        told(self, task_id, Said::Block(Box::new(ask)), |_| Some(()))
    }

    fn callback<'a>(&'a self, task_id: &'a str, ask: MakeCallback) -> Asking<'a, CallbackMade> {
        told(self, task_id, Said::Callback(ask), |reply| match reply {
            Reply::Callback(made) => Some(made),
            _ => None,
        })
    }

    fn effect<'a>(&'a self, task_id: &'a str, ask: TellEffect) -> Asking<'a, EffectKey> {
        told(self, task_id, Said::Effect(ask), |reply| match reply {
            Reply::Effect(key) => Some(key),
            _ => None,
        })
    }

    fn canceled<'a>(&'a self, task_id: &'a str, ask: Stopped) -> Asking<'a, ()> {
        told(self, task_id, Said::Canceled(ask), |_| Some(()))
    }

    fn steps<'a>(&'a self, task_id: &'a str, ask: TellSteps) -> Asking<'a, BodyState> {
        told(self, task_id, Said::Steps(ask), |reply| match reply {
            Reply::Body(body) => Some(body),
            _ => None,
        })
    }
}

fn told<'a, T: 'a, S: Tasks + ?Sized>(
    tasks: &'a S,
    task_id: &'a str,
    said: Said,
    read: impl FnOnce(Reply) -> Option<T> + Send + 'a,
) -> Asking<'a, T> {
    let item = Item { task_id: task_id.to_owned(), said };
    Box::pin(async move { read(tasks.tell(&item).await?).ok_or_else(misplaced) })
}

/// A reply of another kind than the question: the two sides do not speak the same language.
pub(crate) fn misplaced() -> Error {
    Error::Invalid("the answer is of another kind than the question".into())
}

impl Said {
    /// The last part of the path, and of an item in a batch its `op`.
    pub fn op(&self) -> &'static str {
        match self {
            Said::Heartbeat(_) => "heartbeat",
            Said::Complete(_) => "complete",
            Said::Fail(_) => "fail",
            Said::Block(_) => "block",
            Said::Callback(_) => "callbacks",
            Said::Effect(_) => "effects",
            Said::Canceled(_) => "canceled",
            Said::Steps(_) => "steps",
        }
    }

    /// The lease that it speaks for.
    fn epoch(&self) -> u64 {
        match self {
            Said::Heartbeat(ask) => ask.epoch,
            Said::Complete(ask) => ask.epoch,
            Said::Fail(ask) => ask.epoch,
            Said::Block(ask) => ask.epoch,
            Said::Callback(ask) => ask.epoch,
            Said::Effect(ask) => ask.epoch,
            Said::Canceled(ask) => ask.epoch,
            Said::Steps(ask) => ask.epoch,
        }
    }

    /// About how many bytes it has on the wire.
    pub(crate) fn weight(&self) -> usize {
        let raw = |raw: &Option<Raw>| raw.as_ref().map_or(0, |raw| raw.get().len());
        256 + match self {
            Said::Complete(done) => raw(&done.output),
            Said::Fail(fail) => {
                fail.message.len() + fail.details.as_ref().map_or(0, |details| details.to_string().len())
            }
            Said::Block(block) => raw(&block.subject) + raw(&block.input) + raw(&block.form),
            Said::Effect(effect) => raw(&effect.result),
            Said::Steps(steps) => {
                let done: usize = steps.done.iter().map(|done| 256 + raw(&done.output)).sum();
                done + 512 * (steps.begin.len() + steps.wait.len())
            }
            Said::Heartbeat(_) | Said::Callback(_) | Said::Canceled(_) => 0,
        }
    }

    fn body(&self) -> Result<Vec<u8>, serde_json::Error> {
        match self {
            Said::Heartbeat(ask) => serde_json::to_vec(ask),
            Said::Complete(ask) => serde_json::to_vec(ask),
            Said::Fail(ask) => serde_json::to_vec(ask),
            Said::Block(ask) => serde_json::to_vec(ask),
            Said::Callback(ask) => serde_json::to_vec(ask),
            Said::Effect(ask) => serde_json::to_vec(ask),
            Said::Canceled(ask) => serde_json::to_vec(ask),
            Said::Steps(ask) => serde_json::to_vec(ask),
        }
    }

    fn reply(&self, body: &[u8]) -> Result<Reply, Error> {
        match self {
            Said::Heartbeat(_) => read(body).map(Reply::Beat),
            Said::Complete(_) => read(body).map(|done| Reply::Done(Box::new(done))),
            Said::Callback(_) => read(body).map(Reply::Callback),
            Said::Effect(_) => read(body).map(Reply::Effect),
            Said::Steps(_) => read(body).map(Reply::Body),
            Said::Fail(_) | Said::Block(_) | Said::Canceled(_) => Ok(Reply::Taken),
        }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body)
        .map_err(|error| Error::Unreadable { server: "the server".into(), cause: error.to_string() })
}

/// Writes a batch by hand: raw JSON does not pass through `flatten`, and outputs go as they are.
pub(crate) fn batch_body(items: &[Item]) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = b"{\"items\":[".to_vec();
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            body.push(b',');
        }
        body.extend_from_slice(b"{\"op\":\"");
        body.extend_from_slice(item.said.op().as_bytes());
        body.extend_from_slice(b"\",\"task_id\":");
        serde_json::to_writer(&mut body, &item.task_id)?;
        let fields = item.said.body()?;
        // Every body has at least its epoch, so there is something after the brace.
        body.push(b',');
        body.extend_from_slice(&fields[1..]);
    }
    body.extend_from_slice(b"]}");
    Ok(body)
}

fn result_of(item: &Item, result: &BatchResult) -> Result<Reply, Error> {
    let body = result.body.get().as_bytes();
    match result.status {
        200..=299 => item.said.reply(body),
        _ => Err(read::<Problem>(body).map_or_else(|error| error, Error::from)),
    }
}

impl Tasks for Client {
    fn claim<'a>(&'a self, ask: &'a ClaimTasks) -> Asking<'a, Vec<Task>> {
        Box::pin(async move {
            let wait = Duration::from_millis(ask.wait_ms.unwrap_or(20_000));
            let call = self.call(Method::POST, &["v1", "tasks", "claim"]).json(ask);
            let answer = call.patience(wait + CLAIM_PATIENCE).once().send().await?;
            match answer.status {
                204 => Ok(Vec::new()),
                _ => answer.json::<Claimed>().map(|claimed| claimed.tasks),
            }
        })
    }

    fn tell<'a>(&'a self, item: &'a Item) -> Asking<'a, Reply> {
        Box::pin(async move {
            let call = self.call(Method::POST, &["v1", "tasks", &item.task_id, item.said.op()]);
            let call = call.body("application/json", item.said.body()?).epoch(item.said.epoch());
            let answer = call.patience(PATIENCE).once().send().await?;
            item.said.reply(&answer.body)
        })
    }

    fn batch<'a>(&'a self, items: &'a [Item]) -> Asking<'a, Vec<Result<Reply, Error>>> {
        Box::pin(async move {
            let call = self.call(Method::POST, &["v1", "tasks", "batch"]);
            let call = call.body("application/json", batch_body(items)?);
            let done: BatchDone = call.patience(PATIENCE).once().send().await?.json()?;
            if done.results.len() != items.len() {
                return Err(misplaced());
            }
            Ok(items.iter().zip(&done.results).map(|(item, result)| result_of(item, result)).collect())
        })
    }
}

/// The input of a task or the output of a step, as the type that the code expects.
pub(crate) fn typed<T: DeserializeOwned>(raw: Option<&Raw>) -> Result<T, serde_json::Error> {
    serde_json::from_str(raw.map_or("null", |raw| raw.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_each_call_with_its_op_and_its_payload_as_it_is() {
        let output = Some(abide_api::raw("{\"n\": 1.50}").expect("JSON"));
        let complete = CompleteTask { epoch: 3, output, claim_next: true, ..CompleteTask::default() };
        let items = [
            Item { task_id: "task_1".into(), said: Said::Complete(complete) },
            Item { task_id: "task_2".into(), said: Said::Heartbeat(Heartbeat { epoch: 4, progress: None }) },
        ];
        assert_eq!(
            String::from_utf8(batch_body(&items).expect("JSON")).expect("text"),
            r#"{"items":[{"op":"complete","task_id":"task_1","epoch":3,"output":{"n": 1.50},"claim_next":true},"#
                .to_owned()
                + r#"{"op":"heartbeat","task_id":"task_2","epoch":4}]}"#
        );
    }
}
