"""Several programs in the same processes; processes at the same time; where a rank computes."""

import argparse

import pytest
import torch
from torch import distributed, nn

from mpcourse.multiprocess import launch, overlapped
from mpcourse.multiprocess.buckets import BucketedGradients
from mpcourse.multiprocess.programs import parse
from mpcourse.multiprocess.rank import Rank
from mpcourse.multiprocess.several import run as run_several
from mpcourse.multiprocess.speed import WAYS, _batch, _step, speedups
from mpcourse.schedules.timeline import Event, Timeline

PROGRAMS = ["hello", "overlap --width 64 --rows 8 --repeats 2"]
SPEED = "speed --batch-size 8 --repeats 3"


@pytest.fixture(scope="module")
def results():
    return launch("several", programs=[*PROGRAMS, SPEED], on_line=None).results


@pytest.mark.slow
def test_several_programs_run_in_the_same_processes(results):
    assert [list(result) for result in results] == [[*PROGRAMS, SPEED]] * 2
    first, second = (result[PROGRAMS[0]]["process"] for result in results)
    assert first != second


@pytest.mark.slow
def test_one_bucket_is_sent_after_the_backward_and_many_beside_it(results):
    for result in results:
        found = result[PROGRAMS[1]]
        assert found["largest"] == 0  # the same gradients
        [backward, sending] = found["one bucket"]["rows"]
        assert [backward[1], sending[1]] == ["B0", "A0"]
        assert backward[3] == sending[2]
        rows = found["a bucket per layer"]["rows"]
        assert [row[1] for row in rows] == [f"{kind}{n}" for n in range(5) for kind in "BA"]
        computed = [row for row in rows if row[0] == 0]
        assert [row[0] for row in rows if row[1][0] == "A"] == [1, 2, 3, 4, 5]  # they overlap
        assert [row[2] for row in computed[1:]] == [row[3] for row in computed[:-1]]
        assert rows[1][2] < computed[-1][3]  # the first leaves before the last is there
        for each in found.values():
            if isinstance(each, dict):
                assert each["seconds"] > 0
                lanes = 1 + len(each["rows"]) // 2
                Timeline.from_clock([Event(*row) for row in each["rows"]], lanes)


class Repeats:
    """In place of what is traced: repeats of 3, 1 and 2 seconds."""

    def __init__(self, net, bucket_bytes, device):
        self.net, self._left = net, [3.0, 1.0, 2.0]
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def step(self, batch):
        self._last = self._left.pop(0)
        return self._last

    def rows(self):
        return [(0, "B0", 0.0, self._last)]

    def close(self):
        pass


def test_the_repeat_in_the_middle_is_drawn(monkeypatch):
    monkeypatch.setattr(overlapped, "_Traced", Repeats)
    run, options = parse(["overlap", "--width", "4", "--rows", "2", "--repeats", "3"])
    found = run(Rank(), options)
    for way in ("one bucket", "a bucket per layer"):
        assert found[way] == {"seconds": 2.0, "rows": [(0, "B0", 0.0, 2.0)]}


@pytest.mark.slow
def test_every_way_trains_the_same_weights_and_all_ranks_agree_on_the_times(results):
    first, second = (result[SPEED] for result in results)
    assert list(first["seconds"]) == list(WAYS)
    assert first["seconds"] == second["seconds"]
    assert {len(times) for times in first["seconds"].values()} == {3}
    assert min(min(times) for times in first["seconds"].values()) > 0
    assert set(first["differences"]) == set(WAYS)
    assert max(first["differences"].values()) < 1e-5
    assert second["differences"] == {}


def test_speedups_name_their_baseline():
    seconds = {"a": [4.0, 1.0, 2.0], "b": [1.0]}
    assert speedups(seconds, "a") == {"a": 1.0, "b": 2.0}
    assert speedups(seconds, "b") == {"a": 0.5, "b": 1.0}


def test_a_step_in_parts_is_the_step_in_one():
    rows, targets = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    whole = nn.Linear(3, 2)
    parts = nn.Linear(3, 2)
    parts.load_state_dict(whole.state_dict())
    before = whole.weight.detach().clone()
    halves = [(rows[part], targets[part]) for part in (slice(0, 3), slice(3, 6))]
    losses = [_step(whole, [(rows, targets)])(), _step(parts, halves)()]
    assert losses[0] == pytest.approx(losses[1])
    torch.testing.assert_close(whole.weight, parts.weight)
    assert not torch.equal(whole.weight, before)


def test_a_batch_that_the_ranks_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="3 ranks do not divide a batch of 8 samples"):
        _batch(argparse.Namespace(world_size=3), 8)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("tuns", "a program is one of hello, .*got 'tuns'"),
        ("hello --epochs 1", "unrecognized arguments: --epochs 1"),
        ("overlap --width many", "argument --width: invalid int value"),
    ],
)
def test_each_of_several_programs_is_read_before_anything_starts(program, words, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(ValueError, match=words):
        launch("several", programs=["hello", program])


def test_several_programs_are_one_or_more():
    with pytest.raises(ValueError, match="one program or more; got none"):
        run_several(None, parse(["several"])[1])


def test_each_program_starts_with_its_own_seed(monkeypatch):
    def draw(rank, options):
        return {"number": torch.rand(1).item()}

    monkeypatch.setattr("mpcourse.multiprocess.hello.run", draw)
    _, options = parse(["several", "--programs", "hello", "hello --timeout 1", "hello --seed 1"])
    first, again, other = run_several(None, options).values()
    assert first == again != other


@pytest.mark.parametrize(
    ("gpus", "ranks", "backend"),
    [
        (0, 1, "gloo"),
        (0, 2, "gloo"),
        (1, 1, "nccl"),
        (1, 2, "gloo"),
        (2, 2, "nccl"),
        (2, 3, "gloo"),
    ],
)
def test_nccl_only_where_every_rank_has_a_gpu_of_its_own(gpus, ranks, backend, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    devices = []
    for number in range(ranks):
        monkeypatch.setenv("LOCAL_RANK", str(number))
        rank = Rank()
        assert rank.backend == backend
        devices.append(rank.device)
    if backend == "nccl":
        assert [device.index for device in devices] == list(range(ranks))
    else:
        assert {device.type for device in devices} == {"cpu"}


def test_whoever_asks_is_told_of_each_bucket_that_is_sent(tmp_path):
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        net, told = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), []
        bucketed = BucketedGradients(net, 1, on_sent=told.append)
        net(torch.ones(1, 2)).sum().backward()
        bucketed.wait()
        assert len(told) == len(bucketed.buckets) == 4
        assert all(request.is_completed() for request in told)
    finally:
        distributed.destroy_process_group()
