"""What `nectar export` writes: it works without Nectar, and every other trainer can read the images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import run
from image_folders import CLASSES, paint_split
from PIL import Image
from small import Small
from torchvision.datasets import ImageFolder

from common.data.published.catalogue import describe
from common.division import Division
from common.errors import ConfigError, NectarError
from common.wire.images import SyntheticImages
from nectar.cli import main
from nectar.export.bundle import export
from nectar.export.model import ExportedModel
from nectar.export.synthetic import folder_names, labels_by_folder, write_synthetic
from nectar.recorded_run import RecordedRun
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint


@pytest.fixture(autouse=True)
def _no_graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the graphs, seconds each, but where a test is of them; test_export_formats has the others."""
    if "with_graphs" not in request.fixturenames:
        monkeypatch.setattr("nectar.export.bundle.write_graphs", lambda *_: ({}, ""))


@pytest.fixture
def with_graphs() -> None:
    """Write the graphs."""


#: Python with Nectar and Flower made unimportable, from whatever place they would come
WITHOUT_NECTAR = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"common", "server_app", "strategies", "synth", "client_app", "flwr", "pydantic"}:
            raise ModuleNotFoundError(f"{name} is not there")
sys.meta_path.insert(0, Refuse())
"""


def exported(past: RunRecord, folder: Path, **options: Any) -> Path:
    return export(past, folder, **options).folder


def plain_python(folder: Path, script: str) -> str:
    """Run ``script`` in ``folder`` with nothing of ours on its path; return what it prints.

    The rest of the environment is this process's own: it says by which instructions torch computes.
    """
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NECTAR + script],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.extended
@pytest.mark.parametrize(
    "words",
    [
        "",
        "model.norm=batch model.depth=1",
        "model.norm=group",
        pytest.param("model.norm=none", marks=pytest.mark.long),
    ],
)
def test_the_models_logits_are_read_again_bit_for_bit(
    small: Small, tmp_path: Path, words: str
) -> None:
    past = RunRecord.open(run(small(rounds=1, set=words)).directory)
    exported_model = ExportedModel.open(exported(past, tmp_path / "out"))
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    model = Division(past.config).run.build_model().eval()
    model.load_state_dict(dict(past.checkpoint().weights))
    assert not exported_model.network.training
    with torch.no_grad():
        assert torch.equal(exported_model.network(x), model(x))


@pytest.mark.extended
def test_the_lines_of_the_exports_own_readme_work(
    small: Small, tmp_path: Path, with_graphs: None
) -> None:
    past = RunRecord.open(run(small(rounds=1)).directory)
    folder = exported(past, tmp_path / "out")
    text = (folder / "README.md").read_text()
    snippets = "".join(block.split("```")[0] for block in text.split("```python\n")[1:])
    picture = next((folder / "synthetic" / "images").glob("*/*.png"))
    printed = plain_python(folder, snippets.replace("picture.png", str(picture)))
    chances = [float(x) for x in printed.partition("[[")[2].partition("]]")[0].split(",")]
    assert len(chances) == 10
    assert sum(chances) == pytest.approx(1, abs=1e-3)


def test_model_json_says_what_it_is_and_where_it_comes_from(small: Small, tmp_path: Path) -> None:
    record = run(small(rounds=2, seed=3))
    past = RunRecord.open(record.directory)
    about = json.loads((exported(past, tmp_path / "out") / "model.json").read_text())
    assert about["classes"] == [str(i) for i in range(10)]
    assert about["input"]["shape"] == [1, 8, 8]
    assert (about["input"]["mean"], about["input"]["std"]) == ([0.3054], [0.3762])
    assert about["input"]["scale"] == 16
    line = record.metrics()[2]
    for split in ("test", "validation"):
        figures = about["figures"][split]
        assert figures == {key: line[split][key] for key in ("accuracy", "loss")}
    assert about["run"]["id"] == record.id
    assert about["run"]["round"] == 2
    assert about["run"]["data"] == past.provenance["data"]["sha256"]
    assert about["run"]["code"] == past.provenance["code"]


def test_any_trainer_reads_the_images_in_the_order_of_the_labels(
    small: Small, tmp_path: Path
) -> None:
    past = RunRecord.open(run(small(rounds=1)).directory)
    folder = exported(past, tmp_path / "out") / "synthetic"
    _, sets = past.synthetic()
    with np.load(folder / "synthetic.npz", allow_pickle=False) as data:
        images, labels, sites = data["images"], data["labels"], data["sites"]
    assert (images.dtype, labels.dtype) == (np.float32, np.int64)
    for site, sent in sets.items():
        assert np.array_equal(images[sites == site], sent.images.numpy())
        assert np.array_equal(labels[sites == site], sent.labels.numpy())
    read = ImageFolder(folder / "images")
    assert len(read) == len(labels)
    seen = {Path(path).stem: (path, label) for path, label in read.samples}
    for site, sent in sets.items():
        for index, (image, label) in enumerate(zip(sent.images, sent.labels, strict=True)):
            path, folder_label = seen[f"{site}-{index:04d}"]
            assert folder_label == int(label)
            with Image.open(path) as picture:
                assert (picture.mode, picture.size) == ("L", (8, 8))
                pixels = torch.from_numpy(np.array(picture)).float()
            expected = (image[0] * 0.3762 + 0.3054).clamp(0, 1) * 255
            assert (pixels - expected).abs().max() <= 0.51


def test_a_class_that_nobody_sent_keeps_the_others_labels(tmp_path: Path) -> None:
    """Its folder stays, empty: without it every later class would get its neighbour's label."""
    sent = SyntheticImages(torch.zeros(2, 1, 8, 8), torch.tensor([0, 9]))
    write_synthetic({"a": sent}, describe("digits"), tmp_path)
    read = ImageFolder(tmp_path / "images", allow_empty=True)
    assert [label for _, label in read.samples] == [0, 9]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"method": "real"}, "THESE ARE REAL IMAGES"),
        ({"set": "feddm.start=real feddm.warm=off"}, "THEY BEGAN AS REAL IMAGES"),
        ({"set": "feddm.start=mix:2 feddm.warm=off"}, "THEY BEGAN AS MEANS OF A FEW REAL IMAGES"),
        (
            {"set": "feddm.start=mean feddm.warm=off"},
            "They started from means of each site's classes",
        ),
        ({}, "They started from noise"),
    ],
)
def test_the_readme_says_whether_images_are_real(
    small: Small, tmp_path: Path, keys: dict[str, str], said: str
) -> None:
    past = RunRecord.open(run(small(rounds=1, **keys)).directory)
    assert said in (exported(past, tmp_path / "out") / "README.md").read_text()


