"""The pages of docs/reference are what the code gives, and so is the drawing of what leaves a site."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks import diagrams, reference
from benchmarks.reference import PAGES, PLACE, code, page, prose, table
from client_app.owner.node_config import KEYS
from common.config.layers import names
from common.config.tables import TABLE
from common.methods import METHODS
from common.settings.sections import SECTIONS
from nectar.command_line import SUMMARIES

BY_HAND = {"glossary.md"}


@pytest.mark.sweep
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_gives(name: str) -> None:
    assert (PLACE / name).read_text(encoding="utf-8") == page(name), (
        "run `python -m benchmarks.reference`"
    )


def test_the_drawing_is_what_the_code_gives() -> None:
    drawn = diagrams.leaves()
    ElementTree.fromstring(drawn)
    assert diagrams.PLACE.read_text(encoding="utf-8") == drawn, (
        "run `python -m benchmarks.diagrams`"
    )


def test_every_method_is_drawn_among_what_leaves_a_site() -> None:
    shown = set(re.findall(r"[a-z0-9]+", re.sub(r"<[^>]*>", " ", diagrams.leaves())))
    assert set(METHODS) <= shown


def test_there_is_no_other_page() -> None:
    assert {path.name for path in PLACE.glob("*.md")} == {*PAGES, *BY_HAND}


def test_everything_has_its_place() -> None:
    """Counted from the registries, not from what the pages go through."""
    written = {name: (PLACE / name).read_text(encoding="utf-8") for name in PAGES}
    for name in ("run", *SECTIONS, *METHODS):
        assert f"\n### {name}\n" in written["settings.md"]
    for name in SUMMARIES:
        assert f"\n### nectar {name}\n" in written["commands.md"]
    assert written["methods.md"].count("](settings.md#") == len(METHODS)
    for name in names("dataset"):
        assert f"\n### {name}\n" in written["data-sets.md"]
    for name in names(TABLE):
        assert f"\n## {name}\n" in written["tables.md"]
    shown = [key for key, field in KEYS.items() if not field.exclude]
    assert all(f"\n| `{key}=" in written["node-config.md"] for key in shown)


def test_what_leaves_a_site_has_a_row_for_each_method_and_each_start_that_changes_it() -> None:
    """Worked out by hand: of whole rows only what a reader must not miss."""
    _, _, rest = (PLACE / "methods.md").read_text(encoding="utf-8").partition("## What leaves a")
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in rest.partition("## What leaves by")[0].splitlines()
        if (cells := line.strip("|").split("|"))[0].startswith(" `")
    }
    assert {name.split()[0].strip("`") for name in rows} == set(METHODS)
    assert rows["`feddm`"][:4] == ["synthetic images", "noise", "labels", "covered"]
    for start in ("real", "mix:4"):
        assert rows[f"`feddm` `feddm.start={start}`"][1:4] == ["real examples", "labels", "refused"]
    assert rows["`real`"][:4] == ["real images", "real examples", "examples, labels", "refused"]
    assert rows["`fedavg`"][2:6] == ["update", "covered", "with noise", "yes"]
    assert rows["`fedmix`"][2:4] == ["labels, update", "refused"]
    assert rows["`server`"] == ["nothing", *[""] * 6]


def test_a_setting_of_the_default_run_shows_both_values() -> None:
    text = reference.settings()
    assert "| `iterations` | `1000` (digits: `100`) | matching steps " in text
    assert "### fedprox" in text
    assert "Also the settings of [`fedavg`](#fedavg)" in text.partition("### fedprox")[2]


def test_text_of_the_code_is_no_markup() -> None:
    assert prose("``a<b>`` and <class>/* lie") == r"`a<b>` and \<class>/\* lie"
    assert code("") == ""
    assert code(True) == "`true`"
    assert table(("a", "b"), [("x|y", "")]) == "| a | b |\n| --- | --- |\n| x\\|y | |"
