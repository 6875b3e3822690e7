"""Faults of a real federation on loopback: what is killed, when, what is said, and that what goes on is unbroken.

That one site of three is killed, frozen or cut off at each step of its exchange is shown in test_fault_phases.py. These
take minutes: `pytest tests/deployment/test_faults.py -m long`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fault_federation import FaultFederation, until
from federation import (
    SMALL_CLIENTS,
    MissingGrid,
    numbers,
    resumed,
    run,
    same_end,
    words_of,
)
from flwr.app import Error, Message
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.settings.sections import FederationSettings
from nectar.engines.local_grid import LocalGrid
from nectar.records.record import RunRecord
from server_app.app import make_strategy, serve
from server_app.checkpoint import Checkpoint
from server_app.record import Record

NODES = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}
PATIENT = "evaluation.on=server federation.join_deadline=600"
WARM = "feddm.start=noise feddm.warm=on"

#: what Flower says of a run whose ServerApp was lost; the latter if that heard of its SuperLink's death first
LOST = ("No heartbeat received from the task. The ", "Task failed with unknown error. The ")


def the_record(directory: Path) -> Record:
    (found,) = (each for each in directory.iterdir() if not each.name.startswith("."))
    return Record(found)


def words_elsewhere(config: dict[str, Any], output: Path) -> list[str]:
    """Return what is typed for a run whose record lies in ``output``."""
    return words_of(config | {"output-dir": str(output)})


def ended(federation: FaultFederation, submitted: subprocess.Popen[bytes], code: int) -> None:
    until(lambda: submitted.poll() is not None, "the end of the run")
    assert submitted.wait() == code, federation.log("run")


# ---- the server is killed and resumed -------------------------------------------------------------------

#: a surrogate of another depth at one site, two global models, latents that the next round goes on from
DGM = (
    "model.depth=2 feddgm.depths=partition-1:1 feddgm.global_models=convnet,mlp feddgm.warm=on feddgm.epochs=2 "
    "feddgm.ipc=2 feddgm.iterations=3 feddgm.inner_epochs=3 feddgm.global_epochs=5 feddgm.surrogate_epochs=5"
)

#: decoders are handed over in round 2, means are shared in round 3, and help comes in round 4
DPMS = (
    "model.name=vae model.depth=1 model.embedding=6 fedvae.epochs=1 fedvae.preliminary_rounds=2 "
    "feddpms.smallest=1 feddpms.copies=4"
)


def kill_serverapp(federation: FaultFederation) -> None:
    federation.kill_app("superlink", "flwr-serverapp")


def kill_superlink(federation: FaultFederation) -> None:
    """It is started again on its database."""
    federation.kill("superlink")
    federation.start_superlink()


@pytest.mark.long
@pytest.mark.promise(
    "A fault at any step",
    "No round is lost or doubled, the site is taken back, and all figures equal those of one "
    "process that missed the same replies",
)
@pytest.mark.parametrize(
    ("method", "settings", "rounds", "struck", "fault"),
    [
        ("feddm", WARM, 4, [2], kill_serverapp),
        ("feddm", WARM, 4, [2], kill_superlink),
        ("feddgm", DGM, 3, [2], kill_serverapp),
        ("feddpms", DPMS, 5, [1, 2, 3, 4], kill_serverapp),
    ],
)
def test_a_killed_server_says_why_and_what_continues_the_run_is_unbroken(
    small: Small,
    tmp_path: Path,
    method: str,
    settings: str,
    rounds: int,
    struck: list[int],
    fault: Callable[[FaultFederation], None],
) -> None:
    """No recorded round is lost; the nodes stay."""
    config = small(method=method, rounds=rounds, set=f"{settings} {PATIENT}")
    whole, output = numbers(run(config)), tmp_path / "there"
    words = words_elsewhere(config, output)
    with FaultFederation(tmp_path, NODES) as federation:
        federation.start(*NODES)
        for number in struck:
            submitted = federation.submit_words("run", *words)
            begun = partial(federation.heard, "partition-0", f"ROUND {number}]")
            until(begun, f"round {number}", while_runs=submitted)
            fault(federation)
            ended(federation, submitted, 1)
            ends = (f"The run did not complete (failed): {sentence}" for sentence in LOST)
            assert any(end in federation.log("run") for end in ends)  # before where the record is
            record = the_record(output)
            done = len(record.metrics())
            assert number <= done < len(whole)  # with the evaluation before round 1
            assert numbers(record) == whole[:done]
            words = [f"output-dir={output}", f"resume={record.id}"]
        ended(federation, federation.submit_words("run", *words), 0)
    assert numbers(record) == whole
    provenance = RunRecord.open(record.directory).provenance
    assert provenance["outcome"] == "completed"
    assert len(provenance["continued"]) == len(struck)


# ---- a site is killed or frozen -------------------------------------------------------------------------

#: SCAFFOLD around some hundred images a site; a generator takes long enough to be met at its work
FEDSSYN = (
    "fedssyn.inner=scaffold fedssyn.width=8 fedssyn.multipliers=1,2 fedssyn.blocks=1 fedssyn.attention=1 "
    "fedssyn.batch=16 fedssyn.epochs=40 fedssyn.diffusion_steps=50 fedssyn.sampling_steps=5 "
    f"fedssyn.sampler=second-order {PATIENT} federation.min_replies=3"
)


@pytest.mark.long
@pytest.mark.promise(
    "A fault at any step",
    "FedGEN, DENSE and FedDM have the numbers of one process; a site killed while it trains a "
    "generator makes the same images",
)
@pytest.mark.parametrize("killed", [False, True])
def test_a_site_of_fedssyn_killed_in_round_1_makes_the_same_images(
    small: Small, tmp_path: Path, killed: bool
) -> None:
    """Site 1 is killed once in round 1 and asked again in round 2; or none is."""
    config = small(method="fedssyn", rounds=4, set=FEDSSYN)
    output, artifact_cache = tmp_path / "there", tmp_path / "state" / "nectar-made"
    with FaultFederation(tmp_path, NODES) as federation:
        federation.start(*NODES)
        submitted = federation.submit_words("run", *words_elsewhere(config, output))
        if killed:
            begun = partial(federation.heard, "partition-1", "ROUND 1]")
            until(begun, "round 1", while_runs=submitted)
            until(lambda: any(artifact_cache.glob("*.lock")), "the training", while_runs=submitted)
            federation.kill_app("partition-1", "flwr-clientapp")
        ended(federation, submitted, 0)
    there = the_record(output)
    away = {("partition-1", 1)} if killed else set()
    here = run(config, MissingGrid, absent=away, lost=set())
    assert list(there.metrics()[1]["rejected"]) == [site for site, _ in away]
    assert killed or numbers(there) == numbers(here)
    learned = ([(n["test"], n["floats_up"]) for n in r.metrics()] for r in (there, here))
    assert next(learned) == next(learned)
    one, other = (Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in (there, here))
    assert one.equal(other)


# ---- in the middle of a secret sum ----------------------------------------------------------------------

#: epochs by which a round lasts, so that somebody can be killed in it
SECRET = f"federation.secret=on federation.secret_colluders=0 fedavg.epochs=60 {PATIENT}"


class Summing(FaultFederation):
    """Sites whose files say how far a round of a secret sum has come."""

    @property
    def files(self) -> list[Path]:
        """The sites' files."""
        kept = self.directory / "state" / "secret-sum"
        return [path for path in kept.glob("*.json") if not path.name.startswith(".")]

    def live(self, site: str) -> dict[str, Any]:
        """Return what a site keeps of the round that is under way."""
        own = [path for path in self.files if path.name.endswith(f"~{site}.json")]
        return (json.loads(own[0].read_text())["live"] or {}) if own else {}

    def shared(self, site: str, number: int) -> bool:
        """Return whether a site has shared in a round."""
        live = self.live(site)
        return live.get("round") == number and "roll" in live


