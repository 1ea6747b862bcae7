//! What holds for every run, whatever was asked of it. Tests, the engine and `abide doctor` use the same list; the
//! numbers are those of the reliability page.

use std::collections::{BTreeMap, BTreeSet};

use super::decide::coded::{BODY, spec_of};
use super::event::{Fact, Record};
use super::fold::{can_be_undone, row_of};
use super::lifecycle::{project, wake_at};
use super::step::{ApprovalWait, Decision, Step, TaskKind, Wait};
use super::{Finally, Phase, Working, limits};
use crate::contract::{ReasonType, RunState, StepState, lookup};
use crate::definition::Definition;
use crate::ids::{Digest, Epoch, Path, RunId};
use crate::time::{Span, Timestamp};

/// What is due is handled within this, by an engine that serves; so long, too, a run is left that could not be handled.
pub const MAX_LAG: Span = Span::from_secs(60);
/// How far apart the sweeps are that find a lost lease.
const SWEEP: Span = Span::from_secs(1);

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `I15`, say.
    pub rule: &'static str,
    pub what: String,
}

fn violated(rule: &'static str, what: impl Into<String>) -> Violation {
    Violation { rule, what: what.into() }
}

/// What does not hold of a run with all its rows.
pub fn broken(run: &Working, woken_at: Option<Timestamp>, serving_since: Timestamp) -> Vec<Violation> {
    let mut found = Vec::new();
    let Some(state) = run.head.state else { return found };
    if state.is_terminal() {
        terminal(run, &mut found);
    } else {
        open(run, state, &mut found);
        due(run, woken_at, serving_since, &mut found);
    }
    leases(run, &mut found);
    children(run, &mut found);
    decisions(run, &mut found);
    groups(run, &mut found);
    undo_stack(run, &mut found);
    unknown_stack(run, &mut found);
    required(run, state, &mut found);
    found
}

/// I5, I43: nothing of a run that has ended can act any more.
fn terminal(run: &Working, found: &mut Vec<Violation>) {
    for step in run.steps.values().flatten() {
        if step.task.is_some() || step.block.is_some() {
            found.push(violated("I5", format!("the run ended and {} can still act", step.path)));
        } else if !step.state.is_ended() || step.state == StepState::Compensating {
            found.push(violated("I5", format!("the run ended and {} is {}", step.path, step.state)));
        }
    }
    if !matches!(run.head.phase, Phase::Ended) || run.head.ended_at.is_none() {
        found.push(violated("I4", "the run ended without an end"));
    }
}

/// I3, I15, I32, I36: the state is what the projection gives, and something can change it.
fn open(run: &Working, state: RunState, found: &mut Vec<Violation>) {
    let projected = project(run).state();
    if projected != state {
        found.push(violated("I3", format!("the row says {state}, the projection {projected}")));
    }
    if state == RunState::Running && !run.open().any(Step::is_leased) {
        found.push(violated("I15", "running without a lease"));
    }
    if state == RunState::Stalled {
        let proven = run
            .open()
            .filter_map(|step| step.block.as_ref())
            .any(|block| matches!(block.reason(), ReasonType::LeaseLost | ReasonType::Overdue));
        if !proven {
            found.push(violated("I36", "stalled without a lost lease or an overdue wait"));
        }
    }
    let held = run.head.is_held() || run.head.history_full;
    let delayed = run.head.body.is_none() && run.head.started.start_at.is_some();
    let can_move = run.open().any(|step| step.task.is_some() || step.block.is_some());
    let waits_for_child = !run.head.detached.is_empty();
    if !(held || delayed || can_move || waits_for_child) {
        found.push(violated("I32", format!("{state}, and nothing and nobody can change that")));
    }
}

/// I34: the run is looked at no later than anything in it is due.
fn due(run: &Working, woken_at: Option<Timestamp>, serving_since: Timestamp, found: &mut Vec<Violation>) {
    let earliest = wake_at(run, serving_since);
    let late = match (woken_at, earliest) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(woken_at), Some(earliest)) => woken_at > earliest,
    };
    if late {
        found.push(violated("I34", format!("wakes at {woken_at:?} and something is due at {earliest:?}")));
    }
}

