"""What was private in a run and what was not: the method's own facts, and those of every run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from common.secret.cohort import stated
from nectar.records.real_images import Closest
from nectar.report.facts import unknown_method
from nectar.report.view import View
from nectar.text import capital, plural

_UNSTATED = (
    "Noise covers what was sent, but no epsilon can be stated: what the sites were charged is in their own "
    "privacy ledgers, or has no bound."
)
_SEEDED = (
    "The noise was drawn from the run's seed, as in every simulation: seeded noise, no guarantee. Nothing in this run "
    "is differentially private; with the system's entropy the figure below would hold."
)

_IN_LEDGERS = (
    "What this run cost is in the privacy ledgers of the sites: with privacy.counts=one it was not reported to the "
    "server, which could have read the number of examples from it."
)

RELEASED: Mapping[str, str] = {
    "dp-sgd": "an update by training steps, each a sum of clipped gradients with noise",
    "feddm-gradient": "images made of sums of clipped gradients with noise",
    "feddm-feature": "images made of sums of clipped features with noise",
    "feddm-counts": "images weighed by numbers of examples of each class with noise",
    "logits": "logits on public images, cut to a length, with noise",
    "feature-sums": "sums of features of a bounded length, with noise",
    "latent-means": "means of the codes of a class, with noise",
    "dp-ddpm": "images of a generator trained on sums of clipped gradients with noise",
    "skellam feature-sums": "its part of a sum of features, with a share of the noise",
    "skellam updates": "its update, clipped to a length, with a share of the noise",
}
"""What leaves a device by each mechanism that a ledger names."""


class Guarantee(NamedTuple):
    """The largest epsilon that a device was charged in a run of which a mechanism covers all that is sent."""

    epsilon: float
    delta: float


def guarantee(view: View) -> Guarantee | None:
    """Return what holds of a run; None if something is uncovered, seeded, or charged untold or without bound."""
    charged = _last_charges(view)
    if view.config is None or not view.config.private or not charged:
        return None
    if any(not c["events"] or c["seeded"] or c["epsilon"] is None for c in charged):
        return None
    return Guarantee(max(float(c["epsilon"]) for c in charged), float(charged[0]["delta"]))


def epsilon_card(view: View) -> list[tuple[str, str]]:
    """Return the epsilon that is guaranteed and its name; empty without one, which the verdict says."""
    holds = guarantee(view)
    return [] if holds is None else [(f"{holds.epsilon:.3g}", "epsilon")]


def verdict(view: View) -> tuple[str, str, str]:
    """Return whether the run is private, ``good`` or ``open``, that in words, and how near what was sent is to real."""
    if (holds := guarantee(view)) is not None:
        return (
            "good",
            f"Differentially private: epsilon {holds.epsilon:.3g} at delta {holds.delta:g}, for one example more or "
            "less; what counts as public aside.",
            "",
        )
    closest = min(view.closest.values(), key=lambda one: one.distance, default=None)
    return "open", _shortfall(view), "" if closest is None else _nearness(closest, view)


def _nearness(closest: Closest, view: View) -> str:
    one, of = {
        "images": ("image", "root mean square of values 0 to 1"),
        "rows": ("row", "root mean square, in the data's units"),
        "series": ("series", "root mean square, in the data's units"),
    }[view.unit]
    message = (
        f"The closest {one} {view.done} is {closest.distance:.3f} from a real one of {closest.site}"
    )
    if closest.typical is not None:
        message += f"; real {view.unit} of that site are {closest.typical:.3f} from each other"
    if closest.control is not None:
        message += f"; the nearest of another site's is {closest.control:.3f} from it"
    return f"{message} ({of})."


def _shortfall(view: View) -> str:
    """Return why nothing is guaranteed of a run of which nothing is."""
    if view.config is None or not view.config.private:
        return "Not differentially private."
    if any(each["seeded"] for each in _last_charges(view) if each["events"]):
        return "Not differentially private: the noise was drawn from the run's seed, as in every simulation."
    return _UNSTATED


def protected(view: View) -> list[str]:
    """Return what did not leave the devices, or was not given away, in a sentence each."""
    if view.facts is None:
        return []
    return [
        *view.facts.protected,
        "Nothing that arrived was unpickled, and a device's error messages stayed in its own log.",
    ]


def exposed(view: View) -> list[str]:
    """Return what an observer of the traffic, or the server, learned or may have learned."""
    sentences = [unknown_method(view.method)] if view.facts is None else [*view.facts.sent]
    sentences += _beside(view)
    if view.foreign:
        sentences.append(
            f"Nectar adds no differential privacy. If {view.method} adds noise, that is its own claim, and is not "
            "accounted for."
        )
    else:
        sentences += _epsilons(view) or ["Nothing in this run is differentially private."]
        if view.config is not None and view.config.weak_delta:
            sentences.append(f"Note: {view.config.weak_delta}.")
    if view.simulated:
        sentences.append(
            "This was a simulation: one machine held all the data. This page states what would have left the "
            "devices."
        )
    elif view.engine:
        sentences.append("The sites were nodes of their own at a SuperLink.")
        if view.record.counted:
            sentences.append(
                "Their data are shares of a data set that the server has too, which is how this page can show the "
                "real images."
            )
    return sentences


def _beside(view: View) -> list[str]:
    """Return what was sent in addition to the payload, or what a secret sum withstands."""
    config, number = view.config, f"Each device's number of {view.unit}"
    if config is not None and config.secret:
        return [
            f"{capital(stated(config.federation))}.",
            "What this page states about a site's payload holds only for the total of many sites.",
            "No device's number, loss or norm was reported; when a reply came was seen.",
        ]
    if config is not None and config.private:
        public = config.privacy.counts == "public"
        reported = (
            "was reported to the server, and no epsilon covers it" if public else "was not reported"
        )
        return [
            f"{number} {reported}; no loss, norm or time of a device was.",
            "When a reply came was seen, and how long a device works depends on its data.",
        ]
    sentences = [f"{number} was reported to the server."]
    if config is not None and config.judged_at_sites and view.measure != "accuracy":
        sentences.append(
            f"Of its held-out {view.unit} each reported how many of each class were taken for which."
        )
    sentences.append(
        "Figures sent with the payload (counts, losses, seconds) are computed from private data as well."
    )
    return sentences


def _epsilons(view: View) -> list[str]:
    """Return which epsilon the releases have that the record's lines account for, and what it is given."""
    notes = [line.get("notes") or {} for line in view.rounds]
    stated = [each for note in notes for each in note.get("privacy", {}).values()]
    if not stated:
        return _charged(view)
    spent = (
        f"What {plural(len(stated), 'device')} shared has an epsilon of {_range(stated)}, for one example exchanged "
        "for another of its class."
    )
    if any(each["seeded"] for each in stated):
        return [_SEEDED, spent]
    return [
        spent,
        "It is that of the released means alone, given the weights, which are themselves not private; nothing else "
        "in this run is differentially private.",
    ]


