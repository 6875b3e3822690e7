"""The command `nectar`: what it prints, its exit codes, and what it does without."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT

from common.config.layers import names
from common.config.schema import section_classes
from common.config.tables import experiments
from common.errors import NectarError
from common.methods import METHODS
from common.settings.sections import RunSettings
from nectar import cli, command_line
from nectar.commands.run import _log_plainly


def fake(monkeypatch: pytest.MonkeyPatch, main: Any, **more: Any) -> None:
    """Make every command the given one."""
    module = SimpleNamespace(HELP="It is fake.", main=main, **more)
    monkeypatch.setattr(command_line.importlib, "import_module", lambda name: module)


def test_config_prints_the_resolved_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "digits-alpha001", "method=fedavg", "fedavg.lr=0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "method: fedavg  # the command line" in lines
    assert "  alpha: 0.01  # conf/table/digits.yaml (alpha001)" in lines
    assert "rounds: 5  # conf/dataset/digits.yaml" in lines
    assert "  lr: 0.5  # the command line" in lines


def test_an_error_is_its_sentences_on_stderr_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["config", "feddm.icp=3", "rounds=two"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "nectar: feddm.icp on the command line is not a setting: did you mean feddm.ipc?",
        "nectar: rounds='two' on the command line must be a whole number, at least 1.",
    ]


def test_an_unknown_command_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["confg"]) == 2
    assert capsys.readouterr().err == (
        "nectar: there is no command 'confg': did you mean `nectar config`?\n"
    )
    assert cli.main(["qqqqq"]) == 2
    assert "nectar --help" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_lists_every_command_with_its_summary(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "Nectar: federated learning from distilled data, on Flower." in out
    assert max(map(len, out.splitlines())) <= 80
    modules = {
        path.stem.replace("_", "-") for path in (ROOT / "nectar" / "commands").glob("[!_]*.py")
    }
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
    command = command_line.COMMANDS.get_command(None, name)  # type: ignore[attr-defined]
    for one in [command, *getattr(command, "commands", {}).values()]:
        assert all(option.help for option in one.params), one.name


def test_a_run_writes_its_lines_as_they_are(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of ours had "INFO :" before it, and in a terminal's log colours."""
    logger = logging.getLogger("flwr")
    for handler in [each for each in logger.handlers if hasattr(each, "colored")]:
        monkeypatch.setattr(handler, "stream", sys.stderr)
    _log_plainly()
    logger.info("round 1/2: accuracy 0.9")
    logger.warning("round 1: rejected a: it is late")
    assert capfd.readouterr().err == (
        "round 1/2: accuracy 0.9\nWARNING: round 1: rejected a: it is late\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --rounds 3", "settings are words: did you mean rounds=...?"),
        ("run --lr=3", "settings are words: did you mean image_training.lr=...?"),
        ("run lr=0.1", "lacks its section: did you mean image_training.lr?"),
        ("run fedprox lr=0.1", "lacks its section: did you mean fedprox.lr?"),
        ("runs --jsn", "option --jsn is unknown: did you mean --json?"),
        ("run --repeat 3", "`nectar compare METHOD --seeds N` runs it over seeds."),
        ("runs --last", "the newest is listed first, and `latest` names it"),
        ("run fedavg --batch-size 3", "settings are words: did you mean fedavg.batch=...?"),
        ("run --gpu", "settings are words: did you mean compute.device=cuda?"),
        ("fedavg", "there is no command 'fedavg': did you mean `nectar run fedavg`?"),
        ("Fed-Avg rounds=3", "did you mean `nectar run fedavg`?"),
        ("config --help fed-avg", "fed-avg is unknown, the nearest is fedavg: "),
        ("config --help MNIST", "MNIST is unknown: `nectar config --help` lists all."),
        ("config --help epochs", "epochs is a setting of image_training, fedavg, fedprox, "),
        ("config --help batch_size", "the nearest is image_training.batch: "),
        ("config --help fedavg.nosuch", "fedavg has no setting 'nosuch': `nectar config --help fe"),
        ("run fedavg privacy.epsilon=0", "means no privacy here: give one above 0"),
        ("run fedavg --federation x", "it is an option of `flwr run`."),
        ("run fedavg partition.alpha = 0.1", "without spaces around '='"),
        ("run fedavg fedprox", "'fedprox' is another: `nectar compare` takes several."),
        ("runs --delete x", "removed by `nectar runs --remove`"),
        ("keys create", "did you mean `nectar keys ca`?"),
        ("submit fedavg rounds=3", "'fedavg' is a method: the connection is named before it."),
        ("submit 127.0.0.1:99999 --insecure", "a port is a number from 1 to 65535"),
        ("submit https://a.org", "no https:// stands before the host"),
        ("site init north no.kit --data .", "there is no kit at "),
        ("compare fedavg --tune lr=0.1,0.3", "begin with fedavg, as in fedavg.lr=0.1,0.3."),
        ("run --dry-run --dry-run", "--dry-run is given twice: give it once."),
        ("run --config a --config=b", "--config is given twice: give it once."),
        ("run --config", "'--config' requires an argument"),
        ("keys cu", "there is no command 'cu': did you mean `nectar keys ca`?"),
        ("run feddm-cifar1", "is unknown, the nearest are feddm-cifar10, "),
    ],
)
def test_a_slip_is_answered_with_the_one_word_that_was_meant(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert len(err) < 250


def test_a_shell_is_told_what_completes_a_word() -> None:
    asked = {"_NECTAR_COMPLETE": "complete_bash", "COMP_WORDS": "nectar run partition.al"}
    done = subprocess.run(
        [sys.executable, "-m", "nectar.cli"],
        cwd=ROOT,
        env=os.environ | asked | {"COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "partition.alpha="


LINES = {
    "report": ["report", "gone"],
    "export": ["export", "gone"],
    "compare": ["compare", "feddm"],
    "fetch": ["fetch", "lab", "latest"],
    "submit": ["submit", "lab"],
}


@pytest.mark.parametrize("key", ["privacy.epsilon", "fedavg.epochs", "rounds", "output-dir"])
def test_the_help_of_a_setting_is_its_own(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--help", key]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"  {key}=")]
    assert len(lines) == 1


@pytest.mark.parametrize("command", LINES)
def test_an_output_that_cannot_be_is_refused_before_any_work(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The record and the connection that the lines name are not there: nobody has looked for them yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    bad = {
        "": "--output='' names nothing: give it ",
        "file/new": f"lies below {tmp_path / 'file'}, which is a file: name another one.",
        "file": "--output=file is a file, and a folder is needed: name another one.",
    }
    if command == "report":
        gone = "lies in a directory that is not there: make"
        bad = {"": bad[""], "gone/new.html": gone, "file": "must name an HTML file"}
    elif command == "export":
        bad["file"] = "file is there already and is left as it is"
    for place, message in bad.items():
        assert cli.main([*LINES[command], f"--output={place}"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("nectar 0.")


def test_a_commands_exit_code_and_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(words: list[str]) -> int:
        return len(words)

    fake(monkeypatch, counted)
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


def test_help_states_a_setting_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["config", "--help", "feddm"])
    out = capsys.readouterr().out
    meaning, facts = "learning rate of the pixels", "a number, above 0; symbol eta_c"
    default, run = "feddm.image_lr=1.0", "(10.0 with dataset=digits, the default)"
    assert f"  {default}   {run}\n      {meaning}\n      {facts}\n" in out


def test_help_of_an_import_path_lists_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--help", "flwr.serverapp.strategy:QFedAvg"]) == 0
    out = capsys.readouterr().out
    assert "  strategy.client_learning_rate (required)\n" in out
    assert "  strategy.q=0.1\n" in out


def test_help_of_an_unknown_name_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["config", "--help", "partion"]) == 2
    assert "the nearest is partition" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["config"], ["config", "--help", "feddm"]])
def test_config_needs_no_torch_no_flower_no_ray(words: list[str], tmp_path: Path) -> None:
    code = (
        "import json, sys\nfrom nectar.cli import main\n"
        f"code = main({words!r})\n"
        "heavy = [name for name in ('torch', 'flwr', 'ray', 'numpy') if name in sys.modules]\n"
        "print(json.dumps([code, heavy]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m nectar.cli config | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in ("0", "141")
    assert done.stderr == ""


# ---- what cannot work is one sentence and exit code 2, before a federation is started ----------------


WORDS = [
    (["model.depth=5"], "a ConvNet of depth 5 cannot be built for images of 8x8"),
    (["partition.min_size=500"], "set partition.min_size to 129 or less"),
    (["compute.device=cuda:99", "compute.client_gpus=0.1"], "this machine offers"),
    (["method=flwr.serverapp.strategy:FedAdamm"], "FedAdam"),
    (["dataset=reddit2k", "method=feddm"], "method=feddm takes images, a table, series, and"),
    (["dataset=reddit2k", "method=real", "data-dir=/nowhere"], "and reddit2k is text"),
    (["resume="], "resume= names no record"),
]


@pytest.mark.parametrize("command", ["run", "simulate"])
@pytest.mark.parametrize(("words", "said"), WORDS)
def test_refused_in_a_sentence_and_nothing_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, words: list[str], said: str
) -> None:
    output = tmp_path / "runs"
    assert cli.main([command, f"output-dir={output}", *words]) == 2
    error = capfd.readouterr().err
    assert error.startswith("nectar: ")
    assert said in error
    assert "Traceback" not in error
    assert not output.exists()


def test_a_log_that_is_no_terminal_has_no_colours(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["method=real", "image_training.epochs=0", "rounds=1", f"output-dir={tmp_path}"]
    assert cli.main(["run", *words]) == 0
    message = capfd.readouterr()
    assert "\x1b[" not in message.err + message.out
