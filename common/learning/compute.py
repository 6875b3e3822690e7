"""One policy for device, precision and threads, on the server and on every device."""

from __future__ import annotations

import ctypes
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from common.errors import ConfigError


def use_threads(cores: int) -> None:
    """Let this process compute on ``cores`` threads, no more.

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
    """Let glibc reuse freed activations instead of handing them back and faulting every page in again.

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
    """Give the system back what glibc keeps, such as between two rounds, which may lie far apart."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


#: bytes of weights from which memory is given back between one piece of work with them and the next: what each leaves
#: free in pieces adds up to copies of the weights, and fetching it again is little beside the work
_LARGE = 2**24


def is_large(size: int) -> bool:
    """Whether ``size`` bytes of weights are so many that a copy of them counts more than a moment's work."""
    return size > _LARGE


def return_if_large(size: int) -> None:
    """Give freed memory back after work with ``size`` bytes of weights, if these are many."""
    if is_large(size):
        return_freed_memory()


def torch_device(name: str) -> torch.device:
    """Return the device ``name``, "auto" being a GPU where there is one; ConfigError if CUDA is asked and not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"compute.device is '{name}' but this machine offers {torch.cuda.device_count()} CUDA devices: "
            "choose cpu or auto"
        )
    return device


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which forward passes run: nothing for float32, autocast for bfloat16."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
