"""Exercises of page `quantization`: scales, an int8 layer, SmoothQuant, a shift."""

import math
from functools import partial

import numpy as np
import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mpcourse.exercises.exercise import (
    NO_RETURN,
    Exercise,
    NotYet,
    leaving_alone,
    numbers,
    same,
    short,
)
from mpcourse.quantization import choose_qparams, int8_matmul, quantize, quantize_tensor, range_of

# 1. Scale and zero point


def my_qparams(low, high):
    """Widen the range first, so that an integer can mean 0.0.

    256 integers have 255 steps between them. `low` has to become -128, so the integer of 0.0 lies
    `-low / scale` above it, and is rounded.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255 or 1.0
    return scale, round(-128 - low / scale)


def same_kinds(result, expected):
    """As `same`; a zero point that is an integer is no float that has its value."""
    if not hasattr(expected, "__len__"):  # a wrong answer: one of the two
        return same(result, expected)
    whole, wanted = (isinstance(numbers(pair[1]), int) for pair in (result, expected))
    return whole == wanted and same(result, expected)


# what people put in the place of 0: it must not change a scale that is none
TINY = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 2**-23)  # the last: float32's eps
NO_SCALE = "A range of nothing but 0 has no length: take 1 for its scale before you divide by it."

check_qparams = Exercise(
    my_qparams,
    read_again='"Which integer means zero?"',
    cases=[
        *[(-3.0, 1.1), (-0.7, 2.0), (-1.3, 4.0), (0.0, 2.55)],
        *[(2.0, 5.1), (-5.1, -2.0), (0.0, 0.0), (2.0, 2.0)],
    ],
    given="a range from {} to {}",
    same=same_kinds,
    hint="Widen the range to hold 0.0. The scale is the length of one of the steps between 256 "
    "integers. Solve low = scale * (-128 - zero_point) for zero_point, and round it.",
    wrong={
        NO_RETURN: lambda *ends: None,
        "Return (scale, zero_point), in this order.": lambda *ends: my_qparams(*ends)[::-1],
        "low is a value. zero_point is an integer: the one that means 0.0.": [
            *[f"round(-128 - low / scale) => {each}" for each in ("low", "high", "0.0")],
        ],
        "256 integers have 255 steps between them.": [
            *["255 => 256", "255 => 127", "255 => 128", "255 => 254"],
        ],
        "Return both: (scale, zero_point).": [lambda *ends: my_qparams(*ends)[0], "scale, r => r"],
        "-128 belongs to the integers, too: 255 steps.": [
            ("255 => 254", "-128 - => -127 -"),
            "round(-128 - low / scale) => max(-127, round(-128 - low / scale))",
        ],
        "That cuts off, or always goes up: round to the nearest integer.": [
            *["round( => int(", "round(-128 - low / scale) => -128 - low // scale"],
            *["(-128 - low / => (-128 - low //", "(-128 - low / => (-128 + -low //"],
        ],
        "-128 means low, not -127: start from -128.": [
            "-128 - => -127 -",
            lambda low, high: (
                my_qparams(low, high)[0],
                my_qparams(low, high)[1] + (low < high or low != 0),
            ),
        ],
        "The scale is a float: do not round it.": [
            *[f"return scale => return round(scale, {digits})" for digits in (2, 3, 4)],
        ],
        "zero_point may be below 0: keep its sign.": (
            "round(-128 - low / scale) => abs(round(-128 - low / scale))"
        ),
        "That is for integers from 0 to 255.": "-128 - low => -low",
        "Sign: low has to become -128, so low / scale + zero_point = -128.": [
            *["-128 - => -128 +", "-128 - low => 128 + low", "-128 - low => 127 + low"],
        ],
        "127 means high. Start from -128, the integer that means low.": "-128 - => 127 -",
        "That is the integer of low. 0.0 lies -low / scale steps above it.": (
            "round(-128 - low / scale) => -128"
        ),
        "low is a value, -128 an integer: divide low, and it alone, by scale.": [
            *["-128 - low / scale => -128 - low", "-128 - low / scale => (-128 - low) / scale"],
        ],
        "Half of the integers from -128 to 127 are below -0.5, not below 0: start from low.": (
            "round(-128 - low / scale) => round(-(low + high) / 2 / scale)"
        ),
        "With zero point 0, -128 does not mean low.": "round(-128 - low / scale) => 0",
        "scale is the length of a step, not one over it.": "return scale => return 1 / scale",
        "That is where 0.0 lies. An integer has to mean it: round.": "round( => (",
        "It is rounded, but a float still: zero_point is to be an int, so int(...).": (
            "round( => 1.0 * round("
        ),
        "0.0 is outside that range, so no integer means 0.0: widen the range to hold it.": [
            *["min(low, 0.0) => low", "max(high, 0.0) => high"],
            "low, high = min(low, 0.0), max(high, 0.0) => ",
            lambda low, high: ((high - low) / 255 or 1.0, my_qparams(low, high)[1]),  # clamped
        ],
        "Symmetric: one side is wasted. This range has two ends: use both.": [
            lambda low, high: (max(-low, high) / 127, 0),
            lambda low, high: (max(-low, high) / 127.5, 0),
        ],
        NO_SCALE: " or 1.0 => ",
        "For a range of nothing but 0, take scale 1, not 0 or a tiny one.": [
            f"or 1.0 => or {least}" for least in TINY
        ],
        "For a range of nothing but 0, low is 0.0, and low becomes -128.": (
            lambda low, high: my_qparams(low, high) if low < high else (1.0, 0)
        ),
        "Widened, that range is as long as any other: only 0 and 0 has no length.": (
            lambda low, high: my_qparams(low, high) if low < high else (1.0, -128)
        ),
    },
    errors={"ZeroDivisionError": NO_SCALE},
    also_right=[
        lambda low, high: choose_qparams(torch.tensor(low), torch.tensor(high)),
        lambda low, high: list(my_qparams(low, high)),
    ],
)

# 2. A scale for each row


def my_rows(weight):
    """Each row is divided by its own largest weight, so an outlier lengthens one row's step only.

    A row of zeros would be 0 / 0; with scale 1 its integers are 0, which is right for any scale.
    """
    scales = weight.abs().amax(1) / 127
    scales = torch.where(scales > 0, scales, 1.0)
    return (weight / scales[:, None]).round().to(torch.int8), scales


def same_with_types(result, expected):
    """Equal, integers where integers are expected; scales may have been found in longer floats."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        return same(result, expected)
    result = [torch.as_tensor(each) if hasattr(each, "__array__") else each for each in result]
    types, wanted = (
        [str(getattr(each, "dtype", None)).replace("float64", "float32") for each in pair]
        for pair in (result, expected)
    )
    return types == wanted and same(tuple(result), tuple(expected))


