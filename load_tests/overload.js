// Five times more than the server can do, for two minutes: what is taken on must be served as if nothing were, the rest
// refused at once.
//
// CAPACITY is what the server can do in answers a second: `server.max_running` over the seconds that one answer takes. Who is
// accepted under overload waits in a full queue, for about `max_queued / max_running` answers: FACTOR 1.5 asks for a queue well
// below half of `max_running`. SHORTEST and LONGEST draw each request's `max_tokens`: answers of one length would all end and
// begin together, and the queue would wait for a whole one. BASELINE_AT is how many requests at once count as unloaded: 1, or
// `max_running` where all share one processor, which makes each slower without any overload.
import { check, sleep } from 'k6';
import http from 'k6/http';
import { Counter, Rate, Trend } from 'k6/metrics';
import { ask, body, CHAT, noteLeftOver, noteStatus, number, params, seconds, serverTiming, thresholds } from './lib/paravt.js';

http.setResponseCallback(http.expectedStatuses(200, 429));

const duration = __ENV.DURATION || '2m';
const capacity = number('CAPACITY', 16);
const rate = Math.round(capacity * number('TIMES', 5));
const asked = rate * seconds(duration);
const factor = number('FACTOR', 1.5);

const shortest = number('SHORTEST', 0);
const longest = number('LONGEST', 0);
const draw = () => (longest > 0 ? { max_tokens: Math.floor(shortest + Math.random() * (longest - shortest + 1)) } : {});
const together = number('BASELINE_AT', 1);

const accepted = new Counter('paravt_accepted');
const refused = new Counter('paravt_refused');
const acceptedTime = new Trend('paravt_accepted_time', true);
const refusedTime = new Trend('paravt_refused_time', true);
const other = new Counter('paravt_other_status');
const retryAfter = new Rate('paravt_refused_with_retry_after');
// p99 of the accepted within FACTOR of the unloaded p99, put as a rate: k6 knows no threshold that compares two metrics.
const within = new Rate('paravt_accepted_within_factor');
// The same without the time in the queue: what load does to an episode that has its place.
const episodeWithin = new Rate('paravt_episode_within_factor');
const baseline = new Trend('paravt_unloaded_time', true);

export const options = {
  scenarios: {
    overload: {
      executor: 'constant-arrival-rate', rate, timeUnit: '1s', duration, gracefulStop: '60s',
      // Refusals come back at once; those accepted hold a user for as long as an answer takes.
      preAllocatedVUs: Math.min(1000, rate * 2), maxVUs: Math.min(2000, rate * 4),
    },
  },
  setupTimeout: '300s',
  batch: together,
  batchPerHost: together,
  summaryTrendStats: ['min', 'med', 'p(95)', 'p(99)', 'max'],
  thresholds: thresholds({
    paravt_accepted: [`count>${Math.floor(0.8 * capacity * seconds(duration))}`],
    paravt_refused: [`count>${Math.floor(0.5 * (asked - capacity * seconds(duration)))}`],
    paravt_other_status: ['count==0'],
    paravt_refused_with_retry_after: ['rate==1'],
    paravt_refused_time: [`p(95)<${number('P95_REFUSED_MS', 10)}`],
    paravt_accepted_within_factor: ['rate>=0.99'],
    paravt_episode_within_factor: ['rate>=0.99'],
    // Requests that k6 itself could not send: with many of them this was no such load.
    dropped_iterations: [`count<${Math.max(1, Math.floor(asked / 100))}`],
    paravt_left_over: ['value==0'],
  }),
};

export function setup() {
  // The first round opens connections and fills caches.
  const times = [];
  const episodes = [];
  for (let round = -1; times.length < number('BASELINE', 40); round++) {
    const requests = Array.from({ length: together }, () => ({ method: 'POST', url: CHAT, body: body(draw()), params: params() }));
    for (const response of http.batch(requests)) {
      if (response.status !== 200) throw new Error(`the unloaded server answered ${response.status}: ${response.body}`);
      if (round < 0) continue;
      times.push(response.timings.duration);
      episodes.push(serverTiming(response).total);
      baseline.add(response.timings.duration);
    }
  }
  other.add(0);
  return { unloaded: percentile(times, 0.99), episode: percentile(episodes, 0.99) };
}

function percentile(values, part) {
  const sorted = values.slice().sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.ceil(part * sorted.length) - 1)];
}

export default function ({ unloaded, episode }) {
  const response = ask(draw());
  noteStatus(response);
  const time = response.timings.duration;
  if (response.status === 200) {
    accepted.add(1);
    acceptedTime.add(time);
    within.add(time <= factor * unloaded);
    episodeWithin.add(serverTiming(response).total <= factor * episode);
  } else if (response.status === 429) {
    refused.add(1);
    refusedTime.add(time);
    retryAfter.add(Number(response.headers['Retry-After']) > 0);
  } else {
    other.add(1, { status: String(response.status) });
  }
}

export function teardown({ unloaded }) {
  noteLeftOver(sleep);
  const after = ask(draw());
  check(after, {
    'afterwards it answers as before': (r) => r.status === 200 && r.timings.duration <= factor * unloaded,
  });
}
