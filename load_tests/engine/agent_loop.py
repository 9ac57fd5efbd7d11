#!/usr/bin/env python3
"""What a user would write without paravt: the agent loop in Python, over any OpenAI-compatible engine.

    python agent_loop.py --base-url http://127.0.0.1:8123/v1 [--limit 10] [--sequential] [--concurrency 32] [--json]
    python agent_loop.py --base-url http://127.0.0.1:8080/v1 --whole    # paravt: the server runs the loop

Asks about the thirty signal boards, with the prompts of paravt-tiny's card and the same frames as paravt takes. An episode's
windows are asked about at the same time, or with --sequential one after another; --concurrency is how many episodes run
at the same time. Decoding and JPEG are in the episode's time, as they are in paravt's. The engine must give the model's
raw text (no parser of tool calls), as `vllm serve` does. With --whole an episode is one request that holds the video, and
the same is measured of a server that runs the agent itself; its card counts then, not --card.
"""

import argparse
import asyncio
import base64
import io
import json
import re
import statistics
import time
import tomllib
from pathlib import Path

import av
import numpy as np
from openai import AsyncOpenAI

REPOSITORY = Path(__file__).resolve().parents[2]
CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.S)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S)
TURNS = 4


def frames_at(path, times):
    """The picture shown at each time (seconds), by seeking and decoding on from there."""
    pictures = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for wanted in times:
            container.seek(int(wanted / stream.time_base), stream=stream)
            shown = None
            for frame in container.decode(stream):
                if frame.time is not None and frame.time > wanted + 1e-3 and shown is not None:
                    break
                shown = frame
                if frame.time is not None and frame.time >= wanted - 1e-3:
                    break
            pictures.append(shown.to_image())
    return pictures


