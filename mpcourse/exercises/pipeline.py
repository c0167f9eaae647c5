"""Exercises of page `pipeline`: a ceiling, a mini-batch in pieces, a cut graph, the best split."""

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor, nn

from mpcourse.exercises.exercise import Exercise, NotYet, raised, same, short
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule

# 1. The ceiling of unequal stages


def my_ceiling(stage_times, num_microbatches):
    """The first micro-batch needs the sum of all stages, each further one the slowest stage.

    The slowest stage is the one that never waits in between: behind it the others wait for its
    next output, before it they wait for its next gradient. With p equal stages this is
    p * m / (m + p - 1); m / p would grow for ever.
    """
    one_device = num_microbatches * sum(stage_times)
    return one_device / (sum(stage_times) + (num_microbatches - 1) * max(stage_times))


def simulated_ceiling(times, count):
    forward, backward = [t / 3 for t in times], [t * 2 / 3 for t in times]
    pipeline = simulate(gpipe_schedule(len(times), count), Costs(forward, backward)).makespan
    alone = simulate(gpipe_schedule(1, count), Costs(sum(forward), sum(backward))).makespan
    return alone / pipeline


def ceiling_in_fractions(times, count):
    return Fraction(count * sum(times), sum(times) + (count - 1) * max(times))


def ceiling_as_a_tensor(times, count):
    times = torch.tensor(times, dtype=torch.double)
    return count * times.sum() / (times.sum() + (count - 1) * times.max())


check_ceiling = Exercise(
    my_ceiling,
    read_again='"How fast can two devices be at best?"',
    cases=[
        ([2, 6], 4),
        ([3, 3], 5),
        ([6, 3, 3], 8),
        ([2, 7, 3, 4], 6),
        ([5], 4),
        ([1, 2, 9], 1),
        ([4, 1, 1, 5, 2], 40),
    ],
    given="stages that take {} and {} micro-batches",
    hint="One device needs the sum for every piece. In the pipeline the first piece needs the sum "
    "too; how long after it does the second come out?",
    wrong={
        "That is for equal stages: here the slowest sets the pace, the others wait for it.": (
            lambda t, m: len(t) * m / (m + len(t) - 1)
        ),
        "That needs equal stages, all at work all the time.": lambda t, m: len(t),
        "That is for endless cutting: the pipeline fills up and drains too.": (
            lambda t, m: sum(t) / max(t)
        ),
        "Every slot counts as the slowest there; the first piece passes each stage in its own "
        "time.": lambda t, m: m * sum(t) / ((m + len(t) - 1) * max(t)),
        "One piece too many: the first is in the sum already.": (
            lambda t, m: m * sum(t) / (sum(t) + m * max(t))
        ),
        "The slowest stage need not be the first.": (
            lambda t, m: m * sum(t) / (sum(t) + (m - 1) * t[0])
        ),
        "The slowest stage need not be the last.": (
            lambda t, m: m * sum(t) / (sum(t) + (m - 1) * t[-1])
        ),
        "That is the share of the devices' time in use; times p it is the speed-up.": (
            lambda t, m: my_ceiling(t, m) / len(t)
        ),
        "That is the bubble: the idle share of the devices.": (
            lambda t, m: 1 - my_ceiling(t, m) / len(t)
        ),
        "Upside down: the time of one device over the pipeline's time.": (
            lambda t, m: 1 / my_ceiling(t, m)
        ),
        "That is the pipeline's time; one device's over it is asked.": (
            lambda t, m: sum(t) + (m - 1) * max(t)
        ),
        "how long after it does the second come out?": lambda t, m: 2.0 * len(t) * m,
    },
    also_right=[simulated_ceiling, ceiling_in_fractions, ceiling_as_a_tensor],
)

# 2 and 3. A mini-batch in pieces, through one module or through two with the graph cut between

