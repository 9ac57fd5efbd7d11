//! `paravt keys`: keys for callers of the server.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};

use super::output::Target;
use super::{CliError, text};
use crate::config::{KeyDigest, KeyEntry, KeysError, read_keys};

/// What keys begin with, so that people and scanners for leaked secrets know them.
const PREFIX: &str = "paravt-";

/// Arguments of `keys`.
#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key, print it once, and print its entry for the file of keys (`server.keys_file`)
    New(NewArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// What the key is called in logs and in the queue
    #[arg(long, value_name = "NAME")]
    name: String,
    /// File of keys to append the entry to, made if it is not there; only the key is printed then
    #[arg(long, value_name = "FILE")]
    append: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &KeysArgs) -> Result<(), CliError> {
    let KeysCommand::New(args) = &args.command;
    if !KeyEntry::is_name(&args.name) {
        return Err(CliError::Usage("--name: 1 to 64 letters, digits or -._".to_owned()));
    }
    let key = fresh()?;
    let entry = entry(&args.name, &key);
    let Some(file) = &args.append else { return Ok(Target::Stdout.line(&format!("{key}\n\n{entry}"))?) };
    append(file, &args.name, &entry)?;
    Target::Stdout.line(&key)?;
    let (name, file) = (&args.name, text::line(&file.display().to_string()));
    Ok(Target::Stderr.line(&format!("{name} is in {file}; the key is shown only here"))?)
}

/// 256 bits of the system's randomness: they can't be guessed, so a plain SHA-256 of them is safe to keep.
fn fresh() -> Result<String, CliError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| CliError::Failed(format!("no randomness: {error}")))?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

fn entry(name: &str, key: &str) -> String {
    format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{}\"", KeyDigest::of(key).hex())
}

/// Appends in one write, so that a server that reads the file meanwhile sees it as it was or as it is. The file keeps its
/// owner and its mode; a new one is its owner's alone.
fn append(file: &Path, name: &str, entry: &str) -> Result<(), CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(error.to_string());
    match read_keys(file) {
        Ok(entries) if entries.iter().any(|entry| entry.name == name) => {
            return Err(failed(&format_args!("{} has a key called {name} already", file.display())));
        }
        Ok(_) => {}
        Err(KeysError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&error)),
    }
    let opened = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(format!("\n{entry}\n").as_bytes()));
    written.map_err(|error| failed(&format_args!("can't write {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_another_and_its_entry_holds_its_hash_alone() {
        let (one, other) = (fresh().expect("a key"), fresh().expect("a key"));
        assert_ne!(one, other);
        assert_eq!((one.len(), one.starts_with(PREFIX)), (PREFIX.len() + 43, true));
        let entry = entry("a", &one);
        assert!(entry.contains(&KeyDigest::of(&one).hex()) && !entry.contains(&one[PREFIX.len()..]));
    }

    #[test]
    fn appended_entries_make_a_file_that_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("keys.toml");
        for name in ["a", "b"] {
            append(&file, name, &entry(name, name)).expect("appended");
        }
        let names: Vec<String> = read_keys(&file).expect("reads").into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["a", "b"]);
        let error = append(&file, "a", &entry("a", "again")).expect_err("twice");
        assert!(error.to_string().contains("already"), "{error}");
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).expect("there")) & 0o777;
        assert_eq!(mode, 0o600);
        std::fs::write(&file, "nonsense").expect("written");
        assert!(append(&file, "c", &entry("c", "c")).is_err());
        assert_eq!(std::fs::read_to_string(&file).expect("reads"), "nonsense");
    }
}
