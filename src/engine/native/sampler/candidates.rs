//! Which tokens may be drawn, and the draw. Vocabularies are long, so nothing here sorts a whole one.

/// Weights below this share of the largest, as a logarithm, count as nothing: a thousandth of what one draw can tell apart.
const NEGLIGIBLE: f64 = -44.0;

/// How many of the best are looked at first for a nucleus.
const FIRST_LOOK: usize = 64;

/// What is cut off a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Truncation {
    /// So many of the best stay, and those equal to the last of them.
    pub(super) top_k: Option<usize>,
    /// The best stay until they have this share; the one that reaches it is the last.
    pub(super) top_p: f64,
    /// Those with at least this share of the best one's probability stay.
    pub(super) min_p: f64,
}

/// Buffers that are used for every token.
#[derive(Debug, Default)]
pub(in crate::engine::native) struct Scratch {
    logits: Vec<f32>,
    values: Vec<f32>,
    kept: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    id: u32,
    /// Probability in units of the best token's.
    weight: f64,
}

impl Scratch {
    /// A copy of the row with changes.
    pub(super) fn adjust(&mut self, row: &[f32], change: impl FnOnce(&mut [f32])) -> &[f32] {
        self.logits.clear();
        self.logits.extend_from_slice(row);
        change(&mut self.logits);
        &self.logits
    }

    /// Draws a token. `draw` is at least 0 and below 1.
    pub(super) fn draw(&mut self, row: Option<&[f32]>, shape: Shape, truncation: Truncation, draw: f64) -> u32 {
        let Self { logits, values, kept } = self;
        let logits = row.unwrap_or(logits);
        keep(logits, shape, truncation, values, kept);
        pick(kept, draw)
    }
}

/// How logits become weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) highest: f32,
    pub(super) temperature: f64,
}

impl Shape {
    fn weight(self, logit: f32) -> f64 {
        let exponent = (f64::from(logit) - f64::from(self.highest)) / self.temperature;
        if exponent < NEGLIGIBLE { 0.0 } else { exponent.exp() }
    }
}

/// Collects the tokens that may be drawn, lowest number first.
fn keep(logits: &[f32], shape: Shape, truncation: Truncation, values: &mut Vec<f32>, kept: &mut Vec<Candidate>) {
    let Truncation { top_k, top_p, min_p } = truncation;
    let top_k = top_k.filter(|count| *count < logits.len());
    if let Some(count) = top_k {
        gather(logits, shape, kth_highest(logits, count, values), kept);
        if top_p < 1.0 {
            let total = kept.iter().map(|candidate| candidate.weight).sum::<f64>();
            cut(kept, top_p * total);
        }
    } else if top_p < 1.0 {
        let share = top_p * logits.iter().map(|logit| shape.weight(*logit)).sum::<f64>();
        let mut look = FIRST_LOOK;
        loop {
            let least = if look < logits.len() { kth_highest(logits, look, values) } else { f32::NEG_INFINITY };
            gather(logits, shape, least, kept);
            let seen = kept.iter().map(|candidate| candidate.weight).sum::<f64>();
            if seen >= share || least == f32::NEG_INFINITY {
                break;
            }
            look *= 8;
        }
        cut(kept, share);
    } else {
        gather(logits, shape, f32::NEG_INFINITY, kept);
    }
    if min_p > 0.0 {
        kept.retain(|candidate| candidate.weight >= min_p);
    }
    // A logit that is a little off moves a border a little, and never swaps two tokens.
    if top_p < 1.0 {
        kept.sort_unstable_by_key(|candidate| candidate.id);
    }
}

/// Tokens with at least this logit and a weight that counts, lowest number first.
fn gather(logits: &[f32], shape: Shape, least: f32, kept: &mut Vec<Candidate>) {
    kept.clear();
    for (id, logit) in (0..).zip(logits.iter().copied()) {
        if logit >= least {
            let weight = shape.weight(logit);
            if weight > 0.0 {
                kept.push(Candidate { id, weight });
            }
        }
    }
}

/// Keeps the best until they weigh `share`. Leaves them in that order.
fn cut(kept: &mut Vec<Candidate>, share: f64) {
    kept.sort_unstable_by(|one, other| other.weight.total_cmp(&one.weight).then(one.id.cmp(&other.id)));
    let mut above = 0.0;
    let mut count = 0;
    for candidate in kept.iter() {
        if count > 0 && above >= share {
            break;
        }
        above += candidate.weight;
        count += 1;
    }
    kept.truncate(count);
}

/// The `count`th highest value, or negative infinity when fewer are above that. `count` is at least 1.
fn kth_highest(values: &[f32], count: usize, best: &mut Vec<f32>) -> f32 {
    let room = (2 * count).max(1024);
    let shrink = |best: &mut Vec<f32>| {
        let (_, least, _) = best.select_nth_unstable_by(count - 1, |one, other| other.total_cmp(one));
        let least = *least;
        best.truncate(count);
        least
    };
    best.clear();
    let mut least = f32::NEG_INFINITY;
    for value in values.iter().copied() {
        if value > least {
            best.push(value);
            if best.len() == room {
                least = shrink(best);
            }
        }
    }
    if best.len() < count { f32::NEG_INFINITY } else { shrink(best) }
}

