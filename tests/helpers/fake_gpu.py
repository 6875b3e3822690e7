"""A device without one: PrivateUse1 over CPU tensors, which refuses what a GPU refuses.

Tensors on it are wrappers around ones on the CPU. An operation that mixes the two is an error, and so is a draw on it
by a generator of the CPU's, or the other way round; a copy from one to the other is not, nor a CPU tensor of no
dimension beside one on the device, as torch has it. For a process of its own: what is registered here stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

DEVICE = torch.device("privateuseone", 0)
CPU = torch.device("cpu")

_LIBRARY = torch.library.Library("aten", "IMPL")
_CPU_GENERATOR = torch.Generator

#: what may have tensors of both
_COPIES = {"aten::copy_", "aten::_foreach_copy_", "aten::_to_copy"}


class Mixed(RuntimeError):
    """What a GPU would refuse."""


class OnDevice(torch.Tensor):
    """A tensor on the device; its numbers lie in ``inner``."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        """Wrap a tensor of the CPU's."""
        made: OnDevice = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry the operation out on the CPU."""
        kwargs = dict(kwargs or {})
        name = func._schema.name
        _refuse_mixed(name, [*args, *kwargs.values()])
        to = kwargs.get("device")
        if to is not None and torch.device(to).type == DEVICE.type:
            kwargs["device"] = CPU
        found = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if name == "aten::_to_copy" and to is not None and torch.device(to).type == "cpu":
            return found
        if name == "aten::copy_" and not isinstance(args[0], OnDevice):
            return args[0]
        return _returned(func, args, kwargs, found)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value


def _refuse_mixed(name: str, values: list[Any]) -> None:
    if name in _COPIES:
        return
    flat, _ = tree_flatten(values)
    tensors = [value for value in flat if isinstance(value, Tensor)]
    strangers = [t for t in tensors if not isinstance(t, OnDevice) and t.dim()]
    if strangers and len(strangers) < len(tensors):
        raise Mixed(f"{name} of a tensor on {DEVICE} and one on {strangers[0].device}")


def _returned(func: Any, args: Any, kwargs: Any, found: Any) -> Any:
    """Return wrappers around the results; the very argument where that was changed in its place."""
    written = {}
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.is_write and isinstance(value, OnDevice):
            written[id(value.inner)] = value
    for value in kwargs.values():
        if isinstance(value, OnDevice):
            written[id(value.inner)] = value

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, OnDevice):
            return value
        return written.get(id(value)) if id(value) in written else OnDevice(value)

    return tree_map(wrapped, found)


def _empty(size: Any, **options: Any) -> Tensor:
    kept = {key: options[key] for key in ("dtype", "layout", "memory_format") if options.get(key)}
    return OnDevice(torch.empty(size, **kept))


def _empty_strided(size: Any, stride: Any, **options: Any) -> Tensor:
    kept = {"dtype": options["dtype"]} if options.get("dtype") else {}
    return OnDevice(torch.empty_strided(size, stride, **kept))


def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between the two; torch.tensor does so past what a subclass is asked."""
    _inner(to).copy_(_inner(source))
    return to


class Generator(torch.Generator):
    """The CPU's, with a device of its own."""

    def __new__(cls, device: torch.device | str = "cpu") -> Generator:
        """Make one that draws on ``device``."""
        made = super().__new__(cls)
        made._on = torch.device(device)  # type: ignore[attr-defined]
        return made  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        """Where it draws."""
        return self._on  # type: ignore[attr-defined,no-any-return]


class OwnGenerators(TorchFunctionMode):
    """While entered, a generator draws on its own kind of device alone."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at the generator, and carry the function out."""
        kwargs = kwargs or {}
        if func is torch.Tensor.tolist:  # which torch has for no subclass, and every device
            return _inner(args[0].detach()).tolist()
        generator = kwargs.get("generator")
        if generator is not None:
            tensors = [value for value in args if isinstance(value, Tensor)]
            where = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
            if where.type != generator.device.type:
                raise Mixed(f"{func.__name__} on {where} by a generator on {generator.device}")
        return func(*args, **kwargs)


class _Hook(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined,misc]
    """What autograd asks of a device: this one has no streams to wait for."""

    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device: int) -> bool:
        return False


class _Backend(_DummyBackendModule):  # type: ignore[misc]
    """What autocast asks besides."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def register() -> None:
    """Make the device known to torch in this process, for good."""
    _setup_privateuseone_for_python_backend(
        rename="pretended", backend_module=_Backend(), hook=_Hook()
    )
    _LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
    _LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
    _LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
    torch.Generator = Generator  # type: ignore[misc]
