//! Files that clients upload.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::{ConfigError, positive};

/// Limits and the place of uploaded files.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilesConfig {
    /// Folder that keeps them, made where it is missing. Several servers may share one: limits count what is in it. By default
    /// a folder of this process's own below the system's for temporary files, which goes with the process.
    pub directory: Option<PathBuf>,
    /// Largest file in bytes.
    pub max_bytes: u64,
    /// Bytes of all files together, those on their way included.
    pub quota_bytes: u64,
    /// Of these, the bytes that the files of one key may take. Without keys nobody has a share: all is everybody's.
    pub owner_quota_bytes: u64,
    /// Most files. Those of one key may be half of them.
    pub max_files: usize,
    /// Uploads at the same time. Those of one key may be half of them.
    pub max_uploads: usize,
    /// Seconds a file is kept, where its upload does not ask for more or less.
    pub expire_after_s: u64,
    /// Seconds a client may send nothing of an upload that is not complete yet.
    pub idle_timeout_s: u64,
    /// Bytes a second that must come on average, over `idle_timeout_s` each time. Who sends as many may take as long as it
    /// takes.
    pub min_bytes_per_s: u64,
}

impl Default for FilesConfig {
    fn default() -> Self {
        Self {
            directory: None,
            max_bytes: 8 << 30,
            quota_bytes: 32 << 30,
            owner_quota_bytes: 16 << 30,
            max_files: 10_000,
            max_uploads: 16,
            expire_after_s: 24 * 3600,
            idle_timeout_s: 30,
            min_bytes_per_s: 16 << 10,
        }
    }
}

impl FilesConfig {
    pub(super) fn check(&self, allowed_directories: &[PathBuf]) -> Result<(), ConfigError> {
        positive(self.max_bytes, "files.max_bytes")?;
        positive(self.max_files as u64, "files.max_files")?;
        positive(self.max_uploads as u64, "files.max_uploads")?;
        positive(self.expire_after_s, "files.expire_after_s")?;
        positive(self.idle_timeout_s, "files.idle_timeout_s")?;
        // Else a file of a size we take could never be kept.
        let problem = "must not be below files.max_bytes";
        if self.quota_bytes < self.max_bytes {
            return Err(ConfigError::Value { field: "files.quota_bytes", problem });
        }
        if self.owner_quota_bytes < self.max_bytes {
            return Err(ConfigError::Value { field: "files.owner_quota_bytes", problem });
        }
        if let Some(directory) = &self.directory
            && allowed_directories.iter().any(|allowed| resolved(directory).starts_with(resolved(allowed)))
        {
            // Whoever knows a file's name could read it as file://, whoever's it is.
            let problem = "must not be below a folder of media.allowed_directories";
            return Err(ConfigError::Value { field: "files.directory", problem });
        }
        Ok(())
    }
}

/// Without links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = absolute.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    match there {
        // What does not exist has no links: `..` is the folder it is written behind.
        Some((part, mut real)) => {
            for component in absolute.strip_prefix(part).unwrap_or(Path::new("")).components() {
                match component {
                    Component::ParentDir => drop(real.pop()),
                    component => real.push(component),
                }
            }
            real
        }
        None => absolute,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_refused() {
        let fine = FilesConfig::default;
        assert!(fine().check(&[]).is_ok());
        assert!(FilesConfig { quota_bytes: 5, max_bytes: 6, ..fine() }.check(&[]).is_err());
        assert!(FilesConfig { owner_quota_bytes: 5, max_bytes: 6, ..fine() }.check(&[]).is_err());
        assert!(FilesConfig { max_uploads: 0, ..fine() }.check(&[]).is_err());
        let at = FilesConfig { directory: Some(PathBuf::from("/srv/videos/files")), ..fine() };
        assert!(at.check(&[PathBuf::from("/srv/other")]).is_ok());
        assert!(at.check(&[PathBuf::from("/srv/videos")]).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_leads_nobody_to_the_files_of_others() {
        let root = tempfile::tempdir().expect("a folder");
        let (videos, link) = (root.path().join("videos"), root.path().join("link"));
        std::fs::create_dir(&videos).expect("made");
        std::os::unix::fs::symlink(&videos, &link).expect("made");
        for (directory, allowed, fine) in [
            (link.join("files"), &videos, false),
            (videos.join("new/files"), &link, false),
            (root.path().join("new/../videos/files"), &videos, false),
            (root.path().join("files"), &link, true),
        ] {
            let config = FilesConfig { directory: Some(directory), ..FilesConfig::default() };
            assert_eq!(config.check(std::slice::from_ref(allowed)).is_ok(), fine, "{config:?}");
        }
    }
}
