//! ffmpeg and ffprobe: where they are, and child processes that are bounded and always reaped.
//!
//! This file knows nothing of frames or of what the arguments mean. It alone imports ffmpeg-sidecar.

mod counts;
mod exit;
mod limit;
mod process;

use std::ffi::OsString;
use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::{OnceCell, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::counts::{Alive, Counts};
pub(super) use self::exit::{Exit, again};
use self::limit::{Limits, limit};
pub(super) use self::process::{Control, Encoder, Output, Process};
use self::process::{Pipes, Spawned, no_pipes};
use super::MediaError;
use crate::config::MediaConfig;

/// What a child may see of our environment: enough to load its libraries, and no keys of ours.
const ENVIRONMENT: [&str; 5] = ["PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR"];
/// Bytes of ffprobe's address space.
const PROBE_BYTES: u64 = 2 << 30;
/// Longest line of a child's output that is kept whole.
const LINE_BYTES: usize = 4096;

/// Where ffmpeg is, and the processes it runs as. Cheap to clone; all clones share the limits.
#[derive(Debug, Clone)]
pub struct Ffmpeg {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ffmpeg: PathBuf,
    ffprobe: PathBuf,
    timeout: Duration,
    address_space: u64,
    slots: usize,
    max_pixels: u64,
    permits: Arc<Semaphore>,
    counts: Arc<Counts>,
    /// Owns the task that watches each child until it is reaped. Closed, so that [`TaskTracker::wait`] ends when empty.
    children: TaskTracker,
    version: OnceCell<String>,
    tone_maps: OnceCell<bool>,
}

/// Which program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// The decoder.
    Ffmpeg,
    /// The prober.
    Ffprobe,
}

/// What a child reads.
#[derive(Debug)]
pub(super) enum Input {
    /// Nothing.
    Nothing,
    /// A file, which it opens again by the name [`STDIN`]: its own name stays unknown, and can't be changed for another.
    File(File),
    /// What is written to [`Process::stdin`].
    Pipe,
}

/// The name under which a child finds an [`Input::File`] and can seek in it.
pub(super) const STDIN: &str = "file:/dev/fd/0";
/// The same of the file it is to write.
pub(super) const STDOUT: &str = "file:/dev/fd/1";

