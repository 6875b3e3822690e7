"""The report on a run, drawn at the server by `nectar report`, in a separate process.

The app's bundle, all that a ServerApp has for certain, brings no report: it is drawn where Nectar is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from logging import getLogger
from pathlib import Path

from common.errors import one_line
from server_app.run_directory import PROVENANCE, REPORT, RunDirectory

logger = getLogger("flwr")

#: seconds that a report may take, which searches for the nearest real pictures
_PATIENCE = 300.0


#: carries out several command lines in one process, which imports for some seconds
_COMMANDS = """\
import json, sys
from nectar.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    if code := main():
        sys.exit(code)
"""


def draw_report(record: Path, images: Mapping[Path, bool]) -> None:
    """Write the report on a record to each of these paths; one that cannot be drawn is a warning.

    Parameters
    ----------
    images : mapping of Path to bool
        Whether the report at that path has the images.
    """
    lines = [
        ["report", str(record), "--output", str(path), *([] if shown else ["--no-images"])]
        for path, shown in images.items()
    ]
    command = [sys.executable, "-P", "-c", _COMMANDS, json.dumps(lines)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.CalledProcessError as error:
        logger.warning("the report was not drawn: %s", one_line(error.stderr[-500:]))
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("the report was not drawn: %s", one_line(str(error)))


def has_report(record: RunDirectory) -> bool:
    """Return whether a record has a report that was drawn after its run ended."""
    report, ended = record.directory / REPORT, record.directory / PROVENANCE
    return report.is_file() and report.stat().st_mtime_ns >= ended.stat().st_mtime_ns
