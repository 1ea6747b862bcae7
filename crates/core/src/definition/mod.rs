//! Workflow documents: what they mean (model), how they are read (parse) and what is wrong with them (fault).

mod action;
mod canonical;
mod duration;
mod fault;
mod graph;
mod marks;
mod model;
mod outcome;
mod parse;
mod reader;
mod schema;
mod scope;
mod sensitive;
mod step;
mod yaml;

#[cfg(test)]
mod tests;

pub use duration::parse_duration;
pub use fault::{DefinitionError, Fault, FaultCode, LARGEST_DOCUMENT_BYTES, Parsed};
pub use model::*;
pub use schema::{MOST_NODES, MOST_STEPS, Schema, SchemaError, SchemaFault, TooComplex, TooCostly};
pub use sensitive::{pieces_at, redact};
