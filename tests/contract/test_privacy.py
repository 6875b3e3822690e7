"""The contract of privacy: charged before drawn, one example moves a sum by the clip at most, epsilon alike everywhere.

Every mechanism and every private method is a row (``charged.MECHANISMS``, ``PHASES``, ``CONTRIBUTIONS``). Closed forms,
attacks and the numbers of a mechanism stand in tests/mechanisms, tests/common and tests/synth.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from charged import CHARGED, GENERATOR, MECHANISMS, ONE, STATES, Attacked, honest, spoiled
from named_site import equal, served
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from places import ROOT
from seeds import rng
from small import Small
from tiers import only_these_first
from torch import Tensor, nn

from client_app.device import client_class
from client_app.state import DirectoryState
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.methods import METHODS
from common.models import build
from common.privacy.accounting import epsilon
from common.privacy.ledger import LEDGER, Ledger
from common.samples.inputs import Samples, samples
from common.sites import Site
from common.wire.weights import Weights
from nectar.records.record import RunRecord
from nectar.report.privacy import guarantee
from nectar.report.view import View
from strategies.base import strategy_class
from synth.latent_sharing import mean_steps
from synth.linear_gradients import clipped_sum as products_sum
from synth.linear_gradients import finely
from synth.private_release import Contributions, Gaussian, clipped_sum, noisy_gradients, noisy_means
from tests.mechanisms.phases import PHASES, PLACES, audit_phase

CLIPPED = pytest.mark.promise(
    "What leaves a site is not a private image",
    "One image or example moves a sum by the clip at most (exchanged: twice)",
)
UNCHARGED = pytest.mark.promise(
    "Records",
    "Of no mechanism is an instruction charged that can be refused without an example",
)
TIMED = pytest.mark.promise(
    "Records", "A private phase that cannot end in the round's time is not charged"
)

# ---- charged before drawn, and what is refused is not charged ------------------------------------------

#: images of `fedmd` that every site gets
PUBLIC = 10

#: of the same mechanism as another
LIKE = ("head", "augmented", "half", "proximal")


@pytest.fixture
def read_when(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note in which order the site's own examples, which are bytes, are read and the ledger is charged."""
    order: list[str] = []
    read, charge = Samples.inputs, Ledger.append

    def inputs(self: Samples, idx: Tensor | slice) -> Tensor:
        if self.raw.dtype == torch.uint8 and len(self) > PUBLIC:
            order.append("read")
        return read(self, idx)

    def append(self: Ledger, *given: Any) -> Any:
        order.append("charged")
        return charge(self, *given)

    monkeypatch.setattr(Samples, "inputs", inputs)
    monkeypatch.setattr(Ledger, "append", append)
    return order


@UNCHARGED
@TIMED
@pytest.mark.parametrize(
    "name", only_these_first([n for n in MECHANISMS if n not in LIKE], "fedavg")
)
def test_what_is_refused_of_an_instruction_is_not_charged_and_what_is_charged_was_not_read(
    small: Small, tmp_path: Path, name: str, read_when: list[str]
) -> None:
    grid, config, _ = honest(small, tmp_path, name)
    site, refused, wrong = Attacked(grid, config, MECHANISMS[name][2]), 0, list[str]()
    charged_in = set[int]()
    # what a phase refuses, its last instruction shows: by then the site remembers
    last = {asked.content["config"]["phase"]: number for number, asked in enumerate(grid.asked)}
    for number, asked in enumerate(grid.asked):
        read_when.clear()
        reason, charged = site.answers(asked, asked.content)
        assert not reason
        if not charged:
            continue  # a phase that releases nothing by a mechanism
        charged_in.add(number)
        assert name == "drawn" or read_when[0] == "charged", "an example was read first"
        if number not in last.values():
            continue
        tries = [(what, content, None) for what, content in spoiled(asked.content)]
        tries += [(what, asked.content, spoil) for what, spoil in STATES.items()]
        for what, content, spoil in tries:
            reason, charged = site.answers(asked, content, spoil)
            refused += bool(reason)
            if reason and charged:
                wrong.append(f"instruction {number}, {what}: charged, and then: {reason}")
            if not reason and not charged:
                wrong.append(f"instruction {number}, {what}: worked, and was not charged")
    assert not wrong, "\n".join(wrong)
    assert charged_in
    assert refused > 60


