"""`nectar audit`: attack what a run sent, and say what was shown."""

from __future__ import annotations

import json

import click

from common.errors import ConfigError
from nectar.command_line import command
from nectar.options import allow_imports_option

HELP = """\
Attacks the synthetic images that a run's sites sent, and its model: says how near the images come to real ones and how
many of those that sites train on are found, where one in a hundred of those that no site has is taken for one. Needs
the data that the sites had shares of, so that it is for simulations; writes audit-images.json into the record, which
`nectar report` shows.

\b
nectar audit images latest
"""

_IMAGES = "images"


@command(HELP)
@click.argument("names", metavar="images RECORD", help="what", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="as JSON, every image's distances too")
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
