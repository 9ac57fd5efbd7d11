//! From chosen tokens to what the caller gets: text as soon as it is certain, log-probabilities, and the end.
//!
//! Special tokens add no text, as with other engines; `<think>`, `<tool_call>` and the like are text. Pure: knows nothing of
//! scheduling or of how tokens are chosen.

mod characters;

use std::sync::Arc;

use characters::Characters;

use super::sampler::TokenLogprobs;
use crate::engine::chat::bytes::TokenBytes;
use crate::engine::{FinishReason, Generated, Sampling, StopFilter, TokenAlternative, TokenEvent, TokenInfo};
use crate::types::TokenUsage;

/// One generation's output.
#[derive(Debug)]
pub(super) struct Output {
    tokens: Arc<TokenBytes>,
    /// Tokens that end it; none where they are to be ignored.
    ends: Arc<[u32]>,
    characters: Characters,
    stops: StopFilter,
    written: u32,
    most: u32,
    finished: Option<FinishReason>,
    /// What the caller has not got yet.
    text: String,
    infos: Vec<TokenInfo>,
}

impl Output {
    /// An output of at most `most` tokens: what was asked for, or what the context leaves. `ends` are the model's
    /// end-of-text tokens.
    pub(super) fn new(tokens: Arc<TokenBytes>, ends: Arc<[u32]>, sampling: &Sampling, most: u32) -> Self {
        Self {
            tokens,
            ends: if sampling.ignore_eos { Arc::default() } else { ends },
            characters: Characters::default(),
            stops: StopFilter::new(&sampling.stop),
            written: 0,
            most,
            finished: None,
            text: String::new(),
            infos: Vec::new(),
        }
    }

