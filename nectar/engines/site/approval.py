"""The owner's approval, which a run needs before the site imports any of the app's code.

A request for approval covers the run's bundle and configuration: `digest_of` both. A separate process determines what
the run would send, with the site's installed Nectar (`nectar.operate.approvals`), from the configuration only and
never from the app. In the state directory, ``approvals`` has each request with its answer (``RUN-HASH.json``), and what
was approved in advance (``list.txt``). A SuperLink chooses the numbers of runs, and may send another app under a
number that the owner has read. So a request belongs to one app and configuration, is never overwritten, and is
answered by its number and the first digits of its hash.
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
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

FOLDER, LIST = "approvals", "list.txt"

APPROVED = "NECTAR_SITE_APPROVED"
"""The variable by which the app sees that this program has asked: Flower's own would not."""

AWAITS_OWNER = 102
"""The code of a reply that states how long the site waits for its owner's approval: the server asks again."""

RAISED = 2
"""Flower's own code for a ClientApp that raised."""

APPROVE, REFUSE = "approve", "refuse"
"""The owner's possible answers."""

DIGITS = 16
"""Hexadecimal digits of a hash that an owner types."""

#: seconds that an owner has, where the node config does not say, and within which the installed Nectar works a run out
PATIENCE, _WORKING = 3600, 180.0

#: seconds for which a question is held once the server knows the deadline, and between two looks for a word: a
#: SuperNode has other runs' questions, too
_HOLD, _LOOK = 15.0, 0.5


class NotApproved(Exception):
    """A run that may not start at this site, or not yet; the sentence is for the server."""

    def __init__(self, sentence: str, code: int = RAISED) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class Question:
    """A run that needs approval, and its owner's answer.

    Attributes
    ----------
    run : int
        Flower's number of it.
    digest : str
        Of app and configuration together.
    until : float
        The deadline of the owner's answer, in seconds since the epoch.
    own : bool
        Whether the bundle is that of the installed Nectar, or the one that the site has pinned: otherwise the app need
        not do what its configuration states.
    methods : tuple of str
        The methods of the configuration; empty if it could not be read.
    lines : tuple of str
        The description of the run for the owner.
    word : str
        ``approve``, ``refuse`` or nothing yet.
    """

    run: int
    digest: str
    until: float
    own: bool
    methods: tuple[str, ...]
    lines: tuple[str, ...]
    word: str = ""

    @property
    def end(self) -> str:
        """Until when, as owner and server read it."""
        return f"{datetime.fromtimestamp(self.until, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.run}-{self.digest[:DIGITS]}.json"

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the question in a file; None if it holds no question."""
        try:
            found = json.loads(path.read_text(encoding="utf-8")).items()
            fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found}
            return cls(**fields)
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def create(self, place: Path) -> None:
        """Write a new question atomically, as root for the owner of the folder; FileExistsError if there is one."""
        part = self._written(place)
        try:
            os.link(part, place / self.file)
        finally:
            part.unlink()

    def answer(self, place: Path, word: str) -> None:
        """Write the owner's answer to it, atomically."""
        replace(self, word=word)._written(place).replace(place / self.file)

    def _written(self, place: Path) -> Path:
        part = place / f".{self.run}.{secrets.token_hex(4)}.tmp"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file, indent=2)
        give(part)
        return part


def give(path: Path) -> None:
    """Let the SuperNode's user have what root has written: whose the folder above is."""
    if os.geteuid() == 0:
        os.chown(path, path.parent.stat().st_uid, -1)


