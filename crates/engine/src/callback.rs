//! Callbacks: addresses at which a tool answers. Whoever has the token may answer once; only its digest is stored.

use abide_core::ids::{Digest, Path, RunId};
use abide_core::run::command::{Actor, Ask, Command, Json, Rejection, Reply};

use crate::engine::Engine;
use crate::request::Error;
use crate::store::sqlite::read;

/// What became of an answer that a tool sent to a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    pub run_id: RunId,
    pub step_id: Path,
    pub taken: Taken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The step waited for it and goes on.
    Applied,
    /// Nothing waits for it now. It is kept, and counts as soon as the step asks for it.
    Kept,
    /// The step has ended without it; nothing changed.
    TooLate,
}

impl Delivered {
    pub fn is_applied(&self) -> bool {
        self.taken == Taken::Applied
    }
}

impl Engine {
    /// A token for a new callback, and the digest to ask `Ask::Callback` with.
    pub fn new_callback_token(&self) -> (String, Digest) {
        let token = self.ids().token();
        let digest = digest_of_token(&token);
        (token, digest)
    }

    /// Hands a tool's answer to the step that made the callback. The token alone says whose it is.
    pub async fn deliver_callback(&self, token: &str, payload: Json) -> Result<Delivered, Error> {
        let token_hash = digest_of_token(token);
        let readers = self.readers().clone();
        let finding = tokio::task::spawn_blocking(move || readers.read(|db| read::callback(db, &token_hash.0)));
        let found = finding.await.map_err(|error| Error::StoreUnavailable(error.to_string()))?;
        let found = found.map_err(|error| Error::StoreUnavailable(error.to_string()))?;
        let Some((key, path)) = found else {
            return Err(Error::Rejected { why: Rejection::NoCallback, state: None });
        };
        let ask = Ask::CallbackAnswer { path: path.clone(), token_hash, payload };
        let command = Command::new(Actor::user("callback"), ask);
        let taken = match self.in_namespace(key.namespace).command(&key.run_id, command).await {
            Ok(told) if told.reply == Reply::Recorded => Taken::Kept,
            Ok(_) => Taken::Applied,
            Err(Error::Rejected { why: Rejection::NotWaiting { .. } | Rejection::RunTerminal(_), .. }) => {
                Taken::TooLate
            }
            Err(error) => return Err(error),
        };
        Ok(Delivered { run_id: key.run_id, step_id: path, taken })
    }
}

/// What is stored of a token.
fn digest_of_token(token: &str) -> Digest {
    Digest::of(token.as_bytes())
}
