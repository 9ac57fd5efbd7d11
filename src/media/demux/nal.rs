//! What must be known of coded pictures to leave some out: which H.264 and HEVC ones no other depends on, with which decoding
//! can begin, and which reset a decoder, or are made to. Only the headers of their NAL units are looked at, and the first
//! bits behind those (ITU-T H.264 7.3.3, 7.4.1 and D.2.8; H.265 7.4.2.2).

use bytes::Bytes;

/// HEVC's type of a slice of a clean random access picture.
const CLEAN_ACCESS: u8 = 21;
/// Of a broken link access picture, which may have leading pictures.
const BROKEN_LINK: u8 = 16;
/// HEVC's types of slices of pictures with which decoding can begin.
const RANDOM_ACCESS: std::ops::RangeInclusive<u8> = 16..=23;
/// Bytes of H.264's supplemental information that are looked at.
const INFORMATION_BYTES: usize = 4 << 10;
/// Its type of message that says from when on pictures are right.
const RECOVERY_POINT: usize = 6;

/// A codec, as far as leaving out pictures goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    /// H.264, its NAL units behind lengths of so many bytes.
    Avc {
        /// 1 to 4.
        length: u8,
    },
    /// HEVC, its NAL units behind lengths of so many bytes.
    Hevc {
        /// 1 to 4.
        length: u8,
        /// Temporal layers the stream says it has; 0 where it does not say.
        layers: u8,
    },
    /// H.264 or HEVC in a form that is not looked into.
    Opaque,
    /// VP8, which has pictures that are never shown.
    Vp8,
    /// One whose key frames reset all and whose pictures are all fed.
    Other,
}

impl Codec {
    /// H.264 by its decoder configuration record (ISO/IEC 14496-15 5.3.3).
    pub(super) fn avc(configuration: &[u8]) -> Self {
        match configuration {
            [1, _, _, _, lengths, ..] => Self::Avc { length: (lengths & 3) + 1 },
            _ => Self::Opaque,
        }
    }

    /// HEVC by its decoder configuration record (ISO/IEC 14496-15 8.3.3).
    pub(super) fn hevc(configuration: &[u8]) -> Self {
        match configuration.get(21) {
            Some(packed) => Self::Hevc { length: (packed & 3) + 1, layers: (packed >> 3) & 7 },
            None => Self::Opaque,
        }
    }

    /// Whether no other picture is predicted from this one, surely.
    pub(super) fn is_disposable(self, picture: &[u8]) -> bool {
        let mut slices = false;
        match self {
            Self::Avc { length } => {
                for unit in Units::new(picture, length) {
                    match unit.map(|unit| unit.first().copied()) {
                        Some(Some(header)) => match header & 31 {
                            1 if header & 0x60 == 0 => slices = true,
                            6 | 9 | 12 => {}
                            _ => return false,
                        },
                        _ => return false,
                    }
                }
            }
            Self::Hevc { length, layers } if layers > 0 => {
                for unit in Units::new(picture, length) {
                    let Some([first, second, ..]) = unit else { return false };
                    let (kind, layer) = ((first >> 1) & 63, (second & 7).saturating_sub(1));
                    match kind {
                        0..=14 if kind % 2 == 0 && layer + 1 == layers => slices = true,
                        35 | 38..=40 => {}
                        _ => return false,
                    }
                }
            }
            _ => {}
        }
        slices
    }

    /// Whether a picture, or as much of it as is given, has an IDR slice. Only asked of H.264.
    pub(super) fn is_idr(self, picture: &[u8]) -> bool {
        let Self::Avc { length } = self else { return false };
        Units::cut(picture, length).flatten().any(|unit| unit.first().is_some_and(|header| header & 31 == 5))
    }

    /// Whether decoding can begin with a picture, of which at least the beginning is given, by what it says itself: containers
    /// also mark pictures from which on a decoder would get better bit by bit. False where that can't be seen; true for
    /// codecs that are not looked into.
    pub(super) fn is_key(self, picture: &[u8]) -> bool {
        match self {
            Self::Avc { length } => {
                let mut late = false;
                for unit in Units::cut(picture, length).flatten() {
                    let Some((header, body)) = unit.split_first() else { continue };
                    match header & 31 {
                        5 => return true,
                        1 | 2 => return !late && is_intra(body),
                        6 => late |= recovers_late(body),
                        _ => {}
                    }
                }
                false
            }
            Self::Hevc { length, .. } => {
                let kinds = Units::cut(picture, length).flatten().filter_map(|unit| unit.first());
                let first = kinds.map(|header| (header >> 1) & 63).find(|kind| *kind < 32);
                first.is_some_and(|kind| RANDOM_ACCESS.contains(&kind))
            }
            Self::Opaque => false,
            Self::Vp8 => picture.first().is_some_and(|first| first & 1 == 0),
            Self::Other => true,
        }
    }

