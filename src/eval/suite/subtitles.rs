//! Subtitles as the paper's evaluation gives them: all the words of a file, whatever the times.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

/// Largest file that is read. Those of hour-long videos have a few hundred kilobytes.
const MOST: u64 = 8 << 20;

static TAG: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("<[^>]+>").ok());
static GAP: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\n\s*\n").ok());

/// The words of an SRT file, a line each, without numbers, times and markup. Empty where there is none: 156 of Video-MME's 900
/// videos have no subtitles.
pub(super) fn words(path: &Path) -> String {
    let small = path.metadata().is_ok_and(|metadata| metadata.len() <= MOST);
    let bytes = small.then(|| std::fs::read(path).ok()).flatten().unwrap_or_default();
    // What is not UTF-8 is left out.
    let text: String = bytes.utf8_chunks().map(|chunk| chunk.valid()).collect();
    text_of(&text.replace("\r\n", "\n").replace('\r', "\n"))
}

fn text_of(srt: &str) -> String {
    let (Some(gap), Some(tag)) = (&*GAP, &*TAG) else { return String::new() };
    // A number, a line with times, and then the words.
    let lines = gap.split(srt.trim()).flat_map(|block| block.lines().skip(2));
    let clean = lines.map(|line| tag.replace_all(line, "").trim().to_owned()).filter(|line| !line.is_empty());
    clean.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_words_are_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.srt");
        let srt = b"\xef\xbb\xbf1\r\n00:00:01,240 --> 00:00:06,879\r\n<font color=\"white\" size=\".72c\">Good \xffevening</font>\r\n\r\n\
            2\r\n00:00:07,000 --> 00:00:08,000\r\n \r\n\r\n3\r\n00:00:09,000 --> 00:00:10,000\r\nand\r\n<i>welcome.</i>\r\n";
        std::fs::write(&path, srt).expect("written");
        assert_eq!(words(&path), "Good evening\nand\nwelcome.");
        assert_eq!(words(&folder.path().join("none.srt")), "");
    }
}
