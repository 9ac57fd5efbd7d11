"""The official OpenAI package for Python, unmodified, against a running paravt. See suite.py for how it is called."""
import asyncio
import base64
import json
import math
from typing import Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from suite import PICTURE, WATCHED, WEATHER, WEATHER_SCRIPT, Suite, idle, said, script, serve

suite = Suite("openai")


def connect(base_url=suite.base_url, kind=OpenAI, **options):
    return kind(base_url=base_url, **{"api_key": "none", "timeout": 300, "max_retries": 0} | options)


client = connect()
model = client.models.list().data[0].id
chat = client.chat.completions
usage_asked = {"stream": True, "stream_options": {"include_usage": True}}


class Sighting(BaseModel):
    """Enumerations, so that a model of any size comes to an end."""

    color: Literal["purple", "orange", "green"]
    shape: Literal["square", "circle"]
    lit: bool


class GetWeather(BaseModel):
    """The weather in a city."""

    city: Literal["Paris", "Oslo"]


def told(message):
    """A question without a video."""
    return [{"role": "user", "content": message}]


def raises(kind, function):
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def gathered(stream):
    """Text, thinking, finish reason and usage of a stream, by choice."""
    texts, thinking, finish, usage = {}, {}, {}, None
    for chunk in stream:
        assert usage is None, "a chunk after the usage"
        if chunk.usage:
            assert chunk.choices == []
            usage = chunk.usage
        for choice in chunk.choices:
            at = choice.index
            texts[at] = texts.get(at, "") + (choice.delta.content or "")
            thinking[at] = thinking.get(at, "") + (getattr(choice.delta, "reasoning_content", None) or "")
            finish[at] = choice.finish_reason or finish.get(at)
    return texts, thinking, finish, usage


# Models


@suite.check("models: list, retrieve, one that does not exist")
def _():
    assert client.models.retrieve(model).id == model
    error = raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-none"))
    assert error.code == "model_not_found", error.body
    return model


# Chat completions


@suite.check("chat: whole and streamed answers agree and are right")
def _():
    texts, thinking, finish, usage = gathered(chat.create(model=model, messages=suite.messages(), temperature=0, **usage_asked))
    whole = chat.create(model=model, messages=suite.messages(), temperature=0)
    message = whole.choices[0].message
    assert texts == {0: message.content}, (texts, message.content)
    assert thinking[0] and thinking[0] == message.reasoning_content, (thinking, message.reasoning_content)
    assert finish == {0: "stop"} and whole.choices[0].finish_reason == "stop", finish
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0, usage
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens, usage
    assert usage.completion_tokens == whole.usage.completion_tokens, (usage, whole.usage)
    return suite.right(message.content)


@suite.check("chat: async, two at the same time, one of them streamed")
async def _():
    async with connect(kind=AsyncOpenAI) as several:

        async def whole():
            return (await several.chat.completions.create(model=model, messages=suite.messages())).choices[0].message.content

        async def streamed():
            text = ""
            async for chunk in await several.chat.completions.create(model=model, messages=suite.messages(), stream=True):
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            return text

        for text in await asyncio.gather(whole(), streamed()):
            suite.right(text)


@suite.check("chat: with_raw_response and with_streaming_response")
def _():
    raw = chat.with_raw_response.create(model=model, messages=suite.messages())
    suite.right(raw.parse().choices[0].message.content)
    assert raw.headers["content-type"].startswith("application/json") and raw.headers["x-request-id"], raw.headers
    assert "total;dur=" in raw.headers["server-timing"], raw.headers
    with chat.with_streaming_response.create(model=model, messages=suite.messages(), stream=True) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream"), reply.headers
        lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]", lines[-1]
    return raw.headers["server-timing"]


@suite.check("chat: parse into a pydantic model (response_format json_schema)")
def _():
    reply = chat.parse(model=model, messages=suite.messages(), response_format=Sighting, temperature=0)
    assert reply.choices[0].finish_reason == "stop", reply.choices[0].finish_reason
    assert isinstance(reply.choices[0].message.parsed, Sighting), reply.choices[0].message
    return reply.choices[0].message.content


