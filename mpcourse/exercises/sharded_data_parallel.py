"""Exercises of page `sharded_data_parallel`: bytes, a step, a backward, a norm."""

import math
from threading import current_thread
from types import SimpleNamespace

import torch
from torch import Tensor, distributed, nn

from mpcourse.exercises.exercise import Exercise, NotYet, call_for_numbers, short
from mpcourse.multiprocess import ranks_in_threads

WAIT_S = 5.0  # for ranks that do not send the same messages
WAITED = r"gloo[/\\]|[Cc]onnection|imed out|had not returned"  # what is raised then

# 1. The bytes of each stage


def my_bytes_held(parameters, ranks, stage, each):
    """What is shared out is divided by the ranks. The state is the first, the weights the last."""
    weight, gradient, state = each
    held = weight / (ranks if stage >= 3 else 1)
    held += gradient / (ranks if stage >= 2 else 1)
    held += state / (ranks if stage >= 1 else 1)
    return parameters * held


check_bytes_held = Exercise(
    my_bytes_held,
    read_again='"What need not be on every rank?"',
    cases=[
        (10, 2, 0, (2, 2, 12)),
        (10, 2, 1, (2, 2, 12)),
        (12, 3, 2, (8, 4, 16)),
        (12, 4, 3, (8, 4, 16)),
        (100, 5, 3, (2, 2, 12)),
    ],
    given="{} parameters, {} ranks, stage {}, {} bytes each",
    play=call_for_numbers,
    hint="Each of the three is divided by the ranks from some stage on.",
    wrong={
        "In stage 0 nothing is shared out.": lambda p, n, stage, each: p * sum(each) / n,
        "The stages add up: stage 2 shares the state too, stage 3 all.": "stage >= => stage ==",
        "The state is the first that is shared out, the weights the last.": (
            "weight, gradient, state = => state, gradient, weight ="
        ),
        "Stage 1 shares the state alone, stage 2 the gradients too.": [
            ">= 2 => >= 1",
            (">= 2 => >= 1", ">= 3 => >= 1"),
        ],
        "Stage 2 shares gradients and state, stage 3 the weights too.": [
            ">= 2 => >= 3",
            ">= 3 => >= 4",
            ">= 3 => >= 2",
        ],
        "Here stage 1 shares nothing, but it is the first that does.": "stage >= => stage >",
        "These are the bytes of all ranks together: what does one hold?": (
            "* held => * held * ranks"
        ),
        "These are bytes of one parameter: there are {0}.": "parameters * => ",
        "These are numbers, not bytes: each has its own size.": "= each => = 1, 1, 1",
        "What is shared out over {1} ranks leaves a part of it, not nothing.": (
            "/ (ranks if => * (0 if"
        ),
        "A part need not be a whole number: divide by `/`, not by `//`.": "/ => //",
        "The sizes come in `each`: here they are {3}.": "= each => = 2, 2, 12",
        "Return one number: weights, gradients and state together.": (
            lambda p, n, stage, each: [p * size for size in each]
        ),
        "from some stage on": lambda *_: 7,
    },
    also_right=[
        lambda p, n, stage, each: p * sum(b / n ** (stage > 2 - i) for i, b in enumerate(each)),
        lambda p, n, stage, each: torch.tensor(
            p * (sum(each[: 3 - stage]) + sum(each[3 - stage :]) / n)
        ),
    ],
)

# 2. A step whose optimizer has a part of each weight

SIZES = (4, 3), (4,)  # of the weights
COPY = "This weight has new storage, and its part keeps the old one alive: copy into the weight."
SCATTER_FIRST = "A part has no gradient yet: it comes from `scatter(weight.grad)`."
ONE_ROW = "`gather` gives one row of numbers: `.view_as(weight)` gives it the weight's shape."
NO_LEAF = "Autograd looks on: change the numbers of a weight by `weight.data.copy_(...)`."
OF_THE_PARTS = "The optimizer has the parts: what `scatter` returns goes into `part.grad`."
ALL_SEND = "All ranks have to scatter and gather equally often, in one order."


