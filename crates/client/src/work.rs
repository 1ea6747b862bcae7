//! One task in the hands of a handler.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_api::tasks::{
    AtDeadlineTold, BlockKind, BlockTask, CompleteTask, EffectKey, EvidenceTold, MakeCallback, ProgressTold, Receipt,
    ResourceTold, Task, TaskAnswer, TellEffect,
};
use abide_api::{Raw, raw_of};
use abide_core::run::command::Outcome;
use abide_core::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::failure::{Ending, Failure};
use crate::ids;
use crate::lease::Held;
use crate::reports::Reports;
use crate::tasks::{Item, Reply, Said, misplaced, typed};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A task, and everything its handler may say about it. Clones are the same task.
#[derive(Clone, Debug)]
pub struct Work {
    held: Arc<Held>,
    reports: Reports,
    notes: Arc<Mutex<Notes>>,
}

/// What goes with the result.
#[derive(Debug, Default)]
struct Notes {
    outcome: Option<Outcome>,
    resources: Vec<ResourceTold>,
    warnings: Vec<String>,
    evidence: Vec<EvidenceTold>,
    /// How many answers of each kind were handed out: a step may wait for two approvals, one after the other.
    answers: HashMap<(String, Option<String>), usize>,
}

impl Work {
    pub(crate) fn new(held: Arc<Held>, reports: Reports) -> Work {
        Work { held, reports, notes: Arc::default() }
    }

    pub fn task(&self) -> &Task {
        &self.held.task
    }

    /// The task's input, as the type that the handler expects; another one is class `validation`.
    pub fn input<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        typed(Some(&self.held.task.input))
            .map_err(|error| Failure::validation(format!("the input is not as the handler expects it: {error}")))
    }

    /// The same for every attempt: pass it on to whatever is called.
    pub fn idempotency_key(&self) -> &str {
        &self.held.task.idempotency_key
    }

    /// Says how far it is; it is sent with the next heartbeat, at most four times a second.
    pub fn progress(&self, done: u64, total: Option<u64>, message: Option<&str>) {
        self.held.progress(ProgressTold { done, total, message: message.map(Into::into) });
    }

    /// Whether the server has asked to stop: the run cancels, or nobody needs the result any more.
    pub fn is_canceled(&self) -> bool {
        self.held.cancel.is_cancelled()
    }

    /// Waits until the server asks to stop.
    pub async fn canceled(&self) {
        self.held.cancel.cancelled().await;
    }

    /// Between two pieces of work: `work.check()?` stops here when it was asked to.
    pub fn check(&self) -> Result<(), Failure> {
        match self.is_canceled() {
            true => Err(Failure::canceled()),
            false => Ok(()),
        }
    }

    /// Something that was made, for whoever looks at the step later.
    pub fn created(&self, kind: impl Into<String>, id: impl Into<String>, url: Option<&str>) {
        let url = url.map(Into::into);
        self.notes().resources.push(ResourceTold { kind: kind.into(), id: id.into(), url });
    }

    /// The run ends as `completed_with_warnings`.
    pub fn warn(&self, warning: impl Into<String>) {
        self.notes().warnings.push(warning.into());
    }

    /// A trace, a log, a page.
    pub fn evidence(&self, kind: impl Into<String>, reference: impl Into<String>) {
        self.notes().evidence.push(EvidenceTold { kind: kind.into(), reference: reference.into() });
    }

    /// There was nothing to do.
    pub fn noop(&self) {
        self.notes().outcome = Some(Outcome::Noop);
    }

    /// Ends the loop around this step.
    pub fn end_loop(&self) {
        self.notes().outcome = Some(Outcome::Break);
    }

    pub(crate) fn completion(&self, output: Raw, claim_next: bool) -> CompleteTask {
        let notes = std::mem::take(&mut *self.notes());
        CompleteTask {
            epoch: self.held.task.epoch,
            output: Some(output),
            outcome: notes.outcome,
            resources: notes.resources,
            warnings: notes.warnings,
            evidence: notes.evidence,
            claim_next,
        }
    }

    /// Says something and, while that may help and the lease lives, says it again.
    pub(crate) async fn say(&self, said: Said) -> Result<Reply, Error> {
        let mut item = Item { task_id: self.held.task.task_id.clone(), said };
        let mut pause = FIRST_PAUSE;
        loop {
            let (unsent, error) = match self.reports.tell(item).await {
                Ok(reply) => return Ok(reply),
                Err(failed) => failed,
            };
            if !error.is_retryable() || tokio::time::Instant::now() + pause >= self.held.ends_at() {
                return Err(error);
            }
            tracing::debug!(task = %unsent.task_id, %error, "saying it again");
            item = unsent;
            tokio::time::sleep(ids::jittered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Effects and receipts.
impl Work {
    /// Writes down what the outside world gave back for the step itself, as soon as it is known: from then on nothing is
    /// called again.
    pub async fn receipt(&self, external_id: Option<&str>, result: Option<&impl Serialize>) -> Result<(), Failure> {
        let result = result.map(raw_of).transpose()?;
        self.tell_effect(None, external_id.map(Into::into), result).await.map(drop)
    }

    /// An effect of its own inside the step, with a stable key: `work.effect("mail").find(f).create(g).await`.
    pub fn effect<'a>(&'a self, name: &'a str) -> Effect<'a> {
        Effect { work: self, name }
    }

    async fn tell_effect(
        &self,
        name: Option<String>,
        external_id: Option<String>,
        result: Option<Raw>,
    ) -> Result<EffectKey, Failure> {
        let told = TellEffect { epoch: self.held.task.epoch, name, external_id, result };
        match self.say(Said::Effect(told)).await? {
            Reply::Effect(key) => Ok(key),
            _ => Err(misplaced().into()),
        }
    }
}

/// A named effect that is about to be caused, unless it was.
#[derive(Debug)]
pub struct Effect<'a> {
    work: &'a Work,
    name: &'a str,
}

/// The same, with a way to look whether it is there already.
#[derive(Debug)]
pub struct Findable<'a, F> {
    effect: Effect<'a>,
    find: F,
}

impl<'a> Effect<'a> {
    /// How to see whether it exists, by its key.
    pub fn find<F>(self, find: F) -> Findable<'a, F> {
        Findable { effect: self, find }
    }

    /// Causes it once: the intent is written first and the receipt right after. What is known from before is handed back.
    /// Without `find`, an intent whose receipt was lost is caused again: use that only where the key makes it safe.
    pub async fn create<T, R>(self, create: impl FnOnce(String) -> R) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
        R: Future<Output = Result<T, Failure>>,
    {
        self.find(|_: String| async { Ok(None) }).create(create).await
    }
}

