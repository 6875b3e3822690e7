"""What is kept of a round: its line, its checkpoints, its pictures, and a sentence in the log."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from logging import getLogger
from pathlib import Path
from statistics import fmean, median, pstdev
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from flwr.app import MetricRecord
from numpy.typing import NDArray

from common.config.resolved import Config
from common.errors import FederationError
from common.learning.measures import macro
from common.learning.task import Evaluation
from common.privacy.accounting import epsilon
from common.privacy.events import UNIT, Event
from common.privacy.ledger import LedgerTip
from common.settings.sections import MEASURES
from common.storage.files import read_regular, write_atomically, write_json
from common.wire.images import FIGURES, Copies
from server_app.checkpoint import Checkpoint
from server_app.pictures import save_grids, save_sets
from server_app.resume import ResumePoint
from server_app.run_directory import has_diverged
from strategies.exchange.evaluation import EvaluationRequest
from strategies.exchange.membership import some_of
from strategies.exchange.replies import Outcome, PrivacyBudgetUsage, reasons_in_words
from strategies.federated import Federated
from strategies.round import RoundResult

logger = getLogger("flwr")

#: among a line's notes: what each site was charged in this run until then
SPENT = "spent"

#: how often the loss of the round before makes a leap
_LEAP = 3

MOST_TOLD = 1000
"""Up to so many charged sites, each round's line lists all of them; of more, those that took part in the round."""


