"""What was private in a run and what was not: the method's own facts, and those of every run."""

from __future__ import annotations

from nectar.report.facts import unknown
from nectar.report.view import View


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
    said = [*_sent(view)]
    said.append(f"Each device's number of {view.unit} was reported to the server.")
    said.append(
        "Figures beside the payload (counts, losses, seconds) are computed from private data as well."
    )
    if view.foreign:
        said.append(
            f"Nectar adds no differential privacy. If {view.method} adds noise, that is its own claim, and is not "
            "accounted for here."
        )
    else:
        said.append("Nothing here is differentially private.")
    return [*said, *_where(view)]


def _where(view: View) -> list[str]:
    """Say who held the data, as far as the record tells."""
    if view.simulated:
        return [
            "This was a simulation: one machine held all the data. What is said here is what would have left the "
            "devices."
        ]
    if view.engine and view.counted:
        return [
            "The sites were nodes of their own at a SuperLink. Their data are shares of a data set that the server has "
            "too, which is how this page can show the real images."
        ]
    return ["The sites were nodes of their own at a SuperLink."] if view.engine else []


def _sent(view: View) -> tuple[str, ...]:
    if view.facts is not None:
        return view.facts.sent
    return (unknown(view.method),)