/// When an engine served without a gap: from when, and the last time that it said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    pub since: Timestamp,
    pub until: Timestamp,
}

/// I15, I34: what is due was handled while an engine served. One that was down has handled nothing, and is not at fault.
pub fn overdue(run: &Working, woken_at: Option<Timestamp>, served: Served) -> Vec<Violation> {
    let mut found = Vec::new();
    if run.is_terminal() {
        return found;
    }
    if let Some(at) = woken_at.filter(|at| (*at).max(served.since) + MAX_LAG < served.until) {
        found.push(violated("I34", format!("was due at {at}, an engine served until {}", served.until)));
    }
    for step in run.open() {
        let (Some(lease), Some(expires_at)) = (step.lease(), step.lease_expires_at(served.since)) else { continue };
        if expires_at.max(served.since) + lease.window + SWEEP + SWEEP < served.until {
            let until = served.until;
            found.push(violated(
                "I15",
                format!("the lease of {} was over at {expires_at}, an engine served until {until}", step.path),
            ));
        }
    }
    found
}

/// I8: no step has had more attempts than its document and the operators allow.
pub fn too_many_attempts(run: &Working, definition: &Definition) -> Vec<Violation> {
    let of = |step: &Step| {
        let declared = step.place.index.and_then(|index| definition.steps().get(index)).map(|def| def.retry);
        let most = declared.unwrap_or_else(|| spec_of(definition, step).retry).max_attempts + step.granted;
        let (path, attempt) = (&step.path, step.attempt);
        (attempt > most).then(|| violated("I8", format!("{path} is at attempt {attempt}, {most} are allowed")))
    };
    run.steps.values().flatten().filter_map(|step| of(step)).collect()
}

/// What a run that was started by another says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descent {
    pub run_id: RunId,
    /// The step that is said to have started it.
    pub step_id: Path,
    pub depth: u32,
}

/// I39: whoever says that a run started it stands in the log of that run, one level below.
pub fn disowned<'a>(
    depth: u32,
    log: impl IntoIterator<Item = &'a Record>,
    said: impl IntoIterator<Item = &'a Descent>,
) -> Vec<Violation> {
    let started: BTreeSet<(Path, RunId)> = log.into_iter().filter_map(child_started).collect();
    let mut found = Vec::new();
    for child in said {
        let Descent { run_id, step_id, depth: below } = child;
        if !started.contains(&(step_id.clone(), run_id.clone())) {
            found.push(violated("I39", format!("{step_id} did not start {run_id}, which says so")));
        }
        if *below != depth + 1 || *below > limits::DEPTH {
            found.push(violated("I39", format!("{run_id} is at depth {below}, its parent at {depth}")));
        }
    }
    found
}

fn child_started(record: &Record) -> Option<(Path, RunId)> {
    let path = record.step_id.as_ref().filter(|_| record.kind == "child.started")?;
    let Fact::ChildStarted { child, .. } = record.event().ok()?.fact else { return None };
    Some((row_of(path), child.run_id))
}

/// I13: at most one lease per task, each with an epoch of its own that the run has counted.
fn leases(run: &Working, found: &mut Vec<Violation>) {
    let mut epochs = BTreeSet::new();
    for (step, lease) in run.steps.values().flatten().filter_map(|step| Some((step, step.lease()?))) {
        if !epochs.insert(lease.epoch) {
            found.push(violated("I13", format!("two leases have epoch {}", lease.epoch)));
        }
        if lease.epoch > run.head.epoch {
            found.push(violated("I13", format!("{} is leased with an epoch that was never given", step.path)));
        }
        if step.block.is_some() {
            found.push(violated("I15", format!("{} is leased and blocked", step.path)));
        }
    }
}