def rows_in_a_loop(weight):
    """In float64, number by number."""
    scales = [max(map(abs, row)) / 127 or 1.0 for row in weight.double().tolist()]
    rows = zip(weight.double().tolist(), scales, strict=True)
    integers = [[round(each / scale) for each in row] for row, scale in rows]
    return torch.tensor(integers, dtype=torch.int8), torch.tensor(scales, dtype=torch.float64)


def quantize_rows_affine(weight):
    """Over the range of each row, with a zero point that nobody returns."""
    scales, zero_points = choose_qparams(*range_of(weight, axis=0))
    return quantize(weight, scales, zero_points, axis=0), scales


ONE_FOR_0 = "torch.where(scales > 0, scales, 1.0)"
SPAN = "weight.abs().amax(1) / 127 => (weight.amax(1) - weight.amin(1))"
LIFTED = "(weight - weight.amin(1, True))"
BOUNDED = ".round() => .round().clamp(-128, 127)"
PAIR = "max(1) gives values and places: take max(1).values, or amax(1)."
CHANGED = "That changes the weight that was handed in: write weight / scales, not weight /= scales."

check_rows = Exercise(
    my_rows,
    read_again='"One large weight: whom does it hurt?"',
    cases=[  # nothing lies halfway between two integers, where rounding errors decide
        (torch.tensor([[1.0, -0.4], [0.03, 0.04]]),),
        (torch.tensor([[-3.0, 1.0, 0.7], [0.1, 0.2, -0.9]]),),
        (torch.tensor([[50, 0.3, -0.2], [0.4, -0.33, 0.01], [1, 0.77, 0.45], [-0.6, 0.1, 0.25]]),),
        (torch.tensor([[0.0, 0.0], [0.5, -0.2]]),),
        (torch.tensor([[0.3, -0.4]]),),
    ],
    given=lambda weight: f"a weight {short(weight.tolist())}: (integers, scales)",
    play=leaving_alone(CHANGED),
    same=same_with_types,
    hint="In each row the largest weight, without its sign, becomes 127. Return int8 of the "
    "weight's shape, and one float for each row. A row of zeros has scale 1.",
    wrong={
        NO_RETURN: lambda weight: None,
        "Return the scales as a tensor, not as a list.": (
            lambda weight: (my_rows(weight)[0], my_rows(weight)[1].tolist())
        ),
        "Return (integers, scales), in this order.": lambda weight: my_rows(weight)[::-1],
        "That is one scale for the whole weight: take the largest of each row.": [
            ("amax(1) => max()", "[:, None] => "),
            "amax(1) => max().expand(len(weight))",
        ],
        "Those are columns. Take rows: amax(1).": ("amax(1) => amax(0)", "[:, None] => "),
        "That divides columns. For rows, scales need the shape (out, 1).": "[:, None] => ",
        "The largest weight becomes 127, where int8 ends: divide by 127, not 128.": [
            *["127 => 128", ("127 => 128", ".round() => .round().clamp(max=127)")],
        ],
        "A scale is the length of a step: the largest of the row / 127.": [
            *["int8), => int8), 127 *", "int8), => int8), 1 /"],
        ],
        "The largest weight of a row becomes 127, not its mean.": [
            *["amax(1) => mean(1)", ("amax(1) => mean(1)", BOUNDED)],
            ("amax(1) => mean(1)", ".round() => .round().clamp(-127, 127)"),
        ],
        CHANGED: "weight / scales[:, None] => weight.div_(scales[:, None])",
        "That cuts off: round to the nearest integer.": [".round() => ", "round() => floor()"],
        "That rounds up: round to the nearest integer.": "round() => ceil()",
        "The integers are to be int8.": [
            *[".to(torch.int8) => ", "torch.int8 => torch.uint8", "torch.int8 => torch.int16"],
            *["torch.int8 => torch.int32", "torch.int8 => torch.int64"],
        ],
        "Integers around 0: the largest without its sign becomes 127, whatever the range.": [
            *["127 => 255", f"{SPAN} / 255", f"{SPAN} / 254", quantize_rows_affine],
            *[(f"{SPAN} / {steps}", BOUNDED) for steps in (254, 255)],
            (f"{SPAN} / 255", f"(weight / => ({LIFTED} /", "]).r => ] - 128).r"),
            (f"{SPAN} / 255", f"(weight / => ({LIFTED} /", "int8 => uint8"),
        ],
        "Return two tensors, not a pair for each row.": (
            lambda weight: [*zip(*my_rows(weight), strict=True)]
        ),
        "Add nothing to the scales: only a row of zeros needs another one.": [
            *["/ 127 => / 127 + 1e-8", "/ 127 => / 127 + 1e-6", "/ 127 => / 127 + 1e-5"],
            *["/ 127 => / 127 + 1e-7", "amax(1) => amax(1).add(1e-6)", "/ 127 => / 127 + 1e-4"],
        ],
        "Only a scale of 0 becomes 1. That changes smaller scales than 1, too.": (
            f"{ONE_FOR_0} => scales.clamp(min=1)"
        ),
        "Change rows of zeros only. That changes every row whose largest is below a limit.": [
            f"amax(1) / 127 => amax(1).clamp(min={least}) / 127" for least in (1, 0.1)
        ]
        + [f"{ONE_FOR_0} => scales.clamp(min={least})" for least in (1e-3, 1e-2)],
        "Return the scales in the shape (out,).": "int8), scales => int8), scales[:, None]",
        "Only the row of zeros is wrong: nothing can be divided by 0, so its scale is to be 1.": [
            f"{ONE_FOR_0} => scales",
            *[f"{ONE_FOR_0} => scales.clamp(min={least})" for least in TINY[1:]],
            *[f"amax(1) / 127 => amax(1).clamp(min={least}) / 127" for least in TINY],
            "scales, 1.0 => scales, 1 / 127",
        ],
        "The largest without its sign: weight.abs() first.": ".abs() => ",
        "One row: scales of shape (1,), not ().": "int8), scales => int8), scales.squeeze()",
        "Return the scales, too: (integers, scales).": lambda weight: my_rows(weight)[0],
        "weight ≈ scale × integer: divide by the scales.": "weight / => weight *",
        "Return the integers, not what they mean.": "int8), => int8) * scales[:, None],",
        PAIR: "amax(1) => max(1)",
    },
    errors={"return_types": PAIR},
    also_right=[
        rows_in_a_loop,
        lambda w: [each.numpy() for each in my_rows(w)],
        lambda w: [quantize_tensor(w, axis=0).integers, quantize_tensor(w, axis=0).scale],
    ],
)

