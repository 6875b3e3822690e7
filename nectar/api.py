"""The library: what ``import nectar`` offers, in the grammar of the command line."""

from __future__ import annotations

import inspect
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import torch

from common.code.imports import HERE
from common.config.code_fingerprint import MADE
from common.config.tables import TABLE
from common.config.text import scalar_text
from common.errors import ConfigError
from common.methods import Method
from nectar.arguments import parse_arguments, resolved, typed_command, with_fitting_sites
from nectar.comparison.comparison import Comparison
from nectar.comparison.request import OPTIONS, CompareOptions, parse
from nectar.comparison.results import Results
from nectar.engines.local_run import run_here
from nectar.engines.preflight import check
from nectar.engines.processes import Interrupted, until_interrupted
from nectar.recorded_run import RecordedRun
from nectar.records.outputs import with_recorded
from nectar.records.record import record_at
from nectar.records.record_imports import import_policy_of

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
        A method's name, an import path, or the object itself: a user-defined method, the class of a Flower strategy;
        by default the configuration's.
    progress : bool
        Whether a line is printed for each round.
    on_round : callable, optional
        Called after each round, round 0 included, with its line of metrics.jsonl as a dictionary: what
        ``RecordedRun.rounds`` has. If it raises, a warning is logged, with the traceback once, and the run continues.
    **settings
        The ``key=value`` settings of the command line: ``dataset``, ``rounds``, ``seed``, ``experiment``,
        ``output_dir``, ``data_dir``, ``resume``; a section's as ``feddm={"ipc": 5}`` or ``**{"feddm.ipc": 5}``.
        ``model`` and ``dataset`` also take your functions and classes; those of a script or a notebook keep
        the run in this process.

    Raises
    ------
    NectarError
        With the command line's messages, if the run cannot start (before any work is done) or stops.
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
    config = resolved(with_recorded(typed_command(["run", *words]) | parse_arguments(words)))
    threads = torch.get_num_threads()
    try:
        with _lines(progress):
            config = with_fitting_sites(config)
            start = check(config, log_weights=True)
            record = run_here(config, on_round=on_round, start=start)
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
        Modules and packages, separated by spaces: import paths in the record are imported only from these, since a
        record can come from anywhere.

    Raises
    ------
    ConfigError
        If it is not a run's record.
    """
    return RecordedRun.open(record_at(record), import_policy_of(allow_imports, "allow_imports="))


def compare(
    *rows: Row,
    table: str | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Results:
    """Run methods over seeds, reuse finished runs, and compare the results, as ``nectar compare`` does.

    A failed run does not stop the others: see ``failures``.

    Parameters
    ----------
    *rows : str, Method or type
        As on the command line: ``"feddm"``, ``"feddm:start=real"``, ``"mine=feddm:ipc=5"``; of a table its rows and
        columns, all of them if none is named. A method or class of your module is replaced by its import path.
    table : str, optional
        A paper's table.
    grid : mapping of str to sequence, optional
        The values of settings whose combinations are compared, such as ``{"partition.alpha": [0.1, 1]}``.
    progress : bool
        Whether a line is printed for each run.
    **settings
        For all rows, as :func:`run` takes them; ``seed`` is the first seed. And the command's options ``seeds``,
        ``target``, ``jobs``, ``alone``, ``output``, ``tune`` (one or several) and ``tune_seeds``; of a table
        ``small``, whether its variants of two-core size are run, and ``search``, whether what it states is searched
        again.

    Returns
    -------
    Results
        The rows and their tables; for a paper's table its columns, and our numbers next to the paper's; for a grid its
        cells.

    Raises
    ------
    NectarError
        With the command line's messages, if the comparison cannot be made.
    """
    lines: list[str] = []
    for one in rows:
        row = named("method", one) if is_named(one) else one
        if not isinstance(row, str):
            raise ConfigError(
                f"{row!r:.60} is not a row: nectar.compare takes each row as a separate argument, such as "
                "nectar.compare('feddm', 'fedavg')."
            )
        lines.append(row)
    tabled = {} if table is None else {TABLE: table}
    given = {name: settings.pop(name) for name in OPTIONS if name in settings}
    given = {name: value for name, value in given.items() if value is not None}
    words = (*lines, *_words(tabled | settings))
    if any(f"{HERE}:" in word for word in words):
        raise ConfigError(
            "a comparison runs in separate processes, which cannot see this script or notebook: move what it names "
            "into a module."
        )
    tune = given.pop("tune", ())
    searches = (tune,) if isinstance(tune, str) else tuple(tune)
    axes = tuple(f"{k}={','.join(_text(k, v) for v in each)}" for k, each in (grid or {}).items())
    options = CompareOptions(words, tune=searches, grid=axes, **given)
    request = parse(replace(options, typed=options.line))
    comparison = Comparison(request, _say if progress else lambda sentence: None)
    return _carried_out(comparison.carry_out)


def _carried_out(carry_out: Callable[[], T]) -> T:
    """Carry out a comparison; a signal ends its runs in order first, then does what it does anywhere."""
    try:
        return until_interrupted(carry_out)
    except Interrupted as interrupted:
        signal.raise_signal(interrupted.number)
        raise KeyboardInterrupt from None  # the signal's own handler let the program go on


def _say(sentence: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(sentence.encode(encoding, "backslashreplace").decode(encoding), flush=True)


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
        f"{key}={value!r} must be a number, a string, a bool or None, not {type(value).__name__}."
    )


class _Printer(logging.Handler):
    """Prints the log's lines where the caller's own prints go at that moment, such as a notebook's cell."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        mark = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        _say(f"{mark}{self.format(record)}")


@contextmanager
def _lines(shown: bool) -> Iterator[None]:
    """Print each line of a run's log once and without colours, and restore the logger afterwards.

    Flower's handler writes colour codes, and handlers of the root logger would repeat each line.
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


# ---- objects -------------------------------------------------------------------------------------
# Import paths of the classes, functions and methods that a Python caller gives as objects.

KEYS = ("method", "model.name", "dataset")
"""The settings that may be import paths."""


def is_named(given: Any) -> bool:
    """Return whether an object may be given instead of an import path: a class, a function, a method."""
    return isinstance(given, Method | type) or inspect.isroutine(given)


def named(key: str, given: Any) -> str:
    """Return the import path of ``given``.

    The path of an object defined in a script or a notebook is valid only in this process.

    Raises
    ------
    ConfigError
        If the object has no import path, such as a lambda or a local function.
    """
    if isinstance(given, Method):
        module, name = _place_of(given)
    else:
        module, name = str(given.__module__), str(given.__qualname__)
    if not name or getattr(sys.modules.get(module), name, None) is not given:
        raise ConfigError(
            f"{key}={given!r:.60} cannot be found again by its name: give a class, a function or a Method that is "
            "defined at the top level of a module, a script or a notebook."
        )
    if module == HERE:
        file = getattr(sys.modules[HERE], "__file__", None)
        if file and Path(file).is_file():
            MADE[HERE] = Path(file).resolve()
        else:
            message = "%s=%s is defined in a notebook: if it changes before the run is resumed, this is not noticed"
            logging.getLogger("flwr").warning(message, key, name)
    return f"{module}:{name}"


def _place_of(method: Method) -> tuple[str, str]:
    """Return where a method is bound to a name: of the modules that hold it, one of its parts' package first."""
    home = method.settings.partition(":")[0].partition(".")[0]
    for module in sorted(sys.modules, key=lambda one: one.partition(".")[0] != home):
        content = getattr(sys.modules[module], "__dict__", {})
        for name, value in list(content.items()):
            if value is method:
                return module, name
    return "", ""
