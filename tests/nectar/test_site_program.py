"""`nectar site`: what a SuperNode has started for each message is a fork of a process that has imported everything.

That process ends when no message came for a while, and is started again by the next.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from deployment import ROOT, signal_session
from places import HELPERS
from waiting import until

from nectar.cli import main as nectar
from nectar.engines.site import supernode
from nectar.engines.site.__main__ import _environment

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "A site's program leaves nothing when killed, and ends its work within seconds of `flwr stop`",
)

#: the site's program around a SuperNode that is a shell script, and imports that are a piece of Python
PARENT = """
import os, sys
from nectar.engines.private_folder import private_folder
from nectar.engines.site.supernode import PREFIX, SuperNode

script, imports = sys.argv[1:]
with private_folder(PREFIX) as folder:
    variables = {**os.environ, "HERE": str(folder)}
    node = SuperNode(["/bin/sh", "-c", script], [sys.executable, "-c", imports], variables)
    code = node.wait()
sys.exit(code)
"""

#: a zygote whose imports and ClientApp are pieces of Python
ZYGOTE = """
import os, signal, sys, time
from nectar.engines import processes
from nectar.engines.site.zygote import serve

imports, app, parent = sys.argv[1:]
processes.end_with(int(parent), signal.SIGTERM)

def prepare():
    exec(imports)
    return lambda: exec(app, {**globals()})

serve(prepare)
"""

#: a SuperExec that starts such a one
SUPEREXEC = """
import os, sys, time
from nectar.engines.site.clientapp import ForkExecutor
from test_site_program import spec_of

command = [sys.executable, "-c", *sys.argv[1:], str(os.getpid())]
ForkExecutor(command, only=True).launch(spec_of("1"))
time.sleep(600)
"""

#: a ClientApp that says its number and that of the process whose fork it is, and works on
WORKS = "print(f'of: {os.getppid()}\\nfork: {os.getpid()}', flush=True); time.sleep(600)"
#: one that says whose fork it is, and ends
WHOSE = "print(f'{sys.argv[4]} of {os.getppid()}', flush=True)"

HERE = Path(__file__).parent

SUPEREXECS = str(Path(supernode.__file__).parent / "bin")


class Program:
    """A program at work; `said` holds what came on its standard output and errors so far, but for its own lines."""

    def __init__(self, directory: Path, program: str, *words: str) -> None:
        self.log = directory / "log"
        self.temporary = Path(tempfile.mkdtemp(prefix="site-"))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, *words],
                env=os.environ
                | {"TMPDIR": str(self.temporary), "PYTHONPATH": f"{HERE}:{HELPERS}:{ROOT}"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        lines = self.log.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("nectar site: "))

    def number(self, name: str) -> int:
        """Wait for ``name: NUMBER`` and return the number, behind which another process's line may begin."""
        until(lambda: f"{name}: " in self.said and self.said.endswith("\n"))
        (number,) = re.findall(rf"^{name}: (\d+)", self.said, re.MULTILINE)
        return int(number)

    def left(self) -> list[Path]:
        return list(self.temporary.iterdir())


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Program] = []

    def one(*words: str) -> Program:
        started.append(Program(tmp_path, *words))
        return started[-1]

    yield one
    for each in started:
        signal_session(each.process.pid, signal.SIGKILL)
        each.process.wait()
        shutil.rmtree(each.temporary)


def site(start: Start, supernode: str, imports: str = "") -> Program:
    return start(PARENT, supernode, imports)


def spec_of(token: str, task: str = "flwr-clientapp") -> Any:
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.types import ExecutionSpec

    return ExecutionSpec(TaskType(task), "there:1", token, True, None, False, 5, False, 1)


