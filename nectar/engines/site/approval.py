"""The owner's say: what must be approved at the site before a line of the app that a run sent is imported.

A run asks as its bundle and configuration: `digest_of` both. What it would send is worked out in a process of its own,
by the Nectar that is installed here (`nectar.operate.approvals`), from the configuration and from nothing that the app
says. The state directory keeps, in ``approvals``, what each run asks (``RUN.json``), the owner's word (``RUN.word``),
and what is approved ahead of time (``list.txt``).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

FOLDER, LIST = "approvals", "list.txt"

APPROVED = "NECTAR_SITE_APPROVED"
"""The variable that tells the app that this program has asked: Flower's own would not."""

AWAITS_OWNER = 102
"""The code of a reply that says until when the owner's word is waited for: its node is asked again."""

RAISED = 2
"""Flower's own code for a ClientApp that raised."""

#: seconds that an owner has, where the node config does not say
PATIENCE = 3600

#: seconds for which a question is held once the server knows the deadline, and between two looks for a word: a
#: SuperNode has other runs' questions, too
_HOLD, _LOOK = 15.0, 0.5

#: seconds within which the installed Nectar works a run out
_WORKING = 180.0

Word = Literal["approve", "refuse"]


class Withheld(Exception):
    """A run that may not begin here, or not yet; the sentence is for the server."""

    def __init__(self, sentence: str, code: int = RAISED) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class Question:
    """What a run asks.

    Attributes
    ----------
    run : int
        Flower's number of it.
    digest : str
        Of app and configuration together.
    app : str
        The bundle's SHA-256.
    until : float
        Until when the owner's word is waited for, in seconds since the epoch.
    own : bool
        Whether the bundle is the one that the Nectar installed here makes, or that the site has pinned: else what it
        does need not be what its configuration says.
    methods : tuple of str
        The methods of the configuration; none if it could not be read here.
    lines : tuple of str
        All of it in words.
    """

    run: int
    digest: str
    app: str
    until: float
    own: bool = False
    methods: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return what a file of a run's says; None if it is not there or says nothing of the kind."""
        try:
            said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            fields: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in said.items()
            }
            return cls(**fields)
        except (OSError, ValueError, TypeError, AttributeError):
            return None


