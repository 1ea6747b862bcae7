//! Who may do what: every role on every route, namespaces that do not see each other, links that decide once.

use serde_json::{Value, json};

use crate::stage::Stage;

pub fn key(stage: &Stage, body: Value) -> String {
    let made = stage.post("/v1/keys", body);
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()["key"].as_str().expect("a key").to_owned()
}

/// A server whose first key is an admin's.
pub fn guarded() -> Stage {
    let mut stage = Stage::new();
    let admin = key(&stage, json!({ "name": "root", "role": "admin" }));
    assert_eq!(stage.get("/v1/runs").said(), (401, "unauthenticated".into()), "from the first key on keys are needed");
    assert!(stage.get("/v1/runs").header("www-authenticate").is_some());
    stage.key = Some(admin);
    stage
}

#[test]
fn each_role_does_exactly_what_the_table_says() {
    let stage = guarded();
    let document = stage.get("/openapi.json").json();
    let mut checked = 0;
    for role in ["viewer", "operator", "worker", "approver", "admin"] {
        let key = key(&stage, json!({ "name": role, "role": role }));
        let bearer = format!("Bearer {key}");
        for (path, operations) in document["paths"].as_object().expect("paths") {
            let filled = path
                .split('/')
                .map(|part| if part.starts_with('{') { "x" } else { part })
                .collect::<Vec<_>>()
                .join("/");
            for (method, operation) in operations.as_object().expect("operations") {
                let roles: Vec<_> =
                    operation["x-roles"].as_array().expect("roles").iter().filter_map(Value::as_str).collect();
                let allowed = roles.contains(&"anybody") || roles.contains(&role);
                let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
                if filled.ends_with("/stream") && allowed {
                    continue;
                }
                let heard = stage.send(&method.to_uppercase(), &filled, &headers, b"{\"nonsense\":1}");
                let refused = heard.said() == (403, "forbidden".into()) && !heard.text().contains("Payloads are read");
                assert_eq!(refused, !allowed, "B4: {role} {method} {path}: {}", heard.text());
                checked += 1;
            }
        }
    }
    assert!(checked > 250, "{checked}");
}

#[test]
fn namespaces_do_not_see_each_other() {
    let stage = guarded();
    let other = key(&stage, json!({ "name": "other", "role": "admin", "namespace": "other" }));
    stage.apply("workflow: one\nsteps:\n  - { id: a, task: work }\n");
    let run = stage.start("one", json!({ "secret": 1 }));
    let bearer = format!("Bearer {other}");
    let as_other = |method: &str, path: &str, body: &[u8]| {
        stage.send(method, path, &[("Authorization", bearer.as_str()), ("Content-Type", "application/json")], body)
    };
    let unlike = |heard: &crate::stage::Heard| {
        let mut problem = heard.json();
        problem["request_id"] = Value::Null;
        problem["instance"] = Value::Null;
        problem
    };
    for path in [
        "", "/status", "/events", "/steps", "/steps/a", "/input", "/output", "/explain", "/handoff", "/bundle",
        "/graph", "/stream",
    ] {
        let theirs = as_other("GET", &format!("/v1/runs/{run}{path}"), b"");
        let nobodys = as_other("GET", &format!("/v1/runs/run_nobody{path}"), b"");
        assert_eq!(theirs.status, 404, "{path}");
        assert_eq!(unlike(&theirs), unlike(&nobodys), "B5 {path}");
    }
    for what in ["cancel", "pause", "resume", "retry", "rerun", "pin", "reconnect", "signals/x"] {
        assert_eq!(
            as_other("POST", &format!("/v1/runs/{run}/{what}"), b"{}").said(),
            (404, "not-found".into()),
            "{what}"
        );
    }
    assert_eq!(as_other("GET", "/v1/runs", b"").json()["runs"], json!([]));
    assert_eq!(as_other("POST", "/v1/runs", b"{\"workflow\":\"one\"}").said(), (404, "workflow-not-found".into()));
    let task = stage.claim("w");
    let path = format!("/v1/tasks/{}/complete", task["task_id"].as_str().expect("a task"));
    assert_eq!(as_other("POST", &path, b"{\"epoch\":1}").said(), (404, "not-found".into()));
    let keys = as_other("GET", "/v1/keys", b"").json();
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(1), "{keys}");
    let foreign = as_other("POST", "/v1/keys", b"{\"name\":\"x\",\"role\":\"admin\",\"namespace\":\"default\"}");
    assert_eq!(foreign.said(), (403, "forbidden".into()));
}

