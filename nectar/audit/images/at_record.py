"""The audit of a run's record, written into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.config.own_parts import Judge
from common.learning.compute import use_threads
from common.storage.files import write_json
from nectar.audit.images.examining import examined
from nectar.audit.images.outcome import outcome
from nectar.audit.images.record import recorded
from nectar.records.past_run import PastRun
from server_app.run_directory import AUDIT


def audit_record(directory: Path, judge: Judge | None = None) -> dict[str, Any]:
    """Audit the record in ``directory``, write the outcome into it, and return it.

    Raises
    ------
    ConfigError
        If it is no run's record, or the images that its sites had are not at hand.
    FederationError
        If the run stopped before its first round was done, or a file of it is damaged.
    """
    past = PastRun.open(directory, judge)
    use_threads(past.config.compute.server_cores)
    given = recorded(past)
    whole, sites = examined(given.evidence, given.by_model)
    about = {
        "record": past.record.id,
        "round": given.reached,
        "controls": given.controls,
        "rounds": list(given.rounds),
    }
    content = outcome(whole, sites, about, given.notes)
    write_json(past.directory / AUDIT, content)
    return content
