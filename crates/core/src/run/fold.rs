//! Events to rows. Fold evaluates nothing: every result stands in the event. What folds a step cannot see its run.

use std::sync::Arc;

use super::event::{Entered, Event, Fact, Record, Unreadable, counted_facts, row_facts, run_facts};
use super::step::{Answered, Callback, ItemFailure, Lease, Live, NamedEffect, Place, Role, Step, TaskKind, Wait};
use super::{Brief, Detached, Finally, Head, Mail, OneStep, Phase, Working, limits};
use crate::contract::{BodyState, FailureClass, Refused, RunState, StepState, TaskState, lookup};
use crate::ids::{Digest, Path};
use crate::time::Timestamp;

/// A log that the rules did not write.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Broken {
    #[error("event {seq}: {refused}")]
    Refused { seq: u64, refused: Refused },
    #[error("event {found} stands where {expected} should")]
    Gap { expected: u64, found: u64 },
    #[error("event {seq} is about {path}, which has no row")]
    NoRow { seq: u64, path: Path },
    #[error("event {seq} says {kind} of {path}, which has no task")]
    NoTask { seq: u64, kind: &'static str, path: Path },
    #[error("event {seq} names no step and must")]
    NoPath { seq: u64 },
    #[error("event {seq} does not follow from the one before it: its hash is wrong")]
    Chain { seq: u64 },
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// Makes a run again from its log: checks the chain, reads and folds every event.
pub fn replay<'r>(unborn: Working, log: impl IntoIterator<Item = &'r Record>) -> Result<Working, Broken> {
    let mut run = unborn;
    for record in log {
        if record.chained_to(run.head.hash) != record.hash {
            return Err(Broken::Chain { seq: record.seq });
        }
        fold(&mut run, &record.event()?)?;
        run.head.hash = record.hash;
    }
    Ok(run)
}

/// Applies one event.
pub fn fold(run: &mut Working, event: &Event) -> Result<(), Broken> {
    if event.seq != run.head.seq + 1 {
        return Err(Broken::Gap { expected: run.head.seq + 1, found: event.seq });
    }
    let refused = |refused| Broken::Refused { seq: event.seq, refused };
    if let Some(entered) = event.fact.entered() {
        enter(&mut run.head, entered, event).map_err(refused)?;
    } else if event.step_id.is_none() {
        fold_head(&mut run.head, &event.fact, event).map_err(refused)?;
    } else {
        fold_row(run, event)?;
    }
    run.head.seq = event.seq;
    run.head.updated_at = event.at;
    for evidence in &event.evidence {
        run.head.evidence.push(evidence.clone());
    }
    Ok(())
}

/// The row that a path belongs to: a probe and an undo are told on the row of their step.
pub fn row_of(path: &Path) -> Path {
    let text = path.as_str();
    let text = text.strip_suffix(".probe").unwrap_or(text);
    let text = text.strip_suffix(".undo").unwrap_or(text);
    if text.len() == path.as_str().len() { path.clone() } else { Path::from(text) }
}

fn enter(head: &mut Head, entered: &Entered, event: &Event) -> Result<(), Refused> {
    let from = head.state;
    lookup(from, entered.state, event.cause)?;
    if let Some(started) = entered.started.as_ref().filter(|started| started.steps <= limits::STEPS) {
        head.started = std::sync::Arc::new((**started).clone());
        head.plan = vec![Brief { state: StepState::Pending, visit: 1, tolerated: false }; started.steps];
        head.attempt = 1;
    }
    if let Some(named) = &entered.named {
        head.namespace.clone_from(&named.namespace);
        head.run_id.clone_from(&named.run_id);
    }
    let again = matches!(from, Some(RunState::RetryScheduled | RunState::Stalled | RunState::WaitingOnOperator));
    if again && entered.state == RunState::Queued {
        head.attempt += 1;
    }
    head.state = Some(entered.state);
    head.since = event.at;
    match entered.state {
        RunState::Queued | RunState::Paused | RunState::CancelRequested => {}
        RunState::Running
        | RunState::WaitingOnTool
        | RunState::WaitingOnAuth
        | RunState::WaitingOnApproval
        | RunState::WaitingOnChild
        | RunState::WaitingOnTimer
        | RunState::WaitingOnOperator
        | RunState::RetryScheduled
        | RunState::Stalled
        | RunState::Compensating => head.started_at = head.started_at.or(Some(event.at)),
        RunState::Succeeded | RunState::CompletedWithWarnings | RunState::Failed | RunState::Canceled => {
            head.phase = Phase::Ended;
            head.hold = None;
            head.ended_at = Some(event.at);
            head.failure = entered.failure.as_deref().cloned();
        }
    }
    Ok(())
}

