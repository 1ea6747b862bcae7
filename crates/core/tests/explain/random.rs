//! Whatever a run went through, its answers hold: what is offered is accepted, what is not offered is refused, every
//! state carries what it must, every sentence fits, and no byte of a payload shows.

use abide_core::contract::FailureClass;
use abide_core::definition::EffectKind;
use abide_core::explain::{At, NextAction, Surroundings, evidence_of, run_at, status, summary};
use abide_core::ids::{Handler, Namespace, Path, RunId};
use abide_core::run::command::{
    Actor, Ask, CodedWait, Fault, Holding, Reply, Report, Resolution, StepBegin, StepDone, StepWait,
};
use abide_core::time::{Span, Timestamp};
use serde_json::{Value, json};

use crate::corpus;
use crate::stage::{RUN, Stage, tries};

/// Stands in every payload, and may stand in no answer.
const SECRET: &str = "4111-secret";

/// A reproducible source of choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides.max(1)
    }
}

fn input() -> Value {
    let mut input: Value = serde_json::from_str(corpus::INPUT).unwrap();
    input["secret"] = json!(SECRET);
    input
}

fn fill() -> Value {
    json!({ "form": {}, "input": { "secret": SECRET }, "payload": { "secret": SECRET } })
}

#[test]
fn answers_hold_whatever_a_run_went_through() {
    for (name, document) in corpus::DOCUMENTS {
        for seed in 0..8 {
            let mut dice = Dice(seed * 7_919 + name.len() as u64);
            let mut stage = Stage::new(document, input());
            for step in 0..40 {
                if stage.state().is_terminal() {
                    break;
                }
                let moved = move_somehow(&mut stage, &mut dice);
                holds(&stage, &format!("{name}, seed {seed}, step {step}, after {moved}"));
            }
            the_past_holds(&stage, name);
        }
    }
}

/// One thing that a worker, a person or time does.
fn move_somehow(stage: &mut Stage, dice: &mut Dice) -> String {
    stage.around.groups = vec!["manager".into()];
    let actions = stage.actions();
    let (ready, held) = (stage.ready(), stage.held.keys().cloned().collect::<Vec<_>>());
    match dice.roll(10) {
        0..4 if !ready.is_empty() => {
            let path = ready[dice.roll(ready.len())].clone();
            let worker = format!("worker-{}", dice.roll(4));
            stage.claim(path.as_str(), &worker);
            format!("claim {path}")
        }
        4..7 if held.iter().any(|path| path.as_str() == "body") && dice.roll(4) > 0 => {
            let ask = body_says(stage.held["body"].clone(), dice, stage.now);
            let taken = stage.ask(Actor::worker("worker"), ask);
            format!("the body says something ({taken:?})")
        }
        4..8 if !held.is_empty() => {
            let path = held[dice.roll(held.len())].clone();
            let holding = stage.held.remove(&path).unwrap();
            let said = match dice.roll(4) {
                0 => Ask::Fail { holding, fault: fault(dice) },
                _ => Ask::Complete { holding, report: report(dice) },
            };
            // A lease that is over is refused, which is as good as silence.
            let taken = stage.ask(Actor::worker("worker"), said).is_ok();
            format!("answer of {path} ({taken})")
        }
        8 if !actions.is_empty() && !stage.state().is_terminal() => {
            let action = actions[dice.roll(actions.len())].clone();
            if action.id.starts_with("cancel") && dice.roll(4) > 0 {
                return "nothing".into();
            }
            let (_, ask) = crate::stage::ask_of(&action, &fill());
            let taken = stage.ask(Actor::user("olga"), ask);
            format!("{} {:?} ({taken:?})", action.id, action.step_id)
        }
        _ => {
            let span = ["1s", "20s", "1m", "1h"][dice.roll(4)];
            stage.later(span);
            format!("{span} later")
        }
    }
}

fn fault(dice: &mut Dice) -> Fault {
    let class = FailureClass::ALL[dice.roll(FailureClass::ALL.len())];
    let tool = Some(["drive", "mail"][dice.roll(2)].to_owned());
    Fault { class: Some(class), message: "it did not work".into(), tool, ..Fault::default() }
}

/// A coded body begins, ends or waits for a step.
fn body_says(holding: Holding, dice: &mut Dice, now: Timestamp) -> Ask {
    let step_id = Path::new(format!("s{}", dice.roll(3)));
    let (mut done, mut begin, mut wait) = (Vec::new(), Vec::new(), Vec::new());
    match dice.roll(6) {
        0 | 1 => begin.push(StepBegin {
            step_id,
            effect: [EffectKind::None, EffectKind::External][dice.roll(2)],
            reconcile: (dice.roll(2) == 0).then(|| Handler::from("t.find")),
            compensate: Some(Handler::from("t.undo")),
            timeout: None,
            retry: None,
            input_digest: None,
        }),
        2 => done.push(StepDone { step_id, begun_at: None, result: Ok(report(dice)) }),
        3 => done.push(StepDone { step_id, begun_at: None, result: Err(fault(dice)) }),
        4 => wait
            .push(StepWait { step_id: Path::from("nap"), on: CodedWait::Sleep { until: now + Span::from_secs(60) } }),
        _ => {
            let on = CodedWait::Auth { tool: "drive".into(), account: None };
            wait.push(StepWait { step_id: Path::from("login"), on });
        }
    }
    Ask::Steps { holding, done, begin, wait, busy: false, beside: false }
}

