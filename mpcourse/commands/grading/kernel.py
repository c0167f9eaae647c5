"""A kernel that runs a learner's cells one by one and can be stopped.

Behind `python -m mpcourse grade`. Source: the documentation of jupyter_client.
"""

import contextlib
import os
import queue
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from jupyter_client.manager import KernelManager

from mpcourse.commands.pages import own_kernel

READY_LIMIT_S = 120.0
INTERRUPT_GRACE_S = 5.0
CELL_FILE = re.compile(r"\(\d+\.py, line")  # a name that nobody has given


class Outcome(NamedTuple):
    """How a piece of code ended.

    Attributes:
        kind: "ok", "error" (it raised), "stopped" (interrupted at its limit) or "gone" (the kernel
            ended, or did not heed the interrupt: it is of no use any more).
        words: What happened; empty when all went well.
    """

    kind: str
    words: str = ""


class Kernel:
    """A fresh kernel of this interpreter, in a folder that is laid out as a clone of the course.

    The `mpcourse` of that clone is imported; all that IPython leaves behind lies in it.
    """

    def __init__(self, clone: Path):
        folders = {"IPYTHONDIR": "ipython", "TMPDIR": "tmp", "TEMP": "tmp", "TMP": "tmp"}
        env = {**os.environ, "PYTHONPATH": str(clone)}
        for variable, folder in folders.items():
            (clone / folder).mkdir(exist_ok=True)
            env[variable] = str(clone / folder)
        (clone / "my_notebooks").mkdir()
        self._manager = own_kernel(KernelManager, connection_file=str(clone / "kernel.json"))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._manager.start_kernel(cwd=str(clone / "my_notebooks"), env=env, **quiet)
        self._client = self._manager.client()
        self._client.start_channels(iopub=False, stdin=False, hb=False)
        self.run("pass", READY_LIMIT_S)

    def run(self, code: str, limit_s: float) -> Outcome:
        """Run code and wait for its end; at the limit it is interrupted."""
        asked = self._client.execute(code, allow_stdin=False, stop_on_error=False)
        reply = self._reply(asked, limit_s)
        if reply is None and self._manager.is_alive():
            self._manager.interrupt_kernel()
            if self._reply(asked, INTERRUPT_GRACE_S) is None:
                return Outcome("gone", f"did not end after {limit_s:.0f} s and heeded no interrupt")
            return Outcome("stopped", f"was stopped after {limit_s:.0f} s")
        if reply is None:
            return Outcome("gone", f"ended its kernel ({self._status()})")
        if reply["status"] == "ok":
            return Outcome("ok")
        raised = ": ".join(filter(None, [reply.get("ename", ""), reply.get("evalue", "")]))
        raised = CELL_FILE.sub("(line", raised)
        return Outcome("error", f"raised {raised}")

    def _reply(self, asked: str, limit_s: float) -> dict | None:
        """The content of the reply; None when there was none in time, or the kernel has ended."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                message = self._client.get_shell_msg(timeout=0.2)
                if message["parent_header"].get("msg_id") == asked:
                    return message["content"]
                continue
            if not self._manager.is_alive():
                return None
        return None

    def _status(self) -> str:
        """How the kernel's process ended, in words."""
        process = getattr(self._manager.provisioner, "process", None)
        status = process.poll() if process else None
        if status is None:
            return "no exit status"
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"exit status {status}"

    def end(self) -> None:
        """End it at once."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
