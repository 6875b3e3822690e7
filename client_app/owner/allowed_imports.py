"""What a site imports at a server's word: Nectar's own packages, and the modules that its node config allows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from common.code.fingerprint import PACKAGES
from common.config.own_parts import PART, Judge
from common.errors import FederationError

KEY = "allow-imports"
"""The node config's key: modules and packages, with spaces or commas between them."""

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

#: Flower's strategies are the server's matter: a site never imports the one it serves
_SERVERS = "flwr.serverapp.strategy"

#: what needs no leave: networks, and the parts that an allowed method is made of. Anything else of Nectar's own is
#: there to be called by Nectar, with arguments of its own, and not by whoever names it.
_OWN = {"model.name": ("common.models",), PART: PACKAGES}


def allowed_imports(node_config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the modules that a site's own node config allows; a package stands for all that is in it.

    Raises
    ------
    FederationError
        If one of them cannot be a module's name.
    """
    named = re.split(r"[\s,]+", str(node_config.get(KEY, "")).strip())
    modules = tuple(name for name in named if name)
    for name in modules:
        if not _MODULE.fullmatch(name):
            raise FederationError(
                f"the node config says {KEY}={str(node_config[KEY])!r}, in which {name!r} is no module: name modules "
                "such as torchvision.models, with spaces or commas between them"
            )
    return modules


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
