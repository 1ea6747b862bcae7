//! Commands against a real server, as a script meets them: output, exit codes, programs as workers.

mod common;
mod doubtful;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Server, signal};
use doubtful::doubtful;
use serde_json::Value;
use serde_json::value::RawValue;

/// What a command said and how it ended.
struct Said {
    code: i32,
    out: String,
    err: String,
}

struct World {
    server: Server,
    folder: PathBuf,
    workers: Vec<Child>,
}

impl World {
    fn new(name: &str) -> World {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("remote-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        World { server: Server::start(), folder, workers: Vec::new() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_abide"));
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("ABIDE_SERVER", &self.server.url)
            .env_remove("CLICOLOR_FORCE");
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let output = self.command(arguments).stdin(Stdio::null()).output().expect("the binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Said { code: output.status.code().expect("a code"), out: text(output.stdout), err: text(output.stderr) }
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, 0, "{arguments:?}: {}{}", said.out, said.err);
        said.out
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["-o", "json"]].concat())).expect("JSON")
    }

    fn apply(&self, name: &str, document: &str) {
        std::fs::write(self.folder.join(name), document).expect("it is written");
        self.ok(&["apply", name]);
    }

    fn start(&self, arguments: &[&str]) -> String {
        self.ok(&[&["start"], arguments, &["-o", "ids"]].concat()).trim().to_owned()
    }

    fn work(&mut self, arguments: &[&str]) {
        let arguments = [&["worker"], arguments].concat();
        let worker = self.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        self.workers.push(worker);
    }

    fn until(&self, run_id: &str, state: &str) {
        for _ in 0..6_000 {
            if self.json(&["show", run_id])["state"] == state {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{run_id} did not become {state}: {}", self.ok(&["show", run_id]));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const ORDER: &str = "
workflow: order
steps:
  - { id: check, task: check, lease: 3s }
  - { id: manager, approval: { title: 'Ship ${{ input.id }}?', approvers: [ana] } }
  - { id: signed, signal: signed }
output: { n: '${{ steps.check.output.n }}' }
";

#[test]
fn a_run_from_its_document_to_its_end() {
    let mut world = World::new("order");
    world.apply("order.yaml", ORDER);
    assert!(world.ok(&["apply", "order.yaml"]).contains("is unchanged at version 1"));
    world.work(&["--handler", "check=cat >task.json; echo '{\"n\": 7}'"]);
    let run = world.start(&["order", "--input", "{\"id\": 1}", "--label", "team=red", "--unique", "o-1"]);
    assert!(run.starts_with("run_"), "{run}");
    let twice = world.run(&["start", "order", "--input", "{\"id\": 1}", "--unique", "o-1"]);
    assert_eq!(twice.code, 6, "{}", twice.err);
    assert!(twice.err.contains("run-exists"), "{}", twice.err);
    world.until(&run, "waiting_on_approval");
    assert_eq!(world.run(&["watch", &run, "--no-wait"]).code, 4);
    assert!(world.ok(&["inbox"]).contains("Ship 1?"));
    let explained = world.ok(&["explain", &run]);
    assert!(explained.contains(&format!("abide approve {run} --step manager --by ana")), "{explained}");
    let refused = world.run(&["approve", &run, "--by", "bob"]);
    assert_eq!(refused.code, 6);
    assert!(refused.err.contains("not-an-approver"), "{}", refused.err);
    world.ok(&["approve", &run, "--by", "ana", "--comment", "fine"]);
    world.until(&run, "waiting_on_tool");
    world.ok(&["signal", &run, "signed", "--payload", "{\"by\": \"bo\"}"]);
    let watched = world.run(&["watch", &run]);
    assert_eq!(watched.code, 0, "{}{}", watched.out, watched.err);
    assert!(watched.out.contains("succeeded"), "{}", watched.out);
    assert_eq!(world.json(&["steps", &run, "check"])["output"]["n"], 7);
    assert_eq!(world.ok(&["runs", "--label", "team=red", "--state", "terminal", "-o", "ids"]).trim(), run);
    assert_eq!(world.ok(&["runs", "--state", "open", "-o", "ids"]), "");
    let task: Value = serde_json::from_slice(&std::fs::read(world.folder.join("task.json")).expect("it was given"))
        .expect("the task is JSON");
    assert_eq!(task["run_id"], Value::String(run.clone()));
    let events = world.ok(&["events", &run, "-o", "jsonl"]);
    assert!(events.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{events}");
    assert!(world.ok(&["events", &run]).contains("approval.given"));
    assert!(world.ok(&["graph", &run]).starts_with("flowchart"));
    assert!(world.json(&["bundle", &run]).is_object() || world.run(&["bundle", &run]).code == 0);
    assert!(world.ok(&["workers"]).contains("check"));
    let plan = world.ok(&["rerun", &run, "--from", "manager", "--dry-run"]);
    assert!(plan.contains("manager"), "{plan}");
}

#[test]
fn exit_codes_of_a_program_are_failure_classes() {
    let mut world = World::new("codes");
    let document = "workflow: w\nsteps:\n  - { id: a, task: a, retry: { max_attempts: 2, first: 10ms } }\n";
    world.apply("w.yaml", document);
    let program = "if [ \"$ABIDE_ATTEMPT\" = 1 ]; then exit 75; fi; \
                   echo \"$ABIDE_RUN_ID $ABIDE_STEP_ID $ABIDE_IDEMPOTENCY_KEY\" >&2; echo no more >&2; exit 70";
    world.work(&["--handler", &format!("a={program}")]);
    let started = world.run(&["start", "w", "--watch"]);
    assert_eq!(started.code, 1, "{}{}", started.out, started.err);
    let run = started.out.lines().next().expect("its id").to_owned();
    let failure = &world.json(&["show", &run])["failure"];
    assert_eq!(failure["class"], "fatal", "{failure}");
    let message = failure["message"].as_str().expect("a message");
    assert!(message.contains(&run) && message.ends_with("no more"), "{message}");
    assert_eq!(failure["attempt"], 2);
    let retried = world.run(&["retry", &run, "--watch"]);
    assert_eq!(retried.code, 1, "a new run from the failed step fails again: {}", retried.err);
    let terminal = world.run(&["pause", &run]);
    assert_eq!(terminal.code, 6);
    assert!(terminal.err.contains("run-terminal"), "{}", terminal.err);
}

#[test]
fn a_canceled_run_ends_its_program() {
    let mut world = World::new("cancel");
    world.apply("w.yaml", "workflow: w\nsteps:\n  - { id: a, task: a, lease: 900ms }\n");
    world.work(&["--handler", "a=trap 'echo stopped >stopped; exit 1' TERM; while :; do sleep 0.05; done"]);
    let run = world.start(&["w"]);
    world.until(&run, "running");
    world.ok(&["cancel", &run, "--reason", "not needed"]);
    assert_eq!(world.run(&["watch", &run]).code, 3);
    assert!(world.folder.join("stopped").exists(), "the program was asked to stop");
}

#[test]
fn a_worker_that_is_told_to_stop_finishes_its_program() {
    let mut world = World::new("stop");
    world.apply("w.yaml", "workflow: w\nsteps:\n  - { id: a, task: a }\n");
    world.work(&["--handler", "a=touch begun; sleep 0.5; echo 1"]);
    let run = world.start(&["w"]);
    for _ in 0..6_000 {
        if world.folder.join("begun").exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut worker = world.workers.remove(0);
    signal(worker.id(), "TERM");
    assert_eq!(worker.wait().expect("it ends").code(), Some(0));
    assert_eq!(world.json(&["show", &run])["state"], "succeeded");
}

#[test]
fn pausing_resuming_resolving_and_pinning() {
    let mut world = World::new("operator");
    world.apply("w.yaml", "workflow: w\nsteps:\n  - { id: a, task: a }\n");
    let run = world.start(&["w", "--paused"]);
    assert_eq!(world.json(&["show", &run])["state"], "paused");
    world.ok(&["resume", &run]);
    assert!(world.ok(&["explain", &run]).to_lowercase().contains("worker"), "nobody listens");
    world.work(&["--handler", "a=exit 77"]);
    world.until(&run, "waiting_on_operator");
    let explained = world.ok(&["explain", &run]);
    assert!(explained.contains(&format!("abide resolve {run} a ")), "{explained}");
    world.ok(&["resolve", &run, "a", "complete", "--result", "{\"done\": true}", "--reason", "by hand"]);
    assert_eq!(world.run(&["watch", &run]).code, 0);
    assert_eq!(world.json(&["steps", &run, "a"])["output"]["done"], true);
    world.ok(&["pin", &run]);
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let world = World::new("keys");
    let admin = world.ok(&["key", "create", "root", "--role", "admin"]);
    let admin = admin.trim();
    let refused = world.run(&["runs"]);
    assert_eq!(refused.code, 6, "now a key is needed: {}", refused.err);
    let with = |arguments: &[&str]| world.ok(&[arguments, &["--api-key", admin]].concat());
    let viewer = with(&["key", "create", "ana", "--role", "viewer", "--expires-in", "1h"]);
    assert_eq!(world.run(&["runs", "--api-key", viewer.trim()]).code, 0);
    let forbidden = world.run(&["start", "w", "--api-key", viewer.trim()]);
    assert_eq!(forbidden.code, 6);
    assert!(forbidden.err.contains("forbidden"), "{}", forbidden.err);
    let listed = with(&["key", "list"]);
    assert!(listed.contains("ana") && !listed.contains(viewer.trim()), "{listed}");
    let keys: Value = serde_json::from_str(&with(&["key", "list", "-o", "json"])).expect("JSON");
    let id = keys["keys"].as_array().expect("a list").iter().find(|key| key["name"] == "ana").expect("it")["key_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    with(&["key", "revoke", &id]);
    assert_eq!(world.run(&["runs", "--api-key", viewer.trim()]).code, 6);
}

#[test]
fn mistakes_are_told_by_their_exit_code() {
    let world = World::new("mistakes");
    let nobody = world.run(&["runs", "--server", "http://127.0.0.1:1"]);
    assert_eq!(nobody.code, 5);
    assert!(nobody.err.contains("cannot be reached"), "{}", nobody.err);
    assert_eq!(world.run(&["start", "w", "--input", "not json"]).code, 2);
    assert_eq!(world.run(&["runs", "--server", "nonsense"]).code, 2);
    let missing = world.run(&["show", "run_missing", "-o", "json"]);
    assert_eq!(missing.code, 6);
    assert_eq!(serde_json::from_str::<Value>(&missing.err).expect("the problem as JSON")["code"], "not-found");
    std::fs::write(world.folder.join("bad.yaml"), "workflow: w\nsteps: [{ id: a, tusk: b }]\n").expect("written");
    let bad = world.run(&["apply", "bad.yaml"]);
    assert_eq!(bad.code, 6);
    assert!(bad.err.contains("tusk"), "{}", bad.err);
    assert!(world.ok(&["top"]).contains("no runs"));
    assert!(world.ok(&["completions", "bash"]).contains("abide"));
}

#[test]
fn text_of_others_cannot_move_the_cursor() {
    let world = World::new("ansi");
    world.apply("w.yaml", "workflow: w\nsteps:\n  - { id: a, task: a }\n");
    let run = world.start(&["w"]);
    world.ok(&["pause", &run, "--reason", "\u{1b}]0;title\u{7}evil\u{1b}[2J"]);
    for command in [&["show", &run][..], &["explain", &run], &["runs"], &["events", &run]] {
        let said = world.command(command).output().expect("it runs");
        let text = String::from_utf8(said.stdout).expect("text");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
    }
}

const ECHOES: &str = "
workflow: echoes
steps:
  - { id: a, task: echo, with: '${{ input.v }}' }
  - { id: s, signal: news }
output: { a: '${{ steps.a.output }}', s: '${{ steps.s.output }}' }
";

/// One or more JSON texts.
fn check_json(text: &str) {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Box<RawValue>>();
    assert!(values.next().is_some_and(|first| first.is_ok()) && values.all(|value| value.is_ok()), "{text:.1000}");
}

#[test]
fn commands_that_show_a_run_pass_doubtful_payloads_on() {
    let mut world = World::new("doubtful");
    world.apply("echoes.yaml", ECHOES);
    world.work(&["--handler", "echo=cat"]);
    for case in doubtful().iter().filter(|case| case.len() < 20_000) {
        let run = world.start(&["echoes", "--input", &format!("{{\"v\":{case}}}")]);
        world.until(&run, "waiting_on_tool");
        world.ok(&["signal", &run, "news", &format!("--payload={case}")]);
        world.until(&run, "succeeded");
        for command in
            [&["show", &run][..], &["steps", &run], &["steps", &run, "a"], &["events", &run], &["explain", &run]]
        {
            world.ok(command);
            check_json(&world.ok(&[command, &["-o", "json"]].concat()));
        }
        check_json(&world.ok(&["bundle", &run]));
        // A handler of `abide worker` gets the task, of which the input is a part.
        let step = world.ok(&["steps", &run, "a", "-o", "json"]);
        assert!(step.contains(&format!("\"input\":{case}")), "{case:?}: {step:.500?}");
    }
}
