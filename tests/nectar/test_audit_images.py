"""What a reader of images or weights learns: attacks on sets made by hand, then on runs."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from federation import run
from hypothesis import given
from hypothesis import strategies as st
from small import Small
from torch import Tensor

from common.division import Division
from common.errors import ConfigError
from common.samples.dataset import DatasetInfo
from common.samples.inputs import Samples
from common.samples.inputs import samples as dataset_samples
from common.sites import ALL_SITES
from nectar.audit.images import sums, unmixing_sums
from nectar.audit.images.at_record import audit_record
from nectar.audit.images.attacks import Scored, area_under, figures, threshold_at, weights
from nectar.audit.images.examining import Evidence, Sent, examined
from nectar.cli import main
from nectar.comparison.frame import frames
from nectar.records.record import RunRecord
from server_app.run_directory import AUDIT

INFO = DatasetInfo("made", (1, 8, 8), ("a", "b"), (0.0,), (1.0,), 255.0)
IMAGE_ATTACKS = ("nearest", "correlation", "unmixing")


def drawn(count: int, seed: int) -> Tensor:
    """Return images that share most of what they show, as those of a class do: uint8 [n, 1, 8, 8]."""
    numbers = torch.Generator().manual_seed(seed)
    shared = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(99))
    own = torch.rand(count, 1, 8, 8, generator=numbers)
    return ((0.6 * shared + 0.4 * own) * 255).round().to(torch.uint8)


def alike(count: int, seed: int) -> Tensor:
    """Return images that differ mostly in few large patterns, as photographs do, and little in detail."""
    numbers = torch.Generator().manual_seed(seed)
    patterns = torch.rand(4, 64, generator=torch.Generator().manual_seed(98)) - 0.5
    large = torch.randn(count, 4, generator=numbers) @ patterns
    detail = 0.05 * torch.randn(count, 64, generator=numbers)
    pixels = (0.5 + 0.2 * large + detail).clamp(0, 1).view(count, 1, 8, 8)
    return (pixels * 255).round().to(torch.uint8)


def samples(images: Tensor) -> Samples:
    return Samples.of(images, torch.arange(len(images)) % 2)


def audit(sent: dict[str, Tensor], members: dict[str, Samples], controls: Samples) -> Any:
    shown = {}
    for site, images in sent.items():
        of_class = torch.arange(len(images))[:, None] % 2 == torch.arange(2)
        shown[site] = Sent(images.flatten(1), of_class)
    return examined(Evidence.of(members, controls, INFO, shown), {})


# ---- sets made by hand ----------------------------------------------------------------------------------------


def test_members_sent_unchanged_are_all_found_and_no_others_by_the_nearest_neighbour() -> None:
    members, controls = samples(drawn(200, 1)), samples(drawn(1000, 2))
    sent = members.raw[:40].float() / 255
    whole, sites = audit({"north": sent}, {"north": members}, controls)
    assert round(whole.attacks["nearest"].found * 200) >= 40
    assert whole.attacks["nearest"].found <= 40 / 200 + 0.03
    near = sites["north"].nearest
    assert near.own_median < 1e-6
    assert near.other_median > 0.05
    assert near.nearer_to_own == 1
    assert math.isclose(near.nearer_by_chance, 200 / 1200, rel_tol=1e-5)


def test_means_of_four_are_unmixed_while_the_nearest_neighbour_finds_next_to_nobody() -> None:
    members, controls = samples(alike(100, 1)), samples(alike(400, 2))
    picks = torch.tensor([[i, i + 2, i + 4, i + 6] for i in range(90)])  # of one class each
    mixed = (members.raw.float() / 255)[picks].mean(1)
    mixed = (mixed * 255).round() / 255
    whole, _ = audit({"north": mixed}, {"north": members}, controls)
    assert whole.strongest == "unmixing"
    assert whole.attacks["unmixing"].found > 0.9
    assert whole.attacks["nearest"].found < 0.15


def test_noise_among_mixtures_hides_no_member_of_them() -> None:
    """What is made of no candidates takes large weights of some of them, controls too: they must not set the bar."""
    members, controls = samples(alike(100, 1)), samples(alike(400, 2))
    picks = torch.tensor([[i, i + 2, i + 4, i + 6] for i in range(90)])
    mixed = (members.raw.float() / 255)[picks].mean(1)
    mixed[1::2] = torch.rand(45, 1, 8, 8, generator=torch.Generator().manual_seed(3)) * 3
    whole, _ = audit({"north": mixed}, {"north": members}, controls)
    used = len(picks[0::2].unique())
    assert whole.attacks["unmixing"].found > 0.9 * used / 100


def test_each_site_is_judged_by_what_it_sent_itself() -> None:
    members = {"north": samples(drawn(100, 1)), "south": samples(drawn(100, 3))}
    controls = samples(drawn(400, 2))
    sent = {
        "north": members["north"].raw[:20].float() / 255,
        "south": torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(5)),
    }
    _, sites = audit(sent, members, controls)
    assert sites["north"].attacks["nearest"].found >= 0.2
    assert sites["south"].attacks["nearest"].found < 0.05


def test_nothing_is_told_of_a_class_that_only_one_side_has() -> None:
    found = figures(
        Scored(torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
        Scored(torch.ones(2), torch.ones(2, dtype=torch.int64)),
        Scored(torch.ones(2), torch.ones(2, dtype=torch.int64)),
    )
    assert found is None


def test_a_class_that_looks_likelier_is_no_finding() -> None:
    """Scores that depend on the class alone, and members mostly of one class: an area of a half, nobody found."""
    members = torch.tensor([0] * 90 + [1] * 10)
    controls = torch.tensor([0] * 50 + [1] * 50)
    found = figures(
        Scored(1.0 - members, members),
        Scored(1.0 - controls, controls),
        Scored(1.0 - controls, controls),
    )
    assert found is not None
    assert math.isclose(found.area, 0.5)
    assert found.found == found.false_alarms == 0


# ---- the figures ----------------------------------------------------------------------------------------------

few = st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 0.5001, 2.0]), min_size=1, max_size=60)


@pytest.mark.extended
@given(few, st.integers(0, 5), st.floats(0.0, 0.3))
def test_false_alarms_of_the_fitted_half_never_pass_the_rate_and_no_lower_score_would_do(
    scores: list[float], seed: int, rate: float
) -> None:
    values = torch.tensor(scores)
    labels = torch.randint(3, (len(scores),), generator=torch.Generator().manual_seed(seed))
    weight = weights(labels, torch.tensor([0, 0, 0, 1, 2, 2]))
    threshold = threshold_at(values, weight, rate)
    total = float(weight.sum())

    def above(bound: float) -> float:
        return float(weight[values.double() > bound].sum())

    assert above(threshold) <= rate * total + 1e-12
    lower = [v for v in values.double().tolist() if v < threshold]
    assert not lower or above(max(lower)) > rate * total - 1e-12


@pytest.mark.extended
@given(few, few)
def test_the_area_is_the_share_of_pairs_in_order(
    members: list[float], controls: list[float]
) -> None:
    weight = torch.arange(1, len(controls) + 1, dtype=torch.float64)
    pairs = [[(m > c) + 0.5 * (m == c) for c in controls] for m in members]
    expected = float(np.average(np.mean(pairs, 0), weights=weight))
    area = area_under(torch.tensor(members), torch.tensor(controls), weight)
    assert math.isclose(area, expected, rel_tol=1e-9)
    never = torch.full((1,), -torch.inf)
    assert area_under(never, torch.cat([never, torch.zeros(1)]), torch.ones(2)) == 0.25


def test_controls_weigh_by_class_as_members_do() -> None:
    controls, members = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0, 1, 1, 1])
    weight = weights(controls, members)
    assert weight.tolist() == [0.25, 0.25, 0.25, 0.25, 3.0]


# ---- runs -----------------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_the_images_that_real_sends_are_found_every_one(small: Small) -> None:
    record = run(small(method="real", rounds=1, set="data.send_originals=on"))
    content = audit_record(record.directory)
    sent = content["all"]["images"]
    nearest = content["all"]["attacks"]["nearest"]
    assert sent
    assert round(nearest["found"] * nearest["members"]) >= sent
    assert max(each["nearest"]["own_median"] for each in content["sites"].values()) < 1e-5
    assert {each["nearest"]["nearer_to_own"] for each in content["sites"].values()} == {1.0}
    assert json.loads((record.directory / AUDIT).read_text("utf-8")) == content


@pytest.mark.extended
def test_noise_shows_nobody(small: Small) -> None:
    settings = "feddm.start=noise feddm.iterations=0 feddm.ipc=10 partition.alpha=100"
    content = audit_record(run(small(method="feddm", rounds=1, set=settings)).directory)
    for each in (content["all"], *content["sites"].values()):
        for name in IMAGE_ATTACKS:
            found = each["attacks"][name]
            assert abs(found["area"] - 0.5) < 3 * found["area_error"], name
    assert content["all"]["images"] == 300


@pytest.mark.extended
def test_weights_are_judged_by_the_loss_and_members_and_controls_are_counted(small: Small) -> None:
    words = "federation.sites=1 data.images=100 fedavg.epochs=60 fedavg.lr=0.1"
    record = run(small(method="fedavg", rounds=2, set=words))
    content = audit_record(record.directory)
    found = content["all"]["attacks"]["loss, last model"]
    assert content["all"]["images"] == 0
    assert not set(IMAGE_ATTACKS) & set(content["all"]["attacks"])
    # (area - .5) / error is 7.82, and .01 its standard deviation over jittered weights
    assert found["area"] > 0.5 + 5 * found["area_error"]
    assert found["members"] + content["controls"]["held back for validation"] == 100
    assert content["controls"]["of the test split"] == 360
    assert content["controls"]["training images that no site has"] == 1437 - 100


def test_what_a_site_holds_out_is_no_member(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1, set="data.site_holdout=0.5 evaluation.on=both"))
    found = audit_record(record.directory)["all"]["attacks"]["loss, last model"]
    held = sum(row["examples"] for row in record.metrics()[-1]["evaluated"].values())
    trained = sum(site["examples"] for site in record.json("partition.json")["sites"].values())
    assert held > 500
    assert found["members"] in (trained, trained - held)
    assert found["members"] < 800


@pytest.mark.extended
def test_fedssyns_pool_is_audited_whole(small: Small) -> None:
    settings = "fedssyn.source=real fedssyn.inner=fedavg"
    content = audit_record(run(small(method="fedssyn", rounds=2, set=settings)).directory)
    assert content["all"]["images"] == 36 + 44 + 48
    assert content["all"]["nearest"]["nearer_to_own"] > 0.95
    assert content["all"]["attacks"]["nearest"]["found"] * 1293 >= 36 + 44 + 48


UNMIXED = {
    "unmixing",
    "unmixing, 0 to 1",
    "unmixing, half of the members known",
    "unmixing, 0 to 1, half of the members known",
}
SUMS = UNMIXED | {"leverage", "ratio of leverages"}


@pytest.fixture(autouse=True)
def small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Un-mixing takes the third power of a pool's candidates."""
    monkeypatch.setattr(unmixing_sums, "MOST_POOLED", 600)


