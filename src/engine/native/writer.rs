//! One generation between the model's steps: what to draft, what the logits of a step add, and what the caller hears of it.
//!
//! A step gives a row of logits for the last token and one more for each drafted token. A row counts as long as the draft
//! before it is what was chosen, so drafts change when tokens come, never which. Knows nothing of batches or of tensors.

use super::draft::Lookup;
use super::grammar::Matcher;
use super::output::Output;
use super::sampler::{Sampler, Scratch};
use crate::engine::{EngineError, FinishReason};

/// Everything that one output depends on beside the model.
#[derive(Debug)]
pub(super) struct Writer {
    sampler: Sampler,
    matcher: Option<Matcher>,
    lookup: Lookup,
    output: Output,
    /// Of the drafts given out last: how many were looked up.
    guessed: usize,
}

/// What a step added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// The tokens, in order: those drafts that were right, and one more.
    pub(super) tokens: Vec<u32>,
    /// Set when the output ended.
    pub(super) finish: Option<FinishReason>,
}

impl Writer {
    /// A writer at the beginning of an output. `lookup` knows the prompt already.
    pub(super) const fn new(sampler: Sampler, matcher: Option<Matcher>, lookup: Lookup, output: Output) -> Self {
        Self { sampler, matcher, lookup, output, guessed: 0 }
    }

    /// At most `most` tokens that may come next; more than could be written are never given.
    pub(super) fn drafts(&mut self, most: usize) -> Vec<u32> {
        // The last token needs no draft: its row would be for nothing.
        let most = most.min(self.output.room().saturating_sub(1) as usize);
        self.guessed = 0;
        if most == 0 {
            return Vec::new();
        }
        let forced = self.matcher.as_mut().map(|matcher| matcher.forced(most)).unwrap_or_default();
        if !forced.is_empty() {
            return forced;
        }
        let mut guess = self.lookup.guess(most).to_vec();
        if let Some(matcher) = self.matcher.as_mut().filter(|_| !guess.is_empty()) {
            guess.truncate(matcher.fitting(&guess));
        }
        self.guessed = guess.len();
        guess
    }

    /// What follows the constraint, for computing masks of many outputs in one pass.
    pub(super) const fn matcher_mut(&mut self) -> Option<&mut Matcher> {
        self.matcher.as_mut()
    }

