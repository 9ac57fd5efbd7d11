#!/usr/bin/env python3
"""Times paravt beside other readers of video, on one file, in one run: how long until a model's frames are there.

Each measurement is a process of its own, so that none warms another and peak memory is its own. Imports are not timed:
a server has done them long before. What is timed is opening, choosing, decoding, and scaling to the size of the model.
Readers take turns within each round, so that a busy moment of the machine hits all of them; medians are shown.

The frames are compared with those of a plain decoding of the film's first minute, which make_match.sh repeats, so that
a reader which gives other frames than those asked for is shown as such. That comparison is not timed.
"""

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path

FRAMES = 64
MAX_PIXELS = 50_176
MIN_PIXELS = 4 * 32 * 32
FACTOR = 32
# Starts lie between two frames, so that no reader's rounding of a whole frame number matters.
WINDOW_STARTS = (600.51, 1500.51, 2700.51, 3900.51, 4800.51)
WINDOW_FRAMES = 16
LOOP_SECONDS = 60


def model_size(width, height):
    """The size that a model with square patches of 32 takes, as qwen-vl-utils' smart_resize gives it."""
    if round(width / FACTOR) * round(height / FACTOR) * FACTOR * FACTOR <= MAX_PIXELS:
        return max(FACTOR, round(width / FACTOR) * FACTOR), max(FACTOR, round(height / FACTOR) * FACTOR)
    shrink = math.sqrt(width * height / MAX_PIXELS)
    return tuple(max(FACTOR, math.floor(side / shrink / FACTOR) * FACTOR) for side in (width, height))


def spread(count):
    import numpy as np

    return np.linspace(0, count - 1, FRAMES).round().astype(int).tolist()


def window_times(start):
    return [start + second for second in range(WINDOW_FRAMES)]


# ---------------------------------------------------------------------------------------------------------- readers
#
# A reader has `load` (imports; not timed), `open`, `overview(handle)` and `windows(handle)`; these give a list of
# pictures (height, width, 3), and may be asked again of the same handle. `asked` tells which frames a reader asks for
# where it, not we, chooses them.


class Reader:
    def load(self):
        pass

    def open(self, path):
        raise NotImplementedError

    def asked(self, case):
        return None


class PyAv(Reader):
    """PyAV, seeking to the key frame before each frame (or window), and decoding on from there."""

    def __init__(self, each):
        self.each = each

    def load(self):
        import av

        av.logging.set_level(av.logging.ERROR)
        self.av = av

    def open(self, path):
        container = self.av.open(path)
        self.stream = container.streams.video[0]
        self.stream.thread_type = "AUTO"
        self.rate = float(self.stream.average_rate)
        self.first = self.stream.start_time or 0
        # Matroska holds no count.
        self.count = self.stream.frames or round(container.duration / self.av.time_base * self.rate)
        self.size = model_size(self.stream.width, self.stream.height)
        return container

    def picture(self, frame):
        width, height = self.size
        return frame.reformat(width=width, height=height, format="rgb24", interpolation="BICUBIC").to_ndarray()

    def seek(self, container, seconds):
        container.seek(self.first + int(seconds / self.stream.time_base), stream=self.stream, backward=True)

    def shown_at(self, container, times):
        """One seek, then the frames shown at these rising times."""
        self.seek(container, times[0])
        frames, before = iter(container.decode(self.stream)), None
        frame, pictures = next(frames), []
        for wanted in times:
            while frame is not None and float((frame.pts - self.first) * self.stream.time_base) <= wanted + 1e-6:
                before, frame = frame, next(frames, None)
            pictures.append(self.picture(before))
        return pictures

    def overview(self, container):
        return [
            picture for index in spread(self.count) for picture in self.shown_at(container, [index / self.rate])
        ]

    def windows(self, container):
        pictures = []
        for start in WINDOW_STARTS:
            times = window_times(start)
            runs = [times] if self.each == "window" else [[one] for one in times]
            pictures += [picture for run in runs for picture in self.shown_at(container, run)]
        return pictures


