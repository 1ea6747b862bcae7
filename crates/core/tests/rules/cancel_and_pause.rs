//! Cancel with grace, closing, pause and resume, deadlines of the run.

use abide_core::contract::{FailureClass, FailureKind, RunState::*, StepState};
use abide_core::run::command::{Ask, BlockOn, Reply, Resolution};

use crate::given::*;

#[test]
fn a_cancel_with_nothing_under_way_is_immediate() {
    steps(&["a"]).when(cancel()).then(["cancel.asked", "task.canceled", "step.canceled", "run.canceled"]);
}

#[test]
fn a_cancel_under_a_lease_is_requested_first_and_the_worker_complies() {
    steps(&["a"])
        .after([claimed("a")])
        .when(cancel())
        .then(["cancel.asked", "run.cancel_requested"])
        .when(heartbeat("a"))
        .check(|run| assert!(matches!(run.reply(), Ok(Reply::Beat { stop: true, .. }))))
        .when(stopped("a"))
        .then(["task.canceled", "step.canceled", "run.canceled"]);
}

#[test]
fn work_that_finishes_before_it_stops_wins_the_race() {
    steps(&["a"]).after([claimed("a"), cancel(), completed("a")]).state(Succeeded);
    steps(&["a", "b"])
        .after([claimed("a"), cancel(), completed("a")])
        .state(Canceled)
        .step_is("a", StepState::Completed);
}

#[test]
fn when_the_grace_is_over_the_lease_is_fenced() {
    steps(&["a"])
        .after([
            claimed("a"),
            asked(Ask::Cancel { reason: "x".into(), undo: None, grace: Some(abide_core::time::Span::from_secs(5)) }),
        ])
        .when(passed("5s"))
        .then(["task.canceled", "step.canceled", "run.canceled"])
        .when(completed("a"))
        .then_rejected("lease-lost");
}

#[test]
fn a_lease_lost_while_canceling_ends_the_run() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, lease: 10s } ]")
        .after([started(), claimed("a"), cancel()])
        .when(lost("a"))
        .then(["task.lost", "step.canceled", "run.canceled"]);
}

#[test]
fn an_external_effect_that_nobody_knows_about_is_a_warning_of_the_cancel() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, effect: external } ]")
        .after([started(), claimed("a"), cancel(), stopped("a")])
        .state(Canceled)
        .check(|run| assert_eq!(run.head().warnings.newest[0].code, "outcome_unknown"));
}

#[test]
fn cancel_twice_is_once_and_after_the_end_it_is_refused() {
    let run = steps(&["a"]).after([claimed("a"), cancel()]);
    run.clone().when(cancel()).then([]).then_reply(Reply::Replayed);
    run.after([stopped("a")]).when(cancel()).then_rejected("run-terminal");
}

#[test]
fn after_the_end_nothing_is_accepted() {
    let ended = || steps(&["a"]).after([claimed("a"), completed("a")]);
    for act in [cancel(), pause(), resume(), retry_now(), signal("x", "1"), reconnect("drive")] {
        ended().when(act).then_rejected("run-terminal").state(Succeeded);
    }
    ended().when(asked(Ask::Wake)).then([]);
}

const BRANCHES: &str = "workflow: w\nsteps: [ { id: a, task: t.a, after: [] }, { id: b, task: t.b, after: [] }, { id: c, task: t.c, after: [] } ]";

#[test]
fn closing_waits_for_leases_and_keeps_what_they_finish() {
    given(BRANCHES)
        .after([started(), claimed_by("a", "w1"), claimed_by("b", "w2")])
        .when(failed("a", FailureClass::Fatal))
        .then(["task.failed", "step.failed", "workflow.failed", "task.canceled", "step.canceled"])
        .state(Running)
        .step_is("c", StepState::Canceled)
        .when(heartbeat("b"))
        .check(|run| assert!(matches!(run.reply(), Ok(Reply::Beat { stop: true, .. }))))
        .when(completed("b"))
        .then(["task.completed", "step.completed", "run.failed"]);
}

#[test]
fn closing_revokes_what_does_not_stop_in_time() {
    given(BRANCHES)
        .after([started(), claimed_by("a", "w1"), claimed_by("b", "w2"), skipped("10s"), heartbeat("b")])
        .after([failed("a", FailureClass::Fatal), skipped("20s"), heartbeat("b")])
        .when(passed("10s"))
        .then(["task.canceled", "step.canceled", "run.failed"]);
}

#[test]
fn the_runs_deadline_closes_it() {
    given("workflow: w\ndeadline: 1h\nsteps: [ { id: a, sleep: 2h } ]")
        .after([started()])
        .when(passed("1h"))
        .then(["workflow.failed", "step.canceled", "run.failed"])
        .check(|run| assert_eq!(run.head().failure.as_ref().map(|f| f.kind), Some(FailureKind::TimedOut)));
}

#[test]
fn a_steps_deadline_fails_it_or_warns() {
    let document =
        |at: &str| format!("workflow: w\nsteps: [ {{ id: a, task: t.a, deadline: 1m, at_deadline: {at} }} ]");
    given(&document("fail")).after([started(), passed("1m")]).state(Failed);
    given(&document("warn")).after([started(), passed("1m")]).state(CompletedWithWarnings);
}

