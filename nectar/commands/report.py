"""``nectar report``: what runs did, as one HTML file."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from common.errors import ConfigError
from nectar.arguments import AllowImports, Records, flag, option
from nectar.records.outputs import output_page
from nectar.records.record import RunRecord, record_at
from nectar.records.record_imports import import_policy_of
from server_app.run_directory import REPORT

HELP = """\
Reads the records of one or more runs, finished or not, and writes one HTML file that needs no network. Seeds of one
configuration stand together. Where this machine has the data that the sites had shares of, it shows the real images
nearest to the synthetic ones.

\b
nectar report latest
nectar report latest --follow   again after each round; the browser reloads
nectar report runs/*feddm* runs/*fedavg* --output comparison.html
"""


def main(
    named: Records,
    output: Annotated[
        str | None,
        option(
            "FILE.html",
            "where it goes; else report.html in the record, or for several runs nectar-report.html in the "
            "current directory",
        ),
    ] = None,
    follow: Annotated[
        bool, flag("--follow", "rewrite the page after each round until the runs have ended")
    ] = False,
    no_images: Annotated[
        bool, flag("--no-images", "leave out what the sites sent and what it is compared with")
    ] = False,
    allow_imports: AllowImports = "",
) -> int:
    """Write the report and print its path; with ``follow`` again after each round.

    Raises
    ------
    ConfigError
        If a word is no run's record, or the file cannot be written where it is to go.
    """
    directories = [record_at(word).resolve() for word in named]
    twice = [path for path, count in Counter(directories).items() if count > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice: name each run once.")
    policy = import_policy_of(allow_imports)
    to = _output(output, directories)
    from nectar.report import page

    if follow:
        print(f"{to.absolute().as_uri()}\n(open it in a browser; Ctrl-C ends this)", flush=True)
        with suppress(KeyboardInterrupt):
            page.follow(directories, policy, to, images=not no_images)
        return 0
    runs = [RunRecord.open(directory, policy) for directory in directories]
    page.write(runs, to, "--output", images=not no_images)
    print(to)
    return 0


def _output(given: str | None, directories: list[Path]) -> Path:
    """Return where the report goes, refusing a place that cannot take it before any work."""
    if given is not None:
        return output_page(given)
    return directories[0] / REPORT if len(directories) == 1 else Path.cwd() / "nectar-report.html"
