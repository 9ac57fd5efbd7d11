// Many streams at once, with the arrival time of every chunk: what k6 can't see, and cheaper than k6 by far.
//
//   node streams.mjs streams --url URL [--streams 1000] [--tokens 200] [--every 50] [--pid SERVER]
//   node streams.mjs idle    --url URL [--streams 1000] [--bare] [--silent SECONDS] --pid SERVER
//   node streams.mjs whole   --url URL [--requests 5000] [--at-once 1] [--path /health] [--pid SERVER]
//   node streams.mjs control [--port 18799] [--tokens 200] [--every 50]     the server to compare with: it does next to nothing
//
// Node without packages. Plain sockets and one shared read buffer: about 13 µs of processor time a chunk. It looks for
// `"content":"NNNN"`, the numbered pieces of ../scripts/stream.json, and parses no JSON. API_KEY is sent where it is set.
// Every figure that is written as JSON to stdout is explained in ../README.md.
import { readFileSync } from 'node:fs';
import net from 'node:net';
import { parseArgs } from 'node:util';

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: 'string', default: 'http://127.0.0.1:8080' },
    streams: { type: 'string', default: '1000' },
    tokens: { type: 'string', default: '200' },
    every: { type: 'string', default: '50' },
    requests: { type: 'string', default: '5000' },
    'at-once': { type: 'string', default: '1' },
    path: { type: 'string' },
    port: { type: 'string', default: '18799' },
    pid: { type: 'string' },
    bare: { type: 'boolean', default: false },
    silent: { type: 'string', default: '15' },
  },
});
const [count, tokens, every, requests, atOnce] = ['streams', 'tokens', 'every', 'requests', 'at-once'].map((name) => Number(values[name]));
const url = new URL(values.url);
const MARK = Buffer.from('"content":"');
const DONE = Buffer.from('data: [DONE]');
const HEAD_END = Buffer.from('\r\n\r\n');

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const round = (value) => Math.round(value * 1000) / 1000;

/** Least to most, at a few places. Sorts `numbers`. */
function places(numbers) {
  if (numbers.length === 0) return null;
  const sorted = Float64Array.from(numbers).sort();
  const at = (part) => round(sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))]);
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: round(sorted[sorted.length - 1]) };
}

/** Resident memory and processor seconds of the server, where it is on this machine. */
function server() {
  if (!values.pid) return null;
  const status = readFileSync(`/proc/${values.pid}/status`, 'utf8');
  const fields = readFileSync(`/proc/${values.pid}/stat`, 'utf8').split(') ')[1].split(' ');
  // proc(5): utime and stime are the 14th and 15th field; a tick is 10 ms.
  return { rss_kb: Number(/VmRSS:\s+(\d+)/.exec(status)[1]), cpu_s: (Number(fields[11]) + Number(fields[12])) / 100 };
}

