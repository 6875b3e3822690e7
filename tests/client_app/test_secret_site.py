"""An attacker at the server: what each message of its own gets out of a site, beside what a site gives by itself."""

from __future__ import annotations

import json
import os
import stat
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secret_sites import ATTEMPT, ODD_VAULTS, SHARE, Sites

from client_app.secret import SecretSite
from common.config.loading import load
from common.errors import FederationError
from common.secret import cohort
from common.secret.cohort import threshold
from common.secret.crypto import (
    PRIME,
    KeyContext,
    add_mask,
    joined,
    new_secret,
    own_key,
    pair_is_minus,
    pair_key,
    public_of,
    seal,
    split,
    unseal,
    weights_of,
)

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "One site's lie ends no run under a secret sum, or stops it after two rounds, as [a "
    "table](secret-sum.md#what-one-site-can-do) says; forged accusations open no vector",
)

MASKS_NO_SECOND = "masks no second one"


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """Five sites, of which one may collude: four open a sum."""
    return Sites(tmp_path, 5)


def seed_of(sites: Sites, opened: dict[str, list[bytes]], of: str, names: list[str]) -> bytes:
    """Return what the shares of one secret that came give."""
    at = [sites.names.index(name) + 1 for name in names]
    shares = [opened[name][sites.names.index(of)] for name in names]
    return joined(shares, weights_of(tuple(at)))


# ---- what the protocol gives ------------------------------------------------------------------------


def test_the_total_opens_with_the_threshold_and_a_site_that_is_gone(sites: Sites) -> None:
    """By the attacker's own arithmetic: the sum of those who are there, and no vector alone."""
    roll, sent = sites.up_to_masked()
    there, gone, place = sites.names[:4], sites.names[4], KeyContext("a-record", 1, ATTEMPT)
    opened = {n: sites.at(n, names=there).opening()[cohort.OPENED] for n in there}
    total = sum((sent[name] for name in there), np.zeros(6, "<u8"))
    for name in there:
        add_mask(total, own_key(seed_of(sites, opened, name, there), place, name), minus=True)
        private = seed_of(sites, opened, gone, there)
        public = roll[cohort.MASK_KEYS][sites.names.index(name)]
        key = pair_key(private, public, place, gone, name)
        add_mask(total, key, minus=not pair_is_minus(name, gone))
    assert (total == sum(sites.vector(name) for name in there)).all()
    for name in sites.names:
        assert (sent[name] != sites.vector(name)).all()


