"""Exercises of page `sharded_data_parallel`: a step, a backward, bytes, a timetable, a norm."""

from functools import partial
from itertools import product
from numbers import Real

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import Tensor, distributed, nn

from mpcourse.exercises.exercise import Exercise, NotYet, call_for_numbers, numbers, same, short
from mpcourse.multiprocess import ranks_in_threads

WAIT_S = 5.0  # for ranks that do not send the same messages
WAITED = r"gloo[/\\]|[Cc]onnection|imed out|had not returned"
ALL_SEND = "All ranks have to send the same messages, equally often and in one order."
CLEARED = "Scatter `weight.grad` first, then let it go: it is None already."
TWICE = "Two rounds are enough: scatter each gradient once, and gather each part once."


def noted(sent, way, tensor):
    sent.append(way)
    return way(tensor)


def messages(group):
    """The page's `scatter` and `gather`."""

    def scatter(tensor):
        found = tensor.new_empty(tensor.numel() // group.size())
        distributed.reduce_scatter_tensor(found, tensor.reshape(-1), group=group)
        return found / group.size()

    def gather(part):
        found = part.new_empty(part.numel() * group.size())
        distributed.all_gather_into_tensor(found, part.detach().contiguous(), group=group)
        return found

    return scatter, gather


# 1. A step whose optimizer has a part of each weight


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
    """Of each step the weights of each rank, in one row."""
    draw = torch.Generator().manual_seed(ranks)
    first = [torch.randn(size, generator=draw).double() for size in ((4, 3), (4,))]
    given = [torch.randn(2, ranks, *weight.shape, generator=draw).double() for weight in first]

    def program(group):
        weights = [nn.Parameter(weight.clone()) for weight in first]
        own, places = group.rank(), [weight.data_ptr() for weight in weights]
        parts = [weight.data.view(-1).chunk(ranks)[own] for weight in weights]
        optimizer, found = torch.optim.SGD(parts, lr=0.1, momentum=0.9), []
        for step in range(2):
            for weight, gradients in zip(weights, given, strict=True):
                new = gradients[step, own]  # added, as by a backward
                weight.grad = new.clone() if weight.grad is None else weight.grad + new
            sent, ways = [], messages(group)
            attempt(weights, parts, optimizer, *(partial(noted, sent, way) for way in ways))
            if max(map(sent.count, ways)) > len(weights):
                raise NotYet("", TWICE)
            if [weight.data_ptr() for weight in weights] != places:
                raise NotYet("", "Copy into the weight: its part keeps the old storage alive.")
            found.append(torch.cat([weight.detach().flatten() for weight in weights]))
        return found

    return [*zip(*ranks_in_threads(program, ranks, timeout_s=WAIT_S), strict=True)]


def states_in_words(outcome, expected):
    said = []
    for step, both in enumerate(zip(outcome, expected, strict=True), start=1):
        wrong = [rank for rank, pair in enumerate(zip(*both, strict=True)) if not same(*pair)]
        said.append(f"after step {step} " + (f"wrong on ranks {wrong}" if wrong else "right"))
    return [f"The weights are {', '.join(said)}."]


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
        "Step 2 still has step 1's gradients: let `weight.grad` go, and `part.grad` if you add to "
        "it.": "weight.grad = None => pass",
        "The weights became gradients: `part.grad` is what `scatter` gives, `part` is gathered.": [
            "gather(part) => gather(part.grad)",
            "part.grad = => part.data =",
        ],
        "Step first: what the ranks gather before the step is not new.": (
            "optimizer.step() => pass",
            "view_as(weight)) => view_as(weight))\n    optimizer.step()",
        ),
        "The optimizer steps once, when all parts have their gradients.": [
            "    opt =>         opt",
            "optimizer.step() => optimizer.step()\n    optimizer.step()",
        ],
        "No weight has changed: give the parts gradients, then step.": "optimizer.step() => pass",
        "A part's gradient is what `scatter` returns, an average over all ranks already.": [
            "scatter(weight.grad) => scatter(weight.grad) * len(part) / weight.numel()",
            "scatter(weight.grad) => weight.grad.view(-1)[: len(part)]",
            "scatter(weight.grad) => scatter(weight.grad) / 2",
            "scatter(weight.grad) => scatter(weight.grad) * (weight.numel() // len(part))",
        ],
        "A part is weights: zero its gradient, by `part.grad = None`, and not the part.": [
            "view_as(weight)) => view_as(weight))\n        part.zero_()",
            "optimizer.step() => optimizer.step()\n    for part in parts:\n        part.zero_()",
        ],
        TWICE: "scatter(weight.grad) => scatter(gather(scatter(weight.grad)).view_as(weight))",
        "Scatter the gradients, not the weights.": "ter(weight.grad) => ter(weight.data)",
        "Let `optimizer` do its step.": [
            f"optimizer.step() => [p.sub_({rate} * p.grad) for p in parts]" for rate in (0.1, 0.01)
        ],
        CLEARED: "part.grad = => weight.grad = None\n        part.grad =",
    },
    errors={
        "'NoneType' object has no attribute '(numel|reshape|new_empty)": CLEARED,
        "'NoneType'": "A part has no gradient yet: it comes from `scatter(weight.grad)`.",
        "assign a gradient": "What `scatter` returns has the part's size: it is `part.grad`.",
        "a leaf Variable": "Change the numbers of a weight by `weight.data.copy_(...)`.",
        "[Ss]hape|size": "`gather(part)` gives one row: make it `.view_as(weight)`.",
        WAITED: ALL_SEND,
    },
    also_right=["copy_(gather(part).view_as(weight)) => view(-1)[:] = gather(part)"],
)

