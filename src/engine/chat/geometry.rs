//! Which frames the vision tower takes, how many tokens each costs, and what fits the context. Pure.

use crate::engine::EngineError;
use crate::types::Frame;

/// mistralrs panics at this ratio of the sides.
const MAX_ASPECT: u32 = 200;

/// Side in pixels of the square that becomes one token: patch size times merge size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Geometry {
    factor: u32,
}

impl Geometry {
    /// `None` for 0.
    pub(in crate::engine) fn new(factor: u32) -> Option<Self> {
        (factor > 0).then_some(Self { factor })
    }

    /// Pixels on a side of what becomes one token.
    #[cfg(feature = "native")]
    pub(in crate::engine) const fn factor(self) -> u32 {
        self.factor
    }

    /// Tokens of one frame.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when its sides are not multiples of the factor (mistralrs would scale it, and panics
    /// below the factor), its sides differ too much, or its pixels do not fill it.
    pub(in crate::engine) fn tokens(self, frame: &Frame) -> Result<usize, EngineError> {
        let (width, height) = (frame.size.width, frame.size.height);
        let factor = self.factor;
        if width == 0 || height == 0 || !width.is_multiple_of(factor) || !height.is_multiple_of(factor) {
            return Err(EngineError::Invalid(format!(
                "a frame of {width}x{height}: its sides must be multiples of {factor}"
            )));
        }
        if width.max(height) / width.min(height) >= MAX_ASPECT {
            return Err(EngineError::Invalid(format!("a frame of {width}x{height} is too long for its width")));
        }
        let pixels = u64::from(width) * u64::from(height);
        if frame.rgb.len() as u64 != 3 * pixels {
            return Err(EngineError::Invalid("a frame's pixels do not fill its size".to_owned()));
        }
        usize::try_from(pixels / (u64::from(factor) * u64::from(factor)))
            .map_err(|_| EngineError::Invalid("a frame is too large".to_owned()))
    }
}

/// How long prompts and outputs may be, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Limits {
    context: u32,
    prompt: u32,
}

impl Limits {
    /// Prompt and output together fit `context`; a prompt may also have a bound of its own.
    pub(in crate::engine) fn new(context: u32, prompt: Option<u32>) -> Self {
        Self { context, prompt: prompt.map_or(context, |prompt| prompt.min(context)) }
    }

    /// Whether a prompt of so many tokens is short enough.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] when it is not.
    pub(in crate::engine) fn check_prompt(self, tokens: usize) -> Result<(), EngineError> {
        let (needed, limit) = (tokens as u64, u64::from(self.prompt));
        if needed > limit { Err(EngineError::TooLong { needed, limit }) } else { Ok(()) }
    }

    /// How many tokens may be generated after this prompt, should it be padded by `padding`: what was asked for, or what
    /// the context leaves. mistralrs checks before pictures are widened to their tokens, so the check is ours.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] when the prompt is longer than its bound, or leaves no room at all.
    pub(in crate::engine) fn output_room(
        self,
        prompt_tokens: usize,
        padding: usize,
        asked: u32,
    ) -> Result<u32, EngineError> {
        let too_long = |needed, limit| EngineError::TooLong { needed, limit: u64::from(limit) };
        self.check_prompt(prompt_tokens)?;
        let padded = (prompt_tokens + padding) as u64;
        match u64::from(self.context).checked_sub(padded) {
            None | Some(0) => Err(too_long(padded + 1, self.context)),
            Some(room) => Ok(u32::try_from(room).map_or(asked, |room| asked.min(room))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::prompt::tests::frame;
    use super::*;

    fn tokens(width: u32, height: u32) -> Result<usize, EngineError> {
        Geometry::new(32).expect("not 0").tokens(&frame(width, height))
    }

    #[test]
    fn a_frame_costs_a_token_for_each_square() {
        assert_eq!(tokens(64, 64).expect("fits"), 4);
        assert_eq!(tokens(32, 96).expect("fits"), 3);
    }

    #[test]
    fn frames_that_mistralrs_would_scale_or_panic_on_are_refused() {
        for (width, height) in [(0, 32), (16, 64), (64, 48), (33, 33), (32, 6400)] {
            assert!(matches!(tokens(width, height), Err(EngineError::Invalid(_))), "{width}x{height}");
        }
    }

    #[test]
    fn a_frame_that_is_not_filled_is_refused() {
        let mut short = frame(64, 64);
        short.rgb.truncate(100);
        assert!(Geometry::new(32).expect("not 0").tokens(&short).is_err());
    }

    #[test]
    fn the_output_is_clamped_and_a_long_prompt_refused() {
        let limits = Limits::new(100, None);
        assert_eq!(limits.output_room(10, 0, 5).expect("fits"), 5);
        assert_eq!(limits.output_room(98, 0, 5).expect("fits"), 2);
        assert_eq!(limits.output_room(90, 8, 5).expect("fits"), 2);
        for (prompt, padding) in [(100, 0), (90, 10)] {
            let room = limits.output_room(prompt, padding, 5);
            assert!(matches!(room, Err(EngineError::TooLong { needed: 101, limit: 100 })), "{room:?}");
        }
    }

    #[test]
    fn a_prompt_has_a_bound_of_its_own_which_padding_does_not_count_for() {
        let limits = Limits::new(100, Some(40));
        assert_eq!(limits.output_room(40, 16, 50).expect("fits"), 44);
        assert!(matches!(limits.output_room(41, 0, 5), Err(EngineError::TooLong { needed: 41, limit: 40 })));
        let beyond = Limits::new(100, Some(200));
        assert!(matches!(beyond.output_room(150, 0, 5), Err(EngineError::TooLong { limit: 100, .. })));
    }
}
