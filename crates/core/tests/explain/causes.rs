//! Chains to the root cause, what comes by itself, triage, and the past.

use abide_core::contract::{FailureClass, RunState};
use abide_core::definition::Definition;
use abide_core::explain::{
    Answer, At, ChildFacts, Explanation, LinkKind, Listener, NotThen, QueueFacts, Surroundings, explain, explain_at,
    record_at,
};
use abide_core::ids::{Namespace, RunId, WorkerId};
use abide_core::play::{BEGINNING, Script, play};
use abide_core::run::command::{Ask, BlockOn};
use abide_core::time::Span;
use serde_json::json;

use crate::stage::{RUN, Stage};

const GRANDCHILD: &str = "{workflow: leaf, steps: [{id: gate, approval: {title: 'Ship it?', approvers: [ana]}}]}";
const CHILD: &str = "{workflow: middle, steps: [{id: inner, child: leaf}]}";
const PARENT: &str =
    "{workflow: top, steps: [{id: outer, after: [], child: middle}, {id: nap, after: [], child: rest}]}";
const SLEEPER: &str = "{workflow: rest, steps: [{id: hour, signal: bell}]}";

/// Explains the first run of a play with its children around it, from the innermost outwards.
fn explain_family() -> Explanation {
    let documents = [PARENT, CHILD, GRANDCHILD, SLEEPER];
    let script =
        Script { workflows: documents[1..].iter().map(|text| (*text).to_owned()).collect(), ..Script::default() };
    let played = play(PARENT, script).unwrap();
    let definitions: Vec<Definition> =
        documents.iter().map(|text| Definition::parse(text).unwrap().definition).collect();
    let mut around = Surroundings::default();
    // A later sleeper must not hide the one that has waited for longest.
    let now = played.at + Span::from_secs(60);
    let mut runs: Vec<_> = played.runs.iter().collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.working.head.started.depth));
    let mut last = None;
    for run in runs {
        let head = &run.working.head;
        let definition = definitions.iter().find(|definition| definition.workflow == head.started.workflow_id).unwrap();
        let explained = explain(&run.working, definition, &around, now);
        let mut facts = ChildFacts::of(&run.working, explained.clone());
        if head.started.workflow_id.as_str() == "rest" {
            facts.since = now;
        }
        around.children.insert(head.run_id.clone(), facts);
        last = Some(explained);
    }
    last.unwrap()
}

#[test]
fn a_parent_whose_grandchild_waits_for_ana_says_so() {
    let explained = explain_family();
    assert_eq!(explained.state, RunState::WaitingOnChild);
    assert_eq!(
        explained.summary,
        "Waiting on 2 children: waiting on approval: ana decides \"Ship it?\"; there is no deadline."
    );
    let kinds: Vec<LinkKind> = explained.chain.iter().map(|link| link.kind).collect();
    use LinkKind::{Block, Person, Run, Step};
    assert_eq!(kinds, [Run, Step, Block, Run, Step, Block, Run, Step, Block, Person]);
    let root = explained.chain.last().unwrap();
    assert_eq!((root.id.as_str(), root.what.as_str()), ("ana", "ana decides \"Ship it?\""));
    assert_eq!(explained.why, "Waiting on approval: ana decides \"Ship it?\"; there is no deadline.");
    let first = &explained.can_be_done[0];
    assert_eq!(
        (first.id, first.who.as_slice()),
        ("approve", ["ana".to_owned()].as_slice()),
        "it can be ended from here"
    );
    assert!(first.of_run.as_ref().is_some_and(|run| first.href.contains(run.as_str())), "{first:?}");
}

#[test]
fn a_child_of_which_nothing_is_known_is_named() {
    let stage = Stage::new("{workflow: top, steps: [{id: outer, child: middle}]}", json!({}));
    let summary = stage.summary();
    assert!(summary.starts_with("Waiting on child: run_") && summary.ends_with(" is open."), "{summary}");
}

#[test]
fn what_comes_by_itself_is_told_in_order_and_with_its_outcome() {
    let mut stage = Stage::new(
        "
workflow: pay
deadline: 24h
steps:
  - { id: charge, after: [], task: t.charge, timeout: 5m }
  - { id: manager, after: [], approval: { approvers: [ana], deadline: 2h, at_deadline: { escalate: [boss] } } }
  - { id: nap, after: [], sleep: 10m }
",
        json!({}),
    );
    stage.claim("charge", "worker-3");
    let coming: Vec<String> =
        stage.explain().will_happen.iter().map(|coming| format!("{} {}", coming.at, coming.what)).collect();
    assert_eq!(
        coming,
        [
            "2026-01-01T00:00:30.000000Z the lease of worker-3 on charge is lost, unless a heartbeat comes",
            "2026-01-01T00:05:00.000000Z this attempt of charge times out",
            "2026-01-01T00:10:00.000000Z nap wakes",
            "2026-01-01T02:00:00.000000Z the wait of manager is over: boss is asked",
            "2026-01-02T00:00:00.000000Z the run's deadline passes and it fails as timed_out",
        ]
    );
    let proof = stage.explain().proof;
    assert_eq!(proof.fresh_for.as_deref(), Some("30s"));
    assert_eq!(proof.wake_at, Some(BEGINNING + Span::from_secs(30)));
}

#[test]
fn while_a_run_is_held_sleeps_do_not_end() {
    let mut stage = Stage::new("{workflow: rest, steps: [{id: nap, sleep: 10m}]}", json!({}));
    stage.user(Ask::Pause { reason: "looking".into() });
    assert_eq!(stage.explain().will_happen, []);
    assert_eq!(stage.explain().why, "olga paused it: looking.");
}