# 2. The backward of a layer whose weights are elsewhere


def my_layer_backward(x, part, gradient, gather, scatter):
    """The weights are gathered once more, for the gradient of x goes through them.

    This rank's rows give a gradient of all weights. Of the ranks' average it keeps its part.
    """
    whole = gather(part).view(-1, x.shape[1] + 1)
    of_whole = torch.cat([gradient.T @ x, gradient.sum(0).unsqueeze(1)], dim=1)
    return gradient @ whole[:, :-1], scatter(of_whole)


ROWS, INSIDE, OUTSIDE = 3, 5, 4  # of a rank; numbers in, out
IN_A_ROW = "The second gradient has the part's shape: one row of numbers, as `scatter` returns it."
KEPT = "Leave `x`, `part` and `gradient` as they are: others read them later."


def on_shares(attempt, ranks):
    """Of each rank both gradients, and its messages."""
    draw = torch.Generator().manual_seed(ranks)
    whole = torch.randn(OUTSIDE, INSIDE + 1, generator=draw).double()
    rows = torch.randn(ranks, ROWS, INSIDE, generator=draw).double()
    gradients = torch.randn(ranks, ROWS, OUTSIDE, generator=draw).double()

    def program(group):
        own, calls = group.rank(), []
        part = whole.view(-1).chunk(ranks)[own]
        scatter, gather = (partial(noted, calls, way) for way in messages(group))
        given = rows[own].clone(), part.clone(), gradients[own].clone()
        with torch.no_grad():  # as in a backward
            found = attempt(*given, gather, scatter)
        pair = isinstance(found, tuple | list) and len(found) == 2
        if not pair or not all(isinstance(each, Tensor) for each in found) or found[0].dim() != 2:
            why = "Return two gradients: of x, a table of its shape, and of the part."
            raise NotYet(f"got {short(found)}", why)
        if not all(map(torch.equal, given, (rows[own], part, gradients[own]))):
            raise NotYet("", KEPT)
        if found[1].dim() != 1:
            raise NotYet(f"got a part's gradient of shape {tuple(found[1].shape)}", IN_A_ROW)
        return *found, sorted(way.__name__ for way in calls)

    return ranks_in_threads(program, ranks, timeout_s=WAIT_S)


def gradients_in_words(outcome, expected):
    names = "gradient of x", "gradient of the part", "messages"
    pairs = zip(names, outcome[0], expected[0], strict=True)
    return [f"rank 0, {name}: {'right' if same(*pair) else 'wrong'}" for name, *pair in pairs]


