//! Runs: start, look, steer.

use std::collections::BTreeMap;

use abide_api::engine::{duration, identifier};
use abide_api::runs::*;
use abide_api::{Code, Problem};
use abide_core::contract::{Evidence, Failure, RunState, StepState};
use abide_core::explain::At;
use abide_core::ids::{Digest, Path, Queue, RunId, WorkflowId};
use abide_core::run::OriginKind;
use abide_core::run::command::{Ask, Resolution, Start};
use abide_core::run::step::{Proof, Resource};
use abide_core::time::Timestamp;
use abide_engine::reads::{ReceiptView, StepView};
use abide_engine::request::{Answer, NewRun, Rerun, RerunVersion, ToRun, What};
use abide_engine::{Filter, ReadError};
use serde::Serialize;
use serde_json::value::RawValue;

use super::call::{Answered, Call, Reply, json as stored, payload as payload_of, unexpected};
use super::filter::{filter, instant};
use super::{causes, graph};

/// An output that is larger is named, not shown, in a list of steps.
const SHOWN_OUTPUT: u64 = 64 << 10;
/// Runs that one bulk call changes at most; the answer tells how many matched.
const BULK_MOST: usize = 10_000;
const BULK_REFUSALS: usize = 100;

/// `POST /v1/runs`
pub async fn start(call: Call, asked: StartRun) -> Answered {
    identifier("/workflow", &asked.workflow)?;
    for (pointer, value) in [
        ("/run_id", &asked.run_id),
        ("/unique", &asked.unique),
        ("/queue", &asked.queue),
        ("/owner_id", &asked.owner_id),
        ("/data_region", &asked.data_region),
    ] {
        value.as_deref().map(|value| identifier(pointer, value)).transpose()?;
    }
    if asked.labels.len() > 64 {
        return Err(Problem::invalid("/labels", "A run has at most 64 labels."));
    }
    for (name, value) in &asked.labels {
        identifier("/labels", name)?;
        identifier(&format!("/labels/{name}"), value)?;
    }
    let new = NewRun {
        workflow: WorkflowId::from(asked.workflow.as_str()),
        version: asked.version,
        run_id: asked.run_id.map(RunId::new),
        actor: call.actor(),
        start: Start {
            labels: asked.labels,
            unique: asked.unique,
            queue: asked.queue.as_deref().map(Queue::from),
            priority: asked.priority.unwrap_or(0),
            start_at: asked.start_at,
            paused: asked.paused,
            owner_id: asked.owner_id,
            data_region: asked.data_region,
            trace_id: trace_id(&call),
            // Nothing given is an input without fields: documents read it by name.
            ..Start::with_input(stored(asked.input).unwrap_or_else(|| "{}".into()))
        },
    };
    match call.ask(What::Start(Box::new(new))).await? {
        Answer::Run(told) => call.run_answer(if told.replayed { 200 } else { 201 }, &told).await,
        other => Err(unexpected(&other)),
    }
}

/// The trace that the caller is part of.
fn trace_id(call: &Call) -> Option<String> {
    let text = call.headers.get("traceparent")?.to_str().ok()?;
    let trace = text.split('-').nth(1)?;
    let fits = trace.len() == 32
        && trace.bytes().all(|byte| byte.is_ascii_hexdigit())
        && trace.bytes().any(|byte| byte != b'0');
    fits.then(|| trace.to_ascii_lowercase())
}

