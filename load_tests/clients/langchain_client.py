"""LangChain's ChatOpenAI, unmodified, against a running paravt. See suite.py for how it is called."""
import json
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict
from suite import WEATHER_SCRIPT, Suite, serve

suite = Suite("langchain-openai", "langchain-core")


class Sighting(BaseModel):
    """What was seen. Nothing else may be said: a small model would not come to an end."""

    model_config = ConfigDict(extra="forbid")

    color: Literal["purple", "orange", "green"]
    shape: Literal["square", "circle"]


@tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def chat(base_url=suite.base_url, **options):
    return ChatOpenAI(base_url=base_url, api_key="none", model="paravt-tiny", temperature=0, max_retries=0, **options)


asked = [HumanMessage(content=suite.messages()[0]["content"])]


@suite.check("invoke: a video")
def _():
    message = chat().invoke(asked)
    assert message.usage_metadata["total_tokens"] > 0 and message.response_metadata["finish_reason"] == "stop", message
    # The second turn goes on where the first one ended.
    assert message.usage_metadata["input_token_details"]["cache_read"] > 0, message.usage_metadata
    return suite.right(message.content)


@suite.check("ainvoke and batch, with a system message")
async def _():
    first = await chat().ainvoke([SystemMessage("Be exact."), *asked])
    assert isinstance(first, AIMessage) and first.content, first
    for message in await chat().abatch([asked, asked]):
        suite.right(message.content)


@suite.check("stream, with usage at the end")
def _():
    whole = None
    for chunk in chat(stream_usage=True).stream(asked):
        whole = chunk if whole is None else whole + chunk
    assert whole.usage_metadata["total_tokens"] > 0, whole
    return suite.right(whole.content)


for way in ("json_schema", "function_calling"):

    @suite.check(f"with_structured_output, method {way}")
    def _(way=way):
        result = chat().with_structured_output(Sighting, method=way).invoke("Which one?")
        assert isinstance(result, Sighting), result
        return result


@suite.check("with_structured_output about a video, with the raw message")
def _():
    result = chat().with_structured_output(Sighting, method="json_schema", include_raw=True).invoke(asked)
    assert isinstance(result["parsed"], Sighting) and result["parsing_error"] is None, result
    return result["parsed"]


@suite.check("bind_tools: a call, its result, the answer")
def _():
    with serve(WEATHER_SCRIPT) as base_url:
        tooled = chat(base_url).bind_tools([get_weather])
        talk = [HumanMessage("Paris?")]
        first = tooled.invoke(talk)
        assert first.tool_calls[0]["args"] == {"city": "Paris"}, first
        talk += [first, *(get_weather.invoke(call) for call in first.tool_calls)]
        assert isinstance(talk[-1], ToolMessage), talk
        second = tooled.invoke(talk)
        assert second.content == "It is sunny in Paris." and not second.tool_calls, second
        return second.content


@suite.check("bind_tools, streamed: the pieces of a call add up")
def _():
    with serve(WEATHER_SCRIPT) as base_url:
        whole = None
        for chunk in chat(base_url).bind_tools([get_weather]).stream("Paris?"):
            whole = chunk if whole is None else whole + chunk
        assert whole.tool_calls[0]["args"] == {"city": "Paris"}, whole
        assert whole.response_metadata["finish_reason"] == "tool_calls", whole
        return json.dumps(whole.tool_calls[0]["args"])


@suite.check("logprobs and n by bind")
def _():
    result = chat(n=2, logprobs=True, top_logprobs=2).generate([asked])
    assert len(result.generations[0]) == 2, result
    for generation in result.generations[0]:
        suite.right(generation.text)
        assert generation.message.response_metadata["logprobs"]["content"], generation


@suite.check("responses API: invoke, stream, structured output, tools")
def _():
    one = chat(use_responses_api=True)
    part = {"type": "input_file", "file_url": suite.video}
    about = [HumanMessage(content=[part, {"type": "input_text", "text": suite.question}])]
    suite.right(one.invoke(about).text)
    suite.right("".join(chunk.text for chunk in one.stream(about)))
    assert isinstance(one.with_structured_output(Sighting).invoke(about), Sighting)
    with serve(WEATHER_SCRIPT) as base_url:
        tooled = chat(base_url, use_responses_api=True).bind_tools([get_weather])
        talk = [HumanMessage("Paris?")]
        first = tooled.invoke(talk)
        talk += [first, *(get_weather.invoke(call) for call in first.tool_calls)]
        return tooled.invoke(talk).text


suite.end()
