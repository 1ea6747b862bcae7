//! What Abide says over HTTP: the requests it takes, the views it gives, and the problems it answers with. Server, client
//! and the OpenAPI document read the same types.

#![allow(clippy::result_large_err, reason = "a refusal is rare, and is written at once")]

#[cfg(feature = "engine")]
pub mod engine;
pub mod keys;
pub mod problem;
pub mod runs;
pub mod tasks;
pub mod views;

pub use problem::{Code, FieldError, Problem};

/// JSON text as it came in; it is stored and handed on byte for byte.
pub type Raw = Box<serde_json::value::RawValue>;

/// Text as raw JSON, when it is JSON.
pub fn raw(json: &str) -> Result<Raw, serde_json::Error> {
    serde_json::value::RawValue::from_string(json.to_owned())
}

/// Anything that can be written as JSON.
pub fn raw_of(value: &impl serde::Serialize) -> Result<Raw, serde_json::Error> {
    serde_json::value::to_raw_value(value)
}
