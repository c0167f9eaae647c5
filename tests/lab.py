"""A real JupyterLab for the browser tests: the server, and one open page driven by keyboard."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from playwright.sync_api import Browser, Playwright, sync_playwright
from playwright.sync_api import Page as Tab

from mpcourse.__main__ import LAB_DEFAULTS
from mpcourse.commands.pages import read

START_LIMIT_S = 300  # generous: other programs may hold the machine
RUN_LIMIT_S = 900
STOP_LIMIT_S = 60
SCREEN = {"width": 1300, "height": 1000}
TALLEST = 16_000  # pixels; a screenshot cannot be much higher
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SETTINGS = {
    # All cells stand in the document, those out of sight too, and nothing below them.
    "notebook-extension/tracker": {"windowingMode": "none", "scrollPastEnd": False}
}


def wait_for(ready: Callable[[], Any], *, limit_s: float, what: str) -> Any:
    """Return the first true value of `ready`; every wait of the browser tests ends here."""
    deadline = time.monotonic() + limit_s
    while not (value := ready()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_s} s for {what}")
        time.sleep(0.1)
    return value


@dataclass(frozen=True)
class Server:
    """A running JupyterLab and the folder that it shows."""

    url: str
    token: str
    folder: Path
    process: subprocess.Popen

    def ask(self, path: str, *, method: str = "GET") -> int | None:
        """Return the status of a request, None when nobody answers."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=STOP_LIMIT_S) as response:
                return response.status
        except (urllib.error.URLError, OSError):
            return None

    def is_up(self) -> bool:
        log = (self.folder.parent / "lab.log").read_text(encoding="utf-8", errors="replace")
        assert self.process.poll() is None, f"JupyterLab ended:\n{log[-3000:]}"
        return self.ask("/api/status") == 200

    def stop(self) -> None:
        """Ask the server to stop, with its kernels; insist if it does not."""
        self.ask("/api/shutdown", method="POST")
        for insist in (self.process.terminate, self.process.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=STOP_LIMIT_S)
                return
            insist()
        self.process.wait(timeout=STOP_LIMIT_S)


def find_browser(playwright: Playwright) -> Browser:
    """Start the browser that is there; skip the test where there is none."""
    of_playwright = playwright.chromium.executable_path
    program = next(filter(None, map(shutil.which, [*BROWSERS, of_playwright])), None)
    if program is None:
        pytest.skip(f"no browser found; looked for {', '.join(BROWSERS)}")
    return playwright.chromium.launch(executable_path=program, args=FLAGS)


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser without a window; it is closed in the end."""
    with sync_playwright() as playwright:
        browser = find_browser(playwright)
        yield browser
        browser.close()


def environment(folder: Path) -> dict[str, str]:
    """Variables that keep the user's own Jupyter settings, kernels and pages out."""
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    own = {name: str(folder / name.lower()) for name in names}
    own["JUPYTERLAB_SETTINGS_DIR"] = str(folder / "settings")
    own["JUPYTERLAB_WORKSPACES_DIR"] = str(folder / "workspaces")
    own["JUPYTER_CONFIG_PATH"] = str(LAB_DEFAULTS)  # as `lab` does
    for name, values in SETTINGS.items():
        file = folder / "settings/@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, **own, "JUPYTER_PREFER_ENV_PATH": "1"}


@contextlib.contextmanager
def running_lab(folder: Path) -> Iterator[Server]:
    """Start JupyterLab on `folder`, with a token, on a free port; stop it and its kernels."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": token,
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser"]
    command += [f"--{name}={value}" for name, value in options.items()]
    with (folder.parent / "lab.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder.parent), stdout=log, stderr=log
        )
    server = Server(f"http://127.0.0.1:{port}", token, folder, process)
    try:
        wait_for(server.is_up, limit_s=START_LIMIT_S, what="JupyterLab to answer")
        yield server
    finally:
        server.stop()


class OpenPage:
    """A page of the course, open in JupyterLab in one tab of a browser."""

    def __init__(self, tab: Tab, server: Server, name: str) -> None:
        """Open a page; `name` is its path in the server's folder, with forward slashes."""
        self.tab = tab
        self.path = server.folder / name
        tab.goto(f"{server.url}/lab/tree/{name}?reset&token={server.token}")
        tab.wait_for_selector(".jp-Notebook .jp-Cell")
        self.wait_until_idle()

    def prompts(self) -> list[str]:
        """Return `[3]:`, `[*]:` or `[ ]:` for every code cell."""
        return self.tab.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").all_inner_texts()

    def is_idle(self) -> bool:
        status = self.tab.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        return status.count() == 1 and not any("*" in prompt for prompt in self.prompts())

    def wait_until_idle(self) -> None:
        """Wait until nothing runs or is queued, and still not a moment later."""

        def is_idle_twice() -> bool:
            idle = self.is_idle()
            self.tab.wait_for_timeout(200)
            return idle and self.is_idle()

        wait_for(is_idle_twice, limit_s=RUN_LIMIT_S, what=f"the end of {self.path.name}")

    def choose(self, menu: str, command: str) -> None:
        """Choose an entry of the menu bar."""
        self.tab.locator(".lm-MenuBar-item", has_text=menu).first.click()
        self.tab.locator(f'.lm-Menu-item[data-command="{command}"]').click()

    def run_all(self) -> None:
        """Run all cells from cleared outputs to the end."""
        self.choose("Edit", "editmenu:clear-all")

        def has_begun() -> bool:
            # Before the kernel is there, the command does nothing: it is given again.
            self.choose("Run", "runmenu:run-all")
            for _ in range(20):
                self.tab.wait_for_timeout(100)
                if any(prompt.strip(" []:") for prompt in self.prompts()):
                    return True
            return False

        wait_for(has_begun, limit_s=START_LIMIT_S, what=f"the first cell of {self.path.name}")
        self.wait_until_idle()

    def saved(self) -> NotebookNode:
        """Save the page, and return what JupyterLab wrote."""
        before = self.path.stat().st_mtime_ns
        self.choose("File", "docmanager:save")

        def whole() -> NotebookNode | None:
            with contextlib.suppress(json.JSONDecodeError):  # it is still being written
                return read(self.path) if self.path.stat().st_mtime_ns > before else None

        return wait_for(whole, limit_s=START_LIMIT_S, what=f"{self.path.name} to be saved")

    def screenshot(self, file: Path) -> None:
        """Take a picture of the whole page, not only of what fits on a screen."""
        self.tab.set_viewport_size(SCREEN)
        panel = self.tab.locator(".jp-Notebook .jp-WindowedPanel-outer")
        height = panel.evaluate("panel => panel.scrollHeight") + 150
        self.tab.set_viewport_size({**SCREEN, "height": max(1000, min(height, TALLEST))})
        self.tab.wait_for_timeout(500)
        file.parent.mkdir(exist_ok=True)
        self.tab.screenshot(path=file)
