//! Shows a story on a terminal as it happens, or tells it line by line, or keeps quiet.
//!
//! The I/O around `story`, `screen`, `plain` and `report`: what is shown is decided there.

use std::io;
use std::time::{Duration, Instant};

use futures::StreamExt;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::MissedTickBehavior;

use super::output::Target;
use super::plain::Teller;
use super::report::{self, Fills};
use super::screen::{self, Moment};
use super::story::Story;
use super::{CliError, Environment, plain};
use crate::agent::{AgentEvent, EventStream, Outcome};

/// Time between two redraws.
const REDRAW: Duration = Duration::from_millis(100);

/// Narrower than this, lines are cut by the terminal rather than squeezed further.
const NARROWEST: usize = 36;

/// Wider than this, lines are hard to read.
const WIDEST: usize = 110;

/// One story's audience.
#[derive(Debug)]
pub(super) struct View {
    target: Target,
    mode: Mode,
    story: Story,
}

#[derive(Debug)]
enum Mode {
    Quiet,
    Plain(Teller),
    Live(Rows),
}

/// The lines under the live view's control.
#[derive(Debug)]
struct Rows {
    all: MultiProgress,
    lines: Vec<ProgressBar>,
    began: Instant,
    tick: usize,
}

impl View {
    /// Live on a terminal that wants it, else plain lines.
    pub(super) fn told(target: Target, environment: &Environment) -> Self {
        let mode =
            if target.is_live(environment) { Mode::Live(Rows::new(target)) } else { Mode::Plain(Teller::default()) };
        Self { target, mode, story: Story::default() }
    }

    /// Live or plain on a terminal, nothing at all elsewhere.
    pub(super) fn on_terminal(target: Target, environment: &Environment) -> Self {
        if target.is_terminal() { Self::told(target, environment) } else { Self::silent(target) }
    }

    /// Shows nothing.
    pub(super) fn silent(target: Target) -> Self {
        Self { target, mode: Mode::Quiet, story: Story::default() }
    }

    /// Whether bars and spinners are drawn.
    pub(super) const fn is_live(&self) -> bool {
        matches!(self.mode, Mode::Live(_))
    }

    /// Something that takes a while begins: a spinner, or a line.
    pub(super) fn wait(&self, what: &str) -> io::Result<Wait> {
        let bar = match &self.mode {
            Mode::Live(rows) => rows.all.add(ProgressBar::new_spinner()),
            Mode::Plain(_) => {
                self.target.line(what)?;
                ProgressBar::hidden()
            }
            Mode::Quiet => ProgressBar::hidden(),
        };
        bar.set_style(style(" {spinner} {msg} {elapsed}"));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(REDRAW);
        Ok(Wait(bar))
    }

    /// A line beside the story. Quiet views leave it out.
    pub(super) fn note(&self, text: &str) -> io::Result<()> {
        match &self.mode {
            Mode::Live(rows) => rows.all.suspend(|| self.target.line(text)),
            Mode::Plain(_) => self.target.line(text),
            Mode::Quiet => Ok(()),
        }
    }

    /// Runs an episode to its end, showing what happens.
    ///
    /// # Errors
    /// The episode's error, or that the view can't be written.
    pub(super) async fn watch(&mut self, story: Story, mut events: EventStream) -> Result<Outcome, CliError> {
        self.story = story;
        self.begin()?;
        let mut redraw = tokio::time::interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(AgentEvent::Finished(outcome))) => {
                        self.event(&AgentEvent::Finished(outcome.clone()))?;
                        self.end(&outcome)?;
                        return Ok(*outcome);
                    }
                    Some(Ok(event)) => self.event(&event)?,
                    Some(Err(error)) => return Err(error.into()),
                    None => return Err(CliError::Unfinished),
                },
                _ = redraw.tick() => self.redraw(),
            }
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        match &mut self.mode {
            Mode::Live(rows) => rows.began = Instant::now(),
            Mode::Plain(_) => {
                self.target.line(&format!("video     {}", super::text::line(&self.story.title)))?;
                self.target.line(&format!("question  {}", super::text::line(&self.story.question)))?;
            }
            Mode::Quiet => {}
        }
        self.redraw();
        Ok(())
    }

    fn event(&mut self, event: &AgentEvent) -> io::Result<()> {
        self.story.apply(event);
        match &mut self.mode {
            Mode::Plain(teller) => teller.tell(&self.story, event).map_or(Ok(()), |line| self.target.line(&line)),
            // Deltas come faster than anyone can read; they wait for the next redraw.
            Mode::Live(_) if matches!(event, AgentEvent::Reasoning(_) | AgentEvent::WindowDelta { .. }) => Ok(()),
            Mode::Live(_) => {
                self.redraw();
                Ok(())
            }
            Mode::Quiet => Ok(()),
        }
    }

    fn redraw(&mut self) {
        let Mode::Live(rows) = &mut self.mode else { return };
        rows.tick += 1;
        let moment = Moment { now_ms: rows.began.elapsed().as_secs_f64() * 1e3, tick: rows.tick };
        let lines = screen::draw(&self.story, width(self.target), moment);
        rows.show(lines.iter().map(super::line::Line::painted));
    }

    /// Leaves the last picture where it was, and says where the time went.
    fn end(&mut self, outcome: &Outcome) -> io::Result<()> {
        let target = self.target;
        match &mut self.mode {
            Mode::Quiet => Ok(()),
            Mode::Plain(_) => {
                let lines = plain::end(&self.story, outcome);
                lines.iter().try_for_each(|line| target.line(line))
            }
            Mode::Live(rows) => {
                rows.leave();
                let width = width(target);
                let moment = Moment { now_ms: outcome.total_ms, tick: 0 };
                let mut lines = screen::draw(&self.story, width, moment);
                lines.push(super::line::Line::new());
                lines.extend(report::draw(outcome, width, Fills::BLOCKS));
                lines.iter().try_for_each(|line| target.line(&line.painted()))
            }
        }
    }
}

impl Drop for View {
    /// An interrupted view leaves no half-drawn bars.
    fn drop(&mut self) {
        if let Mode::Live(rows) = &mut self.mode {
            rows.leave();
        }
    }
}

impl Rows {
    fn new(target: Target) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::term(target.term(), 20));
        Self { all, lines: Vec::new(), began: Instant::now(), tick: 0 }
    }

    fn show(&mut self, lines: impl Iterator<Item = String>) {
        let mut shown = 0;
        for line in lines {
            if shown == self.lines.len() {
                let bar = self.all.add(ProgressBar::new_spinner());
                bar.set_style(style("{msg}"));
                self.lines.push(bar);
            }
            // A message of nothing would take no line.
            self.lines[shown].set_message(if line.is_empty() { " ".to_owned() } else { line });
            shown += 1;
        }
        for gone in self.lines.drain(shown..) {
            gone.finish_and_clear();
            self.all.remove(&gone);
        }
    }

    /// Wipes the lines and draws no more: what follows on this terminal is plain text.
    fn leave(&mut self) {
        // Nothing to be done about a terminal that is gone.
        let _ = self.all.clear();
        self.all.set_draw_target(ProgressDrawTarget::hidden());
        self.lines.clear();
    }
}

/// A spinner; gone when dropped.
#[derive(Debug)]
pub(super) struct Wait(ProgressBar);

impl Drop for Wait {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .tick_strings(&["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏", " "])
}

fn width(target: Target) -> usize {
    // One column is left free: a full line makes some terminals wrap.
    usize::from(target.term().size().1).saturating_sub(1).clamp(NARROWEST, WIDEST)
}
