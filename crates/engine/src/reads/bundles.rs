//! Everything of one run in one piece: for support, and from the archive.

use abide_core::explain::{self, Explanation, Record, Surroundings};
use abide_core::ids::{Digest, RunId};
use abide_core::run::event::Record as EventRecord;
use abide_core::time::Timestamp;
use serde::Serialize;

use super::steps::StepView;
use super::{Read, ReadError};
use crate::archive::{self, Bundle};
use crate::engine::Engine;

/// Everything about a run but the bytes of its payloads.
#[derive(Debug, Serialize)]
pub struct SupportBundle {
    /// The version of this form.
    pub abide: u16,
    pub made_at: Timestamp,
    pub record: Record,
    pub explanation: Explanation,
    pub steps: Vec<StepView>,
    pub payloads: Vec<PayloadView>,
    pub events: Vec<EventRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PayloadView {
    pub name: String,
    pub size: usize,
    pub digest: Digest,
}

impl Engine {
    /// A run of the archive, with everything that was kept of it.
    pub async fn archived(&self, run_id: &RunId) -> Read<Bundle> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let found = archive::find(snapshot.db, &snapshot.key(&run_id))?;
            found.map(|(_, bundle)| bundle).ok_or(ReadError::NoRun(run_id))
        })
        .await
    }

    /// Everything that is stored of a run.
    pub async fn bundle(&self, run_id: &RunId) -> Read<Bundle> {
        let run_id = run_id.clone();
        self.read(move |snapshot| snapshot.find(&run_id)?.bundle()?.ok_or(ReadError::NoRun(run_id))).await
    }

    /// One file about a run for whoever helps: record, explanation, steps, log; payloads as digests and sizes alone.
    pub async fn support_bundle(&self, run_id: &RunId) -> Read<SupportBundle> {
        let record = self.run(run_id).await?;
        let bundle = self.bundle(run_id).await?;
        let now = self.clock().now();
        let wanted = bundle.run();
        let definition = self.read(move |snapshot| Ok(snapshot.definition(&wanted)?)).await?;
        let run = bundle.run();
        let explanation = explain::explain(&run, &definition, &Surroundings::default(), now);
        let stored = |(name, bytes): &(String, String)| PayloadView {
            name: name.clone(),
            size: bytes.len(),
            digest: Digest::of(bytes.as_bytes()),
        };
        Ok(SupportBundle {
            abide: 1,
            made_at: now,
            record,
            explanation,
            steps: bundle.steps.iter().map(|step| StepView::of(step, &definition)).collect(),
            payloads: bundle.payloads.iter().map(stored).collect(),
            events: bundle.events,
        })
    }
}
