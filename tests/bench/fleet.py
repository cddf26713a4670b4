"""Hosts that share a Redis store and are killed at random: is each key searched once, and is anything lost?

    python tests/bench/fleet.py [--hosts 8] [--keys 400] [--kills 200]

It starts its own Redis server. A host is a process with its own cache folder; clocks differ by an hour. For some keys
the store holds records signed with another key. See `tests/support/hosts.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import servers
from hosts import Fleet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if why := servers.redis_missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as name:
        server = servers.redis_server(Path(name))
        start = time.monotonic()
        fleet = Fleet(f"redis://127.0.0.1:{server.port}/0", Path(name), given.hosts, given.keys, 0.03, given.seed)
        try:
            found = fleet.run(given.kills, between_s=0.2)
        finally:
            fleet.close()
            server.close()
    print(f"{given.hosts} hosts, {time.monotonic() - start:.0f} s")
    for field, value in found._asdict().items():
        print(f"{field}: {len(value)} {value[:3]}" if isinstance(value, list) else f"{field}: {value}")
    raise SystemExit(bool(found.twice or found.lost or found.unreadable or found.wrong))


if __name__ == "__main__":
    main()
