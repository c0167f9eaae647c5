"""What the programs of page `distributed_data_parallel` that only time something promise."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pretend_cuda import pretend_cuda
from processes import printed_by
from torch import distributed

PAGE = Path(__file__).parents[2] / "notebooks/04_distributed_data_parallel.ipynb"


def program(name: str) -> str:
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    [source] = [s for c in cells if (s := "".join(c["source"])).startswith(f"%%program {name}\n")]
    return source.split("\n", 1)[1]


@pytest.mark.slow
def test_one_bucket_is_sent_behind_the_backward_and_the_others_beside_it():
    lines = printed_by(program("beside.py"), 2)
    numbers = [list(map(float, re.findall(r"\d+\.\d", line))) for line in lines]
    assert lines[0].startswith("one bucket: ")
    assert lines[2].startswith("a bucket per layer: ")
    for [whole], spans in ((numbers[0], numbers[1:2]), (numbers[2], numbers[3:])):
        last_gradient = spans[-1][0]
        assert all(full < last_gradient for full, _ in spans[:-1])
        assert all(0 < full < arrived <= whole + 0.1 for full, arrived in spans)
    assert len(numbers[3:]) == 5


@pytest.mark.slow
def test_all_ways_that_are_compared_train_the_same_weights():
    source = program("speed.py").replace("range(2 + 7)", "range(2 + 1)")
    assert printed_by(source, 2) == ["all ways have trained the same weights: True"]


def test_on_a_gpu_a_sum_is_timed_by_the_stream_that_waits_for_it(monkeypatch):
    cuda = pretend_cuda(monkeypatch, gpus=2)
    sums, waits = cuda.new_stream(1), cuda.new_stream(1)
    for name, value in {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "init_process_group", lambda backend: None)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)

    class Future:
        """As nccl's: the host goes on, and what is called runs on a stream that waits."""

        def then(self, call):
            waits.wait_stream(sums)
            with cuda.stream(waits):
                call(self)

        def value(self):
            return [None]

    def all_reduce(total, async_op):
        sums.wait_stream(cuda.current_stream(1))
        with cuda.stream(sums):
            cuda.kernel("sum", gpu=1, seconds=3.0)
        return SimpleNamespace(get_future=Future)

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    page, found = {}, []
    exec(program("beside.py").split("\nfor name, ")[0], page)
    cuda.kernel("before", gpu=1, seconds=7.0)
    with cuda.on_device(1):
        start = page["now"]()
        for _ in range(2):
            cuda.kernel("backward", gpu=1, seconds=2.0)
            page["timed_all_reduce"](found, SimpleNamespace(buffer=lambda: torch.ones(2)))
    torch.cuda.synchronize(1)
    since = [[page["milliseconds"](start, each) / 1e3 for each in span] for span in found]
    assert since == [[2.0, 5.0], [4.0, 8.0]]
