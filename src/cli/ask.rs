//! `paravt ask`: one question about one video, the answer on stdout.

use std::path::PathBuf;

use clap::Args;
use url::Url;

use super::options::EngineArgs;
use super::output::{self, Target};
use super::report::AskReport;
use super::story::Story;
use super::view::View;
use super::{CliError, Environment, text};
use crate::agent::{Agent, AskOptions, AskRequest, EventStream};
use crate::app::App;
use crate::config::{Config, Dispatch};
use crate::engine::Sampling;
use crate::media::SourceRequest;

/// Arguments of `ask`.
#[derive(Debug, Args)]
pub(super) struct AskArgs {
    /// A video: a file, or an http(s) URL
    video: String,
    /// What to ask about it
    question: String,
    /// Print a JSON object (answer, windows, usage, timing) in place of the answer
    #[arg(long)]
    json: bool,
    /// Watch the windows of a burst all at once, or one after another
    #[arg(long, value_enum)]
    dispatch: Option<Dispatch>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

/// Runs the command.
pub(super) async fn run(args: &AskArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    args.engine.lay_over(&mut config.engine, environment)?;
    check_question(&args.question)?;
    let source = source(&args.video)?;
    let app = App::new(config)?;
    let mut view = View::on_terminal(Target::Stderr, environment);
    let agent = super::load::agent(&app, &view).await?;
    let story = Story::new(name(&source, &args.video), &args.question);
    let events = question(&agent, source, &args.question, args.dispatch, None);
    let outcome = view.watch(story, events).await?;
    drop(view);
    let told = if args.json { output::json(&AskReport::of(&outcome))? } else { text::block(&outcome.answer) };
    Ok(Target::Stdout.line(&told)?)
}

/// Whether something is asked at all.
pub(super) fn check_question(question: &str) -> Result<(), CliError> {
    if question.trim().is_empty() {
        return Err(CliError::Usage("the question is empty".to_owned()));
    }
    Ok(())
}

/// Asks the agent about one whole video. `temperature` `None` leaves the card's.
pub(super) fn question(
    agent: &Agent,
    video: SourceRequest,
    question: &str,
    dispatch: Option<Dispatch>,
    temperature: Option<f64>,
) -> EventStream {
    let id = format!("ask-{}", uuid::Uuid::now_v7().simple());
    agent.ask(AskRequest {
        sampling: Sampling { temperature, ..Sampling::default() },
        options: AskOptions { dispatch, ..AskOptions::default() },
        ..AskRequest::about(video, question.to_owned(), id)
    })
}

/// Where the video is. A file named on the command line is the operator's own: no allow-list applies.
pub(super) fn source(video: &str) -> Result<SourceRequest, CliError> {
    let lower = video.to_ascii_lowercase();
    if ["http://", "https://", "data:"].iter().any(|scheme| lower.starts_with(scheme)) {
        return Ok(SourceRequest::Url(video.to_owned()));
    }
    let path = if lower.starts_with("file://") {
        let file = Url::parse(video).ok().and_then(|url| url.to_file_path().ok());
        file.ok_or_else(|| CliError::Failed(format!("not a file URL: {}", text::line(video))))?
    } else {
        PathBuf::from(video)
    };
    // Said at once, not after a minute of loading a model.
    if path.is_file() {
        Ok(SourceRequest::Path(path))
    } else {
        Err(CliError::Failed(format!("no such file: {}", text::line(video))))
    }
}

/// What to call it on the screen.
fn name(source: &SourceRequest, video: &str) -> String {
    match source {
        SourceRequest::Path(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        SourceRequest::Url(url) if url.to_ascii_lowercase().starts_with("data:") => "data: URL".to_owned(),
        SourceRequest::Url(_) => video.split(['?', '#']).next().unwrap_or(video).to_owned(),
        SourceRequest::Upload(upload) => upload.stored().filename.clone(),
        SourceRequest::Open(_) => "open video".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_url_names_the_operators_own_file() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let path = file.path().to_path_buf();
        let url = Url::from_file_path(&path).expect("absolute").to_string();
        assert_eq!(source(&url).ok(), Some(SourceRequest::Path(path.clone())));
        assert_eq!(source(&path.to_string_lossy()).ok(), Some(SourceRequest::Path(path)));
    }

    #[test]
    fn a_missing_file_is_said_at_once() {
        let error = source("/no/such/\u{1b}[31mfile.mp4").expect_err("missing");
        assert_eq!(error.to_string(), "no such file: /no/such/file.mp4");
    }

    #[test]
    fn names_on_the_screen_leave_queries_and_data_out() {
        let named = |video: &str| name(&source(video).expect("source"), video);
        assert_eq!(named("https://example.org/a.mp4?token=secret#x"), "https://example.org/a.mp4");
        assert_eq!(named("data:video/mp4;base64,AAAA"), "data: URL");
    }
}