@suite.check("chat: parse without a video")
def _():
    reply = chat.parse(model=model, messages=told("Which one?"), response_format=Sighting, temperature=0, max_tokens=400)
    assert isinstance(reply.choices[0].message.parsed, Sighting), reply.choices[0].message
    return reply.choices[0].message.content


@suite.check("chat: .stream with a pydantic model: events in order, parsed at the end")
def _():
    kinds, snapshot = [], ""
    with chat.stream(model=model, messages=suite.messages(), response_format=Sighting, temperature=0) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "content.delta":
                snapshot = event.snapshot
        final = stream.get_final_completion().choices[0]
    assert "content.delta" in kinds and kinds.index("content.delta") < kinds.index("content.done"), kinds
    assert isinstance(final.message.parsed, Sighting) and final.message.content == snapshot, final
    return snapshot


@suite.check("chat: response_format json_object")
def _():
    # A small model may never close what it began: the length cuts it then.
    choice = chat.create(
        model=model, messages=told("JSON, please."), response_format={"type": "json_object"}, temperature=0, max_tokens=300
    ).choices[0]
    assert choice.message.content.lstrip().startswith("{"), choice
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    return f"{choice.finish_reason}: {choice.message.content[:60]}"


def probed(tokens, text, top):
    """Checks the log-probabilities of a text's tokens."""
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == text, (tokens, text)
    for token in tokens:
        assert token.logprob <= 0 and math.isfinite(token.logprob), token
        assert len(token.top_logprobs) == top, token
        best = [other.logprob for other in token.top_logprobs]
        assert best == sorted(best, reverse=True), token
        # Greedy: what was chosen is the best.
        assert not top or math.isclose(best[0], token.logprob, abs_tol=1e-4), token


@suite.check("chat: logprobs and top_logprobs, whole and streamed")
def _():
    asked = {"model": model, "messages": suite.messages(), "temperature": 0, "logprobs": True}
    whole = chat.create(**asked, top_logprobs=3).choices[0]
    probed(whole.logprobs.content, whole.message.content, 3)
    streamed = []
    for chunk in chat.create(**asked, top_logprobs=3, stream=True):
        for choice in chunk.choices:
            streamed += (choice.logprobs.content or []) if choice.logprobs else []
    assert [(t.token, t.logprob) for t in streamed] == [(t.token, t.logprob) for t in whole.logprobs.content]
    alone = chat.create(**asked).choices[0]
    probed(alone.logprobs.content, alone.message.content, 0)
    return f"{len(streamed)} tokens, the least sure {min(t.logprob for t in streamed):.3f}"


@suite.check("chat: n=2, whole and streamed")
def _():
    asked = {"model": model, "messages": suite.messages(), "temperature": 0, "n": 2}
    whole = chat.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1], whole.choices
    for choice in whole.choices:
        suite.right(choice.message.content)
    texts, _, finish, usage = gathered(chat.create(**asked, **usage_asked))
    assert set(texts) == {0, 1} and finish == {0: "stop", 1: "stop"}, (texts, finish)
    for text in texts.values():
        suite.right(text)
    assert usage.completion_tokens == whole.usage.completion_tokens, (usage, whole.usage)


@suite.check("chat: the same seed gives the same text, other seeds other texts; a seed that was drawn is told")
def _():
    def text(**fields):
        reply = chat.create(model=model, messages=told("Say something."), temperature=1.5, max_tokens=24, **fields)
        message = reply.choices[0].message
        whole = (message.content or "") + (getattr(message, "reasoning_content", None) or "")
        return whole, reply.model_extra["paravt"]["sampling"]["seed"]

    first, seed = text(seed=7)
    assert seed == 7 and (first, 7) == text(seed=7), "the same seed, another text"
    assert any(text(seed=seed)[0] != first for seed in range(3)), "every seed gives one text"
    drawn, seed = text()
    assert seed != text()[1], "the same seed drawn twice"
    assert (drawn, seed) == text(seed=seed), "the seed that was drawn gives another text"
    return f"drawn: {seed}"


