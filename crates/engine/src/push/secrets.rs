//! Secrets: known to this process, filled in when a request is sent, and never shown or stored.

use std::collections::BTreeMap;
use std::path::Path;

use abide_core::expression::{is_deeper_than, readable_text, replace_scalars};
use abide_core::mask::percent_encoded;
use abide_core::run::command::{Fault, Json};
use serde_json::Value;

/// What a variable of the environment starts with that holds a secret.
const VARIABLE: &str = "ABIDE_SECRET_";
/// An answer that nests deeper is taken for a text.
const DEEPEST: usize = 128;

/// Secrets by name.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, String>);

/// Names alone.
impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Why secrets cannot be read. It shows names and lines, never values.
#[derive(Debug, thiserror::Error)]
pub enum BadSecrets {
    #[error("{file} cannot be read: {error}")]
    Unreadable { file: String, error: std::io::Error },
    #[error("everybody on this machine may read or write {0}; take that away: chmod 600 {0}")]
    Open(String),
    #[error("line {line} of {file} is not NAME=VALUE")]
    BadLine { file: String, line: usize },
}

impl Secrets {
    pub fn of<N: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (N, V)>) -> Secrets {
        Secrets(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// Those of the environment: `ABIDE_SECRET_NAME=VALUE`.
    pub fn from_environment() -> Secrets {
        Secrets::from_variables(std::env::vars())
    }

    fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Secrets {
        let secrets =
            variables.into_iter().filter_map(|(name, value)| Some((name.strip_prefix(VARIABLE)?.to_owned(), value)));
        Secrets(secrets.filter(|(name, _)| !name.is_empty()).collect())
    }

    /// Adds those of a file of `NAME=VALUE` lines. Blank lines and lines with `#` are passed over; a value is taken as it
    /// stands, without the space around it.
    pub fn and_file(mut self, file: &Path) -> Result<Secrets, BadSecrets> {
        let shown = file.display().to_string();
        let unreadable = |error| BadSecrets::Unreadable { file: shown.clone(), error };
        if is_open_to_all(file).map_err(unreadable)? {
            return Err(BadSecrets::Open(shown));
        }
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
                Some((name, value)) if !name.is_empty() => self.0.insert(name.to_owned(), value.to_owned()),
                _ => return Err(BadSecrets::BadLine { file: shown, line: at + 1 }),
            };
        }
        Ok(self)
    }

    /// An empty value is as good as none.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

#[cfg(unix)]
fn is_open_to_all(file: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::metadata(file)?.permissions().mode() & 0o006 != 0)
}

#[cfg(not(unix))]
fn is_open_to_all(_: &Path) -> std::io::Result<bool> {
    Ok(false)
}

/// Takes the secrets of one request out of whatever is stored about it: a target may repeat what it was sent.
#[derive(Clone, Default)]
pub struct Redactor(Vec<(String, String)>);

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} texts)", self.0.len())
    }
}

impl Redactor {
    /// Hides a value, also as it stands inside JSON, a URL or a host.
    pub fn hide(&mut self, name: &str, value: &str) {
        let quoted = Value::from(value).to_string();
        let in_json = quoted[1..quoted.len() - 1].to_owned();
        for text in [value.to_owned(), in_json, percent_encoded(value, true), value.to_ascii_lowercase()] {
            if !text.is_empty() && !self.0.iter().any(|(known, _)| *known == text) {
                self.0.push((text, format!("[secret {name}]")));
            }
        }
        // A secret that contains another one goes first.
        self.0.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    }

    pub fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (secret, shown)| text.replace(secret, shown))
    }

    /// The text as it is if it is JSON without a secret; with a secret only the strings and numbers that show it are
    /// rewritten; none if it is no JSON.
    pub fn json(&self, text: &str) -> Option<Json> {
        serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
        if is_deeper_than(text, DEEPEST) {
            return None;
        }
        let shows = |(secret, _): &(String, String)| text.contains(secret.as_str());
        // An escape can hide a secret from a plain search.
        if self.0.is_empty() || !(text.contains('\\') || self.0.iter().any(shows)) {
            return Some(text.into());
        }
        Some(replace_scalars(text, |scalar| self.scalar(scalar)).into())
    }

    /// A secret of digits can come back as a number: it becomes a string then.
    fn scalar(&self, json: &str) -> Option<String> {
        let shown = if json.starts_with('"') { readable_text(json)? } else { json.into() };
        let redacted = self.text(&shown);
        (redacted != shown).then(|| Value::from(redacted).to_string())
    }

    pub fn fault(&self, mut fault: Fault) -> Fault {
        fault.message = self.text(&fault.message);
        if let Some(details) = &mut fault.details {
            self.value(details);
        }
        fault.tool = fault.tool.map(|tool| self.text(&tool));
        fault
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(members) => {
                *members = std::mem::take(members)
                    .into_iter()
                    .map(|(key, mut member)| {
                        self.value(&mut member);
                        (self.text(&key), member)
                    })
                    .collect();
            }
            // A secret of digits can come back as a number.
            Value::Number(number) if self.0.iter().any(|(secret, _)| number.to_string().contains(secret)) => {
                *value = Value::String(self.text(&number.to_string()));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_adds_to_the_environment_and_must_not_be_open_to_all() {
        let file = std::env::temp_dir().join(format!("abide-secrets-{}", std::process::id()));
        std::fs::write(&file, "# ours\n\nA = one \nB=two=2\n").expect("a file");
        let mode = |mode| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let given =
            || Secrets::from_variables([("ABIDE_SECRET_C".into(), "three".into()), ("PATH".into(), "x".into())]);
        mode(0o644);
        let open = given().and_file(&file).expect_err("it is open to all").to_string();
        assert!(open.contains("chmod 600"), "{open}");
        mode(0o600);
        let secrets = given().and_file(&file).expect("secrets");
        assert_eq!((secrets.get("A"), secrets.get("B")), (Some("one"), Some("two=2")));
        assert_eq!((secrets.get("C"), secrets.get("PATH")), (Some("three"), None));
        assert_eq!(format!("{secrets:?}"), r#"{"A", "B", "C"}"#);
        std::fs::write(&file, "A=one\nhunter2\n").expect("a file");
        let bad = Secrets::default().and_file(&file).expect_err("no pair").to_string();
        assert!(bad.contains("line 2") && !bad.contains("hunter2"), "{bad}");
        std::fs::remove_file(&file).expect("gone");
    }

    #[test]
    fn a_repeated_secret_is_hidden_in_any_writing() {
        let mut redactor = Redactor::default();
        redactor.hide("KEY", "pa\"ss/wörd");
        redactor.hide("PIN", "4711");
        for text in ["pa\"ss/wörd", r#"pa\"ss/wörd"#, "pa%22ss%2Fw%C3%B6rd"] {
            assert_eq!(redactor.text(&format!("a {text} b")), "a [secret KEY] b");
        }
        let echoed = r#"{"a": ["pa\u0022ss\/w\u00f6rd"], "4711": 47110}"#;
        let json = redactor.json(echoed).expect("JSON");
        assert_eq!(&*json, r#"{"a": ["[secret KEY]"], "[secret PIN]": "[secret PIN]0"}"#);
        assert_eq!(redactor.json("{\"b\" : 1e2}").as_deref(), Some("{\"b\" : 1e2}"), "the rest is not rewritten");
        assert_eq!(redactor.json("plain"), None);
    }
}
