"""A run that a comparison starts: ``nectar run``, which does not outlive the comparison.

Called as ``python -m nectar.comparison.run_process PARENT run [EXPERIMENT] [key=value ...]``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from nectar import cli

#: prctl's request for a signal at the parent's death, of Linux's prctl.h
_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> int:
    """Run ``words`` behind the first one, which is the parent's process number; return the exit code."""
    parent, *words = words
    end_with(int(parent))
    # Both ask for an orderly end, also where a shell made its background jobs ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return cli.main(words)


def end_with(parent: int) -> None:
    """Have this process killed when ``parent`` dies, even by SIGKILL; a record survives that at any moment."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel had been told
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