    /// A key frame as the first of a stretch that has nothing to do with what was decoded before. HEVC's clean random access
    /// pictures become broken link ones (H.265 7.4.2.2), at which a decoder forgets what it has and shows all that waits;
    /// an end of sequence before them would have it thrown away. The others begin a stretch as they are.
    pub(super) fn opening(self, picture: Bytes) -> Bytes {
        let Self::Hevc { length, .. } = self else { return picture };
        let (mut at, mut places) = (0_usize, Vec::new());
        for unit in Units::new(&picture, length) {
            let Some(unit) = unit else { break };
            at = at.saturating_add(length.into());
            if unit.first().is_some_and(|header| (header >> 1) & 63 == CLEAN_ACCESS) {
                places.push(at);
            }
            at = at.saturating_add(unit.len());
        }
        if places.is_empty() {
            return picture;
        }
        let mut picture = Vec::from(picture);
        for place in places {
            if let Some(header) = picture.get_mut(place) {
                *header = (*header & 0x81) | (BROKEN_LINK << 1);
            }
        }
        picture.into()
    }

    /// Whether a picture that begins like this is shown.
    pub(super) const fn is_shown(self, first: u8) -> bool {
        !matches!(self, Self::Vp8) || first & 0x10 != 0
    }
}

/// Whether an H.264 slice that begins like this, behind its NAL unit's header, is predicted from no other picture.
fn is_intra(slice: &[u8]) -> bool {
    let mut bits = Bits::new(slice);
    // The first is the place of its first macroblock.
    bits.number().and_then(|_| bits.number()).is_some_and(|kind| matches!(kind, 2 | 4 | 7 | 9))
}

/// Whether H.264's supplemental information says that pictures are right only some pictures on.
fn recovers_late(unit: &[u8]) -> bool {
    // A zero byte pair is followed by a 3 that does not count.
    let (mut plain, mut zeros) = (Vec::new(), 0);
    for byte in unit.iter().take(INFORMATION_BYTES) {
        if zeros >= 2 && *byte == 3 {
            zeros = 0;
            continue;
        }
        zeros = if *byte == 0 { zeros + 1 } else { 0 };
        plain.push(*byte);
    }
    let mut rest = plain.as_slice();
    // Each number is a sum of bytes up to the first that is not 255.
    let number = |rest: &mut &[u8]| {
        let mut sum = 0_usize;
        loop {
            let (byte, after) = rest.split_first()?;
            *rest = after;
            sum += usize::from(*byte);
            if *byte != 0xFF {
                return Some(sum);
            }
        }
    };
    while let (Some(kind), Some(size)) = (number(&mut rest), number(&mut rest)) {
        let Some((message, after)) = rest.split_at_checked(size) else { return false };
        if kind == RECOVERY_POINT {
            return Bits::new(message).number() != Some(0);
        }
        rest = after;
    }
    false
}

/// Bits, the highest of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn bit(&mut self) -> Option<u32> {
        let byte = self.bytes.get(self.at / 8)?;
        let bit = (byte >> (7 - self.at % 8)) & 1;
        self.at += 1;
        Some(bit.into())
    }

    /// An Exp-Golomb code (H.264 9.1).
    fn number(&mut self) -> Option<u32> {
        let mut zeros = 0;
        while self.bit()? == 0 {
            zeros += 1;
        }
        if zeros > 30 {
            return None;
        }
        let mut number = 1;
        for _ in 0..zeros {
            number = (number << 1) | self.bit()?;
        }
        Some(number - 1)
    }
}

/// The NAL units of a picture. A length that does not fit ends them with `None`.
struct Units<'a> {
    rest: &'a [u8],
    length: usize,
    cut: bool,
}

impl<'a> Units<'a> {
    fn new(picture: &'a [u8], length: u8) -> Self {
        Self { rest: picture, length: length.into(), cut: false }
    }

    /// Of a picture whose end may be missing: the last unit may be shorter than it says.
    fn cut(picture: &'a [u8], length: u8) -> Self {
        Self { cut: true, ..Self::new(picture, length) }
    }
}

