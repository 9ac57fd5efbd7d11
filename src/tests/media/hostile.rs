//! Thousands of damaged small files through the whole path: nothing panics, hangs, or is left behind.
//!
//! `PARAVT_MUTATIONS` says how many (300 where it is not set). A run with the same number does the same; a larger one begins
//! with the same files.

#![expect(clippy::print_stdout, reason = "the tally, for who runs it for longer")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use futures::StreamExt as _;
use paravt::card::{FrameBudget, PixelBudget};
use paravt::media::{Media, MediaError, SourceRequest};
use paravt::types::{MediaTime, TimeSpan};

use super::made::{self, malformed};

/// Small pictures: the files are, too.
const PIXELS: PixelBudget = PixelBudget { factor: 32, min_pixels: 1024, max_pixels: 4096 };
const OVERVIEW: FrameBudget = FrameBudget { fps: 2.0, min_frames: 2, max_frames: 8, timestamps: true };
const WINDOW: FrameBudget = FrameBudget { fps: 8.0, min_frames: 1, max_frames: 8, timestamps: false };
/// What no file may outlast, however busy the machine: a few of its processes' own limits.
const HANG: Duration = Duration::from_secs(400);
/// Seconds for one process. Small files: what takes longer is a finding.
const PROCESS_S: u64 = 100;
/// Slower files are done once more when nothing else runs, and told when they are slow again.
const SLOW: Duration = Duration::from_secs(10);
/// Files at the same time.
const AT_A_TIME: usize = 4;
/// Most bytes of a mutated file.
const MOST_BYTES: usize = 64 << 10;

/// Whole files to damage: each container, and the codecs that are common in it. Name, options.
const SEEDS: [(&str, &str); 16] = [
    ("plain.mp4", "-c:v libx264 -bf 2 -g 5"),
    ("faststart.mp4", "-c:v libx264 -g 4 -movflags +faststart"),
    ("fragmented.mp4", "-c:v libx264 -g 4 -movflags frag_keyframe+empty_moov"),
    ("indexed_fragments.mp4", "-c:v libx264 -g 4 -movflags frag_keyframe+empty_moov+default_base_moof+global_sidx"),
    ("sound.mp4", "-f lavfi -i sine=d=0.8 -c:a aac -b:a 8k -c:v libx264 -g 6"),
    ("hevc.mp4", "-c:v libx265 -x265-params log-level=none -tag:v hvc1"),
    ("mpeg4.mov", "-c:v mpeg4 -g 5 -metadata:s:v:0 rotate=90"),
    ("rle.mov", "-c:v qtrle -timecode 01:00:00:00"),
    ("h264.mkv", "-c:v libx264 -bf 2 -g 5"),
    ("vp8.webm", "-c:v libvpx -deadline realtime -cpu-used 8 -g 5"),
    ("live.webm", "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 5 -f webm -live 1"),
    ("h264.ts", "-c:v libx264 -bf 2 -g 5"),
    ("mjpeg.avi", "-c:v mjpeg -q:v 20"),
    ("animated.gif", ""),
    ("theora.ogg", "-c:v libtheora -g 5"),
    ("flash.flv", "-c:v flv1 -g 5"),
];

/// What is done to a file.
#[derive(Debug, Clone, Copy)]
enum Mutation {
    Flips,
    Field,
    Truncation,
    Splice,
    Duplicate,
    Header,
}

const MUTATIONS: [Mutation; 6] =
    [Mutation::Flips, Mutation::Field, Mutation::Truncation, Mutation::Splice, Mutation::Duplicate, Mutation::Header];

/// Values that headers are not made for.
const FIELDS: [u32; 10] = [0, 1, 2, 7, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0xFFFF_FFF0, 0x00FF_FFFF, 100_000_000];

/// Marsaglia's xorshift: the same numbers everywhere.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        // Neighbouring seeds far apart, and never zero.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below a bound that is not zero.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A stretch of some bytes.
    fn stretch(&mut self, bytes: usize) -> std::ops::Range<usize> {
        let (a, b) = (self.below(bytes + 1), self.below(bytes + 1));
        a.min(b)..a.max(b)
    }
}

