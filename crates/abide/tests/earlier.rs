//! Data directories that earlier versions wrote (`tests/earlier`), with a run in every state: they open, everything in them holds, and
//! every run goes on to its end.

#[allow(dead_code, reason = "each test file uses its part")]
mod serving;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use serving::{Server, eventually, folder};

fn kept() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/earlier");
    let mut kept: Vec<PathBuf> = std::fs::read_dir(here)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "gz"))
        .collect();
    kept.sort();
    assert!(!kept.is_empty(), "there is something to open");
    kept
}

fn unpacked(archive: &Path) -> PathBuf {
    let data = folder(&format!("earlier-{}", archive.file_stem().and_then(|name| name.to_str()).expect("a name")));
    let done = Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(&data).status().expect("tar");
    assert!(done.success());
    data
}

fn doctor(data: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_abide")).args(["doctor", "--data"]).arg(data).output().expect("the doctor")
}

#[track_caller]
fn is_healthy(data: &Path) {
    let said = doctor(data);
    assert!(
        said.status.success(),
        "{}{}",
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    );
}

fn open_runs(server: &Server) -> Vec<Value> {
    server.get("/v1/runs?state=open&limit=200")["runs"].as_array().expect("runs").clone()
}

/// Acts on a run as a person would in its state.
fn help(server: &Server, run: &Value) {
    let id = run["run_id"].as_str().expect("an id");
    let step = run["blocking_reason"]["step_id"].as_str().unwrap_or_default();
    let send = |path: &str, body: Value| {
        let (status, answer) = server.post(&format!("/v1/runs/{id}{path}"), body);
        // The run may have gone on by itself since it was listed.
        assert!(matches!(status, 200..=299 | 409 | 422), "{path} of {run}: {status} {answer}");
    };
    match run["state"].as_str().expect("a state") {
        "waiting_on_approval" => {
            for by in ["ana", "ben"] {
                send("/approve", json!({ "step_id": step, "decision_by": by, "form": { "n": 1 } }));
                send("/approve", json!({ "step_id": step, "decision_by": by }));
            }
        }
        "waiting_on_tool" => send("/signals/go", json!({ "payload": 1 })),
        "waiting_on_auth" => send("/reconnect", json!({})),
        "waiting_on_operator" | "stalled" => {
            for action in ["complete", "retry"] {
                send("/resolve", json!({ "step_id": step, "action": action, "reason": "looked" }));
            }
        }
        "retry_scheduled" => send("/retry", json!({})),
        "paused" => send("/resume", json!({})),
        _ => {}
    }
}

/// Works as a worker that offers every handler.
fn work(server: &Server) {
    for handlers in [json!(["t", "undo", "find"]), json!(["coded@1"])] {
        let asked = json!({ "worker": "new", "queues": ["default"], "handlers": handlers, "max": 50, "wait_ms": 0 });
        let (status, answer) = server.post("/v1/tasks/claim", asked);
        assert!(status == 200 || status == 204, "{status} {answer}");
        for task in answer["tasks"].as_array().into_iter().flatten() {
            let id = task["task_id"].as_str().expect("an id");
            if task["workflow_id"] == "secret" {
                assert_eq!(task["input"]["card"], "4111-1111-1111", "a sealed value opens");
            }
            if task["kind"] == "body" {
                // It asks for everything that it had stored.
                let begin = json!({ "epoch": task["epoch"], "begin": [{ "step_id": "first" }, { "step_id": "second", "effect": "external" }] });
                let (status, steps) = server.post(&format!("/v1/tasks/{id}/steps"), begin);
                assert_eq!(
                    (status, &steps["steps"]["first"]["output"]),
                    (200, &json!(1)),
                    "what was stored is handed back"
                );
                // The outcome of its second step is not known until a person says it.
                if steps["next"] != "continue" {
                    continue;
                }
            }
            let output = json!({ "epoch": task["epoch"], "output": { "found": true, "n": 1 } });
            let (status, answer) = server.post(&format!("/v1/tasks/{id}/complete"), output);
            assert_eq!(status, 200, "{answer}");
        }
    }
}

#[test]
fn data_of_every_earlier_version_opens_holds_and_goes_on() {
    for archive in kept() {
        let data = unpacked(&archive);
        let server = Server::start("serve", &data);
        let states: std::collections::BTreeSet<String> = server.get("/v1/runs?limit=200")["runs"]
            .as_array()
            .expect("runs")
            .iter()
            .filter_map(|run| run["state"].as_str().map(Into::into))
            .collect();
        assert!(states.len() >= 15, "{}: only {states:?}", archive.display());
        assert_eq!(server.stop(), Some(0));
        is_healthy(&data);

        let server = Server::start("serve", &data);
        eventually(Duration::from_secs(240), "every run ends", || {
            let open = open_runs(&server);
            open.iter().for_each(|run| help(&server, run));
            work(&server);
            let story = |run: &Value| format!("{} {} {}", run["run_id"], run["state"], run["blocking_reason"]);
            match open.is_empty() {
                true => Ok(()),
                false => Err(open.iter().map(story).collect::<Vec<_>>().join("\n")),
            }
        });
        for run in
            ["run_one-succeeded", "run_approval-1", "run_secret-1", "run_external-1", "run_list-1", "run_coded-1"]
        {
            assert_eq!(server.state(run), "succeeded", "{run}");
        }
        assert_eq!(server.state("run_finally-1"), "canceled");
        assert_eq!(server.state("run_saga-1"), "failed");
        assert_eq!(server.stop(), Some(0));
        is_healthy(&data);
    }
}
