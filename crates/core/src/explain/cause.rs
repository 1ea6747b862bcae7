//! The chain from a run to the root cause of what it is doing: its step, its block, a child, and in the end a person,
//! a connection, a queue, a limit, a worker or a time.

use serde::Serialize;

use super::ChildFacts;
use super::summary::{say_decision, say_expected};
use super::view::{View, task_path};
use super::words::{self, instant};
use crate::contract::{Failure, ReasonType, RunState};
use crate::ids::RunId;
use crate::run::Because;
use crate::run::step::{Block, Step, Wait};
use crate::time::Timestamp;

/// One link of the chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    pub kind: LinkKind,
    pub id: String,
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub href: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    Run,
    Step,
    Block,
    Failure,
    Person,
    Connection,
    Tool,
    Queue,
    Limit,
    Worker,
    Time,
}

impl View<'_> {
    /// From the run to its root cause.
    pub fn chain(&self) -> Vec<Link> {
        let head = &self.run.head;
        let own = link(LinkKind::Run, head.run_id.as_str(), self.summary(), Some(head.since));
        let mut chain = vec![Link { href: Some(self.href("")), ..own }];
        match self.state() {
            RunState::Queued => chain.extend(self.behind_queue()),
            RunState::Running => chain.extend(self.behind_lease()),
            RunState::Paused => chain.extend(head.hold.as_ref().map(|hold| {
                link(LinkKind::Person, &hold.by, format!("{} paused it: {}", hold.by, hold.reason), Some(hold.since))
            })),
            RunState::CancelRequested => chain.extend(self.behind_cancel()),
            RunState::Compensating => chain.extend(self.behind_rollback()),
            RunState::WaitingOnChild => chain.extend(self.behind_children()),
            RunState::WaitingOnTool
            | RunState::WaitingOnAuth
            | RunState::WaitingOnApproval
            | RunState::WaitingOnTimer
            | RunState::WaitingOnOperator
            | RunState::RetryScheduled
            | RunState::Stalled => chain.extend(self.behind_block()),
            RunState::Succeeded | RunState::CompletedWithWarnings | RunState::Canceled => {}
            RunState::Failed => chain.extend(head.failure.iter().flat_map(behind_failure)),
        }
        chain
    }

    fn step_link(&self, step: &Step) -> Link {
        let path = task_path(step);
        let attempt = match step.attempt {
            0 => String::new(),
            attempt => format!(", attempt {attempt} of {}", self.attempts(step)),
        };
        let what = format!("{path} is {}{attempt}", step.state);
        let href = Some(self.href(&format!("/steps/{}", step.path)));
        Link { href, ..link(LinkKind::Step, path.as_str(), what, Some(step.since)) }
    }

    fn behind_queue(&self) -> Vec<Link> {
        let mut links = Vec::new();
        let step = self.ready().first().map(|(step, _)| self.step_link(step));
        let task = self.ready().first().map(|(_, task)| *task);
        links.extend(step);
        let Some(reason) = self.reason() else {
            links.extend(task.map(|task| {
                let depth = self.around.queues.get(&task.queue).map(|queue| queue.depth);
                let what = match depth {
                    Some(depth) => format!("queue {} has {}", task.queue, words::count(depth, "task")),
                    None => format!("a worker on queue {} takes it next", task.queue),
                };
                link(LinkKind::Queue, task.queue.as_str(), what, Some(task.issued_at))
            }));
            return links;
        };
        let (kind, id) = if reason.kind == ReasonType::StartDelayed {
            (LinkKind::Time, reason.until.map(instant))
        } else if reason.kind == ReasonType::LimitFull {
            (LinkKind::Limit, self.around.limits_full.first().map(|limit| limit.name.clone()))
        } else {
            (LinkKind::Queue, task.map(|task| task.queue.to_string()))
        };
        let id = id.unwrap_or_default();
        links.push(link(kind, &id, reason.message, Some(reason.since)));
        links
    }

    fn behind_lease(&self) -> Vec<Link> {
        let Some((step, lease)) = self.leased().into_iter().next() else { return Vec::new() };
        let what = self.liveness(step, lease);
        vec![self.step_link(step), link(LinkKind::Worker, lease.owner.as_str(), what, Some(lease.granted_at))]
    }

    fn behind_cancel(&self) -> Vec<Link> {
        let mut links = Vec::new();
        if let Some(cancel) = self.cancel() {
            let what = format!("{} asked for it: {}", cancel.by, cancel.reason);
            links.push(link(LinkKind::Person, &cancel.by, what, Some(self.run.head.since)));
        }
        let open = self.behind_lease();
        if self.held_up_by().is_some() {
            links.extend(self.behind_block());
        } else if open.is_empty() {
            links.extend(self.behind_children())
        } else {
            links.extend(open)
        }
        links
    }

    fn behind_rollback(&self) -> Vec<Link> {
        let mut links = Vec::new();
        match self.run.head.phase.because() {
            Some(Because::Failed(failure)) => links.extend(behind_failure(failure)),
            Some(Because::Canceled(cancel)) => {
                let what = format!("{} canceled it: {}", cancel.by, cancel.reason);
                links.push(link(LinkKind::Person, &cancel.by, what, None));
            }
            None => {}
        }
        let block = self.behind_block();
        if block.is_empty() {
            links.extend(self.behind_lease())
        } else {
            links.extend(block)
        }
        links
    }

    fn behind_block(&self) -> Vec<Link> {
        match (self.foremost().or_else(|| self.held_up_by()), self.reason()) {
            (Some((step, block)), _) => {
                let mut links = vec![self.step_link(step), block_link(block)];
                links.extend(self.root_of(step, block));
                links
            }
            (None, Some(reason)) => {
                vec![link(LinkKind::Block, reason.kind.as_str(), reason.message, Some(reason.since))]
            }
            (None, None) => Vec::new(),
        }
    }

    /// Who or what would have to move.
    fn root_of(&self, step: &Step, block: &Block) -> Vec<Link> {
        let since = Some(block.since);
        let one = |kind, id: &str, what: String| vec![link(kind, id, what, since)];
        match &block.wait {
            Wait::Auth { connection, .. } => {
                let facts = self.around.connections.get(connection);
                let again = facts.and_then(|facts| facts.reconnected_at).map(instant);
                let what = match again {
                    Some(at) => format!("{connection} must be reconnected; the last time was {at}"),
                    None => format!("{connection} must be reconnected"),
                };
                one(LinkKind::Connection, &connection.to_string(), what)
            }
            Wait::Approval(wait) => {
                let who = match wait.approvers.as_slice() {
                    [] => "anyone who may approve".to_owned(),
                    approvers => words::one_of(approvers),
                };
                let what = say_decision(step, wait);
                one(LinkKind::Person, &who, what)
            }
            Wait::Signal { names, .. } => {
                one(LinkKind::Tool, &names.join(", "), format!("{} has not come", say_expected(step, block)))
            }
            Wait::Callback { name } => one(LinkKind::Tool, name, format!("{} has not come", say_expected(step, block))),
            Wait::Timer | Wait::Retry { .. } | Wait::Probe => {
                let failure =
                    step.failure.iter().flat_map(behind_failure).filter(|link| link.kind == LinkKind::Failure);
                let at = block.until.map(instant).unwrap_or_default();
                failure.chain([link(LinkKind::Time, &at, format!("it goes on at {at}"), since)]).collect()
            }
            Wait::Lost { owner, epoch } => one(
                LinkKind::Worker,
                owner.as_str(),
                format!("{owner} stopped proving that it lives; lease {epoch} is over"),
            ),
            Wait::Operator { .. } => one(LinkKind::Person, "operator", "an operator decides how it goes on".into()),
            Wait::Child { run_id } => match self.around.children.get(run_id) {
                Some(child) => chain_of(run_id, child),
                None => vec![unknown_child(run_id)],
            },
        }
    }

    fn behind_children(&self) -> Vec<Link> {
        let Some((step, block, run_id)) = slowest_child(self) else { return Vec::new() };
        let mut links = vec![self.step_link(step), block_link(block)];
        match self.around.children.get(run_id) {
            Some(child) => links.extend(chain_of(run_id, child)),
            None => links.push(unknown_child(run_id)),
        }
        links
    }
}

