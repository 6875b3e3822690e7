"""The first screen of a run's report: four figures, and whether what was sent is private."""

from __future__ import annotations

import shlex

from common.errors import NectarError
from common.sites import IN_PROCESS, RAY
from nectar.report.html import Markup, h, join
from nectar.report.neighbours import Closest, real_images
from nectar.report.privacy import guarantee, shortfall
from nectar.report.sections import seconds_in_rounds
from nectar.report.text import MISSING, share, size, total
from nectar.report.view import View, accuracy, judged_by
from server_app.screen import on_screen
from server_app.synthetic_sets import contrast_of


def card(view: View) -> Markup:
    """Show accuracy, bytes sent up, seconds in rounds, and epsilon."""
    of = judged_by([view])
    last = accuracy(view.lines[-1], of) if view.lines else None
    up = sum(total(line.get("bytes", {}).get("up", {})) for line in view.rounds)
    holds = guarantee(view)
    where = "test accuracy" if of == "test" else "accuracy at the sites"
    figures = [
        (share(last), f"{where} after round {view.reached}"),
        (size(up) if view.rounds else MISSING, "sent by all sites"),
        (f"{seconds_in_rounds(view):,.1f} s" if view.rounds else MISSING, "in rounds"),
        (f"{holds.epsilon:.3g}" if holds else "none", "epsilon"),
    ]
    return h(
        "ul",
        *(h("li", h("strong", value), h("span", name)) for value, name in figures),
        class_="figures",
    )


def verdict(view: View) -> Markup:
    """Say whether the run is differentially private, and how near what was sent comes to a real image."""
    holds = guarantee(view)
    if holds is not None:
        said = (
            f"Differentially private: epsilon {holds.epsilon:.3g} at delta {holds.delta:g}, for one example more or "
            "less; what counts as public aside."
        )
        return h("p", said, class_="outcome good")
    parts = [shortfall(view)]
    closest = _closest(view)
    if closest is not None:
        parts.append(_sentence(closest, "made" if view.facts and view.facts.carries else "sent"))
    return h("p", " ".join(parts), class_="outcome open")


def again(view: View) -> Markup:
    """Give the line that makes the run's numbers again; nothing for one whose data lie at its sites."""
    if view.engine not in (IN_PROCESS, RAY):
        return join([])
    record = view.past.directory.absolute()
    line = ["nectar", "run", "--config", str(record / "config.yaml"), f"output-dir={record.parent}"]
    return h("p", "Reproduce this: ", h("code", shlex.join(line)))


def _sentence(closest: Closest, done: str) -> str:
    beside = []
    if closest.usual is not None:
        beside.append(f"real images of that site lie {closest.usual:.3f} apart")
    if closest.control is not None:
        beside.append(f"the nearest of another site's lies {closest.control:.3f} from it")
    said = f"The closest image {done} lies {closest.distance:.3f} from a real one of {closest.site}"
    return "; ".join([said, *beside]) + " (root mean square of values 0 to 1)."


def _closest(view: View) -> Closest | None:
    """Return the closest of the last round's images; None without images, or real ones to hold them against."""
    try:
        _, sets = view.past.synthetic()
        if not sets or view.info is None or contrast_of(view.past.record.last_sets) != "pixels":
            return None
    except NectarError:
        return None
    real = real_images(view)
    if isinstance(real, str):
        return None
    info = view.info
    found = [real.closest(s, on_screen(sent.images, info, "pixels")) for s, sent in sets.items()]
    return min(
        (one for one in found if one is not None), key=lambda one: one.distance, default=None
    )
