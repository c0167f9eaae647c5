"""Exercises of page `compilation`: a kernel, what it takes for granted, one graph for an if."""

import inspect
import re

import torch
import torch._dynamo

from mpcourse.compilation.toolchain import only_errors
from mpcourse.exercises.exercise import Exercise, NotYet, raised

# 1. Write the kernel


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
    if inspect.isgenerator(lines):
        lines = [*lines]
    if not isinstance(lines, list | tuple) or not all(isinstance(each, str) for each in lines):
        raise NotYet("Return a list of lines, each a text: ['x = numbers[i]', ...].")
    if any(each.lstrip().startswith("for ") for each in lines):
        raise NotYet("The loop is written around your lines: return the step inside it.")
    if any(re.search("[#:]|//|--", each) for each in lines):
        raise NotYet(
            "C++ reads your lines: no comments (# or //), no types (:); between - and -, a space."
        )
    if any(re.search(r"[ (]\d+f\b", each) for each in lines):
        raise NotYet("C++ has no whole number with an f (2f): put constants in as they are.")
    if any("\n" in each.strip() for each in lines):
        raise NotYet("One of your texts has two lines: give each line a text of its own.")
    if kept := {*re.findall(r"\b\w+", " ".join(lines))} & CPP:
        raise NotYet(f"C++ keeps {', '.join(sorted(kept))} for itself: choose another name.")
    numbers, result = Memory([5.0, 7.0]), Memory([None, None])
    for i in range(2):
        try:
            step = re.sub(C_FLOAT, r"\1", "\n".join(lines))
            exec(step, {"numbers": numbers, "result": result, "i": i})
        except SyntaxError as error:
            text = "\n".join(lines).splitlines()[(error.lineno or 1) - 1]
            line = f"one of your lines: {text.strip()}"
            raise NotYet(line, ONE_LINE) from None
        except NameError as error:
            first = "The first line loads, and later lines use that name: it is in `entry`."
            why = first if error.name == entry else ONE_LINE if f"{error.name}(" in step else BEFORE
            raise NotYet(f"your lines: {error}", why) from None
    stored = [list.__getitem__(result, i) for i in range(2)]
    loads = numbers.loads + result.loads
    return {"result": stored, "loads": loads / 2, "stores": result.stores / 2}


C_FLOAT = r"\b(\d+(?:\.\d*|e[-+]?\d+)+)f\b"  # 3.0f, a constant as C++ writes it
ONE_LINE = "A line is one assignment without a type, a sign between its sides: mul = x * 0.9"
BEFORE = "A name gets its number before it is used; in an f-string, braces fill it in."
CPP = {*"auto bool case char delete int long new register short switch this void".split()}
STORE_EACH = '} {right}") => } {right}"); lines.append(f"result[i] = {name}")'
NO_STORE = 'return [*lines, f"result[i] = {name}"] => return lines'

