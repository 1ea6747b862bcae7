//! Sessions of browsers: a key is given once, and a cookie that no script can read stands for it from then on. Sessions
//! live in memory, hashed: after a restart of the server the key is asked for again.

use std::collections::HashMap;
use std::sync::Mutex;

use abide_api::keys::{LogIn, SessionView};
use abide_api::{Code, Problem};
use abide_core::ids::Digest;
use abide_core::time::{Span, Timestamp};
use hyper::header::{self, HeaderName};
use hyper::{HeaderMap, Method};

use super::access::{KeyRing, token};
use super::call::{Answered, Call, Reply, Who};
use super::locked;
use super::serve::admit_key;

/// A session that nothing used for so long is over.
const IDLE: Span = Span::from_secs(12 * 3_600);
/// However much it is used, a key is asked for again after this.
const LONGEST: Span = Span::from_secs(7 * 86_400);
/// Beyond it the one that rested longest ends: whoever logs in a million times ends sessions, not the server.
const MOST: usize = 10_000;
/// Failed attempts of one address in a minute. Keys cannot be guessed; this keeps the log and the processor free.
const MOST_FAILURES: u32 = 30;
const FAILURES_SPAN: Span = Span::from_secs(60);
/// Only a script of our own pages can send it with a request: a form cannot, and a page of others may not.
pub const OWN_HEADER: HeaderName = HeaderName::from_static("abide-csrf");

#[derive(Clone, Debug)]
struct Session {
    key_id: String,
    began_at: Timestamp,
    used_at: Timestamp,
}

impl Session {
    fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.used_at) >= IDLE || now.since(self.began_at) >= LONGEST
    }
}

/// All sessions, by the hash of their token: what is in memory opens nothing.
#[derive(Debug, Default)]
pub struct Sessions {
    open: Mutex<HashMap<Digest, Session>>,
    failures: Mutex<HashMap<std::net::IpAddr, (Timestamp, u32)>>,
}

impl Sessions {
    /// A new session for a key. Its token is made here and never taken from the caller.
    fn begin(&self, key_id: String, now: Timestamp) -> String {
        let token = token(43);
        let mut open = locked(&self.open);
        open.retain(|_, session| !session.is_over(now));
        if open.len() >= MOST
            && let Some(oldest) = open.iter().min_by_key(|(_, session)| session.used_at).map(|(hash, _)| *hash)
        {
            open.remove(&oldest);
        }
        open.insert(Digest::of(token.as_bytes()), Session { key_id, began_at: now, used_at: now });
        token
    }

    fn end(&self, token: &str) {
        locked(&self.open).remove(&Digest::of(token.as_bytes()));
    }

    /// Whose session this is, while both it and its key are good.
    pub fn admit(&self, keys: &KeyRing, token: &str, now: Timestamp) -> Option<Who> {
        let hash = Digest::of(token.as_bytes());
        let mut open = locked(&self.open);
        let session = open.get_mut(&hash)?;
        let who = if session.is_over(now) { None } else { keys.holder(&session.key_id, now) };
        match who {
            Some(_) => session.used_at = now,
            // Revoked and expired keys take their sessions with them.
            None => drop(open.remove(&hash)),
        }
        who
    }

    fn may_try(&self, from: std::net::IpAddr, now: Timestamp) -> Result<(), Problem> {
        let mut failures = locked(&self.failures);
        failures.retain(|_, (since, _)| now.since(*since) < FAILURES_SPAN);
        match failures.get(&from) {
            Some((_, count)) if *count >= MOST_FAILURES => {
                Err(Problem::new(Code::RateLimited, "Too many keys were wrong. Wait a minute."))
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, from: std::net::IpAddr, now: Timestamp) {
        locked(&self.failures).entry(from).or_insert((now, 0)).1 += 1;
    }
}

/// The name of the cookie. `__Host-` makes browsers refuse it without `Secure`, with a domain or with a path, so that no
/// neighbour can plant one. Cookies do not know ports: the port is in the name, so that two servers on one machine do
/// not take each other's sessions away.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map(|(_, port)| port).unwrap_or_default();
    if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("__Host-abide-{port}")
    } else {
        "__Host-abide".into()
    }
}

/// The token that came with a request.
pub fn token_of(headers: &HeaderMap) -> Option<&str> {
    let name = cookie_name(headers);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|text| text.split(';')).find_map(|pair| {
        let (known, value) = pair.trim().split_once('=')?;
        (known == name).then_some(value)
    })
}

/// `Secure` always: Chromium and Firefox take such cookies over plain http from this machine itself (localhost, 127.0.0.1
/// and `::1` count as trustworthy), and from nowhere else, which is what is wanted. Over plain http from another machine
/// (in Safari also from this one) the browser drops it; the login screen notices and says that https is needed.
fn cookie(headers: &HeaderMap, token: &str, seconds: u64) -> String {
    format!("{}={token}; Path=/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Lax", cookie_name(headers))
}

/// Refuses what a page of others could have made a browser send: with a cookie, only a script of our own pages changes
/// anything. The sender's headers are the browser's own words; JSON and a header of our own need a script.
pub fn check_own_page(method: &Method, headers: &HeaderMap, is_json: bool) -> Result<(), Problem> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let from_own = match text(HeaderName::from_static("sec-fetch-site")) {
        Some(site) => site == "same-origin",
        None => is_own_origin(headers),
    };
    let refused = |why: &str| Err(Problem::new(Code::CrossSite, why));
    if !from_own {
        return refused("A session changes things only from our own pages. Programs send `Authorization: Bearer KEY`.");
    }
    if !headers.contains_key(OWN_HEADER) {
        return refused("With a session, send the header `Abide-Csrf: 1`.");
    }
    if !is_json {
        return refused("With a session, send the body as `Content-Type: application/json`.");
    }
    Ok(())
}