#[test]
fn pause_withdraws_what_is_ready_and_resume_offers_it_again() {
    steps(&["a"])
        .when(pause())
        .then(["pause.set", "task.canceled", "step.reset", "run.paused"])
        .when(resume())
        .then(["pause.lifted", "task.issued", "run.queued"])
        .check(|run| assert_eq!(run.row("a").attempt, 1, "a pause costs no attempt"));
}

#[test]
fn a_leased_task_may_finish_in_a_pause_and_its_result_is_kept() {
    steps(&["a", "b"])
        .after([claimed("a"), pause()])
        .state(Paused)
        .when(completed_with("a", "1"))
        .then(["task.completed", "step.completed"])
        .state(Paused)
        .when(resume())
        .then(["pause.lifted", "task.issued", "run.queued"])
        .output("a", "1");
}

#[test]
fn a_task_that_was_leased_all_along_goes_on_when_the_pause_ends() {
    steps(&["a"]).after([claimed("a"), pause()]).when(resume()).then(["pause.lifted", "run.running"]);
}

#[test]
fn a_lease_lost_in_a_pause_is_recovered_after_the_resume() {
    steps(&["a"])
        .after([claimed("a"), pause()])
        .when(lost("a"))
        .then(["task.lost", "step.blocked"])
        .state(Paused)
        .when(resume())
        .then(["pause.lifted", "task.issued", "run.queued"])
        .check(|run| assert_eq!(run.row("a").attempt, 2));
}

#[test]
fn retries_and_sleeps_wait_for_the_resume() {
    given("workflow: w\nsteps: [ { id: a, sleep: 1m } ]")
        .after([started(), pause()])
        .when(passed("5m"))
        .then([])
        .state(Paused)
        .when(resume())
        .then(["pause.lifted", "step.completed", "workflow.completed", "run.succeeded"]);
}

#[test]
fn deadlines_act_in_a_pause() {
    given("workflow: w\ndeadline: 1h\nsteps: [ { id: a, task: t.a } ]")
        .after([started(), pause(), passed("1h")])
        .state(Failed);
}

#[test]
fn a_failure_in_a_pause_is_kept_and_acts_at_the_resume() {
    steps(&["a"])
        .after([claimed("a"), pause()])
        .when(failed("a", FailureClass::Fatal))
        .then(["task.failed", "step.failed"])
        .state(Paused)
        .when(resume())
        .then(["pause.lifted", "workflow.failed", "run.failed"]);
}

#[test]
fn answers_are_recorded_in_a_pause() {
    given("workflow: w\nsteps: [ { id: ok, approval: { approvers: [ana] } }, { id: a, task: t.a } ]")
        .after([started(), pause()])
        .when(approved_by("ana"))
        .then(["approval.given", "step.completed"])
        .state(Paused)
        .after([resume()])
        .state(Queued);
}

#[test]
fn one_step_may_pass_and_then_the_run_is_held_again() {
    steps(&["a", "b"])
        .after([pause()])
        .when(resume_one())
        .then(["pause.lifted", "task.issued", "run.queued"])
        .after([claimed("a")])
        .when(completed("a"))
        .then(["task.completed", "step.completed", "run.paused"])
        .after([resume_one(), claimed("b"), completed("b")])
        .state(Paused)
        .after([resume()])
        .state(Succeeded);
}

#[test]
fn a_run_can_start_paused_and_a_cancel_ends_the_pause() {
    let mut start = abide_core::run::command::Start::with_input("{}");
    start.paused = true;
    given("workflow: w\nsteps: [ { id: a, task: t.a } ]")
        .when(Act::Start(Box::new(start)))
        .then(["run.paused", "pause.set"])
        .when(cancel())
        .then(["cancel.asked", "run.canceled"]);
}

#[test]
fn resuming_what_is_not_held_is_refused() {
    steps(&["a"]).when(resume()).then_rejected("not-now");
}

const FINALLY_ASKS: &str = r#"
workflow: w
steps: [ { id: a, task: t.a } ]
finally: [ { id: tell, task: t.tell } ]
"#;

/// A canceled run whose `finally` step asks an operator.
fn canceled_and_asking() -> Given {
    let asks = BlockOn::Operator { reason: "which mailbox?".into(), recommended: None };
    given(FINALLY_ASKS).after([started(), cancel(), claimed("tell"), blocked("tell", asks)]).state(CancelRequested)
}

#[test]
fn a_canceled_run_whose_finally_step_waits_for_somebody_names_it() {
    let run = canceled_and_asking();
    let (step, block) = abide_core::run::held_up_by(&run.memory.working).expect("somebody must decide");
    assert_eq!((step.path.as_str(), block.message.as_str()), ("tell", "which mailbox?"));
    run.after([resolve("tell", Resolution::Complete { output: None })]).state(Canceled).log_holds();
}

#[test]
fn a_canceled_run_does_not_wait_for_somebody_longer_than_a_grace() {
    let run = canceled_and_asking().after([passed("29s")]).state(CancelRequested).after([passed("2s")]).state(Canceled);
    assert_eq!(run.head().warnings.newest[0].message, "nobody acted on it within the grace of the cancel");
    run.log_holds();
}