def test_best_and_last_are_the_rounds_they_say(small: Small, tmp_path: Path) -> None:
    past = RunRecord.open(run(small(rounds=3)).directory)
    reached = [line["validation"]["accuracy"] for line in past.rounds[1:]]
    best = export(past, best=True)
    assert best.about["run"]["round"] == reached.index(max(reached)) + 1
    assert best.folder == past.directory / "export" / f"best-round-{best.about['run']['round']:03d}"
    assert export(past).folder == past.directory / "export" / "round-003"


def test_an_unfinished_run_gives_what_it_has_and_says_so(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(small(rounds=1))
    record.note(outcome="interrupted")
    assert main(["export", str(record.directory), "--output", str(tmp_path / "out")]) == 0
    assert "not complete (interrupted)" in capsys.readouterr().out
    assert "THE RUN IS NOT COMPLETE (interrupted)" in (tmp_path / "out" / "README.md").read_text()


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(small(rounds=1, set="data.validation=0"))
    past = RunRecord.open(record.directory)
    folder = exported(past, tmp_path / "new" / "out")
    before = sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*"))
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        export(past, folder)
    assert before == sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*"))
    with pytest.raises(ConfigError, match="has no best round"):
        export(past, tmp_path / "best", best=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="which is a file"):
        export(past, tmp_path / "file" / "out")
    record.last.unlink()
    with pytest.raises(NectarError, match="has no model to export: the run has not finished"):
        export(past, tmp_path / "none")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "new", "runs"]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out"]
    assert main(["export", str(tmp_path)]) == 2
    assert main(["export"]) == 2
    assert "Missing argument 'RECORD'" in capsys.readouterr().err


