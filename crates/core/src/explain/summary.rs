//! One true sentence on a run, rendered when it is read: the same in lists, the command line, the page and hooks.

use super::Surroundings;
use super::cause::root_of_children;
use super::reason::{Detail, Reason};
use super::view::{View, task_path};
use super::words::{self, QUOTED, instant, quote};
use crate::contract::{FailureKind, ReasonType, RunState, StepState};
use crate::definition::{AtDeadline, Definition, WaitMode};
use crate::run::step::{ApprovalWait, Block, Lease, Progress, Step, Wait};
use crate::run::{Because, Finally, Phase, Working, sentence};
use crate::time::Timestamp;

/// What the run is doing, in one sentence.
pub fn summary(run: &Working, definition: &Definition, around: &Surroundings, now: Timestamp) -> String {
    View { run, definition, around, now }.summary()
}

impl View<'_> {
    pub fn summary(&self) -> String {
        let waiting = |say: fn(&Self, &Step, &Block) -> String| match self.foremost() {
            Some((step, block)) => say(self, step, block),
            None => format!("{} since {}.", self.state(), instant(self.run.head.since)),
        };
        words::fit(match self.state() {
            RunState::Queued => self.say_queued(),
            RunState::Running => self.say_running(),
            RunState::WaitingOnTool => waiting(Self::say_tool),
            RunState::WaitingOnAuth => waiting(Self::say_auth),
            RunState::WaitingOnApproval => waiting(Self::say_approval),
            RunState::WaitingOnChild => self.say_child(),
            RunState::WaitingOnTimer => waiting(Self::say_timer),
            RunState::WaitingOnOperator if self.foremost().is_none() => self.say_full(),
            RunState::WaitingOnOperator => waiting(Self::say_operator),
            RunState::RetryScheduled => waiting(Self::say_retry),
            RunState::Stalled => waiting(Self::say_stalled),
            RunState::Paused => self.say_paused(),
            RunState::Compensating => self.say_compensating(),
            RunState::CancelRequested => self.say_canceling(),
            RunState::Succeeded => format!("Succeeded {}.", self.took()),
            RunState::CompletedWithWarnings => self.say_warned(),
            RunState::Failed => self.say_failed(),
            RunState::Canceled => match &self.run.head.canceled {
                Some(cancel) => {
                    format!("Canceled by {} {}: {}.", cancel.by, self.took(), cancel.reason.trim_end_matches('.'))
                }
                None => format!("Canceled {}.", self.took()),
            },
        })
    }

    fn say_queued(&self) -> String {
        if let Some(reason) = self.reason() {
            return format!("Queued: {}", words::continued(&reason.message));
        }
        let ready = self.ready();
        let Some((step, task)) = ready.first() else { return "Queued: accepted, and nothing is issued yet.".into() };
        let more = ready.len() - 1;
        let queued = self.around.queues.get(&task.queue).map(|queue| queue.depth).filter(|depth| *depth > 1);
        let line = queued.map(|depth| format!(", with {depth} tasks in line")).unwrap_or_default();
        match more {
            0 => format!("Queued: {} waits for a worker on queue {}{line}.", task_path(step), task.queue),
            _ => format!("Queued: {} and {more} more wait for workers on queue {}{line}.", task_path(step), task.queue),
        }
    }

    fn say_running(&self) -> String {
        let leased = self.leased();
        let Some((step, lease)) = leased.first() else {
            return format!("Running since {}.", instant(self.run.head.since));
        };
        let more = leased.len() - 1;
        let what = if more == 0 { task_path(step).to_string() } else { format!("{} and {more} more", task_path(step)) };
        if let Phase::Closing { grace_until, failure, .. } = &self.run.head.phase {
            let until = instant(*grace_until);
            let why = match &failure.step_id {
                Some(failed) => format!("{failed} failed"),
                None => quote(&failure.message, QUOTED),
            };
            return match self.declared(step).is_some_and(|def| def.finally) {
                true => format!("Running {what} before the end, because {why}: {}.", self.liveness(step, lease)),
                false => {
                    format!("Running {what} while closing, because {why}: {} has until {until} to stop.", lease.owner)
                }
            };
        }
        let progress = step.live.as_ref().and_then(|live| live.progress.as_ref()).map(say_progress).unwrap_or_default();
        format!("Running {what}: {progress}{}.", self.liveness(step, lease))
    }

    /// Who holds the lease, and how fresh the proof is.
    pub fn liveness(&self, step: &Step, lease: &Lease) -> String {
        let owner = &lease.owner;
        let expires_at = step.lease_expires_at(self.around.serving_since).filter(|at| *at <= self.now);
        match (&step.live, expires_at) {
            (None, _) => format!("leased to {owner} at {}", instant(lease.granted_at)),
            (Some(_), Some(ended)) => format!("the lease of {owner} ran out {}", words::ago(self.now, ended)),
            (Some(live), None) => {
                format!("leased to {owner}, heartbeat {}", words::ago(self.now, live.last_heartbeat_at))
            }
        }
    }

    fn say_auth(&self, _: &Step, block: &Block) -> String {
        let Wait::Auth { connection, .. } = &block.wait else { return block.message.clone() };
        let name = match connection.account.as_str() {
            "default" => connection.tool.clone(),
            _ => connection.to_string(),
        };
        format!("Waiting on auth: reconnect {} to continue.", quote(&name, QUOTED))
    }

    fn say_approval(&self, step: &Step, block: &Block) -> String {
        let Wait::Approval(wait) = &block.wait else { return block.message.clone() };
        let deadline = self.say_deadline(step, block);
        format!("Waiting on approval: {}{deadline}.", say_decision(step, wait))
    }

    /// ` until …; then …`, or that there is no deadline.
    fn say_deadline(&self, step: &Step, block: &Block) -> String {
        match block.until {
            Some(until) => format!(" until {}; then {}", instant(until), self.at_deadline(step, block)),
            None => "; there is no deadline".into(),
        }
    }

    /// What happens at the deadline of a wait.
    pub fn at_deadline(&self, step: &Step, block: &Block) -> String {
        let declared = self.declared(step).filter(|def| def.is_wait()).and_then(|def| def.at_deadline.as_ref());
        let (outcome, escalated) = match block.wait.approval() {
            Some(wait) => (wait.at_deadline.as_ref(), wait.escalated),
            None => (declared, false),
        };
        match outcome {
            None => "it is overdue".into(),
            Some(AtDeadline::Fail) => "it fails".into(),
            Some(AtDeadline::Warn) => "it goes on with a warning".into(),
            Some(AtDeadline::Approve) => "it counts as approved".into(),
            Some(AtDeadline::Escalate(_)) if escalated => "it fails".into(),
            Some(AtDeadline::Escalate(approvers)) => format!("{} is asked", words::one_of(approvers)),
        }
    }

    fn say_tool(&self, step: &Step, block: &Block) -> String {
        let (what, verb) =
            (say_expected(step, block), if missing(block).len() > 1 && is_all(block) { "are" } else { "is" });
        format!("Waiting on tool: {what} {verb} expected{}.", self.say_deadline(step, block))
    }

    fn say_child(&self) -> String {
        let waits = self.waits_for_children();
        let who = if waits.len() > 1 { format!("{} children", waits.len()) } else { "child".to_owned() };
        match (root_of_children(self), waits.first().map(|(_, block)| &block.wait)) {
            (Some(root), _) => format!("Waiting on {who}: {}", words::continued(&root.what)),
            (None, Some(Wait::Child { run_id })) => format!("Waiting on {who}: {run_id} is open."),
            (None, _) => format!("Waiting on {who}."),
        }
    }

    fn say_timer(&self, step: &Step, block: &Block) -> String {
        let until = block.until.map_or_else(|| "when it is woken".to_owned(), |until| format!("at {}", instant(until)));
        let begins = step.place.number.is_some() && step.attempt == 0;
        format!("Waiting on timer: {} {} {until}.", step.path, if begins { "begins" } else { "wakes" })
    }

    fn say_operator(&self, step: &Step, block: &Block) -> String {
        let (path, message) = (&step.path, quote(&block.message, QUOTED));
        let said = match block.reason() {
            ReasonType::OutcomeUnknown => match self.around.late_proof(path) {
                Some(late) => {
                    format!(
                        "the worker of {path} answered late, {}; mark it done with that result",
                        words::ago(self.now, late.at)
                    )
                }
                None if matches!(self.run.head.phase, Phase::Compensating { .. }) => {
                    format!("nobody knows whether {path} happened; say so before the rest is undone")
                }
                None => format!("nobody knows whether {path} happened; mark it done or retry it"),
            },
            ReasonType::CorrectionRequired => format!("correct the input of {path}: {message}"),
            ReasonType::PermissionDenied => format!("{path} is not permitted: {message}; grant it, then retry"),
            ReasonType::PreconditionFailed => format!("the precondition of {path} does not hold: {message}"),
            ReasonType::BodyChanged => words::continued(&quote(&block.message, 130)),
            ReasonType::PoisonInput => {
                format!(
                    "{} were lost on the input of {path}; correct or skip it",
                    words::count(step.losses.len() as u64, "worker")
                )
            }
            ReasonType::UndoFailed => format!("{path} could not be undone: {}", undo_failure(step, &message)),
            ReasonType::OperatorAsked => format!("{path} asks: {message}"),
            ReasonType::NoWorkerListening
            | ReasonType::NoWorkerForRevision
            | ReasonType::LimitFull
            | ReasonType::StartDelayed
            | ReasonType::OauthReconnectRequired
            | ReasonType::ApprovalRequired
            | ReasonType::CallbackPending
            | ReasonType::SignalPending
            | ReasonType::ChildOpen
            | ReasonType::Sleeping
            | ReasonType::RateLimited
            | ReasonType::TransientError
            | ReasonType::LeaseLost
            | ReasonType::Overdue
            | ReasonType::HistoryFull
            | ReasonType::PausedByOperator
            | ReasonType::CancelGrace
            | ReasonType::BudgetExhausted => format!("{path}: {message}"),
        };
        format!("Waiting on operator: {said}.")
    }

    fn say_full(&self) -> String {
        format!("Waiting on operator: the log has {} events and takes nothing new; cancel it.", self.run.head.seq)
    }

    fn say_retry(&self, step: &Step, block: &Block) -> String {
        let at = block.until.map_or_else(String::new, |until| format!(" at {}", instant(until)));
        let Wait::Retry { next_attempt, class, code } = &block.wait else {
            return format!("Retry scheduled: a probe finds out{at} whether {} happened.", step.path);
        };
        let after = code.as_deref().map_or_else(|| class.as_str().replace('_', " "), |code| quote(code, 20));
        format!("Retry scheduled: attempt {next_attempt} of {}{at} after {after}.", self.attempts(step))
    }

    fn say_stalled(&self, step: &Step, block: &Block) -> String {
        if let Wait::Lost { owner, .. } = &block.wait {
            let since = self.around.last_heartbeat_at.unwrap_or(block.since);
            let long = words::span(self.now.since(since));
            return format!("Stalled: no heartbeat from {owner} for {long}. Retry now?");
        }
        let by = block.until.map(|until| format!(" by {}", instant(until))).unwrap_or_default();
        format!("Stalled: {} was expected{by} and has not come. Wait again?", say_expected(step, block))
    }

    fn say_paused(&self) -> String {
        let Some(hold) = &self.run.head.hold else { return "Paused.".into() };
        let leased = self.leased();
        let finishing = match leased.first() {
            Some((step, lease)) => format!("; {} may finish {}", lease.owner, task_path(step)),
            None => String::new(),
        };
        format!("Paused by {}: {}{finishing}.", hold.by, quote(&hold.reason, QUOTED))
    }

    fn say_compensating(&self) -> String {
        let head = &self.run.head;
        let because = match head.phase.because() {
            Some(Because::Failed(failure)) => match &failure.step_id {
                Some(step) => format!("because {step} failed"),
                None => format!("because {}", quote(&failure.message, QUOTED)),
            },
            Some(Because::Canceled(cancel)) => format!("because {} canceled it", cancel.by),
            None => "step by step".into(),
        };
        let open = self.run.open().find(|step| step.task.is_some() || step.block.is_some());
        let left = match head.undo_left {
            0 => "the last one".to_owned(),
            left => format!("{left} more to undo"),
        };
        match open {
            Some(step) if step.state == StepState::Compensating => {
                let waits = step.block.as_ref().map(|block| self.say_undo_waits(block)).unwrap_or_default();
                format!("Compensating: undoing {}{waits}, {left}, {because}.", step.path)
            }
            Some(step) => format!("Compensating: finding out whether {} happened, {because}.", step.path),
            None => format!("Compensating: {left}, {because}."),
        }
    }

    fn say_undo_waits(&self, block: &Block) -> String {
        match (&block.wait, block.until) {
            (Wait::Auth { connection, .. }, _) => format!(" when {connection} is reconnected"),
            (Wait::Retry { .. } | Wait::Probe, Some(until)) => format!(" again at {}", instant(until)),
            _ => String::new(),
        }
    }

    fn say_canceling(&self) -> String {
        let Some(cancel) = self.cancel() else { return "Cancel requested.".into() };
        if let Some((step, block)) = self.held_up_by() {
            let (path, message) = (&step.path, words::continued(&quote(&block.message, QUOTED)));
            let said = format!("Cancel requested by {}, and {path} waits for somebody: {message}", cancel.by);
            return sentence(&said);
        }
        let leased = self.leased();
        let children = self.waits_for_children().len() + self.run.head.detached.len();
        let waits = match leased.first() {
            Some((step, lease)) if self.declared(step).is_some_and(|def| def.finally) => {
                format!("; {} runs {} before the end", lease.owner, step.path)
            }
            Some((_, lease)) => format!("; {} has until {} to stop", lease.owner, instant(cancel.grace_until)),
            None if self.run.head.finally == Finally::UnderWay => {
                let step = self.at().map(|path| format!(" ({path})")).unwrap_or_default();
                format!("; its finally steps run before the end{step}")
            }
            None if children > 0 => format!("; {} must stop first", words::count(children as u64, "child run")),
            None => String::new(),
        };
        format!("Cancel requested by {}: {}{waits}.", cancel.by, quote(&cancel.reason, QUOTED))
    }

    /// `after 5m`.
    fn took(&self) -> String {
        let head = &self.run.head;
        let ended_at = head.ended_at.unwrap_or(head.updated_at);
        format!("after {}", words::span(ended_at.since(head.started.created_at)))
    }

    fn say_warned(&self) -> String {
        let warnings = &self.run.head.warnings;
        let newest = warnings.newest.last().map(|warning| quote(&warning.message, QUOTED)).unwrap_or_default();
        let last = if warnings.count > 1 { "the last: " } else { "" };
        format!("Completed with {}: {last}{newest}.", words::count(warnings.count, "warning"))
    }

    fn say_failed(&self) -> String {
        let Some(failure) = &self.run.head.failure else { return format!("Failed {}.", self.took()) };
        let cause = failure.cause.as_deref().unwrap_or(failure);
        let step = cause.step_id.as_ref().map(|step| format!(" at {step}")).unwrap_or_default();
        let message = quote(&cause.message, QUOTED);
        match failure.kind {
            FailureKind::RolledBack => format!("Failed{step} and undone: {message}."),
            FailureKind::RollbackIncomplete => {
                format!("Failed{step} and only partly undone: {}.", quote(&failure.message, QUOTED))
            }
            FailureKind::StepFailed | FailureKind::Invalid | FailureKind::BudgetExhausted => {
                format!("Failed{step}: {message}.")
            }
            FailureKind::WorkerCrash => format!("Failed{step}: {message}, in the last attempt."),
            FailureKind::ChildFailed | FailureKind::TimedOut | FailureKind::Rejected | FailureKind::Expired => {
                let own = failure.step_id.as_ref().map(|step| format!(" at {step}")).unwrap_or_default();
                format!("Failed{own}: {}.", quote(&failure.message, QUOTED))
            }
        }
    }
}

