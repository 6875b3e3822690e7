"""One policy for device, precision and threads, on the server and on every device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from common.errors import ConfigError


def use_threads(cores: int) -> None:
    """Let this process compute on ``cores`` threads, no more.

    The number is part of the configuration and never read off the machine: the last bits of a convolution's
    gradient depend on it.
    """
    if torch.get_num_threads() != cores:
        torch.set_num_threads(cores)


def torch_device(name: str) -> torch.device:
    """Return the device ``name`` stands for; "auto" is a CUDA device where there is one.

    Raises
    ------
    ConfigError
        If a CUDA device is asked for and not there.
    """
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
