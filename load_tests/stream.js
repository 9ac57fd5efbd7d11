// Streamed answers. CHUNKS says how many pieces of text each must have (200 for scripts/stream.json).
import { sleep } from 'k6';

import { ask, checkStream, DURATION, number, thresholds } from './lib/paravt.js';

export const options = {
  scenarios: { stream: { executor: 'constant-vus', vus: number('VUS', 16), duration: DURATION, gracefulStop: '60s' } },
  thresholds: thresholds({
    http_req_duration: [`p(95)<${number('P95_MS', 15000)}`],
    paravt_ttft: [`p(95)<${number('P95_TTFT_MS', 5000)}`],
    paravt_first_answer: [`p(95)<${number('P95_FIRST_ANSWER_MS', 10000)}`],
    paravt_itl: [`p(95)<${number('P95_ITL_MS', 200)}`],
    paravt_front: [`p(95)<${number('P95_FRONT_MS', 50)}`],
  }),
};

const chunks = number('CHUNKS', 0);

export default function () {
  // Streams that all end in the same moment would measure how long k6 takes to read them.
  if (__ITER === 0) sleep(2 * Math.random());
  checkStream(ask({ stream: true }), chunks);
}
