#!/usr/bin/env python3
"""Measures another engine as `paravt bench engine` measures paravt's: the same conversations, lengths, figures, JSON keys.

    python engines.py server --base-url http://127.0.0.1:8123/v1 --card DIR [--json]
    python engines.py transformers --model DIR --card DIR [--json]

`server` is any OpenAI-compatible server that streams; whether it ignores the end of a text where it is asked to is its
affair (vLLM does). Frames reach it as PNG in data URLs, which are made before the clock runs; reading them is in its
time. `transformers` runs in this process, in f32 on the CPU, a plain `generate` each time: one after another even where
windows or episodes are asked for at the same time, and with the whole conversation read again for a second turn.

Each measurement has frames that nobody has seen before, made before its clock runs. Times are medians of --runs.
"""

import argparse
import base64
import http.client
import io
import json
import math
import os
import sys
import threading
import time
import tomllib
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low as median

import numpy as np
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[2]
# As in src/cli/bench: windows of the bursts and of an episode, and the shares of the card's window frames they have.
BURSTS = (1, 2, 4, 8)
WINDOWS = 3
UNEQUAL = (1.0, 0.75, 0.5, 0.25, 0.875, 0.625, 0.375, 1.0)
FIRST_TOKENS, SUMMARY_TOKENS, ANSWER_TOKENS, DECODED = 96, 32, 32, 128
# The bounds of `paravt bench engine`.
FRAMES_MAX, SIDE_MAX = 512, 2048
PARTS = ("episode", "prefill", "decode", "burst", "episodes")


@dataclass
class Run:
    """One generation; times are seconds of one clock."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    began: float
    first: float
    end: float


# --------------------------------------------------------------------------------------------------------- engines
#
# An engine has a `name`, `alone` (it runs one generation at a time, whoever asks), `frame(pixels)`, which is a frame as
# its messages hold one, and `generate(messages, tokens, ignore_end)`, which many threads may call at the same time.


class Server:
    """An OpenAI-compatible server, over plain HTTP; the standard library's client leaves the cores to the server."""

    alone = False

    def __init__(self, base_url, model, limit_s):
        self.url, self.limit_s = urllib.parse.urlsplit(base_url.rstrip("/")), limit_s
        if self.url.scheme != "http":
            raise SystemExit(f"not http: {base_url}")
        self.model = model or self.get(self.url.path + "/models")["data"][0]["id"]
        try:
            self.name = f"server {self.get('/version')['version']} ({self.model})"
        except (ValueError, KeyError, http.client.HTTPException):
            self.name = f"server ({self.model})"

    def get(self, path):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=self.limit_s)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def frame(self, pixels):
        data = io.BytesIO()
        # Noise does not get smaller.
        Image.fromarray(pixels).save(data, "PNG", compress_level=0)
        return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()}}

    def generate(self, messages, tokens, ignore_end):
        # With the numbers of the tokens a chunk whose text is still empty counts as well.
        body = json.dumps({
            "model": self.model, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "return_token_ids": True, "ignore_eos": ignore_end,
        })
        # Putting megabytes of frames into a request is a client's work.
        began = time.perf_counter()
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=self.limit_s)
        try:
            connection.request("POST", self.url.path + "/chat/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise SystemExit(f"{response.status}: {response.read(2000).decode(errors='replace')}")
            text, first, usage, done = [], None, {}, False
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    done = True
                    break
                chunk = json.loads(data)
                if "error" in chunk:
                    raise SystemExit(f"the server broke off: {chunk['error']}")
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    said = choice["delta"].get("content") or ""
                    if first is None and (said or choice.get("token_ids")):
                        first = time.perf_counter()
                    text.append(said)
            end = time.perf_counter()
            if not done or "prompt_tokens" not in usage:
                raise SystemExit("the stream ended without its end or its usage")
        finally:
            connection.close()
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Run("".join(text), usage["prompt_tokens"], cached, usage["completion_tokens"], began, first or end, end)


class Transformers:
    """transformers in this process, f32 on the CPU; one generation at a time, whoever asks."""

    alone = True

    def __init__(self, directory, threads):
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        self.torch, self.lock = torch, threading.Lock()
        self.processor = transformers.AutoProcessor.from_pretrained(directory)
        self.model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
        self.name = (f"transformers {transformers.__version__}, torch {torch.__version__}, {threads} threads "
                     f"({Path(directory).resolve().name})")

        class Clock(transformers.generation.streamers.BaseStreamer):
            """Notes when the first token came; what comes before it is the prompt."""

            def __init__(self):
                self.calls, self.first = 0, None

            def put(self, value):
                self.calls += 1
                if self.calls == 2:
                    self.first = time.perf_counter()

            def end(self):
                pass

        self.clock = Clock

    def frame(self, pixels):
        return {"type": "image", "image": Image.fromarray(pixels)}

    def generate(self, messages, tokens, ignore_end):
        began = time.perf_counter()
        with self.lock, self.torch.inference_mode():
            images = [part["image"] for message in messages if not isinstance(message["content"], str)
                      for part in message["content"] if part["type"] == "image"]
            prompt = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            inputs = self.processor(text=[prompt], images=images, return_tensors="pt")
            length, clock = inputs["input_ids"].shape[1], self.clock()
            least = {"min_new_tokens": tokens} if ignore_end else {}
            out = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False, streamer=clock, **least)
            written = out[0, length:]
            text = self.processor.tokenizer.decode(written, skip_special_tokens=True)
        end = time.perf_counter()
        return Run(text, length, 0, len(written), began, clock.first or end, end)