def lasting(small: Small, name: str, steps: int) -> dict[str, Any]:
    method, text, length = (CHARGED | {"drawn": GENERATOR})[name]
    return small(method=method, rounds=1, set=f"{ONE} {text} {length}={steps}")


def at(state: Path) -> dict[str, Any]:
    return {"state-dir": str(state)}


def unreadable(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the site's own examples, which are bytes, raise when they are read."""
    read = Samples.inputs

    def inputs(self: Samples, idx: Tensor | slice) -> Tensor:
        if self.raw.dtype == torch.uint8:
            raise error
        return read(self, idx)

    monkeypatch.setattr(Samples, "inputs", inputs)


@TIMED
@pytest.mark.parametrize("name", only_these_first(CHARGED, "fedavg", "feature"))
def test_steps_that_take_longer_than_is_left_cost_nothing_and_read_nothing(
    small: Small, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable(monkeypatch, AssertionError("an example was read"))
    with pytest.raises(FederationError, match=r"too short for this phase \(estimated "):
        served(lasting(small, name, 10**6), 1, at(tmp_path), **{"seconds-left": 20.0})
    assert not (tmp_path / LEDGER).exists(), "nothing is charged"


@pytest.mark.extended
def test_a_generator_that_the_next_round_goes_on_with_is_charged_once(
    small: Small, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        served(lasting(small, "drawn", 10**5), number, at(tmp_path), **{"seconds-left": 7.0})
    assert len(Ledger(tmp_path).read().events) == 1


@TIMED
def test_what_fails_after_its_charge_stays_charged(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example was read by then, so that the failure itself tells of it."""
    unreadable(monkeypatch, FederationError("ran out"))
    with pytest.raises(FederationError, match="ran out"):
        served(lasting(small, "fedavg", 1), 1, at(tmp_path))
    assert Ledger(tmp_path).read().head.length == 1


@pytest.mark.parametrize(
    "name", only_these_first(["fedavg", "fedgen", "feature", "loss"], "fedavg")
)
def test_where_nothing_is_charged_nothing_is_timed(
    small: Small, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a simulation, and at a node of a real federation whose noise is the seed's; both send the same."""
    monkeypatch.setattr("client_app.device.estimated_seconds", lambda *_: 1 / 0)
    config = lasting(small, name, 1)
    config["set"] += " privacy.noise=seeded"
    nodes = (({"simulated": True}, {}), (at(tmp_path), {"seconds-left": 1e6}))
    assert equal(*(served(config, 1, node, **message)[1] for node, message in nodes))


# ---- what a site was charged is told alike, and no figure beside it ------------------------------------


#: by which noise means were made, which the settings decide, and whether a site's images are all made
NOT_OF_EXAMPLES = {"noise-multiplier", "synthesis-done"}


@pytest.mark.parametrize("name", only_these_first(MECHANISMS, "fedavg", "feature", "sums"))
def test_ledger_record_and_report_have_one_epsilon_and_no_figure_leaves(
    small: Small, tmp_path: Path, name: str
) -> None:
    _, _, record = honest(small, tmp_path, name)
    lines = record.metrics()
    figures = [each for line in lines for each in (line["train"], *line["devices"].values())]
    assert set().union(*figures) <= NOT_OF_EXAMPLES
    spent = lines[-1]["notes"]["spent"]
    ledgers = {f"site-{i}": Ledger(tmp_path / f"state-{i}") for i in range(len(spent))}
    found = {site: epsilon(kept.read().events, 1e-5).value for site, kept in ledgers.items()}
    told = {site: each["epsilon"] for site, each in spent.items() if each["events"]}
    assert told == pytest.approx({site: found[site] for site in told})
    said = guarantee(View(RunRecord.open(record.directory)))
    assert (said is None) == (len(told) < len(spent))
    assert said is None or said.epsilon == pytest.approx(max(found.values()))


# ---- one example moves a sum by the clip ---------------------------------------------------------------


@CLIPPED
@pytest.mark.filterwarnings("ignore:.*performance drop")
@pytest.mark.parametrize("name", only_these_first(PHASES, "phase-fedavg-plain", "phase-ridge"))
def test_one_example_more_moves_what_a_phase_releases_by_the_clip(name: str) -> None:
    """And by no less: else it was not attacked. An exchange is an example out and another in, up to 2 C apart."""
    found = audit_phase(name, 1e-5)
    assert found.holds, found
    least = 0.3 if PHASES[name].exchanged else PHASES[name].least
    assert all(found.clips[place] >= least for place in PLACES), found


def test_every_private_method_is_audited() -> None:
    private = {name for name, method in METHODS.items() if method.private}
    assert {phase.method for phase in PHASES.values()} == private


CLIPS = [1e-6, 1e-3, 0.37, 1.0, 1e3, 1e6]
MAGNITUDES = [
    1e-45,
    1e-38,
    1e-30,
    1e-25,
    1e-20,
    1e-10,
    1e-3,
    1.0,
    1e6,
    1e15,
    1e20,
    1e30,
    1e38,
    3e38,
]
NUMBERS = [1, 700]


def silent(sigma: float, clip: float) -> Gaussian:
    """A mechanism on the grid of its noise, which is then none."""
    return Gaussian(sigma, clip, torch.zeros)


def by_gradient(row: Tensor, gaussian: Gaussian) -> Tensor:
    """A linear model without bias whose loss is the output: its gradient is the example."""
    model = nn.Linear(len(row), 1, bias=False)
    sums = clipped_sum(model, lambda net, x: net(x).sum(), (row[None],), gaussian)
    return gaussian.released(sums["weight"])


def by_product(row: Tensor, gaussian: Gaussian) -> Tensor:
    """The same in the finer steps of linear layers: before the whole is rounded to the grid, with its noise."""
    model = nn.Linear(len(row), 1, bias=False)
    gaussian = finely(gaussian, model, 1.0)
    sums = products_sum(model, lambda net, x: net(x).sum(), (row[None],), gaussian)
    return gaussian.values(sums["weight"])


def by_feature(row: Tensor, gaussian: Gaussian) -> Tensor:
    real = Contributions(row[None], torch.zeros(1).long(), 1)
    return noisy_means(real, torch.ones(1, dtype=torch.float64), gaussian)


def by_image_gradient(row: Tensor, gaussian: Gaussian) -> Tensor:
    """Features that are the image's numbers: the gradient is twice the distance to the example."""
    real = Contributions(row[None], torch.zeros(1).long(), 1)
    images = torch.zeros(1, 1, 1, len(row))
    one = torch.ones(1, dtype=torch.float64)
    return noisy_gradients(lambda x: x.flatten(1), real, images, one, gaussian)


def by_latent(row: Tensor, gaussian: Gaussian) -> Tensor:
    own = Gaussian(gaussian.noise_multiplier * gaussian.clip, 1.0, torch.zeros)
    return own.released(mean_steps(row[None], torch.zeros(1).long(), [0], gaussian.clip, own))


@CLIPPED
@pytest.mark.parametrize(
    "contribution", [by_gradient, by_product, by_feature, by_image_gradient, by_latent]
)
@pytest.mark.parametrize("clip", CLIPS)
def test_no_contribution_is_longer_than_the_clip(
    contribution: Callable[[Tensor, Gaussian], Tensor], clip: float
) -> None:
    """Of every magnitude that float32 has, one element and many, at little noise and at much."""
    for magnitude in MAGNITUDES:
        for numbers in NUMBERS:
            for sigma in (0.01, 1.0, 1e4):
                row = torch.full((numbers,), magnitude)
                row[1::2] *= -1
                length = float(contribution(row, silent(sigma, clip)).double().norm())
                assert length <= clip * (1 + 1e-5), (magnitude, numbers, sigma)


@CLIPPED
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_a_row_of_no_numbers_gives_nothing_and_leaves_the_others_alone(value: float) -> None:
    row = torch.ones(4)
    row[2] = value
    for contribution in (by_gradient, by_product, by_feature, by_image_gradient):
        assert value == 3e38 or not contribution(row, silent(1.0, 1.0)).any()
    model, gaussian = build("mlp", (1, 4, 4), 3, generator=rng(), width=6), silent(1.0, 1.0)
    fine, rest = finely(gaussian, model, 8.0), torch.arange(5) != 2
    x, y = torch.randn(5, 1, 4, 4, generator=rng(1)), torch.arange(5) % 3
    for summed, mechanism in ((clipped_sum, gaussian), (products_sum, fine)):
        expected = summed(model, cross_entropy, (x[rest], y[rest]), mechanism)
        spoilt = x.clone()
        spoilt[2] = value
        found = summed(model, cross_entropy, (spoilt, y), mechanism)
        for name, each in expected.items():
            assert float(mechanism.values(found[name] - each).abs().max()) < 1e-5


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def test_what_is_longer_is_cut_to_the_clip_and_what_is_shorter_stays() -> None:
    gaussian = silent(1.0, 0.5)
    torch.testing.assert_close(
        by_gradient(torch.tensor([3.0, -4.0]), gaussian)[0].float(), torch.tensor([0.3, -0.4])
    )
    torch.testing.assert_close(
        by_gradient(torch.tensor([0.03, -0.04]), gaussian)[0].float(), torch.tensor([0.03, -0.04])
    )


# ---- order and chunks tell nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.01, 1.0, 1e4])
def test_sums_are_the_same_to_the_bit_in_any_order_and_any_chunks(sigma: float) -> None:
    """Lengths from 1e-12 to 1e12 of the clip, 3,000 contributions: float32 sums would differ in their last bits."""
    gaussian = silent(sigma, 0.7)
    rows = torch.randn(3000, 5, generator=rng(1)) * 10 ** torch.empty(3000, 1).uniform_(
        -12, 12, generator=rng(2)
    )
    steps = gaussian.steps(rows, gaussian.factors([rows]))
    whole = steps.sum(0).to(torch.int64)
    assert not torch.equal(rows[::2].sum(0) + rows[1::2].sum(0), rows.sum(0)), "floats do differ"
    for seed in range(5):
        order = torch.randperm(3000, generator=rng(seed))
        parts = torch.split(order, 100 * (seed + 1))
        again = sum((steps[part].sum(0).to(torch.int64) for part in parts), torch.zeros(5).long())
        assert torch.equal(again, whole)
        apart = gaussian.values(whole - steps[order[1:]].sum(0).to(torch.int64))
        assert torch.equal(apart, gaussian.values(steps[order[0]])), "one example, by itself"


@pytest.mark.parametrize("name", ["convnet", "mlp"])
def test_one_example_more_moves_a_models_sum_by_the_clip_wherever_it_stands(name: str) -> None:
    """S(D + x) - S(D) by the network's own gradients, which are float32 and of a batch; chunks move it far less."""
    model = build(name, (1, 8, 8), 5, generator=rng(), width=16, depth=2)
    x, y = torch.randn(33, 1, 8, 8, generator=rng(1)) * 5, torch.arange(33) % 5
    gaussian, others = silent(1.0, 0.5), torch.arange(32)

    def summed(at: Tensor, chunk: int = 0) -> Tensor:
        batch = (x[at], y[at])
        sums = clipped_sum(model, cross_entropy, batch, gaussian, chunk)
        return torch.cat([gaussian.values(total).flatten() for total in sums.values()])

    without = summed(others)
    for place in (0, 16, 32):
        more = torch.cat([others[:place], torch.tensor([32]), others[place:]])
        assert 0.49 < float((summed(more) - without).norm()) <= 0.5 * (1 + 1e-5)
    for again in (summed(others.flip(0)), summed(others, 5)):
        assert float((again - without).norm()) < 1e-3 * 0.5


def test_noise_hides_the_grid_it_stands_on() -> None:
    """What is released are whole steps, whatever the sum: a continuous noise on it, rounded."""
    drawn = torch.randn(1000, dtype=torch.float64, generator=rng(3))
    gaussian = Gaussian(2.0, 0.3, lambda shape: drawn)
    found = gaussian.released(torch.full((1000,), 12345))
    steps = found / gaussian.grid
    assert torch.equal(steps, steps.round())
    assert math.log2(gaussian.grid) == int(math.log2(gaussian.grid))
    assert 2.0**-25 < gaussian.grid / (2.0 * 0.3) <= 2.0**-24
    exact = 12345 * gaussian.grid + 0.6 * drawn
    assert float((found - exact).abs().max()) <= gaussian.grid / 2 * (1 + 1e-9)


# ---- ours and Opacus' ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["convnet", "mlp"])
@pytest.mark.parametrize("clip", [0.01, 1.0, 1e3])
def test_clipped_sums_are_those_of_opacus(name: str, clip: float) -> None:
    """On ordinary gradients, some of which are cut, to float32's accuracy."""
    model = build(name, (1, 8, 8), 5, generator=rng(), width=8, depth=2)
    for layer in model.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False  # Opacus' hooks need tensors of their own
    x, y = torch.randn(16, 1, 8, 8, generator=rng(1)), torch.arange(16) % 5
    gaussian = finely(silent(1.0, clip), model, 16.0)
    sums = products_sum(model, cross_entropy, (x, y), gaussian)
    ours = torch.cat([gaussian.values(total).flatten() for total in sums.values()])
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), 0.1), noise_multiplier=1.0, max_grad_norm=clip,
        expected_batch_size=16,
    )  # fmt: skip
    F.cross_entropy(wrapped(x), y).backward()
    optimizer.clip_and_accumulate()
    theirs = torch.cat([p.summed_grad.flatten() for p in optimizer.params]).double()
    cut_away = (
        16 * gaussian.grid * math.sqrt(len(ours))
    )  # a step of the grid an example and number, at most
    assert float((ours - theirs).norm()) < 1e-5 * float(theirs.norm()) + cut_away


# ---- by fit ----------------------------------------------------------------------------------------------


def private_run(method: str, **words: str) -> Any:
    text = " ".join(f"{key}={value}" for key, value in words.items())
    own = "model.name=logistic privacy.noise_multiplier=1 privacy.counts=public"
    return Division(load({"method": method, "rounds": 1, "set": f"{own} {text}"})).run


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e35])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "feddyn", "moon", "fedgen"])
def test_a_site_of_one_example_sends_no_more_than_the_clip(
    method: str, scale: float, tmp_path: Path
) -> None:
    """The server chooses weights and clip; the example's gradient is as long as it has it, the sum never above C."""
    words = {
        "scaffold": {"scaffold.option": "II"},
        "moon": {"model.projection": "4"},
        "fedgen": {"fedgen.hidden": "4", "fedgen.noise": "2"},
    }.get(method, {})
    run = private_run(method, **{"privacy.clip": "1e-6", f"{method}.epochs": "1"}, **words)
    released: list[tuple[float, float]] = []

    class Silent(Gaussian):
        def released(self, sums: Tensor) -> Tensor:
            """Keep the length of the sum, and the clip."""
            found = self.values(sums)
            released.append((float(found.norm()), self.clip))
            return found

    one = samples(Division(run.config).dataset.train, run.info).at(torch.zeros(1).long())
    none = one.at(torch.zeros(0).long())
    state = DirectoryState(tmp_path, "record", "a")
    client = client_class(method)(run, "a", one, none, state, user_data=False, mechanism=Silent)
    weights = Weights.of(run.build_model())
    weights = Weights({name: tensor * scale for name, tensor in weights.tensors.items()})
    phase, form = _train_phase(client, weights)
    client.fit(form, {"server-round": 1, "phase": phase})
    assert released
    assert all(length <= clip * (1 + 1e-5) for length, clip in released)


