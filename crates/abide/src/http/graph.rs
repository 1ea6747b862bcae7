//! A workflow or a run as nodes and edges, and as a diagram in text.

use std::collections::BTreeMap;

use abide_core::definition::Definition;
use abide_engine::reads::StepView;
use serde_json::{Value, json};

/// Nodes are declared steps (of a coded workflow: the steps its body has begun); edges say what each waits for.
pub fn of(definition: &Definition, steps: &[StepView]) -> Value {
    let (nodes, edges) = if definition.steps().is_empty() { coded(steps) } else { declared(definition, steps) };
    let mermaid = mermaid(&nodes, &edges);
    json!({ "workflow_id": definition.workflow, "nodes": nodes, "edges": edges, "mermaid": mermaid })
}

fn declared(definition: &Definition, steps: &[StepView]) -> (Vec<Value>, Vec<Value>) {
    // The newest visit of a step tells its state; its items and rounds are counted.
    let mut newest: BTreeMap<&str, &StepView> = BTreeMap::new();
    let mut instances: BTreeMap<&str, u64> = BTreeMap::new();
    for step in steps {
        let id = step.step_id.as_str().split('.').next().unwrap_or_default();
        let is_visit =
            step.step_id.as_str().strip_prefix(id).is_some_and(|rest| rest.is_empty() || rest.starts_with(".v"));
        if is_visit {
            newest.insert(id, step);
        } else {
            *instances.entry(id).or_default() += 1;
        }
    }
    let node = |step: &abide_core::definition::StepDef| {
        let row = newest.get(step.id.as_str());
        json!({
            "id": step.id, "title": step.title, "kind": step.action.name(), "finally": step.finally,
            "state": row.map(|row| row.state), "instances": instances.get(step.id.as_str()),
        })
    };
    let nodes = definition.steps().iter().map(node).collect();
    let id = |index: &usize| definition.steps()[*index].id.as_str();
    let edges = definition
        .steps()
        .iter()
        .flat_map(|step| step.after.iter().map(move |before| json!({ "from": id(before), "to": step.id })));
    (nodes, edges.collect())
}

fn coded(steps: &[StepView]) -> (Vec<Value>, Vec<Value>) {
    let own: Vec<&StepView> = steps.iter().filter(|step| step.step_id.as_str() != "body").collect();
    let nodes =
        own.iter().map(|step| json!({ "id": step.step_id, "title": step.title, "kind": "step", "state": step.state }));
    let edges = own.windows(2).map(|pair| json!({ "from": pair[0].step_id, "to": pair[1].step_id }));
    (nodes.collect(), edges.collect())
}

fn mermaid(nodes: &[Value], edges: &[Value]) -> String {
    let mut text = String::from("flowchart TD\n");
    let name = |value: &Value| value.as_str().unwrap_or_default().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    for node in nodes {
        let label = node["title"].as_str().or(node["id"].as_str()).unwrap_or_default().replace('"', "'");
        let state = node["state"].as_str().map(|state| format!("<br/>{state}")).unwrap_or_default();
        text.push_str(&format!("  {}[\"{label}{state}\"]\n", name(&node["id"])));
    }
    for edge in edges {
        text.push_str(&format!("  {} --> {}\n", name(&edge["from"]), name(&edge["to"])));
    }
    text
}

/// Takes the bytes of payloads out of an answer, for readers without that right.
pub fn without_payloads(view: &mut Value) {
    match view {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                if matches!(name.as_str(), "output" | "shown" | "input" | "result")
                    && !value.is_null()
                    && value.get("digest").is_none()
                {
                    *value = json!({ "hidden": "the right to see payloads is missing" });
                } else {
                    without_payloads(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_payloads),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
