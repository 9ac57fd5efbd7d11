//! The keys callers may show: looked up in constant time, read again when their file changes.
//!
//! Nothing of a key is kept but its hash, and nothing of it is logged, not even that.

mod follow;

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

use super::caller::Caller;
use crate::config::{KeyDigest, KeyEntry, KeyLimits, KeysError, MAX_KEY, ServerConfig, read_keys};

/// All keys. A file that is configured counts as no keys at all until it is read, never as none wanted.
#[derive(Debug)]
pub(super) struct Keyring {
    wanted: bool,
    /// Those of the configuration, which never change.
    own: Vec<Key>,
    file: Option<Box<Path>>,
    keys: RwLock<Arc<[Key]>>,
}

#[derive(Debug, Clone)]
struct Key {
    digest: KeyDigest,
    /// Seconds since 1970.
    expires_at: Option<i64>,
    caller: Caller,
}

/// Why a key does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyProblem {
    /// None of ours.
    Unknown,
    /// One of ours, of another time. Only its holder learns that.
    Expired,
}

impl Keyring {
    /// The configuration's own keys. Those of its file come with [`Self::load`].
    pub(super) fn new(config: &ServerConfig) -> Self {
        let caller = |place: usize| Caller::new(format!("config-{}", place + 1).into(), KeyLimits::default(), None);
        let key =
            |(place, digest): (usize, &KeyDigest)| Key { digest: *digest, expires_at: None, caller: caller(place) };
        let own: Vec<Key> = config.keys.digests().iter().enumerate().map(key).collect();
        let keys = RwLock::new(own.clone().into());
        Self { wanted: config.has_keys(), own, file: config.keys_file.as_deref().map(Box::from), keys }
    }

    /// Whether callers must show a key.
    pub(super) const fn wanted(&self) -> bool {
        self.wanted
    }

    /// Reads the file, if there is one, and takes its keys in place of those it had. Blocks.
    ///
    /// # Errors
    /// [`KeysError`]; the keys stay as they were.
    pub(super) fn load(&self) -> Result<(), KeysError> {
        let Some(path) = &self.file else { return Ok(()) };
        let entries = read_keys(path)?.into_iter().map(Key::from);
        let keys: Arc<[Key]> = self.own.iter().cloned().chain(entries).collect();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// How many there are.
    fn count(&self) -> usize {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Who shows this key at this time (seconds since 1970).
    ///
    /// All keys are compared, to their last byte, whether or not one matched: how long that takes says nothing.
    ///
    /// # Errors
    /// [`KeyProblem`].
    pub(super) fn find(&self, shown: &str, now: i64) -> Result<Caller, KeyProblem> {
        if shown.len() > MAX_KEY {
            return Err(KeyProblem::Unknown);
        }
        let digest = KeyDigest::of(shown);
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        let mut found = u32::MAX;
        for (place, key) in (0_u32..).zip(keys.iter()) {
            found.conditional_assign(&place, key.digest.bytes().ct_eq(digest.bytes()));
        }
        let key = usize::try_from(found).ok().and_then(|place| keys.get(place)).ok_or(KeyProblem::Unknown)?;
        if key.expires_at.is_some_and(|end| end <= now) {
            return Err(KeyProblem::Expired);
        }
        Ok(key.caller.clone().among(keys.len()))
    }
}

impl From<KeyEntry> for Key {
    fn from(entry: KeyEntry) -> Self {
        let expires_at = entry.expires_at();
        let caller = Caller::new(entry.name.into(), entry.limits, entry.models.map(Arc::from));
        Self { digest: entry.sha256, expires_at, caller }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const OWN: &str = "paravt-of-the-configuration";

    fn entry(name: &str, key: &str, rest: &str) -> String {
        format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{}\"\n{rest}\n", KeyDigest::of(key).hex())
    }

    fn keyring(file: Option<PathBuf>) -> Keyring {
        let keys = toml::Value::from(OWN).try_into().expect("a key");
        Keyring::new(&ServerConfig { keys, keys_file: file, ..ServerConfig::default() })
    }

    fn name(keyring: &Keyring, key: &str, now: i64) -> Result<String, KeyProblem> {
        keyring.find(key, now).map(|caller| caller.name().to_owned())
    }

    #[test]
    fn each_key_has_its_holder_until_it_expires() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = entry("a", "key-a", "models = [\"m\"]\nlimits = { max_running = 3 }")
            + &entry("b", "key-b", "expires = 1970-01-01T00:01:00Z");
        std::fs::write(file.path(), text).expect("written");
        let keyring = keyring(Some(file.path().to_owned()));
        assert_eq!(name(&keyring, "key-a", 0), Err(KeyProblem::Unknown), "the file is not read yet");
        keyring.load().expect("valid");
        assert_eq!(name(&keyring, OWN, 0).as_deref(), Ok("config-1"));
        let a = keyring.find("key-a", 0).expect("a key");
        assert_eq!((a.name(), a.limits().max_running), ("a", Some(3)));
        assert!(a.may_use("m") && !a.may_use("other"));
        assert_eq!(name(&keyring, "key-b", 59).as_deref(), Ok("b"));
        assert_eq!(name(&keyring, "key-b", 60), Err(KeyProblem::Expired));
        for wrong in ["", "key-", "key-a ", "KEY-A", &"x".repeat(MAX_KEY + 1), &KeyDigest::of("key-a").hex()] {
            assert_eq!(name(&keyring, wrong, 0), Err(KeyProblem::Unknown), "{wrong}");
        }
    }

    #[test]
    fn a_broken_file_keeps_the_keys_and_a_missing_one_leaves_none() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let ring = keyring(Some(file.path().to_owned()));
        std::fs::write(file.path(), entry("a", "key-a", "")).expect("written");
        ring.load().expect("valid");
        std::fs::write(file.path(), "[[keys]]\nname = ").expect("written");
        assert!(ring.load().is_err());
        assert!(name(&ring, "key-a", 0).is_ok());
        std::fs::write(file.path(), entry("b", "key-b", "")).expect("written");
        ring.load().expect("valid");
        assert_eq!((name(&ring, "key-a", 0).is_ok(), name(&ring, "key-b", 0).is_ok()), (false, true));

        let missing = Keyring::new(&ServerConfig { keys_file: Some("/no/such".into()), ..ServerConfig::default() });
        assert!(missing.load().is_err() && missing.wanted() && missing.find("key-a", 0).is_err());
        assert!(!Keyring::new(&ServerConfig::default()).wanted());
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let shown = format!("{:?}", keyring(None));
        let digest = format!("{:?}", KeyDigest::of(OWN).bytes());
        assert!(
            !shown.contains(OWN) && !shown.contains(&KeyDigest::of(OWN).hex()) && !shown.contains(&digest),
            "{shown}"
        );
    }
}
