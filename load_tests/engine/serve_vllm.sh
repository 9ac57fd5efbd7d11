#!/usr/bin/env bash
# Serves a checkpoint with vLLM on the CPU, on the loopback: serve_vllm.sh VENV MODEL_DIR [vLLM's options]
#
# Under the name of its directory, at http://127.0.0.1:${PORT:-8123}/v1, in f32, with prefix caching (vLLM's default).
# What does not fit into the KV space waits; 1 GiB holds some 43,000 tokens of the 100-million-parameter model.
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: $0 VENV MODEL_DIR [OPTION...]" >&2; exit 2; }
venv=$1 model=$(cd "$2" && pwd)
shift 2
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
# As its documentation asks for; intel-openmp brings it.
[ ! -e "$venv/lib/libiomp5.so" ] || export LD_PRELOAD="$venv/lib/libiomp5.so${LD_PRELOAD:+:$LD_PRELOAD}"
# Nothing is fetched and nothing is reported.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export PATH="$venv/bin:$PATH"
exec "$venv/bin/vllm" serve "$model" --served-model-name "$(basename "$model")" \
    --host 127.0.0.1 --port "${PORT:-8123}" --dtype float32 --max-model-len 8192 --max-num-seqs 128 \
    --limit-mm-per-prompt '{"image": 80, "video": 0}' --enable-prompt-tokens-details "$@"