@pytest.mark.parametrize("sites_there", range(3, 40))
def test_two_lists_never_open_one_site_with_the_colluders_of_both(sites_there: int) -> None:
    for colluders in range(sites_there - 1):
        least = threshold(sites_there, colluders)
        assert max(3, -(-2 * sites_there // 3)) <= least <= sites_there
        for told_one in range(sites_there - colluders + 1):
            told_other = sites_there - colluders - told_one
            assert min(told_one, told_other) + colluders < least


# ---- two stories ------------------------------------------------------------------------------------


def test_a_site_that_is_alive_to_some_and_dead_to_others_stays_masked(sites: Sites) -> None:
    """The victim is told alive to two and dead to two: three shares of its seed, two of its key, and four open one.

    A colluder's own share of both makes it three of each.
    """
    roll, sent = sites.up_to_masked()
    victim, alive, dead = "site-4", ["site-0", "site-1"], ["site-2", "site-3"]
    colluder = json.loads(sites.path("site-0").read_text())["live"]["received"][victim]
    all_alive, without = ({"names": names} for names in (sites.names, sites.names[:4]))
    seeds = {n: sites.at(n, **all_alive).opening()[cohort.OPENED][4] for n in [*alive, victim]}
    keys = {n: sites.at(n, **without).opening()[cohort.OPENED][4] for n in dead}
    keys["site-0"] = bytes.fromhex(colluder)[SHARE:]
    assert len(seeds) == len(keys) == 3 < threshold(5, 1)
    place = KeyContext("a-record", 1, ATTEMPT)
    for shares in (seeds, keys):
        weights = weights_of(tuple(sites.names.index(n) + 1 for n in shares))
        each = zip(shares.values(), weights, strict=True)
        value = sum(int.from_bytes(share) * weight for share, weight in each) % PRIME
        guess = value.to_bytes(SHARE)[-32:]
        assert public_of(guess) != roll[cohort.MASK_KEYS][4]
        vector = sent[victim].copy()
        add_mask(vector, own_key(guess, place, victim), minus=True)
        assert (vector != sites.vector(victim)).all()


def test_a_second_list_of_survivors_gets_nothing(sites: Sites) -> None:
    sites.up_to_masked()
    first = sites.at("site-0", names=sites.names).opening()
    assert len(first[cohort.OPENED]) == 5
    for names in (sites.names, sites.names[:4]):
        with pytest.raises(FederationError, match="has no secrets of this round"):
            sites.at("site-0", names=names).opening()


def test_a_repeated_round_opens_the_same_sites_or_nothing(sites: Sites) -> None:
    """Else the difference of the two totals of the same vectors is one site's own."""
    sites.up_to_masked()
    sites.at("site-0", names=sites.names).opening()
    sites.up_to_masked(attempt="attempt-2")
    with pytest.raises(FederationError, match="has opened a total of this round, of other sites"):
        sites.at("site-0", attempt="attempt-2", names=sites.names[:4]).opening()
    assert sites.at("site-0", attempt="attempt-2", names=sites.names).opening()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["site-0", "site-1", "site-2"],
            "3 sites are in this round's sum, and this site takes part from 4 on",
        ),
        (["site-1", "site-2", "site-3", "site-4"], "this site is not among them"),
        (["site-0", "site-1", "site-2", "stranger"], "are not all of this round's roll"),
        (["site-0", "site-1", "site-2", "site-2"], "must be different sites"),
        (["site-0", "site-1", "site-2", "../x"], "must be names of sites"),
        ("site-0", "a list of up to 1000 sites"),
        ([f"s{i}" for i in range(10_000)], "a list of up to 1000 sites"),
    ],
)
def test_a_list_of_others_or_of_too_few_opens_nothing(sites: Sites, names: Any, said: str) -> None:
    sites.up_to_masked()
    with pytest.raises(FederationError, match=said):
        sites.at("site-0", names=names).opening()
    assert sites.at("site-0", names=sites.names).opening()


# ---- asked twice, and of another time ---------------------------------------------------------------


def test_keys_and_shares_asked_twice_are_the_same_and_of_another_roll_refused(sites: Sites) -> None:
    roll = sites.roll()
    assert sites.at("site-0").keys() == sites.at("site-0").keys()
    shares = sites.at("site-0", **roll).shares()
    assert sites.at("site-0", **roll).shares() == shares
    other = roll | {cohort.NAMES: [*roll[cohort.NAMES][:-1], "made-up"]}
    with pytest.raises(FederationError, match="given another roll of this round: it shares once"):
        sites.at("site-0", **other).shares()


def test_no_second_vector_goes_under_one_mask(sites: Sites) -> None:
    roll = sites.roll()
    sealed = sites.sealed(roll)
    sites.masked("site-0", sealed, sites.vector("site-0"))
    for vector in (sites.vector("site-0"), np.zeros(6, "<u8")):
        with pytest.raises(FederationError, match=MASKS_NO_SECOND):
            sites.masked("site-0", sealed, vector)


def test_the_same_vector_has_other_masks_each_round_and_attempt(sites: Sites) -> None:
    _, first = sites.up_to_masked()
    _, again = sites.up_to_masked(attempt="attempt-2")
    _, later = sites.up_to_masked(number=2)
    for name in sites.names:
        assert (first[name] != again[name]).all()
        assert (first[name] != later[name]).all()