#[test]
fn a_worker_sees_its_queues_and_its_leases() {
    let mut stage = guarded();
    let admin = stage.key.clone();
    let worker = key(&stage, json!({ "name": "w", "role": "worker", "queues": ["default"] }));
    let stranger = key(&stage, json!({ "name": "s", "role": "worker" }));
    let viewer = key(&stage, json!({ "name": "v", "role": "viewer" }));
    stage.apply("workflow: one\nsteps:\n  - { id: a, task: work }\n  - { id: b, task: work }\n");
    let run = stage.start("one", json!({ "secret": "s3cret" }));
    let input = format!("/v1/runs/{run}/input");
    stage.key = Some(worker);
    assert_eq!(stage.get(&input).said(), (403, "forbidden".into()), "not before it holds a lease");
    let elsewhere = json!({ "worker": "p", "queues": ["payments"], "wait_ms": 0 });
    assert_eq!(stage.post("/v1/tasks/claim", elsewhere).said(), (403, "forbidden".into()));
    let task = stage.claim("p1");
    assert_eq!(stage.get(&input).json(), json!({ "secret": "s3cret" }));
    stage.key = Some(stranger);
    assert_eq!(stage.report(&task, "complete", json!({})).said(), (403, "not-lease-owner".into()), "B54");
    assert_eq!(stage.get(&input).said(), (403, "forbidden".into()));
    stage.key = Some(viewer);
    assert_eq!(stage.get(&input).said(), (403, "forbidden".into()));
    stage.key = admin.clone();
    assert_eq!(stage.get(&format!("/v1/runs/{run}")).json()["lease_owner"], "w/p1");
}

#[test]
fn a_key_decides_in_its_own_name() {
    let mut stage = guarded();
    let admin = stage.key.clone();
    stage.apply("workflow: gate\nsteps:\n  - { id: g, approval: { title: Go?, approvers: [role:boss] } }\n");
    let run = stage.start("gate", json!({}));
    let approve = format!("/v1/runs/{run}/approve");
    let ana = key(&stage, json!({ "name": "ana", "role": "approver" }));
    let ben = key(&stage, json!({ "name": "ben", "role": "approver", "groups": ["boss"] }));
    stage.key = Some(ana);
    assert_eq!(stage.post(&approve, json!({ "decision_by": "ben" })).said(), (403, "forbidden".into()));
    assert_eq!(stage.post(&approve, json!({})).said(), (403, "not-an-approver".into()));
    stage.key = Some(ben);
    assert_eq!(stage.post(&approve, json!({})).json()["state"], "succeeded");
    stage.key = admin;
    let steps = stage.get(&format!("/v1/runs/{run}/steps/g")).json();
    assert_eq!(steps["output"]["by"], "ben");
}

#[test]
fn a_revoked_key_opens_nothing_and_no_key_is_on_the_disk() {
    let stage = guarded();
    let made = stage.post("/v1/keys", json!({ "name": "x", "role": "viewer" })).json();
    let (text, id) = (made["key"].as_str().expect("a key"), made["key_id"].as_str().expect("an id"));
    let bearer = format!("Bearer {text}");
    let with_it = || stage.send("GET", "/v1/runs", &[("Authorization", bearer.as_str())], b"");
    assert_eq!(with_it().status, 200);
    assert_eq!(stage.send("DELETE", &format!("/v1/keys/{id}"), &[], b"").status, 204);
    assert_eq!(with_it().said(), (401, "invalid-credentials".into()));
    assert_eq!(stage.send("DELETE", "/v1/keys/key_nobody", &[], b"").said(), (404, "not-found".into()));
    let listed = stage.get("/v1/keys").text();
    assert!(listed.contains("revoked_at") && !listed.contains(text));
    for entry in std::fs::read_dir(&stage.data).expect("a directory") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a file");
        for key in [text, stage.key.as_deref().expect("a key")] {
            let secret = &key.as_bytes()[21..];
            assert!(!bytes.windows(secret.len()).any(|part| part == secret), "a key is on the disk");
        }
    }
}

#[test]
fn the_first_key_is_made_offline_and_the_last_one_closes_the_door() {
    let data = std::env::temp_dir().join(format!("abide-first-key-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&data);
    let make = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_abide"));
        let out =
            command.args(["key", "create", "root", "--role", "admin", "--data"]).arg(&data).output().expect("a key");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text").trim().to_owned()
    };
    let key = make();
    let mut stage = Stage::on(data.clone(), &[]);
    assert_eq!(stage.get("/v1/runs").said(), (401, "unauthenticated".into()));
    stage.key = Some(key);
    let id = stage.get("/v1/keys").json()["keys"][0]["key_id"].as_str().expect("an id").to_owned();
    assert_eq!(stage.send("DELETE", &format!("/v1/keys/{id}"), &[], b"").status, 204);
    stage.key = None;
    assert_eq!(stage.get("/v1/runs").said(), (401, "unauthenticated".into()), "no keys left is not no keys needed");

    // A store in use is copied whole.
    let copy = data.with_extension("copy");
    let _ = std::fs::remove_dir_all(&copy);
    let run = |arguments: &[&str], directory: &std::path::Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_abide"));
        command.args(arguments).arg("--data").arg(directory).output().expect("the program runs")
    };
    let copied = run(&["backup", copy.to_str().expect("a path")], &data);
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    assert!(run(&["doctor"], &copy).status.success());
    let files: Vec<_> =
        std::fs::read_dir(&copy).expect("a directory").map(|file| file.expect("a file").file_name()).collect();
    assert_eq!(files, ["abide.db"], "a check makes no file");
    assert!(!run(&["doctor"], &data).status.success(), "a directory in use cannot be examined");
    let _ = std::fs::remove_dir_all(&copy);
}