class PyAvKey(PyAv):
    """PyAV on key frames only: the key frame before each time, whatever is really shown then."""

    def __init__(self):
        super().__init__("frame")

    def overview(self, container):
        pictures = []
        codec = self.stream.codec_context
        for index in spread(self.count):
            self.seek(container, index / self.rate)
            # One packet, then what the decoder still holds: waiting for more packets would read seconds of film.
            packet = next(packet for packet in container.demux(self.stream) if packet.is_keyframe)
            pictures.append(self.picture((codec.decode(packet) + codec.decode(None))[0]))
            codec.flush_buffers()
        return pictures


class TorchCodec(Reader):
    """torchcodec with all threads, whole frames, then torchvision's faster bicubic with antialias, on whole numbers."""

    def __init__(self, mode):
        self.mode = mode

    def load(self):
        import torch
        import torchvision.transforms.v2.functional as functional
        from torchcodec.decoders import VideoDecoder
        from torchvision.transforms import InterpolationMode

        self.torch, self.decoder, self.functional, self.bicubic = torch, VideoDecoder, functional, InterpolationMode.BICUBIC

    def open(self, path):
        handle = self.decoder(path, num_ffmpeg_threads=0, seek_mode=self.mode)
        self.size = model_size(handle.metadata.width, handle.metadata.height)
        return handle

    def pictures(self, frames):
        width, height = self.size
        small = self.functional.resize(frames, [height, width], interpolation=self.bicubic, antialias=True)
        return list(small.permute(0, 2, 3, 1))

    def overview(self, handle):
        return self.pictures(handle.get_frames_at(spread(handle.metadata.num_frames)).data)

    def windows(self, handle):
        return [
            picture
            for start in WINDOW_STARTS
            for picture in self.pictures(handle.get_frames_played_at(window_times(start)).data)
        ]


class Decord(Reader):
    """decord, which scales while it decodes."""

    def load(self):
        import decord

        decord.logging.set_level(decord.logging.ERROR)
        self.decord = decord

    def open(self, path):
        # The size must be named before decord has told the film's own.
        probe = self.decord.VideoReader(path)
        height, width, _ = probe[0].shape
        del probe
        width, height = model_size(width, height)
        return self.decord.VideoReader(path, width=width, height=height, num_threads=0)

    def overview(self, handle):
        return list(handle.get_batch(spread(len(handle))).asnumpy())

    def windows(self, handle):
        rate = handle.get_avg_fps()
        indexes = [[math.floor(at * rate) for at in window_times(start)] for start in WINDOW_STARTS]
        return [picture for window in indexes for picture in handle.get_batch(window).asnumpy()]