/// I33, I39: whoever waits for a child waits for one that is open, and never for itself.
fn children(run: &Working, found: &mut Vec<Violation>) {
    for step in run.open() {
        let Some(Wait::Child { run_id }) = step.block.as_ref().map(|block| &block.wait) else { continue };
        if *run_id == run.head.run_id {
            found.push(violated("I33", format!("{} waits for its own run", step.path)));
        }
        let known = run.steps.values().flatten().filter_map(|row| row.child.as_ref());
        if !known.into_iter().any(|child| child.run_id == *run_id && child.ended.is_none()) {
            found.push(violated("I39", format!("{} waits for {run_id}, which is not an open child", step.path)));
        }
    }
}

/// I44: each person decides once about each subject.
fn decisions(run: &Working, found: &mut Vec<Violation>) {
    for step in run.steps.values().flatten() {
        let people: BTreeSet<&str> = step.decisions.iter().map(|decision| decision.by.as_str()).collect();
        if people.len() != step.decisions.len() {
            found.push(violated("I44", format!("somebody decided twice about {}", step.path)));
        }
    }
}

/// I40: what a group counts is what its rows are.
fn groups(run: &Working, found: &mut Vec<Violation>) {
    for step in run.steps.values().flatten() {
        let Some(group) = step.group_of.as_ref().filter(|_| !step.state.is_ended()) else { continue };
        let members = run.steps.values().flatten().filter(|row| row.place.parent.as_ref() == Some(&step.path));
        let (mut open, mut done, mut failed) = (0, 0, 0);
        for member in members {
            done += u32::from(member.state.is_done());
            failed += u32::from(member.state == StepState::Failed);
            open += u32::from(!member.state.is_ended());
        }
        if (open, done, failed) != (group.open, group.done, group.failed) {
            let counted = (group.open, group.done, group.failed);
            found.push(violated(
                "I40",
                format!("{} counts {counted:?}, its rows are {:?}", step.path, (open, done, failed)),
            ));
        }
        if group.open > group.parallel {
            found.push(violated(
                "I40",
                format!("{} has {} open, {} are allowed", step.path, group.open, group.parallel),
            ));
        }
    }
}

/// I41: the stack of undos holds exactly the completed steps that can still be undone.
fn undo_stack(run: &Working, found: &mut Vec<Violation>) {
    let mut stacked = 0;
    let mut next = run.head.undo_first.clone();
    while let Some(path) = next {
        stacked += 1;
        match run.step(path.as_str()) {
            Some(step)
                if matches!(step.state, StepState::Completed | StepState::CaseHandled)
                    && stacked <= run.steps.len() =>
            {
                next = step.undo_next.clone();
            }
            other => {
                let state = other.map(|step| step.state);
                found.push(violated("I41", format!("{path} is to be undone and is {state:?}")));
                return;
            }
        }
    }
    if stacked != run.head.undo_left as usize {
        found.push(violated("I41", format!("{} undos are counted, {stacked} are stacked", run.head.undo_left)));
    }
}

/// C6: what a rollback looks at first are steps that ended unknown, and the head counts those that are.
fn unknown_stack(run: &Working, found: &mut Vec<Violation>) {
    let unknown = run.steps.values().flatten().filter(|step| step.unknown).count();
    if run.head.unknown.count != unknown as u64 {
        found
            .push(violated("C6", format!("{} unknown steps are counted, there are {unknown}", run.head.unknown.count)));
    }
    let (mut stacked, mut next) = (0, run.head.unknown_first.as_ref());
    while let Some(step) = next.and_then(|path| run.step(path.as_str())).filter(|_| stacked <= unknown) {
        stacked += 1;
        if !step.unknown || !matches!(step.state, StepState::Canceled | StepState::Failed) {
            found.push(violated("C6", format!("{} is to be looked at and is {}", step.path, step.state)));
        }
        next = step.unknown_next.as_ref();
    }
    if stacked != run.head.unknown_left as usize {
        found.push(violated("C6", format!("{} are to be looked at, {stacked} are stacked", run.head.unknown_left)));
    }
}