# 3. An int8 layer


def my_int8_linear(q_x, s_x, z_x, q_w, s_w, bias):
    """The large product is one of integers; what the zero point adds to it is known beforehand.

    Every input is z_x too large, so every output is z_x times the sum of its weights too large.
    Sums go to 32 bits before they are made: afterwards they have wrapped round already.
    """
    sums = q_x.int() @ q_w.int().t() - z_x * q_w.sum(1, dtype=torch.int32)
    return sums * (s_x * s_w) + bias


def linear_by_meaning(q_x, s_x, z_x, q_w, s_w, bias):
    return (s_x * (q_x.double() - z_x)) @ (s_w[:, None] * q_w.double()).t() + bias


def linear_by_the_kernel(q_x, s_x, z_x, q_w, s_w, bias):
    sums = int8_matmul(q_x, q_w.t().contiguous())
    return (s_x * s_w * (sums - z_x * q_w.long().sum(1)) + bias).numpy()


def linear_by_a_diagonal(q_x, s_x, z_x, q_w, s_w, bias):
    sums = q_x.int() @ q_w.int().t() - z_x * q_w.sum(1)
    return sums.float() @ torch.diag(s_x * s_w) + bias


SUMS = "q_w.sum(1, dtype=torch.int32)"
CORRECTION = f" - z_x * {SUMS}"
NO_CORRECTION = f"{CORRECTION} => "
OUTPUTS = "sums * (s_x * s_w) + bias"
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot", "linear", "_int_mm"}
NO_INTEGERS = (
    "The numbers are right, but floats were multiplied: keep the integers, multiply them with sums "
    "of 32 bits, and let the scales come afterwards."
)

