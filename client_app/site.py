"""A node's own side of a run: its images and its state. Built once a process, then reused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from logging import getLogger
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message

from client_app.draws import divided, is_seeded, key_of, refuse_seeded
from client_app.owner.ledger import Account, check_budget, check_covered
from client_app.owner.node_config import NodeConfig, absolute
from client_app.owner.review import Review
from client_app.owner.vetoes import (
    check_classes,
    check_known,
    check_parameters,
    check_settings,
    check_size,
    import_policy_of,
)
from client_app.state import (
    ARTIFACTS,
    COLUMNS,
    ContextState,
    DeviceState,
    DirectoryState,
    state_kind_of,
)
from common.config.keys import COMMAND_LINE
from common.config.loading import load
from common.config.resolved import Config
from common.data.loading import cache_generation, require_own
from common.data.store import digest_of
from common.division import Division, require_same_data
from common.errors import ConfigError, FederationError
from common.learning.compute import torch_device
from common.learning.run import Run
from common.samples.dataset import Dataset
from common.samples.inputs import Samples, samples
from common.settings.sections import ComputeSettings, kind_of
from common.sites import (
    IN_PROCESS,
    RAY,
    SUPERLINK,
    Site,
    folder_sites,
    partition_name,
    site_name,
)
from common.storage.limits import Bounds

PARTITION = ("partition-id", "num-partitions")
"""The node config's keys of a site that is given its share of the run's data set."""

logger = getLogger("flwr")

RunItems = tuple[tuple[str, str | int | float | bool], ...]


def bounded(division: Division, node: NodeConfig) -> Division:
    """Return ``division`` within what a real site's owner lets a run do there.

    Raises
    ------
    FederationError
        If its settings or its model are vetoed.
    DataError
        If it names a place outside of the data root.
    """
    config = division.config
    check_settings(node, config)
    check_covered(node, config)
    root = node.data_root or load({}).data_dir
    bounds = Bounds(root, node.allow_download, node.state_dir)
    if node.data is not None:  # images of the site's own: the run's paths play no part there
        if kind_of(config.dataset) and not config.data.columns:
            require_own(config.dataset)
        config = replace(
            config,
            data_dir=root,
            images=config.images.model_copy(update={"folder": "", "sites": ""}),
            data=config.data.model_copy(update={"file": "", "sites": "", "owner": ""}),
        )
    elif config.origin.get("data-dir") != COMMAND_LINE and node.data_root is not None:
        config = replace(config, data_dir=root)
    bounds.inside(config.data_dir, "data-dir")
    within = Division(config, bounds)
    if node.max_parameters is not None:
        check_parameters(node, within.run.parameters)
        if within.extractor is not None:
            check_parameters(node, within.extractor.parameters)
    return within


@lru_cache(maxsize=4)
def _division(
    items: RunItems, device: str | None, cores: int | None, owner: NodeConfig | None, forgotten: int
) -> Division:
    policy = None if owner is None else import_policy_of(owner.allow_imports or ())
    config = load(dict(items), policy=policy)
    own = {"device": device, "client_cores": cores}
    if own := {key: value for key, value in own.items() if value is not None}:
        compute = ComputeSettings.model_validate(config.compute.model_dump() | own)
        config = replace(config, compute=compute)
    division = Division(config)
    return division if owner is None else bounded(division, owner)


def division_of(context: Context) -> Division:
    """Return the run that ``context`` configures and its data, the same object for equal configurations.

    A site's own ``device`` and ``cores`` override the run's ``compute.device`` and ``compute.client_cores``. A
    simulation imports, reads and computes all that the run names: it runs on its user's own machine. A real site's run
    is compared with what its owner allows.

    Raises
    ------
    FederationError
        If one of them is invalid, or the run requests what the site's owner does not allow.
    DataError
        If the run names a place that the site does not open.
    """
    node = NodeConfig.of(context.node_config)
    owner = None if is_simulated(context) else node
    if owner is not None:
        Review.of(node)
        check_budget(node)
        check_known(node)
        check_size(context.run_config)
    if node.device is not None:
        try:
            torch_device(node.device)
        except ConfigError:
            raise FederationError(
                f"the node config says device='{node.device}', which this machine does not offer: choose cpu or auto"
            ) from None
    items = tuple(sorted(context.run_config.items()))
    return _division(items, node.device, node.cores, owner, cache_generation())


def partition_of(context: Context) -> tuple[int, int]:
    """Return the node's (partition-id, num-partitions); FederationError if none, or they do not fit."""
    index, number = (context.node_config.get(key) for key in PARTITION)
    if not isinstance(index, int) or not isinstance(number, int) or not 0 <= index < number:
        raise FederationError(
            f"the node config says partition-id={index} num-partitions={number}: start the SuperNode with "
            '--node-config "partition-id=I num-partitions=K", I from 0 to K-1; a site with images of its own names '
            "them as data='/abs/folder', and of rows as data='/abs/site.csv'"
        )
    return index, number


