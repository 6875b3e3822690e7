"""`nectar site`: what a SuperNode starts for each message is a fork of a process that has imported everything.

That process ends when no message came for a while, and is started again by the next.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from deployment import ROOT, signal_session
from waiting import until

from nectar.cli import main as nectar
from nectar.engines.site.place import Place

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "A site's program leaves nothing when killed, and ends its work within seconds of `flwr stop`",
)

#: the site's program around a SuperNode that is a shell script, and a ClientApp and imports that are pieces of Python
DRIVER = """
import os, sys
from nectar.engines.site import warm
from nectar.engines.site.parent import Parent
from nectar.engines.site.place import place

supernode, app, imports, idle = sys.argv[1:]

def prepare():
    exec(imports)
    return lambda: exec(app)

with place() as here:
    variables = os.environ | here.environment("", ["/usr/bin", "/bin"]) | {"HERE": str(here.folder)}
    parent = Parent(here.listener, ["/bin/sh", "-c", supernode], variables)
    outcome = parent.serve()
    if outcome is None:
        warm.serve(here.listener, parent.group, prepare, float(idle))
sys.exit(outcome)
"""

#: a ClientApp that says whose fork it is, and a SuperNode's wait until that process is gone
WHOSE = "open(os.environ['HERE'] + '/parent', 'w').write(str(os.getppid())); print(f'of: {os.getppid()}', flush=True)"
ENDED = "while kill -0 $(cat $HERE/parent) 2>/dev/null; do sleep .02; done"

AS_LONG_AS_IT_TAKES = 300.0


class Site:
    """The program at work; `said` holds what came on its standard output and errors so far, but for its own lines."""

    def __init__(
        self,
        directory: Path,
        supernode: str,
        app: str = "",
        imports: str = "",
        idle: float = AS_LONG_AS_IT_TAKES,
    ) -> None:
        self.log = directory / "log"
        self.temporary = Path(tempfile.mkdtemp(prefix="site-"))  # short: a socket lies in it
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", DRIVER, supernode, app, imports, str(idle)],
                env=os.environ | {"TMPDIR": str(self.temporary)},
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


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    started: list[Site] = []

    def start(*words: Any, **options: Any) -> Site:
        started.append(Site(tmp_path, *words, **options))
        return started[-1]

    yield start
    for one in started:
        signal_session(one.process.pid, signal.SIGKILL)
        one.process.wait()
        shutil.rmtree(one.temporary)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_fork_is_what_was_called_and_its_exit_code_comes_back(site: Callable[..., Site]) -> None:
    app = (
        "print(sys.argv, os.getcwd(), os.environ['A'], 'HERE' in os.environ, flush=True); "
        "print(sys.stdin.read(), file=sys.stderr, flush=True); os._exit(7)"
    )
    one = site(
        "cd /usr; unset HERE; echo asked | A=1 flwr-clientapp --token 'a b' ''; echo $?", app
    )
    assert one.process.wait(300) == 0
    assert one.said == "['flwr-clientapp', '--token', 'a b', ''] /usr 1 False\nasked\n\n7\n"


def test_a_fork_that_a_signal_ends_says_so_and_the_next_one_works(
    site: Callable[..., Site],
) -> None:
    one = site(
        "flwr-clientapp 9; echo $?; flwr-clientapp 0; echo $?",
        "os.kill(os.getpid(), int(sys.argv[1]))",
    )
    assert one.process.wait(300) == 0
    assert one.said == "137\n0\n"


def test_no_other_user_reads_the_words_or_reaches_the_socket(site: Callable[..., Site]) -> None:
    supernode = (
        "ls -ld $HERE $HERE/socket; flwr-clientapp --token $((41 * 271)) & echo stub: $!; wait"
    )
    app = "print(f'fork: {os.getpid()}', flush=True); __import__('time').sleep(600)"
    one = site(supernode, app)
    for name in ("fork", "stub"):
        words = Path(f"/proc/{one.number(name)}/cmdline").read_bytes()
        assert words
        assert b"11111" not in words
    folder, socket_, *_ = one.said.splitlines()
    assert folder.startswith("drwx------")
    assert socket_.startswith("srw-------")


def test_a_fork_ends_with_its_stub(site: Callable[..., Site]) -> None:
    app = "print(f'fork: {os.getpid()}', flush=True); __import__('time').sleep(600)"
    one = site("flwr-clientapp & echo stub: $!; sleep 600", app)
    fork = one.number("fork")
    os.kill(one.number("stub"), signal.SIGKILL)
    until(lambda: not alive(fork))
    assert one.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once_and_nothing_is_left(
    site: Callable[..., Site], number: signal.Signals
) -> None:
    supernode = "trap 'echo heard; exit 3' TERM INT; sleep 600 & echo child: $!; flwr-clientapp & wait; wait"
    app = "print(f'fork: {os.getpid()}', flush=True); __import__('time').sleep(600)"
    one = site(supernode, app)
    others = [one.number("child"), one.number("fork")]
    os.killpg(one.process.pid, number)  # as a terminal does
    assert one.process.wait(300) == 3
    assert one.said.count("heard") == 1
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_imports_ends_it_with_its_supernode(
    site: Callable[..., Site], number: signal.Signals
) -> None:
    supernode = "trap 'echo heard; exit 3' TERM INT; echo listens; sleep 600 & wait"
    one = site(
        supernode,
        imports="print(f'imports: {os.getpid()}', flush=True); import time; time.sleep(600)",
    )
    importing = one.number("imports")
    until(lambda: "listens" in one.said)
    os.killpg(one.process.pid, number)  # as a terminal does
    assert one.process.wait(300) == 3
    assert one.said.count("heard") == 1
    assert not alive(importing)
    assert "Traceback" not in one.said
    assert one.left() == []


def test_what_cannot_be_imported_ends_it_before_any_message(site: Callable[..., Site]) -> None:
    one = site("echo node: $$; sleep 600", imports="import no_such_module")
    node = one.number("node") if "node: " in one.said else 0
    assert one.process.wait(300) == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in one.said
    assert not (node and alive(node))
    assert one.left() == []


def test_rounds_are_forks_of_one_process_which_ends_after_a_while_and_starts_again(
    site: Callable[..., Site],
) -> None:
    one = site("flwr-clientapp; flwr-clientapp; echo $?", WHOSE)
    assert one.process.wait(300) == 0
    first, second, code = one.said.splitlines()
    assert (first, code) == (second, "0")
    one = site(f"flwr-clientapp; {ENDED}; flwr-clientapp; echo $?", WHOSE, idle=0.2)
    assert one.process.wait(300) == 0
    first, second, code = one.said.splitlines()
    assert (first != second, code) == (True, "0")
    assert not alive(int(second.split()[1]))


def test_who_looks_whether_it_lives_has_nothing_wait(site: Callable[..., Site]) -> None:
    one = site("sleep 600")
    for times in (1, 2):
        until(lambda n=times: one.log.read_text().count("ends, as no message waits") == n)
        (place,) = one.temporary.rglob("socket")
        with socket.socket(socket.AF_UNIX) as looking:
            looking.connect(str(place))


def test_no_message_is_lost_that_comes_while_it_ends(site: Callable[..., Site]) -> None:
    calls = (
        "for i in 1 2 3 4 5 6 7 8; do flwr-clientapp & flwr-clientapp && wait $! && echo fine; done"
    )
    one = site(calls, WHOSE, idle=0.0)
    assert one.process.wait(300) == 0
    lines = one.said.splitlines()
    assert lines.count("fine") == 8
    assert len({line for line in lines if line.startswith("of: ")}) > 1, "it did end"


def test_when_it_is_killed_its_forks_end_and_the_next_message_works(
    site: Callable[..., Site],
) -> None:
    app = (
        "print(f'fork{sys.argv[1]}: {os.getpid()}', flush=True)\n"
        "if sys.argv[1] == '1': os.kill(os.getppid(), 9); __import__('time').sleep(600)"
    )
    one = site("flwr-clientapp 1; echo $?; flwr-clientapp 2; echo $?", app)
    assert one.process.wait(300) == 0
    assert [line for line in one.said.splitlines() if ":" not in line] == ["1", "0"]
    assert not alive(one.number("fork1"))


def test_imports_that_fail_later_cost_the_message_that_waits_and_no_other(
    site: Callable[..., Site],
) -> None:
    calls = [
        "flwr-clientapp; echo $?",
        f"{ENDED}; touch $HERE/bad; flwr-clientapp; echo $?",
        "rm $HERE/bad; flwr-clientapp; echo $?",
    ]
    imports = (
        "import pathlib, tempfile; assert not [*pathlib.Path(tempfile.gettempdir()).glob('*/bad')]"
    )
    one = site("; ".join(calls), WHOSE, imports, 0.0)
    assert one.process.wait(300) == 0
    assert [line for line in one.said.splitlines() if line.isdigit()] == ["0", "1", "0"]
    assert "AssertionError" in one.said


def test_when_the_supernode_is_killed_everything_ends(site: Callable[..., Site]) -> None:
    app = "print(f'fork: {os.getpid()}', flush=True); __import__('time').sleep(600)"
    one = site("echo node: $$; sleep 600 & echo child: $!; flwr-clientapp", app)
    others = [one.number("child"), one.number("fork")]
    os.kill(one.number("node"), signal.SIGKILL)
    assert one.process.wait(300) == 128 + signal.SIGKILL
    assert not [pid for pid in others if alive(pid)]
    assert one.left() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_when_the_program_is_killed_its_supernode_ends(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    one = site("echo node: $$; sleep 600 & wait")
    node = one.number("node")
    one.process.kill()
    until(lambda: not alive(node))
    left = one.left()
    assert len(left) == 1
    again = subprocess.run(
        [sys.executable, "-c", DRIVER, "exit 4", "", "", "0"],
        env=os.environ | {"TMPDIR": str(one.temporary)},
    )
    assert again.returncode == 4
    assert one.left() == [], "what a killed program left goes at the next start"


def test_without_its_parent_the_stub_starts_the_real_program_or_where_pinned_nothing(
    tmp_path: Path,
) -> None:
    real = tmp_path / "real program"
    real.write_text('#!/bin/sh\necho "real:" "$@"\nexit 6\n')
    real.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(tmp_path / "socket"))
        here = Place(tmp_path, gone)
    pinned = here.alone(real)
    for variables, code, message in (
        (here.environment(str(real), []), 6, "real: --token a b\n"),
        (pinned, 1, ""),
    ):
        program = shutil.which("flwr-clientapp", path=variables["PATH"])
        done = subprocess.run(
            [str(program), "--token", "a b"], env=variables, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (code, message)
    assert sorted(p.name for p in Path(pinned["PATH"]).iterdir()) == ["flwr-clientapp", real.name]
    assert "nectar site: its program is gone" in done.stderr


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


def test_the_end_of_a_run_is_told_from_a_superlink_that_is_away() -> None:
    from nectar.engines.site.clientapp import is_over, watch

    link, stopped = Link(200, 0, 502, 401, 404, 403), list[int]()
    watch(lambda: is_over(link, 5, 7), lambda: stopped.append(len(link.asked)), every=0.001)  # type: ignore[arg-type]
    assert stopped == [6]
    assert set(link.asked) == {(5, 7)}


def test_a_task_is_looked_after_while_its_message_is_still_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that ends while its message is on the way: the rest never comes, and the fork must not wait for it."""
    from nectar.engines.site import clientapp

    given_up = threading.Event()
    seen: list[object] = []

    class Node:
        def PullTaskInput(self, request: object) -> SimpleNamespace:
            return SimpleNamespace(
                context=SimpleNamespace(node_id=5), run=SimpleNamespace(run_id=7)
            )

    def give_up(client: object, message: object, context: object) -> None:
        seen.append(message)
        given_up.set()

    def pull(client: Node) -> tuple[object, ...]:
        client.PullTaskInput(None)
        assert given_up.wait(300), "nobody looked after the task"
        return ("message", "context", "run", "fab")

    fleet = SimpleNamespace(client=lambda: Link(200, 403))
    monkeypatch.setattr(clientapp, "give_up", give_up)
    monkeypatch.setattr(clientapp.watch, "__defaults__", (0.001,))
    task = clientapp.looked_after(Node(), fleet, pull)  # type: ignore[arg-type]
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
