"""Every file written below a site's state directory has a row in docs/site-ledger.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from image_folders import CLASSES, paint
from named_site import served
from places import ROOT
from small import Small

from common.storage import tensor_file as tensors_apart
from nectar.records.outputs import with_recorded

ONE = "federation.sites=1 evaluation.on=none"
IMAGES = f"images.classes={CLASSES} images.size=8 model.depth=2"
DIFFUSION = (
    "fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.epochs=1 fedssyn.batch=32 "
    "fedssyn.diffusion_steps=8 fedssyn.sampling_steps=2 fedssyn.sampler=second-order fedssyn.size=6 fedssyn.rho=.5"
)
PUBLIC = "privacy.noise_multiplier=1 privacy.counts=public"

#: method, settings and rounds of runs that leave something of every sort
RUNS = [
    ("feddyn", "feddyn.alpha=1", 1),
    ("ditto", "ditto.epochs=1 evaluation.on=sites data.site_holdout=.25", 1),
    ("fedssyn", f"{DIFFUSION} fedssyn.noise_multiplier=1 {PUBLIC}", 2),
    ("feddm", f"feddm.mechanism=feature {PUBLIC} feddm.counts_noise=10", 1),
]
_WORDS = {
    "RECORD": r"\d{8}-[^/]+",
    "SITE": "north",
    "KIND": "[0-9a-f]{16}",
    "RUN": r"\d+",
    "*": ".+",
}


def rows() -> dict[str, list[str]]:
    """Return the files of each row of the table, as patterns."""
    page = (ROOT / "docs" / "site-ledger.md").read_text(encoding="utf-8")
    table = page.partition("## What lies in `state-dir`")[2].partition("\n\n- ")[0]
    firsts = [
        line.split("|")[1]
        for line in table.splitlines()
        if line.startswith("| `") and "below" not in line
    ]
    return {first.strip(): list(map(pattern, re.findall(r"`([^`]+)`", first))) for first in firsts}


def pattern(named: str) -> str:
    parts = re.split(r"(RECORD|SITE|KIND|RUN|\*)", named)
    return "".join(_WORDS.get(part, re.escape(part)) for part in parts)


@pytest.mark.extended
def test_every_file_is_in_one_row_and_every_row_is_written(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors_apart, "LARGE", 1 << 9)
    paint(tmp_path / "images", "red", 20)
    paint(tmp_path / "images", "blue", 20)
    state = tmp_path / "state"
    node = {"data": str(tmp_path / "images"), "state-dir": str(state)}
    for number, (method, text, rounds) in enumerate(RUNS, 1):
        config = small(method=method, dataset="images", rounds=rounds, set=f"{ONE} {IMAGES} {text}")
        record, _ = served(config, number, node)
        served(
            with_recorded({"resume": str(record.directory), "rounds": rounds + 1}),
            10 + number,
            node,
        )
    files = [path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file()]
    table = rows()
    of = {
        file: [row for row, names in table.items() if any(re.fullmatch(n, file) for n in names)]
        for file in files
    }
    assert {file: found for file, found in of.items() if len(found) != 1} == {}
    assert {row for found in of.values() for row in found} == set(table)
    kinds = {file.split("/")[-1] for file in files}
    assert "after" in kinds
    assert [file for file in files if "/tensors/" in file]
