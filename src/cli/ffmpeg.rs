//! Whether ffmpeg is there, and getting it where the operator lets us.

use super::view::View;
use super::{CliError, Environment, text};
use crate::config::MediaConfig;
use crate::media::{Ffmpeg, INSTALL_HINT, InstallReport, install};

/// `never`: say how, and leave the machine as it is.
const SWITCH: &str = "PARAVT_FFMPEG_INSTALL";

const INSTALLING: &str =
    "ffmpeg is missing: installing it with the system's package manager, else downloading a static build";

/// What was found, for people; `None` when something is missing.
pub(super) async fn found(config: &MediaConfig) -> Option<String> {
    let ffmpeg = Ffmpeg::find(config).ok()?;
    let version = ffmpeg.version().await.map_or_else(|_| "of unknown version".to_owned(), str::to_owned);
    Some(format!("{} {version}, with ffprobe", ffmpeg.path().display()))
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
