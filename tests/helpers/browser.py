"""Drive a headless chromium over its DevTools pipe: what a page does, shows and asks for."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-quic",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_PATIENCE = 120.0


def find_chromium() -> str | None:
    """Return the chromium to test with: what NECTAR_CHROMIUM names, else the one on PATH."""
    return os.environ.get("NECTAR_CHROMIUM") or shutil.which("chromium")


class Browser:
    """A chromium of its own, with a profile below ``directory``; it ends with the context."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._command = [binary, *_FLAGS, f"--user-data-dir={directory / 'profile'}", "about:blank"]
        self._number = 0
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def place() -> None:  # chromium reads commands on 3 and answers on 4
            commands, answers = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, to_write))
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        self._process = subprocess.Popen(
            self._command,
            preexec_fn=place,
            pass_fds=(3, 4),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._write)
        os.close(self._read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come in between are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        """Wait until the event has come."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("chromium does not answer")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


class Page:
    """A page as a person would have it, a file or at an address: screen size, light or dark; loaded when made."""

    def __init__(
        self,
        browser: Browser,
        place: Path | str,
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        grey: bool = False,
    ) -> None:
        self.browser = browser
        self.url = place if isinstance(place, str) else place.absolute().as_uri()
        browser.events.clear()
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        if grey:
            self.call("Emulation.setEmulatedVisionDeficiency", type="achromatopsia")
        self.call("Page.navigate", url=self.url)
        browser.wait_for("Page.loadEventFired")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to this page."""
        return self.browser.call(method, self._session, **params)

    def evaluate(self, expression: str) -> Any:
        """Return a JavaScript expression's value; raise for an exception."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and every request but the page's own and its data."""
        self.evaluate("1")  # whatever came before this answer has come
        found = []
        for event in self.browser.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails']['text']}")
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {params['entry']['text']}")
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(f"console: {params['args']}")
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith("data:") and url.partition("#")[0] != self.url:
                    found.append(f"request: {url}")
        return found

    def press_tab(self) -> None:
        """Press the Tab key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
            )

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write what the page shows, whole or the screen, as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """Return the page as printed."""
        answer = self.call("Page.printToPDF", printBackground=False)
        return base64.b64decode(answer["data"])
