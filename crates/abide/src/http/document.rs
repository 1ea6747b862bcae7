//! OpenAPI 3.1, written from the table of routes: what is not a route is not in it, and no route is left out.

use abide_api::Code;
use abide_api::keys::Role;
use hyper::Method;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::call::{Answered, Call, Reply};
use super::routes::{Allowed, Route, Takes, table};

pub async fn show(call: Call) -> Answered {
    let text = call.api.document.get_or_init(|| openapi().to_string());
    Ok(Reply::bytes(200, "application/json", text.clone()))
}

/// The whole document.
pub fn openapi() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    let mut schemas = views(&mut generator);
    for route in table() {
        let operation = operation(&route, &mut generator);
        // A rest of a path is one parameter here.
        let path = paths.entry(route.path.replace("{*", "{")).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation;
    }
    for (name, schema) in generator.take_definitions(true) {
        schemas.insert(name, schema);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Abide",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs of workflows: what each is doing right now, why, and what happens next.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "key": [] }, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.about,
        "tags": [tag(route.path)],
        "parameters": parameters(route),
        "responses": responses(route),
        "x-roles": match route.allowed {
            Allowed::Anybody => vec!["anybody"],
            Allowed::Roles(roles) => roles.iter().copied().map(Role::as_str).collect(),
        },
    });
    if route.allowed == Allowed::Anybody {
        operation["security"] = json!([]);
    }
    match route.takes {
        Takes::Nothing => {}
        Takes::Json(schema_of) => {
            let schema = schema_of(generator);
            operation["requestBody"] =
                json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        }
        Takes::Document => {
            operation["requestBody"] = json!({ "required": true, "content": {
                "application/yaml": { "schema": { "type": "string" } },
                "application/json": { "schema": { "type": "object" } },
            } });
        }
    }
    operation
}

fn operation_id(route: &Route) -> String {
    let words =
        route.path.trim_start_matches("/v1").split('/').filter(|word| !word.is_empty() && !word.starts_with('{'));
    let name = words.collect::<Vec<_>>().join("_").replace(['.', '-'], "_");
    let one = if route.path.ends_with('}') { "_one" } else { "" };
    // The screen of a thing and the thing itself have the same words in their paths.
    let page = if route.gives.iter().any(|(_, what)| *what == "page") { "page_" } else { "" };
    format!("{}_{page}{name}{one}", route.method.as_str().to_lowercase())
}

fn tag(path: &str) -> &str {
    path.trim_start_matches("/v1/").trim_start_matches('/').split(['/', '.']).next().unwrap_or_default()
}

fn parameters(route: &Route) -> Vec<Value> {
    let mut parameters = Vec::new();
    for part in route.path.split('/').filter(|part| part.starts_with('{')) {
        let name = part.trim_matches(['{', '*', '}']);
        parameters.push(
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } }),
        );
    }
    for name in route.query {
        let schema = match *name {
            "limit" => json!({ "type": "integer", "minimum": 1, "maximum": 500 }),
            "state" => json!({ "type": "array", "items": { "type": "string" } }),
            "after" => json!({ "type": "integer", "minimum": 0 }),
            "archived" => json!({ "type": "string", "enum": ["true", "false"] }),
            _ => json!({ "type": "string" }),
        };
        if *name == "label." {
            continue;
        }
        parameters.push(json!({ "name": name, "in": "query", "required": false, "schema": schema }));
    }
    if route.method == Method::POST && route.allowed != Allowed::Anybody {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": "The same key with the same body is done once and answered alike. A key belongs to the principal and the route.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$" },
        }));
    }
    if route.path.starts_with("/v1/tasks/{task_id}/") {
        parameters.push(json!({
            "name": "Abide-Epoch", "in": "header", "required": false,
            "description": "The epoch of the lease, as in the body. With it a result that cannot be read ends its attempt with the cause.",
            "schema": { "type": "integer", "minimum": 0 },
        }));
    }
    parameters
}

