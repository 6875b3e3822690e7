"""What do the images look like that FedDGM's server makes of the sites' weights, and whose are they?

    python examples/distilled_pictures.py NAME=RECORD ... [--output DIR] [--site partition-9]

For the last round of each run (all of one seed and partition), the table gives

- the share of images that a network trained on all sites' real images assigns to their intended class: for classes that
  the site has, and for those it lacks (`feddgm.classes=all`);
- for classes that the site has, the distance of an image to the nearest real one of the class at the site, and to the
  nearest of as many from other sites and the test set: the root mean squared difference of pixels from 0 to 1; and the
  share that is nearer to the site's, 0.5 if the weights reveal no single images. The last line has the same for the
  site's real images, each compared with all others.

distilled-spaces.png shows one site's images; distilled-nearest.png shows some with the nearest real ones, at the site
and elsewhere.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from nearest_real import Held, Real, distances, nearness, of_class, real_nearness
from torch import Tensor, nn

import nectar
from common.division import Division
from common.draws.seeding import generator
from common.learning.run import Run
from common.learning.training import train
from common.samples.inputs import Samples, samples
from common.settings.fedavg import TrainingSettings

SHOWN, BESIDE = 5, 2
_GREY, _PAPER = 0.5, 0.0


def in_range(run: Run, images: Tensor) -> Tensor:
    """Return normalised images as values from 0 to 1; values outside are clipped."""
    mean, std = (torch.tensor(v)[:, None, None] for v in (run.info.mean, run.info.std))
    return (images * std + mean).clamp(0, 1)


def distilled(record: str) -> tuple[Run, dict[str, Held]]:
    """Return a recorded run, and what its server made of each site in its last round."""
    past = nectar.open(record)
    run = Division(past.config).run
    return run, {name: (in_range(run, s.images), s.labels) for name, s in past.images.items()}


def real_of(run: Run) -> Real:
    """Return the run's real images."""
    division = Division(run.config)
    split, parts = division.dataset.train, division.partition(run.config.federation.sites)

    def taken(which: Samples) -> Held:
        return which.raw.float() / run.info.scale, which.labels

    sites = {f"partition-{k}": taken(samples(split, run.info, p)) for k, p in enumerate(parts)}
    return Real(sites, taken(samples(division.dataset.test, run.info)))


def reader(run: Run, real: Real) -> nn.Module:
    """Return the run's network, trained on all sites' real images; it takes values from 0 to 1 as well."""
    images, labels = real.everyone()
    model = run.build_model()
    settings = TrainingSettings(epochs=30, lr=0.1, batch=64, momentum=0.9)
    train(model, Samples.of(images, labels), settings, run.task, generator(0, "reader"))
    return model.eval()


@torch.no_grad()
def read(model: nn.Module, made: dict[str, Held], real: Real) -> tuple[float, float]:
    """Return which share is taken for its own class, where the site has images of that class and where not."""
    right = torch.cat([model(images).argmax(1) == labels for images, labels in made.values()])
    has = torch.cat([real.has(site, labels) for site, (_, labels) in made.items()])
    return right[has].double().mean().item(), right[~has].double().mean().item()


def table(runs: dict[str, dict[str, Held]], real: Real, model: nn.Module) -> str:
    """Return a line for each run, and one for the real images."""
    lines = [f"{'':16}read right: held  lacking   nearest: own  other  nearer to own"]
    for name, made in runs.items():
        held, lacking = (
            "–" if math.isnan(share) else f"{share:.0%}" for share in read(model, made, real)
        )
        near = nearness(made, real)
        lines.append(
            f"{name:16}{held:>16}{lacking:>9}{near.own.mean():15.3f}{near.other.mean():7.3f}{near.nearer:15.0%}"
        )
    near = real_nearness(real)
    lines.append(
        f"{'real':16}{'':25}{near.own.mean():15.3f}{near.other.mean():7.3f}{near.nearer:15.0%}"
    )
    return "\n".join(lines)


def drawing(panels: dict[str, list[Tensor]], marks: list[str]) -> Figure:
    """Draw rows of images side by side, a panel for each title; ``marks`` are written before the first one's rows."""
    columns = len(next(iter(panels.values()))[0])
    size = (0.38 * columns * len(panels) + 0.6, 0.38 * len(marks) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for place, (title, rows) in zip(places, panels.items(), strict=True):
        place.imshow(sheet(rows), cmap="gray_r", vmin=0, vmax=1)
        place.set_title(title, fontsize=8)
        place.set_frame_on(False)
        place.set_xticks([])
        place.set_yticks([])
    side = len(sheet(rows)) / len(rows)
    places[0].set_yticks([side * (row + 0.5) for row in range(len(marks))], marks, fontsize=7)
    places[0].tick_params(length=0)
    return figure


def sheet(rows: list[Tensor]) -> np.ndarray:
    """Return images [n, 1, H, W] in rows, a grey frame around each: float [H', W']."""
    framed = [F.pad(row[:, 0], (1, 1, 1, 1), value=_GREY) for row in rows]
    return torch.cat([torch.cat(list(row), 1) for row in framed], 0).numpy()


def spaces(runs: dict[str, dict[str, Held]], real: Real, site: str, classes: int) -> Figure:
    """Draw a site's images, a row a class; before it the class and how many real images of it the site has."""
    panels: dict[str, list[Tensor]] = {}
    for name, made in runs.items():
        panels[name] = [_filled(of_class(made[site], digit)[:SHOWN]) for digit in range(classes)]
    counts = [len(of_class(real.sites[site], digit)) for digit in range(classes)]
    return drawing(panels, [f"{digit} ({count})" for digit, count in enumerate(counts)])


def _filled(images: Tensor) -> Tensor:
    """Return the images with as much empty paper as is missing to a row."""
    empty = torch.full((SHOWN - len(images), *images.shape[1:]), _PAPER)
    return torch.cat([images, empty])


def with_nearest(runs: dict[str, dict[str, Held]], real: Real, site: str, classes: int) -> Figure:
    """Draw of each run some images of each class, its nearest of the site's and its nearest of as many others."""
    panels: dict[str, list[Tensor]] = {name: [] for name in runs}
    marks = []
    for digit in range(classes):
        both = real.inside_and_outside(site, digit)
        if both is None:
            continue
        marks += [str(digit)] * BESIDE
        for name, made in runs.items():
            for image in of_class(made[site], digit)[:BESIDE]:
                nearest = [among[distances(image[None], among).argmin()] for among in both]
                panels[name].append(torch.stack([image, *nearest]))
    return drawing(panels, marks)


def main(arguments: list[str] | None = None) -> None:
    """Print the table and write the figures."""
    parser = argparse.ArgumentParser(
        description="What do the images that FedDGM distils look like?"
    )
    parser.add_argument("runs", nargs="+", metavar="NAME=RECORD")
    parser.add_argument("--output", type=Path, default=Path())
    parser.add_argument("--site", default="partition-9", help="whose images the figures show")
    chosen = parser.parse_args(arguments)
    runs: dict[str, dict[str, Held]] = {}
    for word in chosen.runs:
        name, _, record = word.partition("=")
        run, runs[name] = distilled(record)
    real, classes = real_of(run), len(run.info.classes)
    print(table(runs, real, reader(run, real)))
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name, draw in (("distilled-spaces", spaces), ("distilled-nearest", with_nearest)):
        draw(runs, real, chosen.site, classes).savefig(chosen.output / f"{name}.png", dpi=100)


if __name__ == "__main__":
    main()
