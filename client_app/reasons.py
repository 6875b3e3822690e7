"""What a server is told when a site refuses or fails: a sentence that names no place on the site's machine."""

from __future__ import annotations

import re
import uuid
from logging import getLogger

from common.errors import NectarError, reason

logger = getLogger("flwr")

#: an absolute path, also behind a quote, a bracket or an equals sign; none is the /abs/folder of our own hints
_PLACE = re.compile(r"(?<![\w/.<>])(?:~|\.{1,2})?/(?!abs/)[^\s/]")


def reason_of(error: Exception, *, owner: bool) -> str:
    """Return what the server is told of ``error``, and note in this process's log what it is not told.

    An error of Nectar's own says so itself, unless its sentence names a place of the site's. Of any other, the
    traceback stays in the log under an incident number, and the server gets the number: an exception's text may quote
    private data.

    Parameters
    ----------
    owner : bool
        Whether the machine is another one's than the server's user's; in a simulation nothing is withheld.
    """
    if isinstance(error, NectarError):
        logger.error("%s", error)
        told = error.told if owner and error.told else str(error)
        if not owner or not _PLACE.search(told):
            return reason(told)
    incident = uuid.uuid4().hex[:8]
    if isinstance(error, NectarError):
        logger.error("the server is told incident %s of this", incident)
        return (
            f"this site cannot do what the run asks, and its log says why ({type(error).__name__}, incident "
            f"{incident})"
        )
    logger.error("incident %s", incident, exc_info=error)
    return f"the device raised {type(error).__name__} (incident {incident} in its log)"
