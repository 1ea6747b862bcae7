//! A run held in memory: it loads for each command only what a store would, so that tests and plays meet the same rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::command::{Command, Json, Rejection};
use super::event::Record;
use super::step::Step;
use super::{Advanced, Around, Broken, Need, Stop, Working, advance, first_needs, replay};
use crate::definition::Definition;
use crate::ids::{Namespace, Path, PayloadName, RunId};
use crate::time::Timestamp;

/// How often a decision may ask for more rows; each time it gets at least one.
const MOST_LOADS: usize = 100_000;

/// One run with its log, rows and payloads.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The head and the open rows.
    pub working: Working,
    pub rows: BTreeMap<Path, Arc<Step>>,
    pub payloads: BTreeMap<PayloadName, Json>,
    pub log: Vec<Record>,
    pub wake_at: Option<Timestamp>,
    /// How many times a decision had to ask for rows that `first_needs` did not name.
    pub second_loads: u64,
}

impl Memory {
    pub fn new(run_id: RunId, namespace: Namespace) -> Memory {
        Memory {
            working: Working::unborn(run_id, namespace),
            rows: BTreeMap::new(),
            payloads: BTreeMap::new(),
            log: Vec::new(),
            wake_at: None,
            second_loads: 0,
        }
    }

    /// Decides a command and keeps what it led to.
    pub fn apply(
        &mut self,
        definition: &Definition,
        command: &Command,
        around: &Around,
        now: Timestamp,
    ) -> Result<Advanced, Rejection> {
        let decided = self.decide(definition, command, around, now);
        match &decided {
            Ok(advanced) => self.keep(advanced),
            Err(_) => self.working.release(),
        }
        decided
    }

    /// The run with everything loaded that this command needs; nothing is kept of what it leads to.
    pub fn prepared(&mut self, definition: &Definition, command: &Command, around: &Around, now: Timestamp) -> Working {
        let _ = self.decide(definition, command, around, now);
        let prepared = self.working.clone();
        self.working.release();
        prepared
    }

    /// Decides, and loads until nothing is missing.
    fn decide(
        &mut self,
        definition: &Definition,
        command: &Command,
        around: &Around,
        now: Timestamp,
    ) -> Result<Advanced, Rejection> {
        let needs = first_needs(&self.working, definition, &command.ask);
        self.load(&needs);
        for _ in 0..MOST_LOADS {
            match advance(&self.working, definition, command, around, now) {
                Ok(advanced) => return Ok(advanced),
                Err(Stop::Rejected(rejection)) => return Err(rejection),
                Err(Stop::Needs(needs)) => {
                    self.second_loads += 1;
                    self.load(&needs);
                }
            }
        }
        Err(Rejection::Bug("a decision asks for rows without end".into()))
    }

    fn load(&mut self, needs: &[Need]) {
        for need in needs {
            match need {
                Need::Step(path) => {
                    self.working.steps.insert(path.clone(), self.rows.get(path).cloned());
                }
                Need::Payload(name) => {
                    let json = self.payloads.get(name).cloned().unwrap_or_else(|| "null".into());
                    self.working.payloads.insert(name.clone(), json);
                }
            }
        }
    }

    fn keep(&mut self, advanced: &Advanced) {
        for path in &advanced.changed {
            if let Some(Some(row)) = advanced.run.steps.get(path) {
                self.rows.insert(path.clone(), row.clone());
            }
        }
        self.payloads.extend(advanced.payloads.iter().cloned());
        self.log.extend(advanced.records.iter().cloned());
        self.wake_at = advanced.wake_at;
        self.working = advanced.run.clone();
        self.working.release();
    }

    /// The run with all its rows.
    pub fn whole(&self) -> Working {
        let steps = self.rows.iter().map(|(path, row)| (path.clone(), Some(row.clone()))).collect();
        Working { head: self.working.head.clone(), steps, payloads: BTreeMap::new() }
    }

    /// The run made again from its log alone.
    pub fn replayed(&self) -> Result<Working, Broken> {
        let head = &self.working.head;
        replay(Working::unborn(head.run_id.clone(), head.namespace.clone()), &self.log)
    }

    pub fn output_of(&self, path: &str) -> Option<&Json> {
        self.payloads.get(&Path::from(path).payload("output"))
    }
}
