"""What programs of the pages promise beside what a page shows of them."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pretend_cuda import pretend_cuda
from processes import printed_by
from torch import distributed

from mpcourse.multiprocess.scripts import Scripts

PAGES = Path(__file__).parents[2] / "notebooks"
PROGRAMS = [f"{name}.py" for name in ("work", "resume", "files", "batches", "stage", "train")]


def program(name: str, page: str = "04_distributed_data_parallel") -> str:
    cells = json.loads((PAGES / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    found = [s for c in cells if (s := "".join(c["source"])).startswith(f"%%program {name}\n")]
    return found[0].split("\n", 1)[1]


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


@pytest.mark.parametrize("files", [[], ["rank0-step000005.pt", "rank1-step000005.pt"]])
def test_a_run_of_another_number_of_ranks_is_refused_and_its_files_stay(files, monkeypatch):
    scripts = Scripts()
    for name in PROGRAMS:
        scripts.write(name, program(name, "12_ranks_and_hosts"))
    for name in files:
        scripts.write(name, "")
    before = {path.name for path in scripts.folder.iterdir()}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="two stages, and their files, need two ranks, not 1"):
        scripts.run("python train.py 9")
    assert before == {path.name for path in scripts.folder.iterdir()} - {"__pycache__"}
