"""What makes two runs the same run: configuration, code and data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from common.config.code_fingerprint import code_fingerprint
from common.config.resolved import Config
from common.division import Division, require_same_data
from common.errors import FederationError
from common.learning.start import start_checksum
from server_app.data_of_run import recorded_data
from server_app.run_directory import codes_of


@dataclass(frozen=True)
class Identity:
    """A run's identity.

    Parameters
    ----------
    configuration : str
        The resolved configuration's digest.
    code : str
        The fingerprint of the code that can decide the run's numbers, a user's own modules included.
    data : tuple of (str, str)
        The checksums of the data: of simulated sites' folders by site, of the data set by "".
    start : str
        That of the file that the first round's weights come from; empty without one.
    dataset : str
        What messages call the data.
    """

    configuration: str
    code: str
    data: tuple[tuple[str, str], ...] = ()
    start: str = ""
    dataset: str = ""

    @classmethod
    def of(cls, config: Config) -> Identity:
        """Return the identity of the run that ``config`` asks for from the source of this process."""
        data = tuple(Division(config).checksums.items())
        start = start_checksum(config)
        return cls(config.digest(), code_fingerprint(config), data, start, config.dataset)

    @property
    def key(self) -> str:
        """16 hex digits that name the run."""
        data = " ".join(checksum for _, checksum in self.data)
        text = " ".join((self.configuration, self.code, data, self.start)).rstrip()
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def why_not(self, provenance: dict[str, Any]) -> str:
        """Return why a record's provenance is not that of this run; nothing if it is.

        A checksum that it does not state is not compared.
        """
        if any(code != self.code for code in codes_of(provenance)[1:]):
            return "it was continued by other code"
        stated = [provenance.get(key, "") for key in ("configuration", "code", "start")]
        if stated != [self.configuration, self.code, self.start]:
            return "its source changed while it ran"
        try:
            require_same_data(self.dataset, dict(self.data), recorded_data(provenance))
        except FederationError as error:
            return str(error)
        return ""

    def has_changed(self, config: Config) -> bool:
        """Return whether the code of a run of ``config`` is another on the disk by now."""
        return code_fingerprint(config, now=True) != self.code
