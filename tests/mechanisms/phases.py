"""A site's own phases under audit, by an attacker who knows the run's seed and all that is drawn but the noise.

What one example more does to the clipped sum that a phase releases first, wherever it stands among the others: no more
than the clip, where nobody else's draws depend on it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from common.code.imports import load as load_path
from common.config.loading import load
from common.division import Division
from common.learning.run import Run
from common.methods import resolve
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.samples.inputs import Samples, samples
from common.sites import Site
from common.wire.weights import Weights
from strategies.base import Instruction, Strategy, strategy_class
from strategies.exchange.replies import Upload
from synth.private_release import Gaussian

PLACES = ("in front", "in the middle", "at the end")
"""Where the example is put."""

_AUDITED, _OTHER = "partition-0", "partition-1"

#: examples of each of the two sites, and how many others are put among them, one at a time
_EXAMPLES, _CANARIES = 40, 3

#: a longest contribution that all are longer than, so that each counts with its direction alone
_CLIP = 1e-3

_ONE_STEP = "epochs=1 lr=0.1 batch=1000"
_SMALL = "model.name=mlp model.width=8"
_VAE = "model.name=vae model.depth=1 model.width=4"


@dataclass(frozen=True)
class Phase:
    """What is audited: a method under some settings, in the last of some rounds.

    Attributes
    ----------
    beside : str
        Settings of other sections.
    rounds : int
        The rounds until what is audited; those before release without noise.
    exchanged : bool
        Whether the example takes the place of one of its class, where counts of classes are public and decide what is
        released about: then it is half of what that does, since one goes and another comes.
    clip, length : float
        ``privacy.clip``, and how long in clips what one example gives may be.
    least : float
        How much of that it gives here at the least, or the phase was not attacked.
    """

    method: str
    words: str = _ONE_STEP
    beside: str = _SMALL
    rounds: int = 1
    exchanged: bool = False
    clip: float = _CLIP
    length: float = 1.0
    least: float = 0.99

    def run(self) -> Run:
        """Return a run of it, private and of the digits."""
        own = " ".join(f"{self.method}.{word}" for word in self.words.split())
        private = f"privacy.noise_multiplier=1 privacy.clip={self.clip} privacy.counts=public"
        text = f"{own} {self.beside} {private} federation.sites=2"
        return Division(load({"method": self.method, "rounds": self.rounds, "set": text})).run


_INNER = "fedavg.batch=1000 fedavg.epochs=1 fedavg.augment=flip_crop"
_MATCHING = "iterations=1 start=noise real_batch=1000"
_CROPPED = f"{_ONE_STEP} augment=flip_crop"
_DIFFUSION = (
    "noise_multiplier=1 clip=1e-3 multiplicity=2 epochs=1 batch=1000 width=8 multipliers=1,2 blocks=1 attention=1 "
    "diffusion_steps=20 sampling_steps=1 size=2"
)

PHASES: Mapping[str, Phase] = {
    "phase-fedavg-plain": Phase("fedavg"),
    **{
        f"phase-{name}": Phase(name, _CROPPED)
        for name in ("fedavg", "fedprox", "fednova", "feddyn", "dense", "feddf", "feddgm", "local")
    },
    **{
        f"phase-{name}": Phase(name, _CROPPED, f"{_SMALL} evaluation.on=none")
        for name in ("fedper", "ditto", "finetune")
    },
    "phase-masking": Phase("masking", _CROPPED),
    "phase-topk": Phase("topk", _CROPPED),
    "phase-lowrank": Phase("lowrank", _CROPPED),
    "phase-scaffold": Phase("scaffold", f"{_CROPPED} option=II"),
    "phase-fedpvr": Phase("fedpvr", f"{_CROPPED} option=II"),
    "phase-moon": Phase("moon", _CROPPED, f"{_SMALL} model.projection=8"),
    "phase-fedgen": Phase("fedgen", f"{_ONE_STEP} generator_steps=2 generator_batch=8", rounds=2),
    # Any two answers lie in a ball of radius C: their distance is 2 C at the most.
    "phase-fedmd": Phase("fedmd", f"{_CROPPED} mechanism=logits", rounds=2, length=2.0, least=1e-3),
    "phase-fedmd-training": Phase("fedmd", f"{_CROPPED} mechanism=training"),
    "phase-fedvae": Phase("fedvae", f"{_ONE_STEP} preliminary_rounds=1", _VAE),
    "phase-feddpms": Phase(
        "feddpms", f"{_ONE_STEP} sigma=1 smallest=1", f"{_VAE} fedvae.preliminary_rounds=1"
    ),
    "phase-fedsynth-loss": Phase(
        "fedsynth", "objective=loss iterations=1 real_batch=0 fidelity=off", exchanged=True
    ),
    "phase-fedsynth-update": Phase("fedsynth", f"{_CROPPED} objective=update iterations=1"),
    "phase-fedssyn": Phase("fedssyn", f"{_DIFFUSION} rho=1"),
    "phase-fedssyn-rho": Phase("fedssyn", f"{_DIFFUSION} rho=0.75"),
    "phase-fedssyn-inner": Phase("fedssyn", "source=none inner=fedavg", f"{_SMALL} {_INNER}"),
    "phase-feddm-feature": Phase("feddm", f"{_MATCHING} mechanism=feature"),
    "phase-feddm-gradient": Phase("feddm", f"{_MATCHING} mechanism=gradient"),
    # A row no longer than 1 gives its square to one sum and itself to the other: sqrt 2 together.
    "phase-ridge": Phase("ridge", "width=17", "", clip=1.0, length=2**0.5),
    "phase-ridge-class": Phase("ridge", "width=17 sums=class", "", clip=1.0),
}
"""Every private method, with whatever of its settings draws something for an example."""


@dataclass(frozen=True)
class Moved:
    """What one example more does.

    Attributes
    ----------
    clips : dict of str to float
        By how many C the sum moves at the most, by where the example is put.
    delta, claimed : float
        The claim's; ``claimed`` is its epsilon.
    """

    name: str
    clips: Mapping[str, float]
    delta: float
    claimed: float

    @property
    def exact(self) -> float:
        """The epsilon of a release whose sum moves by as much."""
        return exact_epsilon(1.0, max(self.clips.values()), self.delta)

    @property
    def holds(self) -> bool:
        """Whether the sum moves by no more than C, up to the rounding of a sum of some forty."""
        return max(self.clips.values()) <= 1 + 1e-3


def audit_phase(name: str, delta: float) -> Moved:
    """Put an example among a site's, and compare what its phase releases first, all draws but the noise being equal.

    Parameters
    ----------
    name : str
        One of ``PHASES``.
    delta : float
        Of the claim, which is of one release with a noise multiplier of 1.
    """
    phase = PHASES[name]
    federation = Federation(phase.run())
    own, canaries = federation.own, federation.canaries
    share, longest = 0.5 if phase.exchanged else 1.0, phase.clip * phase.length
    with tempfile.TemporaryDirectory() as directory:
        before = federation.released(own, Path(directory, "without"))
        clips = dict.fromkeys(PLACES, 0.0)
        for number, canary in enumerate(canaries):
            for place, at in zip(PLACES, (0, len(own) // 2, len(own)), strict=True):
                there = Path(directory, f"{number} {place}")
                data = _exchanged(own, canary) if phase.exchanged else own
                after = federation.released(_inserted(data, canary, at), there)
                clips[place] = max(clips[place], share * float((after - before).norm()) / longest)
    return Moved(name, clips, delta, epsilon([Event("one release", 1.0)], delta).value)


def exact_epsilon(noise_multiplier: float, clips: float, delta: float) -> float:
    """Return the epsilon of a Gaussian whose mean moves by ``clips`` times the clip (Balle and Wang, 2018)."""
    ratio = clips / noise_multiplier
    if ratio == 0:
        return 0.0

    def excess(value: float) -> float:
        first = norm.cdf(ratio / 2 - value / ratio)
        second = norm.logcdf(-ratio / 2 - value / ratio)
        return float(first - math.exp(value + second) - delta)

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, ratio * ratio / 2 + 10 * ratio + 1))


def _exchanged(pool: Samples, example: Samples) -> Samples:
    """Return the examples without the first of the class of ``example``."""
    first = int((pool.labels == example.labels).nonzero()[0])
    every = torch.arange(len(pool))
    return pool.at(every[every != first])


def _inserted(pool: Samples, example: Samples, at: int) -> Samples:
    every = torch.arange(len(pool))
    return pool.at(every[:at]).joined(example).joined(pool.at(every[at:]))


class Federation:
    """Two sites and their server, round by round and without messages."""

    def __init__(self, run: Run) -> None:
        self._run = run
        train = samples(Division(run.config).dataset.train, run.info)
        self.own = train.at(torch.arange(_EXAMPLES))
        self._other = train.at(torch.arange(_EXAMPLES, 2 * _EXAMPLES))
        rest = range(2 * _EXAMPLES, 2 * _EXAMPLES + _CANARIES)
        self.canaries = [train.at(torch.tensor([at])) for at in rest]

    def released(self, audited: Samples, directory: Path) -> Tensor:
        """Return the first clipped sum that the audited site's phase releases in the last round, flat, float64."""
        run = self._run
        strategy = strategy_class(run.config.method)(run, "audit")
        strategy.members.sites = [
            self._site(_AUDITED, 0, self.own),
            self._site(_OTHER, 1, self._other),
        ]
        weights = Weights.of(run.build_model()).only(run.spec)
        for number in range(1, run.config.rounds):
            plan = strategy.instructions(number, weights, strategy.sites)
            uploads = [
                self._asked(number, site, plan[site.name], directory, data)[0]
                for site, data in zip(strategy.sites, (self.own, self._other), strict=True)
            ]
            weights = _advanced(strategy, number, weights, uploads)
        last = run.config.rounds
        plan = strategy.instructions(last, weights, strategy.sites)
        site = strategy.sites[0]
        return self._asked(last, site, plan[_AUDITED], directory, audited)[1][0]

    def _site(self, name: str, number: int, data: Samples) -> Site:
        counts = self._run.task.class_counts(data.labels)
        return Site(name, number, len(data), class_counts=tuple(counts or ()))

    def _asked(
        self, number: int, site: Site, instruction: Instruction, directory: Path, data: Samples
    ) -> tuple[Upload, list[Tensor]]:
        """Return a site's reply, and the sums that it released for it."""
        run, sums = self._run, list[Tensor]()
        client = load_path(resolve(run.config.method).client)(
            run,
            site.name,
            data,
            data.at(torch.arange(0)),
            load_path("client_app.state:DirectoryState")(directory, "audit", site.name),
            user_data=False,
            mechanism=_recording(sums),
        )
        config = {"server-round": number, "phase": instruction.phase, "taken": number - 1}
        arrays, examples, figures = client.fit(instruction.payload.encode(), config)
        payload = instruction.expects.decode(arrays)
        return Upload(site, payload, examples, figures), sums


def _advanced(
    strategy: Strategy, number: int, weights: Weights, uploads: Sequence[Upload]
) -> Weights:
    prepared = [strategy.prepare(number, weights, upload) for upload in uploads]
    return strategy.advance(number, weights, prepared)


def _recording(sums: list[Tensor]) -> type[Gaussian]:
    """Return a mechanism that releases every sum as it is, and keeps it."""

    class Silent(Gaussian):
        def released(self, steps: Tensor) -> Tensor:
            """Return the sum without noise."""
            found = self.values(steps)
            sums.append(found.flatten())
            return found

    return Silent
