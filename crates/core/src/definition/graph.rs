//! The order of steps: what comes before what, cycles, jumps and joins.

use std::collections::{BTreeMap, BTreeSet};

use super::fault::FaultCode;
use super::model::{Action, StepDef};
use super::reader::{Reader, Where};

/// A `go_to` as it is written.
#[derive(Debug)]
pub(super) struct JumpUse {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) max_visits: Option<u32>,
    pub(super) stands: Where,
}

/// A `join_child` as it is written.
#[derive(Debug)]
pub(super) struct JoinUse {
    pub(super) from: usize,
    pub(super) child: usize,
    pub(super) stands: Where,
}

/// Which steps have ended when another starts.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) ids: BTreeMap<String, usize>,
    /// For every step the steps before it, one bit each; none when the order has a cycle.
    before: Option<Vec<Vec<u64>>>,
    finally: Vec<bool>,
}

impl Graph {
    /// Reports every cycle.
    pub(super) fn new(reader: &mut Reader, steps: &[StepDef], places: &[Where], ids: BTreeMap<String, usize>) -> Graph {
        let order = in_order(steps, &mut |cycle| report_cycle(reader, steps, places, &cycle));
        let before = order.map(|order| ancestors(steps, &order));
        Graph { ids, before, finally: steps.iter().map(|step| step.finally).collect() }
    }

    /// Whether `earlier` has always ended when `later` starts. With a cycle nothing is known, and nothing is refused.
    pub(super) fn is_before(&self, earlier: usize, later: usize) -> bool {
        let Some(before) = &self.before else { return true };
        before.get(later).and_then(|bits| bits.get(earlier / 64)).is_some_and(|bits| bits >> (earlier % 64) & 1 == 1)
    }

    /// `finally` steps run when everything else has ended, in whatever state.
    pub(super) fn may_read(&self, reader: usize, read: usize) -> bool {
        self.is_before(read, reader) || reader != read && self.finally.get(reader) == Some(&true)
    }

    pub(super) fn check_jumps(&self, reader: &mut Reader, steps: &[StepDef]) {
        for jump in std::mem::take(&mut reader.jumps) {
            let (Some(from), Some(to)) = (steps.get(jump.from), steps.get(jump.to)) else { continue };
            let back = jump.from == jump.to || self.is_before(jump.to, jump.from);
            let stands = &jump.stands;
            if from.finally || to.finally {
                reader.fault(FaultCode::BadJump, stands, "`go_to` neither leaves nor enters `finally` steps");
            } else if from.for_each.is_some() || from.repeat.is_some() {
                let message = "`go_to` cannot leave a step with `for_each` or `repeat`";
                reader.fault_with_hint(FaultCode::BadJump, stands, message, "put the loop into a child workflow");
            } else if !back && !self.is_before(jump.from, jump.to) {
                let message = format!("`{}` runs beside this step, neither before nor after it", to.id);
                reader.fault(FaultCode::BadJump, stands, message);
            } else if back && jump.max_visits.is_none() {
                let message = format!("`{}` comes before this step, so the run could go round for ever", to.id);
                let hint = "say how often: `max_visits: 3` beside `go_to`";
                reader.fault_with_hint(FaultCode::NeedsMaxVisits, stands, message, hint);
            } else if !back && jump.max_visits.is_some() {
                let message = format!("`max_visits` does nothing: `{}` comes after this step", to.id);
                reader.fault(FaultCode::DoesNotFit, stands, message);
            }
        }
    }

    pub(super) fn check_joins(&self, reader: &mut Reader, steps: &[StepDef]) {
        for join in std::mem::take(&mut reader.joins) {
            let Some(child) = steps.get(join.child) else { continue };
            if !matches!(child.action, Action::Child { wait: false, .. }) {
                let message = format!("`{}` does not start a child without waiting for it", child.id);
                let hint = "join a step that has `child` and `wait: false`";
                reader.fault_with_hint(FaultCode::BadJoin, &join.stands, message, hint);
            } else if !self.is_before(join.child, join.from) {
                let message = format!("`{}` need not have started its child yet", child.id);
                let hint = format!("add `{}` to `after`", child.id);
                reader.fault_with_hint(FaultCode::BadJoin, &join.stands, message, hint);
            }
        }
    }

