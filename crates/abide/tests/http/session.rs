//! Pages and sessions of browsers: what is served, what a cookie is like, what it opens, and from where.

use serde_json::{Value, json};

use crate::stage::{Heard, Stage};

/// A server with an admin's key, and the key.
fn guarded() -> (Stage, String) {
    let mut stage = Stage::new();
    let made = stage.post("/v1/keys", json!({ "name": "root", "role": "admin", "groups": ["boss"] }));
    let key = made.json()["key"].as_str().expect("a key").to_owned();
    stage.key = None;
    (stage, key)
}

const OWN: [(&str, &str); 3] =
    [("Sec-Fetch-Site", "same-origin"), ("Abide-Csrf", "1"), ("Content-Type", "application/json")];

fn log_in(stage: &Stage, key: &str) -> Heard {
    stage.send("POST", "/v1/session", &OWN, json!({ "key": key }).to_string().as_bytes())
}

/// The cookie as a browser sends it back.
fn cookie(heard: &Heard) -> String {
    let set = heard.header("set-cookie").unwrap_or_else(|| panic!("{heard:?}"));
    set.split(';').next().expect("a pair").to_owned()
}

fn with(stage: &Stage, method: &str, path: &str, cookie: &str, more: &[(&str, &str)], body: &[u8]) -> Heard {
    let headers: Vec<_> = [("Cookie", cookie)].into_iter().chain(more.iter().copied()).collect();
    stage.send(method, path, &headers, body)
}

#[test]
fn every_screen_is_the_page_and_its_files_are_guarded() {
    let (stage, _) = guarded();
    for path in [
        "/",
        "/?state=failed",
        "/runs/run_x",
        "/inbox",
        "/workflows",
        "/workflows/a",
        "/workers",
        "/insights",
        "/contract",
    ] {
        let page = stage.send("GET", path, &[("Accept", "text/html")], b"");
        assert_eq!(page.status, 200, "{path}");
        assert!(page.text().contains("<script type=\"module\""), "{path}");
        let policy = page.header("content-security-policy").expect("a policy");
        for part in [
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(part), "S19: {policy}");
        }
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    }
    let script = stage.get("/ui/main.js");
    assert_eq!(script.header("content-type"), Some("text/javascript; charset=utf-8"));
    let tag = script.header("etag").expect("a version").to_owned();
    let known = stage.send("GET", "/ui/main.js", &[("If-None-Match", &tag)], b"");
    assert_eq!((known.status, known.body.len()), (304, 0));
    let nowhere = stage.send("GET", "/rusn", &[("Accept", "text/html")], b"");
    assert_eq!((nowhere.status, nowhere.header("content-type")), (404, Some("text/html; charset=utf-8")));
    assert_eq!(stage.get("/rusn").said(), (404, "not-found".into()), "a program reads JSON");
    for path in ["/ui/nothing.js", "/ui/../Cargo.toml", "/ui/%2e%2e/Cargo.toml", "/ui/lib/types.d.ts", "/ui/"] {
        assert_eq!(stage.get(path).status, 404, "{path}");
    }
}

#[test]
fn a_report_of_a_browser_is_counted() {
    let stage = Stage::new();
    let report = br#"{"csp-report":{"blocked-uri":"inline","effective-directive":"script-src"}}"#;
    let kind = [("Content-Type", "application/csp-report")];
    assert_eq!(stage.send("POST", "/csp-reports", &kind, report).status, 204);
    assert_eq!(stage.send("POST", "/csp-reports", &kind, b"not json").status, 204);
    assert!(stage.get("/metrics").text().contains("abide_csp_reports_total{} 2"));
}

#[test]
fn a_key_is_given_once_and_the_cookie_stands_for_it() {
    let (stage, key) = guarded();
    assert_eq!(stage.get("/v1/session").said(), (401, "unauthenticated".into()));
    let heard = log_in(&stage, &key);
    assert_eq!(heard.status, 200, "{}", heard.text());
    let set = heard.header("set-cookie").expect("a cookie").to_owned();
    assert!(set.starts_with("__Host-abide"), "S17: {set}");
    for part in ["; HttpOnly", "; Secure", "; SameSite=Lax", "; Path=/", "; Max-Age="] {
        assert!(set.contains(part), "S17: {set}");
    }
    assert!(!set.contains("Domain") && !set.contains(&key));
    let cookie = cookie(&heard);
    let who = with(&stage, "GET", "/v1/session", &cookie, &[], b"").json();
    assert_eq!((&who["principal"], &who["role"], &who["groups"]), (&json!("root"), &json!("admin"), &json!(["boss"])));
    assert_eq!(who["uses_keys"], true);
    assert_eq!(with(&stage, "GET", "/v1/runs", &cookie, &[], b"").status, 200);
    // The session has the key's role, and no more.
    let body = json!({ "name": "eyes", "role": "viewer" }).to_string();
    let viewer = with(&stage, "POST", "/v1/keys", &cookie, &OWN, body.as_bytes()).json();
    let eyes = self::cookie(&log_in(&stage, viewer["key"].as_str().expect("a key")));
    assert_eq!(with(&stage, "GET", "/v1/keys", &eyes, &[], b"").said(), (403, "forbidden".into()));
    assert_eq!(with(&stage, "GET", "/v1/runs", &eyes, &[], b"").status, 200);
}

