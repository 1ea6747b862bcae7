//! What the server measures is what Prometheus reads, and the alert rules of the docs are sound and speak of it.

#[allow(dead_code, reason = "each test file uses its part")]
mod serving;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serving::{Server, eventually, folder, repository};

fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(repository().join("docs"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is there: ./test takes it from the package prometheus");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "promtool {arguments:?}: {said}");
}

#[test]
fn the_alert_rules_are_sound_and_fire_when_they_should() {
    promtool(&["check", "rules", "alerts.rules.yml"], "");
    promtool(&["test", "rules", "alerts.test.yml"], "");
}

#[test]
fn metrics_of_a_busy_server_are_read_and_every_alert_speaks_of_one() {
    let server = Server::start("dev", &folder("prometheus"));
    let measured = || server.ask("GET", "/metrics", "", "").1;
    eventually(Duration::from_secs(120), "something has stalled", || {
        let text = measured();
        if text.contains("abide_runs{namespace=\"default\",state=\"stalled\"} 1") { Ok(()) } else { Err(text) }
    });
    let text = measured();
    promtool(&["check", "metrics"], &text);

    let rules = std::fs::read_to_string(repository().join("docs/alerts.rules.yml")).expect("rules");
    let asked: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "))
        .flat_map(|expression| expression.split([' ', '{']).filter(|word| word.starts_with("abide_")))
        .collect();
    assert!(asked.len() >= 6, "{asked:?}");
    for metric in asked {
        let is_there = text.lines().any(|line| line.starts_with(&format!("{metric}{{")));
        assert!(is_there, "{metric} is in an alert and not in /metrics");
    }
}