def digest_of(app: bytes, run_config: Mapping[str, str | int | float | bool]) -> str:
    """Return 64 hex digits over a bundle's bytes and the run's configuration, every key of it."""
    settings = json.dumps(dict(run_config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(hashlib.sha256(app).digest() + settings.encode()).hexdigest()


def require(
    run: int,
    app: bytes,
    run_config: Mapping[str, Any],
    node: Mapping[str, Any],
    *,
    pinned: bool,
) -> None:
    """Return where the owner has approved the run, or asks for no say; else Withheld with a sentence.

    Parameters
    ----------
    app : bytes
        The bundle that came with the message.
    node : mapping
        The node config.
    pinned : bool
        Whether the bundle is the one that the site has pinned.
    """
    if "approve" not in node:
        return
    place = _folder(node)
    digest = digest_of(app, run_config)
    if (given := word_on(place, run, digest)) is None:
        known = Question.read(place / f"{run}.json")
        fresh = known is None or known.digest != digest
        question = _worked_out(run, digest, app, run_config, node, pinned) if fresh else known
        assert question is not None
        if fresh:
            _write(place / f"{run}.json", asdict(question))
        given = "approve" if _listed(place, question) else _asked(place, question, node, fresh)
    if given == "refuse":
        raise Withheld(f"this site's owner has refused run {run}")
    os.environ[APPROVED] = str(run)


def word_on(place: Path, run: int, digest: str) -> Word | None:
    """Return the owner's word on a run as it was asked for; None if there is none, or it was on another digest."""
    try:
        said = json.loads((place / f"{run}.word").read_text(encoding="utf-8"))
        word: Word | None = {"approve": "approve", "refuse": "refuse"}.get(said["word"])  # type: ignore[assignment]
        return word if said["digest"] == digest else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def say(place: Path, question: Question, word: Word) -> None:
    """Write the owner's word; OSError if it cannot be."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    path = place / f"{question.run}.word"
    _write(path, {"digest": question.digest, "word": word, "time": now})
    give(path)


def give(path: Path) -> None:
    """Let the SuperNode's user read what root has written: whose the folder above is, has it too."""
    if os.geteuid() == 0:
        os.chown(path, path.parent.stat().st_uid, -1)


def listed(place: Path) -> list[str]:
    """Return what is approved ahead of time: digests and names of methods."""
    try:
        lines = (place / LIST).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [word for line in lines if (word := line.partition("#")[0].strip())]


def until_text(when: float) -> str:
    """Return a time as owner and server read it."""
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M} UTC"


def _folder(node: Mapping[str, Any]) -> Path:
    if node["approve"] not in ("ask", "list"):
        raise Withheld("this site's node config has an approve that is neither ask nor list")
    if not (state := str(node.get("state-dir", ""))).startswith("/"):
        raise Withheld("this site's node config says approve and names no state-dir to keep it in")
    place = Path(state, FOLDER)
    try:
        place.mkdir(0o700, parents=True, exist_ok=True)
    except OSError:
        raise Withheld(
            "this site cannot write what its owner is asked, so that nothing runs"
        ) from None
    return place


def _listed(place: Path, question: Question) -> bool:
    """Return whether a run was approved ahead of time: by its digest, or by all its methods in an app that is known."""
    words = listed(place)
    by_method = question.own and bool(question.methods) and {*question.methods} <= {*words}
    return question.digest in words or by_method


def _asked(place: Path, question: Question, node: Mapping[str, Any], fresh: bool) -> Word:
    run = question.run
    if node["approve"] == "list":
        if fresh:
            _show(
                question, f"is on no list of this site's: `{_command(place, run)}` would approve it"
            )
        raise Withheld(
            f"this site's owner has approved neither run {run}'s app and settings nor its method"
        )
    waits = f"this site waits for its owner's word on run {run} until {until_text(question.until)}"
    if fresh:  # the server is told at once; its next question is held
        _show(
            question, f"waits until {until_text(question.until)}: `{_command(place, run)}` lets it"
        )
        raise Withheld(waits, AWAITS_OWNER)
    end = time.time() + _HOLD
    while (given := word_on(place, run, question.digest)) is None:
        if time.time() > question.until:
            raise Withheld(
                f"this site's owner gave no word on run {run} by {until_text(question.until)}: submit it again"
            )
        if time.time() > end:
            raise Withheld(waits, AWAITS_OWNER)
        time.sleep(_LOOK)
    return given


def _command(place: Path, run: int) -> str:
    return f"nectar site approve {run} --state {place.parent}"


def _show(question: Question, what: str) -> None:
    lines = "".join(f"\n  {line}" for line in question.lines)
    print(f"nectar site: run {question.run} {what}{lines}", file=sys.stderr, flush=True)


def _worked_out(
    run: int,
    digest: str,
    app: bytes,
    run_config: Mapping[str, Any],
    node: Mapping[str, Any],
    pinned: bool,
) -> Question:
    """Have the installed Nectar work a run out; where it cannot, the question says so and no list of methods helps."""
    seconds = node.get("approve-seconds", PATIENCE)
    until = time.time() + (seconds if isinstance(seconds, int) and seconds > 0 else PATIENCE)
    question = Question(run, digest, hashlib.sha256(app).hexdigest(), until)
    given = {"app": question.app, "pinned": pinned, "run": dict(run_config), "node": dict(node)}
    command = [sys.executable, "-P", "-m", "nectar.operate.approvals"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(given).encode(),
            capture_output=True,
            timeout=_WORKING,
            check=True,
        )
        found = json.loads(done.stdout)
        own, methods = found["own"] is True, tuple(map(str, found["methods"]))
        lines = (*map(str, found["lines"]), f"hash      {digest}")
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        message = f"the Nectar installed here could not work out what it would send ({type(error).__name__})"
        own, methods, lines = False, (), (message, f"hash      {digest}")
    return replace(question, own=own, methods=methods, lines=lines)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(content, file, indent=2)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
