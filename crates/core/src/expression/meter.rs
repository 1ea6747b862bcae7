//! Fuel: what an evaluation may still do.

use std::fmt;

/// Skipping over text is cheap, but not free: many names may lead into one large text.
pub(super) const BYTES_SKIPPED_PER_UNIT: usize = 1024;
const BYTES_MADE_PER_UNIT: usize = 64;

/// The fuel that is left.
#[derive(Debug)]
pub(super) struct Meter {
    left: usize,
    exhausted: bool,
}

/// There was not enough fuel.
#[derive(Debug)]
pub(super) struct Exhausted;

impl Meter {
    pub(super) fn new(fuel: usize) -> Meter {
        Meter { left: fuel, exhausted: false }
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    pub(super) fn spend(&mut self, units: usize) -> Result<(), Exhausted> {
        self.exhausted |= units > self.left;
        self.left = self.left.saturating_sub(units);
        if self.exhausted { Err(Exhausted) } else { Ok(()) }
    }

    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.spend(bytes / BYTES_MADE_PER_UNIT)
    }

    pub(super) fn spend_skipped(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.spend(bytes / BYTES_SKIPPED_PER_UNIT)
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of fuel")
    }
}
