"""Exercises of page `train_mnist`: evaluation over ragged batches, batch norm's drift, its end."""

import torch
from torch import Tensor, nn

from mpcourse.exercises.exercise import Exercise, call_for_numbers, refuse_borrowed, same, short
from mpcourse.exercises.placed import place_on

# 1. Evaluate over a ragged set

HOST, LAST_STAGE = torch.device("cpu"), torch.device("cuda", 1)


def my_evaluate(model, batches, loss_fn):
    """Add up what belongs to samples, and divide once, at the end.

    A batch's loss is a mean, so it counts by its number of samples. The targets go where the
    outputs are, which only the outputs know. Each module's mode is remembered before it changes:
    `model.train(True)` at the end would wake what was frozen.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total, right, samples = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in batches:
            outputs = model(inputs)
            targets = targets.to(outputs.device)
            total += loss_fn(outputs, targets).item() * len(targets)
            right += (outputs.argmax(dim=1) == targets).sum().item()
            samples += len(targets)
    for module, mode in modes:
        module.training = mode
    return total / samples, right / samples


class Model(nn.Module):
    """A net with batch norm whose outputs lie on a device that pretends to be another."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
        for parameter in self.net.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.gradients_were_on = False

    def forward(self, inputs):
        """Take rows (N, 3), wherever they are, to outputs (N, 3) on the last stage's device."""
        self.gradients_were_on |= torch.is_grad_enabled()
        with torch._C.DisableTorchFunctionSubclass():  # any input will do, as for a Pipeline
            outputs = self.net(inputs.detach().as_subclass(Tensor))
        return place_on(outputs, LAST_STAGE)


def evaluated(attempt, sizes, mode):
    """What is returned, the modes and gradients that are left behind, and what is right."""
    generator = torch.Generator().manual_seed(sum(sizes))
    batches = [
        (2 + torch.randn(n, 3, generator=generator), torch.randint(0, 3, (n,), generator=generator))
        for n in sizes
    ]
    batches = [tuple(place_on(value, HOST) for value in batch) for batch in batches]
    models = [Model().train(mode != "evaluation") for _ in range(2)]
    for model in models:
        model.net[0].train(mode == "training")  # in the last case the norm is frozen
    model, twin = models
    result, right = attempt(model, batches, LOSS), my_evaluate(twin, batches, LOSS)
    left = model.training, model.net[0].training, model.gradients_were_on
    if same((result, left), (right, (twin.training, twin.net[0].training, False))):
        refuse_borrowed(attempt, {"evaluate"}, "write the loop over the batches.")
    return result, left, right


def same_evaluation(outcome, expected):
    """The same numbers; if they are right, what is left behind counts as well."""
    is_right = same(outcome[0], outcome[2])
    return same(outcome[0], expected[0]) and (not is_right or outcome[1] == expected[1])


def numbers_or_what_is_left(outcome, expected):
    if same(outcome[0], expected[0]):
        return ["The numbers are right."]
    return [f"expected {short(expected[0])}", f"got {short(outcome[0])}"]


def evaluating(numbers=None, *, eval_mode=True, move=True, restore="model", gradients=False, dim=1):
    """An evaluation with one thing done as people do it; `restore` what of the modes."""

    def attempt(model, batches, loss_fn):
        modes = [(module, module.training) for module in model.modules()]
        if eval_mode:
            model.eval()
        losses, rights, sizes = [], [], []
        with torch.set_grad_enabled(gradients):
            for inputs, targets in batches:
                outputs = model(inputs)
                targets = targets.to(outputs.device) if move else targets
                losses.append(loss_fn(outputs, targets).item())
                rights.append((outputs.argmax(dim) == targets).sum().item())
                sizes.append(len(targets))
        if restore == "model":
            model.train(modes[0][1])
        for module, mode in modes if restore == "all" else ():
            module.training = mode
        weighted = sum(loss * size for loss, size in zip(losses, sizes, strict=True))
        if numbers:
            return numbers(losses, rights, sizes, weighted)
        return weighted / sum(sizes), sum(rights) / sum(sizes)

    return attempt


def by_batches(rights, sizes):
    return sum(right / size for right, size in zip(rights, sizes, strict=True)) / len(sizes)


def accuracy(rights, sizes):
    return sum(rights) / sum(sizes)


def always_training_after(*given):
    result = my_evaluate(*given)
    given[0].train()
    return result


def only_the_loss(model, batches, loss_fn):
    targets = torch.cat([targets for _, targets in batches])
    return loss_fn(torch.cat([model.eval()(inputs) for inputs, _ in batches]), targets)


def all_at_once(model, batches, loss_fn):
    modes = {name: module.training for name, module in model.named_modules()}
    with torch.inference_mode():
        outputs = torch.cat([model.eval()(inputs).cpu() for inputs, _ in batches])
    for name, mode in modes.items():
        model.get_submodule(name).training = mode
    targets = torch.cat([targets.cpu() for _, targets in batches])
    return loss_fn(outputs, targets), outputs.max(1).indices.eq(targets).float().mean()


