"""The report on a run, drawn at the server by `nectar report`, in a process of its own.

The app's bundle, all that a ServerApp has for certain, brings no report: it is drawn where Nectar is installed.
"""

from __future__ import annotations

import subprocess
import sys
from logging import getLogger
from pathlib import Path

from common.errors import one_line

logger = getLogger("flwr")

#: seconds that a report may take: pictures beside the nearest real ones are searched for
_PATIENCE = 300.0


def draw_report(record: Path, to: Path, *, images: bool) -> None:
    """Write the report on a record to ``to``, with its ``images`` or without; one that cannot be drawn is a warning."""
    words = ["report", str(record), "--output", str(to), *([] if images else ["--no-images"])]
    command = [sys.executable, "-P", "-m", "nectar", *words]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.CalledProcessError as error:
        logger.warning("the report was not drawn: %s", one_line(error.stderr[-500:]))
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("the report was not drawn: %s", one_line(str(error)))
