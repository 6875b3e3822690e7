"""A real federation with TLS and node authentication: the numbers of this process, and who is turned away."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from deployment import Secured, nectar
from federation import numbers, run, run_unmasked, same_end
from small import SMALL, Small
from waiting import until

from server_app.record import Record
from server_app.run_directory import REPORT

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "`nectar doctor --site` fails on an unregistered key, and disturbs no SuperNode",
)

PYTHON = [sys.executable, "-m", "nectar.cli"]

#: what a busy machine may take for what takes a few seconds
PATIENCE = 300.0


@dataclass(frozen=True)
class Done:
    """The federation as it stands behind its run."""

    federation: Secured
    said: str
    record: Record

    @property
    def ca(self) -> list[str]:
        """The words that go with the server's address."""
        return ["--ca", str(self.federation.keys / "ca.crt")]


@pytest.fixture(scope="module")
def done(lab: Secured, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run of two rounds that was submitted."""
    directory = tmp_path_factory.mktemp("tls")
    words = [
        *("submit", lab.address, "--ca", str(lab.keys / "ca.crt")),
        *(f"output-dir={directory}/runs", "rounds=2"),
    ]
    message = directory / "said"
    with message.open("w") as out:
        command = [*PYTHON, *words, *SMALL.split()]
        code = subprocess.run(command, stdout=out, stderr=out, timeout=6 * PATIENCE).returncode
    assert code == 0, message.read_text()
    return Done(lab, message.read_text(), the_record(directory / "runs"))


def the_record(directory: Path) -> Record:
    (found,) = directory.iterdir()
    return Record(found)


@pytest.mark.promise(
    "A fault at any step",
    "FedGEN, DENSE and FedDM have the numbers of one process; a site killed while it trains a "
    "generator makes the same images",
)
def test_the_numbers_are_those_of_this_process(done: Done, tmp_path: Path) -> None:
    """Test and validation figures, bytes each way by site, floats, devices: all but the seconds."""
    here = run({"output-dir": str(tmp_path), "rounds": 2, "set": SMALL})
    assert numbers(done.record) == numbers(here)
    assert same_end(done.record, here)
    last = numbers(done.record)[-1]
    assert last["round"] == 2
    assert set(last["bytes"]["up"]) == set(done.federation.sites)
    assert all(count > 0 for way in ("up", "down") for count in last["bytes"][way].values())


@pytest.mark.extended
def test_a_secret_sum_is_that_of_this_process_with_and_without_masks(
    lab: Secured, small: Small, tmp_path: Path
) -> None:
    """But for bytes: masks' exchanges add to those."""
    secret = "federation.sites=3 federation.secret_colluders=0 evaluation.on=server"
    config = small(method="scaffold", set=f"{secret} federation.secret=on")
    run_id = lab.submit(config | {"output-dir": str(tmp_path / "remote")})
    assert lab.wait(run_id) == "finished:completed", lab.server_log(run_id)
    records = [the_record(tmp_path / "remote"), run(config)]
    records.append(run_unmasked(config))
    there, here, unmasked = ([line | {"bytes": {}} for line in numbers(r)] for r in records)
    assert there == here == unmasked
    assert same_end(records[0], records[2])


def test_the_server_has_drawn_the_report(done: Done) -> None:
    report = done.record.directory / REPORT
    assert "</html>" in report.read_text()
    assert f"its report: {report}" in done.said


@pytest.mark.extended
def test_a_record_is_continued_by_its_id_alone(done: Done) -> None:
    """The server says which settings it was run with: no file of it is on the submitting machine."""
    record, lines = done.record, len(done.record.metrics())
    words = [f"resume={record.id}", f"output-dir={record.directory.parent}", f"rounds={lines}"]
    assert nectar("submit", done.federation.address, *done.ca, *words) == 0
    assert len(record.metrics()) == lines + 1


def test_the_log_was_shown_as_it_is_in_a_simulation(done: Done) -> None:
    assert "round 2/2: accuracy" in done.said
    assert "Starting logstream" not in done.said
    assert "\x1b[" not in done.said


def test_doctor_finds_it_well(done: Done, capsys: pytest.CaptureFixture[str]) -> None:
    keys = str(done.federation.keys)
    assert nectar("doctor", done.federation.address, *done.ca, "--keys", keys) == 0
    message = capsys.readouterr().out
    assert f"ok    flower there  {metadata.version('flwr')}" in message
    assert "ok    control api   can be reached" in message


def test_a_site_learns_whether_its_key_is_registered_and_its_node_stays(
    done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked of Flower itself, whose SuperNode is online with the key; then `status` names it."""
    assert nectar("keys", "node", str(tmp_path / "own"), "stranger") == 0
    doctor = ["doctor", done.federation.address, *done.ca, "--site", "--keys"]
    assert nectar(*doctor, str(tmp_path / "own")) == 1
    assert "stranger (SHA256:" in capsys.readouterr().out
    known = tmp_path / "known"
    known.mkdir(mode=0o700)
    shutil.copy(done.federation.keys / "nodes" / "partition-0", known / "key")
    assert nectar(*doctor, str(known)) == 0
    assert "ok    key           key is registered at the server" in capsys.readouterr().out
    status = ["status", done.federation.address, *done.ca, "--keys", str(done.federation.keys)]
    assert nectar(*status, "--json") in (0, 1)
    sites = {site["site"]: site for site in json.loads(capsys.readouterr().out)["sites"]}
    assert sites["partition-0"]["status"] == "online"


def test_a_registered_key_is_not_registered_again(
    done: Done, capsys: pytest.CaptureFixture[str]
) -> None:
    public = str(done.federation.keys / "nodes" / "partition-1.pub")
    assert nectar("keys", "register", done.federation.address, public, *done.ca) == 0
    assert "partition-1: already registered as node" in capsys.readouterr().out
    plainly = done.federation._flwr("supernode", "register", public, "lab", "--format", "json")
    assert "[code: 23] Public key already in use." in plainly["error-message"]


# -- who is turned away -------------------------------------------------------------------------

NOT_THIS_KEY = "[code: 2004] Failed to activate SuperNode."
NO_KEY = "[code: 2001] SuperNode authentication is enabled."
WRONG_CA = "CERTIFICATE_VERIFY_FAILED"


def other_key(done: Done, tmp_path: Path) -> dict[str, Any]:
    assert nectar("keys", "node", str(tmp_path / "keys"), "stranger") == 0
    return {"key": tmp_path / "keys" / "nodes" / "stranger"}


def other_ca(done: Done, tmp_path: Path) -> dict[str, Any]:
    assert nectar("keys", "ca", str(tmp_path / "other")) == 0
    return {"ca": tmp_path / "other" / "ca.crt", "key": done.federation.keys / "nodes/partition-0"}


def no_key(done: Done, tmp_path: Path) -> dict[str, Any]:
    return {"key": None}


def key_in_use(done: Done, tmp_path: Path) -> dict[str, Any]:
    return {"key": done.federation.keys / "nodes/partition-0"}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("how", "said"),
    [(other_key, NOT_THIS_KEY), (key_in_use, NOT_THIS_KEY), (no_key, NO_KEY), (other_ca, WRONG_CA)],
)
def test_who_is_turned_away_and_with_which_words(
    done: Done, tmp_path: Path, how: Callable[[Done, Path], dict[str, Any]], said: str
) -> None:
    options = how(done, tmp_path)
    node = done.federation.supernode(
        "stranger", log=how.__name__, config="partition-id=0 num-partitions=3", **options
    )
    assert node.wait(PATIENCE) == 1
    log = " ".join(done.federation.log(how.__name__).split())
    assert said in log
    assert "Exit Code: 305" in log


@pytest.mark.extended
def test_a_sites_new_key_takes_the_old_ones_place(
    done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The site makes a pair, the new half is registered, the old one unregistered: its SuperNode ends, for good."""
    federation, name, ca = done.federation, "visitor", done.ca
    address, config = federation.address, "partition-id=0 num-partitions=1"
    old, new = (tmp_path / which / "nodes" / name for which in ("old", "new"))
    for key in (old, new):
        assert nectar("keys", "node", str(key.parents[1]), name) == 0
        assert nectar("keys", "register", address, f"{key}.pub", *ca) == 0
    before = federation.supernode(name, key=old, config=config)
    until(lambda: "SuperNode ID" in federation.log(f"node-{name}"))
    rotated = federation.supernode(name, log="rotated", key=new, config=config)
    until(lambda: "SuperNode ID" in federation.log("rotated"))
    assert nectar("keys", "unregister", address, f"{old}.pub", *ca) == 0
    assert before.wait(PATIENCE) == 0
    message = federation.log(f"node-{name}")
    assert f"the server {address} does not know this site's key (SHA256:" in message
    again = federation.supernode(name, log="old-key", key=old, config=config)
    assert again.wait(PATIENCE) == 1
    assert NOT_THIS_KEY in " ".join(federation.log("old-key").split())
    capsys.readouterr()
    assert nectar("keys", "register", address, f"{old}.pub", *ca) == 2
    assert "was unregistered, and Flower refuses used keys" in capsys.readouterr().err
    assert nectar("keys", "unregister", address, f"{new}.pub", *ca) == 0
    rotated.wait(PATIENCE)  # its key is gone, and the next test has the three sites alone