    /// Takes a step's rows: the one after the last token, then one after each of `drafts`, which [`Self::drafts`] gave.
    ///
    /// # Errors
    /// [`EngineError::Failed`] when the logits are unfit or missing, [`EngineError::Invalid`] when the grammar proves too
    /// complex. The generation can't go on after either.
    pub(super) fn take<'a>(
        &mut self,
        rows: impl IntoIterator<Item = &'a [f32]>,
        drafts: &[u32],
        scratch: &mut Scratch,
    ) -> Result<Step, EngineError> {
        let mut rows = rows.into_iter();
        let mut step = Step { tokens: Vec::with_capacity(drafts.len() + 1), finish: None };
        let mut right = 0;
        loop {
            let row = rows.next().ok_or_else(|| EngineError::Failed("the model gave too few logits".to_owned()))?;
            let id = self.choose(row, scratch, &mut step)?;
            if step.finish.is_some() || drafts.get(right) != Some(&id) {
                break;
            }
            right += 1;
        }
        self.lookup.learn(std::mem::take(&mut self.guessed), right);
        Ok(step)
    }

    /// The output, for what the caller is to hear.
    pub(super) const fn output_mut(&mut self) -> &mut Output {
        &mut self.output
    }

    fn choose(&mut self, row: &[f32], scratch: &mut Scratch, step: &mut Step) -> Result<u32, EngineError> {
        let allowed = match &mut self.matcher {
            Some(matcher) => matcher.allowed()?,
            None => None,
        };
        let choice = self.sampler.choose(row, allowed, scratch)?;
        self.sampler.accept(choice.id);
        self.lookup.push(choice.id);
        step.tokens.push(choice.id);
        step.finish = self.output.push(choice.id, choice.logprobs);
        if let Some(matcher) = self.matcher.as_mut().filter(|_| step.finish.is_none()) {
            matcher.accept(choice.id)?;
            if matcher.is_over() {
                step.finish = self.output.finish(FinishReason::Stop);
            }
        }
        Ok(choice.id)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::chat::bytes::TokenBytes;
    use crate::engine::chat::vocabulary::tests::tiny;
    use crate::engine::native::grammar::{Grammars, prepare};
    use crate::engine::{Constraint, Grammar, Sampling, TokenEvent};

    const ROW: usize = 1600;

    struct Fixture {
        grammars: Grammars,
        tokens: Arc<TokenBytes>,
        end: u32,
    }

    fn fixture() -> Fixture {
        let vocabulary = Arc::new(tiny());
        let tokens = Arc::new(vocabulary.token_bytes().expect("byte-level"));
        let end = vocabulary.turn_end();
        let grammars = Grammars::new(vocabulary, Arc::clone(&tokens), ROW, &[end]).expect("indexes");
        Fixture { grammars, tokens, end }
    }

    /// A model that likes to repeat itself: logits depend on the last token alone.
    fn logits(context: &[u32]) -> Vec<f32> {
        let last = context.last().map_or(17, |id| u64::from(*id).wrapping_mul(31));
        let noise = |id: u64| (last ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (0..ROW as u64).map(|id| (noise(id) % 4096) as f32 / 256.0).collect()
    }

    fn write(fixture: &Fixture, sampling: &Sampling, drafts: bool, most: u32) -> (Vec<u32>, Vec<TokenEvent>, usize) {
        let mut context: Vec<u32> = (0..60).map(|n| n * 7 % 20 + 300).collect();
        let mut lookup = Lookup::new(1000, if drafts { 8 } else { 0 });
        lookup.extend(&context);
        let matcher = sampling.constraint.as_ref().map(|c| fixture.grammars.compile(c, "").expect("compiles"));
        let output = Output::new(Arc::clone(&fixture.tokens), [fixture.end].into(), sampling, most);
        let mut writer = Writer::new(Sampler::new(sampling, &context).expect("valid"), matcher, lookup, output);
        let (mut scratch, mut written, mut steps) = (Scratch::default(), Vec::new(), 0);
        loop {
            steps += 1;
            let guess = if drafts { writer.drafts(8) } else { Vec::new() };
            prepare(&mut writer.matcher_mut().into_iter().collect::<Vec<_>>());
            let rows: Vec<Vec<f32>> =
                (0..=guess.len()).map(|n| logits(&[context.as_slice(), &guess[..n]].concat())).collect();
            let step = writer.take(rows.iter().map(Vec::as_slice), &guess, &mut scratch).expect("goes on");
            context.extend(&step.tokens);
            written.extend(step.tokens);
            if step.finish.is_some() {
                let mut events = Vec::new();
                writer.output_mut().take(60, 0, &mut events);
                return (written, events, steps);
            }
        }
    }

    #[test]
    fn a_greedy_output_that_repeats_itself_takes_fewer_steps_and_is_the_same() {
        let fixture = fixture();
        let sampling = Sampling { temperature: Some(0.0), ignore_eos: true, ..Sampling::default() };
        let (plain, drafted) = (write(&fixture, &sampling, false, 400), write(&fixture, &sampling, true, 400));
        assert_eq!((plain.0, plain.1), (drafted.0, drafted.1));
        assert!(plain.2 == 400 && drafted.2 < 300, "{} and {} steps", plain.2, drafted.2);
    }

    #[test]
    fn what_a_grammar_forces_comes_in_one_step() {
        let fixture = fixture();
        let schema = r#"{"const": "a long text without any choice in it"}"#.to_owned();
        let constraint = Constraint { grammar: Grammar::JsonSchema(schema), after: None, then: None };
        let sampling = Sampling { constraint: Some(constraint), ..Sampling::default() };
        let (plain, drafted) = (write(&fixture, &sampling, false, 100), write(&fixture, &sampling, true, 100));
        let text = |events: &[TokenEvent]| match &events[0] {
            TokenEvent::Text(text) => text.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(text(&drafted.1), "\"a long text without any choice in it\"");
        assert_eq!(text(&plain.1), text(&drafted.1));
        assert!(drafted.2 < plain.2, "{} and {} steps", plain.2, drafted.2);
    }

    #[test]
    fn rows_that_are_missing_are_an_error() {
        let fixture = fixture();
        let output = Output::new(fixture.tokens, Arc::default(), &Sampling::default(), 9);
        let sampler = Sampler::new(&Sampling::default(), &[]).expect("valid");
        let mut writer = Writer::new(sampler, None, Lookup::new(9, 0), output);
        assert!(writer.take(std::iter::empty(), &[], &mut Scratch::default()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn drafts_never_change_an_output(
            seed: u64, temperature in prop_oneof![Just(0.0), 0.05f64..1.0], top_p in prop::option::of(0.3f64..1.0),
            repetition in prop::option::of(0.9f64..1.3), bound: bool, most in 1..120u32,
        ) {
            thread_local!(static FIXTURE: Fixture = fixture());
            let grammar = Grammar::Regex("([a-c]{2,4} ){3,30}".to_owned());
            let constraint = bound.then(|| Constraint { grammar, after: None, then: Some("end".to_owned()) });
            let sampling = Sampling {
                seed: Some(seed), temperature: Some(temperature), top_p, repetition_penalty: repetition,
                logprobs: Some(1), constraint, ..Sampling::default()
            };
            FIXTURE.with(|fixture| {
                let (plain, drafted) = (write(fixture, &sampling, false, most), write(fixture, &sampling, true, most));
                prop_assert_eq!((plain.0, plain.1), (drafted.0, drafted.1));
                Ok(())
            })?;
        }
    }
}
