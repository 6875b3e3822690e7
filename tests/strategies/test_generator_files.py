"""FedDGM's generator out of a file: what is opened and what never, and runs through what was opened."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import stylegan_repository
import torch
from federation import numbers, resumed, run
from real_site import Site
from small import Small
from stylegan_repository import Standin, standin

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from nectar.engines.preflight import check
from strategies.stylegan_file import image_generator
from synth.generators.latents import FeatureSpace
from synth.generators.style import Form, encoded, start
from synth.generators.stylegan_xl import StyleganXL

pytestmark = pytest.mark.promise(
    "Records",
    "A generator's pickle opens at the server alone, with `feddgm.unpickle=on` and its SHA-256",
)

TINY = (
    "data.images=200 model.depth=2 feddgm.epochs=2 feddgm.ipc=2 feddgm.iterations=3 feddgm.inner_epochs=3 "
    "feddgm.global_epochs=2 feddgm.surrogate_epochs=2 feddgm.global_models=mlp "
)


class Bomb:
    """What a pickle can do: here it leaves a mark, where it could do anything."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    return standin(tmp_path_factory.mktemp("official"))


@pytest.fixture
def bomb(tmp_path: Path) -> tuple[Standin, Path]:
    """Return a file that goes off when it is opened, and the mark that it leaves then."""
    mark = tmp_path / "it went off"
    code = stylegan_repository.repository(tmp_path)
    return stylegan_repository.written(tmp_path, code, Bomb(mark)), mark


def generator_of(small: Small, text: str) -> Any:
    return image_generator(Division(load(small(method="feddgm", set=f"{TINY} {text}"))).run)


def refusal(small: Small, text: str, **keys: Any) -> str:
    """Return what a run is refused with before it begins."""
    with pytest.raises(ConfigError) as caught:
        check(load(small(method="feddgm", set=f"{TINY} {text}", **keys)))
    return str(caught.value)


# --- what is opened ---


def test_the_official_file_makes_the_networks_own_images(small: Small, official: Standin) -> None:
    """Those of a network that no file has been through."""
    space = generator_of(small, official.settings("feddgm.space=2 feddgm.chunk=3"))
    assert isinstance(space, StyleganXL)
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
    generator_of(small, official.settings())
    assert sys.path == before
    assert not {"legacy", "dnnlib", "torch_utils", "torch_utils.ops"} & sys.modules.keys()


def test_two_checkouts_do_not_meet_in_one_process(
    small: Small, official: Standin, tmp_path: Path
) -> None:
    other = standin(tmp_path)
    lines = (other.code / "legacy.py").read_text()
    (other.code / "legacy.py").write_text(lines.replace("return _Legacy", "return 1 / 0, _Legacy"))
    generator_of(small, official.settings())
    assert "ZeroDivisionError" in refusal(small, other.settings())
    generator_of(small, official.settings())


@pytest.mark.extended
@pytest.mark.parametrize("together", [1, 2])
def test_making_images_in_chunks_changes_rounding_alone(
    small: Small, official: Standin, together: int
) -> None:
    """20 images a site, 3 at a time; of two sites side by side 25 at a time, which is a site and no second."""
    text = f"{TINY} feddgm.dsa= feddgm.together={together} {official.settings()}"
    whole, parts = (
        run(small(method="feddgm", rounds=1, set=f"{text} feddgm.chunk={chunk}"))
        for chunk in (0, 3 if together == 1 else 25)
    )
    one, other = (record.metrics()[1]["notes"]["matching"] for record in (whole, parts))
    for site, noted in one.items():
        assert other[site]["loss"] == pytest.approx(noted["loss"], rel=1e-4)


@pytest.mark.extended
def test_resumed_it_is_an_unbroken_run(small: Small, official: Standin) -> None:
    text = f"{TINY} feddgm.warm=on {official.settings()}"
    whole = run(small(method="feddgm", rounds=2, set=text))
    part = run(small(method="feddgm", rounds=1, set=text))
    resumed(part, 2)
    assert numbers(part) == numbers(whole)


