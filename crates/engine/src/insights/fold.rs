//! What events add to the numbers. What an event costs does not depend on what happened before it.

use abide_core::contract::RunState;
use abide_core::ids::{Handler, Namespace, Path, WorkflowId};
use abide_core::run::Warning;
use abide_core::run::event::{Carries, Record};
use abide_core::run::step::Wait;
use abide_core::time::{Span, Timestamp};
use rusqlite::Connection as Db;
use serde::Deserialize;

use super::calls::Handlers;
use super::{Added, Calls, Measure, OTHER};
use crate::cache::Cache;
use crate::store::sqlite::{insights as table, log, read};
use crate::store::{RunNo, Stored, Touched};

/// A name that is longer is no tool's.
const LONGEST_NAME: usize = 200;

/// Runs whose state is remembered from one commit to the next.
const REMEMBERED: usize = 8_192;

/// What counting remembers, so that it reads nothing twice.
#[derive(Debug)]
pub struct Memory {
    calls: Calls,
    runs: Cache<RunNo, Known>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { calls: Calls::default(), runs: Cache::new(REMEMBERED) }
    }
}

/// What is known of a run after one of its events.
#[derive(Debug)]
struct Known {
    after: u64,
    place: (Namespace, WorkflowId, u32),
    stay: Option<Stay>,
}

/// Folds what was committed after a position: the new position, and what it adds. Nothing new: `None`.
pub fn fold_after(db: &Db, memory: &mut Memory, position: i64, commits: usize) -> Stored<Option<(i64, Added)>> {
    let Some(page) = read::commits_after(db, position, commits)? else {
        // So old that it is not kept: counting goes on with the first that is.
        return Ok(Some((read::before_first(db)?, Added::default())));
    };
    let Some(last) = page.last().map(|(position, _)| position.batch) else { return Ok(None) };
    let mut added = Added::default();
    for one in page.iter().flat_map(|(_, touched)| touched) {
        fold_run(db, memory, one, &mut added)?;
    }
    Ok(Some((last, added)))
}

fn fold_run(db: &Db, memory: &mut Memory, touched: &Touched, added: &mut Added) -> Stored {
    // A page that could not be counted is folded again: what is remembered may be ahead of it.
    let known = memory.runs.take(&touched.no).filter(|known| known.after + 1 == touched.from_seq);
    let (place, stay) = match known {
        Some(known) => (known.place, known.stay),
        None => match table::place_of(db, touched.no)? {
            Some(place) => (place, None),
            None => return Ok(()),
        },
    };
    let handlers = memory.calls.of(db, &place.0, &place.1, place.2)?;
    let count = usize::try_from(touched.to_seq + 1 - touched.from_seq).unwrap_or(usize::MAX);
    let events = log::unhashed(db, touched.no, touched.from_seq - 1, count)?;
    let mut counter = Counter { namespace: place.0.clone(), workflow: place.1.clone(), handlers: &handlers, added };
    let stay = counter.fold(&events, stay, |seq| log::entered_before(db, touched.no, seq))?;
    if !events.iter().rev().find_map(|event| event.to_state).is_some_and(RunState::is_terminal) {
        memory.runs.put(touched.no, Known { after: touched.to_seq, place, stay }, 1);
    }
    Ok(())
}

/// A state that a run is in: since when, and because of which tool.
#[derive(Debug)]
struct Stay {
    since: Timestamp,
    tool: Option<String>,
}

/// Counts the events of one run.
struct Counter<'a> {
    namespace: Namespace,
    workflow: WorkflowId,
    handlers: &'a Handlers,
    added: &'a mut Added,
}

