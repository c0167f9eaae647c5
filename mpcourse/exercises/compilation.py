"""Exercises of page `compilation`: fusion by hand, a kernel, one graph for an if."""

import inspect
import math

import torch
import torch._dynamo

from mpcourse.compilation.toolchain import only_errors
from mpcourse.exercises.exercise import Exercise, NotYet, raised

# 1. Block after block


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
        raise NotYet("The numbers that were handed in have changed: return a new tensor.")
    if max(handed, default=0) > size:
        raise NotYet(f"The operation got {max(handed)} numbers at once: `size` is the most.")
    if not handed and result is not None:
        raise NotYet("The operation was never called: hand each block to it.")
    if len(handed) > (needed := math.ceil(count / size)):
        line = f"The operation ran {len(handed)} times; blocks of {size} need {needed} calls."
        raise NotYet(line, "Every call costs Python's time.")
    if isinstance(result, torch.Tensor) and result.dtype != numbers.dtype:
        raise NotYet("The result has another dtype than what the operation gives.")
    if sum(handed) < count and isinstance(result, torch.Tensor) and len(result) == count:
        raise NotYet("All numbers went through the operation in one walk: hand it block by block.")
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
    errors={
        "has no attribute 'numel'": "Hand the blocks to the operation one by one.",
        "is invalid for input of size": "The last block may be shorter: split allows it.",
    },
    hint="numbers.split(size) gives the blocks, torch.cat joins what the operation makes of them.",
    wrong={
        "numbers at once: `size` is the most": [
            lambda operation, numbers, size: operation(numbers),
            ".split => .chunk",
        ],
        "Every call costs Python's time.": "split(size) => split(1)",
        "Each block loses a number: numbers[a:b] ends before b.": "(block) => (block[:-1])",
        "The last block is missing: it may be shorter than the others.": (
            "numbers.split => numbers[: len(numbers) // size * size].split"
        ),
        "Join the blocks to one tensor: torch.cat puts one behind the other.": [
            "torch.cat => list",
            "torch.cat => sum",
        ],
        "That is one block: go on to the end.": "numbers.split => numbers[:size].split",
        "The results are lost: keep what comes out.": "torch.cat => numbers + 0 * torch.cat",
        "That is the last block alone: keep each result, and join them.": "size)]) => size)][-1:])",
        "one by one": lambda operation, numbers, size: operation(numbers.split(size)),
        "in one walk": lambda operation, numbers, size: torch.vmap(operation)(numbers),
        "never called": "operation(block) => block",
        "have changed": "operation(block) => block.copy_(operation(block))",
        "another dtype": "size)]) => size)]).float()",  # as torch.zeros(len(numbers)) does
    },
    also_right=[blocks_into],
)

# 2. Write the kernel


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


def one_expression(entry, operations):
    """In a tuple, with semicolons, and no names between."""
    texts = {entry: "y"}
    for name, left, sign, right in operations:
        texts[name] = f"({texts.get(left, left)} {sign} {texts.get(right, right)})"
    return "y = numbers[i];", f"result[i] = {texts[name]};"


def with_a_memory(attempt, entry, operations):
    """What the lines write for 5.0 and 7.0, with the trips that they make."""
    lines = attempt(entry, operations)
    if lines is None:
        return None
    if not isinstance(lines, list | tuple) or not all(isinstance(each, str) for each in lines):
        raise NotYet("Return a list of lines, each a text: ['x = numbers[i]', ...].")
    if any(each.lstrip().startswith("for ") for each in lines):
        raise NotYet("The loop is written around your lines: return the step inside it.")
    numbers, result = Memory([5.0, 7.0]), Memory([None, None])
    for i in range(2):
        try:
            exec("\n".join(lines), {"numbers": numbers, "result": result, "i": i})
        except SyntaxError as error:
            text = "\n".join(lines).splitlines()[(error.lineno or 1) - 1]
            line = f"one of your lines: {text.strip()}"
            raise NotYet(line, "A line is one assignment, such as mul = x * 0.9.") from None
        except NameError as error:
            first = "The first line loads: the input's name is in `entry`."
            why = first if error.name == entry else "A name gets its number before it is used."
            raise NotYet(f"your lines: {error}", why) from None
    stored = [list.__getitem__(result, i) for i in range(2)]
    loads = numbers.loads + result.loads
    return {"result": stored, "loads": loads / 2, "stores": result.stores / 2}


