#!/usr/bin/env python3
"""What the server does when what it stands on dies: ffmpeg children, an upstream replica, itself.

    python3 load_tests/failures/failures.py [--paravt target/release/paravt] [--seconds 20]

Standard library only. Two paravt servers with the scripted engine play the upstream replicas, a third is in front of them.
1. ffmpeg and ffprobe children of the one in front are killed (SIGKILL) while it answers; its frame cache is off.
2. One replica is killed while it answers, and comes back.
3. The one in front gets SIGTERM while streams run.
Ends with status 1 when something is not as it must be.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VIDEO = ROOT / "model_cards" / "paravt-tiny" / "demo.mp4"
SCRIPT = ROOT / "load_tests" / "scripts" / "burst.json"
problems = []


def check(right, what):
    print(("ok      " if right else "WRONG   ") + what, flush=True)
    if not right:
        problems.append(what)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One paravt process."""

    def __init__(self, paravt, *arguments, environment=None):
        self.port = free_port()
        self.command = [paravt, "serve", "--listen", f"127.0.0.1:{self.port}", *arguments]
        self.environment = {**os.environ, "PARAVT_LOG": "error", **(environment or {})}
        self.log = tempfile.TemporaryFile()
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, env=self.environment, stdout=subprocess.DEVNULL, stderr=self.log
        )
        until(lambda: self.get("/ready")[0] == 200, f"{self.command} is ready")
        return self

    def get(self, path):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name):
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return 0.0

    def ask(self, stream=False):
        """Status, and the answer's text or the error; of a stream whether it ended as it should."""
        body = {
            "model": "paravt-tiny",
            "stream": stream,
            "messages": [{"role": "user", "content": [
                {"type": "video_url", "video_url": {"url": VIDEO.as_uri()}},
                {"type": "text", "text": "Which light is on?"},
            ]}],
            "paravt": {"trace": True},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return 0, repr(error)
        try:
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            # It was accepted, and broke off.
            return answer.status, False if stream else {"code": repr(error)}
        finally:
            connection.close()
        if stream:
            return answer.status, text.rstrip().endswith("data: [DONE]")
        value = json.loads(text)
        return answer.status, value if answer.status == 200 else value["error"]

    def kill(self, what=signal.SIGKILL):
        self.process.send_signal(what)


def until(reached, what, seconds=60):
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            sys.exit(f"never: {what}")
        time.sleep(0.05)


def children(parent):
    """ffmpeg and ffprobe processes below a process."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, rest = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            except (OSError, IndexError):
                continue
            if name in ("ffmpeg", "ffprobe") and int(rest.split()[1]) == parent:
                found.append(int(entry.name))
    return found


class Load:
    """Threads that ask without a pause."""

    def __init__(self, server, clients=6, stream=False):
        self.server, self.stream, self.stop = server, stream, threading.Event()
        self.answers = []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.stop.is_set():
            answer = self.server.ask(self.stream)
            with self.lock:
                self.answers.append(answer)

    def count(self):
        with self.lock:
            return len(self.answers)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(120)
        return self.answers


def kill_decoders(front, seconds):
    load = Load(front)
    killed, end = 0, time.monotonic() + seconds
    # For so long, and until some were there to be killed.
    while time.monotonic() < end or (killed < 5 and time.monotonic() < end + 120):
        time.sleep(random.uniform(0.02, 0.2))
        for child in random.sample(found := children(front.process.pid), min(1, len(found))):
            try:
                os.kill(child, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
    answers = load.end()
    statuses = collections.Counter(status for status, _ in answers)
    told = collections.Counter(error["code"] for status, error in answers if status not in (0, 200))
    failed = sum(
        window["status"] == "failed"
        for status, value in answers if status == 200
        for window in value["paravt"]["trace"]["windows"]
    )
    print(f"        {killed} children killed, {dict(statuses)} by status, {dict(told)} by code, {failed} windows failed")
    check(killed > 0, "children were killed")
    check(front.process.poll() is None, "the server lives")
    check(0 not in statuses, "every request was answered")
    check(set(told) <= {"decoder_killed"}, "no video is blamed: errors say that the decoder was killed")
    until(lambda: front.metric("paravt_media_processes") == 0, "no child is left")
    check(not children(front.process.pid), "no child is left")
    check(all(front.ask()[0] == 200 for _ in range(5)), "it answers as before")


def kill_replica(front, replica, seconds):
    load = Load(front)
    clients = len(load.threads)

    def answered(more):
        """Waits for so many more answers."""
        begun = load.count()
        until(lambda: load.count() >= begun + more, f"{more} more answers", seconds + 120)

    answered(clients)
    before = load.count()
    replica.kill()
    replica.process.wait()
    # Those under way, and as many that were asked after it died.
    answered(2 * clients)
    with load.lock:
        failed_then = [answer for answer in load.answers[before:] if answer[0] != 200]
        survived = len(load.answers) - before
    replica.start()
    answered(clients)
    answers = load.end()
    failed = [answer for answer in answers if answer[0] != 200]
    print(f"        {len(answers)} answers, {survived} of them while it was dead, {len(failed)} failed: "
          f"{collections.Counter(error['code'] if isinstance(error, dict) else error for _, error in failed)}")
    # What had begun to be written can't be asked again: at most what each client had under way.
    check(len(failed) <= len(load.threads), "only what had begun to be answered is lost")
    check(len(failed) == len(failed_then), "nothing is lost later")
    check(survived - len(failed) >= clients, "the other replica takes over")
    check(front.process.poll() is None, "the server lives")


def drain(front):
    load = Load(front, clients=8, stream=True)
    until(lambda: front.metric("paravt_api_running") >= 8, "eight streams run")
    before = load.count()
    front.kill(signal.SIGTERM)
    answers = load.end()
    code = front.process.wait(60)
    accepted = [answer for answer in answers[before:] if answer[0] == 200]
    print(f"        {len(accepted)} streams under way, {len(answers) - before - len(accepted)} refused, exit status {code}")
    check(accepted and all(done for _, done in accepted), "every stream that was accepted ended as it should")
    check(all(status in (503, 0) for status, _ in answers if status != 200), "what came later was told 503")
    check(code == 0, "the server ends well")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paravt", default=str(ROOT / "target" / "release" / "paravt"))
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    scripted = ["--engine", "scripted", "--script", str(SCRIPT)]
    replicas = [Server(arguments.paravt, *scripted).start() for _ in range(2)]
    upstreams = [flag for replica in replicas for flag in ("--upstream", f"http://127.0.0.1:{replica.port}/v1")]
    front = Server(
        arguments.paravt, "--engine", "remote", *upstreams, "--upstream-model", "paravt-tiny", "--card", "paravt-tiny",
        "--allow-dir", str(VIDEO.parent), environment={"PARAVT_MEDIA_CACHE_BYTES": "0"},
    ).start()
    try:
        print("ffmpeg children are killed")
        kill_decoders(front, arguments.seconds)
        print("a replica is killed and comes back")
        kill_replica(front, replicas[0], arguments.seconds)
        print("the server is told to stop")
        drain(front)
    finally:
        for server in [front, *replicas]:
            if server.process and server.process.poll() is None:
                server.kill()
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
