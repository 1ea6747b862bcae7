//! `abide explain`: for whoever is woken at night. One sentence first, then why, since when, what comes by itself, what
//! can be done as ready commands, and what all of it stands on.

use std::io;

use clap::Args;
use serde_json::Value;

use super::Exit;
use super::print::{BOLD, DIM, age, plain, print_one, style_of, word};
use super::remote::To;

#[derive(Debug, Args)]
pub struct Explain {
    run_id: String,
    /// As it was then: the number of an event, or an instant
    #[arg(long, value_name = "SEQ|TIME")]
    at: Option<String>,
    #[command(flatten)]
    to: To,
}

impl Explain {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let mut call = self.to.get(&["v1", "runs", &self.run_id, "explain"])?;
            if let Some(at) = &self.at {
                call = call.query("at", at);
            }
            let answer = call.send().await?;
            print_one(&answer, self.to.output, "run_id", |out, told| out.write_all(explained(told).as_bytes()))?;
            Ok(Exit::Done)
        })
    }
}

fn explained(told: &Value) -> String {
    let style = style_of(told["state"].as_str().unwrap_or_default());
    let mut text = format!("{BOLD}{}{BOLD:#}\n\n", word(&told["summary"]));
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            text.push_str(&format!("{DIM}{name:<10}{DIM:#}{value}\n"));
        }
    };
    line("state", format!("{style}{}{style:#}", word(&told["state"])));
    line("doing", word(&told["doing"]));
    line("why", word(&told["why"]));
    line("since", format!("{} ({})", word(&told["since"]), age(&told["since"])));
    if told["parent"].is_object() {
        let parent = &told["parent"];
        line(
            "awaited by",
            format!("{} at {}: {}", word(&parent["run_id"]), word(&parent["step_id"]), word(&parent["summary"])),
        );
    }
    let chain: Vec<&Value> = told["chain"].as_array().into_iter().flatten().collect();
    if chain.len() > 1 {
        text.push_str(&format!("\n{BOLD}What it comes from{BOLD:#}\n"));
        for (depth, link) in chain.iter().enumerate() {
            let indent = "  ".repeat(depth + 1);
            text.push_str(&format!("{indent}{} {}: {}\n", word(&link["kind"]), word(&link["id"]), word(&link["what"])));
        }
    }
    text + &coming(told) + &possible(told) + &triage(told) + &proof(&told["proof"])
}

fn coming(told: &Value) -> String {
    let coming: Vec<&Value> = told["will_happen"].as_array().into_iter().flatten().collect();
    if coming.is_empty() {
        let is_over = told["state"].as_str().and_then(abide_client::RunState::parse).is_some_and(|s| s.is_terminal());
        let what = if is_over { "Nothing: it has ended." } else { "Nothing by itself." };
        return format!("\n{BOLD}What happens next{BOLD:#}\n  {what}\n");
    }
    let lines = coming.iter().map(|coming| format!("  {}  {}\n", age(&coming["at"]), word(&coming["what"])));
    format!("\n{BOLD}What happens next{BOLD:#}\n{}", lines.collect::<String>())
}

