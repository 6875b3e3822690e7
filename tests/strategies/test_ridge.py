"""Ridge regression from sums: one round, whatever the division; plain, exact or with noise."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import nectar
from client_app.ridge import RidgeClient
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError, PayloadError
from common.models import build, ridge
from common.models.ridge import drawn_images
from common.samples.inputs import samples
from common.specs.ridge import Summing, _packed, model_of
from common.wire.tensors import Tensors
from nectar.recorded_run import RecordedRun
from synth.ridge_regression import Curve

QUICK: dict[str, Any] = {"ridge.width": 17, "federation.sites": 3, "evaluation.batch": 400}
EXACT = QUICK | {"ridge.form": "integers"}


def ran(output: Path, **more: Any) -> RecordedRun:
    return nectar.run("ridge", output_dir=output, progress=False, **(QUICK | more))


def learned(run: RecordedRun) -> dict[str, torch.Tensor]:
    return dict(run.checkpoint().model(""))


def head(run: RecordedRun) -> torch.Tensor:
    """Return the solution [classes, d]: the last layer's weights times the error that makes scores logits."""
    state, error = learned(run), run.rounds[-1]["notes"]["error"]
    return torch.cat([state["head.weight"], state["head.bias"][:, None]], 1) * error


def configured(tmp_path: Path, **more: Any) -> Any:
    typed = {"method": "ridge", "dataset": "digits", "output-dir": str(tmp_path)}
    words = " ".join(f"{key}={value}" for key, value in more.items() if "." in key)
    return load({**typed, "set": words})


@pytest.mark.extended
def test_what_is_learned_is_the_solution_of_all_examples_in_one_place(tmp_path: Path) -> None:
    run = ran(tmp_path, **{"ridge.form": "integers", "ridge.levels": 64})
    division = Division(run.config)
    summing = Summing(division.run, model_of(division.run))
    where = np.sort(np.concatenate(list(division.partition(3))))
    every = samples(division.dataset.train, division.run.info, where)
    rows = torch.cat([rows for rows, _ in summing.batches(every)]) * summing.rows.by
    rows = rows.numpy()
    y = np.eye(10)[every.labels.numpy()]
    penalty = Curve.of(summing.sums(every).scaled(summing.rows.by), len(every)).least()
    left = np.vstack([rows, penalty**0.5 * np.eye(17)])
    expected = np.linalg.lstsq(left, np.vstack([y, np.zeros((17, 10))]), rcond=None)[0]
    np.testing.assert_allclose(head(run).numpy(), expected.T, rtol=2e-4, atol=2e-5)


@pytest.mark.extended
def test_exact_sums_give_the_same_bits_over_any_division(tmp_path: Path) -> None:
    first = ran(tmp_path, **EXACT)
    for more in ({"federation.sites": 7}, {"partition.kind": "iid"}, {"partition.alpha": 0.05}):
        other = ran(tmp_path, **(EXACT | more))
        assert torch.equal(head(other), head(first)), more


@pytest.mark.extended
@pytest.mark.parametrize(
    ("more", "least"),
    [
        ({"ridge.width": 257}, 0.9),
        ({"ridge.alone": True}, 0.7),
        ({"ridge.axes": "random"}, 0.7),
        ({"ridge.axes": "server"}, 0.8),
        ({"ridge.sums": "class"}, 0.7),
        ({"ridge.server": True, "ridge.form": "integers"}, 0.8),
        ({"ridge.server": True, "ridge.sums": "class"}, 0.8),
        ({"ridge.lam": "5"}, 0.8),
        ({"privacy.noise_multiplier": 0.1}, 0.6),
        ({"privacy.noise_multiplier": 0.1, "ridge.sums": "class"}, 0.6),
        ({"privacy.noise_multiplier": 3.0, "ridge.server": True}, 0.75),
    ],
)
def test_it_learns_in_each_of_its_forms_and_scores_over_their_error_are_logits(
    tmp_path: Path, more: Any, least: float
) -> None:
    """No other temperature from a half to twice as high has a much lower loss on the test images."""
    run = ran(tmp_path, **more)
    assert run.rounds[-1]["test"]["accuracy"] > least
    division = Division(run.config)
    test = samples(division.dataset.test, division.run.info)
    with torch.no_grad():
        logits = run.model(test.inputs(slice(None)))
    of = [float(F.cross_entropy(logits * by, test.labels)) for by in (0.5, 1.0, 2.0)]
    assert of[1] == pytest.approx(run.rounds[-1]["test"]["loss"], rel=1e-3)
    assert of[1] < min(of) + 0.25
    assert of[1] < np.log(10) / 1.5


