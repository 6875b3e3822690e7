"""Faults of a real federation on loopback, each one brought about: the run goes on, or ends with its reason.

Three stories run side by side, since each mostly waits for Flower's heartbeats: of the sites, of the ServerApp, of the
SuperLink; and beside them that of a network that is cut, for test_fault_phases.py.
What a run makes of a fault is compared with a federation in this process in which the same sites missed the same
rounds, and what a resumed run ends with is compared with an unbroken one.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from data_files import forget_loaded
from federation import SMALL_CLIENTS, MissingGrid, numbers, resumed, run, words_of
from flwr.app import Error, Message
from frail import Frail, lines_in, nobody_waits_on, until
from image_folders import CLASSES, COLOURS, paint
from small import SMALL, Small

from client_app.app import app as client_app
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.settings.sections import FederationSettings
from nectar.engines.local_grid import LocalGrid
from nectar.records.record import RunRecord
from server_app.app import make_strategy, serve
from server_app.loop import update_membership
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "A fault at any step",
    "No round is lost or doubled, the site is taken back, and all figures equal those of one "
    "process that missed the same replies",
)

WARM = f"{SMALL} feddm.start=noise feddm.warm=on"
HELD = {
    "east": {"green": 9, "blue": 6},
    "north": {"red": 12, "green": 8},
    "south": {"blue": 15},
    "west": {"red": 9},
}

#: what is said of a node that left, before its reply or in the middle of it
GONE = ("the node is unavailable", "the node went away while it sent its reply")

#: what a site says whose state directory is none
NO_ROOM = "this site's state cannot be written (File exists): make room for it there"

#: what Flower says of a run whose ServerApp was lost; the latter if that heard of its SuperLink's death first
LOST = ("No heartbeat received from the task\n", "Task failed with unknown error.\n")


@dataclass
class Story:
    """What became of a federation: what was said and recorded."""

    record: Record
    said: dict[str, str] = field(default_factory=dict)
    code: dict[str, int] = field(default_factory=dict)

    def ended(self, federation: Frail, name: str, submitted: subprocess.Popen[bytes]) -> None:
        """Wait for the end of `nectar submit`."""
        until(lambda: submitted.poll() is not None, f"the end of {name}")
        self.code[name] = submitted.wait()
        self.said[name] = federation.log(name)

    @property
    def lines(self) -> dict[int, dict[str, Any]]:
        """The rounds but round 0, by their numbers."""
        return {line["round"]: line for line in self.record.metrics()[1:]}


@dataclass
class Sites(Story):
    """The sites' story: when they were struck, and which of their instructions they carried out for nobody."""

    struck: int = 0
    raised: int = 0
    logs: dict[str, str] = field(default_factory=dict)
    lost: set[tuple[str, int]] = field(default_factory=set)


@dataclass(frozen=True)
class Stories:
    """All three, as they come to their ends, and that of the sites as far as until they are struck."""

    directory: Path
    joined: Future[Sites]
    of_sites: Future[Sites]
    of_servers: Mapping[str, Future[Story]]


@pytest.fixture(scope="module")
def stories(
    request: pytest.FixtureRequest, rows: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stories]:
    """Tell the sites' story, and the servers' where one of their tests was asked for, side by side."""
    directory = tmp_path_factory.mktemp("faults")
    for part in ("sites", "serverapp", "superlink"):
        (directory / part).mkdir()
    names = [item.name for item in request.session.items if item.path == request.path]
    servers = {"serverapp": story_of_serverapp, "superlink": story_of_superlink}
    asked = {part: story for part, story in servers.items() if any(part in n for n in names)}
    joined: Future[Sites] = Future()

    def ended(whole: Future[Sites]) -> None:
        if not joined.done():
            joined.set_exception(whole.exception() or RuntimeError("the sites were never struck"))

    with ThreadPoolExecutor() as pool, nobody_waits_on():
        of_sites = pool.submit(story_of_sites, directory / "sites", joined)
        of_sites.add_done_callback(ended)
        told = {part: pool.submit(story, directory / part) for part, story in asked.items()}
        yield Stories(directory, joined, of_sites, told)


# ---- sites: late, killed, frozen, restarted, raising ---------------------------------------------------


