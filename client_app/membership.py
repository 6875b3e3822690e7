"""Which examples a private run uses for what: a keyed hash of each one's own bytes says so, for itself alone.

A random order of a site's examples would not do: one more changes which of the others are chosen, and with that what
each of them contributes. So how many are chosen is a matter of chance too, and a class can lose its last example.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import numpy as np

from common.data.division.stratify import Indices
from common.division import Division
from common.draws.row_draws import Words, keyed_digests, keyed_hashes
from common.draws.seeding import derive
from common.errors import FederationError
from common.learning.run import Run
from common.samples.dataset import Dataset
from common.samples.inputs import Samples, samples

KEY = "membership-key"
"""The file in a site's state directory; whoever has it and an example knows what it is chosen for."""

_BYTES = 32


def key_of(run: Run, site: str, directory: Path | None, *, seeded: bool) -> bytes:
    """Return the key of a site, made once, so that the next round and other processes choose alike.

    Parameters
    ----------
    seeded : bool
        Whether the site is simulated, where the run's seed gives the key.

    Raises
    ------
    FederationError
        If the site has no state directory, or the key cannot be kept there.
    """
    if seeded:
        return derive(run.config.seed, "membership", site).to_bytes(8, "big")
    if directory is None:
        raise FederationError(
            "a private run chooses examples by a key that the site keeps, and this site's node config names no "
            "state-dir: name one"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return _kept(directory / KEY)
    except OSError as error:
        raise FederationError(
            f"the site's {KEY} cannot be kept in its state-dir ({error.strerror}): make room for it there"
        ) from None


def _kept(path: Path) -> bytes:
    """Return the key in ``path``; the first to come writes it, whole before it has its name."""
    if not path.exists():
        descriptor, name = tempfile.mkstemp(prefix=f".{KEY}-", dir=path.parent)  # of mode 600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.link(name, path)  # unlike a rename it leaves the key of whoever was first
        except FileExistsError:
            pass
        finally:
            Path(name).unlink()
    key = path.read_bytes()
    if len(key) != _BYTES:
        raise FederationError(
            f"the site's {KEY} has {len(key)} bytes and not {_BYTES}: put back a copy of it, or delete it, and other "
            "examples are chosen from then on"
        )
    return key


def chosen(pool: Samples, key: bytes, purpose: str, share: float) -> Indices:
    """Return the positions of those of the examples that ``share`` of all there could be are chosen like, ascending.

    Parameters
    ----------
    purpose : str
        What they are chosen for; each purpose chooses by itself.
    share : float
        The chance of each, from 0 to 1.
    """
    if share >= 1:
        return np.arange(len(pool))
    return _below(keyed_hashes(pool, key + purpose.encode()), share)


def _below(hashes: Words, share: float) -> Indices:
    return np.flatnonzero((hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share)


def divided(
    division: Division, site: str, dataset: Dataset, indices: Indices, key: bytes
) -> tuple[Indices, Indices]:
    """Return of a site's positions in ``dataset``'s training split those to learn from and those it holds out.

    Parameters
    ----------
    division : Division
        The run's; one that is not private draws them by its seed, the classes in proportion.
    indices : int64 array
        Which of them are its.
    key : bytes
        The site's, for a private run.
    """
    config = division.config
    share = config.data.site_holdout
    if not (config.private and share):
        return division.share(site, dataset, indices)
    groups = division.groups(dataset, indices)
    if groups is None:
        pool = samples(dataset.train, division.run.info, indices)
        held = chosen(pool, key, "site-holdout", share)
    else:  # all of a group or nothing of it, as its own name says
        names = (group.tobytes() for group in groups)
        held = _below(keyed_digests(names, key + b"site-holdout"), share)
    return np.delete(indices, held), indices[held]
