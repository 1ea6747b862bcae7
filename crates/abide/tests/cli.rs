//! The binary as a script meets it: output and exit codes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn abide(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abide"));
    command.args(arguments).current_dir(repository()).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    command
}

fn run(arguments: &[&str]) -> (i32, String) {
    spoken(abide(arguments).output().expect("the binary runs"))
}

fn run_with(arguments: &[&str], input: &str) -> (i32, String) {
    let mut child = abide(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    spoken(child.wait_with_output().expect("it ends"))
}

fn spoken(output: Output) -> (i32, String) {
    let text = String::from_utf8(output.stdout).expect("text") + &String::from_utf8(output.stderr).expect("text");
    (output.status.code().expect("an exit code"), text)
}

#[test]
fn the_contract_as_a_table_names_every_state_in_100_columns() {
    let (code, table) = run(&["contract"]);
    assert_eq!(code, 0);
    for state in abide_core::contract::RunState::ALL {
        assert!(table.lines().any(|line| line.split(' ').next() == Some(state.as_str())), "{state}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn the_contract_as_json_mermaid_and_schema_is_what_the_tables_give() {
    use abide_core::contract::document;
    let json = |shape| serde_json::from_str::<serde_json::Value>(&run(&["contract", "-o", shape]).1).expect("JSON");
    assert_eq!(json("json"), document::contract_json());
    assert_eq!(json("schema"), document::json_schema());
    assert_eq!(run(&["contract", "-o", "mermaid"]), (0, document::mermaid()));
}

#[test]
fn a_sound_document_is_accepted_with_its_warnings() {
    let document = "workflow: w\nsteps:\n  - { id: charge, task: payments.charge, effect: external }\n";
    let (code, said) = run_with(&["validate", "-"], document);
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with("-:3:"), "{said}");
    assert!(said.contains(" warning: ") && said.contains("\n    hint: "), "{said}");
    assert!(said.ends_with("-: ok: w, 1 step, 1 warning\n"), "{said}");
}

#[test]
fn every_fault_is_named_with_its_place_and_a_hint() {
    let document = "workflow: w\nsteps:\n  - { id: a, taks: t }\n  - { id: b, task: t, timeout: 30 }\n";
    let (code, said) = run_with(&["validate", "-"], document);
    assert_eq!(code, 6);
    assert!(
        said.contains("-:3:14: error: `taks` is not a field here (/steps/0/taks)\n    hint: did you mean `task`?"),
        "{said}"
    );
    assert!(
        said.contains("-:4:32: error: `30` has no unit (/steps/1/timeout)\n    hint: did you mean `30s`"),
        "{said}"
    );
}

#[test]
fn faults_as_json_have_their_codes() {
    let (code, said) = run_with(&["validate", "-", "-o", "json"], "workflow: w\nsteps: []\n");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(code, 6);
    assert_eq!(said["files"][0]["ok"], false);
    assert_eq!(said["files"][0]["code"], "definition-invalid");
    assert_eq!(said["files"][0]["errors"][0]["code"], "no_steps");
    assert_eq!(said["files"][0]["errors"][0]["line"], 2);
}

#[test]
fn one_refused_document_among_several_decides_the_exit_code() {
    let sound = "examples/purchase.workflow.yaml";
    assert_eq!(run(&["validate", sound]).0, 0);
    assert_eq!(run_with(&["validate", sound, "-"], "not a workflow").0, 6);
}

#[test]
fn what_cannot_be_read_is_said_and_harms_nobody() {
    let (code, said) = run(&["validate", "no/such/file.yaml"]);
    assert_eq!(code, 2);
    assert!(said.contains("no/such/file.yaml"), "{said}");
    assert_eq!(run(&["test", "no/such/file.yaml"]).0, 2);
    let (code, said) = run_with(&["validate", "-"], &"#".repeat(300_000));
    assert_eq!(code, 6);
    assert!(said.contains("more than 262144 bytes"), "{said}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for arguments in [&["validate"][..], &["test"], &["contract", "-o", "xml"], &["no-such-command"], &[]] {
        assert_eq!(run(arguments).0, 2, "{arguments:?}");
    }
}

#[test]
fn the_examples_are_sound_and_pass_their_tests() {
    let named = |ending: &str| -> Vec<String> {
        let files = std::fs::read_dir(repository().join("examples")).expect("there are examples");
        let mut names: Vec<String> = files
            .map(|file| file.expect("a file").path().display().to_string())
            .filter(|name| name.ends_with(ending))
            .collect();
        names.sort();
        names
    };
    for (command, ending) in [("validate", ".workflow.yaml"), ("test", ".test.yaml")] {
        let files = named(ending);
        assert!(files.len() >= 3, "{files:?}");
        let arguments: Vec<&str> = [command].into_iter().chain(files.iter().map(String::as_str)).collect();
        let (code, said) = run(&arguments);
        assert_eq!(code, 0, "{said}");
        assert!(!said.contains("warning"), "{said}");
    }
}

#[test]
fn a_case_that_differs_says_what_differs_and_shows_the_states() {
    let file = "
workflow: { workflow: w, steps: [{ id: a, task: t }] }
name: it should work
handlers: { t: [{ fail: { class: fatal, message: no luck } }] }
expect: { state: succeeded, steps: { a: completed } }
";
    let (code, said) = run_with(&["test", "-"], file);
    assert_eq!(code, 1, "{said}");
    let expected = "\
FAILED  -: it should work
        the run is failed, not succeeded
        step a is failed, not completed
        failure: step_failed, fatal: no luck
        states: queued → running → failed

0 passed, 1 failed
";
    assert_eq!(said, expected);
}

#[test]
fn an_answer_that_nobody_takes_fails_the_case() {
    let file = "
workflow: { workflow: w, steps: [{ id: a, task: t }] }
answers: [{ approve: { by: ana } }]
expect: { state: succeeded }
";
    let (code, said) = run_with(&["test", "-"], file);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("nobody took the answer `approve`"), "{said}");
}

#[test]
fn a_test_file_that_is_written_wrongly_fails_and_says_where() {
    for (file, why) in [
        ("workflow: x.yaml\nexpct: {}\n", "unknown field `expct`"),
        ("workflow: x.yaml\n", "`expect` is missing"),
        ("workflow: { workflow: w, steps: [{ id: a, task: t }] }\nexpect: {}\n", "`expect` is empty"),
        ("workflow: x.yaml\ncases: []\n", "`cases` is empty"),
        ("workflow: x.yaml\ninput: 1\ncases: [{ expect: { state: failed } }]\n", "`cases` stands alone"),
        (
            "workflow: { workflow: w }\nexpect: { state: failed }\n",
            "the inline workflow:1:1: error: `steps` is missing",
        ),
        ("workflow: |\n  workflow: w\nexpect: { state: failed }\n", "`steps` is missing"),
    ] {
        let (code, said) = run_with(&["test", "-"], file);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() {
    let file = "examples/purchase.workflow.yaml";
    let escapes = |command: &mut Command| command.output().expect("the binary runs").stdout.contains(&0x1b);
    assert!(!escapes(&mut abide(&["validate", file])), "a pipe");
    assert!(escapes(abide(&["validate", file]).env("CLICOLOR_FORCE", "1")), "asked for");
    assert!(!escapes(abide(&["validate", file]).env("NO_COLOR", "1")), "not wanted");
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child =
        abide(&["contract", "-o", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), ended.stderr), (Some(0), Vec::new()));
}