#[test]
fn a_session_changes_things_only_from_our_own_pages() {
    let (stage, key) = guarded();
    let cookie = cookie(&log_in(&stage, &key));
    let own = format!("http://{}", stage.address);
    let json_type = ("Content-Type", "application/json");
    let (csrf, same) = (("Abide-Csrf", "1"), ("Sec-Fetch-Site", "same-origin"));
    let body = br#"{"name":"x","role":"viewer"}"#;
    let send = |more: &[(&str, &str)]| with(&stage, "POST", "/v1/keys", &cookie, more, body).said();
    let refused = (403, "cross-site-request".to_owned());
    for more in [
        &[("Sec-Fetch-Site", "cross-site"), csrf, json_type][..],
        &[("Sec-Fetch-Site", "same-site"), csrf, json_type],
        &[("Origin", "https://evil.example"), same, csrf, json_type],
        &[("Origin", "null"), csrf, json_type],
        &[csrf, json_type],
        &[same, json_type],
        &[("Origin", &own), json_type],
        &[same, csrf, ("Content-Type", "text/plain")],
        &[same, csrf, ("Content-Type", "application/x-www-form-urlencoded")],
        &[same, csrf],
    ] {
        assert_eq!(send(more), refused, "B59: {more:?}");
    }
    assert_eq!(with(&stage, "DELETE", "/v1/keys/key_x", &cookie, &[same], b"").said(), refused);
    assert_eq!(send(&[same, csrf, json_type]).0, 201);
    assert_eq!(send(&[("Origin", &own), csrf, json_type]).0, 201, "a browser without Sec-Fetch-Site");
    // Nobody is logged in from elsewhere.
    let elsewhere = [("Sec-Fetch-Site", "cross-site"), csrf, json_type];
    let given = json!({ "key": key }).to_string();
    assert_eq!(stage.send("POST", "/v1/session", &elsewhere, given.as_bytes()).said(), refused);
    assert_eq!(stage.send("POST", "/v1/session", &[same, json_type], given.as_bytes()).said(), refused);
    let plain = [same, csrf, ("Content-Type", "text/plain")];
    assert_eq!(stage.send("POST", "/v1/session", &plain, given.as_bytes()).status, 415);
}

#[test]
fn a_login_makes_a_new_session_and_ends_the_old_one() {
    let (stage, key) = guarded();
    let name = cookie(&log_in(&stage, &key)).split('=').next().expect("a name").to_owned();
    // A token that somebody planted is never taken over.
    let planted = format!("{name}=planted");
    let headers: Vec<_> = OWN.iter().copied().chain([("Cookie", planted.as_str())]).collect();
    let given = json!({ "key": key }).to_string();
    let first = cookie(&stage.send("POST", "/v1/session", &headers, given.as_bytes()));
    assert_ne!(first, planted, "S17: fixation");
    assert_eq!(with(&stage, "GET", "/v1/runs", &planted, &[], b"").status, 401);
    // And a session that was there before ends.
    let headers: Vec<_> = OWN.iter().copied().chain([("Cookie", first.as_str())]).collect();
    let second = cookie(&stage.send("POST", "/v1/session", &headers, given.as_bytes()));
    assert_eq!(with(&stage, "GET", "/v1/runs", &first, &[], b"").status, 401);
    assert_eq!(with(&stage, "GET", "/v1/runs", &second, &[], b"").status, 200);
}

#[test]
fn a_session_ends_at_logout_and_with_its_key() {
    let (stage, key) = guarded();
    let session = cookie(&log_in(&stage, &key));
    let gone = with(&stage, "DELETE", "/v1/session", &session, &OWN, b"");
    assert_eq!(gone.status, 204);
    assert!(gone.header("set-cookie").is_some_and(|set| set.contains("Max-Age=0")));
    assert_eq!(with(&stage, "GET", "/v1/runs", &session, &[], b"").said(), (401, "unauthenticated".into()));

    let bearer = format!("Bearer {key}");
    let made = json!({ "name": "ana", "role": "operator" }).to_string();
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let ana: Value = stage.send("POST", "/v1/keys", &headers, made.as_bytes()).json();
    let session = cookie(&log_in(&stage, ana["key"].as_str().expect("a key")));
    assert_eq!(with(&stage, "GET", "/v1/runs", &session, &[], b"").status, 200);
    let path = format!("/v1/keys/{}", ana["key_id"].as_str().expect("an id"));
    assert_eq!(stage.send("DELETE", &path, &headers[..1], b"").status, 204);
    assert_eq!(
        with(&stage, "GET", "/v1/runs", &session, &[], b"").status,
        401,
        "a revoked key takes its sessions along"
    );
}

#[test]
fn wrong_keys_open_nothing_and_are_slowed_down() {
    let (stage, key) = guarded();
    let mut statuses = Vec::new();
    for _ in 0..40 {
        let heard = log_in(&stage, "abide_live_wrong");
        assert!(heard.header("set-cookie").is_none());
        statuses.push(heard.status);
    }
    assert_eq!(statuses.first(), Some(&401));
    assert_eq!(statuses.last(), Some(&429), "S27");
    assert_eq!(log_in(&stage, &key).status, 429, "also a right one has to wait");
    let open = Stage::new();
    assert_eq!(log_in(&open, &key).said(), (400, "bad-request".into()), "no keys, no sessions");
}

#[test]
fn a_stream_does_not_outlive_its_session() {
    use std::io::{BufRead, BufReader, Write};
    let (stage, key) = guarded();
    let session = cookie(&log_in(&stage, &key));
    let mut stream = stage.connect();
    let head = format!("GET /v1/stream HTTP/1.1\r\nHost: {}\r\nCookie: {session}\r\n\r\n", stage.address);
    stream.write_all(head.as_bytes()).expect("sent");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status");
    assert!(line.contains(" 200 "), "{line}");
    assert_eq!(with(&stage, "DELETE", "/v1/session", &session, &OWN, b"").status, 204);
    let mut rest = String::new();
    while reader.read_line(&mut rest).is_ok_and(|read| read > 0) {}
    assert!(rest.ends_with("0\r\n\r\n"), "it was ended by the server: {rest:?}");
}
