"""Exercises of page `few_bits`: clipping, GPTQ, rounding that learns."""

import torch
from torch import Tensor

from mpcourse.exercises.exercise import Exercise, NotYet, leaving_alone, same, short
from mpcourse.quantization import round_straight_through

CHANGED = "What was handed in has changed: work on weight.clone()."
SEVERAL = "Several results, of different shapes: give back one tensor."
NEAREST = "Round to the nearest integer: floor and trunc do not."


def my_best_scales(weight, largest):
    """A shorter step rounds the many small weights better, and clips the few large ones.

    Of forty scales each row keeps the one with the least sum of squared errors. For a row of zeros
    all forty do, as long as none is 0.
    """
    longest = weight.abs().amax(1) / largest
    longest = torch.where(longest > 0, longest, 1.0)
    tried = torch.linspace(0.1, 1, 40, device=weight.device)[:, None] * longest
    steps = (weight / tried[:, :, None]).round().clamp(-largest, largest)
    errors = (steps * tried[:, :, None] - weight).square().sum(2)
    return tried.gather(0, errors.argmin(0)[None])[0]


def fitted(weight, largest):
    """Wrong: least squares for the integers of the longest step, again and again."""
    scales = weight.abs().amax(1).clamp(min=1e-9) / largest
    for _ in range(10):
        steps = (weight / scales[:, None]).round().clamp(-largest, largest)
        scales = ((weight * steps).sum(1) / steps.square().sum(1)).nan_to_num(1.0)
    return scales


def rounded_to(weight, scales, largest):
    """What integers up to `largest` mean, with one scale for each row."""
    return (weight / scales[:, None]).round().clamp(-largest, largest) * scales[:, None]


def tensor_of(attempt, *case):
    """What comes out; lists, tuples, numbers and numpy's will do."""
    found = leaving_alone(CHANGED)(attempt, *case)
    if isinstance(found, list | tuple):
        parts = [torch.as_tensor(each) for each in found]
        if len({each.shape for each in parts}) > 1:
            raise NotYet(SEVERAL)
        found = torch.stack(parts)
    return (
        torch.as_tensor(found) if hasattr(found, "__array__") or isinstance(found, float) else found
    )


def error_left(attempt, weight, largest):
    """The squared error of each row, over the least there is; what is within 3% counts as that."""
    scales = tensor_of(attempt, weight, largest)
    if not isinstance(scales, Tensor):
        return scales
    if scales.shape != weight.shape[:1]:
        return f"scales of shape {tuple(scales.shape)}"
    scales = scales.detach().cpu().to(weight.dtype)
    if not ((scales > 0) & scales.isfinite()).all():
        return "scales that are not all above 0"
    top = weight.abs().amax(1)
    fine = torch.linspace(0.02, 1.1, 1000)[:, None] * top.where(top > 0, 127.0) / largest
    errors = [(rounded_to(weight, each, largest) - weight).square().sum(1) for each in fine]
    least = torch.stack(errors).amin(0).clamp(min=1e-12)
    tried = scales, scales * top / largest  # in place of scales, shares of the longest may come
    found, shares = ((rounded_to(weight, s, largest) - weight).square().sum(1) for s in tried)
    if (found > 1.03 * least).any() and (shares <= 1.03 * least).all():
        return "shares of the longest scale"
    return (found / least).clamp(min=1.03)


def same_error(result, expected):
    """As `same`, with the digits in which two searches over the same scales agree."""
    both = isinstance(result, Tensor) and isinstance(expected, Tensor)
    return torch.allclose(result, expected, rtol=1e-3) if both else same(result, expected)


def in_words_of_error(outcome, expected):
    """Errors as multiples of the least; what is no tensor of scales as it is."""
    if not isinstance(outcome, Tensor):
        return [f"got {short(outcome)}"]
    times = ", ".join(f"{x:.5g}" if x > 1.0301 else "≤ 1.03" for x in outcome.tolist())
    return [f"squared error of each row over the least there is (1.03 will do): {times}"]


