//! What travels between the actors and the engine: requests that can be lost, delayed and sent twice.

use abide_core::ids::{Digest, Namespace, RunId};
use abide_core::run::command::{Actor, Ask, Command, Start};
use abide_core::run::step::Connection;
use abide_engine::request::{Answer, Claim, Error, Idempotency, Rerun, ToRun};
use abide_engine::{NewRun, Request, What};

/// Who waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Client,
    /// A worker's poll.
    Poll(usize),
    /// What a worker says about one of its jobs.
    Job(usize, u64),
}

#[derive(Clone, Debug)]
pub enum Wish {
    Start { workflow: &'static str, start: Box<Start>, run_id: Option<RunId> },
    Run { run_id: RunId, actor: Actor, ask: Box<Ask>, groups: Vec<String>, expected_seq: Option<u64>, claim_next: bool },
    Claim(Claim),
    Reconnected(Connection),
    Broken(Connection),
    Rerun(Rerun),
}

/// One request, and the number of its sending.
#[derive(Clone, Debug)]
pub struct Letter {
    /// The same for every retry of the same request.
    pub request: u64,
    pub asker: Asker,
    pub namespace: Namespace,
    pub key: Option<String>,
    pub wish: Wish,
    /// How often it was sent before.
    pub retries: u32,
    /// A copy that the network made: nobody waits for its answer.
    pub echo: bool,
    /// The answer will not arrive.
    pub unheard: bool,
    pub sent_at: i64,
}

/// What an asker hears.
#[derive(Clone, Debug)]
pub enum Heard {
    Answer(Result<Answer, Error>),
    /// Nothing, for long.
    Nothing,
}

impl Letter {
    pub fn actor(&self) -> Actor {
        match &self.wish {
            Wish::Run { actor, .. } => actor.clone(),
            Wish::Claim(claim) => Actor::worker(claim.worker.as_str()),
            Wish::Start { .. } | Wish::Reconnected(_) | Wish::Broken(_) | Wish::Rerun(_) => {
                Actor::user(format!("r{}", self.request))
            }
        }
    }

    pub fn request(&self) -> Request {
        let idempotency = self.key.as_ref().map(|key| Idempotency::new(key.clone(), Digest::of(key.as_bytes())));
        let what = match self.wish.clone() {
            Wish::Start { workflow, start, run_id } => {
                let new =
                    NewRun { workflow: workflow.into(), version: None, run_id, actor: self.actor(), start: *start };
                What::Start(Box::new(new))
            }
            Wish::Run { run_id, actor, ask, groups, expected_seq, claim_next } => {
                let command = Command::new(actor, *ask);
                What::Run(Box::new(ToRun { groups, expected_seq, claim_next, ..ToRun::new(run_id, command) }))
            }
            Wish::Claim(claim) => What::Claim(claim),
            Wish::Reconnected(connection) => What::Reconnected(connection),
            Wish::Broken(connection) => What::Broken(connection),
            Wish::Rerun(rerun) => What::Rerun(Box::new(rerun)),
        };
        Request { namespace: self.namespace.clone(), idempotency, what }
    }
}