/// The run at the end of the slowest child's chain: what really holds everything above it.
pub(super) fn root_of_children(view: &View<'_>) -> Option<Link> {
    let (_, _, run_id) = slowest_child(view)?;
    let child = view.around.children.get(run_id)?;
    chain_of(run_id, child).into_iter().rfind(|link| link.kind == LinkKind::Run)
}

/// Of the children that are waited for, the one that keeps the run longest: first those that somebody has to move,
/// then those that move by themselves, each the one that has not moved for longest.
pub(super) fn slowest_child<'a>(view: &View<'a>) -> Option<(&'a Step, &'a Block, &'a RunId)> {
    let waits = view.waits_for_children().into_iter();
    let waits = waits.filter_map(|(step, block)| Some((step, block, block.wait.child()?)));
    waits.min_by_key(|(_, block, run_id)| match view.around.children.get(*run_id) {
        Some(child) => (slowness(child.state), child.since, (*run_id).clone()),
        None => (3, block.since, (*run_id).clone()),
    })
}

fn slowness(state: RunState) -> u8 {
    match state {
        RunState::WaitingOnAuth
        | RunState::WaitingOnApproval
        | RunState::WaitingOnTool
        | RunState::WaitingOnOperator
        | RunState::WaitingOnChild
        | RunState::Stalled
        | RunState::Paused => 0,
        RunState::RetryScheduled | RunState::WaitingOnTimer => 1,
        RunState::Queued | RunState::Running | RunState::Compensating | RunState::CancelRequested => 2,
        RunState::Succeeded | RunState::CompletedWithWarnings | RunState::Failed | RunState::Canceled => 4,
    }
}

