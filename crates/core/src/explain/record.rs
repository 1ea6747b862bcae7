//! The record of a run: everything that is known of it in one answer, and never the bytes of a payload.

use std::collections::BTreeMap;

use serde::Serialize;

use super::actions::NextAction;
use super::evidence::standing;
use super::reason::Reason;
use super::view::View;
use super::{LateFacts, LateSaid, Surroundings};
use crate::contract::{Evidence, Failure, FailureClass, RunState};
use crate::definition::Definition;
use crate::ids::{Digest, Epoch, Namespace, Path, RunId, WorkerId, WorkflowId};
use crate::run::step::{Progress, Wait};
use crate::run::{NEWEST, OUTCOME_UNKNOWN, Origin, Parent, Phase, Warning, Working};
use crate::time::Timestamp;

/// What `GET /v1/runs/{id}` returns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    pub run_id: RunId,
    pub namespace: Namespace,
    pub workflow_id: WorkflowId,
    pub workflow_version: u32,
    pub definition_hash: Digest,
    pub state: RunState,
    pub since: Timestamp,
    pub summary: String,
    pub attempt: u32,
    pub step_id: Option<Path>,
    pub blocking_reason: Option<Reason>,
    pub blocks: Vec<Reason>,
    pub blocks_count: usize,
    pub lease_owner: Option<WorkerId>,
    pub lease_epoch: Option<Epoch>,
    pub lease_expires_at: Option<Timestamp>,
    pub last_heartbeat_at: Option<Timestamp>,
    /// How many leases of the run live.
    pub leases: usize,
    pub next_retry_at: Option<Timestamp>,
    pub closing: Option<Closing>,
    /// While a saga goes back.
    pub undo: Option<Undo>,
    /// Where the handoff packet is, while an operator is needed.
    pub handoff: Option<String>,
    pub failure: Option<Failure>,
    pub warnings: Vec<ToldWarning>,
    pub warnings_count: u64,
    pub evidence_links: Vec<Evidence>,
    pub evidence_count: u64,
    pub next_actions: Vec<NextAction>,
    pub next_actions_count: usize,
    pub progress: Option<StepProgress>,
    pub parent: Option<Parent>,
    /// How many child runs were started.
    pub children: u32,
    pub origin: Option<Origin>,
    pub owner_id: Option<String>,
    pub data_region: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub as_of_seq: u64,
}

/// A warning as it stands in the log, and what is known about it since.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToldWarning {
    #[serde(flatten)]
    pub warning: Warning,
    /// Nobody knew whether the effect happened; its worker answered after all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<Settled>,
}

/// The answer that settles an effect of unknown outcome. The log stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settled {
    pub at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<WorkerId>,
    #[serde(flatten)]
    pub said: LateSaid,
}

impl Settled {
    fn of(late: &LateFacts) -> Settled {
        Settled { at: late.at, by: late.worker.clone(), said: late.said.clone() }
    }
}

/// The body has failed and the run ends when the work in progress has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Closing {
    pub grace_until: Timestamp,
    pub failure: Failure,
    /// Whether completed steps are undone then.
    pub undo: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Undo {
    pub step_id: Option<Path>,
    pub left: u32,
    /// Undos that were given up.
    pub given_up: u64,
}

/// What a worker said of how far it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepProgress {
    pub step_id: Path,
    #[serde(flatten)]
    pub progress: Progress,
}

/// The record of a run whose open rows are all loaded.
pub fn record(run: &Working, definition: &Definition, around: &Surroundings, now: Timestamp) -> Record {
    View { run, definition, around, now }.record()
}

