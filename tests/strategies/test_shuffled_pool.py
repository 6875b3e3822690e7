"""The shuffling of everybody's images: nothing is lost, shares are equal, and late sites get one too."""

from __future__ import annotations

import torch

from common.config.loading import load
from common.division import Division
from common.wire.images import Pixels
from strategies.shuffled_pool import ShuffledPool

#: digits'; the pool asks it for constants alone
RUN = Division(load({"set": "model.width=4"})).run


def images(*marks: int) -> Pixels:
    """Return an image for each mark, which is its one value and its label."""
    labels = torch.tensor(marks)
    return Pixels(labels.to(torch.uint8).reshape(-1, 1, 1, 1), labels, (0.0,), (1.0,))


def pool_of(*sent: Pixels, parts: int = 3, seed: int = 1) -> ShuffledPool:
    pool = ShuffledPool(RUN)
    names = [f"site-{i}" for i in range(len(sent))]
    for name, each in zip(names, sent, strict=True):
        pool.add(name, each)
    pool.close(names, parts, torch.Generator().manual_seed(seed))
    return pool


def test_labels_stay_with_their_images_and_everybody_gets_of_everybody() -> None:
    pool = pool_of(*(images(*range(100 * i, 100 * i + 80)) for i in range(2)), parts=2)
    shares = [pool.share_of(f"site-{i}") for i in range(2)]
    for share in shares:
        assert torch.equal(share.values.flatten().long(), share.labels)
        from_first = int((share.labels < 100).sum())
        # of 80 of each, 80 are drawn without replacement: 40 expected, deviation sqrt(80/4 * 80/159) = 3.2
        assert abs(from_first - 40) < 5 * 3.2
    together = torch.cat([share.labels for share in shares]).sort().values
    assert together.tolist() == [*range(80), *range(100, 180)]


def test_the_shuffling_is_one_draw_over_all_images_in_the_order_of_the_sites() -> None:
    """The permutation of six positions by the generator, worked out beside: the order of arrival changes nothing."""
    sent = {"site-1": images(3, 4, 5), "site-0": images(0, 1, 2)}
    order = torch.randperm(6, generator=torch.Generator().manual_seed(7)).tolist()
    for names in (["site-0", "site-1"], ["site-1", "site-0"]):
        pool = ShuffledPool(RUN)
        for name in names:
            pool.add(name, sent[name])
        pool.close(["site-0", "site-1"], 2, torch.Generator().manual_seed(7))
        got = [*pool.share_of("site-0").labels.tolist(), *pool.share_of("site-1").labels.tolist()]
        assert got == order


def test_who_sent_what_is_not_kept() -> None:
    pool = pool_of(images(1, 2, 3), images(4, 5, 6))
    kept = pool.state_dict()
    assert not pool.sent
    assert list(kept["images"]) == [""]
    assert list(kept["labels"]) == [""]


def test_a_late_site_gets_the_share_that_is_nobodys_and_then_one_that_somebody_has() -> None:
    pool = pool_of(images(1, 2, 3), images(4, 5, 6), parts=3)
    first, late = pool.share_of("site-0"), pool.share_of("late")
    everything = torch.cat([pool.share_of(name).labels for name in ("site-0", "site-1", "late")])
    assert sorted(everything.tolist()) == [1, 2, 3, 4, 5, 6]
    assert torch.equal(pool.share_of("late").labels, late.labels), "the same one again"
    assert torch.equal(pool.share_of("later").labels, first.labels)


def test_a_second_delivery_of_a_site_changes_nothing() -> None:
    pool = ShuffledPool(RUN)
    pool.add("site-0", images(1, 2))
    pool.add("site-0", images(7, 8))
    assert pool.sent["site-0"].labels.tolist() == [1, 2]


def test_it_is_taken_up_again_while_images_come_and_afterwards() -> None:
    before = ShuffledPool(RUN)
    before.add("site-0", images(1, 2, 3))
    again = ShuffledPool(RUN)
    again.load_state_dict(before.state_dict())
    for pool in (before, again):
        pool.add("site-1", images(4, 5, 6))
        pool.close(["site-0", "site-1"], 2, torch.Generator().manual_seed(3))
    third = ShuffledPool(RUN)
    third.load_state_dict(again.state_dict())
    for name in ("site-0", "site-1", "late"):
        labels = [pool.share_of(name).labels.tolist() for pool in (before, again, third)]
        assert labels[0] == labels[1] == labels[2]
        assert third.closed
        assert third.share_of(name).mean == tuple(RUN.info.mean)