/// Where containers keep lengths and counts: names of four letters, and what precedes or follows them.
fn named_places(bytes: &[u8]) -> Vec<usize> {
    let letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (0..bytes.len().saturating_sub(24)).filter(|at| bytes[*at..at + 4].iter().all(letter)).collect()
}

fn mutate(bytes: &mut Vec<u8>, other: &[u8], mutation: Mutation, dice: &mut Dice) {
    if bytes.len() < 32 {
        return;
    }
    match mutation {
        Mutation::Flips => {
            for _ in 0..=dice.below(16) {
                let at = dice.below(bytes.len());
                bytes[at] ^= 1 << dice.below(8);
            }
        }
        Mutation::Field => {
            let named = named_places(bytes);
            for _ in 0..=dice.below(3) {
                // The length before a name, or one of the fields after it.
                let near = [-4_isize, 4, 8, 12, 16, 20];
                let at = if named.is_empty() { dice.below(bytes.len()) } else { dice.of(&named) };
                let at = at.saturating_add_signed(dice.of(&near)).min(bytes.len() - 4);
                let value = dice.of(&FIELDS);
                let value = if dice.below(4) == 0 { value.to_le_bytes() } else { value.to_be_bytes() };
                bytes[at..at + 4].copy_from_slice(&value);
            }
        }
        Mutation::Truncation => bytes.truncate(dice.below(bytes.len())),
        Mutation::Splice => {
            let (keep, from) = (dice.below(bytes.len()), dice.below(other.len()));
            bytes.truncate(keep);
            bytes.extend_from_slice(&other[from..]);
        }
        Mutation::Duplicate => {
            let again = bytes[dice.stretch(bytes.len())].to_vec();
            let at = dice.below(bytes.len());
            for _ in 0..=dice.below(3) {
                bytes.splice(at..at, again.iter().copied());
            }
        }
        Mutation::Header => {
            let length = bytes.len().min(64);
            for _ in 0..=dice.below(4) {
                bytes[dice.below(length)] = dice.of(&[0, 1, 0x7F, 0x80, 0xFE, 0xFF]);
            }
        }
    }
    bytes.truncate(MOST_BYTES);
}

/// The seeds' contents, made once. One whose encoder this ffmpeg has not is left out.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let recipe: Vec<String> = SEEDS.iter().map(|(name, options)| format!("{name} {options}")).collect();
    let folder = made::folder(&format!("seeds 1\n{}", recipe.join("\n")), |folder| {
        for (name, options) in SEEDS {
            let speed = if options.contains("libx26") { "-preset ultrafast" } else { "" };
            let done = Command::new("ffmpeg")
                .args("-nostdin -v error -y -f lavfi -i testsrc=s=64x48:r=15:d=0.8".split_whitespace())
                .args(options.split_whitespace().chain(speed.split_whitespace()))
                .arg(name)
                .current_dir(folder)
                .output()
                .expect("these tests need ffmpeg");
            if !done.status.success() {
                println!("{name}: left out: {}", String::from_utf8_lossy(&done.stderr));
                std::fs::remove_file(folder.join(name)).unwrap_or_default();
            }
        }
    });
    let made: Vec<_> =
        SEEDS.iter().filter_map(|(name, _)| Some((*name, std::fs::read(folder.join(name)).ok()?))).collect();
    assert!(made.len() >= 10, "most encoders are there");
    made
}

/// One damaged file: what it was made of, and its bytes. The same for the same number.
fn damaged(seeds: &[(&str, Vec<u8>)], number: usize) -> (String, Vec<u8>) {
    let mut dice = Dice::new(number as u64);
    let (name, bytes) = &seeds[dice.below(seeds.len())];
    let (mut bytes, mut story) = (bytes.clone(), format!("{number}_{name}"));
    for _ in 0..=dice.below(2) {
        let (mutation, other) = (dice.of(&MUTATIONS), dice.below(seeds.len()));
        mutate(&mut bytes, &seeds[other].1, mutation, &mut dice);
        story.push_str(&format!("_{mutation:?}"));
    }
    (story, bytes)
}

