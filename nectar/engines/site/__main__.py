"""The process of `nectar site`.

``python -P -m nectar.engines.site [--pin BUNDLE] [--approves] PROGRAMS -- OPTIONS OF flower-supernode``

It is started again by the command, because that has imported modules of the app, whose code a fork gets from its
bundle; and without the working directory on its path, as Flower's own `flwr-clientapp` is.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import time
import traceback
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

# Until there is a SuperNode to pass it on to, a Ctrl-C ends this process without a traceback of what it imports.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from nectar.engines.site import clientapp
from nectar.engines.site.parent import Parent
from nectar.engines.site.place import Place, place

if TYPE_CHECKING:
    from nectar.engines.site.forks import ForkRequest

#: The SuperNode's SuperExec looks for a task this often: Flower's default of a second is for what starts slowly.
_POLL = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")


#: with what a SuperNode ends that its server turned away: while it was online, and at its start
_ENDS = (0, 1)


def main() -> int:
    """Start the SuperNode, import what ClientApps need meanwhile, and serve; return the exit code."""
    parser = ArgumentParser()
    parser.add_argument("--pin", type=Path)
    parser.add_argument("--approves", action="store_true")
    parser.add_argument("programs", type=Path)
    parser.add_argument("options", nargs="*")
    words = parser.parse_args()
    with place() as here:
        pin = clientapp.pinned(words.pin, here.folder) if words.pin else None
        fleet = clientapp.fleet_of(words.options)
        supernode = [str(words.programs / "flower-supernode"), *words.options]
        only = pin is not None or words.approves
        environment = dict([_POLL]) | os.environ | _variables(here, words.programs, only)
        parent = Parent(here.listener, supernode, environment)
        try:
            _preload(pin)
        except BaseException:
            parent.end()
            raise
        outcome = parent.serve()
        if isinstance(outcome, int):
            if fleet is None or parent.told_to_end or outcome not in _ENDS:
                return outcome
            parent.leave_signals()
            # imported only now, since it imports modules of the app, which a fork has to get from its bundle
            from nectar.engines.site import turned_away

            return turned_away.exit_code(outcome, fleet, here.folder)
        _run(outcome, pin, fleet)


def _variables(here: Place, programs: Path, only: bool) -> dict[str, str]:
    if only:  # Flower's own flwr-clientapp and flwr-agentapp would run what is sent: they are not to be found
        return here.alone(programs / "flower-superexec")
    return here.environment(
        str(programs / "flwr-clientapp"), [programs, os.environ.get("PATH", "")]
    )


def _preload(pin: clientapp.Pin | None) -> None:
    begun = time.monotonic()
    clientapp.preload(pin)
    # what is there already is not looked through by the forks' collectors, so that its pages stay shared
    gc.collect()
    gc.freeze()
    print(
        f"nectar site: ready after {time.monotonic() - begun:.1f} s; ClientApps are forks of process {os.getpid()}",
        file=sys.stderr,
        flush=True,
    )


def _run(
    request: ForkRequest, pin: clientapp.Pin | None, fleet: clientapp.Fleet | None
) -> NoReturn:
    """Be the ClientApp, and end as a process of its own would, without what the parent has to do at its exit."""
    code = 1
    try:
        request.put_on("flwr-clientapp")
        atexit._clear()
        clientapp.run(pin, fleet)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
