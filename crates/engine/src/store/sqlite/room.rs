//! Room in rows that change: a row that keeps its size is overwritten where it lies. One that grows pushes its neighbours
//! off the page, and a page that was split is two pages to write, twice as often.

use abide_core::run::step::Step;

use super::super::rows::Shown;

/// Rows are as long as a multiple of this. A run of a few steps stays within one from its start to its end.
const OF_RUN: usize = 320;
/// A task that is waiting, leased and done: all within twice this.
const OF_STEP: usize = 384;

const BLANKS: &str = match str::from_utf8(&[b' '; if OF_RUN > OF_STEP { OF_RUN } else { OF_STEP }]) {
    Ok(blanks) => blanks,
    Err(_) => "",
};

/// What SQLite takes for an instant of our time.
const INSTANT: usize = 8;

/// Counts what the columns take that change with the head.
pub(super) fn keep_for_head(head: &mut String, shown: &Shown, seq: u64, wakes: bool, ended: bool) {
    let beside = shown.state.as_str().len()
        + shown.bucket.len()
        + shown.step_id.as_ref().map_or(0, |path| path.as_str().len())
        + shown.reason.map_or(0, |reason| reason.as_str().len())
        + shown.failure_kind.map_or(0, |kind| kind.as_str().len())
        + integer(seq)
        + INSTANT * (usize::from(wakes) + usize::from(ended));
    fill_up(head, beside, OF_RUN);
}

/// A pure function of the step, so that rows that are made again are the same.
pub(super) fn keep_for_step(row: &mut String, step: &Step) {
    let instants = match step.is_leased() {
        true => 2,
        // The last heartbeat stays known.
        false => usize::from(step.answered.is_some()),
    };
    fill_up(row, step.state.as_str().len() + instants * INSTANT, OF_STEP);
}

/// Blanks after a JSON text mean nothing.
fn fill_up(text: &mut String, beside: usize, room: usize) {
    let size = text.len() + beside;
    let blanks = size.next_multiple_of(room) - size;
    text.push_str(&BLANKS[..blanks]);
}

/// How many bytes SQLite stores a positive number in.
fn integer(number: u64) -> usize {
    match number {
        0..=1 => 0,
        2..=0x7f => 1,
        0x80..=0x7fff => 2,
        0x8000..=0x7f_ffff => 3,
        0x80_0000..=0x7fff_ffff => 4,
        0x8000_0000..=0x7fff_ffff_ffff => 6,
        _ => 8,
    }
}