def my_state_step(weights, parts, optimizer, scatter, gather):
    """Each part gets its average, the optimizer changes the parts, and all ranks gather them.

    The weights' own gradients go, for the next backward would add to them.
    """
    for weight, part in zip(weights, parts, strict=True):
        part.grad = scatter(weight.grad)
        weight.grad = None
    optimizer.step()
    for weight, part in zip(weights, parts, strict=True):
        weight.data.copy_(gather(part).view_as(weight))


def on_states(attempt, ranks):
    """Of each rank the weights after each of two steps, in one row."""
    draw = torch.Generator().manual_seed(ranks)
    first = [torch.randn(size, generator=draw).double() for size in SIZES]
    given = [[torch.randn(2, ranks, *size, generator=draw).double()] for size in SIZES]

    def program(group):
        weights = [nn.Parameter(weight.clone()) for weight in first]
        own, places = group.rank(), [weight.data_ptr() for weight in weights]
        parts = [weight.data.view(-1).chunk(ranks)[own] for weight in weights]
        optimizer = torch.optim.SGD(parts, lr=0.1, momentum=0.9)

        def scatter(tensor):
            found = tensor.new_empty(tensor.numel() // ranks)
            distributed.reduce_scatter_tensor(found, tensor.reshape(-1), group=group)
            return found / ranks

        def gather(part):
            found = part.new_empty(part.numel() * ranks)
            distributed.all_gather_into_tensor(found, part.detach().contiguous(), group=group)
            return found

        found = []
        for step in range(2):
            for weight, (gradients,) in zip(weights, given, strict=True):
                new = gradients[step, own]  # a backward adds to what is there
                weight.grad = new.clone() if weight.grad is None else weight.grad + new
            if attempt(weights, parts, optimizer, scatter, gather) is ...:
                return ...
            if [weight.data_ptr() for weight in weights] != places:
                raise NotYet("", COPY)
            found += [weight.detach().flatten().clone() for weight in weights]
        return torch.cat(found)

    found = ranks_in_threads(program, ranks, timeout_s=WAIT_S)
    return found[0] if found[0] is ... else torch.stack(found)


def states_in_words(outcome, expected):
    half = expected.shape[1] // 2
    said = []
    for step, columns in enumerate((slice(half), slice(half, None)), start=1):
        pairs = zip(outcome[:, columns], expected[:, columns], strict=True)
        wrong = [rank for rank, pair in enumerate(pairs) if not torch.allclose(*pair)]
        said.append(f"after step {step} " + (f"wrong on ranks {wrong}" if wrong else "right"))
    return [f"The weights are {', '.join(said)}."]


def step_inside(weights, parts, optimizer, scatter, gather):
    for weight, part in zip(weights, parts, strict=True):
        part.grad, weight.grad = scatter(weight.grad), None
        optimizer.step()
        weight.data.copy_(gather(part).view_as(weight))


def gather_first(weights, parts, optimizer, scatter, gather):
    for weight, part in zip(weights, parts, strict=True):
        part.grad, weight.grad = scatter(weight.grad), None
        weight.data.copy_(gather(part).view_as(weight))
    optimizer.step()


def step_first(weights, parts, optimizer, scatter, gather):
    optimizer.step()
    for weight, part in zip(weights, parts, strict=True):
        part.grad, weight.grad = scatter(weight.grad), None
        weight.data.copy_(gather(part).view_as(weight))


def all_gradients_first(weights, parts, optimizer, scatter, gather):
    for part, new in zip(parts, [scatter(weight.grad) for weight in weights], strict=True):
        part.grad = new
    optimizer.step()
    optimizer.zero_grad()
    for weight, whole in zip(weights, [gather(part) for part in parts], strict=True):
        with torch.no_grad():
            weight.flatten().copy_(whole)
        weight.grad = None


check_state_step = Exercise(
    my_state_step,
    read_again='"The state: stage 1"',
    cases=[(1,), (2,), (4,)],
    given="two weights on {0} rank(s), two steps of SGD with momentum",
    play=on_states,
    compared=states_in_words,
    hint="Scatter all gradients into the parts, step once, gather all parts into the weights.",
    correct="All ranks have the weights that one rank reaches alone, with parts of the state.",
    wrong={
        "A rank has changed its own part only: gather all, and copy them into the weight.": [
            "weight.data.copy_(gather(part).view_as(weight)) => pass",
            "weight.data.copy_(gather(part).view_as(weight)) => weight = gather(part)",
        ],
        "Step 2 still has step 1's gradients: let `weight.grad` go, add nothing to `part.grad`.": [
            "weight.grad = None => pass",
            "= scatter(weight.grad) => = scatter(weight.grad) + (0 if part.grad is None else "
            "part.grad)",
        ],
        "The parts were gathered before the optimizer changed them.": gather_first,
        "The optimizer steps before the parts have their gradients.": step_first,
        "The optimizer steps once, when all parts have their gradients.": step_inside,
        "The optimizer has not stepped, or its parts had no gradient.": "optimizer.step() => pass",
        "`scatter` gives an average already.": (
            "scatter(weight.grad) => scatter(weight.grad) * len(part) / weight.numel()"
        ),
        "`scatter` gives an average, not a sum.": (
            "scatter(weight.grad) => scatter(weight.grad) / len(part) * weight.numel()"
        ),
        "Gather the parts, which are new weights, and not their gradients.": (
            "gather(part) => gather(part.grad)"
        ),
        "A rank's own gradient is of its own rows: `scatter` makes the average of all.": (
            "scatter(weight.grad) => weight.grad.view(-1)[: len(part)].clone()"
        ),
        "Every weight counts, not one of them.": (
            "zip(weights, parts, => zip(weights[:1], parts[:1],"
        ),
        COPY: (
            "weight.data.copy_(gather(part).view_as(weight)) => "
            "weight.data = gather(part).view_as(weight)"
        ),
        ONE_ROW: ".view_as(weight) => ",
        SCATTER_FIRST: "scatter(weight.grad) => scatter(part.grad)",
        NO_LEAF: "weight.data.copy_ => weight.copy_",
        OF_THE_PARTS: "part.grad = scatter(weight.grad) => weight.grad = scatter(weight.grad)",
        ALL_SEND: lambda *given: (
            my_state_step(*given) if current_thread().name == "rank 0" else None
        ),
        "Scatter all gradients": lambda weights, *_: weights[0].data.zero_(),
    },
    errors={
        "'NoneType' object has no attribute": SCATTER_FIRST,
        "a leaf Variable": NO_LEAF,
        r"assign\w* (a )?grad": OF_THE_PARTS,
        "must match the size|[Ss]hape|size of tensor": ONE_ROW,
        WAITED: ALL_SEND,
    },
    also_right=[
        all_gradients_first,
        "weight.data.copy_(gather(part).view_as(weight)) => weight.data.view(-1)[:] = gather(part)",
    ],
)

# 3. The backward of a layer whose weights are elsewhere


def my_layer_backward(x, part, gradient, gather, scatter):
    """The weights are gathered once more, for the gradient of x goes through them.

    This rank's rows give a gradient of all weights. The average over the ranks is of all rows, and
    of it each rank keeps its part.
    """
    whole = gather(part).view(-1, x.shape[1] + 1)
    of_whole = torch.cat([gradient.T @ x, gradient.sum(0).unsqueeze(1)], dim=1)
    return gradient @ whole[:, :-1], scatter(of_whole)


ROWS, INSIDE, OUTSIDE = 3, 5, 4  # of a rank; numbers that go in, that come out
TWO = "Return two tensors: the gradient of x, and the gradient of this rank's part."
SCATTER_ONCE = "One gather and one scatter are enough, on every rank."
BESIDE = "The whole is (outputs, inputs + 1): the gradient of the bias is its last column."
SHAPES = "gradient: (rows, outputs), x: (rows, inputs), weight: (outputs, inputs)."
THE_X = "The weights are all columns but the last of gather(part).view(-1, inputs + 1)."
NO_BIAS = "The last column is the bias: the gradient of x goes through the weights alone."
OWN_ROWS = "The gradient of x stays here: these rows are of this rank alone."
ONE_EACH = "The gradient of the bias has one number for each output: `gradient.sum(0)`."
THE_PART = (
    "Scatter one table, (outputs, inputs + 1): gradient.T @ x, and the sum of the gradient's rows."
)
ALL_RANKS = "All ranks have to gather and scatter equally often, in one order."
A_TABLE = "`gather` gives one row of numbers: make it a table, `.view(-1, inputs + 1)`."
A_COLUMN = "The sum over the rows has one dimension: `.unsqueeze(1)` makes it a column."
PART_ALONE = "`part` is a part of the weights: gather them again."
OF_THE_PART = "What it takes back is as long as `part`: a gradient of all weights, scattered."


def on_shares(attempt, ranks):
    """On each rank, both gradients and how often it gathered and scattered."""
    draw = torch.Generator().manual_seed(ranks)
    whole = torch.randn(OUTSIDE, INSIDE + 1, generator=draw).double()
    rows = torch.randn(ranks, ROWS, INSIDE, generator=draw).double()
    gradients = torch.randn(ranks, ROWS, OUTSIDE, generator=draw).double()

    def program(group):
        calls = []

        def gather(part):
            calls.append("gather")
            found = part.new_empty(whole.numel())
            distributed.all_gather_into_tensor(found, part.contiguous(), group=group)
            return found

        def scatter(tensor):
            if tensor.numel() != whole.numel():
                words = f"scatter got {tensor.numel()} numbers; the weights are {whole.numel()}"
                raise NotYet(words, OWN_ROWS if tensor.shape == (ROWS, INSIDE) else BESIDE)
            calls.append("scatter")
            found = tensor.new_empty(whole.numel() // ranks)
            distributed.reduce_scatter_tensor(found, tensor.reshape(-1), group=group)
            return found / ranks

        own = group.rank()
        part = whole.view(-1).chunk(ranks)[own].clone()
        found = attempt(rows[own].clone(), part, gradients[own].clone(), gather, scatter)
        if found is ...:
            return found
        pair = isinstance(found, tuple | list) and len(found) == 2
        if not pair or not all(isinstance(each, Tensor) for each in found):
            raise NotYet(f"got {short(found)} on rank {own}", TWO)
        of_x, of_part = (each.detach() for each in found)
        if of_x.shape != (ROWS, INSIDE):
            shape = f"the gradient of x has the shape {tuple(of_x.shape)}"
            why = NO_BIAS if of_x.shape == (ROWS, INSIDE + 1) else TWO
            raise NotYet(f"{shape}; x has {(ROWS, INSIDE)}", why)
        return of_x, of_part.reshape(-1), calls

    found = ranks_in_threads(program, ranks, timeout_s=WAIT_S)
    return found[0] if found[0] is ... else found


def same_gradients(outcome, expected):
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-9)
        for mine, right in zip(outcome, expected, strict=True)
        for a, b in zip(mine[:2], right[:2], strict=True)
    ) and all(len(mine[2]) <= 2 for mine in outcome)


