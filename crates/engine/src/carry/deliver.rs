//! Messages between runs: applied in the transaction of their cause where there is room, else they wait in the store, in
//! order, and are applied by a later one.

use abide_core::ids::RunId;
use abide_core::run::command::{Actor, Ask, ChildOutcome, Command, Rejection};
use abide_core::run::{LateAnswer, LateReport, limits};

use super::{Batch, Lane, pass_over};
use crate::message::Message;
use crate::store::{LateWrite, PostKey, Posted, RunKey, Store, Stored};
use crate::testing::{Bug, forget_child_end, is_planted};

impl<S: Store> Lane<S> {
    /// Applies what waits in the store, oldest first.
    pub(super) fn deliver_posted(&mut self, batch: &mut Batch) -> Stored {
        if !self.inbox_waits {
            return Ok(());
        }
        // What was posted, or applied, earlier in this batch must be known.
        self.flush(batch)?;
        let room = self.room(batch) + self.unreadable;
        let waiting = self.store.posted(room)?;
        batch.inbox_drained = waiting.len() < room;
        let mut unreadable = 0;
        for (key, message) in waiting {
            let applied = message.and_then(|message| self.apply(batch, &key, &message));
            if pass_over(&key.target.run_id, applied)?.is_none() {
                // It waits until its run, and the message itself, can be read again.
                unreadable += 1;
            } else if !is_planted(Bug::InboxNotEmptied) {
                batch.writes.applied.push(key);
            }
        }
        self.unreadable = self.unreadable.max(unreadable);
        Ok(())
    }

    /// Hands a reconnect to the runs that waited for it, at most so many at a time.
    pub(super) fn deliver_releases(&mut self, batch: &mut Batch) -> Stored {
        if !self.releases_wait {
            return Ok(());
        }
        self.flush(batch)?;
        let room = self.room(batch) + self.unreadable;
        let waiting = self.store.to_release(room)?;
        batch.releases_drained = waiting.len() < room;
        let mut unreadable = 0;
        for (key, no, connection) in waiting {
            let facts = self.around_of(&key.namespace).connections.get(&connection).copied().unwrap_or_default();
            let ask = Ask::Reconnect {
                tool: Some(connection.tool.clone()),
                account: Some(connection.account.clone()),
                generation: Some(facts.generation),
            };
            let sent = self.release(batch, &key, ask);
            match pass_over(&key.run_id, sent)? {
                Some(()) => batch.writes.released.push((no, connection)),
                None => unreadable += 1,
            }
        }
        self.unreadable = self.unreadable.max(unreadable);
        // The flags go before the rows of new waits come.
        self.flush_flags(batch)
    }

    fn release(&mut self, batch: &mut Batch, key: &RunKey, ask: Ask) -> Stored {
        match self.open(batch, key)? {
            Some(_) => self.send(batch, key, ask),
            None => Ok(()),
        }
    }

    /// Applies the messages of this batch while there is room; what is left waits in the store.
    pub(super) fn deliver_messages(&mut self, batch: &mut Batch) -> Stored {
        let mut in_order = !self.inbox_waits || batch.inbox_drained;
        while let Some(posted) = batch.messages.pop_front() {
            in_order &= batch.runs.len() < self.most_runs;
            if in_order {
                let applied = self.apply(batch, &posted.key, &posted.message);
                if pass_over(&posted.key.target.run_id, applied)?.is_some() {
                    continue;
                }
            }
            // Behind everything that was sent before it.
            batch.posted = true;
            if !is_planted(Bug::MessagesDropped) {
                batch.writes.posted.push(posted);
            }
        }
        Ok(())
    }

