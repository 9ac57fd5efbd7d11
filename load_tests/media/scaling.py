#!/usr/bin/env python3
"""How far paravt's scaled frames are from the reference's, and which colours each reader makes of a film.

The reference is what qwen-vl-utils gives a model: torchcodec's whole frame, scaled by torchvision's bicubic with
antialias. The same lossless pictures go through ffmpeg as paravt runs it, and through variants of that. Differences are
in steps of 8-bit RGB. Change PARAVT here where `src/media/picture.rs` changes.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WIDTH, HEIGHT, FRAMES = 1920, 1080, 3
# What ParaVT-8B takes of 1080p at several budgets, the tiny model's, and one that keeps no aspect and no even ratio.
SIZES = ((960, 544), (480, 256), (288, 160), (298, 168), (64, 64))

# As in `Picture::filters` of src/media/picture.rs: converted at full size, which on flat colours gives just what torchcodec and
# decord give, and then scaled.
PARAVT = (
    "scale=flags=bilinear,format=rgb24,"
    "scale={w}:{h}:flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp,format=rgb24"
)

# FFmpeg 5.1's scale filter cuts its parameters to whole numbers: 0.5 and 0.75 are both 0 there, a softer kernel than
# any bicubic in use. Left out, they are 0 and 0.6; the reference's kernel is 0 and 0.5. Other versions may differ.
_P = ":param0=0:param1=0.5"
_S = "scale={w}:{h}:flags="
_F = "bicubic+accurate_rnd+full_chroma_int"
VARIANTS = {
    "paravt": PARAVT,
    "parameters 0, 0.75": _S + _F + ":param0=0:param1=0.75,format=rgb24",
    "parameters 0, 1": _S + _F + ":param0=0:param1=1,format=rgb24",
    "no parameters": _S + _F + ",format=rgb24",
    "no parameters, no flags (ffmpeg's defaults)": "scale={w}:{h},format=rgb24",
    "no parameters, without accurate_rnd": _S + "bicubic+full_chroma_int,format=rgb24",
    "no parameters, without full_chroma_int": _S + "bicubic+accurate_rnd,format=rgb24",
    "no parameters, + full_chroma_inp": _S + _F + "+full_chroma_inp,format=rgb24",
    "no parameters, + bitexact": _S + _F + "+bitexact,format=rgb24",
    "no parameters, chroma at left": _S + _F + ":in_h_chr_pos=0:in_v_chr_pos=128,format=rgb24",
    "no parameters, chroma at the centre": _S + _F + ":in_h_chr_pos=128:in_v_chr_pos=128,format=rgb24",
    "lanczos": _S + "lanczos+accurate_rnd+full_chroma_int,format=rgb24",
    "area": _S + "area+accurate_rnd+full_chroma_int,format=rgb24",
    "RGB first, as torchcodec": "scale=flags=bilinear,format=rgb24," + _S + _F + ",format=rgb24",
    "RGB first": "format=rgb24," + _S + _F + ",format=rgb24",
    "RGB first, parameters 0, 0.5 (cut)": "format=rgb24," + _S + _F + _P + ",format=rgb24",
    "RGB first, + full_chroma_inp": "format=rgb24," + _S + _F + "+full_chroma_inp,format=rgb24",
    "RGB first, precisely": "scale=flags=accurate_rnd+full_chroma_int+full_chroma_inp,format=rgb24," + _S + _F
    + "+full_chroma_inp,format=rgb24",
    "RGB first, planar": "format=rgb24,format=gbrp," + _S + _F + ",format=gbrp,format=rgb24",
    "RGB planar at once": "format=gbrp," + _S + _F + ",format=gbrp,format=rgb24",
    "RGB first, lanczos": "format=rgb24," + _S + "lanczos+accurate_rnd+full_chroma_int+full_chroma_inp,format=rgb24",
    "RGB first, planar, zscale 0, 0.5":
        "format=rgb24,format=gbrp,zscale=w={w}:h={h}:filter=bicubic:param_a=0:param_b=0.5,format=gbrp,format=rgb24",
    "zscale 0, 0.5": "zscale=w={w}:h={h}:filter=bicubic:param_a=0:param_b=0.5:matrixin=170m:rangein=limited:matrix=gbr"
    ":range=full,format=gbrp,format=rgb24",
}


def ffmpeg(*arguments, feed=None):
    done = subprocess.run(["ffmpeg", "-v", "error", "-nostdin", "-y", *arguments], input=feed, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode(errors="replace").strip()[-300:])
    return done.stdout


def texture():
    """Pictures with the spectrum of photographs: noise that falls off as one over the frequency, in slow colours."""
    random = np.random.default_rng(3)
    rows, columns = np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None, :]
    far = np.hypot(rows, columns)
    far[0, 0] = far[0, 1]
    frames = []
    for _ in range(FRAMES):
        planes = [np.fft.irfft2(np.fft.rfft2(random.standard_normal((HEIGHT, WIDTH))) / far**1.2, (HEIGHT, WIDTH))
                  for _ in range(3)]
        grey, *tint = [plane / plane.std() for plane in planes]
        colour = np.stack([grey + 0.35 * tint[0], grey, grey + 0.35 * tint[1]], axis=-1)
        frames.append(np.clip(118 + 48 * colour, 0, 255).astype(np.uint8))
    return np.stack(frames)


def sources(folder):
    """Lossless 4:2:0 films of a few frames each, untagged, as most uploads are."""
    size = f"size={WIDTH}x{HEIGHT}:rate=1"
    made = {
        "testsrc2, light noise": (f"testsrc2={size},noise=alls=6:allf=t:all_seed=3", None),
        "mandelbrot, noise": (f"mandelbrot={size}:start_scale=0.4,noise=alls=10:allf=t:all_seed=5", None),
        "gradient": (f"gradients={size}:seed=7:c0=navy:c1=orange:nb_colors=2", None),
        "1/f texture": (None, texture()),
    }
    paths = {}
    for number, (name, (graph, pixels)) in enumerate(made.items()):
        paths[name] = str(Path(folder) / f"source{number}.mkv")
        if graph:
            given = ["-f", "lavfi", "-i", graph]
        else:
            given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{WIDTH}x{HEIGHT}", "-r", "1", "-i", "pipe:0"]
        ffmpeg(*given, "-frames:v", str(FRAMES), "-pix_fmt", "yuv420p", "-c:v", "ffv1", paths[name],
               feed=None if pixels is None else pixels.tobytes())
    return paths


def scaled(path, chain, width, height):
    raw = ffmpeg("-i", path, "-vf", "settb=1/1000000," + chain.format(w=width, h=height), "-f", "rawvideo", "pipe:1")
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def references(frames, width, height):
    """`frames` scaled as qwen-vl-utils does, and by its neighbours."""
    import torch
    from PIL import Image
    from torchvision.transforms import InterpolationMode, functional
    from torchvision.transforms.v2 import functional as functional2

    how = {"size": [height, width], "interpolation": InterpolationMode.BICUBIC, "antialias": True}

    def back(tensor):
        return tensor.permute(0, 2, 3, 1).numpy()

    return {
        # transforms.functional makes floats of whole numbers, and rounds again: that is what qwen-vl-utils calls.
        "qwen-vl-utils": back(functional.resize(frames, **how)),
        "torchvision v2, whole numbers": back(functional2.resize(frames, **how)),
        "torchvision, floats, not rounded": back(functional.resize(frames.to(torch.float32), **how)).clip(0, 255),
        "PIL": np.stack([
            np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC))
            for frame in frames.permute(0, 2, 3, 1).numpy()
        ]),
    }


def apart(one, other):
    differences = np.abs(one.astype(np.float32) - other.astype(np.float32))
    square = float(np.mean(differences**2))
    return {
        "mean": float(differences.mean()),
        "p99.9": float(np.quantile(differences, 0.999)),
        "max": float(differences.max()),
        "psnr": float("inf") if square == 0 else float(10 * np.log10(255**2 / square)),
        "bias": float((one.astype(np.float32) - other.astype(np.float32)).mean()),
    }


def cost(chain, width, height, frames=60):
    """Processor milliseconds a frame for a chain alone: with, less without, a blank picture repeated."""
    def run(filters):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ffmpeg("-filter_threads", "1", "-f", "lavfi", "-i", f"nullsrc=s={WIDTH}x{HEIGHT}:r=25,format=yuv420p",
               "-frames:v", str(frames), *filters, "-f", "null", "-")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    least = [min(run(filters) for _ in range(3)) for filters in (["-vf", chain.format(w=width, h=height)], [])]
    return 1000 * (least[0] - least[1]) / frames


def line(name, values, more=""):
    return (f"| {name} | {values['mean']:.3f} | {values['p99.9']:.1f} | {values['max']:.0f} | {values['psnr']:.1f} "
            f"| {values['bias']:+.3f} |{more}")


HEAD = "| mean | 99.9 % | max | PSNR dB | bias |"


def whole(path):
    from torchcodec.decoders import VideoDecoder

    return VideoDecoder(path, seek_mode="exact").get_frames_in_range(0, FRAMES).data


def compare_sizes(films):
    report = []
    frames = {name: whole(path) for name, path in films.items()}
    print("## Beside the reference\n")
    print(f"| size, picture | ours, theirs {HEAD}\n| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for width, height in SIZES:
        for name, path in films.items():
            others = references(frames[name], width, height)
            for ours, chain in (("paravt", PARAVT), ("scaled in YUV", VARIANTS["no parameters"])):
                pixels = scaled(path, chain, width, height)
                for other, wanted in others.items():
                    values = apart(pixels, wanted)
                    report.append({"size": [width, height], "picture": name, "ours": ours, "to": other, **values})
                    print(f"| {width}x{height}, {name} " + line(f"{ours}, {other}", values))
    print("\n## The references among themselves, 288x160\n")
    print(f"| picture | to qwen-vl-utils {HEAD}\n| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in films:
        others = references(frames[name], 288, 160)
        for other, pixels in list(others.items())[1:]:
            print(f"| {name} " + line(other, apart(pixels, others["qwen-vl-utils"])))

    return report


def compare_variants(films, width, height, options):
    report = []
    print(f"\n## Variants, {width}x{height}, to qwen-vl-utils, all pictures\n")
    print(f"| chain {HEAD} CPU ms a frame |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    wanted = np.concatenate([references(whole(path), width, height)["qwen-vl-utils"] for path in films.values()])
    for variant, chain in VARIANTS.items():
        if options.variant and not any(part in variant for part in options.variant):
            continue
        try:
            values = apart(np.concatenate([scaled(path, chain, width, height) for path in films.values()]), wanted)
            spent = cost(chain, width, height) if options.cost else None
        except RuntimeError as problem:
            print(f"| {variant} | failed: {str(problem).splitlines()[-1][:100]} |" + " |" * 5)
            continue
        report.append({"variant": variant, "chain": chain, "cpu_ms": spent, **values})
        print(line(variant, values, f" {spent:.2f} |" if options.cost else " |"), flush=True)
    return report


# ------------------------------------------------------------------------------------------------------------- colours

# One flat colour far from grey, where the matrices differ most, as luma and two chromas.
FLAT = (100, 90, 200)
TAGS = {
    "untagged 1080p": (1080, []),
    "untagged 576p": (576, []),
    "tagged BT.709": (1080, ["-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709"]),
    "tagged BT.601": (1080, ["-colorspace", "smpte170m", "-color_primaries", "smpte170m", "-color_trc", "smpte170m"]),
    "tagged BT.709, full range": (1080, ["-colorspace", "bt709", "-color_range", "pc"]),
    "untagged, full range": (1080, ["-color_range", "pc"]),
}


def to_rgb(matrix, full):
    """FLAT by the standard's formula."""
    red, blue = {"601": (0.299, 0.114), "709": (0.2126, 0.0722)}[matrix]
    luma, cb, cr = FLAT
    y = luma / 255 if full else (luma - 16) / 219
    scale = 255 if full else 224
    pb, pr = (cb - 128) / scale, (cr - 128) / scale
    r, b = y + 2 * (1 - red) * pr, y + 2 * (1 - blue) * pb
    g = (y - red * r - blue * b) / (1 - red - blue)
    return tuple(round(255 * min(1, max(0, one))) for one in (r, g, b))


