"""What the programs of page `distributed_data_parallel` that only time something promise."""

import json
import re
from pathlib import Path

import pytest
from processes import printed_by

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
