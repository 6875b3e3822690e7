"""The registry of methods: a new one is one line. Nothing is imported before it is used."""

from __future__ import annotations

import inspect
from dataclasses import KW_ONLY, dataclass
from typing import Any

from common.code.imports import is_import_path, load
from common.errors import ConfigError
from common.models.registry import KINDS
from common.settings.base import Settings


@dataclass(frozen=True)
class Method:
    """A method's name and its parts, as import paths ``package.module:Class``; a class may be given for its path.

    A method whose devices train as FedAvg's names FedAvg's client, and its settings inherit FedAvgSettings. A
    user's own method is such an object in a module of theirs, and the run's ``method`` is its import path.

    Parameters
    ----------
    name : str
        Names the section of its settings.
    strategy : str or type
        A ``strategies.base.Strategy``.
    client : str or type
        A ``client_app.device.DeviceClient``.
    settings : str or type
        A ``common.settings.base.Settings``.
    private : bool
        Whether all that its devices send is covered by noise where ``privacy.noise_multiplier`` is above 0, except
        what its settings say is ``unprotected``. This and what follows is no claim that a method can inherit.
    averages : bool
        Whether its server learns from the sites' models by ``Strategy.average`` alone, so that a median can take the
        place of the mean (``federation.robust``).
    plain : bool
        Whether its sites train by the task's loss alone, so that this may weigh classes.
    head : bool
        Whether nothing moves but what the local steps move, so that these may be of the last layer alone.
    summed : bool
        Whether its sites' parts are added up, and used in no other way (``federation.secret``).
    noised : bool
        Whether such a sum may have its noise in shares of the sites; where it averages, that of whole updates.
    keeps : tuple of str
        Which parts of the model may stay at its sites: ``statistics`` (model.statistics), ``personal``.
    takes : tuple of str
        What it can learn from, of ``common.models.registry.KINDS``. Of a method of the user's own anything, unless it
        says otherwise.
    on : tuple of str
        The methods whose files its own import. FedAvg's count for every run.
    parts : tuple of str
        Its modules in addition to those of its name.
    """

    name: str
    strategy: Any
    client: Any
    settings: Any
    _: KW_ONLY
    private: bool = False
    averages: bool = False
    plain: bool = False
    head: bool = False
    summed: bool = False
    noised: bool = False
    keeps: tuple[str, ...] = ("statistics", "personal")
    takes: tuple[str, ...] = tuple(KINDS)
    on: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Accept a class in place of its path."""
        given = {name: vars(self)[name] for name in ("strategy", "client", "settings")}
        vars(self).update({k: v if isinstance(v, str) else path_of(v) for k, v in given.items()})


def path_of(named: Any) -> str:
    """Return the import path of a class or function."""
    return f"{named.__module__}:{named.__qualname__}"


_IMAGES = ("images",)
_NUMBERS = ("images", "table", "series")
_NAMELESS = ("statistics",)
"""What stays where a correction is of all parameters, or of layers by their names."""
_PLAIN: dict[str, Any] = {"private": True, "plain": True, "head": True}


def _own(
    name: str, cls: str, settings: str = "", *, server: str = "", client: str = "", **more: Any
) -> Method:
    """Return one of Nectar's methods: its parts are in files of its name, or another's where nothing is its own."""
    return Method(
        name,
        f"strategies.{server or f'{name}:{cls}'}",
        f"client_app.{client or f'{name}:{cls}Client'}",
        f"common.settings.{settings or name}:{cls}Settings",
        **more,
    )


_AVERAGED: dict[str, Any] = {"server": "fedavg:FedAvg", "averages": True}
_TRAINED: dict[str, Any] = {"client": "fedavg:FedAvgClient"}
_COUNTED: dict[str, Any] = {"client": "device:DeviceClient"}
"""Of a device that only evaluates."""


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _own("feddm", "FedDM", private=True, takes=_NUMBERS),
        _own("fedaf", "FedAF", "feddm", takes=_NUMBERS, on=("feddm",)),
        _own("real", "Real", "surrogate", server="surrogate:Real", takes=_NUMBERS),
        _own("fedavg", "FedAvg", **_PLAIN, averages=True, summed=True, noised=True),
        _own("fedprox", "FedProx", "fedavg", **_PLAIN, **_AVERAGED, summed=True, noised=True),
        _own("fednova", "FedNova", "fedavg", **_PLAIN, averages=True, on=("fedprox",)),
        _own("fedper", "FedPer", "fedavg", **_AVERAGED, **_TRAINED, private=True),
        _own("fedrep", "FedRep", "fedavg", **_AVERAGED),
        _own("fedbn", "FedBN", "fedavg", **_AVERAGED, **_TRAINED, takes=("images", "series")),
        _own("ditto", "Ditto", "fedavg", server="fedavg:Ditto", private=True, averages=True),
        _own("finetune", "Finetune", "fedavg", **_AVERAGED, private=True),
        _own("scaffold", "Scaffold", "fedavg", private=True, averages=True, summed=True),
        _own("feddyn", "FedDyn", "fedavg", **_PLAIN, averages=True, summed=True, keeps=_NAMELESS),
        _own(
            "fedpvr",
            "FedPVR",
            "fedavg",
            server="scaffold:Scaffold",
            client="scaffold:ScaffoldClient",
            private=True,
            averages=True,
            keeps=_NAMELESS,
            on=("scaffold",),
        ),
        _own("moon", "MOON", "fedavg", **_AVERAGED, private=True, head=True),
        _own("fedmix", "FedMix", "fedavg", averages=True, takes=_NUMBERS),
        _own("fedgen", "FedGEN", private=True, takes=_NUMBERS),
        _own("dense", "DENSE", **_TRAINED, private=True, takes=_IMAGES),
        _own("feddf", "FedDF", "fedavg", **_TRAINED, private=True, takes=_IMAGES, on=("fedmd",)),
        _own(
            "fedmd",
            "FedMD",
            "fedavg",
            private=True,
            takes=_IMAGES,
            parts=("strategies.public_images",),
        ),
        _own(
            "fedvae",
            "FedVAE",
            "feddpms",
            private=True,
            averages=True,
            takes=_IMAGES,
            on=("feddpms",),
        ),
        _own("feddpms", "FedDPMS", private=True, averages=True, takes=_IMAGES, on=("fedvae",)),
        _own(
            "fedssyn",
            "Fedssyn",
            private=True,
            takes=_IMAGES,
            on=("central",),
            parts=("client_app.synthesis", "strategies.image_sources", "strategies.shuffled_pool"),
        ),
        _own(
            "feddgm",
            "FedDGM",
            private=True,
            takes=_IMAGES,
            on=("feddm",),
        ),
        _own("central", "Central", "fedavg", **_COUNTED),
        _own("server", "Server", "surrogate", **_COUNTED, on=("central",)),
        _own("local", "Local", "fedavg", **_PLAIN),
        _own("fedsynth", "FedSynth", private=True, averages=True, keeps=()),
        _own(
            "masking",
            "Masking",
            "fedavg",
            **_PLAIN,
            on=("topk",),
            parts=("strategies.sparse",),
        ),
        _own("topk", "TopK", "fedavg", **_PLAIN, on=("masking",)),
        _own("lowrank", "LowRank", "fedavg", **_PLAIN, averages=True, keeps=()),
        _own(
            "ridge",
            "Ridge",
            private=True,
            summed=True,
            noised=True,
            takes=_NUMBERS,
            parts=("common.models.ridge", "strategies.taught"),
        ),
    )
}

FOREIGN_CLIENT = "fedavg"
"""The method whose settings and local training serve a Flower strategy named by import path."""


def user_method(path: str) -> Method | None:
    """Return the user's own method at an import path, else None; ConfigError if it cannot be imported."""
    if path.partition(":")[0].partition(".")[0] == "flwr":
        return None
    found = load(path)
    return found if isinstance(found, Method) else None