LOSS = nn.CrossEntropyLoss()
WEIGHT = "The last batch is smaller, but counts as much: weight by samples."
LEFT_IN = "The model is left in {} mode: what comes next would run in it, unnoticed."
TO_THE_OUTPUTS = "The outputs lie where the last stage is: bring the targets to output.device."
PER_ROW = "One answer per row of outputs: argmax(dim=1)."

check_evaluate = Exercise(
    my_evaluate,
    read_again='"Break 1: the mean of means"',
    cases=[
        ((4, 4), "training"),
        ((4, 4, 2), "training"),
        ((5, 3, 2), "evaluation"),
        ((4, 3), "training mode, its norm in evaluation"),
    ],
    given="batches of {} samples and a model in {} mode",
    play=evaluated,
    same=same_evaluation,
    compared=numbers_or_what_is_left,
    hint=lambda outcome, expected: (
        "Each module has to be in the mode in which it was, and no gradient recorded."
        if same(outcome[0], expected[0])
        else "Return the pair (loss, accuracy): the mean loss and the share of right answers."
    ),
    correct="Every sample counts once, in evaluation mode, and the mode is as it was.",
    wrong={
        WEIGHT: [
            evaluating(lambda losses, r, n, w: (sum(losses) / len(n), accuracy(r, n))),
            evaluating(lambda losses, r, n, w: (sum(losses) / len(n), by_batches(r, n))),
        ],
        "The last batch is smaller: count right answers, then divide once.": (
            evaluating(lambda losses, r, n, w: (w / sum(n), by_batches(r, n)))
        ),
        "The last batch is smaller: multiply its loss by its own number of samples.": (
            evaluating(lambda losses, r, n, w: (sum(losses) * n[0] / sum(n), accuracy(r, n)))
        ),
        "The losses are added up and never divided.": (
            evaluating(lambda losses, r, n, w: (sum(losses), accuracy(r, n)))
        ),
        "Each batch's loss is a mean: multiply by its samples before adding up.": (
            evaluating(lambda losses, r, n, w: (sum(losses) / sum(n), accuracy(r, n)))
        ),
        "The loss of all samples is added up, but not divided by their number.": (
            evaluating(lambda losses, r, n, w: (w, accuracy(r, n)))
        ),
        "Weighted by samples, but divided by the number of batches.": (
            evaluating(lambda losses, r, n, w: (w / len(n), accuracy(r, n)))
        ),
        "That is the number of right answers; the share is asked for.": (
            evaluating(lambda losses, r, n, w: (w / sum(n), sum(r)))
        ),
        "Accuracy is a share from 0 to 1 here, no percentage.": (
            evaluating(lambda losses, r, n, w: (w / sum(n), 100 * accuracy(r, n)))
        ),
        "First the loss, then the accuracy.": (
            evaluating(lambda losses, r, n, w: (accuracy(r, n), w / sum(n)))
        ),
        "the pair (loss, accuracy)": evaluating(lambda losses, r, n, w: w / sum(n)),
        "argmax() alone looks through the whole batch: argmax(dim=1) per row.": (
            evaluating(dim=None)
        ),
        PER_ROW: evaluating(dim=0),
        "That is the model in training mode: call model.eval() before the loop.": [
            evaluating(eval_mode=False),
            evaluating(
                lambda losses, r, n, w: (sum(losses) / len(n), accuracy(r, n)), eval_mode=False
            ),
            evaluating(
                lambda losses, r, n, w: (sum(losses) / len(n), by_batches(r, n)), eval_mode=False
            ),
        ],
        LEFT_IN.format("evaluation"): evaluating(restore=""),
        LEFT_IN.format("training"): always_training_after,
        "The norm's own mode has changed: its memory would move again.": evaluating(),
        "Without gradients was asked for: use torch.no_grad().": evaluating(gradients=True),
        TO_THE_OUTPUTS: [evaluating(move=False), only_the_loss],
    },
    errors={"same device": TO_THE_OUTPUTS, "must match": PER_ROW},
    also_right=[all_at_once, evaluating(restore="all")],
)

# 2. How far batch norm's memory drifts


def my_drift(momentum, num_microbatches):
    """Each move leaves a share of 1 - momentum of the way, whoever moves.

    The unsplit layer moves once and the cut one once per micro-batch. The distance between them is
    the difference of what is left. It grows with the micro-batches, up to 1 - momentum.
    """
    return (1 - momentum) - (1 - momentum) ** num_microbatches


def drift_by_moving(momentum, num_microbatches):
    cut = 0.0
    for _ in range(num_microbatches):
        cut += momentum * (1 - cut)
    return torch.tensor(cut - momentum)


