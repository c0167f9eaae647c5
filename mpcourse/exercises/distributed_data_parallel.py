"""Exercises of page `distributed_data_parallel`: local loss, hooks, buckets, a step, shards."""

import contextlib
import copy
import inspect
import itertools
import random
from collections import Counter

import numpy as np
import torch
from torch import Tensor, nn

from mpcourse.exercises.exercise import (
    Exercise,
    NotAttempted,
    NotYet,
    during,
    numbers,
    same,
    short,
)

# 1. Which number each rank calls backward() on, so that DDP's average is one process's gradient


def my_local_loss(losses, total, count):
    """Divide by the samples of all ranks, and undo DDP's division by the ranks.

    The gradient of one process is the sum over all samples divided by total. DDP averages, so it
    divides the sum over the ranks by count, which has to be multiplied back in. For equal shards
    this is the mean of the rank's losses.
    """
    return losses.sum() * count / total


NO_TENSOR = (
    "expected a tensor of one number that backward() can use: begin with losses.sum(), "
    "which is one for an empty shard, too."
)
BACKWARD = "backward() has run already: return the number, and the training loop calls it."
WHOLE_NUMBERS = "// divides into whole numbers, and has no derivative: write a single slash."
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
            "sum() * count / total => mean()"
        ),
        "It is 1/count of it: DDP divides by the ranks, so multiply by them.": "* count => ",
        "Divided by the ranks twice: DDP divides already, so multiply by them.": (
            "* count => / count"
        ),
        "Summed, not averaged: divide by the samples of all ranks.": "* count / total => ",
        "Neither divided by the samples nor left to DDP to average.": "/ total => ",
        "DDP divides by the ranks already: divide by all samples, total.": (
            "* count / total => / count"
        ),
        "A mean has divided by this rank's samples already: begin with the sum.": [
            "sum => mean",
            "sum() * count => mean()",
        ],
        "Too large by the number of ranks: once is enough.": [
            "* count => * count**2",
            "sum() * count / total => mean() * count",
        ],
        "Upside down: divide by the samples of all ranks, multiply by the ranks.": (
            "* count / total => * total / count"
        ),
        "count // total is a whole number, 0 here: write a single slash.": (
            "count / total => (count // total)"
        ),
        WHOLE_NUMBERS: "/ => //",
        "total // count drops the remainder: write a single slash.": (
            "* count / total => / (total // count)"
        ),
        "The sum has this rank's samples in it: weight by count, not by len(losses).": (
            "* count => * len(losses)"
        ),
        BACKWARD: "return => losses.sum().backward(); return",
        "rank 1 has 0 samples and got tensor nan: the mean of no samples.": (
            "sum() => mean() * len(losses)"
        ),
        NO_TENSOR: [
            "() * count / total => ().item()",
            ".sum() * count / total => ",
            "return losses => losses",
            "losses.sum() => sum(losses)",
        ],
        NO_HOOK: "return => return torch.tensor(0.0, requires_grad=True) if not len(losses) else",
        "got, averaged": "sum() * count / total => mean() * count / 2",
    },
    errors={".*floor_divide": WHOLE_NUMBERS, "a second time": BACKWARD},
    also_right=["losses.sum() * count / total => (losses / total).sum() * count"],
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
    "the hook's argument is a parameter whose .grad has arrived: that one, once"
)
CALLED_AT_ONCE = "No backward has run yet: register a function, do not call it."
FROZEN = "A frozen parameter gets no gradient, and takes no hook: leave it out."
RETURNS_NONE = "all_reduce adds up in place and returns None: read the parameter's .grad after it."
A_TUPLE = "The hook returned a tuple: a hook returns nothing, so write a function of two lines."
RETURNED = "A hook returns nothing: put the average into the parameter's .grad."
WEIGHTS = "Step 0 has changed the weights: a hook changes the parameter's .grad alone."
TOO_EARLY = "register_hook calls before .grad is written: it is register_post_accumulate_grad_hook."
LEFT_OVER = "The hooks are there, but the line `return ...` is still at the end: delete it."
UNWAITED = "Before wait() returns, the tensor holds this rank's numbers: wait for each message."
SUMS_ALONE = "This all_reduce adds up, and offers no other op: leave it out, and divide by count."


