//! Cancel: at once when nothing is under way, otherwise with a grace in which work may stop or finish.

use crate::contract::FailureClass;
use crate::definition::OnCancel;
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Effect, Rejection, Reply};
use crate::run::event::Fact;
use crate::run::lifecycle::given_up_at;
use crate::run::step::Step;
use crate::run::{Cancel, Phase, limits};
use crate::time::Span;

impl Draft<'_> {
    pub(super) fn cancel(&mut self, reason: &str, undo: Option<bool>, grace: Option<Span>) -> Decided<Reply> {
        match self.run.head.phase {
            Phase::Canceling(_) => return Ok(Reply::Replayed),
            Phase::Compensating { .. } => return Err(Rejection::Compensating.into()),
            Phase::Forward | Phase::Closing { .. } | Phase::Ended => {}
        }
        let cancel = Cancel {
            by: self.actor.id.clone(),
            reason: reason.into(),
            grace_until: self.now + grace.unwrap_or(limits::GRACE),
            undo: undo.unwrap_or(self.def.saga) && self.def.saga,
        };
        self.tell(Fact::CancelAsked(cancel))?;
        self.withdraw_all(reason)?;
        let detached = self.run.head.detached.values().filter(|child| child.on_cancel == OnCancel::Cancel);
        let told: Vec<Effect> =
            detached.map(|child| Effect::CancelChild { run_id: child.run_id.clone(), reason: reason.into() }).collect();
        self.effects.extend(told);
        Ok(Reply::Done)
    }

    /// The grace is over: a `finally` step that waits for somebody is given up, with a warning.
    pub(super) fn give_up_finals(&mut self, cancel: &Cancel) -> Decided {
        let is_over = |step: &&Step| given_up_at(cancel, step).is_some_and(|at| at <= self.now);
        let waiting: Vec<_> = self
            .run
            .open()
            .filter(|step| self.is_finally(step))
            .filter(is_over)
            .map(|step| (step.path.clone(), step.attempt, self.is_unknown(step)))
            .collect();
        for (path, attempt, unknown) in waiting {
            let class = if unknown { FailureClass::OutcomeUnknown } else { FailureClass::Fatal };
            let failure = self.failure(&path, class, "nobody acted on it within the grace of the cancel", attempt);
            self.fail_step(&path, failure.coded("cancel_grace"), true)?;
        }
        Ok(())
    }

    /// The grace is over: what still holds a lease loses it. Its writes are fenced from now on.
    pub(super) fn revoke_leases(&mut self) -> Decided {
        let leased: Vec<_> = self
            .run
            .open()
            .filter(|step| step.is_leased() && !self.is_finally(step))
            .map(|step| step.path.clone())
            .collect();
        for path in leased {
            let unknown = self.is_external(&path)?;
            let reason = "the grace to stop is over";
            self.take_away(&path, reason)?;
            if self.complete_from_receipt(&path)? {
                continue;
            }
            self.cancel_step(&path, reason, unknown)?;
            self.ended(&path)?;
        }
        Ok(())
    }
}
