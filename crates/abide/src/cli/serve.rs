//! `abide serve`: the server, and `abide openapi`: its reference.

use std::io::{self, Write as _};

use super::Exit;
use super::server::{Network, Store, block_on};
use crate::log;

#[derive(Debug, clap::Args)]
pub struct Serve {
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    network: Network,
}

impl Serve {
    pub fn run(self) -> io::Result<Exit> {
        self.network.log("info")?;
        block_on(async {
            let engine = self.store.open()?;
            let prepared = self.network.prepare(engine).await?;
            // It serves also when nobody can read where.
            let _ = writeln!(anstream::stdout(), "listening on http://{}", prepared.server.address);
            if !prepared.api.keys.is_used() {
                log::say("no key is configured: everybody on this machine is admin of namespace default");
            }
            prepared.run().await?;
            Ok(Exit::Done)
        })?
    }
}

#[derive(Debug, clap::Args)]
pub struct Openapi {}

impl Openapi {
    pub fn run(self) -> io::Result<Exit> {
        let document = serde_json::to_string_pretty(&crate::http::openapi()).map_err(io::Error::other)?;
        writeln!(anstream::stdout(), "{document}")?;
        Ok(Exit::Done)
    }
}
