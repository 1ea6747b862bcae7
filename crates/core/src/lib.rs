//! The rules of Abide: what a run may do, decided without clock, I/O, async or randomness.

#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod contract;
pub mod definition;
pub mod explain;
pub mod expression;
pub mod ids;
pub mod mask;
pub mod play;
pub mod run;
pub mod time;
