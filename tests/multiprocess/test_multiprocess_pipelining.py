"""torch's pipeline in processes against ours in threads: the same order, losses and gradients."""

import pytest
import torch
from torch import nn
from trained import (
    largest_difference,
    order_of,
    train_ours,
    train_uncut,
    trained_by_torch,
    work_options,
)

from mpcourse.multiprocess import launch
from mpcourse.multiprocess.pipeline_work import cut, make_batches, make_net
from mpcourse.multiprocess.pipelining import (
    Sendable,
    available_schedules,
    check_gradients,
    make_step,
    stages_of,
)
from mpcourse.multiprocess.programs import parse
from mpcourse.schedules.named import make_schedule

WORK = {"batch_size": 16, "steps": 3}


def test_every_process_makes_the_same_work_and_leaves_the_generator_alone():
    options = work_options(**WORK)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = make_net(options), make_net(options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(first.state_dict(), second.state_dict())
    torch.testing.assert_close(make_batches(options), make_batches(options))
    assert len(make_batches(options)) == 3
    with pytest.raises(ValueError, match=r"options are seed, model, .*; got modell"):
        work_options(modell="conv")


@pytest.mark.parametrize("model", ["mnist", "conv", "thin-resnet50"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_stages_are_the_net_and_the_first_has_parameters(model, stages):
    net = make_net(work_options(model=model))
    parts = cut(net, stages)
    assert len(parts) == stages
    assert [layer for part in parts for layer in part] == list(net)
    assert list(parts[0].parameters())


def test_where_the_stages_are():
    assert [stages_of("1f1b", rank, 3, 1) for rank in range(3)] == [[0], [1], [2]]
    assert [stages_of("interleaved", rank, 2, 2) for rank in range(2)] == [[0, 2], [1, 3]]
    assert [stages_of("zb-v", rank, 2, 2) for rank in range(2)] == [[0, 3], [1, 2]]


def test_what_a_stage_sends_is_contiguous_and_no_view():
    rows = torch.randn(4, 6, requires_grad=True) * 1
    for output in (rows.t(), rows[:, :3], rows.flatten()):
        sent = Sendable()(output)
        assert sent.is_contiguous()
        assert not sent._is_view()
        assert torch.equal(sent, output)
    assert Sendable()(rows) is rows


def test_weights_without_a_gradient_are_named():
    stages = nn.ModuleDict({"1": nn.Linear(2, 2)})
    with pytest.raises(RuntimeError, match=r"no gradient for 1\.weight, 1\.bias"):
        check_gradients(stages)


CASES = [
    *((name, "mnist") for name in ("gpipe", "1f1b", "interleaved", "zb1p")),
    ("zb-v", "conv"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "model"), CASES)
def test_torch_s_engine_does_what_ours_does(schedule, model):
    if schedule not in available_schedules():
        pytest.skip(f"{schedule} needs torch 2.10")
    outcome = launch("pipeline", schedule=schedule, model=model, on_line=None, **WORK)
    theirs = trained_by_torch(outcome)
    num_stages = len(theirs.gradients)
    order = order_of(theirs.timeline)
    if schedule != "zb1p":  # ours has no schedule of that name, but takes any order
        assert order == make_schedule(schedule, num_stages, 2, 4)
    ours = train_ours(work_options(model=model, **WORK), order, num_stages)
    uncut = train_uncut(work_options(model=model, **WORK), num_stages)
    assert order_of(ours.timeline) == order
    assert len(ours.losses) == 3
    assert largest_difference(theirs, ours) < 1e-6
    assert largest_difference(theirs, uncut) < 1e-5


@pytest.mark.slow
def test_resnet50_through_torch_s_engine():
    work = {"model": "resnet50", "batch_size": 4, "microbatches": 2, "image_size": 32, "steps": 1}
    theirs = trained_by_torch(launch("pipeline", on_line=None, **work))
    ours = train_ours(work_options(**work), "1f1b", 2)
    assert sum(row.numel() for part in theirs.gradients for row in part) == 23_528_522
    assert largest_difference(theirs, ours) < 1e-6


@pytest.mark.slow
def test_a_killed_stage_goes_on_from_its_checkpoint(tmp_path):
    again = launch(
        "pipeline",
        fault="kill:0:backward:2",
        restarts=1,
        checkpoints=tmp_path,
        on_line=None,
        **WORK,
    )
    assert again.restarts == 1
    assert [result["resumed_at"] for result in again.results] == [2, 2]
    ours = train_ours(work_options(**WORK), "1f1b", 2)
    assert largest_difference(trained_by_torch(again), ours) < 1e-6


def test_what_does_not_fit_is_refused():
    _, options = parse(["pipeline", "--batch-size", "16", "--microbatches", "3"])
    with pytest.raises(ValueError, match="3 micro-batches do not divide 16 samples"):
        make_step([], options)
