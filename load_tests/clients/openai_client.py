"""The official OpenAI Python package, unmodified, against a running paravt.

    python openai_client.py BASE_URL VIDEO_URL QUESTION EXPECTED

Streams an answer, asks again without streaming, and checks that both texts are the same and right.
"""
import sys

from openai import OpenAI

base_url, video_url, question, expected = sys.argv[1:5]
client = OpenAI(base_url=base_url, api_key="none", timeout=300)
model = client.models.list().data[0].id
messages = [
    {
        "role": "user",
        "content": [
            {"type": "video_url", "video_url": {"url": video_url}},
            {"type": "text", "text": question},
        ],
    }
]

text, reasoning, finish, usage = "", "", None, None
stream = client.chat.completions.create(
    model=model, messages=messages, temperature=0, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    if chunk.usage:
        usage = chunk.usage
    for choice in chunk.choices:
        text += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        finish = choice.finish_reason or finish
whole = client.chat.completions.create(model=model, messages=messages, temperature=0)
message = whole.choices[0].message

assert text == message.content, (text, message.content)
assert text.strip().lower() == expected.lower(), (text, expected)
assert reasoning and reasoning == message.reasoning_content, (reasoning, message.reasoning_content)
assert finish == "stop" and whole.choices[0].finish_reason == "stop", finish
assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0, usage
print(f"python openai: streamed and whole answers agree: {text!r}; {usage.total_tokens} tokens")