fn possible(told: &Value) -> String {
    let actions: Vec<&Value> = told["can_be_done"].as_array().into_iter().flatten().collect();
    if actions.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{BOLD}What you can do{BOLD:#}\n");
    for action in actions {
        let who: Vec<String> = action["who"].as_array().into_iter().flatten().map(word).collect();
        let danger = if action["danger"] == true { ", cannot be taken back" } else { "" };
        text.push_str(&format!(
            "  {}  {DIM}({}{danger}){DIM:#}\n      {}\n",
            word(&action["title"]),
            who.join(", "),
            command_of(&word(&told["run_id"]), action)
        ));
    }
    text
}

fn triage(told: &Value) -> String {
    let Some(questions) = told["triage"].as_array() else { return String::new() };
    let lines = questions.iter().map(|triage| {
        format!("  {}  {}: {}\n", word(&triage["question"]), word(&triage["answer"]), word(&triage["detail"]))
    });
    format!("\n{BOLD}Triage{BOLD:#}\n{}", lines.collect::<String>())
}

fn proof(proof: &Value) -> String {
    let mut parts = vec![format!("event {}", word(&proof["as_of_seq"]))];
    if !proof["lease_epoch"].is_null() {
        parts.push(format!("lease epoch {}", word(&proof["lease_epoch"])));
    }
    if proof["last_heartbeat_at"].is_string() {
        parts.push(format!("last heartbeat {}", age(&proof["last_heartbeat_at"])));
    }
    if proof["fresh_for"].is_string() {
        parts.push(format!("proven alive for {}", word(&proof["fresh_for"])));
    }
    format!("\n{DIM}Proof: {}{DIM:#}\n", parts.join(", "))
}

/// A next action as a command that can be copied. What only the caller can know stands in capitals.
pub fn command_of(run_id: &str, action: &Value) -> String {
    let body = &action["body"];
    let run_id = action["of_run"].as_str().unwrap_or(run_id);
    let id = action["id"].as_str().unwrap_or_default();
    let mut words = vec!["abide".to_owned()];
    let option = |words: &mut Vec<String>, name: &str, value: &Value| {
        if !value.is_null() {
            words.extend([format!("--{name}"), quoted(&word(value))]);
        }
    };
    match id.split_once('_') {
        Some(("resolve", what)) => {
            words.extend(["resolve".into(), run_id.into(), quoted(&word(&body["step_id"])), what.replace('_', "-")]);
            for (field, name) in [("output", "--result"), ("input", "--input")] {
                match (&body[field], needs(action, field)) {
                    (Value::Null, true) => words.extend([name.into(), "JSON".into()]),
                    (Value::Null, false) => {}
                    (value, _) => words.extend([name.into(), quoted(&plain(&value.to_string()))]),
                }
            }
            option(&mut words, "reason", &body["reason"]);
        }
        _ if id == "signal" => {
            let name = action["href"].as_str().and_then(|href| href.rsplit('/').next()).unwrap_or_default();
            words.extend(["signal".into(), run_id.into(), quoted(&plain(name)), "--payload".into(), "JSON".into()]);
        }
        _ => {
            // Each action is a call; what it is called here is the last word of its address.
            let verb = action["href"].as_str().and_then(|href| href.rsplit('/').next()).unwrap_or(id);
            words.extend([plain(verb), run_id.into()]);
            if body["compensate"] == false {
                words.push("--no-compensate".into());
            }
            if body["steps"] == 1 {
                words.push("--one-step".into());
            }
            option(&mut words, "step", &body["step_id"]);
            match needs(action, "decision_by") {
                true => words.extend(["--by".into(), "WHO".into()]),
                false => option(&mut words, "by", &body["decision_by"]),
            }
            if needs(action, "form") {
                words.extend(["--form".into(), "JSON".into()]);
            }
            option(&mut words, "tool", &body["tool"]);
            option(&mut words, "account", &body["account"]);
            option(&mut words, "from", &body["from_step"]);
            option(&mut words, "reason", &body["reason"]);
        }
    }
    words.join(" ")
}

fn needs(action: &Value, field: &str) -> bool {
    action["needs"].as_array().into_iter().flatten().any(|needed| needed == field)
}

/// As a shell reads it. Text of the server cannot leave its quotes.
fn quoted(text: &str) -> String {
    let simple = |c: char| c.is_ascii_alphanumeric() || "-_./:@+=,".contains(c);
    match !text.is_empty() && text.chars().all(simple) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn actions_are_commands_that_can_be_copied() {
        let approve = json!({ "id": "approve", "body": { "step_id": "manager", "decision_by": "ana@example.com" } });
        assert_eq!(command_of("run_1", &approve), "abide approve run_1 --step manager --by ana@example.com");
        let correct = json!({ "id": "resolve_correct", "needs": ["input"],
            "body": { "step_id": "pay", "action": "correct", "reason": "it's wrong" } });
        assert_eq!(
            command_of("run_1", &correct),
            r"abide resolve run_1 pay correct --input JSON --reason 'it'\''s wrong'"
        );
        let evil = json!({ "id": "cancel", "body": { "reason": "$(reboot)\u{1b}[2J" } });
        assert_eq!(command_of("run_1", &evil), "abide cancel run_1 --reason '$(reboot)'");
    }

    #[test]
    fn an_explanation_begins_with_the_sentence_and_ends_with_the_proof() {
        let told = json!({
            "run_id": "run_1", "state": "waiting_on_approval", "summary": "Waits for Ana.", "doing": "Waiting.",
            "why": "Ship order 7?", "since": "2026-01-01T00:00:00Z", "chain": [], "will_happen": [],
            "can_be_done": [{ "id": "approve", "title": "Approve", "who": ["ana"], "body": { "step_id": "manager" } }],
            "proof": { "as_of_seq": 12, "lease_epoch": null },
        });
        let text = anstream::adapter::strip_str(&explained(&told)).to_string();
        assert!(text.starts_with("Waits for Ana.\n\nstate     waiting_on_approval\n"), "{text}");
        assert!(text.contains("What happens next\n  Nothing by itself.\n"), "{text}");
        assert!(
            text.contains("What you can do\n  Approve  (ana)\n      abide approve run_1 --step manager\n"),
            "{text}"
        );
        assert!(text.ends_with("Proof: event 12\n"), "{text}");
    }
}
