//! What an uploaded file is, by its first bytes: clients say `application/octet-stream`, or anything at all.

/// First bytes that are looked at.
pub(super) const HEAD: usize = 64;

/// The media type of what begins like this.
pub(super) fn media_type(head: &[u8]) -> &'static str {
    let at = |place: usize, wanted: &[u8]| head.get(place..).is_some_and(|rest| rest.starts_with(wanted));
    let holds = |wanted: &[u8]| head.windows(wanted.len()).any(|found| found == wanted);
    if at(0, b"\x89PNG\r\n\x1a\n") {
        return "image/png";
    }
    if at(0, b"\xff\xd8\xff") {
        return "image/jpeg";
    }
    if at(0, b"GIF87a") || at(0, b"GIF89a") {
        return "image/gif";
    }
    if at(0, b"RIFF") {
        return match head.get(8..12) {
            Some(b"WEBP") => "image/webp",
            Some(b"AVI ") => "video/x-msvideo",
            _ => OTHER,
        };
    }
    if at(4, b"ftyp") {
        return match head.get(8..12) {
            Some(b"avif" | b"avis") => "image/avif",
            Some(b"heic" | b"heix" | b"mif1") => "image/heic",
            Some(b"qt  ") => "video/quicktime",
            _ => "video/mp4",
        };
    }
    // QuickTime before `ftyp`.
    if [&b"moov"[..], b"mdat", b"wide", b"free", b"skip"].iter().any(|kind| at(4, kind)) {
        return "video/quicktime";
    }
    if at(0, b"\x1a\x45\xdf\xa3") {
        return if holds(b"webm") { "video/webm" } else { "video/x-matroska" };
    }
    if at(0, b"OggS") {
        return "video/ogg";
    }
    if at(0, b"FLV\x01") {
        return "video/x-flv";
    }
    if at(0, b"\x00\x00\x01\xba") || at(0, b"\x00\x00\x01\xb3") {
        return "video/mpeg";
    }
    if at(0, b"\x47") && head.len() == HEAD && !head.is_ascii() {
        return "video/mp2t";
    }
    OTHER
}

/// What is none of those.
const OTHER: &str = "application/octet-stream";

/// Whether a question means it as a still picture. An animated GIF is a video to ffmpeg.
pub(super) fn is_picture(media_type: &str) -> bool {
    matches!(media_type, "image/png" | "image/jpeg" | "image/webp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_say_what_it_is() {
        for (head, expected) in [
            (&b"\x89PNG\r\n\x1a\nrest"[..], "image/png"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
            (b"GIF89a", "image/gif"),
            (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
            (b"RIFF\0\0\0\0AVI LIST", "video/x-msvideo"),
            (b"RIFF\0\0\0\0WAVE", OTHER),
            (b"\0\0\0\x20ftypisom\0\0", "video/mp4"),
            (b"\0\0\0\x14ftypqt  \0\0", "video/quicktime"),
            (b"\0\0\0\x20ftypavif\0\0", "image/avif"),
            (b"\0\0\0\x08wide\0\0", "video/quicktime"),
            (b"\x1a\x45\xdf\xa3\x01\0\0\0\0\0\0\x1f\x42\x82\x84webm", "video/webm"),
            (b"\x1a\x45\xdf\xa3\x01\0\0\0\0\0\0\x1f\x42\x82\x88matroska", "video/x-matroska"),
            (b"<html><script>", OTHER),
            (b"<svg xmlns=", OTHER),
            (b"Go on and say what you like, this is text and no transport stream.", OTHER),
            (b"", OTHER),
        ] {
            assert_eq!(media_type(head), expected, "{head:?}");
        }
        assert!(is_picture("image/png") && !is_picture("image/gif") && !is_picture("video/mp4"));
    }
}
