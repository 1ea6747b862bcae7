//! Every command that a guide tells people to type is typed here, in its order, against a real server.

#[allow(dead_code, reason = "each test file uses its part")]
mod serving;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serving::{Running, Server, eventually, folder, repository};

/// Commands that other tests run as they stand, and which.
const ELSEWHERE: &[(&str, &str)] = &[
    ("cargo run --release -- dev", "tests/dev.rs"),
    ("cargo run -q -p abide-engine --example embedded", "engine/tests/engine"),
    ("cargo run -p abide-engine --example embedded", "engine/tests/engine"),
    ("sh examples/worker.sh", "tests/workers.rs"),
    ("python3 examples/worker.py", "tests/workers.rs"),
];

/// Shell commands of a page: the blocks without a language, lines that end in a backslash joined.
fn commands(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository().join(page)).expect("a page");
    let mut commands: Vec<String> = Vec::new();
    let (mut inside, mut joins) = (None, false);
    for line in text.lines() {
        if let Some(info) = line.strip_prefix("```") {
            inside = if inside.is_none() { Some(info.to_owned()) } else { None };
        } else if inside.as_deref() == Some("") {
            let line = line.strip_prefix("$ ").unwrap_or(line);
            let starts = ["abide ", "curl ", "sh ", "python3 ", "cargo run "].iter().any(|word| line.starts_with(word));
            match commands.last_mut().filter(|_| joins) {
                Some(last) => last.push_str(line.trim_start().trim_end_matches('\\')),
                None if starts => commands.push(line.trim_end_matches('\\').to_owned()),
                None => continue,
            }
            joins = line.ends_with('\\');
        }
    }
    commands
}

/// A folder with the examples, and with every file that the page shows (a block that opens with a language and a name).
fn desk(page: &str) -> PathBuf {
    let desk = folder(&page.replace(['/', '.'], "_"));
    std::os::unix::fs::symlink(repository().join("examples"), desk.join("examples")).expect("a link");
    let text = std::fs::read_to_string(repository().join(page)).expect("a page");
    let blocks = text.split("\n```").skip(1).step_by(2);
    for (head, body) in blocks.filter_map(|block| block.split_once('\n')) {
        if let Some((_, name)) = head.split_once(' ') {
            std::fs::write(desk.join(name), format!("{body}\n")).expect("a file");
        }
    }
    desk
}

/// Runs a command as a person would, with this server in place of the one that the page names.
fn typed(command: &str, server: &Server, key: Option<&str>, replaced: &[(&str, &str)]) -> Output {
    shell(command, server, key, replaced).current_dir(repository()).output().expect("a shell")
}

