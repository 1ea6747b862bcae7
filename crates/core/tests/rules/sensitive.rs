//! Sensitive values: only tasks, probes and undos get them, whatever a worker repeats elsewhere.

use abide_core::contract::{Evidence, EvidenceKind, FailureClass, RunState::*};
use abide_core::ids::PayloadName;
use abide_core::run::command::*;
use abide_core::run::step::{Progress, Resource};
use serde_json::json;

use crate::given::*;

const CARD: &str = "4111-1111-canary";
/// The card in Base64, as a header of basic authentication would hold it.
const ENCODED: &str = "NDExMS0xMTExLWNhbmFyeQ";
const PAY: &str = "
workflow: order
sensitive: [/card]
saga: true
steps:
  - { id: pay, task: t.pay, effect: external, reconcile: t.find, compensate: t.refund, with: { card: '${{ input.card }}' } }
  - { id: end, task: t.end }
";

fn order(document: &str) -> Given {
    given(document).after([started_with(&json!({ "card": CARD, "cvv": "123" }).to_string()), claimed("pay")])
}

/// No event and no row holds the value, in any writing; the log folds to the same rows.
#[track_caller]
fn nothing_shows(run: Given) -> Given {
    let log: String = run.memory.log.iter().map(|record| format!("{record:?}")).collect();
    let rows = format!("{:?} {:?}", run.memory.rows, run.memory.working.head);
    for writing in [CARD, ENCODED] {
        assert!(!log.contains(writing), "an event holds it\n{}", run.story());
        assert!(!rows.contains(writing), "a row holds it: {rows}");
    }
    run.log_holds()
}

fn said() -> String {
    format!("card {CARD} (Basic {ENCODED}) was declined")
}

fn fault(class: FailureClass) -> Fault {
    Fault {
        class: Some(class),
        message: said(),
        code: Some(said()),
        tool: Some(said()),
        details: Some(json!({ "stack": [said()], "card": CARD })),
        ..Fault::default()
    }
}

fn report() -> Report {
    Report {
        output: Some(json!({ "charged": CARD }).to_string().as_str().into()),
        resources: vec![Resource {
            kind: "charge".into(),
            id: format!("ch-{CARD}"),
            url: Some(format!("https://pay/{CARD}")),
        }],
        warnings: vec![said()],
        ..Report::default()
    }
}

#[test]
fn a_failure_that_repeats_a_sensitive_value_is_written_down_without_it() {
    use FailureClass::*;
    for class in [Transient, Validation, Auth, Permission, Conflict, Fatal, OutcomeUnknown, RateLimited] {
        let run = nothing_shows(order(PAY).after([failed_with("pay", fault(class))]));
        let log: String = run.memory.log.iter().map(|record| record.payload.get()).collect();
        assert!(log.contains("card [redacted] (Basic [redacted]"), "{class:?} says the rest: {log}");
    }
}

#[test]
fn a_result_that_repeats_a_sensitive_value_leaves_it_in_the_sealed_output_alone() {
    let mut run = order(PAY);
    let holding = run.holding("pay");
    let evidence = Evidence { kind: EvidenceKind::Log, reference: said(), step_id: None, at: None };
    let command = Command {
        evidence: vec![evidence],
        ..Command::new(Actor::worker("w1"), Ask::Complete { holding, report: report() })
    };
    run.memory.apply(&run.definition, &command, &run.around, run.now).expect("completed");
    let run = nothing_shows(run);
    assert_eq!(run.row("pay").resources[0].id, "ch-[redacted:1]");
    assert!(run.story().contains("card [redacted] (Basic [redacted]Q) was declined"), "{}", run.story());
}

#[test]
fn progress_and_waits_hide_what_they_repeat() {
    let mut run = order(PAY);
    let holding = run.holding("pay");
    let progress = Some(Progress { done: 1, total: None, message: Some(said()), at: None });
    let reply = run.ask(Actor::worker("w1"), Ask::Heartbeat { holding, progress }).expect("alive");
    assert!(matches!(&reply, Reply::Beat { message: Some(shown), .. } if !shown.contains(CARD)), "{reply:?}");
    nothing_shows(run);

    let asked = ApprovalAsked {
        title: said(),
        subject: json!({ "card": CARD }).to_string().as_str().into(),
        approvers: vec!["ana".into()],
        quorum: 1,
        not_requester: false,
        deadline: None,
        at_deadline: None,
        form: Some(json!({ "description": said() }).to_string().as_str().into()),
    };
    for on in [
        BlockOn::Auth { tool: "bank".into(), account: Some(CARD.into()) },
        BlockOn::Operator { reason: said(), recommended: Some(said()) },
        BlockOn::Approval(Box::new(asked)),
    ] {
        nothing_shows(order(PAY).after([blocked("pay", on)]));
    }
}

