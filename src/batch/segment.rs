//! How a long video is cut, and how what its parts saw is put together. Pure.

use super::event::Event;
use crate::types::{MediaTime, TimeSpan};

/// How videos are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Length of a segment. `None`: videos are asked about as they are.
    pub segment: Option<MediaTime>,
    /// How much of a segment is in the next one as well. Below half of a segment's length.
    pub overlap: MediaTime,
}

impl Cut {
    /// The segments of a stretch: all of one length, which every event of up to the overlap's length is whole in one of. The last
    /// begins earlier than the others' distance asks for, so that it ends with the stretch. A stretch of up to a segment's
    /// length and half an overlap is one segment.
    #[must_use]
    pub fn segments(&self, of: TimeSpan) -> Vec<TimeSpan> {
        let Some(segment) = self.segment.map(MediaTime::micros).filter(|length| *length > 0) else { return vec![of] };
        let overlap = self.overlap.micros().clamp(0, segment / 2);
        let (start, end) = (of.start.micros(), of.end.micros());
        if end - start <= segment + overlap / 2 {
            return vec![of];
        }
        let span = |start: i64| TimeSpan {
            start: MediaTime::from_micros(start),
            end: MediaTime::from_micros(start + segment),
        };
        let step = segment - overlap;
        let mut segments = Vec::new();
        let mut at = start;
        while at + segment < end {
            segments.push(span(at));
            at += step;
        }
        segments.push(span(end - segment));
        segments
    }
}

/// Puts the events of a video's segments together, in order. Two of one label that overlap, seen by different segments, are
/// one; the one that is told is the one that lies deeper in its segment, whose edges cut nothing off it. Where the edges cut
/// both, it is the two together.
#[must_use]
pub(super) fn merged(found: Vec<(TimeSpan, Vec<Event>)>) -> Vec<Event> {
    let depth = |segment: TimeSpan, event: &Event| {
        let inner = event.start.micros() - segment.start.micros();
        inner.min(segment.end.micros() - event.end.micros())
    };
    let mut kept: Vec<(usize, i64, Event)> = Vec::new();
    for (number, (segment, events)) in found.into_iter().enumerate() {
        for event in events {
            let deep = depth(segment, &event);
            let twin = kept.iter_mut().find(|(other, _, known)| {
                let overlaps = known.start < event.end && event.start < known.end;
                let is_same = known.start == event.start && known.end == event.end;
                known.same_label(&event) && if *other == number { is_same } else { overlaps || is_same }
            });
            match twin {
                // Both go on beyond their segments.
                Some(twin) if twin.1 <= 0 && deep <= 0 && twin.0 != number => {
                    (twin.2.start, twin.2.end) = (twin.2.start.min(event.start), twin.2.end.max(event.end));
                    twin.0 = number;
                }
                Some(twin) if twin.1 < deep => *twin = (number, deep, event),
                Some(_) => {}
                None => kept.push((number, deep, event)),
            }
        }
    }
    let mut events: Vec<Event> = kept.into_iter().map(|(_, _, event)| event).collect();
    events.sort_by(|one, other| (one.start, one.end, &one.label).cmp(&(other.start, other.end, &other.label)));
    events
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: f64) -> MediaTime {
        MediaTime::from_seconds(seconds).expect("a time")
    }

    fn span(start: f64, end: f64) -> TimeSpan {
        TimeSpan { start: at(start), end: at(end) }
    }

    fn event(start: f64, end: f64, label: &str) -> Event {
        Event { start: at(start), end: at(end), label: label.to_owned(), description: String::new() }
    }

    fn cut(segment: f64, overlap: f64) -> Cut {
        Cut { segment: (segment > 0.0).then(|| at(segment)), overlap: at(overlap) }
    }

    #[test]
    fn a_match_is_cut_into_equal_segments() {
        let pairs = |cut: Cut, of: TimeSpan| -> Vec<(f64, f64)> {
            cut.segments(of).iter().map(|span| (span.start.seconds(), span.end.seconds())).collect()
        };
        assert_eq!(
            pairs(cut(300.0, 60.0), span(0.0, 1000.0)),
            [(0.0, 300.0), (240.0, 540.0), (480.0, 780.0), (700.0, 1000.0)]
        );
        assert_eq!(pairs(cut(300.0, 0.0), span(100.0, 700.0)), [(100.0, 400.0), (400.0, 700.0)]);
        // A little more than a segment is one.
        assert_eq!(pairs(cut(300.0, 60.0), span(0.0, 300.2)), [(0.0, 300.2)]);
        assert_eq!(pairs(cut(0.0, 60.0), span(0.0, 5400.0)), [(0.0, 5400.0)]);
        assert_eq!(pairs(cut(300.0, 60.0), span(0.0, 12.0)), [(0.0, 12.0)]);
        assert_eq!(cut(300.0, 60.0).segments(span(0.0, 5400.2)).len(), 23);
    }

    proptest! {
        #[test]
        fn every_event_up_to_the_overlap_is_whole_in_a_segment(
            start in 0.0..100.0_f64, length in 0.1..4000.0_f64, segment in 10.0..600.0_f64, share in 0.0..0.5_f64, place in 0.0..1.0_f64,
        ) {
            let (overlap, of) = (segment * share, span(start, start + length));
            let segments = cut(segment, overlap).segments(of);
            prop_assert_eq!((segments[0].start, segments[segments.len() - 1].end), (of.start, of.end));
            let event = overlap.min(length) * 0.999;
            let from = start + (length - event) * place;
            let whole = |span: &TimeSpan| span.start.seconds() <= from + 1e-5 && from + event <= span.end.seconds() + 1e-5;
            prop_assert!(segments.iter().any(whole), "{from} {event} {segments:?}");
            for pair in segments.windows(2) {
                prop_assert!(pair[0].start < pair[1].start);
            }
        }
    }

    #[test]
    fn what_two_segments_saw_is_told_once() {
        let (first, second) = (span(0.0, 300.0), span(240.0, 540.0));
        let told = merged(vec![
            (first, vec![event(280.0, 300.0, "goal"), event(20.0, 40.0, "Corner"), event(250.0, 260.0, "throw-in")]),
            (second, vec![event(280.0, 320.0, "Goal"), event(250.0, 262.0, "foul"), event(500.0, 520.0, "corner")]),
        ]);
        let expected = [
            event(20.0, 40.0, "Corner"),
            event(250.0, 260.0, "throw-in"),
            event(250.0, 262.0, "foul"),
            // The second segment's, whose edge is farther away.
            event(280.0, 320.0, "Goal"),
            event(500.0, 520.0, "corner"),
        ];
        assert_eq!(told, expected);
        // An event that is longer than what two segments share is cut by both.
        let told = merged(vec![(first, vec![event(200.0, 300.0, "a")]), (second, vec![event(240.0, 390.0, "a")])]);
        assert_eq!(told, [event(200.0, 390.0, "a")]);
        // One after the other is two.
        let told = merged(vec![(first, vec![event(250.0, 260.0, "a")]), (second, vec![event(260.0, 270.0, "a")])]);
        assert_eq!(told, [event(250.0, 260.0, "a"), event(260.0, 270.0, "a")]);
        // Within one segment only what is said twice is one.
        let told = merged(vec![(first, vec![event(1.0, 9.0, "a"), event(5.0, 9.0, "a"), event(5.0, 9.0, "a")])]);
        assert_eq!(told, [event(1.0, 9.0, "a"), event(5.0, 9.0, "a")]);
    }
}
