"""Exercises of page `sparse_training`: a schedule, kept zeros, a proximal step, regrowth, work."""

import copy

import torch
from torch import Tensor, nn

from mpcourse.exercises.exercise import Exercise, NotYet, leaving_alone, same, short
from mpcourse.sparse_training import cubic_sparsity, soft_threshold

# 1. The cubic schedule


def my_cubic(step, begin, end, initial, final):
    """Find the share of the time that is left, between 0 and 1, and cube it.

    At `begin` all of it is left and the sparsity is `initial`; at `end` nothing is, and it is
    `final`. Holding the step between the two keeps the schedule flat before and after; without it
    the cube runs on below `initial` and above `final`.
    """
    held = min(max(step, begin), end)
    left = (end - held) / (end - begin)
    return final + (initial - final) * left**3


def cubic_by_parts(step, begin, end, initial, final):
    if step <= begin:
        return initial
    if step >= end:
        return final
    return initial + (final - initial) * (1 - (1 - (step - begin) / (end - begin)) ** 3)


check_cubic = Exercise(
    my_cubic,
    read_again='"All at once, or bit by bit?"',
    cases=[
        (150, 100, 200, 0.0, 0.8),
        (100, 100, 200, 0.2, 0.8),
        (200, 100, 200, 0.2, 0.8),
        (300, 0, 400, 0.5, 0.9),
        (40, 100, 200, 0.2, 0.8),
        (260, 100, 200, 0.2, 0.8),
    ],
    given="step {}, begin {}, end {}, initial {}, final {}",
    hint="final + (initial - final) * (share of the time that is left) ** 3",
    wrong={
        "As much in the second half as in the first: cube what is left.": "left**3 => left",
        "The part that is left is cubed, not squared.": "left**3 => left**2",
        "That starts slowly and ends fast; the cubic schedule is the other way round.": (
            "final + (initial - final) * left => initial + (final - initial) * (1 - left)"
        ),
        "That falls from final to initial; the distance to final is what shrinks.": (
            "final + (initial - final) => initial + (final - initial)"
        ),
        "Divide by /: // drops the fraction.": "/ (end - begin) => // (end - begin)",
        "The time counts from begin: (step - begin) / (end - begin).": (
            [f"(end - held) / (end - begin) => 1 - {t} / end" for t in ("step", "(held - begin)")]
            + ["(end - held) / (end - begin) => max(0, 1 - step / (end - begin))"]
        ),
        "It starts at `initial`, not at 0.": [
            "(initial - final) => -final",
            "return => return 0.0 if step < begin else",
        ],
        "The way is final - initial, not final.": (
            "final + (initial - final) * left**3 => initial + final * (1 - left**3)"
        ),
        "Before begin it is `initial`, after end `final`: hold the step between them.": (
            [f"min(max(step, begin), end) => {held}" for held in ("step", "max(step, begin)")]
            + ["return => return final if step < begin else"]
        ),
        "That is the share that stays; sparsity is the share that is zero.": (
            lambda *given: 1 - my_cubic(*given)
        ),
        "A share, from 0 to 1: no percentage.": lambda *given: 100 * my_cubic(*given),
        "(share of the time that is left) ** 3": lambda *given: 0.123,
    },
    also_right=[
        cubic_by_parts,
        lambda t, b, e, s, f: cubic_sparsity(t, final=f, begin=b, end=e, initial=s),
    ],
)

# 2. Kept zeros

TRUE_STAYS = "The mask is True where a weight stays."
IN_PLACE = "Pruned weights are not zero: change weight itself, in place."
STAYING = "Weights that stay keep the values that the step gave them."
MEMORY = "The weight is zero now; once it is given back, it would move by what is remembered."
ENTRIES_ONLY = "Weights that stay keep their memory: zero the pruned entries only."
COUNTS = "{} has another shape than the weight: it counts steps; keep it."
IS_GONE = "{} is gone: weights that stay need what is remembered of them."
ANOTHER_TENSOR = "{} is another tensor now: change the one that is there, in place."
NOTHING_ELSE = "only weight and optimizer.state[weight] are asked."
NOT_ASKED = "grad, requires_grad, a hook, the mask, a setting or another parameter has changed:"
DOES_NOT_FIT = "The count of steps has no dimensions: the mask does not fit it, and it stays."
NO_GRAD = "Changing a parameter in place needs torch.no_grad()."
NO_ENTRY = "Without momentum the optimizer remembers nothing: there may be no such entry."
RETURN_NOTHING = "Nothing is to be returned: the optimizer goes on with what you changed in place."


