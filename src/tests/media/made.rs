//! Videos made with ffmpeg once and shared by later runs, and reading frames back.
//!
//! Nothing here knows what a test expects of the media room.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use paravt::config::{MediaConfig, OverviewSampling};
use paravt::types::{Clip, Frame, FrameSize};
use sha2::{Digest as _, Sha256};

/// One at a time: two tests of one run that need the same files then make them once.
static MAKING: Mutex<()> = Mutex::new(());

/// The configuration a server has by default.
pub(super) fn default() -> MediaConfig {
    MediaConfig::default()
}

/// The configuration of tests that state which frame is chosen, whatever is quicker by default.
pub(super) fn exact() -> MediaConfig {
    MediaConfig { overview_sampling: OverviewSampling::Exact, ..MediaConfig::default() }
}

/// The folder of what `make` puts into the folder it is given. `recipe` says all that the content depends on: while it stays
/// the same, the folder is made once, below the target directory.
pub(super) fn folder(recipe: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let hash = Sha256::digest(recipe).iter().take(8).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writes to a string");
        text
    });
    let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let made = below.join(format!("media-{hash}"));
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if !made.is_dir() {
        std::fs::create_dir_all(below).expect("a folder below the target directory");
        let making = tempfile::Builder::new().prefix("media-making-").tempdir_in(below).expect("a folder");
        make(making.path());
        // Complete or not there at all. Where another process was quicker, its files are as good.
        if let Err(error) = std::fs::rename(making.path(), &made) {
            assert!(made.is_dir(), "{}: {error}", made.display());
        } else {
            // It has moved away from what would be removed.
            let _gone = making.keep();
        }
    }
    made
}

/// Runs ffmpeg in a folder with blank-separated arguments.
pub(super) fn ffmpeg(folder: &Path, arguments: &str) {
    let done = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-y"])
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("these tests need ffmpeg");
    assert!(done.status.success(), "ffmpeg {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The filter that draws each frame's number, one bit a column of 16 pixels, at 256x64 from a source of 16x4. Drawn one
/// pixel a bit, because that filter is slow.
pub(super) const NUMBERED: &str =
    "geq=lum='16+219*mod(trunc(N/pow(2\\,X))\\,2)':cb=128:cr=128,scale=256:64:flags=neighbor";

/// The number that a frame of 256x64 shows.
pub(super) fn number(frame: &Frame) -> u64 {
    assert_eq!(frame.size, FrameSize { width: 256, height: 64 });
    let bit = |column: usize| u64::from(frame.rgb[3 * (32 * 256 + column * 16 + 8)] > 128) << column;
    (0..16).map(bit).sum()
}

/// The numbers of a clip's frames.
pub(super) fn numbers(clip: &Clip) -> Vec<u64> {
    clip.frames.iter().map(number).collect()
}

/// What is wrong with any clip, whatever it is of: pixels and size that do not fit, frames without time, out of order, or
/// more than asked for.
pub(super) fn malformed(clip: &Clip, most: usize) -> Option<String> {
    let Some(first) = clip.frames.first() else { return Some("a clip without frames".to_owned()) };
    let times: Vec<i64> = clip.times().iter().map(|time| time.micros()).collect();
    if times.len() != clip.frames.len() {
        return Some("frames without a time".to_owned());
    }
    if times.iter().any(|time| *time < 0) || times.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Some(format!("times {times:?}"));
    }
    if times.len() > most {
        return Some(format!("{} frames, {most} asked for", times.len()));
    }
    let bytes = 3 * first.size.width as usize * first.size.height as usize;
    let fit = |frame: &Frame| frame.size == first.size && frame.rgb.len() == bytes && bytes > 0;
    (!clip.frames.iter().all(fit)).then(|| format!("pixels that do not fit {:?}", first.size))
}
