//! Coded pictures of one stream in decode order: where they are, when they are shown, which of them a cut takes. Pure.
//!
//! This file knows nothing of containers or codecs.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Cut, Group, Limits, Unindexed};

/// The largest coded picture that is taken. A picture of 8192 × 8192 without any loss is about that.
pub(super) const SAMPLE_BYTES: u32 = 64 << 20;

/// One coded picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    /// First byte.
    pub(super) at: u64,
    /// When it is decoded, in ticks of [`Clock`]. In Matroska, which has no such time, its cluster's time.
    pub(super) decode: i64,
    /// From then to when it is shown, in ticks.
    pub(super) offset: i32,
    /// Bytes.
    pub(super) size: u32,
    /// Whether decoding can begin with it.
    pub(super) key: bool,
    /// Whether a player shows it.
    pub(super) shown: bool,
}

impl Sample {
    /// When it is shown, in ticks.
    pub(super) const fn presentation(&self) -> i64 {
        self.decode.saturating_add(self.offset as i64)
    }

    /// Behind its last byte.
    pub(super) const fn end(&self) -> u64 {
        self.at.saturating_add(self.size as u64)
    }
}

/// How long a tick is: `num / den` microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clock {
    /// Numerator.
    pub(super) num: u64,
    /// Denominator, not zero.
    pub(super) den: u64,
}

impl Clock {
    /// Ticks as microseconds, half away from zero.
    pub(super) fn micros(self, ticks: i64) -> i64 {
        rescale(ticks, self.num, self.den)
    }
}

/// `value * num / den`, rounded half away from zero; the nearest there is where that overflows.
pub(super) fn rescale(value: i64, num: u64, den: u64) -> i64 {
    let (product, den) = (i128::from(value).saturating_mul(i128::from(num)), i128::from(den.max(1)));
    let half = if product < 0 { -(den / 2) } else { den / 2 };
    let rounded = product.saturating_add(half) / den;
    i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
}

/// All pictures of a stream.
#[derive(Debug)]
pub(super) struct Samples {
    /// In decode order.
    pub(super) all: Vec<Sample>,
    /// Places of the groups' key frames in [`Self::all`], ascending.
    pub(super) keys: Vec<u32>,
    /// Their clock.
    pub(super) clock: Clock,
}

/// What an index tells of [`Samples`].
pub(super) struct Told {
    /// As [`super::Index::groups`].
    pub(super) groups: Vec<Group>,
    /// As [`super::Index::times`].
    pub(super) times: Arc<[i64]>,
}

impl Samples {
    /// Sorts pictures into groups and says when they are shown.
    ///
    /// # Errors
    /// [`Unindexed`] when nothing is shown or decoding could not begin at the start.
    pub(super) fn new(mut all: Vec<Sample>, clock: Clock, limits: &Limits) -> Result<(Self, Told), Unindexed> {
        if all.len() > limits.frames.min(u32::MAX as usize) {
            return Err(Unindexed::TooManyFrames);
        }
        let Some(first) = all.first().copied().filter(|first| first.key) else {
            return Err(Unindexed::Because("it does not begin with a key frame".to_owned()));
        };
        if all.iter().any(|sample| sample.size > SAMPLE_BYTES) {
            return Err(Unindexed::Because("a frame of too many bytes".to_owned()));
        }
        // Pictures shown before the very first key frame are predicted from ones that are not there.
        for sample in all.iter_mut().skip(1).take_while(|sample| !sample.key) {
            sample.shown &= sample.presentation() >= first.presentation();
        }
        let mut times: Vec<i64> =
            all.iter().filter(|sample| sample.shown).map(|sample| clock.micros(sample.presentation())).collect();
        times.sort_unstable();
        times.dedup();
        if times.is_empty() {
            return Err(Unindexed::Because("no frame is shown".to_owned()));
        }
        let (keys, groups) = groups(&all, clock, &times);
        if groups.is_empty() {
            return Err(Unindexed::Because("no group of pictures is shown".to_owned()));
        }
        Ok((Self { all, keys, clock }, Told { groups, times: times.into() }))
    }

    /// Frames a second, by the step most frames make in decode order.
    pub(super) fn rate(&self) -> Option<f64> {
        let mut counts = HashMap::<i64, usize>::new();
        for pair in self.all.windows(2) {
            if let [one, next] = pair {
                *counts.entry(next.decode.saturating_sub(one.decode)).or_default() += 1;
            }
        }
        let step = counts.into_iter().filter(|(step, _)| *step > 0).max_by_key(|(step, count)| (*count, -step));
        step.map(|(step, _)| 1e6 * self.clock.den as f64 / (self.clock.num as f64 * step as f64))
    }

    /// Memory taken.
    pub(super) const fn bytes(&self) -> usize {
        size_of_val(self.all.as_slice()) + size_of_val(self.keys.as_slice())
    }

