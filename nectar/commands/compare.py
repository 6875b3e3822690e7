"""`nectar compare`: several methods over several seeds, side by side."""

from __future__ import annotations

import inspect
import shlex
import sys
from typing import Annotated, Any, get_type_hints

import typer

from common.errors import ConfigError, NectarError
from nectar.arguments import ConfigFile, argument, completions, flag, option
from nectar.comparison.request import OPTIONS, CompareOptions, option_name, parse
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
    **given: Any,
) -> int:
    """Compare what the words name; return 0, 1 if a run failed, or 128 + n if signal n ended it."""
    own: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in given.items()
    }
    typed = shlex.join(["nectar", *ctx.obj])
    options = CompareOptions(tuple(words or ()), config_file, **own, typed=typed)
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
        _say(f"Interrupted ({interrupted.name}). The same command goes on from here.")
        return 128 + interrupted.number


def _signature() -> inspect.Signature:
    """Return `main`'s parameters with those of `OPTIONS` among them, as typer reads them."""
    kinds = get_type_hints(CompareOptions) | {"output": str | None}
    parameters = []
    for name, (metavar, message, least) in OPTIONS.items():
        default, kind = getattr(CompareOptions, name), kinds[name]
        if isinstance(default, tuple):
            default, kind = [], list[str]
        own = typer.Option(
            option_name(name),
            metavar=metavar or None,
            help=message,
            min=least,
            show_default=bool(least),
        )
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, own])
        )
    written = inspect.signature(main, eval_str=True).parameters.values()
    first = [one.replace(kind=keyword) for one in written][:-1]
    return inspect.Signature([*first[:3], *parameters, *first[3:]])


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _complain(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


main.__signature__ = _signature()  # type: ignore[attr-defined]
