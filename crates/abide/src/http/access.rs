//! Keys: `abide_live_` and 46 letters and digits, of which the first ten name the key and the last six are a checksum.
//! Stored are hashes; a mistyped key is refused without asking the store.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use abide_api::keys::{CreateKey, KeyView, NewKey, Role};
use abide_api::{Code, Problem};
use abide_core::ids::{Digest, Namespace};
use abide_core::time::{Span, Timestamp};
use abide_engine::request::{Access, Key, What};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::call::{Answered, Call, Reply, Who};
use abide_api::engine::{duration, identifier};

const PREFIX: &str = "abide_live_";
const ID: usize = 10;
const SECRET: usize = 32;
const CHECK: usize = 6;
/// How exactly it is known when a key was last used.
const USED_EVERY: Span = Span::from_secs(60);

/// What a key may do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub name: String,
    pub role: Role,
    #[serde(default)]
    pub queues: Vec<String>,
    pub principal: String,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default)]
    pub acts_for_others: bool,
}

#[derive(Clone, Debug)]
struct Known {
    key: Key,
    grant: Arc<Grant>,
}

impl Known {
    fn is_dead(&self, now: Timestamp) -> bool {
        self.key.revoked_at.is_some() || self.key.expires_at.is_some_and(|at| at <= now)
    }
}

/// All keys, in memory: every change goes through this process.
#[derive(Debug, Default)]
pub struct KeyRing(RwLock<HashMap<String, Known>>);

impl KeyRing {
    pub fn of(keys: Vec<Key>) -> KeyRing {
        let ring = KeyRing::default();
        for key in keys {
            ring.put(key);
        }
        ring
    }

    fn put(&self, key: Key) {
        match serde_json::from_str::<Grant>(&key.grant) {
            Ok(grant) => {
                let known = Known { grant: Arc::new(grant), key };
                self.write().insert(known.key.key_id.clone(), known);
            }
            Err(error) => tracing::error!(key = key.key_id, %error, "a stored key cannot be read"),
        }
    }

    /// Whether anybody needs a key here. From the first one on, also when all are revoked: to take keys away must not
    /// open the door.
    pub fn is_used(&self) -> bool {
        !self.read().is_empty()
    }

    /// Who a key belongs to. Mistyped, unknown, revoked and expired are refused alike.
    pub fn admit(&self, text: &str, now: Timestamp) -> Result<(Who, Option<String>), Problem> {
        let refused = || Problem::new(Code::InvalidCredentials, "The key is not valid.");
        let (key_id, _) = parts(text).ok_or_else(refused)?;
        let mut ring = self.write();
        let known = ring.get_mut(&key_id).ok_or_else(refused)?;
        let right = bool::from(Digest::of(text.as_bytes()).0.ct_eq(&known.key.hash.0));
        if !right || known.is_dead(now) {
            return Err(refused());
        }
        let stale = known.key.last_used_at.is_none_or(|at| now.since(at) >= USED_EVERY);
        if stale {
            known.key.last_used_at = Some(now);
        }
        let (namespace, role) = (known.key.namespace.clone(), known.grant.role);
        Ok((Who { namespace, role, key: Some(known.grant.clone()) }, stale.then_some(key_id)))
    }

    /// Who holds a key that was given before, as long as it is good.
    pub fn holder(&self, key_id: &str, now: Timestamp) -> Option<Who> {
        let ring = self.read();
        let known = ring.get(key_id).filter(|known| !known.is_dead(now))?;
        Some(Who { namespace: known.key.namespace.clone(), role: known.grant.role, key: Some(known.grant.clone()) })
    }

    /// The groups of a person who holds a good key with which decisions are made. `None`: nobody of that name does.
    pub fn groups_of(&self, namespace: &Namespace, principal: &str, now: Timestamp) -> Option<Vec<String>> {
        let ring = self.read();
        let decides = |known: &&Known| {
            let role = matches!(known.grant.role, Role::Approver | Role::Operator | Role::Admin);
            role && !known.is_dead(now) && known.key.namespace == *namespace && known.grant.principal == principal
        };
        let mut groups: Option<Vec<String>> = None;
        for known in ring.values().filter(decides) {
            groups.get_or_insert_default().extend(known.grant.groups.iter().cloned());
        }
        groups
    }

