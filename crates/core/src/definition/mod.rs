//! Workflow documents: what they mean (model), how they are read (parse) and what is wrong with them (validate).

mod model;
mod schema;

pub use model::*;
pub use schema::{Schema, SchemaFault};
