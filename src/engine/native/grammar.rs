//! Outputs that must look like something: which tokens may come next, and when that is over.
//!
//! The only importer of llguidance. What a request brings is bounded in size, and the work on it in steps, before and while
//! it is compiled. Knows nothing of logits, of scheduling, or of how tokens are chosen.

mod divisors;
mod tokens;
mod trigger;

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::SimpleVob;
use llguidance::{ParserFactory, panic_utils};
use rayon::prelude::*;
use serde_json::{Value, json};

use tokens::Tokens;
use trigger::Trigger;

use crate::engine::chat::bytes::TokenBytes;
use crate::engine::chat::vocabulary::Vocabulary;
use crate::engine::{Constraint, EngineError, Grammar};

/// Bytes of a grammar, all of a request's own.
const LONGEST_GRAMMAR: usize = 64 * 1024;

/// Bytes of the text before or after the constrained part.
const LONGEST_MARK: usize = 1024;

/// States a lexer may grow: 1 to 2 kB each, by llguidance's account.
const MOST_LEXER_STATES: usize = 20_000;

/// Symbols a grammar may have.
const LARGEST_GRAMMAR: usize = 100_000;

/// Work on a lexer before the first token, and for each; 50 and 14 units take a microsecond, by llguidance's account.
const INITIAL_FUEL: u64 = 1_000_000;
const STEP_FUEL: u64 = 200_000;

/// States for the remainders of `multipleOf`. They are made at once, outside the bound on work: 10 microseconds each.
const MOST_REMAINDERS: f64 = 10_000.0;

/// Characters of what llguidance says about a grammar that reach the caller.
const LONGEST_COMPLAINT: usize = 200;

/// Compiles constraints for one model's vocabulary.
pub(super) struct Grammars {
    factory: ParserFactory,
    tokens: Arc<TokenBytes>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a model with so many logits in a row, ended by these tokens. Takes a moment for a long vocabulary: once a model,
    /// not on an async thread.
    ///
    /// # Errors
    /// [`EngineError::Load`] when the vocabulary can't be indexed.
    pub(super) fn new(
        vocabulary: Arc<Vocabulary>,
        tokens: Arc<TokenBytes>,
        row: usize,
        ends: &[u32],
    ) -> Result<Self, EngineError> {
        let bytes = Arc::clone(&tokens);
        let factory = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let tokens = Tokens::new(vocabulary, &bytes, row, ends)?;
            let mut factory = ParserFactory::new_simple(&(Arc::new(tokens) as _))?;
            factory.quiet();
            let limits = factory.limits_mut();
            limits.initial_lexer_fuel = INITIAL_FUEL;
            limits.step_lexer_fuel = STEP_FUEL;
            limits.max_lexer_states = MOST_LEXER_STATES;
            limits.max_grammar_size = LARGEST_GRAMMAR;
            limits.precompute_large_lexemes = false;
            limits.verbose_errors = false;
            Ok(factory)
        }));
        let factory = factory
            .map_err(|error| EngineError::Load(format!("the vocabulary can't be indexed: {}", complaint(&error))))?;
        Ok(Self { factory, tokens })
    }

    /// Compiles a request's constraint for an output that begins with `prefix`. Takes milliseconds: not for an async thread.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when the grammar is malformed or too large, or `prefix` does not fit it.
    pub(super) fn compile(&self, constraint: &Constraint, prefix: &str) -> Result<Matcher, EngineError> {
        let after = constraint.after.as_deref().filter(|after| !after.is_empty());
        let then = constraint.then.as_deref();
        if [after, then].into_iter().flatten().any(|mark| mark.len() > LONGEST_MARK) {
            return Err(EngineError::Invalid("the text around the grammar is too long".to_owned()));
        }
        let top = top_level(&constraint.grammar, then.unwrap_or_default())?;
        let parser = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| self.factory.create_parser(top)));
        let inner = llguidance::Matcher::new(parser);
        if let Some(error) = inner.get_error() {
            return Err(EngineError::Invalid(format!("the grammar can't be used: {}", complaint(&error))));
        }
        let mut matcher = Matcher {
            stage: Stage::Bound,
            inner,
            goes_on: then.is_some(),
            prepared: None,
            row: self.factory.tok_env().tok_trie().vocab_size(),
            tokens: Arc::clone(&self.tokens),
        };
        let trie = self.factory.tok_env().tok_trie();
        let rest = match after {
            Some(after) => {
                let mut trigger = Trigger::new(after.as_bytes(), &self.tokens);
                let rest = trigger.push(prefix.as_bytes());
                matcher.stage = Stage::Free(Some(trigger));
                rest
            }
            None => Some(prefix.as_bytes().to_vec()),
        };
        if let Some(rest) = rest {
            matcher.begin(&trie.greedy_tokenize(&rest)).map_err(|_| {
                EngineError::Invalid("the text that the answer begins with does not fit the grammar".to_owned())
            })?;
        }
        Ok(matcher)
    }
}

