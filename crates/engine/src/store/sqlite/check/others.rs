//! What runs say of each other: who waits for whom, who started whom, who decided by which link.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::ids::{Namespace, Path, RunId};
use abide_core::run::Parent;
use abide_core::run::invariant::{Descent, disowned};
use abide_core::run::step::Decision;
use rusqlite::{Connection as Db, OptionalExtension, params};

use super::super::super::{RunKey, RunNo, Stored};
use super::super::log;
use super::{Standing, identity};

/// I33: runs of which none can go on, because each waits for the next, and the last for the first.
pub fn waiting_in_a_circle(db: &Db) -> Stored<Vec<RunKey>> {
    let text = "
        select steps.run_no, child.run_no
        from   steps join runs using (run_no)
               join runs as child on child.run_id = row ->> '$.block.wait.run_id' and child.namespace = runs.namespace
        where  steps.open = 1 and row ->> '$.block.wait.on' = 'child'";
    let mut statement = db.prepare_cached(text)?;
    let waits = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let waits: Vec<(RunNo, RunNo)> = waits.collect::<Result<_, _>>()?;
    in_circles(waits).into_iter().map(|no| identity(db, no)).collect()
}

/// Who waits for nobody is in no circle, and neither is anybody for whom nobody waits. (Somebody between two circles is
/// left with them.)
fn in_circles(waits: Vec<(RunNo, RunNo)>) -> BTreeSet<RunNo> {
    let left = stuck(waits.clone());
    let among = waits.into_iter().filter(|(waiter, awaited)| left.contains(waiter) && left.contains(awaited));
    stuck(among.map(|(waiter, awaited)| (awaited, waiter)).collect())
}

/// Who is left when everybody is taken away, again and again, who waits for nobody that is left.
fn stuck(waits: Vec<(RunNo, RunNo)>) -> BTreeSet<RunNo> {
    let (mut open, mut waiters): (BTreeMap<RunNo, usize>, BTreeMap<RunNo, Vec<RunNo>>) = Default::default();
    for (waiter, awaited) in waits {
        *open.entry(waiter).or_default() += 1;
        open.entry(awaited).or_default();
        waiters.entry(awaited).or_default().push(waiter);
    }
    let mut free: Vec<RunNo> = open.iter().filter(|(_, count)| **count == 0).map(|(no, _)| *no).collect();
    while let Some(no) = free.pop() {
        open.remove(&no);
        for waiter in waiters.remove(&no).unwrap_or_default() {
            if let Some(count) = open.get_mut(&waiter) {
                *count -= 1;
                free.extend((*count == 0).then_some(waiter));
            }
        }
    }
    open.into_keys().collect()
}

/// The runs that say that this one started them. Served by `runs_by_parent`.
pub fn children_of(db: &Db, key: &RunKey) -> Stored<Vec<Descent>> {
    let text = "
        select run_id, started ->> '$.parent.step_id', started ->> '$.depth'
        from   runs join run_starts using (run_no)
        where  parent_run = ?1 and namespace = ?2";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![key.run_id.as_str(), key.namespace.as_str()], |row| {
        let step_id = row.get::<_, Option<String>>(1)?.unwrap_or_default();
        let (run_id, depth) = (RunId::new(row.get::<_, String>(0)?), row.get::<_, Option<u32>>(2)?.unwrap_or_default());
        Ok(Descent { run_id, step_id: Path::new(step_id), depth })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// What is wrong with the parent of a run in the archive. Of one that is in the archive as well, only that it is there: to
/// ask it, all of it would have to be unpacked, for each of its children.
pub fn broken_parent(db: &Db, child: &RunKey, parent: &Parent, depth: u32) -> Stored<Option<String>> {
    let key = RunKey { namespace: child.namespace.clone(), run_id: parent.run_id.clone() };
    let text = "
        select runs.run_no, started ->> '$.depth', row ->> '$.child.run_id'
        from   runs join run_starts using (run_no) left join steps on steps.run_no = runs.run_no and path = ?3
        where  run_id = ?1 and namespace = ?2";
    let values = params![key.run_id.as_str(), key.namespace.as_str(), parent.step_id.as_str()];
    let here = db.prepare_cached(text)?.query_row(values, |row| {
        Ok((row.get::<_, RunNo>(0)?, row.get::<_, Option<u32>>(1)?.unwrap_or_default(), row.get(2)?))
    });
    let Some((no, above, known)) = here.optional()? else {
        let absent = super::standing(db, &key)? == Standing::Absent;
        return Ok(absent.then(|| format!("its parent {} is not there", key.run_id)));
    };
    let known: Option<String> = known;
    if depth != above + 1 {
        return Ok(Some(format!("it is at depth {depth}, its parent at {above}")));
    }
    // The row knows the child that was started last.
    if known.as_deref() == Some(child.run_id.as_str()) {
        return Ok(None);
    }
    let said = Descent { run_id: child.run_id.clone(), step_id: parent.step_id.clone(), depth };
    let found = disowned(above, &log::unhashed(db, no, 0, usize::MAX)?, [&said]);
    Ok(found.into_iter().next().map(|broken| broken.what))
}

/// A link that was used, and what it was used for.
#[derive(Debug)]
pub struct UsedLink {
    pub token_hash: Vec<u8>,
    pub no: RunNo,
    pub key: RunKey,
    pub path: Path,
    pub whom: String,
}

/// Links that were used for runs that are here, after one, in the order of their hashes.
pub fn used_links(db: &Db, after: &[u8], limit: usize) -> Stored<Vec<UsedLink>> {
    let text = "
        select token_hash, run_no, namespace, run_id, path, whom
        from   approval_links cross join runs using (run_id, namespace)
        where  used_at is not null and token_hash > ?1
        order  by token_hash
        limit  ?2";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![after, limit as i64], |row| {
        let namespace = Namespace::new(row.get::<_, String>(2)?);
        let key = RunKey { namespace, run_id: RunId::new(row.get::<_, String>(3)?) };
        let path = Path::new(row.get::<_, String>(4)?);
        Ok(UsedLink { token_hash: row.get(0)?, no: row.get(1)?, key, path, whom: row.get(5)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Whether somebody has decided about a step. Its row knows, until it asks again.
pub fn has_decided(db: &Db, no: RunNo, path: &Path, by: &str) -> Stored<bool> {
    let text = "select row -> '$.decisions' from steps where run_no = ?1 and path = ?2";
    let said: Option<Option<String>> =
        db.prepare_cached(text)?.query_row(params![no, path.as_str()], |row| row.get(0)).optional()?;
    let said = said.flatten().and_then(|json| serde_json::from_str::<Vec<Decision>>(&json).ok());
    if said.is_some_and(|decisions| decisions.iter().any(|decision| decision.by == by)) {
        return Ok(true);
    }
    let decided = |record: &abide_core::run::event::Record| {
        matches!(record.kind.as_str(), "approval.given" | "approval.rejected")
            && record.step_id.as_ref() == Some(path)
            && serde_json::from_str::<Decision>(record.payload.get()).is_ok_and(|decision| decision.by == by)
    };
    Ok(log::unhashed(db, no, 0, usize::MAX)?.iter().any(decided))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_in_a_circle_are_left() {
        let left = |waits: &[(RunNo, RunNo)]| in_circles(waits.to_vec()).into_iter().collect::<Vec<RunNo>>();
        assert!(left(&[(1, 2), (2, 3), (1, 3)]).is_empty());
        assert_eq!(left(&[(1, 2), (2, 3), (3, 2), (3, 4), (4, 5)]), [2, 3]);
        assert_eq!(left(&[(1, 1), (2, 1)]), [1]);
    }
}