STORE_EACH = '} {right}") => } {right}"); lines.append(f"result[i] = {name}")'
NO_STORE = 'return [*lines, f"result[i] = {name}"] => return lines'

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
    errors={
        "name '(numbers|result|i)' is not defined": (
            "`numbers` is there when the kernel runs: return your lines as text."
        ),
        "multiply sequence": "`numbers` holds all of them: numbers[i] is the one of this step.",
    },
    correct="All {count} graphs agree: one load and one store for each number.",
    wrong={
        "The number is in a register after one load: use its name from there.": (
            lambda entry, operations: [
                line.replace(entry, "numbers[i]") for line in my_kernel(entry, operations)[1:]
            ]
        ),
        "Registers hold what is between: store the last result alone, after all operations.": [
            STORE_EACH,
            (STORE_EACH, NO_STORE),
            ("{entry} = => result[i] =", "{name} = {left} => result[i] = result[i]", NO_STORE),
        ],
        "That is the first operation alone: go on to the last.": "operations: => operations[:1]:",
        "That copies the input: store the last result.": '{name}"] => {entry}"]',
        "Nothing is stored: the last line writes to result[i].": NO_STORE,
        "The sides are swapped: left comes first.": (
            "{left} {sign} {right} => {right} {sign} {left}"
        ),
        "Each operation has a sign of its own.": "{sign} => *",
        "The left side may be a number, or an earlier result.": [
            "{name} = {left} => {name} = {entry}",
            ("{name} = {left} => {entry} = {entry}", "result[i] = {name} => result[i] = {entry}"),
        ],
        "name is in `entry`": 'lines = [f"{entry} => lines = [f"x',
        "before it is used": 'lines.append(f"{name} = => lines.append(f"y = ',
        "Return a list": 'return [*lines, f"result[i] = {name}"] => return "; ".join(lines)',
        "A line is one assignment": ['append(f" => append(f"float ', 'append(f" => append("'],
        "lines: return": 'f"result[i] = {name}"] => f"return {name}"]',
        "The loop is written": 'lines = [ => lines = ["for i in range(n):", ',
        "holds all of them": "numbers[i] => numbers",
        "return your lines as text": lambda entry, operations: [numbers[i] for i in range(2)],  # noqa: F821
    },
    also_right=[one_expression],
)

# 3. One graph for both ways

LOOKS = "somewhere Python has to look at a value (`if`, `float()`, `.item()`, `bool()`)."
CHOOSE = "torch.where chooses without looking."
REFUSALS = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)


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
            raise NotYet("The rows that were handed in have changed: return a new tensor.")
        return outcome
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    try:
        with only_errors("torch._dynamo"):
            fast = torch.compile(inspect.unwrap(attempt), backend=backend, fullgraph=True)
            outcome = [fast(row) for row in rows]
    except REFUSALS:
        graphs.clear()
    except Exception as error:
        line = f"It is right as it is; inside torch.compile {raised(error).splitlines()[0]}"
        raise NotYet(line, CHOOSE) from None
    finally:
        torch.compiler.reset()
    # under fullgraph=True, a newer torch takes `.item()` into the graph
    looks = any(node.target == "item" for graph in graphs for node in graph.graph.nodes)
    if looks or len(graphs) != 1:
        line = f"It is right, but fullgraph=True finds no one graph for all values: {LOOKS}"
        raise NotYet(line, CHOOSE)
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
    errors={"where.. received an invalid": "The condition has to be a tensor: leave bool() out."},
    hint="torch.where(condition, one, other), where the condition is a tensor with one value.",
    correct="All cases agree, also those that the page does not show, and there is one graph.",
    wrong={
        "A sum of 0 is not above 0.": "> 0 => >= 0",
        "A sum between 0 and 1 is above 0.": ["> 0 => > 1", "sum() => sum().int()"],
        "Each value, row or column has decided for itself: the sum of all decides.": [
            "rows.sum() => rows",
            "sum() => sum(0)",
            "sum() => sum(-1, keepdim=True)",
        ],
        "One value has decided: the sum of all rows decides.": [
            "rows.sum() > 0 => (rows > 0).any()",
            "rows.sum() => rows[0]",
        ],
        "That is the step alone: add it to the rows.": "rows + 1, rows - 1 => 1.0, -1.0",
        "At a sum of 0, sign() is 0: the else-branch is minus 1.": (
            lambda rows: rows + rows.sum().sign()
        ),
        "The branches are swapped: torch.where(condition, if true, if false).": "> 0 => <= 0",
        "One branch has been taken, as a trace would.": ["- 1 => + 1", "+ 1 => - 1"],
        LOOKS: [
            lambda rows: rows + 1 if rows.sum() > 0 else rows - 1,
            lambda rows: rows + (1 if rows.sum().item() > 0 else -1),
            lambda rows: torch.where(torch.tensor(rows.sum().item() > 0), rows + 1, rows - 1),
        ],
        "leave bool() out": "rows.sum() > 0 => bool(rows.sum() > 0)",
        "have changed": lambda rows: rows.add_(2 * (rows.sum() > 0) - 1),
    },
    also_right=[
        lambda rows: rows + 2 * (rows.sum() > 0) - 1,
        lambda rows: rows + (rows.sum() > 0).float() - (rows.sum() <= 0).float(),
    ],
)
