//! Writing to stdout and stderr. The only place that does, beside the live view's bars.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use console::Term;
use serde::Serialize;

use super::{CliError, Environment};

/// As JSON, in one line.
pub(super) fn json(value: &impl Serialize) -> Result<String, CliError> {
    serde_json::to_string(value).map_err(|error| CliError::Output(error.into()))
}

/// When the next line of progress is due.
#[derive(Debug)]
pub(super) struct Pace(Instant);

impl Pace {
    /// Between two lines.
    const EVERY: Duration = Duration::from_secs(10);

    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Whether a line is to be written now, because it is time or it must be.
    pub(super) fn is_due(&mut self, must: bool) -> bool {
        let due = must || self.0.elapsed() >= Self::EVERY;
        if due {
            self.0 = Instant::now();
        }
        due
    }
}

/// Where the story goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Target {
    /// The terminal behind it.
    pub(super) fn term(self) -> Term {
        match self {
            Self::Stdout => Term::stdout(),
            Self::Stderr => Term::stderr(),
        }
    }

    /// Whether someone looks at it who wants colours and movement.
    pub(super) fn is_live(self, environment: &Environment) -> bool {
        self.is_terminal() && !environment.is_set("NO_COLOR") && environment.get("TERM") != Some("dumb")
    }

    /// Whether it is a terminal at all.
    pub(super) fn is_terminal(self) -> bool {
        self.term().is_term()
    }

    /// Writes a line. A reader that went away is not an error: there is no one left to tell.
    pub(super) fn line(self, text: &str) -> io::Result<()> {
        let written = match self {
            Self::Stdout => write_line(io::stdout().lock(), text),
            Self::Stderr => write_line(io::stderr().lock(), text),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

fn write_line(mut stream: impl Write, text: &str) -> io::Result<()> {
    // One write, so that lines of two processes do not mix.
    stream.write_all(format!("{text}\n").as_bytes())?;
    stream.flush()
}
