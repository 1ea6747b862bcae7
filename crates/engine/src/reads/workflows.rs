//! Workflows, their versions and graphs, and what a rerun would do.

use std::sync::Arc;

use abide_core::definition::Definition;
use abide_core::explain::{self, At};
use abide_core::ids::{Digest, RunId, WorkflowId};
use abide_core::run::rerun::{RerunPlan, Source, plan_rerun};
use abide_core::run::step::Step;
use abide_core::time::Timestamp;
use serde::Serialize;

use super::steps::StepView;
use super::{Read, ReadError};
use crate::engine::Engine;
use crate::request::{Rerun, RerunVersion};
use crate::store::StoredDefinition;
use crate::store::sqlite::read;

/// A workflow as a list shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkflowView {
    pub workflow_id: WorkflowId,
    pub version: u32,
    pub title: Option<String>,
    pub definition_hash: Digest,
    pub created_at: Timestamp,
}

/// One version of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VersionView {
    pub version: u32,
    pub definition_hash: Digest,
    pub created_at: Timestamp,
    pub runs: u64,
}

impl Engine {
    /// What a rerun would do; nothing is changed.
    pub async fn plan_rerun(&self, rerun: Rerun) -> Read<RerunPlan> {
        self.read(move |snapshot| {
            let kept = snapshot.find(&rerun.run_id)?;
            let loaded = &kept.loaded;
            let started = &loaded.run.head.started;
            let version = match rerun.version {
                RerunVersion::Same => Some(started.workflow_version),
                RerunVersion::Latest => None,
                RerunVersion::Number(number) => Some(number),
            };
            let stored = read::definition(snapshot.db, snapshot.namespace, &started.workflow_id, version)?;
            let version = stored.ok_or_else(|| ReadError::NoWorkflow(started.workflow_id.clone()))?.version;
            let target = snapshot.documents.get(snapshot.db, snapshot.namespace, &started.workflow_id, version)?;
            let own = snapshot.definition(&loaded.run)?;
            let steps: Vec<Step> = kept.steps()?.iter().map(|step| (**step).clone()).collect();
            let source = Source { head: &loaded.run.head, steps: &steps, definition: &own };
            let planned = plan_rerun(source, &target, rerun.from_step.as_deref(), rerun.input.is_some());
            planned.map(|planned| planned.plan).map_err(|why| ReadError::Refused(why, loaded.run.head.state))
        })
        .await
    }

    /// The newest version of every workflow.
    pub async fn workflows(&self) -> Read<Vec<WorkflowView>> {
        self.read(|snapshot| {
            let mut views = Vec::new();
            for (workflow_id, version, created_at) in read::workflows(snapshot.db, snapshot.namespace)? {
                let definition = snapshot.documents.get(snapshot.db, snapshot.namespace, &workflow_id, version)?;
                let (title, definition_hash) = (definition.title.clone(), definition.hash);
                views.push(WorkflowView { workflow_id, version, title, definition_hash, created_at });
            }
            Ok(views)
        })
        .await
    }

    /// A document as it was uploaded: one version, or the newest; and what it says.
    pub async fn workflow(
        &self,
        workflow: &WorkflowId,
        version: Option<u32>,
    ) -> Read<(StoredDefinition, Arc<Definition>)> {
        let workflow = workflow.clone();
        self.read(move |snapshot| {
            let stored = read::definition(snapshot.db, snapshot.namespace, &workflow, version)?;
            let stored = stored.ok_or_else(|| ReadError::NoWorkflow(workflow.clone()))?;
            let definition = snapshot.documents.get(snapshot.db, snapshot.namespace, &workflow, stored.version)?;
            Ok((stored, definition))
        })
        .await
    }

    /// All versions of a workflow, the newest first, with how many runs each has.
    pub async fn versions(&self, workflow: &WorkflowId) -> Read<Vec<VersionView>> {
        let workflow = workflow.clone();
        self.read(move |snapshot| {
            let counts = read::counts_by_version(snapshot.db, snapshot.namespace, &workflow)?;
            let versions = read::versions(snapshot.db, snapshot.namespace, &workflow)?;
            if versions.is_empty() {
                return Err(ReadError::NoWorkflow(workflow));
            }
            let view = |(version, definition_hash, created_at)| {
                let runs = counts.get(&version).copied().unwrap_or(0);
                VersionView { version, definition_hash, created_at, runs }
            };
            Ok(versions.into_iter().map(view).collect())
        })
        .await
    }

    /// The document of a run, and all its rows, now or at a past instant: what a picture of it needs.
    pub async fn graph(&self, run_id: &RunId, at: Option<At>) -> Read<(Arc<Definition>, Vec<StepView>)> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let view = |step: &Arc<Step>| StepView::of(step, &definition);
            let steps: Vec<StepView> = match at {
                None => kept.steps()?.iter().map(view).collect(),
                Some(at) => {
                    let head = &kept.loaded.run.head;
                    let (then, _) = explain::run_at(&head.run_id, &head.namespace, &kept.log()?, at)?;
                    then.steps.values().flatten().map(view).collect()
                }
            };
            Ok((definition.clone(), steps))
        })
        .await
    }
}
