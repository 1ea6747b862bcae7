//! The server over real sockets: a process of its own, real files, exact bytes.

#![expect(clippy::disallowed_methods, reason = "tests of a real server look at the clock")]

mod access;
mod bad_input;
mod canary;
mod connect;
#[path = "../doubtful/mod.rs"]
mod doubtful;
mod faults;
mod gates;
mod link;
mod payloads;
mod refused;
mod runs;
mod scenario;
mod screens;
mod session;
mod stage;
mod streams;
mod traces;
mod twice;