check_layer_backward = Exercise(
    my_layer_backward,
    read_again='"The weights: stage 3"',
    cases=[(1,), (2,), (4,)],
    given="a layer of 5 inputs and 4 outputs on {0} rank(s)",
    play=on_shares,
    compared=gradients_in_words,
    hint="Gather once: the weights are all columns but the last. Scatter once, one table of "
    "(outputs, inputs + 1): gradient.T @ x, then gradient.sum(0).",
    correct="Both gradients are those of the whole layer, with one gather and one scatter.",
    wrong={
        "Each rank has its own rows: `scatter` makes the average over the ranks, and divides.": [
            "scatter(of_whole) => of_whole.view(-1)[: len(part)]",
            "scatter(of_whole) => scatter(of_whole) * len(part) / of_whole.numel()",
        ],
        "The bias is the table's last column, and has a gradient, too.": [
            "scatter(of_whole) => scatter(gradient.T @ x)",
            "gradient.sum(0) => 0 * gradient.sum(0)",
        ],
        "The gradient of the bias is the sum over the rows, not their mean.": ".sum => .mean",
        "The gradient is a sum over rows, an average over ranks.": [
            "dim=1) => dim=1) / len(x)",
            "scatter(of_whole) => scatter(of_whole) * (of_whole.numel() // len(part))",
        ],
        "Gather once: the table has weights and bias, and you need the weights alone.": (
            "dim=1) => dim=1) + 0 * gather(part).view(-1, x.shape[1] + 1)"
        ),
        "The table is (outputs, inputs + 1): of each output its weights, then its bias.": [
            ".view(-1, x.shape[1] + 1) => .view(x.shape[1] + 1, -1).T",
            "dim=1) => dim=1).T",
            "dim=1) => dim=1).roll(1, 1)",
            ("dim=1) => dim=1).roll(1, 1)", ":-1] => 1:]"),
            ("t.T @ x, => t.T.matmul(x).view(-1),", ".unsqueeze(1)], dim=1 => ]"),
        ],
        "Join the gradients of weights and bias as one table first, and scatter once.": (
            "scatter(of_whole) => torch.cat([scatter(of_whole[:, :-1]), scatter(of_whole[:, -1])])"
        ),
        "The gradient of x belongs to this rank's own rows: it is no average.": [
            "gradient @ whole[:, :-1] => gradient @ whole[:, :-1] * len(part) / whole.numel()",
            "gradient @ whole[:, :-1] => gradient @ whole[:, :-1] / len(x)",
        ],
        IN_A_ROW: [
            "scatter(of_whole) => scatter(of_whole).view(-1, x.shape[1] + 1)",
            "scatter(of_whole) => of_whole",
        ],
        "A rank keeps its part: do not gather the gradient.": (
            "scatter(of_whole) => gather(scatter(of_whole))"
        ),
        "The weights are all columns but the last, the bias.": [":-1] => 1:]", "[:, :-1] => "],
        "A rank's part is not the layer: `gather(part)` gives all of it.": "gather(part) => part",
        KEPT: "return gradient => gradient *= 2\n    return gradient / 2",
    },
    errors={
        "not require grad": "Autograd is off within a backward: write the formulas of the hint.",
        "many indices|tensor size|input of size": "Make a table: `.view(-1, inputs + 1)`.",
        "number of dimensions": "`.unsqueeze(1)` makes the sums a column.",
        "shape|[Ss]ize": "gradient is (rows, outputs), x (rows, inputs), weight (outputs, inputs).",
        WAITED: ALL_SEND,
    },
    also_right=[".unsqueeze(1) => [:, None]", "gradient.T @ x => x.T.matmul(gradient).T"],
)

# 3. The bytes that are sent


def my_bytes_sent(parameters, itemsize, ranks, stage, backwards):
    """Stages 0 and 1 take two rounds, once all gradients have added up.

    Stage 2 scatters in every backward and gathers once. Stage 3 does all three in every backward.
    """
    rounds = [2, 2, backwards + 1, 3 * backwards][stage]
    return rounds * (ranks - 1) / ranks * parameters * itemsize


