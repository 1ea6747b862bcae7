//! Blocking reasons: why a run does not move, with everything that somebody needs to change it.

use serde::Serialize;

use super::cause::root_of_children;
use super::view::View;
use super::words;
use crate::contract::{FailureClass, ReasonType, RunState};
use crate::definition::{AtDeadline, WaitMode};
use crate::ids::{Digest, Epoch, Handler, Path, Queue, RunId, WorkerId};
use crate::run::step::{ApprovalWait, Block, Connection, FieldFault, Step, Task, TaskKind, Wait};
use crate::run::{NEWEST, Phase};
use crate::time::Timestamp;

/// Why something does not move.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reason {
    #[serde(rename = "type")]
    pub kind: ReasonType,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_id: Option<Path>,
    pub message: String,
    pub since: Timestamp,
    /// When it changes by itself, or was expected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
    #[serde(flatten)]
    pub detail: Detail,
}

/// What each type of reason adds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Detail {
    Queue {
        queue: Queue,
        handler: Handler,
        /// How many tasks of this run wait there.
        tasks: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        last_poll_at: Option<Timestamp>,
    },
    Limit {
        limit: String,
        used: u64,
        of: u64,
    },
    Auth {
        tool: String,
        account: String,
        connection: Connection,
    },
    Approval {
        title: String,
        subject_digest: Digest,
        approvers: Vec<String>,
        quorum: u32,
        approved_by: Vec<String>,
        not_requester: bool,
        at_deadline: Option<AtDeadline>,
    },
    /// A signal or a callback.
    Answer {
        tool: String,
        /// What has not come yet.
        names: Vec<String>,
        mode: WaitMode,
        at_deadline: Option<AtDeadline>,
    },
    Child {
        /// How many child runs are waited for.
        children: usize,
        run_ids: Vec<RunId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        root_cause: Option<String>,
        at_deadline: Option<AtDeadline>,
    },
    Retry {
        next_attempt: u32,
        of: u32,
        class: FailureClass,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    Lost {
        worker: WorkerId,
        epoch: Epoch,
        #[serde(skip_serializing_if = "Option::is_none")]
        last_heartbeat_at: Option<Timestamp>,
    },
    Operator {
        #[serde(skip_serializing_if = "Option::is_none")]
        recommended: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        fields: Vec<FieldFault>,
    },
    By {
        by: String,
    },
    Plain {},
}

impl Reason {
    /// Whether it waits for this tool, and account.
    pub fn is_on_connection(&self, wanted: &str, of: Option<&str>) -> bool {
        matches!(&self.detail, Detail::Auth { tool, account, .. } if tool == wanted && of.is_none_or(|of| of == account))
    }
}