fn fold_head(head: &mut Head, fact: &Fact, event: &Event) -> Result<(), Refused> {
    match fact {
        Fact::WorkflowStarted => {
            lookup(head.body, BodyState::Running, event.cause)?;
            head.body = Some(BodyState::Running);
        }
        Fact::WorkflowCompleted { output } => {
            lookup(head.body, BodyState::Completed, event.cause)?;
            head.body = Some(BodyState::Completed);
            head.output = output.clone();
        }
        Fact::WorkflowFailed { failure, grace_until, undo } => {
            lookup(head.body, BodyState::Failed, event.cause)?;
            head.body = Some(BodyState::Failed);
            head.phase = Phase::Closing { grace_until: *grace_until, failure: failure.clone(), undo: *undo };
            head.hold = None;
        }
        Fact::CancelAsked(cancel) => {
            head.phase = Phase::Canceling(cancel.clone());
            head.canceled = Some(cancel.clone());
            head.hold = None;
        }
        Fact::CompensationStarted { because } => {
            head.phase = Phase::Compensating { because: because.clone(), given_up: Default::default() };
            head.hold = None;
        }
        Fact::PauseSet(hold) => head.hold = Some(hold.clone()),
        Fact::PauseLifted { one_step: true } => {
            if let Some(hold) = &mut head.hold {
                hold.one_step = OneStep::Allowed;
            }
        }
        Fact::PauseLifted { one_step: false } => head.hold = None,
        Fact::WarningAdded(warning) => {
            head.warned_of_length |= warning.code == super::LONG_HISTORY;
            head.warnings.push(warning.clone());
        }
        Fact::SignalReceived { name, payload } => {
            let mail = Mail { seq: event.seq, payload: payload.clone() };
            head.mailbox.entry(name.clone()).or_default().push(mail);
        }
        Fact::FinallyStarted => head.finally = Finally::UnderWay,
        Fact::FinallyEnded => head.finally = Finally::Done,
        Fact::HistoryFilled => head.history_full = true,
        Fact::PinSet { pinned } => head.pinned = *pinned,
        // What a person or a connection did is told; what follows from it are events of their own.
        Fact::ConnectionReconnected { .. } | Fact::OperatorResolved { .. } => {}
        // Folded elsewhere.
        Fact::Entered(_) | row_facts!() | counted_facts!() => {}
    }
    Ok(())
}

/// Folds an event about a step into its row, and what its run keeps count of into the head.
fn fold_row(run: &mut Working, event: &Event) -> Result<(), Broken> {
    let path = event.step_id.as_ref().ok_or(Broken::NoPath { seq: event.seq })?;
    let path = row_of(path);
    let mut row = match (run.steps.remove(&path).flatten(), created_at(&event.fact)) {
        (Some(row), _) => row,
        (None, Some(place)) => {
            let row = Arc::new(Step::new(path.clone(), place.clone(), event.at));
            count_created(run, &row);
            row
        }
        (None, None) => return Err(Broken::NoRow { seq: event.seq, path }),
    };
    let step = Arc::make_mut(&mut row);
    let (was, was_unknown) = (step.state, step.unknown);
    let folded = fold_step(step, event);
    if folded.is_ok() {
        count_unknown(&mut run.head, step, was, was_unknown, event);
        if can_be_undone(&event.fact) {
            // The stack of undos hangs together through the rows, so that it costs the same however long it is.
            step.undo_next = run.head.undo_first.replace(path.clone());
            run.head.undo_left += 1;
        }
        count(run, step, was, event);
    }
    run.steps.insert(path, Some(row));
    folded
}

/// The facts with which a row begins say what it is an instance of.
fn created_at(fact: &Fact) -> Option<&Place> {
    if let Fact::TaskIssued { place, .. } | Fact::StepSkipped { place, .. } = fact {
        return place.as_ref();
    }
    if let Fact::StepEntered { place, .. } | Fact::StepCarried { place, .. } = fact { Some(place) } else { None }
}

