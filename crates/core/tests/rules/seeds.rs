//! The lists of tests, edge cases, examples and checklists that the idea of Abide came with, one by one.

use abide_core::contract::{FailureClass, FailureKind, ReasonType, RunState, RunState::*, StepState};
use abide_core::play::{Expect, Played, Script, play};
use abide_core::run::command::{Ask, BlockOn, Fault, Reply, Resolution};

use crate::given::*;

fn played(document: &str, script: &str) -> Played {
    let script: Script = serde_json::from_str(script).expect("a script");
    play(document, script).expect("a play")
}

/// The status matrix: only the execution's own events close it.
mod lower_layers_never_close_a_run {
    use super::*;

    #[test]
    fn positive_it_stays_running_while_work_is_issued() {
        steps(&["a", "b"]).after([claimed("a"), completed("a")]).state(Queued).after([claimed("b")]).state(Running);
    }

    #[test]
    fn positive_it_is_completed_only_after_its_own_closing_event() {
        let run = steps(&["a"]).after([claimed("a"), completed("a")]);
        let kinds: Vec<&str> = run.memory.log.iter().map(|record| record.kind.as_str()).collect();
        assert_eq!(kinds.last(), Some(&"run.succeeded"));
        assert_eq!(kinds.iter().filter(|kind| kind.starts_with("run.succ")).count(), 1);
    }

    #[test]
    fn positive_it_is_failed_only_after_its_own_closing_event() {
        let run = steps(&["a"]).after([claimed("a"), failed("a", FailureClass::Fatal)]);
        assert_eq!(run.memory.log.last().map(|record| record.kind.as_str()), Some("run.failed"));
    }

    #[test]
    fn positive_it_is_canceled_only_after_its_own_closing_event() {
        let run = steps(&["a"]).after([claimed("a"), cancel()]).state(CancelRequested).after([stopped("a")]);
        assert_eq!(run.memory.log.last().map(|record| record.kind.as_str()), Some("run.canceled"));
    }

    /// Replays a log without its `run.*` events: whatever the lower layers did, the state does not move.
    fn state_without_lifecycle_events(run: &Given) -> Option<RunState> {
        let head = run.head();
        let mut folded = abide_core::run::Working::unborn(head.run_id.clone(), head.namespace.clone());
        for (n, record) in run.memory.log.iter().enumerate() {
            let first = n == 0;
            if record.to_state.is_some() && !first {
                continue;
            }
            let event = abide_core::run::event::Event { seq: folded.head.seq + 1, ..record.event().expect("readable") };
            abide_core::run::fold(&mut folded, &event).expect("it folds");
        }
        folded.head.state
    }

    #[test]
    fn negative_the_end_of_the_last_visible_task_does_not_complete_it() {
        let run = steps(&["a"]).after([claimed("a"), completed("a")]);
        assert_eq!(state_without_lifecycle_events(&run), Some(Queued));
    }

    #[test]
    fn negative_the_end_of_an_iteration_does_not_complete_it() {
        given("workflow: w\nsteps: [ { id: p, task: t.p, repeat: { max: 3 } } ]")
            .after([started(), claimed("p.1"), completed("p.1")])
            .step_is("p.1", StepState::Completed)
            .state(Queued);
        given("workflow: w\nsteps: [ { id: e, for_each: input, task: t.e } ]")
            .after([started_with("[1,2]"), claimed("e.0"), completed("e.0")])
            .state(Queued);
    }

    #[test]
    fn negative_nothing_pending_for_a_moment_does_not_complete_it() {
        // No task is open between two rounds: only the time is awaited, and the run says so.
        given("workflow: w\nsteps: [ { id: p, task: t.p, repeat: { every: 1m, max: 3 } } ]")
            .after([started(), claimed("p.1"), completed("p.1")])
            .state(WaitingOnTimer);
    }

    #[test]
    fn negative_a_failure_that_is_handled_does_not_fail_it() {
        given("workflow: w\nsteps: [ { id: a, task: t.a, on_result: [ { when: 'failure.class == \"fatal\"', then: complete } ] }, { id: b, task: t.b } ]")
            .after([started(), claimed("a"), failed("a", FailureClass::Fatal)])
            .state(Queued);
    }

    #[test]
    fn negative_spellings_of_lower_layers_cannot_reach_the_state() {
        for text in ["COMPLETED", "Completed", "completed ", "done"] {
            assert_eq!(RunState::parse(text), None);
            assert!(serde_json::from_str::<StepState>(&format!("\"{text}\"")).is_err());
        }
    }

