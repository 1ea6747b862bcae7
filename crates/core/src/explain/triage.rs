//! The five questions that a stalled run raises, answered from the record.

use serde::Serialize;
use serde_json::{Value, json};

use super::Surroundings;
use super::summary::say_expected;
use super::view::View;
use super::words::{self, instant};
use crate::contract::ReasonType;
use crate::definition::{Body, Definition, Performer};
use crate::ids::{Handler, Queue};
use crate::run::Working;
use crate::run::step::{Block, Step, TaskKind, Wait};
use crate::time::Timestamp;

/// One question and what the record says to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Triage {
    pub question: &'static str,
    pub answer: Answer,
    pub detail: String,
    pub proof: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Yes,
    No,
    Unknown,
}

/// How many attempts of one input make it suspicious.
const SUSPICIOUS_ATTEMPTS: u32 = 3;

/// The five answers, for any run.
pub fn triage(run: &Working, definition: &Definition, around: &Surroundings, now: Timestamp) -> Vec<Triage> {
    View { run, definition, around, now }.triage()
}

impl View<'_> {
    pub fn triage(&self) -> Vec<Triage> {
        vec![
            self.was_a_lease_lost(),
            self.is_it_really_a_wait(),
            self.is_a_retry_without_time(),
            self.is_there_no_capacity(),
            self.is_the_input_poison(),
        ]
    }

    fn was_a_lease_lost(&self) -> Triage {
        let question = "Did the worker lose its lease?";
        let lost = self.blocked().into_iter().find_map(|(step, block)| {
            let Wait::Lost { owner, epoch } = &block.wait else { return None };
            Some((step, block, owner, *epoch))
        });
        if let Some((step, block, owner, epoch)) = lost {
            let detail = format!("{owner} lost lease {epoch} of {} at {}.", step.path, instant(block.since));
            let last = self.around.last_heartbeat_at;
            let proof = json!({ "step_id": step.path, "worker": owner, "lease_epoch": epoch, "at": block.since, "last_heartbeat_at": last });
            return Triage { question, answer: Answer::Yes, detail, proof };
        }
        let before = self.run.open().find(|step| !step.losses.is_empty());
        match (before, self.leased().first()) {
            (Some(step), _) => {
                let workers: Vec<String> = step.losses.iter().map(ToString::to_string).collect();
                let detail = format!(
                    "Earlier: {} was lost on {}; it is {} now.",
                    words::all_of(&workers),
                    step.path,
                    step.state
                );
                Triage {
                    question,
                    answer: Answer::Yes,
                    detail,
                    proof: json!({ "step_id": step.path, "workers": workers }),
                }
            }
            (None, Some((step, lease))) => {
                let detail = format!("{}: {}.", step.path, self.liveness(step, lease));
                let proof = json!({ "step_id": step.path, "worker": lease.owner, "lease_epoch": lease.epoch });
                Triage { question, answer: Answer::No, detail, proof }
            }
            (None, None) => {
                let detail = "No open step of this run has lost a worker.".to_owned();
                Triage { question, answer: Answer::No, detail, proof: json!({ "as_of_seq": self.run.head.seq }) }
            }
        }
    }

    fn is_it_really_a_wait(&self) -> Triage {
        let question = "Is it really waiting on auth, a tool or a person?";
        let outside = self.blocked().into_iter().find(|(_, block)| is_outside(block));
        if let Some((step, block)) = outside {
            let detail = if let Wait::Auth { connection, .. } = &block.wait {
                format!("{} waits for {connection} to be reconnected.", step.path)
            } else {
                format!("{} waits for {}.", step.path, say_expected(step, block))
            };
            let proof =
                json!({ "step_id": step.path, "type": wait_type(block), "since": block.since, "until": block.until });
            return Triage { question, answer: Answer::Yes, detail, proof };
        }
        let broken = self.around.connections.iter().find(|(_, facts)| facts.broken);
        if let Some((connection, facts)) = broken {
            let detail = format!("Nothing waits for it openly, but {connection} is known to be broken.");
            let proof = json!({ "connection": connection, "generation": facts.generation });
            return Triage { question, answer: Answer::Yes, detail, proof };
        }
        let detail = "No open step waits for anything outside.".to_owned();
        Triage { question, answer: Answer::No, detail, proof: json!({ "blocks": self.blocked().len() }) }
    }

    fn is_a_retry_without_time(&self) -> Triage {
        let question = "Was a retry scheduled without next_retry_at?";
        let retries: Vec<(&Step, &Block)> = self
            .blocked()
            .into_iter()
            .filter(|(_, block)| matches!(block.wait, Wait::Retry { .. } | Wait::Probe))
            .collect();
        let proof = json!({ "retries": retries.len(), "next_retry_at": retries.iter().filter_map(|(_, block)| block.until).min() });
        let (answer, detail) = match retries.iter().find(|(_, block)| block.until.is_none()) {
            Some((step, _)) => (Answer::Yes, format!("{} is to be retried and has no time.", step.path)),
            None if retries.is_empty() => (Answer::No, "No retry is scheduled.".to_owned()),
            None => (Answer::No, "Every scheduled retry has its time.".to_owned()),
        };
        Triage { question, answer, detail, proof }
    }

    fn is_there_no_capacity(&self) -> Triage {
        let question = "Is a queue backed up, or is nobody listening?";
        let Some((queue, handler, kind, ready)) = self.needed_capacity() else {
            let detail = "No step of this run needs a worker now.".to_owned();
            return Triage { question, answer: Answer::No, detail, proof: json!({ "ready_tasks": 0 }) };
        };
        let Some(facts) = self.around.queues.get(&queue) else {
            let detail = format!("Nothing is known here of queue {queue}.");
            return Triage {
                question,
                answer: Answer::Unknown,
                detail,
                proof: json!({ "queue": queue, "handler": handler }),
            };
        };
        let last_poll_at = facts.last_poll_at(&handler, kind);
        let heard = facts.is_heard(&handler, kind, self.now);
        let proof = json!({
            "queue": queue, "handler": handler, "ready_tasks": ready, "depth": facts.depth,
            "oldest_at": facts.oldest_at, "last_poll_at": last_poll_at,
        });
        let line = words::count(facts.depth, "task");
        let (answer, detail) = match (heard, ready) {
            (false, _) => (Answer::Yes, format!("No worker listens on queue {queue} for {handler}.")),
            (true, 0) => (Answer::No, format!("Workers listen on queue {queue} for {handler}; {line} in line.")),
            (true, _) => (Answer::Yes, format!("Workers listen on queue {queue} for {handler}, with {line} in line.")),
        };
        Triage { question, answer, detail, proof }
    }

    /// The queue and handler that this run needs: of its ready tasks, or of what would be issued again.
    fn needed_capacity(&self) -> Option<(Queue, Handler, TaskKind, usize)> {
        let ready = self.ready();
        if let Some((_, task)) = ready.first() {
            return Some((task.queue.clone(), task.handler.clone(), task.kind, ready.len()));
        }
        let again = |(_, block): &(&Step, &Block)| matches!(block.wait, Wait::Lost { .. } | Wait::Retry { .. });
        let (step, _) = self.blocked().into_iter().find(again)?;
        let (handler, queue, kind) = match (self.declared(step), &self.definition.body) {
            (Some(def), _) => match def.action.performer() {
                Performer::Worker(handler) => (handler.clone(), &def.queue, TaskKind::Step),
                Performer::Push | Performer::Clock | Performer::Answer => return None,
            },
            (None, Body::Coded { revision }) => {
                let handler = Handler::new(format!("{}@{revision}", self.definition.workflow));
                (handler, &self.definition.defaults.queue, TaskKind::Body)
            }
            (None, Body::Steps(_)) => return None,
        };
        Some((self.run.head.started.queue.as_ref().unwrap_or(queue).clone(), handler, kind, 0))
    }

    fn is_the_input_poison(&self) -> Triage {
        let question = "Does the same input fail again and again?";
        let worst = self.run.open().max_by_key(|step| (step.losses.len(), step.attempt));
        let Some(step) = worst else {
            let detail = "No step is open.".to_owned();
            return Triage { question, answer: Answer::No, detail, proof: json!({}) };
        };
        let named = step.block.as_ref().is_some_and(|block| block.reason() == ReasonType::PoisonInput);
        let (losses, attempt) = (step.losses.len(), step.attempt);
        let proof =
            json!({ "step_id": step.path, "attempt": attempt, "workers_lost": step.losses, "input": step.input });
        let lost = words::count(losses as u64, "worker");
        let (answer, detail) = match losses {
            _ if named || losses >= 2 => (Answer::Yes, format!("{lost} died on the input of {}.", step.path)),
            _ if attempt >= SUSPICIOUS_ATTEMPTS => {
                let last = step
                    .failure
                    .as_ref()
                    .map(|failure| format!("; the last failure: {}", words::quote(&failure.message, words::QUOTED)));
                (Answer::Unknown, format!("{} is in attempt {attempt}{}.", step.path, last.unwrap_or_default()))
            }
            _ => (Answer::No, format!("{} is in attempt {attempt}, with {lost} lost.", step.path)),
        };
        Triage { question, answer, detail, proof }
    }
}

/// Whether something outside Abide has to answer.
fn is_outside(block: &Block) -> bool {
    match block.wait {
        Wait::Auth { .. } | Wait::Approval(_) | Wait::Signal { .. } | Wait::Callback { .. } | Wait::Operator { .. } => {
            true
        }
        Wait::Child { .. } | Wait::Timer | Wait::Retry { .. } | Wait::Lost { .. } | Wait::Probe => false,
    }
}

/// The type of the wait beneath an overdue block.
fn wait_type(block: &Block) -> ReasonType {
    Block { overdue: false, ..block.clone() }.reason()
}
