"""Exercises of page `distributed_data_parallel`: equal to one process, hooks, shards."""

import copy
import itertools
import random
from collections import Counter

import numpy as np
import torch
from torch import Tensor, nn

from mpcourse.exercises.exercise import Exercise, NotYet, during, same, short

# 1. Which number each rank calls backward() on, so that DDP's average is one process's gradient


def my_local_loss(losses, total, count):
    """Divide by the samples of all ranks, and undo DDP's division by the ranks.

    The gradient of one process is the sum over all samples divided by total. DDP averages, so it
    divides the sum over the ranks by count, which has to be multiplied back in. For equal shards
    this is the mean of the rank's losses.
    """
    return losses.sum() * count / total


NO_TENSOR = "expected a tensor of one number that backward() can use."
NO_HOOK = (
    "the weights are not in it, so its backward calls no hook and the others wait. "
    "Begin with losses.sum()."
)


def averaged_gradient(attempt, *sizes):
    """What DDP leaves on every rank: the mean of the ranks' gradients."""
    generator = torch.Generator().manual_seed(sum(sizes))
    weight = torch.tensor([[1.0], [-2.0]], dtype=torch.double, requires_grad=True)
    rows = torch.randn(sum(sizes), 2, generator=generator).double() + 1
    targets = torch.randn(sum(sizes), 1, generator=generator).double()
    gradients = []
    for rank, (x, y) in enumerate(zip(rows.split(sizes), targets.split(sizes), strict=True)):
        with during(f"on rank {rank}"):
            loss = attempt((x @ weight - y).square().flatten(), sum(sizes), len(sizes))
        got = f"rank {rank} got {short(loss)}"
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise NotYet(f"{got}; {NO_TENSOR}")
        if not loss.isfinite():
            words = "no number" if len(x) else "the mean of no samples"
            raise NotYet(f"rank {rank} has {len(x)} samples and got {short(loss)}: {words}.")
        weight.grad = None
        loss.sum().backward()
        if weight.grad is None:
            raise NotYet(f"{got}: {NO_HOOK}")
        gradients.append(weight.grad)
    return sum(gradients) / len(sizes)


check_local_loss = Exercise(
    my_local_loss,
    read_again='"Average or sum?"',
    # three ranks first: with two, a factor of count could be one of something else
    cases=[(4, 4, 4), (5, 3), (1, 4, 2), (6, 0), (7,)],
    given=lambda *sizes: f"{len(sizes)} rank(s) with {', '.join(map(str, sizes))} samples",
    play=averaged_gradient,
    compared=lambda outcome, expected: [
        f"expected the gradient {short(expected)}",
        f"got, averaged, {short(outcome)}",
    ],
    correct="The gradient of one process in {count} cases, even and uneven.",
    wrong={
        "A mean of means: a sample of a small shard counts for more. Weight by samples.": (
            lambda losses, n, count: losses.mean()
        ),
        "It is 1/count of it: DDP divides by the ranks, so multiply by them.": (
            lambda losses, n, count: losses.sum() / n
        ),
        "Divided by the ranks twice: DDP divides already, so multiply by them.": (
            lambda losses, n, count: losses.sum() / n / count
        ),
        "Summed, not averaged: divide by the samples of all ranks.": (
            lambda losses, n, count: losses.sum()
        ),
        "Neither divided by the samples nor left to DDP to average.": (
            lambda losses, n, count: losses.sum() * count
        ),
        "DDP divides by the ranks already: divide by all samples, total.": (
            lambda losses, n, count: losses.sum() / count
        ),
        "A mean has divided by this rank's samples already: begin with the sum.": [
            lambda losses, n, count: losses.mean() * count / n,
            lambda losses, n, count: losses.mean() / n,
        ],
        "Too large by the number of ranks: once is enough.": [
            lambda losses, n, count: losses.sum() * count**2 / n,
            lambda losses, n, count: losses.mean() * count,
        ],
        "Upside down: divide by the samples of all ranks, multiply by the ranks.": (
            lambda losses, n, count: losses.sum() * n / count
        ),
        "rank 1 has 0 samples and got tensor nan: the mean of no samples.": (
            lambda losses, n, count: losses.mean() * len(losses) * count / n
        ),
        NO_TENSOR: [
            lambda losses, n, count: losses.sum().item(),
            lambda losses, n, count: losses,
            lambda losses, n, count: None,
        ],
        NO_HOOK: lambda losses, n, count: (
            my_local_loss(losses, n, count)
            if len(losses)
            else torch.tensor(0.0, requires_grad=True)
        ),
        "got, averaged": lambda losses, n, count: losses.mean() * count / 2,
    },
    also_right=[lambda losses, n, count: (losses / n).sum() * count],
)