IN_PLACE = "That changes a tensor that was handed in: write s_w * s_x, not s_w *= s_x."


def layers():
    """Inputs and weights of growing layers: sums that fit into 8 bits first."""
    generator = torch.Generator().manual_seed(0)

    def integers(*shape):
        return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)

    x = torch.tensor([[3, -1], [0, 5]], dtype=torch.int8)
    w = torch.tensor([[2, 1], [-1, 5]], dtype=torch.int8)
    two, six = torch.tensor([0.5, 2.0]), torch.linspace(0.1, 0.9, 6)
    return [
        (x, 0.1, 0, w, two, torch.zeros(2)),
        (x, 0.1, 3, w, two, torch.tensor([1.0, -1.0])),
        (integers(3, 5), 0.02, -128, integers(2, 5), two, torch.tensor([0.5, -3.0])),
        (integers(4, 4), 0.5, 17, integers(4, 4), torch.tensor([0.1, 1, 2, 4.0]), torch.ones(4)),
        (integers(1, 300), 0.01, -128, integers(6, 300), six, six.flip(0)),
    ]


def layer_in_words(q_x, s_x, z_x, q_w, s_w, bias):
    if q_x.numel() > 4:
        return f"q_x {tuple(q_x.shape)}, s_x {s_x}, z_x {z_x}, q_w {tuple(q_w.shape)}"
    of_weights = f"q_w {q_w.tolist()}, s_w {s_w.tolist()}, bias {bias.tolist()}"
    return f"q_x {q_x.tolist()}, s_x {s_x}, z_x {z_x}, {of_weights}"


NO_INTEGER_SUM = (
    "The numbers are right, but the weights were added up as floats, which are exact only up to a "
    "size: q_w.sum(1, dtype=torch.int32)."
)


class FloatProducts(TorchDispatchMode):
    """Notes matrix products of floats, and how many others; `whole`: sizes of those of integers."""

    def __init__(self):
        super().__init__()
        self.seen, self.made, self.whole, self.added = False, 0, set(), False

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        found = op(*args, **(kwargs or {}))
        name = op.overloadpacket.__name__
        product = name in PRODUCTS or (name == "mul" and found.dim() > 2)
        if (product or name == "mul") and found.is_floating_point():
            self.seen |= product
            self.made += found.numel()
        elif product:
            self.whole.add(found.numel())
        self.added |= name == "sum" and found.is_floating_point()
        return found


def in_integers(attempt, *layer):
    """The outcome; where the numbers are right, but made by a product of floats, that is said."""
    with FloatProducts() as products:
        outcome = attempt(*layer)
    q_x, s_x, z_x, q_w, s_w, bias = layer
    in_floats = (q_x.double() - z_x) * s_x @ (q_w * s_w[:, None].double()).T + bias
    row_by_row = len(q_x) > 3 and products.made >= len(q_x) * q_w.numel()  # scales need fewer
    in_whole = len(q_x) * len(q_w) in products.whole  # then the product of floats is another one
    if ((products.seen and not in_whole) or row_by_row) and same_sums(outcome, in_floats):
        raise NotYet(NO_INTEGERS)
    if products.added and same_sums(outcome, in_floats):
        raise NotYet(NO_INTEGER_SUM)
    return outcome


def close(result, expected, within, of_largest=0.0):
    """Up to rounding of float32, as a share of each number, or of the largest; numpy's will do."""
    if not isinstance(expected, Tensor):  # a wrong answer: no tensor at all
        return same(result, expected)
    result = torch.as_tensor(result) if hasattr(result, "__array__") else result
    if not isinstance(result, Tensor) or result.shape != expected.shape:
        return False
    size = of_largest and of_largest * float(expected.abs().max())  # 0 times inf is no number
    return torch.allclose(result.cpu().double(), expected.double(), rtol=within, atol=size)


same_sums = partial(close, within=1e-5, of_largest=1e-5)