@pytest.mark.parametrize("old", [{"number": 1}, {"number": 3}, {"number": 2, "attempt": "old"}])
def test_a_message_of_another_round_or_attempt_is_refused(
    sites: Sites, old: dict[str, Any]
) -> None:
    sealed = sites.sealed(sites.roll())
    roll = sites.roll(number=2)
    for work in (
        lambda: sites.at("site-0", **old, **roll).shares(),
        lambda: sites.masked("site-0", sealed, sites.vector("site-0"), **old),
        lambda: sites.at("site-0", **old, names=sites.names).opening(),
    ):
        with pytest.raises(FederationError, match="has no secrets of this round"):
            work()
    mixed = sites.sealed(roll, number=2) | {"site-1": sealed["site-1"]}
    sites.masked("site-0", mixed, sites.vector("site-0"), number=2)
    assert sites.at("site-0", number=2).accused == [True, False, False, False]


# ---- rolls ------------------------------------------------------------------------------------------


def test_a_site_refuses_a_roll_below_its_own_threshold(sites: Sites) -> None:
    """Whatever threshold, or number of sites asked, the roll says."""
    roll = sites.roll(names=sites.names[:3])
    for asked, most in [(3, 3), (5, 3), (5, 2), (5, 4), (5, 6), (2000, 1334)]:
        with pytest.raises(
            FederationError, match=r"takes part from (4|5) on|a number from 1 to 1000"
        ):
            sites.at("site-0", **roll | {cohort.ASKED: asked, cohort.THRESHOLD: most}).shares()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (cohort.NAMES, ["site-1", "site-2", "site-3", "site-4", "site-5"], "is not in the roll"),
        (cohort.NAMES, ["site-0"] * 5, "must be different sites"),
        (cohort.SEAL_KEYS, [public_of(new_secret())] * 5, "other keys of this site"),
        (cohort.SEAL_KEYS, [b"x"] * 5, "must be of 32 bytes each"),
        (cohort.MASK_KEYS, [], "must be 5, not 0"),
        (cohort.MASK_KEYS, 7, "must be a list"),
        (cohort.ASKED, "5", "must be a number from 1 to 1000"),
        (cohort.THRESHOLD, True, "must be a number from 1 to 1000"),
    ],
)
def test_a_roll_that_is_none_is_refused(sites: Sites, key: str, value: Any, said: str) -> None:
    roll = sites.roll()
    with pytest.raises(FederationError, match=said):
        sites.at("site-0", **roll | {key: value}).shares()


def test_a_key_twice_or_no_point_of_the_curve_is_refused(sites: Sites) -> None:
    roll = sites.roll()
    keys = roll[cohort.SEAL_KEYS]
    with pytest.raises(FederationError, match="has a key twice"):
        sites.at("site-0", **roll | {cohort.SEAL_KEYS: [*keys[:3], keys[3], keys[3]]}).shares()
    for key in (cohort.SEAL_KEYS, cohort.MASK_KEYS):
        with pytest.raises(FederationError, match=f"{key} must be X25519 public keys"):
            sites.at("site-0", **roll | {key: [*roll[key][:4], bytes(32)]}).shares()


def test_one_real_site_among_made_up_ones_is_not_withstood_as_is_said(sites: Sites) -> None:
    """The attack by which a server that lies about who is there reads a vector: no site can tell names from sites."""
    assert (
        "a server that lies about who is there, or that replaces keys, is not withstood"
        in cohort.WITHSTANDS
    )
    place, privates = KeyContext("a-record", 1, ATTEMPT), {n: new_secret() for n in sites.names[1:]}
    own = sites.at("site-0").keys()
    seal_keys = {n: new_secret() for n in privates}
    roll = {
        cohort.NAMES: sites.names,
        cohort.SEAL_KEYS: [own[cohort.SEAL_KEY], *map(public_of, seal_keys.values())],
        cohort.MASK_KEYS: [own[cohort.MASK_KEY], *map(public_of, privates.values())],
        cohort.ASKED: 5,
        cohort.THRESHOLD: 4,
    }
    shared = sites.at("site-0", **roll).shares()[cohort.SEALED]
    data = split(new_secret(), 4, 5)[0] * 2
    sealed = [seal(seal_keys[n], own[cohort.SEAL_KEY], place, n, "site-0", data) for n in privates]
    words = sites.vector("site-0")
    sites.masks("site-0", words, [*privates], sealed)
    for name, private in privates.items():
        key = pair_key(private, own[cohort.MASK_KEY], place, "site-0", name)
        add_mask(words, key, minus=not pair_is_minus("site-0", name))
    # and its own mask, by the shares that it sealed for those who are not there
    opened = [
        unseal(seal_keys[n], own[cohort.SEAL_KEY], place, "site-0", n, each)[:SHARE]
        for n, each in zip(privates, shared, strict=True)
    ]
    seed = joined(opened, weights_of((2, 3, 4, 5)))
    add_mask(words, own_key(seed, place, "site-0"), minus=True)
    assert (words == sites.vector("site-0")).all()