@pytest.mark.extended
def test_bytes_are_as_good_and_fewer(tmp_path: Path) -> None:
    exact, coded = (ran(tmp_path, **(more | {"ridge.width": 65})) for more in (EXACT, QUICK))
    figures = [run.rounds[-1]["test"]["accuracy"] for run in (exact, coded)]
    assert min(figures) > 0.9
    assert abs(figures[0] - figures[1]) < 0.02
    up = [sum(run.rounds[-1]["bytes"]["up"].values()) for run in (exact, coded)]
    assert up[1] < up[0] / 2
    assert max(coded.rounds[-1]["bytes"]["down"].values()) < 400, "nothing is sent down"


@pytest.mark.extended
def test_the_servers_examples_join_as_if_a_site_had_them(tmp_path: Path) -> None:
    joined = ran(tmp_path, **(EXACT | {"ridge.server": True}))
    division = Division(joined.config)
    summing = Summing(division.run, model_of(division.run))
    total = summing.sums(
        samples(division.dataset.train, division.run.info, np.array([], dtype=np.int64))
    )
    for part in (*division.partition(3), division.validation):
        total = total + summing.sums(samples(division.dataset.train, division.run.info, part))
    plain = total.scaled(summing.rows.by)
    solved = plain.solved(Curve.of(plain, summing.count(total)).least())
    torch.testing.assert_close(head(joined).double(), solved.mT, rtol=1e-5, atol=1e-6)


@pytest.mark.extended
def test_a_server_that_asks_nobody_solves_for_its_own_examples(tmp_path: Path) -> None:
    run = ran(tmp_path, **{"ridge.alone": True})
    division = Division(run.config)
    summing = Summing(division.run, model_of(division.run))
    own = samples(division.dataset.train, division.run.info, division.validation)
    plain = summing.sums(own).scaled(summing.rows.by)
    solved = plain.solved(Curve.of(plain, len(own)).least())
    torch.testing.assert_close(head(run).double(), solved.mT, rtol=1e-5, atol=1e-6)
    assert not sum(run.rounds[-1]["bytes"]["up"].values())


def test_rows_of_a_table_are_features_and_text_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    table = rng.normal(size=(300, 6)).astype(np.float32) + np.eye(3, 6)[labels] * 4
    file = tmp_path / "table.npz"
    arrays = {
        "train_images": table,
        "train_labels": labels,
        "test_images": table,
        "test_labels": labels,
    }
    np.savez(file, **arrays)
    own = {"data.file": str(file), "data.kind": "table", "ridge.plain": True}
    run = ran(tmp_path / "runs", **own)
    assert run.rounds[-1]["test"]["accuracy"] > 0.9
    assert learned(run)["axes"].shape == (6, 6)
    narrow = ran(tmp_path / "runs", **own, **{"ridge.width": 4})
    assert learned(narrow)["axes"].shape == (6, 3)
    with pytest.raises(ConfigError, match="text"):
        nectar.run("ridge", dataset="reddit", output_dir=tmp_path, progress=False)


def _own_pictures(tmp_path: Path, labels: Any) -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 255, (len(labels), 8, 8, 1), dtype=np.uint8)
    file = tmp_path / "own.npz"
    np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return {"data.file": str(file), "data.validation": 0.0, "federation.sites": 1}