    /// The pictures to feed for the cuts, run by run: a run begins with a key frame and is decoded from a fresh start. Cuts
    /// that reach into each other make one run. What lies past `end`, where the file ends, is not fed, nor what comes after
    /// it in its run.
    pub(super) fn runs(&self, cuts: &[Cut], end: u64) -> Vec<Vec<Fed>> {
        let mut runs: Vec<Vec<Fed>> = Vec::new();
        for cut in cuts {
            let Some(start) = self.keys.get(cut.group).map(|key| *key as usize) else { continue };
            let run = run(self.all.get(start..).unwrap_or_default(), self.clock, &cut.frames);
            let mut run: Vec<Fed> = run.into_iter().map(|fed| Fed { place: fed.place + start, ..fed }).collect();
            let past = |fed: &Fed| self.all.get(fed.place).is_none_or(|sample| sample.end() > end);
            run.truncate(run.iter().position(past).unwrap_or(run.len()));
            match runs.last_mut() {
                Some(before) if before.last().is_some_and(|last| last.place >= start) => merge(before, run),
                _ if run.is_empty() => {}
                _ => runs.push(run),
            }
        }
        runs
    }
}

/// A picture that is fed to a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fed {
    /// Its place among the samples.
    pub(super) place: usize,
    /// Whether it is wanted, not only needed by others.
    pub(super) wanted: bool,
}

fn merge(before: &mut Vec<Fed>, run: Vec<Fed>) {
    before.extend(run);
    before.sort_unstable_by_key(|fed| (fed.place, !fed.wanted));
    before.dedup_by_key(|fed| fed.place);
}

/// Times that are wished for, and which have come: two pictures may be of the same.
pub(super) struct Wished<'a> {
    times: &'a [i64],
    come: Vec<bool>,
    count: usize,
}

impl<'a> Wished<'a> {
    /// None of these (ascending) has come yet.
    pub(super) fn new(times: &'a [i64]) -> Self {
        Self { times, come: vec![false; times.len()], count: 0 }
    }

    /// Whether a time is one of them. It has then come.
    pub(super) fn take(&mut self, time: i64) -> bool {
        let come = self.times.binary_search(&time).ok().and_then(|place| self.come.get_mut(place));
        if let Some(come) = come {
            self.count += usize::from(!std::mem::replace(come, true));
            return true;
        }
        false
    }

    /// Whether all have come.
    pub(super) const fn all(&self) -> bool {
        self.count == self.times.len()
    }
}

/// Of pictures from a key frame on, those that decoding the frames of these times (ascending) takes.
pub(super) fn run(samples: &[Sample], clock: Clock, frames: &[i64]) -> Vec<Fed> {
    let (Some(first), Some(last)) = (samples.first(), frames.last()) else { return Vec::new() };
    let start = first.presentation();
    if frames == [clock.micros(start)] {
        return vec![Fed { place: 0, wanted: true }];
    }
    let (mut fed, mut needed, mut found, mut behind, mut leading) = (Vec::new(), 0, Wished::new(frames), false, true);
    for (place, sample) in samples.iter().enumerate() {
        let time = clock.micros(sample.presentation());
        if sample.key && place > 0 {
            // Behind a key frame that is shown after all that is wanted come at most its leading pictures.
            if behind {
                break;
            }
            (behind, leading) = (time > *last, false);
        }
        if leading && place > 0 && sample.presentation() < start {
            continue;
        }
        let wanted = sample.shown && found.take(time);
        fed.push(Fed { place, wanted });
        if wanted {
            needed = fed.len();
        }
        if found.all() {
            break;
        }
    }
    fed.truncate(needed);
    fed
}

