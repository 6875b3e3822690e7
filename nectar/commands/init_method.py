"""`nectar init-method`: the files of a method that runs, to be changed into another one."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

from common.errors import ConfigError
from common.methods import METHODS
from common.settings.sections import SECTIONS
from nectar.arguments import argument

HELP = """\
Writes a folder NAME with the files of a method: FedAvg whose sites send a share of their update. It runs as it is.
docs/add-a-method.md has the hooks.

\b
nectar init-method mine
nectar run method=mine:METHOD
"""

_SETTINGS = '''"""Settings of NAME."""

from common.settings.base import setting
from common.settings.base import Disclosure
from common.settings.fedavg import FedAvgSettings


class Settings(FedAvgSettings):
    """Sites train as FedAvg's do and send a share of their update."""

    share: float = setting(0.5, "share of the update that is sent", gt=0, le=1)

    def disclosure(self) -> Disclosure:
        """Return what leaves a site."""
        return Disclosure("part of an update", update=True)
'''

_CLIENT = '''"""What a site does under NAME."""

from client_app.device import DeviceClient, phase
from client_app.local_training import train_locally
from common.wire.weights import Weights
from NAME.settings import Settings


class Client(DeviceClient):
    """Trains, and goes a share of the way."""

    @phase("train")
    def train(self, w: Weights) -> Weights:
        """Return w + share (w_k - w)."""
        share = self.settings(Settings).share
        model, _ = train_locally(self, w)
        ended = Weights.of(model).tensors
        moved = {n: t + (share * (ended[n] - t)).to(t.dtype) for n, t in w.tensors.items()}
        return Weights(moved, w.codec)
'''

_STRATEGY = '''"""What the server does under NAME."""

from strategies.fedavg import FedAvg


class Server(FedAvg):
    """FedAvg's: all sites get the weights, what comes back is averaged. Override ``update`` to combine otherwise."""
'''

_INIT = '''"""NAME: say here what it is."""

from common.methods import Method

METHOD = Method(
    "NAME",
    strategy="NAME.strategy:Server",
    client="NAME.client:Client",
    settings="NAME.settings:Settings",
)
'''

FILES = {
    "__init__.py": _INIT,
    "settings.py": _SETTINGS,
    "client.py": _CLIENT,
    "strategy.py": _STRATEGY,
}


def main(name: Annotated[str, argument("NAME", "of the folder, and of the settings")]) -> int:
    """Write the files and say how they are run."""
    folder = Path(_checked(name))
    made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir="."))
    try:
        made.chmod(0o755)
        for file, text in FILES.items():
            (made / file).write_text(text.replace("NAME", name), encoding="utf-8")
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"{folder}/ has {', '.join(FILES)}. `nectar run method={name}:METHOD rounds=3` runs it.")
    return 0


def _checked(name: str) -> str:
    """Return a name that can be a package's and a section's, of nothing that is there."""
    taken = {*METHODS, *SECTIONS, "run", "base", "strategy"}
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        why = "cannot be the name of a package"
    elif name in taken:
        why = "is a name of Nectar's own"
    elif _there(name):
        why = "is there already, in this folder or among what Python imports"
    else:
        return name
    raise ConfigError(
        f"{name!r:.60} {why}: choose another one, of small letters, digits and underscores."
    )


def _there(name: str) -> bool:
    from importlib.util import find_spec

    return Path(name).exists() or Path(f"{name}.py").exists() or find_spec(name) is not None
