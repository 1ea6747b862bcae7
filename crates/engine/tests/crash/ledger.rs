//! What children said, and whether the store agrees.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::store::Run;
use crate::work::{self, Held};

/// Everything that was tried and acknowledged.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Keys of starts, with the run once it was acknowledged.
    pub keys: BTreeMap<String, Option<(String, u64)>>,
    /// Claims without an answer.
    pub claims: BTreeSet<String>,
    /// Leases that were acknowledged and have not ended.
    pub leases: BTreeSet<Held>,
    /// Leases whose end was reported, with or without an answer.
    pub tried: BTreeMap<Held, u32>,
    /// Leases that were ever acknowledged.
    pub leased: BTreeSet<Held>,
    /// Reports that were acknowledged: at which version, how, of which lease.
    pub reports: Vec<(u64, String, Held)>,
    /// What people said: verb, run, version.
    pub said: Vec<(String, String, u64)>,
    /// Runs that wait for people.
    pub runs: BTreeSet<(String, String)>,
    pub canceled: BTreeSet<String>,
    pub backups: Vec<String>,
    pub acknowledged: u64,
    pub odd: Vec<String>,
}

impl Ledger {
    pub fn hear(&mut self, lines: &[String]) {
        for line in lines {
            self.hear_line(line);
        }
    }

    fn hear_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        self.acknowledged += u64::from(words[0] == "ack");
        match words[..] {
            ["try", "start", key] => {
                self.keys.entry(key.into()).or_default();
            }
            ["ack", "start", key, run, seq] => {
                let seq = seq.parse().expect("a version");
                match self.keys.insert(key.into(), Some((run.into(), seq))) {
                    Some(Some((known, _))) if known != run => self.odd.push(format!("{key} is {known} and {run}")),
                    _ => {}
                }
                let of = work::workflow_of(key);
                if ["gate", "wait", "doomed"].contains(&of) {
                    self.runs.insert((of.into(), run.into()));
                }
            }
            ["try", "claim", id] => {
                self.claims.insert(id.into());
            }
            ["ack", "claim", id] => {
                self.claims.remove(id);
            }
            ["ack", "lease", ref held @ ..] => {
                let held = Held::parse(&held.join(" ")).expect("a lease");
                self.leased.insert(held.clone());
                self.leases.insert(held);
            }
            ["try", "report", ref held @ ..] => {
                *self.tried.entry(Held::parse(&held.join(" ")).expect("a lease")).or_default() += 1;
            }
            ["forgot", ref held @ ..] => {
                self.leases.remove(&Held::parse(&held.join(" ")).expect("a lease"));
            }
            ["ack", "report", seq, verb, ref held @ ..] => {
                let held = Held::parse(&held.join(" ")).expect("a lease");
                self.leases.remove(&held);
                self.reports.push((seq.parse().expect("a version"), verb.into(), held));
            }
            ["late", what @ ("report" | "beat"), code, ref held @ ..] => {
                let held = Held::parse(&held.join(" ")).expect("a lease");
                // Leases of `drop` are short, and a cancel takes leases away.
                let excused = held.handler == "drop" || self.canceled.contains(held.run.as_str());
                match self.tried.get(&held) {
                    _ if excused => {}
                    // It was heard the first time, and somebody else has answered since: then the log says so.
                    Some(2..) if what == "report" && code == "lease-lost" => self.heard(&held),
                    _ => self.odd.push(format!("{what}: {code}: {}", held.line())),
                }
                if what == "report" {
                    self.leases.remove(&held);
                }
            }
            ["try", "cancel", run] => {
                self.canceled.insert(run.into());
            }
            ["ack", verb @ ("approve" | "signal" | "cancel"), run, seq] => {
                self.said.push((verb.into(), run.into(), seq.parse().expect("a version")));
                self.runs.retain(|(_, known)| known != run);
            }
            ["late", verb @ ("approve" | "cancel"), _, run] => {
                self.said.push((verb.into(), run.into(), u64::MAX));
                self.runs.retain(|(_, known)| known != run);
            }
            ["ack", "backup", path] => self.backups.push(path.into()),
            ["late", ..] | ["odd", ..] | ["error", ..] => self.odd.push(line.into()),
            _ => {}
        }
    }

    /// A report that got no answer when it was heard.
    pub fn heard(&mut self, held: &Held) {
        self.reports.push((u64::MAX, held.verb().into(), held.clone()));
    }

    /// What the next child takes up.
    pub fn plan(&self) -> String {
        let mut plan = String::new();
        for (key, _) in self.keys.iter().filter(|(_, run)| run.is_none()) {
            let _ = writeln!(plan, "key {key}");
        }
        for id in &self.claims {
            let _ = writeln!(plan, "claim {id}");
        }
        for held in &self.leases {
            let word = if self.tried.contains_key(held) { "again" } else { "lease" };
            let _ = writeln!(plan, "{word} {}", held.line());
        }
        for (of, run) in &self.runs {
            let _ = writeln!(plan, "run {of} {run}");
        }
        plan
    }

    /// Acknowledged and not in the store.
    pub fn lost(&self, runs: &BTreeMap<String, Run>) -> Vec<String> {
        let mut lost = Vec::new();
        let mut check = |run: &str, seq: u64, what: String, holds: &dyn Fn(&Run) -> bool| match runs.get(run) {
            None => lost.push(format!("{what}: the run is gone")),
            Some(found) if seq != u64::MAX && found.events.len() < seq as usize => {
                lost.push(format!("{what}: version {seq} was said, {} is there", found.events.len()));
            }
            Some(found) if !holds(found) => lost.push(format!("{what}: its log does not say so")),
            Some(_) => {}
        };
        for (key, run) in &self.keys {
            let Some((run, seq)) = run else { continue };
            check(run, *seq, format!("start {key} {run}"), &|found| found.key.as_ref() == Some(key));
        }
        for held in &self.leased {
            let says = |found: &Run| found.says("task.claimed", Some(held.path.as_str()), Some(held.epoch.0), u64::MAX);
            check(held.run.as_str(), 0, format!("lease {}", held.line()), &says);
        }
        for (seq, verb, held) in &self.reports {
            let kind = match verb.as_str() {
                "fail" => "task.failed",
                "block" => "task.blocked",
                _ => "task.completed",
            };
            let says = |found: &Run| found.says(kind, Some(held.path.as_str()), Some(held.epoch.0), *seq);
            check(held.run.as_str(), *seq, format!("{verb} {}", held.line()), &says);
        }
        for (verb, run, seq) in &self.said {
            let kind = match verb.as_str() {
                "approve" => "approval.given",
                "signal" => "signal.received",
                // A cancel of a run with nothing open closes it at once.
                _ => "run.canceled",
            };
            let says = |found: &Run| {
                found.says(kind, None, None, *seq) || (verb == "cancel" && found.says("cancel.asked", None, None, *seq))
            };
            check(run, *seq, format!("{verb} {run}"), &says);
        }
        lost
    }

    /// Done more often than it was asked for.
    pub fn duplicated(&self, runs: &BTreeMap<String, Run>) -> Vec<String> {
        let mut found = Vec::new();
        let mut by_key: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (id, run) in runs {
            match &run.key {
                Some(key) if self.keys.contains_key(key) => by_key.entry(key).or_default().push(id),
                Some(key) => found.push(format!("{id} has the key {key}, which nobody tried")),
                // Children of `family` have no key.
                None if run.workflow != "plain" => found.push(format!("{id} was started by nobody")),
                None => {}
            }
            for step in run.events.iter().map(|event| &event.step).collect::<BTreeSet<_>>() {
                let completed =
                    run.events.iter().filter(|event| event.step == *step && event.kind == "step.completed").count();
                if completed > 1 {
                    found.push(format!("{id}: {step} was completed {completed} times"));
                }
            }
            if run.count("signal.received") > 1 {
                found.push(format!("{id}: one signal was received {} times", run.count("signal.received")));
            }
        }
        found.extend(by_key.iter().filter(|(_, ids)| ids.len() > 1).map(|(key, ids)| format!("{key} is {ids:?}")));
        found
    }

    /// Attempts that neither a failure nor a lost worker explains (I8), and leases that were lost to an engine's crash.
    pub fn inflated(&self, runs: &BTreeMap<String, Run>) -> Vec<String> {
        let mut found = Vec::new();
        for (id, run) in runs {
            let mut cost: BTreeMap<&str, u32> = BTreeMap::new();
            for event in &run.events {
                match event.kind.as_str() {
                    "task.failed" | "task.lost" => *cost.entry(&event.step).or_default() += 1,
                    "task.issued" => {
                        let (attempt, most) = (event.attempt, 1 + cost.get(event.step.as_str()).unwrap_or(&0));
                        if attempt > most {
                            found.push(format!("{id}: attempt {attempt} of {} where {most} are explained", event.step));
                        }
                    }
                    _ => {}
                }
            }
            if run.workflow != "fragile" && run.count("task.lost") > 0 {
                found.push(format!("{id}: a lease of {} was lost though its holder lives", run.workflow));
            }
        }
        found
    }
}

