//! What is around runs: `inbox`, `queues`, `workers`, `connections`.

use std::io;

use clap::Args;
use serde_json::Value;

use super::Exit;
use super::print::{List, age, word};
use super::remote::To;

#[derive(Debug, Args)]
pub struct Around {
    #[command(flatten)]
    to: To,
}

const INBOX: List = List {
    field: "approvals",
    id: "run_id",
    heads: &["run", "step", "asked", "until", "approvers", "title"],
    row: &|approval| {
        vec![
            word(&approval["run_id"]),
            word(&approval["step_id"]),
            age(&approval["since"]),
            age(if approval["deadline"].is_null() { &approval["until"] } else { &approval["deadline"] }),
            listed(&approval["approvers"]),
            word(&approval["title"]),
        ]
    },
    nothing: "Nothing waits for a decision.",
};

const QUEUES: List = List {
    field: "queues",
    id: "queue",
    heads: &["queue", "depth", "oldest", "listeners"],
    row: &|queue| {
        let listeners = match queue["listeners"].as_array() {
            Some(listeners) if listeners.is_empty() => "nobody listens".to_owned(),
            _ => listed(&queue["listeners"]),
        };
        vec![word(&queue["queue"]), word(&queue["depth"]), age(&queue["oldest_at"]), listeners]
    },
    nothing: "No queue has work or listeners.",
};

const WORKERS: List = List {
    field: "workers",
    id: "worker",
    heads: &["worker", "queue", "listening", "last asked", "handlers"],
    row: &|worker| {
        let handlers = match worker["handlers"].is_null() {
            true => "any".to_owned(),
            false => listed(&worker["handlers"]),
        };
        let listening = if worker["listening"] == true { "yes" } else { "no" };
        vec![word(&worker["worker"]), word(&worker["queue"]), listening.into(), age(&worker["last_poll_at"]), handlers]
    },
    nothing: "No worker has asked for work lately.",
};

const CONNECTIONS: List = List {
    field: "connections",
    id: "tool",
    heads: &["tool", "account", "state", "waiting runs", "reconnected", "host", "where"],
    row: &|connection| {
        let state = match (&connection["broken"], connection["waiting_runs"].as_u64()) {
            (serde_json::Value::Bool(true), _) => "broken",
            (_, Some(1..)) => "waited for",
            _ => "works",
        };
        vec![
            word(&connection["tool"]),
            word(&connection["account"]),
            state.into(),
            word(&connection["waiting_runs"]),
            age(&connection["reconnected_at"]),
            word(&connection["connect_host"]),
            word(&connection["connect_url"]),
        ]
    },
    nothing: "No connection is known.",
};

fn listed(values: &Value) -> String {
    values.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join(", ")
}

impl Around {
    pub fn inbox(self) -> io::Result<Exit> {
        self.show("approvals", &INBOX)
    }

    pub fn queues(self) -> io::Result<Exit> {
        self.show("queues", &QUEUES)
    }

    pub fn workers(self) -> io::Result<Exit> {
        self.show("workers", &WORKERS)
    }

    pub fn connections(self) -> io::Result<Exit> {
        self.show("connections", &CONNECTIONS)
    }

    fn show(self, path: &str, list: &List<'_>) -> io::Result<Exit> {
        self.to.run(async {
            let answer = self.to.get(&["v1", path])?.send().await?;
            list.print(&answer, self.to.output)?;
            Ok(Exit::Done)
        })
    }
}