impl Ffmpeg {
    /// Looks in the configured folder, beside paravt (where a download lands), and on the path.
    ///
    /// # Errors
    /// [`MediaError::NoFfmpeg`] when ffmpeg or ffprobe is missing.
    pub fn find(config: &MediaConfig) -> Result<Self, MediaError> {
        let locate = |name: &str, sidecar: PathBuf| -> Option<PathBuf> {
            let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
            match &config.ffmpeg_directory {
                Some(folder) => Some(folder.join(file)).filter(|path| path.is_file()),
                None if sidecar.is_absolute() && sidecar.is_file() => Some(sidecar),
                None => on_path(&file),
            }
        };
        let ffmpeg = locate("ffmpeg", ffmpeg_sidecar::paths::ffmpeg_path()).ok_or(MediaError::NoFfmpeg)?;
        let ffprobe = locate("ffprobe", ffmpeg_sidecar::ffprobe::ffprobe_path()).ok_or(MediaError::NoFfmpeg)?;
        let children = TaskTracker::new();
        children.close();
        let slots = config.max_processes.clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            inner: Arc::new(Inner {
                ffmpeg,
                ffprobe,
                timeout: Duration::from_secs(config.decode_timeout_s),
                address_space: config.max_process_bytes,
                slots,
                max_pixels: config.max_pixels,
                permits: Arc::new(Semaphore::new(slots)),
                counts: Arc::default(),
                children,
                version: OnceCell::new(),
                tone_maps: OnceCell::new(),
            }),
        })
    }

    /// Where `ffmpeg` is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.ffmpeg
    }

    /// ffmpeg's own version, such as `7.1.1`.
    ///
    /// # Errors
    /// [`MediaError::Internal`] when the program does not run.
    pub async fn version(&self) -> Result<&str, MediaError> {
        let version = self.inner.version.get_or_try_init(|| async {
            let arguments = vec!["-hide_banner".into(), "-version".into()];
            let output = self.run(Program::Ffmpeg, arguments, Input::Nothing, "ffmpeg", 64 << 10).await?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.strip_prefix("ffmpeg version ")
                .and_then(|rest| rest.split_whitespace().next())
                .map(str::to_owned)
                .ok_or_else(|| MediaError::Internal("ffmpeg does not say its version".to_owned()))
        });
        version.await.map(String::as_str)
    }

    /// Children alive: started and not yet reaped.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.inner.counts.alive()
    }

    /// Children that ended with an error, or took too long. Those that nobody wanted any more are none of them.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.inner.counts.failures()
    }

    /// Waits until no child is left.
    pub async fn idle(&self) {
        self.inner.children.wait().await;
    }

    /// Processes that may run at the same time.
    pub(super) fn slots(&self) -> usize {
        self.inner.slots
    }

    /// Processes that are worth running side by side on this machine.
    pub(super) fn workers(&self) -> usize {
        std::thread::available_parallelism().map_or(1, NonZero::get).min(self.inner.slots)
    }

    /// Pixels of the largest picture to decode.
    pub(super) fn max_pixels(&self) -> u64 {
        self.inner.max_pixels
    }

    /// Seconds a process may take.
    pub(super) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// Starts a child, once one more is allowed.
    ///
    /// # Errors
    /// [`MediaError::NoFfmpeg`] when the program is gone, [`MediaError::Internal`] when it does not start.
    pub(super) async fn start(
        &self,
        program: Program,
        arguments: Vec<OsString>,
        input: Input,
    ) -> Result<Process, MediaError> {
        self.start_within(program, arguments, input, self.inner.timeout).await
    }

    /// Starts an encoder that reads from a pipe and writes a file of so many bytes at most, which it opens again as [`STDOUT`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(super) async fn start_writing(
        &self,
        arguments: Vec<OsString>,
        output: File,
        most: u64,
    ) -> Result<Encoder, MediaError> {
        let mut child =
            self.spawn(Program::Ffmpeg, arguments, Input::Pipe, self.inner.timeout, Some((output, most))).await?;
        let (Some(stdin), Some(stderr)) = (child.pipes.stdin.take(), child.pipes.stderr.take()) else {
            return Err(no_pipes());
        };
        Ok(Encoder { stdin, stderr, control: child.control })
    }

    /// As [`Self::start`] with its own time limit.
    pub(super) async fn start_within(
        &self,
        program: Program,
        arguments: Vec<OsString>,
        input: Input,
        timeout: Duration,
    ) -> Result<Process, MediaError> {
        let mut child = self.spawn(program, arguments, input, timeout, None).await?;
        let (Some(stdout), Some(stderr)) = (child.pipes.stdout.take(), child.pipes.stderr.take()) else {
            return Err(no_pipes());
        };
        Ok(Process {
            stdin: child.pipes.stdin.take(),
            stdout,
            stderr,
            #[cfg(test)]
            pid: child.pid,
            control: child.control,
        })
    }

    #[expect(clippy::disallowed_methods, reason = "what ffmpeg needs of the system's environment, no setting of ours")]
    async fn spawn(
        &self,
        program: Program,
        arguments: Vec<OsString>,
        input: Input,
        timeout: Duration,
        output: Option<(File, u64)>,
    ) -> Result<Spawned, MediaError> {
        let permit = Arc::clone(&self.inner.permits)
            .acquire_owned()
            .await
            .map_err(|_| MediaError::Internal("shutting down".to_owned()))?;
        let path = match program {
            Program::Ffmpeg => &self.inner.ffmpeg,
            Program::Ffprobe => &self.inner.ffprobe,
        };
        let file = output.as_ref().map_or(0, |(_, most)| *most);
        let mut command = Command::new(path);
        command
            .args(arguments)
            .env_clear()
            .envs(ENVIRONMENT.iter().filter_map(|name| std::env::var_os(name).map(|value| (name, value))))
            .stdin(match input {
                Input::Nothing => Stdio::null(),
                Input::File(file) => file.into(),
                Input::Pipe => Stdio::piped(),
            })
            .stdout(output.map_or_else(Stdio::piped, |(file, _)| file.into()))
            .stderr(Stdio::piped())
            // The last net: a runtime that shuts down drops the watcher, and with it the child.
            .kill_on_drop(true);
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => MediaError::NoFfmpeg,
            kind => MediaError::Internal(format!("ffmpeg does not start: {kind}")),
        })?;
        // ffprobe decodes a picture at most; a header that fills its memory is no header.
        let most = if program == Program::Ffprobe { PROBE_BYTES } else { u64::MAX };
        limit(&child, &Limits { address_space: self.inner.address_space.min(most), timeout, file });
        #[cfg(test)]
        let pid = child.id();
        let pipes = Pipes { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take() };
        let stop = CancellationToken::new();
        let (report, exit) = oneshot::channel();
        let alive = Alive::new(&self.inner.counts, permit);
        self.inner.children.spawn(watch(child, alive, stop.clone(), timeout, report));
        let control = Control { exit, _guard: stop.clone().drop_guard(), stop };
        Ok(Spawned {
            pipes,
            #[cfg(test)]
            pid,
            control,
        })
    }

    /// Runs a child to its end and keeps what it wrote, up to `limit` bytes.
    ///
    /// # Errors
    /// As [`Process::output`].
    pub(super) async fn run(
        &self,
        program: Program,
        arguments: Vec<OsString>,
        input: Input,
        what: &'static str,
        limit: usize,
    ) -> Result<Output, MediaError> {
        self.start(program, arguments, input).await?.output(what, limit).await
    }

    /// Whether this ffmpeg brings high dynamic range down: it may be built without zscale.
    ///
    /// # Errors
    /// As [`Process::output`].
    pub(super) async fn tone_maps(&self) -> Result<bool, MediaError> {
        let can = self.inner.tone_maps.get_or_try_init(|| async {
            let arguments: Vec<OsString> = ["-hide_banner", "-v", "error", "-filters"].map(Into::into).into();
            let output =
                again(|| self.run(Program::Ffmpeg, arguments.clone(), Input::Nothing, "ffmpeg", 1 << 20)).await?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let named = |filter: &str| text.lines().any(|line| line.split_whitespace().nth(1) == Some(filter));
            Ok(named("zscale") && named("tonemap"))
        });
        can.await.copied()
    }
}

