//! Videos that stay on a web server: only the pieces that are needed are fetched, and the frames are those of the file.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use paravt::card::{FrameBudget, PixelBudget};
use paravt::config::MediaConfig;
use paravt::media::{Media, SourceRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::{AS_IT_IS, OVERVIEW, WINDOW, made, numbers, seconds, span};

/// A web server with one file, and what it was asked for.
struct Web {
    address: SocketAddr,
    served: Arc<Served>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Served {
    file: Vec<u8>,
    /// Requests answered in pieces, before it knows no ranges any more.
    ranges: u64,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Web {
    async fn serve(path: &Path, ranges: u64) -> Self {
        let file = std::fs::read(path).expect("reads");
        let served = Arc::new(Served { file, ranges, ..Served::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("an address");
        let theirs = Arc::clone(&served);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let served = Arc::clone(&theirs);
                // Ends with its connection, and at the latest with the test's runtime.
                drop(tokio::spawn(async move { drop(served.talk(socket).await) }));
            }
        });
        Self { address, served, _task: AbortOnDropHandle::new(task) }
    }

    fn url(&self) -> SourceRequest {
        SourceRequest::Url(format!("http://{}/film.mov", self.address))
    }

    fn bytes(&self) -> u64 {
        self.served.bytes.load(Ordering::Relaxed)
    }

    fn requests(&self) -> u64 {
        self.served.requests.load(Ordering::Relaxed)
    }
}

impl Served {
    async fn talk(&self, mut socket: TcpStream) -> std::io::Result<()> {
        loop {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(socket.read_u8().await?);
            }
            let in_pieces = self.requests.fetch_add(1, Ordering::Relaxed) < self.ranges;
            let request = String::from_utf8_lossy(&request).to_ascii_lowercase();
            let asked = request.lines().find_map(|line| line.strip_prefix("range: bytes=")).filter(|_| in_pieces);
            let total = self.file.len();
            let (status, from, to) = match asked.and_then(|range| range.trim().split_once('-')) {
                Some((from, to)) => {
                    let from: usize = from.parse().expect("a range begins with a number");
                    let to = to.parse().map_or(total, |last: usize| (last + 1).min(total));
                    ("206 Partial Content", from, to)
                }
                None => ("200 OK", 0, total),
            };
            let range = if status.starts_with("206") {
                format!("content-range: bytes {from}-{}/{total}\r\n", to - 1)
            } else {
                String::new()
            };
            let length = to - from;
            let head = format!("HTTP/1.1 {status}\r\netag: \"one\"\r\ncontent-length: {length}\r\n{range}\r\n");
            socket.write_all(head.as_bytes()).await?;
            socket.write_all(&self.file[from..to]).await?;
            self.bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
    }
}

fn media() -> Media {
    Media::new(MediaConfig { allow_private_addresses: true, ..made::default() }).expect("these tests need ffmpeg")
}

/// Ten minutes, a key frame every two seconds, and a sound track that makes the file a hundred times as large.
fn film(extension: &str) -> std::path::PathBuf {
    let recipe = format!(
        "-f lavfi -i color=black:s=16x4:r=25 -f lavfi -i anullsrc=r=48000:cl=stereo -vf {} -t 600 -c:v libx264 \
         -preset ultrafast -bf 2 -pix_fmt yuv420p -g 50 -c:a pcm_s16le film.{extension}",
        made::NUMBERED
    );
    made::folder(&recipe, |folder| made::ffmpeg(folder, &recipe)).join(format!("film.{extension}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overview_and_windows_take_a_fiftieth_of_the_file() {
    const EIGHT: FrameBudget = FrameBudget { max_frames: 8, ..OVERVIEW };
    for extension in ["mov", "mkv"] {
        let path = film(extension);
        let web = Web::serve(&path, u64::MAX).await;
        let (afar, here) = (media(), media());
        let (remote, local) = (afar.open(&web.url()).await, here.open(&SourceRequest::Path(path)).await);
        let (remote, local) = (remote.expect("opens"), local.expect("opens"));
        assert_eq!(remote.info(), local.info(), "{extension}");
        let overview = afar.overview(&remote, &EIGHT, None, None, &AS_IT_IS).await.expect("decodes");
        let total = web.served.file.len() as u64;
        assert!(web.bytes() * 50 < total, "{extension}: {} of {total} bytes", web.bytes());
        assert!(remote.bytes_read().is_some_and(|read| read <= web.bytes()), "{:?}", remote.bytes_read());
        let same = here.overview(&local, &EIGHT, None, None, &AS_IT_IS).await.expect("decodes");
        assert!(overview.keyframes && same.keyframes);
        assert_eq!((numbers(&overview), seconds(&overview)), (numbers(&same), seconds(&same)), "{extension}");
        let before = web.bytes();
        let window = afar.window(&remote, span(301.3, 304.3), &WINDOW, true, &AS_IT_IS).await.expect("decodes");
        let same = here.window(&local, span(301.3, 304.3), &WINDOW, true, &AS_IT_IS).await.expect("decodes");
        assert_eq!((numbers(&window), seconds(&window)), (numbers(&same), seconds(&same)), "{extension}");
        assert_eq!(numbers(&window).first(), Some(&7533));
        // Six seconds of it, the sound between the pictures included.
        assert!((web.bytes() - before) * 50 < total, "{extension}: {} of {total} bytes", web.bytes() - before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_ranges_it_is_downloaded_once() {
    let path = made::folder("remote small", |folder| {
        made::ffmpeg(folder, "-f lavfi -i testsrc2=s=64x64:r=25 -t 4 -c:v libx264 -preset ultrafast small.mp4");
        made::ffmpeg(folder, "-f lavfi -i testsrc2=s=64x64:r=25 -t 4 -c:v mjpeg -q:v 2 small.avi");
    });
    // The one has an index of ours and no server with ranges, the other a server with ranges and no index of ours.
    for (name, ranges) in [("small.mp4", 0), ("small.avi", u64::MAX)] {
        let web = Web::serve(&path.join(name), ranges).await;
        let media = media();
        let url = web.url();
        let ask = async || {
            let video = media.open(&url).await.expect(name);
            media.overview(&video, &OVERVIEW, None, None, &AS_IT_IS).await.expect(name)
        };
        let clips = join_all((0..20).map(|_| ask())).await;
        assert!(clips.iter().all(|clip| clip.frames[0].rgb.as_ptr() == clips[0].frames[0].rgb.as_ptr()), "{name}");
        assert!(web.bytes() < 2 * web.served.file.len() as u64 + (128 << 10), "{name}: {} bytes", web.bytes());
        assert!(web.requests() <= 4, "{name}: {} requests", web.requests());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_ranges_is_asked_for_the_whole() {
    let path = made::folder("remote forgetful", |folder| {
        // Its index is at the end, so that opening it takes a second piece.
        made::ffmpeg(folder, "-f lavfi -i testsrc2=s=320x240:r=25 -t 4 -c:v libx264 -preset ultrafast v.mp4");
    });
    let web = Web::serve(&path.join("v.mp4"), 1).await;
    let media = media();
    let video = media.open(&web.url()).await.expect("opens");
    let clip = media.overview(&video, &OVERVIEW, None, None, &AS_IT_IS).await.expect("decodes");
    assert!(!clip.frames.is_empty());
    assert_eq!(web.requests(), 3, "its head, a piece that came as the whole, and the whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_requests_for_one_video_decode_once() {
    let path = made::folder("remote hundred", |folder| {
        made::ffmpeg(folder, "-f lavfi -i testsrc2=s=64x64:r=25 -t 8 -c:v libx264 -preset ultrafast -g 25 v.mp4");
    });
    let web = Web::serve(&path.join("v.mp4"), u64::MAX).await;
    let media = media();
    let ask = async || {
        let video = media.open(&web.url()).await.expect("opens");
        let pixels = PixelBudget { factor: 32, min_pixels: 1024, max_pixels: 4096 };
        media.overview(&video, &OVERVIEW, None, None, &pixels).await.expect("decodes")
    };
    let clips = join_all((0..100).map(|_| ask())).await;
    assert!(clips.iter().all(|clip| clip.frames[3].rgb.as_ptr() == clips[0].frames[3].rgb.as_ptr()));
    assert_eq!(media.load().cache_misses, 1);
    assert_eq!(media.load().cache_hits, 99);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cues_alone_give_the_same_frames_where_time_stamps_are_rounded() {
    for rate in ["30", "30000/1001"] {
        let recipe = format!(
            "-f lavfi -i color=black:s=16x4:r={rate} -vf {} -t 40 -c:v libx264 -preset ultrafast -bf 2 -pix_fmt yuv420p \
             -g 60 film.mkv",
            made::NUMBERED
        );
        let path = made::folder(&recipe, |folder| made::ffmpeg(folder, &recipe)).join("film.mkv");
        let web = Web::serve(&path, u64::MAX).await;
        let (afar, here) = (media(), media());
        let remote = afar.open(&web.url()).await.expect("opens");
        let local = here.open(&SourceRequest::Path(path)).await.expect("opens");
        for (start, end) in [(4.1, 4.9), (5.3, 19.8), (30.0, 39.9)] {
            let near = here.window(&local, span(start, end), &WINDOW, true, &AS_IT_IS).await.expect("decodes");
            let far = afar.window(&remote, span(start, end), &WINDOW, true, &AS_IT_IS).await.expect("decodes");
            assert_eq!(numbers(&far), numbers(&near), "{rate} {start}");
            assert!(!far.partial && far.frames.len() == 16, "{rate} {start}");
        }
    }
}