#[test]
fn the_grace_of_a_cancel_is_told_where_it_takes_a_lease_away() {
    let document = "{workflow: w, steps: [{id: work, task: t}], finally: [{id: tell, task: t}]}";
    let cancel = Ask::Cancel { reason: "wrong order".into(), undo: None, grace: None };
    let graces =
        |stage: &Stage| stage.explain().will_happen.iter().filter(|coming| coming.what.starts_with("workers")).count();
    let mut stage = Stage::new(document, json!({}));
    stage.claim("work", "worker-3").user(cancel.clone());
    assert_eq!(graces(&stage), 1);
    let mut stage = Stage::new(document, json!({}));
    stage.user(cancel).claim("tell", "worker-3");
    assert_eq!(graces(&stage), 0, "a finally step may go on after the grace");
}

#[test]
fn the_cause_of_a_failure_is_a_chain_too() {
    let mut stage = Stage::new("{workflow: pay, steps: [{id: charge, task: t}]}", json!({}));
    stage.claim("charge", "worker-3").fail("charge", FailureClass::Fatal, "card declined");
    let chain = stage.explain().chain;
    let told: Vec<&str> = chain.iter().map(|link| link.what.as_str()).collect();
    assert_eq!(told, ["Failed at charge: card declined.", "charge failed in attempt 1", "card declined"]);
}

fn answers(stage: &Stage) -> Vec<(Answer, String)> {
    stage.triage().into_iter().map(|triage| (triage.answer, triage.detail)).collect()
}

#[test]
fn a_lost_worker_answers_the_five_questions() {
    let document = "{workflow: pay, steps: [{id: charge, task: payments.charge, recovery: {lost: hold}}]}";
    let mut stage = Stage::new(document, json!({}));
    stage.claim("charge", "worker-3").later("5m");
    let listener = Listener { worker: WorkerId::from("worker-4"), handlers: None, last_poll_at: stage.now };
    stage.queue("default", QueueFacts { listeners: vec![listener], depth: 3, oldest_at: None });
    assert_eq!(
        answers(&stage),
        [
            (Answer::Yes, "worker-3 lost lease 1 of charge at 2026-01-01T00:00:30Z.".into()),
            (Answer::No, "No open step waits for anything outside.".into()),
            (Answer::No, "No retry is scheduled.".into()),
            (Answer::No, "Workers listen on queue default for payments.charge; 3 tasks in line.".into()),
            (Answer::No, "charge is in attempt 1, with 1 worker lost.".into()),
        ]
    );
    let triage = stage.explain().triage.unwrap();
    assert_eq!(triage[0].proof["worker"], "worker-3");
    stage.queue("default", QueueFacts::default());
    assert_eq!(answers(&stage)[3], (Answer::Yes, "No worker listens on queue default for payments.charge.".into()));
    stage.surroundings.queues.clear();
    assert_eq!(answers(&stage)[3].0, Answer::Unknown);
}

#[test]
fn an_overdue_wait_is_a_wait() {
    let mut stage =
        Stage::new("{workflow: sign, steps: [{id: signed, signal: document.signed, deadline: 1h}]}", json!({}));
    stage.later("2h");
    let answers = answers(&stage);
    assert_eq!(answers[0], (Answer::No, "No open step of this run has lost a worker.".into()));
    assert_eq!(answers[1], (Answer::Yes, "signed waits for signal document.signed.".into()));
    assert_eq!(stage.triage()[1].proof["type"], "signal_pending");
}

#[test]
fn an_input_that_kills_workers_is_named() {
    let mut stage = Stage::new("{workflow: pay, steps: [{id: charge, task: t}]}", json!({}));
    stage.claim("charge", "worker-3").later("1m").claim("charge", "worker-4").later("1m");
    assert_eq!(answers(&stage)[4], (Answer::Yes, "2 workers died on the input of charge.".into()));
}

#[test]
fn the_past_is_explained_from_the_log() {
    let mut stage = Stage::new("{workflow: pay, steps: [{id: charge, task: t}]}", json!({}));
    stage.later("10s").claim("charge", "worker-3");
    stage.later("5s").block("charge", BlockOn::Auth { tool: "stripe".into(), account: None });
    stage.later("1h").user(Ask::Reconnect { tool: None, account: None, generation: None });
    stage.work("charge");
    let (run_id, namespace, around) = (RunId::from(RUN), Namespace::from("default"), Surroundings::default());
    let at = |seconds: u64| {
        let at = At::Time(BEGINNING + Span::from_secs(seconds));
        explain_at(&run_id, &namespace, &stage.memory.log, &stage.definition, &around, at).map(|then| then.summary)
    };
    assert_eq!(at(5).unwrap(), "Queued: charge waits for a worker on queue default.");
    // Heartbeats are not in the log, so that none is claimed.
    assert_eq!(at(12).unwrap(), "Running charge: leased to worker-3 at 2026-01-01T00:00:10Z.");
    assert_eq!(at(60).unwrap(), "Waiting on auth: reconnect stripe to continue.");
    assert_eq!(at(1_000_000).unwrap(), "Succeeded after 1h.");
    let before = explain_at(
        &run_id,
        &namespace,
        &stage.memory.log,
        &stage.definition,
        &around,
        At::Time(BEGINNING - Span::from_secs(1)),
    );
    assert_eq!(before.unwrap_err(), NotThen::TooEarly { first: BEGINNING });
    let none = record_at(&run_id, &namespace, &stage.memory.log, &stage.definition, &around, At::Seq(999));
    assert!(matches!(none, Err(NotThen::NoSuchEvent { asked: 999, .. })));
    let first = record_at(&run_id, &namespace, &stage.memory.log, &stage.definition, &around, At::Seq(1)).unwrap();
    assert_eq!((first.state, first.as_of_seq, first.next_actions.len()), (RunState::Queued, 1, 0));
}
