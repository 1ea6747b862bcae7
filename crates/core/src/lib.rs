//! The rules of Abide: what a run may do, decided without clock, I/O, async or randomness.

pub mod expression;
pub mod time;