impl View<'_> {
    pub fn record(&self) -> Record {
        let head = &self.run.head;
        let started = &head.started;
        let leased = self.leased();
        let lease = leased.first();
        let live = lease.and_then(|(step, _)| step.live.as_ref());
        let (blocks, blocks_count) = self.reasons();
        let (next_actions, next_actions_count) = self.shortlist();
        let (evidence_links, evidence_count) = self.evidence_links();
        Record {
            run_id: head.run_id.clone(),
            namespace: head.namespace.clone(),
            workflow_id: started.workflow_id.clone(),
            workflow_version: started.workflow_version,
            definition_hash: started.definition_hash,
            state: self.state(),
            since: head.since,
            summary: self.summary(),
            attempt: head.attempt,
            step_id: self.at().cloned(),
            blocking_reason: self.reason(),
            blocks,
            blocks_count,
            lease_owner: lease.map(|(_, lease)| lease.owner.clone()),
            lease_epoch: lease.map(|(_, lease)| lease.epoch),
            lease_expires_at: live.and(lease.and_then(|(step, _)| step.lease_expires_at(self.around.serving_since))),
            last_heartbeat_at: live.map(|live| live.last_heartbeat_at).or(self.around.last_heartbeat_at),
            leases: leased.len(),
            next_retry_at: self.next_retry_at(),
            closing: self.closing(),
            undo: self.undo(),
            handoff: (self.state() == RunState::WaitingOnOperator || self.held_up_by().is_some())
                .then(|| self.href("/handoff")),
            failure: head.failure.clone(),
            warnings: head.warnings.newest.iter().map(|warning| self.told(warning)).collect(),
            warnings_count: head.warnings.count,
            evidence_links,
            evidence_count,
            next_actions,
            next_actions_count,
            progress: self.progress(),
            parent: started.parent.clone(),
            children: head.children,
            origin: started.origin.clone(),
            owner_id: started.owner_id.clone(),
            data_region: started.data_region.clone(),
            labels: started.labels.clone(),
            created_at: started.created_at,
            started_at: head.started_at,
            updated_at: head.updated_at,
            ended_at: head.ended_at,
            as_of_seq: head.seq,
        }
    }

    fn told(&self, warning: &Warning) -> ToldWarning {
        let about = warning.step_id.as_ref().filter(|_| warning.code == OUTCOME_UNKNOWN);
        ToldWarning { warning: warning.clone(), settled: about.and_then(|path| self.settled(path)) }
    }

    /// What settles a step of which nobody knew whether its effect happened: its worker says that it did, or that it did not.
    pub fn settled(&self, path: &Path) -> Option<Settled> {
        let denies = |late: &&LateFacts| match &late.said {
            LateSaid::Failure { class, .. } => class.is_some_and(|class| class != FailureClass::OutcomeUnknown),
            LateSaid::Result | LateSaid::Receipt { .. } => false,
        };
        let denial = || self.around.late.get(path)?.iter().find(denies);
        self.around.late_proof(path).or_else(denial).map(Settled::of)
    }

    pub fn settled_effect(&self, path: &Path, name: &str) -> Option<Settled> {
        let of_effect = |late: &&LateFacts| match &late.said {
            LateSaid::Receipt { effect, .. } => effect.as_deref() == Some(name),
            LateSaid::Result | LateSaid::Failure { .. } => false,
        };
        self.around.late.get(path)?.iter().find(of_effect).map(Settled::of)
    }

    /// The earliest instant at which something is tried again by itself.
    fn next_retry_at(&self) -> Option<Timestamp> {
        let scheduled = self.blocked().into_iter().map(|(_, block)| block);
        let scheduled = scheduled.filter(|block| matches!(block.wait, Wait::Retry { .. } | Wait::Probe));
        scheduled.filter_map(|block| block.until).min().filter(|_| !self.run.head.is_held())
    }

    fn closing(&self) -> Option<Closing> {
        match &self.run.head.phase {
            Phase::Closing { grace_until, failure, undo } => {
                Some(Closing { grace_until: *grace_until, failure: (**failure).clone(), undo: *undo })
            }
            Phase::Forward | Phase::Canceling(_) | Phase::Compensating { .. } | Phase::Ended => None,
        }
    }

    fn undo(&self) -> Option<Undo> {
        let Phase::Compensating { given_up, .. } = &self.run.head.phase else { return None };
        let open = self.run.open().find(|step| step.task.is_some() || step.block.is_some());
        let step_id = open.map(|step| step.path.clone());
        Some(Undo { step_id, left: self.run.head.undo_left, given_up: given_up.count })
    }

    /// The newest progress that a worker with a live lease reported.
    fn progress(&self) -> Option<StepProgress> {
        let told = self.leased().into_iter().filter_map(|(step, _)| {
            let progress = step.live.as_ref()?.progress.clone()?;
            Some(StepProgress { step_id: step.path.clone(), progress })
        });
        told.max_by_key(|told| told.progress.at)
    }

    /// Always the trace, the log and the bundle; then what workers and people pointed to.
    fn evidence_links(&self) -> (Vec<Evidence>, u64) {
        let head = &self.run.head;
        let attempt = self.at().and_then(|path| self.run.step(path.as_str())).map(|step| step.attempt);
        let mut links = standing(head, self.at(), attempt, None);
        let count = head.evidence.count + links.len() as u64;
        let newest = head.evidence.newest.iter().rev();
        links.extend(newest.take(NEWEST - links.len()).cloned());
        (links, count)
    }
}
