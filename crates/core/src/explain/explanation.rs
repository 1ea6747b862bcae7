//! The long answer: what a run is doing, why, since when, what will happen by itself, what can be done, and the proof.

use serde::Serialize;

use super::Surroundings;
use super::actions::NextAction;
use super::cause::Link;
use super::future::Coming;
use super::summary::why;
use super::triage::Triage;
use super::view::{View, task_path};
use super::words;
use crate::contract::RunState;
use crate::definition::Definition;
use crate::ids::{Epoch, Path, RunId};
use crate::run::{Working, sentence, wake_at};
use crate::time::Timestamp;

/// What `GET /v1/runs/{id}/explain` returns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub run_id: RunId,
    pub state: RunState,
    pub summary: String,
    pub doing: String,
    pub why: String,
    pub since: Timestamp,
    /// From the run to the root cause.
    pub chain: Vec<Link>,
    pub will_happen: Vec<Coming>,
    pub can_be_done: Vec<NextAction>,
    pub proof: Proof,
    /// The run that waits for this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Above>,
    /// For a run that is stalled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triage: Option<Vec<Triage>>,
}

/// What the answer stands on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proof {
    pub as_of_seq: u64,
    pub lease_epoch: Option<Epoch>,
    pub last_heartbeat_at: Option<Timestamp>,
    /// How long the lease still proves that the worker lives, as a duration.
    pub fresh_for: Option<String>,
    /// When the rules look at the run again by themselves.
    pub wake_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Above {
    pub run_id: RunId,
    pub step_id: Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// Explains a run whose open rows are all loaded.
pub fn explain(run: &Working, definition: &Definition, around: &Surroundings, now: Timestamp) -> Explanation {
    View { run, definition, around, now }.explain()
}

impl View<'_> {
    pub fn explain(&self) -> Explanation {
        let head = &self.run.head;
        let stalled = self.state() == RunState::Stalled;
        Explanation {
            run_id: head.run_id.clone(),
            state: self.state(),
            summary: self.summary(),
            doing: self.doing(),
            why: self.why(),
            since: head.since,
            chain: self.chain(),
            will_happen: self.will_happen(),
            can_be_done: self.next_actions(),
            proof: self.proof(),
            parent: self.above(),
            triage: stalled.then(|| self.triage()),
        }
    }

    fn doing(&self) -> String {
        let at = self.at().map(|path| format!(" at {path}")).unwrap_or_default();
        let means = words::continued(self.state().means().trim_end_matches('.'));
        match (self.state(), self.leased().first()) {
            (RunState::Running, Some((step, lease))) => {
                let (path, attempt) = (task_path(step), step.attempt.max(1));
                format!("{} executes {path}, attempt {attempt} of {}.", lease.owner, self.attempts(step))
            }
            (state, _) => format!("{state}{at}: {means}."),
        }
    }

    fn why(&self) -> String {
        let why = self.why_so();
        match self.unknown_at_the_end().filter(|_| self.is_terminal()) {
            Some(unknown) => format!("{} Nobody knows whether {unknown} happened.", sentence(&why)),
            None => why,
        }
    }

    fn why_so(&self) -> String {
        if let Some(reason) = self.reason() {
            return why(&reason);
        }
        let head = &self.run.head;
        match (self.state(), self.leased().first(), &head.failure) {
            (RunState::Running, Some((step, lease)), _) => {
                format!("Lease {} proves it: {}.", lease.epoch, self.liveness(step, lease))
            }
            (RunState::Queued, ..) => "It is in line: the next worker that asks for it takes it.".into(),
            (_, _, Some(failure)) => failure.message.clone(),
            (RunState::Succeeded, ..) => "Every step ended well.".into(),
            (RunState::CompletedWithWarnings, ..) => "Every step ended, some with a failure that is tolerated.".into(),
            (RunState::Canceled, ..) => "Somebody asked for it.".into(),
            _ => self.summary(),
        }
    }

    fn proof(&self) -> Proof {
        let leased = self.leased();
        let lease = leased.first();
        let live = lease.and_then(|(step, _)| step.live.as_ref());
        let expires_at = lease.and_then(|(step, _)| step.lease_expires_at(self.around.serving_since));
        let fresh = live.and(expires_at).filter(|at| *at > self.now);
        Proof {
            as_of_seq: self.run.head.seq,
            lease_epoch: lease.map(|(_, lease)| lease.epoch),
            last_heartbeat_at: live.map(|live| live.last_heartbeat_at).or(self.around.last_heartbeat_at),
            fresh_for: fresh.map(|at| at.since(self.now).to_string()),
            wake_at: wake_at(self.run, self.around.serving_since),
        }
    }

    fn above(&self) -> Option<Above> {
        let parent = self.run.head.started.parent.as_ref()?;
        let facts = self.around.parent.as_ref();
        Some(Above {
            run_id: parent.run_id.clone(),
            step_id: parent.step_id.clone(),
            state: facts.map(|facts| facts.state),
            summary: facts.map(|facts| facts.summary.clone()),
        })
    }
}
