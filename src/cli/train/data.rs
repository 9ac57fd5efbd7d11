//! `paravt train data`: counts, checks, converts, makes parallel and filters data sets.
//!
//! What is written stands in its place only when it is whole. What rows have no place for is told on stderr.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::super::error::failed;
use super::super::output::Target;
use super::super::{CliError, text};
use crate::train::dataset::{
    Check, DatasetError, Filter, Layout, Reader, Rollouts, Row, Statistics, Verdict, Writer, parallel,
};

/// Arguments of `train data`.
#[derive(Debug, Args)]
pub(super) struct DataArgs {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Count what a data set holds
    Stats(FileArgs),
    /// Tell what is wrong with a data set, row by row; fails where something is
    Check(CheckArgs),
    /// Write a data set in the other format, by the files' names: .parquet or .jsonl
    Convert(PairArgs),
    /// Make sequential traces parallel: calls that do not refer to each other's responses become one burst
    Parallel(PairArgs),
    /// Drop prompts from which nothing can be learned: open answers over 15 words, and groups whose rollouts all fail
    Filter(FilterArgs),
}

#[derive(Debug, Args)]
struct FileArgs {
    /// Data set: .parquet or .jsonl
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Folder in which relative paths of videos begin; without it they are not looked for
    #[arg(long, value_name = "DIR")]
    videos: Option<PathBuf>,
    /// Problems that are told; more are only counted
    #[arg(long, value_name = "N", default_value_t = Check::MOST)]
    most: usize,
}

#[derive(Debug, Args)]
struct PairArgs {
    /// Data set to read: .parquet or .jsonl
    #[arg(value_name = "IN")]
    from: PathBuf,
    /// Data set to write: .parquet or .jsonl; what is there is replaced
    #[arg(value_name = "OUT")]
    to: PathBuf,
}

#[derive(Debug, Args)]
struct FilterArgs {
    #[command(flatten)]
    files: PairArgs,
    /// How well each prompt's rollouts did, a line of JSON each: {"index" (from 0) or "id", "accuracies": [...]}
    #[arg(long, value_name = "FILE")]
    rollouts: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &DataArgs) -> Result<(), CliError> {
    match &args.part {
        Part::Stats(args) => stats(&args.file),
        Part::Check(args) => check(args),
        Part::Convert(args) => convert(args),
        Part::Parallel(args) => make_parallel(args),
        Part::Filter(args) => filter(args),
    }
}

fn stats(file: &Path) -> Result<(), CliError> {
    let mut reader = Reader::open(file).map_err(failed)?;
    let (mut statistics, mut unread) = (Statistics::default(), 0);
    for row in &mut reader {
        match row {
            Ok(row) => statistics.add(&row),
            Err(DatasetError::Row { .. }) => unread += 1,
            Err(error) => return Err(failed(error)),
        }
    }
    tell_left_out(&reader)?;
    if unread > 0 {
        Target::Stderr.line(&format!("{unread} rows can't be read: paravt train data check tells why"))?;
    }
    Ok(Target::Stdout.line(&text::block(&statistics.to_string()))?)
}

fn check(args: &CheckArgs) -> Result<(), CliError> {
    if let Some(folder) = args.videos.as_deref().filter(|folder| !folder.is_dir()) {
        return Err(CliError::Failed(format!("--videos: {} is no folder", folder.display())));
    }
    let mut reader = Reader::open(&args.file.file).map_err(failed)?;
    let mut check = Check::new(args.videos.as_deref(), args.most);
    while let Some(row) = reader.next() {
        match row {
            Ok(row) => check.add(reader.row(), &row),
            Err(error) => check.unreadable(reader.row(), &error),
        }
    }
    tell_left_out(&reader)?;
    let report = check.finish();
    for problem in &report.problems {
        Target::Stdout.line(&text::line(&problem.to_string()))?;
    }
    if report.more > 0 {
        Target::Stdout.line(&format!("and {} more", report.more))?;
    }
    if report.wrong_rows > 0 {
        let problems = report.problems.len() as u64 + report.more;
        let (wrong, rows) = (report.wrong_rows, report.rows);
        return Err(CliError::Failed(format!("{problems} problems in {wrong} of {rows} rows")));
    }
    let videos = if args.videos.is_some() { "" } else { "; videos were not looked for: --videos" };
    Ok(Target::Stdout.line(&format!("{} rows, no problems{videos}", report.rows))?)
}

fn convert(args: &PairArgs) -> Result<(), CliError> {
    let rows = rewrite(args, None, Some)?;
    told(rows, args)
}

fn make_parallel(args: &PairArgs) -> Result<(), CliError> {
    let (mut merged, mut told_frames, mut left) = (0, 0, 0);
    let rows = rewrite(args, Some(Layout::Sft), |row| {
        let Row::Sft(row) = row else { return None };
        let made = parallel(&row);
        merged += made.merged;
        told_frames += made.told;
        left += made.frames_left;
        Some(Row::Sft(made.row))
    })?;
    Target::Stderr.line(&format!(
        "{merged} turns became part of the one before, {told_frames} responses of frames became text, {left} were left"
    ))?;
    told(rows, args)
}

fn filter(args: &FilterArgs) -> Result<(), CliError> {
    let rollouts = args.rollouts.as_deref().map(Rollouts::read).transpose().map_err(failed)?;
    let mut filter = Filter::new(rollouts.unwrap_or_default());
    let rows = rewrite(&args.files, Some(Layout::Rl), |row| {
        let Row::Rl(prompt) = &row else { return None };
        (filter.judge(prompt) == Verdict::Kept).then_some(row)
    })?;
    Target::Stderr.line(&filter.to_string())?;
    told(rows, &args.files)
}

/// Writes what becomes of each row, and gives the number of rows written.
fn rewrite(
    args: &PairArgs,
    wanted: Option<Layout>,
    mut change: impl FnMut(Row) -> Option<Row>,
) -> Result<u64, CliError> {
    let mut reader = Reader::open(&args.from).map_err(failed)?;
    let layout = reader.layout();
    if wanted.is_some_and(|wanted| wanted != layout) {
        let holds = if layout == Layout::Sft { "conversations, not prompts" } else { "prompts, not conversations" };
        return Err(CliError::Failed(format!("{} holds {holds}", args.from.display())));
    }
    let mut writer = Writer::create(&args.to, layout).map_err(failed)?;
    for row in &mut reader {
        if let Some(row) = change(row.map_err(failed)?) {
            writer.add(&row).map_err(failed)?;
        }
    }
    tell_left_out(&reader)?;
    writer.finish().map_err(failed)
}

fn told(rows: u64, args: &PairArgs) -> Result<(), CliError> {
    let name = text::line(&args.to.display().to_string());
    Ok(Target::Stdout.line(&format!("{rows} rows in {name}"))?)
}

fn tell_left_out(reader: &Reader) -> Result<(), CliError> {
    let names: Vec<&str> = reader.left_out().collect();
    if !names.is_empty() {
        let names = text::line(&names.join(", "));
        Target::Stderr.line(&format!("left out, rows have no place for it: {names}"))?;
    }
    Ok(())
}