# -------------------------------------------------------------------------------------------------- conversations


def side_of(card, asked):
    """Side of a square frame: as large as the card allows, or what was asked for; whole factors of the card, at least one."""
    factor = max(card["pixels"]["factor"], 1)
    side = math.isqrt(card["pixels"]["max_pixels"]) if asked is None else asked
    return max(side // factor * factor, factor)


class Workload:
    """Conversations of noise, of the sizes that a card's episodes have."""

    def __init__(self, card, options, frame):
        self.prompts, self.side = card["prompts"], side_of(card, options.frame_side)
        self.frames = options.overview_frames or card["overview"]["max_frames"]
        self.window_frames = options.window_frames or card["window"]["max_frames"]
        # Halves go up, as in Rust.
        self.windows = [max(math.floor(self.window_frames * share + 0.5), 1) for share in UNEQUAL]
        # Not seeded: a server remembers what it saw in an earlier measurement.
        self.random, self.encode = np.random.default_rng(), frame

    def frame(self):
        return self.encode(self.random.integers(0, 256, (self.side, self.side, 3), dtype=np.uint8))

    def opening(self):
        content = []
        for frame in range(self.frames):
            content += [{"type": "text", "text": f"<{20 * frame:.1f} seconds>"}, self.frame()]
        content.append({"type": "text", "text": "What happens, and when?"})
        # Some templates take only one kind of content in a conversation.
        return [{"role": "system", "content": [{"type": "text", "text": self.prompts["system"]}]},
                {"role": "user", "content": content}]

    def window(self, window):
        start = 20 * window
        clock = {name: f"{at // 60:02d}:{at % 60:02d}" for name, at in (("start", start), ("end", start + 16))}
        told = self.prompts["sub_agent"]
        for name, words in (clock | {"question": "What happens?"}).items():
            told = told.replace("{" + name + "}", words)
        return [{"role": "user", "content": [self.frame() for _ in range(self.windows[window])] + [{"type": "text", "text": told}]}]

    @staticmethod
    def continued(messages, written, summaries):
        lines = "\n".join(f"[{20 * at}.0s - {20 * at + 16}.0s] {said}" for at, said in enumerate(summaries))
        turns = (("assistant", written), ("user", f"<tool_response>\n{lines}\n</tool_response>"))
        return messages + [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]


# --------------------------------------------------------------------------------------------------- measurements


class Bench:
    def __init__(self, engine, workload):
        self.engine, self.workload = engine, workload

    def together(self, conversations):
        with ThreadPoolExecutor(len(conversations)) as pool:
            return list(pool.map(lambda messages: self.engine.generate(messages, SUMMARY_TOKENS, True), conversations))

    def conversations(self, windows):
        return [self.workload.window(window) for window in range(windows)]

    def episode(self, prepared=None):
        """The first and the second turn."""
        opening, windows = prepared or self.prepared()
        # A main turn ends by itself: what comes after the end of a text is not what a second turn goes on from.
        first = self.engine.generate(opening, FIRST_TOKENS, False)
        summaries = [run.text for run in self.together(windows)]
        messages = self.workload.continued(opening, first.text, summaries)
        return first, self.engine.generate(messages, ANSWER_TOKENS, False)

    def prepared(self):
        return self.workload.opening(), self.conversations(WINDOWS)

    def episodes(self, runs):
        # Main turns end by themselves: how long they were says whether two engines' episodes can be compared.
        report = {"episode_ms": [], "ttft_first_ms": [], "ttft_second_ms": [], "first_tokens": [], "answer_tokens": []}
        for _ in range(runs):
            first, second = self.episode()
            report["episode_ms"].append(1e3 * (second.end - first.began))
            report["ttft_first_ms"].append(1e3 * (first.first - first.began))
            report["ttft_second_ms"].append(1e3 * (second.first - second.began))
            report["first_tokens"].append(first.completion_tokens)
            report["answer_tokens"].append(second.completion_tokens)
        return {key: round(median(values), 2) for key, values in report.items()}

    def prefill(self, runs):
        rates = []
        for _ in range(runs):
            run = self.engine.generate(self.workload.opening(), 1, False)
            rates.append((run.prompt_tokens - run.cached_tokens) / (run.end - run.began))
        return {"prefill_tokens_per_s": round(median(rates), 2), "prompt_tokens": run.prompt_tokens}

    def decode(self, runs):
        rates = []
        for _ in range(runs):
            run = self.engine.generate(self.workload.opening(), DECODED, True)
            rates.append((run.completion_tokens - 1) / (run.end - run.first))
        # Neither guesses tokens ahead, unless a server was told to.
        rate = round(median(rates), 2)
        return {"decode_tokens_per_s": rate, "decode_tokens_per_s_plain": rate}

    def burst(self, runs):
        report, summary_tokens = [], []
        for k in BURSTS:
            parallel, sequential, ratio, from_first = [], [], [], []
            for _ in range(runs):
                together = self.together(self.conversations(k))
                end, firsts = max(run.end for run in together), [run.first for run in together]
                parallel.append(1e3 * (end - min(run.began for run in together)))
                summary_tokens = [run.completion_tokens for run in together]
                alone = [self.engine.generate(messages, SUMMARY_TOKENS, True) for messages in self.conversations(k)]
                sequential.append(1e3 * sum(run.end - run.began for run in alone))
                written = sum(run.end - run.first for run in alone)
                ratio.append((end - max(firsts)) / written)
                from_first.append((end - min(firsts)) / written)
            # Where one waits for the other, only the last one writes after the last first token: a small ratio that
            # means nothing. The other one counts from the first of them, with what is read meanwhile.
            report.append({"k": k, "parallel_ms": round(median(parallel), 2),
                           "sequential_ms": round(median(sequential), 2),
                           "decode_ratio": None if self.engine.alone else round(median(ratio), 3),
                           "decode_ratio_from_first": round(median(from_first), 3)})
        return {"burst": report, "summary_tokens": summary_tokens}

    def throughput(self, episodes):
        prepared = [self.prepared() for _ in range(episodes)]
        began = time.perf_counter()
        with ThreadPoolExecutor(episodes) as pool:
            list(pool.map(self.episode, prepared))
        return {"episodes_per_s": round(episodes / (time.perf_counter() - began), 4)}

    def all(self, options):
        report = {"engine": self.engine.name, "overview_frames": self.workload.frames,
                  "window_frames": self.workload.window_frames, "frame_side": self.workload.side}
        steps = {"episode": lambda: self.episodes(options.runs), "prefill": lambda: self.prefill(options.runs),
                 "decode": lambda: self.decode(options.runs), "burst": lambda: self.burst(options.runs),
                 "episodes": lambda: self.throughput(options.episodes)}
        # Whatever is done once is done here.
        self.episode()
        for part in options.parts:
            began = time.perf_counter()
            found = steps[part]()
            print(f"{part}: {time.perf_counter() - began:.1f} s, load {os.getloadavg()[0]:.1f}: {json.dumps(found)}",
                  file=sys.stderr, flush=True)
            report |= found
        return report


def told(report):
    lines = [f"{key.ljust(22)}{value}" for key, value in report.items() if key != "burst"]
    lines += [f"burst {burst['k']}".ljust(22) + f"{burst['parallel_ms']} ms parallel, {burst['sequential_ms']} ms one after "
              f"another, writing alone {burst['decode_ratio']}, "
              f"from the first text {burst['decode_ratio_from_first']}" for burst in report.get("burst", ())]
    return "\n".join(lines)


def bounded(most):
    """A whole number from 1 to `most`."""

    def parsed(text):
        value = int(text)
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not from 1 to {most}")
        return value

    return parsed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    server = kinds.add_parser("server", help="an OpenAI-compatible server")
    server.add_argument("--base-url", required=True)
    server.add_argument("--model", help="[default: the first that the server names]")
    server.add_argument("--limit", type=float, default=900, metavar="SECONDS", help="without a byte")
    local = kinds.add_parser("transformers", help="in this process, on the CPU")
    local.add_argument("--model", required=True, metavar="DIR")
    local.add_argument("--threads", type=int, default=os.cpu_count())
    for kind in (server, local):
        kind.add_argument("--card", type=Path, default=REPOSITORY / "model_cards/paravt-tiny", metavar="DIR",
                          help="whose prompts, frames and pixels count")
        kind.add_argument("--overview-frames", type=bounded(FRAMES_MAX), metavar="N", help="[default: as the card says]")
        kind.add_argument("--window-frames", type=bounded(FRAMES_MAX), metavar="N",
                          help="of the largest window [default: as the card says]")
        kind.add_argument("--frame-side", type=bounded(SIDE_MAX), metavar="PX",
                          help="down to a multiple of the card's factor [default: as large as the card allows]")
        kind.add_argument("--runs", type=int, default=3)
        kind.add_argument("--episodes", type=int, default=32, help="at the same time")
        kind.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
        kind.add_argument("--json", action="store_true", help="print a JSON object")
    options = parser.parse_args()
    card = tomllib.loads((options.card / "card.toml").read_text())
    if options.kind == "server":
        engine = Server(options.base_url, options.model, options.limit)
    else:
        engine = Transformers(options.model, options.threads)
    report = Bench(engine, Workload(card, options, engine.frame)).all(options)
    print(json.dumps(report, indent=1) if options.json else told(report))


if __name__ == "__main__":
    main()
