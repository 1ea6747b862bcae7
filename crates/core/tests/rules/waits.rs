//! Waits that a message or an instant ends: auth, signals, callbacks, timers.

use abide_core::contract::{FailureClass, FailureKind, RunState::*, StepState};
use abide_core::ids::{Digest, Path};
use abide_core::run::ConnectionFacts;
use abide_core::run::command::{ApprovalAsked, Ask, BlockOn, Fault, Reply, Resolution};
use abide_core::time::Span;

use crate::given::*;

fn auth_failed(path: &'static str) -> Act {
    let fault = Fault {
        class: Some(FailureClass::Auth),
        tool: Some("drive".into()),
        message: "401".into(),
        ..Fault::default()
    };
    failed_with(path, fault)
}

#[test]
fn an_auth_failure_waits_for_the_connection_and_the_same_attempt_goes_on() {
    steps(&["a"])
        .after([claimed("a")])
        .when(auth_failed("a"))
        .then(["task.failed", "step.blocked", "run.waiting_on_auth"])
        .when(reconnect("drive"))
        .then(["connection.reconnected", "task.issued", "run.queued"])
        .check(|run| assert_eq!(run.row("a").attempt, 1));
}

#[test]
fn a_reconnect_of_something_else_releases_nothing() {
    steps(&["a"]).after([claimed("a"), auth_failed("a")]).when(reconnect("slack")).then_rejected("not-waiting");
}

#[test]
fn a_reconnect_of_the_connection_releases_each_wait_once() {
    let generation = |n| asked(Ask::Reconnect { tool: Some("drive".into()), account: None, generation: Some(n) });
    steps(&["a"])
        .after([claimed("a"), auth_failed("a")])
        .when(generation(1))
        .then_reply(Reply::Released { steps: 1 })
        .when(generation(1))
        .then([])
        .then_reply(Reply::Released { steps: 0 });
}

#[test]
fn a_connection_that_was_reconnected_in_the_meantime_is_tried_again_once() {
    let facts = ConnectionFacts { generation: 4, reconnected_at: Some(BEGIN + Span::from_secs(5)), broken: false };
    steps(&["a"])
        .connection("drive", "default", facts)
        .after([claimed("a"), skipped("10s")])
        .when(auth_failed("a"))
        .then(["task.failed", "task.issued", "run.queued"])
        .after([claimed("a")])
        .when(auth_failed("a"))
        .then(["task.failed", "step.blocked", "run.waiting_on_auth"]);
}

