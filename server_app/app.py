"""The ServerApp: configuration, data, model, strategy, record, and the rounds between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from torch import Tensor

from common.config.keys import FETCH
from common.config.loading import load
from common.config.resolved import Config
from common.data.division.partitions import class_counts, report
from common.division import Division, unheld
from common.errors import ConfigError, DivergedError, FederationError, NectarError, one_line
from common.learning.augmentation import check_augmentation
from common.learning.compute import use_threads
from common.learning.measures import require_classes
from common.learning.run import Run
from common.learning.start import start_checksum, starting_weights
from common.methods import is_foreign, require_taken
from common.samples.dataset import alike
from common.sites import SUPERLINK, Site, engine_of
from common.wire.images import Copies
from server_app import recorder as ledger_heads
from server_app.data_of_run import agree_on_data, data_at_hand, stated_data
from server_app.dp_sgd_step import require_dp_sgd_step
from server_app.loop import federate, server_evaluator
from server_app.on_round import Notifier, OnRound
from server_app.record import Record
from server_app.recorder import Recorder, require_an_update, warn_no_progress
from server_app.resume_point import ancestor_of, partition_with, resume_point_of
from server_app.sending import monitored, print_marked, send
from server_app.tracking import refuse_own_pictures, require_tracker
from server_app.unlisted import unlisted
from strategies.base import strategy_class
from strategies.exchange.membership import expected_sites
from strategies.federated import Federated
from strategies.foreign import ForeignStrategy
from strategies.round import Callback
from strategies.secret import secret_strategy

logger = getLogger("flwr")

#: more sites than this are not drawn up in the log; the record has them all
_MAX_SHOWN = 20

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured method on the federation behind ``grid``, or send a record home if that is asked."""
    try:
        if context.run_config.get(FETCH):
            send(context.run_config)
            return
        rounds = _Rounds()
        record = serve(
            grid, load(context.run_config), begun=rounds.begin, members=_Members(), done=rounds
        )
        print_marked("completed", directory=str(record.directory))
    except NectarError as error:
        logger.error("the run stopped: %s", error)
        print_marked("stopped", reason=one_line(str(error)))
        sys.tracebacklimit = 0  # Flower says it again, with where in our code it was raised
        raise


class _Rounds:
    """Tells which round is over, and the seconds until the last one is, as if each took as long as those here did."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._record: Record | None = None

    def begin(self, record: Record) -> None:
        """Tell where the record lies."""
        self._record = record
        print_marked("record", directory=str(record.directory))

    def __call__(self, reached: int, of: int) -> None:
        now = time.monotonic()
        first, begun = self._first = self._first or (reached, now)
        a_round = (now - begun) / max(1, reached - first)
        left = {"left": round(a_round * (of - reached), 1)} if reached > first else {}
        figures = {} if self._record is None else monitored(self._record)
        print_marked("round", reached=reached, of=of, **left, **figures)


class _Members:
    """Tells who takes part, when that is known and when it changes."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def __call__(self, sites: Sequence[Site]) -> None:
        nodes = {site.name: str(site.node_id) for site in sites}
        if nodes != self._told:
            print_marked("sites", nodes=nodes)
            self._told = nodes


@dataclass(frozen=True, eq=False)
class Start:
    """What a run begins with, which a process makes once; of one that is resumed, without weights."""

    division: Division
    weights: dict[str, Tensor] | None
    strategy: Federated


def prepare(config: Config, *, tell: bool = True) -> Start:
    """Make what a run begins with, or raise NectarError; ``tell``: the log has which file the weights are of."""
    division = Division(config)
    require_classes(division.run)
    weights = None if config.resume else starting_weights(division.run, tell=tell)
    strategy = make_strategy(division.run)
    require_dp_sgd_step(division.run)
    return Start(division, weights, strategy)


