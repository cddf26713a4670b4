#!/usr/bin/env bash
# Does in a clean environment, on the CPU, what "Start here" says, and prints how long it took.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset TRITON_INTERPRET AUTOTUNED_CACHE_DIR AUTOTUNED_CONFIG_PATH AUTOTUNED_MODE PYTHONPATH
python3 -m venv "$work/venv"
. "$work/venv/bin/activate"
pip install -q torch==2.13.0  # a CPU build where there is one; plain torch is gigabytes of CUDA
pip install -q .
printf 'installed after %d s\n' "$SECONDS"
cd "$work"
python "$OLDPWD/tests/support/pages.py" docs/getting-started.md
printf 'done after %d s\n' "$SECONDS"
[ "$SECONDS" -lt 600 ] || { echo "that is more than the ten minutes which the page promises"; exit 1; }
