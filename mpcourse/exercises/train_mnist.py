"""Exercises of page `train_mnist`: a loop, a step in micro-batches, merged statistics, dropout."""

from functools import partial
from math import nan
from unittest import mock

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import nn
from torch.nn import functional as F

from mpcourse.devices import get_devices
from mpcourse.exercises.exercise import (
    Exercise,
    NotAttempted,
    NotYet,
    borrowed,
    call_for_numbers,
    numbers,
    refuse_borrowed,
    same,
    short,
)
from mpcourse.pipeline import Pipeline, ReproducibleDropout
from mpcourse.splitting.placement import works_on_a_gpu
from mpcourse.training import train_epoch

HOLDS_ITS_GRAPH = "{} still holds its graph: take loss.item()."


def loss_first(outcome, expected, left):
    """Of losses, and of what is left behind: weights or gradients."""
    if same(outcome[0], expected[0]):
        return [f"What is returned is right; {left} are not."]
    right = [f"But {left} are right."] * same(outcome[1], expected[1])
    return [f"expected the loss {short(expected[0])}", f"got {short(outcome[0])}", *right]


def my_train(model, batches, optimizer, loss_fn):
    """Only forward and backward differ: a Pipeline does both in one call.

    Old gradients are cleared before. The optimizer has all parameters: it knows of no cut.
    """
    model.train()
    place, losses = next(model.parameters()).device, []
    for inputs, targets in batches:
        optimizer.zero_grad()
        if isinstance(model, Pipeline):
            loss = model.step(inputs, targets, loss_fn)
        else:
            loss = loss_fn(model(inputs.to(place)), targets.to(place))
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


OWN_OPTIMIZER = "Use the given optimizer."
NO_BACKWARD = "The optimizer finds no gradients: loss.backward() comes before, zero_grad() earlier."
A_LIST = "Return a list with the loss of every step."
CLIPS = "Leave the gradients as they are: nobody asks for clipping here."
ON_A_GPU = "A net on a GPU needs its inputs and targets there: move both to the net's device."


