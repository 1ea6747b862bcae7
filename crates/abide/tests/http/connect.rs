//! The address at which people reconnect comes from the holder of the lease alone, and leads where people may be sent.

use serde_json::{Value, json};

use crate::access::{guarded, key};
use crate::stage::{Heard, Stage};

const ONE: &str = "workflow: w\nsteps:\n  - { id: a, task: t }\n";
const CODED: &str = "workflow: c\ncoded: { revision: '1' }\n";

fn block(stage: &Stage, key: &str, task: &Value, epoch: u64, url: &str) -> Heard {
    let path = format!("/v1/tasks/{}/block", task["task_id"].as_str().expect("a task"));
    with_key(stage, key, &path, json!({ "epoch": epoch, "on": "auth", "tool": "drive", "connect_url": url }))
}

fn with_key(stage: &Stage, key: &str, path: &str, body: Value) -> Heard {
    stage.post_with(path, &[("Authorization", &format!("Bearer {key}"))], body)
}

fn kept(stage: &Stage) -> Value {
    stage.get("/v1/connections").json()["connections"].clone()
}

#[test]
fn a_connect_url_is_kept_only_from_the_holder_of_the_lease() {
    let stage = guarded();
    let worker = key(&stage, json!({ "name": "w", "role": "worker" }));
    let other = key(&stage, json!({ "name": "other", "role": "worker" }));
    assert_eq!(stage.apply(ONE).status, 201);
    let run = stage.start("w", json!({}));
    let claimed = with_key(&stage, &worker, "/v1/tasks/claim", json!({ "worker": "w", "queues": ["default"] }));
    let task = claimed.json()["tasks"][0].clone();
    let epoch = task["epoch"].as_u64().expect("an epoch");
    let (good, planted) = ("https://drive.example/connect?state=s", "https://evil.example/connect");

    assert_eq!(block(&stage, &other, &task, epoch, planted).said(), (403, "not-lease-owner".into()));
    assert_eq!(block(&stage, &worker, &task, epoch + 1, planted).said(), (409, "lease-lost".into()));
    for refused in
        ["http://drive.example/connect", "javascript:alert(1)", "https://a:b@drive.example/", "no address", ""]
    {
        assert_eq!(
            block(&stage, &worker, &task, epoch, refused).said(),
            (422, "validation-failed".into()),
            "{refused}"
        );
    }
    assert_eq!(stage.state(&run), "running", "a refused report changes nothing");
    assert_eq!(block(&stage, &worker, &task, epoch, good).status, 200);
    assert_eq!(kept(&stage)[0]["connect_url"], good);
    assert_eq!(kept(&stage)[0]["connect_host"], "drive.example");

    // Its lease is given back: a second address is not taken, whoever reports it.
    block(&stage, &worker, &task, epoch, planted);
    block(&stage, &other, &task, epoch, planted);
    assert_eq!(kept(&stage)[0]["connect_url"], good);
    assert_eq!(stage.post("/v1/connections/drive/default/reconnected", json!({})).status, 200);
    assert_eq!(kept(&stage)[0].get("connect_url"), None);
}

#[test]
fn a_coded_body_and_a_batch_tell_where_to_reconnect_too() {
    let stage = Stage::within(&[("ABIDE_ALLOW_TARGET", "localhost:8080")]);
    assert_eq!(stage.apply(CODED).status, 201);
    let body = || {
        stage.start("c", json!({}));
        let asked = json!({ "worker": "w", "queues": ["default"], "handlers": ["c@1"], "wait_ms": 10_000 });
        stage.post("/v1/tasks/claim", asked).json()["tasks"][0].clone()
    };
    let wait = |url: &str| json!([{ "step_id": "drive", "auth": { "tool": "drive", "connect_url": url } }]);
    let refused = stage.report(&body(), "steps", json!({ "wait": wait("http://elsewhere/") }));
    assert_eq!(refused.said(), (422, "validation-failed".into()));
    assert_eq!(refused.json()["errors"][0]["pointer"], "/wait/0/auth/connect_url");
    assert_eq!(refused.json()["attempt_ended"], true, "a report of steps that cannot be taken ends its attempt");
    assert!(kept(&stage).as_array().is_some_and(Vec::is_empty), "{}", kept(&stage));
    assert_eq!(stage.report(&body(), "steps", json!({ "wait": wait("http://localhost:8080/x") })).status, 200);
    assert_eq!(kept(&stage)[0]["connect_host"], "localhost");

    assert_eq!(stage.apply(ONE).status, 201);
    stage.start("w", json!({}));
    let task = stage.claim("w");
    let item = json!({ "op": "block", "task_id": task["task_id"], "epoch": task["epoch"], "on": "auth", "tool": "mail",
                       "connect_url": "https://mail.example/" });
    let done = stage.post("/v1/tasks/batch", json!({ "items": [item] })).json();
    assert_eq!(done["results"][0]["status"], 200);
    assert_eq!(kept(&stage)[1]["connect_host"], "mail.example");
}