check_bytes_sent = Exercise(
    my_bytes_sent,
    read_again='"How many bytes does each rank send?"',
    cases=[*product([60], [8, 2], [5, 2, 1], range(4), [1, 4])],
    given="{} parameters of {} bytes on {} rank(s), stage {}, {} backward(s)",
    play=call_for_numbers,
    hint="Count the messages of the stage, and what a ring sends for each.",
    wrong={
        "A reduce-scatter takes the all-reduce's place in stage 1: two rounds.": "[2, 2 => [2, 3",
        "Stages 0 and 1 send in the step, when the gradients of all backwards have added up.": [
            "[2, 2 => [2, backwards + 1",
            *("[2, => [2 * backwards,", "[2, 2 => [2, 2 * backwards"),
        ],
        "Stage 2 keeps no whole gradient: every backward scatters anew.": "backwards + 1 => 2",
        "In stage 2 a backward scatters: one round, not two.": "backwards + => 2 * backwards +",
        "Stage 2 gathers once in a step, after the update.": "backwards + 1 => 2 * backwards",
        "Stages 1 and 2 gather the weights after the update.": ["2, b => 1, b", "s + 1 => s"],
        "Stage 3 gathers twice, for forward and backward, and scatters.": ["3 * => 2 *", "3 * => "],
        "Stage 3 keeps nothing whole: each of the {4} backwards sends all three rounds.": [
            f"3 * backwards => {said}" for said in ("3", "2 * backwards + 1", "backwards + 2")
        ],
        "Stage 3 gathers in the next forward, not after the update.": "kwards] => kwards + 1]",
        "An all-reduce takes two rounds.": "[2, => [1,",
        "Stages count from 0: stage 0 takes the first entry.": "[stage] => [stage - 1]",
        "In each round of a ring a rank sends (n - 1) / n of the bytes.": [
            f"(ranks - 1) / ranks => {said}" for said in ("(ranks > 1)", "1 / ranks", "(ranks - 1)")
        ],
        "On several ranks no stage sends nearly 0 bytes. `//` rounds down, and / 1e9 makes GB.": [
            f"(ranks - 1) / ranks => {said}"
            for said in ("((ranks - 1) // ranks)", "(ranks - 1) // ranks")
        ],
        "Four ranks are one case: n is the argument `ranks`.": "(ranks - 1) / ranks => 3 / 4",
        "These are numbers: each has {1} bytes.": " * itemsize => ",
        "Not all numbers have as many bytes: take `itemsize`, here {1}.": [
            f" * itemsize => * {said}" for said in (8, 4)
        ],
        "Bytes are asked for, not bits.": " * itemsize => * itemsize * 8",
        "That is how many rounds there are. Of each: what a ring sends.": "rounds * => rounds  #",
    },
    also_right=["(ranks - 1) / ranks => (1 - 1 / ranks)"],
)

# 4. When each message and each layer begins


def my_timetable(forward, ahead):
    """A message begins when it is asked for and the network is free.

    A layer begins when the one before has ended and its own weights have come.
    """
    table, now, free, asked = {}, 0, 0, 0  # `free`: when the network has sent all so far

    def send(name):
        nonlocal free
        table[name] = max(now, free), max(now, free) + 1
        free = table[name][1]

    for k in range(8):
        while asked <= min(k + ahead, 7):
            send(f"g{asked}")
            asked += 1
        begin = max(now, table[f"g{k}"][1])
        now = begin + (forward if k < 4 else 2 * forward)
        table[f"c{k}"] = begin, now
        if k >= 4:
            send(f"s{k - 4}")
    return table


NAMES = [*(f"{kind}{k}" for kind in "gc" for k in range(8)), *(f"s{k}" for k in range(4))]


def as_table(attempt, forward, ahead):
    """Begin and end of each, as Python's own numbers."""
    table = attempt(forward, ahead)
    if not isinstance(table, dict):
        raise NotYet(f"got {short(table)}", "Return a dict: name -> (begin, end).")
    if odd := {*table} ^ {*NAMES}:
        few = ", ".join(sorted(map(str, odd))[:5])
        why = "The names are g0 to g7, c0 to c7, and s0 to s3, for backwards alone."
        raise NotYet(f"missing, or too many: {few}", why)
    found = {name: numbers(table[name]) for name in NAMES}
    for name, pair in found.items():
        two = isinstance(pair, list) and len(pair) == 2
        if not two or not all(isinstance(each, Real) for each in pair):
            raise NotYet(f"got {name}: {short(pair)}", "Each has two numbers, begin and end.")
    return {name: [*map(float, pair)] for name, pair in found.items()}  # also fractions


def first_that_differs(outcome, expected):
    name = min((n for n in NAMES if not same(outcome[n], expected[n])), key=expected.get)
    said = ["{:g} to {:g}".format(*each[name]) for each in (expected, outcome)]
    return [f"The first that differs is {name}: expected {said[0]}, got {said[1]}."]


OWN = 'max(now, table[f"g{k}"][1])'

