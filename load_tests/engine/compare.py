#!/usr/bin/env python3
"""Measures paravt's engines and others side by side, in one go, and puts the figures in a table.

    python compare.py OUT --paravt PARAVT --venv VENV [--checkpoint DIR]... [--rounds 3] [--runs 3] [--episodes 32]

One engine runs at a time, and all of them in a round before the next round begins (every other round backwards), so that a
machine that gets slower or faster does so for all. vLLM is started and stopped here, on a port that is free. An engine that
fails, hangs or is not there is said to in the table, and the others go on.

OUT gets, for each checkpoint and round, what each engine printed (JSON) and said (log), and after each of them anew
`runs.json` (when, for how long, under which load, how it ended) and `table.md`, which is printed at the end as well. VENV is
what install_vllm.sh made; it is needed for transformers and vLLM only. Nothing but the standard library is needed here.
"""

import argparse
import http.client
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
TINY = HERE.parents[1] / "model_cards/paravt-tiny"
# vLLM keeps one core for its web server; without, small models are slower and large ones faster (README.md).
VLLM = {"vllm": {}, "vllm-all-cores": {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}}
PARAVT = ("native", "mistralrs")
ENGINES = (*PARAVT, "transformers", *VLLM)
# What all are compared with.
BASE = "native"
# Seconds that a server gets to end by itself.
GRACE_S = 30

FIGURES = {
    "episode_ms": "episode, ms", "ttft_first_ms": "first text of the first turn, ms",
    "ttft_second_ms": "first text of the second turn, ms", "episodes_per_s": "episodes a second, all at once",
    "prefill_tokens_per_s": "tokens read a second", "decode_tokens_per_s": "tokens written a second",
    "decode_tokens_per_s_plain": "the same without drafts",
}
BURST = {
    "parallel_ms": "at the same time, ms", "sequential_ms": "one after another, ms", "decode_ratio": "`decode_ratio`",
    "decode_ratio_from_first": "`decode_ratio_from_first`",
}
# Not compared, but without them the others say little: engines that wrote less were faster for it.
LENGTHS = {
    "prompt_tokens": "tokens of the first prompt", "first_tokens": "tokens of the first turn",
    "answer_tokens": "tokens of the second turn", "summary_tokens": "tokens of eight summaries",
}


class Failed(Exception):
    """Why an engine has no figures, in a few words."""


# ------------------------------------------------------------------------------------------------------ processes


def gone(process, number, patience_s):
    """Whether a process and whatever it started are gone, at the latest after so many seconds from the signal on."""
    until = time.monotonic() + patience_s
    try:
        os.killpg(process.pid, number)
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    except ProcessLookupError:
        return True
    return False


def stop(process):
    """Ends a process and whatever it started, and returns when all of them are gone."""
    ended = False
    try:
        ended = gone(process, signal.SIGTERM, GRACE_S)
    finally:
        # Also where someone has no patience with us either.
        if not ended:
            gone(process, signal.SIGKILL, GRACE_S)


def start(command, log, **more):
    """In a session of its own, so that all that it starts can be ended with it."""
    try:
        return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stderr=log,
                                start_new_session=True, **more)
    except OSError as error:
        raise Failed(f"could not be started: {error.strerror}") from error


def last_line(log):
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[-160:] if lines else "no word"


def figures(command, log, limit_s):
    """The JSON object that a command prints."""
    with log.open("wb") as stream:
        process = start(command, stream, stdout=subprocess.PIPE)
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"not done after {limit_s:.0f} s") from None
        finally:
            stop(process)
    if process.returncode != 0:
        said = last_line(log)
        raise Failed("not built in" if "built without the feature" in said else f"failed: {said}")
    try:
        return json.loads(printed)
    except ValueError as error:
        raise Failed("printed no JSON") from error


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return reply.status == 200
    except (OSError, http.client.HTTPException):
        return False


