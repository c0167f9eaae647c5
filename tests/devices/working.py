"""What the tests of workers share."""

import json
import os
import subprocess
import sys
from pathlib import Path

LIMIT_S = 30  # a way out for a test that would hang
REPOSITORY = Path(__file__).resolve().parents[2]


def run(worker, fn, *args):
    return worker.submit(fn, *args).result(LIMIT_S)


def wait_for(waiting, go):
    waiting.set()
    go.wait(LIMIT_S)


def python(script):
    """What a new process prints, as JSON; it must end by itself and without a complaint."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        timeout=4 * LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout) if done.stdout else None
