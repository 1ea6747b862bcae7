//! A workflow or a run as nodes and edges with their places on a screen, and as a diagram in text.

use std::collections::BTreeMap;

use abide_api::{Code, Problem};
use abide_core::contract::StepState;
use abide_core::definition::{Action, Definition, Jump, OnReject, StepDef, Then};
use abide_engine::reads::StepView;
use serde_json::{Value, json};

use super::layout::{Layout, Size, lay_out};

/// A picture of more nodes helps nobody; the list of steps has them all.
const MOST_NODES: usize = 200;
/// Of the letters in a node, at the size in which the UI writes them.
const LETTER_WIDTH: f64 = 7.4;
const NARROWEST: f64 = 136.0;
const WIDEST: f64 = 280.0;
const HEIGHT: f64 = 56.0;
/// With a line of counts.
const COUNTED_HEIGHT: f64 = 76.0;

/// What one node shows.
#[derive(Debug, Default)]
struct Node {
    id: String,
    title: Option<String>,
    kind: &'static str,
    finally: bool,
    state: Option<StepState>,
    /// Items and rounds, by state: a fan-out of ten thousand is one node.
    counts: BTreeMap<StepState, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edge {
    from: usize,
    to: usize,
    kind: &'static str,
}

/// Nodes are declared steps (of a coded workflow: the names of the steps its body has begun); edges say what each waits
/// for, and where a result may lead.
pub fn of(definition: &Definition, steps: &[StepView]) -> Value {
    let (mut nodes, mut edges) = if definition.steps().is_empty() { coded(steps) } else { declared(definition, steps) };
    let left_out = nodes.len().saturating_sub(MOST_NODES);
    nodes.truncate(MOST_NODES);
    edges.retain(|edge| edge.from < nodes.len() && edge.to < nodes.len());
    let sizes: Vec<Size> = nodes.iter().map(size).collect();
    // Jumps go where they want; what waits for what gives the shape.
    let shaping: Vec<_> = edges.iter().filter(|edge| edge.kind != "go_to").map(|edge| (edge.from, edge.to)).collect();
    let layout = lay_out(&sizes, &shaping);
    json!({
        "workflow_id": definition.workflow,
        "nodes": nodes.iter().enumerate().map(|(n, node)| shown(node, sizes[n], &layout, n)).collect::<Vec<_>>(),
        "edges": drawn(&nodes, &edges, &sizes, &layout),
        "width": layout.width, "height": layout.height, "left_out": left_out,
        "mermaid": mermaid(&nodes, &edges),
    })
}

fn declared(definition: &Definition, steps: &[StepView]) -> (Vec<Node>, Vec<Edge>) {
    let rows = grouped(steps);
    let node = |step: &StepDef| {
        let (state, counts) = rows.get(step.id.as_str()).cloned().unwrap_or_default();
        let (id, title) = (step.id.clone(), step.title.clone());
        Node { id, title, kind: step.action.name(), finally: step.finally, state, counts }
    };
    let steps = definition.steps();
    let after = steps.iter().enumerate().flat_map(|(to, step)| step.after.iter().map(move |from| (*from, to, "after")));
    let jumps = steps
        .iter()
        .enumerate()
        .flat_map(|(from, step)| jumps(step).into_iter().map(move |to| (from, to.step, "go_to")));
    // Whatever happens before, the `finally` steps come last.
    let ends = steps.iter().enumerate().filter(|(_, step)| !step.finally && step.before.is_empty()).map(|(n, _)| n);
    let first = steps.iter().position(|step| step.finally);
    let last = ends.filter_map(|from| first.map(|to| (from, to, "finally")));
    let edges = after.chain(last).chain(jumps).map(|(from, to, kind)| Edge { from, to, kind });
    (steps.iter().map(node).collect(), edges.collect())
}

/// Where a step may go on instead.
fn jumps(step: &StepDef) -> Vec<Jump> {
    let by_result = step.on_result.iter().filter_map(|case| match case.then {
        Then::GoTo(jump) => Some(jump),
        Then::Complete | Then::Fail | Then::Retry | Then::Skip => None,
    });
    let by_no = match &step.action {
        Action::Approval(approval) => match approval.on_reject {
            OnReject::GoTo(jump) => Some(jump),
            OnReject::Fail | OnReject::Warn | OnReject::Continue => None,
        },
        _ => None,
    };
    by_result.chain(by_no).collect()
}

type Row = (Option<StepState>, BTreeMap<StepState, u64>);

/// By the name of the step: the state of its newest visit, and how many items and rounds are in which state. Probes and
/// undos show in the state of what they belong to.
fn grouped(steps: &[StepView]) -> BTreeMap<&str, Row> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for step in steps {
        let (name, rest) = step.step_id.as_str().split_once('.').unwrap_or((step.step_id.as_str(), ""));
        let (state, counts) = rows.entry(name).or_default();
        let last = rest.rsplit('.').next().unwrap_or_default();
        if !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()) {
            *counts.entry(step.state).or_default() += 1;
        } else if rest.is_empty() || (last.starts_with('v') && !rest.contains('.')) {
            *state = Some(step.state);
        }
    }
    rows
}

