"""Exercises of page `quantization`: scales, an int8 layer, clipping, GPTQ, rounding that learns."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mpcourse.exercises.exercise import Exercise, NotYet, leaving_alone, numbers, same, short
from mpcourse.quantization import (
    choose_qparams,
    fake_quantize,
    int8_matmul,
    quantize_tensor,
    round_straight_through,
)

# 1. Scale and zero point


def my_qparams(low, high):
    """Widen the range first, so that an integer can mean 0.0.

    256 integers have 255 steps between them. `low` has to become -128, so the integer of 0.0 lies
    `-low / scale` above it, and is rounded, because only an integer can stand for 0.0 exactly.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255 or 1.0
    return scale, round(-128 - low / scale)


def empty_is(*answer):
    """Right, but for a range that holds nothing but 0."""
    return lambda low, high: my_qparams(low, high) if low or high else answer


def same_kinds(result, expected):
    """As `same`; a zero point that is an integer is no float that has its value."""
    whole, wanted = (isinstance(numbers(pair[1]), int) for pair in (result, expected))
    return whole == wanted and same(result, expected)


NO_SCALE = "A range of nothing but 0 has no length: take 1 for its scale before you divide by it."

check_qparams = Exercise(
    my_qparams,
    read_again='"Which integer means zero?"',
    cases=[
        *[(-3.0, 1.0), (-0.7, 2.0), (-1.3, 4.0), (0.0, 2.55)],
        *[(2.0, 5.1), (-5.1, -2.0), (0.0, 0.0), (2.0, 2.0)],
    ],
    given="a range from {} to {}",
    same=same_kinds,
    hint="scale = (high - low) / 255 and zero_point = round(-128 - low / scale), with 0 inside. "
    "For 0 and 0 the scale is 1 (it must not be 0), and -128, which means low, means 0.0.",
    wrong={
        "Return (scale, zero_point), in this order.": lambda *ends: my_qparams(*ends)[::-1],
        "The two ends are equal, but 0 has to be in the range: widen it first.": (
            lambda low, high: (1.0, -128) if low == high else my_qparams(low, high)
        ),
        "256 integers have 255 steps between them.": "255 => 256",
        "-128 belongs to the integers, too: 255 steps.": ("255 => 254", "-128 - => -127 -"),
        "int() cuts towards 0: round to the nearest integer.": "round( => int(",
        "That cuts off after dividing: round to the nearest integer.": [
            "round(-128 - low / scale) => -128 - int(low / scale)",
            "round(-128 - low / scale) => -128 - low // scale",
            "round(-128 - low / scale) => int(-128 - low // scale)",
            "round(-128 - low / scale) => int((-128 - low / scale) // 1)",
        ],
        "One off: low becomes -128, not -127.": "-128 - => -127 -",
        "The scale is right. low is 0, so -128 means 0.0: the zero_point is -128.": [
            empty_is(1.0, zero) for zero in (0, 127, 128, -127)
        ],
        "That is for integers from 0 to 255.": "-128 - low => -low",
        "Sign: low has to become -128, so low / scale + zero_point = -128.": "-128 - => -128 +",
        "Only low is divided by the scale: -128 is an integer already.": (
            "-128 - low / scale => (-128 - low) / scale"
        ),
        "The scale is the length of a step: the range over its 255 steps, not the other way.": (
            lambda low, high: (1 / my_qparams(low, high)[0], my_qparams(low, high)[1])
        ),
        "zero_point is an integer: only then does one integer mean 0.0.": "round( => (",
        "zero_point has the right value, but it is a float: int() makes an integer of it.": (
            "round( => 1.0 * round("
        ),
        "0.0 is outside that range, so no integer means 0.0: widen the range to hold it.": (
            "low, high = min(low, 0.0), max(high, 0.0) => "
        ),
        "The range has to be widened for the scale, too.": (
            lambda low, high: ((high - low) / 255 or 1.0, my_qparams(low, high)[1])
        ),
        "Symmetric: one side is wasted. This range has two ends: use both.": [
            lambda low, high: (max(-low, high) / 127, 0),
            lambda low, high: (max(-low, high) / 128, 0),
            lambda low, high: (2 * max(-low, high) / 255, 0),
        ],
        "That clips: all below -128 * scale becomes -128 * scale.": (
            lambda low, high: (high / 127, 0)
        ),
        "Only the scale is wrong: it must not be 0, so a range of nothing but 0 gets 1.": (
            empty_is(0.0, -128)
        ),
        NO_SCALE: " or 1.0 => ",
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


check_rows = Exercise(
    my_rows,
    read_again='"One large weight: whom does it hurt?"',
    cases=[  # nothing lies halfway between two integers, where rounding errors decide
        (torch.tensor([[1.0, -0.4], [0.03, 0.04]]),),
        (torch.tensor([[-3.0, 1.0, 0.7], [0.1, 0.2, -0.9]]),),
        (torch.tensor([[50, 0.3, -0.2], [0.4, -0.33, 0.01], [1, 0.77, 0.45], [-0.6, 0.1, 0.25]]),),
        (torch.tensor([[0.0, 0.0], [0.5, -0.2]]),),
    ],
    given=lambda weight: f"a weight {short(weight.tolist())}: (integers, scales)",
    same=same_with_types,
    hint="scales = weight.abs().amax(1) / 127; integers = round(weight / scales[:, None]). "
    "A row of zeros has no largest weight: give it scale 1, and 0 / 1 is 0.",
    wrong={
        "Return (integers, scales), in this order.": lambda weight: my_rows(weight)[::-1],
        "That is one scale for the whole weight: take the largest of each row.": (
            "amax(1) => max()",
            "[:, None] => ",
        ),
        "All rows have the scale of the whole weight: take the largest of each row.": (
            "weight.abs().amax(1) => weight.abs().max().expand(len(weight))"
        ),
        "Those are the columns; a row makes an output: amax(1), and divide by scales[:, None].": (
            "amax(1) => amax(0)",
            "[:, None] => ",
        ),
        "That divides columns. To divide rows, scales need the shape (out, 1): scales[:, None].": (
            "[:, None] => "
        ),
        "The scales are right: return them in a tensor.": "int8), scales => int8), scales.tolist()",
        "int8 cuts off towards 0: round first. Half a step, not a whole one.": ".round() => ",
        "That rounds down: round to the nearest integer.": ".round() => .floor()",
        "The integers are right; the scale is upside down: the largest of the row over 127.": (
            "int8), scales => int8), 1 / scales"
        ),
        "Return the scales, too: without them nobody can tell what the integers mean.": (
            "int8), scales => int8)"
        ),
        "The integers are floats still: .to(torch.int8).": ".to(torch.int8) => ",
        "The integers are floats still: round, then .to(torch.int8).": (
            ".round().to(torch.int8) => "
        ),
        "The integers are right, but take more than a byte each: .to(torch.int8).": [
            "int8 => int16",
            "int8 => int32",
            "int8 => int64",
        ],
        "The scales have the shape (out, 1); (out,) is asked for: divide by scales[:, None].": (
            "int8), scales => int8), scales[:, None]"
        ),
        "The scale is the size of a step: the largest of the row over 127.": (
            "int8), scales => int8), weight.abs().amax(1)"
        ),
        "The integers end at 127: the largest of the row over 127, not over 128.": [
            ("127 => 128", ".round() => .round().clamp(-128, 127)"),
            "127 => 128",
        ],
        "Only the row of zeros is wrong: nothing can be divided by 0, so its scale is to be 1.": [
            "torch.where(scales > 0, scales, 1.0) => scales",
            "torch.where(scales > 0, scales, 1.0) => scales.clamp(min=1e-8)",
            "int8), scales => int8), scales * weight.any(1)",
        ],
        "The largest without its sign: weight.abs() first.": ".abs() => ",
        "scales = weight.abs().amax(1) / 127": lambda w: (
            w / w.abs().amax(0) * 127,
            w.abs().amax(0) / 127,
        ),
    },
    also_right=[
        rows_in_a_loop,
        lambda w: ((w * (1 / my_rows(w)[1][:, None])).round().char(), my_rows(w)[1]),
        lambda w: [each.numpy() for each in my_rows(w)],
        lambda w: [quantize_tensor(w, axis=0).integers, quantize_tensor(w, axis=0).scale],
        lambda w: ((w * 127 / w.abs().amax(1, True).clamp(1e-9)).round().char(), my_rows(w)[1]),
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


def linear_by_broadcasting(q_x, s_x, z_x, q_w, s_w, bias):
    return ((q_x.int() - z_x)[:, None] * q_w.int()).sum(2) * (s_x * s_w) + bias


def linear_by_the_kernel(q_x, s_x, z_x, q_w, s_w, bias):
    sums = int8_matmul(q_x, q_w.t().contiguous())
    return s_x * s_w * (sums - z_x * q_w.long().sum(1)) + bias


SUMS = "q_w.sum(1, dtype=torch.int32)"
CORRECTION = f" - z_x * {SUMS}"
NO_CORRECTION = f"{CORRECTION} => "
FLOAT_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot", "linear"}
NO_INTEGERS = (
    "The numbers are right, but floats were multiplied: keep the integers, multiply them with sums "
    "of 32 bits, and let the scales come afterwards."
)


def layers():
    """Inputs and weights of growing layers: sums that fit into 8 bits first."""
    generator = torch.Generator().manual_seed(0)

    def integers(*shape):
        return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)

    x = torch.tensor([[3, -1], [0, 5]], dtype=torch.int8)
    w = torch.tensor([[2, 1], [-1, 4]], dtype=torch.int8)
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


class FloatProducts(TorchDispatchMode):
    """Notes whether floats were multiplied as matrices, and how many products others made."""

    def __init__(self):
        super().__init__()
        self.seen, self.made = False, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        found = op(*args, **(kwargs or {}))
        name = op.overloadpacket.__name__
        product = name in FLOAT_PRODUCTS or (name == "mul" and found.dim() > 2)
        if (product or name == "mul") and found.is_floating_point():
            self.seen |= product
            self.made += found.numel()
        return found


def in_integers(attempt, *layer):
    """The outcome; where the numbers are right, but made by a product of floats, that is said."""
    with FloatProducts() as products:
        outcome = attempt(*layer)
    q_x, s_x, z_x, q_w, s_w, bias = layer
    in_floats = (q_x.double() - z_x) * s_x @ (q_w * s_w[:, None].double()).T + bias
    row_by_row = len(q_x) > 3 and products.made >= len(q_x) * q_w.numel()  # scales need fewer
    if (products.seen or row_by_row) and same_sums(outcome, in_floats):
        raise NotYet(NO_INTEGERS)
    return outcome


def same_sums(result, expected):
    """Equal up to the rounding of float32: sums of some hundred products."""
    if not isinstance(result, Tensor) or result.shape != expected.shape:
        return False
    size = float(expected.abs().max())
    return torch.allclose(result.cpu().double(), expected.double(), rtol=1e-5, atol=1e-5 * size)


check_int8_linear = Exercise(
    my_int8_linear,
    read_again='"May two int8 matrices be multiplied?"',
    cases=layers(),
    given=layer_in_words,
    play=in_integers,
    same=same_sums,
    hint="(q_x @ q_w.T - z_x * sums of the rows of q_w) * s_x * s_w + bias, sums in 32 bits. "
    "It is one tensor.",
    wrong={
        NO_INTEGERS: [
            linear_by_meaning,
            ".int() => .float()",
            "q_x.int() @ q_w.int().t() => (q_x.float()[:, None] * q_w.float()).sum(2)",
            "q_x.int() @ q_w.int().t() => torch.stack([(q_w * x.float()).sum(1) for x in q_x])",
            lambda q_x, s_x, z_x, q_w, s_w, bias: torch.nn.functional.linear(
                (q_x.float() - z_x) * s_x, q_w.float() * s_w[:, None], bias
            ),
        ],
        "The sums of the weights have wrapped round: add up with dtype=torch.int32.": (
            "dtype=torch.int32 => dtype=torch.int8"
        ),
        "The zero point is missing: subtract z_x times the sum of each row of q_w.": NO_CORRECTION,
        "The product has wrapped round in int8: sums need 32 bits.": [
            ".int() => ",
            (NO_CORRECTION, ".int() => "),
        ],
        "The product has wrapped round in 16 bits: sums need 32.": ".int() => .short()",
        "q_x - z_x has wrapped round in int8: go to 32 bits first.": (
            NO_CORRECTION,
            "q_x.int() => (q_x - z_x).int()",
        ),
        "q_w is (out, in): the product takes q_w.t().": ".t() => ",
        "The sign of the correction: subtract z_x times the sum of the weights.": "- z_x => + z_x",
        "z_x is subtracted once; each of the `in` products needs it: times the sum of weights.": (
            " * q_w.sum(1, dtype=torch.int32) => "
        ),
        "The correction has the sum of the weights, not that of the inputs.": (
            "q_w.sum(1, => q_x.sum(1, keepdim=True,"
        ),
        "The sum of the weights is to be multiplied by z_x.": "z_x * q_w => q_w",
        "sum(0) adds up the columns of q_w; a row makes an output: sum(1).": "sum(1, => sum(0,",
        "sum(1) adds up each row of q_w: every output has a sum of its own.": "sum(1, => sum(",
        "The correction is multiplied by both scales, too: put brackets round the two sums.": [
            (f"{CORRECTION} => ", f" + bias =>  - z_x * {SUMS} + bias"),
            (f"{CORRECTION} => ", f" + bias =>  - s_x * z_x * {SUMS} + bias"),
            (f"{CORRECTION} => ", f" + bias =>  - s_w * z_x * {SUMS} + bias"),
        ],
        "The bias is missing.": " + bias => ",
        "The bias is in floats already: add it after the scales.": (
            "sums * (s_x * s_w) + bias => (sums + bias) * s_x * s_w"
        ),
        "These are the integers' sums: multiply by both scales.": " * (s_x * s_w) => ",
        "These are the integers' sums: multiply by both scales, add the bias.": (
            " * (s_x * s_w) + bias => "
        ),
        "The scales of the weights, s_w, are missing.": "(s_x * s_w) => s_x",
        "The scale of the inputs, s_x, is missing.": "(s_x * s_w) => s_w",
        "s_w belongs to the outputs, the columns of the result: no [:, None].": (
            "* s_w) => * s_w[:, None])"
        ),
        "That is (out, rows); (rows, out) is asked for.": lambda *layer: my_int8_linear(*layer).t(),
    },
    also_right=[linear_by_broadcasting, linear_by_the_kernel],
)

# 4. Scales of least squared error


def my_best_scales(weight, largest):
    """A shorter step makes the many small weights exact, and clips the few large ones.

    Which is better is a matter of trying: forty scales for each row, and the row keeps the one with
    the least sum of squared errors. For a row of zeros all forty do, as long as none is 0.
    """
    longest = weight.abs().amax(1) / largest
    longest = torch.where(longest > 0, longest, 1.0)
    tried = torch.linspace(0.1, 1, 40, device=weight.device)[:, None] * longest
    steps = (weight / tried[:, :, None]).round().clamp(-largest, largest)
    errors = (steps * tried[:, :, None] - weight).square().sum(2)
    return tried.gather(0, errors.argmin(0)[None])[0]


def scales_in_a_loop(weight, largest):
    found = []
    for row in weight:
        top = float(row.abs().max()) / largest or 1.0
        tried = torch.linspace(0.1, 1, 40) * top
        errors = [(rounded_to(row[None], each[None], largest) - row).norm() for each in tried]
        found.append(tried[errors.index(min(errors))])
    return torch.stack(found)


def rounded_to(weight, scales, largest):
    """What integers up to `largest` mean, with one scale for each row."""
    return (weight / scales[:, None]).round().clamp(-largest, largest) * scales[:, None]


def error_left(attempt, weight, largest):
    """The squared error of each row, over the least there is; what is within 3% counts as that."""
    scales = attempt(weight, largest)
    if hasattr(scales, "__array__"):  # numpy's will do
        scales = torch.as_tensor(scales)
    if not isinstance(scales, Tensor):
        return scales
    if scales.shape != weight.shape[:1]:
        return f"scales of shape {tuple(scales.shape)}"
    scales = scales.detach().cpu().to(weight.dtype)
    if not ((scales > 0) & scales.isfinite()).all():
        return f"scales {short(scales)}"
    top = weight.abs().amax(1)
    fine = torch.linspace(0.02, 1.1, 1000)[:, None] * top.where(top > 0, 127.0) / largest
    errors = [(rounded_to(weight, each, largest) - weight).square().sum(1) for each in fine]
    least = torch.stack(errors).amin(0).clamp(min=1e-12)
    found = (rounded_to(weight, scales, largest) - weight).square().sum(1)
    return (found / least).clamp(min=1.03)


def same_error(result, expected):
    """As `same`, with the digits in which two searches over the same scales agree."""
    if isinstance(result, Tensor) and isinstance(expected, Tensor):
        return torch.allclose(result, expected, rtol=1e-3)
    return same(result, expected)


def in_words_of_error(outcome, expected):
    """Errors as multiples of the least; what is no tensor of scales as it is."""
    if not isinstance(outcome, Tensor):
        return [f"got {short(outcome)}"]
    times = ", ".join(f"{each:.2f}" for each in outcome.tolist())
    return [f"squared error of each row over the least there is (1.03 will do): {times}"]


def weights_with_tails():
    """Weights that are mostly small: the first case can be followed by hand."""
    generator = torch.Generator().manual_seed(0)
    tails = torch.randn(4, 60, generator=generator) ** 3
    return [
        (torch.tensor([[-1.0, 0.3, -0.28, 0.31, 0.27, -0.33, 0.0, 0.29]]), 1),
        (torch.randn(3, 40, generator=generator), 1),
        (torch.randn(2, 100, generator=generator), 7),
        (tails, 3),
        (torch.cat([tails[:1], torch.zeros(1, 60)]), 7),
    ]


check_best_scales = Exercise(
    my_best_scales,
    read_again='"Must the largest weight fit?"',
    cases=weights_with_tails(),
    given=lambda weight, largest: f"a weight {short(weight)}, largest {largest}",
    play=error_left,
    same=same_error,
    compared=in_words_of_error,
    hint="For each fraction: scales = fraction * weight.abs().amax(1) / largest, round and clamp, "
    "square what is off, sum(1). Each row keeps the scale with the least sum.",
    wrong={
        "That is the largest weight over largest: nothing is clipped. Try shorter steps, too.": (
            lambda w, n: my_rows(w)[1] * 127 / n
        ),
        "One fraction for all rows: each row has a best one of its own, so sum(1), not sum().": (
            "argmin(0)[None] => sum(1).argmin().expand(1, len(weight))"
        ),
        "That is the shortest step that was tried: clamp (else short steps seem to have no error), "
        "and keep the step with the smallest sum of squares.": [
            ".clamp(-largest, largest) => ",
            "argmin => argmax",
            "argmin(0)[None] => argmin(0)[None] * 0",
        ],
        "Square what is off, then add up: the plain sum lets errors of both signs cancel.": [
            ".square() => ",
            ".square().sum(2) => .sum(2).abs()",
        ],
        "Measure what is off in weights, not in steps: multiply by the scale first.": (
            "steps * tried[:, :, None] - weight => steps - weight / tried[:, :, None]"
        ),
        "sum(1) of what is off has one number for each row; sum(0) has one for each column.": (
            lambda w, n: my_best_scales(w.t(), n)
        ),
        "No scale may be 0: begin the fractions above 0.": "0.1, => 0.0,",
        "That is the index of the fraction: take the fraction there, times the longest step.": (
            "tried.gather(0, errors.argmin(0)[None])[0] => errors.argmin(0)"
        ),
        "That is the least sum of absolute errors; squares are asked for.": ".square() => .abs()",
        "That is the smallest largest error; the sum of the squares is asked for.": (
            "square().sum => abs().amax"
        ),
        "Fractions: a scale is the fraction times the largest of the row, over largest.": (
            "return tried => return (tried / longest)"
        ),
        "Nearly: more fractions find a better one. Forty will do.": "40 => 10",
        "Still shorter steps have to be tried: begin at a tenth of the longest.": "0.1, => 0.5,",
        "The search clips at one integer too many: clamp to -largest … largest.": (
            "clamp(-largest, => clamp(-largest - 1,"
        ),
        "The largest without its sign: weight.abs() first.": ".abs() => ",
        "That is a rule without a search: try scales, and keep the one of least error.": [
            lambda w, n: w.abs().mean(1),
            lambda w, n: w.abs().mean(1) * 2 / n**0.5,
            lambda w, n: w.std(1),
        ],
        "These are the errors; the scales that have them are asked for.": (
            "tried.gather(0, errors.argmin(0)[None])[0] => errors.amin(0) + 1e-9"
        ),
        "That is the largest of the row that fits: a step is that over largest.": (
            "[None])[0] => [None])[0] * largest"
        ),
        "That is one scale for the whole weight: one for each row, of shape (out,).": (
            lambda w, n: my_best_scales(w.reshape(1, -1), n)[0]
        ),
        "The scales have the shape (out, 1); (out,) is asked for.": (
            "[None])[0] => [None])[0][:, None]"
        ),
        "The scales are asked for, in a tensor of shape (out,), and nothing else.": [
            "[None])[0] => [None])[0].tolist()",
            lambda w, n: (rounded_to(w, my_best_scales(w, n), n), my_best_scales(w, n)),
        ],
        "The integers end at largest, which is an argument: not always at 127.": (
            lambda w, n: my_best_scales(w, 127)
        ),
        "A row of zeros has no largest weight: its scale must not be 0, so give it 1.": (
            "torch.where(longest > 0, longest, 1.0) => longest"
        ),
    },
    also_right=[
        scales_in_a_loop,
        lambda w, n: my_best_scales(w.double(), n),
        lambda w, n: my_best_scales(w, n).numpy(),
    ],
)

# 5. Column by column


def my_columns(weight, upper, scales, largest):
    """Only the columns to the right can still change, so each error is passed on to them alone.

    `exact` is what the column has become by then, and a copy: a view would change with the column,
    and no error would be left.
    """
    weight = weight.clone()
    for c in range(weight.shape[1]):
        exact = weight[:, c].clone()
        weight[:, c] = (exact / scales).round().clamp(-largest, largest) * scales
        error = (exact - weight[:, c]) / upper[c, c]
        weight[:, c + 1 :] -= torch.outer(error, upper[c, c + 1 :])
    return weight


def columns_from_the_left(weight, upper, scales, largest):
    """Nothing in place: each column collects what the errors before it sent."""
    found, errors = [], []
    for c in range(weight.shape[1]):
        exact = weight[:, c] - sum(e * upper[i, c] / upper[i, i] for i, e in enumerate(errors))
        found.append(rounded_to(exact[:, None], scales, largest)[:, 0])
        errors.append(exact - found[-1])
    return torch.stack(found, 1)


def columns_one_by_one(weight, upper, scales, largest):
    rows = [
        my_columns(r[None], upper, s[None], largest) for r, s in zip(weight, scales, strict=True)
    ]
    return torch.cat(rows).double()


def weights_and_factors():
    """The first two can be followed by hand; then inputs that are related, as neighbours are."""
    generator = torch.Generator().manual_seed(3)

    def case(rows, width, largest):
        inputs = torch.randn(50, width, generator=generator).cumsum(1) + 1
        upper = torch.linalg.cholesky(torch.linalg.inv(inputs.t() @ inputs), upper=True)
        weight = torch.randn(rows, width, generator=generator)
        return weight, upper, torch.linspace(0.4, 0.9, rows), largest

    return [
        (torch.tensor([[0.4, 0.3]]), torch.tensor([[1.0, -1.0], [0.0, 1.0]]), torch.ones(1), 7),
        (
            torch.tensor([[0.4, 0.8, 0.1], [-0.3, 2.1, 0.9]]),
            torch.tensor([[2.0, -2.0, -1.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]),
            torch.tensor([1.0, 0.5]),
            7,
        ),
        case(3, 4, 7),
        case(5, 6, 1),
    ]


PASSED_ON = "weight[:, c + 1 :] -= torch.outer(error, upper[c, c + 1 :])"

check_columns = Exercise(
    my_columns,
    read_again='"May one weight make up for another\'s error?"',
    cases=weights_and_factors(),
    given=lambda weight, upper, scales, largest: (
        f"a weight {short(weight)}, upper {short(upper)}, scales {short(scales)}, largest {largest}"
    ),
    play=leaving_alone("What was handed in has changed: work on weight.clone()."),
    hint="For each column: keep a copy, round it, divide what is off by upper[c, c], and subtract "
    "torch.outer(that, upper[c, c + 1 :]) from the columns after it.",
    wrong={
        "Each column is rounded as it was at first. Pass on row c of upper, round what a column "
        "has become by then, and clone it before: weight[:, c] is a view.": [
            f"{PASSED_ON} => pass",
            "weight[:, c].clone() => weight[:, c]",
            "torch.outer(error, upper[c, c + 1 :]) => torch.outer(error, upper[c + 1 :, c])",
            (
                "weight = weight.clone() => first, weight = weight, weight.clone()",
                "(exact / scales) => (first[:, c] / scales)",
            ),
        ],
        "Sign: a later column changes by -e * upper[c, d] / upper[c, c].": "] -= => ] +=",
        "The error is to be divided by upper[c, c].": " / upper[c, c] => ",
        "upper[c, c] stands below the line: divide by it, once.": [
            " / upper[c, c] =>  * upper[c, c]",
            " / upper[c, c] =>  / upper[c, c] ** 2",
        ],
        "Only the next column changes; all that follow have to.": "c + 1 :] => c + 1 : c + 2]",
        "The column itself is to stay as rounded: change the columns from c + 1 on.": [
            "c + 1 :] => c:]",
            "c + 1 :] => :]",
        ],
        "The error is what rounding takes from the column as it is by then.": [
            (
                "weight = weight.clone() => first, weight = weight, weight.clone()",
                "(exact - => (first[:, c] -",
            ),
            (
                "weight = weight.clone() => first, weight = weight, weight.clone()",
                "error = (exact - weight[:, c]) => error = (first - rounded_to(first, scales, "
                "largest))[:, c]",
            ),
        ],
        "The error is one of weights, not of integers: multiply by the scales first.": [
            "(exact - weight[:, c]) => (exact / scales - weight[:, c] / scales)",
            "largest) * scales => largest)",
        ],
        "The last column is to be rounded, too.": "shape[1]) => shape[1] - 1)",
        "These are the integers: multiply by the scales.": (
            "return weight => return weight / scales[:, None]"
        ),
        "That lets integers beyond largest stand (it is {3} here): clamp to -largest … largest.": [
            ".clamp(-largest, largest) => ",
            "clamp(-largest, largest) => clamp(-7, 7)",
            "clamp(-largest, largest) => clamp(-127, 127)",
        ],
        "The integers end at -largest: not one below.": "clamp(-largest => clamp(-largest - 1",
        "Nothing is rounded: what is returned are the columns of integers times scales.": (
            lambda weight, upper, scales, largest: weight.clone()
        ),
        "Return the whole weight, of shape (out, in).": "return weight => return weight[:, c]",
    },
    also_right=[columns_from_the_left, columns_one_by_one],
)

# 6. Rounding that learns


def my_fake(values, scale, largest):
    """Round straight through first: what rounds to an end is inside, and keeps its gradient.

    `torch.where` takes the end, a constant, for what is clipped, so its gradient is 0. `clamp`
    gives the ends themselves a gradient in some versions of torch only. The scale is divided by
    and multiplied with, so it leaves the gradient as it is.
    """
    steps = round_straight_through(values / scale)
    ends = steps.detach().clamp(-largest, largest)
    return torch.where(steps == ends, steps, ends) * scale


def through(value, gradient):
    """One value, with the gradient of another."""
    return gradient + (value - gradient).detach()


def fake_of_torch(values, scale, largest):
    found = torch.fake_quantize_per_tensor_affine(values.float(), scale, 0, -largest, largest)
    return found.double()


def fake_of_the_package(values, scale, largest):
    bits = (largest + 1).bit_length()
    return fake_quantize(values, torch.tensor(scale), torch.tensor(0), bits=bits, symmetric=True)


CHOICE = "torch.where(steps == ends, steps, ends)"
FLAT_ENDS = "steps == ends => steps.abs() < largest"
ONE_BELOW = "clamp(-largest, => clamp(-largest - 1,"
TRUNC, FLOOR = (
    f"round_straight_through(values / scale) => through((values / scale).{cut}(), values / scale)"
    for cut in ("trunc", "floor")
)


def with_gradient(attempt, numbers, scale, largest):
    """What comes out, and the gradient that a backward leaves, or None."""
    values = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    found = attempt(values, scale, largest)
    if not isinstance(found, Tensor):
        return found
    if not found.requires_grad or found.shape != values.shape:
        return found.detach(), None
    factors = torch.arange(2.0, 2.0 + values.numel(), dtype=torch.float64).view(values.shape)
    (found * factors).sum().backward()
    return found.detach(), None if values.grad is None else values.grad / factors


check_fake = Exercise(
    my_fake,
    read_again='"Can a net learn to live with three values?"',
    cases=[  # in the second, 0.7 rounds to the end from below and 0.8 from above
        ([0.1, -0.33], 0.25, 127),
        ([-0.9, -0.3, 0.1, 0.33, 0.4, 0.6, 0.7, 0.8, 2.0], 0.25, 3),
        ([[-30.0, 4.0], [0.7, 12.3]], 2.0, 7),
        ([0.4, -1.9, 0.0], 1.0, 1),
    ],
    given="values {}, scale {}, largest {}: (values, gradient)",
    play=with_gradient,
    hint="Round straight through, then choose between the steps and the ends with torch.where, "
    "then multiply by the scale.",
    wrong={
        "The values are right, but no gradient comes through: detach only the difference.": (
            "values / => values.detach() /"
        ),
        "The values are right; the gradient is that of a staircase, 0: no weight would learn.": (
            "round_straight_through => torch.round"
        ),
        "The values are right; what is clipped gets a gradient, too: clip after rounding.": (
            lambda v, s, n: through(my_fake(v, s, n), v)
        ),
        "The values are right, but not the gradient of what rounds to an end: clamp's gradient "
        "at the ends differs between torch versions: choose with `torch.where`.": [
            FLAT_ENDS,
            f"{CHOICE} => steps.minimum(0 * ends + largest).maximum(0 * ends - largest)",
        ],
        "The values are right; what rounds to an end from outside keeps its gradient: round first, "
        "then clip.": "(values / scale) => ((values / scale).clamp(-largest, largest))",
        "That cuts off towards 0: round to the nearest integer.": [TRUNC, (TRUNC, FLAT_ENDS)],
        "That rounds down: round to the nearest integer.": [FLOOR, (FLOOR, FLAT_ENDS)],
        "Nothing is clipped here, where largest is {2} (in other cases it is another): "
        "clamp the integers, not the values, to -largest … largest.": [
            f"{CHOICE} => steps",
            lambda v, s, n: my_fake(v.clamp(-n, n), s, 1000),
            "clamp(-largest, largest) => clamp(-127, 127)",
        ],
        "The smallest integer is -largest, not one below it.": [
            ONE_BELOW,
            (ONE_BELOW, "steps == ends => (-largest - 1 < steps) & (steps < largest)"),
            (ONE_BELOW, "steps == ends => steps.abs() <= largest"),
        ],
        "What is clipped becomes the end on its own side: -largest or largest.": [
            f"{CHOICE} => torch.where(steps == ends, steps, largest)",
            f"{CHOICE} => torch.where(steps == ends, steps, 0 * ends)",
        ],
        "What lies beyond the ends is not clipped: only its gradient is gone.": (
            f"{CHOICE} => torch.where(steps == ends, steps, steps.detach())"
        ),
        "Only one side is clipped: -largest is an end, too.": (
            "clamp(-largest, largest) => clamp(max=largest)"
        ),
        "values + (rounded - values).detach(): without the subtraction both are added up.": (
            lambda v, s, n: v + my_fake(v, s, n).detach()
        ),
        "Divide by the scale first, and multiply after rounding.": (
            lambda v, s, n: my_fake(v, 1 / s, n)
        ),
        "Nothing is rounded: the forward has to round.": [
            "round_straight_through => ",
            lambda v, s, n: v,
        ],
        "These are the integers: multiply by the scale again.": [
            " * scale => ",
            lambda v, s, n: through(my_fake(v, s, n) / s, my_fake(v, s, n)),
        ],
        "The values are right; dividing by the scale must not leave the gradient.": (
            lambda v, s, n: through(my_fake(v, s, n), my_fake(v, s, n) * s)
        ),
        "The values are right; multiplying by the scale must not leave the gradient.": (
            lambda v, s, n: through(my_fake(v, s, n), my_fake(v, s, n) / s)
        ),
        "Round straight through, then choose": lambda v, s, n: v.sum(),
    },
    also_right=[
        fake_of_torch,
        fake_of_the_package,
        lambda v, s, n: through(my_fake(v, s, n), v * ((v / s).round().abs() <= n)),
    ],
)
