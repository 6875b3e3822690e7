"""The request that the words after ``nectar compare`` express.

`CompareOptions` is what was typed. `parse` reads it as a `Request`: one or more `Cell`s, each a comparison of the same
kind, rows over seeds. A grid has a cell for each combination of values, a paper's table one for each column.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from common.code.imports import is_import_path
from common.config.keys import CONFIG, INTERNAL_KEYS, PATH_KEYS, RUN_KEYS, SHORT, STRATEGY
from common.config.tables import ENDING, TABLE, experiment_names, is_experiment
from common.config.text import scalar
from common.errors import ConfigError, near, nearest
from common.methods import METHODS, is_foreign, section
from common.settings.sections import SECTIONS
from nectar.arguments import key_of_argument, meant_by, refuse_repeats
from nectar.comparison.paper_table import PaperTable, TableRow, read_paper_table
from nectar.records.outputs import output_folder

SEEDS, TUNE_SEEDS = 3, 2

#: the first seed of a search: far from those that are reported
TUNE_SEED = 1000

_PATH = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_NAMES = "|".join(map(re.escape, METHODS))

#: a label with a colon has a space too: "feddmm:start=real" is a typo of feddm, and no label of the method real
_ROW = re.compile(
    rf"(?:(?P<label>[^:]*?|.*? .*?)=)??(?P<method>{_NAMES}|{_PATH})(?::(?P<own>.*=.*))?", re.DOTALL
)

#: keys of the run that a row may set for itself
_ROW_KEYS = ("dataset", "rounds")

_VALIDATION = "data.validation"

#: keys that cannot be in a grid, each with what to do instead
_INSTEAD = {
    "method": "methods are the rows",
    "seed": "--seeds repeats each run",
    "round": "it belongs to resume",
    "resume_code": "it belongs to resume",
    "set": "state each setting",
    CONFIG: "a comparison has one file of settings",
    **dict.fromkeys(PATH_KEYS, "all runs share it"),
    **dict.fromkeys(INTERNAL_KEYS, "it cannot be typed"),
}


class Option(NamedTuple):
    """An option of ``nectar compare``: the placeholder of its value, its help, and the smallest number it takes."""

    metavar: str
    help: str
    least: int | None = None


OPTIONS = {
    "seeds": Option("N", "seeds S to S+N-1, S from seed=", 1),
    "target": Option(
        "A", "count rounds and bytes up to accuracy A (default: 0.9 of the best row's)"
    ),
    "jobs": Option("J", "runs at a time (default: as many as the cores allow)", 0),
    "alone": Option(
        "",
        "measure seconds: one run at a time, with no other on the machine; repeats runs that were not alone",
    ),
    "output": Option(
        "DIR", "where tables and plots go (default: compare-... in the output directory)"
    ),
    "tune": Option(
        "ROW.key=v1,v2,...",
        "tune a method's or a row's setting on the validation set; several make a grid",
    ),
    "tune_seeds": Option("N", "seeds of the search, from 1000", 1),
    "grid": Option(
        "KEY=v1,v2,...",
        "compare for each value of a setting, of dataset or of rounds; several make a grid",
    ),
    "small": Option(
        "",
        "run a table's variants for two cores, with stated settings instead of searches",
    ),
    "search": Option(
        "", "tune the settings that the table tunes, again if they were chosen before"
    ),
}
"""The options by the name that the library has for them."""


def option_name(name: str) -> str:
    """Return an option as typed, with dashes."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class CompareOptions:
    """The words after ``nectar compare``, and its options by their names.

    Raises
    ------
    ConfigError
        If a number is out of range, or options exclude each other.
    """

    words: tuple[str, ...]
    file: str | None = None
    seeds: int = SEEDS
    target: float | None = None
    jobs: int = 0
    alone: bool = False
    output: str | Path | None = None
    tune: tuple[str, ...] = ()
    tune_seeds: int = TUNE_SEEDS
    grid: tuple[str, ...] = ()
    small: bool = False
    search: bool = False
    typed: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and options that exclude each other."""
        for name, (_, _, least) in OPTIONS.items():
            value = getattr(self, name)
            if least is not None and (type(value) is not int or value < least):
                raise ConfigError(
                    f"{option_name(name)}={value!r} must be an integer, at least {least}."
                )
        target = self.target
        if target is not None and not (
            isinstance(target, int | float) and type(target) is not bool and 0 < target <= 1
        ):
            raise ConfigError(f"--target={target!r} must be an accuracy, above 0, at most 1.")
        if self.alone and self.jobs > 1:
            raise ConfigError("--alone runs one at a time: leave out --jobs.")

    @property
    def line(self) -> str:
        """The equivalent command line."""
        file = [] if self.file is None else ["--config", self.file]
        line = ["nectar", "compare", *self.words, *file]
        for name in OPTIONS:
            value, option = getattr(self, name), option_name(name)
            if value is True:
                line.append(option)
            elif value != getattr(CompareOptions, name):
                each = value if isinstance(value, tuple) else (value,)
                line += [word for text in each for word in (option, str(text))]
        return shlex.join(line)

    @property
    def all_words(self) -> tuple[str, ...]:
        """The words, and the file of settings as one of them."""
        return (*self.words, *(() if self.file is None else (f"{CONFIG}={self.file}",)))

    @property
    def parallel(self) -> int:
        """The number of runs at a time; 0: as many as the cores allow."""
        return 1 if self.alone else self.jobs

    @property
    def folder(self) -> Path | None:
        """Where the files go, refused if it cannot be a folder; None: below the output directory."""
        return None if self.output is None else output_folder(str(self.output))


@dataclass(frozen=True)
class Variant:
    """A row as typed, ``[LABEL=]METHOD[:key=value,...]``: a method with the row's settings.

    Parameters
    ----------
    method : str
        A method's name, or the import path of a Flower strategy or of a method of the user's.
    own : tuple of str
        Its own settings as ``section.key=value``; they override those that all rows share.
    """

    label: str
    method: str
    own: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        """The section of the method's settings."""
        return section(self.method)

    def with_settings(self, settings: Sequence[str]) -> Variant:
        """Return the row with these settings instead of those that it has for the same keys."""
        keys = {key_of_argument(word) for word in settings}
        kept = (word for word in self.own if key_of_argument(word) not in keys)
        return replace(self, own=(*kept, *settings))


