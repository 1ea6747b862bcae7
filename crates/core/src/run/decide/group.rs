//! `for_each` and `repeat`: opening items and rounds, and deciding once when there are enough.

use crate::contract::{Failure, FailureClass, FailureKind, StepState};
use crate::definition::{Join, StepDef};
use crate::expression::split_list;
use crate::ids::Path;
use crate::run::advance::{Decided, Draft};
use crate::run::command::Json;
use crate::run::event::Fact;
use crate::run::limits;
use crate::run::scope::Here;
use crate::run::step::{Block, Group, Place, ProofBy, Role, Step, Wait};

use super::flow::Opening;

/// Items of one `for_each`.
const MOST_ITEMS: usize = 100_000;

impl Draft<'_> {
    pub(super) fn fan_out(&mut self, opening: Opening, def: &StepDef) -> Decided {
        let Some(each) = &def.for_each else { return Ok(()) };
        let opening = Opening { place: Place { role: Role::Fan, ..opening.place }, ..opening };
        let here = Here::at(None, None, def);
        let list = match self.evaluate(&each.list, &here)? {
            Ok(list) => list,
            Err(error) => return self.open_broken(&opening, &error),
        };
        let items = match split_list(&list) {
            Some(items) if items.len() <= MOST_ITEMS => items,
            Some(items) => {
                let message = format!("for_each got {} items; at most {MOST_ITEMS} are possible", items.len());
                return self.open_unusable(&opening, &message);
            }
            None => {
                return self.open_unusable(&opening, "for_each needs a list, and its expression gave something else");
            }
        };
        for (n, piece) in items.chunks(limits::ITEMS_PER_PIECE).enumerate() {
            self.store(opening.path.payload(&format!("items/{n}")), format!("[{}]", piece.join(",")).into());
        }
        let place = opening.place;
        let group = Group {
            count: items.len() as u32,
            next: 0,
            open: 0,
            done: 0,
            failed: 0,
            parallel: each.parallel,
            join: each.join,
            met: None,
            broken_off: false,
            bytes: 2,
            failures: Vec::new(),
        };
        self.enter_group(&opening.path, place, group, def)
    }

    pub(super) fn open_loop(&mut self, opening: Opening, def: &StepDef) -> Decided {
        let Some(repeat) = &def.repeat else { return Ok(()) };
        let group = Group {
            count: repeat.max,
            next: 1,
            open: 0,
            done: 0,
            failed: 0,
            parallel: 1,
            join: Join::All,
            met: None,
            broken_off: false,
            bytes: 2,
            failures: Vec::new(),
        };
        self.enter_group(&opening.path, Place { role: Role::Loop, ..opening.place }, group, def)
    }

    fn enter_group(&mut self, path: &Path, place: Place, group: Group, def: &StepDef) -> Decided {
        let deadline_at = def.deadline.filter(|_| !def.is_wait()).map(|deadline| self.now + deadline);
        let group = Some(Box::new(group));
        self.tell_of(path, Fact::StepEntered { place, group, coded: None, deadline_at })?;
        self.groups.push(path.clone());
        Ok(())
    }

    /// Looks at a group after one of its members ended, or when it was opened.
    pub(super) fn settle_group(&mut self, path: &Path) -> Decided {
        let Some(step) = self.row(path)?.filter(|step| !step.state.is_ended()) else { return Ok(()) };
        let def = self.spec(step);
        match step.place.role {
            Role::Fan => self.settle_fan(path, &def),
            Role::Loop => self.settle_loop(path, &def),
            Role::Plain | Role::Body | Role::Coded => Ok(()),
        }
    }

    fn settle_fan(&mut self, path: &Path, def: &StepDef) -> Decided {
        let Some(group) = self.must_row(path)?.group_of.clone() else { return Ok(()) };
        if group.met.is_none() {
            if let Some(met) = verdict(&group) {
                self.tell_of(path, Fact::JoinDecided { met })?;
                self.drop_open_items(path)?;
                return self.settle_fan(path, def);
            }
            return self.fill(path, def);
        }
        if group.open > 0 {
            return Ok(());
        }
        if group.met == Some(true) {
            let output = self.group_output(path, 0..group.count, group.next, group.bytes)?;
            self.complete_step(path, output, ProofBy::Engine)
        } else {
            self.fail_group(path, &group)
        }
    }

    fn fail_group(&mut self, path: &Path, group: &Group) -> Decided {
        let first = group.failures.first();
        let message = match first {
            Some(first) => {
                format!("{} of {} items failed; item {}: {}", group.failed, group.count, first.index, first.message)
            }
            None => format!("{} of {} items succeeded, fewer than the join needs", group.done, group.count),
        };
        let class = first.map_or(FailureClass::Conflict, |first| first.class);
        let class = if class == FailureClass::OutcomeUnknown { FailureClass::Fatal } else { class };
        let failure = Failure::new(FailureKind::StepFailed, class, message, self.now).coded("join_not_met");
        self.fail_step(path, failure.of(path.clone(), 1), false)
    }

    /// Opens items while there is room.
    fn fill(&mut self, path: &Path, def: &StepDef) -> Decided {
        loop {
            let step = self.must_row(path)?;
            let Some(group) = &step.group_of else { return Ok(()) };
            let room = group.open < group.parallel && group.next < group.count && !group.broken_off;
            if !room || group.met.is_some() || !self.may_issue(self.is_finally(step), Some(step)) {
                return Ok(());
            }
            let opening = member(step, group.next);
            self.open(opening, def)?;
            if let Some(group) = &self.must_row(path)?.group_of
                && verdict(group).is_some()
            {
                self.groups.push(path.clone());
                return Ok(());
            }
        }
    }

    /// A join was decided: what is still open in it is canceled, what is leased is told to stop.
    fn drop_open_items(&mut self, path: &Path) -> Decided {
        let open: Vec<(Path, bool)> = self
            .run
            .open()
            .filter(|step| step.place.parent.as_ref() == Some(path) && !step.state.is_ended())
            .map(|step| (step.path.clone(), step.is_leased()))
            .collect();
        for (item, leased) in open {
            if leased {
                self.tell_of(&item, Fact::StepUnneeded)?;
            } else {
                self.withdraw(&item, "the join was decided")?;
                if self.run.step(item.as_str()).is_some_and(|step| !step.state.is_ended()) {
                    self.tell_of(&item, Fact::StepUnneeded)?;
                }
            }
        }
        Ok(())
    }

    fn settle_loop(&mut self, path: &Path, def: &StepDef) -> Decided {
        let step = self.must_row(path)?;
        let (Some(group), Some(repeat)) = (step.group_of.clone(), &def.repeat) else { return Ok(()) };
        if group.open > 0 {
            return Ok(());
        }
        if group.next == 1 {
            let opening = member(step, 1);
            return if self.may_issue(self.is_finally(step), Some(step)) { self.open(opening, def) } else { Ok(()) };
        }
        let last = path.item(group.next - 1);
        let round = self.must_row(&last)?;
        if !round.state.is_done() {
            return match round.failure.clone().filter(|_| round.state == StepState::Failed) {
                Some(failure) => self.fail_step(path, Failure { step_id: Some(path.clone()), ..failure }, false),
                None => Ok(()),
            };
        }
        let here = self.after_round(round, def)?;
        let over = match &repeat.until {
            Some(until) => match self.matches(until, &here)? {
                Ok(over) => over,
                Err(error) => {
                    let failure = self.not_evaluated(path, &error, 1);
                    return self.fail_step(path, failure, false);
                }
            },
            None => group.next > group.count,
        };
        if over || group.broken_off {
            let rounds = 1..group.next;
            let output = if repeat.collect {
                self.group_output(path, rounds, group.next, group.bytes)?
            } else {
                Some(Json::from(self.payload(&last.payload("output"))?))
            };
            return self.complete_step(path, output, ProofBy::Engine);
        }
        if group.next > group.count {
            let message = format!("{} rounds are over and `until` does not hold", group.count);
            let failure = Failure::new(FailureKind::StepFailed, FailureClass::Fatal, message, self.now);
            return self.fail_step(path, failure.coded("repeat_exhausted").of(path.clone(), group.count), false);
        }
        self.next_round(path, group.next, repeat.every, def)
    }

    fn after_round(&self, round: &Step, def: &StepDef) -> Decided<Here> {
        let output = self.payload(&round.path.payload("output"))?;
        Ok(Here { output: Some(output.into()), ..Here::of(round, def) })
    }

    fn next_round(&mut self, path: &Path, number: u32, every: crate::time::Span, def: &StepDef) -> Decided {
        let step = self.must_row(path)?;
        if !self.may_issue(self.is_finally(step), Some(step)) {
            return Ok(());
        }
        let opening = member(step, number);
        if every.micros() == 0 {
            return self.open(opening, def);
        }
        self.row_for(&opening)?;
        let until = self.now + every;
        let block = Block::new(Wait::Timer, format!("Round {number} begins at {until}."), self.now).until(Some(until));
        self.rest(&opening.path, block)
    }

    /// The outputs of members as one list, or nothing (with a warning) when that would be too large to store.
    fn group_output(
        &mut self,
        path: &Path,
        numbers: std::ops::Range<u32>,
        issued: u32,
        bytes: u64,
    ) -> Decided<Option<Json>> {
        let not_issued = 5 * u64::from(numbers.end.saturating_sub(issued));
        if bytes + not_issued > limits::PAYLOAD_BYTES as u64 {
            let message = format!("the outputs of {path} are {bytes} bytes together; read them one by one");
            self.warn("output_too_large", message, Some(path.clone()))?;
            return Ok(None);
        }
        let list = self.list_of(numbers.map(|number| path.item(number).payload("output")))?;
        Ok(Some(list.into()))
    }
}

