//! `abide key`: who may do what.

use std::io;

use abide_api::keys::{CreateKey, Role};
use abide_client::Method;
use abide_engine::request::Access;
use clap::{Args, Subcommand};

use super::Exit;
use super::print::{List, age, plain, print_one, word};
use super::remote::To;
use super::server::block_on;
use crate::http::new_key;

#[derive(Debug, Args)]
pub struct Key {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a key; it is shown once
    Create(Create),
    /// Show all keys, never the keys themselves
    List(ListKeys),
    /// Take a key away at once
    Revoke(Revoke),
}

#[derive(Debug, Args)]
struct Create {
    /// What people call it
    name: String,
    /// viewer, operator, worker, approver or admin
    #[arg(long, value_parser = role)]
    role: Role,
    /// Of a worker: the only queues it may ask for; repeats
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// In whose name it acts; without one, its name
    #[arg(long, value_name = "WHO")]
    principal: Option<String>,
    /// `role:GROUP` in approvers means these; repeats
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// May name another person in a decision
    #[arg(long)]
    acts_for_others: bool,
    #[arg(long)]
    namespace: Option<String>,
    /// As 90d; without one it does not expire
    #[arg(long, value_name = "DURATION")]
    expires_in: Option<String>,
    /// Write it into a data directory that no server has open: the way to a first key, and back in
    #[arg(long, value_name = "DIR")]
    data: Option<std::path::PathBuf>,
    #[command(flatten)]
    to: To,
}

fn role(text: &str) -> Result<Role, String> {
    Role::parse(text).ok_or_else(|| format!("say {}", Role::ALL.map(Role::as_str).join(", ")))
}

#[derive(Debug, Args)]
struct ListKeys {
    #[command(flatten)]
    to: To,
}

#[derive(Debug, Args)]
struct Revoke {
    /// As `abide key list -o ids` shows it
    key_id: String,
    #[command(flatten)]
    to: To,
}

const KEYS: List = List {
    field: "keys",
    id: "key_id",
    heads: &["key", "name", "role", "principal", "namespace", "last used", "state"],
    row: &|key| {
        let state = match (key["revoked_at"].is_string(), key["expires_at"].is_string()) {
            (true, _) => format!("revoked {}", age(&key["revoked_at"])),
            (false, true) => format!("expires {}", age(&key["expires_at"])),
            (false, false) => "valid".to_owned(),
        };
        let words = ["key_id", "name", "role", "principal", "namespace"].map(|name| word(&key[name]));
        words.into_iter().chain([age(&key["last_used_at"]), state]).collect()
    },
    nothing: "No keys: on a loopback address everyone is admin.",
};

impl Key {
    pub fn run(self) -> io::Result<Exit> {
        match self.what {
            What::Create(create) => create.run(),
            What::List(list) => list.to.run(async {
                let answer = list.to.get(&["v1", "keys"])?.send().await?;
                KEYS.print(&answer, list.to.output)?;
                Ok(Exit::Done)
            }),
            What::Revoke(revoke) => revoke.to.run(async {
                let call = revoke.to.client()?.call(Method::DELETE, &["v1", "keys", &revoke.key_id]);
                call.send().await?;
                anstream::eprintln!("{} is revoked", plain(&revoke.key_id));
                Ok(Exit::Done)
            }),
        }
    }
}

impl Create {
    fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        let key = CreateKey {
            name: self.name,
            role: self.role,
            queues: self.queues,
            principal: self.principal,
            groups: self.groups,
            acts_for_others: self.acts_for_others,
            namespace: self.namespace,
            expires_in: self.expires_in,
        };
        if let Some(data) = &self.data {
            return create_offline(data, key);
        }
        to.run(async {
            let answer = self.to.post(&["v1", "keys"])?.json(&key).send().await?;
            print_one(&answer, self.to.output, "key_id", |out, key| {
                // Alone on its line, so that `KEY=$(abide key create …)` is all it takes.
                writeln!(out, "{}", word(&key["key"]))?;
                anstream::eprintln!(
                    "{} ({}): keep it safe, it is not shown again",
                    word(&key["key_id"]),
                    word(&key["role"])
                );
                Ok(())
            })?;
            Ok(Exit::Done)
        })
    }
}

/// Whoever can write the directory may make keys.
fn create_offline(data: &std::path::Path, asked: CreateKey) -> io::Result<Exit> {
    let namespace = asked.namespace.clone().unwrap_or_else(|| "default".into());
    block_on(async {
        let engine = abide_engine::Engine::open(data).map_err(io::Error::other)?;
        let made = new_key(asked, namespace.as_str().into(), engine.clock().now());
        let (text, key) = made.map_err(|problem| io::Error::other(problem.to_string()))?;
        let key_id = key.key_id.clone();
        let kept = engine.asking(abide_engine::What::Access(Box::new(Access::AddKey(key)))).await;
        engine.shutdown().await;
        kept.map_err(io::Error::other)?;
        anstream::println!("{text}");
        anstream::eprintln!("{key_id}: keep it safe, it is not shown again");
        Ok(Exit::Done)
    })?
}
