//! `abide watch`: follows a run; the exit code says how it ended.

use std::io::{self, IsTerminal, Write};

use abide_api::views::{Progress, Run};
use abide_client::{Method, RunState};
use clap::Args;

use super::Exit;
use super::print::{Shape, plain, print_json, style_of};
use super::remote::{Stopped, To};

#[derive(Debug, Args)]
pub struct Watch {
    /// Which run
    run_id: String,
    /// Answer with what it does now and leave: 4 when it has not ended
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    to: To,
}

impl Watch {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            if !self.no_wait {
                return follow(&self.to, &self.run_id).await;
            }
            let answer = self.to.client()?.call(Method::GET, &["v1", "runs", &self.run_id]).send().await?;
            let run: Run = answer.json()?;
            super::remote::print_run(&answer, self.to.output, "is")?;
            Ok(exit_of(&run))
        })
    }
}

/// How a command ends that waits for a run.
pub fn exit_of(run: &Run) -> Exit {
    match run.state {
        RunState::Succeeded | RunState::CompletedWithWarnings => Exit::Done,
        RunState::Failed => Exit::Failed,
        RunState::Canceled => Exit::Canceled,
        _ => Exit::Waiting,
    }
}

/// Shows every change until the run has ended.
pub async fn follow(to: &To, run_id: &str) -> Result<Exit, Stopped> {
    let mut watch = to.client()?.watch(run_id);
    let mut screen = Screen { live: io::stdout().is_terminal(), ..Screen::default() };
    let mut last = None;
    while let Some(message) = watch.next_message().await? {
        if to.output != Shape::Table {
            if message.event == "run" && to.output != Shape::Ids {
                print_json(&message.data)?;
            }
        } else if message.event == "progress"
            && let Ok(progress) = serde_json::from_str::<Progress>(&message.data)
        {
            screen.progress(&progress)?;
        }
        if message.event == "run" {
            let run: Run = serde_json::from_str(&message.data).map_err(abide_client::Error::from)?;
            if to.output == Shape::Table {
                screen.run(&run)?;
            }
            last = Some(run);
        }
    }
    screen.clear()?;
    match last {
        Some(run) => Ok(exit_of(&run)),
        None => Ok(Exit::Waiting),
    }
}

/// One line per change; on a terminal, a bar below them for as long as something is under way.
#[derive(Default)]
struct Screen {
    live: bool,
    shown: Option<(RunState, String)>,
    has_bar: bool,
}

impl Screen {
    fn run(&mut self, run: &Run) -> io::Result<()> {
        let now = (run.state, run.summary.clone());
        if self.shown.as_ref() == Some(&now) {
            return Ok(());
        }
        self.clear()?;
        let style = style_of(run.state.as_str());
        let time = run.updated_at.to_string();
        let time = time.get(11..19).unwrap_or_default();
        let mut out = anstream::stdout().lock();
        writeln!(out, "{time}  {style}{:<23}{style:#}  {}", run.state.as_str(), plain(&run.summary))?;
        for warning in run.warnings.iter().filter(|_| run.state.is_terminal()) {
            let message = warning["message"].as_str().map_or_else(|| warning.to_string(), str::to_owned);
            writeln!(out, "          warning: {}", plain(&message))?;
        }
        self.shown = Some(now);
        out.flush()
    }

    fn progress(&mut self, progress: &Progress) -> io::Result<()> {
        if !self.live {
            return Ok(());
        }
        let mut out = anstream::stdout().lock();
        write!(out, "\r\x1b[2K{}", bar(progress))?;
        self.has_bar = true;
        out.flush()
    }

    fn clear(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.has_bar) {
            write!(anstream::stdout().lock(), "\r\x1b[2K")?;
        }
        Ok(())
    }
}

const BAR: usize = 24;

fn bar(progress: &Progress) -> String {
    let message = progress.message.as_deref().map(plain).unwrap_or_default();
    let step = plain(&progress.step_id);
    match progress.total {
        Some(total) if total > 0 => {
            let share = (progress.done.min(total) as f64 / total as f64).clamp(0.0, 1.0);
            let full = (share * BAR as f64).round() as usize;
            let bar = "█".repeat(full) + &"░".repeat(BAR - full);
            format!("          {step}  {bar} {:>3}%  {}/{total}  {message}", (share * 100.0) as u32, progress.done)
        }
        _ => format!("          {step}  {}  {message}", progress.done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_how_far_it_is() {
        let progress = |done, total| Progress { step_id: "scan".into(), done, total, message: None, at: None };
        assert_eq!(bar(&progress(6, Some(24))).trim(), "scan  ██████░░░░░░░░░░░░░░░░░░  25%  6/24");
        assert_eq!(bar(&progress(30, Some(24))).trim(), "scan  ████████████████████████ 100%  30/24");
        assert_eq!(bar(&progress(7, None)).trim(), "scan  7");
    }
}
