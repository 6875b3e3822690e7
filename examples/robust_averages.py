"""What do hostile sites do to a model, and which average is robust against them?

    python examples/robust_averages.py [--hostile 0,1,3] [--seeds 3] [--rounds 10] [SECTION.KEY=VALUE ...]

FedAvg of an MLP on digits at ten sites, of which some send in every round

- flipped: their update the wrong way;
- scaled: six times their update the wrong way, a little less than what `federation.robust=clip` shortens;
- relabelled: the update of a site that takes every 0 for a 9, every 1 for an 8, and so on.

A line is an attack by so many sites, a column an average: the mean, clip (the default), the median, the trimmed mean
without as many at each end as are hostile, Krum with f as many, and Multi-Krum, which keeps all but these. A number is
the last round's test accuracy, the mean over the seeds, and the least of them in brackets.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from client_app.app import app as client_app
from common.config.loading import load
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve

SITES = 10
SETTINGS = "partition.alpha=1 model.name=mlp model.width=64 fedavg.epochs=5 fedavg.lr=0.1"

#: a payload: its header, then one array for each tensor of the model, in the model's order
Arrays = list[NDArray[Any]]

#: what an attack makes of a round's weights before the site trains on them, and of these and what it ended with
Before, After = Callable[[Arrays], Arrays], Callable[[Arrays, Arrays], Arrays]


def as_it_is(given: Arrays) -> Arrays:
    """Return what the server sent."""
    return given


def away(factor: float) -> After:
    """Return what goes ``factor`` times as far as the site's training went."""

    def after(given: Arrays, ended: Arrays) -> Arrays:
        ways = [g + np.float32(factor) * (e - g) for g, e in zip(given[1:], ended[1:], strict=True)]
        return [ended[0], *ways]

    return after


def relabelled(arrays: Arrays) -> Arrays:
    """Return a model whose last layer takes the last class for the first, and so on.

    A site that trains this on its labels, and turns the layer round again, has trained on the other labels.
    """
    *others, weight, bias = arrays
    return [*others, weight[::-1].copy(), bias[::-1].copy()]


ATTACKS: dict[str, tuple[Before, After]] = {
    "flipped": (as_it_is, away(-1)),
    "scaled": (as_it_is, away(-6)),
    "relabelled": (relabelled, lambda _, ended: relabelled(ended)),
}


def averages(hostile: int) -> dict[str, str]:
    """Return the settings of each average, for a round in which so many are hostile."""
    f = max(1, hostile)
    krum = f"federation.robust=krum federation.byzantine={f}"
    return {
        "mean": "federation.robust=none",
        "clip": "federation.robust=clip",
        "median": "federation.robust=median",
        "trimmed": f"federation.robust=trimmed federation.trim={f / SITES}",
        "krum": krum,
        "multi-krum": f"{krum} federation.kept={SITES - f}",
    }


class HostileGrid(LocalGrid):
    """A federation whose first sites attack."""

    def __init__(self, *args: Any, attack: str, hostile: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._attack, self._hostile = attack, frozenset(self.get_node_ids()[:hostile])

    def _call(self, message: Message) -> Message:
        about = message.metadata
        if about.dst_node_id not in self._hostile or about.message_type != "train":
            return super()._call(message)
        before, after = ATTACKS[self._attack]
        (name,) = message.content.array_records
        given = message.content.array_records[name].to_numpy_ndarrays()
        message.content[name] = ArrayRecord(before(given))
        reply = super()._call(message)
        (name,) = reply.content.array_records
        ended = reply.content.array_records[name].to_numpy_ndarrays()
        reply.content[name] = ArrayRecord(after(given, ended))
        return reply


def accuracy(attack: str, hostile: int, seed: int, rounds: int, words: str) -> float:
    """Return a run's accuracy after its last round."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {"method": "fedavg", "dataset": "digits", "rounds": rounds, "seed": seed}
        run_config = {
            **asked,
            "output-dir": folder,
            "set": f"federation.sites={SITES} {SETTINGS} {words}",
        }
        grid = HostileGrid(client_app, SITES, run_config, attack=attack, hostile=hostile)
        record = serve(grid, load(run_config))
        return float(record.metrics()[-1]["test"]["accuracy"])


def lines(hostile: list[int], seeds: int, rounds: int, words: str) -> Iterator[str]:
    """Yield the lines of the table as they are computed."""
    yield f"{'':20}" + "".join(f"{name:>14}" for name in averages(0))
    for number in hostile:
        for attack in ATTACKS if number else ["nobody"]:
            label = f"{attack}, {number} of {SITES}" if number else "no hostile site"
            cells = []
            for average in averages(number).values():
                found = [
                    accuracy(attack, number, seed, rounds, f"{words} {average}")
                    for seed in range(seeds)
                ]
                cells.append(f"{sum(found) / seeds:.3f} ({min(found):.3f})")
            yield f"{label:20}" + "".join(f"{cell:>14}" for cell in cells)


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Which average is robust against hostile sites?")
    parser.add_argument("--hostile", default="0,1,3", help="numbers of hostile sites, of ten")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("words", nargs="*", metavar="SECTION.KEY=VALUE", help="other settings")
    chosen = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    hostile = [int(number) for number in chosen.hostile.split(",")]
    for line in lines(hostile, chosen.seeds, chosen.rounds, " ".join(chosen.words)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
