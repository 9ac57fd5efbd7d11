//! Random outputs under a constraint always fit it, and no grammar takes long.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::engine::Sampling;
use crate::engine::chat::vocabulary::tests::tiny;
use crate::engine::native::sampler::{Sampler, Scratch};

/// More logits than tokens, as real models have.
const ROW: usize = 1664;

struct Fixture {
    grammars: Grammars,
    vocabulary: Arc<Vocabulary>,
    tokens: Arc<TokenBytes>,
}

fn fixture() -> Fixture {
    let vocabulary = Arc::new(tiny());
    let tokens = Arc::new(vocabulary.token_bytes().expect("byte-level"));
    let ends = [vocabulary.turn_end()];
    let grammars = Grammars::new(Arc::clone(&vocabulary), Arc::clone(&tokens), ROW, &ends).expect("indexes");
    Fixture { grammars, vocabulary, tokens }
}

fn constraint(grammar: Grammar) -> Constraint {
    Constraint { grammar, after: None, then: None }
}

fn regex(text: &str) -> Grammar {
    Grammar::Regex(text.to_owned())
}

/// Logits of a model that knows nothing: noise, from a seed.
fn noise(seed: u64, place: u64) -> Vec<f32> {
    let hash = |n: u64| {
        let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    };
    (0..ROW as u64).map(|id| (hash(seed.wrapping_mul(977) ^ hash(place << 20 | id)) % 1000) as f32 / 125.0).collect()
}

impl Fixture {
    fn compile(&self, grammar: Grammar) -> Result<Matcher, EngineError> {
        self.grammars.compile(&constraint(grammar), "")
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.vocabulary.encode_text(text).expect("encodes")
    }

    /// Writes at random under the constraint until it is over, or for `most` tokens.
    fn write(&self, matcher: &mut Matcher, seed: u64, most: u64) -> (String, bool) {
        let mut sampler = Sampler::new(&Sampling { seed: Some(seed), ..Sampling::default() }, &[]).expect("valid");
        let (mut scratch, mut bytes) = (Scratch::default(), Vec::new());
        for place in 0..most {
            let allowed = matcher.allowed().expect("goes on");
            let id = sampler.choose(&noise(seed, place), allowed, &mut scratch).expect("chooses").id;
            sampler.accept(id);
            matcher.accept(id).expect("was allowed");
            bytes.extend_from_slice(self.tokens.text(id));
            if matcher.is_over() || id == self.vocabulary.turn_end() {
                return (String::from_utf8_lossy(&bytes).into_owned(), true);
            }
        }
        (String::from_utf8_lossy(&bytes).into_owned(), false)
    }

    /// Follows a text through the constraint; gives how much of it was allowed.
    fn follow<'a>(&self, matcher: &mut Matcher, text: &'a str) -> &'a str {
        let mut done = 0;
        for id in self.ids(text) {
            let allowed = matcher.allowed().expect("goes on");
            if allowed.is_some_and(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 0) {
                break;
            }
            matcher.accept(id).expect("was allowed");
            done += self.tokens.text(id).len();
        }
        &text[..done]
    }
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "answer": {"enum": ["A", "B", "C"]},
            "seconds": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 3},
            "why": {"type": "string", "maxLength": 12}
        },
        "required": ["answer", "seconds"],
        "additionalProperties": false,
        "x-guidance": {"whitespace_flexible": false}
    })
}

fn fits(value: &Value) -> bool {
    let seconds = value["seconds"].as_array();
    let fits_seconds = |number: &Value| number.as_u64().is_some_and(|number| number < 1000);
    value
        .as_object()
        .is_some_and(|object| object.keys().all(|key| ["answer", "seconds", "why"].contains(&key.as_str())))
        && value["answer"].as_str().is_some_and(|answer| ["A", "B", "C"].contains(&answer))
        && seconds.is_some_and(|seconds| seconds.len() <= 3 && seconds.iter().all(fits_seconds))
        && value.get("why").is_none_or(|why| why.as_str().is_some_and(|why| why.chars().count() <= 12))
}

#[test]
fn noise_under_a_schema_is_always_json_that_fits_it() {
    let fixture = fixture();
    for seed in 0..40 {
        let mut matcher = fixture.compile(Grammar::JsonSchema(schema().to_string())).expect("compiles");
        let (text, over) = fixture.write(&mut matcher, seed, 300);
        assert!(over, "{text}");
        let value: Value = serde_json::from_str(&text).expect(&text);
        assert!(fits(&value), "{text}");
    }
}

