//! Cuts text that comes in pieces before the first stop text, which may be spread over several of them.
//!
//! Pure: knows nothing of engines or tokens.

/// Watches a stream of text for stop texts. The one that is complete first counts, so how the text was cut into pieces
/// makes no difference.
#[derive(Debug)]
pub(crate) struct StopFilter {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop text.
    held: String,
}

impl StopFilter {
    /// Stops at any of these; empty ones are ignored.
    pub(crate) fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes more text. Gives what is safe to show, and whether a stop text was met: then that is all, and what follows
    /// is not for showing.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let ends = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at + stop.len(), at)));
        if let Some((_, at)) = ends.min() {
            self.held.truncate(at);
            return (self.finish(), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// What was held back when the text ends.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices().map(|(at, _)| at).rev().find(|at| text.ends_with(&stop[..*at])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(pieces: &[&str], stops: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut filter = StopFilter::new(&stops);
        let mut shown = String::new();
        for piece in pieces {
            let (text, stopped) = filter.push(piece);
            shown.push_str(&text);
            if stopped {
                return (shown, true);
            }
        }
        shown.push_str(&filter.finish());
        (shown, false)
    }

    #[test]
    fn a_stop_text_over_three_pieces_is_cut() {
        assert_eq!(run(&["a <to", "ol_res", "ponse> b"], &["<tool_response>"]), ("a ".to_owned(), true));
    }

    #[test]
    fn what_only_began_like_a_stop_text_is_shown_in_the_end() {
        assert_eq!(run(&["a <tool", "_call>", " <to"], &["<tool_response>"]), ("a <tool_call> <to".to_owned(), false));
    }

    #[test]
    fn text_that_can_not_be_a_stop_text_is_not_held_back() {
        let mut filter = StopFilter::new(&["END".to_owned()]);
        assert_eq!(filter.push("abc"), ("abc".to_owned(), false));
    }

    #[test]
    fn the_first_of_several_wins() {
        assert_eq!(run(&["one two three"], &["three", "two", ""]), ("one ".to_owned(), true));
    }

    #[test]
    fn the_first_to_be_complete_wins_in_one_piece_as_in_many() {
        for pieces in [&["abcd"][..], &["ab", "cd"], &["a", "b", "c", "d"]] {
            assert_eq!(run(pieces, &["abcd", "bc"]), ("a".to_owned(), true), "{pieces:?}");
            assert_eq!(run(pieces, &["c", "bc"]), ("a".to_owned(), true), "{pieces:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            text in "[abé]{0,20}", stops in prop::collection::vec("[abé]{1,3}", 0..4),
            cuts in prop::collection::vec(0..20usize, 0..6),
        ) {
            let characters: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(characters.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([characters.len()]) {
                pieces.push(characters[from..cut].iter().collect::<String>());
                from = cut;
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&pieces, &stops), run(&[&text], &stops));
            if let [stop] = stops[..] {
                let expected = text.find(stop).map_or((text.clone(), false), |at| (text[..at].to_owned(), true));
                prop_assert_eq!(run(&pieces, &[stop]), expected);
            }
        }
    }
}
