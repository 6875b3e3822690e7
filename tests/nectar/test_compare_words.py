"""How a comparison is asked for: rows, what they share, searches; and every sentence for what is none."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from comparing import options_of

from nectar.comparison.request import Cell, CompareOptions, Variant, parse, read_variant
from nectar.comparison.tuning import Search, searches_of

ADAM = "flwr.serverapp.strategy:FedAdam"


def cell(*words: str, **options: Any) -> Cell:
    """Return the comparison that is asked for."""
    return parse(CompareOptions(words, **options)).cells[0]


def searches(*words: str, tune: Sequence[str]) -> list[Search]:
    return searches_of(cell(*words, tune=tuple(tune)))


@pytest.mark.parametrize(
    ("word", "label", "method", "own"),
    [
        ("feddm", "feddm", "feddm", ()),
        ("real:redraw=on", "real:redraw=on", "real", ("real.redraw=on",)),
        ("again=feddm", "again", "feddm", ()),
        (
            "from real=feddm:warm=off, start=real",
            "from real",
            "feddm",
            ("feddm.warm=off", "feddm.start=real"),
        ),
        ("A: b=feddm", "A: b", "feddm", ()),
        ("T=0=feddm:iterations=0", "T=0", "feddm", ("feddm.iterations=0",)),
        ("feddm:start=real", "feddm:start=real", "feddm", ("feddm.start=real",)),
        ("u8=feddm:wire.images=uint8", "u8", "feddm", ("wire.images=uint8",)),
        (ADAM, ADAM, ADAM, ()),
        (
            f"adam={ADAM}:eta=0.03,fedavg.lr=0.1",
            "adam",
            ADAM,
            ("strategy.eta=0.03", "fedavg.lr=0.1"),
        ),
    ],
)
def test_a_row_is_read(word: str, label: str, method: str, own: tuple[str, ...]) -> None:
    assert read_variant(word) == Variant(label, method, own)


@pytest.mark.parametrize(
    "word",
    [
        "rounds=2",
        "feddm.ipc=3",
        "compute.device=cuda:0",
        "output_dir=/a:b=feddm",
        "digits-alpha001",
    ],
)
def test_what_all_rows_share_is_no_row(word: str) -> None:
    assert read_variant(word) is None


def test_the_words_of_a_run() -> None:
    words = ("rounds=2", "feddm:ipc=3", "digits-alpha001", "seed=5", "feddm.ipc=9")
    request = cell(*words, seeds=2)
    assert request.words(request.variants[0], 6) == [
        "digits-alpha001",
        "rounds=2",
        "method=feddm",
        "feddm.ipc=3",
        "seed=6",
    ]
    assert list(request.seeds) == [5, 6]


def test_a_search_is_a_product_and_is_for_all_rows_of_the_method() -> None:
    tune = ("fedavg.lr=0.1,1", "fedavg.wire.weights=float16,float32")
    (search,) = searches("fedavg", "m=fedavg:momentum=0.9", "feddm", tune=tune)
    assert search.labels == ("fedavg", "m")
    assert search.base == Variant("fedavg", "fedavg")
    assert search.grid() == [
        ("fedavg.lr=0.1", "wire.weights=float16"),
        ("fedavg.lr=0.1", "wire.weights=float32"),
        ("fedavg.lr=1", "wire.weights=float16"),
        ("fedavg.lr=1", "wire.weights=float32"),
    ]


def test_a_search_for_a_row_is_for_it_alone_and_begins_from_it() -> None:
    tune = ("m.lr=0.1,1", "fedavg.epochs=1,2")
    own, rest = searches("fedavg", "m=fedavg:momentum=0.9", tune=tune)
    assert (own.labels, own.base.own) == (("m",), ("fedavg.momentum=0.9",))
    assert (rest.labels, rest.axes[0].key) == (("fedavg",), "fedavg.epochs")
    (strange,) = searches(f"a={ADAM}", tune=["a.eta=0.1,1"])
    assert strange.axes[0].key == "strategy.eta"


def test_the_line_of_options_asks_for_the_same() -> None:
    rows = ("a row=fedavg:lr=0.1", "feddyn", "rounds=2")
    several = {"tune": ("fedavg.lr=1,2", "feddyn.lr=1"), "grid": ("dataset=digits,mnist",)}
    options = CompareOptions(
        rows, seeds=2, target=0.5, alone=True, output="a folder", tune_seeds=1, **several
    )
    again = options_of(shlex.split(options.line)[2:])
    assert replace(again, typed="") == options
    assert "rounds=2 --config my.yaml --seeds 2" in replace(options, file="my.yaml").line
