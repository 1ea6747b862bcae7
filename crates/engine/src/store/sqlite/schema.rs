//! Parts of the schema that a database should have and lacks: a damaged one may have lost whole tables.

use std::collections::BTreeSet;

use rusqlite::Connection as Db;

use super::super::Stored;
use super::open::migrate;

/// A table, an index, a view or a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub kind: String,
    pub name: String,
    sql: String,
}

impl Part {
    pub fn is_table(&self) -> bool {
        self.kind == "table"
    }

    /// Makes it, empty if it is a table.
    pub(super) fn make(&self, db: &Db) -> Stored {
        Ok(db.execute_batch(&self.sql)?)
    }
}

/// What a new database has and this one lacks, tables first.
pub fn missing(db: &Db) -> Stored<Vec<Part>> {
    let mut new = Db::open_in_memory()?;
    migrate(&mut new)?;
    let there: BTreeSet<(String, String)> = parts(db)?.into_iter().map(|part| (part.kind, part.name)).collect();
    let missing = |part: &Part| !there.contains(&(part.kind.clone(), part.name.clone()));
    Ok(parts(&new)?.into_iter().filter(missing).collect())
}

fn parts(db: &Db) -> Stored<Vec<Part>> {
    let text = "
        select type, name, sql from sqlite_master
        where  sql is not null
        order  by type <> 'table', rowid";
    let mut statement = db.prepare(text)?;
    let parts = statement.query_map([], |row| Ok(Part { kind: row.get(0)?, name: row.get(1)?, sql: row.get(2)? }))?;
    Ok(parts.collect::<Result<_, _>>()?)
}
