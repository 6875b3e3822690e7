"""What FedSynth cannot do is refused before any work, and what a rate leaves is counted exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fedsynth_sites import QUICK, Small, made
from hypothesis import example as for_one
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from common.config.loading import load
from common.data.published.catalogue import describe
from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.settings.fedsynth import FedSynthSettings
from common.specs.fedsynth import spec_of
from nectar import cli
from server_app.app import make_strategy

# -- what cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "fedsynth.rate=51",
            "fedsynth.rate=51 leaves no example in each of fedsynth.steps=1 batches, at 74 floats an example",
        ),
        ("fedsynth.rate=1 fedsynth.steps=51", "no rate would: lower fedsynth.steps or take a larg"),
        ("model.width=1 fedsynth.learn_step=on fedsynth.rate=2", "the largest possible rate is 1."),
        ("model.name=convnet model.norm=batch", "choose model.norm=instance, group or none"),
    ],
)
def test_a_run_that_cannot_be_is_refused_with_what_to_do(
    small: Small, words: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_strategy(made(small, words))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_trained_labels_are_refused_for_text(asked: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"2000 numbers for every token of reddit2k: set feds"):
        make_strategy(Division(load(asked(method="fedsynth"))).run)


@pytest.mark.parametrize(
    "words", [["fedsynth.rate=1e9"], ["fedsynth.steps=100000"], ["model.norm=batch"]]
)
def test_an_impossible_run_ends_the_command_before_any_work(
    tmp_path: Any, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    output = tmp_path / "runs"
    assert cli.main(["run", "method=fedsynth", *words, f"output-dir={output}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("nectar: ")
    assert line.endswith(".")
    assert not output.exists()


def budget(parameters_: int, example: int, **settings: Any) -> Run:
    """Return what ``spec_of`` reads of a run whose model has so many parameters, and inputs of so many floats."""
    model = nn.Linear(parameters_, 1, bias=False, device="meta")
    model.continuous_shape = (example, 1, 1)
    made_ = SimpleNamespace(
        info=replace(describe("digits"), shape=(example, 1, 1)),
        build_model=lambda: model,
        settings=lambda _: FedSynthSettings(**settings),
        config=SimpleNamespace(dataset="made-up"),
    )
    return cast(Run, made_)


sizes = st.integers(1, 20_000_000), st.integers(1, 3000), st.integers(1, 60)
kinds = st.sampled_from(["trained", "fixed"]), st.booleans()


@hypothesis_settings(deadline=None)
@given(*sizes, st.floats(1, 1000), *kinds)
@for_one(504_972, 159, 18, 8.3, "trained", False)  # 20 examples, of which floats lose one
def test_as_many_examples_are_sent_as_the_rate_pays_for_and_no_fewer(
    total: int, example: int, m: int, rate: float, labels: str, learn: bool
) -> None:
    run_ = budget(total, example, rate=rate, steps=m, labels=labels, learn_step=learn)
    room = Fraction(total) / Fraction(str(rate))
    each = example + (10 if labels == "trained" else 0)
    try:
        b = spec_of(run_).b
    except ConfigError:
        b = 0
    assert b == 0 or m * b * each + learn <= room
    assert m * (b + 1) * each + learn > room


@hypothesis_settings(deadline=None)
@given(*sizes, *kinds)
@for_one(26_202_306, 2369, 5, "trained", False)  # 2202.8, at which floats leave no example
def test_the_largest_rate_that_a_refusal_names_is_possible_and_a_tenth_more_is_not(
    total: int, example: int, m: int, labels: str, learn: bool
) -> None:
    given_ = {"steps": m, "labels": labels, "learn_step": learn}
    with pytest.raises(ConfigError) as refused:
        spec_of(budget(total, example, rate=1e9, **given_))
    said = str(refused.value)
    each = example + (10 if labels == "trained" else 0)
    if m * each + learn > total:
        assert "no rate would" in said
        return
    named = said.removesuffix(".").rpartition(" ")[2]
    assert spec_of(budget(total, example, rate=float(named), **given_)).b == 1
    more = float(Fraction(named) + Fraction(1, 10))
    with pytest.raises(ConfigError):
        spec_of(budget(total, example, rate=more, **given_))


def test_the_training_it_is_held_against_is_the_one_that_files_tell_fedavg(small: Small) -> None:
    given_ = small(method="fedsynth", set=f"{QUICK} fedavg.momentum=0.5 fedavg.lr=0.7")
    settings = load(given_).settings
    assert isinstance(settings, FedSynthSettings)
    assert (settings.momentum, settings.lr, settings.weighting) == (0.5, 0.1, "uniform")
