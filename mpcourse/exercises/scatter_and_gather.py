"""Exercises of page `scatter_and_gather`: scatter, nests, uneven means, one process's loss."""

import dis
import inspect
import math
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from itertools import islice

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    borrowed,
    expected_and_got,
    leaving_alone,
    refuse,
    same,
)

KEEP_THE_WAY = (
    "The way back to what came in is cut: no detach, item, tolist, deepcopy, torch.tensor."
)
GRADIENTS = {"RuntimeError.*(requires grad|graph leaves)": KEEP_THE_WAY}
EVEN = "Those are tensor_split's sizes: as even as possible. scatter fills each chunk up."
EMPTY = "A device without rows gets no chunk at all: add none for it."
SIZE = "That takes the number of pieces for the size of a piece."
FLOAT = "/ gives a float, also where it is whole: // rounds down, -(-a // b) up."
torch_scatter = torch.chunk  # as the page's function of that name cuts one tensor
CHANGED = "What was handed in has changed, but the caller still needs it: make something new."


def with_gradients(names: set[str], instead: str):
    """Plays an attempt; where numbers want gradients, these have to flow to each of them."""

    def play(attempt, *case):
        given = [tensor for tensor in tensors_in(case) if tensor.requires_grad]
        if not given:
            return listed(leaving_alone(CHANGED)(attempt, *case))
        refuse(borrowed_by(attempt, names), instead)
        result = listed(attempt(*case))
        leaves, ways = tensors_in(result), [None]
        if leaves and all(leaf.grad_fn for leaf in leaves):
            ways = torch.autograd.grad(sum(map(torch.sum, leaves)), given, allow_unused=True)
        if not all(way is not None and way.all() for way in ways):
            raise NotYet(KEEP_THE_WAY)
        return result

    return play


def borrowed_by(attempt, names):
    """Which of the names the attempt calls, but for the reader's own helpers with such a name."""
    attempt = inspect.unwrap(attempt)

    def is_own(name):
        helper = attempt.__globals__.get(name)
        loads = {step.opname for step in dis.get_instructions(attempt) if step.argval == name}
        ours = inspect.isfunction(helper) and helper.__module__ == attempt.__module__
        ours = ours and loads == {"LOAD_GLOBAL"}  # and no method of that name
        return ours and not borrowed(helper, names - {name} | {"scatter_rows"})  # the page's own

    return [name for name in borrowed(attempt, names) if not is_own(name)]


def listed(result):
    """What yields its items one by one, even without end, counts as a list."""
    return [*islice(result, 99)] if hasattr(result, "__next__") else result


def tensors_in(value, **how):
    return [leaf for leaf in tree_leaves(value, **how) if isinstance(leaf, torch.Tensor)]


