"""What is kept of a round: its line, its pictures, its checkpoints, and a sentence in the log."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from logging import getLogger
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from common.data.user.rows import csv_of_rows
from common.errors import FederationError
from common.learning.task import Evaluation
from common.privacy.accounting import epsilon
from common.privacy.events import UNIT, Event
from common.privacy.ledger import LedgerTip
from common.samples.dataset import DatasetInfo
from common.sites import site_slug
from common.storage.files import read_regular, write_atomically, write_json, write_text
from common.wire.image_codecs import Contrast
from common.wire.images import FIGURES, Copies, SyntheticImages
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from server_app.site_figures import at_sites, in_words, spread
from server_app.synthetic_sets import save_sets
from strategies.exchange.membership import some_of
from strategies.exchange.replies import Outcome, PrivacyBudgetUsage, reasons_in_words
from strategies.federated import Federated
from strategies.round import RoundResult, SitesFigures

logger = getLogger("flwr")

#: among a line's notes: what each site was charged in this run until then
SPENT = "spent"

#: how often the loss of the round before makes a leap
_LEAP = 3

MOST_TOLD = 1000
"""Charged sites up to which each round's line tells of all; of more it tells of those that the round asked."""


class Recorder:
    """The callback that keeps a round: its line, its checkpoints, its pictures, and a line in the log.

    ``told`` is told each line that is on record; ``held`` is what the sites hold out by class, as far as it is known.
    """

    def __init__(
        self,
        record: Record,
        strategy: Federated,
        rounds: int,
        best: float | None = None,
        line: Mapping[str, Any] | None = None,
        diverged: bool = False,
        told: Callable[[Mapping[str, Any]], object] = lambda line: None,
        held: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
    ) -> None:
        self.record = record
        self.strategy = strategy
        self.rounds = rounds
        self.best = best
        self._line = line
        self._diverged = diverged
        self._told, self._held = told, held
        self._loss = math.inf
        self._measure = strategy.run.config.evaluation.measure
        self._patience = strategy.run.config.evaluation.patience
        self.best_round, self._without_better = _best_of(record)
        self._untrained = (record.metrics_file.line(0).get("test") or {}).get("loss")

    def out_of_patience(self) -> bool:
        """Return whether as many evaluations as the run has patience for brought nothing better; say so once."""
        out = 0 < self._patience <= self._without_better
        if out:
            logger.info(
                "no better validation figure in %d evaluations (evaluation.patience): the result is round %d",
                *(self._without_better, self.best_round),
            )
        return out

    def _is_better(self, reached: float, server_round: int) -> bool:
        """Return whether a round is the best one so far, and count those that are not."""
        better = reached > (-math.inf if self.best is None else self.best)
        self._without_better = 0 if better else self._without_better + 1
        if better:
            self.best, self.best_round = reached, server_round
        return better

    def __call__(self, result: RoundResult) -> None:
        """Keep ``result``; the checkpoint comes last, so that what it vouches for is on disk.

        The line of a round that awaits the sites' figures is kept in its checkpoint until they are there.
        """
        line = line_of(result)
        if result.server_round and (notes := self._notes(result.outcome)):
            line["notes"] = notes
        self._line = line if result.awaits_sites else None
        with self.record.writing():
            if self._line is None:
                self.record.append(line)
            if result.server_round:
                self._keep(result)
        if result.server_round:
            _tell_copies(result)
        logger.info("%s", sentence_of(result, self.rounds, line.get(FEWER, {}), self._measure))
        self._tell_leap(result)
        if _has_diverged(result):
            kept = self.record.finite
            logger.warning(
                "round %d: the test loss is not finite: the model has diverged; lower a learning rate (%s)%s",
                result.server_round,
                self.strategy.run.config.learning_rates,
                f" (the last checkpoint before it is kept in {kept})" if kept.is_file() else "",
            )
        if self._line is None:
            self._told(line)

    def _tell_leap(self, result: RoundResult) -> None:
        """Say that a loss is far above the round's before, and above a blind guess's: nothing goes back by itself."""
        if result.test is None:
            return
        blind, before = math.log(len(self.strategy.run.info.classes)), self._loss
        self._loss = result.test.loss
        if not result.server_round:
            self._untrained = self._loss
        if math.isfinite(self._loss) and self._loss > max(_LEAP * before, blind):
            logger.warning(
                "round %d: the test loss leapt from %.4f to %.4f; resume=%s round=best goes on from the best round",
                result.server_round,
                before,
                self._loss,
                self.record.directory,
            )
        elif (
            self._untrained is not None
            and self._untrained < self._loss < math.inf
            and not self.strategy.run.config.weighs_classes
        ):
            logger.warning(
                "round %d: the test loss is %.4f, above the %.4f before training: lower a learning rate (%s), or train "
                "fewer epochs a round",
                *(result.server_round, self._loss, self._untrained),
                self.strategy.run.config.learning_rates,
            )
            self._untrained = None  # said once

    def _notes(self, outcome: Outcome) -> dict[str, Any]:
        """Return what the method says of the round, and what the sites have spent of their privacy until then."""
        spending, delta = self.strategy.members.spending, self.strategy.run.config.privacy.delta
        many = len(spending.events) > MOST_TOLD
        asked = {*outcome.accepted, *outcome.rejected} if many else None
        spent = spending_lines(spending, delta, asked)
        return {**self.strategy.notes(), **outcome.secret, **({SPENT: spent} if spent else {})}

    def judged(self, figures: SitesFigures) -> None:
        """Write the line of the round that the sites judged; it is there already where a run continues behind it."""
        line, self._line = self._line, None
        validation = self.strategy.run.config.data.validated_at_sites
        classes = len(self.strategy.run.info.classes)
        told = at_sites(figures.mean, figures.outcome, classes, self._measure, self._held)
        reached = told["sites"].get(self._measure) if validation and told["sites"] else None
        if isinstance(reached, float):
            self._keep_if_best(reached, figures.server_round)
        if line is None:
            return
        passed = {
            way: _sum(line["bytes"][way], more)
            for way, more in (("down", figures.bytes_down), ("up", figures.bytes_up))
        }
        whole = {**line, **told, "bytes": passed}
        if validation:
            whole |= {"validation": _validation(whole), "sites": None}
        with self.record.writing():
            self.record.append(whole)
        if told["sites"]:
            own = " (the mean of the sites' own)" if self._measure == "auc" else ""
            logger.info(
                "round %d/%d: %sat the sites %s, %s%s",
                *(figures.server_round, self.rounds, "validation " if validation else ""),
                *(in_words(told["sites"], self._measure, own), judges_of(figures.outcome)),
                spread(told, self._measure),
            )
        self._told(whole)

    def _keep_if_best(self, reached: float, server_round: int) -> None:
        """Make the last checkpoint the best one too, if the sites' validation split says so."""
        if not self._is_better(reached, server_round):
            return
        best = replace(Checkpoint.load(self.record.last), validation_accuracy=reached)
        with self.record.writing():
            if self.record.last_sets.is_file():
                copied = lambda to: shutil.copyfile(self.record.last_sets, to)  # noqa: E731
                write_atomically(self.record.best_sets, copied)
            best.save(self.record.best)

    def _keep(self, result: RoundResult) -> None:
        keep(self.record.directory, self.strategy.members.spending.ledger_tips)
        sets, contrast = self.strategy.pictures(), self.strategy.contrast
        folder = self.record.directory / "samples" / f"round-{result.server_round:03d}"
        save_grids(sets, self.strategy.run.info, folder, contrast)
        reached = getattr(result.validation, self._measure, None)
        weights = result.arrays.to_torch_state_dict(keep_input=True)
        checkpoint = Checkpoint(
            result.server_round,
            weights,
            dict(self.strategy.checkpoint()),
            reached,
            self._line,
            dict(self.strategy.members.last_accepted_round),
            self.record.metrics_file.checksum(),
        )
        if reached is not None and self._is_better(reached, result.server_round):
            if sets:
                save_sets(sets, result.server_round, self.record.best_sets, contrast)
            checkpoint.save(self.record.best)
        if sets:
            save_sets(sets, result.server_round, self.record.last_sets, contrast)
        if _has_diverged(result) and not self._diverged and self.record.last.is_file():
            write_atomically(self.record.finite, lambda to: shutil.copyfile(self.record.last, to))
        self._diverged = _has_diverged(result)
        checkpoint.save(self.record.last)


