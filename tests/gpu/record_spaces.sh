#!/usr/bin/env bash
# Measure every config of our own spaces on this GPU: the tables of tests/data/spaces, six files of a few KB.
# Usage: tests/gpu/record_spaces.sh FOLDER [SECONDS]    goes on with what lies in tests/data/spaces or FOLDER
# About 2,760 configs at two shapes each: 200 to 300 s with 16 cores. Exit code 3 after SECONDS (300): call it again.
set -euo pipefail
cd "$(dirname "$0")/../.."
results=$(mkdir -p "$1" && cd "$1" && pwd)
unset TRITON_INTERPRET
cp -n tests/data/spaces/*.csv.gz "$results/" 2>/dev/null || true
PYTHONPATH=. python3 tests/bench/spaces.py --record "$results" --budget "${2:-300}"
