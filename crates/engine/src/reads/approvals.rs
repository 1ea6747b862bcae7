//! Decisions that wait for people, and who may come in to decide.

use abide_core::definition::redact;
use abide_core::explain;
use abide_core::ids::{Digest, Path, RunId, WorkflowId};
use abide_core::run::command::Json;
use abide_core::run::step::{Decision, Step};
use abide_core::time::Timestamp;
use serde::Serialize;

use super::{Kept, Read, Snapshot};
use crate::engine::Engine;
use crate::request::{Key, Link};
use crate::store::sqlite::{access, read};
use crate::store::{Loaded, Stored};

/// A decision that waits for somebody.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ApprovalView {
    pub run_id: RunId,
    pub workflow_id: WorkflowId,
    pub step_id: Path,
    pub title: String,
    pub subject_digest: Digest,
    #[serde(serialize_with = "crate::request::maybe_raw")]
    pub subject: Option<Json>,
    pub approvers: Vec<String>,
    pub quorum: u32,
    pub given: usize,
    pub since: Timestamp,
    pub deadline: Option<Timestamp>,
    pub overdue: bool,
    /// What happens when nobody decides in time, as a clause: `it fails`.
    pub at_deadline: Option<String>,
    /// JSON Schema of what a yes carries.
    pub form: Option<serde_json::Value>,
    /// Whoever started the run may not decide, when this is true; and that is who it was.
    pub not_requester: bool,
    pub requester: String,
    /// Who has decided so far, where more than one must.
    pub decisions: Vec<DecisionView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecisionView {
    pub by: String,
    pub approve: bool,
    pub at: Timestamp,
    pub comment: Option<String>,
}

impl DecisionView {
    pub(super) fn of(decision: &Decision) -> DecisionView {
        let Decision { by, approve, at, comment, .. } = decision.clone();
        DecisionView { by, approve, at, comment }
    }
}

impl Snapshot<'_> {
    pub(super) fn approvals(&self, limit: usize) -> Stored<Vec<ApprovalView>> {
        let mut views = Vec::new();
        for (key, path) in read::approvals(self.db, self.namespace, limit)? {
            let Some(loaded) = read::run(self.db, &key)? else { continue };
            let Some(step) = loaded.run.step(path.as_str()) else { continue };
            views.extend(self.approval(&loaded, step)?);
        }
        Ok(views)
    }

    pub(super) fn approval(&self, loaded: &Loaded, step: &Step) -> Stored<Option<ApprovalView>> {
        let Some((approval, block)) = crate::store::rows::approval(step) else { return Ok(None) };
        let subject = read::payload(self.db, loaded.no, &approval.subject.name)?;
        let mask = self.mask(loaded)?;
        let subject = subject.map(|subject: Json| mask.json(&subject).into_owned());
        let definition = self.definition(&loaded.run)?;
        let hidden = step.place.index.map(|index| definition.sensitive_inputs(index)).unwrap_or_default();
        let facts = explain::to_decide(&loaded.run, &definition, step, block, self.now);
        Ok(Some(ApprovalView {
            run_id: loaded.run.head.run_id.clone(),
            workflow_id: loaded.run.head.started.workflow_id.clone(),
            step_id: step.path.clone(),
            title: approval.title.clone(),
            subject_digest: approval.subject.digest,
            subject: subject.map(|subject| redact(&subject, &hidden).into()),
            approvers: approval.approvers.clone(),
            quorum: approval.quorum,
            given: step.decisions.iter().filter(|decision| decision.approve).count(),
            since: block.since,
            deadline: block.until,
            overdue: block.overdue,
            at_deadline: facts.at_deadline,
            form: facts.form,
            not_requester: approval.not_requester,
            requester: loaded.run.head.started.requester.clone(),
            decisions: step.decisions.iter().map(DecisionView::of).collect(),
        }))
    }
}

impl Engine {
    /// All keys of the API, of every namespace.
    pub async fn keys(&self) -> Read<Vec<Key>> {
        self.read(|snapshot| Ok(access::keys(snapshot.db)?)).await
    }

    /// What a one-time link is for.
    pub async fn link(&self, token_hash: Digest) -> Read<Option<Link>> {
        self.read(move |snapshot| Ok(access::link(snapshot.db, &token_hash)?)).await
    }

    /// The approval that a step waits for.
    pub async fn approval(&self, run_id: &RunId, path: &Path) -> Read<Option<ApprovalView>> {
        let (run_id, path) = (run_id.clone(), path.clone());
        self.read(move |snapshot| {
            let loaded = snapshot.find(&run_id)?.loaded;
            match loaded.run.step(path.as_str()) {
                Some(step) => Ok(snapshot.approval(&loaded, step)?),
                None => Ok(None),
            }
        })
        .await
    }

    /// What people have answered to a step, also when it is over.
    pub async fn decisions(&self, run_id: &RunId, path: &Path) -> Read<Vec<DecisionView>> {
        let (run_id, path) = (run_id.clone(), path.clone());
        self.read(move |snapshot| {
            let Some(kept) = snapshot.load(&run_id)? else { return Ok(Vec::new()) };
            let step = kept.step(&path)?;
            Ok(step.map(|step| step.decisions.iter().map(DecisionView::of).collect()).unwrap_or_default())
        })
        .await
    }

    /// Decisions that one run waits for.
    pub async fn approvals_of(&self, run_id: &RunId) -> Read<Vec<ApprovalView>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let Some(Kept { loaded, .. }) = snapshot.load(&run_id)? else { return Ok(Vec::new()) };
            let mut views = Vec::new();
            for step in loaded.run.open() {
                views.extend(snapshot.approval(&loaded, step)?);
            }
            Ok(views)
        })
        .await
    }

    /// Decisions that wait for people, the most urgent first.
    pub async fn approvals(&self, limit: usize) -> Read<Vec<ApprovalView>> {
        self.read(move |snapshot| Ok(snapshot.approvals(limit)?)).await
    }
}
