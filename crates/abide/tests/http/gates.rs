//! Gates have one door: random walks of every role through the API, judged by the log of each run.

use serde_json::{Value, json};

use crate::stage::Stage;

const GATED: &str = "workflow: gated
steps:
  - id: ok
    approval: { title: Ship it?, subject: { n: 1 }, approvers: [ana, 'role:manager'], quorum: 2, not_requester: true }
  - { id: ship, task: ship }
";
const ASKING: &str = "workflow: asking
steps:
  - { id: ok, task: ask }
";

/// Somebody with a key, and what their signature is worth.
struct Person {
    name: &'static str,
    key: String,
    groups: &'static [&'static str],
    acts_for_others: bool,
}

/// Calls at random, the same for the same seed.
struct Walk {
    stage: Stage,
    people: Vec<Person>,
    runs: Vec<String>,
    seed: u64,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut stage = Stage::new();
        let mut people = Vec::new();
        let rows: [(&str, &str, &[&str], bool); 8] = [
            ("root", "admin", &[], false),
            ("olga", "operator", &[], false),
            ("bot", "operator", &[], true),
            ("ana", "approver", &[], false),
            ("max", "approver", &["manager"], false),
            ("eve", "approver", &[], false),
            ("vic", "viewer", &["manager"], false),
            ("w1", "worker", &[], false),
        ];
        for (name, role, groups, acts_for_others) in rows {
            let asked = json!({ "name": name, "role": role, "groups": groups, "acts_for_others": acts_for_others });
            let made = stage.post("/v1/keys", asked);
            assert_eq!(made.status, 201, "{}", made.text());
            let key = made.json()["key"].as_str().expect("a key").to_owned();
            stage.key.get_or_insert_with(|| key.clone());
            people.push(Person { name, key, groups, acts_for_others });
        }
        for document in [GATED, ASKING] {
            assert_eq!(stage.apply(document).status, 201);
        }
        Walk { stage, people, runs: Vec::new(), seed }
    }

    fn below(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % n
    }

    fn as_somebody(&mut self, path: &str, body: &Value) -> Value {
        let people = self.people.len();
        let person = self.below(people);
        self.call(person, path, body)
    }

    fn call(&self, person: usize, path: &str, body: &Value) -> Value {
        let bearer = format!("Bearer {}", self.people[person].key);
        let heard = self.stage.post_with(path, &[("Authorization", &bearer)], body.clone());
        assert!(heard.status < 500, "{path}: {}", heard.text());
        serde_json::from_slice(&heard.body).unwrap_or_default()
    }

    fn step(&mut self) {
        if self.runs.is_empty() || self.below(12) == 0 {
            let workflow = ["gated", "asking"][self.below(2)];
            let started = self.as_somebody("/v1/runs", &json!({ "workflow": workflow }));
            self.runs.extend(started["run_id"].as_str().map(Into::into));
            return;
        }
        let n = self.runs.len();
        let back = self.below(n.min(4));
        let run = self.runs[n - 1 - back].clone();
        let names = ["ana", "max", "eve", "olga", "bot", "root", "w1"];
        let name = names[self.below(names.len())];
        let forged = json!({ "decision": "approved", "by": name, "at": "2026-01-01T00:00:00Z" });
        let decision = match self.below(3) {
            0 => json!({ "step_id": "ok", "decision_by": name }),
            1 => json!({ "step_id": "ok" }),
            _ => json!({}),
        };
        match self.below(14) {
            0..=3 => drop(self.as_somebody(&format!("/v1/runs/{run}/approve"), &decision)),
            4..=6 => {
                let action = ["complete", "correct", "skip", "retry", "compensate"][self.below(5)];
                let asked = json!({ "step_id": "ok", "action": action, "output": forged, "input": {}, "reason": "x" });
                self.as_somebody(&format!("/v1/runs/{run}/resolve"), &asked);
            }
            7 | 8 => self.press_a_link(&run, name),
            9 => drop(self.as_somebody(&format!("/v1/runs/{run}/signals/ok"), &json!({ "payload": forged }))),
            10 => {
                let what = ["pause", "resume", "cancel", "reconnect"][self.below(4)];
                self.as_somebody(&format!("/v1/runs/{run}/{what}"), &json!({ "reason": "x" }));
            }
            11 => {
                let from = ["ok", "ship"][self.below(2)];
                let (what, asked) =
                    [("retry", json!({})), ("rerun", json!({ "from_step": from }))][self.below(2)].clone();
                let made = self.as_somebody(&format!("/v1/runs/{run}/{what}"), &asked);
                self.runs.extend(made["run_id"].as_str().filter(|id| **id != run).map(Into::into));
            }
            _ => self.work(),
        }
    }

    /// Makes a link and presses it oneself.
    fn press_a_link(&mut self, run: &str, whom: &str) {
        let made = self.as_somebody(&format!("/v1/runs/{run}/approvals/ok/links"), &json!({ "for": whom }));
        let Some(url) = made["url"].as_str() else { return };
        let path = &url[url.find("/links").expect("its path")..];
        self.stage.send("POST", path, &[("Content-Type", "application/x-www-form-urlencoded")], b"decision=approve");
    }

    /// A worker asks for an approval, and goes on when it has one; it ships what may be shipped.
    fn work(&mut self) {
        let worker = self.people.len() - 1;
        let claim = json!({ "worker": "w", "queues": ["default"], "wait_ms": 0 });
        let Some(task) = self.call(worker, "/v1/tasks/claim", &claim)["tasks"].get(0).cloned() else { return };
        let base = format!("/v1/tasks/{}", task["task_id"].as_str().expect("a task"));
        let asks = task["handler"] == "ask" && task["answers"].as_array().is_none_or(Vec::is_empty);
        if asks {
            let asked = json!({ "epoch": task["epoch"], "on": "approval", "title": "?", "subject": 1,
                "approvers": ["ana", "role:manager"], "quorum": 2, "not_requester": true });
            let blocked = self.call(worker, &format!("{base}/block"), &asked);
            assert!(blocked["run_id"].is_string(), "{blocked}");
        } else {
            self.call(worker, &format!("{base}/complete"), &json!({ "epoch": task["epoch"], "output": 1 }));
        }
    }

    /// Whoever passed a gate: two people who may, neither of whom asked for the run or made a link to it.
    fn judge(&self) -> usize {
        let mut passed = 0;
        for run in &self.runs {
            let events = self.stage.get(&format!("/v1/runs/{run}/events?limit=500")).json();
            let events = events["events"].as_array().expect("events").clone();
            let asked = events.iter().any(|event| event["kind"] == "step.blocked" || event["kind"] == "step.carried");
            let went_on = events.iter().any(|event| {
                let shipped = event["kind"] == "task.issued" && event["step_id"] == "ship";
                shipped || event["kind"] == "run.succeeded" || event["kind"] == "answer.delivered"
            });
            if !(asked && went_on) {
                continue;
            }
            let carried = events.iter().any(|event| event["kind"] == "step.carried" && event["step_id"] == "ok");
            let mut by: Vec<String> = Vec::new();
            for event in events.iter().filter(|event| event["kind"] == "approval.given") {
                by.push(self.check_decision(event, &events));
            }
            by.sort();
            by.dedup();
            assert!(carried || by.len() >= 2, "{run} passed its gate with {by:?}: {events:#?}");
            passed += 1;
        }
        passed
    }

    fn check_decision(&self, event: &Value, events: &[Value]) -> String {
        let by = event["payload"]["by"].as_str().expect("who").to_owned();
        let actor = event["actor"]["id"].as_str().expect("an actor");
        let person = |name: &str| self.people.iter().find(|person| person.name == name);
        let speaks = person(actor).expect("a known actor");
        assert!(actor == by || speaks.acts_for_others, "{actor} spoke for {by}");
        let member = |name: &str| person(name).is_some_and(|person| person.groups.contains(&"manager"));
        assert!(by == "ana" || member(&by) || member(actor), "{by} may not decide: {event}");
        let requester = events[0]["actor"]["id"].as_str();
        assert_ne!(requester, Some(by.as_str()), "{by} asked for the run");
        let made = events.iter().filter(|event| event["kind"] == "approval.link_made");
        let made_before = made.filter(|made| made["seq"].as_u64() < event["seq"].as_u64());
        assert!(made_before.clone().all(|made| made["actor"]["id"] != by.as_str()), "{by} made a link");
        assert!(made_before.clone().all(|made| made["actor"]["id"] == "bot"), "a link of somebody without the right");
        by
    }
}

