"""A headless Chromium, driven through a pipe by the DevTools protocol. Needs nothing beside the browser."""

import base64
import contextlib
import fcntl
import importlib.util
import json
import os
import pathlib
import subprocess
import time

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-sync", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "--hide-scrollbars",
]


def axe_source():
    """The script of axe-core, which axe-playwright-python carries; none where that is missing."""
    spec = importlib.util.find_spec("axe_playwright_python")
    return spec and (pathlib.Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text()


class Browser:
    """One tab. Messages end with a zero byte; descriptor 3 of the browser is its input, 4 its output."""

    def __init__(self, program, folder):
        into, self.out = os.pipe()
        self.back, from_it = os.pipe()

        def place():
            # Copied above 4 first, so that neither overwrites the other.
            above = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (into, from_it)]
            os.dup2(above[0], 3)
            os.dup2(above[1], 4)

        command = [program, *FLAGS, f"--user-data-dir={folder}/profile", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, preexec_fn=place, pass_fds=(3, 4), **quiet)
        os.close(into)
        os.close(from_it)
        self.buffer, self.n, self.events = b"", 0, []
        targets = self.call("Target.getTargets", session=False)["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", session=False, targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM", "Network"):
            self.call(f"{domain}.enable")

    def read(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.back, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=True, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            found = self.read()
            if found.get("id") == self.n:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.events.append(found)

    def run(self, script):
        """The value of a script, or of the promise that it gives."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script[:200]}: {found['exceptionDetails']}")
        return found["result"].get("value")

    @contextlib.contextmanager
    def frame(self):
        """Gives `run` for the one frame that has a process of its own."""
        targets = self.call("Target.getTargets", session=False)["targetInfos"]
        frame = next(t["targetId"] for t in targets if t["type"] == "iframe")
        page = self.session
        self.session = self.call("Target.attachToTarget", session=False, targetId=frame, flatten=True)["sessionId"]
        try:
            yield self.run
        finally:
            self.session = page

    def until(self, script, seconds=300):
        """Waits until a script gives something true, and returns that."""
        end = time.monotonic() + seconds
        while True:
            found = self.run(script)
            if found:
                return found
            if time.monotonic() > end:
                raise RuntimeError(f"not true within {seconds} s: {script}")
            time.sleep(0.05)

    def open(self, url):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def look(self, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key, text="", modifiers=0):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def choose_files(self, selector, *paths):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(p) for p in paths])

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def violations(self, axe):
        """What axe-core finds that keeps people who use a keyboard or a screen reader out."""
        if not self.run("typeof axe === 'object'"):
            self.run(axe + "; 0")
        return self.run(
            "axe.run(document, { iframes: false }).then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 150) + n.any.map((a) => a.message))]))"
        )

    def faults(self):
        """What the console and the log have of errors since the last call."""
        events, self.events = self.events, []
        logged = [e["params"]["entry"] for e in events if e.get("method") == "Log.entryAdded"]
        thrown = [e["params"]["exceptionDetails"] for e in events if e.get("method") == "Runtime.exceptionThrown"]
        return [e["text"] for e in logged if e["level"] == "error"] + [json.dumps(e)[:500] for e in thrown]

    def requested(self):
        """Addresses that were asked for, since the last call of `faults`."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [e["request"]["url"] for e in sent]

    def close(self):
        self.process.kill()
        self.process.wait()
