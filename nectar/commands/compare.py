"""`nectar compare`: several methods over several seeds, side by side."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from common.errors import ConfigError, NectarError
from nectar.arguments import ConfigFile, argument, completions, flag, option
from nectar.comparison.request import SEEDS, TUNE_SEEDS, CompareOptions, parse
from nectar.engines.flower.app import project
from nectar.engines.processes import Interrupted, until_interrupted

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
"""

_INCOMPLETE = 1


def main(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        argument(
            "METHOD...|table=NAME [ROW|COLUMN]... [EXPERIMENT] [KEY=VALUE]...",
            "the rows, and settings as in Hydra",
            autocompletion=completions,
        ),
    ] = None,
    config_file: ConfigFile = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="seeds S to S+N-1, S from seed=")
    ] = SEEDS,
    target: Annotated[
        float | None,
        option("A", "count rounds and bytes up to accuracy A (default: 0.9 of the best row's)"),
    ] = None,
    jobs: Annotated[
        int, option("J", "runs at a time (default: as many as the cores allow)", min=0)
    ] = 0,
    alone: Annotated[
        bool,
        flag("--alone", "one run at a time, again where a run was not alone: for the seconds"),
    ] = False,
    output: Annotated[
        str | None,
        option("DIR", "where tables and plots go (default: compare-... in the output directory)"),
    ] = None,
    tune: Annotated[
        list[str] | None,
        option(
            "ROW.key=v1,v2,...",
            "search a method's or a row's setting on the validation set; several make a grid",
        ),
    ] = None,
    tune_seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="seeds of the search, 1000 and on")
    ] = TUNE_SEEDS,
    grid: Annotated[
        list[str] | None,
        option(
            "KEY=v1,v2,...",
            "compare for each value of a setting or of dataset, rounds; several make a grid",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        flag(
            "--dry-run",
            "say which runs are there, and how many rounds and how much room the others take; run nothing",
        ),
    ] = False,
    only: Annotated[
        str,
        option("K/N", "carry out the K-th of N shares of the runs, and write no tables"),
    ] = "",
    show: Annotated[
        bool,
        flag("--print", "print a command for each run, a line each, for a job array; run nothing"),
    ] = False,
    small: Annotated[
        bool,
        flag(
            "--small",
            "a table's variants of two-core size, with the settings stated there instead of searches",
        ),
    ] = False,
    search: Annotated[
        bool,
        flag(
            "--search",
            "search what the table states is tuned, also in place of what was chosen before",
        ),
    ] = False,
) -> int:
    """Compare what the words name; return 0, 1 if a run failed, or 128 + n if signal n ended it."""
    options = CompareOptions(
        words=tuple(words or ()),
        file=config_file,
        seeds=seeds,
        target=target,
        jobs=jobs,
        alone=alone,
        output=output,
        tune=tuple(tune or ()),
        tune_seeds=tune_seeds,
        grid=tuple(grid or ()),
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

    try:
        return until_interrupted(carried_out)
    except Interrupted as interrupted:
        _say(f"Interrupted ({interrupted.name}). The same command goes on from here.")
        return 128 + interrupted.number


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _complain(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
