//! Late answers: what a worker said after its lease was over proves that an effect happened, until the step is issued again.

use crate::contract::{ReasonType, StepState};
use crate::definition::EffectKind;
use crate::ids::Path;
use crate::run::advance::{Decided, Draft};
use crate::run::event::Fact;
use crate::run::late::{late_denial, late_proof};
use crate::run::step::{ProofBy, Receipt, Step, Wait};
use crate::run::{LateAnswer, LateReport};
use crate::time::Timestamp;

impl Draft<'_> {
    /// Answers that came late for the key that the step has now.
    fn late_of<'s>(&'s self, step: &Step) -> impl Iterator<Item = &'s LateAnswer> {
        let since = step.key_since;
        self.around.late.get(&step.path).into_iter().flatten().filter(move |late| late.epoch >= since)
    }

    /// Completes a step of which a worker said, too late, that it was done. False: nobody said so.
    ///
    /// A receipt without a result proves the effect too, but a probe may know the result: it is asked first
    /// (`also_without_result` is false).
    pub(super) fn complete_from_late(&mut self, path: &Path, also_without_result: bool) -> Decided<bool> {
        self.keep_late_receipts(path)?;
        let step = self.must_row(path)?;
        let Some(proof) = late_proof(self.late_of(step)) else { return Ok(false) };
        if proof.output.is_none() && !also_without_result {
            return Ok(false);
        }
        self.take_away(path, "its worker answered, after its lease was over")?;
        let verdict = Fact::StepReconciled {
            verdict: "found".into(),
            why: format!("its worker answered at {}, after its lease was over", proof.at),
            external_id: proof.external_id,
        };
        self.tell_of(path, verdict)?;
        self.complete_step(path, proof.output, ProofBy::Reconcile)?;
        Ok(true)
    }

    /// When the worker said, too late, that it failed and nothing happened.
    pub(super) fn late_denial(&self, step: &Step) -> Option<Timestamp> {
        late_denial(self.late_of(step))
    }

    /// Late receipts belong in the ledger like those that came in time: probes, undos and the next attempt get them.
    pub(super) fn keep_late_receipts(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let is_new = |name: &Option<String>| match name {
            None => step.receipt.is_none(),
            Some(name) => !step.effects.iter().any(|effect| effect.name == *name && effect.receipt.is_some()),
        };
        let receipts: Vec<_> = self
            .late_of(step)
            .filter_map(|late| {
                let LateReport::Receipt { name, external_id, result } = &late.said else { return None };
                is_new(name).then(|| (name.clone(), external_id.clone(), result.clone(), late.at))
            })
            .collect();
        for (name, external_id, result, at) in receipts {
            let payload = self.numbered(path, "receipt");
            let result = result.map(|json| self.store(payload, json));
            self.tell_of(path, Fact::EffectReceived { name, receipt: Receipt { external_id, result, at } })?;
        }
        Ok(())
    }

    /// Settles every step whose outcome nobody knew until its worker answered, too late.
    pub(super) fn settle_late(&mut self) -> Decided {
        if self.run.head.is_held() {
            return Ok(());
        }
        let paths: Vec<Path> = self.around.late.keys().cloned().collect();
        for path in paths {
            if self.run.step(path.as_str()).is_some_and(Step::is_open) {
                self.keep_late_receipts(&path)?;
                self.settle_late_step(&path)?;
            }
        }
        Ok(())
    }

    fn settle_late_step(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        // Who holds a lease answers for it; and only what may not be repeated is looked for.
        if step.is_leased() || self.spec(step).effect != EffectKind::External {
            return Ok(());
        }
        let asked = match step.block.as_ref().map(|block| &block.wait) {
            Some(Wait::Operator { reason, .. }) => *reason == ReasonType::OutcomeUnknown,
            _ => false,
        };
        let looked_for = matches!(step.state, StepState::Reconciling | StepState::Issued);
        if asked || looked_for {
            self.complete_from_late(path, asked)?;
        }
        Ok(())
    }

    /// Whether the worker of an undo said, too late, that it was done.
    pub(super) fn undone_late(&mut self, path: &Path) -> Decided<bool> {
        let is_done = |late: &LateAnswer| matches!(late.said, LateReport::Result { .. });
        let late = self.around.late.get(&path.undo()).and_then(|late| late.iter().find(|late| is_done(late)));
        let Some(at) = late.map(|late| late.at) else { return Ok(false) };
        let why = format!("its worker answered at {at}, after its lease was over");
        self.tell_of(&path.undo(), Fact::StepReconciled { verdict: "found".into(), why, external_id: None })?;
        self.undone(path, ProofBy::Reconcile)?;
        Ok(true)
    }
}
