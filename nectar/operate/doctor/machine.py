"""Checks of the machine: versions, its device, disk space, a site's ledger, the images."""

from __future__ import annotations

import csv
import logging
import math
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from common.config.loading import load
from common.config.resolved import Config
from common.data.published.sources import SOURCES, DownloadSource
from common.data.store import open_store, store_roots
from common.division import Division
from common.errors import DataError, NectarError
from common.privacy.accounting import epsilon
from common.privacy.ledger import Ledger, LedgerTip
from common.samples.dataset import Dataset
from common.secret.cohort import stated
from common.settings.sections import FOLDERS, TABLE_ENDING, kind_of
from nectar.dataset.account import own
from nectar.dataset.class_folders import class_folders
from nectar.engines.cores import available_cores
from nectar.engines.flower.app import project
from nectar.engines.flower.connection import connect
from nectar.engines.flower.errors import LaunchError
from nectar.operate.doctor.checks import DoctorTarget, Found, Level
from nectar.text import plural

_PYTHON = ((3, 11), (3, 15))
_ROOM_FAILS, _ROOM_WARNS = 100_000_000, 2_000_000_000


def python(target: DoctorTarget) -> Found:
    """Check the version of Python."""
    version, (lowest, above) = platform.python_version(), _PYTHON
    if lowest <= sys.version_info[:2] < above:
        yield "ok", version
    else:
        hint = "install one from {}.{} up to, not including, {}.{}".format(*lowest, *above)
        yield "fail", f"{version}: {hint}"


def secret_sum(target: DoctorTarget) -> Found:
    """State what the run's secret sum tolerates, if it has one."""
    if target.config.secret:
        yield "ok", stated(target.config.federation)


def flower(target: DoctorTarget) -> Found:
    """Check the version of Flower; the supported ones work with each other."""
    found = metadata.version("flwr")
    wanted = flowers_taken()
    if minor(found) in wanted:
        yield "ok", f"{found}; every machine of a federation needs {' or '.join(wanted)}"
    else:
        yield (
            "fail",
            f'{found}, the app needs {" or ".join(wanted)}: pip install "flwr=={wanted[-1]}.*"',
        )


def flowers_taken() -> list[str]:
    """Return each major.minor of Flower that the app is written for."""
    with suppress(LaunchError):
        for requirement in project()["project"]["dependencies"]:
            if match := re.fullmatch(r"flwr>=(\d+)\.(\d+),<\1\.(\d+)", requirement):
                major, first, above = match.groups()
                return [f"{major}.{number}" for number in range(int(first), int(above))]
    return [minor(metadata.version("flwr"))]


def minor(version: str) -> str:
    """Return a version's major.minor."""
    return ".".join(version.split(".")[:2])


def device(target: DoctorTarget) -> Found:
    """Check that the torch device exists, and compute something on it."""
    import torch

    from common.learning.compute import autocast, torch_device

    compute = target.config.compute
    name, precision = compute.device, compute.precision
    cores = compute.client_cores if target.site else compute.server_cores
    try:
        found = torch_device(name)
        with autocast(found, precision):
            total = (torch.ones(8, 8, device=found) @ torch.ones(8, 8, device=found)).sum().item()
    except (NectarError, RuntimeError) as error:
        yield "fail", f"{name}: {str(error).splitlines()[0]}"
        return
    have = available_cores()
    where = torch.cuda.get_device_name(found) if found.type == "cuda" else platform.machine()
    text = f"{found} ({where}), {precision}, {cores} of {have} cores"
    # only on x86 can missing instructions for bfloat16 be detected
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    if total != 8**3:
        yield "fail", f"{found} computes wrongly: choose cpu"
    elif cores > have:
        yield "warn", f"{text}: more threads than cores only slow it down; set fewer"
    elif precision == "bfloat16" and found.type == "cpu" and not capabilities.get("amx_bf16", True):
        advice = "measured slower than float32 where a CPU lacks AMX, as this one does; try float32"
        yield "warn", f"{text}: {advice}"
    else:
        yield "ok", text


