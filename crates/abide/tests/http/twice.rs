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

const HELLO: &str = "workflow: hello\nsteps:\n  - { id: greet, task: greet }\n";

#[test]
fn a_key_that_cannot_be_used_is_refused_with_the_reason() {
    let stage = Stage::new();
    stage.apply(HELLO);
    let rows = [
        ("bestellung-über-1", "byte 12 of it is not printable ASCII"),
        ("bestellung-über-2", "byte 12 of it is not printable ASCII"),
        ("", "it is empty"),
        (&"k".repeat(256), "it has 256 bytes"),
        ("a\r\nIdempotency-Key: b", "it came more than once"),
    ];
    for (key, why) in rows {
        let heard = keyed(&stage, "/v1/runs", key, json!({ "workflow": "hello" }));
        assert_eq!(heard.said(), (400, "invalid-idempotency-key".into()), "{key:?}");
        assert!(heard.text().contains(why), "{key:?}: {}", heard.text());
    }
    assert_eq!(stage.get("/v1/runs").json()["runs"], json!([]), "nothing was started");
}

#[test]
fn the_same_key_of_two_approvers_is_two_decisions() {
    let mut stage = Stage::new();
    let mut key_of = |name: &str, role: &str| {
        let key = stage.post("/v1/keys", json!({ "name": name, "role": role })).json()["key"].clone();
        let key = key.as_str().expect("a key").to_owned();
        stage.key.get_or_insert_with(|| key.clone());
        format!("Bearer {key}")
    };
    let [_, ana, ben] = [("root", "admin"), ("ana", "approver"), ("ben", "approver")].map(|(n, r)| key_of(n, r));
    stage.apply("workflow: g\nsteps:\n  - { id: g, approval: { title: Go, approvers: [ana, ben], quorum: 2 } }\n");
    let run = stage.start("g", json!({}));
    let approve = |who: &str| {
        let headers = [("Authorization", who), ("Idempotency-Key", "yes")];
        stage.post_with(&format!("/v1/runs/{run}/approve"), &headers, json!({}))
    };
    let (first, second) = (approve(&ana), approve(&ben));
    assert_eq!((first.status, second.status), (200, 200), "{}", second.text());
    assert_eq!(second.header("idempotency-replayed"), None, "ben's decision is his own");
    stage.until(&run, "succeeded");
    let again = approve(&ana);
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")), "{}", again.text());
}

#[test]
fn a_key_belongs_to_its_route() {
    let stage = Stage::new();
    stage.apply(HELLO);
    let run = stage.start("hello", json!({}));
    for what in ["pause", "resume"] {
        let heard = keyed(&stage, &format!("/v1/runs/{run}/{what}"), "k", json!({}));
        assert_eq!(heard.status, 200, "{what}: {}", heard.text());
    }
    let another = stage.start("hello", json!({}));
    let elsewhere = keyed(&stage, &format!("/v1/runs/{another}/pause"), "k", json!({}));
    assert_eq!(elsewhere.said(), (422, "idempotency-key-reused".into()), "the path is part of the request");
}

/// Earlier builds kept a key by its namespace alone.
#[tokio::test]
async fn a_retry_of_what_an_earlier_build_did_is_answered_as_it_was() {
    use abide_core::ids::Digest;
    use abide_core::run::command::Actor;
    use abide_engine::request::{Answer, Idempotency, NewRun, Request, What};

    let data = std::env::temp_dir().join(format!("abide-former-keys-{}", std::process::id()));
    let engine = abide_engine::Engine::open(&data).expect("an engine");
    engine.register(HELLO).await.expect("a document");
    let body = json!({ "workflow": "hello" });
    let digest = Digest::of(format!("POST\0/v1/runs\0{body}\0").as_bytes());
    let what = What::Start(Box::new(NewRun::of("hello", "{}", Actor::user("anonymous"))));
    let idempotency = Some(Idempotency::new("k", digest));
    let before = engine.ask(Request { namespace: engine.namespace().clone(), idempotency, what }).await;
    let Ok(Answer::Run(before)) = before else { panic!("{before:?} is no run") };
    engine.shutdown().await;
    drop(engine);

    let stage = Stage::on(data, &[]);
    let retried = keyed(&stage, "/v1/runs", "k", body);
    assert_eq!((retried.status, retried.header("idempotency-replayed")), (200, Some("true")), "{}", retried.text());
    assert_eq!(retried.json()["run_id"], before.run_id.as_str());
    let fresh = keyed(&stage, "/v1/runs", "k", json!({ "workflow": "hello", "input": { "n": 2 } }));
    assert_eq!(fresh.status, 201, "another request under an old key is a new one: {}", fresh.text());
}
