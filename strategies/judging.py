"""The judge of a round's uploads: what the rules of ``strategies.plausible`` say of each, a few at a time.

An update is absurdly long only beside others. Holding a whole round decoded to compare it would cost memory that grows
with the federation, so uploads are compared in groups of ``TOGETHER``, or fewer where they are large, each with its
group and with the lengths of those judged before. Where sites train several architectures, each is compared with those
of its own: a deeper network is another number of weights, which move by another length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

import torch
from torch import Tensor, nn

from common.compute import return_if_large
from common.imports import is_import_path
from common.models import Classifier
from common.run import Run
from common.seeding import generator
from common.wire import Weights
from common.wire.codec import is_finite
from strategies.plausible import length_of, own_length, too_long

#: uploads that are held, decoded, until all of them are compared, and the bytes beyond which they are fewer
TOGETHER, _HELD = 16, 2**26

#: inputs that a model is tried on
_TRIED = 4

#: what lies in a model that is tried on nothing
_NOTHING = torch.empty(0)


def group_sizes(most: int, max_bytes: int) -> Iterator[int]:
    """Yield how many uploads are compared together, group by group: two at first, which have none before them.

    Parameters
    ----------
    most : int
        How many any group may have.
    max_bytes : int
        What the largest upload of the round may take.
    """
    size = max(1, min(most, TOGETHER, _HELD // max(1, max_bytes)))
    yield max(size, min(2, most))
    yield from repeat(size)


class Trial:
    """Whether weights make a model that gives numbers, tried on inputs of no data set."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @cached_property
    def _model(self) -> Classifier:
        # Of statistics that are the sites' own the server has none: then the batch's normalise.
        model = self._run.build_model().train(self._run.config.model.statistics == "local")
        return model.requires_grad_(False)

    @cached_property
    def _inputs(self) -> Tensor:
        info, draws = self._run.info, generator(self._run.config.seed, "trial")
        if info.has_images:
            drawn = torch.randn(_TRIED, *info.shape, generator=draws)
        else:
            drawn = torch.randint(len(info.classes), (_TRIED, *info.shape), generator=draws)
        return drawn.to(self._run.device)

    @cached_property
    def _places(self) -> Mapping[str, Tensor]:
        return self._model.state_dict(keep_vars=True)

    @cached_property
    def _empty(self) -> Mapping[str, Tensor]:
        return {name: _NOTHING.to(place) for name, place in self._places.items()}

    @property
    def _may_write(self) -> bool:
        """Whether calling the model may write to its state: none of Nectar's own does, a user's may do anything."""
        return is_import_path(self._run.config.model.name)

    def prepare(self) -> None:
        """Build the model, before a round's uploads are in memory, and let go of its own weights."""
        for name, place in self._places.items() if "_empty" not in self.__dict__ else ():
            if isinstance(place, nn.Parameter):
                place.data = self._empty[name]

    @torch.no_grad()
    def gives_numbers(self, weights: Weights) -> bool:
        """Tell whether every output is finite."""
        for name, tensor in weights.read_only.items():
            # lent where it can be: a copy would be one more in memory
            self._places[name].data = tensor.to(self._run.device, copy=self._may_write)
        found = is_finite(self._model(self._inputs))
        for name in weights.read_only:
            self._places[name].data = self._empty[name]
        return found


class Trials:
    """The trials of a run's architectures, each built when it is first asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._built: dict[str, Trial] = {}

    def of(self, architecture: str) -> Trial:
        """Return the trial of an architecture, as `Run.with_model` takes it."""
        if architecture not in self._built:
            self._built[architecture] = Trial(self._run.with_model(architecture))
        return self._built[architecture]


@dataclass(frozen=True)
class Led:
    """What an upload alone leads to.

    Attributes
    ----------
    model : Weights or None
        The model; None of an upload that is judged otherwise.
    start : Weights
        Where its site began.
    architecture : str
        Theirs, as `Run.with_model` takes it; empty for the run's own.
    part : str
        The part of the payload that this is, where it is no model of the run: it is held against the others' and not
        tried.
    """

    model: Weights | None
    start: Weights
    architecture: str = ""
    part: str = ""


class _Alike:
    """What is known of the uploads of one architecture, or of one part, which can be held against each other."""

    def __init__(self, trial: Trial | None, start: Weights) -> None:
        if trial is not None:
            trial.prepare()
        self._trial, self._start = trial, start
        self.own = own_length(start)
        self.passed: list[float] = []

    @cached_property
    def _sound(self) -> bool:
        """Whether the round's own weights give numbers: where they do not, no upload can be blamed."""
        return self._trial is not None and self._trial.gives_numbers(self._start)

    def length(self, model: Weights) -> float:
        return length_of(model, self._start)

    def tried(self, model: Weights) -> str | None:
        if self._trial is None or not self._sound or self._trial.gives_numbers(model):
            return None
        return "with its weights the model gives no finite numbers"


class Judge:
    """Judges the uploads of one round by the models that they lead to, each beside those of its architecture.

    Parameters
    ----------
    trials : Trials
        Tell a model that gives numbers.
    weights : Weights
        The round's weights.
    factor : float
        ``federation.max_update``: how often the usual length an update may be long; 0 for any.
    """

    def __init__(self, trials: Trials, weights: Weights, factor: float) -> None:
        self._trials, self._factor = trials, factor
        self._size = sum(t.nbytes for t in weights.read_only.values())
        self._alike = {("", ""): _Alike(trials.of(""), weights)}

    def _of(self, led: Led) -> _Alike:
        key = led.architecture, led.part
        if key not in self._alike:
            trial = None if led.part else self._trials.of(led.architecture)
            self._alike[key] = _Alike(trial, led.start)
        return self._alike[key]

    def say(self, led: Iterable[Iterable[Led]]) -> list[str | None]:
        """Say of each of a group of uploads why it is of no use, None of one that is fine.

        Parameters
        ----------
        led : iterable of iterable of Led
            What each leads to, and its other parts. Those of one are let go before the next one's are asked for.
        """
        lengths: dict[_Alike, dict[int, float]] = {}
        said: list[str | None] = []
        for parts in led:
            reason = None
            for one in parts:
                if one.model is None:
                    continue
                alike = self._of(one)
                reason = reason or alike.tried(one.model)
                lengths.setdefault(alike, {})[len(said)] = alike.length(one.model)
                del one
            said.append(reason)
            del parts
        for alike, own in lengths.items():
            judged = [*alike.passed, *own.values()]
            long = too_long(judged, alike.own, self._factor, known=len(alike.passed))
            for i, reason in zip(own, long, strict=True):
                said[i] = said[i] or reason
        for alike, own in lengths.items():
            alike.passed += [length for i, length in own.items() if said[i] is None]
        return_if_large(self._size)  # or what was tried lies in pieces between what is summed
        return said
