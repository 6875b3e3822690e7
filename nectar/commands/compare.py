"""`nectar compare`: several methods over several seeds, side by side."""

from __future__ import annotations

from nectar.comparison.request import parse
from nectar.comparison.table_request import TableRequest, asks_for_table, parse_table
from nectar.engines.flower.app import project
from nectar.engines.interrupt import Interrupted, Interrupts

HELP = """\
Usage: nectar compare METHOD... [EXPERIMENT] [key=value ...] [--seeds N] [options]
       nectar compare table=NAME [ROW...] [COLUMN...] [key=value ...] [--small] [--search] [options]

Runs each METHOD with each seed, except for what the output directory already holds: a run is found
by its resolved configuration and the source that decides its numbers, and continued if it broke off.

  METHOD               a method, or a Flower strategy as package.module:Class
  METHOD:key=value,... with settings of this row alone; a key without a section is the method's
  LABEL=METHOD...      the row's name, in quotes if it has spaces
  key=value            for all rows; seed=S is the first seed

  table=NAME           a paper's table: its rows, tuned as it says, in each of its columns, or in those that are named;
                       our numbers stand beside the paper's. `nectar config --help` lists tables and columns
  --small              its variants of two-core size, with the settings stated there instead of searches
  --search             search, where the table states what is tuned, also in place of what was chosen before

  --config FILE        a YAML file of settings for all rows, by section, or what `nectar config` printed
  --seeds N            seeds S to S+N-1 (default: 3)
  --target A           count rounds and bytes up to accuracy A (default: 0.9 of the best row's)
  --jobs J             runs at a time (default: as many as the cores allow)
  --alone              one run at a time, again where a run was not alone: for the seconds
  --output DIR         where tables and plots go (default: compare-... in the output directory)
  --tune METHOD.key=v1,v2,...
                       search a method's or a row's setting on the validation set; several make a grid
  --tune-seeds N       seeds of the search, 1000 and on (default: 2)

  nectar compare feddm fedavg --seeds 3
  nectar compare feddm 'from real=feddm:start=real,warm=off' real:redraw=on partition.alpha=0.01
  nectar compare feddm fedavg feddm-mnist-small --tune fedavg.lr=0.03,0.1,0.3
  nectar compare table=feddm-2 --small mnist-alpha0.1
"""

CONTEXT = {"ignore_unknown_options": True}

_INCOMPLETE = 1


def main(words: list[str]) -> int:
    """Compare what ``words`` name; return 0, 1 if a run failed, or 128 + n if signal n ended it."""
    request = parse_table(words) if asks_for_table(words) else parse(words)
    project()  # without which no run can be started
    from nectar.comparison.comparison import Comparison
    from nectar.comparison.table_comparison import TableComparison
    from nectar.comparison.tables import Results, terminal

    comparison: Comparison | TableComparison
    if isinstance(request, TableRequest):
        comparison = TableComparison(request, _say)
    else:
        comparison = Comparison(request, words, _say)
    interrupts = Interrupts()
    try:
        with interrupts:
            results = comparison.carry_out()
    except Interrupted as interrupted:
        _say(f"Interrupted ({interrupted.name}). The same command goes on from here.")
        return 128 + interrupted.number
    finally:
        interrupts.restore()
    shown = terminal(results) if isinstance(results, Results) else results.terminal()
    print(f"\n{shown}\n\nTables and plots: {comparison.output}")
    return _INCOMPLETE if results.failures else 0


def _say(sentence: str) -> None:
    print(sentence, flush=True)
