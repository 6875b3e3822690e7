"""`import nectar`: what it returns, prints, refuses and leaves behind."""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import SMALL

import nectar
from common.config import loading
from common.config.text import parse_set
from common.division import Division
from common.errors import ConfigError, NectarError
from common.learning.training import evaluate
from common.samples.inputs import samples
from nectar import api, cli
from nectar.comparison.comparison import Comparison
from nectar.engines.processes import Interrupted
from nectar.recorded_run import RecordedRun
from server_app import app

SETTINGS: dict[str, Any] = parse_set(SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    output = tmp_path_factory.mktemp("runs")
    return nectar.run("feddm", rounds=2, output_dir=output, progress=False, **SETTINGS)


# -- a run --------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_run_has_its_figures_model_images_and_report(
    finished: RecordedRun, tmp_path: Path
) -> None:
    assert [line["round"] for line in finished.rounds] == [0, 1, 2]
    assert finished.completed
    assert finished.config.settings.ipc == 2  # type: ignore[attr-defined]
    assert finished.accuracy == finished.rounds[-1]["test"]["accuracy"]
    assert list(finished.images) == list(finished.pictures) == [f"partition-{i}" for i in range(3)]
    sent = finished.images["partition-0"]
    assert sent.images.shape == (len(sent.labels), 1, 8, 8)
    assert finished.pictures["partition-0"].height > finished.pictures["partition-0"].width
    assert repr(finished) == (
        f"<feddm on digits, seed 0: 2 of 2 rounds, accuracy {finished.accuracy:.4f}; {finished.directory}>"
    )
    page = finished.report(tmp_path / "page.html")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(ConfigError, match=r"^path=page\.txt must name an HTML file"):
        finished.report("page.txt")


def test_a_run_resolves_its_settings_and_makes_its_strategy_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(name: str, of: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            made.append(name)
            return of(*args, **more)

        return call

    once = [(loading, "read_sections"), (loading, "merge"), (app, "make_strategy")]
    for module, name in once:
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    settings = parse_set(SMALL)
    nectar.run("fedavg", rounds=1, output_dir=tmp_path, progress=False, **settings)
    assert sorted(made) == sorted(name for _, name in once)


def test_its_model_is_the_one_that_was_judged(finished: RecordedRun) -> None:
    run = Division(finished.config).run
    assert not finished.model.training
    judged = evaluate(
        finished.model, samples(Division(run.config).dataset.test, run.info), run.task, batch=512
    )
    assert judged.accuracy == finished.accuracy


def test_its_frame_has_a_row_a_round(finished: RecordedRun) -> None:
    frame = finished.frame()
    assert frame["round"].tolist() == [0, 1, 2]
    assert frame["accuracy"].tolist() == [line["test"]["accuracy"] for line in finished.rounds]
    assert frame["loss"].tolist() == [line["test"]["loss"] for line in finished.rounds]
    assert frame["bytes_up"].tolist() == [
        sum(line["bytes"]["up"].values()) for line in finished.rounds
    ]


def test_an_opened_record_is_the_same_run(finished: RecordedRun, tmp_path: Path) -> None:
    assert nectar.open(str(finished.directory)) == finished
    with pytest.raises(ConfigError, match="is not a run's record"):
        nectar.open(tmp_path)


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    begun = nectar.run("fedavg", rounds=1, output_dir=tmp_path, progress=False, **SETTINGS)
    assert begun.images == begun.pictures == {}
    gone_on = nectar.run(resume=begun.directory, rounds=2, progress=False)
    assert gone_on.directory == begun.directory
    assert gone_on.frame()["round"].tolist() == [0, 1, 2]
    assert gone_on.accuracy == gone_on.rounds[2]["test"]["accuracy"]
    command = begun.provenance["command"]
    assert " ".join(command).startswith("nectar run method=fedavg rounds=1 output_dir=")


# -- what it leaves behind ----------------------------------------------------------------------


@pytest.fixture
def root_says() -> Iterator[list[str]]:
    """Give what a handler of the caller's own at the root logger gets to see."""
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    handler = Handler()
    logging.getLogger().addHandler(handler)
    yield seen
    logging.getLogger().removeHandler(handler)


@pytest.mark.extended
def test_it_prints_a_line_a_round_once_and_leaves_logger_and_threads_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], root_says: list[str]
) -> None:
    logger = logging.getLogger("flwr")
    before = logger.handlers[:], logger.propagate
    torch.set_num_threads(2)
    settings = {**SETTINGS, "compute": {"server_cores": 1}, "output_dir": tmp_path}
    nectar.run("fedavg", rounds=1, **settings)
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("round ")] == [
        "round 0/1",
        "round 1/1",
    ]
    assert "\x1b" not in out
    assert (err, root_says) == ("", [])
    assert (logger.handlers, logger.propagate) == before
    assert torch.get_num_threads() == 2

    nectar.run("fedavg", rounds=1, progress=False, **settings)
    assert capsys.readouterr().out == ""
    assert any(message.startswith("round 1/1") for message in root_says), (
        "the caller's own logs have it"
    )


