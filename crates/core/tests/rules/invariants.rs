//! What the checker says of logs and rows that the rules would not have written.

use abide_core::contract::{Evidence, EvidenceKind, RunState};
use abide_core::ids::{Digest, Path, RunId};
use abide_core::run::event::Record;
use abide_core::run::invariant::{self, Descent, MAX_LAG, Served, Violation};
use abide_core::run::limits;
use abide_core::run::step::Step;
use abide_core::time::{Span, Timestamp};
use serde_json::value::RawValue;

use crate::given::*;

/// The log of a run in which somebody changed something and made the chain good again.
fn forged(run: &Given, forge: impl FnOnce(&mut Vec<Record>)) -> Vec<Violation> {
    assert_eq!(invariant::broken_log(&run.memory.log), []);
    let mut log = run.memory.log.clone();
    forge(&mut log);
    invariant::broken_log(&chained(log))
}

fn chained(mut log: Vec<Record>) -> Vec<Record> {
    let mut before = Digest::default();
    for record in &mut log {
        record.hash = record.chained_to(before);
        before = record.hash;
    }
    log
}

#[track_caller]
fn only(found: &[Violation], rule: &str, says: &str) {
    assert!(!found.is_empty() && found.iter().all(|one| one.rule == rule && one.what.contains(says)), "{found:#?}");
}

fn last<'a>(log: &'a mut [Record], kind: &str) -> &'a mut Record {
    log.iter_mut().rfind(|record| record.kind == kind).expect("such an event")
}

fn replaced(record: &mut Record, from: &str, to: &str) {
    let text = record.payload.get();
    assert!(text.contains(from), "{text}");
    record.payload = RawValue::from_string(text.replacen(from, to, 1)).expect("json");
}

fn done() -> Given {
    given("workflow: w\nsteps: [ { id: a, task: t.a } ]").after([started(), claimed("a"), completed("a")])
}

#[test]
fn the_state_beside_an_event_is_that_of_its_fact() {
    let run = done();
    only(&forged(&run, |log| last(log, "run.succeeded").to_state = None), "I3", "to None");
    let other = Some(RunState::CompletedWithWarnings);
    only(&forged(&run, |log| last(log, "run.succeeded").to_state = other), "I3", "completed_with_warnings");
    only(&forged(&run, |log| last(log, "step.completed").from_state = Some(RunState::Running)), "I3", "running");
}

#[test]
fn an_event_is_not_before_the_one_before_it() {
    let run = given("workflow: w\nsteps: [ { id: a, task: t.a } ]").after([started(), passed("1s"), claimed("a")]);
    let early = |log: &mut Vec<Record>| log.last_mut().expect("an event").at = BEGIN;
    only(&forged(&run, early), "I46", "before the one before it");
}

fn gate(fields: &str) -> Given {
    given(&format!("workflow: w\nsteps: [ {{ id: ok, approval: {{ title: 'Ship it?', {fields} }} }} ]"))
}

#[test]
fn who_decides_was_asked_and_may_and_has_not_decided_before() {
    let run = gate("approvers: [ana, bob]").after([started(), approved_by("ana")]);
    only(&forged(&run, |log| replaced(last(log, "approval.given"), "ana", "mallory")), "I44", "ana or bob may");
    let unasked = |log: &mut Vec<Record>| replaced(last(log, "step.blocked"), "\"approval\"", "\"timer\"");
    only(&forged(&run, unasked), "I44", "nobody was asked");
    let run = gate("not_requester: true").after([started(), approved_by("ana")]);
    only(&forged(&run, |log| replaced(last(log, "approval.given"), "ana", "starter")), "I44", "started the run");
    let run = gate("approvers: [ana, bob], quorum: 2").after([started(), approved_by("ana"), approved_by("bob")]);
    only(&forged(&run, |log| replaced(last(log, "approval.given"), "bob", "ana")), "I44", "decided before");
}

#[test]
fn those_to_whom_an_approval_was_escalated_may_decide() {
    let fields =
        "{ id: ok, deadline: 1h, at_deadline: { escalate: [bob] }, approval: { title: 't', approvers: [ana] } }";
    let run = given(&format!("workflow: w\nsteps: [ {fields} ]")).after([started(), passed("61m"), approved_by("bob")]);
    only(&forged(&run, |log| replaced(last(log, "approval.given"), "bob", "ana")), "I44", "bob may");
}

#[test]
fn nobody_is_held_to_a_group_that_stands_in_no_log() {
    let run = gate("approvers: ['role:manager']").groups(&["manager"]).after([started(), approved_by("bob")]);
    assert_eq!(forged(&run, |log| replaced(last(log, "approval.given"), "bob", "mallory")), []);
}

#[test]
fn a_step_has_no_more_attempts_than_its_document_and_operators_allow() {
    let retry = "{ id: a, task: t.a, retry: { max_attempts: 2, first: 1s } }";
    let fail = || failed("a", abide_core::contract::FailureClass::Transient);
    let run = given(&format!("workflow: w\nsteps: [ {retry} ]"));
    let run = run.after([started(), claimed("a"), fail(), passed("2s"), claimed("a")]);
    let mut whole = run.memory.whole();
    assert_eq!(invariant::too_many_attempts(&whole, &run.definition), []);
    edit(&mut whole, |step| step.attempt = 3);
    only(&invariant::too_many_attempts(&whole, &run.definition), "I8", "attempt 3, 2 are allowed");
    edit(&mut whole, |step| step.granted = 1);
    assert_eq!(invariant::too_many_attempts(&whole, &run.definition), []);
}

