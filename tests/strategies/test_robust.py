"""Median, trimmed mean and Krum: worked out by hand, held to what they promise, and attacked in runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, last, run, same_end
from hypothesis import given
from hypothesis import strategies as st
from small import Small
from tampering import away_from_start, nan, times, with_arrays, with_part

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.methods import METHODS
from common.settings.sections import FederationSettings
from common.sites import Site
from common.wire.weights import Weights
from server_app.record import Record
from strategies.averaging import RobustMean, krum_order, median, squared_distances, trimmed_mean
from strategies.base import strategy_class
from strategies.exchange.replies import Upload

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "Under `median`, `trimmed` and `krum` one site of five at six times its update the wrong "
    "way leaves a model that is no guess ([what it costs](results/robust.md))",
)

RULES = ["median", "trimmed", "krum"]


def combined(rows: Sequence[Any], apart: Sequence[str] = (), **settings: Any) -> Any:
    """Return what is made of a tensor of each site, in float32."""
    named = [row if isinstance(row, dict) else {"w": row} for row in rows]
    held = [Weights({k: torch.as_tensor(v) for k, v in row.items()}) for row in named]
    mean = RobustMean(held[0], FederationSettings(**settings), apart)
    for i, weights in enumerate(held):
        mean.add(weights, share=10.0**i)
    assert mean.total == len(rows)
    found = mean.result().tensors
    return found if isinstance(rows[0], dict) else found["w"]


# ---- by hand ----------------------------------------------------------------------------------------------


def test_the_median_of_each_number_is_the_middle_one_or_the_mean_of_the_two_in_the_middle() -> None:
    odd = [[1.0, 9.0], [5.0, 8.0], [2.0, 1e30]]
    assert combined(odd, robust="median").tolist() == [2.0, 9.0]
    assert combined([*odd, [4.0, -1e30]], robust="median").tolist() == [3.0, 8.5]
    assert combined(odd[:2], robust="median").tolist() == [3.0, 8.5]
    assert combined(odd[:1], robust="median").tolist() == [1.0, 9.0]


@pytest.mark.parametrize(
    ("n", "share", "cut"),
    [
        *((1, 0.4, 0), (2, 0.4, 0), (3, 0.1, 1), (4, 0.49, 1), (10, 0.1, 1), (10, 0.3, 3)),
        *((11, 0.1, 1), (9, 0.01, 1), (100, 0.29, 29), (10, 0.45, 4)),
    ],
)
def test_so_many_are_left_out_at_each_end(n: int, share: float, cut: int) -> None:
    """Of 2^0, 2^1, ... every sum tells which ones are in it."""
    powers = [2.0**i for i in range(min(n, 20))] + [2.0**20] * max(0, n - 20)
    kept = powers[cut : n - cut]
    found = combined([[p] for p in reversed(powers)], robust="trimmed", trim=share)
    assert found.tolist() == [pytest.approx(sum(kept) / len(kept), rel=1e-7)]


def test_krum_is_worked_out_by_hand() -> None:
    """Five on a line and f = 1: each is scored by the squares to its two nearest."""
    rows = [[0.0], [1.0], [3.0], [3.5], [100.0]]
    held = [{"w": torch.tensor(row)} for row in rows]
    distances = squared_distances(held, ["w"])
    assert distances[0].tolist() == [0.0, 1.0, 9.0, 12.25, 10_000.0]
    # 1 + 9, 1 + 4, .25 + 4, .25 + 6.25, and of the last 96.5^2 + 97^2
    assert krum_order(distances, byzantine=1, kept=4) == [2, 1, 3, 0]
    assert krum_order(distances, byzantine=1, kept=9) == [2, 1, 3, 0], "all but f at the most"
    assert combined(rows, robust="krum", byzantine=1).tolist() == [3.0]
    assert combined(rows, robust="krum", byzantine=1, kept=3).tolist() == [2.5]


def test_of_equal_replies_the_first_is_kept() -> None:
    distances = squared_distances([{"w": torch.ones(2)}] * 7, ["w"])
    assert krum_order(distances, byzantine=2, kept=2) == [0, 1]


def test_beside_a_huge_reply_small_distances_keep_their_digits() -> None:
    rows = [[1.0, 0.0], [1.001, 0.0], [1.003, 0.0], [1.004, 0.0], [1e19, 1e19]]
    held = [{"w": torch.tensor(row)} for row in rows]
    exact = np.square(np.subtract.outer(*[np.array(rows, np.float32)[:4, 0].astype(float)] * 2))
    assert torch.equal(squared_distances(held, ["w"])[:4, :4], torch.from_numpy(exact))


def test_too_few_for_krum_are_judged_by_the_median(caplog: pytest.LogCaptureFixture) -> None:
    rows = [[0.0, 5.0], [1.0, 1.0], [2.0, 3.0], [1e9, -1e9]]
    with caplog.at_level("WARNING", "flwr"):
        assert combined(rows, robust="krum", byzantine=1).tolist() == [1.5, 2.0]
    assert "Krum needs 5 replies with federation.byzantine=1, and 4 came" in caplog.text


@pytest.mark.parametrize(
    ("rule", "parameter", "statistic"),
    [("median", 3.5, 300.0), ("trimmed", 3.5, (2 + 300 + 4000) / 3), ("krum", 3.5, 300.0)],
)
def test_what_is_no_parameter_has_no_part_in_krums_choice(
    rule: str, parameter: float, statistic: float
) -> None:
    """The statistics of the nearest three parameters lie far from each other, and from those of the other two."""
    parameters, counts = [0.0, 3.0, 3.5, 4.0, 100.0], [10, 20, 30, 40, 7_000_000]
    statistics = [1.0, 2.0, 300.0, 4000.0, 5e5]
    rows = [
        {"w": [w], "mean": [mean], "count": count}
        for w, mean, count in zip(parameters, statistics, counts, strict=True)
    ]
    found = combined(rows, ["mean", "count"], robust=rule)
    assert found["w"].tolist() == [parameter]
    assert found["mean"].tolist() == [pytest.approx(statistic, rel=1e-6)]
    assert found["count"] == 30
    assert found["count"].dtype == torch.int64


# ---- what holds of any numbers ----------------------------------------------------------------------------

finite = st.floats(-(2.0**60), 2.0**60, width=32)


@st.composite
def rounds(draw: Callable[..., Any], least: int = 1) -> Any:
    """Draw what n sites send: float32 [n, d]."""
    n, d = draw(st.integers(least, 9)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(finite, min_size=d, max_size=d), min_size=n, max_size=n))
    return torch.tensor(rows)


@pytest.mark.extended
@given(rounds())
def test_numpy_has_the_same_median(rows: Any) -> None:
    expected = np.median(rows.double().numpy(), axis=0)
    assert np.array_equal(median(rows).numpy(), expected)


@given(rounds(), st.floats(0.01, 0.49))
def test_a_trimmed_mean_is_that_of_a_sorted_list(rows: Any, share: float) -> None:
    n = len(rows)
    cut = min(max(1, math.floor(share * n + 1e-9)), (n - 1) // 2)
    for column, found in zip(rows.T.tolist(), trimmed_mean(rows, share).tolist(), strict=True):
        kept = sorted(column)[cut : n - cut]
        largest = max(map(abs, kept))
        assert abs(found - math.fsum(kept) / len(kept)) <= 1e-12 * largest


@given(rounds(), st.randoms(use_true_random=False), st.sampled_from(RULES))
def test_the_order_of_sites_decides_nothing(rows: Any, rng: Any, rule: str) -> None:
    """But of Krum's ties, of which there are none here where the least sum of distances is one reply's alone."""
    n = len(rows)
    if rule == "krum" and n >= 5:
        scores = squared_distances([{"w": row} for row in rows], ["w"]).sort(1).values
        ranked = scores[:, 1 : n - 2].sum(1).sort().values
        if ranked[0] == ranked[1]:
            return
    order = rng.sample(range(n), n)
    assert torch.equal(combined(list(rows), robust=rule), combined(list(rows[order]), robust=rule))


@given(rounds(least=3), st.data())
def test_a_minority_cannot_move_a_median_out_of_the_range_of_the_honest(
    rows: Any, data: Any
) -> None:
    n = len(rows)
    hostile = data.draw(st.integers(1, (n - 1) // 2))
    found, honest = combined(list(rows), robust="median"), rows[hostile:]
    assert bool((honest.amin(0) <= found).all())
    assert bool((found <= honest.amax(0)).all())


@given(rounds(least=3), st.data())
def test_nor_a_trimmed_mean_where_they_are_no_more_than_are_cut(rows: Any, data: Any) -> None:
    n = len(rows)
    hostile = data.draw(st.integers(1, (n - 1) // 2))
    share = min(0.499, (hostile + 0.01) / n)
    found, honest = combined(list(rows), robust="trimmed", trim=share), rows[hostile:]
    assert bool((honest.amin(0) <= found).all())
    assert bool((found <= honest.amax(0)).all())


@given(st.integers(1, 3), st.data())
def test_krum_keeps_none_of_f_that_lie_further_off_than_the_honest_are_wide(
    f: int, data: Any
) -> None:
    """Even where they agree with each other to the bit."""
    honest = data.draw(st.lists(st.floats(-1, 1, width=32), min_size=f + 3, max_size=9))
    far = data.draw(st.floats(64, 2.0**40, width=32))
    rows = [[far]] * f + [[value] for value in honest]
    kept = data.draw(st.integers(1, len(honest)))
    found = combined(rows, robust="krum", byzantine=f, kept=kept)
    assert min(honest) <= float(found) <= max(honest)


@given(
    st.lists(st.lists(st.integers(-999, 999), min_size=3, max_size=3), min_size=5, max_size=9),
    st.integers(-999, 999),
    st.sampled_from(RULES),
)
def test_what_is_made_of_models_is_what_is_made_of_their_updates(
    rows: Any, start: int, rule: str
) -> None:
    updates = torch.tensor(rows, dtype=torch.float32)
    moved = combined(list(updates + start), robust=rule)
    assert torch.allclose(moved, combined(list(updates), robust=rule) + start, atol=1e-3)


def test_a_large_tensor_is_combined_in_pieces_to_the_same_numbers() -> None:
    rows = torch.randn(5, 2**16 + 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(combined(list(rows), robust="median").double(), median(rows))
    trimmed = combined(list(rows), robust="trimmed", trim=0.2).double()
    assert torch.allclose(trimmed, trimmed_mean(rows, 0.2), rtol=1e-7)
    apart = [[float((a.double() - b.double()).square().sum()) for b in rows] for a in rows]
    found = squared_distances([{"w": row} for row in rows], ["w"])
    assert np.allclose(found.numpy(), apart, rtol=1e-12)


# ---- which runs may ask for it ----------------------------------------------------------------------------


def test_a_method_that_learns_otherwise_is_refused_in_a_sentence() -> None:
    for name, method in METHODS.items():
        if method.averages or name == "fedssyn":
            assert load({"method": name, "set": "federation.robust=median"})
            continue
        for rule in RULES:
            with pytest.raises(ConfigError, match=rf"only averages models, and method={name} does"):
                load({"method": name, "set": f"federation.robust={rule}"})


def test_krum_is_refused_where_too_few_nodes_joined() -> None:
    config = load({"method": "fedavg", "set": "federation.robust=krum"})
    with pytest.raises(ConfigError, match="4 sites are asked"):
        config.with_sites(4)


# ---- in runs ----------------------------------------------------------------------------------------------

FIVE = (
    "federation.sites=5 partition.alpha=0.5 fedavg.epochs=5 fedavg.lr=0.1 model.width=16 model.depth=2 "
    "scaffold.lr=0.05"
)

Round = dict[int, list[np.ndarray]]


def noting(sent: dict[int, Round]) -> dict[int, Any]:
    """Return tampers of five sites that change nothing and note each reply, by round and site.

    Its arrays, with the normalizer that stands beside them in the place of the header.
    """

    def of(site: int) -> Any:
        def tamper(instruction: Any, reply: Any) -> Any:
            arrays = next(iter(reply.content.array_records.values())).to_numpy_ndarrays()
            figures = next(iter(reply.content.metric_records.values()))
            about = sent.setdefault(int(instruction.metadata.group_id), {})
            about[site] = [np.array(figures.get("normalizer", 0.0)), *arrays[1:]]
            return reply

        return tamper

    return {site: of(site) for site in range(5)}


def by_numpy(rule: str, replies: Round, places: Sequence[int]) -> list[np.ndarray]:
    """Return what a rule makes of five sites' arrays, in float64, by NumPy alone; of Krum's f = 1."""
    stacked = [np.stack([replies[site][i] for site in range(5)]).astype(float) for i in places]
    if rule == "median":
        return [np.median(array, axis=0) for array in stacked]
    if rule == "trimmed":
        return [np.sort(array, axis=0)[1:-1].mean(0) for array in stacked]
    flat = np.concatenate([array.reshape(5, -1) for array in stacked], axis=1)
    apart = ((flat[:, None] - flat[None]) ** 2).sum(-1)
    best = np.argmin(np.sort(apart, axis=1)[:, 1:3].sum(1))
    return [array[best] for array in stacked]


@pytest.mark.sweep
@pytest.mark.parametrize("rule", RULES)
def test_a_run_ends_with_what_numpy_makes_of_its_replies(small: Small, rule: str) -> None:
    sent: dict[int, Round] = {}
    config = small(method="fedavg", rounds=1, set=f"{FIVE} federation.robust={rule}")
    record = run(config, TamperedGrid, tampers=noting(sent))
    ended = list(last(record).weights.values())
    expected = by_numpy(rule, sent[1], range(1, len(sent[1][0])))
    for found, array in zip(ended, expected, strict=True):
        assert np.allclose(found.numpy(), array, rtol=1e-6, atol=1e-8)


def test_scaffolds_two_means_are_two_medians(small: Small) -> None:
    sent: dict[int, Round] = {}
    words = f"{FIVE} federation.robust=median scaffold.weighting=counts"
    record = run(small(method="scaffold", rounds=1, set=words), TamperedGrid, tampers=noting(sent))
    checkpoint, replies = last(record), sent[1]
    floating = [i for i, a in enumerate(replies[0]) if i and a.dtype.kind == "f"]
    found = [*checkpoint.weights.values(), *checkpoint.strategy["control"].values()]
    for tensor, array in zip(found, by_numpy("median", replies, floating), strict=True):
        assert np.allclose(tensor.numpy(), array, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_fednova_combines_normalised_updates_and_their_normalizers(small: Small, rule: str) -> None:
    """By hand: of (w_k - w_r) / a_k and of a_k; the sites differ in their numbers of steps."""
    sent: dict[int, Round] = {}
    words = f"{FIVE} fednova.lr=0.1 fednova.epochs=3 federation.robust={rule}"
    record = run(small(method="fednova", rounds=1, set=words), TamperedGrid, tampers=noting(sent))
    model = Division(load(small(method="fednova", set=words))).run.build_model()
    began = [t.detach().double().numpy() for t in model.state_dict().values()]
    steps = [float(sent[1][site][0]) for site in range(5)]
    assert len(set(steps)) > 1
    combine = {
        "median": lambda a: np.median(a, axis=0),
        "trimmed": lambda a: np.sort(a, axis=0)[1:-1].mean(0),
    }[rule]
    for i, (found, start) in enumerate(zip(last(record).weights.values(), began, strict=True), 1):
        ways = np.stack([(sent[1][k][i].astype(float) - start) / steps[k] for k in range(5)])
        expected = start + combine(np.array(steps)) * combine(ways)
        assert np.allclose(found.numpy(), expected, rtol=1e-5, atol=1e-7)


def accuracy(record: Record) -> float:
    return float(record.metrics()[-1]["test"]["accuracy"])


@pytest.mark.extended
def test_one_site_of_five_that_goes_the_wrong_way_costs_little(small: Small) -> None:
    """Six times its update the wrong way in all rounds, which clip lets pass."""

    def ended(robust: str) -> float:
        words = f"{FIVE} partition.alpha=100 fedavg.epochs=3 federation.robust={robust}"
        config = small(method="fedavg", rounds=3, set=words)
        return accuracy(run(config, TamperedGrid, tampers={1: away_from_start(-6.0)}))

    unlearned = ended("clip")
    for rule in RULES:
        assert ended(rule) > unlearned + 0.2


@pytest.mark.extended
def test_krum_without_enough_replies_takes_their_median_and_says_so(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    words = f"{FIVE} federation.robust="
    with caplog.at_level("WARNING", "flwr"):
        record = run(
            small(method="fedavg", rounds=1, set=f"{words}krum"),
            TamperedGrid,
            tampers={1: with_arrays(nan)},
        )
    assert "Krum needs 5 replies" in caplog.text
    median_of_four = run(
        small(method="fedavg", rounds=1, set=f"{words}median"),
        TamperedGrid,
        tampers={1: with_arrays(nan)},
    )
    assert same_end(record, median_of_four)


@pytest.mark.extended
def test_one_site_that_lies_about_running_statistics_alone_is_outvoted(small: Small) -> None:
    """Means of 3 are no longer than honest ones: clip lets them pass, and the model guesses."""

    def lie(arrays: list[np.ndarray]) -> list[np.ndarray]:
        for i in (i for i, name in enumerate(names, 1) if name.endswith("running_mean")):
            arrays[i] = np.full_like(arrays[i], 3.0)
        return arrays

    words = f"{FIVE} partition.alpha=100 model.norm=batch fedavg.epochs=3 federation.robust="
    names = Division(load(small(method="fedavg", set=f"{words}clip"))).run.spec.names

    def ended(robust: str) -> float:
        config = small(method="fedavg", rounds=2, set=words + robust)
        return accuracy(run(config, TamperedGrid, tampers={1: with_arrays(lie)}))

    guessed = ended("clip")
    for rule in RULES:
        assert ended(rule) > guessed + 0.2


def test_fedsynth_combines_where_the_replays_end() -> None:
    words = "federation.sites=5 federation.robust=trimmed fedsynth.weighting=counts model.width=8"
    run_of = Division(load({"method": "fedsynth", "set": words})).run
    start, draws = Weights.of(run_of.build_model()), torch.Generator().manual_seed(0)
    ends = [
        {n: t + torch.randn(t.shape, generator=draws) for n, t in start.tensors.items()}
        for _ in range(5)
    ]
    uploads = [Upload(Site(f"s{k}", k, 1), Weights(e), 10**k, {}) for k, e in enumerate(ends)]
    new = strategy_class("fedsynth")(run_of).update(1, start, uploads).tensors
    for name, tensor in new.items():
        stacked = np.stack([e[name].numpy() for e in ends]).astype(float)
        expected = np.sort(stacked, axis=0)[1:-1].mean(0)
        assert np.allclose(tensor.numpy(), expected, rtol=1e-6, atol=1e-6)


VAE = "model.width=4 model.depth=1 model.embedding=4"
#: those that average in a place of their own, each by one rule, and what makes them quick
AVERAGING = {
    "feddyn": ("krum", ""),
    "fedmix": ("median", ""),
    "lowrank": ("krum", ""),
    "fedvae": ("trimmed", f"{VAE} fedvae.epochs=1"),
    "fedssyn": ("krum", "fedssyn.source=none"),
}


@pytest.mark.extended
@pytest.mark.parametrize("method", AVERAGING)
def test_every_method_that_averages_does_so_by_a_robust_rule(small: Small, method: str) -> None:
    """A hostile site at six times its way in the wrong direction is not seen in how far the model moves."""
    rule, own = AVERAGING[method]
    words = f"federation.sites=5 partition.alpha=1 fedavg.epochs=1 {own} federation.max_update=0 "

    def moved(robust: str) -> float:
        config = small(method=method, rounds=2, set=f"{words} federation.robust={robust}")
        record = run(config, TamperedGrid, tampers={1: with_part("", times(1e4), [2])})
        assert all(not line["rejected"] for line in record.metrics()[1:])
        return max(float(t.abs().max()) for t in last(record).weights.values())

    assert moved(rule) < 100 < moved("none")


@pytest.mark.extended
def test_what_a_private_run_costs_does_not_depend_on_the_average(small: Small) -> None:
    words = "federation.sites=5 privacy.noise_multiplier=1 privacy.counts=public fedavg.lr=0.1"

    def spent(robust: str) -> Any:
        config = small(method="fedavg", rounds=1, set=f"{words} federation.robust={robust}")
        return run(config).metrics()[1]["notes"]["spent"]

    assert spent("krum") == spent("none")
