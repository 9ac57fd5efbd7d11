//! The index and spliced containers against ffprobe and ffmpeg, on files ffmpeg makes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::*;

pub(super) const LIMITS: Limits = Limits { frames: 1_000_000, bytes: 64 << 20, scan: true };
const X264: &[&str] = &["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-threads", "1"];
const X265: &[&str] = &["-c:v", "libx265", "-preset", "ultrafast", "-pix_fmt", "yuv420p"];

/// A folder of files made by ffmpeg.
pub(super) struct Files(tempfile::TempDir);

impl Files {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    /// Runs ffmpeg with these arguments, which name the file last.
    pub(super) fn make(&self, arguments: &[&[&str]]) -> PathBuf {
        let arguments = arguments.concat();
        let status = Command::new("ffmpeg")
            .current_dir(self.0.path())
            .args(["-nostdin", "-v", "error", "-y"])
            .args(&arguments)
            .status()
            .expect("ffmpeg runs");
        assert!(status.success(), "{arguments:?}");
        self.0.path().join(arguments.last().expect("a name"))
    }

    /// Small moving pictures through these arguments.
    pub(super) fn pictures(&self, rate: &str, seconds: &str, arguments: &[&[&str]]) -> PathBuf {
        let source = format!("testsrc2=s=96x64:r={rate}");
        self.make(&[&["-f", "lavfi", "-i", &source, "-t", seconds], &arguments.concat()])
    }
}

pub(super) fn index(path: &Path, limits: &Limits) -> Result<Index, Unindexed> {
    let mut file = File::open(path).expect("the file");
    let bytes = file.metadata().expect("its size").len();
    Index::read(&mut file, bytes, limits)
}

pub(super) fn content(path: &Path) -> Content {
    let file = File::open(path).expect("the file");
    let bytes = file.metadata().expect("its size").len();
    Content::file("test".to_owned(), bytes, file, None)
}

/// A packet as ffprobe tells of it: shown at (microseconds), key, not to be shown, first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) time: i64,
    pub(super) key: bool,
    pub(super) discard: bool,
    pub(super) at: u64,
}

pub(super) fn packets(path: &Path, stream: u32) -> Vec<Packet> {
    let output = Command::new("ffprobe")
        .args(["-v", "error", "-select_streams", &stream.to_string(), "-of", "json"])
        .args(["-show_entries", "stream=time_base:packet=pts,flags,pos"])
        .arg(path)
        .output()
        .expect("ffprobe runs");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (num, den) =
        told["streams"][0]["time_base"].as_str().expect("a time base").split_once('/').expect("a fraction");
    let (num, den): (u64, u64) = (num.parse().expect("a number"), den.parse().expect("a number"));
    let packet = |packet: &serde_json::Value| {
        let flags = packet["flags"].as_str().expect("flags");
        Packet {
            time: samples::rescale(packet["pts"].as_i64()?, 1_000_000 * num, den),
            key: flags.contains('K'),
            discard: flags.contains('D'),
            at: packet["pos"].as_str().map_or(0, |at| at.parse().expect("a place")),
        }
        .into()
    };
    told["packets"].as_array().expect("packets").iter().filter_map(packet).collect()
}

/// Frames as ffmpeg decodes them: shown at (microseconds), and a sum over their pixels.
fn frames(arguments: &[&str], input: Stdio) -> Vec<(i64, String)> {
    let output = Command::new("ffmpeg")
        .args(["-hide_banner", "-v", "info", "-nostats", "-copyts"])
        .args(arguments)
        .args(["-vf", "showinfo", "-fps_mode", "passthrough", "-f", "null", "-"])
        .stdin(input)
        .output()
        .expect("ffmpeg runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let field = |line: &str, name: &str| {
        let rest = line.split(name).nth(1)?.trim_start();
        Some(rest.split(|c: char| c.is_whitespace() || c == ',').next().unwrap_or_default().to_owned())
    };
    let base = text.lines().find_map(|line| field(line, "config in time_base:")).unwrap_or_else(|| panic!("{text}"));
    let (num, den) = base.split_once('/').expect("a fraction");
    let (num, den): (u64, u64) = (num.parse().expect("a number"), den.parse().expect("a number"));
    let frame = |line: &str| {
        let pts: i64 = field(line, " pts:")?.parse().ok()?;
        Some((samples::rescale(pts, 1_000_000 * num, den), field(line, "checksum:")?))
    };
    text.lines().filter(|line| line.contains("Parsed_showinfo")).filter_map(frame).collect()
}

