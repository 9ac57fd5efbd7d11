//! `paravt demo`: the bundled model, the bundled video, the whole story, and whether the answer is right.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use super::options::EngineArgs;
use super::output::Target;
use super::report::Times;
use super::story::Story;
use super::view::View;
use super::{CliError, Environment, ffmpeg, text};
use crate::agent::Outcome;
use crate::app::App;
use crate::card;
use crate::config::Config;
use crate::media::SourceRequest;

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Another video; then no answer is expected
    #[arg(long, value_name = "FILE")]
    video: Option<PathBuf>,
    /// Another question; then no answer is expected
    #[arg(long)]
    question: Option<String>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

/// `demo.json` beside the card. What else is in it is not for us.
#[derive(Debug, Deserialize)]
struct Demo {
    video: PathBuf,
    question: String,
    answer: String,
}

/// Runs the command.
pub(super) async fn run(args: &DemoArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    args.engine.lay_over(&mut config.engine, environment)?;
    if !args.engine.has_card() {
        config.engine.card = Some(card::DEFAULT.into());
    }
    args.question.as_deref().map_or(Ok(()), super::ask::check_question)?;
    let mut view = View::told(Target::Stdout, environment);
    ffmpeg::provide(&config.media, environment, &view).await?;
    let app = App::new(config)?;
    let demo = Demo::read(&app.card().folder)?;
    let expected = (args.video.is_none() && args.question.is_none()).then_some(demo.answer.as_str());
    let video = args.video.clone().unwrap_or_else(|| app.card().folder.join(&demo.video));
    if !video.is_file() {
        return Err(CliError::Failed(format!("no such file: {}", video.display())));
    }
    let question = args.question.as_deref().unwrap_or(&demo.question);
    let title = video.file_name().unwrap_or(video.as_os_str()).to_string_lossy().into_owned();
    let agent = super::load::agent(&app, &view).await?;
    let engine = agent.engine().info();
    let model = text::line(&format!("{} on {} ({})", app.card().name, engine.name, engine.detail));
    view.note(&format!("model     {model}"))?;
    // Greedy: the same answer every time.
    let events = super::ask::question(&agent, SourceRequest::Path(video), question, None, Some(0.0));
    let outcome = view.watch(Story::new(title, question), events).await?;
    let verdict = verdict(expected, &outcome).map_err(CliError::Failed)?;
    Ok(Target::Stdout.line(&verdict)?)
}

impl Demo {
    fn read(folder: &Path) -> Result<Self, CliError> {
        let path = folder.join("demo.json");
        let problem = |problem: String| CliError::Failed(format!("the demonstration {}: {problem}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| problem(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| problem(error.to_string()))
    }
}

/// What the demonstration showed; an error when the answer is wrong. How many windows met in time is told, not judged: on
/// a slow machine this little model's windows may be over before the next call is written.
fn verdict(expected: Option<&str>, outcome: &Outcome) -> Result<String, String> {
    let answer = text::line(&outcome.answer);
    let Some(expected) = expected else { return Ok("done".to_owned()) };
    if plain(&answer) != plain(expected) {
        return Err(format!("the answer is \"{answer}\" and should be \"{expected}\""));
    }
    Ok(match Times::of(outcome).windows_at_once {
        0 | 1 => "right answer, but no two windows were watched at the same time".to_owned(),
        count => format!("right answer, {count} windows at the same time"),
    })
}

/// Case and white space do not make an answer wrong.
fn plain(answer: &str) -> String {
    answer.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::super::story::fixture;
    use super::*;

    #[test]
    fn right_and_at_the_same_time_is_right() {
        let told = verdict(Some("Red  Circle,blue square"), &fixture::outcome()).expect("right");
        assert_eq!(told, "right answer, 2 windows at the same time");
    }

    #[test]
    fn a_wrong_answer_fails() {
        let told = verdict(Some("green cross"), &fixture::outcome()).expect_err("wrong");
        assert_eq!(told, "the answer is \"red circle, blue square\" and should be \"green cross\"");
    }

    #[test]
    fn windows_one_after_another_are_told() {
        let mut outcome = fixture::outcome();
        outcome.windows[1].started_ms = outcome.windows[0].finished_ms;
        let told = verdict(Some("red circle, blue square"), &outcome).expect("right");
        assert_eq!(told, "right answer, but no two windows were watched at the same time");
    }

    #[test]
    fn with_another_question_any_answer_will_do() {
        assert!(verdict(None, &fixture::outcome()).is_ok());
    }
}