def weights_with_tails():
    """Mostly small: the first case can be followed by hand; in a later one, rows differ in size."""
    generator = torch.Generator().manual_seed(0)
    tails = torch.randn(4, 60, generator=generator) ** 3
    return [
        (torch.tensor([[-1.0, 0.3, -0.28, 0.31, 0.27, -0.33, 0.0, 0.29]]), 1),
        (torch.randn(3, 40, generator=generator), 1),
        (torch.randn(2, 100, generator=generator), 7),
        (tails * torch.tensor([[1.0], [0.02], [1.0], [1.0]]), 3),
        (torch.cat([tails[:1], torch.zeros(1, 60)]), 7),
        (torch.tensor([[1.0, *[0.22, -0.25, 0.2] * 20]]), 1),
    ]


check_best_scales = Exercise(
    my_best_scales,
    read_again='"Must the largest weight fit?"',
    cases=weights_with_tails(),
    given=lambda weight, largest: f"weight = {short(weight)}, largest = {largest}",
    play=error_left,
    same=same_error,
    compared=in_words_of_error,
    hint="For each of forty fractions: scales = fraction * weight.abs().amax(1) / largest, round "
    "and clamp, square what is off, sum(1). Each row keeps the scale with the least sum.",
    wrong={
        "That is the largest weight over largest: nothing is clipped. Try shorter steps, too.": (
            lambda w, n: w.abs().amax(1).clamp(min=1e-9) / n
        ),
        "One fraction for all rows: each row has a best one of its own, so sum(1), not sum().": (
            "argmin(0)[None] => sum(1).argmin().expand(1, len(weight))"
        ),
        "That is the shortest step tried: clamp, and keep the step of the least sum of squares.": [
            ".clamp(-largest, largest) => ",
            "argmin => argmax",
        ],
        "Add up squares: plain sums let signs cancel; absolute errors and the largest error have "
        "another least.": [
            ".square() => ",
            ".square() => .abs()",
            ".square().sum(2) => .sum(2).square()",
            ".square().sum(2) => .abs().amax(2)",
        ],
        "largest is {1} here: divide the largest weight by it, and clamp to -{1} … {1}.": [
            "amax(1) / largest => amax(1)",
            ".clamp(-largest, largest) => .clamp(-1, 1)",
            lambda w, n: my_best_scales(w, 1),
            lambda w, n: my_best_scales(w, n + 1),
        ],
        "Measure what is off in weights, not in steps: multiply by the scale first.": [
            "steps * tried[:, :, None] - weight => steps - weight / tried[:, :, None]",
            "steps * tried[:, :, None] - weight => steps - weight",
        ],
        "Fitted to its own integers, a scale stays near its start: try forty of them.": fitted,
        "That is the fraction, its index or the error: the scale is asked for.": [
            "tried.gather(0, errors.argmin(0)[None])[0] => errors.argmin(0)",
            "tried.gather(0, errors.argmin(0)[None])[0] => errors.amin(0)",
            "[None])[0] => [None])[0] / longest",
        ],
        "The smallest integer is -largest, not one below it.": "(-largest, => (-largest - 1,",
        NEAREST: [".round() => .floor()", ".round() => .trunc()"],
        CHANGED: lambda w, n: my_best_scales(w.abs_(), n),
        "Nearly: forty fractions from 0.1 to 1 will do.": [
            "40 => 10",
            "0.1, => 0.5,",
            "0.1, => 0.4,",
            "0.1, => 0.3,",
            "0.1, 1, => 0.1, 0.5,",
        ],
        "The largest without its sign: weight.abs() first.": [
            ".abs() => ",
            lambda w, n: (w.amax(1) - w.amin(1)).clamp(min=1e-9) / (2 * n),
        ],
        "A mean, a quantile or one share for all does not tell what is clipped in a row: try forty "
        "shares of the longest step.": [
            lambda w, n: w.abs().mean(1).clamp(min=1e-9),
            lambda w, n: w.abs().quantile(0.95, 1).clamp(min=1e-9) / n,
            lambda w, n: 3 * w.std(1).clamp(min=1e-9) / n,
            lambda w, n: w.std(1).clamp(min=1e-9),
            lambda w, n: 0.4 * w.abs().amax(1).clamp(min=1e-9) / n,
        ],
        "One scale for each row, not for each column or for all: amax(1) and sum(1).": [
            "amax(1) / largest => amax().expand(len(weight)) / largest",
            lambda w, n: my_best_scales(w.t(), n),
            lambda w, n: my_best_scales(w.reshape(1, -1), n),
            lambda w, n: my_best_scales(w.reshape(1, -1), n).expand(len(w)),
            lambda w, n: my_best_scales(w.reshape(1, -1), n).item(),
        ],
        "That is scale times largest, the last value: one step is asked for.": (
            "return => return largest *"
        ),
        "These are levels or rounded weights: the scales are asked for.": [
            lambda w, n: rounded_to(w, my_best_scales(w, n), n),
            lambda w, n: my_best_scales(w, n)[:, None] * torch.arange(-n, n + 1),
        ],
        "The shape is (out, 1); (out,) is asked for.": "[None])[0] => [None])[0][:, None]",
        "Every scale has to be above 0, also that of a row of zeros.": [
            "torch.where(longest > 0, longest, 1.0) => longest",
            "0.1, => 0.0,",
            "return => return -",
        ],
    },
    also_right=[
        lambda w, n: my_best_scales(w.double(), n).numpy(),
        lambda w, n: [*my_best_scales(w, n)],
    ],
)