# 2. Hooks that average the gradients


def my_hooks(module, all_reduce, count):
    """A hook on every parameter that takes part: sum over the ranks, then divide.

    torch calls it with the parameter, right after its gradient has been written into `.grad`. So
    the last layers are averaged while the backward still works on the first.
    """

    def average(parameter):
        all_reduce(parameter.grad)
        parameter.grad /= count

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)


NOT_ARRIVED = "this gradient has not arrived yet; the hook's argument is the parameter whose does"
NO_GRADIENT_OF_OURS = (
    "all_reduce got what is no gradient of this rank, or is summed already; "
    "the hook's argument is the parameter whose gradient has arrived: that one, once"
)
CALLED_AT_ONCE = "No backward has run yet: register a function, do not call it."
FROZEN = "A frozen parameter gets no gradient, and takes no hook: leave it out."
RETURNS_NONE = "all_reduce adds up in place and returns None: read the parameter's .grad after it."


def hooked(attempt, count, frozen):
    """Two backwards on rank 0, with the hooks: each gradient, and whether it was handed over."""
    torch.default_generator.manual_seed(count)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    batches = torch.randn(2, count, 4, 2).double()
    net[0].weight.requires_grad_(not frozen)
    plain, ranks, handed = copy.deepcopy(net), [], Counter()

    def backward(module, rows):
        module.zero_grad()
        module(rows).square().mean().backward()
        return {n: p.grad for n, p in module.named_parameters() if p.requires_grad}

    def all_reduce(tensor):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"all_reduce got {short(tensor)}: {NOT_ARRIVED}")
        for name, mine in ranks[0].items() if ranks else ():
            for scale in (1.0, 1 / count):
                if tensor.shape == mine.shape and torch.allclose(tensor, mine * scale, rtol=1e-9):
                    with torch.no_grad():
                        tensor += sum(rank[name] for rank in ranks[1:]) * scale
                    handed[name] += 1
                    return
        raise ValueError(NO_GRADIENT_OF_OURS)

    with during("while the hooks were made"):
        attempt(net, all_reduce, count)
    steps = []
    for step, batch in enumerate(batches):
        handed.clear()
        ranks = [backward(plain, rows) for rows in batch]
        with during(f"in the backward of step {step}"):
            found = backward(net, batch[0])
        steps.append({name: (grad, name in handed) for name, grad in found.items()})
    return steps


def first_gradient_that_differs(outcome, expected):
    for step, (found, wanted) in enumerate(zip(outcome, expected, strict=True)):
        for name, right in wanted.items():
            if not same(found[name], right):
                lines = f"expected {short(right[0])}", f"got {short(found[name][0])}"
                return [f"after the backward of step {step}:", f"{name}: {lines[0]}", lines[1]]
    return []


def hooks_with(change, takes_part=lambda parameter: parameter.requires_grad):
    """Hooks that do `change(parameter, all_reduce, count)`."""

    def attempt(module, all_reduce, count):
        def hook(parameter):
            change(parameter, all_reduce, count)

        for parameter in filter(takes_part, module.parameters()):
            parameter.register_post_accumulate_grad_hook(hook)

    return attempt


def reduced(parameter, all_reduce, count):
    parameter.grad /= count
    all_reduce(parameter.grad)


def at_once(module, all_reduce, count):
    for parameter in module.parameters():
        all_reduce(parameter.grad)


def late_binding(module, all_reduce, count):
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _: all_reduce(parameter.grad)  # noqa: B023
        )


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
        reduced(parameter, all_reduce, count)
        if len(handles) == 4 and parameter is next(module.parameters()):
            for handle in handles:
                handle.remove()

    for parameter in module.parameters():
        handles.append(parameter.register_post_accumulate_grad_hook(hook))


def before_it_is_written(module, all_reduce, count):
    def hook(gradient):
        gradient = gradient.clone()
        all_reduce(gradient)
        return gradient / count

    return [p.register_hook(hook) for p in module.parameters() if p.requires_grad]


