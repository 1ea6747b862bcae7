//! What `abide dev` shows: the example workflows, workers that offer their handlers, and one run for every state.

mod handlers;

use abide_core::contract::RunState;
use abide_core::ids::RunId;
use abide_core::run::command::{Actor, Ask, Command};
use abide_engine::{Engine, Error, Filter, NewRun, ReadError};
use serde_json::{Value, json};

pub use handlers::work;

/// Every example, as it stands in `examples/`.
pub const WORKFLOWS: &[&str] = &[
    include_str!("../../../../examples/contract-signing.workflow.yaml"),
    include_str!("../../../../examples/customer-import.workflow.yaml"),
    include_str!("../../../../examples/flaky-feed.workflow.yaml"),
    include_str!("../../../../examples/hello.workflow.yaml"),
    include_str!("../../../../examples/news-scan.workflow.yaml"),
    include_str!("../../../../examples/onboarding.workflow.yaml"),
    include_str!("../../../../examples/order-saga.workflow.yaml"),
    include_str!("../../../../examples/pay-invoice.workflow.yaml"),
    include_str!("../../../../examples/photo-album.workflow.yaml"),
    include_str!("../../../../examples/purchase.workflow.yaml"),
    include_str!("../../../../examples/reminder.workflow.yaml"),
    include_str!("../../../../examples/site-crawl.workflow.yaml"),
];

/// Who starts the demo's runs. Nobody who approves one.
const STARTED_BY: &str = "demo";
/// So long the run that will be canceled is left to itself.
const BEFORE_CANCEL: std::time::Duration = std::time::Duration::from_secs(2);

/// A run of the demo.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub run_id: &'static str,
    workflow: &'static str,
    input: fn() -> Value,
    after: After,
    /// Where it comes to rest, or what it goes through for some seconds.
    pub state: RunState,
    /// What happens there.
    pub about: &'static str,
}

/// What is done to a run once it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    Pause,
    Cancel,
}

const fn shown(
    run_id: &'static str,
    workflow: &'static str,
    input: fn() -> Value,
    state: RunState,
    about: &'static str,
) -> Shown {
    Shown { run_id, workflow, input, after: After::Nothing, state, about }
}

impl Shown {
    const fn then(mut self, after: After) -> Shown {
        self.after = after;
        self
    }
}

/// All of them. Their ids are fixed, so that commands and guides can name them.
pub const RUNS: &[Shown] = &[
    shown(
        "run_demo-news",
        "news-scan",
        || json!({ "topic": "harbours" }),
        RunState::WaitingOnAuth,
        "Drive's token has expired",
    ),
    shown(
        "run_demo-purchase",
        "purchase",
        || json!({ "item": "desk", "price": 400 }),
        RunState::WaitingOnApproval,
        "a manager has to agree",
    ),
    shown(
        "run_demo-onboarding",
        "onboarding",
        || json!({ "name": "Cem" }),
        RunState::WaitingOnChild,
        "its laptop waits for a manager, too",
    ),
    shown(
        "run_demo-contract",
        "contract-signing",
        || json!({ "customer": "Harbour Ltd" }),
        RunState::WaitingOnTool,
        "a signature is to come as a signal",
    ),
    shown(
        "run_demo-customer",
        "customer-import",
        || json!({ "customer": { "name": "Harbour Ltd" } }),
        RunState::WaitingOnOperator,
        "the postcode is missing: correct it",
    ),
    shown(
        "run_demo-reminder",
        "reminder",
        || json!({ "whom": "ana@example.com" }),
        RunState::WaitingOnTimer,
        "it sleeps for an hour",
    ),
    shown(
        "run_demo-feed",
        "flaky-feed",
        || json!({ "feed": "harbours" }),
        RunState::RetryScheduled,
        "the feed is down: each try waits longer",
    ),
    shown(
        "run_demo-crawl",
        "site-crawl",
        || json!({ "site": "example.com" }),
        RunState::Stalled,
        "its worker hangs and is found out",
    ),
    shown("run_demo-hello", "hello", || json!({ "name": "Ana" }), RunState::Queued, "no worker offers `greet`: be one"),
    shown(
        "run_demo-paused",
        "reminder",
        || json!({ "whom": "ben@example.com" }),
        RunState::Paused,
        "an operator holds it",
    )
    .then(After::Pause),
    shown("run_demo-album", "photo-album", album, RunState::Running, "50 photos, five at a time, with a warning"),
    shown(
        "run_demo-invoice",
        "pay-invoice",
        || json!({ "invoice": "I-7", "amount": 90 }),
        RunState::Succeeded,
        "the bank's answer was lost, a probe found the payment",
    ),
    shown(
        "run_demo-order",
        "order-saga",
        || json!({ "order": { "id": "moon-1", "amount": 40, "card": "tok_1" } }),
        RunState::Compensating,
        "shipping fails: the charge is refunded, then it is failed",
    ),
    shown(
        "run_demo-raw-album",
        "photo-album",
        || json!({ "photos": ["1.raw", "2.raw"] }),
        RunState::CancelRequested,
        "canceled while it works, and then for good",
    )
    .then(After::Cancel),
];

