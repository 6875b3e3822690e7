"""What a hostile server may send to a site: odd instructions and odd settings, at sites of two kinds.

A site has images of its own in a folder, or holds a partition; both name a ``state-dir``. An instruction is spoiled in
the fields that the site reads, in its records and arrays, or by the run's settings. What has to hold:

- the site works, or answers with one sentence of its own: no other exception's, and none that names a place there;
- it is done within ``SECONDS`` and ``MEMORY``;
- it opens no file for writing outside its state directory and data root, and makes, renames and removes none there;
- it goes on to answer an honest server.

The suite does some of it; more of it is

    python tests/helpers/fuzzing_site.py --instructions 10000 --seed 0

A case is drawn from the seed and its own number, so that ``--first N --instructions 1`` does one again.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

sys.path.insert(0, str(Path(__file__).parents[2]))

from fuzzing import damaged
from fuzzing_rounds import CASES, command
from image_folders import CLASSES, paint
from spoiling import pick

from client_app.app import app as client_app
from common.config.keys import RUN_KEYS
from common.config.loading import load
from common.config.schema import known_keys
from common.errors import REASON_LENGTH
from common.methods import section
from common.settings.sections import SECTIONS
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve
from tests.contract.cases import config_of

Draw = np.random.Generator

#: seconds within which a site is done, and those that it is told are left
SECONDS, LEFT = 20, 5.0

#: bytes of memory that a site may ask for in its work
MEMORY = 2**31

#: what a site's owner allows, so that no setting asks for more work than a test has time for
OWNER = {
    **{"max-iterations": 4, "max-epochs": 40, "max-ipc": 4, "max-size": 16},
    **{"cores": 1, "max-parameters": 100_000},
}

_FOLDER = f"images.classes={CLASSES} images.size=8 data.send_originals=on"
FOLDERS = tuple(
    (method, f"{words} {_FOLDER}")
    for method, words in CASES
    if method in ("fedavg", "feddm", "scaffold", "feddpms", "real", "fedssyn")
)
"""The cases of sites with images of their own."""


@dataclass(frozen=True)
class Asked:
    """A run, and the instructions that a site gets in it."""

    config: dict[str, Any]
    node: dict[str, Any]
    instructions: Sequence[RecordDict]


class _Noting(LocalGrid):
    """A federation whose first site's instructions are noted."""

    noted: list[RecordDict]

    def _call(self, message: Message) -> Message:
        about = message.metadata
        if about.message_type == "train" and about.dst_node_id == self.get_node_ids()[0]:
            self.noted.append(message.content)
        return super()._call(message)


@lru_cache(maxsize=256)
def asked_of(own: bool, case: tuple[str, str], folder: str) -> Asked:
    """Return what an honest server asks of a site in three rounds."""
    method, words = case
    config = config_of(method, words, 3, 3, str(Path(folder, "runs")))
    nodes: Any = 3
    node: dict[str, Any] = {"partition-id": 0, "num-partitions": 3}
    if own:
        config["dataset"] = "images"
        nodes = [{"site": f"site-{i}", "data": str(_painted(folder, i))} for i in range(3)]
        node = nodes[0]
        config["set"] = config["set"].replace("data.images=150", "evaluation.on=none")
    grid = _Noting(client_app, nodes, config)
    grid.noted = []
    serve(grid, load(config))
    return Asked(config, node, grid.noted)


@lru_cache(maxsize=64)
def _painted(folder: str, number: int) -> Path:
    place = Path(folder, "own", str(number))
    for i, name in enumerate(CLASSES.split(",")):
        paint(place, name, 22 + i, side=8, seed=number)
    return place


# ---- what is spoiled ----------------------------------------------------------------------------------

