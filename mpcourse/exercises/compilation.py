"""Exercises of page `compilation`: fusion by hand, a kernel, graphs, one for an if."""

import inspect
import math

import torch
import torch._dynamo
from torch import nn

from mpcourse.compilation import count_compiles
from mpcourse.compilation.shapes import CountingBackend
from mpcourse.compilation.toolchain import only_errors
from mpcourse.exercises.exercise import Exercise, NotYet, raised

# 1. Block after block

JOIN = "Join the blocks to one tensor of the same length: torch.cat puts one behind the other."
AT_ONCE = "The operation got more than {size} numbers at once: such a block leaves the cache."
AS_COUNT = "`size` is how many numbers a block has, not how many blocks there are."
DOWN = "The number of blocks is rounded down there: a last block that is shorter is one, too."
AT = "A block starts where the one before it ends: at its number times `size`."
SHORTER = "The last block is missing: it may be shorter than the others."
ENDS = "A number is lost at the end of each block: numbers[a:b] ends before b."
KEPT = "The numbers that were handed in have changed: return a new tensor."
DTYPE = "The result has another dtype than what the operation gives: torch.cat keeps it."


def my_in_blocks(operation, numbers, size):
    """Each block goes through the whole operation before the next one is fetched.

    What comes between two steps of the operation is no larger than a block, so it stays in the
    cache. The last block may be shorter.
    """
    return torch.cat([operation(block) for block in numbers.split(size)])


def with_an_operation(attempt, count, size):
    """What comes out for 1.0 to `count`; the operation looks at the blocks that it is handed."""
    handed, numbers = [], torch.arange(1, count + 1).double()

    def operation(block):
        handed.append(block.numel())
        return block * 2 + 1

    result = attempt(operation, numbers, size)
    if not torch.equal(numbers, torch.arange(1, count + 1).double()):
        raise NotYet(KEPT)
    if max(handed, default=0) > size:
        rounded = len(handed) == count // size != count / size
        words = DOWN if rounded else AS_COUNT if len(handed) == size else AT_ONCE
        raise NotYet(words.format(size=size))
    if not handed and result is not None:
        raise NotYet("The operation was never called: hand each block to it.")
    if len(handed) > (needed := math.ceil(count / size)):
        line = f"The operation ran {len(handed)} times; blocks of {size} need {needed} calls."
        raise NotYet(line, "Every call costs Python's time.")
    if sum(handed) == count // size * size < count:
        raise NotYet(SHORTER)
    if isinstance(result, torch.Tensor) and result.dtype != numbers.dtype:
        raise NotYet(DTYPE)
    return result


def blocks_into(operation, numbers, size):
    result = torch.empty_like(numbers)
    for start in range(0, len(numbers), size):
        result[start : start + size] = operation(numbers[start : start + size])
    return result