@dataclass(frozen=True)
class Axis:
    """A setting that a grid or a search goes over: its key and its values, as typed."""

    key: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """The key without its section, for headings."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True)
class Cell:
    """A comparison: its rows, in order, each run with each seed.

    Parameters
    ----------
    options : CompareOptions
        With the searches and the target of this cell.
    shared : tuple of str
        ``[EXPERIMENT] [key=value ...]`` that all rows share, without the seed.
    output : Path or None
        Where its files go; None: below the output directory.
    label : str
        What tables and messages call it, such as ``alpha=0.1 dataset=mnist``, or a table's column; empty if it is the
        only one.
    values : tuple of str
        In a grid, the value of each axis.
    reported : tuple of str
        Settings of the reported runs that those of a search do not have, as ``key=value``; a row that states one of
        the keys itself has its own.
    """

    options: CompareOptions
    variants: tuple[Variant, ...]
    shared: tuple[str, ...]
    seeds: range
    output: Path | None = None
    label: str = ""
    values: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()

    def reported_by(self, variant: Variant) -> list[str]:
        """Return what a row has of ``reported``."""
        stated = {key_of_argument(word) for word in variant.own}
        return [word for word in self.reported if key_of_argument(word) not in stated]

    @property
    def tune_seeds(self) -> range:
        """The seeds of the searches."""
        return range(TUNE_SEED, TUNE_SEED + self.options.tune_seeds)

    def words(self, variant: Variant, seed: int) -> list[str]:
        """Return the words of one run, as for ``nectar run``; a row's own settings override the shared ones.

        Settings in the section of another row's own method are left out: only that row's runs know the section.
        """
        own = [f"method={variant.method}", *variant.own, f"seed={seed}"]
        stated = {key_of_argument(word) for word in own}
        others = {v.section for v in self.variants} - {variant.section, *METHODS}
        shared = [word for word in self.shared if word.partition(".")[0] not in others]
        return [*(word for word in shared if key_of_argument(word) not in stated), *own]


@dataclass(frozen=True)
class ComparisonRequest:
    """A parsed request: the cells, and the axes of the grid (the last one fastest) or the paper's table."""

    options: CompareOptions
    cells: tuple[Cell, ...]
    axes: tuple[Axis, ...] = ()
    table: PaperTable | None = field(default=None, repr=False)