/// `ana or role:manager decides "Ship it?"`, `2 of ana, bo or cy decide "Ship it?" (1 so far)`.
pub(super) fn say_decision(step: &Step, wait: &ApprovalWait) -> String {
    let who = match wait.approvers.as_slice() {
        [] => "anyone who may approve".to_owned(),
        approvers => quote(&words::one_of(approvers), QUOTED),
    };
    let (title, given) = (quote(&wait.title, 50), step.decisions.iter().filter(|decision| decision.approve).count());
    match wait.quorum {
        0 | 1 => format!("{who} decides \"{title}\""),
        quorum => format!("{quorum} of {who} decide \"{title}\" ({given} so far)"),
    }
}

/// What a wait expects, without saying until when.
pub(super) fn say_expected(step: &Step, block: &Block) -> String {
    match &block.wait {
        Wait::Signal { .. } => {
            let missing = missing(block);
            match is_all(block) {
                true if missing.len() > 1 => format!("signals {}", quote(&words::all_of(&missing), QUOTED)),
                _ => format!("signal {}", quote(&words::one_of(&missing), QUOTED)),
            }
        }
        Wait::Callback { name } => format!("the answer to {} of {}", quote(name, QUOTED), step.path),
        Wait::Approval(wait) => format!("a decision on \"{}\"", quote(&wait.title, QUOTED)),
        Wait::Child { run_id } => format!("the end of {run_id}"),
        Wait::Auth { .. }
        | Wait::Timer
        | Wait::Retry { .. }
        | Wait::Lost { .. }
        | Wait::Probe
        | Wait::Operator { .. } => {
            format!("progress of {}", step.path)
        }
    }
}

/// Signals that have not come.
fn missing(block: &Block) -> Vec<String> {
    let Wait::Signal { names, got, .. } = &block.wait else { return Vec::new() };
    names.iter().filter(|name| !got.contains_key(*name)).cloned().collect()
}

fn is_all(block: &Block) -> bool {
    matches!(block.wait, Wait::Signal { mode: WaitMode::All, .. })
}

fn say_progress(progress: &Progress) -> String {
    let done = match progress.total {
        Some(total) => format!("{} of {total}", progress.done),
        None => progress.done.to_string(),
    };
    match &progress.message {
        Some(message) => format!("{done} ({}), ", quote(message, 40)),
        None => format!("{done} done, "),
    }
}

fn undo_failure(step: &Step, message: &str) -> String {
    step.failure.as_ref().map_or_else(|| message.to_owned(), |failure| quote(&failure.message, QUOTED))
}

/// What a reason asks of whom, for the second line of an explanation.
pub(super) fn why(reason: &Reason) -> String {
    if let Detail::Child { root_cause: Some(root), .. } = &reason.detail {
        root.clone()
    } else {
        reason.message.clone()
    }
}
