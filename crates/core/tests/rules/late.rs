//! Answers that come after a lease was over: until the step is issued again they prove that its effect happened.

use abide_core::contract::{FailureClass, RunState::*, StepState};
use abide_core::run::command::{Ask, Resolution};
use abide_core::run::step::ProofBy;
use abide_core::run::{LateAnswer, LateReport};

use crate::given::*;

const EXTERNAL: &str =
    "workflow: w\nsteps: [ { id: pay, task: t.pay, effect: external, reconcile: t.find }, { id: end, task: t.end } ]";
const NO_PROBE: &str = "workflow: w\nsteps: [ { id: pay, task: t.pay, effect: external } ]";

impl Given {
    /// A worker answers although its lease is over: the answer is refused and kept beside the log, and the run is looked at.
    fn late(mut self, path: &'static str, act: Act) -> Given {
        let epoch = self.holding(path).epoch;
        let said = match &act {
            Act::Complete(_, output, _) => LateReport::Result { output: output.as_str().into() },
            Act::Fail(_, fault) => {
                LateReport::Failure { class: fault.class, code: fault.code.clone(), message: fault.message.clone() }
            }
            Act::Effect(_, name, id, result) => LateReport::Receipt {
                name: name.map(Into::into),
                external_id: id.map(Into::into),
                result: result.map(Into::into),
            },
            other => panic!("{other:?} is no answer"),
        };
        self = self.when(act).then_rejected("lease-lost");
        self.around.late.entry(path.into()).or_default().push(LateAnswer { epoch, said, at: self.now });
        if self.memory.working.is_terminal() { self } else { self.when(asked(Ask::Wake)) }
    }
}