/// Whether the request's origin is the host that it was sent to.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (origin, host) = (text(header::ORIGIN).unwrap_or_default(), text(header::HOST).unwrap_or_default());
    origin.split_once("://").is_some_and(|(_, rest)| rest == host)
}

/// `POST /v1/session`
pub async fn log_in(call: Call, asked: LogIn) -> Answered {
    // Otherwise another site could log a person in under a key of its own, and read what is done then.
    check_own_page(&Method::POST, &call.headers, true)?;
    let (now, api) = (call.engine.clock().now(), &call.api);
    if !api.keys.is_used() {
        return Err(Problem::new(Code::BadRequest, "No keys are used here: nobody needs a session."));
    }
    api.sessions.may_try(call.from, now)?;
    let who = admit_key(api, asked.key.trim()).inspect_err(|_| api.sessions.failed(call.from, now))?;
    // A session that came with the request ends here: whoever knew its token gains nothing from this login.
    if let Some(old) = token_of(&call.headers) {
        api.sessions.end(old);
    }
    let key_id = KeyRing::id_of(asked.key.trim()).unwrap_or_default();
    let token = api.sessions.begin(key_id, now);
    let kept = cookie(&call.headers, &token, LONGEST.micros() / 1_000_000);
    Ok(Reply::json(200, &view(&who)).header(header::SET_COOKIE, kept))
}

/// `GET /v1/session`
pub async fn show(call: Call) -> Answered {
    call.only(&[])?;
    Ok(Reply::json(200, &view(&call.who)))
}

/// `DELETE /v1/session`
pub async fn log_out(call: Call) -> Answered {
    if let Some(token) = token_of(&call.headers) {
        check_own_page(&Method::DELETE, &call.headers, true)?;
        call.api.sessions.end(token);
    }
    Ok(Reply::empty(204).header(header::SET_COOKIE, cookie(&call.headers, "", 0)))
}

fn view(who: &Who) -> SessionView {
    SessionView {
        namespace: who.namespace.to_string(),
        principal: who.name().to_owned(),
        role: who.role,
        groups: who.key.as_ref().map(|key| key.groups.clone()).unwrap_or_default(),
        acts_for_others: who.key.as_ref().is_none_or(|key| key.acts_for_others),
        sees_payloads: who.sees_payloads(),
        uses_keys: who.key.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use abide_api::keys::{CreateKey, Role};
    use abide_core::ids::Namespace;
    use abide_engine::request::Key;

    use super::super::access::new_key;
    use super::*;

    fn key(now: Timestamp) -> Key {
        let asked = CreateKey {
            name: "ana".into(),
            role: Role::Operator,
            queues: Vec::new(),
            principal: None,
            groups: vec!["boss".into()],
            acts_for_others: false,
            namespace: None,
            expires_in: Some("30d".into()),
        };
        new_key(asked, Namespace::from("default"), now).expect("a key").1
    }

    #[test]
    fn a_session_ends_when_it_rests_when_it_is_old_and_with_its_key() {
        let began = Timestamp::from_micros(1_000_000);
        let (key, sessions) = (key(began), Sessions::default());
        let keys = KeyRing::of(vec![key.clone()]);
        let used = |token: &str, at: Timestamp| sessions.admit(&keys, token, at).is_some();
        let (rests, works) = (sessions.begin(key.key_id.clone(), began), sessions.begin(key.key_id.clone(), began));
        assert!(used(&rests, began) && !used("", began) && !used("made up", began));
        let mut at = began;
        while at.since(began) < LONGEST {
            assert!(used(&works, at));
            at = at + Span::from_secs(6 * 3_600);
        }
        assert!(!used(&works, at), "used all the time, and too old");
        assert!(!used(&rests, began + IDLE));

        let dead = sessions.begin(key.key_id.clone(), began);
        let revoked = KeyRing::of(vec![Key { revoked_at: Some(began), ..key.clone() }]);
        assert!(sessions.admit(&revoked, &dead, began).is_none());
        assert!(!used(&dead, began), "it does not come back");
        let late = began + Span::from_secs(31 * 86_400);
        let fresh = sessions.begin(key.key_id, late);
        assert!(!used(&fresh, late), "the key has expired");
    }

    #[test]
    fn what_is_in_memory_opens_nothing_and_is_bounded() {
        let sessions = Sessions::default();
        let now = Timestamp::from_micros(1_000_000);
        let token = sessions.begin("key_x".into(), now);
        assert!(!format!("{sessions:?}").contains(&token));
        for n in 0..MOST as u64 + 10 {
            sessions.begin("key_x".into(), now + Span::from_micros(n));
        }
        assert_eq!(locked(&sessions.open).len(), MOST);
    }

    #[test]
    fn wrong_keys_are_refused_more_than_wrong_after_a_while() {
        let (sessions, from) = (Sessions::default(), std::net::IpAddr::from([127, 0, 0, 1]));
        let now = Timestamp::from_micros(1_000_000);
        for _ in 0..MOST_FAILURES {
            assert!(sessions.may_try(from, now).is_ok());
            sessions.failed(from, now);
        }
        assert!(sessions.may_try(from, now).is_err_and(|problem| problem.is(Code::RateLimited)));
        assert!(sessions.may_try(std::net::IpAddr::from([127, 0, 0, 2]), now).is_ok());
        assert!(sessions.may_try(from, now + FAILURES_SPAN).is_ok());
    }
}