# ---- shares that come -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["repeated", "of another", "all"])
def test_a_share_that_cannot_be_read_is_said_and_its_pair_keeps_the_mask(
    sites: Sites, kind: str
) -> None:
    """A server that sends rubbish in a sender's name, or in all senders', takes no mask off."""
    roll = sites.roll()
    sealed = sites.sealed(roll)
    senders, mine = sites.names[1:], [sealed[n]["site-0"] for n in sites.names[1:]]
    spoiled = {
        "repeated": mine[0],
        "of another": sealed["site-2"]["site-1"],
    }
    shares = [mine[0], spoiled[kind], *mine[2:]] if kind in spoiled else [os.urandom(82)] * 4
    words = sites.vector("site-0")
    sites.masks("site-0", words, senders, shares)
    assert sites.at("site-0").accused == [kind == "all", True, kind == "all", kind == "all"]
    live = json.loads(sites.path("site-0").read_text())["live"]
    bare, place = words.copy(), KeyContext("a-record", 1, ATTEMPT)
    add_mask(bare, own_key(bytes.fromhex(live["seed"]), place, "site-0"), minus=True)
    for name in senders:
        public = roll[cohort.MASK_KEYS][sites.names.index(name)]
        assert (bare != sites.vector("site-0")).all()
        key = pair_key(bytes.fromhex(live["mask"]), public, place, "site-0", name)
        add_mask(bare, key, minus=not pair_is_minus("site-0", name))
    assert (bare == sites.vector("site-0")).all()
    opened = sites.at("site-0", names=sites.names).opening()[cohort.OPENED]
    assert [not share for share in opened[1:]] == [
        kind == "all",
        True,
        kind == "all",
        kind == "all",
    ]


@pytest.mark.parametrize("kind", ["one short", "10,000"])
def test_shares_of_others_than_the_rolls_cost_the_server_its_vector(
    sites: Sites, kind: str
) -> None:
    sealed = sites.sealed(sites.roll())
    senders, mine = sites.names[1:], [sealed[n]["site-0"] for n in sites.names[1:]]
    if kind == "one short":
        mine = mine[1:]
    else:
        senders, mine = [f"s{i}" for i in range(10_000)], mine[:1] * 10_000
    words = sites.vector("site-0")
    with pytest.raises(
        FederationError, match=r"sealed must be 4, not 3|a list of up to 1000 sites"
    ):
        sites.masks("site-0", words, senders, mine)
    assert (words == sites.vector("site-0")).all()
    assert (
        len(sites.masked("site-0", sealed, words)) == 6
    )  # what came was not counted as its vector


