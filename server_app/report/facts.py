"""What was private in a run and what was not: facts that follow from the method and its settings."""

from __future__ import annotations

from server_app.report.view import View

_IMAGES = ("feddm", "real")


def protected(view: View) -> list[str]:
    """Return what did not leave the devices, or was not given away, in a sentence each."""
    said = []
    if view.method == "feddm" and view.setting("start") == "noise":
        said.append(
            "No real image left a device: the images sent started from noise, and were changed until the model "
            "embedded them as it embeds the real ones."
        )
    if view.foreign or view.method == "fedavg":
        said.append("No image left a device: weights travelled.")
    if view.method in (*_IMAGES, "fedavg") or view.foreign:
        said.append(
            "Nothing that arrived was unpickled, and a device's error messages stayed in its own log."
        )
    return said


def exposed(view: View) -> list[str]:
    """Return what an observer of the traffic, or the server, learned or may have learned."""
    said = _sent(view)
    if view.method in _IMAGES:
        said.append("Which classes a device held is visible from the labels it sent.")
    said.append("Each device's number of images was reported to the server.")
    if view.method in _IMAGES and view.setting("weighting") == "counts":
        said.append(
            "With weighting=counts each device also told its number of images of every class."
        )
    said.append(
        "Figures beside the payload (image counts, losses, seconds) are computed from private data as well."
    )
    if view.foreign:
        said.append(
            f"Nectar adds no differential privacy. If {view.method} adds noise, that is its own claim, and is not "
            "accounted for here."
        )
    else:
        said.append("Nothing here is differentially private.")
    if view.simulated:
        said.append(
            "This was a simulation: one machine held all the data. What is said here is what would have left "
            "the devices."
        )
    return said


def _sent(view: View) -> list[str]:
    if view.method == "real":
        return ["Real images were sent, as they are: the method gives data away, to be measured."]
    if view.method == "feddm":
        start = view.setting("start")
        if start == "real":
            said = "The images sent began as real ones (start=real), and look like them: do not call that private."
            if view.setting("iterations") == 0:
                said = "Real images were sent as they are: start=real with iterations=0 changes nothing in them."
            return [said]
        return ["The synthetic images are functions of private data."]
    if view.foreign or view.method == "fedavg":
        return ["The trained weights of every device were sent, and are functions of private data."]
    return [
        f"The report knows no facts about {view.method}: what its devices send is a function of private data."
    ]
