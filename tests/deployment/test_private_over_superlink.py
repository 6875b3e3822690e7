"""A private run over a real SuperLink: a site killed as it draws, and a spent budget.

Minutes, so with `pytest tests/deployment/test_private_over_superlink.py -m long` only.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from fault_federation import FaultFederation, until
from federation import words_of
from image_folders import CLASSES, COLOURS, paint
from small import SMALL

from client_app.owner.ledger import NO_BUDGET
from common.learning.steps import DPSGDSteps
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.privacy.ledger import HEAD_FILE, LEDGER, Ledger, Lines
from server_app.record import Record
from server_app.recorder import _PLACES

pytestmark = [
    pytest.mark.extended,
    pytest.mark.long,
    pytest.mark.promise(
        "A site is the master of its own machine",
        "Epsilon is never under-counted, over kills, retries and all runs; no run passes the "
        "budget; with one, runs that are not private are refused",
    ),
]

DELTA = 1e-5
PRIVATE = "privacy.noise_multiplier=1 privacy.counts=public evaluation.on=server"


# ---- sites with folders, ledgers and budgets of their own ----------------------------------------------------

HELD = {"north": 12, "south": 14, "west": 16}  # images of each of three colours
CAREFUL, STRUCK = "north", "west"

#: what north's budget allows, of the rounds that are asked for at first; west is killed in one of them
ALLOWED, ROUNDS, KILLED = 3, 4, 2
BATCH, EPOCHS = 8, 20

#: what the server asks for behind that, in a round each: the same under another id, and less of it with more noise
LATER = {"another": "", "other": f"privacy.noise_multiplier=2 fedavg.epochs={EPOCHS // 2}"}


def event_of(site: str, sigma: float = 1.0, epochs: int = EPOCHS) -> Event:
    """Return what a round costs a site."""
    steps = DPSGDSteps.plan(BATCH, epochs, 3 * HELD[site])
    return Event("dp-sgd", sigma, steps.rate, steps.steps)


def budget_of(site: str) -> float:
    """Return what allows so many rounds to the careful site and next to nothing beyond, and all to the others."""
    if site != CAREFUL:
        return 10_000.0
    spent = [event_of(site)] * ALLOWED
    least, *dearer = (
        epsilon([*spent, *more], DELTA).value
        for more in ([], [event_of(site)], [event_of(site, sigma=2.0, epochs=EPOCHS // 2)])
    )
    return least + (min(dearer) - least) / 10


@dataclass
class Story:
    """What became of the runs, and how the sites' files stood in between."""

    directory: Path
    first: Record
    mid_release: Lines
    released: list[tuple[int, str]]
    spent: list[bytes] = field(default_factory=list)
    others: list[Record] = field(default_factory=list)


def state_of(directory: Path, site: str) -> Path:
    return directory / "states" / site


def answers_of(directory: Path, site: str) -> list[tuple[int, str]]:
    """Return what a site answered to instructions, by its own log: the round, and the refusal or nothing."""
    log = state_of(directory, site) / "released.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [(line["round"], line.get("reason", "")) for line in lines if line["phase"] == "train"]


