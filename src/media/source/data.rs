//! Bytes in the request itself: `data:` URLs.
//!
//! This file knows nothing of the web and of folders.

use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::download::{Download, Downloaded, Storage};
use super::{Kind, too_large};
use crate::media::MediaError;

/// What the space they take is counted for: all of them together, as no host sends them.
const SOURCE: &str = "data:";

/// The body of a `data:` URL, `video/mp4;base64,AAAA`.
///
/// # Errors
/// [`MediaError::BadSource`] for what is no such body, [`MediaError::TooLarge`], and as [`Download::write`].
pub(super) async fn decode(
    body: &str,
    kind: Kind,
    max_bytes: u64,
    storage: &Arc<Storage>,
) -> Result<Downloaded, MediaError> {
    const STEP: usize = 64 << 10;
    const _: () = assert!(STEP.is_multiple_of(4), "base64 comes in groups of four");
    let engine = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let bad = |problem: &str| MediaError::BadSource(format!("the {} data URL {problem}", kind.name()));
    let (head, encoded) = body.split_once(',').ok_or_else(|| bad("has no comma"))?;
    let mut parameters = head.split(';').map(str::trim);
    let media_type = parameters.next().unwrap_or_default();
    if !kind.takes(media_type) {
        return Err(bad(match kind {
            Kind::Video => "must start with data:video/",
            Kind::Image => "must start with data:image/",
        }));
    }
    if !parameters.any(|parameter| parameter.eq_ignore_ascii_case("base64")) {
        return Err(bad("must be base64"));
    }
    let encoded = encoded.trim_ascii();
    if (encoded.len() as u64 / 4).saturating_mul(3) > max_bytes.saturating_add(3) {
        return Err(too_large(kind, max_bytes));
    }
    let mut download = Download::new(kind, max_bytes, SOURCE, storage)?;
    for step in encoded.as_bytes().chunks(STEP) {
        let decoded = engine.decode(step).map_err(|_| bad("is not valid base64"))?;
        download.write(&decoded).await?;
    }
    download.finish().await
}
