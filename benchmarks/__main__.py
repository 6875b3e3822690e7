"""The runner: measures the named entries and prints their table; exits 1 on a missed claim."""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks import ENTRIES
from benchmarks.measure import LEAST_PAIRS, Row, table


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ENTRIES)}; by default all")
    parser.add_argument(
        "--pairs", type=int, default=LEAST_PAIRS, help=f"at least {LEAST_PAIRS} (default)"
    )
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in ENTRIES]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: there are {', '.join(ENTRIES)}")
    if chosen.pairs < LEAST_PAIRS:
        parser.error(f"--pairs must be at least {LEAST_PAIRS}, not {chosen.pairs}")
    rows: list[Row] = []
    for name in chosen.names or ENTRIES:
        rows += importlib.import_module(ENTRIES[name]).rows(chosen.pairs)
    print(table(rows))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