check_kernel = Exercise(
    my_kernel,
    read_again='"Graph and backend: a compiler of your own"',
    cases=[
        ("x_0", [("mul", "x_0", "*", 3.0)]),
        ("x_0", [("sub", "x_0", "-", 3.0)]),
        ("x_0", [("mul", "x_0", "*", 2)]),
        ("x_0", [("sub", "x_0", "-", -2.5)]),
        ("x_0", [("mul", "x_0", "*", 3.0), ("add", "mul", "+", 1.0)]),
        ("l_y_", [("sub", 1.0, "-", "l_y_"), ("mul", "sub", "*", 1.0625)]),
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
        "can only concatenate str": "A side may be a number: an f-string writes texts and numbers.",
        "index out of range": "Each step has one place: numbers[i], result[i].",
        "multiply sequence": "`numbers` holds all of them: numbers[i] is the one of this step.",
    },
    correct="All {count} graphs agree: one load and one store for each number.",
    wrong={
        "The number is in a register after one load: use its name from there.": [
            lambda entry, operations: [
                line.replace(entry, "numbers[i]") for line in my_kernel(entry, operations)[1:]
            ],
            'append(f" => append(f"{entry} = numbers[i]; ',
            ('[f"{entry} = numbers[i]"] => []', 'append(f" => append(f"{entry} = numbers[i]; '),
        ],
        "Place 0 is one number's: each step has the place i.": [
            "numbers[i] => numbers[0]",
            "t[i] => t[0]",
        ],
        "Each step has one place": "numbers[i] => numbers[i + 1]",
        "That is the example's graph: make the lines from `entry` and `operations`.": (
            lambda *_: my_kernel("x", [("mul", "x", "*", 0.9), ("add", "mul", "+", 0.1)])
        ),
        "Registers hold what is between: store the last result alone, after all operations.": [
            STORE_EACH,
            (STORE_EACH, NO_STORE),
            ("{entry} = => result[i] =", "{name} = {left} => result[i] = result[i]", NO_STORE),
        ],
        "C++ has no whole number with an f": (
            '{right}" => {right}" + "f" * isinstance(right, int | float)'
        ),
        "That is the first operation alone: go on to the last.": "operations: => operations[:1]:",
        "That copies the input: store the last result.": '{name}"] => {entry}"]',
        "Nothing is stored: the last line writes to result[i].": NO_STORE,
        "The sides are swapped: left comes first.": (
            "{left} {sign} {right} => {right} {sign} {left}"
        ),
        "Each operation has a sign of its own.": "{sign} => *",
        "A constant needs all its digits: put it into the line as it is, without a format.": [
            lambda entry, operations, cut=cut: my_kernel(
                entry, [[cut(x) if type(x) is float else x for x in each] for each in operations]
            )
            for cut in ("{:.1f}".format, round)
        ],
        "The left side may be a number, or an earlier result.": [
            "{name} = {left} => {name} = {entry}",
            ("{name} = {left} => {entry} = {entry}", "result[i] = {name} => result[i] = {entry}"),
            "{name} = {left} => {name} = {lines[-1].split()[0]}",
        ],
        "it is in `entry`": [
            'lines = [f"{entry} => lines = [f"x',
            ('[f"{entry} => [f"a', "{name} = {left} => a = a", '= {name}" => = a"'),
        ],
        BEFORE: [
            'lines.append(f"{name} = => lines.append(f"y = ',
            "{name} = {left} {sign} {right} => name = left {sign} right",
        ],
        "Return a list": 'return [*lines, f"result[i] = {name}"] => return "; ".join(lines)',
        "A line is one assignment": [
            'append(f" => append(f"float ',
            'append(f" => append("',
            "{left} {sign} {right} => {left} {right}",
            "{left} {sign} {right} => times({left}, {right})",
        ],
        "lines: return": 'f"result[i] = {name}"] => f"return {name}"]',
        "C++ reads your lines": [
            "{left} {sign} {right} => {left}{sign}{right}",
            '{right}") => {right}  # step")',
            '{right}") => {right}  // step")',
            'append(f"{name} => append(f"{name}: float',
        ],
        "for itself": lambda entry, operations: [
            line.replace(entry, "new") for line in my_kernel(entry, operations)
        ],
        "a text of its own": '[*lines, => ["\\n".join(lines),',
        "The loop is written": 'lines = [ => lines = ["for i in range(n):", ',
        "holds all of them": "numbers[i] => numbers",
        "writes texts and numbers": '(f"{name} = {left} {sign} => (name + " = " + left + f"{sign}',
        "return your lines as text": lambda entry, operations: [numbers[i] for i in range(2)],  # noqa: F821
    },
    also_right=[
        one_expression,
        lambda entry, operations: (line for line in my_kernel(entry, operations)),
        lambda entry, operations: [
            re.sub(r"\d+\.\d+", r"\g<0>f", line) for line in my_kernel(entry, operations)
        ],
    ],
)

# 2. What the kernel takes for granted


def my_holds(x):
    """The kernel sees an address and a length: the rest has to be as its program takes it to be.

    A dtype says how to read the bytes, one dimension what `len` counts, contiguous that the next
    number lies right behind; and where a backward may follow, the kernel has none.
    """
    floats = x.dtype == torch.float32 and x.device.type == "cpu"
    in_a_row = x.dim() == 1 and x.is_contiguous()
    return floats and in_a_row and not x.requires_grad


