//! What workers say after their leases are over: it changes nothing and is kept beside the log, as evidence.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::command::{Ask, Fault, Report, leaseless_asks};
use crate::contract::FailureClass;
use crate::ids::{Epoch, Path};
use crate::mask::Mask;
use crate::time::Timestamp;

/// What workers said after their leases were over, by step, oldest first.
pub type LateAnswers = BTreeMap<Path, Vec<LateAnswer>>;

/// What a worker said after its lease was over.
#[derive(Clone, Debug, PartialEq)]
pub struct LateAnswer {
    /// The lease that was over. Zero: an earlier version did not keep it.
    pub epoch: Epoch,
    pub said: LateReport,
    pub at: Timestamp,
}

/// The part of a late report that is evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LateReport {
    /// The task was done.
    Result { output: Arc<str> },
    /// The outside world answered for an effect: the step's own, or a named one.
    Receipt {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        external_id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Arc<str>>,
    },
    /// The task failed. A class other than `outcome_unknown` says that nothing without a receipt happened.
    Failure {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<FailureClass>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        message: String,
    },
}

impl LateReport {
    /// The evidence in a worker's report, by the row that it is about, without the sensitive values of the run. Most
    /// reports have none.
    pub fn of(ask: &Ask, mask: &Mask) -> Vec<(Path, LateReport)> {
        let null = || Arc::from("null");
        let of_result = |result: &Result<Report, Fault>| match result {
            Ok(report) => LateReport::Result { output: report.output.clone().unwrap_or_else(null) },
            Err(fault) => LateReport::of_fault(fault, mask),
        };
        match ask {
            Ask::Complete { holding, report } => {
                let output = report.output.clone().unwrap_or_else(null);
                vec![(holding.path.clone(), LateReport::Result { output })]
            }
            Ask::Fail { holding, fault } => vec![(holding.path.clone(), LateReport::of_fault(fault, mask))],
            Ask::Effect { external_id: None, result: None, .. } => Vec::new(),
            Ask::Effect { holding, name, external_id, result } => {
                let external_id = external_id.as_ref().map(|id| mask.id(id).into_owned());
                let (name, result) = (name.clone(), result.clone());
                vec![(holding.path.clone(), LateReport::Receipt { name, external_id, result })]
            }
            Ask::Steps { done, .. } => {
                done.iter().map(|done| (done.step_id.clone(), of_result(&done.result))).collect()
            }
            Ask::Heartbeat { .. }
            | Ask::Block { .. }
            | Ask::Callback { .. }
            | Ask::Canceled { .. }
            | Ask::Undelivered { .. }
            | Ask::Unacceptable { .. }
            | leaseless_asks!() => Vec::new(),
        }
    }

    fn of_fault(fault: &Fault, mask: &Mask) -> LateReport {
        let text = |text: &String| mask.text(text).into_owned();
        LateReport::Failure { class: fault.class, code: fault.code.as_ref().map(text), message: text(&fault.message) }
    }

    /// Only the first answer of a lease counts, and only the first receipt of an effect.
    pub fn repeats(&self, known: &LateReport) -> bool {
        match (self, known) {
            (LateReport::Receipt { name, .. }, LateReport::Receipt { name: before, .. }) => name == before,
            (LateReport::Receipt { .. }, _) | (_, LateReport::Receipt { .. }) => false,
            (
                LateReport::Result { .. } | LateReport::Failure { .. },
                LateReport::Result { .. } | LateReport::Failure { .. },
            ) => true,
        }
    }

    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        match self {
            LateReport::Result { output } => output.len(),
            LateReport::Receipt { name, external_id, result } => {
                text(name) + text(external_id) + result.as_ref().map_or(0, |result| result.len())
            }
            LateReport::Failure { code, message, .. } => text(code) + message.len(),
        }
    }
}

/// That an effect happened, as its worker said it.
pub(super) struct LateProof {
    pub output: Option<Arc<str>>,
    pub external_id: Option<String>,
    pub at: Timestamp,
}

/// What late answers prove about a step as a whole: a result before a receipt without one.
pub(super) fn late_proof<'a>(late: impl Iterator<Item = &'a LateAnswer>) -> Option<LateProof> {
    let mut without_result = None;
    for answer in late {
        let at = answer.at;
        match &answer.said {
            LateReport::Result { output } => {
                return Some(LateProof { output: Some(output.clone()), external_id: None, at });
            }
            LateReport::Receipt { name: None, external_id, result } => {
                let proof = LateProof { output: result.clone(), external_id: external_id.clone(), at };
                if proof.output.is_some() {
                    return Some(proof);
                }
                without_result = Some(proof);
            }
            LateReport::Receipt { name: Some(_), .. } | LateReport::Failure { .. } => {}
        }
    }
    without_result
}

/// When the worker said, too late, that it failed and nothing happened.
pub(super) fn late_denial<'a>(mut late: impl Iterator<Item = &'a LateAnswer>) -> Option<Timestamp> {
    let denies = |late: &&LateAnswer| match &late.said {
        LateReport::Failure { class, .. } => class.is_some_and(|class| class != FailureClass::OutcomeUnknown),
        LateReport::Result { .. } | LateReport::Receipt { .. } => false,
    };
    late.find(denies).map(|late| late.at)
}