def my_keep(optimizer, weight, mask):
    """Zero the pruned weights, and every memory of them that has a value for each weight.

    Zeroing the weight alone lasts until the next step, which moves it by what is remembered. Adam
    also keeps a count of steps, a tensor without dimensions: it belongs to all weights and stays.
    """
    with torch.no_grad():
        weight.mul_(mask)
        for value in optimizer.state.get(weight, {}).values():
            if isinstance(value, torch.Tensor) and value.shape == mask.shape:
                value.mul_(mask)


OPTIMIZERS = {
    "SGD without momentum": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def three_steps(attempt, name):
    """Three steps of an optimizer, the attempt after each: all that is left has to be right."""
    weight = nn.Parameter(torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]))
    other = nn.Parameter(torch.ones(2, 3))  # of the same shape: which memory belongs to whom?
    mask = torch.tensor([[True, False, True], [False, True, True]])
    optimizer, seen = OPTIMIZERS[name]([weight, other]), []
    for step in range(3):
        slope = torch.tensor([[0.5, 1.0, -1.0], [2.0, -0.25, 1.5]])
        weight.grad, other.grad = slope * (1 + step), torch.ones(2, 3)
        optimizer.step()
        weight.data[1, 1] *= step  # a weight that stays may be zero
        wanted, remembered = weight.detach() * mask, memory(optimizer, weight)
        masked = {k: v * mask if v.dim() else v.clone() for k, v in remembered.items()}
        before = copy.deepcopy(beside(optimizer, weight, mask, other))
        result = attempt(optimizer, weight, mask)
        look_at_weight(weight.detach(), wanted, mask)
        look_at_memory(memory(optimizer, weight), remembered, masked, mask)
        if not same(beside(optimizer, weight, mask, other), before):
            raise NotYet(NOT_ASKED, NOTHING_ELSE)
        if result is not None:
            raise NotYet(RETURN_NOTHING)
        seen += [weight.detach().clone(), copy.deepcopy(memory(optimizer, weight))]
    return seen


def beside(optimizer, weight, mask, other):
    """What is not asked for: gradients and their hooks, the mask, settings, another parameter."""
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    of_weight = weight.grad, weight.requires_grad, bool(weight._backward_hooks)
    return [*of_weight, mask, settings, other.detach(), memory(optimizer, other)]


def memory(optimizer, parameter):
    """The tensors that are remembered of a parameter, by name."""
    state = optimizer.state.get(parameter, {})
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def look_at_weight(weight, wanted, mask):
    if same(weight, wanted):
        return
    why = STAYING
    if weight[~mask].any():
        why = IN_PLACE if weight[mask].any() else TRUE_STAYS
    raise NotYet(f"expected weight {short(wanted)}", f"got {short(weight)}", why)


def look_at_memory(found, remembered, wanted, mask):
    for key, expected in wanted.items():
        if key not in found:
            raise NotYet(IS_GONE.format(key))
        if not same(found[key], expected):
            why = MEMORY if (found[key] * ~mask).any() else ENTRIES_ONLY
            why = why if expected.dim() else COUNTS.format(key)
            raise NotYet(f"expected {key} {short(expected)}", f"got {short(found[key])}", why)
        if found[key] is not remembered[key]:
            raise NotYet(ANOTHER_TENSOR.format(key))


def keep_by_index(optimizer, weight, mask):
    weight.data[~mask] = 0
    for value in optimizer.state[weight].values():
        if torch.is_tensor(value) and value.dim():
            value[~mask] = 0


