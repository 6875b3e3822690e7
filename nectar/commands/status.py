"""`nectar status`: the sites of a federation by name, and the runs at its SuperLink."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError
from nectar.arguments import CaFile, Connection, Insecure, flag, format_duration, here
from nectar.text import MISSING, aligned, plain

if TYPE_CHECKING:
    from nectar.engines.flower.federation import Node, Run

HELP = """\
Names each registered site, whether it is online, since when or when it was seen last, and the run and round in which
it takes part; then each run that is not over. The exit code is 0 if every site is online, 1 if one is not or there is
none, 2 if the SuperLink does not answer.

Flower knows of a site that is online, not of one that is at work: whoever takes part in a round is named with it,
whether it computes or has replied; "silent" is one that is online and has not answered a run's roll call.

\b
nectar status lab --keys keys
nectar status 192.0.2.7:8000 --ca keys/ca.crt --json
"""

_KEYS = "NECTAR_KEYS"
_HEAD = ("site", "state", "since (UTC)", "run", "work", "node")


def main(
    name: Connection,
    keys_in: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar="DIR",
            envvar=_KEYS,
            help="a directory of keys: its certificates that end within 30 days are named",
        ),
    ] = None,
    as_json: Annotated[bool, flag("--json", "as JSON, for programs")] = False,
    ca: CaFile = None,
    insecure: Insecure = False,
) -> int:
    """Show how the federation stands; return 0 if all its sites are online, else 1."""
    from nectar.engines.flower.connection import connect
    from nectar.engines.flower.federation import federation_status
    from nectar.operate.keys.inventory import certificates

    if keys_in and not here(keys_in).is_dir():
        raise ConfigError(f"there is no directory of keys {keys_in}: give another --keys, or none")
    connection = connect(name, ca, insecure=insecure)
    connection.wait(0)
    keys = here(keys_in) if keys_in else None
    ending, days = certificates(keys) if keys else ([], {})
    sites, runs = federation_status(connection)
    if as_json:
        content = {
            "superlink": connection.address,
            "sites": [asdict(site) for site in sites],
            "runs": [asdict(run) for run in runs],
            "certificates": ending,
            "certificate_days": days,
        }
        print(json.dumps(content, indent=2))
    else:
        print("\n".join([*_lines(connection.address, sites, runs), *ending]))
    return 0 if sites and all(site.status == "online" for site in sites) else 1


def _lines(address: str, sites: list[Node], runs: list[Run]) -> list[str]:
    online = sum(site.status == "online" for site in sites)
    lines = [f"{address}: {online} of {len(sites)} sites online"]
    if sites:
        lines += ["", aligned([_HEAD, *map(_row, sites)], right=False)]
    return [*lines, "", *([_run(run, sites) for run in runs] or ["no run is going on"])]


def _row(site: Node) -> tuple[str, ...]:
    state = "never online" if site.status == "registered" else site.status
    cells = (site.site, state, site.since, site.run, site.work, site.node)
    return tuple(plain(text) or MISSING for text in cells)


def _run(run: Run, sites: Sequence[Node]) -> str:
    begun = f"run {run.run}: {run.status} for {run.seconds / 60:.0f} min"
    if run.rounds:
        begun += f", round {run.reached} of {run.rounds} done"
        begun += f", about {format_duration(run.left)} more after it" if run.left >= 1 else ""
    where = f"; record {plain(run.record)}" if run.record else ""
    last = f"\n  {plain(run.last)}" if run.last else ""
    waits = "".join(
        f"\n  {plain(one.site) or f'node {one.node}'} waits for approval: {plain(run.waiting[one.node])}"
        for one in sites
        if one.node in run.waiting
    )
    return f"{begun}{where}{last}{waits}"