def parse(options: CompareOptions) -> ComparisonRequest:
    """Read the words and options as a request.

    Raises
    ------
    ConfigError
        If a word is neither a row, a setting nor an experiment, a row is named twice, a grid goes over what cannot
        differ, a table has no such row or column, or the seeds of a search are reported ones.
    """
    tables = [word for word in options.all_words if key_of_argument(word) == TABLE]
    if tables:
        return _parse_table(options, [word.partition("=")[2] for word in tables])
    if options.small or options.search:
        raise ConfigError("--small and --search are for a paper's table: name one, as table=NAME.")
    axes, cells = _grid_axes(options), []
    for values in itertools.product(*(axis.values for axis in axes)):
        named = list(zip(axes, values, strict=True))
        words = (f"{axis.key}={value}" for axis, value in named)
        label = " ".join(f"{axis.name}={value}" for axis, value in named)
        own = replace(options, words=(*options.words, *words), grid=())
        cells.append(_parse_cell(own, label, values=values))
        refuse_own_setting(cells[-1].variants, axes, "--grid goes over: leave one out.")
    return ComparisonRequest(options, _placed(cells, options.folder), axes)


def _placed(cells: Sequence[Cell], folder: Path | None) -> tuple[Cell, ...]:
    """Return the cells with a folder of each below ``folder``; of one without a label it is the folder itself."""
    if folder is None:
        return tuple(cells)
    names = [file_name(cell.label) for cell in cells]
    own = [n if names.count(n) == 1 else f"{i}-{n}" for i, n in enumerate(names, 1)]
    return tuple(replace(c, output=folder / name) for c, name in zip(cells, own, strict=True))


def file_name(label: str) -> str:
    """Return a label as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_.=" else "-" for c in label)[:80]


# -- rows and what they share -------------------------------------------------------------------


def _parse_cell(options: CompareOptions, label: str, **more: Any) -> Cell:
    """Read the words of ``options`` as rows and what they share; ``more`` is as `Cell` takes it."""
    variants, shared, first = _sort(options.all_words)
    if not variants:
        raise ConfigError(
            "nothing to compare: name methods, such as `nectar compare feddm fedavg --seeds 3`."
        )
    for i, variant in enumerate(variants):
        if variant.label in [other.label for other in variants[:i]]:
            raise ConfigError(
                f"two rows are called {variant.label!r}: give them labels, such as 'mine={variant.method}'."
            )
    seeds = range(first, first + options.seeds)
    cell = Cell(options, tuple(variants), tuple(shared), seeds, label=label, **more)
    tuned = cell.tune_seeds
    if options.tune and set(seeds) & set(tuned):
        raise ConfigError(
            f"the seeds {seeds[0]} to {seeds[-1]} overlap those of the search, {tuned[0]} to {tuned[-1]}: "
            "choose another seed."
        )
    return cell


def _sort(words: Sequence[str]) -> tuple[list[Variant], list[str], int]:
    """Return the rows, what all rows share, and the first seed."""
    variants: list[Variant] = []
    experiments: list[str] = []
    settings: list[str] = []
    seed = 0
    sections = _user_sections(words)
    refuse_repeats(word for word in words if is_setting(word, sections))
    for word in words:
        variant = read_variant(word, sections)
        key, equals, value = word.partition("=")
        if variant is not None:
            variants.append(variant)
        elif key in ("method", "resume") and is_setting(word):
            raise ConfigError(
                f"{word!r}: a comparison takes methods as words without a key, and finds its records itself."
            )
        elif key == "seed":
            seed = _seed(value)
        elif equals:
            settings.append(word)
        else:
            experiments.append(word)
    if len(experiments) > 1:
        raise ConfigError(f"two experiments, {experiments[0]} and {experiments[1]}: name one.")
    return variants, [*experiments, *settings], seed


def _seed(text: str) -> int:
    value = scalar(text)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"seed={text!r} must be an integer, at least 0.")
    return value


def _user_sections(words: Collection[str]) -> set[str]:
    """Return the sections of the user's own methods among the rows in ``words``."""
    matches = [_ROW.fullmatch(word) for word in words if not is_setting(word)]
    methods = {match["method"] for match in matches if match and is_import_path(match["method"])}
    return {section(m) for m in methods if m.partition(":")[0] not in METHODS} - {*METHODS}


