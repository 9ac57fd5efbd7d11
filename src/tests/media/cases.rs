//! The files that break video servers (`fixtures/media/`): what each must give is in `cases.json`, and every one is checked.

#![expect(clippy::print_stdout, reason = "what is skipped is told")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures::StreamExt as _;
use paravt::card::FrameBudget;
use paravt::media::{Media, MediaError, SourceRequest, Video};
use paravt::types::{Clip, FrameSize, MediaTime};
use serde::Deserialize;

use super::made::{self, malformed, number};
use super::{AS_IT_IS, OVERVIEW, WINDOW, span};

const SCRIPT: &str = include_str!("../fixtures/media/make_cases.sh");
const CASES: &str = include_str!("../fixtures/media/cases.json");
/// What the script leaves out where an encoder is missing.
const MAY_BE_MISSING: [&str; 1] = ["av1.mp4"];

#[derive(Deserialize)]
struct Cases {
    files: BTreeMap<String, Case>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Case {
    duration: Option<f64>,
    frames: Option<u64>,
    index: bool,
    display: Option<(u32, u32)>,
    stream: Option<u32>,
    partial: bool,
    error: bool,
    #[serde(rename = "note")]
    _note: Option<String>,
}

fn cases() -> BTreeMap<String, Case> {
    let cases = serde_json::from_str::<Cases>(CASES).expect("the table reads").files;
    assert_eq!(cases.len(), 34);
    cases
}

/// The files, made once.
fn files() -> PathBuf {
    made::folder(SCRIPT, |folder| {
        let script = super::super::support::root("src/tests/fixtures/media/make_cases.sh");
        let done = Command::new("sh").arg(script).arg(folder).output().expect("runs");
        assert!(done.status.success(), "the script: {}", String::from_utf8_lossy(&done.stderr));
    })
}

/// Frames a second of the index-coded files, before frames were left out: frame `n` is shown at `n / fps`.
fn fps(name: &str) -> f64 {
    if name.contains("ntsc") { 30_000.0 / 1001.0 } else { 25.0 }
}

/// Displayed size, of the table, or as the script makes it.
fn display(name: &str, case: &Case) -> (u32, u32) {
    let made = match name {
        _ if case.index => (256, 64),
        "two_streams.mp4" => (640, 360),
        "interlaced.mp4" => (720, 576),
        // 321 pixels, very slightly wider than high: the scaler keeps the aspect of the source.
        "odd_size.mp4" => (322, 181),
        "anamorphic.mp4" => (640, 180),
        "animated.gif" => (160, 90),
        _ => (320, 180),
    };
    case.display.unwrap_or(made)
}

/// The numbers of all frames, by the script.
fn all_numbers(name: &str, frames: u64) -> Vec<u64> {
    if name == "vfr.mp4" {
        (0..500).filter(|n| !(10..=34).contains(&(n % 50))).collect()
    } else {
        (0..frames).collect()
    }
}

/// The reference's choice in a window of a steady video, written down once more, independently of the code under test.
fn chosen(total: u64, fps: f64, (start, end): (f64, f64), dense: bool) -> Vec<u64> {
    let first = (start * fps).ceil() as u64;
    let last = ((end * fps).floor() as u64).min(total - 1);
    if first > last {
        return vec![(start * fps) as u64];
    }
    let available = last - first + 1;
    let wanted = if dense { WINDOW.max_frames as f64 } else { available as f64 / fps * WINDOW.fps };
    let pairs = |count: f64| (count / 2.0).floor() as u64 * 2;
    let count = pairs(wanted.clamp(2.0, WINDOW.max_frames.into()).min(available as f64)).max(1);
    let step = (last - first) as f64 / (count.max(2) - 1) as f64;
    (0..count).map(|i| (first as f64 + step * i as f64).round_ties_even() as u64).collect()
}

/// One file under test, and what was found wrong with it.
struct Check<'a> {
    media: &'a Media,
    folder: &'a Path,
    name: &'a str,
    case: &'a Case,
    wrong: Vec<String>,
}

