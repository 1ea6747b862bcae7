//! Leases: who may write for a task, how long, and how a worker that is too late is told so.

use crate::contract::{Failure, FailureClass, FailureKind, StepState};
use crate::definition::EffectKind;
use crate::ids::{Digest, Path, TaskId, WorkerId};
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Ask, Holding, Json, Next, Rejection, Reply};
use crate::run::event::Fact;
use crate::run::fold::row_of;
use crate::run::step::{Live, Progress, ProofBy, Receipt, Step, TaskKind};
use crate::run::{Phase, limits};
use crate::time::{Span, Timestamp};

use super::said::digest_of;

impl Draft<'_> {
    pub(super) fn claim(
        &mut self,
        path: &Path,
        task_id: &TaskId,
        worker: &WorkerId,
        window: Option<Span>,
        claim_id: Option<&String>,
    ) -> Decided<Reply> {
        let not_claimable = || Rejection::NotClaimable(task_id.clone());
        let row = row_of(path);
        let step = self.row(&row)?.ok_or_else(not_claimable)?;
        let task = step.task.as_ref().filter(|task| task.id == *task_id).ok_or_else(not_claimable)?;
        if let Some(lease) = &task.lease {
            let expires_at = step.lease_expires_at(self.around.serving_since).unwrap_or_default();
            let same = lease.owner == *worker && lease.claim_id.is_some() && lease.claim_id.as_ref() == claim_id;
            return if same && self.now < expires_at {
                // The answer to this claim was lost on its way: it is given again.
                Ok(Reply::Leased { epoch: lease.epoch, expires_at })
            } else {
                Err(not_claimable().into())
            };
        }
        let epoch = self.run.head.epoch.next();
        let window = task.window.or(window).unwrap_or(limits::LEASE);
        let previous_owner = step.lost_across_stop.as_ref().or(step.losses.last()).cloned();
        let claimed =
            Fact::TaskClaimed { owner: worker.clone(), epoch, window, previous_owner, claim_id: claim_id.cloned() };
        self.tell_of(path, claimed)?;
        Ok(Reply::Leased { epoch, expires_at: self.now + window })
    }

    /// Whether this answer was given before. Anything else than a live lease or a repetition is refused.
    pub(super) fn repeats(&self, holding: &Holding, ask: &Ask) -> Decided<bool> {
        let lost = |held| Rejection::LeaseLost { path: holding.path.clone(), carried: holding.epoch, held };
        let Some(step) = self.row(&row_of(&holding.path))? else { return Err(lost(None).into()) };
        if let Some(lease) = step.lease() {
            let mine =
                lease.epoch == holding.epoch && step.task.as_ref().is_some_and(|task| task.id == holding.task_id);
            let expires_at = step.lease_expires_at(self.around.serving_since).unwrap_or_default();
            // Expiry is strict: whoever comes later may already have been replaced.
            if mine && self.heard_until() < expires_at {
                return Ok(false);
            }
            if mine {
                return Err(lost(None).into());
            }
        }
        match &step.answered {
            Some(answered) if answered.task_id == holding.task_id && answered.epoch == holding.epoch => {
                match digest_of(ask) {
                    Some(said) if said == answered.digest => Ok(true),
                    Some(_) => Err(Rejection::AlreadyCompleted(holding.task_id.clone()).into()),
                    None => Err(lost(step.lease().map(|lease| lease.epoch)).into()),
                }
            }
            _ => Err(lost(step.lease().map(|lease| lease.epoch)).into()),
        }
    }

    /// The instant by which leases are judged: how long a report waited for the engine is not its worker's fault.
    pub(super) fn heard_until(&self) -> Timestamp {
        self.around.heard_until.map_or(self.now, |heard| heard.min(self.now))
    }

    /// What was replied to an answer that is given again: its worker may not have heard it.
    pub(super) fn reply_again(&self, ask: &Ask) -> Decided<Reply> {
        let Ask::Steps { done, .. } = ask else { return Ok(Reply::Replayed) };
        let mut waits = Vec::new();
        for done in done {
            let pause = self.pause_left(&done.step_id)?;
            waits.extend(pause.map(|pause| (done.step_id.clone(), pause)));
        }
        Ok(Reply::Body { next: Next::Released, waits })
    }

    /// Extends the lease. It writes no event.
    pub(super) fn heartbeat(&mut self, holding: &Holding, progress: Option<&Progress>) -> Decided<Reply> {
        let path = row_of(&holding.path);
        let step = self.must_row(&path)?;
        let stop = self.should_stop(step);
        let window = step.lease().map_or(limits::LEASE, |lease| lease.window);
        let (now, expires_at) = (self.now, self.now + window);
        self.edit_live(&path, |step| {
            let before = step.live.take().and_then(|live| live.progress);
            let progress = progress.map(|progress| Progress { at: Some(now), ..progress.clone() }).or(before);
            step.live = Some(Live { expires_at, last_heartbeat_at: now, progress });
        });
        let message = progress.and_then(|progress| progress.message.clone());
        Ok(Reply::Beat { expires_at, stop, message })
    }

    /// Whether what this worker does is still wanted.
    pub(super) fn should_stop(&self, step: &Step) -> bool {
        match self.run.head.phase {
            Phase::Closing { .. } | Phase::Canceling(_) => !self.is_finally(step),
            Phase::Forward => step.unneeded,
            // An undo is always wanted.
            Phase::Compensating { .. } | Phase::Ended => false,
        }
    }

    /// The worker stopped: because it was told to, or because it goes away.
    pub(super) fn stopped(&mut self, holding: &Holding, ask: &Ask) -> Decided<Reply> {
        let path = row_of(&holding.path);
        let step = self.must_row(&path)?;
        let (stop, attempt) = (self.should_stop(step), step.attempt);
        let kind = step.task.as_ref().map_or(TaskKind::Step, |task| task.kind);
        let unknown = kind == TaskKind::Step && self.is_external(&path)?;
        let reason = if stop { "its worker stopped as it was told to" } else { "its worker gave it back" };
        let (epoch, digest) = (Some(holding.epoch), digest_of(ask));
        self.tell_of(&holding.path, Fact::TaskCanceled { epoch, digest, reason: reason.into(), until: None })?;
        if kind == TaskKind::Step && self.complete_from_receipt(&path)? {
            return Ok(Reply::Done);
        }
        if unknown && !stop {
            let message = "its worker gave it back without saying whether the effect happened";
            let failure = Failure::new(FailureKind::StepFailed, FailureClass::OutcomeUnknown, message, self.now);
            self.recover(&path, failure.of(path.clone(), attempt), None)?;
            return Ok(Reply::Done);
        }
        self.go_on_without(&path, kind, stop.then_some((reason, unknown)))?;
        Ok(Reply::Done)
    }

    /// Nobody got the lease, so nothing happened under it: the task is issued again at once, as if it had not been claimed.
    pub(super) fn undelivered(&mut self, holding: &Holding) -> Decided<Reply> {
        let path = row_of(&holding.path);
        let step = self.must_row(&path)?;
        let stop = self.should_stop(step);
        let kind = step.task.as_ref().map_or(TaskKind::Step, |task| task.kind);
        let reason = "the answer to its claim did not reach its worker";
        let epoch = Some(holding.epoch);
        self.tell_of(&holding.path, Fact::TaskCanceled { epoch, digest: None, reason: reason.into(), until: None })?;
        self.go_on_without(&path, kind, stop.then_some((reason, false)))?;
        Ok(Reply::Done)
    }

    /// After a task that was given back: it is issued again, or its step is canceled with a reason because nobody wants it any
    /// more.
    fn go_on_without(&mut self, path: &Path, kind: TaskKind, unwanted: Option<(&str, bool)>) -> Decided {
        if let Some((reason, unknown)) = unwanted {
            self.cancel_step(path, reason, unknown)?;
            return self.ended(path);
        }
        match kind {
            TaskKind::Step | TaskKind::Body => {
                let attempt = self.must_row(path)?.attempt;
                self.issue_again(path, attempt, None)
            }
            TaskKind::Reconcile => self.issue_probe(path),
            TaskKind::Compensate => self.issue_undo(path),
        }
    }

    /// Takes a task back, whether somebody holds it or not.
    pub(super) fn take_away(&mut self, path: &Path, reason: &str) -> Decided {
        let step = self.must_row(path)?;
        let Some(kind) = step.task.as_ref().map(|task| task.kind) else { return Ok(()) };
        let (task_path, until) = (self.path_of_task(path, kind)?, self.may_act_until(step));
        self.tell_of(&task_path, Fact::TaskCanceled { epoch: None, digest: None, reason: reason.into(), until })
    }

    /// Until when a worker may act whose lease is taken away now. A probe leaves nothing behind.
    pub(super) fn may_act_until(&self, step: &Step) -> Option<Timestamp> {
        let kind = step.task.as_ref()?.kind;
        step.lease_expires_at(self.around.serving_since).filter(|_| kind != TaskKind::Reconcile)
    }

    /// An intent before a call, or a receipt after it.
    pub(super) fn effect(
        &mut self,
        holding: &Holding,
        name: Option<&str>,
        external_id: Option<&str>,
        result: Option<&Json>,
    ) -> Decided<Reply> {
        let path = row_of(&holding.path);
        let step = self.must_row(&path)?;
        let key = self.key_of(step, &holding.path, name);
        // A probe and an undo have a ledger of their own beside the step's.
        let own = match step.task.as_ref().map(|task| task.kind) {
            Some(TaskKind::Compensate) => Some(format!("undo:{}", name.unwrap_or_default())),
            Some(TaskKind::Reconcile) => Some(format!("probe:{}", name.unwrap_or_default())),
            Some(TaskKind::Step | TaskKind::Body) | None => None,
        };
        let name = own.as_deref().or(name);
        let known = match name {
            Some(name) => step
                .effects
                .iter()
                .find(|effect| effect.name == name && !effect.void)
                .map(|effect| effect.receipt.clone()),
            None => Some(step.receipt.clone()),
        };
        if external_id.is_none() && result.is_none() {
            if let (None, Some(name)) = (&known, name) {
                if step.effects.len() >= limits::NAMED_EFFECTS {
                    return Err(Rejection::TooManyEffects { path, limit: limits::NAMED_EFFECTS }.into());
                }
                self.tell_of(&path, Fact::EffectIntended { name: name.into(), key })?;
            }
            return Ok(Reply::Effect { key, receipt: known.flatten() });
        }
        if let Some(receipt) = known.flatten() {
            return Ok(Reply::Effect { key, receipt: Some(receipt) });
        }
        if let Some(result) = result {
            self.check_size("the result", result)?;
        }
        let name_of_payload = self.numbered(&path, "receipt");
        let result = result.map(|json| self.store(name_of_payload, json.clone()));
        let receipt = Receipt { external_id: external_id.map(Into::into), result, at: self.now };
        self.tell_of(&path, Fact::EffectReceived { name: name.map(Into::into), receipt: receipt.clone() })?;
        Ok(Reply::Effect { key, receipt: Some(receipt) })
    }

    /// The same for every retry; it is never made from arguments.
    pub(super) fn key_of(&self, step: &Step, path: &Path, name: Option<&str>) -> Digest {
        crate::run::key_of_step(&self.run.head, step, path, name)
    }

    /// A step whose own receipt carries a result is done, whatever came after it: nothing is called again.
    pub(super) fn complete_from_receipt(&mut self, path: &Path) -> Decided<bool> {
        let step = self.must_row(path)?;
        let result = step.receipt.as_ref().and_then(|receipt| receipt.result.clone());
        let Some(result) = result.filter(|_| !step.state.is_ended()) else { return Ok(false) };
        let output = Json::from(self.payload(&result.name)?);
        self.take_away(path, "its receipt has the result")?;
        self.complete_step(path, Some(output), ProofBy::Receipt)?;
        Ok(true)
    }

    pub(super) fn is_external(&self, path: &Path) -> Decided<bool> {
        let step = self.must_row(path)?;
        let done = step.receipt.as_ref().is_some_and(|receipt| receipt.result.is_some());
        Ok(self.spec(step).effect == EffectKind::External && !done && step.state != StepState::Completed)
    }
}