def sums_of(ranks):
    """Each number of rank 0's gradients -> the gradient it is of, and its sum over the ranks.

    As it is, and divided by the ranks beforehand, which is as good.
    """
    found = {}
    for name, mine in ranks[0].items() if ranks else ():
        total = sum(rank[name] for rank in ranks)
        for scale in (1, len(ranks)):
            pairs = zip((mine / scale).flatten(), (total / scale).flatten(), strict=True)
            found |= {f"{one:.9e}": (name, both.item()) for one, both in pairs}
    return found


class Message:
    """What `all_reduce(tensor, async_op=True)` returns: the sum is there after `wait`."""

    def __init__(self, tensor, op, sums, world):
        if op not in (None, torch.distributed.ReduceOp.SUM):
            raise NotYet(SUMS_ALONE)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"all_reduce got {short(tensor)}: {NOT_ARRIVED}")
        found = [sums.get(f"{number:.9e}") for number in tensor.flatten().tolist()]
        if None in found:
            raise ValueError(NO_GRADIENT_OF_OURS)
        self.names = Counter(name for name, _ in found)
        self.sum = torch.tensor([total for _, total in found]).view_as(tensor)
        self.tensor, self.at_first = tensor, tensor.detach().clone()
        self.world, self.waited = world, False

    def wait(self):
        """Let the sum arrive, unless the backward would stand still for it."""
        if self.world["in the backward"]:
            raise NotYet(WAITS_IN_A_HOOK)
        if self.waited:
            raise NotYet(TWICE)
        if not torch.equal(self.tensor, self.at_first):
            raise NotYet(TOUCHED)
        self.waited = True
        with torch.no_grad():
            self.tensor.copy_(self.sum)


def two_steps(*features, count, frozen=False):
    """A net, the same net untouched, and of two steps the batches of all ranks."""
    torch.default_generator.manual_seed(count)
    layers = [[nn.Linear(*pair), nn.Tanh()] for pair in itertools.pairwise(features)]
    net = nn.Sequential(*itertools.chain(*layers)).double()
    net[0].weight.requires_grad_(not frozen)
    return net, copy.deepcopy(net), torch.randn(2, count, 4, features[0]).double()


def gradients(module, rows):
    """Those of a backward, by name."""
    module.zero_grad()
    module(rows).square().mean().backward()
    return {n: p.grad for n, p in module.named_parameters() if p.requires_grad}


def made(attempt, net, *others):
    """What the attempt returns; `...` beside hooks is a line that was left over."""
    with during("while the hooks were made"):
        result = inspect.unwrap(attempt)(net, *others)
    if result is ...:
        hooks = [p for p in net.parameters() if p._post_accumulate_grad_hooks]
        raise NotYet(LEFT_OVER) if hooks else NotAttempted
    return result


def hooked(attempt, count, frozen):
    """Two backwards on rank 0, with the hooks: each gradient, and whether it was handed over."""
    net, plain, batches = two_steps(2, 3, 1, count=count, frozen=frozen)
    sums, sent, steps = {}, [], []

    def all_reduce(tensor, op=None, group=None, async_op=False):
        sent.append(Message(tensor, op, sums, {"in the backward": False}))  # so it may wait
        return sent[-1] if async_op else sent[-1].wait()

    made(attempt, net, all_reduce, count)
    early = ", from register_hook" if any(p._backward_hooks for p in net.parameters()) else ""
    for step, batch in enumerate(batches):
        sent.clear()
        sums |= sums_of([gradients(plain, rows) for rows in batch])
        with during(f"in the backward of step {step}{early}"):
            found = gradients(net, batch[0])
        if not all(message.waited for message in sent):
            raise NotYet(UNWAITED)
        handed = {name for message in sent for name in message.names}
        steps.append({name: (grad, name in handed) for name, grad in found.items()})
    return steps


