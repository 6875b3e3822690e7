"""`nectar site`: a SuperNode whose ClientApps start at once, and its owner's approval of runs."""

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
from nectar.arguments import local_path
from nectar.command_line import CONTEXT, group
from nectar.options import allow_imports_option

HELP = """\
Starts flower-supernode with these options. Each message is handled in a fork of a process that has already imported
Flower and torch, so it starts in 0.1 s instead of 5 s. The fork imports the app's code from the bundle of the run. The
process starts with the first message and exits five minutes after the last one. With a key
(--auth-supernode-private-key), a fork also checks every five seconds whether its run was stopped, and then exits.

The exit code is the SuperNode's. SIGTERM and SIGINT are passed on to it; when it exits, all its processes exit. If the
server does not know the site's key, the log says so. A site that has never been online then retries for two minutes and
exits with 1 (start it again later); a site whose key was unregistered exits with 0, because restarting does not help.

\b
nectar site --superlink 192.0.2.7:8443 --root-certificates ca.crt \\
  --auth-supernode-private-key keys/nodes/north --node-config \\
  "site='north' data='/data/images' state-dir='/var/lib/nectar'"
"""

main = group(HELP, default="start")


_state = click.option("--state", metavar="DIR", default="", help="the site's state-dir")


@main.command(context_settings={**CONTEXT, "ignore_unknown_options": True})  # which Flower judges
@click.argument(
    "options", metavar="[OPTION OF FLOWER-SUPERNODE]...", help="passed on unchanged", nargs=-1
)
@click.option(
    "--pin",
    metavar="BUNDLE.fab",
    help="run only this app, identified by its SHA-256; the SuperNode cannot start any other program from its PATH",
)
def start(options: tuple[str, ...], pin: str | None) -> int:
    """Start the site; same as `nectar site OPTIONS`."""
    words = list(options)
    bundle = None if pin is None else Path.cwd() / from_home(pin)
    if bundle is not None and not zipfile.is_zipfile(bundle):
        raise ConfigError(f"--pin {bundle}: there is no bundle there; `flwr build` makes one.")
    if any(word.partition("=")[0] == "--isolation" for word in words):
        raise ConfigError("nectar site starts the ClientApps itself: leave out --isolation.")
    programs = Path(sysconfig.get_path("scripts"))
    if not (programs / "flower-supernode").is_file():
        raise ConfigError(
            f"{programs} holds no flower-supernode: install Nectar with its dependencies."
        )
    exec_supernode(programs, bundle, words, approves="approve" in _node_config(words))


@main.command()
@click.argument(
    "what",
    metavar="[RUN|HASH|METHOD]",
    help="a run's number; to approve in advance, a run's hash or a method's name",
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
    help="refuse the run or the sending of the images, or withdraw the approval of a HASH or METHOD",
)
def approve(what: str | None, digits: str | None, state: str, refuse: bool) -> int:
    """List what waits for the owner's approval (runs with approve='ask', images with review-dir), and decide."""
    from nectar.operate.approvals import decide, waiting

    place = local_path(state) if state else None
    if place is None or not place.is_dir():
        raise ConfigError(
            f"--state {state}: give the site's state-dir, which holds the requests for approval."
        )
    print(decide(place, what, digits or "", refuse=refuse) if what else waiting(place))
    return 0