@pytest.mark.long
@pytest.mark.parametrize("killed", ["partition-2", "superlink"])
def test_killed_between_the_exchanges_of_a_secret_sum(
    small: Small, tmp_path: Path, killed: str
) -> None:
    """A site is missing, and takes part in the next round; a SuperLink costs the attempt, and no number of the run.

    Who is killed -9 has shared; its secrets of the round are its own file's, and gone with the next.
    """
    config = small(method="fedavg", rounds=3, set=SECRET)
    output = tmp_path / "runs"
    at = 1 if killed == "partition-2" else 2
    with Summing(tmp_path, NODES) as federation:
        federation.start(*NODES)
        submitted = federation.submit_words("run", *words_elsewhere(config, output))
        until(lambda: federation.shared("partition-2", at), "shares", while_runs=submitted)
        before = federation.live("partition-2")
        if killed == "superlink":
            kill_superlink(federation)
            ended(federation, submitted, 1)
            again = f"resume={the_record(output).id}"
            submitted = federation.submit_words("run", f"output-dir={output}", again)
        else:
            federation.kill(killed)
            federation.start(killed)
        ended(federation, submitted, 0)
        assert len(federation.files) == len(NODES)
        for path in federation.files:
            assert path.stat().st_mode & 0o777 == 0o600
            assert json.loads(path.read_text())["live"] is None
            assert before["mask"] not in path.read_text()
    there = the_record(output)
    if killed == "superlink":
        assert same_end(there, run(config))
    sites = [line["notes"]["secret"]["sites"] for line in there.metrics()[1:]]
    assert (sites[at - 1], sites[-1]) == (2 if killed == "partition-2" else 3, 3)