impl View<'_> {
    /// Why the run as a whole does not move; nothing when it does, or has ended.
    pub fn reason(&self) -> Option<Reason> {
        match self.state() {
            RunState::Queued => self.why_queued(),
            RunState::Paused => self.why_paused(),
            RunState::CancelRequested => match self.held_up_by() {
                Some((step, block)) => Some(self.reason_of(step, block)),
                None => self.why_canceling(),
            },
            RunState::WaitingOnOperator if self.foremost().is_none() => self.why_full(),
            RunState::WaitingOnTool
            | RunState::WaitingOnAuth
            | RunState::WaitingOnApproval
            | RunState::WaitingOnChild
            | RunState::WaitingOnTimer
            | RunState::WaitingOnOperator
            | RunState::RetryScheduled
            | RunState::Stalled
            | RunState::Compensating => self.foremost().map(|(step, block)| self.reason_of(step, block)),
            RunState::Running
            | RunState::Succeeded
            | RunState::CompletedWithWarnings
            | RunState::Failed
            | RunState::Canceled => None,
        }
    }

    /// Everything in the run that does not move, the foremost first, and how much there is.
    pub fn reasons(&self) -> (Vec<Reason>, usize) {
        if self.is_terminal() {
            return (Vec::new(), 0);
        }
        let (blocked, unheard) = (self.blocked(), self.unheard());
        let count = blocked.len() + unheard.len();
        let of_blocks = blocked.into_iter().map(|(step, block)| self.reason_of(step, block));
        (of_blocks.chain(unheard).take(NEWEST).collect(), count)
    }

    fn why_queued(&self) -> Option<Reason> {
        let head = &self.run.head;
        let plain = |kind, message: String, until, detail| Reason {
            kind,
            step_id: None,
            message,
            since: head.since,
            until,
            overdue: false,
            detail,
        };
        if let Some(at) = head.started.start_at.filter(|at| head.body.is_none() && *at > self.now) {
            let message = format!("Starts at {}.", words::instant(at));
            return Some(plain(ReasonType::StartDelayed, message, Some(at), Detail::Plain {}));
        }
        if let Some(limit) = self.around.limits_full.first() {
            let message = format!("Limit {} is full: {} of {} in use.", limit.name, limit.used, limit.of);
            let detail = Detail::Limit { limit: limit.name.clone(), used: limit.used, of: limit.of };
            return Some(plain(ReasonType::LimitFull, message, None, detail));
        }
        // With another task that somebody will take, the run is simply next in line.
        let unheard = self.unheard();
        let all = self.ready().iter().all(|(_, task)| self.is_unheard(task));
        unheard.into_iter().next().filter(|_| all)
    }

    /// Ready tasks that nobody asks for, one reason for each queue and handler.
    fn unheard(&self) -> Vec<Reason> {
        let mut reasons: Vec<Reason> = Vec::new();
        for (step, task) in self.ready().into_iter().filter(|(_, task)| self.is_unheard(task)) {
            let known = reasons.iter_mut().find_map(|reason| {
                let Detail::Queue { queue, handler, tasks, .. } = &mut reason.detail else { return None };
                (*queue == task.queue && *handler == task.handler).then_some(tasks)
            });
            match known {
                Some(tasks) => *tasks += 1,
                None => reasons.push(self.why_unheard(step, task)),
            }
        }
        reasons
    }

    fn is_unheard(&self, task: &Task) -> bool {
        // What the engine executes itself needs no listener.
        let own = task.handler.as_str().starts_with("abide:");
        let queue = self.around.queues.get(&task.queue);
        !own && queue.is_some_and(|queue| !queue.is_heard(&task.handler, task.kind, self.now))
    }

    fn why_unheard(&self, step: &Step, task: &Task) -> Reason {
        let queue = self.around.queues.get(&task.queue);
        let last_poll_at = queue.and_then(|queue| queue.last_poll_at(&task.handler, task.kind));
        let asked = last_poll_at.map(|at| format!("; last asked for {}", words::ago(self.now, at))).unwrap_or_default();
        let revision = task.handler.as_str().split_once('@').filter(|_| task.kind == TaskKind::Body);
        let (kind, message) = match revision {
            Some((workflow, revision)) if queue.is_some_and(|queue| queue.has_other_revision(workflow, self.now)) => (
                ReasonType::NoWorkerForRevision,
                format!("Workers offer {workflow}, but not its revision {revision}{asked}."),
            ),
            _ => (
                ReasonType::NoWorkerListening,
                format!("No worker listens on queue {} for {}{asked}.", task.queue, task.handler),
            ),
        };
        let (queue, handler) = (task.queue.clone(), task.handler.clone());
        Reason {
            kind,
            step_id: Some(step.path.clone()),
            message,
            since: task.issued_at,
            until: None,
            overdue: false,
            detail: Detail::Queue { queue, handler, tasks: 1, last_poll_at },
        }
    }

    fn why_paused(&self) -> Option<Reason> {
        let hold = self.run.head.hold.as_ref()?;
        Some(Reason {
            kind: ReasonType::PausedByOperator,
            step_id: None,
            message: format!("{} paused it: {}.", hold.by, words::quote(&hold.reason, words::QUOTED)),
            since: hold.since,
            until: None,
            overdue: false,
            detail: Detail::By { by: hold.by.clone() },
        })
    }

    fn why_canceling(&self) -> Option<Reason> {
        let Phase::Canceling(cancel) = &self.run.head.phase else { return None };
        Some(Reason {
            kind: ReasonType::CancelGrace,
            step_id: self.at().cloned(),
            message: format!("{} canceled it: {}.", cancel.by, words::quote(&cancel.reason, words::QUOTED)),
            since: self.run.head.since,
            until: self.must_stop().then_some(cancel.grace_until),
            overdue: false,
            detail: Detail::By { by: cancel.by.clone() },
        })
    }

    fn why_full(&self) -> Option<Reason> {
        let head = &self.run.head;
        head.history_full.then(|| Reason {
            kind: ReasonType::HistoryFull,
            step_id: None,
            message: format!("The log has {} events and takes nothing new.", head.seq),
            since: head.since,
            until: None,
            overdue: false,
            detail: Detail::Operator { recommended: Some("cancel".into()), fields: Vec::new() },
        })
    }

    pub fn reason_of(&self, step: &Step, block: &Block) -> Reason {
        Reason {
            kind: block.reason(),
            step_id: Some(step.path.clone()),
            message: block.message.clone(),
            since: block.since,
            until: block.until,
            overdue: block.overdue,
            detail: self.detail_of(step, block),
        }
    }

    fn detail_of(&self, step: &Step, block: &Block) -> Detail {
        let at_deadline = || self.declared(step).filter(|def| def.is_wait()).and_then(|def| def.at_deadline.clone());
        match &block.wait {
            Wait::Auth { connection, .. } => Detail::Auth {
                tool: connection.tool.clone(),
                account: connection.account.clone(),
                connection: connection.clone(),
            },
            Wait::Approval(wait) => approval(step, wait),
            Wait::Signal { names, mode, got } => Detail::Answer {
                tool: names.join(", "),
                names: names.iter().filter(|name| !got.contains_key(*name)).cloned().collect(),
                mode: *mode,
                at_deadline: at_deadline(),
            },
            Wait::Callback { name } => Detail::Answer {
                tool: step.path.to_string(),
                names: vec![name.clone()],
                mode: WaitMode::One,
                at_deadline: None,
            },
            Wait::Child { .. } => self.children(at_deadline()),
            Wait::Retry { next_attempt, class, code } => Detail::Retry {
                next_attempt: *next_attempt,
                of: self.attempts(step),
                class: *class,
                code: code.clone(),
            },
            Wait::Lost { owner, epoch } => {
                Detail::Lost { worker: owner.clone(), epoch: *epoch, last_heartbeat_at: self.around.last_heartbeat_at }
            }
            Wait::Operator { recommended, fields, .. } => {
                Detail::Operator { recommended: recommended.clone(), fields: fields.clone() }
            }
            Wait::Timer | Wait::Probe => Detail::Plain {},
        }
    }

    fn children(&self, at_deadline: Option<AtDeadline>) -> Detail {
        let waits = self.waits_for_children();
        let ids = waits.iter().filter_map(|(_, block)| block.wait.child().cloned());
        let root_cause = root_of_children(self).map(|root| root.what.clone());
        Detail::Child { children: waits.len(), run_ids: ids.take(NEWEST).collect(), root_cause, at_deadline }
    }
}

fn approval(step: &Step, wait: &ApprovalWait) -> Detail {
    let approved = step.decisions.iter().filter(|decision| decision.approve);
    Detail::Approval {
        title: wait.title.clone(),
        subject_digest: wait.subject.digest,
        approvers: wait.approvers.clone(),
        quorum: wait.quorum,
        approved_by: approved.map(|decision| decision.by.clone()).collect(),
        not_requester: wait.not_requester,
        at_deadline: wait.at_deadline.clone(),
    }
}
