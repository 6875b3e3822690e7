"""FedDPMS' mathematics: scarce and abundant classes, the matching, means of codes, and accepted copies of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from synth.private_release import Gaussian, clip_factors


def scarcest(counts: Sequence[int], n: int) -> tuple[int, ...]:
    """Return H_i: the ``n`` classes with the fewest examples, or none; ties go to the lower label."""
    return tuple(sorted(range(len(counts)), key=lambda c: (counts[c], c))[:n])


def most_abundant(counts: Sequence[int], n: int, fewest: int = 1) -> tuple[int, ...]:
    """Return C_i: the ``n`` classes with the most examples; of equal ones the lower label.

    A class with less than ``fewest`` examples is not among them, so there may be less than ``n``.
    """
    order = sorted(range(len(counts)), key=lambda c: (-counts[c], c))[:n]
    return tuple(c for c in order if counts[c] >= max(1, fewest))


def best_match(
    site: str, scarce: Collection[int], abundant: Mapping[str, Collection[int]]
) -> str | None:
    """Return the site j with the largest |H_i intersect C_j| (Algorithm 3); None if every intersection is empty.

    Parameters
    ----------
    site : str
        i, which never helps itself.
    scarce : collection of int
        H_i.
    abundant : mapping of str to collection of int
        C_j by site, in site order: of equal intersections the first one.
    """
    wanted, found, most = set(scarce), None, 0
    for other, classes in abundant.items():
        shared = len(wanted & set(classes))
        if other != site and shared > most:
            found, most = other, shared
    return found


def mean_steps(
    codes: Tensor, labels: Tensor, classes: Sequence[int], clip: float, gaussian: Gaussian
) -> Tensor:
    """Return the mean code of each of ``classes`` in steps of the mechanism's grid, [len(classes), l].

    What is no number counts as 0. A code's part, z / m, is cut towards 0, by which it stays as short and as positive as
    `common.privacy.accounting.latent_sensitivity` has it.

    Parameters
    ----------
    codes : Tensor
        In [0, 1], float [n, l].
    labels : Tensor
        Int64 [n], each one of ``classes``.
    clip : float
        C: longer codes are scaled down to that length; 0: none.
    """
    codes = codes.nan_to_num(0, 0, 0).clamp(0, 1)
    of = torch.as_tensor(classes, device=labels.device)
    ranks = (labels[:, None] == of).int().argmax(1)
    sizes = torch.bincount(ranks, minlength=len(classes))
    factors = clip_factors([codes], clip or math.inf) / sizes[ranks]
    sums = codes.new_zeros(len(classes), codes.shape[1], dtype=gaussian.dtype)
    return sums.index_add_(0, ranks, gaussian.steps(codes, factors))


def mean_codes(codes: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
    """Return the mean code of each of ``classes``, dimension by dimension: float [len(classes), l].

    Parameters
    ----------
    codes : Tensor
        Float [n, l].
    labels : Tensor
        Int64 [n]; each of ``classes`` is among them.
    """
    member = (labels == torch.as_tensor(classes, device=labels.device)[:, None]).to(codes.dtype)
    return (member @ codes) / member.sum(1, keepdim=True)


def accepted_copies(
    copies_of: Callable[[Tensor], Tensor],
    labels: Tensor,
    accepts: Callable[[Tensor, Tensor], Tensor],
    quota: int,
    max_draws: int,
) -> tuple[Tensor, Tensor]:
    """Draw noisy copies of each class's mean until ``quota`` of a class are accepted, or ``max_draws`` were drawn.

    All classes that lack copies are drawn for and checked together, ``quota`` a class at a time.

    Parameters
    ----------
    copies_of : callable
        Rows of ``labels``, int64 [n] -> a noisy copy of the mean of each, float [n, l].
    labels : Tensor
        Int64 [k], a class each.
    accepts : callable
        (copies [n, l], labels [n]) -> bool [n]: whether the copy's image is taken for its class (Eq. 2 and 3).
    quota : int
        alpha.
    max_draws : int
        Draws a class at most.

    Returns
    -------
    tuple of Tensor
        The accepted copies, float [N, l], and their labels, int64 [N], class by class.
    """
    kept: list[list[Tensor]] = [[] for _ in labels]
    lacking, drawn = list(range(len(labels))), 0
    while lacking and drawn < max_draws:
        each = min(quota, max_draws - drawn)
        drawn += each
        rows = torch.as_tensor(lacking, device=labels.device).repeat_interleave(each)
        copies = copies_of(rows)
        fit = accepts(copies, labels[rows])
        for i, row in enumerate(lacking):
            part = slice(i * each, (i + 1) * each)
            kept[row].append(copies[part][fit[part]])
        lacking = [row for row in lacking if sum(map(len, kept[row])) < quota]
    none = copies_of(labels.new_zeros(0))
    found = [torch.cat([none, *those])[:quota] for those in kept]
    counts = torch.tensor([len(those) for those in found], dtype=torch.int64, device=labels.device)
    return torch.cat([none, *found]), labels.repeat_interleave(counts)
