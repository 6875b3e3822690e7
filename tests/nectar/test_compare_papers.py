"""`nectar compare table=NAME`: a paper's table, column by column, and our numbers beside those it prints."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from comparing import options_of
from federation import run
from places import ROOT
from small import SMALL

import nectar
from common.config import layers as layers_module
from common.config.loading import load
from nectar.arguments import parse_arguments
from nectar.cli import main
from nectar.comparison import scheduler as scheduling
from nectar.comparison.request import Cell, Variant, parse
from server_app.record import Record

TINY = f"""
# A table for tests.
name: t
base: {{rounds: 2, {", ".join(word.replace("=", ": ") for word in SMALL.split())}}}
small: {{rounds: 1}}
columns:
  - wide: {{}}
    deep: {{model.depth: 1}}
rows:
  feddm:
  afresh: {{run: "real:redraw=on", except: [deep]}}
  fedavg: {{tune: {{lr: [0.1, 0.3]}}, chosen: {{lr: 0.3}}, rounds: 1}}
printed:
  - source: Table 1
    figure: accuracy
    columns:
      wide: {{feddm: 69.66 ± 0.13, afresh: drawn, fedavg: 66.0 (a misprint)}}
      deep: drawn
  - source: Table 2
    figure: accuracy
    network: mlp
    columns: {{wide: {{feddm: 1}}, deep: {{feddm: 2}}}}
  - source: Table 3
    figure: floats
    columns: {{wide: {{feddm: 384}}, deep: {{feddm: 384}}}}
  - source: Table 4
    figure: rounds
    columns:
      wide: {{target: 0.01, feddm: 4, afresh: 5, fedavg: ">100"}}
      deep: {{target: 0.999, feddm: 4, fedavg: 3}}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a table of the name t, and no other; a run may be found and never started."""
    shutil.copytree(ROOT / "conf" / "dataset", tmp_path / "conf" / "dataset")
    (tmp_path / "conf" / "table").mkdir()
    (tmp_path / "conf" / "table" / "t.yaml").write_text(TINY.lstrip())
    monkeypatch.setattr(layers_module, "CONF", tmp_path / "conf")
    monkeypatch.setattr(scheduling, "_start", None)


def columns_of(words: Sequence[str]) -> dict[str, Cell]:
    """Return the comparison of each column."""
    return {cell.label: cell for cell in parse(options_of(words)).cells}


def records(tmp_path: Path, *columns: str, seeds: int = 2) -> dict[tuple[str, str, int], Record]:
    """Run every row of the columns, as the comparison would."""
    words = ["table=t", *columns, "--seeds", str(seeds), f"output-dir={tmp_path / 'runs'}"]
    done = {}
    for label, request in columns_of(words).items():
        for variant in request.variants:
            for seed in range(seeds):
                words = parse_arguments(request.words(variant, seed))
                done[label, variant.label, seed] = run(words)
    return done


def test_our_numbers_stand_beside_the_papers(tiny: None, tmp_path: Path) -> None:
    done = records(tmp_path)
    accuracies = {
        key: 100 * record.metrics()[-1]["test"]["accuracy"] for key, record in done.items()
    }
    out = tmp_path / "out"
    places = {"output_dir": tmp_path / "runs", "output": out}
    result = nectar.compare(table="t", seeds=2, progress=False, **places)
    assert result.failures == ()
    assert list(result.columns) == ["wide", "deep"]
    with (out / "table.csv").open(newline="") as file:
        lines = {(x["source"], x["column"], x["row"]): x for x in csv.DictReader(file)}
    for (column, row, seed), accuracy in accuracies.items():
        if seed == 0:
            mean = (accuracy + accuracies[column, row, 1]) / 2
            assert lines["Table 1", column, row]["ours"].startswith(f"{mean:.2f} ± "), row
    wide = lines["Table 1", "wide", "feddm"]
    assert (wide["printed"], lines["Table 1", "wide", "fedavg"]["note"]) == (
        "69.66 ± 0.13",
        "a misprint",
    )
    assert lines["Table 2", "wide", "feddm"]["ours"] == "", "no run judged that network"
    sent = [
        record.metrics()[1]["floats_up"]
        for key, record in done.items()
        if key[:2] == ("wide", "feddm")
    ]
    assert lines["Table 3", "wide", "feddm"]["ours"] == f"{sum(sent) / 2:.0f}"
    assert lines["Table 4", "wide, 0.01", "feddm"]["ours"] == "0", (
        "round 0 is above one in a hundred"
    )
    assert lines["Table 4", "deep, 0.999", "feddm"]["ours"] == ">2"
    assert lines["Table 4", "deep, 0.999", "fedavg"]["ours"] == ">1", "it has rounds of its own"
    assert ("Table 1", "deep", "afresh") not in lines
    assert "deep, 0.999  fedavg    >1        3" in result.table
    assert "wide, fedavg: a misprint." in result.table
    assert (out / "wide" / "table.md").is_file()
    assert f"- wide: {out / 'wide'}" in (out / "table.md").read_text()


def test_one_column_and_one_row_of_it(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the column's label or its cell's name; another choice has files of its own."""
    records(tmp_path, "deep", seeds=1)
    shared = ["--seeds", "1", f"output-dir={tmp_path / 'runs'}"]
    places = []
    for words in (["deep"], ["t-deep"], ["deep", "fedavg"]):
        assert main(["compare", "table=t", *words, *shared]) == 0
        message = capsys.readouterr().out
        assert "Column deep, 1 of 1." in message
        assert ("feddm" in message) == ("fedavg" not in words)
        places.append(message.rpartition("Tables and plots: ")[2])
    assert places[0] == places[1] != places[2]


