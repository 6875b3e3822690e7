"""A site's first process: it starts the SuperNode, passes signals on to it, and ends what that has left.

It imports neither Flower nor torch, and ends when the SuperNode has ended. That leads a process group, which its
SuperExec, the zygote and the ClientApps share: a terminal's Ctrl-C reaches this process alone, which passes it on once,
and what is left of the group at the end is found and ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import FrameType

from nectar.engines import processes

PREFIX = "nectar-supernode-"
"""With what the name of a program's private folder begins."""

#: seconds that what the SuperNode has left, and the SuperNode itself, have to end before they are killed
_GRACE, _SUPERNODE_GRACE = 5.0, 30

#: what is passed on: a SuperNode does not listen to SIGHUP, and only SIGTERM ends one that still imports without a
#: traceback; once it listens, SIGINT and SIGTERM mean the same to it
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SuperNode:
    """A SuperNode, which ends with this process, and a first zygote, to see that it can import what it needs."""

    def __init__(
        self, command: Sequence[str], zygote: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.is_ending = False  # whether a signal was passed on
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                process_group=0,
                preexec_fn=partial(processes.end_with, os.getpid(), signal.SIGTERM),
            )
        except OSError as error:
            sys.exit(f"nectar site: {command[0]} cannot be started: {error}")
        self._heard = [n for n in _PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN]
        for number in self._heard:  # what the caller had ignored (nohup) stays ignored
            signal.signal(number, self._pass_on)
        self._trial = subprocess.Popen(
            zygote, env=environment, process_group=self._process.pid, stdin=subprocess.DEVNULL
        )

    def wait(self) -> int:
        """Return the SuperNode's exit code, 128 + n if signal n ended it; end it with 1 if the imports fail."""
        while self._process.poll() is None and (self._trial.poll() or 0) <= 0:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        code = self._process.poll()
        steps = ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE))
        group = self._process.pid
        processes.end(lambda: processes.living(lambda pid: os.getpgid(pid) == group), steps)
        if code is None:
            return 1
        return code if code >= 0 else 128 - code

    def leave_signals(self) -> None:
        """Let a signal end this process, now that there is no SuperNode to pass it on to."""
        for number in self._heard:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if not self.is_ending:
            signal.signal(signal.SIGALRM, lambda number, frame: self._process.kill())
            signal.alarm(_SUPERNODE_GRACE)
        self.is_ending = True
        self._process.send_signal(signal.SIGTERM)