class Recorder:
    """Keeps each round: its line, its checkpoints, its pictures, and a line in the log.

    Parameters
    ----------
    point : ResumePoint
        The record, and its position.
    notify : callable, optional
        Called with each line that is on record.
    held : mapping, optional
        What the sites hold out by class, int64 [classes], as far as it is known.
    """

    def __init__(
        self,
        point: ResumePoint,
        strategy: Federated,
        notify: Callable[[Mapping[str, Any]], object] = lambda line: None,
        held: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
    ) -> None:
        self.record, self.strategy, self._notify, self._held = point.record, strategy, notify, held
        self._config = strategy.run.config
        self._measure = self._config.evaluation.measure
        self._best, self._line, self._diverged = point.best, point.line, point.diverged
        lines = self.record.metrics()
        self._loss = math.inf
        self._untrained = (lines[0].get("test") or {}).get("loss") if lines else None
        self.best_round, self._without_better = 0, 0
        if self.record.best.is_file():
            self.best_round = Checkpoint.load(self.record.best).server_round
            since = [line for line in lines if line["round"] > self.best_round]
            self._without_better = sum(bool(line.get("validation")) for line in since)

    def out_of_patience(self) -> bool:
        """Return whether as many evaluations as the run has patience for brought nothing better; say so once."""
        out = 0 < self._config.evaluation.patience <= self._without_better
        if out:
            logger.info(
                "no better validation figure in %d evaluations (evaluation.patience): the result is round %d",
                *(self._without_better, self.best_round),
            )
        return out

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
                self._keep(result, has_diverged(line))
        if result.server_round:
            _tell_copies(result)
        logger.info(
            "%s", sentence_of(result, self._config.rounds, line.get(FEWER, {}), self._measure)
        )
        if result.test is not None:
            self._warn_of_loss(result.server_round, result.test.loss)
        if self._line is None:
            self._notify(line)

    def evaluated_at_sites(
        self,
        asked: EvaluationRequest,
        mean: MetricRecord | None,
        more: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Write the line of a round that awaited the sites' figures; it is there where a run continues after it."""
        line, self._line = self._line, None
        validation = self._config.data.validated_at_sites
        classes = len(self.strategy.run.info.classes)
        by_sites = at_sites(mean, asked.outcome, classes, self._measure, self._held)
        reached = by_sites["sites"].get(self._measure) if validation and by_sites["sites"] else None
        if isinstance(reached, float) and self._is_better(reached, asked.server_round):
            self._copy_last_as_best(reached)
        if line is None:
            return
        passed = {way: _sum(account, more[way]) for way, account in line["bytes"].items()}
        full = {**line, **by_sites, "bytes": passed}
        if validation:
            full |= {"validation": _validation(full), "sites": None}
        with self.record.writing():
            self.record.append(full)
        if by_sites["sites"]:
            own = " (the mean of the sites' own)" if self._measure == "auc" else ""
            logger.info(
                "round %d/%d: %sat the sites %s, %s%s",
                *(asked.server_round, self._config.rounds, "validation " if validation else ""),
                *(in_words(by_sites["sites"], self._measure, own), judges_of(asked.outcome)),
                spread(by_sites, self._measure),
            )
        self._notify(full)

    def _warn_of_loss(self, server_round: int, loss: float) -> None:
        """Say that the model has diverged, that its loss leapt, or is above that of the start; nothing is changed."""
        before, self._loss = self._loss, loss
        if not server_round:
            self._untrained = loss
        rates = self._config.learning_rates
        if not math.isfinite(loss):
            kept = self.record.finite
            logger.warning(
                "round %d: the test loss is not finite: the model has diverged; lower a learning rate (%s)%s",
                *(server_round, rates),
                f" (the last checkpoint before it is kept in {kept})" if kept.is_file() else "",
            )
        elif loss > max(_LEAP * before, math.log(len(self.strategy.run.info.classes))):
            logger.warning(
                "round %d: the test loss leapt from %.4f to %.4f; `nectar export %s --best` writes the best round's "
                "model, from which model.start= begins",
                *(server_round, before, loss, self.record.directory),
            )
        elif self._untrained is not None and loss > self._untrained:
            if self._config.weighs_classes:
                return
            logger.warning(
                "round %d: the test loss is %.4f, above the %.4f before training: lower a learning rate (%s), or train "
                "fewer epochs a round",
                *(server_round, loss, self._untrained, rates),
            )
            self._untrained = None  # said once

    def _notes(self, outcome: Outcome) -> dict[str, Any]:
        """Return what the method says of the round, and what the sites have spent of their privacy until then."""
        spending = self.strategy.members.spending
        many = len(spending.events) > MOST_TOLD
        asked = {*outcome.accepted, *outcome.rejected} if many else None
        spent = spending_lines(spending, self._config.privacy.delta, asked)
        return {**self.strategy.notes(), **outcome.secret, **({SPENT: spent} if spent else {})}

    def _is_better(self, reached: float, server_round: int) -> bool:
        """Return whether a round is the best one so far, and count those that are not."""
        better = reached > (-math.inf if self._best is None else self._best)
        self._without_better = 0 if better else self._without_better + self.strategy.is_learning
        if better:
            self._best, self.best_round = reached, server_round
        return better

    def _copy_last_as_best(self, reached: float) -> None:
        record = self.record
        best = replace(Checkpoint.load(record.last), validation_accuracy=reached)
        with record.writing():
            if record.last_sets.is_file():
                write_atomically(record.best_sets, lambda to: shutil.copyfile(record.last_sets, to))
            best.save(record.best)

    def _keep(self, result: RoundResult, diverged: bool) -> None:
        """Write what is kept of a round in addition to its line."""
        record, strategy, number = self.record, self.strategy, result.server_round
        if tips := strategy.members.spending.ledger_tips:
            heads = {site: asdict(head) for site, head in tips.items()}
            write_json(record.directory / LEDGER_TIPS, heads)
        sets, contrast = strategy.pictures(), strategy.contrast
        if sets:
            save_grids(sets, strategy.run.info, record.samples(number), contrast)
        reached = getattr(result.validation, self._measure, None)
        checkpoint = Checkpoint(
            number,
            result.arrays.to_torch_state_dict(keep_input=True),
            dict(strategy.checkpoint()),
            reached,
            self._line,
            dict(strategy.members.last_accepted_round),
            record.checksum(),
        )
        if reached is not None and self._is_better(reached, number):
            if sets:
                save_sets(sets, number, record.best_sets, contrast)
            checkpoint.save(record.best)
        if sets:
            save_sets(sets, number, record.last_sets, contrast)
        if diverged and not self._diverged and record.last.is_file():
            write_atomically(record.finite, lambda to: shutil.copyfile(record.last, to))
        self._diverged = diverged
        checkpoint.save(record.last)


def _tell_copies(result: RoundResult) -> None:
    """Log how many of the round's images are copies: each time that there are some, else in the first round."""
    copies = Copies.reported(result.outcome.accepted.values())
    if copies is not None and copies.found:
        logger.warning("REAL IMAGES, round %d: %s", result.server_round, copies.sentence())
    elif copies is not None and result.server_round == 1:
        logger.info("%s", copies.sentence())


#: whether a round changed the weights; in the lines of rounds that did not
UPDATED = "updated"

#: the number of sites behind a training figure; in the lines of rounds in which not all sites sent it
FEWER = "train_sites"

#: a device's figure that is a time, and is listed with the other times
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
    # The sites' figures come with the next round's replies.
    line |= {"sites": None, "evaluated": {}, "unevaluated": {}}
    line["accepted"] = list(accepted)
    line["rejected"] = dict(result.outcome.rejected)
    if result.outcome.shortened:
        line["shortened"] = dict(result.outcome.shortened)
    means, listed = dict(result.train or {}), {_SECONDS, *FIGURES.values()}
    line["train"] = {key: value for key, value in means.items() if key not in listed}
    sent = {key: [row[key] for row in accepted.values() if key in row] for key in line["train"]}
    line["train_median"] = {key: median(own) for key, own in sent.items() if own}
    if fewer := {key: len(own) for key, own in sent.items() if 0 < len(own) < len(accepted)}:
        line[FEWER] = fewer
    line["bytes"] = {way: dict(account) for way, account in result.traffic.items()}
    copies = Copies.reported(accepted.values())
    line["copies"] = asdict(copies) if copies is not None else None
    line["floats_up"] = sum(result.outcome.floats.values())
    line["devices"] = devices
    line["seconds"] = {**result.seconds, "by_site": times}
    return line


def require_an_update(lines: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to call a run completed that ends with its initial weights.

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


def warn_no_progress(lines: Sequence[Mapping[str, Any]], config: Config) -> None:
    """Warn of a run whose model is no better than before training; not where classes are weighted in the loss."""
    judged = [line for line in lines if line.get("test") and line["test"]["loss"] is not None]
    if len(judged) < 2 or judged[0]["round"] or config.weighs_classes:
        return
    before, after = judged[0]["test"], judged[-1]["test"]
    by_chance = 1.5 / max(1, len(after["per_class"]))
    learned = max(before["accuracy"] + _LEARNED, by_chance)
    if after["loss"] <= before["loss"] or after["accuracy"] > learned:
        return
    without = [line for line in lines if line["rejected"]]
    first = ""
    if without:
        reasons = some_of([f"{site}: {why}" for site, why in without[-1]["rejected"].items()])
        first = f"see to the replies that {len(without)} of {len(lines) - 1} rounds rejected ({reasons}), then "
    logger.warning(
        "the run has learned nothing: after round %d the test loss is %.4f, before training it was %.4f "
        "(accuracy %.4f, before %.4f); %stry a lower learning rate (%s)",
        *(judged[-1]["round"], after["loss"], before["loss"]),
        *(after["accuracy"], before["accuracy"], first, config.learning_rates),
    )


def _in_short(figures: Evaluation) -> dict[str, Any]:
    """Return figures without the counts by class, which each line has once."""
    return {key: value for key, value in asdict(figures).items() if key != "confusion"}


def _validation(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the sites' figures of a line as the server's of its validation images are; they have none of a class."""
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
        judged = sum(not math.isnan(one) for one in result.test.per_class)
        classes = len(result.test.per_class)
        over = f" over {judged} of {classes} classes" if judged < classes else ""
        parts.append(f"{in_words(vars(result.test), measure, over)},")
    if result.server_round == 0:
        return " ".join(parts).rstrip(",") + " before training"
    asked = len(result.outcome.accepted) + len(result.outcome.rejected)
    lacking = "".join(f" ({key} of {count})" for key, count in fewer.items())
    parts.append(f"{len(result.outcome.accepted)} of {asked} sites{lacking},")
    moved = {way: sum(account.values()) / 1e6 for way, account in result.traffic.items()}
    parts.append(f"{moved['up']:.2f} MB up, {moved['down']:.2f} MB down,")
    parts.append(f"{sum(result.seconds.values()):.1f} s")
    return " ".join(parts)


# ---- sites ---------------------------------------------------------------------------------------
# The sites' own figures in a line and in the log: of each site, of all together, and over the sites.


def at_sites(
    mean: Mapping[str, Any] | None,
    outcome: Outcome,
    classes: int,
    measure: str,
    held: Mapping[str, NDArray[np.int64]],
) -> dict[str, Any]:
    """Return what a line says of the evaluation at the sites; ``mean`` is over all examples.

    F1 and balanced accuracy are of all counts together, and the AUC is the mean of the sites' own, since no score
    leaves a site. Mean, deviation and worst are of the measure, each site counting once. ``held`` is what the sites
    are known to hold out, by class (`Division.held_out`); what they report themselves takes precedence.
    """
    each: dict[str, dict[str, Any]] = {}
    total = torch.zeros(classes**2, dtype=torch.int64)
    judged = {site: torch.from_numpy(held[site]) for site in outcome.evaluated if site in held}
    for site, one in outcome.evaluated.items():
        each[site] = {"examples": one.examples, "accuracy": one.accuracy, "loss": one.loss}
        if one.counts:
            counts = torch.zeros_like(total)
            counts[list(one.counts[::2])] = torch.tensor(one.counts[1::2])
            total += counts
            judged[site] = counts.reshape(classes, classes).sum(1)
            each[site] |= _of_counts(counts.reshape(classes, classes))
        each[site] |= {} if one.auc is None else {"auc": one.auc}
        each[site] |= over_classes(judged[site]) if site in judged else {}
    found = {"sites": None, "evaluated": each, "unevaluated": dict(outcome.unevaluated)}
    if not mean:
        return found
    table, own = total.reshape(classes, classes), measured(each, measure)
    more = {**_of_counts(table), "confusion": table.tolist()} if total.any() else {}
    if own:
        more |= {"mean": fmean(own.values()), "deviation": pstdev(own.values())}
        more |= {"worst": min(own.values())} | ({"auc": more["mean"]} if measure == "auc" else {})
    more |= over_classes(sum(judged.values(), 0)) if judged.keys() == each.keys() else {}
    return {**found, "sites": {**mean, **more}}


def over_classes(counts: Any) -> dict[str, str]:
    """Return ``over`` how many of the classes figures of ``counts`` examples by class are; nothing where over all."""
    there = int((counts > 0).sum())
    return {"over": f"{there} of {len(counts)} classes"} if there < len(counts) else {}


def _of_counts(counts: torch.Tensor) -> dict[str, Any]:
    return dict(zip(("f1", "balanced"), macro(counts), strict=True))


def measured(evaluated: Mapping[str, Mapping[str, Any]], measure: str) -> dict[str, float]:
    """Return each site's measure; a site of a single class has no AUC."""
    return {site: one[measure] for site, one in evaluated.items() if measure in one}


def spread(line: Mapping[str, Any], measure: str) -> str:
    """Say what the measure is over the sites of a line, the worst one by name; nothing of one site."""
    own = measured(line["evaluated"], measure)
    if len(own) < 2:
        return ""
    of = "" if len(own) == len(line["evaluated"]) else f" of the {len(own)} that have two classes"
    return (
        "; {} by site{}: mean {mean:.4f}, deviation {deviation:.4f}, worst {worst:.4f} ({})".format(
            MEASURES[measure], of, min(own, key=own.__getitem__), **line["sites"]
        )
    )


def in_words(figures: Mapping[str, Any], measure: str, over: str = "") -> str:
    """Return what was measured, ``over`` which classes or sites, with accuracy and loss."""
    over += f" over {figures['over']}" if figures.get("over") else ""
    names = dict.fromkeys((measure, "accuracy", "loss"))
    first, *rest = (f"{MEASURES.get(n, n)} {figures.get(n, math.nan):.4f}" for n in names)
    return ", ".join([first + over, *rest])


# ---- spent ---------------------------------------------------------------------------------------
# What a run's sites have spent of their privacy, as recorded in a round's line.

#: places of the PRV accountant's grids that a round waits for, of all sites together: half a second of a core
_PLACES = 2**19

#: what a kind of event costs in addition, in the same measure: 64 kinds of each of 12 sites are another second; each
#: site may have two, however many the others have
_PLACES_A_KIND = 2**9


def spending_lines(
    spending: PrivacyBudgetUsage, delta: float, sites: Container[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return for each site, or for those of ``sites``, what it has spent in this run, as plain data.

    ``epsilon`` is None if there is no bound, where the site reports no events, and where it reports so
    many kinds of them that the round would wait. Sites that report the same events are one computation; the others
    have equal shares of the time, and RDP's epsilon where PRV's would take more.
    """
    reported = {s: each for s, each in spending.events.items() if sites is None or s in sites}
    share = _PLACES // max(1, len(set(reported.values())))
    return {
        site: {
            "epsilon": _finite(_epsilon(events, delta, share)) if events else None,
            "delta": delta,
            "unit": UNIT,
            "seeded": spending.seeded[site],
            "events": [event.to_dict() for event in events],
        }
        for site, events in reported.items()
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
# A site that comes back with an older copy of its ledger refuses to work once it is given the newest of them. Who
# puts back an older copy of the site's state and of the server's records alike is not noticed.

LEDGER_TIPS = "ledger-heads.json"
"""In a record: by site, the newest head that this run saw."""


def load_ledger_tips(places: Iterable[Path]) -> dict[str, LedgerTip]:
    """Return by site the longest head in the records below ``places``; of one that is damaged a warning is left."""
    found: dict[str, LedgerTip] = {}
    for path in sorted({path for place in places for path in place.glob(f"*/{LEDGER_TIPS}")}):
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
            "%s is damaged, so that a site whose privacy ledger was restored from a backup cannot be given what that "
            "run saw of it: restore a complete copy of the record, or delete the file",
            path,
        )
        return {}
