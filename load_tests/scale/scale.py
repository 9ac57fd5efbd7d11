#!/usr/bin/env python3
"""Several paravt servers behind HAProxy, in front of several replicas of a model: what a killed, silent or slow one costs.

    python3 load_tests/scale/scale.py [--paravt target/release/paravt] [--seconds 8] [--quick] [--loopback]

Standard library only; needs haproxy and iproute2. As root on Linux each server gets a network namespace of its own, so that a whole
machine can fall silent. Where that is forbidden all run on loopback addresses, and what needs a network to cut is left out.
README.md beside this says what is shown. Ends with status 1 when something is not as it must be.
"""

import argparse
import collections
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
BALANCER = ROOT / "docker" / "haproxy" / "haproxy.cfg"
FRONTS = REPLICAS = 3
# Of 20 seconds, each in a colour of its own.
VIDEOS = 9
# Of these, what is asked about where load matters: a front end that starts anew has to decode them all.
FEW = 3
videos = []
# Of namespaces; the process that made them follows.
PREFIX = "pvscale"
problems = []


def check(right, what):
    print(("ok      " if right else "WRONG   ") + what, flush=True)
    if not right:
        problems.append(what)


def note(what):
    print("        " + what, flush=True)


def need(tool, how):
    """As lib/need.sh: what is missing is an error, but where SKIP names it."""
    if tool in os.environ.get("SKIP", "").split():
        print(f"scale: SKIPPED, SKIP names {tool}")
        sys.exit(0)
    if not shutil.which(tool):
        sys.exit(f"scale: {tool} is missing: {how}. To leave this part out: SKIP={tool}")


def until(reached, what, seconds=60):
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError(f"never: {what}")
        time.sleep(0.02)


def ip(*arguments, quiet=False):
    if quiet and not shutil.which("ip"):
        return ""
    done = subprocess.run(["ip", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode and not quiet:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


# Where things are


class Place:
    """An address, and the namespace it is in."""

    def __init__(self, name, address, port, namespace=None, mac=None):
        self.name, self.address, self.port, self.namespace, self.mac = name, address, port, namespace, mac

    def command(self, *command):
        return ["ip", "netns", "exec", self.namespace, *command] if self.namespace else list(command)

    @property
    def url(self):
        return f"http://{self.address}:{self.port}"


class Loopback:
    """Processes alone."""

    cuts = False

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("0.0.0.0", 0))
            port = probe.getsockname()[1]
        self.balancer = Place("balancer", "127.77.0.2", port)
        self.fronts = [Place(f"front-{n + 1}", f"127.77.1.{n + 1}", port) for n in range(FRONTS)]
        self.replicas = [Place(f"replica-{n + 1}", f"127.77.2.{n + 1}", port) for n in range(REPLICAS)]

    def enter(self):
        pass

    def remove(self):
        pass


class Namespaces:
    """One namespace each, on a bridge that is in one of its own: nothing of it is in the machine's own network."""

    cuts = True

    def __init__(self):
        self.prefix = f"{PREFIX}{os.getpid()}-"
        self.hub = self.prefix + "hub"
        self.home = None

        def place(name, port, last):
            return Place(name, f"10.203.77.{last}", port, self.prefix + name, f"02:00:0a:cb:4d:{last:02x}")

        self.balancer = place("balancer", 8080, 2)
        self.fronts = [place(f"front-{n + 1}", 8080, 11 + n) for n in range(FRONTS)]
        self.replicas = [place(f"replica-{n + 1}", 8000, 21 + n) for n in range(REPLICAS)]
        self.places = [self.balancer, *self.fronts, *self.replicas]

    def build(self):
        for name in [self.hub, *(place.namespace for place in self.places)]:
            ip("netns", "add", name)
        ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.hub, "link", "set", "bridge", "up")
        for place in self.places:
            ip("link", "add", place.name, "netns", self.hub, "type", "veth",
               "peer", "name", "eth0", "netns", place.namespace, "address", place.mac)
            ip("-n", self.hub, "link", "set", place.name, "master", "bridge", "up")
            ip("-n", place.namespace, "address", "add", f"{place.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", place.namespace, "link", "set", device, "up")
        # Nobody asks who has an address: where a machine is gone the system would answer "no route" after three seconds, and a router between
        # would not.
        for place in self.places:
            for other in self.places:
                if other is not place:
                    ip("-n", place.namespace, "neighbour", "replace", other.address, "lladdr", other.mac, "dev", "eth0", "nud", "permanent")

    def enter(self):
        """This process goes to where the balancer is, threads that it starts later too."""
        self.home = os.open("/proc/self/ns/net", os.O_RDONLY)
        with open(f"/run/netns/{self.balancer.namespace}", "rb") as namespace:
            setns(namespace.fileno())

    def cut(self, place):
        """All that is sent to it and by it vanishes from now on."""
        ip("-n", self.hub, "link", "set", place.name, "down")

    def mend(self, place):
        ip("-n", self.hub, "link", "set", place.name, "up")

    def remove(self):
        if self.home is not None:
            with contextlib.suppress(OSError):
                setns(self.home)
        for name in [self.hub, *(place.namespace for place in self.places)]:
            remove_namespace(name)