def first_gradient_that_differs(outcome, expected):
    for step, (found, wanted) in enumerate(zip(outcome, expected, strict=True)):
        for name, right in wanted.items():
            if not same(found[name], right):
                lines = f"expected {short(right[0])}", f"got {short(found[name][0])}"
                return [f"after the backward of step {step}:", f"{name}: {lines[0]}", lines[1]]
    return []


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
            "parameter.grad /= count => ",
            "/= => /",
        ],
        "It was divided, but not summed over the ranks.": [
            "all_reduce(parameter.grad) => ",
            "(parameter.grad) => (parameter.grad / count)",
        ],
        "It was divided twice.": "/= count => /= count**2",
        "Divided by 2 whatever the ranks: count says how many there are.": "/= count => /= 2",
        "That is this rank's own gradient: what all_reduce got was a copy of it.": (
            "(parameter.grad) => (parameter.grad.clone())",
            "parameter.grad /= count => ",
        ),
        UNWAITED: "(parameter.grad) => (parameter.grad, async_op=True)",
        SUMS_ALONE: "(parameter.grad) => (parameter.grad, op=torch.distributed.ReduceOp.AVG)",
        "No hook of this parameter has changed its gradient.": [
            lambda *_: None,
            "if parameter.requires_grad => if parameter.requires_grad and parameter.ndim > 1",
            "module.parameters() => module[0].parameters()",
        ],
        "Only the first backward was averaged: the hooks have to stay.": (
            "average(parameter): => average(parameter, seen=set()):",
            "all_reduce( => if parameter in seen: return\n        seen.add(parameter); all_reduce(",
        ),
        CALLED_AT_ONCE: "hook(average) => hook(average(parameter))",
        NO_GRADIENT_OF_OURS: [
            "average(parameter): => average(_):",
            "all_reduce(parameter.grad) => "
            "[all_reduce(p.grad) for p in module.parameters() if p.grad is not None]",
            "(parameter.grad) => (parameter)",
        ],
        f"all_reduce got None: {NOT_ARRIVED}": "(parameter.grad) => (None)",
        RETURNS_NONE: "all_reduce( => parameter.grad = all_reduce(",
        RETURNED: "parameter.grad /= count => return parameter.grad / count",
        WEIGHTS: "parameter.grad /= => parameter /=",
        A_TUPLE: "hook(average) => hook(lambda p: (all_reduce(p.grad), p.grad.div_(count)))",
        LEFT_OVER: "hook(average) => hook(average)\n    return ...",
        TOO_EARLY: "_post_accumulate_grad => ",
        FROZEN: "parameter.requires_grad: => True:",
        "in the backward of step 0": "/= count => /= 1 / 0",
    },
    errors={
        "require.* grad.*, while the hooks": FROZEN,
        "(all_reduce got|NoneType).*, while the hooks": CALLED_AT_ONCE,
        ".*returned 'tuple'": A_TUPLE,
        "hooks should return None": RETURNED,
        "all_reduce got.* of step 1": WEIGHTS,
        "(all_reduce got|NoneType).*register_hook": TOO_EARLY,
        "NoneType.*, in the backward": RETURNS_NONE,
    },
    also_right=[
        ("(parameter.grad) => (parameter.grad.div_(count))", "parameter.grad /= count => "),
        "(parameter.grad) => (parameter.grad, async_op=True).wait()",
        before_it_is_written,
    ],
)

# 3. Gradients in buckets, sent beside the backward


def my_buckets(module, all_reduce, count, size):
    """The hook fills a bucket and sends it when it is full; `finish` is the only one that waits.

    A message needs one tensor, so the gradients are laid one after the other, and cut apart again
    when their sum has arrived. The list of the bucket is copied before it is emptied: who waits has
    to know whose gradients travelled.
    """
    bucket, sent = [], []

    def send():
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
        sent.append((bucket.copy(), flat, all_reduce(flat, async_op=True)))
        bucket.clear()

    def on_gradient(parameter):
        bucket.append(parameter)
        if len(bucket) == size:
            send()

    def finish():
        if bucket:
            send()
        for parameters, flat, message in sent:
            message.wait()
            pieces = flat.split([parameter.numel() for parameter in parameters])
            for parameter, piece in zip(parameters, pieces, strict=True):
                parameter.grad = piece.view_as(parameter) / count
        sent.clear()

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(on_gradient)
    return finish