/// Statuses that any call may get, and those that its kind may get.
fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    for (status, what) in route.gives {
        let (kind, schema) = match *what {
            "" => {
                responses.insert(status.to_string(), json!({ "description": "Nothing more to say." }));
                continue;
            }
            "stream" => ("text/event-stream", json!({ "type": "string" })),
            "metrics" => ("text/plain", json!({ "type": "string" })),
            "page" => ("text/html", json!({ "type": "string" })),
            "asset" => ("text/*", json!({ "type": "string" })),
            "any" => ("application/json", json!({})),
            "numbers" => ("application/json", either(&["insights", "insights_by_workflow"])),
            name => ("application/json", json!({ "$ref": format!("#/components/schemas/{name}") })),
        };
        let content = json!({ "description": what, "content": { kind: { "schema": schema } } });
        responses.insert(status.to_string(), content);
    }
    let changes = !matches!(route.method, Method::GET);
    let named = route.path.contains('{');
    for code in Code::ALL {
        let applies = match code.status() {
            401 | 403 => route.allowed != Allowed::Anybody || changes,
            404 => named || changes,
            409 | 410 | 412 => changes || named,
            413 | 415 | 507 => changes,
            _ => true,
        };
        if applies {
            responses.entry(code.status().to_string()).or_insert_with(|| {
                json!({
                    "description": "A refusal.",
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/problem" } } },
                })
            });
        }
    }
    // A page shows refusals to people.
    if route.gives.iter().any(|(_, what)| *what == "page") {
        for (_, response) in &mut responses {
            response["content"]["text/html"] = json!({ "schema": { "type": "string" } });
        }
    }
    Value::Object(responses)
}

fn either(names: &[&str]) -> Value {
    let schemas: Vec<_> = names.iter().map(|name| json!({ "$ref": format!("#/components/schemas/{name}") })).collect();
    json!({ "oneOf": schemas })
}

/// The shapes of answers. Those of runs come from the contract itself.
fn views(generator: &mut SchemaGenerator) -> Map<String, Value> {
    let mut schemas = Map::new();
    let contract = abide_core::contract::document::json_schema();
    for (name, schema) in contract["$defs"].as_object().into_iter().flatten() {
        schemas.insert(name.clone(), moved(schema.clone()));
    }
    fn add<T: JsonSchema>(schemas: &mut Map<String, Value>, name: &str, generator: &mut SchemaGenerator) {
        schemas.insert(name.into(), generator.subschema_for::<T>().to_value());
    }
    use abide_api::{keys, runs, tasks};
    add::<runs::Applied>(&mut schemas, "applied", generator);
    add::<runs::BulkDone>(&mut schemas, "bulk_done", generator);
    add::<runs::Link>(&mut schemas, "link", generator);
    add::<runs::Released>(&mut schemas, "released", generator);
    add::<runs::Delivered>(&mut schemas, "delivered", generator);
    add::<tasks::Claimed>(&mut schemas, "claimed", generator);
    add::<tasks::Beat>(&mut schemas, "beat", generator);
    add::<tasks::TaskDone>(&mut schemas, "task_done", generator);
    add::<tasks::CallbackMade>(&mut schemas, "callback_made", generator);
    add::<tasks::EffectKey>(&mut schemas, "effect_key", generator);
    add::<tasks::BodyState>(&mut schemas, "body_state", generator);
    add::<tasks::BatchDone>(&mut schemas, "batch_done", generator);
    add::<keys::NewKey>(&mut schemas, "new_key", generator);
    add::<keys::SessionView>(&mut schemas, "session", generator);
    add::<keys::Keys>(&mut schemas, "keys", generator);
    for (list, of) in [("runs", "run"), ("events", "event"), ("steps", "step")] {
        schemas.insert(list.into(), page(list, json!({ "$ref": format!("#/components/schemas/{of}") })));
    }
    for list in ["workflows", "versions", "approvals", "connections", "queues", "workers"] {
        schemas.insert(list.into(), page(list, json!({ "type": "object" })));
    }
    let needs = |fields: &[&str]| json!({ "type": "object", "required": fields });
    schemas.insert("workflow".into(), needs(&["workflow_id", "version", "definition_hash", "document"]));
    schemas.insert("graph".into(), needs(&["workflow_id", "nodes", "edges", "mermaid"]));
    schemas.insert("status".into(), needs(&["run_id", "state", "lifecycle", "as_of_seq"]));
    schemas.insert(
        "explanation".into(),
        needs(&["run_id", "state", "summary", "doing", "why", "since", "chain", "will_happen", "can_be_done", "proof"]),
    );
    schemas.insert("approval".into(), needs(&["run_id", "step_id", "state", "open", "decisions", "summary"]));
    schemas.insert("handoff".into(), needs(&["run_id", "state"]));
    schemas.insert("rerun_plan".into(), needs(&["carried", "executed", "effects_repeated", "approvals_needed"]));
    schemas.insert("timeline".into(), needs(&["began_at", "now", "states", "rows", "left_out", "as_of_seq"]));
    schemas.insert("contract".into(), needs(&["states", "limits", "transitions"]));
    schemas.insert("health".into(), json!({ "type": "object" }));
    schemas.insert(
        "counts".into(),
        json!({
            "type": "object", "required": ["counts"],
            "properties": {
                "counts": { "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 } },
                // By root cause: what many runs have in common, and the one call that helps them.
                "groups": { "type": "array", "items": needs(&["cause", "state", "count", "sentence", "query"]) },
            },
        }),
    );
    schemas.insert("insights".into(), insights());
    schemas.insert("insights_by_workflow".into(), insights_by_workflow());
    schemas.insert("tool_insights".into(), tool_insights());
    schemas.insert("times_in_states".into(), times_in_states());
    schemas.insert("problem".into(), problem());
    schemas
}

/// An object that has exactly these fields.
fn exactly(fields: &[(&str, Value)]) -> Value {
    let names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "required": names, "properties": properties, "additionalProperties": false })
}

