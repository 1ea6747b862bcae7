//! The answers for people: every state is reached by playing, and what is said of it is asserted word for word.

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "explore/corpus.rs"]
mod corpus;

#[path = "explain/stage.rs"]
mod stage;

#[path = "explain/summaries.rs"]
mod summaries;

#[path = "explain/operators.rs"]
mod operators;

#[path = "explain/records.rs"]
mod records;

#[path = "explain/offers.rs"]
mod offers;

#[path = "explain/causes.rs"]
mod causes;

#[path = "explain/packets.rs"]
mod packets;

#[path = "explain/people.rs"]
mod people;

#[path = "explain/random.rs"]
mod random;

#[path = "explain/times.rs"]
mod times;
