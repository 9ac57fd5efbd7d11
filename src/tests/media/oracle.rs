//! The reference's choices (`fixtures/frame_sampling.json`) through the real decoder: videos of exactly the oracle's rates
//! and lengths, whose pixels say which frame came out.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use paravt::card::FrameBudget;
use paravt::media::{Media, MediaError, SourceRequest, Video};
use paravt::types::{Clip, MediaTime};
use serde::Deserialize;

use super::made::{self, NUMBERED, malformed, number, numbers};
use super::{AS_IT_IS, span};

/// Longest video made; the oracle's others run for hours.
const MOST_FRAMES: u64 = 7500;
/// The reference's default for the fewest frames.
const DEFAULT_MIN_FRAMES: u32 = 4;

/// Containers and ways to predict, in turn: name's ending, options.
const KINDS: [(&str, &str); 6] = [
    ("mp4", "-c:v libx264 -bf 3 -g 250"),
    ("mkv", "-c:v libx264 -bf 2 -g 48"),
    ("ts", "-c:v libx264 -bf 2 -g 60"),
    ("mov", "-c:v libx264 -bf 3 -g 9999 -keyint_min 9999 -sc_threshold 0"),
    ("mp4", "-c:v libx264 -bf 2 -g 50 -movflags frag_keyframe+empty_moov"),
    ("mkv", "-c:v libx264 -bf 0 -g 125"),
];
/// The kind of short ones, whose encoder is slow.
const SHORT_KIND: (&str, &str) = ("webm", "-c:v libvpx -deadline realtime -cpu-used 8 -g 20");

#[derive(Deserialize)]
struct Oracle {
    window: Vec<Case>,
}

#[derive(Debug, Clone, Deserialize)]
struct Case {
    source_fps: f64,
    total: u64,
    start: Option<f64>,
    end: Option<f64>,
    fps: Option<f64>,
    min_frames: Option<u32>,
    max_frames: Option<u32>,
    nframes: Option<u32>,
    indices: Option<Vec<u64>>,
}

impl Case {
    fn budget(&self) -> FrameBudget {
        let min_frames = self.min_frames.unwrap_or(DEFAULT_MIN_FRAMES);
        // Cases that ask for a number of frames have no rate and no most.
        let (fps, max_frames) = (self.fps.unwrap_or(1.0), self.max_frames.unwrap_or(768));
        FrameBudget { fps, min_frames, max_frames, timestamps: false }
    }

    /// What the room gives. Where the reference refuses a request that makes sense, it still gets frames: as many as there
    /// are where more were asked for, and the frame shown where the stretch holds fewer than two.
    fn expected(&self) -> Option<Vec<u64>> {
        let Case { source_fps, total, .. } = *self;
        match (&self.indices, self.start) {
            (Some(indices), _) => Some(indices.clone()),
            (None, None) => Some((0..total).collect()),
            (None, Some(start)) if start * source_fps < total as f64 => Some(vec![(start * source_fps) as u64]),
            (None, Some(_)) => None,
        }
    }

    async fn ask(&self, media: &Media, video: &Video) -> Result<Clip, MediaError> {
        let budget = self.budget();
        match (self.start, self.end) {
            (None, None) => media.overview(video, &budget, self.nframes, None, &AS_IT_IS).await,
            (start, end) => {
                let end = end.unwrap_or(video.info().duration.seconds());
                media.window(video, span(start.unwrap_or(0.0), end), &budget, false, &AS_IT_IS).await
            }
        }
    }

