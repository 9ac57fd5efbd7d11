//! `paravt eval`: how many of a benchmark's questions are answered right.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};

use super::error::failed;
use super::options::EngineArgs;
use super::output::{Pace, Target, json};
use super::view::View;
use super::{CliError, Environment};
use crate::app::App;
use crate::card::checkpoint;
use crate::config::Config;
use crate::eval::{self, Asking, Boards, Comparison, Item, Mode, Record, Report, Run, SIGNAL_BOARD, Store, Suite};
use crate::synthetic::Board;

/// Questions of the signal board.
const BOARD_QUESTIONS: usize = 500;
/// The seed of the boards that published numbers are of.
const BOARD_SEED: u64 = 2026;

/// How the agent looks at videos.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DispatchArg {
    /// All windows of a burst at the same time
    Parallel,
    /// One window after another
    Sequential,
    /// The overview alone
    None,
}

impl From<DispatchArg> for Mode {
    fn from(arg: DispatchArg) -> Self {
        match arg {
            DispatchArg::Parallel => Self::Parallel,
            DispatchArg::Sequential => Self::Sequential,
            DispatchArg::None => Self::None,
        }
    }
}

/// Arguments of `eval`.
#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    /// Benchmark: signal-board (made up, for the bundled model), videomme, videomme-subtitles, longvideobench, lvbench, mlvu,
    /// mmvu, mmvu-all, charades-sta, or jsonl (your own questions)
    #[arg(long, value_name = "NAME", required_unless_present_any = ["compare", "report"])]
    suite: Option<String>,
    /// The benchmark's folder as its authors publish it, or its file of questions; for signal-board where videos are kept
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// Fetch the benchmark's questions from the Hugging Face Hub into --data first; videos are published in archives of hundreds
    /// of gigabytes, which you unpack there
    #[arg(long, requires = "data", conflicts_with_all = ["compare", "report"])]
    download: bool,
    /// How the agent looks at videos
    #[arg(long, value_enum, default_value = "parallel")]
    dispatch: DispatchArg,
    /// The first so many questions
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// One of N equal shares of the questions, from 0: I/N
    #[arg(long, value_name = "I/N", value_parser = shard)]
    shard: Option<(usize, usize)>,
    /// Questions at the same time
    #[arg(long, value_name = "N", default_value_t = 4)]
    at_once: usize,
    /// Temperature in place of the card's; every question has a seed of its own, the same in every run
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Seed of the signal boards
    #[arg(long, value_name = "N", default_value_t = BOARD_SEED)]
    seed: u64,
    /// Seconds of a signal board: 150 or more; the bundled model was made for boards of 300 s, and for no others
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u32).range(150..=21_600))]
    length: u32,
    /// Where results are kept, a line each; a run that was broken off goes on from there
    #[arg(long, value_name = "DIR", default_value = "eval-results")]
    out: PathBuf,
    /// Print the report as JSON in place of a table
    #[arg(long)]
    json: bool,
    /// Sum up files of results again; shards of one run together
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "suite")]
    report: Vec<PathBuf>,
    /// With --report: each run's score and seconds against a group's values, as an SVG picture in this file
    #[arg(long, value_name = "FILE", requires = "report", conflicts_with = "suite")]
    plot: Option<PathBuf>,
    /// With --plot: the group, one with numbers for values
    #[arg(long, value_name = "GROUP", default_value = "stretches")]
    by: String,
    /// Compare two runs, question by question; shards of one run together
    #[arg(long, value_name = "FILE", num_args = 2.., conflicts_with_all = ["suite", "report"])]
    compare: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let wrong = || "must be I/N, such as 0/4".to_owned();
    let (place, count) = text.split_once('/').ok_or_else(wrong)?;
    let (place, count) = (place.parse().map_err(|_| wrong())?, count.parse().map_err(|_| wrong())?);
    if place < count { Ok((place, count)) } else { Err("I must be below N".to_owned()) }
}

