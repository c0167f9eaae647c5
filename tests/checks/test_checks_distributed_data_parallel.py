"""The checks accept right answers however they are written and explain wrong ones."""

import itertools
import random

import pytest
import torch
from solutions import distributed_data_parallel as solutions

from mpcourse.checks import check_local_loss, check_shard


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    for check in (check_shard, check_local_loss):
        assert check(lambda *arguments: ...).state == "not attempted"
        assert check(...).state == "not attempted"
        assert "takes a function" in said(check(5))


def test_solutions_are_correct():
    assert check_shard(solutions.my_shard).state == "correct"
    assert check_local_loss(solutions.my_local_loss).state == "correct"


# Other right answers


def contiguous_shard(samples, rank, count, epoch):
    order = list(range(samples))
    random.Random(epoch).shuffle(order)
    return order[rank * samples // count : (rank + 1) * samples // count]


def weighted_mean(losses, total, count):
    return losses.mean() * len(losses) * count / total


def test_other_right_answers_are_correct():
    assert check_shard(contiguous_shard).state == "correct"
    assert check_local_loss(weighted_mean).state == "correct"


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
        (lambda n, r, c, e: None, "got None"),
        (lambda n, r, c, e: 1 / 0, "on rank 0 it raised"),
    ],
)
def test_wrong_shards_are_explained(attempt, words):
    assert words in said(check_shard(attempt))


# Losses


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda losses, total, count: losses.mean(), "A mean of means"),
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
    ],
)
def test_wrong_losses_are_explained(attempt, words):
    assert words in said(check_local_loss(attempt))
