//! Files of both layouts and both formats, there and back; what pyarrow wrote; what is broken.

use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Map, json};

use super::super::row::{Content, ContentPart, Message, PromptMessage, VideoFile};
use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/fixtures/train").join(name)
}

fn write(path: &Path, layout: Layout, rows: &[Row]) -> Result<u64, DatasetError> {
    let mut writer = Writer::create(path, layout)?;
    for row in rows {
        writer.add(row)?;
    }
    writer.finish()
}

fn read(path: &Path) -> Result<Vec<Row>, DatasetError> {
    Reader::open(path)?.collect()
}

/// Rows of conversations or of prompts, odd ones too.
fn rows() -> impl Strategy<Value = (Layout, Vec<Row>)> {
    let text = "[a-z\\u{e9}\\u{4e00}<>\"\\\\\\n ]{0,12}";
    let part = (text, any::<bool>()).prop_map(|(text, is_text)| {
        if is_text {
            return ContentPart::text(text);
        }
        let fields = Map::from_iter([("video_url".to_owned(), json!({"url": text, "fps": 1.5}))]);
        ContentPart { kind: "video_url".to_owned(), fields }
    });
    let content = prop_oneof![
        Just(Content::Nothing),
        text.prop_map(Content::Text),
        proptest::collection::vec(part, 0..3).prop_map(Content::Parts),
    ];
    let message = (text, content, any::<i64>()).prop_map(|(role, content, number)| {
        let fields = Map::from_iter([("n".to_owned(), json!(number)), ("none".to_owned(), json!(null))]);
        Message { role, content, fields }
    });
    let sft = proptest::collection::vec(message, 0..4).prop_map(|messages| Row::Sft(SftRow { messages }));
    let lists = (proptest::collection::vec((text, text), 0..4), proptest::collection::vec(text, 0..4));
    let rl = (lists, text, text, any::<i32>()).prop_map(|((prompt, videos), answer, question_type, number)| {
        Row::Rl(RlRow {
            prompt: prompt.into_iter().map(|(role, content)| PromptMessage { role, content }).collect(),
            videos: videos.into_iter().map(|video| VideoFile { video }).collect(),
            answer,
            question_type,
            extra: Map::from_iter([
                ("n".to_owned(), json!(f64::from(number) / 16.0)),
                ("deep".to_owned(), json!([{"a": {}}])),
            ]),
        })
    });
    prop_oneof![
        proptest::collection::vec(sft, 1..6).prop_map(|rows| (Layout::Sft, rows)),
        proptest::collection::vec(rl, 1..6).prop_map(|rows| (Layout::Rl, rows)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_come_back_as_they_went((layout, rows) in rows()) {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["rows.parquet", "rows.jsonl"] {
            let path = folder.path().join(name);
            prop_assert_eq!(write(&path, layout, &rows).expect("written"), rows.len() as u64);
            let reader = Reader::open(&path).expect("opens");
            prop_assert_eq!(reader.layout(), layout);
            prop_assert_eq!(&reader.collect::<Result<Vec<_>, _>>().expect("reads"), &rows);
        }
    }
}

#[test]
fn what_pyarrow_wrote_is_read() {
    let mut reader = Reader::open(&fixture("sft.parquet")).expect("opens");
    let rows: Vec<Row> = (&mut reader).collect::<Result<_, _>>().expect("reads");
    assert_eq!(reader.left_out().collect::<Vec<_>>(), ["source"]);
    let [_, Row::Sft(second), Row::Sft(third)] = rows.as_slice() else { panic!("three conversations: {rows:?}") };
    assert_eq!(second.messages[1].words(), "Où est-ce ? 在哪里？");
    assert_eq!(third.messages[2].words(), "<think>I count three.</think>\n<answer>3</answer>");
    let plain = read_rl(&fixture("rl.parquet")).expect("reads");
    assert_eq!(plain[1].prompt[0].content, "<video><video>What differs?");
    assert_eq!(plain[1].videos[1].video, "museg/b.mp4");
    assert_eq!((plain[0].answer.as_str(), plain[0].question_type.as_str()), ("B", "mcq"));
    assert_eq!(plain[0].extra, Map::from_iter([("id".to_owned(), json!("q-1"))]));
    let mut structs = Reader::open(&fixture("rl_struct.parquet")).expect("opens");
    let rows: Vec<Row> = (&mut structs).collect::<Result<_, _>>().expect("reads");
    assert_eq!(rows, plain.into_iter().map(Row::Rl).collect::<Vec<_>>());
    assert_eq!(structs.left_out().collect::<Vec<_>>(), ["data_source", "videos.fps"]);
    assert!(read_sft(&fixture("rl.parquet")).is_err() && read_rl(&fixture("sft.parquet")).is_err());
}

#[test]
fn many_rows_are_written_in_groups_and_read_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("many.parquet");
    let row = |number: usize| Row::Sft(SftRow { messages: vec![Message::text("user", number.to_string())] });
    let rows: Vec<Row> = (0..2500).map(row).collect();
    write(&path, Layout::Sft, &rows).expect("written");
    assert_eq!(read(&path).expect("reads"), rows);
}

#[test]
fn a_row_that_is_none_is_told_with_its_column_and_the_rest_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.jsonl");
    let good = json!({"messages": []}).to_string();
    std::fs::write(&path, format!("\n{good}\n{{\"messages\": \"[\"}}\nnonsense\n{good}")).expect("written");
    let mut reader = Reader::open(&path).expect("opens");
    assert!(reader.next().is_some_and(|row| row.is_ok()) && reader.row() == 2);
    for wanted in ["row 3, messages: is no JSON: EOF", "row 4, line: expected"] {
        let error = reader.next().expect("a row").expect_err("broken").to_string();
        assert!(error.starts_with(path.to_str().expect("UTF-8")) && error.contains(wanted), "{error}");
    }
    assert!(reader.next().is_some_and(|row| row.is_ok()) && reader.next().is_none() && reader.next().is_none());
}

