//! What conversations with a common beginning have in common. Pure.

use sha2::{Digest as _, Sha256};

use super::frames::{Key, first_bytes};
use crate::types::{Part, Role, Turn};

/// A number for how a conversation begins: its first turn with frames, by these alone, so that every question about a video
/// has the same; without frames, the user's first words. The same in every process. `frames` are digests of all frames, in
/// order.
pub(super) fn digest(turns: &[Turn], frames: &[u64]) -> Option<u64> {
    let mut hash = Sha256::new();
    if let Some(count) = turns.iter().map(|turn| turn.frames().count()).find(|count| *count > 0) {
        for frame in frames.iter().take(count) {
            hash.update(frame.to_le_bytes());
        }
    } else {
        let first = turns.iter().find(|turn| turn.role == Role::User)?;
        for part in &first.parts {
            if let Part::Text(text) = part {
                hash.update(text);
            }
        }
    }
    Some(first_bytes(Key::from(hash.finalize())))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::types::{Frame, FrameSize};

    fn seen(frames: usize, text: &str) -> Turn {
        let size = FrameSize { width: 1, height: 1 };
        let frame = || Part::Frame(Frame { time: None, size, rgb: Bytes::from_static(&[0; 3]) });
        let parts = (0..frames).map(|_| frame()).chain([Part::Text(text.to_owned())]).collect();
        Turn { role: Role::User, parts }
    }

    #[test]
    fn conversations_about_the_same_frames_begin_alike() {
        let system = Turn::text(Role::System, "Look.");
        let of = |question: &str, frames: &[u64]| digest(&[system.clone(), seen(2, question)], frames);
        assert_eq!(of("Who?", &[1, 2]), of("Where?", &[1, 2]));
        assert_ne!(of("Who?", &[1, 2]), of("Who?", &[1, 3]));
        // What comes later changes nothing.
        let later = [system.clone(), seen(2, "Who?"), Turn::text(Role::Assistant, "He."), seen(1, "And now?")];
        assert_eq!(digest(&later, &[1, 2, 9]), of("Who?", &[1, 2]));
    }

    #[test]
    fn without_frames_the_first_words_count() {
        let of = |text: &str| digest(&[Turn::text(Role::System, "Be brief."), Turn::text(Role::User, text)], &[]);
        assert_eq!(of("Who?"), of("Who?"));
        assert_ne!(of("Who?"), of("Where?"));
        assert_eq!(digest(&[Turn::text(Role::System, "Be brief.")], &[]), None);
    }
}