def digest_of(app: bytes, run_config: Mapping[str, str | int | float | bool]) -> str:
    """Return 64 hex digits over a bundle's bytes and the run's configuration, every key of it."""
    settings = json.dumps(dict(run_config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(hashlib.sha256(app).digest() + settings.encode()).hexdigest()


def require(
    run: int, app: bytes, run_config: Mapping[str, Any], node: Mapping[str, Any], *, pinned: bool
) -> None:
    """Return where the owner has approved the run, or asks for no say; else NotApproved with a sentence.

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
    place, digest = _folder(node), digest_of(app, run_config)
    question = _question_of(place, run, digest)
    fresh = question is None
    if question is None:
        question = _worked_out(run, digest, app, run_config, node, pinned)
        with suppress(FileExistsError):  # another process of this site was first
            question.create(place)
        question = _question_of(place, run, digest) or question
    if not question.word and not _is_listed(place, question):
        question = _asked(place, question, node, fresh)
    if question.word == REFUSE:
        raise NotApproved(f"this site's owner has refused run {run}")
    os.environ[APPROVED] = str(run)


def _question_of(place: Path, run: int, digest: str) -> Question | None:
    """Return the question of exactly this app and configuration; None if it was not asked yet.

    The file's name has a part of the digest, for which a SuperLink can find two apps: all of the digest decides.
    """
    path = place / f"{run}-{digest[:DIGITS]}.json"
    question = Question.read(path)
    if question is None or (question.run, question.digest) == (run, digest):
        return question
    raise NotApproved(
        f"this site has a different app or configuration as run {run}: it starts nothing"
    )


def listed(place: Path) -> list[str]:
    """Return what is approved ahead of time: digests and names of methods."""
    try:
        lines = (place / LIST).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [word for line in lines if (word := line.partition("#")[0].strip())]


def _folder(node: Mapping[str, Any]) -> Path:
    if node["approve"] not in ("ask", "list"):
        raise NotApproved("in this site's node config approve is neither 'ask' nor 'list'")
    if not (state := str(node.get("state-dir", ""))).startswith("/"):
        raise NotApproved(
            "this site's node config sets approve, which needs state-dir, but lacks state-dir"
        )
    place = Path(state, FOLDER)
    try:
        place.parent.mkdir(0o700, parents=True, exist_ok=True)  # without others' rights, too
        place.mkdir(0o700, exist_ok=True)
    except OSError:
        raise NotApproved(
            "this site cannot save the request for its owner's approval, so it runs nothing"
        ) from None
    return place


def _is_listed(place: Path, question: Question) -> bool:
    """Return whether a run was approved in advance: by its digest, or by all its methods if the app is known."""
    words = {*listed(place)}
    by_method = question.own and question.methods and {*question.methods} <= words
    return question.digest in words or bool(by_method)


def _asked(place: Path, question: Question, node: Mapping[str, Any], fresh: bool) -> Question:
    """Return the question once the owner has answered; NotApproved before that and after the deadline."""
    run, end = question.run, question.end
    only_listed = node["approve"] == "list"
    if fresh:
        what = "is not on this site's list" if only_listed else f"waits until {end}"
        answer = f"nectar site approve {run} {question.digest[:DIGITS]} --state {place.parent}"
        lines = "\n  ".join([answer, *question.lines])
        print(f"nectar site: run {run} {what}:\n  {lines}", file=sys.stderr, flush=True)
    if only_listed:
        raise NotApproved(
            f"this site's owner has approved neither run {run}'s app and settings nor its method"
        )
    waits = NotApproved(
        f"this site waits for its owner to approve run {run} until {end}", AWAITS_OWNER
    )
    held = time.time() + (0.0 if fresh else _HOLD)  # the server learns it at once
    while not question.word:
        if time.time() > question.until:
            raise NotApproved(
                f"this site's owner did not approve run {run} by {end}: submit it again"
            )
        if time.time() > held:
            raise waits
        time.sleep(_LOOK)
        question = _question_of(place, run, question.digest) or question
    return question


def _worked_out(
    run: int,
    digest: str,
    app: bytes,
    run_config: Mapping[str, Any],
    node: Mapping[str, Any],
    pinned: bool,
) -> Question:
    """Return the question with the installed Nectar's description of the run, or with the reason why it has none."""
    given = {
        "app": hashlib.sha256(app).hexdigest(),
        "pinned": pinned,
        "run": dict(run_config),
        "node": dict(node),
    }
    stated = node.get("approve-seconds", PATIENCE)
    seconds = stated if isinstance(stated, int) and stated > 0 else PATIENCE
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "nectar.operate.approvals"],
            input=json.dumps(given).encode(),
            capture_output=True,
            timeout=_WORKING,
            check=True,
        )
        found = json.loads(done.stdout)
        own, methods, lines = found["own"] is True, [*found["methods"]], [*found["lines"]]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        reason = f"the installed Nectar could not determine what the run would send ({type(error).__name__})"
        own, methods, lines = False, [], [reason]
    lines.append(f"hash      {digest}")
    return Question(run, digest, time.time() + seconds, own, (*methods,), (*lines,))