/// How a file went: a word for the tally, what it must not have done, and whether it took long.
struct Ending {
    word: String,
    odd: Option<String>,
    slow: bool,
}

fn kind(error: &MediaError) -> &'static str {
    match error {
        MediaError::BadSource(_) => "bad source",
        MediaError::Forbidden(_) => "forbidden",
        MediaError::NotFound(_) => "not found",
        MediaError::TooLarge(_) => "too large",
        MediaError::Fetch(_) => "fetch",
        MediaError::NotVideo(_) => "not a video",
        MediaError::NoFrames(_) => "no frames",
        MediaError::Busy => "busy",
        MediaError::Timeout(_) => "timeout",
        MediaError::Killed => "killed",
        MediaError::NoFfmpeg => "no ffmpeg",
        MediaError::Internal(_) => "internal",
    }
}

/// Opens, overviews, and watches the second half. A word for how it ended, or what must not be: every failure is fine that
/// is the file's fault.
async fn whole_path(media: &Media, source: SourceRequest) -> Result<String, String> {
    let failed = |step: &str, error: &MediaError| match error {
        MediaError::Internal(_) | MediaError::Timeout(_) | MediaError::Killed | MediaError::NoFfmpeg => {
            Err(format!("{step}: {error:?}"))
        }
        _ => Ok(format!("{step}: {}", kind(error))),
    };
    let video = match media.open(&source).await {
        Ok(video) => video,
        Err(error) => return failed("open", &error),
    };
    match media.overview(&video, &OVERVIEW, None, None, &PIXELS).await {
        Err(error) => return failed("overview", &error),
        Ok(clip) => malformed(&clip, OVERVIEW.max_frames as usize).map_or(Ok(()), Err)?,
    }
    let end = video.info().duration;
    let span = TimeSpan { start: MediaTime::from_micros(end.micros() / 2), end };
    match media.window(&video, span, &WINDOW, false, &PIXELS).await {
        Err(error) => failed("window", &error),
        Ok(clip) => malformed(&clip, WINDOW.max_frames as usize).map_or(Ok("frames".to_owned()), Err),
    }
}

/// Half come as files, half in the request, which are then temporary files of ours.
async fn one(media: &Media, folder: &Path, (story, bytes): &(String, Vec<u8>), in_request: bool) -> Ending {
    let path = folder.join(story);
    let source = if in_request {
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        SourceRequest::Url(format!("data:video/mp4;base64,{encoded}"))
    } else {
        std::fs::write(&path, bytes).expect("writes");
        SourceRequest::Path(path.clone())
    };
    let (media, began) = (media.clone(), Instant::now());
    // A task, so that a panic is told as the file's and ends nothing else.
    let task = tokio::spawn(async move { whole_path(&media, source).await });
    let ended = match tokio::time::timeout(HANG, task).await {
        Ok(ended) => ended.unwrap_or_else(|panic| Err(panic.to_string())),
        Err(_) => Err("hangs".to_owned()),
    };
    let slow = began.elapsed() > SLOW;
    if ended.is_err() {
        keep(story, bytes);
    }
    if !in_request {
        std::fs::remove_file(path).expect("removes");
    }
    match ended {
        Ok(word) => Ending { word, odd: None, slow },
        Err(what) => Ending { word: "odd".to_owned(), odd: Some(what), slow },
    }
}

/// Keeps a file for whoever looks into it.
fn keep(story: &str, bytes: &[u8]) {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("media-findings");
    std::fs::create_dir_all(&kept).expect("a folder");
    std::fs::write(kept.join(story), bytes).expect("writes");
}

#[expect(clippy::disallowed_methods, reason = "a switch of this test, for who runs it for longer")]
fn asked_for() -> usize {
    std::env::var("PARAVT_MUTATIONS").map_or(300, |text| text.parse().expect("PARAVT_MUTATIONS is a number"))
}

/// How many descriptors of each kind this process has open.
fn descriptors() -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").expect("Linux") {
        // The one of this very listing is gone again.
        let Ok(target) = std::fs::read_link(entry.expect("an entry").path()) else { continue };
        // `pipe:[241837]`: which one does not matter.
        let kind = target.to_string_lossy().split('[').next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// Processes whose parent is this one.
