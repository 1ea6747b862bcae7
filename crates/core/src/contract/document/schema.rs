//! The shape of what readers get, as JSON Schema 2020-12: the run record, an event, a step, a failure.

use serde_json::{Map, Value, json};

use super::{ACTORS, event_kinds};
use crate::contract::{Cause, EvidenceKind, FailureClass, FailureKind, Layer, ReasonType, RunState, StepState};
use crate::run::NEWEST;

/// The schema of a run record; `$defs` has `event`, `step` and `failure` too. Fields may be added to all of them.
pub fn json_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Abide: the record of a run",
        "$ref": "#/$defs/run",
        "$defs": {
            "run": run(),
            "event": event(),
            "step": step(),
            "failure": failure(),
            "blocking_reason": blocking_reason(),
            "evidence": evidence(),
            "next_action": next_action(),
            "warning": warning(),
            "time": {
                "description": "RFC 3339 in UTC with microseconds.",
                "type": "string",
                "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z$",
            },
            "run_id": { "type": "string", "pattern": "^run_[A-Za-z0-9_-]{1,64}$" },
            "run_state": { "oneOf": RunState::ALL.iter().map(|state| json!({
                "const": state.as_str(), "description": state.means(),
            })).collect::<Vec<_>>() },
            "step_state": { "oneOf": StepState::ALL.iter().map(|state| json!({
                "const": state.as_str(), "description": state.means(),
            })).collect::<Vec<_>>() },
        },
    })
}

fn run() -> Value {
    let always = [
        "run_id",
        "namespace",
        "workflow_id",
        "workflow_version",
        "definition_hash",
        "state",
        "since",
        "attempt",
        "created_at",
        "updated_at",
        "as_of_seq",
    ];
    json!({
        "type": "object",
        "required": always,
        "properties": {
            "run_id": reference("run_id"),
            "namespace": text(),
            "workflow_id": text(),
            "workflow_version": count(),
            "definition_hash": text(),
            "state": reference("run_state"),
            "since": reference("time"),
            "summary": text(),
            "attempt": count(),
            "step_id": or_null(text()),
            "blocking_reason": or_null(reference("blocking_reason")),
            "blocks": newest(reference("blocking_reason")),
            "lease_owner": or_null(text()),
            "lease_epoch": or_null(count()),
            "lease_expires_at": or_null(reference("time")),
            "last_heartbeat_at": or_null(reference("time")),
            "leases": count(),
            "next_retry_at": or_null(reference("time")),
            "closing": true,
            "failure": or_null(reference("failure")),
            "warnings": newest(reference("warning")),
            "evidence_links": newest(reference("evidence")),
            "next_actions": { "type": "array", "items": reference("next_action") },
            "progress": or_null(json!({
                "type": "object",
                "properties": { "done": count(), "total": or_null(count()), "message": or_null(text()) },
            })),
            "handoff": true,
            "undo": or_null(json!({
                "type": "object",
                "properties": { "step_id": or_null(text()), "left": count() },
            })),
            "parent": or_null(json!({
                "type": "object",
                "required": ["run_id", "step_id"],
                "properties": { "run_id": reference("run_id"), "step_id": text() },
            })),
            "children": count(),
            "origin": or_null(json!({
                "type": "object",
                "required": ["kind"],
                "properties": {
                    "kind": { "enum": ["rerun", "retry", "schedule"] },
                    "run_id": or_null(reference("run_id")),
                    "from_step": or_null(text()),
                },
            })),
            "owner_id": or_null(text()),
            "data_region": or_null(text()),
            "labels": { "type": "object", "additionalProperties": text() },
            "created_at": reference("time"),
            "started_at": or_null(reference("time")),
            "updated_at": reference("time"),
            "ended_at": or_null(reference("time")),
            "as_of_seq": count(),
        },
        "allOf": RunState::ALL.iter().map(|state| carries(*state)).collect::<Vec<_>>(),
    })
}

/// What the record must carry in a state: the named fields are there and not null.
fn carries(state: RunState) -> Value {
    json!({
        "if": { "required": ["state"], "properties": { "state": { "const": state.as_str() } } },
        "then": present(state.requires()),
    })
}