fn whole(path: &Path, stream: u32) -> Vec<(i64, String)> {
    let map = format!("0:{stream}");
    frames(&["-noautorotate", "-i", path.to_str().expect("a path"), "-map", &map], Stdio::null())
}

async fn spliced(path: &Path, index: &Index, cuts: &[Cut]) -> Vec<(i64, String)> {
    let mut bytes = Vec::new();
    index.splice(&content(path), cuts, &mut bytes).await.expect("splices");
    let name = path.with_extension("spliced");
    std::fs::write(&name, &bytes).expect("writes");
    let input = File::open(&name).expect("the file");
    // Else ffmpeg drops H.264 pictures that still wait at the end where decoding began at no IDR picture.
    let arguments = [
        "-flags",
        "+output_corrupt",
        "-protocol_whitelist",
        "pipe",
        "-f",
        index.format(),
        "-noautorotate",
        "-i",
        "pipe:0",
        "-map",
        "0:0",
    ];
    frames(&arguments, input.into())
}

/// Times, key frames and their places are those ffprobe tells.
pub(super) fn agrees(path: &Path) -> Index {
    let index = index(path, &LIMITS).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let packets = packets(path, index.stream);
    let first_key = packets.iter().find(|packet| packet.key).expect("a key frame").time;
    let leading = packets.iter().skip(1).position(|packet| packet.key).unwrap_or(packets.len());
    let shown = |(place, packet): (usize, &Packet)| {
        (!packet.discard && (place > leading || packet.time >= first_key)).then_some(packet.time)
    };
    let mut times: Vec<i64> = packets.iter().enumerate().filter_map(shown).collect();
    times.sort_unstable();
    times.dedup();
    assert_eq!(index.times.as_deref(), Some(times.as_slice()), "{}", path.display());
    let groups: Vec<(i64, u64)> = index.groups.iter().map(|group| (group.time, group.bytes.start)).collect();
    let shown_keys = packets.iter().filter(|packet| packet.key && !packet.discard);
    let keys: Vec<(i64, u64)> = shown_keys.map(|packet| (packet.time, packet.at)).collect();
    // A key frame that is itself hidden is a group's when frames after it are not.
    let hidden = packets.iter().find(|packet| packet.key).is_some_and(|packet| packet.discard);
    let groups = if hidden { &groups[groups.len().saturating_sub(keys.len())..] } else { &groups[..] };
    // ffprobe tells where a block's body begins, behind the header that is copied as well.
    let header =
        |at: u64, told: u64| if index.format() == "mov" { at == told } else { (2..=12).contains(&(told - at)) };
    let same = |(ours, told): (&(i64, u64), &(i64, u64))| ours.0 == told.0 && header(ours.1, told.1);
    assert!(groups.len() == keys.len() && groups.iter().zip(&keys).all(same), "{groups:?} {keys:?}");
    index
}

