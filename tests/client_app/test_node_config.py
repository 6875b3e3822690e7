"""The keys of a node config, read as strictly as a run's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_app.owner.ledger import Budget
from client_app.owner.node_config import KEYS, NodeConfig
from client_app.owner.review import Review
from client_app.owner.vetoes import Vetoes
from common.errors import FederationError
from common.settings.base import AMOUNTS


def test_every_amount_that_settings_declare_has_a_key() -> None:
    assert {f"max-{amount}" for amount in AMOUNTS} <= KEYS.keys()


def test_a_node_config_that_says_nothing_bounds_what_it_always_did() -> None:
    node = NodeConfig.of({})
    vetoes = Vetoes.of(node)
    assert (vetoes.methods, vetoes.starts, vetoes.most) == (None, None, ())
    assert dict(vetoes.unnamed).keys() == {"size", "cores"}
    assert (vetoes.classes, vetoes.parameters, vetoes.smallest_class) == (1000, None, 0)
    assert (node.allow_imports, node.allow_download, node.roll_call_seconds) == (None, False, None)
    assert Budget.of(node) is None
    assert Review.of(node) is None


def test_values_are_read_into_their_types() -> None:
    node = NodeConfig.of(
        {
            "allow-imports": " a.b,c  d ",
            "allow-methods": "",
            "data-root": "/data",
            "max-ipc": 0,
            "privacy-epsilon": 3,
        }
    )
    assert node.allow_imports == ("a.b", "c", "d")
    assert node.allow_methods == ()
    assert node.data_root == Path("/data")
    assert node.max_ipc == 0
    assert Budget.of(node) == Budget(3.0)
    assert Vetoes.of(node).most == (("ipc", 0),)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("allow-imports", "a.*", "in which 'a.*' is no module"),
        ("allow-imports", True, "allow-imports=True: write words in quotes, with spaces between"),
        ("allow-start", 3, "allow-start=3: write words in quotes"),
        ("allow-download", 1, "allow-download=1: write true or false"),
        ("cores", 0, "cores=0: give a whole number, 1 or more"),
        ("cores", True, "cores=True: give a whole number"),
        ("device", "cuda:", "device='cuda:': choose auto, cpu, cuda or cuda:N"),
        ("device", "cpu\n", "choose auto"),
        ("max-classes", 0, "max-classes=0: give a whole number, 1 or more"),
        ("max-cores", 2.0, "max-cores=2.0: give a whole number, 0 or more"),
        ("privacy-epsilon", float("nan"), "privacy-epsilon=nan: give a number above 0"),
        ("privacy-epsilon", float("inf"), "give a number above 0"),
        ("privacy-delta", 1, "privacy-delta=1: give a number above 0 and below 1"),
        ("roll-call-seconds", 0, "roll-call-seconds=0: give a number above 0"),
        ("roll-call-seconds", True, "roll-call-seconds=True: give a number"),
        ("review-command", 5, "review-command=5: write a command in quotes"),
        ("review-dir", "relative", "relative"),
        ("review-seconds", "soon", "whole number"),
        ("review-dirs", "/somewhere", "did you mean review-dir"),
        ("privacy-epsilon", 0, "privacy-epsilon=0: give a number above 0"),
        ("privacy-epsilon", "3", "give a number above 0"),
        ("privacy-epsilon", True, "give a number above 0"),
        ("privacy-epsilom", 3, "did you mean privacy-epsilon?"),
        ("max_iterations", 5, "did you mean max-iterations?"),
        ("xyzzy", "red", "there are site, partition-id"),
        ("allow-methods", True, "allow-methods=True: write words in quotes"),
        ("allow-download", "yes", "allow-download='yes': write true or false"),
        ("max-iterations", "5", "max-iterations='5': give a whole number, 0 or more"),
        ("min-class", -1, "min-class=-1: give a whole number"),
    ],
)
def test_what_a_key_cannot_be_is_refused(key: str, value: object, said: str) -> None:
    with pytest.raises(FederationError) as caught:
        NodeConfig.of({key: value})
    assert said in str(caught.value)


@pytest.mark.parametrize("key", ["data", "data-root", "review-dir", "state-dir"])
def test_a_relative_path_is_named_to_the_owner_alone(key: str) -> None:
    with pytest.raises(FederationError, match=f"{key} 'here' is relative") as caught:
        NodeConfig.of({key: "here"})
    assert caught.value.told == (
        f"the node config's {key} is relative: its owner gives an absolute path"
    )


def test_an_unknown_key_is_told_before_anything_else_is_wrong() -> None:
    with pytest.raises(FederationError, match="did you mean allow-methods"):
        NodeConfig.of({"cores": 0, "data": "here", "allow-method": "feddm"})


def test_a_command_whose_quotes_stay_open_is_a_sentence() -> None:
    node = NodeConfig.of({"review-dir": "/look", "review-command": "look 'at this"})
    with pytest.raises(FederationError, match=r"review-command cannot be split .*: No closing"):
        Review.of(node)
