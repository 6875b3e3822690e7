"""`nectar site`: a SuperNode whose ClientApps start at once."""

from __future__ import annotations

import os
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Annotated, NoReturn

from common.config.text import from_home
from common.errors import ConfigError
from common.sites import KEPT_MODEL
from nectar.arguments import AllowImports, argument, option

HELP = """\
Starts flower-supernode with these options, and beside it one process that has imported Flower and torch. What the
SuperNode starts for each message is a fork of that process, in a tenth of a second instead of five; the app's own
code is imported from the bundle that came with the run. With a key (--auth-supernode-private-key), a fork also asks
the SuperLink every five seconds whether its run is still going on, and ends at once when it was stopped.

The exit code is the SuperNode's. SIGTERM and SIGINT are passed on to it; when it ends, everything ends. Where the
server does not know the site's key, or no longer does, one sentence says so. A site that was never online asks for two
minutes whether it is registered now (exit code 1: start it again); else the exit code is 0: no new start helps.

With `export STATE_DIR`: writes the newest model of the site's own that is kept there, as `nectar export` does a run's.

\b
nectar site --superlink 192.0.2.7:8443 --root-certificates ca.crt \\
  --auth-supernode-private-key keys/nodes/north --node-config \\
  "site='north' data='/data/images' state-dir='/var/lib/nectar'"
"""

#: what is no option of ours is Flower's to judge
CONTEXT = {"ignore_unknown_options": True}


def main(
    options: Annotated[
        list[str] | None, argument("[OPTION OF FLOWER-SUPERNODE]...", "handed on as they are")
    ] = None,
    output: Annotated[
        Path | None, option("DIR", "with `export STATE_DIR`: the folder to make")
    ] = None,
    allow_imports: AllowImports = "",
    pin: Annotated[
        str | None,
        option(
            "BUNDLE.fab",
            "run this app, known by its SHA-256, and no other; nothing else can be started from the "
            "SuperNode's PATH",
        ),
    ] = None,
) -> int:
    """Become the site's own process."""
    words = options or []
    if words[:1] == ["export"]:
        return _export(words[1:], output, allow_imports)
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
    _become(programs, bundle, words)


def _export(words: list[str], output: Path | None, allow_imports: str) -> int:
    """Write the newest model of the site's own that is kept in its state directory."""
    from nectar.export.bundle import export_of_site
    from nectar.records.record_imports import import_policy_of

    if len(words) != 1:
        raise ConfigError(
            "nectar site export takes the state-dir of the site's node config: nectar site export /var/lib/nectar"
        )
    folder = Path.cwd() / from_home(words[0])
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


def _become(programs: Path, bundle: Path | None, options: list[str]) -> NoReturn:
    # A pinned app is all that runs, whatever PYTHONPATH says.
    safely = "-P" if bundle is None else "-I"
    pin = [] if bundle is None else ["--pin", str(bundle)]
    command = [
        sys.executable,
        safely,
        "-m",
        "nectar.engines.site",
        *pin,
        str(programs),
        "--",
        *options,
    ]
    sys.stdout.flush()
    os.execv(command[0], command)