/// Cuts of several kinds decode to the very frames of the whole file, and to no other frames that are shown.
async fn cuts_decode(path: &Path, exact_after_key: bool) {
    let index = agrees(path);
    let all = whole(path, index.stream);
    let times = index.times.clone().expect("times");
    let at = |time: i64| all.iter().find(|(frame, _)| *frame == time);
    assert!(times.iter().all(|time| at(*time).is_some()), "{}: {times:?} {all:?}", path.display());
    let group = |time: i64| index.groups.partition_point(|group| group.time <= time).saturating_sub(1);
    let keys: Vec<i64> = index.groups.iter().map(|group| group.time).filter(|time| times.contains(time)).collect();
    let every: Vec<i64> = times.iter().copied().step_by(3).collect();
    let mut plans: Vec<Vec<Cut>> =
        vec![keys.iter().map(|time| Cut { group: group(*time), frames: vec![*time] }).collect()];
    plans.push(vec![Cut { group: group(every[0]), frames: every }]);
    // One frame late in every second group, and each frame alone of the first few groups.
    let late = |number: usize| {
        let end = index.groups.get(number + 1).map_or(i64::MAX, |group| group.time);
        let last = times.iter().rev().find(|time| **time < end).copied()?;
        Some(Cut { group: number, frames: vec![last] })
    };
    plans.push((0..index.groups.len()).step_by(2).filter_map(late).collect());
    for time in times.iter().skip(times.len() / 3).take(7) {
        plans.push(vec![Cut { group: group(*time), frames: vec![*time] }]);
    }
    for cuts in plans {
        let decoded = spliced(path, &index, &cuts).await;
        let wanted: Vec<i64> = cuts.iter().flat_map(|cut| cut.frames.clone()).collect();
        for time in wanted {
            let frame = decoded.iter().find(|(frame, _)| *frame == time);
            assert_eq!(frame, at(time), "{}: {cuts:?} gave {decoded:?}", path.display());
        }
        let fed: u64 = cuts.iter().map(|cut| index.frames_of(cut)).sum();
        assert!(decoded.len() as u64 <= fed, "{}: {cuts:?}", path.display());
        if exact_after_key {
            assert!(decoded.iter().all(|frame| all.contains(frame)), "{}: {cuts:?}", path.display());
        }
    }
}

#[tokio::test]
async fn h264_with_reordering() {
    let files = Files::new();
    let plain = files.pictures("25", "4", &[X264, &["-bf", "3", "-g", "12", "plain.mp4"]]);
    cuts_decode(&plain, true).await;
    let mov = files.pictures("30000/1001", "3", &[X264, &["-g", "10", "-timecode", "01:00:00:00", "timecode.mov"]]);
    let index = agrees(&mov);
    assert!((index.rate.expect("a rate") - 30_000.0 / 1001.0).abs() < 1e-9);
    assert_eq!(index.length, Some(3_003_000));
    cuts_decode(&mov, true).await;
}

#[tokio::test]
async fn open_groups() {
    let files = Files::new();
    let open = ["-x264-params", "open-gop=1:scenecut=0", "-bf", "3", "-g", "10"];
    let h264 = files.pictures("25", "3", &[X264, &open, &["open.mp4"]]);
    let index = agrees(&h264);
    assert!(index.groups.len() > 3);
    let closed = index.is_closed(&content(&h264), 0).await.expect("reads");
    let opened = index.is_closed(&content(&h264), 1).await.expect("reads");
    assert!(closed && !opened, "only the first begins with an IDR picture");
    // Each group from a fresh decoder, since these are not closed.
    let all = whole(&h264, index.stream);
    let times = index.times.clone().expect("times");
    for (number, group) in index.groups.iter().enumerate().skip(1).step_by(2) {
        let frames: Vec<i64> = times.iter().copied().filter(|time| *time >= group.time).take(9).collect();
        let decoded = spliced(&h264, &index, &[Cut { group: number, frames: frames.clone() }]).await;
        assert!(frames.iter().all(|time| decoded.iter().any(|(frame, _)| frame == time)), "{frames:?} {decoded:?}");
        assert!(decoded.iter().all(|frame| all.contains(frame)), "{decoded:?}");
    }
    let open = ["-x265-params", "log-level=none:open-gop=1:scenecut=0:bframes=3:keyint=10:min-keyint=10"];
    let hevc = files.pictures("25", "3", &[X265, &open, &["-tag:v", "hvc1", "open_hevc.mp4"]]);
    cuts_decode(&hevc, true).await;
}

#[tokio::test]
async fn other_codecs() {
    let files = Files::new();
    cuts_decode(&files.pictures("25", "2", &[&["-c:v", "mpeg4", "-bf", "2", "-g", "10", "mpeg4.mp4"]]), true).await;
    cuts_decode(&files.pictures("25", "1", &[&["-c:v", "mjpeg", "-pix_fmt", "yuvj420p", "mjpeg.mov"]]), true).await;
    cuts_decode(&files.pictures("25", "1", &[&["-c:v", "libvpx-vp9", "-cpu-used", "8", "-g", "8", "vp9.mp4"]]), true)
        .await;
}