def test_forged_accusations_open_no_site(sites: Sites) -> None:
    """A server's own arithmetic, with one colluder: all that it can have after it sent rubbish in every honest name.

    The victim gets rubbish as every share, and so does everybody from the victim; each honest site opens what it is
    asked to, the victim alive to two and dead to two. Of neither of its secrets are there four shares, so that its own
    mask stays, and so do those with each other honest site, of whose keys there are no four either.
    """
    roll = sites.roll()
    sealed = sites.sealed(roll)
    victim, colluder, place = "site-4", "site-0", KeyContext("a-record", 1, ATTEMPT)
    kept = json.loads(sites.path(colluder).read_text())["live"]
    sent = {}
    for name in sites.names:
        others = [other for other in sites.names if other != name]
        shares = [sealed[other][name] for other in others]
        forged = [os.urandom(82) if name == victim else s for s in shares]
        sent[name] = sites.vector(name)
        sites.masks(name, sent[name], others, forged)
    told = {"site-1": sites.names, "site-2": sites.names, "site-3": sites.names[:4]}
    opened = {n: sites.at(n, names=[*names]).opening()[cohort.OPENED] for n, names in told.items()}
    own = sites.at(victim, names=sites.names).opening()[cohort.OPENED]
    assert own[:4] == [b""] * 4
    both = unseal(
        bytes.fromhex(kept["seal"]), roll[cohort.SEAL_KEYS][4], place, victim, colluder,
        sealed[victim][colluder],
    )  # fmt: skip
    seeds = {n: opened[n][4] for n in ("site-1", "site-2")} | {colluder: both[:SHARE]}
    seeds[victim] = own[4]
    keys = {"site-3": opened["site-3"][4], colluder: both[SHARE:]}
    assert (len(seeds), len(keys)) == (4, 2)
    # four of its seed: the total with it is the one that two honest sites and itself have opened; its key stays shut
    bare = sent[victim].copy()
    places = tuple(sites.names.index(n) + 1 for n in seeds)
    add_mask(
        bare, own_key(joined([*seeds.values()], weights_of(places)), place, victim), minus=True
    )
    pair = pair_key(bytes.fromhex(kept["mask"]), roll[cohort.MASK_KEYS][4], place, colluder, victim)
    add_mask(bare, pair, minus=not pair_is_minus(victim, colluder))
    assert (bare != sites.vector(victim)).all()
    for name in sites.names[1:4]:
        of_key = [
            opened[n][sites.names.index(name)] for n, names in told.items() if name not in names
        ]
        assert len([share for share in of_key if share]) < threshold(5, 1)


def test_too_few_senders_get_no_vector(sites: Sites) -> None:
    sealed = sites.sealed(sites.roll())
    some = {n: sealed[n] for n in sites.names[:3]}
    with pytest.raises(FederationError, match="3 sites are in this round's sum"):
        sites.masked("site-0", some, sites.vector("site-0"))


# ---- what lies between exchanges --------------------------------------------------------------------


def test_secrets_are_its_owners_alone_and_gone_with_the_round(sites: Sites) -> None:
    sites.up_to_masked()
    path = sites.path("site-0")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    live = json.loads(path.read_text())["live"]
    kept = [live[key] for key in ("seal", "mask", "seed", "own")] + [*live["received"].values()]
    sites.at("site-0", names=sites.names, next="attempt-1").opening()
    text = path.read_text()
    assert not [secret for secret in kept if secret in text]
    assert json.loads(text)["live"].keys() == {"round", "attempt", "seal", "mask"}
    assert json.loads(text)["live"]["round"] == 2
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(".")] == []


def test_another_attempt_leaves_nothing_of_the_one_before(sites: Sites) -> None:
    sites.up_to_masked()
    live = json.loads(sites.path("site-0").read_text())["live"]
    sites.at("site-0", attempt="attempt-2").keys()
    text = sites.path("site-0").read_text()
    assert not [key for key in ("seal", "mask", "seed", "own") if live[key] in text]


def test_secrets_of_a_run_that_ended_in_a_round_are_gone_a_day_later(sites: Sites) -> None:
    sites.up_to_masked()
    sites.at("site-0", names=sites.names, next="attempt-1").opening()
    path, kept = sites.path("site-0"), json.loads(sites.path("site-0").read_text())
    for age, there in ((23 * 3600, True), (25 * 3600, False)):
        old = path.with_name("another-run~site-0.json")
        old.write_text(json.dumps(kept))
        os.utime(old, (time.time() - age,) * 2)
        sites.at("site-1", number=2, attempt=f"attempt-{age}").keys()
        left = json.loads(old.read_text())
        assert (left["live"] is not None) == there
        assert left["opened"] == kept["opened"]


