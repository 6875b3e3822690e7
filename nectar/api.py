"""The library: what ``import nectar`` offers, in the grammar of the command line."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, overload

import torch

from common.code.imports import HERE
from common.config.tables import TABLE
from common.config.text import scalar_text
from common.errors import ConfigError
from common.methods import Method
from nectar.comparison.comparison import Comparison
from nectar.comparison.request import CompareOptions, parse
from nectar.comparison.results import ComparisonResult, GridResult, TableResult
from nectar.engines.interrupt import Interrupted, Interrupts
from nectar.engines.local_run import run_here
from nectar.engines.preflight import check
from nectar.objects import KEYS, is_named, named
from nectar.recorded_run import RecordedRun
from nectar.records.record import record_at
from nectar.records.record_imports import judge_of
from nectar.records.resume import with_recorded
from nectar.words import parse_words, resolved, typed

T = TypeVar("T")

Row = str | Method | type


def run(
    method: str | Method | type = "",
    /,
    *,
    progress: bool = True,
    on_round: Callable[[dict[str, Any]], object] | None = None,
    **settings: Any,
) -> RecordedRun:
    """Run a federation in this process, as the command ``nectar run`` does.

    Parameters
    ----------
    method : str, Method or type, optional
        A method's name, an import path, or what one leads to: a method of your own, the class of a Flower strategy;
        left out, the configuration's.
    progress : bool
        Whether a line is printed for each round.
    on_round : callable, optional
        Called after each round, round 0 included, with its line of metrics.jsonl as a dictionary: what
        ``RecordedRun.rounds`` has. What it raises is a warning, with the traceback once, and the run goes on.
    **settings
        What stands as ``key=value`` on the command line: ``dataset``, ``rounds``, ``seed``, ``experiment``,
        ``output_dir``, ``data_dir``, ``resume``; a section's as ``feddm={"ipc": 5}`` or ``**{"feddm.ipc": 5}``.
        ``model`` and ``dataset`` take functions and classes of your own too; those of a script or a notebook keep
        the run in this process.

    Raises
    ------
    NectarError
        In the sentences of the command line, if the run cannot start (before any work is done) or stops.
    """
    if is_named(method):
        method = named("method", method)
    if not isinstance(method, str):
        raise ConfigError(f"{method!r:.60} is not a method: name one, such as nectar.run('feddm').")
    if on_round is not None and not callable(on_round):
        raise ConfigError(
            f"on_round={on_round!r:.60} must be a function of a round's line, such as on_round=print."
        )
    if method and "method" in settings:
        raise ConfigError(
            f"two methods, {method} and {settings['method']}: name one, as the first argument."
        )
    words = _words(({"method": method} if method else {}) | settings)
    config = resolved(with_recorded(typed(["run", *words]) | parse_words(words)))
    threads = torch.get_num_threads()
    try:
        with _lines(progress):
            check(config)
            record = run_here(config, on_round=on_round)
    finally:
        torch.set_num_threads(threads)
    return RecordedRun.open(record.directory)


def open_record(record: str | Path, *, allow_imports: str = "") -> RecordedRun:
    """Return a run by its record.

    Parameters
    ----------
    record : str or Path
        The directory that ``nectar run`` printed, the record's id, or ``latest``.
    allow_imports : str
        Modules and packages, with spaces between them: what the record names by import path is imported from these
        alone, since a record can come from anywhere.

    Raises
    ------
    ConfigError
        If it is no run's record.
    """
    return RecordedRun.open(record_at(record), judge_of(allow_imports, "allow_imports="))


@overload
def compare(
    *rows: Row, table: None = None, grid: None = None, **options: Any
) -> ComparisonResult: ...
@overload
def compare(*rows: Row, table: str, grid: None = None, **options: Any) -> TableResult: ...
@overload
def compare(
    *rows: Row, table: None = None, grid: Mapping[str, Sequence[Any]], **options: Any
) -> GridResult: ...
def compare(
    *rows: Row,
    table: str | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    small: bool = False,
    search: bool = False,
    seeds: int | None = None,
    target: float | None = None,
    jobs: int | None = None,
    alone: bool = False,
    ray: str | None = None,
    output: str | Path | None = None,
    tune: str | Sequence[str] = (),
    tune_seeds: int | None = None,
    progress: bool = True,
    **settings: Any,
) -> ComparisonResult | TableResult | GridResult:
    """Run methods over seeds, what is not there yet, and set them side by side, as ``nectar compare`` does.

    A run that fails keeps no other from going on: look at ``failures``.

    Parameters
    ----------
    *rows : str, Method or type
        As on the command line: ``"feddm"``, ``"feddm:start=real"``, ``"mine=feddm:ipc=5"``; of a table its rows and
        columns, all of them if none is named. A method or class of a module of your own stands for its import path.
    table : str, optional
        A paper's table.
    grid : mapping of str to sequence, optional
        The values of settings whose combinations are compared, such as ``{"partition.alpha": [0.1, 1]}``.
    small, search : bool
        Of a table, whether its variants of two-core size are run, and whether what it states is searched again.
    seeds, target, jobs, alone, ray, output, tune, tune_seeds
        The command's options of these names.
    progress : bool
        Whether a line is printed for each run.
    **settings
        For all rows, as :func:`run` takes them; ``seed`` is the first seed.

    Returns
    -------
    ComparisonResult, TableResult or GridResult
        The rows and their tables; of a table its columns, and our numbers beside the paper's; of a grid its cells.

    Raises
    ------
    NectarError
        In the sentences of the command line, if the comparison cannot be.
    """
    lines: list[str] = []
    for one in rows:
        row = named("method", one) if is_named(one) else one
        if not isinstance(row, str):
            raise ConfigError(
                f"{row!r:.60} is not a row: nectar.compare takes each as an argument of its own, such as "
                "nectar.compare('feddm', 'fedavg')."
            )
        lines.append(row)
    told: dict[str, Any] = {
        "seeds": seeds,
        "target": target,
        "jobs": jobs,
        "ray": ray,
        "output": output,
        "tune_seeds": tune_seeds,
        "alone": alone,
        "small": small,
        "search": search,
    }
    given = {name: value for name, value in told.items() if value is not None}
    tabled = {} if table is None else {TABLE: table}
    words = (*lines, *_words(tabled | settings))
    if any(f"{HERE}:" in word for word in words):
        raise ConfigError(
            "a comparison runs in processes of its own, where nothing of this script or notebook is: put what it names "
            "into a module."
        )
    searches = (tune,) if isinstance(tune, str) else tuple(tune)
    axes = tuple(f"{k}={','.join(_text(k, v) for v in own)}" for k, own in (grid or {}).items())
    line = _typed(words, given, {"--tune": searches, "--grid": axes})
    options = CompareOptions(words, tune=searches, grid=axes, typed=line, **given)
    comparison = Comparison(parse(options), _say if progress else _say_nothing)
    return _carried_out(comparison.carry_out)


def _typed(
    words: Sequence[str], given: Mapping[str, Any], several: Mapping[str, Sequence[str]]
) -> str:
    """Return the line of a shell that asks for the same."""
    line = ["nectar", "compare", *words]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        line += [option] * (value is True) if isinstance(value, bool) else [option, str(value)]
    pairs = [word for name, texts in several.items() for text in texts for word in (name, text)]
    return shlex.join([*line, *pairs])


def _carried_out(carry_out: Callable[[], T]) -> T:
    """Carry out a comparison; a signal ends its runs in order first, then does what it does anywhere."""
    interrupts = Interrupts()
    try:
        with interrupts:
            return carry_out()
    except Interrupted as interrupted:
        interrupts.restore()
        signal.raise_signal(interrupted.number)
        raise KeyboardInterrupt from None  # the signal's own handler let the program go on
    finally:
        interrupts.restore()


def _say(sentence: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(sentence.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _say_nothing(sentence: str) -> None:
    pass


def _words(settings: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as they would be typed; None leaves a key of the run unset."""
    words: list[str] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            words += [
                f"{key}.{inner}={_text(f'{key}.{inner}', one)}" for inner, one in value.items()
            ]
        elif value is not None or "." in key:
            words.append(f"{key}={_text(key, value)}")
    return words