#[tokio::test]
async fn edit_lists_and_fragments() {
    let files = Files::new();
    let base = files.pictures("25", "4", &[X264, &["-g", "60", "base.mp4"]]);
    let base = base.to_str().expect("a path");
    let copy = ["-c", "copy"];
    let edited = files.make(&[&["-ss", "1.3", "-i", base], &copy, &["-avoid_negative_ts", "disabled", "edited.mp4"]]);
    assert_eq!(agrees(&edited).times.as_ref().map(|times| times.len()), Some(67));
    cuts_decode(&edited, false).await;
    let late = files.make(&[&["-itsoffset", "1.5", "-i", base], &copy, &["late.mp4"]]);
    cuts_decode(&late, true).await;
    for (name, flags) in [
        ("empty.mp4", "frag_keyframe+empty_moov"),
        ("delayed.mp4", "frag_every_frame+delay_moov"),
        ("based.mp4", "frag_keyframe+empty_moov+default_base_moof"),
        ("dash.mp4", "dash+global_sidx"),
        ("first.mp4", "frag_keyframe"),
        ("negative.mp4", "negative_cts_offsets"),
        ("negative_fragments.mp4", "negative_cts_offsets+frag_keyframe+empty_moov"),
    ] {
        cuts_decode(&files.make(&[&["-i", base], &copy, &["-movflags", flags, name]]), true).await;
    }
}

#[tokio::test]
async fn rates_that_vary() {
    let files = Files::new();
    let select = ["-vf", "select='not(between(mod(n,50),10,34))'", "-fps_mode", "vfr"];
    cuts_decode(&files.pictures("25", "6", &[&select, X264, &["-g", "20", "vfr.mp4"]]), true).await;
}

#[tokio::test]
async fn matroska() {
    let files = Files::new();
    let h264 = files.pictures("30000/1001", "3", &[X264, &["-bf", "3", "-g", "12", "h264.mkv"]]);
    cuts_decode(&h264, true).await;
    let told = agrees(&h264);
    assert!((told.rate.expect("a rate") - 30_000.0 / 1001.0).abs() < 1e-9);
    let open = ["-x265-params", "log-level=none:open-gop=1:scenecut=0:bframes=3:keyint=10:min-keyint=10"];
    cuts_decode(&files.pictures("25", "3", &[X265, &open, &["hevc.mkv"]]), true).await;
    cuts_decode(&files.pictures("25", "1", &[&["-c:v", "mjpeg", "-pix_fmt", "yuvj420p", "mjpeg.mkv"]]), true).await;
    cuts_decode(&files.pictures("25", "1", &[&["-c:v", "libvpx-vp9", "-cpu-used", "8", "-g", "8", "vp9.webm"]]), true)
        .await;
    let vp8 = ["-c:v", "libvpx", "-auto-alt-ref", "1", "-lag-in-frames", "16", "-g", "20", "vp8.webm"];
    cuts_decode(&files.pictures("25", "4", &[&vp8]), true).await;
}

#[test]
fn live_webm_has_its_length_from_its_frames() {
    let files = Files::new();
    let live =
        files.pictures("25", "4", &[&["-c:v", "libvpx", "-b:v", "200k", "-f", "webm", "-live", "1", "live.webm"]]);
    let index = agrees(&live);
    assert_eq!((index.length, index.times.map(|times| times.len())), (Some(4_000_000), Some(100)));
    let unscanned = Limits { scan: false, ..LIMITS };
    assert!(super::tests::index(&live, &unscanned).is_err(), "no cues");
}

