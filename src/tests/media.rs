//! The media room on real files: the frame chosen is read back from its pixels, and hostile files open nothing.

#![expect(clippy::expect_used, reason = "a failed setup is a failed test")]

mod cases;
#[cfg(target_os = "linux")]
mod hostile;
#[cfg(unix)]
mod killed;
#[cfg(unix)]
mod limits;
mod made;
mod oracle;
mod remote;

use std::path::{Path, PathBuf};

use paravt::card::{FrameBudget, PixelBudget};
use paravt::config::MediaConfig;
use paravt::media::{Media, MediaError, SourceRequest, Video};
use paravt::types::{Clip, FrameSize, MediaTime, TimeSpan};

use made::{NUMBERED, number, numbers};

/// The videos' own size, 256x64.
const AS_IT_IS: PixelBudget = PixelBudget { factor: 32, min_pixels: 1024, max_pixels: 16_384 };
const OVERVIEW: FrameBudget = FrameBudget { fps: 1.0, min_frames: 4, max_frames: 64, timestamps: true };
const WINDOW: FrameBudget = FrameBudget { fps: 1.0, min_frames: 1, max_frames: 16, timestamps: false };

struct Studio {
    folder: tempfile::TempDir,
    media: Media,
}

impl Studio {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut MediaConfig)) -> Self {
        let mut config = MediaConfig::default();
        change(&mut config);
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, media: Media::new(config).expect("these tests need ffmpeg") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("writes");
        path
    }

    /// Runs ffmpeg in the folder with blank-separated arguments.
    fn ffmpeg(&self, arguments: &str) {
        made::ffmpeg(self.folder.path(), arguments);
    }

    /// A video whose frames show their own number, one bit a column of 16 pixels.
    fn numbered(&self, name: &str, rate: &str, seconds: u32, more_filters: &str, options: &str) -> PathBuf {
        self.ffmpeg(&format!(
            "-f lavfi -i color=black:s=16x4:r={rate} -vf {NUMBERED}{more_filters} -t {seconds} \
             -c:v libx264 -preset ultrafast -pix_fmt yuv420p {options} {name}"
        ));
        self.path(name)
    }

    fn pattern(&self, name: &str, options: &str) -> PathBuf {
        self.ffmpeg(&format!(
            "-f lavfi -i testsrc2=s=320x180:r=25 -t 4 -c:v libx264 -preset ultrafast -pix_fmt yuv420p {options} {name}"
        ));
        self.path(name)
    }

    async fn try_open(&self, path: &Path) -> Result<Video, MediaError> {
        self.media.open(&SourceRequest::Path(path.to_owned())).await
    }

    async fn open(&self, path: &Path) -> Video {
        self.try_open(path).await.expect("opens")
    }

    async fn overview(&self, video: &Video) -> Clip {
        self.media.overview(video, &OVERVIEW, None, None, &AS_IT_IS).await.expect("decodes")
    }

    async fn window(&self, video: &Video, start: f64, end: f64) -> Clip {
        self.media.window(video, span(start, end), &WINDOW, false, &AS_IT_IS).await.expect("decodes")
    }
}

fn span(start: f64, end: f64) -> TimeSpan {
    let time = |seconds| MediaTime::from_seconds(seconds).expect("finite");
    TimeSpan::new(time(start), time(end)).expect("in order")
}

fn seconds(clip: &Clip) -> Vec<f64> {
    clip.times().into_iter().map(MediaTime::seconds).collect()
}

/// Frame `n` is at `n / fps`, to a rounding of the container's clock.
fn assert_labels(clip: &Clip, fps: f64) {
    for (number, time) in numbers(clip).into_iter().zip(seconds(clip)) {
        assert!((number as f64 / fps - time).abs() < 0.0011, "frame {number} is labelled {time}");
    }
}

#[tokio::test]
async fn a_steady_video_gives_the_reference_frames_and_their_times() {
    let studio = Studio::new();
    let video = studio.open(&studio.numbered("v.mp4", "25", 40, "", "-g 50 -bf 2")).await;
    assert_eq!((video.info().duration.seconds(), video.info().frames, video.info().fps), (40.0, 1000, 25.0));
    let clip = studio.overview(&video).await;
    // torch.linspace(0, 999, 40).round()
    let expected: Vec<u64> = (0..40).map(|i| (999.0 * f64::from(i) / 39.0).round() as u64).collect();
    assert_eq!(numbers(&clip), expected);
    assert_labels(&clip, 25.0);
    assert!(!clip.partial);
    let clip = studio.window(&video, 12.3, 17.9).await;
    assert_eq!(numbers(&clip), [308, 354, 401, 447]);
    assert_labels(&clip, 25.0);
    assert_eq!(clip.span, span(12.3, 17.9));
    studio.media.idle().await;
    assert_eq!(studio.media.load().processes, 0);
}