/// One item or round of a group.
fn member(parent: &Step, number: u32) -> Opening {
    let place = Place {
        index: parent.place.index,
        parent: Some(parent.path.clone()),
        number: Some(number),
        role: Role::Plain,
        visit: parent.place.visit,
    };
    Opening { path: parent.path.item(number), place }
}

/// Whether the join is met, can no longer be, or is still open.
fn verdict(group: &Group) -> Option<bool> {
    let need = match group.join {
        Join::All => group.count,
        Join::Any => 1,
        Join::AtLeast(n) => n,
        Join::MinSuccess(share) => (share * f64::from(group.count) - 1e-9).ceil() as u32,
    };
    if group.broken_off && group.open == 0 {
        return Some(true);
    }
    if group.done >= need {
        return Some(true);
    }
    (group.count < need || group.failed > group.count - need).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(count: u32, done: u32, failed: u32, join: Join) -> Group {
        Group {
            count,
            next: done + failed,
            open: 0,
            done,
            failed,
            parallel: 10,
            join,
            met: None,
            broken_off: false,
            bytes: 0,
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_join_is_decided_as_soon_as_it_can_be_and_not_before() {
        for (count, done, failed, join, expected) in [
            (3, 3, 0, Join::All, Some(true)),
            (3, 2, 0, Join::All, None),
            (3, 1, 1, Join::All, Some(false)),
            (0, 0, 0, Join::All, Some(true)),
            (3, 1, 0, Join::Any, Some(true)),
            (3, 0, 2, Join::Any, None),
            (3, 0, 3, Join::Any, Some(false)),
            (0, 0, 0, Join::Any, Some(false)),
            (5, 3, 2, Join::AtLeast(3), Some(true)),
            (5, 2, 3, Join::AtLeast(3), Some(false)),
            (2, 0, 0, Join::AtLeast(3), Some(false)),
            (10, 9, 0, Join::MinSuccess(0.9), Some(true)),
            (10, 8, 1, Join::MinSuccess(0.9), None),
            (10, 8, 2, Join::MinSuccess(0.9), Some(false)),
        ] {
            assert_eq!(verdict(&group(count, done, failed, join)), expected, "{done}+{failed} of {count} {join:?}");
        }
    }
}
