//! The executor on the bundled checkpoint, under a scheduler.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::engine::native::scheduler::{PictureSpan, Scheduler, SchedulerConfig, SequenceRequest};
use crate::engine::{SessionKey, Speaker};
use crate::model::{LoadOptions, Mode};
use crate::types::{Frame, FrameSize};

impl Reading {
    /// Of a prompt without pictures.
    pub(in crate::engine::native) fn of_text(tokens: usize) -> Self {
        let positions = positions(&[Span::Text(tokens)], 2, 0).expect("only text");
        Self { positions, pictures: Vec::new() }
    }
}

fn tiny() -> Qwen3Vl {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("model_cards/paravt-tiny");
    Qwen3Vl::load(&folder, &LoadOptions::cpu(Mode::Inference)).expect("the bundled checkpoint")
}

/// A picture of 64 tokens from the fourth token on, and its hash.
fn picture(shade: u8) -> (Picture, PictureSpan) {
    let size = FrameSize { width: 256, height: 256 };
    let frame = Frame { time: None, size, rgb: vec![shade; 3 * 256 * 256].into() };
    let picture = Picture { start: 4, rows: 8, columns: 8, hash: [shade; 32], frames: vec![frame] };
    let span = PictureSpan { first: picture.start, tokens: picture.tokens(), hash: picture.hash };
    (picture, span)
}

#[test]
fn a_picture_that_is_read_in_pieces_is_encoded_once_though_nothing_is_kept() {
    let model = tiny();
    let facts = Facts::of(&model);
    let mut executor = Executor::new(model, 64, 0).expect("there is memory");
    let mut scheduler =
        Scheduler::new(SchedulerConfig { block_tokens: BLOCK, blocks: 64, chunk_tokens: 40, ..Default::default() });
    let (mut readings, tokens) = (HashMap::new(), 80);
    for shade in [1, 2] {
        let (picture, span) = picture(shade);
        let request = SequenceRequest {
            prompt: vec![5; tokens],
            pictures: Arc::new([span]),
            max_new_tokens: 1,
            session: SessionKey("test".into()),
            speaker: Speaker::Sub,
            gang: None,
        };
        let id = scheduler.submit(request, std::time::Duration::ZERO).expect("there is room");
        readings.insert(id, Reading::new(&facts, tokens, vec![picture]).expect("fits"));
    }
    let (mut pieces, mut outputs) = (0, 0);
    while outputs < 2 {
        let batch = scheduler.step(|_, _, _| Vec::new()).expect("there is work");
        let known: Vec<_> = batch.rows.iter().map(|row| &readings[&row.id]).collect();
        executor.run(&batch, &known).expect("computes");
        scheduler.commit(&batch);
        pieces += batch.pictures.len();
        for row in batch.rows.iter().filter(|row| row.outputs > 0) {
            outputs += 1;
            scheduler.end(row.id);
            executor.forget(row.id);
        }
    }
    assert!(pieces > 3, "they were read in pieces: {pieces}");
    assert_eq!(executor.encoded, 2);
}
