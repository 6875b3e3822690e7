"""What a site imports at a server's word: Nectar's own packages, and the modules that its node config allows."""

from __future__ import annotations

from common.code.fingerprint import PACKAGES
from common.config.own_parts import PART, Judge
from common.errors import FederationError

KEY = "allow-imports"
"""The node config's key."""

#: Flower's strategies are the server's matter: a site never imports the one it serves
_SERVERS = "flwr.serverapp.strategy"

#: what needs no leave: networks, and the parts that an allowed method is made of. Anything else of Nectar's own is
#: there to be called by Nectar, with arguments of its own, and not by whoever names it.
_OWN = {"model.name": ("common.models",), PART: PACKAGES}


def judge_of(allowed: tuple[str, ...]) -> Judge:
    """Return what a configuration is loaded with at a site that allows ``allowed`` beside what Nectar's parts are."""

    def judge(key: str, path: str) -> None:
        module = path.partition(":")[0]
        if key == "method" and _within(module, _SERVERS):
            return
        if not any(_within(module, package) for package in (*_OWN.get(key, ()), *allowed)):
            raise FederationError(
                f"this site does not import the module {module!r:.100}, which the run names as {key}: if its owner "
                f"trusts it, they restart the SuperNode with {KEY}='{module:.98}' in its node config"
            )

    return judge


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")
