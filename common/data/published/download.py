"""The first use of a data set where there is a network: torchvision fetches its files."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from common.data.bounds import ANYWHERE, Bounds
from common.data.folders.files import Source, read_verified
from common.errors import DataError

log = logging.getLogger("flwr")


def ensure_files(name: str, source: Source, data_dir: Path, bounds: Bounds = ANYWHERE) -> None:
    """Download what is missing below ``data_dir``; without a network say what to put where.

    The caller holds the data set's lock, so that one process downloads and the others wait.

    Raises
    ------
    DataError
        files are missing and cannot be downloaded, or may not be.
    """
    missing = source.missing(data_dir)
    if not missing:
        return
    bounds.may_download(name)
    log.info("%s: %s is missing, downloading it", name, data_dir / missing[0].path)
    try:
        _download(name, source, data_dir)
    except (
        Exception
    ) as error:  # a network fails in any way it likes; the user's way out is the same
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        first, others = missing[0], len(missing) - 1
        more = f" (and {others} more from there)" if others else ""
        raise DataError(
            f"{name} cannot be loaded: {data_dir / first.path}{more} is missing and the download "
            f"failed ({reason}); unpack {first.archive} so that the file lies there, or point "
            "data-dir or NECTAR_DATA to a folder that has it"
        ) from error


def _download(name: str, source: Source, data_dir: Path) -> None:
    """Let torchvision download into a folder of its own, and move what checks to its place.

    A download that breaks off leaves nothing that looks like a file of the data set.
    """
    import torchvision.datasets  # two seconds, which only a download should cost

    staging = data_dir / f".nectar-download-{name}"
    shutil.rmtree(staging, ignore_errors=True)  # what a killed download left
    staging.mkdir(parents=True)
    try:
        getattr(torchvision.datasets, source.torchvision)(root=staging, download=True)
        for file in source.missing(data_dir):
            read_verified(staging, file)
            (data_dir / file.path).parent.mkdir(parents=True, exist_ok=True)
            (staging / file.path).replace(data_dir / file.path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
