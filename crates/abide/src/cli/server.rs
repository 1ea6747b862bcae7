//! What every server needs: where its data is, where it listens, what it may call, and how it starts and stops.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use abide_core::contract::RunState;
use abide_core::definition::parse_duration;
use abide_engine::archive::Retention;
use abide_engine::push::{Allow, Push, PushOptions, Secrets, SigningSecret};
use abide_engine::{Engine, OnFatal, Options, Stop, end_the_process};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::http::{Api, Server, Settings, serve};
use crate::{log, trace};

/// Where the data is.
#[derive(Clone, Debug, clap::Args)]
pub struct Store {
    /// Directory of the embedded store
    #[arg(long, value_name = "DIR", env = "ABIDE_DATA", default_value = "abide-data")]
    pub data: PathBuf,
    /// Where runs are kept: `sqlite` is the directory above
    #[arg(long, value_name = "STORE", env = "ABIDE_STORE", default_value = "sqlite", value_parser = ["sqlite"])]
    pub store: String,
    /// How long runs stay before they are archived, by state
    #[arg(long, value_name = "STATE=TIME,…", env = "ABIDE_RETAIN", value_parser = retention)]
    pub retain: Option<Retention>,
}

impl Store {
    pub fn open(&self) -> io::Result<Engine> {
        let retention = self.retain.clone().unwrap_or_default();
        let on_fatal: OnFatal = Arc::new(|fatal| {
            log::flush();
            end_the_process(fatal);
        });
        Engine::open_with(&self.data, Options { retention, on_fatal, ..Options::default() }).map_err(io::Error::other)
    }
}

fn retention(text: &str) -> Result<Retention, String> {
    text.split(',').try_fold(Retention::default(), |retention, pair| {
        let (state, time) = pair.split_once('=').ok_or("write STATE=TIME, as succeeded=7d")?;
        let state = RunState::parse(state.trim()).filter(|state| state.is_terminal());
        let state = state.ok_or("only succeeded, completed_with_warnings, failed and canceled are archived")?;
        Ok(retention.with(state, parse_duration(time.trim())?))
    })
}

/// Where it listens, and what it may call.
#[derive(Clone, Debug, clap::Args)]
pub struct Network {
    /// Address to listen on; anything but loopback needs keys
    #[arg(long, value_name = "ADDR", env = "ABIDE_LISTEN", default_value = "127.0.0.1:7070")]
    pub listen: String,
    /// How others reach this server: base of links and callbacks
    #[arg(long, value_name = "URL", env = "ABIDE_PUBLIC_URL")]
    pub public_url: Option<String>,
    /// Secrets of `http` steps, one NAME=VALUE a line; ABIDE_SECRET_NAME works too
    #[arg(long, value_name = "FILE", env = "ABIDE_SECRETS")]
    pub secrets: Option<PathBuf>,
    /// Secret with which `http` steps are signed (`whsec_…`); twice while receivers change over
    #[arg(long, value_name = "SECRET", env = "ABIDE_SIGNING_SECRET", hide_env_values = true)]
    pub signing_secret: Vec<String>,
    /// Secret with which callbacks must be signed (`whsec_…`); without one their token is enough
    #[arg(long, value_name = "SECRET", env = "ABIDE_CALLBACK_SECRET", hide_env_values = true)]
    pub callback_secret: Vec<String>,
    /// Requests a second of one key, or of one address without keys; reports of workers are not counted
    #[arg(long, value_name = "N", env = "ABIDE_RATE_LIMIT", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate_limit: Option<u32>,
    /// Another name by which this server may be called
    #[arg(long, value_name = "HOST", env = "ABIDE_ALLOW_HOST", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// Origin of a page that may call this server
    #[arg(long, value_name = "ORIGIN", env = "ABIDE_ALLOW_ORIGIN", value_delimiter = ',')]
    pub allow_origin: Vec<String>,
    /// Host, address or network that `http` steps may call though it is not public
    #[arg(long, value_name = "TARGET", env = "ABIDE_ALLOW_TARGET", value_delimiter = ',')]
    pub allow_target: Vec<String>,
    /// How the log is written
    #[arg(long, value_name = "FORM", env = "ABIDE_LOG_FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub log_format: String,
}

