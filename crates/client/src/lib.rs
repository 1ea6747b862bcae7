//! The Rust SDK of Abide: a client, a worker loop, durable functions.
