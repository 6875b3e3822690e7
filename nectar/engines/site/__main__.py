"""The process of `nectar site`.

``python -P -m nectar.engines.site [--pin BUNDLE] [--approves] PROGRAMS -- OPTIONS OF flower-supernode``

It is started again by the command, because that has imported modules of the app, whose code a fork gets from its
bundle; and without the working directory on its path, as Flower's own `flwr-clientapp` is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

# Until there is a SuperNode to pass it on to, a Ctrl-C ends this process without a traceback of what it imports.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from nectar.engines.private_folder import private_folder
from nectar.engines.site import zygote
from nectar.engines.site.supernode import PREFIX, SuperNode

#: The folder of the `flower-superexec` that a SuperNode finds first: part of the package, since a temporary folder may
#: be one from which nothing can be started, as in the containers.
_SUPEREXEC = Path(__file__).parent / "bin"

#: The SuperNode's SuperExec looks for a task this often: Flower's default of a second is for what starts slowly. A look
#: costs the two of them four milliseconds: an idle site takes 4 % of a core with ten a second, 2.5 % with five.
_POLL = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")

#: with what a SuperNode ends that its server turned away: while it was online, and at its start
_ENDS = (0, 1)


def main() -> int:
    """Start the SuperNode, and return its exit code when it has ended."""
    parser = ArgumentParser()
    parser.add_argument("--pin", type=Path)
    parser.add_argument("--approves", action="store_true")
    parser.add_argument("programs", type=Path)
    parser.add_argument("options", nargs="*")
    words = parser.parse_args()
    with private_folder(PREFIX) as folder:
        if words.pin is not None:
            (folder / zygote.BUNDLE).write_bytes(words.pin.read_bytes())
        command = [str(words.programs / "flower-supernode"), *words.options]
        supernode = SuperNode(command, zygote.command(), _environment(words, folder))
        code = supernode.wait()
        if supernode.is_ending or code not in _ENDS:
            return code
        supernode.leave_signals()
        # imported only now, as it takes memory
        from nectar.engines.site import clientapp, turned_away

        fleet = clientapp.fleet_of(words.options)
        return code if fleet is None else turned_away.exit_code(code, fleet, folder)


def _environment(words: Namespace, folder: Path) -> dict[str, str]:
    """Return the SuperNode's variables: what it finds first, and what its SuperExec and the zygote read."""
    pin, path = words.pin is not None, [str(_SUPEREXEC)]
    only = pin or words.approves
    if not only:  # Flower's own programs would run what is sent: they are not to be found
        path += [str(words.programs), os.environ.get("PATH", "")]
    site = {"folder": str(folder), "pin": pin, "only": only, "options": words.options}
    return {
        **dict([_POLL]),
        **os.environ,
        "PATH": os.pathsep.join(path),
        "NECTAR_SITE_PYTHON": sys.executable,
        "NECTAR_SITE_ISOLATION": zygote.isolation(),
        zygote.SITE: json.dumps(site),
    }


if __name__ == "__main__":
    sys.exit(main())
