"""Exercises of page `distributed_data_parallel`: hooks, buckets, a step of micro-batches."""

import contextlib
import copy
import inspect
import itertools
from collections import Counter

import torch
from torch import nn

from mpcourse.exercises.exercise import (
    Exercise,
    NotAttempted,
    NotYet,
    during,
    numbers,
    same,
    short,
)

# The world of the first two: rank 0 of several, whose messages are sums that are known beforehand

NO_GRADIENT = (
    "all_reduce got what is no gradient of this rank, or is summed already; "
    "the hook's argument is a parameter whose .grad has arrived: that one, once."
)
LEFT_OVER = "The hooks are there, but the line `return ...` is still at the end: delete it."
UNWAITED = "Before wait() returns, the tensor holds this rank's numbers: wait for each message."
SUMS_ALONE = "This all_reduce adds up, and offers no other op: leave it out, and divide by count."
WAITS_IN_A_HOOK = "A hook waited, and the backward stood still meanwhile: wait in finish alone."
TWICE = "A message was waited for in the step before: finish has to empty its list."
FROZEN = "A frozen parameter gets no gradient, and takes no hook: leave it out."


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

    def __init__(self, tensor, op, sums, backward=()):
        if op not in (None, torch.distributed.ReduceOp.SUM):
            raise NotYet(SUMS_ALONE)
        found = [sums.get(f"{number:.9e}") for number in tensor.flatten().tolist()]
        if None in found:
            raise ValueError(NO_GRADIENT)
        self.names = Counter(name for name, _ in found)
        self.sum = torch.tensor([total for _, total in found]).view_as(tensor)
        self.tensor, self.backward, self.waited = tensor, backward, False

    def wait(self):
        """Let the sum arrive, unless the backward would stand still for it."""
        if self.backward:
            raise NotYet(WAITS_IN_A_HOOK)
        if self.waited:
            raise NotYet(TWICE)
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


def first_difference(outcome, expected):
    """Outcomes are a dict for each step."""
    for step, (found, wanted) in enumerate(zip(outcome, expected, strict=False)):
        for name, right in wanted.items():
            if not same(found.get(name), right):
                got = short(found.get(name))
                return [f"step {step}, {name}:", f"expected {short(right)}", f"got {got}"]
    return []


# 1. Hooks that average the gradients


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


CALLED_AT_ONCE = "No backward has run yet: register a function, do not call it."
RETURNS_NONE = "all_reduce adds up in place and returns None: read the parameter's .grad after it."
RETURNED = "A hook returns nothing: put the average into the parameter's .grad."
TOO_EARLY = "register_hook calls before .grad is written: it is register_post_accumulate_grad_hook."


def hooked(attempt, count, frozen):
    """The gradients after each of two backwards on rank 0."""
    net, plain, batches = two_steps(2, 3, 1, count=count, frozen=frozen)
    sums, sent, steps = {}, [], []

    def all_reduce(tensor, op=None, group=None, async_op=False):
        sent.append(Message(tensor, op, sums))
        return sent[-1] if async_op else sent[-1].wait()

    made(attempt, net, all_reduce, count)
    for step, batch in enumerate(batches):
        sums |= sums_of([gradients(plain, rows) for rows in batch])
        with during(f"in the backward of step {step}"):
            steps.append(gradients(net, batch[0]))
        if not all(message.waited for message in sent):
            raise NotYet(UNWAITED)
    return steps


