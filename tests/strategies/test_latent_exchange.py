"""FedDPMS' bookkeeping by hand: each site helps once and is helped once, whatever becomes of a reply."""

from __future__ import annotations

import torch

from common.specs.updates import MEMORY_LOST
from common.wire.tensors import LABELS, VECTORS, Tensors, latent_means
from strategies.exchange.replies import Outcome
from strategies.feddpms import LatentExchange


def means(*classes: int) -> Tensors:
    return latent_means(torch.zeros(len(classes), 2), torch.tensor(classes))


def outcome(*accepted: str, lost: tuple[str, ...] = ()) -> Outcome:
    return Outcome(accepted={s: {MEMORY_LOST: 1.0} if s in lost else {} for s in accepted})


def test_two_rounds_with_partial_participation_and_a_spoilt_reply() -> None:
    """Sites a, b, c; n = 2. Round 1 asks a and b; b's reply is spoilt. Round 2 asks all; a's is.

    Round 1: nobody has shared, nobody is matched. a's C = {0, 1}, H = {2, 3} are taken; b's are not.
    Round 2: a has H {2, 3} and nobody but itself has shared: no match. b and c were never heard: no match. b shares
    {2, 3}, c shares {2, 4} with H {0, 5}; a's reply is spoilt.
    Round 3: a's H is still {2, 3}: b has both, c one. c's H {0, 5}: a has one. b's H {0, 1}: a.
    """
    exchange = LatentExchange()
    for site in ("a", "b"):
        assert exchange.match(site) is None
        assert exchange.ask(site)
    came = exchange.confirm(
        outcome("a"), {"a": means(0, 1), "b": means(2, 3)}, {"a": (2, 3), "b": (0, 1)}
    )
    assert came == {}
    assert list(exchange.shared) == ["a"]

    assert [exchange.match(site) for site in ("a", "b", "c")] == [None, None, None]
    assert [exchange.ask(site) for site in ("a", "b", "c")] == [False, True, True]
    exchange.confirm(
        outcome("b", "c"), {"b": means(2, 3), "c": means(2, 4)}, {"b": (0, 1), "c": (0, 5)}
    )
    assert exchange.asked == {"a": 1, "b": 2, "c": 1}  # b's first means have left it all the same

    assert [exchange.match(site) for site in ("a", "b", "c")] == ["b", "a", "a"]
    assert not any(exchange.ask(site) for site in ("a", "b", "c"))
    # b's reply is spoilt: it keeps no images, and is matched again
    assert exchange.confirm(outcome("a", "c"), {}, {}) == {"a": "b", "c": "a"}
    assert [exchange.match(site) for site in ("a", "b", "c")] == [None, "a", None]
    assert exchange.confirm(outcome("a", "b", "c"), {}, {}) == {"b": "a"}
    assert exchange.scarce == {}


def test_a_site_that_lost_its_memory_is_helped_again_once_it_has_told_what_it_lacks() -> None:
    exchange = LatentExchange()
    exchange.confirm(outcome("a", "b"), {"a": means(0)}, {"b": (0, 1)})
    assert exchange.match("b") == "a"
    exchange.confirm(outcome("b"), {}, {})
    assert exchange.match("b") is None
    exchange.confirm(outcome("b", lost=("b",)), {}, {"b": (0, 1)})
    assert exchange.match("b") == "a"


def test_means_that_came_in_the_reply_of_a_site_whose_images_were_lost_with_it() -> None:
    """It is matched in the very round in which it says that its memory is gone: what it was just sent is there."""
    exchange = LatentExchange()
    exchange.confirm(outcome("a", "b"), {"a": means(0)}, {"b": (0, 1)})
    exchange.match("b")
    assert exchange.confirm(outcome("b", lost=("b",)), {}, {}) == {"b": "a"}
    assert exchange.match("b") is None


def test_a_site_without_a_class_large_enough_has_shared_and_helps_nobody() -> None:
    exchange = LatentExchange()
    exchange.confirm(outcome("a", "b"), {"a": means()}, {"b": (0, 1)})
    assert not exchange.ask("a")
    assert exchange.match("b") is None


def test_the_overall_mean_stands_for_each_class_of_the_helper() -> None:
    """(1, 2), (3, 4) of one site and (8, 0) of another: (4, 2), for each of the first one's two classes."""
    exchange = LatentExchange()
    one = latent_means(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5, 7]))
    other = latent_means(torch.tensor([[8.0, 0.0]]), torch.tensor([5]))
    exchange.confirm(outcome("a", "b"), {"a": one, "b": other}, {})
    handed_on = exchange.overall("a")
    assert handed_on[VECTORS].tolist() == [[4.0, 2.0], [4.0, 2.0]]
    assert handed_on[LABELS].tolist() == [5, 7]
    assert exchange.shared["a"][VECTORS].tolist() == one[VECTORS].tolist()


def test_it_is_the_same_from_a_checkpoint() -> None:
    first = LatentExchange()
    first.ask("a")
    first.confirm(outcome("a", "b"), {"a": means(0, 1)}, {"b": (0, 1), "a": (4, 5)})
    again = LatentExchange()
    again.load_state_dict(first.state_dict())
    assert again.match("b") == "a"
    assert not again.ask("a")
    assert (again.scarce, again.asked, again.helped) == (first.scarce, {"a": 1}, {})
    assert torch.equal(again.shared["a"][LABELS], torch.tensor([0, 1]))