check_timetable = Exercise(
    my_timetable,
    read_again='"When does a message cost nothing?"',
    cases=[
        *((rows / 1024, ahead) for ahead in (0, 1) for rows in (256, 512, 768, 1024, 2048)),
        *((0.75, 2), (2, 3), (0.5, 7)),
    ],
    given="a forward takes {}, ahead is {}",
    play=as_table,
    compared=first_that_differs,
    hint="Keep two times: when the last layer has ended, and when the network is free.",
    wrong={
        "The network sends one message at a time.": [
            "max(now, free) => now",
            'send(f"s{k - 4}") => table[f"s{k - 4}"] = now, now + 1',
            (
                "{}, 0, 0, 0 => {}, 0, 0, 0\n    own = 0",
                'send(f"s{k - 4}") => own = max(now, own) + 1; table[f"s{k - 4}"] = own - 1, own',
            ),
        ],
        "A message begins when it is asked for, not before.": [
            "max(now, free) => free",
            'send(f"s{k - 4}") => free += 1; table[f"s{k - 4}"] = free - 1, free',
        ],
        "Begin and end are asked for: not how long it takes.": (
            "return table => return {n: (b, e - b) for n, (b, e) in table.items()}"
        ),
        "A layer waits for its own weights.": f"begin = {OWN} => begin = now",
        "A layer waits for the layer before it, too.": f"begin = {OWN} => begin = {OWN[9:-1]}",
        "A backward takes twice as long as a forward.": " if k < 4 else 2 * forward => ",
        "A forward takes `forward`: only a backward takes twice that.": "forward if k < 4 else => ",
        "Ahead, no layer waits for a scatter.": ('k - 4}") => k - 4}")\n            now = free'),
        "c4 is the first backward: it asks for s0.": 's{k - 4}") => s{7 - k}")',
        "Before layer k begins, gathers up to number k + `ahead` are asked for, here k + {1}.": [
            "k + ahead => k + ahead + 1",
            "k + ahead => k + max(0, ahead - 1)",
        ],
        "Not all gathers are asked for at once: up to {1} in advance.": "min(k + ahead, 7) => 7",
        "`ahead` can be more than 1, here {1}.": "k + ahead => k + min(ahead, 1)",
        "The last forwards ask in advance, too, for the backward's weights.": (
            "min(k + ahead, 7) => (min(k + ahead, 3) if k < 4 else min(k + ahead, 7))"
        ),
        "A layer that has ended asks for its scatter first, then for the next gather.": (
            f"begin = {OWN} => k > 4 and send(f's{{k - 5}}')\n        begin = {OWN}",
            'send(f"s{k - 4}") => k == 7 and send("s3")',
        ),
        "A message takes 1, for any number of rows.": "free) + 1 => free) + forward",
    },
    errors={
        "UnboundLocalError": "A function inside changes a name of yours: say `nonlocal`.",
        "KeyError: '?g": "A layer needs its gather's end: ask for it first.",
        "KeyError": "The dict has no such name yet: fill it in the order of time.",
    },
    also_right=[
        f"{OWN} => max([now, table['g' + str(k)][-1]])",
        "0, 0, 0 => *3 * [__import__('fractions').Fraction()]",
    ],
)

# 5. A norm over all ranks


def my_clip(gradients, max_norm, group):
    """Squares add up over the ranks, norms do not. All ranks scale by one factor, at most 1."""
    square = sum(gradient.square().sum() for gradient in gradients)
    distributed.all_reduce(square, group=group)
    norm = square.sqrt()
    for gradient in gradients:
        gradient *= (max_norm / norm).clamp(max=1.0)
    return norm


def on_parts(attempt, words, lists, max_norm):
    """Of each rank what is returned, and its gradients."""

    def program(group):
        gradients = [torch.tensor(numbers).double() for numbers in lists[group.rank()]]
        norm = attempt([*gradients], max_norm, group)  # not the list counts
        try:
            return float(norm), torch.cat(gradients).tolist()
        except (TypeError, ValueError, RuntimeError):
            raise NotYet(f"got {short(norm)}", "Return the norm, one number.") from None

    return ranks_in_threads(program, len(lists), timeout_s=WAIT_S)


EACH = "square = gradient.square().sum()\n        distributed.all_reduce(square, group=group)"

