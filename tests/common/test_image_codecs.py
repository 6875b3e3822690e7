"""What images travel in, and what the settings offer of it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from common.settings.fedavg import MaskingSettings, TopKSettings
from common.settings.section import Section
from common.settings.sections import WireSettings
from common.wire.coders import FLOAT_CODECS
from common.wire.frame import encoded_bytes
from common.wire.images import SyntheticImagesSpec
from common.wire.jpeg import Sheet
from common.wire.weights import CODECS


def test_the_most_bytes_are_of_those_codecs_that_can_hold_the_images() -> None:
    """By hand: 4 bytes a value, and labels of 8; a picture of two channels there is not, and of one it is larger."""
    spec = SyntheticImagesSpec((2, 8, 8), 5, 1, mean=(0.5,) * 2, std=(0.5,) * 2)
    beside = encoded_bytes(0, 0)
    assert spec.max_bytes == beside + 4 * 5 * 128 + 8 * 5
    one = SyntheticImagesSpec((1, 8, 8), 5, 1, mean=(0.5,), std=(0.5,))
    assert one.max_bytes == beside + Sheet.of(5, (1, 8, 8)).max_bytes + 8 * 5
    assert one.max_bytes > replace(one, mean=(), std=()).max_bytes == beside + 4 * 5 * 64 + 8 * 5


def test_settings_offer_what_the_other_tables_have() -> None:
    def offered(section: type[Section], name: str) -> set[str]:
        return set(get_args(section.model_fields[name].annotation))

    assert offered(WireSettings, "weights") == {*CODECS, "int8"}
    assert offered(WireSettings, "latents") == set(FLOAT_CODECS)
    assert offered(TopKSettings, "values") == offered(MaskingSettings, "values")
    assert offered(TopKSettings, "values") == set(FLOAT_CODECS)
