"""The page's table of what is believed is what the strategies say."""

from __future__ import annotations

import believed


def test_the_table_is_made_from_the_code() -> None:
    page = believed.PAGE.read_text(encoding="utf-8")
    assert page.count(believed.BEGIN) == page.count(believed.END) == 1
    assert believed.replaced(page) == page


def test_every_method_that_sends_something_has_a_row() -> None:
    named = {m for line in believed.table().splitlines() for m in line.split("|")[1].split()}
    assert {f"`{method}`" for method in believed.METHODS} - named == {"`central`"}