COUNTS_BY = "A piece of n rows out of N counts by n / N, its loss and so its gradient."
NO_GRADIENT = "no gradient arrived in {}: call backward() on every piece's loss."
NOT_CUT = "The graph is not cut: what back gets still hangs on front's graph. detach() it."
NO_LEAF = "What back gets asks for no gradient, so none arrives there: requires_grad_() it."
NOTHING_HANDED_ON = (
    "front got no gradient: hand its output the one that arrived at the leaf, "
    "output.backward(leaf.grad)."
)
FROM_A_NUMBER = "A backward begins at a number, or is handed a gradient: out.backward(leaf.grad)."
OPTIMIZER = "the weights have changed: an optimizer's step is not part of this."
DTYPE = "the weights are {} now: leave the model as precise as it is."
LOST_ROWS = "The last piece may be smaller, but its rows count."
ONCE = "Each piece goes through once."
ADDED_UP = "Each loss is a mean: added up they count too much. Scale before backward()."
MEAN_OF_MEANS = "Mean of means: a short piece counts as much as a full one."
ONLY_THE_FIRST = "Only the first piece is there: call backward() for every piece."
FLOAT32 = "Right to seven digits only: somewhere the numbers pass through float32."
HAND_OVER = "back's gradients are right. Does each output.backward(...) get its own leaf.grad?"
OWN_LOSS = "Here loss_fn is no squared error: call the loss_fn that is handed in."


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that is no squared error."""
    return (outputs - targets).abs().mean()


PIECES = [(4, 2, nn.MSELoss()), (5, 2, nn.MSELoss()), (7, 3, absolute_error), (3, 8, nn.MSELoss())]


def in_pieces(*modules: nn.Module) -> Callable:
    """The world of an attempt: small modules in double precision that note what goes in.

    The outcome is the loss and the gradient of each module, which has one weight.
    """

    def play(attempt: Callable, rows: int, size: int, loss_fn: Callable) -> dict:
        names = ["front", "back"] if len(modules) > 1 else ["model"]
        generator = torch.Generator().manual_seed(rows)
        weights = [next(module.double().parameters()) for module in modules]
        for weight in weights:
            weight.grad = None
            weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.double)
        before = [weight.detach().clone() for weight in weights]
        inputs = torch.randn(rows, 3, generator=generator, dtype=torch.double)
        targets = inputs.sum(1, keepdim=True) * torch.arange(1.0, rows + 1)[:, None]
        seen: dict[str, list[Tensor]] = {name: [] for name in names}
        hooks = [
            module.register_forward_pre_hook(
                lambda _, given, name=name: seen[name].append(given[0])
            )
            for name, module in zip(names, modules, strict=True)
        ]
        try:
            loss = attempt(*modules, loss_fn, inputs, targets, size)
        except RuntimeError as error:
            if "implicitly created" not in str(error):
                raise
            leafless = not_cut(seen.get("back", [])) == NO_LEAF  # its .grad was handed on: None
            raise NotYet(raised(error), NO_LEAF if leafless else FROM_A_NUMBER) from None
        finally:
            for hook in hooks:
                hook.remove()
        for weight, old in zip(weights, before, strict=True):
            if weight.dtype != old.dtype:
                raise NotYet(DTYPE.format(weight.dtype))
            if not torch.equal(weight.detach(), old):
                raise NotYet(OPTIMIZER)
        wanted = [len(piece) for piece in inputs.split(size)]
        for name, pieces in seen.items():
            sizes = [len(piece) for piece in pieces]
            if sizes != wanted:
                line = f"expected pieces of {wanted} rows, the {name} saw {sizes}"
                why = LOST_ROWS if sum(sizes) < rows else ONCE if len(sizes) > len(wanted) else ""
                raise NotYet(line, why)
        if words := not_cut(seen.get("back", [])):
            raise NotYet(words)
        for name, weight in zip(names, weights, strict=True):
            if weight.grad is None:
                raise NotYet(NOTHING_HANDED_ON if name == "front" else NO_GRADIENT.format(name))
        gradients = {f"gradient of {name}": w.grad for name, w in zip(names, weights, strict=True)}
        return {**gradients, "loss": loss}

    return play


def not_cut(pieces: list[Tensor]) -> str:
    for piece in pieces:
        if not piece.is_leaf:
            return NOT_CUT
        if not piece.requires_grad:
            return NO_LEAF
    return ""


def exactly_same(outcome: dict, expected: dict) -> bool:
    """Gradients to nine digits, so that a detour through float32 shows."""
    return same(outcome["loss"], expected["loss"]) and not wrong_gradients(outcome, expected)


def wrong_gradients(outcome: dict, expected: dict) -> list[str]:
    return [
        name
        for name, right in expected.items()
        if name != "loss" and not torch.allclose(outcome[name], right, rtol=1e-9, atol=1e-12)
    ]


def first_difference(outcome: dict, expected: dict) -> list[str]:
    name, *_ = [*wrong_gradients(outcome, expected), "loss"]
    right_so_far = "the gradients are right; " if name == "loss" else ""
    line = f"{right_so_far}expected the {name} {short(expected[name])}"
    return [line, f"got {short(outcome[name])}"]


def what_counts(outcome: dict, expected: dict) -> str:
    wrong = wrong_gradients(outcome, expected)
    if not wrong:
        return ""
    if same(outcome, expected):
        return FLOAT32
    if wrong == ["gradient of front"]:
        return HAND_OVER
    return COUNTS_BY


def my_step(model, loss_fn, inputs, targets, split_size):
    """Scale each piece's mean loss by its share of the rows, then let the gradients add up.

    Dividing by the number of pieces gives a short last piece too much weight; not scaling makes
    gradients grow with the number of pieces. Scaling before backward scales the gradient as well.
    """
    total = 0.0
    pieces = zip(inputs.split(split_size), targets.split(split_size), strict=True)
    for piece, answer in pieces:
        loss = loss_fn(model(piece), answer) * len(piece) / len(inputs)
        loss.backward()
        total += loss.item()
    return total


def step_with(scale, *, clear=False, pick=slice(None), backwards=slice(None), result=float):
    """A step that weights each piece by `scale(n, N, pieces)`."""

    def attempt(model, loss_fn, inputs, targets, size):
        parts = list(zip(inputs.split(size), targets.split(size), strict=True))
        total = 0.0
        for number, (x, y) in enumerate(parts[pick]):
            if clear:
                model.zero_grad()
            loss = loss_fn(model(x), y) * scale(len(x), len(inputs), len(parts))
            if number in range(len(parts))[backwards]:
                loss.backward()
            total += loss.item()
        return result(total)

    return attempt


def share(n, rows, pieces):
    return n / rows


def with_squared_errors(model, loss_fn, inputs, targets, size):
    return my_step(model, lambda o, t: ((o - t) ** 2).mean(), inputs, targets, size)


def with_an_optimizer(model, loss_fn, inputs, targets, size):
    loss = my_step(model, loss_fn, inputs, targets, size)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


def in_single_precision(model, loss_fn, inputs, targets, size):
    return my_step(model.float(), loss_fn, inputs.float(), targets.float(), size)


def there_and_back(model, loss_fn, inputs, targets, size):
    exact = model.weight.detach().clone()
    loss = in_single_precision(model, loss_fn, inputs, targets, size)
    model.double()
    model.weight.data.copy_(exact)
    return loss


def by_sums(model, loss_fn, inputs, targets, size):
    parts = list(zip(inputs.split(size), targets.split(size), strict=True))
    losses = [loss_fn(model(x), y) * (len(x) / len(inputs)) for x, y in parts]
    torch.stack(losses).sum().backward()
    return torch.stack(losses).sum().detach()


def by_the_engine(model, loss_fn, inputs, targets, size):
    pipeline = Pipeline([nn.Sequential(model)], ["cpu"], microbatch_size=size)
    return pipeline.step(inputs, targets, loss_fn, reduction="mean")


check_pieces = Exercise(
    my_step,
    read_again='"What does a short piece count?"',
    cases=PIECES,
    given=lambda rows, size, loss_fn: f"{rows} rows and split_size {size}",
    play=in_pieces(nn.Linear(3, 1, bias=False)),
    same=exactly_same,
    compared=first_difference,
    hint=what_counts,
    correct="Loss and gradients are those of the whole mini-batch, ragged or not.",
    wrong={
        ADDED_UP: step_with(lambda n, rows, pieces: 1.0),
        MEAN_OF_MEANS: step_with(lambda n, rows, pieces: 1 / pieces),
        "Only the last piece is left: do not clear the gradients between pieces.": [
            step_with(lambda n, rows, pieces: 1.0, clear=True),
            step_with(share, clear=True),
        ],
        ONLY_THE_FIRST: [
            step_with(share, backwards=slice(1)),
            step_with(lambda n, rows, pieces: 1.0, backwards=slice(1)),
        ],
        OWN_LOSS: with_squared_errors,
        LOST_ROWS: step_with(share, pick=slice(-1)),
        "expected pieces of [2, 2] rows, the model saw [4]": (
            lambda model, loss_fn, x, y, size: my_step(model, loss_fn, x, y, len(x))
        ),
        NO_GRADIENT.format("model"): step_with(share, backwards=slice(0)),
        "the gradients are right; expected the loss": [
            step_with(share, result=lambda total: 2 * total),
            step_with(share, result=lambda total: None),
        ],
        OPTIMIZER: with_an_optimizer,
        DTYPE.format(torch.float32): in_single_precision,
        FLOAT32: there_and_back,
        COUNTS_BY: step_with(lambda n, rows, pieces: 0.3 * n),
    },
    also_right=[by_sums, by_the_engine],
)


def my_cut_step(front, back, loss_fn, inputs, targets, split_size):
    """The leaf ends the back's graph and catches the gradient; the front's goes on from it.

    Without requires_grad_() nothing arrives at the leaf, without detach() one backward runs
    through both stages, and without the last line the front never learns.
    """
    total = 0.0
    pieces = zip(inputs.split(split_size), targets.split(split_size), strict=True)
    for piece, answer in pieces:
        output = front(piece)
        leaf = output.detach().requires_grad_()
        loss = loss_fn(back(leaf), answer) * len(piece) / len(inputs)
        loss.backward()
        output.backward(leaf.grad)
        total += loss.item()
    return total


def cut_step_with(
    scale=lambda share, pieces: share,
    *,
    cut=lambda output: output.detach().requires_grad_(),
    hand_on=lambda output, leaf: output.backward(leaf.grad),
    only_last=False,
):
    """A step through a cut: how a loss is scaled, the graph cut, the gradient handed on."""

    def attempt(front, back, loss_fn, inputs, targets, size):
        total, parts = 0.0, list(zip(inputs.split(size), targets.split(size), strict=True))
        outputs = [front(x) for x, _ in parts]
        for number, (output, (x, y)) in enumerate(zip(outputs, parts, strict=True)):
            leaf = cut(output)
            loss = loss_fn(back(leaf), y) * scale(len(x) / len(inputs), len(parts))
            loss.backward()
            total += loss.item()
            if number == len(parts) - 1 or not only_last:
                hand_on(output, leaf)
        return total

    return attempt


def by_asking_for_gradients(front, back, loss_fn, inputs, targets, size):
    total = 0.0
    for x, y in zip(inputs.split(size), targets.split(size), strict=True):
        output, share = front(x), len(x) / len(inputs)
        leaf = output.clone().detach().requires_grad_(True)
        weights = list(back.parameters())
        loss = loss_fn(back(leaf), y)
        at_the_cut, *gradients = torch.autograd.grad(loss, [leaf, *weights])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = share * gradient + (0 if weight.grad is None else weight.grad)
        output.backward(share * at_the_cut)
        total += share * loss.item()
    return total


def cut_by_the_engine(front, back, loss_fn, inputs, targets, size):
    stages = [nn.Sequential(front), back]
    pipeline = Pipeline(stages, ["cpu:0", "cpu:1"], microbatch_size=size)
    return pipeline.step(inputs, targets, loss_fn, reduction="mean")


def front_twice(front, back, loss_fn, inputs, targets, size):
    front(inputs)
    return my_cut_step(front, back, loss_fn, inputs, targets, size)


check_cut_graph = Exercise(
    my_cut_step,
    read_again='"Can each device run its own backward?"',
    cases=PIECES,
    given=check_pieces.given,
    play=in_pieces(
        nn.Linear(3, 4, bias=False), nn.Sequential(nn.Tanh(), nn.Linear(4, 1, bias=False))
    ),
    same=exactly_same,
    compared=first_difference,
    hint=what_counts,
    correct="No graph crosses the cut, and loss and gradients are those of the whole mini-batch.",
    wrong={
        NOT_CUT: cut_step_with(cut=lambda output: output, hand_on=lambda output, leaf: None),
        NO_LEAF: [
            cut_step_with(cut=lambda output: output.detach(), hand_on=lambda output, leaf: None),
            cut_step_with(cut=lambda output: output.detach()),
        ],
        NOTHING_HANDED_ON: cut_step_with(hand_on=lambda output, leaf: None),
        "Only the last piece is there: keep one output per piece.": cut_step_with(only_last=True),
        ADDED_UP: cut_step_with(lambda share, pieces: 1.0),
        MEAN_OF_MEANS: cut_step_with(lambda share, pieces: 1 / pieces),
        FROM_A_NUMBER: cut_step_with(hand_on=lambda output, leaf: output.backward()),
        HAND_OVER: cut_step_with(
            hand_on=lambda output, leaf: output.backward(torch.ones_like(output))
        ),
        ONCE: front_twice,
        "expected pieces of [2, 2] rows, the front saw [4]": (
            lambda front, back, loss_fn, x, y, size: loss_fn(back(front(x)), y)
        ),
        "expected pieces of [2, 2] rows, the front saw []": (
            lambda front, back, loss_fn, x, y, size: None
        ),
    },
    also_right=[cut_step_with(), by_asking_for_gradients, cut_by_the_engine],
)

# 4. Choose the split without running


def my_split_size(sizes, num_samples, fixed, per_sample):
    """M micro-batches take m + 1 slots, each as long as one micro-batch in one stage.

    Small sizes pay the fixed cost often, large ones leave a long bubble. Between the two ends the
    best size lies near the square root of num_samples * fixed / per_sample: without a fixed cost
    the smallest wins, with a huge one the largest.
    """

    def step(size):
        return (num_samples / size + 1) * (fixed + per_sample * size)

    return min(sizes, key=step)


def step_of(size, rows, fixed, each, waits=1.0):
    return (rows / size + waits) * (fixed + each * size)


def best_if_it_waits(waits):
    return lambda sizes, *costs: min(sizes, key=lambda size: step_of(size, *costs, waits))


def by_simulation(sizes, rows, fixed, each):
    def step(size):
        costs = Costs((fixed + each * size) / 3, (fixed + each * size) * 2 / 3)
        return simulate(one_f_one_b_schedule(2, rows // size), costs).makespan

    return sorted(sizes, key=step)[0]


check_split_size = Exercise(
    my_split_size,
    read_again='"What does a micro-batch cost?" and the curve',
    cases=[
        ([3, 6, 12, 24, 48], 48, 3.0, 1.0),
        ([6, 12, 24, 48, 96], 96, 0.0, 1.0),
        ([5, 10, 20, 40], 40, 250.0, 1.0),
        ([5, 10, 20, 40, 60, 120], 120, 12.0, 2.0),
        ([60, 20, 30, 10], 60, 0.5, 0.1),
        ([6, 8, 10, 12, 15, 20], 120, 1.2, 1.0),  # with another wait: 8 or 15
    ],
    given="sizes {}, {} samples, fixed cost {:g}, {:g} per sample",
    hint="m micro-batches through two equal stages take m + 1 slots of fixed + per_sample * size.",
    wrong={
        "The smallest has the smallest bubble, but every micro-batch has its cost.": (
            lambda sizes, *_: min(sizes)
        ),
        "Best for one device: it pays the fixed cost least often. Nothing overlaps.": [
            lambda sizes, *_: max(sizes),
            best_if_it_waits(0),
        ],
        "That is the number of micro-batches; asked is their size.": (
            lambda s, rows, f, e: rows // my_split_size(s, rows, f, e)
        ),
        "That is the time of the step; asked is the size that has it.": (
            lambda sizes, *costs: min(step_of(size, *costs) for size in sizes)
        ),
        "That is the position in the list, not the size.": (
            lambda s, *costs: s.index(my_split_size(s, *costs))
        ),
        "One slot too many: each of two devices waits for one slot, not for two.": (
            best_if_it_waits(2)
        ),
        "Half a slot too few: each device waits for one slot, all in all.": best_if_it_waits(0.5),
        "m micro-batches through two equal stages": lambda s, rows, f, e: (
            100 + (rows * f / e) ** 0.5
        ),
    },
    also_right=[by_simulation],
)
