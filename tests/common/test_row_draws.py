"""Draws of single examples: which bits they are of, and that no other example moves them."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import kstest

from common.draws.row_draws import SeededRows, SystemRows, example_hashes, keyed_hashes, mixed
from common.samples.inputs import Samples

CPU = torch.device("cpu")


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