class Forks:
    """An executor of this process's, and what its ClientApps have said."""

    def __init__(self, directory: Path) -> None:
        self.log, self.flag = directory / "log", directory / "flag"

    def begin(self, app: str = WHOSE, imports: str = "", idle: float = 300.0) -> None:
        from nectar.engines.site.clientapp import ForkExecutor

        words = [sys.executable, "-P", "-c", ZYGOTE, imports, app, str(os.getpid())]
        logged = ["/bin/sh", "-c", f'exec "$@" >> {self.log} 2>&1', "sh", *words]
        self.executor = ForkExecutor(logged, only=True, idle=idle)

    def launch(self, token: str, task: str = "flwr-clientapp") -> str:
        return str(self.executor.launch(spec_of(token, task)).status)

    @property
    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for(self, *starts: str) -> None:
        until(lambda: all(any(line.startswith(s) for line in self.said) for s in starts))

    @property
    def zygote(self) -> subprocess.Popen[bytes]:
        assert self.executor._zygote is not None
        return self.executor._zygote


@pytest.fixture
def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forks]:
    made = Forks(tmp_path)
    monkeypatch.setenv("FLAG", str(made.flag))
    yield made
    made.flag.touch()
    made.executor.close()
    for zygote in made.executor._ending:
        zygote.wait(300)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


# ---- ClientApps ---------------------------------------------------------------------------------------


def test_a_fork_is_what_flower_would_have_started_and_no_other_program_is(forks: Forks) -> None:
    forks.begin("print(sys.argv, sys.stdin.read() == '', flush=True)")
    assert forks.launch("a b") == "accepted"
    assert forks.launch("c", "flwr-agentapp") == "failed"
    words = ["--runtime-api-address", "there:1", "--token", "a b", "--insecure", "--parent-pid"]
    forks.wait_for(f"{['flwr-clientapp', *words, '5']} True")


def test_no_other_user_reads_a_token(forks: Forks) -> None:
    forks.begin(
        "print('fork', os.getpid(), flush=True)\nwhile not os.path.exists(os.environ['FLAG']): time.sleep(.01)"
    )
    forks.launch("a token")
    forks.wait_for("fork ")
    fork = int(forks.said[-1].split()[1])
    for pid in (forks.zygote.pid, fork):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert words
        assert b"a token" not in words


def test_messages_are_forks_of_one_process_which_ends_after_a_while_and_starts_again(
    forks: Forks,
) -> None:
    """It ends when its forks have: the first is still at work when the third is started, of another process."""
    wait = "while sys.argv[4] == '1' and not os.path.exists(os.environ['FLAG']): time.sleep(.01)"
    forks.begin(f"{WHOSE}\n{wait}\nprint(sys.argv[4], 'ends', flush=True)")
    forks.launch("1")
    forks.launch("2")
    forks.wait_for("1 of", "2 ends")
    forks.executor.reconcile()
    first = forks.zygote
    forks.executor._end_at = 0.0  # much later
    forks.executor.reconcile()
    forks.launch("3")
    forks.wait_for("3 ends")
    whose = {line.split()[0]: int(line.split()[2]) for line in forks.said if " of " in line[:5]}
    assert whose == {"1": first.pid, "2": first.pid, "3": forks.zygote.pid}
    assert first.poll() is None
    forks.flag.touch()
    forks.wait_for("1 ends")
    assert first.wait(300) == 0


def test_no_message_is_lost_that_comes_while_it_ends(forks: Forks) -> None:
    forks.begin(idle=-1.0)
    tokens = [f"{k}{x}" for k in range(8) for x in "ab"]
    for i, token in enumerate(tokens):
        forks.launch(token)
        if i % 2:
            forks.executor.reconcile()
    forks.wait_for(*(f"{token} of" for token in tokens))


def test_when_it_is_killed_its_forks_end_and_the_next_message_works(forks: Forks) -> None:
    forks.begin(
        "print(f'fork{sys.argv[4]} {os.getpid()}', flush=True)\nif sys.argv[4] == '1': time.sleep(600)"
    )
    forks.launch("1")
    forks.wait_for("fork1")
    fork = int(forks.said[-1].split()[1])
    forks.zygote.kill()
    forks.zygote.wait()
    assert forks.launch("2") == "accepted"
    forks.wait_for("fork2")
    until(lambda: not alive(fork))


