"""``nectar serve``: the records on a page that follows them."""

from __future__ import annotations

from typing import Annotated

import typer

from common.config.loading import load
from common.errors import ConfigError
from nectar.options import AllowImports, argument
from nectar.records.record_imports import judge_of
from nectar.words import parse_words

HELP = """\
Shows the records in the output directory, or in DIR, in a browser: a list with how each run stands, and each run's
report, which follows a run that goes on. The page is to be had on this machine alone, at the address that is printed,
and only to look at. Ctrl-C ends it. From elsewhere: `ssh -L PORT:127.0.0.1:PORT`.

\b
nectar serve
nectar serve /srv/runs --port 8000
"""


def main(
    directory: Annotated[
        str | None, argument("[DIR]", "where the records lie; left out, the output directory")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="the port; 0: any that is free")
    ] = 0,
    allow_imports: AllowImports = "",
) -> int:
    """Serve until Ctrl-C; return 0."""
    words = [] if directory is None else [f"output-dir={directory}"]
    output = load(parse_words(words)).output_dir
    if not output.is_dir():
        raise ConfigError(f"{output} is not a directory: give the one in which the records lie.")
    from nectar.report.live import LOOPBACK, LiveView

    try:
        view = LiveView(output, port, judge_of(allow_imports))
    except OSError as error:
        raise ConfigError(
            f"port {port} of {LOOPBACK} is not to be had ({error.strerror}): leave out --port, or name another one."
        ) from None
    print(
        f"{view.address}\n(whoever has this address can look, on this machine alone; Ctrl-C ends it)",
        flush=True,
    )
    try:
        view.serve()
    except KeyboardInterrupt:
        print()
    return 0
