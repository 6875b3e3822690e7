"""A secret sum over a real SuperLink and on Ray: the numbers of this process, also where a site is killed between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from federation import numbers, run, same_end, words_of
from frail import Frail, until
from small import Small

from nectar.cli import main as nectar
from server_app.record import Record

NODES = {f"partition-{i}": f"partition-id={i} num-partitions=4" for i in range(4)}
SECRET = (
    "federation.sites=4 federation.secret=on federation.secret_colluders=0 evaluation.on=server"
)


def learned_in(output: Path) -> Record:
    (directory,) = (each for each in output.iterdir() if not each.name.startswith("."))
    return Record(directory)


def figures(record: Record) -> list[object]:
    """Return what each round came to, but for bytes: masks' exchanges add to those, and a context's are others."""
    return [{k: v for k, v in line.items() if k != "bytes"} for line in numbers(record)]


def test_its_numbers_are_those_of_this_process_with_and_without_masks(
    small: Small, tmp_path: Path
) -> None:
    """The secrets lie in the nodes' contexts here: their owners have named no state directory."""
    with Deployment(tmp_path, nodes=4) as federation:
        for method in ("scaffold", "ridge"):
            rounds = 1 if method == "ridge" else 2
            settings = SECRET + (" ridge.width=9" if method == "ridge" else "")
            config = small(method=method, rounds=rounds, set=settings)
            there = tmp_path / f"remote-{method}"
            run_id = federation.submit(config | {"output-dir": str(there)})
            assert federation.wait(run_id) == "finished:completed"
            plain = small(method=method, rounds=rounds, set=settings.replace("=on", "=plain", 1))
            here = run(config), run(plain)
            assert figures(learned_in(there)) == figures(here[0]) == figures(here[1]), method
            assert same_end(learned_in(there), here[1])


def test_on_ray_its_numbers_are_those_of_this_process(small: Small, tmp_path: Path) -> None:
    config = small(method="fedavg", rounds=2, set=f"{SECRET} compute.workers=2")
    assert nectar(["simulate", *words_of(config | {"output-dir": str(tmp_path / "ray")})]) == 0
    assert figures(learned_in(tmp_path / "ray")) == figures(run(config))
    assert not (tmp_path / "ray" / ".secret-sum").exists()


@pytest.mark.long
def test_in_a_pool_of_processes_its_numbers_are_those_of_this_process(
    small: Small, tmp_path: Path
) -> None:
    config = small(method="fedavg", rounds=2, set=f"{SECRET} compute.workers=2")
    assert nectar(["run", *words_of(config | {"output-dir": str(tmp_path / "pool")})]) == 0
    assert figures(learned_in(tmp_path / "pool")) == figures(run(config))


#: epochs by which a round lasts, so that somebody can be killed in it
SLOW = "fedavg.epochs=60 federation.join_deadline=600"


class Killed(Frail):
    """Four sites, whose files say how far a round has come."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, NODES)
        self.kept = directory / "state" / "secret-sum"

    def live(self, site: str) -> dict[str, Any]:
        """Return what a site keeps of the round that is under way."""
        for path in self.kept.glob(f"*~{site}.json") if self.kept.is_dir() else ():
            return json.loads(path.read_text())["live"] or {}
        return {}

    def shared(self, site: str, number: int) -> bool:
        """Return whether a site has shared in a round."""
        live = self.live(site)
        return live.get("round") == number and "roll" in live

    def files(self) -> list[Path]:
        """Return the sites' files."""
        return [path for path in self.kept.iterdir() if not path.name.startswith(".")]


@pytest.mark.long
def test_a_site_killed_between_exchanges_is_missing_and_takes_part_in_the_next_round(
    small: Small, tmp_path: Path
) -> None:
    """It has shared when it is killed -9; its secrets of the round are its own file's, and gone with the next."""
    config = small(method="fedavg", rounds=3, set=f"{SECRET} {SLOW}")
    output = tmp_path / "runs"
    words = words_of({k: v for k, v in config.items() if k != "output-dir"})
    with Killed(tmp_path) as federation:
        federation.start(*NODES)
        submitted = federation.submit_words("run", f"output-dir={output}", *words)
        until(lambda: federation.shared("partition-2", 1), "the shares", while_runs=submitted)
        federation.kill("partition-2")
        federation.start("partition-2")
        until(lambda: submitted.poll() is not None, "the end of the run")
        assert submitted.wait() == 0, federation.log("run")
        assert len(federation.files()) == 4
        for path in federation.files():
            assert path.stat().st_mode & 0o777 == 0o600
            assert json.loads(path.read_text())["live"] is None
    lines = learned_in(output).metrics()
    there = [line["notes"]["secret"]["sites"] for line in lines[1:]]
    assert there[0] == 3
    assert there[-1] == 4


@pytest.mark.long
def test_a_superlink_killed_between_exchanges_costs_the_attempt_and_the_resumed_run_is_unbroken(
    small: Small, tmp_path: Path
) -> None:
    """Killed -9 as the sites have shared in round 2: what goes on asks for other keys, and has the same numbers."""
    config = small(method="fedavg", rounds=3, set=f"{SECRET} {SLOW}")
    output = tmp_path / "runs"
    words = words_of({k: v for k, v in config.items() if k != "output-dir"})
    with Killed(tmp_path) as federation:
        federation.start(*NODES)
        submitted = federation.submit_words("run", f"output-dir={output}", *words)
        until(lambda: federation.shared("partition-2", 2), "round 2", while_runs=submitted)
        before = federation.live("partition-2")
        federation.kill("superlink")
        federation.start_superlink()
        until(lambda: submitted.poll() is not None, "the end of the run")
        again = (f"output-dir={output}", f"resume={learned_in(output).id}")
        resumed = federation.submit_words("resumed", *again)
        until(lambda: resumed.poll() is not None, "the end of the resumed run")
        assert resumed.wait() == 0, federation.log("resumed")
        for path in federation.files():
            assert before["mask"] not in path.read_text()
    assert figures(learned_in(output)) == figures(run(config))