def sites_config(directory: Path) -> dict[str, Any]:
    images = (
        f"images.classes={CLASSES} images.size=8 model.depth=2 images.folder={directory}/central"
    )
    settings = f"{WARM} {images} federation.sites=3 federation.newcomers=any evaluation.on=server"
    return {
        "dataset": "images",
        "rounds": 200,
        "data-dir": str(directory / "data"),
        "set": settings,
    }


def paint_sites(directory: Path) -> dict[str, Path]:
    """Paint the sites' folders, and a test split for the server in ``central``."""
    for seed, (site, classes) in enumerate(HELD.items()):
        for name, count in classes.items():
            paint(directory / "folders" / site, name, count, seed=seed)
    for name in COLOURS:
        paint(directory / "central" / "test", name, 6, seed=9)
    return {site: directory / "folders" / site for site in HELD}


def story_of_sites(directory: Path, joined: Future[Sites]) -> Sites:
    """South joins late, east later; three of four are struck in one round; east raises; at last all do."""
    folders, output = paint_sites(directory), directory / "runs"
    gate = Gate(directory)
    nodes = {
        site: f"site='{site}' data='{folder}' {gate.words_of(site)}"
        for site, folder in folders.items()
    }
    kept: set[tuple[str, int]] = set()

    def lines() -> list[dict[str, Any]]:
        versions = directory.glob("state/2*/*/*/*/0*.safetensors")
        kept.update((p.parents[2].name, int(p.stem)) for p in versions)
        return lines_in(output)

    def back(*sites: str) -> bool:
        return {*sites} <= set(lines()[-1]["accepted"])

    with Frail(directory, nodes) as federation:
        federation.start("north", "west")
        words = words_of(sites_config(directory))
        submitted = federation.submit_words("submit", f"output-dir={output}", *words)
        for site in ("north", "west"):
            answered = partial(federation.heard, site, "Sent successfully")
            until(answered, f"{site}'s answer", while_runs=submitted)
        assert not output.exists(), "the run began before all its sites were there"
        federation.start("south")
        until(lambda: federation.heard("north", "ROUND 1]"), "round 1 at north")
        (directory_of_record,) = output.iterdir()
        story = Sites(Record(directory_of_record))
        federation.start("east")
        until(lambda: lines() and back("east"), "east")

        story.struck = struck = gate.shut(lines)
        story.said["submit"] = federation.log("submit")
        joined.set_result(story)
        federation.kill("south")
        federation.start("south")
        federation.freeze("north")
        federation.kill_app("west", "flwr-clientapp")
        gate.open()
        until(lambda: len(lines()) >= struck, "the round's end")
        federation.thaw("north")
        with Broken(directory, story.record, "east"):
            until(lambda: lines()[-1]["rejected"].get("east"), "the round in which east raises")
            story.raised = lines()[-1]["round"]
        until(lambda: back(*HELD), "a round with all sites")

        with Broken(directory, story.record, *HELD):
            story.ended(federation, "submit", submitted)
        story.logs = {site: federation.log(site) for site in HELD}
    story.lost = kept - {(s, r) for r, line in story.lines.items() for s in line["accepted"]}
    return story


class Gate:
    """Holds sites up at their work, in the program that looks at their images, for as long as a file is there."""

    def __init__(self, directory: Path) -> None:
        self._looks, self._shut = directory / "look", directory / "shut"
        self._program = directory / "look.sh"
        self._program.write_text(f"while [ -e '{self._shut}' ]; do sleep 0.2; done\n")

    def words_of(self, site: str) -> str:
        """Return what a site's node config says of it."""
        return f"review-dir='{self._looks}/{site}' review-command='/bin/sh {self._program}'"

    def shut(self, lines: Callable[[], list[dict[str, Any]]]) -> int:
        """Hold all sites up in a round, a later one where it was too late for some, and return which one it is."""
        while True:
            known = len(lines())
            until(lambda known=known: len(lines()) > known, "a round's end")
            self._shut.touch()
            end, held = time.monotonic() + 30, 0
            while (
                time.monotonic() < end and held < 20
            ):  # two seconds: who had looked already is gone by then
                held = held + 1 if all(self._holds(site) for site in HELD) else 0
                time.sleep(0.1)
            if held == 20:
                return int(lines()[-1]["round"]) + 1
            self.open()

    def open(self) -> None:
        """Let them go on."""
        self._shut.unlink()

    def _holds(self, site: str) -> bool:
        looks = self._looks / site
        return looks.is_dir() and any(not look.name.startswith(".") for look in looks.iterdir())