BLOCKS = "Without async_op=True all_reduce waits for the sum, and the backward with it."
WAITS_IN_A_HOOK = "A hook waited, and the backward stood still meanwhile: wait in finish alone."
NO_FINISH = "expected the function finish, which is returned and not called."
LATE = "Send a full bucket in the hook that fills it, not when the backward is over."
HELD_BACK = (
    "A message left later than it could: fill each bucket in the order in which gradients arrive, "
    "the last layers first, and send it at once when it is full."
)
NOT_FULL = "A bucket is sent when it holds `size` gradients, and is empty again after that."
NOT_WRITTEN = (
    "A .grad is not there yet: read that of the hook's own argument, "
    "and register with register_post_accumulate_grad_hook."
)
ADDED = "That is the average, added to this rank's own gradient: put it in its place."
PIECES = "Cut with tensor.split(sizes), each size a parameter.numel(), then view_as the parameter."
THE_TENSOR = "The sum arrives in the tensor that all_reduce got: keep it beside the message."
ONE_TENSOR = "all_reduce takes one tensor: torch.cat of the flattened gradients."
NOTHING_LEFT = "The last bucket was full, and has left: then finish has nothing to send."
OWN_NAME = "A name that a function assigns to is its own: say nonlocal, or empty the list in place."
REST = "The last bucket is not full, and nobody sent it: that is the first task of finish."
TWICE = "A message was waited for in the step before: finish has to empty its list."
TOUCHED = "The tensor was changed between all_reduce and wait: it belongs to the message meanwhile."
NOT_BACK = "The sums arrived, but are not in .grad: cut the tensor apart and put each piece back. "
SUMMED = "That is the sum over the ranks: divide by count."
DIVIDED_TWICE = "It was divided by the ranks twice."
BY_TWO = "Divided by 2 whatever the ranks: count says how many there are."
ORDER = "Cut the tensor apart in the order in which its gradients were laid together."
EMPTIED = "Is the list that you kept the one that you emptied? Then keep a copy."


def bucketed(attempt, count, size, frozen):
    """Of two steps on rank 0 the messages, which left when, who was waited for, the gradients.

    What goes wrong on the way is said here.
    """
    steps = []
    net, plain, batches = two_steps(2, 3, 2, 1, count=count, frozen=frozen)
    sums, world, sent, there = {}, {"in the backward": False}, [], []

    def all_reduce(tensor, op=None, group=None, async_op=False):
        if not async_op:
            raise NotYet(BLOCKS)
        if not isinstance(tensor, Tensor):
            raise NotYet(f"all_reduce got {short(tensor)}. {ONE_TENSOR}")
        sent.append(Message(tensor, op, sums, world))
        there.append(sum(parameter.grad is not None for parameter in net.parameters()))
        return sent[-1]

    finish = made(attempt, net, all_reduce, count, size)
    if not callable(finish):
        raise NotYet(f"got {short(finish)} back; {NO_FINISH}")
    for step, batch in enumerate(batches):
        sent.clear(), there.clear()
        ranks = [gradients(plain, rows) for rows in batch]
        sums |= sums_of(ranks)
        world["in the backward"] = True
        with during(f"in the backward of step {step}"):
            gradients(net, batch[0])
        world["in the backward"] = False
        early = there.copy()
        with during(f"in finish, step {step}"):
            finish()
        held = [len(message.names) for message in sent]
        waited = [message.waited for message in sent]
        grads = {name: parameter.grad for name, parameter in net.named_parameters()}
        steps.append((held, early, waited, copy.deepcopy(grads)))
        if not all(waited) or sum(held) < len(ranks[0]):  # the next step would stumble over it
            break
    return steps


def in_full_buckets(outcome, count, size, frozen):
    """All that can be wrong is said here, in the order in which it happens."""
    _, plain, batches = two_steps(2, 3, 2, 1, count=count, frozen=frozen)
    for step, batch in enumerate(batches):
        held, early, waited, now = outcome[step]
        ranks = [gradients(plain, rows) for rows in batch]
        full, rest = divmod(len(ranks[0]), size)
        where = f"in step {step}, with {len(ranks[0])} gradients:"
        for wrong, words in (
            (full and not early, LATE),
            (held[:full] != [size] * full, NOT_FULL),
            (len(early) < full, LATE),  # each by the hook of the gradient after it
            (any(n > size * i for i, n in enumerate(early[:full], 1)), HELD_BACK),
            (held[full:] != [rest] * bool(rest), REST),
            (not all(waited), UNWAITED),
        ):
            if wrong:
                when = f"when {early} were there" if early else "none of them"
                seen = f"messages of {held} gradients, sent in the backward: {when}."
                raise NotYet(where, seen, words)
        for name, mine in ranks[0].items():
            total = sum(rank[name] for rank in ranks)
            if not same(now[name], total / count):
                known = {SUMMED: total, DIVIDED_TWICE: total / count**2, BY_TWO: total / 2}
                known |= {NOT_BACK + EMPTIED: mine, NOT_BACK: mine / count}
                known[ADDED] = mine + total / count
                words = [words for words, value in known.items() if same(now[name], value)]
                lines = f"{name}: expected {short(total / count)}", f"got {short(now[name])}"
                raise NotYet(where, *lines, [*words, NOT_BACK if now[name] is None else ORDER][0])