def resolve(name: str) -> Method:
    """Return a method by its name, its import path, or that of a Flower strategy, which trains as FedAvg does."""
    if not is_import_path(name):
        return METHODS[name]
    served = METHODS[FOREIGN_CLIENT]
    client = "client_app.fedavg:ForeignClient"
    foreign = Method(served.name, name, client, served.settings, private=served.private)
    return user_method(name) or foreign


def not_taken(name: str, kind: str, dataset: str) -> str:
    """Return why a method cannot learn from data of a kind; empty if it can."""
    taken = resolve(name).takes
    if kind in taken:
        return ""
    others = ", ".join(other for other, known in METHODS.items() if kind in known.takes)
    return (
        f"method={name} takes {', '.join(KINDS[one] for one in taken)}, and {dataset} is {KINDS[kind]}: choose one "
        f"of {others}"
    )


def require_taken(name: str, kind: str, dataset: str) -> None:
    """Refuse data of a kind that a method cannot learn from (ConfigError)."""
    if why := not_taken(name, kind, dataset):
        raise ConfigError(why)


def those_that(may: str) -> str:
    """List Nectar's methods of which a flag of :class:`Method` is true, for a sentence."""
    return ", ".join(name for name, known in METHODS.items() if getattr(known, may))


def is_foreign(name: str) -> bool:
    """Tell a Flower strategy's import path from all of Nectar's kind: methods by name, and users' own."""
    return is_import_path(name) and user_method(name) is None


def section(name: str) -> str:
    """Return the section that holds a method's settings: its own name, or for a Flower strategy FedAvg's."""
    return resolve(name).name


def settings_class(name: str) -> type[Settings]:
    """Import the settings class of a method."""
    return settings_of(resolve(name))


def settings_of(method: Method) -> type[Settings]:
    """Import the settings class of a method; ConfigError if it cannot be imported, or is not one."""
    found = load(method.settings)
    if not (isinstance(found, type) and issubclass(found, Settings)):
        raise ConfigError(
            f"{method.settings} cannot hold the settings of {method.name}: it must inherit "
            "common.settings.base.Settings."
        )
    if not inspect.ismethod(found.needs):
        raise ConfigError(f"{found.__name__}.needs must be a classmethod: the class calls it.")
    return found