function post(stream) {
  const body = JSON.stringify({
    model: 'paravt', stream, messages: [{ role: 'user', content: 'hi' }],
    ...(stream ? { stream_options: { include_usage: true } } : {}),
  });
  const key = process.env.API_KEY ? `authorization: Bearer ${process.env.API_KEY}\r\n` : '';
  return Buffer.from(
    `POST /v1/chat/completions HTTP/1.1\r\nhost: ${url.host}\r\n${key}content-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
}

// All sockets read into one buffer: what is in it is dealt with before the next read.
const shared = Buffer.allocUnsafe(256 * 1024);

function connect(onBytes, onClose) {
  const socket = net.connect({
    host: url.hostname, port: Number(url.port || 80), noDelay: true,
    onread: { buffer: shared, callback: (length) => (onBytes(shared.subarray(0, length)), true) },
  });
  socket.on('error', (error) => onClose(error));
  socket.on('close', () => onClose());
  return socket;
}

/** One stream: arrival times of its pieces, and what was wrong with them. */
function follow(request) {
  const stream = { arrivals: new Float64Array(tokens), seen: 0, wrong: 0, opened: 0, status: 0, done: false, sent: 0, reads: 0 };
  stream.over = new Promise((resolve) => {
    let carry = null;
    const read = (bytes) => {
      const now = performance.now();
      stream.reads += 1;
      if (carry) bytes = Buffer.concat([carry, bytes]);
      carry = null;
      if (stream.status === 0) {
        if (bytes.indexOf(HEAD_END) < 0) return void (carry = Buffer.from(bytes));
        stream.status = Number(bytes.toString('latin1', 9, 12));
        stream.opened = now;
        if (stream.status !== 200) return socket.destroy();
      }
      let at = 0;
      for (let mark = bytes.indexOf(MARK, at); mark >= 0; mark = bytes.indexOf(MARK, at)) {
        at = mark + MARK.length;
        // The chunk with the role has an empty text.
        if (bytes[at] === 0x22) continue;
        if (at + 4 > bytes.length) {
          at = mark;
          break;
        }
        const number = (bytes[at] - 48) * 1000 + (bytes[at + 1] - 48) * 100 + (bytes[at + 2] - 48) * 10 + bytes[at + 3] - 48;
        if (number === stream.seen && number < tokens) stream.arrivals[stream.seen++] = now;
        else stream.wrong += 1;
      }
      if (bytes.indexOf(DONE, at) >= 0) {
        stream.done = true;
        return socket.destroy();
      }
      // A mark may be cut anywhere; what ends a chunk can't be the beginning of one.
      if (bytes[bytes.length - 1] !== 0x0a) carry = Buffer.from(bytes.subarray(Math.max(at, bytes.length - 64)));
    };
    const socket = connect(read, resolve);
    stream.socket = socket;
    socket.once('connect', () => {
      stream.sent = performance.now();
      socket.write(request);
    });
  });
  return stream;
}

async function streams() {
  const request = post(true);
  const before = server();
  const cpu = process.cpuUsage();
  const began = performance.now();
  const all = [];
  // Spread over one second, as clients are, and so that not all timers fire in the same millisecond.
  for (let i = 0; i < count; i++) {
    all.push(follow(request));
    const ahead = began + (1000 * (i + 1)) / count - performance.now();
    if (ahead > 1) await sleep(ahead);
  }
  await sleep((tokens * every) / 2);
  const during = server();
  await Promise.all(all.map((stream) => stream.over));
  const wall = (performance.now() - began) / 1000;
  const used = process.cpuUsage(cpu);
  const after = server();

  const [gaps, late, end, first, heads] = [[], [], [], [], []];
  for (const { arrivals, seen, sent, opened } of all) {
    if (seen > 0) first.push(arrivals[0] - sent);
    if (opened > 0) heads.push(opened - sent);
    for (let i = 1; i < seen; i++) {
      gaps.push(arrivals[i] - arrivals[i - 1] - every);
      late.push(arrivals[i] - arrivals[0] - i * every);
    }
    if (seen === tokens) end.push((arrivals[seen - 1] - arrivals[0]) / (seen - 1) - every);
  }
  const sum = (pick) => all.reduce((total, stream) => total + pick(stream), 0);
  const chunks = sum((stream) => stream.seen);
  const seconds = (used.user + used.system) / 1e6;
  report({
    streams: count, chunks_expected: count * tokens, chunks_missing: count * tokens - chunks, chunks_wrong: sum((stream) => stream.wrong),
    streams_not_200: sum((stream) => (stream.status === 200 ? 0 : 1)), streams_without_done: sum((stream) => (stream.done ? 0 : 1)),
    chunks_a_second: Math.round(chunks / wall), reads: sum((stream) => stream.reads),
    first_chunk_ms: places(first), gap_beyond_ms: places(gaps), pace_beyond_ms: places(end), late_ms: places(late),
    client_cpu_s: round(seconds), client_us_a_chunk: round((seconds / chunks) * 1e6),
    ...(before && {
      server_cpu_s: round(after.cpu_s - before.cpu_s), server_us_a_chunk: round(((after.cpu_s - before.cpu_s) / chunks) * 1e6),
      server_cores: round((after.cpu_s - before.cpu_s) / wall),
      server_rss_kb: { before: before.rss_kb, during: during.rss_kb, after: after.rss_kb, a_stream: round((during.rss_kb - before.rss_kb) / count) },
    }),
  });
}

/** Connections that are open and silent. `--bare`: without a request. Long enough for the server's first comment on each. */
async function idle() {
  const request = post(true);
  const before = server();
  const sockets = [];
  let [open, closed] = [0, 0];
  for (let i = 0; i < count; i++) {
    const socket = connect(() => {}, () => (closed += 1));
    socket.once('connect', () => {
      open += 1;
      if (!values.bare) socket.write(request);
    });
    sockets.push(socket);
    if (i % 100 === 99) await sleep(20);
  }
  await sleep(Number(values.silent) * 1000);
  const during = server();
  const lost = closed;
  sockets.forEach((socket) => socket.destroy());
  await sleep(3000);
  const after = server();
  report({
    connections: open, closed_by_server: lost, cpu_s_while_silent: round(during.cpu_s - before.cpu_s),
    server_rss_kb: { before: before.rss_kb, during: during.rss_kb, after: after.rss_kb },
    kb_a_connection: round((during.rss_kb - before.rss_kb) / open),
  });
}

/** Whole answers one after another on kept connections. */
async function whole() {
  const request = values.path ? Buffer.from(`GET ${values.path} HTTP/1.1\r\nhost: ${url.host}\r\n\r\n`) : post(false);
  const times = [];
  let [left, wrong] = [requests, 0];
  const before = server();
  const cpu = process.cpuUsage();
  const began = performance.now();
  const lane = () =>
    new Promise((resolve) => {
      let [sent, got, wanted] = [0, 0, 0];
      const next = () => {
        if (left-- <= 0) return socket.destroy();
        [got, wanted, sent] = [0, 0, performance.now()];
        socket.write(request);
      };
      const socket = connect((bytes) => {
        if (wanted === 0) {
          // Heads are short: they come in one read.
          const head = bytes.toString('latin1', 0, bytes.indexOf(HEAD_END) + 4);
          if (!head.startsWith('HTTP/1.1 200')) wrong += 1;
          wanted = head.length + Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
        }
        got += bytes.length;
        if (got < wanted) return;
        times.push(performance.now() - sent);
        next();
      }, resolve);
      socket.once('connect', next);
    });
  await Promise.all(Array.from({ length: atOnce }, lane));
  const wall = (performance.now() - began) / 1000;
  const used = process.cpuUsage(cpu);
  const after = server();
  report({
    requests: times.length, at_once: atOnce, not_200: wrong, a_second: Math.round(times.length / wall), ms: places(times),
    client_us_a_request: round((used.user + used.system) / times.length),
    ...(before && { server_us_a_request: round(((after.cpu_s - before.cpu_s) / times.length) * 1e6) }),
  });
}

/** Sends the same bytes at the same pace, and does nothing else: no parsing, no JSON, no episode. */
function control() {
  const common = `"id":"chatcmpl-01a22cb2b61071abb7050b4a1545d8b0","object":"chat.completion.chunk","created":1796046239,"model":"paravt-tiny"`;
  const chunk = (text) => {
    const line = `data: {${common},"choices":[{"index":0,"delta":{"content":"${text}"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n`;
    return Buffer.from(`${line.length.toString(16)}\r\n${line}\r\n`);
  };
  const pieces = Array.from({ length: tokens }, (_, i) => chunk(String(i).padStart(4, '0')));
  const head = Buffer.from('HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n');
  const end = Buffer.from('e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n');
  const body = `{${'x'.repeat(722)}}`;
  const answer = Buffer.from(`HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
  net
    .createServer({ noDelay: true }, (socket) => {
      socket.on('error', () => socket.destroy());
      socket.on('data', (bytes) => {
        if (bytes.indexOf('"stream":true') < 0) return void socket.write(answer);
        socket.write(head);
        let at = 0;
        const step = () => {
          if (socket.destroyed) return;
          socket.write(pieces[at++]);
          if (at < tokens) setTimeout(step, every);
          else socket.write(end);
        };
        setTimeout(step, every);
      });
    })
    .listen({ port: Number(values.port), host: '127.0.0.1', backlog: 4096 });
}

function report(figures) {
  console.log(JSON.stringify({ what: positionals[0], ...figures }, null, 1));
}

const commands = { streams, idle, whole, control };
const command = commands[positionals[0]];
if (!command) {
  console.error(`one of ${Object.keys(commands).join(', ')}`);
  process.exit(2);
}
await command();
