//! How many runs there are of what, and how long they took.

use std::collections::BTreeMap;

use abide_core::contract::RunState;
use abide_core::ids::WorkflowId;

use super::Read;
use crate::engine::Engine;
use crate::insights::Insights;
use crate::store::sqlite::{insights, read};

impl Engine {
    pub async fn counts(&self, workflow: Option<WorkflowId>) -> Read<BTreeMap<RunState, u64>> {
        self.read(move |snapshot| Ok(read::counts(snapshot.db, snapshot.namespace, workflow.as_ref())?)).await
    }

    /// How many runs of each workflow are kept.
    pub async fn counts_by_workflow(&self) -> Read<BTreeMap<WorkflowId, u64>> {
        self.read(|snapshot| Ok(read::counts_by_workflow(snapshot.db, snapshot.namespace)?)).await
    }

    /// How many open runs wait for the same thing, named by the run that is at the end of the chain.
    pub async fn counts_by_cause(&self) -> Read<BTreeMap<String, u64>> {
        self.read(|snapshot| Ok(read::counts_by_cause(snapshot.db, snapshot.namespace)?)).await
    }

    /// The numbers of every workflow that has any.
    pub async fn insights_by_workflow(&self) -> Read<BTreeMap<WorkflowId, Insights>> {
        self.read(move |snapshot| {
            let mut rows: BTreeMap<WorkflowId, Vec<_>> = BTreeMap::new();
            for (workflow, row) in insights::rows_of(snapshot.db, snapshot.namespace, None)? {
                rows.entry(workflow).or_default().push(row);
            }
            Ok(rows.into_iter().map(|(workflow, rows)| (workflow, Insights::of(&rows))).collect())
        })
        .await
    }

    /// Time in states, retries, stalls and the like, of one workflow or of all.
    pub async fn insights(&self, workflow: Option<WorkflowId>) -> Read<Insights> {
        self.read(move |snapshot| {
            Ok(Insights::of(&insights::rows(snapshot.db, snapshot.namespace, workflow.as_ref())?))
        })
        .await
    }
}
