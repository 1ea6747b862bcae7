//! Workers: claim, beat, report. Every report carries its epoch, and repeating one changes nothing.

use std::collections::BTreeMap;

use abide_api::engine::{Says, body_state, effect_key, end_attempt, make_callback, report, task_done};
use abide_api::tasks::{
    Batch, BatchDone, BatchResult, Beat, BlockTask, CallbackMade, ClaimTasks, CompleteTask, FailTask, Heartbeat,
    MakeCallback, ProgressTold, Stopped, TellEffect, TellSteps,
};
use abide_api::{Code, Problem};
use abide_core::run::command::Reply as Told;
use abide_engine::push::webhook;
use abide_engine::request::{LeaseRef, LeasedTask, Told as RunTold};
use serde::{Deserialize, Serialize};

use super::access;
use super::call::{Answered, Call, InTransit, Reply, epoch_in, parse};
use super::connections::ConnectUrl;

/// Items of one batch.
const MOST_ITEMS: usize = 1_000;

pub async fn claim(call: Call, asked: ClaimTasks) -> Answered {
    if let Some(key) = &call.who.key
        && let Some(queue) = asked.queues.iter().find(|queue| !key.queues.is_empty() && !key.queues.contains(queue))
    {
        let detail = format!("This key may claim from {} only, not from {queue}.", key.queues.join(", "));
        return Err(Problem::new(Code::Forbidden, detail));
    }
    let mut stopping = call.api.stopping();
    let tasks = tokio::select! {
        tasks = abide_api::engine::claim(&call.engine, call.worker(), asked) => tasks?,
        // Nobody is kept waiting by a server that stops; what was leased meanwhile is found by its claim id or expires.
        () = super::stopped(&mut stopping) => return Err(Problem::new(Code::ShuttingDown, "The server is stopping.")),
    };
    if tasks.is_empty() {
        return Ok(Reply::empty(204));
    }
    Ok(leased(&call, &Claimed { tasks: &tasks }, tasks.iter().map(LeasedTask::lease).collect()))
}

/// Tasks with their payloads as they are stored.
#[derive(Serialize)]
struct Claimed<'a> {
    tasks: &'a [LeasedTask],
}

/// An answer with leases: they are given back if it does not get as far as the connection of its worker.
fn leased(call: &Call, answer: &impl Serialize, leases: Vec<LeaseRef>) -> Reply {
    let leases = InTransit { engine: call.engine.clone(), leases };
    Reply::leasing(200, answer, leases)
}

pub async fn heartbeat(call: Call, said: Heartbeat) -> Answered {
    Ok(Reply::json(200, &beat(&call, call.param("task_id"), said).await?))
}

/// Extends the lease, and tells watchers the progress as the rules allow it to be shown.
async fn beat(call: &Call, task_id: &str, said: Heartbeat) -> Result<Beat, Problem> {
    let progress = said.progress.clone();
    let (expires_at, stop, message) = match report(&call.engine, call.worker(), task_id, said).await?.reply {
        Told::Beat { expires_at, stop, message } => (expires_at, stop, message),
        other => return Err(Problem::new(Code::Internal, format!("A heartbeat was answered with {other:?}."))),
    };
    if let Some(progress) = progress {
        let shown = ProgressTold { message, ..progress };
        call.api.progress.tell(&call.who.namespace, task_id, shown, call.engine.clock().now());
    }
    Ok(Beat { lease_expires_at: expires_at, cancel_requested: stop })
}

async fn ended(call: &Call, said: impl Says) -> Answered {
    let told = report(&call.engine, call.worker(), call.param("task_id"), said).await?;
    let leases = told.task.iter().map(LeasedTask::lease).collect();
    Ok(leased(call, &task_done(&told), leases).replayed(told.replayed))
}

pub async fn complete(call: Call, said: CompleteTask) -> Answered {
    ended(&call, said).await
}

pub async fn fail(call: Call, said: FailTask) -> Answered {
    ended(&call, said).await
}

pub async fn block(call: Call, said: BlockTask) -> Answered {
    let told = blocked(&call, call.param("task_id"), said).await?;
    Ok(Reply::json(200, &task_done(&told)).replayed(told.replayed))
}

