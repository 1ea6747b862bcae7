//! Recovery by failure class; reconcile before retry.

use abide_core::contract::{FailureClass, FailureKind, ReasonType, RunState::*, StepState};
use abide_core::run::command::{Ask, Fault, Reply, Resolution};
use abide_core::run::step::ProofBy;
use abide_core::time::Span;

use crate::given::*;

const EXTERNAL: &str = "workflow: w\nsteps: [ { id: pay, task: t.pay, effect: external, reconcile: t.find, timeout: 20s }, { id: end, task: t.end } ]";
const NO_PROBE: &str = "workflow: w\nsteps: [ { id: pay, task: t.pay, effect: external } ]";

fn reason(run: &Given, path: &str) -> Option<ReasonType> {
    run.row(path).block.as_ref().map(|block| block.reason())
}

#[test]
fn transient_failures_back_off_and_then_fail() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, retry: { max_attempts: 2, jitter: 0 } } ]")
        .after([started(), claimed("a")])
        .when(failed("a", FailureClass::Transient))
        .then(["task.failed", "step.blocked", "run.retry_scheduled"])
        .check(|run| assert_eq!(run.row("a").block.as_ref().and_then(|b| b.until), Some(BEGIN + Span::from_secs(1))))
        .when(passed("1s"))
        .then(["task.issued", "run.queued"])
        .after([claimed("a")])
        .when(failed("a", FailureClass::Transient))
        .then(["task.failed", "step.failed", "workflow.failed", "run.failed"])
        .check(|run| assert_eq!((run.row("a").attempt, run.head().attempt), (2, 2)));
}

#[test]
fn a_rate_limit_waits_as_long_as_it_was_told_and_costs_no_attempt() {
    let limited = || {
        let class = Some(FailureClass::RateLimited);
        let retry_after = Some(Span::from_secs(90));
        failed_with("a", Fault { class, retry_after, message: "429".into(), ..Fault::default() })
    };
    let document = "workflow: w\nsteps: [ { id: a, task: t.a, retry: { max_attempts: 1, give_up_after: 2m } } ]";
    given(document)
        .after([started(), claimed("a"), limited()])
        .state(RetryScheduled)
        .check(|run| {
            assert_eq!(reason(run, "a"), Some(ReasonType::RateLimited));
            assert_eq!(run.row("a").block.as_ref().and_then(|b| b.until), Some(BEGIN + Span::from_secs(90)));
        })
        .after([passed("90s"), claimed("a"), limited(), passed("90s"), claimed("a")])
        .check(|run| assert_eq!(run.row("a").attempt, 1))
        .after([limited()])
        .state(Failed);
}

#[test]
fn two_different_workers_lost_on_one_input_are_a_poison_input() {
    steps(&["a"])
        .after([claimed_by("a", "w1"), lost("a"), claimed_by("a", "w2")])
        .when(lost("a"))
        .then(["task.lost", "step.blocked", "run.stalled", "step.blocked", "run.waiting_on_operator"])
        .check(|run| assert_eq!(reason(run, "a"), Some(ReasonType::PoisonInput)));
}

#[test]
fn workers_that_were_lost_across_stops_of_the_engine_are_no_poison_input() {
    let mut run = steps(&["a"]);
    for worker in ["w1", "w2", "w3"] {
        run = run.after([claimed_by("a", worker), skipped("1s")]);
        // The engine stops and is opened again: the answer to the claim may never have arrived.
        run.around.open_since = run.now;
        run = run.after([lost("a")]).state(Queued);
    }
    // Who was heard of since then did get the task.
    run = run.after([claimed_by("a", "w4"), lost("a"), claimed_by("a", "w5")]);
    run.around.open_since = run.now;
    run.after([skipped("1s"), heartbeat("a"), lost("a")]).state(WaitingOnOperator);
}

#[test]
fn the_last_attempt_lost_is_a_worker_crash() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, retry: { max_attempts: 1 } } ]")
        .after([started(), claimed("a"), lost("a")])
        .state(Failed)
        .check(|run| assert_eq!(run.head().failure.as_ref().map(|f| f.kind), Some(FailureKind::WorkerCrash)));
}

#[test]
fn hold_lets_a_lost_run_rest_in_stalled_with_a_way_out() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, recovery: { lost: hold } } ]")
        .after([started(), claimed("a")])
        .when(lost("a"))
        .then(["task.lost", "step.blocked", "run.stalled"])
        .state(Stalled)
        .when(retry_now())
        .then(["step.reset", "task.issued", "run.queued"]);
}

