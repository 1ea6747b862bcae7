//! Keys and one-time links: rows that hold hashes, never what opens the door.

use abide_core::ids::{Digest, Namespace, Path, RunId};
use abide_core::time::Timestamp;
use rusqlite::{Connection as Db, OptionalExtension, Row, params};

use super::super::Stored;
use super::load::instant;
use crate::request::{Access, Key, Link};

pub fn write(db: &Db, access: &Access, at: Timestamp) -> Stored {
    match access {
        Access::AddKey(key) => add_key(db, key),
        Access::RevokeKey(key_id) => {
            let text = "update api_keys set revoked_at = ?2 where key_id = ?1 and revoked_at is null";
            db.prepare_cached(text)?.execute(params![key_id, at.micros()])?;
            Ok(())
        }
        Access::KeyUsed(key_id) => {
            let text = "update api_keys set last_used_at = ?2 where key_id = ?1";
            db.prepare_cached(text)?.execute(params![key_id, at.micros()])?;
            Ok(())
        }
        Access::AddLink(link) => add_link(db, link),
    }
}

fn add_key(db: &Db, key: &Key) -> Stored {
    let text = "
        insert into api_keys (key_id, namespace, hash, grant_, created_at, expires_at) values (?1, ?2, ?3, ?4, ?5, ?6)";
    db.prepare_cached(text)?.execute(params![
        key.key_id,
        key.namespace.as_str(),
        key.hash.0.as_slice(),
        key.grant,
        key.created_at.micros(),
        key.expires_at.map(Timestamp::micros)
    ])?;
    Ok(())
}

fn add_link(db: &Db, link: &Link) -> Stored {
    let text = "
        insert into approval_links (token_hash, namespace, run_id, path, whom, groups, expires_at)
        values (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let groups = super::write::json(&link.groups)?;
    db.prepare_cached(text)?.execute(params![
        link.token_hash.0.as_slice(),
        link.namespace.as_str(),
        link.run_id.as_str(),
        link.path.as_str(),
        link.whom,
        groups,
        link.expires_at.micros()
    ])?;
    Ok(())
}

pub fn use_link(db: &Db, token_hash: &Digest, at: Timestamp) -> Stored {
    let text = "update approval_links set used_at = ?2 where token_hash = ?1";
    db.prepare_cached(text)?.execute(params![token_hash.0.as_slice(), at.micros()])?;
    Ok(())
}

pub fn link(db: &Db, token_hash: &Digest) -> Stored<Option<Link>> {
    let text = "
        select namespace, run_id, path, whom, groups, expires_at, used_at from approval_links where token_hash = ?1";
    let found = db.prepare_cached(text)?.query_row([token_hash.0.as_slice()], |row| {
        Ok(Link {
            token_hash: *token_hash,
            namespace: Namespace::new(row.get::<_, String>(0)?),
            run_id: RunId::new(row.get::<_, String>(1)?),
            path: Path::new(row.get::<_, String>(2)?),
            whom: row.get(3)?,
            groups: serde_json::from_str(&row.get::<_, String>(4)?).unwrap_or_default(),
            expires_at: Timestamp::from_micros(row.get(5)?),
            used_at: instant(row.get(6)?),
        })
    });
    Ok(found.optional()?)
}

/// All keys, of every namespace.
pub fn keys(db: &Db) -> Stored<Vec<Key>> {
    let text = "
        select key_id, namespace, hash, grant_, created_at, expires_at, revoked_at, last_used_at
        from   api_keys order by created_at, key_id";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([], key)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn key(row: &Row<'_>) -> rusqlite::Result<Key> {
    Ok(Key {
        key_id: row.get(0)?,
        namespace: Namespace::new(row.get::<_, String>(1)?),
        hash: Digest(row.get(2)?),
        grant: row.get(3)?,
        created_at: Timestamp::from_micros(row.get(4)?),
        expires_at: instant(row.get(5)?),
        revoked_at: instant(row.get(6)?),
        last_used_at: instant(row.get(7)?),
    })
}
