"""A method's file drags in what a method needs: no reader of data sets, loader of settings or accountant."""

from __future__ import annotations

from closures import closure

from common.code.import_closure import Sources


def test_scaffolds_strategy_reaches_at_most_ninety_files_and_ten_thousand_lines() -> None:
    files, lines = closure("strategies.scaffold")
    assert files <= 90
    assert lines <= 10_000


def test_no_strategy_but_central_reaches_a_reader_of_data_sets() -> None:
    sources = Sources()
    for module in ("strategies.scaffold", "strategies.fedssyn", "strategies.feddm"):
        found = sources.closure([module], windows=True)
        readers = {name for name in found if name.startswith("common.data.")}
        if module != "strategies.fedssyn":  # which trains as central does where it stands around it
            assert readers == set()