check_hooks = Exercise(
    my_hooks,
    read_again='"Who averages, and when?"',
    cases=[(2, False), (3, False), (3, True)],
    given=lambda count, frozen: f"{count} ranks{', the first weight frozen' if frozen else ''}",
    play=hooked,
    compared=first_difference,
    correct="Averages after every backward, with 2 and 3 ranks, and with a frozen weight.",
    hint="After every backward each .grad is the sum over all ranks, divided once by their number.",
    wrong={
        "That is the sum: divide by the {0} ranks, and keep it in the parameter's .grad.": (
            "parameter.grad /= count => "
        ),
        "It was divided, but not summed over the ranks.": "all_reduce(parameter.grad) => ",
        UNWAITED: "(parameter.grad) => (parameter.grad, async_op=True)",
        CALLED_AT_ONCE: "hook(average) => hook(average(parameter))",
        RETURNS_NONE: "all_reduce( => parameter.grad = all_reduce(",
        RETURNED: "parameter.grad /= count => return parameter.grad / count",
        TOO_EARLY: "_post_accumulate_grad => ",
        FROZEN: "parameter.requires_grad: => True:",
        LEFT_OVER: "hook(average) => hook(average)\n    return ...",
    },
    errors={
        "require.* grad.*, while the hooks": FROZEN,
        "NoneType.*, while the hooks": CALLED_AT_ONCE,
        "hooks should return None": RETURNED,
        "NoneType.* no attribute.*, in the backward": TOO_EARLY,
        "NoneType.*, in the backward": RETURNS_NONE,
    },
    also_right=[
        ("(parameter.grad) => (parameter.grad.div_(count))", "parameter.grad /= count => "),
        "(parameter.grad) => (parameter.grad, async_op=True).wait()",
    ],
)

# 2. Gradients in buckets, sent beside the backward


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
LATE = "Send a full bucket in the hook that fills it, not when the backward is over."
NOT_FULL = "A bucket is sent when it holds `size` gradients, and is empty again after that."
REST = "The last bucket is not full, and nobody sent it: that is the first task of finish."


def bucketed(attempt, count, size, frozen):
    """Of two steps on rank 0: what each message held, which left when, and the gradients."""
    net, plain, batches = two_steps(2, 3, 2, 1, count=count, frozen=frozen)
    sums, backward, sent, there, steps = {}, [], [], [], []

    def all_reduce(tensor, op=None, group=None, async_op=False):
        if not async_op:
            raise NotYet(BLOCKS)
        sent.append(Message(tensor, op, sums, backward))
        there.append(sum(parameter.grad is not None for parameter in net.parameters()))
        return sent[-1]

    finish = made(attempt, net, all_reduce, count, size)
    if not callable(finish):
        raise NotYet(f"got {short(finish)} back; return the function finish, and do not call it.")
    for step, batch in enumerate(batches):
        sent.clear(), there.clear()
        ranks = [gradients(plain, rows) for rows in batch]
        sums |= sums_of(ranks)
        backward.append(step)
        with during(f"in the backward of step {step}"):
            gradients(net, batch[0])
        backward.clear()
        early = there.copy()
        with during(f"in finish, step {step}"):
            finish()
        if not all(message.waited for message in sent):
            raise NotYet(UNWAITED)
        held = [len(message.names) for message in sent]
        found = {"gradients in each message": held, "there when it left in the backward": early}
        found |= {name: parameter.grad for name, parameter in net.named_parameters()}
        steps.append(copy.deepcopy(found))
        if sum(held) < len(ranks[0]):  # the next step would stumble over it
            break
    return steps


check_buckets = Exercise(
    my_buckets,
    read_again='"When can the first gradient leave?"',
    cases=[(2, 2, False), (3, 4, False), (3, 1, False), (2, 9, False), (3, 2, True)],
    given=lambda count, size, frozen: (
        f"{count} ranks, {size} to a bucket{', the first weight frozen' if frozen else ''}"
    ),
    play=bucketed,
    compared=first_difference,
    correct="Full buckets leave in the backward, finish alone waits, and {count} worlds agree.",
    hint="Keep a copy of the bucket's list, the tensor and its message together. After wait() the "
    "tensor holds the sums: split(sizes), view_as the parameter, divide by count, put into .grad.",
    wrong={
        BLOCKS: ", async_op=True => ",
        WAITS_IN_A_HOOK: "async_op=True) => async_op=True).wait()",
        LATE: (
            "parameter.register_post_accumulate_grad_hook(on_gradient) => pass",
            "finish(): => finish():\n        [*map(on_gradient, module.parameters())]",
        ),
        NOT_FULL: ["== size => > size", "len(bucket) == size => True"],
        REST: "if bucket: => if False:",
        UNWAITED: "message.wait() => ",
        TWICE: "sent.clear() => ",
        "That is the sum over the ranks: divide by count.": "(parameter) / count => (parameter)",
        FROZEN: "parameter.requires_grad: => True:",
        LEFT_OVER: "return finish => return ...",
    },
    errors={"require.* grad.*, while the hooks": FROZEN},
    also_right=[
        (
            "torch.cat => torch.hstack",
            "= piece.view_as(parameter) / count => .copy_(piece.view_as(parameter) / count)",
        ),
        ("in bucket]) => in bucket]) / count", "(parameter) / count => (parameter)"),
    ],
)