def test_imports_that_fail_later_cost_the_message_that_waits_and_no_other(forks: Forks) -> None:
    forks.begin(imports="assert not os.path.exists(os.environ['FLAG'])")
    forks.flag.touch()
    forks.launch("1")
    assert forks.zygote.wait(300) == 1
    forks.flag.unlink()
    forks.launch("2")
    forks.wait_for("2 of", "AssertionError")
    assert not [line for line in forks.said if line.startswith("1 of")]


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_when_superexec_is_killed_its_forks_end(start: Start) -> None:
    one = start(SUPEREXEC, ZYGOTE, "", WORKS)
    others = [one.number("of"), one.number("fork")]
    one.process.kill()
    until(lambda: not any(map(alive, others)))


# ---- the program --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once_and_nothing_is_left(
    start: Start, number: signal.Signals
) -> None:
    """Also while it imports."""
    supernode = (
        "trap 'echo heard; exit 3' TERM INT; ls -ld $HERE; sleep 600 & echo child: $!; wait; wait"
    )
    one = site(
        start,
        supernode,
        "import os, time; print(f'imports: {os.getpid()}', flush=True); time.sleep(600)",
    )
    others = [one.number("child"), one.number("imports")]
    os.killpg(one.process.pid, number)  # as a terminal does
    assert one.process.wait(300) == 3
    assert one.said.count("heard") == 1
    assert one.said.count("drwx------") == 1
    assert "Traceback" not in one.said
    assert not [pid for pid in others if alive(pid)]
    assert one.left() == []


def test_before_it_has_a_supernode_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "psutil.py").write_text(
        f"open({str(begun)!r}, 'w')\nimport time\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "nectar.engines.site", "/usr/bin"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stderr=subprocess.PIPE,
    ) as process:
        until(begun.exists)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=300)
    assert (process.returncode, message) == (-signal.SIGINT, b"")


def test_what_cannot_be_imported_ends_it_before_any_message(start: Start) -> None:
    one = site(start, "echo node: $$; sleep 600", "import no_such_module")
    assert one.process.wait(300) == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in one.said
    assert not ("node: " in one.said and alive(one.number("node")))
    assert one.left() == []


def test_when_the_supernode_is_killed_everything_ends(start: Start) -> None:
    one = site(start, "echo node: $$; sleep 600 & echo child: $!; wait")
    child = one.number("child")
    os.kill(one.number("node"), signal.SIGKILL)
    assert one.process.wait(300) == 128 + signal.SIGKILL
    assert not alive(child)
    assert one.left() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_when_the_program_is_killed_its_supernode_ends(start: Start) -> None:
    one = site(start, "echo node: $$; sleep 600 & wait")
    node = one.number("node")
    beside = subprocess.Popen(
        [sys.executable, "-c", PARENT, "exit 4", ""],
        env=os.environ | {"TMPDIR": str(one.temporary)},
    )
    assert beside.wait(300) == 4
    assert len(one.left()) == 1, "who lives keeps its folder"
    one.process.kill()
    until(lambda: not alive(node))
    assert len(one.left()) == 1
    again = subprocess.run(beside.args, env=os.environ | {"TMPDIR": str(one.temporary)})
    assert again.returncode == 4
    assert one.left() == [], "what a killed program left goes at the next start"