def gradients_in_words(outcome, expected):
    (of_x, of_part, calls), (right_x, right_part, _) = outcome[0], expected[0]
    if of_part.shape != right_part.shape:
        return [f"expected {len(right_part)} numbers for the part, got {len(of_part)}"]
    states = [
        "right" if torch.allclose(*pair, rtol=0, atol=1e-9) else "wrong"
        for pair in ((of_x, right_x), (of_part, right_part))
    ]
    words = f"on rank 0 the gradient of x is {states[0]}, that of the part {states[1]}"
    return [words, f"messages: {', '.join(calls) or 'none'}"]


def why_these_gradients(outcome, expected):
    (of_x, of_part, calls), (right_x, right_part, _) = outcome[0], expected[0]
    if len(calls) > 2:
        return SCATTER_ONCE
    if of_part.shape != right_part.shape:
        return OF_THE_PART
    return THE_PART if torch.allclose(of_x, right_x) else THE_X


def by_autograd(x, part, gradient, gather, scatter):
    whole = gather(part).view(-1, x.shape[1] + 1).requires_grad_()
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        output = nn.functional.linear(x, whole[:, :-1], whole[:, -1])
    of_x, of_whole = torch.autograd.grad(output, [x, whole], gradient)
    return [of_x, scatter(of_whole)]