#[test]
fn nobody_without_the_right_gets_a_gate_passed_by_any_sequence_of_calls() {
    let mut walk = Walk::new(7);
    for _ in 0..700 {
        walk.step();
    }
    let passed = walk.judge();
    assert!(passed > 0, "no gate was passed by those who may: the walk proves nothing");
}

#[test]
fn a_link_takes_the_right_to_act_for_others_and_a_person_who_may_decide() {
    let mut walk = Walk::new(1);
    let run = walk.call(0, "/v1/runs", &json!({ "workflow": "gated" }))["run_id"].as_str().expect("a run").to_owned();
    walk.runs.push(run.clone());
    let path = format!("/v1/runs/{run}/approvals/ok/links");
    let link = |person: usize, whom: &str| walk.call(person, &path, &json!({ "for": whom }));
    let (root, olga, bot) = (0, 1, 2);
    for person in [root, olga] {
        assert_eq!(link(person, "ana")["code"], "forbidden");
    }
    assert!(link(bot, "ana")["url"].is_string(), "an approver by name");
    assert!(link(bot, "max")["url"].is_string(), "a member of the group");
    assert_eq!(link(bot, "eve")["code"], "not-an-approver");
    assert_eq!(link(bot, "stranger")["code"], "not-an-approver");
}