def setns(descriptor):
    CLONE_NEWNET = 0x40000000
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def namespaces():
    """Ours, of any run."""
    return [line.split()[0] for line in ip("netns", "list", quiet=True).splitlines() if line.startswith(PREFIX)]


def remove_namespace(name):
    for pid in ip("netns", "pids", name, quiet=True).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    ip("netns", "delete", name, quiet=True)


def remove_leftovers():
    """Of runs that were broken off."""
    def dead(name):
        owner = re.match(PREFIX + r"(\d+)-", name)
        return owner and not pathlib.Path("/proc", owner[1]).exists()

    names = [name for name in namespaces() if dead(name)]
    folders = [path for path in pathlib.Path(tempfile.gettempdir()).glob(PREFIX + "*") if dead(path.name)]
    for name in names:
        remove_namespace(name)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    if names or folders:
        note(f"removed what an earlier run left: {len(names)} namespaces, {len(folders)} folders")


def network(loopback):
    """Namespaces, or loopback where there can be none."""
    why = "as told"
    remove_leftovers()
    if not loopback:
        need("ip", "install iproute2 (apt-get install iproute2)")
        lab = Namespaces()
        try:
            lab.build()
            lab.enter()
            return lab
        except (RuntimeError, OSError) as error:
            lab.remove()
            why = str(error)
    print(f"""
        ******************************************************************************
        NO NETWORK NAMESPACES: {why}
        All run on loopback addresses. Left out: machines that fall silent.
        ******************************************************************************
""", flush=True)
    return Loopback()


# What runs


def die_with_us():
    """The child is killed when this process is gone, however it went. Children are started by the main thread alone."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A program at a place."""

    all = []

    def __init__(self, place, log, command, environment=None):
        self.place, self.log, self.process = place, log, None
        self.command, self.environment = command, {**os.environ, **(environment or {})}
        Process.all.append(self)

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.place.command(*self.command), cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, preexec_fn=die_with_us,
            )
        until(self.ready, f"{self.place.name} is ready: {' '.join(map(str, self.command))}")
        return self

    def ready(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.place.name} ended: {pathlib.Path(self.log).read_text()[-2000:]}")
        return self.get("/ready")[0] == 200

    def get(self, path, timeout=5):
        return call(self.place, "GET", path, timeout=timeout)

    def metrics(self):
        found = {}
        for line in self.get("/metrics")[1].decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def metric(self, name):
        return self.metrics().get(name, 0.0)

    def questions(self):
        """Chat completions it has answered."""
        name = 'paravt_api_requests_total{route="/v1/chat/completions",status="200"}'
        return self.metric(name)

    def stop(self, what=signal.SIGKILL, seconds=60):
        if self.process and self.process.poll() is None:
            self.process.send_signal(what)
            self.process.wait(seconds)
        return self.process and self.process.returncode


