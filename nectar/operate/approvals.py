"""What a run asks of a site, worked out from its configuration alone by the Nectar that is installed at the site.

``python -m nectar.operate.approvals`` reads JSON and prints JSON: `nectar.engines.site.approval` starts it for each
run, in a process of its own, so that nothing of the app is imported where the owner's question is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from common.config.keys import BY
from common.config.resolved import Config
from common.division import Division
from common.errors import ConfigError, NectarError, one_line
from common.methods import METHODS
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.settings.section import amounts
from common.storage.files import write_text
from nectar.engines.site.approval import (
    APPROVE,
    DIGITS,
    FOLDER,
    LIST,
    REFUSE,
    Question,
    give,
    listed,
)
from nectar.operate.privacy_plan import cost_text

#: characters of a line that an owner is shown
_WIDEST = 400

#: files of a site's folder that are counted
_COUNTED = 10**6


def worked_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an owner is shown.

    Parameters
    ----------
    given : mapping
        ``app``, the SHA-256 of the bundle; ``pinned``, whether the site pinned it; ``run``, the configuration;
        ``node``, the node config.

    Returns
    -------
    dict
        ``own``: whether the installed Nectar knows the app; ``methods``: those of the configuration, none if it cannot
        be read here; ``lines``.
    """
    own = bool(given["pinned"]) or given["app"] == own_bundle()
    app = (
        "the one pinned here" if given["pinned"] else "the one that the Nectar installed here makes"
    )
    if not own:
        app = f"NOT {app} ({version('nectar-fl')}): it may send something else than is said below"
    lines, methods = [f"app       {given['app'][:16]}, {app}"], []
    if submitter := given["run"].get(BY):
        lines.append(f"from      {submitter}, as the SuperLink reports it; unchecked")
    try:
        config, parameters = _read(given["run"], given["node"])
        methods = [*config.methods]
        lines += [*_described(config, parameters, given["node"])]
    except NectarError as error:
        lines.append(f"settings  not taken by the Nectar installed here: {error}")
    return {"own": own, "methods": methods, "lines": [one_line(line)[:_WIDEST] for line in lines]}


def own_bundle() -> str:
    """Return the SHA-256 of the bundle that Flower makes of the app installed here; empty if it makes none."""
    from nectar.engines.flower import superlink

    try:
        return hashlib.sha256(superlink.own_bundle()).hexdigest()
    except (OSError, NectarError):
        return ""


def _read(run_config: Mapping[str, Any], node: Mapping[str, Any]) -> tuple[Config, int]:
    """Return the run as the site would carry it out, its vetoes kept, and the numbers of its model."""
    from nectar.operate.doctor.node_config import held_against

    # min-class would have the images read, which the run's own roll call does
    config = held_against({k: v for k, v in node.items() if k != "min-class"}, run_config)
    return config, Division(config).run.parameters


def _described(config: Config, parameters: int, node: Mapping[str, Any]) -> Iterator[str]:
    inside = [name for name in config.methods if name != config.section]
    around = f" around {', '.join(inside)}" if inside else ""
    yield f"method    {config.method}{around} on {config.dataset}, {config.rounds} rounds"
    for name, settings in config.methods.items():
        disclosure = settings.disclosure()
        if disclosure is None:
            yield f"sends     {name}: its settings do not say what"
            continue
        facts = {
            "real examples as they are": disclosure.unchanged,
            f"begun as {disclosure.began_as}": bool(disclosure.began_as),
            "classes can be read from it": disclosure.labels,
            "numbers of examples of each class": disclosure.class_counts,
        }
        true = [text for text, is_true in facts.items() if is_true]
        yield "; ".join([f"sends     {disclosure.payload}", *true])
    yield f"model     {parameters:,} numbers, {4 * parameters / 1e6:.2f} MB where all of it is sent"
    asked = [
        f"{section}.{name}={getattr(values, name)}"
        for section, values in config.sections().items()
        for name, amount in amounts(type(values)).items()
        if amount != "cores" and getattr(values, name)
    ]
    yield f"sizes     {' '.join(asked) or 'none'}"
    yield f"privacy   {_privacy(config, node)}"


