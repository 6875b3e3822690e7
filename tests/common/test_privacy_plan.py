"""``privacy.epsilon``: the noise that a run's rounds need, held against what its sites were charged."""

from __future__ import annotations

from typing import Any

import pytest
from federation import resumed, run
from small import Small
from tiers import only_these_first

from client_app.owner.vetoes import import_policy_of
from common.config.loading import load
from common.errors import ConfigError
from common.methods import METHODS, settings_of
from common.privacy.accounting import epsilon
from common.privacy.events import Event

WORDS = "federation.sites=2 data.images=60 model.width=8 privacy.epsilon=4 privacy.examples=25"
EXTRA: dict[str, str] = {name: f"{name}.epochs=2 {name}.batch=8" for name in METHODS} | {
    "ridge": "ridge.width=17"
}
for at_sites in (
    "fedper",
    "ditto",
    "finetune",
):  # which would judge, and a private run tells nothing
    EXTRA[at_sites] += " evaluation.on=none"
PLANNED = [
    name
    for name in METHODS
    if settings_of(METHODS[name])().private_steps(10, 0.0) is not None and METHODS[name].private
]


def config(**keys: Any) -> Any:
    return load(keys)


def test_methods_with_one_training_a_round_or_one_release_are_planned() -> None:
    assert {"fedavg", "fedprox", "fednova", "scaffold", "feddyn", "moon", "topk", "ridge"} <= set(
        PLANNED
    )
    assert not {"feddm", "fedvae", "feddpms", "fedgen", "fedsynth", "fedssyn"} & set(PLANNED)


@pytest.mark.extended
@pytest.mark.parametrize("method", only_these_first(PLANNED, "ridge"))
def test_what_the_sites_are_charged_is_within_what_was_asked_and_close(
    method: str, small: Small
) -> None:
    rounds = 1 if method == "ridge" else 2
    record = run(small(method=method, rounds=rounds, set=f"{WORDS} {EXTRA[method]}"))
    spent = record.metrics()[-1]["notes"]["spent"]
    assert len(spent) == 2
    for site in spent.values():
        assert 3.9 < site["epsilon"] <= 4.0


@pytest.mark.extended
@pytest.mark.parametrize(("batch", "examples"), [(256, 80), (64, 320), (64, 80), (30, 90)])
def test_no_larger_site_is_charged_more_than_was_asked(batch: int, examples: int) -> None:
    """One of 257 examples takes six steps with nearly all of them, where one of 80 takes five with all."""
    words = f"privacy.epsilon=9 privacy.examples={examples} privacy.counts=public"
    its = config(method="fedavg", rounds=5, set=f"{words} fedavg.batch={batch} fedavg.epochs=5")
    costs = []
    for n in {*range(examples, 6 * max(batch, examples), 13), max(batch + 1, examples)}:
        rate, steps = its.settings.private_steps(n, 0.0)
        events = [Event("all", its.privacy.noise_multiplier, rate, steps * 5)]
        costs.append(epsilon(events, its.privacy.delta).value)
    assert 8.7 < max(costs) <= 9


@pytest.mark.sweep
@pytest.mark.parametrize("examples", [2**20 - 1, 2**20, 2**20 + 1])
def test_it_is_planned_for_the_dearest_site_at_any_number(examples: int) -> None:
    """2^20 was the number by which it was seen whether steps follow examples at all."""
    words = f"privacy.epsilon=9 privacy.counts=public fedavg.batch={2**20} fedavg.epochs=5"
    its = config(method="fedavg", rounds=5, set=f"{words} privacy.examples={examples}")
    rate, steps = its.settings.private_steps(2**20 + 1, 0.0)
    events = [Event("all", its.privacy.noise_multiplier, rate, steps * 5)]
    assert 8.7 < epsilon(events, its.privacy.delta).value <= 9


@pytest.mark.parametrize(("real_batch", "least"), [(64, 3.9), (1, 0.1)])
def test_feddms_steps_are_planned_as_of_all_examples(
    real_batch: int, least: float, small: Small
) -> None:
    """Exact where a class is in every step; of classes that are drawn from it is more noise than is needed."""
    own = f"feddm.mechanism=gradient feddm.start=noise feddm.iterations=3 feddm.real_batch={real_batch}"
    record = run(small(rounds=2, set=f"{WORDS} {own} privacy.counts=public"))
    spent = record.metrics()[-1]["notes"]["spent"]
    assert len(spent) == 2
    assert least < max(site["epsilon"] for site in spent.values()) <= 4.0


def test_a_site_has_the_servers_noise_whoever_submitted_the_run() -> None:
    """`flwr run` hands on what was typed, and every app reads it; `nectar` hands on what it has resolved."""
    typed = {"method": "fedavg", "set": f"{WORDS} fedavg.epochs=1"}
    server = load(typed)
    for handed in (typed, server.to_run_config()):
        site = load(handed, policy=import_policy_of(()))
        assert site.private
        assert site.privacy == server.privacy


def test_a_longer_run_is_refused_and_the_noise_is_the_records(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1, set=f"{WORDS} fedavg.epochs=1"))
    with pytest.raises(ConfigError, match="planned for fewer rounds: 3 with this noise cost"):
        resumed(record, 3)
