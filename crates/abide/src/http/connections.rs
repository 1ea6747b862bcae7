//! Connections to tools: which are broken, who waits, and what goes on when one works again.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use abide_api::Problem;
use abide_api::engine::identifier;
use abide_api::keys::Role;
use abide_api::runs::{Nothing, ReconnectRun, Released};
use abide_core::ids::Namespace;
use abide_core::run::command::Ask;
use abide_core::run::step::Connection;
use abide_engine::push::{Allow, check_link};
use abide_engine::reads::ConnectionView;
use abide_engine::request::{Answer, What};
use serde::Serialize;

use super::call::{Answered, Call, Reply, unexpected};
use super::locked;

/// Longest address that is kept.
const LONGEST_URL: usize = 4_000;
/// Addresses that are kept for one namespace; a further one replaces the oldest.
const MOST_URLS: usize = 1_000;

/// Addresses at which people reconnect, as workers reported them last: in memory alone, because they hold secrets.
#[derive(Default)]
pub struct ConnectUrls(Mutex<HashMap<Namespace, VecDeque<ConnectUrl>>>);

/// The address for one connection.
#[derive(Clone, Debug)]
pub struct ConnectUrl {
    connection: Connection,
    url: String,
    host: String,
}

impl ConnectUrl {
    /// Checks an address that a worker reports, before anything of its report happens.
    pub fn read(
        pointer: &str,
        tool: &str,
        account: Option<&str>,
        url: Option<&str>,
        allow: &Allow,
    ) -> Result<Option<ConnectUrl>, Problem> {
        let Some(url) = url else { return Ok(None) };
        if url.len() > LONGEST_URL {
            return Err(Problem::invalid(pointer, format!("An address has at most {LONGEST_URL} bytes.")));
        }
        let url = check_link(url, allow)
            .map_err(|why| Problem::invalid(pointer, format!("People are not sent there: {why}.")))?;
        let connection = Connection { tool: tool.to_owned(), account: account.unwrap_or("default").to_owned() };
        let host = url.host_str().unwrap_or_default().to_owned();
        Ok(Some(ConnectUrl { connection, url: url.into(), host }))
    }
}

impl ConnectUrls {
    /// Keeps what was reported under a lease.
    pub fn keep(&self, namespace: &Namespace, reported: ConnectUrl) {
        let mut all = locked(&self.0);
        let kept = all.entry(namespace.clone()).or_default();
        kept.retain(|known| known.connection != reported.connection);
        if kept.len() >= MOST_URLS {
            kept.pop_front();
        }
        kept.push_back(reported);
    }

    fn get(&self, namespace: &Namespace, tool: &str, account: &str) -> Option<ConnectUrl> {
        let all = locked(&self.0);
        let of = |known: &&ConnectUrl| known.connection.tool == tool && known.connection.account == account;
        all.get(namespace)?.iter().find(of).cloned()
    }

    fn forget(&self, namespace: &Namespace, connection: &Connection) {
        if let Some(kept) = locked(&self.0).get_mut(namespace) {
            kept.retain(|known| known.connection != *connection);
        }
    }
}

pub async fn list(call: Call) -> Answered {
    call.only(&[])?;
    let known = call.engine.connections().await?;
    let may_reconnect = matches!(call.who.role, Role::Operator | Role::Admin);
    // The address is for those who may reconnect, and for nobody else.
    let address = |one: &ConnectionView| {
        call.api.connect_urls.get(&call.who.namespace, &one.tool, &one.account).filter(|_| may_reconnect)
    };
    let views: Vec<_> = known.iter().map(|connection| Shown::of(connection, address(connection))).collect();
    Ok(Reply::list("connections", views, None))
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    connection: &'a ConnectionView,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_host: Option<String>,
}

impl Shown<'_> {
    fn of(connection: &ConnectionView, address: Option<ConnectUrl>) -> Shown<'_> {
        let (connect_url, connect_host) = address.map(|address| (address.url, address.host)).unzip();
        Shown { connection, connect_url, connect_host }
    }
}

pub async fn of_run(call: Call, asked: ReconnectRun) -> Answered {
    let told = call.command(Ask::Reconnect { tool: asked.tool, account: asked.account, generation: None }).await?;
    call.run_answer(200, &told).await
}

fn named(call: &Call) -> Result<Connection, Problem> {
    let tool = identifier("tool", call.param("tool"))?.to_owned();
    let account = identifier("account", call.param("account"))?.to_owned();
    Ok(Connection { tool, account })
}

pub async fn reconnected(call: Call, _: Nothing) -> Answered {
    let connection = named(&call)?;
    call.api.connect_urls.forget(&call.who.namespace, &connection);
    released(call.ask(What::Reconnected(connection)).await?)
}

pub async fn broken(call: Call, _: Nothing) -> Answered {
    let connection = named(&call)?;
    released(call.ask(What::Broken(connection)).await?)
}

fn released(answer: Answer) -> Answered {
    match answer {
        Answer::Released(released) => Ok(Reply::json(200, &Released { released })),
        other => Err(unexpected(&other)),
    }
}
