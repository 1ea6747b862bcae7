//! The wire on an engine: requests become what the engine is asked, its answers and errors become what is sent. The HTTP
//! server and workers in the same process use the same functions.

mod problem;
mod tasks;

pub use problem::{at_field, duration, identifier};
pub use tasks::{Caller, Says, body_state, claim, effect_key, end_attempt, make_callback, report, task_done};
