// The official OpenAI package for Node, unmodified, against a running paravt: in short what openai_client.py tries.
//   node openai_client.mjs BASE_URL VIDEO_URL QUESTION EXPECTED
// Where PARAVT names the binary, a second server is started with a script in place of weights: it calls a client's tool.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createReadStream, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import OpenAI from "openai";
import { VERSION } from "openai/version";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, url, question, expected] = process.argv.slice(2);
const connect = (at) => new OpenAI({ baseURL: at, apiKey: "none", timeout: 300_000, maxRetries: 0 });
const client = connect(baseURL);
const messages = [{ role: "user", content: [{ type: "video_url", video_url: { url } }, { type: "text", text: question }] }];
const input = [{ role: "user", content: [{ type: "input_video", video_url: url }, { type: "input_text", text: question }] }];
// A red pixel.
const PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";
const told = (content) => [{ role: "user", content }];
const right = (text) => (assert.equal(text.trim().toLowerCase(), expected.toLowerCase()), text);
// Enumerations, so that a model of any size comes to an end.
const Sighting = z.object({ color: z.enum(["purple", "orange", "green"]), shape: z.enum(["square", "circle"]), lit: z.boolean() });
const Weather = z.object({ city: z.enum(["Paris", "Oslo"]) });

let failed = 0;
async function check(name, tried) {
  try {
    const detail = await tried();
    console.log(`ok   openai-node ${VERSION} | ${name}${detail ? ` | ${String(detail).replace(/\s+/g, " ").slice(0, 110)}` : ""}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL openai-node ${VERSION} | ${name} | ${error.name}: ${String(error.message).replace(/\s+/g, " ")}`);
    if (process.env.VERBOSE) console.error(error);
  }
}

