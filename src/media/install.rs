//! Getting ffmpeg where it is missing: the system's package manager, or a download. Only when the operator asks.
//!
//! This file knows nothing of videos.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::{Ffmpeg, ffmpeg};
use crate::config::MediaConfig;

/// Longest a package manager may take.
const PATIENCE: Duration = Duration::from_secs(900);

/// How a person gets ffmpeg, one line a platform.
pub const INSTALL_HINT: &str = "Debian, Ubuntu: sudo apt-get install ffmpeg
Fedora: sudo dnf install ffmpeg-free
Alpine: sudo apk add ffmpeg
Arch: sudo pacman -S ffmpeg
macOS: brew install ffmpeg
Windows: winget install ffmpeg
Or put ffmpeg and ffprobe in a folder and set media.ffmpeg_directory to it.";

/// What an installation did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallReport {
    /// Whether ffmpeg and ffprobe are there now.
    pub installed: bool,
    /// What was tried and what came of it, in order.
    pub steps: Vec<String>,
    /// How to get it by hand; empty when it is there.
    pub hint: String,
}

impl InstallReport {
    fn new(installed: bool, steps: Vec<String>) -> Self {
        Self { installed, steps, hint: if installed { String::new() } else { INSTALL_HINT.to_owned() } }
    }
}

/// A package manager and the commands that install ffmpeg with it.
struct Manager {
    program: &'static str,
    needs_root: bool,
    commands: &'static [&'static [&'static str]],
}

const MANAGERS: [Manager; 5] = [
    Manager {
        program: "apt-get",
        needs_root: true,
        commands: &[&["update"], &["install", "-y", "--no-install-recommends", "ffmpeg"]],
    },
    Manager { program: "dnf", needs_root: true, commands: &[&["install", "-y", "ffmpeg-free"]] },
    Manager { program: "apk", needs_root: true, commands: &[&["add", "--no-cache", "ffmpeg"]] },
    Manager { program: "pacman", needs_root: true, commands: &[&["-Sy", "--noconfirm", "--needed", "ffmpeg"]] },
    Manager { program: "brew", needs_root: false, commands: &[&["install", "ffmpeg"]] },
];

/// Installs ffmpeg where it is missing: by the system's package manager when that needs no password, else by
/// ffmpeg-sidecar's download (feature `ffmpeg-download`). Never fails: what went wrong is in the report.
pub async fn install(config: &MediaConfig) -> InstallReport {
    let there = || Ffmpeg::find(config).is_ok();
    if there() {
        return InstallReport::new(true, vec!["ffmpeg is there already".to_owned()]);
    }
    let mut steps = Vec::new();
    if config.ffmpeg_directory.is_some() {
        steps.push("media.ffmpeg_directory is set, but ffmpeg and ffprobe are not in it".to_owned());
        return InstallReport::new(false, steps);
    }
    for manager in MANAGERS.iter().filter(|manager| ffmpeg::on_path(manager.program).is_some()) {
        if manager.needs_root != is_root() {
            let who = if manager.needs_root { "only as root" } else { "not as root" };
            steps.push(format!("{} is there, but works {who}", manager.program));
            continue;
        }
        let outcome = run(manager).await;
        let found = there();
        steps.push(match (&outcome, found) {
            (Ok(()), true) => format!("{} installed ffmpeg", manager.program),
            (Ok(()), false) => format!("{} went well, but ffmpeg is not on the path", manager.program),
            (Err(problem), _) => format!("{}: {problem}", manager.program),
        });
        if found {
            return InstallReport::new(true, steps);
        }
    }
    let step = match ffmpeg::download().await {
        Ok(()) => "downloaded a static build".to_owned(),
        Err(problem) => format!("download: {problem}"),
    };
    steps.push(step);
    InstallReport::new(there(), steps)
}

#[cfg(unix)]
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

async fn run(manager: &Manager) -> Result<(), String> {
    for arguments in manager.commands {
        let mut command = Command::new(manager.program);
        command
            .args(*arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let status = tokio::time::timeout(PATIENCE, command.status())
            .await
            .map_err(|_| "took too long".to_owned())?
            .map_err(|error| error.kind().to_string())?;
        // A stale or partly unreachable index may still hold the package: only the last command decides.
        if !status.success() && manager.commands.last() == Some(arguments) {
            return Err(format!("{} failed ({status})", arguments.join(" ")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_done_where_ffmpeg_is_there() {
        let report = install(&MediaConfig::default()).await;
        assert_eq!(report, InstallReport::new(true, vec!["ffmpeg is there already".to_owned()]));
        assert!(report.hint.is_empty());
    }

    #[tokio::test]
    async fn a_configured_folder_is_left_alone() {
        let folder = tempfile::tempdir().expect("tempdir");
        let config = MediaConfig { ffmpeg_directory: Some(folder.path().into()), ..MediaConfig::default() };
        let report = install(&config).await;
        assert!(!report.installed);
        assert_eq!(report.steps.len(), 1);
        assert!(report.hint.contains("apt-get"));
        assert_eq!(std::fs::read_dir(folder.path()).expect("reads").count(), 0);
    }
}