/// I4: each state has what it must carry.
fn required(run: &Working, state: RunState, found: &mut Vec<Violation>) {
    let head = &run.head;
    let block =
        |wanted: fn(&Wait) -> bool| run.open().filter_map(|step| step.block.as_ref()).any(|block| wanted(&block.wait));
    let carried = match state {
        RunState::Queued | RunState::Running | RunState::Stalled | RunState::Compensating => true,
        RunState::WaitingOnTool => block(|wait| matches!(wait, Wait::Signal { .. } | Wait::Callback { .. })),
        RunState::WaitingOnAuth => block(|wait| matches!(wait, Wait::Auth { .. })),
        RunState::WaitingOnApproval => block(|wait| matches!(wait, Wait::Approval(_))),
        RunState::WaitingOnChild => block(|wait| matches!(wait, Wait::Child { .. })),
        RunState::WaitingOnTimer => block(|wait| matches!(wait, Wait::Timer)),
        RunState::WaitingOnOperator => head.history_full || block(|wait| matches!(wait, Wait::Operator { .. })),
        RunState::RetryScheduled => {
            run.open().filter_map(|step| step.block.as_ref()).any(|block| block.until.is_some())
        }
        RunState::Paused => head.hold.is_some(),
        RunState::CancelRequested => matches!(head.phase, Phase::Canceling(_)),
        RunState::Succeeded | RunState::Canceled => head.ended_at.is_some(),
        RunState::CompletedWithWarnings => head.ended_at.is_some() && head.warnings.count > 0,
        RunState::Failed => head.ended_at.is_some() && head.failure.is_some(),
    };
    if !carried {
        found.push(violated("I4", format!("{state} lacks {:?}", state.requires())));
    }
    if head.finally == Finally::UnderWay && state.is_terminal() {
        found.push(violated("I5", "the run ended before its finally steps"));
    }
}

/// What does not hold of a log, read alone.
pub fn broken_log(log: &[Record]) -> Vec<Violation> {
    let mut reader = LogReader::default();
    log.iter().flat_map(|record| reader.read(record)).collect()
}

/// Reads a log event by event, so that one that grows is not read again from its beginning.
#[derive(Clone, Debug, Default)]
pub struct LogReader {
    seq: u64,
    hash: Digest,
    at: Timestamp,
    state: Option<RunState>,
    epoch: Epoch,
    /// The epoch of each row's live lease.
    leases: BTreeMap<Path, Epoch>,
    attempts: BTreeMap<Path, u32>,
    completed: BTreeMap<Path, u32>,
    undone: BTreeSet<Path>,
    completed_order: Vec<Path>,
    /// How long the leases would have lasted that were taken away.
    taken_away: BTreeMap<Path, Timestamp>,
    /// Rows that are executed under the lease of a body.
    coded: BTreeSet<Path>,
    requester: String,
    /// Open approvals, and who has decided.
    approvals: BTreeMap<Path, (ApprovalWait, BTreeSet<String>)>,
}

impl LogReader {
    /// What the next event breaks.
    pub fn read(&mut self, record: &Record) -> Vec<Violation> {
        let mut found = Vec::new();
        self.chain(record, &mut found);
        self.states(record, &mut found);
        match record.event() {
            Ok(event) => {
                told_states(&event.fact, record, &mut found);
                self.facts(&event.fact, record, &mut found);
            }
            Err(unreadable) => found.push(violated("I7", unreadable.to_string())),
        }
        found
    }

    /// I2, I7, I46.
    fn chain(&mut self, record: &Record, found: &mut Vec<Violation>) {
        if record.seq != self.seq + 1 {
            found.push(violated("I2", format!("event {} follows {}", record.seq, self.seq)));
        }
        if record.chained_to(self.hash) != record.hash {
            found.push(violated("I7", format!("event {} breaks the chain", record.seq)));
        }
        if record.at < self.at {
            found.push(violated("I46", format!("event {} is before the one before it", record.seq)));
        }
        (self.seq, self.hash, self.at) = (record.seq, record.hash, record.at);
    }

