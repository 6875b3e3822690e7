"""The keys of a node config, read as strictly as a run's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_app.owner.node_config import KEYS, NodeConfig
from client_app.owner.review import Review
from common.errors import FederationError
from common.settings.base import AMOUNTS


def test_every_amount_that_settings_declare_has_a_key() -> None:
    assert {f"max-{amount}" for amount in AMOUNTS} <= KEYS.keys()


def test_a_node_config_that_says_nothing_bounds_what_it_always_did() -> None:
    node = NodeConfig.of({})
    assert (node.allow_methods, node.allow_start, node.max_parameters) == (None, None, None)
    assert all(getattr(node, f"max_{amount}") is None for amount in AMOUNTS)
    assert (node.max_classes, node.min_class) == (1000, 0)
    assert (node.allow_imports, node.allow_download, node.roll_call_seconds) == (None, False, None)
    assert (node.privacy_epsilon, node.privacy_delta) == (None, None)
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
    assert node.privacy_epsilon == 3.0


@pytest.mark.parametrize("key", ["data", "data-root", "review-dir", "state-dir"])
def test_a_relative_path_is_named_to_the_owner_alone(key: str) -> None:
    with pytest.raises(FederationError, match=f"{key} 'here' is relative") as caught:
        NodeConfig.of({key: "here"})
    assert caught.value.reported == (
        f"the node config's {key} is relative: its owner gives an absolute path"
    )


def test_an_unknown_key_is_told_before_anything_else_is_wrong() -> None:
    with pytest.raises(FederationError, match="did you mean allow-methods"):
        NodeConfig.of({"cores": 0, "data": "here", "allow-method": "feddm"})


def test_a_command_whose_quotes_stay_open_is_a_sentence() -> None:
    node = NodeConfig.of({"review-dir": "/look", "review-command": "look 'at this"})
    with pytest.raises(FederationError, match=r"review-command cannot be split .*: No closing"):
        Review.of(node)
