//! The rows behind the numbers: counters and histograms, and how far the log was folded into them.

use abide_core::ids::{Namespace, WorkflowId};
use rusqlite::{Connection as Db, OptionalExtension, params};

use super::super::{RunNo, Stored};
use super::corrupt;
use crate::insights::{Added, Counted, Histogram, Measure, OTHER, TOOLS};

pub fn position(db: &Db) -> Stored<i64> {
    let found = db.prepare_cached("select batch from insights_position")?.query_row([], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or(0))
}

/// Where a run belongs: its namespace, its workflow and the version of that.
pub fn place_of(db: &Db, no: RunNo) -> Stored<Option<(Namespace, WorkflowId, u32)>> {
    let text = "select namespace, workflow_id, workflow_version from runs where run_no = ?1";
    let found = db.prepare_cached(text)?.query_row([no], |row| {
        Ok((Namespace::new(row.get::<_, String>(0)?), WorkflowId::new(row.get::<_, String>(1)?), row.get(2)?))
    });
    Ok(found.optional()?)
}

/// Adds what a page of commits brought, and remembers how far that was: both or neither.
pub(super) fn add(db: &Db, position: i64, added: &Added) -> Stored {
    for (measure, (count, histogram)) in &added.0 {
        add_one(db, measure, *count, histogram)?;
    }
    let text = "
        insert into insights_position (one, batch) values (1, ?1) on conflict do update set batch = excluded.batch";
    db.prepare_cached(text)?.execute([position])?;
    Ok(())
}

fn add_one(db: &Db, measure: &Measure, count: u64, histogram: &Histogram) -> Stored {
    let (namespace, workflow) = (measure.namespace.as_str(), measure.workflow.as_str());
    let tool = if has_room(db, measure)? { measure.tool.as_str() } else { OTHER };
    let mut whole = histogram.clone();
    if histogram.count() > 0 {
        let text = "
            select histogram from insights
            where  namespace = ?1 and workflow_id = ?2 and tool = ?3 and metric = ?4 and of = ?5";
        let key = params![namespace, workflow, tool, measure.metric, measure.of];
        let known: Option<Option<String>> = db.prepare_cached(text)?.query_row(key, |row| row.get(0)).optional()?;
        if let Some(Some(text)) = known {
            whole.merge(&serde_json::from_str::<Histogram>(&text).map_err(corrupt)?);
        }
    }
    let text = "
        insert into insights (namespace, workflow_id, tool, metric, of, count, histogram)
        values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        on conflict do update set count = count + excluded.count, histogram = excluded.histogram";
    let whole = if whole.count() == 0 { None } else { Some(super::write::json(&whole)?) };
    let row = params![namespace, workflow, tool, measure.metric, measure.of, count as i64, whole];
    db.prepare_cached(text)?.execute(row)?;
    Ok(())
}

/// Whether a tool is counted under its own name: it is already, or there are not too many yet.
fn has_room(db: &Db, measure: &Measure) -> Stored<bool> {
    if measure.tool.is_empty() || measure.tool == OTHER {
        return Ok(true);
    }
    let (namespace, workflow) = (measure.namespace.as_str(), measure.workflow.as_str());
    let text = "select 1 from insights where namespace = ?1 and workflow_id = ?2 and tool = ?3 limit 1";
    if db.prepare_cached(text)?.exists([namespace, workflow, &measure.tool])? {
        return Ok(true);
    }
    let text = "
        select count(distinct tool) from insights
        where  namespace = ?1 and workflow_id = ?2 and tool not in ('', ?3)";
    let tools: i64 = db.prepare_cached(text)?.query_row([namespace, workflow, OTHER], |row| row.get(0))?;
    Ok(tools < TOOLS as i64)
}

/// What is known of one workflow, or of all together.
pub fn rows(db: &Db, namespace: &Namespace, workflow: Option<&WorkflowId>) -> Stored<Vec<Counted>> {
    Ok(rows_of(db, namespace, workflow)?.into_iter().map(|(_, row)| row).collect())
}

/// The same rows, each with its workflow.
pub fn rows_of(db: &Db, namespace: &Namespace, workflow: Option<&WorkflowId>) -> Stored<Vec<(WorkflowId, Counted)>> {
    let text = "
        select workflow_id, tool, metric, of, count, histogram from insights
        where  namespace = ?1 and workflow_id = coalesce(?2, workflow_id)";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![namespace.as_str(), workflow.map(WorkflowId::as_str)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let histogram: Option<String> = row.get(5)?;
        let times = histogram.map(|text| serde_json::from_str(&text).map_err(corrupt)).transpose()?;
        let counted = Counted {
            tool: row.get(1)?,
            metric: row.get(2)?,
            of: row.get(3)?,
            count: row.get::<_, i64>(4)? as u64,
            times: times.unwrap_or_default(),
        };
        found.push((WorkflowId::new(row.get::<_, String>(0)?), counted));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insights::Insights;

    const BEFORE: &str = "
        insert into insights (namespace, workflow_id, metric, of, count) values
            ('default', 'w', 'started', '', 4), ('default', 'w', 'issued', 'bank.pay', 3),
            ('default', 'w', 'issued_again', 'bank.pay', 1), ('default', 'w', 'auth_blocked', 'gmail', 2),
            ('default', 'w', 'entered', 'waiting_on_auth', 2)";

    /// The schema as it is, with what was counted before there were tools.
    fn migrated(counted: &str) -> Db {
        let db = Db::open_in_memory().expect("a database");
        let made = db
            .execute_batch(include_str!("migrations/001_runs.sql"))
            .and_then(|()| db.execute_batch(counted))
            .and_then(|()| db.execute_batch(include_str!("migrations/005_tools.sql")));
        made.expect("the schema");
        db
    }

    #[test]
    fn what_was_counted_by_handler_is_taken_over() {
        let db = migrated(BEFORE);
        let known = Insights::of(&rows(&db, &Namespace::from("default"), None).expect("rows"));
        assert_eq!((known.runs, known.auth_blocked_rate), (4, 0.5));
        assert_eq!((known.tools["bank.pay"].issued, known.tools["bank.pay"].again), (3, 1));
        assert_eq!((known.tools["gmail"].auth_blocked, known.tools.len()), (2, 2));
    }

    #[test]
    fn tools_beyond_the_limit_are_counted_together() {
        let db = migrated("");
        let issued = |tool: String| Measure {
            namespace: Namespace::from("default"),
            workflow: WorkflowId::from("w"),
            tool,
            metric: "issued",
            of: "",
        };
        let page = |tools: std::ops::Range<usize>| {
            Added(tools.map(|n| (issued(format!("tool-{n:04}")), (1, Histogram::default()))).collect())
        };
        add(&db, 1, &page(0..TOOLS + 50)).expect("added");
        // What is known keeps its name.
        add(&db, 2, &page(0..1)).expect("added");
        let known = Insights::of(&rows(&db, &Namespace::from("default"), None).expect("rows")).tools;
        assert_eq!((known.len(), known[OTHER].issued, known["tool-0000"].issued), (TOOLS + 1, 50, 2));
        assert_eq!(position(&db).expect("a position"), 2);
    }
}