def serve(
    grid: Grid,
    config: Config,
    begun: Callable[[Record], object] | None = None,
    members: Callable[[Sequence[Site]], None] | None = None,
    done: Callable[[int, int], None] | None = None,
    on_round: OnRound | None = None,
    start: Start | None = None,
) -> Record:
    """Run ``config`` and return its record; what fails is noted there and raised.

    Parameters
    ----------
    begun : callable, optional
        Told the record as soon as there is one.
    members : callable, optional
        Told the sites that take part, at the start and after each round.
    done : callable, optional
        Told each round that is done, and how many there are to be.
    on_round : callable, optional
        A user's own function, told each round's line of metrics.jsonl; what it raises is a warning.
    start : Start, optional
        What ``config`` begins with, where that has been made in this process.
    """
    require_tracker(config.track)
    if config.compute.batched != "off" and not getattr(grid, "trains_together", False):
        raise ConfigError(
            f"compute.batched={config.compute.batched} trains the sites of one process together, as `nectar run` has "
            "them: leave it out where each site is a process of its own, or set it to off"
        )
    use_threads(config.compute.server_cores)
    start = start or prepare(config)
    division, strategy = start.division, start.strategy
    run = division.run
    evaluator = server_evaluator(division)
    ancestor = ancestor_of(config, strategy)
    strategy.members.spending.ledger_tips = ledger_heads.seen(_places(config))
    strategy.ensure_roll_call(grid)
    read = division.checksums if data_at_hand(division) else {}
    agree_on_data(strategy.members, read, config.dataset, config.federation.min_replies)
    refuse_own_pictures(config.track, strategy.sites)
    run = strategy.run = with_actual_sites(run, strategy.sites)
    inherited = strategy.derive() if ancestor else ()
    standing = resume_point_of(run.config, strategy, ancestor)
    record, checkpoint = standing.record, standing.checkpoint
    strategy.record_id = record.id
    logger.info("the record is %s", record.directory)
    if config.private and (config.data.group or config.images.group):
        logger.warning("epsilon is of one example: of a group with k of them it is k times as much")
    if config.weak_delta:
        logger.warning("%s", config.weak_delta)
    if run.task.by_class and (line := alike(run.info.classes)):
        logger.warning("%s", line)
    notifier = Notifier()
    try:
        notifier = Notifier.of(run.config, record, lambda: strategy.sites, on_round)
        if begun is not None:
            begun(record)
        if members is not None:
            members(strategy.sites)
        strategy.summary()
        with record.writing():
            if strategy.sites:
                record.note(engine=engine_of(strategy.sites))
        if checkpoint is None:
            partition = describe_partition(division, strategy.sites, strategy.members.left_out)
            if ancestor is not None:
                partition = partition_with(partition, ancestor, inherited)
            data = stated_data(config.dataset, strategy.members.data)
            with record.writing():
                record.partition(partition)
                record.note(data=data, **_start(run))
        held = held_out(division, strategy.sites)
        for sentence in unheld(run.info, held):
            logger.warning("%s", sentence)
        weights = checkpoint.weights if checkpoint else start.weights or starting_weights(run)
        travelling = {name: weights[name] for name in run.spec.names}
        recorder = Recorder(
            record,
            strategy,
            config.rounds,
            standing.best,
            standing.line,
            diverged=standing.diverged,
            told=notifier,
            held=held,
        )
        federate(
            strategy,
            grid,
            ArrayRecord(travelling),
            first_round=standing.first_round,
            last_round=config.rounds,
            evaluator=evaluator,
            callbacks=[recorder, *_listeners(strategy, config.rounds, members, done)],
            figures_callbacks=[recorder.judged],
            unjudged=standing.unjudged,
            enough=recorder.out_of_patience,
        )
        require_an_update(record.metrics())
        message = warn_no_progress(record.metrics(), config.learning_rates)
        if message and not config.weighs_classes:
            logger.warning("%s", message)
        with record.writing():
            if config.evaluation.patience:
                record.note(result_round=recorder.best_round)
            _end(record, "completed")
    except DivergedError as error:
        told = FederationError(f"{error}; {record.resume_hint()}")
        _note_end(record, told)
        raise told from None
    except BaseException as error:
        _note_end(record, error)
        raise
    finally:
        notifier.close(str((record.stated() or {}).get("outcome", "")))
        record.close()
    logger.info("done: %s", record.directory)
    return record


def _listeners(
    strategy: Federated,
    rounds: int,
    members: Callable[[Sequence[Site]], None] | None,
    done: Callable[[int, int], None] | None,
) -> Iterator[Callback]:
    """Yield what is called after each round's line is written."""
    if members is not None:
        yield lambda _: members(strategy.sites)
    if done is not None:
        yield lambda result: done(result.server_round, rounds)


def _places(config: Config) -> list[Path]:
    """Return where the records lie: this run's and those before it."""
    return [config.output_dir, *([Path(config.resume).parent] if config.resume else [])]


def _end(record: Record, outcome: str) -> None:
    """Note how the run ended, and how many of all images that were sent are copies of real ones."""
    copies = None
    with suppress(NectarError):  # what is damaged in the metrics is told by those who read them
        copies = Copies.recorded(record.metrics())
    record.note(outcome=outcome, **({} if copies is None else {"copies": asdict(copies)}))


def _note_end(record: Record, error: BaseException) -> None:
    """Note why the run ended early; where that has no room either, the lock that ends with it tells as much."""
    reason = str(error) or type(error).__name__
    stopped = isinstance(error, KeyboardInterrupt | SystemExit)
    if stopped:
        logger.warning("interrupted: %s", record.resume_hint())
    try:
        _end(record, "interrupted" if stopped else f"failed: {reason}")
    except (OSError, FederationError):
        logger.error("that it ended cannot be noted in %s: it counts as killed", record.directory)