check_buckets = Exercise(
    my_buckets,
    read_again='"When can the first gradient leave?"',
    cases=[(2, 2, False), (3, 4, False), (3, 1, False), (2, 9, False), (3, 2, True)],
    given=lambda count, size, frozen: (
        f"{count} ranks, {size} to a bucket{', the first weight frozen' if frozen else ''}"
    ),
    play=bucketed,
    look=in_full_buckets,
    correct="Full buckets leave in the backward, finish alone waits, and {count} worlds agree.",
    wrong={
        BLOCKS: ", async_op=True => ",
        WAITS_IN_A_HOOK: "async_op=True) => async_op=True).wait()",
        LATE: [
            (
                "parameter.register_post_accumulate_grad_hook(on_gradient) => pass",
                "finish(): => finish():\n        [*map(on_gradient, module.parameters())]",
            ),
            "bucket.append(parameter)\n        if len(bucket) == size:\n            send() => "
            "if len(bucket) == size: send()\n        bucket.append(parameter)",
        ],
        HELD_BACK: (
            "        if len(bucket) == size:\n            send() => "
            "        if len(bucket) == sum(p.requires_grad for p in module.parameters()):\n"
            "            full = bucket.copy()\n"
            "            while full:\n"
            "                bucket[:], full = full[:size], full[size:]\n"
            "                send()"
        ),
        SUMS_ALONE: "async_op=True => torch.distributed.ReduceOp.AVG, async_op=True",
        NO_FINISH: ["return finish => ", "return finish => return finish()"],
        NOT_FULL: ["== size => > size", "len(bucket) == size => True", "bucket.clear() => "],
        ONE_TENSOR: ["torch.cat( => list(", ".flatten() => ", "torch.cat => torch.stack"],
        REST: "if bucket: => if False:",
        NOTHING_LEFT: "if bucket: => if True:",
        OWN_NAME: "bucket.clear() => bucket = []",
        LEFT_OVER: "return finish => return ...",
        UNWAITED: "message.wait() => ",
        TWICE: "sent.clear() => ",
        TOUCHED: (
            "(parameter) / count => (parameter)",
            "bucket.clear() => bucket.clear(); flat /= count",
        ),
        NOT_BACK: [
            "parameter.grad = piece => piece",
            "parameter.grad = piece => parameter.grad = None; piece",
        ],
        ADDED: "parameter.grad = piece => parameter.grad += piece",
        PIECES: [
            ".view_as(parameter) => ",
            "flat.split([parameter.numel() for parameter in parameters]) => "
            "flat.chunk(len(parameters))",
            "[parameter.numel() => [len(parameter)",
        ],
        THE_TENSOR: [
            "            message.wait() =>             flat = message.wait()",
            "            message.wait() =>             message.wait(); flat = message",
        ],
        NOT_WRITTEN: "_post_accumulate_grad => ",
        EMPTIED: [
            "bucket.copy() => bucket",
            ("bucket.copy() => bucket", "flat.split( => parameters and flat.split("),
        ],
        SUMMED: "(parameter) / count => (parameter)",
        DIVIDED_TWICE: "/ count => / count**2",
        BY_TWO: "/ count => / 2",
        ORDER: "bucket.copy() => bucket[::-1]",
        FROZEN: "parameter.requires_grad: => True:",
        "in the backward of step 0": "flat = => flat = 1 / 0 +",
    },
    errors={
        "require.* grad.*, while the hooks": FROZEN,
        r"split_sizes=\[\d|gradient of size|is invalid for input|must match the size": PIECES,
        "all_reduce got.* of step 1": WEIGHTS,
        "split_with_sizes": EMPTIED,
        "'Message' object|NoneType.*(split|subscript)": THE_TENSOR,
        "NoneType.*, in the backward": NOT_WRITTEN,
        "same number of dimensions|stack expects|Sizes of tensors": ONE_TENSOR,
        "non-empty.*, in finish": NOTHING_LEFT,
        "UnboundLocalError": OWN_NAME,
    },
    also_right=[
        (
            "torch.cat => torch.hstack",
            "= piece.view_as(parameter) / count => .copy_(piece.view_as(parameter) / count)",
        ),
        ("in bucket]) => in bucket]) / count", "(parameter) / count => (parameter)"),
    ],
)

