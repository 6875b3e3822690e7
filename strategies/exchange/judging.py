"""The judge of a round's uploads: what the rules say of each, a few at a time, and what no honest site sends.

An update is absurdly long only beside others. Holding a whole round decoded to compare it would cost memory that grows
with the federation, so uploads are compared in groups of ``TOGETHER``, or fewer where they are large, each with its
group and with the lengths of those judged before. Where sites train several architectures, each is compared with those
of its own: a deeper network is another number of weights, which move by another length. What was usual in an earlier
round is never too long: where half of the sites have learned all they can, the other half is not to be shut out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from common.code.imports import is_import_path
from common.draws.seeding import generator
from common.learning.compute import PIECE, pieces, return_if_large
from common.learning.run import Run
from common.models import Classifier
from common.wire.coders import is_finite
from common.wire.weights import Weights

#: uploads that are held, decoded, until all of them are compared, and the bytes beyond which they are fewer
TOGETHER, _HELD = 16, 2**26

#: inputs that a model is tried on
_TRIED = 4

#: the part of a model that is no parameter: running statistics, which are no solution of a descent
STATISTICS = "statistics"

#: what lies in a model that is tried on nothing
_NOTHING = torch.empty(0)


def group_sizes(most: int, max_bytes: int) -> Iterator[int]:
    """Yield how many uploads are compared together, group by group: ``ENOUGH`` at first, with none before them.

    Parameters
    ----------
    most : int
        How many any later group may have.
    max_bytes : int
        What the largest upload of the round may take.
    """
    size = max(1, min(most, TOGETHER, _HELD // max(1, max_bytes)))
    yield max(size, ENOUGH)
    yield from repeat(size)


class FiniteCheck:
    """Whether weights make a model that gives numbers, tried on inputs of no data set."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @cached_property
    def _model(self) -> Classifier:
        # What is the sites' own is here as it began, and of its statistics the batch's normalise.
        model = self._run.build_model().train(self._run.config.model.stays_in_part)
        return model.requires_grad_(False)

    @cached_property
    def _inputs(self) -> Tensor:
        info, draws = self._run.info, generator(self._run.config.seed, "trial")
        if info.has_values:
            drawn = torch.randn(_TRIED, *info.shape, generator=draws)
        else:
            drawn = torch.randint(len(info.classes), (_TRIED, *info.shape), generator=draws)
        return drawn.to(self._run.device)

    @cached_property
    def _places(self) -> Mapping[str, Tensor]:
        places = self._model.state_dict(keep_vars=True)
        return {name: places[name] for name in self._run.spec.names}

    @cached_property
    def _empty(self) -> Mapping[str, Tensor]:
        return {name: _NOTHING.to(place) for name, place in self._places.items()}

    @property
    def _may_write(self) -> bool:
        """Whether calling the model may write to its state: none of Nectar's own does, a user's may do anything."""
        return is_import_path(self._run.config.model.name)

    def prepare(self) -> None:
        """Build the model, before a round's uploads are in memory, and let go of its own weights."""
        if "_empty" in self.__dict__:  # it is cached when the weights are let go of, for good
            return
        for name, place in self._places.items():
            if isinstance(place, nn.Parameter):
                place.data = self._empty[name]

    @torch.no_grad()
    def gives_numbers(self, weights: Weights) -> bool:
        """Return whether every output is finite."""
        for name, tensor in weights.read_only.items():
            # lent where it can be: a copy would be one more in memory
            self._places[name].data = tensor.to(self._run.device, copy=self._may_write)
        found = is_finite(self._model(self._inputs))
        for name in weights.read_only:
            self._places[name].data = self._empty[name]
        return found


class FiniteChecks:
    """The trials of a run's architectures, each built when it is first asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._built: dict[str, FiniteCheck] = {}

    def of(self, architecture: str) -> FiniteCheck:
        """Return the trial of an architecture, as `Run.with_model` takes it."""
        if architecture not in self._built:
            self._built[architecture] = FiniteCheck(self._run.with_model(architecture))
        return self._built[architecture]

    def trained(self, architecture: str) -> frozenset[str]:
        """Return the names of an architecture's parameters."""
        return frozenset(self._run.with_model(architecture).spec.trained)


