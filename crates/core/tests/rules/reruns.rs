//! Reruns: a new run with a link; the old one is never touched, and what would happen is said before.

use abide_core::contract::{FailureClass, RunState::*, StepState};
use abide_core::definition::Definition;
use abide_core::run::OriginKind;
use abide_core::run::command::{Ask, Rejection, Resolution, Start};
use abide_core::run::rerun::{Carried, RerunPlan, Source, origin, plan_rerun};
use abide_core::run::step::{ProofBy, Step};

use crate::given::*;

const FLOW: &str = r#"
workflow: w
steps:
  - { id: a, task: t.a }
  - { id: ok, approval: { approvers: [ana] } }
  - { id: pay, task: t.pay, effect: external }
  - { id: ship, task: t.ship }
"#;

fn failed_in_ship() -> Given {
    given(FLOW)
        .after([started(), claimed("a"), completed_with("a", "1"), approved_by("ana"), claimed("pay")])
        .after([received("pay", None, "ch_1", None), completed_with("pay", r#"{"id":"ch_1"}"#)])
        .after([claimed("ship"), failed("ship", FailureClass::Fatal)])
        .state(Failed)
}

fn rows(run: &Given) -> Vec<Step> {
    run.memory.rows.values().map(|row| (**row).clone()).collect()
}

fn plan(run: &Given, target: &Definition, from: Option<&str>, new_input: bool) -> Result<RerunPlan, Rejection> {
    let rows = rows(run);
    let source = Source { head: run.head(), steps: &rows, definition: &run.definition };
    plan_rerun(source, target, from, new_input).map(|(plan, _)| plan)
}

/// Makes the new run that a plan describes.
fn rerun(run: &Given, from: Option<&str>) -> Given {
    let rows = rows(run);
    let source = Source { head: run.head(), steps: &rows, definition: &run.definition };
    let (_, paths) = plan_rerun(source, &run.definition, from, false).expect("a plan");
    let mut start = Start::with_input("{}");
    start.carried = rows
        .iter()
        .filter(|row| paths.contains(&row.path))
        .map(|row| {
            let payload = |reference: &Option<abide_core::run::step::Ref>| {
                reference.as_ref().and_then(|reference| run.memory.payloads.get(&reference.name).cloned())
            };
            Carried::of(row, &run.definition, (payload(&row.input), payload(&row.output)), &run.head().run_id)
                .with_results(row, |result| run.memory.payloads.get(&result.name).cloned())
        })
        .collect();
    start.origin = Some(origin(run.head(), OriginKind::Rerun, from));
    let mut again = given(FLOW);
    again.definition = run.definition.clone();
    again.after([Act::Start(Box::new(start))])
}

#[test]
fn a_retry_carries_what_was_completed_and_executes_the_rest() {
    let run = failed_in_ship();
    let expected = RerunPlan {
        carried: vec!["a".into(), "ok".into(), "pay".into()],
        executed: vec!["ship".into()],
        receipts_reused: vec!["pay".into()],
        ..RerunPlan::default()
    };
    assert_eq!(plan(&run, &run.definition, None, false), Ok(expected));
    let again = rerun(&run, None).state(Queued).step_is("pay", StepState::Completed).step_is("ship", StepState::Issued);
    assert_eq!(again.row("pay").proof.as_ref().map(|proof| proof.by), Some(ProofBy::Carried));
    let link = again.head().started.origin.clone().expect("a link");
    assert_eq!((link.run_id, link.seq), (Some(run.head().run_id.clone()), Some(run.head().seq)));
    again.after([claimed("ship"), completed("ship")]).state(Succeeded).log_holds();
}

#[test]
fn a_rerun_from_a_step_says_which_effects_would_happen_again() {
    let run = failed_in_ship();
    let plan = plan(&run, &run.definition, Some("ok"), false).expect("a plan");
    assert_eq!(plan.executed, ["ok", "pay", "ship"]);
    assert_eq!(plan.effects_repeated, ["pay"]);
    assert_eq!(plan.approvals_needed, ["ok"]);
}

#[test]
fn an_approval_holds_only_for_what_was_approved() {
    let run = failed_in_ship();
    let plan = plan(&run, &run.definition, None, true).expect("a plan");
    assert_eq!(plan.approvals_needed, ["ok"]);
    assert!(plan.effects_repeated.contains(&"pay".to_owned()), "what comes after it is executed again too");
}

#[test]
fn steps_that_another_version_writes_differently_are_listed() {
    let run = failed_in_ship();
    let newer = Definition::parse(&FLOW.replace("t.ship", "t.ship_fast")).expect("a workflow").definition;
    assert_eq!(plan(&run, &newer, None, false).expect("a plan").changed, ["ship"]);
}

#[test]
fn a_run_that_is_open_or_a_step_that_is_not_there_cannot_be_rerun() {
    let open = steps(&["a"]);
    assert_eq!(plan(&open, &open.definition, None, false).expect_err("open").code(), "run-not-terminal");
    let run = failed_in_ship();
    assert_eq!(plan(&run, &run.definition, Some("nowhere"), false).expect_err("unknown").code(), "validation-failed");
}

#[test]
fn what_was_undone_is_executed_again() {
    let saga = "workflow: w\nsaga: true\nsteps: [ { id: a, task: t.a, compensate: t.undo }, { id: b, task: t.b } ]";
    let run = given(saga)
        .after([started(), claimed("a"), completed("a"), claimed("b"), failed("b", FailureClass::Fatal)])
        .after([claimed("a.undo"), completed("a.undo")])
        .state(Failed);
    assert_eq!(plan(&run, &run.definition, None, false).expect("a plan").executed, ["a", "b"]);
}

#[test]
fn the_old_run_is_never_touched() {
    let run = failed_in_ship();
    let before = run.memory.log.len();
    rerun(&run, Some("pay"));
    assert_eq!(run.memory.log.len(), before);
    run.when(resolve("ship", Resolution::Skip)).then_rejected("run-terminal").log_holds();
}

#[test]
fn a_carried_step_keeps_what_its_effects_gave_back_and_its_undo_gets_it() {
    let document = "workflow: w\nsaga: true\nsteps: [ { id: book, task: t.book, compensate: t.unbook }, { id: pay, task: t.pay } ]";
    let ended = given(document)
        .after([started(), claimed("book"), intended("book", "seat"), intended("book", "meal")])
        .after([received("book", Some("seat"), "seat_4a", Some(r#"{"row":4}"#)), completed("book"), claimed("pay")])
        .after([asked(Ask::Cancel { reason: "later".into(), undo: Some(false), grace: None }), stopped("pay")])
        .state(Canceled);
    let expected = RerunPlan {
        carried: vec!["book".into()],
        executed: vec!["pay".into()],
        receipts_reused: vec!["book".into()],
        ..RerunPlan::default()
    };
    assert_eq!(plan(&ended, &ended.definition, None, false), Ok(expected));
    rerun(&ended, None)
        .check(|run| {
            let [effect] = &run.row("book").effects[..] else { panic!("{:?}", run.row("book").effects) };
            let receipt = effect.receipt.as_ref().expect("a receipt");
            assert_eq!((effect.name.as_str(), receipt.external_id.as_deref()), ("seat", Some("seat_4a")));
        })
        .after([claimed("pay"), failed("pay", FailureClass::Fatal)])
        .check(|run| {
            let input = run.row("book").task.as_ref().map(|task| task.input.name.clone()).expect("an undo");
            let json = &run.memory.payloads[&input];
            assert!(json.contains(r#""external_id":"seat_4a","result":{"row":4}"#), "{json}");
        })
        .log_holds();
}

#[test]
fn a_step_whose_effects_happened_would_do_them_again() {
    given("workflow: w\nsteps: [ { id: book, task: t.book } ]")
        .after([started(), claimed("book"), intended("book", "seat"), received("book", Some("seat"), "seat_4a", None)])
        .after([failed("book", FailureClass::Fatal)])
        .check(|run| {
            let plan = plan(run, &run.definition, None, false).expect("a plan");
            assert_eq!(plan.effects_repeated, ["book"]);
        });
}
