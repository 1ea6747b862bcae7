//! `abide top`: a live screen of what runs, what waits and who listens. `q` leaves.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::widgets::{Block, Paragraph, Row, Table};
use serde_json::Value;

use super::Exit;
use super::print::{age, table, width, word};
use super::remote::{Stopped, To};

#[derive(Debug, Args)]
pub struct Top {
    /// Seconds between two looks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    #[command(flatten)]
    to: To,
}

struct Picture {
    counts: String,
    queues: Vec<Vec<String>>,
    runs: Vec<Vec<String>>,
}

impl Top {
    pub fn run(self) -> io::Result<Exit> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let look = || runtime.block_on(picture(&self.to));
        let first = match look() {
            Ok(picture) => picture,
            Err(stopped) => return self.to.ended(Err(stopped)),
        };
        // Not a terminal: one look, no control characters.
        if !io::stdout().is_terminal() {
            return write_once(&first).map(|()| Exit::Done);
        }
        let mut terminal = ratatui::init();
        let shown = show(&mut terminal, first, Duration::from_secs(self.every), look);
        ratatui::restore();
        match shown {
            Ok(()) => Ok(Exit::Done),
            Err(stopped) => self.to.ended(Err(stopped)),
        }
    }
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    mut picture: Picture,
    every: Duration,
    look: impl Fn() -> Result<Picture, Stopped>,
) -> Result<(), Stopped> {
    loop {
        terminal.draw(|frame| draw(frame, &picture))?;
        if event::poll(every)? {
            match event::read()? {
                Event::Key(key) if matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) => return Ok(()),
                Event::Key(key) if key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL => {
                    return Ok(());
                }
                // A resize only draws anew.
                _ => continue,
            }
        }
        picture = look()?;
    }
}

async fn picture(to: &To) -> Result<Picture, Stopped> {
    let client = to.client()?;
    let open = abide_client::Filter::new().state("open").with("limit", "100");
    let runs = to.get(&["v1", "runs"])?.queries(&open.0).answer::<Value>();
    let (counts, queues, runs) =
        (client.counts("state", &Default::default()).await?, client.queues().await?, runs.await?);
    let list =
        |value: &Value, row: fn(&Value) -> Vec<String>| value.as_array().into_iter().flatten().map(row).collect();
    Ok(Picture {
        counts: counted(&counts["counts"]),
        queues: list(&queues["queues"], |queue| {
            let listeners = queue["listeners"].as_array().map_or(0, Vec::len);
            vec![word(&queue["queue"]), word(&queue["depth"]), age(&queue["oldest_at"]), listeners.to_string()]
        }),
        runs: list(&runs["runs"], |run| {
            vec![
                word(&run["run_id"]),
                word(&run["workflow_id"]),
                word(&run["state"]),
                age(&run["since"]),
                word(&run["summary"]),
            ]
        }),
    })
}

/// `3 running · 1 waiting_on_approval`, however the server lists them.
fn counted(counts: &Value) -> String {
    let parts: Vec<String> = match counts {
        Value::Object(counts) => counts.iter().map(|(state, count)| format!("{} {state}", word(count))).collect(),
        Value::Array(rows) => rows
            .iter()
            .map(|row| {
                let name = ["state", "value", "name", "key"]
                    .iter()
                    .map(|name| word(&row[*name]))
                    .find(|name| !name.is_empty());
                format!("{} {}", word(&row["count"]), name.unwrap_or_default())
            })
            .collect(),
        _ => Vec::new(),
    };
    if parts.is_empty() { "no runs".to_owned() } else { parts.join(" · ") }
}

const QUEUES: [&str; 4] = ["queue", "depth", "oldest", "listeners"];
const RUNS: [&str; 5] = ["run", "workflow", "state", "since", "summary"];

fn draw(frame: &mut ratatui::Frame, picture: &Picture) {
    let queues = u16::try_from(picture.queues.len().clamp(1, 6) + 3).unwrap_or(6);
    let areas = Layout::vertical([Constraint::Length(2), Constraint::Length(queues), Constraint::Min(3)]);
    let [top, middle, bottom] = areas.areas(frame.area());
    let head = Paragraph::new(format!("abide  {}", picture.counts)).bold();
    frame.render_widget(head, top);
    let widths = [Constraint::Length(24), Constraint::Length(8), Constraint::Length(12), Constraint::Min(10)];
    frame.render_widget(grid(" Queues ", &QUEUES, &picture.queues, widths.to_vec()), middle);
    let widths = [30, 20, 23, 12].map(Constraint::Length).into_iter().chain([Constraint::Min(20)]);
    frame.render_widget(grid(" Open runs (q leaves) ", &RUNS, &picture.runs, widths.collect()), bottom);
}

fn grid<'a>(title: &'a str, heads: &[&'a str], rows: &'a [Vec<String>], widths: Vec<Constraint>) -> Table<'a> {
    let rows = rows.iter().map(|row| {
        let is_bad = row.get(2).is_some_and(|state| state == "stalled" || state == "waiting_on_operator");
        let style = if is_bad { Style::new().fg(Color::Yellow) } else { Style::new() };
        Row::new(row.iter().map(String::as_str)).style(style)
    });
    Table::new(rows, widths).header(Row::new(heads.to_vec()).dim()).block(Block::bordered().title(title))
}

fn write_once(picture: &Picture) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}\n", picture.counts)?;
    out.write_all(table(&QUEUES, &picture.queues, width()).as_bytes())?;
    writeln!(out)?;
    out.write_all(table(&RUNS, &picture.runs, width()).as_bytes())
}