def colours(folder):
    print("\n## Colours\n")
    print(f"One flat colour, YUV {FLAT}, H.264 without loss. By the formulas:", "; ".join(
        f"BT.{matrix} {'full' if full else 'limited'} {to_rgb(matrix, full)}"
        for matrix in ("601", "709") for full in (False, True)), "\n")
    rows = {}
    for number, (name, (height, tags)) in enumerate(TAGS.items()):
        path = str(Path(folder) / f"colour{number}.mp4")
        luma, cb, cr = FLAT
        width = height * 16 // 9
        # The picture is made as planes, so that nothing converts it on the way.
        pixels = bytes([luma]) * (width * height) + bytes([cb]) * (width * height // 4) + bytes([cr]) * (width * height // 4)
        given = ["-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", f"{width}x{height}", "-r", "5"]
        given += ["-color_range", "pc"] if "pc" in tags else []
        ffmpeg(*given, "-i", "pipe:0", "-c:v", "libx264", "-qp", "0", "-preset", "ultrafast", *tags, path, feed=pixels * 5)
        rows[name] = {reader: attempt(read, path) for reader, read in COLOUR_READERS.items()}
    print("| film | " + " | ".join(COLOUR_READERS) + " |\n| --- |" + " --- |" * len(COLOUR_READERS))
    for name, found in rows.items():
        print(f"| {name} | " + " | ".join(str(found[reader]) for reader in COLOUR_READERS) + " |")
    return rows


def attempt(read, path):
    try:
        picture = np.asarray(read(path))
        return tuple(int(value) for value in picture[picture.shape[0] // 2, picture.shape[1] // 2])
    except Exception as problem:  # a reader may fail in ways of its own
        return f"failed: {type(problem).__name__}"


def by_torchcodec(path):
    from torchcodec.decoders import VideoDecoder

    return VideoDecoder(path)[0].permute(1, 2, 0).numpy()


def by_decord(path):
    import decord

    return decord.VideoReader(path)[0].asnumpy()


def by_pyav(path):
    import av

    return next(av.open(path).decode(video=0)).to_ndarray(format="rgb24")


def by_pyav_small(path):
    import av

    return next(av.open(path).decode(video=0)).reformat(width=288, height=160, format="rgb24").to_ndarray()


COLOUR_READERS = {
    "paravt": lambda path: scaled(path, PARAVT, 288, 160)[0],
    "ffmpeg, whole": lambda path: np.frombuffer(ffmpeg("-i", path, "-frames:v", "1", "-f", "rawvideo", "-pix_fmt", "rgb24",
                                                       "pipe:1"), np.uint8)[:3].reshape(1, 1, 3),
    "torchcodec": by_torchcodec,
    "decord": by_decord,
    "PyAV to_ndarray": by_pyav,
    "PyAV reformat": by_pyav_small,
}


PARTS = ("sizes", "variants", "colours")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="OUT", help="all figures")
    parser.add_argument("--variants-at", default="288x160", metavar="WxH", help="size at which variants are compared")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--variant", action="append", metavar="PART", help="only variants whose name contains this")
    parser.add_argument("--cost", action="store_true", help="also measure what each variant costs (on a quiet machine)")
    options = parser.parse_args()
    variants_at = tuple(int(side) for side in options.variants_at.split("x"))
    report = {}
    with tempfile.TemporaryDirectory(prefix="scaling-media-") as folder:
        films = sources(folder) if {"sizes", "variants"} & set(options.parts) else {}
        if "sizes" in options.parts:
            report["sizes"] = compare_sizes(films)
        if "variants" in options.parts:
            report["variants"] = compare_variants(films, *variants_at, options)
        if "colours" in options.parts:
            report["colours"] = colours(folder)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