    fn apply(&mut self, batch: &mut Batch, key: &PostKey, message: &Message) -> Stored {
        let target = &key.target;
        let known = self.open(batch, target)?.is_some();
        match message {
            // It exists: the message was applied before.
            Message::Start(_) if known => {}
            Message::Start(begin) => {
                if let Err(message) = self.begin_child(batch, target, begin)? {
                    let (parent, path) = (begin.parent.run_id.clone(), begin.parent.step_id.clone());
                    let ended = Message::ChildEnded {
                        path,
                        child: target.run_id.clone(),
                        outcome: ChildOutcome::Refused { message },
                    };
                    batch.post(target, parent, ended, begin.sealed);
                }
            }
            Message::Cancel { reason } if known => {
                let ask = Ask::Cancel { reason: reason.clone(), undo: None, grace: None };
                self.send(batch, target, ask)?;
            }
            Message::ChildEnded { path, child, outcome } if known => {
                let ask = Ask::ChildEnded { path: path.clone(), run_id: child.clone(), outcome: outcome.clone() };
                if is_planted(Bug::JoinTwice) {
                    self.send(batch, target, ask.clone())?;
                    forget_child_end(batch.runs.get_mut(target).map(|open| &mut open.run), path);
                }
                self.send(batch, target, ask)?;
            }
            Message::Cancel { .. } | Message::ChildEnded { .. } => {
                tracing::warn!(run = %target.run_id, "a message for a run that is gone");
            }
        }
        Ok(())
    }

    /// A message that its target refuses came too late, which is nobody's fault.
    fn send(&mut self, batch: &mut Batch, target: &RunKey, ask: Ask) -> Stored {
        if let Err(why) = self.decide(batch, target, &Command::new(Actor::system(), ask), &[])?
            && !matches!(why, Rejection::RunTerminal(_) | Rejection::Compensating | Rejection::NotWaiting { .. })
        {
            tracing::error!(run = %target.run_id, %why, "a message was refused");
        }
        Ok(())
    }

    /// What a worker says after its lease is over changes nothing, but the first such answer of the last lease, and the first
    /// receipt of each effect, are kept: until the step is issued again they count as found.
    pub(super) fn keep_late_answer(&mut self, batch: &mut Batch, key: &RunKey, ask: &Ask, why: &Rejection) -> Stored {
        let (Rejection::LeaseLost { .. }, Some(holding)) = (why, ask.holding()) else { return Ok(()) };
        let Some(open) = batch.runs.get(key) else { return Ok(()) };
        let reports = LateReport::of(ask, &self.mask(open)?);
        let Some(open) = batch.runs.get_mut(key).filter(|_| !reports.is_empty()) else { return Ok(()) };
        let worker = match self.store.last_claim(open.no, &holding.path)? {
            Some((epoch, worker)) if epoch == holding.epoch => worker,
            _ => return Ok(()),
        };
        let mut kept = false;
        for (path, said) in reports {
            let known = open.late.entry(path.clone()).or_default();
            let repeated = known.iter().any(|late| late.epoch == holding.epoch && said.repeats(&late.said));
            if repeated || known.len() >= limits::LISTED_ANSWERS || said.size() > limits::PAYLOAD_BYTES {
                continue;
            }
            let answer = LateAnswer { epoch: holding.epoch, said, at: batch.now };
            let (n, worker, sealed) = (known.len(), worker.clone(), open.run.head.started.sealed);
            known.push(answer.clone());
            batch.writes.late.push(LateWrite { no: open.no, path, n, worker, answer, sealed });
            kept = true;
        }
        // What is known now may settle what the run waits for.
        if kept && !open.run.is_terminal() {
            self.decide_alone(batch, key, &Command::new(Actor::system(), Ask::Wake))?;
        }
        Ok(())
    }

    fn flush_flags(&mut self, batch: &mut Batch) -> Stored {
        let released = std::mem::take(&mut batch.writes.released);
        if !released.is_empty() {
            batch.dirty = true;
            self.store.write(crate::store::Writes { released, ..Default::default() })?;
        }
        Ok(())
    }
}

impl Batch {
    /// A message from a run that could not begin.
    fn post(&mut self, source: &RunKey, target: RunId, message: Message, sealed: bool) {
        let target = RunKey { namespace: source.namespace.clone(), run_id: target };
        let key = PostKey { target, source: source.run_id.clone(), source_seq: 0, n: 0 };
        self.messages.push_back(Posted { key, message, sealed });
    }
}
