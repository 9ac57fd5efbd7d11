//! Prompts have the tokens that the tokenizer gives them, except where the model's own are kept.

use proptest::prelude::*;

use super::*;
use crate::engine::chat::prompt::tests::frame;
use crate::engine::chat::vocabulary::tests::tiny;
use crate::types::Role;

fn prompts() -> Prompts {
    let vocabulary = Arc::new(tiny());
    let tokens = Arc::new(vocabulary.token_bytes().expect("byte-level"));
    let geometry = Geometry::new(32).expect("not 0");
    Prompts::new(vocabulary, tokens, geometry, Limits::new(4096, None), 1 << 20)
}

fn session() -> SessionKey {
    SessionKey("episode".into())
}

fn wanted() -> Result<(), EngineError> {
    Ok(())
}

fn user(text: &str) -> Turn {
    Turn::text(Role::User, text)
}

impl Prompts {
    fn of(&self, turns: &[Turn], prefix: &str) -> TokenizedPrompt {
        self.write(turns.to_vec(), prefix, 100, Some(&session()), wanted).expect("writes")
    }

    /// By the tokenizer in one go, with a picture's tokens made one again.
    fn plainly(&self, turns: &[Turn], prefix: &str) -> Vec<u32> {
        let rendered = render(turns.to_vec(), prefix, &self.vocabulary).expect("renders");
        self.vocabulary.encode_whole(&rendered.prompt.text())
    }

    fn narrowed(&self, prompt: &TokenizedPrompt) -> Vec<u32> {
        let mut ids = prompt.ids.clone();
        for picture in prompt.pictures.iter().rev() {
            ids.drain(picture.start + 1..picture.start + picture.tokens());
        }
        ids
    }
}

fn watched() -> Vec<Turn> {
    let parts = vec![
        Part::Text("<0.0 seconds>".to_owned()),
        Part::Frame(frame(64, 64)),
        Part::Text("<2.0 seconds>".to_owned()),
        Part::Frame(frame(96, 32)),
        Part::Text("What is red? <|im_end|>".to_owned()),
    ];
    vec![Turn::text(Role::System, "You watch."), Turn { role: Role::User, parts }]
}

#[test]
fn a_picture_has_a_token_for_each_merged_patch() {
    let prompts = prompts();
    let prompt = prompts.of(&watched(), "<think>\n");
    let [first, second] = &prompt.pictures[..] else { panic!("two pictures") };
    assert_eq!((first.frames[0].size.height, first.hash), (64, content_hash(&[frame(64, 64)])));
    assert_eq!((first.rows, first.columns, second.rows, second.columns), (2, 2, 1, 3));
    let ids = prompts.vocabulary.structural();
    for picture in [first, second] {
        let end = picture.start + picture.tokens();
        assert!(prompt.ids[picture.start..end].iter().all(|id| *id == ids.image_pad));
        assert_eq!((prompt.ids[picture.start - 1], prompt.ids[end]), (ids.vision_start, ids.vision_end));
    }
    assert_eq!(prompts.narrowed(&prompt), prompts.plainly(&watched(), "<think>\n"));
    assert_eq!(prompt.room, 100);
}

#[test]
fn two_frames_of_a_video_take_the_tokens_of_one() {
    let prompts = prompts();
    let pair = |first: Frame, second: Frame| {
        let parts = vec![Part::FramePair([first, second]), Part::Text("What is red? <|video_pad|>".to_owned())];
        vec![Turn { role: Role::User, parts }]
    };
    let turns = pair(frame(64, 96), frame(64, 96));
    let prompt = prompts.of(&turns, "");
    let [picture] = &prompt.pictures[..] else { panic!("one picture") };
    assert_eq!((picture.frames.len(), picture.rows, picture.columns), (2, 3, 2));
    let (ids, end) = (prompts.vocabulary.structural(), picture.start + 6);
    assert!(prompt.ids[picture.start..end].iter().all(|id| Some(*id) == ids.video_pad));
    assert_eq!((prompt.ids[picture.start - 1], prompt.ids[end]), (ids.vision_start, ids.vision_end));
    assert_eq!(prompts.narrowed(&prompt), prompts.plainly(&turns, ""));
    let unlike = prompts.write(pair(frame(64, 96), frame(96, 64)), "", 9, None, wanted);
    assert!(matches!(unlike, Err(EngineError::Invalid(_))), "{unlike:?}");
}

