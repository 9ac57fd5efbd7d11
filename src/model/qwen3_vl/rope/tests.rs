//! Positions by table and by property; angles against the formula written out.

use proptest::prelude::*;

use super::*;

const fn grid(t: usize, h: usize, w: usize) -> Grid {
    Grid { t, h, w }
}

#[test]
fn a_picture_counts_from_where_it_begins_and_takes_its_longer_side() {
    let spans = [Span::Text(2), Span::Vision(grid(1, 4, 6)), Span::Text(1)];
    let got = positions(&spans, 2, 10).expect("fits");
    let picture = [[12, 12, 12], [12, 12, 13], [12, 12, 14], [12, 13, 12], [12, 13, 13], [12, 13, 14]];
    let expected = [&[[10; 3], [11; 3]][..], &picture, &[[15; 3]]].concat();
    assert_eq!(got, Positions { tokens: expected, next: 16 });
}

#[test]
fn layers_of_one_span_differ_in_time_alone() {
    let got = positions(&[Span::Vision(grid(2, 2, 4))], 2, 0).expect("fits");
    assert_eq!(got.tokens, [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]);
    assert_eq!(got.next, 2);
}

#[test]
fn what_is_not_made_of_tokens_is_refused() {
    for wrong in [grid(1, 3, 2), grid(1, 2, 5), grid(0, 2, 2), grid(1, 0, 2)] {
        assert!(positions(&[Span::Vision(wrong)], 2, 0).is_err());
    }
    assert!(positions(&[Span::Text(1)], 2, u32::MAX).is_err());
    assert!(positions(&[Span::Vision(grid(1, 2, 2))], 2, u32::MAX).is_err());
}

fn span() -> impl Strategy<Value = Span> {
    let picture = (1_usize..3, 1_usize..5, 1_usize..5);
    prop_oneof![(0_usize..9).prop_map(Span::Text), picture.prop_map(|(t, h, w)| Span::Vision(grid(t, 2 * h, 2 * w)))]
}

proptest! {
    /// A continued prompt stands where it would have stood in one piece, and every token has a place.
    #[test]
    fn a_prompt_may_be_placed_in_pieces(spans in prop::collection::vec(span(), 0..8), cut in 0_usize..8) {
        let whole = positions(&spans, 2, 3).expect("fits");
        let (head, tail) = spans.split_at(cut.min(spans.len()));
        let head = positions(head, 2, 3).expect("fits");
        let tail = positions(tail, 2, head.next).expect("fits");
        prop_assert_eq!(&[head.tokens, tail.tokens].concat(), &whole.tokens);
        prop_assert_eq!(tail.next, whole.next);
        let tokens: usize = spans.iter().map(|span| match span {
            Span::Text(length) => *length,
            Span::Vision(grid) => grid.tokens(2),
        }).sum();
        prop_assert_eq!(whole.tokens.len(), tokens);
    }
}

#[test]
fn axes_take_turns_until_their_share_is_used_up() {
    let root: serde_json::Value = serde_json::from_slice(
        &std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("model_cards/paravt-tiny/config.json"))
            .expect("the bundled configuration"),
    )
    .expect("json");
    let config = crate::model::ModelConfig::parse(&root).expect("parses").text;
    let axes = |section: [usize; 3], head_dim: usize| -> Vec<usize> {
        let config = TextConfig { mrope_section: section, head_dim, ..config.clone() };
        TextRotary::new(&config).frequencies.iter().map(|(_, axis)| *axis).collect()
    };
    assert_eq!(axes([6, 5, 5], 32), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
    assert_eq!(axes([4, 2, 2], 16), [0, 1, 2, 0, 1, 2, 0, 0]);
    assert_eq!(axes([24, 20, 20], 128).iter().filter(|axis| **axis == 0).count(), 24);

    let rotary = TextRotary::new(&config);
    let angles = rotary.angles(&[[7, 5, 3]]);
    for (index, place) in [(0, 7.0), (1, 5.0), (2, 3.0), (15, 7.0)] {
        let angle = place * 10000_f64.powf(-2.0 * f64::from(index) / 32.0);
        assert!((f64::from(angles.cos[index as usize]) - angle.cos()).abs() < 1e-6);
        assert!((f64::from(angles.sin[index as usize]) - angle.sin()).abs() < 1e-6);
    }
}
