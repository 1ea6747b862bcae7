//! Where requests wait for the lane: bounded, and what workers say comes before what is new.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::run::command::Ask;

use crate::request::{Asked, Error, What};

/// Requests that may wait in each of the two lines.
const MOST_WAITING: usize = 8_192;
/// What may wait altogether, in bytes of payload.
const MOST_BYTES: usize = 128 << 20;
/// What one transaction takes at most.
const BATCH: usize = 1_024;
const BATCH_BYTES: usize = 32 << 20;
/// Of every batch, new work gets at least this share, so that it never starves.
const SHARE_OF_NEW: usize = BATCH / 8;

#[derive(Debug, Default)]
pub struct Requests {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    /// What holders of leases say: heartbeats, completions, and the like.
    reports: VecDeque<(Asked, usize)>,
    others: VecDeque<(Asked, usize)>,
    bytes: usize,
    closed: bool,
}

impl Requests {
    /// Puts a request in line, or says why not.
    pub fn push(&self, asked: Asked) -> Result<(), Error> {
        let (report, bytes) = (is_report(&asked), bytes_of(&asked));
        let mut lines = self.lock();
        if lines.closed {
            return Err(Error::ShuttingDown);
        }
        let line = if report { &lines.reports } else { &lines.others };
        if line.len() >= MOST_WAITING || lines.bytes + bytes > MOST_BYTES {
            return Err(Error::Overloaded);
        }
        lines.bytes += bytes;
        let line = if report { &mut lines.reports } else { &mut lines.others };
        line.push_back((asked, bytes));
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for requests, at most so long, and takes what one transaction can carry. `None`: closed and empty.
    pub fn take(&self, wait: Duration) -> Option<Vec<Asked>> {
        let mut lines = self.lock();
        if lines.is_empty() && !lines.closed {
            (lines, _) = self.changed.wait_timeout(lines, wait).unwrap_or_else(PoisonError::into_inner);
        }
        if lines.is_empty() && lines.closed {
            return None;
        }
        Some(lines.batch())
    }

    /// Nothing more is let in; what waits is still carried.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn is_empty(&self) -> bool {
        self.reports.is_empty() && self.others.is_empty()
    }

    fn batch(&mut self) -> Vec<Asked> {
        let for_new = SHARE_OF_NEW.min(self.others.len());
        let mut room = BATCH_BYTES;
        let mut batch = Vec::with_capacity((self.reports.len() + self.others.len()).min(BATCH));
        take_from(&mut self.reports, BATCH - for_new, &mut room, &mut batch);
        let left = BATCH - batch.len();
        take_from(&mut self.others, left, &mut room, &mut batch);
        self.bytes -= BATCH_BYTES.saturating_sub(room);
        batch
    }
}

/// At least one, so that a large request passes too.
fn take_from(line: &mut VecDeque<(Asked, usize)>, most: usize, room: &mut usize, batch: &mut Vec<Asked>) {
    for _ in 0..most {
        match line.front() {
            Some((_, bytes)) if *bytes <= *room || batch.is_empty() => {}
            _ => return,
        }
        if let Some((asked, bytes)) = line.pop_front() {
            *room = room.saturating_sub(bytes);
            batch.push(asked);
        }
    }
}

fn is_report(asked: &Asked) -> bool {
    match &asked.request.what {
        What::Run(to_run) => to_run.command.ask.holding().is_some(),
        _ => false,
    }
}

fn bytes_of(asked: &Asked) -> usize {
    let of_payload = match &asked.request.what {
        What::Start(new) => new.start.input.len(),
        What::Register(register) => register.document.len(),
        What::Rerun(rerun) => rerun.input.as_ref().map_or(0, |input| input.len()),
        What::Run(to_run) => match &to_run.command.ask {
            Ask::Complete { report, .. } => report.output.as_ref().map_or(0, |output| output.len()),
            Ask::Effect { result, .. } => result.as_ref().map_or(0, |result| result.len()),
            Ask::Signal { payload, .. } | Ask::CallbackAnswer { payload, .. } => payload.len(),
            Ask::Steps { done, .. } => {
                let outputs = done.iter().filter_map(|done| done.result.as_ref().ok()?.output.as_ref());
                outputs.map(|output| output.len()).sum()
            }
            _ => 0,
        },
        What::Tidy(tidy) => tidy.runs.iter().map(|run| run.bundle.len()).sum(),
        What::Claim(_) | What::Reconnected(_) | What::Broken(_) | What::Count(_) => 0,
    };
    // A request is not free even when it carries nothing.
    of_payload + 512
}