/// Waits for a child's end, or brings it about; reaps it, then lets the next one start.
async fn watch(
    mut child: Child,
    alive: Alive,
    stop: CancellationToken,
    timeout: Duration,
    report: oneshot::Sender<Exit>,
) {
    let forced = tokio::select! {
        status = child.wait() => status.map(Exit::of).unwrap_or(Exit::Stopped),
        () = stop.cancelled() => Exit::Stopped,
        () = tokio::time::sleep(timeout) => Exit::TimedOut,
    };
    if matches!(forced, Exit::Stopped | Exit::TimedOut) {
        kill_group(&child);
        // Fails only for a child that has ended by now, which `wait` has then reaped.
        if let Err(error) = child.kill().await {
            tracing::debug!(error = %error.kind(), "killing a child");
        }
    }
    alive.ended(forced);
    if report.send(forced).is_err() {
        tracing::trace!("a child ended that nobody waited for");
    }
}

/// The file of this name in the first folder of the path that has one.
#[expect(clippy::disallowed_methods, reason = "the system's search path, no setting of ours")]
pub(super) fn on_path(file: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(file)).find(|path| path.is_file())
}

#[cfg(unix)]
fn kill_group(child: &Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid
        && let Err(error) = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL)
    {
        // The group may be gone already; `kill` on the child itself follows.
        tracing::debug!(%error, "killing a child's group");
    }
}

#[cfg(not(unix))]
fn kill_group(_child: &Child) {}

/// Calls `line` with each line of a pipe, the ends of overlong ones cut, until it ends or breaks.
pub(super) async fn each_line(pipe: &mut (impl AsyncRead + Unpin), mut line: impl FnMut(&str)) {
    let mut buffer = vec![0; 8192];
    let mut kept = Vec::new();
    loop {
        let read = match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        for byte in buffer.get(..read).unwrap_or_default() {
            if *byte == b'\n' {
                line(&String::from_utf8_lossy(&kept));
                kept.clear();
            } else if kept.len() < LINE_BYTES {
                kept.push(*byte);
            }
        }
    }
    if !kept.is_empty() {
        line(&String::from_utf8_lossy(&kept));
    }
}

/// Downloads a static build beside paravt.
///
/// # Errors
/// Words for the operator.
#[cfg(feature = "ffmpeg-download")]
pub(super) async fn download() -> Result<(), String> {
    match tokio::task::spawn_blocking(ffmpeg_sidecar::download::auto_download).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err("the download broke off".to_owned()),
    }
}

