"""LiteLLM with `openai/…` at a base URL of ours, unmodified, against a running paravt. See suite.py for how it is called."""
import json
import os
from typing import Literal

# Else it fetches a list of prices from the net when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402
from pydantic import BaseModel, ConfigDict  # noqa: E402
from suite import WEATHER, WEATHER_SCRIPT, Suite, serve  # noqa: E402

suite = Suite("litellm")
litellm.suppress_debug_info = True


class Sighting(BaseModel):
    """What was seen. Nothing else may be said: a small model would not come to an end."""

    model_config = ConfigDict(extra="forbid")

    color: Literal["purple", "orange", "green"]
    shape: Literal["square", "circle"]


def options(base_url=suite.base_url):
    return {"model": "openai/paravt-tiny", "api_base": base_url, "api_key": "none", "temperature": 0, "max_retries": 0}


@suite.check("completion: a video, with its thinking")
def _():
    reply = litellm.completion(messages=suite.messages(), **options())
    message = reply.choices[0].message
    assert message.reasoning_content, message
    # The second turn goes on where the first one ended.
    assert reply.usage.prompt_tokens_details.cached_tokens > 0, reply.usage
    return suite.right(message.content)


@suite.check("completion: streamed, gathered by stream_chunk_builder")
def _():
    chunks = list(litellm.completion(messages=suite.messages(), stream=True, stream_options={"include_usage": True}, **options()))
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.usage.total_tokens > 0 and whole.choices[0].message.reasoning_content, whole
    return suite.right(whole.choices[0].message.content)


@suite.check("acompletion")
async def _():
    return suite.right((await litellm.acompletion(messages=suite.messages(), **options())).choices[0].message.content)


@suite.check("response_format: a pydantic model")
def _():
    reply = litellm.completion(messages=suite.messages(), response_format=Sighting, **options())
    return Sighting.model_validate_json(reply.choices[0].message.content)


@suite.check("n and logprobs")
def _():
    reply = litellm.completion(messages=suite.messages(), n=2, logprobs=True, top_logprobs=2, **options())
    assert len(reply.choices) == 2, reply
    for choice in reply.choices:
        suite.right(choice.message.content)
        assert choice.logprobs.content[0].top_logprobs, choice


@suite.check("tools: a call, its result, the answer; a streamed call")
def _():
    with serve(WEATHER_SCRIPT) as base_url:
        tools = [{"type": "function", "function": WEATHER}]
        talk = [{"role": "user", "content": "Paris?"}]
        first = litellm.completion(messages=talk, tools=tools, **options(base_url)).choices[0]
        call = first.message.tool_calls[0]
        assert first.finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": "Paris"}, first
        talk += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        chunks = list(litellm.completion(messages=talk[:1], tools=tools, stream=True, **options(base_url)))
        whole = litellm.stream_chunk_builder(chunks).choices[0]
        assert json.loads(whole.message.tool_calls[0].function.arguments) == {"city": "Paris"}, whole
        return litellm.completion(messages=talk, tools=tools, **options(base_url)).choices[0].message.content


@suite.check("responses: a video, whole and streamed")
def _():
    part = {"type": "input_file", "file_url": suite.video}
    asked = [{"role": "user", "content": [part, {"type": "input_text", "text": suite.question}]}]
    fields = {key: value for key, value in options().items() if key != "max_retries"}
    whole = litellm.responses(input=asked, **fields)
    text = "".join(part.text for item in whole.output if item.type == "message" for part in item.content)
    suite.right(text)
    kinds = [event.type for event in litellm.responses(input=asked, stream=True, **fields)]
    assert kinds[-1] == "response.completed", kinds
    return text


@suite.check("errors: BadRequestError, NotFoundError")
def _():
    for kind, fields in ((litellm.BadRequestError, {"top_p": 7}), (litellm.NotFoundError, {"model": "openai/gpt-none"})):
        try:
            litellm.completion(messages=[{"role": "user", "content": "?"}], **(options() | fields))
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__}")


suite.end()