class Qwen(Reader):
    """qwen-vl-utils, the reference's own preparation; it opens the file anew at each call."""

    def __init__(self, backend):
        self.backend = backend

    def load(self):
        os.environ["FORCE_QWENVL_VIDEO_READER"] = self.backend
        import importlib

        from qwen_vl_utils.vision_process import fetch_video

        importlib.import_module("torchcodec.decoders" if self.backend == "torchcodec" else "decord")
        self.fetch, self.indexes = fetch_video, {}

    def open(self, path):
        return path

    def call(self, path, **more):
        video = {"video": path, "min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS, **more}
        # A patch of 16, of which 2 by 2 make a token: sides are multiples of 32.
        frames, told = self.fetch(video, image_patch_size=16, return_video_metadata=True)
        if told["video_backend"] != self.backend:
            raise RuntimeError(f"qwen-vl-utils fell back to {told['video_backend']}")
        return list(frames.permute(0, 2, 3, 1)), [int(index) for index in told["frames_indices"]]

    def overview(self, path):
        pictures, self.indexes["overview"] = self.call(path, nframes=FRAMES)
        return pictures

    def windows(self, path):
        parts = [
            self.call(path, nframes=WINDOW_FRAMES, video_start=start, video_end=start + WINDOW_FRAMES - 1)
            for start in WINDOW_STARTS
        ]
        self.indexes["windows"] = [index for _, indexes in parts for index in indexes]
        return [picture for pictures, _ in parts for picture in pictures]

    def asked(self, case):
        return self.indexes[case]


# name, reader, its cases
READERS = {
    "qwen-vl-utils (torchcodec)": (lambda: Qwen("torchcodec"), ("overview", "windows")),
    "qwen-vl-utils (decord)": (lambda: Qwen("decord"), ("overview", "windows")),
    "torchcodec": (lambda: TorchCodec("exact"), ("overview", "windows")),
    "torchcodec (approximate)": (lambda: TorchCodec("approximate"), ("overview", "windows")),
    "decord": (Decord, ("overview", "windows")),
    "PyAV (accurate)": (lambda: PyAv("frame"), ("overview", "windows")),
    "PyAV (a seek per window)": (lambda: PyAv("window"), ("windows",)),
    "PyAV (key frames)": (PyAvKey, ("overview",)),
}


# ------------------------------------------------------------------------------------------- one measurement (child)


def status(field):
    """A figure of this process in bytes: VmHWM (the most memory it had) or VmRSS (what it has now)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def read_bytes():
    """What this process has read by system calls, from the disk or the page cache."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0


def cpu_ms():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return 1000 * (usage.ru_utime + usage.ru_stime)


def measure(name, case, path, reference, again):
    reader = READERS[name][0]()
    start = time.perf_counter()
    reader.load()
    import numpy as np

    result = {"import_ms": 1000 * (time.perf_counter() - start), "after_import_bytes": status("VmRSS")}
    before_bytes, before_cpu, start = read_bytes(), cpu_ms(), time.perf_counter()
    handle = reader.open(path)
    pictures = getattr(reader, case)(handle)
    result["cold_ms"] = 1000 * (time.perf_counter() - start)
    result["cpu_ms"] = cpu_ms() - before_cpu
    result["bytes_read"] = read_bytes() - before_bytes
    result["peak_bytes"] = status("VmHWM")
    result["frames"] = len(pictures)
    if again:
        start = time.perf_counter()
        getattr(reader, case)(handle)
        result["again_ms"] = 1000 * (time.perf_counter() - start)
    if reference:
        result |= judge([np.asarray(one) for one in pictures], case, reader.asked(case), reference)
    return result


def judge(pictures, case, asked, reference):
    """Which frame of the film's repeated minute each picture is, beside the one that is shown at the asked time."""
    import numpy as np

    stored = np.load(reference)
    minute, count, rate = stored["frames"], int(stored["count"]), float(stored["rate"])
    if case == "overview":
        right = spread(count)
    else:
        right = [math.floor(at * rate) for start in WINDOW_STARTS for at in window_times(start)]
    found = []
    for picture in pictures:
        small = np.clip(np.rint(picture[::4, ::4].astype(np.float32)), 0, 255).astype(np.int16)
        found.append(int(np.abs(minute - small).mean(axis=(1, 2, 3)).argmin()))

    def off(wanted):
        apart = [(have - want) % len(minute) for have, want in zip(found, wanted)]
        return [min(one, len(minute) - one) for one in apart]

    away = off(right)
    report = {
        "size": list(pictures[0].shape[:2]),
        "not_the_frame_shown": sum(one > 0 for one in away),
        "furthest_seconds": max(away) / rate,
    }
    if asked is not None:
        # It chose other frames than we would; does it give those that it says?
        report["not_the_frame_it_names"] = sum(one > 0 for one in off(asked))
    return report


def remember(path, out):
    """The film's first minute, small, for `judge`."""
    import av
    import numpy as np

    container = av.open(path)
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    width, height = model_size(stream.width, stream.height)
    rate = float(stream.average_rate)
    frames = []
    for frame in container.decode(stream):
        if len(frames) == round(LOOP_SECONDS * rate):
            break
        picture = frame.reformat(width=width, height=height, format="rgb24", interpolation="BICUBIC").to_ndarray()
        frames.append(picture[::4, ::4].astype(np.int16))
    np.savez(out, frames=np.stack(frames), count=stream.frames or round(float(container.duration / 1e6) * rate), rate=rate)


# ------------------------------------------------------------------------------------------------------ all (parent)


def drop_page_cache(path):
    """Puts the file (as root: everything) out of the operating system's page cache; says how. The host's may stay."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        how = "drop_caches"
    except OSError:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        how = "posix_fadvise"
    try:
        left = subprocess.run(["fincore", "-nbo", "RES", path], capture_output=True, text=True, check=True).stdout
        return f"{how}, {int(left)} bytes of the file left"
    except (OSError, ValueError, subprocess.CalledProcessError):
        return how


def watch(process, peak):
    """The most memory of a process and its children together, looked at every 20 ms. Shared pages count once a process."""
    import psutil

    try:
        top = psutil.Process(process.pid)
        while process.poll() is None:
            total = 0
            for one in [top, *top.children(recursive=True)]:
                try:
                    total += one.memory_info().rss
                except psutil.Error:
                    pass
            peak[0] = max(peak[0], total)
            time.sleep(0.02)
    except psutil.Error:
        pass


def paravt(binary, path, limit):
    """paravt's own bench, in a fresh process; its memory is also watched from outside, as it has children."""
    process = subprocess.Popen(
        [binary, "bench", "media", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak = [0]
    watcher = threading.Thread(target=watch, args=(process, peak), daemon=True)
    watcher.start()
    try:
        out, complaint = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": "timed out"}
    watcher.join()
    if process.returncode != 0:
        return {"error": f"exit code {process.returncode}: {complaint.strip()[-300:]}"}
    try:
        result = json.loads(out)
        result = {name: result[name] for name in
                  ("frames", "cold_ms", "warm_ms", "windows_ms", "bytes_read", "peak_rss_bytes")}
    except (ValueError, KeyError, TypeError) as problem:
        return {"error": f"not the JSON that was expected ({problem!r}): {out.strip()[:300]}"}
    return result | {"watched_peak_bytes": peak[0]}


def other(name, case, path, reference, again, limit):
    command = [sys.executable, __file__, path, "--one", name, "--case", case]
    command += ["--reference", reference] if reference else []
    command += ["--again"] if again else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": "timed out"}
    if done.returncode != 0:
        return {"error": f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"}
    # Libraries print, too; ours is the last line.
    return json.loads(done.stdout.splitlines()[-1])


def versions(binary):
    found = {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            found["cpu"] = line.split(":", 1)[1].strip()
            break
    for package in ("qwen-vl-utils", "torchcodec", "torch", "torchvision", "decord", "av", "pillow", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    for name, command in (("ffmpeg", ["ffmpeg", "-version"]), ("paravt", [binary, "--version"] if binary else None)):
        if command:
            try:
                found[name] = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0]
            except (OSError, IndexError):
                found[name] = "does not start"
    return found


def middle(results, field):
    values = [one[field] for one in results if field in one]
    return statistics.median(values) if values else None


def table(case, rows, ours):
    """Rows of (name, results) as Markdown; `ours` are paravt's cold and warm milliseconds, or None."""
    def cell(value, digits=2):
        return "" if value is None else f"{value:.{digits}f}"

    def scaled(results, field, by):
        value = middle(results, field)
        return None if value is None else value / by

    lines = [
        f"| {case} | cold s | / paravt | CPU s | again s | / paravt | peak MB | of which imports MB | read MB | other frames than shown | furthest s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, results in rows:
        good = [one for one in results if "error" not in one]
        if not good:
            problem = results[0]["error"].replace("\n", " ").replace("|", "/")[-120:]
            lines.append(f"| {name} | failed: {problem} |" + " |" * 9)
            continue
        cold, again = middle(good, "cold_ms"), middle(good, "again_ms")
        wrong, named = middle(good, "not_the_frame_shown"), middle(good, "not_the_frame_it_names")
        frames = cell(wrong, 0) + (f" (than it names: {named:.0f})" if named is not None else "")
        if wrong is not None:
            frames += f" of {good[0]['frames']}"
        lines.append(
            f"| {name} | {cell(cold / 1000)} | {cell(cold / ours[0], 1) if ours and ours[0] else ''} "
            f"| {cell(scaled(good, 'cpu_ms', 1000))} | {cell(scaled(good, 'again_ms', 1000), 3)} "
            f"| {cell(again / ours[1], 1) if ours and ours[1] and again else ''} "
            f"| {cell(scaled(good, 'peak_bytes', 1e6), 0)} | {cell(scaled(good, 'after_import_bytes', 1e6), 0)} "
            f"| {cell(scaled(good, 'bytes_read', 1e6), 1)} | {frames} | {cell(middle(good, 'furthest_seconds'))} |"
        )
    return "\n".join(lines)


def say(text):
    print(text, file=sys.stderr, flush=True)


def compare(options):
    path = str(Path(options.file).resolve(strict=True))
    if not options.paravt:
        say("paravt: skipped, no binary given (the second argument); the tables have no ratios")
    folder = tempfile.TemporaryDirectory(prefix="compare-media-")
    reference = None
    if not options.no_check:
        reference = os.path.join(folder.name, "minute.npz")
        subprocess.run([sys.executable, __file__, path, "--remember", reference], check=True)
    names = [name for name in READERS if not options.only or any(part in name for part in options.only)]
    results = {(name, case): [] for name in names for case in READERS[name][1] if case in options.cases}
    ours, drops, told = [], set(), versions(options.paravt)

    def ready():
        if options.drop_page_cache:
            drops.add(drop_page_cache(path))

    for round_number in range(options.runs):
        say(f"round {round_number + 1} of {options.runs}, load {os.getloadavg()[0]:.1f}")
        if options.paravt:
            ready()
            ours.append(paravt(options.paravt, path, options.limit))
            say(f"  paravt: {ours[-1]}")
        for (name, case), list_of in results.items():
            ready()
            # Reading again takes as long as reading once, so the first round's will do.
            one = other(name, case, path, reference, round_number == 0 and not options.no_again, options.limit)
            list_of.append(one)
            keep(options, told, path, drops, ours, results)
            say(f"  {name}, {case}: {one.get('error') or str(round(one['cold_ms'])) + ' ms'}")

    good = [one for one in ours if "error" not in one]
    cold, warm, windows = (middle(good, field) for field in ("cold_ms", "warm_ms", "windows_ms"))
    print(f"{Path(path).name}: {os.path.getsize(path)} bytes. Median of {options.runs} rounds. "
          f"Page cache: {'; '.join(sorted(drops)) if drops else 'as it was'}.\n")
    for case, first in (("overview", (cold, warm)), ("windows", (windows, None))):
        if case not in options.cases:
            continue
        rows = [(name, list_of) for (name, of), list_of in results.items() if of == case]
        if not rows and not ours:
            continue
        if ours:
            own = [one if "error" in one else {
                "cold_ms": one["cold_ms" if case == "overview" else "windows_ms"],
                **({"again_ms": one["warm_ms"]} if case == "overview" else {}),
                "peak_bytes": max(one["peak_rss_bytes"], one["watched_peak_bytes"]),
                "bytes_read": one["bytes_read"], "frames": one["frames"],
            } for one in ours]
            rows.insert(0, ("paravt (memory and bytes: of all it did)", own))
        label = f"{FRAMES} frames over the film" if case == "overview" else f"{len(WINDOW_STARTS)} windows of {WINDOW_FRAMES} frames"
        print(table(label, rows, first if ours else None) + "\n")
    print("Versions: " + "; ".join(f"{name} {value}" for name, value in told.items()))
    keep(options, told, path, drops, ours, results)
    folder.cleanup()


def keep(options, told, path, drops, ours, results):
    """Writes every measurement so far."""
    if options.json:
        everything = {"versions": told, "file_bytes": os.path.getsize(path), "page_cache": sorted(drops), "paravt": ours,
                      "readers": [{"name": name, "case": case, "runs": runs} for (name, case), runs in results.items()]}
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", help="as make_match.sh makes it")
    parser.add_argument("paravt", nargs="?", metavar="PARAVT", help="the binary; without it only the others are timed")
    parser.add_argument("-n", "--runs", type=int, default=3, metavar="N")
    parser.add_argument("--json", metavar="OUT", help="every single measurement")
    parser.add_argument("--drop-page-cache", action="store_true", help="before each measurement")
    parser.add_argument("--only", action="append", metavar="PART", help="readers whose name contains this")
    parser.add_argument("--cases", nargs="+", default=["overview", "windows"], choices=["overview", "windows"])
    parser.add_argument("--no-again", action="store_true", help="don't time a second reading with the file kept open")
    parser.add_argument("--no-check", action="store_true", help="don't look which frames came; for other films")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for one measurement")
    for name in ("--one", "--case", "--reference", "--remember"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.remember:
        remember(options.file, options.remember)
    elif options.one:
        print(json.dumps(measure(options.one, options.case, options.file, options.reference, options.again)))
    else:
        compare(options)


if __name__ == "__main__":
    main()
