"""Check of a site's node config against the planned run, as the site does at the roll call."""

from __future__ import annotations

import importlib
import re
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from common.config.resolved import Config
from common.division import Division
from common.errors import DataError, FederationError, NectarError
from nectar.arguments import local_path
from nectar.operate.doctor.checks import Check, DoctorTarget
from nectar.operate.doctor.machine import quiet

_SITE = "client_app.site"
"""The site's own side of a run, by its import path, as Flower reaches the ClientApp."""

_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""What Flower takes for a key and its value; anything between pairs is silently ignored."""

Node = Mapping[str, Any]


def read(text: str) -> Node:
    """Read a SuperNode's ``--node-config``: keys and TOML values, or the path of a .toml file.

    Raises
    ------
    FederationError
        If Flower would refuse or silently ignore a part of it.
    """
    if text.endswith(".toml"):
        path = Path(text).expanduser()
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FederationError(f"{path} cannot be read as a node config: {error}") from None
    node: dict[str, Any] = {}
    if stray := _PAIR.sub(" ", text).split():
        raise FederationError(
            f"Flower ignores {stray[0]!r} in the node config: write key=value, a text in quotes, and no spaces "
            "around the equals sign"
        )
    for key, value in _PAIR.findall(text):
        if key in node:
            raise FederationError(f"the node config names {key} twice: give it once")
        try:
            node |= tomllib.loads(f"{key} = {value}")
        except tomllib.TOMLDecodeError:
            raise FederationError(
                f"the node config says {key}={value}: write a text in quotes, {key}='...', and a number, true or "
                "false without"
            ) from None
    return node


def held_against(node: Node, run_config: Mapping[str, str | int | float | bool]) -> Config:
    """Return a run's configuration as the site carries it out: with its own device and cores, below its own root.

    Raises
    ------
    NectarError
        With the owner's sentence, if the node config has a key that there is not, a value that cannot be, or a veto
        that the run meets.
    """
    if "simulated" in node:
        raise FederationError(
            "the node config says simulated, which is for simulations and disables the owner's limits: leave it out"
        )
    site = importlib.import_module(_SITE)
    context = _context(node, run_config)
    division: Division = site.division_of(context)
    run = division.run
    name, folder = site.site_of(run, context), site.user_folder(run, context)
    if folder is None:
        site.partition_of(context)
    elif "min-class" in node:
        with tempfile.TemporaryDirectory() as keep, quiet():
            elsewhere = _context({**node, "state-dir": keep}, run_config)
            with suppress(DataError):  # the check of the data says that the folder cannot be read
                site.site_samples(division, name, elsewhere)
    return run.config


def _context(node: Node, run_config: Mapping[str, str | int | float | bool]) -> Context:
    return Context(
        run_id=0, node_id=0, node_config=dict(node), state=RecordDict(), run_config=dict(run_config)
    )


def look(text: str, target: DoctorTarget) -> tuple[Check, DoctorTarget]:
    """Return the result of checking the node config ``text``, and the target with what could be read of it.

    Its configuration is then the run as the site carries it out; data and state directory are looked at where nothing
    else was named.
    """
    try:
        node = read(text)
        places = {"data": node.get("data"), "state": node.get("state-dir")}
        stated = {key: local_path(str(place)) for key, place in places.items() if place}
        target = replace(
            target,
            node=node,
            data=target.data or stated.get("data"),
            state=target.state or stated.get("state"),
        )
        target = replace(target, config=held_against(node, target.run_config))
    except NectarError as error:
        return Check("node config", "fail", str(error)), target
    found = f"{', '.join(node)}: as the site reads them; this run is allowed"
    return Check("node config", "ok", found), target
