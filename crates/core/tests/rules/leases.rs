//! Leases: who may write, for how long, and how the late are told.

use abide_core::contract::{FailureClass, RunState::*, StepState};
use abide_core::ids::Epoch;
use abide_core::run::command::{Actor, ApprovalAsked, Ask, BlockOn, Command, Fault, Holding, Reply, Report};
use abide_core::run::limits;
use abide_core::time::Span;

use crate::given::*;

#[test]
fn a_started_run_is_queued_and_offers_its_first_step() {
    given("workflow: w\nsteps: [ { id: a, task: t.a } ]")
        .when(started())
        .then(["run.queued", "workflow.started", "task.issued"])
        .state(Queued);
}

#[test]
fn a_claim_makes_the_run_running_under_a_lease() {
    steps(&["a"]).when(claimed("a")).then(["task.claimed", "run.running"]).state(Running).check(|run| {
        let lease = run.row("a").lease().expect("a lease").clone();
        assert_eq!((lease.owner.as_str(), lease.epoch, lease.window), ("w1", Epoch(1), Span::from_secs(30)));
    });
}

#[test]
fn every_claim_raises_the_epoch() {
    steps(&["a", "b"]).after([claimed("a"), completed("a"), claimed("b")]).check(|run| {
        assert_eq!(run.holding("b").epoch, Epoch(2));
    });
}

#[test]
fn only_one_of_two_workers_gets_a_task() {
    steps(&["a"]).after([claimed("a")]).when(claimed_by("a", "w2")).then_rejected("not-claimable");
}

#[test]
fn a_lease_that_the_document_demands_wins() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, lease: 2m } ]").after([started(), claimed("a")]).check(|run| {
        assert_eq!(run.row("a").lease().map(|lease| lease.window), Some(Span::from_secs(120)));
    });
}

#[test]
fn a_heartbeat_extends_the_lease_and_writes_no_event() {
    steps(&["a"])
        .after([claimed("a"), skipped("20s")])
        .when(heartbeat("a"))
        .then([])
        .after([skipped("20s")])
        .when(completed("a"))
        .then(["task.completed", "step.completed", "workflow.completed", "run.succeeded"]);
}

#[test]
fn expiry_is_strict_even_before_the_sweep() {
    steps(&["a"]).after([claimed("a"), skipped("30s")]).when(completed("a")).then_rejected("lease-lost").state(Running);
}

#[test]
fn a_lost_lease_shows_as_a_stall_and_as_what_recovery_did() {
    steps(&["a"])
        .after([claimed("a")])
        .when(lost("a"))
        .then(["task.lost", "step.blocked", "run.stalled", "task.issued", "run.queued"])
        .state(Queued)
        .check(|run| assert_eq!((run.row("a").attempt, run.head().attempt), (2, 2)));
}

