"""Thirty rounds over a real SuperLink, a site killed and back, the SuperLink stopped for a while: no process grows.

Then the SuperLink is stopped for longer than Flower bears, which ends the run, and what continues it completes.

Minutes, so with `pytest tests/deployment/test_memory_of_processes.py -m long` only; `-s` shows the table. What a site
holds that waits for work is looked at in seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import pytest
from fault_federation import FaultFederation, lines_in, until
from federation import words_of
from small import SMALL

pytestmark = pytest.mark.extended

#: after which rounds memory is looked at; the faults that a run survives lie between the first two
AT = (2, 15, 30)
ROUNDS = 36

#: seconds for which the SuperLink is stopped. A task sends a heartbeat every 30 seconds at the most and is given up
#: 60 after the last, by the SuperLink's own clock, which goes on meanwhile
BORNE, TOO_LONG = 25, 65
#: how much more a process may hold at the last than at the one before
MOST_GROWTH = 1.03

#: megabytes of its own that a site's processes hold together while they wait for work: Flower's two take 192
MOST_IDLE = 230

#: what stays for more than a round beside a site's own program; what that starts for each message does not
PROGRAMS = (
    "flower-superlink",
    "flower-superexec",
    "nectar.engines.site.superexec",
    "flwr-serverapp",
    "flower-supernode",
)
ZYGOTE = "nectar.engines.site.zygote"

#: kilobytes of RSS and PSS
Memory = tuple[float, float]


class Looks:
    """The memory of a federation's processes, some looks in a row."""

    def __init__(self, federation: FaultFederation) -> None:
        self._federation = federation

    def now(self) -> dict[str, Memory]:
        """Return each process's medians of five looks in two seconds, by its part and program."""
        found: dict[str, list[Memory]] = {}
        for _ in range(5):
            for name, pid in self._processes():
                with contextlib.suppress(OSError, ValueError):
                    found.setdefault(name, []).append(_memory(pid))
            time.sleep(0.4)
        return {
            name: (median(rss for rss, _ in each), median(pss for _, pss in each))
            for name, each in found.items()
        }

    def _processes(self) -> Iterator[tuple[str, int]]:
        home = f"FLWR_HOME={self._federation.directory}/".encode()
        for site in self._federation.configs:
            parent = psutil.Process(self._federation.running[site].pid)
            yield f"{site}: nectar site", parent.pid
            zygotes = [c for c in parent.children(recursive=True) if ZYGOTE in c.cmdline()]
            for child in zygotes:
                if child.ppid() not in [zygote.pid for zygote in zygotes]:
                    yield f"{site}: what ClientApps are forks of", child.pid
        for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
            with contextlib.suppress(OSError):
                own = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                places = [line.removeprefix(home).decode() for line in own if line.startswith(home)]
                names = [Path(word).name for word in words[:4]]
                for program in (each for each in PROGRAMS if places and each in names):
                    yield f"{places[0]}: {program}", pid


def _memory(pid: int) -> Memory:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    message = {line.split()[0]: float(line.split()[1]) for line in lines[1:]}
    return message["Rss:"], message["Pss:"]


def _reaches(output: Path, server_round: int) -> bool:
    return any(line["round"] >= server_round for line in lines_in(output))


def test_a_site_that_waits_for_work_holds_little(tmp_path: Path) -> None:
    with FaultFederation(tmp_path, {"north": "partition-id=0 num-partitions=1"}) as federation:
        federation.start("north")
        until(lambda: federation.heard("north", "SuperNode ID"), "a node that is online")
        until(lambda: federation.heard("north", "exits, as no message waits"), "the imports' end")
        own = psutil.Process(federation.running["north"].pid)
        # another test's site looks whether this one lives, which starts the imports again
        until(lambda: len(own.children(True)) == 2, "the SuperNode and its SuperExec alone")
        held = {each: each.memory_full_info().uss / 2**20 for each in (own, *own.children(True))}
    print([f"{mb:.0f} MB" for mb in held.values()])
    assert sum(held.values()) < MOST_IDLE


@pytest.mark.long
def test_no_process_grows_from_round_15_to_round_30(tmp_path: Path) -> None:
    nodes = {f"partition-{i}": f"partition-id={i} num-partitions=3" for i in range(3)}
    output = tmp_path / "runs"
    config = {"method": "fedavg", "rounds": ROUNDS, "output-dir": str(output), "set": SMALL}
    found: dict[int, dict[str, Memory]] = {}
    with FaultFederation(tmp_path, nodes) as federation:
        federation.start(*nodes)
        looks = Looks(federation)
        submitted = federation.submit_words("submit", *words_of(config))
        wait = partial(until, while_runs=submitted)
        wait(lambda: _reaches(output, AT[0]), "round 2")
        found[AT[0]] = looks.now()
        federation.kill("partition-2")
        wait(lambda: len(lines_in(output)[-1]["accepted"]) == 2, "a round without the killed site")
        federation.start("partition-2")
        wait(lambda: len(lines_in(output)[-1]["accepted"]) == 3, "a round with all sites again")
        assert len(lines_in(output)) < AT[1] - 2, "the faults are over long before the second look"
        superlink = federation.running["superlink"].pid
        _stopped(superlink, BORNE)
        for server_round in AT[1:]:
            wait(lambda least=server_round: _reaches(output, least), f"round {server_round}")
            found[server_round] = looks.now()
        _show(found)
        _stopped(superlink, TOO_LONG)
        until(lambda: submitted.poll() is not None, "the end of the run")
        print(federation.log("submit").splitlines()[-1])
        assert len(lines_in(output)) < ROUNDS
        (record,) = output.iterdir()
        again = (f"output-dir={output}", f"resume={record.name}")
        resumed = federation.submit_words("resumed", *again)
        until(lambda: resumed.poll() is not None, "the end of what continues it")
        assert resumed.returncode == 0, federation.log("resumed")
    assert [line["round"] for line in lines_in(output)] == list(range(1, ROUNDS + 1))
    grown = {
        name: f"{now[0] / found[AT[1]][name][0] - 1:.1%}"
        for name, now in found[AT[2]].items()
        if now[0] > MOST_GROWTH * found[AT[1]][name][0]
    }
    assert not grown


def _stopped(process: int, seconds: float) -> None:
    """Stop a process, and let it go on after some seconds."""
    os.kill(process, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(process, signal.SIGCONT)


def _show(found: dict[int, dict[str, Memory]]) -> None:
    print(f"\n| MB RSS (PSS) | {' | '.join(f'round {each}' for each in AT)} |\n|{'---|' * 4}")
    for name in sorted(set().union(*found.values())):
        cells = [
            "{:.1f} ({:.1f})".format(*(kb / 1024 for kb in found[each][name]))
            if name in found[each]
            else ""
            for each in AT
        ]
        print(f"| {name} | {' | '.join(cells)} |")
