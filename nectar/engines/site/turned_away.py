"""Reports what Flower does not: that the server does not know the site's key, or no longer does.

Flower's SuperNode ends with the same words where the key is not registered and where its own predecessor still counts
as online, which passes within a minute. A question to the server distinguishes the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from nectar.engines.flower.connection import Connection
from nectar.engines.site.clientapp import Fleet
from nectar.engines.site.zygote import say
from nectar.operate.doctor.keys import is_registered
from nectar.operate.keys.authority import fingerprint

MARK = "turned-away"
"""The file in the program's folder that tells `nectar-healthy` that the server does not know the site's key."""

#: seconds in which a key may still be registered, and between two questions
_PATIENCE, _PAUSE = 120.0, 10.0

#: exit codes with which a supervisor does and does not restart the site
_AGAIN, _OUT = 1, 0


def exit_code(
    code: int,
    fleet: Fleet,
    folder: Path,
    ask: Callable[[Connection, ec.EllipticCurvePrivateKey], bool | None] = is_registered,
) -> int:
    """Return the program's exit code, and print the reason if the server does not know the site's key.

    Parameters
    ----------
    code : int
        The SuperNode's exit code: 0 if it was online before.
    ask : callable
        Whether the server knows the key; None if that is not known.
    """
    certificates = Path(fleet.certificates) if fleet.certificates else None
    server = Connection(fleet.address, certificates)
    if ask(server, fleet.key) is not False:
        return code
    (folder / MARK).touch()
    again = "" if code == 0 else f"; this site retries for {_PATIENCE:.0f} s, then it stops"
    say(
        f"the server {fleet.address} does not know this site's key ({fingerprint(fleet.key.public_key())}). "
        f"The operator must register it; if it was unregistered, make and register a new key pair{again}"
    )
    end = time.monotonic() + (_PATIENCE if code else 0.0)
    while time.monotonic() < end:
        time.sleep(_PAUSE)
        if ask(server, fleet.key):
            say("the key is registered now: start this site again")
            return _AGAIN
    return _OUT