def records(target: DoctorTarget) -> Found:
    """Check whether records can be written; if the SuperLink is on another machine, they are written there."""
    if target.site:
        return
    local = True
    if target.server is not None:
        with suppress(LaunchError):  # the check of the connection reports it
            local = connect(target.server, target.ca, insecure=target.insecure).is_local
    if local:
        yield from room(target.config.output_dir)
    else:
        yield "ok", "not checked: the ServerApp writes them on the SuperLink's machine"


def room(directory: Path | None) -> Found:
    """Check whether a directory can be written, or made, and how much space is free."""
    if directory is None:
        return
    there = directory
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            yield "fail", f"{there} is not a directory: choose another one"
            return
        with tempfile.NamedTemporaryFile(dir=there, prefix=".nectar-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        hint = "change its owner to the user that runs Nectar, or choose another one"
        yield "fail", f"{directory} cannot be written ({error.strerror}): {hint}"
        return
    free = shutil.disk_usage(there).free
    text = f"{directory}: writable, {free / 1e9:.1f} GB free"
    if free < _ROOM_FAILS:
        yield "fail", f"{text}: free some space"
    elif free < _ROOM_WARNS:
        yield "warn", f"{text}: little for checkpoints and pictures"
    else:
        yield "ok", text if directory.exists() else f"{text} (made when needed)"


def ledger(target: DoctorTarget) -> Found:
    """Verify a site's privacy ledger, and report what was spent.

    The node config's delta and budget hold where it names them, else the run's delta.
    """
    if not target.site or target.state is None:
        return
    delta = _number(target.node.get("privacy-delta"), below=1.0) or target.config.privacy.delta
    budget = _number(target.node.get("privacy-epsilon"))
    lines = Ledger(target.state).read()
    if lines.head == LedgerTip():
        yield "ok", "the ledger is empty: nothing was released with noise"
        return
    spent = epsilon(lines.events, delta).value
    message = f"{lines.head.length} charges, epsilon {spent:.3g} at delta {delta:g}"
    if budget is not None and spent > budget:
        yield "warn", f"{message}, over the budget of {budget:g}"
    else:
        yield "ok", f"{message}; `nectar privacy {target.state}` lists them"


def _number(given: object, below: float = math.inf) -> float | None:
    """Return what may be an epsilon or a delta; for anything else the check of the node config reports the error."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < below:
        return None
    return float(given)


def data(target: DoctorTarget) -> Found:
    """Check that a site's data folder, or the shared data set, can be read; downloads and writes nothing.

    Data that only a server elsewhere needs are no failure.
    """
    config = target.config
    if target.data is not None:
        yield _folder(config, target.data) if target.named else _own(target.data)
        return
    if not target.site and config.evaluation.on not in ("server", "both"):
        return
    elsewhere = not target.site and target.server is not None
    try:
        yield _shared(config)
    except NectarError as error:
        hint = "; only the server's machine needs it" if elsewhere else ""
        yield "warn" if elsewhere else "fail", f"{error}{hint}"


def _folder(config: Config, path: Path) -> tuple[Level, str]:
    """Read a site's folder of images, or its table, as the site would."""
    dataset, counts = _held(config, path)
    text = f"{path}: {len(dataset.train):,} {dataset.info.unit} ({_named(counts)})"
    return _with_skipped(text, dataset, "nectar data --folder")


def _own(path: Path) -> tuple[Level, str]:
    """Read a site's own folder so, or look at its table, where the run, which names classes or columns, is unknown."""
    if path.is_file():
        return _table(path)
    names = class_folders(path)
    if not names:
        what = "holds no folder per class" if path.is_dir() else "is not there"
        return "fail", f"{path} {what}: name the one that holds <class>/*, or a .csv file"
    listed = [*names, f"not {names[0]}"] if len(names) == 1 else names  # a run has two at least
    word = shlex.quote(f"images.classes={','.join(listed)}")
    dataset, counts = _held(load({"dataset": FOLDERS, "set": word}), path)
    kinds = f"{plural(len(names), 'class', 'classes')} ({_named(counts)})"
    text = f"{path}: {len(dataset.train):,} images in {kinds}; the run's classes decide"
    if empty := [name for name in names if not counts[name]]:
        return (
            "warn",
            f"{text}, and one that does not list {', '.join(empty)} refuses the empty folder",
        )
    return _with_skipped(text, dataset, "nectar data --folder")


def _held(config: Config, path: Path) -> tuple[Dataset, dict[str, int]]:
    with tempfile.TemporaryDirectory() as keep, quiet():
        dataset = Division(config).site_dataset(path, Path(keep))
        counts = own("", dataset).counts[0].tolist()
    return dataset, dict(zip(dataset.info.classes, counts, strict=True))


def _named(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _table(path: Path) -> tuple[Level, str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = filter(None, csv.reader(file, strict=True))
            head = next(lines, [])
            lengths = Counter(map(len, lines))
    except (OSError, ValueError, csv.Error) as error:
        return "fail", f"{path} is not a table in UTF-8 with commas between its cells ({error})"
    rows, even = lengths.total(), {*lengths} == {len(head)}
    if path.suffix != TABLE_ENDING or len(head) < 2 or not even:
        needs = "a first line with two names at least, then rows of as many cells"
        return "fail", f"{path} is not a .csv file with commas between its cells: it needs {needs}"
    return "ok", f"{path}: {rows:,} rows of {', '.join(head)}; the run's columns and classes decide"


def _shared(config: Config) -> tuple[Level, str]:
    if (
        kind_of(config.dataset) and not config.data.file
    ):  # neither imported nor downloaded by a check
        return (
            "ok",
            f"{config.dataset}: `nectar data dataset={config.dataset}` reads and describes it",
        )
    if kind_of(config.dataset):
        if not os.access(config.data.file, os.R_OK):
            raise DataError(f"{config.data.file} does not exist or cannot be read")
        return "ok", f"{config.data.file}: `nectar data data.file=...` describes it"
    with tempfile.TemporaryDirectory() as keep, quiet():
        learned, tested, dataset = _read(config, Path(keep))
    where = "" if config.dataset == "digits" else f" below {config.data_dir}"
    unit = Division(config).run.info.unit
    text = f"{config.dataset}{where}: {learned:,} {unit} to learn from, {tested:,} to test"
    return _with_skipped(text, dataset, "nectar data")


def _read(config: Config, keep: Path) -> tuple[int, int, Dataset | None]:
    """Return the numbers of training and test images; files that a run would write go to ``keep``."""
    data_dir = config.data_dir.expanduser().resolve()
    source = SOURCES.get(config.dataset)
    if source is None:
        images = config.images
        if images.folder:
            place = str(data_dir / Path(images.folder).expanduser())
            images = images.model_copy(update={"folder": place})
        dataset = Division(replace(config, data_dir=keep, images=images)).dataset
        return len(dataset.train), len(dataset.test), dataset
    for root in store_roots(data_dir):
        with suppress(OSError):
            stored = open_store(root / config.dataset, source.fingerprint(data_dir))
            return len(stored.train), len(stored.test), None
    if isinstance(source, DownloadSource) and (missing := source.missing(data_dir)):
        raise DataError(
            f"{config.dataset}: {data_dir / missing[0].path} is missing: `nectar data dataset={config.dataset} "
            f"data-dir={data_dir}` fetches it where there is a network, or point data-dir or NECTAR_DATA to a folder "
            "that has it"
        )
    train, test = source.splits(data_dir)
    return len(train), len(test), None


def _with_skipped(text: str, dataset: Dataset | None, command: str) -> tuple[Level, str]:
    if dataset is None or not dataset.skipped:
        return "ok", text
    return "warn", f"{text}; not used: {len(dataset.skipped)}, `{command}` names them"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep a data set's log lines out of the list of checks."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