def served(options, checkpoint, variables, log):
    """What a vLLM server makes of it, started for this alone."""
    port, said = free_port(), log.with_suffix(".server.log")
    with said.open("wb") as stream:
        environment = os.environ | variables | {"PORT": str(port)}
        server = start([HERE / "serve_vllm.sh", options.venv, checkpoint], stream, stdout=stream, env=environment)
        try:
            until = time.monotonic() + options.start_limit
            while not healthy(port):
                if server.poll() is not None:
                    raise Failed(f"the server ended: {last_line(said)}")
                if time.monotonic() > until:
                    raise Failed(f"the server was not ready after {options.start_limit:.0f} s")
                time.sleep(1)
            return other(options, checkpoint, ["server", "--base-url", f"http://127.0.0.1:{port}/v1"], log)
        finally:
            stop(server)


# ---------------------------------------------------------------------------------------------------- one engine


def lengths(options):
    words = ["--runs", options.runs, "--episodes", options.episodes, "--json"]
    for name in ("overview_frames", "window_frames", "frame_side"):
        value = getattr(options, name)
        words += [] if value is None else ["--" + name.replace("_", "-"), value]
    return words


def other(options, checkpoint, which, log):
    python = options.venv / "bin/python"
    command = [python, HERE / "engines.py", *which, "--card", checkpoint, *lengths(options)]
    return figures(command, log, options.limit)


def measure(options, checkpoint, engine, log):
    if engine in PARAVT:
        command = [options.paravt, "bench", "engine", "--engine", engine, "--card", checkpoint, *lengths(options)]
        return figures(command, log, options.limit)
    if options.venv is None:
        raise Failed("needs --venv")
    if engine == "transformers":
        return other(options, checkpoint, ["transformers", "--model", checkpoint], log)
    return served(options, checkpoint, VLLM[engine], log)


# ---------------------------------------------------------------------------------------------------- the table


def flat(report):
    """One number under each name; what is missing or not a number is left out."""
    found = {key: report.get(key) for key in (*FIGURES, *LENGTHS)}
    if isinstance(found["summary_tokens"], list):
        found["summary_tokens"] = sum(found["summary_tokens"])
    for burst in report.get("burst", ()):
        found |= {(burst["k"], key): burst.get(key) for key in BURST}
    return {key: value for key, value in found.items() if isinstance(value, (int, float))}


def number(value):
    return f"{value:.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def row(words):
    return "| " + " | ".join(words) + " |"


def table(checkpoint, engines, runs):
    """Medians of the rounds, in brackets the median of the rounds' ratios to the base; then the least and the most."""
    rounds = {engine: {run["round"]: flat(run["report"]) for run in runs if run["engine"] == engine and run["report"]}
              for engine in engines}
    names = dict(FIGURES)
    for k in sorted({key[0] for found in rounds.values() for figure in found.values() for key in figure if isinstance(key, tuple)}):
        names |= {(k, key): f"{k} window{'s' if k > 1 else ''}, {told}" for key, told in BURST.items()}
    names |= LENGTHS

    def values(engine, key):
        return [figure[key] for figure in rounds[engine].values() if key in figure]

    def ratio(engine, key):
        both = [(figure[key], rounds[BASE].get(at, {}).get(key)) for at, figure in rounds[engine].items() if key in figure]
        quotients = [mine / base for mine, base in both if base]
        return f" ({statistics.median(quotients):.2f})" if quotients and engine != BASE and key not in LENGTHS else ""

    def middle(engine, key):
        found = values(engine, key)
        return number(statistics.median(found)) + (ratio(engine, key) if BASE in engines else "") if found else "–"

    def ends(engine, key):
        found = values(engine, key)
        return f"{number(min(found))} – {number(max(found))}" if found else "–"

    def body(cell, keys):
        shown = [key for key in keys if any(values(engine, key) for engine in engines)]
        return [row([names[key]] + [cell(engine, key) for engine in engines]) for key in shown]

    head = [row(["", *engines]), row(["---", *["---:"] * len(engines)])]
    lines = [f"## {checkpoint}", "", *head]
    problems = {engine: [run["problem"] for run in runs if run["engine"] == engine and run["problem"]] for engine in engines}
    lines.append(row(["rounds"] + [
        f"{len(rounds[engine])}" + (f", {len(problems[engine])} without figures: {problems[engine][-1]}".replace("|", "\\|")
                                    if problems[engine] else "") for engine in engines]))
    lines += body(middle, names)
    if any(len(found) > 1 for found in rounds.values()):
        lines += ["", "Least and most of the rounds:", "", *head, *body(ends, [key for key in names if key not in LENGTHS])]
    return "\n".join(lines) + "\n"


