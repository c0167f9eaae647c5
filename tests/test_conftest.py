"""What the two conftest files and nbval's settings promise to every test."""

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mpcourse.commands.page_format import ROOT


@pytest.mark.parametrize("run", ["first", "second"])
def test_every_test_starts_from_the_same_seeds(run: str):
    expected = torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.rand(1), expected)
    assert random.random() == random.Random(0).random()


def test_kernels_find_the_package_without_an_installation():
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_gpu_tests_are_skipped_with_a_reason_where_there_are_too_few(tmp_path: Path):
    (tmp_path / "tests").mkdir()
    for name in ("pyproject.toml", "conftest.py", "tests/conftest.py", "tests/nbval_sanitize.cfg"):
        shutil.copy(ROOT / name, tmp_path / name)
    marked = "import pytest\n\n@pytest.mark.gpu\ndef test_one(): ...\n"
    marked += "\n@pytest.mark.two_gpus\ndef test_two(): ...\n"
    (tmp_path / "tests/test_marked.py").write_text(marked)
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "tests"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    output = result.stdout
    here = torch.cuda.device_count()
    for needed in (1, 2):
        reason = f"needs {needed} CUDA GPU(s), this machine has {here}"
        assert (reason in output) == (here < needed), output
    assert f"mpcourse: torch {torch.__version__}, CUDA GPUs: {here}, cores: " in output


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("<object object at 0x7f31c8d0a4f0>", "<object object at ADDRESS>"),
        ("<B at 0x000001F2A0B3C4D0>", "<B at ADDRESS>"),
        ("/tmp/ipykernel_4242/123456.py:3: UserWarning", "CELL:3: UserWarning"),
        (r"C:\Users\me\ipykernel_42\1.py:3: UserWarning", "CELL:3: UserWarning"),
        ("the mask 0xff", "the mask 0xff"),
        ("4242 rows in 3.py", "4242 rows in 3.py"),
    ],
)
def test_nbval_replaces_what_differs_from_run_to_run(text: str, replaced: str):
    plugin = pytest.importorskip("nbval.plugin", reason="nbval is not installed")
    rules = plugin.get_sanitize_patterns((ROOT / "tests/nbval_sanitize.cfg").read_text("ascii"))
    assert len(rules) == 2
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    assert text == replaced