def of_the_tensor(attempt, text):
    """What is said of a tensor that is written as torch's code."""
    answer = attempt(eval(text, {"torch": torch}))
    one = isinstance(answer, torch.Tensor) and answer.dtype == torch.bool and not answer.dim()
    if (isinstance(answer, str | tuple | list | torch.Tensor) and not one) or callable(answer):
        raise NotYet("Return True or False: `and` joins conditions, brackets call a method.")
    return None if answer is None else bool(answer)


check_holds = Exercise(
    my_holds,
    read_again='"What the kernel takes for granted"',
    cases=[
        ("torch.ones(8)",),
        ("torch.ones(1)",),
        ("torch.ones(0)",),
        ("torch.ones(4096)",),
        ("torch.ones(8).double()",),
        ("torch.ones(8).to(torch.int32)",),
        ("torch.ones(8).half()",),
        ("torch.ones(4, 4)",),
        ("torch.tensor(4.0)",),
        ("torch.ones(6)[::3]",),
        ("torch.ones(4, 4)[:, 0]",),
        ("torch.ones(1).expand(4)",),
        ("torch.ones(6)[2:]",),
        ("torch.ones(4, 4)[1]",),
        ("torch.ones(4, requires_grad=True)",),
        ("torch.ones(4, requires_grad=True) * 2",),
        ("torch.ones(4, requires_grad=True).detach()",),
        ("torch.ones(4, device='meta')",),
        ("torch.ones(6)[::3].contiguous()",),
        ("torch.ones(6)[::6]",),
        ("-torch.ones(4)",),
        ("torch.tensor([1.0, float('inf'), float('nan')])",),
    ],
    given="x = {}",
    play=of_the_tensor,
    hint="Ask for dtype, device, dimensions, is_contiguous() and requires_grad.",
    errors={"0-d tensor|index out of range": "A tensor may have no dimension: ask dim() first."},
    wrong={
        "The kernel reads 4 bytes as one float: other types have other bytes.": [
            "x.dtype == torch.float32 => True",
            "x.dtype == torch.float32 => x.is_floating_point()",
        ],
        "4 bytes may hold an integer: ask for the dtype.": (
            "x.dtype == torch.float32 => x.element_size() == 4"
        ),
        'For eight ones, that is False: compare x.dtype == torch.float32, x.device.type == "cpu", '
        "and x.dim() with its brackets.": [
            'torch.float32 => "float32"',
            "x.device.type => x.device",
            "x.dim() => x.dim",
            lambda x: False,
        ],
        "One number in a row, or none, is a row as well: the loop runs once, or never.": [
            "x.dim() == 1 => x.dim() == 1 and len(x) > 1",
            "x.dim() == 1 => x.dim() == 1 and x.numel() > 0",
        ],
        "The loop runs len(x) times, whatever len(x) is: any length will do.": [
            f"x.dim() == 1 => x.dim() == 1 and len(x) {n}"
            for n in ("% 4 == 0", "% 8 == 0", "% 16 == 0", "< 999")
        ],
        "len() counts rows: of 4 x 4 numbers, the kernel would work on 4.": "x.dim() == 1 => True",
        "One number without a dimension has no len().": "x.dim() == 1 => x.dim() < 2",
        "These numbers do not lie one behind the other: call is_contiguous().": [
            "x.is_contiguous() => True",
            "x.is_contiguous() => x.storage_offset() == 0",
        ],
        "One number has no neighbour, so its stride does not matter: call is_contiguous().": (
            "in_a_row = x.dim() == 1 and x.is_contiguous() => in_a_row = x.stride() == (1,)"
        ),
        "A slice may begin later: so does its address.": (
            "x.is_contiguous() => x.is_contiguous() and x.storage_offset() == 0"
        ),
        "The kernel has no backward: a gradient would be lost.": "not x.requires_grad => True",
        "A parameter is a leaf without grad_fn, and needs a gradient: ask requires_grad.": [
            "not x.requires_grad => x.is_leaf",
            "not x.requires_grad => x.grad_fn is None",
        ],
        "A result that is no leaf may need a gradient as well: ask requires_grad alone.": (
            "not x.requires_grad => not (x.requires_grad and x.is_leaf)"
        ),
        "Its numbers are not in the CPU's memory.": 'x.device.type == "cpu" => True',
        "True is for the tensors on which the kernel is right.": "return => return not",
        "ask dim() first": ["x.dim() => len(x.shape) == 1 or len(x)", "x.dim() => x.stride()[0]"],
        "The kernel takes any numbers, negative ones, inf and nan, too: ask what x is, not what it "
        "holds.": [
            f"return floats and => return floats and bool({what}.all()) and"
            for what in ("(x >= 0)", "x.isfinite()")
        ],
        "or False": [
            *(lambda x: x, lambda x: x >= 0, lambda x: my_holds(x) and x.dim),
            *(lambda x: (1,) * my_holds(x), lambda x: [1] * my_holds(x)),
        ],
    },
    also_right=[
        "x.dim() == 1 => x.dim() > 0 and x.numel() == len(x)",  # n x 1 is a row, too
        lambda x: torch.tensor(my_holds(x)),
    ],
)

