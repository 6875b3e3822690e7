"""F1, balanced accuracy and AUC against scikit-learn's own, and against a plain count of pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score
from sklearn.utils.class_weight import compute_sample_weight

from client_app.local_training import balanced
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.learning.measures import areas, macro, require_classes
from common.learning.task import Evaluation
from server_app.loop import mean_of


def drawn(classes: int, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs with many ties, and labels of which the last class has none where there are more than two."""
    draw = torch.Generator().manual_seed(seed)
    outputs = (torch.randn(n, classes, generator=draw) * 3).round() / 3
    return outputs, torch.randint(max(2, classes - 1), (n,), generator=draw)


@pytest.mark.parametrize(("classes", "n"), [(2, 40), (5, 200), (62, 700)])
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_the_figures_are_scikit_learns(classes: int, n: int) -> None:
    outputs, labels = drawn(classes, n)
    predicted = outputs.argmax(1)
    counts = torch.bincount(labels * classes + predicted, minlength=classes**2)
    f1, recall = macro(counts.reshape(classes, classes))
    assert f1 == pytest.approx(f1_score(labels, predicted, average="macro"), abs=1e-9)
    assert recall == pytest.approx(balanced_accuracy_score(labels, predicted), abs=1e-9)
    found = areas(outputs, labels)
    scores = outputs.double().softmax(1)
    if classes == 2:
        scores = outputs.double() - outputs.double().flip(1)
    for label in range(classes):
        if (labels == label).any():
            expected = roc_auc_score(labels == label, scores[:, label])
            assert float(found[label]) == pytest.approx(expected, abs=1e-9)
        else:
            assert math.isnan(found[label])


def test_an_area_is_the_share_of_pairs_in_order_with_ties_at_a_half() -> None:
    outputs, labels = drawn(2, 60, seed=3)
    score = (outputs[:, 1].double() - outputs[:, 0].double()).numpy()
    own, others = score[labels == 1], score[labels == 0]
    pairs = (own[:, None] > others) + 0.5 * (own[:, None] == others)
    assert np.mean(own[:, None] == others) > 0, "there are ties"
    assert areas(outputs, labels).tolist() == pytest.approx([pairs.mean()] * 2, abs=1e-12)


def test_outputs_that_are_no_numbers_and_a_single_class_have_no_area() -> None:
    outputs, labels = drawn(3, 20)
    outputs[4, 1] = math.nan
    assert areas(outputs, labels).isnan().all()
    assert areas(drawn(3, 20)[0], torch.zeros(20, dtype=torch.int64)).isnan().all()


def test_weights_of_examples_are_scikit_learns() -> None:
    labels = torch.tensor([0, 0, 0, 0, 3, 3, 5])
    assert balanced(labels).tolist() == pytest.approx(compute_sample_weight("balanced", labels))
    soft = torch.eye(6)[labels] * 0.6
    assert balanced(soft).tolist() == balanced(labels).tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluation.measure=f1", "evaluation.measure=f1 is taken of up to 100 classes"),
        ("fedavg.class_weights=balanced", "class_weights is of classes, and reddit is text"),
    ],
)
def test_text_has_no_classes_to_judge_or_to_weigh(words: str, said: str) -> None:
    run = Division(load({"method": "fedavg", "dataset": "reddit", "set": words})).run
    with pytest.raises(ConfigError, match=said):
        require_classes(run)


def test_several_models_have_the_mean_of_their_figures() -> None:
    each = [
        Evaluation(1.0, 0.5, (0.5,), 4, f1=x, balanced=x, auc=x, confusion=((4,),))
        for x in (0.2, 0.4)
    ]
    found = mean_of(each)
    assert (found.f1, found.balanced, found.auc) == pytest.approx((0.3, 0.3, 0.3))
    assert found.confusion == ()