pub(super) fn can_be_undone(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::StepCompleted { undoable: true, .. }
            | Fact::StepCaseHandled { undoable: true, .. }
            | Fact::StepCarried { undoable: true, .. }
    )
}

fn move_step(step: &mut Step, to: StepState, event: &Event) -> Result<(), Broken> {
    if step.state == to {
        return Ok(());
    }
    lookup(Some(step.state), to, event.cause).map_err(|refused| Broken::Refused { seq: event.seq, refused })?;
    step.state = to;
    step.since = event.at;
    step.ended_at = to.is_ended().then_some(event.at);
    Ok(())
}

fn end_step(step: &mut Step, to: StepState, event: &Event) -> Result<(), Broken> {
    step.task = None;
    step.live = None;
    step.block = None;
    step.unknown = false;
    move_step(step, to, event)
}

/// Ends the row's task, whose own table is asked as well.
fn end_task(step: &mut Step, to: TaskState, event: &Event) -> Result<TaskKind, Broken> {
    let task = step.task.take().ok_or_else(|| Broken::NoTask {
        seq: event.seq,
        kind: event.fact.kind(),
        path: step.path.clone(),
    })?;
    let from = if task.lease.is_some() { TaskState::Claimed } else { TaskState::Issued };
    lookup(Some(from), to, event.cause).map_err(|refused| Broken::Refused { seq: event.seq, refused })?;
    step.live = None;
    if let (Some(lease), Some(digest)) = (&task.lease, said(&event.fact)) {
        step.answered = Some(Answered { task_id: task.id, epoch: lease.epoch, digest });
    }
    step.lease_until = step.lease_until.max(taken_away_until(&event.fact));
    if costs_no_attempt(&event.fact) {
        match task.kind {
            TaskKind::Reconcile => step.probe_attempt = step.probe_attempt.saturating_sub(1),
            TaskKind::Compensate => step.undo_attempt = step.undo_attempt.saturating_sub(1),
            // A step's next attempt stands in the event that issues it.
            TaskKind::Step | TaskKind::Body => {}
        }
    }
    Ok(task.kind)
}

/// Withdrawn, given back, or held up by a connection: the probe or undo has not been tried.
fn costs_no_attempt(fact: &Fact) -> bool {
    let is_held_up = matches!(fact, Fact::TaskFailed { failure, .. } if failure.class == FailureClass::Auth);
    is_held_up || matches!(fact, Fact::TaskCanceled { .. } | Fact::TaskBlocked { .. })
}

fn said(fact: &Fact) -> Option<Digest> {
    if let Fact::TaskCompleted { digest, .. } | Fact::TaskBlocked { digest, .. } = fact {
        return Some(*digest);
    }
    if let Fact::TaskFailed { digest, .. } | Fact::TaskCanceled { digest, .. } = fact { *digest } else { None }
}

fn taken_away_until(fact: &Fact) -> Option<Timestamp> {
    if let Fact::TaskFailed { until, .. } | Fact::TaskCanceled { until, .. } = fact { *until } else { None }
}

