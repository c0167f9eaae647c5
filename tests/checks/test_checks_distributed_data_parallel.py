"""The checks accept right answers however they are written and explain wrong ones."""

import itertools
import random

import numpy as np
import pytest
import torch
from solutions import distributed_data_parallel as solutions

from mpcourse.checks import check_hooks, check_local_loss, check_shard


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    for check in (check_hooks, check_shard, check_local_loss):
        assert check(lambda *arguments: ...).state == "not attempted"
        assert check(...).state == "not attempted"
        assert "takes a function" in said(check(5))


def test_solutions_are_correct():
    assert check_hooks(solutions.my_hooks).state == "correct"
    assert check_shard(solutions.my_shard).state == "correct"
    assert check_local_loss(solutions.my_local_loss).state == "correct"


# Other right answers


def contiguous_shard(samples, rank, count, epoch):
    order = list(range(samples))
    random.Random(epoch).shuffle(order)
    return order[rank * samples // count : (rank + 1) * samples // count]


def divided_first(losses, total, count):
    return (losses / total).sum() * count


def divides_first(module, all_reduce, count):
    for parameter in filter(lambda p: p.requires_grad, module.parameters()):

        def hook(arrived):
            arrived.grad.div_(count)
            all_reduce(arrived.grad)

        parameter.register_post_accumulate_grad_hook(hook)


def before_it_is_written(module, all_reduce, count):
    def hook(gradient):
        gradient = gradient.clone()
        all_reduce(gradient)
        return gradient / count

    return [p.register_hook(hook) for p in module.parameters() if p.requires_grad]


def test_other_right_answers_are_correct():
    assert check_hooks(divides_first).state == "correct"
    assert check_hooks(before_it_is_written).state == "correct"
    assert check_shard(lambda *a: torch.tensor(contiguous_shard(*a))).state == "correct"
    assert check_shard(contiguous_shard).state == "correct"
    assert check_local_loss(divided_first).state == "correct"


# Shards


def drops_the_rest(samples, rank, count, epoch):
    size = samples // count
    return solutions.my_shard(samples, 0, 1, epoch)[rank * size : (rank + 1) * size]


def pads(samples, rank, count, epoch):
    order = solutions.my_shard(samples, 0, 1, epoch)
    size = -(-samples // count)
    return (order * count)[: size * count][rank::count]


def own_order(samples, rank, count, epoch):
    generator = torch.Generator().manual_seed(epoch + rank)
    return torch.randperm(samples, generator=generator)[rank::count].tolist()


def the_rest_to_the_last(samples, rank, count, epoch):
    order, size = solutions.my_shard(samples, 0, 1, epoch), samples // count
    return order[rank * size : (rank + 1) * size if rank < count - 1 else None]


def global_seed(samples, rank, count, epoch):
    torch.manual_seed(epoch)
    return torch.randperm(samples)[rank::count].tolist()


def global_random(samples, rank, count, epoch):
    random.seed(epoch)
    order = list(range(samples))
    random.shuffle(order)
    return order[rank::count]


def global_numpy(samples, rank, count, epoch):
    np.random.seed(epoch)  # noqa: NPY002
    return np.random.permutation(samples)[rank::count]  # noqa: NPY002


def rotated(samples, rank, count, epoch):
    order = solutions.my_shard(samples, 0, 1, 0)
    start = epoch % samples
    return (order[start:] + order[:start])[rank::count]


def rotated_range(samples, rank, count, epoch):
    return [(number + epoch) % samples for number in range(samples)][rank::count]


def unseeded(samples, rank, count, epoch):
    return torch.randperm(samples)[rank::count].tolist()


def forgets_the_epoch(samples, rank, count, epoch):
    return solutions.my_shard(samples, rank, count, 0)


def orders_its_own_part(samples, rank, count, epoch):
    part = list(range(samples))[rank::count]
    random.Random(epoch).shuffle(part)
    return part


calls = itertools.count()


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (
            lambda n, r, c, e: solutions.my_shard(n, 0, 1, e),
            "Every rank has all of them",
        ),
        (drops_the_rest, "The remainder of the division"),
        (pads, "DistributedSampler does that"),
        (own_order, "shuffle in the same order"),
        (unseeded, "shuffle in the same order"),
        (the_rest_to_the_last, "they may differ by one at most"),
        (
            lambda n, r, c, e: [i + 1 for i in solutions.my_shard(n, r, c, e)],
            "numbered from 0",
        ),
        (forgets_the_epoch, "deals out the same samples"),
        (orders_its_own_part, "deals out the same samples"),
        (global_seed, "seeds torch's own generator"),
        (global_random, "seeds random's own generator"),
        (global_numpy, "seeds numpy's own generator"),
        (rotated, "who stood side by side still does"),
        (rotated_range, "who stood side by side still does"),
        (lambda n, r, c, e: None, "got None"),
        (lambda n, r, c, e: n // c, "got 4; expected a list of sample numbers"),
        (lambda n, r, c, e: [[1], [2]], "expected a list of sample numbers"),
        (lambda n, r, c, e: 1 / 0, "on rank 0 it raised"),
        (lambda n, r, c, e: solutions.my_shard(n, r, c, 5 // e), "epoch 0:\non rank 0 it raised"),
    ],
)
def test_wrong_shards_are_explained(attempt, words):
    assert words in said(check_shard(attempt))


# Hooks


def hook_with(change):
    def attempt(module, all_reduce, count):
        def hook(parameter):
            change(parameter, all_reduce, count)

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(hook)

    return attempt


def sums(parameter, all_reduce, count):
    all_reduce(parameter.grad)


def divides(parameter, all_reduce, count):
    parameter.grad /= count


def divides_twice(parameter, all_reduce, count):
    parameter.grad /= count
    all_reduce(parameter.grad)
    parameter.grad /= count


def sends_a_copy(parameter, all_reduce, count):
    all_reduce(parameter.grad.clone())


def at_once(module, all_reduce, count):
    for parameter in module.parameters():
        all_reduce(parameter.grad)


def late_binding(module, all_reduce, count):
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _: all_reduce(parameter.grad)  # noqa: B023
        )


def also_frozen(module, all_reduce, count):
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: divides_first_now(p, all_reduce, count)
        )


def divides_first_now(parameter, all_reduce, count):
    parameter.grad /= count
    all_reduce(parameter.grad)


def all_each_time(module, all_reduce, count):
    def hook(_):
        for parameter in module.parameters():
            if parameter.grad is not None:
                all_reduce(parameter.grad)

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


def only_the_first_step(module, all_reduce, count):
    handles = []

    def hook(parameter):
        divides_first_now(parameter, all_reduce, count)
        if len(handles) == 4 and parameter is next(module.parameters()):
            for handle in handles:
                handle.remove()

    for parameter in module.parameters():
        handles.append(parameter.register_post_accumulate_grad_hook(hook))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (hook_with(sums), "That is the sum: divide by the 2 ranks."),
        (hook_with(divides), "divided, but not summed"),
        (hook_with(divides_twice), "It was divided twice"),
        (hook_with(sends_a_copy), "own gradient: nothing was handed"),
        (lambda module, all_reduce, count: None, "No hook of this parameter"),
        (at_once, "register a function, do not call it"),
        (late_binding, "or is summed already; the hook's argument is the parameter"),
        (hook_with(lambda p, all_reduce, count: all_reduce(None)), "all_reduce got None: this"),
        (also_frozen, "A frozen parameter gets no gradient"),
        (all_each_time, "summed already"),
        (only_the_first_step, "after the backward of step 1"),
        (lambda module, all_reduce, count: 1 / 0, "ZeroDivisionError"),
        (lambda module: None, "TypeError"),
        (hook_with(lambda p, all_reduce, count: 1 / 0), "in the backward of step 0 it raised Zero"),
    ],
)
def test_wrong_hooks_are_explained(attempt, words):
    assert words in said(check_hooks(attempt))


