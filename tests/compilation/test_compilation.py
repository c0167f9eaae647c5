"""What torch.export refuses, and what a machine lacks for torch.compile, is said in a sentence."""

import logging
import re
import sys
import warnings

import pytest
import torch
from torch import nn

from mpcourse.compilation import compiler_problem, cpp_compiler, export_refusal, toolchain
from mpcourse.training.nets import lenet_300_100

IMAGES = torch.randn(8, 1, 28, 28)


class Forked(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + 1 if rows.sum() > 0 else rows - 1


def test_a_refusal_is_one_sentence_and_nothing_is_logged(capfd, recwarn):
    said = export_refusal(Forked(), torch.ones(2, 2))
    assert re.search(r"(?i)data-dependent|dynamic control flow", said)
    assert "\n" not in said
    assert export_refusal(lenet_300_100().eval(), IMAGES) is None
    assert capfd.readouterr().err == ""
    assert [str(each.message) for each in recwarn] == []
    assert logging.getLogger().manager.disable == 0  # others may log again


def test_without_a_compiler_a_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cpp_compiler() is None
    assert "needs a C++ compiler, and none was found. Install one" in compiler_problem()


def test_the_headers_and_triton_are_looked_for_too(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "cpp_compiler", lambda: "g++")
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python.h" in compiler_problem()
    (tmp_path / "Python.h").touch()
    assert compiler_problem() == ""
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    assert compiler_problem("cpu") == ""
    assert "triton" in compiler_problem("cuda")


@pytest.mark.skipif(sys.platform == "win32", reason="cl is asked nothing")
def test_a_compiler_that_does_not_run_is_none(monkeypatch):
    monkeypatch.setenv("CXX", "false")
    assert cpp_compiler() is None
    monkeypatch.setenv("CXX", "true -some -flags")
    assert cpp_compiler() == "true -some -flags"


def test_only_what_torch_says_of_its_own_parts_is_held_back(recwarn):
    with toolchain.quietly():
        warnings.warn("`torch.jit.script_method` is deprecated. Please switch.", stacklevel=1)
        warnings.warn("TensorFloat32 tensor cores are available.", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(each.message) for each in recwarn] == ["something else"]