@pytest.mark.extended
def test_sums_of_few_examples_show_them_and_leverages_of_the_total_fewer(small: Small) -> None:
    """Three sites of 40 rows of 33 numbers, and 1,300 digits that nobody summed."""
    words = "federation.sites=3 data.images=130 ridge.width=33 partition.alpha=100"
    record = run(small(method="ridge", rounds=1, set=words))
    content = audit_record(record.directory)
    assert set(content["all"]["attacks"]) == SUMS | {"loss, last model"}
    for site in content["sites"].values():
        assert site["attacks"]["ratio of leverages"]["area"] > 0.9
        assert site["strongest"] in SUMS
    total = content["all"]["attacks"]["ratio of leverages"]
    assert 0.5 + 4 * total["area_error"] < total["area"] < 0.9
    assert json.loads((record.directory / AUDIT).read_text("utf-8")) == content


@pytest.mark.extended
def test_where_no_site_was_asked_there_are_no_sums_to_attack(small: Small) -> None:
    words = "federation.sites=3 data.images=130 ridge.width=33 ridge.alone=on"
    content = audit_record(run(small(method="ridge", rounds=1, set=words)).directory)
    assert set(content["all"]["attacks"]) == {"loss, last model"}
    assert sums.SUMS_NOTE not in content["notes"]


