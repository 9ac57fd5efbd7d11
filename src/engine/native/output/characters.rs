//! Text out of bytes that come in pieces.

/// Holds back the beginning of a character until the rest of it is there.
#[derive(Debug, Default)]
pub(super) struct Characters {
    /// Bytes not given out: at most the beginning of a character, between two calls.
    held: Vec<u8>,
}

impl Characters {
    /// Takes more bytes, gives the text that is certain. What can't become a character is U+FFFD, once for each longest
    /// beginning of one, as [`String::from_utf8_lossy`] has it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        while let Some(rest) = self.held.get(done..).filter(|rest| !rest.is_empty()) {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    done = self.held.len();
                }
                Err(error) => {
                    let (valid, _) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    done += valid.len();
                    let Some(wrong) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += wrong;
                }
            }
        }
        self.held.drain(..done);
        text
    }

    /// What was held back when nothing more comes.
    pub(super) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_character_comes_when_it_is_whole() {
        let mut characters = Characters::default();
        let bytes = "a😀".as_bytes();
        assert_eq!(characters.push(&bytes[..3]), "a");
        assert_eq!(characters.push(&bytes[3..4]), "");
        assert_eq!(characters.push(&bytes[4..]), "😀");
        assert_eq!(characters.push(&bytes[1..4]), "");
        assert_eq!(characters.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(bytes in prop::collection::vec(prop_oneof![
            any::<u8>(), Just(0xf0), Just(0x9f), Just(0x98), Just(0x80), Just(0xe2), Just(0x82), Just(0xac), Just(b'a')
        ], 0..40), size in 1..5usize) {
            let mut characters = Characters::default();
            let mut text: String = bytes.chunks(size).map(|piece| characters.push(piece)).collect();
            text.push_str(&characters.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