def _best_of(record: Record) -> tuple[int, int]:
    """Return the best round on record, and how many evaluations came after it; zeros of a run that begins."""
    if not record.best.is_file():
        return 0, 0
    best = Checkpoint.load(record.best).server_round
    return best, sum(
        bool(line.get("validation")) for line in record.metrics() if line["round"] > best
    )


def _has_diverged(result: RoundResult) -> bool:
    return result.test is not None and not math.isfinite(result.test.loss)


def _tell_copies(result: RoundResult) -> None:
    """Describe how many of the round's images are copies: each time that there are some, else in the first round."""
    copies = Copies.told(result.outcome.accepted.values())
    if copies is not None and copies.found:
        logger.warning("REAL IMAGES, round %d: %s", result.server_round, copies.sentence())
    elif copies is not None and result.server_round == 1:
        logger.info("%s", copies.sentence())


#: whether a round changed the weights; it stands in the lines of those that did not
UPDATED = "updated"

#: of how many sites a figure of the training is; it stands in the lines of rounds in which not all sent it
FEWER = "train_sites"

#: a device's figure that is a time, and stands with the other times
_SECONDS = "seconds"


def line_of(result: RoundResult) -> dict[str, Any]:
    """Return a round's line of metrics.jsonl; everything that a clock decides is under ``seconds``."""
    accepted = result.outcome.accepted
    devices = {site: dict(figures) for site, figures in accepted.items()}
    times = {site: figures.pop(_SECONDS, None) for site, figures in devices.items()}
    line: dict[str, Any] = {"round": result.server_round}
    if not result.updated:
        line[UPDATED] = False
    line["test"] = asdict(result.test) if result.test else None
    line["validation"] = _in_short(result.validation) if result.validation else None
    if result.models:
        line["models"] = {name: _in_short(figures) for name, figures in result.models.items()}
    line |= at_sites(None, result.outcome)
    line["accepted"] = list(accepted)
    line["rejected"] = dict(result.outcome.rejected)
    if result.outcome.shortened:
        line["shortened"] = dict(result.outcome.shortened)
    means, apart = dict(result.train or {}), {_SECONDS, *FIGURES.values()}
    line["train"] = {key: value for key, value in means.items() if key not in apart}
    sent = {key: [row[key] for row in accepted.values() if key in row] for key in line["train"]}
    line["train_median"] = {key: median(own) for key, own in sent.items() if own}
    if fewer := {key: len(own) for key, own in sent.items() if 0 < len(own) < len(accepted)}:
        line[FEWER] = fewer
    line["bytes"] = {"down": dict(result.bytes_down), "up": dict(result.bytes_up)}
    copies = Copies.told(accepted.values())
    line["copies"] = asdict(copies) if copies is not None else None
    line["floats_up"] = result.outcome.floats_up
    line["devices"] = devices
    line["seconds"] = {**result.seconds, "by_site": times}
    return line


