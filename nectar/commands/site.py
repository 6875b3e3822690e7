"""`nectar site`: a SuperNode whose ClientApps start at once, and the owner's say on runs."""

from __future__ import annotations

import os
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

from common.config.text import from_home
from common.errors import ConfigError, NectarError
from nectar.arguments import argument, flag, here, option

HELP = """\
Starts flower-supernode with these options, and beside it one process that has imported Flower and torch. What the
SuperNode starts for each message is a fork of that process, in a tenth of a second instead of five; the app's own
code is imported from the bundle that came with the run. With a key (--auth-supernode-private-key), a fork also asks
the SuperLink every five seconds whether its run is still going on, and ends at once when it was stopped.

The exit code is the SuperNode's. SIGTERM and SIGINT are passed on to it; when it ends, everything ends. Where the
server does not know the site's key, or no longer does, one sentence says so. A site that was never online asks for two
minutes whether it is registered now (exit code 1: start it again); else the exit code is 0: no new start helps.

\b
nectar site --superlink 192.0.2.7:8443 --root-certificates ca.crt \\
  --auth-supernode-private-key keys/nodes/north --node-config \\
  "site='north' data='/data/images' state-dir='/var/lib/nectar'"
"""

#: what is no option of ours is Flower's to judge
CONTEXT = {"start": {"ignore_unknown_options": True}}

_State = Annotated[str, option("DIR", "the site's state-dir")]


def start(
    options: Annotated[
        list[str] | None, argument("[OPTION OF FLOWER-SUPERNODE]...", "handed on as they are")
    ] = None,
    pin: Annotated[
        str | None,
        option(
            "BUNDLE.fab",
            "run this app, known by its SHA-256, and no other; nothing else can be started from the "
            "SuperNode's PATH",
        ),
    ] = None,
) -> int:
    """Be the site's own program; `nectar site OPTIONS` is the same."""
    words = options or []
    bundle = None if pin is None else Path.cwd() / from_home(pin)
    if bundle is not None and not zipfile.is_zipfile(bundle):
        raise ConfigError(f"--pin {bundle}: there is no bundle there; `flwr build` makes one.")
    if any(word.partition("=")[0] == "--isolation" for word in words):
        raise ConfigError("nectar site starts the ClientApps itself: leave --isolation away.")
    programs = Path(sysconfig.get_path("scripts"))
    if not (programs / "flower-supernode").is_file():
        raise ConfigError(
            f"{programs} holds no flower-supernode: install Nectar with its dependencies."
        )
    _become(programs, bundle, words, approves="approve" in _node_config(words))


def approve(
    what: Annotated[
        str | None,
        argument(
            "[RUN|HASH|METHOD]", "a run's number; or ahead of time a run's hash, or a method's name"
        ),
    ] = None,
    state: _State = "",
    refuse: Annotated[
        bool, flag("--refuse", "the run stays out; or a HASH or METHOD is listed no more")
    ] = False,
) -> int:
    """Show what runs ask of this site (approve='ask' in its node config), and say that one may begin."""
    from nectar.operate.approvals import decide, waiting

    place = here(state) if state else None
    if place is None or not place.is_dir():
        raise ConfigError(
            f"--state {state}: name the site's state-dir, where its node config says approve."
        )
    print(decide(place, what, refuse=refuse) if what else waiting(place))
    return 0


ACTIONS = {each.__name__: each for each in (start, approve)}
DEFAULT = "start"


def _node_config(options: list[str]) -> Mapping[str, object]:
    """Return the node config among a SuperNode's options; what Flower would refuse of it, the SuperNode refuses."""
    from nectar.operate.doctor.node_config import read

    given = ""
    for word, after in zip(options, [*options[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--node-config":
            given = value if equals else after
    try:
        return read(given)
    except NectarError as error:
        if "approve" in given:  # a say that would be passed over is not let by
            raise ConfigError(f"--node-config: {error}") from None
        return {}


def _become(programs: Path, bundle: Path | None, options: list[str], *, approves: bool) -> NoReturn:
    # A pinned app is all that runs, whatever PYTHONPATH says.
    safely = "-P" if bundle is None else "-I"
    pin = [] if bundle is None else ["--pin", str(bundle)]
    command = [
        sys.executable,
        safely,
        "-m",
        "nectar.engines.site",
        *pin,
        *(["--approves"] if approves else []),
        str(programs),
        "--",
        *options,
    ]
    sys.stdout.flush()
    os.execv(command[0], command)
