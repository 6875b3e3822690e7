"""Seconds and bytes of a secret sum at a site and at the server, against Flower's legacy utilities for SecAgg+.

    python -m benchmarks.secret_sum

10 and 100 sites, vectors of 100,000, 1 and 10 million numbers of 32 bits, one core, no network. A site's seconds are
its keys, shares, masks and opening; the server's the removal of all masks if no site drops out. Flower's are one
mask of `pseudo_rand_gen` times a site's number of masks, with all sites in one neighbourhood; theirs have 64 bits a
number.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from client_app.secret import SecretSite, Vault
from common.config.loading import load
from common.secret import cohort
from common.secret.crypto import SHARE_BYTES, Words, add_mask, new_secret

SITES, NUMBERS = (10, 100), (100_000, 1_000_000, 10_000_000)


class Federation:
    """The sites of one run, each with its own file."""

    def __init__(self, folder: Path, sites: int) -> None:
        self._folder, self.names = folder, [f"site-{i}" for i in range(sites)]
        settings = f"federation.sites={sites} federation.secret=on"
        self._run: Any = SimpleNamespace(config=load({"method": "fedavg", "set": settings}))
        keys = [self.at(name).keys() for name in self.names]
        asked = self._run.config.federation
        self.roll = {
            cohort.NAMES: self.names,
            cohort.SEAL_KEYS: [each[cohort.SEAL_KEY] for each in keys],
            cohort.MASK_KEYS: [each[cohort.MASK_KEY] for each in keys],
            cohort.ASKED: sites,
            cohort.THRESHOLD: cohort.threshold_of(asked, sites),
        }

    def at(self, name: str, **fields: Any) -> SecretSite:
        """Return a site that has taken up an instruction."""
        vault = Vault(
            self._folder / f"{name}.json", Context(1, 1, {}, RecordDict(), {}), "b", forgets=False
        )
        about = {"record": "b", "server-round": 1, cohort.ATTEMPT: "a", **fields}
        return SecretSite(self._run, name, vault, about)

    def sealed(self) -> list[bytes]:
        """Have all sites share, and return what they sealed for the first."""
        shares = [self.at(name, **self.roll).shares()[cohort.SEALED] for name in self.names]
        return [each[0] for each in shares[1:]]


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    print(
        "| sites | numbers | s a site | s of the server | MB up a site, without the vector | Flower's s a site |"
    )
    print("|---|---|---|---|---|---|")
    for sites in SITES:
        for numbers in NUMBERS:
            with tempfile.TemporaryDirectory() as folder:
                print(row(Path(folder), sites, numbers), flush=True)


def row(folder: Path, sites: int, numbers: int) -> str:
    """Return one line of the table."""
    federation, words = Federation(folder, sites), np.zeros(numbers, "<u4")
    first, others = federation.names[0], federation.names[1:]
    at_site = seconds(lambda: federation.at(first).keys())
    at_site += seconds(lambda: federation.at(first, **federation.roll).shares())
    sealed = federation.sealed()
    came = {cohort.NAMES: others, cohort.SEALED: sealed, cohort.ASKED: sites}
    at_site += seconds(lambda: federation.at(first, **came).receive())
    at_site += seconds(lambda: federation.at(first).mask(words))
    at_site += seconds(lambda: federation.at(first, names=federation.names).opening())
    keys = [new_secret() for _ in federation.names]
    at_server = seconds(partial(_unmasked, words, keys))
    overhead = 32 * 3 + sum(map(len, sealed)) + sites * SHARE_BYTES
    flowers = seconds(lambda: pseudo_rand_gen(keys[0], 2**32, [(numbers,)])) * sites
    up = words.nbytes + overhead
    return (
        f"| {sites} | {numbers:,} | {at_site:.2f} | {at_server:.2f} | {up / 1e6:.2f}, {overhead / 1e6:.3f} "
        f"| {flowers:.2f} |"
    )


def _unmasked(words: Words, keys: Sequence[bytes]) -> None:
    for key in keys:
        add_mask(words, key, minus=True)


if __name__ == "__main__":
    main()