    /// The id of the key that a text is.
    pub fn id_of(text: &str) -> Option<String> {
        parts(text).map(|(key_id, _)| key_id)
    }

    fn views(&self, namespace: &Namespace, all: bool) -> Vec<KeyView> {
        let ring = self.read();
        let mut views: Vec<KeyView> =
            ring.values().filter(|known| all || known.key.namespace == *namespace).map(view).collect();
        views.sort_by(|one, other| (one.created_at, &one.key_id).cmp(&(other.created_at, &other.key_id)));
        views
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<String, Known>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<String, Known>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn view(known: &Known) -> KeyView {
    let (key, grant) = (&known.key, &known.grant);
    KeyView {
        key_id: key.key_id.clone(),
        name: grant.name.clone(),
        namespace: key.namespace.to_string(),
        role: grant.role,
        queues: grant.queues.clone(),
        principal: grant.principal.clone(),
        groups: grant.groups.clone(),
        acts_for_others: grant.acts_for_others,
        created_at: key.created_at,
        expires_at: key.expires_at,
        revoked_at: key.revoked_at,
        last_used_at: key.last_used_at,
    }
}

/// Random letters and digits from the operating system.
pub fn token(letters: usize) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut token = String::with_capacity(letters);
    let mut bytes = [0u8; 64];
    while token.len() < letters {
        getrandom::fill(&mut bytes).expect("the operating system gives randomness");
        // 248 is four times 62: what is above would make some letters likelier.
        for byte in bytes.iter().filter(|byte| **byte < 248) {
            if token.len() < letters {
                token.push(char::from(LETTERS[usize::from(byte % 62)]));
            }
        }
    }
    token
}

fn checksum(text: &str) -> String {
    let mut sum = u64::from(crc32fast::hash(text.as_bytes()));
    let mut letters = String::new();
    for _ in 0..CHECK {
        let digit = (sum % 36) as u32;
        letters.push(char::from_digit(digit, 36).unwrap_or('0'));
        sum /= 36;
    }
    letters
}

/// The id and the whole, if the text is a key at all.
fn parts(text: &str) -> Option<(String, &str)> {
    let rest = text.strip_prefix(PREFIX)?;
    if rest.len() != ID + SECRET + CHECK || !rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let (body, check) = rest.split_at(ID + SECRET);
    (checksum(body) == check).then(|| (format!("key_{}", &body[..ID]), text))
}

/// Makes a key: what is shown once, and what is stored.
pub fn new_key(asked: CreateKey, namespace: Namespace, now: Timestamp) -> Result<(String, Key), Problem> {
    identifier("/name", &asked.name)?;
    // The engine's own executors listen everywhere under this name.
    if namespace.as_str() == "*" {
        return Err(Problem::invalid("/namespace", "A namespace cannot be called `*`."));
    }
    let principal = asked.principal.unwrap_or_else(|| asked.name.clone());
    identifier("/principal", &principal)?;
    if principal.contains('/') {
        return Err(Problem::invalid("/principal", "It must not have a slash: leases are owned by PRINCIPAL/WORKER."));
    }
    let expires_in = asked.expires_in.as_deref().map(|text| duration("/expires_in", text)).transpose()?;
    let body = token(ID + SECRET);
    let text = format!("{PREFIX}{body}{}", checksum(&body));
    let grant = Grant {
        name: asked.name,
        role: asked.role,
        queues: asked.queues,
        principal,
        groups: asked.groups,
        acts_for_others: asked.acts_for_others,
    };
    let grant = serde_json::to_string(&grant).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    let key = Key {
        key_id: format!("key_{}", &body[..ID]),
        namespace,
        hash: Digest::of(text.as_bytes()),
        grant,
        created_at: now,
        expires_at: expires_in.map(|span| now + span),
        revoked_at: None,
        last_used_at: None,
    };
    Ok((text, key))
}

/// `POST /v1/keys`
pub async fn create(call: Call, asked: CreateKey) -> Answered {
    if let Some(key_id) = call.said_before().await? {
        let detail = format!("This request made {key_id} before. The key itself was in that answer alone.");
        return Err(Problem::new(Code::ShownOnce, detail).with("key_id", key_id));
    }
    let own = call.who.namespace.clone();
    let namespace = match &asked.namespace {
        Some(name) if own.as_str() != "default" && *name != own.as_str() => {
            let detail = "Only an admin of namespace default may make keys for another one.";
            return Err(Problem::new(Code::Forbidden, detail));
        }
        Some(name) => Namespace::from(identifier("/namespace", name)?),
        None => own,
    };
    let (text, key) = new_key(asked, namespace, call.engine.clock().now())?;
    call.ask(What::Access(Box::new(Access::AddKey(key.clone())))).await?;
    let key_id = key.key_id.clone();
    call.api.keys.put(key);
    let view = call.api.keys.read().get(&key_id).map(view);
    let view = view.ok_or_else(|| Problem::new(Code::Internal, "The key is gone."))?;
    Ok(Reply::json(201, &NewKey { key: text, view }).header(hyper::header::CACHE_CONTROL, "no-store"))
}

/// `GET /v1/keys`
pub async fn list(call: Call) -> Answered {
    call.only(&[])?;
    let all = call.who.namespace.as_str() == "default";
    Ok(Reply::json(200, &abide_api::keys::Keys { keys: call.api.keys.views(&call.who.namespace, all) }))
}

/// `DELETE /v1/keys/{key_id}`
pub async fn revoke(call: Call) -> Answered {
    let key_id = call.param("key_id").to_owned();
    let all = call.who.namespace.as_str() == "default";
    let reachable = call.api.keys.views(&call.who.namespace, all);
    if !reachable.iter().any(|key| key.key_id == key_id) {
        return Err(Problem::new(Code::NotFound, "There is no such key."));
    }
    call.ask(What::Access(Box::new(Access::RevokeKey(key_id.clone())))).await?;
    if let Some(known) = call.api.keys.write().get_mut(&key_id) {
        known.key.revoked_at.get_or_insert(call.engine.clock().now());
    }
    Ok(Reply::empty(204))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> CreateKey {
        CreateKey {
            name: "ci".into(),
            role: Role::Worker,
            queues: Vec::new(),
            principal: None,
            groups: Vec::new(),
            acts_for_others: false,
            namespace: None,
            expires_in: Some("1h".into()),
        }
    }

    #[test]
    fn a_key_opens_until_it_is_mistyped_revoked_or_expired() {
        let now = Timestamp::from_micros(1_000_000);
        let (text, key) = new_key(asked(), Namespace::from("default"), now).unwrap();
        let ring = KeyRing::of(vec![key.clone()]);
        assert!(ring.is_used());
        assert_eq!(ring.admit(&text, now).unwrap().0.role, Role::Worker);
        let mistyped = text.replace(&text[20..21], if &text[20..21] == "a" { "b" } else { "a" });
        let later = now + Span::from_secs(3_600);
        let refusals = [ring.admit(&mistyped, now), ring.admit("abide_live_x", now), ring.admit(&text, later)];
        let revoked = KeyRing::of(vec![Key { revoked_at: Some(now), ..key }]);
        for refused in refusals.into_iter().chain([revoked.admit(&text, now)]) {
            assert_eq!(refused.unwrap_err(), Problem::new(Code::InvalidCredentials, "The key is not valid."));
        }
        assert!(revoked.is_used(), "to revoke the last key does not let everybody in");
    }

    #[test]
    fn what_is_stored_does_not_hold_the_key() {
        let (text, key) = new_key(asked(), Namespace::from("default"), Timestamp::default()).unwrap();
        let stored = format!("{key:?}");
        assert!(!stored.contains(&text) && !stored.contains(&text[PREFIX.len() + ID..]));
        assert!(text.len() - PREFIX.len() - ID - CHECK >= 28, "at least 160 bits are secret");
    }
}