impl Counter<'_> {
    /// Folds events that follow each other, from the state before them, if it is known, to that after them; `before` finds
    /// the event with which the state before another was entered.
    fn fold(
        &mut self,
        events: &[Record],
        mut stay: Option<Stay>,
        before: impl Fn(u64) -> Stored<Option<Record>>,
    ) -> Stored<Option<Stay>> {
        for event in events {
            self.fold_step(event);
            let Some(to) = event.to_state else { continue };
            match event.from_state {
                None => self.count(None, "started", ""),
                Some(from) => {
                    let left = match stay.take() {
                        Some(stay) => Some(stay),
                        None => before(event.seq)?.map(|entered| self.stay(&entered)),
                    };
                    if let Some(left) = left {
                        self.time(left.tool.as_deref(), from, event.at.since(left.since));
                    }
                }
            }
            let entered = self.stay(event);
            self.count_everywhere(entered.tool.as_deref(), "entered", to.as_str());
            stay = Some(entered);
        }
        Ok(stay)
    }

    /// What happened to a step, or to its task.
    fn fold_step(&mut self, event: &Record) {
        let again = event.attempt.is_some_and(|attempt| attempt > 1);
        match event.kind.as_str() {
            "task.issued" => {
                let Some(handler) = handler_of(event) else { return };
                self.count(Some(&handler), "issued", "");
                if again {
                    self.count(Some(&handler), "issued_again", "");
                }
            }
            "step.completed" | "step.failed" if again => {
                let tool = event.step_id.as_ref().and_then(|path| self.handlers.called_by(path));
                self.count_everywhere(tool.as_deref(), "retried_steps", "");
                if event.kind == "step.completed" {
                    self.count_everywhere(tool.as_deref(), "retried_steps_completed", "");
                }
            }
            "warning.added" => {
                let path =
                    serde_json::from_str::<Warning>(event.payload.get()).ok().and_then(|warning| warning.step_id);
                if let Some(tool) = path.and_then(|path| self.handlers.called_by(&path)) {
                    self.count(Some(&tool), "warned", "");
                }
            }
            _ => {}
        }
    }

    fn stay(&self, entered: &Record) -> Stay {
        Stay { since: entered.at, tool: self.tool_of(entered) }
    }

    /// The tool because of which a run is in a state: that of the connection it waits for, else what its step calls.
    fn tool_of(&self, entered: &Record) -> Option<String> {
        let (path, connection) = step_of(entered)?;
        let named = connection.filter(|tool| !tool.is_empty());
        named
            .map(|tool| if tool.len() > LONGEST_NAME { OTHER.into() } else { tool })
            .or_else(|| self.handlers.called_by(&path))
    }

    fn count(&mut self, tool: Option<&str>, metric: &'static str, of: &'static str) {
        self.added.0.entry(self.measure(tool, metric, of)).or_default().0 += 1;
    }

    /// Of the whole workflow and of a tool.
    fn count_everywhere(&mut self, tool: Option<&str>, metric: &'static str, of: &'static str) {
        self.count(None, metric, of);
        if tool.is_some() {
            self.count(tool, metric, of);
        }
    }

    fn time(&mut self, tool: Option<&str>, state: RunState, span: Span) {
        for of in [None, tool].into_iter().take(1 + usize::from(tool.is_some())) {
            let (count, histogram) = self.added.0.entry(self.measure(of, "time_in", state.as_str())).or_default();
            *count += 1;
            histogram.add(span);
        }
    }

    fn measure(&self, tool: Option<&str>, metric: &'static str, of: &'static str) -> Measure {
        let (namespace, workflow) = (self.namespace.clone(), self.workflow.clone());
        Measure { namespace, workflow, tool: tool.unwrap_or_default().to_owned(), metric, of }
    }
}

/// The step because of which a run entered a state, and the tool of the connection that it waits for.
fn step_of(entered: &Record) -> Option<(Path, Option<String>)> {
    #[derive(Deserialize)]
    struct Entered {
        carries: Option<Carries>,
    }
    match serde_json::from_str::<Entered>(entered.payload.get()).ok()?.carries? {
        Carries::Lease { step_id, .. } => Some((step_id, None)),
        Carries::Undo { step_id, .. } => Some((step_id?, None)),
        Carries::Block { step_id, reason } => {
            let tool = if let Wait::Auth { connection, .. } = reason.wait { Some(connection.tool) } else { None };
            Some((step_id, tool))
        }
        Carries::Hold(_) | Carries::Cancel(_) | Carries::StartAt { .. } | Carries::HistoryFull { .. } => None,
    }
}

fn handler_of(issued: &Record) -> Option<String> {
    #[derive(Deserialize)]
    struct Issued {
        task: Task,
    }
    #[derive(Deserialize)]
    struct Task {
        handler: Handler,
    }
    serde_json::from_str::<Issued>(issued.payload.get()).ok().map(|issued| issued.task.handler.to_string())
}

#[cfg(test)]
mod tests {
    use abide_core::definition::Definition;
    use abide_core::play::play;
    use serde_json::{Value, json};

    use super::super::{Counted, Insights};
    use super::*;

    /// Plays a workflow and folds its log in pieces of one commit each, as commits come one by one.
    fn numbers(document: &str, script: Value) -> Insights {
        let script = serde_json::from_value(script).expect("a script");
        let played = play(document, script).expect("a play");
        let handlers = Handlers::of(&Definition::parse(document).expect("a document").definition);
        let (mut added, log) = (Added::default(), played.log());
        for commit in log.chunk_by(|one, next| one.at == next.at) {
            let (namespace, workflow) = (Namespace::from("default"), WorkflowId::from("w"));
            let mut counter = Counter { namespace, workflow, handlers: &handlers, added: &mut added };
            let before = |seq| Ok(log.iter().rfind(|one| one.seq < seq && one.to_state.is_some()).cloned());
            counter.fold(commit, None, before).expect("a fold");
        }
        assert_eq!(added, folded_at_once(log, &handlers), "what is remembered between commits changes nothing");
        let row = |(measure, (count, times)): (Measure, _)| Counted {
            tool: measure.tool,
            metric: measure.metric.into(),
            of: measure.of.into(),
            count,
            times,
        };
        Insights::of(&added.0.into_iter().map(row).collect::<Vec<_>>())
    }

