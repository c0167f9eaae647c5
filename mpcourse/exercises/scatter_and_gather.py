"""Exercises of page `scatter_and_gather`: scatter, nests, gather, the mean over uneven chunks."""

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mpcourse.data_parallel import gather, scatter
from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    leaving_alone,
    raised,
    refuse_borrowed,
    same,
)

CUT_OFF = "The result is cut off from inputs: no gradient can flow back to them."
KEEP_THE_WAY = (
    "Leave out detach, item, tolist and torch.tensor: slices, sums and torch.cat keep the way open."
)
BORROWED = "The result is right, but {} did the work"
EVEN = "Those are tensor_split's sizes: as even as possible. scatter fills each chunk up."
NO_PIECES = "That takes the number of pieces for the size of a piece."
COLUMNS = "That cuts columns; the rows are dimension 0."
NUMBERS = "Those are lists of numbers; a chunk of a tensor is a tensor."
TYPE = "The numbers have another type: cutting and joining keep it."
CHANGED = "What was handed in has changed, but the caller still needs it: make something new."


def with_gradients(names: set[str], instead: str):
    """Plays an attempt; where numbers want gradients, these have to flow to each of them."""

    def play(attempt, *case):
        if not any(leaf.requires_grad for leaf in tensors_in(case)):
            return leaving_alone(CHANGED)(listed(attempt), *case)
        refuse_borrowed(attempt, names, instead)
        try:
            result = listed(attempt)(*case)
        except RuntimeError as error:
            raise NotYet(raised(error), KEEP_THE_WAY) from None
        leaves, given = tensors_in(result), [t for t in tensors_in(case) if t.requires_grad]
        ways = [None]
        if leaves and all(leaf.grad_fn for leaf in leaves):
            ways = torch.autograd.grad(sum(map(torch.sum, leaves)), given, allow_unused=True)
        if not all(way is not None and way.all() for way in ways):
            raise NotYet(CUT_OFF, KEEP_THE_WAY)
        return result

    return play


def listed(attempt):
    """The attempt; what yields its items one by one, even without end, counts as a list."""

    def listing(*case):
        result = attempt(*case)
        return [*map(lambda x, _: x, result, range(99))] if hasattr(result, "__next__") else result

    return listing