/// The judge itself is judged: what is missing, doubled or unexplained is seen.
#[test]
fn the_ledger_sees_what_is_missing_doubled_or_unexplained() {
    let event = |seq, kind: &str, attempt| crate::store::Event {
        seq,
        kind: kind.into(),
        step: "one".into(),
        attempt,
        payload: serde_json::json!({ "epoch": 1 }),
    };
    let run = |key: &str, events| Run { workflow: "plain".into(), key: Some(key.into()), events };
    let mut ledger = Ledger::default();
    let said = [
        "try start a",
        "ack start a run_1 2",
        "ack lease run_1 one task_1 1 a",
        "ack report 4 complete run_1 one task_1 1 a",
    ];
    ledger.hear(&said.map(String::from));
    let whole = vec![
        event(1, "run.queued", 0),
        event(2, "task.issued", 1),
        event(3, "task.claimed", 1),
        event(4, "task.completed", 1),
    ];
    let mut runs = BTreeMap::from([("run_1".to_owned(), run("a", whole))]);
    assert!(ledger.lost(&runs).is_empty() && ledger.duplicated(&runs).is_empty() && ledger.inflated(&runs).is_empty());
    runs.insert("run_2".into(), run("a", vec![event(1, "task.issued", 2)]));
    assert_eq!((ledger.duplicated(&runs).len(), ledger.inflated(&runs).len()), (1, 1));
    runs.get_mut("run_1").expect("a run").events.pop();
    assert_eq!(ledger.lost(&runs).len(), 1, "the last event is gone");
    runs.remove("run_1");
    assert_eq!(ledger.lost(&runs).len(), 3, "the run is gone");
}