#[test]
fn a_link_shows_to_all_and_decides_once() {
    let mut stage = guarded();
    stage.apply("workflow: gate\nsteps:\n  - { id: g, approval: { title: \"<b>Go?</b>\", approvers: [role:boss], quorum: 2 } }\n");
    let run = stage.start("gate", json!({}));
    let keyed = |asked: Value| stage.post("/v1/keys", asked).json()["key"].as_str().expect("a key").to_owned();
    for name in ["ana", "eve"] {
        keyed(json!({ "name": name, "role": "approver", "groups": ["boss"] }));
    }
    let bot = format!("Bearer {}", keyed(json!({ "name": "bot", "role": "operator", "acts_for_others": true })));
    let path = format!("/v1/runs/{run}/approvals/g/links");
    let make = |body: Value| stage.post_with(&path, &[("Authorization", &bot)], body);
    let made = make(json!({ "for": "ana" }));
    assert_eq!(made.status, 201, "{}", made.text());
    let url = made.json()["url"].as_str().expect("a url").to_owned();
    let path = url[url.find("/links").expect("its path")..].to_owned();
    let short = make(json!({ "for": "eve", "expires_in": "1ms" })).json()["url"].as_str().expect("a url").to_owned();
    let short = short[short.find("/links").expect("its path")..].to_owned();
    stage.key = None;
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    for _ in 0..3 {
        let page = stage.get(&path);
        assert_eq!(page.status, 200, "B46: looking changes nothing");
        assert!(page.text().contains("&lt;b&gt;Go?") && page.header("content-security-policy").is_some());
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    }
    assert_eq!(stage.send("HEAD", &path, &[], b"").status, 200);
    let stage = &stage;
    let heard: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..20).map(|_| scope.spawn(|| stage.send("POST", &path, &form, b"decision=approve").said())).collect();
        asking.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    assert_eq!(heard.iter().filter(|(status, _)| *status == 200).count(), 1, "S15: {heard:?}");
    assert!(heard.iter().all(|said| said.0 == 200 || *said == (410, "token-used".into())), "B47: {heard:?}");
    assert_eq!(stage.send("POST", &short, &form, b"decision=approve").said(), (410, "token-expired".into()), "B47");
    assert_eq!(stage.get(&path).status, 410);
}

#[test]
fn a_public_address_without_a_key_is_refused() {
    let data = std::env::temp_dir().join(format!("abide-public-{}", std::process::id()));
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_abide"))
        .args(["serve", "--listen", "0.0.0.0:0", "--data"])
        .arg(&data)
        .output()
        .expect("the program runs");
    let _ = std::fs::remove_dir_all(&data);
    assert!(!out.status.success(), "S7");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("abide key create"), "{said}");
}

#[test]
fn sensitive_values_reach_tasks_and_nobody_else() {
    let stage = Stage::new();
    stage.apply(
        "workflow: card
sensitive: [/card]
steps:
  - { id: pay, task: pay, with: { card: \"${{ input.card }}\", amount: 1 } }
  - { id: ok, approval: { title: Ok?, approvers: [ana], subject: { amount: 1 } } }
",
    );
    let run = stage.start("card", json!({ "card": "4111-1111-canary", "name": "Ana" }));
    let task = stage.claim("w");
    assert_eq!(task["input"]["card"], "4111-1111-canary");
    stage.report(&task, "complete", json!({ "output": { "id": 7 } }));
    stage.until(&run, "waiting_on_approval");
    assert_eq!(stage.get(&format!("/v1/runs/{run}/input")).json(), json!({ "card": "[redacted]", "name": "Ana" }));
    for path in ["", "/events?limit=500", "/steps", "/explain", "/handoff", "/bundle", "/graph", "/status"] {
        let shown = stage.get(&format!("/v1/runs/{run}{path}")).text();
        assert!(!shown.contains("canary"), "I51: {path}: {shown}");
    }
    for path in ["/v1/runs", "/v1/approvals", "/metrics"] {
        assert!(!stage.get(path).text().contains("canary"), "I51: {path}");
    }
}
