//! What a run says when only an operator can move it.

use abide_core::contract::{FailureClass, RunState};
use abide_core::definition::EffectKind;
use abide_core::ids::Path;
use abide_core::run::command::{Actor, Ask, Report, StepBegin, StepDone};
use serde_json::json;

use crate::stage::Stage;
use crate::summaries::{CHARGE, says};

const EXTERNAL: &str = "
workflow: pay
steps:
  - { id: charge, task: payments.charge, effect: external }
";

#[test]
fn waiting_on_operator_says_what_is_asked() {
    let mut stage = Stage::new(EXTERNAL, json!({}));
    stage.claim("charge", "worker-3").later("1m");
    says(
        &stage,
        RunState::WaitingOnOperator,
        "Waiting on operator: nobody knows whether charge happened; mark it done or retry it.",
    );
    let asked = |class, message: &str| {
        let mut stage = Stage::new(CHARGE, json!({}));
        stage.claim("charge", "worker-3").fail("charge", class, message);
        stage.summary()
    };
    assert_eq!(
        asked(FailureClass::Validation, "amount must be positive"),
        "Waiting on operator: correct the input of charge: amount must be positive."
    );
    assert_eq!(
        asked(FailureClass::Permission, "scope payments:write is missing"),
        "Waiting on operator: charge is not permitted: scope payments:write is missing; grant it, then retry."
    );
    assert_eq!(
        asked(FailureClass::Conflict, "the order changed"),
        "Waiting on operator: the precondition of charge does not hold: the order changed."
    );
}

#[test]
fn waiting_on_operator_for_poison_counts_the_workers() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").later("1m").claim("charge", "worker-4").later("1m");
    says(
        &stage,
        RunState::WaitingOnOperator,
        "Waiting on operator: 2 workers were lost on the input of charge; correct or skip it.",
    );
}

#[test]
fn waiting_on_operator_because_the_body_changed_says_how() {
    let mut stage = Stage::new("{workflow: research, coded: {revision: \"3\"}}", json!({}));
    let begin = |step: &str| StepBegin {
        step_id: Path::from(step),
        effect: EffectKind::None,
        reconcile: None,
        compensate: None,
        timeout: None,
        retry: None,
        input_digest: None,
    };
    let steps =
        |holding, done, begin| Ask::Steps { holding, done, begin, wait: Vec::new(), busy: false, beside: false };
    stage.claim("body", "worker-3");
    let holding = stage.held["body"].clone();
    let done = vec![StepDone { step_id: Path::from("search"), begun_at: None, result: Ok(Report::default()) }];
    stage.must(Actor::worker("worker-3"), steps(holding.clone(), Vec::new(), vec![begin("search")]));
    stage.must(Actor::worker("worker-3"), steps(holding, done, Vec::new()));
    stage.later("1m").claim("body", "worker-4");
    let holding = stage.held["body"].clone();
    stage.must(Actor::worker("worker-4"), steps(holding, Vec::new(), vec![begin("summarise")]));
    says(
        &stage,
        RunState::WaitingOnOperator,
        "Waiting on operator: the body changed: it begins summarise without asking for 1 of the steps it once completed.",
    );
    let why = stage.handoff().recommended.unwrap().why;
    assert_eq!(why, "deploy the revision that began this run, then retry; or cancel it and rerun");
}

#[test]
fn waiting_on_operator_because_the_log_is_full_says_so() {
    let mut stage = Stage::new("{workflow: rest, steps: [{id: nap, sleep: 10m}]}", json!({}));
    let head = &mut stage.memory.working.head;
    (head.history_full, head.state) = (true, Some(RunState::WaitingOnOperator));
    let events = head.seq;
    let said = format!("Waiting on operator: the log has {events} events and takes nothing new; cancel it.");
    says(&stage, RunState::WaitingOnOperator, &said);
    assert_eq!(stage.json()["blocking_reason"]["type"], "history_full");
}