/// A body's steps in the order in which it began them; a name that comes again is the same node.
fn coded(steps: &[StepView]) -> (Vec<Node>, Vec<Edge>) {
    let mut nodes: Vec<Node> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut edges: Vec<Edge> = Vec::new();
    let mut before: Option<usize> = None;
    let is_own = |step: &&StepView| step.step_id.as_str() != "body" && !step.step_id.as_str().ends_with(".probe");
    for step in steps.iter().filter(is_own) {
        let name = step.step_id.as_str().split('.').next().unwrap_or_default();
        let n = *places.entry(name).or_insert_with(|| {
            nodes.push(Node { id: name.into(), title: step.title.clone(), kind: "step", ..Node::default() });
            nodes.len() - 1
        });
        nodes[n].state = Some(step.state);
        *nodes[n].counts.entry(step.state).or_default() += 1;
        if let Some(from) = before.filter(|from| *from != n) {
            let edge = Edge { from, to: n, kind: if from < n { "after" } else { "go_to" } };
            if !edges.contains(&edge) {
                edges.push(edge);
            }
        }
        before = Some(n);
    }
    for node in &mut nodes {
        // One step is not a fan-out.
        if node.counts.values().sum::<u64>() < 2 {
            node.counts.clear();
        }
    }
    (nodes, edges)
}

fn size(node: &Node) -> Size {
    let title = node.title.as_deref().unwrap_or(&node.id).chars().count();
    // `45 completed, 2 running`: the line of counts is to be read, too.
    let counted = |(state, count): (&StepState, &u64)| state.as_str().len() + count.to_string().len() + 3;
    let letters = title.max(node.counts.iter().map(counted).sum()) as f64;
    let width = (letters * LETTER_WIDTH + 40.0).clamp(NARROWEST, WIDEST).round();
    Size { width, height: if node.counts.is_empty() { HEIGHT } else { COUNTED_HEIGHT } }
}

fn shown(node: &Node, size: Size, layout: &Layout, n: usize) -> Value {
    let instances = node.counts.values().sum::<u64>();
    json!({
        "id": node.id, "title": node.title, "kind": node.kind, "finally": node.finally, "state": node.state,
        "instances": (instances > 0).then_some(instances), "counts": node.counts,
        "x": layout.nodes[n].x, "y": layout.nodes[n].y, "width": size.width, "height": size.height,
    })
}

fn drawn(nodes: &[Node], edges: &[Edge], sizes: &[Size], layout: &Layout) -> Vec<Value> {
    let mut shaping = layout.edges.iter();
    let draw = |edge: &Edge| {
        let points = match edge.kind {
            "go_to" => Some(jump(edge, sizes, layout)),
            _ => shaping.next().map(|points| points.iter().map(|point| [point.x, point.y]).collect()),
        };
        json!({ "from": nodes[edge.from].id, "to": nodes[edge.to].id, "kind": edge.kind, "points": points })
    };
    edges.iter().map(draw).collect()
}

/// A jump leaves and enters at the right side, and keeps to the right of both.
fn jump(edge: &Edge, sizes: &[Size], layout: &Layout) -> Vec<[f64; 2]> {
    let side = |n: usize| (layout.nodes[n].x + sizes[n].width, layout.nodes[n].y + sizes[n].height / 2.0);
    let ((from_x, from_y), (to_x, to_y)) = (side(edge.from), side(edge.to));
    let beyond = from_x.max(to_x) + 20.0;
    vec![[from_x, from_y], [beyond, from_y], [beyond, to_y], [to_x, to_y]]
}

fn mermaid(nodes: &[Node], edges: &[Edge]) -> String {
    let mut text = String::from("flowchart TD\n");
    let name = |node: &Node| node.id.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    for node in nodes {
        let label = node.title.as_deref().unwrap_or(&node.id).replace('"', "'");
        let state = node.state.map(|state| format!("<br/>{}", state.as_str())).unwrap_or_default();
        text.push_str(&format!("  {}[\"{label}{state}\"]\n", name(node)));
    }
    for edge in edges {
        let arrow = if edge.kind == "after" { "-->" } else { "-.->" };
        text.push_str(&format!("  {} {arrow} {}\n", name(&nodes[edge.from]), name(&nodes[edge.to])));
    }
    text
}

/// A handoff without the bytes of payloads, for readers without that right.
pub fn without_payloads(handoff: &abide_core::explain::Handoff) -> Result<Value, Problem> {
    let mut view = serde_json::to_value(handoff).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    hide_payloads(&mut view);
    Ok(view)
}

fn hide_payloads(view: &mut Value) {
    match view {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                if matches!(name.as_str(), "output" | "shown" | "input" | "result")
                    && !value.is_null()
                    && value.get("digest").is_none()
                {
                    *value = json!({ "hidden": "the right to see payloads is missing" });
                } else {
                    hide_payloads(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_payloads),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
