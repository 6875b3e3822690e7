"""`nectar site`: a SuperNode whose ClientApps start at once, and the owner's say on runs."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import click

from common.config.text import from_home
from common.errors import ConfigError, NectarError
from common.sites import KEPT_MODEL
from nectar.arguments import here
from nectar.command_line import CONTEXT, group
from nectar.options import allow_imports_option

HELP = """\
Starts flower-supernode with these options. What that starts for each message is a fork of a process that has imported
Flower and torch, in a tenth of a second instead of five; the app's own code is imported from the bundle that came with
the run. The process starts with a message and ends five minutes after the last. With a key
(--auth-supernode-private-key), a fork also asks the SuperLink every five seconds whether its run is still going on,
and ends at once when it was stopped.

The exit code is the SuperNode's. SIGTERM and SIGINT are passed on to it; when it ends, everything ends. Where the
server does not know the site's key, or no longer does, one sentence says so. A site that was never online asks for two
minutes whether it is registered now (exit code 1: start it again); else the exit code is 0: no new start helps.

\b
nectar site --superlink 192.0.2.7:8443 --root-certificates ca.crt \\
  --auth-supernode-private-key keys/nodes/north --node-config \\
  "site='north' data='/data/images' state-dir='/var/lib/nectar'"
"""

main = group(HELP, default="start")


_state = click.option("--state", metavar="DIR", default="", help="the site's state-dir")


@main.command(context_settings={**CONTEXT, "ignore_unknown_options": True})  # which Flower judges
@click.argument(
    "options", metavar="[OPTION OF FLOWER-SUPERNODE]...", help="handed on as they are", nargs=-1
)
@click.option(
    "--pin",
    metavar="BUNDLE.fab",
    help="run this app, known by its SHA-256, and no other; nothing else can be started from the "
    "SuperNode's PATH",
)
def start(options: tuple[str, ...], pin: str | None) -> int:
    """Be the site's own program; `nectar site OPTIONS` is the same."""
    words = list(options)
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


@main.command()
@click.argument(
    "what",
    metavar="[RUN|HASH|METHOD]",
    help="a run's number; or ahead of time a run's hash, or a method's name",
    required=False,
)
@click.argument(
    "digits",
    metavar="[HASH]",
    help="after a run's number: the first 16 digits of its hash line",
    required=False,
)
@_state
@click.option(
    "--refuse",
    is_flag=True,
    help="no: the run stays out, the images stay; or a HASH or METHOD is listed no more",
)
def approve(what: str | None, digits: str | None, state: str, refuse: bool) -> int:
    """Show what this site's owner is asked (runs, by approve='ask'; images, by review-dir), and answer."""
    from nectar.operate.approvals import decide, waiting

    place = here(state) if state else None
    if place is None or not place.is_dir():
        raise ConfigError(
            f"--state {state}: name the site's state-dir, in which its owner is asked."
        )
    print(decide(place, what, digits or "", refuse=refuse) if what else waiting(place))
    return 0


