"""`nectar doctor`: check this machine, its keys and its connection, and say how to fix what fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import click

from common.config.loading import load
from common.errors import ConfigError, NectarError
from nectar.arguments import local_path, parse_arguments
from nectar.command_line import command
from nectar.engines.remote.submission import Submission
from nectar.operate.doctor.checks import Check, DoctorTarget, Found, show
from nectar.options import ca_option, config_file_option, insecure_option

HELP = """\
Prints one line per check: ok, warn, or fail with how to fix it. The exit code is 1 if a check fails. Changes nothing.

A CONNECTION is a name in Flower's config.toml, or HOST:PORT with --ca FILE. Settings are those of the planned run
(compute.device, images.classes). With --site and neither settings nor --node-config nor --data, device and data are
not checked.

\b
nectar doctor lab --keys keys
nectar doctor superlink.example.org:443 --ca ca.crt --site --keys keys \\
  --state /var/lib/nectar dataset=images images.classes=cat,dog \\
  --data /data/images
nectar doctor --site method=fedavg --node-config \\
  "site='north' data='/data/images' allow-methods='fedavg'"
"""


@command(HELP)
@click.argument(
    "words",
    metavar="[CONNECTION] [EXPERIMENT] [KEY=VALUE]...",
    help="the server, and the planned run",
    nargs=-1,
)
@config_file_option
@click.option("--site", is_flag=True, help="this is a site's machine, not the operator's")
@click.option(
    "--keys",
    metavar="DIR",
    help="check a directory of keys: permissions, dates, key pairs, the certificate's host names; with --site also "
    "whether the site's key is registered at the server",
)
@click.option(
    "--node-config",
    metavar="C",
    help="check the node config of the site's SuperNode: keys, values and limits, also against the planned run, and "
    "its data and state-dir",
)
@click.option(
    "--data",
    metavar="FOLDER",
    help="check the site's folder of images and list its classes",
)
@click.option("--state", metavar="DIR", help="the site's state directory")
@ca_option
@insecure_option
def main(
    words: tuple[str, ...],
    config_file: str | None,
    site: bool,
    keys: str | None,
    node_config: str | None,
    data: str | None,
    state: str | None,
    ca: str | None,
    insecure: bool,
) -> int:
    """Run the checks; return 0, or 1 if something fails."""
    name, settings = _connection_and_settings(list(words))
    if name is None and (ca or insecure):
        raise ConfigError(
            "--ca and --insecure belong to a connection: name it first, as HOST:PORT."
        )
    if node_config is not None and not site:
        raise ConfigError("--node-config is a site's: add --site.")
    typed = parse_arguments(settings, file=config_file)
    submission = Submission(typed, load(typed))
    own_keys, user_data, own_state = (
        None if at is None else local_path(at) for at in (keys, data, state)
    )
    target = DoctorTarget(
        config=submission.config,
        run_config=submission.run_config,
        server=name,
        site=site,
        keys=own_keys,
        data=user_data,
        state=own_state,
        ca=ca,
        insecure=insecure,
        named="dataset" in submission.config.origin,
    )
    run = bool(settings or config_file or node_config or data)
    return 0 if show(_examine(target, node_config, run=run or not (site and name))) else 1


def _connection_and_settings(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the connection, which is a first word that is neither an experiment nor a method, and the settings."""
    from common.config.tables import is_experiment
    from common.methods import METHODS

    if words and "=" not in words[0] and not is_experiment(words[0]) and words[0] not in METHODS:
        return words[0], words[1:]
    return None, words


def _examine(
    target: DoctorTarget, node_config: str | None = None, *, run: bool = True
) -> Iterator[Check]:
    """Check this machine, then a site's ``node_config``, the needs of the planned run, and the connection.

    Parameters
    ----------
    node_config : str, optional
        As typed: its device, cores, data and state directory are then checked.
    run : bool
        Whether anything is known of the planned run: else a site's device and data are not checked.
    """
    from importlib import metadata

    from common.code.fingerprint import source_fingerprint
    from nectar.operate.doctor import keys, machine
    from nectar.operate.doctor import node_config as node_configs

    another = "the roll call refuses a site that runs another"
    before: Mapping[str, Callable[[DoctorTarget], Found]] = {
        "python": machine.python,
        "flower": machine.flower,
        "torch": lambda _: iter([("ok", metadata.version("torch"))]),
        "source": lambda _: iter([("ok", f"{source_fingerprint()}; {another}")]),
    }
    after: Mapping[str, Callable[[DoctorTarget], Found]] = {
        "device": machine.device,
        "records": machine.records,
        "state": lambda seen: machine.room(seen.state if seen.site else None),
        "privacy": machine.ledger,
        "data": machine.data,
        "names": keys.names,
        "secret sum": machine.secret_sum,
    }
    yield from _run_checks(target, before)
    if node_config is not None:
        check, target = node_configs.look(node_config, target)
        yield check
    if not run:
        after = {about: look for about, look in after.items() if about not in ("device", "data")}
    yield from _run_checks(target, after)
    yield from _connected(target)


def _run_checks(
    target: DoctorTarget, table: Mapping[str, Callable[[DoctorTarget], Found]]
) -> Iterator[Check]:
    """Carry out a table's checks in their order."""
    for about, look in table.items():
        try:
            for level, text in look(target):
                yield Check(about, level, text)
        except NectarError as error:
            yield Check(about, "fail", str(error))


def _connected(target: DoctorTarget) -> Iterator[Check]:
    """Check the keys, which must match the server's name, and the connection to the server."""
    from nectar.engines.flower.connection import connect
    from nectar.engines.flower.errors import LaunchError
    from nectar.operate.doctor.keys import keys, registration
    from nectar.operate.doctor.link import link

    if target.server is None:
        yield from _run_checks(target, {"keys": keys})
        return
    try:
        connection = connect(target.server, target.ca, insecure=target.insecure)
        yield from _run_checks(target, {"keys": lambda seen: keys(seen, connection.host)})
        yield from link(connection, site=target.site)
        yield from _run_checks(target, {"key": lambda seen: registration(seen, connection)})
    except LaunchError as error:
        yield Check("connection", "fail", str(error))
