"""The commands of ``nectar`` that documents tell a reader to type, taken apart as a shell would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Any

import click

from client_app.owner.node_config import NodeConfig
from common.config.loading import load
from nectar.arguments import parse_arguments
from nectar.command_line import COMMANDS
from nectar.comparison.request import CompareOptions, parse
from nectar.comparison.tuning import searches_of
from nectar.operate.doctor.node_config import read

_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_ASSIGNED = re.compile(r"(?:^|; *)(\w+)=(\"[^\"]*\"|'[^']*'|[^\s;]+)(?=;|$)", re.MULTILINE)
_ASKED = re.compile(r"\$\([^)]*\)")
_ENDS = {"&&", "||", "|", ";", ">", ">>", "&"}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words after ``nectar`` of each command in the blocks of a page, its variables filled in."""
    for language, block in _BLOCK.findall(text):
        if language not in ("bash", ""):
            continue
        block = _ASKED.sub("ab" * 32, block)  # what another program is to say: a checksum
        known = {"PWD": "/abs", "HOME": "/abs"}
        for name, value in _ASSIGNED.findall(block):
            known[name] = Template(value.strip("\"'")).safe_substitute(known)
        typed = ""
        for line in Template(block.replace("\\\n", " ")).safe_substitute(known).splitlines():
            typed += f"{line}\n"
            with suppress(ValueError):  # a quotation that a later line closes
                yield from _of_line(typed)
                typed = ""
        if typed:
            raise ValueError(f"a quotation is not closed: {typed}")


def _of_line(line: str) -> Iterator[list[str]]:
    reader = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    reader.whitespace_split, reader.commenters = True, "#"
    words = list(reader)
    for at, word in enumerate(words):
        if Path(word).name == "nectar" and not any("=" not in w for w in _before(words, at)):
            end = next((i for i in range(at, len(words)) if words[i] in _ENDS), len(words))
            yield words[at + 1 : end]


def _before(words: list[str], at: int) -> list[str]:
    """Return what stands before a word in its command, such as variables; not what passes a command on."""
    start = max(
        (i + 1 for i in range(at) if words[i] in {*_ENDS, "operator", "simulation"}), default=0
    )
    return words[start:at]


def require_accepted(words: list[str]) -> None:
    """Refuse a command as ``nectar`` would, before anything that asks for files, a network or a record.

    Parameters
    ----------
    words : list of str
        What stands after ``nectar``.

    Raises
    ------
    Exception
        An option or a word that there is not, a setting that cannot be, a comparison that cannot be asked for.
    """
    if words[0] == "help" or "--help" in words:
        return
    given = _context(words).params
    if "--node-config" in words:
        NodeConfig.of(read(words[words.index("--node-config") + 1]))
    if given.get("config_file"):
        return
    own = [w for w in given.get("words") or () if not w.startswith(("resume=", "resume_code="))]
    if words[0] == "compare":
        _require_comparable(own, given)
    elif words[0] in ("run", "simulate", "config", "data", "submit", "doctor"):
        connection = words[0] == "doctor" and own and "=" not in own[0]
        load(parse_arguments(own[1:] if connection else own, Path("/abs")))


def _context(words: list[str]) -> click.Context:
    with click.Context(COMMANDS, info_name="nectar") as root:
        command = COMMANDS.get_command(root, words[0])  # type: ignore[attr-defined]
        rest = words[1:]
        if isinstance(command, click.Group):
            if rest[0].startswith("-"):
                rest = [getattr(command, "default", ""), *rest]
            command, rest = command.commands.get(rest[0]), rest[1:]
        assert command is not None, f"there is no command {words[:2]}"
        return command.make_context(words[0], list(rest), parent=root)


def _require_comparable(words: list[str], given: dict[str, Any]) -> None:
    kept = {name: given[name] for name in ("seeds", "tune_seeds", "small", "search")}
    lists = {name: tuple(given[name] or ()) for name in ("tune", "grid")}
    for cell in parse(CompareOptions(words=tuple(words), **kept, **lists)).cells:
        searches_of(cell)
        for variant in cell.variants:
            load(parse_arguments(cell.words(variant, 0), Path("/abs")))
