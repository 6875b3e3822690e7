"""`nectar audit`: attack what a run sent, and say what was shown."""

from __future__ import annotations

import json
from typing import Annotated, Any

from common.errors import ConfigError
from nectar.arguments import AllowImports, argument, flag, here, option

HELP = """\
Attacks the synthetic images that a run's sites sent, and its model: says how near the images come to real ones and how
many of those that sites train on are found, where one in a hundred of those that no site has is taken for one. Needs
the data that the sites had shares of, so that it is for simulations; writes audit-images.json into the record, which
`nectar report` shows. At a site, `images REVIEW_DIR --data FOLDER` does the same to the pictures that await the owner's
word, and its outcome stays in that folder.

\b
nectar audit images latest
nectar audit images /srv/north/review --data /srv/north/images --others more
"""

_IMAGES = "images"


def main(
    names: Annotated[list[str] | None, argument("images RECORD | REVIEW_DIR", "what")] = None,
    data: Annotated[
        str | None, option("FOLDER", "at a site: its own, <class>/* or train/<class>/*")
    ] = None,
    others: Annotated[
        str | None,
        option("FOLDER", "with --data: images of the same kind that the site does not train on"),
    ] = None,
    as_json: Annotated[bool, flag("--json", "as JSON, every image's distances too")] = False,
    allow_imports: AllowImports = "",
) -> int:
    """Audit a record, or with ``data`` a site's review folder; return 0."""
    named = names or []
    if len(named) != 2 or named[0] != _IMAGES:
        raise ConfigError(
            "nectar audit takes the word images, and one record or a site's review folder: such as "
            "`nectar audit images latest`."
        )
    if others is not None and data is None:
        raise ConfigError("--others goes with --data, the site's own images.")
    from nectar.audit.images.examining import as_text

    content: dict[str, Any]
    if data is not None:
        from nectar.audit.images.at_record import audit_review

        content = audit_review(here(named[1]), here(data), here(others) if others else None)
    else:
        from nectar.audit.images.at_record import audit_record
        from nectar.records.record import record_at
        from nectar.records.record_imports import import_policy_of

        content = audit_record(record_at(named[1]), import_policy_of(allow_imports))
    print(json.dumps(content, indent=2) if as_json else as_text(content))
    return 0