/// Fields that must be there and say something. A dot leads into an object.
fn present(fields: &[&'static str]) -> Value {
    let mut names: Vec<&str> =
        fields.iter().map(|field| field.split_once('.').map_or(*field, |(name, _)| name)).collect();
    names.dedup();
    let properties = names.iter().map(|name| {
        let inside = fields.iter().filter_map(|field| field.split_once('.').filter(|(outer, _)| outer == name));
        let inside: Vec<&'static str> = inside.map(|(_, inner)| inner).collect();
        let said = match inside.is_empty() {
            true => something(),
            false => json!({ "allOf": [something(), present(&inside)] }),
        };
        ((*name).to_owned(), said)
    });
    let properties: Map<String, Value> = properties.collect();
    json!({ "required": names, "properties": properties })
}

/// Neither null nor an empty list.
fn something() -> Value {
    json!({ "not": { "enum": [null, []] } })
}

fn event() -> Value {
    json!({
        "type": "object",
        "required": ["seq", "at", "actor", "layer", "kind", "payload", "hash"],
        "properties": {
            "seq": { "type": "integer", "minimum": 1 },
            "at": reference("time"),
            "actor": {
                "type": "object",
                "required": ["type", "id"],
                "properties": { "type": { "enum": ACTORS }, "id": text() },
            },
            "cause": one_of(Cause::ALL.iter().map(|cause| cause.as_str())),
            "layer": one_of(Layer::ALL.iter().map(|layer| layer.as_str())),
            "kind": { "enum": event_kinds() },
            "from_state": or_null(reference("run_state")),
            "to_state": or_null(reference("run_state")),
            "step_id": or_null(text()),
            "attempt": or_null(count()),
            "payload": true,
            "evidence": { "type": "array", "items": reference("evidence") },
            "hash": text(),
        },
    })
}

fn step() -> Value {
    json!({
        "type": "object",
        "required": ["step_id", "state", "attempt"],
        "properties": {
            "step_id": text(),
            "title": or_null(text()),
            "state": reference("step_state"),
            "attempt": count(),
            "started_at": or_null(reference("time")),
            "ended_at": or_null(reference("time")),
            "output": true,
            "resources": { "type": "array", "items": {
                "type": "object",
                "required": ["type", "id"],
                "properties": { "type": text(), "id": text(), "url": or_null(text()) },
            } },
            "receipts": { "type": "array", "items": { "type": "object" } },
            "retry_safe": { "type": "boolean" },
            "proof": or_null(json!({
                "type": "object",
                "required": ["by", "at"],
                "properties": {
                    "by": { "enum": ["verify", "receipt", "reconcile", "operator", "worker"] },
                    "at": reference("time"),
                },
            })),
            "failure": or_null(reference("failure")),
            "evidence": { "type": "array", "items": reference("evidence") },
        },
    })
}

fn failure() -> Value {
    json!({
        "type": "object",
        "required": ["kind", "class", "message", "attempt", "at"],
        "properties": {
            "kind": one_of(FailureKind::ALL.iter().map(|kind| kind.as_str())),
            "class": one_of(FailureClass::ALL.iter().map(|class| class.as_str())),
            "code": or_null(text()),
            "message": text(),
            "step_id": or_null(text()),
            "attempt": count(),
            "at": reference("time"),
            "details": true,
            "child_run_id": or_null(reference("run_id")),
            "cause": or_null(reference("failure")),
            "unknown_effects": { "type": "array", "items": text() },
        },
    })
}

fn blocking_reason() -> Value {
    json!({
        "type": "object",
        "required": ["type", "message", "since"],
        "properties": {
            "type": one_of(ReasonType::ALL.iter().map(|reason| reason.as_str())),
            "tool": or_null(text()),
            "message": text(),
            "since": reference("time"),
            "until": or_null(reference("time")),
        },
    })
}

fn evidence() -> Value {
    json!({
        "type": "object",
        "required": ["type", "ref"],
        "properties": {
            "type": one_of(EvidenceKind::ALL.iter().map(|kind| kind.as_str())),
            "ref": text(),
            "step_id": or_null(text()),
            "at": or_null(reference("time")),
        },
    })
}

fn next_action() -> Value {
    json!({
        "type": "object",
        "required": ["id", "who", "method", "href"],
        "properties": {
            "id": text(),
            "who": { "type": "array", "items": text() },
            "method": text(),
            "href": text(),
            "body": true,
            "form": true,
            "danger": true,
        },
    })
}

fn warning() -> Value {
    json!({
        "type": "object",
        "required": ["code", "message", "at"],
        "properties": { "code": text(), "message": text(), "step_id": or_null(text()), "at": reference("time") },
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn newest(items: Value) -> Value {
    json!({ "type": "array", "maxItems": NEWEST, "items": items })
}

fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn one_of(names: impl Iterator<Item = &'static str>) -> Value {
    json!({ "enum": names.collect::<Vec<_>>() })
}
