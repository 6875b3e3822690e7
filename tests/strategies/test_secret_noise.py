"""Noise in a secret total: in shares, once, and what the shares that are inside are said to cost."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import last, resumed, run
from places import ROOT
from secret_sites import OPENING, TRAIN, DroppingGrid, Sites
from small import Small

from common.config.loading import load
from common.draws.private_draws import KeyStream
from common.privacy.accounting import epsilon, gaussian_like
from common.privacy.events import Event
from common.secret.cohort import shares_of
from common.secret.summand import form_of
from common.wire.weights import Weights, WeightsSpec
from synth.private_release import Gaussian, grid_of

sys.path.append(str(ROOT / "tests" / "mechanisms"))
from bound import lower_bound

DELTA = 1e-5

#: six sites and one colluder: four open a sum, and three shares are the noise
RIDGE = "federation.sites=6 federation.secret=on federation.secret_colluders=1 ridge.width=9 privacy.noise_multiplier=2"


def told(record: Any) -> tuple[float, float, float]:
    """Return epsilon against the server, against it with its colluders, and what the dearest ledger was charged."""
    notes = record.metrics()[1]["notes"]
    spent = max(each["epsilon"] for each in notes["spent"].values())
    return notes["epsilon_server"], notes["epsilon_colluders"], spent


@pytest.mark.extended
def test_the_line_says_what_the_shares_that_are_inside_cost(small: Small) -> None:
    """Of six sites, of five, and of four, which open it: then the colluder's share gone, three are left, as charged."""
    found = {}
    for gone in (0, 1, 2):
        config = small(method="ridge", rounds=1, set=RIDGE)
        record = run(config, DroppingGrid, drops={(TRAIN, 1): {*range(gone)}})
        found[gone] = told(record)
    assert shares_of(load(small(method="ridge", rounds=1, set=RIDGE)).federation) == 3
    for gone, (server, colluders, charged) in found.items():
        for said, inside in ((server, 6 - gone), (colluders, 5 - gone), (charged, 3)):
            like = epsilon([Event("skellam", 2 * math.sqrt(inside / 3))], DELTA).value
            assert said == pytest.approx(like, rel=1e-6)
    assert found[2][1] == pytest.approx(found[2][2])


@pytest.mark.extended
def test_a_share_that_was_sent_is_charged_opened_or_not(small: Small) -> None:
    """Who is gone at the opening is in the total; who is too late for it has paid all the same."""
    config = small(method="ridge", rounds=1, set=RIDGE)
    record = run(config, DroppingGrid, drops={(OPENING, 1): {0}})
    assert len(record.metrics()[1]["notes"]["spent"]) == 6


@pytest.mark.extended
def test_the_totals_noise_has_the_deviation_of_its_shares(small: Small) -> None:
    """Two runs of the system's entropy: the difference of their totals is noise twice, of six shares of three."""
    config = small(method="ridge", rounds=1, set=f"{RIDGE} privacy.noise=system ridge.sums=class")
    totals = [last(run(config)).strategy["total"][1] for _ in range(2)]
    apart = (totals[0] - totals[1]).flatten().numpy()
    expected = 2.0 * math.sqrt(6 / 3) * math.sqrt(2)
    assert len(apart) == 90
    assert (
        expected * 0.75 < apart.std() < expected * 1.3
    )  # 4 deviations of a deviation of 90 numbers


@pytest.mark.parametrize(("inside", "known"), [(4, 0), (4, 1), (5, 1)])
def test_releases_through_the_phase_show_no_more_than_is_claimed(
    tmp_path: Path, inside: int, known: int
) -> None:
    """20,000 totals with an example of the longest kind and without it, of as many shares as are really inside.

    ``known`` are the colluders' own shares, which the attacker takes away; the numbers of a vector are the releases.
    """
    noise, shares, count = 1.0, 3, 20_000
    sites, step = Sites(tmp_path, 6), 1 / grid_of(noise, 1.0)
    there, seen = sites.names[:inside], []
    for number, example in ((1, step), (2, 0.0)):
        mechanism = Gaussian(noise, 1.0, KeyStream().normal)
        vectors = {}
        for i, name in enumerate(sites.names):
            sums = torch.full((count,), int(example) if i == known else 0)
            vectors[name] = mechanism.share(sums, shares).numpy().astype("<i8").view("<u8")
        total = sites.total(vectors, there, number)
        for name in there[:known]:
            total = total - vectors[name]
        seen.append(torch.from_numpy(total.view("<i8").copy()).double()[:, None] / step)
    like = gaussian_like(noise * math.sqrt((inside - known) / shares), step, 1)
    claimed = epsilon([Event("skellam", like)], DELTA).value
    shown = lower_bound(*seen, DELTA).epsilon
    assert 0.2 * claimed < shown < claimed
    alone = np.asarray(vectors[there[-1]].view("<i8")) / step
    assert alone.std() == pytest.approx(math.sqrt(1 / shares), rel=0.05)


