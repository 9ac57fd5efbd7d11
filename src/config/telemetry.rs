//! Where traces go.
//!
//! Off without an endpoint. OpenTelemetry's own variables are understood beside ours, which win over them (but for single headers:
//! see `telemetry::otlp`).

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use url::Url;

use super::ConfigError;

/// OpenTelemetry's variables, and the fields they set.
const STANDARD: [(&str, &str); 4] = [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "otlp_endpoint"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "otlp_headers"),
    ("OTEL_SERVICE_NAME", "service_name"),
    ("OTEL_TRACES_SAMPLER_ARG", "sample_ratio"),
];
/// Below the endpoint, as OTLP over HTTP has it.
const PATH: [&str; 2] = ["v1", "traces"];

/// Settings of traces.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Base of the collector's address for OTLP over HTTP, such as `http://collector:4318`; spans are sent to `/v1/traces`
    /// below it. Not set: no traces. Also `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub otlp_endpoint: Option<String>,
    /// Headers sent along, a collector's key for one. Also `OTEL_EXPORTER_OTLP_HEADERS` (`name=value,name=value`).
    pub otlp_headers: BTreeMap<String, String>,
    /// The name under which the server appears. Also `OTEL_SERVICE_NAME`.
    pub service_name: String,
    /// The share of requests that are traced, 0 to 1, of those whose `traceparent` does not say. Also
    /// `OTEL_TRACES_SAMPLER_ARG`.
    pub sample_ratio: f64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_headers: BTreeMap::new(),
            service_name: "paravt".to_owned(),
            sample_ratio: 1.0,
        }
    }
}

/// Headers hold keys: their names alone are shown.
impl fmt::Debug for TelemetryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelemetryConfig")
            .field("otlp_endpoint", &self.otlp_endpoint)
            .field("otlp_headers", &self.otlp_headers.keys())
            .field("service_name", &self.service_name)
            .field("sample_ratio", &self.sample_ratio)
            .finish()
    }
}

impl TelemetryConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field, problem| Err(ConfigError::Value { field, problem });
        if self.otlp_endpoint.is_some() && self.traces_url().is_none() {
            return wrong(
                "telemetry.otlp_endpoint",
                "must be a base such as http://collector:4318, without a password or a query (keys are otlp_headers)",
            );
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return wrong("telemetry.sample_ratio", "must be between 0 and 1");
        }
        if self.service_name.trim().is_empty() {
            return wrong("telemetry.service_name", "must not be empty");
        }
        let is_token = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let is_visible = |value: &str| value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if !self.otlp_headers.iter().all(|(name, value)| is_token(name) && is_visible(value)) {
            return wrong("telemetry.otlp_headers", "must hold names and values that a header can carry");
        }
        Ok(())
    }

    /// Where spans are sent; `None` without an endpoint, or with one that is none.
    #[must_use]
    pub fn traces_url(&self) -> Option<Url> {
        let mut url: Url = self.otlp_endpoint.as_deref()?.trim().parse().ok()?;
        let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        if !matches!(url.scheme(), "http" | "https") || !plain || url.fragment().is_some() {
            return None;
        }
        // Whoever names the whole of it means the same.
        if !url.path().trim_end_matches('/').ends_with("/v1/traces") {
            url.path_segments_mut().ok()?.pop_if_empty().extend(PATH);
        }
        Some(url)
    }
}

/// The field of `[telemetry]` that one of OpenTelemetry's variables sets, and its value. `None`: it is none of them, or empty,
/// which by their rules is as good as not set.
pub(super) fn standard(name: &str, value: &str) -> Option<(&'static str, toml::Value)> {
    let (_, field) = STANDARD.iter().find(|(known, _)| *known == name)?;
    let value = value.trim();
    if value.is_empty() {
        return None;
    }
    let value = match *field {
        "otlp_headers" => toml::Value::Table(headers(value)),
        "sample_ratio" => value.parse().map_or_else(|_| toml::Value::String(value.to_owned()), toml::Value::Float),
        _ => toml::Value::String(value.to_owned()),
    };
    Some((field, value))
}

/// `name=value,name=value`, the values percent-encoded. What is no pair keeps its text as a name, which no header can have.
fn headers(text: &str) -> toml::Table {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, "\u{0}"));
            (name.trim().to_owned(), toml::Value::String(decoded(value.trim())))
        })
        .collect()
}

fn decoded(text: &str) -> String {
    // A form's rules but for `+`, which stands for itself here.
    let form = format!("v={}", text.replace('+', "%2B").replace('&', "%26"));
    url::form_urlencoded::parse(form.as_bytes()).next().map(|(_, value)| value.into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn load(pairs: &[(&str, &str)]) -> Result<TelemetryConfig, ConfigError> {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Ok(Config::load(None, pairs)?.telemetry)
    }

    #[test]
    fn the_standard_variables_are_understood_and_ours_win() {
        let config = load(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b+c, x-scope = team&1"),
            ("OTEL_SERVICE_NAME", "7"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("PARAVT_TELEMETRY_SERVICE_NAME", "videos"),
        ])
        .expect("valid");
        assert_eq!(config.traces_url().expect("set").as_str(), "http://collector:4318/v1/traces");
        let headers: Vec<_> = config.otlp_headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(headers, [("api-key", "a b+c"), ("x-scope", "team&1")]);
        assert_eq!((config.service_name.as_str(), config.sample_ratio), ("videos", 0.25));
        assert!(!format!("{config:?}").contains("a b"), "{config:?}");
        assert_eq!(load(&[("OTEL_SERVICE_NAME", "7")]).expect("valid").service_name, "7");
        assert!(load(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).expect("valid").traces_url().is_none());
    }

    #[test]
    fn an_error_names_the_standard_variable_and_shows_no_key() {
        let error = load(&[("OTEL_TRACES_SAMPLER_ARG", "often")]).expect_err("no number").to_string();
        assert!(error.contains("OTEL_TRACES_SAMPLER_ARG"), "{error}");
        let error = load(&[("OTEL_EXPORTER_OTLP_HEADERS", "sk-secret")]).expect_err("no pair").to_string();
        assert!(error.contains("telemetry.otlp_headers") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn what_can_not_work_is_refused() {
        for (name, value) in [
            ("PARAVT_TELEMETRY_OTLP_ENDPOINT", "collector:4318"),
            ("PARAVT_TELEMETRY_OTLP_ENDPOINT", "http://user:key@collector"),
            ("PARAVT_TELEMETRY_OTLP_ENDPOINT", "http://collector/?key=1"),
            ("PARAVT_TELEMETRY_SAMPLE_RATIO", "1.5"),
            ("PARAVT_TELEMETRY_SAMPLE_RATIO", "nan"),
            ("PARAVT_TELEMETRY_SERVICE_NAME", "''"),
            ("PARAVT_TELEMETRY_OTLP_HEADERS", "{'a b' = 'c'}"),
        ] {
            assert!(load(&[(name, value)]).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn the_path_is_below_the_base_once() {
        for (base, url) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c/otlp/", "http://c/otlp/v1/traces"),
            ("https://c/v1/traces", "https://c/v1/traces"),
        ] {
            let config = TelemetryConfig { otlp_endpoint: Some(base.to_owned()), ..TelemetryConfig::default() };
            assert_eq!(config.traces_url().expect("valid").as_str(), url);
        }
    }
}
