"""All schedules in one start, and any order in torch's engine."""

import pytest
import torch
from solutions import torch_pipelining as solutions
from torch.distributed.pipelining import schedules as torch_schedules
from trained import (
    devices_of_ranks,
    each_trained_by_torch,
    largest_difference,
    order_of,
    train_ours,
    train_uncut,
    work_options,
)

from mpcourse.multiprocess import launch
from mpcourse.multiprocess.orders import ANY_ORDER, read_order, to_lines
from mpcourse.multiprocess.pipeline_work import make_batches, make_net
from mpcourse.multiprocess.pipelining import SCHEDULES, available_schedules, make_step
from mpcourse.multiprocess.several import line
from mpcourse.schedules.named import make_schedule


def test_an_order_is_a_line_per_process():
    assert to_lines(make_schedule("gpipe", 2, 2, 2)) == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"


def test_torch_reads_our_texts_and_the_columns_of_the_exercise():
    rows = solutions.my_columns(make_schedule("zb-v", 4, 2, 12), 4)
    for row in rows:
        read = [torch_schedules._Action.from_str(text) for text in row]
        assert [str(action) if action else "" for action in read] == row


def test_the_order_reaches_torch_as_a_file_that_is_gone_afterwards():
    class Runner:
        def _load_csv(self, filename):
            self.filename = filename
            with open(filename, encoding="utf-8") as file:
                self.read = file.read()

    runner = Runner()
    read_order(runner, make_schedule("1f1b", 2, 2, 1))
    assert runner.read == "0F0,0B0\n1F0,1B0\n"
    with pytest.raises(FileNotFoundError):
        open(runner.filename)


def test_torch_has_all_the_engines_that_are_named():
    for name, _ in SCHEDULES.values():
        assert hasattr(torch_schedules, name)
    assert hasattr(getattr(torch_schedules, ANY_ORDER), "_load_csv")


def test_a_torch_that_runs_a_schedule_wrongly_is_not_asked_to(monkeypatch):
    class AsInTorch29:
        """A class of its own, not one that is built on the engine for any order."""

    monkeypatch.setattr(torch_schedules, "ScheduleZBVZeroBubble", AsInTorch29)
    assert available_schedules() == ["gpipe", "1f1b", "interleaved", "zb1p"]
    options = work_options(batch_size=8)
    options.schedule = "zb-h1"
    with pytest.raises(ValueError, match=r"zb-h1 needs torch 2\.10; this is "):
        make_step([], options)


def test_work_in_float64_is_the_same_work():
    double, single = (work_options(steps=1, double=flag) for flag in (True, False))
    assert {p.dtype for p in make_net(double).parameters()} == {torch.float64}
    [(images, targets)], [(others, labels)] = make_batches(double), make_batches(single)
    assert images.dtype == torch.float64
    assert torch.equal(images.float(), others)
    assert torch.equal(targets, labels)


def test_our_engine_gets_devices_such_as_the_processes_have():
    devices = devices_of_ranks(2)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    assert {device.kind for device in devices} == {"gpu" if gpus >= 2 else "cpu core"}


WORK = {
    "mnist": {"batch_size": 16, "steps": 2, "double": True},
    "thin-resnet50": {"batch_size": 8, "steps": 1, "image_size": 32},
}


@pytest.mark.slow
@pytest.mark.parametrize("model", WORK)
def test_every_schedule_of_torch_s_engine_gives_our_loss_and_gradients(model):
    options = {"model": model, **WORK[model]}
    lines = []
    theirs = each_trained_by_torch(launch("pipelines", on_line=lines.append, **options))
    assert list(theirs) == available_schedules()
    assert [line.split(": ")[1] for line in lines] == available_schedules()
    for name, run in theirs.items():
        stages, order = len(run.gradients), order_of(run.timeline)
        if name != "zb1p":
            assert order == make_schedule(name, stages, 2, 4)
        ours = train_ours(work_options(**options), order, stages)
        assert largest_difference(run, ours) < 1e-6
        assert len(run.seconds) == options["steps"]
        if model == "mnist":  # no batch norm, so the uncut net agrees too
            assert largest_difference(run, train_uncut(work_options(**options), stages)) < 1e-12


@pytest.mark.slow
def test_the_median_step_is_no_longer_than_its_picture():
    options = {"batch_size": 8, "microbatches": 2, "steps": 3, "schedules": ["gpipe"]}
    outcome = launch("several", programs=[line("pipelines", **options)], on_line=None)
    [(name, one)] = each_trained_by_torch(outcome, line("pipelines", **options)).items()
    assert (name, len(one.seconds)) == ("gpipe", 3)
    assert one.seconds[-1] >= one.timeline.makespan / 2
