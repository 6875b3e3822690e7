"""What a server expects of a site's counts is what the site was asked for: no honest reply is refused.

Over every method, with noise under counts that are private and public, with a hold-out, groups that stay together,
caps that just hold, and sites that are asked in some rounds alone.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import run
from small import Small

from common.config.loading import load
from common.errors import ConfigError
from common.learning.steps import local_steps, planned
from common.methods import METHODS, section
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "No honest site is refused for its counts, whatever the method",
)

#: every site holds some of its examples out, none has more than the cap, and two of three are asked in a round
ALL = (
    "data.images=150 data.site_holdout=0.2 federation.sites=3 federation.participation=0.7 partition.alpha=5 "
    "model.width=4 model.depth=1 image_training.epochs=2 federation.max_examples=150"
)
NOISE = "privacy.noise_multiplier=1 privacy.noise=seeded"
COUNTS = {
    "plain": "",
    # 112 of them are learned from: 7 batches, where all would be 9
    "noise, private counts": f"{NOISE} privacy.examples=140",
    "noise, public counts": f"{NOISE} privacy.counts=public",
}
VAE = "model.name=vae model.width=4 model.embedding=4"
OWN = {
    "feddm": "feddm.iterations=2 feddm.ipc=1 feddm.real_batch=16",
    "fedaf": "fedaf.iterations=2 fedaf.ipc=1 fedaf.real_batch=16 fedaf.local_epochs=1",
    "real": "real.ipc=1",
    "fedsynth": "fedsynth.iterations=2 fedsynth.rate=4 fedsynth.real_batch=16",
    "fedgen": "fedgen.generator_steps=2",
    "dense": "dense.server_iterations=2 dense.generator_steps=2 dense.generator_batch=16",
    "fedvae": f"{VAE} fedvae.preliminary_rounds=1",
    "feddpms": f"{VAE} feddpms.preliminary_rounds=1 feddpms.copies=2 feddpms.max_draws=2",
    "feddgm": "feddgm.together=3 feddgm.ipc=1 feddgm.iterations=1 feddgm.inner_epochs=1 feddgm.global_epochs=1 "
    "feddgm.surrogate_epochs=1 feddgm.global_models=convnet feddgm.generator=pixels feddgm.dsa=",
    "fedssyn": "fedssyn.source=none fedssyn.inner=fednova fednova.epochs=1 fednova.batch=16",
    "ridge": "ridge.width=9",
}
PERSONAL = {"fedper", "fedrep", "fedbn"}
NO_TRAINING = {"feddm", "fedaf", "real", "fedsynth", "server", "fedssyn", "ridge"}


def settings(method: str, more: str) -> str:
    name = section(method)
    steps = "" if method in NO_TRAINING else f"{name}.epochs=1 {name}.batch=16"
    judged = "none" if more else "both"  # of a private run the sites tell no figures
    if method in PERSONAL:
        judged = judged.replace("both", "sites")
    return f"{ALL} {steps} {OWN.get(method, '')} {more} evaluation.on={judged}".strip()


def refused(record: Record) -> dict[str, str]:
    return {site: why for line in record.metrics() for site, why in line["rejected"].items()}


def taken(asked: dict[str, Any]) -> bool:
    """Return whether the method has noise, and under such counts; where it has none it says so before it begins."""
    try:
        load(asked)
    except ConfigError as error:
        return "privacy." not in str(error)
    return True


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("method", METHODS)
def test_no_honest_reply_is_refused(small: Small, method: str, counts: str) -> None:
    asked = small(method=method, rounds=2, set=settings(method, COUNTS[counts]))
    if method == "ridge":
        asked["rounds"] = 1
    if "noise" in counts and not taken(asked):
        return
    record = run(asked)
    assert refused(record) == {}
    assert len(record.metrics()) == 1 + asked["rounds"]


@pytest.mark.parametrize("batch", [8, 200])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("method", ["fedavg", "fednova", "scaffold", "fedpvr"])
def test_nor_one_of_a_site_whose_patients_stay_together(
    tmp_path: Path, method: str, counts: str, batch: int
) -> None:
    """Six rows a patient: how many a site holds out follows the patients, not the share of its rows."""
    rng = np.random.default_rng(0)
    lines = [
        f"{a:.3f},{b:.3f},{int(a > 0)},p{i // 6}"
        for i, (a, b) in enumerate(rng.normal(size=(180, 2)))
    ]
    file = tmp_path / "rows.csv"
    file.write_text("a,b,class,patient\n" + "\n".join(lines) + "\n", encoding="utf-8")
    words = (
        f"data.file={file} data.label=class data.group=patient data.kind=table data.low=-4 data.high=4 "
        "data.scale=minmax data.site_holdout=0.3 federation.sites=3 federation.participation=0.7 "
        f"partition.kind=iid model.name=mlp model.width=4 {method}.epochs=2 {method}.batch={batch} {COUNTS[counts]}"
    )
    keys: dict[str, Any] = {
        "output-dir": str(tmp_path / "runs"),
        "data-dir": str(tmp_path / "data"),
    }
    record = run({"method": method, "rounds": 2, "set": words, **keys})
    assert refused(record) == {}


@pytest.mark.parametrize("function", [planned, local_steps])
def test_what_the_steps_depend_on_cannot_be_left_out(function: Any) -> None:
    """`privacy`, the hold-out and whether updates are noised come with the configuration; nothing has a default."""
    signature = inspect.signature(function)
    assert all(one.default is inspect.Parameter.empty for one in signature.parameters.values())
    assert next(iter(signature.parameters)) == "config"