fn chain_of(run_id: &RunId, child: &ChildFacts) -> Vec<Link> {
    match child.chain.as_slice() {
        [] => vec![link(LinkKind::Run, run_id.as_str(), child.summary.clone(), Some(child.since))],
        chain => chain.to_vec(),
    }
}

fn unknown_child(run_id: &RunId) -> Link {
    let href = Some(format!("/v1/runs/{run_id}"));
    Link { href, ..link(LinkKind::Run, run_id.as_str(), format!("{run_id} is open"), None) }
}

fn block_link(block: &Block) -> Link {
    link(LinkKind::Block, block.reason().as_str(), block.message.clone(), Some(block.since))
}

/// What failed, where, and what that came from.
fn behind_failure(failure: &Failure) -> Vec<Link> {
    let mut links = Vec::new();
    if let Some(step) = &failure.step_id {
        links.push(link(LinkKind::Step, step.as_str(), format!("{step} failed in attempt {}", failure.attempt), None));
    }
    let id = failure.code.as_deref().unwrap_or(failure.kind.as_str());
    links.push(link(LinkKind::Failure, id, failure.message.clone(), Some(failure.at)));
    if let Some(child) = &failure.child_run_id {
        let href = Some(format!("/v1/runs/{child}"));
        links.push(Link { href, ..link(LinkKind::Run, child.as_str(), format!("{child} ended"), None) });
    }
    links.extend(failure.cause.iter().flat_map(|cause| behind_failure(cause)));
    links
}

fn link(kind: LinkKind, id: &str, what: impl Into<String>, since: Option<Timestamp>) -> Link {
    Link { kind, id: id.into(), what: what.into(), since, href: None }
}