def kinds(value):
    """The types in a nest, all the way down: that of its numbers for a tensor."""
    if isinstance(value, dict):
        return {key: kinds(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(kinds, value))
    return getattr(value, "dtype", type(value))


def same_kinds(*pair):
    """As `same`, and of the same types; the outermost list may be a tuple."""
    pair = [list(x) if isinstance(x, tuple) else x for x in pair]
    return same(*pair) and kinds(pair[0]) == kinds(pair[1])


# 1. Scatter


def my_scatter(batch, num_devices):
    """The slices begin `ceil(rows / devices)` rows apart. The range ends with the batch."""
    size = -(-len(batch) // num_devices)
    return [batch[start : start + size] for start in range(0, len(batch), size)]


GRADS = " where gradients are required"
SHAPES = [((6,), 2), ((7,), 3), ((5,), 4), ((1,), 3), ((9, 2), 4), ((16, 1), 5)]

check_scatter = Exercise(
    my_scatter,
    read_again='"Seven rows, three devices: who gets how many?"',
    cases=[
        *((torch.arange(torch.Size(s).numel()).reshape(s), n) for s, n in SHAPES),
        (torch.tensor([[2.0], [-1.0], [3.0], [0.0]], requires_grad=True), 2),
    ],
    given=lambda b, n: f"a batch of shape {(*b.shape,)} and {n} devices" + GRADS * b.requires_grad,
    play=with_gradients(
        {"chunk", "unsafe_chunk", "scatter", "scatter_rows", "torch_scatter"},
        "cut with slices instead.",
    ),
    same=same_kinds,
    hint="Each chunk but the last has ceil(rows / devices) rows; return a list of them, in order.",
    errors=GRADIENTS
    | {
        "had not returned": "A loop does not end: does the start move on by a chunk's size?",
        "slice indices|as an integer": FLOAT,
        "list index out of range": "No index may run past an end; nothing has to be moved.",
        r"no len\(\)": "The second argument is a number already: it has no len.",
        "NVIDIA|CUDA": "torch's scatter is what you are to write, and needs GPUs: cut with slices.",
    },
    wrong={
        EVEN: lambda b, n: b.tensor_split(n),
        "That adds a row where none is left over: round up.": "-(-len( => 1 + (len(",
        "That rounds down, and rows are left over: round up.": [
            "-(-len(batch) // num_devices) => len(batch) // num_devices or 1",
            ("-(-len(batch) => (len(batch)", "len(batch), => num_devices * size,"),
        ],
        EMPTY: ["len(batch), => num_devices * size,", "len(batch), => len(batch) + 1,"],
        SIZE: lambda b, n: b.split(n),
        "There are not always three devices: take num_devices.": "// num_devices => // 3",
        "That is one tensor; return a list, as stack needs chunks of one length.": (
            lambda b, n: torch.stack(my_scatter(b, n))
        ),
        "A slice leaves out its end: from start, it ends at start + size.": [
            f"size] => size{end}]" for end in (" - start", " - 1", " + 1", " - (start > 0)")
        ],
        "That drops rows: count those that came out.": "len(batch), size => len(batch) - 1, size",
        "The first chunk alone: does return stand in the loop, or does range end early?": [
            f"size)] => size)][{first}]" for first in ("0", ":1")
        ],
        "Count rows with len; numel counts all numbers.": "-(-len(batch) => -(-batch.numel()",
        "None is longer than the first: the last may only be shorter.": lambda b, n: b.tensor_split(
            [len(b) // n * i for i in range(1, n)]
        ),
        "That slice has no end: start + size.": "start : start + size => start:",
        "No row comes twice: start a chunk's size apart; the last chunk is shorter.": [
            lambda b, n: [*torch.cat([b, b[: -len(b) % -(-len(b) // n)]]).split(-(-len(b) // n))],
            "len(batch), size => len(batch), num_devices",
        ],
        "Neighbours stay together.": "start : start + size] => start // size :: num_devices]",
        "Those are columns: cut dimension 0, the rows.": lambda b, n: b.chunk(n, -1),
        "Those are lists: leave each chunk a tensor.": "size] => size].tolist()",
        "Those are numbers of rows: return the rows.": "[batch[start : start + size] => [size",
        "The numbers are right, but no longer of the batch's dtype: leave out the conversion.": [
            f"size] => size].{kind}()" for kind in ("float", "double")
        ],
        "A chunk keeps the shape of its rows: leave out flatten.": "size] => size].flatten()",
        "The short chunk is the last one.": lambda b, n: [
            chunk.flip(0) for chunk in my_scatter(b.flip(0), n)[::-1]
        ],
        FLOAT: "-(-len(batch) // num_devices) => len(batch) / num_devices",
        "it has no len.": "// num_devices => // len(num_devices)",
        "but chunk did the work": lambda b, n: b.chunk(n),
        "but unsafe_chunk did the work": lambda b, n: b.unsafe_chunk(n),
        "but torch_scatter did the work": lambda b, n: torch_scatter(b, n),
    },
    also_right=[lambda b, n: b.split((len(b) + n - 1) // n)],
)

# 2. Nests


def my_scatter_nest(inputs, num_devices):
    """A tensor is cut, a nest is taken apart and built again, anything else is repeated.

    Each value gives a list; `zip` turns them into a row for each device, up to the shortest list:
    so unequal batches are refused first. An empty nest has no lists, and is repeated.
    """
    if len({len(tensor) for tensor in tensors_in(inputs)}) > 1:
        raise ValueError("not all tensors have equally many rows")
    if isinstance(inputs, torch.Tensor):
        return list(inputs.chunk(num_devices))
    if isinstance(inputs, dict) and inputs:
        columns = [my_scatter_nest(value, num_devices) for value in inputs.values()]
        return [type(inputs)(zip(inputs, row, strict=True)) for row in zip(*columns, strict=False)]
    if isinstance(inputs, tuple | list) and inputs:
        columns = [my_scatter_nest(value, num_devices) for value in inputs]
        return [type(inputs)(row) for row in zip(*columns, strict=False)]
    return [inputs] * num_devices


class Settings(UserDict):
    """What looks like a dict and is none."""

    def __repr__(self):
        return f"UserDict({self.data})"


@dataclass
class Options:
    """What is no nest, but has a value in it."""

    rate: float


ORDERED = "That was an OrderedDict: a dict too, and it stays one. Use isinstance and type(inputs)."


def handing_over(play):
    """Plays like `play`; a `Settings` or `Options` has to arrive as the very object handed in.

    An outcome is plain data, which another process can send: it shows such an object as a text.
    """

    def playing(attempt, inputs, num_devices):
        given = {id(leaf) for leaf in tree_leaves(inputs)}

        def shown(leaf):
            if not isinstance(leaf, Settings | Options):
                return leaf
            if id(leaf) not in given:
                raise NotYet(ITSELF)
            return repr(leaf)

        result = tree_map(shown, play(attempt, inputs, num_devices))
        if type(inputs) is OrderedDict and isinstance(result, list | tuple):
            if any(type(each) is not OrderedDict for each in result):
                raise NotYet(ORDERED)
            return [*map(dict, result)]  # as an outcome arrives from another process
        return result

    return playing


def refusing(play):
    """Plays like `play`; where tensors have unequal numbers of rows, a ValueError is a result."""

    def playing(attempt, *case):
        try:
            result = play(attempt, *case)
        except IndexError:
            if len({*map(len, tensors_in(case))}) > 1:
                raise NotYet(UNEQUAL) from None
            raise
        except (ValueError, TypeError, RuntimeError) as error:
            if len({*map(len, tensors_in(case))}) < 2:
                raise
            kind = ValueError if isinstance(error, ValueError) else type(error)
            return f"a {kind.__name__} is raised"
        return "an error is returned" if isinstance(result, Exception | type) else result

    return playing


ROWS = torch.arange(4)
UNEQUAL_ROWS = (8, 7), (9, 10), (4, 4, 3), (4, 3, 4), (3, 4, 4)
FEWER = "A batch may fall into fewer chunks than devices: let zip stop at the shortest column."
UNEQUAL = "Not all of those tensors have equally many rows: raise a ValueError."
NESTS = "[type(inputs)(zip(inputs, row, strict=True)) for row in zip(*columns, strict=False)]"
ROW_BY_ROW = "[type(inputs)(row) for row in zip(*columns, strict=False)]"
NO_SINGLE = "tensors_in(inputs)}) => tensors_in(inputs) if len(tensor) > 1})"
ITSELF = "A dataclass or a UserDict is handed over itself: not cut, not copied."
WHOLE = "devices)) => devices)) if len(inputs) > 1 else [inputs] * num_devices"
PADDED = "list(inputs.chunk(num_devices)) => [*inputs.chunk(num_devices), {}, {}, {}][:num_devices]"

check_scatter_nest = Exercise(
    my_scatter_nest,
    read_again='"A dictionary goes in: what does each device get?"',
    cases=[
        ({"pixels": ROWS, "labels": ROWS * 10}, 2),
        ([ROWS, "train"], 2),
        ((ROWS, {"extra": [(ROWS * 10, 0.5)], "mask": None}), 2),
        ({"name": "train", "pixels": torch.arange(10).reshape(5, 2), "rate": 0.1}, 4),
        ([torch.arange(8).reshape(4, 2), ROWS], 2),
        ({"rate": 0.1, "names": ["a", "b", "c"]}, 3),
        ({"pixels": ROWS, "extra": []}, 2),
        ({"pixels": ROWS, "extra": {}, "more": ()}, 2),
        ({"pixels": torch.ones(4, requires_grad=True)}, 2),
        ({"pixels": torch.arange(10), "labels": torch.arange(9)}, 4),
        ({"pixels": torch.arange(10), "extra": [torch.arange(9)]}, 4),
        ({"pixels": ROWS, "rate": torch.tensor([0.5])}, 2),
        *((tuple(map(torch.arange, rows)), 4) for rows in UNEQUAL_ROWS),
        ([torch.arange(1), "train"], 3),
        (None, 3),
        ({}, 3),
        ([], 2),
        (OrderedDict(pixels=ROWS, rate=0.1), 2),
        ({"pixels": ROWS, "more": Options(0.1)}, 2),
        ({"pixels": ROWS, "more": Settings(rate=0.1)}, 2),
    ],
    given="{} and {} devices",
    play=refusing(
        handing_over(
            with_gradients(
                {"scatter", "scatter_nest", "torch_scatter"}, "take the nest apart yourself."
            )
        )
    ),
    same=same_kinds,
    hint="Look at one kind of value after the other: tensor, dict, tuple or list, None and others.",
    errors=GRADIENTS
    | {
        "AssertionError|Exception": "Raise a ValueError, and only for unequal numbers of rows.",
        r"index out of range|zip\(\) argument": FEWER,
        "RecursionError": (
            "That never ends: call it for each value, not for inputs; a text consists of texts."
        ),
        "ValueError(?!: (too m|not en|dict))": "Refuse nothing: compare numbers of rows, len.",
        "NVIDIA|CUDA": "torch's scatter is what you are to write: take the nest apart yourself.",
    },
    wrong={
        "Each device got the whole nest: its tensors are to be cut.": lambda nest, n: [nest] * n,
        "That is a nest of lists: turn it around with zip, into a list of nests.": [
            f"{NESTS} => dict(zip(inputs, columns))",
            f"{NESTS} => dict(zip(inputs, map(tuple, columns)))",
            f"{ROW_BY_ROW} => type(inputs)(columns)",
        ],
        "What is no tensor goes to every device whole: repeat it.": [
            f"[inputs] * num_devices => {each}" for each in ("[inputs]", "inputs")
        ],
        "All parts are one and the same dict: make a new one for each chunk.": (
            f"{NESTS} => {NESTS}[-1:] * len(columns[0])"
        ),
        "A text is not cut: every device gets it whole.": (
            "[inputs] * num_devices => [inputs[i * k : i * k + k] for k in "
            "[-(-len(inputs) // num_devices)] for i in range(num_devices)] "
            "if isinstance(inputs, str) else [inputs] * num_devices"
        ),
        "There are not always two devices: take num_devices.": [
            ("chunk(num_devices) => chunk(2)", "[inputs] * num_devices => [inputs] * 2"),
            "chunk(num_devices) => chunk(2)",
            "[inputs] * num_devices => [inputs] * 2",
        ],
        ORDERED: [
            "type(inputs)(zip( => dict(zip(",
            "isinstance(inputs, dict) => type(inputs) is dict",
        ],
        "None alone goes to every device, too: return a list.": (
            lambda nest, n: None if nest is None else my_scatter_nest(nest, n)
        ),
        ITSELF: [
            "[inputs] * num_devices => [*__import__('copy').deepcopy([inputs])] * num_devices",
            "return [inputs] * num_devices => return [type(inputs)(**vars(inputs)) for _ in 'ab'] "
            "if hasattr(inputs, 'rate') else [inputs] * num_devices",
            "isinstance(inputs, dict) => isinstance(inputs, dict | UserDict)",
        ],
        "A nest may hold nests: call the function for each value.": (
            "my_scatter_nest(value, num_devices) => "
            "(value.chunk(num_devices) if hasattr(value, 'chunk') else [value] * num_devices)"
        ),
        "Without a tensor in it, a list goes to every device whole.": (
            f"{ROW_BY_ROW} => {ROW_BY_ROW} if tensors_in(inputs) else [[x] for x in inputs]"
        ),
        "Going through a dict gives its keys: take its values().": "inputs.values()] => inputs]",
        "zip over no columns gives no row: repeat an empty nest as it is.": [
            *(f"{kind}) and inputs => {kind})" for kind in ("dict", "list")),
            lambda nest, n: [] if nest in ([], {}) else my_scatter_nest(nest, n),
        ],
        "A tuple and a list are nests as well: one went to every device whole.": [
            f"tuple | list) => {kind})" for kind in ("tuple", "list", "set")
        ],
        "A tuple stays a tuple, a list a list.": [
            f"type(inputs)( => {kind}(" for kind in ("list", "tuple")
        ],
        FEWER: "strict=False => strict=True",
        UNEQUAL: [
            "> 1: => > 9:",
            *(f"raise ValueError => return {x}" for x in ("ValueError", "[] and", "None and")),
        ],
        "Refuse with a ValueError.": [f"ValueError => {x}" for x in ("TypeError", "RuntimeError")],
        "Compare numbers of rows, not chunks, and of every nest: tuples too.": [
            "{len(tensor) => {len(tensor.chunk(num_devices))",
            "if len({ => if isinstance(inputs, dict) and len({",
        ],
        "A tensor deeper in the nest counts as well: compare all of them.": (
            "tensors_in(inputs) => tensors_in(inputs, is_leaf=lambda each: each is not inputs)"
        ),
        "A tensor of one row is compared as well: beside four rows, it is unequal.": [
            NO_SINGLE,
            (NO_SINGLE, WHOLE),
        ],
        "A later tensor that is longer than the first is unequal as well.": (
            "{len(tensor) => {min(len(tensor), len(tensors_in(inputs)[0]))"
        ),
        "Compare all tensors, not some: any one of them may be the unequal one.": [
            *(f"tensors_in(inputs)}}) => tensors_in(inputs)[{some}]}})" for some in (":2", "-2:")),
            "tensors_in(inputs)}) => tensors_in(inputs)[:1] + tensors_in(inputs)[-1:]})",
            "len({ => any(a != b for a, b in zip(*[map(len, tensors_in(inputs))] * 2)) and len({",
        ],
        "Those are columns: cut dimension 0, the rows.": (
            "chunk(num_devices) => chunk(num_devices, -1)"
        ),
        EVEN: "inputs.chunk => inputs.tensor_split",
        SIZE: "inputs.chunk => inputs.split",
        EMPTY: [
            WHOLE,
            *(PADDED.replace("{}", each) for each in ("inputs[:0]", "None", "inputs[-1:]")),
            f"{NESTS} => [{{k: c[i] for k, c in zip(inputs, columns) if c[i:]}} "
            "for i in range(num_devices)]",
        ],
    },
    also_right=[
        "list(inputs.chunk(num_devices)) => inputs.split(-(-len(inputs) // num_devices))",
        "raise ValueError( => raise type('Unequal', (ValueError,), {})(",
    ],
)

# 3. The mean


def my_mean(chunk_means, chunk_sizes):
    """A chunk's mean times its rows is the chunk's sum. Add these up, and divide by all rows."""
    return (chunk_means * chunk_sizes).sum() / chunk_sizes.sum()


SIZES = [(4, 1), (3, 3, 1), (2, 2), (1, 4, 3)]
MEANS = [(0.5, 9.0), (1.0, 4.0, 6.0), (1.0, 3.0), (1.25, 3.5, 2.0)]

check_mean = Exercise(
    my_mean,
    read_again='"Is the mean of the means the mean?"',
    cases=[
        *zip(map(torch.tensor, MEANS), map(torch.tensor, SIZES), strict=True),
        (torch.tensor([2.0, 8.0], requires_grad=True), torch.tensor([2, 1])),
    ],
    given="means {} of chunks of {} rows",
    play=with_gradients(set(), ""),
    same=lambda *pair: same(*(x.item() if hasattr(x, "item") else x for x in pair)),
    hint="The mean is the sum over all rows, divided by their number: one number, not rounded.",
    errors=GRADIENTS
    | {"same dtype|infer output dtype": "The sizes are integers: call float() on them first."},
    wrong={
        "That is the mean of the means: a short chunk counts too much.": lambda m, n: m.mean(),
        "That is the sum over all rows; divide it by their number.": "/ chunk_sizes.sum() => ",
        "Divide by the number of rows, not by the number of chunks.": lambda m, n: (m * n).mean(),
        "Each mean stands for several rows: weight it by its chunk's size.": " * chunk_sizes => ",
        "Divide by all rows, not by those of the longest chunk.": "s.sum() => s.max()",
        "That is one row off: a mean divides by the number of rows.": [
            f"/ chunk_sizes.sum() => / (chunk_sizes.sum() {one})" for one in ("- 1", "+ 1")
        ],
        "Weight by each chunk's share, its rows divided by all rows: softmax is no share.": (
            lambda m, n: (m * n.float().softmax(0)).sum()
        ),
        "A long chunk counts more, not less.": [
            lambda m, n: (m / n).sum() / (1 / n).sum(),
            lambda m, n: (m / n).sum(),
        ],
        "Not every chunk has as many rows as the longest: divide by all rows.": (
            "chunk_sizes.sum() => max(chunk_sizes) / len(chunk_means)"
        ),
        "The number stands in a list: return it alone.": lambda m, n: [my_mean(m, n)],
        "The middle mean is not the mean: add up the rows.": lambda m, n: m.median(),
        "The last chunk does not count: it has to.": lambda m, n: my_mean(m[:-1], n[:-1]),
        "The first chunk alone: does return stand in the loop?": [
            ".sum() / => [0] /",
            lambda m, n: m[0],
        ],
        "Divide by all rows, not by the mean number of a chunk.": "s.sum() => s.float().mean()",
        "// rounds down; a mean keeps what / leaves.": ".sum() / => .sum() //",
        "That divides twice: by all rows, then by the number of chunks.": ".sum() / => .mean() /",
        "7 rows make one of the batches: add up the chunks.": "/ chunk_sizes.sum() => / 7",
        "call float() on them": "(chunk_means * chunk_sizes).sum() => chunk_means @ chunk_sizes",
        KEEP_THE_WAY: lambda m, n: my_mean(m, n).item(),
    },
    also_right=[lambda m, n: sum(mean * size for mean, size in zip(m, n, strict=True)) / sum(n)],
)


# 4. The loss of one process


def my_process_loss(scores, targets, total, num_processes):
    """The average divides by the number of processes, so each multiplies by it before.

    With gradient accumulation, where the gradients of several small batches are added up before a
    step, `total` counts the targets of all of them.
    """
    loss = nn.functional.cross_entropy(scores, targets, reduction="sum")
    return loss * num_processes / total


def averaged(attempt, scale, *shards):
    """The loss's average over processes, and the gradients'; each has a shard of the targets.

    The scores are scaled: by nan where the loss has to be nan as well.
    """
    total, losses = sum(int(torch.sum(targets >= 0)) for targets in shards), []
    gradients = []
    for rank, targets in enumerate(shards):
        scores = (torch.arange(5.0 * len(targets)) + 7 * rank).sin().reshape(-1, 5) * scale
        loss = attempt(scores.requires_grad_(), targets, total, len(shards))
        if loss is None and len(losses) < 2:
            return None
        if isinstance(loss, tuple | list) or getattr(loss, "shape", ())[:1] > (1,):
            raise NotYet(ONE_NUMBER)
        if not getattr(loss, "requires_grad", False):
            raise NotYet(KEEP_THE_WAY if (targets >= 0).any() else NO_BACKWARD)
        if math.isnan(scale):
            if loss.isfinite().all():
                raise NotYet(HIDDEN)
            losses.append(0.0)  # no number is the same as nan
            gradients.append(torch.zeros_like(scores))
            continue
        [gradient] = torch.autograd.grad(torch.sum(loss), scores)
        if not (loss.isfinite().all() and gradient.isfinite().all()):
            raise NotYet(NOT_FINITE if (targets >= 0).any() else NO_TARGETS)
        losses.append(loss.item())
        gradients.append(gradient / len(shards))
    return sum(losses) / len(shards), torch.cat(gradients)


def losses_first(outcome, expected):
    if outcome and same(outcome[0], expected[0]):
        return ["the average loss is right, the gradient is not"]
    return expected_and_got(outcome and outcome[0], expected[0])


NO_BACKWARD = (
    "A bare 0 or None has no backward: this process sends no gradient, and the others wait."
)
NOT_FROM_SCORES = "No gradient reaches the scores: return their sum over no targets, no new zero."
ONE_NUMBER = "A loss is one number: add up those of the targets, and divide."
NO_TARGETS = "Without targets that is nan: a sum of nothing is 0, but a mean is 0 / 0."
HIDDEN = "The model diverged, but the loss does not show it: a sum needs no nan_to_num."
NOT_FINITE = "The loss or its gradient is nan or infinite: cross_entropy takes scores as they are."
SWAPPED = "The scores come first, then the targets."
COUNT = "torch.sum(targets >= 0)"
LOSS_OR = f"loss * num_processes / total => loss * num_processes / total if {COUNT} else "

SHARDS = [[3, 1, 4], [2]], [[3, 0], [4, -100]], [[3, 1], [4, -100], [-100, -100]]

check_process_loss = Exercise(
    my_process_loss,
    read_again='"A device without targets"',
    cases=[
        *((1.0, *map(torch.tensor, shards)) for shards in SHARDS),
        (math.nan, torch.tensor([3, 1]), torch.tensor([2])),
    ],
    given=lambda scale, *shards: (
        "scores of nan and " * math.isnan(scale)
        + f"processes with the targets {[each.tolist() for each in shards]}"
    ),
    play=averaged,
    compared=losses_first,
    hint="Each takes its sum, times the number of processes, divided by total.",
    correct="Loss and gradient are the whole batch's in {count} cases: one has an empty process.",
    errors={
        "floor_divide": "// has no backward: divide with /.",
        "used in the graph": NOT_FROM_SCORES,
        r"'int' object has no attribute": "total and num_processes are ints: use them as they are.",
        "not implemented for 'Long'": SWAPPED,
        "second time|process group": "Return the loss alone: total is a sum already; no backward.",
        "out of bounds": "cross_entropy leaves out -100 by itself: leave ignore_index as it is.",
    },
    wrong={
        "A process's own mean makes the average a mean of means: divide its sum by total.": [
            lambda scores, targets, *_: nn.functional.cross_entropy(scores, targets),
            "sum => mean",
            ("sum => mean", " / total => "),
            ("sum => mean", " * num_processes => "),
            f"* num_processes / total => / max(1, {COUNT})",
        ],
        "The average divides by the number of processes: multiply by it before.": [
            " * num_processes => ",
            "* num_processes => / num_processes",
            f"* num_processes => * {COUNT}",
            ("sum => mean", "* num_processes / total => / num_processes"),
            ("sum => mean", f"* num_processes => * {COUNT}"),
        ],
        "That divides by the number of processes: multiply by it, and divide by total.": (
            "* num_processes / total => / num_processes"
        ),
        "That is the sum: divide it by total.": ["* num_processes / total => * 1", " / total => "],
        "Upside down: times the number of processes, divided by total.": (
            "* num_processes / total => * total / num_processes"
        ),
        "Divide by total, not by this process's rows: -100 is no target.": [
            "* num_processes / total => / len(targets)",
            ("sum => mean", "* num_processes => * num_processes * len(targets)"),
        ],
        "0 is a target too, -100 is none.": [
            ("sum => mean", "* num_processes => * num_processes * (targets > 0).sum()"),
            "scores, targets, r => scores[targets > 0], targets[targets > 0], r",
        ],
        "3 is not always the number of processes: take num_processes.": "* num_processes => * 3",
        "3 is not always the number of targets: take total.": "/ total => / 3",
        "// rounds down: neither quotient has to be whole.": [
            "* num_processes / total => / (total // num_processes)",
            "* num_processes / total => * (num_processes // total)",
        ],
        "nll_loss takes logarithms of probabilities; cross_entropy takes scores.": (
            "cross_entropy => nll_loss"
        ),
        "The targets are to be learned as they are: leave out label_smoothing.": (
            'reduction="sum" => reduction="sum", label_smoothing=0.1'
        ),
        SWAPPED: "scores, targets, r => targets, scores, r",
        "divide with /": "/ total => // total",
        "use them as they are.": "/ total => / total.item()",
        "by itself": 'reduction="sum" => reduction="sum", ignore_index=-1',
        "-100 is no target, 0 is one: leave the targets as they are.": "ts, r => ts.clamp(0), r",
        "cross_entropy takes scores: it has a softmax of its own.": (
            "cross_entropy(scores => cross_entropy(scores.softmax(1)"
        ),
        "The gradient comes from the whole loss: no part of it is to be detached.": (
            "loss * num_processes / total => (loss + loss.detach() * (num_processes - 1)) / total"
        ),
        NO_TARGETS: [
            ("sum => mean", f"* num_processes => * {COUNT} * num_processes"),
            f"loss * num_processes / total => loss / {COUNT} * {COUNT} * num_processes / total",
        ],
        NOT_FINITE: "cross_entropy(scores => nll_loss(scores.log()",
        ONE_NUMBER: ["sum => none", " * num_processes / total => , total"],
        HIDDEN: ("sum => mean", f"* num_processes => .nan_to_num() * {COUNT} * num_processes"),
        KEEP_THE_WAY: lambda *case: my_process_loss(*case).item(),
        NO_BACKWARD: [LOSS_OR + zero for zero in ("0.0", "None", "torch.tensor(0.0)")],
        NOT_FROM_SCORES: LOSS_OR + "torch.zeros((), requires_grad=True)",
    },
    also_right=[
        "* num_processes / total => / (total / num_processes)",
        LOSS_OR + "scores.sum() * 0",
        lambda s, t, total, n: -n * s.log_softmax(1)[t >= 0, t[t >= 0]].sum() / total,
    ],
)