/// Runs the command.
pub(super) async fn run(args: &EvalArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    if !args.compare.is_empty() {
        return compare(&args.compare, args.json);
    }
    if !args.report.is_empty() {
        return report(args);
    }
    check_temperature(args.temperature)?;
    args.engine.lay_over(&mut config.engine, environment)?;
    let app = App::new(config)?;
    let view = View::on_terminal(Target::Stderr, environment);
    let (suite, mut asked) = asked(args, &app).await?;
    asked.truncate(args.limit.unwrap_or(usize::MAX));
    let all: Vec<Item> = asked.iter().map(|(item, _)| item.clone()).collect();
    let run = Run {
        suite,
        model: app.card().name.clone(),
        dispatch: Mode::from(args.dispatch).name().to_owned(),
        questions: all.len(),
        digest: eval::digest(&all),
        settings: settings(&app, args.temperature),
    };
    let path = file(args, &run)?;
    let (mut store, records) = Store::open(&path, &run).map_err(failed)?;
    // What failed is tried again.
    let done: HashSet<String> =
        records.iter().filter(|record| record.error.is_none()).map(|record| record.id.clone()).collect();
    let (place, count) = args.shard.unwrap_or((0, 1));
    let mut left: Vec<(Item, Option<Board>)> = asked.into_iter().skip(place).step_by(count).collect();
    left.retain(|(item, _)| !done.contains(&item.id));
    Target::Stderr.line(&format!("{run}: {} to ask, {} known from {}", left.len(), done.len(), path.display()))?;
    if !left.is_empty() {
        make_boards(&app, &left).await?;
        let items: Vec<Item> = left.into_iter().map(|(item, _)| item).collect();
        check_videos(&items)?;
        let agent = super::load::agent(&app, &view).await?;
        let asking = Asking { mode: args.dispatch.into(), at_once: args.at_once, temperature: args.temperature };
        let mut progress = Progress::new(items.len());
        let asking = eval::run(&agent, &items, &asking, &mut store, |record| progress.tell(record));
        if !asking.await.map_err(failed)? {
            return Err(CliError::Failed(format!("nothing but failures: {}", progress.reason)));
        }
    }
    drop((view, store));
    let (run, records) = eval::Store::load(&path).map_err(failed)?;
    let report = Report::of(run, &records);
    for (extension, text) in [("md", report.markdown()), ("json", json(&report)?)] {
        std::fs::write(path.with_extension(extension), text)?;
    }
    tell(&report, args.json)
}

/// What is asked, under the benchmark's name; of made-up videos with what they show.
async fn asked(args: &EvalArgs, app: &App) -> Result<(String, Vec<(Item, Option<Board>)>), CliError> {
    let name = args.suite.clone().unwrap_or_default();
    if name == SIGNAL_BOARD {
        let folder = args.data.clone().unwrap_or_else(|| args.out.join(SIGNAL_BOARD));
        let boards = Boards { seed: args.seed, count: BOARD_QUESTIONS, frames: args.length * Board::FPS + 1 };
        let asked = eval::signal_board(&folder, &boards).into_iter().map(|(item, board)| (item, Some(board)));
        return Ok((format!("{name}-{}-{}s", args.seed, args.length), asked.collect()));
    }
    let known = Suite::ALL.iter().find(|(known, _)| *known == name);
    let Some((_, suite)) = known else {
        let names: Vec<&str> = Suite::ALL.iter().map(|(name, _)| *name).collect();
        return Err(CliError::Usage(format!("no benchmark is called {name}: {SIGNAL_BOARD}, {}", names.join(", "))));
    };
    let Some(data) = args.data.clone() else {
        return Err(CliError::Usage(format!("--data: where is {name}?{}", hint(*suite))));
    };
    if args.download {
        download(*suite, &data, app).await?;
    }
    // Everybody's questions have a name of their own.
    let own = data.file_stem().filter(|_| *suite == Suite::Jsonl && data.is_file());
    let name = own.map_or(name, |own| format!("jsonl-{}", own.to_string_lossy()));
    let suite = *suite;
    let loaded = tokio::task::spawn_blocking(move || suite.load(&data)).await;
    let items = loaded.map_err(|_| CliError::Failed("reading the benchmark broke off".to_owned()))?.map_err(failed)?;
    Ok((name, items.into_iter().map(|item| (item, None)).collect()))
}

/// Puts a benchmark's files of questions where its authors have them.
async fn download(suite: Suite, data: &Path, app: &App) -> Result<(), CliError> {
    let repository = suite.dataset().ok_or_else(|| CliError::Usage("jsonl is nobody's data set".to_owned()))?;
    let fetched = checkpoint::dataset(repository, suite.tables(), &app.config().engine, true).await.map_err(failed)?;
    for (name, from) in fetched {
        let to = data.join(name);
        if to.exists() {
            Target::Stderr.line(&format!("{} is there already: left as it is", to.display()))?;
            continue;
        }
        std::fs::create_dir_all(to.parent().unwrap_or(data))?;
        std::fs::copy(&from, &to)?;
        Target::Stderr.line(&format!("{} is there, from {repository}", to.display()))?;
    }
    Ok(())
}

