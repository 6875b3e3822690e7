"""What `nectar simulate` starts, when, and what it makes of the end of each: with stand-ins for Flower's programs."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import psutil
import pytest
from nectar.engines.simulation.simulate import simulate
from nectar.engines.simulation.superlink import SuperLink

from common.errors import NectarError
from nectar.engines import processes
from nectar.engines.flower.app import SOURCE
from nectar.engines.flower.client import Job, LaunchError, Resources
from nectar.engines.simulation import superlink, warm, workspace
from nectar.engines.simulation import superlink as bytecode
from nectar.engines.simulation import superlink as programs

TINY = Resources(supernodes=4, client_cores=1, client_gpus=0.0, workers=2)
JOB = Job(SOURCE, {}, TINY)

# As the real one, it hands over to the program when the words are there; it imports nothing.
WARM = """
import os, sys, time
name, words = sys.argv[2:4]
while not os.path.exists(words):
    time.sleep(0.02)
os.execv(name, [name, *open(words).read().split("\\0")[:-1]])
"""

# Answers to everything, until a file says that it is to die.
SUPERLINK = """
import http.server, os, sys, threading, time
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words): pass
def die():
    while not os.path.exists("die"):
        time.sleep(0.02)
    print("out of memory", flush=True)
    os._exit(9)
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.HTTPServer(("127.0.0.1", port), Health)
threading.Thread(target=die, daemon=True).start()
server.serve_forever()
"""
SUPEREXEC = "import subprocess, time; subprocess.run(['flwr-simulation', '--token', 'a b']); time.sleep(600)"
FLWR = """
import json, sys
if sys.argv[1] == "run":
    print(json.dumps({"success": True, "run-id": "17"}))
else:
    print(json.dumps({"runs": [{"status": "running", "status-details": ""}]}))
"""
AT_WORK = "import sys, time; print('at work', *sys.argv[1:], flush=True); "


@pytest.fixture(autouse=True)
def no_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's programs are stand-ins; each test writes those in which it differs."""
    (tmp_path / "warm.py").write_text(WARM)
    monkeypatch.setattr(warm, "__file__", str(tmp_path / "warm.py"))
    for module in (programs, superlink):
        monkeypatch.setattr(module, "scripts_directory", lambda: tmp_path)
    write(tmp_path, "flower-superlink", SUPERLINK)
    write(tmp_path, "flower-superexec", SUPEREXEC)
    write(tmp_path, "flwr", FLWR)
    write(tmp_path, "flwr-simulation", AT_WORK + "time.sleep(600)")


def write(folder: Path, name: str, code: str) -> None:
    (folder / name).write_text(f"#!{sys.executable}\n{code}")
    (folder / name).chmod(0o755)


def remains() -> list[str]:
    """Name what is there of runs of this process: directories and processes."""
    name = f"nectar-simulation-{os.getpid()}-"
    marks = [mark for mark in workspace.marked_processes().values() if name in mark]
    return marks + [str(path) for base in workspace._bases() for path in base.glob(f"{name}*")]


def test_the_simulation_gets_the_words_that_the_superexec_calls_it_with(tmp_path: Path) -> None:
    # 0 is Flower's word for a run that completed.
    write(tmp_path, "flwr-simulation", AT_WORK)
    out = io.StringIO()
    assert simulate(JOB, out=out) == 0
    assert out.getvalue() == "at work --token a b\n"
    assert remains() == []


def test_a_process_that_lost_its_mark_and_left_its_session_is_ended_too(tmp_path: Path) -> None:
    """As Ray's workers may, which write over their environment."""
    child = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    starts = (
        f"import subprocess; child = subprocess.Popen({child}, env={{}}, start_new_session=True); "
    )
    write(tmp_path, "flwr-simulation", AT_WORK + starts + "print('child', child.pid, flush=True)")
    out = io.StringIO()
    assert simulate(JOB, out=out) == 0
    (pid,) = re.findall(r"child (\d+)", out.getvalue())
    assert int(pid) not in {process.pid for process in processes.living()}


