//! The engine's own executor: it sends `http` steps. A task is leased, and that is committed, before anything is sent; the
//! rules decide what an answer means for the run.

mod request;
mod result;
mod secrets;
mod send;
mod target;
pub mod webhook;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use abide_core::definition::{Action, Definition};
use abide_core::expression::Scope;
use abide_core::ids::{Digest, Handler, Queue, WorkerId};
use abide_core::run::PUSH;
use abide_core::run::command::{Ask, BlockOn, Fault, Holding, Json, Rejection, Reply, Report};
use abide_core::time::Span;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::task::JoinSet;

use crate::engine::Engine;
use crate::request::{Claim, Error, LeasedTask};
use crate::store::Wanted;
use crate::worker::{self, AGAIN, Stop};

pub use request::check_header;
pub use secrets::{BadSecrets, Secrets};
pub use send::{Lookup, SystemLookup};
pub use target::{Allow, BadEntry, Refusal, check_link, check_url};
pub use webhook::SigningSecret;

use request::{CallbackAddress, Outgoing, Stored, invalid};
use result::{Heard, result_of};
use send::Sender;
use target::Target;

/// How long one claim waits for work, and so how long a stop may take.
const WAIT: Span = Span::from_secs(5);

/// How requests are sent.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Under which name the executor holds its leases.
    pub name: String,
    /// How many requests are under way at the same time.
    pub at_once: usize,
    /// How long a lease lasts without a heartbeat, and so how soon a dead executor is noticed. A document's own wins.
    pub lease: Span,
    /// Of one request, where the step has no `timeout`.
    pub timeout: Duration,
    /// Where targets reach this engine: the base of callback addresses.
    pub public_url: Option<String>,
    pub secrets: Secrets,
    /// With one, every request is signed as Standard Webhooks say; with two, by both, while receivers change over.
    pub signing: Vec<SigningSecret>,
    /// Targets beside public https ones: `localhost`, `10.0.0.0/8`, `billing.internal:8080`.
    pub allow: Vec<String>,
    /// How names are looked up.
    pub lookup: Arc<dyn Lookup>,
}

impl Default for PushOptions {
    fn default() -> PushOptions {
        PushOptions {
            name: PUSH.into(),
            at_once: 64,
            lease: Span::from_secs(30),
            timeout: Duration::from_secs(30),
            public_url: None,
            secrets: Secrets::default(),
            signing: Vec::new(),
            allow: Vec::new(),
            lookup: Arc::new(SystemLookup),
        }
    }
}

