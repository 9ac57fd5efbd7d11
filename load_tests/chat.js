// Answers in one piece, VUS clients one after another each.
import { ask, checkWhole, DURATION, number, thresholds } from './lib/paravt.js';

export const options = {
  scenarios: { chat: { executor: 'constant-vus', vus: number('VUS', 4), duration: DURATION, gracefulStop: '60s' } },
  thresholds: thresholds({
    http_req_duration: [`p(95)<${number('P95_MS', 10000)}`],
    paravt_ttft: [`p(95)<${number('P95_TTFT_MS', 5000)}`],
    paravt_front: [`p(95)<${number('P95_FRONT_MS', 50)}`],
  }),
};

export default function () {
  checkWhole(ask({}));
}
