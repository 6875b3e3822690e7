"""StyleGAN-XL's spaces F_n on a network with the official one's interface."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import stylegan_repository
import torch
from places import ROOT
from seeds import rng
from slopes import require_slopes
from torch import Tensor

from synth.generators.latents import ImageGenerator

StyleganXL = runpy.run_path(str(ROOT / "examples" / "stylegan_xl.py"))["StyleganXL"]

LABELS = torch.tensor([2, 0, 2, 1])
#: which of the network's seven classes labels 0, 1 and 2 are
CLASSES = (6, 1, 3)
LAYERS = 5


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    code = stylegan_repository.repository(tmp_path_factory.mktemp("official"))
    return stylegan_repository.network(code, (3, 16, 16), 7, LAYERS)


def own_images(network: Any, seed: int = 7) -> Tensor:
    """Return the network's own images of the codes that a space draws."""
    z = torch.randn(len(LABELS), 5, generator=rng(seed))
    c = torch.zeros(len(LABELS), 7)
    for row, label in enumerate(LABELS.tolist()):
        c[row, CLASSES[label]] = 1
    images: Tensor = network(z, c, force_fp32=True)
    return images


@pytest.mark.parametrize("n", range(LAYERS))
def test_every_space_begins_with_the_networks_own_images(network: Any, n: int) -> None:
    space: ImageGenerator = StyleganXL(network, n, CLASSES)
    expected = own_images(network)
    assert expected.shape == (4, 3, 16, 16)
    assert float(expected.std()) > 0.01
    found = space.images(space.latents(LABELS, rng(7)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_label_is_the_class_that_it_is_said_to_be(network: Any) -> None:
    named = StyleganXL(network, 0, CLASSES).latents(LABELS, rng(7))
    direct = StyleganXL(network, 0, tuple(range(7))).latents(torch.tensor([3, 6, 3, 1]), rng(7))
    other = StyleganXL(network, 0, tuple(range(7))).latents(LABELS, rng(7))
    for one, same, unlike in zip(named.tensors, direct.tensors, other.tensors, strict=True):
        assert torch.equal(one, same)
        assert not torch.allclose(one, unlike)


def test_the_latents_are_the_features_behind_layer_n_and_the_styles_of_what_follows(
    network: Any,
) -> None:
    """Five layers, of 4, 8, 16, 16 and 16 pixels a side; before the first lie the input's 4x4 features."""
    shapes = {0: (4, 5), 1: (4, 4), 2: (8, 3), 3: (16, 2), 4: (16, 1)}
    for n, (side, styles) in shapes.items():
        latents = StyleganXL(network, n, CLASSES, rate_w=2.0, rate_f=9.0).latents(LABELS, rng())
        assert [tuple(t.shape) for t in latents.tensors] == [(4, 4, side, side), (4, styles, 6)]
        assert latents.rates == (9.0, 2.0)
        assert not any(t.requires_grad for t in latents.tensors)


@pytest.mark.parametrize("n", range(LAYERS))
def test_a_gradient_reaches_all_of_every_latent_and_is_its_finite_difference(
    network: Any, n: int, tmp_path: Path
) -> None:
    code = stylegan_repository.repository(tmp_path)
    double = stylegan_repository.network(code, (3, 16, 16), 7, LAYERS).double()
    space = StyleganXL(double, n, CLASSES)
    target = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=rng(1))
    require_slopes(space, space.latents(LABELS, rng(n)), target, step=1e-6, seed=2, per=2)


def test_images_hang_on_their_own_latents_alone_and_on_no_other_draw(network: Any) -> None:
    """The official convolution divides all styles of a batch by one number, which its demodulation takes out again."""
    space = StyleganXL(network, 2, CLASSES)
    latents = space.latents(LABELS, rng())
    before = torch.get_rng_state()
    whole = space.images(latents)
    assert torch.equal(space.images(latents), whole)
    assert torch.equal(before, torch.get_rng_state())
    alone = torch.cat([space.images(latents.holding(rows)) for rows in rows_of(latents.tensors)])
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-6)


def rows_of(tensors: tuple[Tensor, ...]) -> list[list[Tensor]]:
    return [[tensor[i : i + 1] for tensor in tensors] for i in range(len(tensors[0]))]


@pytest.mark.parametrize("chunk", [1, 3, 4, 9])
def test_latents_are_the_same_however_many_are_made_at_a_time(network: Any, chunk: int) -> None:
    whole = StyleganXL(network, 3, CLASSES).latents(LABELS, rng(3))
    parts = StyleganXL(network, 3, CLASSES, chunk=chunk).latents(LABELS, rng(3))
    for one, other in zip(whole.tensors, parts.tensors, strict=True):
        # of up to 1.5, apart by up to 6e-7: float32's sums in another order
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [-1, LAYERS])
def test_a_space_that_is_not_there_is_refused(network: Any, n: int) -> None:
    with pytest.raises(ValueError, match=f"F_0 to F_4, and no F_{n}"):
        StyleganXL(network, n, CLASSES)


def test_classes_that_are_not_there_are_refused(network: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="classes from 0 to 6"):
        StyleganXL(network, 0, (0, 7))
    code = stylegan_repository.repository(tmp_path)
    with pytest.raises(ValueError, match="has no classes"):
        StyleganXL(stylegan_repository.network(code, (3, 8, 8), 0), 0, (0,))
