"""Layers that draw: each example its own numbers, whoever is beside it, and no draw that nobody made for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

from common.draws.private_draws import SeededRows, SystemRows, example_hashes, keyed_hashes, mixed
from common.samples.inputs import Samples
from synth.private_release import Gaussian, clipped_sum, example_gradients
from synth.row_draws import LayerDraws, Layers, UndrawableError, integers

CPU = torch.device("cpu")


def rows(*hashes: int) -> SeededRows:
    return SeededRows(7, np.array(hashes, np.uint64), CPU)


class Noisy(nn.Module):
    """Draws in every way that a layer of somebody's own might."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x times and plus what is drawn."""
        drawn = torch.randn_like(x) + torch.rand(x.shape) + torch.randint(2, 5, x.shape)
        drawn = drawn + torch.empty_like(x).normal_(1.0, 2.0) + torch.empty_like(x).uniform_(-1, 1)
        return x * (1 + drawn) * torch.bernoulli(torch.full_like(x, 0.5))


NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "dropout": (nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1)), (6,)),
    "whole channels": (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(64, 1)),
        (1, 6, 6),
    ),
    "alpha dropout": (nn.Sequential(nn.Linear(6, 8), nn.AlphaDropout(0.5), nn.Linear(8, 1)), (6,)),
    "attention": (nn.TransformerEncoderLayer(4, 2, 8, 0.5, batch_first=True), (3, 4)),
    "somebody's own": (nn.Sequential(nn.Linear(6, 8), Noisy(), nn.Linear(8, 1)), (6,)),
}


def total(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x).square().mean()
    return out


@pytest.mark.filterwarnings("ignore:.*performance drop")
@pytest.mark.parametrize("name", NETWORKS)
def test_an_examples_gradient_is_the_same_whoever_is_beside_it(name: str) -> None:
    """Of examples 0 to 4, and of 2, 9, 0: those of 0 and 2 agree, which differ from call to call by their draws."""
    model, shape = NETWORKS[name]
    x = torch.randn(10, *shape, generator=torch.Generator().manual_seed(1))
    found = []
    for chosen in ([0, 1, 2, 3, 4], [2, 9, 0]):
        with LayerDraws(rows(*chosen)) as mode:
            slopes = example_gradients(model, total, (x[chosen],))
        assert mode.drew
        found.append(slopes)
    for whole, few in zip(found[0].values(), found[1].values(), strict=True):
        torch.testing.assert_close(whole[0], few[2])
        torch.testing.assert_close(whole[2], few[0])
    with LayerDraws(rows(*range(100, 105))):
        others = example_gradients(model, total, (x[:5],))
    assert any(not torch.allclose(others[n], found[0][n]) for n in others)


def test_a_share_of_the_values_is_dropped_and_the_rest_scaled() -> None:
    """Of 4,000 values 1/4: kept ones are 4/3, and as many are dropped as 5 standard errors allow, of this seed."""
    model = nn.Sequential(nn.Dropout(0.25), nn.Flatten(), nn.Linear(4000, 1, bias=False))
    with LayerDraws(rows(1)):
        slopes = example_gradients(model, lambda net, x: net(x).sum(), (torch.ones(1, 1, 4000),))
    kept = slopes["2.weight"].flatten()
    assert kept.unique().tolist() == pytest.approx([0, 4 / 3])
    assert abs(int((kept == 0).sum()) - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5


def test_chunks_of_a_batch_draw_what_the_batch_draws() -> None:
    model, shape = NETWORKS["dropout"]
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))

    def summed(chunk: int) -> dict[str, Tensor]:
        drawn = rows(0, 1, 2, 3, 4)
        drawing = lambda at: Layers().drawing(drawn.part(at), CPU)  # noqa: E731
        return clipped_sum(model, total, (x,), Gaussian(1.0, 0.1, torch.zeros), chunk, drawing)

    whole, parts = summed(5), summed(2)
    for name, slope in whole.items():
        torch.testing.assert_close(parts[name].double(), slope.double(), rtol=1e-4, atol=9)


