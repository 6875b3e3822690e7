"""FedDPMS' mathematics: scarce and abundant classes, the matching, means of codes, and accepted copies of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor


def scarcest(counts: Sequence[int], n: int) -> tuple[int, ...]:
    """Return H_i: the ``n`` classes with the fewest examples, or none; of equal ones the lower label."""
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
    """Return the site j with the largest |H_i intersect C_j| (Algorithm 3); None where every intersection is empty.

    Parameters
    ----------
    site : str
        i, which never helps itself.
    scarce : collection of int
        H_i.
    abundant : mapping of str to collection of int
        C_j by site, in site order: of equal intersections the first one's stands.
    """
    wanted, found, most = set(scarce), None, 0
    for other, classes in abundant.items():
        shared = len(wanted & set(classes))
        if other != site and shared > most:
            found, most = other, shared
    return found


def clipped(codes: Tensor, norm: float) -> Tensor:
    """Return the codes [n, l], those longer than ``norm`` scaled to that length; 0 leaves all as they are."""
    if not norm:
        return codes
    lengths = codes.norm(dim=1, keepdim=True)
    cut: Tensor = codes * (norm / lengths.clamp_min(norm))
    return cut


def class_means(codes: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
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
    means: Tensor,
    labels: Tensor,
    noise: Callable[[int, int], Tensor],
    accepts: Callable[[Tensor, Tensor], Tensor],
    quota: int,
    max_draws: int,
) -> tuple[Tensor, Tensor]:
    """Draw noisy copies of each class's mean until ``quota`` of a class are accepted, or ``max_draws`` were drawn.

    All classes that lack copies are drawn for and judged together, ``quota`` a class at a time.

    Parameters
    ----------
    means : Tensor
        Float [k, l], a class each.
    labels : Tensor
        Int64 [k].
    noise : callable
        (copies, l) -> so many rows of noise, float [copies, l].
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
        rows = torch.as_tensor(lacking, device=means.device).repeat_interleave(each)
        copies = means[rows] + noise(len(rows), means.shape[1])
        fit = accepts(copies, labels[rows])
        for i, row in enumerate(lacking):
            part = slice(i * each, (i + 1) * each)
            kept[row].append(copies[part][fit[part]])
        lacking = [row for row in lacking if sum(map(len, kept[row])) < quota]
    found = [torch.cat(those)[:quota] if those else means[:0] for those in kept]
    counts = torch.tensor([len(those) for those in found], dtype=torch.int64, device=labels.device)
    return torch.cat([means[:0], *found]), labels.repeat_interleave(counts)
