"""``nectar report``: one file that says what a run did, loads nothing, and lets no record's words become HTML."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from documents import check, written
from federation import TamperedGrid, numbers, run
from PIL import Image
from small import Small
from tampering import nan, with_arrays

from common.wire.images import SyntheticImages
from nectar.cli import main as nectar
from nectar.records.real_images import Nearest, RealImages, real_images
from nectar.records.record import RunRecord
from nectar.records.record_imports import import_policy_of
from nectar.report import page as pages
from nectar.report import pictures
from nectar.report.privacy import exposed
from nectar.report.view import View
from server_app.pictures import on_screen, save_sets
from server_app.record import Record


@pytest.mark.extended
def test_the_first_screen_says_how_near_what_was_sent_comes_to_a_real_image(small: Small) -> None:
    record = run(small())
    document, view = written(record), View(RunRecord.open(record.directory))
    real, (_, sets) = real_images(view.record), view.record.synthetic()
    assert isinstance(real, RealImages)
    assert view.info is not None
    least = {}
    for site, sent in sets.items():
        own = real.dataset.train.images[real.parts[site]].reshape(-1, 64) / view.info.scale
        made = on_screen(sent.images, view.info, "pixels").reshape(-1, 64).double().numpy()
        apart = np.sqrt(((made[:, None] - own[None].astype(float)) ** 2).mean(2))
        least[apart.min()] = site
    nearest = min(least)
    message = f"The closest image sent is {nearest:.3f} from a real one of {least[nearest]};"
    assert "Not differentially private." in document.text
    assert message in document.text
    classes = {tag["class"] for tag in document.all("p") if "outcome" in tag.get("class", "")}
    assert classes == {"outcome open", "outcome good"}  # the second: it completed


def test_the_nearest_real_image_is_found_in_pixel_space(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against plain NumPy over the site's images, in chunks that do not divide them."""
    monkeypatch.setattr("nectar.records.real_images._CHUNK", 70)
    past = RunRecord.open(run(small(rounds=1)).directory)
    view = View(past)
    real = real_images(view.record)
    assert isinstance(real, RealImages)
    assert view.info is not None
    for site, sent in past.synthetic()[1].items():
        images = on_screen(sent.images, view.info)
        nearest = real.nearest(site, images)
        assert nearest is not None
        own = real.dataset.train.images[real.parts[site]].astype(np.float64)[:, 0] / 16
        apart = ((images.double().numpy()[:, 0, None] - own[None]) ** 2).mean((2, 3))
        assert apart.shape == (len(images), len(own))
        np.testing.assert_allclose(nearest.figures, np.sqrt(apart.min(1)), atol=1e-6)
        np.testing.assert_allclose(nearest.images[:, 0], own[apart.argmin(1)], atol=1e-6)
        asked = np.linspace(0, len(own) - 1, min(100, len(own))).astype(int)
        among = ((own[asked, None] - own[None]) ** 2).mean((2, 3))
        among[np.arange(len(asked)), asked] = np.inf
        assert nearest.typical == pytest.approx(float(np.median(np.sqrt(among.min(1)))), abs=1e-6)
    assert real.nearest("elsewhere", images) is None


@pytest.mark.extended
def test_data_that_are_not_there_are_missed_in_a_sentence(small: Small) -> None:
    record = run(small(rounds=1))
    record.note(data={"name": "digits", "sha256": "of another set"})
    document = written(record)
    check(document)
    assert "The nearest real images are not shown: the data set in the run's" in document.text
    assert len(document.all("img")) == len(
        [c for s in RunRecord.open(record.directory).synthetic()[1].values() for c in set(s.labels.tolist())]
    )  # fmt: skip


HOSTILE = "\"><script>alert(1)</script>&amp;'\u202e"


@pytest.mark.extended
def test_what_foreign_machines_say_stays_text(small: Small) -> None:
    record = run(small(rounds=1), TamperedGrid, tampers={1: with_arrays(nan)})
    reason = record.metrics()[1]["rejected"]["partition-1"]
    document = written(record)
    check(document)
    assert reason in document.text
    for name in ("metrics.jsonl", "partition.json"):
        path = record.directory / name
        content = path.read_text().replace("partition-1", json.dumps(HOSTILE)[1:-1])
        path.write_text(content.replace("values that are not finite", "<img src=x onerror=y>"))
    record.note(outcome=f"failed: {HOSTILE}", command=["nectar", HOSTILE])
    sets = RunRecord.open(record.directory).synthetic()[1]
    sets[HOSTILE] = sets.pop("partition-0")
    save_sets(sets, 1, record.last_sets)
    hostile = written(record)
    check(hostile)
    assert HOSTILE[:-1] + "\N{REPLACEMENT CHARACTER}" in hostile.text
    assert "<img src=x onerror=y>" in hostile.text
    assert "\u202e" not in hostile.text


@pytest.mark.extended
def test_a_run_that_stopped_is_reported_as_far_as_it_got(small: Small) -> None:
    config = small(method="fedavg", set="federation.min_replies=3")
    with pytest.raises(Exception, match="2 valid replies"):
        run(config, TamperedGrid, tampers={1: with_arrays(nan)})
    (directory,) = Path(config["output-dir"]).iterdir()
    record = Record(directory)
    document = written(record)
    check(document)
    assert "Failed: round 1 has 2 valid replies" in document.text
    assert "0 of 2 rounds are on record." in document.text
    record.note(outcome="running")
    for name in ("partition.json", "metrics.jsonl"):
        (directory / name).unlink()
    early = written(record)
    check(early)
    assert "Killed, since no process writes it: 0 of 2 rounds are on record" in early.text
    assert "The run ended before the sites were known." in early.text


