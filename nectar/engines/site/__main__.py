"""The process of `nectar site`.

``python -P -m nectar.engines.site [--pin BUNDLE] [--approves] PROGRAMS -- OPTIONS OF flower-supernode``

It is started again by the command, because that has imported modules of the app, whose code a fork gets from its
bundle; and without the working directory on its path, as Flower's own `flwr-clientapp` is.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

# Until there is a SuperNode to pass it on to, a Ctrl-C ends this process without a traceback of what it imports.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from nectar.engines.site import warm
from nectar.engines.site.parent import Parent
from nectar.engines.site.place import Place, place

#: The SuperNode's SuperExec looks for a task this often: Flower's default of a second is for what starts slowly. A look
#: costs the two of them four milliseconds: an idle site takes 4 % of a core with ten a second, 2.5 % with five.
_POLL = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")

#: with what a SuperNode ends that its server turned away: while it was online, and at its start
_ENDS = (0, 1)


def main() -> int:
    """Start the SuperNode, and what ClientApps are forks of when there is one to start; return the exit code."""
    parser = ArgumentParser()
    parser.add_argument("--pin", type=Path)
    parser.add_argument("--approves", action="store_true")
    parser.add_argument("programs", type=Path)
    parser.add_argument("options", nargs="*")
    words = parser.parse_args()
    with place() as here:
        bundle = words.pin.read_bytes() if words.pin else None
        supernode = [str(words.programs / "flower-supernode"), *words.options]
        only = bundle is not None or words.approves
        environment = dict([_POLL]) | os.environ | _variables(here, words.programs, only)
        parent = Parent(here.listener, supernode, environment)
        outcome = parent.serve()
        if outcome is None:
            warm.serve(
                here.listener, parent.group, lambda: _client_app(bundle, here, words.options)
            )
        if parent.told_to_end or outcome not in _ENDS:
            return outcome
        parent.leave_signals()
        # imported only now: it takes memory, and modules of the app, which a fork has to get from its bundle
        from nectar.engines.site import clientapp, turned_away

        fleet = clientapp.fleet_of(words.options)
        return outcome if fleet is None else turned_away.exit_code(outcome, fleet, here.folder)


def _client_app(bundle: bytes | None, here: Place, options: Sequence[str]) -> warm.ClientApp:
    from nectar.engines.site import clientapp  # by the process whose memory is given back

    pin = None if bundle is None else clientapp.pinned(bundle, here.folder)
    clientapp.preload(pin)
    return partial(clientapp.run, pin, clientapp.fleet_of(options))


def _variables(here: Place, programs: Path, only: bool) -> dict[str, str]:
    if only:  # Flower's own flwr-clientapp and flwr-agentapp would run what is sent: they are not to be found
        return here.alone(programs / "flower-superexec")
    return here.environment(
        str(programs / "flwr-clientapp"), [programs, os.environ.get("PATH", "")]
    )


if __name__ == "__main__":
    sys.exit(main())