def with_ones(x, part, gradient, gather, scatter):
    of_part = scatter(gradient.mT @ torch.cat([x, torch.ones_like(x[:, :1])], 1))
    return gradient @ gather(part).view(gradient.shape[1], -1)[:, : x.shape[1]], of_part


check_layer_backward = Exercise(
    my_layer_backward,
    read_again='"The weights: stage 3"',
    cases=[(1,), (2,), (4,)],
    given="a layer of 5 inputs and 4 outputs on {0} rank(s)",
    play=on_shares,
    same=same_gradients,
    compared=gradients_in_words,
    hint=why_these_gradients,
    correct="Both gradients are those of the whole layer, with one gather and one scatter.",
    wrong={
        "Each rank has seen its own rows only: the gradient of the part is an average over the "
        "ranks, which `scatter` makes.": "scatter(of_whole) => of_whole.view(-1)[: len(part)]",
        "`scatter` divides by the ranks already: it gives an average.": [
            "scatter(of_whole) => scatter(of_whole) * len(part) / of_whole.numel()",
            "scatter(of_whole) => scatter(of_whole) / len(part) * of_whole.numel()",
        ],
        "The gradient of x needs all weights: gather them again.": (  # zeros around the part
            "gather(part) => nn.functional.pad(part, (0, OUTSIDE * (INSIDE + 1) - len(part)))"
        ),
        "The gradient of the weights is transposed: the product is (outputs, inputs).": (
            "gradient.T @ x => (x.T @ gradient).reshape(OUTSIDE, INSIDE)"
        ),
        "The gradient of the bias is the sum over the rows, not their mean.": ".sum => .mean",
        "The bias has a gradient, too.": "gradient.sum => 0 * gradient.sum",
        "The gradient of the weights is a sum over the rows; `scatter` averages over ranks.": (
            "dim=1) => dim=1) / len(x)"
        ),
        "The weights are all columns but the last, which is the bias.": ":-1] => 1:]",
        BESIDE: [
            ("gradient.T @ x => (gradient.T @ x).flatten()", ".unsqueeze(1)], dim=1 => ]"),
            "scatter(of_whole) => scatter(gradient.T @ x)",
        ],
        A_TABLE: [".view(-1, x.shape[1] + 1) => ", "x.shape[1] + 1 => x.shape[1]"],
        PART_ALONE: "gather(part) => part",
        NO_BIAS: "[:, :-1] => ",
        "The bias is the last column of the table, not the first.": (
            "[gradient.T @ x, gradient.sum(0).unsqueeze(1)] => "
            "[gradient.sum(0).unsqueeze(1), gradient.T @ x]"
        ),
        "The table is (outputs, inputs + 1), and its transpose has as many numbers.": (
            "dim=1) => dim=1).T"
        ),
        OWN_ROWS: "gradient @ whole[:, :-1] => scatter(gradient @ whole[:, :-1])",
        ONE_EACH: ["sum(0) => sum(1)", "sum(0) => sum()"],
        OF_THE_PART: "scatter(of_whole) => of_whole",
        A_COLUMN: ".unsqueeze(1) => ",
        SHAPES: "gradient.T @ x => x.T @ gradient",
        ALL_RANKS: lambda x, part, *given: (
            my_layer_backward(x, part, *given) if current_thread().name == "rank 0" else (x, part)
        ),
        TWO: [", scatter(of_whole) => ", lambda *given: my_layer_backward(*given)[::-1]],
        SCATTER_ONCE: "whole = gather => gather(part); whole = gather",
    },
    errors={
        "too many indices|invalid tensor size|for input of size": A_TABLE,
        f"size {OUTSIDE} but got size {ROWS}|Dimension out of range": ONE_EACH,
        "number of dimensions": A_COLUMN,
        rf"{ROWS}x{OUTSIDE} and {OUTSIDE // 2}x": PART_ALONE,
        r"shape[s ]|[Ss]izes? ": SHAPES,
        WAITED: ALL_RANKS,
    },
    also_right=[by_autograd, with_ones],
)

