#!/usr/bin/env bash
# Checks the types of the CUDA code on a machine without CUDA: `cargo check` with the features of a GPU, beside stand-ins for
# nvcc (makes empty files) and git (flash attention's build script clones CUTLASS). No kernel is compiled, nothing is linked,
# nothing runs: it shows that our code fits candle's CUDA interface, not that it computes what it should.
set -euo pipefail
cd "$(dirname "$0")/.."

# Apart from every other build, so that no real one takes the empty kernels for its own.
CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$HOME/.cache/paravt-target}/cuda-types"
export CARGO_TARGET_DIR

tools="$(mktemp -d)"
trap 'rm -rf "$tools"' EXIT
mkdir "$tools/bin"

# `--version` and the two ways in which cudaforge asks for output: `-o FILE`, and `--ptx --output-directory FOLDER SOURCE`.
cat >"$tools/bin/nvcc" <<'NVCC'
#!/usr/bin/env bash
set -euo pipefail
folder='' last=''
while [ $# -gt 0 ]; do
  case "$1" in
    --version) printf 'nvcc: stand-in\n\n\nCuda compilation tools, release 12.8, V12.8.0\n'; exit ;;
    -o) touch "$2"; exit ;;
    --output-directory) folder="$2"; shift ;;
    *) last="$1" ;;
  esac
  shift
done
touch "$folder/$(basename "$last" .cu).ptx"
NVCC
cat >"$tools/bin/git" <<'GIT'
#!/usr/bin/env bash
if [ "$1" = clone ]; then mkdir -p "${!#}"; fi
GIT
chmod +x "$tools/bin/nvcc" "$tools/bin/git"

# Not NVCC: the folder's name is another each time, and build scripts run again when that variable changes.
unset NVCC
PATH="$tools/bin:$PATH" CUDAFORGE_HOME="$tools" CUDA_COMPUTE_CAP=90 CUDARC_CUDA_VERSION=12080 \
  cargo clippy --release --no-default-features --features native,flash-attn -- -D warnings