/// Options that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error(transparent)]
    Allow(#[from] BadEntry),
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Sends the `http` steps of every namespace.
#[derive(Debug)]
pub struct Push {
    engine: Engine,
    name: WorkerId,
    options: PushOptions,
    sender: Sender,
    stop: Stop,
}

impl Push {
    pub fn new(engine: Engine, options: PushOptions) -> Result<Push, PushError> {
        let sender = Sender::new(options.lookup.clone(), Allow::parse(&options.allow)?)?;
        let name = WorkerId::from(options.name.as_str());
        Ok(Push { engine, name, options, sender, stop: Stop::default() })
    }

    /// With this it can be told to stop from elsewhere.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// Sends until it is told to stop or the engine does; what is under way is finished. Dropped, it leaves its leases to
    /// expire, like a process that dies.
    pub async fn run(self) {
        let push = Arc::new(self);
        let at_once = push.options.at_once.max(1);
        let mut under_way = JoinSet::new();
        while !push.stop.is_set() {
            while under_way.len() >= at_once {
                under_way.join_next().await;
            }
            while under_way.try_join_next().is_some() {}
            let tasks = match push.claim(at_once - under_way.len()).await {
                Ok(tasks) => tasks,
                Err(Error::ShuttingDown) => break,
                Err(error) => {
                    // A full disk or a busy store passes, and nobody else would start it again.
                    tracing::warn!(%error, "no requests can be claimed");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            for task in tasks {
                under_way.spawn(push.clone().execute(task));
            }
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn claim(&self, max: usize) -> Result<Vec<LeasedTask>, Error> {
        let wanted = Wanted { queues: vec![Queue::from(PUSH)], handlers: Some(vec![Handler::from(PUSH)]) };
        let until = Some(self.engine.clock().now() + WAIT);
        let window = Some(self.options.lease);
        let claim = Claim { worker: self.name.clone(), wanted, max, window, claim_id: None, until };
        self.engine.claim_anywhere(claim).await
    }

    async fn execute(self: Arc<Push>, task: LeasedTask) {
        let held = Held { engine: self.engine.in_namespace(task.namespace.clone()), name: &self.name, task: &task };
        // Whatever ended it, the connection is closed before anything is said about it.
        let ended = self.push_beating(&held).await;
        held.report(ended).await;
    }

    async fn push_beating(&self, held: &Held<'_>) -> Ended {
        let every = Duration::from_millis(held.task.heartbeat_every_ms);
        let mut pushing = pin!(self.push(held));
        loop {
            tokio::select! {
                ended = &mut pushing => return ended,
                () = tokio::time::sleep(every) => match held.beat().await {
                    Beat::GoOn => {}
                    Beat::Stop => return Ended::Canceled,
                    Beat::Lost => return Ended::Lost,
                },
            }
        }
    }

    /// From the stored request to what came of it. A callback is made, and that is committed, before its address is sent.
    async fn push(&self, held: &Held<'_>) -> Ended {
        let task = held.task;
        let name = callback_name(&task.idempotency_key);
        if let Some(answer) = task.answers.iter().find(|answer| answer.name.as_ref() == Some(&name)) {
            // The tool answered an earlier sending with the same key; nothing is sent again.
            return Ended::Done(answer.payload.clone().unwrap_or_else(|| "null".into()));
        }
        let stored = match Stored::parse(&task.input) {
            Ok(stored) => stored,
            Err(fault) => return Ended::Failed(fault),
        };
        let callback = match self.make_callback(held, &stored, &name).await {
            Ok(callback) => callback,
            Err(ended) => return ended,
        };
        let outgoing = match stored.filled(&self.options.secrets, callback.as_ref()) {
            Ok(outgoing) => outgoing,
            Err(fault) => return Ended::Failed(fault),
        };
        match self.send(task, outgoing, callback.as_ref()).await {
            Ok(None) => Ended::Waits(name),
            Ok(Some(output)) => Ended::Done(output),
            Err(fault) => Ended::Failed(fault),
        }
    }

    async fn make_callback(
        &self,
        held: &Held<'_>,
        stored: &Stored,
        name: &str,
    ) -> Result<Option<CallbackAddress>, Ended> {
        if !stored.awaits_callback() {
            return Ok(None);
        }
        let Some(public_url) = &self.options.public_url else {
            let message = "this engine was not told its own address, so no tool can call it back: set its public URL";
            return Err(Ended::Failed(invalid("no_public_url", message.into())));
        };
        let (token, token_hash) = self.engine.new_callback_token();
        let name = name.to_owned();
        let made =
            held.say(|holding| Ask::Callback { holding, name: name.clone(), token_hash, expires_in: None }).await;
        match made {
            Ok(_) => {
                let url = format!("{}/v1/callbacks/{token}", public_url.trim_end_matches('/'));
                Ok(Some(CallbackAddress { url, token }))
            }
            Err(error) => {
                tracing::warn!(task = %held.task.task_id, %error, "no callback could be made");
                Err(Ended::Lost)
            }
        }
    }

    /// The output, or none when the target will call back: then it does not matter what else it said.
    async fn send(
        &self,
        task: &LeasedTask,
        mut outgoing: Outgoing,
        callback: Option<&CallbackAddress>,
    ) -> Result<Option<Json>, Box<Fault>> {
        let allow = &self.sender.allow;
        let redactor = outgoing.redactor.clone();
        let (heard, target) = match Target::parse(&outgoing.url, allow) {
            Err(refusal) => (Heard::Refused(refusal), None),
            Ok(target) => {
                let own = self.own_headers(task, outgoing.body.as_deref().unwrap_or_default(), callback);
                outgoing.headers.extend(own);
                (self.sender.send(&target, outgoing, self.timeout(task)).await, Some(target))
            }
        };
        if callback.is_some() && matches!(&heard, Heard::Answer(answer) if answer.is_success()) {
            return Ok(None);
        }
        result_of(heard, target.as_ref(), allow, &redactor, self.engine.clock().now()).map(Some)
    }

    /// A little less than the step has, so that its failure says what happened and not only that time was up.
    fn timeout(&self, task: &LeasedTask) -> Duration {
        let Some(deadline) = task.deadline else { return self.options.timeout };
        let left = Duration::from_micros(deadline.since(self.engine.clock().now()).micros());
        left - (left / 10).min(Duration::from_millis(500))
    }

    fn own_headers(&self, task: &LeasedTask, body: &[u8], callback: Option<&CallbackAddress>) -> HeaderMap {
        let key = task.idempotency_key.to_string();
        let mut headers = vec![
            ("idempotency-key", key.clone()),
            ("abide-run-id", task.run_id.to_string()),
            ("abide-step-id", task.step_id.to_string()),
        ];
        headers.extend(task.traceparent.clone().map(|trace| ("traceparent", trace)));
        if let Some(callback) = callback {
            headers.push(("abide-callback-url", callback.url.clone()));
        }
        if !self.options.signing.is_empty() {
            // The same for every sending of one effect, so that a receiver can tell copies.
            let id = format!("msg_{key}");
            let timestamp = self.engine.clock().now().micros() / 1_000_000;
            headers.push(("webhook-signature", webhook::sign(&self.options.signing, &id, timestamp, body)));
            headers.extend([("webhook-id", id), ("webhook-timestamp", timestamp.to_string())]);
        }
        let headers = headers.into_iter().filter_map(|(name, value)| {
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(name == "abide-callback-url");
            Some((HeaderName::from_static(name), value))
        });
        headers.collect()
    }
}

/// The steps of a document whose address is written out and not allowed. What is computed is checked when it is sent.
pub fn check_document(definition: &Definition, allow: &Allow) -> Vec<(String, Refusal)> {
    let refused = definition.steps().iter().filter_map(|step| {
        let Action::Http(http) = &step.action else { return None };
        let url = http.url.is_constant().then(|| http.url.render_text(&Scope::default()).ok())??;
        Some((step.id.to_string(), check_url(&url, allow).err()?))
    });
    refused.collect()
}

/// The answer to any sending of one key is the answer: who sees the key twice may call back only once.
fn callback_name(key: &Digest) -> String {
    format!("push:{}", &key.to_string()[..16])
}

/// What came of a task.
#[derive(Debug)]
enum Ended {
    Done(Json),
    Failed(Box<Fault>),
    /// The target has it, and will call back.
    Waits(String),
    /// It was told to stop.
    Canceled,
    /// Somebody else has the task now: whatever came out here is not wanted.
    Lost,
}

enum Beat {
    GoOn,
    Stop,
    Lost,
}

/// A task under our lease.
struct Held<'a> {
    engine: Engine,
    name: &'a WorkerId,
    task: &'a LeasedTask,
}

impl Held<'_> {
    async fn beat(&self) -> Beat {
        let told =
            self.engine.report(self.task, self.name.as_str(), |holding| Ask::Heartbeat { holding, progress: None });
        match told.await.map(|told| told.reply) {
            Ok(Reply::Beat { stop: true, .. }) => Beat::Stop,
            Err(Error::Rejected { why, .. }) => {
                tracing::warn!(task = %self.task.task_id, %why, "the lease is gone");
                Beat::Lost
            }
            Ok(_) | Err(_) => Beat::GoOn,
        }
    }

    async fn report(&self, ended: Ended) {
        let told = match ended {
            Ended::Lost => return,
            Ended::Done(output) => {
                let report = || Report { output: Some(output.clone()), ..Report::default() };
                match self.say(|holding| Ask::Complete { holding, report: report() }).await {
                    Err(Error::Rejected {
                        why: why @ (Rejection::TooLarge { .. } | Rejection::Invalid(_)), ..
                    }) => self.fail(&output_refused(&why)).await,
                    told => told,
                }
            }
            Ended::Failed(fault) => self.fail(&fault).await,
            Ended::Waits(name) => {
                let on = || BlockOn::Callback { name: name.clone(), deadline: None };
                let message = || Some("Waits for the target to call back.".to_owned());
                self.say(|holding| Ask::Block { holding, on: on(), message: message() }).await
            }
            Ended::Canceled => self.say(|holding| Ask::Canceled { holding }).await,
        };
        if let Err(error) = told {
            tracing::warn!(task = %self.task.task_id, %error, "what came of a request was not taken");
        }
    }

    async fn fail(&self, fault: &Fault) -> Result<Reply, Error> {
        self.say(|holding| Ask::Fail { holding, fault: fault.clone() }).await
    }

    async fn say(&self, ask: impl Fn(Holding) -> Ask) -> Result<Reply, Error> {
        worker::say(&self.engine, self.task, self.name, ask).await
    }
}

/// The target did it, but its answer cannot be kept.
fn output_refused(why: &Rejection) -> Fault {
    Fault { code: Some("answer_refused".into()), message: why.to_string(), ..Fault::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_told_which_addresses_are_not_allowed() {
        let document = "
workflow: w
steps:
  - { id: fine, http: { url: 'https://example.com/' } }
  - { id: meta, http: { url: 'http://169.254.169.254/latest' } }
  - { id: later, http: { url: '${{ input.url }}' } }
finally:
  - { id: tell, http: { method: POST, url: 'https://127.1/' } }
";
        let parsed = Definition::parse(document).expect("a document");
        let refused = check_document(&parsed.definition, &Allow::default());
        assert_eq!(refused.iter().map(|(step, _)| step.as_str()).collect::<Vec<_>>(), ["meta", "tell"]);
        let allow = Allow::parse(["127.0.0.1", "169.254.0.0/16"]).expect("a list");
        assert!(check_document(&parsed.definition, &allow).is_empty());
    }
}
