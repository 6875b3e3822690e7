"""The settings of a record of an earlier release, which leaves out what was the default then and is another now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from common.config.text import dotted, join_set, parse_set

_CHANGED = ("feddm.start", "feddm.warm")
"""Settings that have another default than in release 0.1.0, where a run config leaves defaults out."""

_ASKED_SINCE = "data.send_originals"
"""What has to be asked for since then; of what was sent before it, nothing can be refused any more."""


def with_earlier_defaults(run_config: Mapping[str, Any], config_yaml: Path) -> dict[str, Any]:
    """Return a record's run config with what its ``config.yaml``, which states all, says otherwise than today.

    Parameters
    ----------
    run_config : mapping
        As provenance.json has it.
    config_yaml : Path
        The record's; one that cannot be read changes nothing.
    """
    try:
        tree = yaml.safe_load(config_yaml.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return dict(run_config)
    stated = dotted(tree) if isinstance(tree, Mapping) else {}
    text = run_config.get("set", "")
    if not stated or not isinstance(text, str):
        return dict(run_config)
    earlier = {key: stated[key] for key in _CHANGED if key in stated}
    if _ASKED_SINCE not in stated:
        earlier[_ASKED_SINCE] = True
    return {**run_config, "set": join_set({**earlier, **parse_set(text)})}