# 4. The bytes that are sent


def my_bytes_sent(parameters, itemsize, ranks, stage, backwards):
    """A reduce-scatter and an all-gather each send (n - 1) / n of what they are given.

    Stages 0 and 1 send one of each, once all gradients have added up. Stage 2 scatters in every
    backward and gathers once. Stage 3 gathers twice and scatters once for every backward.
    """
    rounds = [2, 2, backwards + 1, 3 * backwards][stage]
    return rounds * (ranks - 1) / ranks * parameters * itemsize


check_bytes_sent = Exercise(
    my_bytes_sent,
    read_again='"How many bytes does each rank send?"',
    cases=[
        (10, 8, 2, 0, 1),
        (12, 4, 3, 0, 3),
        (12, 4, 3, 1, 3),
        (12, 4, 3, 2, 1),
        (12, 4, 3, 2, 5),
        (20, 2, 5, 3, 1),
        (20, 2, 5, 3, 4),
        (20, 2, 1, 3, 2),
    ],
    given="{} parameters of {} bytes on {} rank(s), stage {}, {} backward(s)",
    play=call_for_numbers,
    hint="Count the messages of the stage, and what a ring sends for each.",
    wrong={
        "The all-gather of stage 1 is not on top: a reduce-scatter takes the place of the "
        "all-reduce.": [
            "[2, 2, backwards + 1 => [2, 3, backwards + 2",
            "[2, 2 => [2, 3",
        ],
        "Stages 0 and 1 send in the step, when the gradients of all backwards have added up.": [
            "[2, 2 => [2, backwards + 1",
            "[2, => [2 * backwards,",
            "[2, 2 => [2 * backwards, backwards + 1",
            "[2, 2 => [backwards + 1, backwards + 1",
            "2, 2, backwards + 1 => 2 * backwards, 2 * backwards, 2 * backwards",
        ],
        "With one backward stage 2 sends what stage 1 sends, at another time.": [
            "backwards + 1 => backwards",
            "+ 1 => + 2",
            ("+ 1 => + 2", "3 * => 4 *"),
        ],
        "Stage 2 lets a gradient go when it is scattered, so every backward scatters anew.": [
            "backwards + 1 => 2",
            "backwards + 1, 3 * backwards => 2, 3",
        ],
        "Stage 2 gathers the weights once in a step, after the update.": (
            "backwards + 1 => 2 * backwards"
        ),
        "Stage 3 gathers the weights twice: for the forward and for the backward.": [
            "3 * => 2 *",
            "3 * backwards => backwards + 1",
        ],
        "Stage 3 gathers twice and scatters once; after the step nothing is gathered.": [
            "3 * => 4 *",
            "3 * => 1 + 3 *",
        ],
        "Stage 3 keeps nothing whole: each of the {4} backwards sends all three rounds.": [
            "3 * backwards => 3",
            "3 * => 2 +",
            "3 * => 1 + 2 *",
        ],
        "An all-reduce is a reduce-scatter and an all-gather: two rounds.": [
            "[2, => [1,",
            "2, 2, backwards + 1, 3 * => 1, 1, backwards, 2 *",
            ("[2, => [1,", "3 * => 2 *"),
        ],
        "What is shared out is whole again in the messages: only what is *held* shrinks.": (
            "return rounds => return rounds / (ranks if stage else 1)"
        ),
        "In a ring a rank sends (n - 1) / n of the bytes in each round, not all of them.": (
            "(ranks - 1) / ranks => (ranks > 1)"
        ),
        "A rank sends all parts but one, each of 1 / n: (n - 1) / n.": "(ranks - 1) / => 1 /",
        "A rank alone sends nothing.": "(ranks - 1) => max(1, ranks - 1)",
        "A ring's share is (n - 1) / n: n - 1 is what all ranks send together.": "/ ranks => ",
        "These are numbers: each has {1} bytes.": " * itemsize => ",
        "messages of the stage": lambda *_: 7,
    },
    also_right=[
        "(ranks - 1) / ranks => (1 - 1 / ranks)",
        lambda p, size, n, stage, k: sum([p * size / n * (n - 1)] * (2, 2, 1 + k, 3 * k)[stage]),
    ],
)

