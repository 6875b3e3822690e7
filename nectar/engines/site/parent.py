"""The process that ClientApps are forks of: it starts the SuperNode, answers stubs, and ends when that has ended.

The SuperNode leads a process group, which its SuperExec, the stubs and the forks share: a terminal's Ctrl-C reaches
this process alone, which passes it on once, and what is left of the group at the end is found and ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import FrameType

from nectar.engines import processes
from nectar.engines.site.forks import ForkRequest, ForkServer

#: seconds that a ClientApp and the SuperNode have to end before they are killed
_GRACE, _SUPERNODE_GRACE = 5.0, 30.0

#: what is passed on, and as what: a SuperNode does not listen to SIGHUP, and only SIGTERM ends one that still imports
#: without a traceback; once it listens, both mean the same to it
_PASSED_ON = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}


class Parent:
    """Serves one SuperNode, which ends with this process.

    Attributes
    ----------
    told_to_end : bool
        Whether a signal was passed on to the SuperNode.
    """

    def __init__(
        self, listener: socket.socket, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._forks = ForkServer(listener, lambda: listener.accept()[0], _GRACE)
        self.told_to_end = False
        try:
            self._supernode = subprocess.Popen(
                command,
                env=dict(environment),
                process_group=0,
                preexec_fn=partial(processes.end_with, os.getpid(), signal.SIGTERM),
            )
        except OSError as error:
            sys.exit(f"nectar site: {command[0]} cannot be started: {error}")
        self._heard = [n for n in _PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN]
        for number in self._heard:  # what the caller had ignored (nohup) stays ignored
            signal.signal(number, self._pass_on)

    def serve(self) -> ForkRequest | int:
        """Fork a ClientApp for each stub until the SuperNode has ended.

        Returns
        -------
        Request or int
            In a fork, what it is to run. In this process, at the end, the SuperNode's exit code, 128 + n if signal n
            ended it.
        """
        request = self._forks.serve(over=lambda: self._supernode.poll() is not None)
        if request is not None:
            self._become_child()
            return request
        self._clear_group()
        code = self._supernode.wait()
        return code if code >= 0 else 128 - code

    def leave_signals(self) -> None:
        """Let a signal end this process, now that there is no SuperNode to pass it on to."""
        for number in self._heard:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))

    def end(self) -> None:
        """End the SuperNode and what it started, without having served."""
        self._clear_group()
        self._supernode.wait()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the SuperNode at once, also while this process still imports."""
        self.told_to_end = True
        self._supernode.send_signal(_PASSED_ON[signal.Signals(number)])
        self._forks.kill_after(self._supernode.pid, _SUPERNODE_GRACE)

    def _become_child(self) -> None:
        for number in self._heard:
            handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, handler)
        os.setpgid(0, self._supernode.pid)

    def _clear_group(self) -> None:
        """End what the SuperNode has left: its SuperExec, stubs, ClientApps."""
        group = self._supernode.pid
        steps = ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE))
        processes.end(lambda: processes.living(lambda pid: os.getpgid(pid) == group), steps)
        self._forks.reap()
