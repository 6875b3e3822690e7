"""The first screen of a run's report: four figures, and whether what was sent is private."""

from __future__ import annotations

import shlex

from common.sites import IN_PROCESS, RAY
from nectar.report.html import Markup, h, join
from nectar.report.neighbours import Closest
from nectar.report.privacy import epsilon_figure, guarantee, shortfall
from nectar.report.sections import seconds_in_rounds
from nectar.report.text import MISSING, share, size, total
from nectar.report.view import View, accuracy, judged_by


def card(view: View) -> Markup:
    """Show accuracy, bytes sent up, seconds in rounds, and epsilon."""
    of = judged_by([view])
    last = accuracy(view.lines[-1], of) if view.lines else None
    up = sum(total(line.get("bytes", {}).get("up", {})) for line in view.rounds)
    where = "test accuracy" if of == "test" else "accuracy at the sites"
    judged = (share(last), f"{where} after round {view.reached}")
    if view.config is not None and view.config.evaluation.on == "none":
        judged = ("not judged", "accuracy (evaluation.on=none)")
    figures = [
        judged,
        (size(up) if view.rounds else MISSING, "sent by all sites"),
        (f"{seconds_in_rounds(view):,.1f} s" if view.rounds else MISSING, "in rounds"),
        (epsilon_figure(view), "epsilon"),
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
    if view.closest:
        closest = min(view.closest.values(), key=lambda one: one.distance)
        done = "made" if view.facts and view.facts.carries else "sent"
        parts.append(_sentence(closest, done, view.unit))
    return h("p", " ".join(parts), class_="outcome open")


def again(view: View) -> Markup:
    """Give the line that makes the run's numbers again; nothing for one whose data lie at its sites."""
    if view.engine not in (IN_PROCESS, RAY):
        return join([])
    record = view.past.directory.absolute()
    line = ["nectar", "run", "--config", str(record / "config.yaml"), f"output-dir={record.parent}"]
    return h("p", "Reproduce this: ", h("code", shlex.join(line)))


def _sentence(closest: Closest, done: str, unit: str) -> str:
    one, of = {
        "images": ("image", "root mean square of values 0 to 1"),
        "rows": ("row", "root mean square, in the data's units"),
        "series": ("series", "root mean square, in the data's units"),
    }[unit]
    beside = []
    if closest.usual is not None:
        beside.append(f"real {unit} of that site lie {closest.usual:.3f} apart")
    if closest.control is not None:
        beside.append(f"the nearest of another site's lies {closest.control:.3f} from it")
    said = f"The closest {one} {done} lies {closest.distance:.3f} from a real one of {closest.site}"
    return "; ".join([said, *beside]) + f" ({of})."
