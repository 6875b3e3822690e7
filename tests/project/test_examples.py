"""What lies in examples/: a notebook, committed without outputs and right to its last cell, and the studies."""

from __future__ import annotations

import hashlib
import re
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from data_files import forget_loaded, small_mnist, write_source
from nbclient import NotebookClient
from PIL import Image
from places import ROOT

import nectar
from common.config.loading import load
from common.division import Division
from strategies.feddgm import feature_space
from synth.generators.style import Form, decoded

NOTEBOOK = ROOT / "examples" / "first-run.ipynb"


def cells(notebook: Any) -> list[Any]:
    """Return the cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_committed_notebook_has_no_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs and cell.execution_count is None for cell in cells(notebook))


@pytest.mark.long
@pytest.mark.extended
def test_the_notebook_runs_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "NECTAR_RUNS", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=place).execute()

    outputs = [output for cell in cells(notebook) for output in cell.outputs]
    message = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")
    assert not [o for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    assert "\x1b" not in message
    rounds = re.findall(r"^round (\d)/2: accuracy", message, re.MULTILINE)
    assert rounds == ["0", "1", "2"], "one line a round, once"
    assert "2 runs: 1 cached, 1 to do" in message
    shown = {kind for o in outputs for kind in o.get("data", {})}
    assert {"image/png", "text/html"} <= shown
    assert (tmp_path / "first-run.html").is_file()

    ten, one = re.findall(r"^(\d+) a class: ([\d.]+) (\d+) bytes up$", message, re.MULTILINE)
    assert (ten[0], one[0]) == ("10", "1")
    assert float(ten[1]) > 0.8
    assert int(ten[2]) > 5 * int(one[2]) > 0


@pytest.mark.extended
def test_the_study_of_quadratics_prints_its_table_and_draws_its_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = runpy.run_path(str(ROOT / "examples" / "quadratics.py"))
    study["main"](["--output", str(tmp_path), "--seeds", "1"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["0", "0.1", "0.25", "0.5", "0.75", "0.9"]
    rounds = [int(row[1]) for row in rows]
    assert rounds == sorted(rounds, reverse=True)
    for row in rows[1:]:
        assert float(row[2]) < float(row[3]), "fewer rounds are left than pairs stay at home"
    assert (tmp_path / "quadratics.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.extended
def test_feddms_surrogate_is_least_where_the_objective_is_and_its_tangent_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = runpy.run_path(str(ROOT / "examples" / "surrogate.py"))
    study["main"].__globals__["STEPS"] = 600
    study["main"](["--output", str(tmp_path)])
    *lines, least = capsys.readouterr().out.splitlines()
    for line in lines[1:]:
        w, objective, surrogate, tangent = map(float, line.split())
        assert surrogate == pytest.approx(objective, abs=0.03), w
        assert tangent < objective or w == 0
    found = [float(word.rstrip(",")) for word in least.split()[4::2]]
    assert found[1] == pytest.approx(found[0], abs=0.3)
    assert found[2] == 5
    assert (tmp_path / "surrogate.png").read_bytes().startswith(b"\x89PNG")


def test_the_study_of_memorisation_tells_copies_from_new_images() -> None:
    """By hand, in the plane of two pixels: a quarter of the way to the next trained image is a copy."""
    study = runpy.run_path(str(ROOT / "examples" / "memorisation.py"))

    def image(x: float, y: float) -> torch.Tensor:
        return torch.tensor([float(x), float(y)]).reshape(1, 1, 1, 2)

    held = torch.cat([image(0, 0), image(5, 0)])
    others = torch.cat([image(0, 2), image(5, 100)])
    drawn = torch.cat([image(1, 0), image(2, 0), image(0, 1.5), image(5, 1)])
    row = study["judged"](7, drawn, held, others)
    assert (row.size, row.steps) == (2, 7)
    # 1 of 4, 2 of 3, 1.5 of 5.22 and 1 of 5.10
    assert row.copies == 3 / 4
    # of the others 2 of 5.39, and 100 of 100.1
    assert row.real_copies == 0
    # the third is .5 from (0, 2)
    assert row.nearer == 3 / 4
    assert torch.equal(row.images[1, :, 0, 0, 0], torch.tensor([0.0, 0, 0, 5]))
    assert "75%" in study["table"]([row])


@pytest.mark.extended
def test_the_study_of_memorisation_draws_its_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = runpy.run_path(str(ROOT / "examples" / "memorisation.py"))
    study["main"](["--output", str(tmp_path), "--sizes", "4,8", "--steps", "1,2", "--drawn", "10"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["4", "1"],
        ["4", "2"],
        ["8", "1"],
        ["8", "2"],
    ]
    assert (tmp_path / "memorisation.png").is_file()


def train_prior() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "train_prior.py"))


def test_a_digit_of_mnist_is_framed_by_its_ink() -> None:
    """Rows 3 to 10 and columns 20 to 23 of 28 come to 6 to 13 and 8 to 11 of 20; ink at the border as well."""
    images = torch.zeros(2, 28, 28, dtype=torch.uint8)
    images[0, 3:11, 20:24] = 7
    images[1, 27, 0] = 9
    expected = torch.zeros(2, 1, 20, 20)
    expected[0, 0, 6:14, 8:12] = 7
    expected[1, 0, 10, 10] = 9
    found = train_prior()["framed"](images)
    assert torch.equal(found, expected)


@pytest.mark.extended
def test_the_digits_prior_is_trained_drawn_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_loaded(monkeypatch)
    write_source(monkeypatch, tmp_path, "mnist", small_mnist())
    main = train_prior()["main"]
    monkeypatch.setitem(main.__globals__, "STEPS", 2)
    main(["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--steps", "2"])
    sha256, share = re.findall(r"SHA-256 (\w+), .*\nrecognised: (0\.\d+)", capsys.readouterr().out)[
        0
    ]
    content = (tmp_path / "out" / "digits_prior.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == sha256
    assert decoded(content, sha256).form.shape == (1, 8, 8)
    assert (tmp_path / "out" / "digits_prior.png").read_bytes().startswith(b"\x89PNG")
    assert 0 < float(share) < 0.5, "two steps teach nothing"


@pytest.mark.extended
def test_a_prior_of_another_set_is_one_that_feddgm_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_loaded(monkeypatch)
    write_source(monkeypatch, tmp_path, "fashionmnist", small_mnist())
    main = train_prior()["main"]
    monkeypatch.setitem(main.__globals__, "STEPS", 1)
    monkeypatch.setitem(main.__globals__, "GENERATED", 20)
    words = ["--dataset", "fashionmnist", "--data", str(tmp_path), "--output", str(tmp_path)]
    main([*words, "--steps", "1"])
    message = capsys.readouterr().out
    (sha256,) = re.findall(r"^SHA-256 (\w+), ", message, re.M)
    assert re.search(r"^recognised: [01]\.\d+ of 10 real images$", message, re.M)
    with Image.open(tmp_path / "fashionmnist_prior.png") as picture:
        assert picture.size == (560, 560), "ten of 28 pixels, doubled"
    config = load({"method": "feddgm", "dataset": "fashionmnist"})
    network = decoded((tmp_path / "fashionmnist_prior.json").read_bytes(), sha256)
    assert feature_space(Division(config).run, network).network.form == Form((1, 28, 28), 10)


@pytest.mark.parametrize(
    ("name", "said"),
    [("reddit", "holds sequences: a generator learns"), ("fashion", "did you mean fashionmnist")],
)
def test_what_has_no_images_trains_no_prior(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        train_prior()["main"](["--dataset", name, "--data", str(tmp_path)])
    assert said in capsys.readouterr().err


def test_the_nearest_real_images_are_sought_among_as_many_of_a_site_as_elsewhere() -> None:
    """By hand, in images of one pixel: of class 0 the site has 0.0 to 0.9 and the test set 0.05 to 0.95."""
    from nearest_real import Real, nearness, real_nearness

    steps = torch.arange(10).reshape(-1, 1, 1, 1) / 10
    zeros = torch.zeros(10, dtype=torch.int64)
    lone = torch.tensor([1]), torch.full((1, 1, 1, 1), 0.5)
    site = torch.cat([steps, lone[1]]), torch.cat([zeros, lone[0]])
    real = Real({"a": site}, (steps + 0.05, zeros))
    assert real.has("a", torch.tensor([0, 1, 2])).tolist() == [True, True, False]

    made = torch.tensor([0.0, 0.31, 0.96, 0.5]).reshape(-1, 1, 1, 1)
    near = nearness({"a": (made, torch.tensor([0, 0, 0, 1]))}, real)
    assert near.own.tolist() == pytest.approx([0, 0.01, 0.06], abs=1e-6)
    assert near.other.tolist() == pytest.approx([0.05, 0.04, 0.01], abs=1e-6)
    assert near.nearer == pytest.approx(2 / 3)
    among = real_nearness(real)
    assert among.own.tolist() == pytest.approx([0.1] * 10, abs=1e-6)
    assert len(among.other) == 10


@pytest.mark.extended
def test_the_distilled_pictures_are_judged_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of images that no step has moved: the generator's digits of classes that sites lack are as good as the others."""
    words = {"iterations": 0, "classes": "all", "epochs": 1, "ipc": 2, "global_epochs": 0}
    record = nectar.run(
        "feddgm",
        progress=False,
        rounds=1,
        partition={"alpha": 0.1},
        output_dir=tmp_path,
        feddgm=words | {"surrogate_epochs": 0},
    ).directory
    study = runpy.run_path(str(ROOT / "examples" / "distilled_pictures.py"))
    study["main"]([f"begun={record}", "--output", str(tmp_path)])
    _, begun, real = capsys.readouterr().out.splitlines()
    name, held, lacking, own, other, _ = begun.split()
    assert name == "begun"
    assert min(int(held.rstrip("%")), int(lacking.rstrip("%"))) > 60
    assert float(own) == pytest.approx(float(other), rel=0.1)
    assert real.startswith("real")
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"distilled-nearest.png", "distilled-spaces.png"}


