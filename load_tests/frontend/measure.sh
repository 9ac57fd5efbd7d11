#!/usr/bin/env bash
# The front end on its own: streams, silent connections and whole answers of the scripted engine, each beside a server that
# does next to nothing. Prints JSON. Measure on an idle machine: client and server share it.
#
#   load_tests/frontend/measure.sh [STREAMS]       1000 if none is given
#
# PARAVT is the program (by default the release build), PORT and the next one are free ports.
set -euo pipefail
cd "$(dirname "$0")/../.."
streams="${1:-1000}"
port="${PORT:-18092}"
paravt="${PARAVT:-${CARGO_TARGET_DIR:-target}/release/paravt}"
client=(node load_tests/frontend/streams.mjs)
# shellcheck source=../lib/need.sh
source load_tests/lib/need.sh
need node 'the front end' 'install Node 20 or newer' || exit 0
need curl 'the front end' 'install it' || exit 0
ulimit -n "$(ulimit -Hn)"
server=
stop() {
  if [ -n "$server" ] && kill "$server" 2>/dev/null; then wait "$server" 2>/dev/null || true; fi
  server=
}
trap stop EXIT
scripted() {
  stop
  PARAVT_LOG=warn PARAVT_SERVER_MAX_RUNNING=100000 "$paravt" serve --engine scripted \
    --script "load_tests/scripts/$1.json" --listen "127.0.0.1:$port" &
  server=$!
  for _ in $(seq 100); do curl -sf "http://127.0.0.1:$port/ready" >/dev/null && return; sleep 0.1; done
  echo 'the server did not become ready' >&2
  exit 1
}
measure() { # title, command, its arguments
  printf '\n== %s\n' "$1"
  "${client[@]}" "${@:2}" --url "http://127.0.0.1:$port" --pid "$server"
}

"${client[@]}" control --port "$port" &
server=$!
sleep 1
measure "control: $streams streams, a chunk every 50 ms" streams --streams "$streams"
measure 'control: whole answers, one after another' whole
measure 'control: whole answers, 16 at once' whole --at-once 16 --requests 20000

scripted stream
measure 'paravt: one stream, a chunk every 50 ms' streams --streams 1
measure "paravt: $streams streams, a chunk every 50 ms" streams --streams "$streams"
measure "paravt: the same again (memory)" streams --streams "$streams"
scripted instant
measure 'paravt: GET /health, one after another' whole --path /health
measure 'paravt: whole answers, one after another' whole
measure 'paravt: whole answers, 16 at once' whole --at-once 16 --requests 20000
scripted silent
measure "paravt: $streams streams, open and silent" idle --streams "$streams"
measure "paravt: the same again (memory)" idle --streams "$streams"
scripted silent
measure "paravt: $streams connections without a request" idle --bare --streams "$streams"
