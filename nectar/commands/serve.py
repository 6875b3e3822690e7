"""``nectar serve``: the records on a page that follows them."""

from __future__ import annotations

from typing import Annotated

import typer

from common.config.loading import load
from common.errors import ConfigError
from nectar.arguments import AllowImports, argument, parse_arguments
from nectar.records.record_imports import import_policy_of

HELP = """\
Shows the records in the output directory, or in DIR, in a browser: a list with how each run stands, and the report on
one run, or on several side by side, which follows runs that go on. The page is to be had on this machine alone, at
the address that is printed, and only to look at. Ctrl-C ends it. From elsewhere: `ssh -L PORT:127.0.0.1:PORT`.

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
    output = load(parse_arguments(words)).output_dir
    if not output.is_dir():
        raise ConfigError(f"{output} is not a directory: give the one in which the records lie.")
    from nectar.report.live import show

    show(output, port, import_policy_of(allow_imports))
    return 0