impl<'a> Iterator for Units<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let Some((prefix, rest)) = rest.split_at_checked(self.length) else { return Some(None) };
        let size = prefix.iter().fold(0_usize, |size, byte| (size << 8) | usize::from(*byte));
        let size = if self.cut { size.min(rest.len()) } else { size };
        let Some((unit, rest)) = rest.split_at_checked(size) else { return Some(None) };
        self.rest = rest;
        Some(Some(unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(units: &[&[u8]]) -> Vec<u8> {
        units.iter().flat_map(|unit| [&(unit.len() as u16).to_be_bytes()[..], unit].concat()).collect()
    }

    #[test]
    fn an_h264_picture_is_disposable_when_all_of_its_slices_are() {
        let avc = Codec::avc(&[1, 100, 0, 30, 0xFD]);
        assert_eq!(avc, Codec::Avc { length: 2 });
        assert!(avc.is_disposable(&picture(&[&[9, 16], &[6, 1], &[1, 7], &[1, 8]])));
        for units in [&[&[1, 7][..], &[0x21, 7]][..], &[&[0x65, 1]], &[&[0x67, 1], &[1, 7]], &[&[6, 1]], &[]] {
            assert!(!avc.is_disposable(&picture(units)), "{units:?}");
        }
        assert!(!avc.is_disposable(&[0, 2, 1, 7, 0]) && !avc.is_disposable(&[0, 9, 1, 7]), "lengths that do not fit");
        assert!(avc.is_idr(&picture(&[&[6, 1], &[0x65, 1]])) && !avc.is_idr(&picture(&[&[6, 1], &[0x61, 1]])));
        assert!(avc.is_idr(&[0, 9, 0x65, 7]), "the end may be missing");
    }

    #[test]
    fn an_hevc_picture_is_disposable_when_it_is_of_the_highest_layer_and_no_reference() {
        let (one, three, unsaid) = ([1, 3, 0].map(|layers| Codec::Hevc { length: 2, layers })).into();
        let trail_n = |layer: u8| picture(&[&[0, layer + 1, 9]]);
        assert!(Codec::is_disposable(one, &trail_n(0)) && Codec::is_disposable(three, &trail_n(2)));
        assert!(!Codec::is_disposable(one, &trail_n(1)), "a layer above those it says it has");
        assert!(!Codec::is_disposable(three, &trail_n(1)) && !Codec::is_disposable(unsaid, &trail_n(0)));
        assert!(
            !Codec::is_disposable(one, &picture(&[&[2, 1, 9]])) && !Codec::is_disposable(one, &picture(&[&[42, 1]]))
        );
    }

    #[test]
    fn a_stretch_opens_with_a_broken_link() {
        let hevc = Codec::Hevc { length: 2, layers: 1 };
        let opened = hevc.opening(picture(&[&[78, 1], &[42, 1, 0xAA], &[42, 1]]).into());
        assert_eq!(opened, picture(&[&[78, 1], &[32, 1, 0xAA], &[32, 1]]));
        for other in [picture(&[&[38, 1, 42]]), vec![0, 9, 42], Vec::new()] {
            assert_eq!(hevc.opening(other.clone().into()), other);
        }
        assert_eq!(Codec::Other.opening(picture(&[&[42, 1]]).into()), picture(&[&[42, 1]]));
    }

    #[test]
    fn configurations_that_are_too_short_are_not_looked_into() {
        assert_eq!((Codec::avc(&[1, 2]), Codec::hevc(&[1; 20])), (Codec::Opaque, Codec::Opaque));
        assert!(!Codec::Opaque.is_disposable(&[0, 1, 1]) && !Codec::Opaque.is_idr(&[0, 1, 0x65]));
        assert!(!Codec::Opaque.is_key(&[0, 1, 0x65]));
    }

    #[test]
    fn decoding_begins_with_what_is_predicted_from_nothing() {
        let avc = Codec::Avc { length: 2 };
        // A slice begins with its place, 0, as one bit; then its type, 7 (I) or 5 (P), as 0001000 or 00110.
        let (intra, predicted) = ([0x61, 0b1000_1000, 0], [0x61, 0b1001_1000, 0]);
        // A message of text that is no recovery point, with a byte that does not count; then one, at once or 24 pictures on.
        let text = [6, 5, 4, 0, 0, 3, 1, 6];
        let at_once = [&text[..], &[6, 1, 0b1100_0000, 0x80]].concat();
        let late = [&text[..], &[6, 1, 0b0000_1100, 0x80]].concat();
        for (units, key) in [
            (&[&[0x65, 0x88][..]][..], true),
            (&[&[9, 16], &intra[..]], true),
            (&[&at_once, &intra], true),
            (&[&late, &intra], false),
            (&[&late, &[0x65, 0x88]], true),
            (&[&at_once, &predicted], false),
            (&[&predicted, &intra], false),
            (&[&[0x67, 1]], false),
            (&[], false),
        ] {
            assert_eq!(avc.is_key(&picture(units)), key, "{units:?}");
        }
        let hevc = Codec::Hevc { length: 2, layers: 1 };
        assert!(hevc.is_key(&picture(&[&[64, 1], &[42, 1]])) && !hevc.is_key(&picture(&[&[64, 1], &[2, 1], &[42, 1]])));
        assert!(Codec::Vp8.is_key(&[0x10]) && !Codec::Vp8.is_key(&[0x11]) && Codec::Other.is_key(&[]));
    }
}
