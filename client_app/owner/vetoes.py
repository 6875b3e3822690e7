"""What a site's owner forbids every run: methods, starts, amounts, a model's size, small classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from client_app.owner.node_config import MAX_SIZE, NodeConfig
from common.code.fingerprint import PACKAGES
from common.config.resolved import Config
from common.config.user_parts import PART, ImportPolicy
from common.errors import FederationError, near
from common.methods import METHODS
from common.settings.base import AMOUNTS, Disclosure
from common.settings.section import amounts, left_open
from common.specs.updates import SECONDS_LEFT, TAKEN
from common.storage.limits import machine_cores

STARTS = {"noise": "noise", "means": "class means", "real": "real examples"}
"""The words of ``allow-start``, and what a method's disclosure calls each."""

MAX_SETTINGS = 64 * 2**10
"""Characters of all settings that come with a run."""

MAX_ROUND = 10**6
"""The highest number of a round."""


def check_known(node: NodeConfig) -> None:
    """Refuse a node config that allows a method or a start that there is not, with a FederationError."""
    if node.allow_imports is None:  # else one of them may be a user's method
        _check_known("allow-methods", node.allow_methods, METHODS)
    _check_known("allow-start", node.allow_start, STARTS)


def check_settings(node: NodeConfig, config: Config) -> None:
    """Refuse a run by its settings alone, with a FederationError."""
    for name, settings in config.methods.items():
        named, allowed = config.method if name == config.section else name, node.allow_methods
        if allowed is not None and name not in allowed:
            raise _refusal(f"method={named}", f"allow-methods='{' '.join(allowed)}'", "choose one")
        _check_start(node, named, settings.disclosure())
    if (count := len(config.images.names)) > node.max_classes:
        raise _refusal(f"{count} classes", f"max-classes={node.max_classes}", "name fewer")
    most = {amount: getattr(node, f"max_{amount}") for amount in AMOUNTS}
    unnamed = {"size": MAX_SIZE, **({} if node.cores else {"cores": machine_cores()})}
    for section, values in config.sections().items():
        for name, amount in amounts(type(values)).items():
            value, bound = getattr(values, name), most[amount]
            asked = f"{section}.{name}={value}"
            if bound is None:
                if value > unnamed.get(amount, value):
                    raise FederationError(
                        f"this site allows {amount} up to {unnamed[amount]} unless its owner names another "
                        f"max-{amount}, and the run asks for {asked}: lower it, or run without this site"
                    )
                continue
            if value > bound:
                raise _refusal(asked, f"max-{amount}={bound}", "lower it")
            if value == left_open(type(values), name):
                asked += ", as many as the server says"
                raise _refusal(asked, f"max-{amount}={bound}", "state the number")


def _check_start(node: NodeConfig, method: str, disclosed: Disclosure | None) -> None:
    if node.allow_start is None:
        return
    allowed = f"allow-start='{' '.join(node.allow_start)}'"
    if disclosed is None:
        asked = f"method={method}, which does not state what it sends"
        raise _refusal(asked, allowed, "choose another")
    if disclosed.began_as and disclosed.began_as not in {STARTS[word] for word in node.allow_start}:
        asked = f"{disclosed.payload} that started as {disclosed.began_as}"
        raise _refusal(asked, allowed, "choose another start, or another method")


def check_parameters(node: NodeConfig, count: int) -> None:
    """Refuse a model of ``count`` numbers, with a FederationError."""
    if node.max_parameters is not None and count > node.max_parameters:
        asked, allowed = f"a model of {count} parameters", f"max-parameters={node.max_parameters}"
        raise _refusal(asked, allowed, "choose a smaller one")


def check_classes(node: NodeConfig, config: Config, counts: Sequence[int] | None) -> None:
    """Refuse a method that distils or sends examples where the site holds too few of a class.

    Parameters
    ----------
    counts : sequence of int, optional
        The site's number of examples of each class; None if there are no classes.

    Raises
    ------
    FederationError
        If there is such a class; which one, and how few, is not said.
    """
    disclosed = [settings.disclosure() for settings in config.methods.values()]
    if counts is None or not any(one is None or one.examples for one in disclosed):
        return
    if any(0 < count < node.min_class for count in counts):
        raise _refusal(
            f"examples of every class, and of one there are too few for {config.method}",
            f"min-class={node.min_class}",
            "leave such classes out there, or choose a method that sends weights or updates",
        )


def check_instruction(config: Mapping[str, object]) -> None:
    """Refuse an instruction's round or time that is no number of a round, or no time, with a FederationError."""
    for key in ("server-round", TAKEN):
        named = config.get(key, 0)
        if type(named) is not int or not 0 <= named <= MAX_ROUND:
            raise FederationError(
                f"the instruction says {key}={str(named)[:40]} where an integer from 0 to {MAX_ROUND} is allowed"
            )
    left = config.get(SECONDS_LEFT, 0.0)
    if isinstance(left, bool) or not isinstance(left, int | float) or not 0 <= left < math.inf:
        raise FederationError(
            f"the instruction says {SECONDS_LEFT}={str(left)[:40]} where a finite number from 0 is allowed"
        )


def check_size(run_config: Mapping[str, object]) -> None:
    """Refuse settings that are too much to read; FederationError if they have more than ``MAX_SETTINGS`` characters."""
    size = sum(len(key) + len(str(value)) for key, value in run_config.items())
    if size > MAX_SETTINGS:
        raise FederationError(
            f"the run's settings have {size} characters where this site reads at most {MAX_SETTINGS}: shorten them"
        )


def _refusal(asked: str, said: str, cure: str) -> FederationError:
    return FederationError(
        f"this site's owner allows {said}, and the run asks for {asked}: {cure}, or run without this site"
    )


def _check_known(key: str, named: tuple[str, ...] | None, choices: Mapping[str, object]) -> None:
    for word in named or ():
        if word not in choices:
            raise FederationError(
                f"the node config says {key}='{' '.join(named or ())}', in which {word[:60]!r} is unknown"
                f"{near(word, choices)}: there are {', '.join(choices)}"
            )


# ---- allowed imports -----------------------------------------------------------------------------
# What a site imports at a server's word: Nectar's own packages, and the modules that its node config allows.

KEY = "allow-imports"
"""The node config's key."""

#: Flower's strategies are the server's matter: a site never imports the one it serves
_SERVERS = "flwr.serverapp.strategy"

#: what needs no leave: networks, and the parts that an allowed method is made of. Anything else of Nectar's own is
#: there to be called by Nectar, with its own arguments, and not by users who name it.
_OWN = {"model.name": ("common.models",), PART: PACKAGES}


def import_policy_of(allowed: tuple[str, ...]) -> ImportPolicy:
    """Return what a configuration is loaded with at a site that allows ``allowed`` beside what Nectar's parts are."""

    def require(key: str, path: str) -> None:
        module = path.partition(":")[0]
        if key == "method" and _within(module, _SERVERS):
            return
        if not any(_within(module, package) for package in (*_OWN.get(key, ()), *allowed)):
            raise FederationError(
                f"this site does not import the module {module!r:.100}, which the run names as {key}: if its owner "
                f"trusts it, they restart the SuperNode with {KEY}='{module:.98}' in its node config"
            )

    return require


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")
