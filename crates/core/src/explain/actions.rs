//! What can be done about a run now, by whom, each as a ready call. The rules that accept these calls are asked here too,
//! so that nothing is offered that would be refused.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::Surroundings;
use super::cause::slowest_child;
use super::view::View;
use super::words::{self, quote};
use crate::contract::{FailureKind, ReasonType, RunState, StepState};
use crate::definition::{Action, Definition, Schema};
use crate::ids::{Path, RunId};
use crate::run::step::{ApprovalWait, Block, Step, Wait};
use crate::run::{NEWEST, Phase, Working};
use crate::time::Timestamp;

/// A call that would be accepted now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NextAction {
    /// What it does: `approve`, `resolve_retry`, `cancel`. Unique together with the step.
    pub id: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_id: Option<Path>,
    /// The child run that it moves, and this run with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_run: Option<RunId>,
    /// What a button says.
    pub title: String,
    /// People, `role:GROUP`s, or the word for everybody with that right (`operator`, `approver`).
    pub who: Vec<String>,
    pub method: &'static str,
    pub href: String,
    pub body: Value,
    /// JSON Schema of what somebody has to fill in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// Fields of the body that only the caller can know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<&'static str>,
    /// It ends, discards or repeats something for good.
    pub danger: bool,
}

/// Everything that is possible now, the most useful first. Of very many blocked steps the first 20 are offered.
pub fn next_actions(run: &Working, definition: &Definition, around: &Surroundings, now: Timestamp) -> Vec<NextAction> {
    View { run, definition, around, now }.next_actions()
}

/// What somebody who decides about an approval needs to know beside its subject.
#[derive(Clone, Debug, PartialEq)]
pub struct ToDecide {
    /// JSON Schema of what a decision carries.
    pub form: Option<Value>,
    /// What happens when nobody decides in time. None: there is no deadline.
    pub at_deadline: Option<String>,
}

/// The same words as the summary's.
pub fn to_decide(run: &Working, definition: &Definition, step: &Step, block: &Block, now: Timestamp) -> ToDecide {
    let view = View { run, definition, around: &Surroundings::default(), now };
    let form = block.wait.approval().and_then(|wait| view.form(step, wait)).map(|form| form.document().clone());
    ToDecide { form, at_deadline: block.until.map(|_| view.at_deadline(step, block)) }
}

/// How many unknown steps a sentence names.
const NAMED: usize = 3;

/// How useful an action is: what moves the run first, what ends it last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    MovesTheRun,
    MovesOnNow,
    MovesAStep,
    Otherwise,
    Holds,
    Ends,
}

