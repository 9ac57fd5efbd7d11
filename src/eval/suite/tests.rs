//! Each benchmark in the layout its authors publish, in small.

use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};

use super::*;
use crate::eval::item::Gold;

/// A column of a table: its name and its rows.
enum Column<'a> {
    Texts(&'a str, Vec<&'a str>),
    Lists(&'a str, Vec<Vec<&'a str>>),
    Numbers(&'a str, Vec<i64>),
    /// Half precision, by its bits.
    Halves(&'a str, Vec<Vec<u16>>),
}

fn parquet(path: &Path, columns: &[Column<'_>]) {
    let fields: String = columns
        .iter()
        .map(|column| match column {
            Column::Texts(name, _) => format!("required binary {name} (UTF8);"),
            Column::Numbers(name, _) => format!("required int64 {name};"),
            Column::Lists(name, _) => {
                format!("required group {name} (LIST) {{ repeated group list {{ required binary element (UTF8); }} }}")
            }
            Column::Halves(name, _) => {
                let element = "required fixed_len_byte_array(2) element (FLOAT16);";
                format!("required group {name} (LIST) {{ repeated group list {{ {element} }} }}")
            }
        })
        .collect();
    let schema = Arc::new(parse_message_type(&format!("message row {{ {fields} }}")).expect("a schema"));
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    let file = std::fs::File::create(path).expect("made");
    let properties = WriterProperties::builder().set_compression(parquet::basic::Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).expect("a writer");
    let mut rows = writer.next_row_group().expect("rows");
    for column in columns {
        let mut next = rows.next_column().expect("a column").expect("as many as there are");
        // A list's first element begins a row, the others go on with it.
        let levels = |lengths: Vec<usize>| -> Vec<i16> {
            lengths.into_iter().flat_map(|length| (0..length).map(|place| i16::from(place > 0))).collect()
        };
        match column {
            Column::Texts(_, values) => {
                let values: Vec<ByteArray> = values.iter().map(|text| ByteArray::from(*text)).collect();
                next.typed::<ByteArrayType>().write_batch(&values, None, None).expect("written");
            }
            Column::Numbers(_, values) => {
                next.typed::<Int64Type>().write_batch(values, None, None).expect("written");
            }
            Column::Lists(_, lists) => {
                let values: Vec<ByteArray> = lists.iter().flatten().map(|text| ByteArray::from(*text)).collect();
                let starts = levels(lists.iter().map(Vec::len).collect());
                next.typed::<ByteArrayType>()
                    .write_batch(&values, Some(&vec![1; values.len()]), Some(&starts))
                    .expect("written");
            }
            Column::Halves(_, lists) => {
                let bytes = lists.iter().flatten().map(|bits| ByteArray::from(bits.to_le_bytes().to_vec()));
                let values: Vec<FixedLenByteArray> = bytes.map(FixedLenByteArray::from).collect();
                let starts = levels(lists.iter().map(Vec::len).collect());
                next.typed::<FixedLenByteArrayType>()
                    .write_batch(&values, Some(&vec![1; values.len()]), Some(&starts))
                    .expect("written");
            }
        }
        next.close().expect("written");
    }
    rows.close().expect("written");
    writer.close().expect("written");
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::fs::write(path, text).expect("written");
}

fn letter(letter: char) -> Gold {
    Gold::Letter { letter: Some(letter) }
}

#[test]
fn video_mme_with_and_without_subtitles() {
    let root = tempfile::tempdir().expect("a folder");
    parquet(
        &root.path().join("videomme/test-00000-of-00001.parquet"),
        &[
            Column::Texts("video_id", vec!["001", "001"]),
            Column::Texts("duration", vec!["short", "long"]),
            Column::Texts("domain", vec!["Knowledge", "Knowledge"]),
            Column::Texts("sub_category", vec!["History", "History"]),
            Column::Texts("url", vec!["https://example.org/1", "https://example.org/2"]),
            Column::Texts("videoID", vec!["fFjv93ACGo8", "none"]),
            Column::Texts("question_id", vec!["001-1", "001-2"]),
            Column::Texts("task_type", vec!["Counting Problem", "OCR"]),
            Column::Texts("question", vec!["Which is the largest?", "What is written?"]),
            Column::Lists("options", vec![vec!["A. Apples.", "B. Candles."], vec!["A. This.", "B. That."]]),
            Column::Texts("answer", vec!["B", "A"]),
        ],
    );
    write(&root.path().join("data/fFjv93ACGo8.mkv"), "a video");
    write(&root.path().join("subtitle/fFjv93ACGo8.srt"), "1\n00:00:01,240 --> 00:00:06,879\n<i>Good evening.</i>\n");
    let items = Suite::VideoMme.load(root.path()).expect("loads");
    assert_eq!(items.iter().map(|item| item.id.as_str()).collect::<Vec<_>>(), ["001-1", "001-2"]);
    let prompt =
        "Question: Which is the largest?\nOptions:\nA. A. Apples.\nB. B. Candles.\nAnswer with the option letter only.";
    assert_eq!((items[0].prompt.as_str(), &items[0].gold), (prompt, &letter('B')));
    assert_eq!(items[0].video, root.path().join("data/fFjv93ACGo8.mkv"));
    assert!(items[0].groups.contains(&("duration", "short".to_owned())));
    let items = Suite::VideoMmeSubtitles.load(root.path()).expect("loads");
    assert_eq!(items[0].prompt, format!("This video's subtitles are listed below:\nGood evening.\n\n{prompt}"));
    assert!(items[1].prompt.starts_with("Question: What is written?"), "a video without any");
}

#[test]
fn long_video_bench_in_both_its_shapes() {
    let row = json!({"video_id": "86C", "question": "Which?", "question_wo_referring_query": "Which?",
        "candidates": ["one", "two", "three"], "correct_choice": 1, "position": [854], "topic_category": "News",
        "question_category": "TOS", "level": "L2", "id": "86C_0", "video_path": "86C.mp4", "duration_group": 600});
    let root = tempfile::tempdir().expect("a folder");
    write(&root.path().join("lvb_val.json"), &json!([row]).to_string());
    let items = Suite::LongVideoBench.load(root.path()).expect("loads");
    let prompt = "Question: Which?\nOptions:\nA. one\nB. two\nC. three\nAnswer with the option letter only.";
    assert_eq!((items[0].prompt.as_str(), &items[0].gold), (prompt, &letter('B')));
    assert_eq!(items[0].video, root.path().join("videos/86C.mp4"));
    assert_eq!(items[0].groups[0], ("duration", "600".to_owned()));

    let table = tempfile::tempdir().expect("a folder");
    let text = |name, value| Column::Texts(name, vec![value]);
    parquet(
        &table.path().join("validation-00000-of-00001.parquet"),
        &[
            text("id", "86C_0"),
            text("video_path", "86C.mp4"),
            text("question", "Which?"),
            text("option0", "one"),
            text("option1", "two"),
            text("option2", "three"),
            text("option3", "N/A"),
            text("option4", "N/A"),
            Column::Numbers("correct_choice", vec![1]),
            Column::Numbers("duration_group", vec![600]),
            text("question_category", "TOS"),
            text("topic_category", "News"),
        ],
    );
    let same = Suite::LongVideoBench.load(table.path()).expect("loads");
    assert_eq!((&same[0].prompt, &same[0].gold, &same[0].groups), (&items[0].prompt, &items[0].gold, &items[0].groups));
}

#[test]
fn lv_bench_has_a_line_a_video_or_a_row_a_question() {
    let question = "What year appears?\n(A) 1636\n(B) 1366";
    let line = json!({"key": "Cm7", "type": "cartoon", "video_info": {"duration_minutes": 61},
        "qa": [{"uid": "55", "question": question, "answer": "A", "question_type": ["reasoning", "summarization"],
            "time_reference": "00:15-00:19"}]});
    let root = tempfile::tempdir().expect("a folder");
    write(&root.path().join("video_info.meta.jsonl"), &format!("{line}\n"));
    let items = Suite::LvBench.load(root.path()).expect("loads");
    assert_eq!(items[0].prompt, format!("{question}\nAnswer with the option letter only."));
    assert_eq!((&items[0].gold, items[0].video.clone()), (&letter('A'), root.path().join("videos/Cm7.mp4")));
    let groups = [("genre", "cartoon"), ("question", "reasoning"), ("question", "summarization")];
    assert_eq!(items[0].groups, groups.map(|(name, value)| (name, value.to_owned())));

    let table = tempfile::tempdir().expect("a folder");
    parquet(
        &table.path().join("data/train-00000-of-00001.parquet"),
        &[
            Column::Texts("uid", vec!["55"]),
            Column::Texts("video_path", vec!["Cm7.mp4"]),
            Column::Texts("question", vec![question]),
            Column::Texts("answer", vec!["A"]),
            Column::Lists("question_type", vec![vec!["reasoning", "summarization"]]),
        ],
    );
    let same = Suite::LvBench.load(table.path()).expect("loads");
    assert_eq!((&same[0].prompt, &same[0].gold, same[0].groups.len()), (&items[0].prompt, &items[0].gold, 2));
}

#[test]
fn mlvu_has_a_file_a_task() {
    let root = tempfile::tempdir().expect("a folder");
    let row = json!([{"video": "movie101_66.mp4", "duration": 246, "question": "What color?",
        "candidates": ["Yellow", "Red"], "answer": "Red", "question_type": "plotQA"}]);
    write(&root.path().join("json/1_plotQA.json"), &row.to_string());
    write(&root.path().join("video/1_plotQA/movie101_66.mp4"), "a video");
    let items = Suite::Mlvu.load(root.path()).expect("loads");
    assert_eq!((items[0].id.as_str(), &items[0].gold), ("1_plotQA-1", &letter('B')));
    assert_eq!(items[0].video, root.path().join("video/1_plotQA/movie101_66.mp4"));
    assert!(items[0].prompt.starts_with("Question: What color?\nOptions:\nA. Yellow\nB. Red\n"));
}

#[test]
fn mmvu_keeps_its_open_questions_apart() {
    let row = |id: &str, kind: &str, choices: Value, answer: &str| {
        json!({"id": id, "video": "https://huggingface.co/datasets/yale-nlp/MMVU/resolve/main/videos/Art_History/0.mp4",
            "youtube_url": "x", "question_type": kind, "metadata": {"subject": "Art History", "knowledge": []},
            "question": "What?", "choices": choices, "answer": answer})
    };
    let open = json!({"A": "", "B": "", "C": "", "D": "", "E": ""});
    let rows = json!([
        row("validation_1", "multiple-choice", json!({"A": "10.0", "B": "5.0", "C": ""}), "B"),
        row("validation_2", "open-ended", open, "Dolly Zoom"),
    ]);
    let root = tempfile::tempdir().expect("a folder");
    write(&root.path().join("validation.json"), &rows.to_string());
    let items = Suite::Mmvu.load(root.path()).expect("loads");
    assert_eq!((items.len(), &items[0].gold), (1, &letter('B')));
    assert_eq!(items[0].prompt, "Question: What?\nOptions:\nA. 10.0\nB. 5.0\nAnswer with the option letter only.");
    assert_eq!(items[0].video, root.path().join("videos/Art_History/0.mp4"));
    let all = Suite::MmvuAll.load(root.path()).expect("loads");
    assert_eq!(all[1].gold, Gold::Words { text: "Dolly Zoom".to_owned() });
}

#[test]
fn charades_as_text_or_table() {
    let root = tempfile::tempdir().expect("a folder");
    write(
        &root.path().join("charades_sta_test.txt"),
        "3MSZA 24.3 30.4##person turn a light on.\n\nAO8RW 0.0 6.9##a person sits.\n",
    );
    let items = Suite::CharadesSta.load(root.path()).expect("loads");
    let span = |item: &Item| match item.gold {
        Gold::Span { start, end } => (start.seconds(), end.seconds()),
        _ => (0.0, 0.0),
    };
    assert_eq!((items.len(), span(&items[0]), span(&items[1])), (2, (24.3, 30.4), (0.0, 6.9)));
    assert!(
        items[0].prompt.contains("the textual sentence: \"person turn a light on.\". Please"),
        "{}",
        items[0].prompt
    );
    assert_eq!(items[0].video, root.path().join("Charades_v1_480/3MSZA.mp4"));

    let table = tempfile::tempdir().expect("a folder");
    parquet(
        &table.path().join("data/test-00000-of-00001.parquet"),
        &[
            Column::Texts("video", vec!["3MSZA.mp4"]),
            Column::Texts("caption", vec!["person turn a light on."]),
            // 24.3 and 30.4, as near as half precision has them.
            Column::Halves("timestamp", vec![vec![0x4e13, 0x4f9a]]),
        ],
    );
    let same = Suite::CharadesSta.load(table.path()).expect("loads");
    assert_eq!((&same[0].prompt, span(&same[0])), (&items[0].prompt, (24.296875, 30.40625)));
}

#[test]
fn anybodys_questions() {
    let root = tempfile::tempdir().expect("a folder");
    let rows = [
        json!({"video": "a.mp4", "question": "Who?", "options": ["Ann", "Bob"], "answer": "Bob", "type": "people", "id": 7}),
        json!({"video": "a.mp4", "question": "Who?", "options": ["Ann", "Bob"], "answer": "A"}),
        json!({"video": "b.mp4", "question": "When?", "answer": [1.5, 3]}),
        json!({"video": "b.mp4", "question": "How many?", "answer": 3}),
    ];
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    write(&root.path().join("questions.jsonl"), &text);
    let items = Suite::Jsonl.load(&root.path().join("questions.jsonl")).expect("loads");
    assert_eq!(items.iter().map(|item| item.id.as_str()).collect::<Vec<_>>(), ["7", "2", "3", "4"]);
    assert_eq!((&items[0].gold, &items[1].gold), (&letter('B'), &letter('A')));
    assert_eq!(items[3].gold, Gold::Words { text: "3".to_owned() });
    assert_eq!((items[0].video.clone(), items[0].groups.len()), (root.path().join("a.mp4"), 1));
    for (row, problem) in [
        (json!({"video": "a.mp4", "question": "Who?", "options": ["Ann"], "answer": "Carl"}), "none of the options"),
        (json!({"video": "a.mp4", "question": "When?", "answer": [3, 1.5]}), "ends before"),
        (json!({"video": "a.mp4", "question": "Who?", "answer": ""}), "empty"),
        (json!({"video": "a.mp4", "question": "Who?"}), "answer"),
    ] {
        write(&root.path().join("questions.jsonl"), &format!("{row}\n"));
        let error = Suite::Jsonl.load(root.path()).expect_err("refused").to_string();
        assert!(error.contains(problem) && error.contains("question 1"), "{error}");
    }
}

#[test]
fn what_is_missing_or_there_twice_is_told() {
    let root = tempfile::tempdir().expect("a folder");
    for (name, suite) in Suite::ALL {
        assert!(matches!(suite.load(root.path()), Err(SuiteError::File { .. })), "{name}");
        assert_eq!(suite.name(), name);
    }
    let row = json!({"video": "a.mp4", "question": "Who?", "answer": "Ann", "id": "1"});
    write(&root.path().join("questions.jsonl"), &format!("{row}\n{row}\n"));
    let error = Suite::Jsonl.load(root.path()).expect_err("refused").to_string();
    assert!(error.contains("two questions are called 1"), "{error}");
}
