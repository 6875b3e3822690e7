"""`nectar journal`: who submitted, stopped and fetched runs, and which sites were registered and revoked."""

from __future__ import annotations

import json
from typing import Annotated

from nectar.arguments import flag, here, option

HELP = """\
Brings DB.journal.jsonl up to date, beside the SuperLink's database, and prints what is new: a line of JSON for each run
that was submitted, stopped, ended or fetched and each site that was registered or revoked, with the time in UTC. The
file only grows; `nectar backup` brings it up to date and keeps it. The SuperLink may run.

Without accounts Flower does not know who submits: `by` is what `nectar submit` said of itself.

\b
nectar journal --database fl/superlink.db
"""


def main(
    database: Annotated[str, option("DB", "what flower-superlink was given as --database")],
    everything: Annotated[bool, flag("--all", "print the whole journal")] = False,
) -> int:
    """Bring the journal up to date and print what is new; return 0."""
    from nectar.operate.journal import bring_up_to_date, journal_of, lines_of

    place = here(database)
    new = bring_up_to_date(place)
    for line in lines_of(journal_of(place)) if everything else new:
        print(json.dumps(line))
    return 0