def test_a_run_that_says_it_completed_is_ended_at_once(tmp_path: Path) -> None:
    """Nobody asks its process to end in order, and waits for that."""
    says = 'print(\'nectar-completed {"directory": "/x"}\', flush=True); time.sleep(600)'
    asked = tmp_path / "asked"
    listens = f"import signal; signal.signal(signal.SIGINT, lambda *_: open({str(asked)!r}, 'w')); "
    write(tmp_path, "flwr-simulation", listens + AT_WORK + says)
    out = io.StringIO()
    assert simulate(JOB, out=out) == 0
    assert out.getvalue() == "at work --token a b\n"
    assert not asked.exists()
    assert remains() == []


def test_a_superlink_that_dies_ends_the_run(tmp_path: Path) -> None:
    write(tmp_path, "flwr-simulation", AT_WORK + "open('die', 'w'); time.sleep(600)")
    out = io.StringIO()
    with pytest.raises(LaunchError, match=r"SuperLink ended before the run.*out of memory"):
        simulate(JOB, out=out)
    assert out.getvalue() == "at work --token a b\n"
    assert remains() == []


def test_a_superexec_that_dies_ends_the_run(tmp_path: Path) -> None:
    write(tmp_path, "flower-superexec", "print('no secret'); raise SystemExit(3)")
    with pytest.raises(LaunchError, match=r"SuperExec ended before the run.*no secret"):
        simulate(JOB, out=io.StringIO())
    assert remains() == []


def test_a_simulation_that_dies_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    write(tmp_path, "flwr-simulation", AT_WORK + "import os; os.kill(os.getpid(), 9)")
    out = io.StringIO()
    assert simulate(JOB, out=out) == 1
    *_, told = out.getvalue().splitlines()
    assert "The run did not complete (failed): its process ended with exit code -9" in told
    assert "at work --token a b" in told
    assert remains() == []


def test_flowers_reason_for_a_failure_is_told(tmp_path: Path) -> None:
    write(tmp_path, "flwr-simulation", AT_WORK + "sys.exit(1)")
    answer = {"runs": [{"status": "finished:failed", "status-details": "had enough"}]}
    write(tmp_path, "flwr", FLWR.replace(FLWR.split("print(")[-1], f"{json.dumps(answer)!r})\n"))
    out = io.StringIO()
    assert simulate(JOB, out=out) == 1
    assert out.getvalue().splitlines()[-1] == "The run did not complete (failed): had enough"


def test_what_the_check_refuses_is_never_submitted(tmp_path: Path) -> None:
    def refuse() -> None:
        assert remains(), "the programs start beside the check"
        raise NectarError("no such data")

    write(tmp_path, "flwr", f"open({str(tmp_path / 'asked')!r}, 'w')")
    out = io.StringIO()
    with pytest.raises(NectarError, match="no such data"):
        simulate(JOB, refuse, out=out)
    assert out.getvalue() == ""
    assert not (tmp_path / "asked").exists()
    assert remains() == []


@pytest.mark.extended
def test_another_port_is_taken_when_the_superlink_does_not_get_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([1, 2, superlink._free_port()])
    monkeypatch.setattr(superlink, "_free_port", lambda: next(ports))
    refused = "import sys\nif '1' in sys.argv or '2' in sys.argv: sys.exit('in use')\n"
    write(tmp_path, "flower-superlink", refused + SUPERLINK)
    write(tmp_path, "flwr-simulation", AT_WORK)
    assert simulate(JOB, out=io.StringIO()) == 0


def test_a_superlink_that_never_starts_is_told_with_its_last_words(tmp_path: Path) -> None:
    write(tmp_path, "flower-superlink", "print('no room'); raise SystemExit(1)")
    with pytest.raises(LaunchError, match=r"SuperLink ended at its start; its log ends: .*no room"):
        simulate(JOB, out=io.StringIO())
    assert remains() == []