check_keep = Exercise(
    my_keep,
    read_again='"How do you keep it at zero?"',
    cases=[(name,) for name in OPTIMIZERS],
    given="{}, after each of its steps",
    play=three_steps,
    hint="optimizer.state[weight] maps names to what is remembered: tensors, numbers, None.",
    correct="The zeros stay, the memory is clean, and nothing else has changed.",
    wrong={
        TRUE_STAYS: "weight.mul_(mask) => weight.mul_(~mask)",
        IN_PLACE: "weight.mul_(mask) => weight * mask",
        STAYING: "weight.mul_(mask) => weight.zero_()",
        MEMORY: "value.mul_(mask) => pass",
        ENTRIES_ONLY: [f"e.mul_(mask) => e.{way}" for way in ("zero_()", "mul_(weight != 0)")],
        COUNTS.format("step"): (
            " and value.shape == mask.shape => ",
            "value.mul_(mask) => value.mul_(mask if value.dim() else 0)",
        ),
        DOES_NOT_FIT: " and value.shape == mask.shape => ",
        IS_GONE.format("momentum_buffer"): (
            "weight.mul_(mask) => weight.mul_(mask); optimizer.state.clear()"
        ),
        ANOTHER_TENSOR.format("momentum_buffer"): (
            'value.mul_(mask) => optimizer.state[weight]["momentum_buffer"] = value * mask'
        ),
        NO_ENTRY: (
            "optimizer.state.get(weight, {}).values() => "
            "[optimizer.state[weight]['momentum_buffer']]"
        ),
        NO_GRAD: "with torch.no_grad() => if True",
        NOTHING_ELSE: [
            "weight.mul_(mask) => [p.mul_(mask) for p in optimizer.param_groups[0]['params']]",
            "optimizer.state.get(weight, {}).values() => "
            "[value for each in optimizer.state.values() for value in each.values()]",
            "weight.mul_(mask) => weight.mul_(mask); weight.grad = None",
            "weight.mul_(mask) => weight[mask.logical_not_()] = 0",
            "with torch.no_grad() => if weight.requires_grad_(False) is weight",
            "weight.mul_(mask) => weight.mul_(mask).requires_grad_().register_hook(mask.mul)",
            "weight.mul_(mask) => weight.mul_(mask); optimizer.param_groups[0]['weight_decay'] = 0",
        ],
        RETURN_NOTHING: lambda o, weight, mask: my_keep(o, weight, mask) or (weight, o),
    },
    errors={
        "leaf": NO_GRAD,
        "KeyError": NO_ENTRY,
        "broadcast shape|too many indices": DOES_NOT_FIT,
    },
    also_right=[keep_by_index],
)

# 3. A proximal step

ONE_NUMBER = "max and if take a single number: clamp(min=0) looks at each entry by itself."
CHANGED = "The tensor that was handed in has changed: return a new one."


def my_proximal(weight, threshold):
    """Shrink the size of each weight by the threshold, not below zero, and give the sign back.

    A step along the sign would carry a small weight over zero to the other side. The clamp is what
    stops it, and so it is the clamp that makes zeros.
    """
    return weight.sign() * (weight.abs() - threshold).clamp(min=0)


def proximal_by_cases(weight, threshold):
    result = torch.zeros_like(weight)
    result[weight > threshold] = weight[weight > threshold] - threshold
    result[weight < -threshold] = weight[weight < -threshold] + threshold
    return result.numpy()


def same_nan(result, expected):
    """As `same`, but NaN is like NaN: a wrong answer that gives it has its own words."""
    pair = [
        each.nan_to_num(99.0) if isinstance(each, Tensor) else each for each in (result, expected)
    ]
    return same(*pair)


check_proximal = Exercise(
    my_proximal,
    read_again='"L1: which way ends at zero?"',
    cases=[
        (torch.tensor([0.5, 0.05, -0.3, 0.0], dtype=torch.float64), 0.1),
        (torch.tensor([-2.0, 1.0, 0.75, -0.25], dtype=torch.float64), 1.0),
        (torch.tensor([0.3, -0.3, 0.0], dtype=torch.float64), 0.0),
        (torch.tensor([[0.02, -0.4], [0.9, -0.01]], dtype=torch.float64), 0.2),
    ],
    given=lambda weight, threshold: f"weight {weight.tolist()} and threshold {threshold}",
    play=leaving_alone(CHANGED),
    same=same_nan,
    hint="|weight| - threshold, not below 0, with the sign of the weight.",
    wrong={
        "A step along the sign jumps over zero: stop there.": ".clamp(min=0) => ",
        "Negative weights move up: towards zero, not down.": [
            lambda w, t: w - t,
            lambda w, t: torch.where(w.abs() < t, 0.0, w - t),
        ],
        "Negative weights stay negative: give the sign back.": lambda w, t: (w - t).clamp(min=0),
        "Give the sign back.": "weight.sign() * => ",
        "The small ones are right; the large ones move by the threshold too.": (
            lambda w, t: torch.where(w.abs() > t, w, 0.0)
        ),
        "The large ones are right; what is below the threshold becomes zero.": (
            lambda w, t: torch.where(w.abs() > t, w - t * w.sign(), w)
        ),
        ONE_NUMBER: [
            lambda w, t: w - t if w > t else w + t if w < -t else 0 * w,
            lambda w, t: w.sign() * max(w.abs() - t, 0),
            lambda w, t: w.sign() * torch.max(w.abs() - t, 0),
        ],
        "That keeps what should go: clamp the rest instead.": lambda w, t: w.clamp(-t, t),
        "That is weight decay: it shrinks, and never gives a zero.": lambda w, t: w * (1 - t),
        "Away from zero: subtract from the size.": "- threshold => + threshold",
        "0 / 0 is no number: a weight of 0 stays 0.": [
            lambda w, t: w * (1 - t / w.abs()).clamp(min=0),
            "weight.sign() => weight / weight.abs()",
        ],
        "|weight| - threshold, not below 0": lambda w, t: w * 2,
        CHANGED: lambda w, t: w.copy_(my_proximal(w, t)),
    },
    errors={"ambiguous|only integer tensors": ONE_NUMBER},
    also_right=[proximal_by_cases, soft_threshold],
)

