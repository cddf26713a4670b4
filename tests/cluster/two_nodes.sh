#!/usr/bin/env bash
# Two Ray nodes on this machine, each with one GPU (or with a number for one, where there is none), and one `tune` over
# both: what each measured, and that it came back here. Needs autotuned[ray]; ends what it started and nothing else.
#   tests/cluster/two_nodes.sh [TARGET]
set -euo pipefail
target=${1:-autotuned.kernels.numpy_matmul}
work=$(mktemp -d /tmp/rays.XXXX)  # short: Ray's sockets lie in it
pids=()
finish() {
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
python=${PYTHON:-python}
# A home of its own: Ray asks for the token that it finds in one's own, and leaves one there.
PYTHONUSERBASE=$("$python" -m site --user-base || true)  # what is installed there is to be found all the same
export PYTHONUSERBASE HOME="$work/home"
unset RAY_AUTH_MODE RAY_AUTH_TOKEN RAY_AUTH_TOKEN_PATH
if ! "$python" -c "import sys; from autotuned.gpu import inventory as gpus; sys.exit(not gpus.table())"; then
  export TRITON_INTERPRET=1
fi
port=$("$python" -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
node() {  # name, options of `ray start`
  AUTOTUNED_CACHE_DIR="$work/store-$1" "$python" -c "from ray.scripts.scripts import main; main()" start --block \
    --num-gpus=1 --node-ip-address=127.0.0.1 --object-store-memory=100000000 --disable-usage-stats "${@:2}" \
    >"$work/$1.log" 2>&1 &
  pids+=($!)
  for _ in $(seq 600); do
    if grep -q -- "--block" "$work/$1.log"; then return; fi
    sleep 0.1
  done
  cat "$work/$1.log"
  exit 1
}
cd "$work"  # elsewhere than the sources, which would shadow the package that is installed
node first --head --port="$port" --temp-dir="$work/ray" --include-dashboard=false
node second --address="127.0.0.1:$port"
timeout 60 "$python" - "127.0.0.1:$port" <<'PYTHON'  # until the cluster counts both
import sys, time, ray

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.05)
PYTHON
export AUTOTUNED_CACHE_DIR="$work/store-here"
"$python" -c "from autotuned.cli.main import app; app()" tune "$target" --executor ray --ray-address "127.0.0.1:$port" \
  --out "$work/tuned" --json >"$work/found.json"
"$python" - "$work" <<'PYTHON'
import json, sys
from pathlib import Path

work = Path(sys.argv[1])
found = json.loads((work / "found.json").read_text())
for gpu in found["devices"]:
    print(f"{gpu['name']} on {gpu['host']}: {gpu['cases']} cases, model {gpu['model']}")
counts = {name: len(list((work / f"store-{name}").glob("v2/*/*.json"))) for name in ("first", "second", "here")}
print("records:", counts, "files:", [Path(file).name for file in found["files"]], f"{found['seconds']} s")
assert {case["status"] for case in found["cases"]} == {"done"}
assert counts["here"] == len({case["digest"] for case in found["cases"]}) <= counts["first"] + counts["second"]
assert all(gpu["cases"] for gpu in found["devices"]), "one node did all"
PYTHON