def test_the_attackers_figures_by_hand() -> None:
    """Members at 3, 2, 1 and others at 2, 0, 0, 0: of twelve pairs ten are right and one is a tie."""
    from membership import Scores, nearness

    scores = Scores(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.0, 2.0, 0.0, 0.0]))
    assert scores.area == pytest.approx(10.5 / 12)
    assert scores.found(0.01) == pytest.approx(1 / 3), "above the highest of the others"
    assert scores.found(0.25) == 1, "one of the others may be above"
    points, made = torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[0.5], [3.0], [1.0]])
    classes = torch.tensor([0, 0, 1])
    near = nearness(points, torch.tensor([0, 1, 2]), made, classes)
    assert near.tolist() == [-0.5, 0.0], "of the third class there is nothing"


@pytest.mark.extended
def test_the_attacker_finds_the_members_of_a_run_that_sends_them_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """REAL sends 20 of a class and site, and every one is found; means that hide nothing are shared, too."""
    from membership import attacked, main

    given: dict[str, Any] = {"progress": False, "output_dir": tmp_path, "rounds": 1}
    given |= {"data": {"images": 200, "validation": 0}, "federation": {"sites": 2}}
    real = nectar.run("real", real={"ipc": 200}, image_training={"epochs": 1}, **given).directory
    main([f"real={real}", "--rate", "0"])
    (row,) = re.findall(r"^real +images +200 +1597 +(\S+) +(\S+)$", capsys.readouterr().out, re.M)
    assert float(row[0]) > 0.99
    assert float(row[1]) > 0.95
    vae = {"name": "vae", "depth": 1, "width": 4, "embedding": 4}
    means = {"preliminary_rounds": 1, "epochs": 1, "smallest": 1, "classes": 10}
    dpms = nectar.run("feddpms", model=vae, feddpms=means, **{**given, "rounds": 2}).directory
    found = attacked(str(dpms))
    assert set(found) >= {"weights", "means"}
    assert len(found["means"].members) == 200


