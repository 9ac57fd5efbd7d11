// What the scripts share: settings from the environment, one way to ask, and what is measured of each answer.
//
// k6 hands a response over when all of it has arrived, so no chunk has an arrival time here. What a stream's times were is
// read from where the server tells them: `paravt.timing` in the last chunk, `Server-Timing` on an answer in one piece.
// frontend/streams.mjs notes real arrival times.
import http from 'k6/http';
import { check } from 'k6';
import { Gauge, Rate, Trend } from 'k6/metrics';

export const BASE_URL = (__ENV.BASE_URL || 'http://127.0.0.1:8080').replace(/\/+$/, '');
export const MODEL = __ENV.MODEL || 'paravt';
// Without a video the question is text alone: one plain completion, and nothing but the front end is measured.
export const VIDEO_URL = __ENV.VIDEO_URL || '';
export const QUESTION = __ENV.QUESTION || 'Which shapes appear while the border is lit? List them in order.';
// The answer, when it is known: compared in lower case.
export const EXPECT = (__ENV.EXPECT || '').toLowerCase();
export const DURATION = __ENV.DURATION || '30s';
export const TIMEOUT = __ENV.TIMEOUT || '300s';

/** A number from the environment. */
export function number(name, otherwise) {
  const text = __ENV[name];
  if (text === undefined || text === '') return otherwise;
  const value = Number(text);
  if (Number.isNaN(value)) throw new Error(`${name} is not a number: ${text}`);
  return value;
}

/** Seconds of "90s", "2m" or "1h". */
export function seconds(text) {
  const found = /^([\d.]+)(s|m|h)$/.exec(text);
  if (!found) throw new Error(`DURATION is one number with s, m or h, not ${text}`);
  return Number(found[1]) * { s: 1, m: 60, h: 3600 }[found[2]];
}

// All but `front` as the server tells them, counted from when the request is understood.
const ttft = new Trend('paravt_ttft', true);
const firstAnswer = new Trend('paravt_first_answer', true);
const itl = new Trend('paravt_itl', true);
const queued = new Trend('paravt_queue', true);
const episode = new Trend('paravt_episode', true);
// What the client waited beyond what the server counts: connection, reading and writing HTTP and JSON, scheduling.
const front = new Trend('paravt_front', true);
const serverErrors = new Rate('paravt_server_errors');
const leftOver = new Gauge('paravt_left_over');

/** Limits that hold for every script; `more` adds a script's own. */
export function thresholds(more) {
  return Object.assign({ checks: ['rate==1'], paravt_server_errors: ['rate==0'] }, more);
}

export function headers(more) {
  const all = Object.assign({ 'Content-Type': 'application/json' }, more);
  if (__ENV.API_KEY) all.Authorization = `Bearer ${__ENV.API_KEY}`;
  return all;
}

/** A request body. `video` is a content part, or null for none. */
export function body({ stream = false, video = videoPart(), question = QUESTION, max_tokens, paravt } = {}) {
  const content = video ? [video, { type: 'text', text: question }] : question;
  const all = { model: MODEL, messages: [{ role: 'user', content }], temperature: 0, stream };
  if (stream) all.stream_options = { include_usage: true };
  if (max_tokens) all.max_tokens = max_tokens;
  if (paravt) all.paravt = paravt;
  return JSON.stringify(all);
}

export function videoPart() {
  return VIDEO_URL ? { type: 'video_url', video_url: { url: VIDEO_URL } } : null;
}

export function params(more) {
  return Object.assign({ headers: headers(), timeout: TIMEOUT }, more);
}

export const CHAT = `${BASE_URL}/v1/chat/completions`;

export function ask(request, more) {
  return http.post(CHAT, body(request), params(more));
}

/** Notes whether the server failed: a status of 500 or more, or none at all. */
export function noteStatus(response) {
  serverErrors.add(response.status === 0 || response.status >= 500);
}

/** Server-Timing as an object of milliseconds. */
export function serverTiming(response) {
  const entries = {};
  for (const entry of (response.headers['Server-Timing'] || '').split(',')) {
    const found = /^\s*([\w-]+);dur=([\d.]+)/.exec(entry);
    if (found) entries[found[1]] = Number(found[2]);
  }
  return entries;
}

function noteTiming(timing, waitedForFirst, response) {
  queued.add(timing.queue_ms);
  episode.add(timing.total_ms);
  if (timing.first_token_ms !== null) ttft.add(timing.queue_ms + timing.first_token_ms);
  if (timing.first_answer_ms !== null) firstAnswer.add(timing.queue_ms + timing.first_answer_ms);
  // A stream's head goes out with its first text: what the client waited for it is its own time to first token.
  const { client, server } = waitedForFirst
    ? { client: response.timings.waiting, server: timing.queue_ms + (timing.first_token_ms || 0) }
    : { client: response.timings.duration, server: timing.queue_ms + timing.total_ms };
  front.add(Math.max(0, client - server));
}

