"""The process that ClientApps are forks of: it has imported what they need, and forks for each line that it reads.

``python -m nectar.engines.site.zygote PARENT``, with `SITE` among its variables. A line is the JSON of a ClientApp's
words. It ends with its input, once its forks have ended; when its parent dies, at once, and its forks with it. It has
one thread, so that a fork has all of it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from nectar.engines import processes

SITE = "NECTAR_SITE"
"""The variable with what `nectar site` was started with, JSON: folder, pin, only, options."""

BUNDLE = "app.fab"
"""In the program's folder, the bundle that is pinned."""

ClientApp = Callable[[], object]


def command() -> list[str]:
    """Return the command of such a process, of this process's Python."""
    module = processes.module_command("nectar.engines.site.zygote")
    return [module[0], isolation(), *module[2:]]


def isolation() -> str:
    """Return Python's option: with a pinned app the one that ignores PYTHONPATH."""
    return "-I" if sys.flags.isolated else "-P"


def main() -> None:
    """Run the zygote."""
    processes.end_with(int(sys.argv[1]), signal.SIGTERM)
    site = json.loads(os.environ.pop(SITE))
    folder = Path(tempfile.mkdtemp(dir=site["folder"]))
    bundle = Path(site["folder"], BUNDLE).read_bytes() if site["pin"] else None

    def prepare() -> ClientApp:
        from nectar.engines.site import clientapp

        pin = None if bundle is None else clientapp.pinned(bundle, folder)
        clientapp.preload(pin)
        return partial(clientapp.run, pin, clientapp.fleet_of(site["options"]))

    serve(prepare)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # it has nothing to put in order, which would take a second


def serve(prepare: Callable[[], ClientApp]) -> None:
    """Fork for each line of the standard input, until it ends and all forks have.

    Parameters
    ----------
    prepare : callable
        Imports what a ClientApp needs, and returns what it does.
    """
    started, own = time.monotonic(), os.getpid()
    client_app = prepare()
    # the forks' collectors leave alone what was imported until now, so that its pages stay shared
    gc.collect()
    gc.freeze()
    say(f"ready after {time.monotonic() - started:.1f} s; ClientApps are forks of process {own}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # how a fork ended is not read
    with open(0, "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            if os.fork() == 0:
                _be_client_app(client_app, own, json.loads(line))
    say(f"process {own} exits, as no message waits; the next message starts another")
    with suppress(ChildProcessError):
        os.wait()  # for all of them, as they are ignored


def _be_client_app(client_app: ClientApp, parent: int, words: list[str]) -> NoReturn:
    """Run a ClientApp, and exit without the interpreter's clean-up."""
    try:
        processes.end_with(parent, signal.SIGTERM)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["flwr-clientapp", *words]
        client_app()
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def say(sentence: str) -> None:
    """Print a sentence of the site's program."""
    print(f"nectar site: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
