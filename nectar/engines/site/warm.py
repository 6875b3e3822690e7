"""The process that ClientApps are forks of: it has imported what they need, and ends after a while without one."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from nectar.engines import processes
from nectar.engines.site.forks import ForkServer

#: seconds after the last ClientApp has ended until this process ends. The next begins with three seconds of imports,
#: a hundredth of such a pause; most rounds follow sooner
IDLE = 300.0

#: seconds that a ClientApp has to end before it is killed
_GRACE = 5.0

ClientApp = Callable[[], None]


def serve(
    listener: socket.socket, group: int, prepare: Callable[[], ClientApp], idle: float = IDLE
) -> NoReturn:
    """Be that process, and in each fork of it the ClientApp; without what their parents have to do at their exit.

    Parameters
    ----------
    listener : socket.socket
        Where stubs are heard. One that connects while this process ends is heard by the next.
    group : int
        The process group of the ClientApps.
    prepare : callable
        Imports what a ClientApp needs, and returns what it does.
    idle : float
        Seconds without a ClientApp; before the first none, as this process was started for one.
    """
    code, own, begun = 1, os.getpid(), time.monotonic()
    try:
        atexit._clear()
        client_app = prepare()
        # what is there already is not looked through by the forks' collectors, so that its pages stay shared
        gc.collect()
        gc.freeze()
        seconds = time.monotonic() - begun
        _say(f"ready after {seconds:.1f} s; ClientApps are forks of process {own}")
        request = ForkServer(listener, _GRACE, idle).serve()
        if request is None:
            _say(f"process {own} ends, as no message waits; the next one starts another")
        else:
            os.setpgid(0, group)
            processes.end_with(own, signal.SIGTERM)
            request.put_on("flwr-clientapp")
            atexit._clear()
            client_app()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _say(sentence: str) -> None:
    print(f"nectar site: {sentence}", file=sys.stderr, flush=True)
