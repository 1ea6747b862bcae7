//! Lists of runs: which ones, in which order, page by page.

use abide_core::contract::{FailureKind, ReasonType, RunState};
use abide_core::explain::Record;
use abide_core::ids::{Path, RunId, WorkflowId};
use abide_core::time::Timestamp;
use serde::Serialize;

use super::{Read, ReadError, Snapshot};
use crate::engine::Engine;
use crate::store::sqlite::{list, read};
use crate::store::{RunNo, Stored};

/// Longest page of a list.
pub const PAGE: usize = 500;

/// Which runs a list shows. What is not said is not asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    pub states: Vec<RunState>,
    pub workflow: Option<WorkflowId>,
    pub labels: Vec<(String, String)>,
    pub reason: Option<ReasonType>,
    pub failure_kind: Option<FailureKind>,
    pub owner_id: Option<String>,
    pub data_region: Option<String>,
    pub parent: Option<RunId>,
    /// Waits for this tool, and account.
    pub connection: Option<(String, Option<String>)>,
    pub step: Option<Path>,
    pub created_after: Option<Timestamp>,
    pub updated_before: Option<Timestamp>,
}

/// A page of runs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page {
    pub runs: Vec<Record>,
    pub next_cursor: Option<String>,
    /// The commit that this page shows.
    pub as_of: i64,
}

impl Filter {
    pub fn open() -> Filter {
        Filter::in_states(RunState::ALL.iter().copied().filter(|state| !state.is_terminal()))
    }

    pub fn terminal() -> Filter {
        Filter::in_states(RunState::ALL.iter().copied().filter(|state| state.is_terminal()))
    }

    /// Whether a record is one that this filter finds.
    pub fn fits(&self, record: &Record) -> bool {
        let same = |wanted: &Option<String>, has: &Option<String>| wanted.is_none() || wanted == has;
        let connection = |(tool, account): &(String, Option<String>)| {
            record.blocks.iter().any(|block| block.is_on_connection(tool, account.as_deref()))
        };
        (self.states.is_empty() || self.states.contains(&record.state))
            && self.workflow.as_ref().is_none_or(|workflow| *workflow == record.workflow_id)
            && self.labels.iter().all(|(name, value)| record.labels.get(name) == Some(value))
            && self.reason.is_none_or(|reason| record.blocking_reason.as_ref().is_some_and(|has| has.kind == reason))
            && self.failure_kind.is_none_or(|kind| record.failure.as_ref().is_some_and(|has| has.kind == kind))
            && same(&self.owner_id, &record.owner_id)
            && same(&self.data_region, &record.data_region)
            && self.parent.as_ref().is_none_or(|run| record.parent.as_ref().is_some_and(|has| has.run_id == *run))
            && self.connection.as_ref().is_none_or(connection)
            && self.step.as_ref().is_none_or(|step| record.step_id.as_ref() == Some(step))
            && self.created_after.is_none_or(|at| record.created_at >= at)
            && self.updated_before.is_none_or(|at| record.updated_at < at)
    }

    /// A condition that the rows of the archive cannot answer.
    fn unknown_to_the_archive(&self) -> Option<&'static str> {
        let Filter {
            states: _,
            workflow: _,
            created_after: _,
            labels,
            reason,
            failure_kind,
            owner_id,
            data_region,
            parent,
            connection,
            step,
            updated_before,
        } = self;
        let asked = [
            ("label", !labels.is_empty()),
            ("blocking_reason", reason.is_some()),
            ("failure_kind", failure_kind.is_some()),
            ("owner_id", owner_id.is_some()),
            ("data_region", data_region.is_some()),
            ("parent", parent.is_some()),
            ("connection", connection.is_some()),
            ("step", step.is_some()),
            ("updated_before", updated_before.is_some()),
        ];
        asked.into_iter().find(|(_, asked)| *asked).map(|(name, _)| name)
    }

    pub fn in_states(states: impl IntoIterator<Item = RunState>) -> Filter {
        Filter { states: states.into_iter().collect(), ..Filter::default() }
    }
}

impl Snapshot<'_> {
    pub(super) fn page(&self, filter: &Filter, before: RunNo, limit: usize) -> Stored<Page> {
        let mut found = list::list(self.db, self.namespace, filter, before, limit + 1)?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(|(no, _)| cursor_of(*no));
        let mut runs = Vec::with_capacity(found.len());
        for (_, run_id) in &found {
            if let Some(kept) = self.load(run_id)? {
                runs.push(self.record(&kept.loaded)?);
            }
        }
        Ok(Page { runs, next_cursor, as_of: read::position(self.db)? })
    }
}

impl Engine {
    /// A page of runs, newest first.
    pub async fn list(&self, filter: Filter, cursor: Option<&str>, limit: usize) -> Read<Page> {
        if limit == 0 || limit > PAGE {
            return Err(ReadError::BadLimit);
        }
        let before = match cursor {
            Some(text) => parse_cursor(text).ok_or(ReadError::BadCursor)?,
            None => RunNo::MAX,
        };
        self.read(move |snapshot| Ok(snapshot.page(&filter, before, limit)?)).await
    }

    /// A page of the archive, newest first. It is searched by what its rows say: state, workflow and time of creation.
    pub async fn list_archived(&self, filter: Filter, cursor: Option<&str>, limit: usize) -> Read<Page> {
        if limit == 0 || limit > PAGE {
            return Err(ReadError::BadLimit);
        }
        if let Some(name) = filter.unknown_to_the_archive() {
            return Err(ReadError::NotInArchive(name));
        }
        let before = match cursor {
            Some(text) => parse_cursor(text).ok_or(ReadError::BadCursor)?,
            None => RunNo::MAX,
        };
        let found = self
            .read(move |snapshot| {
                let found = list::list_archived(snapshot.db, snapshot.namespace, &filter, before, limit + 1)?;
                Ok((found, read::position(snapshot.db)?))
            })
            .await?;
        let (mut found, as_of) = found;
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(|(no, _)| cursor_of(*no));
        let mut runs = Vec::with_capacity(found.len());
        for (_, run_id) in &found {
            runs.push(self.run(run_id).await?);
        }
        Ok(Page { runs, next_cursor, as_of })
    }

    /// Runs that were made from a run.
    pub async fn reruns_of(&self, run_id: &RunId) -> Read<Vec<RunId>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| Ok(read::made_from(snapshot.db, &snapshot.key(&run_id))?)).await
    }
}

fn cursor_of(no: RunNo) -> String {
    format!("r{no:x}")
}

fn parse_cursor(text: &str) -> Option<RunNo> {
    RunNo::from_str_radix(text.strip_prefix('r')?, 16).ok().filter(|no| *no > 0)
}