fn edit(whole: &mut abide_core::run::Working, edit: impl FnOnce(&mut Step)) {
    let step = whole.steps.get_mut(&Path::from("a")).and_then(Option::as_mut).expect("a row");
    edit(std::sync::Arc::make_mut(step));
}

#[test]
fn what_is_due_is_not_left_by_an_engine_that_serves() {
    let run = given("workflow: w\nsteps: [ { id: nap, sleep: 10s } ]").after([started()]);
    let due = BEGIN + Span::from_secs(10);
    assert_eq!(run.memory.wake_at, Some(due));
    let (whole, moment) = (run.memory.whole(), Span::from_millis(1));
    let overdue = |since, until| invariant::overdue(&whole, run.memory.wake_at, Served { since, until });
    assert_eq!(overdue(BEGIN, due + MAX_LAG), []);
    only(&overdue(BEGIN, due + MAX_LAG + moment), "I34", "was due at");
    assert_eq!(overdue(due + moment, due + MAX_LAG + moment), [], "no engine served when it was due");
}

#[test]
fn a_lease_does_not_outlive_its_window_by_more_than_another() {
    let run = given("workflow: w\nsteps: [ { id: a, task: t.a } ]").after([started(), claimed("a")]);
    let (whole, window) = (run.memory.whole(), limits::LEASE);
    let late = BEGIN + window + window + Span::from_secs(2);
    // Whatever its row says of when it is looked at.
    let overdue = |since, until| invariant::overdue(&whole, Some(until), Served { since, until });
    assert_eq!(overdue(BEGIN, late), []);
    only(&overdue(BEGIN, late + Span::from_millis(1)), "I15", "the lease of a was over");
    assert_eq!(overdue(BEGIN + Span::from_millis(1), late + Span::from_millis(1)), [], "an engine was down");
}

#[test]
fn a_child_is_known_to_its_parent_and_one_level_below() {
    let run = given("workflow: w\nsteps: [ { id: c, child: other } ]").after([started()]);
    let run_id = run.row("c").child.as_ref().expect("a child").run_id.clone();
    let child = Descent { run_id, step_id: Path::from("c"), depth: 1 };
    let disowned = |depth, child: Descent| invariant::disowned(depth, &run.memory.log, [&child]);
    assert_eq!(disowned(0, child.clone()), []);
    only(&disowned(0, Descent { run_id: RunId::from("run_other"), ..child.clone() }), "I39", "did not start");
    only(&disowned(0, Descent { step_id: Path::from("d"), ..child.clone() }), "I39", "did not start");
    only(&disowned(0, Descent { depth: 2, ..child.clone() }), "I39", "at depth 2");
    let deep = Descent { depth: limits::DEPTH + 1, ..child };
    only(&disowned(limits::DEPTH, deep), "I39", "at depth");
}

#[test]
fn the_first_event_says_which_run_it_begins() {
    let run = done();
    let nobody = abide_core::run::Working::unborn(RunId::from(""), abide_core::ids::Namespace::from(""));
    let replayed = abide_core::run::replay(nobody, &run.memory.log).expect("the log folds");
    assert_eq!(replayed.head, run.memory.working.head);
    let log = older(&run.memory.log);
    assert_eq!(invariant::broken_log(&log), []);
    let known = abide_core::run::Working::unborn(run.head().run_id.clone(), run.head().namespace.clone());
    assert_eq!(abide_core::run::replay(known, &log).expect("an older log folds").head.run_id, run.head().run_id);
}

/// The same log as it was written before it said so.
fn older(log: &[Record]) -> Vec<Record> {
    let mut log = log.to_vec();
    let mut payload: serde_json::Value = serde_json::from_str(log[0].payload.get()).expect("json");
    assert!(payload.as_object_mut().expect("an object").remove("named").is_some());
    log[0].payload = RawValue::from_string(payload.to_string()).expect("json");
    chained(log)
}

/// A fold of the log would show it too, but not to somebody who makes the rows again first.
#[test]
fn a_hash_covers_everything_that_is_stored_of_an_event() {
    let seen = Evidence {
        kind: EvidenceKind::ALL[0],
        reference: "trace".into(),
        step_id: Some("a".into()),
        at: Some(Timestamp::from_micros(7)),
    };
    let log = done().memory.log;
    let entered = log.iter().find(|record| record.from_state.is_some()).expect("a state");
    let whole = Record { evidence: vec![seen.clone()], ..entered.clone() };
    let with = |evidence: Evidence| Record { evidence: vec![evidence], ..whole.clone() };
    let changed = [
        Record { seq: 99, ..whole.clone() },
        Record { at: Timestamp::from_micros(8), ..whole.clone() },
        Record { from_state: None, ..whole.clone() },
        Record { to_state: None, ..whole.clone() },
        Record { attempt: Some(9), ..whole.clone() },
        Record { step_id: Some("b".into()), ..whole.clone() },
        Record { evidence: Vec::new(), ..whole.clone() },
        with(Evidence { reference: "another".into(), ..seen.clone() }),
        with(Evidence { at: None, ..seen.clone() }),
        with(Evidence { step_id: None, ..seen.clone() }),
    ];
    let hash = |record: &Record| record.chained_to(Digest::default());
    for record in &changed {
        assert_ne!(hash(record), hash(&whole), "{record:?}");
    }
    // What earlier builds wrote keeps the hash that they gave it.
    let [older, other] = [&whole, &changed[8]].map(|record| Record { v: 1, ..record.clone() });
    assert_eq!(hash(&older), hash(&other));
    assert!(older.event().is_ok() && Record { v: 3, ..older.clone() }.event().is_err());
}
