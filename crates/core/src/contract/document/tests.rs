use serde_json::{Value, json};

use super::*;
use crate::definition::Schema;
use crate::ids::Digest;
use crate::play::BEGINNING;
use crate::run::command::Actor;
use crate::run::event::{Entered, Event, Record};

fn named(list: &Value, key: &str) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|entry| entry[key].as_str().expect("text").to_owned()).collect()
}

#[test]
fn the_contract_names_every_state_reason_class_and_cause() {
    let contract = contract_json();
    let all = |names: &[&str], list: &str, key: &str| {
        assert_eq!(named(&contract[list], key), names, "{list}");
        assert!(
            contract[list]
                .as_array()
                .unwrap()
                .iter()
                .all(|entry| entry["means"].as_str().is_some_and(|m| !m.is_empty()))
        );
    };
    all(&RunState::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>(), "states", "state");
    all(&ReasonType::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>(), "reasons", "type");
    all(&FailureClass::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>(), "failure_classes", "class");
    all(&FailureKind::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>(), "failure_kinds", "kind");
    all(&Policy::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>(), "policies", "policy");
    all(&Cause::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>(), "causes", "cause");
    all(&["run", "workflow", "step", "task"], "layers", "layer");
}

#[test]
fn the_contract_has_every_row_of_every_table() {
    let contract = contract_json();
    let rows = contract["transitions"].as_array().unwrap();
    let tables = [RunState::TABLE.len(), StepState::TABLE.len(), TaskState::TABLE.len(), BodyState::TABLE.len()];
    assert_eq!(rows.len(), tables.iter().sum::<usize>());
    for row in RunState::TABLE {
        let found = rows.iter().find(|entry| {
            entry["layer"] == "run"
                && entry["from"] == json!(row.from.map(RunState::as_str))
                && entry["to"] == row.to.as_str()
        });
        let found = found.unwrap_or_else(|| panic!("{:?} -> {} is missing", row.from, row.to));
        assert_eq!(found["causes"].as_array().unwrap().len(), row.causes.iter().count());
        assert_eq!(found["requires"], json!(row.to.requires()));
        assert!(!found["actors"].as_array().unwrap().is_empty());
    }
}

#[test]
fn only_worker_causes_need_a_worker() {
    for cause in Cause::ALL {
        assert_eq!(actors_of(*cause) == ["worker"], cause.needs_worker(), "{cause}");
    }
}

#[test]
fn the_reference_page_has_every_word_and_row() {
    let page = reference_markdown();
    let words = RunState::ALL.iter().map(|s| s.as_str()).chain(ReasonType::ALL.iter().map(|s| s.as_str()));
    let words = words.chain(FailureClass::ALL.iter().map(|s| s.as_str())).chain(event_kinds());
    for word in words.chain(Layer::ALL.iter().flat_map(|layer| states_of(*layer)).map(|(state, _)| state)) {
        assert!(page.contains(&format!("`{word}`")), "{word}");
    }
    for row in rows() {
        let from = row.from.map_or("nothing".to_owned(), |from| format!("`{from}`"));
        let layer = format!("### {}\n", row.layer);
        let section = page.split(&layer).nth(1).and_then(|rest| rest.split("\n##").next()).expect("a section");
        let line = section.lines().find(|line| {
            let cells: Vec<&str> = line.split(" | ").collect();
            cells[0] == format!("| {from}") && cells[1].split(", ").any(|to| to == format!("`{}`", row.to))
        });
        let causes = row.causes.iter().map(|cause| cause.as_str()).collect::<Vec<_>>().join(", ");
        assert!(line.is_some_and(|line| line.contains(&format!("| {causes} |"))), "{from} -> {}", row.to);
    }
    for (name, number, _) in all_limits() {
        assert!(page.contains(&format!("| `{name}` | {number} |")), "{name}");
    }
}

#[test]
fn the_diagram_has_every_state_and_stays_readable() {
    let diagram = mermaid();
    for state in RunState::ALL {
        assert!(diagram.lines().any(|line| line.trim() == state.as_str()), "{state}");
    }
    let arrows = diagram.lines().filter(|line| line.contains("-->")).count();
    assert!((5..=32).contains(&arrows), "{arrows} arrows:\n{diagram}");
}

#[test]
fn the_schema_is_a_json_schema() {
    assert!(jsonschema::draft202012::meta::is_valid(&json_schema()));
}

/// A record that has what every state needs.
fn record(state: RunState) -> Value {
    let at = "2026-01-01T00:00:00.000000Z";
    let mut record = json!({
        "run_id": "run_01KDVZ3C000000000000000000", "namespace": "default", "workflow_id": "orders", "workflow_version": 1,
        "definition_hash": "00", "state": state.as_str(), "since": at, "attempt": 1, "created_at": at, "updated_at": at,
        "as_of_seq": 7, "blocking_reason": null, "ended_at": null, "failure": null, "warnings": [],
    });
    for field in state.requires() {
        match *field {
            "blocking_reason" => {
                record["blocking_reason"] = json!({ "type": "overdue", "message": "late", "since": at })
            }
            "blocking_reason.until" => record["blocking_reason"]["until"] = at.into(),
            "lease_owner" => record["lease_owner"] = "worker-1".into(),
            "lease_epoch" => record["lease_epoch"] = 3.into(),
            "ended_at" | "next_retry_at" => record[*field] = at.into(),
            "warnings" => record["warnings"] = json!([{ "code": "late", "message": "late", "at": at }]),
            "failure" => {
                record["failure"] =
                    json!({ "kind": "step_failed", "class": "fatal", "message": "no", "attempt": 1, "at": at });
            }
            other => match other.split_once('.') {
                Some((outer, inner)) => record[outer][inner] = json!("given"),
                None if record.get(other).is_none() => record[other] = json!({ "left": 1 }),
                None => {}
            },
        }
    }
    record
}

#[test]
fn a_record_is_valid_exactly_with_what_its_state_carries() {
    let schema = Schema::compile(&json_schema()).expect("the schema compiles");
    for state in RunState::ALL {
        let whole = record(*state);
        assert_eq!(schema.check(&whole.to_string()), Ok(()), "{state}");
        for field in state.requires() {
            let mut lacking = whole.clone();
            match field.split_once('.') {
                Some((outer, inner)) => lacking[outer].as_object_mut().unwrap().shift_remove(inner),
                None => lacking.as_object_mut().unwrap().shift_remove(*field),
            };
            assert!(schema.check(&lacking.to_string()).is_err(), "{state} without {field}");
        }
    }
    let mut unheard = record(RunState::Queued);
    unheard["state"] = "thinking".into();
    assert!(schema.check(&unheard.to_string()).is_err());
}

#[test]
fn a_written_event_is_valid() {
    let mut schema = json_schema();
    schema["$ref"] = "#/$defs/event".into();
    let schema = Schema::compile(&schema).expect("the schema compiles");
    let state = RunState::Queued;
    let entered = Entered { state, started: None, named: None, carries: None, failure: None, parent: None };
    for fact in [Fact::Entered(entered), Fact::WorkflowStarted, Fact::StepOverdue] {
        let event = Event {
            seq: 1,
            at: BEGINNING,
            actor: Actor::user("ana"),
            cause: Cause::Started,
            step_id: None,
            attempt: None,
            evidence: Vec::new(),
            fact,
        };
        let record = Record::seal(event, None, Digest::default()).expect("an event is JSON");
        let json = serde_json::to_string(&record).expect("a record is JSON");
        assert_eq!(schema.check(&json), Ok(()), "{json}");
    }
}
