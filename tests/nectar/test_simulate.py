"""What `nectar simulate` decides before it starts a process, and the parts of its launching."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from nectar.engines.simulation.superlink import run_environment

from common.config.loading import load
from nectar import cli
from nectar.commands import simulate
from nectar.commands.simulate import available_cores, job_of, resources
from nectar.engines import processes
from nectar.engines.flower.app import SOURCE, require_app
from nectar.engines.flower.client import Job, LaunchError, NoiseFilter, Resources
from nectar.engines.processes import Interrupted, Interrupts
from nectar.engines.simulation import workspace

TINY = Resources(supernodes=4, client_cores=1, client_gpus=0.0, workers=2)


# -- the command line ---------------------------------------------------------------------------


def test_the_plain_command_holds_everything_flower_needs() -> None:
    command = Job(
        Path("/some where/app"), {"set": "a.b=1 c='x'", "rounds": 3}, TINY
    ).plain_command()
    words = shlex.split(command)
    start = words.index("flwr")
    assert words[0] == "env"
    assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in words[:start]
    assert words[start : start + 3] == ["flwr", "run", "/some where/app"]
    given_config = words[words.index("--run-config") + 1]
    assert parse_config_args([given_config]) == {"set": "a.b=1 c='x'", "rounds": 3}
    assert parse_config_args([words[words.index("--federation-config") + 1]]) == {
        "num-supernodes": 4,
        "client-resources-num-cpus": 1,
        "client-resources-num-gpus": 0.0,
        "init-args-num-cpus": 2,
    }
    assert "--stream" in words


def test_flower_takes_whole_cores_and_a_share_of_a_gpu() -> None:
    text = Resources(supernodes=10, client_cores=2, client_gpus=1, workers=3).federation_config()
    assert parse_config_args([text])["init-args-num-cpus"] == 6
    assert isinstance(parse_config_args([text])["client-resources-num-cpus"], int)
    assert isinstance(parse_config_args([text])["client-resources-num-gpus"], float)


# -- from the configuration ---------------------------------------------------------------------


def test_workers_follow_the_cores_unless_stated() -> None:
    assert resources(load({"set": "compute.client_cores=2"}), cores=8).workers == 4
    assert resources(load({"set": "compute.client_cores=4"}), cores=2).workers == 1
    assert resources(load({"set": "federation.sites=3"}), cores=64).workers == 3
    assert resources(load({"set": "compute.workers=7"}), cores=2).workers == 7
    assert available_cores() >= 1


def test_paths_of_this_environment_are_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NECTAR_RUNS", str(tmp_path / "runs"))
    config = load({"method": "fedavg", "rounds": 2, "set": "federation.sites=5"})
    job = job_of(config)
    assert job.app == SOURCE
    assert job.run_config == {k: v for k, v in config.to_run_config().items() if v != ""}
    assert job.run_config["data-dir"] == str(tmp_path / "data")
    assert job.run_config["output-dir"] == str(tmp_path / "runs")
    assert job.resources.supernodes == 5


def test_an_installation_without_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"no pyproject\.toml.*install Nectar again"):
        require_app(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(LaunchError, match="no Flower app"):
        require_app(tmp_path)
    require_app(SOURCE)


# -- the environment ----------------------------------------------------------------------------


def test_the_environment_is_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["here", "/abs"]))
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.setenv("FLWR_HOME", "/the/users")
    monkeypatch.setenv("NECTAR_DATA", "/data")
    found = run_environment(tmp_path)
    # or, below `uv run`, Ray packs what it writes itself
    assert found["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"
    assert found["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "here"), "/abs"]
    assert "RAY_ADDRESS" not in found
    assert set(found["NO_PROXY"].split(",")) == {"intranet", "127.0.0.1", "localhost"}
    assert Path(found["FLWR_HOME"]).is_relative_to(tmp_path)
    assert found["NECTAR_DATA"] == "/data"
    first, second, *_ = map(Path, found["PATH"].split(os.pathsep))
    assert first == tmp_path / "bin"
    assert (second / "flower-superlink").exists()
    assert found[workspace.MARK] == str(tmp_path)


# -- the log ------------------------------------------------------------------------------------

RAY_TIP = (
    "/x/ray/_private/worker.py:2051: FutureWarning: Tip: In future versions of Ray, Ray will no "
    "longer override accelerator visible devices env var if num_gpus=0 or num_gpus=None (default)."
)


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[92mINFO \x1b[0m:      \n",
        "\x1b[92mINFO \x1b[0m:      \t\n",
        "\x1b[92mINFO \x1b[0m:      Starting Flower Simulation\n",
        "INFO :      Starting logstream for run_id `17`\n",
        "\x1b[93mWARNING \x1b[0m:   "
        "Since flwr 1.32, default simulated SuperNodes changed from 10 to 2.\n",
        "INFO :      \tflwr federation simulation-config @none/default <x> --num-supernodes <N>",
        "Using SuperLink: nectar (127.0.0.1:1)\n",
        "\x1b[36m(ClientAppActor pid=8)\x1b[0m \x1b[93mWARNING \x1b[0m:   "
        "Manually terminating ClientAppActor\n",
        "(pid=6676) [mutex.cc : 452] RAW: Lock blocking 0x55bfb4503630   @ 0x7f5771398752",
        RAY_TIP,
    ],
)
def test_idle_lines_are_cut(line: str) -> None:
    assert not NoiseFilter().shows(line)


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[92mINFO \x1b[0m:      round 1: accuracy 0.93\n",
        "\x1b[91mERROR \x1b[0m:     \n",
        "\x1b[91mERROR \x1b[0m:     Starting Flower Simulation failed\n",
        "INFO :      Starting Flower Simulation of my own\n",
        "Traceback (most recent call last):",
        "  warnings.warn(",
        "(ClientAppActor pid=8) ValueError: no such class",
        "(raylet) A worker died: out of memory",
        "",
    ],
)
def test_everything_else_is_shown(line: str) -> None:
    assert NoiseFilter().shows(line)


def test_a_cut_warning_takes_its_source_line_with_it() -> None:
    noise = NoiseFilter()
    lines = [RAY_TIP, "  warnings.warn(", "  warnings.warn("]
    assert [noise.shows(line) for line in lines] == [False, False, True]


# -- marks, owners, signals ---------------------------------------------------------------------


def test_a_directory_is_its_owners_alone_and_leaves_room_for_ray() -> None:
    place = workspace.Workspace()
    try:
        assert place.directory.stat().st_mode & 0o777 == 0o700
        socket = "ray/session_2025-01-01_00-00-00_000000_4194304/sockets/plasma_store"
        assert len(os.fsencode(place.directory / socket)) <= 107
        workspace.sweep()
        assert place.directory.exists(), "its owner lives"
    finally:
        place.remove()
    assert not place.directory.exists()


def test_another_directory_of_such_a_name_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_bases", lambda: [tmp_path])
    for name in ("nectar-data", "nectar-1-2", "nectar-simulation-1-2.new", "nectar-simulation-1-2"):
        (tmp_path / name).mkdir()
    assert workspace.sweep() >= 1
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["nectar-1-2", "nectar-data", "nectar-simulation-1-2.new"]


def test_a_long_temporary_directory_is_left_for_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    place = workspace.Workspace()
    place.remove()
    assert place.directory.parent != long


def _sleeper(
    directory: Path, code: str = "import time; time.sleep(600)"
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True); {code}"],
        env={**os.environ, workspace.MARK: str(directory)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
)


def _lives(pid: int) -> bool:
    return pid in {process.pid for process in processes.living()}


def _patient(monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals) -> None:
    """Let these signals be waited for as long as a busy machine may take, and the others hardly at all."""
    steps = tuple((number, 120.0 if number in numbers else 0.3) for number, _ in workspace._STEPS)
    monkeypatch.setattr(workspace, "_STEPS", steps)


def test_only_marked_processes_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = _sleeper(tmp_path / "mine")
    stubborn = _sleeper(tmp_path / "stubborn", STUBBORN)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    other = _sleeper(tmp_path / "other")
    try:
        _patient(monkeypatch, signal.SIGINT)
        assert workspace.stop(str(tmp_path / "mine")) == []
        assert mine.wait(60) == -signal.SIGINT
        assert stubborn.poll() is None
        _patient(monkeypatch, signal.SIGKILL)
        assert workspace.stop(str(tmp_path / "stubborn")) == []
        assert stubborn.wait(60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (mine, stubborn, other):
            process.kill()
            process.wait()


def test_a_process_that_lost_its_mark_is_known_by_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _patient(monkeypatch, signal.SIGINT, signal.SIGKILL)
    # As Ray's workers do, the grandchild shows no mark: here it starts with an empty environment.
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(600)'], env={}); print(child.pid, flush=True); time.sleep(600)"
    )
    leader = _sleeper(tmp_path, code)
    assert leader.stdout is not None
    grandchild = int(leader.stdout.readline())
    assert grandchild not in workspace.marked_processes()
    assert workspace.stop(str(tmp_path)) == []
    leader.wait()
    deadline = time.monotonic() + 120
    while _lives(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(grandchild)


def test_the_remains_of_a_killed_wrapper_are_swept_and_nobody_elses() -> None:
    create_and_print = (
        "from nectar.engines.simulation import workspace; import time; "
        "here = workspace.Workspace(); print(here.directory, flush=True); time.sleep(600)"
    )
    wrapper = subprocess.Popen(
        [sys.executable, "-c", create_and_print], stdout=subprocess.PIPE, text=True, cwd=SOURCE
    )
    assert wrapper.stdout is not None
    directory = Path(wrapper.stdout.readline().strip())
    orphan = _sleeper(directory)
    try:
        workspace.sweep()
        assert orphan.poll() is None, "its wrapper is alive"
        assert directory.exists()
        wrapper.kill()
        wrapper.wait()
        assert workspace.sweep() >= 1
        assert orphan.wait(60) != 0
        assert not directory.exists()
    finally:
        for process in (wrapper, orphan):
            process.kill()
            process.wait()


def test_the_first_signal_interrupts_and_later_ones_are_ignored() -> None:
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Interrupted) as caught, interrupts:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.number == signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    finally:
        interrupts.restore()
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts = Interrupts()
    try:
        with interrupts:
            signal.raise_signal(signal.SIGHUP)
    finally:
        interrupts.restore()
        signal.signal(signal.SIGHUP, before)


def test_print_only_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert (
        cli.main(["simulate", "--print", "method=fedavg", "federation.sites=3", "output-dir=/runs"])
        == 0
    )
    words = shlex.split(capsys.readouterr().out)
    config = parse_config_args([words[words.index("--run-config") + 1]])
    asked = load({"method": "fedavg", "set": "federation.sites=3", "output-dir": "/runs"})
    assert load(config) == asked
    assert "typed" not in config  # who types that line types another
    assert "num-supernodes=3" in words[words.index("--federation-config") + 1]


@pytest.mark.parametrize("found", [True, False])
def test_clients_share_the_gpus_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: bool
) -> None:
    monkeypatch.setattr(simulate, "_may_have_gpu", lambda: True)
    monkeypatch.setattr("common.learning.compute.gpus", lambda: ("0", "1") * found)
    monkeypatch.setattr(simulate, "available_cores", lambda: 5)
    job = job_of(load({"set": "federation.sites=9"}))
    assert load(job.run_config).compute.device == "auto"
    assert (job.resources.workers, job.resources.client_gpus) == (5, 1 / 3 if found else 0)
    said = "5 clients at a time, each on 0.33 of a GPU (compute.client_gpus)"
    assert (said in capsys.readouterr().err) == found
    assert job_of(load({"set": "compute.client_gpus=0.5"})).resources.client_gpus == 0.5
    cluster = load(job_of(load({}), "there:1").run_config).compute
    assert (cluster.device, cluster.client_gpus) == ("cpu" if found else "auto", 0)
    monkeypatch.setattr(simulate, "_may_have_gpu", lambda: False)
    assert load(job_of(load({})).run_config).compute.device == "auto"


def test_without_ray_a_sentence_says_how_to_get_it_and_nothing_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert cli.main(["simulate", "rounds=1", f"output-dir={tmp_path / 'runs'}"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "pip install 'flwr[simulation]'" in message
    assert "`nectar run`" in message
    assert not (tmp_path / "runs").exists()