async function serve(use) {
  assert.ok(process.env.PARAVT, "PARAVT must name the binary");
  const port = await new Promise((resolve) => {
    const free = createServer().listen(0, "127.0.0.1", () => {
      const { port } = free.address();
      free.close(() => resolve(port));
    });
  });
  const folder = mkdtempSync(join(tmpdir(), "paravt-"));
  const call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>';
  const main = [`<think>\nThe tool knows.\n</think>\n${call}`, "<think>\nIt said so.\n</think>\nIt is sunny in Paris."];
  writeFileSync(join(folder, "script.json"), JSON.stringify({ main: main.map((text) => ({ text })) }));
  const server = spawn(process.env.PARAVT, ["serve", "--listen", `127.0.0.1:${port}`, "--engine", "scripted", "--script", join(folder, "script.json")], { stdio: "ignore" });
  const ended = new Promise((resolve) => server.on("exit", resolve));
  try {
    for (let tries = 0; !(await fetch(`http://127.0.0.1:${port}/ready`).catch(() => null))?.ok; tries += 1) {
      assert.ok(tries < 600 && server.exitCode === null, "the server did not become ready");
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    return await use(connect(`http://127.0.0.1:${port}/v1`));
  } finally {
    server.kill();
    await ended;
    rmSync(folder, { recursive: true });
  }
}

const models = [];
for await (const model of client.models.list()) models.push(model.id);
const model = models[0];

await check("chat: whole and streamed answers agree and are right", async () => {
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
  assert.equal(finish, "stop");
  assert.ok(usage.total_tokens > 0);
  return right(text);
});

await check("chat: .stream gathers, with its events", async () => {
  let text = "";
  const runner = client.chat.completions.stream({ model, messages, temperature: 0 }).on("content", (delta) => (text += delta));
  assert.equal(await runner.finalContent(), text);
  return right(text);
});

await check("chat: parse with zod (response_format json_schema)", async () => {
  const reply = await client.chat.completions.parse({ model, messages, temperature: 0, response_format: zodResponseFormat(Sighting, "sighting") });
  Sighting.parse(reply.choices[0].message.parsed);
  return reply.choices[0].message.content;
});

await check("chat: n=2 with logprobs", async () => {
  const reply = await client.chat.completions.create({ model, messages, temperature: 0, n: 2, logprobs: true, top_logprobs: 2 });
  assert.deepEqual(reply.choices.map((choice) => choice.index), [0, 1]);
  for (const choice of reply.choices) {
    right(choice.message.content);
    assert.equal(choice.logprobs.content.map((token) => Buffer.from(token.bytes).toString()).join(""), choice.message.content);
    assert.ok(choice.logprobs.content.every((token) => token.top_logprobs.length === 2));
  }
});

await check("chat: the same text again with the seed that was drawn; the sampling that is told", async () => {
  const said = async (fields) => {
    const reply = await client.chat.completions.create({ model, messages: told("Say something."), temperature: 1.5, top_p: 0.9, max_tokens: 24, ...fields });
    const { content, reasoning_content: thought } = reply.choices[0].message;
    return { text: (content ?? "") + (thought ?? ""), sampling: reply.paravt.sampling };
  };
  const drawn = await said({});
  const { seed, ...rest } = drawn.sampling;
  assert.ok(Number.isSafeInteger(seed), `the seed ${seed}`);
  assert.deepEqual([rest.temperature, rest.top_p, rest.max_tokens, rest.top_k], [1.5, 0.9, 24, null]);
  assert.deepEqual(await said({ seed }), drawn);
  const others = await Promise.all([1, 2, 3].map((other) => said({ seed: other })));
  assert.ok(others.some(({ text }) => text !== drawn.text), "every seed gives one text");
  return `seed ${seed}`;
});

await check("chat: a follow-up about the same video is read from the cache (cached_tokens)", async () => {
  const asked = { model, temperature: 0, paravt: { trace: true } };
  // Seconds that no other check asks about.
  const [video, text] = messages[0].content;
  const talk = told([{ ...video, start: 4, end: 296 }, text]);
  const first = await client.chat.completions.create({ ...asked, messages: talk });
  const follow = [...talk, first.choices[0].message, ...told("How many shapes appear?")];
  const { usage, paravt } = await client.chat.completions.create({ ...asked, messages: follow });
  const read = first.paravt.trace.turns[0].usage.prompt_tokens;
  const cached = paravt.trace.turns[0].usage.cached_tokens;
  assert.ok(cached > 0.9 * read && cached <= usage.prompt_tokens_details.cached_tokens, `${cached} of ${read}: ${JSON.stringify(usage)}`);
  return `${cached} of ${read} tokens of the first prompt`;
});

await check("chat: two videos, of one a part (start, end, fps), and a picture", async () => {
  const [video, text] = messages[0].content;
  const parts = [video, { ...video, start: 20, end: "1:20", fps: 0.1 }, { type: "image_url", image_url: { url: PICTURE } }];
  const plain = { model, max_tokens: 1, paravt: { agent: false, trace: true } };
  const seen = (count) => client.chat.completions.create({ ...plain, messages: told([...parts.slice(0, count), text]) });
  const [one, two, three] = [await seen(1), await seen(2), await seen(3)];
  const overviews = three.paravt.trace.overviews;
  assert.deepEqual(overviews.map((overview) => overview.video), [0, 1]);
  const times = overviews[1].frame_times;
  assert.ok(times.length === 6 && times[0] === 20 && times[5] > 60 && times[5] <= 80, `frames at ${times}`);
  const read = [one, two, three].map(({ usage }) => usage.prompt_tokens);
  assert.ok(read[0] < read[1] && read[1] < read[2], `tokens: ${read}`);
  return `${read} tokens`;
});

await check("tools: runTools calls a function and hands its result back", () =>
  serve(async (tooled) => {
    const cities = [];
    const tool = zodFunction({
      name: "get_weather", parameters: Weather, function: ({ city }) => (cities.push(city), { sky: "sunny" }),
    });
    const runner = tooled.chat.completions.runTools({ model, messages: told("Paris?"), tools: [tool] });
    assert.equal(await runner.finalContent(), "It is sunny in Paris.");
    const streamed = tooled.chat.completions.runTools({ model, messages: told("Paris?"), tools: [tool], stream: true });
    assert.equal(await streamed.finalContent(), "It is sunny in Paris.");
    assert.deepEqual(cities, ["Paris", "Paris"]);
  }));

await check("errors: BadRequestError names the field, NotFoundError", async () => {
  await assert.rejects(client.chat.completions.create({ model, messages: told("?"), temperature: 3 }), (error) =>
    error instanceof OpenAI.BadRequestError && error.param === "temperature");
  await assert.rejects(client.chat.completions.create({ model: "gpt-none", messages: told("?") }), OpenAI.NotFoundError);
});

await check("a stream that is aborted ends", async () => {
  const stream = await client.chat.completions.create({ model, messages, stream: true });
  for await (const _ of stream) {
    stream.controller.abort();
    break;
  }
});

await check("files: create, list, content, ask about it, delete", async () => {
  const path = fileURLToPath(url);
  const stored = await client.files.create({ file: createReadStream(path), purpose: "user_data" });
  const listed = [];
  for await (const file of client.files.list()) listed.push(file.id);
  assert.ok(listed.includes(stored.id));
  assert.deepEqual(Buffer.from(await (await client.files.content(stored.id)).arrayBuffer()), readFileSync(path));
  const content = [{ type: "file", file: { file_id: stored.id } }, { type: "text", text: question }];
  const reply = await client.chat.completions.create({ model, messages: told(content), temperature: 0 });
  right(reply.choices[0].message.content);
  assert.ok((await client.files.delete(stored.id)).deleted);
  await assert.rejects(client.files.retrieve(stored.id), OpenAI.NotFoundError);
});

await check("responses: whole and streamed, gathered by .stream", async () => {
  const whole = await client.responses.create({ model, input, temperature: 0 });
  right(whole.output_text);
  const kinds = [];
  const stream = client.responses.stream({ model, input, temperature: 0 }).on("event", (event) => kinds.push(event.type));
  const final = await stream.finalResponse();
  assert.equal(final.output_text, whole.output_text);
  assert.equal(kinds[0], "response.created");
  assert.equal(kinds.at(-1), "response.completed");
  return whole.output.map((item) => item.type).join(", ");
});

await check("responses: parse with zod (text.format json_schema)", async () => {
  const reply = await client.responses.parse({ model, input, temperature: 0, text: { format: zodTextFormat(Sighting, "sighting") } });
  Sighting.parse(reply.output_parsed);
  return reply.output_text;
});

await check("responses: a tool and its result", () =>
  serve(async (tooled) => {
    const tools = [{ type: "function", name: "get_weather", strict: true, parameters: z.toJSONSchema(Weather) }];
    const first = await tooled.responses.create({ model, input: "Paris?", tools });
    const call = first.output.at(-1);
    assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
    const result = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
    const second = await tooled.responses.create({ model, input: [...told("Paris?"), ...first.output, result], tools });
    assert.equal(second.output_text, "It is sunny in Paris.");
  }));

process.exit(failed ? 1 : 0);