#[tokio::test]
async fn a_number_of_frames_and_dense_windows_are_kept_to() {
    let studio = Studio::new();
    let video = studio.open(&studio.numbered("v.mp4", "25", 10, "", "")).await;
    let clip =
        studio.media.overview(&video, &OVERVIEW, Some(7), Some(span(2.0, 4.0)), &AS_IT_IS).await.expect("decodes");
    assert_eq!(numbers(&clip), [50, 58, 67, 75, 83, 92, 100]);
    let dense = |start, end| studio.media.window(&video, span(start, end), &WINDOW, true, &AS_IT_IS);
    assert_eq!(dense(1.0, 3.0).await.expect("decodes").frames.len(), 16);
    assert_eq!(numbers(&dense(1.0, 1.2).await.expect("decodes")), [25, 26, 27, 28, 29, 30]);
    assert_eq!(numbers(&dense(5.01, 5.02).await.expect("decodes")), [125]);
    assert!(matches!(dense(11.0, 12.0).await, Err(MediaError::NoFrames(_))));
}

#[tokio::test]
async fn long_groups_of_pictures_at_a_fractional_rate() {
    let studio = Studio::new();
    let options = "-g 9999 -keyint_min 9999 -sc_threshold 0 -bf 3";
    let video = studio.open(&studio.numbered("v.mp4", "30000/1001", 20, "", options)).await;
    let fps = 30000.0 / 1001.0;
    let clip = studio.window(&video, 15.0, 19.0).await;
    assert_eq!(numbers(&clip), [450, 490, 529, 569]);
    assert_labels(&clip, fps);
    assert_labels(&studio.overview(&video).await, fps);
}

#[tokio::test]
async fn matroska_with_b_frames() {
    let studio = Studio::new();
    let video = studio.open(&studio.numbered("v.mkv", "30000/1001", 20, "", "-bf 3 -g 48")).await;
    assert_eq!(video.info().frames, 599);
    let clip = studio.overview(&video).await;
    let expected: Vec<u64> = (0..18).map(|i| (598.0 * f64::from(i) / 17.0).round() as u64).collect();
    assert_eq!(numbers(&clip), expected);
    assert_labels(&clip, 30000.0 / 1001.0);
}

#[tokio::test]
async fn a_transport_stream_that_starts_late_and_has_no_index() {
    let studio = Studio::new();
    let video = studio.open(&studio.numbered("v.ts", "25", 30, "", "-bf 2 -g 100 -output_ts_offset 101.4")).await;
    assert!((video.info().duration.seconds() - 30.0).abs() < 0.05, "{:?}", video.info());
    let clip = studio.overview(&video).await;
    assert_eq!(number(&clip.frames[0]), 0);
    assert_eq!(clip.frames[0].time, Some(MediaTime::ZERO));
    assert_labels(&clip, 25.0);
    for (start, end, expected) in [(3.0, 5.0, [75, 125]), (21.9, 23.9, [548, 597]), (27.9, 30.0, [698, 749])] {
        let clip = studio.window(&video, start, end).await;
        assert_eq!(numbers(&clip), expected);
        assert_labels(&clip, 25.0);
        assert!(!clip.partial);
    }
}

#[tokio::test]
async fn a_fragmented_file_is_counted() {
    let studio = Studio::new();
    let options = "-bf 2 -g 25 -movflags frag_keyframe+empty_moov";
    let video = studio.open(&studio.numbered("v.mp4", "25", 10, "", options)).await;
    assert_eq!((video.info().duration.seconds(), video.info().frames), (10.0, 250));
    let clip = studio.window(&video, 2.0, 8.0).await;
    assert_eq!(numbers(&clip), [50, 80, 110, 140, 170, 200]);
    assert_labels(&clip, 25.0);
}

#[tokio::test]
async fn a_live_stream_without_a_length_is_counted() {
    let studio = Studio::new();
    studio.ffmpeg(
        "-f lavfi -i testsrc2=s=64x64:r=25 -t 4 -c:v libvpx -deadline realtime -cpu-used 8 -f webm -live 1 live.webm",
    );
    let video = studio.open(&studio.path("live.webm")).await;
    assert_eq!((video.info().duration.seconds(), video.info().frames), (4.0, 100));
}

