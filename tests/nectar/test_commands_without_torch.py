"""What only looks, or refuses, imports no torch, Flower, Ray or pandas; a place that takes no record is told first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from common.config.loading import load
from nectar import cli
from server_app.record import Record

HEAVY = {"torch", "flwr", "ray", "pandas"}

#: Of each statement in turn, what it imports from outside of the standard library; what is ours goes before the next.
PROGRAM = """
import contextlib, importlib, io, json, sys
found = []
for statement in json.loads(sys.argv[1]):
    before = set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(statement)
    names = {name.partition(".")[0] for name in set(sys.modules) - before}
    found.append(sorted(names - sys.stdlib_module_names))
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("nectar", "common", "server_app", "strategies"):
            del sys.modules[name]
print(json.dumps(found))
"""

TYPED = "from nectar.cli import main; assert main({!r}.split()) == {}"
COMMANDS = {
    "--help": 0,
    "config": 0,
    "config --help feddm": 0,
    "runs output-dir={here}": 0,
    "report nothere": 2,
    "compare": 2,
    "compare --grid partition.alpha=0.1,1": 2,
    "compare fedavgg": 2,
    "compare table=nothere": 2,
}
#: Flower's programs are started before seconds of imports
PRINTED = "from nectar.commands import simulate; simulate._may_have_gpu = lambda: False; "

#: what is imported or typed, and what it may not bring in
ROWS = [
    ("import nectar; dir(nectar)", HEAVY | {"numpy", "yaml", "common", "server_app"}),
    # the fork asks for an owner's word before anything of the app is there
    ("from nectar.engines.site import approval", HEAVY | {"common", "client_app"}),
    # what `nectar status` reads, and the keys are held against
    ("from nectar.engines.flower import federation", HEAVY | {"numpy"}),
    ("from nectar.operate.keys import enforce, registry", HEAVY | {"numpy"}),
    ("import nectar.engines.site.__main__", HEAVY | {"common", "client_app", "yaml", "pydantic"}),
    *((TYPED.format(words, code), HEAVY | {"numpy"}) for words, code in COMMANDS.items()),
    (PRINTED + TYPED.format("simulate --print", 0), HEAVY),
]


@pytest.fixture
def unfinished(tmp_path: Path) -> Record:
    record = Record.create(load({"method": "fedavg", "output-dir": str(tmp_path / "runs")}))
    record.append({"round": 0, "test": {"accuracy": 0.1}})
    record.close()
    return record


@pytest.mark.extended
def test_what_only_looks_or_refuses_imports_nothing_heavy(unfinished: Record) -> None:
    """In one process: each of its own would cost more than all of them."""
    here = str(unfinished.directory.parent)
    statements = [statement.replace("{here}", here) for statement, _ in ROWS]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(statements)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (statement, heavy), found in zip(ROWS, json.loads(done.stdout), strict=True):
        assert not heavy & {*found}, statement


@pytest.mark.parametrize("command", ["run", "simulate", "compare"])
def test_a_place_that_takes_no_record_is_refused_before_any_work(
    command: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Root may write anywhere, but neither in /proc nor below a file."""
    monkeypatch.setattr("nectar.engines.preflight.prepare", None)
    file = tmp_path / "file"
    file.write_text("")
    for place in ("/proc/x", str(file), str(file / "below")):
        assert cli.main([command, "fedavg", f"output-dir={place}"]) == 2
        message = capfd.readouterr().err
        assert f"no record can be made in {place}" in message
        assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("private", [False, True])
def test_the_interpreters_last_collections_look_at_nothing(private: bool) -> None:
    """After private steps they do: triton, which torch imports for these, would print a list of its objects."""
    code = f"""
import atexit, gc, sys
from nectar.cli import main

if {private}:
    from torch import ones, func
    func.grad(lambda x: x.sum())(ones(3))
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 0))  # after those that are registered later
sys.argv = ["nectar", "--help"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout.splitlines()[-1], done.stderr) == (f"frozen {not private}", "")