@suite.check("chat: the sampling that is told is what was asked for, else the model card's; whole and streamed")
def _():
    asked = {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.25, "presence_penalty": -0.5, "seed": 11, "max_tokens": 5}
    ours = {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}

    def sampling(**fields):
        return chat.create(model=model, messages=told("Say something."), **fields).model_extra["paravt"]["sampling"]

    assert sampling(**asked, extra_body=ours) == asked | ours
    chunks = chat.create(model=model, messages=told("Say something."), **asked, extra_body=ours, stream=True)
    streamed = [extra["sampling"] for chunk in chunks if "sampling" in (extra := chunk.model_extra.get("paravt") or {})]
    assert streamed == [asked | ours], streamed
    # The bundled model's card is greedy and says nothing else: no seed is needed.
    card = sampling()
    tokens = card.pop("max_tokens")
    assert tokens > 5 and card.pop("temperature") == 0 and set(card.values()) == {None}, card
    return f"the card's: temperature 0, {tokens} tokens"


def trace_of(reply):
    return reply.model_extra["paravt"]["trace"]


@suite.check("chat: a follow-up about the same video is read from the cache (cached_tokens)")
def _():
    asked = {"model": model, "temperature": 0, "extra_body": {"paravt": {"trace": True}}}
    # Seconds that no other check asks about.
    messages = suite.messages(None, suite.part(start=3, end=297))
    first = chat.create(messages=messages, **asked)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, *told("How many shapes appear?")]
    again = chat.create(messages=messages, **asked)
    read, cached = (trace_of(first)["turns"][0]["usage"]["prompt_tokens"], trace_of(again)["turns"][0]["usage"]["cached_tokens"])
    assert 0.9 * read < cached <= read, f"{cached} of {read} tokens"
    usage = again.usage
    assert cached <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens, usage
    agents = usage.model_extra["paravt"]
    assert usage.prompt_tokens_details.cached_tokens == sum(agents[agent]["cached_tokens"] for agent in ("main", "sub")), usage
    *_, streamed = gathered(chat.create(model=model, temperature=0, messages=messages, **usage_asked))
    assert streamed.prompt_tokens_details.cached_tokens >= cached, streamed
    return f"{cached} of {read} tokens of the first prompt"


@suite.check("chat: start, end, fps and max_frames of a video part")
def _():
    plain = {"model": model, "max_tokens": 1, "extra_body": {"paravt": {"agent": False, "trace": True}}}

    def times(**fields):
        reply = chat.create(messages=suite.messages(None, suite.part(**fields)), **plain)
        return trace_of(reply)["overviews"][0]["frame_times"]

    found = times(start=20, end=80, fps=0.2)
    assert len(found) == 12 and found[0] == 20 and found == sorted(found) and 75 < found[-1] <= 80, found
    assert times(start="0:20", end="1:20", fps=0.2) == found, "the same in MM:SS"
    assert len(times(start=20, end=80, fps=0.1)) == 6, "half as many"
    few, early, late = times(max_frames=6), times(end=80), times(start=20)
    assert len(few) == 6 and early[0] == 0 and early[-1] <= 80 and late[0] >= 20 and late[-1] > 290, (few, early, late)
    for fields in ({"start": 80, "end": 20}, {"fps": 0}, {"start": "soon"}):
        error = raises(openai.BadRequestError, lambda fields=fields: times(**fields))
        assert error.param.startswith("messages[0].content[0]"), error.body
    return f"{found[0]} … {found[-1]}"