def ledger_of(directory: Path, site: str) -> list[bytes]:
    """Return a site's ledger, byte for byte."""
    return [(state_of(directory, site) / name).read_bytes() for name in (LEDGER, HEAD_FILE)]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """West is killed in round 2 behind its charge and started again; then the server asks for more."""
    directory = tmp_path_factory.mktemp("private")
    nodes = {}
    for seed, (site, count) in enumerate(HELD.items()):
        folder = directory / "folders" / site
        for name in COLOURS:
            paint(folder, name, count, seed=seed)
        nodes[site] = (
            f"site='{site}' data='{folder}' state-dir='{state_of(directory, site)}' "
            f"privacy-epsilon={budget_of(site)}"
        )
    settings = (
        f"{SMALL} dataset=images images.classes={CLASSES} images.size=8 model.depth=2 method=fedavg "
        f"fedavg.batch={BATCH} fedavg.epochs={EPOCHS} federation.min_replies=1 {PRIVATE} evaluation.on=none"
    )
    where = f"output-dir={directory}/runs"
    with FaultFederation(directory, nodes) as federation:
        federation.start(*nodes)
        words = words_of({"rounds": ROUNDS, "set": settings})
        submitted = federation.submit_words("first", where, *words)
        ledger = state_of(directory, STRUCK) / LEDGER
        until(partial(_has, ledger, KILLED), "the round's charge", while_runs=submitted)
        federation.kill(STRUCK)
        (first,) = (directory / "runs").iterdir()
        story = Story(
            directory, Record(first), Ledger(ledger.parent).read(), answers_of(directory, STRUCK)
        )
        federation.start(STRUCK)
        _end(federation, "first", submitted)
        story.spent = ledger_of(directory, CAREFUL)
        for name, asked in LATER.items():
            known = {*(directory / "runs").iterdir()}
            words = words_of({"rounds": 1, "set": f"{settings} {asked}"})
            _end(federation, name, federation.submit_words(name, where, *words))
            story.others += map(Record, {*(directory / "runs").iterdir()} - known)
    return story


def _has(ledger: Path, lines: int) -> bool:
    return ledger.is_file() and ledger.read_bytes().count(b"\n") >= lines


def _end(federation: FaultFederation, name: str, submitted: subprocess.Popen[bytes]) -> None:
    until(lambda: submitted.poll() is not None, f"the end of {name}")
    assert submitted.wait() == 0, federation.log(name)


def test_a_site_that_is_killed_as_it_draws_has_counted_it_and_the_run_goes_on(story: Story) -> None:
    """Charged and not yet sent: the line stands, and what was released for nobody is in the record's epsilon, too."""
    assert [charge.round for charge in story.mid_release.charges] == [*range(1, KILLED + 1)]
    assert story.released == [(number, "") for number in range(1, KILLED)]
    lines = {line["round"]: line for line in story.first.metrics()}
    assert STRUCK not in lines[KILLED]["accepted"]
    assert STRUCK in lines[ROUNDS]["accepted"]
    for site in HELD:
        ledger = Ledger(state_of(story.directory, site)).read()
        mine = [charge for charge in ledger.charges if charge.record == story.first.id]
        assert {event for charge in mine for event in charge.events} == {event_of(site)}
        taken = [number for number, line in lines.items() if site in line["accepted"]]
        assert Counter(charge.round for charge in mine) == Counter(
            [*taken, *(KILLED for _ in range(site == STRUCK))]
        )
        spent = lines[max(taken)]["notes"]["spent"][site]
        share = _PLACES // len(HELD)  # of the time, in which PRV's epsilon may be too long
        cost = epsilon([event_of(site)] * len(mine), DELTA, most_places=share).value
        assert (spent["epsilon"], spent["seeded"]) == (pytest.approx(cost), False)
        assert ledger.has(story.mid_release.head) == (site == STRUCK)


def test_what_a_budget_does_not_allow_gets_one_sentence_and_not_a_bit_more(story: Story) -> None:
    """More rounds, another record id, other settings: nothing is charged, and by the site's own log nothing left."""
    rounds = story.first.metrics()[1:]
    assert [line["round"] for line in rounds if CAREFUL in line["accepted"]] == [
        *range(1, ALLOWED + 1)
    ]
    later = [*rounds[ALLOWED:], *(line for record in story.others for line in record.metrics()[1:])]
    assert len(later) == 3
    for line in later:
        assert line["rejected"] == {CAREFUL: NO_BUDGET}
        assert CAREFUL not in line["devices"]
    assert ledger_of(story.directory, CAREFUL) == story.spent
    answers = [(number, "") for number in range(1, ALLOWED + 1)]
    answers += [(line["round"], NO_BUDGET) for line in later]
    assert answers_of(story.directory, CAREFUL) == answers
    for record in story.others:
        assert CAREFUL not in record.metrics()[-1]["notes"]["spent"]
