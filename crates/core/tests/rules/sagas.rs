//! Sagas: completed steps are undone last first, and the end says truly whether all of them were.

use abide_core::contract::{FailureClass, FailureKind, ReasonType, RunState::*, StepState};
use abide_core::run::command::{Ask, Resolution};
use abide_core::run::step::TaskKind;
use abide_core::time::Span;

use crate::given::*;

const TRIP: &str = r#"
workflow: trip
saga: true
steps:
  - { id: flight, task: t.flight, effect: idempotent, compensate: t.cancel_flight }
  - { id: hotel, task: t.hotel, effect: idempotent, compensate: t.cancel_hotel }
  - { id: pay, task: t.pay, effect: external, compensate: t.refund, reconcile: t.find_payment }
"#;

fn booked() -> Given {
    given(TRIP).after([
        started(),
        claimed("flight"),
        completed("flight"),
        claimed("hotel"),
        completed("hotel"),
        claimed("pay"),
    ])
}

fn kind(run: &Given) -> Option<FailureKind> {
    run.head().failure.as_ref().map(|failure| failure.kind)
}

#[test]
fn a_failure_undoes_what_was_done_last_first_and_the_failed_step_not() {
    booked()
        .when(failed("pay", FailureClass::Fatal))
        .then([
            "task.failed",
            "step.failed",
            "workflow.failed",
            "compensation.started",
            "run.compensating",
            "step.compensating",
            "task.issued",
        ])
        .step_is("hotel", StepState::Compensating)
        .after([claimed("hotel.undo")])
        .when(completed("hotel.undo"))
        .then(["task.completed", "step.compensated", "step.compensating", "task.issued"])
        .after([claimed("flight.undo")])
        .when(completed("flight.undo"))
        .then(["task.completed", "step.compensated", "run.failed"])
        .check(|run| {
            assert_eq!(kind(run), Some(FailureKind::RolledBack));
            let cause = run.head().failure.as_ref().and_then(|failure| failure.cause.clone());
            assert_eq!(cause.map(|cause| cause.step_id), Some(Some("pay".into())));
            assert!(
                !run.memory.log.iter().any(|record| record.step_id.as_ref().is_some_and(|p| p.as_str() == "pay.undo"))
            );
        })
        .log_holds();
}

