//! A place in a distributed trace, as W3C's trace context has it.

use std::fmt;

/// One span's place: its trace, its own number, and whether it is recorded.
///
/// The numbers of what is below it follow from its own, so that whoever hands a place on and whoever tells of the span later
/// agree on it without asking each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// Which trace; not 0.
    pub trace_id: u128,
    /// Which span of it; not 0.
    pub span_id: u64,
    /// Whether its spans are recorded.
    pub sampled: bool,
}

impl TraceContext {
    /// The place of a span below this one. The same `name` and `number` give the same place.
    #[must_use]
    pub fn child(self, name: &str, number: u64) -> Self {
        let seed = mixed(self.span_id ^ mixed(number));
        let span_id = name.bytes().fold(seed, |id, byte| mixed(id ^ u64::from(byte)));
        Self { span_id: span_id.max(1), ..self }
    }

    /// The place of the generation of a main turn.
    #[must_use]
    pub fn turn(self, turn: u32) -> Self {
        self.child("turn", u64::from(turn))
    }

    /// The place of a window.
    #[must_use]
    pub fn window(self, id: usize) -> Self {
        self.child("window", id as u64)
    }
}

/// The header `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// The last step of splitmix64: one bit more or less in, about half of the bits another out.
const fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const ROOT: TraceContext = TraceContext { trace_id: 0xabc, span_id: 0x12, sampled: true };

    #[test]
    fn it_is_written_as_the_header() {
        assert_eq!(ROOT.to_string(), "00-00000000000000000000000000000abc-0000000000000012-01");
        let quiet = TraceContext { sampled: false, ..ROOT };
        assert!(quiet.to_string().ends_with("-00"));
    }

    #[test]
    fn places_below_follow_from_the_place_and_differ() {
        assert_eq!(ROOT.window(3), ROOT.window(3));
        let mut seen = HashSet::from([ROOT.span_id]);
        for number in 0..500 {
            for place in [ROOT.turn(number), ROOT.window(number as usize), ROOT.window(number as usize).turn(0)] {
                assert_eq!((place.trace_id, place.sampled), (ROOT.trace_id, true));
                assert!(place.span_id != 0 && seen.insert(place.span_id), "{number}");
            }
        }
    }
}