@pytest.mark.extended
def test_the_study_of_robust_averages_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    study = runpy.run_path(str(ROOT / "examples" / "robust_averages.py"))
    study["main"](["--hostile", "3", "--seeds", "1", "--rounds", "1", "fedavg.epochs=1"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["mean", "clip", "median", "trimmed", "krum", "multi-krum"]
    assert [line.split(",")[0] for line in lines] == ["flipped", "scaled", "relabelled"]
    assert all(0 <= float(n) <= 1 for n in re.findall(r"0\.\d{3}|1\.000", "".join(lines)))


def test_a_model_relabelled_and_back_has_trained_on_the_other_labels() -> None:
    """One step of SGD on labels y of the model turned round is one on 9 - y of the model as it is."""
    study = runpy.run_path(str(ROOT / "examples" / "robust_averages.py"))
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 4, generator=draws), torch.randint(10, (6,), generator=draws)
    weight, bias = torch.randn(10, 4, generator=draws), torch.randn(10, generator=draws)

    def stepped(w: torch.Tensor, b: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        w, b = w.clone().requires_grad_(), b.clone().requires_grad_()
        torch.nn.functional.cross_entropy(x @ w.T + b, labels).backward()
        assert w.grad is not None
        assert b.grad is not None
        return [(w - w.grad).detach(), (b - b.grad).detach()]

    turn = study["relabelled"]
    given = turn([weight.numpy(), bias.numpy()])
    ended = stepped(torch.from_numpy(given[0]), torch.from_numpy(given[1]), y)
    expected = stepped(weight, bias, 9 - y)
    for found, want in zip(turn([e.numpy() for e in ended]), expected, strict=True):
        assert torch.allclose(torch.from_numpy(found), want, atol=1e-6)