impl View<'_> {
    pub fn next_actions(&self) -> Vec<NextAction> {
        if self.run.head.state.is_none() {
            return Vec::new();
        }
        if self.is_terminal() {
            return self.again();
        }
        let foremost = self.foremost().map(|(step, _)| &step.path);
        // What a child waits for keeps this run, too: whoever looks here need not look for it.
        let child = slowest_child(self).and_then(|(_, _, run_id)| self.around.children.get(run_id));
        let theirs = child.into_iter().flat_map(|child| child.actions.iter().cloned());
        let mut actions: Vec<(Use, NextAction)> = theirs.map(|action| (Use::MovesTheRun, action)).collect();
        for (step, block) in self.blocked().into_iter().take(NEWEST) {
            let first = if foremost == Some(&step.path) { Use::MovesTheRun } else { Use::MovesAStep };
            actions.extend(self.answers_to(step, block).into_iter().map(|action| (first, action)));
            actions.extend(
                self.resolve(step, block)
                    .into_iter()
                    .map(|(recommended, action)| (if recommended { first } else { Use::Otherwise }, action)),
            );
        }
        actions.extend(self.reconnects());
        actions.extend(self.of_the_run());
        actions.sort_by_key(|(useful, _)| *useful);
        actions.into_iter().map(|(_, action)| action).collect()
    }

    /// The newest 20 as the record shows them: what is about the whole run is always among them.
    pub fn shortlist(&self) -> (Vec<NextAction>, usize) {
        let all = self.next_actions();
        let count = all.len();
        let of_run = all.iter().filter(|action| action.step_id.is_none()).count();
        let mut left = NEWEST.saturating_sub(of_run);
        let kept = all.into_iter().filter(|action| {
            let keep = action.step_id.is_none() || left > 0;
            left -= usize::from(keep && action.step_id.is_some());
            keep
        });
        (kept.collect(), count)
    }

    fn action(&self, id: &'static str, title: impl Into<String>, rest: &str, body: Value) -> NextAction {
        NextAction {
            id,
            step_id: None,
            of_run: None,
            title: title.into(),
            who: vec!["operator".into()],
            method: "POST",
            href: self.href(rest),
            body,
            form: None,
            needs: Vec::new(),
            danger: false,
        }
    }

    /// What ends a wait as it was meant to end.
    fn answers_to(&self, step: &Step, block: &Block) -> Vec<NextAction> {
        match &block.wait {
            Wait::Approval(wait) => self.decisions(step, block, wait),
            Wait::Signal { names, got, .. } => {
                let missing = names.iter().filter(|name| !got.contains_key(*name));
                missing.map(|name| self.signal(step, name)).collect()
            }
            Wait::Auth { .. }
            | Wait::Callback { .. }
            | Wait::Child { .. }
            | Wait::Timer
            | Wait::Retry { .. }
            | Wait::Lost { .. }
            | Wait::Probe
            | Wait::Operator { .. } => Vec::new(),
        }
    }

    fn decisions(&self, step: &Step, block: &Block, wait: &ApprovalWait) -> Vec<NextAction> {
        let expired =
            block.until.is_some_and(|until| until <= self.now) && !block.overdue && wait.at_deadline.is_some();
        let requester = &self.run.head.started.requester;
        let may = |who: &&String| {
            let decided = step.decisions.iter().any(|decision| decision.by == **who);
            let own = wait.not_requester && *who == requester;
            !decided && !own
        };
        let who: Vec<String> = wait.approvers.iter().filter(may).cloned().collect();
        if expired || (who.is_empty() && !wait.approvers.is_empty()) {
            return Vec::new();
        }
        let form = self.form(step, wait);
        let person = who.iter().find(|who| !who.starts_with("role:"));
        let mut body = json!({ "step_id": step.path, "subject_digest": wait.subject.digest });
        let mut needs = Vec::new();
        match person {
            Some(person) => body["decision_by"] = json!(person),
            None => needs.push("decision_by"),
        }
        let must_fill = form.as_ref().is_some_and(|form| form.check("null").is_err());
        let who = if who.is_empty() { vec!["approver".into()] } else { who };
        let decide = |id, word: &str, danger| NextAction {
            step_id: Some(step.path.clone()),
            who: who.clone(),
            form: form.as_ref().map(|form| form.document().clone()),
            // Whoever says no need not fill anything in.
            needs: needs.iter().copied().chain((must_fill && id == "approve").then_some("form")).collect(),
            danger,
            ..self.action(
                id,
                format!("{word} \"{}\"", quote(&wait.title, words::QUOTED)),
                &format!("/{id}"),
                body.clone(),
            )
        };
        vec![decide("approve", "Approve", false), decide("reject", "Reject", true)]
    }

    fn form(&self, step: &Step, wait: &ApprovalWait) -> Option<Schema> {
        match (&wait.form, self.declared(step).map(|def| &def.action)) {
            (Some(asked), _) => Schema::of_stored(asked).ok(),
            (None, Some(Action::Approval(approval))) => approval.form.clone(),
            (None, _) => None,
        }
    }

    fn signal(&self, step: &Step, name: &str) -> NextAction {
        let schema: Option<&Schema> = match self.declared(step).map(|def| &def.action) {
            Some(Action::Signal(signal)) => signal.schema.as_ref(),
            _ => None,
        };
        let needed = schema.is_some_and(|schema| schema.check("null").is_err());
        NextAction {
            step_id: Some(step.path.clone()),
            form: schema.map(|schema| schema.document().clone()),
            needs: if needed { vec!["payload"] } else { Vec::new() },
            ..self.action(
                "signal",
                format!("Send {name}"),
                &format!("/signals/{}", segment(name)),
                json!({ "payload": null }),
            )
        }
    }

    /// One for each connection that something waits for.
    fn reconnects(&self) -> Vec<(Use, NextAction)> {
        let foremost = self.foremost().map(|(step, _)| &step.path);
        let mut seen = BTreeSet::new();
        let mut actions = Vec::new();
        for (step, block) in self.blocked() {
            let Wait::Auth { connection, .. } = &block.wait else { continue };
            if !seen.insert(connection) {
                continue;
            }
            let started = &self.run.head.started;
            let owner = started.owner_id.clone().unwrap_or_else(|| started.requester.clone());
            let body = json!({ "tool": connection.tool, "account": connection.account });
            let action = NextAction {
                step_id: Some(step.path.clone()),
                who: vec![owner, "operator".into()],
                ..self.action("reconnect", format!("Reconnect {connection}"), "/reconnect", body)
            };
            actions.push((if foremost == Some(&step.path) { Use::MovesTheRun } else { Use::MovesAStep }, action));
        }
        actions
    }

    /// What an operator may decide about a blocked step; true for what is recommended.
    fn resolve(&self, step: &Step, block: &Block) -> Vec<(bool, NextAction)> {
        let recommended = self.advice(step, block).resolution;
        let allowed = self.resolutions(step);
        let actions = allowed
            .into_iter()
            .filter_map(|name| Some((recommended == Some(name), self.resolution(step, block, name)?)));
        actions.collect()
    }

    fn resolution(&self, step: &Step, block: &Block, name: &str) -> Option<NextAction> {
        let path = &step.path;
        let undoing = step.state == StepState::Compensating;
        let unknown = self.is_unknown(step) && block.reason() != ReasonType::ApprovalRequired;
        let (id, title, danger) = match name {
            "retry" if undoing => ("resolve_retry", format!("Undo {path} again"), false),
            "retry" => ("resolve_retry", format!("Retry {path}"), unknown),
            "complete" if undoing => ("resolve_complete", format!("Mark {path} undone"), true),
            "complete" => ("resolve_complete", format!("Mark {path} done"), true),
            "correct" => ("resolve_correct", format!("Correct the input of {path}"), false),
            "skip" if undoing => ("resolve_skip", format!("Give up undoing {path}"), true),
            "skip" => ("resolve_skip", format!("Skip {path}"), true),
            "fail" => ("resolve_fail", format!("Fail {path}"), true),
            "compensate" => ("resolve_compensate", format!("Fail {path} and undo the run"), true),
            _ => return None,
        };
        let mut body = json!({ "step_id": path, "action": name, "reason": title });
        let mut needs = Vec::new();
        match name {
            "complete" if !undoing => body["output"] = Value::Null,
            "correct" => needs.push("input"),
            _ => {}
        }
        Some(NextAction { step_id: Some(path.clone()), needs, danger, ..self.action(id, title, "/resolve", body) })
    }

    /// Retry now, resume, pause, cancel: what is about the run as a whole.
    fn of_the_run(&self) -> Vec<(Use, NextAction)> {
        let head = &self.run.head;
        let mut actions = Vec::new();
        if self.can_retry_now() {
            let first = self.foremost().is_some_and(|(_, block)| can_be_hurried(block));
            let useful = if first { Use::MovesTheRun } else { Use::MovesOnNow };
            actions.push((useful, self.action("retry_now", "Retry now", "/retry", json!({}))));
        }
        if head.hold.is_some() {
            actions.push((Use::MovesTheRun, self.action("resume", "Resume", "/resume", json!({}))));
        }
        if head.is_held() {
            let one = self.action("resume_one_step", "Let one step pass", "/resume", json!({ "steps": 1 }));
            actions.push((Use::MovesOnNow, one));
        }
        let forward = matches!(head.phase, Phase::Forward);
        if forward && !head.is_held() {
            let body = json!({ "reason": "paused by an operator" });
            actions.push((Use::Holds, self.action("pause", "Pause", "/pause", body)));
        }
        if forward || matches!(head.phase, Phase::Closing { .. }) {
            let title = if self.definition.saga { "Cancel and undo" } else { "Cancel" };
            let body = json!({ "reason": "canceled by an operator" });
            actions.push((Use::Ends, NextAction { danger: true, ..self.action("cancel", title, "/cancel", body) }));
            if self.definition.saga {
                let body = json!({ "reason": "canceled by an operator", "compensate": false });
                let keep = self.action("cancel_without_undo", "Cancel and keep what was done", "/cancel", body);
                actions.push((Use::Ends, NextAction { danger: true, ..keep }));
            }
        }
        actions
    }

    /// The rule of `retry`: something is scheduled, lost or overdue, and nobody holds the run.
    fn can_retry_now(&self) -> bool {
        !self.run.head.is_held() && self.blocked().iter().any(|(_, block)| can_be_hurried(block))
    }

    /// A run that has ended never changes; a new one can be made from it.
    fn again(&self) -> Vec<NextAction> {
        let mut actions = Vec::new();
        let failed = matches!(self.state(), RunState::Failed | RunState::Canceled | RunState::CompletedWithWarnings);
        if failed {
            actions.push(self.retry());
        }
        if let Some(from_step) = self.rerun_from() {
            let title = format!("Rerun as a new run from {from_step}");
            actions.push(self.action("rerun", title, "/rerun", json!({ "from_step": from_step, "version": "same" })));
        }
        actions
    }

    fn retry(&self) -> NextAction {
        let title = "Retry as a new run, from what failed";
        match self.unknown_at_the_end() {
            Some(unknown) => {
                let title = format!("{title}; whether {unknown} happened is found out, or asked, first");
                NextAction { danger: true, ..self.action("retry", title, "/retry", json!({})) }
            }
            None => self.action("retry", title, "/retry", json!({})),
        }
    }

    /// Steps of a run that has ended of which still nobody knows whether their effect happened, in words.
    pub fn unknown_at_the_end(&self) -> Option<String> {
        let head = &self.run.head;
        let unsettled = head.unknown.newest.iter().filter(|path| self.settled(path).is_none());
        let mut names: Vec<&str> = unsettled.map(Path::as_str).collect();
        names.truncate(NAMED);
        let more = head.unknown.count.saturating_sub(NAMED as u64);
        match (names.join(", "), more) {
            (names, _) if names.is_empty() => None,
            (names, 0) => Some(names),
            (names, more) => Some(format!("{names} and {more} more")),
        }
    }

    /// Where a rerun begins unless somebody says otherwise: at the step that failed, or at the first.
    fn rerun_from(&self) -> Option<String> {
        let steps = self.definition.steps();
        if steps.is_empty() {
            return self.run.head.body.map(|_| "body".to_owned());
        }
        // After a rollback the failure that began it says where; the cause of a failed child is the child's own.
        let failed = self.run.head.failure.as_ref().and_then(|failure| match (failure.kind, &failure.cause) {
            (FailureKind::RolledBack | FailureKind::RollbackIncomplete, Some(cause)) => cause.step_id.as_ref(),
            _ => failure.step_id.as_ref(),
        });
        let failed = failed.and_then(|path| self.definition.step(path.as_str().split('.').next()?));
        let first = || steps.iter().find(|step| !step.finally);
        failed.map(|(_, step)| step).or_else(first).map(|step| step.id.clone())
    }
}

fn can_be_hurried(block: &Block) -> bool {
    block.overdue || matches!(block.wait, Wait::Retry { .. } | Wait::Lost { .. })
}

/// A name as one segment of a path.
fn segment(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => text.push(char::from(byte)),
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}
