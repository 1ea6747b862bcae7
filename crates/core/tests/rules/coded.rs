//! Coded workflows: steps match by name, results are handed back, a body that changed is noticed.

use abide_core::contract::{FailureClass, ReasonType, RunState::*, StepState};
use abide_core::definition::{AtDeadline, EffectKind, OnCancel};
use abide_core::ids::Path;
use abide_core::run::command::*;
use abide_core::time::Span;

use crate::given::*;

const CODED: &str = "workflow: research\nsaga: true\ncoded: { revision: '3' }";

fn at_work() -> Given {
    given(CODED).after([started(), claimed("body")])
}

pub fn begin(step: &str) -> StepBegin {
    StepBegin {
        step_id: Path::from(step),
        effect: EffectKind::None,
        reconcile: None,
        compensate: None,
        timeout: None,
        retry: None,
        input_digest: None,
    }
}

fn external(step: &str) -> StepBegin {
    StepBegin {
        effect: EffectKind::External,
        reconcile: Some("t.find".into()),
        compensate: Some("t.undo".into()),
        ..begin(step)
    }
}

fn done(step: &str, output: &str) -> StepDone {
    StepDone {
        step_id: Path::from(step),
        begun_at: None,
        result: Ok(Report { output: Some(output.into()), ..Report::default() }),
    }
}

pub fn said(run: Given, done: Vec<StepDone>, begin: Vec<StepBegin>, wait: Vec<StepWait>) -> Given {
    let holding = run.holding("body");
    run.when(asked(Ask::Steps { holding, done, begin, wait, busy: false, beside: false }))
}

fn child(wait: bool, on_cancel: OnCancel) -> CodedWait {
    CodedWait::Child {
        workflow: "sub".into(),
        version: None,
        input: "{}".into(),
        wait,
        on_cancel,
        deadline: Some(Span::from_secs(60)),
        at_deadline: Some(AtDeadline::Fail),
    }
}

fn waiting(id: &str, on: CodedWait) -> Vec<StepWait> {
    vec![StepWait { step_id: Path::from(id), on }]
}

fn next(run: &Given) -> Option<Next> {
    match run.reply() {
        Ok(Reply::Body { next, .. }) => Some(*next),
        _ => None,
    }
}

#[test]
fn a_body_is_offered_under_its_revision() {
    given(CODED).after([started()]).check(|run| {
        assert_eq!(run.row("body").task.as_ref().map(|task| task.handler.to_string()), Some("research@3".into()));
    });
}