def tensors_in(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def same_types(result, expected):
    """As `same`, and of the same types: a class is an integer."""
    leaves = [filter(lambda x: hasattr(x, "dtype"), tree_leaves(x)) for x in (result, expected)]
    types = [[torch.as_tensor(leaf).dtype for leaf in each] for each in leaves]
    return same(result, expected) and types[0] == types[1]


# 1. Scatter


def my_scatter(batch, num_devices):
    """A full chunk has `ceil(rows / devices)` rows, and the slices begin that many rows apart.

    The range ends with the batch: so the last slice may be short, and a device for which no row is
    left gets no chunk. Rounding down gives 7 rows on 3 devices in four chunks: 2, 2, 2, 1.
    """
    size = -(-len(batch) // num_devices)
    return [batch[start : start + size] for start in range(0, len(batch), size)]


ROUNDED_DOWN = "-(-len(batch) // num_devices) => max(1, len(batch) // num_devices)"
ONE_EACH = "len(batch), size => num_devices * size, size"
STANDS_STILL = "A loop does not end: does the start move on by the size of a chunk?"
SHAPES = [((6,), 2), ((7,), 3), ((5,), 4), ((1,), 3), ((9, 2), 4), ((16, 1), 5)]

check_scatter = Exercise(
    my_scatter,
    read_again='"Seven rows, three devices: who gets how many?"',
    cases=[
        *((torch.arange(torch.Size(s).numel()).reshape(s), n) for s, n in SHAPES),
        (torch.tensor([[2.0], [-1.0], [3.0], [0.0]], requires_grad=True), 2),
    ],
    given=lambda batch, n: (
        f"a batch of shape {tuple(batch.shape)} and {n} devices"
        + " where gradients are required" * batch.requires_grad
    ),
    play=with_gradients({"chunk", "scatter"}, "cut with slices instead."),
    same=same_types,
    hint="A full chunk has ceil(rows / devices) rows: the number of rows, divided and rounded up.",
    errors={"had not returned": STANDS_STILL},
    wrong={
        EVEN: lambda b, n: b.tensor_split(n),
        "A device without rows gets no chunk at all: do not add empty ones.": ONE_EACH,
        "That drops rows: count the rows that came out.": [
            (ROUNDED_DOWN, ONE_EACH),
            "len(batch), size => len(batch) - 1, size",
            "len(batch), size => len(batch) - size + 1, size",
            "+ size] => + size - 1]",
        ],
        "Some rows are in two chunks: a slice leaves out the row of its second number.": [
            "+ size] => + size + 1]",
            "start + size] => ]",
        ],
        "A slice goes from its first row up to start + size.": "start + size] => size]",
        "Return a list: chunks of different lengths do not stack to one tensor.": (
            lambda b, n: torch.stack(my_scatter(b, n))
        ),
        "The last chunk may be short: nothing is added to it.": [
            "[batch[start => [torch.cat([batch, batch])[start",
            "[batch[start => [torch.cat([batch, 0 * batch])[start",
        ],
        "That is the first chunk alone: does return stand inside the loop?": [
            "size)] => size)][0]",
            "size)] => size)][:1]",
        ],
        "Count rows with len; numel counts all numbers.": "-(-len(batch) => -(-batch.numel()",
        "That deals the rows out like cards; the rows of a chunk are neighbours.": (
            lambda b, n: [b[i::n] for i in range(n)]
        ),
        NO_PIECES: lambda b, n: b.split(n),
        COLUMNS: lambda b, n: b.chunk(n, dim=-1),
        "Return the chunks alone: the place in the list says which device.": [
            lambda b, n: dict(enumerate(b.chunk(n))),
            lambda b, n: list(enumerate(b.chunk(n))),
        ],
        STANDS_STILL: "size = => while True:\n        __import__('time').sleep(0.001)\n    size =",
        "Those are the sizes; return the chunks themselves.": "size] => size].shape[0]",
        NUMBERS: ["size] => size].tolist()", "[batch[start => [list(batch)[start"],
        TYPE: ["size] => size].float()", "size] => size].double()"],
        "The rows of each chunk are in the wrong order.": "size] => size].flip(0)",
        "The chunks are in the wrong order: the first rows come first.": "size)] => size)][::-1]",
        "The first chunks should be full: rounding down leaves too many rows to the last.": (
            lambda b, n: [
                *b[: len(b) // n * (n - 1)].split(max(1, len(b) // n)),
                b[len(b) // n * (n - 1) :],
            ]
        ),
        "A full chunk has ceil(rows / devices) rows": [
            ROUNDED_DOWN,
            "-(-len(batch) // num_devices) => max(1, round(len(batch) / num_devices))",
            "-(-len(batch) // num_devices) => len(batch) // num_devices + 1",
            "size] => size].flatten()",
        ],
        BORROWED.format("chunk"): [lambda b, n: b.chunk(n), lambda b, n: list(b.chunk(n))],
        BORROWED.format("scatter"): lambda b, n: scatter(b, ["cpu"] * n),
        CUT_OFF: [
            lambda b, n: [torch.tensor(c.tolist()) for c in my_scatter(b, n)],
            "size] => size].detach().clone().requires_grad_(batch.requires_grad)",
        ],
        "Can't call numpy()": "size] => size].numpy()",
        CHANGED: "size = => batch.zero_()\n    size =",
    },
    also_right=[
        lambda b, n: b.split((len(b) + n - 1) // n),
        ("return [batch => return (batch", "size)] => size))"),
    ],
)

# 2. Nests


def my_scatter_nest(inputs, num_devices):
    """A tensor is cut, a nest is taken apart and built again, anything else is repeated.

    Scattering each value of a nest gives one list for each value; `zip` turns them around, into one
    row for each device, and stops where the chunks end: so unequal batches, of which it would drop
    rows, are refused first. A text can be iterated like a list, so ask for the types that are
    nests, not for what can be iterated. An empty nest has no columns, and `zip` over none gives no
    row: it is repeated like anything else without a tensor.
    """
    if len({len(tensor) for tensor in tensors_in(inputs)}) > 1:
        raise ValueError("not all tensors have equally many rows")
    if isinstance(inputs, torch.Tensor):
        return list(inputs.chunk(num_devices))
    if isinstance(inputs, dict) and inputs:
        columns = [my_scatter_nest(value, num_devices) for value in inputs.values()]
        return [dict(zip(inputs, row, strict=True)) for row in zip(*columns, strict=False)]
    if isinstance(inputs, tuple | list) and inputs:
        columns = [my_scatter_nest(value, num_devices) for value in inputs]
        return [type(inputs)(row) for row in zip(*columns, strict=False)]
    return [inputs] * num_devices


def whole_nests(value, n):
    return value.chunk(n) if isinstance(value, torch.Tensor) else [value] * n


def by_tree(inputs, n):
    leaves, shape = tree_flatten(inputs)
    tensors = tensors_in(leaves)
    if any(len(tensor) != len(tensors[0]) for tensor in tensors):
        raise ValueError(inputs)
    parts = [x.chunk(n) if isinstance(x, torch.Tensor) else (x,) * n for x in leaves]
    count = min(map(len, parts), default=n)
    return tuple(tree_unflatten([part[i] for part in parts], shape) for i in range(count))


def kinds(nest):
    """The types in a nest, all the way down."""
    if isinstance(nest, dict):
        return {key: kinds(value) for key, value in nest.items()}
    return type(nest)(map(kinds, nest)) if isinstance(nest, tuple | list) else type(nest)


def same_nest(*pair):
    """Equal, and of the same types all the way down; the outermost list may be a tuple."""
    pair = [list(x) if isinstance(x, tuple) else x for x in pair]
    return same_types(*pair) and kinds(pair[0]) == kinds(pair[1])


def values_of(nest):
    if isinstance(nest, dict):
        return list(nest.values())
    return nest if isinstance(nest, tuple | list) else []


def in_a_nest(nest, devices):
    names = ", ".join(
        f"tensor of {len(value)} rows" if isinstance(value, torch.Tensor) else type(value).__name__
        for value in values_of(nest)
    )
    return f"a {type(nest).__name__} of ({names}) and {devices} devices"


def refusing(play):
    """Plays like `play`; where tensors have unequal numbers of rows, a ValueError is a result."""

    def playing(attempt, *case):
        try:
            result = play(attempt, *case)
        except Exception as error:
            if isinstance(error, NotYet) or len({len(each) for each in tensors_in(case)}) < 2:
                raise
            if not isinstance(error, ValueError):
                raise NotYet(raised(error), UNEQUAL) from None
            return "a ValueError is raised"
        return "an error is returned" if isinstance(result, Exception | type) else result

    return playing


def top_tensors(nest):
    """A guard that looks with this sees each level by itself."""
    return [value for value in values_of(nest) if isinstance(value, torch.Tensor)]


ROWS = torch.arange(4)
FEWER = "A batch may fall into fewer chunks than devices: let zip stop at the shortest column."
LETTERS = "A text consists of texts, without end: ask for tuple and list, not for what has parts."
DIMENSION_1 = "The rows are dimension 0; a tensor need not have another."
NESTS = "[dict(zip(inputs, row, strict=True)) for row in zip(*columns, strict=False)]"
UNEQUAL = "Not all of those tensors have equally many rows: raise a ValueError."
EQUAL = "No tensor has fewer rows than another there, or none is there: nothing is to be refused."
NO_STAR = "tuple and list take the row as one thing: type(inputs)(row), without a star."

check_scatter_nest = Exercise(
    my_scatter_nest,
    read_again='"A dictionary goes in: what does each device get?"',
    cases=[
        ({"pixels": ROWS, "labels": ROWS * 10}, 2),
        ([ROWS, "train"], 2),
        ((ROWS, {"extra": [(ROWS * 10, 0.5)], "mask": None}), 2),
        ({"name": "train", "pixels": torch.arange(10).reshape(5, 2), "rate": 0.1}, 4),
        ([torch.arange(8).reshape(4, 2), ROWS], 2),
        ({"rate": 0.1, "steps": (1, 2)}, 3),
        ({"pixels": ROWS, "extra": []}, 2),
        ({"pixels": ROWS, "extra": {}, "more": ()}, 2),
        ({"pixels": torch.ones(4, requires_grad=True)}, 2),
        ({"pixels": torch.arange(10), "labels": torch.arange(9)}, 4),
        ((torch.arange(8), torch.arange(7)), 4),
        ({"pixels": torch.arange(10), "extra": [torch.arange(9)]}, 4),
    ],
    given=in_a_nest,
    play=refusing(with_gradients({"scatter", "scatter_nest"}, "take the nest apart yourself.")),
    same=same_nest,
    hint="Look at one kind of value after the other: tensor, dict, tuple or list, anything else.",
    errors={
        r"index out of range|zip\(\) argument": FEWER,
        "Dimension out of range": DIMENSION_1,
        "RecursionError": LETTERS,
        "at most 1 argument": NO_STAR,
        "ValueError(?!: (too many|not enough|dictionary))": EQUAL,
    },
    wrong={
        "Each device got the whole nest: its tensors are to be cut.": lambda nest, n: [nest] * n,
        "Return a list of nests, not the first.": lambda nest, n: my_scatter_nest(nest, n)[0],
        "That is a nest of lists; return a list of nests, one for each chunk.": [
            f"{NESTS} => {form}"
            for form in ("dict(zip(inputs, columns))", "dict(zip(inputs, map(tuple, columns)))")
        ],
        "That is a list for each value: turn them around with zip.": f"{NESTS} => columns",
        EVEN: "inputs.chunk => inputs.tensor_split",
        NO_PIECES: "inputs.chunk => inputs.split",
        COLUMNS: "(num_devices)) => (num_devices, dim=-1))",
        DIMENSION_1: "(num_devices)) => (num_devices, dim=1))",
        NUMBERS: "list(inputs.chunk(num_devices)) => inputs.reshape(num_devices, -1).tolist()",
        TYPE: "list(inputs.chunk => list(inputs.float().chunk",
        "The keys are lost: a dict stays a dict.": "dict(zip(inputs, row, strict=True)) => [*row]",
        "What is no tensor goes to every device: repeat it.": "[inputs] * num_devices => [inputs]",
        "A device without rows gets no nest at all.": (
            "list(inputs.chunk(num_devices)) => "
            "[*inputs.chunk(num_devices), inputs[:0]][:num_devices]"
        ),
        "Types have changed: a tuple stays a tuple.": "type(inputs)( => list(",
        "Types have changed: a list stays a list.": "type(inputs)( => tuple(",
        "A text is no nest of letters: each device gets all of it.": (
            "[inputs] * => list(inputs) if isinstance(inputs, str) else [inputs] *"
        ),
        "zip over no columns gives no row: an empty nest goes to every device as it is.": [
            " and inputs => ",
            "dict) and inputs => dict)",
        ],
        "A tuple and a list are nests as well: one went to every device whole.": [
            "tuple | list) => tuple)",
            "tuple | list) => list)",
            "tuple | list) => dict)",
        ],
        "A dict that is gone through gives its keys: take its values.": "inputs.values() => inputs",
        "A number is not shared out: each device gets it as it is.": (
            "[inputs] * => [inputs / num_devices if isinstance(inputs, float) else inputs] *"
        ),
        FEWER: [
            "strict=False => strict=True",
            "zip(*columns, strict=False) => [[c[i] for c in columns] for i in range(num_devices)]",
            "zip(*columns, strict=False) => "
            "[[c[i] for c in columns] for i in range(len(columns[0]))]",
        ],
        LETTERS: "tuple | list => tuple | list | str",
        NO_STAR: "(row) => (*row)",
        UNEQUAL: [
            "> 1: => > 9:",
            "raise ValueError => return ValueError",
            'raise ValueError("not all tensors have equally many rows") => return []',
            'raise ValueError("not all tensors have equally many rows") => return None',
            "raise ValueError => raise AssertionError",
            "tensors_in(inputs) => top_tensors(inputs if isinstance(inputs, dict) else ())",
        ],
        "Compare rows, not chunks: both tensors fall into {1} chunks.": (
            "{len(tensor) => {len(tensor.chunk(num_devices))"
        ),
        "A tensor deeper in the nest counts as well: compare all of them.": (
            "tensors_in(inputs) => top_tensors(inputs)"
        ),
        EQUAL: [
            "{len(tensor) => {tensor.shape",
            "{len(tensor) => {tensor.numel()",
            "> 1: => != 1:",
        ],
        CHANGED: "return list( => inputs.zero_()\n        return list(",
        "A nest inside the nest was not taken apart: scatter calls itself for it.": [
            "my_scatter_nest(value, => whole_nests(value,",
            "[my_scatter_nest(value, num_devices) for value in inputs] => "
            "[whole_nests(value, num_devices) for value in inputs]",
        ],
        "Where a batch has fewer chunks than devices, the shortest column says how many nests.": (
            "zip(*columns, => zip(*(c + [None] * (num_devices - len(c)) for c in columns),"
        ),
        "AttributeError": lambda nest, n: nest.chunk(n),
        BORROWED.format("scatter"): lambda nest, n: scatter(nest, ["cpu"] * n),
        CUT_OFF: "return list( => inputs = inputs.detach()\n        return list(",
    },
    also_right=[
        by_tree,
        "len({len(tensor) for tensor in tensors_in(inputs)}) > 1 => "
        "any(len(a) != len(b) for a in tensors_in(inputs) for b in tensors_in(inputs))",
    ],
)

# 3. Gather


def my_gather(outputs):
    """Rows are joined end to end, key by key; a loss first gets the dimension to join along.

    `torch.stack` would add a dimension to the rows too, and fails where a chunk is shorter.
    `item()` and `torch.tensor` give the right numbers, but cut the way back for the gradient.
    """
    joined = {}
    for key in outputs[0]:
        tensors = [output[key] for output in outputs]
        joined[key] = torch.cat([t.unsqueeze(0) if t.dim() == 0 else t for t in tensors])
    return joined


def per_field(join):
    """A gather that joins the tensors of each field like this."""
    return lambda outputs: {key: join([o[key] for o in outputs]) for key in outputs[0]}


def per_loss(join):
    """A gather that joins rows as it should, and losses like this."""
    return per_field(lambda ts: join(ts) if ts[0].dim() == 0 else torch.cat(ts))


def output(rows, grad=False):
    """What a device has: logits and a loss."""
    logits, loss = torch.full((rows, 2), float(rows)), torch.tensor(float(rows))
    return {"logits": logits.requires_grad_(grad), "loss": loss.requires_grad_(grad)}


NO_DIMENSION = "A loss of 0 dimensions has none to join along: give it one first."

check_gather = Exercise(
    my_gather,
    read_again='"What does gather make of three losses?"',
    cases=[
        ([{"logits": torch.tensor([[n], [n + 1]])} for n in (1.0, 3.0)],),
        ([{"loss": torch.tensor(loss)} for loss in (0.5, 0.25)],),
        ([output(3), output(3), output(1)],),
        ([{"aux": torch.tensor(n), "ids": torch.ones(1) * n} for n in (1.0, 2.0)],),
        ([{"classes": torch.tensor(rows)} for rows in ([3, 1], [2])],),
        ([{"aux": torch.tensor(n), "maps": torch.ones(1, 2, 2, 2) * n} for n in (1.0, 2.0)],),
        ([output(1, grad=True) for _ in range(2)],),
    ],
    given=lambda outputs: (
        f"{len(outputs)} dicts with "
        + " and ".join(f"{key} of {value.dim()} dimensions" for key, value in outputs[0].items())
        + " where gradients are required" * any(t.requires_grad for t in outputs[0].values())
    ),
    play=with_gradients({"gather", "gather_nest"}, "join with torch.cat instead."),
    same=same_types,
    hint=f"{NO_DIMENSION} Take the keys from the first dict: another model returns others.",
    wrong={
        "That is the first device's output alone.": [lambda o: o[0], per_loss(lambda ts: ts[0])],
        "That is the last device's output alone: it replaced the others.": lambda o: o[-1],
        "The fields are still lists: one tensor per field should come out.": [
            per_field(list),
            per_field(lambda ts: [t.tolist() for t in ts]),
            per_loss(list),
            per_loss(lambda ts: [t.item() for t in ts]),
        ],
        "gather joins; it does not add up.": [
            per_field(sum),
            per_field(lambda ts: sum(t.sum() for t in ts)),
            per_loss(sum),
        ],
        "gather joins; it does not average.": [
            per_field(lambda ts: sum(ts) / len(ts)),
            per_loss(lambda ts: sum(ts) / len(ts)),
        ],
        "The devices are in the wrong order.": "in outputs] => in outputs[::-1]]",
        "The last device's output is missing.": [
            "in outputs] => in outputs[:-1]]",
            "in outputs] => in outputs[:2]]",
        ],
        "The first device's output is missing.": "in outputs] => in outputs[1:]]",
        "The rows are no longer rows: that is flattened.": "in tensors]) => in tensors]).flatten()",
        "That joins columns; rows are dimension 0.": "in tensors]) => in tensors], dim=-1)",
        "stack adds a dimension; the rows belong end to end.": per_field(torch.stack),
        "Return one dict, with the keys of the first.": [
            f"return joined => return {form}"
            for form in ("[*joined.values()]", "[*joined.items()]", "[joined]")
        ],
        "Fields are missing: return stands inside the loop.": "\n    return => \n        return",
        "squeeze takes every dimension of size 1, also those of the rows.": [
            "in tensors]) => in tensors]).squeeze()",
            per_field(lambda ts: torch.stack(ts).squeeze()),
        ],
        "A vector has one dimension; those losses are a column.": per_loss(torch.vstack),
        "Only 0 dimensions need one more: a vector of one number stays a vector.": [
            "t.dim() => t.numel() - 1",
            per_field(lambda ts: torch.vstack(ts) if ts[0].dim() else torch.stack(ts)),
        ],
        NO_DIMENSION: [
            per_field(torch.cat),
            "in outputs[0]: => in ['logits']:",
            "t.dim() == 0 => key == 'loss'",
        ],
        TYPE: "in tensors]) => in tensors]).float()",
        CHANGED: [
            "joined = {} => joined = outputs[0]",
            ("in outputs[0] => in [*outputs[0]]", "output[key] => output.pop(key)"),
        ],
        BORROWED.format("gather"): lambda outputs: gather(outputs, "cpu"),
        CUT_OFF: [
            per_loss(lambda ts: torch.tensor([t.item() for t in ts])),
            per_loss(lambda ts: torch.stack(ts).detach()),
            torch.no_grad()(my_gather),
        ],
    },
    also_right=[
        per_field(lambda ts: torch.hstack(ts) if ts[0].dim() < 2 else torch.vstack(ts)),
        "t.unsqueeze(0) if t.dim() == 0 else t => torch.atleast_1d(t)",
    ],
)

# 4. The mean


def my_mean(chunk_means, chunk_sizes):
    """A chunk's mean times its rows is the chunk's sum; the sum over all rows, divided by them.

    Dividing by the number of chunks depends on how the batch was cut, and a mean must not.
    """
    return (chunk_means * chunk_sizes).sum() / chunk_sizes.sum()


def same_number(*pair):
    """A float, or a tensor of one number in whatever shape."""
    return same(*(x.item() if isinstance(x, torch.Tensor) and x.numel() == 1 else x for x in pair))


check_mean = Exercise(
    my_mean,
    read_again='"Is the mean of the means the mean?"',
    cases=[
        (torch.tensor(means), torch.tensor(sizes))
        for means, sizes in [
            ([1.0, 4.0, 6.0], [3, 3, 1]),
            ([0.5, 9.0], [4, 1]),
            ([1.0, 3.0], [2, 2]),
            ([1.25, 3.5, 2.0], [1, 4, 3]),
        ]
    ]
    + [(torch.tensor([2.0, 8.0], requires_grad=True), torch.tensor([2, 1]))],
    given=lambda means, sizes: (
        f"means {means.tolist()} of chunks of {sizes.tolist()} rows"
        + " where a gradient is required" * means.requires_grad
    ),
    play=with_gradients(set(), ""),
    same=same_number,
    hint="The mean is the sum over all rows, divided by the number of rows.",
    errors={"same dtype|infer output dtype": "The sizes are integers: call float() on them first."},
    wrong={
        "That is the mean of the means: a short chunk counts too much.": lambda m, n: m.mean(),
        "That leaves the last chunk out: its rows count too.": ".sum() => [:-1].sum()",
        "That is the sum over all rows; divide it by their number.": "/ chunk_sizes.sum() => ",
        "Divide by the number of rows, not by the number of chunks.": lambda m, n: (m * n).mean(),
        "Each mean stands for several rows: weight it by its chunk's size.": " * chunk_sizes => ",
        "A chunk's sum is its mean times its rows.": lambda m, n: (m / n).sum(),
        "7 rows make one of the batches: add up the chunks.": "/ chunk_sizes.sum() => / 7",
        "A long chunk counts more, not less.": lambda m, n: (m / n).sum() / (1 / n).sum(),
        "That is a sum; a mean is never larger than all its numbers.": lambda m, n: m.sum(),
        "Divide by the sum of the sizes, not by the largest.": "sizes.sum() => sizes.max()",
        "One number is asked for: add the chunks up.": ").sum() => )",
        "That is rounded: return the number as it is.": [
            lambda m, n: round(my_mean(m, n).item(), 1),
            "/ => //",
        ],
        "Any chunk may be short.": lambda m, n: (m[:-1].sum() * n[0] + m[-1] * n[-1]) / n.sum(),
        "The shares add up to the mean: do not divide again.": "sizes).sum() => sizes).mean()",
        "expected tensor 3": [lambda m, n: m.max(), lambda m, n: "3.0"],
        "call float() on them": [
            "(chunk_means * chunk_sizes).sum() => chunk_means @ chunk_sizes",
            lambda m, n: (m * n).mean() / n.mean(),
        ],
        CHANGED: lambda m, n: m.mul_(n).sum() / n.sum(),
        CUT_OFF: [
            lambda m, n: my_mean(m, n).item(),
            lambda m, n: my_mean(torch.cat([m[:1].detach(), m[1:]]), n),
        ],
        "Can't call numpy()": lambda m, n: np.average(m, weights=n),
    },
    also_right=[
        lambda m, n: torch.repeat_interleave(m, n).mean().reshape(1),
        lambda m, n: sum(mean * size for mean, size in zip(m, n, strict=True)) / sum(n),
    ],
)