impl<F> Findable<'_, F> {
    /// Finds it, or else causes it. The receipt is written in both cases.
    pub async fn create<T, L, R>(self, create: impl FnOnce(String) -> R) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(String) -> L,
        L: Future<Output = Result<Option<T>, Failure>>,
        R: Future<Output = Result<T, Failure>>,
    {
        let Effect { work, name } = self.effect;
        let key = work.tell_effect(Some(name.to_owned()), None, None).await?;
        if let Some(Receipt { result: Some(result), .. }) = key.receipt {
            return Ok(typed(Some(&result))?);
        }
        let value = match (self.find)(key.idempotency_key.clone()).await? {
            Some(found) => found,
            None => create(key.idempotency_key).await?,
        };
        work.tell_effect(Some(name.to_owned()), None, Some(raw_of(&value)?)).await?;
        Ok(value)
    }
}

/// What a person is asked.
#[derive(Clone, Debug, Default)]
pub struct Approval {
    pub(crate) title: String,
    pub(crate) subject: Option<Raw>,
    pub(crate) approvers: Vec<String>,
    pub(crate) quorum: Option<u32>,
    pub(crate) not_requester: bool,
    pub(crate) deadline: Option<String>,
    pub(crate) at_deadline: Option<AtDeadlineTold>,
    pub(crate) form: Option<Raw>,
}

/// What a person has said.
#[derive(Clone, Debug, Deserialize)]
pub struct Decision {
    /// `approved` or `rejected`.
    pub decision: String,
    pub by: Option<String>,
    pub at: Option<Timestamp>,
    pub comment: Option<String>,
    pub form: Option<Raw>,
}

impl Decision {
    pub fn is_approved(&self) -> bool {
        self.decision.starts_with("approve")
    }
}

impl Approval {
    pub fn new(title: impl Into<String>) -> Approval {
        Approval { title: title.into(), ..Approval::default() }
    }

    /// What is approved; a decision about anything else does not count.
    pub fn subject(mut self, subject: &impl Serialize) -> Approval {
        self.subject = raw_of(subject).ok();
        self
    }

    /// A person, or `role:GROUP`. Who is added may decide; nobody added: everybody who may approve.
    pub fn approver(mut self, who: impl Into<String>) -> Approval {
        self.approvers.push(who.into());
        self
    }

