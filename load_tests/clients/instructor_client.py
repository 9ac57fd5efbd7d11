"""instructor, unmodified, against a running paravt. See suite.py for how it is called."""
from typing import Literal

import instructor
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict
from suite import Suite

suite = Suite("instructor", "openai")


class Sighting(BaseModel):
    """What was seen. Nothing else may be said: a small model would not come to an end."""

    model_config = ConfigDict(extra="forbid")

    color: Literal["purple", "orange", "green"]
    shape: Literal["square", "circle"]


def connect(mode, kind=OpenAI):
    return instructor.from_openai(kind(base_url=suite.base_url, api_key="none"), mode=mode)


asked = {"model": "paravt-tiny", "response_model": Sighting, "temperature": 0, "max_retries": 0}

for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):

    @suite.check(f"create, mode {mode.name}: without a video")
    def _(mode=mode):
        result = connect(mode).chat.completions.create(messages=[{"role": "user", "content": "Which one?"}], **asked)
        assert isinstance(result, Sighting), result
        return result


@suite.check("create, mode JSON_SCHEMA: a video")
def _():
    return connect(instructor.Mode.JSON_SCHEMA).chat.completions.create(messages=suite.messages(), **asked)


@suite.check("create_with_completion, async")
async def _():
    client = connect(instructor.Mode.TOOLS, AsyncOpenAI)
    talk = [{"role": "user", "content": "Which one?"}]
    result, completion = await client.chat.completions.create_with_completion(messages=talk, **asked)
    assert isinstance(result, Sighting) and completion.usage.total_tokens > 0, completion
    return result


@suite.check("create_partial: streamed")
def _():
    talk = [{"role": "user", "content": "Which one?"}]
    fields = {key: value for key, value in asked.items() if key != "response_model"}
    parts = list(connect(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(messages=talk, response_model=Sighting, **fields))
    assert parts[-1].color and parts[-1].shape, parts
    return f"{len(parts)} pieces, {parts[-1]}"


suite.end()
