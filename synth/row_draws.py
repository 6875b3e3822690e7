"""Random numbers of the examples of a batch, each example's own, for what is drawn inside a private step.

One example more moves a clipped sum by no more than C if it changes what no other example draws. A generator that
draws for a batch row by row breaks that: the example shifts all rows after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class RowDraws(Protocol):
    """Draws for n examples; each call gives other numbers, and none of a row's depends on the other rows."""

    def __len__(self) -> int:
        """Return n."""

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers from (0, 1), float64 [n, *shape], on the examples' device."""

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, float32 [n, *shape], on the examples' device."""

    def part(self, rows: slice) -> RowDraws:
        """Return the draws that are to come of some of the rows."""


def integers(rows: RowDraws, high: int, *shape: int) -> Tensor:
    """Return integers from 0 to ``high`` - 1, each as likely, int64 [n, *shape]."""
    return (rows.uniform(*shape) * high).long().clamp_(max=high - 1)


class UndrawableError(RuntimeError):
    """A layer draws in a way in which an example's numbers cannot be its own."""


class LayerDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this lasts, layers such as dropout draw each example's numbers from its own row.

    For a forward pass under ``torch.func.vmap`` with ``randomness="different"``, whose draws have an example a row.

    Parameters
    ----------
    rows : RowDraws
        Those of the batch's examples.

    Attributes
    ----------
    drew : bool
        Whether anything was drawn.

    Raises
    ------
    UndrawableError
        If something is drawn that has not a row for each example, or in an unknown way.
    """

    def __init__(self, rows: RowDraws) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self.drew = rows, False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer what draws, and let everything else through."""
        given = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **given)
        self.drew = True
        draw = _DRAWS.get(func)
        if draw is None:
            raise UndrawableError(
                f"a layer of the model draws by {func}, which a private step cannot draw for each example by itself: "
                "use torch's dropout, or torch.rand, randn, randint or bernoulli, in the forward pass"
            )
        return draw(self, args, given)

    def _drawn(self, name: str, shape: Sequence[int]) -> Tensor:
        if not len(shape) or shape[0] != len(self._rows):
            raise UndrawableError(
                f"a layer of the model draws numbers of shape {tuple(shape)} for {len(self._rows)} examples at once, "
                "and in a private step each draws its own"
            )
        numbers: Tensor = getattr(self._rows, name)(*shape[1:])
        return numbers

    def kept(self, share: float, like: Tensor) -> Tensor:
        """Return 1 with probability ``share``, else 0, of the form of ``like``."""
        return (self._drawn("uniform", like.shape) < share).to(like.dtype)

    def like(self, name: str, tensor: Tensor, **given: Any) -> Tensor:
        """Return numbers of a tensor's form."""
        return self._drawn(name, tensor.shape).to(given.get("dtype") or tensor.dtype)

    def new(self, name: str, shape: Sequence[int], **given: Any) -> Tensor:
        """Return numbers of a shape."""
        return self._drawn(name, shape).to(given.get("dtype") or torch.get_default_dtype())

    def between(self, low: int, high: int, shape: Sequence[int], **given: Any) -> Tensor:
        """Return integers from ``low`` to ``high`` - 1."""
        drawn = (self._drawn("uniform", shape) * (high - low)).long().clamp_(max=high - low - 1)
        return (drawn + low).to(given.get("dtype") or torch.int64)

    def dropped(self, x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
        """Return a fused dropout's output for ``x``, and its mask."""
        if train is False:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        mask = self.kept(1 - p, x)
        return x * mask / (1 - p), mask.bool()


class Layers:
    """Whether the layers of a model in private training draw, found out in its first batch."""

    def __init__(self) -> None:
        self._draw: bool | None = None

    @contextmanager
    def drawing(self, rows: RowDraws, device: torch.device) -> Iterator[None]:
        """Make the layers draw from ``rows``; if they drew nothing before, check that they still do not.

        Raises
        ------
        UndrawableError
            If they draw in a way in which an example's numbers cannot be its own.
        """
        if self._draw is False:  # intercepting torch's calls takes as long as a small layer
            before = _state_of(device)
            yield
            if not torch.equal(before, _state_of(device)):
                raise UndrawableError(
                    "a layer of the model draws in some steps and not in the first one, so that none was made for each "
                    "example by itself: have it draw in every step, or never"
                )
            return
        mode = LayerDraws(rows)
        with mode:
            yield
        self._draw = mode.drew


def _state_of(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


_Draw = Callable[[LayerDraws, Sequence[Any], Mapping[str, Any]], Any]

aten = torch.ops.aten

_DRAWS: dict[Any, _Draw] = {
    aten.bernoulli.p: lambda m, a, k: m.kept(a[1], a[0]),
    aten.bernoulli.default: lambda m, a, k: m.like("uniform", a[0]).lt(a[0]).to(a[0].dtype),
    aten.bernoulli_.float: lambda m, a, k: a[0].copy_(m.kept(a[1] if len(a) > 1 else 0.5, a[0])),
    aten.native_dropout.default: lambda m, a, k: m.dropped(*a, **k),
    aten.rand_like.default: lambda m, a, k: m.like("uniform", a[0], **k),
    aten.randn_like.default: lambda m, a, k: m.like("normal", a[0], **k),
    aten.rand.default: lambda m, a, k: m.new("uniform", a[0], **k),
    aten.randn.default: lambda m, a, k: m.new("normal", a[0], **k),
    aten.randint.default: lambda m, a, k: m.between(0, *a, **k),
    aten.randint.low: lambda m, a, k: m.between(*a, **k),
    aten.normal_.default: lambda m, a, k: a[0].copy_(
        m.like("normal", a[0]) * (a[2] if len(a) > 2 else 1.0) + (a[1] if len(a) > 1 else 0.0)
    ),
    aten.uniform_.default: lambda m, a, k: a[0].copy_(
        m.like("uniform", a[0]) * ((a[2] if len(a) > 2 else 1.0) - (a[1] if len(a) > 1 else 0.0))
        + (a[1] if len(a) > 1 else 0.0)
    ),
}