def my_columns(weight, upper, scales, largest):
    """Only later columns can still change, so each error is passed on to them.

    `exact` is a copy: a view would change with the column, and no error would be left.
    """
    weight = weight.clone()
    for c in range(weight.shape[1]):
        exact = weight[:, c].clone()
        weight[:, c] = (exact / scales).round().clamp(-largest, largest) * scales
        error = (exact - weight[:, c]) / upper[c, c]
        weight[:, c + 1 :] -= torch.outer(error, upper[c, c + 1 :])
    return weight


def columns_from_the_left(weight, upper, scales, largest):
    """Nothing in place: each column collects what the errors before it sent; a list will do."""
    found, sent = [], torch.zeros(0, len(weight))
    for c, column in enumerate(weight.t()):
        exact = column - upper[:c, c] @ sent
        found.append(rounded_to(exact[:, None], scales, largest)[:, 0])
        sent = torch.cat([sent, (exact - found[-1])[None] / upper[c, c]])
    return torch.stack(found, 1).tolist()


def weights_and_factors():
    """The first two can be followed by hand; then inputs that are related, as neighbours are."""
    generator = torch.Generator().manual_seed(3)

    def case(rows, width, largest):
        inputs = torch.randn(50, width, generator=generator).cumsum(1) + 1
        upper = torch.linalg.cholesky(torch.linalg.inv(inputs.t() @ inputs), upper=True)
        weight = torch.randn(rows, width, generator=generator)
        return weight, upper, torch.linspace(0.4, 1.5, rows), largest

    return [
        (torch.tensor([[0.4, 0.3]]), torch.tensor([[1.0, -1.0], [0.0, 1.0]]), torch.ones(1), 7),
        (
            torch.tensor([[0.4, 0.8, 0.1], [-0.3, 2.1, 0.9]]),
            torch.tensor([[2.0, -2.0, -1.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]),
            torch.tensor([1.0, 0.5]),
            7,
        ),
        case(3, 4, 2),
        case(5, 6, 1),
    ]


def same_columns(result, expected):
    """As `same`; of numbers near 1, float32 may leave 1e-7 where 0 is right."""
    if not isinstance(result, Tensor) or result.shape != expected.shape:
        return False
    result, expected = (each.detach().cpu().double() for each in (result, expected))
    return torch.allclose(result, expected, rtol=1e-6, atol=1e-6)


check_columns = Exercise(
    my_columns,
    read_again='"May one weight make up for another\'s error?"',
    cases=weights_and_factors(),
    given=lambda *case: "weight = {}, upper = {}, scales = {}, largest = {}".format(
        *map(short, case)
    ),
    play=tensor_of,
    same=same_columns,
    hint="For each column: keep a copy, round it, divide what is off by upper[c, c], and subtract "
    "torch.outer(that, upper[c, c + 1 :]) from the columns after it.",
    wrong={
        "No error arrives. From the first column to the last, pass on row c of upper, "
        "upper[c, c + 1 :] (below its diagonal are zeros), and round a clone of the column as it "
        "is by then: weight[:, c] is a view.": [
            (
                "weight = weight.clone() => first, weight = weight, weight.clone()",
                "exact = weight[ => exact = first[",
            ),
            "weight[:, c].clone() => weight[:, c]",
            "torch.outer(error, upper[c, c + 1 :]) => torch.outer(error, upper[c + 1 :, c])",
            lambda w, u, s, n: my_columns(w.flip(1), u.flip(0, 1), s, n).flip(1),
        ],
        "Right up to precision: keep the dtype of weight, float32.": [
            "return weight => return weight.half()",
            "return weight => return weight.bfloat16()",
        ],
        "Sign: a later column changes by -e * upper[c, d] / upper[c, c].": "] -= => ] +=",
        "upper[c, c] stands below the line: divide the error by it, once.": [
            " / upper[c, c] => ",
            " / upper[c, c] =>  * upper[c, c]",
            " / upper[c, c] =>  / upper[c, c] ** 2",
        ],
        "Only the next column changes; all that follow have to.": "c + 1 :] => c + 1 : c + 2]",
        "Write the rounded column into the weight; the errors change only the later columns.": (
            ("weight[:, c] = ( => rounded = (", "exact - weight[:, c] => exact - rounded")
        ),
        "The scales come with the weights, one for each row: keep them for all columns.": [
            "weight[:, c].clone() => "
            "weight[:, c].clone(); scales = weight.abs().amax(1).clamp(min=1e-9) / largest",
            "weight = weight.clone() => "
            "weight = weight.clone(); scales = (weight.abs().amax(1) / largest).half().float()",
            "weight[:, c].clone() => "
            "weight[:, c].clone(); scales = weight[:, c:].abs().amax(1).clamp(min=1e-9) / largest",
            "weight = weight.clone() => "
            "weight = weight.clone(); scales = weight.abs().amax(1).clamp(min=1e-9) / largest",
        ],
        "Not rounded: find whole multiples of the scales that come in.": [
            lambda w, *more: w,
            "weight[:, c].clone() => "
            "weight[:, c].clone(); scales = exact.abs().clamp(min=1e-9) / largest",
        ],
        "Each row has its own scale.": [
            "weight.clone() => weight.clone(); scales = scales[:1]",
            "weight.clone() => weight.clone(); scales = scales.mean()",
        ],
        "Rows of U, not of U^T U.": "weight.clone() => weight.clone(); upper = upper.t() @ upper",
        "The shape is (in, out); (out, in) is asked for.": "return weight => return weight.t()",
        SEVERAL: "return weight => return weight, scales",
        "The column stays as rounded: change the columns from c + 1 on.": "c + 1 :] => c:]",
        "The error is what rounding and clipping take, in weights, from the column as it is.": [
            (
                "weight = weight.clone() => first, weight = weight, weight.clone()",
                "(exact - => (first[:, c] -",
            ),
            "(exact - weight[:, c]) => (exact - weight[:, c]) / scales",
            "(exact - weight[:, c]) => (exact - (exact / scales).round() * scales)",
        ],
        "The last column is to be rounded, too.": [
            "shape[1]) => shape[1] - 1)",
            lambda w, *more: torch.cat([my_columns(w, *more)[:, :-1], w[:, -1:]], 1),
        ],
        "From the first column to the last: later columns make up for earlier ones.": [
            "range(weight.shape[1]) => reversed(range(weight.shape[1]))",
            lambda w, u, s, n: my_columns(w.flip(1), u.t().flip(0, 1), s, n).flip(1),
        ],
        "Errors of the first rounding, passed on all at once: go column by column.": (
            lambda w, u, s, n: rounded_to(
                w - (w - rounded_to(w, s, n)) / u.diagonal() @ u.triu(1), s, n
            )
        ),
        "Clamp what is rounded only: a later column may grow beyond the ends before its turn.": [
            "c + 1 :]) => c + 1 :]); weight = weight.clamp(*largest * scales[None, :, None] * "
            "torch.tensor([-1, 1])[:, None, None])",
            "weight.clone() => (weight.t().clamp(-largest * scales, largest * scales).t().clone())",
        ],
        NEAREST: [".round() => .floor()", ".round() => .trunc()"],
        "These are the integers: multiply by the scales.": [
            "return weight => return weight / scales[:, None]",
            "(-largest, largest) * scales => (-largest, largest)",
        ],
        "Clamp the integers, not the values, to -largest … largest (it is {3} here).": [
            ".clamp(-largest, largest) => ",
            "clamp(-largest => clamp(-largest - 1",
            "clamp(-largest, largest) => clamp(-largest - 1, largest + 1)",
            "clamp(-largest, largest) => clamp(min(1 - largest, -1), max(largest - 1, 1))",
            "(exact / scales).round().clamp(-largest, largest) * scales => "
            "((exact / scales).round() * scales).clamp(-largest, largest)",
            "return weight => return weight.clamp(-largest, largest)",
        ],
    },
    also_right=[
        columns_from_the_left,
        lambda *case: (*my_columns(*case),),
        ("weight[:, c] = ( => q = (", "exact - weight[:, c] => exact - q", "c + 1 :] => c:]"),
    ],
)


def my_fake(values, scale, largest):
    """Round straight through first: what rounds to an end is inside, and keeps its gradient.

    `torch.where` takes the end, a constant, for what is clipped, so its gradient is 0. `clamp`
    gives the ends themselves a gradient in some versions of torch only.
    """
    steps = round_straight_through(values / scale)
    ends = steps.detach().clamp(-largest, largest)
    return torch.where(steps == ends, steps, ends) * scale


def through(value, gradient):
    """One value, with the gradient of another."""
    return gradient + (value - gradient).detach()


LISTED = "That is a list: give back one tensor, through which a gradient can flow."
NEW = "The values that came in have changed: give back a new tensor."
CHOICE = "torch.where(steps == ends, steps, ends)"


def with_gradient(attempt, numbers, scale, largest):
    """What comes out, and its gradient or None."""
    values = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    found = attempt(values, scale, largest)
    if isinstance(found, list | tuple):
        raise NotYet(LISTED)
    if not isinstance(found, Tensor):
        return found
    if values.tolist() != numbers:
        raise NotYet(NEW)
    if not found.requires_grad or found.shape != values.shape:
        return found.detach(), None
    factors = torch.arange(2.0, 2.0 + values.numel(), dtype=torch.float64).view(values.shape)
    (found * factors).sum().backward()
    return found.detach(), None if values.grad is None else values.grad / factors


check_fake = Exercise(
    my_fake,
    read_again='"Can a net learn to live with three values?"',
    cases=[  # in the second, ±0.7 round to an end from inside and ±0.8 from outside
        ([0.1, -0.33], 0.25, 127),
        ([-0.9, -0.8, -0.7, -0.3, 0.1, 0.33, 0.4, 0.6, 0.7, 0.8, 2.0], 0.25, 3),
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
        "Zeros, and no gradient: round values / scale, and detach only the difference.": (
            lambda v, s, n: v.detach() * 0
        ),
        "The values are right; the gradient is that of a staircase, 0: no weight would learn.": (
            "round_straight_through => torch.round"
        ),
        "The values are right; what is clipped gets a gradient, too: clip outside detach().": (
            lambda v, s, n: through(my_fake(v, s, n), v)
        ),
        "The values are right, but not the gradient of what rounds to an end: clamp's gradient "
        "at the ends differs between torch versions: choose with `torch.where`.": [
            "steps == ends => steps.abs() < largest",
            "steps == ends => (steps == ends) & (steps > -largest)",
        ],
        "The values are right, but minimum and maximum share the gradient of what equals an end: "
        "half of it goes to the end. Choose with `torch.where`.": (
            f"{CHOICE} => steps.minimum(0 * ends + largest).maximum(0 * ends - largest)"
        ),
        "The values are right; what rounds to an end from outside keeps its gradient: round first, "
        "then clip.": "(values / scale) => ((values / scale).clamp(-largest, largest))",
        "Nothing is clipped here, where largest is {2} (in other cases it is another): "
        "clamp the integers, not the values, to -largest … largest.": [
            f"{CHOICE} => steps",
            lambda v, s, n: my_fake(v.clamp(-n, n), s, 1000),
        ],
        "largest is {2} here: clamp to -{2} … {2}.": "(-largest, largest) => (-1, 1)",
        "The smallest integer is -largest, not one below it.": [
            "(-largest, => (-largest - 1,",
            f"{CHOICE} => steps.clamp(-largest - 1, largest)",
        ],
        "What is clipped becomes the end on its own side: -largest or largest.": [
            f"{CHOICE} => torch.where(steps == ends, steps, largest)",
            f"{CHOICE} => torch.where(steps == ends, steps, 0.0)",
            "-largest, largest => max=largest",
        ],
        "Nothing is rounded: the forward has to round.": "round_straight_through => ",
        "Not rounded, and no gradient: detach rounded - values, not values - rounded.": [
            lambda v, s, n: ((v / s).round() + (v / s - (v / s).round()).detach()) * s,
            "round_straight_through( => (lambda x: x.round() + (x - x.round()).detach())(",
        ],
        "To the values add (rounded - values), detached; the other way round doubles the error.": (
            "round_straight_through( => (lambda x: x + (x - x.round()).detach())("
        ),
        NEAREST: [
            "(values / scale) => (values / scale - 0.5)",
            lambda v, s, n: my_fake(v - v.sign() * s / 2, s, n),
            lambda v, s, n: through((v / s).trunc().clamp(-n, n) * s, v),
            (
                "round_straight_through( => (lambda x: x + (x.trunc() - x).detach())(",
                f"{CHOICE} => steps.clamp(-largest, largest)",
            ),
        ],
        "Divide by the scale first: the integers count steps.": [
            "values / scale => values",
            "values / scale => values * scale",
            ("values / scale => values * scale", "ends) * scale => ends) / scale"),
        ],
        "The values are right; the gradient is 1, whatever the scale: to the values themselves add "
        "the difference, detached.": [
            lambda v, s, n: through(my_fake(v, s, n), my_fake(v, s, n) / s),
            lambda v, s, n: through(my_fake(v, s, n), my_fake(v, s, n) * s),
        ],
        "The values are right; the gradient is -1: detach rounded - values, not the values.": (
            lambda v, s, n: v.detach() + (my_fake(v, s, n).detach() - v)
        ),
        LISTED: [
            lambda v, s, n: my_fake(v, s, n).tolist(),
            lambda v, s, n: (*my_fake(v, s, n),),
        ],
        NEW: lambda v, s, n: setattr(v, "data", my_fake(v, s, n).detach()) or v,
        "These are the integers: multiply by the scale again.": [
            " * scale => ",
            lambda v, s, n: (v / s).round().clamp(-n, n).long(),
        ],
    },
    also_right=[
        lambda v, s, n: torch.fake_quantize_per_tensor_affine(v.float(), s, 0, -n, n).double(),
        lambda v, s, n: through(my_fake(v, s, n), v * ((v / s).round().abs() <= n)),
    ],
)