check_int8_linear = Exercise(
    my_int8_linear,
    read_again='"May two int8 matrices be multiplied?"',
    cases=layers(),
    given=layer_in_words,
    play=leaving_alone(IN_PLACE, in_integers),
    same=same_sums,
    hint="Two sums of integers, both in 32 bits: inputs times weights, and what z_x adds to it. "
    "The scales come after their difference, the bias last.",
    wrong={
        NO_RETURN: lambda *layer: None,
        "Sixteen bits are too few for the outputs: leave them in float32.": [
            f"return {OUTPUTS} => return ({OUTPUTS}).bfloat16()",
            f"return {OUTPUTS} => return ({OUTPUTS}).half()",
        ],
        NO_INTEGERS: [linear_by_meaning, ".int() => .float()"],
        NO_INTEGER_SUM: [f"{SUMS} => q_w.float().sum(1)", "int32 => float32"],
        "The sums of the weights have wrapped round: they need 32 bits.": "int32 => int8",
        "z_x * q_w wraps round: add up q_w in 32 bits first.": (
            f"z_x * {SUMS} => (z_x * q_w).sum(1)"
        ),
        IN_PLACE: "(s_x * s_w) => s_w.mul_(s_x)",
        "The zero point is missing: subtract z_x times the sum of each row of q_w.": NO_CORRECTION,
        "The product has wrapped round: sums need 32 bits.": [
            *[".int() => ", (NO_CORRECTION, ".int() => "), ".int() => .short()"],
            (".int() => .short()", "int32 => int16"),
        ],
        "q_x - z_x does not fit int8: .int() first, and no clamp.": [
            (NO_CORRECTION, f"q_x.int() => {each}")
            for each in ("(q_x - z_x).int()", "(q_x.int() - z_x).clamp(-128, 127)")
        ],
        "q_w is (out, in): the product takes q_w.t().": ".t() => ",
        "The sign of the correction: subtract z_x times the sum of the weights.": "- z_x => + z_x",
        "z_x counts in each of the `in` products, times its weight: z_x times their sum.": [
            *[f" * {SUMS} => ", f"{SUMS} => q_w.shape[1]"],
        ],
        "Every output has its own sum, of a row of q_w.": [
            *["sum(1, => sum(0,", "sum(1, => sum(", "q_w.sum(1, => q_x.sum(1, True,"],
            *["q_w.sum(1, => q_w.sum(1, True,", "q_w.sum(1, => q_x.sum(1,"],
        ],
        "Both sums are multiplied by both scales: put brackets round them.": [
            (f"{CORRECTION} => ", f" + bias =>  - z_x * {SUMS} + bias"),
            (NO_CORRECTION, f"sums * ( => sums - z_x * {SUMS} * ("),
            (NO_CORRECTION, f" + bias =>  - s_x * z_x * {SUMS} + bias"),
            (NO_CORRECTION, f" + bias =>  - s_w * z_x * {SUMS} + bias"),
        ],
        "A scale is the length of a step: multiply by s_x and s_w.": "sums * ( => sums / (",
        "The outputs are floats: do not round them.": [
            f"return {OUTPUTS} => return ({OUTPUTS}).to(torch.int8)",
            f"return {OUTPUTS} => return ({OUTPUTS}).round()",
        ],
        "The bias is missing.": " + bias => ",
        "The bias is a float: add it after the scales.": [
            f"{OUTPUTS} => (sums + bias) * (s_x * s_w)",
            f"{OUTPUTS} => (sums + (bias / (s_x * s_w)).round()) * (s_x * s_w)",
        ],
        "Each row of q_w has its own scale: s_w.": [
            *["* s_w => * s_w[:, None]", "* s_w => * s_w[0]", "* s_w => * s_w.mean()"],
            "* s_w => * s_w.max()",
        ],
        "The bias comes last: it is not multiplied by the sums.": "s_w) + bias => s_w + bias)",
        "Multiply by both scales: their product, not their sum.": "s_x * s_w => s_x + s_w",
        "The outputs have the shape (rows, out).": lambda *layer: my_int8_linear(*layer).t(),
        "The scales of the weights, s_w, are missing.": [
            *["(s_x * s_w) => s_x", ("(s_x * s_w) => s_x", "int32 => float32")],
        ],
        "The scale of the inputs, s_x, is missing.": "(s_x * s_w) => s_w",
    },
    also_right=[linear_by_the_kernel, linear_by_a_diagonal],
)

# 4. SmoothQuant's factors


def my_factors(largest, weight, power):
    """A column of the weight reads one unit: its largest is taken over the rows, by `amax(0)`.

    A loud unit has a large X, so a large factor. A unit that is never on has X = 0, and one that
    nobody reads has W = 0: with 1 in its place nothing is divided by 0.
    """
    columns = weight.abs().amax(0)
    columns = torch.where(columns > 0, columns, 1.0)
    largest = torch.where(largest > 0, largest, 1.0)
    return largest**power / columns ** (1 - power)


