"""Honest sites that hold what nobody else does: none is shut out for its length, and what is told says over whom it is.

What is usual in a round falls by orders of magnitude where half of the sites have learned all they can.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import TamperedGrid, last, numbers, resumed, run, same_end
from flwr.app import Message
from sklearn.datasets import load_digits
from tampering import nan, sending

import strategies.fedavg
from nectar.records.outputs import with_recorded
from server_app.checkpoint import Checkpoint
from server_app.record import Record

ONE_CLASS = "partition.kind=by_class partition.classes_per_client=1"
AT_SITES = "evaluation.on=both data.site_holdout=0.2"


def rows_of(folder: Path) -> str:
    """Write 120 rows of two classes that a line parts, and return the settings that learn from them."""
    draws = random.Random(3)
    lines = ["length,width,kind"]
    for i in range(120):
        one = i % 2
        lines.append(f"{draws.gauss(1 + 2 * one, 0.5):.2f},{draws.gauss(5 - one, 0.5):.2f},{one}")
    path = folder / "plain.csv"
    path.write_text("\n".join(lines))
    return f"data.file={path} data.label=kind"


def pictures_of(folder: Path) -> str:
    """Write the digits 0 and 1, and return the settings that learn from them."""
    images, labels = load_digits(return_X_y=True)
    of = labels < 2
    images, labels = images[of].reshape(-1, 8, 8).astype(np.uint8), labels[of]
    parts = {"train": slice(0, 240), "test": slice(240, None)}
    found = {f"{name}_images": images[part] for name, part in parts.items()}
    path = folder / "pictures.npz"
    np.savez(path, **found, **{f"{name}_labels": labels[part] for name, part in parts.items()})
    return f"data.file={path} model.width=8 model.depth=1"


Config = dict[str, Any]


def config(folder: Path, data: str, words: str = "", *, rounds: int = 6, **keys: Any) -> Config:
    """Return the run config of four sites."""
    text = f"federation.sites=4 {data} {words}"
    return {"method": "fedavg", "rounds": rounds, "output-dir": str(folder), "set": text, **keys}


def told(record: Record, name: str) -> list[Any]:
    """Return a part of each round's line."""
    return [line.get(name, {}) for line in record.metrics()[1:]]


# ---- sites of one class --------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(
    ("data", "method", "words"),
    [
        (rows_of, "fedavg", ""),
        (rows_of, "fedavg", "federation.robust=none"),
        (rows_of, "fedavg", "federation.robust=median"),
        (rows_of, "scaffold", "scaffold.lr=0.3 scaffold.epochs=1"),
        (pictures_of, "fedavg", "model.norm=none fedavg.lr=0.3 fedavg.batch=16"),
    ],
)
def test_sites_of_one_class_are_not_shut_out_by_those_of_the_other(
    tmp_path: Path, data: Any, method: str, words: str
) -> None:
    """Half of the sites each side: with the rule the run reaches what it reaches without, and the figure is of all."""
    words = f"{data(tmp_path)} {ONE_CLASS} {AT_SITES} {words}"
    record = run(config(tmp_path, words, method=method))
    assert told(record, "rejected") == [{}] * 6
    assert {len(evaluated) for evaluated in told(record, "evaluated")} == {4}
    freed = " ".join(w for w in words.split() if not w.startswith("federation.robust="))
    robust = "federation.robust=median" if "median" in words else "federation.robust=none"
    free = run(config(tmp_path, freed, f"federation.max_update=0 {robust}", method=method))
    reached, possible = (r.metrics()[-1]["test"]["accuracy"] for r in (record, free))
    assert reached >= possible - 0.03
    assert possible > 0.7 or data is pictures_of


@pytest.mark.extended
def test_what_was_usual_is_kept_with_the_checkpoint(tmp_path: Path) -> None:
    """Without it round 2 would shut out two sites of four, as a checkpoint of an earlier release does."""
    words = f"{rows_of(tmp_path)} {ONE_CLASS} {AT_SITES}"
    whole = run(config(tmp_path / "whole", words, rounds=4))
    halted = run(config(tmp_path / "halted", words, rounds=1))
    checkpoint = last(halted)
    assert same_end(resumed(halted, 4), whole)
    assert numbers(halted)[2:] == numbers(whole)[2:]
    early = run(config(tmp_path / "early", words, rounds=1))
    kept = {name: t for name, t in checkpoint.strategy.items() if name != "update-lengths"}
    assert len(kept) < len(checkpoint.strategy)
    replace(checkpoint, strategy=kept).save(early.last)
    assert len(told(resumed(early, 4), "rejected")[1]) == 2


