//! Workers in other languages, as they stand in `examples/`: a shell with curl is enough.

#[allow(dead_code, reason = "each test file uses its part")]
mod serving;

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use serving::{Running, Server, eventually, folder, repository};

/// A name that a script must not take apart.
const ODD_NAME: &str = "Ana \"the Great\" \\ Ö, {1}";

#[test]
fn a_worker_in_shell_and_curl_does_its_tasks() {
    works("sh", "examples/worker.sh");
}

#[test]
fn a_worker_in_python_does_its_tasks() {
    works("python3", "examples/worker.py");
}

#[test]
fn a_worker_in_javascript_does_its_tasks() {
    works("node", "examples/worker.mjs");
}

/// With a key of role worker, which is all that a worker needs.
fn works(program: &str, script: &str) {
    let mut server = Server::start("serve", &folder(&format!("worker-{program}")));
    let document = std::fs::read_to_string(repository().join("examples/hello.workflow.yaml")).expect("an example");
    assert_eq!(server.ask("PUT", "/v1/workflows/hello", "application/yaml", &document).0, 201);
    let (status, admin) = server.post("/v1/keys", json!({ "name": "admin", "role": "admin" }));
    assert_eq!(status, 201, "{admin}");
    server.key = admin["key"].as_str().map(Into::into);
    let (status, key) = server.post("/v1/keys", json!({ "name": program, "role": "worker" }));
    assert_eq!(status, 201, "{key}");

    let start = |name: &str| {
        let (status, run) = server.post("/v1/runs", json!({ "workflow": "hello", "input": { "name": name } }));
        assert_eq!(status, 201, "{run}");
        run["run_id"].as_str().expect("an id").to_owned()
    };
    let names = ["Ana", ODD_NAME, "Ben"];
    let runs: Vec<String> = names.into_iter().map(start).collect();
    let nameless = start("");
    let worker = Command::new(program)
        .arg(script)
        .current_dir(repository())
        .env("ABIDE_SERVER", server.url())
        .env("ABIDE_API_KEY", key["key"].as_str().expect("a key"))
        .stdout(Stdio::null())
        .spawn();
    let _worker = Running(worker.expect("the script runs"));

    let within = Duration::from_secs(120);
    for (name, run) in names.iter().zip(&runs) {
        eventually(within, "the run succeeds", || match server.state(run).as_str() {
            "succeeded" => Ok(()),
            other => Err(other.to_owned()),
        });
        let output = server.get(&format!("/v1/runs/{run}/output"));
        assert_eq!(output, json!({ "greeting": format!("Hello, {name}!") }));
    }
    eventually(within, "what it cannot do it says", || match server.get(&format!("/v1/runs/{nameless}")) {
        run if run["blocking_reason"]["type"] == "correction_required" => Ok(()),
        run => Err(run),
    });
}
