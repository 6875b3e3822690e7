"""What makes two runs the same run: configuration, source, data, and a stranger's strategy."""

from __future__ import annotations

import hashlib
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config import Config
from common.fingerprint import code_fingerprint
from common.methods import is_import_path
from common.run import Run

#: in a record's provenance: the hash of the file that a strategy named by its import path comes from
STRATEGY_SOURCE = "strategy-source"


@dataclass(frozen=True)
class Identity:
    """A run's identity.

    Parameters
    ----------
    configuration : str
        The resolved configuration's digest.
    code : str
        The fingerprint of the source that decides numbers.
    strategy : str
        The hash of the source file of a strategy that belongs neither to Nectar nor to an installed package; empty
        for all others. Modules that this file imports are not covered.
    data : str
        The data set's checksum; empty where the server does not read the data.
    """

    configuration: str
    code: str
    strategy: str = ""
    data: str = ""

    @classmethod
    def of(cls, config: Config) -> Identity:
        """Return the identity of the run that ``config`` asks for from the source of this process."""
        on_server = config.evaluation.on in ("server", "both")
        data = Run(config).dataset.checksum if on_server else ""
        return cls(config.digest(), code_fingerprint(), strategy_source(config.method), data)

    @property
    def key(self) -> str:
        """16 hex digits that name the run."""
        text = " ".join((self.configuration, self.code, self.strategy, self.data))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def is_of(self, provenance: dict[str, Any]) -> bool:
        """Tell whether a record's provenance is that of this run; a checksum it does not state is not compared."""
        recorded = provenance.get("data")
        checksum = recorded.get("sha256", "") if isinstance(recorded, dict) else ""
        return (
            provenance.get("configuration") == self.configuration
            and provenance.get("code") == self.code
            and provenance.get(STRATEGY_SOURCE, "") == self.strategy
            and (not checksum or not self.data or checksum == self.data)
        )


def strategy_source(method: str) -> str:
    """Return 16 hex digits over the source file of a stranger's strategy; empty for all that is installed."""
    if not is_import_path(method):
        return ""
    module = sys.modules[method.partition(":")[0]]  # imported when the configuration was resolved
    path = Path(module.__file__ or "").resolve()
    if not path.is_file() or any(path.is_relative_to(place) for place in _installed()):
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _installed() -> list[Path]:
    names = ("purelib", "platlib", "stdlib")
    places = [sysconfig.get_path(name) for name in names]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    return [Path(place).resolve() for place in places]