#[test]
fn noise_under_a_regular_expression_matches_it() {
    let fixture = fixture();
    for seed in 0..40 {
        let mut matcher = fixture.compile(regex("[A-D]|[0-9]{1,3}\\.[0-9]s")).expect("compiles");
        let (text, over) = fixture.write(&mut matcher, seed, 50);
        assert!(over);
        let seconds = text.strip_suffix('s').and_then(|number| number.split_once('.'));
        let fits = matches!(text.as_str(), "A" | "B" | "C" | "D")
            || seconds.is_some_and(|(whole, part)| (1..=3).contains(&whole.len()) && part.len() == 1);
        assert!(fits, "{text:?}");
    }
}

#[test]
fn a_constraint_begins_after_its_mark_and_ends_with_its_other() {
    let fixture = fixture();
    let (after, then) = (Some("<answer>".to_owned()), Some("</answer>".to_owned()));
    for grammar in [regex("[AB]{1,2}"), Grammar::Lark("start: /[AB]/ /[AB]/?".to_owned())] {
        let constraint = Constraint { grammar, after: after.clone(), then: then.clone() };
        let mut matcher = fixture.grammars.compile(&constraint, "").expect("compiles");
        let free = "<think>anything, even A </answer></think>\n<answer";
        assert_eq!(fixture.follow(&mut matcher, free), free);
        assert!(!matcher.is_bound());
        assert_eq!(fixture.follow(&mut matcher, ">"), ">");
        assert!(matcher.is_bound());
        assert_eq!(fixture.follow(&mut matcher, "C"), "");
        assert_eq!(fixture.follow(&mut matcher, "B"), "B");
        assert_eq!(fixture.follow(&mut matcher, "</answer>"), "</answer>");
        assert!(!matcher.is_bound() && !matcher.is_over());
        assert!(matcher.allowed().expect("goes on").is_none());
        assert_eq!(fixture.follow(&mut matcher, " <answer>free"), " <answer>free");
    }
}

#[test]
fn noise_between_two_marks_fits() {
    let fixture = fixture();
    for (seed, grammar) in
        (0..).zip([Grammar::JsonSchema(schema().to_string()), regex("[a-f ]{3,9}")].into_iter().cycle().take(20))
    {
        let constraint = Constraint { grammar, after: Some("<answer>".to_owned()), then: Some("</answer>".to_owned()) };
        let mut matcher = fixture.grammars.compile(&constraint, "x<answer>").expect("compiles");
        assert!(matcher.is_bound());
        let (text, _) = fixture.write(&mut matcher, seed, 300);
        let (inside, _) = text.split_once("</answer>").expect(&text);
        let letters =
            |text: &str| (3..=9).contains(&text.len()) && text.chars().all(|c| ('a'..='f').contains(&c) || c == ' ');
        assert!(serde_json::from_str(inside).is_ok_and(|value| fits(&value)) || letters(inside), "{inside}");
    }
}

#[test]
fn a_mark_is_never_completed_by_a_token_that_goes_on() {
    let fixture = fixture();
    let constraint = Constraint { grammar: regex("[xyz]"), after: Some("<answer>".to_owned()), then: None };
    for seed in 0..20 {
        let mut matcher = fixture.grammars.compile(&constraint, "").expect("compiles");
        let written = "<answer";
        assert_eq!(fixture.follow(&mut matcher, written), written);
        let over: Vec<u32> =
            (0..).take(fixture.tokens.len()).filter(|id| fixture.tokens.text(*id).starts_with(b">")).collect();
        let mask = matcher.allowed().expect("goes on").expect("some are forbidden").to_vec();
        let allowed: Vec<&u32> = over.iter().filter(|id| mask[**id as usize / 32] >> (**id % 32) & 1 == 1).collect();
        assert_eq!(allowed.len(), 1, "only the mark's own end");
        matcher.accept(*allowed[0]).expect("was allowed");
        let (text, over) = fixture.write(&mut matcher, seed, 9);
        assert!(over && ["x", "y", "z"].contains(&text.as_str()), "{text}");
    }
}