# 3. One step of the optimizer in several micro-batches


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
FORWARD_OUTSIDE = "The forward decides: model(images) belongs inside no_sync, as the backward does."
NO_CALL = "no_sync is a method: `with model.no_sync():`, with brackets."


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


def stepped(attempt, *sizes):
    """Of two steps: which backwards sent, the optimizer's steps, the weight, what came back."""
    torch.default_generator.manual_seed(sum(sizes))
    net, many = nn.Linear(3, 2, bias=False).double(), sum(sizes)
    images = torch.randn(2, many, 3, dtype=torch.double)
    batches = zip(images, torch.randint(2, (2, many)), strict=True)
    model, optimizer = Replica(net), torch.optim.SGD(net.parameters(), lr=0.5)
    steps, taken = [], []
    optimizer.register_step_post_hook(lambda *_: taken.append(1))
    for number, each in enumerate(batches):
        model.backwards.clear(), taken.clear()
        parts = zip(*[part.split(sizes) for part in each], strict=True)
        with during(f"in step {number}"):
            result = attempt(model, optimizer, list(parts))
        found = {"the backwards": model.backwards.copy(), "steps of the optimizer": len(taken)}
        found |= {"the weight after it": net.weight.detach().clone(), "returned": numbers(result)}
        steps.append(found)
    return steps


check_ddp_step = Exercise(
    my_ddp_step,
    read_again='"One program for CPUs, one GPU and several"',
    cases=[(4, 4), (2, 2, 2), (5, 1, 2)],
    given=lambda *sizes: f"micro-batches of {', '.join(map(str, sizes))} samples",
    play=stepped,
    compared=first_difference,
    correct="One all-reduce a step, and the gradient of the mean over all samples, {count} times.",
    hint="A backward for each micro-batch, and the last one sends; then one step and zero_grad. "
    "Divide each sum of losses by all samples, and return the whole sum and the count.",
    wrong={
        TOO_OFTEN: "model.no_sync() => contextlib.nullcontext()",
        "Nothing was sent: the last one goes through model, its forward outside no_sync.": (
            "    summed += =>         summed +="
        ),
        FORWARD_OUTSIDE: (
            "last = micro_batches => last = [(model(rows), each) for rows, each in micro_batches]",
            "entropy(model(images) => entropy(images",
        ),
        "The optimizer takes one step for all micro-batches together.": (
            "total).backward() => total).backward(); optimizer.step()"
        ),
        "The gradients of the step before are in it, too: zero_grad once a step.": (
            "optimizer.zero_grad() => "
        ),
        "Gradients add up: divide each loss, so that their sum is that of the mean.": [
            "loss / total => loss",
            (', reduction="sum" => ', "/ total => ", "item() => item() * len(labels)"),
        ],
        "A mean of means: a sample of a short micro-batch counts for more. Divide sums.": (
            ', reduction="sum" => ',
            "/ total => / len(micro_batches)",
            "item() => item() * len(labels)",
        ),
        "Return the sum of all losses, then the number of samples: neither is divided.": (
            "return summed => return summed / total"
        ),
        NO_CALL: "no_sync() => no_sync",
    },
    errors={"context manager": NO_CALL},
    also_right=[
        (
            "with model.no_sync(): => summed = 0.0",
            "    summed = sum(backward(*each) for each in others) => for each in micro_batches:",
            "    summed += => "
            "        with contextlib.nullcontext() if each is last else model.no_sync():\n"
            "            summed +=",
            "(*last) => (*each)",
        ),
    ],
)
