"""The resolved configuration of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from common.config.consistency import check
from common.config.keys import RESOLVED, RESUME_CODE, TYPED, YES
from common.config.text import Scalar, join_set, yaml_line
from common.errors import ConfigError
from common.methods import resolve, section
from common.settings.base import Settings
from common.settings.images import ImagesSettings
from common.settings.section import Section, operational
from common.settings.sections import (
    SECTIONS,
    FeaturesSettings,
    FederationSettings,
    RunSettings,
    SharedSections,
    TrackSettings,
)

#: What this process has stated as a run config: the sites that it simulates get the same object back.
_STATED: dict[tuple[tuple[str, Any], ...], Config] = {}
_MOST_STATED = 4


def stated_here(run_config: Mapping[str, Any]) -> Config | None:
    """Return the configuration that this process stated as ``run_config``, if it did so lately."""
    return _STATED.get(_key(run_config))


def _key(run_config: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return a run config as a key; what is empty is unset."""
    return tuple(sorted((key, value) for key, value in run_config.items() if value != ""))


@dataclass(frozen=True, kw_only=True)
class Config(SharedSections):
    """The complete configuration of a run, with all defaults: its sections, and the keys outside them.

    Every instance is consistent: however one is made, it is checked.

    Parameters
    ----------
    settings : Settings
        The chosen method's settings; FedAvg's for a strategy named by import path.
    inner : mapping of str to Settings
        The settings of the methods that the chosen one uses, by section.
    strategy : mapping
        Constructor arguments of such a strategy; empty for Nectar's own methods.
    origin : mapping of str to str
        Where each value that is no class default was given, by dotted key.
    typed : str
        The words that the user typed, as a shell takes them; empty if none were typed.
    resume_code : str
        ``accept`` where ``resume`` may go on with other code than the record's; else empty.
    """

    experiment: str
    method: str
    dataset: str
    rounds: int
    seed: int
    output_dir: Path
    data_dir: Path
    resume: str
    settings: Settings
    strategy: Mapping[str, Scalar]
    origin: Mapping[str, str] = field(compare=False)
    inner: Mapping[str, Settings] = field(default_factory=dict)
    typed: str = field(default="", compare=False)
    resume_code: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse settings that are each allowed but cannot hold together, with a ConfigError."""
        check(self)
        for name in self.inner:
            self.of(name)

    @property
    def kind(self) -> str:
        """The kind of data, unless text: images, a table's rows, or series."""
        return "table" if self.features.name else self.data.kind

    @property
    def site_places(self) -> tuple[Path, ...]:
        """The simulated sites' own folders of images, or tables; none where a data set is divided."""
        return self.images.site_folders or self.data.site_files

    @property
    def judged_at_sites(self) -> str:
        """The setting, as it is typed, by which sites evaluate the weights; empty if they do not."""
        on = self.evaluation.on
        hold_out = f"evaluation.on={on}" if on in ("sites", "both") else ""
        return "data.validation_at=sites" if self.data.validated_at_sites else hold_out

    @cached_property
    def section(self) -> str:
        """The name of the section that ``settings`` is."""
        return section(self.method)

    @property
    def methods(self) -> dict[str, Settings]:
        """The settings of the method, and of those inside it, by section."""
        return {self.section: self.settings, **self.inner}

    @property
    def learning_rates(self) -> str:
        """From what to what the rates in use may be lowered, as they are typed; not a server's that takes the mean."""
        stated = [
            (f"{section}.{name}", value)
            for section, settings in self.sections().items()
            for name, value in settings.model_dump().items()
            if (name == "lr" or name.endswith("_lr"))
            and (name != "global_lr" or getattr(settings, "global_models", True))
        ]
        return ", ".join(
            f"{key} from {value:g} to {float(f'{value / 3:.1g}'):g}"
            for key, value in stated
            if not (key.endswith(".server_lr") and value == 1)
        )

    @property
    def weighs_classes(self) -> bool:
        """Whether sites train by another loss than is evaluated, which weighs classes."""
        return any(getattr(s, "class_weights", "none") != "none" for s in self.methods.values())

    @cached_property
    def private(self) -> bool:
        """Whether a mechanism of differential privacy covers everything that leaves the sites.

        Then nothing else computed from their data leaves: no loss, no norm, no seconds, and no count but by
        ``tells_counts``.
        """
        if self.privacy.active:
            return True
        disclosures = (settings.disclosure() for settings in self.methods.values())
        return any(one is not None and one.differentially_private for one in disclosures)

    @cached_property
    def secret(self) -> bool:
        """Whether the server learns the sites' sum alone (``federation.secret``)."""
        return self.federation.secret != "off"

    @cached_property
    def clips_updates(self) -> bool:
        """Whether noise is on the sum of whole updates (McMahan et al., 2018), and no step of a site's is private."""
        known = resolve(self.method)
        return self.secret and self.privacy.active and known.noised and known.averages

    @cached_property
    def weak_delta(self) -> str:
        """Why ``privacy.delta`` promises little for the run's number of examples; empty where it does not."""
        delta, examples = self.privacy.delta, self.privacy.examples
        if not self.private or delta * examples <= 1:
            return ""
        return (
            f"privacy.delta={delta:g} is above 1/privacy.examples=1/{examples}: publishing one example at random would "
            f"meet it, so epsilon says little; set it well below {1 / examples:.1g}"
        )

    @cached_property
    def noises(self) -> frozenset[float] | None:
        """The noise multipliers that sites charge: empty in most runs; None if only sites know them."""
        if self.private and self.secret:
            return None  # a Gaussian's that costs as much as the shares' Skellam noise
        own = [settings.noises() for settings in self.methods.values()]
        found = [noise for each in own for noise in each or ()]
        if self.privacy.active:
            found.append(self.privacy.noise_multiplier)
        return None if any(each is None for each in own) else frozenset(found)

    @cached_property
    def tells_counts(self) -> bool:
        """Whether a site reports how many examples it has."""
        hidden = self.private or self.secret
        return not hidden or self.privacy.counts == "public"

    def of(self, method: str) -> Config:
        """Return the configuration as if a method inside this run's had been chosen; ConfigError if it cannot be."""
        name = section(method)
        if name not in self.inner:
            raise ConfigError(f"method={self.method} does not use {method}.")
        settings = self.inner[name]
        rest = {key: other for key, other in self.inner.items() if key != name}
        return replace(
            self, method=method, settings=settings, inner=rest if settings.uses() else {}
        )

    def sections(self) -> dict[str, Section]:
        """Return the sections in use by name: the run-wide ones, then the method's and those of the methods inside it.

        ``images`` and ``features`` are in use where something of them departs from the defaults;
        ``image_training`` and ``distil`` where a method goes by them; ``track`` where something of it is chosen.
        """
        shared: dict[str, Section] = {name: getattr(self, name) for name in SECTIONS}
        if self.images == ImagesSettings():
            del shared["images"]
        if self.features == FeaturesSettings():
            del shared["features"]
        for name, goes_by in (("image_training", "trains_on_images"), ("distil", "distils")):
            if not any(getattr(settings, goes_by) for settings in self.methods.values()):
                del shared[name]
        if self.track == TrackSettings():
            del shared["track"]
        return shared | self.methods

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain values, keyed and nested as in its files."""
        nested = {name: values.model_dump() for name, values in self.sections().items()}
        arguments = {"strategy": dict(self.strategy)} if self.strategy else {}
        return {**self._outside, **nested, **arguments}

    @property
    def _outside(self) -> dict[str, str | int]:
        """The keys outside the sections."""
        return {
            "experiment": self.experiment,
            **{name: getattr(self, name) for name in RunSettings.model_fields},
            "output-dir": str(self.output_dir),
            "data-dir": str(self.data_dir),
            "resume": self.resume,
        }

    def dump_yaml(self, *, origins: bool = False) -> str:
        """Write it as YAML; with ``origins``, a comment says where a value was given."""
        lines = []
        for key, value in self.to_dict().items():
            if not isinstance(value, dict):
                lines.append(self._line(key, key, value, origins))
                continue
            lines.append(f"{key}:")
            lines += [
                "  " + self._line(f"{key}.{name}", name, inner, origins)
                for name, inner in value.items()
            ]
        return "\n".join(lines) + "\n"

    def _line(self, key: str, name: str, value: Scalar, origins: bool) -> str:
        line = yaml_line(name, value)
        return f"{line}  # {self.origin[key]}" if origins and key in self.origin else line

    def to_run_config(self) -> dict[str, str | int]:
        """Return a run config that resolves to this configuration in any process: it has no file read.

        ``set`` states every setting in use that has another value than its class gives it, and every one that a
        file or the command line states. The experiment is kept as a name.
        """
        departures: dict[str, Scalar] = {}
        for name, values in self.sections().items():
            for key, value in values.model_dump().items():
                default = type(values).model_fields[key].default
                if value != default or f"{name}.{key}" in self.origin:
                    departures[f"{name}.{key}"] = value
        departures |= {f"strategy.{key}": value for key, value in self.strategy.items()}
        stated: dict[str, str | int] = {
            **self._outside,
            **({RESUME_CODE: self.resume_code} if self.resume_code else {}),
            "set": join_set(departures),
            RESOLVED: YES,
            TYPED: self.typed,
        }
        while len(_STATED) >= _MOST_STATED:
            del _STATED[next(iter(_STATED))]
        _STATED[_key(stated)] = self
        return stated

    def digest(self) -> str:
        """Return the SHA-256 of all that decides the run's numbers, in hexadecimal.

        The experiment's name, the paths and the operational settings (waves, deadlines, processes, trackers)
        are left out: they change where and how a run proceeds.
        """
        content = {name: getattr(self, name) for name in RunSettings.model_fields}
        for name, values in self.sections().items():
            if name == "track":
                continue  # it is there in some runs only, and decides nothing
            content[name] = values.model_dump(exclude=set(operational(type(values))))
        content["strategy"] = dict(self.strategy)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def with_sites(self, sites: int, where: str = "the nodes that joined") -> Config:
        """Return the configuration for another number of sites; ConfigError if they cannot meet ``min_replies``."""
        federation = FederationSettings.model_validate(
            self.federation.model_dump() | {"sites": sites}
        )
        origin = {**self.origin, "federation.sites": where}
        return replace(self, federation=federation, origin=origin)