#[tokio::test]
async fn matroska_by_its_cues() {
    let files = Files::new();
    let sound = ["-f", "lavfi", "-i", "sine=r=48000", "-c:a", "flac"];
    let open = ["-x264-params", "open-gop=1:scenecut=0", "-bf", "3", "-g", "10", "-cluster_time_limit", "900"];
    let path = files.pictures("25", "4", &[&sound, X264, &open, &["-shortest", "cued.mkv"]]);
    let known = agrees(&path);
    let index = index(&path, &Limits { scan: false, ..LIMITS }).expect("cues");
    assert!(index.times.is_none() && index.rate == Some(25.0));
    let time = |group: &Group| group.time;
    assert_eq!(index.groups.iter().map(time).collect::<Vec<_>>(), known.groups.iter().map(time).collect::<Vec<_>>());
    for (cued, known) in index.groups.iter().zip(&known.groups) {
        assert!(cued.bytes.start <= known.bytes.start && cued.bytes.end > known.bytes.start);
    }
    let all = whole(&path, index.stream);
    // A key frame alone, one in a group, a leading picture of the next, and one between two frames.
    for (asked, shown) in [(400_000, 400_000), (520_000, 520_000), (760_000, 760_000), (530_000, 520_000)] {
        let cut = Cut { group: 1, frames: vec![asked] };
        let decoded = spliced(&path, &index, std::slice::from_ref(&cut)).await;
        let at = |frames: &[(i64, String)]| frames.iter().find(|(frame, _)| *frame == shown).cloned();
        assert!(at(&all).is_some() && at(&decoded) == at(&all), "{asked}: {decoded:?}");
        assert_eq!(decoded.len() == 1, asked == 400_000, "only a key frame is fed alone");
        assert_eq!(index.frames_of(&cut) == 1, asked == 400_000);
    }
    let content = content(&path);
    assert!(index.is_closed(&content, 0).await.expect("reads") && !index.is_closed(&content, 1).await.expect("reads"));
    assert!(index.check(&content).await.expect("reads"));
    let mut wrong = index;
    wrong.groups[0].time += 1;
    assert!(!wrong.check(&content).await.expect("reads"), "cues that are not to the tick");
    let mut out = Vec::new();
    wrong.splice(&content, &[Cut { group: 0, frames: vec![40_000] }], &mut out).await.expect("splices");
    let Container::Matroska(segment) = &wrong.container else { panic!("Matroska") };
    assert_eq!(out, segment.head, "what is not found is left out");

    // Without the duration of a frame, cues are not enough.
    let mut bytes = std::fs::read(&path).expect("reads");
    let duration = bytes.windows(4).position(|four| four == [0x23, 0xE3, 0x83, 0x84]).expect("a duration");
    bytes[duration..][..2].copy_from_slice(&[0xEC, 0x86]);
    let read = |scan| {
        let limits = Limits { scan, ..LIMITS };
        Index::read(&mut std::io::Cursor::new(&bytes), bytes.len() as u64, &limits).map(|index| index.rate.is_some())
    };
    assert!(read(true).expect("its blocks") && read(false).is_err());
}

/// Blanks a box or an element's number.
fn renamed(path: &Path, from: &[u8], to: &[u8], name: &str) -> PathBuf {
    let mut bytes = std::fs::read(path).expect("reads");
    let place = bytes.windows(from.len()).position(|part| part == from).expect("something to rename");
    bytes[place..][..to.len()].copy_from_slice(to);
    let path = path.with_file_name(name);
    std::fs::write(&path, bytes).expect("writes");
    path
}

#[tokio::test]
async fn key_frames_that_are_none_are_noticed() {
    let files = Files::new();
    let refresh = ["-x264-params", "intra-refresh=1:keyint=12:scenecut=0:bframes=0"];
    let refreshed = files.pictures("25", "3", &[X264, &refresh, &["refreshed.mp4"]]);
    let refreshed_blocks = files.pictures("25", "3", &[X264, &refresh, &["refreshed.mkv"]]);
    let plain = files.pictures("25", "3", &[X264, &["-g", "12", "plain.mp4"]]);
    // Without a list of key frames, every picture is said to be one.
    let all = renamed(&plain, b"stss", b"free", "all.mp4");
    let hevc = files.pictures("25", "1", &[X265, &["-x265-params", "log-level=none:keyint=10", "hevc.mp4"]]);
    let all_hevc = renamed(&hevc, b"stss", b"free", "all_hevc.mp4");
    for (path, holds) in [
        (&refreshed, false),
        (&refreshed_blocks, false),
        (&plain, true),
        (&all, false),
        (&hevc, true),
        (&all_hevc, false),
    ] {
        let index = index(path, &LIMITS).expect("an index");
        assert!(index.groups.len() > 2, "{}", path.display());
        assert_eq!(index.check(&content(path)).await.expect("reads"), holds, "{}", path.display());
    }
    // The first begins as it should, the second does not: its frames are missing, not wrong.
    let index = index(&refreshed, &LIMITS).expect("an index");
    let cuts = [0, 1].map(|group| Cut { group, frames: vec![index.groups[group].time] });
    let decoded = spliced(&refreshed, &index, &cuts).await;
    assert_eq!(decoded.iter().map(|(time, _)| *time).collect::<Vec<_>>(), [cuts[0].frames[0]]);
}

