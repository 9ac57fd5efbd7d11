//! What generates text, and with which model.

use std::path::PathBuf;

use serde::Deserialize;

use super::ConfigError;

/// Settings of the engine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Which engine. By default `remote` when there are upstreams, else `native`.
    pub kind: Option<EngineKind>,
    /// The model card: a folder with a `card.toml`, or the name of a bundled card. By default `paravt-tiny`.
    pub card: Option<PathBuf>,
    /// A checkpoint folder to load in place of the card's.
    pub model_directory: Option<PathBuf>,
    /// Servers that speak OpenAI's API, all with the same model.
    pub upstreams: Vec<Upstream>,
    /// The model's name at the upstreams. By default the card's.
    pub upstream_model: Option<String>,
    /// Requests waiting in the engine before it refuses more. 0 leaves the engine's own bound: 256 for `native` and
    /// `mistralrs`, 1024 for `remote`. The scripted engine has none.
    pub max_queued: usize,
    /// Longest prompt in tokens, frames included, that the embedded engines take. 0 leaves their own bound: the model's
    /// context; for `mistralrs` on the CPU 8192, since it can't stop reading one when the caller leaves. Upstreams have
    /// bounds of their own.
    pub max_prompt_tokens: u32,
    /// Memory in bytes for keys and values in the `native` engine, and in no other. Requests that do not fit at the same time
    /// wait; what does not fit alone is too long. 0: 2 GiB on the CPU, 8 GiB on a GPU, and never more than 65,536 tokens
    /// take.
    pub kv_cache_bytes: u64,
    /// Memory in bytes for encoded pictures in the `native` engine, and in no other, and a quarter as much again, at least 8
    /// MiB, for texts that were tokenized. 0: 256 MiB.
    pub vision_cache_bytes: u64,
    /// Pixels in bytes that all requests in the `native` engine, and in no other, may hold together. More are refused. 0: 4
    /// GiB.
    pub max_pixel_bytes: u64,
    /// How the `native` engine, and no other, keeps the decoder's weights. By default as the checkpoint has them.
    pub quantization: Option<QuantizationKind>,
    /// Script of the scripted engine (JSON), for load tests without weights.
    pub script: Option<PathBuf>,
    /// Folder for downloaded checkpoints. By default the Hugging Face cache.
    pub cache_directory: Option<PathBuf>,
    /// Never ask the Hub, use what is cached.
    pub offline: bool,
}

impl EngineConfig {
    /// Which engine is meant: as configured, else upstreams where there are some, else the embedded one.
    #[must_use]
    pub fn chosen_kind(&self) -> EngineKind {
        self.kind.unwrap_or(if self.upstreams.is_empty() { EngineKind::EMBEDDED } else { EngineKind::Remote })
    }

    /// Checks that nothing is set that the chosen engine would not heed. Apart from [`super::Config::check`], since the
    /// command line may still choose another engine than the file does.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first such setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        let of_native = [
            ("engine.kv_cache_bytes", self.kv_cache_bytes > 0),
            ("engine.vision_cache_bytes", self.vision_cache_bytes > 0),
            ("engine.max_pixel_bytes", self.max_pixel_bytes > 0),
            ("engine.quantization", self.quantization.is_some()),
        ];
        match of_native.into_iter().find(|(_, set)| *set && self.chosen_kind() != EngineKind::Native) {
            Some((field, _)) => Err(ConfigError::Value { field, problem: "is for the engine `native` alone" }),
            None => Ok(()),
        }
    }
}

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Embedded, our own.
    Native,
    /// Embedded, through the mistralrs crate.
    Mistralrs,
    /// Upstream servers over HTTP.
    Remote,
    /// Replays a script: no weights.
    Scripted,
}

impl EngineKind {
    /// The embedded engine that is used unless another is named: of those that were built in, the better one.
    pub const EMBEDDED: Self =
        if cfg!(feature = "mistralrs") && !cfg!(feature = "native") { Self::Mistralrs } else { Self::Native };

    /// Whether it runs a checkpoint in this process.
    #[must_use]
    pub const fn is_embedded(self) -> bool {
        matches!(self, Self::Native | Self::Mistralrs)
    }

    /// Whether it takes frames in pairs. The scripted one takes anything.
    #[must_use]
    pub const fn reads_frame_pairs(self) -> bool {
        matches!(self, Self::Native | Self::Scripted)
    }

    /// Whether this program has it.
    #[must_use]
    pub const fn is_built_in(self) -> bool {
        match self {
            Self::Native => cfg!(feature = "native"),
            Self::Mistralrs => cfg!(feature = "mistralrs"),
            Self::Remote | Self::Scripted => true,
        }
    }

    /// Its name in configurations and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Mistralrs => "mistralrs",
            Self::Remote => "remote",
            Self::Scripted => "scripted",
        }
    }
}

/// Fewer bits for weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuantizationKind {
    /// 8 bits, blocks of 32 with a scale of 16 bits.
    #[serde(rename = "q8_0")]
    Q8,
    /// 4.5 bits, blocks of 256.
    #[serde(rename = "q4k")]
    Q4,
}

/// One upstream server.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// Base URL, with the `/v1`.
    pub url: String,
    /// Bearer key.
    #[serde(default)]
    pub api_key: Option<String>,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream")
            .field("url", &self.url)
            .field("api_key", &self.api_key.as_ref().map(|_| "…"))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_the_native_engine_heeds_is_an_error_for_the_others() {
        let native = EngineConfig { kind: Some(EngineKind::Native), ..EngineConfig::default() };
        for (config, key) in [
            (EngineConfig { kv_cache_bytes: 1 << 30, ..native.clone() }, "engine.kv_cache_bytes"),
            (EngineConfig { vision_cache_bytes: 1 << 30, ..native.clone() }, "engine.vision_cache_bytes"),
            (EngineConfig { max_pixel_bytes: 1 << 30, ..native.clone() }, "engine.max_pixel_bytes"),
            (EngineConfig { quantization: Some(QuantizationKind::Q8), ..native }, "engine.quantization"),
        ] {
            assert!(config.check().is_ok());
            for kind in [EngineKind::Mistralrs, EngineKind::Remote, EngineKind::Scripted] {
                let error = EngineConfig { kind: Some(kind), ..config.clone() }.check().expect_err(key);
                assert!(matches!(error, ConfigError::Value { field, .. } if field == key), "{error}");
            }
            let upstream = Upstream { url: "http://localhost/v1".to_owned(), api_key: None };
            assert!(EngineConfig { kind: None, upstreams: vec![upstream], ..config }.check().is_err());
        }
        assert!(EngineConfig { kind: Some(EngineKind::Remote), ..EngineConfig::default() }.check().is_ok());
    }
}