def call(place, method, path, body=None, headers=None, timeout=30):
    connection = http.client.HTTPConnection(place.address, place.port, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


Answer = collections.namedtuple("Answer", "status value begun complete stream seconds")


def part_of(path):
    return {"type": "video_url", "video_url": {"url": path.as_uri()}}


def ask(place, part=None, question="What is shown?", stream=False, max_tokens=None, timeout=180, **paravt):
    """Asks about a video. `begun`: a byte of the answer came. `complete`: all of it did."""
    body = {
        "model": "paravt-tiny", "stream": stream, "paravt": paravt,
        "messages": [{"role": "user", "content": [part or part_of(videos[0]), {"type": "text", "text": question}]}],
    }
    if max_tokens:
        body["max_tokens"] = max_tokens
    connection = http.client.HTTPConnection(place.address, place.port, timeout=timeout)
    begin = time.monotonic()

    def answer(status, value, begun, complete):
        return Answer(status, value, begun, complete, stream, time.monotonic() - begin)

    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return answer(0, repr(error), False, False)
    try:
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return answer(response.status, repr(error), response.status == 200, False)
    finally:
        connection.close()
    if stream and response.status == 200:
        return answer(200, text[-300:], True, text.rstrip().endswith("data: [DONE]"))
    value = json.loads(text) if text.startswith("{") else text
    return answer(response.status, value, response.status == 200, response.status == 200)


def make_videos(folder):
    """By one ffmpeg, which may take a second to start."""
    folder.mkdir()
    paths = [folder / f"{number}.mp4" for number in range(VIDEOS)]
    inputs = [word for number in range(VIDEOS)
              for word in ("-f", "lavfi", "-i", f"testsrc2=size=128x128:rate=4:duration=20,hue=h={number * 360 // VIDEOS}")]
    outputs = [word for number, path in enumerate(paths) for word in ("-map", str(number), "-pix_fmt", "yuv420p", str(path))]
    subprocess.run(["ffmpeg", "-v", "error", "-nostdin", *inputs, *outputs], check=True, stdin=subprocess.DEVNULL)
    return paths


class Load:
    """Clients that ask without a pause, or once, about several videos. Every other streams, where `streams`."""

    def __init__(self, place, clients, streams=False, once=False, part=None, **paravt):
        self.place, self.streams, self.once, self.part, self.paravt = place, streams, once, part, paravt
        self.lock, self.over = threading.Lock(), threading.Event()
        self.answers = [[] for _ in range(clients)]
        self.threads = [threading.Thread(target=self.run, args=(n,), daemon=True) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        while not self.over.is_set():
            part = self.part or part_of(videos[number % FEW])
            answer = ask(self.place, part, stream=self.streams and number % 2 == 1, **self.paravt)
            with self.lock:
                self.answers[number].append(answer)
            if self.once:
                return

    def now(self):
        with self.lock:
            return [list(answers) for answers in self.answers]

    def rounds(self, count, seconds=120):
        """Waits until each client has so many more answers: what was under way is over then."""
        before = [len(answers) for answers in self.now()]
        until(lambda: all(len(answers) >= had + count for had, answers in zip(before, self.now())),
              f"each client has {count} more answers", seconds)

    def end(self):
        """All answers, when the last question is answered."""
        self.over.set()
        for thread in self.threads:
            thread.join(180)
        return [answer for answers in self.now() for answer in answers]


def tell(answers):
    """Says what became of them; gives those that were lost before they began, and those that broke off."""
    lost = [answer for answer in answers if not answer.begun]
    broken = [answer for answer in answers if answer.begun and not answer.complete]
    whole = sum(not answer.stream for answer in answers)
    slowest = max((answer.seconds for answer in answers), default=0)
    note(f"{whole} whole answers and {len(answers) - whole} streams, {len(lost)} lost, {len(broken)} broke off; the slowest "
         f"took {slowest:.1f} s")
    for text, count in collections.Counter(f"{answer.status} {str(answer.value)[:220]}" for answer in lost).most_common(3):
        note(f"  {count} times {text}")
    return lost, broken


class Scene:
    """Replicas, front ends and the balancer, all new."""

    def __init__(self, lab, paravt, work, engine, scripts=()):
        self.lab, self.work = lab, work
        self.fronts, self.replicas = [], []
        environment = {"PARAVT_LOG": "warn", "SCALE_WORK": str(work), "PARAVT_SERVER_ALLOW_ANONYMOUS": "true"}
        for number, place in enumerate(lab.replicas):
            arguments = ["--engine", engine]
            if scripts:
                path = work / f"{place.name}.json"
                path.write_text(json.dumps(scripts[number % len(scripts)]))
                arguments += ["--script", str(path)]
            self.replicas.append(self.serve(paravt, place, arguments, environment))
        upstreams = [flag for place in lab.replicas for flag in ("--upstream", place.url + "/v1")]
        arguments = ["--engine", "remote", *upstreams, "--upstream-model", "paravt-tiny", "--card", "paravt-tiny",
                     "--allow-dir", str(videos[0].parent)]
        environment = {**environment, "PARAVT_FILES_DIRECTORY": str(work / "files")}
        for place in lab.fronts:
            self.fronts.append(self.serve(paravt, place, arguments, environment))
        config = work / "haproxy.cfg"
        config.write_text(balancer_config(lab, work))
        self.balancer = Process(lab.balancer, work / "balancer.log", ["haproxy", "-f", str(config)]).start()
        until(lambda: self.servers_up() == FRONTS, "the balancer sees all front ends")

    def serve(self, paravt, place, arguments, environment):
        command = [paravt, "serve", "--listen", f"{place.address}:{place.port}", *arguments]
        return Process(place, self.work / f"{place.name}.log", command, environment).start()

    def ask(self, *arguments, **options):
        return ask(self.lab.balancer, *arguments, **options)

    def load(self, clients, **options):
        return Load(self.lab.balancer, clients, **options)

    def servers_up(self):
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self.work / "admin.sock"))
            admin.sendall(b"show stat\n")
            rows = b"".join(iter(lambda: admin.recv(65536), b"")).decode().splitlines()
        names = rows[0].lstrip("# ").split(",")
        rows = [dict(zip(names, row.split(","))) for row in rows[1:] if row]
        return sum(row["pxname"] == "paravt" and row["svname"].startswith("front") and row["status"] == "UP" for row in rows)

    def warm(self):
        """Each front end decodes each video once."""
        for answer in [answer for load in [Load(front.place, FEW, once=True) for front in self.fronts] for answer in load.end()]:
            if answer.status != 200:
                raise RuntimeError(str(answer))

    def busiest(self, what):
        """The replica with most to do, once that is at least two requests; and how many."""
        found = []

        def reached():
            found[:] = max(((replica.metric("paravt_engine_running"), number) for number, replica in enumerate(self.replicas)))
            return found[0] >= 2

        until(reached, what)
        return self.replicas[found[1]], int(found[0])

    def is_used(self, replica):
        """Asks through the balancer until this replica answers."""
        before = replica.questions()

        def used():
            self.ask()
            return replica.questions() > before

        until(used, f"{replica.place.name} is used again", 60)

    def left(self):
        """What is under way, here and there."""
        names = ("paravt_api_running", "paravt_api_queued", "paravt_engine_running", "paravt_engine_queued", "paravt_media_processes")
        found = {}
        for server in [*self.fronts, *self.replicas]:
            metrics = server.metrics()
            outstanding = sum(value for name, value in metrics.items() if name.startswith("paravt_engine_upstream_outstanding"))
            count = sum(metrics.get(name, 0) for name in names) + outstanding
            if "paravt_api_running" not in metrics or count:
                found[server.place.name] = count
        return found

    def end(self):
        """Nothing may be left when nobody asks any more."""
        with contextlib.suppress(TimeoutError):
            until(lambda: not self.left(), "nothing is left", 60)
        left = self.left()
        check(not left, f"nothing is running, queued or decoding on any server{f': {left}' if left else ''}")
        for process in [self.balancer, *self.fronts, *self.replicas]:
            process.stop()
            Process.all.remove(process)