# 5. A norm over all ranks

EVERY_RANK = "Every rank has to send the same messages, also one whose norm is small."
A_NUMBER = "Return the norm that the gradients had, one number, on every rank."
SUM_FIRST = "`all_reduce` takes a tensor: sum over the ranks first, then make a number of it."
GROUP = "Say whose norm it is: every message takes `group=group`."
NOTHING = "`all_reduce` changes its tensor and returns None; a gradient has no `.grad` of its own."
ZERO = "A norm can be 0: add a little to it before you divide, as torch adds 1e-6."
ALONE = "distributed.all_reduce(square, group=group) => pass"


def my_clip(gradients, max_norm, group):
    """Squares add up over the parts, norms do not: so the squares are summed over the ranks.

    All ranks then scale by one factor, and only where the norm is too large.
    """
    square = sum(gradient.square().sum() for gradient in gradients)
    distributed.all_reduce(square, group=group)
    norm = square.sqrt()
    for gradient in gradients:
        gradient *= (max_norm / norm).clamp(max=1.0)
    return norm


def on_parts(attempt, words, lists, max_norm):
    """Of each rank what is returned, and its gradients, side by side."""

    def program(group):
        gradients = [torch.tensor(numbers).double() for numbers in lists[group.rank()]]
        norm = attempt([*gradients], max_norm, group)  # tensors count, not what is in the list
        if norm is ...:
            return norm
        if isinstance(norm, Tensor) and norm.numel() == 1:
            norm = norm.item()
        if isinstance(norm, bool) or not isinstance(norm, float | int):
            raise NotYet(f"got {short(norm)} on rank {group.rank()}", A_NUMBER)
        return float(norm), [number for gradient in gradients for number in gradient.tolist()]

    found = ranks_in_threads(program, len(lists), timeout_s=WAIT_S)
    return found[0] if found[0] is ... else found


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-7)  # torch adds 1e-6 to a norm