fn fold_step(step: &mut Step, event: &Event) -> Result<(), Broken> {
    let refused = |refused| Broken::Refused { seq: event.seq, refused };
    for evidence in &event.evidence {
        if step.evidence.len() == super::NEWEST {
            step.evidence.remove(0);
        }
        step.evidence.push(evidence.clone());
    }
    match &event.fact {
        Fact::TaskIssued { task, attempt, deadline_at, generation, .. } => {
            lookup(None, TaskState::Issued, event.cause).map_err(refused)?;
            step.block = None;
            step.generation = generation.unwrap_or(step.generation);
            match task.kind {
                TaskKind::Step | TaskKind::Body => {
                    step.attempt = *attempt;
                    step.untried = false;
                    step.probe_attempt = 0;
                    step.input = Some(task.input.clone());
                    step.deadline_at = step.deadline_at.or(*deadline_at);
                    move_step(step, StepState::Issued, event)?;
                }
                TaskKind::Reconcile => {
                    step.probe_attempt = *attempt;
                    if step.state != StepState::Compensating {
                        move_step(step, StepState::Reconciling, event)?;
                    }
                }
                TaskKind::Compensate => {
                    step.undo_attempt = *attempt;
                    step.probe_attempt = 0;
                }
            }
            step.task = Some((**task).clone());
        }
        Fact::TaskClaimed { owner, epoch, window, claim_id, .. } => {
            lookup(Some(TaskState::Issued), TaskState::Claimed, event.cause).map_err(refused)?;
            let path = step.path.clone();
            let task = step.task.as_mut().ok_or(Broken::NoTask { seq: event.seq, kind: "task.claimed", path })?;
            task.lease = Some(Lease {
                owner: owner.clone(),
                epoch: *epoch,
                granted_at: event.at,
                window: *window,
                claim_id: claim_id.clone(),
            });
            let kind = task.kind;
            step.live = Some(Live { expires_at: event.at + *window, last_heartbeat_at: event.at, progress: None });
            if matches!(kind, TaskKind::Step | TaskKind::Body) {
                move_step(step, StepState::Running, event)?;
            }
        }
        Fact::TaskCompleted { resources, .. } => {
            end_task(step, TaskState::Completed, event)?;
            step.resources.extend(resources.iter().cloned());
        }
        Fact::TaskFailed { failure, .. } => {
            let kind = end_task(step, TaskState::Failed, event)?;
            if matches!(kind, TaskKind::Reconcile | TaskKind::Compensate) {
                // A probe or an undo says nothing about the attempt itself.
                return Ok(());
            }
            if failure.class != FailureClass::OutcomeUnknown {
                step.effects.iter_mut().filter(|effect| effect.receipt.is_none()).for_each(|effect| effect.void = true);
            }
            step.limited_since =
                (failure.class == FailureClass::RateLimited).then_some(step.limited_since.unwrap_or(event.at));
            step.failure = Some((**failure).clone());
        }
        Fact::TaskBlocked { .. } => {
            end_task(step, TaskState::Blocked, event)?;
        }
        Fact::TaskLost { owner, across_stop, stored, progressed, .. } => {
            end_task(step, TaskState::Lost, event)?;
            if *progressed {
                step.losses.clear();
            }
            step.stored_at_loss = stored.unwrap_or(step.stored_at_loss);
            step.lost_across_stop = across_stop.then(|| owner.clone());
            if !across_stop && !step.losses.contains(owner) {
                step.losses.push(owner.clone());
            }
        }
        Fact::TaskCanceled { .. } => {
            end_task(step, TaskState::Canceled, event)?;
        }
        Fact::StepEntered { place, group, coded, deadline_at } => {
            step.group_of = group.clone();
            step.deadline_at = *deadline_at;
            step.place.role = place.role;
            if coded.is_some() {
                step.attempt = coded_attempt(step);
                step.untried = false;
                step.block = None;
                step.coded = coded.clone();
            }
            if place.role != Role::Plain {
                move_step(step, StepState::Running, event)?;
            }
        }
        Fact::StepBlocked { block, failure } => {
            let reopened = step.block.as_ref().is_some_and(|before| matches!(before.wait, Wait::Approval(_)));
            if matches!(block.wait, Wait::Approval(_)) && !reopened {
                // Another approval than the one that was decided: old answers do not count for it.
                step.decisions.clear();
            }
            if step.state != StepState::Compensating {
                move_step(step, block.step_state(), event)?;
            }
            step.block = Some((**block).clone());
            step.failure = failure.as_deref().cloned().or(step.failure.take());
        }
        Fact::StepOverdue => {
            move_step(step, StepState::Stalled, event)?;
            if let Some(block) = &mut step.block {
                block.overdue = true;
            }
        }
        Fact::StepCompleted { output, proof, retry_safe, resources, tolerated, .. } => {
            end_step(step, StepState::Completed, event)?;
            step.output = output.clone();
            step.proof = Some(proof.clone());
            step.retry_safe = *retry_safe;
            step.resources.extend(resources.iter().cloned());
            step.tolerated = *tolerated;
            step.failure = None;
            step.answers.clear();
        }
        Fact::StepFailed { failure, tolerated, .. } => {
            end_step(step, StepState::Failed, event)?;
            // What stands for items and rounds causes nothing itself.
            step.unknown = failure.class == FailureClass::OutcomeUnknown && step.group_of.is_none();
            step.failure = Some((**failure).clone());
            step.tolerated = *tolerated;
        }
        Fact::StepSkipped { .. } => end_step(step, StepState::Skipped, event)?,
        Fact::StepCaseHandled { output, failure, .. } => {
            end_step(step, StepState::CaseHandled, event)?;
            step.output = output.clone();
            step.failure = failure.as_deref().cloned();
        }
        Fact::StepCanceled { unknown, .. } => {
            end_step(step, StepState::Canceled, event)?;
            step.unknown = *unknown;
        }
        Fact::StepReset(reset) => {
            step.attempt = reset.attempt.unwrap_or(step.attempt);
            step.task = None;
            step.block = None;
            step.group += u32::from(reset.new_key);
            step.key_since = reset.key_since.unwrap_or(step.key_since);
            step.granted += u32::from(reset.granted);
            if reset.input.is_some() {
                step.input = reset.input.clone();
                step.losses.clear();
            }
            if step.state != StepState::Compensating {
                move_step(step, StepState::Pending, event)?;
            }
        }
        Fact::StepReconciled { .. } => step.probe_attempt = 0,
        Fact::StepUnneeded => step.unneeded = true,
        Fact::JoinDecided { met } => {
            if let Some(group) = &mut step.group_of {
                group.met = Some(*met);
            }
        }
        Fact::LoopBroken => {
            if let Some(group) = &mut step.group_of {
                group.broken_off = true;
            }
        }
        Fact::StepCompensating => {
            step.undo_attempt = 0;
            step.probe_attempt = 0;
            move_step(step, StepState::Compensating, event)?;
        }
        Fact::StepCompensated { proof } => {
            end_step(step, StepState::Compensated, event)?;
            step.proof = Some(proof.clone());
        }
        Fact::StepUndoFailed { failure } => {
            end_step(step, StepState::UndoFailed, event)?;
            step.failure = Some((**failure).clone());
        }
        Fact::StepCarried { state, input, output, resources, receipt, effects, decisions, coded, .. } => {
            end_step(step, *state, event)?;
            step.input = input.clone();
            step.output = output.clone();
            step.resources = resources.clone();
            step.receipt = receipt.clone();
            step.effects = effects.clone();
            step.decisions = decisions.clone();
            step.coded = coded.clone();
            step.proof = Some(super::step::Proof { by: super::step::ProofBy::Carried, at: event.at });
        }
        Fact::EffectIntended { name, .. } => {
            let again = step.effects.iter_mut().find(|effect| effect.name == *name);
            match again {
                Some(effect) => effect.void = false,
                None => step.effects.push(NamedEffect {
                    name: name.clone(),
                    intended_at: event.at,
                    receipt: None,
                    void: false,
                }),
            }
        }
        Fact::EffectReceived { name: None, receipt } => step.receipt = Some(receipt.clone()),
        Fact::EffectReceived { name: Some(name), receipt } => {
            match step.effects.iter_mut().find(|effect| effect.name == *name) {
                Some(effect) => effect.receipt = Some(receipt.clone()),
                None => step.effects.push(NamedEffect {
                    name: name.clone(),
                    intended_at: event.at,
                    receipt: Some(receipt.clone()),
                    void: false,
                }),
            }
        }
        Fact::EffectResumed { intent, input } => {
            step.key_of = Some(Box::new(intent.key_of.clone()));
            step.untried = intent.unknown;
            step.receipt = intent.receipt.clone();
            step.effects = intent.effects.clone();
            step.resources = intent.resources.clone();
            step.lease_until = intent.lease_until;
            step.input = input.clone().or(step.input.take());
        }
        Fact::CallbackMade(callback) => {
            // Who makes a callback anew lost the address of the first, but the tool did not: either answer counts. One
            // that the step got already does not answer the next question of that name.
            let answers = &step.answers;
            let was_delivered = |known: &Callback| {
                known.answer.is_some() && answers.iter().any(|answer| answer.payload == known.answer)
            };
            step.callbacks.retain(|known| known.name != callback.name || !was_delivered(known));
            push_bounded(&mut step.callbacks, callback.clone());
        }
        Fact::CallbackAnswered { token_hash, payload } => {
            if let Some(callback) = step.callbacks.iter_mut().find(|known| known.token_hash == *token_hash) {
                callback.answer = Some(payload.clone());
            }
        }
        Fact::AnswerDelivered(answer) => push_bounded(&mut step.answers, answer.clone()),
        Fact::SignalTaken { name, payload, .. } => {
            if let Some(Wait::Signal { got, .. }) = step.block.as_mut().map(|block| &mut block.wait) {
                got.insert(name.clone(), payload.clone());
            }
        }
        Fact::LinkMade { .. } => {
            let known = step.link_makers.contains(&event.actor.id);
            step.link_makers.extend((!known).then(|| event.actor.id.clone()));
        }
        Fact::ApprovalGiven(decision) | Fact::ApprovalRejected(decision) => step.decisions.push(decision.clone()),
        Fact::ApprovalEscalated { approvers, until } => {
            if let Some(block) = &mut step.block {
                block.until = Some(*until);
                if let Wait::Approval(wait) = &mut block.wait {
                    wait.approvers = approvers.clone();
                    wait.escalated = true;
                }
            }
        }
        Fact::ChildStarted { child, .. } => step.child = Some(child.clone()),
        Fact::ChildEnded { end, .. } => {
            if let Some(child) = &mut step.child {
                child.ended = Some(Box::new(end.clone()));
            }
        }
        // Told for people, or kept in the head; nothing in the row changes.
        Fact::StepJumped { .. } | Fact::ApprovalExpired | Fact::BodyRecalled { .. } | run_facts!() => {}
    }
    Ok(())
}

