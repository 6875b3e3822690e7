"""The audit of a run's record: the sets and models that left, and the data of which the sites had shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from common.config.user_parts import ImportPolicy
from common.division import Division
from common.draws.seeding import numpy_generator
from common.errors import ConfigError, NectarError
from common.learning.compute import use_threads
from common.learning.run import Run
from common.learning.training import plain
from common.models import Classifier
from common.models.registry import KINDS
from common.samples.inputs import Samples, samples
from common.settings.ridge import RidgeSettings
from common.sites import ALL_SITES, site_order
from common.specs.logits import public_samples
from common.storage.files import write_json
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from nectar.audit.images.examining import (
    MOST_SITES,
    Evidence,
    Sent,
    concatenated,
    examined,
    notes_of,
    outcome,
    sent_of,
    together,
)
from nectar.audit.images.sums import POOL_NOTE, REFIT_NOTE, SUMS_NOTE, TOTAL_NOTE, scores_of_sums
from nectar.export.bundle import network_of
from nectar.records.real_images import real_images
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint
from server_app.run_directory import AUDIT
from strategies.fedmd import SITES
from strategies.public_images import public_images
from strategies.shuffled_pool import ShuffledPool
from strategies.surrogate import learned_from

MOST_CONTROLS = 10_000
"""As many training images that no site has join the validation and test images as are missing to this number."""

_COPIED, _COPYING = "loss, copied model", 5
"""An attack on answers to public images, and how often the copy is trained as the server trains in a round."""

_LOGITS = "No site's model is in the record: each was copied by its answers to the public images."
_NO_LOGITS = (
    "The record has all sites' answer alone: with distil.keep=sites each one's is examined."
)

#: under which name Fedssyn's checkpoint has the pool
_POOL = "pool"


def audit_record(directory: Path, policy: ImportPolicy | None = None) -> dict[str, Any]:
    """Audit the record in ``directory``, write the outcome into it, and return it.

    Raises
    ------
    ConfigError
        If it is not a run's record, its data are no images, or the images that its sites had are not at hand.
    FederationError
        If the run stopped before its first round was done, or a file of it is damaged.
    """
    past = RunRecord.open(directory, policy)
    use_threads(past.config.compute.server_cores)
    division = Division(past.config.with_sites(len(past.sites)))
    if not division.run.info.has_images:
        raise ConfigError(
            f"{past.directory} is a run on {KINDS[division.run.info.kind]}: there are no images to audit."
        )
    held = real_images(past)
    if isinstance(held, str):
        raise ConfigError(
            f"{past.directory} cannot be audited on this machine: {held}. An audit needs the images that the sites had."
        )
    checkpoint = past.checkpoint()
    notes = []
    if len(held.parts) < len(past.sites):
        notes.append(
            "Some sites' images are unknown on this machine: they count neither as members nor as controls."
        )
    if past.config.private and past.config.data.site_holdout:
        notes.append(
            "What the sites hold out counts as members: in a private run it is each site's own matter."
        )
    members = {
        site: samples(division.dataset.train, division.run.info, _learned(division, site, part))
        for site, part in held.parts.items()
    }
    controls = dict(_controls(division, held.shares))
    sent, rounds = _sent(past, checkpoint, division)
    reached = past.rounds[-1]["round"] if past.rounds else 0
    missing = set(range(1, reached + 1)) - set(rounds) if rounds else set()
    if missing:
        notes.append(
            f"The record keeps the sets of round{'s' if len(rounds) > 1 else ''} {_listed(rounds)} of {reached}: "
            "what left in other rounds is not counted, and may show more."
        )
    evidence = Evidence.of(members, concatenated([*controls.values()]), division.run.info, sent)
    by_model = dict(_by_model(past, division, checkpoint, evidence, notes))
    about = {
        "record": past.id,
        "round": checkpoint.server_round,
        "rounds_not_kept": len(missing),
        "controls": {name: len(part) for name, part in controls.items()},
    }
    by_sums = {}
    if past.config.method == "ridge" and not division.run.settings(RidgeSettings).alone:
        by_sums = dict(scores_of_sums(division.run, checkpoint, evidence, members))
        notes += [TOTAL_NOTE if past.config.secret else SUMS_NOTE, POOL_NOTE]
        notes += [REFIT_NOTE] * (past.config.rounds > 1)
    if past.config.method == "fedmd":
        by_sums = dict(_by_logits(division.run, checkpoint, evidence))
        notes.append(_LOGITS if by_sums else _NO_LOGITS)
    overall, sites = examined(evidence, by_model, by_sums)
    content = outcome(overall, sites, about, [*notes, *notes_of(evidence)])
    write_json(past.directory / AUDIT, content)
    return content


def _learned(division: Division, site: str, part: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions that a site learns from."""
    if division.config.private or not division.config.data.held_by_sites:
        return part
    return division.share(site, division.dataset, part)[0]


