//! The same worker on an engine in the same process: no server, no HTTP, the same requests and refusals.

use abide_api::engine::{Caller, Says, body_state, claim, effect_key, make_callback, report, task_done};
use abide_api::tasks::{CallbackMade, ClaimTasks, Task};
use abide_engine::Engine;
use abide_engine::request::Told;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::ids;
use crate::tasks::{Asking, Item, Reply, Said, Tasks, misplaced};

impl Tasks for Engine {
    fn claim<'a>(&'a self, ask: &'a ClaimTasks) -> Asking<'a, Vec<Task>> {
        Box::pin(async move {
            let tasks = claim(self, Caller::default(), ask.clone()).await?;
            tasks.iter().map(as_sent).collect()
        })
    }

    fn tell<'a>(&'a self, item: &'a Item) -> Asking<'a, Reply> {
        Box::pin(tell(self, item))
    }

    /// All at once, so that they share a commit.
    fn batch<'a>(&'a self, items: &'a [Item]) -> Asking<'a, Vec<Result<Reply, Error>>> {
        Box::pin(async move { Ok(futures_util::future::join_all(items.iter().map(|item| tell(self, item))).await) })
    }
}

async fn tell(engine: &Engine, item: &Item) -> Result<Reply, Error> {
    use abide_core::run::command::Reply as Answer;
    match &item.said {
        Said::Heartbeat(beat) => match reported(engine, &item.task_id, beat.clone()).await?.reply {
            Answer::Beat { expires_at, stop, .. } => {
                Ok(Reply::Beat(abide_api::tasks::Beat { lease_expires_at: expires_at, cancel_requested: stop }))
            }
            _ => Err(misplaced()),
        },
        Said::Complete(done) => {
            let told = reported(engine, &item.task_id, done.clone()).await?;
            as_sent(&task_done(&told)).map(|done| Reply::Done(Box::new(done)))
        }
        Said::Fail(fail) => reported(engine, &item.task_id, fail.clone()).await.map(|_| Reply::Taken),
        Said::Block(block) => reported(engine, &item.task_id, (**block).clone()).await.map(|_| Reply::Taken),
        Said::Canceled(stopped) => reported(engine, &item.task_id, stopped.clone()).await.map(|_| Reply::Taken),
        Said::Effect(effect) => {
            let told = reported(engine, &item.task_id, effect.clone()).await?;
            effect_key(&told).map(Reply::Effect).ok_or_else(misplaced)
        }
        Said::Steps(steps) => {
            let told = reported(engine, &item.task_id, steps.clone()).await?;
            as_sent(&body_state(&told)).map(Reply::Body)
        }
        Said::Callback(asked) => {
            // Nobody listens at an address here: the token itself is what `Engine::deliver_callback` takes.
            let token = ids::fresh();
            make_callback(engine, Caller::default(), &item.task_id, asked.clone(), &token).await?;
            Ok(Reply::Callback(CallbackMade { url: token }))
        }
    }
}

async fn reported(engine: &Engine, task_id: &str, said: impl Says) -> Result<Told, Error> {
    Ok(report(engine, Caller::default(), task_id, said).await?)
}

/// What the engine gives, as it would have come over the wire.
fn as_sent<T: DeserializeOwned>(given: &impl Serialize) -> Result<T, Error> {
    let text = serde_json::to_string(given)?;
    serde_json::from_str(&text)
        .map_err(|error| Error::Unreadable { server: "the engine".into(), cause: error.to_string() })
}
