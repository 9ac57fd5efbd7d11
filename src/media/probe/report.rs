//! What ffprobe says of a file: its streams, and which of them a player would show.
//!
//! This file knows ffprobe's JSON and nothing of limits or requests.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::super::MediaError;
use super::super::picture::Coded;
use crate::types::FrameSize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Report {
    pub(super) streams: Vec<Stream>,
    pub(super) format: Format,
    /// One where a frame that decodes was asked for and is there.
    pub(super) frames: Vec<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Format {
    pub(super) format_name: String,
    pub(super) start_time: Option<String>,
    pub(super) duration: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct Stream {
    pub(super) index: u32,
    pub(super) codec_type: String,
    pub(super) codec_name: Option<String>,
    #[serde(deserialize_with = "side")]
    pub(super) width: u32,
    #[serde(deserialize_with = "side")]
    pub(super) height: u32,
    pub(super) pix_fmt: Option<String>,
    pub(super) field_order: Option<String>,
    pub(super) color_transfer: Option<String>,
    pub(super) sample_aspect_ratio: Option<String>,
    pub(super) r_frame_rate: Option<String>,
    pub(super) avg_frame_rate: Option<String>,
    pub(super) start_time: Option<String>,
    pub(super) duration: Option<String>,
    pub(super) nb_frames: Option<String>,
    pub(super) disposition: Disposition,
    pub(super) tags: Tags,
    pub(super) side_data_list: Vec<SideData>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct Disposition {
    pub(super) default: u8,
    pub(super) attached_pic: u8,
    pub(super) timed_thumbnails: u8,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct Tags {
    pub(super) rotate: Option<String>,
    alpha_mode: Option<String>,
    #[serde(rename = "DURATION")]
    pub(super) duration: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct SideData {
    pub(super) rotation: Option<f64>,
}

pub(super) const ENTRIES: &str = "format=format_name,start_time,duration:stream=index,codec_type,codec_name,width,height,\
    pix_fmt,field_order,color_transfer,sample_aspect_ratio,r_frame_rate,avg_frame_rate,start_time,duration,nb_frames\
    :stream_disposition=default,attached_pic,timed_thumbnails:stream_tags=rotate,alpha_mode,DURATION:stream_side_data=rotation";

/// The stream a player would show: the default one, else the largest.
pub(super) fn choose(streams: &[Stream]) -> Result<Stream, MediaError> {
    let none = |problem: &str| MediaError::NotVideo(problem.to_owned());
    let videos = || streams.iter().filter(|stream| stream.codec_type == "video");
    let picture = |stream: &Stream| stream.disposition.attached_pic == 1 || stream.disposition.timed_thumbnails == 1;
    if videos().next().is_none() {
        let audio = streams.iter().any(|stream| stream.codec_type == "audio");
        return Err(none(if audio { "the file holds only sound, no video" } else { "the file holds no video" }));
    }
    let moving = || videos().filter(|stream| !picture(stream));
    if moving().next().is_none() {
        return Err(none("the file holds only a cover picture, no video"));
    }
    moving()
        .filter(|stream| stream.width > 0 && stream.height > 0 && stream.codec_name.is_some())
        .max_by_key(|stream| {
            let pixels = u64::from(stream.width) * u64::from(stream.height);
            (stream.disposition.default, pixels, std::cmp::Reverse(stream.index))
        })
        .cloned()
        .ok_or_else(|| {
            none("the picture is larger than this server takes, the codec is not known, or the header is damaged")
        })
}

/// A side of a picture, 0 where a damaged header makes it negative.
fn side<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    i64::deserialize(deserializer).map(|side| u32::try_from(side).unwrap_or(0))
}

impl Stream {
    /// Pixels of a frame as it is coded.
    pub(super) fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Seconds it lasts, as its own header says.
    pub(super) fn own_length(&self) -> Option<f64> {
        seconds(self.duration.as_deref()).or_else(|| clock(self.tags.duration.as_deref()?))
    }

    /// Seconds it lasts, as its or the file's header says.
    pub(super) fn length(&self, format: &Format) -> Option<f64> {
        self.own_length().or_else(|| seconds(format.duration.as_deref()))
    }

    /// Frames it has, as its header says.
    pub(super) fn frames(&self) -> Option<u64> {
        self.nb_frames.as_deref()?.parse().ok().filter(|frames| *frames > 0)
    }

    fn sample_aspect(&self) -> f64 {
        let aspect = self.sample_aspect_ratio.as_deref().and_then(|text| ratio(text, ':'));
        // Beyond this it is a broken header, not a lens.
        aspect.filter(|aspect| (0.1..=10.0).contains(aspect)).unwrap_or(1.0)
    }

    fn rotation(&self) -> f64 {
        let told = self.side_data_list.iter().find_map(|data| data.rotation);
        told.or_else(|| self.tags.rotate.as_deref()?.parse().ok()).filter(|degrees| degrees.is_finite()).unwrap_or(0.0)
    }

    /// Size as shown: sample aspect and rotation applied.
    pub(super) fn displayed(&self) -> FrameSize {
        let width = ((f64::from(self.width) * self.sample_aspect()).round() as u32).max(1);
        let turned = (self.rotation().rem_euclid(180.0) - 90.0).abs() < 1.0;
        if turned { FrameSize { width: self.height, height: width } } else { FrameSize { width, height: self.height } }
    }

    /// What pictures are like before anything is done to them.
    pub(super) fn coded(&self) -> Coded<'_> {
        Coded {
            pixel_format: self.pix_fmt.as_deref().unwrap_or_default(),
            field_order: self.field_order.as_deref().unwrap_or_default(),
            transfer: self.color_transfer.as_deref().unwrap_or_default(),
            rotation: self.rotation(),
            sample_aspect: self.sample_aspect(),
            side_alpha: self.tags.alpha_mode.as_deref() == Some("1"),
        }
    }
}

pub(super) fn seconds(text: Option<&str>) -> Option<f64> {
    text?.parse().ok().filter(|seconds: &f64| seconds.is_finite() && seconds.abs() < 1e10)
}

/// `00:00:20.000000000`, as Matroska's tags write lengths.
pub(super) fn clock(text: &str) -> Option<f64> {
    text.parse::<crate::types::MediaTime>().ok().map(crate::types::MediaTime::seconds).filter(|seconds| *seconds > 0.0)
}

pub(super) fn ratio(text: &str, separator: char) -> Option<f64> {
    let (over, under) = text.split_once(separator)?;
    let (over, under): (f64, f64) = (over.parse().ok()?, under.parse().ok()?);
    (over > 0.0 && under > 0.0).then_some(over / under)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(change: impl FnOnce(&mut Stream)) -> Stream {
        let mut stream = Stream {
            codec_type: "video".to_owned(),
            codec_name: Some("h264".to_owned()),
            width: 320,
            height: 180,
            ..Stream::default()
        };
        change(&mut stream);
        stream
    }

    #[test]
    fn a_damaged_header_is_no_fault_of_ours() {
        let text = r#"{"streams": [{"codec_type": "video", "codec_name": "mjpeg", "width": -1, "height": 1}]}"#;
        let report: Report = serde_json::from_str(text).expect("reads");
        assert!(choose(&report.streams).is_err());
    }

    #[test]
    fn rotation_and_sample_aspect_are_in_the_size() {
        let size = |width, height| FrameSize { width, height };
        assert_eq!(stream(|_| ()).displayed(), size(320, 180));
        assert_eq!(stream(|s| s.sample_aspect_ratio = Some("2:1".into())).displayed(), size(640, 180));
        assert_eq!(stream(|s| s.sample_aspect_ratio = Some("0:1".into())).displayed(), size(320, 180));
        assert_eq!(stream(|s| s.sample_aspect_ratio = Some("1000000:1".into())).displayed(), size(320, 180));
        for degrees in [90.0, -90.0, 270.0] {
            let turned = stream(|s| s.side_data_list = vec![SideData::default(), SideData { rotation: Some(degrees) }]);
            assert_eq!(turned.displayed(), size(180, 320), "{degrees}");
        }
        assert_eq!(stream(|s| s.tags.rotate = Some("180".into())).displayed(), size(320, 180));
    }

    #[test]
    fn the_default_stream_wins_then_the_largest() {
        let small = stream(|s| s.index = 0);
        let large = stream(|s| (s.index, s.width) = (1, 640));
        let cover = stream(|s| (s.index, s.width, s.disposition.attached_pic) = (2, 2000, 1));
        assert_eq!(choose(&[small, large.clone(), cover.clone()]).expect("a video").index, 1);
        let default = stream(|s| (s.index, s.disposition.default) = (0, 1));
        assert_eq!(choose(&[default, large, cover.clone()]).expect("a video").index, 0);
        let message = |streams: &[Stream]| choose(streams).expect_err("none").to_string();
        assert!(message(&[cover]).contains("cover picture"));
        assert!(message(&[stream(|s| s.codec_type = "audio".into())]).contains("only sound"));
        assert!(message(&[]).contains("no video"));
    }
}
