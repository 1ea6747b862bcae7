//! Which runs a filter names, newest first. Of the indexes that a filter can use, the one that knows the fewest runs is walked;
//! what the others say is asked of each run on the way. SQLite cannot choose: it does not know that a page is small and
//! everything else is large.

use abide_core::contract::{FailureKind, ReasonType, RunState};
use abide_core::ids::{Namespace, Path, RunId, WorkflowId};
use abide_core::time::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection as Db, OptionalExtension, params_from_iter};

use super::super::{RunNo, Stored, bucket};
use crate::reads::Filter;

/// More runs than this are many, whatever their number is.
const MANY: i64 = 2_000;

/// A page of runs, newest first: their ids and numbers.
pub fn list(
    db: &Db,
    namespace: &Namespace,
    filter: &Filter,
    before: RunNo,
    limit: usize,
) -> Stored<Vec<(RunNo, RunId)>> {
    let (filter, between) = (&sharpened(filter), numbers(db, filter, before)?);
    let way = fewest(db, namespace, ways(filter))?;
    let mut found = Vec::new();
    for place in &way {
        let mut query = Query::walk(namespace, place, between);
        query.filter(namespace, filter);
        query.text.push_str(&format!(" order by {}.run_no desc limit {limit}", place.table()));
        found.extend(rows_of(db, &query)?);
    }
    found.sort_by_key(|(no, _)| std::cmp::Reverse(*no));
    found.truncate(limit);
    Ok(found)
}

/// A page of the archive, newest first.
pub fn list_archived(
    db: &Db,
    namespace: &Namespace,
    filter: &Filter,
    before: RunNo,
    limit: usize,
) -> Stored<Vec<(RunNo, RunId)>> {
    let text = "select run_no, run_id from archived_runs where namespace = ? and run_no < ?".to_owned();
    let mut query = Query { text, values: vec![namespace.to_string().into(), before.into()] };
    query.states(&filter.states);
    query.and("workflow_id = ?", filter.workflow.as_ref().map(WorkflowId::to_string));
    query.and("created_at >= ?", filter.created_after.map(Timestamp::micros));
    query.text.push_str(&format!(" order by run_no desc limit {limit}"));
    rows_of(db, &query)
}

/// What a filter implies: only an open run is at a step.
fn sharpened(filter: &Filter) -> Filter {
    match filter.states.is_empty() && filter.step.is_some() {
        true => Filter { states: Filter::open().states, ..filter.clone() },
        false => filter.clone(),
    }
}

/// Runs have numbers in the order of their starts, so an instant is a number.
fn numbers(db: &Db, filter: &Filter, before: RunNo) -> Stored<(RunNo, RunNo)> {
    let first = match filter.created_after {
        Some(at) => first_since(db, at)?,
        None => 0,
    };
    // What began later was changed later too.
    let last = match filter.updated_before {
        Some(at) => first_since(db, at)?,
        None => before,
    };
    Ok((first, last.min(before)))
}

