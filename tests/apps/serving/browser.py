"""A real Chromium without a screen, by the WebDriver protocol that chromedriver speaks: JSON over HTTP, no
package is needed.

with Browser(tmp_path) as browser: browser.open("http://127.0.0.1:8000/")
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "no Chromium with chromedriver is installed"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # how WebDriver names an element in JSON
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """One browser with an empty profile in `folder`; `flags` are Chromium's, besides those that a test always
    wants."""

    def __init__(self, folder: Path, *flags: str):
        self._driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
        line = next(line for line in self._driver.stdout if "started successfully" in line)
        port = re.search(r"port (\d+)", line).group(1)
        self._url = f"http://127.0.0.1:{port}"
        arguments = [*_FLAGS, f"--user-data-dir={folder / 'profile'}", *flags]
        options = {
            "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._url += f"/session/{session['sessionId']}"

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._driver.stdout.close()

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def text(self, selector: str) -> str:
        """The visible text of the first element."""
        return self._call("GET", f"/element/{self._find(selector)}/text")

    def texts(self, selector: str) -> list[str]:
        """The visible texts of all elements."""
        found = self._call("POST", "/elements", {"using": "css selector", "value": selector})
        return [self._call("GET", f"/element/{element[_ELEMENT]}/text") for element in found]

    def type(self, selector: str, text: str) -> None:
        """Type into an element; into a file input, the path of a file."""
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def run(self, script: str) -> Any:
        """The value that JavaScript returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def until(self, selector: str, words: str, seconds: float = 60) -> str:
        """Wait until the text of an element has these words, and return it."""
        end = time.monotonic() + seconds
        while True:
            text = " ".join(self.texts(selector))
            if words in text:
                return text
            assert time.monotonic() < end, f"{selector} still says {text!r}, not {words!r}"
            time.sleep(0.05)

    def log(self) -> list[str]:
        """What the browser complained of since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def resize(self, width: int, height: int) -> None:
        self._call("POST", "/window/rect", {"width": width, "height": height})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Call a command of Chromium's DevTools."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _find(self, selector: str) -> str:
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT]

    def _call(self, method: str, path: str, body: dict | None = None) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(f"{self._url}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()[:500]}") from None
