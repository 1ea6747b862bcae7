//! The Rust SDK of Abide: a client for everything the API offers, a worker that takes care of leases, and durable
//! functions.
//!
//! ```no_run
//! use abide_client::{Client, Failure, Work, Worker};
//! use serde_json::{Value, json};
//!
//! async fn greet(work: Work) -> Result<Value, Failure> {
//!     let input: Value = work.input()?;
//!     Ok(json!({ "text": format!("Hello, {}", input["name"]) }))
//! }
//!
//! # async fn example() -> Result<(), abide_client::Error> {
//! let client = Client::new("http://127.0.0.1:7070")?;
//! Worker::new(client, "greeter").handle("greet", greet).run().await
//! # }
//! ```

mod body;
mod call;
mod client;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod failure;
mod ids;
mod lease;
mod reports;
mod stream;
mod tasks;
mod work;
mod worker;

pub use abide_api as api;
pub use abide_api::Problem;
pub use abide_core::contract::{FailureClass, RunState, StepState};
pub use body::{Attempt, Ctx, StepOptions};
pub use call::{Answer, Call};
pub use client::{Client, Filter};
pub use error::Error;
pub use failure::Failure;
pub use reqwest::Method;
pub use stream::{Message, Seen, Watch};
pub use tasks::{Asking, Item, Reply, Said, Tasks};
pub use work::{Approval, Decision, Effect, Work};
pub use worker::{Stop, Worker};