def test_on_ones_own_data_sums_need_noise_or_leave(tmp_path: Path) -> None:
    own = _own_pictures(tmp_path, np.arange(90) % 3)
    with pytest.raises(ConfigError, match="=on if plain sums may leave"):
        ran(tmp_path / "runs", **own)
    ran(tmp_path / "runs", **own, **{"privacy.noise_multiplier": 2.0})


def test_a_small_class_of_ones_own_is_left_out_and_counted(tmp_path: Path) -> None:
    labels = np.array([0] * 40 + [1] * 30 + [2] * 9)
    run = ran(tmp_path / "runs", **_own_pictures(tmp_path, labels), **{"ridge.plain": True})
    assert run.rounds[-1]["train"]["left-out"] == 9
    assert not bool(head(run)[2].any())


@pytest.mark.extended
def test_noise_is_charged_before_an_example_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[str] = []
    charge, of = RidgeClient.draws.fget, Summing.batches  # type: ignore[attr-defined]

    def draws(client: Any) -> Any:
        seen.append("draws")
        return charge(client)

    def read(*given: Any) -> Any:
        seen.append("read")
        return of(*given)

    monkeypatch.setattr(RidgeClient, "draws", property(draws))
    monkeypatch.setattr(Summing, "batches", read)
    run = ran(tmp_path, **{"privacy.noise_multiplier": 2.0, "federation.sites": 1})
    assert seen[0] == "draws"
    assert "read" in seen
    (spent,) = run.rounds[-1]["notes"]["spent"].values()
    assert spent["epsilon"] > 0


