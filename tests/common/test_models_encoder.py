"""FedDPMS' networks: the sizes of tables 3 and 4, codes in [0, 1]^l, and decoders that mirror encoders."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.models import build
from common.models.building import drawn
from common.models.encoder import Decoder, Encoder, VAEEncoder

FMNIST = {"shape": (1, 28, 28), "depth": 1, "width": 16, "embedding": 32}
CIFAR = {"shape": (3, 32, 32), "depth": 2, "width": 32, "embedding": 128}


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "given", "count"),
    [
        # 160 + 4,640 of the convolutions, 1,568 x 32 + 32 of the code, 330 of the classes
        ("encoder", FMNIST, 55_338),
        ("vae", FMNIST, 55_338 + 50_208),
        # 896 + 9,248 + 18,496 + 36,928, 4,096 x 128 + 128, 1,290
        ("encoder", CIFAR, 591_274),
        ("vae", CIFAR, 591_274 + 524_416),  # more than a million, as appendix A.9 says
    ],
)
def test_the_papers_networks_have_these_sizes(
    name: str, given: dict[str, object], count: int
) -> None:
    assert size(build(name, classes=10, **given)) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "channels", "count"),
    [
        # 32 x 1,568 + 1,568 of the linear layer, 4,624 and 145
        (FMNIST, [(32, 16), (16, 1)], 51_744 + 4_624 + 145),
        (CIFAR, [(64, 64), (64, 64), (64, 32), (32, 3)], 528_384 + 2 * 36_928 + 18_464 + 867),
    ],
)
def test_a_decoder_is_table_4s(
    given: dict[str, object], channels: list[tuple[int, int]], count: int
) -> None:
    model = build("vae", classes=10, **given)  # type: ignore[arg-type]
    assert isinstance(model, VAEEncoder)
    decoder = model.mirror()
    layers = [m for m in decoder.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert [(m.in_channels, m.out_channels) for m in layers] == channels
    assert size(decoder) == count
    assert decoder(torch.rand(2, model.latent)).shape == (2, *model.continuous_shape)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 20)])
def test_every_depth_and_size_is_mirrored(depth: int, shape: tuple[int, int, int]) -> None:
    assert Decoder(shape, depth, 4, 5)(torch.rand(3, 5)).shape == (3, *shape)


def test_codes_lie_between_0_and_1_whatever_the_image() -> None:
    model = build("vae", (1, 8, 8), 10, depth=1, width=4, embedding=6)
    assert isinstance(model, VAEEncoder)
    x = 100 * torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    codes = model.embed(x)
    assert codes.shape == (50, 6)
    assert float(codes.min()) >= 0
    assert float(codes.max()) <= 1
    mu, log_variance = model.encode(x)
    assert torch.equal(mu, codes)
    assert log_variance.shape == codes.shape
    assert torch.equal(model(x), model.classify(codes))  # classified from mu, not from a draw


def test_with_and_without_the_variance_it_begins_with_the_same_weights() -> None:
    alone, vae = (
        build(name, (1, 8, 8), 10, depth=1, width=4, embedding=6) for name in ("encoder", "vae")
    )
    assert isinstance(alone, Encoder)
    for name, value in alone.state_dict().items():
        assert torch.equal(vae.state_dict()[name], value)


def test_a_decoders_start_is_torchs_range_and_the_generators_draw() -> None:
    """Torch's own start of a transposed convolution is uniform in +-1/sqrt(output channels x kernel)."""
    with torch.device("meta"):
        outline = Decoder((1, 8, 8), 1, 4, 6)
    decoder = drawn(outline, torch.Generator().manual_seed(1))
    torchs = nn.ConvTranspose2d(8, 4, 3)
    mine = next(m for m in decoder.modules() if isinstance(m, nn.ConvTranspose2d))
    bound = (4 * 9) ** -0.5
    for weight in (mine.weight, torchs.weight):
        assert 0.9 * bound < float(weight.detach().abs().max()) <= bound


def test_sides_that_four_does_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sides that 4 divides, not 30x28: choose model\.name"):
        build("encoder", (1, 30, 28), 10)
