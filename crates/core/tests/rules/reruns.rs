//! Reruns: a new run with a link; the old one is never touched, and what would happen is said before.

use abide_core::contract::{FailureClass, RunState::*, StepState};
use abide_core::definition::Definition;
use abide_core::ids::{Digest, Namespace, RunId};
use abide_core::run::OriginKind;
use abide_core::run::command::{Ask, Rejection, Resolution, Start, StepBegin};
use abide_core::run::intent::{CarriedIntent, Intent};
use abide_core::run::memory::Memory;
use abide_core::run::rerun::{Carried, Planned, RerunPlan, Source, origin, plan_rerun};
use abide_core::run::step::{ProofBy, Step};
use abide_core::run::{LateAnswer, LateReport, key_of_step};

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
    plan_rerun(source, target, from, new_input).map(|planned| planned.plan)
}

/// Makes the new run that a plan describes.
fn rerun(run: &Given, from: Option<&str>) -> Given {
    let rows = rows(run);
    let source = Source { head: run.head(), steps: &rows, definition: &run.definition };
    let planned = plan_rerun(source, &run.definition, from, false).expect("a plan");
    let mut start = Start::with_input("{}");
    start.intents = intents(run, &rows, &planned);
    start.carried = rows
        .iter()
        .filter(|row| planned.carried.contains(&row.path))
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
    again.now = run.now;
    again.memory = Memory::new(RunId::from("run_01KDVZ3C000000000000000002"), Namespace::from("default"));
    again.after([Act::Start(Box::new(start))])
}

