//! The server over real sockets: a process of its own, real files, exact bytes.

mod access;
mod bad_input;
mod scenario;
mod stage;
mod streams;
mod traces;