#[test]
fn a_lost_external_step_is_probed_and_found() {
    given(EXTERNAL)
        .after([started(), claimed("pay")])
        .when(passed("25s"))
        .then(["task.failed", "step.blocked", "run.retry_scheduled"])
        .when(passed("5s"))
        .then(["task.issued", "run.queued"])
        .step_is("pay", StepState::Reconciling)
        .after([claimed("pay.probe")])
        .when(completed_with("pay.probe", r#"{"found":true,"output":{"id":7}}"#))
        .then(["task.completed", "step.reconciled", "step.completed", "task.issued", "run.queued"])
        .output("pay", r#"{"id":7}"#)
        .check(|run| {
            assert_eq!(run.row("pay").proof.as_ref().map(|proof| proof.by), Some(ProofBy::Reconcile));
            assert_eq!(run.row("pay").attempt, 1, "a probe costs no attempt");
        });
}

#[test]
fn the_id_that_a_probe_found_is_a_receipt_and_the_undo_gets_it() {
    let document = r#"
workflow: w
saga: true
steps:
  - { id: pay, task: t.pay, effect: external, reconcile: t.find, compensate: t.refund }
  - { id: ship, task: t.ship }
"#;
    given(document)
        .after([started(), claimed("pay"), lost_by_time(), claimed("pay.probe")])
        .when(completed_with("pay.probe", r#"{"found":true,"external_id":"ch_7"}"#))
        .then(["task.completed", "step.reconciled", "effect.received", "step.completed", "task.issued", "run.queued"])
        .check(|run| {
            let receipt = run.row("pay").receipt.clone().expect("a receipt");
            assert_eq!(receipt.external_id.as_deref(), Some("ch_7"));
            assert!(run.story().contains(r#""external_id":"ch_7"}"#), "{}", run.story());
        })
        .after([claimed("ship"), failed("ship", FailureClass::Fatal)])
        .check(|run| {
            let undo = run.row("pay").task.as_ref().expect("an undo").input.name.clone();
            let input = &run.memory.payloads[&undo];
            assert!(input.contains(r#""external_id":"ch_7""#), "{input}");
        })
        .log_holds();
}

#[test]
fn the_probe_waits_for_the_old_lease_to_be_over() {
    given(EXTERNAL).after([started(), claimed("pay"), passed("20s")]).check(|run| {
        assert_eq!(run.row("pay").block.as_ref().and_then(|block| block.until), Some(BEGIN + Span::from_secs(30)));
    });
}

#[test]
fn an_absent_effect_is_tried_again_with_the_same_key() {
    let run = given(EXTERNAL).after([started(), claimed("pay"), lost_by_time()]);
    let key = key(&run);
    let run = run
        .after([claimed("pay.probe"), completed_with("pay.probe", r#"{"found":false}"#)])
        .step_is("pay", StepState::Issued)
        .check(|run| assert_eq!(run.row("pay").attempt, 2));
    assert_eq!(key, self::key(&run));
}

fn lost_by_time() -> Act {
    passed("30s")
}

fn key(run: &Given) -> abide_core::ids::Digest {
    abide_core::run::idempotency_key(run.head(), &"pay".into(), run.row("pay").group, None)
}

#[test]
fn half_an_effect_is_issued_again_with_its_id() {
    given(EXTERNAL)
        .after([started(), claimed("pay"), lost_by_time(), claimed("pay.probe")])
        .after([completed_with("pay.probe", r#"{"found":"partial","external_id":"ch_1"}"#)])
        .step_is("pay", StepState::Issued)
        .check(|run| {
            let receipt = run.row("pay").receipt.clone().expect("a receipt");
            assert_eq!(receipt.external_id.as_deref(), Some("ch_1"));
        });
}

#[test]
fn a_probe_that_cannot_tell_asks_a_person() {
    given(EXTERNAL)
        .after([started(), claimed("pay"), lost_by_time(), claimed("pay.probe")])
        .after([completed_with("pay.probe", r#"{"found":null}"#)])
        .state(WaitingOnOperator)
        .check(|run| assert_eq!(reason(run, "pay"), Some(ReasonType::OutcomeUnknown)))
        .after([resolve("pay", Resolution::Complete { output: Some("1".into()) })])
        .step_is("pay", StepState::Completed)
        .state(Queued);
}

#[test]
fn a_probe_that_says_abort_fails_the_step() {
    given(EXTERNAL)
        .after([started(), claimed("pay"), lost_by_time(), claimed("pay.probe")])
        .after([completed_with("pay.probe", r#"{"found":null,"abort":"the account is closed"}"#)])
        .state(Failed);
}

#[test]
fn a_lost_probe_is_issued_again() {
    given(EXTERNAL)
        .after([started(), claimed("pay"), lost_by_time(), claimed("pay.probe"), lost("pay.probe")])
        .after([passed("1s")])
        .step_is("pay", StepState::Reconciling)
        .state(Queued);
}

#[test]
fn without_a_probe_a_lost_external_step_asks_a_person() {
    given(NO_PROBE)
        .after([started(), claimed("pay")])
        .when(lost("pay"))
        .then(["task.lost", "step.blocked", "run.stalled", "step.blocked", "run.waiting_on_operator"])
        .check(|run| assert_eq!(reason(run, "pay"), Some(ReasonType::OutcomeUnknown)));
}

#[test]
fn a_receipt_with_a_result_completes_the_step_and_nothing_is_called_again() {
    given(NO_PROBE)
        .after([started(), claimed("pay"), received("pay", None, "ch_1", Some(r#"{"id":"ch_1"}"#))])
        .when(lost("pay"))
        .then(["task.lost", "step.blocked", "run.stalled", "step.completed", "workflow.completed", "run.succeeded"])
        .output("pay", r#"{"id":"ch_1"}"#)
        .check(|run| assert_eq!(run.row("pay").proof.as_ref().map(|proof| proof.by), Some(ProofBy::Receipt)));
}

#[test]
fn a_failure_with_another_class_says_that_nothing_without_a_receipt_happened() {
    given("workflow: w\nsteps: [ { id: mail, task: t.mail, effect: external } ]")
        .after([started(), claimed("mail"), intended("mail", "to-ana"), failed("mail", FailureClass::Transient)])
        .state(RetryScheduled)
        .check(|run| assert_eq!(run.row("mail").unknown_effects().count(), 0));
}

#[test]
fn validation_stays_and_asks_for_a_correction_that_resumes_the_step() {
    steps(&["a"])
        .after([claimed("a")])
        .when(failed("a", FailureClass::Validation))
        .then(["task.failed", "step.blocked", "run.waiting_on_operator"])
        .check(|run| assert_eq!(reason(run, "a"), Some(ReasonType::CorrectionRequired)))
        .after([resolve("a", Resolution::Correct { input: r#"{"fixed":true}"#.into() }), claimed("a")])
        .check(|run| {
            let input = run.row("a").input.clone().expect("an input");
            assert_eq!(&*run.memory.payloads[&input.name], r#"{"fixed":true}"#);
            assert_eq!(
                (run.row("a").attempt, run.row("a").group),
                (1, 1),
                "a correction costs no attempt, and is another key"
            );
        });
}

#[test]
fn verify_and_output_schema_are_what_proves_a_step() {
    let document = "workflow: w\nsteps: [ { id: a, task: t.a, verify: output.ok, output_schema: { type: object } } ]";
    let run = given(document).after([started(), claimed("a")]);
    run.clone().after([completed_with("a", r#"{"ok":true}"#)]).state(Succeeded).check(|run| {
        assert_eq!(run.row("a").proof.as_ref().map(|proof| proof.by), Some(ProofBy::Verify));
    });
    run.clone().after([completed_with("a", r#"{"ok":false}"#)]).state(WaitingOnOperator);
    run.after([completed_with("a", "7")]).state(WaitingOnOperator);
}

#[test]
fn a_permission_that_is_missing_blocks_and_escalates() {
    steps(&["a"])
        .after([claimed("a"), failed("a", FailureClass::Permission)])
        .state(WaitingOnOperator)
        .check(|run| assert_eq!(reason(run, "a"), Some(ReasonType::PermissionDenied)))
        .after([resolve("a", Resolution::Retry { new_key: false })])
        .state(Queued)
        .check(|run| assert_eq!(run.row("a").granted, 1));
}

#[test]
fn a_conflict_looks_again_at_what_is_required_and_retries_if_it_holds() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, requires: input.ok, with: { n: '${{ input.n }}' } } ]")
        .after([started_with(r#"{"ok":true,"n":1}"#), claimed("a")])
        .when(failed("a", FailureClass::Conflict))
        .then(["task.failed", "step.reset", "task.issued", "run.queued"])
        .check(|run| assert_eq!(run.row("a").attempt, 2));
}

#[test]
fn a_step_whose_requirement_does_not_hold_is_never_issued() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, requires: input.ok } ]")
        .when(started_with(r#"{"ok":false}"#))
        .then(["run.queued", "workflow.started", "step.entered", "step.blocked", "run.waiting_on_operator"])
        .check(|run| assert_eq!(reason(run, "a"), Some(ReasonType::PreconditionFailed)));
}

#[test]
fn fatal_fails_and_warn_lets_the_run_go_on() {
    steps(&["a"]).after([claimed("a"), failed("a", FailureClass::Fatal)]).state(Failed);
    given("workflow: w\nsteps: [ { id: a, task: t.a, on_failure: warn }, { id: b, task: t.b } ]")
        .after([started(), claimed("a")])
        .when(failed("a", FailureClass::Fatal))
        .then(["task.failed", "step.failed", "warning.added", "task.issued", "run.queued"])
        .after([claimed("b"), completed("b")])
        .state(CompletedWithWarnings)
        .check(|run| assert_eq!(run.head().warnings.count, 1));
}

#[test]
fn a_policy_can_be_overridden_per_class() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, recovery: { permission: fail } } ]")
        .after([started(), claimed("a"), failed("a", FailureClass::Permission)])
        .state(Failed);
}

#[test]
fn no_class_means_unknown_for_external_steps_and_transient_for_others() {
    let fault = || Fault { message: "boom".into(), ..Fault::default() };
    given(NO_PROBE).after([started(), claimed("pay"), failed_with("pay", fault())]).state(WaitingOnOperator);
    steps(&["a"]).after([claimed("a"), failed_with("a", fault())]).state(RetryScheduled);
}

#[test]
fn a_timeout_of_the_last_attempt_is_timed_out() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, timeout: 5s, retry: { max_attempts: 1 } } ]")
        .after([started(), claimed("a"), passed("5s")])
        .state(Failed)
        .check(|run| assert_eq!(run.head().failure.as_ref().map(|f| f.kind), Some(FailureKind::TimedOut)));
}

#[test]
fn an_operator_may_skip_or_fail_what_cannot_go_on() {
    let run = steps(&["a", "b"]).after([claimed("a"), failed("a", FailureClass::Permission)]);
    run.clone().after([resolve("a", Resolution::Skip)]).state(Queued).step_is("a", StepState::Skipped);
    run.clone().after([resolve("a", Resolution::Fail)]).state(Failed);
    run.when(resolve("b", Resolution::Skip)).then_rejected("not-found");
}

#[test]
fn a_new_key_is_made_only_when_an_operator_says_so() {
    let run = given(NO_PROBE).after([started(), claimed("pay"), lost("pay")]);
    let before = key(&run);
    let same = run.clone().after([resolve("pay", Resolution::Retry { new_key: false })]);
    assert_eq!(before, key(&same));
    assert_ne!(before, key(&run.after([resolve("pay", Resolution::Retry { new_key: true })])));
}

#[test]
fn a_named_effect_has_one_key_and_its_receipt_is_given_back() {
    use abide_core::run::command::Reply;
    let run = steps(&["a"]).after([claimed("a"), intended("a", "mail")]);
    let Ok(Reply::Effect { key: first, receipt: None }) = run.reply().cloned() else { panic!("an intent") };
    let run = run.after([received("a", Some("mail"), "m1", None), failed("a", FailureClass::Transient), passed("2s")]);
    let run = run.after([claimed("a"), intended("a", "mail")]);
    let Ok(Reply::Effect { key: again, receipt: Some(receipt) }) = run.reply().cloned() else { panic!("a receipt") };
    assert_eq!((first, receipt.external_id.as_deref()), (again, Some("m1")));
}

#[test]
fn what_is_past_its_deadline_cannot_be_retried_by_a_case() {
    let case = "on_result: [ { when: 'failure.class != \"validation\"', then: retry } ]";
    given(&format!(
        "workflow: w\nsteps: [ {{ id: a, task: t.a, deadline: 1m, retry: {{ first: 2m, max: 2m }}, {case} }} ]"
    ))
    .after([started(), claimed("a"), failed("a", FailureClass::Transient)])
    .state(RetryScheduled)
    .after([passed("1m")])
    .state(Failed);
}

#[test]
fn a_receipt_with_a_result_wins_over_every_failure_and_over_a_cancel() {
    let receipt = || received("pay", None, "ch_1", Some(r#"{"id":1}"#));
    let at_work = || given(NO_PROBE).after([started(), claimed("pay"), receipt()]);
    at_work().after([failed("pay", FailureClass::Transient)]).state(Succeeded);
    at_work().after([stopped("pay")]).state(Succeeded);
    at_work().after([cancel(), stopped("pay")]).state(Succeeded).step_is("pay", StepState::Completed);
    at_work().after([cancel(), passed("30s")]).step_is("pay", StepState::Completed);
}

#[test]
fn retries_of_a_child_are_counted_and_end() {
    let child = || child_ended("c", Failed, None);
    given("workflow: w\nsteps: [ { id: c, child: x, with: { n: 1 }, retry: { max_attempts: 2 }, recovery: { fatal: retry } } ]")
        .after([started(), child(), passed("1s"), child()])
        .state(Failed)
        .check(|run| assert_eq!(run.row("c").attempt, 2));
}

#[test]
fn a_probe_is_not_issued_in_a_pause() {
    given(EXTERNAL)
        .after([started(), claimed("pay"), pause(), failed("pay", FailureClass::OutcomeUnknown)])
        .state(Paused)
        .check(|run| assert!(run.row("pay").task.is_none()))
        .after([resume()])
        .step_is("pay", StepState::Reconciling)
        .state(Queued);
}

#[test]
fn a_loop_whose_list_cannot_be_read_is_opened_again_as_a_loop() {
    given("workflow: w\nsteps: [ { id: e, for_each: input.items, task: t.e } ]")
        .after([started_with(r#"{"items":7}"#)])
        .state(WaitingOnOperator)
        .when(resolve("e", Resolution::Correct { input: "[]".into() }))
        .then_rejected("cannot-resolve")
        .after([resolve("e", Resolution::Retry { new_key: false })])
        .state(WaitingOnOperator)
        .after([resolve("e", Resolution::Skip)])
        .state(Succeeded);
}

/// A report of the worker that cannot be taken.
fn unacceptable(run: &Given, path: &str) -> Act {
    let (code, message) = ("payload-too-large".into(), "the body has more than 1048576 bytes".into());
    asked(Ask::Unacceptable { holding: run.holding(path), code, message })
}

#[test]
fn a_report_that_cannot_be_taken_ends_the_attempt_with_its_cause() {
    let run = steps(&["a"]).after([claimed("a")]);
    let refused = unacceptable(&run, "a");
    run.when(refused).state(WaitingOnOperator).check(|run| {
        let failure = run.row("a").failure.as_ref().expect("a failure");
        assert_eq!((failure.class, failure.code.as_deref()), (FailureClass::Validation, Some("payload-too-large")));
        assert!(failure.message.contains("1048576"), "{}", failure.message);
        assert!(run.row("a").losses.is_empty(), "nobody was lost");
    });
}

#[test]
fn a_report_that_cannot_be_taken_is_answered_alike_when_it_is_repeated() {
    let run = steps(&["a"]).after([claimed("a")]);
    let refused = unacceptable(&run, "a");
    let again = unacceptable(&run, "a");
    run.after([refused]).when(again).then([]).then_reply(Reply::Replayed);
}

#[test]
fn a_report_of_an_external_step_that_cannot_be_taken_is_looked_for() {
    let document =
        |probe: &str| format!("workflow: pay\nsteps:\n  - {{ id: pay, task: charge, effect: external{probe} }}\n");
    let run = given(&document(", reconcile: { task: find }")).after([started(), claimed("pay")]);
    let refused = unacceptable(&run, "pay");
    run.when(refused).step_is("pay", StepState::Reconciling);
    let run = given(&document("")).after([started(), claimed("pay")]);
    let refused = unacceptable(&run, "pay");
    run.when(refused).state(WaitingOnOperator).check(|run| {
        let failure = run.row("pay").failure.as_ref().expect("a failure");
        let known = (failure.class, failure.code.as_deref());
        assert_eq!(known, (FailureClass::OutcomeUnknown, Some("payload-too-large")));
    });
}

#[test]
fn a_report_that_cannot_be_taken_does_not_undo_a_receipt() {
    let document = "workflow: pay\nsteps:\n  - { id: pay, task: charge, effect: external }\n";
    let run =
        given(document).after([started(), claimed("pay"), received("pay", None, "ch_1", Some("{\"id\":\"ch_1\"}"))]);
    let refused = unacceptable(&run, "pay");
    run.when(refused).state(Succeeded).output("pay", "{\"id\":\"ch_1\"}");
}

#[test]
fn a_report_of_a_lease_that_is_over_changes_nothing() {
    let run = steps(&["a"]).after([claimed("a")]);
    let refused = unacceptable(&run, "a");
    run.after([lost("a")]).when(refused).then_rejected("lease-lost");
}