@suite.check("chat: two videos and a picture in one request")
def _():
    plain = {"model": model, "max_tokens": 1, "extra_body": {"paravt": {"agent": False}}}
    parts = [suite.part(), suite.part(max_frames=8), PICTURE]
    read = [chat.create(messages=suite.messages("?", *parts[:count]), **plain).usage.prompt_tokens for count in (1, 2, 3)]
    # Half as many frames once more, then one picture.
    assert 0.4 * read[0] < read[1] - read[0] < read[0] and 0 < read[2] - read[1] < 0.2 * read[0], read
    broken = PICTURE | {"image_url": {"url": "data:image/png;base64,aGFsbG8="}}
    error = raises(openai.BadRequestError, lambda: chat.create(messages=suite.messages("?", *parts[:2], broken), **plain))
    assert error.param.startswith("messages[0].content[2]"), error.body
    # Each call is watched in the video it names, within the part that may be seen.
    looks = [("crop_video", {"video_path": f"video_{n}.mp4", "start_time": 20, "end_time": 40}) for n in (2, 1)]
    with serve(script(said("Both.", looks), WATCHED["main"][1]["text"])) as base_url:
        messages = suite.messages("?", suite.part(start=10, end=30), suite.part(), PICTURE)
        reply = connect(base_url).chat.completions.create(model=model, messages=messages, extra_body={"paravt": {"trace": True}})
    assert reply.choices[0].message.content == "blue", reply
    assert [overview["video"] for overview in trace_of(reply)["overviews"]] == [0, 1], trace_of(reply)
    windows = [(window["video"], window["start"], window["end"], window["status"]) for window in trace_of(reply)["windows"]]
    assert windows == [(1, 20, 40, "ok"), (0, 20, 30, "ok")], windows
    return f"{read} tokens"


@suite.check("chat: stop, max_completion_tokens and finish_reason length")
def _():
    plain = {"model": model, "messages": told("Say something."), "temperature": 0}
    cut = chat.create(**plain, max_completion_tokens=3, extra_body={"ignore_eos": True})
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 3, cut
    stopped = chat.create(model=model, messages=suite.messages(), temperature=0, stop=[","])
    assert suite.expected.startswith(stopped.choices[0].message.content.strip()), stopped.choices[0]
    return stopped.choices[0].message.content


@suite.check("chat: what paravt adds, by extra_body: events and trace")
def _():
    asked = {"model": model, "messages": suite.messages(), "temperature": 0}
    whole = chat.create(**asked, extra_body={"paravt": {"trace": True}})
    assert whole.model_extra["paravt"]["trace"]["windows"], whole.model_extra
    seen = []
    for chunk in chat.create(**asked, stream=True, extra_body={"paravt": {"events": True}}):
        seen += [chunk.model_extra["paravt"]["event"]] if "event" in (chunk.model_extra.get("paravt") or {}) else []
    assert {"overview", "window.started", "window.finished"} <= set(seen), seen
    return f"{len(seen)} events"


@suite.check("chat: raw text, tags and all (paravt.raw)")
def _():
    with serve(WEATHER_SCRIPT) as base_url:
        asked = {"model": model, "messages": told("Paris?"), "extra_body": {"paravt": {"raw": True}}}
        message = connect(base_url).chat.completions.create(**asked).choices[0].message
    assert message.content == WEATHER_SCRIPT["main"][0]["text"], message
    assert not getattr(message, "reasoning_content", None) and not message.tool_calls, message
    return message.content[-80:]


# Tools of the client's

TOOL = {"type": "function", "function": WEATHER}


@suite.check("tools: a call, its result in a second turn, the answer")
def _():
    with serve(WEATHER_SCRIPT) as base_url:
        tooled = connect(base_url).chat.completions
        messages = told("How is the weather in Paris?")
        first = tooled.create(model=model, messages=messages, tools=[TOOL], tool_choice="auto").choices[0]
        assert first.finish_reason == "tool_calls" and not first.message.content, first
        call = first.message.tool_calls[0]
        assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}, call
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "sunny"}'}]
        second = tooled.create(model=model, messages=messages, tools=[TOOL]).choices[0]
        assert second.finish_reason == "stop", second
        return second.message.content


@suite.check("tools: streamed, gathered by .stream with pydantic_function_tool")
def _():
    with serve(WEATHER_SCRIPT) as base_url:
        tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
        kinds = []
        with connect(base_url).chat.completions.stream(model=model, messages=told("Paris?"), tools=[tool]) as stream:
            for event in stream:
                kinds.append(event.type)
            choice = stream.get_final_completion().choices[0]
        assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds, kinds
        call = choice.message.tool_calls[0]
        assert choice.finish_reason == "tool_calls" and call.function.parsed_arguments == GetWeather(city="Paris"), choice
        return call.function.arguments


