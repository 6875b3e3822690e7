"""A record with a value that no run writes: report and export say so in a sentence, or do without it."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from federation import run
from small import SMALL

from common.division import Division
from common.errors import NectarError
from common.wire.images import SyntheticImages
from nectar.audit.images import examining as outcome
from nectar.audit.images.at_record import audit_record
from nectar.export import bundle
from nectar.export.readme import readme
from nectar.records.record import RunRecord
from nectar.report.curves import Charts
from nectar.report.page import page
from nectar.report.pictures import Images
from nectar.report.view import View
from server_app.pictures import save_sets
from server_app.run_directory import AUDIT

pytestmark = pytest.mark.extended

MISSING = object()
ODD = (MISSING, None, -1.5, "odd", {"x": ["y"]}, 10**400)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = {"output-dir": str(tmp_path_factory.mktemp("odd")), "rounds": 1}
    return run({**keys, "set": SMALL}).directory


@pytest.fixture
def record(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path / recorded.name)


def broken(content: Any, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield the content with one value replaced by something else, of every key down to ``depth``."""
    for keys in paths(content, depth):
        for odd in ODD:
            changed = copy.deepcopy(content)
            inner = changed
            for key in keys[:-1]:
                inner = inner[key]
            if odd is MISSING:
                del inner[keys[-1]]
            else:
                inner[keys[-1]] = odd
            yield f"{'.'.join(map(str, keys))} = {'missing' if odd is MISSING else odd!r}", changed


def paths(content: Any, depth: int) -> Iterator[tuple[Any, ...]]:
    if not depth:
        return
    entries = content.items() if isinstance(content, dict) else enumerate(content[:1])
    for key, value in entries:
        yield (key,)
        if isinstance(value, dict | list):
            yield from ((key, *rest) for rest in paths(value, depth - 1))


def survives(record: Path, what: str, *, exports: bool = True) -> None:
    """Read the record as both commands do; only NectarError may come of it."""

    def report() -> None:
        page([View(RunRecord.open(record))])

    def export() -> None:
        past = RunRecord.open(record)
        about = bundle.about_model(past, Division(past.config).run, past.checkpoint())
        readme(about | {"formats": {}}, None)

    for read in (report, export) if exports else (report,):
        try:
            read()
        except NectarError:
            pass
        except Exception as error:
            pytest.fail(f"{read.__name__} of {what}: {error!r}")


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing, which no value of these files changes, and parse the same settings once."""
    monkeypatch.setattr("yaml.safe_load", cache(yaml.safe_load))
    monkeypatch.setattr("nectar.report.pictures.of_run", lambda *_: Images())
    monkeypatch.setattr("nectar.report.curves.of_run", lambda *_: Charts([], "", []))


@pytest.fixture
def lighter(light: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out also what is sought among the real images."""
    monkeypatch.setattr("nectar.report.view.closest_by_site", lambda *_: {})


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("name", ["provenance.json", "partition.json"])
def test_odd_json_is_a_sentence(record: Path, name: str) -> None:
    for what, content in broken(json.loads((record / name).read_text())):
        (record / name).write_text(json.dumps(content))
        survives(record, f"{name}: {what}")


@pytest.mark.usefixtures("lighter")
def test_an_odd_audit_is_a_sentence(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audited = audit_record(record)
    figures = {"images": 1, "strongest": "nearest"}
    figures["attacks"] = {"nearest": audited["all"]["attacks"]["nearest"]}
    few = {**audited, "all": figures | {"nearest": None}, "sites": {}}
    few["sites"]["partition-0"] = audited["sites"]["partition-0"]

    def render(template: str, runs: list[dict[str, Any]], **_: Any) -> None:
        view = runs[0]["view"]
        if view.record.audit:
            outcome.tables(view.record.audit)
            outcome.sentence(view.record.audit)

    monkeypatch.setattr("nectar.report.page.render", render)
    for what, content in broken(few, 5):
        (record / AUDIT).write_text(json.dumps(content))
        survives(record, f"{AUDIT}: {what}", exports=False)


@pytest.mark.usefixtures("lighter")
def test_odd_metrics_are_a_sentence(record: Path) -> None:
    path = record / "metrics.jsonl"
    first, last = path.read_text().splitlines()
    for what, content in broken(json.loads(last)):
        path.write_text(f"{first}\n{json.dumps(content)}\n")
        survives(record, f"metrics.jsonl: {what}")


@pytest.mark.usefixtures("lighter")
def test_odd_settings_are_a_sentence(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    monkeypatch.setattr("yaml.safe_load", json.loads)
    for what, content in broken(settings):
        path.write_text(json.dumps(content))  # which is YAML too, and sooner written and read
        survives(record, f"config.yaml: {what}", exports=False)


@pytest.mark.parametrize("site", ["../../../../victim", "a/../../b", "/tmp/x", "", "-x\n"])
def test_a_sites_name_is_no_path(record: Path, site: str) -> None:
    sent = SyntheticImages(torch.zeros(1, 1, 8, 8), torch.tensor([3]))
    save_sets({site: sent}, 1, record / "synthetic" / "last.safetensors")
    before = sorted(record.parent.rglob("*"))
    with pytest.raises(NectarError, match="which no site can be called"):
        bundle.export(RunRecord.open(record))
    assert sorted(record.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "sent",
    [
        SyntheticImages(torch.zeros(1, 1, 8, 8), torch.tensor([10])),
        SyntheticImages(torch.zeros(1, 1, 8, 8), torch.tensor([-1])),
        SyntheticImages(torch.zeros(1, 3, 8, 8), torch.tensor([1])),
        SyntheticImages(torch.zeros(2, 1, 8, 8), torch.tensor([1])),
    ],
)
def test_images_of_another_data_set_are_refused(record: Path, sent: SyntheticImages) -> None:
    save_sets({"a": sent}, 1, record / "synthetic" / "last.safetensors")
    with pytest.raises(NectarError, match="that are not digits's"):
        bundle.export(RunRecord.open(record))
