"""The cryptography of a secret sum: a pair's keys, masks, shares of a secret, and how a share is sealed for its holder.

All primitives are `cryptography`'s but the sharing, which is arithmetic modulo a prime. Of Flower's utilities for
SecAgg+ none is used: its masks come from a seed that is folded to 32 bits, so that four billion tries unmask a vector.

**Keys.** X25519 agrees on a secret of two sites. HKDF-SHA256 makes a key of it for one purpose, in one round of one
attempt at one run, between these two: all of that is in its info. So no key serves twice, and AES-256 in counter mode
and AES-GCM can begin at 0 with each.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[Any]
"""Numbers of a vector, uint32 or uint64: all arithmetic is modulo 2^32 or 2^64."""

KEY_BYTES = 32
"""Bytes of a private key, a public key, a seed, a commitment."""

PRIME = 2**257 - 93
"""Shares are numbers modulo this prime, which is above every secret."""

SHARE_BYTES, SEALED_BYTES = 33, 2 * 33 + 16
"""Bytes of one share, and of the two that a site seals for another."""

#: words that are masked at a time, so that they stay in the cache
_BLOCK = 1 << 16

_ZERO = bytes(16)


@dataclass(frozen=True)
class KeyContext:
    """The context of a key: the run's record, a round of it, and the server's attempt at that round."""

    record: str
    round: int
    attempt: str

    def info(self, purpose: str, *about: str) -> bytes:
        """Return the unique bytes that bind a key to ``purpose`` and to ``about``, sites or their keys."""
        parts = ["nectar secret sum", self.record, self.round, self.attempt, purpose, *about]
        return json.dumps(parts).encode()


# ---- keys ----------------------------------------------------------------------------------------


def new_secret() -> bytes:
    """Return a private key or a seed, of the operating system's entropy."""
    return os.urandom(KEY_BYTES)


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed_key(private: bytes, public: bytes, info: bytes) -> bytes:
    """Return the key of this private and another's public key for what ``info`` says, or raise ValueError."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    return _derived(shared, info)


def _derived(secret: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def is_public_key(public: bytes) -> bool:
    """Return whether a key can be agreed on with it."""
    try:
        agreed_key(bytes([1]) * KEY_BYTES, public, b"")
    except ValueError:
        return False
    return True


def point_of(public: bytes) -> int:
    """Return the point of a public key: several texts encode the same one (RFC 7748, section 5)."""
    return (int.from_bytes(public, "little") & ((1 << 255) - 1)) % (2**255 - 19)


def own_key(seed: bytes, place: KeyContext, site: str) -> bytes:
    """Return the key of a site's own mask."""
    return _derived(seed, place.info("own mask", site))


def pair_key(private: bytes, public: bytes, place: KeyContext, one: str, other: str) -> bytes:
    """Return the key of the mask of two sites, the same for both; ValueError as `agreed_key` raises it."""
    return agreed_key(private, public, place.info("pair mask", *sorted((one, other))))


def commitment(seed: bytes, place: KeyContext, site: str) -> bytes:
    """Return the commitment to the seed of a site's own mask, which reveals nothing before it is opened."""
    return hashlib.sha256(place.info("commitment", site) + seed).digest()


# ---- masks ---------------------------------------------------------------------------------------


def add_mask(words: Words, key: bytes, *, minus: bool = False) -> None:
    """Add the mask of a key to words in place, or take it away."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(_ZERO)).encryptor()
    size = words.itemsize
    zeros = bytes(_BLOCK * size)
    out = np.empty(_BLOCK + 16 // size, words.dtype)  # the cipher asks for room for a block more
    for start in range(0, len(words), _BLOCK):
        part = words[start : start + _BLOCK]
        cipher.update_into(zeros[: len(part) * size], out.data.cast("B"))
        (np.subtract if minus else np.add)(part, out[: len(part)], out=part)


def pair_is_minus(site: str, other: str) -> bool:
    """Return whether ``site`` takes the mask of the two away, which the other adds."""
    return site > other


# ---- shares (Shamir, 1979) -----------------------------------------------------------------------


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Return a share for each of 1 to ``holders``, of which ``threshold`` give the secret back and fewer nothing."""
    terms = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    found = []
    for at in range(1, holders + 1):
        value = 0
        for term in reversed(terms):
            value = (value * at + term) % PRIME
        found.append(value.to_bytes(SHARE_BYTES))
    return found


@lru_cache(maxsize=64)
def weights_of(places: tuple[int, ...]) -> list[int]:
    """Return the weights with which the shares at distinct ``places`` add up to the secret."""
    weights = []
    for at in places:
        over, under = 1, 1
        for other in places:
            if other != at:
                over, under = over * other % PRIME, under * (other - at) % PRIME
        weights.append(over * pow(under, -1, PRIME) % PRIME)
    return weights


def joined(shares: Sequence[bytes], weights: Sequence[int]) -> bytes:
    """Return the secret of shares at the places that `weights_of` was given; ValueError if they are of none."""
    each = zip(shares, weights, strict=True)
    value = sum(int.from_bytes(share) * weight for share, weight in each) % PRIME
    if value >> (8 * KEY_BYTES):
        raise ValueError("these are not shares of one secret")
    return value.to_bytes(KEY_BYTES)


# ---- sealed shares -------------------------------------------------------------------------------


def seal(
    private: bytes, public: bytes, place: KeyContext, sender: str, holder: str, data: bytes
) -> bytes:
    """Return ``data`` as only its holder can read it; ValueError as `agreed_key` raises it."""
    info = place.info("seal", sender, holder)
    return AESGCM(agreed_key(private, public, info)).encrypt(_ZERO[:12], data, info)


def unseal(
    private: bytes, public: bytes, place: KeyContext, sender: str, holder: str, sealed: bytes
) -> bytes:
    """Open what the sender sealed for this holder in this round; ValueError if it was sealed for anything else."""
    info = place.info("seal", sender, holder)
    try:
        return AESGCM(agreed_key(private, public, info)).decrypt(_ZERO[:12], sealed, info)
    except InvalidTag:
        raise ValueError("it was not sealed for this site, in this round, by that one") from None
