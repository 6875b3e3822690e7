"""What an error says to type is typed: it is taken, or refused for another cause. A row for each piece of advice."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Row:
    """What is typed, a piece of what is said, and what that says to type instead; {here} is the folder of files."""

    typed: str
    said: str
    then: str
    advises: tuple[str, ...] = ()


def row(typed: str, said: str, then: str, *advises: str) -> Row:
    return Row(typed, said, then, advises)


DEALT = "data federation.sites=400 partition.kind=iid partition.min_size=1 data.validation=0.5"
FOLDER = "data images.size=8 images.channels=1 partition.kind=iid federation.sites=2 images.folder={here}"
LONE = (
    "run fedavg images.size=8 images.channels=1 rounds=1 evaluation.on=sites model.depth=2 images.classes=cat,dog "
    "images.sites={here}"
)
TABLE = "config data.file=/x.csv data.label=y"
ARRAYS = "config data.file=/x.npz"

ROWS = {
    # ---- the lines of the issue
    "a least size that is none": row(
        "data partition.min_size=0 partition.alpha=0.001 federation.sites=100 partition.max_draws=9",
        "or lower federation.sites",
        "data partition.min_size=0 partition.alpha=100 federation.sites=100 partition.max_draws=9",
    ),
    "a site of two pictures": row(
        f"{LONE}/pair,{{here}}/plain data.site_holdout=0.2",
        "its examples are too few for data.site_holdout=0.2; raise data.site_holdout, to .5",
        f"{LONE}/pair,{{here}}/plain data.site_holdout=0.5",
    ),
    "a site of one picture": row(
        f"{LONE}/one,{{here}}/plain data.site_holdout=0.2",
        "its examples are too few for data.site_holdout=0.2; give it two of a class at least",
        f"{LONE}/pair,{{here}}/plain data.site_holdout=0.5",
    ),
    "a site of one picture a class": row(
        f"{LONE}/two,{{here}}/plain data.site_holdout=0.5",
        "its examples are too few for data.site_holdout=0.5; give it two of a class at least",
        f"{LONE}/pair,{{here}}/plain data.site_holdout=0.5",
    ),
    "arrays without a test part": row(
        "data data.file={here}/own.npz data.test_share=0 federation.sites=2 partition.kind=iid",
        "hold some out by data.test_share=0.2, or set evaluation.on=none",
        "data data.file={here}/own.npz data.test_share=0.2 federation.sites=2 partition.kind=iid",
        "data.test_share=0.2",
    ),
    "arrays that nobody judges": row(
        "data data.file={here}/own.npz data.test_share=0 federation.sites=2 partition.kind=iid",
        "set evaluation.on=none",
        "data data.file={here}/own.npz data.test_share=0 federation.sites=2 partition.kind=iid "
        "evaluation.on=none",
        "evaluation.on=none",
    ),
    "a zip": row(f"{FOLDER}/zipped.zip", "is a file: unpack it", f"{FOLDER}/plain"),
    "a flat folder": row(f"{FOLDER}/flat", "holds no folder a class", f"{FOLDER}/plain"),
    "a folder that is not there": row(
        f"{FOLDER}/no", "is not there: name a folder that holds", f"{FOLDER}/plain"
    ),
    "a comma in a class": row(
        f"{FOLDER}/comma", "class 'dog, wet', and a comma", f"{FOLDER}/plain"
    ),
    "capitals": row(
        f"{FOLDER}/capitals", "holds Test and Train, read only as test and train", f"{FOLDER}/parts"
    ),
    "a level too deep": row(
        f"{FOLDER}/deep", "name {here}/deep/data instead", f"{FOLDER}/deep/data"
    ),
    "a class called Test": row(
        f"{FOLDER}/no", "is not there: name a folder that holds", f"{FOLDER}/tests"
    ),
    "half precision": row(
        "run fedavg model.name=advice_of:half rounds=1 federation.sites=2",
        "as float16: what is learned and sent is float32, so return the network as .float()",
        "run fedavg model.name=advice_of:whole rounds=1 federation.sites=2",
    ),
    "images that leave the numbers": row(
        "run feddm feddm.image_lr=1e38 feddm.iterations=9 rounds=1 federation.sites=2",
        "feddm.image_lr from 1e+38 to 3e+37)",
        "run feddm feddm.image_lr=1 feddm.iterations=9 rounds=1 federation.sites=2",
    ),
    "list": row("list", "did you mean `nectar runs`?", "runs"),
    "a measured target": row(
        "data data.file={here}/far.csv data.label=a federation.sites=2 partition.kind=iid",
        "data.classes=labels takes every value as a class all the same",
        "data data.file={here}/far.csv data.label=a federation.sites=2 partition.kind=iid data.classes=labels",
        "data.classes=labels",
    ),
    "a table without names": row(
        "data data.file={here}/bare.csv data.label=0 federation.sites=2 partition.kind=iid",
        "or set data.header=none, with which the columns are called 0 to 1",
        "data data.file={here}/bare.csv data.label=0 federation.sites=2 partition.kind=iid data.header=none",
        "data.header=none",
    ),
    "two parts held out": row(
        "config data.validation_at=sites data.site_holdout=0.1",
        "or set data.validation_at=server",
        "config data.validation_at=server data.site_holdout=0.1",
        "data.validation_at=server",
        "data.validation_at=sites",
    ),
    "all that a site has held back": row(
        f"{DEALT} data.validation_cut=after",
        "set data.validation_cut=before",
        f"{DEALT} data.validation_cut=before",
        "data.validation_cut=before",
        "data.validation_cut=after",
    ),
    "latex": row(
        "compare fedavg --latex",
        "writes table.tex beside table.md",
        "compare fedavg --dry-run rounds=1",
    ),
    "an epsilon": row(
        "config fedavg privacy.epsilon=3",
        "set privacy.examples to the one that every site is taken to have",
        "config fedavg privacy.epsilon=3 privacy.examples=50 rounds=1 fedavg.epochs=1",
    ),
    "a method's name": row("config fedavgg", "the nearest is fedavg", "config fedavg"),
    "a folder under a public set's name": row(
        "data dataset=digits images.folder={here}/plain",
        "choose dataset=images for folders of your own",
        f"{FOLDER}/plain dataset=images",
        "dataset=images",
    ),
    # ---- what common/config and common/data say to type
    "evaluation with nothing held out": row(
        "config fedavg evaluation.on=sites",
        "set data.site_holdout above 0, such as 0.1",
        "config fedavg evaluation.on=sites data.site_holdout=0.1",
        "evaluation.on=sites",
    ),
    "figures of private sites": row(
        "config fedavg privacy.noise_multiplier=1 privacy.counts=public evaluation.on=sites data.site_holdout=0.1",
        "set evaluation.on=server",
        "config fedavg privacy.noise_multiplier=1 privacy.counts=public evaluation.on=server",
        "evaluation.on=server",
    ),
    "statistics that stay": row(
        "config fedavg model.statistics=local model.norm=batch",
        "set evaluation.on=sites with data.site_holdout above 0",
        "config fedavg model.statistics=local model.norm=batch evaluation.on=sites data.site_holdout=0.1",
        "model.statistics=local",
    ),
    "Krum of few": row(
        "config fedavg federation.sites=4 federation.robust=krum",
        "choose federation.robust=median",
        "config fedavg federation.sites=4 federation.robust=median",
        "federation.robust=median",
    ),
    "a robust mean of images": row(
        "config feddm federation.robust=median",
        "set federation.robust=clip",
        "config feddm federation.robust=clip",
        "federation.robust=clip",
    ),
    "a secret sum of another method": row(
        "config feddm federation.secret=on",
        "or set federation.secret=off",
        "config feddm federation.secret=off",
        "federation.secret=off",
    ),
    "feedback of nothing": row(
        "config fedavg wire.error_feedback=on",
        "set wire.weights=int8",
        "config fedavg wire.error_feedback=on wire.weights=int8",
        "wire.error_feedback=on",
        "wire.weights=int8",
    ),
    "a file without its name": row(
        "config dataset=file", "set data.file=x.npz", "config data.file=/x.npz", "dataset=file"
    ),
    "pictures scaled as a table": row(
        f"{ARRAYS} data.scale=minmax",
        "add data.kind=table or data.kind=series",
        f"{ARRAYS} data.scale=minmax data.kind=table data.low=0 data.high=1",
        "data.kind=table",
    ),
    "pictures scaled as series": row(
        f"{ARRAYS} data.scale=minmax",
        "or data.kind=series",
        f"{ARRAYS} data.scale=minmax data.kind=series data.low=0 data.high=1",
        "data.kind=series",
    ),
    "a mean beside bounds": row(
        f"{TABLE} data.scale=minmax data.low=0 data.high=1 images.mean=0.3",
        "set data.scale=standard",
        f"{TABLE} data.scale=standard images.mean=0.3",
        "data.scale=standard",
    ),
    "columns far out": row(
        "data data.file={here}/far.csv data.label=y data.scale=standard images.mean=0.4 images.std=0.001 "
        "federation.sites=2 partition.kind=iid",
        "set data.scale=minmax with data.low and data.high",
        "data data.file={here}/far.csv data.label=y data.scale=minmax data.low=0 data.high=1000 "
        "federation.sites=2 partition.kind=iid",
        "data.scale=minmax",
    ),
    "real pictures": row(
        "config real data.file=/x.npz",
        "add data.send_originals=on",
        "config real data.file=/x.npz data.send_originals=on",
        "data.send_originals=on",
    ),
    "real pictures, from noise": row(
        "config real data.file=/x.npz",
        "choose feddm with feddm.start=noise",
        "config feddm data.file=/x.npz feddm.start=noise",
        "feddm.start=noise",
    ),
    "pictures of several sizes": row(
        "data dataset=advice_of:pictures federation.sites=2 partition.kind=iid",
        "such as data.size=32",
        "data dataset=advice_of:pictures federation.sites=2 partition.kind=iid data.size=32",
        "data.size=32",
    ),
    "no classes": row(
        "data dataset=images",
        "such as images.classes=cat,dog",
        "data dataset=images images.classes=cat,dog",
        "images.classes=cat",
    ),
    "arguments without a strategy": row(
        "config fedavg strategy.eta=0.1",
        "such as method=flwr.serverapp.strategy:FedAdam",
        "config method=flwr.serverapp.strategy:FedAdam strategy.eta=0.1",
        "method=flwr.serverapp.strategy:FedAdam",
    ),
    "a head alone": row(
        "config feddm model.train=head",
        "set model.train=all",
        "config feddm model.train=all",
        "model.train=all",
        "model.train=head",
    ),
    "an alpha that is too extreme": row(
        "data partition.alpha=1e308",
        "use partition.kind=iid",
        "data partition.kind=iid",
        "partition.kind=iid",
    ),
    "an alpha that is too extreme, by class": row(
        "data partition.alpha=1e308",
        "partition.kind=by_class with one class a site",
        "data partition.kind=by_class partition.classes_per_client=1",
        "partition.kind=by",
    ),
    "owners where there are none": row(
        "data partition.kind=natural",
        "partition.kind=natural needs a data set whose samples have owners",
        "data partition.kind=iid",
        "partition.kind=natural",
    ),
    "counts that are private": row(
        "config fedgen privacy.noise_multiplier=1 privacy.examples=100",
        "set privacy.counts=public",
        "config fedgen privacy.noise_multiplier=1 privacy.counts=public",
        "privacy.counts=public",
    ),
    "images for no tracker": row(
        "config track.images=on",
        "add track=tensorboard or track=mlflow",
        "config track.images=on track=tensorboard",
        "track.images=on",
        "track=tensorboard",
        "track=mlflow",
    ),
    "a label that is a number": row(
        "data data.file={here}/far.csv data.label=a federation.sites=2 partition.kind=iid",
        "bring a number into classes by data.bins=4",
        "data data.file={here}/far.csv data.label=a federation.sites=2 partition.kind=iid data.bins=4 "
        "data.scale=minmax data.low=0 data.high=1000",
        "data.bins=4",
    ),
    "one range": row(
        f"{TABLE} data.bins=1",
        "state data.edges, such as data.edges=10,20 for three classes",
        f"{TABLE} data.edges=10,20",
        "data.edges=10",
    ),
    "columns without classes": row(
        "config data.columns=a data.label=y",
        "such as images.classes=benign,malignant",
        "config data.columns=a data.label=y images.classes=benign,malignant",
        "images.classes=benign",
    ),
    "columns of sites that nobody simulates": row(
        "data data.columns=a data.label=y images.classes=b,c federation.sites=2",
        "else evaluation.on=sites with data.site_holdout=0.2",
        "config data.columns=a data.label=y images.classes=b,c evaluation.on=sites data.site_holdout=0.2",
        "data.site_holdout=0.2",
    ),
    "a set without a value": row(
        "config set=partition.alpha",
        "is not key=value, such as partition.alpha=0.01",
        "config set=partition.alpha=0.01",
        "partition.alpha=0.01",
        "key=value",
    ),
}

#: what sentences quote, or say of other places than the command line
QUOTED = {
    "allow-download=true": "of a SuperNode's node config",
    "dataset=package.module:callable": "a function that the user has to write first",
    "dtype=str": "of numpy, in a script",
    "index=False": "of pandas, in a script",
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


@pytest.mark.parametrize("name", ROWS)
def test_what_is_said_to_type_helps(
    name: str, here: Path, typed: Callable[[str], tuple[int, str]]
) -> None:
    row = ROWS[name]
    message = row.said.format(here=here)
    code, told = typed(row.typed)
    assert code == 2 or name.startswith("a site of")  # where the other site has figures
    assert message in told
    assert "Traceback" not in told
    code, after = typed(row.then)
    assert code in (0, 2)
    assert message not in after
    if code:  # another cause, in a sentence of its own
        assert after.strip().splitlines()[-1] != told.strip().splitlines()[-1]


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
    known = {each for row in ROWS.values() for each in row.advises} | {
        q.rstrip(".") for q in QUOTED
    }
    assert advised() - known == set()


def test_advice_of_a_row_stands_in_what_is_typed_then() -> None:
    for name, row in ROWS.items():
        for each in row.advises:
            key = each.partition("=")[0]
            assert each in row.then or each in row.typed or key in ("track", "key"), (name, each)