/// The number of the first run that began at an instant or later.
fn first_since(db: &Db, at: Timestamp) -> Stored<RunNo> {
    let mut next =
        db.prepare_cached("select run_no, created_at from runs where run_no >= ?1 order by run_no limit 1")?;
    let last: Option<RunNo> = db.prepare_cached("select max(run_no) from runs")?.query_row([], |row| row.get(0))?;
    let (mut low, mut high) = (0, last.map_or(0, |last| last + 1));
    while low < high {
        let middle = low + (high - low) / 2;
        let found: Option<(RunNo, i64)> =
            next.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?))).optional()?.filter(|(no, _)| *no < high);
        match found {
            Some((no, began)) if began < at.micros() => low = no + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// A place in an index where runs that a filter names stand, newest last.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    All,
    Bucket(&'static str),
    Workflow(WorkflowId),
    Owner(String),
    Region(String),
    Parent(RunId),
    Reason(ReasonType),
    Failure(FailureKind),
    Label(String, String),
    Connection(String, Option<String>),
}

impl Place {
    fn table(&self) -> &'static str {
        match self {
            Place::Label(..) => "run_labels",
            Place::Connection(..) => "connection_waits",
            Place::All
            | Place::Bucket(_)
            | Place::Workflow(_)
            | Place::Owner(_)
            | Place::Region(_)
            | Place::Parent(_)
            | Place::Reason(_)
            | Place::Failure(_) => "runs",
        }
    }

    /// The source, and the condition under which it is that place, with what is bound there.
    fn source(&self, namespace: &Namespace) -> (&'static str, &'static str, Vec<Value>) {
        let of = |value: &str| vec![namespace.to_string().into(), Value::from(value.to_owned())];
        match self {
            Place::All => ("runs not indexed", "runs.namespace = ?", vec![namespace.to_string().into()]),
            Place::Bucket(name) => ("runs indexed by runs_by_bucket", "runs.namespace = ? and bucket = ?", of(name)),
            Place::Workflow(id) => {
                ("runs indexed by runs_by_workflow", "runs.namespace = ? and workflow_id = ?", of(id.as_str()))
            }
            Place::Owner(id) => ("runs indexed by runs_by_owner", "runs.namespace = ? and owner_id = ?", of(id)),
            Place::Region(name) => {
                ("runs indexed by runs_by_region", "runs.namespace = ? and data_region = ?", of(name))
            }
            Place::Parent(id) => {
                ("runs indexed by runs_by_parent", "runs.namespace = ? and parent_run = ?", of(id.as_str()))
            }
            Place::Reason(reason) => (
                "runs indexed by runs_by_reason",
                "runs.namespace = ? and reason = ? and ended_at is null and reason is not null",
                of(reason.as_str()),
            ),
            Place::Failure(kind) => {
                ("runs indexed by runs_by_failure", "runs.namespace = ? and failure_kind = ?", of(kind.as_str()))
            }
            Place::Label(name, value) => {
                let mut values = of(name);
                values.push(value.clone().into());
                let condition = "run_labels.namespace = ? and name = ? and value = ?";
                ("run_labels cross join runs using (run_no)", condition, values)
            }
            Place::Connection(tool, account) => {
                let (mut values, source) = (of(tool), "connection_waits cross join runs using (run_no)");
                // The accounts of a tool are not in one order; who waits for them is sorted.
                let Some(account) = account else {
                    return (source, "connection_waits.namespace = ? and tool = ?", values);
                };
                values.push(account.clone().into());
                (source, "connection_waits.namespace = ? and tool = ? and account = ?", values)
            }
        }
    }
}

/// The ways on which all runs that a filter names are met, each of one or several places.
fn ways(filter: &Filter) -> Vec<Vec<Place>> {
    let mut ways: Vec<Vec<Place>> = Vec::new();
    let mut add = |place: Option<Place>| ways.extend(place.map(|place| vec![place]));
    add(filter.parent.clone().map(Place::Parent));
    add(filter.reason.map(Place::Reason));
    add(filter.failure_kind.map(Place::Failure));
    filter.labels.iter().for_each(|(name, value)| add(Some(Place::Label(name.clone(), value.clone()))));
    add(filter.connection.clone().map(|(tool, account)| Place::Connection(tool, account)));
    add(filter.owner_id.clone().map(Place::Owner));
    add(filter.workflow.clone().map(Place::Workflow));
    add(filter.data_region.clone().map(Place::Region));
    if !filter.states.is_empty() {
        ways.push(buckets(&filter.states).into_iter().map(Place::Bucket).collect());
    }
    if ways.is_empty() {
        ways.push(vec![Place::All]);
    }
    ways
}

/// The way on which the fewest runs stand.
fn fewest(db: &Db, namespace: &Namespace, mut ways: Vec<Vec<Place>>) -> Stored<Vec<Place>> {
    if ways.len() == 1 {
        return Ok(ways.remove(0));
    }
    let mut best: Option<(i64, Vec<Place>)> = None;
    for way in ways {
        let most = best.as_ref().map_or(MANY, |(count, _)| *count);
        let mut count = 0;
        for place in &way {
            count += how_many(db, namespace, place, most)?;
        }
        if best.as_ref().is_none_or(|(least, _)| count < *least) {
            best = Some((count, way));
        }
    }
    Ok(best.map(|(_, way)| way).unwrap_or_default())
}

