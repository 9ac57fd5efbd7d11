//! Edit lists: which pictures they hide and by how much they shift the clock. Pure.
//!
//! The rules are those of ffmpeg (libavformat/mov.c, `mov_fix_index`), since its clock is the one everything else counts in:
//! the first picture of an edit is shown at zero, or behind the empty edits before it.

use super::Unindexed;
use super::samples::{Sample, rescale};

/// An edit list with at most one real edit. Times in ticks of the track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Edit {
    /// Nothing is shown for so long at first.
    pub(super) empty: i64,
    /// When what is shown begins.
    pub(super) start: i64,
    /// For how long, or to the end.
    pub(super) duration: Option<i64>,
    /// Whether there is a list at all.
    pub(super) any: bool,
}

impl Edit {
    /// From the track's list. Its durations count in the movie's time.
    ///
    /// # Errors
    /// [`Unindexed`] for lists of more than one stretch, and stretches that are not played as they are.
    pub(super) fn read(list: &mp4_atom::Elst, movie: u32, track: u32) -> Result<Self, Unindexed> {
        let odd = || Unindexed::Because("an edit list with more than one stretch".to_owned());
        let mut edit = Self::default();
        let ticks = |duration: u64| {
            let duration = i64::try_from(duration).map_err(|_| odd())?;
            if movie == 0 { Err(odd()) } else { Ok(rescale(duration, track.into(), movie.into())) }
        };
        for entry in &list.entries {
            match entry.media_time {
                _ if edit.any => return Err(odd()),
                None => edit.empty = edit.empty.checked_add(ticks(entry.segment_duration)?).ok_or_else(odd)?,
                Some(start) => {
                    if (entry.media_rate.integer(), entry.media_rate.decimal()) != (1, 0) {
                        return Err(Unindexed::Because("an edit of another speed".to_owned()));
                    }
                    edit.start = i64::try_from(start).map_err(|_| odd())?;
                    edit.duration = Some(ticks(entry.segment_duration)?);
                    edit.any = true;
                }
            }
        }
        if edit.any || list.entries.is_empty() { Ok(edit) } else { Err(odd()) }
    }

    /// What is taken from the times of fragments' pictures: those are shifted, never hidden.
    pub(super) const fn shift(&self) -> i64 {
        self.start.saturating_sub(self.empty)
    }

    /// Hides what is outside the edit and shifts the clock.
    ///
    /// # Errors
    /// [`Unindexed`] when nothing is left.
    pub(super) fn apply(&self, samples: &mut [Sample]) -> Result<(), Unindexed> {
        let (true, Some(duration)) = (self.any, self.duration) else { return Ok(()) };
        if duration <= 0 {
            return Err(Unindexed::Because("an edit without a length".to_owned()));
        }
        let end = self.start.saturating_add(duration);
        for sample in &mut *samples {
            sample.shown = (self.start..end).contains(&sample.presentation());
        }
        // Decoding begins at the key frame before the edit; the first picture of the edit after it is decoded at zero.
        let key = samples.iter().rposition(|sample| sample.key && sample.presentation() <= self.start).unwrap_or(0);
        let inside = || samples.iter().skip(key).filter(|sample| sample.shown);
        let first = inside().next().ok_or_else(|| Unindexed::Because("an edit without frames".to_owned()))?.decode;
        let counted = |sample: &Sample| sample.presentation().saturating_sub(first).saturating_add(self.empty);
        let least = inside().map(counted).min().unwrap_or(0);
        let late = least.saturating_sub(self.empty).max(0);
        let shift = first.saturating_sub(self.empty).saturating_add(late);
        for sample in samples {
            sample.decode = sample.decode.saturating_sub(shift);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I0 P4 B1 B2, shown two ticks late as encoders with reordering write them, and again.
    fn samples() -> Vec<Sample> {
        let offsets = [2, 4, 1, 1, 2, 4, 1, 1];
        let sample = |(place, offset): (usize, &i32)| {
            let at = place as u64;
            Sample { at, decode: place as i64, offset: *offset, size: 1, key: place % 4 == 0, shown: true }
        };
        offsets.iter().enumerate().map(sample).collect()
    }

    fn shown(edit: Edit) -> Vec<i64> {
        let mut samples = samples();
        edit.apply(&mut samples).expect("applies");
        samples.iter().filter(|sample| sample.shown).map(Sample::presentation).collect()
    }

    #[test]
    fn the_delay_of_reordering_is_taken_off() {
        let edit = Edit { start: 2, duration: Some(100), any: true, empty: 0 };
        assert_eq!(shown(edit), [0, 3, 1, 2, 4, 7, 5, 6]);
        assert_eq!(shown(Edit { start: 0, ..edit }), [0, 3, 1, 2, 4, 7, 5, 6]);
        assert_eq!(shown(Edit { empty: 10, ..edit }), [10, 13, 11, 12, 14, 17, 15, 16]);
    }

    #[test]
    fn what_is_outside_is_hidden() {
        let edit = Edit { start: 4, duration: Some(4), any: true, empty: 0 };
        assert_eq!(shown(edit), [1, 0, 2, 3]);
    }

    #[test]
    fn without_a_list_nothing_changes() {
        assert_eq!(shown(Edit::default()), [2, 5, 3, 4, 6, 9, 7, 8]);
    }
}
