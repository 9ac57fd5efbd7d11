//! Neutral text that makes a prompt a given number of tokens longer.
//!
//! mistralrs runs sequences in one batch only while their lengths are equal, so the sub-agents of one burst, whose
//! prompts differ in a few digits, are brought to one length. Knows nothing of queues or of mistralrs' types.

use crate::engine::chat::prompt::Prompt;
use crate::engine::chat::vocabulary::Vocabulary;

/// Most tokens of padding. What differs by more is run on its own: filler must not become the loudest part of a prompt.
pub(super) const MAX_PADDING: usize = 16;

/// Tried in this order: white space is least seen by the model, but byte-pair tokenizers melt runs of it into one token;
/// a spaced full stop rarely melts.
const FILLERS: [&str; 4] = ["\n", " ", ".", " ."];

/// Makes the prompt `missing` tokens longer. False, and the prompt unchanged, when no filler comes out right.
pub(super) fn pad(prompt: &mut Prompt, missing: usize, vocabulary: &Vocabulary) -> bool {
    if missing == 0 {
        return true;
    }
    if missing > MAX_PADDING {
        return false;
    }
    let Some(filler) = prompt.open_text().and_then(|open| filler(open, missing, vocabulary)) else { return false };
    prompt.fill(filler);
    true
}

/// Built up a token at a time, each checked: what a tokenizer merges can't be told beforehand.
fn filler(open: &str, missing: usize, vocabulary: &Vocabulary) -> Option<String> {
    let before = vocabulary.count(open).ok()?;
    let mut text = open.to_owned();
    for wanted in before + 1..=before + missing {
        let mut longer = FILLERS.iter().map(|unit| [text.as_str(), unit].concat());
        text = longer.find(|longer| vocabulary.count(longer).is_ok_and(|count| count == wanted))?;
    }
    Some(text.split_off(open.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::chat::prompt::render;
    use crate::engine::chat::vocabulary::tests::tiny;
    use crate::types::{Role, Turn};

    #[test]
    fn too_much_padding_is_refused() {
        let vocabulary = tiny();
        let mut prompt = render(vec![Turn::text(Role::User, "x")], "", &vocabulary).expect("renders").prompt;
        let before = prompt.text();
        assert!(!pad(&mut prompt, MAX_PADDING + 1, &vocabulary));
        assert_eq!(prompt.text(), before);
    }

    proptest! {
        #[test]
        fn a_padded_prompt_is_exactly_that_much_longer(text in "[a-z0-9.:?<> \n]{0,40}", missing in 1..=MAX_PADDING) {
            let vocabulary = tiny();
            let rendered = render(vec![Turn::text(Role::User, text)], "<think>\n", &vocabulary).expect("renders");
            let before = vocabulary.count_prompt(&rendered.prompt.text(), rendered.structure).expect("counts");
            let mut prompt = rendered.prompt;
            prop_assert!(pad(&mut prompt, missing, &vocabulary));
            let after = vocabulary.count_prompt(&prompt.text(), rendered.structure).expect("counts");
            prop_assert_eq!(after, before + missing);
        }
    }
}