fn album() -> Value {
    json!({ "photos": (1..=50).map(|n| format!("{n}.jpg")).collect::<Vec<_>>() })
}

/// Why the demo could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Unshown {
    #[error(transparent)]
    Engine(#[from] Error),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Keeps the example workflows, and starts the runs of the demo in a store that has none. Tells whether it did.
pub async fn begin(engine: &Engine) -> Result<bool, Unshown> {
    for document in WORKFLOWS {
        engine.register(document).await?;
    }
    let none = engine.list(Filter::default(), None, 1).await?.runs.is_empty()
        && engine.list_archived(Filter::default(), None, 1).await?.runs.is_empty();
    if none {
        for one in RUNS {
            start(engine, one).await?;
        }
    }
    Ok(none)
}

async fn start(engine: &Engine, one: &Shown) -> Result<(), Error> {
    let run_id = RunId::new(one.run_id);
    let new = NewRun::of(one.workflow, (one.input)().to_string(), Actor::user(STARTED_BY));
    engine.start_run(NewRun { run_id: Some(run_id.clone()), ..new }).await?;
    match one.after {
        After::Nothing => {}
        After::Pause => {
            let ask = Ask::Pause { reason: "nothing is sent before the month is closed".into() };
            engine.command(&run_id, Command::new(Actor::user(STARTED_BY), ask)).await?;
        }
        After::Cancel => {
            let engine = engine.clone();
            tokio::spawn(async move {
                tokio::time::sleep(BEFORE_CANCEL).await;
                let ask = Ask::Cancel { reason: "the wrong album".into(), undo: None, grace: None };
                // Whoever stops the server within these seconds finds the album finished instead.
                let _ = engine.command(&run_id, Command::new(Actor::user(STARTED_BY), ask)).await;
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use abide_core::definition::Definition;

    #[test]
    fn every_example_is_embedded_and_every_run_has_its_workflow() {
        let embedded: Vec<String> = WORKFLOWS
            .iter()
            .map(|document| Definition::parse(document).expect("an example is sound").definition.workflow.to_string())
            .collect();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .expect("there are examples")
            .filter_map(|file| file.ok()?.file_name().to_str()?.strip_suffix(".workflow.yaml").map(Into::into))
            .collect();
        there.sort();
        assert_eq!(embedded, there);
        assert!(RUNS.iter().all(|one| embedded.iter().any(|workflow| workflow == one.workflow)));
    }

    #[test]
    fn every_open_state_is_shown_by_a_run() {
        for state in RunState::ALL.iter().filter(|state| !state.is_terminal()) {
            assert!(RUNS.iter().any(|one| one.state == *state), "{state} is shown by no run");
        }
    }
}