/// Gives the lease back until something happens. The address for reconnecting is kept only from the holder of the lease.
async fn blocked(call: &Call, task_id: &str, said: BlockTask) -> Result<RunTold, Problem> {
    let tool = said.tool.as_deref().unwrap_or_default();
    let url = said.connect_url.as_deref();
    let found = ConnectUrl::read("/connect_url", tool, said.account.as_deref(), url, &call.api.settings.targets)?;
    let told = report(&call.engine, call.worker(), task_id, said).await?;
    keep_connect_urls(call, &told, found);
    Ok(told)
}

fn keep_connect_urls(call: &Call, told: &RunTold, found: impl IntoIterator<Item = ConnectUrl>) {
    // A repeated report changes nothing.
    if !told.replayed {
        found.into_iter().for_each(|url| call.api.connect_urls.keep(&call.who.namespace, url));
    }
}

pub async fn canceled(call: Call, said: Stopped) -> Answered {
    ended(&call, said).await
}

pub async fn callback(call: Call, asked: MakeCallback) -> Answered {
    Ok(Reply::json(201, &new_callback(&call, call.param("task_id"), asked).await?))
}

async fn new_callback(call: &Call, task_id: &str, asked: MakeCallback) -> Result<CallbackMade, Problem> {
    let token = access::token(43);
    make_callback(&call.engine, call.worker(), task_id, asked, &token).await?;
    Ok(CallbackMade { url: format!("{}/v1/callbacks/{token}", call.api.settings.public_url) })
}

pub async fn effect(call: Call, said: TellEffect) -> Answered {
    let told = report(&call.engine, call.worker(), call.param("task_id"), said).await?;
    let key =
        effect_key(&told).ok_or_else(|| Problem::new(Code::Internal, "An effect was answered with something else."))?;
    Ok(Reply::json(200, &key))
}

pub async fn steps(call: Call, said: TellSteps) -> Answered {
    Ok(Reply::json(200, &body_state(&told_steps(&call, call.param("task_id"), said).await?)))
}

async fn told_steps(call: &Call, task_id: &str, said: TellSteps) -> Result<RunTold, Problem> {
    let mut found = Vec::new();
    for (n, auth) in said.wait.iter().enumerate().filter_map(|(n, wait)| Some((n, wait.auth.as_ref()?))) {
        let (pointer, url) = (format!("/wait/{n}/auth/connect_url"), auth.connect_url.as_deref());
        found.extend(ConnectUrl::read(&pointer, &auth.tool, auth.account.as_deref(), url, &call.api.settings.targets)?);
    }
    let told = report(&call.engine, call.worker(), task_id, said).await?;
    keep_connect_urls(call, &told, found);
    Ok(told)
}

/// What a tool sends to a callback. The token is the only credential, works once, and is not named in any log.
pub async fn delivered(call: Call) -> Answered {
    check_signature(&call)?;
    let payload = match call.body.is_empty() {
        true => "null".to_owned(),
        false => parse::<abide_api::Raw>(&call.body)?.get().to_owned(),
    };
    let delivered = call.engine.deliver_callback(call.param("token"), payload.into()).await?;
    let applied = delivered.taken != abide_engine::callback::Taken::TooLate;
    Ok(Reply::json(200, &Applied { applied }))
}

#[derive(Serialize)]
struct Applied {
    applied: bool,
}

/// Where callbacks must be signed, as Standard Webhooks say.
fn check_signature(call: &Call) -> Result<(), Problem> {
    let secrets = &call.api.settings.callback_secrets;
    if secrets.is_empty() {
        return Ok(());
    }
    let header = |name: &str| call.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (id, timestamp, signature) = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
    let signed = webhook::Signed { id, timestamp, signature, body: &call.body };
    webhook::verify(secrets, signed, call.engine.clock().now()).map_err(|why| {
        let code = Code::parse(why.code()).filter(|code| *code != Code::ValidationFailed).unwrap_or(Code::BadRequest);
        // A request without any of the headers is not a wrong one: it is not signed.
        let code = if signature.is_empty() { Code::SignatureInvalid } else { code };
        Problem::new(code, format!("The callback is not believed: {why}."))
    })
}

/// Which call an item of a batch stands for, and for which task.
#[derive(Deserialize)]
struct Which {
    op: Op,
    task_id: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    Heartbeat,
    Complete,
    Fail,
    Block,
    Callbacks,
    Effects,
    Canceled,
    Steps,
}