fn hint(suite: Suite) -> String {
    suite.dataset().map(|name| format!(" It is published as {name} on the Hugging Face Hub")).unwrap_or_default()
}

pub(super) fn check_temperature(temperature: Option<f64>) -> Result<(), CliError> {
    if temperature.is_some_and(|temperature| !(0.0..=2.0).contains(&temperature)) {
        return Err(CliError::Usage("--temperature must be from 0 to 2".to_owned()));
    }
    Ok(())
}

/// A digest of what answers depend on beside the questions.
pub(super) fn settings(app: &App, temperature: Option<f64>) -> String {
    let (engine, config) = (&app.config().engine, app.config());
    let what = (
        app.card(),
        &config.agent,
        engine.chosen_kind(),
        &engine.model_directory,
        &engine.upstream_model,
        &engine.script,
        temperature.map(f64::to_bits),
        config.media.overview_sampling,
    );
    eval::digest_of(&format!("{what:?}"))
}

/// Makes the made-up videos that are needed and not there.
async fn make_boards(app: &App, left: &[(Item, Option<Board>)]) -> Result<(), CliError> {
    let boards: Vec<(Item, Board)> =
        left.iter().filter_map(|(item, board)| Some((item.clone(), board.clone()?))).collect();
    if boards.is_empty() {
        return Ok(());
    }
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let mut pace = Pace::new();
    let told = |made: usize| {
        if pace.is_due(false) {
            let _ = Target::Stderr.line(&format!("{made} of at most {} videos made", boards.len()));
        }
    };
    eval::film_boards(&app.media()?, &boards, at_once, told).await.map_err(failed)
}

/// Told before hours are spent: which videos are not there. Some may be missing, not all.
fn check_videos(items: &[Item]) -> Result<(), CliError> {
    let is_missing = |item: &&Item| !item.video.to_string_lossy().contains("://") && !item.video.is_file();
    let missing: Vec<&Item> = items.iter().filter(is_missing).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let told = format!(
        "the videos of {} of {} questions are missing, such as {}",
        missing.len(),
        items.len(),
        first.video.display()
    );
    if missing.len() == items.len() { Err(CliError::Failed(told)) } else { Ok(Target::Stderr.line(&told)?) }
}

/// The file of this run's results.
fn file(args: &EvalArgs, run: &Run) -> Result<PathBuf, CliError> {
    std::fs::create_dir_all(&args.out)?;
    let limit = args.limit.map(|limit| format!(".first-{limit}")).unwrap_or_default();
    let shard = args.shard.map(|(place, count)| format!(".{place}-of-{count}")).unwrap_or_default();
    Ok(args.out.join(format!("{}.{}.{}{limit}{shard}.jsonl", run.suite, run.model, run.dispatch)))
}

/// Files of results by what was run: shards of one run together.
fn runs(files: &[PathBuf]) -> Result<Vec<(Run, Vec<Record>)>, CliError> {
    let mut runs: Vec<(Run, Vec<Record>)> = Vec::new();
    for file in files {
        let (run, records) = Store::load(file).map_err(failed)?;
        match runs.iter_mut().find(|(known, _)| *known == run) {
            Some((_, known)) => known.extend(records),
            None => runs.push((run, records)),
        }
    }
    Ok(runs)
}

/// Sums up files of results.
fn report(args: &EvalArgs) -> Result<(), CliError> {
    let reports: Vec<Report> =
        runs(&args.report)?.into_iter().map(|(run, records)| Report::of(run, &records)).collect();
    if let Some(path) = &args.plot {
        let picture = eval::plot(&reports, &args.by)
            .ok_or_else(|| CliError::Failed(format!("no run has numbers under {}", args.by)))?;
        std::fs::write(path, picture)?;
    }
    reports.iter().try_for_each(|report| tell(report, args.json))
}

