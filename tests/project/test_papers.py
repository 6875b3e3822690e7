"""``conf/papers.yaml``: every figure and table of the papers is there once, and what makes it can be asked for."""

from __future__ import annotations

import shlex
from collections import Counter

import pytest
from comparing import options_of
from places import ROOT

from common.config.layers import names
from common.config.loading import load
from common.config.tables import TABLE
from nectar.arguments import parse_arguments
from nectar.comparison.listing import PaperItem, listing, paper_items
from nectar.comparison.request import parse

#: figures and tables, counted in the papers' texts by their captions; FedSynth's one table has no number
COUNTED = {
    "FedDM": (17, 4),
    "FedSynth": (0, 1),
    "FedDGM": (12, 4),
    "Fedssyn": (16, 4),  # 6 and A.1 to A.10; 1, 2, A.1 and A.2
    "FedDPMS": (6, 6),
}
ITEMS = list(paper_items())


def test_every_figure_and_table_is_listed_once() -> None:
    for paper, (figures, tables) in COUNTED.items():
        own = [one.item for one in ITEMS if one.paper == paper]
        kinds = Counter(item.split()[0] for item in own)
        assert (kinds["Figure"], kinds["Table"] + kinds["The"]) == (figures, tables), paper
        for kind, count in (("Figure", figures), ("Table", tables)):
            parts = [item.partition(f"{kind} ")[2] for item in own if item.startswith(f"{kind} ")]
            plain = [part for part in parts if part.isdigit()]
            appended = [f"A.{n + 1}" for n in range(len(parts) - len(plain))]
            assert parts == [str(n + 1) for n in range(len(plain))] + appended, (paper, kind, count)
    assert len({(one.paper, one.item) for one in ITEMS}) == len(ITEMS) == 70
    assert {one.paper for one in ITEMS} == set(COUNTED)


@pytest.mark.sweep
@pytest.mark.parametrize("one", ITEMS, ids=lambda one: f"{one.paper} {one.item}")
def test_its_command_can_be_asked_for_or_a_reason_is_there(one: PaperItem) -> None:
    assert bool(one.command) != bool(one.reason)
    if not one.command:
        return
    program, first, *words = shlex.split(one.command)
    if program == "python":
        assert (ROOT / first).is_file()
    elif first == "compare":
        assert parse(options_of(words)).cells
    else:
        assert (program, first) == ("nectar", "run")
        load(parse_arguments(words))


def test_every_table_of_a_paper_makes_one_of_its_figures_or_tables() -> None:
    papers = {paper.casefold() for paper in COUNTED}
    said = " ".join(one.line for one in ITEMS) + " "
    for name in names(TABLE):
        if name.partition("-")[0] in papers:
            assert f"{TABLE}={name} " in said.replace(")", " ").replace(",", " "), name


@pytest.mark.extended
def test_they_are_printed_and_can_be_filtered() -> None:
    assert all(one.line in listing() for one in ITEMS)
    assert listing("fedssyn,", "a.10").strip().startswith("Fedssyn, Figure A.10: nectar run")