#[test]
fn takeover_names_both_owners() {
    steps(&["a"]).after([claimed_by("a", "w1"), lost("a"), claimed_by("a", "w2")]).check(|run| {
        let claim = run.memory.log.iter().rfind(|record| record.kind == "task.claimed").expect("a claim");
        assert!(
            claim.payload.get().contains(r#""owner":"w2""#) && claim.payload.get().contains(r#""previous_owner":"w1""#)
        );
    });
}

#[test]
fn a_zombie_cannot_finish_what_another_worker_has() {
    let run = steps(&["a"]).after([claimed_by("a", "w1")]);
    let stale = run.holding("a");
    let mut run = run.after([lost("a"), claimed_by("a", "w2")]);
    let ask = Ask::Complete { holding: stale, report: Report::default() };
    let said = run.ask(Actor::worker("w1"), ask).expect_err("it is stale");
    assert_eq!(said.to_string(), "lease 1 of a is over: lease 2 holds it; nothing was changed");
    run.state(Running).step_is("a", StepState::Running);
}

#[test]
fn a_heartbeat_after_the_lease_was_lost_is_refused() {
    steps(&["a"]).after([claimed("a"), lost("a")]).when(heartbeat("a")).then_rejected("lease-lost");
}

#[test]
fn the_same_answer_again_is_answered_alike_and_another_one_is_refused() {
    steps(&["a", "b"])
        .after([claimed("a"), completed_with("a", "1")])
        .when(completed_with("a", "1"))
        .then([])
        .then_reply(Reply::Replayed)
        .when(completed_with("a", "2"))
        .then_rejected("already-completed");
}

#[test]
fn a_repeated_claim_gets_the_same_lease() {
    let mut run = steps(&["a"]);
    let task_id = run.row("a").task.as_ref().map(|task| task.id.clone()).expect("a task");
    let claim =
        Ask::Claim { path: "a".into(), task_id, worker: "w1".into(), window: None, claim_id: Some("c1".into()) };
    let first = run.ask(Actor::worker("w1"), claim.clone()).expect("it is free");
    let again = run.ask(Actor::worker("w1"), claim).expect("its answer was lost");
    assert_eq!(first, again);
    assert_eq!(run.head().epoch, Epoch(1));
}

#[test]
fn time_in_which_no_engine_served_is_not_held_against_a_worker() {
    let mut run = steps(&["a"]).after([claimed("a"), skipped("10m")]);
    run.around.serving_since = run.now;
    run.when(asked(Ask::Wake)).then([]).state(Running).after([skipped("29s")]).when(completed("a")).then([
        "task.completed",
        "step.completed",
        "workflow.completed",
        "run.succeeded",
    ]);
}

#[test]
fn a_report_is_judged_by_when_it_came_not_by_when_the_engine_got_round_to_it() {
    let mut run = steps(&["a"]).after([claimed("a"), skipped("29s")]);
    run.around.heard_until = Some(run.now);
    let late = run.after([skipped("2s")]);
    // It waits in line while what is due is looked at.
    let late = late.when(asked(Ask::Wake)).then([]).state(Running);
    let mut extended = late.clone().when(heartbeat("a")).then([]).state(Running);
    extended.around.heard_until = None;
    extended.after([skipped("29s"), completed("a")]).state(Succeeded);
    // What comes after the end of the lease is late, however long it waited.
    let mut gone = late;
    gone.around.heard_until = Some(gone.now);
    gone.clone().when(completed("a")).then_rejected("lease-lost");
    gone.when(asked(Ask::Wake)).state(Queued).check(|run| assert_eq!(run.row("a").attempt, 2));
}

#[test]
fn an_attempt_does_not_time_out_in_a_time_in_which_no_engine_served() {
    let timed = "workflow: w\nsteps: [ { id: a, task: t.a, timeout: 1m, lease: 30s } ]";
    let mut run = given(timed).after([started(), claimed("a"), skipped("10m")]);
    run.around.serving_since = run.now;
    let back = run.when(asked(Ask::Wake)).then([]).state(Running);
    back.clone().after([skipped("29s"), completed("a")]).state(Succeeded);
    // Whoever lives and is not done after that has taken too long.
    back.after([skipped("29s"), heartbeat("a"), passed("1s")])
        .state(RetryScheduled)
        .check(|run| assert_eq!(run.row("a").attempt, 1));
}

#[test]
fn a_worker_that_goes_away_gives_its_task_back_without_cost() {
    steps(&["a"])
        .after([claimed("a")])
        .when(stopped("a"))
        .then(["task.canceled", "task.issued", "run.queued"])
        .check(|run| assert_eq!(run.row("a").attempt, 1));
}

#[test]
fn while_another_lease_lives_a_loss_is_no_stall_of_the_run() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, after: [] }, { id: b, task: t.b, after: [] } ]")
        .after([started(), claimed_by("a", "w1"), skipped("10s"), claimed_by("b", "w2")])
        .when(lost("a"))
        .then(["task.lost", "step.blocked", "task.issued"])
        .state(Running);
}

#[test]
fn a_wake_with_nothing_to_do_writes_nothing() {
    steps(&["a"]).after([claimed("a")]).when(asked(Ask::Wake)).then([]);
}

#[test]
fn a_command_to_a_run_that_does_not_exist_is_refused() {
    given("workflow: w\nsteps: [ { id: a, task: t.a } ]").when(cancel()).then_rejected("not-found");
}

#[test]
fn a_run_starts_once() {
    steps(&["a"]).when(started()).then_rejected("run-exists");
}

#[test]
fn answers_do_not_depend_on_when_they_are_asked_again() {
    let run = steps(&["a"]);
    let command = Command::new(Actor::system(), Ask::Wake);
    let once = abide_core::run::advance(&run.memory.working, &run.definition, &command, &run.around, run.now);
    let twice = abide_core::run::advance(&run.memory.working, &run.definition, &command, &run.around, run.now);
    assert_eq!(format!("{once:?}"), format!("{twice:?}"));
}

#[test]
fn a_lease_for_a_step_that_never_was_is_lost() {
    let mut run = steps(&["a"]);
    let holding = Holding { path: "nowhere".into(), task_id: "task_x".into(), epoch: Epoch(1) };
    let said = run.ask(Actor::worker("w"), Ask::Heartbeat { holding, progress: None }).expect_err("there is no such");
    assert_eq!(said.code(), "lease-lost");
}

