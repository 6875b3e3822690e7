"""What an error says to type is typed: it is taken, or refused for another cause. A row for each piece of advice."""

from __future__ import annotations

import ast
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from places import ROOT

from nectar import cli

FUNCTIONS = """
import numpy as np
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

class Set(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, i):
        return Image.fromarray(np.full((8 + i % 2, 8), i, np.uint8)), i % 2

def pictures():
    return Set(), Set()

def half(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).half()

def whole(shape, classes):
    return half(shape, classes).float()
"""


ROWS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("advice.toml").read_text(encoding="utf-8")
)

#: what sentences quote, or say of other places than the command line
QUOTED = {
    "allow-download=true": "of a SuperNode's node config",
    "dataset=package.module:callable": "a function that the user has to write first",
    "dtype=str": "of numpy, in a script",
    "index=False": "of pandas, in a script",
    "model.start=DIR": "a folder that `nectar export` makes first",
    "rounds=N": "a number of the user's choice",
    "privacy.epsilon=0": "what was typed, not what is advised",
    "train_images=...": "of numpy.savez",
    "train_labels=...": "of numpy.savez",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders and files as people have them."""
    place, draws = tmp_path_factory.mktemp("files"), np.random.default_rng(0)

    def pictures(folder: str, classes: Sequence[str], count: int) -> None:
        for name in classes:
            (place / folder / name).mkdir(parents=True)
            for i in range(count):
                pixels = draws.integers(0, 255, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(place / folder / name / f"{i}.png")

    for folder, classes, count in (
        ("plain", ("cat", "dog"), 30),
        ("deep/data", ("cat", "dog"), 30),
        ("two", ("cat", "dog"), 1),
        ("pair", ("cat",), 2),
        ("one", ("cat",), 1),
        ("comma", ("cat", "dog, wet"), 30),
        ("flat", ("",), 8),
        ("tests", ("Control", "Test"), 30),
        ("capitals/Train", ("cat", "dog"), 30),
        ("capitals/Test", ("cat", "dog"), 8),
    ):
        pictures(folder, classes, count)
    for part in ("Train", "Test"):
        shutil.copytree(place / "capitals" / part, place / "parts" / part.lower())
    shutil.make_archive(str(place / "zipped"), "zip", place / "plain")
    images = draws.integers(0, 255, (80, 8, 8), dtype=np.uint8)
    np.savez(place / "own.npz", train_images=images, train_labels=np.arange(80) % 2)
    rows = "".join(f"{i % 2},{10 * i}.5\n" for i in range(80))
    (place / "far.csv").write_text(f"y,a\n{rows}")
    (place / "bare.csv").write_text("".join(f"{i % 2},{i / 7:.3f}\n" for i in range(5, 85)))
    (place / "advice_of.py").write_text(FUNCTIONS)
    return place


@pytest.fixture
def typed(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[int, str]]:
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delitem(sys.modules, "advice_of", raising=False)
    monkeypatch.setenv("NECTAR_RUNS", str(tmp_path / "runs"))

    def type_in(line: str) -> tuple[int, str]:
        code = cli.main(line.format(here=here).split(" "))
        told = capfd.readouterr()
        # What a site says stands in the record.
        records = sorted(tmp_path.glob("runs/*/metrics.jsonl"), key=lambda p: p.stat().st_mtime)
        return code, told.out + told.err + "".join(each.read_text() for each in records[-1:])

    return type_in


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extended] * row.get("extended", False))
        for name, row in ROWS.items()
    ],
)
def test_what_is_said_to_type_helps(
    name: str, here: Path, typed: Callable[[str], tuple[int, str]]
) -> None:
    row = ROWS[name]
    message = row["said"].format(here=here)
    code, told = typed(row["typed"])
    assert code == 2 or name.startswith("a site of")  # where the other site has figures
    assert message in told
    assert "Traceback" not in told
    code, after = typed(row["then"])
    assert code == (2 if "refused" in row else 0), after
    assert message not in after
    assert row.get("refused", "").format(here=here) in after


def advised() -> set[str]:
    """Return each key=value with its value that an error of common/config or common/data prints."""
    found = set()
    files = [
        *(ROOT / "common" / "config").rglob("*.py"),
        *(ROOT / "common" / "data").rglob("*.py"),
        ROOT / "common" / "division.py",
    ]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "ConfigError",
                "DataError",
            ):
                texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                for text in (text for text in texts if isinstance(text, str)):
                    pattern = r"(?<![\w.{=])((?:[a-z_]+\.)?[a-z_-]+=[A-Za-z0-9.:]+)"
                    found |= {each.rstrip(".:") or each for each in re.findall(pattern, text)}
    return found


def test_each_key_and_value_that_is_printed_has_a_row() -> None:
    known = {each for row in ROWS.values() for each in row.get("advises", ())}
    known |= {each.rstrip(".") for each in QUOTED}
    assert advised() - known == set()


def test_advice_of_a_row_stands_in_what_is_typed_then() -> None:
    for name, row in ROWS.items():
        for each in row.get("advises", ()):
            key = each.partition("=")[0]
            assert each in row["then"] or each in row["typed"] or key in ("track", "key"), (
                name,
                each,
            )