#[tokio::test]
async fn a_varying_rate_is_picked_by_time_and_labelled_by_frame() {
    let studio = Studio::new();
    let gaps = ",select='not(between(mod(n\\,50)\\,10\\,34))'";
    let video = studio.open(&studio.numbered("v.mp4", "25", 20, gaps, "-fps_mode vfr")).await;
    assert_eq!(video.info().frames, 250);
    assert!((video.info().duration.seconds() - 20.0).abs() < 0.05);
    let clip = studio.overview(&video).await;
    assert_labels(&clip, 25.0);
    assert!(clip.frames.len() >= 10 && !clip.partial);
    let shown = numbers(&clip);
    assert!(shown.windows(2).all(|pair| pair[0] < pair[1]), "{shown:?}");
    // From the middle of a gap to the middle of another: the frames on both edges of what is there.
    let clip = studio.window(&video, 6.9, 9.0).await;
    assert_eq!(numbers(&clip), [185, 209]);
    // Nothing but a gap: the frame before it.
    let clip = studio.window(&video, 4.6, 5.2).await;
    assert_eq!(numbers(&clip), [109]);
    let dense = studio.media.window(&video, span(4.0, 6.0), &WINDOW, true, &AS_IT_IS).await.expect("decodes");
    assert_eq!(dense.frames.len(), 16);
    assert_labels(&dense, 25.0);
}