impl Check<'_> {
    fn hold(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(format!("{}: {}", self.name, what()));
        }
    }

    async fn all(mut self) -> Vec<String> {
        let path = self.folder.join(self.name);
        if !path.is_file() && MAY_BE_MISSING.contains(&self.name) {
            println!("{}: skipped, this ffmpeg has no encoder for it", self.name);
            return Vec::new();
        }
        self.hold(path.is_file(), || "the script has not made it".to_owned());
        let opened = self.media.open(&SourceRequest::Path(path)).await;
        match opened {
            Err(error) if self.case.error => self.refused(&error),
            Ok(_) if self.case.error => self.hold(false, || "it must be refused".to_owned()),
            Err(error) => self.hold(false, || format!("it does not open: {error}")),
            Ok(video) => {
                self.described(&video);
                if self.case.partial {
                    self.cut_off(&video).await;
                } else {
                    self.overview(&video).await;
                    self.every_frame(&video).await;
                }
                if self.case.index {
                    self.windows(&video).await;
                }
            }
        }
        self.wrong
    }

    /// The error is one that callers meet as a 400, in words that are for them.
    fn refused(&mut self, error: &MediaError) {
        let kind = matches!(error, MediaError::NotVideo(_) | MediaError::BadSource(_) | MediaError::NoFrames(_));
        self.hold(kind, || format!("it must be the caller's fault: {error:?}"));
        let words = error.to_string();
        let folder = self.folder.display().to_string();
        let name = self.name;
        let ours = [folder.as_str(), name, "/tmp", "/etc", "ffmpeg", "ffprobe", "0x", "Error", "exit status", "secret"];
        let leaks = ours.into_iter().find(|leak| words.contains(leak));
        self.hold(leaks.is_none(), || format!("a message that says {leaks:?}: {words}"));
        // Each names its cause.
        let cause = match name {
            "audio_only.m4a" => "only sound",
            "cover_art.m4a" => "cover picture",
            "empty.mp4" => "empty",
            _ => "not a video",
        };
        self.hold(words.contains(cause), || format!("a message without the cause {cause:?}: {words}"));
    }

    fn described(&mut self, video: &Video) {
        let (case, info) = (self.case, video.info());
        let a_frame = (1.0 / info.fps).max(0.05);
        if let Some(duration) = case.duration {
            let found = info.duration.seconds();
            self.hold((found - duration).abs() <= a_frame, || format!("{found} s, not {duration}"));
        }
        if let Some(frames) = case.frames {
            self.hold(info.frames == frames, || format!("{} frames, not {frames}", info.frames));
        }
        if let (Some(duration), Some(frames)) = (case.duration, case.frames) {
            let fps = frames as f64 / duration;
            self.hold((info.fps / fps - 1.0).abs() < 0.01, || format!("{} frames a second, not {fps}", info.fps));
        }
        let (width, height) = display(self.name, case);
        let size = FrameSize { width, height };
        self.hold(info.size == size, || format!("{:?}, not {size:?}", info.size));
        assert!(case.stream.is_none_or(|stream| stream == 1), "{}: only its size tells its stream", self.name);
    }

    /// The overview as a request gets it by default: well-formed, whole, and each frame labelled with its own time.
    async fn overview(&mut self, video: &Video) {
        match self.media.overview(video, &OVERVIEW, None, None, &AS_IT_IS).await {
            Err(error) => self.hold(false, || format!("its overview: {error:?}")),
            Ok(clip) => {
                self.whole(&clip, OVERVIEW.max_frames as usize);
                let start = clip.frames.first().and_then(|frame| frame.time);
                self.hold(start == Some(MediaTime::ZERO), || format!("it starts at {start:?}"));
                let seconds = video.info().duration.seconds();
                let spread = clip.frames.len() as f64 >= (seconds * OVERVIEW.fps).min(video.info().frames as f64) - 2.0;
                self.hold(spread, || format!("{} frames of {seconds} s", clip.frames.len()));
                self.labels(&clip);
            }
        }
    }

    /// All frames there are, when more than that are asked for. Of the longest files windows must do, the last one's end
    /// among them.
    async fn every_frame(&mut self, video: &Video) {
        let Some(frames) = self.case.frames.filter(|frames| *frames <= 250) else { return };
        let asked = u32::try_from(frames).expect("few") + 7;
        match self.media.overview(video, &OVERVIEW, Some(asked), None, &AS_IT_IS).await {
            Err(error) => self.hold(false, || format!("all its frames: {error:?}")),
            Ok(clip) => {
                self.whole(&clip, asked as usize);
                let found = clip.frames.len() as u64;
                self.hold(found == frames, || format!("{found} frames decode, not {frames}"));
                if self.case.index && found == frames {
                    let wrong = all_numbers(self.name, frames)
                        .into_iter()
                        .zip(made::numbers(&clip))
                        .find(|(expected, found)| expected != found);
                    self.hold(wrong.is_none(), || format!("expected and found of all frames: {wrong:?}"));
                }
                self.labels(&clip);
            }
        }
    }

    async fn cut_off(&mut self, video: &Video) {
        match self.media.overview(video, &OVERVIEW, None, None, &AS_IT_IS).await {
            Err(error) => self.hold(false, || format!("what there is of it: {error:?}")),
            Ok(clip) => {
                self.hold(clip.partial, || "it is cut off, and does not say so".to_owned());
                let wrong = malformed(&clip, OVERVIEW.max_frames as usize);
                self.hold(wrong.is_none(), || wrong.unwrap_or_default());
            }
        }
    }

    fn whole(&mut self, clip: &Clip, most: usize) {
        let wrong = malformed(clip, most);
        self.hold(wrong.is_none(), || wrong.unwrap_or_default());
        self.hold(!clip.partial, || "partial".to_owned());
    }

    /// The time of each frame of an index-coded file is that of the number in its pixels.
    fn labels(&mut self, clip: &Clip) {
        if !self.case.index {
            return;
        }
        let fps = fps(self.name);
        for frame in &clip.frames {
            let (number, time) = (number(frame), frame.time.unwrap_or_default().seconds());
            // Containers count in milliseconds at the coarsest.
            self.hold((number as f64 / fps - time).abs() < 0.0011, || format!("frame {number} is labelled {time}"));
        }
    }

    /// Windows are exact: the very frames of the reference.
    async fn windows(&mut self, video: &Video) {
        let (total, seconds) = (video.info().frames, video.info().duration.seconds());
        let mut windows: Vec<(f64, f64, bool, Vec<u64>)> = Vec::new();
        if self.name == "vfr.mp4" {
            windows.extend([
                // From the middle of one gap to the middle of another: the frames on the edges of what is there.
                (6.9, 9.0, false, vec![185, 209]),
                // Nothing but a gap: the frame shown all the while.
                (4.6, 5.2, false, vec![109]),
                // Evenly 0, 1.29, 2.59, 3.88: two of these fall into gaps, whose last frame before is still shown.
                (0.0, 3.9, false, vec![0, 9, 59, 97]),
                // Eight of the ten frames of the first burst and of the fifteen after its gap.
                (0.0, 1.0, true, (0..10).collect()),
                // By index / average rate this would be elsewhere.
                (18.0, 18.3, true, (450..458).collect()),
            ]);
        } else {
            let places = [
                (0.0, 3.0),
                (1.37, 1.39),
                (3.33, 7.77),
                (seconds / 2.0 + 0.013, seconds - 0.31),
                (seconds - 1.99, seconds + 30.0),
            ];
            for (start, end) in places {
                for dense in [false, true] {
                    windows.push((start, end, dense, chosen(total, fps(self.name), (start, end), dense)));
                }
            }
        }
        for (start, end, dense, expected) in windows {
            match self.media.window(video, span(start, end), &WINDOW, dense, &AS_IT_IS).await {
                Err(error) => self.hold(false, || format!("{start}..{end}: {error:?}")),
                Ok(clip) => {
                    self.whole(&clip, WINDOW.max_frames as usize);
                    let found = made::numbers(&clip);
                    self.hold(found == expected, || {
                        format!("{start}..{end}, dense {dense}: {found:?}, not {expected:?}")
                    });
                    self.labels(&clip);
                }
            }
        }
        let past = self.media.window(video, span(seconds + 1.0, seconds + 2.0), &WINDOW, false, &AS_IT_IS).await;
        self.hold(matches!(past, Err(MediaError::NoFrames(_))), || format!("past its end: {past:?}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_gives_what_the_table_says() {
    let (folder, cases) = (files(), cases());
    let media = Media::new(made::default()).expect("these tests need ffmpeg");
    let (media, folder) = (&media, folder.as_path());
    let checks = cases.iter().map(|(name, case)| Check { media, folder, name, case, wrong: Vec::new() }.all());
    let wrong: Vec<Vec<String>> = futures::stream::iter(checks).buffer_unordered(4).collect().await;
    let wrong = wrong.concat();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    media.idle().await;
    assert_eq!(media.load().processes, 0);
}

#[tokio::test]
async fn a_slide_show_gives_each_slide_once() {
    let media = Media::new(made::default()).expect("these tests need ffmpeg");
    let name = "slideshow_0.1fps.mp4";
    let video = media.open(&SourceRequest::Path(files().join(name))).await.expect(name);
    let budget = FrameBudget { fps: 1.0, min_frames: 4, max_frames: 64, timestamps: true };
    let clip = media.overview(&video, &budget, None, None, &AS_IT_IS).await.expect(name);
    let seconds: Vec<f64> = clip.times().into_iter().map(MediaTime::seconds).collect();
    assert_eq!(seconds, [0.0, 10.0, 20.0, 30.0, 40.0, 50.0], "{name}");
}

/// Whether a file is opened, by whatever process: the kernel tells.
#[cfg(target_os = "linux")]
struct Watch(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Watch {
    fn new(path: &Path) -> Self {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("inotify");
        add_watch(&watch, path, WatchFlags::OPEN).expect("watches");
        Self(watch)
    }

    /// Whether it has been opened since the last look.
    fn opened(&self) -> bool {
        let mut buffer = [0_u8; 4096];
        rustix::io::read(&self.0, &mut buffer).is_ok_and(|bytes| bytes > 0)
    }
}

/// The script's own playlists with the address and the file replaced by ones that would notice, and that could be played.
#[tokio::test]
async fn playlists_and_concat_files_open_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("an address").to_string();
    let target = folder.path().join("target.mp4");
    std::fs::copy(files().join("base.mp4"), &target).expect("copies");
    let target_name = target.to_str().expect("UTF-8");
    #[cfg(target_os = "linux")]
    let watch = Watch::new(&target);
    let media = Media::new(made::default()).expect("these tests need ffmpeg");
    for (name, from, to) in [
        ("playlist_as.mp4", "127.0.0.1:9", address.as_str()),
        ("concat_as.mp4", "/etc/passwd", target_name),
        ("playlist_file.m3u8", "/etc/passwd", target_name),
    ] {
        let original = std::fs::read_to_string(files().join(name)).expect(name);
        let content = original.replace(from, to);
        assert_ne!(content, original, "{name}");
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect(name);
        let refused = media.open(&SourceRequest::Path(path)).await;
        assert!(matches!(refused, Err(MediaError::NotVideo(_))), "{name}: {refused:?}");
        #[cfg(target_os = "linux")]
        assert!(!watch.opened(), "{name} had another file opened");
    }
    let mut accept = Box::pin(listener.accept());
    assert!(futures::poll!(&mut accept).is_pending(), "a connection was opened");
    // What was not opened could have been.
    media.open(&SourceRequest::Path(target)).await.expect("the target is a video");
    #[cfg(target_os = "linux")]
    assert!(watch.opened());
}
