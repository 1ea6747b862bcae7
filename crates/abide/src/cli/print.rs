//! How answers are printed: tables that fit the terminal, JSON as the server gave it, ids for pipes. Text of the server is
//! text: whatever would move the cursor is taken out of it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};

use abide_api::Raw;
use abide_client::Answer;
use abide_core::expression::{readable_text, split_list, split_object};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::clock;

/// What a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// For people
    #[default]
    Table,
    /// For programs: exactly what the server answered
    Json,
    /// The same, one item per line
    Jsonl,
    /// Only ids, one per line
    Ids,
}

/// How a list is shown: where its items are, what names them, and which columns a table has.
pub struct List<'a> {
    pub field: &'a str,
    pub id: &'a str,
    pub heads: &'a [&'a str],
    pub row: &'a dyn Fn(&Value) -> Vec<String>,
    /// Said instead of an empty table.
    pub nothing: &'a str,
}

impl List<'_> {
    pub fn print(&self, answer: &Answer, shape: Shape) -> io::Result<usize> {
        let items = self.items(answer);
        let mut out = anstream::stdout().lock();
        match shape {
            Shape::Json => print_json(&answer.text())?,
            Shape::Jsonl => items.iter().try_for_each(|item| print_json(&one_line(item.get())))?,
            Shape::Ids => {
                for item in values(&items) {
                    writeln!(out, "{}", word(&item[self.id]))?;
                }
            }
            Shape::Table if items.is_empty() => writeln!(out, "{}", self.nothing)?,
            Shape::Table => {
                let rows: Vec<Vec<String>> = values(&items).iter().map(self.row).collect();
                out.write_all(table(self.heads, &rows, width()).as_bytes())?;
            }
        }
        Ok(items.len())
    }

    fn items(&self, answer: &Answer) -> Vec<Raw> {
        let mut fields: BTreeMap<String, Raw> = serde_json::from_slice(&answer.body).unwrap_or_default();
        let items = fields.remove(self.field);
        items.and_then(|items| serde_json::from_str(items.get()).ok()).unwrap_or_default()
    }
}

fn values(items: &[Raw]) -> Vec<Value> {
    items.iter().map(|item| shown(item.get())).collect()
}

/// JSON as a table shows it. A payload may hold what no value of ours can be: it is shown as it is written.
fn shown(json: &str) -> Value {
    let json = json.trim();
    if let Ok(value) = serde_json::from_str(json) {
        return value;
    }
    let text = |json: &str| readable_text(json).unwrap_or(json.into()).into_owned();
    match json.as_bytes().first() {
        Some(b'{') => {
            split_object(json).unwrap_or_default().into_iter().map(|(key, one)| (text(key), shown(one))).collect()
        }
        Some(b'[') => split_list(json).unwrap_or_default().into_iter().map(shown).collect(),
        _ => text(json).into(),
    }
}

/// The cursor of the next page of a list.
pub fn next_cursor(answer: &Answer) -> Option<String> {
    shown(&answer.text())["next_cursor"].as_str().map(str::to_owned)
}

/// One thing: as a table whatever the caller writes, else as it came.
pub fn print_one(
    answer: &Answer,
    shape: Shape,
    id: &str,
    people: impl FnOnce(&mut dyn Write, &Value) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    match shape {
        Shape::Json => print_json(&answer.text()),
        Shape::Jsonl => print_json(&one_line(&answer.text())),
        Shape::Ids => writeln!(out, "{}", word(&shown(&answer.text())[id])),
        Shape::Table => people(&mut out, &shown(&answer.text())),
    }
}

/// JSON on standard output; `anstream` would drop a delete character from a pipe.
pub fn print_json(json: &str) -> io::Result<()> {
    write_json(&mut io::stdout().lock(), json)
}

/// JSON goes out byte for byte, except that a terminal never sees a control character.
pub fn write_json(out: &mut impl Write, json: &str) -> io::Result<()> {
    let json = json.trim_end();
    if !io::stdout().is_terminal() {
        return writeln!(out, "{json}");
    }
    let escaped: String = json
        .chars()
        .map(|c| match c.is_control() && c != '\n' && c != '\t' {
            true => format!("\\u{:04x}", c as u32),
            false => c.to_string(),
        })
        .collect();
    writeln!(out, "{escaped}")
}

/// Outside of texts JSON has line breaks only as decoration; inside they are escaped.
fn one_line(json: &str) -> String {
    json.lines().map(str::trim).collect()
}

