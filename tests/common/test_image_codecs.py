"""What images travel in, and what the settings offer of it."""

from __future__ import annotations

from typing import get_args

import pytest

from common.errors import PayloadError
from common.settings.fedavg import MaskingSettings, TopKSettings
from common.settings.section import Section
from common.settings.sections import WireSettings
from common.wire.codec import FLOAT_CODECS
from common.wire.image_codecs import most_bytes
from common.wire.weights import CODECS


def test_the_most_bytes_are_of_those_codecs_that_can_hold_the_images() -> None:
    """By hand: 4 bytes a value; a picture of two channels there is not."""
    assert most_bytes((5, 2, 8, 8), pictures=True) == 4 * 5 * 2 * 64
    assert most_bytes((5, 2, 8, 8), numbers=False) == 0
    with pytest.raises(PayloadError, match="one or three channels"):
        most_bytes((5, 2, 8, 8), numbers=False, pictures=True)


def test_settings_offer_what_the_other_tables_have() -> None:
    def offered(section: type[Section], name: str) -> set[str]:
        return set(get_args(section.model_fields[name].annotation))

    assert offered(WireSettings, "weights") == {*CODECS, "int8"}
    assert offered(WireSettings, "latents") == set(FLOAT_CODECS)
    assert offered(TopKSettings, "values") == offered(MaskingSettings, "values")
    assert offered(TopKSettings, "values") == set(FLOAT_CODECS)
