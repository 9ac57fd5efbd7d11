"""aiperf, unmodified, against a running paravt: small runs, to see that it measures. See suite.py for how it is called."""
import json
import pathlib
import subprocess
import sys
import tempfile

from suite import REPOSITORY, Suite

suite = Suite("aiperf")
TINY = REPOSITORY / "model_cards/paravt-tiny"


def run(*options, count=4, endpoint="chat"):
    """The report of a run that answered everything, and each request's own numbers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            pathlib.Path(sys.executable).with_name("aiperf"), "profile", "--model", "paravt-tiny", "--url",
            suite.base_url.removesuffix("/v1"), "--endpoint-type", endpoint, "--streaming", "--tokenizer", TINY, "--ui", "none",
            "--use-server-token-count", "--request-count", str(count), "--artifact-dir", folder, *options,
        ]
        done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, (done.stdout + done.stderr)[-2500:]
        report = json.loads(pathlib.Path(folder, "profile_export_aiperf.json").read_text())
        lines = pathlib.Path(folder, "profile_export.jsonl").read_text().splitlines()
        outputs = pathlib.Path(folder, "profile_export_raw.jsonl")
        raw = outputs.read_text() if outputs.exists() else ""
    assert report["request_count"]["avg"] == count and not report["error_summary"], (report["request_count"], report["error_summary"])
    assert report["time_to_first_token"]["avg"] > 0, report["time_to_first_token"]
    return report, [json.loads(line)["metrics"] for line in lines], raw


def times(report):
    return f"time to first token {report['time_to_first_token']['avg']:.0f} ms, latency {report['request_latency']['avg']:.0f} ms"


TEXT = ("--isl", 16, "--osl", 8, "--concurrency", 2, "--extra-inputs", "ignore_eos:true")


@suite.check("chat: synthetic text, two at a time")
def _():
    report, requests, _ = run(*TEXT)
    for request in requests:
        assert request["usage_completion_tokens"]["value"] == 8, request
    return times(report)


@suite.check("chat: synthetic videos")
def _():
    report, _, _ = run(
        *TEXT, "--video-batch-size", 1, "--video-width", 64, "--video-height", 64, "--video-duration", 4, "--num-dataset-entries", 2,
    )
    return times(report)


@suite.check("chat: the video and its question (raw-payload), the right answer")
def _():
    with tempfile.TemporaryDirectory() as folder:
        payloads = pathlib.Path(folder, "payloads.jsonl")
        payload = {"model": "paravt-tiny", "messages": suite.messages(), "temperature": 0, "stream": True,
                   "stream_options": {"include_usage": True}}
        payloads.write_text(json.dumps(payload) + "\n")
        report, _, raw = run("--custom-dataset-type", "raw-payload", "--input-file", payloads, "--export-level", "raw", count=2)
    answers = 0
    for line in raw.splitlines():
        text = ""
        for said in json.loads(line)["responses"]:
            for packet in said.get("packets", []):
                value = packet.get("value") or ""
                if packet.get("name") == "data" and value.startswith("{"):
                    for choice in json.loads(value)["choices"]:
                        text += choice["delta"].get("content") or ""
        suite.right(text)
        answers += 1
    assert answers == 2, raw[:500]
    return times(report)


@suite.check("responses: synthetic text")
def _():
    return times(run(*TEXT, endpoint="responses")[0])


suite.end()
