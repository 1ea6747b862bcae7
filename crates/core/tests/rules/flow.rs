//! The way forward: sequence, graphs, conditions, cases, loops, fan-out and fan-in.

use abide_core::contract::{FailureClass, FailureKind, RunState::*, StepState};
use abide_core::run::command::{Fault, Resolution};

use crate::given::*;

#[test]
fn a_sequence_goes_step_by_step_to_its_end() {
    steps(&["a", "b"])
        .after([claimed("a")])
        .when(completed("a"))
        .then(["task.completed", "step.completed", "task.issued", "run.queued"])
        .after([claimed("b")])
        .when(completed("b"))
        .then(["task.completed", "step.completed", "workflow.completed", "run.succeeded"])
        .states([Queued, Running, Queued, Running, Succeeded])
        .log_holds();
}

#[test]
fn inputs_and_outputs_are_passed_on_byte_for_byte() {
    given(
        r#"
workflow: w
steps:
  - { id: a, task: t.a }
  - { id: b, task: t.b, with: { whole: "${{ input.big }}", part: "${{ steps.a.output.n }}", text: "n is ${{ steps.a.output.n }}" } }
output: { last: "${{ steps.b.output }}" }
"#,
    )
    .after([started_with(r#"{"big": 12345678901234567890.10}"#), claimed("a"), completed_with("a", r#"{"n": 1.50}"#)])
    .check(|run| {
        let input = &run.memory.payloads["b/input"];
        assert_eq!(&**input, r#"{"whole":12345678901234567890.10,"part":1.50,"text":"n is 1.50"}"#);
    })
    .after([claimed("b"), completed_with("b", r#"{"z": 1e2}"#)])
    .state(Succeeded)
    .check(|run| assert_eq!(&*run.memory.payloads["output"], r#"{"last":{"z": 1e2}}"#));
}

#[test]
fn a_step_whose_condition_is_false_is_skipped_and_counts_as_ended() {
    given(
        r#"
workflow: w
steps:
  - { id: a, task: t.a, when: input.n > 5 }
  - { id: b, task: t.b, with: { a: "${{ steps.a.output }}", state: "${{ steps.a.state }}" } }
"#,
    )
    .when(started_with(r#"{"n":1}"#))
    .then(["run.queued", "workflow.started", "step.skipped", "task.issued"])
    .step_is("a", StepState::Skipped)
    .check(|run| assert_eq!(&*run.memory.payloads["b/input"], r#"{"a":null,"state":"skipped"}"#));
}

#[test]
fn a_workflow_of_nothing_but_skipped_steps_succeeds_at_once() {
    given("workflow: w\nsteps: [ { id: a, task: t.a, when: false } ]").when(started()).then([
        "run.queued",
        "workflow.started",
        "step.skipped",
        "workflow.completed",
        "run.succeeded",
    ]);
}

const DIAMOND: &str = r#"
workflow: w
steps:
  - { id: a, task: t.a }
  - { id: b, task: t.b, after: [a] }
  - { id: c, task: t.c, after: [a] }
  - { id: d, task: t.d, after: [b, c], with: { b: "${{ steps.b.output }}", c: "${{ steps.c.output }}" } }
"#;

#[test]
fn fan_in_waits_for_every_branch_and_has_all_results() {
    given(DIAMOND)
        .after([started(), claimed("a"), completed("a"), claimed("b"), claimed("c")])
        .when(completed_with("b", "1"))
        .then(["task.completed", "step.completed"])
        .state(Running)
        .when(completed_with("c", "2"))
        .then(["task.completed", "step.completed", "task.issued", "run.queued"])
        .check(|run| assert_eq!(&*run.memory.payloads["d/input"], r#"{"b":1,"c":2}"#));
}

#[test]
fn the_run_stays_open_as_long_as_one_slow_branch_is() {
    given(DIAMOND)
        .after([started(), claimed("a"), completed("a"), claimed("b"), claimed("c"), completed("b")])
        .state(Running)
        .step_is("b", StepState::Completed)
        .check(|run| assert!(!run.memory.rows.contains_key("d")));
}

#[test]
fn the_first_case_that_fits_takes_the_result() {
    let document = r#"
workflow: w
steps:
  - id: a
    task: t.a
    on_result:
      - { when: 'failure.code == "409"', then: skip }
      - { when: output.enough, then: complete }
      - { when: output.bad, then: fail }
  - { id: b, task: t.b }
"#;
    let at_work = given(document).after([started(), claimed("a")]);
    let conflict = Fault {
        class: Some(FailureClass::Fatal),
        code: Some("409".into()),
        message: "exists".into(),
        ..Fault::default()
    };
    at_work
        .clone()
        .when(failed_with("a", conflict))
        .then(["task.failed", "step.case_handled", "task.issued", "run.queued"])
        .step_is("a", StepState::CaseHandled);
    at_work
        .clone()
        .after([completed_with("a", r#"{"enough":true}"#)])
        .step_is("a", StepState::CaseHandled)
        .state(Queued);
    at_work.clone().after([completed_with("a", r#"{"bad":true}"#)]).state(Failed);
    at_work.after([completed_with("a", r#"{"other":true}"#)]).step_is("a", StepState::Completed).state(Queued);
}

const BACK: &str = r#"
workflow: w
steps:
  - { id: draft, task: t.draft }
  - { id: review, task: t.review, on_result: [ { when: output.again, then: { go_to: draft, max_visits: 2 } } ] }
  - { id: publish, task: t.publish, with: { text: "${{ steps.draft.output }}" } }
"#;

#[test]
fn a_jump_back_gives_new_paths_and_the_newest_is_read() {
    given(BACK)
        .after([started(), claimed("draft"), completed_with("draft", "1"), claimed("review")])
        .when(completed_with("review", r#"{"again":true}"#))
        .then(["task.completed", "step.case_handled", "step.jumped", "task.issued", "run.queued"])
        .after([claimed("draft.v2"), completed_with("draft.v2", "2"), claimed("review.v2"), completed("review.v2")])
        .output("draft", "1")
        .check(|run| assert_eq!(&*run.memory.payloads["publish.v2/input"], r#"{"text":2}"#));
}

#[test]
fn past_its_visits_a_jump_back_fails_the_step() {
    let again = r#"{"again":true}"#;
    given(BACK)
        .after([started(), claimed("draft"), completed("draft"), claimed("review"), completed_with("review", again)])
        .after([claimed("draft.v2"), completed("draft.v2"), claimed("review.v2"), completed_with("review.v2", again)])
        .state(Failed)
        .check(|run| assert_eq!(run.head().failure.as_ref().and_then(|f| f.code.as_deref()), Some("max_visits")));
}

#[test]
fn a_jump_ahead_skips_what_lies_between() {
    given(
        r#"
workflow: w
steps:
  - { id: a, task: t.a, on_result: [ { when: output.fast, then: { go_to: c } } ] }
  - { id: b, task: t.b }
  - { id: c, task: t.c }
"#,
    )
    .after([started(), claimed("a"), completed_with("a", r#"{"fast":true}"#), claimed("c"), completed("c")])
    .state(Succeeded);
}

const FAN: &str = r#"
workflow: w
steps:
  - { id: each, for_each: input.items, as: it, parallel: 2, task: t.item, with: { it: "${{ it }}", at: "${{ index }}" } }
  - { id: end, task: t.end, with: { all: "${{ steps.each.output }}" } }
"#;

#[test]
fn at_most_parallel_items_are_open_and_the_output_is_in_item_order() {
    given(FAN)
        .when(started_with(r#"{"items":["x","y","z"]}"#))
        .then(["run.queued", "workflow.started", "step.entered", "task.issued", "task.issued"])
        .after([claimed("each.1"), completed_with("each.1", "10")])
        .check(|run| assert_eq!(&*run.memory.payloads["each.2/input"], r#"{"it":"z","at":2}"#))
        .after([claimed("each.2"), completed_with("each.2", "20"), claimed("each.0")])
        .when(completed_with("each.0", "0"))
        .then(["task.completed", "step.completed", "join.decided", "step.completed", "task.issued", "run.queued"])
        .output("each", "[0,10,20]")
        .check(|run| assert_eq!(&*run.memory.payloads["end/input"], r#"{"all":[0,10,20]}"#))
        .log_holds();
}

#[test]
fn a_for_each_over_nothing_completes_with_an_empty_list() {
    given(FAN).after([started_with(r#"{"items":[]}"#)]).output("each", "[]").step_is("each", StepState::Completed);
}

#[test]
fn a_for_each_over_something_else_than_a_list_asks_for_help() {
    given(FAN).after([started_with(r#"{"items":7}"#)]).state(WaitingOnOperator).step_is("each", StepState::Waiting);
}

#[test]
fn the_first_final_failure_stops_new_items_and_open_ones_are_told_to_stop() {
    given(FAN)
        .after([started_with(r#"{"items":[1,2,3]}"#), claimed_by("each.0", "w1"), claimed_by("each.1", "w2")])
        .when(failed("each.0", FailureClass::Fatal))
        .then(["task.failed", "step.failed", "join.decided", "step.unneeded"])
        .state(Running)
        .when(completed("each.1"))
        .then(["task.completed", "step.completed", "step.failed", "workflow.failed", "run.failed"])
        .check(|run| {
            assert!(!run.memory.rows.contains_key("each.2"));
            assert_eq!(run.head().failure.as_ref().map(|failure| failure.kind), Some(FailureKind::StepFailed));
        });
}

#[test]
fn a_join_that_is_met_early_cancels_its_open_items_alone() {
    given(
        r#"
workflow: w
steps:
  - { id: any, for_each: input.items, join: any, task: t.any, after: [] }
  - { id: other, task: t.other, after: [] }
"#,
    )
    .after([started_with(r#"{"items":[1,2,3]}"#), claimed("any.1")])
    .when(completed_with("any.1", "1"))
    .then([
        "task.completed",
        "step.completed",
        "join.decided",
        "task.canceled",
        "step.canceled",
        "task.canceled",
        "step.canceled",
        "step.completed",
        "run.queued",
    ])
    .output("any", "[null,1,null]")
    .step_is("other", StepState::Issued);
}

#[test]
fn failures_below_the_joins_demand_are_listed_and_tolerated() {
    given(
        r#"
workflow: w
steps:
  - { id: most, for_each: input.items, join: { min_success: 0.5 }, task: t.most, retry: { max_attempts: 1 } }
  - { id: end, task: t.end, with: { failed: "${{ steps.most.failures }}" } }
"#,
    )
    .after([started_with(r#"{"items":[1,2]}"#), claimed("most.0"), failed("most.0", FailureClass::Transient)])
    .after([claimed("most.1"), completed("most.1")])
    .step_is("most", StepState::Completed)
    .check(|run| {
        assert!(run.memory.payloads["end/input"].contains(r#""index":0,"class":"transient""#));
    });
}

#[test]
fn a_repeat_reads_the_round_before_and_ends_when_its_condition_holds() {
    given(
        r#"
workflow: w
steps:
  - { id: poll, task: t.poll, with: { last: "${{ previous.output }}" }, repeat: { until: output.done, every: 10s, max: 5, collect: true } }
"#,
    )
    .after([started(), claimed("poll.1")])
    .when(completed_with("poll.1", r#"{"n":1}"#))
    .then(["task.completed", "step.completed", "step.entered", "step.blocked", "run.waiting_on_timer"])
    .when(passed("10s"))
    .then(["step.reset", "task.issued", "run.queued"])
    .check(|run| assert_eq!(&*run.memory.payloads["poll.2/input"], r#"{"last":{"n":1}}"#))
    .after([claimed("poll.2"), completed_with("poll.2", r#"{"done":true}"#)])
    .output("poll", r#"[{"n":1},{"done":true}]"#)
    .state(Succeeded);
}

#[test]
fn a_break_ends_the_loop_around_it() {
    given("workflow: w\nsteps: [ { id: page, task: t.page, repeat: { max: 100 } } ]")
        .after([started(), claimed("page.1"), completed("page.1"), claimed("page.2")])
        .when(broke_off("page.2"))
        .then([
            "task.completed",
            "loop.broken",
            "step.completed",
            "step.completed",
            "workflow.completed",
            "run.succeeded",
        ]);
}

#[test]
fn rounds_without_end_fail_the_step() {
    given("workflow: w\nsteps: [ { id: p, task: t.p, repeat: { until: output.done, max: 2 } } ]")
        .after([started(), claimed("p.1"), completed("p.1"), claimed("p.2"), completed("p.2")])
        .state(Failed)
        .check(|run| assert_eq!(run.head().failure.as_ref().and_then(|f| f.code.as_deref()), Some("repeat_exhausted")));
}

#[test]
fn an_expression_that_cannot_be_evaluated_asks_for_a_correction_and_names_the_key() {
    let run = given(r#"{workflow: w, steps: [ { id: a, task: t.a, with: "${{ input.order.amount + 1 }}" } ]}"#)
        .after([started_with(r#"{"order":{"total":5}}"#)])
        .state(WaitingOnOperator);
    let message = run.row("a").block.as_ref().map(|block| block.message.clone()).unwrap_or_default();
    assert!(message.contains("amount") && message.contains("total"), "{message}");
    run.when(resolve("a", Resolution::Correct { input: r#"{"n":6}"#.into() }))
        .then(["operator.resolved", "step.reset", "task.issued", "run.queued"])
        .after([claimed("a"), completed("a")])
        .state(Succeeded);
}

#[test]
fn finally_steps_run_once_before_any_end_and_their_failure_is_a_warning() {
    let document = "workflow: w\nsteps: [ { id: a, task: t.a } ]\nfinally: [ { id: tell, task: t.tell } ]";
    let at_work = given(document).after([started(), claimed("a")]);
    at_work
        .clone()
        .when(completed("a"))
        .then([
            "task.completed",
            "step.completed",
            "workflow.completed",
            "finally.started",
            "task.issued",
            "run.queued",
        ])
        .after([claimed("tell")])
        .when(failed("tell", FailureClass::Fatal))
        .then(["task.failed", "step.failed", "warning.added", "finally.ended", "run.completed_with_warnings"]);
    at_work
        .when(failed("a", FailureClass::Fatal))
        .then(["task.failed", "step.failed", "workflow.failed", "finally.started", "task.issued", "run.queued"])
        .after([claimed("tell"), completed("tell")])
        .state(Failed);
}

#[test]
fn an_output_that_cannot_be_made_fails_the_run_as_invalid() {
    given("workflow: w\nsteps: [ { id: a, task: t.a } ]\noutput: { x: '${{ steps.a.output.n + 1 }}' }")
        .after([started(), claimed("a"), completed_with("a", r#"{"n":"one"}"#)])
        .state(Failed)
        .check(|run| assert_eq!(run.head().failure.as_ref().map(|f| f.kind), Some(FailureKind::Invalid)));
}

#[test]
fn a_delayed_start_waits_in_queued_and_then_begins() {
    let run = given("workflow: w\nsteps: [ { id: a, task: t.a } ]");
    let mut start = abide_core::run::command::Start::with_input("{}");
    start.start_at = Some(BEGIN + abide_core::time::Span::from_secs(60));
    run.when(Act::Start(Box::new(start)))
        .then(["run.queued"])
        .when(passed("59s"))
        .then([])
        .when(passed("1s"))
        .then(["workflow.started", "task.issued"])
        .state(Queued);
}

#[test]
fn an_input_that_its_schema_refuses_starts_nothing() {
    given("workflow: w\ninput: { type: object, required: [order] }\nsteps: [ { id: a, task: t.a } ]")
        .when(started_with("{}"))
        .then_rejected("input-invalid");
}

/// More elements than one expression may visit.
fn a_long_list() -> Act {
    started_with(&format!(r#"{{"list":[{}0]}}"#, "0,".repeat(20_000)))
}

#[test]
fn an_expression_that_costs_too_much_fails_its_step_instead_of_asking_for_a_correction() {
    for part in [
        "with: { n: '${{ input.list.map(x, x + 1) }}' }",
        "when: 'input.list.all(x, x == 0)'",
        "requires: 'input.list.all(x, x == 0)'",
        "verify: 'input.list.all(x, x == 0)'",
        "for_each: 'input.list.map(x, x + 1)'",
    ] {
        let run = given(&format!("workflow: w\nsteps: [ {{ id: a, task: t.a, {part} }} ]")).after([a_long_list()]);
        let run = if part.starts_with("verify") { run.after([claimed("a"), completed("a")]) } else { run };
        run.state(Failed).check(|run| {
            let failure = run.head().failure.as_ref().expect("a failure");
            assert_eq!(failure.code.as_deref(), Some("expression_cost_exceeded"), "{part}");
            assert_eq!((failure.kind, failure.class), (FailureKind::Invalid, FailureClass::Fatal), "{part}");
        });
    }
}