@dataclass(frozen=True)
class CandidateModel:
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
        The part of the payload that this is, where it is no model of the run: it is compared with the others' and not
        tried.
    """

    model: Weights | None
    start: Weights
    architecture: str = ""
    part: str = ""


@dataclass(frozen=True)
class Clipping:
    """That a part of an upload is longer than the others' and is to be made shorter.

    Attributes
    ----------
    part : str
        The part; empty for the model that the upload leads to.
    start : Weights
        What its length is measured from.
    share : float
        What of its way from there is left, below 1.
    """

    part: str
    start: Weights
    share: float

    def of(self, ended: Weights) -> Weights:
        """Return where that share of the way ends; whole numbers, and what ``start`` lacks, are as at its end."""
        start = self.start.read_only
        moved = {
            name: torch.lerp(start[name], end, self.share)
            if name in start and end.is_floating_point()
            else end
            for name, end in ended.read_only.items()
        }
        return Weights(moved, ended.codec)


def too_long(
    lengths: Sequence[float], own: float, factor: float, *, known: int = 0, earlier: float = 0.0
) -> list[str | None]:
    """Say of each update of a round whether it is absurdly long, None of one that is not.

    Parameters
    ----------
    own : float
        The length of the round's weights, the measure of an update that stands alone. Where there are fewer than
        ``ENOUGH``, or the others have not moved, none that is shorter is implausible.
    factor : float
        How often the lower median of the others' lengths an update may be long; 0 for any length.
    known : int
        How many of the first ones have been judged before, of which nothing is said.
    earlier : float
        The length that was usual in an earlier round: none of up to twice that is implausible. Where half of the sites
        have learned all they can, the others' honest updates are thousands of times the usual length, as they were when
        all moved alike.
    """
    message: list[str | None] = []
    ranked = sorted(lengths)
    for length in lengths[known:]:
        usual = _median_of_the_others(ranked, length) if len(ranked) > 1 else own
        floor = 0.0 if len(ranked) >= ENOUGH and usual else own
        if not factor or length <= max(factor * usual, floor, _EARLIER_FACTOR * earlier):
            message.append(None)
        else:
            more = f"federation.max_update={factor:g} times the {usual:.2g} that is usual in this round"
            if _EARLIER_FACTOR * earlier > factor * usual:
                more = f"{_EARLIER_FACTOR} times the {earlier:.2g} that was usual in an earlier round, and than {more}"
            message.append(f"its update has length {length:.2g}, more than {more}")
    return message


@dataclass
class Verdict:
    """What is said of an upload.

    Attributes
    ----------
    reason : str or None
        Why it is of no use; None of one that is.
    shortenings : list of Clipping
        What of it is to be shortened.
    compared : bool
        Whether its length was compared with others.
    too_long : bool
        Whether its length alone is the reason.
    """

    reason: str | None = None
    shortenings: list[Clipping] = field(default_factory=list)
    compared: bool = False
    too_long: bool = False


@dataclass
class LengthHistory:
    """What earlier rounds say of lengths; kept with a checkpoint.

    Attributes
    ----------
    usual : dict
        By architecture and part, the largest upper median of the lengths that a round accepted, shortened then or not.
    long : dict of str to int
        Of each site whose update was left out or shortened when it was last compared, the round of that.
    """

    usual: dict[tuple[str, str], float] = field(default_factory=dict)
    long: dict[str, int] = field(default_factory=dict)

    def note(
        self, number: int, usual: Mapping[tuple[str, str], float], compared: Mapping[str, bool]
    ) -> None:
        """Take in a round: its upper medians, and of each site that was compared whether it was too long."""
        for key, length in usual.items():
            if math.isfinite(length):
                self.usual[key] = max(length, self.usual.get(key, 0.0))
        for site, was_long in compared.items():
            if was_long:
                self.long[site] = number
            else:
                self.long.pop(site, None)

    def state(self) -> dict[str, Any]:
        """Return it as a checkpoint holds it; nothing where nothing was compared."""
        usual = [[*key, length] for key, length in self.usual.items()]
        return {"usual": usual, "long": dict(self.long)} if usual or self.long else {}

    def put_back(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.usual = {(model, part): float(length) for model, part, length in state["usual"]}
        self.long = dict(state["long"])


class _ComparisonGroup:
    """What is known of the uploads of one architecture, or of one part, which can be compared with each other."""

    def __init__(
        self, trial: FiniteCheck | None, led: CandidateModel, weights: Weights, earlier: float
    ) -> None:
        if trial is not None:
            trial.prepare()
        self._trial, self._start, self.part, self.earlier = trial, led.start, led.part, earlier
        # What starts at 0, such as a control variate, is held against the weights' length where it stands alone.
        self.own = weights_length(led.start) or weights_length(weights)
        self.passed: list[float] = []

    @cached_property
    def _sound(self) -> bool:
        """Whether the round's own weights give numbers: where they do not, no upload can be blamed."""
        return self._trial is not None and self._trial.gives_numbers(self._start)

    def tried(self, model: Weights) -> str | None:
        if self._trial is None or not self._sound or self._trial.gives_numbers(model):
            return None
        return "with its weights the model gives no finite numbers"


