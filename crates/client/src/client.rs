//! Everything the API offers, as typed calls.

use std::sync::Arc;
use std::time::Duration;

use abide_api::keys::{CreateKey, KeyView, Keys, NewKey};
use abide_api::runs::{
    Applied, Bulk, BulkDone, CancelRun, Decide, Link, MakeLink, Nothing, PauseRun, PinRun, ReconnectRun, Released,
    RerunRun, ResolveStep, ResumeRun, RetryRun, SendSignal, StartRun,
};
use abide_api::views::{Events, Run, Runs, Step, Steps};
use abide_api::{Raw, raw_of};
use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::call::Call;
use crate::error::Error;
use crate::stream::{Seen, Watch};

/// Speaks with one server. Cheap to clone; all clones share their connections.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    base: Url,
    api_key: Option<String>,
    retries: u32,
    http: reqwest::Client,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of logs.
        f.debug_struct("Client").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// What lists are narrowed by; the names are those of `GET /v1/runs`.
#[derive(Clone, Debug, Default)]
pub struct Filter(pub Vec<(String, String)>);

impl Filter {
    pub fn new() -> Filter {
        Filter::default()
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Filter {
        self.0.push((name.to_owned(), value.into()));
        self
    }

    pub fn workflow(self, workflow: &str) -> Filter {
        self.with("workflow", workflow)
    }

    pub fn state(self, state: &str) -> Filter {
        self.with("state", state)
    }

    pub fn label(self, name: &str, value: &str) -> Filter {
        self.with(&format!("label.{name}"), value)
    }
}

impl Client {
    /// `http://127.0.0.1:7070`, or wherever a server is.
    pub fn new(url: &str) -> Result<Client, Error> {
        let base = Url::parse(url).map_err(|error| Error::Invalid(format!("{url:?} is not an address: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(Error::Invalid(format!("{url:?} must begin with http:// or https://")));
        }
        // One TLS stack for the process; a provider that is there already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(5))
            // Shorter than a server lets a connection rest, so that no request meets one that is being closed.
            .pool_idle_timeout(Duration::from_secs(8))
            .user_agent(concat!("abide-client/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(Client(Arc::new(Inner { base, api_key: None, retries: 4, http })))
    }

    /// Speaks in the name of a key.
    pub fn with_key(self, api_key: impl Into<String>) -> Client {
        let api_key = Some(api_key.into());
        Client(Arc::new(Inner { api_key, ..Arc::unwrap_or_clone(self.0) }))
    }

    /// How often a call that may help later is sent again; 4 unless said.
    pub fn with_retries(self, retries: u32) -> Client {
        Client(Arc::new(Inner { retries, ..Arc::unwrap_or_clone(self.0) }))
    }

    /// Any call, for what has no method of its own: `client.call(Method::GET, &["v1", "runs"])`.
    pub fn call(&self, method: Method, segments: &[&str]) -> Call {
        Call::new(self.clone(), method, segments)
    }

    pub(crate) fn base(&self) -> &Url {
        &self.0.base
    }

    pub(crate) fn http(&self) -> &reqwest::Client {
        &self.0.http
    }

    pub(crate) fn api_key(&self) -> Option<&str> {
        self.0.api_key.as_deref()
    }

    pub(crate) fn retries(&self) -> u32 {
        self.0.retries
    }

    pub(crate) fn server(&self) -> String {
        self.0.base.as_str().trim_end_matches('/').to_owned()
    }

    async fn get<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T, Error> {
        self.call(Method::GET, segments).answer().await
    }

    async fn post<T: DeserializeOwned>(&self, segments: &[&str], body: &impl Serialize) -> Result<T, Error> {
        self.call(Method::POST, segments).json(body).answer().await
    }

    async fn to_run<T: DeserializeOwned>(&self, run_id: &str, verb: &str, body: &impl Serialize) -> Result<T, Error> {
        self.post(&["v1", "runs", run_id, verb], body).await
    }
}

/// Workflows.
impl Client {
    /// Uploads a document; one that says the same as the newest version makes no new one.
    pub async fn apply(&self, workflow: &str, document: &str) -> Result<Applied, Error> {
        let call = self.call(Method::PUT, &["v1", "workflows", workflow]);
        call.body("application/yaml", document.as_bytes().to_vec()).answer().await
    }

    pub async fn workflows(&self) -> Result<Value, Error> {
        self.get(&["v1", "workflows"]).await
    }

    pub async fn workflow(&self, workflow: &str) -> Result<Value, Error> {
        self.get(&["v1", "workflows", workflow]).await
    }

    pub async fn workflow_version(&self, workflow: &str, version: u32) -> Result<Value, Error> {
        self.get(&["v1", "workflows", workflow, "versions", &version.to_string()]).await
    }
}

/// Runs: starting and reading.
impl Client {
    pub async fn start(&self, workflow: &str, input: &impl Serialize) -> Result<Run, Error> {
        let input = Some(raw_of(input)?);
        self.start_run(&StartRun { workflow: workflow.into(), input, ..StartRun::default() }).await
    }

    pub async fn start_run(&self, start: &StartRun) -> Result<Run, Error> {
        self.post(&["v1", "runs"], start).await
    }

    pub async fn run(&self, run_id: &str) -> Result<Run, Error> {
        self.get(&["v1", "runs", run_id]).await
    }

    /// The run as it was; `at` is the number of an event or an instant.
    pub async fn run_at(&self, run_id: &str, at: &str) -> Result<Run, Error> {
        self.call(Method::GET, &["v1", "runs", run_id]).query("at", at).answer().await
    }

    pub async fn status(&self, run_id: &str) -> Result<Value, Error> {
        self.get(&["v1", "runs", run_id, "status"]).await
    }

    /// One page of runs, newest first.
    pub async fn runs(&self, filter: &Filter) -> Result<Runs, Error> {
        self.call(Method::GET, &["v1", "runs"]).queries(&filter.0).answer().await
    }

    /// How many runs there are, by `state`, `workflow` or `root_cause`.
    pub async fn counts(&self, by: &str, filter: &Filter) -> Result<Value, Error> {
        self.call(Method::GET, &["v1", "runs", "counts"]).query("by", by).queries(&filter.0).answer().await
    }

    pub async fn events(&self, run_id: &str, after: u64, limit: u32) -> Result<Events, Error> {
        let call = self.call(Method::GET, &["v1", "runs", run_id, "events"]);
        call.query("after", after.to_string()).query("limit", limit.to_string()).answer().await
    }

    pub async fn steps(&self, run_id: &str) -> Result<Steps, Error> {
        self.get(&["v1", "runs", run_id, "steps"]).await
    }

    pub async fn step(&self, run_id: &str, step_id: &str) -> Result<Step, Error> {
        self.get(&["v1", "runs", run_id, "steps", step_id]).await
    }

    pub async fn input<T: DeserializeOwned>(&self, run_id: &str) -> Result<T, Error> {
        self.get(&["v1", "runs", run_id, "input"]).await
    }

    pub async fn output<T: DeserializeOwned>(&self, run_id: &str) -> Result<T, Error> {
        self.get(&["v1", "runs", run_id, "output"]).await
    }

    pub async fn explain(&self, run_id: &str) -> Result<Value, Error> {
        self.get(&["v1", "runs", run_id, "explain"]).await
    }

    pub async fn explain_at(&self, run_id: &str, at: &str) -> Result<Value, Error> {
        self.call(Method::GET, &["v1", "runs", run_id, "explain"]).query("at", at).answer().await
    }

    pub async fn handoff(&self, run_id: &str) -> Result<Value, Error> {
        self.get(&["v1", "runs", run_id, "handoff"]).await
    }

    pub async fn bundle(&self, run_id: &str) -> Result<Value, Error> {
        self.get(&["v1", "runs", run_id, "bundle"]).await
    }

    pub async fn graph(&self, run_id: &str) -> Result<Value, Error> {
        self.get(&["v1", "runs", run_id, "graph"]).await
    }

    /// Follows a run until it has ended; a cut connection is taken up where it was.
    pub fn watch(&self, run_id: &str) -> Watch {
        Watch::new(self.call(Method::GET, &["v1", "runs", run_id, "stream"]), self.clone())
    }

    /// Waits until a run has ended.
    pub async fn ended(&self, run_id: &str) -> Result<Run, Error> {
        let mut watch = self.watch(run_id);
        while let Some(seen) = watch.next().await? {
            if let Seen::Run(run) = seen
                && run.state.is_terminal()
            {
                return Ok(*run);
            }
        }
        self.run(run_id).await
    }
}

/// Runs: what people decide about them.
impl Client {
    pub async fn cancel(&self, run_id: &str, cancel: &CancelRun) -> Result<Run, Error> {
        self.to_run(run_id, "cancel", cancel).await
    }

    pub async fn pause(&self, run_id: &str, reason: &str) -> Result<Run, Error> {
        self.to_run(run_id, "pause", &PauseRun { reason: reason.into() }).await
    }

    pub async fn resume(&self, run_id: &str) -> Result<Run, Error> {
        self.to_run(run_id, "resume", &ResumeRun::default()).await
    }

    /// One step, then paused again.
    pub async fn resume_one_step(&self, run_id: &str) -> Result<Run, Error> {
        self.to_run(run_id, "resume", &ResumeRun { steps: Some(1) }).await
    }

    pub async fn signal(&self, run_id: &str, name: &str, payload: &impl Serialize) -> Result<Value, Error> {
        let payload = Some(raw_of(payload)?);
        self.post(&["v1", "runs", run_id, "signals", name], &SendSignal { payload }).await
    }

    pub async fn pin(&self, run_id: &str, pinned: bool) -> Result<Value, Error> {
        self.to_run(run_id, "pin", &PinRun { pinned: Some(pinned) }).await
    }

    /// Of a run that has ended: a new run from the failed step. Of one that waits to try again: now.
    pub async fn retry(&self, run_id: &str) -> Result<Run, Error> {
        self.to_run(run_id, "retry", &RetryRun {}).await
    }

    pub async fn rerun(&self, run_id: &str, rerun: &RerunRun) -> Result<Run, Error> {
        self.to_run(run_id, "rerun", rerun).await
    }

    /// What a rerun would do.
    pub async fn rerun_plan(&self, run_id: &str, rerun: RerunRun) -> Result<Value, Error> {
        self.to_run(run_id, "rerun", &RerunRun { dry_run: true, ..rerun }).await
    }

    pub async fn approve(&self, run_id: &str, decide: &Decide) -> Result<Run, Error> {
        self.to_run(run_id, "approve", decide).await
    }

    pub async fn reject(&self, run_id: &str, decide: &Decide) -> Result<Run, Error> {
        self.to_run(run_id, "reject", decide).await
    }

    /// A one-time page on which one person decides.
    pub async fn approval_link(&self, run_id: &str, step_id: &str, link: &MakeLink) -> Result<Link, Error> {
        self.post(&["v1", "runs", run_id, "approvals", step_id, "links"], link).await
    }

    /// What waits for a decision.
    pub async fn inbox(&self) -> Result<Value, Error> {
        self.get(&["v1", "approvals"]).await
    }

    pub async fn reconnect(&self, run_id: &str, reconnect: &ReconnectRun) -> Result<Value, Error> {
        self.to_run(run_id, "reconnect", reconnect).await
    }

    pub async fn resolve(&self, run_id: &str, resolve: &ResolveStep) -> Result<Run, Error> {
        self.to_run(run_id, "resolve", resolve).await
    }

    pub async fn bulk(&self, bulk: &Bulk) -> Result<BulkDone, Error> {
        self.post(&["v1", "runs", "bulk"], bulk).await
    }
}

/// What is around runs.
impl Client {
    pub async fn connections(&self) -> Result<Value, Error> {
        self.get(&["v1", "connections"]).await
    }

    /// A connection works again: every run that waits for it goes on.
    pub async fn reconnected(&self, tool: &str, account: &str) -> Result<Released, Error> {
        self.post(&["v1", "connections", tool, account, "reconnected"], &Nothing {}).await
    }

    pub async fn broken(&self, tool: &str, account: &str) -> Result<Value, Error> {
        self.post(&["v1", "connections", tool, account, "broken"], &Nothing {}).await
    }

    pub async fn queues(&self) -> Result<Value, Error> {
        self.get(&["v1", "queues"]).await
    }

    pub async fn workers(&self) -> Result<Value, Error> {
        self.get(&["v1", "workers"]).await
    }

    pub async fn insights(&self) -> Result<Value, Error> {
        self.get(&["v1", "insights"]).await
    }

    pub async fn contract(&self) -> Result<Value, Error> {
        self.get(&["v1", "contract"]).await
    }

    pub async fn create_key(&self, key: &CreateKey) -> Result<NewKey, Error> {
        self.post(&["v1", "keys"], key).await
    }

    pub async fn keys(&self) -> Result<Vec<KeyView>, Error> {
        self.get::<Keys>(&["v1", "keys"]).await.map(|keys| keys.keys)
    }

    pub async fn revoke_key(&self, key_id: &str) -> Result<(), Error> {
        self.call(Method::DELETE, &["v1", "keys", key_id]).send().await.map(drop)
    }

    /// Delivers the answer of a tool to the address it was given.
    pub async fn deliver(&self, callback_url: &str, payload: &impl Serialize) -> Result<Raw, Error> {
        let url = Url::parse(callback_url).map_err(|error| Error::Invalid(error.to_string()))?;
        let client = Client(Arc::new(Inner { base: url, api_key: None, ..(*self.0).clone() }));
        client.call(Method::POST, &[]).json(payload).answer().await
    }
}