def _train_phase(client: Any, weights: Weights) -> tuple[str, list[Any]]:
    """Return the phase that the method's server asks first, and what it sends for it."""
    strategy = strategy_class(client.run.config.method)(client.run, "record")
    counts = client.run.task.class_counts(client.samples.labels)
    strategy.members.sites = [Site("a", 0, 1, class_counts=tuple(counts))]
    instruction = strategy.instructions(1, weights, strategy.sites)["a"]
    return instruction.phase, instruction.payload.encode()


# ---- one function adds noise -----------------------------------------------------------------------------


def test_one_function_adds_noise_and_no_other_code_draws_it() -> None:
    """The key stream's normals are drawn in `Draws.gaussian` alone, and handed to the mechanism that rounds them."""
    drawing, adding = set(), set()
    for folder in ("client_app", "common", "strategies", "server_app", "synth"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr == "normal":
                    of = ast.unparse(node.value)
                    if of.rpartition(".")[2] in ("stream", "self"):
                        (drawing if "stream" in of else adding).add(
                            path.relative_to(ROOT).as_posix()
                        )
                if isinstance(node, ast.Name) and node.id == "KeyStream":
                    drawing.add(path.relative_to(ROOT).as_posix())
    assert drawing == {"client_app/draws.py"}
    assert adding == {"synth/private_release.py"}
