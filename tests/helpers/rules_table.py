"""What of each part of a reply is believed, method by method: the table of docs/robustness.md, made from the code.

    python tests/helpers/rules_table.py

writes it into the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from common.config.loading import load
from common.division import Division
from common.methods import METHODS
from common.specs.fedssyn import INNER
from strategies.base import strategy_class
from strategies.exchange.rules import Rule

PAGE = Path(__file__).parents[2] / "docs" / "robustness.md"
BEGIN, END = "<!-- believed: written by tests/helpers/rules_table.py -->\n", "<!-- /believed -->\n"

_HEAD = "| method | part | what bounds it | who meets it next | where it stays |\n|---|---|---|---|---|\n"


def table() -> str:
    """Return the table: a row for each kind of part, with all methods that have it."""
    rows: dict[tuple[str, Rule], list[str]] = {}
    for method in METHODS:
        strategy = strategy_class(method)(Division(load({"method": method})).run)
        for part, bound in strategy.validation_rules().items():
            words = Rule(bound.reason, bound.used_by, bound.stored_in)
            rows.setdefault((_named(part, bound), words), []).append(method)
    return _HEAD + "".join(
        f"| {' '.join(f'`{m}`' for m in dict.fromkeys(methods))} | {part} | {b.reason} | {b.used_by} | "
        f"{b.stored_in} |\n"
        for (part, b), methods in rows.items()
    )


def _named(part: str, bound: Rule) -> str:
    last = part.rpartition("/")[2]
    if last not in ("", "weights", INNER):
        return f"`{last}`"
    return "images" if "real images" in bound.reason else "model or update"


def replaced(page: str) -> str:
    """Return the page with the table as it is now."""
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}",
        lambda _: BEGIN + table() + END,
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
