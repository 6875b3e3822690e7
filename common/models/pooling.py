"""Max pooling by torch's channels-last kernel, which takes a quarter of the other one's time on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MaxPool2d(nn.MaxPool2d):
    """torch's 2x2 max pool, to the bit: values, and of equal ones the first gets the gradient."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest of each 2x2 values."""
        traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        exported = traced or torch.compiler.is_compiling()
        faster = x.device.type == "cpu" and not exported
        pooled: Tensor = _Largest.apply(x)[0] if faster else super().forward(x)
        return pooled


class _Largest(torch.autograd.Function):
    """The largest values and their places; the gradient, which is fast in any layout, is torch's own."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        by_channel = x.contiguous(memory_format=torch.channels_last)
        largest, places = F.max_pool2d(by_channel, 2, return_indices=True)
        return largest.contiguous(), places.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> Tensor:
        x, places = ctx.saved_tensors
        window = [2, 2], [2, 2], [0, 0], [1, 1], False  # stride, padding, dilation, ceil_mode
        back: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *window, places)
        return back

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> Any:
        """Pool the images of all batches as those of one."""
        several = x.movedim(in_dims[0], 0)
        pooled = _Largest.apply(several.flatten(0, 1))
        return tuple(each.unflatten(0, several.shape[:2]) for each in pooled), (0, 0)
