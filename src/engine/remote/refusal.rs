//! What an upstream's error means for us. Pure.
//!
//! A status says the cause. Only for a prompt that is too long there is none, so there the text is read, for numbers.

use serde_json::Value;

use super::replicas::Outcome;
use crate::engine::EngineError;

/// Longest message of an upstream that we pass on, in characters.
const MESSAGE_CHARS: usize = 300;

/// Why a try on one replica came to nothing.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// The request itself is refused: no other replica would take it.
    Refused(EngineError),
    /// Too much to do there.
    Busy,
    /// Can't be reached, or can't serve.
    Gone(String),
    /// Failed on this request.
    Broken(String),
}

impl Trouble {
    /// What it says about the replica.
    pub(super) const fn outcome(&self) -> Outcome {
        match self {
            Self::Refused(_) => Outcome::Answered,
            Self::Busy => Outcome::Busy,
            Self::Gone(_) => Outcome::Gone,
            Self::Broken(_) => Outcome::Broken,
        }
    }

    /// What it means when no other replica is left.
    pub(super) fn into_error(self) -> EngineError {
        match self {
            Self::Refused(error) => error,
            Self::Busy => EngineError::Overloaded,
            Self::Gone(problem) => EngineError::Unavailable(problem),
            Self::Broken(problem) => EngineError::Failed(problem),
        }
    }

    /// From a status that is not 200, and what came with it. `secrets` (keys, hosts) are taken out of the message.
    pub(super) fn from_status(status: u16, body: &[u8], secrets: &[String]) -> Self {
        match status {
            429 => Self::Busy,
            401 | 403 => Self::Gone("the upstream does not accept the key".to_owned()),
            404 | 405 => Self::Gone("the upstream has no such model, or no chat completions".to_owned()),
            413 => Self::Refused(EngineError::Invalid("the upstream takes no request this large".to_owned())),
            408 | 500 | 501 => Self::Broken(format!("the upstream failed with status {status}")),
            502.. => Self::Gone(format!("the upstream can't serve (status {status})")),
            400.. => Self::Refused(refused(message(body), secrets)),
            // Redirects are not followed: the key is for the server that was configured.
            _ => Self::Gone(format!("the upstream answered with status {status}")),
        }
    }

    /// From an error object in a stream, read as its status would be.
    pub(super) fn from_event(error: &Value, secrets: &[String]) -> Self {
        let code = error.get("code").and_then(|code| code.as_u64().or_else(|| code.as_str()?.parse().ok()));
        match code.and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code)) {
            Some(code) => Self::from_status(code, error.to_string().as_bytes(), secrets),
            None => Self::Broken("the upstream reported a failure".to_owned()),
        }
    }
}

/// The sentence in an error body: OpenAI's shape, vLLM's older one, FastAPI's, or plain text.
fn message(body: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return String::from_utf8_lossy(body).into_owned() };
    let places = [value.pointer("/error/message"), value.get("message"), value.get("error"), value.get("detail")];
    let text = places.into_iter().flatten().find_map(Value::as_str);
    text.map_or_else(|| "no reason given".to_owned(), ToOwned::to_owned)
}

fn refused(message: String, secrets: &[String]) -> EngineError {
    if let Some((needed, limit)) = too_long(&message) {
        return EngineError::TooLong { needed, limit };
    }
    let message = secrets.iter().filter(|secret| !secret.is_empty()).fold(message, |m, secret| m.replace(secret, "…"));
    let clean = message.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut text: String = clean.clone().take(MESSAGE_CHARS).collect();
    if clean.count() > MESSAGE_CHARS {
        text.push('…');
    }
    EngineError::Invalid(format!("the upstream says: {}", text.trim()))
}

/// Tokens needed and tokens there are, where a message says so: the limit follows "context length" in vLLM's, SGLang's
/// and OpenAI's wording, and what is needed is the largest number.
fn too_long(message: &str) -> Option<(u64, u64)> {
    let lower = message.to_lowercase();
    let at = lower.find("context length")?;
    let limit = numbers(&lower[at..]).next()?;
    let needed = numbers(&lower).max()?;
    (needed > limit).then_some((needed, limit))
}

fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(status: u16, message: &str) -> EngineError {
        let body = json!({"error": {"message": message, "code": status}}).to_string();
        Trouble::from_status(status, body.as_bytes(), &["sk-1".to_owned(), "gpu7.lan".to_owned()]).into_error()
    }

    #[test]
    fn a_status_says_the_cause() {
        assert!(matches!(of(400, "bad"), EngineError::Invalid(m) if m == "the upstream says: bad"));
        assert!(matches!(of(422, "bad"), EngineError::Invalid(_)));
        assert!(matches!(of(429, "slow down"), EngineError::Overloaded));
        assert!(matches!(of(500, "boom"), EngineError::Failed(_)));
        for status in [302, 401, 403, 404, 502, 503, 504, 599] {
            assert!(matches!(of(status, "x"), EngineError::Unavailable(_)), "{status}");
        }
    }

    #[test]
    fn messages_of_a_full_context_are_read_for_their_numbers() {
        for message in [
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4900 in the \
             messages, 100 in the completion).",
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested 5000.",
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "You passed 5000 input tokens. However, the model's context length is only 4096 tokens.",
        ] {
            assert!(matches!(of(400, message), EngineError::TooLong { needed: 5000, limit: 4096 }), "{message}");
        }
        assert!(matches!(of(400, "the context length is wrong"), EngineError::Invalid(_)));
    }

    #[test]
    fn messages_are_short_and_hold_no_key_or_host() {
        let EngineError::Invalid(text) = of(400, "key sk-1\nat http://gpu7.lan:8000 is bad") else { panic!("invalid") };
        assert_eq!(text, "the upstream says: key … at http://…:8000 is bad");
        let EngineError::Invalid(text) = of(400, &"ä".repeat(100_000)) else { panic!("invalid") };
        assert!(text.chars().count() < 330, "{}", text.len());
    }

    #[test]
    fn other_shapes_of_errors_are_read_too() {
        for (body, expected) in [
            (r#"{"object": "error", "message": "old", "code": 400}"#, "old"),
            (r#"{"detail": "fast"}"#, "fast"),
            (r#"{"error": "short"}"#, "short"),
            (r#"{"detail": [{"loc": []}]}"#, "no reason given"),
            ("plain", "plain"),
        ] {
            assert_eq!(message(body.as_bytes()), expected);
        }
    }

    #[test]
    fn an_error_in_the_stream_is_read_like_a_status() {
        let event = |error: Value| Trouble::from_event(&error, &[]).into_error();
        assert!(matches!(event(json!({"message": "bad", "code": 400})), EngineError::Invalid(m) if m.ends_with("bad")));
        assert!(matches!(event(json!({"message": "x", "code": "503"})), EngineError::Unavailable(_)));
        assert!(matches!(event(json!({"message": "x", "code": null})), EngineError::Failed(_)));
        assert!(matches!(event(json!("x")), EngineError::Failed(_)));
    }
}
