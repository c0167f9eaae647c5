"""The forms of a model: the same answers, from files and copies too; compiles are counted."""

import copy
import io
import logging
import re
import sys
import warnings

import pytest
import torch
from pruned import normed_net, pruned_net
from torch import nn

from mpcourse.compilation import (
    FORMS,
    CompilerMissing,
    as_eager,
    by_compile,
    by_export,
    compare_forms,
    compiler_problem,
    count_compiles,
    cpp_compiler,
    export_program,
    export_refusal,
    forms_table,
    toolchain,
    usable_forms,
)
from mpcourse.devices.devices import get_devices
from mpcourse.pruning import masks_of
from mpcourse.pruning.masked import permanent_copy
from mpcourse.quantization import calibrate, to_int8
from mpcourse.training.nets import lenet_300_100

IMAGES = torch.randn(8, 1, 28, 28)


def static(model: nn.Module) -> nn.Module:
    return to_int8(model, calibrate(model, [IMAGES]))


MODELS = {
    "pruned": lambda: permanent_copy(pruned_net()),
    "pruned, int8, dynamic": lambda: to_int8(pruned_net()),
    "pruned, int8, static": lambda: static(pruned_net()),
    "conv_net, int8": lambda: static(normed_net().eval()),
}


def loaded(file: bytes):
    with warnings.catch_warnings():  # torch 2.9 warns of how it reads the file itself
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.export.load(io.BytesIO(file)).module()


each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
needs_compiler = pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())


@each_model
def test_a_model_comes_back_from_a_file_and_as_a_copy_for_any_batch(make):
    model = make()
    form = by_export(model, IMAGES)
    for call in (form.call, loaded(form.file), copy.deepcopy(form.call)):
        for count in (8, 1, 5):
            assert torch.equal(call(IMAGES[:count]), model(IMAGES[:count]))


class Forked(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + 1 if rows.sum() > 0 else rows - 1


def test_compile_breaks_its_graph_at_an_if_and_is_right_both_ways():
    sample = torch.ones(2, 2)
    # up to the `if`, and the branch; then the other branch
    assert count_compiles(Forked(), [sample, -sample, sample]) == [2, 3, 3]
    compiled = torch.compile(Forked(), backend="eager")
    assert (compiled(sample) == 2).all()
    assert (compiled(-sample) == -2).all()
    torch.compiler.reset()


class Cond(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cond(rows.sum() > 0, lambda r: r + 1, lambda r: r - 1, (rows,))


def test_export_takes_a_branch_that_is_written_as_cond():
    sample = torch.ones(2, 2)
    assert export_refusal(Cond(), sample) is None
    call = loaded(by_export(Cond(), sample).file)
    assert (call(sample) == 2).all()
    assert (call(-torch.ones(5, 2)) == -2).all()


def test_a_refusal_is_one_sentence_and_nothing_is_logged(capfd, recwarn):
    said = export_refusal(Forked(), torch.ones(2, 2))
    assert re.search(r"(?i)data-dependent|dynamic control flow", said)
    assert "\n" not in said
    assert export_refusal(lenet_300_100().eval(), IMAGES) is None
    assert capfd.readouterr().err == ""
    assert [str(each.message) for each in recwarn] == []
    assert logging.getLogger().manager.disable == 0  # others may log again
    with pytest.raises(ValueError, match="sample of 2 rows or more; got 1"):
        export_program(lenet_300_100(), IMAGES[:1])


def test_files_of_int8_are_smaller_in_every_form():
    plain, small = lenet_300_100().eval(), to_int8(lenet_300_100()).eval()
    for form in (as_eager, by_export):
        larger, smaller = len(form(plain, IMAGES).file), len(form(small, IMAGES).file)
        assert smaller < larger / 2
    many, few = by_export(small, IMAGES), by_export(small, IMAGES[:2].clone())
    assert len(many.file) == len(few.file)  # however large the sample is


@pytest.mark.slow
@needs_compiler
def test_all_forms_are_compared_on_a_pruned_int8_net(capfd, recwarn):
    model = pruned_net()
    int8 = to_int8(model)
    [device] = get_devices(1)
    reports = compare_forms(int8.to(device.device), IMAGES.to(device.device), device)
    assert list(reports) == list(FORMS)
    assert reports["eager"].largest_difference == 0
    for report in reports.values():
        assert report.largest_difference < 0.02
        assert report.bytes > 266_200
        assert report.startup_s > 0
        assert report.latency.median_s > 0
    assert reports["compile"].startup_s > reports["eager"].startup_s
    assert reports["compile"].bytes == reports["eager"].bytes
    lines = forms_table(reports).splitlines()
    assert len(lines) == 1 + len(FORMS)
    assert {len(line) for line in lines} == {len(lines[0])}
    assert capfd.readouterr().err == ""
    assert [str(each.message) for each in recwarn] == []


def test_masks_are_applied_and_the_given_model_stays_as_it_is():
    model = pruned_net().train()
    reports = compare_forms(model, IMAGES, names=["eager", "export"])
    assert list(reports) == ["eager", "export"]
    assert reports["export"].largest_difference < 1e-5
    assert model.training
    assert list(masks_of(model)) == ["fc1", "fc2", "fc3"]
    with pytest.raises(ValueError, match=r"forms are eager, .*compile; got \['jit'\]"):
        compare_forms(model, IMAGES, names=["jit"])


def test_compiles_when_the_batch_changes():
    """A second size makes a graph for any from 2 on; 1 is a case of its own."""
    batches = [torch.randn(size, 1, 28, 28) for size in (64, 64, 32, 16, 1, 17, 2)]
    assert count_compiles(lenet_300_100(), batches) == [1, 1, 2, 2, 3, 3, 3]


def test_an_int8_net_is_one_graph_and_a_count_leaves_nothing_behind():
    model, batches = to_int8(pruned_net()), [torch.randn(n, 1, 28, 28) for n in (64, 32, 16)]
    for _ in range(2):
        assert count_compiles(model, batches) == [1, 2, 2]


def test_without_a_compiler_a_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cpp_compiler() is None
    assert usable_forms() == [name for name in FORMS if name != "compile"]
    with pytest.raises(CompilerMissing, match=r"needs a C\+\+ compiler, and none was found"):
        by_compile(lenet_300_100(), IMAGES)
    with pytest.raises(CompilerMissing, match="Install one"):
        compare_forms(lenet_300_100(), IMAGES, names=["eager", "compile"])


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
        warnings.warn("something else", stacklevel=1)
    assert [str(each.message) for each in recwarn] == ["something else"]