#[test]
fn what_people_write_hides_what_it_repeats() {
    nothing_shows(order(PAY).after([asked(Ask::Pause { reason: said() })]));
    nothing_shows(order(PAY).after([asked(Ask::Cancel { reason: said(), undo: None, grace: None })]));
}

#[test]
fn a_probe_and_an_undo_get_the_value_and_the_identifiers_as_they_were() {
    let run = order(PAY).after([received("pay", None, "ch-4111-1111-canary", None), lost("pay")]);
    let input = |run: &Given| {
        let task = run.row("pay").task.clone().expect("a task");
        run.memory.payloads[&task.input.name].to_string()
    };
    let probe = input(&run);
    assert!(probe.contains(&format!(r#""card":"{CARD}""#)) && probe.contains("ch-4111-1111-canary"), "{probe}");
    let run = nothing_shows(run).after([claimed("pay.probe")]);
    let found = json!({ "found": true, "external_id": format!("ch-{CARD}"), "output": { "of": CARD } }).to_string();
    let run = nothing_shows(run.after([completed_with("pay.probe", &found)]));
    let run = run.after([claimed("end"), failed("end", FailureClass::Fatal)]).state(Compensating);
    let undo = input(&run);
    assert!(undo.contains(&format!(r#""of":"{CARD}""#)) && undo.contains("ch-4111-1111-canary"), "{undo}");
    nothing_shows(run);
}

#[test]
fn a_child_inherits_what_is_sensitive() {
    let run = given(
        "workflow: order\nsensitive: [/card]\nsteps: [ { id: kid, child: kid, with: { c: '${{ input.card }}' } } ]",
    )
    .after([started_with(&json!({ "card": CARD }).to_string())]);
    let child = run.effects.iter().find_map(|effect| match effect {
        Effect::StartChild(child) => Some((**child).clone()),
        _ => None,
    });
    let child = child.expect("a child");
    let mut start = Start::with_input(child.input.clone());
    (start.sealed, start.inherited) = (child.sealed, child.inherited.clone());
    let kid = given("workflow: kid\nsteps: [ { id: pay, task: t.pay } ]").after([Act::Start(Box::new(start))]);
    assert!(kid.memory.payloads[&PayloadName::input()].contains(CARD), "its tasks get the value");
    nothing_shows(kid.after([claimed("pay"), failed_with("pay", fault(FailureClass::Fatal))]).state(Failed));
}

#[test]
fn the_title_of_an_approval_hides_what_it_is_made_of() {
    let document = "
workflow: order
sensitive: [/card]
steps:
  - { id: pay, task: t.pay }
  - { id: ok, approval: { title: 'Ship ${{ steps.pay.output.of }}?', approvers: [ana] } }
";
    let output = json!({ "of": format!("<{CARD}>") }).to_string();
    let run = nothing_shows(order(document).after([completed_with("pay", &output)]).state(WaitingOnApproval));
    assert!(run.story().contains("Ship <[redacted]>?"), "{}", run.story());
}

#[test]
fn coded_steps_hide_what_they_repeat() {
    let coded = "workflow: order\nsensitive: [/card]\ncoded: { revision: '1' }";
    let run = given(coded).after([started_with(&json!({ "card": CARD }).to_string()), claimed("body")]);
    let begin = vec![crate::coded::begin("fine"), crate::coded::begin("failed")];
    let run = crate::coded::said(run, vec![], begin, vec![]);
    let done = |name: &str, result| StepDone { step_id: name.into(), begun_at: None, result };
    let done = vec![done("fine", Ok(report())), done("failed", Err(fault(FailureClass::Fatal)))];
    let run = crate::coded::said(run, done, vec![], vec![]);
    nothing_shows(run);
}
