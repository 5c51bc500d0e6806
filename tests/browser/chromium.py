"""A headless Chromium, driven over its DevTools protocol: enough to open a page, press keys and ask what is there."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import websocket

NAMES = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
_PATIENCE_S = 60.0
_KEYS = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9}
_TROUBLE = ("Runtime.exceptionThrown", "Log.entryAdded")


def find_chromium() -> str | None:
    """Return the command of a Chromium, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """A browser with one page.

    Attributes
    ----------
    trouble
        What the page logged as a warning or an error, and the exceptions that nobody caught.
    requests
        URLs that were asked for.
    """

    def __init__(self, command: str, folder: Path) -> None:
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        port_file = folder / "DevToolsActivePort"
        # Without a sandbox of its own, which root may not have; it opens nothing but our own files.
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        options += ["--disable-dev-shm-usage", "--remote-allow-origins=*", f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            [command, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _until(lambda: (port_file.exists() and port_file.read_text().strip()) or None)
        port = int(port_file.read_text().splitlines()[0])
        self._socket = websocket.create_connection(_until(lambda: _page_of(port)), timeout=_PATIENCE_S)
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method in _TROUBLE or (method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")):
            self.trouble.append(json.dumps(params)[:500])
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, file: Path, *, scheme: str = "light", width: int = 1200) -> None:
        """Open a file as a person with this colour scheme and this width of window sees it."""
        self.trouble.clear()
        self.requests.clear()
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=file.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, (expression, found)
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        _until(lambda: self.ask(expression) or None, what=expression)

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS.get(key, 0)}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def write(self, text: str) -> None:
        """Type text where the focus is."""
        self.call("Input.insertText", text=text)


def _page_of(port: int) -> str | None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
        pages = [each for each in json.load(answer) if each["type"] == "page"]
    return pages[0]["webSocketDebuggerUrl"] if pages else None


def _until(found: Callable[[], Any], *, what: str = "the browser") -> Any:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        if (value := found()) is not None:
            return value
        time.sleep(0.02)
    raise TimeoutError(f"waited {_PATIENCE_S:.0f} s for {what}")
