#!/usr/bin/env bash
# How long `paravt batch` takes over its ninety-minute example, beside ffmpeg decoding all of the same file and doing nothing else:
#   load_tests/batch/measure.sh [RUNS]
# PARAVT names the program (default target/release/paravt). Runs take turns; then precision and recall of the last one.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=../lib/need.sh
source load_tests/lib/need.sh
runs="${1:-3}"
program="${PARAVT:-target/release/paravt}"
unset PARAVT   # not a setting of the program's
need ffmpeg batch 'install it (apt-get install ffmpeg)' || exit 0

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$program" batch --example "$work" >/dev/null
seconds() {
  local begin
  begin="$(date +%s.%N)"
  "$@" >/dev/null 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  awk -v begin="$begin" -v end="$(date +%s.%N)" 'BEGIN { print end - begin }'
}
median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

: >"$work/decode"; : >"$work/batch"
for run in $(seq "$runs"); do
  decode="$(seconds ffmpeg -v error -nostdin -i "$work/match.mp4" -f null -)"
  rm -f "$work"/results.jsonl*
  batch="$(seconds "$program" batch "$work/tasks.jsonl" --events windows --out "$work/results.jsonl")"
  echo "$decode" >>"$work/decode"; echo "$batch" >>"$work/batch"
  printf 'run %s: decoding all of it %.1f s, batch %.1f s\n' "$run" "$decode" "$batch"
done
decode="$(median <"$work/decode")"; batch="$(median <"$work/batch")"
awk -v decode="$decode" -v batch="$batch" 'BEGIN {
  printf "median: decoding %.1f s, batch %.1f s: %.2f times the decode limit, real time %.0f times over\n", decode, batch, batch / decode, 5400 / batch
}'
"$program" batch --score "$work/truth.jsonl" "$work/results.jsonl"