/// What the engine takes along of effects that nobody knows about.
fn intents(run: &Given, rows: &[Step], planned: &Planned) -> Vec<CarriedIntent> {
    let none = Vec::new();
    let of_row = |(row, path): &(abide_core::ids::Path, abide_core::ids::Path)| {
        let row = rows.iter().find(|known| known.path == *row).expect("a row");
        let late = run.around.late.get(&row.path).unwrap_or(&none);
        let (intent, payloads) = Intent::of(run.head(), row, late);
        CarriedIntent { path: path.clone(), intent, payloads }
    };
    let of_intent = |path: &abide_core::ids::Path| CarriedIntent {
        path: path.clone(),
        intent: run.head().started.intents[path].clone(),
        payloads: Default::default(),
    };
    planned.unknown.iter().map(of_row).chain(planned.unresumed.iter().map(of_intent)).collect()
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

const PAY: &str = "workflow: w\ndeadline: 2s\nsteps: [ { id: first, task: t.first }, { id: pay, task: t.pay, effect: external, lease: 1s, retry: { max_attempts: 1 }PROBE } ]";

/// A worker claimed `pay` and was never heard of again; the run failed without knowing whether the card was charged.
fn failed_without_knowing(probe: bool) -> Given {
    given(&PAY.replace("PROBE", if probe { ", reconcile: t.find" } else { "" }))
        .after([started(), claimed("first"), completed("first"), claimed("pay"), passed("3s")])
        .state(Failed)
        .check(|run| assert_eq!(run.head().failure.as_ref().expect("a failure").unknown_effects, ["pay"]))
}

fn key(run: &Given) -> Digest {
    key_of_step(run.head(), run.row("pay"), &"pay".into(), None)
}

#[test]
fn a_retry_probes_an_unknown_effect_under_its_old_key_before_anything_is_issued() {
    let ended = failed_without_knowing(true);
    assert_eq!(plan(&ended, &ended.definition, None, false).expect("a plan").effects_unknown, ["pay"]);
    let again = rerun(&ended, None).step_is("pay", StepState::Reconciling);
    assert_eq!(key(&again), key(&ended));
    again
        .clone()
        .after([claimed("pay.probe"), completed_with("pay.probe", r#"{"found":true,"output":1}"#)])
        .output("pay", "1")
        .state(Succeeded)
        .log_holds();
    // Nothing was executed here yet: its one attempt is still to come, under the old key.
    again
        .after([claimed("pay.probe"), completed_with("pay.probe", r#"{"found":false}"#)])
        .step_is("pay", StepState::Issued)
        .check(|run| assert_eq!((run.row("pay").attempt, key(run)), (1, key(&ended))))
        .after([claimed("pay"), completed("pay")])
        .state(Succeeded)
        .log_holds();
}

#[test]
fn without_a_probe_a_retry_asks_a_person_and_names_both_runs() {
    let ended = failed_without_knowing(false);
    let again = rerun(&ended, None).state(WaitingOnOperator).check(|run| {
        let message = &run.row("pay").block.as_ref().expect("a block").message;
        assert!(message.contains(ended.head().run_id.as_str()), "{message}");
        assert!(message.contains(run.head().run_id.as_str()), "{message}");
    });
    again
        .after([resolve("pay", Resolution::Retry { new_key: false })])
        .step_is("pay", StepState::Issued)
        .check(|run| assert_eq!(key(run), key(&ended)))
        .log_holds();
}

#[test]
fn a_new_key_is_only_made_when_an_operator_says_so() {
    let ended = failed_without_knowing(false);
    rerun(&ended, None)
        .after([resolve("pay", Resolution::Retry { new_key: true })])
        .check(|run| assert_ne!(key(run), key(&ended)));
}

#[test]
fn the_effect_stays_unknown_after_an_operator_failed_the_step_and_after_a_cancel() {
    let document = "workflow: w\nsteps: [ { id: pay, task: t.pay, effect: external RECOVERY } ]";
    for recovery in ["", ", recovery: { lost: hold, outcome_unknown: hold }"] {
        let lost = given(&document.replace("RECOVERY", recovery)).after([started(), claimed("pay"), lost("pay")]);
        for end in [resolve("pay", Resolution::Fail), cancel()] {
            let ended = lost.clone().after([end]);
            assert!(ended.memory.working.is_terminal(), "{}", ended.story());
            let again = rerun(&ended, None).state(WaitingOnOperator);
            assert_eq!(key(&again), key(&ended));
        }
    }
}

#[test]
fn a_rerun_of_a_rerun_still_looks_for_what_the_first_run_did() {
    let ended = failed_without_knowing(true);
    let second = rerun(&ended, Some("first")).after([cancel()]).state(Canceled);
    assert_eq!(plan(&second, &second.definition, None, false).expect("a plan").effects_unknown, ["pay"]);
    let third = rerun(&second, None).after([claimed("first"), completed("first")]);
    assert_eq!(key(&third.step_is("pay", StepState::Reconciling)), key(&ended));
}

#[test]
fn what_a_worker_said_too_late_for_the_old_run_counts_in_the_new_one() {
    let mut ended = failed_without_knowing(false);
    let epoch = ended.holding("pay").epoch;
    let said = LateReport::Result { output: r#"{"id":9}"#.into() };
    ended.around.late.insert("pay".into(), vec![LateAnswer { epoch, said, at: ended.now }]);
    rerun(&ended, None).output("pay", r#"{"id":9}"#).state(Succeeded).log_holds();
}

#[test]
fn named_effects_without_a_receipt_keep_their_keys() {
    let ended = given("workflow: w\nsteps: [ { id: mail, task: t.mail, retry: { max_attempts: 1 } } ]")
        .after([started(), claimed("mail"), intended("mail", "to-ana"), lost("mail")])
        .state(Failed);
    let again = rerun(&ended, None).step_is("mail", StepState::Issued);
    let key = |run: &Given| key_of_step(run.head(), run.row("mail"), &"mail".into(), Some("to-ana"));
    assert_eq!(key(&again), key(&ended));
}

#[test]
fn an_unknown_step_of_a_coded_body_is_looked_for_when_the_new_body_begins_it() {
    let begin = || StepBegin {
        step_id: "pay".into(),
        effect: abide_core::definition::EffectKind::External,
        reconcile: Some("t.find".into()),
        compensate: None,
        timeout: None,
        retry: None,
        input_digest: None,
    };
    let steps = |run: &Given| Ask::Steps {
        holding: run.holding("body"),
        done: vec![],
        begin: vec![begin()],
        wait: vec![],
        busy: false,
        beside: false,
    };
    let run = given("workflow: w\ncoded: { revision: \"1\" }").after([started(), claimed("body")]);
    let ask = steps(&run);
    let ended = run.after([asked(ask), cancel(), passed("31s")]).state(Canceled);
    let again = rerun(&ended, None).after([claimed("body")]);
    let ask = steps(&again);
    let again = again.after([asked(ask)]).step_is("pay", StepState::Reconciling);
    assert_eq!(
        key_of_step(again.head(), again.row("pay"), &"pay".into(), None),
        key_of_step(ended.head(), ended.row("pay"), &"pay".into(), None)
    );
}