/// What the next beginning of a coded step counts as: a failure or a lost body costs an attempt, a wait does not.
fn coded_attempt(step: &Step) -> u32 {
    match (step.state, step.block.as_ref().map(|block| &block.wait)) {
        (_, Some(Wait::Retry { next_attempt, .. })) => *next_attempt,
        (StepState::Running, _) => step.attempt + 1,
        _ => step.attempt.max(1),
    }
}

/// Lists in a row keep their newest entries: a task may wait again and again.
fn push_bounded<T>(list: &mut Vec<T>, entry: T) {
    if list.len() == limits::LISTED_ANSWERS {
        list.remove(0);
    }
    list.push(entry);
}

fn count_created(run: &mut Working, step: &Step) {
    if let Some(parent) =
        step.place.parent.as_ref().and_then(|parent| run.steps.get_mut(parent)).and_then(Option::as_mut)
        && let Some(group) = Arc::make_mut(parent).group_of.as_mut()
    {
        group.open += 1;
        group.next = step.place.number.unwrap_or(0) + 1;
    }
    // The one step that may pass a hold is a whole body, not a step inside it.
    if let Some(hold) = &mut run.head.hold
        && hold.one_step == OneStep::Allowed
        && step.place.role != Role::Coded
    {
        hold.one_step = OneStep::UnderWay(step.path.clone());
    }
}