# Losses


def unhooked_zero(losses, total, count):
    if len(losses) == 0:
        return torch.tensor(0.0, requires_grad=True)
    return losses.sum() * count / total


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda losses, total, count: losses.mean(), "A mean of means"),
        (
            lambda losses, total, count: losses.mean() * len(losses) * count / total,
            "rank 1 has 0 samples and got tensor nan: the mean of no samples",
        ),
        (lambda losses, total, count: losses.sum() / total, "DDP divides by the ranks"),
        (lambda losses, total, count: losses.sum(), "divide by the samples of all ranks"),
        (lambda losses, total, count: losses.sum() * count, "Neither divided"),
        (lambda losses, total, count: losses.sum() * count**2 / total, "once is enough"),
        (lambda losses, total, count: losses.sum() / count, "divides by the ranks already"),
        (lambda losses, total, count: losses.mean() * count / total, "begin with the sum"),
        (lambda losses, total, count: losses.mean() / total, "begin with the sum"),
        (lambda losses, total, count: losses.mean() * count, "once is enough"),
        (lambda losses, total, count: 3.9, "rank 0 got 3.9; expected a tensor of one number"),
        (lambda losses, total, count: losses.mean() * count / 2, "got, averaged"),
        (lambda losses, total, count: losses.sum().item(), "that backward() can use"),
        (lambda losses, total, count: losses, "that backward() can use"),
        (lambda losses, total, count: None, "that backward() can use"),
        (lambda losses, total: losses, "TypeError"),
        (unhooked_zero, "its backward calls no hook and the others wait"),
        (lambda losses, total, count: losses.sum() / total / count, "by the ranks twice"),
    ],
)
def test_wrong_losses_are_explained(attempt, words):
    assert words in said(check_local_loss(attempt))
