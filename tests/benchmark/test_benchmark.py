"""The benchmark runs in its short form and prints a figure for each of its parts."""

import re

import pytest
import torch
from torch import nn

from mpcourse.benchmark.__main__ import main
from mpcourse.benchmark.resnet50 import MemoryFormat, resnet50_work
from mpcourse.devices.devices import as_devices, get_devices
from mpcourse.devices.timing import measure_together
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.pipeline.smallest import SmallestPipeline
from mpcourse.schedules.named import make_schedule

pytestmark = pytest.mark.slow
ON_CPU = [
    r"torch\.distributed\.pipelining, (gpipe|1f1b) +\d+\.\d+ x, \d+% of what its stages allow"
]


def test_the_short_form_prints_every_part(capsys):
    assert main(["--short"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("measured here: ")
    for part in (
        r"two workers, equal jobs +\d+\.\d+ x",
        r"hand-over and wait +\d+ us",
        r"16 micro-batches: no engine, a loop +\d+ us an action",
        r"16 micro-batches: the smallest pipeline +\d+ us an action +1.00 x the smallest",
        r"16 micro-batches: our engine +\d+ us an action +\d\.\d\d x the smallest pipeline",
        r"16 micro-batches: torch\.distributed\.pipelining over gloo +\d+ us an action",
        r"two equal stages +1\.33 x",
        r"one worker, whole batch +\d+\.\d+ x",
        r"one worker, same micro-batches +1\.00 x",
        r"pipelined forward, autograd's backward +\d+\.\d+ x",
        r"by 2: naive +\d+\.\d+ x, \d+% of what its stages allow",
        r"by 2: gpipe +\d+\.\d+ x, \d+% of what its stages allow",
        r"by 2: 1f1b +\d+\.\d+ x, \d+% of what its stages allow",
        *(ON_CPU if get_devices(2)[0].kind == "cpu core" else []),
    ):
        assert re.search(part, printed), f"{part} is not in\n{printed}"


def test_both_engines_compute_on_the_same_numbers_in_the_same_layout():
    ours, theirs = resnet50_work(2, 32), resnet50_work(2, 32, gloo=True)
    torch.testing.assert_close(ours.inputs, theirs.inputs)
    seen = []
    for work in (ours, theirs):
        values = work.inputs
        for stage in work.stages:
            for module in stage.modules():
                if isinstance(module, torch.nn.Conv2d):
                    module.register_forward_pre_hook(
                        lambda _, given: seen.append(given[0].stride())
                    )
            values = stage(values)
    half = len(seen) // 2
    assert half == 53  # the convolutions of a ResNet50
    assert seen[:half] == seen[half:]
    assert all(strides[1] == 1 for strides in seen)  # the channels are innermost


def test_a_layout_goes_one_way_with_the_values_and_back_with_their_gradient():
    plain = torch.randn(2, 3, 4, 5, requires_grad=True)
    gradients = []
    output = MemoryFormat(torch.channels_last)(plain * 1)
    assert output.is_contiguous(memory_format=torch.channels_last)
    inner = plain * 1
    inner.register_hook(gradients.append)
    (MemoryFormat(torch.channels_last)(inner) * torch.randn(2, 3, 4, 5)).sum().backward()
    assert gradients[0].is_contiguous()


def test_an_action_of_the_engine_costs_less_than_two_of_the_smallest_pipeline():
    """It was twice that once; on a quiet machine 1.2 to 1.3. Five tries."""
    devices, count = as_devices(["cpu"] * 2), 16
    schedule, batch = make_schedule("1f1b", 2, 2, count), (torch.randn(count, 8),) * 2
    smallest = SmallestPipeline([nn.Linear(8, 8) for _ in range(2)], devices, schedule)
    ours = Pipeline([nn.Linear(8, 8) for _ in range(2)], devices, num_microbatches=count)
    fns = {
        "smallest": lambda: [smallest.step(*batch, nn.MSELoss()) for _ in range(10)],
        "engine": lambda: [ours.step(*batch, nn.MSELoss()) for _ in range(10)],
    }
    ratios = []
    for _ in range(5):
        times = measure_together(fns, devices, repeats=5)
        ratios.append(times["engine"].median_s / times["smallest"].median_s)
        if ratios[-1] < 1.6:
            return
    pytest.fail(f"engine / smallest: {ratios}")