/// `GET /v1/runs`
pub async fn list(call: Call) -> Answered {
    call.only(super::filter::NAMES)?;
    let limit = call.number("limit", 50usize, 1..=500)?;
    let filter = filter(call.query.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
    match call.one("archived")? {
        None | Some("false") => Ok(Reply::json(200, &call.engine.list(filter, call.one("cursor")?, limit).await?)),
        Some("true") => Ok(Reply::json(200, &call.engine.list_archived(filter, call.one("cursor")?, limit).await?)),
        Some(_) => Err(Problem::invalid("archived", "It is true or false.")),
    }
}

/// `GET /v1/runs/counts`
pub async fn counts(call: Call) -> Answered {
    call.only(&["by", "workflow"])?;
    let workflow = call.one("workflow")?.map(WorkflowId::from);
    let by = call.one("by")?.unwrap_or("state");
    let counts: BTreeMap<String, u64> = match by {
        "state" => text_keys(call.engine.counts(workflow).await?),
        "workflow" => text_keys(call.engine.counts_by_workflow().await?),
        "root_cause" => call.engine.counts_by_cause().await?,
        _ => return Err(Problem::invalid("by", "Count by state, workflow or root_cause.")),
    };
    if by == "root_cause" {
        let groups = causes::groups(&call, counts.iter()).await?;
        return Ok(Reply::json(200, &Counted { counts, groups: Some(groups) }));
    }
    Ok(Reply::json(200, &Counted { counts, groups: None }))
}

#[derive(Serialize)]
struct Counted {
    counts: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<causes::Group>>,
}

fn text_keys<K: ToString>(counts: BTreeMap<K, u64>) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(key, count)| (key.to_string(), count)).collect()
}

/// An instant, or the number of an event.
fn at(call: &Call) -> Result<Option<At>, Problem> {
    let Some(text) = call.one("at")? else { return Ok(None) };
    match text.parse::<u64>() {
        Ok(seq) => Ok(Some(At::Seq(seq))),
        Err(_) => instant("at", text).map(|time| Some(At::Time(time))),
    }
}

/// `GET /v1/runs/{id}`
pub async fn show(call: Call) -> Answered {
    call.only(&["at"])?;
    if let Some(at) = at(&call)? {
        return Ok(Reply::json(200, &call.engine.run_at(&call.run_id(), at).await?));
    }
    let record = call.engine.run(&call.run_id()).await?;
    let tag = format!("\"{}\"", record.as_of_seq);
    // Liveness moves without events, so only a run that has ended is the same for its version.
    let same = call.headers.get("if-none-match").is_some_and(|value| value.as_bytes() == tag.as_bytes());
    if same && record.state.is_terminal() {
        return Ok(Reply::empty(304).etag(record.as_of_seq));
    }
    Ok(Reply::json(200, &record).etag(record.as_of_seq))
}

pub async fn status(call: Call) -> Answered {
    Ok(Reply::json(200, &call.engine.status(&call.run_id()).await?))
}

pub async fn events(call: Call) -> Answered {
    call.only(&["after", "limit"])?;
    let (after, limit) = (call.number("after", 0u64, 0..=u64::MAX)?, call.number("limit", 100usize, 1..=500)?);
    let events = call.engine.events(&call.run_id(), after, limit).await?;
    let next = events.last().filter(|_| events.len() == limit).map(|event| event.seq.to_string());
    Ok(Reply::list("events", events, next))
}

/// Whether the caller may see the bytes of this run.
async fn sees(call: &Call) -> Result<bool, Problem> {
    match (&call.who.key, call.who.role) {
        (Some(key), abide_api::keys::Role::Worker) => {
            Ok(call.engine.is_worked_on_by(&call.run_id(), &key.principal).await?)
        }
        _ => Ok(call.who.sees_payloads()),
    }
}

/// A step as it is shown: with its payloads as they are stored, where the caller may see them and they are not too large.
#[derive(Serialize)]
struct StepShown<'a> {
    step_id: &'a Path,
    title: &'a Option<String>,
    state: StepState,
    attempt: u32,
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
    output: Option<&'a RawValue>,
    resources: &'a [Resource],
    receipts: &'a [ReceiptView],
    retry_safe: bool,
    proof: &'a Option<Proof>,
    failure: &'a Option<Failure>,
    evidence: &'a [Evidence],
    #[serde(skip_serializing_if = "Option::is_none")]
    output_ref: Option<OutputRef>,
    /// None: it was not asked for, or the caller may not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Option<&'a RawValue>>,
}

#[derive(Serialize)]
struct OutputRef {
    digest: Digest,
    size: u64,
}

