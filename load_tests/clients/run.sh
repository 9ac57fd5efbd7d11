#!/usr/bin/env bash
# Starts paravt with the bundled model and asks it about demo.mp4 with the official OpenAI packages for Python and Node.
# Needs curl, python3 with venv and npm, and the package registries. Skips what is not installed, and says so.
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in curl python3; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed: the clients are skipped"; exit 0; }
done
port="${PORT:-18080}"
base="http://127.0.0.1:$port/v1"
work="$(mktemp -d)"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

cargo build --release --quiet
"${CARGO_TARGET_DIR:-target}/release/paravt" serve --listen "127.0.0.1:$port" --allow-dir model_cards/paravt-tiny &
server=$!
for _ in $(seq 120); do
  curl -sf "http://127.0.0.1:$port/ready" >/dev/null && break
  kill -0 "$server" || { echo 'the server ended' >&2; exit 1; }
  sleep 0.5
done
curl -sf "http://127.0.0.1:$port/ready" >/dev/null || { echo 'the server did not become ready' >&2; exit 1; }

video="file://$PWD/model_cards/paravt-tiny/demo.mp4"
read_demo() { python3 -c 'import json,sys; print(json.load(open("model_cards/paravt-tiny/demo.json"))[sys.argv[1]])' "$1"; }
question="$(read_demo question)"
answer="$(read_demo answer)"

if python3 -m venv "$work/venv" 2>/dev/null; then
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check 'openai>=2,<4'
  "$work/venv/bin/python" load_tests/clients/openai_client.py "$base" "$video" "$question" "$answer"
else
  echo 'python3 with venv is not installed: its client is skipped'
fi
if command -v npm >/dev/null; then
  cp load_tests/clients/openai_client.mjs "$work/"
  (cd "$work" && npm install --silent --no-audit --no-fund openai@7 >/dev/null && node openai_client.mjs "$base" "$video" "$question" "$answer")
else
  echo 'npm is not installed: its client is skipped'
fi