/// All items are asked at once, so that they share a commit; each has its own answer.
pub async fn batch(call: Call, asked: Batch) -> Answered {
    if asked.items.is_empty() || asked.items.len() > MOST_ITEMS {
        return Err(Problem::invalid("/items", format!("Send 1 to {MOST_ITEMS} items.")));
    }
    let answers = futures_util::future::join_all(asked.items.iter().map(|item| one_result(&call, item.get()))).await;
    let mut results = Vec::with_capacity(answers.len());
    let mut leases = InTransit { engine: call.engine.clone(), leases: Vec::new() };
    for answer in answers {
        let (status, body) = match answer {
            Ok((body, of_item)) => {
                leases.add(of_item);
                (200, body)
            }
            Err(problem) => (problem.status, abide_api::raw_of(&problem).map_err(unwritable)?),
        };
        results.push(BatchResult { status, body });
    }
    Ok(Reply::leasing(200, &BatchDone { results }, leases))
}

/// One item; a result in it that is refused ends its attempt, as a call of its own would.
async fn one_result(call: &Call, item: &str) -> Result<(abide_api::Raw, Option<InTransit>), Problem> {
    let problem = match one(call, item).await {
        Err(problem) => problem,
        answer => return answer,
    };
    match (parse::<Which>(item.as_bytes()), epoch_in(item.as_bytes())) {
        (Ok(Which { op: Op::Complete | Op::Fail | Op::Steps, task_id }), Some(epoch)) => {
            Err(end_attempt(&call.engine, call.worker(), &task_id, epoch, problem).await)
        }
        _ => Err(problem),
    }
}

/// The answer to one item, with the lease that comes with it.
async fn one(call: &Call, item: &str) -> Result<(abide_api::Raw, Option<InTransit>), Problem> {
    let answer = |body: Result<abide_api::Raw, _>| Ok((body.map_err(unwritable)?, None));
    let which: Which = parse(item.as_bytes())?;
    let (engine, caller, task_id) = (&call.engine, call.worker(), which.task_id.as_str());
    let told = match which.op {
        Op::Heartbeat => return answer(abide_api::raw_of(&beat(call, task_id, rest(item)?).await?)),
        Op::Complete => report(engine, caller, task_id, rest::<CompleteTask>(item)?).await?,
        Op::Fail => report(engine, caller, task_id, rest::<FailTask>(item)?).await?,
        Op::Block => blocked(call, task_id, rest(item)?).await?,
        Op::Callbacks => {
            let made = new_callback(call, task_id, rest(item)?).await?;
            return answer(abide_api::raw_of(&made));
        }
        Op::Canceled => report(engine, caller, task_id, rest::<Stopped>(item)?).await?,
        Op::Effects => {
            let told = report(engine, caller, task_id, rest::<TellEffect>(item)?).await?;
            return answer(abide_api::raw_of(&effect_key(&told)));
        }
        Op::Steps => {
            let told = told_steps(call, task_id, rest(item)?).await?;
            return answer(abide_api::raw_of(&body_state(&told)));
        }
    };
    let lease = told.task.iter().map(LeasedTask::lease).collect();
    let lease = InTransit { engine: engine.clone(), leases: lease };
    Ok((abide_api::raw_of(&task_done(&told)).map_err(unwritable)?, Some(lease)))
}

/// The item without the fields that only a batch has.
fn rest<T: serde::de::DeserializeOwned>(item: &str) -> Result<T, Problem> {
    let Fields(mut fields) = parse(item.as_bytes())?;
    fields.remove("op");
    fields.remove("task_id");
    let bytes = serde_json::to_vec(&fields).map_err(unwritable)?;
    parse(&bytes)
}

/// The fields of an item as they are written. One that is given twice is refused, as in a call of its own.
struct Fields(BTreeMap<String, abide_api::Raw>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct Reading;
        impl<'de> serde::de::Visitor<'de> for Reading {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an item of a batch")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut members: A) -> Result<Fields, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = members.next_entry::<String, abide_api::Raw>()? {
                    if fields.contains_key(&name) {
                        return Err(serde::de::Error::custom(format!("duplicate field `{name}`")));
                    }
                    fields.insert(name, value);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Reading)
    }
}

fn unwritable(error: serde_json::Error) -> Problem {
    Problem::new(Code::Internal, error.to_string())
}