# 3. One graph for both ways

LOOKS = "somewhere Python has to look at a value (`if`, `print`, `.item()`, `bool()`, an index)."
OTHER_TYPE = "The result has another dtype: give back numbers of the rows' own type."
NO_GRADIENT = "The result has lost its gradient: leave detach(), .data and no_grad() out."
CHOOSE = "torch.where chooses without looking."
REFUSALS = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)


def my_fork(rows):
    """Both branches are computed, and a tensor chooses between them.

    Python never looks at a value, so one graph holds for all values, whatever the compiler.
    """
    return torch.where(rows.sum() > 0, rows + 1, rows - 1)


def eager_or_compiled(attempt, numbers, how):
    """What comes out; compiled, two batches go through, and there may be one graph only."""
    rows = torch.tensor(numbers, dtype=torch.float64 if how == "in float64" else None)
    if how != "compiled":
        rows.requires_grad_(how == "with a gradient")
        before = rows.detach().clone()
        outcome = attempt(rows)
        if not torch.equal(rows, before):
            raise NotYet("The rows that were handed in have changed: return a new tensor.")
        if getattr(outcome, "is_floating_point", bool)() and outcome.dtype != rows.dtype:
            raise NotYet(OTHER_TYPE)
        if isinstance(outcome, torch.Tensor) and outcome.isnan().any():
            raise NotYet(f"Your result holds nan, as from inf * 0 or 0 / 0. {CHOOSE}")
        if not rows.requires_grad or outcome is None:
            return outcome
        if not getattr(outcome, "requires_grad", False):
            raise NotYet(NO_GRADIENT)
        outcome.sum().backward()
        return {"result": outcome.detach(), "gradient": rows.grad}
    attempt, graphs = inspect.unwrap(attempt), []
    if "is_compiling" in getattr(getattr(attempt, "__code__", None), "co_names", ()):
        raise NotYet("Eager Python still looks: write one form for both, without is_compiling().")

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    try:
        with only_errors("torch._dynamo"):
            fast = torch.compile(attempt, backend=backend, fullgraph=True)
            outcome = [fast(row) for row in rows]
    except Exception as error:
        graphs.clear()
        # the second: an index that is a tensor of one number
        refused = isinstance(error, REFUSALS) or "UnbackedSymbol" in f"{error}"
        line = f"It is right as it is; inside torch.compile {raised(error).splitlines()[0]}"
        if not refused:
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
        ([1.0, 2.0], ""),
        ([-1.0, -2.0], ""),
        ([3.0, -1.0], ""),
        ([-3.0, 1.0], ""),
        ([0.0, 0.0], ""),
        ([2.0, -2.0], ""),
        ([0.5, -0.25], ""),
        ([1e-30, 0.0], ""),
        ([float("inf"), -float("inf"), 1.0], ""),
        ([[1.0, 2.0], [-4.0, 0.5]], ""),
        ([[-1.0, -2.0], [4.0, 0.5]], ""),
        ([1.0, 2.0], "in float64"),
        ([1.0, 2.0], "with a gradient"),
        ([-1.0, -2.0], "with a gradient"),
        ([[1.0, 1.0], [-1.0, -1.0]], "compiled"),
    ],
    given=lambda numbers, how: f"{numbers} {how}".strip().replace(
        " compiled", ", one after the other, compiled"
    ),
    play=eager_or_compiled,
    errors={
        r"where.. received .* got \(bool": "The condition has to be a tensor: leave bool() out.",
        "where.. received an invalid": (
            "torch.where takes three tensors: the condition, if true, if false."
        ),
    },
    hint="torch.where(condition, one, other), where the condition is a tensor with one value.",
    correct="All cases agree, also those that the page does not show, and there is one graph.",
    wrong={
        "A sum of 0 is not above 0.": "> 0 => >= 0",
        "A sum between 0 and 1 is above 0.": [
            "> 0 => > 1",
            "> 0 => > 0.1",
            "> 0 => > 1e-3",
            "sum() => sum().int()",
        ],
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
        "At a sum of 0, your step is 0 (so is sign()): the else-branch is minus 1.": (
            lambda rows: rows + rows.sum().sign()
        ),
        "At a sum of 0, neither of your conditions holds: one has to include 0, the else-branch.": (
            lambda rows: (rows + 1) * (rows.sum() > 0) + (rows - 1) * (rows.sum() < 0)
        ),
        "clamp() leaves a sum between -1 and 1 as it is: the step is always a whole 1.": (
            lambda rows: rows + rows.sum().clamp(-1, 1)
        ),
        "Any sum but 0 has passed: ask whether it is above 0.": "> 0 => != 0",
        "holds nan": [
            lambda rows: rows + rows.sum() / rows.sum().abs(),
            lambda rows: (rows + 1) * (rows.sum() > 0) + (rows - 1) * (rows.sum() <= 0),
        ],
        "The sum of inf and -inf is nan, which is not above 0: ask for > 0.": (
            "> 0, rows + 1, rows - 1 => <= 0, rows - 1, rows + 1"
        ),
        "The branches are swapped: torch.where(condition, if true, if false).": "> 0 => <= 0",
        "abs() or a square takes the signs away: sum up the rows as they are.": [
            "rows.sum() => rows.abs().sum()",
            "rows.sum() => rows.square().sum()",
        ],
        "One branch has been taken, as a trace would.": ["- 1 => + 1", "+ 1 => - 1"],
        "without return": lambda rows: None,
        "without is_compiling": lambda rows: (
            my_fork(rows) if torch.compiler.is_compiling() or rows.sum() > 0 else rows - 1
        ),
        LOOKS: [
            lambda rows: rows + 1 if rows.sum() > 0 else rows - 1,
            lambda rows: rows + (1 if rows.sum().item() > 0 else -1),
            lambda rows: torch.where(torch.tensor(rows.sum().item() > 0), rows + 1, rows - 1),
            lambda rows: torch.stack([rows - 1, rows + 1])[(rows.sum() > 0).long()],
        ],
        "torch.where takes three": [
            ", rows - 1 => ",
            "rows + 1, rows - 1 => lambda: rows + 1, lambda: rows - 1",
        ],
        "add_() and sub_() have both changed the rows: write rows + 1 and rows - 1.": (
            "rows + 1, rows - 1 => rows.add_(1), rows.sub_(1)"
        ),
        "leave bool() out": "rows.sum() > 0 => bool(rows.sum() > 0)",
        OTHER_TYPE: [
            "rows + 1, rows - 1 => (rows + 1).double(), (rows - 1).double()",
            "rows - 1) => rows - 1).float()",
        ],
        NO_GRADIENT: [
            "rows + 1, rows - 1 => rows.data + 1, rows.data - 1",
            "rows - 1) => rows - 1).detach()",
            torch.no_grad()(my_fork),
        ],
        "The gradient passes through both branches: one of yours is cut off from the rows.": [
            "rows - 1 => rows.detach() - 1",
            "rows + 1 => rows.detach() + 1",
        ],
        "have changed": lambda rows: rows.add_(2 * (rows.sum() > 0) - 1),
    },
    also_right=[
        lambda rows: rows + 2 * (rows.sum() > 0) - 1,
        lambda rows: rows + (rows.sum() > 0).float() - (~(rows.sum() > 0)).float(),
    ],
)
