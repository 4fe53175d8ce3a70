"""A headless Chromium, driven over the WebDriver protocol with the standard library alone."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from rhizome.testing.free_ports import free_port

T = TypeVar("T")

WAIT_SECONDS_MAX: Final = 20.0
START_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.05
ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
ENTER: Final = "\ue007"
ESCAPE: Final = "\ue00c"
TAB: Final = "\ue004"
DOWN: Final = "\ue015"
CONTROL: Final = "\ue009"


def missing() -> str:
    """What is not installed; empty if a browser can be driven."""
    wanted = {"chromium": "chromium", "chromedriver": "chromium-driver"}
    packages = [package for program, package in wanted.items() if not shutil.which(program)]
    return f"not installed: {' '.join(packages)} (tools/system_packages.sh)" if packages else ""


class BrowserError(Exception):
    """The driver refused something; ``kind`` is the protocol's word for it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message.splitlines()[0] if message else ''}")
        self.kind = kind


class Driver:
    """A chromedriver process. ``browsers``: those that it has started; they would outlive it."""

    def __init__(self, directory: Path) -> None:
        self.browsers: list[Browser] = []
        self.port = free_port()
        self.log = directory / "chromedriver.log"
        self.process = subprocess.Popen(
            [shutil.which("chromedriver") or "", f"--port={self.port}", f"--log-path={self.log}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._is_up, "chromedriver to listen", START_SECONDS_MAX)

    def _is_up(self) -> bool:
        try:
            return bool(self.call("GET", "/status")["ready"])
        except OSError:
            return False

    def call(self, method: str, path: str, document: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, {"content-type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise BrowserError(value["error"], value.get("message", ""))
        return value

    def stop(self) -> None:
        for browser in list(self.browsers):
            browser.quit()
        self.process.terminate()
        self.process.wait(10)


class Browser:
    """One session: a window of its own, without cookies of others."""

    def __init__(
        self, driver: Driver, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        self._driver = driver
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-extensions",
            "--hide-scrollbars",
            "--no-first-run",
            "--no-proxy-server",
            f"--window-size={width},{height}",
            f"--force-device-scale-factor={1}",
        ]
        if dark:
            arguments.append("--force-dark-mode")
        options = {"args": arguments, "binary": shutil.which("chromium")}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = driver.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._path = f"/session/{made['sessionId']}"
        driver.browsers.append(self)

    def call(self, method: str, path: str, document: Any = None) -> Any:
        return self._driver.call(method, self._path + path, document)

    def quit(self) -> None:
        self._driver.browsers.remove(self)
        self.call("DELETE", "")

    # ---- pages ----------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def url(self) -> str:
        return str(self.call("GET", "/url"))

    def title(self) -> str:
        return str(self.call("GET", "/title"))

    def reload(self) -> None:
        self.call("POST", "/refresh", {})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script; what it returns."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str, *arguments: Any) -> Any:
        """Run a script that calls its last argument with what it returns."""
        return self.call("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def resize(self, width: int, height: int) -> None:
        """The size of what is shown; a window is never narrower than some 500 pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        document = {"cmd": "Emulation.setDeviceMetricsOverride", "params": size}
        self.call("POST", "/goog/cdp/execute", document)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def cookies(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", "/cookie")
        return found

    def complaints(self) -> list[str]:
        """What the browser has complained about since the last call: errors, refused scripts."""
        entries = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    # ---- elements -------------------------------------------------------------------------------

    def find(self, css: str, text: str = "") -> str:
        """The first shown element with ``text`` in it; waits until there is one."""

        def look() -> str:
            try:
                for element in self._all(css):
                    if (not text or text in self.text(element)) and self.is_shown(element):
                        return element
            except BrowserError as error:
                if error.kind != "stale element reference":
                    raise
            return ""

        what = f"{css!r}" + (f" with {text!r}" if text else "")
        try:
            return wait_until(look, f"{what} to be shown")
        except AssertionError as error:
            raise AssertionError(f"{error}; the page has: {self.page_text()[:2000]}") from None

    def _all(self, css: str) -> list[str]:
        found = self.call("POST", "/elements", {"using": "css selector", "value": css})
        return [each[ELEMENT] for each in found]

    def count(self, css: str) -> int:
        return len(self._all(css))

    def is_shown(self, element: str) -> bool:
        return bool(self.call("GET", f"/element/{element}/displayed"))

    def text(self, element: str) -> str:
        return str(self.call("GET", f"/element/{element}/text"))

    def texts(self, css: str) -> list[str]:
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".map((each) => (each.innerText ?? each.textContent).trim())"
        )
        found: list[str] = self.run(script, css)
        return found

    def page_text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def click(self, css: str, text: str = "") -> None:
        """Click an element; again if the page has redrawn it at that very moment."""

        def try_it() -> bool:
            try:
                self.call("POST", f"/element/{self.find(css, text)}/click", {})
            except BrowserError as error:
                if error.kind in ("stale element reference", "element click intercepted"):
                    return False
                raise
            return True

        wait_until(try_it, f"{css!r} {text!r} to take a click")

    def type(self, css: str, text: str) -> None:
        self.call("POST", f"/element/{self.find(css)}/value", {"text": text})

    def fill(self, css: str, text: str) -> None:
        """Replace what is in a field."""
        element = self.find(css)
        self.call("POST", f"/element/{element}/clear", {})
        self.call("POST", f"/element/{element}/value", {"text": text})

    def press(self, keys: str) -> None:
        """Press keys, whatever has the focus."""
        actions = []
        for key in keys:
            actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        source = {"type": "key", "id": "keys", "actions": actions}
        self.call("POST", "/actions", {"actions": [source]})

    def wait_for_text(self, text: str, css: str = "body") -> None:
        try:
            wait_until(lambda: any(text in each for each in self.texts(css)), f"{text!r} in {css}")
        except AssertionError as error:
            raise AssertionError(f"{error}; the page has: {self.page_text()[:2000]}") from None

    def wait_for_no_text(self, text: str, css: str = "body") -> None:
        wait_until(
            lambda: not any(text in each for each in self.texts(css)), f"no {text!r} in {css}"
        )


def wait_until(condition: Callable[[], T], what: str, seconds: float = WAIT_SECONDS_MAX) -> T:
    """Wait for a condition to hold; what it answered."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what}"
        time.sleep(POLL_SECONDS)
