//! Child runs: started with the decision that needs them, waited for, canceled, blamed.

use abide_core::contract::{FailureClass, FailureKind, RunState::*, StepState};
use abide_core::ids::RunId;
use abide_core::run::command::{Ask, BlockOn, ChildOutcome, Effect};

use crate::given::*;

const PARENT: &str = "workflow: w\nsteps: [ { id: stock, child: inventory, with: { n: '${{ input.n }}' } }, { id: a, task: t.a, with: '${{ steps.stock.output }}' } ]";

#[test]
fn a_child_is_started_with_its_step_and_its_output_is_ours() {
    given(PARENT)
        .when(started_with(r#"{"n":1}"#))
        .then([
            "run.queued",
            "workflow.started",
            "step.entered",
            "child.started",
            "step.blocked",
            "run.waiting_on_child",
        ])
        .check(|run| {
            let Some(Effect::StartChild(child)) = run.effects.iter().find(|e| matches!(e, Effect::StartChild(_)))
            else {
                panic!("no child")
            };
            assert_eq!((&*child.input, child.workflow.as_str(), child.depth), (r#"{"n":1}"#, "inventory", 1));
        })
        .when(child_ended("stock", Succeeded, Some(r#"{"ok":1}"#)))
        .then(["child.ended", "step.completed", "task.issued", "run.queued"])
        .check(|run| assert_eq!(&*run.memory.payloads["a/input"], r#"{"ok":1}"#))
        .when(child_ended("stock", Succeeded, Some(r#"{"ok":2}"#)))
        .then([]);
}

#[test]
fn a_childs_failure_or_cancel_is_the_parents_with_its_id() {
    for state in [Failed, Canceled] {
        given(PARENT).after([started_with(r#"{"n":1}"#), child_ended("stock", state, None)]).state(Failed).check(
            |run| {
                let failure = run.head().failure.clone().expect("a failure");
                assert_eq!(failure.kind, FailureKind::ChildFailed);
                assert!(failure.child_run_id.is_some());
            },
        );
    }
}

#[test]
fn a_child_that_cannot_start_fails_its_step() {
    let outcome = ChildOutcome::Refused { message: "there is no workflow inventory".into() };
    given(PARENT)
        .after([
            started_with(r#"{"n":1}"#),
            asked(Ask::ChildEnded { path: "stock".into(), run_id: RunId::from("x"), outcome }),
        ])
        .state(Failed);
}

#[test]
fn a_childs_warnings_are_passed_up() {
    let outcome = ChildOutcome::Ended { state: CompletedWithWarnings, output: None, failure: None, warnings: 2 };
    given("workflow: w\nsteps: [ { id: stock, child: inventory } ]")
        .after([
            started_with(r#"{"n":1}"#),
            asked(Ask::ChildEnded { path: "stock".into(), run_id: RunId::from("x"), outcome }),
        ])
        .state(CompletedWithWarnings);
}

#[test]
fn a_cancel_reaches_the_child_and_waits_for_it() {
    given(PARENT)
        .after([started_with(r#"{"n":1}"#)])
        .when(cancel())
        .then(["cancel.asked", "run.cancel_requested"])
        .check(|run| assert!(run.effects.iter().any(|effect| matches!(effect, Effect::CancelChild { .. }))))
        .when(child_ended("stock", Canceled, None))
        .then(["child.ended", "step.canceled", "run.canceled"]);
}

#[test]
fn a_child_that_is_left_is_not_waited_for() {
    given("workflow: w\nsteps: [ { id: stock, child: inventory, on_cancel: leave } ]")
        .after([started()])
        .when(cancel())
        .then(["cancel.asked", "step.canceled", "run.canceled"])
        .check(|run| assert!(!run.effects.iter().any(|effect| matches!(effect, Effect::CancelChild { .. }))));
}

const LOOSE: &str = "workflow: w\nsteps: [ { id: go, child: inventory, wait: false }, { id: a, task: t.a }, { id: join, join_child: go } ]";

#[test]
fn a_parent_may_go_on_and_join_later() {
    given(LOOSE)
        .after([started()])
        .step_is("go", StepState::Completed)
        .state(Queued)
        .after([claimed("a"), completed("a")])
        .state(WaitingOnChild)
        .after([child_ended("go", Succeeded, Some("7"))])
        .output("join", "7")
        .state(Succeeded);
}

#[test]
fn a_child_that_ended_before_the_join_is_joined_at_once() {
    given(LOOSE)
        .after([started(), child_ended("go", Succeeded, Some("7")), claimed("a"), completed("a")])
        .output("join", "7")
        .state(Succeeded);
}

#[test]
fn a_parent_is_told_how_its_child_ended() {
    let mut start = abide_core::run::command::Start::with_input("{}");
    let parent = abide_core::run::Parent { run_id: RunId::from("run_p"), step_id: "stock".into() };
    start.parent = Some(parent.clone());
    given("workflow: w\nsteps: [ { id: a, task: t.a } ]")
        .after([Act::Start(Box::new(start)), claimed("a"), completed("a")])
        .check(|run| {
            let told = Effect::TellParent { parent: parent.clone(), state: Succeeded, failure: None, warnings: 0 };
            assert!(run.effects.contains(&told));
        });
}

#[test]
fn children_are_nested_only_so_deep() {
    let mut start = abide_core::run::command::Start::with_input("{}");
    start.depth = abide_core::run::limits::DEPTH + 1;
    given("workflow: w\nsteps: [ { id: a, task: t.a } ]").when(Act::Start(Box::new(start))).then_rejected("too-deep");
}

/// Its task would be issued for a result that nobody needs, and a cancel that met it there was refused.
#[test]
fn an_item_that_is_not_needed_any_more_ends_with_its_child() {
    let child = BlockOn::Child { workflow: "sub".into(), input: "1".into() };
    given("workflow: w\nsteps: [ { id: each, for_each: input, parallel: 2, task: t } ]")
        .after([started_with("[1, 2]"), claimed("each.0"), blocked("each.0", child)])
        .after([claimed("each.1"), failed("each.1", FailureClass::Fatal)])
        .state(WaitingOnChild)
        .when(child_ended("each.0", Succeeded, Some("1")))
        .state(Failed);
}