/// A value as one line of harmless text.
pub fn word(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => plain(text),
        other => plain(&other.to_string()),
    }
}

/// Text without escape sequences, control characters and marks that turn its direction around; one line.
pub fn plain(text: &str) -> String {
    // The one-character form of the same introducer is known to fewer readers, but to some terminals.
    let text = text.replace('\u{9b}', "\u{1b}[");
    anstream::adapter::strip_str(&text)
        .to_string()
        .chars()
        .filter_map(|c| match c {
            '\n' | '\r' | '\t' => Some(' '),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => None,
            c if c.is_control() => None,
            c => Some(c),
        })
        .collect()
}

/// An instant as an age, or nothing.
pub fn age(value: &Value) -> String {
    let at = value.as_str().and_then(abide_core::time::Timestamp::parse);
    at.map(|at| clock::seen_from(clock::now(), at)).unwrap_or_default()
}

pub fn style_of(state: &str) -> Style {
    match state {
        "succeeded" | "completed" => AnsiColor::Green.on_default(),
        "failed" | "undo_failed" => AnsiColor::Red.on_default().bold(),
        "running" => AnsiColor::Cyan.on_default(),
        "stalled" | "waiting_on_operator" | "completed_with_warnings" => AnsiColor::Yellow.on_default().bold(),
        state if state.starts_with("waiting") || state == "retry_scheduled" => AnsiColor::Yellow.on_default(),
        _ => Style::new(),
    }
}

pub const DIM: Style = Style::new().dimmed();
pub const BOLD: Style = Style::new().bold();

/// How many columns there are; in a pipe nothing is cut.
pub fn width() -> usize {
    match io::stdout().is_terminal() {
        true => terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0)),
        false => usize::MAX,
    }
}

/// Columns side by side. The last one takes what is left, and is cut where the line would not fit.
pub fn table(heads: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let mut widths: Vec<usize> = heads.iter().map(|head| head.width()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    let heads = heads.iter().map(|head| head.to_uppercase()).collect::<Vec<_>>();
    let mut text = format!("{DIM}{}{DIM:#}\n", line(&heads, &widths, width, false));
    for row in rows {
        text.push_str(&line(row, &widths, width, true));
        text.push('\n');
    }
    text
}

fn line(cells: &[String], widths: &[usize], width: usize, coloured: bool) -> String {
    let mut line = String::new();
    let mut at = 0;
    for (n, cell) in cells.iter().enumerate() {
        let last = n + 1 == cells.len();
        let shown = cut(cell, width.saturating_sub(at));
        let pad = if last { 0 } else { (widths[n] + 2).saturating_sub(shown.width()).min(width.saturating_sub(at)) };
        at += shown.width() + pad;
        let style = if coloured { style_of(cell) } else { Style::new() };
        line.push_str(&format!("{style}{shown}{style:#}{}", " ".repeat(pad)));
    }
    line.trim_end().to_owned()
}

fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    for c in text.chars() {
        if cut.width() + c.width().unwrap_or(0) + 1 > width {
            break;
        }
        cut.push(c);
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_no_value_can_be_is_shown_as_it_is_written() {
        let shown = shown(r#"{"run": 7, "output": ["half \ud83d", 1e400, true]}"#);
        assert_eq!(shown, serde_json::json!({ "run": 7, "output": ["half \u{fffd}", "1e400", true] }));
    }

    fn bare(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn what_would_move_the_cursor_is_taken_out() {
        assert_eq!(plain("a\u{1b}[2Jb\u{1b}]0;title\u{7}c\u{9b}31md\re\n\u{202e}f"), "abcd e f");
    }

    #[test]
    fn a_table_fits_its_width_and_cuts_only_the_end() {
        let rows = [
            vec!["run_1".into(), "running".into(), "does something that is long".into()],
            vec!["run_22".into(), "failed".into(), "日本語の長い説明です".into()],
        ];
        let shown = bare(&table(&["run", "state", "summary"], &rows, 30));
        assert_eq!(shown, "RUN     STATE    SUMMARY\nrun_1   running  does somethi…\nrun_22  failed   日本語の長い…\n");
    }

    #[test]
    fn in_a_pipe_nothing_is_cut() {
        let rows = [vec!["x".repeat(500)]];
        assert!(bare(&table(&["a"], &rows, usize::MAX)).contains(&"x".repeat(500)));
    }
}
