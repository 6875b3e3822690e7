"""The ServerApp: configuration, data, model, strategy, record, and the rounds between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from common.config.keys import SETTINGS_OF
from common.config.loading import load
from common.config.resolved import Config
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
from server_app.data_of_run import (
    agree_on_data,
    data_at_hand,
    describe_partition,
    held_out,
    stated_data,
)
from server_app.dp_sgd_step import require_dp_sgd_step
from server_app.loop import federate, server_evaluator
from server_app.marked_lines import monitored, print_marked
from server_app.record import Record
from server_app.recorder import Recorder, load_ledger_tips, require_an_update, warn_no_progress
from server_app.report import draw_report, has_report
from server_app.resume import ResumePoint, ancestor_of, recorded_settings, resume_point_of
from server_app.run_directory import COMPLETED, REPORT, RunDirectory
from server_app.tracking import Notifier, OnRound, refuse_own_pictures, require_tracker
from strategies.base import strategy_class
from strategies.exchange.membership import expected_sites
from strategies.federated import Federated
from strategies.foreign import ForeignStrategy
from strategies.round import Evaluator, RoundResult
from strategies.secret import secret_strategy

logger = getLogger("flwr")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured method on the federation behind ``grid``, or return a record's settings on request."""
    try:
        if name := context.run_config.get(SETTINGS_OF):
            output_dir = load({"output-dir": context.run_config.get("output-dir", "")}).output_dir
            print_marked("settings", **recorded_settings(output_dir, str(name)))
            return
        record = serve(grid, load(context.run_config), MarkedLines())
        if not has_report(record):  # a tracker may have needed it before
            draw_report(record.directory, {record.directory / REPORT: True})
        print_marked("completed", directory=str(record.directory))
    except NectarError as error:
        logger.error("the run stopped: %s", error)
        print_marked("stopped", reason=one_line(str(error)))
        sys.tracebacklimit = 0  # Flower says it again, with where in our code it was raised
        raise


class Observer:
    """Follows a run; what a subclass does not care for does nothing."""

    def begun(self, record: RunDirectory, sites: Sequence[Site]) -> None:
        """Take note of the record, and of the sites that take part."""

    def round_done(self, server_round: int, rounds: int, sites: Sequence[Site]) -> None:
        """Take note that a round of ``rounds`` is on record, round 0 included, and who takes part in the next."""


class MarkedLines(Observer):
    """Writes marked log lines for programs: the record's directory, the sites, and the progress."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._record = RunDirectory(Path())
        self._nodes: dict[str, str] = {}

    def begun(self, record: RunDirectory, sites: Sequence[Site]) -> None:
        """Print the record's directory and the sites."""
        self._record = record
        print_marked("record", directory=str(record.directory))
        self._print_sites(sites)

    def round_done(self, server_round: int, rounds: int, sites: Sequence[Site]) -> None:
        """Print the round, and the seconds until the last one is done, at the mean of those since the first here."""
        self._print_sites(sites)
        now = time.monotonic()
        first, started = self._first = self._first or (server_round, now)
        a_round = (now - started) / max(1, server_round - first)
        left = {"left": round(a_round * (rounds - server_round), 1)} if server_round > first else {}
        print_marked("round", reached=server_round, of=rounds, **left, **monitored(self._record))

    def _print_sites(self, sites: Sequence[Site]) -> None:
        nodes = {site.name: str(site.node_id) for site in sites}
        if nodes != self._nodes:
            print_marked("sites", nodes=nodes)
            self._nodes = nodes


@dataclass(frozen=True, eq=False)
class Start:
    """What a run begins with, which a process makes once; of one that is resumed, without weights."""

    division: Division
    weights: dict[str, Tensor] | None
    strategy: Federated


def prepare(config: Config, *, tell: bool = True) -> Start:
    """Make what a run begins with, or raise NectarError; ``tell``: log which file the weights come from."""
    division = Division(config)
    require_classes(division.run)
    weights = None if config.resume else starting_weights(division.run, announce=tell)
    strategy = make_strategy(division.run)
    require_dp_sgd_step(division.run)
    return Start(division, weights, strategy)