# ---- the rule by hand ----------------------------------------------------------------------------------


Arrays = list[np.ndarray]


def spoiled(change: Callable[[int, Arrays, Arrays], Arrays]) -> Any:
    """Return a tamper that makes other arrays of the round, those sent and those that came; the rest is as it was."""

    def tamper(instruction: Message, reply: Message) -> Message:
        given, came = (
            next(iter(m.content.array_records.values())).to_numpy_ndarrays()
            for m in (instruction, reply)
        )
        return sending(reply, change(int(instruction.metadata.group_id), given, came))

    return tamper


def of_length(lengths: Sequence[float]) -> Any:
    """Return a tamper that sends, in round r, an update of length ``lengths[r - 1]``, all in the same direction."""

    def change(number: int, given: Arrays, came: Arrays) -> Arrays:
        step = lengths[number - 1] / sum(a.size for a in given[1:]) ** 0.5
        return [came[0], *((a + step).astype(a.dtype) for a in given[1:])]

    return spoiled(change)


#: by round, the five sites' lengths, who is left out, and what share of whose is kept
BY_HAND: list[tuple[list[float], list[int], dict[int, float]]] = [
    # U is 0: usual is 1 of all and of the others, 8 > 7 and 11 > 10
    ([1.0, 1.0, 1.2, 8.0, 11.0], [4], {3: 1 / 8}),
    # K was 4: U = 1.2, the third of 1 1 1.2 8. Up to it nothing is cut; beyond, to it; beyond 2 U it is left out
    ([0.01, 0.01, 0.01, 1.19, 2.35], [], {4: 1.2 / 2.35}),
    ([0.01, 0.01, 0.01, 1.3, 2.45], [4], {3: 1.2 / 1.3}),
    # others have grown: 3 is usual, and 7 times it and 10 times it count again
    ([3.0, 3.0, 3.0, 22.0, 31.0], [4], {3: 3 / 22}),
    # and U = 3 now
    ([0.0, 0.0, 0.0, 2.9, 5.9], [], {4: 3 / 5.9}),
]


def by_hand() -> dict[int, Any]:
    """Return the tampers of those rounds."""
    return {site: of_length([lengths[site] for lengths, _, _ in BY_HAND]) for site in range(5)}


def test_the_rule_is_worked_out_by_hand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = f"{rows_of(tmp_path)} partition.kind=iid federation.sites=5"
    record = run(config(tmp_path, words, rounds=5), TamperedGrid, tampers=by_hand())
    for line, (_, rejected, shares) in zip(record.metrics()[1:], BY_HAND, strict=True):
        assert list(line["rejected"]) == [f"partition-{i}" for i in rejected], line["round"]
        found = line.get("shortened", {})
        assert list(found) == [f"partition-{i}" for i in shares], line["round"]
        assert list(found.values()) == pytest.approx(list(shares.values()), rel=1e-4)
    assert "more than 2 times the 1.2 that was usual in an earlier round" in caplog.text


def test_who_counts_less_again_or_with_a_third_of_all_is_one_loud_line_that_names_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = f"{rows_of(tmp_path)} partition.kind=iid federation.sites=5"
    run(config(tmp_path, words, rounds=5), TamperedGrid, tampers=by_hand())
    loud = [r.getMessage() for r in caplog.records if r.getMessage().startswith("LONG UPDATES")]
    assert [text.partition(":")[0][-1] for text in loud] == ["1", "2", "3", "4", "5"]
    first, second, third, *_ = loud
    assert "2 of 5 sites" in first
    assert "raise federation.clip=7 and federation.max_update=10" in first
    assert "second round" not in first
    assert "1 of 5 sites" in second
    assert "for a second round running those of partition-4" in second
    assert second.endswith("raise federation.clip=7")
    assert "for a second round running those of partition-4" in third

    caplog.clear()
    once = {1: of_length([8.0, 1.0]), **{i: of_length([1.0, 1.0]) for i in (0, 2, 3, 4)}}
    run(config(tmp_path, words, rounds=2), TamperedGrid, tampers=once)
    assert "shortened the update of partition-1" in caplog.text
    assert "LONG UPDATES" not in caplog.text


# ---- whose figures, and over whom ----------------------------------------------------------------------