#[test]
fn a_connection_known_to_be_broken_is_not_called() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, connection: 'drive/${{ input.account }}' } ]")
        .connection("drive", "acme", ConnectionFacts { broken: true, ..Default::default() })
        .when(started_with(r#"{"account":"acme"}"#))
        .then(["run.queued", "workflow.started", "step.entered", "step.blocked", "run.waiting_on_auth"]);
}

const SIGNED: &str = "workflow: w\nsteps: [ { id: signed, signal: document.signed, deadline: 7d } ]";

#[test]
fn a_signal_ends_its_wait_and_is_its_output() {
    given(SIGNED)
        .after([started()])
        .state(WaitingOnTool)
        .when(signal("document.signed", r#"{"by":"ana"}"#))
        .then(["signal.received", "signal.taken", "step.completed", "workflow.completed", "run.succeeded"])
        .output("signed", r#"{"by":"ana"}"#);
}

#[test]
fn a_signal_that_comes_first_is_kept_and_taken_once() {
    given("workflow: w\nsteps: [ { id: a, task: t.a }, { id: s, signal: go }, { id: again, signal: go } ]")
        .after([started()])
        .when(signal("go", "1"))
        .then(["signal.received"])
        .then_reply(Reply::Recorded)
        .after([claimed("a"), completed("a")])
        .step_is("s", StepState::Completed)
        .state(WaitingOnTool);
}

#[test]
fn a_payload_that_nests_too_deep_for_expressions_is_refused() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    given(SIGNED).when(started_with(&nested(65))).then_rejected("input-invalid");
    given(SIGNED)
        .after([started()])
        .when(signal("document.signed", &nested(100_000)))
        .then_rejected("validation-failed")
        .when(signal("document.signed", &nested(64)))
        .output("signed", &nested(64));
}

#[test]
fn a_signal_that_its_schema_refuses_is_not_consumed() {
    given("workflow: w\nsteps: [ { id: s, signal: go, schema: { type: object } } ]")
        .after([started()])
        .when(signal("go", "7"))
        .then_rejected("validation-failed")
        .state(WaitingOnTool);
}

#[test]
fn any_ends_with_the_first_and_all_with_the_last() {
    given("workflow: w\nsteps: [ { id: s, any: [left, right] } ]")
        .after([started(), signal("right", "2")])
        .output("s", r#"{"name":"right","payload":2}"#);
    given("workflow: w\nsteps: [ { id: s, all: [left, right] } ]")
        .after([started(), signal("right", "2")])
        .state(WaitingOnTool)
        .after([signal("left", "1")])
        .output("s", r#"{"left":1,"right":2}"#);
}

#[test]
fn an_overdue_wait_rests_in_stalled_and_can_still_be_answered() {
    given(SIGNED)
        .after([started()])
        .when(passed("7d"))
        .then(["step.overdue", "run.stalled"])
        .when(signal("document.signed", "1"))
        .then(["signal.received", "signal.taken", "step.completed", "workflow.completed", "run.succeeded"]);
}

#[test]
fn an_overdue_wait_can_be_given_its_time_once_more() {
    given(SIGNED)
        .after([started(), passed("7d")])
        .when(retry_now())
        .then(["step.blocked", "run.waiting_on_tool"])
        .check(|run| {
            assert_eq!(run.memory.wake_at, Some(run.now + Span::from_secs(7 * 86_400)));
        });
}

#[test]
fn a_wait_with_a_declared_outcome_takes_it() {
    let document =
        |at: &str| format!("workflow: w\nsteps: [ {{ id: s, signal: go, deadline: 1h, at_deadline: {at} }} ]");
    given(&document("fail"))
        .after([started(), passed("1h")])
        .state(Failed)
        .check(|run| assert_eq!(run.head().failure.as_ref().map(|f| f.kind), Some(FailureKind::Expired)));
    given(&document("warn")).after([started(), passed("1h")]).state(CompletedWithWarnings);
}

fn answer(token: &str) -> Act {
    let token_hash = Digest::of(token.as_bytes());
    asked(Ask::CallbackAnswer { path: Path::from("a"), token_hash, payload: r#"{"ok":true}"#.into() })
}

#[test]
fn a_callback_gives_a_blocked_task_its_answer_in_the_same_attempt() {
    steps(&["a"])
        .after([claimed("a"), Act::Callback("a", "job")])
        .when(blocked("a", BlockOn::Callback { name: "job".into(), deadline: None }))
        .then(["task.blocked", "step.blocked", "run.waiting_on_tool"])
        .when(answer("job"))
        .then(["callback.answered", "answer.delivered", "task.issued", "run.queued"])
        .check(|run| assert_eq!((run.row("a").attempt, run.row("a").answers.len()), (1, 1)))
        .when(answer("job"))
        .then_rejected("token-used");
}

#[test]
fn a_callback_that_comes_before_the_wait_is_kept() {
    steps(&["a"])
        .after([claimed("a"), Act::Callback("a", "job")])
        .when(answer("job"))
        .then(["callback.answered"])
        .then_reply(Reply::Recorded)
        .when(blocked("a", BlockOn::Callback { name: "job".into(), deadline: None }))
        .then(["task.blocked", "step.blocked", "answer.delivered", "task.issued", "run.queued"]);
}

#[test]
fn a_callback_that_is_made_anew_can_be_answered_at_both_addresses() {
    let wait = || blocked("a", BlockOn::Callback { name: "job".into(), deadline: None });
    let made_twice = || {
        let made = steps(&["a"]).after([claimed("a"), Act::Callback("a", "job"), Act::Lose("a")]);
        made.after([claimed("a"), Act::CallbackAt("a", "job", "second")])
    };
    for token in ["job", "second"] {
        made_twice().after([wait()]).when(answer(token)).then([
            "callback.answered",
            "answer.delivered",
            "task.issued",
            "run.queued",
        ]);
    }
    let early = made_twice().when(answer("job")).then_reply(Reply::Recorded);
    early.when(wait()).then(["task.blocked", "step.blocked", "answer.delivered", "task.issued", "run.queued"]);
}

#[test]
fn an_answer_that_was_delivered_does_not_answer_the_next_question_of_its_name() {
    let wait = || blocked("a", BlockOn::Callback { name: "job".into(), deadline: None });
    steps(&["a"])
        .after([claimed("a"), Act::Callback("a", "job"), wait(), answer("job"), claimed("a")])
        .after([Act::CallbackAt("a", "job", "second")])
        .when(wait())
        .then(["task.blocked", "step.blocked", "run.waiting_on_tool"])
        .when(answer("second"))
        .then(["callback.answered", "answer.delivered", "task.issued", "run.queued"]);
}

#[test]
fn an_unknown_callback_is_refused() {
    steps(&["a"]).when(answer("nothing")).then_rejected("not-found");
}

#[test]
fn the_answer_to_a_pushed_request_is_the_steps_result() {
    given("workflow: w\nsteps: [ { id: a, http: { method: POST, url: 'https://example.com/x', answer: callback } } ]")
        .after([started(), claimed("a"), Act::Callback("a", "job")])
        .after([blocked("a", BlockOn::Callback { name: "job".into(), deadline: None })])
        .when(answer("job"))
        .then(["callback.answered", "step.completed", "workflow.completed", "run.succeeded"])
        .output("a", r#"{"ok":true}"#);
}

#[test]
fn a_pushed_request_is_stored_without_its_secrets() {
    given(
        "workflow: w\nsteps: [ { id: a, http: { method: POST, url: 'https://example.com/${{ input.n }}', headers: { Authorization: 'Bearer ${{ secrets.KEY }}' }, body: { n: '${{ input.n }}' } } } ]",
    )
    .after([started_with(r#"{"n":1}"#)])
    .check(|run| {
        let request: serde_json::Value = serde_json::from_str(&run.memory.payloads["a/input"]).expect("JSON");
        assert_eq!(request["url"], "https://example.com/1");
        assert_eq!(request["headers"]["authorization"], "Bearer {{secret:KEY}}");
        assert_eq!(request["fill"][0]["pointer"], "/headers/authorization");
        assert_eq!(request["fill"][0]["secret"], "KEY");
    });
}

#[test]
fn a_sleep_wakes_at_its_instant() {
    given("workflow: w\nsteps: [ { id: nap, sleep: 10m } ]")
        .after([started()])
        .state(WaitingOnTimer)
        .check(|run| assert_eq!(run.memory.wake_at, Some(BEGIN + Span::from_secs(600))))
        .when(passed("10m"))
        .then(["step.completed", "workflow.completed", "run.succeeded"]);
    given("workflow: w\nsteps: [ { id: nap, sleep: { until: input.at } } ]")
        .after([started_with(r#"{"at":"2026-01-01T00:05:00Z"}"#)])
        .check(|run| assert_eq!(run.memory.wake_at, Some(BEGIN + Span::from_secs(300))));
}

#[test]
fn a_task_may_sleep_ask_an_operator_or_ask_for_an_approval() {
    let at_work = steps(&["a"]).after([claimed("a")]);
    at_work
        .clone()
        .after([blocked("a", BlockOn::Timer { until: BEGIN + Span::from_secs(60) })])
        .state(WaitingOnTimer)
        .when(passed("60s"))
        .then(["answer.delivered", "task.issued", "run.queued"]);
    at_work
        .clone()
        .after([blocked("a", BlockOn::Operator { reason: "which one?".into(), recommended: None })])
        .state(WaitingOnOperator);
    let asked = ApprovalAsked {
        title: "Send it?".into(),
        subject: "{}".into(),
        approvers: vec!["ana".into()],
        quorum: 1,
        not_requester: false,
        deadline: None,
        at_deadline: None,
        form: None,
    };
    at_work
        .after([blocked("a", BlockOn::Approval(Box::new(asked)))])
        .state(WaitingOnApproval)
        .when(approved_by("ana"))
        .then(["approval.given", "answer.delivered", "task.issued", "run.queued"]);
}

#[test]
fn all_open_blocks_are_kept_while_a_sibling_runs() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, after: [] }, { id: ok, approval: { approvers: [ana] }, after: [] } ]")
        .after([started(), claimed("a")])
        .state(Running)
        .when(approved_by("ana"))
        .then(["approval.given", "step.completed"])
        .state(Running);
}

#[test]
fn a_reconnect_releases_only_what_was_blocked_before_it() {
    let facts = ConnectionFacts { generation: 1, reconnected_at: Some(BEGIN), broken: false };
    steps(&["a"])
        .connection("drive", "default", facts)
        .after([skipped("10s"), claimed("a"), auth_failed("a")])
        .state(WaitingOnAuth)
        .when(asked(Ask::Reconnect { tool: Some("drive".into()), account: None, generation: Some(1) }))
        .then([])
        .then_reply(Reply::Released { steps: 0 })
        .state(WaitingOnAuth);
}

const DRIVE: &str = "workflow: w\nsaga: true\nsteps: [ { id: a, task: t.a, connection: drive/default, effect: external, reconcile: t.find, compensate: t.undo }, { id: b, task: t.b } ]";

fn broken() -> ConnectionFacts {
    ConnectionFacts { broken: true, ..Default::default() }
}

#[test]
fn a_retry_does_not_call_a_connection_that_broke_in_the_meantime_and_keeps_its_number() {
    given(DRIVE)
        .after([started(), claimed("a"), failed("a", FailureClass::Transient)])
        .connection("drive", "default", broken())
        .when(passed("1s"))
        .then(["step.reset", "step.blocked", "run.waiting_on_auth"])
        .check(|run| assert_eq!(run.row("a").attempt, 2, "the failed attempt stays counted"))
        .when(reconnect("drive"))
        .then(["connection.reconnected", "task.issued", "run.queued"])
        .check(|run| assert_eq!(run.row("a").attempt, 2))
        .log_holds();
}

#[test]
fn who_reconnects_a_run_is_believed_whatever_is_known_of_the_connection() {
    given(DRIVE)
        .connection("drive", "default", broken())
        .after([started()])
        .state(WaitingOnAuth)
        .after([reconnect("drive"), claimed("a")])
        .state(Running);
}

fn reconnected(after: u64) -> ConnectionFacts {
    ConnectionFacts { generation: 4, reconnected_at: Some(BEGIN + Span::from_secs(after)), broken: false }
}

#[test]
fn a_probe_whose_connection_was_reconnected_in_the_meantime_is_issued_again_once() {
    given(DRIVE)
        .after([started(), claimed("a"), failed("a", FailureClass::OutcomeUnknown), skipped("3s"), claimed("a.probe")])
        .connection("drive", "default", reconnected(5))
        .after([skipped("10s")])
        .when(auth_failed("a.probe"))
        .then(["task.failed", "task.issued", "run.queued"])
        .after([claimed("a.probe")])
        .when(auth_failed("a.probe"))
        .then(["task.failed", "step.blocked", "run.waiting_on_auth"]);
}

#[test]
fn an_undo_whose_connection_was_reconnected_in_the_meantime_is_issued_again_once() {
    given(DRIVE)
        .after([started(), claimed("a"), completed("a"), claimed("b"), failed("b", FailureClass::Fatal)])
        .after([skipped("3s"), claimed("a.undo")])
        .connection("drive", "default", reconnected(5))
        .after([skipped("10s")])
        .when(auth_failed("a.undo"))
        .then(["task.failed", "task.issued"])
        .after([claimed("a.undo")])
        .when(auth_failed("a.undo"))
        .then(["task.failed", "step.blocked"]);
}

#[test]
fn a_probe_that_was_claimed_after_the_reconnect_waits() {
    given(DRIVE)
        .after([started(), claimed("a"), failed("a", FailureClass::OutcomeUnknown), skipped("8s"), claimed("a.probe")])
        .connection("drive", "default", reconnected(5))
        .when(auth_failed("a.probe"))
        .then(["task.failed", "step.blocked", "run.waiting_on_auth"]);
}

#[test]
fn an_operator_who_retries_what_was_not_called_gets_the_attempt_that_is_next() {
    given(DRIVE)
        .after([started(), claimed("a"), failed("a", FailureClass::Transient)])
        .connection("drive", "default", broken())
        .after([passed("1s")])
        .connection("drive", "default", ConnectionFacts::default())
        .after([resolve("a", Resolution::Retry { new_key: false })])
        .check(|run| assert_eq!(run.row("a").attempt, 2))
        .log_holds();
}
