# shellcheck shell=bash
# Sourced by scripts that stand on tools which may be missing.
#
# need TOOL PART HOW [TEST…] succeeds where the tool is there: on the path, or by the test. Where it is missing the script ends and
# says how to get it. SKIP='TOOL …' leaves out the parts that need these tools: need fails for them.
need() {
  local tool="$1" part="$2" how="$3"
  shift 3
  [ $# -gt 0 ] || set -- command -v "$tool"
  if [[ " ${SKIP:-} " == *" $tool "* ]]; then
    printf '%s: SKIPPED, SKIP names %s\n' "$part" "$tool"
    return 1
  fi
  "$@" >/dev/null 2>&1 || {
    printf '%s: %s is missing: %s. To leave this part out: SKIP=%s\n' "$part" "$tool" "$how" "$tool" >&2
    exit 1
  }
}