def require_an_update(lines: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to call a run completed that ends with the weights with which it began.

    Raises
    ------
    FederationError
        If there are rounds among ``lines``, and the strategy made an update in none of them, or sites were asked and
        no reply of any was ever accepted.
    """
    rounds = [line for line in lines if line["round"]]
    asked = [line for line in rounds if line["accepted"] or line["rejected"]]
    if asked and not any(line["accepted"] for line in asked):
        raise FederationError(
            f"none of {len(asked)} rounds had a reply that could be used, and nothing was learned "
            f"({reasons_in_words(asked[-1]['rejected'])})"
        )
    if rounds and not any(line.get(UPDATED, True) for line in rounds):
        raise FederationError(
            f"none of {len(rounds)} rounds updated the weights, which are still those of the start: the strategy made "
            "nothing of the replies, and its own warning of each round in the log says what it lacked"
        )


#: points of accuracy by which a run that learned something is better than it was
_LEARNED = 0.05


def warn_no_progress(lines: Sequence[Mapping[str, Any]], rates: str) -> str:
    """Return a sentence about a run whose model is no better than before training, else nothing.

    Parameters
    ----------
    rates : str
        From what to what the learning rates may be lowered.
    """
    judged = [line for line in lines if line.get("test") and line["test"]["loss"] is not None]
    if len(judged) < 2 or judged[0]["round"]:
        return ""
    before, after = judged[0]["test"], judged[-1]["test"]
    by_chance = 1.5 / max(1, len(after["per_class"]))
    learned = max(before["accuracy"] + _LEARNED, by_chance)
    if after["loss"] <= before["loss"] or after["accuracy"] > learned:
        return ""
    without = [line for line in lines if line["rejected"]]
    first = ""
    if without:
        reasons = some_of([f"{site}: {why}" for site, why in without[-1]["rejected"].items()])
        first = f"see to the replies that {len(without)} of {len(lines) - 1} rounds rejected ({reasons}), then "
    return (
        f"the run has learned nothing: after round {judged[-1]['round']} the test loss is {after['loss']:.4f}, before "
        f"training it was {before['loss']:.4f} (accuracy {after['accuracy']:.4f}, before {before['accuracy']:.4f}); "
        f"{first}try a lower learning rate ({rates})"
    )


def _in_short(figures: Evaluation) -> dict[str, Any]:
    """Return figures without the counts class by class, which stand once a line."""
    return {key: value for key, value in asdict(figures).items() if key != "confusion"}


def _validation(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the sites' figures of a line as the server's of its validation images are; they tell none of a class."""
    if line["sites"] is None:
        return None
    examples = sum(site["examples"] for site in line["evaluated"].values())
    return {**line["sites"], "per_class": [], "examples": examples}


def judges_of(outcome: Outcome) -> str:
    """Return over how many sites the sites' figures are, and which one has more than half of all that they hold out."""
    held = {site: figures.examples for site, figures in outcome.evaluated.items()}
    there = held.keys() | outcome.unevaluated.keys() | outcome.rejected.keys()
    largest, total = max(held, key=held.__getitem__, default=""), sum(held.values())
    most = f", more than half of the examples are of {largest}" if held[largest] * 2 > total else ""
    return f"{len(held)} of {len(there)} sites{most}"


def _sum(account: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {name: account.get(name, 0) + more.get(name, 0) for name in {**account, **more}}


def sentence_of(
    result: RoundResult, rounds: int, fewer: Mapping[str, int], measure: str = "accuracy"
) -> str:
    """Return the round as one line that a person can read; ``fewer`` sent these figures than took part."""
    parts = [f"round {result.server_round}/{rounds}:"]
    if result.test:
        over = _coverage(result.test.per_class)
        parts.append(f"{in_words(vars(result.test), measure, over)},")
    if result.server_round == 0:
        return " ".join(parts).rstrip(",") + " before training"
    asked = len(result.outcome.accepted) + len(result.outcome.rejected)
    lacking = "".join(f" ({key} of {count})" for key, count in fewer.items())
    parts.append(f"{len(result.outcome.accepted)} of {asked} sites{lacking},")
    parts.append(f"{_megabytes(result.bytes_up)} up, {_megabytes(result.bytes_down)} down,")
    parts.append(f"{sum(result.seconds.values()):.1f} s")
    return " ".join(parts)


def _coverage(per_class: Sequence[float]) -> str:
    """Say over which part of the classes an accuracy is, where it is not over all: `` over 3 of 5 classes``."""
    judged = sum(not math.isnan(one) for one in per_class)
    return f" over {judged} of {len(per_class)} classes" if judged < len(per_class) else ""


def _megabytes(account: Mapping[str, int]) -> str:
    return f"{sum(account.values()) / 1e6:.2f} MB"


# ---- pictures ------------------------------------------------------------------------------------
# What sites sent so that a person can look at what left: PNG grids of images, a row a class; rows as tables.

#: the shortest side an image is drawn with, in pixels
_MIN_SIDE = 32


def save_grids(
    sets: Mapping[str, SyntheticImages],
    info: DatasetInfo,
    directory: Path,
    contrast: Contrast = "pixels",
) -> None:
    """Write one PNG a site, ``<slug>.png``; of rows and series a table in raw values, ``<slug>.csv``."""
    if sets:
        directory.mkdir(parents=True, exist_ok=True)
    for site, images in sets.items():
        if not info.has_images:
            names = [info.classes[label] for label in hard(images.labels).tolist()]
            write_text(
                directory / f"{site_slug(site)}.csv", csv_of_rows(images.images, names, info)
            )
            continue
        picture = grid(images.images, images.labels, info, contrast)
        write_atomically(directory / f"{site_slug(site)}.png", partial(picture.save, format="PNG"))


def grid(
    images: Tensor, labels: Tensor, info: DatasetInfo, contrast: Contrast = "pixels"
) -> Image.Image:
    """Draw images [n, C, H, W] in rows by class, as ``contrast`` says; soft labels count as their largest class."""
    pixels, labels = in_bytes(images, info, contrast), hard(labels)
    channels, height, width = pixels.shape[1:]
    scale = max(1, -(-_MIN_SIDE // min(height, width)))
    present = torch.unique(labels).tolist()
    columns = max(int((labels == c).sum()) for c in present)
    rows, gap = len(present), 1
    sheet = torch.full((channels, rows * (height + gap) - gap, columns * (width + gap) - gap), 255)
    sheet = sheet.to(torch.uint8)
    for row, c in enumerate(present):
        for column, image in enumerate(pixels[labels == c]):
            top, left = row * (height + gap), column * (width + gap)
            sheet[:, top : top + height, left : left + width] = image
    array = sheet[0].numpy() if channels == 1 else sheet.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array)
    size = (picture.width * scale, picture.height * scale)
    return picture.resize(size, Image.Resampling.NEAREST)


# ---- screen --------------------------------------------------------------------------------------
# Images of the model's normalised space as a screen shows them, and their labels as rows of a sheet need them.


def on_screen(images: Tensor, info: DatasetInfo, contrast: Contrast = "pixels") -> Tensor:
    """Return images [n, C, H, W] of the model's normalised space as float32 values from 0 to 1.

    ``pixels`` undoes the normalisation and clips. ``stretched`` undoes it too, then maps each image's own extremes,
    over all its channels together, to 0 and 1; an image of one value only becomes 0.5.
    """
    mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (info.mean, info.std))
    pixels = images.float() * std + mean
    if contrast == "pixels":
        return pixels.clamp(0, 1)
    low, high = pixels.amin((1, 2, 3), keepdim=True), pixels.amax((1, 2, 3), keepdim=True)
    stretched = (pixels - low) / (high - low)
    return torch.where(high > low, stretched, 0.5)


def in_bytes(images: Tensor, info: DatasetInfo, contrast: Contrast = "pixels") -> Tensor:
    """Return the same as uint8 [n, C, H, W]."""
    return (on_screen(images, info, contrast) * 255).round().to(torch.uint8)


def hard(labels: Tensor) -> Tensor:
    """Return labels int64 [n]: of soft ones, float [n, classes], the class with the most."""
    return labels.argmax(1) if labels.is_floating_point() else labels


# ---- spent ---------------------------------------------------------------------------------------
# What a run's sites have spent of their privacy, as a round's line tells it.

#: places of the PRV accountant's grids that a round waits for, of all sites together: half a second of a core
_PLACES = 2**19

#: what a kind of event costs beside them, in the same measure: 64 kinds of each of 12 sites are another second; each
#: site may have two whatever the others have
_PLACES_A_KIND = 2**9


def spending_lines(
    spending: PrivacyBudgetUsage, delta: float, sites: Container[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return for each site, or for those of ``sites``, what it has spent in this run, as plain data.

    ``epsilon`` is None if there is no bound, where the site keeps its events to itself, and where it tells of so
    many kinds of them that the round would wait. Sites that tell of the same events are one computation; the others
    have equal shares of the time, and RDP's epsilon where PRV's would take more.
    """
    told = {s: each for s, each in spending.events.items() if sites is None or s in sites}
    share = _PLACES // max(1, len(set(told.values())))
    return {
        site: {
            "epsilon": _finite(_epsilon(events, delta, share)) if events else None,
            "delta": delta,
            "unit": UNIT,
            "seeded": spending.seeded[site],
            "events": [event.to_dict() for event in events],
        }
        for site, events in told.items()
    }


@lru_cache(maxsize=1024)
def _epsilon(events: tuple[Event, ...], delta: float, places: int) -> float:
    """Return it, by what can be computed within that many places; infinite where nothing can."""
    if len(events) > max(2, places // _PLACES_A_KIND):
        return math.inf
    return epsilon(events, delta, most_places=places).value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---- ledger heads --------------------------------------------------------------------------------
# The heads of the sites' privacy ledgers that a server has seen: in each run's record, and together for the next run.
#
# A site that comes back with an older copy of its ledger is refused by itself once it is told the newest of them. Who
# puts back an older copy of the site's state and of the server's records alike is not noticed.

FILE = "ledger-heads.json"
"""In a record: by site, the newest head that this run saw."""


def keep(record: Path, heads: Mapping[str, LedgerTip]) -> None:
    """Write what was seen until now; nothing where no site keeps a ledger."""
    if heads:
        write_json(record / FILE, {site: asdict(head) for site, head in heads.items()})


def seen(places: Iterable[Path]) -> dict[str, LedgerTip]:
    """Return by site the longest head in the records below ``places``; of one that is damaged a warning is left."""
    found: dict[str, LedgerTip] = {}
    for path in sorted({path for place in places for path in place.glob(f"*/{FILE}")}):
        for site, head in _read(path).items():
            if head.length > found.get(site, LedgerTip()).length:
                found[site] = head
    return found


def _read(path: Path) -> dict[str, LedgerTip]:
    try:
        content = json.loads(read_regular(path))
        return {str(site): LedgerTip.read(head) for site, head in content.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        logger.warning(
            "%s is damaged, so that a site whose privacy ledger was put back is not told what that run saw of it: "
            "put back a whole copy of the record, or delete the file",
            path,
        )
        return {}
