//! One request to one checked address. Every request has a connection of its own, so that "not connected" means "nothing was
//! sent", and no connection outlives the check of its address.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::header::{LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt;

use super::request::Outgoing;
use super::result::{Answer, Body, Heard};
use super::target::{Allow, Target};

/// More of an answer is not read.
const LARGEST: usize = 1 << 20;
/// A connection that takes longer does not come any more.
const CONNECT: Duration = Duration::from_secs(10);

type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Finds the addresses of a name.
pub trait Lookup: Send + Sync + std::fmt::Debug {
    fn lookup(&self, host: String, port: u16) -> Looking;
}

/// The resolver of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, host: String, port: u16) -> Looking {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

#[derive(Debug)]
pub struct Sender {
    tls: ClientConfig,
    lookup: Arc<dyn Lookup>,
    pub allow: Allow,
}

impl Sender {
    pub fn new(lookup: Arc<dyn Lookup>, allow: Allow) -> Result<Sender, rustls::Error> {
        let config = || {
            ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
        };
        let tls = match config()?.with_platform_verifier() {
            Ok(config) => config.with_no_client_auth(),
            Err(error) => {
                tracing::warn!(%error, "this machine knows no certificate authorities: no https target will be trusted");
                config()?.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
            }
        };
        Ok(Sender { tls, lookup, allow })
    }

    /// Checks the target, looks its name up once, and sends to the addresses that were checked.
    pub async fn send(&self, target: &Target, outgoing: Outgoing, timeout: Duration) -> Heard {
        let connect = CONNECT.min(timeout / 2);
        let looking = self.lookup.lookup(target.host.clone(), target.port);
        let addresses = match tokio::time::timeout(connect, looking).await {
            Ok(Ok(addresses)) if addresses.is_empty() => return Heard::NotSent("the name has no address".into()),
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => return Heard::NotSent(format!("the name cannot be resolved: {error}")),
            Err(_) => return Heard::NotSent("the name was not resolved in time".into()),
        };
        if let Err(refusal) = target.check_addresses(addresses.iter().map(SocketAddr::ip), &self.allow) {
            return Heard::Refused(refusal);
        }
        let client = match self.client(target, &addresses, connect, timeout) {
            Ok(client) => client,
            Err(error) => return Heard::NotSent(words(error)),
        };
        let mut request = client.request(outgoing.method, target.url.clone()).headers(outgoing.headers);
        if let Some(body) = outgoing.body {
            request = request.body(body);
        }
        match request.send().await {
            Ok(response) => Heard::Answer(read(response).await),
            Err(error) if error.is_connect() || error.is_builder() => Heard::NotSent(words(error)),
            Err(error) => Heard::Silence(words(error)),
        }
    }

    fn client(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
        connect: Duration,
        timeout: Duration,
    ) -> reqwest::Result<Client> {
        Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .no_proxy()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .pool_max_idle_per_host(0)
            .user_agent(concat!("abide/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect)
            .timeout(timeout)
            .dns_resolver(NoOther)
            .resolve_to_addrs(target.url.host_str().unwrap_or_default(), addresses)
            .build()
    }
}

/// Whatever was not checked is not resolved.
#[derive(Debug)]
struct NoOther;

impl Resolve for NoOther {
    fn resolve(&self, _: Name) -> Resolving {
        Box::pin(async { Err(io::Error::other("only the checked addresses are dialled").into()) })
    }
}

async fn read(mut response: Response) -> Answer {
    let text = |name| response.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let (status, retry_after, location) = (response.status().as_u16(), text(RETRY_AFTER), text(LOCATION));
    let mut bytes = Vec::new();
    let body = loop {
        match response.chunk().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() > LARGEST => break Body::TooLarge,
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Ok(None) => break Body::Whole(String::from_utf8_lossy(&bytes).into_owned()),
            Err(_) => break Body::Cut,
        }
    };
    Answer { status, retry_after, location, body }
}

/// The innermost cause says most. The URL may hold a secret and is left out.
fn words(error: reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".into();
    }
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
