"""Does what a run released reveal which examples were in it?

    python examples/membership.py NAME=RECORD ... [--rate 0.01]

The attacker has a run's record and real examples, decides which of them a site had, and uses the simplest attacks:

- weights: an example with a low loss under the last round's model is a member (Yeom et al., 2018);
- images: an example near a synthetic image of its class is a member;
- means: an example whose code is near the class mean that a site shared is a member, at that site.

A line states how well the attack separates the sites' examples (members) from examples of the same data set that no
site had: the area under the ROC curve (0.5: not at all), and the share of members found at a false positive rate of
1 % (--rate). Stronger attacks exist; with an epsilon, no attack can exceed its bound.

The runs must leave some examples unused, for instance with data.images at half of the training set.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import nectar
from common.division import Division
from common.models import Classifier
from common.samples.inputs import Samples, samples
from nectar.recorded_run import RecordedRun


@dataclass(frozen=True)
class Scores:
    """How sure the attacker is that members were there, and that others were, float [n] and [m]."""

    members: Tensor
    others: Tensor

    @property
    def area(self) -> float:
        """The chance that a member's score is the higher one of a pair's; a tie counts half."""
        ranked = self.others.sort().values
        below = torch.searchsorted(ranked, self.members)
        equal = torch.searchsorted(ranked, self.members, right=True) - below
        return float((below + 0.5 * equal).double().mean() / len(ranked))

    def found(self, rate: float) -> float:
        """Return the share of members above a threshold that at most ``rate`` of the others are above."""
        allowed = int(rate * len(self.others))
        threshold = self.others.sort(descending=True).values[allowed]
        return float((self.members > threshold).double().mean())


def had_and_left(division: Division) -> tuple[list[Samples], Samples]:
    """Return each site's examples, and those that no site had: the rest of the training set, and the test set."""
    train, test = division.dataset.train, division.dataset.test
    info = division.run.info
    parts = division.partition(division.config.federation.sites)
    left = np.setdiff1d(np.arange(len(train.labels)), np.concatenate(parts))
    rest = samples(test, info)
    if len(left):
        rest = samples(train, info, left).joined(rest)
    return [samples(train, info, part) for part in parts], rest


@torch.no_grad()
def by_loss(past: RecordedRun, had: list[Samples], left: Samples) -> Scores:
    """Score by the loss of the last round's model."""

    def score(these: Samples) -> Tensor:
        logits = past.model(these.inputs(slice(None)))
        return -F.cross_entropy(logits, these.labels, reduction="none")

    return Scores(torch.cat([score(site) for site in had]), score(left))


def by_image(past: RecordedRun, had: list[Samples], left: Samples) -> Scores | None:
    """Score by the distance to the nearest synthetic image of the class, whichever site it is from."""
    if not past.images:
        return None
    made = torch.cat([images.images for images in past.images.values()]).flatten(1)
    labels = torch.cat([images.labels for images in past.images.values()])
    members, others = (
        torch.cat(
            [
                nearness(these.inputs(slice(None)).flatten(1), these.labels, made, labels)
                for these in some
            ]
        )
        for some in (had, [left])
    )
    return Scores(members, others)


@torch.no_grad()
def by_mean(past: RecordedRun, had: list[Samples], left: Samples) -> Scores | None:
    """Score by the distance of the code to the mean of its class that the site in question shared."""
    exchange = past.checkpoint().strategy.get("exchange")
    if not exchange:
        return None
    embed = cast(Classifier, past.model).embed
    members: list[Tensor] = []
    others: list[Tensor] = []
    for number, own in enumerate(had):
        means = [exchange[what].get(f"partition-{number}") for what in ("vectors", "labels")]
        if means[0] is None or not len(means[0]):
            continue
        for these, found in ((own, members), (left, others)):
            found.append(nearness(embed(these.inputs(slice(None))), these.labels, *means))
    return Scores(torch.cat(members), torch.cat(others)) if members else None


def nearness(points: Tensor, labels: Tensor, among: Tensor, classes: Tensor) -> Tensor:
    """Return minus the distance of each point to the nearest of its class, without those that have none there."""
    distances = (
        torch.cdist(points, among).masked_fill(labels[:, None] != classes, torch.inf).amin(1)
    )
    return -distances[distances.isfinite()]


def attacked(record: str) -> dict[str, Scores]:
    """Return the scores of each attack that the record offers something for."""
    past = nectar.open(record)
    had, left = had_and_left(Division(past.config))
    attacks = {"weights": by_loss, "images": by_image, "means": by_mean}
    found = {what: attack(past, had, left) for what, attack in attacks.items()}
    return {what: scores for what, scores in found.items() if scores is not None}


def table(runs: dict[str, str], rate: float) -> str:
    """Return a line for each run and attack."""
    lines = [f"{'run':20}{'attack':10}{'members':>8}{'others':>8}{'area':>8}{'found':>8}"]
    for name, record in runs.items():
        for what, scores in attacked(record).items():
            sizes = f"{len(scores.members):>8}{len(scores.others):>8}"
            lines.append(f"{name:20}{what:10}{sizes}{scores.area:>8.3f}{scores.found(rate):>8.3f}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Which examples were in a run?")
    parser.add_argument("runs", nargs="+", metavar="NAME=RECORD")
    parser.add_argument("--rate", type=float, default=0.01, help="of others taken for members")
    chosen = parser.parse_args(arguments)
    print(table(dict(word.split("=", 1) for word in chosen.runs), chosen.rate))


if __name__ == "__main__":
    main()