FIVE = f"federation.sites=5 partition.kind=iid {AT_SITES} federation.min_replies=1"
NAN = spoiled(lambda _, __, came: nan(came))
LONG_AND_NAN = {
    1: spoiled(lambda _, given, came: [came[0], *(a - 100 for a in given[1:])]),
    2: NAN,
}


@pytest.mark.parametrize("on", ["sites", "both"])
def test_who_is_left_out_for_length_judges_the_weights_and_who_sends_no_numbers_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, on: str
) -> None:
    words = f"{rows_of(tmp_path)} {FIVE} evaluation.on={on}"
    with caplog.at_level("INFO", "flwr"):
        record = run(config(tmp_path, words, rounds=2), TamperedGrid, tampers=LONG_AND_NAN)
    for line in record.metrics()[1:]:
        assert list(line["rejected"]) == ["partition-2", "partition-1"]
        assert list(line["evaluated"]) == [f"partition-{i}" for i in (0, 1, 3, 4)]
        held = line["evaluated"].values()
        mean = sum(f["examples"] * f["accuracy"] for f in held) / sum(f["examples"] for f in held)
        assert line["sites"]["accuracy"] == pytest.approx(mean)
        assert f"round {line['round']}/2: at the sites accuracy {mean:.4f}, loss " in caplog.text
    message = [r.getMessage() for r in caplog.records if r.getMessage().startswith("round 2/2: ")]
    trained, judged = message
    assert "3 of 5 sites," in trained
    assert ", 4 of 5 sites; accuracy by site: " in judged


def test_a_run_that_goes_on_asks_whom_an_unbroken_one_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 2's figures are asked for after the interruption."""
    update = strategies.fedavg.FedAvg.update

    def stop(self: Any, server_round: int, *args: Any) -> Any:
        if server_round == 3:
            raise KeyboardInterrupt
        return update(self, server_round, *args)

    words = f"{rows_of(tmp_path)} {FIVE}"
    whole = run(config(tmp_path / "a", words, rounds=3), TamperedGrid, tampers=LONG_AND_NAN)
    cut = config(tmp_path / "b", words, rounds=3)
    with monkeypatch.context() as patched:
        patched.setattr(strategies.fedavg.FedAvg, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            run(cut, TamperedGrid, tampers=LONG_AND_NAN)
    (record,) = map(Record, (tmp_path / "b").iterdir())
    assert len(record.metrics()) == 2
    again = with_recorded({"resume": str(record.directory)})
    run(again, TamperedGrid, tampers=LONG_AND_NAN)
    assert numbers(record) == numbers(whole)
    assert "partition-1" in record.metrics()[2]["evaluated"]


def test_a_site_with_more_than_half_of_what_is_held_out_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uneven = f"partition.kind=dirichlet partition.alpha=0.1 partition.min_size=1 {AT_SITES}"
    with caplog.at_level("INFO", "flwr"):
        record = run(config(tmp_path, rows_of(tmp_path), uneven, rounds=1))
        run(config(tmp_path, rows_of(tmp_path), f"partition.kind=iid {AT_SITES}", rounds=1))
    held = {site: f["examples"] for site, f in record.metrics()[1]["evaluated"].items()}
    largest = max(held, key=held.__getitem__)
    assert held[largest] * 2 > sum(held.values())
    one, other = (r.getMessage() for r in caplog.records if "at the sites" in r.getMessage())
    assert f"{len(held)} of 4 sites, more than half of the examples are of {largest}; " in one
    assert ", 4 of 4 sites; " in other


def test_a_run_that_learned_nothing_looks_to_what_was_rejected_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = f"{rows_of(tmp_path)} {FIVE} fedavg.lr=30"
    run(config(tmp_path, words, rounds=2), TamperedGrid, tampers={1: NAN})
    (message,) = (r.getMessage() for r in caplog.records if "learned nothing" in r.getMessage())
    rejections = message.index("see to the replies that 2 of 2 rounds rejected (partition-1: the ")
    assert rejections < message.index("then try a lower learning rate (fedavg.lr from 30 to 10)")


def test_lengths_are_kept_by_architecture_and_part(tmp_path: Path) -> None:
    words = f"{rows_of(tmp_path)} partition.kind=iid scaffold.option=I"
    checkpoint = Checkpoint.load(run(config(tmp_path, words, rounds=1, method="scaffold")).last)
    kept = checkpoint.strategy["update-lengths"]["usual"]
    assert {part for _, part, _ in kept} == {"", "control"}
    assert all(length > 0 for *_, length in kept)
