//! What a video's pictures need on the way to upright 8-bit RGB, as ffmpeg filters, and the same in words for the trace.
//!
//! Pure. Turning is ffmpeg's own doing, and the sample aspect is in the size that pictures are scaled to.

use crate::types::FrameSize;

/// To RGB at full size first, by ffmpeg's default arithmetic, because the readers that models were trained with do so.
const RGB: &str = "scale=flags=bilinear,format=rgb24";
/// Scaling nearest to torchvision's antialiased bicubic of all that ffmpeg offers; load_tests/media/scaling.py measures it.
const BICUBIC: &str = "flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp";
/// Brightness of diffuse white in nits (ITU-R BT.2408).
const WHITE_NITS: u32 = 203;

/// What a stream's header says of its pictures.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Coded<'a> {
    /// `yuv420p10le` and the like.
    pub(super) pixel_format: &'a str,
    /// `progressive`, or the order of fields: `tt`, `bb`, `tb`, `bt`.
    pub(super) field_order: &'a str,
    /// Transfer characteristics, `smpte2084` and the like.
    pub(super) transfer: &'a str,
    /// Degrees that a player turns it by.
    pub(super) rotation: f64,
    /// Width of a sample over its height.
    pub(super) sample_aspect: f64,
    /// Whether an alpha plane comes beside the picture, as in VP8 and VP9.
    pub(super) side_alpha: bool,
}

impl Coded<'_> {
    /// The transfer of high dynamic range, as ffmpeg and as people call it.
    pub(super) fn wide_range(&self) -> Option<(&'static str, &'static str)> {
        [("smpte2084", "PQ"), ("arib-std-b67", "HLG")].into_iter().find(|(transfer, _)| *transfer == self.transfer)
    }
}

/// How pictures are made ready for the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Picture {
    /// One field of each frame: pictures of two instants woven into one are of neither.
    field: Option<&'static str>,
    /// Transfer that is brought down to standard dynamic range.
    tone_map: Option<&'static str>,
    notes: Vec<String>,
}

impl Picture {
    /// `tone_mapping`: whether this ffmpeg can.
    pub(super) fn new(coded: &Coded<'_>, tone_mapping: bool) -> Self {
        let mut notes = Vec::new();
        if coded.rotation.abs() >= 1.0 {
            notes.push(format!("turned by {:.0} degrees", coded.rotation));
        }
        if (coded.sample_aspect - 1.0).abs() > 1e-6 {
            notes.push(format!("sample aspect {:.3} applied", coded.sample_aspect));
        }
        // Of the two letters the second says which field is shown first.
        let field = match coded.field_order {
            "tt" | "bt" => Some("top"),
            "bb" | "tb" => Some("bottom"),
            _ => None,
        };
        // ffmpeg turns pictures before our filters see them, and then the lines of a field are lines no more.
        let upright = coded.rotation.abs() < 1.0;
        if field.is_some() {
            let done = if upright { "the first field of each frame" } else { "left as it is, because it is turned" };
            notes.push(format!("interlaced: {done}"));
        }
        let field = field.filter(|_| upright);
        let transfer = coded.wide_range();
        if let Some((_, name)) = transfer {
            let done =
                if tone_mapping { "tone-mapped to BT.709" } else { "cut to 8 bits, for want of ffmpeg's zscale" };
            notes.push(format!("high dynamic range ({name}): {done}"));
        }
        if coded.side_alpha || has_alpha(coded.pixel_format) {
            notes.push("transparency ignored".to_owned());
        }
        Self { field, tone_map: transfer.map(|(name, _)| name).filter(|_| tone_mapping), notes }
    }

    /// What is done, in words.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Filters from a decoded frame to RGB of this size, one scaling for all.
    pub(super) fn filters(&self, size: FrameSize) -> String {
        let field = self.field.map(|field| format!("field=type={field},")).unwrap_or_default();
        let scale = format!("scale={}:{}:{BICUBIC}", size.width, size.height);
        let Some(transfer) = self.tone_map else { return format!("{field}{RGB},{scale},format=rgb24") };
        // After scaling, where there is little left to map. Everything is named, because frames may leave it out.
        let scale = format!("{scale}:out_range=tv");
        let linear = format!("zscale=tin={transfer}:pin=bt2020:min=bt2020nc:rin=limited:t=linear:npl={WHITE_NITS}");
        format!(
            "{field}{scale},format=yuv444p12le,{linear},format=gbrpf32le,zscale=p=bt709,tonemap=hable:desat=0,\
             zscale=t=bt709:m=gbr:r=full,format=gbrp,format=rgb24"
        )
    }
}

fn has_alpha(pixel_format: &str) -> bool {
    ["yuva", "rgba", "bgra", "argb", "abgr", "gbrap", "ya8", "ya16", "pal8"]
        .iter()
        .any(|format| pixel_format.starts_with(format))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: FrameSize = FrameSize { width: 64, height: 32 };

    fn coded() -> Coded<'static> {
        Coded { pixel_format: "yuv420p", field_order: "progressive", sample_aspect: 1.0, ..Coded::default() }
    }

    #[test]
    fn a_plain_picture_is_only_scaled() {
        let picture = Picture::new(&coded(), true);
        assert!(picture.notes().is_empty());
        assert_eq!(picture.filters(SIZE), format!("{RGB},scale=64:32:{BICUBIC},format=rgb24"));
    }

    #[test]
    fn the_field_that_is_shown_first_is_taken() {
        for (order, field) in [("tt", "top"), ("bt", "top"), ("bb", "bottom"), ("tb", "bottom")] {
            let picture = Picture::new(&Coded { field_order: order, ..coded() }, true);
            assert!(picture.filters(SIZE).starts_with(&format!("field=type={field},scale=")), "{order}");
            assert_eq!(picture.notes().len(), 1);
        }
    }

    #[test]
    fn what_is_done_is_told() {
        let turned = Picture::new(&Coded { field_order: "tt", rotation: 90.0, ..coded() }, true);
        assert!(turned.notes().join("; ").contains("left as it is") && !turned.filters(SIZE).contains("field="));
        let odd = Coded {
            pixel_format: "yuva420p10le",
            transfer: "smpte2084",
            rotation: -90.0,
            sample_aspect: 2.0,
            ..coded()
        };
        let notes = Picture::new(&odd, true).notes().join("; ");
        for part in ["turned by -90", "aspect 2.000", "PQ): tone-mapped", "transparency ignored"] {
            assert!(notes.contains(part), "{notes}");
        }
        let without = Picture::new(&odd, false);
        assert!(without.notes().join("; ").contains("cut to 8 bits"));
        assert!(!without.filters(SIZE).contains("zscale"));
    }
}
