"""`nectar doctor`: look at this machine, its keys and its connection, and say what to mend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.loading import load
from common.config.text import from_home
from common.errors import ConfigError
from nectar.engines.remote.order import Order
from nectar.words import parse_words, take_options, with_file_as_word

if TYPE_CHECKING:
    from nectar.operate.doctor.check import Check

SUMMARY = "check this machine, its keys and its connection before a run"

_NODE_CONFIG = "--node-config"

USAGE = """\
Usage: nectar doctor [CONNECTION] [EXPERIMENT] [key=value ...] [options]

A line a check: ok, warn, or fail with what to mend. The exit code is 1 if something fails. Nothing is changed.

A CONNECTION is a name in Flower's config.toml, or HOST:PORT with --ca FILE; settings are those of the run to come
(compute.device, images.classes).

  --config FILE    a YAML file of settings, by section, or what `nectar config` printed
  --site           this is a site's machine, not the operator's
  --keys DIR       a directory of keys: modes, dates, pairs, the certificate's host names; with --site also whether
                   the site's key is registered at the server
  --node-config C  the node config that the site's SuperNode is given: keys, values and vetoes, held against the run to
                   come as the site does; its data and state-dir are looked at, too
  --data FOLDER    a site's own folder of images: can it be used, which classes does it have
  --state DIR      the site's state directory
  --ca FILE        the authority's certificate, for a connection given as HOST:PORT
  --insecure       the SuperLink has no TLS, and that is meant

  nectar doctor lab --keys keys
  nectar doctor superlink.example.org:443 --ca ca.crt --site --keys keys --state /var/lib/nectar \\
    dataset=images images.classes=cat,dog --data /data/images
  nectar doctor --site method=fedavg --node-config "site='north' data='/data/images' allow-methods='fedavg'"
"""


def main(words: list[str]) -> int:
    """Check what ``words`` say; return 1 if something fails."""
    from nectar.operate.doctor.check import shown

    options, rest = take_options(
        with_file_as_word(words),
        flags=("--site", "--insecure"),
        values=("--keys", "--data", "--state", "--ca", _NODE_CONFIG),
    )
    name, settings = _connection_and_settings(rest)
    if name is None and ("--ca" in options or "--insecure" in options):
        raise ConfigError(
            "--ca and --insecure belong to a connection: name it first, as HOST:PORT."
        )
    if _NODE_CONFIG in options and "--site" not in options:
        raise ConfigError(f"{_NODE_CONFIG} is a site's: add --site.")
    typed = parse_words(settings)
    return 0 if shown(_checks(Order(typed, load(typed)), name, options)) else 1


def _connection_and_settings(words: list[str]) -> tuple[str | None, list[str]]:
    """Tell a connection from an experiment: a first word that is none of the experiments is a connection."""
    from common.config.tables import is_experiment

    if words and "=" not in words[0] and not is_experiment(words[0]):
        return words[0], words[1:]
    return None, words


def _checks(order: Order, name: str | None, options: dict[str, str]) -> Iterator[Check]:
    from nectar.operate.doctor import data, ledger, machine, node_config

    site, config = "--site" in options, order.config
    node: Mapping[str, Any] = {}
    yield from machine.versions()
    if _NODE_CONFIG in options:
        found, node, bounded = node_config.look(options[_NODE_CONFIG], order.run_config)
        yield found
        config = bounded or config
        own = {"--data": node.get("data"), "--state": node.get("state-dir")}
        options = {key: str(value) for key, value in own.items() if value} | options
    compute = config.compute
    yield machine.device(
        compute.device, compute.precision, compute.client_cores if site else compute.server_cores
    )
    if site:
        if "--state" in options:
            yield machine.room("state", _path(options["--state"]))
            yield from ledger.standing(_path(options["--state"]), node, config.privacy.delta)
    else:
        yield machine.room("records", config.output_dir)
    if "--data" in options:
        yield data.folder(config, _path(options["--data"]))
    elif site or config.evaluation.on in ("server", "both"):
        yield data.shared(config, elsewhere=not site and name is not None)
    yield from _connected(name, options)


def _connected(name: str | None, options: dict[str, str]) -> Iterator[Check]:
    from nectar.engines.flower.connecting import connect
    from nectar.engines.flower.job import LaunchError
    from nectar.operate.doctor.check import Check
    from nectar.operate.doctor.key_files import keys
    from nectar.operate.doctor.link import link
    from nectar.operate.doctor.machine import flower_wanted
    from nectar.operate.doctor.registration import registration

    site = "--site" in options
    directory = _path(options["--keys"]) if "--keys" in options else None
    if name is None:
        if directory is not None:
            yield from keys(directory, None, site=site)
        return
    try:
        with connect(name, options.get("--ca"), insecure="--insecure" in options) as connection:
            if directory is not None:
                yield from keys(directory, connection.host, site=site)
            yield from link(connection, flower_wanted(), site=site)
            if site and directory is not None:
                yield from registration(connection, directory)
    except LaunchError as error:
        yield Check("connection", "fail", str(error))


def _path(word: str) -> Path:
    return Path.cwd() / from_home(word)