fn shown<'a>(step: &'a StepView, output: Option<&'a str>) -> StepShown<'a> {
    StepShown {
        step_id: &step.step_id,
        title: &step.title,
        state: step.state,
        attempt: step.attempt,
        started_at: step.started_at,
        ended_at: step.ended_at,
        output: output.and_then(payload_of),
        resources: &step.resources,
        receipts: &step.receipts,
        retry_safe: step.retry_safe,
        proof: &step.proof,
        failure: &step.failure,
        evidence: &step.evidence,
        output_ref: step.output.as_ref().map(|stored| OutputRef { digest: stored.digest, size: stored.size }),
        input: None,
    }
}

pub async fn steps(call: Call) -> Answered {
    call.only(&["limit", "cursor"])?;
    let limit = call.number("limit", 500usize, 1..=500)?;
    let from = call.number("cursor", 0usize, 0..=usize::MAX)?;
    let most = sees(&call).await?.then_some(SHOWN_OUTPUT);
    let page = call.engine.steps_page(&call.run_id(), from, limit, most).await?;
    let steps: Vec<_> = page.steps.iter().map(|(step, output)| shown(step, output.as_deref())).collect();
    let next = from.checked_add(limit).filter(|next| *next < page.count).map(|next| next.to_string());
    Ok(Reply::list("steps", steps, next))
}

pub async fn step(call: Call) -> Answered {
    let step = call.engine.step(&call.run_id(), &Path::from(call.param("step_id"))).await?;
    if !sees(&call).await? {
        return Ok(Reply::json(200, &shown(&step, None)));
    }
    let small = step.output.as_ref().filter(|output| output.size <= SHOWN_OUTPUT);
    let output = match small {
        Some(output) => call.engine.payload(&call.run_id(), output.name.as_str()).await?,
        None => None,
    };
    // What somebody who corrects it begins with.
    let input = call.engine.shown_step_input(&call.run_id(), &step.step_id, SHOWN_OUTPUT).await?;
    let input = input.as_deref().and_then(payload_of);
    Ok(Reply::json(200, &StepShown { input: Some(input), ..shown(&step, output.as_deref()) }))
}

/// `GET /v1/runs/{id}/steps/{step}/output`
pub async fn step_output(call: Call) -> Answered {
    call.only(&[])?;
    check_sees(&call).await?;
    let step = call.engine.step(&call.run_id(), &Path::from(call.param("step_id"))).await?;
    let found = match &step.output {
        Some(output) => call.engine.payload(&call.run_id(), output.name.as_str()).await?,
        None => None,
    };
    let missing = || Problem::new(Code::NotFound, format!("{} has no output.", step.step_id));
    Ok(Reply::bytes(200, "application/json", found.ok_or_else(missing)?.as_bytes().to_vec()))
}

pub async fn timeline(call: Call) -> Answered {
    call.only(&[])?;
    Ok(Reply::json(200, &call.engine.timeline(&call.run_id()).await?))
}

async fn check_sees(call: &Call) -> Result<(), Problem> {
    if sees(call).await? {
        return Ok(());
    }
    let detail = "Payloads are read by operators, and by workers while they hold a lease of the run.";
    Err(Problem::new(Code::Forbidden, detail))
}

async fn payload(call: Call, name: &str) -> Answered {
    check_sees(&call).await?;
    let found = match name {
        "input" => call.engine.shown_input(&call.run_id()).await?,
        name => call.engine.payload(&call.run_id(), name).await?,
    };
    match found {
        Some(bytes) => Ok(Reply::bytes(200, "application/json", bytes.as_bytes().to_vec())),
        None => Err(Problem::new(Code::NotFound, format!("The run has no {name} yet."))),
    }
}

pub async fn input(call: Call) -> Answered {
    payload(call, "input").await
}

pub async fn output(call: Call) -> Answered {
    payload(call, "output").await
}

