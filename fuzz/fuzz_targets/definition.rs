//! Any text as a workflow document: nothing panics, and a refusal always says where and why.
//!
//! `cargo fuzz run definition -s none` runs it on stable Rust.
#![no_main]

use abide_core::definition::{Definition, DefinitionError, redact};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Definition::parse(text) {
        Ok(parsed) => {
            for step in 0..parsed.definition.steps().len() {
                let pointers = parsed.definition.sensitive_inputs(step);
                let _ = redact(text, &pointers);
            }
        }
        Err(DefinitionError::TooLarge { .. }) => {}
        Err(error) => assert!(!error.faults().is_empty(), "a refusal says why"),
    }
});