def facts(path):
    """Number of frames, and frames a second."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return stream.frames, float(stream.average_rate)


def spread(first, last, count):
    """`count` frame numbers from first to last, both included, evenly."""
    return [round(first + (last - first) * i / (count - 1)) for i in range(count)]


def image(picture):
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=95)
    return {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()}}


def clock(seconds):
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def calls_of(text):
    """The windows (seconds) that a turn calls for; what is malformed is left out."""
    calls = []
    for body in CALL.findall(text):
        try:
            arguments = json.loads(body)["arguments"]
            calls.append((float(arguments["start_time"]), float(arguments["end_time"])))
        except (ValueError, KeyError, TypeError):
            pass
    return calls


class Loop:
    def __init__(self, options, client, card):
        self.options, self.client, self.card = options, client, card

    async def say(self, messages, tokens):
        reply = await self.client.chat.completions.create(
            model=self.options.model, messages=messages, temperature=0, max_tokens=tokens)
        return reply.choices[0].message.content or ""

    async def summary(self, path, window, began):
        """A sub-agent's summary of a window, and from when to when it took (seconds of the episode)."""
        start, end = window
        from_s = time.perf_counter() - began
        count, fps = facts(path)
        first, last = int(np.ceil(start * fps)), min(int(end * fps), count - 1)
        frames = max(2, min(self.card["window"]["max_frames"], int((last - first + 1) / fps)) // 2 * 2)
        content = [image(picture) for picture in frames_at(path, [i / fps for i in spread(first, last, frames)])]
        prompt = self.card["prompts"]["sub_agent"].format(start=clock(start), end=clock(end))
        content.append({"type": "text", "text": prompt})
        text = await self.say([{"role": "user", "content": content}], self.card["agent"]["summary_tokens"])
        return text.strip(), (from_s, time.perf_counter() - began)

    async def whole(self, path, question):
        """The same by a server that runs the loop itself."""
        began = time.perf_counter()
        url = "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()
        content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": question}]
        reply = await self.client.chat.completions.create(
            model=self.options.model, messages=[{"role": "user", "content": content}], temperature=0,
            extra_body={"paravt": {"trace": True, "dispatch": "sequential" if self.options.sequential else "parallel"}})
        trace, text = reply.model_extra["paravt"]["trace"], reply.choices[0].message.content or ""
        windows = [(window["start"], window["end"]) for window in trace["windows"] if window["start"] is not None]
        return {"answer": text.strip(), "calls": windows, "spans": [], "text": text,
                "seconds": time.perf_counter() - began, "media_seconds": None}

    async def episode(self, path, question):
        began = time.perf_counter()
        count, fps = facts(path)
        times = [i / fps for i in spread(0, count - 1, self.card["overview"]["max_frames"])]
        content = []
        for at, picture in zip(times, frames_at(path, times)):
            content += [{"type": "text", "text": f"<{at:.1f} seconds>"}, image(picture)]
        prompts = self.card["prompts"]
        asked = prompts["question"].format(question=question, video=prompts["video_name"])
        content.append({"type": "text", "text": asked})
        media_s = time.perf_counter() - began
        messages = [{"role": "system", "content": prompts["system"]}, {"role": "user", "content": content}]
        made, spans = [], []
        for turn in range(TURNS):
            text = await self.say(messages, self.card["agent"]["turn_tokens"])
            calls = calls_of(text)[: self.card["agent"]["max_calls"]]
            if not calls or turn == TURNS - 1:
                break
            made += calls
            jobs = [self.summary(path, window, began) for window in calls]
            got = [await job for job in jobs] if self.options.sequential else await asyncio.gather(*jobs)
            spans += [span for _, span in got]
            body = "\n".join(f"[{start:.1f}s - {end:.1f}s] {said}" for (start, end), (said, _) in zip(calls, got))
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": f"<tool_response>\n{body}\n</tool_response>"})
        answer = ANSWER.search(text)
        return {"answer": (answer.group(1) if answer else text).strip(), "calls": made, "spans": spans, "text": text,
                "seconds": time.perf_counter() - began, "media_seconds": media_s}


async def run(options):
    card = tomllib.loads((options.card / "card.toml").read_text())
    boards = json.loads((options.boards / "boards.json").read_text())[: options.limit]
    if not boards:
        raise SystemExit("no boards")
    client = AsyncOpenAI(base_url=options.base_url, api_key="none", timeout=600)
    options.model = options.model or (await client.models.list()).data[0].id
    loop, gate = Loop(options, client, card), asyncio.Semaphore(options.concurrency)

    async def one(board):
        async with gate:
            ask = loop.whole if options.whole else loop.episode
            done = await ask(options.boards / board["video"], board["question"])
        return {"video": board["video"], "expected": board["answer"], **done,
                "correct": done["answer"].lower() == board["answer"].lower()}

    for board in boards[: options.warm_up]:
        await one(board)
    began = time.perf_counter()
    episodes = await asyncio.gather(*(one(board) for board in boards))
    wall_s = time.perf_counter() - began

    by_calls = {}
    for episode in episodes:
        by_calls.setdefault(len(episode["calls"]), []).append(episode["seconds"])
    correct = sum(episode["correct"] for episode in episodes)
    return {
        "model": options.model,
        "windows": "sequential" if options.sequential else "parallel",
        "concurrency": options.concurrency,
        "episodes": len(episodes),
        "correct": correct,
        "accuracy": correct / len(episodes),
        "episode_median_s": statistics.median(episode["seconds"] for episode in episodes),
        "episode_median_s_by_calls": {calls: statistics.median(times) for calls, times in sorted(by_calls.items())},
        # Where the server decodes, nobody here knows.
        "media_median_s": None if options.whole else statistics.median(episode["media_seconds"] for episode in episodes),
        "wall_s": wall_s,
        "episodes_per_s": len(episodes) / wall_s,
    }, episodes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", help="[default: the first that the server names]")
    parser.add_argument("--limit", type=int, default=30, help="how many of the boards")
    parser.add_argument("--whole", action="store_true", help="the server runs the agent: one request an episode")
    parser.add_argument("--sequential", action="store_true", help="one window after another")
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="episodes at the same time")
    parser.add_argument("--warm-up", type=int, default=1, metavar="N", help="episodes before those that count")
    parser.add_argument("--boards", type=Path, default=REPOSITORY / "src/tests/fixtures/boards", metavar="DIR")
    parser.add_argument("--card", type=Path, default=REPOSITORY / "model_cards/paravt-tiny", metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--episodes", type=Path, metavar="OUT", help="where every episode is written")
    options = parser.parse_args()
    report, episodes = asyncio.run(run(options))
    if options.episodes:
        options.episodes.write_text(json.dumps(episodes, indent=1) + "\n")
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        print(f"{report['correct']} of {report['episodes']} right, {report['windows']} windows, "
              f"{report['concurrency']} at the same time: median {report['episode_median_s']:.3f} s"
              + ("" if options.whole else f", of which media {report['media_median_s']:.3f} s")
              + f"; {report['episodes_per_s']:.2f} episodes a second")
        for calls, median in report["episode_median_s_by_calls"].items():
            print(f"  {calls} windows: {median:.3f} s")


if __name__ == "__main__":
    main()
