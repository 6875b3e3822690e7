"""The release of Nectar; it is sent with the app, so that a record names the one that computed it."""

from __future__ import annotations

import subprocess
from functools import cache

from common.code.fingerprint import ROOT

VERSION = "0.2.0"
"""As pyproject.toml has it."""


@cache
def commit() -> str:
    """Return the commit of the clone that this process runs from, ``-dirty`` where files differ; empty without one."""
    if not (ROOT / ".git").exists():
        return ""
    words = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def release() -> str:
    """Return the version, with the commit where there is one."""
    return f"{VERSION} ({commit()})" if commit() else VERSION
