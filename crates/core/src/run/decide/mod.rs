//! What a command leads to. One file per subject; here is who answers what, and what comes after every answer.

pub(super) mod coded;
pub(super) mod http;
pub(super) mod operator;

mod approve;
mod cancel;
mod child;
pub(super) mod flow;
mod group;
mod intent;
mod late;
mod lease;
mod outcome;
mod pause;
mod recover;
mod saga;
mod said;
mod settle;
mod start;
mod wait;
mod wake;

pub(crate) use recover::sentence;

use super::advance::{Decided, Draft};
use super::command::{Ask, Rejection, Reply};
use super::event::Fact;
use super::fold::row_of;
use super::limits;

/// Decides one request.
pub(super) fn decide(draft: &mut Draft<'_>, ask: &Ask) -> Decided<Reply> {
    if let Ask::Start(start) = ask {
        return draft.start(start);
    }
    if draft.run.head.state.is_none() {
        return Err(Rejection::NoRun(draft.run.head.run_id.clone()).into());
    }
    if let Ask::Pin { pinned } = ask {
        return draft.pin(*pinned);
    }
    if let Some(holding) = ask.holding() {
        // A worker that lost its lease, or repeats itself, is told so whatever the run became meanwhile.
        if draft.repeats(holding, ask)? {
            return draft.reply_again(ask);
        }
        draft.claimed_at = draft.must_row(&row_of(&holding.path))?.lease().map(|lease| lease.granted_at);
    } else if draft.run.is_terminal() {
        return draft.asked_too_late(ask);
    }
    let (size, limit) = (ask.size().words, limits::WORDS_BYTES);
    if size > limit {
        return Err(Rejection::TooLarge { what: "what is said beside the payload", size, limit }.into());
    }
    let reply = match ask {
        Ask::Start(_) | Ask::Pin { .. } => Reply::Done,
        Ask::Claim { path, task_id, worker, window, claim_id } => {
            draft.claim(path, task_id, worker, *window, claim_id.as_ref())?
        }
        Ask::Heartbeat { holding, progress } => return draft.heartbeat(holding, progress.as_ref()),
        Ask::Complete { holding, report } => draft.complete(holding, report, ask)?,
        Ask::Fail { holding, fault } => draft.fail(holding, fault, ask)?,
        Ask::Block { holding, on, message } => draft.block(holding, on, message.as_deref(), ask)?,
        Ask::Effect { holding, name, external_id, result } => {
            return draft.effect(holding, name.as_deref(), external_id.as_deref(), result.as_ref());
        }
        Ask::Callback { holding, name, token_hash, expires_in } => {
            return draft.make_callback(holding, name, *token_hash, *expires_in);
        }
        Ask::Canceled { holding } => draft.stopped(holding, ask)?,
        Ask::Unacceptable { holding, code, message } => draft.unacceptable(holding, code, message, ask)?,
        Ask::Undelivered { holding } => draft.undelivered(holding)?,
        Ask::Steps { holding, .. } => draft.steps(holding, ask)?,
        Ask::Cancel { reason, undo, grace } => draft.cancel(reason, *undo, *grace)?,
        Ask::Pause { reason } => draft.pause(reason)?,
        Ask::Resume { one_step } => draft.resume(*one_step)?,
        Ask::Decide { .. } => draft.decide_approval(ask)?,
        Ask::MakeLink { step_id, whom, groups, expires_at } => {
            return draft.make_link(step_id, whom, groups, *expires_at);
        }
        Ask::Reconnect { tool, account, generation } => {
            draft.reconnect(tool.as_deref(), account.as_deref(), *generation)?
        }
        Ask::Signal { name, payload } => draft.signal(name, payload)?,
        Ask::CallbackAnswer { path, token_hash, payload } => draft.callback_answer(path, *token_hash, payload)?,
        Ask::Resolve { step_id, action, reason } => draft.resolve(step_id, action, reason)?,
        Ask::RetryNow => draft.retry_now()?,
        Ask::ChildEnded { path, run_id, outcome } => draft.child_ended(path, run_id, outcome)?,
        Ask::Wake => draft.wake()?,
    };
    draft.settle()?;
    Ok(reply)
}

impl Draft<'_> {
    fn pin(&mut self, pinned: bool) -> Decided<Reply> {
        if self.run.head.pinned == pinned {
            return Ok(Reply::Replayed);
        }
        self.tell(Fact::PinSet { pinned })?;
        Ok(Reply::Done)
    }

    /// What a run that has ended says. Messages that come late are nobody's fault; requests are refused.
    fn asked_too_late(&mut self, ask: &Ask) -> Decided<Reply> {
        match ask {
            Ask::Wake | Ask::ChildEnded { .. } | Ask::Reconnect { generation: Some(_), .. } => Ok(Reply::Replayed),
            Ask::Decide { .. } => self.decide_approval(ask),
            Ask::Claim { task_id, .. } => Err(Rejection::NotClaimable(task_id.clone()).into()),
            Ask::Start(_)
            | Ask::Heartbeat { .. }
            | Ask::Complete { .. }
            | Ask::Fail { .. }
            | Ask::Block { .. }
            | Ask::Effect { .. }
            | Ask::Callback { .. }
            | Ask::Canceled { .. }
            | Ask::Undelivered { .. }
            | Ask::Unacceptable { .. }
            | Ask::Steps { .. }
            | Ask::Cancel { .. }
            | Ask::Pause { .. }
            | Ask::Resume { .. }
            | Ask::MakeLink { .. }
            | Ask::Reconnect { generation: None, .. }
            | Ask::Signal { .. }
            | Ask::CallbackAnswer { .. }
            | Ask::Resolve { .. }
            | Ask::RetryNow
            | Ask::Pin { .. } => Err(Rejection::RunTerminal(self.state()).into()),
        }
    }
}
