//! A turn with the tokens it was written with. Pure.

/// The text of a turn as far as the model wrote it, and its tokens: those of the prompt's end, then those generated.
#[derive(Debug)]
pub(super) struct Spoken {
    segment: usize,
    text: Vec<u8>,
    ids: Vec<u32>,
    /// Where in the text each token ends from which on it may be cut: the last of the prompt's, then each generated one.
    cuts: Vec<usize>,
}

impl Spoken {
    /// Segment `segment` of a prompt, which ended with this text and these tokens, and what was generated after it.
    pub(super) fn new<'a>(
        segment: usize,
        text: String,
        ids: Vec<u32>,
        generated: impl Iterator<Item = (u32, &'a [u8])>,
    ) -> Self {
        let mut spoken = Self { segment, cuts: vec![text.len()], text: text.into_bytes(), ids };
        for (id, bytes) in generated {
            spoken.text.extend_from_slice(bytes);
            spoken.ids.push(id);
            spoken.cuts.push(spoken.text.len());
        }
        spoken
    }

    /// Which segment of its prompt it is.
    pub(super) const fn segment(&self) -> usize {
        self.segment
    }

    /// The tokens that a text begins with, if it begins as this one does, and the rest of the text.
    pub(super) fn begin<'a>(&self, text: &'a str) -> (&[u32], &'a str) {
        let common = self.text.iter().zip(text.as_bytes()).take_while(|(one, other)| one == other).count();
        // A token may end within a character; the rest must be text.
        let cut = self.cuts.iter().rposition(|cut| *cut <= common && text.is_char_boundary(*cut));
        let Some(cut) = cut else { return (&[], text) };
        let prompt = self.ids.len() + 1 - self.cuts.len();
        (&self.ids[..prompt + cut], &text[self.cuts[cut]..])
    }

    /// Memory it takes.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + 4 * self.ids.len() + 8 * self.cuts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoken() -> Spoken {
        let generated = [(7, &b"ab"[..]), (8, b"c"), (9, &[0xc3]), (10, &[0xa9, b'd'])];
        Spoken::new(4, "it: ".to_owned(), vec![1, 2], generated.into_iter())
    }

    #[test]
    fn as_much_as_is_the_same_keeps_its_tokens() {
        let spoken = spoken();
        for (text, ids, rest) in [
            ("it: abcéd and more", &[1, 2, 7, 8, 9, 10][..], " and more"),
            ("it: abcéd", &[1, 2, 7, 8, 9, 10], ""),
            ("it: abcé", &[1, 2, 7, 8], "é"),
            ("it: abcèd", &[1, 2, 7, 8], "èd"),
            ("it: abX", &[1, 2, 7], "X"),
            ("it: aX", &[1, 2], "aX"),
            ("it: ", &[1, 2], ""),
            ("it:", &[], "it:"),
            ("", &[], ""),
        ] {
            assert_eq!(spoken.begin(text), (ids, rest), "{text}");
        }
    }
}
