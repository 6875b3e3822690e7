"""`nectar compare`: several methods over several seeds, side by side."""

from __future__ import annotations

import shlex
import sys

import click

from common.errors import ConfigError, NectarError
from nectar.command_line import command
from nectar.comparison.listing import listing
from nectar.comparison.request import SEEDS, TUNE_SEEDS, CompareOptions, parse
from nectar.engines.flower.app import project
from nectar.engines.processes import until_interrupted
from nectar.options import complete, config_file_option

HELP = """\
Runs each METHOD with each seed, except for what the output directory already holds: a run is found by its resolved
configuration and the source that decides its numbers, and continued if it broke off.

A row is a METHOD, or a Flower strategy as package.module:Class; METHOD:key=value,... gives it settings of its own (a
key without a section is the method's); LABEL=METHOD... names it, in quotes if the name has spaces. A key=value of its
own is for all rows; seed=S is the first seed.

With --grid the rows are compared for each value, or each combination of values; they are the rows of a table whose
columns are the combinations.

With table=NAME the rows are a paper's table's, tuned as it says, in each of its columns, or those that are named; our
numbers stand beside the paper's. `nectar config --help` lists tables and columns.

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


@command(HELP)
@click.pass_context
@click.argument(
    "words",
    metavar="METHOD...|table=NAME [ROW|COLUMN]... [EXPERIMENT] [KEY=VALUE]...",
    help="the rows, and settings as in Hydra",
    nargs=-1,
    shell_complete=complete,
)
@config_file_option
@click.option(
    "--seeds",
    metavar="N",
    type=click.IntRange(min=1),
    default=SEEDS,
    show_default=True,
    help="seeds S to S+N-1, S from seed=",
)
@click.option(
    "--target",
    metavar="A",
    type=float,
    help="count rounds and bytes up to accuracy A (default: 0.9 of the best row's)",
)
@click.option(
    "--jobs",
    metavar="J",
    type=click.IntRange(min=0),
    default=0,
    help="runs at a time (default: as many as the cores allow)",
)
@click.option(
    "--alone",
    is_flag=True,
    help="one run at a time, again where a run was not alone: for the seconds",
)
@click.option(
    "--output",
    metavar="DIR",
    help="where tables and plots go (default: compare-... in the output directory)",
)
@click.option(
    "--tune",
    metavar="ROW.key=v1,v2,...",
    multiple=True,
    help="search a method's or a row's setting on the validation set; several make a grid",
)
@click.option(
    "--tune-seeds",
    metavar="N",
    type=click.IntRange(min=1),
    default=TUNE_SEEDS,
    show_default=True,
    help="seeds of the search, 1000 and on",
)
@click.option(
    "--grid",
    metavar="KEY=v1,v2,...",
    multiple=True,
    help="compare for each value of a setting or of dataset, rounds; several make a grid",
)
@click.option(
    "--dry-run",
    "dry_run",
    is_flag=True,
    help="say which runs are there, and how many rounds and how much room the others take; run nothing",
)
@click.option(
    "--list",
    "listed",
    is_flag=True,
    help="list the papers' tables, their experiments and what makes each; words select lines",
)
@click.option(
    "--only",
    metavar="K/N",
    default="",
    help="carry out the K-th of N shares of the runs, and write no tables",
)
@click.option(
    "--print",
    "show",
    is_flag=True,
    help="print a command for each run, a line each, for a job array; run nothing",
)
@click.option(
    "--small",
    is_flag=True,
    help="a table's variants of two-core size, with the settings stated there instead of searches",
)
@click.option(
    "--search",
    is_flag=True,
    help="search what the table states is tuned, also in place of what was chosen before",
)
def main(
    ctx: click.Context,
    words: tuple[str, ...],
    config_file: str | None,
    seeds: int,
    target: float | None,
    jobs: int,
    alone: bool,
    output: str | None,
    tune: tuple[str, ...],
    tune_seeds: int,
    grid: tuple[str, ...],
    dry_run: bool,
    listed: bool,
    only: str,
    show: bool,
    small: bool,
    search: bool,
) -> int:
    """Compare what the words name; return 0, 1 if a run failed, or 128 + n if signal n ended it."""
    if listed:
        print(listing(*words))
        return 0
    options = CompareOptions(
        words=words,
        file=config_file,
        seeds=seeds,
        target=target,
        jobs=jobs,
        alone=alone,
        output=output,
        tune=tune,
        tune_seeds=tune_seeds,
        grid=grid,
        small=small,
        search=search,
        typed=shlex.join(["nectar", *ctx.obj]),
    )
    request = parse(options)
    project()  # without which no run can be started
    from nectar.comparison.comparison import Comparison, commands, parse_shard, shard
    from nectar.comparison.dry_run import dry_run as describe
    from nectar.comparison.dry_run import uncounted

    try:
        comparison = Comparison(request, _complain if show else _say)
    except ConfigError:
        raise
    except NectarError:  # no data set is here, which has been said of each column
        if not dry_run or not (request.axes or request.table):
            raise
        _say(uncounted(request.cells))
        return _INCOMPLETE
    runs = shard(comparison, *parse_shard(only)) if only else []
    if show or dry_run:
        for line in [commands(comparison, ctx.obj)] if show else describe(comparison):
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

    code, interrupted = until_interrupted(carried_out)
    if interrupted is not None:
        _say(f"Interrupted ({interrupted.name}). The same command goes on from here.")
        return 128 + interrupted.number
    return code or 0


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _complain(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
