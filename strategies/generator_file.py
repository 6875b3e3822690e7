"""A generator's file at the server, read whole and only if it is the one that the run's checksum names."""

from __future__ import annotations

import hashlib
from pathlib import Path

from common.errors import ConfigError
from synth.generators.style import StyleNetwork
from synth.generators.style_weights import decoded


def checked(key: str, path: str, sha256: str) -> bytes:
    """Return the content of a file.

    What is returned is what was hashed: a file that is changed in between is never taken for the one that was meant.

    Parameters
    ----------
    key : str
        The setting that names the file.
    sha256 : str
        Its SHA-256, in small hexadecimal digits.

    Raises
    ------
    ConfigError
        If there is no such file, or it is another one.
    """
    try:
        if not Path(path).is_file():
            raise ConfigError(f"{key}={path} is not there: the server needs that file")
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{key}={path} cannot be read ({error.strerror}): the server needs that file"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ConfigError(
            f"{key}={path} was not opened: its SHA-256 begins with {found[:16]} and feddgm.generator_sha256 with "
            f"{sha256[:16]}, so it is damaged or another file"
        )
    return content


def own_prior(path: str, sha256: str) -> StyleNetwork:
    """Return the generator of ``examples/train_prior.py``; ConfigError without its checksum, or of another file."""
    if not sha256:
        raise ConfigError(
            f"feddgm.generator={path} needs feddgm.generator_sha256: the SHA-256 that examples/train_prior.py printed"
        )
    content = checked("feddgm.generator", path, sha256)
    try:
        return decoded(content, sha256)
    except ValueError as error:
        raise ConfigError(
            f"feddgm.generator={path} holds no generator: {error}; examples/train_prior.py writes such files"
        ) from None
