"""`nectar doctor`: look at this machine, its keys and its connection, and say what to mend."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from common.config.loading import load
from common.errors import ConfigError
from nectar.engines.remote.order import Order
from nectar.words import CaFile, ConfigFile, Insecure, argument, flag, here, option, parse_words

if TYPE_CHECKING:
    from nectar.operate.doctor.check import Check

HELP = """\
A line a check: ok, warn, or fail with what to mend. The exit code is 1 if something fails. Nothing is changed.

A CONNECTION is a name in Flower's config.toml, or HOST:PORT with --ca FILE; settings are those of the run to come
(compute.device, images.classes).

\b
nectar doctor lab --keys keys
nectar doctor superlink.example.org:443 --ca ca.crt --site --keys keys \\
  --state /var/lib/nectar dataset=images images.classes=cat,dog \\
  --data /data/images
nectar doctor --site method=fedavg --node-config \\
  "site='north' data='/data/images' allow-methods='fedavg'"
"""


@dataclass(frozen=True)
class Asked:
    """What is to be looked at; the fields are the options."""

    site: bool
    keys: Path | None
    node_config: str | None
    data: Path | None
    state: Path | None
    ca: str | None
    insecure: bool


def main(
    words: Annotated[
        list[str] | None,
        argument("[CONNECTION] [EXPERIMENT] [KEY=VALUE]...", "where to, and the run to come"),
    ] = None,
    config_file: ConfigFile = None,
    site: Annotated[bool, flag("--site", "this is a site's machine, not the operator's")] = False,
    keys: Annotated[
        str | None,
        option(
            "DIR",
            "a directory of keys: modes, dates, pairs, the certificate's host names; with --site also whether "
            "the site's key is registered at the server",
        ),
    ] = None,
    node_config: Annotated[
        str | None,
        option(
            "C",
            "the node config that the site's SuperNode is given: keys, values and vetoes, held against the run "
            "to come as the site does; its data and state-dir are looked at, too",
        ),
    ] = None,
    data: Annotated[
        str | None,
        option(
            "FOLDER", "a site's own folder of images: can it be used, which classes does it have"
        ),
    ] = None,
    state: Annotated[str | None, option("DIR", "the site's state directory")] = None,
    ca: CaFile = None,
    insecure: Insecure = False,
) -> int:
    """Check what the words say; return 0, or 1 if something fails."""
    from nectar.operate.doctor.check import shown

    name, settings = _connection_and_settings(words or [])
    if name is None and (ca or insecure):
        raise ConfigError(
            "--ca and --insecure belong to a connection: name it first, as HOST:PORT."
        )
    if node_config is not None and not site:
        raise ConfigError("--node-config is a site's: add --site.")
    run_config = parse_words(settings, file=config_file)
    places = (None if text is None else here(text) for text in (keys, data, state))
    own_keys, own_data, own_state = places
    asked = Asked(site, own_keys, node_config, own_data, own_state, ca, insecure)
    return 0 if shown(_checks(Order(run_config, load(run_config)), name, asked)) else 1


def _connection_and_settings(words: list[str]) -> tuple[str | None, list[str]]:
    """Tell a connection from an experiment: a first word that is none of the experiments is a connection."""
    from common.config.tables import is_experiment

    if words and "=" not in words[0] and not is_experiment(words[0]):
        return words[0], words[1:]
    return None, words


def _checks(order: Order, name: str | None, asked: Asked) -> Iterator[Check]:
    from nectar.operate.doctor import data, ledger, machine, node_config

    config = order.config
    node: Mapping[str, Any] = {}
    yield from machine.versions()
    if asked.node_config is not None:
        found, node, bounded = node_config.look(asked.node_config, order.run_config)
        yield found
        config = bounded or config
        own = {"data": node.get("data"), "state": node.get("state-dir")}
        stated = {key: here(str(value)) for key, value in own.items() if value}
        asked = replace(asked, data=asked.data or stated.get("data"))
        asked = replace(asked, state=asked.state or stated.get("state"))
    compute = config.compute
    cores = compute.client_cores if asked.site else compute.server_cores
    yield machine.device(compute.device, compute.precision, cores)
    if not asked.site:
        yield machine.room("records", config.output_dir)
    elif asked.state is not None:
        yield machine.room("state", asked.state)
        yield from ledger.standing(asked.state, node, config.privacy.delta)
    if asked.data is not None:
        yield data.folder(config, asked.data)
    elif asked.site or config.evaluation.on in ("server", "both"):
        yield data.shared(config, elsewhere=not asked.site and name is not None)
    yield from _names(config.output_dir, node, asked)
    yield from _connected(name, asked)


def _names(records: Path, node: Mapping[str, Any], asked: Asked) -> Iterator[Check]:
    """Hold the keys' names against the site's own, or against those of the newest record of a federation."""
    from common.sites import SUPERLINK
    from nectar.operate.doctor.registration import borne_names

    if asked.keys is None:
        return
    if asked.site:
        called = [str(node["site"])] if "site" in node else []
        yield from borne_names(asked.keys, called, "the node config")
        return
    for record in sorted(records.glob("*/partition.json"), reverse=True):
        try:
            told = json.loads((record.parent / "provenance.json").read_text(encoding="utf-8"))
            sites = [*json.loads(record.read_text(encoding="utf-8"))["sites"]]
            federation = told["engine"] == SUPERLINK
        except (OSError, ValueError, KeyError, TypeError):
            continue  # whoever reads that record is told
        if federation:
            yield from borne_names(asked.keys, sites, f"the record {record.parent.name}")
            return


def _connected(name: str | None, asked: Asked) -> Iterator[Check]:
    from nectar.engines.flower.client import LaunchError
    from nectar.engines.flower.connection import connect
    from nectar.operate.doctor.check import Check
    from nectar.operate.doctor.key_files import keys
    from nectar.operate.doctor.link import link
    from nectar.operate.doctor.machine import flower_wanted
    from nectar.operate.doctor.registration import registration

    if name is None:
        if asked.keys is not None:
            yield from keys(asked.keys, None, site=asked.site)
        return
    try:
        with connect(name, asked.ca, insecure=asked.insecure) as connection:
            if asked.keys is not None:
                yield from keys(asked.keys, connection.host, site=asked.site)
            yield from link(connection, flower_wanted(), site=asked.site)
            if asked.site and asked.keys is not None:
                yield from registration(connection, asked.keys)
    except LaunchError as error:
        yield Check("connection", "fail", str(error))