@pytest.mark.extended
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            'print(\'a note\'); print(\'{"success": false, "error-message": "no such\\\\nkey"}\')',
            "did not start the run: no such key",
        ),
        ("import sys; sys.exit('cannot connect')", r"exit code 1.*cannot connect"),
    ],
)
def test_flowers_refusal_is_told_in_one_sentence(tmp_path: Path, code: str, sentence: str) -> None:
    write(tmp_path, "flwr", code)
    place = workspace.Workspace()
    link = SuperLink(place.directory)
    try:
        with pytest.raises(LaunchError, match=sentence):
            link.submit(JOB)
    finally:
        place.remove()
        link.reap()


# -- a warm program -----------------------------------------------------------------------------

WARM_FILE = SOURCE / "nectar" / "engines" / "simulation" / "warm.py"


def start_warm(folder: Path, modules: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", str(WARM_FILE), str(os.getpid()), "/scripts/pytest"]
    return subprocess.Popen(
        [*command, str(folder / "words"), str(folder / "log"), "colorsys", modules],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.extended
def test_a_warm_program_waits_for_its_words(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    process = start_warm(tmp_path, "string")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    (tmp_path / "log").write_text("up")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    (tmp_path / "part").write_bytes(b"--co\0-q\0no such file\0")
    (tmp_path / "part").rename(tmp_path / "words")
    message, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "not found: no such file" in message


@pytest.mark.extended
def test_a_warm_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("up")
    words = ["/scripts/pytest", str(tmp_path / "words"), str(tmp_path / "log"), "", ""]
    code = (
        "import os, subprocess, sys; file, *words = sys.argv[1:]; "
        "command = [sys.executable, file, str(os.getpid()), *words]; "
        "print(subprocess.Popen(command, stdout=2).pid, flush=True); input()"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code, str(WARM_FILE), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    number = int(starter.stdout.readline())
    assert Path(f"/proc/{number}").exists()
    starter.communicate("\n", timeout=60)
    deadline = time.monotonic() + 60
    while psutil.pid_exists(number) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(number)


# -- bytecode -----------------------------------------------------------------------------------


def test_bytecode_is_kept_with_the_run_where_it_may_not_lie_beside_the_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "none"))
    given = bytecode.bytecode_variables(tmp_path)
    code = "import colorsys, sys; print(colorsys.__cached__, sys.dont_write_bytecode)"
    environment = os.environ | given
    message = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert message.startswith(str(bytecode.bytecode_folder(tmp_path)))
    assert message.endswith(" False\n")
    assert Path(message.split()[0]).is_file()
    with bytecode.shared_bytecode(tmp_path):
        assert cache_from_source(__file__).startswith(str(bytecode.bytecode_folder(tmp_path)))
        assert not sys.dont_write_bytecode
    assert sys.pycache_prefix == str(tmp_path / "none")
    assert sys.dont_write_bytecode


def compile_all(packages: Iterable[str]) -> None:
    """Leave what looks like the bytecode of packages where Python now looks for it."""
    for package in packages:
        found = find_spec(package)
        assert found is not None
        compiled = Path(cache_from_source(str(found.origin)))
        compiled.parent.mkdir(parents=True)
        compiled.touch()


@pytest.mark.parametrize("may_write", [True, False])
def test_bytecode_that_is_at_hand_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_write: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not may_write)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    if not may_write:
        compile_all(bytecode._LARGE)
    assert bytecode.bytecode_variables(tmp_path) == {}
    with bytecode.shared_bytecode(tmp_path):
        assert sys.pycache_prefix == str(tmp_path)
        assert sys.dont_write_bytecode is not may_write


def test_one_large_package_without_bytecode_is_enough_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    compile_all(set(bytecode._LARGE) - {"torch"})
    assert "PYTHONPYCACHEPREFIX" in bytecode.bytecode_variables(tmp_path)
