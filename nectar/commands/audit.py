"""`nectar audit`: attack what a run sent, and report what the attacks recover."""

from __future__ import annotations

import json

import click

from common.errors import ConfigError
from nectar.command_line import command
from nectar.options import allow_imports_option

HELP = """\
Attacks a run's synthetic images and model. Reports how close the images come to real ones, and the share of training
images that membership inference identifies at a false positive rate of 1 %. Needs the data that was divided over the
sites, so it works for simulations only. Writes audit-images.json into the record; `nectar report` shows it.

\b
nectar audit images latest
"""

_IMAGES = "images"


@command(HELP)
@click.argument("names", metavar="images RECORD", help="what", nargs=-1)
@click.option(
    "--json", "as_json", is_flag=True, help="print JSON, with the distances of every image"
)
@allow_imports_option
def main(names: tuple[str, ...], as_json: bool, allow_imports: str) -> int:
    """Audit a record; return 0."""
    if len(names) != 2 or names[0] != _IMAGES:
        raise ConfigError(
            "nectar audit takes the word images, and one record: such as `nectar audit images latest`."
        )
    from nectar.audit.images.at_record import audit_record
    from nectar.audit.images.examining import as_text
    from nectar.records.record import record_at
    from nectar.records.record_imports import import_policy_of

    content = audit_record(record_at(names[1]), import_policy_of(allow_imports))
    print(json.dumps(content, indent=2) if as_json else as_text(content))
    return 0