check_clip = Exercise(
    my_clip,
    read_again='"It trains, and it is wrong"',
    cases=[
        ("one rank, norm 5", [[[3.0], [4.0]]], 1.0),
        ("two ranks with [3] and [4]", [[[3.0]], [[4.0]]], 1.0),
        ("two ranks, a small norm and a large one", [[[0.0], [0.6]], [[8.0], [6.0]]], 2.0),
        ("two ranks whose norm is small", [[[3.0], [0.0]], [[4.0], [0.0]]], 20.0),
        ("three ranks", [[[2.0, -1.0]], [[2.0, 0.0]], [[-4.0, 0.0]]], 2.0),
        ("gradients of zeros", [[[0.0]], [[0.0]]], 2.0),
    ],
    given="{0}, max_norm {2}",
    play=on_parts,
    hint="The norm is the root of the sum of all squares, of all tensors and ranks. Scale in "
    "place, by max_norm / norm, at most 1. Return the norm.",
    correct="All ranks scale by one factor: the direction of the gradient stays.",
    wrong={
        "Each rank scales by its own parts' norm: the factors differ.": [
            "(square, => (0 + square,",
            ("(square, => (0 + square,", "square.sqrt() => (square * group.size()).sqrt()"),
        ],
        "Norms do not add up: their squares do.": [
            ("in gradients) => in gradients).sqrt()", "square.sqrt() => square"),
            ("in gradients) => in gradients).sqrt()", "square.sqrt() => square / group.size()"),
            ("gradient.square().sum() => gradient.norm()", "square.sqrt() => square"),
        ],
        "The square root is missing.": ["square.sqrt() => square", "/ norm => / square"],
        "The ranks hold different parts of one gradient: add their squares, without a mean.": [
            "square.sqrt() => (square / group.size()).sqrt()",
            "square, group => square, distributed.ReduceOp.MAX, group",
            "distributed.all_reduce(square, group=group) => square = sum("
            "distributed.all_reduce(g, group=group) or g.square().sum() for g in gradients)",
        ],
        "The norm is of all numbers of all tensors, not of the largest or the last.": [
            ("sum(gradient.square().sum => max(gradient.abs().max", ".sqrt() => "),
        ],
        "max_norm is for all numbers together, not for each.": [
            "gradient *= (max_norm / norm).clamp(max=1.0) => gradient.clamp_(-max_norm, max_norm)",
            (
                "gradient.square() => gradient.clamp_(-max_norm, max_norm).square()",
                "gradient *= => _ = gradient *",
            ),
        ],
        "Square each number, then add up: a tensor's sum can be 0 where its norm is not.": (
            "gradient.square().sum() => gradient.sum().square()"
        ),
        "All ranks scale, not rank 0 alone: each has other numbers of the gradient.": (
            "gradient *= => gradient *= 1 if group.rank() else "
        ),
        "One factor for all tensors: by their common norm.": [
            "/ norm => / gradient.norm()",
            f"gradient *= => {EACH}\n        norm = square.sqrt()\n        gradient *=",
            (f"gradient *= => {EACH}\n        gradient *=", "/ norm => / square.sqrt()"),
        ],
        "max_norm is for all ranks together, and the gradients are averages: divide neither.": [
            "/ norm => / norm / group.size()",
            ("(square, => (0 + square,", "/ norm => / norm / group.size() ** 0.5"),
        ],
        "A small gradient stays as it is: the factor is at most 1.": ".clamp(max=1.0) => ",
        "A large gradient's norm is to become max_norm, not 1.": "max_norm / norm => 1 / norm",
        "Nothing changed: scale in place, by max_norm / norm, not norm / max_norm.": [
            "gradient *= => _ = gradient *",
            "max_norm / norm => norm / max_norm",
        ],
        "`clip_grad_norm_` reads `.grad`: these tensors are gradients, and have none.": (
            ("gradient *= => _ = gradient *", "return norm => return 0 * norm")
        ),
        "Return the norm of all ranks, as it was before the clipping.": [
            ("distributed. => own = square.sqrt()\n    distributed.", "return norm => return own"),
            "return norm => return norm.clamp(max=max_norm)",
            *("n norm => n square", "n norm => n (max_norm / norm).clamp(max=1.0)"),
        ],
    },
    errors={
        "'NoneType'": "`all_reduce` changes its tensor where it is, and returns None. These "
        "tensors are gradients, with no `.grad` of their own.",
        "not registered": "`all_reduce` will do: no rank is the root.",
        "process group|AllreduceOptions": "Say whose norm it is: `group=group`.",
        "type torch.Tensor": "`all_reduce` takes a tensor: leave out `.item()`.",
        "ZeroDivision": "A norm can be 0: add 1e-6 before you divide, as torch does.",
        WAITED: ALL_SEND,
    },
    also_right=[
        (
            ".sqrt() => .sqrt().item()",
            "(max_norm / norm).clamp(max=1.0) => min(1.0, max_norm / (norm + 1e-6))",
        ),
        "square.sqrt() => messages(group)[1](torch.cat(gradients)).norm()",  # equally long
    ],
)