/// Built without the download.
#[cfg(not(feature = "ffmpeg-download"))]
pub(super) async fn download() -> Result<(), String> {
    std::future::ready(Err("this paravt was built without the feature ffmpeg-download".to_owned())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ffmpeg(change: impl FnOnce(&mut MediaConfig)) -> Ffmpeg {
        let mut config = MediaConfig::default();
        change(&mut config);
        Ffmpeg::find(&config).expect("these tests need ffmpeg")
    }

    /// A child that never ends by itself: it fills its pipe and waits.
    fn endless() -> Vec<OsString> {
        ["-v", "error", "-f", "lavfi", "-i", "testsrc=s=64x64", "-f", "rawvideo", "-"].map(Into::into).to_vec()
    }

    #[cfg(unix)]
    fn exists(pid: u32) -> bool {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
        rustix::process::test_kill_process(pid).is_ok()
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_dropped_process_is_killed_and_reaped() {
        let ffmpeg = ffmpeg(|_| ());
        let process = ffmpeg.start(Program::Ffmpeg, endless(), Input::Nothing).await.expect("starts");
        let pid = process.pid.expect("a pid");
        assert_eq!(ffmpeg.processes(), 1);
        assert!(exists(pid));
        drop(process);
        ffmpeg.idle().await;
        assert_eq!(ffmpeg.processes(), 0);
        assert!(!exists(pid));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_process_that_somebody_else_ends_was_killed() {
        use rustix::process::{Pid, Signal, kill_process};
        let ffmpeg = ffmpeg(|_| ());
        let process = ffmpeg.start(Program::Ffmpeg, endless(), Input::Nothing).await.expect("starts");
        let pid = process.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("a pid");
        kill_process(pid, Signal::KILL).expect("it is there");
        assert_eq!(process.control.exit().await, Exit::Killed);
    }

    #[tokio::test]
    async fn a_process_that_takes_too_long_is_ended() {
        let ffmpeg = ffmpeg(|_| ());
        let limit = Duration::from_millis(1);
        let (stdout, stderr, control) =
            ffmpeg.start_within(Program::Ffmpeg, endless(), Input::Nothing, limit).await.expect("starts").split();
        assert_eq!(control.exit().await, Exit::TimedOut);
        drop((stdout, stderr));
    }

    #[tokio::test]
    async fn no_more_processes_than_allowed() {
        let ffmpeg = ffmpeg(|config| config.max_processes = 1);
        let first = ffmpeg.start(Program::Ffmpeg, endless(), Input::Nothing).await.expect("starts");
        let mut second = Box::pin(ffmpeg.start(Program::Ffmpeg, endless(), Input::Nothing));
        assert!(futures::poll!(&mut second).is_pending());
        assert_eq!(ffmpeg.processes(), 1);
        drop(first);
        let second = second.await.expect("starts when the first is gone");
        drop(second);
        ffmpeg.idle().await;
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_process_is_bounded_in_memory_and_processor_time() {
        let ffmpeg = ffmpeg(|config| (config.max_process_bytes, config.decode_timeout_s) = (600 << 20, 10));
        let process = ffmpeg.start(Program::Ffmpeg, endless(), Input::Nothing).await.expect("starts");
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.pid.expect("a pid"))).expect("reads");
        let limit = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(limit("Max address space"), ["629145600", "629145600"]);
        assert_eq!(limit("Max cpu time"), ["40", "41"]);
        assert_eq!(limit("Max core file size"), ["0", "0"]);
        assert_eq!(limit("Max file size"), ["0", "0"]);
        assert_eq!(limit("Max open files"), ["64", "64"]);
    }

    #[tokio::test]
    async fn says_its_version() {
        let ffmpeg = ffmpeg(|_| ());
        let version = ffmpeg.version().await.expect("runs");
        assert!(version.starts_with(|c: char| c.is_ascii_alphanumeric()), "{version}");
        assert_eq!(ffmpeg.processes(), 0);
    }

    #[test]
    fn a_folder_without_ffmpeg_is_no_ffmpeg() {
        let folder = tempfile::tempdir().expect("tempdir");
        let config = MediaConfig { ffmpeg_directory: Some(folder.path().into()), ..MediaConfig::default() };
        assert!(matches!(Ffmpeg::find(&config), Err(MediaError::NoFfmpeg)));
    }

    #[tokio::test]
    async fn overlong_lines_are_cut() {
        let text = format!("{}\nshort\nlast", "x".repeat(100_000));
        let mut lines = Vec::new();
        each_line(&mut text.as_bytes(), |line| lines.push(line.to_owned())).await;
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES, 5, 4]);
    }
}