    pub fn quorum(mut self, people: u32) -> Approval {
        self.quorum = Some(people);
        self
    }

    pub fn not_requester(mut self) -> Approval {
        self.not_requester = true;
        self
    }

    /// A duration such as `2h`, and what happens then.
    pub fn deadline(mut self, within: impl Into<String>, then: AtDeadlineTold) -> Approval {
        (self.deadline, self.at_deadline) = (Some(within.into()), Some(then));
        self
    }

    /// JSON Schema of what a decision carries.
    pub fn form(mut self, schema: &impl Serialize) -> Approval {
        self.form = raw_of(schema).ok();
        self
    }
}

/// Waiting. Each returns what was answered, or else a failure that gives the lease back when the handler returns it with
/// `?`; when the answer is there the handler is called anew and gets it here. Work before it must be safe to repeat.
impl Work {
    pub fn wait_for_approval(&self, approval: Approval) -> Result<Decision, Failure> {
        let Approval { title, subject, approvers, quorum, not_requester, deadline, at_deadline, form } = approval;
        let block = BlockTask {
            on: BlockKind::Approval,
            title: Some(title),
            subject,
            approvers,
            quorum,
            not_requester,
            deadline,
            at_deadline,
            form,
            ..BlockTask::default()
        };
        let answer = self.answered("approval", None, block)?;
        Ok(typed(answer.payload.as_ref())?)
    }

    pub fn wait_for_signal<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        let block = BlockTask { on: BlockKind::Tool, signal: Some(name.into()), ..BlockTask::default() };
        Ok(typed(self.answered("signal", Some(name), block)?.payload.as_ref())?)
    }

    /// An address to which a tool posts its answer, once. Ask for it before the tool is called.
    pub async fn callback(&self, name: &str, expires_in: Option<&str>) -> Result<String, Failure> {
        let made =
            MakeCallback { epoch: self.held.task.epoch, name: name.into(), expires_in: expires_in.map(Into::into) };
        match self.say(Said::Callback(made)).await? {
            Reply::Callback(made) => Ok(made.url),
            _ => Err(misplaced().into()),
        }
    }

    /// What was posted to the callback of this name.
    pub fn wait_for_callback<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        let block = BlockTask { on: BlockKind::Tool, callback: Some(name.into()), ..BlockTask::default() };
        Ok(typed(self.answered("tool", Some(name), block)?.payload.as_ref())?)
    }

    pub fn wait_until(&self, until: Timestamp) -> Result<(), Failure> {
        let block = BlockTask { on: BlockKind::Timer, until: Some(until), ..BlockTask::default() };
        self.answered("timer", None, block).map(drop)
    }

    pub fn wait_for_child<T: DeserializeOwned>(&self, workflow: &str, input: &impl Serialize) -> Result<T, Failure> {
        let input = Some(raw_of(input)?);
        let block = BlockTask { on: BlockKind::Child, workflow: Some(workflow.into()), input, ..BlockTask::default() };
        Ok(typed(self.answered("child", None, block)?.payload.as_ref())?)
    }

    /// A connection must be made anew; return this failure. The step is issued again when it is.
    pub fn needs_auth(&self, tool: &str, account: &str, connect_url: Option<&str>) -> Failure {
        self.blocked(BlockTask {
            on: BlockKind::Auth,
            tool: Some(tool.into()),
            account: Some(account.into()),
            connect_url: connect_url.map(Into::into),
            ..BlockTask::default()
        })
    }

    /// A person must look at it; return this failure.
    pub fn needs_operator(&self, reason: &str, recommended: &str) -> Failure {
        self.blocked(BlockTask {
            on: BlockKind::Operator,
            reason: Some(reason.into()),
            recommended: Some(recommended.into()),
            ..BlockTask::default()
        })
    }

    fn blocked(&self, block: BlockTask) -> Failure {
        Failure::from_ending(Ending::Blocked(BlockTask { epoch: self.held.task.epoch, ..block }))
    }

    fn answered(&self, on: &str, name: Option<&str>, block: BlockTask) -> Result<&TaskAnswer, Failure> {
        let taken = {
            let mut notes = self.notes();
            let taken = notes.answers.entry((on.to_owned(), name.map(Into::into))).or_default();
            *taken += 1;
            *taken - 1
        };
        let fits = |answer: &&TaskAnswer| answer.on == on && (name.is_none() || answer.name.as_deref() == name);
        self.held.task.answers.iter().filter(fits).nth(taken).ok_or_else(|| self.blocked(block))
    }
}