/// The token that covers this point of the whole weight.
fn pick(kept: &[Candidate], draw: f64) -> u32 {
    let point = draw * kept.iter().map(|candidate| candidate.weight).sum::<f64>();
    let mut covered = 0.0;
    for candidate in kept {
        covered += candidate.weight;
        if point < covered {
            return candidate.id;
        }
    }
    // Only rounding leads here. The best token is always kept.
    kept.last().map_or(0, |candidate| candidate.id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same rules over a sorted vocabulary, token by token.
    fn plainly(logits: &[f32], temperature: f64, truncation: Truncation) -> Vec<(u32, f64)> {
        let mut sorted: Vec<(u32, f64)> =
            (0..).zip(logits.iter().map(|logit| f64::from(*logit) / temperature)).collect();
        sorted.retain(|(_, logit)| logit.is_finite());
        sorted.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        if let Some(worst) = truncation.top_k.and_then(|count| sorted.get(count - 1)).map(|(_, logit)| *logit) {
            sorted.retain(|(_, logit)| *logit >= worst);
        }
        let normalised = |sorted: &[(u32, f64)]| {
            let total: f64 = sorted.iter().map(|(_, logit)| logit.exp()).sum();
            sorted.iter().map(|(id, logit)| (*id, logit.exp() / total)).collect::<Vec<_>>()
        };
        let mut kept = normalised(&sorted);
        let mut above = 0.0;
        kept.retain(|(_, probability)| {
            let stays = above < truncation.top_p || truncation.top_p >= 1.0;
            above += probability;
            stays
        });
        let best = kept[0].1;
        kept.retain(|(_, probability)| *probability >= truncation.min_p * best);
        let total: f64 = kept.iter().map(|(_, probability)| probability).sum();
        let mut kept: Vec<(u32, f64)> = kept.into_iter().map(|(id, probability)| (id, probability / total)).collect();
        kept.sort_by_key(|(id, _)| *id);
        kept
    }

    fn kept(logits: &[f32], temperature: f64, truncation: Truncation) -> Vec<(u32, f64)> {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut kept = Vec::new();
        keep(logits, Shape { highest, temperature }, truncation, &mut Vec::new(), &mut kept);
        let total: f64 = kept.iter().map(|candidate| candidate.weight).sum();
        kept.into_iter().map(|candidate| (candidate.id, candidate.weight / total)).collect()
    }

    fn truncation(top_k: Option<usize>, top_p: f64, min_p: f64) -> Truncation {
        Truncation { top_k, top_p, min_p }
    }

    #[test]
    fn each_rule_keeps_what_it_says() {
        // Probabilities 0.5, 0.25, 0.125, 0.125.
        let logits = [0.125f32.ln(), 0.5f32.ln(), 0.25f32.ln(), 0.125f32.ln()];
        for (rules, expected) in [
            (truncation(None, 1.0, 0.0), vec![0, 1, 2, 3]),
            (truncation(Some(1), 1.0, 0.0), vec![1]),
            (truncation(Some(2), 1.0, 0.0), vec![1, 2]),
            (truncation(Some(3), 1.0, 0.0), vec![0, 1, 2, 3]),
            (truncation(Some(9), 1.0, 0.0), vec![0, 1, 2, 3]),
            (truncation(None, 0.4, 0.0), vec![1]),
            (truncation(None, 0.6, 0.0), vec![1, 2]),
            (truncation(None, 0.8, 0.0), vec![0, 1, 2]),
            (truncation(None, 1.0, 0.3), vec![1, 2]),
            (truncation(None, 1.0, 1.0), vec![1]),
            // Of the best two, two thirds are the first's.
            (truncation(Some(2), 0.6, 0.0), vec![1]),
            (truncation(Some(2), 0.7, 0.0), vec![1, 2]),
            (truncation(None, 0.8, 0.4), vec![1, 2]),
        ] {
            let ids: Vec<u32> = kept(&logits, 1.0, rules).into_iter().map(|(id, _)| id).collect();
            assert_eq!(ids, expected, "{rules:?}");
        }
    }

    #[test]
    fn the_kth_highest_is_found_in_long_lists() {
        let values: Vec<f32> = (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
        let mut sorted = values.clone();
        sorted.sort_by(|one, other| other.total_cmp(one));
        for count in [1, 2, 50, 3000, 100_000] {
            assert_eq!(kth_highest(&values, count, &mut Vec::new()), sorted[count - 1]);
        }
        assert_eq!(kth_highest(&[1.0, f32::NEG_INFINITY], 2, &mut Vec::new()), f32::NEG_INFINITY);
    }

    #[test]
    fn a_draw_picks_the_token_that_covers_it() {
        let kept = [(3, 1.0), (5, 2.0), (8, 1.0)].map(|(id, weight)| Candidate { id, weight });
        for (draw, id) in [(0.0, 3), (0.24, 3), (0.25, 5), (0.74, 5), (0.75, 8), (0.999_999, 8), (1.0, 8)] {
            assert_eq!(pick(&kept, draw), id, "{draw}");
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_a_sorted_vocabulary_gives(
            logits in prop::collection::vec(prop_oneof![9 => -8.0f32..8.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(1.5)], 1..400),
            temperature in 0.1f64..3.0,
            top_k in prop::option::of(1..200usize), top_p in prop_oneof![Just(1.0), 0.01f64..1.0],
            min_p in prop_oneof![Just(0.0), 0.0f64..1.0],
        ) {
            prop_assume!(logits.iter().any(|logit| logit.is_finite()));
            let rules = truncation(top_k, top_p, min_p);
            let (ours, expected) = (kept(&logits, temperature, rules), plainly(&logits, temperature, rules));
            let weighs = |kept: &[(u32, f64)]| kept.iter().filter(|(_, p)| *p > 1e-12).map(|(id, _)| *id).collect::<Vec<_>>();
            prop_assert_eq!(weighs(&ours), weighs(&expected));
            for ((_, one), (_, other)) in ours.iter().filter(|(_, p)| *p > 1e-12).zip(expected.iter().filter(|(_, p)| *p > 1e-12)) {
                prop_assert!((one - other).abs() < 1e-9, "{one} {other}");
            }
        }
    }
}