fn signing_secrets(texts: &[String]) -> io::Result<Vec<SigningSecret>> {
    texts.iter().map(|text| text.parse().map_err(io::Error::other)).collect()
}

/// A server that is ready and does not answer yet.
pub struct Prepared {
    pub server: Server,
    pub api: Arc<Api>,
    push: Push,
    stop: StopSignals,
}

impl Network {
    /// Binds before anything else, so that a wrong address is said at once.
    pub async fn prepare(&self, engine: Engine) -> io::Result<Prepared> {
        let server = Server::bind(&self.listen).await?;
        let address = server.address;
        let public_url = match &self.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("http://{address}"),
        };
        let settings = Settings {
            hosts: self.hosts(address, &public_url),
            origins: self.allow_origin.iter().cloned().collect(),
            targets: Allow::parse(&self.allow_target).map_err(io::Error::other)?,
            callback_secrets: signing_secrets(&self.callback_secret)?,
            rate_limit: self.rate_limit,
            public_url: public_url.clone(),
        };
        let push = Push::new(engine.clone(), self.push_options(public_url)?).map_err(io::Error::other)?;
        let api = Api::new(engine, settings).await.map_err(io::Error::other)?;
        if !address.ip().is_loopback() && !api.keys.is_used() {
            return Err(io::Error::other(format!(
                "{address} can be reached by others, and no key is configured: everybody would be admin. \
                 Make one first: abide key create admin --role admin --data DIR, or listen on 127.0.0.1"
            )));
        }
        Ok(Prepared { server, api, push, stop: StopSignals::listen()? })
    }

    fn push_options(&self, public_url: String) -> io::Result<PushOptions> {
        let mut secrets = Secrets::from_environment();
        if let Some(file) = &self.secrets {
            secrets = secrets.and_file(file).map_err(io::Error::other)?;
        }
        let signing = signing_secrets(&self.signing_secret)?;
        let allow = self.allow_target.clone();
        Ok(PushOptions { public_url: Some(public_url), secrets, signing, allow, ..PushOptions::default() })
    }

    /// Names that mean this server. Bound to all addresses, only what was named counts beside loopback.
    fn hosts(&self, address: SocketAddr, public_url: &str) -> BTreeSet<String> {
        let mut hosts: BTreeSet<String> = ["localhost", "127.0.0.1", "::1"].map(Into::into).into();
        if !address.ip().is_unspecified() {
            hosts.insert(address.ip().to_string());
        }
        let public = public_url.split_once("://").map_or(public_url, |(_, rest)| rest);
        let public = public.split(['/', ':']).next().unwrap_or(public);
        hosts.insert(public.trim_matches(['[', ']']).to_owned());
        hosts.extend(self.allow_host.iter().cloned());
        hosts
    }

    /// What happens goes to standard error: one line each, or one JSON object each. `level` is what is written unless
    /// ABIDE_LOG says otherwise.
    pub fn log(&self, level: &str) -> io::Result<()> {
        use tracing_subscriber::EnvFilter;
        let log = log::start()?;
        let filter = EnvFilter::try_from_env("ABIDE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
        let builder =
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || log.clone()).with_target(false);
        // A logger that is there already is as good.
        let _ = match self.log_format.as_str() {
            "json" => builder.json().try_init(),
            _ => builder.with_ansi(false).try_init(),
        };
        Ok(())
    }
}

impl Prepared {
    /// Serves until a signal comes; what is under way is finished, and everything acknowledged is on disk.
    pub async fn run(self) -> io::Result<()> {
        let Prepared { server, api, push, mut stop } = self;
        let engine = api.engine.clone();
        let stopper: Stop = push.stopper();
        let pushing = tokio::spawn(push.run());
        let tracing = trace::follow(&engine, trace::endpoint());
        serve(server, api, stop.asked()).await;
        tracing::info!("stopping");
        stopper.now();
        engine.shutdown().await;
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), pushing).await;
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), tracing).await;
        log::flush();
        Ok(())
    }
}

/// SIGTERM and ctrl-c, from the moment this exists. A server listens to them before it says its address: whoever reads it may
/// stop it at once.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub fn listen() -> io::Result<StopSignals> {
        Ok(StopSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Blocks on a future with a runtime of its own.
pub fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(future))
}