#[tokio::test]
async fn key_frames_may_be_far_apart() {
    let files = Files::new();
    let apart = ["-g", "5", "-bf", "0", "-video_track_timescale", "10000000", "apart.mp4"];
    cuts_decode(&files.pictures("1/100", "1600", &[X264, &apart]), true).await;
}

#[test]
fn a_file_on_the_web_is_not_asked_for_in_thousands_of_pieces() {
    use std::io::{SeekFrom, Write as _};
    let mut file = tempfile::tempfile().expect("a file");
    let (size, count) = (100_000_u32, 1200_u32);
    for number in 0..count {
        file.seek(SeekFrom::Start(u64::from(number * size))).expect("seeks");
        file.write_all(&[&size.to_be_bytes()[..], b"free"].concat()).expect("writes");
    }
    let length = u64::from(count * size);
    file.set_len(length).expect("grows");
    let read = |scan, file: &mut File| Index::read(file, length, &Limits { scan, ..LIMITS }).err();
    assert_eq!(read(false, &mut file), Some(Unindexed::Because("too many places to read".to_owned())));
    assert_eq!(read(true, &mut file), Some(Unindexed::Because("no movie box".to_owned())));
}

#[test]
fn damage_in_the_middle_is_left_to_ffmpeg() {
    let files = Files::new();
    let path = files.pictures("25", "2", &[X264, &["-g", "5", "damaged.mkv"]]);
    let whole = std::fs::read(&path).expect("reads");
    let read = |bytes: &[u8]| Index::read(&mut std::io::Cursor::new(bytes), bytes.len() as u64, &LIMITS).map(|_| ());
    assert_eq!(read(&whole[..whole.len() / 2]), Ok(()), "a file that is cut off");
    let mut damaged = whole;
    let Container::Matroska(segment) = index(&path, &LIMITS).expect("an index").container else { panic!("Matroska") };
    let middle = segment.samples.expect("samples").all[20].at as usize;
    damaged[middle..][..100].fill(0);
    assert_eq!(read(&damaged), Err(Unindexed::Because("what is no element".to_owned())));
}

/// Small valid files of every kind there is code for.
fn seeds() -> Vec<Vec<u8>> {
    let files = Files::new();
    let x264 = [X264, &["-g", "4", "-bf", "2"]].concat();
    let base = files.pictures("25", "0.6", &[&x264, &["seed.mp4"]]);
    let base = base.to_str().expect("a path").to_owned();
    let copy = |rest: &[&str]| files.make(&[&["-i", &base, "-c", "copy"], rest]);
    let sound = ["-f", "lavfi", "-i", "sine=r=8000", "-c:a", "flac", "-shortest"];
    let made = [
        base.clone().into(),
        copy(&["-movflags", "frag_keyframe+empty_moov", "fragments.mp4"]),
        copy(&["-movflags", "dash+delay_moov", "dash.mov"]),
        copy(&["copy.mkv"]),
        copy(&["-f", "matroska", "-live", "1", "live.mkv"]),
        files.pictures("25", "0.4", &[&sound, &["-c:v", "libvpx", "sound.mkv"]]),
        files.pictures("25", "0.4", &[X265, &["-x265-params", "log-level=none:keyint=4", "hevc.mov"]]),
    ];
    made.iter().map(|path| std::fs::read(path).expect("reads")).collect()
}