def test_sums_that_no_such_site_can_have_are_refused(tmp_path: Path) -> None:
    division = Division(configured(tmp_path, **{"ridge.width": 9}))
    summing = Summing(division.run, model_of(division.run))
    part = samples(division.dataset.train, division.run.info, division.partition(10)[0])
    honest = summing.payload(summing.sums(part))
    summing.require(honest, len(part))
    with pytest.raises(PayloadError, match="examples"):
        summing.require(honest, len(part) // 2)
    huge = {**honest.tensors, "roots": honest["roots"] * 100}
    with pytest.raises(PayloadError, match="examples"):
        summing.require(Tensors(huge), len(part))
    packed = honest["levels"]
    for spoilt in (packed[:-1], torch.cat([packed, packed]), packed.flip(0), _packed(BOMB)):
        arrays = Tensors({**honest.tensors, "levels": spoilt}).encode()
        with pytest.raises(PayloadError, match=r"compressed bytes|n at most"):
            summing.spec.decode(arrays)


BOMB = torch.zeros(2**25, dtype=torch.uint8)


@pytest.mark.extended
def test_each_sites_sums_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    kept = ran(tmp_path, **(EXACT | {"ridge.keep": "sites"}))
    state = kept.checkpoint().strategy
    assert set(state["sites"]) == {"partition-0", "partition-1", "partition-2"}
    total = sum(torch.as_tensor(parts[0]) for parts in state["sites"].values())
    assert torch.equal(torch.as_tensor(state["total"][0]), total)
    assert not ran(tmp_path, **EXACT).checkpoint().strategy["sites"]


@pytest.mark.extended
def test_a_frozen_networks_rows_are_features(tmp_path: Path) -> None:
    file = tmp_path / "network.safetensors"
    save_file(build("convnet", (1, 8, 8), 10, depth=2, width=16).state_dict(), file)
    frozen = {
        "features.name": "convnet",
        "features.start": str(file),
        "features.sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "features.depth": 2,
        "features.width": 16,
    }
    run = ran(tmp_path / "runs", **frozen, **{"ridge.features": "own", "ridge.width": 257})
    assert run.rounds[-1]["test"]["accuracy"] > 0.8
    assert learned(run)["axes"].shape == (64, 64)
    with pytest.raises(ConfigError, match=r"ridge\.features=random and features\.name=convnet"):
        ran(tmp_path / "runs", **frozen)


@pytest.mark.extended
def test_features_are_of_each_picture_alone_of_any_size_and_number_of_channels() -> None:
    for shape in ((1, 8, 8), (3, 8, 12), (1, 28, 28), (3, 70, 90), (2, 5, 2)):
        model = build("ridge", shape, 3, width=5).eval()
        images = torch.randn(7, *shape, generator=torch.Generator().manual_seed(0))
        z = model.embed(images)
        assert z.shape == (7, 4)
        assert bool(z.isfinite().all())
        torch.testing.assert_close(model.embed(images[3:4]), z[3:4], rtol=1e-4, atol=1e-4)
        if shape[0] > 1:
            torch.testing.assert_close(model.embed(images.flip(3)), z, rtol=1e-4, atol=1e-4)


@pytest.mark.extended
def test_axes_are_the_principal_ones_of_drawn_images_and_drawn_by_the_seed() -> None:
    one, same, other = (
        build("ridge", (1, 8, 8), 3, width=9, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one.axes, same.axes)
    assert not torch.equal(one.axes, other.axes)
    draws = torch.Generator().manual_seed(3)
    z = one.embed(drawn_images((1, 8, 8), 2000, draws).float())
    spread = z.std(0)
    torch.testing.assert_close(spread, one.spread, rtol=0.15, atol=0)
    apart = torch.corrcoef(z.mT) - torch.eye(8)
    assert float(apart.abs().max()) < 0.3


@pytest.mark.extended
def test_some_axes_are_of_an_untrained_networks_embedding(tmp_path: Path) -> None:
    for shape in ((1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 70, 90), (2, 5, 2)):
        network = ridge.RandomNetwork(shape)
        network.fill(torch.Generator().manual_seed(0))
        assert network(torch.rand(2, *shape)).shape == (2, network.size)
    model = build("ridge", (1, 8, 8), 3, width=17, embedding=3).eval()
    filters, network = model.filters.size, model.network.size
    assert model.axes.shape == (filters + network, 16)
    assert not model.axes[:filters, 13:].any()
    assert not model.axes[filters:, :13].any()
    alone = build("ridge", (1, 8, 8), 3, width=14).eval()
    assert torch.equal(model.axes[:filters, :13], alone.axes)
    run = ran(tmp_path, **{"ridge.features": "deep"})
    assert run.model.parts[1][1] == 3
    assert len(run.model.offset) == 16


def test_axes_are_computed_once_on_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, own_axes = list[int](), ridge.own_axes
    monkeypatch.setattr(ridge, "own_axes", lambda *a: computed.append(1) or own_axes(*a))
    monkeypatch.setattr(ridge, "_FILES", 2)
    monkeypatch.setattr(ridge, "DRAWN", 40)

    def drawn(seed: int) -> list[bytes]:
        ridge._drawn.cache_clear()  # as another process begins
        draws = torch.Generator().manual_seed(seed)
        model = build("ridge", (1, 8, 8), 3, width=9, generator=draws)
        return [b.numpy().tobytes() for b in model.buffers()]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = drawn(1)
    assert drawn(1) == first
    assert len(computed) == 1
    (file,) = tmp_path.rglob("*.safetensors")
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"", b"\x80\x04K\x01."):
        file.write_bytes(damaged)
        assert drawn(1) == first
    assert len(computed) == 5
    assert drawn(2) != first
    drawn(3)
    assert len([*tmp_path.rglob("*.safetensors")]) == 2
    nowhere = tmp_path / "a file"
    nowhere.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere))
    assert drawn(1) == first


def test_every_site_is_asked_where_a_data_set_asks_a_few_a_round() -> None:
    """Ten writers of 300 in the one round there is would leave out 290 for good."""
    assert load({"method": "fedavg", "dataset": "femnist"}).federation.participation < 1
    assert load({"method": "ridge", "dataset": "femnist"}).federation.participation == 1
