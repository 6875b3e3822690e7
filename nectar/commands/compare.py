"""`nectar compare`: compare several methods over several seeds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Any, get_type_hints

import click

from common.errors import ConfigError, NectarError
from nectar.command_line import command
from nectar.comparison.listing import listing
from nectar.comparison.request import OPTIONS, CompareOptions, option_name, parse
from nectar.engines.flower.app import project
from nectar.engines.processes import Interrupted, until_interrupted
from nectar.options import complete, config_file_option

HELP = """\
Runs each METHOD with each seed. Finished runs in the output directory are reused, unfinished ones continued: a run is
identified by its resolved configuration and the source code that its results depend on.

A row is a METHOD, or a Flower strategy as package.module:Class. METHOD:key=value,... sets it for this row (a key
without a section is the method's); LABEL=METHOD... names the row, in quotes if the name has spaces. A key=value by
itself applies to all rows; seed=S is the first seed.

With --grid the table has a column for each value, or each combination of values.

With table=NAME the rows and columns are those of a paper's table, tuned as it states; name columns to run only those.
Our numbers are shown next to the paper's. `nectar config --help` lists tables and columns.

\b
nectar compare feddm fedavg --seeds 3
nectar compare feddm 'from real=feddm:start=real,warm=off' \\
  real:redraw=on partition.alpha=0.01
nectar compare feddm fedavg feddm-mnist-small --tune fedavg.lr=0.03,0.1,0.3
nectar compare feddm fedavg --grid partition.alpha=0.1,1 \\
  --grid dataset=digits,mnist
nectar compare table=feddm-2 --small mnist-alpha0.1
nectar compare --list cifar10
"""

_INCOMPLETE = 1


def _options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of `CompareOptions`, which the library takes too."""
    kinds = get_type_hints(CompareOptions)
    for name, (metavar, help, least) in reversed(OPTIONS.items()):
        default = getattr(CompareOptions, name)
        kind: Any = click.IntRange(min=least) if least is not None else float
        function = click.option(
            option_name(name),
            metavar=metavar or None,
            help=help,
            default=None if isinstance(default, tuple) else default,
            type=kind if kinds[name] in (int, float | None) else None,
            multiple=isinstance(default, tuple),
            is_flag=default is False,
            show_default=bool(least),
        )(function)
    return function


@command(HELP)
@click.pass_context
@click.argument(
    "words",
    nargs=-1,
    metavar="METHOD...|table=NAME [ROW|COLUMN]... [EXPERIMENT] [KEY=VALUE]...",
    help="the rows, and settings as in Hydra",
    shell_complete=complete,
)
@config_file_option
@_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="list cached runs, and the rounds and disk space that the others need; run nothing",
)
@click.option(
    "--list",
    "listed",
    is_flag=True,
    help="list the papers' tables, their experiments and the command for each; words select lines",
)
@click.option(
    "--only",
    metavar="K/N",
    default="",
    help="run the K-th of N parts of the comparison, and write no tables",
)
@click.option(
    "--print",
    "show",
    is_flag=True,
    help="print one command per run, for a job array; run nothing",
)
def main(
    ctx: click.Context,
    words: tuple[str, ...],
    config_file: str | None,
    dry_run: bool,
    listed: bool,
    only: str,
    show: bool,
    **given: Any,
) -> int:
    """Run a comparison; return 0, 1 if a run failed, or 128 + n if signal n ended it."""
    if listed:
        print(listing(*words))
        return 0
    typed = shlex.join(["nectar", *ctx.obj])
    options = CompareOptions(words, config_file, **given, typed=typed)
    request = parse(options)
    project()  # raises if no run can be started
    from nectar.comparison.comparison import Comparison, commands, parse_shard, shard
    from nectar.comparison.dry_run import dry_run as describe
    from nectar.comparison.dry_run import uncounted

    try:
        comparison = Comparison(request, _complain if show else _say)
    except ConfigError:
        raise
    except NectarError:  # no data set is available; each column's error has been printed
        if not dry_run or not (request.axes or request.table):
            raise
        _say(uncounted(request.cells))
        return _INCOMPLETE
    runs = shard(comparison, *parse_shard(only)) if only else []
    if show or dry_run:
        for line in [commands(comparison)] if show else describe(comparison):
            _say(line)
        if left_out := comparison.count_of_left_out:
            (_complain if show else _say)(left_out)
        return _INCOMPLETE if left_out else 0

    def carried_out() -> int:
        if only:  # no table is written: the others' runs may be missing
            scheduler = comparison.scheduler()
            scheduler.carry_out(runs)
            return _INCOMPLETE if scheduler.failures else 0
        results = comparison.carry_out()
        print(f"\n{results.table}\n\nTables and plots: {results.directory}")
        if left_out := comparison.count_of_left_out:
            _say(left_out)
        return _INCOMPLETE if results.failures else 0

    try:
        return until_interrupted(carried_out)
    except Interrupted as interrupted:
        _say(f"Interrupted ({interrupted.name}). Repeat the command to continue.")
        return 128 + interrupted.number


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _complain(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