#[test]
fn an_undo_gets_the_steps_own_output_and_receipts() {
    given(TRIP)
        .after([started(), claimed("flight"), received("flight", None, "fl_1", None)])
        .after([completed_with("flight", r#"{"seat":"4A"}"#), claimed("hotel"), failed("hotel", FailureClass::Fatal)])
        .check(|run| {
            let input = run.row("flight").task.as_ref().map(|task| task.input.name.clone()).expect("an undo");
            let json = &run.memory.payloads[&input];
            assert!(json.contains(r#""output":{"seat":"4A"}"#) && json.contains(r#""external_id":"fl_1""#), "{json}");
        });
}

#[test]
fn a_lost_undo_shows_as_stalled_and_goes_on() {
    booked()
        .after([failed("pay", FailureClass::Fatal), claimed("hotel.undo")])
        .when(lost("hotel.undo"))
        .then(["task.lost", "step.blocked", "run.stalled", "task.issued", "run.compensating"])
        .after([claimed("hotel.undo"), completed("hotel.undo")])
        .step_is("hotel", StepState::Compensated);
}

#[test]
fn an_undo_that_cannot_go_on_asks_and_given_up_it_is_rollback_incomplete() {
    booked()
        .after([failed("pay", FailureClass::Fatal), claimed("hotel.undo")])
        .when(failed("hotel.undo", FailureClass::Fatal))
        .then(["task.failed", "step.blocked", "run.waiting_on_operator"])
        .check(|run| assert_eq!(run.row("hotel").block.as_ref().map(|b| b.reason()), Some(ReasonType::UndoFailed)))
        .when(resolve("hotel", Resolution::Skip))
        .then(["operator.resolved", "step.undo_failed", "step.compensating", "task.issued", "run.compensating"])
        .after([claimed("flight.undo"), completed("flight.undo")])
        .state(Failed)
        .check(|run| assert_eq!(kind(run), Some(FailureKind::RollbackIncomplete)));
}

#[test]
fn an_operator_may_retry_an_undo_or_say_that_it_is_done() {
    let asked = booked().after([
        failed("pay", FailureClass::Fatal),
        claimed("hotel.undo"),
        failed("hotel.undo", FailureClass::Fatal),
    ]);
    asked
        .clone()
        .after([resolve("hotel", Resolution::Retry { new_key: false }), claimed("hotel.undo")])
        .state(Compensating);
    asked.after([resolve("hotel", Resolution::Complete { output: None })]).step_is("hotel", StepState::Compensated);
}

#[test]
fn an_unknown_step_is_probed_before_the_first_undo_and_undone_if_it_happened() {
    booked()
        .after([failed("pay", FailureClass::OutcomeUnknown), claimed("pay.probe")])
        .after([completed_with("pay.probe", r#"{"found":null}"#)])
        .state(WaitingOnOperator)
        .when(resolve("pay", Resolution::Fail))
        .then([
            "operator.resolved",
            "step.failed",
            "workflow.failed",
            "compensation.started",
            "run.compensating",
            "task.issued",
        ])
        .after([claimed("pay.probe")])
        .when(completed_with("pay.probe", r#"{"found":true}"#))
        .then(["task.completed", "step.reconciled", "step.completed", "step.compensating", "task.issued"])
        .step_is("pay", StepState::Compensating);
}

#[test]
fn an_unknown_step_that_did_not_happen_is_not_undone() {
    booked()
        .after([failed("pay", FailureClass::OutcomeUnknown), claimed("pay.probe"), completed_with("pay.probe", "{}")])
        .after([
            resolve("pay", Resolution::Fail),
            claimed("pay.probe"),
            completed_with("pay.probe", r#"{"found":false}"#),
        ])
        .step_is("pay", StepState::Canceled)
        .step_is("hotel", StepState::Compensating);
}

#[test]
fn a_cancel_undoes_too_and_ends_as_canceled() {
    given(TRIP)
        .after([started(), claimed("flight"), completed("flight")])
        .when(cancel())
        .then([
            "cancel.asked",
            "task.canceled",
            "step.canceled",
            "compensation.started",
            "run.compensating",
            "step.compensating",
            "task.issued",
        ])
        .after([claimed("flight.undo"), completed("flight.undo")])
        .state(Canceled);
}

#[test]
fn a_cancel_that_shall_not_undo_ends_at_once() {
    given(TRIP)
        .after([started(), claimed("flight"), completed("flight")])
        .after([asked(Ask::Cancel { reason: "no".into(), undo: Some(false), grace: None })])
        .state(Canceled)
        .step_is("flight", StepState::Completed);
}

#[test]
fn while_it_undoes_a_run_cannot_be_canceled_or_paused() {
    let undoing = booked().after([failed("pay", FailureClass::Fatal)]);
    undoing.clone().when(cancel()).then_rejected("compensating");
    undoing.when(pause()).then_rejected("compensating");
}

#[test]
fn an_undo_that_fails_for_a_moment_is_tried_again() {
    booked()
        .after([failed("pay", FailureClass::Fatal), claimed("hotel.undo")])
        .when(failed("hotel.undo", FailureClass::Transient))
        .then(["task.failed", "step.blocked"])
        .state(Compensating)
        .when(passed("2s"))
        .then(["task.issued"]);
}

#[test]
fn every_item_of_a_fan_out_is_undone() {
    given("workflow: w\nsaga: true\nsteps: [ { id: book, for_each: input.seats, task: t.book, compensate: t.unbook }, { id: pay, task: t.pay } ]")
        .after([started_with(r#"{"seats":[1,2]}"#), claimed("book.0"), completed("book.0"), claimed("book.1"), completed("book.1")])
        .after([claimed("pay"), failed("pay", FailureClass::Fatal), claimed("book.1.undo"), completed("book.1.undo")])
        .after([claimed("book.0.undo"), completed("book.0.undo")])
        .state(Failed)
        .check(|run| assert_eq!(kind(run), Some(FailureKind::RolledBack)));
}

#[test]
fn without_a_saga_nothing_is_undone() {
    steps(&["a", "b"])
        .after([claimed("a"), completed("a"), claimed("b"), failed("b", FailureClass::Fatal)])
        .state(Failed)
        .check(|run| assert_eq!(kind(run), Some(FailureKind::StepFailed)));
}

#[test]
fn an_undo_has_a_ledger_of_its_own() {
    use abide_core::run::command::Reply;
    given(TRIP)
        .after([
            started(),
            claimed("flight"),
            received("flight", None, "fl_1", None),
            completed("flight"),
            claimed("hotel"),
        ])
        .after([failed("hotel", FailureClass::Fatal), claimed("flight.undo")])
        .when(Act::Effect("flight.undo", None, None, None))
        .check(|run| assert!(matches!(run.reply(), Ok(Reply::Effect { receipt: None, .. })), "{:?}", run.reply()));
}

/// A lease is 30 s long: for the rest of it a worker from which it was taken may still act, and nobody looks.
#[track_caller]
fn is_probed_only_after(run: Given, path: &str, left: u64) {
    let left = Span::from_secs(left);
    run.state(Compensating)
        .step_is(path, StepState::Reconciling)
        .check(|run| {
            assert!(run.row(path).task.is_none(), "probed at once\n{}", run.story());
            assert_eq!(run.row(path).block.as_ref().and_then(|b| b.until), Some(run.now + left), "{}", run.story());
            assert_eq!(run.memory.wake_at, Some(run.now + left));
        })
        .when(Act::Pass(left))
        .then(["task.issued"])
        .check(|run| assert_eq!(run.row(path).task.as_ref().map(|task| task.kind), Some(TaskKind::Reconcile)))
        .log_holds();
}

#[test]
fn after_the_grace_an_unknown_step_is_not_probed_before_its_old_lease_is_over() {
    let grace = Some(Span::from_secs(2));
    let run = booked().after([asked(Ask::Cancel { reason: "no".into(), undo: None, grace }), passed("2s")]);
    is_probed_only_after(run, "pay", 28);
}

#[test]
fn a_heartbeat_before_the_grace_ended_counts_for_how_long_the_old_worker_may_act() {
    let grace = Some(Span::from_secs(20));
    booked()
        .after([asked(Ask::Cancel { reason: "no".into(), undo: None, grace }), passed("10s"), heartbeat("pay")])
        .after([passed("10s")])
        .check(|run| {
            assert_eq!(run.row("pay").block.as_ref().and_then(|b| b.until), Some(BEGIN + Span::from_secs(40)))
        });
}

#[test]
fn a_step_past_its_deadline_is_not_probed_before_its_old_lease_is_over() {
    let document = "workflow: w\nsaga: true\nsteps: [ { id: pay, task: t.pay, effect: external, compensate: t.refund, reconcile: t.find, deadline: 5s } ]";
    let run = given(document).after([started(), claimed("pay"), passed("5s")]);
    is_probed_only_after(run, "pay", 25);
}

#[test]
fn a_step_that_a_jump_passed_is_not_probed_before_its_old_lease_is_over() {
    let document = r#"
workflow: back
saga: true
steps:
  - { id: start, task: t.start }
  - { id: side, after: [start], task: t.side, effect: external, compensate: t.unside, reconcile: t.find }
  - { id: check, after: [start], task: t.check, on_result: [ { when: output.again, then: { go_to: start, max_visits: 2 } } ] }
"#;
    let run = given(document)
        .after([started(), claimed("start"), completed("start"), claimed("side"), claimed("check"), skipped("3s")])
        .after([completed_with("check", r#"{"again":true}"#), claimed("start.v2")])
        .after([failed("start.v2", FailureClass::Fatal)]);
    is_probed_only_after(run, "side", 27);
}

#[test]
fn an_item_of_a_group_that_failed_is_not_probed_before_its_old_lease_is_over() {
    let document = "workflow: w\nsaga: true\nsteps: [ { id: book, for_each: input.seats, task: t.book, effect: external, compensate: t.unbook, reconcile: t.find, deadline: 5s } ]";
    let run = given(document).after([started_with(r#"{"seats":[1]}"#), claimed("book.0"), passed("5s")]);
    is_probed_only_after(run, "book.0", 25);
}

#[test]
fn an_undo_that_took_too_long_is_not_probed_before_its_old_lease_is_over() {
    let document = "workflow: w\nsaga: true\nsteps: [ { id: pay, task: t.pay, compensate: { task: t.refund, effect: external, reconcile: t.find, timeout: 5s } }, { id: end, task: t.end } ]";
    given(document)
        .after([started(), claimed("pay"), completed("pay"), claimed("end"), failed("end", FailureClass::Fatal)])
        .after([claimed("pay.undo")])
        .when(passed("5s"))
        .then(["task.failed", "step.blocked"])
        .state(Compensating)
        .when(passed("25s"))
        .then(["task.issued"])
        .check(|run| assert_eq!(run.row("pay").task.as_ref().map(|task| task.kind), Some(TaskKind::Reconcile)))
        .log_holds();
}

#[test]
fn what_its_worker_stopped_itself_is_probed_at_once() {
    booked()
        .after([cancel(), stopped("pay")])
        .check(|run| assert_eq!(run.row("pay").task.as_ref().map(|task| task.kind), Some(TaskKind::Reconcile)));
}

const REFUND: &str = r#"
workflow: refund
saga: true
steps:
  - id: pay
    task: t.pay
    reconcile: t.find_payment
    compensate: { task: t.refund, effect: external, retry: { max_attempts: 2, jitter: 0 }, reconcile: { task: t.find_refund, retry: { max_attempts: 2, jitter: 0 } } }
  - { id: end, task: t.end }
"#;

fn refunding() -> Given {
    given(REFUND).after([
        started(),
        claimed("pay"),
        completed("pay"),
        claimed("end"),
        failed("end", FailureClass::Fatal),
        claimed("pay.undo"),
    ])
}

fn attempts(run: &Given) -> Vec<(String, u32)> {
    let issued = run.memory.log.iter().filter(|record| record.kind == "task.issued");
    let side = issued.filter_map(|record| Some((record.step_id.as_ref()?.to_string(), record.attempt?)));
    side.filter(|(path, _)| path.contains(".undo")).collect()
}

#[test]
fn an_undo_and_its_probe_count_their_attempts_apart() {
    refunding()
        .after([failed("pay.undo", FailureClass::OutcomeUnknown), claimed("pay.undo.probe")])
        .after([failed("pay.undo.probe", FailureClass::Transient), passed("1s"), claimed("pay.undo.probe")])
        .after([completed_with("pay.undo.probe", r#"{"found":false}"#), claimed("pay.undo")])
        .check(|run| {
            let expected = [("pay.undo", 1), ("pay.undo.probe", 1), ("pay.undo.probe", 2), ("pay.undo", 2)]
                .map(|(p, n)| (p.to_owned(), n));
            assert_eq!(attempts(run), expected);
        })
        .after([completed("pay.undo")])
        .check(|run| assert_eq!(kind(run), Some(FailureKind::RolledBack)));
}

#[test]
fn the_probe_of_an_undo_is_tried_as_often_as_it_says_itself() {
    let failed_once = || [claimed("pay.undo.probe"), failed("pay.undo.probe", FailureClass::Transient), passed("2s")];
    refunding()
        .after([failed("pay.undo", FailureClass::OutcomeUnknown)])
        .after(failed_once())
        .state(Compensating)
        .after(failed_once())
        .state(WaitingOnOperator);
    refunding()
        .after([failed("pay.undo", FailureClass::OutcomeUnknown), claimed("pay.undo.probe"), lost("pay.undo.probe")])
        .after([claimed("pay.undo.probe"), lost("pay.undo.probe")])
        .state(WaitingOnOperator);
}

#[test]
fn an_undo_that_never_happens_is_given_up_after_its_attempts() {
    let absent = || {
        [
            failed("pay.undo", FailureClass::OutcomeUnknown),
            claimed("pay.undo.probe"),
            completed_with("pay.undo.probe", r#"{"found":false}"#),
        ]
    };
    refunding()
        .after(absent())
        .after([claimed("pay.undo")])
        .after(absent())
        .state(WaitingOnOperator)
        .check(|run| assert_eq!(run.row("pay").block.as_ref().map(|b| b.reason()), Some(ReasonType::UndoFailed)));
}

#[test]
fn a_probe_that_was_withdrawn_given_back_or_blocked_costs_no_attempt() {
    let auth = || failed("pay.probe", FailureClass::Auth);
    booked()
        .after([
            failed("pay", FailureClass::OutcomeUnknown),
            pause(),
            resume(),
            claimed("pay.probe"),
            stopped("pay.probe"),
        ])
        .after([claimed("pay.probe"), auth(), asked(Ask::Reconnect { tool: None, account: None, generation: None })])
        .check(|run| assert_eq!(run.row("pay").probe_attempt, 1));
}

const SEATS: &str = r#"
workflow: seats
saga: true
steps:
  - { id: book, for_each: input.seats, parallel: 1, join: { at_least: 1 }, task: t.book, effect: external, reconcile: t.find, compensate: t.unbook, recovery: { outcome_unknown: fail } }
  - { id: pay, task: t.pay }
"#;

/// Books seats one after the other; of all but the last nobody knows whether it was booked.
fn seats_booked(count: usize) -> Given {
    let seats = format!(r#"{{"seats":[{}]}}"#, vec!["1"; count].join(","));
    (0..count - 1)
        .map(|n| &*format!("book.{n}").leak())
        .fold(given(SEATS).after([started_with(&seats)]), |run, item| {
            run.after([claimed(item), failed(item, FailureClass::OutcomeUnknown)])
        })
}

fn probed(run: &Given) -> Vec<&'static str> {
    let probes = run.memory.working.open().filter(|step| step.task.is_some());
    probes.map(|step| &*step.path.probe().to_string().leak()).collect()
}

#[test]
fn a_head_does_not_grow_with_what_is_unknown() {
    let size = |count| serde_json::to_string(seats_booked(count).head()).expect("a head").len();
    let (few, many) = (size(30), size(300));
    assert!(many < few + 100, "{few} bytes with 29 unknown steps, {many} with 299");
}

#[test]
fn a_rollback_looks_at_a_few_unknown_steps_at_a_time_and_at_all_of_them_before_the_first_undo() {
    let run = seats_booked(25).check(|run| assert_eq!((run.head().unknown.count, run.head().unknown_left), (24, 24)));
    let mut run =
        run.after([claimed("book.24"), completed("book.24"), claimed("pay"), failed("pay", FailureClass::Fatal)]);
    let mut rounds = Vec::new();
    while run.head().unknown.count > 0 {
        let probes = probed(&run);
        rounds.push(probes.len());
        for probe in probes {
            run = run.after([claimed(probe), completed_with(probe, r#"{"found":false}"#)]);
        }
    }
    assert_eq!(rounds, [10, 10, 4]);
    run.step_is("book.24", StepState::Compensating)
        .after([claimed("book.24.undo"), completed("book.24.undo")])
        .check(|run| {
            let failure = run.head().failure.as_ref().expect("a failure");
            assert_eq!((failure.kind, failure.unknown_effects.len()), (FailureKind::RolledBack, 0));
        })
        .log_holds();
}

#[test]
fn a_cancel_names_the_newest_unknown_steps_and_counts_the_rest() {
    seats_booked(25)
        .after([asked(Ask::Cancel { reason: "no".into(), undo: Some(false), grace: None })])
        .state(Canceled)
        .check(|run| {
            assert_eq!(run.head().warnings.count, 21);
            let last = run.head().warnings.newest.last().map(|warning| warning.message.as_str());
            assert_eq!(last, Some("it is not known whether the effects of 4 more steps happened"));
        });
}
