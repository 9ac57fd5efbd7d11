//! A decoder that the system ends is no fault of the video's, and the error says so.
//!
//! Programs in ffmpeg's place end themselves as the system would, and then become ffmpeg.

use std::os::unix::fs::PermissionsExt as _;

use paravt::media::{Media, MediaError, SourceRequest};

use super::limits::on_path;
use super::made;
use super::{AS_IT_IS, OVERVIEW};

/// Media whose every program is killed so many times before it does its work, and the folder it all lies in.
fn dying(times: usize) -> (tempfile::TempDir, Media) {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["ffmpeg", "ffprobe"] {
        let (real, mark) = (on_path(name), folder.path().join(format!("{name}.mark")).display().to_string());
        let program = folder.path().join(name);
        // Marks are empty files, because children may not be allowed to write. Asking for the version is not decoding.
        let kill = (0..times).map(|n| format!("if [ ! -e '{mark}{n}' ]; then : > '{mark}{n}'; kill -9 $$; fi\n"));
        let kill: String = kill.collect();
        let script =
            format!("#!/bin/sh\ncase \"$*\" in *-version*) ;; *)\n{kill};; esac\nexec '{}' \"$@\"\n", real.display());
        std::fs::write(&program, script).expect("writes");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("sets");
    }
    let mut config = made::default();
    config.ffmpeg_directory = Some(folder.path().to_owned());
    (folder, Media::new(config).expect("these tests need ffmpeg"))
}

/// Opens a video and looks at it, by its index or as ffmpeg opens it.
async fn looked_at(media: &Media, path: std::path::PathBuf) -> Result<usize, MediaError> {
    let video = media.open(&SourceRequest::Path(path)).await?;
    let clip = media.overview(&video, &OVERVIEW, Some(4), None, &AS_IT_IS).await?;
    Ok(clip.frames.len())
}

#[tokio::test]
async fn one_that_is_killed_once_is_started_again() {
    // Read by the container's index; counted because its header says nothing.
    for name in ["indexed.mp4", "counted.ts"] {
        let (folder, media) = dying(1);
        made::ffmpeg(folder.path(), &format!("-f lavfi -i testsrc2=s=64x48:r=25 -t 2 -c:v libx264 {name}"));
        let frames = looked_at(&media, folder.path().join(name)).await;
        assert_eq!(frames.expect("started again"), 4, "{name}");
        for program in ["ffmpeg", "ffprobe"] {
            assert!(folder.path().join(format!("{program}.mark0")).exists(), "{program} was not killed: {name}");
        }
    }
}

#[tokio::test]
async fn one_that_is_killed_again_and_again_is_told_to_be() {
    let (folder, media) = dying(9);
    made::ffmpeg(folder.path(), "-f lavfi -i testsrc2=s=64x48:r=25 -t 2 -c:v libx264 fine.mp4");
    let error = looked_at(&media, folder.path().join("fine.mp4")).await.expect_err("it was killed");
    assert!(matches!(error, MediaError::Killed), "{error:?}");
}