/// A grammar followed by a text, as one grammar: a token may reach from one into the other.
fn top_level(grammar: &Grammar, then: &str) -> Result<TopLevelGrammar, EngineError> {
    if let Grammar::JsonSchema(text) | Grammar::Regex(text) | Grammar::Lark(text) = grammar
        && text.len() > LONGEST_GRAMMAR
    {
        return Err(EngineError::Invalid(format!("the grammar is longer than {LONGEST_GRAMMAR} bytes")));
    }
    let schema = |schema: Value| GrammarWithLexer::from_json_schema(on_one_line(schema));
    let inner = match grammar {
        Grammar::JsonSchema(text) => {
            let value = serde_json::from_str(text)
                .map_err(|error| EngineError::Invalid(format!("the schema is not valid JSON: {error}")))?;
            if divisors::states(&value) > MOST_REMAINDERS {
                return Err(EngineError::Invalid("the schema's multipleOf is too fine or too large".to_owned()));
            }
            schema(value)
        }
        Grammar::JsonObject => schema(json!({"type": "object"})),
        // A regular expression is one lexeme, which would swallow the text after it.
        Grammar::Regex(text) => {
            let whole = if then.is_empty() { text.clone() } else { format!("(?:{text}){}", escaped(then)) };
            return Ok(TopLevelGrammar::from_regex(&whole));
        }
        Grammar::Lark(text) if text.contains("multipleOf") || text.contains("\\u") && text.contains("%json") => {
            return Err(EngineError::Invalid("a schema inside a grammar can't have multipleOf or \\u".to_owned()));
        }
        Grammar::Lark(text) => GrammarWithLexer::from_lark(text.clone()),
    };
    if then.is_empty() {
        return Ok(TopLevelGrammar::from_grammar(inner));
    }
    let outer = GrammarWithLexer::from_lark(format!("start: @inner {}", Value::from(then)));
    let grammars = vec![outer, GrammarWithLexer { name: Some("inner".to_owned()), ..inner }];
    Ok(TopLevelGrammar { grammars, max_tokens: None })
}

/// JSON as models write it on one line: at most one blank after a comma or a colon. Where any white space is allowed, a model
/// that likes none of the other tokens writes line breaks until its output is as long as it may be. What the schema's author
/// wrote for llguidance itself does not count.
fn on_one_line(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        let layout = json!({"whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?"});
        object.insert("x-guidance".to_owned(), layout);
    }
    schema
}

