//! What the worker of a coded body gets back: stored results, so that nothing is executed to find out where it is.

use abide_core::ids::Path;
use abide_core::run::command::{Ask, Reply};
use abide_core::run::key_of_step;
use abide_core::run::step::{Role, Step};

use super::open::Open;
use super::{Batch, Lane};
use crate::request::{BodyStep, TaskReceipt};
use crate::store::{RunKey, Store, StoreError, Stored};

impl<S: Store> Lane<S> {
    /// The steps that a report of a body named, as they are now.
    pub(super) fn steps_spoken_of(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        ask: &Ask,
        reply: &Reply,
    ) -> Stored<Vec<BodyStep>> {
        let Ask::Steps { done, begin, wait, .. } = ask else { return Ok(Vec::new()) };
        let open = batch.runs.get_mut(key).ok_or_else(|| StoreError::Failed("a run left its batch".into()))?;
        let waits = if let Reply::Body { waits, .. } = reply { waits.as_slice() } else { &[] };
        let done = done.iter().map(|one| &one.step_id);
        let named = done.chain(begin.iter().map(|one| &one.step_id)).chain(wait.iter().map(|one| &one.step_id));
        let mut steps: Vec<BodyStep> = Vec::new();
        for path in named {
            if steps.iter().any(|known| known.step_id == *path) {
                continue;
            }
            if let Some(step) = self.row(open, path)? {
                let after = waits.iter().find(|(of, _)| of == path).map(|(_, after)| after.millis());
                steps.push(BodyStep { retry_after_ms: after, ..self.body_step(open, &step)? });
            }
        }
        Ok(steps)
    }

    /// The receipt of the effect that a worker asked about, with what its result says.
    pub(super) fn receipt_in(
        &mut self,
        batch: &Batch,
        key: &RunKey,
        ask: &Ask,
        reply: &Reply,
    ) -> Stored<Option<TaskReceipt>> {
        let (Ask::Effect { name, .. }, Reply::Effect { receipt: Some(receipt), .. }) = (ask, reply) else {
            return Ok(None);
        };
        let Some(open) = batch.runs.get(key) else { return Ok(None) };
        self.receipt(open, name.clone(), receipt).map(Some)
    }

    /// Everything that the body has stored.
    pub(super) fn stored_steps(&mut self, open: &mut Open) -> Stored<Vec<BodyStep>> {
        // What this batch has changed is newer than what the store has.
        let mut rows: std::collections::BTreeMap<Path, std::sync::Arc<Step>> =
            self.store.load_steps(open.no)?.into_iter().map(|step| (step.path.clone(), step)).collect();
        for (path, step) in &open.run.steps {
            if let Some(step) = step {
                rows.insert(path.clone(), step.clone());
            }
        }
        let coded = rows.values().filter(|step| step.place.role == Role::Coded);
        coded.map(|step| self.body_step(open, step)).collect()
    }

    fn row(&mut self, open: &mut Open, path: &Path) -> Stored<Option<std::sync::Arc<Step>>> {
        if let Some(known) = open.run.steps.get(path) {
            return Ok(known.clone());
        }
        let need = abide_core::run::Need::Step(path.clone());
        Ok(match self.store.load(open.no, &[need])?.pop() {
            Some(crate::store::Found::Step(_, step)) => step,
            _ => None,
        })
    }

    fn body_step(&mut self, open: &mut Open, step: &Step) -> Stored<BodyStep> {
        let output = match &step.output {
            Some(output) => Some(self.bytes(open, output)?),
            None => None,
        };
        Ok(BodyStep {
            step_id: step.path.clone(),
            state: step.state,
            output,
            failure: step.failure.clone(),
            attempt: step.attempt.max(1),
            idempotency_key: key_of_step(&open.run.head, step, &step.path, None),
            receipts: self.receipts(open, step)?,
            retry_after_ms: None,
            begun_at: step.since,
        })
    }
}
