//! Boxes of ISO base media files (ISO/IEC 14496-12 4.2): finding them, and writing them.
//!
//! This file knows nothing of what is in them.

/// A box in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child<'a> {
    /// Its type.
    pub(super) kind: [u8; 4],
    /// With its header.
    pub(super) whole: &'a [u8],
    /// Without.
    pub(super) body: &'a [u8],
}

/// The header of a box in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Its type.
    pub(super) kind: [u8; 4],
    /// Bytes of the header.
    pub(super) header: u64,
    /// Bytes of the box with its header; `None` where it goes on to the end of what it is in.
    pub(super) size: Option<u64>,
}

impl Header {
    /// From a box's first bytes, 16 where there are so many. `None` when they can't be a box's.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (size, rest) = bytes.split_first_chunk::<4>()?;
        let (kind, rest) = rest.split_first_chunk::<4>()?;
        let (header, size) = match u32::from_be_bytes(*size) {
            0 => (8, None),
            1 => (16, Some(u64::from_be_bytes(*rest.first_chunk::<8>()?))),
            size => (8, Some(size.into())),
        };
        size.is_none_or(|size| size >= header).then_some(Self { kind: *kind, header, size })
    }
}

/// The boxes in a box's body, up to the first that can't be one or does not fit.
pub(super) fn children(mut bytes: &[u8]) -> impl Iterator<Item = Child<'_>> {
    std::iter::from_fn(move || {
        let header = Header::read(bytes)?;
        let size = header.size.map_or(Some(bytes.len()), |size| usize::try_from(size).ok())?;
        let (whole, rest) = bytes.split_at_checked(size)?;
        let body = whole.get(usize::try_from(header.header).ok()?..)?;
        bytes = rest;
        Some(Child { kind: header.kind, whole, body })
    })
}

/// The first box of a type in a body.
pub(super) fn find<'a>(bytes: &'a [u8], kind: &[u8; 4]) -> Option<Child<'a>> {
    children(bytes).find(|child| child.kind == *kind)
}

/// A big-endian number in a body.
pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_be_bytes(*four))
}

/// Appends a box. Its content is what `body` appends; no more than 4 GiB.
pub(super) fn write(out: &mut Vec<u8>, kind: &[u8; 4], body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 4]);
    out.extend(kind);
    body(out);
    let size = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start..).and_then(|written| written.first_chunk_mut::<4>()) {
        *place = size.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_follow_each_other_until_one_does_not_fit() {
        let mut bytes = Vec::new();
        write(&mut bytes, b"abcd", |out| out.extend([1, 2, 3]));
        bytes.extend([0, 0, 0, 1]);
        bytes.extend(b"wide\0\0\0\0\0\0\0\x12yz");
        write(&mut bytes, b"none", |_| {});
        bytes.extend([0, 0, 0, 9]);
        bytes.extend(b"long");
        let found: Vec<_> = children(&bytes).map(|child| (child.kind, child.body)).collect();
        assert_eq!(found, [(*b"abcd", &[1, 2, 3][..]), (*b"wide", b"yz"), (*b"none", b"")]);
        assert_eq!(children(&[0, 0, 0, 0, b'r', b'e', b's', b't', 7]).next().map(|child| child.body), Some(&[7][..]));
        assert_eq!(find(&bytes, b"wide").map(|child| child.whole.len()), Some(18));
    }

    #[test]
    fn sizes_smaller_than_a_header_are_no_box() {
        assert_eq!(Header::read(b"\0\0\0\x07abcd"), None);
        assert_eq!(Header::read(b"\0\0\0\x01abcd\0\0\0\0\0\0\0\x0f"), None);
        assert_eq!(Header::read(b"\0\0\0\x01abcd"), None);
    }
}
