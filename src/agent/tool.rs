//! The agent's tool and how its arguments are read.
//!
//! The design's `Tool` has `schema()` and `run()`. There is one tool, and its run is split: the pure half, from arguments
//! to a window or a refusal, is here; watching the window is [`super::subagent`]. A second tool makes this an enum.

use serde_json::{Map, Value};

use crate::types::{MediaTime, TimeSpan};

/// The tool's name.
pub(crate) const CROP_VIDEO: &str = "crop_video";

/// Start and end of a call, whatever the model named and typed them: `start_time`, `start`; numbers, `"9.5"`, `"01:05"`.
///
/// # Errors
/// The reason in words the model can use.
pub(crate) fn window_arguments(arguments: &Map<String, Value>) -> Result<(MediaTime, MediaTime), String> {
    let time = |names: [&'static str; 2]| {
        let value =
            names.iter().find_map(|name| arguments.get(*name)).ok_or_else(|| format!("{} is missing", names[0]))?;
        let time = match value {
            Value::Number(number) => number.as_f64().and_then(MediaTime::from_seconds),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        time.ok_or_else(|| format!("{} is not a number of seconds", names[0]))
    };
    Ok((time(["start_time", "start"])?, time(["end_time", "end"])?))
}

/// A video as calls can name it.
#[derive(Debug, Clone)]
pub(super) struct SceneVideo {
    /// The name it has in the prompt.
    pub(super) name: String,
    /// The part of it that may be watched, as the caller limited it: by default all of it.
    pub(super) span: TimeSpan,
    /// Its length.
    pub(super) duration: MediaTime,
}

/// Which video, and which part of it.
///
/// # Errors
/// The reason in words the model can use, with the video's length.
pub(super) fn plan(arguments: &Map<String, Value>, scene: &[SceneVideo]) -> Result<(usize, TimeSpan), String> {
    let named = arguments.get("video_path").and_then(Value::as_str).and_then(|path| {
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
        scene.iter().position(|video| video.name == name)
    });
    let index = named.unwrap_or(0);
    let video = scene.get(index).ok_or_else(|| "there is no video".to_owned())?;
    let length = format!("(the video is {} s long)", video.duration);
    let (start, end) = window_arguments(arguments).map_err(|reason| format!("{reason} {length}"))?;
    if start >= end {
        return Err(format!("start_time must be before end_time {length}"));
    }
    let refuse = |what: &str| Err(format!("the window is {what} of the video ({} s)", video.duration));
    if start >= video.duration {
        return refuse("past the end");
    }
    if end <= MediaTime::ZERO {
        return refuse("before the start");
    }
    if start >= video.span.end || end <= video.span.start {
        return Err(format!("the window is outside the part that may be watched ({}) {length}", video.span));
    }
    let span = TimeSpan { start: start.max(video.span.start), end: end.min(video.span.end) };
    Ok((index, span))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seconds(s: f64) -> MediaTime {
        MediaTime::from_seconds(s).expect("finite")
    }

    fn scene(lengths: &[f64]) -> Vec<SceneVideo> {
        let whole = |(n, length): (usize, &f64)| SceneVideo {
            name: format!("video_{}.mp4", n + 1),
            span: TimeSpan { start: MediaTime::ZERO, end: seconds(*length) },
            duration: seconds(*length),
        };
        lengths.iter().enumerate().map(whole).collect()
    }

    fn run(arguments: Value, lengths: &[f64]) -> Result<(usize, f64, f64), String> {
        let Value::Object(arguments) = arguments else { panic!("object") };
        plan(&arguments, &scene(lengths)).map(|(video, span)| (video, span.start.seconds(), span.end.seconds()))
    }

    #[test]
    fn windows_are_clamped_to_the_video() {
        assert_eq!(run(json!({"start_time": -5, "end_time": 1000}), &[140.2]), Ok((0, 0.0, 140.2)));
    }

    #[test]
    fn windows_that_make_no_sense_are_refused_with_the_length() {
        for (arguments, reason) in [
            (json!({"start_time": 150, "end_time": 160}), "the window is past the end of the video (140.2 s)"),
            (json!({"start_time": 140.2, "end_time": 160}), "the window is past the end of the video (140.2 s)"),
            (json!({"start_time": -9, "end_time": 0}), "the window is before the start of the video (140.2 s)"),
            (
                json!({"start_time": 20, "end_time": 20}),
                "start_time must be before end_time (the video is 140.2 s long)",
            ),
            (
                json!({"start_time": "soon", "end_time": 20}),
                "start_time is not a number of seconds (the video is 140.2 s long)",
            ),
            (json!({"start_time": 20}), "end_time is missing (the video is 140.2 s long)"),
        ] {
            assert_eq!(run(arguments, &[140.2]), Err(reason.to_owned()));
        }
    }

    #[test]
    fn a_video_is_found_by_its_name_else_the_first() {
        for (path, video) in [("video_2.mp4", 1), ("/tmp/video_2.mp4", 1), ("other.mp4", 0)] {
            let arguments = json!({"video_path": path, "start_time": 1, "end_time": 2});
            assert_eq!(run(arguments, &[9.0, 9.0]).map(|found| found.0), Ok(video), "{path}");
        }
    }
}
