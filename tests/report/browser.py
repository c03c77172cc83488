"""A headless Chromium that tests can ask, over the pipe of its debugging protocol: no other package is needed."""

import base64
import json
import os
import shutil
import subprocess
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def found():
    """Path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page; `call` sends a command of the protocol and returns its result, events are kept in `events`."""

    def __init__(self, write, read):
        self._write, self._read = write, read
        self._number, self._rest, self._session = 0, b"", None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser is gone"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, path, width, height=900, scheme="light"):
        """Load a file at a viewport of this width in a colour scheme, and wait until it is there."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, script):
        """Value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def requested(self):
        """Addresses that the page asked for since it was opened."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def picture(self, path, clip=None):
        """Save the whole page, or a part {x, y, width, height}, as PNG."""
        options = {"clip": {**clip, "scale": 1}} if clip else {}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **options)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(profile):
    """Yield a `Page` of a fresh Chromium whose files lie in the folder `profile`."""
    to_child, write = os.pipe()
    read, from_child = os.pipe()
    # The protocol's pipe is file descriptors 3 (in) and 4 (out).
    command = [
        "bash", "-c", f'exec "$@" 3<&{to_child} 4>&{from_child}', "--", found(), "--headless=new", "--no-sandbox",
        "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--hide-scrollbars",
        "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, pass_fds=(to_child, from_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_child)
    os.close(from_child)
    try:
        page = Page(write, read)
        yield page
        page._session = None
        page.call("Browser.close")
    finally:
        process.terminate()
        process.wait(20)
        os.close(write)
        os.close(read)
