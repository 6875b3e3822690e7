"""What a private run says of itself: in its record, on its report's first screen, and of numbers that nobody told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nectar.cli import main

PRIVATE = (
    "model.name=logistic privacy.noise_multiplier=1.1 privacy.examples=50 privacy.noise=system "
    "fedavg.epochs=1 federation.sites=2 rounds=1"
)


def record_of(tmp_path: Path, *words: str) -> Path:
    assert main(["run", "fedavg", *words, f"output-dir={tmp_path}"]) == 0
    (record,) = (path.parent for path in tmp_path.glob("*/provenance.json"))
    return record


def report_of(record: Path) -> str:
    page = record / "page.html"
    assert main(["report", str(record), "--output", str(page)]) == 0
    return page.read_text()


@pytest.mark.parametrize(
    ("words", "private"), [(PRIVATE, True), ("rounds=1 federation.sites=2", False)]
)
def test_a_record_says_whether_a_mechanism_covers_what_is_sent(
    words: str, private: bool, tmp_path: Path
) -> None:
    record = record_of(tmp_path, *words.split())
    stated = json.loads((record / "provenance.json").read_text())["privacy"]
    assert stated["differentially_private"] is private


def test_the_report_of_a_private_run_prints_nothing_that_nobody_knew(tmp_path: Path) -> None:
    """Unseeded, counts untold: an epsilon that the sites alone know is not "none", and no site has "1" image."""
    record = record_of(tmp_path, *PRIVATE.split(), "evaluation.on=none")
    metrics = record / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for spent in (lines[-1]["notes"]["spent"] or {}).values():
        spent |= {"epsilon": None, "events": []}  # as sites with ledgers of their own tell it
    partition = json.loads((record / "partition.json").read_text())
    for site in partition["sites"].values():
        site.pop("classes", None)
        site["examples"] = 1
    (record / "partition.json").write_text(json.dumps(partition))
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report_of(record)
    assert "Noise covers what was sent" in page
    assert "<strong>not stated</strong><span>epsilon</span>" in page
    assert "<strong>not judged</strong><span>accuracy (evaluation.on=none)</span>" in page
    assert "The sites told no numbers of images (privacy.counts=one)" in page
    assert "only their numbers of images" not in page
    assert "accuracy at the sites" not in page
