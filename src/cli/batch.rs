//! `paravt batch`: events of many videos, for pipelines.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};

use super::error::failed;
use super::eval::{check_temperature, settings};
use super::options::EngineArgs;
use super::output::{Pace, Target, json};
use super::view::View;
use super::{CliError, Environment, text};
use crate::app::App;
use crate::batch::{self, Asking, Batch, Cut, Event, EventSource, Journal, Score, Task, Told, Truth};
use crate::config::Config;
use crate::eval;
use crate::synthetic::{Board, Color, Difficulty, Question, Random, Shape, Shown, named};
use crate::types::MediaTime;

/// The example's match: eighteen boards of five minutes, ninety minutes.
const MATCH_PARTS: u32 = 18;
/// The seed of the match that published numbers are of.
const MATCH_SEED: u64 = 2026;
/// Longest line of results or truths.
const MOST_BYTES: u64 = 64 << 20;

/// Where events are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EventsArg {
    /// The answer, held to a JSON schema
    Answer,
    /// The windows that were watched, and what was seen in them
    Windows,
}

impl From<EventsArg> for EventSource {
    fn from(arg: EventsArg) -> Self {
        match arg {
            EventsArg::Answer => Self::Answer,
            EventsArg::Windows => Self::Windows,
        }
    }
}

/// Arguments of `batch`.
#[derive(Debug, Args)]
pub(super) struct BatchArgs {
    /// File of tasks, a line of JSON each: {"video", "question"?, "labels"?, "start"?, "end"?, "id"?, "metadata"?}; - is stdin
    #[arg(value_name = "TASKS", required_unless_present_any = ["schema", "example", "score"])]
    tasks: Option<PathBuf>,
    /// Where results go, a line of JSON a task; a run that was broken off goes on from FILE.journal beside it
    #[arg(long, value_name = "FILE", required_unless_present_any = ["schema", "example", "score"])]
    out: Option<PathBuf>,
    /// Where events are taken from; the bundled model writes no JSON: windows
    #[arg(long, value_enum, default_value = "answer")]
    events: EventsArg,
    /// Seconds of the segments that a video is cut into, each asked about as a video of its own; 0: as it is
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    segment: u32,
    /// Seconds that two segments share, at most half of one: as long as events last
    #[arg(long, value_name = "S", default_value_t = 60)]
    overlap: u32,
    /// Segments at the same time
    #[arg(long, value_name = "N", default_value_t = 4)]
    at_once: usize,
    /// Temperature in place of the card's; every segment has a seed of its own, the same in every run
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Print the JSON schema that answers are held to
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Make an example in this folder: a ninety-minute signal-board video, its tasks, and its true events
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tasks", "out", "score"])]
    example: Option<PathBuf>,
    /// Compare results with true events: precision and recall
    #[arg(long, value_names = ["TRUTH", "RESULTS"], num_args = 2, conflicts_with_all = ["tasks", "out"])]
    score: Vec<PathBuf>,
    /// With --score: seconds that the middles of two events may be apart and still be the same
    #[arg(long, value_name = "S", value_delimiter = ',', default_values_t = [5.0, 10.0, 20.0, 30.0], requires = "score",
        conflicts_with_all = ["tasks", "out"])]
    tolerance: Vec<f64>,
    /// With --score: print JSON in place of a table
    #[arg(long, requires = "score", conflicts_with_all = ["tasks", "out"])]
    json: bool,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

/// Runs the command.
pub(super) async fn run(args: &BatchArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    if args.schema {
        return Ok(Target::Stdout.line(&json(&batch::events_schema(&[]))?)?);
    }
    if let [truth, told] = args.score.as_slice() {
        return score(truth, told, &args.tolerance, args.json);
    }
    if let Some(folder) = &args.example {
        return example(folder, App::new(config)?).await;
    }
    let (Some(tasks), Some(out)) = (&args.tasks, &args.out) else {
        return Err(CliError::Usage("tasks and --out are needed".to_owned()));
    };
    check_temperature(args.temperature)?;
    if args.segment > 0 && args.overlap > args.segment / 2 {
        return Err(CliError::Usage("--overlap must be at most half of --segment".to_owned()));
    }
    args.engine.lay_over(&mut config.engine, environment)?;
    let app = App::new(config)?;
    let tasks = read(tasks)?;
    let asking = Asking { events: args.events.into(), at_once: args.at_once, temperature: args.temperature };
    let settings = eval::digest_of(&format!("{} {:?}", settings(&app, args.temperature), args.events));
    let batch = Batch { batch_of: app.card().name.clone(), settings };
    let seconds = |seconds: u32| MediaTime::from_micros(i64::from(seconds) * 1_000_000);
    let segment = (args.segment > 0).then(|| seconds(args.segment));
    let cut = Cut { segment, overlap: seconds(args.overlap) };
    if out.as_os_str() == "-" {
        return Err(CliError::Usage("--out is a file: results are written again where a run is taken up".to_owned()));
    }
    // The file that a link leads to.
    let out = std::fs::canonicalize(out).unwrap_or_else(|_| out.clone());
    let mut journal = Journal::open(&out, &batch, cut, &tasks).map_err(failed)?;
    let known = tasks.iter().filter(|task| journal.is_done(task)).count();
    Target::Stderr.line(&format!("{batch}: {} tasks, {known} of them known", tasks.len()))?;
    let strangers = journal.strangers();
    if strangers > 0 {
        let what = "are of no task in this list, or of one that was changed";
        Target::Stderr
            .line(&format!("results of {strangers} more in the journal {what}: left out of {}", out.display()))?;
    }
    // All that is known is told at once, whatever comes of the rest.
    journal.write(&tasks).map_err(failed)?;
    if known < tasks.len() {
        let view = View::on_terminal(Target::Stderr, environment);
        let agent = super::load::agent(&app, &view).await?;
        let mut progress = Progress::new(tasks.len() - known);
        batch::run(&agent, &tasks, &asking, &mut journal, |told| progress.tell(&told)).await.map_err(failed)?;
    }
    sum_up(&tasks, &journal)
}