fn fault(message: &str) -> Fault {
    Fault { class: Some(FailureClass::Transient), message: message.into(), ..Fault::default() }
}

#[test]
fn an_answer_given_again_is_answered_alike_and_another_one_is_refused() {
    let report = |output: &str| Report { output: Some(output.into()), ..Report::default() };
    let until = |secs| BlockOn::Timer { until: BEGIN + Span::from_secs(secs) };
    let run = steps(&["a"]).after([claimed("a")]);
    let holding = || run.holding("a");
    let answers = [
        (
            Ask::Complete { holding: holding(), report: report("1") },
            Ask::Complete { holding: holding(), report: report("2") },
        ),
        (Ask::Fail { holding: holding(), fault: fault("one") }, Ask::Fail { holding: holding(), fault: fault("two") }),
        (
            Ask::Block { holding: holding(), on: until(60), message: None },
            Ask::Block { holding: holding(), on: until(90), message: None },
        ),
        (Ask::Canceled { holding: holding() }, Ask::Complete { holding: holding(), report: report("1") }),
    ];
    for (answer, other) in answers {
        let answered = run.clone().after([asked(answer.clone())]);
        answered.clone().when(asked(answer.clone())).then([]).then_reply(Reply::Replayed);
        answered.clone().when(asked(other.clone())).then_rejected("already-completed");
        // Long after, when the run is somewhere else, the answer is still the same.
        answered.after([passed("5m")]).when(asked(answer)).then([]).then_reply(Reply::Replayed);
    }
}

#[test]
fn a_block_given_again_for_something_else_is_refused() {
    let approval = |subject: &str| {
        BlockOn::Approval(Box::new(ApprovalAsked {
            title: "Send?".into(),
            subject: subject.into(),
            approvers: vec![],
            quorum: 1,
            not_requester: false,
            deadline: None,
            at_deadline: None,
            form: None,
        }))
    };
    steps(&["a"])
        .after([claimed("a"), blocked("a", approval("1"))])
        .when(blocked("a", approval("2")))
        .then_rejected("already-completed");
}

#[test]
fn what_is_said_beside_a_payload_is_bounded_and_the_lease_stays() {
    let fault = |bytes: usize| Fault {
        class: Some(FailureClass::Transient),
        message: "broken".into(),
        code: None,
        retry_after: None,
        details: Some(serde_json::json!({ "stack": "x".repeat(bytes) })),
        tool: None,
        account: None,
    };
    let run = steps(&["a"]).after([claimed("a")]);
    let refused = run.when(failed_with("a", fault(limits::WORDS_BYTES))).then_rejected("payload-too-large");
    refused.state(Running).when(failed_with("a", fault(limits::WORDS_BYTES - 100))).state(RetryScheduled);
}

/// A claim whose answer did not get to its worker.
fn undelivered(run: &Given, path: &str) -> Act {
    asked(Ask::Undelivered { holding: run.holding(path) })
}

#[test]
fn a_claim_that_did_not_reach_its_worker_costs_neither_an_attempt_nor_trust() {
    let mut run = steps(&["a"]);
    for worker in ["w1", "w2", "w3", "w4"] {
        run = run.after([claimed_by("a", worker)]);
        let back = undelivered(&run, "a");
        run = run.when(back).then(["task.canceled", "task.issued", "run.queued"]).state(Queued);
        assert_eq!((run.row("a").attempt, run.row("a").losses.len()), (1, 0), "{worker}");
    }
    run.after([claimed("a"), completed("a")]).state(Succeeded).log_holds();
}

#[test]
fn a_claim_that_did_not_reach_its_worker_is_no_effect_of_unknown_outcome() {
    let document =
        "workflow: pay\nsteps:\n  - { id: pay, task: charge, effect: external, reconcile: { task: find } }\n";
    let run = given(document).after([started(), claimed("pay")]);
    let back = undelivered(&run, "pay");
    let run = run.when(back).state(Queued).step_is("pay", StepState::Issued);
    assert_eq!(run.row("pay").attempt, 1, "nothing was tried, so nothing is looked for");
}

#[test]
fn a_claim_of_a_run_that_cancels_ends_with_the_cancel_when_it_did_not_reach_its_worker() {
    let run = steps(&["a"]).after([claimed("a"), cancel()]).state(CancelRequested);
    let back = undelivered(&run, "a");
    run.when(back).state(Canceled).log_holds();
}
