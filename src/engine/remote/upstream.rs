//! Where an upstream is and how it is asked in. Checked at start; keys never leave it but in the header.

use sha2::{Digest as _, Sha256};
use url::Url;

use super::frames::first_bytes;
use crate::config::Upstream;
use crate::engine::EngineError;

/// One upstream server.
pub(super) struct Target {
    /// The address of chat completions.
    pub(super) url: Url,
    /// `Authorization` header.
    pub(super) authorization: Option<String>,
    /// What must not appear in messages.
    pub(super) secrets: Vec<String>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

impl Target {
    /// Checks one entry of the configuration; `number` names it in messages.
    ///
    /// # Errors
    /// [`EngineError::Load`] that says what is wrong with it, without showing it.
    pub(super) fn new(upstream: &Upstream, number: usize) -> Result<Self, EngineError> {
        let wrong = |problem: &str| EngineError::Load(format!("upstream {number}: {problem}"));
        let mut url: Url = upstream.url.trim().parse().map_err(|_| wrong("its url is not one"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("its url must begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("its url must hold no password; give the key as api_key"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("its url must be a base such as http://host:8000/v1, with nothing behind it"));
        }
        let mut secrets: Vec<String> = url.host_str().map(ToOwned::to_owned).into_iter().collect();
        url.path_segments_mut()
            .map_err(|()| wrong("its url is not one"))?
            .pop_if_empty()
            .extend(["chat", "completions"]);
        let key = upstream.api_key.as_deref().map(str::trim).filter(|key| !key.is_empty());
        if key.is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(wrong("its api_key holds characters that a header can't"));
        }
        secrets.extend(key.map(ToOwned::to_owned));
        Ok(Self { url, authorization: key.map(|key| format!("Bearer {key}")), secrets })
    }

    /// The same in every front end that asks it under this address.
    pub(super) fn name(&self) -> u64 {
        first_bytes(Sha256::digest(self.url.as_str()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str, key: Option<&str>) -> Result<Target, EngineError> {
        Target::new(&Upstream { url: url.to_owned(), api_key: key.map(ToOwned::to_owned) }, 1)
    }

    #[test]
    fn completions_are_below_the_base() {
        for base in ["http://a:1/v1", "http://a:1/v1/"] {
            assert_eq!(target(base, None).expect("valid").url.as_str(), "http://a:1/v1/chat/completions");
        }
        assert_eq!(target("https://a", None).expect("valid").url.as_str(), "https://a/chat/completions");
    }

    #[test]
    fn what_can_not_be_a_base_is_refused_without_showing_it() {
        for url in ["", "a:1/v1", "ftp://secret/v1", "http://secret:pw@a/v1", "http://a/v1?secret=1", "/v1", "http://"]
        {
            let error = target(url, None).expect_err("refused").to_string();
            assert!(error.contains("upstream 1") && !error.contains("secret"), "{url}: {error}");
        }
        assert!(target("http://a", Some("two\nlines")).is_err());
    }

    #[test]
    fn the_key_is_in_no_debug_text() {
        let target = target("http://a", Some("sk-secret")).expect("valid");
        assert_eq!(target.authorization.as_deref(), Some("Bearer sk-secret"));
        assert!(!format!("{target:?}").contains("sk-secret"));
    }
}
