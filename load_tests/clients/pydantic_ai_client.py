"""pydantic-ai, unmodified, against a running paravt, over chat completions and responses. See suite.py for how it is called."""
from typing import Literal

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput, UploadedFile
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from suite import WEATHER_SCRIPT, Suite, serve

suite = Suite("pydantic-ai-slim", "openai")


class Sighting(BaseModel):
    """What was seen."""

    color: Literal["purple", "orange", "green"]
    shape: Literal["square", "circle"]


def model(kind=OpenAIChatModel, base_url=suite.base_url):
    return kind("paravt-tiny", provider=OpenAIProvider(base_url=base_url, api_key="none"))


def agent(one, **options):
    return Agent(one, model_settings={"temperature": 0}, retries=0, **options)


def weather_agent(one):
    asked = agent(one)

    @asked.tool_plain
    def get_weather(city: Literal["Paris", "Oslo"]) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    return asked


KINDS = (("chat", OpenAIChatModel), ("responses", OpenAIResponsesModel))
HELLO = {"main": [{"text": "<think>\nEasy.\n</think>\nHello."}]}

for name, kind in KINDS:

    @suite.check(f"{name}: text, with thinking as a part")
    async def _(kind=kind):
        with serve(HELLO) as base_url:
            result = await agent(model(kind, base_url)).run("Hello?")
            kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
            assert result.output == "Hello." and "thinking" in kinds, result.all_messages()
            assert result.usage.total_tokens > 0, result.usage
            return ", ".join(kinds)

    @suite.check(f"{name}: streamed, and a second turn with the first one's messages")
    async def _(kind=kind):
        with serve(HELLO) as base_url:
            asked = agent(model(kind, base_url))
            async with asked.run_stream("Hello?") as run:
                text = await run.get_output()
            assert text == "Hello.", text
            again = await asked.run("Again?", message_history=run.all_messages())
            return again.output

    @suite.check(f"{name}: a tool")
    async def _(kind=kind):
        with serve(WEATHER_SCRIPT) as base_url:
            result = await weather_agent(model(kind, base_url)).run("Paris?")
            assert result.output == "It is sunny in Paris.", result.all_messages()
            return ", ".join(part.part_kind for message in result.all_messages() for part in message.parts)

    # pydantic-ai sends no videos to OpenAI's models, but it sends names of files, and asks for no more than that.
    @suite.check(f"{name}: a video by file_id")
    async def _(kind=kind):
        async with AsyncOpenAI(base_url=suite.base_url, api_key="none") as client:
            with open(suite.video.removeprefix("file://"), "rb") as video:
                stored = await client.files.create(file=video, purpose="user_data")
            try:
                part = UploadedFile(stored.id, provider_name="openai", media_type="video/mp4")
                return suite.right((await agent(model(kind)).run([part, suite.question])).output)
            finally:
                await client.files.delete(stored.id)

    @suite.check(f"{name}: output as a tool (tool_choice required)")
    async def _(kind=kind):
        result = await agent(model(kind), output_type=ToolOutput(Sighting)).run("Which one?")
        assert isinstance(result.output, Sighting), result
        return result.output

    @suite.check(f"{name}: native output (json_schema)")
    async def _(kind=kind):
        result = await agent(model(kind), output_type=NativeOutput(Sighting)).run("Which one?")
        assert isinstance(result.output, Sighting), result
        return result.output


suite.end()
