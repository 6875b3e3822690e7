"""``nectar report``: what runs did, as one HTML file."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import click

from common.errors import ConfigError
from nectar.command_line import command
from nectar.options import allow_imports_option, records
from nectar.records.outputs import output_page
from nectar.records.record import RunRecord, record_at
from nectar.records.record_imports import import_policy_of
from server_app.run_directory import REPORT

HELP = """\
Reads the records of one or more runs, finished or not, and writes one HTML file that needs no network. Seeds of one
configuration are grouped. If this machine has the run's data set, the report shows the real images nearest to the
synthetic ones.

\b
nectar report latest
nectar report latest --follow   rewrite after each round; the browser reloads
nectar report runs/*feddm* runs/*fedavg* --output comparison.html
"""


@command(HELP)
@records
@click.option(
    "--output",
    metavar="FILE.html",
    help="the file to write (default: report.html in the record, or ./nectar-report.html for several runs)",
)
@click.option(
    "--follow", is_flag=True, help="rewrite the page after each round until the runs have ended"
)
@click.option(
    "--no-images",
    "no_images",
    is_flag=True,
    help="leave out the images that sites sent and the real ones nearest to them",
)
@allow_imports_option
def main(
    named: tuple[str, ...], output: str | None, follow: bool, no_images: bool, allow_imports: str
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
    runs = [RunRecord.open(directory, policy) for directory in directories]
    from nectar.report import page  # its imports take seconds

    if follow:
        print(f"{to.absolute().as_uri()}\n(open it in a browser; Ctrl-C ends this)", flush=True)
        with suppress(KeyboardInterrupt):
            page.follow(directories, policy, to, images=not no_images)
        return 0
    page.write(runs, to, "--output", images=not no_images)
    print(to)
    return 0


def _output(given: str | None, directories: list[Path]) -> Path:
    """Return the report's path; ConfigError, before any work, if it cannot be written."""
    if given is not None:
        return output_page(given)
    return directories[0] / REPORT if len(directories) == 1 else Path.cwd() / "nectar-report.html"
