"""The command `nectar`: what it prints, its exit codes, and what it does without."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from places import ROOT

from common.config.layers import names
from common.config.schema import section_classes
from common.config.tables import experiments
from common.errors import NectarError
from common.methods import METHODS
from common.settings.sections import RunSettings
from nectar import cli, command_line
from nectar.commands.run import log_plainly


def fake(monkeypatch: pytest.MonkeyPatch, main: Any, more_help: Any = None) -> None:
    """Make every command the given one."""
    made = command_line.command("It is fake.", more_help)(main)
    module = SimpleNamespace(main=made)
    monkeypatch.setattr(command_line.importlib, "import_module", lambda name: module)


def test_config_prints_the_resolved_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "digits-alpha001", "method=fedavg", "fedavg.lr=0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "method: fedavg  # the command line" in lines
    assert "  alpha: 0.01  # conf/table/digits.yaml (alpha001)" in lines
    assert "rounds: 5  # conf/dataset/digits.yaml" in lines
    assert "  lr: 0.5  # the command line" in lines


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_lists_every_command_with_its_summary(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "Nectar: federated learning from distilled data, on Flower." in out
    assert max(map(len, out.splitlines())) <= 80
    modules = {path.stem for path in (ROOT / "nectar" / "commands").glob("[!_]*.py")}
    assert modules == set(command_line.SUMMARIES)
    for name in modules:
        line = next(line for line in out.splitlines() if line.startswith(f"  {name} "))
        assert len(line.split()) > 2


@pytest.mark.parametrize("name", command_line.SUMMARIES)
def test_the_help_of_each_command_fits_80_columns_and_explains_every_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "-h"]) == 0
    usage = capsys.readouterr().out.partition("Methods:")[0].partition("Mechanisms and")[0]
    assert max(map(len, usage.splitlines())) <= 80
    command = command_line.COMMANDS.get_command(click.Context(command_line.COMMANDS), name)
    for one in [command, *getattr(command, "commands", {}).values()]:
        assert all(option.help for option in one.params), one.name


def test_a_run_writes_its_lines_as_they_are(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of ours had "INFO :" before it, and in a terminal's log colours."""
    logger = logging.getLogger("flwr")
    for handler in [each for each in logger.handlers if hasattr(each, "colored")]:
        monkeypatch.setattr(handler, "stream", sys.stderr)
    log_plainly()
    logger.info("round 1/2: accuracy 0.9")
    logger.warning("round 1: rejected a: it is late")
    assert capfd.readouterr().err == (
        "round 1/2: accuracy 0.9\nWARNING: round 1: rejected a: it is late\n"
    )


@pytest.mark.extended
def test_a_shell_is_told_what_completes_a_word() -> None:
    asked = {"_NECTAR_COMPLETE": "bash_complete", "COMP_WORDS": "nectar run partition.al"}
    done = subprocess.run(
        [sys.executable, "-m", "nectar.cli"],
        cwd=ROOT,
        env=os.environ | asked | {"COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "plain,partition.alpha="


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("nectar 0.")


def test_a_commands_exit_code_and_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(words: tuple[str, ...]) -> int:
        return len(words)

    fake(monkeypatch, click.argument("words", nargs=-1)(counted))
    assert cli.main(["config", "a", "b", "c"]) == 3

    def interrupted() -> int:
        raise KeyboardInterrupt

    fake(monkeypatch, interrupted)
    assert cli.main(["config"]) == 130

    def refused() -> int:
        raise NectarError("no.")

    fake(monkeypatch, refused)
    assert cli.main(["config"]) == 2


def test_help_of_a_command_never_runs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> int:
        pytest.fail("it ran")

    fake(monkeypatch, run)
    for words in (["config", "--help"], ["config", "rounds=3", "-h"], ["help", "config"]):
        assert cli.main(words) == 0
        assert "It is fake." in capsys.readouterr().out
    fake(monkeypatch, run, more_help=lambda words: f"of {words}")
    assert cli.main(["config", "--help", "a", "b"]) == 0
    assert capsys.readouterr().out == "of ['a', 'b']\n"


def test_help_lists_all_methods_data_sets_sections_tables_and_experiments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["config", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0].rstrip(":") for line in lines if line.startswith("  ")}
    expected = {*METHODS, *names("dataset"), *names("table"), *section_classes(), "run"}
    assert expected <= listed
    cells = {word for line in lines if line.startswith(" " * 6) for word in line.split(", ")}
    assert set(experiments()) <= {word.strip(" ,") for word in cells}
    marked = [line for line in lines if " [-small]: " in line]
    assert any(line.startswith("  feddm-2 [-small]: FedDM Table 2") for line in marked)
    assert not any(line.startswith("  digits") for line in marked)


def test_help_lists_every_field_with_default_range_and_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for section, cls in section_classes().items():
        assert cli.main(["config", "--help", section]) == 0
        out = capsys.readouterr().out
        for name, field in cls.model_fields.items():
            assert f"  {section}.{name}=" in out
            assert str(field.description).split(";")[0].split()[0] in out
    assert cli.main(["config", "--help", "run"]) == 0
    out = capsys.readouterr().out
    for name in [*RunSettings.model_fields, "experiment", "output-dir", "data-dir", "resume"]:
        assert f"  {name}=" in out


def test_help_of_an_import_path_lists_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--help", "flwr.serverapp.strategy:QFedAvg"]) == 0
    out = capsys.readouterr().out
    assert "  strategy.client_learning_rate (required)\n" in out
    assert "  strategy.q=0.1\n" in out


@pytest.mark.extended
def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m nectar.cli config | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in ("0", "141")
    assert done.stderr == ""


# ---- what cannot work is one sentence and exit code 2, before a federation is started ----------------


def test_a_log_that_is_no_terminal_has_no_colours(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["method=real", "image_training.epochs=0", "rounds=1", f"output-dir={tmp_path}"]
    assert cli.main(["run", *words]) == 0
    message = capfd.readouterr()
    assert "\x1b[" not in message.err + message.out