def machine():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {model}"


def document(options, runs):
    loads = [run["load"] for run in runs]
    parts = [
        f"{machine()}. {options.rounds} rounds of {options.runs} runs, {options.episodes} episodes at once; the load before a "
        f"measurement was {min(loads):.1f} to {max(loads):.1f}.",
        f"Medians of the rounds; in brackets the figure in parts of {BASE}'s of the same round, the median of it.\n",
    ]
    for checkpoint in options.checkpoint:
        of_it = [run for run in runs if run["checkpoint"] == checkpoint.name]
        if of_it:
            parts.append(table(checkpoint.name, options.engines, of_it))
    return "\n".join(parts)


# --------------------------------------------------------------------------------------------------------- all


def compare(options):
    options.out.mkdir(parents=True, exist_ok=True)
    runs, absent = [], set()
    for at in range(1, options.rounds + 1):
        for checkpoint in options.checkpoint:
            folder = options.out / checkpoint.name
            folder.mkdir(exist_ok=True)
            for engine in options.engines if at % 2 else reversed(options.engines):
                if engine in absent:
                    continue
                file = folder / f"round-{at}-{engine}.json"
                run = {"checkpoint": checkpoint.name, "round": at, "engine": engine, "load": os.getloadavg()[0],
                       "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "report": None, "problem": None}
                began = time.monotonic()
                try:
                    run["report"] = measure(options, checkpoint, engine, file.with_suffix(".log"))
                    file.write_text(json.dumps(run["report"], indent=1) + "\n")
                except Failed as problem:
                    run["problem"] = str(problem)
                    # It won't be there the next time either.
                    absent |= {engine} if run["problem"] in ("not built in", "needs --venv") else set()
                run["seconds"] = round(time.monotonic() - began, 1)
                runs.append(run)
                print(f"round {at}, {checkpoint.name}, {engine}: {run['problem'] or 'measured'} ({run['seconds']} s)",
                      file=sys.stderr, flush=True)
                (options.out / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")
                (options.out / "table.md").write_text(document(options, runs))
    return runs


def count(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for what is found")
    parser.add_argument("--paravt", type=Path, default=Path("paravt"), metavar="PROGRAM", help="[default: of the PATH]")
    parser.add_argument("--venv", type=Path, metavar="DIR", help="what install_vllm.sh made")
    parser.add_argument("--checkpoint", type=Path, action="append", metavar="DIR",
                        help="a checkpoint with its card.toml; several with the flag again [default: paravt-tiny]")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--runs", type=count, default=3, help="of each measurement in a round")
    parser.add_argument("--episodes", type=count, default=32, help="at the same time")
    parser.add_argument("--overview-frames", type=count, metavar="N", help="[default: as the card says]")
    parser.add_argument("--window-frames", type=count, metavar="N", help="[default: as the card says]")
    parser.add_argument("--frame-side", type=count, metavar="PX", help="[default: as large as the card allows]")
    parser.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="for an engine in a round")
    parser.add_argument("--start-limit", type=float, default=600, metavar="SECONDS", help="until vLLM answers")
    options = parser.parse_args()
    options.checkpoint = [checkpoint.resolve() for checkpoint in options.checkpoint or [TINY]]
    for checkpoint in options.checkpoint:
        if not (checkpoint / "card.toml").is_file():
            parser.error(f"no card.toml in {checkpoint}")
    if len({checkpoint.name for checkpoint in options.checkpoint}) < len(options.checkpoint):
        parser.error("two checkpoints have the same name")
    if options.venv is not None:
        # Not resolved: its python is a link, and must be called by its own name.
        options.venv = options.venv.absolute()
    # What was started is ended also where this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runs = compare(options)
    print(document(options, runs))
    if not any(run["report"] for run in runs):
        raise SystemExit("nothing was measured")


if __name__ == "__main__":
    main()
