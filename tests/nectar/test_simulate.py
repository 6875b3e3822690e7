"""What `nectar simulate` decides before it starts a process, and the parts of its launching."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from unittest import mock

import pytest
from flwr.common.config import parse_config_args

from common.config.loading import load
from common.settings.sections import ComputeSettings
from nectar import cli
from nectar.commands import simulate
from nectar.commands.simulate import available_cores, workers_at_a_time
from nectar.engines import local_ray
from nectar.engines.flower.app import SOURCE, require_app
from nectar.engines.flower.errors import LaunchError
from nectar.engines.flower.plain_command import plain_command
from nectar.engines.private_folder import private_folder
from nectar.engines.processes import Interrupted, until_interrupted

# -- the command line ---------------------------------------------------------------------------


def test_the_plain_command_holds_everything_flower_needs() -> None:
    more = "federation.sites=4 compute.client_cores=2 compute.client_gpus=1 fedavg.epochs=1"
    config = load({"method": "fedavg", "rounds": 3, "set": more})
    words = shlex.split(plain_command(Path("/some where/app"), config, 3))
    start = words.index("flwr")
    assert words[0] == "env"
    assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in words[:start]
    assert words[start : start + 3] == ["flwr", "run", "/some where/app"]
    given = load(parse_config_args([words[words.index("--run-config") + 1]]))
    assert given.digest() == config.digest()
    federation = parse_config_args([words[words.index("--federation-config") + 1]])
    assert federation == {
        "num-supernodes": 4,
        "client-resources-num-cpus": 2,
        "client-resources-num-gpus": 1.0,
        "init-args-num-cpus": 6,
    }
    kinds = [type(federation[f"client-resources-num-{each}"]) for each in ("cpus", "gpus")]
    assert kinds == [int, float]
    assert "--stream" in words
    there = shlex.split(plain_command(Path("/app"), config, 3, "10.0.0.1:6379"))
    assert "RAY_ADDRESS=10.0.0.1:6379" in there
    assert not any("init-args" in word for word in there)


# -- from the configuration ---------------------------------------------------------------------


def test_workers_follow_the_cores_unless_stated() -> None:
    assert workers_at_a_time(load({"set": "compute.client_cores=2"}), cores=8) == 4
    assert workers_at_a_time(load({"set": "compute.client_cores=4"}), cores=2) == 1
    assert workers_at_a_time(load({"set": "federation.sites=3"}), cores=64) == 3
    assert workers_at_a_time(load({"set": "compute.workers=7"}), cores=2) == 7
    assert available_cores() >= 1


def test_an_installation_without_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"no pyproject\.toml.*install Nectar again"):
        require_app(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(LaunchError, match="no Flower app"):
        require_app(tmp_path)
    require_app(SOURCE)


# -- Ray's folder, signals ----------------------------------------------------------------------


@pytest.fixture
def bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let temporary files lie below ``tmp_path``, whose name is too long for Ray's sockets."""
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    return long


def test_rays_folder_is_its_owners_alone_and_leaves_room_for_its_sockets(bases: Path) -> None:
    with private_folder(local_ray._PREFIX, local_ray._base()) as place:
        assert place.parent != bases
        assert place.stat().st_mode & 0o777 == 0o700
        socket = "session_2025-01-01_00-00-00_000000_4194304/sockets/plasma_store"
        assert len(os.fsencode(place / socket)) <= 107
    assert not place.exists()


def test_what_a_killed_process_left_goes_and_what_another_has_stays(tmp_path: Path) -> None:
    with private_folder("nectar-ray-", tmp_path) as living:
        (tmp_path / "nectar-ray-left").mkdir()
        (tmp_path / "nectar-other").mkdir()
        with private_folder("nectar-ray-", tmp_path) as own:
            assert {*tmp_path.iterdir()} == {living, own, tmp_path / "nectar-other"}


def test_a_cluster_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(LaunchError, match=r"No Ray cluster answers at 127\.0\.0\.1:1 \(.*refused"):
        local_ray.require_cluster("127.0.0.1:1")


