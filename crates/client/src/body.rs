//! Durable functions: each step of a body is named, stored and never executed again. One call to the server per step: what
//! is done and what begins travel together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use abide_api::tasks::{
    ApprovalTold, AuthTold, BodyState, BodyStep, ChildTold, Receipt, RetryTold, SignalTold, SleepTold, StepBegin,
    StepDone, StepWait, TellSteps,
};
use abide_api::{Code, Raw, raw_of};
use abide_core::contract::StepState;
use abide_core::definition::EffectKind;
use abide_core::run::command::Next;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::failure::{Ending, Failure};
use crate::tasks::{Reply, Said, misplaced, typed};
use crate::work::{Approval, Decision, Work};

/// A result that nothing follows is stored after this, so that a crash later does not cost it.
const LINGER: Duration = Duration::from_millis(500);

/// What a body is given: every method is a step that is stored under its name.
#[derive(Clone, Debug)]
pub struct Ctx {
    work: Work,
    desk: Arc<Mutex<Desk>>,
    key: Option<String>,
}

/// How a step of a body is executed.
#[derive(Clone, Debug, Default)]
pub struct StepOptions {
    begin: StepBegin,
}

impl StepOptions {
    pub fn new() -> StepOptions {
        StepOptions::default()
    }

    /// Repeating it with the same key does no harm.
    pub fn idempotent(mut self) -> StepOptions {
        self.begin.effect = Some(EffectKind::Idempotent);
        self
    }

    /// It must not be repeated blindly; the handler of this name can find out whether it happened.
    pub fn external(mut self, reconcile: Option<&str>) -> StepOptions {
        self.begin.effect = Some(EffectKind::External);
        self.begin.reconcile = reconcile.map(Into::into);
        self
    }

    /// The handler that undoes it, when the workflow is a saga.
    pub fn compensate(mut self, handler: &str) -> StepOptions {
        self.begin.compensate = Some(handler.into());
        self
    }

    /// Of one attempt.
    pub fn timeout(mut self, timeout: Duration) -> StepOptions {
        self.begin.timeout = Some(format!("{}ms", timeout.as_millis()));
        self
    }

    pub fn max_attempts(mut self, attempts: u32) -> StepOptions {
        self.begin.retry.get_or_insert_default().max_attempts = Some(attempts);
        self
    }

    pub fn retry(mut self, retry: RetryTold) -> StepOptions {
        self.begin.retry = Some(retry);
        self
    }

    /// What the step depends on: when a later body asks with something else, a person is asked what is right.
    pub fn input(mut self, input: &impl Serialize) -> StepOptions {
        let text = serde_json::to_vec(input).unwrap_or_default();
        self.begin.input_digest = Some(hex(&Sha256::digest(text)));
        self
    }
}

/// One attempt of a step.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub step_id: String,
    pub number: u32,
    /// The same for every attempt: pass it on to whatever is called.
    pub idempotency_key: String,
    pub receipts: Vec<Receipt>,
}

impl Ctx {
    pub fn run_id(&self) -> &str {
        &self.work.task().run_id
    }

    /// Whether the server has asked to stop.
    pub fn is_canceled(&self) -> bool {
        self.work.is_canceled()
    }

    /// Says how far the body is.
    pub fn progress(&self, done: u64, total: Option<u64>, message: Option<&str>) {
        self.work.progress(done, total, message);
    }

    /// Names used through this have the key in them: `search:eu`. Inside `all` a repeated name needs one.
    pub fn keyed(&self, key: impl AsRef<str>) -> Ctx {
        Ctx { key: Some(key_text(key.as_ref())), ..self.clone() }
    }

    /// Executes the function once, whatever happens to this worker, and hands its result back ever after.
    pub async fn step<T, R>(&self, name: &str, mut code: impl FnMut() -> R) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
        R: Future<Output = Result<T, Failure>>,
    {
        self.step_with(name, StepOptions::new(), |_| code()).await
    }