#[test]
fn one_round_trip_ends_a_step_and_begins_the_next() {
    let run = said(at_work(), vec![], vec![begin("search")], vec![]).then(["step.entered"]);
    assert_eq!(next(&run), Some(Next::Continue));
    let run =
        said(run, vec![done("search", "1")], vec![begin("write")], vec![]).then(["step.completed", "step.entered"]);
    said(run, vec![done("write", "2")], vec![], vec![])
        .output("search", "1")
        .when(completed_with("body", r#"{"report":1}"#))
        .then(["task.completed", "step.completed", "workflow.completed", "run.succeeded"])
        .check(|run| assert_eq!(&*run.memory.payloads["output"], r#"{"report":1}"#));
}

#[test]
fn a_new_lease_of_the_body_asks_again_and_gets_the_stored_results() {
    let run = said(at_work(), vec![], vec![begin("search")], vec![]);
    let run = said(run, vec![done("search", "1")], vec![begin("write")], vec![]);
    let run = run.after([lost("body"), claimed_by("body", "w2")]);
    let run = said(run, vec![], vec![begin("search")], vec![]).then(["body.recalled"]);
    assert_eq!(next(&run), Some(Next::Continue));
    let run = said(run, vec![], vec![begin("write")], vec![]).then(["step.entered"]);
    said(run, vec![done("write", "2")], vec![], vec![]).after([completed("body")]).state(Succeeded).log_holds();
}

#[test]
fn a_body_that_begins_something_new_instead_of_what_it_did_has_changed() {
    let run = said(at_work(), vec![], vec![begin("search")], vec![]);
    let run = said(run, vec![done("search", "1")], vec![], vec![]).after([lost("body"), claimed_by("body", "w2")]);
    said(run, vec![], vec![begin("browse")], vec![])
        .then(["task.blocked", "step.blocked", "run.waiting_on_operator"])
        .check(|run| assert_eq!(run.row("body").block.as_ref().map(|b| b.reason()), Some(ReasonType::BodyChanged)));
}

fn beside(run: Given, begin: Vec<StepBegin>, busy: bool) -> Given {
    let holding = run.holding("body");
    run.when(asked(Ask::Steps { holding, done: vec![], begin, wait: vec![], busy, beside: true }))
}

#[test]
fn branches_that_come_back_in_another_order_are_the_same_body() {
    let both = said(at_work(), vec![], vec![begin("left"), begin("right")], vec![]);
    let stored = said(both, vec![done("left", "1"), done("right", "2")], vec![], vec![]);
    let again = stored.after([lost("body"), claimed("body")]);
    // The right branch is there first and goes on, before the left one has asked for anything.
    let again = beside(again, vec![begin("right"), begin("right_next")], false).then(["body.recalled", "step.entered"]);
    let again = beside(again, vec![begin("left")], true).then(["body.recalled"]);
    said(again, vec![done("right_next", "3")], vec![], vec![]).after([completed("body")]).state(Succeeded).log_holds();
}

#[test]
fn a_branch_that_is_missing_when_all_of_them_wait_means_that_the_body_changed() {
    let both = said(at_work(), vec![], vec![begin("left"), begin("right")], vec![]);
    let stored = said(both, vec![done("left", "1"), done("right", "2")], vec![], vec![]);
    let again = stored.after([lost("body"), claimed("body")]);
    let again = beside(again, vec![begin("right")], false);
    let ask = Ask::Steps {
        holding: again.holding("body"),
        done: vec![],
        begin: vec![],
        wait: vec![StepWait { step_id: "other".into(), on: CodedWait::Sleep { until: BEGIN + Span::from_secs(900) } }],
        busy: false,
        beside: true,
    };
    again.after([asked(ask)]).state(WaitingOnOperator).check(|run| {
        let message = &run.row("body").block.as_ref().expect("a block").message;
        assert_eq!(message, "The body changed: it begins other without asking for 1 of the steps it once completed.");
    });
}

#[test]
fn a_body_that_got_further_since_the_last_loss_is_no_poison_input() {
    let mut run = at_work();
    for n in 0..4 {
        let (step, worker) = (["s0", "s1", "s2", "s3"][n], ["w2", "w3", "w4", "w5"][n]);
        for before in &["s0", "s1", "s2", "s3"][..n] {
            run = said(run, vec![], vec![begin(before)], vec![]);
        }
        run = said(run, vec![], vec![begin(step)], vec![]);
        run = said(run, vec![done(step, "1")], vec![], vec![]).after([lost("body")]).state(Queued);
        run = run.after([claimed_by("body", worker)]);
    }
    assert_eq!(run.row("body").losses.len(), 1, "{}", run.story());
    // Now nothing is stored between two losses.
    let worst = given(CODED).after([started(), claimed_by("body", "w1"), lost("body"), claimed_by("body", "w2")]);
    worst.after([lost("body")]).state(WaitingOnOperator).log_holds();
}

#[test]
fn a_body_that_ends_without_asking_for_what_it_did_has_changed() {
    let run = said(at_work(), vec![], vec![begin("search")], vec![]);
    said(run, vec![done("search", "1")], vec![], vec![])
        .after([lost("body"), claimed_by("body", "w2")])
        .when(completed("body"))
        .then(["task.blocked", "step.blocked", "run.waiting_on_operator"]);
}

#[test]
fn another_input_for_a_stored_step_means_that_the_body_changed() {
    let with = |digest: &str| StepBegin { input_digest: Some(digest.into()), ..begin("search") };
    let run = said(at_work(), vec![], vec![with("x")], vec![]);
    let run = said(run, vec![done("search", "1")], vec![], vec![]).after([lost("body"), claimed_by("body", "w2")]);
    said(run, vec![], vec![with("y")], vec![]).state(WaitingOnOperator);
}

#[test]
fn a_failed_step_tells_the_body_when_to_try_again_and_then_hands_the_failure_back() {
    let failed = || StepDone {
        step_id: Path::from("search"),
        begun_at: None,
        result: Err(Fault { class: Some(FailureClass::Transient), message: "503".into(), ..Fault::default() }),
    };
    let retry = Some(abide_core::definition::RetryPolicy { max_attempts: 2, jitter: 0.0, ..Default::default() });
    let again = || StepBegin { retry, ..begin("search") };
    let run = said(at_work(), vec![], vec![again()], vec![]);
    let run = said(run, vec![failed()], vec![], vec![]).then(["step.blocked"]).state(Running);
    let waits = vec![(Path::from("search"), Span::from_secs(1))];
    let run = run.then_reply(Reply::Body { next: Next::Continue, waits });
    let run = said(run, vec![], vec![again()], vec![]).then(["step.entered"]);
    said(run, vec![failed()], vec![], vec![]).then(["step.failed"]).state(Running).step_is("search", StepState::Failed);
}

#[test]
fn an_external_step_that_was_under_way_when_the_body_was_lost_is_probed_first() {
    let run = said(at_work(), vec![], vec![external("pay")], vec![]).after([lost("body"), claimed_by("body", "w2")]);
    let run = said(run, vec![], vec![external("pay")], vec![]);
    assert_eq!(next(&run), Some(Next::Released));
    run.step_is("pay", StepState::Reconciling)
        .after([claimed("pay.probe"), completed_with("pay.probe", r#"{"found":true,"output":7}"#)])
        .output("pay", "7")
        .step_is("body", StepState::Issued);
}

#[test]
fn a_wait_gives_the_lease_back_and_its_end_issues_the_body_again() {
    let sleep = StepWait { step_id: Path::from("nap"), on: CodedWait::Sleep { until: BEGIN + Span::from_secs(60) } };
    let run = said(at_work(), vec![], vec![], vec![sleep.clone()]).then([
        "step.entered",
        "step.blocked",
        "task.blocked",
        "step.reset",
        "run.waiting_on_timer",
    ]);
    assert_eq!(next(&run), Some(Next::Released));
    let run = run.when(passed("60s")).then(["step.completed", "task.issued", "run.queued"]).after([claimed("body")]);
    let run = said(run, vec![], vec![], vec![sleep]).then(["body.recalled"]);
    assert_eq!(next(&run), Some(Next::Continue));
    run.after([completed("body")]).state(Succeeded);
}

#[test]
fn approvals_signals_and_children_of_a_body_are_waits_of_the_run() {
    let wait = |id: &str, on| vec![StepWait { step_id: Path::from(id), on }];
    let asked_for = ApprovalAsked {
        title: "Send?".into(),
        subject: "{}".into(),
        approvers: vec!["ana".into()],
        quorum: 1,
        not_requester: false,
        deadline: None,
        at_deadline: None,
        form: None,
    };
    said(at_work(), vec![], vec![], wait("ok", CodedWait::Approval(Box::new(asked_for))))
        .state(WaitingOnApproval)
        .when(approved_by("ana"))
        .then(["approval.given", "step.completed", "task.issued", "run.queued"]);
    let signal_wait = CodedWait::Signal {
        names: vec!["go".into()],
        mode: abide_core::definition::WaitMode::One,
        deadline: None,
        at_deadline: None,
    };
    said(at_work(), vec![], vec![], wait("go", signal_wait))
        .state(WaitingOnTool)
        .after([signal("go", "5")])
        .output("go", "5");
    let child = child(true, OnCancel::Cancel);
    said(at_work(), vec![], vec![], wait("kid", child))
        .state(WaitingOnChild)
        .after([child_ended("kid", Succeeded, Some("9"))])
        .output("kid", "9")
        .state(Queued);
}

#[test]
fn a_failed_body_undoes_its_steps() {
    let run = said(at_work(), vec![], vec![external("pay")], vec![]);
    said(run, vec![done("pay", "1")], vec![], vec![])
        .after([failed("body", FailureClass::Fatal)])
        .state(Compensating)
        .after([claimed("pay.undo"), completed("pay.undo")])
        .state(Failed);
}

#[test]
fn two_steps_of_one_request_need_different_names() {
    said(at_work(), vec![], vec![begin("x"), begin("x")], vec![]).then_rejected("duplicate-step");
}

#[test]
fn what_was_not_begun_cannot_be_done() {
    said(at_work(), vec![done("x", "1")], vec![], vec![]).then_rejected("not-begun");
}

#[test]
fn a_held_body_is_released_when_it_wants_to_begin_something() {
    let run = at_work().after([pause()]);
    let run = said(run, vec![], vec![begin("search")], vec![]).state(Paused);
    assert_eq!(next(&run), Some(Next::Released));
    run.after([resume()]).state(Queued);
}

#[test]
fn a_rerun_of_a_body_asks_again_for_what_was_carried() {
    use abide_core::run::rerun::{Carried, Planned, Source, plan_rerun};
    let run = said(at_work(), vec![], vec![begin("search")], vec![]);
    let run =
        said(run, vec![done("search", "1")], vec![], vec![]).after([failed("body", FailureClass::Fatal)]).state(Failed);
    let rows: Vec<_> = run.memory.rows.values().map(|row| (**row).clone()).collect();
    let source = Source { head: run.head(), steps: &rows, definition: &run.definition };
    let Planned { plan, carried: paths, .. } = plan_rerun(source, &run.definition, None, false).expect("a plan");
    assert_eq!(plan.carried, ["search"]);
    let mut start = Start::with_input("{}");
    start.carried = rows
        .iter()
        .filter(|row| paths.contains(&row.path))
        .map(|row| Carried::of(row, &run.definition, (None, Some("1".into())), &run.head().run_id))
        .collect();
    let again = given(CODED).after([Act::Start(Box::new(start)), claimed("body")]);
    let again = said(again, vec![], vec![begin("search")], vec![]).then(["body.recalled"]);
    said(again, vec![], vec![begin("write")], vec![]).then(["step.entered"]);
}

#[test]
fn a_step_whose_body_lost_its_lease_to_the_grace_is_not_probed_before_that_lease_is_over() {
    let grace = Some(Span::from_secs(2));
    said(at_work(), vec![], vec![external("pay")], vec![])
        .after([asked(Ask::Cancel { reason: "no".into(), undo: None, grace }), passed("2s")])
        .state(Compensating)
        .check(|run| assert!(run.row("pay").task.is_none(), "probed at once\n{}", run.story()))
        .when(passed("28s"))
        .then(["task.issued"])
        .log_holds();
}

#[test]
fn a_body_that_waits_for_a_connection_reconnected_in_the_meantime_goes_on() {
    let facts = abide_core::run::ConnectionFacts {
        generation: 1,
        reconnected_at: Some(BEGIN + Span::from_secs(5)),
        broken: false,
    };
    let run = at_work().connection("drive", "default", facts).after([skipped("10s")]);
    let auth = CodedWait::Auth { tool: "drive".into(), account: None };
    let wait = vec![StepWait { step_id: Path::from("drive"), on: auth }];
    let run = said(run, vec![], vec![], wait).then(["step.entered", "step.completed"]);
    assert_eq!(next(&run), Some(Next::Continue));
}

#[test]
fn a_body_that_was_released_and_did_not_hear_it_is_told_again() {
    let sleep = |secs| {
        vec![StepWait { step_id: Path::from("nap"), on: CodedWait::Sleep { until: BEGIN + Span::from_secs(secs) } }]
    };
    let run = said(at_work(), vec![], vec![], sleep(60));
    assert_eq!(next(&run), Some(Next::Released));
    let again = said(run.clone(), vec![], vec![], sleep(60)).then([]);
    assert_eq!(next(&again), Some(Next::Released));
    said(run.clone(), vec![], vec![], sleep(90)).then_rejected("already-completed");
    // Also when the body is at work again, under another lease.
    let holding = run.holding("body");
    let wait = sleep(60);
    run.after([passed("60s"), claimed_by("body", "w2")])
        .when(asked(Ask::Steps { holding, done: vec![], begin: vec![], wait, busy: false, beside: false }))
        .then([])
        .then_reply(Reply::Body { next: Next::Released, waits: vec![] });
}

#[test]
fn a_late_copy_of_a_failure_does_not_fail_the_next_attempt() {
    let fault = Fault { class: Some(FailureClass::Transient), message: "503".into(), ..Fault::default() };
    let run = said(at_work(), vec![], vec![begin("search")], vec![]);
    let begun_at = Some(run.memory.rows["search"].since);
    let failed = || vec![StepDone { step_id: Path::from("search"), begun_at, result: Err(fault.clone()) }];
    let run = said(run, failed(), vec![], vec![]).then(["step.blocked"]).after([passed("2s")]);
    let run = said(run, vec![], vec![begin("search")], vec![]).then(["step.entered"]);
    // The network delivers the first report once more: it is about an attempt that is over.
    let run = said(run, failed(), vec![], vec![]).then([]).step_is("search", StepState::Running);
    said(run, vec![done("search", "1")], vec![], vec![]).step_is("search", StepState::Completed);
}

#[test]
fn a_failed_step_reported_again_is_told_the_same_pause() {
    let fault = Fault {
        class: Some(FailureClass::RateLimited),
        message: "429".into(),
        retry_after: Some(Span::from_secs(7)),
        ..Fault::default()
    };
    let failed = || vec![StepDone { step_id: Path::from("search"), begun_at: None, result: Err(fault.clone()) }];
    let run = said(at_work(), vec![], vec![begin("search")], vec![]);
    let waits = vec![(Path::from("search"), Span::from_secs(7))];
    let run =
        said(run, failed(), vec![], vec![]).then_reply(Reply::Body { next: Next::Continue, waits: waits.clone() });
    said(run, failed(), vec![], vec![]).then([]).then_reply(Reply::Body { next: Next::Continue, waits });
}

#[test]
fn a_body_may_start_a_child_without_waiting_for_it() {
    let run = said(at_work(), vec![], vec![], waiting("kid", child(false, OnCancel::Cancel)))
        .then(["step.entered", "child.started", "step.completed"])
        .check(|run| assert!(run.head().detached.contains_key("kid")));
    assert_eq!(next(&run), Some(Next::Continue));
    let told = |run: &Given| run.effects.iter().any(|effect| matches!(effect, Effect::CancelChild { .. }));
    run.after([cancel()]).check(|run| assert!(told(run), "a cancel reaches it"));
    said(at_work(), vec![], vec![], waiting("kid", child(false, OnCancel::Leave)))
        .after([cancel()])
        .check(|run| assert!(!told(run), "it is left alone"));
}

#[test]
fn a_child_of_a_body_has_a_deadline_as_a_declared_one_has() {
    said(at_work(), vec![], vec![], waiting("kid", child(true, OnCancel::Leave)))
        .after([passed("60s")])
        .step_is("kid", StepState::Failed)
        .state(Queued);
}

#[test]
fn an_approval_that_a_body_asks_for_checks_its_form() {
    let asked_for = |form: &str| {
        CodedWait::Approval(Box::new(ApprovalAsked {
            title: "Send?".into(),
            subject: "{}".into(),
            approvers: vec!["ana".into()],
            quorum: 1,
            not_requester: false,
            deadline: None,
            at_deadline: None,
            form: Some(form.into()),
        }))
    };
    let decide = |form: &str| {
        asked(Ask::Decide {
            step_id: None,
            by: "ana".into(),
            approve: true,
            comment: None,
            form: Some(form.into()),
            subject_digest: None,
            via: None,
        })
    };
    said(at_work(), vec![], vec![], waiting("ok", asked_for(r#"{"type":"nonsense"}"#)))
        .then_rejected("validation-failed");
    let run = said(at_work(), vec![], vec![], waiting("ok", asked_for(r#"{"required":["why"]}"#)));
    run.clone().when(decide("{}")).then_rejected("validation-failed");
    run.after([decide(r#"{"why":"because"}"#)]).step_is("ok", StepState::Completed);
}

#[test]
fn a_carried_step_of_a_body_can_be_undone() {
    use abide_core::run::rerun::Carried;
    let run = said(at_work(), vec![], vec![external("pay")], vec![]);
    let run = said(run, vec![done("pay", "1")], vec![], vec![]);
    let mut start = Start::with_input("{}");
    start.carried = vec![Carried::of(run.row("pay"), &run.definition, (None, Some("1".into())), &run.head().run_id)];
    given(CODED)
        .after([Act::Start(Box::new(start)), claimed("body"), failed("body", FailureClass::Fatal), claimed("pay.undo")])
        .state(Compensating);
}

fn busy(run: Given, begin: Vec<StepBegin>, wait: Vec<StepWait>) -> Given {
    let holding = run.holding("body");
    run.when(asked(Ask::Steps { holding, done: Vec::new(), begin, wait, busy: true, beside: false }))
}

fn hears(name: &str) -> CodedWait {
    let mode = abide_core::definition::WaitMode::One;
    CodedWait::Signal { names: vec![name.into()], mode, deadline: None, at_deadline: None }
}

fn both() -> Vec<StepWait> {
    [waiting("first", hears("a")), waiting("second", hears("b"))].concat()
}

#[test]
fn a_body_whose_other_branch_executes_is_not_released() {
    let run = busy(said(at_work(), vec![], vec![begin("search")], vec![]), vec![], waiting("ok", hears("a")));
    assert_eq!(next(&run), Some(Next::Continue));
    let run = said(run, vec![done("search", "1")], vec![], waiting("ok", hears("a")));
    assert_eq!(next(&run), Some(Next::Released), "now it only waits");
}

#[test]
fn while_a_run_is_held_a_branch_that_executes_may_end_and_nothing_begins() {
    let run = said(at_work(), vec![], vec![begin("search")], vec![]);
    let run = busy(run.when(pause()), vec![begin("read")], vec![]);
    assert_eq!(next(&run), Some(Next::Continue));
    run.check(|run| assert!(run.story().find("read").is_none()));
}

#[test]
fn an_open_wait_does_not_hold_an_answered_one_back() {
    let run = said(at_work(), vec![], vec![], both());
    assert_eq!(next(&run), Some(Next::Released));
    let run = run.after([signal("a", "1"), claimed("body")]).when(signal("b", "2"));
    // The first came with the claim; the second came later, while the body asks for a third.
    let run = said(run, vec![], vec![], [both(), waiting("third", hears("c"))].concat());
    assert_eq!(next(&run), Some(Next::Continue));
    run.check(|run| assert_eq!(run.row("second").state, StepState::Completed));
}

#[test]
fn what_came_with_the_claim_is_no_news() {
    let run = said(at_work(), vec![], vec![], both()).after([signal("a", "1"), passed("1s"), claimed("body")]);
    let run = said(run, vec![], vec![], both());
    assert_eq!(next(&run), Some(Next::Released), "it knows the first and waits for the second");
}
