//! Any text as a stored log: nothing that a store can hold makes reading, folding or judging it panic.

#![no_main]

use abide_core::ids::{Namespace, RunId};
use abide_core::run::event::Record;
use abide_core::run::{Working, fold, invariant};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let records: Vec<Record> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut run = Working::unborn(RunId::from("run_x"), Namespace::from("default"));
    for record in &records {
        if let Ok(event) = record.event() {
            let _ = fold(&mut run, &event);
        }
    }
    let _ = invariant::broken(&run, None, Default::default());
    let _ = invariant::broken_log(&records);
});