def _text(key: str, value: Any) -> str:
    if is_named(value) and key in (*KEYS, "model"):
        return named(key, value)
    if isinstance(value, str | Path):
        # Behind a dot the command line reads YAML, where the text "3" is not the number 3.
        return scalar_text(str(value)) if "." in key else str(value)
    if value is None or isinstance(value, bool):
        return scalar_text(value)
    if isinstance(value, Integral):
        return scalar_text(int(value))
    if isinstance(value, Real):
        return scalar_text(float(value))
    raise ConfigError(
        f"{key}={value!r} must be a number, a text, a truth value or None, not {type(value).__name__}."
    )


class _Printer(logging.Handler):
    """Prints the log's lines where the caller's own prints go at that moment, such as a notebook's cell."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        mark = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        _say(f"{mark}{self.format(record)}")


@contextmanager
def _lines(shown: bool) -> Iterator[None]:
    """Print the lines of a run's log plainly and once, and leave its logger as it was found.

    Flower's own handler writes colour codes, and what the caller has at the root logger would say each line again.
    """
    logger = logging.getLogger("flwr")
    flowers = [handler for handler in logger.handlers if hasattr(handler, "colored")]
    printer, propagate = _Printer(logging.INFO), logger.propagate
    for handler in flowers:
        logger.removeHandler(handler)
    if shown:
        logger.addHandler(printer)
        logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(printer)
        logger.propagate = propagate
        for handler in flowers:
            logger.addHandler(handler)
