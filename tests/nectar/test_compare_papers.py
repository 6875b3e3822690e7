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
from common.errors import ConfigError
from common.specs.fedssyn import DONE
from nectar.arguments import parse_arguments
from nectar.cli import main
from nectar.comparison import paper_table
from nectar.comparison import scheduler as scheduling
from nectar.comparison.comparison import Comparison
from nectar.comparison.request import Cell, Variant, parse
from nectar.records.record import MADE
from server_app.record import Record

pytestmark = pytest.mark.extended

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
"""

NUMBERS = """
printed:
  - source: Table 1
    figure: accuracy
    columns:
      wide: {feddm: 69.66 ± 0.13, afresh: drawn, fedavg: 66.0 (a misprint)}
      deep: drawn
  - source: Table 2
    figure: accuracy
    network: mlp
    columns: {wide: {feddm: 1}, deep: {feddm: 2}}
  - source: Table 3
    figure: floats
    columns: {wide: {feddm: 384}, deep: {feddm: 384}}
  - source: Table 4
    figure: rounds
    columns:
      wide: {target: 0.01, feddm: 4, afresh: 5, fedavg: ">100"}
      deep: {target: 0.999, feddm: 4, fedavg: 3}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a table of the name t, and no other; a run may be found and never started."""
    shutil.copytree(ROOT / "conf" / "dataset", tmp_path / "conf" / "dataset")
    (tmp_path / "conf" / "table").mkdir()
    (tmp_path / "conf" / "table" / "t.yaml").write_text(TINY.lstrip())
    (tmp_path / "printed").mkdir()
    (tmp_path / "printed" / "t.yaml").write_text(NUMBERS)
    monkeypatch.setattr(layers_module, "CONF", tmp_path / "conf")
    monkeypatch.setattr(paper_table, "PRINTED", tmp_path / "printed")
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


def test_the_epsilon_of_the_sites_ledgers_stands_beside_the_papers(
    tiny: None, tmp_path: Path
) -> None:
    change(
        "  - source: Table 2\n    figure: accuracy\n    network: mlp",
        "  - source: Table 2\n    figure: epsilon",
    )
    change(
        "base: {", "base: {privacy.counts: public, privacy.clip: 1, privacy.noise_multiplier: 2, "
    )
    change("  feddm:\n", '  feddm: {run: "feddm:mechanism=gradient,start=noise,iterations=2"}\n')
    change('  afresh: {run: "real:redraw=on", except: [deep]}\n', "")
    change(", afresh: drawn", "")
    change(", afresh: 5", "")
    done = records(tmp_path, "wide")
    nectar.compare(
        "wide",
        table="t",
        seeds=2,
        progress=False,
        output_dir=tmp_path / "runs",
        output=tmp_path / "out",
    )
    spent = [
        site["epsilon"]
        for (_, row, _), record in done.items()
        if row == "feddm"
        for site in record.metrics()[-1]["notes"]["spent"].values()
    ]
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        lines = {(x["figure"], x["row"]): x for x in csv.DictReader(file)}
    assert lines["epsilon", "feddm"]["ours"] == f"{max(spent):.3g}"
    assert lines["epsilon", "feddm"]["printed"] == "1"
    assert lines["epsilon", "fedavg"]["ours"] != ""


def change(old: str, new: str) -> None:
    """Change the table of the name t, or the numbers printed beside it."""
    places = layers_module.CONF / "table" / "t.yaml", paper_table.PRINTED / "t.yaml"
    (place,) = [each for each in places if old in each.read_text()]
    place.write_text(place.read_text().replace(old, new))


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


@pytest.mark.parametrize(
    ("row", "place"), [("{tunes: {lr: [1]}}", "tunes"), ("{rounds: many}", "rounds")]
)
def test_a_row_that_is_not_made_as_rows_are_is_refused(tiny: None, row: str, place: str) -> None:
    change("  feddm:\n", f"  feddm: {row}\n")
    with pytest.raises(ConfigError, match=f"^{place} of row 'feddm' in conf/table/t.yaml"):
        columns_of(["table=t"])


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


def test_a_column_that_cannot_be_divided_is_left_out_and_counted(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records(tmp_path, "deep", seeds=1)
    change("- wide: {}", "- wide: {partition.min_size: 900}")
    words = ["compare", "table=t", "--seeds=1", f"output-dir={tmp_path / 'runs'}"]
    assert main([*words, f"--output={tmp_path / 'out'}"]) == 1
    message = capsys.readouterr().out
    why = "3 sites with partition.min_size=900 need 2700 images"
    assert message.splitlines()[0].startswith(f"wide is left out: {why}")
    assert "Column deep, 1 of 1." in message
    assert "deep, 0.999  fedavg    >1        3" in message
    assert f"Failed: wide: {why}" in message
    assert message.endswith("1 of 2 columns cannot be compared and were left out.\n")
    assert f"Failed: wide: {why}" in (tmp_path / "out" / "table.md").read_text()
    assert main([*words, "--dry-run"]) == 1
    message = capsys.readouterr().out
    assert "3 runs: 2 cached, 1 to do" in message or "2 runs: 2 cached, 0 to do" in message
    assert message.endswith("1 of 2 columns cannot be compared and were left out.\n")
    assert main([*words, "--print"]) == 1
    out, err = capsys.readouterr()
    assert all(line.startswith("nectar compare ") for line in out.splitlines())
    assert err.endswith("1 of 2 columns cannot be compared and were left out.\n")


def test_if_no_column_can_be_divided_nothing_is_compared(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change("{rounds: 2, ", "{rounds: 2, partition.min_size: 900, ")
    assert main(["compare", "table=t", f"output-dir={tmp_path / 'runs'}"]) == 2
    assert "partition.min_size=900" in capsys.readouterr().err


REFIT = "refit: on\nbase: {data.validation_cut: after, rounds: 2, "


def test_reported_runs_hold_nothing_back_and_searches_do(tiny: None, tmp_path: Path) -> None:
    """Unless a share is typed, which holds for all, or a row states its own."""
    change("base: {rounds: 2, ", REFIT)
    change('afresh: {run: "real:redraw=on"', 'afresh: {run: "real:data.validation=0.2"')
    shared = ["table=t", "wide", "--search", f"output-dir={tmp_path / 'runs'}"]
    (planned,) = Comparison(parse(options_of(shared)), print).planned
    held = {run.variant.label: run.config.data.validation for run in planned.runs}
    assert held == {"feddm": 0.0, "afresh": 0.2, "fedavg": 0.0}
    assert {run.config.data.validation for run in planned.trials} == {0.1}
    typed = parse(options_of([*shared, "data.validation=0.3"]))
    (planned,) = Comparison(typed, print).planned
    assert {run.config.data.validation for run in planned.runs} == {0.2, 0.3}
    assert {run.config.data.validation for run in planned.trials} == {0.3}
    assert typed.table is not None
    assert not typed.table.refit


def test_without_a_validation_split_the_last_round_is_reported_and_no_round_is_the_best(
    tiny: None, tmp_path: Path
) -> None:
    change("base: {rounds: 2, ", REFIT)
    words = ["table=t", "deep", "fedavg", "--seeds", "1", f"output-dir={tmp_path / 'runs'}"]
    (planned,) = Comparison(parse(options_of(words)), print).planned
    record = run(parse_arguments(planned.runs[0].words))
    places = {"output_dir": tmp_path / "runs", "output": tmp_path / "out"}
    result = nectar.compare("deep", "fedavg", table="t", seeds=1, progress=False, **places)
    last = record.metrics()[-1]
    assert (last["validation"], last["round"]) == (None, 1)
    assert result.columns["deep"].accuracies == {"fedavg": {0: last["test"]["accuracy"]}}
    assert not (record.directory / "checkpoint" / "best.safetensors").exists()
    assert "the last one is reported" in result.table


def test_rounds_that_make_images_are_counted_apart(tiny: None, tmp_path: Path) -> None:
    """As Fedssyn counts: those to the accuracy without the round that makes images, which stands after a plus."""
    change('afresh: {run: "real:redraw=on", ', 'afresh: {run: "fedssyn:source=real", ')
    change("{rounds: 2, ", "{rounds: 3, ")
    change("wide: {target: 0.01,", "wide: {target: 0.15,")
    done = records(tmp_path, "wide", seeds=2)
    places = {"output_dir": tmp_path / "runs", "output": tmp_path / "out"}
    result = nectar.compare("wide", table="t", seeds=2, progress=False, **places)
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        ours = {x["row"]: x["ours"] for x in csv.DictReader(file) if x["source"] == "Table 4"}
    reached = []
    for seed in range(2):
        lines = done["wide", "afresh", seed].metrics()
        assert MADE == DONE
        assert [any(MADE in d for d in line["devices"].values()) for line in lines] == [
            *(False, True, False, False)
        ]
        found = [line["round"] for line in lines if line["test"]["accuracy"] >= 0.15]
        reached += found[:1]
    assert len(reached) == 2
    assert min(reached) > 1, "the round that makes images leaves the model as it is"
    assert ours["afresh"] == f"{(sum(reached) / 2 - 1):.1f}".removesuffix(".0") + " + 1"
    assert "+" not in ours["feddm"]
    assert "after a plus" in result.table.replace("\n", " ")
