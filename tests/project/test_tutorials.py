"""The tutorials: their commands, typed as they stand in a folder of their own, with fewer rounds and steps."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import PROGRAMS, free_port
from places import ROOT
from small import SMALL
from typed_commands import commands

from nectar.cli import main

PAGES = ROOT / "docs" / "tutorials"
SHORT = ["rounds=1", *SMALL.split()]


def shortened(words: list[str], folder: Path) -> list[str]:
    """Return a command of a page with fewer rounds and steps; what a page says of a setting it keeps."""
    words = [word.replace("/abs", str(folder)) for word in words]
    if words[0] not in ("run", "compare"):
        return words
    if "resume=latest" in words:
        return ["run", "resume=latest", "rounds=2"]
    kept = [word for word in words if not word.startswith("rounds=")]
    if words[0] == "compare":
        kept[kept.index("--seeds") + 1] = "1"
        if any(" " in word for word in kept):  # plots cost more than runs: a row more is planned
            kept.append("--dry-run")
    typed = {word.partition("=")[0] for word in kept}
    return [*kept, *(word for word in SHORT if word.partition("=")[0] not in typed)]


@pytest.mark.extended
@pytest.mark.parametrize(
    "name",
    ["first-run", "compare-methods", pytest.param("own-images", marks=pytest.mark.long)],
)
def test_every_command_of_a_tutorial_works(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for variable in ("HOME", "NECTAR_RUNS", "NECTAR_DATA"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    for source in re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M):
        exec(compile(source, name, "exec"), {})
    typed = list(commands(text))
    assert len(typed) > 3
    for words in typed:
        assert main(shortened(words, tmp_path)) == 0, words
    assert list(tmp_path.rglob("report.html")) or name == "compare-methods"


def blocks(text: str) -> list[str]:
    """Return what is typed in each shell of a page, with ports that are free here."""
    for port in sorted(set(re.findall(r"\b(?:8000|909\d)\b", text))):
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    return re.findall(r"^```bash\n(.*?)^```$", text.replace("rounds=2", "rounds=1"), re.S | re.M)


@contextlib.contextmanager
def shells(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Give a list of what was started; end all of it."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            process.wait(60)


@pytest.mark.long
def test_the_three_sites_carry_out_a_run(tmp_path: Path) -> None:
    env = os.environ | {"HOME": str(tmp_path), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    env["NECTAR_RUNS"] = str(tmp_path / "runs")
    typed = blocks((PAGES / "three-sites.md").read_text(encoding="utf-8"))
    (address,) = set(re.findall(r"--port (\d+) --database", typed[0]))
    with shells(tmp_path) as started:
        for block in typed:
            stays = "flower-superlink" in block or "nectar site" in block
            process = subprocess.Popen(
                ["bash", "-ec", block], cwd=tmp_path, env=env, start_new_session=True
            )
            started.append(process)
            if "flower-superlink" in block:
                wait_for(int(address))
            elif not stays:
                assert process.wait(600) == 0, block
    assert list(tmp_path.glob("runs/*/report.html"))


def wait_for(port: int) -> None:
    """Return when something listens there."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")
