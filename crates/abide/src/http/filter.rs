//! Which runs a list, a stream or a bulk action is about, from the words of a query.

use abide_api::Problem;
use abide_core::contract::{FailureKind, ReasonType, RunState};
use abide_core::ids::{Path, RunId, WorkflowId};
use abide_core::time::Timestamp;
use abide_engine::Filter;

/// The parameters of `GET /v1/runs`.
pub const NAMES: &[&str] = &[
    "state",
    "workflow",
    "label.",
    "blocking_reason",
    "failure_kind",
    "owner_id",
    "data_region",
    "parent",
    "connection",
    "step",
    "created_after",
    "updated_before",
    "archived",
    "limit",
    "cursor",
];

/// Reads pairs of names and values; `limit`, `cursor` and `archived` are the list's own.
pub fn filter<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Filter, Problem> {
    let mut filter = Filter::default();
    for (name, value) in pairs {
        match name {
            "state" => add_states(&mut filter, value)?,
            "workflow" => filter.workflow = Some(WorkflowId::from(value)),
            "blocking_reason" => {
                filter.reason =
                    Some(one_of(name, value, ReasonType::parse, ReasonType::ALL.iter().map(|one| one.as_str()))?)
            }
            "failure_kind" => {
                filter.failure_kind =
                    Some(one_of(name, value, FailureKind::parse, FailureKind::ALL.iter().map(|one| one.as_str()))?)
            }
            "owner_id" => filter.owner_id = Some(value.into()),
            "data_region" => filter.data_region = Some(value.into()),
            "parent" => filter.parent = Some(RunId::from(value)),
            "connection" => {
                let (tool, account) =
                    value.split_once('/').map_or((value, None), |(tool, account)| (tool, Some(account)));
                filter.connection = Some((tool.into(), account.map(Into::into)));
            }
            "step" => filter.step = Some(Path::from(value)),
            "created_after" => filter.created_after = Some(instant(name, value)?),
            "updated_before" => filter.updated_before = Some(instant(name, value)?),
            "limit" | "cursor" | "archived" => {}
            label if label.starts_with("label.") => {
                filter.labels.push((label["label.".len()..].into(), value.into()));
            }
            other => {
                return Err(Problem::invalid(
                    other,
                    format!("There is no such filter; there are: {}.", NAMES.join(", ")),
                ));
            }
        }
    }
    Ok(filter)
}

fn add_states(filter: &mut Filter, value: &str) -> Result<(), Problem> {
    let more = match value {
        "open" => Filter::open().states,
        "terminal" => Filter::terminal().states,
        name => vec![one_of("state", name, RunState::parse, RunState::ALL.iter().map(|one| one.as_str()))?],
    };
    for state in more {
        if !filter.states.contains(&state) {
            filter.states.push(state);
        }
    }
    Ok(())
}

fn one_of<T>(
    name: &str,
    value: &str,
    parse: impl Fn(&str) -> Option<T>,
    known: impl Iterator<Item = &'static str>,
) -> Result<T, Problem> {
    parse(value).ok_or_else(|| {
        Problem::invalid(name, format!("{value:?} is none of: {}.", known.collect::<Vec<_>>().join(", ")))
    })
}

/// An instant with its zone.
pub fn instant(name: &str, value: &str) -> Result<Timestamp, Problem> {
    let wrong = || Problem::invalid(name, format!("{value:?} is not an instant such as 2026-11-16T09:30:00Z."));
    Timestamp::parse(value).ok_or_else(wrong)
}