check_in_blocks = Exercise(
    my_in_blocks,
    read_again='"Twenty operations in a row"',
    cases=[(6, 2), (5, 2), (10, 4), (3, 8), (4, 4)],
    given="{} numbers in float64, in blocks of {}, and an operation that doubles and adds 1",
    play=with_an_operation,
    hint="numbers.split(size) gives the blocks, torch.cat joins what the operation makes of them.",
    wrong={
        "The operation got more than": lambda operation, numbers, size: operation(numbers),
        AS_COUNT: ".split => .chunk",
        DOWN: "split(size) => chunk(len(numbers) // size)",
        AT: "numbers.split(size) => [numbers[i:][:size] for i in range(-(-len(numbers) // size))]",
        "Every call costs Python's time.": "split(size) => split(1)",
        ENDS: (
            "numbers.split(size)"
            " => [numbers[i : i + size - 1] for i in range(0, len(numbers), size)]"
        ),
        JOIN: [
            "torch.cat => list",
            ("torch.cat => list", "operation(block) => operation(block).tolist()"),
            "torch.cat => torch.stack",
        ],
        SHORTER: [
            lambda operation, numbers, size: blocks_into(
                operation, numbers[: len(numbers) // size * size], size
            ),
            "numbers.split => numbers[: len(numbers) // size * size].split",
            # range(0, len(numbers) - size, size)
            "numbers.split => numbers[: (len(numbers) - 1) // size * size].split",
        ],
        "That adds the blocks up: put one behind the other, with torch.cat.": "torch.cat => sum",
        "That is one block: go on to the end of the numbers.": [
            "numbers.split => numbers[:size].split",
            "numbers.split => numbers[-size:].split",
        ],
        "never called": ["operation(block) => block", "operation(block) => block * 2 + 1"],
        KEPT: "operation(block) => block.copy_(operation(block))",
        DTYPE: "size)]) => size)]).float()",  # as torch.zeros(len(numbers)) does
    },
    also_right=[blocks_into, "split(size) => tensor_split(math.ceil(len(numbers) / size))"],
)

# 2. Write the kernel

A_LIST = "Return a list of lines, each a text: ['x = numbers[i]', ...]."
LOADED = "The input's name has no number yet: a line loads it, once, before the first operation."
PLACED = "A name has no number when it is used: each operation writes to its own name."
NO_LINE = "A line is one assignment, such as mul = x * 0.9: its type and semicolon come later."
LOOP = "The loop is written around your lines: return the step inside it."
ALL = "`numbers` holds all of them: numbers[i] is the one of this step."
NO_F = "The braces are still there: an f stands before a text that fills them in."
TEXTS = "`numbers` is there when the kernel runs, not while you write it: return its lines as text."


class Memory(list):
    """Numbers that count how often they are read and written."""

    loads = stores = 0

    def __getitem__(self, place):
        self.loads += 1
        return super().__getitem__(place)

    def __setitem__(self, place, number):
        self.stores += 1
        super().__setitem__(place, number)


def my_kernel(entry, operations):
    """One load, the operations between registers, one store.

    A graph lists its operations in order: each side is there when it is needed.
    """
    lines = [f"{entry} = numbers[i]"]
    for name, left, sign, right in operations:
        lines.append(f"{name} = {left} {sign} {right}")
    return [*lines, f"result[i] = {name}"]


def loads_everywhere(entry, operations):
    lines = my_kernel(entry, operations)[1:]
    return [line.replace(entry, "numbers[i]") for line in lines]


def stores_everywhere(entry, operations):
    lines = my_kernel(entry, operations)[:-1]
    return [lines[0]] + [each for line in lines[1:] for each in (line, f"result[i] = {line[:3]}")]


def as_eager(entry, operations):
    """Each operation reads memory and writes memory; right for a chain."""
    lines = [f"result[i] = {left} {sign} {right}" for _, left, sign, right in operations]
    names = [name for name, *_ in operations]
    for name in names:
        lines = [line.replace(name, "result[i]") for line in lines]
    return [line.replace(entry, "numbers[i]") for line in lines]


def in_a_chain(entry, operations):
    lines, before = [f"{entry} = numbers[i]"], entry
    for name, _, sign, right in operations:
        lines.append(f"{name} = {before} {sign} {right}")
        before = name
    return [*lines, f"result[i] = {before}"]


def with_semicolons(entry, operations):
    """Several assignments on one line, and semicolons as in C++."""
    *inner, last = my_kernel(entry, operations)
    return ["; ".join(inner) + ";", last + ";"]


def one_expression(entry, operations):
    texts = {entry: "y"}
    for name, left, sign, right in operations:
        texts[name] = f"({texts.get(left, left)} {sign} {texts.get(right, right)})"
    return ["y = numbers[i]", f"result[i] = {texts[name]}"]


def with_a_memory(attempt, entry, operations):
    """What the lines write for 5.0 and 7.0, with the trips that they make."""
    lines = attempt(entry, operations)
    if lines is None:
        return None
    if not isinstance(lines, list | tuple) or not all(isinstance(each, str) for each in lines):
        raise NotYet(A_LIST)
    if any(each.lstrip().startswith("for ") for each in lines):
        raise NotYet(LOOP)
    numbers, result = Memory([5.0, 7.0]), Memory([None, None])
    for i in range(2):
        try:
            exec("\n".join(lines), {"numbers": numbers, "result": result, "i": i})
        except SyntaxError as error:
            wrong = (error.text or "").strip()
            raise NotYet(f"one of your lines: {wrong}", NO_F if "{" in wrong else NO_LINE) from None
        except NameError as error:
            words = LOADED if error.name == entry else PLACED
            raise NotYet(f"your lines: {error}", words) from None
    stored = [list.__getitem__(result, i) for i in range(2)]
    loads = numbers.loads + result.loads
    return {"result": stored, "loads": loads / 2, "stores": result.stores / 2}


check_kernel = Exercise(
    my_kernel,
    read_again='"Graph and backend: a compiler of your own"',
    cases=[
        ("x_0", [("mul", "x_0", "*", 3.0)]),
        ("x_0", [("sub", "x_0", "-", 3.0)]),
        ("x_0", [("mul", "x_0", "*", 3.0), ("add", "mul", "+", 1.0)]),
        ("l_y_", [("sub", 1.0, "-", "l_y_"), ("mul", "sub", "*", 0.5)]),
        ("l_y_", [("mul", "l_y_", "*", "l_y_"), ("add", "mul", "+", "l_y_")]),
        ("x_0", [("sub", "x_0", "-", 2.0), ("mul", "sub", "*", 3.0), ("add", "mul", "+", "sub")]),
    ],
    given="the input's name {!r}, the operations {}, and the numbers 5.0 and 7.0",
    play=with_a_memory,
    hint="First a load, then `name = left sign right` for each operation, last a store.",
    errors={"name '(numbers|result|i)' is not defined": TEXTS, "multiply sequence": ALL},
    correct="All {count} graphs agree: one load and one store for each number.",
    wrong={
        "The number is in a register after one load: use its name from there.": loads_everywhere,
        "What lies between two operations stays in a register: store the last one alone.": (
            stores_everywhere
        ),
        "That is what eager does: it goes to memory and back for each operation.": as_eager,
        "The last operation is the result; that is the first.": (
            '= {name}"] => = {operations[0][0]}"]'
        ),
        "That copies the input: store what the last operation has made.": (
            "result[i] = {name} => result[i] = {entry}"
        ),
        "Nothing is stored: the last line writes to result[i].": (
            'return [*lines, f"result[i] = {name}"] => return lines'
        ),
        "The sides are swapped: left comes first.": (
            "{left} {sign} {right} => {right} {sign} {left}"
        ),
        "Each operation has a sign of its own.": "{sign} => *",
        "The left side may be a number, or an earlier result: take `left` as it stands.": [
            in_a_chain,
            "{name} = {left} => {name} = {entry}",
        ],
        LOADED: 'lines = [f"{entry} = numbers[i]"] => lines = []',
        PLACED: 'lines.append(f"{name} = => lines.append(f"y = ',
        A_LIST: 'return [*lines, f"result[i] = {name}"] => return "; ".join(lines)',
        NO_LINE: 'append(f" => append(f"float ',
        NO_F: 'append(f" => append("',
        LOOP: 'lines = [ => lines = ["for i in range(n):", ',
        ALL: "numbers[i] => numbers",
        TEXTS: lambda entry, operations: [numbers[i] for i in range(2)],  # noqa: F821
    },
    also_right=[
        with_semicolons,
        one_expression,
        lambda entry, operations: (
            f"{entry} = numbers[i]",
            *(" ".join(map(str, [name, "=", *sides])) for name, *sides in operations),
            f"result[i] = {operations[-1][0]}",
        ),
    ],
)

# 3. How many graphs


def my_graphs(sizes):
    """The first graph holds for its own size, another one for every size from 2 on.

    The sizes 0 and 1 are special, and each has a graph of its own. So there are at most four: the
    first, the open one, that of 0 and that of 1.
    """
    others = set(sizes) - {sizes[0]}
    return 1 + (0 in others) + (1 in others) + any(size > 1 for size in others)


def graphs_of_torch(sizes):
    return count_compiles(nn.Linear(4, 2), [torch.ones(size, 4) for size in sizes])[-1]


check_graphs = Exercise(
    my_graphs,
    read_again='"Change the shape: how many graphs?"',
    cases=[
        ([5],),
        ([5, 5],),
        ([5, 7],),
        ([5, 5, 7, 9, 11],),
        ([5, 1],),
        ([1, 5, 7],),
        ([5, 1, 7, 1, 5],),
        ([1, 1],),
        ([6, 2, 3, 1, 6, 1, 2],),
        ([5, 0, 7],),
        ([0, 5, 7],),
        ([1, 0],),
        ([0, 4, 1, 0, 1],),
        ([5, 0, 1, 7],),
    ],
    given="batches of {}",
    hint="The first graph: its own size. A 0 or 1: its own. Everything else shares one.",
    wrong={
        "The first size is 1: its graph is the first one, and has been counted twice.": [
            "1 in others => 1 in sizes",
            "1 in others => 1 in sizes[1:]",
        ],
        "That counts the calls: a size that a graph fits already costs nothing.": len,
        "A size of 0 has a graph of its own, as 1 has.": (
            "(0 in others) + => ",
            "size > 1 => size != 1",
        ),
        "A graph for each size: but the second graph holds for any size from 2 on.": (
            lambda sizes: len(set(sizes))
        ),
        "A size of 1 has a graph of its own.": lambda sizes: min(len(set(sizes)), 2),
        "0 and 1 do not share a graph: with the first and the open one, there are four.": (
            "(0 in others) + (1 in others) => any(size < 2 for size in others)"
        ),
        "One too many: does the first graph fit that size still?": "return 1 => return 2",
        "One is missing: which size does no graph fit?": [
            "return 1 => return 0",
            lambda sizes: max(my_graphs(sizes) - 1, 1),
        ],
    },
    also_right=[graphs_of_torch, lambda sizes: torch.tensor(my_graphs(sizes))],
)

# 4. One graph for both ways

LOOKS = "somewhere Python has to look at a value (`if`, `float()`, `.item()`, `bool()`)."
CHOOSES = "torch.where chooses without looking."
REFUSALS = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)
CHANGED = "The rows that were handed in have changed: return a new tensor."


