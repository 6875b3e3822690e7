"""`nectar init-method`: files that run at once, of a name that can be one; and `nectar tables`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from federation import run
from small import Small

from nectar.cli import main
from nectar.commands.init_method import FILES
from nectar.commands.tables import listing


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../up", "cannot be the name of a package"),
        ("a/b", "cannot be the name of a package"),
        ("Mine", "cannot be the name of a package"),
        ("class", "cannot be the name of a package"),
        ("m\u00fc", "cannot be the name of a package"),
        ("mine\n", "cannot be the name of a package"),
        ("", "cannot be the name of a package"),
        ("fedavg", "is a name of Nectar's own"),
        ("wire", "is a name of Nectar's own"),
        ("torch", "is there already"),
        ("strategies", "is there already"),
        ("json", "is there already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init-method", "--", name]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("kept")
    assert main(["init-method", "mine"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.extended
def test_its_files_run(tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of 1 sends what FedAvg's sites send."""
    assert main(["init-method", "shy"]) == 0
    assert {path.name for path in (tmp_path / "shy").iterdir()} == set(FILES)
    monkeypatch.syspath_prepend(str(tmp_path))
    losses = [
        run(small(rounds=1, method=method, set=words)).metrics()[-1]["test"]["loss"]
        for method, words in (
            ("fedavg", ""),
            ("shy:METHOD", "shy.share=1"),
            ("shy:METHOD", "shy.share=0.5"),
        )
    ]
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0] != losses[2]
    for module in [name for name in sys.modules if name.partition(".")[0] == "shy"]:
        del sys.modules[module]


@pytest.mark.extended
def test_tables_are_found_by_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        listing().count("\n") > listing("FedDM").count("\n") > listing("feddm", "mnist").count("\n")
    )
    assert "feddm-2" in listing("feddm-2")
    assert main(["tables", "cifar10", "nosuchtable"]) == 2
    assert "no table has 'cifar10' and 'nosuchtable'" in capsys.readouterr().err