fn compare(files: &[PathBuf], as_json: bool) -> Result<(), CliError> {
    let runs = runs(files)?;
    let [(one, first), (other, second)] = &runs[..] else {
        let names: Vec<String> = runs.iter().map(|(run, _)| run.to_string()).collect();
        return Err(CliError::Failed(format!(
            "two runs are compared, these files are of {}: {}",
            runs.len(),
            names.join("; ")
        )));
    };
    if one.digest != other.digest {
        return Err(CliError::Failed(format!("the two asked different questions: {one}; {other}")));
    }
    let comparison = Comparison::of(first, second)
        .ok_or_else(|| CliError::Failed("the two have no question in common".to_owned()))?;
    let told = if as_json { json(&comparison)? } else { comparison.markdown(one, other) };
    Ok(Target::Stdout.line(told.trim_end())?)
}

fn tell(report: &Report, as_json: bool) -> Result<(), CliError> {
    let told = if as_json { json(report)? } else { report.markdown() };
    Ok(Target::Stdout.line(told.trim_end())?)
}

/// How far it is.
struct Progress {
    began: Instant,
    pace: Pace,
    count: usize,
    left: usize,
    right: f64,
    failed: usize,
    /// Why the last one failed that did.
    reason: String,
}

impl Progress {
    fn new(left: usize) -> Self {
        Self { began: Instant::now(), pace: Pace::new(), count: 0, left, right: 0.0, failed: 0, reason: String::new() }
    }

    fn tell(&mut self, record: &Record) {
        self.count += 1;
        self.right += record.score;
        if let Some(reason) = &record.error {
            self.failed += 1;
            self.reason.clone_from(reason);
        }
        if !self.pace.is_due(self.count == self.left) {
            return;
        }
        let spent = self.began.elapsed().as_secs_f64();
        let still = spent / self.count as f64 * (self.left - self.count) as f64;
        let score = 100.0 * self.right / self.count as f64;
        let failed =
            if self.failed > 0 { format!(", {} failed (last: {})", self.failed, self.reason) } else { String::new() };
        let _ = Target::Stderr.line(&format!(
            "{} of {}, {score:.1} so far, {spent:.0} s, {still:.0} s to go{failed}",
            self.count, self.left
        ));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: EvalArgs,
    }

    fn args(words: &[&str]) -> Result<EvalArgs, clap::Error> {
        Line::try_parse_from(["eval"].iter().chain(words)).map(|line| line.args)
    }

    #[test]
    fn shards_are_places_below_a_number() {
        assert_eq!((shard("0/4"), shard("3/4")), (Ok((0, 4)), Ok((3, 4))));
        for wrong in ["4/4", "0/0", "-1/4", "1", "a/b", ""] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn something_is_asked_or_looked_at() {
        assert!(args(&[]).is_err());
        assert!(args(&["--suite", "lvbench", "--report", "a"]).is_err());
        assert!(args(&["--plot", "a.svg", "--suite", "lvbench"]).is_err());
        assert_eq!(args(&["--compare", "a", "b", "c"]).expect("any number").compare.len(), 3);
    }

    #[tokio::test]
    async fn files_are_called_by_what_was_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().display().to_string();
        let args = args(&["--suite", SIGNAL_BOARD, "--out", &out, "--shard", "1/3", "--limit", "7"]).expect("valid");
        let (suite, asked) =
            asked(&args, &App::new(Config::default()).expect("the bundled card")).await.expect("boards");
        assert_eq!((suite.as_str(), asked.len()), ("signal-board-2026-300s", 500));
        let text = str::to_owned;
        let run = Run {
            suite,
            model: text("m"),
            dispatch: text("none"),
            questions: 7,
            digest: text("d"),
            settings: text("s"),
        };
        let path = file(&args, &run).expect("made");
        assert_eq!(
            path.file_name().and_then(|name| name.to_str()),
            Some("signal-board-2026-300s.m.none.first-7.1-of-3.jsonl")
        );

        // Shards go together, and a run is not compared with itself.
        let other = folder.path().join("other.jsonl");
        for path in [&path, &other] {
            drop(Store::open(path, &run).expect("opens"));
        }
        assert_eq!(runs(&[path.clone(), other.clone()]).expect("reads").len(), 1);
        assert!(compare(&[path, other], false).is_err());
    }

    #[test]
    fn missing_videos_are_told_before_anything_is_asked() {
        let item = |video: &str| Item {
            id: video.to_owned(),
            video: video.into(),
            prompt: String::new(),
            gold: eval::Gold::Words { text: "x".to_owned() },
            groups: Vec::new(),
        };
        assert!(check_videos(&[item("/no/such.mp4")]).is_err());
        assert!(check_videos(&[item("/no/such.mp4"), item("https://example.org/a.mp4")]).is_ok());
    }
}