def test_a_class_of_the_run_is_the_files_class_of_that_number(small: Small, tmp_path: Path) -> None:
    thousand = standin(tmp_path, classes=1000)
    named = "982,0,7,999,281,5,6,8,9,10"
    space = generator_of(small, thousand.settings(f"feddgm.stylegan_classes={named}"))
    assert space.classes == (982, 0, 7, 999, 281, 5, 6, 8, 9, 10)


# --- what never is ---


def test_without_the_switch_nothing_is_opened(small: Small, bomb: tuple[Standin, Path]) -> None:
    file, mark = bomb
    message = refusal(small, file.settings("feddgm.unpickle=off"))
    assert message.startswith("feddgm.generator=stylegan-xl opens a pickle, which runs any code")
    assert "set feddgm.unpickle=on if you trust" in message
    assert not mark.exists()


@pytest.mark.parametrize("key", ["stylegan", "stylegan_code", "generator_sha256"])
def test_a_setting_that_is_missing_is_named(
    small: Small, bomb: tuple[Standin, Path], key: str
) -> None:
    file, mark = bomb
    message = refusal(small, file.settings(f"feddgm.{key}="))
    assert message.startswith(f"feddgm.generator=stylegan-xl needs feddgm.{key}: ")
    assert not mark.exists()


def test_another_file_than_was_meant_is_not_opened(
    small: Small, bomb: tuple[Standin, Path]
) -> None:
    file, mark = bomb
    meant = file.sha256[::-1]
    message = refusal(small, file.settings(f"feddgm.generator_sha256={meant}"))
    assert message == (
        f"feddgm.stylegan={file.file} was not opened: its SHA-256 begins with {file.sha256[:16]} and "
        f"feddgm.generator_sha256 with {meant[:16]}, so it is damaged or another file"
    )
    assert not mark.exists()


def test_with_all_of_them_it_is_opened_and_that_is_what_the_switch_is_for(
    small: Small, bomb: tuple[Standin, Path]
) -> None:
    """The bomb of the tests around goes off when nothing holds it back: they would see it."""
    file, mark = bomb
    assert "cannot be opened (TypeError" in refusal(small, file.settings())
    assert mark.exists()


def test_no_device_opens_it(small: Small, bomb: tuple[Standin, Path]) -> None:
    file, mark = bomb
    site = Site(small(method="feddgm", rounds=1, set=f"{TINY} {file.settings()}"))
    assert not site.roll_call().has_error()
    assert not site.train("train").has_error()
    assert not mark.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("feddgm.stylegan=/nowhere/cifar10.pkl", "stylegan=/nowhere/cifar10.pkl is not there"),
        (
            "feddgm.stylegan_code=/nowhere",
            "=/nowhere is not a checkout of StyleGAN-XL's official rep",
        ),
        ("feddgm.space=4", "has the spaces F_0 to F_3, and no F_4; change feddgm.space"),
        ("feddgm.stylegan_classes=1,2", "stylegan_classes names 2 classes, and the run has 10"),
        ("feddgm.stylegan_classes=1,2,3,4,5,6,7,8,9,10", "has classes from 0 to 9"),
        ("feddgm.stylegan_ops=compiled", "makes no image (RuntimeError: Could not find nvcc)"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    small: Small, official: Standin, change: str, said: str
) -> None:
    assert said in refusal(small, official.settings(change))


def test_a_file_of_other_images_is_refused(small: Small, official: Standin) -> None:
    config = load(small(method="feddgm", dataset="mnist", set=f"{TINY} {official.settings()}"))
    with pytest.raises(ConfigError, match="images of 1x8x8, and the run's are of 1x28x28"):
        image_generator(Division(config).run)  # MNIST's files need not be here for it


def test_a_file_of_other_classes_asks_which_of_them_the_runs_are(
    small: Small, tmp_path: Path
) -> None:
    message = refusal(small, standin(tmp_path, classes=7).settings())
    assert "knows 7 classes, and the run has 10: set feddgm.stylegan_classes" in message


def test_a_file_without_classes_is_refused(small: Small, tmp_path: Path) -> None:
    assert "knows no classes" in refusal(small, standin(tmp_path, classes=0).settings())


