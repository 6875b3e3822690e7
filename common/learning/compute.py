"""One policy for device, precision, threads and memory, and how far and how long a computation may go."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor

from common.errors import ConfigError


def use_threads(cores: int) -> None:
    """Limit this process to ``cores`` threads of computation.

    The number is part of the configuration and never read off the machine: the last bits of a convolution's
    gradient depend on it.
    """
    if torch.get_num_threads() != cores:
        torch.set_num_threads(cores)
    _keep_freed_memory()


#: mallopt's parameters, of glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@cache
def _keep_freed_memory() -> None:
    """Make glibc reuse freed activations instead of handing them back and faulting every page in again.

    By default each tensor above 32 MiB is mapped and unmapped: a third to a half of the time of training and
    evaluation on a CPU was spent in the kernel. Other systems' allocators are left alone.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def return_freed_memory() -> None:
    """Give the system back what glibc keeps, such as between two rounds, which may be hours from each other."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


#: bytes of weights from which memory is given back between one piece of work with them and the next: what each leaves
#: free in pieces adds up to copies of the weights, and fetching it again is little compared with the work
_LARGE = 2**24


def is_large(size: int) -> bool:
    """Return whether ``size`` bytes of weights are so many that a copy of them counts more than a moment's work."""
    return size > _LARGE


def return_if_large(size: int) -> None:
    """Give freed memory back after work with ``size`` bytes of weights, if these are many and the process has grown.

    What one piece of work leaves free the next one takes: only where it is fragmented, so that the process grows by an
    eighth of a copy beyond the most that it has held, is it worth a walk over the heap and the faults behind it.
    """
    if not is_large(size):
        return
    held = _resident()
    if held > _most_held[0] + size // 8:
        return_freed_memory()
        _most_held[0] = held


#: the resident bytes at which memory was last given back
_most_held = [0]


def _resident() -> int:
    """Return this process's resident bytes."""
    import psutil  # which work with small weights should not cost

    return int(psutil.Process().memory_info().rss)


def torch_device(name: str) -> torch.device:
    """Return the device ``name``, "auto" being a GPU if there is one; ConfigError if CUDA is requested and missing."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"compute.device is '{name}' but this machine offers {torch.cuda.device_count()} CUDA devices: "
            "choose cpu or auto"
        )
    return device


def gpus() -> tuple[str, ...]:
    """Return the GPUs that this process sees, each as ``CUDA_VISIBLE_DEVICES`` names it."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(named.split(",") if named else map(str, range(count)))[:count]


def gpu_alone(device: str, number: int) -> dict[str, str]:
    """Return the variable by which the ``number``-th of several processes on ``device`` sees one GPU, each in turn.

    Nothing where there is one, or where the device is a certain one.
    """
    seen = gpus() if device in ("auto", "cuda") else ()
    return {"CUDA_VISIBLE_DEVICES": seen[number % len(seen)]} if len(seen) > 1 else {}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which forward passes run: nothing for float32, autocast for bfloat16."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


# ---- pieces --------------------------------------------------------------------------------------
# Large tensors a piece at a time, so that what is computed on the way takes a piece's memory and no tensor's.

#: values of a piece: with its float64, and as much of another tensor, what a core's own cache holds
PIECE = 2**16


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield tensors of one shape side by side in flat pieces, views of those that are in one piece in memory.

    Small ones are yielded as they are.
    """
    if tensors[0].numel() <= PIECE:
        yield tensors
    else:
        yield from zip(*(torch.split(t.reshape(-1), PIECE) for t in tensors), strict=True)


# ---- steps ---------------------------------------------------------------------------------------
# How far a long computation is: steps done of steps to do, for a progress display. It decides nothing.

Watcher = Callable[[str, int, int], None]
"""Told (where, steps done, steps to do) ahead of each step; where: empty for this process, else another one's name."""

_watchers: list[Watcher] = []


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Have only ``watcher`` called for each step within; what it raises ends the computation."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def report_progress(where: str, done: int, steps: int) -> None:
    """Tell the watcher, if there is one, how far a computation is."""
    if _watchers:
        _watchers[-1](where, done, steps)


def counted(steps: int, before_step: Callable[[], None] | None = None) -> Callable[[], None]:
    """Return what is called ahead of each of so many steps: it calls ``before_step`` and the watcher."""
    done = 0

    def ahead() -> None:
        nonlocal done
        if before_step is not None:
            before_step()
        report_progress("", done, steps)
        done += 1

    return ahead
