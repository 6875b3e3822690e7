"""What each message of a secret sum carries, and the one reader of it for server and sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from common.errors import PayloadError
from common.secret.cohort import (
    ASKED,
    COMMITMENT,
    KEYS,
    MASK_KEY,
    MASK_KEYS,
    MOST,
    NAMES,
    OPENED,
    OPENING,
    SEAL_KEY,
    SEAL_KEYS,
    SEALED,
    SHARES,
    THRESHOLD,
)
from common.secret.crypto import KEY_BYTES, SEALED_BYTES, SHARE_BYTES, is_public_key
from common.sites import is_site_name

# A field's kind takes a value of any type, and returns the meant value or raises ValueError with what it must be.

Kind = Callable[[Any], Any]


def _texts(*sizes: int) -> Kind:
    """Return the kind of a list of bytes, each of one of ``sizes``."""

    def read(value: Any) -> list[bytes]:
        if not isinstance(value, list):
            raise ValueError("a list")
        if not all(isinstance(each, bytes) and len(each) in sizes for each in value):
            raise ValueError(f"of {sizes[0]} bytes each")
        return [*value]

    return read


def _text(value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise ValueError(f"of {KEY_BYTES} bytes")
    return value


def _public_key(value: Any) -> bytes:
    if not is_public_key(_text(value)):
        raise ValueError("an X25519 public key")
    return bytes(value)


def _public_keys(value: Any) -> list[bytes]:
    keys: list[bytes] = _texts(KEY_BYTES)(value)
    if not all(map(is_public_key, keys)):
        raise ValueError("X25519 public keys")
    return keys


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > MOST:
        raise ValueError(f"a list of up to {MOST} sites")
    if not all(isinstance(name, str) and is_site_name(name) for name in value):
        raise ValueError("names of sites")
    if len({*value}) < len(value):
        raise ValueError("different sites")
    return [*value]


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MOST:
        raise ValueError(f"a number from 1 to {MOST}")
    return value


Fields = Mapping[str, Kind]

ROLL: Fields = {
    NAMES: _names,
    SEAL_KEYS: _public_keys,
    MASK_KEYS: _public_keys,
    ASKED: _count,
    THRESHOLD: _count,
}
"""What asks for shares: the sites that gave keys, in the order of their shares."""

SHARES_FOR_SITE: Fields = {NAMES: _names, SEALED: _texts(SEALED_BYTES), ASKED: _count}
"""What asks for a masked vector: who has shared, and what each sealed for this site."""

SURVIVORS: Fields = {NAMES: _names}
"""What asks to open a total: whose vectors are in it."""

ANSWERS: Mapping[str, Fields] = {
    KEYS: {SEAL_KEY: _public_key, MASK_KEY: _public_key},
    SHARES: {COMMITMENT: _text, SEALED: _texts(SEALED_BYTES)},
    OPENING: {OPENED: _texts(SHARE_BYTES, 0)},  # nothing of a sender whose share could not be read
}
"""What a site answers to each question; its lists have an entry for each of the other sites, or of the senders."""


def read(record: Mapping[str, Any], fields: Fields, count: int | None = None) -> dict[str, Any]:
    """Return the ``fields`` of a message that came, each of its kind; PayloadError for anything else.

    Its lists have as many entries as it has names; where it has none, ``count``.
    """
    found: dict[str, Any] = {}
    for key, kind in fields.items():
        value, wanted = record.get(key), len(found[NAMES]) if NAMES in found else count
        if isinstance(value, list) and wanted is not None and len(value) != wanted:
            raise PayloadError(f"its {key} must be {wanted}, not {len(value)}")
        try:
            found[key] = kind(value)
        except ValueError as error:
            raise PayloadError(f"its {key} must be {error}") from None
    return found