fn children() -> Vec<String> {
    let ours = std::process::id().to_string();
    let stats = std::fs::read_dir("/proc").expect("Linux").filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        // pid (name) state parent …; the name may hold anything.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
        (parent == ours).then_some(stat)
    });
    stats.collect()
}

/// Temporary files with our prefix.
fn temporary() -> Vec<PathBuf> {
    let ours = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("paravt-"));
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("a folder");
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(ours).collect()
}

/// In a process of its own, whose descriptors, children and temporary files are then no other test's.
#[test]
fn damaged_files_end_in_frames_or_errors_and_leave_nothing() {
    let temporary = tempfile::tempdir().expect("a folder");
    let done = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "media::hostile::in_a_process_of_its_own", "--ignored", "--nocapture", "--test-threads=1"])
        .env("TMPDIR", temporary.path())
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&done.stdout);
    println!("{said}");
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("1 passed"), "it has run: {said}");
    let left: Vec<_> = std::fs::read_dir(temporary.path()).expect("reads").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn in_a_process_of_its_own() {
    let (seeds, count) = (seeds(), asked_for());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starts");
    runtime.block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let media = started();
        // The seeds themselves are whole, or the rest says little.
        for (name, bytes) in &seeds {
            let ending = one(&media, folder.path(), &((*name).to_owned(), bytes.clone()), false).await;
            assert_eq!(ending.word, "frames", "{name}: {:?}", ending.odd);
        }
        media.idle().await;
        // From here on: what the runtime itself keeps open is now open.
        let before = (descriptors(), temporary());
        let (tally, odd) = run(&media, folder.path(), &seeds, count).await;
        println!("{count} damaged files: {tally:?}");
        tokio::time::timeout(HANG, media.idle()).await.expect("goes idle");
        assert_eq!(media.load().processes, 0);
        assert_eq!(children(), Vec::<String>::new(), "children left");
        assert_eq!((descriptors(), temporary()), before, "descriptors and temporary files left");
        assert!(odd.is_empty(), "{} odd endings:\n{}", odd.len(), odd.join("\n"));
        // Most are still read, and many refused: the damage is neither too little nor too much.
        let frames = tally.get("frames").copied().unwrap_or(0);
        assert!(count < 100 || (count / 10..count * 9 / 10).contains(&frames), "{tally:?}");
    });
}

fn started() -> Media {
    let mut config = made::default();
    config.decode_timeout_s = PROCESS_S;
    Media::new(config).expect("these tests need ffmpeg")
}

/// How many ended in which way, and what must not have.
async fn run(
    media: &Media,
    folder: &Path,
    seeds: &[(&str, Vec<u8>)],
    count: usize,
) -> (BTreeMap<String, usize>, Vec<String>) {
    let (mut tally, mut odd, mut slow) = (BTreeMap::<String, usize>::new(), Vec::new(), Vec::new());
    let all = futures::stream::iter(0..count).map(async |number| {
        let file = damaged(seeds, number);
        let ending = one(media, folder, &file, number % 2 == 1).await;
        (number, file.0, ending)
    });
    let mut endings = Box::pin(all.buffer_unordered(AT_A_TIME));
    let mut done = 0;
    while let Some((number, story, ending)) = endings.next().await {
        slow.extend(ending.slow.then_some(number));
        if let Some(what) = ending.odd {
            println!("{story}: {what}");
            odd.push(format!("{story}: {what}"));
        }
        *tally.entry(ending.word).or_default() += 1;
        done += 1;
        if done % 500 == 0 {
            println!("{done} of {count}: {tally:?}");
        }
    }
    // Told, not judged: the machine may still be busy.
    for number in slow {
        // One that remembers nothing of the first time.
        let (file, media, began) = (damaged(seeds, number), started(), Instant::now());
        if one(&media, folder, &file, false).await.slow {
            println!("{}: {} s", file.0, began.elapsed().as_secs());
            keep(&file.0, &file.1);
        }
        tokio::time::timeout(HANG, media.idle()).await.expect("goes idle");
    }
    (tally, odd)
}