def my_fork(rows):
    """Both branches are computed, and a tensor chooses between them.

    Python never looks at a value, so one graph holds for all values, whatever the compiler.
    """
    return torch.where(rows.sum() > 0, rows + 1, rows - 1)


def eager_or_compiled(attempt, numbers, compiled):
    """What comes out; compiled, two batches go through, and there may be one graph only."""
    rows = torch.tensor(numbers)
    if not compiled:
        outcome = attempt(rows)
        if not torch.equal(rows, torch.tensor(numbers)):
            raise NotYet(CHANGED)
        return outcome
    backend = CountingBackend()
    torch.compiler.reset()
    try:
        with only_errors("torch._dynamo"):
            fast = torch.compile(inspect.unwrap(attempt), backend=backend, fullgraph=True)
            outcome = [fast(row) for row in rows]
    except REFUSALS:
        line = f"It is right, but with fullgraph=True torch.compile refuses it: {LOOKS}"
        raise NotYet(line, CHOOSES) from None
    except Exception as error:
        raise NotYet(f"It is right as it is; inside torch.compile {raised(error)}") from None
    finally:
        torch.compiler.reset()
    if backend.count > 1:
        line = f"It is right, but torch.compile makes {backend.count} graphs of it: {LOOKS}"
        raise NotYet(line, CHOOSES)
    return outcome


