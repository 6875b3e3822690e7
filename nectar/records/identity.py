"""What makes two runs the same run: configuration, code and data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from common.code.import_closure import Sources
from common.config.code_fingerprint import code_fingerprint
from common.config.resolved import Config
from common.division import Division
from common.learning.start import start_checksum

#: the source as it lies on the disk now; a file that is saved again is read again
_ON_DISK = Sources(again=True)


@dataclass(frozen=True)
class Identity:
    """A run's identity.

    Parameters
    ----------
    configuration : str
        The resolved configuration's digest.
    code : str
        The fingerprint of the code that can decide the run's numbers, a user's own modules included.
    data : str
        The data set's checksum; empty where the server does not read the data.
    start : str
        That of the file that the first round's weights come from; empty where there is none.
    """

    configuration: str
    code: str
    data: str = ""
    start: str = ""

    @classmethod
    def of(cls, config: Config) -> Identity:
        """Return the identity of the run that ``config`` asks for from the source of this process."""
        on_server = config.evaluation.on in ("server", "both")
        data = Division(config).dataset.checksum if on_server else ""
        return cls(config.digest(), code_fingerprint(config), data, start_checksum(config))

    @property
    def key(self) -> str:
        """16 hex digits that name the run."""
        text = " ".join((self.configuration, self.code, self.data, self.start)).rstrip()
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def is_of(self, provenance: dict[str, Any]) -> bool:
        """Tell whether a record's provenance is that of this run; a checksum it does not state is not compared."""
        recorded = provenance.get("data")
        checksum = recorded.get("sha256", "") if isinstance(recorded, dict) else ""
        return (
            provenance.get("configuration") == self.configuration
            and provenance.get("code") == self.code
            and (not checksum or not self.data or checksum == self.data)
            and provenance.get("start", "") == self.start
        )

    def has_changed(self, config: Config) -> bool:
        """Tell whether the code of a run of ``config`` is another on the disk by now."""
        return code_fingerprint(config, _ON_DISK) != self.code