#[test]
fn a_prefix_counts_as_output() {
    let fixture = fixture();
    let json = constraint(Grammar::JsonSchema(schema().to_string()));
    let mut matcher = fixture.grammars.compile(&json, "{\"answer\":\"").expect("compiles");
    assert_eq!(fixture.follow(&mut matcher, "D"), "");
    assert_eq!(fixture.follow(&mut matcher, "B"), "B");
    let refused = fixture.grammars.compile(&json, "<think>");
    assert!(matches!(refused, Err(EngineError::Invalid(_))), "{refused:?}");
}

#[test]
fn what_is_forced_is_drafted_and_fits() {
    let fixture = fixture();
    let mut matcher = fixture.compile(Grammar::JsonSchema(schema().to_string())).expect("compiles");
    let forced = matcher.forced(99);
    let text: Vec<u8> = forced.iter().flat_map(|id| fixture.tokens.text(*id).to_vec()).collect();
    assert!(text.starts_with(b"{\"answer"), "{:?}", String::from_utf8_lossy(&text));
    assert_eq!((matcher.fitting(&forced), matcher.forced(1).len()), (forced.len(), 1));
    let wrong = [forced.clone(), fixture.ids("wrong")].concat();
    assert!(matcher.fitting(&wrong) < wrong.len());
    // Asking changes nothing.
    for id in forced {
        assert!(matcher.allowed().expect("goes on").is_some_and(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 1));
        matcher.accept(id).expect("was allowed");
    }
}

#[test]
fn one_pass_gives_the_masks_that_each_would_have_alone() {
    let fixture = fixture();
    let grammars = [regex("a+"), Grammar::JsonObject, Grammar::JsonSchema(schema().to_string())];
    let all = || grammars.clone().map(|grammar| fixture.compile(grammar).expect("compiles"));
    let (mut together, mut alone) = (all(), all());
    prepare(&mut together.iter_mut().collect::<Vec<_>>());
    for (one, other) in together.iter_mut().zip(&mut alone) {
        assert!(one.prepared.is_some());
        assert_eq!(one.allowed().expect("goes on"), other.allowed().expect("goes on"));
    }
}

#[test]
fn special_tokens_are_never_text() {
    let fixture = fixture();
    let mut matcher = fixture.compile(regex("(?s:.{1,20})")).expect("compiles");
    let mask = matcher.allowed().expect("goes on").expect("bound");
    let allowed = |id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
    assert!((0..ROW as u32).filter(|id| fixture.tokens.is_special(*id)).all(|id| !allowed(id)));
    assert!((fixture.tokens.len() as u32..ROW as u32).all(|id| !allowed(id)));
    assert!(allowed(fixture.ids("<think>")[0]) && allowed(fixture.ids("a")[0]));
}

#[test]
fn text_that_the_tokenizer_would_rewrite_is_still_exact() {
    let fixture = fixture();
    for word in ["e\u{301}", "<|im_end|>", "日本"] {
        let grammar = Grammar::JsonSchema(json!({"const": word}).to_string());
        let (text, over) = fixture.write(&mut fixture.compile(grammar).expect("compiles"), 5, 60);
        assert_eq!((text, over), (Value::from(word).to_string(), true));
    }
}

#[test]
fn malformed_grammars_are_refused_by_name() {
    let fixture = fixture();
    for grammar in [
        Grammar::JsonSchema("{".to_owned()),
        Grammar::JsonSchema("{\"type\": \"nonsense\"}".to_owned()),
        Grammar::JsonSchema("false".to_owned()),
        regex("("),
        Grammar::Lark("begin: \"x\"".to_owned()),
        Grammar::Lark(String::new()),
        Grammar::Lark("start: @outer".to_owned()),
        Grammar::JsonSchema("x".repeat(LONGEST_GRAMMAR + 1)),
    ] {
        let compiled = fixture.compile(grammar.clone());
        let Err(EngineError::Invalid(message)) = compiled else { panic!("{grammar:?}: {compiled:?}") };
        assert!(message.len() < 400 && !message.contains("backtrace"), "{message}");
    }
}

fn nested(levels: usize, open: &str, inside: &str, close: &str) -> String {
    [open.repeat(levels).as_str(), inside, close.repeat(levels).as_str()].concat()
}