    /// The same, with the state carried from each event to the next.
    fn folded_at_once(log: &[Record], handlers: &Handlers) -> Added {
        let (mut added, mut stay) = (Added::default(), None);
        for event in log {
            let (namespace, workflow) = (Namespace::from("default"), WorkflowId::from("w"));
            let mut counter = Counter { namespace, workflow, handlers, added: &mut added };
            let never = |_| Err(crate::store::StoreError::Failed("it is known".into()));
            stay = counter.fold(std::slice::from_ref(event), stay, never).expect("a fold");
        }
        added
    }

    const PAY: &str = "workflow: w\nsteps:\n  - { id: pay, task: bank.pay, retry: { max_attempts: 3, first: 10s, jitter: 0 } }\n  - { id: tell, task: mail.send, after: [pay], on_failure: warn }\n";

    #[test]
    fn a_back_off_is_the_time_of_the_tool_that_failed() {
        let fail = json!({ "fail": { "class": "transient", "message": "busy" } });
        let known = numbers(PAY, json!({ "handlers": { "bank.pay": [fail, { "output": 1 }], "mail.send": [{}] } }));
        let (bank, mail) = (&known.tools["bank.pay"], &known.tools["mail.send"]);
        assert_eq!((bank.issued, bank.again, bank.retries, bank.retry_rate), (2, 1, 1, Some(0.5)));
        assert_eq!((bank.retry_success_rate, mail.retry_success_rate), (Some(1.0), None));
        let waited = bank.time_in_state["retry_scheduled"];
        assert!(waited.count == 1 && (10_000.0..12_000.0).contains(&waited.p50_ms), "{waited:?}");
        assert_eq!((bank.time_in_state["running"].count, mail.time_in_state["running"].count), (2, 1));
        assert_eq!((known.time_in_state["running"].count, known.retry_success_rate), (3, Some(1.0)));
        // Nobody had taken the tasks yet: being in line is no tool's time.
        assert!(known.time_in_state.contains_key("queued") && !bank.time_in_state.contains_key("queued"));
    }

    #[test]
    fn a_wait_for_a_connection_is_the_time_of_its_tool_and_not_of_the_handler() {
        let fail = json!({ "fail": { "class": "auth", "message": "expired", "tool": "gmail" } });
        let answers = json!([{ "after": "1h", "reconnect": { "tool": "gmail" } }]);
        let handlers = json!({ "bank.pay": [{}], "mail.send": [fail, {}] });
        let known = numbers(PAY, json!({ "handlers": handlers, "answers": answers }));
        let (gmail, mail) = (&known.tools["gmail"], &known.tools["mail.send"]);
        assert_eq!((gmail.issued, gmail.auth_blocked, gmail.auth_blocked_rate), (0, 1, 1.0));
        assert_eq!(gmail.time_in_state.keys().collect::<Vec<_>>(), ["waiting_on_auth"]);
        assert_eq!((mail.auth_blocked, mail.time_in_state["running"].count), (0, 2));
        assert_eq!(known.auth_blocked_rate, 1.0);
    }

    #[test]
    fn a_stall_is_counted_per_thousand_tasks_of_its_tool() {
        let document = "workflow: w\nsteps:\n  - { id: pay, task: bank.pay }\n";
        let known = numbers(document, json!({ "handlers": { "bank.pay": [{ "lost": true }, {}] } }));
        let bank = &known.tools["bank.pay"];
        assert_eq!((bank.issued, bank.stalls, bank.stalls_per_1000_tasks), (2, 1, Some(500.0)));
        assert_eq!((bank.retry_success_rate, known.stalls_per_1000_runs), (Some(1.0), 1_000.0));
    }

    #[test]
    fn a_warning_is_its_step_s_tool_s() {
        let fatal = json!({ "fail": { "class": "fatal", "message": "no such address" } });
        let known = numbers(PAY, json!({ "handlers": { "bank.pay": [{}], "mail.send": [fatal] } }));
        let (bank, mail) = (&known.tools["bank.pay"], &known.tools["mail.send"]);
        assert_eq!((mail.warnings, mail.warnings_rate), (1, Some(1.0)));
        assert_eq!((bank.warnings, bank.warnings_rate), (0, Some(0.0)));
        assert_eq!(known.completed_with_warnings_rate, 1.0);
    }

    #[test]
    fn what_waits_for_people_or_for_nobody_is_no_tool_s() {
        let document = "workflow: w\nsteps:\n  - { id: go, approval: { title: Go, approvers: [ana] } }\n  - { id: nap, sleep: 1h, after: [go] }\n";
        let answers = json!([{ "after": "1h", "approve": { "by": "ana" } }]);
        let known = numbers(document, json!({ "answers": answers }));
        assert!(known.time_in_state.contains_key("waiting_on_approval"), "{known:?}");
        assert!(known.tools.is_empty(), "{known:?}");
    }
}