/// The text as a regular expression that matches it alone.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(2 * text.len());
    for character in text.chars() {
        // Not all punctuation: `\<` is the beginning of a word.
        if r"\.+*?()|[]{}^$#&-~".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// The first line of what llguidance says, cut to a bearable length.
fn complaint(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    // A panic of its own is no text for callers.
    if line.starts_with("panic") {
        "it is too complex".to_owned()
    } else {
        line.chars().take(LONGEST_COMPLAINT).collect()
    }
}

/// Where an output is.
#[derive(Debug)]
enum Stage {
    /// Unbound; with a trigger, until its text was written.
    Free(Option<Trigger>),
    /// In the grammar, or in the text that follows it.
    Bound,
    /// The grammar is complete and nothing may follow.
    Over,
}

/// Follows one output through its constraint.
pub(super) struct Matcher {
    stage: Stage,
    inner: llguidance::Matcher,
    /// Whether the output goes on freely after the constrained part.
    goes_on: bool,
    /// The mask for the next token, once it was computed.
    prepared: Option<Result<Option<SimpleVob>, EngineError>>,
    /// Logits in a row.
    row: usize,
    tokens: Arc<TokenBytes>,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl Matcher {
    /// The tokens that may come next, a bit for each, the lowest first; `None` when all may. Computed here unless
    /// [`prepare`] did.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when the grammar proves too complex.
    pub(super) fn allowed(&mut self) -> Result<Option<&[u32]>, EngineError> {
        self.prepare();
        match &self.prepared {
            Some(Ok(mask)) => Ok(mask.as_ref().map(SimpleVob::as_slice)),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        }
    }

    /// The output goes on with this token, one of those that [`Self::allowed`] names.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when it is none of them, or the grammar proves too complex.
    pub(super) fn accept(&mut self, id: u32) -> Result<(), EngineError> {
        self.prepared = None;
        match &mut self.stage {
            Stage::Free(None) | Stage::Over => Ok(()),
            Stage::Free(Some(trigger)) => match trigger.push(self.tokens.text(id)) {
                None => Ok(()),
                Some(rest) if rest.is_empty() => self.begin(&[]),
                Some(_) => Err(EngineError::Invalid("a token reaches into the grammar".to_owned())),
            },
            Stage::Bound => self.consume(&[id]),
        }
    }

    /// True when the constraint is fulfilled and ends the output.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// True while the constraint says anything about the next token.
    #[cfg(test)]
    pub(super) const fn is_bound(&self) -> bool {
        matches!(self.stage, Stage::Bound | Stage::Over)
    }

    /// The next tokens where the grammar leaves no choice, at most `most`: drafts that are sure to be accepted.
    pub(super) fn forced(&mut self, most: usize) -> Vec<u32> {
        if !matches!(self.stage, Stage::Bound) {
            return Vec::new();
        }
        let mut tokens = self.inner.compute_ff_tokens();
        tokens.truncate(most);
        tokens
    }

    /// How many of these drafted tokens the grammar takes, from the first on; the rest need not be tried.
    pub(super) fn fitting(&mut self, drafts: &[u32]) -> usize {
        match self.stage {
            // What a token after the marked text may be isn't known yet, and drafts are checked anyway.
            Stage::Free(_) => drafts.len(),
            Stage::Bound => self.inner.validate_tokens(drafts).unwrap_or(0),
            Stage::Over => 0,
        }
    }

    /// Enters the grammar.
    fn begin(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        self.stage = Stage::Bound;
        self.consume(tokens)
    }

    fn consume(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        self.inner.consume_tokens(tokens).map_err(|error| too_complex(&error))?;
        if self.goes_on {
            if self.inner.is_stopped() || self.inner.is_accepting().map_err(|error| too_complex(&error))? {
                self.stage = Stage::Free(None);
            }
        } else if self.inner.is_stopped() {
            self.stage = Stage::Over;
        }
        Ok(())
    }

    fn prepare(&mut self) {
        if self.prepared.is_some() {
            return;
        }
        let mask = match &self.stage {
            Stage::Free(None) => Ok(None),
            Stage::Free(Some(trigger)) => Ok(without(trigger.forbidden(), self.row)),
            Stage::Bound | Stage::Over => {
                self.inner.compute_mask_or_eos().map(Some).map_err(|error| too_complex(&error))
            }
        };
        self.prepared = Some(mask);
    }
}

/// All tokens but these; `None` when there are none of them.
fn without<'a>(forbidden: impl Iterator<Item = &'a u32>, row: usize) -> Option<SimpleVob> {
    let mut forbidden = forbidden.peekable();
    forbidden.peek()?;
    let mut mask = SimpleVob::alloc_ones(row);
    forbidden.filter(|id| (**id as usize) < row).for_each(|id| mask.disallow_token(*id));
    Some(mask)
}

fn too_complex(error: &dyn std::fmt::Display) -> EngineError {
    EngineError::Invalid(format!("the grammar can't be followed: {}", complaint(error)))
}

/// Computes what comes next for all constrained outputs of a step, so that none has to be waited for alone.
pub(super) fn prepare(matchers: &mut [&mut Matcher]) {
    match matchers {
        [] => {}
        [only] => only.prepare(),
        several => several.par_iter_mut().for_each(|matcher| matcher.prepare()),
    }
}

#[cfg(test)]
mod tests;
