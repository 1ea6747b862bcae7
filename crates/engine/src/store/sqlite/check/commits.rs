//! I47: the commits that are kept speak of every event since the oldest of them, once, in the order in which they were made.
//! Readers of everything go through them and see nothing else.

use std::collections::BTreeSet;

use rusqlite::{Connection as Db, params};

use super::super::super::{RunNo, Stored, Touched};
use super::super::feed;

/// Findings that say the same many times help nobody.
const MOST_FINDINGS: usize = 100;

/// What was found in a piece of the commits, and where the next one begins.
pub type Piece = (Vec<String>, Option<i64>);

/// Goes through the commits from one on, through about so many. Rows of the log are numbered in the order of the commits, so
/// that nothing has to be remembered of those before: a piece begins with the commit with which the one before it ended.
/// What was archived meanwhile has left the log.
pub fn broken_commits(db: &Db, from: i64, about: usize) -> Stored<Piece> {
    let mut reading = Reading { db, first: None, last: 0, rows: 0, found: Vec::new() };
    let mut statement = db.prepare_cached("select batch, touched from batches where batch >= ?1 order by batch")?;
    let mut batches = statement.query([from])?;
    let mut read = 0;
    while let Some(batch) = batches.next()? {
        let (number, bytes, before): (i64, Vec<u8>, i64) = (batch.get(0)?, batch.get(1)?, reading.last);
        match feed::decode(&bytes) {
            Some(touched) => reading.read(number, &touched)?,
            None => reading.found.push(format!("what commit {number} touched cannot be read")),
        }
        read += 1;
        if reading.found.len() >= MOST_FINDINGS {
            return Ok((reading.found, None));
        }
        // Only one of which the log still has something joins two pieces.
        if read >= about && number > from && reading.last > before {
            reading.rest(reading.last)?;
            return Ok((reading.found, Some(number)));
        }
    }
    reading.rest(i64::MAX)?;
    Ok((reading.found, None))
}

struct Reading<'a> {
    db: &'a Db,
    /// The first row of the log that a commit speaks of, and the last.
    first: Option<i64>,
    last: i64,
    /// How many rows they speak of.
    rows: i64,
    found: Vec<String>,
}

/// The rows of the log in which a range of events stands.
struct Rows {
    count: i64,
    from_seq: Option<i64>,
    first: Option<i64>,
    last: Option<i64>,
}

impl Reading<'_> {
    fn read(&mut self, number: i64, touched: &[Touched]) -> Stored {
        let (before, mut ranges) = (self.last, BTreeSet::new());
        for one in touched {
            let Touched { no, from_seq, to_seq } = one;
            if !ranges.insert((*no, *from_seq)) {
                self.found.push(format!("commit {number} speaks twice of event {from_seq} of run {no}"));
                continue;
            }
            let rows = self.rows_of(one)?;
            let (Some(first), Some(last)) = (rows.first, rows.last) else {
                if !self.is_archived(*no)? {
                    self.found.push(format!("commit {number} touched run {no}, which has no event {from_seq}"));
                }
                continue;
            };
            let ends = self.next_seq(one)?.is_none_or(|next| next == *to_seq as i64 + 1);
            if rows.from_seq != Some(*from_seq as i64) || !ends {
                self.found.push(format!(
                    "commit {number} says events {from_seq} to {to_seq} of run {no}, its log has others"
                ));
            }
            if first <= before {
                self.found.push(format!("commit {number} speaks of event {from_seq} of run {no} later than another"));
            }
            self.first = Some(self.first.map_or(first, |known| if before == 0 { known.min(first) } else { known }));
            self.last = self.last.max(last);
            self.rows += rows.count;
        }
        Ok(())
    }

    /// Rows up to one that no commit speaks of.
    fn rest(&mut self, last: i64) -> Stored {
        let Some(first) = self.first else { return Ok(()) };
        let text = "select count(*) from run_log where entry_no between ?1 and ?2";
        let rows: i64 = self.db.prepare_cached(text)?.query_row([first, last], |row| row.get(0))?;
        if rows > self.rows {
            self.found.push(format!("{} rows of the log that no commit speaks of", rows - self.rows));
        }
        Ok(())
    }

    fn rows_of(&self, one: &Touched) -> Stored<Rows> {
        let text = "
            select count(*), min(seq), min(entry_no), max(entry_no) from run_log
            where  run_no = ?1 and seq between ?2 and ?3";
        let values = params![one.no, one.from_seq as i64, one.to_seq as i64];
        Ok(self.db.prepare_cached(text)?.query_row(values, |row| {
            Ok(Rows { count: row.get(0)?, from_seq: row.get(1)?, first: row.get(2)?, last: row.get(3)? })
        })?)
    }

    /// The event after a range, whether there is one yet or not.
    fn next_seq(&self, one: &Touched) -> Stored<Option<i64>> {
        let text = "
            select coalesce((select min(seq) from run_log where run_no = ?1 and seq > ?2),
                            (select seq + 1 from runs where run_no = ?1))";
        Ok(self.db.prepare_cached(text)?.query_row(params![one.no, one.to_seq as i64], |row| row.get(0))?)
    }

    fn is_archived(&self, no: RunNo) -> Stored<bool> {
        Ok(self.db.prepare_cached("select 1 from archived_runs where run_no = ?1")?.exists([no])?)
    }
}