    /// What is wrong with the answer, if anything.
    async fn check(&self, media: &Media, video: &Video, name: &str) -> Option<String> {
        let wrong = |what: String| Some(format!("{name}: {what}, of {self:?}"));
        let (clip, expected) = match (self.ask(media, video).await, self.expected()) {
            (Err(MediaError::NoFrames(_)), None) => return None,
            (Err(error), _) => return wrong(format!("{error:?}")),
            (Ok(clip), None) => return wrong(format!("{clip:?}, not an error")),
            (Ok(clip), Some(expected)) => (clip, expected),
        };
        if let Some(problem) = malformed(&clip, expected.len()) {
            return wrong(problem);
        }
        let found = numbers(&clip);
        if found != expected || clip.partial {
            return wrong(format!("frames {found:?}, partial {}", clip.partial));
        }
        // Containers count in milliseconds at the coarsest.
        let late = |number: u64, time: MediaTime| (number as f64 / self.source_fps - time.seconds()).abs() >= 0.0011;
        let mislabelled = clip.frames.iter().find(|frame| late(number(frame), frame.time.unwrap_or_default()));
        mislabelled.and_then(|frame| wrong(format!("frame {} is labelled {:?}", number(frame), frame.time)))
    }
}

/// Videos by rate and length, in order, each with its cases.
fn oracle() -> Vec<(String, f64, u64, Vec<Case>)> {
    let oracle: Oracle = serde_json::from_str(include_str!("../fixtures/frame_sampling.json")).expect("reads");
    let mut videos: BTreeMap<(u64, u64), Vec<Case>> = BTreeMap::new();
    for case in oracle.window.into_iter().filter(|case| case.total <= MOST_FRAMES) {
        // A window that ends before it starts can't be put to the room at all.
        if case.start.zip(case.end).is_none_or(|(start, end)| start <= end) {
            videos.entry((case.total, (case.source_fps * 1000.0) as u64)).or_default().push(case);
        }
    }
    let named = |(at, ((total, _), cases)): (usize, ((u64, u64), Vec<Case>))| {
        let (fps, (ending, _)) = (cases[0].source_fps, kind(at, total));
        (format!("{at}_{total}_frames_at_{fps:.3}.{ending}"), fps, total, cases)
    };
    videos.into_iter().enumerate().map(named).collect()
}

fn kind(at: usize, total: u64) -> (&'static str, &'static str) {
    if total <= 50 && at.is_multiple_of(3) { SHORT_KIND } else { KINDS[at % KINDS.len()] }
}

/// A rate as ffmpeg is told it, exactly.
fn ratio(fps: f64) -> String {
    if (fps * 2.0).fract() == 0.0 { format!("{}/2", fps * 2.0) } else { format!("{}/1001", (fps * 1001.0).round()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_frames_that_come_out_are_the_references() {
    let videos = oracle();
    let command = |at: usize, name: &str, fps: f64, total: u64| {
        let (rate, (_, options)) = (ratio(fps), kind(at, total));
        let source = format!("-f lavfi -i color=black:s=16x4:r={rate} -vf {NUMBERED} -frames:v {total}");
        // The codec's own speed setting; each knows only one of these.
        let fast = if options.contains("x264") { "-preset ultrafast" } else { "" };
        format!("{source} {options} {fast} -pix_fmt yuv420p {name}")
    };
    let commands: Vec<String> =
        videos.iter().enumerate().map(|(at, (name, fps, total, _))| command(at, name, *fps, *total)).collect();
    let folder = made::folder(&commands.join("\n"), |folder| {
        for command in &commands {
            made::ffmpeg(folder, command);
        }
    });
    let media = Media::new(made::exact()).expect("these tests need ffmpeg");
    let (media, folder) = (&media, &folder);
    let checks = videos.iter().map(async |(name, fps, total, cases)| {
        let video = media.open(&SourceRequest::Path(folder.join(name))).await;
        let video = video.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let (info, mut wrong) = (video.info(), Vec::new());
        if info.frames != *total || (info.fps / fps - 1.0).abs() > 1e-3 && *total > 1 {
            wrong.push(format!("{name}: {info:?}"));
        }
        for case in cases {
            wrong.extend(case.check(media, &video, name).await);
        }
        wrong
    });
    let wrong: Vec<Vec<String>> = futures::stream::iter(checks).buffer_unordered(4).collect().await;
    let (wrong, cases) = (wrong.concat(), videos.iter().map(|(.., cases)| cases.len()).sum::<usize>());
    assert!(wrong.is_empty(), "{} of {cases} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!((videos.len(), cases), (31, 79));
}