class Broken:
    """While this lasts, the sites' state directories are files: nothing can be written there."""

    def __init__(self, directory: Path, record: Record, *sites: str) -> None:
        self._places = [directory / "state" / record.id / site for site in sites]

    def __enter__(self) -> None:
        for place in self._places:
            place.rename(place.with_name(f"{place.name}.away"))
            place.touch()

    def __exit__(self, *_: object) -> None:
        for place in self._places:
            place.unlink()
            place.with_name(f"{place.name}.away").rename(place)


@pytest.mark.long
@pytest.mark.extended
def test_a_site_that_comes_late_takes_part_from_the_next_round(stories: Stories) -> None:
    """It needs the story's first third alone: behind that the sites wait for Flower's heartbeats."""
    story = stories.joined.result()
    assert story.lines[1]["accepted"] == ["north", "south", "west"]
    assert story.lines[story.struck - 1]["accepted"] == sorted(HELD)
    assert "site east has joined" in story.said["submit"]


@pytest.mark.long
@pytest.mark.extended
def test_a_round_goes_on_without_the_killed_the_frozen_and_the_one_whose_app_died(
    stories: Stories,
) -> None:
    story = stories.of_sites.result()
    line = story.lines[story.struck]
    assert line["accepted"] == ["east"]
    for site in ("north", "south"):
        assert line["rejected"].pop(site) in GONE
    assert line["rejected"] == {"west": "the device's process stopped responding"}
    assert f"round {story.struck}: rejected south: the node" in story.said["submit"]


@pytest.mark.long
@pytest.mark.extended
def test_sites_that_return_are_let_in_again(stories: Stories) -> None:
    story = stories.of_sites.result()
    assert story.lines[max(story.lines)]["accepted"] == sorted(HELD)
    for sentence in ("south is away", "south has joined"):
        assert f"site {sentence}" in story.said["submit"]


@pytest.mark.long
@pytest.mark.extended
def test_a_site_whose_state_cannot_be_written_loses_its_round_and_tells_no_path(
    stories: Stories,
) -> None:
    story = stories.of_sites.result()
    line = story.lines[story.raised]
    assert line["rejected"]["east"] == NO_ROOM
    assert len(line["accepted"]) > 0
    assert f"{story.record.directory.parent.parent}/state/" in story.logs["east"], (
        "its own log says where"
    )
    assert "Traceback" not in story.said["submit"].split("the run stopped")[0]


@pytest.mark.long
@pytest.mark.extended
def test_below_the_quorum_the_run_ends_with_the_reasons_and_keeps_its_rounds(
    stories: Stories,
) -> None:
    story = stories.of_sites.result()
    last = max(story.lines) + 1
    reason = f"round {last} has 0 valid replies where federation.min_replies asks for 1 (east: {NO_ROOM}; "
    assert f"the run stopped: {reason}" in story.said["submit"]
    assert story.code["submit"] == 1
    past = RunRecord.open(story.record.directory)
    assert str(past.provenance["outcome"]).startswith(f"failed: {reason}")
    assert past.checkpoint().server_round == last - 1