def factors_one_by_one(largest, weight, power):
    """Through logarithms, in Python."""
    found = []
    for unit, each in enumerate(largest.tolist()):
        column = max(abs(row[unit]) for row in weight.tolist())
        found.append(math.exp(power * math.log(each or 1) - (1 - power) * math.log(column or 1)))
    return np.array(found)


X_TO_ONE = "torch.where(largest > 0, largest, 1.0)"
W_TO_ONE = "torch.where(columns > 0, columns, 1.0)"
QUOTIENT = "largest**power / columns ** (1 - power)"
REPLACED = (
    "That changes a tensor that was handed in: write weight.abs(), not weight.abs_(), and "
    "torch.where for a new largest."
)
PAIR_OF_COLUMNS = "max(0) gives values and places: take max(0).values, or amax(0)."

check_factors = Exercise(
    my_factors,
    read_again='"A loud unit can hand over its size"',
    cases=[
        (torch.tensor([9.0, 1.0]), torch.tensor([[1.0, -4.0], [0.5, 2.0]]), 0.5),
        (torch.tensor([9.0, 1.5]), torch.tensor([[1.5, -4.0], [0.5, 2.0]]), 0.25),
        (torch.tensor([3, 0.5, 20]), torch.tensor([[-0.2, 0.1, 0.4], [0.3, -0.7, 0.05]]), 1.0),
        (torch.tensor([3, 0.5, 20]), torch.tensor([[-0.2, 0.1, 0.4], [0.3, -0.7, 0.05]]), 0.0),
        (torch.tensor([0.0, 2.0]), torch.tensor([[0.5, 0.25], [-0.25, 0.75]]), 0.5),
        (torch.tensor([2.0, 3.0]), torch.tensor([[0.0, 0.5], [0.0, -0.2]]), 0.25),
        (torch.tensor([2.0, 3.0]), torch.tensor([[0.25, 0.0], [0.0, -0.2]]), 0.5),
    ],
    play=leaving_alone(REPLACED),
    given=lambda x, w, p: f"largest {short(x)}, weight {short(w)}, power {p}",
    same=partial(close, within=1e-4),
    hint="X is each unit's largest output; W, of each column, the largest weight without its sign. "
    "p and 1 - p are their exponents. An X or a W of 0 counts as 1.",
    wrong={
        NO_RETURN: lambda *given: None,
        "Return a tensor, not a list.": lambda *given: my_factors(*given).tolist(),
        "Those are rows. A column of the weight reads one unit: amax(0).": "amax(0) => amax(1)",
        "That is one number for all units: take the largest of each column, amax(0).": [
            "amax(0) => max()",
            "amax(0) => max().expand(weight.shape[1])",
        ],
        "The largest without its sign: weight.abs() first.": ".abs() => ",
        "W is the largest weight of the column, not its mean, sum or length.": [
            *["amax(0) => mean(0)", "amax(0) => sum(0)", "amax(0) => norm(dim=0)"],
        ],
        "Both exponents are in the wrong place: X has p, W has 1 - p.": (
            f"{QUOTIENT} => largest ** (1 - power) / columns**power"
        ),
        "The exponent of W is 1 - p: with p = 1 the weights do not count.": [
            *["(1 - power) => power", f"{QUOTIENT} => (largest / columns) ** power"],
            "columns ** (1 - power) => columns",
        ],
        "Brackets: columns ** 1 - power means columns - power.": "(1 - power) => 1 - power",
        "The exponent of X is p: with p = 0 the outputs do not count.": (
            f"{QUOTIENT} => largest / columns ** (1 - power)"
        ),
        "Both exponents are missing.": f"{QUOTIENT} => largest / columns",
        "That is right for p = 0.5 only: use power.": [
            f"{QUOTIENT} => (largest / columns).sqrt()",
            f"{QUOTIENT} => (largest / columns) ** 0.5",
        ],
        "Divide by W: a unit with large weights has a small factor.": [
            *[" / columns => * columns", "(1 - power) => (power - 1)"],
        ],
        "That is one over the factor. The unit is divided by it: a loud unit has a large one.": (
            f"{QUOTIENT} => 1 / ({QUOTIENT})"
        ),
        "X stands above, W below: a loud unit has a large factor.": (
            f"{QUOTIENT} => columns**power / largest ** (1 - power)"
        ),
        "To the power of p is **, not *.": (
            f"{QUOTIENT} => largest * power / (columns * (1 - power))"
        ),
        "W is missing: divide by it, to the power of 1 - p.": f"{QUOTIENT} => largest**power",
        "X is missing: X to the power of p stands above.": "largest**power / => 1 /",
        "Divide the first by the second: return one tensor.": " / columns => , columns",
        "An X of 0 makes a factor of 0, and the unit would be divided by it: take 1 for X.": (
            f"{X_TO_ONE} => largest"
        ),
        "A W of 0 makes an endless factor: take 1 for W.": f"{W_TO_ONE} => columns",
        "An X or a W of 0 counts as 1, not as a tiny number.": [
            *[f"{X_TO_ONE} => largest.clamp(min={least})" for least in TINY],
            *[f"{W_TO_ONE} => columns.clamp(min={least})" for least in TINY],
            *[
                (f"{X_TO_ONE} => largest", f"{QUOTIENT} => ({QUOTIENT}).clamp(min={least})")
                for least in TINY
            ],
        ],
        "Take the largest of each column first: only a W of 0 counts as 1, not a 0 in it.": (
            "weight.abs() => torch.where(weight == 0, 1.0, weight).abs()"
        ),
        REPLACED: [
            "weight.abs() => weight.abs_()",
            f"largest = {X_TO_ONE} => largest[largest == 0] = 1",
        ],
        "Only 0 becomes 1. That changes what is smaller than 1, too.": [
            *[f"{X_TO_ONE} => largest.clamp(min=1)", f"{W_TO_ONE} => columns.clamp(min=1)"],
        ],
        "Only an X or a W of 0 becomes 1: add nothing to the others.": [
            (f"{X_TO_ONE} => largest + 1", f"{W_TO_ONE} => columns + 1"),
            f"{X_TO_ONE} => largest + 1",
            f"{W_TO_ONE} => columns + 1",
        ],
        "The X or the W that is 0 counts as 1, not the factor: the other one still counts.": (
            f"largest = {X_TO_ONE} => unit_on = largest > 0",
            f"return {QUOTIENT} => return torch.where(unit_on, {QUOTIENT}, 1.0)",
        ),
        "Return the shape (units,).": [
            *["amax(0) => amax(0, True)", f"return {QUOTIENT} => return ({QUOTIENT})[:, None]"],
        ],
        "A factor may be below 1: keep it. Only an X or a W of 0 becomes 1.": [
            f"return {QUOTIENT} => return ({QUOTIENT}).clamp(min=1)",
            *[
                (f"{side} => {name}", f"return {QUOTIENT} => return ({QUOTIENT}).clamp(min=1)")
                for side, name in ((X_TO_ONE, "largest"), (W_TO_ONE, "columns"))
            ],
        ],
        "Each unit has its own X: largest, not largest.max().": "largest**p => largest.max() ** p",
        "Return the factors alone: the page divides by them.": [
            f"return {QUOTIENT} => return weight / ({QUOTIENT})",
            f"return {QUOTIENT} => return weight * ({QUOTIENT})",
            f"return {QUOTIENT} => return largest / ({QUOTIENT})",
        ],
        "Sixteen bits are too few for the factors: leave them in float32.": [
            f"return {QUOTIENT} => return ({QUOTIENT}).bfloat16()",
            f"return {QUOTIENT} => return ({QUOTIENT}).half()",
        ],
        PAIR_OF_COLUMNS: "amax(0) => max(0)",
    },
    errors={"return_types": PAIR_OF_COLUMNS},
    also_right=[
        factors_one_by_one,
        lambda x, w, p: my_factors(x.double(), w.double(), p),
        f"{QUOTIENT} => largest.pow(power) * columns.pow(power - 1)",
    ],
)

