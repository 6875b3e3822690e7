"""What a report says of the labels that come with images, whatever the method."""

from __future__ import annotations

from common.settings.disclosure import Disclosure


def labels_sent(disclosed: Disclosure) -> tuple[str, ...]:
    """Return what the labels of the sets that were sent give away."""
    said = ("Which classes a device held is visible from the labels it sent.",)
    if not disclosed.class_counts:
        return said
    return (
        *said,
        "With weighting=counts each device also told its number of images of every class.",
    )
