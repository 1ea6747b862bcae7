//! Approvals: by those who may, about what they saw, once.

use abide_core::contract::{FailureKind, RunState::*, StepState};
use abide_core::ids::Digest;
use abide_core::run::command::{Actor, ApprovalAsked, Ask, BlockOn, Reply, Resolution, Start};
use abide_core::time::Span;

use crate::given::*;

fn gate(fields: &str) -> Given {
    given(&format!(
        "workflow: w\nsteps: [ {{ id: ok, approval: {{ title: 'Ship it?', {fields} }} }}, {{ id: a, task: t.a }} ]"
    ))
    .after([started_with(r#"{"n":1}"#)])
}

#[test]
fn an_approval_holds_no_worker_and_says_who_decides_until_when() {
    gate("approvers: ['role:manager', ana], deadline: 2h, at_deadline: fail").state(WaitingOnApproval).check(|run| {
        let block = run.row("ok").block.clone().expect("a block");
        assert_eq!(block.message, "Ship it? Waits for role:manager or ana.");
        assert_eq!(block.until, Some(BEGIN + Span::from_secs(7_200)));
    });
}

#[test]
fn an_approver_decides_and_the_answer_is_the_output() {
    gate("approvers: [ana]")
        .when(approved_by("ana"))
        .then(["approval.given", "step.completed", "task.issued", "run.queued"])
        .output(
            "ok",
            r#"{"decision":"approved","by":"ana","at":"2026-01-01T00:00:00.000000Z","comment":null,"form":null}"#,
        );
}

#[test]
fn a_group_may_be_the_approver() {
    gate("approvers: ['role:manager']").when(approved_by("bob")).then_rejected("not-an-approver");
    gate("approvers: ['role:manager']").groups(&["manager"]).after([approved_by("bob")]).state(Queued);
}

#[test]
fn who_started_a_run_may_not_approve_it_where_the_workflow_says_so() {
    gate("approvers: [starter], not_requester: true")
        .when(approved_by("starter"))
        .then_rejected("self-approval-forbidden");
}

#[test]
fn a_quorum_needs_different_people() {
    gate("approvers: [ana, bob], quorum: 2")
        .when(approved_by("ana"))
        .then(["approval.given"])
        .then_reply(Reply::Recorded)
        .when(approved_by("ana"))
        .then([])
        .then_reply(Reply::Replayed)
        .when(approved_by("bob"))
        .then(["approval.given", "step.completed", "task.issued", "run.queued"]);
}

#[test]
fn one_reject_decides_and_fails_the_run_as_rejected() {
    gate("approvers: [ana, bob], quorum: 2")
        .after([approved_by("ana")])
        .when(rejected_by("bob"))
        .then(["approval.rejected", "step.failed", "workflow.failed", "run.failed"])
        .check(|run| assert_eq!(run.head().failure.as_ref().map(|f| f.kind), Some(FailureKind::Rejected)));
}

#[test]
fn a_reject_may_warn_continue_or_go_elsewhere() {
    gate("approvers: [ana], on_reject: warn")
        .after([rejected_by("ana")])
        .state(Queued)
        .step_is("ok", StepState::Failed);
    gate("approvers: [ana], on_reject: continue")
        .after([rejected_by("ana")])
        .state(Queued)
        .step_is("ok", StepState::Completed);
    given("workflow: w\nsteps: [ { id: a, task: t.a }, { id: ok, approval: { approvers: [ana], on_reject: { go_to: a, max_visits: 2 } } } ]")
        .after([started(), claimed("a"), completed("a")])
        .when(rejected_by("ana"))
        .then(["approval.rejected", "step.case_handled", "step.jumped", "task.issued", "run.queued"])
        .after([claimed("a.v2"), completed("a.v2")])
        .when(asked(decide("ok.v2", "ana", false)))
        .then(["approval.rejected", "step.failed", "workflow.failed", "run.failed"]);
}

fn decide(step: &str, by: &str, approve: bool) -> Ask {
    Ask::Decide {
        step_id: Some(step.into()),
        by: by.into(),
        approve,
        comment: None,
        form: None,
        subject_digest: None,
        via: None,
    }
}

#[test]
fn the_same_answer_again_changes_nothing_and_another_is_told_who_decided() {
    let decided = gate("approvers: [ana, bob]").after([approved_by("ana")]);
    decided.clone().when(approved_by("ana")).then([]).then_reply(Reply::Replayed);
    decided.clone().when(asked(decide("ok", "ana", false))).then_rejected("already-decided");
    let mut late = decided;
    let said = late.ask(Actor::user("bob"), decide("ok", "bob", true)).expect_err("it is decided");
    assert_eq!(said.to_string(), "ok was decided already by ana at 2026-01-01T00:00:00.000000Z");
}

#[test]
fn an_answer_without_a_step_cannot_decide_the_next_approval_by_accident() {
    given("workflow: w\nsteps: [ { id: one, approval: { approvers: [ana] } }, { id: two, approval: { approvers: [ana] } } ]")
        .after([started(), approved_by("ana")])
        .when(approved_by("ana"))
        .then_rejected("step-id-required")
        .when(approved("two", "ana"))
        .then(["approval.given", "step.completed", "workflow.completed", "run.succeeded"]);
}

#[test]
fn of_two_open_approvals_one_must_be_named() {
    given("workflow: w\nsteps: [ { id: x, after: [], approval: { approvers: [ana] } }, { id: y, after: [], approval: { approvers: [ana] } } ]")
        .after([started()])
        .when(approved_by("ana"))
        .then_rejected("step-id-required");
}

#[test]
fn an_answer_to_another_subject_is_refused() {
    let mut run = gate("approvers: [ana], subject: { n: '${{ input.n }}' }");
    let digest = Digest::of(br#"{"n":1}"#);
    let with = |subject_digest| Ask::Decide {
        step_id: None,
        by: "ana".into(),
        approve: true,
        comment: None,
        form: None,
        subject_digest: Some(subject_digest),
        via: None,
    };
    let refused = run.ask(Actor::user("ana"), with(Digest::of(b"other"))).expect_err("another subject");
    assert_eq!(refused.code(), "subject-changed");
    run.ask(Actor::user("ana"), with(digest)).expect("what was shown");
}

#[test]
fn a_form_is_checked_before_anything_is_decided() {
    let mut run = gate("approvers: [ana], form: { type: object, required: [amount] }");
    let with = |form: &str| Ask::Decide {
        step_id: None,
        by: "ana".into(),
        approve: true,
        comment: Some("fine".into()),
        form: Some(form.into()),
        subject_digest: None,
        via: Some("link".into()),
    };
    assert_eq!(run.ask(Actor::user("ana"), with("{}")).expect_err("incomplete").code(), "validation-failed");
    run.ask(Actor::user("ana"), with(r#"{"amount":3}"#)).expect("complete");
    assert!(run.memory.output_of("ok").is_some_and(|json| json.contains(r#""form":{"amount":3}"#)));
}

#[test]
fn a_no_need_not_fill_the_form_in() {
    let no = |form: Option<&str>| Ask::Decide {
        step_id: None,
        by: "ana".into(),
        approve: false,
        comment: None,
        form: form.map(Into::into),
        subject_digest: None,
        via: None,
    };
    let mut run = gate("approvers: [ana], form: { type: object, required: [amount] }");
    assert_eq!(run.ask(Actor::user("ana"), no(Some("{}"))).expect_err("filled in wrongly").code(), "validation-failed");
    run.ask(Actor::user("ana"), no(None)).expect("left empty");
    run.state(Failed);
}

#[test]
fn at_its_deadline_an_approval_does_what_was_declared() {
    let at =
        |outcome: &str| gate(&format!("approvers: [ana], deadline: 1h, at_deadline: {outcome}")).after([passed("1h")]);
    at("fail")
        .state(Failed)
        .check(|run| assert_eq!(run.head().failure.as_ref().map(|f| f.kind), Some(FailureKind::Expired)));
    at("warn").state(Queued).step_is("ok", StepState::Failed);
    at("approve").state(Queued).step_is("ok", StepState::Completed);
    at("{ escalate: [boss] }")
        .state(WaitingOnApproval)
        .when(approved_by("ana"))
        .then_rejected("not-an-approver")
        .after([approved_by("boss")])
        .state(Queued);
    at("{ escalate: [boss] }").after([passed("1h")]).state(Failed);
}

#[test]
fn without_a_declared_outcome_an_overdue_approval_can_still_be_given() {
    gate("approvers: [ana], deadline: 1h")
        .after([passed("1h")])
        .state(Stalled)
        .after([approved_by("ana")])
        .state(Queued);
}

#[test]
fn after_its_deadline_an_approval_is_expired_even_before_the_sweep() {
    gate("approvers: [ana], deadline: 1h, at_deadline: fail")
        .after([skipped("1h")])
        .when(approved_by("ana"))
        .then_rejected("approval-expired");
}

#[test]
fn an_approval_when_nobody_waits_is_refused() {
    steps(&["a"]).when(approved_by("ana")).then_rejected("not-waiting");
}

#[test]
fn a_second_approval_of_the_same_task_is_decided_anew() {
    use abide_core::run::command::{ApprovalAsked, BlockOn};
    let ask = |subject: &str| {
        let asked = ApprovalAsked {
            title: "Send?".into(),
            subject: subject.into(),
            approvers: vec!["ana".into(), "bob".into()],
            quorum: 2,
            not_requester: false,
            deadline: None,
            at_deadline: None,
            form: None,
        };
        blocked("a", BlockOn::Approval(Box::new(asked)))
    };
    steps(&["a"])
        .after([claimed("a"), ask("1"), approved_by("ana"), approved_by("bob"), claimed("a"), ask("2")])
        .when(approved("a", "ana"))
        .then(["approval.given"])
        .then_reply(Reply::Recorded);
}

#[test]
fn an_approval_that_a_task_asks_for_checks_its_form() {
    let asked_for = ApprovalAsked {
        title: "Send?".into(),
        subject: "{}".into(),
        approvers: vec!["ana".into()],
        quorum: 1,
        not_requester: false,
        deadline: None,
        at_deadline: None,
        form: Some(r#"{"type":"object","required":["why"]}"#.into()),
    };
    let run = steps(&["a"]).after([claimed("a"), blocked("a", BlockOn::Approval(Box::new(asked_for)))]);
    run.clone().when(approved("a", "ana")).then_rejected("validation-failed");
    run.after([asked(Ask::Decide {
        step_id: None,
        by: "ana".into(),
        approve: true,
        comment: None,
        form: Some(r#"{"why":"it is due"}"#.into()),
        subject_digest: None,
        via: None,
    })])
    .state(Queued)
    .check(|run| assert_eq!(run.row("a").answers.len(), 1));
}

fn forged() -> Vec<Resolution> {
    let output = Some(r#"{"decision":"approved","by":"ana"}"#.into());
    vec![
        Resolution::Complete { output },
        Resolution::Correct { input: "{}".into() },
        Resolution::Skip,
        Resolution::Retry { new_key: false },
    ]
}

#[test]
fn an_operator_may_fail_an_approval_and_never_pass_it() {
    let asked_by_task = || {
        let asked = ApprovalAsked {
            title: "Send it?".into(),
            subject: "1".into(),
            approvers: vec!["ana".into()],
            quorum: 1,
            not_requester: false,
            deadline: None,
            at_deadline: None,
            form: None,
        };
        steps(&["ok", "a"]).after([claimed("ok"), blocked("ok", BlockOn::Approval(Box::new(asked)))])
    };
    let overdue = || gate("approvers: [ana], deadline: 1h").after([passed("2h")]).state(Stalled);
    for run in [gate("approvers: [ana]"), overdue(), asked_by_task()] {
        for forged in forged() {
            run.clone().when(resolve("ok", forged)).then_rejected("cannot-resolve");
        }
        run.after([resolve("ok", Resolution::Fail)]).state(Failed);
    }
}

#[test]
fn an_approval_that_could_not_be_asked_is_tried_again_or_failed_and_never_passed() {
    let run =
        given("workflow: w\nsteps: [ { id: ok, approval: { subject: '${{ input.order }}' } }, { id: a, task: t.a } ]")
            .after([started()])
            .state(WaitingOnOperator);
    for forged in forged().into_iter().take(3) {
        run.clone().when(resolve("ok", forged)).then_rejected("cannot-resolve");
    }
    run.after([resolve("ok", Resolution::Retry { new_key: false })]).state(WaitingOnOperator);
}

fn link_for(whom: &str, groups: &[&str]) -> Ask {
    let groups = groups.iter().map(ToString::to_string).collect();
    Ask::MakeLink { step_id: "ok".into(), whom: whom.into(), groups, expires_at: BEGIN + Span::from_secs(600) }
}

#[test]
fn a_link_is_for_an_approver_and_an_event_says_who_made_it() {
    let run = gate("approvers: [ana, 'role:manager']");
    run.clone().when(asked(link_for("eve", &[]))).then_rejected("not-an-approver");
    run.clone().when(asked(link_for("bob", &["manager"]))).then(["approval.link_made"]);
    let run = run.when(asked(link_for("ana", &[]))).then(["approval.link_made"]);
    let made = run.memory.log.last().expect("an event");
    assert_eq!((made.actor.id.as_str(), made.payload.get().contains(r#""for":"ana""#)), ("op", true));
    run.after([approved_by("ana")]).when(asked(link_for("ana", &[]))).then_rejected("already-decided");
}

#[test]
fn whoever_makes_a_link_counts_as_requester() {
    let run = gate("approvers: [ana, op, starter], not_requester: true");
    run.clone().after([asked(link_for("ana", &[]))]).when(approved_by("op")).then_rejected("self-approval-forbidden");
    // The requester has no link made for anybody.
    let mut run = run;
    let made = run.ask(Actor::user("starter"), link_for("ana", &[]));
    assert_eq!(made.expect_err("refused").code(), "self-approval-forbidden");
}

#[test]
fn who_asked_for_a_run_may_not_approve_its_rerun_either() {
    let mut start = Start::with_input("{}");
    start.requested_before = vec!["ana".into()];
    given("workflow: w\nsteps: [ { id: ok, approval: { approvers: [ana, bob], not_requester: true } } ]")
        .after([Act::Start(Box::new(start))])
        .when(approved_by("ana"))
        .then_rejected("self-approval-forbidden")
        .after([approved_by("bob")])
        .state(Succeeded);
}