# 4. One step of the optimizer in several micro-batches


def my_ddp_step(model, optimizer, micro_batches):
    """Only the last backward sends, and it sends what all of them have added up in `.grad`.

    The forward decides whether its backward will send, so both stand inside `no_sync`. Each loss is
    a sum divided by all samples of the step: then micro-batches may differ in length.
    """
    total = sum(len(labels) for _, labels in micro_batches)

    def backward(images, labels):
        loss = nn.functional.cross_entropy(model(images), labels, reduction="sum")
        (loss / total).backward()
        return loss.item()

    *others, last = micro_batches
    with model.no_sync():
        summed = sum(backward(*each) for each in others)
    summed += backward(*last)
    optimizer.step()
    optimizer.zero_grad()
    return summed, total


TOO_OFTEN = "One all-reduce is enough: all micro-batches but the last belong inside no_sync."
NEVER_SENT = "Nothing was sent: the last one goes through model, its forward outside no_sync."
NOT_THE_LAST = "What comes after the all-reduce stays on this rank: the last one has to send."
FORWARD_OUTSIDE = "The forward decides: model(images) belongs inside no_sync, as the backward does."
ONE_BACKWARD = "Each micro-batch needs a backward of its own: only this frees its activations."
ONE_STEP = "The optimizer takes one step for all micro-batches together."
NO_STEP = "The weights are as they were: the optimizer takes a step after the last backward."
OF_BEFORE = "The gradients of the step before are in it, too: zero_grad after each step, or before."
NOT_DIVIDED = "Gradients add up: divide each loss, so that their sum is that of the mean."
MEANS_OF_PARTS = "A mean of means: a sample of a short micro-batch counts for more. Divide sums."
BY_ALL = "Divide each sum of losses by the samples of all micro-batches together."
NO_CALL = "no_sync is a method: `with model.no_sync():`, with brackets."
LAST_ALONE = "The gradient is that of the last micro-batch alone: zero_grad once a step."
SUM_AND_COUNT = "Return the sum of all losses, then the number of samples: neither is divided."
A_PAIR = "expected two numbers: the sum of the losses, and the number of samples."
RATE = 0.5


class Replica(nn.Module):
    """What DDP does with its forward, `no_sync` and the backward, told to `backwards`."""

    def __init__(self, module):
        super().__init__()
        self.module, self.quiet, self.sends, self.backwards = module, False, False, []
        module.weight.register_post_accumulate_grad_hook(self.note)

    def note(self, _):
        """Say of a backward whether DDP would have sent in it."""
        self.backwards.append("sent" if self.sends else "kept")
        if self.sends and self.quiet:
            raise NotYet(FORWARD_OUTSIDE)

    def forward(self, rows):
        """Settle, as DDP's does, whether the backward sends."""
        self.sends = not self.quiet
        return self.module(rows)

    @contextlib.contextmanager
    def no_sync(self):
        """Keep gradients on the rank."""
        self.quiet = True
        yield
        self.quiet = False


def two_optimizer_steps(*sizes):
    """A net, and of two steps the images and labels, not yet cut into micro-batches."""
    torch.default_generator.manual_seed(sum(sizes))
    net, many = nn.Linear(3, 2, bias=False).double(), sum(sizes)
    images = torch.randn(2, many, 3, dtype=torch.double)
    return net, images, torch.randint(2, (2, many))


def stepped(attempt, *sizes):
    """Of two steps: which backwards sent, the optimizer's steps, the weight, what was returned."""
    net, *batches = two_optimizer_steps(*sizes)
    model, optimizer = Replica(net), torch.optim.SGD(net.parameters(), lr=RATE)
    steps, taken = [], []
    optimizer.register_step_post_hook(lambda *_: taken.append(1))
    for number, (images, labels) in enumerate(zip(*batches, strict=True)):
        model.backwards.clear(), taken.clear()
        micro_batches = [*zip(images.split(sizes), labels.split(sizes), strict=True)]
        with during(f"in step {number}"):
            result = attempt(model, optimizer, micro_batches)
        weight = net.weight.detach().clone()
        steps.append((model.backwards.copy(), len(taken), weight, numbers(result)))
    return steps


