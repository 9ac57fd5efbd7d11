//! Elements of EBML (RFC 8794): finding them, and writing them.
//!
//! This file knows nothing of what is in them.

/// The header of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element {
    /// Its number, marker bit included, as specifications write it.
    pub(super) id: u32,
    /// Bytes of the header.
    pub(super) header: u64,
    /// Bytes of the body; `None` where it ends with what it is in, or with the next element that can't be in it.
    pub(super) size: Option<u64>,
}

impl Element {
    /// From an element's first bytes, 12 where there are so many. `None` when they can't be an element's.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let id_length = length(bytes).filter(|length| *length <= 4)?;
        let id = bytes.get(..id_length)?.iter().fold(0, |id, byte| (id << 8) | u32::from(*byte));
        let (size, size_length) = number(bytes.get(id_length..)?)?;
        let unknown = (1_u64 << (7 * size_length)) - 1;
        Some(Self { id, header: (id_length + size_length) as u64, size: (size != unknown).then_some(size) })
    }
}

fn length(bytes: &[u8]) -> Option<usize> {
    bytes.first().map(|first| first.leading_zeros() as usize + 1).filter(|length| *length <= 8)
}

/// A number of variable length, and its length.
pub(super) fn number(bytes: &[u8]) -> Option<(u64, usize)> {
    let length = length(bytes)?;
    let coded = bytes.get(..length)?.iter().fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    Some((coded & ((1 << (7 * length)) - 1), length))
}

/// The elements in an element's body, by number and body, up to the first that can't be one or does not fit.
pub(super) fn children(mut bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    std::iter::from_fn(move || {
        let element = Element::read(bytes)?;
        let rest = bytes.get(usize::try_from(element.header).ok()?..)?;
        let size = element.size.map_or(Some(rest.len()), |size| usize::try_from(size).ok())?;
        let (body, after) = rest.split_at_checked(size)?;
        bytes = after;
        Some((element.id, body))
    })
}

/// An unsigned number in a body of at most 8 bytes.
pub(super) fn unsigned(body: &[u8]) -> Option<u64> {
    (body.len() <= 8).then(|| body.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
}

/// Appends the header of an element with so many bytes, or of unknown size.
pub(super) fn write_header(out: &mut Vec<u8>, id: u32, size: Option<u64>) {
    out.extend(id.to_be_bytes().iter().skip_while(|byte| **byte == 0));
    // Always 8 bytes: a marker and 56 bits.
    let size = size.map_or((1 << 56) - 1, |size| size.min((1 << 56) - 2));
    out.extend(((1_u64 << 56) | size).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for (id, size) in [(0x1F43_B675, None), (0xA3, Some(7)), (0x4286, Some((1 << 56) - 2))] {
            let mut bytes = Vec::new();
            write_header(&mut bytes, id, size);
            assert_eq!(Element::read(&bytes), Some(Element { id, header: bytes.len() as u64, size }));
        }
        assert_eq!(Element::read(&[0xA3, 0xFF]), Some(Element { id: 0xA3, header: 2, size: None }));
        assert_eq!(Element::read(&[0xA3, 0x40, 0x7F]), Some(Element { id: 0xA3, header: 3, size: Some(127) }));
        for bytes in [&[][..], &[0xA3], &[0x08, 1, 1, 1, 1, 0x80], &[0, 0x80], &[0xA3, 0], &[0xA3, 0x40]] {
            assert_eq!(Element::read(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn elements_follow_each_other_until_one_does_not_fit() {
        let bytes = [0xE7, 0x81, 5, 0xEC, 0x80, 0x42, 0x86, 0x81, 1, 0xA3, 0x85, 1];
        let found: Vec<_> = children(&bytes).collect();
        assert_eq!(found, [(0xE7, &[5][..]), (0xEC, &[]), (0x4286, &[1])]);
        assert_eq!((unsigned(&[1, 0]), unsigned(&[]), unsigned(&[1; 9])), (Some(256), Some(0), None));
    }
}
