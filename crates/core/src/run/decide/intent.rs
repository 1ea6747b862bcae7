//! Effects that may have happened in the run that this one reruns: looked for before anything is issued.

use crate::contract::FailureClass;
use crate::ids::Path;
use crate::run::advance::{Decided, Draft};
use crate::run::command::Json;
use crate::run::event::Fact;
use crate::run::intent::{Found, Intent};
use crate::run::step::{ProofBy, Ref, Role};

impl Draft<'_> {
    /// What is to be looked for before this step acts for the first time.
    pub(super) fn intent_for(&self, path: &Path) -> Option<Intent> {
        let intent = self.run.head.started.intents.get(path)?;
        let acted = self.run.step(path.as_str()).is_some_and(|step| step.key_of.is_some() || step.group > 0);
        (!acted).then(|| intent.clone())
    }

    /// Takes the old intent over: its key, its receipts, and the question whether it happened.
    pub(super) fn resume_effect(&mut self, path: &Path, intent: Intent, input: Option<Ref>) -> Decided {
        let Intent { from, step_id, unknown, found, .. } = intent.clone();
        self.tell_of(path, Fact::EffectResumed { intent: Box::new(intent), input: input.clone() })?;
        let step = self.must_row(path)?;
        let (def, coded) = (self.spec(step), step.place.role == Role::Coded);
        if let Some(found) = found {
            return self.complete_from_intent(path, &found);
        }
        if unknown {
            let (this, hint) =
                (&self.run.head.run_id, if def.reconcile.is_some() { "" } else { " There is no probe." });
            let message = format!(
                "Run {from} ended without knowing whether {step_id} happened, and run {this} must not repeat it \
                 blindly.{hint}"
            );
            let failure = self.failure(path, FailureClass::OutcomeUnknown, message, step.attempt);
            return self.reconcile(path, failure.coded("unknown_before"), &def);
        }
        match input {
            Some(input) if !coded => self.issue_step(path, None, 1, input, None),
            _ => Ok(()),
        }
    }

    fn complete_from_intent(&mut self, path: &Path, found: &Found) -> Decided {
        let output = match &found.output {
            Some(output) => Some(Json::from(self.payload(&output.name)?)),
            None => None,
        };
        let why = format!("its worker answered at {}, too late for the run before this one", found.at);
        self.tell_of(path, Fact::StepReconciled { verdict: "found".into(), why, external_id: None })?;
        self.complete_step(path, output, ProofBy::Reconcile)
    }
}
