// The official OpenAI Node package, unmodified, against a running paravt.
//   node openai_client.mjs BASE_URL VIDEO_URL QUESTION EXPECTED
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, url, question, expected] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", timeout: 300_000 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: [{ type: "video_url", video_url: { url } }, { type: "text", text: question }] }];

let text = "";
let finish = null;
let usage = null;
const stream = await client.chat.completions.create({
  model, messages, temperature: 0, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  usage = chunk.usage ?? usage;
  text += chunk.choices[0]?.delta?.content ?? "";
  finish = chunk.choices[0]?.finish_reason ?? finish;
}
const whole = await client.chat.completions.create({ model, messages, temperature: 0 });

assert.equal(text, whole.choices[0].message.content);
assert.equal(text.trim().toLowerCase(), expected.toLowerCase());
assert.equal(finish, "stop");
assert.ok(usage.total_tokens > 0);
console.log(`node openai: streamed and whole answers agree: ${JSON.stringify(text)}; ${usage.total_tokens} tokens`);
