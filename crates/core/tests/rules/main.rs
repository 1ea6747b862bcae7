//! The rules by behaviour.

mod approvals;
mod cancel_and_pause;
mod children;
mod coded;
mod flow;
mod given;
mod invariants;
mod late;
mod leases;
mod missing;
mod recovery;
mod reruns;
mod sagas;
mod seeds;
mod sensitive;
mod waits;
