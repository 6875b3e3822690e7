"""What results are held against: the best server that asks no site, and models judged on two views of an image.

``python -m benchmarks.controls choose [WORD...]`` scores what a server can do with its own labelled images alone by
five-fold cross-validation within them: the settings are those of ``nectar run WORD...``. The test images are not read.

``python -m benchmarks.controls mirror COMPARISON...`` judges each run's last model once more, on the mean of the
probabilities of an image and its mirror image, as rows of sums of features see it anyway. CSV on standard output.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from common.division import Division
from common.learning.training import evaluate
from common.samples.inputs import samples
from common.wire.weights import Weights
from nectar.arguments import parse_arguments, resolved
from nectar.recorded_run import RecordedRun
from server_app.app import make_strategy
from strategies.ridge import Ridge
from strategies.server import Server

FOLDS, AT_ONCE = 5, 500

CANDIDATES = {
    "a network": "method=server",
    "ridge": "method=ridge ridge.alone=on",
    "a network taught by ridge": "method=ridge ridge.alone=on ridge.student=convnet",
    "ridge on that network": "method=ridge ridge.alone=on ridge.student=convnet ridge.refit=on rounds=1",
}


@dataclasses.dataclass(frozen=True)
class Folded(Division):
    """A division whose server has but the images of four folds, and is judged on those of the fifth."""

    fold: int = 0

    @property
    def validation(self) -> np.ndarray:
        """Positions of the four folds."""
        return np.setdiff1d(super().validation, self.left_out)

    @property
    def left_out(self) -> np.ndarray:
        """Positions of the fifth."""
        draws = np.random.default_rng(self.config.seed)
        return draws.permutation(super().validation)[self.fold :: FOLDS]


def scores(words: Sequence[str], folds: Iterable[int]) -> Iterator[tuple[int, float]]:
    """Yield a candidate's accuracy on folds, after training on the other four."""
    config = resolved(parse_arguments([*words, "data.validation_at=server"]))
    for fold in folds:
        division = Folded(config, fold=fold)
        run, train = division.run, division.dataset.train
        strategy = make_strategy(run)
        kept = samples(train, run.info, division.validation)
        if isinstance(strategy, Ridge):
            strategy._own = kept
        else:
            assert isinstance(strategy, Server)
            strategy._images = kept
        start = Weights.of(run.build_model())
        strategy.instructions(1, start, [])
        model = run.build_model()
        strategy.update(1, start, []).load_into(model)
        judged = samples(train, run.info, division.left_out)
        yield fold, evaluate(model, judged, run.task, AT_ONCE).accuracy


class BothViews(nn.Module):
    """The logarithm of the mean of a model's probabilities of an image and of its mirror image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, classes]."""
        pair = torch.stack([self.model(x), self.model(x.flip(3))])
        return pair.softmax(2).mean(0).clamp_min(1e-30).log()


def mirrored(record: Path) -> float:
    """Return the accuracy of a record's last model on both views of the test images."""
    past = RecordedRun.open(record)
    division = Division(past.config)
    run = division.run
    test = samples(division.dataset.test, run.info)
    return evaluate(BothViews(past.model), test, run.task, AT_ONCE).accuracy


def main() -> int:
    """Print the scores as CSV; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controls", description=__doc__)
    parser.add_argument("what", choices=("choose", "mirror"))
    parser.add_argument("words", nargs="*", help="settings, or comparisons")
    parser.add_argument("--candidate", choices=CANDIDATES, action="append", help="by default all")
    parser.add_argument("--fold", type=int, choices=range(FOLDS), action="append")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = csv.writer(sys.stdout)
    if given.what == "choose":
        lines.writerow(["candidate", "fold", "accuracy"])
        for name in given.candidate or CANDIDATES:
            words = [*given.words, *CANDIDATES[name].split()]
            for fold, accuracy in scores(words, given.fold or range(FOLDS)):
                lines.writerow([name, fold, f"{accuracy:.4f}"])
                sys.stdout.flush()
        return 0
    lines.writerow(["row", "seed", "accuracy", "both views"])
    for comparison in given.words:
        with (Path(comparison) / "table.csv").open(newline="") as file:
            for line in csv.DictReader(file):
                both = mirrored(Path(line["record"]))
                lines.writerow([line["variant"], line["seed"], line["accuracy"], f"{both:.4f}"])
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
