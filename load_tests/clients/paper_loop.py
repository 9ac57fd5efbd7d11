"""The paper's own way of asking, over OpenAI's package: the client is the agent, paravt only serves the model.

Frames go as a list of `image_url` parts (JPEG, base64) under the client's own system prompt; the model's raw text comes back
(`paravt.raw`), tags and all; the client cuts `<think>`, `<tool_call>` and `<answer>` out of it, asks about the frames of all
windows at the same time, and hands the summaries back as `<tool_response>`. Prompts and budgets are those of the bundled model's
card. See suite.py for how it is called.
"""
import asyncio
import base64
import io
import json
import re
import tomllib

import av
from openai import AsyncOpenAI
from suite import REPOSITORY, Suite

suite = Suite("openai", "av")
CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.S)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S)
card = tomllib.loads((REPOSITORY / "model_cards/paravt-tiny/card.toml").read_text())
path = suite.video.removeprefix("file://")
client = AsyncOpenAI(base_url=suite.base_url, api_key="none", timeout=300, max_retries=0)


def pictures(times):
    """The frame that is shown at each time (seconds), as a part of a message."""
    parts = []
    with av.open(path) as container:
        stream = container.streams.video[0]
        for wanted in times:
            container.seek(int(wanted / stream.time_base), stream=stream)
            shown = None
            for frame in container.decode(stream):
                if shown is not None and frame.time > wanted + 1e-3:
                    break
                shown = frame
            data = io.BytesIO()
            shown.to_image().save(data, "JPEG", quality=95)
            url = "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def length():
    with av.open(path) as container:
        stream = container.streams.video[0]
        return (stream.frames - 1) / float(stream.average_rate)


def spread(start, end, budget):
    """Evenly, one a second, at most the budget: both ends are in it."""
    count = max(budget["min_frames"], min(budget["max_frames"], int((end - start) * budget["fps"])))
    return [start + (end - start) * i / (count - 1) for i in range(count)]


def clock(seconds):
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


async def say(messages, tokens):
    reply = await client.chat.completions.create(
        model="paravt-tiny", messages=messages, temperature=0, max_tokens=tokens, extra_body={"paravt": {"raw": True}}
    )
    message = reply.choices[0].message
    assert not getattr(message, "reasoning_content", None) and not message.tool_calls, message
    return message.content, reply.usage


async def summary(start, end):
    content = pictures(spread(start, min(end, length()), card["window"]))
    content.append({"type": "text", "text": card["prompts"]["sub_agent"].format(start=clock(start), end=clock(end))})
    text, _ = await say([{"role": "user", "content": content}], card["agent"]["summary_tokens"])
    return text.strip()


def beginning():
    times = spread(0, length(), card["overview"])
    content = []
    for at, picture in zip(times, pictures(times)):
        content += [{"type": "text", "text": f"<{at:.1f} seconds>"}, picture]
    asked = card["prompts"]["question"].format(question=suite.question, video=card["prompts"]["video_name"])
    content.append({"type": "text", "text": asked})
    return [{"role": "system", "content": card["prompts"]["system"]}, {"role": "user", "content": content}]


@suite.check("the paper's loop: raw tags, windows at the same time, cached turns, the right answer")
async def _():
    messages, windows, read = beginning(), [], 0
    for _ in range(card["agent"]["max_turns"] + 1):
        text, usage = await say(messages, card["agent"]["turn_tokens"])
        # Each turn goes on where the one before ended, pictures and all.
        assert usage.prompt_tokens_details.cached_tokens >= 0.9 * read, (read, usage)
        read = usage.prompt_tokens
        calls = [json.loads(body)["arguments"] for body in CALL.findall(text)]
        if not calls:
            break
        spans = [(float(call["start_time"]), float(call["end_time"])) for call in calls][: card["agent"]["max_calls"]]
        windows += spans
        summaries = await asyncio.gather(*(summary(start, end) for start, end in spans))
        body = "\n".join(f"[{start:.1f}s - {end:.1f}s] {said}" for (start, end), said in zip(spans, summaries))
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": f"<tool_response>\n{body}\n</tool_response>"},
        ]
    assert windows, text
    answer = ANSWER.search(text)
    assert answer, text
    suite.right(answer.group(1))
    return f"{len(windows)} windows; {answer.group(1)}; {usage.prompt_tokens_details.cached_tokens} of {read} tokens cached"


@suite.check("the same turn, streamed: the same raw text")
async def _():
    messages = beginning()
    whole, _ = await say(messages, card["agent"]["turn_tokens"])
    text = ""
    async for chunk in await client.chat.completions.create(
        model="paravt-tiny", messages=messages, temperature=0, max_tokens=card["agent"]["turn_tokens"], stream=True,
        extra_body={"paravt": {"raw": True}},
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
    assert text == whole, (text, whole)
    assert "</think>" in text and "<tool_call>" in text, text


suite.end()