    /// I3, I5, I6.
    fn states(&mut self, record: &Record, found: &mut Vec<Violation>) {
        if let Some(ended) = self.state.filter(|state| state.is_terminal())
            && record.kind != "pin.set"
        {
            found.push(violated("I5", format!("{} after the run had {ended}", record.kind)));
        }
        let Some(to) = record.to_state else { return };
        if record.from_state != self.state {
            found.push(violated(
                "I3",
                format!("event {} comes from {:?}, the run was {:?}", record.seq, record.from_state, self.state),
            ));
        }
        if let Err(refused) = lookup(record.from_state, to, record.cause) {
            found.push(violated("I3", refused.to_string()));
        }
        self.state = Some(to);
    }

    fn facts(&mut self, fact: &Fact, record: &Record, found: &mut Vec<Violation>) {
        if let Fact::Entered(entered) = fact
            && let Some(started) = &entered.started
        {
            self.requester.clone_from(&started.requester);
        }
        let Some(path) = &record.step_id else { return };
        let row = row_of(path);
        self.approvals(&row, fact, record, found);
        if let Fact::TaskFailed { until: Some(until), .. } | Fact::TaskCanceled { until: Some(until), .. } = fact {
            let known = self.taken_away.entry(row.clone()).or_insert(*until);
            *known = (*known).max(*until);
        }
        self.tasks(path, &row, fact, record, found);
        self.steps(path, row, fact, found);
    }

    /// I8, I13, I14, I16: tasks, their attempts and their leases.
    fn tasks(&mut self, path: &Path, row: &Path, fact: &Fact, record: &Record, found: &mut Vec<Violation>) {
        if let Fact::TaskIssued { attempt, task, .. } = fact {
            if task.kind == TaskKind::Reconcile {
                self.looks_too_early(row, record, found);
            }
            if self.leases.contains_key(row) {
                found.push(violated("I16", format!("{path} is issued while it is leased")));
            }
            let before = self.attempts.insert(path.clone(), *attempt).unwrap_or(*attempt);
            // I8: attempts of a step only rise, by one; a probe or an undo begins to count anew.
            if path == row && (*attempt < before || *attempt > before + 1) {
                found.push(violated("I8", format!("{path}: attempt {attempt} after {before}")));
            }
        } else if let Fact::TaskClaimed { epoch, .. } = fact {
            if *epoch != self.epoch.next() {
                found.push(violated("I13", format!("{path}: epoch {epoch} after {}", self.epoch)));
            }
            self.epoch = *epoch;
            if self.leases.insert(row.clone(), *epoch).is_some() {
                found.push(violated("I16", format!("{path} is claimed twice")));
            }
        } else if let Fact::TaskCanceled { epoch, .. } = fact {
            self.lease_ends(row, *epoch, record, found);
        } else if let Fact::TaskCompleted { epoch, .. }
        | Fact::TaskFailed { epoch, .. }
        | Fact::TaskBlocked { epoch, .. }
        | Fact::TaskLost { epoch, .. } = fact
        {
            self.lease_ends(row, Some(*epoch), record, found);
        }
    }

    /// I27, I41: a step is completed once, and undone once and in order.
    fn steps(&mut self, path: &Path, row: Path, fact: &Fact, found: &mut Vec<Violation>) {
        if let Fact::StepEntered { coded: Some(_), .. } = fact {
            self.coded.insert(row);
        } else if let Fact::StepCompleted { .. } = fact {
            let times = self.completed.entry(path.clone()).or_default();
            *times += 1;
            if *times > 1 {
                found.push(violated("I27", format!("{path} is completed {times} times")));
            }
        } else if let Fact::StepCompensating = fact {
            // I41: last completed, first undone.
            let last = self.completed_order.pop();
            if last.as_ref() != Some(path) {
                found.push(violated("I41", format!("{path} is undone, {last:?} should be")));
            }
        } else if let Fact::StepCompensated { .. } = fact
            && !self.undone.insert(path.clone())
        {
            found.push(violated("I41", format!("{path} is undone twice")));
        }
        if can_be_undone(fact) {
            self.completed_order.push(path.clone());
        }
    }

