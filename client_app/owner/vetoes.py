"""What a site's owner lets no run do there, whoever asks: methods, starts, amounts, a model's size, small classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_app.owner.node_config import MAX_CLASSES, MAX_SIZE, NodeConfig
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


@dataclass(frozen=True)
class Vetoes:
    """The vetoes of one node config; what it does not name is allowed.

    Parameters
    ----------
    methods : tuple of str, optional
        The methods that are allowed, by the names of their settings' sections; a Flower strategy is ``fedavg``.
    starts : tuple of str, optional
        What things that are sent may have begun as, words of ``STARTS``.
    most : tuple of (str, int)
        The largest value of each bounded amount, as settings declare amounts.
    unnamed : tuple of (str, int)
        Likewise of amounts for which the owner names no bound.
    classes : int
        The most names of classes.
    parameters : int, optional
        The largest model, in numbers of its state.
    smallest_class : int
        The fewest images of a class whose examples a method may distil or send.
    """

    methods: tuple[str, ...] | None = None
    starts: tuple[str, ...] | None = None
    most: tuple[tuple[str, int], ...] = ()
    unnamed: tuple[tuple[str, int], ...] = ()
    classes: int = MAX_CLASSES
    parameters: int | None = None
    smallest_class: int = 0

    @classmethod
    def of(cls, node: NodeConfig) -> Vetoes:
        """Read the vetoes of a node config; FederationError if it allows a method or a start that there is not."""
        given = {amount: getattr(node, f"max_{amount}") for amount in AMOUNTS}
        unnamed = {"size": MAX_SIZE, **({} if node.cores else {"cores": machine_cores()})}
        if node.allow_imports is None:  # else one of them may be a method of somebody's own
            _check_known("allow-methods", node.allow_methods, METHODS)
        _check_known("allow-start", node.allow_start, STARTS)
        return cls(
            methods=node.allow_methods,
            starts=node.allow_start,
            most=tuple((amount, most) for amount, most in given.items() if most is not None),
            unnamed=tuple((key, most) for key, most in unnamed.items() if given[key] is None),
            classes=node.max_classes,
            parameters=node.max_parameters,
            smallest_class=node.min_class,
        )

    def check_settings(self, config: Config) -> None:
        """Refuse a run by its settings alone, with a FederationError."""
        for name, settings in config.methods.items():
            named = config.method if name == config.section else name
            if self.methods is not None and name not in self.methods:
                raise _refusal(
                    f"method={named}", f"allow-methods='{' '.join(self.methods)}'", "choose one"
                )
            self._check_start(named, settings.disclosure())
        if (count := len(config.images.names)) > self.classes:
            raise _refusal(f"{count} classes", f"max-classes={self.classes}", "name fewer")
        most = dict(self.most)
        for section, values in config.sections().items():
            for name, amount in amounts(type(values)).items():
                value, asked = (
                    getattr(values, name),
                    f"{section}.{name}={getattr(values, name)}",
                )
                if value > most.get(amount, value):
                    raise _refusal(asked, f"max-{amount}={most[amount]}", "lower it")
                if value > (bound := dict(self.unnamed).get(amount, value)):
                    raise FederationError(
                        f"this site allows {amount} up to {bound} unless its owner names another max-{amount}, and the "
                        f"run asks for {asked}: lower it, or run without this site"
                    )
                if amount in most and value == left_open(type(values), name):
                    raise _refusal(
                        f"{asked}, as many as the server says",
                        f"max-{amount}={most[amount]}",
                        "say how many",
                    )

    def _check_start(self, method: str, disclosed: Disclosure | None) -> None:
        if self.starts is None:
            return
        message = f"allow-start='{' '.join(self.starts)}'"
        if disclosed is None:
            raise _refusal(
                f"method={method}, which does not say what it sends", message, "choose another"
            )
        if disclosed.began_as and disclosed.began_as not in {STARTS[word] for word in self.starts}:
            raise _refusal(
                f"{disclosed.payload} that began as {disclosed.began_as}",
                message,
                "choose another start, or another method",
            )

    def check_parameters(self, count: int) -> None:
        """Refuse a model of ``count`` numbers, with a FederationError."""
        if self.parameters is not None and count > self.parameters:
            raise _refusal(
                f"a model of {count} parameters",
                f"max-parameters={self.parameters}",
                "choose a smaller one",
            )

    def check_classes(self, config: Config, counts: Sequence[int] | None) -> None:
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
        told = [settings.disclosure() for settings in config.methods.values()]
        if counts is None or not any(one is None or one.examples for one in told):
            return
        if any(0 < count < self.smallest_class for count in counts):
            raise _refusal(
                f"examples of every class, and of one there are too few for {config.method}",
                f"min-class={self.smallest_class}",
                "leave such classes out there, or choose a method that sends weights or updates",
            )


def check_instruction(config: Mapping[str, object]) -> None:
    """Refuse an instruction's round or time that is no number of a round, or no time, with a FederationError."""
    for key in ("server-round", TAKEN):
        named = config.get(key, 0)
        if type(named) is not int or not 0 <= named <= MAX_ROUND:
            raise FederationError(
                f"the instruction says {key}={str(named)[:40]} where a whole number from 0 to {MAX_ROUND} is allowed"
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
#: there to be called by Nectar, with arguments of its own, and not by whoever names it.
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
