"""What a private run says of itself: in its record, on its report's first screen, and of numbers that nobody told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from charged import AT_ONCE, CHARGED, GENERATOR, ONE
from federation import run
from places import ROOT
from small import Small

from nectar.cli import main
from nectar.records.record import RunRecord
from nectar.report.privacy import RELEASED, exposed
from nectar.report.view import View

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


MECHANISMS = {**{name: (*words[:2], 1) for name, words in CHARGED.items()}, **AT_ONCE}
MECHANISMS["drawn"] = (*GENERATOR[:2], 1)


def page_of(small: Small, method: str, words: str) -> tuple[set[str], str]:
    """Return by which mechanisms a run's sites were charged, and what its page says that left them."""
    record = run(small(method=method, rounds=1, set=words))
    lines = record.metrics()[1:]
    spent = [
        each for line in lines for each in ((line.get("notes") or {}).get("spent") or {}).values()
    ]
    named = {event["mechanism"] for each in spent for event in each["events"]}
    return named, " ".join(exposed(View(RunRecord.open(record.directory))))


@pytest.mark.extended
@pytest.mark.parametrize("name", [n for n in MECHANISMS if n not in ("head", "augmented", "half")])
def test_the_page_says_what_left_by_each_mechanism(small: Small, name: str) -> None:
    method, words, sites = MECHANISMS[name]
    length = (CHARGED | {"drawn": GENERATOR}).get(name, ("", "", ""))[2]
    own = "federation.sites=2 data.images=200 evaluation.on=none " if sites == 1 else ""
    steps = f" {length}=1" if length else ""
    text = words.replace(ONE, "") + steps + " privacy.noise=auto feddpms.smallest=1"
    named, page = page_of(small, method, own + text)
    assert named
    told = (ROOT / "docs" / "reference" / "methods.md").read_text()
    for mechanism in named:
        assert f"A device sent {RELEASED[mechanism]}." in page
        assert f"| `{mechanism}` | {RELEASED[mechanism]} |" in told


@pytest.mark.parametrize("secret", ["off", "on"])
def test_the_page_says_what_the_server_saw_of_a_sum(small: Small, secret: str) -> None:
    _, page = page_of(small, "fedavg", f"federation.sites=4 federation.secret={secret}")
    said = {
        "off": "What sites sent (weights) is a function of private data",
        "on": "holds only for the total of many sites",
    }
    assert said[secret] in page
    assert (said["on"] in page) == (secret == "on")


@pytest.mark.extended
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
    assert "<span>epsilon</span>" not in page
    assert "<strong>not judged</strong><span>accuracy (evaluation.on=none)</span>" in page
    assert "The sites reported no numbers of images (privacy.counts=one)" in page
    assert "only their numbers of images" not in page
    assert "accuracy at the sites" not in page