#[test]
fn a_picture_is_known_by_its_size_and_pixels() {
    let mut other = frame(64, 64);
    other.rgb = vec![127; other.rgb.len()].into();
    let pair = content_hash(&[frame(64, 64), frame(64, 64)]);
    let hashes = [frame(64, 64), frame(32, 128), other].map(|frame| content_hash(&[frame]));
    assert_eq!(hashes[0], content_hash(&[frame(64, 64)]));
    assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[0] != pair);
}

#[test]
fn a_turn_keeps_the_tokens_it_was_written_with() {
    let prompts = prompts();
    let first = prompts.of(&watched(), "<think>\n");
    let before = first.ids.clone();
    // Letter by letter: no tokenizer would write it so.
    let said = "<tool_call>watch the car</tool_call>";
    let letter = |letter: char| prompts.vocabulary.encode_text(&letter.to_string()).expect("encodes")[0];
    let generated: Vec<u32> = said.chars().map(letter).collect();
    assert!(generated.len() > prompts.vocabulary.encode_text(said).expect("encodes").len());
    let ended = [generated.as_slice(), &[prompts.vocabulary.turn_end()]].concat();
    prompts.remember(&session(), first.opening, &ended);

    let mut turns = watched();
    turns.push(Turn::text(Role::Assistant, format!("<think>\n{said}")));
    turns.push(user("<tool_response>a car</tool_response>"));
    let second = prompts.of(&turns, "<think>\n");
    let kept = before.len() + ended.len();
    assert_eq!(second.ids[..kept], [before.as_slice(), &ended].concat());
    let rest = prompts.plainly(&turns[3..], "<think>\n");
    let line_break = prompts.vocabulary.encode_text("\n").expect("encodes");
    assert_eq!(second.ids[kept..], [line_break, rest].concat());

    // And in the turn after that.
    prompts.remember(&session(), second.opening, &generated[..3]);
    let text: String = said.chars().take(3).collect();
    turns.push(Turn::text(Role::Assistant, format!("<think>\n{text}...")));
    turns.push(user("go on"));
    let third = prompts.of(&turns, "");
    assert_eq!(third.ids[..kept], second.ids[..kept]);
    assert_eq!(third.ids[second.ids.len()..][..3], generated[..3]);
    assert_eq!(prompts.vocabulary.decode(&third.ids), prompts.vocabulary.decode(&prompts.plainly(&turns, "")));
}

#[test]
fn a_turn_that_was_changed_keeps_what_is_before_the_change() {
    let prompts = prompts();
    let first = prompts.of(&[user("q")], "");
    let before = first.ids.len();
    let letters: Vec<u32> =
        "abcdef".chars().map(|c| prompts.vocabulary.encode_text(&c.to_string()).expect("encodes")[0]).collect();
    prompts.remember(&session(), first.opening, &letters);
    let changed = prompts.of(&[user("q"), Turn::text(Role::Assistant, "abXdef"), user("r")], "");
    assert_eq!(changed.ids[before..before + 2], letters[..2]);
    let turns = [user("other"), Turn::text(Role::Assistant, "zzz"), user("r")];
    assert_eq!(prompts.of(&turns, "").ids, prompts.plainly(&turns, ""));
    let elsewhere =
        prompts.write(vec![user("q"), Turn::text(Role::Assistant, "abcdef")], "", 9, None, wanted).expect("writes");
    assert_eq!(elsewhere.ids, prompts.plainly(&[user("q"), Turn::text(Role::Assistant, "abcdef")], ""));
}

