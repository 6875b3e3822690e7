"""The name of the codec by which images travel as a JPEG picture."""

from __future__ import annotations

import re

PICTURE = r"jpeg:([1-9]|[1-8][0-9]|9[0-5])"
"""``jpeg:QUALITY``, with Pillow's quality from 1 to 95."""


def quality_of(codec: str) -> int:
    """Return the quality that a codec such as ``jpeg:60`` names; 0 of one that is another."""
    found = re.fullmatch(PICTURE, codec)
    return int(found[1]) if found else 0