/// Reads an index and splices what it says there is. Neither may panic, whatever the bytes.
async fn survives(bytes: &[u8], scan: bool) {
    let limits = Limits { frames: 1000, bytes: 256 << 10, scan };
    let length = bytes.len() as u64;
    let Ok(index) = Index::read(&mut std::io::Cursor::new(bytes), length, &limits) else { return };
    assert!(!index.groups.is_empty() && index.bytes() < 1 << 20);
    assert!(index.groups.windows(2).all(|pair| pair[0].time < pair[1].time));
    assert!(index.times.iter().all(|times| times.len() <= 1000 && times.windows(2).all(|pair| pair[0] < pair[1])));
    let mut file = tempfile::tempfile().expect("a file");
    std::io::Write::write_all(&mut file, bytes).expect("writes");
    let content = Content::file("test".to_owned(), length, file, None);
    let times = index.times.clone().unwrap_or_default();
    let keys = index.groups.iter().enumerate();
    let keys = keys.map(|(group, key)| Cut { group, frames: vec![key.time] }).collect();
    let all = vec![Cut { group: 0, frames: times.iter().copied().step_by(2).collect() }];
    let between = vec![Cut { group: index.groups.len() - 1, frames: vec![index.groups[0].time + 1, i64::MAX] }];
    let _ = index.check(&content).await;
    for cuts in [keys, all, between] {
        let mut out = Vec::new();
        let _ = index.splice(&content, &cuts, &mut out).await;
        // Several pictures may lie in the same bytes.
        assert!(out.len() < 1000 * (bytes.len() + 1000), "{} of {}", out.len(), bytes.len());
        for cut in &cuts {
            index.frames_of(cut);
            let _ = index.is_closed(&content, cut.group).await;
        }
    }
}

