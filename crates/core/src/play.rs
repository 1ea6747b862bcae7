//! Plays a workflow in virtual time, without a server: stubs stand for workers, answers for people. `abide test` and the
//! tests of the rules stand on it.

use std::collections::{BTreeMap, VecDeque};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::contract::{FailureClass, RunState, StepState};
use crate::definition::{Definition, DefinitionError, parse_duration};
use crate::ids::{Digest, Namespace, Path, RunId, WorkerId};
use crate::run::Around;
use crate::run::command::{
    Actor, Ask, BlockOn, ChildOutcome, Command, Effect, Fault, Holding, Json, Outcome, Rejection, Reply, Report,
    Resolution, Start,
};
use crate::run::event::Record;
use crate::run::memory::Memory;
use crate::run::step::{Connection, TaskKind};
use crate::time::{Span, Timestamp};

/// The instant at which every play begins.
pub const BEGINNING: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);
/// A play that does more than this goes round in circles.
const MOST_MOVES: usize = 200_000;

/// What stands around a workflow in a play; the file that `abide test` reads.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    pub input: Option<Value>,
    /// What each handler does, one entry per call; the last is repeated.
    #[serde(deserialize_with = "stubs")]
    pub handlers: BTreeMap<String, Vec<Stub>>,
    /// What people and tools do when the run waits, in order.
    pub answers: Vec<Said>,
    /// Documents of child workflows.
    pub workflows: Vec<String>,
    pub expect: Expect,
}

/// What a worker does with one task. A value that is none of these is the output itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stub {
    Fail(StubFailure),
    Block(StubBlock),
    /// The worker dies: its lease runs out.
    Lost(Lost),
    Break(Value),
    Output(Value),
}

/// `lost: true`.
#[derive(Clone, Debug)]
pub struct Lost;