def _of_run(key: str) -> bool:
    return key in (*RUN_KEYS, *SHORT) or key.replace("_", "-") in PATH_KEYS


def is_setting(word: str, sections: Collection[str] = ()) -> bool:
    """Return whether a word is a ``key=value`` that all rows share: a key of the run or of one of its sections.

    ``sections`` are those of the user's own methods.
    """
    key, equals, _ = word.partition("=")
    place, dot, _ = key.partition(".")
    known = bool(dot) and place in (*SECTIONS, *METHODS, STRATEGY, *sections)
    return bool(equals) and (_of_run(key) or known)


def read_variant(word: str, sections: Collection[str] = ()) -> Variant | None:
    """Read a word as a row; None if it is a setting or an experiment's name.

    Raises
    ------
    ConfigError
        If it can only be meant as a row and is not one: an unknown method, a setting without a value.
    """
    if is_setting(word, sections):
        return None
    match = _ROW.fullmatch(word)
    if match is None:
        if (typo := _typo(word)) is not None:
            raise typo
        return None
    method, settings = match["method"], (match["own"] or "").split(",") if match["own"] else []
    if is_import_path(method) and method.partition(":")[0] in METHODS:
        raise ConfigError(
            f"{word!r}: the setting after the colon has no value, write {method}=VALUE."
        )
    label = word if match["label"] is None else match["label"].strip()
    if not label or not label.isprintable():
        raise ConfigError(f"{word!r} does not start with a printable label: write LABEL=METHOD.")
    if label in METHODS and label != method:
        raise ConfigError(
            f"{word!r} calls a row of {method} {label!r}, which is another method: choose another label."
        )
    stated = tuple(row_setting(method, setting.strip(), word) for setting in settings)
    refuse_repeats(stated)
    return Variant(label, method, stated)


def row_setting(method: str, setting: str, word: str) -> str:
    """Return ``key=value`` with the key's section: the method's own if it names none.

    Raises
    ------
    ConfigError
        If it is not ``key=value``, or its key is one that all rows share, such as the output directory.
    """
    key, equals, _ = setting.partition("=")
    if not key or not equals:
        raise ConfigError(
            f"{setting!r} in {word!r} is not key=value: a row's settings are METHOD:key=value,key=value."
        )
    if key not in _ROW_KEYS and _of_run(key):
        raise ConfigError(
            f"{key} in {word!r} applies to all rows: give it as a separate word, {key}=VALUE."
        )
    if key in _ROW_KEYS or "." in key:
        return setting
    return f"{STRATEGY if is_foreign(method) else section(method)}.{setting}"


def _typo(word: str) -> ConfigError | None:
    """Return what is wrong with a word that is not a row, and the nearest to it; None if it may be something else."""
    methods = f"methods are {', '.join(METHODS)} and any Flower strategy or user-defined method as package.module:NAME"
    head, equals, tail = word.partition("=")
    names = [name.partition(":")[0] for name in (head, tail)]
    if not equals:
        if is_experiment(word):
            return None
        hint = near(names[0], [*METHODS, *experiment_names()], several=True)
        return ConfigError(
            f"{word!r} is neither a method nor an experiment{hint}: {methods}; `nectar config --help` lists the "
            "experiments."
        )
    slips = [name for name in names if name not in METHODS and nearest(name, METHODS)]
    wrong = names[0] if ":" in head else next(iter(slips), "")
    if not wrong:
        return None
    return ConfigError(f"{wrong!r} in {word!r} is not a method{near(wrong, METHODS)}: {methods}.")


# -- a grid -------------------------------------------------------------------------------------


def _grid_axes(options: CompareOptions) -> tuple[Axis, ...]:
    axes = tuple(_grid_axis(text, options.words) for text in options.grid)
    names = [axis.name for axis in axes]
    if double := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"--grid names two settings called {double[0]}: give all values of a setting at once, and compare another "
            "of that name in separate rows."
        )
    return axes