/// What the run keeps count of when a step moves.
fn count(run: &mut Working, step: &Step, was: StepState, event: &Event) {
    let head = &mut run.head;
    match &event.fact {
        Fact::TaskClaimed { epoch, .. } => {
            head.epoch = *epoch;
            head.started_at = head.started_at.or(Some(event.at));
            if step.place.role == Role::Body {
                head.coded.epoch = *epoch;
                head.coded.asked = 0;
            }
        }
        Fact::TaskIssued { .. } => {
            if let Some(hold) = &mut head.hold
                && hold.one_step == OneStep::Allowed
            {
                hold.one_step = OneStep::UnderWay(step.path.clone());
            }
        }
        Fact::StepJumped { reset, skip, .. } => {
            for index in reset {
                if let Some(brief) = head.plan.get_mut(*index) {
                    *brief = Brief { state: StepState::Pending, visit: brief.visit + 1, tolerated: false };
                }
            }
            for index in skip {
                if let Some(brief) = head.plan.get_mut(*index) {
                    brief.state = StepState::Skipped;
                }
            }
        }
        Fact::StepCompensating => {
            head.undo_first = step.undo_next.clone();
            head.undo_left = head.undo_left.saturating_sub(1);
        }
        Fact::StepUndoFailed { .. } => {
            if let Phase::Compensating { given_up, .. } = &mut head.phase {
                given_up.push(step.path.clone());
            }
        }
        Fact::SignalTaken { name, seq, .. } => {
            if let Some(mail) = head.mailbox.get_mut(name) {
                mail.retain(|mail| mail.seq != *seq);
            }
            head.mailbox.retain(|_, mail| !mail.is_empty());
        }
        Fact::ChildStarted { child, detached, .. } => {
            head.children += 1;
            if *detached {
                let child = Detached { run_id: child.run_id.clone(), on_cancel: child.on_cancel };
                head.detached.insert(step.path.clone(), child);
            }
        }
        Fact::ChildEnded { .. } => {
            head.detached.remove(&step.path);
        }
        Fact::ApprovalGiven(decision) | Fact::ApprovalRejected(decision) => {
            head.last_decided = Some((step.path.clone(), decision.by.clone()));
        }
        Fact::BodyRecalled { steps, epoch } => recall(run, steps, *epoch),
        row_facts!() | run_facts!() => {}
    }
    if step.state != was {
        count_moved(run, step, was);
    }
}