def test_a_small_variant_goes_by_what_it_states(tiny: None) -> None:
    (request,) = columns_of(["table=t", "--small", "wide"]).values()
    assert request.shared == ("t-wide-small",)
    assert request.options.tune == ()
    assert [load(parse_arguments(request.words(v, 0))).rounds for v in request.variants] == [
        1,
        1,
        1,
    ]


def test_a_small_variant_is_searched_only_if_asked() -> None:
    words = ["table=feddm-2", "mnist", "fedavg"]
    searched = ("fedavg.lr=0.001,0.01,0.1", "fedavg.epochs=10,15,20")
    for more, expected in (([], searched), (["--small"], ()), (["--small", "--search"], searched)):
        assert columns_of([*words, *more])["mnist"].options.tune == expected


def test_what_was_chosen_is_taken_and_searched_again_if_asked(tiny: None) -> None:
    chosen = columns_of(["table=t", "wide"])["wide"]
    assert chosen.variants[-1] == Variant("fedavg", "fedavg", ("fedavg.lr=0.3", "rounds=1"))
    assert chosen.options.tune == ()
    again = columns_of(["table=t", "wide", "--search"])["wide"]
    assert again.variants[-1] == Variant("fedavg", "fedavg", ("rounds=1",))
    assert again.options.tune == ("fedavg.lr=0.1,0.3",)


def test_words_of_ones_own_go_to_every_column(tiny: None) -> None:
    words = ["table=t", "mine=feddm:ipc=3", "rounds=5", "--target=0.5", "--seeds=1", "--jobs", "2"]
    for label, request in columns_of(words).items():
        assert request.variants[-1] == Variant("mine", "feddm", ("feddm.ipc=3",))
        assert request.shared == (f"t-{label}", "rounds=5")
        assert (request.options.target, list(request.seeds), request.options.jobs) == (0.5, [0], 2)
        fedavg = next(v for v in request.variants if v.label == "fedavg")
        assert load(parse_arguments(request.words(fedavg, 0))).rounds == 5, "asked for, so for all"
        assert (
            request.options.typed
            == "nectar compare table=t mine=feddm:ipc=3 rounds=5 --target=0.5 --seeds=1 --jobs 2"
        )
    assert columns_of(["table=t", "wide"])["wide"].options.target == 0.01, "the table's own"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "table=feddm2",
            "table='feddm2' is unknown, the nearest is feddm-2: `nectar config --help` lists all.",
        ),
        (
            "table=feddm-2 mnst",
            "'mnst' is neither a row nor a column of table=feddm-2, the nearest is mnist.",
        ),
        (
            "table=feddm-2 fedavgg",
            "'fedavgg' is neither a row nor a column of table=feddm-2, the nearest is fedavg.",
        ),
        (
            "table=feddm-4 xyzzy",
            "'xyzzy' is neither a row nor a column of table=feddm-4: rows are feddm; columns are rho3, rho5, rho10.",
        ),
        ("table=relatives --small", "table=relatives has no small variants: leave out --small."),
        ("table=feddm-2 table=feddm-4", "two tables, feddm-2 and feddm-4: name one."),
        ("table=feddm-2 mnist lr=3", "lr on the command line lacks its section"),
        ("table=feddm-2 mnist --smal", "option --smal is unknown: did you mean --small?"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words.split()]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"nectar: {sentence}")
    assert message.count("\n") == 1