@pytest.mark.extended
def test_the_leverages_of_all_who_were_summed_have_the_rows_length_as_their_mean(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of x' A^-1 x over the rows of A is the trace of the identity."""
    monkeypatch.setattr(sums, "_DAMPING", 1e-9)
    words = "federation.sites=2 data.images=200 ridge.width=17 ridge.form=integers"
    record = RunRecord.open(run(small(method="ridge", rounds=1, set=words)).directory)
    division = Division(record.config)
    members = {
        f"partition-{place}": dataset_samples(division.dataset.train, division.run.info, part)
        for place, part in enumerate(division.partition(2))
    }
    controls = dataset_samples(division.dataset.test, division.run.info)
    evidence = Evidence.of(members, controls, division.run.info, {})
    scores = dict(sums.scores_of_sums(division.run, record.checkpoint(), evidence, members))
    for who, inside in ((ALL_SITES, evidence.owner >= 0), ("partition-1", evidence.owner == 1)):
        assert -scores[who]["leverage"][inside].mean().item() == pytest.approx(17, rel=1e-6)


# ---- what cannot be audited -----------------------------------------------------------------------------------


@pytest.mark.extended
def test_text_has_no_images_to_audit(reddit_config: Any) -> None:
    record = run(reddit_config())
    with pytest.raises(ConfigError, match="there are no images to audit"):
        audit_record(record.directory)


# ---- on the terminal, in the report ---------------------------------------------------------------------------


@pytest.mark.extended
def test_many_images_are_held_against_candidates_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members, controls = {"north": samples(drawn(60, 1))}, samples(drawn(100, 2))
    sent = {"north": torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(4))}
    at_once = audit(sent, members, controls)
    monkeypatch.setattr("nectar.audit.images.examining._CHUNK", 7)
    assert audit(sent, members, controls) == at_once


