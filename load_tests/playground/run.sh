#!/usr/bin/env bash
# Drives the playground in headless Chromium. Arguments go to playground.mjs: --binary PATH, --screenshots FOLDER, --only NAME.
# Takes chromium from apt where there is none, and playwright-core and axe-core from npm into a folder that is thrown away.
# Needs Node with npm; SKIP=node leaves all of it out.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=../lib/need.sh
source load_tests/lib/need.sh
need node 'the playground' 'install Node 20 or newer' || exit 0
need npm 'the playground' 'install Node 20 or newer, with npm' || exit 0
chromium="${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}"
if [ -z "$chromium" ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-liberation >/dev/null
  chromium="$(command -v chromium)"
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export NODE_MODULES="$work"
(cd "$work" && npm install --silent --no-audit --no-fund playwright-core@1.65 axe-core@4.14 >/dev/null)
node load_tests/playground/playground.mjs --chromium "$chromium" "$@"
