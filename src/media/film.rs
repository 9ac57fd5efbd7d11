//! Pictures made into a video, for worlds that are made up. What questions name never comes here.

use std::ffi::OsString;
use std::path::Path;

use tokio::io::AsyncWriteExt as _;

use super::ffmpeg::{self, Exit, STDOUT};
use super::{Media, MediaError};
use crate::types::FrameSize;

/// Largest file.
const MOST_BYTES: u64 = 1 << 30;
/// Frames from one key frame to the next: what a cut has to decode at most.
const KEY_EVERY: u32 = 50;

impl Media {
    /// Writes an H.264 video in MP4, its index at the beginning. `pictures` gives 8-bit RGB, row by row, `3 * width * height`
    /// bytes each. The file is there when it is whole.
    ///
    /// # Errors
    /// [`MediaError::Internal`] when a picture has another size or there is none, or the encoder or the disk fails.
    pub async fn film(
        &self,
        path: &Path,
        size: FrameSize,
        fps: u32,
        pictures: impl Iterator<Item = Vec<u8>> + Send,
    ) -> Result<(), MediaError> {
        let failed = |error: std::io::Error| MediaError::Internal(format!("writing a video: {}", error.kind()));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let output = file.as_file().try_clone().map_err(failed)?;
        let (picture, rate, key) = (format!("{}x{}", size.width, size.height), fps.to_string(), KEY_EVERY.to_string());
        let arguments: Vec<OsString> = [
            "-nostdin",
            "-v",
            "error",
            "-filter_threads",
            "1",
            "-y",
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-s",
            &picture,
            "-r",
            &rate,
            "-i",
            "pipe:0",
            "-c:v",
            "libx264",
            "-threads",
            "1",
            "-fflags",
            "+bitexact",
            "-flags:v",
            "+bitexact",
            "-preset",
            "veryfast",
            "-g",
            &key,
            "-pix_fmt",
            "yuv420p",
            "-movflags",
            "+faststart",
            "-f",
            "mp4",
            STDOUT,
        ]
        .map(Into::into)
        .into();
        let mut encoder = self.ffmpeg().start_writing(arguments, output, MOST_BYTES).await?;
        let bytes = 3 * size.width as usize * size.height as usize;
        let mut stdin = encoder.stdin;
        let feed = async move {
            let mut count = 0_usize;
            for picture in pictures {
                if picture.len() != bytes {
                    return Err(MediaError::Internal("a picture has another size".to_owned()));
                }
                count += 1;
                // An encoder that is gone says why below.
                if stdin.write_all(&picture).await.is_err() {
                    break;
                }
            }
            drop(stdin);
            if count > 0 { Ok(()) } else { Err(MediaError::Internal("a video without pictures".to_owned())) }
        };
        let mut said = String::new();
        let listen = ffmpeg::each_line(&mut encoder.stderr, |line| {
            if said.len() < 1000 {
                said.push_str(line);
            }
        });
        let (fed, ()) = tokio::join!(feed, listen);
        match encoder.control.exit().await {
            Exit::Done(status) if status.success() => fed?,
            Exit::TimedOut => return Err(MediaError::Timeout("encoding")),
            _ => return Err(MediaError::Internal(format!("the encoder failed: {said}"))),
        }
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MediaConfig;
    use crate::media::SourceRequest;

    const SIZE: FrameSize = FrameSize { width: 32, height: 16 };

    fn media() -> Media {
        Media::new(MediaConfig::default()).expect("these tests need ffmpeg")
    }

    #[tokio::test]
    async fn pictures_become_a_video_of_as_many_frames() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("grey.mp4");
        let pictures = (0..7).map(|number| vec![20 * number; 3 * 32 * 16]);
        media().film(&path, SIZE, 5, pictures).await.expect("written");
        let video = media().open(&SourceRequest::Path(path)).await.expect("opens");
        let info = video.info();
        assert_eq!((info.frames, info.size, info.duration.micros()), (7, SIZE, 1_400_000));
    }

    #[tokio::test]
    async fn a_video_that_is_not_whole_is_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("grey.mp4");
        let pictures = [3 * 32 * 16, 7].into_iter().map(|bytes| vec![9; bytes]);
        assert!(media().film(&path, SIZE, 5, pictures).await.is_err());
        assert!(media().film(&path, SIZE, 5, std::iter::empty()).await.is_err(), "no picture");
        assert_eq!(std::fs::read_dir(folder.path()).expect("reads").count(), 0);
        assert!(media().film(&folder.path().join("no/such/folder.mp4"), SIZE, 5, std::iter::empty()).await.is_err());
    }
}
