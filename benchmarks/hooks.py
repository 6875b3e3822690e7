"""What a method's author overrides and calls, as the code says: the page ``docs/reference/hooks.md``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from client_app.device import DeviceClient, refuse_small_classes
from client_app.draws import Draws
from client_app.feddm import FedDMClient
from client_app.local_training import train_locally
from common.settings.base import Settings
from strategies.averaging import share_of
from strategies.base import Strategy
from strategies.surrogate import SurrogateServer

#: by heading: a class and which of its members, or functions
PARTS: dict[str, tuple[type, str] | tuple[Callable[..., Any], ...]] = {
    "Settings": (
        Settings,
        "disclosure uses needs models unprotected noises trains_on_images",
    ),
    "A site's client": (
        DeviceClient,
        "settings model generator report tell recall remember deadline draws server_round "
        "keep_own_part judged local client_of phase_named",
    ),
    "Functions of the site": (train_locally, refuse_small_classes),
    "FedDM's client, in addition": (FedDMClient, "extra matching"),
    "Draws that privacy rests on (`self.draws`)": (
        Draws,
        "charge gaussian sample rows chosen",
    ),
    "The server: to be written": (Strategy, "validation_rules update"),
    "The server: where the default is not enough": (
        Strategy,
        "phase sends expects instructions prepare resulting_model clipped initial_model judged_from_memory state_dict "
        "load_state_dict choose quorum global_models extra_models pictures notes",
    ),
    "The server: to be called": (Strategy, "average strategy_of round"),
    "Functions of the server": (share_of,),
    "A server that learns from images (`SurrogateServer`)": (
        SurrogateServer,
        "soft fewest images_of objective",
    ),
}


def parts() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each heading with its rows: how a part is written, and the first sentence of what is said of it."""
    for heading, (first, *others) in PARTS.items():
        if inspect.isclass(first):
            names = str(others[0]).split()
            yield heading, [_row(name, inspect.getattr_static(first, name)) for name in names]
        else:
            yield heading, [_row(f.__name__, f) for f in (first, *others) if callable(f)]


def _row(name: str, member: Any) -> tuple[str, str]:
    member = inspect.unwrap(getattr(member, "func", member))
    if isinstance(member, property):
        return f"`{name}`", _said(member)
    if not callable(member):
        return f"`{name} = {member!r}`", "what a subclass sets"
    signature = inspect.signature(getattr(member, "__func__", member))
    plain = [p.replace(default=_default(p.default)) for p in signature.parameters.values()]
    written = str(signature.replace(parameters=plain)).replace("= ''", '= ""')
    return f"`{name}{written}`".replace("'", "").replace("Ellipsis", "..."), _said(member)


def _default(value: Any) -> Any:
    """Return a default as it would be typed; three dots for an object."""
    return (
        value
        if isinstance(value, (str, int, float, type(None))) or value is inspect.Parameter.empty
        else ...
    )


def _said(member: Any) -> str:
    return (inspect.getdoc(member) or "").partition("\n\n")[0].replace("\n", " ")