    /// Warns where a step goes on with one branch while another that nothing waits for is open.
    pub(super) fn warn_of_partial_joins(&self, reader: &mut Reader, steps: &[StepDef], places: &[Where]) {
        let body = steps.iter().take_while(|step| !step.finally).count();
        for (leaf, ended) in steps.iter().enumerate().take(body).filter(|(_, step)| step.before.is_empty()) {
            // A step after the common start opens one more branch; one after a branch goes on without the others.
            let passes = |step: usize| match steps[step].after[..] {
                [only] => !self.is_before(leaf, step) && !self.is_before(only, leaf),
                _ => false,
            };
            if let Some(step) = (leaf + 1..body).find(|&step| passes(step)) {
                let message = format!(
                    "`{}` starts after `{}` alone, while `{}` may still be open",
                    steps[step].id, steps[steps[step].after[0]].id, ended.id
                );
                let hint = format!("add `{}` to `after` if it should be waited for", ended.id);
                reader.warn(FaultCode::PartialJoin, &places[step], message, hint);
            }
        }
    }
}

/// Notes for every step who comes right after it.
pub(super) fn link(steps: &mut [StepDef]) {
    for step in 0..steps.len() {
        for before in steps[step].after.clone() {
            steps[before].before.push(step);
        }
    }
}

/// The steps in an order in which each comes after those it waits for, or none if there is a cycle.
fn in_order(steps: &[StepDef], report: &mut impl FnMut(Vec<usize>)) -> Option<Vec<usize>> {
    let mut waits: Vec<usize> = steps.iter().map(|step| step.after.len()).collect();
    let mut done = vec![false; steps.len()];
    let mut order = Vec::with_capacity(steps.len());
    let mut sound = true;
    let mut ready: Vec<usize> = (0..steps.len()).filter(|&step| waits[step] == 0).collect();
    loop {
        while let Some(step) = ready.pop() {
            if std::mem::replace(&mut done[step], true) {
                continue;
            }
            order.push(step);
            for &next in &steps[step].before {
                waits[next] = waits[next].saturating_sub(1);
                if waits[next] == 0 {
                    ready.push(next);
                }
            }
        }
        let Some(stuck) = done.iter().position(|done| !done) else { break };
        // Taken as done once it is reported, so that the cycles behind it are found too.
        let cycle = cycle_from(steps, &done, stuck);
        ready.extend(&cycle);
        report(cycle);
        sound = false;
    }
    sound.then_some(order)
}

/// Follows steps that are not done backwards until one comes again.
fn cycle_from(steps: &[StepDef], done: &[bool], start: usize) -> Vec<usize> {
    let mut trail = vec![start];
    let mut seen = BTreeSet::from([start]);
    let mut step = start;
    while let Some(&next) = steps[step].after.iter().find(|&&before| !done[before]) {
        if !seen.insert(next) {
            let from = trail.iter().position(|&step| step == next).unwrap_or(0);
            trail.drain(..from);
            break;
        }
        trail.push(next);
        step = next;
    }
    trail.reverse();
    trail
}

fn report_cycle(reader: &mut Reader, steps: &[StepDef], places: &[Where], cycle: &[usize]) {
    let first = cycle.iter().enumerate().min_by_key(|(_, step)| **step).map_or(0, |(n, _)| n);
    let turned = cycle[first..].iter().chain(&cycle[..first]);
    let mut names: Vec<&str> = turned.map(|&step| steps[step].id.as_str()).collect();
    names.extend(names.first().copied());
    let message = format!("these steps wait for each other: {}", names.join(" → "));
    let place = cycle.get(first).and_then(|&step| places.get(step)).cloned().unwrap_or_default();
    reader.fault_with_hint(
        FaultCode::Cycle,
        &place,
        message,
        "take one of them out of the other's `after`; `go_to` goes back",
    );
}

fn ancestors(steps: &[StepDef], order: &[usize]) -> Vec<Vec<u64>> {
    let words = steps.len().div_ceil(64);
    let mut before = vec![vec![0u64; words]; steps.len()];
    for &step in order {
        let mut own = vec![0u64; words];
        for &earlier in &steps[step].after {
            own[earlier / 64] |= 1 << (earlier % 64);
            own.iter_mut().zip(&before[earlier]).for_each(|(own, theirs)| *own |= theirs);
        }
        before[step] = own;
    }
    before
}