check_drift = Exercise(
    my_drift,
    read_again='"How far does the memory move?"',
    cases=[(0.1, 8), (0.1, 2), (0.5, 3), (0.1, 1), (1.0, 4)],
    given="momentum {}, {} micro-batch(es)",
    hint="After one move 1 - momentum is left of the way. After num_microbatches moves?",
    wrong={
        "The sign: ask how far apart they are, as a number from 0 to 1.": (
            lambda a, m: -my_drift(a, m)
        ),
        "Every micro-batch moves the running mean, so it moves more than once.": lambda a, m: 0.0,
        "That is how far the cut layer moves; the unsplit one moves too, by momentum.": (
            lambda a, m: 1 - (1 - a) ** m
        ),
        "That is how far it still is from the mean of the data, not from the other layer.": (
            lambda a, m: (1 - a) ** m
        ),
        "Each move is a share of what is left, so the moves get smaller.": [
            lambda a, m: (m - 1) * a,
            lambda a, m: m * a,
        ],
        "The first move is a part of the way already.": lambda a, m: 1 - (1 - a) ** (m - 1),
        "Right but for the rounding: return the number as it is.": [
            lambda a, m: round(my_drift(a, m), 3),
            lambda a, m: round(my_drift(a, m), 2),
        ],
        "After one move 1 - momentum is left": lambda a, m: a,
    },
    also_right=[drift_by_moving],
)

# 3. The statistics of all micro-batches from those of each


def my_merged(counts, means, variances):
    """Add up the squared distances from the common mean, from two sources.

    Within a micro-batch they are variance times (count - 1), since the variance is unbiased. All of
    its values are also shifted from the common mean by the distance of its own mean. The sum is
    divided by the number of all values less one.
    """
    rows = list(zip(counts, means, variances, strict=True))
    total = sum(counts)
    mean = sum(n * m for n, m, _ in rows) / total
    squares = sum((n - 1) * v + n * (m - mean) ** 2 for n, m, v in rows)
    return mean, squares / (total - 1)


def statistics_of(*groups):
    groups = [torch.tensor(group, dtype=torch.float64) for group in groups]
    return [*map(len, groups)], [g.mean().item() for g in groups], [g.var().item() for g in groups]


def merged(variance=lambda n, m, v: my_merged(n, m, v)[1], mean=lambda n, m: weighted(n, m)):
    return lambda n, m, v: (mean(n, m), variance(n, m, v))


def weighted(counts, values):
    return sum(n * x for n, x in zip(counts, values, strict=True)) / sum(counts)


def plain(counts, values):
    return sum(values) / len(values)


def less_one(counts):
    return [n - 1 for n in counts]


def between(n, m):
    """The mean squared distance of the micro-batches' means from the common one."""
    return weighted(n, [(mean - weighted(n, m)) ** 2 for mean in m])


def merged_two_by_two(counts, means, variances):
    count, mean, squares = 0, 0.0, 0.0
    for n, m, v in zip(counts, means, variances, strict=True):
        squares += (n - 1) * v + (m - mean) ** 2 * count * n / (count + n)
        mean += (m - mean) * n / (count + n)
        count += n
    return torch.tensor([mean, squares / (count - 1)])


SPREAD_LOST = [
    lambda n, m, v: plain(n, v),
    lambda n, m, v: weighted(n, v),
    lambda n, m, v: weighted(less_one(n), v),
    lambda n, m, v: weighted(less_one(n), v) * sum(less_one(n)) / (sum(n) - 1),
    lambda n, m, v: weighted(less_one(n), v) * sum(less_one(n)) / sum(n),
]

check_merged = Exercise(
    my_merged,
    read_again='"Can the memory be put right?"',
    cases=[
        statistics_of([1.0, 3.0], [5.0, 9.0]),
        statistics_of([1.0, 2.0, 6.0], [4.0, 8.0]),
        statistics_of([2.5, 3.5, 7.0, -1.0]),
        statistics_of([0.0, 4.0], [1.0, 3.0], [2.0, 2.5, 1.5]),
    ],
    given=lambda *given: "counts {}, means {}, variances {}".format(*map(short, given)),
    play=call_for_numbers,
    hint="Add up the squares around the common mean: within each micro-batch, and of its mean.",
    wrong={
        "The spread between the micro-batches' means is lost: they differ, too.": [
            merged(variance) for variance in SPREAD_LOST
        ],
        "Micro-batches of different sizes: each mean counts by its number of values.": [
            merged(mean=plain),
            *(merged(variance, plain) for variance in SPREAD_LOST),
        ],
        "Divide by the number of values less one, as torch does here.": (
            merged(lambda n, m, v: my_merged(n, m, v)[1] * (sum(n) - 1) / sum(n))
        ),
        "These variances are unbiased: a sum of squares is variance times (count - 1).": (
            merged(lambda n, m, v: weighted(n, v) + between(n, m))
        ),
        "A micro-batch's sum of squares is its variance times (count - 1).": (
            merged(lambda n, m, v: (weighted(n, v) + between(n, m)) * sum(n) / (sum(n) - 1))
        ),
        "That is the standard deviation; the variance is asked for.": (
            merged(lambda n, m, v: my_merged(n, m, v)[1] ** 0.5)
        ),
        "First the mean, then the variance.": lambda *given: my_merged(*given)[::-1],
        "That is the mean alone; return the pair (mean, variance).": (
            lambda *given: my_merged(*given)[0]
        ),
        "Add up the squares around the common mean": (
            lambda n, m, v: my_merged([10] * len(n), m, v)
        ),
        "None is what a function without return": lambda *given: None,
    },
    also_right=[merged_two_by_two, lambda *given: list(map(torch.tensor, my_merged(*given)))],
)