check_one_graph = Exercise(
    my_fork,
    read_again='"Which way does an if go?"',
    cases=[
        ([1.0, 2.0], False),
        ([-1.0, -2.0], False),
        ([3.0, -1.0], False),
        ([-3.0, 1.0], False),
        ([0.0, 0.0], False),
        ([0.5, -0.25], False),
        ([[1.0, 2.0], [-4.0, 0.5]], False),
        ([[-1.0, -2.0], [4.0, 0.5]], False),
        ([[1.0, 1.0], [-1.0, -1.0]], True),
    ],
    given=lambda numbers, compiled: f"{numbers}" + ", one after the other, compiled" * compiled,
    play=eager_or_compiled,
    hint="torch.where(condition, one, other), where the condition is a tensor with one value.",
    correct="All cases agree, also those that the page does not show, and there is one graph.",
    wrong={
        "A sum of 0 is not above 0.": "> 0 => >= 0",
        "A sum between 0 and 1 is above 0.": ["> 0 => > 1", "sum() => sum().int()"],
        "Each value has decided for itself: the sum of all decides.": "rows.sum() => rows",
        "Each row has decided for itself: the sum of all rows decides.": [
            "sum() => sum(-1, keepdim=True)",
            "sum() => sum(-1)",
        ],
        "One value or column has decided: the sum of all rows decides.": [
            "rows.sum() > 0 => (rows > 0).any()",
            "rows.sum() > 0 => (rows > 0).all()",
            "rows.sum() => rows[0]",
            "sum() => sum(0)",
        ],
        "That is the step alone: add it to the rows.": "rows + 1, rows - 1 => 1.0, -1.0",
        "At a sum of 0, sign() is 0: the else-branch is minus 1.": (
            lambda rows: rows + rows.sum().sign()
        ),
        "The branches are swapped: torch.where(condition, where true, where false).": (
            "rows + 1, rows - 1 => rows - 1, rows + 1"
        ),
        "The branch of `sum > 0` has been taken, as a trace would.": lambda rows: rows + 1,
        "The branch of `sum <= 0` has been taken, as a trace would.": lambda rows: rows - 1,
        LOOKS: [
            lambda rows: rows + 1 if rows.sum() > 0 else rows - 1,
            lambda rows: rows + (1 if rows.sum().item() > 0 else -1),
        ],
        CHANGED: lambda rows: rows.add_(2 * (rows.sum() > 0) - 1),
        "inside torch.compile it raised": lambda rows: my_fork(
            rows / (not torch.compiler.is_compiling())
        ),
    },
    also_right=[
        lambda rows: rows + 2 * (rows.sum() > 0) - 1,
        lambda rows: rows + (rows.sum() > 0).float() - (rows.sum() <= 0).float(),
    ],
)
