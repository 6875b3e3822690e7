"""What one hostile site of five does to a run: each part of its reply spoiled, in one round, in two, and in all.

    python tests/helpers/hostile_sites.py --output table.csv [--only 1/3] [--seconds 550] [METHOD ...]

A site's honest reply is taken apart as it leaves the site, one part of it is spoiled, and it is put together again. The
parts are those that the site sends in an honest run. Rows that the table has already are not run again.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MetricRecord
from tampering import Arrays, Part, changed, payload_of, sending

sys.path.append(str(Path(__file__).parents[2]))

from client_app.app import app as client_app
from common.config.loading import load
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve
from server_app.record import Record

ROUNDS, SITES, HOSTILE = 5, 5, 1

TRAINING = "epochs=5 batch=32 lr=0.05"
FEDSSYN = (
    "fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.epochs=2 fedssyn.batch=32 "
    "fedssyn.diffusion_steps=8 fedssyn.sampling_steps=2 fedssyn.sampler=second-order fedssyn.size=40"
)
VAE = "model.name=vae model.width=8 model.depth=1 model.embedding=6"

#: figures that the server makes use of; the others are told in the record, and spoiled under FedAvg alone
USED = {"normalizer", "synthetic", "noise-multiplier", "synthesis-done"}

#: by a row's name: the method, and the settings that make it quick
RUNS: dict[str, tuple[str, str]] = {
    "fedavg": ("fedavg", ""),
    "fedprox": ("fedprox", ""),
    "fednova": ("fednova", ""),
    "scaffold-I": ("scaffold", "scaffold.option=I"),
    "scaffold-II": ("scaffold", "scaffold.option=II"),
    "feddyn": ("feddyn", ""),
    "fedpvr": ("fedpvr", ""),
    "moon": ("moon", ""),
    "fedmix": ("fedmix", "fedmix.means=20"),
    "fedmix-float16": ("fedmix", "fedmix.means=20 wire.images=float16"),
    "fedgen": ("fedgen", "fedgen.generator_steps=20"),
    "dense": (
        "dense",
        "dense.server_iterations=5 dense.generator_steps=3 dense.generator_batch=64",
    ),
    "feddf": ("feddf", "image_training.epochs=50"),
    "fedmd": ("fedmd", "image_training.epochs=50"),
    "feddm": (
        "feddm",
        "feddm.iterations=20 feddm.ipc=3 feddm.real_batch=32 image_training.epochs=50",
    ),
    "fedaf": (
        "fedaf",
        "fedaf.iterations=20 fedaf.ipc=3 fedaf.real_batch=32 fedaf.local_epochs=2 image_training.epochs=50",
    ),
    "real": ("real", "real.ipc=3 image_training.epochs=50"),
    "fedsynth": (
        "fedsynth",
        "fedsynth.iterations=10 fedsynth.rate=4 fedsynth.synthetic_lr=0.3 fedsynth.fidelity=off fedsynth.real_batch=64",
    ),
    "masking": ("masking", "masking.rate=4"),
    "topk": ("topk", "topk.rate=4"),
    "lowrank": ("lowrank", "lowrank.rank=4"),
    "fedvae": (
        "fedvae",
        f"{VAE} fedvae.preliminary_rounds=2 fedvae.epochs=4 fedvae.lr=0.03 fedvae.batch=32",
    ),
    "feddpms": (
        "feddpms",
        f"{VAE} feddpms.preliminary_rounds=2 feddpms.epochs=3 feddpms.lr=0.02 feddpms.copies=10 feddpms.max_draws=5",
    ),
    "fedssyn": ("fedssyn", FEDSSYN),
    "feddgm": (
        "feddgm",
        "feddgm.together=5 model.depth=1 feddgm.epochs=5 feddgm.lr=0.05 feddgm.batch=32 feddgm.ipc=2 "
        "feddgm.iterations=2 feddgm.inner_epochs=5 feddgm.step_size=0.1 feddgm.latent_lr=100 "
        "feddgm.dsa= feddgm.global_epochs=30 feddgm.surrogate_epochs=15 "
        "feddgm.global_models=convnet feddgm.generator=pixels",
    ),
    "local": ("local", ""),
    "central": ("central", "central.epochs=2"),
    "server": ("server", ""),
    "flwr-fedadam": ("flwr.serverapp.strategy:FedAdam", "strategy.eta=0.02"),
    "flwr-fedavg": ("flwr.serverapp.strategy:FedAvg", ""),
}
OWN_TRAINING = {
    "feddm",
    "fedaf",
    "real",
    "fedsynth",
    "fedvae",
    "feddpms",
    "feddgm",
    "central",
    "server",
    "local",
}


def settings_of(name: str, output: str, rounds: int = ROUNDS, more: str = "") -> dict[str, Any]:
    """Return the run configuration of one of RUNS."""
    method, own = RUNS[name]
    section = "fedavg" if ":" in method else method
    trained = [f"{section}.{word}" for word in TRAINING.split()]
    if method in OWN_TRAINING and method != "local":
        trained = []
    if method == "fedssyn":
        trained = [f"fedavg.{word}" for word in TRAINING.split()]
    text = f"federation.sites={SITES} federation.min_replies=3 model.width=16 partition.alpha=0.5"
    keys = {"method": method, "dataset": "digits", "rounds": rounds, "output-dir": output}
    return {**keys, "set": " ".join([text, *trained, own, more]).strip()}


# ---- a reply, taken apart -----------------------------------------------------------------------------

NAMES = {
    "synthetic-images": ("images", "labels"),
    "synthetic-batches": ("inputs", "labels", "step"),
    "latent-means": ("vectors",),
    "logits": ("logits",),
    "pixels": ("pixels",),
    "masked-update": ("values",),
    "top-k-update": ("values",),
}


def targets(payload: Part) -> dict[str, tuple[Part, list[int]]]:
    """Return what can be spoiled, by name: parts, and the places of their arrays of numbers."""
    found = {}
    for path, leaf in payload.named():
        floats = [i for i, array in enumerate(leaf.arrays) if array.dtype.kind == "f"]
        if leaf.kind == "weights":
            found[path or "weights"] = (leaf, floats)
        for i, name in enumerate(NAMES.get(leaf.kind, ())[: len(leaf.arrays)]):
            if i in floats or leaf.kind == "pixels":
                found[f"{path}/{name}".lstrip("/")] = (leaf, [i])
    return {name: target for name, target in found.items() if target[1]}


def sent_in(reply: Message) -> list[str]:
    """Return the names of what a reply has that can be spoiled."""
    return [*targets(payload_of(reply)), *(f"figure {key}" for key in figures_of(reply))]


def figures_of(reply: Message) -> MetricRecord:
    """Return the figures of a reply."""
    return next(iter(reply.content.metric_records.values()))


# ---- how it is spoiled --------------------------------------------------------------------------------


#: by their names in ``tampering.CHANGES``
ATTACKS = ("1e30", "NaN", "x100", "x-1", "x-10")

#: an update some 65 times as long as the others', which 'federation.max_update=100' let pass
LONG = "x60"

#: what is sent in every round: the second is a little short of what is shortened
LASTING = ("x-10", "x-6", "x-1")


def spoil(part: str, attack: str, instruction: Message, reply: Message) -> None:
    """Spoil one part of a reply; weights are spoiled as updates of those that were sent."""
    if part.startswith("figure "):
        figures, name = figures_of(reply), part.removeprefix("figure ")
        told = figures[name]
        assert isinstance(told, int | float)
        figures[name] = float(changed(np.array(float(told)), attack))
        return
    payload = payload_of(reply)
    leaf, places = targets(payload)[part]
    if leaf.arrays[places[0]].dtype == np.float16 and attack == "1e30":  # which float32 fits
        leaf.say(codec="float32")
        for i in places:
            leaf.arrays[i] = leaf.arrays[i].astype(np.float32)
    bases = _bases(part, [leaf.arrays[i] for i in places], instruction)
    for i, base in zip(places, bases, strict=True):
        leaf.arrays[i] = changed(leaf.arrays[i], attack, base)
    sending(reply, payload.encode())


def _bases(part: str, spoiled: Arrays, instruction: Message) -> Sequence[Any]:
    """Return what weights began as: the weights of the instruction of the same shapes."""
    if part.split("/")[-1] in ("weights", "inner"):
        for leaf, places in targets(payload_of(instruction)).values():
            if [leaf.arrays[i].shape for i in places] == [a.shape for a in spoiled]:
                return [leaf.arrays[i].astype(np.float64) for i in places]
    return [0.0] * len(spoiled)


# ---- runs ---------------------------------------------------------------------------------------------

Tamper = Callable[[int, Message, Message], None]


class HostileGrid(LocalGrid):
    """A federation of which ``tamper(round, instruction, reply)`` changes one site's replies in place."""

    def __init__(self, *args: Any, tamper: Tamper | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tamper, self._hostile = tamper, self.get_node_ids()[HOSTILE]

    def _call(self, message: Message) -> Message:
        reply = super()._call(message)
        about = message.metadata
        asked = about.dst_node_id == self._hostile and about.message_type == "train"
        if self._tamper is not None and asked and reply.has_content():
            self._tamper(int(about.group_id), message, reply)
        return reply


@dataclass
class Ended:
    """What became of a run."""

    accuracy: str = ""
    outcome: str = ""
    named: str = ""
    resumed: str = ""
    seen: dict[str, list[int]] = field(default_factory=dict)


def carried_out(config: dict[str, Any], tamper: Tamper | None = None) -> Ended:
    """Run ``config`` to its end, and where it ended early continue it with nobody hostile."""
    grid = HostileGrid(client_app, SITES, config, tamper=tamper)
    try:
        serve(grid, load(config))
        outcome, resumed = "completed", ""
    except Exception as error:
        outcome, resumed = f"{type(error).__name__}: {str(error)[:300]}", "not tried"
    found = sorted(Path(config["output-dir"]).glob("2*"))
    if not found:
        return Ended(outcome=outcome, resumed=resumed)
    lines = Record(found[-1]).metrics()
    if resumed:
        again = {**config, "resume": str(found[-1])}
        try:
            serve(HostileGrid(client_app, SITES, again), load(again))
            resumed = f"completed, {_accuracy(Record(found[-1]).metrics())}"
        except Exception as error:
            resumed = f"{type(error).__name__}: {str(error)[:300]}"
    return Ended(
        _accuracy(lines), " ".join(outcome.split()), _named(lines), " ".join(resumed.split())
    )


def _accuracy(lines: Sequence[Mapping[str, Any]]) -> str:
    test = lines[-1].get("test") if lines else None
    return f"{test['accuracy']:.3f}" if test else ""


def _named(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return who was rejected or shortened in which rounds, and the first reason or share."""
    told: dict[str, tuple[list[str], str]] = {}
    for line in lines:
        for what in ("rejected", "shortened"):
            for site, why in (line.get(what) or {}).items():
                message = f"{why:.3f}" if isinstance(why, float) else str(why)
                rounds, _ = told.setdefault(f"{site} {what}", ([], message))
                rounds.append(str(line["round"]))
    return "; ".join(f"{who} {','.join(r)}: {why[:120]}" for who, (r, why) in told.items())


def parts_of(config: dict[str, Any]) -> Ended:
    """Run with nobody hostile, and note which parts the site sends in which rounds."""
    seen: dict[str, list[int]] = {}

    def note(server_round: int, _: Message, reply: Message) -> None:
        for name in sent_in(reply):
            seen.setdefault(name, []).append(server_round)

    ended = carried_out(config, note)
    ended.seen = seen
    return ended


def during(part: str, attack: str, times: int, first: int) -> Tamper:
    """Return the tamper that spoils a part in the first ``times`` rounds from ``first`` on in which it is sent."""
    done: list[int] = []

    def tamper(server_round: int, instruction: Message, reply: Message) -> None:
        if server_round >= first and part in sent_in(reply) and len(done) < times:
            done.append(server_round)
            spoil(part, attack, instruction, reply)

    return tamper


def plan(name: str, seen: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield part, attack, what the rounds are called, how many they are and the first of them."""
    for part, rounds in seen.items():
        first = rounds[1] if len(rounds) > 2 else rounds[0]
        figure = part.removeprefix("figure ") if part.startswith("figure ") else ""
        if figure and name not in ("fedavg", "flwr-fedavg") and figure not in USED:
            continue
        if figure:
            yield from ((part, a, "one", 1, first) for a in ATTACKS if a != "x-1")
            continue
        for attack in ATTACKS:
            yield part, attack, "one", 1, first
            yield part, attack, "two", 2, first
        yield part, LONG, "one", 1, first
        for attack in LASTING:
            yield part, attack, "all", ROUNDS, 1


COLUMNS = (
    "method",
    "part",
    "attack",
    "rounds",
    "accuracy",
    "outcome",
    "named",
    "resumed",
    "honest",
)


def rows(name: str, known: set[tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Yield the rows of a method that are not known."""
    with tempfile.TemporaryDirectory() as folder:
        honest = parts_of(settings_of(name, folder))
    yield {"method": name, "part": "nobody hostile", **_told(honest, honest.accuracy)}
    for part, attack, word, times, first in plan(name, honest.seen):
        if (name, part, attack, word) in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            ended = carried_out(settings_of(name, folder), during(part, attack, times, first))
        row = {"method": name, "part": part, "attack": attack, "rounds": word}
        yield row | _told(ended, honest.accuracy)


def _told(ended: Ended, honest: str) -> dict[str, str]:
    told = {"accuracy": ended.accuracy, "outcome": ended.outcome, "named": ended.named}
    return {**told, "resumed": ended.resumed, "honest": honest}


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Append the rows that are missing to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=", ".join(RUNS))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="1/1", help="every N-th method from the K-th on, as K/N")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no run after so many"
    )
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    began, (k, n) = time.monotonic(), map(int, asked.only.split("/"))
    known = {tuple(row[c] for c in COLUMNS[:4]) for row in _read(asked.output)}
    with asked.output.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if not known:
            writer.writeheader()
        for name in (asked.methods or list(RUNS))[k - 1 :: n]:
            for row in rows(name, known):
                if row["part"] != "nobody hostile" or (name, row["part"], "", "") not in known:
                    writer.writerow(row)
                    file.flush()
                if time.monotonic() - began > asked.seconds:
                    return


if __name__ == "__main__":
    main()