def test_a_run_that_stops_raises_and_leaves_the_same(tmp_path: Path) -> None:
    logger = logging.getLogger("flwr")
    before = logger.handlers[:], logger.propagate
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another output-dir"):
        nectar.run("fedavg", output_dir=tmp_path / "file", **SETTINGS)
    assert (logger.handlers, logger.propagate) == before


def test_what_it_has_no_name_for_is_an_attribute_error() -> None:
    assert {"compare", "open", "run"} <= set(dir(nectar))
    assert inspect.isfunction(nectar.compare), "not a package that can be called"
    with pytest.raises(AttributeError, match="module 'nectar' has no attribute 'train'"):
        nectar.train  # type: ignore[attr-defined]  # noqa: B018


# -- the grammar --------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feddm.icp": 3}, ["feddm.icp=3"]),
        ({"feddm": {"icp": 3}}, ["feddm.icp=3"]),
        ({"rouds": 3}, ["rouds=3"]),
        ({"rounds": "two", "seed": -1}, ["rounds=two", "seed=-1"]),
        ({"feddm.ipc": True}, ["feddm.ipc=true"]),
        ({"feddm.ipc": "3"}, ["feddm.ipc='3'"]),
        ({"dataset": "minst"}, ["dataset=minst"]),
        ({"experiment": "nothing"}, ["nothing"]),
        ({"resume": "/nowhere"}, ["resume=/nowhere"]),
    ],
)
def test_an_error_has_the_commands_sentences(
    settings: dict[str, Any], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *words]) == 2
    message = capsys.readouterr().err.splitlines()
    with pytest.raises(NectarError) as error:
        nectar.run(**settings)
    assert [f"nectar: {line}" for line in str(error.value).splitlines()] == message


def test_a_value_of_no_kind_and_two_methods_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"feddm\.ipc=\[3\] must be a number, .* not list"):
        nectar.run(**{"feddm.ipc": [3]})
    with pytest.raises(ConfigError, match="two methods, feddm and fedavg"):
        nectar.run("feddm", method="fedavg")


def test_a_list_of_rows_and_a_section_as_a_key_are_told_in_a_sentence() -> None:
    for call, message in (
        (lambda: nectar.compare(["feddm", "fedavg"]), "each row as a separate argument"),  # type: ignore[arg-type]
        (lambda: nectar.run(["feddm"]), "is not a method: name one"),  # type: ignore[arg-type]
        (lambda: nectar.run(data=3), r"data .* is a section of settings: write .* such as data\."),
        (lambda: nectar.compare("fedavg", fedavg=3), r"such as fedavg\."),
    ):
        with pytest.raises(ConfigError, match=message):
            call()


def test_keywords_become_the_words_that_would_be_typed() -> None:
    settings = {
        "experiment": None,
        "output_dir": Path("runs"),
        "rounds": np.int64(3),
        "feddm": {"image_lr": np.float32(0.5), "start": "real", "warm": False},
        "a.b": None,
        "c.d": "two words",
    }
    assert api._words(settings) == [
        "output_dir=runs",
        "rounds=3",
        "feddm.image_lr=0.5",
        "feddm.start=real",
        "feddm.warm=false",
        "a.b=null",
        "c.d=two words",
    ]


# -- a comparison -------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_comparisons_words_are_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def refuse(self: Comparison, request: Any, say: Any) -> None:
        seen.append(request.options.typed)
        raise ConfigError("far enough.")

    monkeypatch.setattr(Comparison, "__init__", refuse)
    with pytest.raises(ConfigError, match="far enough"):
        nectar.compare(
            "feddm",
            "fedavg",
            seeds=2,
            target=0.5,
            alone=True,
            tune=["fedavg.lr=0.1,0.3"],
            tune_seeds=1,
            dataset="mnist",
        )
    typed = "feddm fedavg dataset=mnist --seeds 2 --target 0.5 --alone --tune fedavg.lr=0.1,0.3 --tune-seeds 1"
    assert seen == [f"nectar compare {typed}"]
    seen.clear()
    with pytest.raises(ConfigError, match="far enough"):
        nectar.compare(
            "fedavg", "mnist", table="feddm-2", small=True, tune=["fedavg.lr=1", "fedavg.epochs=2"]
        )
    typed = "fedavg mnist table=feddm-2 --tune fedavg.lr=1 --tune fedavg.epochs=2 --small"
    assert seen == [f"nectar compare {typed}"]
    with pytest.raises(ConfigError, match=r"^nothing to compare"):
        nectar.compare()
    with pytest.raises(ConfigError, match="'fedavgg' is neither a method nor an experiment"):
        nectar.compare("fedavgg")


def test_an_interrupted_comparison_is_a_keyboard_interrupt() -> None:
    class Endless:
        def carry_out(self) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as raised:
        api._carried_out(Endless().carry_out)
    assert not isinstance(raised.value, Interrupted)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
