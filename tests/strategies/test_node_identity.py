"""A node bears the name that its key is registered with: north cannot call itself south."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.node_pb2 import NodeInfo

import nectar
from common.errors import NectarError
from common.sites import Site, site_slug
from nectar.cli import main
from nectar.engines.local_grid import LocalGrid
from strategies.exchange.membership import misnamed


def named(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the SuperLink tell these names of the nodes, in their order."""

    def get_nodes(grid: LocalGrid) -> Iterator[NodeInfo]:
        for node_id, name in zip(sorted(grid.get_node_ids()), names, strict=True):
            yield NodeInfo(node_id=node_id, name=name)

    monkeypatch.setattr(LocalGrid, "get_nodes", get_nodes)


def sites_of(tmp_path: Path, **more: Any) -> dict[str, Any]:
    nectar.run(
        "fedavg", rounds=1, **{"federation.sites": 3, "output-dir": str(tmp_path), **more},
        **{"model.name": "logistic"},
    )  # fmt: skip
    (record,) = tmp_path.glob("*/partition.json")
    return dict(json.loads(record.read_text()))


@pytest.mark.sweep
@pytest.mark.parametrize("borrowed", [0, 1, 2])
def test_a_node_that_bears_anothers_name_takes_no_part(
    borrowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"partition-{i}" for i in range(3)]
    names[borrowed] = "north"
    named(monkeypatch, *names)
    told = sites_of(tmp_path, **{"federation.min_replies": 2})
    assert list(told["sites"]) == [f"partition-{i}" for i in range(3) if i != borrowed]
    assert "its key is registered as 'north'" in json.dumps(told)


def test_nodes_without_registered_names_are_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, "", "", "partition-2")
    assert len(sites_of(tmp_path)["sites"]) == 3


def test_a_node_is_believed_no_name_until_the_superlink_has_told_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was away at that look counted as registered without a name, and could bear any."""
    looks: list[int] = []

    def get_nodes(grid: LocalGrid) -> Iterator[NodeInfo]:
        first, second, third = sorted(grid.get_node_ids())
        looks.append(second)
        yield NodeInfo(node_id=first, name="partition-0")
        yield NodeInfo(node_id=third, name="partition-2")
        if len(looks) > 1:
            yield NodeInfo(node_id=second, name="north")

    monkeypatch.setattr(LocalGrid, "get_nodes", get_nodes)
    told = sites_of(tmp_path, **{"federation.min_replies": 2})
    assert list(told["sites"]) == ["partition-0", "partition-2"]
    assert "its key is registered as 'north'" in json.dumps(told)


def test_no_run_begins_where_all_names_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, "a", "b", "c")
    with pytest.raises(NectarError, match="its key is registered as"):
        sites_of(tmp_path)


def test_a_keys_file_has_a_names_slug() -> None:
    """`nectar keys node "Klinikum Köln"` writes a file by its slug, and `keys register` registers that."""
    site = Site("Klinikum Köln", 7, 5)
    assert not misnamed([site], {7: site_slug(site.name)})
    assert not misnamed([site], {7: site.name})
    assert misnamed([site], {7: "Klinikum-Koln"})


def test_the_doctor_tells_before_anybody_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, runs = tmp_path / "keys", tmp_path / "runs"
    assert main(["keys", "node", str(keys), "north"]) == 0
    words = ["doctor", "--site", "--keys", str(keys), "--node-config"]
    main([*words, "site='south' partition-id=0 num-partitions=2"])
    assert "has the sites south, but the keys are named north" in capsys.readouterr().out
    main([*words, "site='north' partition-id=0 num-partitions=2"])
    assert "the keys are named" not in capsys.readouterr().out
    record = runs / "20260101-000000-x"
    record.mkdir(parents=True)
    (record / "provenance.json").write_text(json.dumps({"engine": "superlink"}))
    (record / "partition.json").write_text(json.dumps({"sites": {"partition-0": {}, "north": {}}}))
    main(["doctor", "--keys", str(keys), f"output-dir={runs}"])
    assert "has the sites partition-0, but the keys" in capsys.readouterr().out