def balancer_config(lab, work):
    """The documented file, with our addresses in it."""
    text = BALANCER.read_text()

    def put(pattern, replacement, count=1):
        nonlocal text
        text, found = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if found != count:
            raise RuntimeError(f"{BALANCER}: {pattern} is there {found} times, not {count}")

    put(r"^    bind :8080$", f"    bind {lab.balancer.address}:{lab.balancer.port}")
    put(r"/run/haproxy/admin\.sock mode", f"{work}/admin.sock mode")
    for place in lab.fronts:
        put(rf"^    server {place.name} \S+$", f"    server {place.name} {place.address}:{place.port}")
    if os.geteuid() != 0:
        put(r"^    (user|group) haproxy\n", "", 2)
    return text


# What they say


def calls(*windows):
    call = '<tool_call>\n{"name": "crop_video", "arguments": {"video_path": "video.mp4", "start_time": %s, "end_time": %s}}\n</tool_call>'
    return "I look closer.\n</think>\n" + "\n".join(call % window for window in windows)


def script(prefill_ms, token_ms=0, last_ms=None, answer="blue"):
    """An episode of three windows. A replica is asked one completion at a time: a window's is the first, too."""
    last_ms = prefill_ms if last_ms is None else last_ms
    return {"main": [
        {"text": calls((0, 4), (5, 9), (10, 14)), "prefill_ms": prefill_ms, "token_ms": token_ms},
        {"text": f"It is there.\n</think>\n<answer>{answer}</answer>", "prefill_ms": last_ms, "token_ms": token_ms},
    ]}


