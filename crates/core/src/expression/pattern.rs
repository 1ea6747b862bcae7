//! Regular expressions, bounded when they are compiled: matching takes linear time, and its factor is known.

use regex::{Error, RegexBuilder};

use super::ast::Pattern;
use super::error::CompileError;

/// The largest compiled pattern: two Unicode `\w` need 98 KiB.
const MAX_PATTERN_BYTES: usize = 256 * 1024;
/// How deep groups may nest.
const MAX_PATTERN_DEPTH: u32 = 32;
/// Compiled sizes, and the fuel for each byte of text: at worst a byte takes 90 ns for each KiB of its pattern.
const CLASSES: [(usize, usize); 3] = [(8 * 1024, 1), (64 * 1024, 4), (MAX_PATTERN_BYTES, 16)];

/// The smallest class a pattern fits says what matching may cost: the automaton may visit all of it for every byte.
pub(super) fn compile(source: &str, offset: usize) -> Result<Pattern, CompileError> {
    for (max_bytes, fuel_per_byte) in CLASSES {
        let mut builder = RegexBuilder::new(source);
        builder.size_limit(max_bytes).dfa_size_limit(MAX_PATTERN_BYTES).nest_limit(MAX_PATTERN_DEPTH);
        match builder.build() {
            Ok(regex) => return Ok(Pattern { regex, fuel_per_byte }),
            Err(Error::CompiledTooBig(_)) => {}
            Err(fault) => return Err(invalid(&fault, offset)),
        }
    }
    let limit = format!("its pattern needs more than {} KiB once compiled", MAX_PATTERN_BYTES / 1024);
    Err(CompileError::too_complex(offset, limit))
}

fn invalid(fault: &Error, offset: usize) -> CompileError {
    let text = fault.to_string();
    let last_line = text.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned();
    CompileError::syntax(
        offset,
        format!("a pattern is wrong: {last_line}"),
        "patterns are written as in RE2: r'[0-9]+'",
    )
}
