"""The contract of data of one's own: whichever door it comes in by, it is divided, checked and kept in the same way.

A ``Source`` is some examples of some classes, of which no two are equal; a door writes one as a file, a folder or a
function and gives the words that name it. What a door reads of its own form stands in tests/common and tests/nectar.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import forget_loaded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tiers import only_these_first

from common.config.loading import load
from common.division import Division
from common.errors import DataError
from common.samples.dataset import Split

NAMES = ("amber", "blue", "coral", "dusk")


@dataclass(frozen=True)
class Source:
    """How many examples there are of each class, and to how many groups they belong, in turn; 0: each is alone."""

    counts: tuple[int, ...]
    groups: int = 0

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def classes(self) -> str:
        return ",".join(NAMES[: len(self.counts)])

    @property
    def images(self) -> np.ndarray[Any, Any]:
        """Grey images, each of one brightness, which tells it from all others."""
        values = np.arange(len(self.labels), dtype=np.uint8) * 3
        return np.broadcast_to(values[:, None, None], (len(values), 8, 8)).copy()


SOURCES = st.lists(st.integers(2, 25), min_size=2, max_size=4).map(lambda n: Source(tuple(n)))


def npz(source: Source, place: Path) -> str:
    np.savez(place / "own.npz", train_images=source.images, train_labels=source.labels)
    return f"data.file={place / 'own.npz'}"


def series(source: Source, place: Path) -> str:
    x = source.images[:, :1].astype(np.float64)
    np.savez(place / "own.npz", x_train=x, y_train=source.labels)
    return (
        f"data.file={place / 'own.npz'} data.kind=series data.scale=minmax data.low=0 data.high=255"
    )


def csv(source: Source, place: Path) -> str:
    lines = ["kind,value,who"]
    for i, (label, image) in enumerate(zip(source.labels, source.images, strict=True)):
        lines.append(f"{NAMES[label]},{image[0, 0]},{i % source.groups if source.groups else i}")
    (place / "own.csv").write_text("\n".join(lines) + "\n")
    by = "data.group=who" if source.groups else ""
    scale = "data.scale=minmax data.low=0 data.high=255"
    return f"data.file={place / 'own.csv'} data.label=kind {scale} {by}"


def folder(source: Source, place: Path, below: str = "") -> str:
    for i, (label, image) in enumerate(zip(source.labels, source.images, strict=True)):
        path = place / "set" / below / NAMES[label] / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    words = f"images.folder={place / 'set'} images.classes={source.classes}"
    return f"dataset=images {words} images.size=8 images.channels=1"


def train_folder(source: Source, place: Path) -> str:
    return folder(source, place, "train")


def function(source: Source, place: Path) -> str:
    module = types.ModuleType("module_of_own_data")
    found = {"train_images": source.images, "train_labels": source.labels}
    module.images = lambda: found  # type: ignore[attr-defined]
    sys.modules["module_of_own_data"] = module
    return "dataset=module_of_own_data:images"


Door = Callable[[Source, Path], str]
DOORS: Mapping[str, Door] = {
    "file": npz,
    "series": series,
    "table": csv,
    "folder": folder,
    "train folder": train_folder,
    "function": function,
}
every = pytest.mark.parametrize("door", only_these_first(DOORS, "file", "table", "folder"))
drawn = settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Opened:
    """Divisions of one source by a door, each as a new process would make it."""

    def __init__(self, door: str, source: Source, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self._patch = place, patch
        self.place.mkdir()
        self.words = DOORS[door](source, place)

    def division(self, more: str = "", **keys: Any) -> Division:
        forget_loaded(self._patch)
        words = dict(word.partition("=")[::2] for word in f"{self.words} {more}".split())
        keys |= {key: words.pop(key) for key in ("dataset", "method") if key in words}
        text = " ".join(f"{key}={value}" for key, value in words.items())
        return Division(load({"data-dir": str(self.place / "data"), "set": text, **keys}))


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Source], Opened]:
    def make(door: str, source: Source) -> Opened:
        return Opened(door, source, tmp_path / f"{len(list(tmp_path.iterdir()))}", monkeypatch)

    return make


def ids(split: Split) -> list[int]:
    """Return which examples these are, by their brightness."""
    return [round(float(image.flat[0]) / 3) for image in np.asarray(split.images)]


Open = Callable[[str, Source], Opened]


@pytest.mark.sweep
@every
@drawn
@given(source=SOURCES, share=st.sampled_from([0.1, 0.2, 0.4]), seed=st.integers(0, 9))
def test_a_stratified_share_is_held_out_by_the_seed_and_nothing_is_lost(
    opened: Open, door: str, source: Source, share: float, seed: int
) -> None:
    own = opened(door, source)
    text = f"data.test_share={share} evaluation.on=none"
    data = own.division(text, seed=seed).dataset
    train, test = ids(data.train), ids(data.test)
    assert sorted(train + test) == list(range(len(source.labels)))
    assert data.train.labels.tolist() == source.labels[train].tolist()
    assert data.test.labels.tolist() == source.labels[test].tolist()
    total = round(share * len(source.labels))
    cut = Counter(data.test.labels.tolist())
    for label, count in enumerate(source.counts):
        assert abs(cut[label] - count * total / len(source.labels)) <= 1
        assert cut[label] < count, "no class loses its last example"
    again = own.division(text, seed=seed).dataset
    assert (ids(again.test), again.checksum) == (test, data.checksum)


@every
def test_another_seed_holds_others_out_and_no_share_is_none(opened: Open, door: str) -> None:
    own = opened(door, Source((25, 25)))
    cuts = [set(ids(own.division(seed=seed).dataset.test)) for seed in (0, 1)]
    assert cuts[0] != cuts[1]
    whole = own.division("data.test_share=0 evaluation.on=none").dataset
    assert (len(whole.train), len(whole.test)) == (50, 0)
    with pytest.raises(DataError, match=r"evaluation.on=server needs test .*data\.test_share"):
        own.division("data.test_share=0").dataset  # noqa: B018


@every
def test_it_is_read_once_for_all_processes_privately_and_again_when_it_changes(
    opened: Open, door: str
) -> None:
    source = Source((9, 8, 7))
    own = opened(door, source)
    first = own.division().dataset
    store = first.store
    assert store is not None
    stamp = (store / "store.json").stat().st_mtime_ns
    if "folder" in door:
        (own.place / "set").chmod(0o700)
    second = own.division().dataset
    assert second.checksum == first.checksum
    assert isinstance(second.train.images.base, np.memmap)
    assert (store / "store.json").stat().st_mtime_ns == stamp, "it is not written again"
    DOORS[door](replace(source, counts=(9, 8, 6)), own.place)
    if "folder" in door:
        (own.place / "set" / ("train" if "train" in door else "") / "coral/023.png").unlink()
    if door == "function":
        return  # of a function the code is what is known
    changed = own.division().dataset
    assert changed.checksum != first.checksum
    assert len(changed.train) + len(changed.test) == 23


@every
def test_a_run_that_states_it_resolves_to_it(opened: Open, door: str) -> None:
    config = opened(door, Source((9, 8))).division().config
    again = load(config.to_run_config())
    assert (again, again.digest()) == (config, config.digest())


@drawn
@given(
    counts=st.lists(st.integers(6, 30), min_size=2, max_size=3).map(tuple),
    groups=st.integers(6, 12),
    kind=st.sampled_from(["iid", "dirichlet", "quantity", "by_class", "shards", "natural"]),
)
def test_groups_are_on_one_side_of_every_division(
    opened: Open, counts: tuple[int, ...], groups: int, kind: str
) -> None:
    source = Source(counts, groups)
    text = f"partition.kind={kind} partition.min_size=0 partition.alpha=5 federation.sites=2 "
    text += "data.site_holdout=0.3"
    division = opened("table", source).division(f"{text} data.validation=0.2 evaluation.on=none")
    train = division.dataset.train
    assert train.owners is not None
    who = [i % groups for i in ids(train)]
    sides = [{i % groups for i in ids(division.dataset.test)}]
    parts = [division.validation]
    for site, part in enumerate(division.partition(2)):
        parts += division.share(f"partition-{site}", division.dataset, part)
    sides += [{who[i] for i in part} for part in parts]
    assert sum(map(len, sides)) == len(set.union(*sides)), "nobody is on two sides"
    if kind != "natural":
        assert sorted(np.concatenate(parts)) == list(range(len(train)))
        assert set.union(*sides) == set(range(groups))
