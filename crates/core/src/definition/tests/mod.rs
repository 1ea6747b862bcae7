//! What documents mean, and how the faults of those that mean nothing are told.

mod attacks;
mod faults;
mod hashes;
mod meaning;
mod random;
mod redaction;
mod warnings;

use super::*;

const ORDER: &str = include_str!("order.yaml");

fn parsed(text: &str) -> Parsed {
    match Definition::parse(text) {
        Ok(parsed) => parsed,
        Err(error) => panic!("{}", listed(error.faults())),
    }
}

fn refused(text: &str) -> DefinitionError {
    Definition::parse(text).expect_err("the document should be refused")
}

fn listed(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("{} {fault}\n", fault.code)).collect()
}

/// A document of these steps, written as flow mappings or indented by two; the first is on line 3.
fn of_steps(steps: &str) -> String {
    format!("workflow: w\nsteps:\n{steps}")
}