def test_what_cannot_be_drawn_for_each_is_refused() -> None:
    class OneForAll(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.empty_like(x).exponential_()

    model = nn.Sequential(nn.Linear(3, 3), OneForAll())
    with LayerDraws(rows(0, 1)), pytest.raises(UndrawableError, match="exponential_"):
        example_gradients(model, total, (torch.ones(2, 3),))


def test_a_layer_that_begins_to_draw_later_is_found_out() -> None:
    class Late(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x if self.calls == 1 else x * torch.rand_like(x)

    model, layers = nn.Sequential(nn.Linear(3, 3), Late()), Layers()

    def step(*given: Any) -> None:
        with layers.drawing(rows(0, 1), CPU):
            example_gradients(model, total, (torch.ones(2, 3),))

    step()
    with pytest.raises(UndrawableError, match="in some steps and not in the first"):
        step()


def test_integers_are_below_their_end_and_each_as_likely() -> None:
    """Of 9,000 numbers 1,000 of each of nine: within 5 standard errors, of this seed."""
    drawn = integers(rows(*range(9000)), 9)
    counts = drawn.bincount(minlength=9)
    assert len(counts) == 9
    assert int((counts - 1000).abs().max()) < 5 * (9000 / 9 * 8 / 9) ** 0.5


# ---- which bits draws are of -------------------------------------------------------------------------


def pool(*values: int) -> Samples:
    raw = torch.tensor(values, dtype=torch.uint8).reshape(-1, 1, 1, 1)
    return Samples(raw, torch.zeros(len(values), dtype=torch.int64))


def seeded(*values: int, seed: int = 1) -> SeededRows:
    return SeededRows(seed, example_hashes(pool(*values)), CPU)


def test_words_are_splitmix64s() -> None:
    """The first outputs of its reference implementation from state 1234567."""
    states = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mixed(states).tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
    ]  # fmt: skip


def test_an_example_draws_the_same_wherever_it_stands_and_each_call_something_else() -> None:
    one, other = seeded(3, 5, 8), seeded(8, 1, 3)
    first, second = one.uniform(4), one.normal(2, 2)
    assert torch.equal(first[[2, 0]], other.uniform(4)[[0, 2]])
    assert torch.equal(second[[2, 0]], other.normal(2, 2)[[0, 2]])
    assert len(set(first.flatten().tolist())) == 12
    assert not torch.equal(first, seeded(3, 5, 8, seed=2).uniform(4))


def test_equal_examples_draw_by_themselves_and_one_more_changes_nobody() -> None:
    """Which of equal ones is the newcomer nobody can say: as sets, two of the three draw what the two did."""
    two, three = (set(seeded(*values).uniform().tolist()) for values in ((7, 7), (7, 7, 7)))
    assert len(two) == 2
    assert len(three) == 3
    assert two < three


def test_a_part_goes_on_where_the_whole_was() -> None:
    whole, again = seeded(1, 2, 3, 4), seeded(1, 2, 3, 4)
    whole.uniform(3), again.uniform(3)
    assert torch.equal(whole.part(slice(1, 3)).normal(5), again.normal(5)[1:3])


def test_draws_are_distributed_as_they_are_called() -> None:
    """Kolmogorov and Smirnov on 40,000 numbers of one seed, along rows and across them."""
    drawn = seeded(*range(200))
    uniform, normal = drawn.uniform(200), drawn.normal(200)
    assert kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-3
    assert kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    for numbers in (normal, normal.T):
        correlation = np.corrcoef(numbers.numpy()) - np.eye(200)
        assert abs(correlation).max() < 6 / 200**0.5


def test_of_the_systems_entropy_nothing_comes_twice() -> None:
    one, other = (SystemRows(3, CPU) for _ in range(2))
    drawn = torch.cat([one.uniform(5), one.part(slice(1, None)).uniform(5), other.uniform(5)])
    assert drawn.shape == (8, 5)
    assert len(set(drawn.flatten().tolist())) == 40
    assert one.normal(2, 3).shape == (3, 2, 3)


def test_a_hash_is_of_bytes_label_and_key() -> None:
    plain, keyed = keyed_hashes(pool(1, 2, 1)), keyed_hashes(pool(1, 2, 1), b"key")
    assert plain[0] == plain[2] != plain[1]
    assert not set(plain.tolist()) & set(keyed.tolist())
    labelled = Samples(torch.ones(1, 1, 1, 1, dtype=torch.uint8), torch.ones(1, dtype=torch.int64))
    assert keyed_hashes(labelled)[0] != plain[0]
    assert len(keyed_hashes(pool())) == 0
