// BURST episodes at the very same moment (32), again and again for DURATION, and what each burst took as a whole.
// Needs VIDEO_URL. WINDOWS says how many windows each episode must have watched (5 for scripts/five_windows.json).
import http from 'k6/http';
import { check, sleep } from 'k6';
import { Trend } from 'k6/metrics';
import { body, CHAT, checkWhole, DURATION, noteLeftOver, number, params, thresholds, VIDEO_URL } from './lib/paravt.js';

const size = number('BURST', 32);
const windows = number('WINDOWS', 0);
const took = new Trend('paravt_burst', true);
// The last answer's time over the first one's: 1 when all are served alike.
const spread = new Trend('paravt_burst_spread');

export const options = {
  // One user, whose batch goes out on as many connections as it has requests.
  scenarios: { burst: { executor: 'constant-vus', vus: 1, duration: DURATION, gracefulStop: '120s' } },
  batch: size,
  batchPerHost: size,
  thresholds: thresholds({
    paravt_burst: [`p(95)<${number('P95_BURST_MS', 60000)}`],
    paravt_front: [`p(95)<${number('P95_FRONT_MS', 250)}`],
    paravt_left_over: ['value==0'],
  }),
};

export function setup() {
  if (!VIDEO_URL) throw new Error('VIDEO_URL is needed: an episode is about a video');
}

export default function () {
  const request = { method: 'POST', url: CHAT, body: body({ paravt: { trace: true } }), params: params() };
  const began = Date.now();
  const responses = http.batch(Array.from({ length: size }, () => request));
  took.add(Date.now() - began);
  const times = responses.map((response) => response.timings.duration);
  spread.add(Math.max(...times) / Math.min(...times));
  for (const response of responses) {
    const answer = checkWhole(response);
    if (!answer) continue;
    const watched = answer.paravt.trace.windows;
    check(watched, {
      'the windows that were called were watched': () =>
        watched.every((window) => ['ok', 'shared'].includes(window.status)) && (windows === 0 || watched.length === windows),
    });
  }
}

export function teardown() {
  noteLeftOver(sleep);
}