@suite.check("tools: two calls in one turn, both answered")
def _():
    both = [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]
    with serve(script(said("Both.", both), said("Read.", answer="Sunny, snow."))) as base_url:
        tooled = connect(base_url).chat.completions
        messages = told("Paris and Oslo?")
        first = tooled.create(model=model, messages=messages, tools=[TOOL]).choices[0]
        calls = first.message.tool_calls
        assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Paris", "Oslo"], calls
        assert calls[0].id != calls[1].id, calls
        messages += [first.message] + [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
        return tooled.create(model=model, messages=messages, tools=[TOOL]).choices[0].message.content


@suite.check("tools: a named tool and required, on the bundled model")
def _():
    asked = {"model": model, "messages": told("Paris?"), "tools": [TOOL], "temperature": 0}
    for wanted in ({"type": "function", "function": {"name": "get_weather"}}, "required"):
        choice = chat.create(**asked, tool_choice=wanted).choices[0]
        call = choice.message.tool_calls[0]
        assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Oslo"), call
        # OpenAI says `stop` for a named tool; others `tool_calls`. Clients take both.
        assert choice.finish_reason in ("stop", "tool_calls"), choice
    return call.function.arguments


@suite.check("tools: beside a video: windows first, then the call, its result, the answer")
def _():
    look, answer = (turn["text"] for turn in WATCHED["main"])
    call = said("It asks for more.", [("get_weather", {"city": "Paris"})])
    asked = {"model": model, "tools": [TOOL], "extra_body": {"paravt": {"trace": True}}}
    # A script answers by how many turns of the assistant there were: the server's own are not in the client's conversation.
    with serve(script(look, call)) as base_url:
        first = connect(base_url).chat.completions.create(messages=suite.messages(), **asked)
        assert first.choices[0].finish_reason == "tool_calls", first.choices
        made = first.choices[0].message.tool_calls
        assert [one.function.name for one in made] == ["get_weather"], made
        assert len(first.model_extra["paravt"]["trace"]["windows"]) == 1, first.model_extra
    with serve(script(call, answer)) as base_url:
        result = {"role": "tool", "tool_call_id": made[0].id, "content": "sunny"}
        messages = [*suite.messages(), first.choices[0].message, result]
        return connect(base_url).chat.completions.create(messages=messages, **asked).choices[0].message.content


@suite.check("tools: tool_choice none")
def _():
    reply = chat.create(model=model, messages=told("Paris?"), tools=[TOOL], tool_choice="none", temperature=0, max_tokens=16)
    assert not reply.choices[0].message.tool_calls, reply.choices[0]


# Errors


@suite.check("errors: BadRequestError names the field")
def _():
    def bad(**fields):
        asked = {"model": model, "messages": told("?")} | fields
        return raises(openai.BadRequestError, lambda: chat.create(**asked))

    assert bad(temperature=3).param == "temperature"
    assert bad(messages=[]).param == "messages"
    assert bad(n=0).param == "n"
    assert bad(tools=[{"type": "function"}]).param.startswith("tools"), "tools"
    assert bad(response_format={"type": "json_schema"}).param.startswith("response_format"), "response_format"
    error = bad(messages=[{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "gopher://x/y"}}]}])
    assert error.param.startswith("messages"), error.body
    return f"{error.param}: {error.body['message']}"


