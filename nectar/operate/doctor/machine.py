"""The machine itself: versions, the source, room on its disks, its device."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from common.code.fingerprint import source_fingerprint
from common.errors import ConfigError
from nectar.engines.cores import available_cores
from nectar.engines.flower.app import project
from nectar.engines.flower.client import LaunchError
from nectar.operate.doctor.check import Check

_PYTHON = ((3, 11), (3, 15))
_ROOM_FAILS, _ROOM_WARNS = 100_000_000, 2_000_000_000


def versions() -> Iterator[Check]:
    """Look at the versions of Python, of Flower (which must share major.minor on all machines) and of torch."""
    lowest, above = (".".join(map(str, version)) for version in _PYTHON)
    fits = _PYTHON[0] <= sys.version_info[:2] < _PYTHON[1]
    hint = "" if fits else f": install one from {lowest} up to, not including, {above}"
    yield Check("python", "ok" if fits else "fail", f"{platform.python_version()}{hint}")
    wanted = flower_wanted()
    found = metadata.version("flwr")
    if _minor(found) == wanted:
        yield Check("flower", "ok", f"{found}; every machine of a federation needs {wanted}.x")
    else:
        yield Check(
            "flower", "fail", f'{found}, the app needs {wanted}.x: pip install "flwr=={wanted}.*"'
        )
    yield Check("torch", "ok", metadata.version("torch"))
    yield Check(
        "source", "ok", f"{source_fingerprint()}; the roll call refuses a site that runs another"
    )


def flower_wanted() -> str:
    """Return the major.minor of Flower that the app is written for."""
    with suppress(LaunchError):
        for requirement in project()["project"]["dependencies"]:
            if match := re.match(r"flwr\b[^>]*>=(\d+\.\d+)", requirement):
                return match[1]
    return _minor(metadata.version("flwr"))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def room(about: str, directory: Path) -> Check:
    """Look whether a directory can be written, or made, and how much room there is."""
    there = directory
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Check(about, "fail", f"{there} is not a directory: name another place")
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".nectar-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Check(
            about,
            "fail",
            f"{directory} cannot be written ({error.strerror}): let its owner be the user that runs this, or name "
            "another",
        )
    free = shutil.disk_usage(there).free
    text = f"{directory}: writable, {free / 1e9:.1f} GB free"
    if free < _ROOM_FAILS:
        return Check(about, "fail", f"{text}: make room")
    if free < _ROOM_WARNS:
        return Check(about, "warn", f"{text}: little for checkpoints and pictures")
    return Check(about, "ok", text if directory.exists() else f"{text} (it is made when needed)")


def device(name: str, precision: str, cores: int) -> Check:
    """Look whether the torch device is there, and compute something on it."""
    import torch

    from common.learning.compute import autocast, torch_device

    try:
        found = torch_device(name)
        with autocast(found, precision):
            total = (torch.ones(8, 8, device=found) @ torch.ones(8, 8, device=found)).sum().item()
    except (ConfigError, RuntimeError) as error:
        sentence = str(error).splitlines()[0]
        return Check("device", "fail", f"{name}: {sentence}")
    if total != 8**3:
        return Check("device", "fail", f"{found} computes wrongly: choose cpu")
    have = available_cores()
    where = torch.cuda.get_device_name(found) if found.type == "cuda" else platform.machine()
    text = f"{found} ({where}), {precision}, {cores} of {have} cores"
    if cores > have:
        return Check("device", "warn", f"{text}: more threads than cores only cost time; set fewer")
    if precision == "bfloat16" and found.type == "cpu" and not _multiplies_in_bfloat16():
        advice = "measured slower than float32 where a CPU lacks AMX, as this one does; try float32"
        return Check("device", "warn", f"{text}: {advice}")
    return Check("device", "ok", text)


def _multiplies_in_bfloat16() -> bool:
    """Return whether this CPU has instructions that make bfloat16 pay; only those of x86 are known not to be there."""
    import torch

    told: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(told.get("amx_bf16", True))
