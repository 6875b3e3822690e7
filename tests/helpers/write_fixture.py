"""Write what this release leaves on disk to tests/written-by-VERSION, which later releases have to read.

``python tests/helpers/write_fixture.py``, once a release, from the root of a clone; it writes over nothing.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState  # noqa: E402
from flwr.supercore.object_store import ObjectStoreFactory  # noqa: E402
from flwr.supercore.primitives.asymmetric import public_key_to_bytes  # noqa: E402
from flwr.superlink.federation import NoOpFederationManager  # noqa: E402

from client_app.owner.node_config import KEYS  # noqa: E402
from common.code.release import VERSION  # noqa: E402
from common.privacy.events import Event  # noqa: E402
from common.privacy.ledger import Charge, Ledger  # noqa: E402
from common.storage.files import write_json  # noqa: E402
from nectar.cli import main  # noqa: E402
from nectar.operate.keys.authority import make_authority, make_nodes, read_public  # noqa: E402

SITES = ("north", "south")

RUN = (
    "run method=scaffold rounds=2 federation.sites=2 federation.min_replies=2 partition.alpha=1 model.width=8 "
    "scaffold.epochs=4 privacy.noise_multiplier=0.5 privacy.counts=public"
)

#: what is on the machine that writes, and what a file says in its place
_PLACES = "/srv/nectar"


def write(to: Path) -> None:
    """Write a record with checkpoints and its sites' memory, a ledger, tips, a node config, a backup."""
    to.mkdir()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        _record(scratch / "runs", to / "record")
        _ledger(to / "ledger")
        _node_config(to / "node-config.toml")
        _backup(scratch, to / "backup.tar.xz")


def _record(runs: Path, to: Path) -> None:
    words = [*RUN.split(), f"output-dir={runs}", f"data-dir={runs.parent / 'data'}"]
    if main(words):
        raise SystemExit("the run did not complete")
    (record,) = (path for path in runs.iterdir() if not path.name.startswith("."))
    shutil.copytree(record, to, ignore=shutil.ignore_patterns(".*", "samples"))
    for path in (p for p in to.rglob("*") if p.suffix in (".json", ".jsonl", ".yaml")):
        path.write_text(path.read_text().replace(str(runs.parent), _PLACES))
    (to / "id").write_text(record.name)


def _ledger(to: Path) -> None:
    to.mkdir()
    lines = Ledger(to)
    for number in (1, 2):
        event = Event("dp-sgd", 1.0, 0.25, 8)
        charge = Charge(
            "2026-11-27T12:00:00Z", "north", "a-record", number, "train", "scaffold", "d", (event,)
        )
        head = lines.append(charge, lambda before: None).head
    write_json(to / "ledger-heads.json", {"north": asdict(head)})


def _node_config(to: Path) -> None:
    """Write every key that an owner can set, as its example has it; a site of its own data has no partition."""
    shown = {key: field.examples[0] for key, field in KEYS.items() if field.examples}
    kept = {k: v for k, v in shown.items() if k not in ("partition-id", "num-partitions", "site")}
    to.write_text("site = 'north'\n" + "".join(f"{k} = {v}\n" for k, v in kept.items()))


def _backup(scratch: Path, to: Path) -> None:
    keys, database = scratch / "keys", scratch / "superlink.db"
    make_authority(keys)
    state = SqlLinkState(str(database), NoOpFederationManager(), ObjectStoreFactory().store())
    state.initialize()
    nodes = {}
    for public in make_nodes(keys, SITES):
        key = public_key_to_bytes(read_public(public))
        nodes[public.stem] = state.create_node("<none>", "<none>", key, 0.0, name=public.stem)
        public.with_suffix("").unlink()  # no private half is kept
    state.delete_node("<none>", nodes["south"])
    assert state._engine is not None
    state._engine.dispose()
    (keys / "ca.key").unlink()
    whole = scratch / "whole.db"
    with sqlite3.connect(database) as connection:
        connection.execute("VACUUM INTO ?", [str(whole)])
    with tarfile.open(to, "w:xz") as archive:
        archive.add(whole, "superlink.db")
        archive.add(keys, "keys")
    print(json.dumps(nodes))


if __name__ == "__main__":
    release = ".".join(VERSION.split(".")[:2])
    write(ROOT / "tests" / f"written-by-{release}")
