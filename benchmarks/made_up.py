"""Sites with synthetic data, so that rounds can be measured on a machine without any data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import client_app.app
import client_app.site
from common.learning.run import Run
from common.samples.inputs import Samples


@contextmanager
def sites_with(data: Sequence[Samples]) -> Iterator[None]:
    """Let site k learn from ``data[k]``, round and round again, and hold nothing out."""

    nothing = [Samples.of(each.raw[:0].float(), each.labels[:0]) for each in data]

    def site_samples(run: Run, site: str, context: object) -> tuple[Samples, Samples]:
        at = int(site.rpartition("-")[2]) % len(data)
        return data[at], nothing[at]

    def data_here(*_: object) -> SimpleNamespace:
        return SimpleNamespace(checksum="0" * 64)

    with (
        patch.object(client_app.app, "site_samples", site_samples),
        patch.object(client_app.app, "data_here", data_here),
        patch.object(client_app.site, "data_here", data_here),
    ):
        yield
