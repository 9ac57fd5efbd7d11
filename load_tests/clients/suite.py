"""What the Python clients share: one line for each thing tried, servers of their own, and how they are called.

    python CLIENT.py BASE_URL VIDEO_URL QUESTION EXPECTED

BASE_URL is a paravt that runs the bundled model. What needs another server (a script in place of weights, a queue of
one, keys) starts the binary that the environment names in PARAVT. A client exits with 1 when anything failed.
"""
import asyncio
import contextlib
import inspect
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from importlib.metadata import version

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LONGEST_DETAIL = 110
LONGEST_FAULT = 3000


class Suite:
    """Runs what is tried, one after another, and counts what failed."""

    def __init__(self, *packages):
        if len(sys.argv) < 5:
            sys.exit(f"usage: {sys.argv[0]} BASE_URL VIDEO_URL QUESTION EXPECTED")
        self.base_url, self.video, self.question, self.expected = sys.argv[1:5]
        # The rest names what to try, for whoever looks for a fault.
        self.only = sys.argv[5:]
        self.client = " + ".join(f"{package} {version(package)}" for package in packages)
        self.failed = 0
        # One loop for all: clients of a closed one complain when they are collected.
        self.loop = asyncio.Runner()

    def check(self, name):
        """A decorator: tries the function now. What it returns, if anything, is printed beside the name."""

        def tried(function):
            if self.only and not any(word in name for word in self.only):
                return function
            try:
                detail = function()
                if inspect.isawaitable(detail):
                    detail = self.loop.run(detail)
                self.say("ok", name, detail)
            except Exception as error:  # noqa: BLE001: a client may raise anything, and the rest is still to be tried
                self.failed += 1
                self.say("FAIL", name, f"{type(error).__name__}: {error}")
                if os.environ.get("VERBOSE"):
                    traceback.print_exc()
            return function

        return tried

    def say(self, result, name, detail):
        detail = " ".join(str(detail).split()) if detail is not None else ""
        longest = LONGEST_DETAIL if result == "ok" else LONGEST_FAULT
        if len(detail) > longest:
            detail = detail[:longest] + "…"
        print(f"{result:<4} {self.client} | {name}" + (f" | {detail}" if detail else ""), flush=True)

    def right(self, text):
        """Whether the text is the known right answer."""
        assert (text or "").strip().lower() == self.expected.lower(), f"{text!r} in place of {self.expected!r}"
        return text

    def part(self, **fields):
        """The video as a part of a chat message; `start`, `end`, `fps` and the like are paravt's."""
        return {"type": "video_url", "video_url": {"url": self.video}} | fields

    def messages(self, text=None, *parts):
        """A question about the video, or about these parts."""
        return [{"role": "user", "content": [*(parts or [self.part()]), {"type": "text", "text": text or self.question}]}]

    def end(self):
        self.loop.close()
        sys.exit(1 if self.failed else 0)


def said(think, calls=(), answer=""):
    """What a model writes to a question without a video: its thinking, then calls of tools, or an answer."""
    blocks = [f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls]
    return f"<think>\n{think}\n</think>\n" + "\n".join(blocks) + answer


def script(*turns, prefill_ms=0, token_ms=0):
    """A script for the scripted engine that says these turns in order."""
    main = [{"text": turn, "prefill_ms": prefill_ms, "token_ms": token_ms} for turn in turns]
    return {"main": main, "sub": [{"text": "A light is on."}], "repeat": True}


# A red pixel.
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"}}

# A tool of the client's, and what the scripted model says when it has it: a call, then an answer.
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
WEATHER_SCRIPT = script(
    said("The tool knows.", [("get_weather", {"city": "Paris"})]),
    said("It said so.", answer="It is sunny in Paris."),
)
# What it says about a video: a window, then the answer. The server has begun its turns with `<think>`.
WATCHED = script(
    "A look.\n</think>\n"
    '<tool_call>\n{"name": "crop_video", "arguments": {"video_path": "video.mp4", "start_time": 20, "end_time": 40}}\n</tool_call>',
    "I know.\n</think>\n<answer>blue</answer>",
)


@contextlib.contextmanager
def serve(played=None, **settings):
    """A paravt of its own with this script (else with the bundled model); settings by their names, `server_max_queued=0`.

    Yields the base URL.
    """
    binary = os.environ.get("PARAVT")
    assert binary, "PARAVT must name the binary"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = f"http://127.0.0.1:{port}"
    command = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--allow-dir", "model_cards/paravt-tiny"]
    with tempfile.TemporaryDirectory() as folder:
        if played is not None:
            file = pathlib.Path(folder, "script.json")
            file.write_text(json.dumps(played))
            command += ["--engine", "scripted", "--script", str(file)]
        environment = os.environ | {f"PARAVT_{name.upper()}": str(value) for name, value in settings.items()}
        with open(pathlib.Path(folder, "log"), "w+", encoding="utf-8") as log:
            server = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
            try:
                until(lambda: answers(f"{root}/ready") or server.poll() is not None, "the server is ready")
                if server.poll() is not None:
                    log.seek(0)
                    raise AssertionError(f"the server ended: {log.read()[-2000:]}")
                yield f"{root}/v1"
            finally:
                server.terminate()
                server.wait(60)


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def until(true, what, seconds=60):
    """Waits for something that will happen, and fails where it doesn't."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def gauge(base_url, name):
    """A number of the server's metrics."""
    with urllib.request.urlopen(base_url.removesuffix("/v1") + "/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def idle(base_url):
    """Waits until nothing is at work: what a client left behind was stopped."""
    busy = ("paravt_api_running", "paravt_api_queued", "paravt_engine_running", "paravt_engine_queued")
    until(lambda: not any(gauge(base_url, name) for name in busy), "the server is idle")