#[test]
fn files_that_can_not_be_read_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = std::fs::read(fixture("sft.parquet")).expect("reads");
    for (name, bytes, wanted) in [
        ("a.csv", &b"a"[..], "neither .parquet nor .jsonl"),
        ("empty.jsonl", b"\n\n", "holds no rows"),
        ("other.jsonl", b"{\"text\": 1}", "row 1 has neither messages nor all of prompt, videos and extra_info"),
        ("nonsense.jsonl", b"\nhello", "row 2: expected value"),
        ("nonsense.parquet", b"hello", "Parquet"),
        ("cut.parquet", &broken[..broken.len() / 2], "Parquet"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        let error = Reader::open(&path).map(|_| ()).expect_err(name).to_string();
        assert!(error.contains(wanted), "{error}");
    }
    assert!(Reader::open(&folder.path().join("missing.parquet")).is_err());
    // A page in the middle.
    let path = folder.path().join("broken.parquet");
    let mut bytes = broken;
    bytes[40..200].fill(0x55);
    std::fs::write(&path, bytes).expect("written");
    assert!(read(&path).is_err());
}

#[test]
fn what_is_too_large_is_neither_written_nor_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let large = Row::Sft(SftRow { messages: vec![Message::text("user", "a".repeat(MOST_BYTES))] });
    for name in ["a.parquet", "a.jsonl"] {
        let error = write(&folder.path().join(name), Layout::Sft, std::slice::from_ref(&large)).expect_err(name);
        assert!(error.to_string().contains("row 1, ") && error.to_string().contains("bytes"), "{error}");
    }
    let path = folder.path().join("b.jsonl");
    std::fs::write(&path, format!("{{\"messages\": \"{}\"}}", "a".repeat(MOST_BYTES))).expect("written");
    assert!(Reader::open(&path).is_err());
}

#[test]
fn until_it_is_finished_the_old_file_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.jsonl");
    let row = Row::Sft(SftRow { messages: vec![Message::text("user", "new")] });
    std::fs::write(&path, "old").expect("written");
    let mut writer = Writer::create(&path, Layout::Sft).expect("begins");
    writer.add(&row).expect("added");
    let other = RlRow {
        prompt: Vec::new(),
        videos: Vec::new(),
        answer: String::new(),
        question_type: String::new(),
        extra: Map::new(),
    };
    assert!(writer.add(&Row::Rl(other)).is_err(), "the other layout");
    drop(writer);
    assert_eq!(std::fs::read_to_string(&path).expect("reads"), "old");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    write(&path, Layout::Sft, std::slice::from_ref(&row)).expect("written");
    assert_eq!(read(&path).expect("reads"), [row]);
    let mode = std::fs::metadata(&path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode & 0o600, 0o600);
}
