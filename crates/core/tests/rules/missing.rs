//! A key that is missing is never a silent null: the step that reads it asks for a correction.

use abide_core::contract::{FailureClass, RunState::*, StepState};
use abide_core::run::command::Resolution;

use crate::given::*;

/// Of a document whose step `b` reads something that `a` did not give.
fn fails(step: &str, expected: &str) -> Given {
    let document = format!("workflow: w\nsteps:\n  - {{ id: a, task: t.a }}\n  - {{ id: b, {step} }}\n");
    let run = given(&document).after([started(), claimed("a"), completed_with("a", r#"{"query":"x","none":null}"#)]);
    run.state(WaitingOnOperator).check(|run| {
        let failure = run.row("b").failure.as_ref().expect("a failure");
        assert_eq!(failure.class, FailureClass::Validation);
        assert_eq!(failure.code.as_deref(), Some("expression_missing_key"));
        assert_eq!(failure.message, expected);
    })
}

#[test]
fn in_what_a_step_reads_it_is_the_failure_of_that_step_and_names_expression_key_and_keys() {
    let says = |expression: &str| format!("`{expression}` reads key `queris`, which is missing; present: query, none");
    let path = "steps.a.output.queris";
    fails(&format!("task: t.b, with: {{ q: \"${{{{ {path} }}}}\" }}"), &says(path));
    fails(&format!("task: t.b, with: {{ q: \"text ${{{{ {path} }}}}\" }}"), &says(path));
    fails(&format!("child: c, with: \"${{{{ {path} }}}}\""), &says(path));
    fails(&format!("task: t.b, when: {path}"), &says(path));
    fails(&format!("task: t.b, requires: {path}"), &says(path));
    fails(&format!("task: t.b, for_each: {path}"), &says(path));
    fails(&format!("http: {{ url: \"https://x.y/${{{{ {path} }}}}\" }}"), &says(path));
    fails(&format!("approval: {{ subject: \"${{{{ {path} }}}}\" }}"), &says(path));
}

#[test]
fn a_corrected_input_resumes_the_step() {
    fails(
        "task: t.b, with: { q: \"${{ steps.a.output.queris }}\" }",
        "`steps.a.output.queris` reads key `queris`, which is missing; present: query, none",
    )
    .after([resolve("b", Resolution::Correct { input: r#"{"q":"x"}"#.into() }), claimed("b"), completed("b")])
    .state(Succeeded)
    .log_holds();
}

#[test]
fn what_may_be_absent_and_what_is_below_null_is_null() {
    let document = r#"
workflow: w
steps:
  - { id: a, task: t.a }
  - { id: skipped, task: t.s, when: "false" }
  - id: b
    task: t.b
    with: { x: "${{ steps.a.output.?queris }}", y: "${{ steps.skipped.output.id }}", z: "${{ steps.a.output.none.deeper }}" }
"#;
    given(document)
        .after([started(), claimed("a"), completed_with("a", r#"{"none":null}"#)])
        .step_is("b", StepState::Issued)
        .check(|run| {
            assert_eq!(
                &*run.memory.payloads[&run.row("b").task.as_ref().expect("a task").input.name],
                r#"{"x":null,"y":null,"z":null}"#
            )
        });
}

#[test]
fn where_a_result_is_matched_a_missing_key_means_no_match() {
    let document = "workflow: w\nsteps: [ { id: a, task: t.a, on_result: [ { when: output.kind.code > 3, then: skip }, { then: complete } ] } ]";
    for output in [r#"{"other":1}"#, r#"{"kind":null}"#, "null"] {
        given(document)
            .after([started(), claimed("a"), completed_with("a", output)])
            .state(Succeeded)
            .output("a", output);
    }
    let loops = "workflow: w\nsteps: [ { id: a, task: t.a, repeat: { until: output.done, max: 3 } } ]";
    given(loops).after([started(), claimed("a.1"), completed_with("a.1", "{}")]).step_is("a.2", StepState::Issued);
}

#[test]
fn in_a_title_it_is_a_question_mark() {
    given("workflow: w\nsteps: [ { id: ok, approval: { title: \"Ship ${{ input.order.id }}?\" } } ]")
        .after([started_with(r#"{"order":{}}"#)])
        .state(WaitingOnApproval)
        .check(|run| {
            let block = run.row("ok").block.as_ref().expect("a block");
            let abide_core::run::step::Wait::Approval(wait) = &block.wait else { panic!("{block:?}") };
            assert_eq!(wait.title, "Ship ??");
        });
}

#[test]
fn in_the_output_of_the_run_it_is_a_warning_and_null() {
    given("workflow: w\nsteps: [ { id: a, task: t.a } ]\noutput: { id: \"${{ steps.a.output.idd }}\", q: \"${{ steps.a.output.q }}\" }")
        .after([started(), claimed("a"), completed_with("a", r#"{"id":1,"q":2}"#)])
        .state(CompletedWithWarnings)
        .check(|run| {
            assert_eq!(run.memory.payloads.get(&abide_core::ids::PayloadName::output()).map(|json| &**json), Some(r#"{"id":null,"q":2}"#));
            let warning = &run.head().warnings.newest[0];
            assert_eq!(warning.code, "output_missing_key");
            assert!(warning.message.contains("`idd`") && warning.message.contains("id, q"), "{}", warning.message);
        })
        .log_holds();
}

#[test]
fn a_probe_or_an_undo_whose_input_cannot_be_made_asks_a_person() {
    let document = r#"
workflow: w
steps:
  - { id: pay, task: t.pay, effect: external, reconcile: { task: t.find, with: { id: "${{ input.order }}" } } }
"#;
    given(document).after([started(), claimed("pay"), lost("pay")]).state(WaitingOnOperator).check(|run| {
        let message = &run.row("pay").block.as_ref().expect("a block").message;
        assert!(message.contains("reads key `order`, which is missing"), "{message}");
    });
}