    pub async fn step_with<T, R>(
        &self,
        name: &str,
        options: StepOptions,
        mut code: impl FnMut(Attempt) -> R,
    ) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
        R: Future<Output = Result<T, Failure>>,
    {
        let step_id = self.named(name)?;
        let begin = StepBegin { step_id: step_id.clone(), ..options.begin };
        if let Some(stored) = self.desk().recall(Asked::Begin(Box::new(begin.clone()))) {
            return result_of(&step_id, stored);
        }
        loop {
            let step = self.ask(Asked::Begin(Box::new(begin.clone()))).await?;
            if step.state.is_ended() {
                return result_of(&step_id, step);
            }
            let _busy = Busy::new(&self.desk);
            let attempt = Attempt {
                step_id: step_id.clone(),
                number: step.attempt,
                idempotency_key: step.idempotency_key,
                receipts: step.receipts,
            };
            let done = StepDone { step_id: step_id.clone(), begun_at: step.begun_at, ..StepDone::default() };
            let failure = match in_time(begin.timeout.as_deref(), code(attempt)).await {
                Ok(value) => {
                    let output = Some(raw_of(&value)?);
                    // The world has changed: that is stored before anything else happens.
                    let urgent = begin.effect == Some(EffectKind::External);
                    self.done(StepDone { output, ..done }, urgent).await?;
                    return Ok(value);
                }
                Err(failure) if failure.is_failure() => failure.into_step(),
                Err(stopped) => return Err(stopped),
            };
            let verdict = self.done(StepDone { failure: Some(failure), ..done }, true).await?;
            match verdict {
                Some(step) if step.state.is_ended() => return result_of(&step_id, step),
                Some(BodyStep { retry_after_ms: Some(pause), .. }) => {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                // Somebody looks at it, or it is probed: begun again it says what became of it.
                _ => {}
            }
        }
    }

    /// Something that must exist once: it is looked for first, by its stable key, and made only if it is not there.
    pub fn effect<'a>(&'a self, name: &'a str) -> CtxEffect<'a> {
        CtxEffect { ctx: self, name }
    }

    /// Asks a person. A rejection is a failure of this step, which the body may catch.
    pub async fn approve(&self, name: &str, approval: Approval) -> Result<Decision, Failure> {
        let Approval { title, subject, approvers, quorum, not_requester, deadline, at_deadline, form } = approval;
        let told = ApprovalTold { title, subject, approvers, quorum, not_requester, deadline, at_deadline, form };
        self.wait(name, |step_id| StepWait { step_id, approval: Some(told), ..StepWait::default() }).await
    }

    /// Waits for a signal and gives its payload.
    pub async fn signal<T: DeserializeOwned>(&self, name: &str, signal: &str) -> Result<T, Failure> {
        self.signals(name, SignalTold::Name(signal.into())).await
    }

    /// Waits for any or all of several signals.
    pub async fn signals<T: DeserializeOwned>(&self, name: &str, signals: SignalTold) -> Result<T, Failure> {
        self.wait(name, |step_id| StepWait { step_id, signal: Some(signals), ..StepWait::default() }).await
    }

    /// Sleeps without holding a lease, for minutes or months.
    pub async fn sleep(&self, name: &str, time: Duration) -> Result<(), Failure> {
        let sleep = Some(SleepTold::For(format!("{}ms", time.as_millis())));
        let slept: Slept = self.wait(name, |step_id| StepWait { step_id, sleep, ..StepWait::default() }).await?;
        let Slept = slept;
        Ok(())
    }

    /// Waits until a connection works again.
    pub async fn auth(&self, name: &str, tool: &str, account: &str, connect_url: Option<&str>) -> Result<(), Failure> {
        let connect_url = connect_url.map(Into::into);
        let auth = Some(AuthTold { tool: tool.into(), account: Some(account.into()), connect_url });
        let slept: Slept = self.wait(name, |step_id| StepWait { step_id, auth, ..StepWait::default() }).await?;
        let Slept = slept;
        Ok(())
    }

    /// Runs another workflow and gives its output.
    pub async fn child<T: DeserializeOwned>(
        &self,
        name: &str,
        workflow: &str,
        input: &impl Serialize,
    ) -> Result<T, Failure> {
        let input = Some(raw_of(input)?);
        self.child_with(name, ChildTold { workflow: workflow.into(), input, ..ChildTold::default() }).await
    }

    pub async fn child_with<T: DeserializeOwned>(&self, name: &str, child: ChildTold) -> Result<T, Failure> {
        self.wait(name, |step_id| StepWait { step_id, child: Some(child), ..StepWait::default() }).await
    }

    /// Runs branches beside each other and gives their results in order. The first failure is returned when all have ended.
    pub async fn all<T, F>(&self, branches: impl IntoIterator<Item = F>) -> Result<Vec<T>, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let _open = OpenAll::new(&self.desk);
        futures_util::future::join_all(branches).await.into_iter().collect()
    }

