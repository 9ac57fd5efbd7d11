// Mixed traffic for as long as DURATION says: whole answers, streams, streams with events and trace, clients that leave in
// the middle, requests that are wrong. Then nothing may run, wait or decode any more.
//
// k6 logs a warning for each client that leaves: a timeout is how it can do that.
import http from 'k6/http';
import { check, sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';
import {
  ask, BASE_URL, CHAT, checkStream, checkWhole, DURATION, metrics, MODEL, noteLeftOver, noteStatus, number, params, thresholds,
} from './lib/paravt.js';

const vus = number('VUS', 8);
// The longest that a leaving client stays, in milliseconds.
const leaves = number('LEAVES_MS', 400);
const left = new Counter('paravt_clients_left');
const cancelled = new Trend('paravt_cancelled_share');

export const options = {
  scenarios: { soak: { executor: 'constant-vus', vus, duration: DURATION, gracefulStop: '120s' } },
  teardownTimeout: '120s',
  thresholds: thresholds({
    paravt_left_over: ['value==0'],
    paravt_front: [`p(95)<${number('P95_FRONT_MS', 250)}`],
    paravt_clients_left: ['count>0'],
  }),
};

const kinds = [
  [30, () => checkWhole(ask({}))],
  [30, () => checkStream(ask({ stream: true }))],
  [15, () => checkStream(ask({ stream: true, paravt: { events: true, trace: true } }))],
  [15, leave],
  [5, wrong],
  [5, look],
];
const total = kinds.reduce((sum, [weight]) => sum + weight, 0);

function leave() {
  const stream = Math.random() < 0.5;
  const timeout = `${Math.ceil(Math.random() * leaves)}ms`;
  const response = ask({ stream }, { timeout, tags: { name: 'leaving' } });
  // 1050: k6's own timeout. Some answers are faster than that.
  const away = response.error_code === 1050;
  left.add(away ? 1 : 0);
  check(response, { 'a leaving client got no error': () => away || response.status === 200 });
}

function wrong() {
  const bodies = [
    '{',
    JSON.stringify({ model: MODEL, messages: [] }),
    JSON.stringify({ model: MODEL, messages: [{ role: 'user', content: 'hi' }], temperature: 'hot' }),
    JSON.stringify({ model: 'no-such-model', messages: [{ role: 'user', content: 'hi' }] }),
    JSON.stringify({
      model: MODEL,
      messages: [{ role: 'user', content: [{ type: 'video_url', video_url: { url: 'file:///etc/passwd' } }, { type: 'text', text: 'hi' }] }],
    }),
  ];
  const expected = http.expectedStatuses({ min: 400, max: 404 });
  const text = bodies[Math.floor(Math.random() * bodies.length)];
  const response = http.post(CHAT, text, params({ responseCallback: expected, tags: { name: 'wrong' } }));
  noteStatus(response);
  check(response, {
    'what is wrong is told': (r) => r.status >= 400 && r.status <= 404 && !!r.json('error.message'),
  });
}

function look() {
  const path = ['/health', '/ready', '/v1/models', '/metrics'][Math.floor(Math.random() * 4)];
  const response = http.get(`${BASE_URL}${path}`, params({ tags: { name: 'look' } }));
  noteStatus(response);
  check(response, { 'what tells of the server answers': (r) => r.status === 200 });
}

export function setup() {
  left.add(0);
  return outcomes(metrics());
}

export default function () {
  let at = Math.random() * total;
  const [, act] = kinds.find(([weight]) => (at -= weight) < 0) || kinds[0];
  act();
}

function outcomes(series) {
  const of = (outcome) => series[`paravt_agent_episodes_total{outcome="${outcome}"}`] || 0;
  // An episode whose video may not be opened is over with an error, as it should be.
  const refused = series['paravt_api_requests_total{route="/v1/chat/completions",status="403"}'] || 0;
  return { ok: of('ok'), error: of('error') - refused, cancelled: of('cancelled') };
}

export function teardown(before) {
  const after = outcomes(noteLeftOver(sleep, 30));
  const [ok, error, gone] = ['ok', 'error', 'cancelled'].map((outcome) => after[outcome] - before[outcome]);
  cancelled.add(gone / (ok + error + gone));
  console.log(`episodes: ${ok} answered, ${error} failed, ${gone} left by their clients`);
  check(error, { 'no episode failed': () => error === 0, 'some were answered': () => ok > 0 });
}
