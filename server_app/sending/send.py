"""The ServerApp of a run that trains nothing: it packs a record and prints it into its own log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from logging import getLogger
from typing import Any

from common.config.keys import FETCH
from common.config.loading import load
from server_app.sending.lines import LINE_BYTES, lines_of
from server_app.sending.packing import pack
from server_app.sending.request import Request

logger = getLogger("flwr")

#: Flower takes up what was printed every 0.2 s, and has three seconds at the end for what is left then: so lines are
#: printed no faster than a loaded machine stores them
_LINES_A_BURST, _PAUSE, _LAST_PAUSE = 20, 0.3, 1.5


def send(run_config: Mapping[str, Any]) -> None:
    """Print the record that ``run_config`` asks for; NectarError if there is none, or it is too large."""
    request = Request.parse(str(run_config[FETCH]))
    output_dir = load({"output-dir": run_config.get("output-dir", "")}).output_dir
    packed = pack(output_dir, request)
    logger.info("sending %s: %.2f MB packed", packed.directory, len(packed.content) / 1e6)
    for number, line in enumerate(lines_of(packed)):
        sys.stdout.write(f"{line}\n")
        if number % _LINES_A_BURST == _LINES_A_BURST - 1:
            time.sleep(_PAUSE)
    time.sleep(_LAST_PAUSE + len(packed.content) / LINE_BYTES / 1000)
    logger.info("sent")