/// Numbers of one workflow, or of all.
fn insights() -> Value {
    let (count, rate, perhaps) = (count(), rate(), rate_or_null());
    exactly(&[
        ("runs", count),
        ("time_in_state", json!({ "$ref": "#/components/schemas/times_in_states" })),
        ("auth_blocked_rate", rate.clone()),
        ("retry_rate", rate.clone()),
        ("retry_success_rate", perhaps),
        ("stalls_per_1000_runs", rate.clone()),
        ("completed_with_warnings_rate", rate),
        (
            "tools",
            json!({ "type": "object", "additionalProperties": { "$ref": "#/components/schemas/tool_insights" } }),
        ),
    ])
}

fn insights_by_workflow() -> Value {
    let each = json!({ "type": "object", "additionalProperties": { "$ref": "#/components/schemas/insights" } });
    exactly(&[("workflows", each)])
}

/// Rates of tasks are null where no task was issued, and those of retries where nothing was retried.
fn tool_insights() -> Value {
    exactly(&[
        ("issued", count()),
        ("again", count()),
        ("time_in_state", json!({ "$ref": "#/components/schemas/times_in_states" })),
        ("auth_blocked", count()),
        ("auth_blocked_rate", rate()),
        ("retries", count()),
        ("retry_rate", rate_or_null()),
        ("retry_success_rate", rate_or_null()),
        ("stalls", count()),
        ("stalls_per_1000_tasks", rate_or_null()),
        ("warnings", count()),
        ("warnings_rate", rate_or_null()),
    ])
}

fn times_in_states() -> Value {
    let times = exactly(&[("count", count()), ("p50_ms", rate()), ("p95_ms", rate()), ("p99_ms", rate())]);
    json!({ "type": "object", "additionalProperties": times })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn rate() -> Value {
    json!({ "type": "number", "minimum": 0 })
}

fn rate_or_null() -> Value {
    json!({ "type": ["number", "null"], "minimum": 0 })
}

fn page(list: &str, of: Value) -> Value {
    json!({
        "type": "object",
        "required": [list, "next_cursor"],
        "properties": { list: { "type": "array", "items": of }, "next_cursor": { "type": ["string", "null"] } },
    })
}

fn problem() -> Value {
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "instance", "code", "request_id", "outcome", "retryable"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "instance": { "type": "string" },
            "code": { "type": "string", "enum": codes },
            "request_id": { "type": "string" },
            "outcome": { "type": "string", "enum": ["none", "applied", "unknown"] },
            "retryable": { "type": "boolean" },
            "errors": { "type": "array", "items": {
                "type": "object", "required": ["pointer", "detail"],
                "properties": { "pointer": { "type": "string" }, "detail": { "type": "string" } },
            } },
        },
    })
}

/// References into the contract's schema, as references into this document.
fn moved(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value.as_str().filter(|_| name == "$ref").and_then(|text| text.strip_prefix("#/$defs/")) {
                    Some(of) => *value = format!("#/components/schemas/{of}").into(),
                    None => *value = moved(value.take()),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = moved(item.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    schema
}