def same_clip(outcome, expected):
    pairs = zip(outcome, expected, strict=True)
    return all(
        near(mine, right) and all(map(near, numbers, wanted))
        for (mine, numbers), (right, wanted) in pairs
    )


def clips_in_words(outcome, expected):
    norms = [[each[0] for each in found] for found in (expected, outcome)]
    if not all(map(near, *norms)):
        return [f"expected the norm {short(norms[0][0])} on every rank, got {short(norms[1])}"]
    parts = [[each[1] for each in found] for found in (expected, outcome)]
    return ["The norm is right.", f"expected gradients {short(parts[0])}", f"got {short(parts[1])}"]


def reduced(value, group):
    distributed.all_reduce(value, group=group)
    return value


def each_by_itself(gradients, max_norm, group):
    for gradient in gradients:
        my_clip([gradient], max_norm, group)
    return my_clip(gradients, math.inf, group)


def by_gathering(gradients, max_norm, group):
    norms = [torch.zeros(()).double() for _ in range(group.size())]
    distributed.all_gather(norms, torch.cat(gradients).norm(), group=group)
    norm = torch.stack(norms).norm()
    holders = [SimpleNamespace(grad=gradient) for gradient in gradients]
    nn.utils.clip_grads_with_norm_(holders, max_norm, norm)
    return norm.item()