# 4. One regrowth step

NONE_CHANGED = "A tensor that was handed in has changed: return new ones."


def my_regrow(mask, weight, gradient, count):
    """First drop the smallest weights that there are, then grow where the gradient is largest.

    Weights that are not there have size 0, so infinity keeps them out of the smallest. What stays
    cannot grow, so minus infinity keeps it out of the largest. All that grows starts at zero: only
    what has stayed keeps its value, also where a weight goes and comes back at once.
    """
    left = mask.clone().flatten()
    sizes = weight.abs().masked_fill(~mask, torch.inf)
    left[sizes.flatten().argsort(stable=True)[:count]] = False
    new = left.clone()
    wanted = gradient.abs().flatten().masked_fill(left, -torch.inf)
    new[wanted.argsort(descending=True, stable=True)[:count]] = True
    return new.view(mask.shape), weight * left.view(mask.shape)


def regrow_by_sorting(mask, weight, gradient, count):
    """With numbers in place of masks, and a mask of 0 and 1 as the result."""
    there = [i for i, kept in enumerate(mask.flatten().tolist()) if kept]
    sizes, slopes = weight.abs().flatten().tolist(), gradient.abs().flatten().tolist()
    left = sorted(there, key=lambda i: sizes[i])[count:]
    others = [i for i in range(mask.numel()) if i not in left]
    grown = sorted(others, key=lambda i: -slopes[i])[:count]
    new, values = torch.zeros(mask.numel()), torch.zeros_like(weight).flatten()
    new[left + grown] = 1
    values[left] = weight.flatten()[left]
    return [new.view(mask.shape), values.view(mask.shape)]


def exchange(there, values, slopes, count):
    """A case: mask, weight and gradient as tensors."""
    weight, gradient = (torch.tensor(each, dtype=torch.float64) for each in (values, slopes))
    return torch.tensor(there).bool(), weight, gradient, count