def one_batch_on_a_gpu(attempt):
    """A net lies on a pretended GPU, its mini-batch on the host."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)).to("cuda:0")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attempt(model, [(torch.ones(6, 3), torch.zeros(6).long())], optimizer, nn.CrossEntropyLoss())


def trained(attempt, kind, count):
    """Losses, and weights and buffers afterwards; there are old gradients before."""
    chance = torch.Generator().manual_seed(count)
    devices = get_devices(2)
    first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    model = nn.Sequential(first, nn.Linear(4, 3)).double().to(devices[0].device)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=chance).to(parameter)
        parameter.grad = torch.ones_like(parameter)
    if kind == "Pipeline":
        model = Pipeline([first, model[1]], devices, num_microbatches=2)
    inputs = torch.randn(count, 6, 3, generator=chance).double()
    batches = [(rows, torch.arange(6) % 3) for rows in inputs]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps, before = [], [p.detach().clone() for p in model.parameters()]
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    losses = attempt(model.eval(), batches, optimizer, nn.CrossEntropyLoss(label_smoothing=0.1))
    if hasattr(losses, "__next__"):
        raise NotYet(A_LIST, "A function with yield makes a generator.")
    for loss in losses if isinstance(losses, list | tuple) else [losses]:
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            raise NotYet(HOLDS_ITS_GRAPH.format("A loss"))
    stayed = same([*model.parameters()], before)
    if not steps and not stayed:
        raise NotYet(OWN_OPTIMIZER)
    if steps and stayed:
        raise NotYet(NO_BACKWARD)
    if borrowed(attempt, {"clip_grad_norm_", "clip_grad_value_"}):
        raise NotYet(CLIPS)
    weights = torch.cat([value.flatten().double().cpu() for value in model.state_dict().values()])
    refuse_borrowed(attempt, {"train_epoch"}, "write the loop.")
    if kind == "net" and not works_on_a_gpu(partial(one_batch_on_a_gpu, attempt)):
        raise NotYet(ON_A_GPU)
    return numbers(losses), weights


def hint_of_train(outcome, expected):
    """Where the weights are right, the loop is."""
    if same(outcome[1], expected[1]):
        return "The loop is right: return each step's loss.item() as it is, in a list."
    return "In the loop: clear the gradients, forward and backward, the optimizer's step."


check_train = Exercise(
    my_train,
    read_again='"The same seed, cut in two: do the losses differ?"',
    cases=[("net", 1), ("Pipeline", 1), ("net", 3), ("Pipeline", 3)],
    given="a {} and {} mini-batch(es)",
    play=trained,
    compared=partial(loss_first, left="the weights and buffers afterwards"),
    hint=hint_of_train,
    correct="Cut and uncut net have the right losses and weights.",
    wrong={
        "The weights have to move once a mini-batch: step() comes right after backward().": [
            "optimizer.step() => ",
            "        optimizer.step() =>             optimizer.step()",  # of one kind
            "optimizer.step() => optimizer.step(); optimizer.step()",
        ],
        "There are old gradients: call optimizer.zero_grad() before.": [
            "optimizer.zero_grad() => ",
            "optimizer.zero_grad() => isinstance(model, Pipeline) or optimizer.zero_grad()",
        ],
        "A backward adds to the last one's gradients: zero_grad() belongs in the loop.": (
            "optimizer.zero_grad() => ",
            "model.train() => model.train(); optimizer.zero_grad()",
        ),
        "It ran in evaluation mode: call model.train() first.": [
            "model.train() => ",
            "model.train() => isinstance(model, Pipeline) or model.train()",
        ],
        "Each mini-batch makes one step and one loss.": "in batches: => in batches[:-1]:",
        "Take the mini-batches in their order.": "in batches: => in batches[::-1]:",
        "A loss was handed in: call loss_fn.": "loss_fn( => F.cross_entropy(",
        "A loss from after the step: return the one that made the gradients.": (
            "loss.item() => loss_fn(model(inputs.to(place)).to(place), targets.to(place)).item()"
        ),
        OWN_OPTIMIZER: [
            "optimizer. => torch.optim.SGD(model.parameters(), 0.1).",
            "model.train() => model.train(); "
            "optimizer = torch.optim.SGD(model.parameters(), lr=torch.rand(1).item())",
        ],
        CLIPS: [
            "optimizer.step() => "
            f"nn.utils.clip_grad_norm_(model.parameters(), {limit}); optimizer.step()"
            for limit in (1.0, 100.0)
        ],
        ON_A_GPU: [
            "model(inputs.to(place)), targets.to(place) => model(inputs), targets",
            "targets.to(place) => targets",
        ],
        "A loss is a mean: leave it so.": [
            "loss.item() => loss.item() * len(inputs)",
            "loss.item() => loss.item() / len(batches)",
            "targets.to(place)) => targets.to(place)) / len(batches)",
        ],
        "Return the losses as they are, not rounded.": "loss.item() => round(loss.item(), 3)",
        NO_BACKWARD: [
            "            loss.backward() => ",
            "            loss.backward() =>             loss.backward(); optimizer.zero_grad()",
        ],
        A_LIST: [
            "return losses => return sum(losses)",
            "losses.append(loss.item()) => return [loss.item()]",
            "return losses => return",
            "return losses => return (loss for loss in losses)",
        ],
        HOLDS_ITS_GRAPH.format("A loss"): "loss.item() => loss",
        "One forward a mini-batch: another moves batch norm's statistics again.": [
            "losses.append => model(inputs.to(place)); losses.append",
            "targets, loss_fn)\n => targets, loss_fn); model(inputs)\n",
        ],
        "Hand in the function: model.step(inputs, targets, loss_fn).": [
            "targets, loss_fn) => targets)",
            "targets, loss_fn) => targets, loss_fn(model(inputs), targets.to(place)))",
        ],
        "The outputs come first: loss_fn(outputs, targets).": (
            "loss_fn(model(inputs.to(place)), => loss_fn(target=model(inputs.to(place)), input="
        ),
        "train_epoch did the work": lambda *given: train_epoch(*given).losses,
        "A Pipeline's call makes no gradients": "    loss.backward() => loss.backward()",
        "Only a Pipeline has a step": "isinstance(model, Pipeline) => True",
    },
    errors={
        "does not require grad": "A Pipeline's call makes no gradients; its step makes them all.",
        "is reduced|'loss_fn'": "Hand in the function: model.step(inputs, targets, loss_fn).",
        "for 'Long'": "The outputs come first: loss_fn(outputs, targets).",
        "no attribute 'step'": "Only a Pipeline has a step: ask isinstance(model, Pipeline).",
    },
    also_right=["return losses => return torch.tensor(losses)"],
)


def my_step(net, inputs, targets, size):
    """Divide each sum by what the mean of the whole mini-batch divides by.

    That is the number of targets that count. Each backward frees its micro-batch's graph.
    """
    counting = (targets != -100).sum()
    total = 0.0
    for x, y in zip(inputs.split(size), targets.split(size), strict=True):
        loss = F.cross_entropy(net(x), y, reduction="sum") / counting
        loss.backward()
        total += loss.item()
    return total


IN_PLACE = "The inputs or targets are changed in place: they belong to the caller."
RETAINED = "retain_graph=True keeps the graph: each backward has to free its own."


def freeing_backward(backward):
    """The backward of a tensor; it refuses to keep the graph."""

    def frees(tensor, gradient=None, retain_graph=None, *more, **named):
        if retain_graph:
            raise NotYet(RETAINED)
        return backward(tensor, gradient, retain_graph, *more, **named)

    return mock.patch.object(torch.Tensor, "backward", frees)


def stepped(attempt, rows, size, ignored):
    """The loss and the gradient; there was a gradient of 1 before."""
    chance = torch.Generator().manual_seed(rows)
    net, forwards = nn.Linear(3, 4).double(), [(0, "None")]  # rows, and the gradient before it
    net.register_forward_pre_hook(lambda _, x: forwards.append((len(x[0]), str(net.bias.grad))))
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=chance).double()
        parameter.grad = torch.ones_like(parameter)
    targets = torch.randint(0, 4, (rows,), generator=chance)
    targets[list(ignored)] = -100
    before = [p.detach().clone() for p in net.parameters()]
    inputs = torch.randn(rows, 3, generator=chance).double()
    given = inputs.clone(), targets.clone()
    with freeing_backward(torch.Tensor.backward):
        loss = attempt(net, inputs, targets, size)
    if max(forwards)[0] > size:
        raise NotYet(f"A forward took {max(forwards)[0]} rows: cut them by inputs.split(size).")
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        raise NotYet(HOLDS_ITS_GRAPH.format("What is returned"))
    if not same([*net.parameters()], before):
        raise NotYet("The weights have moved: add to .grad alone; the optimizer comes later.")
    if not (torch.equal(inputs, given[0]) and torch.equal(targets, given[1])):
        raise NotYet(IN_PLACE)
    if not net.training:
        raise NotYet("net.eval() stays behind: leave the net in its mode.")
    refuse_borrowed(attempt, {"Pipeline"}, "write the step.")
    gradient = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    if "None" != forwards[-1][1] == forwards[1][1] != str(net.bias.grad):
        raise NotYet("One backward at the end keeps all graphs: each loss needs its own, at once.")
    return "nan" if loss is not None and loss != loss else numbers(loss), gradient.nan_to_num(9.0)


OWN_MEAN = ', reduction="sum") / counting => )'

check_step = Exercise(
    my_step,
    read_again='"Break 1: the mean of means"',
    cases=[(4, 2, ()), (5, 2, ()), (7, 3, ()), (10, 4, (0, 5, 6)), (6, 2, (2, 3))],
    given="{} rows in micro-batches of {}; targets ignored: {}",
    play=stepped,
    compared=partial(loss_first, left="the gradients in .grad"),
    hint="A row of -100 adds nothing; each other row has one share: divide by their number.",
    correct="Loss and gradient are those of the whole mini-batch in all {count} cases.",
    wrong={
        "Means are added up as they are: weight each one, before its backward.": OWN_MEAN,
        "A short micro-batch is missing.": ".split(size) => .split(size)[:len(targets)//size]",
        "All micro-batches count alike, a mean of means.": OWN_MEAN + " / len(inputs.split(size))",
        "Weighted by rows; a row whose target is -100 is not in the mean.": [
            OWN_MEAN + " * len(y) / len(targets)",
            "/ counting => / len(targets)",
        ],
        "Where no target counts the mean is 0 / 0, which is nan: add up sums.": (
            OWN_MEAN + " * (y != -100).sum() / counting"
        ),
        "A sum is never divided: the mean divides by the targets that count.": "/ counting => ",
        "That is the loss of the last micro-batch alone: add them up.": "+= => =",
        "What is returned is the sum: divide it, too.": "return total => return total * counting",
        "A target of 0 counts, too: only -100 does not.": "!= -100 => > 0",
        "All of .grad is divided, old gradients too: divide each loss, before its backward.": (
            "/ counting => ",
            "return total => [p.grad.div_(counting) for p in net.parameters()]\n"
            "    return total / counting",
        ),
        "The loss is weighted after its backward: weight it before.": (
            "/ counting\n        loss.backward() => \n        loss.backward(); loss /= counting"
        ),
        "The gradients hold shares; the loss is a mean of means: add up the shares.": (
            "total += loss.item() => total += loss.item() * counting / len(y)",
            "return total => return total / len(inputs.split(size))",
        ),
        "The shares add up to the mean: return their sum.": "return total => return total / len(y)",
        "Return the loss, a number.": "return total => return",
        "Pipeline did the work": "total = 0.0 => total = Pipeline and 0.0",
        "What was in .grad before is cleared; the step adds to it.": [
            "total = 0.0 => total = net.zero_grad() or 0.0",
            "loss = => net.zero_grad(); loss =",
        ],
        "Nothing is added to .grad: each loss needs its backward().": "loss.backward() => ",
        "The weights have moved": "return total => return net.bias.data.zero_().sum() or total",
        IN_PLACE: [
            "return total => targets[targets == -100] = 0\n    return total",
            "return total => inputs.zero_()\n    return total",
        ],
        "net.eval() stays behind": "total = 0.0 => total = 0.0 * len([net.eval()])",
        "One backward at the end keeps all graphs": (
            "loss.backward() => total = total + loss",
            "return total => return total.backward() or total.item() / 2",
        ),
        RETAINED: "backward() => backward(retain_graph=True)",
        "cut them by inputs.split(size)": ".split(size) => .split(len(inputs))",
        HOLDS_ITS_GRAPH.format("What is returned"): "loss.item() => loss",
    },
    also_right=["return total => return torch.tensor(total)"],
)


def my_merged(counts, means, variances):
    """Add up squared distances from the common mean. Some are within, some of each mean."""
    groups, total = zip(counts, means, variances, strict=True), sum(counts)
    rows = [(n, m, v if n > 1 else 0) for n, m, v in groups]  # torch's variance of one is nan
    mean = sum(n * m for n, m, _ in rows) / total
    squares = sum((n - 1) * v + n * (m - mean) ** 2 for n, m, v in rows)
    return mean, squares / (total - 1)


def statistics_of(*groups):
    groups = [torch.tensor(group, dtype=torch.float64) for group in groups]
    return [*map(len, groups)], [g.mean().item() for g in groups], [g.var().item() for g in groups]


def spread_of(means):
    return torch.tensor(means).var().item() if means[1:] else 0.0


ONE_VALUE = "One value has no variance (nan), and no spread within: its mean alone counts."
VECTORS = "Means and variances may be tensors: ask the count whether it is 1, not the variance."
BOTH = "Return both, the mean and the variance."
SQUARES = "Add up the squares around the common mean: within each micro-batch, and of its mean."

SKIPS = "v if n > 1 else 0) for n, m, v in groups => v) for n, m, v in groups if n > 1"

check_merged = Exercise(
    my_merged,
    read_again='"Can the running statistics be put right?"',
    cases=[
        statistics_of([1.0, 3.0], [5.0, 9.0]),
        statistics_of([1.0, 2.0, 6.0], [4.0, 8.0]),
        statistics_of([2.5, 3.5, 7.0, -1.0]),
        statistics_of([0.0, 4.0], [1.0, 3.0], [2.0, 2.5, 1.5]),
        ([1, 2], [1.0, 7.0], [nan, 8.0]),
        ([1, 2, 3], [*torch.eye(3, 2).double()], [*torch.tensor([[nan, nan], [8, 2], [3, 0.5]])]),
    ],
    given=lambda *given: "counts {}, means {}, variances {}".format(*map(short, given)),
    play=call_for_numbers,
    hint=lambda found, _: (
        (ONE_VALUE if "nan" in short(found) else SQUARES) if isinstance(found, list) else BOTH
    ),
    wrong={
        "The spread between the micro-batches' means is lost: they differ, too.": [
            "squares / (total - 1) => sum(variances) / len(variances)",
            " + n * (m - mean) ** 2 => ",
        ],
        "The spread within each micro-batch is lost.": [
            "(n - 1) * v + => ",
            "squares / (total - 1) => spread_of(means)",
        ],
        "Variances do not add up: add up squared distances, and divide once.": (
            "squares / (total - 1) => sum(variances) / len(variances) + spread_of(means)"
        ),
        "Those are the last micro-batch's alone.": (
            "mean, squares / (total - 1) => means[-1], variances[-1]"
        ),
        BOTH: "return mean, => return mean;",
        "Micro-batches of different sizes: each mean counts by its number of values.": [
            "return mean => return sum(means) / len(means)",
            "sum(n * m for n, m, _ in rows) / total => sum(means) / len(means)",
            "(m - mean) => (m - sum(means) / len(means))",
        ],
        "The means differ, which is spread as well; and each one counts by its number of values.": (
            "squares / (total - 1) => sum(variances) / len(variances)",
            "return mean => return sum(means) / len(means)",
        ),
        "The squared distance of a mean counts n times.": "n * (m - mean) ** 2 => (m - mean) ** 2",
        "Divide by the number of values less one, as torch does here.": [
            "(total - 1) => total",
            "squares / (total - 1) => squares",
            "(total - 1) => (total - len(counts))",
        ],
        "A micro-batch's sum of squares is its variance times (count - 1).": [
            "(n - 1) * v => n * v",
            ("(n - 1) * v => n * v", "(total - 1) => total"),
        ],
        "That is the variance's root.": "squares / (total - 1) => (squares / (total - 1)) ** 0.5",
        ONE_VALUE: "v if n > 1 else 0 => v",
        "A single value's mean counts, too.": [
            SKIPS,
            (
                SKIPS,
                "/ total => / sum(n for n, _, _ in rows)",
                "(total - 1) => (sum(n for n, _, _ in rows) - 1)",
            ),
        ],
        VECTORS: "v if n > 1 else 0 => 0 if v != v else v",
        "First the mean, then the variance.": lambda *given: my_merged(*given)[::-1],
    },
    errors={"Scalar|scalar|Boolean value": VECTORS},
    also_right=[lambda *given: list(map(torch.as_tensor, my_merged(*given)))],
)


class MySeededDropout(nn.Module):
    """A generator of its own, on the host, draws one number for every value.

    Micro-batches in order get the mini-batch's numbers. Nobody else draws from it: no race.
    """

    def __init__(self, seed, p=0.5):
        super().__init__()
        self.p, self.generator = p, torch.Generator().manual_seed(seed)

    def forward(self, values):  # noqa: D102
        if not self.training:
            return values
        kept = torch.rand(values.shape, generator=self.generator) >= self.p
        return values * kept.to(values.device) / (1 - self.p or 1)  # p = 1 drops all


SWAPPED = "Stages that run at once would set the state of one generator: draw from your own."
VALUES = torch.rand(60, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1
VALUES[1::2] *= -1  # a ReLU would show


def dropped(attempt, seed, p):
    """What layers make of the values: whole, cut, again, evaluated."""
    layer, values = attempt(seed, p), VALUES.clone()
    if not isinstance(layer, nn.Module):
        raise NotYet(f"It makes {short(layer)}: a layer is an nn.Module.")
    if any(isinstance(module, ReproducibleDropout) for module in layer.modules()):
        raise NotYet("ReproducibleDropout did the work: draw the numbers here.")
    with mock.patch.object(torch, "set_rng_state", side_effect=NotYet(SWAPPED)):
        output = layer(values.requires_grad_())
    if output is ...:
        raise NotAttempted
    if not isinstance(output, torch.Tensor) or output.shape != values.shape:
        raise NotYet(f"expected a tensor of shape {tuple(values.shape)}", f"got {short(output)}")
    if not torch.equal(values, VALUES):
        raise NotYet("The layer changes its input: make a new tensor.")
    second = layer(VALUES.clone())
    again, other, cut, late, aside = (attempt(seed + more, p) for more in (0, 1, 0, 0, 0))
    torch.manual_seed(seed + 2)  # another layer, elsewhere
    found = {"first": output, "second": second, "again": again(VALUES), "other": other(VALUES)}
    found |= {"cut": torch.cat([*map(cut, VALUES.split(18))]), "aside": aside(VALUES)}
    found |= {"float": attempt(seed, p)(VALUES.float()), "all": attempt(seed, 1.0)(VALUES)}
    found["gpu"] = works_on_a_gpu(attempt(seed, p), VALUES)
    return found | {"eval": late.eval()(VALUES), "late": late.train()(VALUES)}


def as_promised(found, seed, p):
    """Ask all that is promised, the plainest first."""
    output, kept = found["first"], found["first"] != 0
    share = 1 - kept.double().mean().item()
    alike = {key for key, out in found.items() if torch.equal(torch.as_tensor(out != 0), kept)}
    grown = torch.allclose(output.to(VALUES), VALUES * kept / (1 - p))
    rowwise = any((kept == one).all() for one in (kept[:, :1], kept[:1]))
    inverted = p != 0.5 and abs(share - (1 - p)) < 0.05
    for words, right in {
        f"{output.dtype} out, not as the values: keep their type.": output.dtype == VALUES.dtype,
        "In training mode nothing is dropped.": share,
        "All negative values are dropped: chance alone decides.": kept[1::2].any(),
        "Whole rows or columns are dropped: draw a number for every value.": not rowwise,
        f"p = {p} is the share that is dropped, not the one that is kept.": not inverted,
        f"{share:.0%} are zero; p is {p}. Compare torch.rand with p.": abs(share - p) < 0.05,
        "What is kept has to grow by 1 / (1 - p), so that the mean stays.": grown,
        "No gradient gets through: multiply the values by the mask.": output.requires_grad,
        "Each call drops the same places: keep the generator, not the mask.": "second" not in alike,
        "With one seed, two layers differ: pass a generator of your own, seeded.": "again" in alike,
        "Layers with different seeds drop the same places: use `seed`.": "other" not in alike,
        "Layers share a generator, and race for it: make one in __init__.": "aside" in alike,
        "In micro-batches other places drop: draw row by row, for each value.": "cut" in alike,
        "torch.float32 in, another type out: keep the type.": found["float"].dtype == torch.float,
        "In evaluation nothing changes: ask self.training.": same(found["eval"], VALUES),
        "An evaluation has drawn numbers: draw in training mode only.": "late" in alike,
        "With p = 1 (tried, too) all drop: no division then.": same(found["all"], 0 * VALUES),
        "A GPU's values need the mask there: move it to values.device.": found["gpu"],
    }.items():
        if not right:
            raise NotYet(words)


check_dropout = Exercise(
    MySeededDropout,
    read_again='"Break 3: dropout draws random numbers"',
    cases=[(3, 0.25), (8, 0.5)],
    given="seed {} and p = {}",
    play=dropped,
    look=as_promised,
    hint="torch.rand(values.shape, generator=self.generator) draws one number for every value.",
    correct="The seed alone says which places are dropped, cut or not.",
    wrong={
        "pass a generator of your own, seeded": ", generator=self.generator => ",
        SWAPPED: "kept = => torch.set_rng_state(self.generator.get_state()); kept =",
        "The layer changes its input": "values * kept.to => values.detach().mul_(kept).to",
        "Each call drops the same places": [
            "kept = => self.generator.manual_seed(self.generator.initial_seed()); kept =",
            ">= self.p => >= self.p; kept = vars(self).setdefault(values.shape, kept)",
        ],
        "Layers share a generator": (
            "p=0.5 => p=0.5, one=torch.Generator()",
            "torch.Generator().manual_seed => one.manual_seed",
        ),
        "so that the mean stays": [" / (1 - self.p or 1) => ", "(1 - self.p or 1) => self.p"],
        "all drop: no division": [
            "self.p or 1) => self.p)",
            "/ (1 - self.p or 1) => * (1 / (1 - self.p))",
        ],
        "super().__init__()": [
            "        super().__init__()\n => ",
            "super().__init__() => self.inner = nn.Identity()",
        ],
        "need the mask there": [
            "kept.to(values.device) => kept",
            "generator=self.generator => generator=self.generator, device=values.device",
            "torch.rand(values.shape => torch.rand_like(values",
        ],
        "draw row by row": "torch.rand(values.shape, generator=self.generator) => "
        "torch.rand(values.T.shape, generator=self.generator).T",
        "evaluation has drawn": "ing: => ing and torch.rand(1, generator=self.generator) < 2:",
        "is the share that is dropped": ">= self.p => < self.p",
        "a layer is an nn.Module": ["(nn.Module) => ", lambda seed, p: nn.functional.dropout],
        "torch.float32 in, another type out": "kept.to(values.device) => kept.double()",
        "evaluation nothing changes": ["not self.training => False", "return values\n => return\n"],
        "All negative values are dropped": "return values * => return values.relu() *",
        "Whole rows or columns": "torch.rand(values.shape => torch.rand((len(values), 1)",
    },
    errors={
        "in-place operation": "The layer changes its input: make a new tensor.",
        "ZeroDivision": "With p = 1 (tried, too) all drop: no division then.",
        r"_init__\(|_modules": "Begin __init__(self, seed, p=0.5) with super().__init__().",
    },
    also_right=["self.generator) >= => self.generator).double() >"],
)