# ---- updates of whole sites -------------------------------------------------------------------------

#: six sites and one colluder again
UPDATES = (
    "federation.sites=6 federation.secret=on federation.secret_colluders=1 federation.secret_clip=0.5 "
    "privacy.noise_multiplier=2 fedavg.epochs=1"
)


@pytest.mark.extended
def test_a_run_says_what_its_totals_of_updates_cost_a_site_and_its_ledgers_an_example(
    small: Small,
) -> None:
    """Composed over the rounds, of the sites that were in each; a ledger's are of twice the length, and of h shares."""
    config = small(method="fedavg", rounds=2, set=UPDATES)
    record = run(config, DroppingGrid, drops={(TRAIN, 1): {0}})
    inside = [5, 6]
    for number in (1, 2):
        notes = record.metrics()[number]["notes"]
        assert notes["secret"]["unit"] == "site"
        for name, known in (("epsilon_server", 0), ("epsilon_colluders", 1)):
            events = [Event("skellam", 2 * math.sqrt((n - known) / 3)) for n in inside[:number]]
            assert notes["secret"][name] == pytest.approx(epsilon(events, DELTA).value, rel=1e-6)
    spent = record.metrics()[2]["notes"]["spent"]["partition-1"]
    charged = epsilon([Event("skellam", 1.0, steps=2)], DELTA).value
    assert spent["epsilon"] == pytest.approx(charged, rel=1e-6)
    assert spent["unit"] == "example"
    assert notes["secret"]["epsilon_colluders"] < spent["epsilon"]
    longer = resumed(record, 3).metrics()[3]["notes"]["secret"]
    events = [Event("skellam", 2 * math.sqrt(n / 3)) for n in (5, 6, 6)]
    assert longer["epsilon_server"] == pytest.approx(epsilon(events, DELTA).value, rel=1e-6)


@pytest.mark.extended
def test_it_learns_with_little_noise_and_not_with_much_and_trains_without_private_steps(
    small: Small,
) -> None:
    """Little is next to none: the weights are then those of the sum without noise, to the noise's own size."""
    settings = (
        "federation.sites=6 federation.secret=on federation.secret_clip=1 fedavg.weighting=uniform"
    )
    plain = run(small(method="fedavg", rounds=3, set=settings))
    noise = {
        n: run(small(method="fedavg", rounds=3, set=f"{settings} privacy.noise_multiplier={n}"))
        for n in (0.01, 100)
    }
    apart = {
        n: max(float((last(r).weights[k] - t).abs().max()) for k, t in last(plain).weights.items())
        for n, r in noise.items()
    }
    assert apart[0.01] < 0.1
    assert apart[100] > 10


@pytest.mark.parametrize("noise", [0.01, 1.0, 50.0])
def test_no_summand_under_noise_is_longer_than_the_clip(noise: float) -> None:
    """In whole steps, for updates of any length, of no finite number too: those add nothing."""
    config = load(
        {
            "method": "fedavg",
            "set": f"federation.secret=on federation.secret_clip=0.7 privacy.noise_multiplier={noise}",
        }
    )
    spec = WeightsSpec(("w",), ((1000,),), (torch.float32,), ("w",))
    form, base = form_of(config, spec, 10), Weights({"w": torch.zeros(1000)})
    rng = torch.Generator().manual_seed(0)
    for scale in (1e-9, 0.01, 1.0, 1e6, math.inf, math.nan):
        made = Weights({"w": torch.randn(1000, generator=rng) * scale})
        words = form.summand(made, base, 1)
        steps = words.view("<i8")[:-2].astype(float)
        assert np.linalg.norm(steps) <= 0.7 / form.grid
        assert words.view("<i8")[-2:].tolist() == [1, 0]
        assert math.isfinite(scale) or not steps.any()


def test_its_noise_is_of_the_clip(small: Small) -> None:
    """A learning rate of next to nothing: what the weights moved by is the mean of six sites' noise."""
    settings = f"{UPDATES} fedavg.lr=1e-30 privacy.noise=system"
    record = run(small(method="fedavg", rounds=1, set=settings))
    start = run(small(method="fedavg", rounds=1, set="federation.sites=6 fedavg.lr=1e-30"))
    moved = torch.cat(
        [(t - last(start).weights[n]).flatten() for n, t in last(record).weights.items()]
    )
    assert float(moved.std()) == pytest.approx(2 * 0.5 * math.sqrt(6 / 3) / 6, rel=0.1)
