//! The system itself: health, queues, workers, numbers, the contract.

use abide_api::{Code, Problem};
use abide_core::ids::WorkflowId;
use abide_core::time::{Span, Timestamp};
use serde::Serialize;

use super::call::{Answered, Call, Reply};
use super::link::page_of;

/// The engine commits at least once a second.
const NOT_READY_AFTER: Span = Span::from_secs(4);

#[derive(Serialize)]
struct Alive {
    alive: bool,
}

#[derive(Serialize)]
struct Ready {
    ready: bool,
    last_commit_at: Timestamp,
}

pub async fn alive(_: Call) -> Answered {
    Ok(Reply::json(200, &Alive { alive: true }))
}

/// Ready means that commits happen: the engine writes down every second that it serves. Nothing is written here.
pub async fn ready(call: Call) -> Answered {
    let last = call.engine.served_at().await?;
    let age = call.engine.clock().now().since(last);
    if age > NOT_READY_AFTER {
        return Err(Problem::new(Code::StoreUnavailable, format!("Nothing could be committed for {age}.")));
    }
    Ok(Reply::json(200, &Ready { ready: true, last_commit_at: last }))
}

/// `GET /problems/{code}`: where the `type` of a problem leads.
pub async fn problem(call: Call) -> Answered {
    let missing = || Problem::new(Code::NotFound, "There is no such problem.");
    let code = Code::parse(call.param("code")).ok_or_else(missing)?;
    let body = maud::html! {
        p.eyebrow { "Problem" }
        h1 { (code.title()) }
        p { (code.means()) }
        p.faint { code { (code.as_str()) } ", status " (code.status()) }
    };
    Ok(page_of(200, code.title(), &body))
}

pub async fn queues(call: Call) -> Answered {
    call.only(&[])?;
    Ok(Reply::list("queues", call.engine.queues().await?, None))
}

pub async fn workers(call: Call) -> Answered {
    call.only(&[])?;
    Ok(Reply::list("workers", call.engine.workers().await?, None))
}

pub async fn insights(call: Call) -> Answered {
    call.only(&["workflow", "by"])?;
    match (call.one("by")?, call.one("workflow")?) {
        (None, workflow) => Ok(Reply::json(200, &call.engine.insights(workflow.map(WorkflowId::from)).await?)),
        (Some("workflow"), None) => {
            let workflows = call.engine.insights_by_workflow().await?;
            Ok(Reply::json(200, &ByWorkflow { workflows }))
        }
        (Some(_), None) => Err(Problem::invalid("by", "It is workflow.")),
        (Some(_), Some(_)) => Err(Problem::invalid("by", "One workflow has nothing to be told apart by.")),
    }
}

#[derive(Serialize)]
struct ByWorkflow<T> {
    workflows: T,
}

pub async fn contract(call: Call) -> Answered {
    call.only(&[])?;
    Ok(Reply::json(200, &abide_core::contract::document::contract_json()))
}

pub async fn metrics(call: Call) -> Answered {
    let text = call.api.metrics.render(&call.engine).await?;
    Ok(Reply::bytes(200, "text/plain; version=0.0.4; charset=utf-8", text))
}
