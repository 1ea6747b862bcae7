//! How faults and warnings of a document are written: as compilers do, so that editors find the place.

use std::io::{self, Write};

use abide_core::definition::{DefinitionError, Fault};
use anstyle::{AnsiColor, Style};

pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const ODD: Style = AnsiColor::Yellow.on_default().bold();
pub const GOOD: Style = AnsiColor::Green.on_default();

/// Writes every fault of a refused document.
pub fn write_refusal(out: &mut impl Write, name: &str, refusal: &DefinitionError) -> io::Result<()> {
    for fault in refusal.faults() {
        write_fault(out, name, "error", BAD, fault)?;
    }
    match refusal.faults().is_empty() {
        true => writeln!(out, "{name}: {BAD}error{BAD:#}: {refusal}"),
        false => Ok(()),
    }
}

pub fn write_warnings(out: &mut impl Write, name: &str, warnings: &[Fault]) -> io::Result<()> {
    warnings.iter().try_for_each(|warning| write_fault(out, name, "warning", ODD, warning))
}

fn write_fault(out: &mut impl Write, name: &str, word: &str, style: Style, fault: &Fault) -> io::Result<()> {
    write!(out, "{name}:")?;
    for place in [fault.line, fault.column].into_iter().flatten() {
        write!(out, "{place}:")?;
    }
    write!(out, " {style}{word}{style:#}: {}", fault.message)?;
    if !fault.path.is_empty() {
        write!(out, " ({})", fault.path)?;
    }
    writeln!(out)?;
    match &fault.hint {
        Some(hint) => writeln!(out, "    hint: {hint}"),
        None => Ok(()),
    }
}