# 5. A shift


def my_shift(inputs, weight, bias):
    """The layer reads `inputs - medians`, so each output lacks `weight @ medians`.

    That is the same number in every image, so the bias can give it back. A row of the weight makes
    one output: the product has one number for each row.
    """
    medians = inputs.median(0).values
    return medians, bias + weight @ medians


def shift_by_sorting(inputs, weight, bias):
    """In Python, by sorting; an odd number of images has one in the middle."""
    medians = [sorted(unit)[len(unit) // 2] for unit in inputs.t().tolist()]
    given_back = [sum(w * m for w, m in zip(row, medians, strict=True)) for row in weight.tolist()]
    return torch.tensor(medians), bias + torch.tensor(given_back)


MEDIANS = "inputs.median(0).values"
NEW_BIAS = "bias + weight @ medians"
SHIFTED_IN_PLACE = (
    "That changes a tensor that was handed in: for new ones, write bias + ..., inputs - ..., no +=."
)
KEPT = "keepdim makes medians of the shape (1, units): leave it out, for (units,)."
PAIR_OF_MEDIANS = "Places are no medians: take median(0).values."

check_shift = Exercise(
    my_shift,
    read_again='"How large a constant can one smooth away?"',
    cases=[
        (
            torch.tensor([[5.0, 0.0, 2.0], [7.0, 1.0, 3.0], [100.0, 8.0, 1.0]]),
            torch.tensor([[1.0, -2.0, 0.5], [0.5, 3.0, -1.0], [2.0, 0.25, 4.0]]),
            torch.tensor([0.5, -1.0, 2.0]),
        ),
        (
            torch.tensor([[0.3, 9.0, 2.0], [0.0, 8.5, 4.0], [2.0, 9.5, 40.0]]),
            torch.tensor([[1.0, -0.5, 0.25], [0.0, 2.0, -1.0]]),
            torch.tensor([0.0, 3.0]),
        ),
        (
            torch.tensor([[1.0], [-2.0], [-6.0], [4.0], [0.5]]),  # unlike behind a ReLU
            torch.tensor([[2.0], [-1.0]]),
            torch.tensor([1.0, 1.0]),
        ),
    ],
    play=leaving_alone(SHIFTED_IN_PLACE),
    given=lambda x, w, b: (
        f"inputs {short(x.tolist())}, weight {short(w.tolist())}, bias {short(b.tolist())}"
    ),
    hint="The first is the median of each unit, over the images. The layer then reads inputs that "
    "are smaller by it: the new bias is the old one and what the weight makes of the medians.",
    wrong={
        NO_RETURN: lambda *given: None,
        "Return (medians, new bias), in this order.": lambda *given: my_shift(*given)[::-1],
        "Return both: (medians, new bias).": [
            lambda *given: my_shift(*given)[0],
            lambda *given: my_shift(*given)[1],
        ],
        "Return tensors, not lists.": lambda *given: [each.tolist() for each in my_shift(*given)],
        "That is one median for all units: take each unit's own, median(0).": [
            f"{MEDIANS} => inputs.median().expand(inputs.shape[1])",
        ],
        "Those are medians of the images. A unit is a column of the inputs: median(0).": (
            "median(0) => median(1)"
        ),
        "That is the mean, which one loud image drags along: take the median.": (
            f"{MEDIANS} => inputs.mean(0)"
        ),
        "That is the middle of the range: take the median.": (
            f"{MEDIANS} => (inputs.amin(0) + inputs.amax(0)) / 2"
        ),
        "Inputs may lie below 0: keep their sign, no abs.": "inputs.median => inputs.abs().median",
        "That is an end of the range, or the mode: take the median.": [
            f"{MEDIANS} => inputs.amax(0)",
            f"{MEDIANS} => inputs.amin(0)",
        ],
        "Sign: the inputs became smaller, so the bias gives back weight @ medians.": (
            f"{NEW_BIAS} => bias - weight @ medians"
        ),
        "The bias has to give back what the shift takes from the outputs.": f"{NEW_BIAS} => bias",
        "The old bias is missing.": f"{NEW_BIAS} => weight @ medians",
        "A row of the weight makes one output: weight @ medians, without .t().": [
            "weight @ medians => weight.t() @ medians",
            "weight @ medians => medians @ weight",
        ],
        "Add up over the units: weight @ medians is one number for each output.": [
            *[
                f"weight @ medians => (weight * medians){each}"
                for each in ("", ".sum(0)", ".sum()")
            ],
        ],
        "Give back what the medians make: weight @ medians, no average of outputs.": [
            f"weight @ medians => (inputs @ weight.t()).{each}"
            for each in ("mean(0)", "median(0)[0]")
        ],
        "Each output has its own weights: weight @ medians.": [
            f"{NEW_BIAS} => bias + medians.sum()",
            f"{NEW_BIAS} => bias + medians",
        ],
        "Return the medians, not the shifted inputs.": "return medians => return inputs - medians",
        SHIFTED_IN_PLACE: f"{NEW_BIAS} => bias.add_(weight @ medians)",
        PAIR_OF_MEDIANS: [f"{MEDIANS} => inputs.median(0){each}" for each in ("", ".indices")],
        KEPT: f"{MEDIANS} => inputs.median(0, keepdim=True).values",
        "Return the shapes (units,) and (out,), without a dimension of 1.": [
            f"return medians, {NEW_BIAS} => return medians[None], {NEW_BIAS}",
            f"{NEW_BIAS} => (bias + weight @ medians)[None]",
            f"return medians, {NEW_BIAS} => return medians[None], ({NEW_BIAS})[None]",
        ],
    },
    errors={"return_types|dtype.*[Ll]ong": PAIR_OF_MEDIANS, r"\((\d+)x(\d+) and 1x\2\)": KEPT},
    also_right=[
        shift_by_sorting,
        lambda *given: [each.numpy() for each in my_shift(*given)],
        f"{NEW_BIAS} => torch.nn.functional.linear(medians, weight, bias)",
        f"{MEDIANS} => inputs.quantile(0.5, 0)",
    ],
)