    async fn wait<T: DeserializeOwned>(&self, name: &str, wait: impl FnOnce(String) -> StepWait) -> Result<T, Failure> {
        let step_id = self.named(name)?;
        let asked = Asked::Wait(Box::new(wait(step_id.clone())));
        if let Some(stored) = self.desk().recall(asked.clone()) {
            return result_of(&step_id, stored);
        }
        let step = self.ask(asked).await?;
        result_of(&step_id, step)
    }

    fn named(&self, name: &str) -> Result<String, Failure> {
        let name = match &self.key {
            Some(key) => format!("{name}:{key}"),
            None => name.to_owned(),
        };
        self.desk().names.take(&name).map_err(|message| Failure::fatal(message).code(Code::DuplicateStep.as_str()))
    }

    async fn ask(&self, asked: Asked) -> Result<BodyStep, Failure> {
        let (reply, answer) = oneshot::channel();
        self.desk().asks.push(Ask { asked, is_new: true, reply });
        answer.await.map_err(|_| Failure::from_ending(Ending::Released))
    }

    /// Hands a result in. One that is urgent is stored when this returns, and what became of the step is given back.
    async fn done(&self, done: StepDone, urgent: bool) -> Result<Option<BodyStep>, Failure> {
        if !urgent {
            self.desk().done.push(done);
            return Ok(None);
        }
        let (reply, verdict) = oneshot::channel();
        {
            let mut desk = self.desk();
            desk.verdicts.push((done.step_id.clone(), reply));
            desk.done.push(done);
        }
        verdict.await.map(Some).map_err(|_| Failure::from_ending(Ending::Released))
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        locked(&self.desk)
    }
}

/// An effect of a body, before it is said how to find it.
#[derive(Debug)]
pub struct CtxEffect<'a> {
    ctx: &'a Ctx,
    name: &'a str,
}

#[derive(Debug)]
pub struct CtxFindable<'a, F> {
    effect: CtxEffect<'a>,
    find: F,
}

impl<'a> CtxEffect<'a> {
    pub fn find<F>(self, find: F) -> CtxFindable<'a, F> {
        CtxFindable { effect: self, find }
    }
}

impl<F> CtxFindable<'_, F> {
    /// Because it is looked for first and has one key for ever, the step may be begun again after a crash.
    pub async fn create<T, L, R>(mut self, mut create: impl FnMut(String) -> R) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
        F: FnMut(String) -> L,
        L: Future<Output = Result<Option<T>, Failure>>,
        R: Future<Output = Result<T, Failure>>,
    {
        let CtxEffect { ctx, name } = self.effect;
        let both = |attempt: Attempt| {
            let found = (self.find)(attempt.idempotency_key.clone());
            // Made here and only polled if nothing was found: the function outlives the closure that calls it.
            let made = create(attempt.idempotency_key);
            async move {
                match found.await? {
                    Some(found) => Ok(found),
                    None => made.await,
                }
            }
        };
        ctx.step_with(name, StepOptions::new().idempotent(), both).await
    }
}

