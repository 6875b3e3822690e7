"""What really travels: what every method's sites send and are sent, each payload with what its receiver expects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from fuzzing_rounds import CASES

from client_app.app import app as client_app
from client_app.decode_cache import DecodeCache
from common.config.loading import load
from common.wire.bundle import Bundle
from common.wire.form import Payload, Spec
from common.wire.int8_update import Int8Update, Int8UpdateSpec
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid
from server_app.app import serve
from strategies.exchange import screening
from tests.contract.cases import config_of

#: enough for what travels in the first rounds alone, and for what does from then on
ROUNDS, SITES = 4, 3


def travelling(cases: Sequence[tuple[str, str]] = CASES) -> Iterator[tuple[str, Payload, Spec]]:
    """Yield (name, payload, what is expected) of all that travels under ``cases``, each form once."""
    seen: set[str] = set()
    for method, words in cases:
        for way, payload, spec in _of_run(method, words):
            name = f"{method} {way} {_outline(payload)} {spec}"
            if name not in seen:
                seen.add(name)
                yield f"{method} {way} {_outline(payload)}", payload, spec


def _of_run(method: str, words: str) -> list[tuple[str, Payload, Spec]]:
    """Return all that travels in a run of honest sites."""
    found: list[tuple[str, Payload, Spec]] = []
    decode, read = DecodeCache.decode, screening.read_upload

    def decoded(self: DecodeCache, arrays: Any, spec: Spec) -> Payload:
        payload = decode(self, arrays, spec)
        found.append(("down", payload, spec))
        return payload

    def read_reply(reply: Any, site: Any, spec: Spec) -> Any:
        upload = read(reply, site, spec)
        found.append(("up", _as_sent(upload.payload, spec), spec))
        return upload

    with ExitStack() as patched, tempfile.TemporaryDirectory() as folder:
        patched.enter_context(patch.object(DecodeCache, "decode", decoded))
        patched.enter_context(patch.object(screening, "read_upload", read_reply))
        # Three sites with a tenth of the images each may lie far apart, and all that travels is wanted.
        words += " federation.max_update=0 federation.robust=none "
        config = config_of(method, words, SITES, ROUNDS, folder)
        serve(LocalGrid(client_app, SITES, config), load(config))
    return found


def _as_sent(payload: Payload, spec: Any) -> Payload:
    """Return what a payload was read from, where that was a model's update."""
    if isinstance(payload, Bundle):
        return Bundle({n: _as_sent(part, spec.parts[n]) for n, part in payload.parts.items()})
    if isinstance(spec, Int8UpdateSpec):
        assert isinstance(payload, Weights)
        return Int8Update.of(payload, spec.base, spec.coded)[0]
    return payload


def _outline(payload: Payload) -> str:
    """Return the kinds of a payload's parts."""
    parts = getattr(payload, "parts", None)
    if parts is None:
        return payload.kind
    return "{" + ", ".join(f"{name}: {_outline(part)}" for name, part in parts.items()) + "}"
