"""ruff finds nothing to say about package, tests and pages."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize("arguments", [("check",), ("format", "--check", "--diff")])
def test_ruff_has_nothing_to_say(arguments: tuple[str, ...]):
    command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "."]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    if result.returncode:
        pytest.fail(result.stdout + result.stderr, pytrace=False)