    /// I44: who decides was asked, may, and has not decided before. Whether somebody is in a group stands in no log.
    fn approvals(&mut self, row: &Path, fact: &Fact, record: &Record, found: &mut Vec<Violation>) {
        if let Fact::StepBlocked { block, .. } = fact {
            let decided = self.approvals.remove(row).map(|(_, decided)| decided);
            if let Some(wait) = block.wait.approval() {
                self.approvals.insert(row.clone(), (wait.clone(), decided.unwrap_or_default()));
            }
        } else if let Fact::ApprovalEscalated { approvers, .. } = fact {
            if let Some((wait, _)) = self.approvals.get_mut(row) {
                wait.approvers.clone_from(approvers);
            }
        } else if let Fact::ApprovalGiven(decision) | Fact::ApprovalRejected(decision) = fact {
            let asked = self.approvals.get_mut(row);
            let broken = asked.map_or_else(
                || Some("nobody was asked".to_owned()),
                |(wait, decided)| undecidable(wait, decided, decision, &self.requester),
            );
            found.extend(broken.map(|why| {
                let by = &decision.by;
                violated("I44", format!("event {}: {by} decided about {row}, and {why}", record.seq))
            }));
        } else if let Fact::TaskIssued { .. }
        | Fact::StepReset(_)
        | Fact::StepCompleted { .. }
        | Fact::StepFailed { .. }
        | Fact::StepSkipped { .. }
        | Fact::StepCaseHandled { .. }
        | Fact::StepCanceled { .. } = fact
        {
            self.approvals.remove(row);
        }
    }

    /// C6 (section 6 of the contract): nobody looks for an effect before the lease of whoever may still cause it is over.
    fn looks_too_early(&self, row: &Path, record: &Record, found: &mut Vec<Violation>) {
        let own = self.taken_away.get(row);
        let of_body = self.taken_away.get(BODY).filter(|_| self.coded.contains(row));
        if let Some(until) = own.max(of_body).filter(|until| **until > record.at) {
            found.push(violated(
                "C6",
                format!("{row} is probed at {}; its old worker may act until {until}", record.at),
            ));
        }
    }

    /// I14: a worker writes with the epoch of its own claim, and only while it has it.
    fn lease_ends(&mut self, row: &Path, epoch: Option<Epoch>, record: &Record, found: &mut Vec<Violation>) {
        let held = self.leases.remove(row);
        if epoch.is_some() && held != epoch {
            found.push(violated("I14", format!("{} by lease {epoch:?}, {held:?} holds {row}", record.kind)));
        }
    }
}

/// I3: the states beside an event are those of its fact. The hash covers the fact, and not the state that it leads to.
fn told_states(fact: &Fact, record: &Record, found: &mut Vec<Violation>) {
    let said = fact.entered().map(|entered| entered.state);
    if record.to_state != said || (said.is_none() && record.from_state.is_some()) {
        let (from, to) = (record.from_state, record.to_state);
        found.push(violated("I3", format!("event {} says {from:?} to {to:?}, its fact {said:?}", record.seq)));
    }
}

/// Why somebody cannot have decided, if that can be told.
fn undecidable(
    wait: &ApprovalWait,
    decided: &mut BTreeSet<String>,
    decision: &Decision,
    requester: &str,
) -> Option<String> {
    let by = &decision.by;
    let told = !wait.approvers.iter().any(|approver| approver.starts_with("role:"));
    if told && !wait.approvers.is_empty() && !wait.approvers.contains(by) {
        return Some(format!("{} may", wait.approvers.join(" or ")));
    }
    if wait.not_requester && by == requester {
        return Some("started the run".into());
    }
    (!decided.insert(by.clone())).then(|| "had decided before".into())
}