fn report(dice: &mut Dice) -> Report {
    let output = match dice.roll(4) {
        0 => json!({ "found": true, "output": { "secret": SECRET }, "done": true }),
        1 => json!({ "found": null, "secret": SECRET }),
        2 => json!({ "found": false, "again": true, "secret": SECRET }),
        _ => json!({ "secret": SECRET, "x": 1 }),
    };
    Report { output: Some(output.to_string().into()), ..Report::default() }
}

fn holds(stage: &Stage, when: &str) {
    let record = stage.json();
    let state = stage.state();
    for field in state.requires() {
        let pointer = format!("/{}", field.replace('.', "/"));
        let found = record.pointer(&pointer).is_some_and(|value| !value.is_null());
        assert!(found, "{when}: {state} must carry {field}: {record:#}");
    }
    let summary = stage.summary();
    assert!(summary.chars().count() <= 160 && summary.ends_with(['.', '?', '…']), "{when}: {summary}");
    for text in [record.to_string(), json!(stage.explain()).to_string(), json!(stage.handoff()).to_string()] {
        assert!(!text.contains(SECRET), "{when}: a payload shows: {text}");
    }
    assert!(!json!(status(&stage.memory.working)).to_string().contains(SECRET), "{when}");
    assert_eq!(stage.triage().len(), 5);
    if !state.is_terminal() {
        what_is_offered_is_accepted(stage, when);
        what_is_not_offered_is_refused(stage, when);
        what_is_recommended_is_offered(stage, when);
    }
}

fn what_is_offered_is_accepted(stage: &Stage, when: &str) {
    for action in stage.actions() {
        let reply = tries(stage, &action, &fill());
        assert!(matches!(reply, Ok(ref reply) if *reply != Reply::Replayed), "{when}: {action:#?}: {reply:?}");
    }
}

fn what_is_not_offered_is_refused(stage: &Stage, when: &str) {
    let offers = stage.offers();
    let offered = |name: &str| offers.iter().any(|offer| offer == name);
    let mut asks: Vec<(String, Ask)> = vec![
        ("retry_now".into(), Ask::RetryNow),
        ("pause".into(), Ask::Pause { reason: "x".into() }),
        ("resume".into(), Ask::Resume { one_step: false }),
        ("cancel".into(), Ask::Cancel { reason: "x".into(), undo: None, grace: None }),
    ];
    for step in stage.memory.working.open().take(20) {
        let all = [
            Resolution::Retry { new_key: false },
            Resolution::Complete { output: None },
            Resolution::Correct { input: "{}".into() },
            Resolution::Skip,
            Resolution::Compensate,
            Resolution::Fail,
        ];
        for action in all {
            let name = format!("resolve_{} {}", action.name(), step.path);
            asks.push((name, Ask::Resolve { step_id: step.path.clone(), action, reason: "x".into() }));
        }
    }
    for (name, ask) in asks.into_iter().filter(|(name, _)| !offered(name)) {
        let mut copy = stage.clone();
        let reply = copy.ask(Actor::user("olga"), ask);
        assert!(matches!(reply, Err(_) | Ok(Reply::Replayed)), "{when}: {name} is not offered and accepted: {reply:?}");
    }
}

fn what_is_recommended_is_offered(stage: &Stage, when: &str) {
    let handoff = stage.handoff();
    let Some(recommended) = handoff.recommended else { return };
    let same = |action: &NextAction| action.id == recommended.action && action.step_id == recommended.step_id;
    assert!(handoff.actions.iter().any(same), "{when}: {recommended:?}");
}

/// Every prefix of the log can be explained.
fn the_past_holds(stage: &Stage, name: &str) {
    let (run_id, namespace) = (RunId::from(RUN), Namespace::from("default"));
    let head = &stage.memory.working.head;
    for event in &stage.memory.log {
        let (run, now) = run_at(&run_id, &namespace, &stage.memory.log, At::Seq(event.seq)).unwrap();
        assert_eq!(run.head.seq, event.seq);
        let said = summary(&run, &stage.definition, &Surroundings::default(), now);
        assert!(said.chars().count() <= 160 && !said.contains("heartbeat 0"), "{name}: {said}");
        evidence_of(head, event);
    }
}
