"""The programs of a simulation: each a child in a session of its own, with its output in a file."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nectar.engines import processes
from nectar.engines.flower.client import plain, scripts_directory
from nectar.engines.simulation import warm


@dataclass(frozen=True)
class Program:
    """A program that was started.

    Attributes
    ----------
    words
        Where a program that was started warm finds its words.
    """

    process: "subprocess.Popen[bytes]"
    log: Path
    words: Path

    @property
    def ended(self) -> bool:
        """Tell whether the program has ended."""
        return self.process.poll() is not None

    def begin(self, words: Sequence[str]) -> None:
        """Let a program that was started warm begin, with `words`."""
        written = self.words.with_suffix(".part")
        written.write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        written.rename(self.words)

    def new_lines(self, begin: int = 0) -> Iterator[tuple[bytes, int]]:
        """Yield what it says from byte `begin` on, line by line, and where each line ends."""
        with self.log.open("rb") as log:
            log.seek(begin)
            for line in log:
                begin += len(line)
                yield line, begin

    def last_words(self) -> str:
        """Give the end of what it said, for a message about its failure."""
        try:
            lines = plain(self.log.read_text(encoding="utf-8", errors="replace")).split("\n")
        except OSError:
            return "."
        said = [line.strip() for line in lines if line.strip()]
        return f"; its log ends: {' | '.join(said[-5:])}" if said else "; it wrote no log."


@dataclass(frozen=True)
class Place:
    """Where the programs of one simulation run."""

    directory: Path
    environment: Mapping[str, str]

    def start(self, name: str, *words: str) -> Program:
        """Start a program of this environment's."""
        return self._started(name, [str(scripts_directory() / name), *words])

    def start_warm(
        self, name: str, after: Program, first: Sequence[str] = (), then: Sequence[str] = ()
    ) -> Program:
        """Start a program that does its imports and then waits for its words.

        Parameters
        ----------
        after
            A program that imports much of the same: the imports wait until it has said something. Python keeps a
            compiled module, so that of two processes one after the other only the first compiles it.
        first, then
            Modules to import too, before and behind that wait.
        """
        program = str(scripts_directory() / name)
        # -P: what lies beside that file is no top-level module.
        command = [sys.executable, "-P", warm.__file__, str(os.getpid()), program]
        files = [str(self._words(name)), str(after.log)]
        return self._started(name, [*command, *files, ",".join(first), ",".join(then)])

    def put_in_place_of(self, program: Program, name: str) -> None:
        """Let whoever calls the program `name` by its name pass its words to `program`, which waits for them."""
        folder = self.directory / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / name
        part, words = (shlex.quote(str(path)) for path in (f"{program.words}.part", program.words))
        script.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > {part} && mv {part} {words}\n")
        script.chmod(0o700)

    def _words(self, name: str) -> Path:
        return self.directory / f"{name}.words"

    def _started(self, name: str, command: Sequence[str]) -> Program:
        file = self.directory / f"{name}.log"
        with file.open("ab") as log:
            process = processes.start(
                command,
                environment=self.environment,
                folder=self.directory,
                output=log,
                errors=subprocess.STDOUT,
            )
        return Program(process, file, self._words(name))
