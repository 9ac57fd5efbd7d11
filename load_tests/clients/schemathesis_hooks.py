"""Says to schemathesis what the schema of a `text/event-stream` is about: the data of its events, as in OpenAI's own document.

OpenAPI 3.1 has no words for it, and schemathesis takes the schema for that of `{event, data}`. So every chunk of every
stream is held to the schema of chunks.
"""
import json

import schemathesis


@schemathesis.deserializer("text/event-stream")
def events(_context, response):
    lines = response.content.decode("utf-8").splitlines()
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(one) for one in data if one != "[DONE]"]
