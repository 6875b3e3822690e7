"""The description of a run for a site's owner, made from its configuration only by the site's installed Nectar.

``python -m nectar.operate.approvals`` reads JSON and prints JSON: `nectar.engines.site.approval` starts it for each
run, in a separate process, so that none of the app's code is imported by the process that asks the owner.
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

#: maximum length of a line for the owner
_WIDEST = 400

#: files of a site's folder that are counted
_COUNTED = 10**6


def worked_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a run for the site's owner.

    Parameters
    ----------
    given : mapping
        ``app``, the SHA-256 of the bundle; ``pinned``, whether the site pinned it; ``run``, the configuration;
        ``node``, the node config.

    Returns
    -------
    dict
        ``own``: whether the app is the installed or pinned one; ``methods``: those of the configuration, empty if it
        cannot be read; ``lines``.
    """
    own = bool(given["pinned"]) or given["app"] == own_bundle()
    app = "the pinned app" if given["pinned"] else "the app of the installed Nectar"
    if not own:
        app = f"NOT {app} ({version('nectar-fl')}): it may send something other than stated below"
    lines, methods = [f"app       {given['app'][:16]}, {app}"], []
    if submitter := given["run"].get(BY):
        lines.append(f"from      {submitter}, as the SuperLink reports it; unchecked")
    try:
        config, parameters = _read(given["run"], given["node"])
        methods = [*config.methods]
        lines += [*_described(config, parameters, given["node"])]
    except NectarError as error:
        lines.append(f"settings  not valid for the installed Nectar: {error}")
    return {"own": own, "methods": methods, "lines": [one_line(line)[:_WIDEST] for line in lines]}


def own_bundle() -> str:
    """Return the SHA-256 of the installed app's bundle; empty if Flower cannot make it."""
    from nectar.engines.flower import superlink

    try:
        return hashlib.sha256(superlink.own_bundle()).hexdigest()
    except (OSError, NectarError):
        return ""


def _read(run_config: Mapping[str, Any], node: Mapping[str, Any]) -> tuple[Config, int]:
    """Return the run's configuration within the site's limits, and the number of the model's parameters."""
    from nectar.operate.doctor.node_config import held_against

    # without min-class, which would read the images; the run's roll call checks it
    config = held_against({k: v for k, v in node.items() if k != "min-class"}, run_config)
    return config, Division(config).run.parameters


def _described(config: Config, parameters: int, node: Mapping[str, Any]) -> Iterator[str]:
    inside = [name for name in config.methods if name != config.section]
    around = f" around {', '.join(inside)}" if inside else ""
    yield f"method    {config.method}{around} on {config.dataset}, {config.rounds} rounds"
    for name, settings in config.methods.items():
        disclosure = settings.disclosure()
        if disclosure is None:
            yield f"sends     {name}: unknown, its settings do not state it"
            continue
        facts = {
            "unchanged real examples": disclosure.unchanged,
            f"started as {disclosure.began_as}": bool(disclosure.began_as),
            "classes can be read from it": disclosure.labels,
            "numbers of examples of each class": disclosure.class_counts,
        }
        true = [text for text, is_true in facts.items() if is_true]
        yield "; ".join([f"sends     {disclosure.payload}", *true])
    yield f"model     {parameters:,} parameters, {4 * parameters / 1e6:.2f} MB if all are sent"
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
    seeded = (
        "; its noise comes from the run's seed: NO guarantee" if privacy.noise == "seeded" else ""
    )
    count = privacy.examples or _examples(node)
    steps = settings.private_steps(count, config.data.site_holdout) if count else None
    if steps is None or len(config.noises or ()) != 1 or not privacy.active:
        return f"noise multiplier {noise}; the ledger will state its epsilon{seeded}"
    event = Event("approval", privacy.noise_multiplier, steps[0], steps[1] * config.rounds)
    cost = epsilon([event], privacy.delta).value
    return (
        f"epsilon {cost_text(cost)} at delta {privacy.delta:g} for all {config.rounds} rounds, of {count:,} examples; "
        f"noise multiplier {noise}{seeded}"
    )


def _examples(node: Mapping[str, Any]) -> int:
    """Return the number of files in the site's data folder; 0 if it has a table, or no data of its own."""
    place = Path(str(node["data"])) if "data" in node else None
    if place is None or not place.is_dir():
        return 0
    found = (path for path in place.glob("*/*") if path.is_file())
    return sum(1 for _ in islice(found, _COUNTED))


# ---- the owner's word ----------------------------------------------------------------------------
# What `nectar site approve` reads and writes in a site's state directory.

_DIGEST, _TYPED = re.compile(r"[0-9a-f]{64}"), re.compile(rf"[0-9a-f]{{{DIGITS},64}}")


def waiting(state: Path) -> str:
    """Return the text of all questions without an answer, newest last."""
    place = state / FOLDER
    found = map(Question.read, place.glob("[0-9]*-*.json"))
    open_to = sorted((q for q in found if q and not q.word), key=lambda q: q.until)
    return "\n\n".join(map(_question_text, open_to)) or "nothing waits for approval"


def decide(state: Path, what: str, digits: str = "", *, refuse: bool) -> str:
    """Write the owner's answer on a run, or an approval in advance, and return a sentence that confirms it.

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
                f"after the run's number, type the first {DIGITS} digits of its hash line: "
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
            f"{what} is neither the number of a run, nor a hash of 64 digits from the hash line, nor a method."
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
