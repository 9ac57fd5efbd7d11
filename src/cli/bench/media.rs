//! `paravt bench media`: a video's frames as an episode would fetch them, without a model.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use futures::future::try_join_all;
use serde::Serialize;

use super::memory::Memory;
use super::tell;
use crate::app::App;
use crate::card::ModelCard;
use crate::cli::{CliError, ask, text};
use crate::config::Config;
use crate::media::{Media, MediaError, SourceRequest, Video};
use crate::types::{Clip, MediaTime, TimeSpan};

/// Arguments of `bench media`.
#[derive(Debug, Args)]
pub(super) struct MediaArgs {
    /// A video: a file, or an http(s) URL
    video: String,
    /// Frames of the overview [default: as the card says]
    #[arg(long)]
    frames: Option<u32>,
    /// Model card whose frame and pixel budgets count
    #[arg(long, value_name = "NAME|DIR", default_value = "paravt-8b")]
    card: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Where the five windows begin, as parts of the video: somewhere, and not where the overview has its frames.
const WINDOWS: [f64; 5] = [0.111, 0.278, 0.5, 0.722, 0.889];
/// Longest window in seconds.
const WINDOW_S: f64 = 15.0;

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    /// Frames of the overview.
    frames: usize,
    /// Whether they are key frames.
    keyframes: bool,
    /// Milliseconds from nothing to the overview: finding ffmpeg, opening the video, decoding.
    cold_ms: f64,
    /// The same again, with all caches filled.
    warm_ms: f64,
    /// Frames of each window.
    window_frames: Vec<usize>,
    /// Milliseconds for all windows at the same time.
    windows_ms: f64,
    /// Size of the video in bytes.
    bytes: u64,
    /// Bytes read of it in all; unknown where ffmpeg read the file by itself.
    bytes_read: Option<u64>,
    /// Largest memory of this process and its children together, in bytes; unknown outside Linux.
    peak_rss_bytes: Option<u64>,
}

/// Runs the command.
pub(super) async fn run(args: &MediaArgs, config: Config) -> Result<(), CliError> {
    let report = Box::pin(media(args, config)).await?;
    tell(&report, args.json, || report.told())
}

async fn media(args: &MediaArgs, mut config: Config) -> Result<Report, CliError> {
    let source = ask::source(&args.video)?;
    config.engine.card = Some(args.card.clone());
    let app = App::new(config)?;
    let card = app.card();
    let memory = Memory::watch();
    let begin = Instant::now();
    let media = app.media()?;
    let (video, clip) = overview(&media, &source, card, args.frames).await?;
    let cold_ms = ms(begin);
    let begin = Instant::now();
    let spans = windows(video.info().duration);
    let clips = try_join_all(spans.iter().map(|span| media.window(&video, *span, &card.window, true, &card.pixels)));
    let clips = clips.await.map_err(|error| failed(&error))?;
    let windows_ms = ms(begin);
    let begin = Instant::now();
    let (_, again) = overview(&media, &source, card, args.frames).await?;
    let warm_ms = ms(begin);
    if again.times() != clip.times() {
        return Err(CliError::Failed("the second time the overview was another".to_owned()));
    }
    Ok(Report {
        frames: clip.frames.len(),
        keyframes: clip.keyframes,
        cold_ms,
        warm_ms,
        window_frames: clips.iter().map(|clip| clip.frames.len()).collect(),
        windows_ms,
        bytes: video.bytes(),
        bytes_read: video.bytes_read(),
        peak_rss_bytes: memory.peak(),
    })
}

async fn overview(
    media: &Media,
    source: &SourceRequest,
    card: &ModelCard,
    frames: Option<u32>,
) -> Result<(Video, Clip), CliError> {
    let video = media.open(source).await.map_err(|error| failed(&error))?;
    let clip =
        media.overview(&video, &card.overview, frames, None, &card.pixels).await.map_err(|error| failed(&error))?;
    Ok((video, clip))
}

/// Five windows of a video.
fn windows(duration: MediaTime) -> Vec<TimeSpan> {
    let seconds = duration.seconds();
    let length = WINDOW_S.min(seconds / 5.0);
    let span = |part: f64| {
        let start = (seconds * part).min(seconds - length);
        TimeSpan::new(MediaTime::from_seconds(start)?, MediaTime::from_seconds(start + length)?)
    };
    WINDOWS.into_iter().filter_map(span).collect()
}

fn ms(begin: Instant) -> f64 {
    (begin.elapsed().as_secs_f64() * 1e5).round() / 100.0
}

fn failed(error: &MediaError) -> CliError {
    CliError::Failed(text::line(&error.to_string()))
}

impl Report {
    fn told(&self) -> String {
        let kind = if self.keyframes { "key frames" } else { "frames" };
        let windows: usize = self.window_frames.iter().sum();
        let read = self.bytes_read.map_or_else(
            || "by ffmpeg itself, not counted".to_owned(),
            |read| format!("{read} of {} ({:.2} %)", self.bytes, 100.0 * read as f64 / self.bytes.max(1) as f64),
        );
        let peak = self.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), |peak| format!("{} MB", peak / 1_000_000));
        [
            format!("overview  {} {kind}: {:.0} ms cold, {:.1} ms warm", self.frames, self.cold_ms, self.warm_ms),
            format!("windows   {} with {windows} frames: {:.0} ms", self.window_frames.len(), self.windows_ms),
            format!("read      {read}"),
            format!("memory    {peak} at most, ffmpeg's included"),
        ]
        .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_lie_inside_the_video() {
        for seconds in [0.04, 3.0, 60.0, 5400.0] {
            let duration = MediaTime::from_seconds(seconds).expect("finite");
            let spans = windows(duration);
            assert_eq!(spans.len(), 5);
            assert!(spans.iter().all(|span| span.start >= MediaTime::ZERO && span.end <= duration), "{spans:?}");
        }
    }
}