# What is shown


def windows_of(answers):
    """How their windows went."""
    return collections.Counter(window["status"] for answer in answers if answer.status == 200
                               for window in answer.value["paravt"]["trace"]["windows"])


def prefix_hits(scene, native, quick):
    """Questions about the same video find the replica that has read it, whichever front end they come through."""
    asked, questions = range(6 if quick else VIDEOS), 3 if quick else 4
    # Each replica has read the system prompt, which is the same for all videos.
    for replica in scene.replicas:
        body = json.dumps({"model": "paravt-tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]})
        call(replica.place, "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    fronts = [front.questions() for front in scene.fronts]
    homes, seen, cached = collections.defaultdict(collections.Counter), [], collections.defaultdict(list)
    # By turns, so that a video's questions are never one after the other.
    for number in range(questions):
        for video in asked:
            before = [replica.questions() for replica in scene.replicas]
            answer = scene.ask(part_of(videos[video]), f"Question {number}: what is shown?", agent=False, max_tokens=8)
            seen.append(answer.status)
            for index, replica in enumerate(scene.replicas):
                homes[video][index] += replica.questions() - before[index]
            if answer.status == 200:
                usage = answer.value["usage"]["paravt"]["main"]
                cached[video].append((usage["cached_tokens"], usage["prompt_tokens"]))
            else:
                note(str(answer))
    check(set(seen) == {200}, f"{len(seen)} questions about {len(asked)} videos are answered")
    used = [front.questions() - before for front, before in zip(scene.fronts, fronts)]
    check(min(used) > 0, f"all front ends were asked: {[int(count) for count in used]}")
    spread = sum((homes[video] for video in asked), collections.Counter())
    note(f"requests by replica: {[int(spread[index]) for index in range(REPLICAS)]}")
    possible = len(asked) * (questions - 1)
    same = sum(max(homes[video].values()) - 1 for video in asked)
    check(same >= 0.8 * possible, f"follow-up questions reach their video's replica: {same:.0f} of {possible}")
    if native:
        # More than a first question finds: the frames.
        first = max(counts[0][0] for counts in cached.values())
        hits = sum(tokens > first for counts in cached.values() for tokens, _ in counts[1:])
        read = sum(total for counts in cached.values() for _, total in counts[1:])
        reused = sum(tokens for counts in cached.values() for tokens, _ in counts[1:])
        note(f"of a first question up to {first} prompt tokens are cached; of follow-up questions {reused} of {read} in all "
             f"({reused / max(read, 1):.0%})")
        check(hits >= 0.8 * possible, f"follow-up questions find their video's frames cached: {hits} of {possible}")


def replica_dies(scene, quick):
    """What a replica had not begun to write is written by another, whichever step of the episode it was."""
    scene.warm()
    for step in ["first turn"] if quick else ["first turn", "windows"]:
        done = sum(replica.questions() for replica in scene.replicas)
        load = scene.load(9, once=True, trace=True)
        if step == "windows":
            until(lambda: sum(replica.questions() for replica in scene.replicas) >= done + 9, "the first turns are over")
        victim, under_way = scene.busiest(f"the {step} runs")
        victim.stop()
        answers = load.end()
        lost, _ = tell(answers)
        check(not lost, f"killed in the {step} with {under_way} requests: every question is answered")
        windows = windows_of(answers)
        check(set(windows) == {"ok"}, f"every window was watched: {dict(windows)}")
        victim.start()
        scene.is_used(victim)
        check(True, "the replica is used again when it is back")


def replica_dies_writing(scene, seconds):
    """Killed at any moment, under load. What it was writing of a main turn another goes on with; what of a window, is told as failed."""
    scene.warm()
    load = scene.load(9, trace=True)
    load.rounds(1)
    end, kills = time.monotonic() + seconds, 0
    while time.monotonic() < end or kills < 2:
        victim, _ = scene.busiest("one has something to do")
        victim.stop()
        kills += 1
        load.rounds(1)
        victim.start()
        load.rounds(1)
    answers = load.end()
    lost, _ = tell(answers)
    note(f"windows: {dict(windows_of(answers))}")
    check(not lost, f"{kills} replicas killed while they wrote: every question is answered")


def replica_falls_silent(scene):
    """Its machine is cut off: what is sent to it vanishes, and nobody says so."""
    scene.warm()
    load = scene.load(9)
    load.rounds(1)
    victim, under_way = scene.busiest("it has something to do")
    cut_and_wait(scene, victim, load)
    lost, _ = tell(load.end())
    check(not lost, f"cut off with {under_way} requests: every question is answered")
    scene.is_used(victim)
    check(True, "the replica is used again when it is back")


def cut_and_wait(scene, victim, load):
    """Its machine is cut off until all that was under way is over."""
    scene.lab.cut(victim.place)
    began = time.monotonic()
    load.rounds(2, 400)
    note(f"all that was under way is over after {time.monotonic() - began:.1f} s")
    scene.lab.mend(victim.place)


def front_dies(scene):
    """What had no byte of an answer yet is asked again of another front end."""
    scene.warm()
    load = scene.load(12, streams=True)
    load.rounds(1)

    def busy(front):
        until(lambda: front.metric("paravt_api_running") >= 3, "it has something to do")
        return int(front.metric("paravt_api_running"))

    def answers_since(before):
        """Those lost before they began, and those that broke off, since so many were there."""
        return tell([answer for had, answers in zip(before, load.now()) for answer in answers[had:]])

    def check_what_is_lost(before, what):
        lost, broken = answers_since(before)
        check(not lost, f"front end {what}: all that had not begun are answered by another")
        # Every other client has one under way.
        only_streams = all(answer.stream for answer in broken) and len(broken) <= len(load.threads) / 2
        check(only_streams, "only streams that had begun broke off")

    def count():
        return [len(answers) for answers in load.now()]

    def all_are_back():
        until(lambda: scene.servers_up() == FRONTS, "the balancer has it back")

    for victim in scene.fronts[:2]:
        before, under_way = count(), busy(victim)
        victim.stop()
        load.rounds(2)
        victim.start()
        all_are_back()
        check_what_is_lost(before, f"killed with {under_way} requests")

    victim = scene.fronts[2]
    before, under_way = count(), busy(victim)
    code = victim.stop(signal.SIGTERM)
    load.rounds(2)
    victim.start()
    all_are_back()
    lost, broken = answers_since(before)
    check(code == 0 and not lost and not broken, f"front end told to stop with {under_way} requests: nothing is lost or broken at all")

    if scene.lab.cuts:
        victim = scene.fronts[0]
        before, under_way = count(), busy(victim)
        cut_and_wait(scene, victim, load)
        check_what_is_lost(before, f"cut off with {under_way} requests")
        all_are_back()
    load.end()


def client_leaves(scene):
    """A client that hangs up is nobody to work for."""
    connection = http.client.HTTPConnection(scene.lab.balancer.address, scene.lab.balancer.port)
    body = {"model": "paravt-tiny", "messages": [{"role": "user", "content": [part_of(videos[0]), {"type": "text", "text": "What?"}]}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})

    def running():
        return sum(front.metric("paravt_api_running") for front in scene.fronts)

    until(lambda: running() == 1, "the question runs")
    begin = time.monotonic()
    connection.close()
    with contextlib.suppress(TimeoutError):
        until(lambda: running() == 0, "it is called off", 60)
    episodes = sum(value for front in scene.fronts for name, value in front.metrics().items()
                   if name == 'paravt_agent_episodes_total{outcome="cancelled"}')
    check(running() == 0 and episodes == 1, f"a client that leaves takes its question with it ({time.monotonic() - begin:.1f} s)")


def slow_is_avoided(scene, seconds):
    """Windows go where they are watched soon."""
    slow = scene.replicas[0]
    # A video whose main turns are not with the slow one, so that all it gets is windows.
    for path in videos:
        part, before = part_of(path), slow.questions()
        for front in scene.fronts:
            ask(front.place, part, agent=False)
        if slow.questions() == before:
            break
    for front in scene.fronts:
        for _ in range(3):
            ask(front.place, part)
    before = [replica.questions() for replica in scene.replicas]
    end, episodes = time.monotonic() + seconds, 0
    while time.monotonic() < end or episodes < 12:
        # Two at a time and no more: with a queue everywhere, what is slow would be avoided by its queue alone.
        pair = Load(scene.lab.balancer, 2, once=True, part=part)
        episodes += sum(answer.status == 200 for answer in pair.end())
    counts = [int(replica.questions() - had) for replica, had in zip(scene.replicas, before)]
    note(f"{episodes} episodes, {3 * episodes} windows; requests by replica {counts}, the first one slow")
    check(counts[0] < episodes / 2, f"the slow replica watched less than half of its equal share: {counts[0]} of {episodes} windows")


def shared_uploads(scene):
    """What was uploaded through one front end is there for all."""
    one, two, three = (front.place for front in scene.fronts)
    kept = []
    for name, place in (("one front end", one), ("the balancer", scene.lab.balancer)):
        boundary = uuid.uuid4().hex
        fields = f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.mp4"\r\nContent-Type: video/mp4\r\n\r\n'
        body = (fields + head).encode() + videos[0].read_bytes() + f"\r\n--{boundary}--\r\n".encode()
        status, text = call(place, "POST", "/v1/files", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"})
        check(status == 200, f"a file of {len(body) >> 10} KiB is uploaded through {name}")
        kept.append(json.loads(text)["id"])
    listed = json.loads(call(two, "GET", "/v1/files")[1])["data"]
    check({file["id"] for file in listed} == set(kept), "another lists both")
    part = {"type": "file", "file": {"file_id": kept[0]}}
    check(all(ask(place, part).status == 200 for place in (two, three, scene.lab.balancer)), "others are asked about it")
    status, text = call(three, "GET", f"/v1/files/{kept[0]}/content")
    check(status == 200 and text == videos[0].read_bytes(), "another gives it back, byte for byte")
    check(call(three, "DELETE", f"/v1/files/{kept[0]}")[0] == 200, "another deletes it")
    gone = [call(place, "GET", f"/v1/files/{kept[0]}")[0] for place in (one, two, three)]
    check(gone == [404] * 3 and ask(one, part).status in (400, 404), "then it is gone for all, also for who had read it")
    call(scene.lab.balancer, "DELETE", f"/v1/files/{kept[1]}")
    check(not json.loads(call(one, "GET", "/v1/files")[1])["data"], "and so is the other one, deleted through the balancer")


def has_native(paravt):
    """Whether this program has the bundled model's engine."""
    told = subprocess.run([paravt, "doctor"], cwd=ROOT, capture_output=True, text=True, check=False)
    return re.search(r"^ok +engine +native", told.stdout, re.MULTILINE) is not None


def run(lab, arguments, work):
    native = has_native(arguments.paravt)
    videos.extend(make_videos(work / "videos"))
    stage = lambda what: print(f"{what} ({time.monotonic() - begin:.0f} s)", flush=True)
    begin = time.monotonic()

    def scene(engine, *scripts):
        return Scene(lab, arguments.paravt, work, engine, scripts)

    stage("many questions about the same videos")
    if not native:
        note("THIS PROGRAM HAS NO NATIVE ENGINE: cached tokens are not looked at, only who was asked")
    stand = scene("native") if native else scene("scripted", script(20))
    prefix_hits(stand, native, arguments.quick)
    stand.end()

    stage("a replica is killed")
    stand = scene("scripted", script(prefill_ms=1000, last_ms=300))
    replica_dies(stand, arguments.quick)
    client_leaves(stand)
    stand.end()

    stage("a replica is killed while it writes")
    stand = scene("scripted", script(prefill_ms=100, token_ms=4))
    replica_dies_writing(stand, arguments.seconds)
    stand.end()

    if lab.cuts and not arguments.quick:
        stage("a replica falls silent")
        stand = scene("scripted", script(prefill_ms=700, last_ms=300))
        replica_falls_silent(stand)
        stand.end()

    stage("a front end is killed, told to stop, cut off")
    stand = scene("scripted", script(prefill_ms=100, token_ms=2, answer="blue " * 100))
    front_dies(stand)
    stand.end()

    stage("a replica is slow; files")
    fast = script(60)
    stand = scene("scripted", script(900), fast, fast)
    slow_is_avoided(stand, arguments.seconds)
    shared_uploads(stand)
    stand.end()
    note(f"{time.monotonic() - begin:.0f} s in all")


def stop(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paravt", default=str(ROOT / "target" / "release" / "paravt"))
    parser.add_argument("--seconds", type=float, default=5, help="of each part that has load for a time")
    parser.add_argument("--quick", action="store_true", help="less of each, and no replica that falls silent")
    parser.add_argument("--loopback", action="store_true", help="without network namespaces")
    arguments = parser.parse_args()
    arguments.paravt = str(pathlib.Path(arguments.paravt).resolve())
    need("haproxy", "install it (apt-get install --no-install-recommends haproxy)")
    need("ffmpeg", "install it (apt-get install ffmpeg)")
    for what in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(what, stop)
    lab, failed = None, None
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as work:
        os.chmod(work, 0o755)
        try:
            lab = network(arguments.loopback)
            run(lab, arguments, pathlib.Path(work))
        except (Exception, KeyboardInterrupt) as error:
            failed = error
            for log in sorted(pathlib.Path(work).glob("*.log")):
                print(f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
        finally:
            # From here on nothing stops it.
            for what in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(what, signal.SIG_IGN)
            for process in Process.all:
                process.stop()
            if lab:
                lab.remove()
            left = [name for name in namespaces() if name.startswith(f"{PREFIX}{os.getpid()}-")]
            check(not left and not running_from(work), "no process and no namespace is left")
    if failed:
        sys.exit(f"WRONG   {type(failed).__name__}: {failed}")
    sys.exit(1 if problems else 0)


def running_from(work):
    """Processes that were started here."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(work).encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main()
