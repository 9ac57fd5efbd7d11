// A file sent to /v1/files, told of, asked about, deleted, and then gone. FILE is a short MP4 that is padded to
// UPLOAD_MB with a box that players skip, so that it stays a film.
import http from 'k6/http';
import { check, sleep } from 'k6';
import { Trend } from 'k6/metrics';
import {
  ask, BASE_URL, checkWhole, DURATION, headers, noteLeftOver, noteStatus, number, params, thresholds,
} from './lib/paravt.js';

const megabytes = number('UPLOAD_MB', 32);
const film = open(__ENV.FILE || '../model_cards/paravt-tiny/demo.mp4', 'b');
const uploaded = new Trend('paravt_upload', true);

export const options = {
  scenarios: { upload: { executor: 'constant-vus', vus: number('VUS', 2), duration: DURATION, gracefulStop: '120s' } },
  thresholds: thresholds({
    paravt_upload: [`p(95)<${number('P95_UPLOAD_MS', 10000)}`],
    paravt_left_over: ['value==0'],
  }),
};

// ISO 14496-12, 8.1.2: a `free` box holds nothing that matters.
function padded() {
  const bytes = new Uint8Array(Math.max(film.byteLength + 8, megabytes * 1024 * 1024));
  bytes.set(new Uint8Array(film));
  const box = new DataView(bytes.buffer, film.byteLength);
  box.setUint32(0, bytes.byteLength - film.byteLength);
  [0x66, 0x72, 0x65, 0x65].forEach((byte, at) => box.setUint8(4 + at, byte));
  return bytes.buffer;
}

let bytes = null;

export default function () {
  bytes = bytes || padded();
  const form = { purpose: 'user_data', file: http.file(bytes, 'film.mp4', 'video/mp4') };
  // k6 writes the Content-Type with the boundary itself.
  const own = headers();
  delete own['Content-Type'];
  const sent = http.post(`${BASE_URL}/v1/files`, form, params({ headers: own, tags: { name: 'upload' } }));
  noteStatus(sent);
  uploaded.add(sent.timings.duration);
  if (!check(sent, { 'the upload is accepted': (r) => r.status === 200 || r.status === 201 })) {
    console.error(`upload: ${sent.status} ${sent.body}`);
    sleep(1);
    return;
  }
  const file = sent.json();
  check(file, {
    'it has an id, its size and its name': () =>
      /^file-/.test(file.id) && file.object === 'file' && file.bytes === bytes.byteLength && file.filename === 'film.mp4',
  });
  const url = `${BASE_URL}/v1/files/${file.id}`;

  const told = http.get(url, params({ tags: { name: 'file' } }));
  check(told, { 'it is told of': (r) => r.status === 200 && r.json('id') === file.id });

  checkWhole(ask({ video: { type: 'file', file: { file_id: file.id } } }));

  const deleted = http.del(url, null, params({ tags: { name: 'delete' } }));
  noteStatus(deleted);
  check(deleted, { 'it is deleted': (r) => r.status === 200 && r.json('deleted') === true });
  const gone = http.get(url, params({ tags: { name: 'gone' }, responseCallback: http.expectedStatuses(404) }));
  check(gone, { 'then it is gone': (r) => r.status === 404 });
}

export function teardown() {
  noteLeftOver(sleep);
}