def test_a_site_that_lost_its_secrets_takes_no_part_until_the_next(sites: Sites) -> None:
    roll = sites.roll()
    sealed = sites.sealed(roll)
    sites.path("site-0").unlink()
    with pytest.raises(FederationError, match="lost as it was started again"):
        sites.masked("site-0", sealed, sites.vector("site-0"))
    with pytest.raises(FederationError, match="has no secrets"):
        sites.at("site-0", **roll).shares()
    assert sites.at("site-0", number=2).keys()


@pytest.mark.parametrize("text", ODD_VAULTS)
def test_what_a_site_keeps_is_read_as_it_was_written_or_refused_in_a_sentence(
    sites: Sites, text: bytes
) -> None:
    roll, _ = sites.up_to_masked()
    whole = json.loads(sites.path("site-0").read_text())
    for gone in whole["live"]:
        spoiled = {**whole, "live": {k: v for k, v in whole["live"].items() if k != gone}}
        _refused_by_all(sites, json.dumps(spoiled).encode(), roll)
    _refused_by_all(sites, text, roll)
    sites.path("site-0").write_text(json.dumps(whole))
    assert sites.at("site-0", names=sites.names).opening()


def _refused_by_all(sites: Sites, text: bytes, roll: dict[str, Any]) -> None:
    sites.path("site-0").write_bytes(text)
    for work in (
        lambda: sites.at("site-0").keys(),
        lambda: sites.at("site-0", **roll).shares(),
        lambda: sites.masks("site-0", sites.vector("site-0"), sites.names[1:], [b"x" * 82] * 4),
        lambda: sites.at("site-0", names=sites.names).opening(),
    ):
        with pytest.raises(FederationError, match="cannot be read: delete secret-sum"):
            work()


def test_a_run_without_a_secret_sum_opens_nothing(sites: Sites) -> None:
    off = Sites(sites.directory, 5)
    off.run = SimpleNamespace(config=load({"method": "fedavg"}))
    with pytest.raises(FederationError, match="has no secret sum"):
        off.at("site-0")
    for config in (
        {"server-round": 1},
        {"server-round": "1", "attempt": "x"},
        {"attempt": "x" * 65},
    ):
        with pytest.raises(FederationError, match="does not say of which round"):
            SecretSite(sites.run, "site-0", None, config)  # type: ignore[arg-type]


# ---- anything at all --------------------------------------------------------------------------------

EXCHANGES = ("keys", "shares", "opening")
FIELDS = (
    *(cohort.NAMES, cohort.SEAL_KEYS, cohort.MASK_KEYS, cohort.ASKED, cohort.THRESHOLD),
    *(cohort.NEXT, "server-round", "record", "other"),
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**70),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=40),
    st.lists(st.one_of(st.text(max_size=8), st.binary(max_size=33), st.integers()), max_size=6),
)


@pytest.mark.extended
@given(st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=4), st.sampled_from(EXCHANGES))
@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_an_instruction_says_is_answered_or_refused_in_a_sentence(
    tmp_path: Path, odd: dict[str, Any], exchange: str
) -> None:
    """On top of an honest instruction; and none of it opens anything but what an honest one does."""
    sites = Sites(tmp_path / uuid.uuid4().hex, 3)
    roll, _ = sites.up_to_masked()
    honest = {"opening": {cohort.NAMES: sites.names}, "shares": roll, "keys": {}}[exchange]
    told, refused = {}, ""
    try:
        told = getattr(sites.at("site-0", **{**honest, **odd}), exchange)()
    except FederationError as error:
        refused = str(error)
    assert len(refused) < 400
    assert len(told.get(cohort.OPENED, [0] * 3)) == 3