class UploadScreening:
    """Judges the uploads of one round by the models that they lead to, each beside those of its architecture.

    Parameters
    ----------
    factor : float
        ``federation.max_update``: how often the usual length an update may be long; 0 for any.
    clip : float
        ``federation.clip``: how often the usual length it may be long and is not shortened to that; 0 for any.
    earlier : mapping
        `LengthHistory.usual` of the rounds before.
    """

    def __init__(
        self,
        trials: FiniteChecks,
        weights: Weights,
        factor: float,
        clip: float,
        earlier: Mapping[tuple[str, str], float],
    ) -> None:
        self._trials, self._factor, self._clip, self._earlier = trials, factor, clip, earlier
        self._weights = weights
        self._size = sum(t.nbytes for t in weights.read_only.values())
        self._alike: dict[tuple[str, str], _ComparisonGroup] = {}
        self._of(
            CandidateModel(None, weights)
        )  # its model is built before the uploads are in memory

    def _of(self, led: CandidateModel) -> _ComparisonGroup:
        key = led.architecture, led.part
        if key not in self._alike:
            trial = None if led.part else self._trials.of(led.architecture)
            earlier = self._earlier.get(key, 0.0)
            self._alike[key] = _ComparisonGroup(trial, led, self._weights, earlier)
        return self._alike[key]

    def usual(self) -> dict[tuple[str, str], float]:
        """Return the upper medians of the lengths that were accepted, by architecture and part."""
        return {
            key: upper_median(alike.passed) for key, alike in self._alike.items() if alike.passed
        }

    def _measured(self, led: CandidateModel) -> Iterator[tuple[_ComparisonGroup, Weights]]:
        """Yield what an upload is compared with, and from where its length counts.

        A model's running statistics are compared with the others' apart from its parameters: they are as long, and one
        that lies about them alone would be of usual length.
        """
        there, trained = led.start.read_only, self._trials.trained(led.architecture)
        apart = {n: t for n, t in there.items() if n not in trained and t.is_floating_point()}
        if led.part or not apart:
            yield self._of(led), led.start
            return
        yield self._of(led), Weights({n: t for n, t in there.items() if n in trained})
        statistics = Weights(apart)
        yield self._of(replace(led, start=statistics, part=STATISTICS)), statistics

    def judge(self, led: Iterable[Iterable[CandidateModel]]) -> list[Verdict]:
        """Judge each of a group of uploads.

        Parameters
        ----------
        led : iterable of iterable of CandidateModel
            What each leads to, and its other parts. Those of one are let go before the next one's are asked for.
        """
        lengths: dict[_ComparisonGroup, dict[int, tuple[float, Weights]]] = {}
        verdicts: list[Verdict] = []
        for parts in led:
            verdict = Verdict()
            for one in parts:
                if one.model is None:
                    continue
                verdict.reason = verdict.reason or self._of(one).tried(one.model)
                for alike, start in self._measured(one):
                    measured = length_of(one.model, start), start
                    lengths.setdefault(alike, {})[len(verdicts)] = measured
                del one
            verdicts.append(verdict)
            del parts
        for alike, own in lengths.items():
            judged = [*alike.passed, *(length for length, _ in own.values())]
            known, earlier = len(alike.passed), alike.earlier
            long = too_long(judged, alike.own, self._factor, known=known, earlier=earlier)
            for i, reason in zip(own, long, strict=True):
                verdicts[i].compared = True
                verdicts[i].too_long |= verdicts[i].reason is None and reason is not None
                verdicts[i].reason = verdicts[i].reason or reason
        for alike, own in lengths.items():
            self._shorten(
                alike, {i: one for i, one in own.items() if not verdicts[i].reason}, verdicts
            )
        return_if_large(self._size)  # or what was tried lies in pieces between what is summed
        return verdicts

    def _shorten(
        self,
        alike: _ComparisonGroup,
        passing: dict[int, tuple[float, Weights]],
        verdicts: list[Verdict],
    ) -> None:
        known = len(alike.passed)
        alike.passed += [length for length, _ in passing.values()]
        shares = shares_kept(alike.passed, self._clip, known=known, earlier=alike.earlier)
        for (i, (_, start)), share in zip(passing.items(), shares, strict=True):
            if share < 1:
                verdicts[i].shortenings.append(Clipping(alike.part, start, share))