fn read(path: &Path) -> Result<Vec<Task>, CliError> {
    let tasks = if path.as_os_str() == "-" {
        batch::read_tasks(std::io::stdin().lock())
    } else {
        let file = File::open(path).map_err(|error| CliError::Failed(format!("{}: {error}", path.display())))?;
        batch::read_tasks(BufReader::new(file))
    };
    let tasks = tasks.map_err(failed)?;
    if tasks.is_empty() { Err(CliError::Failed("there are no tasks".to_owned())) } else { Ok(tasks) }
}

/// What there is now. A failure where something failed, so that who runs this unattended hears of it.
fn sum_up(tasks: &[Task], journal: &Journal) -> Result<(), CliError> {
    let done: Vec<_> = tasks.iter().filter_map(|task| journal.result(task)).collect();
    let events: usize = done.iter().map(|done| done.events.len()).sum();
    let dropped: usize = done.iter().map(|done| done.dropped).sum();
    let told = if dropped > 0 { format!(", {dropped} more were of other labels or times") } else { String::new() };
    Target::Stderr.line(&format!("{events} events of {} videos{told}", done.len()))?;
    if done.len() < tasks.len() {
        return Err(CliError::Failed(format!("{} tasks came to nothing", tasks.len() - done.len())));
    }
    let failed: Vec<_> = done.iter().flat_map(|done| done.failed.iter().map(move |failed| (done, failed))).collect();
    let Some((task, last)) = failed.last() else { return Ok(()) };
    Err(CliError::Failed(format!(
        "{} segments failed (the last of {}: {}); the same command tries them again",
        failed.len(),
        text::line(&task.id),
        text::line(&last.error)
    )))
}

/// How far it is.
struct Progress {
    began: Instant,
    pace: Pace,
    tasks: usize,
    left: usize,
    segments: usize,
    failed: usize,
}

impl Progress {
    fn new(tasks: usize) -> Self {
        Self { began: Instant::now(), pace: Pace::new(), tasks, left: tasks, segments: 0, failed: 0 }
    }

    fn tell(&mut self, told: &Told<'_>) {
        self.segments += 1;
        self.left = self.left.saturating_sub(usize::from(told.is_last));
        if let Some(error) = &told.found.error {
            self.failed += 1;
            let (task, start) = (text::line(&told.task.id), told.found.start);
            let _ = Target::Stderr.line(&format!("{task}, from {start} s: {}", text::line(error)));
        }
        if !self.pace.is_due(self.left == 0) {
            return;
        }
        let failed = if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        let _ = Target::Stderr.line(&format!(
            "{} of {} tasks, {} segments, {:.0} s{failed}",
            self.tasks - self.left,
            self.tasks,
            self.segments,
            self.began.elapsed().as_secs_f64()
        ));
    }
}

/// Makes the worked example: a match of which every event is known.
async fn example(folder: &Path, app: App) -> Result<(), CliError> {
    std::fs::create_dir_all(folder)?;
    let difficulty = Difficulty { empty_percent: 20, ..Difficulty::LEVELS[2] };
    let board = Board::long(&difficulty, MATCH_PARTS, &mut Random::new(MATCH_SEED, 0));
    let video = std::path::absolute(folder.join("match.mp4"))?;
    let task = serde_json::json!({
        "id": "match",
        "video": video,
        "question": Question::List.text(),
        "labels": labels(),
    });
    let event = |shown: Shown| {
        let (start, end) = shown.times();
        Event { start, end, label: shown.name(), description: String::new() }
    };
    let truth = Truth { id: "match".to_owned(), events: board.shown().map(event).collect() };
    std::fs::write(folder.join("tasks.jsonl"), format!("{task}\n"))?;
    std::fs::write(folder.join("truth.jsonl"), format!("{}\n", json(&truth)?))?;
    let told = format!("{} events in {} lit stretches of {} s", truth.events.len(), board.lit.len(), board.length());
    Target::Stderr.line(&format!("{told}: drawing {}", video.display()))?;
    eval::film_board(&app.media()?, &board, &video).await.map_err(failed)?;
    let folder = folder.display();
    let next = format!(
        "paravt batch {folder}/tasks.jsonl --events windows --out {folder}/results.jsonl\n\
         paravt batch --score {folder}/truth.jsonl {folder}/results.jsonl"
    );
    Ok(Target::Stdout.line(&next)?)
}