def _controls(division: Division, sites: int) -> Iterator[tuple[str, Samples]]:
    """Yield the images that no site has, by what they are."""
    dataset, info, held = division.dataset, division.run.info, division.validation
    count = len(held) + len(dataset.test)
    if len(held):
        yield "held back for validation", samples(dataset.train, info, held)
    if len(dataset.test):
        yield "of the test split", samples(dataset.test, info)
    had = np.concatenate([held, *division.partition(sites)])
    left = np.setdiff1d(np.arange(len(dataset.train)), had)
    if len(left) and count < MOST_CONTROLS:
        draws = numpy_generator(division.config.seed, "audit-controls")
        some = draws.permutation(left)[: MOST_CONTROLS - count]
        yield "training images that no site has", samples(dataset.train, info, np.sort(some))
    elif not count:
        raise ConfigError(
            "no image of this data set was kept from all sites, so that there is nothing to hold members against: "
            "run with data.validation above 0, or a data set with test images."
        )


def _sent(
    past: RunRecord, checkpoint: Checkpoint, division: Division
) -> tuple[dict[str, Sent], tuple[int, ...]]:
    """Return all that the record keeps of what was sent, by site, and the rounds that it is of; none of a pool."""
    info = division.run.info
    if past.config.method == "fedssyn":
        pool = ShuffledPool(division.run)
        pool.load_state_dict(checkpoint.strategy[_POOL])
        pixels = {ALL_SITES: pool.everything} if pool.closed else pool.sent
        return {
            site: sent_of(SyntheticImages(some.examples, some.labels), info)
            for site, some in pixels.items()
            if len(some.labels)
        }, ()
    sets = dict(past.synthetic(best=best) for best in (False, True))
    sets.pop(0, None)
    names = dict.fromkeys(site for each in sets.values() for site in each)
    return {
        site: together([sent_of(each[site], info) for each in sets.values() if site in each])
        for site in names
    }, tuple(sorted(sets))


def _by_model(
    past: RunRecord, division: Division, last: Checkpoint, evidence: Evidence, notes: list[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield minus the least loss of each candidate under the models of the last round, and of the best."""
    checkpoints = {"loss, last model": last}
    if past.best.is_file():
        best = past.checkpoint(best=True)
        if best.server_round != last.server_round:
            checkpoints["loss, best model"] = best
    for name, checkpoint in checkpoints.items():
        try:
            names = checkpoint.models
            networks = (network_of(division.run, checkpoint, name) for name in names)
            losses = [_losses(division.run, network, evidence) for network in networks]
        except NectarError as error:
            notes.append(f"No loss could be taken: {error}.")
            return
        yield name, -torch.stack(losses).amin(0)


@torch.no_grad()
def _losses(run: Run, network: Classifier, evidence: Evidence) -> Tensor:
    batch, candidates = run.config.evaluation.batch, evidence.candidates
    parts = []
    for first in range(0, len(candidates), batch):
        part = slice(first, first + batch)
        outputs = network(candidates.inputs(part)).float()
        parts.append(F.cross_entropy(outputs, candidates.labels[part], reduction="none"))
    return torch.nan_to_num(torch.cat(parts), nan=torch.inf)


def _by_logits(
    run: Run, last: Checkpoint, evidence: Evidence
) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Yield minus each candidate's loss under a copy of each of the first sites' models, and the least of these.

    A copy is the last model, trained by ``image_training`` on what the server has of the site: its answers.
    """
    kept: Mapping[str, Tensor] = last.strategy[SITES]
    scores = []
    for site in sorted(kept, key=site_order)[:MOST_SITES]:
        samples = public_samples(run, public_images(run), kept[site].softmax(1))
        copied = Weights(dict(last.weights))
        for number in range(_COPYING):
            copied = learned_from(run, number, copied, samples, plain(run.task))
        network = network_of(run, replace(last, weights=copied.tensors))
        scores.append(-_losses(run, network, evidence))
        yield site, {_COPIED: scores[-1]}
    if scores:
        yield ALL_SITES, {_COPIED: torch.stack(scores).amax(0)}


def _listed(rounds: tuple[int, ...]) -> str:
    return " and ".join(map(str, rounds))
