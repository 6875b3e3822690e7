"""`nectar status`: the sites of a federation by name, and the runs at its SuperLink."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from common.errors import ConfigError
from nectar.arguments import format_duration, local_path
from nectar.command_line import command
from nectar.options import ca_option, connection, insecure_option
from nectar.text import MISSING, aligned, plain

if TYPE_CHECKING:
    from nectar.engines.flower.federation import Node, Run

HELP = """\
Lists each registered site: whether it is online, since when or when it was last seen, and the run and round in which
it takes part; then each run that has not ended. The exit code is 0 if all sites are online, 1 if a site is offline or
no site is registered, 2 if the SuperLink does not answer.

A site that takes part in a round is shown with it both while it computes and after it has replied, since Flower does
not distinguish these. "silent" means that the site is online but has not answered the run's roll call.

\b
nectar status lab --keys keys
nectar status 192.0.2.7:8000 --ca keys/ca.crt --json
"""

_KEYS = "NECTAR_KEYS"
_HEAD = ("site", "state", "since (UTC)", "run", "work", "node")


@command(HELP)
@connection
@click.option(
    "--keys",
    "keys_in",
    metavar="DIR",
    envvar=_KEYS,
    help="a directory of keys: also list its certificates that expire within 30 days",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@ca_option
@insecure_option
def main(name: str, keys_in: str | None, as_json: bool, ca: str | None, insecure: bool) -> int:
    """Show the status of the federation; return 0 if all its sites are online, else 1."""
    from nectar.engines.flower.connection import connect
    from nectar.engines.flower.federation import federation_status
    from nectar.operate.keys.inventory import certificates

    if keys_in and not local_path(keys_in).is_dir():
        raise ConfigError(f"--keys {keys_in} is not a directory: correct it, or leave it out")
    connection = connect(name, ca, insecure=insecure)
    connection.wait(0)
    keys = local_path(keys_in) if keys_in else None
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
    return [*lines, "", *([_run(run, sites) for run in runs] or ["no run in progress"])]


def _row(site: Node) -> tuple[str, ...]:
    state = "never online" if site.status == "registered" else site.status
    cells = (site.site, state, site.since, site.run, site.work, site.node)
    return tuple(plain(text) or MISSING for text in cells)


def _run(run: Run, sites: Sequence[Node]) -> str:
    text = f"run {run.run}: {run.status} for {run.seconds / 60:.0f} min"
    if run.rounds:
        text += f", round {run.reached} of {run.rounds} done"
        text += f", about {format_duration(run.left)} more after it" if run.left >= 1 else ""
    where = f"; record {plain(run.record)}" if run.record else ""
    last = f"\n  {plain(run.last)}" if run.last else ""
    waits = "".join(
        f"\n  {plain(one.site) or f'node {one.node}'} waits for approval: {plain(run.waiting[one.node])}"
        for one in sites
        if one.node in run.waiting
    )
    return f"{text}{where}{last}{waits}"