/// The groups in which a frame is shown, and the places of their key frames.
fn groups(all: &[Sample], clock: Clock, times: &[i64]) -> (Vec<u32>, Vec<Group>) {
    let mut keys: Vec<(usize, i64)> = Vec::new();
    for (place, sample) in all.iter().enumerate().filter(|(_, sample)| sample.key) {
        let time = clock.micros(sample.presentation());
        if keys.last().is_none_or(|(_, before)| *before < time) {
            keys.push((place, time));
        }
    }
    let (mut kept, mut groups) = (Vec::new(), Vec::new());
    for (number, (place, time)) in keys.iter().enumerate() {
        let next = keys.get(number + 1);
        let from = times.partition_point(|shown| shown < time);
        let shown = times.get(from).is_some_and(|shown| next.is_none_or(|(_, next)| shown < next));
        let (Some(key), true, Ok(short)) = (all.get(*place), shown, u32::try_from(*place)) else { continue };
        let next_at = next.and_then(|(next, _)| all.get(*next)).map(|next| next.at).filter(|at| *at > key.at);
        let until = next.map_or(all.len(), |(next, _)| *next);
        let own = || all.get(*place..until).unwrap_or_default().iter().map(Sample::end).max().unwrap_or(key.at);
        kept.push(short);
        groups.push(Group { time: *time, bytes: key.at..next_at.unwrap_or_else(own) });
    }
    (kept, groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: Clock = Clock { num: 1, den: 1 };
    const LIMITS: Limits = Limits { frames: 1000, bytes: 0, scan: true };

    /// Pictures by (time shown, key); one byte each, decoded one tick after another.
    fn samples(shown: &[(i64, bool)]) -> Vec<Sample> {
        let sample = |(place, (time, key)): (usize, &(i64, bool))| {
            let decode = place as i64;
            Sample { at: place as u64, decode, offset: (time - decode) as i32, size: 1, key: *key, shown: true }
        };
        shown.iter().enumerate().map(sample).collect()
    }

    /// Two groups, the second open: I0 P3 B1 B2, I6 B4 B5 P7.
    fn open() -> (Samples, Told) {
        let shown = [(0, true), (3, false), (1, false), (2, false), (6, true), (4, false), (5, false), (7, false)];
        Samples::new(samples(&shown), CLOCK, &LIMITS).expect("samples")
    }

    fn places(samples: &Samples, cuts: &[(usize, &[i64])]) -> Vec<Vec<usize>> {
        let cuts: Vec<Cut> =
            cuts.iter().map(|(group, frames)| Cut { group: *group, frames: frames.to_vec() }).collect();
        samples.runs(&cuts, 100).iter().map(|run| run.iter().map(|fed| fed.place).collect()).collect()
    }

    #[test]
    fn rounds_half_away_from_zero_and_saturates() {
        for (value, rounded) in [(1, 1), (-1, -1), (3, 2), (-3, -2), (2, 1), (0, 0)] {
            assert_eq!(rescale(value, 1, 2), rounded, "{value}/2");
        }
        assert_eq!((rescale(i64::MAX, u64::MAX, 1), rescale(i64::MIN, u64::MAX, 1)), (i64::MAX, i64::MIN));
        assert_eq!(rescale(5, 1, 0), 5);
    }

    #[test]
    fn a_run_takes_what_its_frames_need_and_no_more() {
        let (samples, told) = open();
        assert_eq!(told.times.as_ref(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(
            told.groups.iter().map(|group| (group.time, group.bytes.clone())).collect::<Vec<_>>(),
            [(0, 0..4), (6, 4..8)]
        );
        assert_eq!(places(&samples, &[(0, &[0])]), [[0]]);
        assert_eq!(places(&samples, &[(0, &[1])]), [[0, 1, 2]]);
        assert_eq!(places(&samples, &[(0, &[3])]), [[0, 1]]);
        assert_eq!(places(&samples, &[(0, &[4])]), [[0, 1, 2, 3, 4, 5]], "a leading picture needs both groups");
        assert_eq!(places(&samples, &[(1, &[7])]), [[4, 7]], "leading pictures of the first group are left out");
        assert_eq!(places(&samples, &[(0, &[0]), (1, &[6])]), [[0], [4]]);
        assert_eq!(places(&samples, &[(0, &[4]), (1, &[7])]), [[0, 1, 2, 3, 4, 5, 7]], "one run where they meet");
        assert!(places(&samples, &[(0, &[99]), (7, &[0])]).is_empty(), "what is not there is not fed");
    }

    #[test]
    fn pictures_of_one_time_count_once() {
        let shown = [(0, true), (1, false), (1, false), (2, false), (3, false)];
        let (samples, _) = Samples::new(samples(&shown), CLOCK, &LIMITS).expect("samples");
        assert_eq!(places(&samples, &[(0, &[0, 1, 3])]), [[0, 1, 2, 3, 4]]);
    }

    #[test]
    fn feeding_stops_where_the_file_ends() {
        let (samples, _) = open();
        let runs = samples.runs(&[Cut { group: 0, frames: vec![2, 3] }], 3);
        assert_eq!(runs, [[(0, false), (1, true), (2, false)].map(|(place, wanted)| Fed { place, wanted })]);
    }

    #[test]
    fn leading_pictures_of_the_first_group_are_never_shown() {
        let shown = [(2, true), (0, false), (1, false), (3, false), (6, true), (5, false)];
        let (_, told) = Samples::new(samples(&shown), CLOCK, &LIMITS).expect("samples");
        assert_eq!(told.times.as_ref(), [2, 3, 5, 6]);
    }

    #[test]
    fn groups_without_a_shown_frame_are_left_out() {
        let mut all = samples(&[(0, true), (1, false), (2, true), (3, false), (4, true)]);
        for place in [0, 1, 2] {
            all[place].shown = false;
        }
        let (samples, told) = Samples::new(all, CLOCK, &LIMITS).expect("samples");
        assert_eq!(told.times.as_ref(), [3, 4]);
        assert_eq!((told.groups[0].time, told.groups.len(), samples.keys), (2, 2, vec![2, 4]));
    }
}
