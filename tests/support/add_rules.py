"""Copy the rules of config files into others, whose entries stay.

Usage: python tests/support/add_rules.py FROM INTO
"""

from __future__ import annotations

import sys
from pathlib import Path

from autotuned.configfiles import exchange, writer


def main() -> None:
    """Add the rules of one folder to the files of the same name in another, and print their number."""
    source, into = map(Path, sys.argv[1:])
    for path in exchange.files_in(into):
        file, faults = exchange.read(path)
        ruled, more = exchange.read(source / path.relative_to(into))
        if file is None or ruled is None or faults or more:
            sys.exit(f"{path}: expected two files without faults, got {[*faults, *more]}")
        for context, rule in ruled.rules:
            file.add_rule(context, rule)
        writer.write_to(path, file)
        print(f"{path.name}: {len(ruled.rules)} rules")


if __name__ == "__main__":
    main()