def _grid_axis(text: str, words: Sequence[str]) -> Axis:
    key, equals, values = text.partition("=")
    key = key_of_argument(text) or key.strip()
    if not key or not equals:
        raise ConfigError(f"--grid {text}: write KEY=v1,v2,...")
    choices = choices_of(values, f"--grid {text}")
    if key in _INSTEAD:
        raise ConfigError(f"--grid {text}: {key} cannot be in a grid; {_INSTEAD[key]}.")
    if not is_setting(f"{key}=", _user_sections(words)):
        guess = meant_by(key, next((word for word in words if word in METHODS), ""))
        hint = f": did you mean {guess}?" if guess else ": `nectar config --help` lists all."
        raise ConfigError(f"--grid {text}: {key} is not a setting{hint}")
    return Axis(key, choices)


def choices_of(values: str, option: str) -> tuple[str, ...]:
    """Read comma-separated values; ConfigError naming ``option`` if one is missing or given twice."""
    choices = tuple(value.strip() for value in values.split(","))
    if "" in choices:
        raise ConfigError(f"{option}: a value is missing; write KEY=v1,v2,...")
    if len(set(choices)) < len(choices):
        raise ConfigError(f"{option}: a value is given twice.")
    return choices


def refuse_own_setting(rows: Sequence[Variant], axes: Sequence[Axis], why: str) -> None:
    """Refuse a row that itself sets what a grid or a search goes over; ConfigError."""
    for row, axis in itertools.product(rows, axes):
        if any(key_of_argument(word) == axis.key for word in row.own):
            raise ConfigError(f"{row.label!r} sets {axis.key} itself, which {why}")


# -- a paper's table ----------------------------------------------------------------------------


def _parse_table(options: CompareOptions, tables: Sequence[str]) -> ComparisonRequest:
    """Read ``table=NAME [ROW...] [COLUMN...] [LABEL=METHOD...] [key=value...]``: a cell for each column, as if typed.

    Rows and columns that are named are the only ones; without a name all are meant. A row in the form of a
    comparison's own is added to the table's. A validation share that is typed holds for the reported runs too.
    """
    if options.grid:
        raise ConfigError(f"--grid cannot be combined with {TABLE}=, which has its own columns.")
    if len(tables) > 1:
        raise ConfigError(f"two tables, {tables[0]} and {tables[1]}: name one.")
    table, small = read_paper_table(tables[0]), options.small
    if small and not table.small:
        raise ConfigError(f"{TABLE}={table.name} has no small variants: leave out --small.")
    rest = [word for word in options.all_words if key_of_argument(word) != TABLE]
    rows, columns, others = _sort_table(rest, table, small)
    typed = {key_of_argument(word) for word in others}
    refit = table.refit and _VALIDATION not in typed
    cells = []
    for label in columns:
        searches, words = [], []
        for row in (row for row in rows if label not in row.left_out):
            tuned = bool(row.tune) and (options.search or not (small or row.chosen))
            words.append(row.typed(tuned=tuned, own_rounds="rounds" not in typed))
            searches += [f"{row.label}.{k}={','.join(v)}" for k, v in row.tune.items() if tuned]
        own = replace(
            options,
            words=(*words, table.columns[label] + ENDING * small, *others),
            file=None,
            target=table.target(label) if options.target is None else options.target,
            tune=(*searches, *options.tune),
            small=False,
            search=False,
        )
        cells.append(_parse_cell(own, label, reported=(f"{_VALIDATION}=0",) * refit))
    placed = _placed(cells, options.folder)
    return ComparisonRequest(options, placed, table=replace(table, refit=refit))


def _sort_table(
    words: Sequence[str], table: PaperTable, small: bool
) -> tuple[list[TableRow], list[str], list[str]]:
    """Separate the table's rows and columns from what all share and from rows of the user's own."""
    by_label = {row.label: row for row in table.rows}
    by_name = {cell: label for label, cell in table.columns.items()}
    by_name |= {label: label for label in table.columns}
    rows: list[TableRow] = []
    columns: list[str] = []
    others: list[str] = []
    for word in words:
        if word in by_label:
            rows.append(by_label[word])
        elif (name := word.removesuffix(ENDING)) in by_name:
            columns.append(by_name[name])
        elif "=" in word:
            others.append(word)
        else:
            guess = near(word, [*by_label, *by_name], several=True)
            listed = f": rows are {', '.join(by_label)}; columns are {', '.join(table.columns)}"
            raise ConfigError(
                f"{word!r} is neither a row nor a column of {TABLE}={table.name}{guess or listed}."
            )
    rows = rows or [row for row in table.rows if row.small or not small]
    return rows, list(dict.fromkeys(columns or table.columns)), others
