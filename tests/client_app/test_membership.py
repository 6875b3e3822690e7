"""Which examples a private run chooses: each by itself, alike in every process, by a key that stays at the site."""

from __future__ import annotations

import multiprocessing
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from client_app import site
from client_app.draws import KEY, chosen, divided, key_of
from client_app.site import site_samples
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.samples.inputs import Samples

PRIVATE = "privacy.noise_multiplier=1 privacy.counts=public data.site_holdout=0.25"


def pool(n: int) -> Samples:
    raw = torch.arange(n * 4).reshape(n, 1, 2, 2).float()
    return Samples.of(raw, torch.zeros(n, dtype=torch.int64))


def test_one_example_more_changes_the_membership_of_no_other() -> None:
    """Of 40 and of 41 in front of which one was put: those chosen are the same but for it."""
    whole = pool(41)
    before = chosen(whole.at(torch.arange(1, 41)), b"key", "purpose", 0.75) + 1
    after = chosen(whole, b"key", "purpose", 0.75)
    assert set(before) == set(after) - {0}


def test_purposes_and_keys_choose_by_themselves_and_as_many_as_the_share() -> None:
    """Of 4,000 a quarter, within 5 standard errors, of these keys."""
    many = pool(4000)
    found = [set(chosen(many, key, p, 0.25)) for key, p in ((b"a", "x"), (b"b", "x"), (b"a", "y"))]
    assert all(abs(len(each) - 1000) < 5 * 750**0.5 for each in found)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(len(found[one] & found[other]) - 250) < 5 * 250**0.5
    assert len(chosen(many, b"a", "x", 1.0)) == 4000
    assert len(chosen(pool(0), b"a", "x", 0.5)) == 0


def _key(directory: str, queue: multiprocessing.Queue[bytes]) -> None:
    queue.put(key_of(Division(load({})).run, "north", Path(directory), seeded=False))


def test_a_site_makes_its_key_once_for_its_owner_alone(tmp_path: Path) -> None:
    """Eight processes at once, and the next round: one key, mode 600, and nothing beside it."""
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[bytes] = context.Queue()
    racers = [context.Process(target=_key, args=(str(tmp_path), queue)) for _ in range(8)]
    for racer in racers:
        racer.start()
    found = {queue.get(timeout=60) for _ in racers}
    for racer in racers:
        racer.join()
    found.add(key_of(Division(load({"seed": 5})).run, "north", tmp_path, seeded=False))
    assert len(found) == 1
    assert len(found.pop()) == 32
    assert [path.name for path in tmp_path.iterdir()] == [KEY]
    assert stat.S_IMODE((tmp_path / KEY).stat().st_mode) == 0o600


def test_a_simulated_sites_key_is_the_seeds_and_its_own() -> None:
    def key(seed: int, site: str) -> bytes:
        return key_of(Division(load({"seed": seed})).run, site, None, seeded=True)

    assert key(1, "a") == key(1, "a")
    assert len({key(1, "a"), key(1, "b"), key(2, "a")}) == 3


def test_a_real_site_without_a_place_for_it_is_refused(tmp_path: Path) -> None:
    run = Division(load({})).run
    with pytest.raises(FederationError, match="names no state-dir"):
        key_of(run, "north", None, seeded=False)
    (tmp_path / KEY).write_bytes(b"half a key")
    with pytest.raises(FederationError, match=r"10 bytes and not 32"):
        key_of(run, "north", tmp_path, seeded=False)


def test_a_private_hold_out_is_each_examples_own_matter() -> None:
    """Of a site's examples without the first, those held out are the same but for it; not so by a drawn order."""
    private, plain = (
        Division(load({"method": "fedavg", "set": text}))
        for text in (PRIVATE, "data.site_holdout=0.25")
    )
    part = private.partition(10)[0]
    held = {
        one: [
            set(divided(one, "partition-0", one.dataset, at, b"key")[1]) for at in (part, part[1:])
        ]
        for one in (private, plain)
    }
    assert held[private][0] - {part[0]} == held[private][1]
    assert held[plain][0] - {part[0]} != held[plain][1]


def test_the_roll_call_counts_what_the_sites_hold() -> None:
    run = Division(load({"method": "fedavg", "set": PRIVATE})).run
    told = site.sites_of(Division(run.config), range(10), by_class=True, held_out=True)
    for index in range(10):
        node = {"partition-id": index, "num-partitions": 10, "simulated": True}
        train, holdout = site_samples(
            Division(run.config), f"partition-{index}", Context(1, 1, node, RecordDict(), {})
        )
        assert told[index].examples == len(train)
        assert told[index].held_out == len(holdout)
        counts = np.bincount(train.labels.numpy(), minlength=10)
        assert list(told[index].class_counts) == counts.tolist()


def test_each_of_many_simulated_sites_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = 1_100
    words = f"federation.sites={sites} partition.kind=iid partition.min_size=1"
    division = Division(load({"method": "fedavg", "set": words}))
    read = list[str]()
    plain = site._split

    def counted(division: Division, name: str, *rest: Any) -> Any:
        read.append(name)
        return plain(division, name, *rest)

    monkeypatch.setattr(site, "_split", counted)
    for _ in range(2):
        for index in range(sites):
            node = {"partition-id": index, "num-partitions": sites, "simulated": True}
            site_samples(division, f"partition-{index}", Context(1, 1, node, RecordDict(), {}))
    assert len(read) == len(set(read)) == sites
    assert len(site._SAMPLES[division]) == sites
