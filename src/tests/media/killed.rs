//! A decoder that the system ends is no fault of the video's, and the error says so.
//!
//! Programs in ffmpeg's place end themselves as the system would, and then become ffmpeg.

use std::os::unix::fs::PermissionsExt as _;

use paravt::media::{Media, MediaError, SourceRequest};

use super::limits::on_path;
use super::made;
use super::{AS_IT_IS, OVERVIEW};

/// What programs are started for, by a word that only then is among their arguments. The first that fits counts.
const KINDS: [(&str, &str); 5] = [
    ("count", "packet=pts_time"),
    ("look", "-show_entries"),
    ("filters", "-filters"),
    ("first", "scale=16:16"),
    ("decode", "showinfo"),
];

/// Media whose programs are killed so many times, for each kind of work, before they do it, and the folder it all lies in.
fn dying(times: usize) -> (tempfile::TempDir, Media) {
    let folder = tempfile::tempdir().expect("a folder");
    // Marks are empty files, because children may not be allowed to write.
    let mark = |kind: &str, n: usize| folder.path().join(format!("{kind}{n}")).display().to_string();
    let kill = |kind: &str| -> String {
        let once = |n| format!("if [ ! -e '{0}' ]; then : > '{0}'; kill -9 $$; fi\n", mark(kind, n));
        (0..times).map(once).collect()
    };
    let kinds: String = KINDS.iter().map(|(kind, word)| format!("*{word}*)\n{};;\n", kill(kind))).collect();
    for name in ["ffmpeg", "ffprobe"] {
        let program = folder.path().join(name);
        let script = format!("#!/bin/sh\ncase \"$*\" in\n{kinds}esac\nexec '{}' \"$@\"\n", on_path(name).display());
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
    const WIDE: &str = "-color_trc smpte2084 -color_primaries bt2020 -colorspace bt2020nc";
    for (name, options, kinds) in [
        // Read by the container's index; counted, because its header says nothing; brought down from high dynamic range.
        ("indexed.mp4", "", &["look", "decode"] as &[&str]),
        ("counted.ts", "", &["look", "first", "count", "decode"]),
        ("wide.mp4", WIDE, &["look", "filters", "decode"]),
    ] {
        let (folder, media) = dying(1);
        made::ffmpeg(folder.path(), &format!("-f lavfi -i testsrc2=s=64x48:r=25 -t 2 -c:v libx264 {options} {name}"));
        let frames = looked_at(&media, folder.path().join(name)).await;
        assert_eq!(frames.expect("started again"), 4, "{name}");
        for kind in kinds {
            assert!(folder.path().join(format!("{kind}0")).exists(), "{kind} was not killed: {name}");
        }
    }
}

#[tokio::test]
async fn one_that_is_told_to_end_is_started_again() {
    let (folder, media) = dying(0);
    made::ffmpeg(folder.path(), "-f lavfi -i testsrc2=s=64x48:r=25 -t 2 -c:v libx264 fine.mp4");
    // Decodes a little, is told to end, and does so well: with what it has.
    let (program, mark) = (folder.path().join("ffmpeg"), folder.path().join("told"));
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *showinfo*) if [ ! -e '{0}' ]; then : > '{0}'\n\
        echo 'Exiting normally, received signal 15.' >&2; exit 255; fi;; esac\nexec '{1}' \"$@\"\n",
        mark.display(),
        on_path("ffmpeg").display()
    );
    std::fs::write(&program, script).expect("writes");
    assert_eq!(looked_at(&media, folder.path().join("fine.mp4")).await.expect("started again"), 4);
    assert!(mark.exists());
}

#[tokio::test]
async fn one_that_is_killed_again_and_again_is_told_to_be() {
    let (folder, media) = dying(9);
    made::ffmpeg(folder.path(), "-f lavfi -i testsrc2=s=64x48:r=25 -t 2 -c:v libx264 fine.mp4");
    let error = looked_at(&media, folder.path().join("fine.mp4")).await.expect_err("it was killed");
    assert!(matches!(error, MediaError::Killed), "{error:?}");
}