# ---- membership, in this process ------------------------------------------------------------------------


def test_a_run_is_continued_by_the_release_that_began_it(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run(small(rounds=1))
    monkeypatch.setattr("server_app.record.code_fingerprint", lambda config: "0123456789abcdef")
    message = "this is 0123456789abcdef: continue it with the release that started it"
    with pytest.raises(FederationError, match=message):
        resumed(record, 2)
    assert len(record.metrics()) == 2


class Changing(LocalGrid):
    """Nodes come, go, and may be dead though they are listed, as a killed SuperNode is for up to a minute."""

    away: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are listed."""
        return [n for n in super().get_node_ids() if n not in self.away]

    def _call(self, message: Message) -> Message:
        if message.metadata.dst_node_id in self.dead:
            return Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
        return super()._call(message)


def test_a_node_that_died_before_the_roll_call_does_not_end_the_run(small: Small) -> None:
    class Ghost(Changing):
        """The last node is listed once, and dead."""

        def get_node_ids(self) -> list[int]:
            """Take the dead off the list behind the first look."""
            found = super().get_node_ids()
            if not self.dead:
                self.dead = frozenset({found[-1]})
            else:
                self.away = self.dead
            return found

    three = [{"partition-id": i % 3, "num-partitions": 3} for i in range(4)]
    config = small(rounds=1)
    record = serve(Ghost(client_app, three, config), load(config))
    assert record.metrics()[1]["accepted"] == [f"partition-{i}" for i in range(3)]


def test_a_site_that_returns_while_its_old_node_is_still_listed_is_let_in_when_that_is_gone(
    small: Small,
) -> None:
    config = small()
    nodes = [{"partition-id": i % 3, "num-partitions": 3} for i in range(SMALL_CLIENTS + 1)]
    grid = Changing(client_app, nodes, config)
    old, *_, new = LocalGrid.get_node_ids(grid)
    grid.away = frozenset({new})
    strategy = make_strategy(Division(load(config)).run)
    strategy.ensure_roll_call(grid)
    quick = FederationSettings(join_deadline=0.1, round_deadline=5.0)
    grid.away = frozenset()
    strategy.members.update(grid, strategy.question, quick, lambda site: None)
    assert strategy.sites[0].node_id == old
    grid.away = frozenset({old})
    strategy.members.update(grid, strategy.question, quick, lambda site: None)
    assert {s.name: s.node_id for s in strategy.sites}["partition-0"] == new
