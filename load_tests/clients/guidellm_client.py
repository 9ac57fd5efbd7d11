"""guidellm, unmodified, against a running paravt: small runs, to see that it measures. See suite.py for how it is called."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from suite import REPOSITORY, Suite

suite = Suite("guidellm")
TINY = REPOSITORY / "model_cards/paravt-tiny"


def run(data, *, profile, count, request_format="/v1/chat/completions"):
    """The requests that succeeded, as guidellm reports them."""
    root = suite.base_url.removesuffix("/v1")
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.json")
        command = [
            pathlib.Path(sys.executable).with_name("guidellm"), "run", "--disable-progress",
            "--backend", f"kind=openai_http,target={root},model=paravt-tiny,request_format={request_format}",
            "--profile", profile, "--constraint", f"kind=max_requests,count={count}",
            "--tokenizer", f"kind=huggingface_auto,model={TINY}", "--data", data,
            "--output", f"kind=json,path={report}",
        ]
        # Nothing is asked of the Hub: the tokenizer is a folder.
        done = subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
        requests = json.loads(report.read_text())["benchmarks"][0]["requests"]
    faults = [request["info"]["error"] for request in requests["errored"]]
    assert len(requests["successful"]) == count and not faults, (len(requests["successful"]), faults)
    for request in requests["successful"]:
        assert request["prompt_tokens"] > 0 and request["output_tokens"] > 0, request
        assert request["time_to_first_token_ms"] > 0, request
    return requests["successful"]


@suite.check("synthetic text, two streams")
def _():
    done = run("kind=synthetic_text,prompt_tokens=16,output_tokens=8", profile="kind=concurrent,streams=2", count=6)
    # It asks for eight tokens with ignore_eos.
    assert {request["output_tokens"] for request in done} == {8}, [request["output_tokens"] for request in done]
    return f"time to first token {done[0]['time_to_first_token_ms']:.0f} ms"


@suite.check("a data set of videos: the right answer, streamed and counted")
def _():
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder, "videos.jsonl")
        row = {"prompt": suite.question, "video": {"type": "video_url", "video": suite.video}}
        rows.write_text((json.dumps(row) + "\n") * 3)
        done = run(f"kind=json_file,path={rows}", profile="kind=synchronous", count=3)
    for request in done:
        suite.right(request["output"])
    return f"time to first token {done[-1]['time_to_first_token_ms']:.0f} ms, {done[-1]['output_tokens']} tokens"


@suite.check("synthetic text over /v1/responses")
def _():
    done = run(
        "kind=synthetic_text,prompt_tokens=16,output_tokens=8", profile="kind=synchronous", count=3, request_format="/v1/responses"
    )
    return f"time to first token {done[0]['time_to_first_token_ms']:.0f} ms"


suite.end()