def _charged(view: View) -> list[str]:
    """Return what each site was last charged in this run, in sentences; nothing without charges."""
    charged = _last_charges(view)
    known = [each for each in charged if each["events"]]
    if not known:
        return [_IN_LEDGERS] * bool(charged)
    named = sorted({event["mechanism"] for each in known for event in each["events"]})
    left = sorted({RELEASED[name] for name in named if name in RELEASED})
    what = f"released by {' and '.join(named)}"
    covers = "Nothing else that was sent in this run is differentially private."
    if view.config is not None and view.config.private:
        what = "sent"
        covers = (
            "It covers what the mechanisms released, and not the labels, class counts and divisors that count as "
            "public."
        )
    message = "".join(f"A device sent {each}. " for each in left)
    message += (
        f"What {plural(len(known), 'device')} {what} in this run has an epsilon of {_range(known)}, for one example "
        f"more or less. {covers}"
    )
    return [_SEEDED] * any(each["seeded"] for each in known) + [message]


def _last_charges(view: View) -> list[Mapping[str, Any]]:
    """Return what each site was last charged in this run."""
    last: dict[str, Mapping[str, Any]] = {}
    for line in view.rounds:
        last |= (line.get("notes") or {}).get("spent") or {}
    return list(last.values())


def _range(stated: Sequence[Mapping[str, Any]]) -> str:
    """Return the smallest and the largest epsilon, or the one that there is, and their delta."""
    found = [math.inf if each["epsilon"] is None else float(each["epsilon"]) for each in stated]
    least, most = min(found), max(found)
    between = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
    return f"{between} at delta {stated[0]['delta']:g}"