check_clip = Exercise(
    my_clip,
    read_again='"It trains, and it is wrong"',
    cases=[
        ("one rank, norm 5", [[[3.0], [4.0]]], 1.0),
        ("two ranks with [3] and [4]", [[[3.0]], [[4.0]]], 1.0),
        ("two ranks, a small norm and a large one", [[[0.0], [0.6]], [[8.0], [6.0]]], 2.0),
        ("two ranks whose norm is small", [[[0.3], [0.0]], [[0.4], [0.0]]], 2.0),
        ("three ranks", [[[2.0, -1.0]], [[2.0]], [[-4.0]]], 2.0),
        ("gradients of zeros", [[[0.0]], [[0.0]]], 2.0),
    ],
    given="{0}, max_norm {2}",
    play=on_parts,
    same=same_clip,
    compared=clips_in_words,
    hint="norm = square root of the sum of all squares, of all tensors on all ranks.",
    correct="All ranks scale by one factor: the direction of the gradient stays.",
    wrong={
        "Each rank takes the norm of its own parts, and scales by a factor of its own.": ALONE,
        "Norms do not add up: their squares do.": [
            ("in gradients) => in gradients).sqrt()", "square.sqrt() => square"),
            ("gradient.square().sum() => gradient.norm()", "square.sqrt() => square"),
        ],
        "All tensors of a rank count, not one of them.": [
            "in gradients) => in gradients[:1])",
            "in gradients) => in gradients[-1:])",
        ],
        "All tensors are scaled: does the function return inside its loop?": (
            "    return norm =>         return norm"
        ),
        "The ranks hold parts of different weights: sum the squares, never the gradients.": (
            "gradient.square => reduced(gradient, group).square",
            ALONE,
        ),
        "The square root is missing.": "square.sqrt() => square",
        "The ranks hold parts of one gradient: sum the squares, without a mean.": (
            "square.sqrt() => (square / group.size()).sqrt()"
        ),
        "Norms do not add up, and have no mean: the squares do.": (
            ("square, group => square.sqrt_(), group", "square.sqrt() => square / group.size()")
        ),
        "To clip is to scale all by one factor; each number by itself changes the direction.": (
            "gradient *= (max_norm / norm).clamp(max=1.0) => gradient.clamp_(-max_norm, max_norm)"
        ),
        "The limit is that of the common norm, on any number of ranks.": (
            "max_norm / norm => max_norm / group.size() / norm"
        ),
        "The largest of the ranks' norms is not the norm of all.": (
            "square, group => square, distributed.ReduceOp.MAX, group"
        ),
        "A gradient that is small enough stays as it is: the factor is at most 1.": [
            ".clamp(max=1.0) => ",
            "clamp(max => clamp(min",
        ],
        "The factor is max_norm over the norm.": [
            "max_norm / norm => 1 / norm",
            "(max_norm / norm).clamp(max=1.0) => norm / max_norm",
            "max_norm / norm => norm / max_norm",
        ],
        "The gradients are as they were: scale them, where they are.": [
            "gradient *= (max_norm / norm).clamp(max=1.0) => pass",
            "gradient *= => gradient = gradient *",
        ],
        "Each tensor is clipped by itself: one norm is for all.": each_by_itself,
        "Return the norm before it was clipped.": [
            "return norm => return norm.clamp(max=max_norm)",
            "return norm => return (max_norm / norm).clamp(max=1.0)",
        ],
        A_NUMBER: ["return norm => ", "return norm => return gradients"],
        "torch's function takes parameters, and reads their `.grad`: here are gradients.": (
            lambda gradients, max_norm, _: nn.utils.clip_grad_norm_(gradients, max_norm)
        ),
        "Square first, then sum: numbers of different signs would cancel.": (
            "square().sum() => sum().square()"
        ),
        GROUP: ", group=group => ",
        SUM_FIRST: "all_reduce(square => all_reduce(float(square)",
        NOTHING: "gradient.square => gradient.grad.square",
        EVERY_RANK: "distributed.all_reduce => square > max_norm**2 and distributed.all_reduce",
        ZERO: "(max_norm / norm).clamp(max=1.0) => min(1, max_norm / norm.item())",
        "square root of the sum": "return norm => return norm + 1",
    },
    errors={
        "Default process group|is not registered|AllreduceOptions": GROUP,
        "'NoneType'": NOTHING,
        "ZeroDivision": ZERO,
        "of type torch.Tensor|'float' object|must be Tensor": SUM_FIRST,
        WAITED: EVERY_RANK,
    },
    also_right=[
        by_gathering,
        (
            ".sqrt() => .sqrt().item()",
            "(max_norm / norm).clamp(max=1.0) => min(1.0, max_norm / (norm + 1e-6))",
        ),
        ("gradient.square().sum() => reduced(gradient.square().sum(), group)", ALONE),
    ],
)