@main.command()
@click.argument("kit", metavar="KIT", help="the file that the operator made with `nectar keys kit`")
@click.argument("site", metavar="SITE", help="this site's name")
@click.option(
    "--data", metavar="FOLDER", help="the site's images (FOLDER/CLASS/*.png) or its table (.csv)"
)
@click.option("--folder", metavar="DIR", help="the folder to set up (default: ./SITE)")
@click.option("--state", metavar="DIR", help="the site's state-dir (default: DIR/state)")
@click.option(
    "--fingerprint",
    metavar="DIGITS",
    help="the authority's fingerprint, as read out by the operator (default: prompt for it)",
)
@click.option("--start", "begin", is_flag=True, help="start the site if all checks pass")
def init(
    kit: str,
    site: str,
    data: str | None,
    folder: str | None,
    state: str | None,
    fingerprint: str | None,
    begin: bool,
) -> int:
    """Set up a site from its kit: verify the kit, make the site's key, run all checks. Safe to repeat."""
    from common.sites import site_slug
    from nectar.operate.keys.authority import read_certificate
    from nectar.operate.keys.inventory import certificate_problem
    from nectar.operate.keys.kit import AUTHORITY, NODE_CONFIG, open_kit

    place = local_path(folder or site_slug(site))
    if data is None and not (place / NODE_CONFIG).exists():
        raise ConfigError("nectar site init needs --data FOLDER, the site's images or table.")
    for what, path in (("kit", local_path(kit)), ("data", local_path(data or "."))):
        if not path.exists():
            raise ConfigError(
                f"there is no {what} at {path}: nectar site init KIT SITE --data FOLDER"
            )
    opened = open_kit(local_path(kit), site, fingerprint or _typed_fingerprint())
    print(f"this kit was made on {opened.made}: ask the operator whether there is a newer one")
    opened.install(
        place, str(local_path(data or ".")), str(local_path(state) if state else place / "state")
    )
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
            f"\nfix what fails, or wait until the key is registered, and repeat this command; then\n{line}"
        )
        return 1
    print(f"\nall checks passed; start the site with\n{line}", flush=True)
    return start(options) if begin else 0


@main.command()
@click.argument("state", metavar="STATE", help="the state-dir of the site's node config")
@click.option("--output", metavar="DIR", help="the folder to make")
@allow_imports_option
def export(state: str, output: Path | None, allow_imports: str) -> int:
    """Export the newest personal model in the site's state-dir, as `nectar export` does for a run."""
    from nectar.export.bundle import export_of_site
    from nectar.records.record_imports import import_policy_of

    folder = local_path(state)
    kept = max(
        folder.glob(f"*/*/{KEPT_MODEL}"), key=lambda path: path.stat().st_mtime, default=None
    )
    if kept is None:
        raise ConfigError(
            f"{folder} holds no personal model: a site saves one when it evaluates it (evaluation.on=sites) and the "
            "method or model.personal gives each site its own"
        )
    done = export_of_site(kept, output, policy=import_policy_of(allow_imports))
    print(f"{done.about['run']['site']}'s personal model: {done.folder}")
    return 0


def _typed_fingerprint() -> str:
    if not sys.stdin.isatty():
        raise ConfigError("nectar site init prompts at a terminal; without one, add --fingerprint.")
    return input("The authority's fingerprint, as read out by the operator: ")


def _own_key(folder: Path, site: str) -> Path:
    """Make the site's key pair if it is missing, print what to send back, and return the private key's path."""
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
    """Check the machine, the site's data and the connection, as `nectar doctor` does."""
    from nectar.commands.doctor import main as doctor
    from nectar.operate.doctor.node_config import read
    from nectar.operate.keys.kit import NODE_CONFIG

    config, keys, ca = folder / NODE_CONFIG, str(folder / "keys"), str(folder / "ca.crt")
    allowed = str(read(str(config)).get("allow-methods", "")).split()
    settings = [f"method={allowed[0]}"] if allowed else []  # check against a run that is allowed
    code: int = click.get_current_context().invoke(
        doctor, words=(server, *settings), site=True, keys=keys, node_config=str(config), ca=ca
    )
    return code == 0


def _node_config(options: list[str]) -> Mapping[str, object]:
    """Return the node config among a SuperNode's options; empty if it is invalid, which the SuperNode reports."""
    from nectar.operate.doctor.node_config import read

    given = ""
    for word, after in zip(options, [*options[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--node-config":
            given = value if equals else after
    try:
        return read(given)
    except NectarError as error:
        if "approve" in given:  # never start a site whose request for approval cannot be read
            raise ConfigError(f"--node-config: {error}") from None
        return {}


def exec_supernode(
    programs: Path, bundle: Path | None, options: list[str], *, approves: bool
) -> NoReturn:
    """Replace this process by the program that runs the SuperNode."""
    # With --pin, -I ignores PYTHONPATH, so that only the pinned app runs.
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