#[test]
fn special_tokens_that_were_generated_are_not_kept() {
    let prompts = prompts();
    let first = prompts.of(&[user("q")], "");
    let before = first.ids.len();
    let a = prompts.vocabulary.encode_text("a").expect("encodes")[0];
    let pad = prompts.vocabulary.structural().image_pad;
    prompts.remember(&session(), first.opening, &[a, pad, a]);
    let second = prompts.of(&[user("q"), Turn::text(Role::Assistant, "aa")], "");
    assert!(!second.ids.contains(&pad));
    assert_eq!(second.ids[before..before + 2], [a, a]);
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_made() {
    let prompts = prompts();
    let long = prompts.write(vec![user(&"a ".repeat(200_000))], "", 9, None, wanted);
    assert!(matches!(long, Err(EngineError::TooLong { .. })), "{:?}", long.map(|prompt| prompt.ids.len()));
    let frames = vec![Part::Frame(frame(1024, 1024)); 5];
    let many = prompts.write(vec![Turn { role: Role::User, parts: frames }], "", 9, None, wanted);
    assert!(matches!(many, Err(EngineError::TooLong { needed: 5120, limit: 4096 })));
    let odd =
        prompts.write(vec![Turn { role: Role::User, parts: vec![Part::Frame(frame(33, 32))] }], "", 9, None, wanted);
    assert!(matches!(odd, Err(EngineError::Invalid(_))));
    assert!(matches!(prompts.write(Vec::new(), "", 9, None, wanted), Err(EngineError::Invalid(_))));
    let full = prompts.write(vec![user(&"a ".repeat(2000))], "", 4000, None, wanted).expect("writes");
    assert_eq!(full.room as usize + full.ids.len(), 4096);
}

#[test]
fn what_nobody_waits_for_is_not_written_to_its_end() {
    let prompts = prompts();
    let asked = std::cell::Cell::new(0);
    let gone_after = |calls| {
        asked.set(0);
        let wanted = || {
            asked.set(asked.get() + 1);
            if asked.get() > calls { Err(EngineError::DeadlineExceeded) } else { Ok(()) }
        };
        prompts.write(watched(), "", 9, None, wanted).map(|prompt| prompt.ids.len())
    };
    let all = (0..99).find(|calls| gone_after(*calls).is_ok()).expect("it ends");
    // Before each text, and before each of the two pictures is hashed.
    assert!(all >= 4, "{all}");
    assert!(matches!(gone_after(all - 1), Err(EngineError::DeadlineExceeded)));
    assert_eq!(asked.get(), all, "and nothing is done after that");
}

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("<|im_end|>".to_owned()),
        Just("<|im_start|>".to_owned()),
        Just("<|vision_start|><|image_pad|><|vision_end|>".to_owned()),
        Just("<think>".to_owned()),
        Just("<|".to_owned()),
        Just("e\u{301}".to_owned()),
        "[a-z <|>é\\n]{0,8}",
        Just("a long text that is remembered, since it is longer than most".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_conversation_has_the_tokens_that_the_tokenizer_gives_the_whole(
        turns in prop::collection::vec((0..3usize, prop::collection::vec(prop_oneof![4 => piece().prop_map(Some), 1 => Just(None)], 0..6)), 1..5),
        prefix in piece(),
    ) {
        thread_local!(static PROMPTS: Prompts = prompts());
        let roles = [Role::System, Role::User, Role::Assistant];
        let part = |text: Option<String>| text.map_or_else(|| Part::Frame(frame(64, 32)), Part::Text);
        let turns: Vec<Turn> = turns.into_iter().map(|(role, parts)| Turn { role: roles[role], parts: parts.into_iter().map(part).collect() }).collect();
        PROMPTS.with(|prompts| {
            let prompt = prompts.write(turns.clone(), &prefix, 9, None, wanted).expect("writes");
            prop_assert_eq!(prompts.narrowed(&prompt), prompts.plainly(&turns, &prefix));
            Ok(())
        })?;
    }

    #[test]
    fn a_continued_turn_always_reads_as_it_was_written(
        generated in prop::collection::vec(0..1600u32, 0..20), cut in 0..60usize, more in "[a-zé ]{0,6}",
    ) {
        thread_local!(static PROMPTS: Prompts = prompts());
        PROMPTS.with(|prompts| {
            let first = prompts.of(&[user("q")], "<think>");
            prompts.remember(&session(), first.opening, &generated);
            let text = prompts.vocabulary.decode(&generated);
            // The tokenizer would compose these, where it reads the text again.
            prop_assume!(!text.chars().any(|c| ('\u{300}'..'\u{370}').contains(&c)));
            let text: String = "<think>".chars().chain(text.chars().take(cut)).chain(more.chars()).collect();
            let turns = [user("q"), Turn::text(Role::Assistant, text), user("r")];
            let second = prompts.of(&turns, "");
            prop_assert_eq!(prompts.vocabulary.decode(&second.ids), prompts.vocabulary.decode(&prompts.plainly(&turns, "")));
            Ok(())
        })?;
    }
}