const usageAdds = (usage) =>
  !!usage && usage.completion_tokens > 0 && usage.total_tokens === usage.prompt_tokens + usage.completion_tokens;
const asExpected = (text) => text.trim() !== '' && (EXPECT === '' || text.trim().toLowerCase() === EXPECT);

/** Checks an answer in one piece. Gives its object, or null. */
export function checkWhole(response) {
  noteStatus(response);
  if (!check(response, { 'status is 200': (r) => r.status === 200 })) return null;
  const answer = response.json();
  const timing = serverTiming(response);
  check(response, {
    'the answer is there': () => asExpected(answer.choices[0].message.content),
    'finish_reason is there': () => ['stop', 'length'].includes(answer.choices[0].finish_reason),
    'usage adds up': () => usageAdds(answer.usage),
    'Server-Timing agrees with paravt.timing': () =>
      timing.first_token >= 0 && Math.abs(timing.total - answer.paravt.timing.total_ms) < 0.1,
    'the request has an id': (r) => !!r.headers['X-Request-Id'],
  });
  noteTiming(answer.paravt.timing, false, response);
  return answer;
}

/** All `data:` events of a stream in order; the last may be `[DONE]`. */
export function events(text) {
  return text.split('\n\n').filter((block) => block.startsWith('data: ')).map((block) => block.slice(6));
}

/** Checks a stream from its head to `[DONE]`. `chunks`: how many pieces of text there must be, where that is known. */
export function checkStream(response, chunks = 0) {
  noteStatus(response);
  if (!check(response, { 'status is 200': (r) => r.status === 200 })) return null;
  const all = events(response.body);
  const done = all.pop() === '[DONE]';
  // Without [DONE] the last one popped was a chunk or an error: the check below says so.
  const objects = all.map((line) => JSON.parse(line));
  const last = objects[objects.length - 1] || {};
  const choices = objects.flatMap((object) => object.choices || []);
  const answered = choices.map((choice) => choice.delta.content).filter((text) => text);
  const text = answered.join('');
  const timing = (last.paravt || {}).timing;
  check(response, {
    'it is an event stream': (r) => (r.headers['Content-Type'] || '').startsWith('text/event-stream'),
    'it ends with [DONE]': () => done,
    'no event is an error': () => objects.every((object) => !object.error),
    'the role comes first': () => choices.length > 0 && choices[0].delta.role === 'assistant',
    'one finish_reason, last': () =>
      choices.filter((choice) => choice.finish_reason !== null).length === 1 &&
      choices[choices.length - 1].finish_reason !== null,
    'the answer is there': () => asExpected(text),
    'no chunk is missing': () => chunks === 0 || answered.length === chunks,
    'usage is in the last chunk and adds up': () => usageAdds(last.usage),
    'timing is in the last chunk': () => !!timing && timing.total_ms > 0,
  });
  if (!timing) return null;
  noteTiming(timing, true, response);
  // The mean gap between the answer's pieces, from the server's times: single gaps can't be seen.
  if (answered.length > 1) itl.add((timing.total_ms - timing.first_answer_ms) / (answered.length - 1));
  return { objects, text };
}

/** /metrics as a map from a series (`name` or `name{labels}`) to its value. */
export function metrics() {
  const response = http.get(`${BASE_URL}/metrics`, params({ tags: { name: 'metrics' } }));
  if (response.status !== 200) throw new Error(`/metrics answered ${response.status}`);
  const series = {};
  for (const line of response.body.split('\n')) {
    if (line && !line.startsWith('#')) series[line.slice(0, line.lastIndexOf(' '))] = Number(line.slice(line.lastIndexOf(' ') + 1));
  }
  return series;
}

const GAUGES = ['paravt_api_running', 'paravt_api_queued', 'paravt_engine_running', 'paravt_engine_queued', 'paravt_media_processes'];

/**
 * For teardown: waits until nothing runs, waits or decodes any more, and notes the sum of what still does after `patience`
 * seconds (threshold `paravt_left_over: ['value==0']`). Ask only when no one else uses the server.
 */
export function noteLeftOver(sleep, patience = 15) {
  for (let tries = 0; ; tries++) {
    const now = metrics();
    const left = GAUGES.filter((name) => now[name] > 0);
    if (left.length === 0 || tries >= patience * 4) {
      if (left.length > 0) console.error(`left over: ${left.map((name) => `${name} ${now[name]}`).join(', ')}`);
      leftOver.add(left.reduce((sum, name) => sum + now[name], 0));
      return now;
    }
    sleep(0.25);
  }
}