def serve(
    grid: Grid,
    config: Config,
    observer: Observer | None = None,
    on_round: OnRound | None = None,
    start: Start | None = None,
) -> Record:
    """Run ``config`` and return its record; what fails is noted there and raised.

    Parameters
    ----------
    observer : Observer, optional
        Called with the record at the start, and with each completed round.
    on_round : callable, optional
        A user's own function, called with each round's line of metrics.jsonl; what it raises is a warning.
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
    evaluator, observer = server_evaluator(start.division), observer or Observer()
    point = _begin(grid, config, start)
    record, strategy = point.record, start.strategy
    notifier = Notifier(strategy.run.config, record, lambda: strategy.sites, on_round)
    try:
        observer.begun(record, strategy.sites)
        strategy.summary()
        _note_start(point, start)
        _run_rounds(grid, point, start, evaluator, notifier, observer)
    except DivergedError as error:
        hinted = FederationError(f"{error}; {record.resume_hint()}")
        _note_failure(record, hinted)
        raise hinted from None
    except BaseException as error:
        _note_failure(record, error)
        raise
    finally:
        notifier.close(str((record.stated() or {}).get("outcome", "")))
        record.close()
    logger.info("done: %s", record.directory)
    return record


def _begin(grid: Grid, config: Config, start: Start) -> ResumePoint:
    """Call the roll, and return where the run begins or resumes, once all sites have read its data."""
    division, strategy, members = start.division, start.strategy, start.strategy.members
    ancestor = ancestor_of(config, strategy)
    places = [config.output_dir, *([Path(config.resume).parent] if config.resume else [])]
    members.spending.ledger_tips = load_ledger_tips(places)
    strategy.ensure_roll_call(grid)
    read = division.checksums if data_at_hand(division) else {}
    agree_on_data(members, read, config.dataset, config.federation.min_replies)
    refuse_own_pictures(config.track, strategy.sites)
    run = strategy.run = with_actual_sites(division.run, strategy.sites)
    point = resume_point_of(run.config, strategy, ancestor)
    strategy.record_id = point.record.id
    logger.info("the record is %s", point.record.directory)
    if config.private and (config.data.group or config.images.group):
        logger.warning("epsilon is of one example: of a group with k of them it is k times as much")
    if config.weak_delta:
        logger.warning("%s", config.weak_delta)
    if run.task.by_class and (line := alike(run.info.classes)):
        logger.warning("%s", line)
    return point


def _note_start(point: ResumePoint, start: Start) -> None:
    """Write the facts known before the first round: engine, partition, data, and the file that weights come from."""
    record, strategy, config = point.record, start.strategy, start.strategy.run.config
    if strategy.sites:
        with record.writing():
            record.note(engine=engine_of(strategy.sites))
    if point.checkpoint is not None:
        return
    members = strategy.members
    partition = describe_partition(start.division, strategy.sites, members.left_out)
    stated = {"start": start_checksum(config), "weak_delta": config.weak_delta}
    with record.writing():
        record.partition(point.with_inherited(partition))
        record.note(
            data=stated_data(config.dataset, members.data),
            **{key: value for key, value in stated.items() if value},
        )


def _run_rounds(
    grid: Grid,
    point: ResumePoint,
    start: Start,
    evaluator: Evaluator,
    notifier: Notifier,
    observer: Observer,
) -> None:
    """Carry out the rounds that are left, and note that the run is completed."""
    record, strategy, run = point.record, start.strategy, start.strategy.run
    checkpoint, config = point.checkpoint, run.config
    held = held_out(start.division, strategy.sites)
    for sentence in unheld(run.info, held):
        logger.warning("%s", sentence)
    recorder = Recorder(point, strategy, notifier, held)

    def done(result: RoundResult) -> None:
        observer.round_done(result.server_round, config.rounds, strategy.sites)

    weights = checkpoint.weights if checkpoint else start.weights or starting_weights(run)
    federate(
        strategy,
        grid,
        ArrayRecord({name: weights[name] for name in run.spec.names}),
        first_round=point.first_round,
        last_round=config.rounds,
        evaluator=evaluator,
        callbacks=[recorder, done],
        figures_callbacks=[recorder.evaluated_at_sites],
        unjudged=point.unjudged,
        enough=recorder.out_of_patience,
    )
    require_an_update(record.metrics())
    warn_no_progress(record.metrics(), config)
    with record.writing():
        if config.evaluation.patience:
            record.note(result_round=recorder.best_round)
        _note_outcome(record, COMPLETED)


def _note_outcome(record: Record, outcome: str) -> None:
    """Note how the run ended, and how many of all images that were sent are copies of real ones."""
    copies = None
    with suppress(NectarError):  # whoever reads damaged metrics reports it
        copies = Copies.recorded(record.metrics())
    record.note(outcome=outcome, **({} if copies is None else {"copies": asdict(copies)}))


def _note_failure(record: Record, error: BaseException) -> None:
    """Note why the run ended early; on a full disk, the released lock shows that it ended."""
    stopped = isinstance(error, KeyboardInterrupt | SystemExit)
    if stopped:
        logger.warning("interrupted: %s", record.resume_hint())
    try:
        reason = str(error) or type(error).__name__
        _note_outcome(record, "interrupted" if stopped else f"failed: {reason}")
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
    wanted = run.config.federation.sites
    # Those that the roll call left out are still of the federation.
    found = expected_sites(sites) or max(len(sites), wanted)
    if found == wanted:
        return run
    own = not any(site.partitions for site in sites)
    if own and found > wanted and run.config.federation.newcomers == "known":
        raise FederationError(
            f"{found} sites are there ({', '.join(site.name for site in sites)}) where federation.sites counts on "
            f"{wanted}: say federation.sites={found}, or federation.newcomers=any to begin with those"
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