check_hooks = Exercise(
    my_hooks,
    read_again='"Who averages, and when?"',
    cases=[(2, False), (3, False), (3, True)],
    given=lambda count, frozen: f"{count} ranks{', the first weight frozen' if frozen else ''}",
    play=hooked,
    compared=first_gradient_that_differs,
    correct="Averages after every backward, with 2 and 3 ranks, and with a frozen weight.",
    wrong={
        "That is the sum: divide by the {0} ranks, and keep it in the parameter's .grad.": [
            hooks_with(lambda p, all_reduce, count: all_reduce(p.grad)),
            hooks_with(lambda p, all_reduce, count: (all_reduce(p.grad), p.grad / count)),
        ],
        "It was divided, but not summed over the ranks.": (
            hooks_with(lambda p, all_reduce, count: p.grad.div_(count))
        ),
        "It was divided twice.": hooks_with(
            lambda p, all_reduce, count: (reduced(p, all_reduce, count), p.grad.div_(count))
        ),
        "Divided by 2 whatever the ranks: count says how many there are.": (
            hooks_with(lambda p, all_reduce, count: (all_reduce(p.grad), p.grad.div_(2)))
        ),
        "That is this rank's own gradient: what all_reduce got was a copy of it.": (
            hooks_with(lambda p, all_reduce, count: all_reduce(p.grad.clone()))
        ),
        "No hook of this parameter has changed its gradient.": (
            lambda module, all_reduce, count: None
        ),
        "after the backward of step 1:": only_the_first_step,
        CALLED_AT_ONCE: at_once,
        NO_GRADIENT_OF_OURS: [late_binding, all_each_time],
        f"all_reduce got None: {NOT_ARRIVED}": (
            hooks_with(lambda p, all_reduce, count: all_reduce(None))
        ),
        RETURNS_NONE: hooks_with(
            lambda p, all_reduce, count: setattr(p, "grad", all_reduce(p.grad) / count)
        ),
        FROZEN: hooks_with(reduced, takes_part=lambda parameter: True),
        "in the backward of step 0": (hooks_with(lambda p, all_reduce, count: 1 / 0)),
    },
    errors={
        "require.* grad.*, while the hooks": FROZEN,
        "(all_reduce got|NoneType).*, while the hooks": CALLED_AT_ONCE,
        "NoneType.*, in the backward": RETURNS_NONE,
    },
    also_right=[hooks_with(reduced), before_it_is_written],
)

# 3. Shards of a data set


def my_shard(samples, rank, count, epoch):
    """Every rank shuffles all samples in the same order and takes every count-th.

    The order comes from the epoch's number alone: with the rank in it, each rank would shuffle in
    an order of its own, and samples would be lost and doubled. A generator of its own leaves
    torch's alone. A stride needs no division, so no remainder is lost.
    """
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(samples, generator=generator)[rank::count].tolist()


NO_LIST = "expected a list of sample numbers."
ALL_OF_THEM = "Every rank has all of them: each is trained on once per rank."
FROM_ZERO = "they are numbered from 0."
OWN_ORDERS = "all ranks have to shuffle in the same order."
PADDED = "DistributedSampler does that to make lists equal. Here the lists may differ by one."
REMAINDER = "The remainder of the division is somebody's too."
UNEVEN = "they may differ by one at most."
SAME_SAMPLES = "Every epoch deals out the same samples: shuffle all of them, by the epoch's number."
TWO_ORDERS = "Epoch 0, asked for twice, has two orders: the epoch's number has to decide."
MOVED_ON = (
    "From epoch to epoch the order is only moved on: who stood side by side still does. "
    "Draw a new order for every epoch."
)
SEEDS = "It seeds {}'s own generator: other random numbers then repeat, too."


def dealt(attempt, samples, count, epochs):
    """Deal out the samples in some epochs; right answers differ, so everything is said here."""
    seeded = set()

    def deal(rank, epoch):
        torch.manual_seed(rank), random.seed(rank)  # as in processes of their own
        before = generators()
        with during(f"in epoch {epoch} on rank {rank}"):
            part = attempt(samples, rank, count, epoch)
        try:
            part = [int(number) for number in part]
        except (TypeError, ValueError):
            raise NotYet(f"in epoch {epoch} rank {rank} got {short(part)}; {NO_LIST}") from None
        seeded.update(name for name, state in generators().items() if state != before[name])
        return part

    parts = {epoch: [deal(rank, epoch) for rank in range(count)] for epoch in epochs}
    for each in parts.values():
        if words := wrong_parts(each, samples):
            raise NotYet(*[f"rank {r} got {short(part)}" for r, part in enumerate(each)], words)
    if len(epochs) > 1:
        first, second, *_ = (each[1] for each in parts.values())
        if sorted(first) == sorted(second):
            lines = f"epoch 0: rank 1 of 3 got {short(first)}", f"epoch 1: {short(second)}"
            raise NotYet(*lines, SAME_SAMPLES)
        if first != deal(1, epochs[0]):
            raise NotYet(TWO_ORDERS)
        if any(neighbours_stay(parts[epochs[0]], parts[epoch]) for epoch in epochs[1:]):
            raise NotYet(MOVED_ON)
    if seeded:
        raise NotYet(SEEDS.format(*seeded), "Make a generator of its own.")