def test_the_first_signal_interrupts_and_later_ones_are_ignored() -> None:
    """Those that come while what was interrupted puts things in order."""
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            cleaned.append(True)

    with pytest.raises(Interrupted) as caught:
        until_interrupted(work)
    assert (caught.value.number, cleaned) == (signal.SIGTERM, [True])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_interrupted_as_ray_begins_to_start_waits_for_it_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes within Thread.start, which waits for the thread to begin."""
    begun, done, start = threading.Event(), [], threading.Thread.start

    def init(*_: object, _temp_dir: str, **__: object) -> None:
        begun.set()
        time.sleep(0.2)
        done.append((Path(_temp_dir) / "session").mkdir())

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        begun.wait()
        raise Interrupted(signal.SIGTERM)

    ray = types.SimpleNamespace(init=init, shutdown=lambda: done.append(None))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("nectar.engines.local_ray._base", lambda: tmp_path)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with (
        mock.patch.dict(os.environ),
        pytest.raises(Interrupted),
        local_ray.ray_started(1, "", verbose=True),
    ):
        pytest.fail("it had been interrupted before")
    assert (len(done), [*tmp_path.iterdir()]) == (2, [])


def test_an_interrupted_simulation_ends_though_a_thread_of_the_engine_does_not() -> None:
    """A thread that waits for a result of Ray's, of an actor that has ended, never gets one."""
    code = """if True:
        import contextlib, threading
        from nectar import cli
        from nectar.commands import simulate as command
        from nectar.engines import simulation
        from nectar.engines.processes import Interrupted

        def simulate(*_, **__):
            threading.Thread(target=threading.Event().wait).start()
            raise Interrupted(15)

        simulation.simulate = simulate
        command.ray_started = lambda *_, **__: contextlib.nullcontext(lambda: None)
        raise SystemExit(cli.main(["simulate"]))
    """
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (143, "Interrupted (SIGTERM).")


def test_what_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        until_interrupted(lambda: signal.raise_signal(signal.SIGHUP))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_print_only_prints_and_states_the_paths_of_this_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    assert (
        cli.main(["simulate", "--print", "method=fedavg", "federation.sites=3", "output-dir=/runs"])
        == 0
    )
    words = shlex.split(capsys.readouterr().out)
    assert words[words.index("run") + 1] == str(SOURCE)
    config = parse_config_args([words[words.index("--run-config") + 1]])
    asked = load({"method": "fedavg", "set": "federation.sites=3", "output-dir": "/runs"})
    assert load(config) == asked
    assert config["data-dir"] == str(tmp_path / "data")
    assert "typed" not in config  # who types that line types another
    assert "num-supernodes=3" in words[words.index("--federation-config") + 1]


@pytest.mark.parametrize("found", [True, False])
def test_clients_share_the_gpus_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: bool
) -> None:
    monkeypatch.setattr(simulate, "_may_have_gpu", lambda: True)
    monkeypatch.setattr("common.learning.compute.gpus", lambda: ("0", "1") * found)
    monkeypatch.setattr(simulate, "available_cores", lambda: 5)

    def compute_of(text: str, cluster: str = "") -> ComputeSettings:
        return simulate.with_gpu_shares(load({"set": text}), cluster).compute

    shared = compute_of("federation.sites=9")
    assert (shared.device, shared.client_gpus) == ("auto", 1 / 3 if found else 0)
    said = "5 clients at a time, each on 0.33 of a GPU (compute.client_gpus)"
    assert (said in capsys.readouterr().err) == found
    assert compute_of("compute.client_gpus=0.5").client_gpus == 0.5
    on_cluster = compute_of("", "there:1")
    assert (on_cluster.device, on_cluster.client_gpus) == ("cpu" if found else "auto", 0)
    monkeypatch.setattr(simulate, "_may_have_gpu", lambda: False)
    assert compute_of("").device == "auto"


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
