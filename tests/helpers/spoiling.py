"""A hostile site: it trains as it is asked, and spoils some part of what it replies, each round as it is drawn.

``Hostile`` stands between a site and the server (`federation.TamperedGrid`). What it does is drawn from one generator,
so that a sequence of rounds can be done again.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from tampering import Array, Draw, Part, change_numbers, changed, payload_of, pick, times

from common.specs.updates import EVALUATION

#: by their names in ``tampering.CHANGES``, as often as they stand here
_CHANGES = (
    *("scaled", "a little scaled", "a little scaled", "x-1", "zeros"),
    *("one coordinate", "one coordinate", "no number", "filled", "noise"),
)


def _odd_integers(draw: Draw, array: Array) -> Array:
    top = np.iinfo(array.dtype)
    odd = [0, 1, 2, 9, 10, 255, 2**31, -1, top.max, top.min]
    flat = array.copy().reshape(-1)
    if flat.size:
        flat[draw.integers(flat.size, size=3)] = np.array(pick(draw, odd)).astype(array.dtype)
    return flat.reshape(array.shape)


class Hostile:
    """What a site does to its replies, round by round: as it comes, or out of habit always the same.

    Parameters
    ----------
    draw : numpy.random.Generator
        Decides.

    Attributes
    ----------
    did : list of str
        What it did, in the rounds' order.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._before: list[Part] = []
        self._habit = str(pick(draw, _WAYS)) if draw.random() < _HABITS else ""
        self._factor = float(pick(draw, [-1, 1]) * draw.uniform(20, 100))
        self.did: list[str] = []

    def __call__(self, instruction: Message, reply: Message) -> Message:
        """Return what the server gets instead of ``reply``."""
        if reply.has_error():
            self.did.append("failed by itself")
            return reply
        records = dict(reply.content)
        sent, asked = payload_of(reply), payload_of(instruction)
        way = self._habit or pick(self._draw, _WAYS)
        self.did.append(way)
        spoiled = sent.copy()
        if way == "lost":
            self._before.append(sent)
            return Message(Error(code=5, reason="away"), reply_to=instruction)
        if way in ("figures", "records"):
            records = getattr(self, f"_{way}")(records)
        elif way != "honest":
            spoiled = getattr(self, f"_{way}")(spoiled, asked)
            records["arrays"] = ArrayRecord(spoiled.encode())
        self._before.append(sent)
        return Message(RecordDict(records), reply_to=instruction)

    # ---- arrays ---------------------------------------------------------------------------------------

    def _values(self, sent: Part, asked: Part) -> Part:
        """Change the arrays of a part, all of them alike or a single one."""
        leaf, change = pick(self._draw, list(sent.leaves())), pick(self._draw, _CHANGES)
        self._note(f"{change} of {leaf.kind}")
        one = int(self._draw.integers(max(1, len(leaf.arrays))))
        whole = self._draw.random() < 0.6
        state = self._draw.bit_generator.state
        for i, array in enumerate(leaf.arrays):
            if whole and array.dtype.kind == "f":
                self._draw.bit_generator.state = state  # the same factor for all
            if array.dtype.kind == "f" and (whole or i == one):
                leaf.arrays[i] = changed(array, change, draw=self._draw)
            elif not whole and i == one:
                leaf.arrays[i] = _odd_integers(self._draw, array)
        return sent

    def _update(self, sent: Part, asked: Part) -> Part:
        """Go further, or the other way, from what was sent to it: a model that looks like one."""
        factor = self._factor  # just below what is refused, where it is a habit
        if not self._habit or self._draw.random() < 0.2:
            factor = float(pick(self._draw, [-1, 1]) * 10.0 ** self._draw.uniform(-2, 6))
        self._note(f"by {factor:.3g}")
        for leaf, start in sent.starts(asked):
            change_numbers(leaf, times(factor), start)
        return sent

    def _half(self, sent: Part, asked: Part) -> Part:
        """Send a part as float16, with the largest that this reaches in it."""
        leaf = pick(self._draw, list(sent.leaves()))
        if "codec" not in json.loads(leaf.head.tobytes()):
            return sent
        leaf.say(codec="float16")
        largest = pick(self._draw, [65504.0, -65504.0, 6e-8])
        share = float(pick(self._draw, [0.01, 0.5, 1.0]))
        with np.errstate(all="ignore"):
            for i, array in enumerate(leaf.arrays):
                if array.dtype.kind == "f":
                    where = self._draw.random(array.shape) < share
                    leaf.arrays[i] = np.where(where, largest, array).astype(np.float16)
        return sent

    def _swapped(self, sent: Part, asked: Part) -> Part:
        """Put a part where another belongs, or an array."""
        leaves = list(sent.leaves())
        if len(leaves) > 1 and self._draw.random() < 0.6:
            one, other = self._draw.choice(len(leaves), 2, replace=False)
            a, b = leaves[one], leaves[other]
            a.head, b.head, a.arrays, b.arrays = b.head, a.head, b.arrays, a.arrays
            return sent
        leaf = pick(self._draw, leaves)
        if leaf.arrays:
            one, other = (int(self._draw.integers(len(leaf.arrays))) for _ in range(2))
            leaf.arrays[one], leaf.arrays[other] = leaf.arrays[other], leaf.arrays[one]
        return sent

    def _omitted(self, sent: Part, asked: Part) -> Part:
        """Leave a part of a bundle out, or an array of what is none."""
        bundles = list(sent.bundles())
        if bundles:
            found = pick(self._draw, bundles)
            assert found.parts is not None
            name = pick(self._draw, list(found.parts) or [""])
            self._note(name)
            found.parts.pop(name, None)
        elif sent.arrays:
            del sent.arrays[int(self._draw.integers(len(sent.arrays)))]
        return sent

    def _stale(self, sent: Part, asked: Part) -> Part:
        """Send an earlier reply again, or what came with the instruction."""
        return pick(self._draw, [*self._before, asked]).copy()

    # ---- what stands beside them ----------------------------------------------------------------------

    def _figures(self, records: dict[str, Any]) -> dict[str, Any]:
        found = EVALUATION if EVALUATION in records and self._draw.random() < 0.5 else "metrics"
        figures = dict(records[found])
        # of a simulated site the server believes that its memory is lost, and says what to do about it
        name = pick(self._draw, [*figures, "other", "num-examples", "went-back"])
        odd = [0.0, 1.0, -1.0, 0.5, 7, 1e-30, 1e6, 1e12, -1e12, 1e300, math.nan, math.inf, 2**62]
        if name in figures and self._draw.random() < 0.2:
            del figures[name]
        else:
            figures[name] = pick(self._draw, odd)
        self._note(f"{found}.{name}={figures.get(name)}")
        return {**records, found: MetricRecord(figures)}

    def _records(self, records: dict[str, Any]) -> dict[str, Any]:
        noise = pick(self._draw, [1.0, 0.0, 1e-300, 1e300, -1.0])
        event = {
            "mechanism": pick(self._draw, ["dp-sgd", "x", "", "\x1b[2J"]),
            "noise_multiplier": noise,
            "sample_rate": pick(self._draw, [1.0, 0.5, 1e-300]),
            "steps": pick(self._draw, [1, 10**9, 10**18, 0]),
            "adjacency": pick(self._draw, ["add-remove", "replace-one", "none"]),
        }
        events = [event] * int(pick(self._draw, [0, 1, 64, 1000]))
        privacy = {"events": json.dumps(events), "whole": bool(self._draw.random() < 0.5)}
        name, record = pick(
            self._draw,
            [
                ("privacy", ConfigRecord({**privacy, "seeded": False})),
                ("privacy", ConfigRecord({**privacy, "seeded": False})),
                ("privacy", ConfigRecord({"events": "[" * 50_000})),
                ("about", ConfigRecord({"site": "partition-0", "more": ["x" * 99] * 99})),
                ("about", MetricRecord({"site": 1})),
                ("evaluation", MetricRecord({"accuracy": 1.0, "loss": 0.0, "num-examples": 1})),
                ("training-failed", ConfigRecord({"reason": "y" * 10_000})),
                ("more", ArrayRecord([np.zeros(9)])),
            ],
        )
        self._note(name)
        return {**records, name: record}

    def _note(self, more: str) -> None:
        self.did[-1] += f" ({more})"


#: the share of sites that have a habit
_HABITS = 0.4

#: what it does, as often as it stands here
_WAYS = (
    *("honest", "honest", "lost", "values", "values", "values", "update", "update", "update"),
    *("half", "swapped", "omitted", "stale", "figures", "records"),
)
