"""benchmarks/controls.py: folds that share no image, and a model judged on both views of an image."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from benchmarks.controls import CANDIDATES, FOLDS, BothViews, Folded, scores
from common.config.loading import load
from common.division import Division

DIGITS = {"method": "server", "dataset": "digits"}


def test_the_folds_are_the_servers_images_each_left_out_once() -> None:
    config = load(DIGITS)
    every = Division(config).validation
    folds = [Folded(config, fold=fold) for fold in range(FOLDS)]
    left_out = np.concatenate([one.left_out for one in folds])
    assert sorted(left_out) == sorted(every)
    for one in folds:
        assert sorted([*one.validation, *one.left_out]) == sorted(every)


def test_a_candidate_learns_from_the_other_folds() -> None:
    words = ["dataset=digits", "ridge.width=17", *CANDIDATES["ridge"].split()]
    ((fold, accuracy),) = scores(words, [3])
    assert fold == 3
    assert 0.5 < accuracy <= 1


def test_both_views_are_the_mean_of_the_probabilities() -> None:
    class Sided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((1, 2)) * 3

    x = torch.tensor([[[[1.0, 0.0]]]])
    found = BothViews(Sided())(x).exp()
    one = torch.tensor([3.0, 0.0]).softmax(0)
    torch.testing.assert_close(found[0], (one + one.flip(0)) / 2)