def make_strategy(run: Run) -> Federated:
    """Return the method's strategy, or an adapter around a Flower strategy named by import path.

    Raises
    ------
    ConfigError
        If a method of the user's own names something else, or cannot learn from such data, or the run is to augment
        what cannot be.
    """
    for method in (run.config.method, *run.config.inner):
        require_taken(method, run.info.kind, run.info.name)
    for section, settings in run.config.sections().items():
        check_augmentation(section, settings, run.info)
    if is_foreign(run.config.method):
        return ForeignStrategy(run)
    cls = strategy_class(run.config.method)
    return secret_strategy(cls)(run) if run.config.secret else cls(run)


def with_actual_sites(run: Run, sites: list[Site]) -> Run:
    """Return the run for as many clients as joined, and say how to get the configured number."""
    wanted, found = run.config.federation.sites, nodes_counted_on(run, sites)
    if found == wanted:
        return run
    own = not any(site.partitions for site in sites)
    if own and found > wanted and run.config.federation.newcomers == "known":
        raise FederationError(
            f"{found} sites are there ({', '.join(site.name for site in sites)}) where federation.sites counts on "
            f"{wanted}: say federation.sites={found}, or federation.newcomers=any to begin with whoever is there"
        )
    if engine_of(sites) == SUPERLINK:
        how = f"start {wanted} SuperNodes, each with num-partitions={wanted} in its node config"
    else:
        how = f'use `nectar simulate` or add --federation-config "num-supernodes={wanted}" to flwr run'
    logger.warning(
        "the federation has %d nodes, the configuration says %d: running with %d. For %d, %s",
        *(found, wanted, found, wanted, how),
    )
    return replace(run, config=run.config.with_sites(found))


def nodes_counted_on(run: Run, sites: list[Site]) -> int:
    """Return how many sites there are to be: those that the roll call left out are still of the federation."""
    return expected_sites(sites) or max(len(sites), run.config.federation.sites)


def describe_partition(
    division: Division, sites: list[Site], left_out: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Return what the record says about who holds what, and why nodes that were there take no part.

    Class counts are there only where the server has the data itself, and the task tells classes apart. Of a large
    simulation there are sizes alone (`server_app.unlisted`).
    """
    run = division.run
    classes = list(run.info.classes) if run.task.by_class else []
    told = {"left_out": {str(i): why for i, why in left_out.items()}} if left_out else {}
    about = {"classes": classes, "simulated": bool(sites) and engine_of(sites) != SUPERLINK}
    own, told_sizes = run.config.site_places, run.config.tells_counts
    summed_up = None if own else unlisted(sites, told=told_sizes)
    if summed_up is not None:
        return {**about, "sites": {}, "unlisted": summed_up, **told}
    return {**about, "sites": _rows(division, sites), **told}


def _rows(division: Division, sites: list[Site]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {s.name: {"examples": s.examples} for s in sites}
    run = division.run
    if sites and sites[0].partitions and run.task.by_class and data_at_hand(division):
        counts = _counts(division, sites[0].partitions)
        for site in sites:
            rows[site.name] |= {
                "partition": site.partition,
                "classes": counts[site.partition].tolist(),
            }
        if len(sites) <= _MAX_SHOWN:
            held = {s.partition: s.name for s in sorted(sites, key=lambda s: s.partition)}
            unit = run.info.unit
            table = report(counts[list(held)], run.info.classes, unit, list(held.values()))
            logger.info("%s of each class by site:\n%s", unit, table)
    return rows


def held_out(division: Division, sites: Sequence[Site]) -> dict[str, NDArray[np.int64]]:
    """Return what each of the sites holds out, by class, where the server reads it or all are on its machine."""
    here = engine_of(sites) != SUPERLINK or data_at_hand(division)
    if not sites or not sites[0].partitions or not here:
        return {}
    found = division.held_out(sites[0].partitions)
    return {site.name: found[site.drawn_as] for site in sites if site.drawn_as in found}


def _counts(division: Division, sites: int) -> NDArray[np.int64]:
    """Return the number of images of each class in each partition or folder, int64 [sites, classes]."""
    classes = len(division.run.info.classes)
    if division.config.site_places:
        held = [dataset.train.labels for dataset in division.site_datasets.values()]
        return np.stack([np.bincount(labels, minlength=classes) for labels in held])
    return class_counts(division.dataset.train.labels, division.partition(sites), classes)


def _start(run: Run) -> dict[str, str]:
    """Return what the record says of a file that the weights come from, and of a delta that promises little."""
    found = {"start": start_checksum(run.config), "weak_delta": run.config.weak_delta}
    return {key: value for key, value in found.items() if value}
