//! Waits that a message ends: connections, signals, callbacks, and what a blocked task asked for.

use crate::contract::{ReasonType, StepState};
use crate::definition::{Action, HttpAnswer, StepDef, WaitMode};
use crate::expression::EvalError;
use crate::ids::{Digest, Path};
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Ask, BlockOn, Effect, Holding, Json, Rejection, Reply};
use crate::run::event::{Fact, Reset};
use crate::run::fold::row_of;
use crate::run::limits;
use crate::run::scope::{Here, json_text};
use crate::run::step::{Answer, Block, Callback, Connection, FieldFault, ProofBy, Ref, Role, TaskKind, Wait};
use crate::time::{Span, Timestamp};

use super::coded;
use super::flow::Opening;
use super::recover::{connection_of, sentence};
use super::said::digest_of;

impl Draft<'_> {
    /// The lease is given back until something happens.
    pub(super) fn block(
        &mut self,
        holding: &Holding,
        on: &BlockOn,
        message: Option<&str>,
        ask: &Ask,
    ) -> Decided<Reply> {
        let path = row_of(&holding.path);
        let kind = self.must_row(&path)?.task.as_ref().map_or(TaskKind::Step, |task| task.kind);
        if let BlockOn::Callback { name, .. } = on
            && !self.must_row(&path)?.callbacks.iter().any(|callback| callback.name == *name)
        {
            return Err(Rejection::NoCallback.into());
        }
        if let BlockOn::Child { input, .. } = on {
            self.check_size("the input", input)?;
            self.check_json("input", input)?;
        }
        let digest = digest_of(ask).unwrap_or_default();
        self.tell_of(&holding.path, Fact::TaskBlocked { epoch: holding.epoch, digest })?;
        let step = self.must_row(&path)?;
        if self.should_stop(step) {
            if self.complete_from_receipt(&path)? {
                return Ok(Reply::Done);
            }
            let unknown = self.is_external(&path)?;
            self.cancel_step(&path, "its worker gave it back while the run was ending", unknown)?;
            self.ended(&path)?;
            return Ok(Reply::Done);
        }
        self.block_on(&path, on, message, kind)?;
        Ok(Reply::Done)
    }

    fn block_on(&mut self, path: &Path, on: &BlockOn, message: Option<&str>, kind: TaskKind) -> Decided {
        let now = self.now;
        let text = |otherwise: String| message.map_or(otherwise, sentence);
        match on {
            BlockOn::Auth { tool, account } => {
                let account = account.clone().unwrap_or_else(|| "default".into());
                let connection = Connection { tool: tool.clone(), account };
                let message = text(format!("Reconnect {tool} to continue."));
                self.block_on_auth(path, connection, &message, kind)
            }
            BlockOn::Callback { name, deadline } => {
                let until = deadline.map(|deadline| now + deadline);
                let block = Block::new(
                    Wait::Callback { name: name.clone() },
                    text(format!("Waits for the answer to {name}.")),
                    now,
                );
                self.rest(path, block.until(until))?;
                let callbacks = &self.must_row(path)?.callbacks;
                let answered = |callback: &&Callback| callback.name == *name && callback.answer.is_some();
                match callbacks.iter().find(answered).and_then(|callback| callback.answer.clone()) {
                    Some(payload) => self.answer_callback(path, name, payload),
                    None => Ok(()),
                }
            }
            BlockOn::Signal { name, deadline } => {
                self.wait_for_signals(path, vec![name.clone()], WaitMode::One, *deadline)
            }
            BlockOn::Approval(asked) => self.ask_for_approval(path, asked, true),
            BlockOn::Timer { until } => {
                let block = Block::new(Wait::Timer, text(format!("Sleeps until {until}.")), now).until(Some(*until));
                self.rest(path, block)
            }
            BlockOn::Operator { reason, recommended } => {
                let wait = Wait::Operator {
                    reason: ReasonType::OperatorAsked,
                    recommended: recommended.clone(),
                    fields: Vec::new(),
                };
                self.rest(path, Block::new(wait, sentence(reason), now))
            }
            BlockOn::Child { workflow, input } => {
                let name = self.numbered(path, "child_input");
                let input = self.store(name, input.clone());
                self.launch_child(path, workflow, None, input, crate::definition::OnCancel::Cancel, None)
            }
        }
    }

    /// Waits for a connection, unless it was reconnected after the task was claimed: then another try is worth it.
    pub(super) fn block_on_auth(
        &mut self,
        path: &Path,
        connection: Connection,
        message: &str,
        during: TaskKind,
    ) -> Decided {
        let step = self.must_row(path)?;
        let facts = self.around.connections.get(&connection).copied().unwrap_or_default();
        let since_claim = self.claimed_at.zip(facts.reconnected_at).is_some_and(|(claimed, at)| at > claimed);
        // Another generation, not a later one: the row may have met another connection before.
        if since_claim && facts.generation != step.generation && !facts.broken {
            return self.go_on_after_auth(path, during, Some(facts.generation));
        }
        self.effects.push(Effect::AwaitConnection { connection: connection.clone() });
        self.rest(path, Block::new(Wait::Auth { connection, during, untried: false }, sentence(message), self.now))
    }

    /// While a connection is known to be broken the step waits without calling.
    pub(super) fn waits_for_connection(&mut self, opening: &Opening, def: &StepDef, here: &Here) -> Decided<bool> {
        match self.declared_connection(def, here)? {
            Some(Err(error)) => {
                self.open_broken(opening, &error)?;
                Ok(true)
            }
            Some(Ok(connection)) if self.is_known_broken(&connection) => {
                self.row_for(opening)?;
                self.wait_for_broken(&opening.path, connection)?;
                Ok(true)
            }
            Some(Ok(_)) | None => Ok(false),
        }
    }

    /// The same before it is called again; the attempt that comes next is kept for when the connection works.
    pub(super) fn waits_for_connection_again(&mut self, path: &Path, attempt: u32) -> Decided<bool> {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        let declared = self.declared_connection(&def, &Here::of(step, &def))?;
        let broken = declared.and_then(Result::ok).filter(|connection| self.is_known_broken(connection));
        let Some(connection) = broken else { return Ok(false) };
        let attempt = Some(attempt);
        self.tell_of(path, Fact::StepReset(Reset { attempt, ..Reset::default() }))?;
        self.wait_for_broken(path, connection)?;
        Ok(true)
    }

    pub(super) fn declared_connection(
        &self,
        def: &StepDef,
        here: &Here,
    ) -> Decided<Option<Result<Connection, EvalError>>> {
        let Some(template) = &def.connection else { return Ok(None) };
        Ok(Some(self.render_text(template, here)?.map(|text| connection_of(&text))))
    }

    fn is_known_broken(&self, connection: &Connection) -> bool {
        let facts = self.around.connections.get(connection);
        facts.is_some_and(|facts| facts.broken) && !self.works_again.contains(connection)
    }

    fn wait_for_broken(&mut self, path: &Path, connection: Connection) -> Decided {
        let message = format!("{connection} is known to be broken. Reconnect it to continue.");
        self.effects.push(Effect::AwaitConnection { connection: connection.clone() });
        let wait = Wait::Auth { connection, during: TaskKind::Step, untried: true };
        self.rest(path, Block::new(wait, message, self.now))
    }

    /// A connection works again: everything in this run that waits for it goes on, each once.
    pub(super) fn reconnect(
        &mut self,
        tool: Option<&str>,
        account: Option<&str>,
        generation: Option<u64>,
    ) -> Decided<Reply> {
        // A reconnect releases what was blocked before it; what was blocked since waits for the next one.
        let is_older = |connection: &Connection, since: Timestamp| {
            let at = self.around.connections.get(connection).and_then(|facts| facts.reconnected_at);
            generation.is_none() || at.is_none_or(|at| since <= at)
        };
        let waiting: Vec<(Path, Connection, TaskKind)> = self
            .run
            .open()
            .filter_map(|step| match step.block.as_ref()? {
                Block { wait: Wait::Auth { connection, during, .. }, since, .. } if is_older(connection, *since) => {
                    Some((step.path.clone(), connection.clone(), *during))
                }
                _ => None,
            })
            .filter(|(_, connection, ..)| {
                tool.is_none_or(|tool| tool == connection.tool)
                    && account.is_none_or(|account| account == connection.account)
            })
            .collect();
        if waiting.is_empty() {
            return match generation {
                Some(_) => Ok(Reply::Released { steps: 0 }),
                None => Err(Rejection::NotWaiting { what: "a connection", state: self.state() }.into()),
            };
        }
        let connection = waiting.first().map(|(_, connection, ..)| connection.clone());
        self.tell(Fact::ConnectionReconnected { connection, generation })?;
        self.works_again = waiting.iter().map(|(_, connection, _)| connection.clone()).collect();
        for (path, _, during) in &waiting {
            self.go_on_after_auth(path, *during, generation)?;
        }
        Ok(Reply::Released { steps: waiting.len() as u32 })
    }

    /// The connection works: what met it is issued again, and remembers for which generation.
    fn go_on_after_auth(&mut self, path: &Path, during: TaskKind, generation: Option<u64>) -> Decided {
        let step = self.must_row(path)?;
        let coded_wait = step.coded.as_ref().is_some_and(|coded| coded.kind != coded::STEP);
        let attempt = step.attempt;
        match during {
            TaskKind::Step | TaskKind::Body if coded_wait => self.complete_step(path, None, ProofBy::Engine),
            TaskKind::Step | TaskKind::Body => self.issue_again(path, attempt, generation),
            TaskKind::Reconcile => self.issue_probe_for(path, generation),
            TaskKind::Compensate => self.issue_undo_for(path, generation),
        }
    }

    pub(super) fn wait_for_signals(
        &mut self,
        path: &Path,
        names: Vec<String>,
        mode: WaitMode,
        deadline: Option<Span>,
    ) -> Decided {
        let message = format!("Waits for {}.", names.join(if mode == WaitMode::All { " and " } else { " or " }));
        let until = deadline.map(|deadline| self.now + deadline);
        let wait = Wait::Signal { names: names.clone(), mode, got: Default::default() };
        self.rest(path, Block::new(wait, message, self.now).until(until))?;
        for name in names {
            let mail = self.run.head.mailbox.get(&name).and_then(|mail| mail.first()).cloned();
            if let Some(mail) = mail
                && self.run.step(path.as_str()).is_some_and(|step| step.block.is_some())
            {
                self.take_signal(path, &name, mail.seq, mail.payload)?;
            }
        }
        Ok(())
    }

    pub(super) fn signal(&mut self, name: &str, payload: &Json) -> Decided<Reply> {
        self.check_size("the payload", payload)?;
        self.check_json("payload", payload)?;
        self.check_signal_schema(name, payload)?;
        let waiting = self
            .run
            .open()
            .filter_map(|step| match step.block.as_ref() {
                Some(Block { wait: Wait::Signal { names, got, .. }, since, .. })
                    if names.iter().any(|wanted| wanted == name) && !got.contains_key(name) =>
                {
                    Some((*since, step.path.clone()))
                }
                _ => None,
            })
            .min();
        if waiting.is_none() && self.run.head.mailbox.values().map(Vec::len).sum::<usize>() >= limits::MAILBOX {
            return Err(Rejection::MailboxFull { limit: limits::MAILBOX }.into());
        }
        let stored = crate::ids::PayloadName::new(format!("signals/{}", self.run.head.seq + 1));
        let payload = self.store(stored, payload.clone());
        self.tell(Fact::SignalReceived { name: name.into(), payload: payload.clone() })?;
        let seq = self.run.head.seq;
        match waiting {
            Some((_, path)) => {
                self.take_signal(&path, name, seq, payload)?;
                Ok(Reply::Done)
            }
            None => Ok(Reply::Recorded),
        }
    }

    /// A payload that no wait for this name would take is refused, whether somebody waits already or not.
    fn check_signal_schema(&self, name: &str, payload: &str) -> Decided {
        let waits = self.def.steps().iter().filter_map(|step| {
            let Action::Signal(signal) = &step.action else { return None };
            signal.schema.as_ref().filter(|_| signal.names.iter().any(|wanted| wanted == name))
        });
        for schema in waits {
            if let Err(faults) = schema.check(payload) {
                return Err(Rejection::Invalid(faults.into_iter().map(FieldFault::from).collect()).into());
            }
        }
        Ok(())
    }

    fn take_signal(&mut self, path: &Path, name: &str, seq: u64, payload: Ref) -> Decided {
        self.tell_of(path, Fact::SignalTaken { name: name.into(), seq, payload: payload.clone() })?;
        let step = self.must_row(path)?;
        let Some(Block { wait: Wait::Signal { names, mode, got }, .. }) = &step.block else { return Ok(()) };
        if *mode == WaitMode::All && got.len() < names.len() {
            return Ok(());
        }
        let text = Json::from(self.payload(&payload.name)?);
        let output: Json = match mode {
            WaitMode::One => text,
            WaitMode::Any => format!("{{\"name\":{},\"payload\":{text}}}", json_text(name)).into(),
            WaitMode::All => {
                let mut entries = Vec::new();
                for (name, payload) in got {
                    entries.push(format!("{}:{}", json_text(name), self.payload(&payload.name)?));
                }
                format!("{{{}}}", entries.join(",")).into()
            }
        };
        if self.is_own_wait(path)? {
            return self.complete_step(path, Some(output), ProofBy::Engine);
        }
        self.deliver(path, "signal", Some(name), Some(payload), None)
    }

    /// Whether the wait is the step itself (declared, or in a coded body) and not something that its task asked for.
    pub(super) fn is_own_wait(&self, path: &Path) -> Decided<bool> {
        let step = self.must_row(path)?;
        Ok(step.place.role == Role::Coded || !self.spec(step).action.performer().has_task())
    }

    /// Gives a blocked task what it asked for: it is issued again, in the same attempt.
    pub(super) fn deliver(
        &mut self,
        path: &Path,
        on: &str,
        name: Option<&str>,
        payload: Option<Ref>,
        by: Option<String>,
    ) -> Decided {
        let answer = Answer { on: on.into(), name: name.map(Into::into), payload, by, at: self.now };
        self.tell_of(path, Fact::AnswerDelivered(answer))?;
        let attempt = self.must_row(path)?.attempt;
        self.issue_again(path, attempt, None)
    }

    pub(super) fn make_callback(
        &mut self,
        holding: &Holding,
        name: &str,
        token_hash: Digest,
        expires_in: Option<Span>,
    ) -> Decided<Reply> {
        let path = row_of(&holding.path);
        let step = self.must_row(&path)?;
        if step.callbacks.iter().any(|callback| callback.token_hash == token_hash) {
            return Ok(Reply::Replayed);
        }
        let expires_at = expires_in.map(|expires_in| self.now + expires_in);
        self.tell_of(&path, Fact::CallbackMade(Callback { name: name.into(), token_hash, expires_at, answer: None }))?;
        Ok(Reply::Done)
    }

    /// A tool answered. An answer that comes before the wait is kept for it.
    pub(super) fn callback_answer(&mut self, path: &Path, token_hash: Digest, payload: &Json) -> Decided<Reply> {
        let step = self.row(path)?.ok_or(Rejection::NoCallback)?;
        let callback =
            step.callbacks.iter().find(|callback| callback.token_hash == token_hash).ok_or(Rejection::NoCallback)?;
        if callback.answer.is_some() {
            return Err(Rejection::TokenUsed.into());
        }
        if let Some(expires_at) = callback.expires_at.filter(|at| *at <= self.now) {
            return Err(Rejection::TokenExpired(expires_at).into());
        }
        if step.state.is_ended() && step.state != StepState::Compensating {
            return Err(Rejection::NotWaiting { what: "this callback", state: self.state() }.into());
        }
        let (name, waits) = (callback.name.clone(), step.block.as_ref().map(|block| block.wait.clone()));
        self.check_size("the payload", payload)?;
        self.check_json("payload", payload)?;
        let stored = self.numbered(path, "callback");
        let payload = self.store(stored, payload.clone());
        self.tell_of(path, Fact::CallbackAnswered { token_hash, payload: payload.clone() })?;
        match waits {
            Some(Wait::Callback { name: waited }) if waited == name => {
                self.answer_callback(path, &name, payload)?;
                Ok(Reply::Done)
            }
            _ => Ok(Reply::Recorded),
        }
    }

    fn answer_callback(&mut self, path: &Path, name: &str, payload: Ref) -> Decided {
        let step = self.must_row(path)?;
        if let Action::Http(http) = &self.spec(step).action
            && http.answer == HttpAnswer::Callback
        {
            // The answer is the step's result: nothing is sent again.
            let output = Json::from(self.payload(&payload.name)?);
            return self.judge(path, Some(output), crate::run::command::Outcome::Ok);
        }
        self.deliver(path, "tool", Some(name), Some(payload), None)
    }
}