@main.command()
@click.argument("kit", metavar="KIT", help="the file that the operator made with `nectar keys kit`")
@click.argument("site", metavar="SITE", help="this site's name")
@click.option(
    "--data", metavar="FOLDER", help="its images, FOLDER/CLASS/*.png, or its table, a .csv file"
)
@click.option("--folder", metavar="DIR", help="where all of it goes (default: ./SITE)")
@click.option("--state", metavar="DIR", help="its state-dir (default: DIR/state)")
@click.option(
    "--fingerprint",
    metavar="DIGITS",
    help="the authority's, as the operator reads it out (default: it is asked for)",
)
@click.option("--start", "begin", is_flag=True, help="start the site if all is well")
def init(
    kit: str,
    site: str,
    data: str | None,
    folder: str | None,
    state: str | None,
    fingerprint: str | None,
    begin: bool,
) -> int:
    """Set a site up from its kit: prove it, make the site's key here, check all; again as often as need be."""
    from common.sites import site_slug
    from nectar.operate.keys.authority import read_certificate
    from nectar.operate.keys.inventory import certificate_problem
    from nectar.operate.keys.kit import AUTHORITY, NODE_CONFIG, open_kit

    place = here(folder or site_slug(site))
    if data is None and not (place / NODE_CONFIG).exists():
        raise ConfigError(
            "nectar site init needs --data FOLDER: the site's own images, or its table."
        )
    for what, path in (("kit", here(kit)), ("data", here(data or "."))):
        if not path.exists():
            raise ConfigError(
                f"there is no {what} at {path}: nectar site init KIT SITE --data FOLDER"
            )
    opened = open_kit(here(kit), site, fingerprint or _typed_fingerprint())
    print(
        f"this kit was made on {opened.made}: ask the operator whether a newer one has replaced it"
    )
    opened.install(place, str(here(data or ".")), str(here(state) if state else place / "state"))
    if problem := certificate_problem(read_certificate(place / AUTHORITY))[0]:
        print(f"the operator's {AUTHORITY} {problem.partition(':')[0]}: ask for a newer kit")
    keys = _own_key(place, opened.site)
    options = [
        *("--superlink", opened.server, "--root-certificates", str(place / "ca.crt")),
        *("--auth-supernode-private-key", str(keys), "--node-config", str(place / NODE_CONFIG)),
    ]
    line = shlex.join(["nectar", "site", "start", *options])
    if not _is_well(place, opened.server):
        print(
            f"\nmend what fails, or wait until the key is registered, and type this again; then\n{line}"
        )
        return 1
    print(f"\nall is well: {line}", flush=True)
    return start(options) if begin else 0


@main.command()
@click.argument("state", metavar="STATE", help="the state-dir of the site's node config")
@click.option("--output", metavar="DIR", help="the folder to make")
@allow_imports_option
def export(state: str, output: Path | None, allow_imports: str) -> int:
    """Write the newest model of the site's own that is kept in its state-dir, as `nectar export` does a run's."""
    from nectar.export.bundle import export_of_site
    from nectar.records.record_imports import import_policy_of

    folder = here(state)
    kept = max(
        folder.glob(f"*/*/{KEPT_MODEL}"), key=lambda path: path.stat().st_mtime, default=None
    )
    if kept is None:
        raise ConfigError(
            f"{folder} holds no model of this site's own: a site keeps one where it judges it (evaluation.on=sites) "
            "and the method, or model.personal, gives it one"
        )
    done = export_of_site(kept, output, policy=import_policy_of(allow_imports))
    print(f"the model of {done.about['run']['site']}'s own: {done.folder}")
    return 0


def _typed_fingerprint() -> str:
    if not sys.stdin.isatty():
        raise ConfigError("nectar site init asks at a terminal: without one, add --fingerprint.")
    return input("The authority's fingerprint, as the operator reads it out: ")


def _own_key(folder: Path, site: str) -> Path:
    """Make the site's pair unless it is there, say what to send back, and return the private half's path."""
    from common.sites import site_slug
    from nectar.operate.keys import authority

    private = folder / "keys" / authority.FOLDER / site_slug(site)
    public = private.with_name(private.name + authority.SUFFIX)
    if not private.exists():
        authority.make_nodes(folder / "keys", [site])
    mark = authority.fingerprint(authority.read_public(public))
    print(f"send the operator {public}\nand read out          {mark}\n")
    return private


def _is_well(folder: Path, server: str) -> bool:
    """Look at the machine, the site's data and the way to the server, as `nectar doctor` does."""
    from nectar.commands.doctor import main as doctor
    from nectar.operate.doctor.node_config import read
    from nectar.operate.keys.kit import NODE_CONFIG

    config, keys, ca = folder / NODE_CONFIG, str(folder / "keys"), str(folder / "ca.crt")
    allowed = str(read(str(config)).get("allow-methods", "")).split()
    settings = [f"method={allowed[0]}"] if allowed else []  # the run to come is one that may be
    code: int = click.get_current_context().invoke(
        doctor, words=(server, *settings), site=True, keys=keys, node_config=str(config), ca=ca
    )
    return code == 0


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