_ODD: list[Any] = [
    *(0, -1, 1, 3, 10**6, 10**6 + 1, 2**62, -(2**63), 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *(True, False, "", "x", "1", "nan", "../../up", "/etc/passwd", "a\nb", "\x1b[2J", "y" * 50_000),
    *("9" * 5_000, "[" * 50_000, "{}", "null", '{"length": 1, "sha256": "x"}', "released.jsonl"),
    *(b"", b"\xff" * 9, [], [1, 2], ["x"], [float("nan")], [True]),
]
_FIELDS = (
    *("phase", "server-round", "record", "taken", "seconds-left", "ledger-head", "ledger-heads"),
    *("class-counts", "held-out", "other", "x" * 70, ""),
)
_VALUES: list[Any] = [
    *(0, -1, 1, 2, 1000, 10**9, 2**62, 10**400, 0.5, 1e-300, 1e300, "nan", "inf", "", "x", "on"),
    *("off", "y" * 3000, "../../up", "/etc/passwd", "os:system", "builtins:eval", "hf:x", "None"),
    *("[1,2]", "{a: 1}", "!!python/object/apply:os.system [x]", "a=b", "\x1b[2J", "é"),
]
#: what is allowed of a number more often
_NUMBERS: list[Any] = [0, 1, 2, 7, 100, 4096, 10**6, 10**9, 10**13, 0.01, 0.99, 1e-30, 1e30]


def odd_settings(draw: Draw, config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's config with some keys of any section set to odd values."""
    changed = dict(config)
    if draw.random() < 0.2:
        key = pick(draw, [*RUN_KEYS, "other"])
        value = pick(draw, [v for v in _VALUES if not isinstance(v, int) or v < 2**63])
        return {**changed, key: value}
    values = pick(draw, [_VALUES, _NUMBERS, _NUMBERS, [0, 1, 2, 3, 0.5, "on", "off"]])
    own = section(changed["method"])
    used = [key for key in known_keys() if key.partition(".")[0] in {*SECTIONS, own}]
    of_method = [key for key in used if key.startswith(f"{own}.")]
    keys = pick(draw, [known_keys(), used, of_method, of_method])
    words = [f"{pick(draw, keys)}={pick(draw, values)}" for _ in range(draw.integers(1, 4))]
    return {**changed, "set": f"{changed['set']} {' '.join(words)}"}


def odd_instruction(draw: Draw, content: RecordDict) -> RecordDict:
    """Return an instruction's records with one thing wrong, or sometimes nothing."""
    records: dict[str, Any] = dict(content)
    fields = dict(records.get("config") or {})
    match int(draw.integers(9)):
        case 0 | 1 | 2 | 3:
            fields[pick(draw, _FIELDS)] = pick(draw, _ODD)
            return RecordDict({**records, "config": ConfigRecord(fields)})
        case 4 if fields:
            del fields[pick(draw, list(fields))]
            return RecordDict({**records, "config": ConfigRecord(fields)})
        case 5 if records:
            del records[pick(draw, list(records))]
        case 6:
            name = pick(draw, ["arrays", "config", "evaluation", "more"])
            others = [ArrayRecord(), MetricRecord({"a": 1}), ConfigRecord(), ConfigRecord(fields)]
            records[name] = pick(draw, others)
        case 7:
            odd = {**fields, pick(draw, _FIELDS): pick(draw, _ODD)}
            records["evaluation"] = ConfigRecord(odd)
        case _ if isinstance(records.get("arrays"), ArrayRecord):
            arrays = damaged(draw, records["arrays"].to_numpy_ndarrays())
            records["arrays"] = ArrayRecord([np.asarray(array) for array in arrays])
    return RecordDict(records)


# ---- what is watched ----------------------------------------------------------------------------------

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
)


class Watch:
    """Notes, while it is on, which paths outside a directory are written to."""

    def __init__(self) -> None:
        self._within: str | None = None
        self.found: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._within is None:
            return
        if event == "open":
            path, _, flags = args
            if not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event in _CHANGES:
            path = args[1] if event == "os.rename" else args[0]
        else:
            return
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if text and not self._allowed(text):
            self.found.append(f"{event} of {text}")

    def _allowed(self, text: str) -> bool:
        inside = os.path.abspath(text).startswith(f"{self._within}")  # noqa: PTH100
        return inside or "__pycache__" in text or text == os.devnull

    @contextmanager
    def of(self, directory: Path) -> Iterator[None]:
        """Watch what lies outside of ``directory``."""
        self._within, self.found = str(directory), []
        try:
            yield
        finally:
            self._within = None


class TookTooLong(Exception):
    """A site that is not done in time."""


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Raise TookTooLong in what takes longer."""

    def ring(*_: Any) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def room(more: int) -> Iterator[None]:
    """Let this process ask for so many bytes more of memory, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# ---- a case -------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the instructions."""

    worked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    longest: float = 0.0

    def lines(self) -> list[str]:
        """Return the tally as text."""
        ways = sorted(self.worked.keys() | self.refused.keys())
        rows = [f"{way}: {self.worked[way]} done, {self.refused[way]} refused" for way in ways]
        return [
            *rows,
            f"longest: {self.longest:.1f} s",
            f"failures: {len(self.failures)}",
            *self.failures,
        ]


_KINDS = ("train", "train", "train", "train", "evaluate", "query.roll_call")
_WATCH = Watch()


class SiteFuzzer:
    """Draws instructions, has a site answer, and judges what it says.

    Parameters
    ----------
    seed : int
        Of all draws.
    folder : Path
        A place of its own.
    cases : sequence of (bool, (str, str)), optional
        Whether the site has a folder of its own, with a method and its settings; all where not given.
    """

    def __init__(
        self, seed: int, folder: Path, cases: Sequence[tuple[bool, tuple[str, str]]] = ()
    ) -> None:
        self.seed, self._folder = seed, folder
        every = [*((False, case) for case in CASES), *((True, case) for case in FOLDERS)]
        self._cases = list(cases) or every
        self.tally = Tally()

    def case(self, number: int) -> None:
        """Do one case."""
        draw = np.random.default_rng([self.seed, number])
        own, case = self._cases[number % len(self._cases)]
        asked = asked_of(own, case, str(self._folder))
        way = "settings" if draw.random() < 0.4 else "instruction"
        config = odd_settings(draw, asked.config) if way == "settings" else asked.config
        content = _within(pick(draw, asked.instructions), LEFT)
        kind = pick(draw, _KINDS)
        for _ in range(int(draw.integers(1, 4)) if way == "instruction" else 0):
            content = odd_instruction(draw, content)
        state = self._folder / f"state-{number % len(self._cases)}"
        about = f"case {number} ({'folder' if own else 'partition'}, {case[0]}, {kind}, {_shown(content)}"
        about += f", {_added(config, asked.config)})"
        self._judge(way, about, self._answer(about, asked.node, config, kind, content, state))
        if number % 25 == 24:
            whole = _within(asked.instructions[0], 600.0)
            answer = self._answer(about, asked.node, asked.config, "train", whole, state)
            if answer is not None and answer.has_error():
                self._fail(about, f"it works no more: {answer.error.reason}")

    def _answer(
        self,
        about: str,
        node: dict[str, Any],
        config: dict[str, Any],
        kind: str,
        content: RecordDict,
        state: Path,
    ) -> Message | None:
        own = {"state-dir": str(state), "data-root": str(state / "root"), "simulated": False}
        nodes = [{**node, **OWNER, **own}]
        grid = LocalGrid(client_app, nodes, config)
        message = Message(content, grid.get_node_ids()[0], kind, group_id="1")
        begun = time.monotonic()
        try:
            with _WATCH.of(state), patience(SECONDS), room(MEMORY):
                (answer,) = grid.send_and_receive([message])
        except TookTooLong:
            self._fail(about, f"it takes more than {SECONDS} s")
            return None
        self.tally.longest = max(self.tally.longest, time.monotonic() - begun)
        for found in _WATCH.found:
            self._fail(about, f"writes: {found}")
        return answer

    def _judge(self, way: str, about: str, answer: Message | None) -> None:
        if answer is None:
            return
        if not answer.has_error():
            self.tally.worked[way] += 1
            return
        self.tally.refused[way] += 1
        message = str(answer.error.reason)
        if "raised" in message or "<class" in message:
            self._fail(about, message[:300])
        if len(message) > REASON_LENGTH or not message.isprintable():
            self._fail(about, f"a sentence of {len(message)} characters: {message[:80]!r}")
        if str(self._folder) in message:
            self._fail(about, f"names a place: {message[:300]}")

    def _fail(self, about: str, what: str) -> None:
        self.tally.failures.append(f"{about}: {what}")


def _within(content: RecordDict, seconds: float) -> RecordDict:
    fields = ConfigRecord({**content.config_records["config"], "seconds-left": seconds})
    return RecordDict({**content, "config": fields})


def _shown(content: RecordDict) -> str:
    fields = {k: str(v)[:40] for k, v in (content.config_records.get("config") or {}).items()}
    return f"{sorted(content)} {fields}"


def _added(config: dict[str, Any], honest: dict[str, Any]) -> dict[str, Any]:
    """Return what was made of an honest run's config."""
    more = str(config["set"]).removeprefix(str(honest["set"]))
    others = {k: v for k, v in config.items() if k != "set" and honest.get(k) != v}
    return {k: str(v)[:80] for k, v in {"set": more, **others}.items() if v}


def fuzz(
    first: int, instructions: int, seed: int, cases: Sequence[tuple[bool, tuple[str, str]]] = ()
) -> Tally:
    """Do the cases ``first`` to ``first + instructions - 1`` of ``seed``."""
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = SiteFuzzer(seed, Path(folder).resolve(), cases)
        for number in range(first, first + instructions):
            fuzzer.case(number)
        return fuzzer.tally


if __name__ == "__main__":
    sys.exit(command(__doc__, "instructions", 10_000, fuzz))