pub async fn explain(call: Call) -> Answered {
    call.only(&["at"])?;
    match at(&call)? {
        Some(at) => Ok(Reply::json(200, &call.engine.explain_at(&call.run_id(), at).await?)),
        None => Ok(Reply::json(200, &call.engine.explain(&call.run_id()).await?)),
    }
}

pub async fn handoff(call: Call) -> Answered {
    let handoff = call.engine.handoff(&call.run_id()).await?;
    match sees(&call).await? {
        true => Ok(Reply::json(200, &handoff)),
        false => Ok(Reply::json(200, &graph::without_payloads(&handoff)?)),
    }
}

pub async fn bundle(call: Call) -> Answered {
    let bundle = call.engine.support_bundle(&call.run_id()).await?;
    let name =
        format!("attachment; filename=\"{}.abide.json\"", call.param("run_id").replace(['"', '\\', '\r', '\n'], "_"));
    Ok(Reply::json(200, &bundle).header(hyper::header::CONTENT_DISPOSITION, name))
}

pub async fn graph(call: Call) -> Answered {
    call.only(&["at"])?;
    let (definition, steps) = call.engine.graph(&call.run_id(), at(&call)?).await?;
    Ok(Reply::json(200, &graph::of(&definition, &steps)))
}

/// `POST …/cancel`
pub async fn cancel(call: Call, asked: CancelRun) -> Answered {
    let grace = asked.grace.as_deref().map(|text| duration("/grace", text)).transpose()?;
    let told = call.command(Ask::Cancel { reason: asked.reason, undo: asked.compensate, grace }).await?;
    call.run_answer(if told.state.is_terminal() { 200 } else { 202 }, &told).await
}

pub async fn pause(call: Call, asked: PauseRun) -> Answered {
    let told = call.command(Ask::Pause { reason: asked.reason }).await?;
    call.run_answer(200, &told).await
}

pub async fn resume(call: Call, asked: ResumeRun) -> Answered {
    let one_step = match asked.steps {
        None => false,
        Some(1) => true,
        Some(_) => return Err(Problem::invalid("/steps", "It is 1, or left out.")),
    };
    let told = call.command(Ask::Resume { one_step }).await?;
    call.run_answer(200, &told).await
}

pub async fn signal(call: Call, asked: SendSignal) -> Answered {
    let name = identifier("name", call.param("name"))?.to_owned();
    let payload = stored(asked.payload).unwrap_or_else(|| "null".into());
    let told = call.command(Ask::Signal { name, payload }).await?;
    call.run_answer(200, &told).await
}

pub async fn pin(call: Call, asked: PinRun) -> Answered {
    let told = call.command(Ask::Pin { pinned: asked.pinned.unwrap_or(true) }).await?;
    call.run_answer(200, &told).await
}

pub async fn retry(call: Call, _: RetryRun) -> Answered {
    let record = call.engine.run(&call.run_id()).await?;
    if !record.state.is_terminal() {
        let told = call.command(Ask::RetryNow).await?;
        return call.run_answer(200, &told).await;
    }
    again(&call, OriginKind::Retry, RerunRun::default()).await
}

pub async fn rerun(call: Call, asked: RerunRun) -> Answered {
    if asked.dry_run {
        let plan = call.engine.plan_rerun(rerun_of(&call, OriginKind::Rerun, asked)).await?;
        return Ok(Reply::json(200, &plan));
    }
    again(&call, OriginKind::Rerun, asked).await
}

fn rerun_of(call: &Call, kind: OriginKind, asked: RerunRun) -> Rerun {
    Rerun {
        run_id: call.run_id(),
        kind,
        from_step: asked.from_step,
        version: match asked.version {
            None | Some(Version::Word(VersionWord::Same)) => RerunVersion::Same,
            Some(Version::Word(VersionWord::Latest)) => RerunVersion::Latest,
            Some(Version::Number(number)) => RerunVersion::Number(number),
        },
        input: stored(asked.input),
        actor: call.actor(),
    }
}

async fn again(call: &Call, kind: OriginKind, asked: RerunRun) -> Answered {
    match call.ask(What::Rerun(Box::new(rerun_of(call, kind, asked)))).await? {
        Answer::Run(told) => call.run_answer(if told.replayed { 200 } else { 201 }, &told).await,
        other => Err(unexpected(&other)),
    }
}