def one_step_of_all(outcome, *sizes):
    """All that can be wrong is said here, in the order in which it happens."""
    net, *batches = two_optimizer_steps(*sizes)
    before = None
    for step, (images, labels) in enumerate(zip(*batches, strict=True)):
        sent, taken, weight, result = outcome[step]
        where = f"in step {step}, the backwards were: {', '.join(sent) or 'none'}."
        right = ["kept"] * (len(sizes) - 1) + ["sent"]
        for wrong, words in (
            (len(sent) != len(sizes), ONE_BACKWARD),
            (taken > 1, ONE_STEP),
            (not taken, NO_STEP),
            ("sent" not in sent, NEVER_SENT),
            (sent.count("sent") > 1, TOO_OFTEN),
            (sent != right, NOT_THE_LAST),
        ):
            if wrong:
                raise NotYet(where, words)
        losses = nn.functional.cross_entropy(net(images), labels, reduction="none")
        parts = [
            torch.autograd.grad(part.sum(), net.weight, retain_graph=True)[0]
            for part in losses.split(sizes)
        ]
        means = [part / size for part, size in zip(parts, sizes, strict=True)]
        whole, many = sum(parts) / sum(sizes), len(sizes)
        if not same(weight, net.weight - RATE * whole):
            got = (net.weight.detach() - weight) / RATE
            known = [(sum(means) / many, MEANS_OF_PARTS), (sum(parts), NOT_DIVIDED)]
            known += [(sum(means), NOT_DIVIDED), (parts[-1] / sum(sizes), LAST_ALONE)]
            known += [(means[-1], LAST_ALONE), (means[-1] / many, LAST_ALONE)]
            known += [(whole + before, OF_BEFORE)] if step else []
            words = [words for gradient, words in known if torch.allclose(got, gradient)]
            lines = f"expected the gradient {short(whole)}", f"got {short(got)}"
            raise NotYet(where, *lines, [*words, BY_ALL][0])
        before, summed = whole, losses.sum().item()
        if not isinstance(result, list) or len(result) != 2:
            raise NotYet(f"got {short(result)} back; {A_PAIR}")
        if not same(result, [summed, sum(sizes)]):
            lines = f"expected {short([summed, sum(sizes)])} back", f"got {short(result)}"
            raise NotYet(*lines, SUM_AND_COUNT)
        with torch.no_grad():
            net.weight -= RATE * whole


check_ddp_step = Exercise(
    my_ddp_step,
    read_again='"One program for CPUs, one GPU and several"',
    cases=[(4, 4), (2, 2, 2), (5, 1, 2)],
    given=lambda *sizes: f"micro-batches of {', '.join(map(str, sizes))} samples",
    play=stepped,
    look=one_step_of_all,
    correct="One all-reduce a step, and the gradient of the mean over all samples, {count} times.",
    wrong={
        TOO_OFTEN: "model.no_sync() => contextlib.nullcontext()",
        NEVER_SENT: "    summed += =>         summed +=",
        NOT_THE_LAST: (
            "*others, last => last, *others",
            "    with model =>     first = backward(*last)\n    with model",
            "backward(*last)\n    optim => first\n    optim",
        ),
        FORWARD_OUTSIDE: (
            "last = micro_batches => last = [(model(rows), each) for rows, each in micro_batches]",
            "entropy(model(images) => entropy(images",
        ),
        ONE_BACKWARD: "in others => in others[1:]",
        ONE_STEP: "total).backward() => total).backward(); optimizer.step()",
        NO_STEP: "optimizer.step() => ",
        OF_BEFORE: "optimizer.zero_grad() => ",
        NOT_DIVIDED: [
            "loss / total => loss",
            (', reduction="sum" => ', "/ total => ", "item() => item() * len(labels)"),
        ],
        MEANS_OF_PARTS: (
            ', reduction="sum" => ',
            "/ total => / len(micro_batches)",
            "item() => item() * len(labels)",
        ),
        BY_ALL: "/ total => / 5",
        NO_CALL: "no_sync() => no_sync",
        LAST_ALONE: "summed += => optimizer.zero_grad(); summed +=",
        SUM_AND_COUNT: ["return summed => return summed / total", "summed += => summed ="],
        A_PAIR: ["return summed, total => ", "return summed, total => return summed / total"],
    },
    also_right=[
        (
            ', reduction="sum" => ',
            "/ total => * len(labels) / total",
            "loss.item() => loss.detach() * len(labels)",
        ),
        (
            "with model.no_sync(): => summed = 0.0",
            "    summed = sum(backward(*each) for each in others) => for each in micro_batches:",
            "    summed += => "
            "        with contextlib.nullcontext() if each is last else model.no_sync():\n"
            "            summed +=",
            "(*last) => (*each)",
        ),
    ],
    errors={"context manager": NO_CALL},
)