fn shell(command: &str, server: &Server, key: Option<&str>, replaced: &[(&str, &str)]) -> Command {
    let bin = Path::new(env!("CARGO_BIN_EXE_abide")).parent().expect("a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = command.replace("127.0.0.1:7070", &server.address).replace("curl ", "curl -sS --fail-with-body ");
    for (name, value) in replaced {
        command = command.replace(name, value);
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).env("PATH", path).env("ABIDE_SERVER", server.url());
    if let Some(key) = key {
        shell.env("ABIDE_API_KEY", key);
    }
    shell
}

fn must(command: &str, ran: &Output) -> String {
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(
        ran.status.success(),
        "`{command}` ended with {}: {said}{}",
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
    said
}

/// Plays what a page says and gives what was printed.
fn play(page: &str, server: &Server, replaced: &[(&str, &str)]) -> Vec<(String, String)> {
    let commands = commands(page);
    assert!(!commands.is_empty(), "{page} has no commands");
    let desk = desk(page);
    // A worker goes on until somebody stops it, here at the end of the page.
    let mut workers = Vec::new();
    let mut said = Vec::new();
    for command in commands.into_iter().filter(|command| ELSEWHERE.iter().all(|(known, _)| known != command)) {
        if command.starts_with("abide worker") {
            // In place of the shell, so that stopping it leaves no child behind.
            let mut worker = shell(&format!("exec {command}"), server, None, replaced);
            worker.current_dir(&desk).stdout(Stdio::null());
            workers.push(Running(worker.spawn().expect("a worker")));
            continue;
        }
        let ran = shell(&command, server, None, replaced).current_dir(&desk).output().expect("a shell");
        said.push((command.clone(), must(&command, &ran)));
    }
    said
}

fn until(server: &Server, run: &str, state: &str) {
    eventually(Duration::from_secs(120), &format!("{run} is {state}"), || match server.state(run) {
        now if now == state => Ok(()),
        now => Err(now),
    });
}

#[test]
fn the_first_minute_goes_as_it_is_told() {
    let server = Server::start("dev", &folder("guide-quickstart"));
    for (run, state) in [
        ("run_demo-purchase", "waiting_on_approval"),
        ("run_demo-customer", "waiting_on_operator"),
        ("run_demo-contract", "waiting_on_tool"),
        ("run_demo-crawl", "stalled"),
        ("run_demo-news", "waiting_on_auth"),
    ] {
        until(&server, run, state);
    }
    let said = play("docs/guides/quickstart.md", &server, &[]);
    assert!(said.iter().any(|(command, said)| command == "abide runs" && said.contains("run_demo-album")), "{said:?}");
    let onboarding = said.iter().find(|(command, _)| command.contains("explain")).expect("it explains");
    assert!(onboarding.1.contains("ana@example.com"), "{onboarding:?}");
    for run in ["run_demo-purchase", "run_demo-customer", "run_demo-contract", "run_demo-crawl", "run_demo-news"] {
        until(&server, run, "succeeded");
    }
    let said = play("README.md", &server, &[]);
    assert!(said[0].1.starts_with("Succeeded"), "{said:?}");
    let (start, watched) = said.last().expect("it ends with a run of one's own");
    assert!(start.starts_with("abide start welcome") && watched.contains("Succeeded"), "{said:?}");
}

#[test]
fn ones_own_workflow_runs_as_it_is_told() {
    let server = Server::start("serve", &folder("guide-write"));
    let said = play("docs/guides/write-a-workflow.md", &server, &[]);
    let of = |part: &str| said.iter().find(|(command, _)| command.contains(part)).expect(part).1.as_str();
    assert!(of("start hello").contains("Succeeded"), "{said:?}");
    assert!(of("runs --workflow").contains("hello"), "{said:?}");
}

#[test]
fn a_stalled_run_is_recovered_as_it_is_told() {
    let server = Server::start("dev", &folder("guide-stalled"));
    until(&server, "run_demo-crawl", "stalled");
    until(&server, "run_demo-news", "waiting_on_auth");
    let said = play(
        "docs/guides/recover-a-stalled-run.md",
        &server,
        &[("TOOL/ACCOUNT", "drive/default"), ("RUN", "run_demo-crawl")],
    );
    let of = |part: &str| said.iter().find(|(command, _)| command.contains(part)).expect(part).1.as_str();
    assert!(of("--state stalled").contains("run_demo-crawl"));
    assert!(of("explain").starts_with("Stalled"), "{}", of("explain"));
    assert!(of("bulk").contains("\"matched\":1"), "{}", of("bulk"));
    until(&server, "run_demo-news", "succeeded");
}

#[test]
fn curl_is_a_worker_as_it_is_told() {
    let server = Server::start("dev", &folder("guide-curl"));
    until(&server, "run_demo-hello", "queued");
    let hello = |n: &str| serde_json::json!({ "workflow": "hello", "input": { "name": n } });
    let mut said = Vec::new();
    let commands: Vec<String> =
        commands("docs/guides/worker-in-curl.md").into_iter().filter(|command| command.starts_with("curl")).collect();
    let [claim, heartbeat, complete, fail] = commands.as_slice() else { panic!("other commands: {commands:?}") };
    // The page ends a task in both ways: each way gets a task of its own.
    for ending in [complete, fail] {
        let claimed = must(claim, &typed(claim, &server, None, &[]));
        let claimed: serde_json::Value = serde_json::from_str(&claimed).expect("a task");
        let task = claimed["tasks"][0]["task_id"].as_str().expect("an id");
        must(heartbeat, &typed(heartbeat, &server, None, &[("TASK", task)]));
        said.push((must(ending, &typed(ending, &server, None, &[("TASK", task)])), claimed));
        let (status, started) = server.post("/v1/runs", hello("Ben"));
        assert_eq!(status, 201, "{started}");
    }
    assert!(said[0].0.contains("succeeded"), "{said:?}");
    assert!(said[1].0.contains("waiting_on_operator"), "{said:?}");
}

#[test]
fn a_server_is_operated_as_it_is_told() {
    let data = folder("guide-operate");
    let server = Server::start("serve", &data);
    let (mut key, mut served) = (None, 0);
    for command in commands("docs/guides/operate.md") {
        if command.starts_with("abide serve") {
            served += 1;
            continue;
        }
        let said = must(&command, &typed(&command, &server, key.as_deref(), &[]));
        if key.is_none() {
            key = said.split_whitespace().find(|word| word.starts_with("abide_")).map(str::to_owned);
            assert!(key.is_some(), "the first key is shown: {said}");
        }
    }
    assert_eq!(server.stop(), Some(0));
    // Each way to serve starts, on a free port of this machine alone.
    for command in commands("docs/guides/operate.md").iter().filter(|command| command.starts_with("abide serve")) {
        let rest = command.trim_start_matches("abide serve").replace("/var/lib/abide", &data.display().to_string());
        let rest = rest.replace("0.0.0.0:7070", "127.0.0.1:0").replace("127.0.0.1:7070", "127.0.0.1:0");
        let arguments: Vec<&str> = rest.split_whitespace().collect();
        let server = Server::start_with("serve", &data, &arguments);
        assert_eq!(server.ask("GET", "/readyz", "", "").0, 200, "{command}");
        assert_eq!(server.stop(), Some(0), "{command}");
    }
    assert_eq!(served, 2);
}

#[test]
fn a_person_gets_a_key_as_it_is_told() {
    let server = Server::start("serve", &folder("guide-ui"));
    let said = play("docs/guides/ui.md", &server, &[]);
    assert!(said[0].1.contains("abide_"), "the key is shown: {said:?}");
}

#[test]
fn every_command_of_the_guides_is_run_by_a_test() {
    let played = ["quickstart", "recover-a-stalled-run", "worker-in-curl", "operate", "ui", "write-a-workflow"];
    for entry in std::fs::read_dir(repository().join("docs/guides")).expect("guides") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        if played.contains(&name.as_str()) {
            continue;
        }
        for command in commands(&format!("docs/guides/{name}.md")) {
            assert!(ELSEWHERE.iter().any(|(known, _)| *known == command), "{name}: nothing runs `{command}`");
        }
    }
}
