//! Limits hold before anything is decoded: small files that claim much are refused by what they claim.
//!
//! Whether a decoder was started is told by programs in ffmpeg's place that leave a mark and then become ffmpeg.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use paravt::media::{Media, MediaError, SourceRequest};

use super::made;
use super::{AS_IT_IS, OVERVIEW};

/// Media whose every run of ffmpeg is seen.
struct Watched {
    folder: tempfile::TempDir,
    media: Media,
}

impl Watched {
    fn new(change: impl FnOnce(&mut paravt::config::MediaConfig)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let marks = folder.path().join("marks");
        let programs = folder.path().join("programs");
        for new in [&marks, &programs] {
            std::fs::create_dir(new).expect("a folder");
        }
        for name in ["ffmpeg", "ffprobe"] {
            let real = on_path(name);
            let mark = marks.join(name).display().to_string();
            // An empty file, because children may not be allowed to write. Asking for the version is not decoding.
            let script = format!(
                "#!/bin/sh\ncase \"$*\" in *-version*) ;; *) : > '{mark}'.$$ ;; esac\nexec '{}' \"$@\"\n",
                real.display()
            );
            let program = programs.join(name);
            std::fs::write(&program, script).expect("writes");
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("sets");
        }
        let mut config = made::default();
        config.ffmpeg_directory = Some(programs);
        change(&mut config);
        Self { folder, media: Media::new(config).expect("these tests need ffmpeg") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A small video, with its bytes changed.
    fn edited(&self, name: &str, arguments: &str, edit: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
        made::ffmpeg(self.folder.path(), &format!("{arguments} {name}"));
        let path = self.path(name);
        let mut bytes = std::fs::read(&path).expect("reads");
        edit(&mut bytes);
        assert!(bytes.len() < 100_000, "{name} is small");
        std::fs::write(&path, bytes).expect("writes");
        path
    }

    /// Decoders started since the last look.
    fn decoders(&self) -> usize {
        let marks = std::fs::read_dir(self.path("marks")).expect("reads").map(|mark| mark.expect("reads").path());
        let is_decoder = |mark: &PathBuf| mark.file_stem().is_some_and(|stem| stem == "ffmpeg");
        marks.filter(is_decoder).inspect(|mark| std::fs::remove_file(mark).expect("removes")).count()
    }

    /// Opens what must be refused for what it claims, with no decoder started. What is wrong about that, if anything.
    async fn refused(&self, path: &Path, fits: fn(&MediaError) -> bool) -> Option<String> {
        let name = path.file_name().unwrap_or_default().display().to_string();
        let opened = self.media.open(&SourceRequest::Path(path.to_owned())).await;
        self.media.idle().await;
        match (opened, self.decoders()) {
            (Ok(video), _) => Some(format!("{name} is taken: {:?}", video.info())),
            (Err(error), _) if !fits(&error) => Some(format!("{name}: {error:?}")),
            (Err(_), 0) => None,
            (Err(error), decoders) => {
                Some(format!("{name} was decoded {decoders} times before it was refused: {error}"))
            }
        }
    }
}

const fn is_too_large(error: &MediaError) -> bool {
    matches!(error, MediaError::TooLarge(_))
}

/// Where a size is beyond what the prober itself takes, it may report no size at all.
const fn is_too_large_or_broken(error: &MediaError) -> bool {
    matches!(error, MediaError::TooLarge(_) | MediaError::NotVideo(_))
}

fn assert_none(wrong: Vec<Option<String>>) {
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[expect(clippy::disallowed_methods, reason = "the system's search path, no setting of ours")]
pub(super) fn on_path(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("a path");
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file()).expect(name)
}

/// Where a box of an MP4 starts: its size, then its name.
fn mp4_box(bytes: &[u8], name: &str) -> usize {
    let at = bytes.windows(4).position(|four| four == name.as_bytes()).expect(name);
    at.checked_sub(4).expect("a size before it")
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

const SMALL: &str = "-f lavfi -i testsrc2=s=64x48:r=25 -t 1 -c:v libx264 -preset ultrafast -pix_fmt yuv420p";

#[tokio::test]
async fn a_video_within_the_limits_is_decoded_and_seen() {
    let watched = Watched::new(|_| ());
    let path = watched.edited("fine.mp4", SMALL, |_| ());
    let video = watched.media.open(&SourceRequest::Path(path)).await.expect("opens");
    watched.media.overview(&video, &OVERVIEW, None, None, &AS_IT_IS).await.expect("decodes");
    assert!(watched.decoders() > 0);
}

#[tokio::test]
async fn a_picture_that_claims_more_pixels_than_are_allowed() {
    let watched = Watched::new(|_| ());
    let mut wrong = Vec::new();
    // 64 million pixels are more than are allowed here, 900 million more than ffmpeg itself takes.
    for (side, fits) in [(8_000_u16, is_too_large as fn(&MediaError) -> bool), (30_000, is_too_large_or_broken)] {
        // A codec whose pictures have the size that the container says.
        let rle = "-f lavfi -i testsrc2=s=64x48:r=5 -t 1 -c:v qtrle";
        let path = watched.edited(&format!("claims_{side}.mov"), rle, |bytes| {
            let entry = mp4_box(bytes, "rle ");
            bytes[entry + 32..entry + 36].copy_from_slice(&[side.to_be_bytes(), side.to_be_bytes()].concat());
        });
        wrong.push(watched.refused(&path, fits).await);
        // The screen of a GIF, of which each picture fills a corner.
        let gif = "-f lavfi -i testsrc2=s=64x48:r=5 -t 1";
        let path = watched.edited(&format!("claims_{side}.gif"), gif, |bytes| {
            bytes[6..10].copy_from_slice(&[side.to_le_bytes(), side.to_le_bytes()].concat());
        });
        wrong.push(watched.refused(&path, fits).await);
    }
    assert_none(wrong);
}

/// The container says 64x48, and only the picture itself says more.
#[tokio::test]
async fn a_picture_that_turns_out_larger_than_the_container_says() {
    let watched = Watched::new(|_| ());
    let png = "-f lavfi -i testsrc2=s=64x48:r=5 -t 1 -c:v png";
    let path = watched.edited("bomb.mov", png, |bytes| {
        let headers: Vec<usize> = (0..bytes.len() - 4).filter(|at| &bytes[*at..at + 4] == b"IHDR").collect();
        assert_eq!(headers.len(), 5);
        for at in headers {
            put(bytes, at + 4, 30_000);
            put(bytes, at + 8, 30_000);
            let crc = crc32(&bytes[at..at + 17]);
            put(bytes, at + 17, crc);
        }
    });
    let error = watched.media.open(&SourceRequest::Path(path)).await.expect_err("over a limit");
    // The prober may see it, or the decoder refuse it.
    assert!(matches!(error, MediaError::TooLarge(_) | MediaError::NotVideo(_)), "{error:?}");
}

/// As PNG's chunks are checked.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

#[tokio::test]
async fn a_video_that_claims_ninety_hours() {
    let (watched, mut wrong) = (Watched::new(|_| ()), Vec::new());
    // A frame every ten hours: what is claimed is there.
    let slides =
        "-f lavfi -i color=black:s=64x48:r=1/36000 -frames:v 11 -c:v libx264 -preset ultrafast -pix_fmt yuv420p";
    for name in ["slides.mp4", "slides.mkv"] {
        let path = watched.edited(name, slides, |_| ());
        wrong.push(watched.refused(&path, is_too_large).await);
    }
    // Each of 25 frames is said to be shown for four hours.
    let path = watched.edited("stretched.mp4", SMALL, |bytes| {
        let (movie, track, media, steps) =
            (mp4_box(bytes, "mvhd"), mp4_box(bytes, "tkhd"), mp4_box(bytes, "mdhd"), mp4_box(bytes, "stts"));
        let edit = mp4_box(bytes, "elst");
        let field = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
        // Seconds that still fit in the field at the video's clock.
        let claimed = 324_000;
        let (movie_clock, media_clock) = (field(bytes, movie + 20), field(bytes, media + 20));
        put(bytes, movie + 24, claimed * movie_clock);
        put(bytes, track + 28, claimed * movie_clock);
        put(bytes, edit + 16, claimed * movie_clock);
        put(bytes, media + 24, claimed * media_clock);
        assert_eq!((field(bytes, steps + 12), field(bytes, steps + 16)), (1, 25), "one step for all frames");
        put(bytes, steps + 20, claimed * media_clock / 25);
    });
    wrong.push(watched.refused(&path, is_too_large).await);
    assert_none(wrong);
}

#[tokio::test]
async fn a_video_that_declares_millions_of_frames() {
    let (watched, mut wrong) = (Watched::new(|_| ()), Vec::new());
    for (name, frames) in [("millions.mp4", 50_000_000), ("billions.mp4", u32::MAX)] {
        let path = watched.edited(name, SMALL, |bytes| {
            // All of one size, so that no table is needed, and shown for so short that they fit in an hour.
            let (steps, sizes) = (mp4_box(bytes, "stts"), mp4_box(bytes, "stsz"));
            put(bytes, steps + 16, frames);
            put(bytes, steps + 20, 1);
            put(bytes, sizes + 12, 100);
            put(bytes, sizes + 16, frames);
            // A chunk for all.
            let chunks = mp4_box(bytes, "stsc");
            put(bytes, chunks + 20, frames);
        });
        wrong.push(watched.refused(&path, is_too_large_or_broken).await);
    }
    assert_none(wrong);
}

/// Every picture of it takes a hundred megabytes, and it has thousands.
#[tokio::test]
async fn a_gif_that_is_large_only_when_decoded_is_refused_for_its_pixels() {
    let watched = Watched::new(|config| config.max_pixel_seconds = 1920 * 1080 * 3600);
    let folder = watched.folder.path();
    made::ffmpeg(folder, "-f lavfi -i color=black:s=2x2:r=10 -frames:v 2 small.gif");
    let path = watched.path("bomb.gif");
    std::fs::write(&path, gif_bomb(8000, 4000, 4000)).expect("writes");
    assert!(std::fs::metadata(&path).expect("reads").len() < 200_000);
    let error =
        watched.media.open(&SourceRequest::Path(path)).await.expect_err("four hundred seconds of 32 megapixels");
    assert!(is_too_large(&error), "{error:?}");
    watched.media.idle().await;
    assert_eq!(watched.media.load().processes, 0);
}

/// A GIF whose pictures are one pixel each on a screen of this size, a tenth of a second apart.
fn gif_bomb(width: u16, height: u16, pictures: usize) -> Vec<u8> {
    let mut bytes = b"GIF89a".to_vec();
    bytes.extend(width.to_le_bytes().into_iter().chain(height.to_le_bytes()));
    // Two colours for all.
    bytes.extend([0x80, 0, 0, 0, 0, 0, 255, 255, 255]);
    for _ in 0..pictures {
        // Shown for ten hundredths; one pixel at the corner; one code for it between those that begin and end.
        bytes.extend([0x21, 0xF9, 4, 0, 10, 0, 0, 0]);
        bytes.extend([0x2C, 0, 0, 0, 0, 1, 0, 1, 0, 0]);
        bytes.extend([2, 2, 0x44, 0x01, 0]);
    }
    bytes.push(0x3B);
    bytes
}