def wrong_parts(parts, samples):
    seen = Counter(number for part in parts for number in part)
    strange, lost = sorted(set(seen) - set(range(samples))), sorted(set(range(samples)) - set(seen))
    doubled = sorted(number for number, times in seen.items() if times > 1)
    sizes = [len(part) for part in parts]
    if len(parts) > 1 and all(sorted(part) == list(range(samples)) for part in parts):
        return ALL_OF_THEM
    if strange:
        return f"There is no sample {strange[0]}: {FROM_ZERO}"
    if doubled and lost:
        return f"{len(lost)} samples are lost and {len(doubled)} doubled: {OWN_ORDERS}"
    if doubled:
        return f"Doubled: {short(doubled)}. {PADDED}"
    if lost:
        return f"Lost: {short(lost)}. {REMAINDER}"
    return f"The sizes are {sizes}: {UNEVEN}" if max(sizes) - min(sizes) > 1 else ""


def generators():
    """The state of each generator that belongs to everybody."""
    return {
        "torch": str(torch.get_rng_state().tolist()),
        "random": str(random.getstate()),
        "numpy": str([np.asarray(part).tolist() for part in np.random.get_state()]),  # noqa: NPY002
    }


def neighbours_stay(one, other):
    """Whether most samples are followed by the same sample in two epochs."""
    pairs = [
        {pair for part in parts for pair in itertools.pairwise(part)} for parts in (one, other)
    ]
    return 2 * len(pairs[0] & pairs[1]) > len(pairs[0])


def order_of(samples, epoch):
    return my_shard(samples, 0, 1, epoch)


def pads(samples, rank, count, epoch):
    size = -(-samples // count)
    return (order_of(samples, epoch) * count)[: size * count][rank::count]


times_called = Counter()


def another_order_each_time(samples, rank, count, epoch):
    times_called[samples, rank] += 1
    return my_shard(samples, rank, count, 100 * epoch + times_called[samples, rank])


check_shard = Exercise(
    my_shard,
    read_again='"Without the sampler, is the loss wrong?"',
    cases=[
        (8, 2, [5]),
        (10, 4, [5]),
        (3, 4, [5]),
        (101, 3, [5]),
        (64, 1, [5]),
        (101, 3, [0, 1, 2]),
    ],
    given=lambda samples, count, epochs: (
        f"{samples} samples, {count} rank(s), epoch{'s' * (len(epochs) > 1)} "
        + ", ".join(map(str, epochs))
    ),
    play=dealt,
    same=None,
    correct="Nothing lost, nothing doubled, in {count} cases; every epoch has its own order.",
    wrong={
        ALL_OF_THEM: lambda n, r, c, e: order_of(n, e),
        REMAINDER: lambda n, r, c, e: order_of(n, e)[r * (n // c) : (r + 1) * (n // c)],
        PADDED: pads,
        OWN_ORDERS: [
            lambda n, r, c, e: order_of(n, e + r)[r::c],
            lambda n, r, c, e: torch.randperm(n)[r::c].tolist(),
        ],
        UNEVEN: lambda n, r, c, e: order_of(n, e)[
            r * (n // c) : (r + 1) * (n // c) if r < c - 1 else None
        ],
        FROM_ZERO: lambda n, r, c, e: [number + 1 for number in my_shard(n, r, c, e)],
        SAME_SAMPLES: [
            lambda n, r, c, e: my_shard(n, r, c, 0),
            lambda n, r, c, e: random.Random(e).sample(range(r, n, c), len(range(r, n, c))),
        ],
        TWO_ORDERS: another_order_each_time,
        MOVED_ON: [
            lambda n, r, c, e: np.roll(order_of(n, 0), e)[r::c],
            lambda n, r, c, e: [(number + e) % n for number in range(n)][r::c],
        ],
        SEEDS.format("torch"): lambda n, r, c, e: (
            torch.manual_seed(e) and torch.randperm(n)[r::c].tolist()
        ),
        SEEDS.format("random"): lambda n, r, c, e: (
            random.seed(e) or random.sample(range(n), n)[r::c]
        ),
        SEEDS.format("numpy"): lambda n, r, c, e: (
            np.random.seed(e) or np.random.permutation(n)[r::c]  # noqa: NPY002
        ),
        NO_LIST: [lambda n, r, c, e: None, lambda n, r, c, e: n // c, lambda *_: [[1], [2]]],
        "in epoch 0 on rank 0": lambda n, r, c, e: my_shard(n, r, c, 5 // e),
    },
    also_right=[lambda n, r, c, e: order_of(n, e)[r * n // c : (r + 1) * n // c]],
)