check_regrow = Exercise(
    my_regrow,
    read_again='"Can weights grow back on purpose?"',
    cases=[
        exchange([1, 1, 1, 1, 0, 0], [0.9, -0.05, 0.1, -0.6, 0, 0], [0.1, 0.2, 0.1, 3, -7, 5], 2),
        exchange(
            [1, 1, 1, 1, 0, 0], [0.9, -0.05, 0.1, -0.6, 0, 0], [0.1, -0.2, 0.1, 0.3, -0.7, 0.15], 2
        ),
        exchange(
            [[0, 1], [1, 0], [1, 1]], [[0, 5], [-4, 0], [0.3, -2]], [[-9, 1], [2, 8], [3, 4]], 1
        ),
        exchange([0, 1, 1, 1], [0, -3, 2, 1], [4, 1, -2, 3], 0),
        exchange([1, 1, 1, 1, 0], [0.2, 0.5, -0.3, 0.9, 0], [9, 0.1, 0.2, 3, 10], 1),
        exchange([1, 1, 1, 0], [0, 0, 0.9, 0], [5, 4, 1, 2], 1),  # whichever goes, comes back
    ],
    given=lambda mask, weight, gradient, count: (
        f"mask {mask.int().tolist()}, weight {weight.tolist()}, gradient {gradient.tolist()} "
        f"and count {count}"
    ),
    play=leaving_alone(NONE_CHANGED),
    hint="Drop the `count` smallest there are; grow `count` where |gradient| is largest, from 0.",
    wrong={
        "What grows starts at zero, also where a weight was dropped before.": (
            "weight * left.view(mask.shape) => weight"
        ),
        "One is dropped and grows again: it starts at zero too.": "weight * left => weight * new",
        "What grows starts at zero, whatever its gradient.": [
            f"weight * left => {by} * gradient * (new & ~left).view(mask.shape) + weight * left"
            for by in (1, -1, -0.1, 0.1, -0.01)
        ],
        "A steep way down is wanted as well: the size of the gradient.": (
            "gradient.abs() => gradient"
        ),
        "Grow where the size of the gradient is largest.": "gradient.abs() => gradient.neg()",
        "That grows where the gradient is smallest.": "gradient.abs() => gradient.abs().neg()",
        "A missing weight is 0, and so is weight * gradient: grow by the gradient alone.": (
            "gradient.abs() => (weight * gradient).abs()"
        ),
        "A weight of -2 is not small: drop by absolute value.": "weight.abs() => weight",
        "The smallest weights are dropped.": "weight.abs() => weight.abs().neg()",
        "That drops by |weight * gradient|; RigL drops the smallest weights.": (
            "weight.abs() => (weight * gradient).abs()"
        ),
        "Several may be as small: drop `count` of them, no more.": (
            "left[sizes.flatten().argsort(stable=True)[:count]] = False => "
            "left &= sizes.flatten() > sizes.flatten().sort()[0][count - 1] if count else True"
        ),
        "It may be there and zero: ask the mask.": "(~mask, torch.inf) => (weight == 0, torch.inf)",
        "What is there cannot grow: then fewer weights come than go.": (
            ".masked_fill(left, -torch.inf) => "
        ),
        "Weights that are not there are no smallest weights: drop out of those in the mask.": (
            ".masked_fill(~mask, torch.inf) => "
        ),
        "What is dropped may grow again, if its gradient is large enough.": (
            "masked_fill(left, => masked_fill(mask.flatten(),"
        ),
        "That drops only: as many weights grow.": "[:count]] = True => [:0]] = True",
        "With a count of 0, [-count:] takes everything: sort the other way, take [:count].": (
            "argsort(descending=True, stable=True)[:count] => argsort(stable=True)[-count:]"
        ),
        "On a matrix argsort sorts each row: flatten first.": (
            "mask.clone().flatten() => mask.clone()",
            "sizes.flatten() => sizes",
            "gradient.abs().flatten() => gradient.abs()",
        ),
        "Return two tensors: the new mask and the new weight.": lambda *given: my_regrow(*given)[0],
        "The mask first, then the weight.": lambda *given: my_regrow(*given)[::-1],
        "grow `count` where |gradient| is largest": lambda mask, weight, *_: (mask, weight),
        NONE_CHANGED: "mask.clone() => mask",
    },
    also_right=[regrow_by_sorting],
)

# 5. The work of a step


def my_work(weights, left, every):
    """Three parts of a step skip the zeros; once in `every` steps one of them cannot.

    A forward, the gradient of the inputs and that of the weights take a multiply-add for each
    weight that is there. Where a step grows weights, the gradient of all weights takes the place of
    the sparse one: weights - left more, shared by `every` steps.
    """
    return 3 * left + (weights - left) / every


check_work = Exercise(
    my_work,
    read_again='"What would sparse kernels save?"',
    cases=[(1000, 100, 20), (1200, 300, 4), (800, 80, 1), (5000, 5000, 7), (1003, 100, 10)],
    given="weights {}, left {}, every {}",
    hint="Three parts of `left` each; in one step of `every`, one part is `weights`.",
    wrong={
        "A backward takes two parts more: three in all.": [f"3 * left => {n} * left" for n in "12"],
        "The dense gradient takes the place of the sparse one.": "(weights - left) / => weights /",
        "The other steps need the gradient of the weights that are there.": (
            [f"3 * left + (weights - left) => {n} * left + {3 - n} * weights" for n in (2, 1)]
        ),
        "In a step that grows, only the gradient of the weights is dense.": (
            [
                f"+ (weights - left) => + {n}"
                for n in ("3 * (weights - left)", "2 * (weights - left)")
            ]
            + ["+ (weights - left) => + 3 * weights"]
        ),
        "A step that grows has a forward and the gradient of the inputs, too.": (
            [f"3 * left => 3 * left - {n} * left / every" for n in (2, 1)]
        ),
        "The dense gradient is needed in one step of `every`, not in each.": " / every => ",
        "In one step of `every` the gradient of all weights is needed.": (
            " + (weights - left) / every => "
        ),
        "Zeros are skipped: count the weights that are left.": lambda w, n, e: 3 * w,
        "One step of `every` grows: that counts one step more.": "/ every => / (every + 1)",
        "That is the work of `every` steps: divide by them.": lambda w, n, e: e * my_work(w, n, e),
        "Divide by /: // drops the fraction.": "/ every => // every",
        "Those are FLOPs: a multiply-add counts once here.": lambda *given: 2 * my_work(*given),
    },
    also_right=[lambda w, n, e: sum(2 * n + (n if step % e else w) for step in range(e)) / e],
)
