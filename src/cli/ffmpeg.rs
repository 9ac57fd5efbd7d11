//! Whether ffmpeg is there, and getting it where the operator lets us.

use std::time::{Duration, Instant};

use super::view::View;
use super::{CliError, Environment, text};
use crate::config::MediaConfig;
use crate::media::{Ffmpeg, INSTALL_HINT, InstallReport, install};

/// `never`: say how, and leave the machine as it is.
const SWITCH: &str = "PARAVT_FFMPEG_INSTALL";

const INSTALLING: &str =
    "ffmpeg is missing: installing it with the system's package manager, else downloading a static build";

/// Oldest major version that is worth a try, and the oldest that the tests run with.
const OLDEST: u32 = 4;
const TESTED: u32 = 5;
/// Starting takes a static build about 30 ms, and one with hundreds of shared libraries several times as long.
const SLOW: Duration = Duration::from_millis(80);

/// An ffmpeg that is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// What it is, for people, with what is to be said of it.
    pub(super) detail: String,
    /// Whether it is too old for what it is asked to do: it would seem that all videos are damaged.
    pub(super) too_old: bool,
}

/// What was found; `None` when something is missing.
pub(super) async fn found(config: &MediaConfig) -> Option<Found> {
    let ffmpeg = Ffmpeg::find(config).ok()?;
    let began = Instant::now();
    let version = ffmpeg.version().await.map_or_else(|_| "of unknown version".to_owned(), str::to_owned);
    Some(judged(&ffmpeg.path().display().to_string(), &version, began.elapsed()))
}

fn judged(path: &str, version: &str, start: Duration) -> Found {
    // Builds of no release are named after their commit (`N-113000-g…`): recent, most likely.
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    let too_old = major.is_some_and(|major| major < OLDEST);
    let mut detail = format!("{path} {version}, with ffprobe, starts in {:.2} s", start.as_secs_f64());
    if too_old {
        detail.push_str(", too old");
    } else if major.is_some_and(|major| major < TESTED) {
        detail.push_str(&format!(" (older than {TESTED}, the oldest the tests run with)"));
    }
    if start > SLOW {
        detail.push_str(" (short videos wait for that: a static build in media.ffmpeg_directory takes about 0.03 s)");
    }
    Found { detail, too_old }
}

/// How to get it, on one line.
pub(super) fn hint() -> String {
    INSTALL_HINT.lines().collect::<Vec<_>>().join("; ")
}

/// Installs it where it is missing, saying so.
///
/// # Errors
/// When it is missing still, with what was tried and how to get it by hand; where it must not be installed, at once.
pub(super) async fn provide(config: &MediaConfig, environment: &Environment, view: &View) -> Result<(), CliError> {
    if Ffmpeg::find(config).is_ok() {
        return Ok(());
    }
    if environment.get(SWITCH) == Some("never") {
        return Err(CliError::Failed(format!("ffmpeg is not installed, and {SWITCH}=never. {}", hint())));
    }
    outcome(&install_asked(config, view).await?)
}

/// Installs it where it is missing, for one who asked for it. What came of it is in the report.
pub(super) async fn install_asked(config: &MediaConfig, view: &View) -> Result<InstallReport, CliError> {
    let report = {
        let _wait = if Ffmpeg::find(config).is_err() { Some(view.wait(INSTALLING)?) } else { None };
        install(config).await
    };
    report.steps.iter().try_for_each(|step| view.note(&format!("ffmpeg    {}", text::line(step))))?;
    Ok(report)
}

fn outcome(report: &InstallReport) -> Result<(), CliError> {
    if report.installed {
        return Ok(());
    }
    let tried = report.steps.join("; ");
    Err(CliError::Failed(format!("ffmpeg could not be installed ({tried}). {}", hint())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Target;

    #[tokio::test]
    async fn never_means_never_and_says_how() {
        let empty = tempfile::tempdir().expect("folder");
        let config = MediaConfig { ffmpeg_directory: Some(empty.path().into()), ..MediaConfig::default() };
        let environment: Environment = [(SWITCH.to_owned(), "never".to_owned())].into_iter().collect();
        let view = View::silent(Target::Stderr);
        let error = provide(&config, &environment, &view).await.expect_err("missing");
        assert!(error.to_string().contains("apt-get install ffmpeg"), "{error}");
        assert_eq!(std::fs::read_dir(empty.path()).expect("reads").count(), 0);
        assert_eq!(found(&config).await, None);
    }

    #[test]
    fn an_old_or_slow_ffmpeg_is_told() {
        let judge = |version: &str, ms| judged("/bin/ffmpeg", version, Duration::from_millis(ms));
        for (version, too_old) in [("3.4.2", true), ("4.4.2-0ubuntu1", false), ("7.1", false), ("N-90000-gab", false)] {
            assert_eq!(judge(version, 10).too_old, too_old, "{version}");
        }
        assert!(judge("4.4.2", 10).detail.contains("older than 5"));
        assert!(!judge("5.1.6-0+deb12u1", 10).detail.contains("older"));
        assert!(judge("7.1", 140).detail.contains("starts in 0.14 s (short videos wait"));
    }

    #[test]
    fn a_failed_installation_tells_what_was_tried() {
        let report = InstallReport {
            installed: false,
            steps: vec!["apt-get: works only as root".to_owned()],
            hint: String::new(),
        };
        let error = outcome(&report).expect_err("failed").to_string();
        assert!(error.contains("apt-get: works only as root") && error.contains("brew install ffmpeg"), "{error}");
    }
}