@pytest.mark.long
@pytest.mark.extended
def test_what_the_faults_cost_is_what_the_missing_replies_would_have_given_and_no_more(
    stories: Stories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers, every round, as in this process with the same sites missing in the same rounds."""
    story = stories.of_sites.result()
    forget_loaded(monkeypatch)
    directory = stories.directory / "sites"
    rounds = {"rounds": max(story.lines), "output-dir": str(tmp_path / "runs")}
    config = sites_config(directory) | rounds
    nodes = [{"site": site, "data": f"{directory}/folders/{site}"} for site in HELD]
    missed = {(s, r) for s in HELD for r, line in story.lines.items() if s not in line["accepted"]}
    grid = MissingGrid(client_app, nodes, config, absent=missed - story.lost, lost=story.lost)
    here = numbers(serve(grid, load(config)))
    same = ("accepted", "test", "devices", "floats_up")
    for there, other in zip(story.record.metrics(), here, strict=True):
        assert {k: there[k] for k in same} == {k: other[k] for k in same}


# ---- the server: killed, restarted, resumed -----------------------------------------------------------

SERVER_CONFIG = {"rounds": 4, "set": f"{WARM} federation.sites=2 federation.join_deadline=600"}


def story_of_serverapp(directory: Path) -> Story:
    """The ServerApp is killed in round 2, or a later one; the run that goes on from there completes."""
    return story_of_server(directory, lambda f: f.kill_app("superlink", "flwr-serverapp"))


def story_of_superlink(directory: Path) -> Story:
    """The SuperLink is killed there and started again on its database; the run that goes on completes."""

    def kill_and_start(federation: Frail) -> None:
        federation.kill("superlink")
        federation.start_superlink()

    return story_of_server(directory, kill_and_start)


def story_of_server(directory: Path, fault: Callable[[Frail], None]) -> Story:
    output = directory / "runs"
    nodes = {f"partition-{i}": f"partition-id={i} num-partitions=2" for i in range(2)}
    with Frail(directory, nodes) as federation:
        federation.start(*nodes)
        words = (f"output-dir={output}", *words_of(SERVER_CONFIG))
        submitted = federation.submit_words("struck", *words)
        begun = partial(federation.heard, "partition-0", "ROUND 2]")
        until(begun, "round 2", while_runs=submitted)
        (directory_of_record,) = output.iterdir()
        story = Story(Record(directory_of_record))
        fault(federation)
        story.ended(federation, "struck", submitted)
        keep(story, "struck")
        again = (f"output-dir={output}", f"resume={story.record.id}")
        story.ended(federation, "resumed", federation.submit_words("resumed", *again))
    return story


def keep(story: Story, name: str) -> None:
    """Note what the record holds when a run has ended."""
    story.said[f"{name}: record"] = (story.record.directory / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The numbers of the unbroken run."""
    output = {"output-dir": str(tmp_path_factory.mktemp("whole"))}
    return numbers(run(SERVER_CONFIG | output))


@pytest.mark.long
@pytest.mark.extended
@pytest.mark.parametrize("name", ["serverapp", "superlink"])
def test_a_killed_server_ends_the_run_with_its_reason_and_loses_no_recorded_round(
    stories: Stories, whole: list[dict[str, Any]], name: str
) -> None:
    """The ServerApp; the SuperLink, which is started again on its database."""
    story = stories.of_servers[name].result()
    assert story.code["struck"] == 1
    ends = tuple(f"The run did not complete (failed): {s}" for s in LOST)
    assert story.said["struck"].endswith(ends)
    lines = [json.loads(line) for line in story.said["struck: record"].splitlines()]
    assert 2 <= len(lines) < len(whole), "round 1 at least, and not the last one"
    assert [without_seconds(line) for line in lines] == [
        without_seconds(w) for w in whole[: len(lines)]
    ]


def without_seconds(line: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k not in ("seconds", "schema")}


@pytest.mark.long
@pytest.mark.extended
@pytest.mark.parametrize("name", ["serverapp", "superlink"])
def test_what_continues_a_killed_run_ends_as_an_unbroken_one(
    stories: Stories, whole: list[dict[str, Any]], name: str
) -> None:
    story = stories.of_servers[name].result()
    assert story.code["resumed"] == 0
    assert numbers(story.record) == whole
    provenance = RunRecord.open(story.record.directory).provenance
    assert provenance["outcome"] == "completed"
    assert len(provenance["continued"]) == 1


def test_a_run_is_continued_by_the_release_that_began_it(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run(small(rounds=1))
    monkeypatch.setattr("server_app.record.code_fingerprint", lambda config: "0123456789abcdef")
    message = "this is 0123456789abcdef: continue it with the release that began it"
    with pytest.raises(FederationError, match=message):
        resumed(record, 2)
    assert len(record.metrics()) == 2


# ---- membership, without a deployment -----------------------------------------------------------------


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
    update_membership(strategy, grid, quick)
    assert strategy.sites[0].node_id == old
    grid.away = frozenset({old})
    update_membership(strategy, grid, quick)
    assert {s.name: s.node_id for s in strategy.sites}["partition-0"] == new