pub async fn resolve(call: Call, asked: ResolveStep) -> Answered {
    let step_id = Path::from(identifier("/step_id", &asked.step_id)?);
    let action = match asked.action {
        ResolveAction::Retry => Resolution::Retry { new_key: asked.new_key },
        ResolveAction::Complete => Resolution::Complete { output: stored(asked.output) },
        ResolveAction::Correct => {
            let input =
                stored(asked.input).ok_or_else(|| Problem::invalid("/input", "A correction needs an input."))?;
            Resolution::Correct { input }
        }
        ResolveAction::Skip => Resolution::Skip,
        ResolveAction::Compensate => Resolution::Compensate,
        ResolveAction::Fail => Resolution::Fail,
    };
    let told = call.command(Ask::Resolve { step_id, action, reason: asked.reason }).await?;
    call.run_answer(200, &told).await
}

/// `POST /v1/runs/bulk`: each run is asked by itself, so that one refusal harms no other.
pub async fn bulk(call: Call, asked: Bulk) -> Answered {
    if let Some(said) = call.said_before().await? {
        return Ok(Reply::bytes(200, "application/json", said).replayed(true));
    }
    let pairs = asked
        .filter
        .iter()
        .flat_map(|(name, values)| values.values().iter().map(move |value| (name.as_str(), value.as_str())));
    let mut filter = filter(pairs)?;
    if asked.filter.is_empty() {
        return Err(Problem::invalid(
            "/filter",
            "Say which runs are meant; `{\"state\": \"open\"}` are all that are open.",
        ));
    }
    if filter.states.is_empty() && asked.action != BulkAction::Retry {
        filter.states = Filter::open().states;
    }
    let mut done = BulkDone::default();
    let (mut cursor, mut seen) = (None::<String>, 0);
    while seen < BULK_MOST {
        let page = call.engine.list(filter.clone(), cursor.as_deref(), 500).await?;
        seen += page.runs.len();
        done.matched += page.runs.len() as u64;
        if !asked.dry_run {
            for record in &page.runs {
                match one_of_many(&call, &asked, &record.run_id, record.state).await {
                    Ok(()) => done.applied += 1,
                    Err(problem) if done.refused.len() < BULK_REFUSALS => done.refused.push(BulkRefused {
                        run_id: record.run_id.to_string(),
                        code: problem.code,
                        detail: problem.detail,
                    }),
                    Err(_) => {}
                }
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let said = serde_json::to_string(&done).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    if call.idempotency.is_some() {
        call.ask(What::Keep(said.clone())).await?;
    }
    Ok(Reply::bytes(200, "application/json", said))
}

async fn one_of_many(call: &Call, asked: &Bulk, run_id: &RunId, state: RunState) -> Result<(), Problem> {
    let reason = asked.reason.clone();
    let ask = match asked.action {
        BulkAction::Cancel => Ask::Cancel { reason, undo: None, grace: None },
        BulkAction::Pause => Ask::Pause { reason },
        BulkAction::Resume => Ask::Resume { one_step: false },
        BulkAction::Retry if !state.is_terminal() => Ask::RetryNow,
        BulkAction::Retry => {
            let rerun = Rerun {
                run_id: run_id.clone(),
                kind: OriginKind::Retry,
                from_step: None,
                version: RerunVersion::Same,
                input: None,
                actor: call.actor(),
            };
            call.ask_part(run_id.as_str(), What::Rerun(Box::new(rerun))).await?;
            return Ok(());
        }
    };
    let command = abide_core::run::command::Command::new(call.actor(), ask);
    call.ask_part(run_id.as_str(), What::Run(Box::new(ToRun::new(run_id.clone(), command)))).await?;
    Ok(())
}

/// Whether a read failed because there is no such run.
pub fn is_missing(error: &ReadError) -> bool {
    matches!(error, ReadError::NoRun(_))
}