#[tokio::test]
async fn a_slow_slide_show_gives_each_frame_once() {
    let studio = Studio::new();
    let video = studio.open(&studio.numbered("v.mp4", "1/10", 60, "", "")).await;
    let clip = studio.overview(&video).await;
    assert_eq!(numbers(&clip), [0, 1, 2, 3, 4, 5]);
    assert_eq!(seconds(&clip), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
    let clip = studio.window(&video, 24.0, 27.0).await;
    assert_eq!((numbers(&clip), seconds(&clip)), (vec![2], vec![20.0]));
}

#[tokio::test]
async fn sparse_frames_of_large_pictures_are_sought() {
    let studio = Studio::new();
    // Large enough that gaps of 12 s are not decoded through. Scaled down again to be read.
    let video = studio.open(&studio.numbered("v.mp4", "25", 90, ",scale=1024:256:flags=neighbor", "-g 50")).await;
    let budget = FrameBudget { max_frames: 8, ..OVERVIEW };
    let clip = studio.media.overview(&video, &budget, None, None, &AS_IT_IS).await.expect("decodes");
    let expected: Vec<u64> = (0..8).map(|i| (2249.0 * f64::from(i) / 7.0).round() as u64).collect();
    assert_eq!(numbers(&clip), expected);
    assert_labels(&clip, 25.0);
}

#[tokio::test]
async fn size_is_as_displayed() {
    let studio = Studio::new();
    let base = studio.pattern("base.mp4", "");
    studio.ffmpeg("-i base.mp4 -c copy -metadata:s:v:0 rotate=90 rotated.mp4");
    studio.pattern("wide.mp4", "-vf setsar=2/1");
    for (name, width, height) in [("base.mp4", 320, 180), ("rotated.mp4", 180, 320), ("wide.mp4", 640, 180)] {
        let video = studio.open(&studio.path(name)).await;
        assert_eq!(video.info().size, FrameSize { width, height }, "{name}");
    }
    // Turned as it is shown: the top of the picture is now at the side.
    let upright = studio.overview(&studio.open(&base).await).await;
    let turned = studio.overview(&studio.open(&studio.path("rotated.mp4")).await).await;
    assert_eq!(upright.frames[0].size, FrameSize { width: 160, height: 96 });
    assert_eq!(turned.frames[0].size, FrameSize { width: 96, height: 160 });
}

#[tokio::test]
async fn an_edit_list_starts_where_it_says() {
    let studio = Studio::new();
    studio.numbered("base.mp4", "25", 4, "", "-bf 2 -g 250");
    studio.ffmpeg("-ss 1.3 -i base.mp4 -c copy -avoid_negative_ts disabled edited.mp4");
    let video = studio.open(&studio.path("edited.mp4")).await;
    assert_eq!(video.info().frames, 67);
    assert!((video.info().duration.seconds() - 2.7).abs() < 0.05);
    let clip = studio.overview(&video).await;
    assert_eq!(number(&clip.frames[0]), 33);
    assert_eq!(clip.frames[0].time, Some(MediaTime::ZERO));
    assert_eq!(clip.frames.last().map(number), Some(99));
}

#[tokio::test]
async fn a_file_cut_off_gives_what_decodes_and_says_so() {
    let studio = Studio::new();
    let whole = std::fs::read(studio.numbered("v.mp4", "25", 20, "", "-g 25 -movflags +faststart")).expect("reads");
    let cut = studio.write("cut.mp4", &whole[..whole.len() * 6 / 10]);
    let video = studio.open(&cut).await;
    let clip = studio.overview(&video).await;
    assert!(clip.partial);
    assert!(clip.frames.len() > 5 && clip.frames.len() < 20, "{clip:?}");
    assert_labels(&clip, 25.0);
    assert!(!studio.window(&video, 1.0, 3.0).await.partial);
    let lost = studio.media.window(&video, span(18.0, 20.0), &WINDOW, false, &AS_IT_IS).await;
    assert!(matches!(lost, Err(MediaError::NoFrames(_))), "{lost:?}");
}

#[tokio::test]
async fn a_single_frame_is_a_video() {
    let studio = Studio::new();
    let video = studio.open(&studio.pattern("one.mp4", "-frames:v 1")).await;
    assert_eq!(video.info().frames, 1);
    let clip = studio.overview(&video).await;
    assert_eq!(seconds(&clip), [0.0]);
    assert!(!clip.partial);
    assert_eq!(studio.window(&video, 0.0, 0.04).await.frames.len(), 1);
}

#[tokio::test]
async fn what_is_no_video_is_refused_in_plain_words() {
    let studio = Studio::new();
    studio.ffmpeg("-f lavfi -i sine=d=3 -c:a aac sound.m4a");
    studio.ffmpeg("-f lavfi -i testsrc2=s=200x200:r=1 -frames:v 1 cover.png");
    studio.ffmpeg("-i sound.m4a -i cover.png -map 0 -map 1 -c:a copy -c:v png -disposition:v:0 attached_pic cover.m4a");
    let whole = std::fs::read(studio.pattern("base.mp4", "")).expect("reads");
    studio.write("moov_missing.mp4", &whole[..whole.len() * 9 / 10]);
    studio.write("empty.mp4", "");
    studio.write("text.mp4", "not a video at all, just text\n");
    for (name, words) in [
        ("sound.m4a", "only sound"),
        ("cover.m4a", "only a cover picture"),
        ("cover.png", "not a video"),
        ("moov_missing.mp4", "header is missing"),
        ("empty.mp4", "empty"),
        ("text.mp4", "not a video"),
    ] {
        let error = studio.try_open(&studio.path(name)).await.expect_err(name);
        let MediaError::NotVideo(message) = &error else { panic!("{name}: {error:?}") };
        assert!(message.contains(words), "{name}: {message}");
        assert!(!message.contains('/') && !message.contains(name), "{message}");
    }
}

#[tokio::test]
async fn playlists_and_concat_files_open_nothing() {
    let studio = Studio::new();
    // A server that would notice.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let target = studio.pattern("target.mp4", "");
    let target = target.display();
    let playlist = |entry: String| format!("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{entry}\n#EXT-X-ENDLIST\n");
    for (name, content) in [
        ("web.mp4", playlist(format!("http://127.0.0.1:{port}/secret.ts"))),
        ("web.m3u8", playlist(format!("http://127.0.0.1:{port}/secret.ts"))),
        ("file.m3u8", playlist(format!("file://{target}"))),
        ("concat.mp4", format!("ffconcat version 1.0\nfile {target}\n")),
        ("concat.ffconcat", "ffconcat version 1.0\nfile target.mp4\n".to_owned()),
        (
            "pattern.sdp",
            format!("v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\n"),
        ),
    ] {
        let path = studio.write(name, content);
        let error = studio.try_open(&path).await.expect_err(name);
        assert!(matches!(error, MediaError::NotVideo(_)), "{name}: {error:?}");
    }
    let mut accept = Box::pin(listener.accept());
    assert!(futures::poll!(&mut accept).is_pending(), "a connection was opened");
}

#[tokio::test]
async fn limits_on_length_pixels_and_bytes() {
    let studio = Studio::new();
    let path = studio.pattern("v.mp4", "");
    for change in [
        (|config| config.max_duration_s = 3) as fn(&mut MediaConfig),
        |config| config.max_pixels = 320 * 179,
        |config| config.max_bytes = 1000,
    ] {
        let strict = Studio::with(change);
        let error = strict.try_open(&path).await.expect_err("over a limit");
        assert!(matches!(error, MediaError::TooLarge(_)), "{error:?}");
    }
    studio.open(&path).await;
}

#[tokio::test]
async fn a_dropped_window_leaves_no_process() {
    let studio = Studio::new();
    let video = studio.open(&studio.numbered("v.mp4", "25", 30, "", "-g 9999")).await;
    {
        let mut clip = Box::pin(studio.media.window(&video, span(20.0, 29.0), &WINDOW, false, &AS_IT_IS));
        while studio.media.load().processes == 0 {
            assert!(futures::poll!(&mut clip).is_pending());
            tokio::task::yield_now().await;
        }
    }
    studio.media.idle().await;
    assert_eq!(studio.media.load().processes, 0);
    // The next one who asks is not hindered.
    assert_eq!(studio.window(&video, 20.0, 22.0).await.frames.len(), 2);
}

#[tokio::test]
async fn windows_at_the_same_time_and_again_are_the_same() {
    let studio = Studio::new();
    let video = studio.open(&studio.numbered("v.mp4", "25", 20, "", "")).await;
    let (a, b, c) = tokio::join!(
        studio.window(&video, 1.0, 5.0),
        studio.window(&video, 1.0, 5.0),
        studio.window(&video, 11.0, 15.0)
    );
    assert_eq!(numbers(&a), [25, 58, 92, 125]);
    assert_eq!(numbers(&c), [275, 308, 342, 375]);
    // One decoding served both: they share their pixels.
    assert_eq!(a.frames[0].rgb.as_ptr(), b.frames[0].rgb.as_ptr());
    let again = studio.open(&studio.path("v.mp4")).await;
    assert_eq!(again.id(), video.id());
    let d = studio.window(&again, 1.0, 5.0).await;
    assert_eq!(a.frames[0].rgb.as_ptr(), d.frames[0].rgb.as_ptr());
}

#[tokio::test]
async fn a_video_in_the_request_itself() {
    use base64::Engine as _;
    let studio = Studio::new();
    let content = std::fs::read(studio.numbered("v.mp4", "25", 4, "", "")).expect("reads");
    let url = format!("data:video/mp4;base64,{}", base64::engine::general_purpose::STANDARD.encode(content));
    let video = studio.media.open(&SourceRequest::Url(url)).await.expect("opens");
    assert_eq!(numbers(&studio.overview(&video).await), [0, 33, 66, 99]);
}

#[tokio::test]
async fn a_still_picture() {
    let studio = Studio::with(|config| config.allowed_directories = vec!["/nowhere".into()]);
    studio.ffmpeg("-f lavfi -i color=blue:s=400x300:r=1 -frames:v 1 blue.png");
    let request = SourceRequest::Path(studio.path("blue.png"));
    let frame = studio.media.image(&request, &AS_IT_IS).await.expect("decodes");
    assert_eq!(frame.size, FrameSize { width: 128, height: 96 });
    assert!(frame.rgb[2] > 200 && frame.rgb[0] < 50);
    let url = format!("file://{}", studio.path("blue.png").display());
    let refused = studio.media.image(&SourceRequest::Url(url), &AS_IT_IS).await;
    assert!(matches!(refused, Err(MediaError::Forbidden(_))));
}

#[tokio::test]
async fn the_demo_board_has_a_frame_every_twenty_seconds() {
    let studio = Studio::new();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("model_cards/paravt-tiny/demo.mp4");
    let video = studio.open(&demo).await;
    assert_eq!((video.info().frames, video.info().fps), (1501, 5.0));
    let budget = FrameBudget { max_frames: 16, ..OVERVIEW };
    let pixels = PixelBudget { factor: 32, min_pixels: 1024, max_pixels: 4096 };
    let clip = studio.media.overview(&video, &budget, None, None, &pixels).await.expect("decodes");
    assert_eq!(seconds(&clip), (0..16).map(|i| f64::from(i) * 20.0).collect::<Vec<_>>());
    assert_eq!(clip.frames[0].size, FrameSize { width: 64, height: 64 });
    let clip = studio.media.window(&video, span(20.0, 60.0), &WINDOW, false, &pixels).await.expect("decodes");
    // torch.linspace(100, 300, 16).round() / 5
    let frames = [100, 113, 127, 140, 153, 167, 180, 193, 207, 220, 233, 247, 260, 273, 287, 300];
    assert_eq!(seconds(&clip), frames.map(|frame| f64::from(frame) / 5.0));
}