/// Unknown steps hang together through their rows as undos do, so that one more costs the same among 10,000.
fn count_unknown(head: &mut Head, step: &mut Step, was: StepState, was_unknown: bool, event: &Event) {
    let path = &step.path;
    match (was_unknown, step.unknown) {
        (false, true) => head.unknown.push(path.clone()),
        (true, false) => head.unknown.remove(path),
        (false, false) | (true, true) => {}
    }
    // A rollback begins to look at it.
    let looked_at = was_unknown && was.is_ended() && step.state != was;
    if looked_at && head.unknown_first.as_ref() == Some(path) {
        head.unknown_first = step.unknown_next.take();
        head.unknown_left = head.unknown_left.saturating_sub(1);
    }
    if let Fact::StepCanceled { undoable: true, .. } | Fact::StepFailed { undoable: true, .. } = event.fact {
        let path = path.clone();
        step.unknown_next = head.unknown_first.replace(path);
        head.unknown_left += 1;
    }
}

fn recall(run: &mut Working, steps: &[Path], epoch: crate::ids::Epoch) {
    for path in steps {
        if let Some(Some(row)) = run.steps.get_mut(path)
            && let Some(coded) = Arc::make_mut(row).coded.as_mut()
            && coded.asked != epoch
        {
            coded.asked = epoch;
            run.head.coded.asked += 1;
        }
    }
}

fn count_moved(run: &mut Working, step: &Step, was: StepState) {
    let head = &mut run.head;
    if let (Some(index), None) = (step.place.index, &step.place.parent)
        && let Some(brief) = head.plan.get_mut(index).filter(|brief| brief.visit == step.place.visit)
        && (!was.is_ended() || was == StepState::Canceled)
    {
        brief.state = step.state;
        brief.tolerated = step.tolerated;
    }
    if !step.state.is_ended() {
        return;
    }
    if was.is_ended() && was != StepState::Canceled {
        return;
    }
    if let Some(hold) = &mut head.hold
        && hold.one_step == OneStep::UnderWay(step.path.clone())
    {
        hold.one_step = OneStep::No;
    }
    count_ended(run, step, was);
}

fn count_ended(run: &mut Working, step: &Step, was: StepState) {
    if step.place.role == Role::Coded && step.state == StepState::Completed {
        run.head.coded.stored += 1;
        if step.coded.as_ref().is_some_and(|coded| coded.asked == run.head.coded.epoch && coded.asked.0 > 0) {
            run.head.coded.asked += 1;
        }
    }
    // A canceled item left the count already; found completed by a probe, it only becomes undoable.
    if was != StepState::Canceled
        && let Some(Some(parent)) = step.place.parent.as_ref().and_then(|parent| run.steps.get_mut(parent))
        // Only open rows are sure to be loaded; a group that ended does not count any more.
        && !parent.state.is_ended()
        && let Some(group) = Arc::make_mut(parent).group_of.as_mut()
    {
        group.open = group.open.saturating_sub(1);
        if step.state.is_done() {
            group.done += 1;
            group.bytes += step.output.as_ref().map_or(4, |output| output.size) + 1;
        } else if step.state == StepState::Failed {
            group.failed += 1;
            if let Some(failure) = step.failure.as_ref().filter(|_| group.failures.len() < limits::LISTED_FAILURES) {
                group.failures.push(ItemFailure {
                    index: step.place.number.unwrap_or(0),
                    class: failure.class,
                    code: failure.code.clone(),
                    message: failure.message.clone(),
                });
            }
        }
    }
}
