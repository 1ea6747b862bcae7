//! The engine of Abide: durable runs without a server. Commands go in, rules decide, one transaction keeps the log and the
//! state, and only then is anybody answered.
//!
//! With the feature `push` the engine also sends `http` steps itself: see `push::Push`.

#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod archive;
pub mod callback;
pub mod carry;
pub mod clock;
pub mod doctor;
pub mod engine;
pub mod feed;
pub mod hub;
pub mod ids;
pub mod insights;
pub mod listeners;
pub mod message;
#[cfg(feature = "push")]
pub mod push;
pub mod reads;
pub mod reply;
pub mod request;
pub mod store;
pub mod testing;

mod cache;
mod drive;
mod keeper;
mod queue;
mod worker;

pub use abide_core::run::command::Fault;
pub use callback::{Delivered, Taken};
pub use engine::{Engine, OnFatal, Options, end_the_process};
pub use reads::{Filter, Page, ReadError};
pub use request::{Answer, Error, LeasedTask, NewRun, Request, Told, What};
pub use worker::{Done, Stop, Work, Worker};
