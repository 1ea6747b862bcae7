//! The same Idempotency-Key on calls that make more than a run: done once, answered alike, and no secret is kept.

use serde_json::{Value, json};

use crate::stage::{Heard, Stage};

fn keyed(stage: &Stage, path: &str, key: &str, body: Value) -> Heard {
    stage.post_with(path, &[("Idempotency-Key", key)], body)
}

#[test]
fn a_key_is_made_once_and_shown_once() {
    let mut stage = Stage::new();
    let admin = stage.post("/v1/keys", json!({ "name": "root", "role": "admin" })).json()["key"].clone();
    stage.key = admin.as_str().map(Into::into);
    let asked = json!({ "name": "ci", "role": "worker" });
    let made = keyed(&stage, "/v1/keys", "k1", asked.clone());
    let secret = made.json()["key"].as_str().expect("a key").to_owned();
    stage.crash_and_restart(&[]);
    for _ in 0..2 {
        let again = keyed(&stage, "/v1/keys", "k1", asked.clone());
        assert_eq!(again.said(), (409, "shown-once".into()));
        assert_eq!((&again.json()["key_id"], &again.json()["outcome"]), (&made.json()["key_id"], &json!("applied")));
        assert!(!again.text().contains(&secret), "{}", again.text());
    }
    let other = keyed(&stage, "/v1/keys", "k1", json!({ "name": "ci", "role": "admin" }));
    assert_eq!(other.said(), (422, "idempotency-key-reused".into()));
    let keys = stage.get("/v1/keys").json()["keys"].as_array().map(Vec::len);
    assert_eq!(keys, Some(2), "root and ci");
    assert_eq!(keyed(&stage, "/v1/keys", "k2", asked).status, 201, "another key makes another one");
}

#[test]
fn a_link_is_made_once_and_its_address_is_stored_nowhere() {
    let stage = Stage::new();
    stage.apply("workflow: g\nsteps:\n  - { id: g, approval: { title: Go, approvers: [ana] } }\n");
    let run = stage.start("g", json!({}));
    let path = format!("/v1/runs/{run}/approvals/g/links");
    let made = keyed(&stage, &path, "l1", json!({ "for": "ana" })).json();
    assert_eq!(keyed(&stage, &path, "l1", json!({ "for": "ana" })).said(), (409, "shown-once".into()));
    assert_eq!(keyed(&stage, &path, "l1", json!({ "for": "ben" })).said(), (422, "idempotency-key-reused".into()));

    let url = made["url"].as_str().expect("a url");
    let page = &url[url.find("/links").expect("its path")..];
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    assert_eq!(stage.send("POST", page, &form, b"decision=approve").status, 200, "the link works");
    stage.until(&run, "succeeded");
    let late = keyed(&stage, &path, "l1", json!({ "for": "ana" }));
    assert_eq!(late.said(), (409, "shown-once".into()), "also when nothing waits any more");
    let token = page.trim_start_matches("/links/").as_bytes();
    for file in ["abide.db", "abide.db-wal"] {
        let bytes = std::fs::read(stage.data.join(file)).expect("the store");
        assert!(!bytes.windows(token.len()).any(|part| part == token), "the address is in {file}");
    }
}

#[test]
fn a_deed_for_many_runs_is_done_once() {
    let stage = Stage::new();
    stage.apply("workflow: a\nsteps:\n  - { id: s, task: work }\n");
    let failed: Vec<String> = (0..3)
        .map(|_| {
            let run = stage.start("a", json!({}));
            stage.report(&stage.claim("w"), "fail", json!({ "class": "fatal", "message": "no" }));
            stage.until(&run, "failed");
            run
        })
        .collect();
    let asked = json!({ "filter": { "state": "failed" }, "action": "retry", "reason": "again" });
    let first = keyed(&stage, "/v1/runs/bulk", "b1", asked.clone());
    assert_eq!(first.json()["applied"], 3, "{}", first.text());
    // A run that has failed since is not part of what was answered, and is not touched.
    stage.report(&stage.claim("w"), "fail", json!({ "class": "fatal", "message": "no" }));
    let again = keyed(&stage, "/v1/runs/bulk", "b1", asked);
    assert_eq!((again.status, again.text()), (200, first.text()));
    assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), (None, Some("true")));
    let runs = stage.get("/v1/runs").json()["runs"].as_array().map(Vec::len);
    assert_eq!(runs, Some(2 * failed.len()), "each was retried once");
    let other = json!({ "filter": { "state": "failed" }, "action": "retry", "reason": "else" });
    assert_eq!(keyed(&stage, "/v1/runs/bulk", "b1", other).said(), (422, "idempotency-key-reused".into()));
}
