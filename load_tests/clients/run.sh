#!/usr/bin/env bash
# Starts paravt with the bundled model and tries clients that others wrote, unmodified, against it: run.sh [CLIENT…|all]
#
# Without arguments the official OpenAI packages, as CI does. README.md lists the clients and what is tried.
# Needs curl, python3 with venv, node with npm, and the package registries.
#
#   SKIP='node vllm'          leaves out the clients that need these; else what is missing is an error
#   PARAVT=FILE               a binary to use; else one is built
#   CLIENTS_HOME=DIR          where virtual environments are kept (default: ~/.cache/paravt-clients)
#   VLLM_VENV=DIR             an environment with vLLM (../engine/install_vllm.sh), for vllm_bench; guidellm takes its torch
#   RESULTS=FILE              also write the lines there, for table.py
set -euo pipefail
cd "$(dirname "$0")/../.."
here=load_tests/clients
home="${CLIENTS_HOME:-$HOME/.cache/paravt-clients}"
quick=(openai openai_node)
rest=(paper_loop langchain litellm instructor pydantic_ai openai_agents schemathesis guidellm aiperf vllm_bench)

case "${1:-}" in
  '') clients=("${quick[@]}") ;;
  all) clients=("${quick[@]}" "${rest[@]}") ;;
  *) clients=("$@") ;;
esac
for client in "${clients[@]}"; do
  [[ " ${quick[*]} ${rest[*]} " == *" $client "* ]] || { echo "no such client: $client (${quick[*]} ${rest[*]})" >&2; exit 2; }
done
# shellcheck source=../lib/need.sh
source load_tests/lib/need.sh
need curl 'the clients' 'install it' || exit 0
need python3 'the clients' 'install it' || exit 0
chosen=("${clients[@]}")
clients=()
for client in "${chosen[@]}"; do
  case "$client" in
    openai_node)
      need node "$client" 'install Node 20 or newer' || continue
      need npm "$client" 'install Node 20 or newer, with npm' || continue
      ;;
    vllm_bench)
      need vllm "$client" 'make an environment (load_tests/engine/install_vllm.sh DIR) and name it with VLLM_VENV=DIR' \
        test -x "${VLLM_VENV:-}/bin/python" || continue
      ;;
    *) need venv "$client" 'install venv (apt-get install python3-venv)' python3 -c 'import venv, ensurepip' || continue ;;
  esac
  clients+=("$client")
done
[ "${#clients[@]}" -gt 0 ] || exit 0

if [ -z "${PARAVT:-}" ]; then
  cargo build --release --quiet
  PARAVT="${CARGO_TARGET_DIR:-target}/release/paravt"
fi
PARAVT="$(realpath "$PARAVT")"
export PARAVT
port="${PORT:-18080}"
base="http://127.0.0.1:$port/v1"
work="$(mktemp -d)"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
"$PARAVT" serve --listen "127.0.0.1:$port" --allow-dir model_cards/paravt-tiny >"$work/log" 2>&1 &
server=$!
for _ in $(seq 120); do
  curl -sf "http://127.0.0.1:$port/ready" >/dev/null && break
  kill -0 "$server" 2>/dev/null || { echo 'the server ended:' >&2; tail "$work/log" >&2; exit 1; }
  sleep 0.5
done
curl -sf "http://127.0.0.1:$port/ready" >/dev/null || { echo 'the server did not become ready' >&2; exit 1; }

video="file://$PWD/model_cards/paravt-tiny/demo.mp4"
read_demo() { python3 -c 'import json,sys; print(json.load(open("model_cards/paravt-tiny/demo.json"))[sys.argv[1]])' "$1"; }
asked=("$base" "$video" "$(read_demo question)" "$(read_demo answer)")

# Makes or renews the environment of a client; the name of its Python goes to `python`.
environment() {
  local venv="$home/$1" wanted="$here/requirements-$1.txt"
  if [ "$1" = vllm_bench ]; then
    python="$VLLM_VENV/bin/python"
    return
  fi
  python="$venv/bin/python"
  cmp -s "$wanted" "$venv/requirements.txt" && return
  rm -rf "$venv"
  python3 -m venv "$venv" || return
  # guidellm wants torch, which brings gigabytes: vLLM's does.
  if [ "$1" = guidellm ] && [ -n "${VLLM_VENV:-}" ]; then
    "$VLLM_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_vllm.pth" || return
  fi
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted" && cp "$wanted" "$venv/requirements.txt"
}

node_packages() {
  local folder="$home/openai_node"
  mkdir -p "$folder"
  cmp -s "$here/package.json" "$folder/package.json" || {
    cp "$here/package.json" "$folder/" && (cd "$folder" && npm install --silent --no-audit --no-fund >/dev/null)
  } || { rm -f "$folder/package.json"; return 1; }
  # Node looks for packages beside the script.
  cp "$here/openai_client.mjs" "$folder/"
}

failed=()
not_installed() { failed+=("$client"); printf 'FAIL %s | its packages could not be installed\n' "$client" | tee -a "$work/results"; }
try() { "$@" 2>"$work/errors" | tee -a "$work/results" || { failed+=("$client"); tail -n 20 "$work/errors" >&2; }; }
for client in "${clients[@]}"; do
  if [ "$client" = openai_node ]; then
    node_packages || { not_installed; continue; }
    try node "$home/openai_node/openai_client.mjs" "${asked[@]}"
    continue
  fi
  environment "$client" || { not_installed; continue; }
  script="$here/${client}_client.py"
  [ -f "$script" ] || script="$here/$client.py"
  try "$python" "$script" "${asked[@]}"
done

kill -0 "$server" 2>/dev/null || { echo 'the server ended:' >&2; tail "$work/log" >&2; exit 1; }
[ -z "${RESULTS:-}" ] || cp "$work/results" "$RESULTS"
[ "${#failed[@]}" -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