# ---- plausible -----------------------------------------------------------------------------------
# What no honest site sends: an update of implausible length, a model that gives no numbers, images beyond any image.
#
# A site whose training diverged sends such a thing without malice, and one such reply is enough to ruin an average.
# The bounds are wide: they keep a run alive, and are no defence against a site that lies within them.

#: updates of which the middle one is taken for what is usual
ENOUGH = 3

#: how often the length that was usual in an earlier round an update may always be long
_EARLIER_FACTOR = 2

#: how often the loss that is usual one site's may be: the same weights are judged at all of them
_LOSS_FACTOR = 100


def length_of(new: Weights, old: Weights) -> float:
    """Return the Euclidean length of what ``new`` changes; infinite where it exceeds float32."""
    moved = new.read_only
    squares, room = 0.0, torch.empty(PIECE, dtype=torch.float64)
    for name, t in old.read_only.items():
        for after, before in pieces(moved[name], t) if t.is_floating_point() else ():
            change = room[: before.numel()]
            torch.sub(after.reshape(-1), before.reshape(-1), out=change)
            squares += torch.dot(change, change).item()  # in half the time of a norm in float64
    return math.sqrt(squares)


def shares_kept(
    lengths: Sequence[float], factor: float, *, known: int = 0, earlier: float = 0.0
) -> list[float]:
    """Return what share of each update of a round is kept: 1 of one that is not long, else what makes it a usual one.

    To cut it to ``factor`` times the usual length would leave a flipped update that outweighs all others of a small
    federation, and a factor that lets every honest update pass is not small: sites that have learned all they can move
    little, and one that has not is several times as far (docs/robustness.md has the figures).

    Parameters
    ----------
    factor : float
        How often the lower median of all of them makes a long one; 0 for none.
    known : int
        How many of the first ones have been judged before, of which nothing is said.
    earlier : float
        The length that was usual in an earlier round: none of up to that is cut, and none is cut to less.
    """
    if not factor or len(lengths) < ENOUGH:
        return [1.0] * (len(lengths) - known)
    usual = sorted(lengths)[(len(lengths) - 1) // 2]
    longest, kept = max(factor * usual, earlier), max(usual, earlier)
    return [kept / one if 0 < longest < one else 1.0 for one in lengths[known:]]


def upper_median(lengths: Sequence[float]) -> float:
    """Return the (floor(K / 2) + 1)-th smallest of K numbers; 0 of none."""
    return sorted(lengths)[len(lengths) // 2] if lengths else 0.0


def _median_of_the_others(ranked: Sequence[float], one: float) -> float:
    """Return the lower median of two or more sorted numbers without one of them."""
    middle = (len(ranked) - 2) // 2
    return ranked[middle + (bisect_left(ranked, one) <= middle)]


def absurd_losses(losses: Sequence[float], classes: int) -> list[str | None]:
    """Say of each site's loss of the same weights whether it is absurdly large, None of one that is not.

    Parameters
    ----------
    losses : sequence of float
        The sites' mean losses; a single one is taken as it is.
    classes : int
        How many there are to choose among; a blind guess among them has a loss that counts as usual.
    """
    message: list[str | None] = []
    ordered = sorted(losses)
    for loss in losses:
        others = len(ordered) > 1
        usual = max(_median_of_the_others(ordered, loss), math.log(classes)) if others else loss
        fine = loss <= _LOSS_FACTOR * usual
        message.append(
            None
            if fine
            else f"its loss is {loss:.2g}, more than {_LOSS_FACTOR} times the {usual:.2g} that is usual in this round"
        )
    return message


def weights_length(weights: Weights) -> float:
    """Return the Euclidean length of the floating weights."""
    parts = [
        part.double().square().sum()
        for t in weights.read_only.values()
        if t.is_floating_point()
        for (part,) in pieces(t)
    ]
    return math.sqrt(float(torch.stack(parts).sum()))
