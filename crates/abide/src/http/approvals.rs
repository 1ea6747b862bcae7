//! Decisions of people: the inbox, yes and no.

use abide_api::keys::Role;
use abide_api::runs::Decide;
use abide_api::{Code, Problem};
use abide_core::contract::{RunState, StepState};
use abide_core::ids::{Digest, Path, RunId};
use abide_core::run::command::{Actor, Ask, Command};
use abide_engine::reads::{ApprovalView, DecisionView};
use abide_engine::request::{Answer, ToRun, What};
use serde::Serialize;

use super::call::{Answered, Call, Reply, json as stored, unexpected};

pub async fn inbox(call: Call) -> Answered {
    call.only(&["limit"])?;
    let limit = call.number("limit", 100usize, 1..=500)?;
    let approvals = call.engine.approvals(limit).await?;
    let views: Vec<_> = approvals.into_iter().map(|approval| view(&call, approval)).collect();
    Ok(Reply::list("approvals", views, None))
}

/// One approval as this caller may see it: the subject is for who decides and for operators.
fn view(call: &Call, approval: ApprovalView) -> ApprovalView {
    let hidden = matches!(call.who.role, Role::Viewer | Role::Worker);
    ApprovalView { subject: approval.subject.filter(|_| !hidden), ..approval }
}

/// A decision: whether it still waits, and what was decided.
#[derive(Serialize)]
struct OneApproval<'a> {
    run_id: &'a RunId,
    step_id: &'a Path,
    state: StepState,
    open: Option<ApprovalView>,
    decisions: Vec<DecisionView>,
    run_state: RunState,
    summary: &'a str,
}

/// `GET /v1/runs/{id}/approvals/{step}`: what waits, if it still does, and what was decided.
pub async fn one(call: Call) -> Answered {
    call.only(&[])?;
    let (run_id, path) = (call.run_id(), Path::from(call.param("step_id")));
    let step = call.engine.step(&run_id, &path).await?;
    let open = call.engine.approval(&run_id, &path).await?;
    let open = open.map(|approval| view(&call, approval));
    let decisions = call.engine.decisions(&run_id, &path).await?;
    let run = call.engine.run(&run_id).await?;
    let answer = OneApproval {
        run_id: &run_id,
        step_id: &path,
        state: step.state,
        open,
        decisions,
        run_state: run.state,
        summary: &run.summary,
    };
    Ok(Reply::json(200, &answer))
}

pub async fn approve(call: Call, asked: Decide) -> Answered {
    decide(call, asked, true).await
}

pub async fn reject(call: Call, asked: Decide) -> Answered {
    decide(call, asked, false).await
}

async fn decide(call: Call, asked: Decide, approve: bool) -> Answered {
    let by = who_decides(&call, asked.decision_by.as_deref())?;
    let actor = call.who.key.as_ref().map_or_else(|| by.clone(), |key| key.principal.clone());
    let groups = groups(&call, asked.step_id.as_deref()).await?;
    let ask = Ask::Decide {
        step_id: asked.step_id.as_deref().map(Path::from),
        by: by.clone(),
        approve,
        comment: asked.comment,
        form: stored(asked.form),
        subject_digest: asked.subject_digest.as_deref().map(digest).transpose()?,
        via: Some("api".into()),
    };
    // The log says who asked; the decision, for whom.
    let command = Command::new(Actor::user(actor), ask);
    let to_run = ToRun { groups, expected_seq: call.expected_seq()?, ..ToRun::new(call.run_id(), command) };
    match call.ask(What::Run(Box::new(to_run))).await? {
        Answer::Run(told) => call.run_answer(200, &told).await,
        other => Err(unexpected(&other)),
    }
}

/// With keys it is the key's own principal, unless the key may speak for others.
fn who_decides(call: &Call, named: Option<&str>) -> Result<String, Problem> {
    let named = named.map(|name| abide_api::engine::identifier("/decision_by", name)).transpose()?;
    match (&call.who.key, named) {
        (None, Some(name)) => Ok(name.to_owned()),
        (None, None) => Err(Problem::invalid("/decision_by", "Say who decides.")),
        (Some(key), None) => Ok(key.principal.clone()),
        (Some(key), Some(name)) if key.acts_for_others || name == key.principal => Ok(name.to_owned()),
        (Some(key), Some(name)) => {
            let detail = format!("This key decides as {}; it may not speak for {name}.", key.principal);
            Err(Problem::new(Code::Forbidden, detail))
        }
    }
}

/// The groups of the key. Where there are no keys everybody is in every group.
async fn groups(call: &Call, step_id: Option<&str>) -> Result<Vec<String>, Problem> {
    if let Some(key) = &call.who.key {
        return Ok(key.groups.clone());
    }
    let run_id = call.run_id();
    let open = call.engine.approvals_of(&run_id).await?;
    let meant = open.iter().filter(|one| step_id.is_none_or(|step| one.step_id.as_str() == step));
    let roles = meant.flat_map(|one| &one.approvers).filter_map(|name| name.strip_prefix("role:"));
    Ok(roles.map(Into::into).collect())
}

fn digest(text: &str) -> Result<Digest, Problem> {
    Digest::parse(text).ok_or_else(|| Problem::invalid("/subject_digest", "It is a SHA-256 in hexadecimal."))
}