/// The words by which a stub is told from an output.
const STUB_WORDS: [&str; 5] = ["fail", "block", "lost", "break", "output"];

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StubFailure {
    #[serde(default)]
    pub class: Option<FailureClass>,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub code: Option<String>,
    #[serde(default)]
    pub retry_after: Option<Lasting>,
    #[serde(default)]
    pub tool: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StubBlock {
    Auth { tool: String },
    Signal { name: String },
    Callback { name: String },
    Timer { after: Lasting },
    Operator { reason: String },
}

/// A duration as workflow documents write it.
#[derive(Clone, Copy, Debug)]
pub struct Lasting(pub Span);

/// What somebody does. `after` waits for a virtual time since the start.
#[derive(Clone, Debug)]
pub struct Said {
    pub after: Option<Span>,
    pub what: SaidWhat,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SaidWhat {
    Approve(Deciding),
    Reject(Deciding),
    Signal { name: String, payload: Option<Value> },
    Callback { step: String, name: String, payload: Option<Value> },
    Reconnect { tool: Option<String> },
    Resolve { step: String, action: ResolveAction, output: Option<Value>, input: Option<Value> },
    Cancel { reason: Option<String> },
    Pause {},
    Resume { steps: Option<u32> },
    Retry {},
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolveAction {
    Retry,
    Complete,
    Correct,
    Skip,
    Compensate,
    Fail,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deciding {
    #[serde(default)]
    pub step: Option<String>,
    pub by: String,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default)]
    pub comment: Option<String>,
    #[serde(default)]
    pub form: Option<Value>,
}

/// What the play should come to. What is not said is not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    pub state: Option<RunState>,
    pub steps: BTreeMap<String, StepState>,
    pub output: Option<serde_json::Value>,
    /// The states in order, from the first to the last.
    pub states: Option<Vec<RunState>>,
}

/// What happened.
#[derive(Debug)]
pub struct Played {
    /// The run itself first, then its children in the order of their start.
    pub runs: Vec<Memory>,
    pub at: Timestamp,
    /// What a script said that nobody took, with the last refusal that says why.
    pub not_taken: Vec<(Said, Option<Rejection>)>,
}

impl Played {
    pub fn run(&self) -> &Memory {
        &self.runs[0]
    }

    pub fn state(&self) -> RunState {
        self.run().working.head.state.unwrap_or(RunState::Queued)
    }

    /// Every state of the run, in order.
    pub fn states(&self) -> Vec<RunState> {
        self.run().log.iter().filter_map(|record| record.to_state).collect()
    }

    pub fn log(&self) -> &[Record] {
        &self.run().log
    }

    pub fn kinds(&self) -> Vec<&str> {
        self.log().iter().map(|record| record.kind.as_str()).collect()
    }

    pub fn output(&self) -> Option<&Json> {
        self.run().payloads.get("output")
    }

    /// What differs from what was expected, one sentence each.
    pub fn unmet(&self, expect: &Expect) -> Vec<String> {
        let mut unmet = Vec::new();
        if let Some(state) = expect.state.filter(|state| *state != self.state()) {
            unmet.push(format!("the run is {}, not {state}", self.state()));
        }
        if let Some(states) = expect.states.as_ref().filter(|states| **states != self.states()) {
            unmet.push(format!("the states were {}, not {}", listed(&self.states()), listed(states)));
        }
        for (path, state) in &expect.steps {
            match self.run().rows.get(path.as_str()) {
                Some(row) if row.state == *state => {}
                Some(row) => unmet.push(format!("step {path} is {}, not {state}", row.state)),
                None if *state == StepState::Pending => {}
                None => unmet.push(format!("step {path} was not reached; {state} was expected")),
            }
        }
        if let Some(expected) = &expect.output {
            let output = self.output().and_then(|json| serde_json::from_str::<serde_json::Value>(json).ok());
            if output.as_ref() != Some(expected) {
                unmet.push(format!("the output is {}, not {expected}", output.unwrap_or_default()));
            }
        }
        unmet
    }
}

fn listed(states: &[RunState]) -> String {
    states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(", ")
}

/// Why a play could not even begin.
#[derive(Debug, thiserror::Error)]
pub enum Unplayable {
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    #[error("the run cannot start: {0}")]
    Start(#[from] Rejection),
    #[error("the play goes round in circles: {MOST_MOVES} moves and no end")]
    Endless,
}

/// Plays a document from its start until nothing moves any more.
pub fn play(document: &str, script: Script) -> Result<Played, Unplayable> {
    let definition = Definition::parse(document)?.definition;
    let mut definitions = vec![definition];
    for child in &script.workflows {
        definitions.push(Definition::parse(child)?.definition);
    }
    let mut world = World::new(definitions, &script);
    world.start(&script.input.as_ref().map_or_else(|| "null".to_owned(), Value::to_string))?;
    world.run_to_rest(script.answers.into())
}

struct World {
    definitions: Vec<Definition>,
    runs: Vec<(Memory, usize)>,
    handlers: BTreeMap<String, (usize, Vec<Stub>)>,
    now: Timestamp,
    around: Around,
    workers: u32,
    moves: usize,
}

impl World {
    fn new(definitions: Vec<Definition>, script: &Script) -> World {
        let handlers = script.handlers.iter().map(|(name, stubs)| (name.clone(), (0, stubs.clone()))).collect();
        let around = Around { serving_since: BEGINNING, ..Around::default() };
        World { definitions, runs: Vec::new(), handlers, now: BEGINNING, around, workers: 0, moves: 0 }
    }

    fn start(&mut self, input: &str) -> Result<(), Unplayable> {
        let start = Start::with_input(input);
        self.begin(RunId::from("run_01KDVZ3C00000000000000PLAY"), 0, start, Actor::user("tester"))?;
        Ok(())
    }

    fn begin(&mut self, run_id: RunId, definition: usize, start: Start, actor: Actor) -> Result<usize, Rejection> {
        let memory = Memory::new(run_id, Namespace::from("default"));
        self.runs.push((memory, definition));
        let number = self.runs.len() - 1;
        match self.ask(number, actor, Ask::Start(Box::new(start))) {
            Ok(_) => Ok(number),
            Err(rejection) => {
                self.runs.pop();
                Err(rejection)
            }
        }
    }

    /// Decides one command and carries its messages to the other runs.
    fn ask(&mut self, number: usize, actor: Actor, ask: Ask) -> Result<Reply, Rejection> {
        let (memory, definition) = &mut self.runs[number];
        let command = Command::new(actor, ask);
        let advanced = memory.apply(&self.definitions[*definition], &command, &self.around, self.now)?;
        for effect in advanced.effects {
            self.deliver(effect);
        }
        Ok(advanced.reply)
    }

    fn deliver(&mut self, effect: Effect) {
        match effect {
            Effect::StartChild(child) => {
                let known = self.definitions.iter().position(|definition| definition.workflow == child.workflow);
                let start =
                    Start { parent: Some(child.parent.clone()), depth: child.depth, ..Start::with_input(child.input) };
                let refused = match known {
                    Some(definition) => {
                        self.begin(child.run_id.clone(), definition, start, Actor::user(child.requester)).err()
                    }
                    None => Some(Rejection::NoStep(Path::from(child.workflow.as_str()))),
                };
                if let Some(rejection) = refused {
                    let outcome = ChildOutcome::Refused { message: rejection.to_string() };
                    self.tell_parent(&child.parent.run_id, child.parent.step_id, child.run_id, outcome);
                }
            }
            Effect::CancelChild { run_id, reason } => {
                if let Some(number) = self.find(&run_id) {
                    // A child that ended in the meantime has told so already.
                    let _ = self.ask(number, Actor::system(), Ask::Cancel { reason, undo: None, grace: None });
                }
            }
            Effect::TellParent { parent, state, failure, warnings } => {
                let Some(child) = self.runs.iter().position(|(memory, _)| {
                    memory.working.head.started.parent.as_ref() == Some(&parent)
                        && memory.working.head.state == Some(state)
                        && memory.working.head.ended_at == Some(self.now)
                }) else {
                    return;
                };
                let output = self.runs[child].0.payloads.get("output").cloned();
                let run_id = self.runs[child].0.working.head.run_id.clone();
                let outcome = ChildOutcome::Ended { state, output, failure, warnings };
                self.tell_parent(&parent.run_id, parent.step_id, run_id, outcome);
            }
            Effect::TaskReady { .. } | Effect::AwaitConnection { .. } => {}
        }
    }

    fn tell_parent(&mut self, parent: &RunId, path: Path, run_id: RunId, outcome: ChildOutcome) {
        if let Some(number) = self.find(parent) {
            let told = self.ask(number, Actor::system(), Ask::ChildEnded { path, run_id, outcome });
            debug_assert!(told.is_ok(), "{told:?}");
        }
    }

    fn find(&self, run_id: &RunId) -> Option<usize> {
        self.runs.iter().position(|(memory, _)| memory.working.head.run_id == *run_id)
    }

    fn run_to_rest(mut self, mut answers: VecDeque<Said>) -> Result<Played, Unplayable> {
        let mut refused = None;
        loop {
            self.moves += 1;
            if self.moves > MOST_MOVES {
                return Err(Unplayable::Endless);
            }
            if self.work_once() {
                continue;
            }
            if self.answer_next(&mut answers, &mut refused) {
                refused = None;
                continue;
            }
            if !self.advance_time(&answers) {
                let not_taken = answers.into_iter().map(|said| (said, refused.take())).collect();
                let runs = self.runs.into_iter().map(|(memory, _)| memory).collect();
                return Ok(Played { runs, at: self.now, not_taken });
            }
        }
    }

    /// Lets a stub execute the first task that is ready.
    fn work_once(&mut self) -> bool {
        let ready = self.runs.iter().enumerate().find_map(|(number, (memory, _))| {
            let step = memory.working.open().find(|step| step.is_ready())?;
            let task = step.task.clone()?;
            Some((number, step.path.clone(), step.state, task))
        });
        let Some((number, row, state, task)) = ready else { return false };
        let path = match task.kind {
            TaskKind::Step | TaskKind::Body => row,
            TaskKind::Compensate => row.undo(),
            TaskKind::Reconcile if state == StepState::Compensating => row.undo().probe(),
            TaskKind::Reconcile => row.probe(),
        };
        self.workers += 1;
        let worker = WorkerId::new(format!("worker-{}", self.workers));
        let claim = Ask::Claim {
            path: path.clone(),
            task_id: task.id.clone(),
            worker: worker.clone(),
            window: None,
            claim_id: None,
        };
        let Ok(Reply::Leased { epoch, .. }) = self.ask(number, Actor::worker(worker.as_str()), claim) else {
            return true;
        };
        let holding = Holding { path, task_id: task.id, epoch };
        let stub = self.stub(task.handler.as_str());
        if let Some(ask) = self.act(number, stub, holding, &worker) {
            let answered = self.ask(number, Actor::worker(worker.as_str()), ask);
            debug_assert!(answered.is_ok(), "{answered:?}");
        }
        true
    }

    fn stub(&mut self, handler: &str) -> Option<Stub> {
        let (calls, stubs) = self.handlers.get_mut(handler)?;
        let stub = stubs.get(*calls).or(stubs.last()).cloned();
        *calls += 1;
        stub
    }

    fn act(&mut self, number: usize, stub: Option<Stub>, holding: Holding, worker: &WorkerId) -> Option<Ask> {
        let report =
            |output: &Value, outcome| Report { output: Some(output.to_string().into()), outcome, ..Report::default() };
        Some(match stub {
            None => Ask::Complete { holding, report: Report::default() },
            Some(Stub::Output(output)) => Ask::Complete { holding, report: report(&output, Outcome::Ok) },
            Some(Stub::Break(output)) => Ask::Complete { holding, report: report(&output, Outcome::Break) },
            Some(Stub::Lost(Lost)) => return None,
            Some(Stub::Fail(fail)) => Ask::Fail {
                holding,
                fault: Fault {
                    class: fail.class,
                    message: fail.message,
                    code: fail.code,
                    retry_after: fail.retry_after.map(|Lasting(span)| span),
                    tool: fail.tool,
                    ..Fault::default()
                },
            },
            Some(Stub::Block(block)) => {
                let on = match block {
                    StubBlock::Auth { tool } => BlockOn::Auth { tool, account: None },
                    StubBlock::Signal { name } => BlockOn::Signal { name, deadline: None },
                    StubBlock::Callback { name } => {
                        let token_hash = Digest::of(name.as_bytes());
                        let made = Ask::Callback {
                            holding: holding.clone(),
                            name: name.clone(),
                            token_hash,
                            expires_in: None,
                        };
                        let _ = self.ask(number, Actor::worker(worker.as_str()), made);
                        BlockOn::Callback { name, deadline: None }
                    }
                    StubBlock::Timer { after: Lasting(after) } => BlockOn::Timer { until: self.now + after },
                    StubBlock::Operator { reason } => BlockOn::Operator { reason, recommended: None },
                };
                Ask::Block { holding, on, message: None }
            }
        })
    }

    /// Says the next thing of the script to whichever run takes it.
    fn answer_next(&mut self, answers: &mut VecDeque<Said>, refused: &mut Option<Rejection>) -> bool {
        let Some(said) = answers.front() else { return false };
        if said.due_at().is_some_and(|at| at > self.now) {
            return false;
        }
        let (actor, groups, ask) = said.as_ask();
        if let SaidWhat::Reconnect { tool: Some(tool) } = &said.what {
            let connection = Connection { tool: tool.clone(), account: "default".into() };
            let facts = self.around.connections.entry(connection).or_default();
            facts.generation += 1;
            facts.reconnected_at = Some(self.now);
        }
        for number in 0..self.runs.len() {
            self.around.groups = groups.clone();
            let taken = self.ask(number, actor.clone(), ask.clone());
            self.around.groups.clear();
            match taken {
                Ok(_) => {
                    answers.pop_front();
                    return true;
                }
                // That the run has ended meanwhile says less than why it did not take the answer before.
                Err(Rejection::RunTerminal(_)) if refused.is_some() => {}
                Err(rejection) => *refused = Some(rejection),
            }
        }
        false
    }

    /// Goes to the next instant at which something happens.
    fn advance_time(&mut self, answers: &VecDeque<Said>) -> bool {
        let wakes = self.runs.iter().filter_map(|(memory, _)| memory.wake_at);
        let said = answers.front().and_then(Said::due_at).filter(|at| *at > self.now);
        let Some(next) = wakes.chain(said).min() else { return false };
        self.now = self.now.max(next);
        for number in 0..self.runs.len() {
            if self.runs[number].0.wake_at.is_some_and(|at| at <= self.now) {
                let woken = self.ask(number, Actor::system(), Ask::Wake);
                debug_assert!(woken.is_ok(), "{woken:?}");
            }
        }
        true
    }
}

impl Said {
    fn due_at(&self) -> Option<Timestamp> {
        self.after.map(|after| BEGINNING + after)
    }

    fn as_ask(&self) -> (Actor, Vec<String>, Ask) {
        let json =
            |value: &Option<Value>| Json::from(value.as_ref().map_or_else(|| "null".to_owned(), Value::to_string));
        let decide = |deciding: &Deciding, approve| Ask::Decide {
            step_id: deciding.step.as_deref().map(Path::from),
            by: deciding.by.clone(),
            approve,
            comment: deciding.comment.clone(),
            form: deciding.form.as_ref().map(|form| form.to_string().into()),
            subject_digest: None,
            via: None,
        };
        match &self.what {
            SaidWhat::Approve(deciding) => {
                (Actor::user(&*deciding.by), deciding.groups.clone(), decide(deciding, true))
            }
            SaidWhat::Reject(deciding) => {
                (Actor::user(&*deciding.by), deciding.groups.clone(), decide(deciding, false))
            }
            SaidWhat::Signal { name, payload } => {
                (Actor::user("tester"), Vec::new(), Ask::Signal { name: name.clone(), payload: json(payload) })
            }
            SaidWhat::Callback { step, name, payload } => (
                Actor::user("tester"),
                Vec::new(),
                Ask::CallbackAnswer {
                    path: Path::from(step.as_str()),
                    token_hash: Digest::of(name.as_bytes()),
                    payload: json(payload),
                },
            ),
            SaidWhat::Reconnect { tool } => (
                Actor::user("tester"),
                Vec::new(),
                Ask::Reconnect { tool: tool.clone(), account: None, generation: None },
            ),
            SaidWhat::Resolve { step, action, output, input } => {
                let action = match action {
                    ResolveAction::Retry => Resolution::Retry { new_key: false },
                    ResolveAction::Complete => {
                        Resolution::Complete { output: output.as_ref().map(|output| output.to_string().into()) }
                    }
                    ResolveAction::Correct => Resolution::Correct { input: json(input) },
                    ResolveAction::Skip => Resolution::Skip,
                    ResolveAction::Compensate => Resolution::Compensate,
                    ResolveAction::Fail => Resolution::Fail,
                };
                let ask =
                    Ask::Resolve { step_id: Path::from(step.as_str()), action, reason: "the script says so".into() };
                (Actor::user("tester"), Vec::new(), ask)
            }
            SaidWhat::Cancel { reason } => {
                let reason = reason.clone().unwrap_or_else(|| "the script says so".into());
                (Actor::user("tester"), Vec::new(), Ask::Cancel { reason, undo: None, grace: None })
            }
            SaidWhat::Pause {} => {
                (Actor::user("tester"), Vec::new(), Ask::Pause { reason: "the script says so".into() })
            }
            SaidWhat::Resume { steps } => {
                (Actor::user("tester"), Vec::new(), Ask::Resume { one_step: steps.is_some() })
            }
            SaidWhat::Retry {} => (Actor::user("tester"), Vec::new(), Ask::RetryNow),
        }
    }
}

/// Reads what handlers do. A word such as `fail` that is written wrongly is refused, not taken for an output.
pub fn stubs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Vec<Stub>>, D::Error> {
    let written: BTreeMap<String, Vec<Value>> = BTreeMap::deserialize(deserializer)?;
    let stub =
        |name: &str, value: Value| match value.as_object().map(|object| object.keys().collect::<Vec<_>>()).as_deref() {
            Some([word]) if STUB_WORDS.contains(&word.as_str()) => serde_json::from_value(value)
                .map_err(|fault| D::Error::custom(format!("what handler `{name}` does is not a stub: {fault}"))),
            _ => Ok(Stub::Output(value)),
        };
    written
        .into_iter()
        .map(|(name, values)| {
            let stubs = values.into_iter().map(|value| stub(&name, value)).collect::<Result<_, _>>()?;
            Ok((name, stubs))
        })
        .collect()
}

impl<'de> Deserialize<'de> for Lost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lost, D::Error> {
        match bool::deserialize(deserializer)? {
            true => Ok(Lost),
            false => Err(D::Error::custom("write `lost: true`, or the output of a worker that lives")),
        }
    }
}

impl<'de> Deserialize<'de> for Lasting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lasting, D::Error> {
        parse_duration(&String::deserialize(deserializer)?).map(Lasting).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Said, D::Error> {
        let mut fields: serde_json::Map<String, Value> = serde_json::Map::deserialize(deserializer)?;
        let after: Option<Lasting> =
            fields.shift_remove("after").map(serde_json::from_value).transpose().map_err(D::Error::custom)?;
        let what = serde_json::from_value(Value::Object(fields))
            .map_err(|fault| D::Error::custom(format!("this is not an answer: {fault}")))?;
        Ok(Said { after: after.map(|Lasting(span)| span), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(json: serde_json::Value) -> Result<Script, String> {
        serde_json::from_value(json).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_stub_is_an_output_unless_its_only_key_is_a_stub_word() {
        let stubs =
            serde_json::json!([{ "fail": { "class": "auth" } }, { "lost": true }, { "fail": 1, "more": 2 }, 7, null]);
        let read = script(serde_json::json!({ "handlers": { "h": stubs } })).expect("a script");
        assert!(matches!(
            read.handlers["h"][..],
            [Stub::Fail(_), Stub::Lost(Lost), Stub::Output(_), Stub::Output(_), Stub::Output(_)]
        ));
    }

    #[test]
    fn a_script_that_is_written_wrongly_is_refused() {
        for (wrong, said) in [
            (serde_json::json!({ "handlers": { "h": [{ "fail": { "class": "auht" } }] } }), "unknown variant `auht`"),
            (serde_json::json!({ "handlers": { "h": [{ "lost": false }] } }), "write `lost: true`"),
            (serde_json::json!({ "answers": [{ "aprove": { "by": "ana" } }] }), "unknown variant `aprove`"),
            (serde_json::json!({ "answers": [{ "after": "3", "retry": {} }] }), "has no unit"),
            (serde_json::json!({ "answers": [{ "afer": "3s", "retry": {} }] }), "this is not an answer"),
            (
                serde_json::json!({ "answers": [{ "resolve": { "step": "a", "action": "redo" } }] }),
                "unknown variant `redo`",
            ),
            (serde_json::json!({ "expects": {} }), "unknown field `expects`"),
        ] {
            let refusal = script(wrong).expect_err(said);
            assert!(refusal.contains(said), "{refusal}");
        }
    }
}
