//! Effects of unknown outcome that a rerun takes along: the new run looks for them, under their old key, before it issues
//! anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::command::Json;
use super::late::{late_denial, late_proof};
use super::step::{KeyOf, NamedEffect, Receipt, Ref, Resource, Step};
use super::{Head, LateAnswer, LateReport};
use crate::contract::StepState;
use crate::ids::{Path, PayloadName, RunId};
use crate::time::Timestamp;

/// What is known of an effect that may have happened in another run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    /// The run that ended without knowing, and its step.
    pub from: RunId,
    pub step_id: Path,
    /// What its idempotency key is made of: an earlier run than `from`, if that one had it from there.
    pub key_of: KeyOf,
    /// The step's own effect is unknown. Otherwise only named effects inside it are.
    pub unknown: bool,
    /// Its worker answered, too late for that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
    /// A worker whose lease was taken away may act until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<NamedEffect>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Resource>,
}

/// That the effect happened, as its worker said it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Ref>,
    pub at: Timestamp,
}

/// An intent on its way into the new run, with the payloads that it names.
#[derive(Clone, Debug)]
pub struct CarriedIntent {
    /// The step of the new run.
    pub path: Path,
    pub intent: Intent,
    /// By the names that they have in the old run.
    pub payloads: BTreeMap<PayloadName, Json>,
}

/// Whether a row ended without anybody knowing whether it, or an effect inside it, happened.
pub(super) fn is_unknown(row: &Step) -> bool {
    let done = matches!(row.state, StepState::Completed | StepState::CaseHandled | StepState::Compensated);
    row.unknown || !done && row.unknown_effects().next().is_some()
}

impl Intent {
    /// Of a row of the run that is rerun. What its worker said too late is known by now.
    pub fn of(head: &Head, row: &Step, late: &[LateAnswer]) -> (Intent, BTreeMap<PayloadName, Json>) {
        let own = || KeyOf { run_id: head.run_id.clone(), path: row.path.clone(), group: row.group };
        let mut intent = Intent {
            from: head.run_id.clone(),
            step_id: row.path.clone(),
            key_of: row.key_of.as_deref().filter(|_| row.group == 0).cloned().unwrap_or_else(own),
            unknown: row.unknown,
            found: None,
            lease_until: row.lease_until,
            // What the receipt's result said would have completed the step.
            receipt: row.receipt.clone().map(|receipt| Receipt { result: None, ..receipt }),
            effects: row.effects.clone(),
            resources: row.resources.clone(),
        };
        let late: Vec<&LateAnswer> = late.iter().filter(|late| late.epoch >= row.key_since).collect();
        let payloads = intent.learn(&late);
        (intent, payloads)
    }

    /// Takes in what came too late for the old run.
    fn learn(&mut self, late: &[&LateAnswer]) -> BTreeMap<PayloadName, Json> {
        let mut payloads = BTreeMap::new();
        let mut keep = |name: String, json: &Json| {
            let name = self.step_id.payload(&name);
            payloads.insert(name.clone(), json.clone());
            Ref { name, digest: crate::ids::Digest::of(json.as_bytes()), size: json.len() as u64 }
        };
        for (n, answer) in late.iter().enumerate() {
            let LateReport::Receipt { name: Some(name), external_id, result } = &answer.said else { continue };
            let result = result.as_ref().map(|json| keep(format!("late/{n}"), json));
            let receipt = Some(Receipt { external_id: external_id.clone(), result, at: answer.at });
            match self.effects.iter_mut().find(|effect| effect.name == *name) {
                Some(effect) if effect.receipt.is_none() => effect.receipt = receipt,
                Some(_) => {}
                None => {
                    self.effects.push(NamedEffect { name: name.clone(), intended_at: answer.at, receipt, void: false })
                }
            }
        }
        if let Some(proof) = late_proof(late.iter().copied()) {
            let output = proof.output.as_ref().map(|json| keep("late/found".into(), json));
            self.found = Some(Found { output, at: proof.at });
            if self.receipt.is_none() && proof.external_id.is_some() {
                self.receipt = Some(Receipt { external_id: proof.external_id, result: None, at: proof.at });
            }
        } else if late_denial(late.iter().copied()).is_some() {
            self.unknown = false;
        }
        payloads
    }

    /// Every payload that it names.
    pub fn refs(&self) -> impl Iterator<Item = &Ref> {
        let found = self.found.iter().filter_map(|found| found.output.as_ref());
        found.chain(self.effects.iter().filter_map(|effect| effect.receipt.as_ref()?.result.as_ref()))
    }

    pub(super) fn refs_mut(&mut self) -> impl Iterator<Item = &mut Ref> {
        let found = self.found.iter_mut().filter_map(|found| found.output.as_mut());
        found.chain(self.effects.iter_mut().filter_map(|effect| effect.receipt.as_mut()?.result.as_mut()))
    }
}
