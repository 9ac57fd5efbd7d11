//! `paravt doctor`: what is there, what is missing, how to get it.

mod checks;

use clap::Args;
use serde::Serialize;

use super::line::{Line, Tone};
use super::options::EngineArgs;
use super::output::Target;
use super::view::View;
use super::{CliError, Environment, ffmpeg, text};
use crate::config::Config;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Install ffmpeg where it is missing
    #[arg(long)]
    install: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: String,
    state: State,
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// There.
    Found,
    /// Not there, and not needed as things are configured.
    Absent,
    /// Not there, and needed.
    Missing,
}

impl Check {
    fn found(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), state: State::Found, detail: detail.into(), fix: None }
    }

    fn absent(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { state: State::Absent, ..Self::found(name, detail) }
    }

    fn missing(name: impl Into<String>, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { state: State::Missing, fix: Some(fix.into()), ..Self::found(name, detail) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    /// Nothing needed is missing.
    ok: bool,
    checks: Vec<Check>,
}

impl Report {
    fn of(checks: Vec<Check>) -> Self {
        let ok = checks.iter().all(|check| check.state != State::Missing);
        Self { version: env!("CARGO_PKG_VERSION"), ok, checks }
    }

    fn lines(&self) -> Vec<Line> {
        let name_width = self.checks.iter().map(|check| text::width(&check.name)).max().unwrap_or(0);
        let mut lines = vec![Line::new().add(Tone::Strong, format!("paravt {}", self.version))];
        for check in &self.checks {
            let (mark, tone) = match check.state {
                State::Found => ("ok     ", Tone::Good),
                State::Absent => ("-      ", Tone::Dim),
                State::Missing => ("MISSING", Tone::Bad),
            };
            let name = format!("  {:<name_width$}  ", check.name);
            lines.push(Line::new().add(tone, mark).add(Tone::Plain, name).add(Tone::Plain, text::line(&check.detail)));
            if let Some(fix) = &check.fix {
                lines.push(
                    Line::new()
                        .add(Tone::Strong, format!("         {} -> {}", " ".repeat(name_width), text::line(fix))),
                );
            }
        }
        let (tone, verdict) = if self.ok {
            (Tone::Good, "everything needed is there")
        } else {
            (Tone::Bad, "something needed is missing")
        };
        lines.push(Line::new().add(tone, verdict));
        lines
    }
}

/// Runs the command.
pub(super) async fn run(args: &DoctorArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    args.engine.lay_over(&mut config.engine, environment)?;
    if args.install {
        // On stderr: stdout may be a JSON object. A failure shows in the report below, with what to do.
        let view = View::told(Target::Stderr, environment);
        ffmpeg::install_asked(&config.media, &view).await?;
    }
    let report = Report::of(checks::all(&config, environment).await);
    if args.json {
        let json = serde_json::to_string_pretty(&report).map_err(|error| CliError::Output(error.into()))?;
        Target::Stdout.line(&json)?;
    } else {
        let live = Target::Stdout.is_live(environment);
        let told = |line: &Line| if live { line.painted() } else { line.plain() };
        report.lines().iter().try_for_each(|line| Target::Stdout.line(&told(line)))?;
    }
    if report.ok { Ok(()) } else { Err(CliError::Told) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::of(vec![
            Check::found("ffmpeg", "/usr/bin/ffmpeg, version 5.1.6"),
            Check::missing("checkpoint", "nothing at models/x", "paravt ask --model DIR"),
            Check::absent("gpu", "no nvidia-smi \u{1b}[31mon the path"),
        ])
    }

    #[test]
    fn people_see_what_is_missing_and_how_to_get_it() {
        let mut told: Vec<String> = report().lines().iter().map(Line::plain).collect();
        told.remove(0);
        insta::assert_snapshot!(told.join("\n"), @r#"
        ok       ffmpeg      /usr/bin/ffmpeg, version 5.1.6
        MISSING  checkpoint  nothing at models/x
                            -> paravt ask --model DIR
        -        gpu         no nvidia-smi on the path
        something needed is missing
        "#);
    }

    #[test]
    fn only_what_is_needed_counts() {
        assert!(!report().ok);
        assert!(Report::of(vec![Check::absent("gpu", "none")]).ok);
    }

    #[test]
    fn programs_read_the_same() {
        insta::assert_json_snapshot!(report().checks, @r#"
        [
          {
            "name": "ffmpeg",
            "state": "found",
            "detail": "/usr/bin/ffmpeg, version 5.1.6"
          },
          {
            "name": "checkpoint",
            "state": "missing",
            "detail": "nothing at models/x",
            "fix": "paravt ask --model DIR"
          },
          {
            "name": "gpu",
            "state": "absent",
            "detail": "no nvidia-smi \u001b[31mon the path"
          }
        ]
        "#);
    }
}