    /// Takes the next token. Gives the reason if the output ends with it; what comes after that is ignored.
    pub(super) fn push(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> Option<FinishReason> {
        if self.finished.is_some() {
            return self.finished;
        }
        self.written = self.written.saturating_add(1);
        if let Some(logprobs) = logprobs {
            self.infos.push(self.info(id, logprobs));
        }
        if self.ends.contains(&id) {
            return self.finish(FinishReason::Stop);
        }
        let text = self.characters.push(self.tokens.text(id));
        let (shown, stopped) = self.stops.push(&text);
        self.text.push_str(&shown);
        if stopped {
            self.finished = Some(FinishReason::Stop);
            return self.finished;
        }
        if self.written >= self.most { self.finish(FinishReason::Length) } else { None }
    }

    /// Ends the output, where it does not end by itself (a constraint is fulfilled), and gives what was held back.
    pub(super) fn finish(&mut self, reason: FinishReason) -> Option<FinishReason> {
        if self.finished.is_none() {
            self.finished = Some(reason);
            let (shown, stopped) = self.stops.push(&self.characters.finish());
            self.text.push_str(&shown);
            if stopped {
                self.finished = Some(FinishReason::Stop);
            } else {
                self.text.push_str(&self.stops.finish());
            }
        }
        self.finished
    }

    /// Tokens taken, the ending one included.
    #[cfg(test)]
    pub(super) const fn written(&self) -> u32 {
        self.written
    }

    /// How many more it may have.
    pub(super) const fn room(&self) -> u32 {
        self.most.saturating_sub(self.written)
    }

    /// Moves what is new for the caller to the end of `events`; at the end of the output also the last event, with these
    /// counts of the prompt. Not to be called again after that.
    pub(super) fn take(&mut self, prompt_tokens: u64, cached_tokens: u64, events: &mut Vec<TokenEvent>) {
        if !self.infos.is_empty() {
            events.push(TokenEvent::Tokens(std::mem::take(&mut self.infos)));
        }
        if !self.text.is_empty() {
            events.push(TokenEvent::Text(std::mem::take(&mut self.text)));
        }
        if let Some(reason) = self.finished {
            let usage = TokenUsage { prompt_tokens, cached_tokens, completion_tokens: u64::from(self.written) };
            events.push(TokenEvent::Finished(Generated { reason, usage }));
        }
    }

    fn info(&self, id: u32, logprobs: TokenLogprobs) -> TokenInfo {
        let bytes = |id| self.tokens.text(id).to_vec();
        let alternative = |(id, logprob)| TokenAlternative { id: Some(id), bytes: bytes(id), logprob };
        let TokenLogprobs { logprob, top } = logprobs;
        TokenInfo { id: Some(id), bytes: bytes(id), logprob, top: top.into_iter().map(alternative).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::chat::vocabulary::Vocabulary;
    use crate::engine::chat::vocabulary::tests::tiny;

    struct Fixture {
        vocabulary: Vocabulary,
        tokens: Arc<TokenBytes>,
    }

    fn fixture() -> Fixture {
        let vocabulary = tiny();
        let tokens = Arc::new(vocabulary.token_bytes().expect("byte-level"));
        Fixture { vocabulary, tokens }
    }

    impl Fixture {
        fn output(&self, sampling: &Sampling, most: u32) -> Output {
            Output::new(Arc::clone(&self.tokens), [self.vocabulary.turn_end()].into(), sampling, most)
        }

        fn ids(&self, text: &str) -> Vec<u32> {
            self.vocabulary.encode_text(text).expect("encodes")
        }

        /// Pushes until the end; gives the text and the reason.
        fn say(&self, sampling: &Sampling, most: u32, ids: &[u32]) -> (String, Option<FinishReason>, u32) {
            let mut output = self.output(sampling, most);
            let end = ids.iter().find_map(|id| output.push(*id, None));
            let mut events = Vec::new();
            output.take(7, 3, &mut events);
            let text = events
                .iter()
                .filter_map(|event| if let TokenEvent::Text(text) = event { Some(text.as_str()) } else { None });
            (text.collect(), end, output.written())
        }
    }

    #[test]
    fn a_turn_ends_at_its_end_token_which_is_counted_and_not_shown() {
        let fixture = fixture();
        let mut ids = fixture.ids("<think>hm</think>");
        let count = u32::try_from(ids.len()).expect("few");
        ids.push(fixture.vocabulary.turn_end());
        ids.extend(fixture.ids("never"));
        let expected = ("<think>hm</think>".to_owned(), Some(FinishReason::Stop), count + 1);
        assert_eq!(fixture.say(&Sampling::default(), 99, &ids), expected);
    }

    #[test]
    fn an_end_token_that_is_ignored_is_just_not_shown() {
        let fixture = fixture();
        let sampling = Sampling { ignore_eos: true, ..Sampling::default() };
        let ids = [fixture.ids("a"), vec![fixture.vocabulary.turn_end()], fixture.ids("b")].concat();
        assert_eq!(fixture.say(&sampling, 3, &ids), ("ab".to_owned(), Some(FinishReason::Length), 3));
    }

    #[test]
    fn a_stop_text_over_several_tokens_is_cut() {
        let fixture = fixture();
        let sampling = Sampling { stop: vec!["</answer>".to_owned()], ..Sampling::default() };
        let ids = fixture.ids("<answer>red</answer>\nmore");
        assert!(ids.len() > 4);
        let (text, end, written) = fixture.say(&sampling, 99, &ids);
        assert_eq!((text.as_str(), end), ("<answer>red", Some(FinishReason::Stop)));
        assert!((written as usize) < ids.len());
    }

    #[test]
    fn the_longest_output_ends_with_what_was_held_back() {
        let fixture = fixture();
        let sampling = Sampling { stop: vec!["abcd".to_owned()], ..Sampling::default() };
        let ids = fixture.ids("ab");
        let most = u32::try_from(ids.len()).expect("few");
        assert_eq!(fixture.say(&sampling, most, &ids), ("ab".to_owned(), Some(FinishReason::Length), most));
    }

    #[test]
    fn events_come_in_order_and_tokens_before_their_text() {
        let fixture = fixture();
        let mut output = fixture.output(&Sampling::default(), 99);
        let id = fixture.ids("<think>")[0];
        let logprobs = TokenLogprobs { logprob: -0.5, top: vec![(id, -0.5), (fixture.vocabulary.turn_end(), -1.0)] };
        assert_eq!(output.push(id, Some(logprobs)), None);
        let mut events = Vec::new();
        output.take(7, 3, &mut events);
        let [TokenEvent::Tokens(infos), TokenEvent::Text(text)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((infos[0].id, infos[0].bytes.as_slice(), text.as_str()), (Some(id), &b"<think>"[..], "<think>"));
        assert_eq!((infos[0].top.len(), infos[0].top[1].bytes.len(), infos[0].top[1].logprob), (2, 0, -1.0));
        output.finish(FinishReason::Stop);
        assert_eq!(output.push(id, None), Some(FinishReason::Stop));
        events.clear();
        output.take(7, 3, &mut events);
        let usage = TokenUsage { prompt_tokens: 7, cached_tokens: 3, completion_tokens: 1 };
        assert_eq!(events, [TokenEvent::Finished(Generated { reason: FinishReason::Stop, usage })]);
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_tokenizers_text(
            ids in prop::collection::vec(0..1700u32, 0..60), text in "[aé€😀 ]{0,12}", take_each in any::<bool>(),
        ) {
            let fixture = fixture();
            let ids = [ids, fixture.ids(&text)].concat();
            let sampling = Sampling { ignore_eos: true, ..Sampling::default() };
            let mut output = fixture.output(&sampling, u32::MAX);
            let mut events = Vec::new();
            for id in &ids {
                prop_assert_eq!(output.push(*id, None), None);
                if take_each {
                    output.take(0, 0, &mut events);
                }
            }
            output.finish(FinishReason::Length);
            output.take(0, 0, &mut events);
            let said: String = events.iter().filter_map(|event| if let TokenEvent::Text(text) = event { Some(text.as_str()) } else { None }).collect();
            prop_assert_eq!(said, fixture.vocabulary.decode(&ids));
        }
    }
}
