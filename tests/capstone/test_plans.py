"""Plans are refused before they run, counted exactly, and simulated from what is counted."""

import numpy as np
import pytest
import torch
from torch import nn

from mpcourse.capstone.plans import (
    BLOCK_PRICE,
    Plan,
    block_work,
    bytes_per_sample,
    forecast,
    fresh_bytes,
    gradient_bytes,
    prunable_blocks,
    pruned,
    saved_bytes,
    simulate_plan,
    state_bytes,
    validate_plan,
)
from mpcourse.memory import ByteCounter
from mpcourse.training.nets import deep_conv_net

IMAGE = torch.zeros(1, 1, 28, 28)
BLOCKS = [f"block{number}" for number in range(1, 9)]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return deep_conv_net()


@pytest.mark.parametrize(
    ("plan", "error", "words"),
    [
        (Plan(0), ValueError, "cut is a whole number from 1 to 8 .*; got 0"),
        (Plan(True), ValueError, "cut is a whole number"),
        (Plan(5.0), ValueError, "cut is a whole number"),
        (Plan(4, "zb-h1"), ValueError, "schedule is one of naive, gpipe, 1f1b; got 'zb-h1'"),
        (
            Plan(4, num_microbatches=33),
            ValueError,
            "num_microbatches is a whole number from 1 to 32",
        ),
        (Plan(4, keep={"block9": 0.5}), ValueError, "block1, .*, block8; got 'block9'"),
        (Plan(4, keep={"block1": 0.0}), ValueError, "above 0 and at most 1; got 0.0"),
        (Plan(4, keep={"block1": "half"}), ValueError, "got 'half'"),
        (Plan(4, keep=[0.5]), TypeError, "keep maps names"),
        (Plan(4, recompute=[True]), ValueError, "recompute has 1 flags, there are 2 stages"),
        (Plan(4, recompute=1), TypeError, "recompute is True or False.*; got 1"),
        (4, TypeError, "a plan is a Plan"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_with_the_allowed_range(net, plan, error, words):
    with pytest.raises(error, match=words):
        validate_plan(plan, net, 32)
    with pytest.raises(error, match=words):
        forecast(plan, net, IMAGE, 32)
    validate_plan(Plan(8, "naive", 32, {"block8": 1, "block1": 0.01}), net, 32)


def test_a_plan_takes_whole_numbers_of_numpy():
    validate_plan(Plan(np.int64(6), num_microbatches=np.int64(13)), deep_conv_net(), 64)


def test_pruning_removes_the_channels_with_the_smallest_norms_and_leaves_the_net_alone(net):
    before = net.block2.conv.weight.detach().clone()
    slim = pruned(net, {"block2": 0.25, "block8": 0.001})
    sizes = [len(block.conv.weight) for block in slim[:8]]
    assert sizes == [32, 8, 32, 32, 64, 64, 64, 1]
    norms = before.flatten(1).norm(dim=1)
    kept = norms.topk(8).indices.sort().values
    assert torch.equal(slim.block2.conv.weight, before[kept])
    assert torch.equal(net.block2.conv.weight, before)
    assert prunable_blocks(net) == BLOCKS
    assert pruned(net, {}).block1.conv.weight.data_ptr() != net.block1.conv.weight.data_ptr()


def test_work_is_counted_by_block(net):
    by_hand = [32 * 9 * 196, *3 * [32 * 32 * 9 * 196], 32 * 64 * 9 * 49, *3 * [64 * 64 * 9 * 49]]
    assert block_work(net, IMAGE) == [each / 1e6 for each in [*by_hand, 5760]]


def test_a_step_is_simulated_from_the_work_of_each_stage():
    work = [1.0, 2.0, 3.0]
    # the first block needs no gradient of its input
    step = simulate_plan(Plan(2, "gpipe", 4), work, 40)
    there, back = [30 + 2 * BLOCK_PRICE, 30 + BLOCK_PRICE], [50 + 2 * BLOCK_PRICE, 60 + BLOCK_PRICE]
    assert step.makespan == pytest.approx(sum(there) + sum(back) + 3 * (max(there) + max(back)))
    assert step.busy(0) == pytest.approx(4 * (there[0] + back[0]))
    ragged = simulate_plan(Plan(1, "naive", 3), [1.0, 1.0], 4)  # 2, 1 and 1 samples
    assert ragged.makespan == pytest.approx((2 + 1 + 1) * 5 + 3 * 4 * BLOCK_PRICE)


def test_what_autograd_keeps_is_counted_once_and_without_the_weights():
    layer = nn.Linear(3, 5)
    rows = torch.ones(2, 3)
    assert saved_bytes(layer, rows) == 2 * 3 * 4
    # the ReLU keeps its output, which is the next layer's input: one tensor, counted once
    assert saved_bytes(nn.Sequential(layer, nn.ReLU(), nn.Linear(5, 1)), rows) == 4 * (6 + 10)
    assert layer.weight.grad is None
    with torch.no_grad():
        assert saved_bytes(layer, rows) == 24


def test_there_are_bytes_of_two_stages_only(net):
    for cut in (0, len(net)):
        with pytest.raises(ValueError, match=f"can be cut after 1 to {len(net) - 1}; got {cut}"):
            bytes_per_sample(net, cut, IMAGE)
        with pytest.raises(ValueError, match=f"can be cut after 1 to {len(net) - 1}; got {cut}"):
            state_bytes(net, cut)


def test_a_parameter_has_a_weight_a_gradient_and_two_sums(net):
    layer = 4 * (9 * 64 * 64 + 64)  # of float32, in blocks 6 to 8
    head = 4 * (64 * 9 * 10 + 10)
    assert state_bytes(net, 6)[1] == 4 * (2 * layer + head)
    optimizer = torch.optim.Adam(parameters := [*pruned(net, {}).parameters()])
    for each in parameters:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    kept = [*parameters, *(each.grad for each in parameters)]
    kept += [s for state in optimizer.state.values() for s in state.values() if s.dim()]
    assert sum(state_bytes(net, 5)) == sum(each.nbytes for each in kept)


def test_gpipe_holds_the_mini_batch_and_1f1b_two_micro_batches(net):
    front = saved_bytes(net[:5], IMAGE)
    with torch.no_grad():
        back = saved_bytes(net[5:], net[:5](IMAGE))
    assert bytes_per_sample(net, 5, IMAGE) == [front, back]
    for count in (4, 8):
        size = 64 // count
        for schedule, held in {"gpipe": (64, 64), "1f1b": (2 * size, size)}.items():
            assert activations(Plan(5, schedule, count), net) == [held[0] * front, held[1] * back]
    assert activations(Plan(5, "naive", 8), net) == [8 * front, 8 * back]
    # 64 samples in 6: the largest has 11, and no more than all are ever held
    assert activations(Plan(5, "gpipe", 6), net) == [64 * front, 64 * back]


def test_a_device_that_recomputes_holds_inputs_and_works_longer(net):
    front, back = bytes_per_sample(net, 5, IMAGE)
    between = 4 * 64 * 7 * 7
    plan, again = Plan(5, "gpipe", 8), Plan(5, "gpipe", 8, recompute=[False, True])
    assert activations(again, net) == [64 * front, 8 * back + 7 * 8 * between]
    for_all = Plan(5, "1f1b", 8, recompute=True)
    assert activations(for_all, net) == [8 * front + 8 * IMAGE.nbytes, 8 * back]
    forwards = 64 * sum(block_work(net, IMAGE)[5:]) + 8 * 4 * BLOCK_PRICE
    plain, longer = (forecast(each, net, IMAGE, 64).timeline for each in (plan, again))
    assert longer.busy(1) - plain.busy(1) == pytest.approx(forwards)
    assert longer.busy(0) == pytest.approx(plain.busy(0))


def activations(plan, net):
    """What a plan for 64 samples holds beside the state and what a backward works with."""
    found = forecast(plan, net, IMAGE, 64)
    assert found.state_bytes == state_bytes(net, plan.cut)
    largest = -(-64 // plan.num_microbatches)
    with torch.no_grad():
        stages = (net[: plan.cut], IMAGE), (net[plan.cut :], net[: plan.cut](IMAGE))
    works = [2 * fresh_bytes(part) + largest * gradient_bytes(part, x) for part, x in stages]
    rest = zip(found.held_bytes, found.state_bytes, works, strict=True)
    return [held - state - work for held, state, work in rest]


def test_a_real_backward_holds_what_is_counted():
    """All but the library's copy, which `ByteCounter` cannot see."""
    half = {name: 0.5 for name in BLOCKS[:4]}
    stage, images = pruned(deep_conv_net(), half)[:6], torch.zeros(4, 1, 28, 28)
    stage(images).sum().backward()
    with ByteCounter([(each, each.grad) for each in stage.parameters()], images) as counter:
        before = counter.live
        for output in [stage(images) for _ in range(2)]:
            output.sum().backward()
    kept = 2 * saved_bytes(stage, IMAGE) - 2 * IMAGE.nbytes + gradient_bytes(stage, IMAGE)
    assert counter.peak - before == pytest.approx(4 * kept + fresh_bytes(stage), rel=0.01)


def test_from_the_second_micro_batch_on_a_fresh_gradient_stands_beside_the_kept_one(net):
    stage = pruned(net, {})[:6]
    weight, places = stage.block6.conv.weight, []
    weight.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    for _ in range(2):
        stage(IMAGE).sum().backward()
    assert places[1] != weight.grad.data_ptr()
    assert fresh_bytes(stage) == 4 * (64 * 64 * 9 + 64) == fresh_bytes(net[6:])
    one, two = (forecast(Plan(6, "1f1b", n), net, IMAGE, n).held_bytes for n in (1, 2))
    per_sample = bytes_per_sample(net, 6, IMAGE)
    assert two[0] - one[0] == fresh_bytes(stage) + per_sample[0]  # 1F1B keeps two of them
    assert two[1] - one[1] == fresh_bytes(stage)


def test_pruning_one_stage_moves_the_pace_to_the_other(net):
    keep = dict.fromkeys(BLOCKS[:4], 0.5)
    start, after, moved = (
        forecast(Plan(cut, keep=share), net, IMAGE, 128).timeline
        for cut, share in ((5, {}), (5, keep), (6, keep))
    )
    assert start.busy(0) / after.busy(0) > 2.2  # the stage
    assert 1.1 < start.makespan / after.makespan < 1.4  # the pipeline
    assert after.busy(1) == pytest.approx(start.busy(1))
    assert after.makespan / moved.makespan > 1.15  # the new cut
