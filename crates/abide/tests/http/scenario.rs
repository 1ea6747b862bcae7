//! A run through everything that seed 000 tells of: fetched with back-off, stopped by an expired token, approved, saved,
//! and asked about all the way; then every other endpoint.

use serde_json::{Value, json};

use crate::stage::Stage;

const NEWS: &str = "workflow: news
steps:
  - { id: 'news:fetch_feeds', task: fetch, retry: { max_attempts: 5, first: 2s, jitter: 0 } }
  - { id: summarize, task: summarize }
  - { id: publish, approval: { title: Publish?, approvers: [role:editor, ana], subject: \"${{ steps.summarize.output }}\", deadline: 2h } }
  - { id: save, task: drive.save, effect: external, reconcile: drive.find, connection: drive/main }
output: { doc: \"${{ steps.save.output.id }}\" }
";

#[test]
fn a_run_that_is_asked_about_all_the_way() {
    let stage = Stage::new();
    assert_eq!(stage.apply(NEWS).status, 201);
    assert_eq!(stage.apply(NEWS).status, 200, "the same document again changes nothing");
    let run = stage.start("news", json!({ "topic": "rust" }));
    let run = run.as_str();
    let record = |stage: &Stage| stage.get(&format!("/v1/runs/{run}")).json();
    let look = |what: &str| stage.get(&format!("/v1/runs/{run}/{what}"));

    assert_eq!(record(&stage)["blocking_reason"]["type"], "no_worker_listening");
    let task = stage.claim("w1");
    assert_eq!(task["step_id"], "news:fetch_feeds");
    assert_eq!(task["input"], json!({ "topic": "rust" }));
    assert!(task["traceparent"].as_str().is_some_and(|text| text.starts_with("00-")));
    let beat = stage.report(&task, "heartbeat", json!({ "progress": { "done": 3, "total": 10, "message": "feeds" } }));
    assert_eq!(beat.json()["cancel_requested"], false);
    assert_eq!(record(&stage)["progress"]["done"], 3);
    let limited = json!({ "class": "rate_limited", "message": "429 from a feed", "retry_after_ms": 600 });
    assert_eq!(stage.report(&task, "fail", limited).json()["run_state"], "retry_scheduled");
    let waiting = record(&stage);
    assert!(waiting["next_retry_at"].is_string() && waiting["blocking_reason"]["type"] == "rate_limited");
    assert!(waiting["evidence_links"].as_array().is_some_and(|links| links.iter().any(|link| link["type"] == "trace")));

    // A refresh only reads.
    let seq = record(&stage)["as_of_seq"].clone();
    for _ in 0..5 {
        assert_eq!(record(&stage)["as_of_seq"], seq);
    }

    let task = stage.claim("w1");
    let (first, epoch) = (task["task_id"].clone(), task["epoch"].clone());
    let done = stage.report(&task, "complete", json!({ "output": ["a", "b"], "claim_next": true })).json();
    let task = done["task"].clone();
    assert_eq!(task["step_id"], "summarize", "the next task came with the answer: {done}");
    let first = json!({ "task_id": first, "epoch": epoch });
    let again = stage.report(&first, "complete", json!({ "output": ["a", "b"], "claim_next": true })).json();
    assert_eq!(again["task"]["task_id"], task["task_id"], "an answer that was lost is given again, with its task");
    stage.report(&task, "complete", json!({ "output": { "text": "two items" } }));
    let waiting = stage.until(run, "waiting_on_approval");
    assert!(waiting["next_actions"].as_array().is_some_and(|actions| actions.iter().any(|one| one["id"] == "approve")));
    let inbox = stage.get("/v1/approvals").json();
    assert_eq!(inbox["approvals"][0]["run_id"], run);
    assert_eq!(inbox["approvals"][0]["subject"], json!({ "text": "two items" }));
    let digest = inbox["approvals"][0]["subject_digest"].clone();
    let other = json!({ "decision_by": "ana", "subject_digest": "0".repeat(64) });
    assert_eq!(stage.post(&format!("/v1/runs/{run}/approve"), other).said(), (409, "subject-changed".into()));
    let approved = json!({ "decision_by": "ana", "subject_digest": digest, "comment": "fine" });
    assert_eq!(stage.post(&format!("/v1/runs/{run}/approve"), approved).status, 200);

    // The token has expired: not an error, a state.
    let task = stage.claim("w1");
    let blocked = json!({ "on": "auth", "tool": "drive", "account": "main", "connect_url": "https://example.com/connect?state=s3cret" });
    assert_eq!(stage.report(&task, "block", blocked).json()["run_state"], "waiting_on_auth");
    let waiting = record(&stage);
    assert_eq!(waiting["blocking_reason"]["type"], "oauth_reconnect_required");
    assert!(!look("events").text().contains("s3cret") && !waiting.to_string().contains("s3cret"));
    assert_eq!(stage.get("/v1/connections").json()["connections"][0]["waiting_runs"], 1);
    assert_eq!(
        stage.get("/v1/connections").json()["connections"][0]["connect_url"],
        "https://example.com/connect?state=s3cret"
    );
    let explained = look("explain").json();
    assert!(explained["summary"].as_str().is_some_and(|text| text.contains("drive")), "{explained}");
    let past = look(&format!("explain?at={}", waiting["as_of_seq"])).json();
    assert_eq!(past["state"], "waiting_on_auth");
    assert_eq!(stage.post("/v1/connections/drive/main/reconnected", json!({})).json(), json!({ "released": 1 }));
    assert_eq!(stage.post("/v1/connections/drive/main/reconnected", json!({})).json(), json!({ "released": 0 }));

    // The answer is lost after the effect: it is looked for, not repeated.
    let task = stage.claim("w2");
    assert_eq!(task["step_id"], "save");
    let key = task["idempotency_key"].clone();
    assert_eq!(stage.report(&task, "fail", json!({ "class": "outcome_unknown", "message": "timeout" })).status, 200);
    let probe = stage.claim("w3");
    assert_eq!((probe["kind"].as_str(), &probe["idempotency_key"]), (Some("reconcile"), &key));
    let found = json!({ "output": { "found": true, "output": { "id": "doc-7" }, "external_id": "doc-7" } });
    stage.report(&probe, "complete", found);
    let ended = stage.until(run, "succeeded");
    assert!(ended["ended_at"].is_string());
    assert_eq!(look("output").json(), json!({ "doc": "doc-7" }));
    assert_eq!(look("input").json(), json!({ "topic": "rust" }));
    assert_eq!(look("status").json()["terminal_event"], "run.succeeded");
    let step = look("steps/save").json();
    assert_eq!((&step["state"], &step["proof"]["by"]), (&json!("completed"), &json!("reconcile")));

    // The log is whole, in order, and pages.
    let mut seqs = Vec::new();
    let mut after = 0;
    loop {
        let page = look(&format!("events?after={after}&limit=7")).json();
        let events = page["events"].as_array().expect("events").clone();
        seqs.extend(events.iter().map(|event| event["seq"].as_u64().expect("a number")));
        match page["next_cursor"].as_str() {
            Some(cursor) => after = cursor.parse().expect("a number"),
            None => break,
        }
    }
    assert_eq!(seqs, (1..=ended["as_of_seq"].as_u64().expect("a number")).collect::<Vec<_>>());

    // A rerun is another run, planned first.
    let plan = stage.post(&format!("/v1/runs/{run}/rerun"), json!({ "from_step": "save", "dry_run": true }));
    assert_eq!(plan.status, 200);
    assert_eq!(plan.json()["executed"], json!(["save"]), "{}", plan.text());
    let again = stage.post(&format!("/v1/runs/{run}/rerun"), json!({ "from_step": "save" }));
    assert_eq!(again.status, 201);
    assert_eq!(again.json()["origin"]["run_id"], run);
    assert_eq!(record(&stage)["as_of_seq"], ended["as_of_seq"], "the old run is untouched");
}

#[test]
fn a_run_is_steered() {
    let stage = Stage::new();
    stage.apply("workflow: wait\nsteps:\n  - { id: first, task: work }\n  - { id: signed, signal: document.signed, deadline: 7d, schema: { type: object } }\n  - { id: last, task: work }\n");
    let run = stage.start("wait", json!({}));
    let ask = |what: &str, body: Value| stage.post(&format!("/v1/runs/{run}/{what}"), body);
    assert_eq!(ask("pause", json!({ "reason": "look" })).json()["state"], "paused");
    assert_eq!(ask("resume", json!({ "steps": 1 })).status, 200);
    let task = stage.claim("w");
    stage.report(&task, "complete", json!({}));
    stage.until(&run, "paused");
    assert_eq!(ask("resume", json!({})).json()["state"], "waiting_on_tool");
    assert_eq!(ask("signals/document.signed", json!({ "payload": 7 })).said(), (422, "validation-failed".into()));
    assert_eq!(ask("signals/document.signed", json!({ "payload": { "by": "ana" } })).json()["state"], "queued");
    assert_eq!(stage.get(&format!("/v1/runs/{run}/steps/signed")).json()["output"], json!({ "by": "ana" }));
    assert_eq!(ask("pin", json!({})).status, 200);
    let task = stage.claim("w");
    let canceling = ask("cancel", json!({ "reason": "enough" }));
    assert_eq!((canceling.status, &canceling.json()["state"]), (202, &json!("cancel_requested")));
    assert_eq!(stage.report(&task, "heartbeat", json!({})).json()["cancel_requested"], true);
    assert_eq!(stage.report(&task, "canceled", json!({})).json()["run_state"], "canceled");
    let graph = stage.get(&format!("/v1/runs/{run}/graph")).json();
    assert_eq!(graph["nodes"].as_array().map(Vec::len), Some(3));
    let bundle = stage.get(&format!("/v1/runs/{run}/bundle"));
    assert!(bundle.header("content-disposition").is_some_and(|value| value.starts_with("attachment")));
    assert!(bundle.json()["events"].as_array().is_some_and(|events| events.len() > 5));
}

#[test]
fn an_operator_resolves_what_cannot_go_on() {
    let stage = Stage::new();
    stage.apply("workflow: pay\nsteps:\n  - { id: charge, task: charge, effect: external }\n");
    let run = stage.start("pay", json!({}));
    let task = stage.claim("w");
    stage.report(&task, "fail", json!({ "message": "no answer" }));
    let waiting = stage.until(&run, "waiting_on_operator");
    let handoff = stage.get(waiting["handoff"].as_str().expect("where the handoff is")).json();
    let actions = handoff.to_string();
    assert!(actions.contains("resolve"), "{handoff}");
    let resolve = |body: Value| stage.post(&format!("/v1/runs/{run}/resolve"), body);
    assert_eq!(resolve(json!({ "step_id": "nowhere", "action": "retry" })).said(), (404, "not-found".into()));
    let done =
        json!({ "step_id": "charge", "action": "complete", "output": { "id": 1 }, "reason": "seen in the bank" });
    assert_eq!(resolve(done).json()["state"], "succeeded");
    assert_eq!(resolve(json!({ "step_id": "charge", "action": "retry" })).said(), (409, "run-terminal".into()));
}

#[test]
fn many_runs_are_listed_counted_and_steered_at_once() {
    let stage = Stage::new();
    stage.apply("workflow: one\nsteps:\n  - { id: a, task: work }\n");
    stage.apply("workflow: two\nsteps:\n  - { id: a, task: work }\n");
    for n in 0..12 {
        let workflow = if n % 3 == 0 { "two" } else { "one" };
        let body =
            json!({ "workflow": workflow, "labels": { "team": if n < 6 { "red" } else { "blue" } }, "owner_id": "o1" });
        assert_eq!(stage.post("/v1/runs", body).status, 201);
    }
    let list = |query: &str| stage.get(&format!("/v1/runs?{query}")).json();
    let length = |value: &Value| value["runs"].as_array().map(Vec::len);
    assert_eq!(length(&list("workflow=two")), Some(4));
    assert_eq!(length(&list("label.team=red&workflow=one")), Some(4));
    assert_eq!(length(&list("state=open&owner_id=o1")), Some(12));
    assert_eq!(length(&list("state=failed&state=canceled")), Some(0));
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = list(&format!("limit=5{cursor}"));
        seen.extend(page["runs"].as_array().expect("runs").iter().map(|run| run["run_id"].to_string()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let mut unique = seen.clone();
    unique.sort();
    unique.dedup();
    assert_eq!((seen.len(), unique.len()), (12, 12));
    assert_eq!(stage.get("/v1/runs/counts").json()["counts"]["queued"], 12);
    assert_eq!(stage.get("/v1/runs/counts?by=workflow").json()["counts"], json!({ "one": 8, "two": 4 }));
    assert!(stage.get("/v1/runs/counts?by=root_cause").json()["counts"].is_object());
    let bulk = |dry_run: bool| {
        let body = json!({ "action": "cancel", "filter": { "workflow": "two", "state": ["queued", "paused"] }, "dry_run": dry_run, "reason": "x" });
        stage.post("/v1/runs/bulk", body).json()
    };
    assert_eq!(bulk(true), json!({ "matched": 4, "applied": 0, "refused": [] }));
    assert_eq!(bulk(false), json!({ "matched": 4, "applied": 4, "refused": [] }));
    assert_eq!(length(&list("state=canceled")), Some(4));
    let unique = json!({ "workflow": "one", "unique": "u" });
    assert_eq!(stage.post("/v1/runs", unique.clone()).status, 201);
    let second = stage.post("/v1/runs", unique);
    assert_eq!(second.said(), (409, "run-exists".into()));
    assert!(second.json()["run_id"].is_string());
}

#[test]
fn a_coded_body_reports_and_begins_in_one_call() {
    let stage = Stage::new();
    stage.apply("workflow: research\ncoded: { revision: \"3\" }\n");
    let run = stage.start("research", json!({ "q": 1 }));
    let claim = |stage: &Stage| {
        let asked = json!({ "worker": "b", "queues": ["default"], "handlers": ["research@3"], "wait_ms": 10_000 });
        stage.post("/v1/tasks/claim", asked).json()["tasks"][0].clone()
    };
    let body = claim(&stage);
    assert_eq!((&body["kind"], &body["steps"]), (&json!("body"), &json!({})));
    let told = stage.report(&body, "steps", json!({ "begin": [{ "step_id": "search" }] })).json();
    assert_eq!((&told["next"], &told["steps"]["search"]["state"]), (&json!("continue"), &json!("running")));
    let begun = told["steps"]["search"]["begun_at"].clone();
    let next = json!({
        "done": [{ "step_id": "search", "output": [1, 2], "begun_at": begun }],
        "wait": [{ "step_id": "ok", "approval": { "title": "Go on?", "approvers": ["ana"] } }],
    });
    assert_eq!(stage.report(&body, "steps", next).json()["next"], "released");
    stage.until(&run, "waiting_on_approval");
    stage.post(&format!("/v1/runs/{run}/approve"), json!({ "decision_by": "ana" }));
    let body = claim(&stage);
    assert_eq!(body["steps"]["search"]["output"], json!([1, 2]), "what is stored comes back: {body}");
    assert_eq!(body["steps"]["ok"]["output"]["decision"], "approved", "{body}");
    let asked = json!({ "begin": [{ "step_id": "search" }], "wait": [{ "step_id": "ok", "approval": { "title": "Go on?", "approvers": ["ana"] } }] });
    assert_eq!(stage.report(&body, "steps", asked).json()["next"], "continue");
    assert_eq!(stage.report(&body, "complete", json!({ "output": "done" })).json()["run_state"], "succeeded");
}

#[test]
fn callbacks_effects_and_batches() {
    let stage = Stage::new();
    stage.apply("workflow: call\nsteps:\n  - { id: a, task: work, effect: external, reconcile: find }\n");
    let run = stage.start("call", json!({}));
    let task = stage.claim("w");
    let key = stage.report(&task, "effects", json!({ "name": "mail" })).json();
    assert!(key["idempotency_key"].is_string() && key.get("receipt").is_none());
    stage.report(&task, "effects", json!({ "name": "mail", "external_id": "m1", "result": { "ok": true } }));
    let known = stage.report(&task, "effects", json!({ "name": "mail" })).json();
    assert_eq!((&known["receipt"]["external_id"], &known["receipt"]["result"]), (&json!("m1"), &json!({ "ok": true })));
    let made = stage.report(&task, "callbacks", json!({ "name": "scan" }));
    assert_eq!(made.status, 201);
    let url = made.json()["url"].as_str().expect("a url").to_owned();
    let path = &url[url.find("/v1/callbacks").expect("its path")..];
    assert_eq!(
        stage.report(&task, "block", json!({ "on": "tool", "callback": "scan", "deadline": "1h" })).json()["run_state"],
        "waiting_on_tool"
    );
    assert_eq!(stage.post(path, json!({ "clean": true })).json(), json!({ "applied": true }));
    assert_eq!(stage.post(path, json!({ "clean": true })).said(), (410, "token-used".into()));
    let task = stage.claim("w");
    assert_eq!(task["answers"][0]["payload"], json!({ "clean": true }));
    let token = path.rsplit('/').next().expect("a token");
    assert!(!stage.get(&format!("/v1/runs/{run}/events?limit=500")).text().contains(token));

    let second = stage.start("call", json!({}));
    let other = stage.claim("w");
    let items = json!({ "items": [
        { "op": "complete", "task_id": task["task_id"], "epoch": task["epoch"], "output": 1 },
        { "op": "heartbeat", "task_id": other["task_id"], "epoch": other["epoch"] },
        { "op": "complete", "task_id": other["task_id"], "epoch": 77 },
        { "op": "dance", "task_id": other["task_id"], "epoch": 1 },
    ] });
    let results = stage.post("/v1/tasks/batch", items).json();
    let statuses: Vec<_> =
        results["results"].as_array().expect("results").iter().map(|one| one["status"].as_u64()).collect();
    assert_eq!(statuses, [Some(200), Some(200), Some(409), Some(422)], "{results}");
    assert_eq!((stage.state(&run), stage.state(&second)), ("succeeded".into(), "running".into()));
}

#[test]
fn the_system_tells_about_itself() {
    let mut stage = Stage::new();
    assert_eq!(stage.get("/healthz").status, 200);
    // A server is ready once it has committed, which takes a busy machine a while.
    for _ in 0..600 {
        if stage.get("/readyz").status == 200 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(stage.get("/readyz").status, 200);
    stage.apply("workflow: one\nsteps:\n  - { id: a, task: work }\n");
    stage.start("one", json!({}));
    let task = stage.claim("w");
    assert_eq!(stage.get("/v1/workers").json()["workers"][0]["worker"], "w");
    assert_eq!(stage.get("/v1/queues").json()["queues"][0]["queue"], "default");
    assert!(stage.get("/v1/insights").json()["time_in_state"].is_object());
    assert!(stage.get("/v1/contract").json()["transitions"].as_array().is_some_and(|rows| rows.len() > 100));
    assert_eq!(stage.get("/v1/workflows").json()["workflows"][0]["workflow_id"], "one");
    assert_eq!(stage.get("/v1/workflows/one/versions/1").json()["version"], 1);
    assert_eq!(stage.get("/v1/workflows/one/versions/2").status, 404);
    assert_eq!(stage.get("/problems/lease-lost").status, 200);
    let metrics = stage.get("/metrics").text();
    for name in [
        "abide_runs",
        "abide_queue_listeners",
        "abide_approvals_overdue",
        "abide_stalls_per_1000_runs",
        "abide_http_request_seconds_count",
    ] {
        assert!(metrics.contains(name), "{name}");
    }
    // What was acknowledged survives a crash, and a worker goes on with its lease.
    stage.crash_and_restart(&[]);
    assert_eq!(stage.report(&task, "complete", json!({})).json()["run_state"], "succeeded");
}

#[test]
fn the_reference_lists_exactly_the_routes() {
    let stage = Stage::new();
    let document = stage.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut listed = 0;
    for (path, operations) in document["paths"].as_object().expect("paths") {
        let filled =
            path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect::<Vec<_>>().join("/");
        for method in operations.as_object().expect("operations").keys() {
            listed += 1;
            if path == "/v1/stream" {
                continue;
            }
            let status =
                stage.send(&method.to_uppercase(), &filled, &[("Content-Type", "application/json")], b"{}").status;
            let documented = operations[method]["responses"].get(status.to_string()).is_some();
            assert!(documented && status != 405 && status < 500, "{method} {path}: {status}");
        }
        // Whatever is not listed is not taken.
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            if operations.get(method.to_lowercase()).is_none() {
                assert_eq!(stage.send(method, &filled, &[], b"").status, 405, "{method} {path}");
            }
        }
    }
    assert!(listed >= 55, "{listed}");
}