    #[test]
    fn negative_a_tool_outcome_is_never_a_state_of_the_run() {
        let run = given("workflow: w\nsteps: [ { id: p, task: t.p, repeat: { max: 9 } }, { id: b, task: t.b } ]")
            .after([started(), claimed("p.1"), broke_off("p.1")]);
        run.state(Queued).step_is("p", StepState::Completed);
    }
}

/// The edge cases that break naive designs.
mod edge_cases {
    use super::*;

    #[test]
    fn a_refresh_in_the_middle_of_a_run_only_reads() {
        let run = steps(&["a"]).after([claimed("a")]);
        let before = (run.head().clone(), run.memory.log.len());
        for _ in 0..100 {
            let _ = abide_core::run::project(&run.memory.working);
            let _ = abide_core::run::wake_at(&run.memory.working, run.around.serving_since);
        }
        assert_eq!(before, (run.head().clone(), run.memory.log.len()));
    }

    #[test]
    fn oauth_expires_and_the_same_step_goes_on_without_repeating_finished_ones() {
        let fault = Fault {
            class: Some(FailureClass::Auth),
            tool: Some("google_drive".into()),
            message: "401".into(),
            ..Fault::default()
        };
        steps(&["fetch", "upload"])
            .after([claimed("fetch"), completed("fetch"), claimed("upload"), failed_with("upload", fault)])
            .state(WaitingOnAuth)
            .check(|run| {
                let reason = run.row("upload").block.as_ref().map(|block| block.reason());
                assert_eq!(reason, Some(ReasonType::OauthReconnectRequired));
            })
            .after([reconnect("google_drive"), claimed("upload"), completed("upload")])
            .state(Succeeded)
            .check(|run| {
                let claims = run.memory.log.iter().filter(|record| record.kind == "task.claimed").count();
                assert_eq!(claims, 3, "fetch once, upload twice");
            });
    }

    #[test]
    fn an_approval_that_times_out_fails_or_warns_as_declared() {
        for (outcome, state) in [("fail", Failed), ("warn", CompletedWithWarnings)] {
            given(&format!("workflow: w\nsteps: [ {{ id: ok, approval: {{ approvers: [ana], deadline: 1h, at_deadline: {outcome} }} }} ]"))
                .after([started()])
                .state(WaitingOnApproval)
                .after([passed("1h")])
                .state(state);
        }
    }

    #[test]
    fn a_retry_has_the_key_of_the_first_try() {
        let run = steps(&["mail"]).after([claimed("mail"), intended("mail", "send")]);
        let Ok(Reply::Effect { key: first, .. }) = run.reply().cloned() else { panic!("a key") };
        let run = run.after([
            failed("mail", FailureClass::Transient),
            passed("2s"),
            claimed("mail"),
            intended("mail", "send"),
        ]);
        let Ok(Reply::Effect { key: second, .. }) = run.reply().cloned() else { panic!("a key") };
        assert_eq!(first, second);
    }

    #[test]
    fn a_retry_is_never_scheduled_without_its_instant() {
        let run = steps(&["a"]).after([claimed("a"), failed("a", FailureClass::Transient)]).state(RetryScheduled);
        let until = run.row("a").block.as_ref().and_then(|block| block.until);
        assert!(until.is_some() && run.memory.wake_at == until);
    }

    #[test]
    fn a_partial_rerun_leaves_the_old_run_as_it_was() {
        // In full in `reruns`; here the promise: an ended run refuses every change.
        steps(&["a"])
            .after([claimed("a"), completed("a")])
            .when(resolve("a", Resolution::Skip))
            .then_rejected("run-terminal");
    }
}

/// The life cycles of the examples, state by state.
mod lifecycles {
    use super::*;

    #[test]
    fn the_happy_path() {
        let run = played(
            "workflow: orders\nsteps: [ { id: validate, task: v }, { id: charge, task: c }, { id: ship, task: s } ]",
            "{}",
        );
        assert_eq!(run.states(), [Queued, Running, Queued, Running, Queued, Running, Succeeded]);
    }