def _privacy(config: Config, node: Mapping[str, Any]) -> str:
    if not config.private:
        return "NOT differentially private"
    privacy, settings = config.privacy, config.settings
    noise = ", ".join(f"{each:g}" for each in sorted(config.noises or ())) or "the sites' own"
    seeded = "; its noise is the run's seed's, NO guarantee" if privacy.noise == "seeded" else ""
    count = privacy.examples or _examples(node)
    steps = settings.private_steps(count, config.data.site_holdout) if count else None
    if steps is None or len(config.noises or ()) != 1 or not privacy.active:
        return f"noise multiplier {noise}; what it costs, the ledger says as it is charged{seeded}"
    event = Event("approval", privacy.noise_multiplier, steps[0], steps[1] * config.rounds)
    cost = epsilon([event], privacy.delta).value
    return (
        f"epsilon {cost_text(cost)} at delta {privacy.delta:g} for all {config.rounds} rounds, of {count:,} examples; "
        f"noise multiplier {noise}{seeded}"
    )


def _examples(node: Mapping[str, Any]) -> int:
    """Return how many files the site's own folder has; 0 if it has none of its own, or a table."""
    place = Path(str(node["data"])) if "data" in node else None
    if place is None or not place.is_dir():
        return 0
    found = (path for path in place.glob("*/*") if path.is_file())
    return sum(1 for _ in islice(found, _COUNTED))


# ---- the owner's word ----------------------------------------------------------------------------
# What `nectar site approve` reads and writes in a site's state directory.

_DIGEST, _TYPED = re.compile(r"[0-9a-f]{64}"), re.compile(rf"[0-9a-f]{{{DIGITS},64}}")


def waiting(state: Path) -> str:
    """Return in words the questions without an answer, newest last."""
    place = state / FOLDER
    found = map(Question.read, place.glob("[0-9]*-*.json"))
    open_to = sorted((q for q in found if q and not q.word), key=lambda q: q.until)
    return "\n\n".join(map(_question_text, open_to)) or "nothing is asked"


def decide(state: Path, what: str, digits: str = "", *, refuse: bool) -> str:
    """Write the owner's answer on a run, or what is approved ahead of time, and return a sentence on what was written.

    Parameters
    ----------
    what : str
        A run's number; or a digest of app and configuration, or the name of a method.
    digits : str
        Of a run, the first 16 digits of its question's hash: the number alone may be another app's by now.

    Raises
    ------
    ConfigError
        If it is not one of these, or no such run is waiting.
    """
    place = state / FOLDER
    if what.isdecimal() and not _DIGEST.fullmatch(what):
        if not _TYPED.fullmatch(digits):
            raise ConfigError(
                f"type the first {DIGITS} digits of the hash line that you have read after the number: "
                f"nectar site approve {what} HASH --state {state}"
            )
        question = Question.read(place / f"{int(what)}-{digits[:DIGITS]}.json")
        if question is None or not question.digest.startswith(digits):
            raise ConfigError(
                f"no run {what} with the hash {digits} is waiting for approval in {place}: `nectar site approve` lists "
                "what waits."
            )
        question.answer(place, REFUSE if refuse else APPROVE)
        return f"{_question_text(question)}\n{'refused' if refuse else 'approved'}"
    if digits:
        raise ConfigError(f"{digits} follows {what}, which is not a run's number: leave it out.")
    if not _DIGEST.fullmatch(what) and what not in METHODS:
        raise ConfigError(
            f"{what} is neither a run's number, nor a hash of 64 digits as a question shows it, nor a method."
        )
    place.mkdir(0o700, parents=True, exist_ok=True)
    words = [word for word in listed(place) if word != what] + ([] if refuse else [what])
    write_text(place / LIST, "".join(f"{word}\n" for word in words))
    for path in (place, place / LIST):
        give(path)
    return f"{place / LIST} has {', '.join(word[:16] for word in words) or 'nothing'}"


def _question_text(question: Question) -> str:
    return "\n  ".join(
        [f"run {question.run}, until {question.end}:", *map(one_line, question.lines)]
    )


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what a library prints is no part of the answer
        json.dump(worked_out(json.load(sys.stdin)), answer)
