"""ruff finds nothing to say about package, tests and pages."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from mpcourse.commands.page_format import normalise, to_text

ROOT = Path(__file__).resolve().parents[1]


def ruff(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed; tests/requirements.txt has it")
    return subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "--no-cache", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check", "--diff")])
def test_ruff_has_nothing_to_say(arguments: tuple[str, ...]):
    result = ruff(ROOT, *arguments)
    if result.returncode:
        pytest.fail(result.stdout + result.stderr, pytrace=False)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [(("check",), "from os import *"), (("format", "--check"), "x = [1,2]")],
)
def test_ruff_reads_notebooks_too(tmp_path: Path, arguments: tuple[str, ...], line: str):
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "notebooks").mkdir()
    text = to_text(normalise(new_notebook(cells=[new_code_cell(line)])))
    (tmp_path / "notebooks/01_page.ipynb").write_text(text, encoding="utf-8")
    result = ruff(tmp_path, *arguments)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "01_page.ipynb" in result.stdout
