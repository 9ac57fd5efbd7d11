"""`vllm bench serve`, unmodified, against a running paravt: small runs, to see that it measures. See suite.py for how it is called.

Needs an environment with vLLM: ../engine/install_vllm.sh.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from suite import REPOSITORY, Suite

suite = Suite("vllm")
TINY = REPOSITORY / "model_cards/paravt-tiny"


def run(*options, count=4, backend="openai-chat", endpoint="/v1/chat/completions", body=None):
    """The report of a run that answered everything."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--disable-tqdm",
            "--backend", backend, "--endpoint", endpoint, "--base-url", suite.base_url.removesuffix("/v1"),
            "--model", str(TINY), "--served-model-name", "paravt-tiny", "--num-prompts", str(count), "--temperature", "0",
            "--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", "report.json",
            *(["--extra-body", json.dumps(body)] if body else []), *options,
        ]
        done = subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
        report = json.loads(pathlib.Path(folder, "report.json").read_text())
    assert report["completed"] == count, report["errors"]
    assert report["total_output_tokens"] > 0 and report["mean_ttft_ms"] > 0, report
    return report


def times(report):
    return f"time to first token {report['mean_ttft_ms']:.0f} ms, {report['output_throughput']:.0f} tokens/s"


@suite.check("openai-chat: random text, two at a time")
def _():
    report = run("--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "8", "--ignore-eos",
                 "--max-concurrency", "2")
    assert report["output_lens"] == [8] * 4, report["output_lens"]
    return times(report)


@suite.check("openai-chat: random-mm, pictures")
def _():
    return times(run(
        "--dataset-name", "random-mm", "--random-input-len", "16", "--random-output-len", "8", "--ignore-eos",
        "--random-mm-base-items-per-request", "4", "--random-mm-limit-mm-per-prompt", '{"image": 4, "video": 0}',
        "--random-mm-bucket-config", "{(64, 64, 1): 1.0}",
    ))


@suite.check("openai-chat: random-mm, videos")
def _():
    return times(run(
        "--dataset-name", "random-mm", "--random-input-len", "16", "--random-output-len", "8",
        "--random-mm-base-items-per-request", "1", "--random-mm-limit-mm-per-prompt", '{"image": 0, "video": 1}',
        "--random-mm-bucket-config", "{(64, 64, 16): 1.0}",
    ))


@suite.check("openai-chat: the video and its question (--extra-body), the right answer")
def _():
    report = run("--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "64",
                 body={"messages": suite.messages()})
    for text in report["generated_texts"]:
        suite.right(text)
    return times(report)


@suite.check("openai-responses: random text")
def _():
    return times(run("--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "8", "--ignore-eos",
                     backend="openai-responses", endpoint="/v1/responses"))


suite.end()
