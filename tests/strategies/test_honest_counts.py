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

from common.learning.steps import local_steps, planned
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "No honest site is refused for its counts, whatever the method",
)

NOISE = "privacy.noise_multiplier=1 privacy.noise=seeded"
COUNTS = {
    "plain": "",
    # 112 of them are learned from: 7 batches, where all would be 9
    "noise, private counts": f"{NOISE} privacy.examples=140",
    "noise, public counts": f"{NOISE} privacy.counts=public",
}


def refused(record: Record) -> dict[str, str]:
    return {site: why for line in record.metrics() for site, why in line["rejected"].items()}


@pytest.mark.extended
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("method", ["fednova", "scaffold"])
def test_nor_one_of_a_site_whose_patients_stay_together(
    tmp_path: Path, method: str, counts: str
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
        f"partition.kind=iid model.name=mlp model.width=4 {method}.epochs=2 {method}.batch=8 {COUNTS[counts]}"
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
