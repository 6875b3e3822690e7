"""The one grammar of the command line, and its form for Flower."""

from functools import partial
from pathlib import Path

import click
import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from common.config.loading import load
from common.errors import ConfigError
from common.methods import METHODS
from nectar.arguments import meant_by, parse_arguments, to_flwr, typed_command
from nectar.command_line import COMMANDS
from nectar.options import complete

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def test_words_become_a_run_config() -> None:
    words = ["table1", "method=fedavg", "rounds=3", "partition.alpha=0.01", "feddm.ipc=5"]
    assert parse_arguments(words) == {
        "experiment": "table1",
        "method": "fedavg",
        "rounds": 3,
        "set": "partition.alpha=0.01 feddm.ipc=5",
    }
    assert parse_arguments([]) == {}


def test_paths_are_absolute_and_may_be_spelt_with_an_underscore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    words = ["output_dir=runs", "data-dir=~/data", "resume=/a/b"]
    assert parse_arguments(words, Path("/work here")) == {
        "output-dir": "/work here/runs",
        "data-dir": "/home/someone/data",
        "resume": "/a/b",
    }
    monkeypatch.chdir("/")
    assert parse_arguments(["resume=x"]) == {"resume": "/x"}


def test_an_import_path_is_a_value_and_a_set_is_passed_on() -> None:
    words = ["method=flwr.serverapp.strategy:FedAdam", "set=feddm.ipc=1 fedavg.lr=2", "feddm.ipc=3"]
    assert parse_arguments(words) == {
        "method": "flwr.serverapp.strategy:FedAdam",
        "set": "feddm.ipc=1 fedavg.lr=2 feddm.ipc=3",
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_name_in_first_place_is_the_method(method: str) -> None:
    assert parse_arguments([method, "rounds=2"]) == parse_arguments(
        [f"method={method}", "rounds=2"]
    )


@pytest.mark.extended
@given(TEXTS)
def test_a_dotted_value_arrives_as_typed(value: str) -> None:
    from common.config.text import parse_set, scalar

    run_config = parse_arguments([f"strategy.label={value}"])
    assert parse_set(str(run_config["set"])) == {"strategy.label": scalar(value)}


# --- what was meant, and what may follow


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("rounds", "rounds"),
        ("partition.alpha", "partition.alpha"),
        ("ipc", "feddm.ipc"),
        ("lr", "image_training.lr"),
        ("alpha", "partition.alpha"),
        ("qqqqqq", ""),
    ],
)
def test_an_options_name_is_the_key_that_was_meant(name: str, key: str | None) -> None:
    assert meant_by(name) == key


@pytest.mark.extended
def test_methods_experiments_and_keys_complete_a_word() -> None:
    context = click.Context(COMMANDS)
    found = partial(complete, context, click.Argument(["words"]))
    assert "fedavg" in found("fed")
    assert found("partition.al") == ["partition.alpha="]
    assert "rounds=" in found("")
    assert "typed=" not in found("")


# --- for Flower


def test_flower_gets_what_would_be_typed() -> None:
    run_config = {"method": "fedavg", "rounds": 3, "resume": "", "set": "feddm.ipc=5 fedavg.lr=.1"}
    assert to_flwr(run_config) == 'method="fedavg" rounds=3 set="feddm.ipc=5 fedavg.lr=.1"'


VALUES = st.one_of(
    TEXTS, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans()
)


@given(
    st.dictionaries(
        st.sampled_from(["experiment", "set", "output-dir", "seed"]), VALUES, min_size=1
    )
)
def test_flowers_own_parser_reads_back_what_we_write(
    run_config: dict[str, str | int | float | bool],
) -> None:
    text = to_flwr(run_config)
    found = parse_config_args([text])
    assert found == run_config
    assert {key: type(value) for key, value in found.items()} == {
        key: type(value) for key, value in run_config.items()
    }


@pytest.mark.extended
@given(TEXTS.filter(lambda text: "\0" not in text))
def test_a_value_survives_from_the_words_through_flower_to_the_configuration(value: str) -> None:
    words = ["method=flwr.serverapp.strategy:FedAvg", f"strategy.weighted_by_key='{value}'"]
    run_config = parse_config_args([to_flwr(parse_arguments(words))])
    assert load(run_config).strategy == {"weighted_by_key": value.replace("''", "'")}


def test_a_file_of_settings_is_a_word_beside_the_others(tmp_path: Path) -> None:
    words = ["digits-alpha001", "rounds=3"]
    assert parse_arguments(words, tmp_path, file="my.yaml")["config"] == str(tmp_path / "my.yaml")
    assert parse_arguments(["config=my.yaml"], tmp_path) == {"config": str(tmp_path / "my.yaml")}
    with pytest.raises(ConfigError, match="config is given twice"):
        parse_arguments(["config=a.yaml"], file="b.yaml")


def test_the_words_typed_are_kept_as_a_shell_takes_them() -> None:
    words = ["run", "method=fedavg", "output-dir=/my runs"]
    assert typed_command(words) == {"typed": "nectar run method=fedavg 'output-dir=/my runs'"}