@pytest.mark.extended
def test_large_runs_make_no_large_page(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(small(rounds=1))
    labels = torch.arange(30) // 3
    sets = {f"s{i}": SyntheticImages(torch.randn(30, 1, 8, 8), labels.clone()) for i in range(25)}
    save_sets(sets, 1, record.last_sets)
    document = written(record)
    check(document)
    assert "Pictures of 20 of 25 sites are shown" in document.text
    monkeypatch.setattr(pages, "PICTURES", 12_000)
    small_one = written(record)
    check(small_one)
    shown = re.search(r"Pictures of (\d+) of 25 sites", small_one.text)
    assert shown
    assert 0 < int(shown[1]) < 20
    assert sum(len(i["src"]) for i in small_one.all("img")) <= 12_000


@pytest.mark.extended
@pytest.mark.parametrize(
    ("delta", "examples", "weak"), [(0.01, 140, True), (0.02, 50, False), (0.021, 50, True)]
)
def test_a_delta_above_one_over_the_examples_is_said_at_the_start_in_record_and_report(
    small: Small, caplog: pytest.LogCaptureFixture, delta: float, examples: int, weak: bool
) -> None:
    words = f"privacy.noise_multiplier=1 privacy.examples={examples} privacy.delta={delta}"
    record = run(small(method="fedavg", rounds=1, set=words))
    sentence = f"privacy.delta={delta:g} is above 1/privacy.examples=1/{examples}"
    assert (sentence in caplog.text) is weak
    assert (sentence in str((record.stated() or {}).get("weak_delta"))) is weak
    assert any(sentence in line for line in exposed(View(RunRecord.open(record.directory)))) is weak


def test_the_median_of_two_distances_lies_between_them() -> None:
    sentence = pictures._of_distances("north", Nearest(torch.zeros(2, 1, 8, 8), [0.3, 0.1], None))
    assert "smallest 0.100, median 0.200." in sentence


def test_strips_hold_every_pixel_and_a_gap() -> None:
    images = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4) / 96
    made = pictures.strip(images, "two")
    with Image.open(io.BytesIO(base64.b64decode(made.src.partition(",")[2]))) as picture:
        drawn = np.asarray(picture)
    assert drawn.shape == (made.height, made.width, 4) == (4, 10, 4)
    expected = (images * 255).round().numpy().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(drawn[:, :4, :3], expected[0])
    np.testing.assert_array_equal(drawn[:, 5:9, :3], expected[1])
    assert (drawn[:, [4, 9], 3] == 0).all()


@pytest.mark.extended
def test_the_command_writes_where_it_says(
    small: Small,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = (str(run(small(rounds=1, seed=seed)).directory) for seed in (0, 1))
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert nectar(["report", one]) == 0
    assert capsys.readouterr().out == f"{one}/report.html\n"
    first = (Path(one) / "report.html").read_bytes()
    assert nectar(["report", one, two]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/nectar-report.html\n"
    assert nectar(["report", one, "--output", "again.html"]) == 0
    assert (tmp_path / "again.html").read_bytes() == first, "the same record, the same page"
    assert nectar(["report", str(tmp_path)]) == 2
    assert "is not a run's record" in capsys.readouterr().err


@pytest.mark.extended
def test_the_site_that_sent_the_image_closest_to_a_real_one_stands_first(small: Small) -> None:
    record = run(small())
    document, apart = written(record), View(RunRecord.open(record.directory)).closest
    shown = re.findall(r"(partition-\d+): \d+ images", document.text)
    assert set(apart) == {"partition-0", "partition-1", "partition-2"}
    assert list(dict.fromkeys(shown)) == sorted(apart, key=lambda site: apart[site].distance)


@pytest.mark.extended
def test_the_line_that_a_report_gives_makes_the_numbers_again(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run(small(method="fedavg"))
    found = re.search(r"Reproduce, .*: nectar (run --config config\.yaml)", written(record).text)
    assert found is not None
    monkeypatch.chdir(record.directory)
    assert nectar([*shlex.split(found[1]), f"output-dir={tmp_path / 'again'}"]) == 0
    (again,) = (tmp_path / "again").glob("[!.]*")
    assert numbers(Record(again)) == numbers(record)


def test_a_run_that_is_going_on_is_followed_to_its_end(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page reloads itself while the run is going on, is written once for each change, and stays as the last one."""
    record = run(small(rounds=2))
    lines = record.metrics_path.read_bytes().splitlines(keepends=True)
    writer = Record(record.directory)
    writer.begin_writing()
    record.note(outcome="running")
    record.metrics_path.write_bytes(b"".join(lines[:2]))
    to, seen = tmp_path / "page.html", list[str]()

    def waits(_: float) -> None:
        seen.append(to.read_text())
        if len(seen) == 2:
            record.metrics_path.write_bytes(b"".join(lines))
        elif len(seen) == 3:
            record.note(outcome="completed")
            writer.close()

    monkeypatch.setattr("nectar.report.page.time.sleep", waits)
    pages.follow([record.directory], import_policy_of(""), to)
    refresh = '<meta http-equiv="refresh" content="10">'
    assert [refresh in each for each in seen] == [True] * 3
    assert seen[0] == seen[1] != seen[2]
    assert refresh not in to.read_text()
    assert "Completed: 2 of 2 rounds" in to.read_text()
