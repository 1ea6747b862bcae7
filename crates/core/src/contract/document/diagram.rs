//! The run's table as a picture that can still be read: states that move alike are drawn as one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::contract::{Cause, RUN, RunState};

/// Where a state stands in the picture. The order is that of drawing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Queued,
    Running,
    /// Every state in which nothing executes and something must happen first.
    Waiting,
    Paused,
    CancelRequested,
    Compensating,
    /// The terminal states.
    Ended,
}

const NODES: [Node; 7] =
    [Node::Queued, Node::Running, Node::Waiting, Node::Paused, Node::CancelRequested, Node::Compensating, Node::Ended];

/// Drawn inside one frame, so that what leaves all of them is one arrow.
const OPEN: [Node; 3] = [Node::Queued, Node::Running, Node::Waiting];

/// More causes than this say nothing in a picture.
const MOST_CAUSES: usize = 3;

impl Node {
    fn of(state: RunState) -> Node {
        match state {
            RunState::Queued => Node::Queued,
            RunState::Running => Node::Running,
            RunState::WaitingOnTool
            | RunState::WaitingOnAuth
            | RunState::WaitingOnApproval
            | RunState::WaitingOnChild
            | RunState::WaitingOnTimer
            | RunState::WaitingOnOperator
            | RunState::RetryScheduled
            | RunState::Stalled => Node::Waiting,
            RunState::Paused => Node::Paused,
            RunState::CancelRequested => Node::CancelRequested,
            RunState::Compensating => Node::Compensating,
            RunState::Succeeded | RunState::CompletedWithWarnings | RunState::Failed | RunState::Canceled => {
                Node::Ended
            }
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Node::Queued => "queued",
            Node::Running => "running",
            Node::Waiting => "waiting",
            Node::Paused => "paused",
            Node::CancelRequested => "cancel_requested",
            Node::Compensating => "compensating",
            Node::Ended => "ended",
        }
    }

    fn members(self) -> impl Iterator<Item = RunState> {
        RunState::ALL.iter().copied().filter(move |state| Node::of(*state) == self)
    }
}

/// The run's table as a Mermaid `stateDiagram-v2`. Every row has an arrow, but rows of states that are drawn as one
/// share it; the complete table is in the reference page.
pub fn mermaid() -> String {
    let mut text = String::from("stateDiagram-v2\n");
    text.push_str("    state open {\n        queued\n        running\n");
    frame(&mut text, "        ", Node::Waiting);
    text.push_str("    }\n    paused\n    cancel_requested\n    compensating\n");
    frame(&mut text, "    ", Node::Ended);
    text.push('\n');
    for to in NODES {
        let first = causes(|row| row.0.is_none() && Node::of(row.1) == to);
        arrow(&mut text, "[*]", to.name(), &first);
    }
    for from in OPEN {
        for to in OPEN.into_iter().filter(|to| *to != from) {
            arrow(&mut text, from.name(), to.name(), &between(from, to));
        }
    }
    for to in NODES.into_iter().filter(|to| !OPEN.contains(to)) {
        let leaving = OPEN.map(|from| between(from, to));
        if leaving.iter().all(|causes| !causes.is_empty()) {
            arrow(&mut text, "open", to.name(), &leaving.into_iter().flatten().collect());
        } else {
            for (from, causes) in OPEN.into_iter().zip(&leaving) {
                arrow(&mut text, from.name(), to.name(), causes);
            }
        }
    }
    for from in NODES.into_iter().filter(|from| !OPEN.contains(from)) {
        for to in NODES.into_iter().filter(|to| *to != from) {
            arrow(&mut text, from.name(), to.name(), &between(from, to));
        }
    }
    text.push_str("    ended --> [*]\n\n");
    text.push_str(
        "    note right of stalled\n        States that wait are drawn as one: an arrow from or to it holds for at\n",
    );
    text.push_str("        least one of them, and moves among them are not drawn.\n    end note\n");
    text
}

/// A state that holds the states it stands for.
fn frame(text: &mut String, indent: &str, node: Node) {
    let _ = writeln!(text, "{indent}state {} {{", node.name());
    for state in node.members() {
        let _ = writeln!(text, "{indent}    {state}");
    }
    let _ = writeln!(text, "{indent}}}");
}

fn between(from: Node, to: Node) -> BTreeSet<Cause> {
    causes(|row| row.0.is_some_and(|state| Node::of(state) == from) && Node::of(row.1) == to)
}

fn causes(wanted: impl Fn((Option<RunState>, RunState)) -> bool) -> BTreeSet<Cause> {
    RUN.iter().filter(|row| wanted((row.from, row.to))).flat_map(|row| row.causes.iter()).collect()
}

fn arrow(text: &mut String, from: &str, to: &str, causes: &BTreeSet<Cause>) {
    if causes.is_empty() {
        return;
    }
    let _ = write!(text, "    {from} --> {to}");
    if causes.len() <= MOST_CAUSES {
        let names: Vec<&str> = causes.iter().map(|cause| cause.as_str()).collect();
        let _ = write!(text, ": {}", names.join(", "));
    }
    text.push('\n');
}
