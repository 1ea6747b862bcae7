//! The reference page of the contract, in Markdown.

use std::fmt::Write as _;

use super::{Row, actors_of, all_limits, event_kinds, rows_of, states_of};
use crate::contract::{Cause, FailureClass, FailureKind, Layer, Owner, Policy, ReasonType, RunState};

/// `docs/reference/contract.md`.
pub fn reference_markdown() -> String {
    let mut page = String::from(HEAD);
    run_states(&mut page);
    transitions(&mut page);
    causes(&mut page);
    reasons(&mut page);
    failures(&mut page);
    numbers(&mut page);
    events(&mut page);
    page
}

const HEAD: &str = "\
<!-- Written by `cargo run -p xtask -- generate` from the tables in crates/core/src/contract. Do not edit. -->

# The run-state contract

What a run can be doing, what moves it, and who may move it. A move that is not a row of these tables is refused, in one
place. The same tables are in [contract.json](contract.json), the record's shape in
[run.schema.json](run.schema.json), and the picture in [contract.mmd](contract.mmd).

";

fn run_states(page: &mut String) {
    page.push_str("## States of a run\n\n");
    page.push_str(
        "A run is in exactly one state. The record of a run in a state carries at least the fields named here.\n\n",
    );
    page.push_str("| state | means | carries |\n|---|---|---|\n");
    for state in RunState::ALL {
        let end = if state.is_terminal() { " Terminal." } else { "" };
        let _ = writeln!(page, "| `{state}` | {}{end} | {} |", state.means(), code_list(state.requires()));
    }
    page.push_str("\nA terminal state is never left. A rerun is a new run that names the old one.\n\n");
}

fn transitions(page: &mut String) {
    page.push_str("## Transitions\n\n");
    page.push_str("Each layer has its own table, and no layer below the run can close it. ");
    page.push_str(
        "The first row of a table begins with nothing. Rows that differ only in where they lead stand in one line; ",
    );
    page.push_str("the state that a run moves to says what the record must carry.\n\n");
    for owner in Owner::ALL {
        let _ = writeln!(page, "- owner `{owner}`: {}", owner.means());
    }
    page.push('\n');
    for layer in Layer::ALL {
        layer_tables(page, *layer);
    }
}

fn layer_tables(page: &mut String, layer: Layer) {
    let _ = writeln!(page, "### {layer}\n\n{}\n", layer.means());
    if layer != Layer::Run {
        page.push_str("| state | means |\n|---|---|\n");
        for (state, means) in states_of(layer) {
            let _ = writeln!(page, "| `{state}` | {means} |");
        }
        page.push('\n');
    }
    page.push_str("| from | to | causes | actors | owner |\n|---|---|---|---|---|\n");
    for alike in alike(&rows_of(layer)) {
        let Row { from, causes, owner, .. } = alike[0];
        let from = from.map_or_else(|| "nothing".to_owned(), |from| format!("`{from}`"));
        let to = code_list(&alike.iter().map(|row| row.to).collect::<Vec<_>>());
        let actors = alike[0].actors().join(", ");
        let _ = writeln!(page, "| {from} | {to} | {} | {actors} | {owner} |", names(causes));
    }
    page.push('\n');
}

/// Rows that differ only in where they lead, in the order of the first of each.
fn alike(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let same = |group: &&mut Vec<&Row>| {
            (group[0].from, &group[0].causes, group[0].owner) == (row.from, &row.causes, row.owner)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

fn causes(page: &mut String) {
    page.push_str("## Causes\n\n");
    page.push_str(
        "What makes a layer move. Every state of a run that is not terminal can be left by a cause that needs no ",
    );
    page.push_str("worker, so a dead worker strands nothing.\n\n");
    page.push_str("| cause | means | actors |\n|---|---|---|\n");
    for cause in Cause::ALL {
        let _ = writeln!(page, "| `{cause}` | {} | {} |", cause.means(), actors_of(*cause).join(", "));
    }
    page.push('\n');
}

fn reasons(page: &mut String) {
    page.push_str("## Blocking reasons\n\n");
    page.push_str("Why a run does not move: the `type` of `blocking_reason`, and the state of a run that has no other reason.\n\n");
    page.push_str("| type | means | rests in |\n|---|---|---|\n");
    for reason in ReasonType::ALL {
        let _ = writeln!(page, "| `{reason}` | {} | `{}` |", reason.means(), reason.rests_in());
    }
    page.push('\n');
}

fn failures(page: &mut String) {
    page.push_str("## Failure classes\n\n");
    page.push_str(
        "What a worker says about an attempt, and what recovery does unless the workflow says otherwise.\n\n",
    );
    page.push_str("| class | means | policy |\n|---|---|---|\n");
    for class in FailureClass::ALL {
        let _ = writeln!(page, "| `{class}` | {} | `{}` |", class.means(), class.default_policy());
    }
    page.push_str("\n## Policies\n\n| policy | means |\n|---|---|\n");
    for policy in Policy::ALL {
        let _ = writeln!(page, "| `{policy}` | {} |", policy.means());
    }
    page.push_str("\n## Failure kinds\n\nHow a step or a run ended in failure: the `kind` of `failure`.\n\n");
    page.push_str("| kind | means |\n|---|---|\n");
    for kind in FailureKind::ALL {
        let _ = writeln!(page, "| `{kind}` | {} |", kind.means());
    }
    page.push('\n');
}

fn numbers(page: &mut String) {
    page.push_str("## Limits\n\n| name | number | bounds |\n|---|---|---|\n");
    for (name, number, bounds) in all_limits() {
        let _ = writeln!(page, "| `{name}` | {number} | {bounds} |");
    }
    page.push('\n');
}

fn events(page: &mut String) {
    page.push_str(
        "## Event kinds\n\nA kind is dotted and in the past tense; `run.` is followed by the state entered.\n\n",
    );
    for kind in event_kinds() {
        let _ = writeln!(page, "- `{kind}`");
    }
}

fn code_list(texts: &[&str]) -> String {
    texts.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
}

fn names(causes: &[Cause]) -> String {
    causes.iter().map(|cause| cause.as_str()).collect::<Vec<_>>().join(", ")
}
