"""FedDPMS with DP-SGD in every round: one epsilon of a site's training and of the means that it shares, composed."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from federation import run
from opacus.accountants import PRVAccountant
from small import Small

from common.config.loading import load
from common.errors import ConfigError
from common.privacy.events import Event
from common.specs.feddpms import MECHANISM, SYNTHETIC
from nectar.records.past_run import PastRun
from nectar.report.privacy import exposed
from nectar.report.view import View
from server_app.record import Record

LATENT, SIGMA, BATCH = 6, 2.0, 16
TEXT = (
    f"model.name=vae model.depth=1 model.embedding={LATENT} fedvae.preliminary_rounds=2 fedvae.epochs=1 "
    f"feddpms.batch={BATCH} feddpms.smallest=1 feddpms.copies=4 feddpms.sigma={SIGMA} privacy.noise_multiplier=1.5"
)
PUBLIC = f"{TEXT} privacy.counts=public"


def training(record: Record, site: str, n: int) -> Counter[float]:
    """Return the steps of all rounds by their sample rate: once a site is helped it draws from more than its own."""
    steps: Counter[float] = Counter()
    for line in record.metrics()[1:]:
        pool = n + line["devices"][site].get(SYNTHETIC, 0)
        steps[BATCH / pool] += math.ceil(n / BATCH)
    return steps


def test_a_site_is_charged_for_every_rounds_steps_and_for_its_means(small: Small) -> None:
    """The noise on means is sigma m / sqrt(l), m the images of the smallest class shared; an exchange counts as two."""
    record = run(small(method="feddpms", rounds=4, set=PUBLIC))
    sites = json.loads((record.directory / "partition.json").read_text())["sites"]
    last = record.metrics()[-1]["notes"]["spent"]
    helped = 0
    for site, about in sites.items():
        events = [Event.read(event) for event in last[site]["events"]]
        steps = training(record, site, about["examples"])
        helped += len(steps) > 1
        taken = {e.sample_rate: e.steps for e in events if e.mechanism == "dp-sgd"}
        assert taken == steps
        (means,) = [event for event in events if event.mechanism == MECHANISM]
        smallest = sorted(about["classes"])[-3]
        noise = SIGMA * smallest / math.sqrt(LATENT)
        assert means.noise_multiplier == pytest.approx(noise)
        assert (means.steps, means.adjacency) == (1, "replace-one")
        assert len(events) == 1 + len(taken)
        accountant = PRVAccountant()
        accountant.history = [(1.5, q, number) for q, number in steps.items()] + [(noise, 1.0, 2)]
        assert last[site]["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), rel=0.02)
    assert helped, "nobody was helped, and all rates are those of the sites' own images"


def test_record_and_report_state_one_epsilon(small: Small) -> None:
    """That of everything, and none of the means alone, of which a run without DP-SGD speaks."""
    record = run(small(method="feddpms", rounds=3, set=PUBLIC))
    notes = record.metrics()[-1]["notes"]
    assert "privacy" not in notes
    found = [told["epsilon"] for told in notes["spent"].values()]
    said = " ".join(exposed(View(PastRun.open(record.directory))))
    assert f"has an epsilon of {min(found):.3g} to {max(found):.3g} at delta 1e-05" in said
    assert said.count("an epsilon of") == 1
    assert "means alone" not in said
    assert "Nothing here is differentially private." not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT, "set privacy.counts=public"),
        (f"{PUBLIC} feddpms.mechanism=paper", "set mechanism=single-release"),
        (f"{PUBLIC} feddpms.sigma=0", "set sigma above 0"),
    ],
)
def test_what_no_epsilon_could_cover_is_refused_before_the_run(
    small: Small, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(small(method="feddpms", set=text))
