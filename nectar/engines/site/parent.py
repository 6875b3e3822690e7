"""A site's first process: it starts the SuperNode, and the process that ClientApps are forks of whenever a stub waits.

It imports neither Flower nor torch, and ends when the SuperNode has ended. That leads a process group, which its
SuperExec, the stubs and the ClientApps share: a terminal's Ctrl-C reaches this process alone, which passes it on once,
and what is left of the group at the end is found and ended.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import FrameType

from nectar.engines import processes
from nectar.engines.site.forks import Woken

#: seconds that what the SuperNode has left, and the SuperNode itself, have to end before they are killed
_GRACE, _SUPERNODE_GRACE = 5.0, 30

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
    group : int
        The SuperNode's process group.
    """

    def __init__(
        self, listener: socket.socket, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._listener, self._woken, self._own = listener, Woken(), os.getpid()
        self._warm, self._is_well, self.told_to_end = 0, False, False
        try:
            self._supernode = subprocess.Popen(
                command,
                env=dict(environment),
                process_group=0,
                preexec_fn=partial(processes.end_with, os.getpid(), signal.SIGTERM),
            )
        except OSError as error:
            sys.exit(f"nectar site: {command[0]} cannot be started: {error}")
        self.group = self._supernode.pid
        self._heard = [n for n in _PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN]
        for number in self._heard:  # what the caller had ignored (nohup) stays ignored
            signal.signal(number, self._pass_on)

    def serve(self) -> int | None:
        """Have a process hear the stubs whenever one waits, until the SuperNode has ended.

        The first such process is started at once, to see that it can be; where it ends with an error, all ends.

        Returns
        -------
        int or None
            In such a process None. In this one, at the end, the SuperNode's exit code, 128 + n if signal n ended it.
        """
        waits = True
        while self._supernode.poll() is None:
            if waits:
                self._warm = os.fork()
                if not self._warm:
                    self._become_child()
                    return None
            doors: list[socket.socket | Woken] = [self._woken]
            doors += [] if self._warm else [self._listener]
            ready = select.select(doors, [], [])[0]
            if self._woken in ready:
                self._woken.clear()
                self._reap()
            waits = self._listener in ready
        self._end()
        code = self._supernode.wait()
        return code if code >= 0 else 128 - code

    def leave_signals(self) -> None:
        """Let a signal end this process, now that there is no SuperNode to pass it on to."""
        for number in self._heard:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the SuperNode at once, also while this process still imports."""
        if not self.told_to_end:
            signal.signal(signal.SIGALRM, lambda number, frame: self._supernode.kill())
            signal.alarm(_SUPERNODE_GRACE)
        self.told_to_end = True
        self._supernode.send_signal(_PASSED_ON[signal.Signals(number)])

    def _become_child(self) -> None:
        for number in self._heard:
            handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, handler)
        self._woken.leave()
        os.setpgid(0, 0)
        processes.end_with(self._own, signal.SIGTERM)

    def _reap(self) -> None:
        """See whether the process that hears the stubs has ended, and how."""
        ended, status = os.waitpid(self._warm, os.WNOHANG) if self._warm else (0, 0)
        if not ended:
            return
        self._warm = 0
        if os.waitstatus_to_exitcode(status) > 0 and not self._is_well:
            self._end()
            sys.exit(1)
        self._is_well = True
        # whoever may have waited for it in vain is told, lest it has process after process started that ends so
        if status and select.select([self._listener], [], [], 0)[0]:
            self._listener.accept()[0].close()

    def _end(self) -> None:
        """End what the SuperNode has left, its SuperExec, stubs, ClientApps, and then whose forks they were."""
        steps = ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE))
        processes.end(lambda: processes.living(lambda pid: os.getpgid(pid) == self.group), steps)
        if self._warm:
            os.kill(self._warm, signal.SIGKILL)
            os.waitpid(self._warm, 0)
