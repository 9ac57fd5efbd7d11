"""OpenAI's Agents SDK, unmodified, against a running paravt, over both of its models. See suite.py for how it is called."""
import asyncio
from typing import Literal

from agents import (
    Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from suite import WATCHED, WEATHER_SCRIPT, Suite, serve

suite = Suite("openai-agents", "openai")
# Traces would go to OpenAI.
set_tracing_disabled(True)

GREEDY = ModelSettings(temperature=0, include_usage=True)


class Sighting(BaseModel):
    """Enumerations, so that a model of any size comes to an end."""

    color: Literal["purple", "orange", "green"]
    shape: Literal["square", "circle"]


@function_tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def model(kind, base_url=suite.base_url):
    return kind(model="paravt-tiny", openai_client=AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0))


async def streamed(agent, asked):
    """A run that is streamed: its text, the kinds of its items, and its result."""
    run, text, kinds = Runner.run_streamed(agent, asked), "", []
    async for event in run.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
        elif event.type == "run_item_stream_event":
            kinds.append(event.name)
    return text, kinds, run


# Chat completions. The SDK's input is that of responses; what it can't turn into a chat message it refuses.
CHAT = OpenAIChatCompletionsModel
RESPONSES = OpenAIResponsesModel


@suite.check("chat completions model: text, whole and streamed")
async def _():
    with serve({"main": [{"text": "<think>\nEasy.\n</think>\nHello."}]}) as base_url:
        agent = Agent(name="a", instructions="Be brief.", model=model(CHAT, base_url), model_settings=GREEDY)
        whole = await Runner.run(agent, "Hello?")
        assert whole.final_output == "Hello.", whole.final_output
        text, kinds, run = await streamed(agent, "Hello?")
        assert text == "Hello." and run.context_wrapper.usage.total_tokens > 0, (text, run.context_wrapper.usage)
        for items in (whole.new_items, run.new_items):
            thoughts = [item.raw_item for item in items if item.type == "reasoning_item"]
            assert len(thoughts) == 1 and [part.text.strip() for part in thoughts[0].summary] == ["Easy."], thoughts
        return ", ".join(kinds)


@suite.check("chat completions model: a function tool, whole and streamed")
async def _():
    with serve(WEATHER_SCRIPT) as base_url:
        agent = Agent(name="a", tools=[get_weather], model=model(CHAT, base_url), model_settings=GREEDY)
        whole = await Runner.run(agent, "Paris?")
        assert whole.final_output == "It is sunny in Paris.", whole.final_output
        text, kinds, _ = await streamed(agent, "Paris?")
        assert text == whole.final_output and kinds.count("tool_output") == 1, (text, kinds)
        return ", ".join(kinds)


@suite.check("chat completions model: output_type (response_format) on the bundled model")
async def _():
    agent = Agent(name="a", output_type=Sighting, model=model(CHAT), model_settings=GREEDY)
    result = await Runner.run(agent, "Which one?")
    assert isinstance(result.final_output, Sighting), result
    return result.final_output


@suite.check("chat completions model: a video_url part, streamed")
async def _():
    agent = Agent(name="a", model=model(CHAT), model_settings=GREEDY)
    text, _, _ = await streamed(agent, [{"role": "user", "content": [suite.part(), {"type": "input_text", "text": suite.question}]}])
    return suite.right(text)


@suite.check("chat completions model: a video by file_id")
async def _():
    client = AsyncOpenAI(base_url=suite.base_url, api_key="none")
    with open(suite.video.removeprefix("file://"), "rb") as video:
        stored = await client.files.create(file=video, purpose="user_data")
    try:
        agent = Agent(name="a", model=model(CHAT), model_settings=GREEDY)
        part = {"type": "input_file", "file_id": stored.id}
        asked = [{"role": "user", "content": [part, {"type": "input_text", "text": suite.question}]}]
        return suite.right((await Runner.run(agent, asked)).final_output)
    finally:
        await client.files.delete(stored.id)


def about_the_video():
    part = {"type": "input_file", "file_url": suite.video}
    return [{"role": "user", "content": [part, {"type": "input_text", "text": suite.question}]}]


@suite.check("responses model: a video (input_file with file_url), whole and streamed")
async def _():
    agent = Agent(name="a", model=model(RESPONSES), model_settings=GREEDY)
    whole = await Runner.run(agent, about_the_video())
    suite.right(whole.final_output)
    text, kinds, _ = await streamed(agent, about_the_video())
    assert text == whole.final_output, (text, whole.final_output)
    return ", ".join(item.raw_item.type for item in whole.new_items)


@suite.check("responses model: a second question with all items of the first answer")
async def _():
    with serve(WATCHED) as base_url:
        agent = Agent(name="a", model=model(RESPONSES, base_url))
        first = await Runner.run(agent, about_the_video())
        kinds = [item.raw_item.type for item in first.new_items]
        assert first.final_output == "blue" and "mcp_call" in kinds, first.new_items
        second = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "And then?"}])
        assert second.final_output == "blue", second
        return ", ".join(kinds)


@suite.check("responses model: a function tool, whole and streamed")
async def _():
    with serve(WEATHER_SCRIPT) as base_url:
        agent = Agent(name="a", instructions="Be brief.", tools=[get_weather], model=model(RESPONSES, base_url))
        whole = await Runner.run(agent, "Paris?")
        assert whole.final_output == "It is sunny in Paris.", whole.final_output
        text, kinds, _ = await streamed(agent, "Paris?")
        assert text == whole.final_output and kinds.count("tool_output") == 1, (text, kinds)
        return ", ".join(kinds)


@suite.check("responses model: output_type (text.format) on the bundled model")
async def _():
    agent = Agent(name="a", output_type=Sighting, model=model(RESPONSES), model_settings=GREEDY)
    result = await Runner.run(agent, about_the_video())
    assert isinstance(result.final_output, Sighting), result
    return result.final_output


@suite.check("a run that is cancelled while it streams ends")
async def _():
    agent = Agent(name="a", model=model(RESPONSES), model_settings=GREEDY)
    run = Runner.run_streamed(agent, about_the_video())
    async for _ in run.stream_events():
        run.cancel()
    await asyncio.sleep(0)


suite.end()