/// How many runs stand at a place, as far as it matters: what is counted stands in the index alone.
fn how_many(db: &Db, namespace: &Namespace, place: &Place, most: i64) -> Stored<i64> {
    let (source, condition, values) = place.source(namespace);
    let source = source.split(" cross join").next().unwrap_or(source);
    let text = format!("select count(*) from (select 1 from {source} where {condition} limit {most})");
    Ok(db.prepare_cached(&text)?.query_row(params_from_iter(values), |row| row.get(0))?)
}

/// The buckets in which these states are found. A delayed start has one of its own.
fn buckets(states: &[RunState]) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    for state in states {
        for delayed in [false, true] {
            let name = bucket(*state, delayed && *state == RunState::Queued);
            if !found.contains(&name) {
                found.push(name);
            }
        }
    }
    found
}

fn rows_of(db: &Db, query: &Query) -> Stored<Vec<(RunNo, RunId)>> {
    let mut statement = db.prepare_cached(&query.text)?;
    let rows = statement
        .query_map(params_from_iter(&query.values), |row| Ok((row.get(0)?, RunId::new(row.get::<_, String>(1)?))))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// A statement that is put together from fixed pieces; what users say is only ever bound.
struct Query {
    text: String,
    values: Vec<Value>,
}

impl Query {
    /// Walks one place between two numbers.
    fn walk(namespace: &Namespace, place: &Place, (first, before): (RunNo, RunNo)) -> Query {
        let (source, condition, mut values) = place.source(namespace);
        let table = place.table();
        values.extend([Value::from(first), Value::from(before)]);
        // A run may wait for a connection at several steps.
        let distinct = if matches!(place, Place::Connection(..)) { "distinct " } else { "" };
        let text = format!(
            "select {distinct}{table}.run_no, run_id from {source}
             where {condition} and {table}.run_no >= ? and {table}.run_no < ?"
        );
        Query { text, values }
    }

    /// Everything that the filter says, also what the place says already.
    fn filter(&mut self, namespace: &Namespace, filter: &Filter) {
        self.and("runs.namespace = ?", Some(namespace.to_string()));
        self.states(&filter.states);
        self.and("workflow_id = ?", filter.workflow.as_ref().map(WorkflowId::to_string));
        self.and("reason = ?", filter.reason.map(|reason| reason.as_str().to_owned()));
        self.and("failure_kind = ?", filter.failure_kind.map(|kind| kind.as_str().to_owned()));
        self.and("owner_id = ?", filter.owner_id.clone());
        self.and("data_region = ?", filter.data_region.clone());
        self.and("parent_run = ?", filter.parent.as_ref().map(RunId::to_string));
        self.and("step_id = ?", filter.step.as_ref().map(Path::to_string));
        self.and("created_at >= ?", filter.created_after.map(Timestamp::micros));
        self.and("updated_at < ?", filter.updated_before.map(Timestamp::micros));
        for (name, value) in &filter.labels {
            self.text.push_str(
                " and exists (select 1 from run_labels as said where said.namespace = runs.namespace
                  and said.name = ? and said.value = ? and said.run_no = runs.run_no)",
            );
            self.values.extend([Value::from(name.clone()), Value::from(value.clone())]);
        }
        if let Some((tool, account)) = &filter.connection {
            self.text.push_str(
                " and runs.run_no in (select waits.run_no from connection_waits as waits
                  where waits.namespace = runs.namespace and waits.tool = ? and waits.account = coalesce(?, waits.account))",
            );
            self.values.extend([Value::from(tool.clone()), Value::from(account.clone())]);
        }
    }

    fn and(&mut self, condition: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.text.push_str(" and ");
            self.text.push_str(condition);
            self.values.push(value.into());
        }
    }

    fn states(&mut self, states: &[RunState]) {
        if !states.is_empty() {
            let marks = vec!["?"; states.len()].join(", ");
            self.text.push_str(&format!(" and state in ({marks})"));
            self.values.extend(states.iter().map(|state| Value::from(state.as_str().to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::Files;

    fn every_filter() -> Vec<Filter> {
        let all = Filter::default;
        vec![
            Filter { states: vec![RunState::Failed], ..all() },
            Filter { workflow: Some("w".into()), ..all() },
            Filter { labels: vec![("env".into(), "prod".into())], ..all() },
            Filter { reason: Some(ReasonType::ApprovalRequired), ..all() },
            Filter { failure_kind: Some(FailureKind::TimedOut), ..all() },
            Filter { owner_id: Some("ana".into()), ..all() },
            Filter { data_region: Some("eu".into()), ..all() },
            Filter { parent: Some("run_p".into()), ..all() },
            Filter { connection: Some(("drive".into(), Some("ana".into()))), ..all() },
            Filter { connection: Some(("drive".into(), None)), ..all() },
            Filter { step: Some("charge".into()), ..all() },
            Filter { created_after: Some(Timestamp::from_micros(7)), ..all() },
            Filter { updated_before: Some(Timestamp::from_micros(7)), ..all() },
        ]
    }

    #[test]
    fn every_filter_walks_an_index_in_the_order_of_the_page() {
        let db = Files::in_memory("list-plans").and_then(|files| files.writer()).expect("a database");
        let namespace = Namespace::from("default");
        for filter in every_filter() {
            let sharp = sharpened(&filter);
            for place in ways(&sharp).into_iter().flatten() {
                let mut query = Query::walk(&namespace, &place, (1, 100));
                query.filter(&namespace, &sharp);
                let text = format!("explain query plan {} order by {}.run_no desc", query.text, place.table());
                let mut statement = db.prepare(&text).expect("a statement");
                let plan = statement.query_map(params_from_iter(&query.values), |row| row.get::<_, String>(3));
                let plan: Vec<String> = plan.and_then(Iterator::collect).expect("a plan");
                let first = &plan[0];
                // By the number alone: between two of them, which instants are.
                let by_number = "SEARCH runs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)";
                let walks = first.starts_with("SEARCH") && (first.contains("INDEX") || first.contains("PRIMARY KEY"));
                assert!(walks && (place == Place::All) == (first == by_number), "{filter:?} {place:?}: {plan:#?}");
                let sorts = plan.iter().any(|line| line.contains("ORDER BY"));
                assert_eq!(sorts, matches!(place, Place::Connection(_, None)), "{filter:?} {place:?}: {plan:#?}");
            }
        }
    }

    #[test]
    fn an_instant_is_the_number_of_the_first_run_that_began_then() {
        let db = Files::in_memory("list-instants").and_then(|files| files.writer()).expect("a database");
        let text = "
            insert into runs (run_no, namespace, run_id, workflow_id, workflow_version, bucket, state, seq, created_at,
                              updated_at, pinned, head)
            values (?1, 'default', 'run_' || ?1, 'w', 1, 'active', 'queued', 1, ?2, ?2, 0, '{}')";
        assert_eq!(first_since(&db, Timestamp::from_micros(5)).expect("a number"), 0);
        // Some have left for the archive, some began together.
        for (no, at) in [(3, 10), (4, 20), (9, 20), (10, 30), (50, 40)] {
            db.execute(text, rusqlite::params![no, at]).expect("a run");
        }
        for (at, first) in [(0, 0), (10, 0), (11, 4), (20, 4), (21, 10), (40, 11), (41, 51)] {
            let found = first_since(&db, Timestamp::from_micros(at)).expect("a number");
            let began = |no: RunNo| {
                db.query_row("select min(created_at) from runs where run_no >= ?1", [no], |row| {
                    row.get::<_, Option<i64>>(0)
                })
            };
            assert!(found <= first, "{at}: {found}");
            assert!(began(found).expect("an instant").is_none_or(|began| began >= at), "{at}: {found}");
        }
    }
}