fn paid_late(run: Given) -> Given {
    run.late("pay", completed_with("pay", r#"{"id":9}"#))
}

fn is_found(run: Given) {
    run.step_is("pay", StepState::Completed)
        .output("pay", r#"{"id":9}"#)
        .check(|run| assert_eq!(run.row("pay").proof.as_ref().map(|proof| proof.by), Some(ProofBy::Reconcile)))
        .log_holds();
}

#[test]
fn an_answer_before_the_loss_was_noticed_counts_as_found() {
    is_found(paid_late(given(EXTERNAL).after([started(), claimed("pay"), skipped("31s")])));
}

#[test]
fn an_answer_after_the_probe_was_issued_counts_as_found() {
    is_found(paid_late(given(EXTERNAL).after([started(), claimed("pay"), lost("pay")])));
}

#[test]
fn an_answer_while_the_probe_is_executed_counts_as_found_whatever_the_probe_says() {
    for verdict in [r#"{"found":false}"#, r#"{"found":null}"#, r#"{"found":"partial","external_id":"x"}"#, "7"] {
        let run = given(EXTERNAL).after([started(), claimed("pay"), lost("pay"), claimed("pay.probe")]);
        is_found(paid_late(run).after([completed_with("pay.probe", verdict)]));
    }
}

#[test]
fn an_answer_after_the_probe_could_not_tell_counts_as_found() {
    let run = given(EXTERNAL)
        .after([started(), claimed("pay"), lost("pay"), claimed("pay.probe")])
        .after([completed_with("pay.probe", r#"{"found":null}"#)])
        .state(WaitingOnOperator);
    is_found(paid_late(run).state(Queued));
}

#[test]
fn an_answer_after_the_probe_found_nothing_counts_until_somebody_claims_the_next_attempt() {
    let absent = || {
        given(EXTERNAL)
            .after([started(), claimed("pay"), lost("pay"), claimed("pay.probe")])
            .after([completed_with("pay.probe", r#"{"found":false}"#)])
            .step_is("pay", StepState::Issued)
    };
    is_found(paid_late(absent()));
    let mut claimed_again = absent().after([claimed_by("pay", "w2")]);
    let late = LateAnswer {
        epoch: abide_core::ids::Epoch(1),
        said: LateReport::Result { output: "9".into() },
        at: claimed_again.now,
    };
    claimed_again.around.late.entry("pay".into()).or_default().push(late);
    claimed_again.when(asked(Ask::Wake)).then([]).step_is("pay", StepState::Running);
}

#[test]
fn an_answer_during_a_pause_counts_when_the_run_is_resumed() {
    let run = given(EXTERNAL).after([started(), claimed("pay"), lost("pay"), claimed("pay.probe"), pause()]);
    let run = run.after([completed_with("pay.probe", r#"{"found":false}"#)]).state(Paused);
    is_found(paid_late(run).state(Paused).after([resume()]));
}

#[test]
fn without_a_probe_an_answer_that_came_late_is_enough() {
    let run = given(NO_PROBE).after([started(), claimed("pay"), lost("pay")]).state(WaitingOnOperator);
    is_found(paid_late(run).state(Succeeded));
}

#[test]
fn a_late_receipt_with_a_result_counts_as_found() {
    let run = given(NO_PROBE).after([started(), claimed("pay"), lost("pay")]);
    is_found(run.late("pay", received("pay", None, "ch_9", Some(r#"{"id":9}"#))).state(Succeeded));
}

#[test]
fn a_late_receipt_without_a_result_counts_as_found_when_nobody_knows_the_result() {
    let lost_pay = |document| given(document).after([started(), claimed("pay"), lost("pay")]);
    let receipt = || received("pay", None, "ch_9", None);
    let id = |run: &Given| run.row("pay").receipt.as_ref().and_then(|receipt| receipt.external_id.clone());
    lost_pay(NO_PROBE)
        .late("pay", receipt())
        .state(Succeeded)
        .check(|run| assert_eq!(id(run).as_deref(), Some("ch_9")))
        .log_holds();
    lost_pay(EXTERNAL)
        .late("pay", receipt())
        .step_is("pay", StepState::Reconciling)
        .after([claimed("pay.probe"), completed_with("pay.probe", r#"{"found":false}"#)])
        .step_is("pay", StepState::Completed)
        .check(|run| assert_eq!(id(run).as_deref(), Some("ch_9")))
        .log_holds();
}

#[test]
fn late_receipts_of_named_effects_are_in_the_ledger_of_the_next_attempt() {
    given("workflow: w\nsteps: [ { id: mail, task: t.mail } ]")
        .after([started(), claimed("mail"), intended("mail", "to-ana"), lost("mail")])
        .step_is("mail", StepState::Issued)
        .late("mail", received("mail", Some("to-ana"), "m_1", None))
        .check(|run| {
            let [effect] = &run.row("mail").effects[..] else { panic!("{:?}", run.row("mail").effects) };
            let receipt = effect.receipt.as_ref().expect("a receipt");
            assert_eq!((effect.name.as_str(), receipt.external_id.as_deref()), ("to-ana", Some("m_1")));
        })
        .log_holds();
}

#[test]
fn a_late_failure_that_says_nothing_happened_needs_no_probe() {
    let run = given(NO_PROBE).after([started(), claimed("pay"), skipped("31s")]);
    run.late("pay", failed("pay", FailureClass::Transient))
        .step_is("pay", StepState::Issued)
        .check(|run| assert_eq!(run.row("pay").attempt, 2))
        .log_holds();
}

#[test]
fn an_answer_for_an_old_key_does_not_count_for_a_new_one() {
    let run = given(NO_PROBE).after([started(), claimed("pay"), lost("pay")]);
    run.after([resolve("pay", Resolution::Correct { input: "{}".into() })])
        .late("pay", completed_with("pay", "9"))
        .step_is("pay", StepState::Issued)
        .after([claimed("pay"), lost("pay")])
        .state(WaitingOnOperator);
}

#[test]
fn a_late_undo_that_nobody_knew_about_counts_as_done() {
    let document = r#"
workflow: w
saga: true
steps:
  - { id: pay, task: t.pay, compensate: { task: t.refund, effect: external } }
  - { id: ship, task: t.ship }
"#;
    let mut run = given(document)
        .after([started(), claimed("pay"), completed("pay"), claimed("ship"), failed("ship", FailureClass::Fatal)])
        .after([claimed("pay.undo"), skipped("31s")]);
    let epoch = run.holding("pay.undo").epoch;
    run = run.when(completed("pay.undo")).then_rejected("lease-lost");
    let said = LateReport::Result { output: "{}".into() };
    run.around.late.entry("pay.undo".into()).or_default().push(LateAnswer { epoch, said, at: run.now });
    run.after([asked(Ask::Wake)]).step_is("pay", StepState::Compensated).state(Failed).log_holds();
}