#[test]
fn whatever_the_bytes_nothing_panics() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    let seeds = seeds();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for seed in &seeds {
        for scan in [true, false] {
            runtime.block_on(survives(seed, scan));
        }
    }
    // Mostly where headers and tables are: near the start and the end.
    let place = prop_oneof![0.0..0.05_f64, 0.0..1.0, 0.8..1.0_f64];
    let value = prop_oneof![
        Just(vec![0xFF; 4]),
        Just(vec![0; 4]),
        Just(vec![0x7F, 0xFF, 0xFF, 0xFF]),
        Just(vec![0, 0, 0, 1]),
        prop::collection::vec(any::<u8>(), 1..9)
    ];
    let change = (place, value, 0..4_u8);
    let mut runner = TestRunner::new(Config { cases: 256, failure_persistence: None, ..Config::default() });
    let changed = (0..seeds.len(), prop::collection::vec(change, 1..6), any::<bool>());
    let outcome = runner.run(&changed, |(seed, changes, scan)| {
        let mut bytes = seeds[seed].clone();
        for (place, value, how) in changes {
            let at = (place * bytes.len() as f64) as usize;
            match how {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(at..at, value)),
                _ => bytes.iter_mut().skip(at).zip(value).for_each(|(byte, value)| *byte = value),
            }
        }
        runtime.block_on(survives(&bytes, scan));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn counts_without_bytes_behind_them_take_no_memory() {
    let files = Files::new();
    let path = files.pictures("25", "0.4", &[&["-c:v", "mjpeg", "-pix_fmt", "yuvj420p", "counts.mov"]]);
    let bytes = std::fs::read(path).expect("reads");
    let at = |kind: &[u8]| bytes.windows(4).position(|four| four == kind).expect("a table") + 4;
    let mut many = bytes.clone();
    many[at(b"stsz") + 4..][..8].copy_from_slice(&[0, 0, 0, 9, 0xFF, 0xFF, 0xFF, 0xFF]);
    let mut runs = bytes.clone();
    runs[at(b"stts") + 4..][..4].copy_from_slice(&[0xFF; 4]);
    for bytes in [many, runs] {
        let length = bytes.len() as u64;
        let read = |frames| Index::read(&mut std::io::Cursor::new(&bytes), length, &Limits { frames, ..LIMITS }).err();
        assert_eq!(read(1000), Some(Unindexed::TooManyFrames));
        assert_eq!(read(1 << 30), Some(Unindexed::Because("more frames than bytes".to_owned())));
    }
    let few = Limits { bytes: 100, ..LIMITS };
    assert_eq!(
        Index::read(&mut std::io::Cursor::new(&bytes), bytes.len() as u64, &few).err(),
        Some(Unindexed::Because("too much to read".to_owned()))
    );
}

#[tokio::test]
async fn a_closed_pipe_ends_it_quietly() {
    let files = Files::new();
    let path = files.pictures("25", "1", &[X264, &["closed.mp4"]]);
    let index = index(&path, &LIMITS).expect("an index");
    let (reader, mut writer) = tokio::io::duplex(64);
    drop(reader);
    index.splice(&content(&path), &[Cut { group: 0, frames: vec![0] }], &mut writer).await.expect("ends");
}

#[tokio::test]
async fn a_file_that_is_cut_off_gives_what_is_there() {
    let files = Files::new();
    let path = files.pictures("25", "2", &[X264, &["-g", "10", "-movflags", "+faststart", "whole.mp4"]]);
    let complete = index(&path, &LIMITS).expect("an index");
    let times = complete.times.clone().expect("times");
    let bytes = std::fs::read(&path).expect("reads");
    let cut = path.with_file_name("cut.mp4");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("writes");
    let index = index(&cut, &LIMITS).expect("an index");
    assert_eq!(index.times, complete.times, "those that are missing are known");
    let decoded = spliced(&cut, &index, &[Cut { group: 0, frames: times.to_vec() }]).await;
    assert!(!decoded.is_empty() && decoded.len() < times.len());
}

/// A file whose blocks leave out the first byte of every picture, as some writers have it (RFC 9559 5.1.4.1.31.6).
#[tokio::test]
async fn bytes_all_pictures_begin_with_may_be_left_out() {
    let files = Files::new();
    let path = files.pictures("25", "1", &[X264, &["-g", "10", "-bf", "2", "stripped.mkv"]]);
    let Container::Matroska(segment) = index(&path, &LIMITS).expect("an index").container else { panic!("Matroska") };
    let bytes = std::fs::read(&path).expect("reads");
    let place = bytes.windows(3).position(|three| three == [0xAE, 0x01, 0x00]).expect("a track");
    let size = ebml::Element::read(&bytes[place..]).expect("a track").size.expect("a size") as usize;
    let encodings = [0x6D, 0x80, 0x8A, 0x62, 0x40, 0x87, 0x50, 0x34, 0x84, 0x42, 0x54, 0x81, 3];
    let settings = [0x42, 0x55, 0x81, 0];
    let mut track = bytes[place + 9..place + 9 + size].to_vec();
    track.extend(&encodings[..2]);
    track.extend([0x80 | 14, 0x62, 0x40, 0x80 | 11, 0x50, 0x34, 0x80 | 8]);
    track.extend(&encodings[9..]);
    track.extend(settings);
    let info = bytes.windows(4).rposition(|four| four == [0x15, 0x49, 0xA9, 0x66]).expect("Info");
    let about = ebml::Element::read(&bytes[info..]).expect("Info");
    let about = &bytes[info + about.header as usize..][..about.size.expect("a size") as usize];
    let header = ebml::Element::read(&bytes).expect("a header");
    let mut out =
        matroska::head_of(bytes[..(header.header + header.size.expect("a size")) as usize].to_vec(), about, &track);
    for sample in &segment.samples.expect("samples").all {
        let block = &bytes[sample.at as usize..sample.end() as usize];
        let picture = blocks::picture_in(block).expect("a picture");
        let body = [
            &block[ebml::Element::read(block).expect("a block").header as usize..picture.start],
            &block[picture.start + 1..],
        ];
        assert_eq!((block[0], block[picture.start]), (0xA3, 0));
        out.extend(matroska::cluster(sample.decode as u64, body.concat().len() as u64 + 9));
        ebml::write_header(&mut out, 0xA3, Some(body.concat().len() as u64));
        out.extend(body.concat());
    }
    std::fs::write(&path, out).expect("writes");
    cuts_decode(&path, true).await;
    let index = index(&path, &LIMITS).expect("an index");
    assert!(index.is_closed(&content(&path), 1).await.expect("reads"), "an IDR picture is seen through it");
}