/// All that can show on a board.
fn labels() -> Vec<String> {
    let of = |color: Color| Shape::ALL.map(|shape| named(color, shape));
    Color::ALL.into_iter().flat_map(of).collect()
}

fn score(truth: &Path, told: &Path, tolerances: &[f64], as_json: bool) -> Result<(), CliError> {
    let (truth, told) = (truths(truth)?, truths(told)?);
    let missing = truth.iter().filter(|one| told.iter().all(|other| other.id != one.id)).count();
    if missing == truth.len() {
        return Err(CliError::Failed("results and truth have no id in common".to_owned()));
    }
    if missing > 0 {
        Target::Stderr
            .line(&format!("{missing} of {} videos have no results: their events count as missed", truth.len()))?;
    }
    let scores: Vec<Score> = tolerances
        .iter()
        .map(|seconds| {
            let tolerance = MediaTime::from_seconds(*seconds).filter(|tolerance| *tolerance >= MediaTime::ZERO);
            let wrong = || CliError::Usage("--tolerance takes seconds, 0 or more".to_owned());
            Ok(batch::score(&truth, &told, tolerance.ok_or_else(wrong)?))
        })
        .collect::<Result<_, CliError>>()?;
    let told = if as_json { json(&scores)? } else { table(&scores) };
    Ok(Target::Stdout.line(&told)?)
}

fn table(scores: &[Score]) -> String {
    let head = "| tolerance s | precision | recall | F1 | right | told | true | mean error s |";
    let mut lines = vec![head.to_owned(), "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |".to_owned()];
    lines.extend(scores.iter().map(|score| {
        let error = score.mean_error_s.map_or_else(|| "-".to_owned(), |error| format!("{error:.1}"));
        let Score { tolerance_s, precision, recall, f1, right, told, events, .. } = score;
        format!("| {tolerance_s} | {precision:.3} | {recall:.3} | {f1:.3} | {right} | {told} | {events} | {error} |")
    }));
    lines.join("\n")
}

fn truths(path: &Path) -> Result<Vec<Truth>, CliError> {
    let wrong = |problem: String| CliError::Failed(format!("{}: {problem}", path.display()));
    let mut file = BufReader::new(File::open(path).map_err(|error| wrong(error.to_string()))?);
    let mut all: BTreeMap<String, Truth> = BTreeMap::new();
    for number in 1.. {
        let mut line = Vec::new();
        let read = file.by_ref().take(MOST_BYTES).read_until(b'\n', &mut line);
        if read.map_err(|error| wrong(error.to_string()))? == 0 {
            break;
        }
        if !line.trim_ascii().is_empty() {
            let truth: Truth =
                serde_json::from_slice(&line).map_err(|error| wrong(format!("line {number}: {error}")))?;
            // The last one of an id counts, as while a run is under way.
            all.insert(truth.id.clone(), truth);
        }
    }
    Ok(all.into_values().collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: BatchArgs,
    }

    fn args(words: &[&str]) -> Result<BatchArgs, clap::Error> {
        Line::try_parse_from(["batch"].iter().chain(words)).map(|line| line.args)
    }

    #[test]
    fn tasks_go_with_results_and_scores_with_truths() {
        assert!(args(&["tasks.jsonl", "--out", "r.jsonl"]).is_ok());
        assert!(args(&["--score", "truth.jsonl", "r.jsonl", "--tolerance", "1,2.5", "--json"]).is_ok());
        assert!(args(&["--example", "dir"]).is_ok() && args(&["--schema"]).is_ok());
        for wrong in [&["tasks.jsonl"][..], &["--out", "r"], &[], &["a", "--out", "b", "--json"], &["--score", "a"]] {
            assert!(args(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn results_are_read_as_truths_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("r.jsonl");
        let line =
            r#"{"id":"a","video":"v","duration":9.0,"events":[{"start":1.0,"end":2.0,"label":"goal"}],"failed":[]}"#;
        std::fs::write(&path, format!("{line}\n\n{line}\n")).expect("written");
        let all = truths(&path).expect("reads");
        assert_eq!((all.len(), all[0].id.as_str(), all[0].events.len()), (1, "a", 1));
        let scored = batch::score(&all, &all, MediaTime::ZERO);
        assert!(table(&[scored]).ends_with("| 0 | 1.000 | 1.000 | 1.000 | 1 | 1 | 1 | 0.0 |"));
        std::fs::write(&path, "{}\n").expect("written");
        assert!(truths(&path).is_err());
    }
}
