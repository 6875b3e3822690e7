"""FedSynth's settings: an update sent as a few synthetic batches (Algorithm 1 of its paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from common.settings.base import Disclosure, Switch, setting
from common.settings.fedavg import FedAvgSettings

if TYPE_CHECKING:
    from common.settings.sections import PrivacySettings


class FedSynthSettings(FedAvgSettings):
    """Sites send synthetic batches; the server steps along them and averages where that leads.

    The paper states no value of E, eta, eta_w, m or of the batches' start; these are this
    package's. What is inherited is the local training that fidelity is measured against, and that
    ``objective=update`` imitates.
    """

    weighting: Literal["counts", "uniform"] = setting(
        "uniform", "a site's weight in the average: its number of images, or one (the paper)"
    )
    rate: float = setting(
        7.8, "the model's numbers over those that are sent, labels included if trained", ge=1
    )
    steps: int = setting(
        1,
        "synthetic batches, and steps the server takes along them",
        symbol="m",
        ge=1,
        amount="iterations",
    )
    iterations: int = setting(
        40,
        "a site's steps on its synthetic batches a round",
        symbol="E",
        ge=0,
        amount="iterations",
    )
    synthetic_lr: float = setting(
        0.01, "learning rate of the synthetic batches", symbol="eta", gt=0
    )
    optimizer: Literal["adam", "sgd"] = setting("adam", "what moves the synthetic batches")
    step_size: float = setting(
        1.0,
        "length of a step along a synthetic batch; where it starts if learned",
        symbol="eta_w",
        ge=1e-6,
        le=1e6,
    )
    learn_step: Switch = setting(False, "learn the step size too; one number more is sent")
    labels: Literal["trained", "raw", "fixed"] = setting(
        "trained",
        "labels: logits that are trained too; any numbers that are, which need not sum to 1; or drawn by the site's "
        "class frequencies",
    )
    label_height: float = setting(
        4.0, "trained labels: the logit of the drawn class at the start, the others being 0", ge=0
    )
    start: Literal["noise", "statistics", "shared"] = setting(
        "noise",
        "what the batches start from: noise, the site's class means with noise upon them, or one noise for all sites "
        "and rounds, with labels of all classes alike",
    )
    warm: Switch = setting(
        False, "begin with what the site found the last time that the server took it, if it did"
    )
    noise: float = setting(0.03, "standard deviation of that noise in the normalised space", ge=0)
    real_batch: int = setting(
        512, "real images in an estimate of the loss; 0: all of the site's", ge=0
    )
    objective: Literal["loss", "update", "both"] = setting(
        "loss",
        "what the end of the steps must be: good on the site's data (the paper), where the site's own training ends, "
        "or both, the loss and the squared distance from there as a share of the training's own added up",
    )
    fidelity: Switch = setting(
        True, "train as FedAvg too and report how near the replayed update comes to that"
    )

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Refuse what the noise does not cover: starts made of means, labels by private counts, a second training."""
        if self.start == "statistics":
            return "start=statistics begins with means of the site's classes as they are: set start=noise"
        if privacy.counts != "public" and self.start != "shared":
            return (
                "the labels of the batches are drawn by the site's class frequencies: set privacy.counts=public where "
                "these are no secret"
            )
        if self.objective == "both":
            return (
                "objective=both takes the site's examples twice, for the training and for the loss: set objective=loss "
                "or objective=update"
            )
        if self.fidelity and self.objective == "loss":
            return (
                "fidelity=on trains a second time on the same examples, which would cost as much again: set "
                "fidelity=off, or objective=update, which needs that training alone"
            )
        return super().unprotected(privacy)

    def remark(self) -> str:
        """Return what the batches represent, and whose the labels are."""
        update = "Whoever has the batches and the round's weights has the site's update."
        if self.labels == "fixed" and self.start != "shared":
            return f"{update} The labels follow the site's class frequencies; of text they are words that it holds."
        return update

    def disclosure(self) -> Disclosure:
        """State what leaves a device: batches that represent its update, with labels that follow its classes."""
        return Disclosure(
            "synthetic batches",
            numbers=True,
            began_as="class means" if self.start == "statistics" else "noise",
            labels=not (self.labels == "fixed" and self.start == "shared"),
            update=True,
        )
