"""A run that a comparison starts: ``nectar run``, which does not outlive the comparison.

Called as ``python -m nectar.comparison.run_process PARENT run [EXPERIMENT] [key=value ...]``.
"""

from __future__ import annotations

import sys

from nectar import cli
from nectar.engines import processes


def main(words: list[str]) -> int:
    """Run ``words`` after the first one, which is the parent's process number; return the exit code."""
    parent, *words = words
    processes.end_with(int(parent))  # at once: a record survives that at any moment
    processes.listen()
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