@suite.check("errors: NotFoundError, PermissionDeniedError")
def _():
    error = raises(openai.NotFoundError, lambda: chat.create(model="gpt-none", messages=told("?")))
    assert error.code == "model_not_found", error.body
    parts = [{"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}, {"type": "text", "text": "?"}]
    error = raises(openai.PermissionDeniedError, lambda: chat.create(model=model, messages=[{"role": "user", "content": parts}]))
    assert "passwd" not in str(error.body["message"]), error.body


@suite.check("errors: the same in a stream, before its first chunk")
def _():
    error = raises(openai.BadRequestError, lambda: chat.create(model=model, messages=told("?"), temperature=3, stream=True))
    assert error.param == "temperature", error.body


@suite.check("errors: AuthenticationError without the key, answers with it")
def _():
    key = "sk-0123456789abcdefghij"
    with serve(script(said("No.", answer="yes")), server_keys=json.dumps([key])) as base_url:
        for wrong in ("sk-other", "none"):
            error = raises(openai.AuthenticationError, lambda wrong=wrong: connect(base_url, api_key=wrong).models.list())
            assert error.status_code == 401 and error.code == "invalid_api_key", error.body
        return connect(base_url, api_key=key).chat.completions.create(model=model, messages=told("?")).choices[0].message.content


@suite.check("errors: RateLimitError when the queue is full; retried by the client, answered")
def _():
    # About a video: a whole episode takes a whole place.
    slow = script("No.\n</think>\n<answer>yes</answer>", prefill_ms=1500)
    with serve(slow, server_max_running=1, server_max_queued=0) as base_url:

        async def both():
            async with connect(base_url, AsyncOpenAI) as several:
                ask = lambda one: one.chat.completions.create(model=model, messages=suite.messages())  # noqa: E731
                results = await asyncio.gather(ask(several), ask(several), return_exceptions=True)
                refused = [result for result in results if isinstance(result, openai.RateLimitError)]
                assert len(refused) == 1, results
                after = refused[0].response.headers["retry-after"]
                assert 0 < float(after) <= 60, after
                patient = several.with_options(max_retries=8)
                for reply in await asyncio.gather(ask(patient), ask(patient)):
                    assert reply.choices[0].message.content == "yes", reply
                return f"Retry-After: {after}"

        return asyncio.run(both())


@suite.check("a timeout of the client's stops the work; so does a stream that is closed")
def _():
    slow = script(said("Slowly. " * 2000, answer="yes"), token_ms=20)
    with serve(slow) as base_url:
        hasty = connect(base_url)
        raises(openai.APITimeoutError, lambda: hasty.with_options(timeout=1).chat.completions.create(model=model, messages=told("?")))
        idle(base_url)
        stream = hasty.chat.completions.create(model=model, messages=told("?"), stream=True)
        assert next(iter(stream)).choices is not None
        stream.close()
        idle(base_url)

        async def cancelled():
            async with connect(base_url, AsyncOpenAI) as other:
                task = asyncio.create_task(other.chat.completions.create(model=model, messages=told("?")))
                await asyncio.sleep(0.5)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(cancelled())
        idle(base_url)


# Files


@suite.check("files: create, list, retrieve, content, ask about it, delete")
def _():
    path = suite.video.removeprefix("file://")
    with open(path, "rb") as video:
        stored = client.files.create(file=video, purpose="user_data")
    with open(path, "rb") as video:
        content = video.read()
    try:
        assert stored.object == "file" and stored.bytes == len(content) and stored.filename == "demo.mp4", stored
        assert stored.id in [file.id for file in client.files.list()], "not in the list"
        assert stored.id in [file.id for file in client.files.list(purpose="user_data", limit=100, order="desc")], "not in the list"
        assert client.files.retrieve(stored.id).purpose == "user_data"
        assert client.files.content(stored.id).read() == content
        parts = [{"type": "file", "file": {"file_id": stored.id}}, {"type": "text", "text": suite.question}]
        reply = chat.create(model=model, messages=[{"role": "user", "content": parts}], temperature=0)
        suite.right(reply.choices[0].message.content)
    finally:
        gone = client.files.delete(stored.id)
    assert gone.deleted and gone.id == stored.id, gone
    raises(openai.NotFoundError, lambda: client.files.retrieve(stored.id))
    raises(openai.NotFoundError, lambda: client.files.content(stored.id))
    reply = raises(openai.APIStatusError, lambda: chat.create(model=model, messages=[{"role": "user", "content": parts}]))
    assert reply.status_code in (400, 404), reply
    return stored.id


@suite.check("chat: the video inside the request: a data URL, and a file part's file_data")
def _():
    with open(suite.video.removeprefix("file://"), "rb") as video:
        url = "data:video/mp4;base64," + base64.b64encode(video.read()).decode()
    for part in ({"type": "video_url", "video_url": {"url": url}}, {"type": "file", "file": {"file_data": url, "filename": "demo.mp4"}}):
        messages = [{"role": "user", "content": [part, {"type": "text", "text": suite.question}]}]
        suite.right(chat.create(model=model, messages=messages, temperature=0).choices[0].message.content)


# Responses

responses = client.responses


def asked_of(part=None):
    """The question about the video, as input of a response."""
    part = part or {"type": "input_video", "video_url": suite.video}
    return [{"role": "user", "content": [part, {"type": "input_text", "text": suite.question}]}]


@suite.check("responses: create: right, with usage, windows as items")
def _():
    reply = responses.create(model=model, input=asked_of(), temperature=0)
    assert reply.status == "completed" and reply.object == "response" and reply.error is None, reply
    kinds = [item.type for item in reply.output]
    assert kinds[-1] == "message" and "reasoning" in kinds, kinds
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens > 0, reply.usage
    assert reply.usage.output_tokens_details.reasoning_tokens > 0, reply.usage
    # The second turn goes on where the first one ended.
    assert 0 < reply.usage.input_tokens_details.cached_tokens < reply.usage.input_tokens, reply.usage
    suite.right(reply.output_text)
    return ", ".join(kinds)


@suite.check("responses: text alone as input, instructions, metadata, max_output_tokens")
def _():
    reply = responses.create(
        model=model, input="Say something.", instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=4, temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert reply.status == "incomplete" and reply.incomplete_details.reason == "max_output_tokens", reply
    assert reply.metadata == {"a": "b"} and reply.instructions == "Be brief.", reply


@suite.check("responses: the video as input_file, by file_url and by file_id")
def _():
    suite.right(responses.create(model=model, input=asked_of({"type": "input_file", "file_url": suite.video}), temperature=0).output_text)
    with open(suite.video.removeprefix("file://"), "rb") as video:
        stored = client.files.create(file=video, purpose="user_data")
    try:
        part = {"type": "input_file", "file_id": stored.id}
        return suite.right(responses.create(model=model, input=asked_of(part), temperature=0).output_text)
    finally:
        client.files.delete(stored.id)


@suite.check("responses: two videos, of one a part, and a picture")
def _():
    video, picture = asked_of()[0]["content"][0], {"type": "input_image", "image_url": PICTURE["image_url"]["url"]}
    parts = [video, video | {"start": 20, "end": 80, "fps": 0.1}, picture]

    def read(count):
        content = [*parts[:count], {"type": "input_text", "text": "?"}]
        plain = {"model": model, "max_output_tokens": 16, "extra_body": {"paravt": {"agent": False}}}
        return responses.create(input=[{"role": "user", "content": content}], **plain).usage.input_tokens

    one, two, three = map(read, (1, 2, 3))
    # Six frames beside sixteen, then one picture.
    assert 0.2 * one < two - one < 0.7 * one and 0 < three - two < 0.2 * one, (one, two, three)
    return f"{one}, {two}, {three} tokens"


@suite.check("responses: a stream: all events, in order, none twice")
def _():
    events = list(responses.create(model=model, input=asked_of(), temperature=0, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events))), "sequence numbers"
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds
    assert all(type(event).__name__.endswith("Event") for event in events), [type(event).__name__ for event in events]
    final = events[-1].response
    # Each item is added, then done, at its place in the output; nothing of it comes before or after.
    order = []
    for event in events:
        at = getattr(event, "output_index", None)
        if event.type == "response.output_item.added":
            assert at == len(order), (at, order)
            order.append(event.item.id)
        elif event.type == "response.output_item.done":
            assert event.item.id == order[at] == final.output[at].id, event
            assert event.item == final.output[at], (event.item, final.output[at])
        elif at is not None:
            assert event.item_id == order[at], event
    assert len(order) == len(final.output), (order, final.output)
    place = len(final.output) - 1
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    message = [kind for kind, event in zip(kinds, events) if getattr(event, "output_index", None) == place]
    expected = ["response.output_item.added", "response.content_part.added"] + ["response.output_text.delta"] * len(texts)
    expected += ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert message == expected, message
    assert "".join(texts) == final.output_text, texts
    suite.right(final.output_text)
    return ", ".join(dict.fromkeys(kind.removeprefix("response.") for kind in kinds))


@suite.check("responses: .stream gathers, get_final_response agrees")
def _():
    with responses.stream(model=model, input=asked_of(), temperature=0) as stream:
        snapshot = ""
        for event in stream:
            if event.type == "response.output_text.delta":
                snapshot = event.snapshot
        final = stream.get_final_response()
    assert snapshot == final.output_text, (snapshot, final.output_text)
    return suite.right(snapshot)


@suite.check("responses: parse into a pydantic model (text.format json_schema), whole and streamed")
def _():
    reply = responses.parse(model=model, input=asked_of(), text_format=Sighting, temperature=0)
    assert isinstance(reply.output_parsed, Sighting), reply.output
    with responses.stream(model=model, input=asked_of(), text_format=Sighting, temperature=0) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == reply.output_parsed
    return reply.output_text


FLAT = {"type": "function", "strict": True, **WEATHER}


@suite.check("responses: a tool: call, function_call_output, answer")
def _():
    with serve(WEATHER_SCRIPT) as base_url:
        tooled = connect(base_url).responses
        items = [{"role": "user", "content": "How is the weather in Paris?"}]
        first = tooled.create(model=model, input=items, tools=[FLAT])
        call = first.output[-1]
        assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}, first.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "sunny"}'}
        second = tooled.create(model=model, input=[*items, *first.output, result], tools=[FLAT])
        assert second.output_text == "It is sunny in Paris.", second.output
        return second.output_text


