"""A file of settings of one's own: as an experiment, as `nectar config` prints, as a record holds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from federation import run
from small import Small

from common.config.loading import load
from common.config.resolved import Config
from common.config.tables import experiment_names
from common.errors import ConfigError
from nectar.arguments import parse_arguments
from nectar.cli import main as nectar
from nectar.comparison.request import CompareOptions, parse
from nectar.comparison.scheduler import plan


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a writer of ``mine.yaml`` in the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write


def resolved(*words: str) -> Config:
    """Return what words resolve to, among them ``--config FILE`` as it is typed."""
    rest = [*words]
    file = None
    if "--config" in rest:
        at = rest.index("--config")
        _, file = rest.pop(at), rest.pop(at)
    return load(parse_arguments(rest, file=file))


@pytest.mark.extended
def test_what_is_printed_resolves_to_the_same(
    file: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is submitted does so where files say something else."""
    for experiment in ("", *sorted(experiment_names())[::10]):
        words = [experiment] if experiment else []
        assert nectar(["config", *words, "seed=4", "wire.images=float32"]) == 0
        printed = capsys.readouterr().out
        file(printed)
        config = resolved(*words, "seed=4", "wire.images=float32")
        assert resolved("--config", "mine.yaml") == config
        assert config.experiment == experiment
        assert load(config.to_run_config()) == config
    assert nectar(["config", "--config=mine.yaml"]) == 0
    again = capsys.readouterr().out
    assert [line.partition("  #")[0] for line in again.splitlines()] == [
        line.partition("  #")[0] for line in printed.splitlines()
    ]


def test_a_records_configuration_runs_again(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1))
    again = load({"config": str(record.directory / "config.yaml")})
    assert again == load(small(method="fedavg", rounds=1))


def test_it_lies_between_experiment_and_words(file: Callable[[str], Path]) -> None:
    path = file("rounds: 7\nseed: 2\nfeddm:\n  ipc: 3\n  real_batch: 16\n")
    config = resolved("feddm-mnist-small", "seed=5", "feddm.real_batch=8", "--config", "mine.yaml")
    plain = resolved("feddm-mnist-small")
    assert (config.rounds, config.seed, config.dataset) == (7, 5, "mnist")
    assert config.settings.model_dump() == plain.settings.model_dump() | {"ipc": 3, "real_batch": 8}
    assert config.origin["rounds"] == str(path)
    assert config.experiment == "feddm-mnist-small"


def test_it_departs_from_an_experiment(file: Callable[[str], Path]) -> None:
    file("base: feddm-mnist-small\nfeddm:\n  ipc: 3\n")
    config = resolved("--config", "mine.yaml")
    plain = resolved("feddm-mnist-small")
    assert config.settings.model_dump() == plain.settings.model_dump() | {"ipc": 3}
    assert config.federation == plain.federation


def test_its_paths_start_where_typed_ones_do(file: Callable[[str], Path], tmp_path: Path) -> None:
    file("output-dir: runs\ndata-dir: /srv/data\n")
    config = resolved("--config", "mine.yaml")
    assert (config.output_dir, config.data_dir) == (tmp_path / "runs", Path("/srv/data"))
    assert resolved("--config", "mine.yaml", "output-dir=there").output_dir == tmp_path / "there"


def test_no_server_makes_a_site_read_a_file(file: Callable[[str], Path]) -> None:
    path = file("a secret\n")
    with pytest.raises(ConfigError, match="cannot be sent to sites") as told:
        load({"config": str(path)}, policy=lambda key, named: None)
    assert "secret" not in str(told.value)


def test_a_comparison_gives_its_runs_the_resolved_configuration(
    file: Callable[[str], Path],
) -> None:
    """So that a file saved meanwhile changes none of them."""
    path = file("rounds: 7\nfedavg:\n  lr: 0.5\nfeddm:\n  ipc: 3\n")
    request = parse(
        CompareOptions(("feddm", "fedavg:batch=7"), "mine.yaml", seeds=1, typed="nectar compare it")
    )
    (cell,) = request.cells
    tasks = plan(cell, cell.variants, cell.seeds)
    path.unlink()
    for task in tasks:
        child = load(parse_arguments(task.words))
        assert child == task.config
        assert child.rounds == 7
        assert child.typed == "nectar compare it"
    assert tasks[1].config.settings.model_dump() | {"lr": 0.5, "batch": 7} == (
        tasks[1].config.settings.model_dump()
    )
