//! A child at work: its pipes, and the hold on it.

use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Exit, each_line};
use crate::media::MediaError;

/// A running child. Dropping it kills the child, and its watcher reaps it.
#[derive(Debug)]
pub(in crate::media) struct Process {
    /// Its standard input, where that is a pipe.
    pub(in crate::media) stdin: Option<ChildStdin>,
    /// Its standard output.
    pub(in crate::media) stdout: ChildStdout,
    /// Its standard error.
    pub(in crate::media) stderr: ChildStderr,
    #[cfg(test)]
    pub(super) pid: Option<u32>,
    pub(super) control: Control,
}

/// The hold on a child whose pipes are being read elsewhere.
#[derive(Debug)]
pub(in crate::media) struct Control {
    pub(super) exit: oneshot::Receiver<Exit>,
    pub(super) stop: CancellationToken,
    pub(super) _guard: DropGuard,
}

/// A running child that writes a file.
#[derive(Debug)]
pub(in crate::media) struct Encoder {
    /// Its standard input: dropped, it is closed.
    pub(in crate::media) stdin: ChildStdin,
    /// Its standard error.
    pub(in crate::media) stderr: ChildStderr,
    /// The hold on it.
    pub(in crate::media) control: Control,
}

/// A child as it was started.
pub(super) struct Spawned {
    pub(super) pipes: Pipes,
    #[cfg(test)]
    pub(super) pid: Option<u32>,
    pub(super) control: Control,
}

pub(super) struct Pipes {
    pub(super) stdin: Option<ChildStdin>,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
}

pub(super) fn no_pipes() -> MediaError {
    MediaError::Internal("ffmpeg has no pipes".to_owned())
}

impl Process {
    /// Takes the pipes it writes to off the hold.
    pub(in crate::media) fn split(self) -> (ChildStdout, ChildStderr, Control) {
        (self.stdout, self.stderr, self.control)
    }

    /// Its standard input, if that is a pipe: dropped, it is closed.
    pub(in crate::media) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// Waits for its end and keeps what it wrote, up to `limit` bytes.
    ///
    /// # Errors
    /// [`MediaError::Timeout`] with `what`, [`MediaError::Internal`] when it writes more.
    pub(in crate::media) async fn output(self, what: &'static str, limit: usize) -> Result<Output, MediaError> {
        let (stdout, mut stderr, control) = self.split();
        let mut kept = Vec::new();
        let read = async {
            let read = stdout.take(limit as u64 + 1).read_to_end(&mut kept).await;
            if kept.len() > limit {
                control.stop();
            }
            read
        };
        let (read, ()) = tokio::join!(read, each_line(&mut stderr, |_| ()));
        let exit = control.exit().await;
        match (exit, read) {
            (Exit::TimedOut, _) => Err(MediaError::Timeout(what)),
            (Exit::Killed, _) => Err(MediaError::Killed),
            _ if kept.len() > limit => Err(MediaError::Internal(format!("{what} says too much"))),
            (_, Err(error)) => Err(MediaError::Internal(format!("{what}: {}", error.kind()))),
            (exit, Ok(_)) => Ok(Output { exit, stdout: kept }),
        }
    }
}

impl Control {
    /// Kills the child: what it could still say is not needed.
    pub(in crate::media) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the child is reaped.
    pub(in crate::media) async fn exit(self) -> Exit {
        self.exit.await.unwrap_or(Exit::Stopped)
    }
}

/// All that a short run said.
#[derive(Debug)]
pub(in crate::media) struct Output {
    /// How it ended.
    pub(in crate::media) exit: Exit,
    /// Its standard output.
    pub(in crate::media) stdout: Vec<u8>,
}