@suite.check("responses: a tool, streamed: function_call_arguments deltas")
def _():
    with serve(WEATHER_SCRIPT) as base_url:
        with connect(base_url).responses.stream(model=model, input="Paris?", tools=[FLAT]) as stream:
            kinds = [event.type for event in stream]
            call = stream.get_final_response().output[-1]
        assert "response.function_call_arguments.delta" in kinds and "response.function_call_arguments.done" in kinds, kinds
        assert json.loads(call.arguments) == {"city": "Paris"}, call


@suite.check("responses: a conversation goes on with all items of the first answer")
def _():
    with serve(WATCHED) as base_url:
        watching = connect(base_url).responses
        first = watching.create(model=model, input=asked_of())
        assert [item.type for item in first.output] == ["reasoning", "mcp_call", "reasoning", "message"], first.output
        again = [*asked_of(), *first.output, {"role": "user", "content": "And then?"}]
        reply = watching.create(model=model, input=again)
        assert reply.status == "completed" and reply.output_text == first.output_text == "blue", reply


@suite.check("responses: logprobs by include")
def _():
    include = ["message.output_text.logprobs"]
    reply = responses.create(model=model, input=asked_of(), temperature=0, include=include, top_logprobs=2)
    probed(reply.output[-1].content[0].logprobs, reply.output_text, 2)
    events = responses.create(model=model, input=asked_of(), temperature=0, include=include, top_logprobs=2, stream=True)
    tokens = [token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert "".join(token.token for token in tokens) == reply.output_text, tokens


@suite.check("responses: nothing is kept, and it says so")
def _():
    first = responses.create(model=model, input="Say something.", max_output_tokens=16, temperature=0)
    assert first.model_extra["store"] is False, first
    raises(openai.NotFoundError, lambda: responses.retrieve(first.id))
    error = raises(openai.BadRequestError, lambda: responses.create(model=model, input="?", previous_response_id=first.id))
    assert error.param == "previous_response_id", error.body
    return error.body["message"]


@suite.check("responses: errors name the field; one that fails in a stream")
def _():
    error = raises(openai.BadRequestError, lambda: responses.create(model=model, input="?", temperature=3))
    assert error.param == "temperature", error.body
    error = raises(openai.BadRequestError, lambda: responses.create(model=model, input=[{"type": "nonsense"}]))
    assert error.param and error.param.startswith("input"), error.body
    broken = script("I begin")
    broken["main"][0]["fail"] = "it broke"
    with serve(broken) as base_url:
        try:
            events = [event.type for event in connect(base_url).responses.create(model=model, input="?", stream=True)]
        except openai.APIError as raised:
            return f"raised {type(raised).__name__}"
        assert events[-1] in ("response.failed", "error"), events
        return events[-1]


suite.end()
