"""StyleGAN-XL's official file through `examples/stylegan_xl.py`: what is opened, what never, and runs through it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import stylegan_repository
import torch
from federation import numbers, resumed, run
from real_site import Site
from small import Small
from style_training import encoded, start
from stylegan_repository import Standin, standin

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from nectar.engines.preflight import check
from strategies.feddgm import feature_space, image_generator
from synth.generators.style import Form

TINY = (
    "data.images=200 model.depth=2 feddgm.epochs=2 feddgm.ipc=2 feddgm.iterations=3 feddgm.inner_epochs=3 "
    "feddgm.global_epochs=2 feddgm.surrogate_epochs=2 feddgm.global_models=mlp "
)
OFFICIAL = f"{TINY} feddgm.generator=stylegan_xl:make "


class Bomb:
    """What a pickle can do: here it leaves a mark, where it could do anything."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    return standin(tmp_path_factory.mktemp("official"))


@pytest.fixture
def official(made: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    made.named(monkeypatch)
    return made


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name a file that goes off when it is opened, and return the mark that it leaves then."""
    mark = tmp_path / "it went off"
    code = stylegan_repository.repository(tmp_path)
    stylegan_repository.written(tmp_path, code, Bomb(mark)).named(monkeypatch)
    return mark


def generator_of(small: Small, text: str = "", **keys: Any) -> Any:
    return image_generator(Division(load(small(method="feddgm", set=OFFICIAL + text, **keys))).run)


def refusal(small: Small, text: str = "") -> str:
    """Return what a run is refused with before it begins."""
    with pytest.raises(ConfigError) as caught:
        check(load(small(method="feddgm", set=OFFICIAL + text)))
    return str(caught.value)


# --- what is opened ---


def test_the_official_file_makes_the_networks_own_images(small: Small, official: Standin) -> None:
    """Those of a network that no file has been through."""
    space = generator_of(small, "feddgm.space=2 feddgm.chunk=3")
    assert (space.n, space.rate_w, space.rate_f, space.chunk) == (2, 1.0, 30.0, 3)
    labels = torch.tensor([4, 9])
    latents = space.latents(labels, torch.Generator().manual_seed(3))
    expected = stylegan_repository.network(official.code, (1, 8, 8), 10)(
        torch.randn(2, 5, generator=torch.Generator().manual_seed(3)),
        torch.nn.functional.one_hot(labels, 10),
        force_fp32=True,
    )
    torch.testing.assert_close(space.images(latents), expected, rtol=0, atol=1e-6)
    assert not any(p.requires_grad for p in space.network.parameters())
    assert not space.network.training


def test_opening_it_leaves_nothing_behind(small: Small, official: Standin) -> None:
    before = list(sys.path)
    generator_of(small)
    assert sys.path == before
    assert not {"legacy", "dnnlib", "torch_utils", "torch_utils.ops"} & sys.modules.keys()


def test_two_checkouts_do_not_meet_in_one_process(
    small: Small, official: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = standin(tmp_path)
    lines = (other.code / "legacy.py").read_text()
    (other.code / "legacy.py").write_text(lines.replace("return _Legacy", "return 1 / 0, _Legacy"))
    generator_of(small)
    other.named(monkeypatch)
    assert "ZeroDivisionError" in refusal(small)
    official.named(monkeypatch)
    generator_of(small)


@pytest.mark.extended
@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.usefixtures("official")
def test_making_images_in_chunks_changes_rounding_alone(small: Small, together: int) -> None:
    """20 images a site, 3 at a time; of two sites side by side 25 at a time, which is a site and no second."""
    text = f"{OFFICIAL} feddgm.dsa= feddgm.together={together}"
    whole, parts = (
        run(small(method="feddgm", rounds=1, set=f"{text} feddgm.chunk={chunk}"))
        for chunk in (0, 3 if together == 1 else 25)
    )
    one, other = (record.metrics()[1]["notes"]["matching"] for record in (whole, parts))
    for site, noted in one.items():
        assert other[site]["loss"] == pytest.approx(noted["loss"], rel=1e-4)


@pytest.mark.extended
@pytest.mark.usefixtures("official")
def test_resumed_it_is_an_unbroken_run(small: Small) -> None:
    text = f"{OFFICIAL} feddgm.warm=on"
    whole = run(small(method="feddgm", rounds=2, set=text))
    part = run(small(method="feddgm", rounds=1, set=text))
    resumed(part, 2)
    assert numbers(part) == numbers(whole)


# --- what never is ---


@pytest.mark.parametrize("name", ["FILE", "SHA256", "CODE"])
def test_a_variable_that_is_missing_is_named(
    small: Small, bomb: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"STYLEGAN_XL_{name}")
    assert f"needs the environment variable STYLEGAN_XL_{name} at the server" in refusal(small)
    assert not bomb.exists()


@pytest.mark.promise(
    "Records",
    "FedDGM reads a generator's file by a function that the operator installed; the example for StyleGAN-XL opens the "
    "pickle at the server alone, and only the one of its SHA-256",
)
def test_another_file_than_was_meant_is_not_opened(
    small: Small, bomb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STYLEGAN_XL_SHA256", "0" * 64)
    message = refusal(small)
    assert "was not opened: its SHA-256 begins with" in message
    assert message.endswith(f"STYLEGAN_XL_SHA256 with {'0' * 16}")
    assert not bomb.exists()


def test_with_its_checksum_it_is_opened(small: Small, bomb: Path) -> None:
    """The bomb of the tests around goes off when nothing holds it back: they would see it."""
    assert "cannot be opened (TypeError" in refusal(small)
    assert bomb.exists()


def test_no_device_opens_it(small: Small, bomb: Path) -> None:
    site = Site(small(method="feddgm", rounds=1, set=OFFICIAL))
    assert not site.roll_call().has_error()
    assert not site.train("train").has_error()
    assert not bomb.exists()


@pytest.mark.usefixtures("official")
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FILE", "/nowhere/cifar10.pkl", "cannot be read: No such file"),
        ("CODE", "/nowhere", "is not a checkout of StyleGAN-XL's official repository"),
        ("OPS", "compiled", "makes no image (RuntimeError: Could not find nvcc"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(
    small: Small, variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"STYLEGAN_XL_{variable}", value)
    assert said in refusal(small)


@pytest.mark.usefixtures("official")
def test_a_space_that_is_not_there_is_refused(small: Small) -> None:
    assert "has the spaces F_0 to F_3, and no F_4; change feddgm.space" in refusal(
        small, "feddgm.space=4"
    )


@pytest.mark.usefixtures("official")
def test_a_file_of_other_images_is_refused(small: Small) -> None:
    with pytest.raises(ConfigError, match="images of 1x8x8, and the run's are of 1x28x28"):
        generator_of(small, dataset="mnist")  # MNIST's files need not be here for it


@pytest.mark.parametrize(
    ("classes", "said"), [(7, "knows 7 classes, and the run has 10"), (0, "knows 0 classes")]
)
def test_a_file_of_other_classes_is_refused(
    small: Small, classes: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin(tmp_path, classes=classes).named(monkeypatch)
    assert said in refusal(small)


def test_a_network_that_makes_no_numbers_is_refused(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = stylegan_repository.repository(tmp_path)
    with stylegan_repository.importable(code):
        broken = stylegan_repository.network(code, (1, 8, 8), 10)
        broken.synthesis.input.phases.fill_(torch.nan)
        file = stylegan_repository.written(tmp_path, code, {"G_ema": broken})
    file.named(monkeypatch)
    assert "makes images that are not finite" in refusal(small)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"D": 1}, "cannot be opened (KeyError: 'G_ema')"),
        ({"G_ema": 1}, "its G_ema is a int and not a network"),
        ({"G_ema": torch.nn.Linear(2, 2)}, "makes no image (AttributeError"),
    ],
)
def test_a_pickle_of_something_else_is_refused(
    small: Small, tmp_path: Path, content: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = stylegan_repository.repository(tmp_path)
    stylegan_repository.written(tmp_path, code, content).named(monkeypatch)
    assert said in refusal(small)


def test_a_module_that_the_code_needs_and_is_not_there_is_named(
    small: Small, official: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = stylegan_repository.repository(tmp_path)
    loader = code / "legacy.py"
    loader.write_text("import no_such_dill\n" + loader.read_text())
    monkeypatch.setenv("STYLEGAN_XL_CODE", str(code))
    assert "ModuleNotFoundError: No module named 'no_such_dill'" in refusal(small)


# --- a generator of one's own ---


OWN = """
import hashlib
from pathlib import Path
from strategies.feddgm import feature_space
from synth.generators.style import decoded

def make(run):
    content = Path({file!r}).read_bytes()
    return feature_space(run, decoded(content, hashlib.sha256(content).hexdigest()))
"""


@pytest.mark.extended
def test_a_generator_of_ones_own_is_used(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = Form((1, 8, 8), 10, width=4, depth=1, latent=3)
    file = tmp_path / "prior.json"
    file.write_bytes(encoded(start(form, torch.Generator().manual_seed(1)), "a test"))
    (tmp_path / "own_prior.py").write_text(OWN.format(file=str(file)))
    monkeypatch.syspath_prepend(str(tmp_path))
    text = f"{TINY} feddgm.generator=own_prior:make feddgm.space=1"
    record = run(small(method="feddgm", rounds=1, set=text))
    assert record.metrics()[1]["accepted"]


def test_one_that_does_not_fit_is_refused(small: Small) -> None:
    config = load(small(method="feddgm", set=f"{TINY} feddgm.generator=own:make"))
    network = start(Form((3, 8, 8), 10, width=4), torch.Generator())
    with pytest.raises(ConfigError, match="makes images of 3x8x8 of 10 classes, and digits has"):
        feature_space(Division(config).run, network)