    #[test]
    fn an_async_step_is_waited_for_without_a_worker() {
        let script = r#"{"handlers": {"send": [{"block": {"callback": {"name": "sent"}}}, {"count": 10000}]},
                         "answers": [{"callback": {"step": "send", "name": "sent", "payload": {"ok": true}}}]}"#;
        let run = played("workflow: mail\nsteps: [ { id: send, task: send }, { id: track, task: track } ]", script);
        assert_eq!(run.states(), [Queued, Running, WaitingOnTool, Queued, Running, Queued, Running, Succeeded]);
    }

    #[test]
    fn a_human_in_the_loop() {
        let document = "workflow: loan\nsteps: [ { id: risk, task: risk }, { id: manager, approval: { approvers: [ana] } }, { id: pay, task: pay } ]";
        let run = played(document, r#"{"answers": [{"approve": {"by": "ana"}, "after": "26h"}]}"#);
        assert_eq!(run.states(), [Queued, Running, WaitingOnApproval, Queued, Running, Succeeded]);
    }

    #[test]
    fn a_sub_workflow() {
        let document = "workflow: order\nsteps: [ { id: stock, child: allocate }, { id: ship, task: ship } ]";
        let script = r#"{"workflows": ["workflow: allocate\nsteps: [ { id: take, task: take } ]\noutput: { n: '${{ steps.take.output }}' }"],
                         "handlers": {"take": [7]}}"#;
        let run = played(document, script);
        assert_eq!(run.states(), [Queued, WaitingOnChild, Queued, Running, Succeeded]);
        assert_eq!(run.runs.len(), 2, "exactly one child");
        assert_eq!(run.run().output_of("stock").map(|json| &**json), Some(r#"{"n":7}"#));
    }

    #[test]
    fn a_child_that_waits_for_a_person_holds_its_parent_and_its_failure_is_the_parents() {
        let document = "workflow: order\nsteps: [ { id: pay, child: payment } ]";
        let child = r#""workflows": ["workflow: payment\nsteps: [ { id: ok, approval: { approvers: [ana] } } ]"]"#;
        let waiting = played(document, &format!("{{{child}}}"));
        assert_eq!(waiting.state(), WaitingOnChild);
        assert_eq!(waiting.runs[1].working.head.state, Some(WaitingOnApproval));
        let failed = played(document, &format!(r#"{{{child}, "answers": [{{"reject": {{"by": "ana"}}}}]}}"#));
        assert_eq!(failed.state(), Failed);
        let failure = failed.run().working.head.failure.clone().expect("a failure");
        assert_eq!(
            (failure.kind, failure.cause.map(|cause| cause.kind)),
            (FailureKind::ChildFailed, Some(FailureKind::Rejected))
        );
    }

    #[test]
    fn a_saga_undoes_the_booking() {
        let document = r#"
workflow: booking
saga: true
steps:
  - { id: flight, task: flight, compensate: cancel_flight }
  - { id: hotel, task: hotel, compensate: cancel_hotel }
  - { id: pay, task: pay, compensate: refund }
"#;
        let run =
            played(document, r#"{"handlers": {"pay": [{"fail": {"class": "fatal", "message": "card declined"}}]}}"#);
        assert_eq!(run.states(), [Queued, Running, Queued, Running, Queued, Running, Compensating, Failed]);
        let undone: Vec<&str> = run
            .log()
            .iter()
            .filter(|record| record.kind == "step.compensated")
            .filter_map(|record| record.step_id.as_ref().map(|path| path.as_str()))
            .collect();
        assert_eq!(undone, ["hotel", "flight"]);
        let expect: Expect =
            serde_json::from_str(r#"{"state": "failed", "steps": {"hotel": "compensated", "pay": "failed"}}"#)
                .expect("JSON");
        assert_eq!(run.unmet(&expect), Vec::<String>::new());
    }

    #[test]
    fn a_crashed_worker_is_found_and_taken_over() {
        let run =
            played("workflow: w\nsteps: [ { id: a, task: a } ]", r#"{"handlers": {"a": [{"lost": true}, {"ok": 1}]}}"#);
        assert_eq!(run.states(), [Queued, Running, Stalled, Queued, Running, Succeeded]);
    }
}

/// Failure by failure, the good response.
mod recovery_table {
    use super::*;

    #[test]
    fn a_network_timeout_after_a_create_is_reconciled_before_it_is_retried() {
        given(
            "workflow: w\nsteps: [ { id: create, task: t.create, effect: external, reconcile: t.find, timeout: 10s } ]",
        )
        .after([started(), claimed("create"), passed("30s")])
        .step_is("create", StepState::Reconciling)
        .check(|run| assert_eq!(run.row("create").attempt, 1));
    }

    #[test]
    fn a_validation_failure_stays_and_asks_for_a_correction() {
        steps(&["a"])
            .after([claimed("a"), failed("a", FailureClass::Validation)])
            .state(WaitingOnOperator)
            .step_is("a", StepState::Waiting);
    }

    #[test]
    fn a_permission_failure_blocks_and_escalates() {
        steps(&["a"]).after([claimed("a"), failed("a", FailureClass::Permission)]).state(WaitingOnOperator);
    }

    #[test]
    fn a_partial_cleanup_resumes_by_its_stored_identifiers() {
        given("workflow: w\nsaga: true\nsteps: [ { id: a, task: t.a, compensate: t.clean }, { id: b, task: t.b } ]")
            .after([started(), claimed("a"), received("a", Some("bucket"), "bkt_9", None), completed("a")])
            .after([claimed("b"), failed("b", FailureClass::Fatal), claimed("a.undo"), lost("a.undo")])
            .check(|run| {
                let input = run.row("a").task.as_ref().map(|task| task.input.name.clone()).expect("the undo again");
                assert!(run.memory.payloads[&input].contains("bkt_9"));
            });
    }

    #[test]
    fn a_conflict_is_evaluated_again_against_what_is_true_now() {
        given("workflow: w\nsteps: [ { id: a, task: t.a, requires: input.ok } ]")
            .after([started_with(r#"{"ok":true}"#), claimed("a"), failed("a", FailureClass::Conflict)])
            .step_is("a", StepState::Issued);
    }

    #[test]
    fn an_effect_whose_confirmation_was_lost_happens_once() {
        let document = "workflow: w\nsteps: [ { id: pay, task: pay, effect: external, reconcile: find } ]";
        let script = r#"{"handlers": {"pay": [{"lost": true}], "find": [{"found": true, "output": {"id": 1}}]}}"#;
        let run = played(document, script);
        assert_eq!(run.state(), Succeeded);
        let calls = run
            .log()
            .iter()
            .filter(|r| r.kind == "task.claimed" && r.step_id.as_ref().is_some_and(|p| p.as_str() == "pay"));
        assert_eq!(calls.count(), 1);
    }

    #[test]
    fn what_cannot_be_recovered_safely_is_handed_over_with_its_ids() {
        given("workflow: w\nsteps: [ { id: a, task: t.a }, { id: pay, task: t.pay, effect: external } ]")
            .after([
                started(),
                claimed("a"),
                received("a", None, "pr_418", None),
                completed("a"),
                claimed("pay"),
                lost("pay"),
            ])
            .state(WaitingOnOperator)
            .check(|run| {
                assert_eq!(
                    run.row("a").receipt.as_ref().and_then(|receipt| receipt.external_id.as_deref()),
                    Some("pr_418")
                );
            });
    }
}

/// The checklist before shipping a stateful workflow.
mod checklist {
    use super::*;

    #[test]
    fn state_is_written_before_every_dispatch() {
        // The task that workers see is an event of the decision that needs it; there is no other way to get one.
        steps(&["a", "b"]).after([claimed("a")]).when(completed("a")).then([
            "task.completed",
            "step.completed",
            "task.issued",
            "run.queued",
        ]);
    }

    #[test]
    fn parallel_completions_do_not_overwrite_each_other() {
        given("workflow: w\nsteps: [ { id: a, task: t.a, after: [] }, { id: b, task: t.b, after: [] }, { id: c, task: t.c, after: [a, b] } ]")
            .after([started(), claimed("a"), claimed("b"), completed_with("a", "1"), completed_with("b", "2")])
            .output("a", "1")
            .output("b", "2")
            .step_is("c", StepState::Issued)
            .check(|run| {
                let issued = run.memory.log.iter().filter(|r| r.kind == "task.issued" && r.step_id.as_ref().is_some_and(|p| p.as_str() == "c"));
                assert_eq!(issued.count(), 1, "fan-in is decided once");
            });
    }

    #[test]
    fn a_sweep_finds_what_is_stuck_and_offers_it_again_with_its_input() {
        steps(&["a"])
            .after([claimed("a")])
            .check(|run| assert!(run.memory.wake_at.is_some()))
            .after([lost("a")])
            .check(|run| {
                let task = run.row("a").task.clone().expect("it is offered again");
                assert_eq!(task.input.name.as_str(), "input");
            });
    }

    #[test]
    fn the_original_input_is_kept_unchanged() {
        let input = r#"{ "z": 1.0, "a": [ ] }"#;
        given("workflow: w\nsteps: [ { id: a, task: t.a } ]")
            .after([started_with(input), claimed("a"), completed("a")])
            .check(|run| assert_eq!(&*run.memory.payloads["input"], input));
    }

    #[test]
    fn a_run_can_be_asked_by_its_id_what_it_is_doing() {
        let run = steps(&["a"]).after([claimed("a")]);
        assert_eq!(abide_core::run::project(&run.memory.working).state(), Running);
    }

    #[test]
    fn a_task_that_waits_for_a_tool_holds_no_worker() {
        steps(&["a"])
            .after([claimed("a"), blocked("a", BlockOn::Signal { name: "done".into(), deadline: None })])
            .state(WaitingOnTool)
            .check(|run| assert!(run.row("a").task.is_none()))
            .when(asked(Ask::Signal { name: "done".into(), payload: "1".into() }))
            .then(["signal.received", "signal.taken", "answer.delivered", "task.issued", "run.queued"]);
    }
}
