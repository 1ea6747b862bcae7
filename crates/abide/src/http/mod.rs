//! The wire: one table of routes from which requests find their handler, their roles and their page of the reference.

#![allow(clippy::result_large_err, reason = "a refusal is rare, and is written at once")]

mod access;
mod approvals;
mod call;
mod causes;
mod connections;
mod document;
mod filter;
mod form;
mod graph;
mod layout;
mod link;
mod metrics;
mod page;
mod rate;
mod routes;
mod runs;
mod serve;
mod session;
mod stream;
mod system;
mod tasks;
mod workflows;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use abide_engine::Engine;

pub use access::{KeyRing, new_key};
pub use document::openapi;
pub use serve::{Server, serve};

/// What the server is told when it starts.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Base of links and callbacks.
    pub public_url: String,
    /// Names by which browsers and programs may call this server.
    pub hosts: BTreeSet<String>,
    /// Origins of pages, beside our own, that may call it.
    pub origins: BTreeSet<String>,
    /// Which addresses `http` steps may call beside public ones.
    pub targets: abide_engine::push::Allow,
    /// Callbacks must be signed with one of these, when there are any.
    pub callback_secrets: Vec<abide_engine::push::SigningSecret>,
    /// Requests a second of one caller.
    pub rate_limit: Option<u32>,
}

/// Everything a request may need.
pub struct Api {
    pub engine: Engine,
    pub keys: KeyRing,
    pub settings: Settings,
    pub metrics: metrics::Metrics,
    sessions: session::Sessions,
    rates: rate::Rates,
    routes: routes::Routes,
    document: std::sync::OnceLock<String>,
    /// Idempotency keys whose first request is still under way.
    under_way: Mutex<BTreeSet<(String, String)>>,
    streams: AtomicUsize,
    pub progress: stream::Progress,
    pub connect_urls: connections::ConnectUrls,
    requests: AtomicUsize,
    stopping: tokio::sync::watch::Sender<bool>,
    boot: String,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Api {
    pub async fn new(engine: Engine, settings: Settings) -> Result<Arc<Api>, abide_engine::ReadError> {
        let keys = KeyRing::of(engine.keys().await?);
        Ok(Arc::new(Api {
            engine,
            keys,
            rates: rate::Rates::new(settings.rate_limit),
            settings,
            metrics: metrics::Metrics::default(),
            sessions: session::Sessions::default(),
            routes: routes::Routes::of(routes::table()),
            document: std::sync::OnceLock::new(),
            under_way: Mutex::default(),
            streams: AtomicUsize::new(0),
            progress: stream::Progress::default(),
            connect_urls: connections::ConnectUrls::default(),
            requests: AtomicUsize::new(0),
            stopping: tokio::sync::watch::Sender::new(false),
            boot: access::token(6),
        }))
    }

    /// A name for this request, in the answer and in the log.
    fn request_id(&self) -> String {
        format!("req_{}_{:x}", self.boot, self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Ends streams and long polls, because the server stops.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    pub fn stopping(&self) -> tokio::sync::watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}

/// Resolves when the server stops.
async fn stopped(stopping: &mut tokio::sync::watch::Receiver<bool>) {
    // A server that is gone has stopped, too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