def site_of(run: Run, context: Context) -> str:
    """Return the site's name: its folder's, where the run simulates sites with folders of their own.

    Raises
    ------
    FederationError
        If the node config gives no name that can be used.
    """
    if "site" not in context.node_config and _simulated_folder(run, context) is not None:
        named = run.config.images.sites or run.config.data.sites
        return folder_sites(named)[partition_of(context)[0]]
    return site_name(context.node_config)


def drawn_name(run: Run, context: Context) -> str:
    """Return what the site's draws go by: the partition of a known data set that it holds, else its name."""
    if user_folder(run, context) is None:
        return partition_name(partition_of(context)[0])
    return site_of(run, context)


def _simulated_folder(run: Run, context: Context) -> Path | None:
    """Return the folder that the run gives a simulated site; a real one reads only what its own node config names.

    Raises
    ------
    FederationError
        If there is another number of folders than of partitions, or this is no simulation.
    """
    folders = run.config.site_places
    if not folders or "data" in context.node_config:
        return None
    if not is_simulated(context):
        raise FederationError(
            "images.sites and data.sites simulate sites with data of their own; this is not a simulation: name the "
            "folder or the table in the node config, data='/abs/folder' or data='/abs/site.csv'"
        )
    index, number = partition_of(context)
    what = "tables" if run.config.data.sites else "folders"
    if number != len(folders):
        raise FederationError(
            f"the run names {len(folders)} {what}, and there are {number} nodes: start as many nodes"
        )
    return folders[index]


def user_folder(run: Run, context: Context) -> Path | None:
    """Return the folder of the site's own images, if any; FederationError if relative, or a partition is named, too."""
    named = context.node_config.get("data")
    if named is None:
        return _simulated_folder(run, context)
    if any(key in context.node_config for key in PARTITION):
        raise FederationError(
            "the node config names images of the site's own (data) and a partition (partition-id, num-partitions): "
            "leave one out"
        )
    return absolute("data", named)


#: what this process has read of each division's sites, together the data set once more: no fixed number of them, since
#: sites that take turns beyond it would each be read again in each round
_SAMPLES: WeakKeyDictionary[
    Division, dict[tuple[str, bytes, Dataset | tuple[int, int]], tuple[Samples, Samples]]
] = WeakKeyDictionary()

_folder_dataset = lru_cache(maxsize=1024)(Division.site_dataset)


def _split(
    division: Division, site: str, key: bytes, where: Dataset | tuple[int, int]
) -> tuple[Samples, Samples]:
    """Return a site's images, a partition's or all of a folder's: those to learn from, and those it holds out."""
    if isinstance(where, tuple):
        dataset, indices = division.dataset, division.partition(where[1])[where[0]]
    else:
        dataset, indices = where, np.arange(len(where.train))
    run, parts = division.run, divided(division, site, dataset, indices, key)
    train, holdout = (samples(dataset.train, run.info, part) for part in parts)
    return train.to(run.device), holdout.to(run.device)


def site_samples(division: Division, site: str, context: Context) -> tuple[Samples, Samples]:
    """Return the site's images to learn from and those it holds out, kept in the process.

    They are all of the folder that its node config names as ``data``, if it does, else its partition. ``site`` is what
    its draws go by, `drawn_name`.

    Raises
    ------
    DataError
        If the data set, the partition or the folder cannot be had.
    FederationError
        If the node config names neither a partition nor a folder, or both; the site has too few images of a class
        for its owner to let them be distilled; or it has a folder, and the run asks it for seeded noise.
    """
    run, folder = division.run, user_folder(division.run, context)
    refuse_seeded(run.config, folder is not None)
    key = b""  # by which a private run's site holds examples out
    if run.config.private and run.config.data.site_holdout:
        seeded = is_simulated(context) or is_seeded(run.config, folder is not None)
        key = key_of(run, site, state_directory(context), seeded=seeded)
    where = partition_of(context) if folder is None else data_here(division, context)
    kept, of = _SAMPLES.setdefault(division, {}), (site, key, where)
    if of not in kept:
        kept[of] = _split(division, *of)
    if not is_simulated(context):
        counts = run.task.class_counts(kept[of][0].labels)
        check_classes(NodeConfig.of(context.node_config), run.config, counts)
    return kept[of]


def sites_of(
    division: Division, nodes: Sequence[int], *, by_class: bool, held_out: bool
) -> list[Site]:
    """Return the sites of a simulation in this process, of which node i holds partition i; no image is read for it.

    None where a run reports less than requested.

    Parameters
    ----------
    by_class, held_out : bool
        Whether counts by class are requested, and of held-out examples.
    """
    run, train = division.run, division.dataset.train
    reports, classes = run.config.tells_counts, len(run.info.classes)
    if (by_class and not run.task.by_class) or ((by_class or held_out) and not reports):
        return []
    strata, found = run.task.strata(train), list[Site]()
    for index, part in enumerate(division.partition(len(nodes))):
        name, held = partition_name(index), part[:0]
        if run.config.data.held_by_sites:
            key = key_of(run, name, None, seeded=True)
            part, held = divided(division, name, division.dataset, part, key)
        counts = np.bincount(strata[part], minlength=classes).tolist() if by_class else ()
        labels = torch.from_numpy(np.array(train.labels[held] if held_out else train.labels[:0]))
        found.append(
            Site(
                name=name,
                node_id=nodes[index],
                examples=len(part) if reports else min(1, len(part)),
                partition=index,
                partitions=len(nodes),
                class_counts=tuple(counts),
                engine=IN_PROCESS,
                held_out=len(run.task.counted(labels)),
                data=division.dataset.checksum,
            )
        )
    return found