/// Anything, when only its coming counts.
struct Slept;

impl<'de> serde::Deserialize<'de> for Slept {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Slept, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Slept)
    }
}

fn result_of<T: DeserializeOwned>(step_id: &str, step: BodyStep) -> Result<T, Failure> {
    if let Some(failure) = step.failure.filter(|_| step.state == StepState::Failed) {
        return Err(Failure::from_step(step_id, failure));
    }
    match step.state {
        StepState::Failed | StepState::Canceled => {
            Err(Failure::fatal(format!("step {step_id} is {}", step.state.as_str())))
        }
        _ => typed(step.output.as_ref()).map_err(|error| {
            Failure::fatal(format!("the stored result of step {step_id} is not what the body expects: {error}"))
        }),
    }
}

async fn in_time<T>(timeout: Option<&str>, running: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let millis = timeout.and_then(|timeout| timeout.strip_suffix("ms")).and_then(|millis| millis.parse().ok());
    match millis {
        Some(millis) => match tokio::time::timeout(Duration::from_millis(millis), running).await {
            Ok(result) => result,
            Err(_) => Err(Failure::new(format!("it took longer than {millis}ms"))),
        },
        None => running.await,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Keys that cannot stand in a step's id are replaced by their digest.
fn key_text(key: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    match !key.is_empty() && key.len() <= 60 && key.chars().all(fits) {
        true => key.to_owned(),
        false => hex(&Sha256::digest(key)[..8]),
    }
}

fn locked(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives every step its id: the same name again is `search.2`, `search.3`, in the order of the calls.
#[derive(Debug, Default)]
struct Names {
    used: HashMap<String, u32>,
    /// How many `all`s are open, and the names used since the outermost began: in there calls have no order.
    alls: u32,
    beside: HashSet<String>,
}

impl Names {
    fn take(&mut self, name: &str) -> Result<String, String> {
        if self.alls > 0 && !self.beside.insert(name.to_owned()) {
            return Err(format!(
                "step {name} is used twice inside ctx.all, where calls have no order; give each a key: ctx.keyed(\"…\")"
            ));
        }
        let used = self.used.entry(name.to_owned()).or_default();
        *used += 1;
        Ok(match *used {
            1 => name.to_owned(),
            n => format!("{name}.{n}"),
        })
    }
}

#[derive(Clone, Debug)]
enum Asked {
    Begin(Box<StepBegin>),
    Wait(Box<StepWait>),
}

impl Asked {
    fn step_id(&self) -> &str {
        match self {
            Asked::Begin(begin) => &begin.step_id,
            Asked::Wait(wait) => &wait.step_id,
        }
    }
}

#[derive(Debug)]
struct Ask {
    asked: Asked,
    /// It was not sent yet.
    is_new: bool,
    reply: oneshot::Sender<BodyStep>,
}

/// What lies between a body and the server: what has been done and asked, and not been said yet.
#[derive(Debug, Default)]
struct Desk {
    stored: BTreeMap<String, BodyStep>,
    names: Names,
    /// Stored steps that the body has asked for again; the server wants to know that it did.
    recalled: Vec<Asked>,
    done: Vec<StepDone>,
    verdicts: Vec<(String, oneshot::Sender<BodyStep>)>,
    asks: Vec<Ask>,
    /// How many steps are being executed or pause before they are.
    busy: u32,
}

/// One call, and what it may bring.
struct Letter {
    told: TellSteps,
    asked: Vec<String>,
    /// It also says what was recalled, which the server may take for what the body waits for.
    recalls: bool,
    verdicts: Vec<(String, oneshot::Sender<BodyStep>)>,
}

impl Desk {
    /// The result that is stored already.
    fn recall(&mut self, asked: Asked) -> Option<BodyStep> {
        let stored = self.stored.get(asked.step_id()).filter(|step| step.state.is_ended())?.clone();
        self.recalled.push(asked);
        Some(stored)
    }

    /// What must be said now. Waits are said only when nothing is executed any more: the answer may be that the lease is
    /// given back.
    fn letter(&mut self, epoch: u64, linger_over: bool) -> Option<Letter> {
        if !(self.must_speak() || linger_over && !self.done.is_empty()) {
            return None;
        }
        let (rests, recalls) = (self.rests(), !self.recalled.is_empty());
        let (busy, beside) = (self.busy > 0, self.names.alls > 0);
        let mut told = TellSteps { busy, beside, ..self.rest(epoch) };
        let mut asked = Vec::new();
        for ask in &mut self.asks {
            if rests || ask.is_new && matches!(ask.asked, Asked::Begin(_)) {
                ask.is_new = false;
                asked.push(ask.asked.step_id().to_owned());
                put(&mut told, ask.asked.clone());
            }
        }
        Some(Letter { told, asked, recalls, verdicts: std::mem::take(&mut self.verdicts) })
    }

    /// Everything that nobody waits for an answer to.
    fn rest(&mut self, epoch: u64) -> TellSteps {
        let mut told = TellSteps { epoch, done: std::mem::take(&mut self.done), ..TellSteps::default() };
        std::mem::take(&mut self.recalled).into_iter().for_each(|asked| put(&mut told, asked));
        told
    }

    /// Whether nothing is executed and all branches wait.
    fn rests(&self) -> bool {
        self.busy == 0 && !self.asks.is_empty()
    }

    fn must_speak(&self) -> bool {
        let begins = self.asks.iter().any(|ask| ask.is_new && matches!(ask.asked, Asked::Begin(_)));
        begins || self.rests() || !self.verdicts.is_empty()
    }

    fn is_clear(&self) -> bool {
        self.done.is_empty() && self.recalled.is_empty()
    }

    /// Hands the answer out. False: the body may go on, but there is nothing in the answer to go on with.
    fn heard(
        &mut self,
        asked: &[String],
        verdicts: Vec<(String, oneshot::Sender<BodyStep>)>,
        mut state: BodyState,
    ) -> bool {
        let mut useful = asked.is_empty() || self.busy > 0;
        for (step_id, reply) in verdicts {
            let Some(step) = state.steps.get(&step_id) else { return false };
            useful = true;
            let _ = reply.send(step.clone());
        }
        for ask in std::mem::take(&mut self.asks) {
            let step_id = ask.asked.step_id();
            let answers = |step: &BodyStep| {
                step.state.is_ended() || step.state == StepState::Running && matches!(ask.asked, Asked::Begin(_))
            };
            let sent = asked.iter().any(|sent| sent == step_id);
            match state.steps.remove(step_id).filter(|step| sent && answers(step)) {
                Some(step) => {
                    useful = true;
                    let _ = ask.reply.send(step);
                }
                None => self.asks.push(ask),
            }
        }
        useful
    }
}

fn put(told: &mut TellSteps, asked: Asked) {
    match asked {
        Asked::Begin(begin) => told.begin.push(*begin),
        Asked::Wait(wait) => told.wait.push(*wait),
    }
}

/// Something is being executed for as long as this lives.
struct Busy(Arc<Mutex<Desk>>);

impl Busy {
    fn new(desk: &Arc<Mutex<Desk>>) -> Busy {
        locked(desk).busy += 1;
        Busy(desk.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        locked(&self.0).busy -= 1;
    }
}

struct OpenAll(Arc<Mutex<Desk>>);

impl OpenAll {
    fn new(desk: &Arc<Mutex<Desk>>) -> OpenAll {
        locked(desk).names.alls += 1;
        OpenAll(desk.clone())
    }
}

impl Drop for OpenAll {
    fn drop(&mut self) {
        let mut desk = locked(&self.0);
        desk.names.alls -= 1;
        if desk.names.alls == 0 {
            desk.names.beside.clear();
        }
    }
}

/// Runs a body, and between its turns the conversation with the server.
pub(crate) async fn drive<I, T, R>(work: Work, body: impl FnOnce(Ctx, I) -> R) -> Result<Raw, Failure>
where
    I: DeserializeOwned,
    T: Serialize,
    R: Future<Output = Result<T, Failure>>,
{
    let input = work.input()?;
    let stored = work.task().steps.clone().unwrap_or_default();
    let desk = Arc::new(Mutex::new(Desk { stored, ..Desk::default() }));
    let ctx = Ctx { work: work.clone(), desk: desk.clone(), key: None };
    let outcome = converse(&work, &desk, pin!(body(ctx, input))).await?;
    let outcome = outcome.and_then(|value| Ok(raw_of(&value)?));
    if outcome.as_ref().err().is_some_and(|failure| !failure.is_failure()) {
        return outcome;
    }
    // Results that wait for company are stored before the body says that it is done.
    if !locked(&desk).is_clear() {
        let told = locked(&desk).rest(work.task().epoch);
        going_on(&say(&work, told).await?)?;
    }
    outcome
}

/// Polls the body; when it can do nothing by itself, says what must be said. An error ends the body where it stands.
async fn converse<T>(
    work: &Work,
    desk: &Mutex<Desk>,
    mut body: Pin<&mut impl Future<Output = Result<T, Failure>>>,
) -> Result<Result<T, Failure>, Failure> {
    let mut linger_over = false;
    loop {
        if let Poll::Ready(outcome) = poll_once(body.as_mut()).await {
            return Ok(outcome);
        }
        let letter = locked(desk).letter(work.task().epoch, std::mem::take(&mut linger_over));
        let Some(letter) = letter else {
            let lingers = !locked(desk).done.is_empty();
            tokio::select! {
                biased;
                outcome = turn(body.as_mut(), || locked(desk).must_speak()) => if let Some(outcome) = outcome {
                    return Ok(outcome);
                },
                () = tokio::time::sleep(LINGER), if lingers => linger_over = true,
            }
            continue;
        };
        let Letter { told, asked, recalls, verdicts } = letter;
        let mut saying = pin!(say(work, told));
        // The other branches go on while the server answers.
        let state = loop {
            tokio::select! {
                biased;
                state = &mut saying => break state?,
                outcome = turn(body.as_mut(), || false) => if let Some(outcome) = outcome {
                    // What is on its way is still heard, so that nothing is said twice.
                    let state = saying.await?;
                    going_on(&state)?;
                    return Ok(outcome);
                },
            }
        };
        going_on(&state)?;
        if !locked(desk).heard(&asked, verdicts, state) && !recalls {
            return Err(Failure::new("the server lets the body go on without anything to go on with"));
        }
    }
}

/// One turn of the body, whether it was woken or not.
async fn poll_once<F: Future>(mut body: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(body.as_mut().poll(context))).await
}

/// Waits until the body was woken and had a turn, or has something to say; `None` when it is not done yet.
async fn turn<F: Future>(mut body: Pin<&mut F>, must_speak: impl Fn() -> bool) -> Option<F::Output> {
    let mut begun = false;
    std::future::poll_fn(|context| match body.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        // The body has had its turn just before: the first one here mostly leaves the waker.
        Poll::Pending if begun || must_speak() => Poll::Ready(None),
        Poll::Pending => {
            begun = true;
            Poll::Pending
        }
    })
    .await
}

async fn say(work: &Work, told: TellSteps) -> Result<BodyState, Failure> {
    match work.say(Said::Steps(told)).await {
        Ok(Reply::Body(state)) => Ok(state),
        Ok(_) => Err(misplaced().into()),
        // The lease is gone, or nobody can be reached for as long as it lasted: whoever has it now goes on.
        Err(error) if error.is(Code::LeaseLost) || error.is_retryable() => Err(Failure::from_ending(Ending::Released)),
        Err(Error::Refused(problem)) => Err(Failure::fatal(problem.to_string()).code(problem.code)),
        Err(error) => Err(error.into()),
    }
}

fn going_on(state: &BodyState) -> Result<(), Failure> {
    match state.next {
        Next::Continue => Ok(()),
        Next::Released => Err(Failure::from_ending(Ending::Released)),
        Next::Canceled => Err(Failure::canceled()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_again_is_numbered_in_call_order() {
        let mut names = Names::default();
        let taken: Vec<String> =
            ["search", "read", "search", "search"].iter().map(|name| names.take(name).expect("a name")).collect();
        assert_eq!(taken, ["search", "read", "search.2", "search.3"]);
    }

    #[test]
    fn inside_all_a_repeated_name_needs_a_key() {
        let desk = Arc::new(Mutex::new(Desk::default()));
        assert_eq!(locked(&desk).names.take("search").as_deref(), Ok("search"));
        let open = OpenAll::new(&desk);
        assert_eq!(locked(&desk).names.take("search").as_deref(), Ok("search.2"));
        let twice = locked(&desk).names.take("search").expect_err("twice beside each other");
        assert!(twice.contains("ctx.keyed"), "{twice}");
        assert_eq!(locked(&desk).names.take("search:eu").as_deref(), Ok("search:eu"));
        drop(open);
        assert_eq!(locked(&desk).names.take("search").as_deref(), Ok("search.3"));
    }

    #[test]
    fn a_key_that_cannot_stand_in_an_id_becomes_its_digest() {
        assert_eq!(key_text("eu-1"), "eu-1");
        assert_eq!(key_text("Zürich").len(), 16);
        assert_ne!(key_text("Zürich"), key_text("Bern!"));
    }

    fn begin(id: &str) -> (Ask, oneshot::Receiver<BodyStep>) {
        let (reply, answer) = oneshot::channel();
        let asked = Asked::Begin(Box::new(StepBegin { step_id: id.into(), ..StepBegin::default() }));
        (Ask { asked, is_new: true, reply }, answer)
    }

    fn wait(id: &str) -> (Ask, oneshot::Receiver<BodyStep>) {
        let (reply, answer) = oneshot::channel();
        let asked = Asked::Wait(Box::new(StepWait { step_id: id.into(), ..StepWait::default() }));
        (Ask { asked, is_new: true, reply }, answer)
    }

    fn ids(told: &TellSteps) -> (Vec<&str>, Vec<&str>, Vec<&str>) {
        (
            told.done.iter().map(|done| done.step_id.as_str()).collect(),
            told.begin.iter().map(|begin| begin.step_id.as_str()).collect(),
            told.wait.iter().map(|wait| wait.step_id.as_str()).collect(),
        )
    }

    #[test]
    fn what_is_done_travels_with_what_begins() {
        let mut desk = Desk::default();
        desk.done.push(StepDone { step_id: "a".into(), ..StepDone::default() });
        assert!(desk.letter(1, false).is_none(), "a result alone waits for company");
        desk.asks.push(begin("b").0);
        let letter = desk.letter(1, false).expect("there is something to say");
        assert_eq!(ids(&letter.told), (vec!["a"], vec!["b"], vec![]));
    }

    #[test]
    fn a_wait_is_said_only_when_nothing_is_executed_any_more() {
        let mut desk = Desk { busy: 1, ..Desk::default() };
        desk.asks.push(wait("manager").0);
        assert!(desk.letter(1, false).is_none());
        desk.asks.push(begin("beside").0);
        assert_eq!(ids(&desk.letter(1, false).expect("a step begins").told), (vec![], vec!["beside"], vec![]));
        desk.busy = 0;
        assert_eq!(ids(&desk.letter(1, false).expect("all rest").told).2, ["manager"]);
    }

    #[test]
    fn a_lone_result_is_stored_after_a_while() {
        let mut desk = Desk::default();
        desk.done.push(StepDone { step_id: "a".into(), ..StepDone::default() });
        assert_eq!(ids(&desk.letter(1, true).expect("the while is over").told), (vec!["a"], vec![], vec![]));
        assert!(desk.is_clear());
    }
}