@pytest.mark.extended
def test_figures_by_site_are_of_the_first_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    members = {f"s{i}": samples(drawn(20, i)) for i in range(4)}
    sent = {site: each.raw[:10].float() / 255 for site, each in members.items()}
    whole, sites = audit(sent, members, samples(drawn(100, 9)))
    monkeypatch.setattr("nectar.audit.images.examining.MOST_SITES", 2)
    fewer, two = audit(sent, members, samples(drawn(100, 9)))
    assert fewer == whole
    assert two == {site: sites[site] for site in ("s0", "s1")}


@pytest.mark.extended
def test_the_outcome_is_told_and_the_report_shows_it(
    small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(small(method="real", rounds=2, set="data.send_originals=on"))
    assert main(["report", str(record.directory)]) == 0
    page = record.directory / "report.html"
    assert "What an attacker learns" not in page.read_text("utf-8")
    capsys.readouterr()
    assert main(["audit", "images", str(record.directory)]) == 0
    message = capsys.readouterr().out
    assert "The strongest attack" in message
    assert "keeps the sets of round 2 of 2" in message
    known = RunRecord.find(record.directory)
    assert known is not None
    by_run, *_ = frames({"real": {0: RunRecord(known.directory)}}, None)
    assert by_run["audited_in_part"].all()
    assert main(["audit", "images", str(record.directory), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert main(["report", str(record.directory)]) == 0
    shown = page.read_text("utf-8")
    assert "What an attacker learns" in shown
    found = content["all"]["attacks"]["nearest"]
    assert f"{100 * found['found']:.1f} ± {100 * found['found_error']:.1f} %" in shown