def test_a_supernode_finds_our_superexec_first_and_where_pinned_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    for pin, approves, path in (
        (None, False, [SUPEREXECS, "/programs", "/usr/bin"]),
        (Path("x.fab"), False, [SUPEREXECS]),
        (None, True, [SUPEREXECS]),
    ):
        words = Namespace(pin=pin, approves=approves, programs=Path("/programs"), options=[])
        variables = _environment(words, Path("/folder"))
        assert variables["PATH"].split(":") == path
        assert json.loads(variables["NECTAR_SITE"])["only"] is (len(path) == 1)
    assert [p.name for p in Path(SUPEREXECS).iterdir()] == ["flower-superexec"]
    found = {**variables, "NECTAR_SITE_PYTHON": "/bin/echo"}
    done = subprocess.run(
        [shutil.which("flower-superexec", path=SUPEREXECS) or "", "--x", "a b"],
        env=found,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "-P -m nectar.engines.site.superexec --x a b\n"


#: prints what a fork has of the app and of CUDA, and what the app's own modules still bring in from others
PRELOADED = """
import importlib, pathlib, sys
from nectar.engines.site import clientapp
clientapp.preload(None)
import torch
there = set(sys.modules)
own = ("client_app", "common", "synth", "server_app", "strategies")
print(sorted(name for name in there if name.split(".")[0] in own), torch.cuda.is_initialized())
for path in pathlib.Path(sys.argv[1], "client_app").glob("*.py"):
    importlib.import_module(f"client_app.{path.stem}")
new = {name.split(".")[0] for name in set(sys.modules) - there} - {*own, *sys.stdlib_module_names}
print(sorted(new - {name.split(".")[0] for name in there}))
"""


@pytest.mark.extended
def test_forks_begin_with_what_clientapps_need_but_nothing_of_the_app() -> None:
    command = [sys.executable, "-P", "-c", PRELOADED, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "[] False\n[]\n", done.stderr


# ---- a run that was stopped ---------------------------------------------------------------------------


class Link:
    """A SuperLink that answers questions after a run with these HTTP codes, one after the other."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.asked = list(codes), list[tuple[int, int]]()

    def GetRun(self, request: Any) -> None:
        self.asked.append((request.node.node_id, request.run_id))
        if (code := self.codes.pop(0)) == 0:
            raise httpx.ConnectError("nobody there")
        if code != 200:
            answer = httpx.Response(code, request=httpx.Request("POST", "https://superlink"))
            answer.raise_for_status()


def test_the_end_of_a_run_is_told_from_a_superlink_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flwr.supercore.task_identity import TaskIdentity

    from nectar.engines.site.clientapp import is_over, watch

    link, stopped = Link(200, 0, 502, 401, 404, 403), list[int]()
    monkeypatch.setattr(TaskIdentity, "_node_id", 5)
    monkeypatch.setattr(TaskIdentity, "_run_id", 7)
    watch(lambda: is_over(link), lambda: stopped.append(len(link.asked)), every=0.001)  # type: ignore[arg-type]
    assert stopped == [6]
    assert set(link.asked) == {(5, 7)}


def test_a_task_is_looked_after_while_its_message_is_still_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that ends while its message is on the way: the rest never comes, and the fork must not wait for it."""
    from flwr.supercore.task_identity import TaskIdentity

    from nectar.engines.site import clientapp

    monkeypatch.setattr(TaskIdentity, "_run_id", None)
    given_up = threading.Event()
    seen: list[object] = []

    def give_up(client: object, message: object, context: object) -> None:
        seen.append(message)
        given_up.set()

    def pull(client: object) -> tuple[object, ...]:
        monkeypatch.setattr(TaskIdentity, "_node_id", 5)
        monkeypatch.setattr(TaskIdentity, "_run_id", 7)
        assert given_up.wait(300), "nobody looked after the task"
        return ("message", "context", "run", "fab")

    fleet = SimpleNamespace(client=lambda: Link(200, 403))
    monkeypatch.setattr(clientapp, "give_up", give_up)
    monkeypatch.setattr(clientapp.watch, "__defaults__", (0.001,))
    task = clientapp.pull_watched(None, fleet, pull)  # type: ignore[arg-type]
    assert task[0] == "message"
    assert seen == [None]


def test_only_a_node_with_a_key_can_ask(tmp_path: Path) -> None:
    from nectar.engines.site.clientapp import fleet_of

    assert nectar(["keys", "node", str(tmp_path), "north"]) == 0
    where = ["--superlink", "127.0.0.1:8000"]
    key = ["--auth-supernode-private-key", str(tmp_path / "nodes" / "north")]
    assert fleet_of([*where, "--insecure"]) is None
    assert fleet_of([*where, "--auth-supernode-private-key", "nowhere"]) is None
    fleet = fleet_of([*where, *key, "--root-certificates=ca.crt", "--port", "9094"])
    assert fleet is not None
    assert (fleet.address, fleet.certificates) == ("127.0.0.1:8000", "ca.crt")