def test_an_export_that_fails_midway_leaves_nothing(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = RunRecord.open(run(small(rounds=1)).directory)

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nectar.export.bundle.write_synthetic", fails)
    with pytest.raises(KeyboardInterrupt):
        export(past, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_folders_sort_in_the_order_of_the_labels() -> None:
    """Above ten classes plain numbers would not: 10 comes before 2."""
    for classes in (
        [str(i) for i in range(120)],
        ["zebra", "ant", "T-shirt/top"],
        ["Öl", "b", "A"],
    ):
        names = folder_names(classes)
        assert sorted(names) == names
        assert len(set(names)) == len(classes)
        by_name = labels_by_folder(classes)
        assert [by_name[name] for name in names] == list(range(len(classes)))
    assert labels_by_folder(["T-shirt/top", "bag"])["T-shirt_top"] == 0
    assert folder_names(["T-shirt/top", "bag"]) == ["00-T-shirt_top", "01-bag"]


# ---- models of other architectures than the run's own ------------------------------------------------


DGM = (
    "data.images=200 model.depth=1 feddgm.epochs=1 feddgm.ipc=1 feddgm.iterations=1 feddgm.inner_epochs=1 "
    "feddgm.global_epochs=1 feddgm.surrogate_epochs=0 feddgm.generator=pixels"
)


def test_the_only_global_model_is_the_runs_and_need_not_be_named(
    small: Small, tmp_path: Path
) -> None:
    record = run(small(method="feddgm", rounds=1, set=f"{DGM} feddgm.global_models=mlp"))
    past = RunRecord.open(record.directory)
    written = export(past, tmp_path / "out").folder
    assert json.loads((written / "model.json").read_text())["model"]["name"] == "mlp"
    network = RecordedRun(past.directory).model
    assert type(network).__name__ == "MLP"
    learned = Checkpoint.load(record.last).model("mlp")
    assert all(torch.equal(t, learned[n]) for n, t in network.state_dict().items())


def test_of_several_one_is_named_and_is_exported_as_what_it_is(
    small: Small, tmp_path: Path
) -> None:
    record = run(small(method="feddgm", rounds=1, set=f"{DGM} feddgm.global_models=mlp,convnet"))
    past = RunRecord.open(record.directory)
    with pytest.raises(ConfigError, match=r"learned 2 models, .* name one of mlp, convnet"):
        export(past, tmp_path / "none")
    for name in ("mlp", "convnet"):
        written = export(past, tmp_path / name, model=name).folder
        assert json.loads((written / "model.json").read_text())["model"]["name"] == name


# ---- the lines of docs/compare.md that train another network on an export ----------------------------


def test_a_site_s_own_model_of_a_divided_folder_is_exported_and_judged(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = paint_split(tmp_path / "pictures")
    words = f"images.folder={folder} images.classes={CLASSES} images.size=8 ditto.epochs=1"
    own = "data.site_holdout=0.2 evaluation.on=both"
    record = run(small(method="ditto", rounds=1, dataset="images", set=f"{words} {own}"))
    out = tmp_path / "own"
    line = ["export", str(record.directory), "--site", "partition-0", "--output", str(out)]
    assert main(line) == 0
    model = ExportedModel.open(out)
    assert model.split is not None
    about = json.loads((tmp_path / "own" / "model.json").read_text())
    assert about["run"]["site"] == "partition-0"
    assert main(["score", str(out), str(folder / "test")]) == 0
    assert "15 images that the run held out" in capsys.readouterr().out
