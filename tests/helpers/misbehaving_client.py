"""Devices of SCAFFOLD that do what a process may not survive, or say something: for the tests of the pool."""

from __future__ import annotations

import os
import signal
import time
import warnings
from logging import getLogger
from pathlib import Path

from waiting import until

from client_app.device import phase
from client_app.scaffold import ScaffoldClient
from common.methods import Method
from common.settings.base import setting
from common.settings.fedavg import ScaffoldSettings
from common.specs.averaging import bundle_spec
from common.wire.bundle import Bundle


class OddSettings(ScaffoldSettings):
    """Who does what in which round."""

    does: str = setting(
        "",
        "kill, leave, raise, speak, sleep, gather (wait for a second process), stay (until there is a file go), "
        "or the process number is written into a folder",
    )
    site: str = setting("", "the site that does it; empty: all")
    at: int = setting(1, "the round in which it does it", ge=1)
    folder: str = setting("", "where process numbers are written")


class OddClient(ScaffoldClient):
    """Trains as SCAFFOLD's device."""

    @phase("train", takes=bundle_spec)
    def train(self, given: Bundle) -> Bundle:
        """Do what the settings say, then train."""
        odd = self.settings(OddSettings)
        if odd.folder:
            Path(odd.folder, str(os.getpid())).touch()
        if odd.at == self.server_round and odd.site in ("", self.site):
            if odd.does == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if odd.does == "leave":
                os._exit(3)
            if odd.does == "raise":
                raise ArithmeticError("nothing adds up")
            if odd.does == "speak":
                getLogger("flwr").warning("%s speaks", self.site)
                getLogger("odd").error("%s is odd", self.site)
                warnings.warn(f"{self.site} warns", RuntimeWarning, stacklevel=1)
            if odd.does == "sleep":
                Path(odd.folder, "asleep").touch()
                time.sleep(600)
            if odd.does == "gather":
                until(lambda: len(list(Path(odd.folder).iterdir())) > 1)
            if odd.does == "stay":
                Path(odd.folder, "there").touch()
                until(Path(odd.folder, "go").exists)
        return super().train(given)


METHOD = Method(
    "odd",
    strategy="strategies.scaffold:Scaffold",
    client="misbehaving_client:OddClient",
    settings="misbehaving_client:OddSettings",
)