#[test]
fn hostile_grammars_end_soon() {
    let fixture = fixture();
    let many = |count: usize| {
        (0..count)
            .map(|n| (format!("p{n}"), json!({"type": "string", "pattern": "^(a|b)*c{1,50}$"})))
            .collect::<serde_json::Map<_, _>>()
    };
    let all_of: Vec<Value> = (0..30).map(|n| json!({"anyOf": [{"minLength": n}, {"maxLength": 100 + n}]})).collect();
    let schemas = [
        json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
        json!({"type": "object", "properties": many(500)}),
        json!({"$ref": "#"}),
        json!({"allOf": all_of}),
        json!({"type": "string", "pattern": "(((a{1,99}){1,99}){1,99}){1,99}"}),
        json!({"type": "integer", "multipleOf": 1_000_003, "minimum": -9_000_000_000_000_000i64}),
        json!({"type": "integer", "multipleOf": 9973}),
        json!({"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}]}),
        json!({"enum": (0..4000).map(|n| format!("value number {n}")).collect::<Vec<_>>()}),
    ];
    let mut grammars: Vec<Grammar> = schemas.iter().map(|schema| Grammar::JsonSchema(schema.to_string())).collect();
    grammars.push(Grammar::JsonSchema(nested(4000, "{\"items\":", "{}", "}")));
    grammars.push(Grammar::JsonSchema(nested(100, "{\"type\":\"array\",\"items\":", "{}", "}")));
    grammars.push(regex(&nested(20_000, "(", "a", ")")));
    grammars.push(regex(&nested(200, "(", "a", ")*")));
    grammars.push(regex("(a|b)*a(a|b){200}"));
    grammars.push(regex("[a-z]{1,100000}"));
    grammars.push(regex(&"(a|aa)*".repeat(5000)));
    grammars.push(regex("(.*a){20}&~(.*b.*)"));
    grammars.push(Grammar::Lark(nested(20_000, "start: ", "\"x\"", "").replace("start: start", "start: (")));
    grammars.push(Grammar::Lark(format!("start: {}", nested(20_000, "(", "\"x\"", ")"))));
    grammars.push(Grammar::Lark("start: %json {\"multipleOf\": 1000003}".to_owned()));
    grammars.push(Grammar::Lark("start: start start | start | \"a\" | ".to_owned()));
    grammars.push(Grammar::Lark("start: a{1,100000}\na: \"x\" | \"xx\"".to_owned()));
    grammars.push(Grammar::Lark(
        (0..60).fold("start: r0\n".to_owned(), |text, n| format!("{text}r{n}: r{} r{}\n", n + 1, n + 1)) + "r60: \"x\"",
    ));
    for grammar in grammars {
        let shown: String = format!("{grammar:?}").chars().take(100).collect();
        let begun = Instant::now();
        let compiled = fixture.compile(grammar);
        let compiling = begun.elapsed();
        let outcome = match compiled {
            Ok(mut matcher) => {
                let (mut scratch, mut written) = (Scratch::default(), 0);
                let mut sampler = Sampler::new(&Sampling { seed: Some(1), ..Sampling::default() }, &[]).expect("valid");
                for place in 0..40 {
                    // A grammar may prove too complex on the way.
                    let Ok(allowed) = matcher.allowed() else { break };
                    let id = sampler.choose(&noise(1, place), allowed, &mut scratch).expect("chooses").id;
                    if matcher.accept(id).is_err() || matcher.is_over() {
                        break;
                    }
                    written += 1;
                }
                format!("{written} tokens in {:?}", begun.elapsed() - compiling)
            }
            Err(error) => {
                assert!(matches!(error, EngineError::Invalid(_)), "{error:?}");
                error.to_string()
            }
        };
        assert!(begun.elapsed() < Duration::from_secs(5), "{compiling:?} {shown}: {outcome}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_text_as_a_grammar_is_compiled_or_refused(text in "[a-z(){}\\[\\]|*+?.:@\"/\\\\ \\n%<>0-9^$&~,-]{0,60}", kind in 0..3) {
        thread_local!(static FIXTURE: Fixture = fixture());
        let grammar = match kind {
            0 => regex(&text),
            1 => Grammar::Lark(format!("start: {text}")),
            _ => Grammar::JsonSchema(format!("{{\"pattern\": {}}}", Value::from(text))),
        };
        FIXTURE.with(|fixture| {
            if let Ok(mut matcher) = fixture.compile(grammar) {
                let _ = matcher.allowed().map(|mask| mask.is_some());
            }
        });
    }
}
