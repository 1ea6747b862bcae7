//! The rows behind the numbers: counters and histograms, and how far the log was folded into them.

use abide_core::ids::{Namespace, WorkflowId};
use rusqlite::{Connection as Db, OptionalExtension, params};

use super::super::Stored;
use super::corrupt;
use crate::insights::{Added, Histogram};

pub fn position(db: &Db) -> Stored<i64> {
    let found = db.prepare_cached("select batch from insights_position")?.query_row([], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or(0))
}

/// Adds what a page of commits brought, and remembers how far that was: both or neither.
pub(super) fn add(db: &Db, position: i64, added: &Added) -> Stored {
    for (measure, (count, histogram)) in &added.0 {
        let key = params![measure.namespace.as_str(), measure.workflow.as_str(), measure.metric, measure.of];
        let text = "
            select histogram from insights where namespace = ?1 and workflow_id = ?2 and metric = ?3 and of = ?4";
        let known: Option<Option<String>> = db.prepare_cached(text)?.query_row(key, |row| row.get(0)).optional()?;
        let mut whole = histogram.clone();
        if let Some(Some(text)) = known {
            whole.merge(&serde_json::from_str::<Histogram>(&text).map_err(corrupt)?);
        }
        let text = "
            insert into insights (namespace, workflow_id, metric, of, count, histogram) values (?1, ?2, ?3, ?4, ?5, ?6)
            on conflict do update set count = count + excluded.count, histogram = excluded.histogram";
        let whole = if whole.count() == 0 { None } else { Some(super::write::json(&whole)?) };
        db.prepare_cached(text)?.execute(params![
            measure.namespace.as_str(),
            measure.workflow.as_str(),
            measure.metric,
            measure.of,
            *count as i64,
            whole
        ])?;
    }
    let text = "
        insert into insights_position (one, batch) values (1, ?1) on conflict do update set batch = excluded.batch";
    db.prepare_cached(text)?.execute([position])?;
    Ok(())
}

/// Metric, of what, count and times.
pub type Counted = (String, String, u64, Histogram);

/// What is known of one workflow, or of all together.
pub fn rows(db: &Db, namespace: &Namespace, workflow: Option<&WorkflowId>) -> Stored<Vec<Counted>> {
    Ok(rows_of(db, namespace, workflow)?.into_iter().map(|(_, row)| row).collect())
}

/// The same rows, each with its workflow.
pub fn rows_of(db: &Db, namespace: &Namespace, workflow: Option<&WorkflowId>) -> Stored<Vec<(WorkflowId, Counted)>> {
    let text = "
        select metric, of, count, histogram, workflow_id from insights
        where  namespace = ?1 and workflow_id = coalesce(?2, workflow_id)";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![namespace.as_str(), workflow.map(WorkflowId::as_str)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let histogram: Option<String> = row.get(3)?;
        let histogram = histogram.map(|text| serde_json::from_str(&text).map_err(corrupt)).transpose()?;
        let counted = (row.get(0)?, row.get(1)?, row.get::<_, i64>(2)? as u64, histogram.unwrap_or_default());
        found.push((WorkflowId::new(row.get::<_, String>(4)?), counted));
    }
    Ok(found)
}