# 5. Shards of a data set


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
ALIKE = "Every rank has the same part: begin at the rank's number."
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
    """Every rank's part in some epochs, one part once more, and whose generator was seeded."""
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
    again = deal(1, epochs[0]) if len(epochs) > 1 else None
    return parts, again, sorted(seeded)


def well_dealt(outcome, samples, count, epochs):
    """Right answers differ, so everything is said here."""
    parts, again, seeded = outcome
    if not same([len(parts[epoch]) for epoch in epochs], [count] * len(epochs)):
        raise NotYet(NO_LIST)
    for each in parts.values():
        if words := wrong_parts(each, samples):
            raise NotYet(*[f"rank {r} got {short(part)}" for r, part in enumerate(each)], words)
    if len(epochs) > 1:
        first, second, *_ = (each[1] for each in parts.values())
        if sorted(first) == sorted(second):
            lines = f"epoch 0: rank 1 of 3 got {short(first)}", f"epoch 1: {short(second)}"
            raise NotYet(*lines, SAME_SAMPLES)
        if first != again:
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
    if lost and len(parts) > 1 and all(part == parts[0] for part in parts):
        return ALIKE
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


check_shard = Exercise(
    my_shard,
    read_again='"Without the sampler, is the loss wrong?"',
    cases=[(8, 2, [5]), (10, 4, [5]), (3, 4, [5]), (101, 3, [5]), (7, 1, [5]), (101, 3, [0, 1, 2])],
    given=lambda samples, count, epochs: (
        f"{samples} samples, {count} rank(s), epoch{'s' * (len(epochs) > 1)} "
        + ", ".join(map(str, epochs))
    ),
    play=dealt,
    look=well_dealt,
    correct="Nothing lost, nothing doubled, in {count} cases; every epoch has its own order.",
    wrong={
        ALL_OF_THEM: "[rank::count] => ",
        REMAINDER: "[rank::count] => [rank * (samples // count) :][: samples // count]",
        PADDED: "[rank::count] => .repeat(count)[: -(-samples // count) * count][rank::count]",
        OWN_ORDERS: ["(epoch) => (epoch + rank)", ", generator=generator => "],
        ALIKE: "[rank::count] => [::count]",
        UNEVEN: (
            "[rank::count] => "
            "[rank * (samples // count) :][: samples // count if rank < count - 1 else None]"
        ),
        FROM_ZERO: ".tolist => .add(1).tolist",
        SAME_SAMPLES: [
            "(epoch) => (0)",
            lambda n, r, c, e: random.Random(e).sample(range(r, n, c), len(range(r, n, c))),
        ],
        TWO_ORDERS: (
            "epoch): => epoch, calls=Counter()):\n    calls[samples, rank] += 1",
            "(epoch) => (100 * epoch + calls[samples, rank])",
        ),
        MOVED_ON: [
            ("(epoch) => (0)", "[rank::count] => .roll(epoch)[rank::count]"),
            "randperm(samples, generator=generator) => arange(samples).roll(-epoch)",
        ],
        SEEDS.format("torch"): "Generator(). => ",
        SEEDS.format("random"): lambda n, r, c, e: (
            random.seed(e) or random.sample(range(n), n)[r::c]
        ),
        SEEDS.format("numpy"): lambda n, r, c, e: (
            np.random.seed(e) or np.random.permutation(n)[r::c]  # noqa: NPY002
        ),
        NO_LIST: ["return torch => torch", lambda n, r, c, e: n // c, lambda *_: [[1], [2]]],
        "in epoch 0 on rank 0": "(epoch) => (5 // epoch)",
    },
    also_right=["[rank::count] => [rank * samples // count : (rank + 1) * samples // count]"],
)