def test_a_network_that_makes_no_numbers_is_refused(small: Small, tmp_path: Path) -> None:
    code = stylegan_repository.repository(tmp_path)
    with stylegan_repository.importable(code):
        broken = stylegan_repository.network(code, (1, 8, 8), 10)
        broken.synthesis.input.phases.fill_(torch.nan)
        file = stylegan_repository.written(tmp_path, code, {"G_ema": broken})
    assert "makes images that are not finite" in refusal(small, file.settings())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"D": 1}, "cannot be opened (KeyError: 'G_ema')"),
        ({"G_ema": 1}, "holds a int as its G_ema, and no network"),
        ({"G_ema": torch.nn.Linear(2, 2)}, "is not a network of StyleGAN-XL's (AttributeError"),
    ],
)
def test_a_pickle_of_something_else_is_refused(
    small: Small, tmp_path: Path, content: object, said: str
) -> None:
    code = stylegan_repository.repository(tmp_path)
    file = stylegan_repository.written(tmp_path, code, content)
    assert said in refusal(small, file.settings())


def test_a_module_that_the_code_needs_and_is_not_there_is_named(
    small: Small, official: Standin, tmp_path: Path
) -> None:
    code = stylegan_repository.repository(tmp_path)
    loader = code / "legacy.py"
    loader.write_text("import no_such_dill\n" + loader.read_text())
    message = refusal(small, official.settings(f"feddgm.stylegan_code={code}"))
    assert "without the Python module no_such_dill, which its code imports: install it" in message


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("feddgm.stylegan=cifar10.pkl", "an absolute path to a .pkl file"),
        ("feddgm.stylegan_code=stylegan-xl", "an absolute path"),
        ("feddgm.generator_sha256=abc", "64 digits from 0 to f"),
        ("feddgm.stylegan_classes=1,,2", "numbers from 0 with commas between them"),
        ("feddgm.generator=biggan", "pixels, digits, stylegan-xl, or an absolute path to a .json"),
        ("feddgm.generator=prior.json", "or an absolute path to a .json file"),
    ],
)
def test_a_value_that_can_be_none_is_refused_when_it_is_read(
    small: Small, setting: str, said: str
) -> None:
    with pytest.raises(ConfigError, match="must be") as caught:
        load(small(method="feddgm", set=setting))
    assert said in str(caught.value)


# --- a generator of one's own ---


def prior(folder: Path, shape: tuple[int, int, int] = (1, 8, 8)) -> tuple[Path, str]:
    """Write a small generator as examples/train_prior.py does; return its place and checksum."""
    form = Form(shape, 10, width=4, depth=1, latent=3)
    content = encoded(start(form, torch.Generator().manual_seed(1)), "a test")
    (folder / "prior.json").write_bytes(content)
    return folder / "prior.json", hashlib.sha256(content).hexdigest()


@pytest.mark.extended
def test_a_generator_of_ones_own_is_used(small: Small, tmp_path: Path) -> None:
    path, sha256 = prior(tmp_path)
    text = f"feddgm.generator={path} feddgm.generator_sha256={sha256} feddgm.space=1"
    space = generator_of(small, text)
    assert isinstance(space, FeatureSpace)
    assert space.network.form == Form((1, 8, 8), 10, width=4, depth=1, latent=3)
    record = run(small(method="feddgm", rounds=1, set=f"{TINY} {text}"))
    assert record.metrics()[1]["accepted"]


def test_one_that_does_not_fit_or_is_another_is_refused(small: Small, tmp_path: Path) -> None:
    path, sha256 = prior(tmp_path, (3, 8, 8))
    named = f"feddgm.generator={path}"
    assert refusal(small, named).startswith(f"{named} needs feddgm.generator_sha256")
    other = f"{named} feddgm.generator_sha256={sha256[::-1]}"
    assert f"{named} was not opened: its SHA-256 begins with {sha256[:16]}" in refusal(small, other)
    right = f"{named} feddgm.generator_sha256={sha256}"
    assert "makes images of 3x8x8 of 10 classes, and digits has" in refusal(small, right)


def test_a_pickle_in_its_place_is_read_as_text_and_never_run(small: Small, tmp_path: Path) -> None:
    file, mark = tmp_path / "prior.json", tmp_path / "it went off"
    file.write_bytes(pickle.dumps(Bomb(mark)))
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    message = refusal(small, f"feddgm.generator={file} feddgm.generator_sha256={sha256}")
    assert "holds no generator: these are not a generator's weights" in message
    assert not mark.exists()
