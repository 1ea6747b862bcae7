//! Who may come in: keys are kept, links are used once.

use abide_core::ids::Digest;
use abide_core::run::command::Rejection;

use super::{Batch, Lane};
use crate::request::{Access, Answer, Error};
use crate::store::{Store, Stored};

impl<S: Store> Lane<S> {
    pub(super) fn admit(&mut self, batch: &mut Batch, access: &Access) -> Result<Answer, Error> {
        batch.writes.access.push((access.clone(), batch.now));
        batch.dirty = true;
        Ok(Answer::Admitted)
    }

    /// Whether a link may decide now. One that this very batch has used is used.
    pub(super) fn usable(&mut self, batch: &Batch, token_hash: &Digest) -> Stored<Result<(), Rejection>> {
        let Some(link) = self.store.link(token_hash)? else { return Ok(Err(Rejection::NoCallback)) };
        let used = link.used_at.is_some() || batch.writes.links_used.iter().any(|(known, _)| known == token_hash);
        Ok(match (used, link.expires_at <= batch.now) {
            (true, _) => Err(Rejection::TokenUsed),
            (false, true) => Err(Rejection::TokenExpired(link.expires_at)),
            (false, false) => Ok(()),
        })
    }
}