def data_here(division: Division, context: Context) -> Dataset:
    """Return the data set of which the site holds a part, or its own folder's images."""
    folder = user_folder(division.run, context)
    if folder is None:
        return division.dataset
    kept = state_directory(context) or division.bounds.root
    keep = kept if "data" in context.node_config else division.config.data_dir
    return _folder_dataset(division, folder, keep)


def require_data_of_run(
    division: Division, context: Context, state: DeviceState, stated: str
) -> None:
    """Refuse other data than at the start of the run: as the server stated, or as the site noted of its own folder.

    A real site's folder may grow unless examples are held out by their position. Then a FederationError says both
    checksums.
    """
    found, config = data_here(division, context).checksum, division.config
    if "data" in context.node_config and config.data.columns:
        _require_columns_of_run(config, state)
    own = user_folder(division.run, context) is not None
    first = state.began_with(found) if own else stated
    try:
        require_same_data(config.dataset, {"": first}, {"": found[: len(first)]})
    except FederationError as error:
        by_itself = config.private and config.data.site_holdout
        if "data" not in context.node_config or (config.data.held_by_sites and not by_itself):
            raise
        logger.warning("%s; no held-out example is learned from, so that the run continues", error)


def _require_columns_of_run(config: Config, state: DeviceState) -> None:
    """Refuse other columns, kinds or classes than at the start of the run; a FederationError."""
    agreed = digest_of([config.data.columns, config.data.label, config.images.classes])
    if state.began_with(agreed, COLUMNS) != agreed:
        raise FederationError(
            "the run started at this site with other columns, kinds or classes (data.columns, data.label, "
            "images.classes): continue with those, or start a new run"
        )


def state_of(run: Run, record_id: str, site: str, context: Context) -> DeviceState:
    """Return the directory of the site's state.

    A real site names ``state-dir`` in its node config; a simulated one uses the run's record, whose place it
    takes from its own configuration and never from a message.
    """
    directory, artifact_cache = state_directory(context), None
    simulated = directory is None
    if directory is None and is_simulated(context):
        directory, artifact_cache = _simulated_places(run, record_id)
        record_id = ""
    if directory is None:
        return ContextState(context.state)
    where = directory, record_id, site, context.run_id
    earlier = not run.config.private
    return DirectoryState(
        *where,
        kind=_kind_of(run),
        earlier=earlier,
        artifact_cache=artifact_cache,
        simulated=simulated,
    )


_kind_of = lru_cache(maxsize=16)(lambda run: state_kind_of(run.config))


@lru_cache(maxsize=16)
def _simulated_places(run: Run, record_id: str) -> tuple[Path, Path]:
    """Return where the sites of a simulated run keep what they remember, and what several runs share."""
    record = record_directory(run, record_id)
    return record / "state", record.parent / f".{ARTIFACTS}"


def account_of(run: Run, record_id: str, site: str, context: Context) -> Account | None:
    """Return a real site's account of its privacy; None in a simulation, whose charges are in the run's record.

    Raises
    ------
    FederationError
        If its node config says something of it that cannot be.
    """
    if is_simulated(context):
        return None
    folder = user_folder(run, context)
    if folder is None:
        index, number = partition_of(context)
        data = f"partition {index} of {number} of {run.config.dataset}"
    else:
        data = str(folder)
    return Account(NodeConfig.of(context.node_config), site, record_id, data)


def state_directory(context: Context) -> Path | None:
    """Return the directory that the site's node config names for what it keeps; FederationError if it is relative."""
    named = context.node_config.get("state-dir")
    return None if named is None else absolute("state-dir", named)


def name_of(context: Context) -> str:
    """Return a real site's name, empty if its node config gives none that can be used."""
    try:
        return site_name(context.node_config)
    except FederationError:
        return ""


def config_of(message: Message, name: str = "config") -> ConfigRecord:
    """Return a configuration of an instruction; FederationError if it has none of this name."""
    found = message.content.get(name)
    if not isinstance(found, ConfigRecord):
        raise FederationError(f"the instruction's '{name}' is not a configuration")
    return found


def record_directory(run: Run, record_id: str) -> Path:
    """Return the directory of the run's record on this machine."""
    if run.config.resume:
        return Path(run.config.resume)
    return run.config.output_dir / record_id


def is_simulated(context: Context) -> bool:
    """Return whether this process is a worker of a simulation: Ray's, or the in-process engine's."""
    return engine_of_context(context) != SUPERLINK


def engine_of_context(context: Context) -> str:
    """Return what this process is a node of, one of :data:`common.sites.ENGINES`."""
    if context.node_config.get("simulated") is True:
        return IN_PROCESS
    ray = sys.modules.get("ray")
    return RAY if ray and ray.is_initialized() else SUPERLINK
