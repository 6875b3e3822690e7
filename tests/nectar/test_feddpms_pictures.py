"""FedDPMS' decoded means in the report: beside the real images of who sent them and of who was helped by them."""

from __future__ import annotations

from typing import Any

import pytest
from documents import check, written
from federation import run
from small import Small

from nectar.records.past_run import PastRun
from nectar.report.neighbours import RealImages, real_images
from nectar.report.view import View

DPMS = (
    "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1 fedvae.epochs=1 "
    "feddpms.smallest=1 feddpms.copies=4 feddpms.classes=2"
)


@pytest.mark.extended
def test_each_is_beside_the_senders_and_the_receivers_nearest(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = RealImages.nearest

    def noted(self: RealImages, site: str, images: Any) -> Any:
        asked.append(site)
        return real(self, site, images)

    monkeypatch.setattr(RealImages, "nearest", noted)
    record = run(small(method="feddpms", rounds=3, set=DPMS))
    document = written(record)
    check(document)
    view = View(PastRun.open(record.directory))
    assert len(view.matches) == 3
    helped: dict[str, str] = {}
    for _, site, helper, _ in view.matches:
        helped.setdefault(helper, site)
    expected = []
    for sender in view.past.synthetic()[1]:
        expected += [sender, *([helped[sender]] if sender in helped else [])]
    assert asked == expected
    for helper, site in helped.items():
        assert f"the nearest real one and its distance at {site}, which it helped" in document.text
        alternatives = [image["alt"] for image in document.all("img")]
        assert any(a.startswith(helper) and a.endswith(f"each at {site}") for a in alternatives)
    assert isinstance(real_images(view), RealImages)
