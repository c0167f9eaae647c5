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


def gone(step, begin, end):
    return min(max((step - begin) / (end - begin), 0), 1)


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
        "That is linear: as much in the last quarter as in the first.": (
            lambda t, b, e, s, f: f + (s - f) * (1 - gone(t, b, e))
        ),
        "The part that is left is cubed, not squared.": (
            lambda t, b, e, s, f: f + (s - f) * (1 - gone(t, b, e)) ** 2
        ),
        "That starts slowly and ends fast; the cubic schedule is the other way round.": (
            lambda t, b, e, s, f: s + (f - s) * gone(t, b, e) ** 3
        ),
        "The time counts from begin: (step - begin) / (end - begin).": (
            lambda t, b, e, s, f: f + (s - f) * (1 - t / e) ** 3
        ),
        "It starts at `initial`, not at 0.": lambda t, b, e, s, f: my_cubic(t, b, e, 0.0, f),
        "The way is final - initial, not final.": (
            lambda t, b, e, s, f: s + f * my_cubic(t, b, e, 0.0, 1.0)
        ),
        "Before begin it is `initial`, after end `final`: hold the step between them.": (
            lambda t, b, e, s, f: f + (s - f) * (1 - (t - b) / (e - b)) ** 3
        ),
        "That is the share that stays; sparsity is the share that is zero.": (
            lambda *given: 1 - my_cubic(*given)
        ),
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
NO_GRAD = "Changing a parameter in place needs torch.no_grad()."
NO_ENTRY = "Without momentum the optimizer remembers nothing: there may be no such entry."
RETURN_NOTHING = "Nothing is to be returned: the optimizer goes on with what you changed in place."
STATE = "optimizer.state[weight] maps names to what is remembered: tensors, numbers, None."


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
        wanted, remembered = weight.detach() * mask, memory(optimizer, weight)
        masked = {k: v * mask if v.dim() else v.clone() for k, v in remembered.items()}
        beside = [weight.grad, other.detach(), *memory(optimizer, other).values()]
        before = [value.clone() for value in beside]
        result = attempt(optimizer, weight, mask)
        look_at_weight(weight.detach(), wanted, mask)
        look_at_memory(memory(optimizer, weight), remembered, masked)
        beside = [weight.grad, other.detach(), *memory(optimizer, other).values()]
        if not same(beside, before):
            raise NotYet("a gradient, another parameter or its memory has changed:", NOTHING_ELSE)
        if isinstance(result, Tensor):
            raise NotYet(RETURN_NOTHING)
        seen += [weight.detach().clone(), copy.deepcopy(memory(optimizer, weight))]
    return seen


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


def look_at_memory(found, remembered, wanted):
    for key, expected in wanted.items():
        if key not in found:
            raise NotYet(IS_GONE.format(key))
        if not same(found[key], expected):
            why = MEMORY if found[key].any() else ENTRIES_ONLY
            why = why if expected.dim() else COUNTS.format(key)
            raise NotYet(f"expected {key} {short(expected)}", f"got {short(found[key])}", why)
        if found[key] is not remembered[key]:
            raise NotYet(ANOTHER_TENSOR.format(key))


def keeping_with(change, weight_too=True):
    """Zeros in the weight, then something else with the optimizer."""

    @torch.no_grad()
    def attempt(optimizer, weight, mask):
        if weight_too:
            weight.mul_(mask)
        change(optimizer, weight, mask)

    return attempt


def each_memory(change, dim):
    """`change(value)` for each tensor of so many dimensions that is remembered of the weight."""

    def attempt(optimizer, weight, mask):
        for value in memory(optimizer, weight).values():
            if value.dim() in dim:
                change(value)

    return attempt


def zero_others(optimizer, weight, mask):
    my_keep(optimizer, weight, mask)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.mul_(parameter is weight)


def every_memory(optimizer, weight, mask):
    for parameter in optimizer.param_groups[0]["params"]:
        for value in memory(optimizer, parameter).values():
            value.mul_(mask if value.shape == mask.shape else 1)


def replaced_memory(optimizer, weight, mask):
    for key, value in memory(optimizer, weight).items():
        optimizer.state[weight][key] = value * mask if value.dim() else value


def without_gradient(optimizer, weight, mask):
    my_keep(optimizer, weight, mask)
    weight.grad = None


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
    hint=STATE,
    correct="The zeros stay, the memory is clean, and nothing else has changed.",
    wrong={
        TRUE_STAYS: keeping_with(lambda o, weight, mask: weight.mul_(~mask), weight_too=False),
        IN_PLACE: lambda optimizer, weight, mask: weight * mask,
        STAYING: lambda optimizer, weight, mask: weight.data.fill_(0),
        MEMORY: keeping_with(lambda *given: None),
        ENTRIES_ONLY: keeping_with(each_memory(torch.zero_, dim=(0, 2))),
        COUNTS.format("step"): lambda *given: (
            my_keep(*given),
            each_memory(torch.zero_, dim=(0,))(*given),
        ),
        IS_GONE.format("momentum_buffer"): keeping_with(
            lambda optimizer, weight, mask: optimizer.state.clear()
        ),
        ANOTHER_TENSOR.format("momentum_buffer"): keeping_with(replaced_memory),
        NO_ENTRY: keeping_with(lambda o, w, mask: o.state[w]["momentum_buffer"].mul_(mask)),
        NO_GRAD: lambda optimizer, weight, mask: weight.mul_(mask),
        NOTHING_ELSE: [keeping_with(zero_others), keeping_with(every_memory), without_gradient],
        RETURN_NOTHING: lambda optimizer, weight, mask: (
            my_keep(optimizer, weight, mask) or weight.detach()
        ),
    },
    errors={"leaf": NO_GRAD, "KeyError": NO_ENTRY},
    also_right=[keep_by_index],
)

# 3. A proximal step

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


check_proximal = Exercise(
    my_proximal,
    read_again='"L1: which way ends at zero?"',
    cases=[
        (torch.tensor([0.5, 0.05, -0.3, 0.0], dtype=torch.float64), 0.1),
        (torch.tensor([-2.0, 1.0, 0.75, -0.25], dtype=torch.float64), 1.0),
        (torch.tensor([0.3, -0.3], dtype=torch.float64), 0.0),
        (torch.tensor([[0.02, -0.4], [0.9, -0.01]], dtype=torch.float64), 0.2),
    ],
    given=lambda weight, threshold: f"weight {weight.tolist()} and threshold {threshold}",
    play=leaving_alone(CHANGED),
    hint="|weight| - threshold, not below 0, with the sign of the weight.",
    wrong={
        "A step along the sign jumps over zero: stop there.": lambda w, t: w - t * w.sign(),
        "Negative weights move up: towards zero, not down.": lambda w, t: w - t,
        "Negative weights stay negative: give the sign back.": lambda w, t: (w - t).clamp(min=0),
        "Give the sign back.": lambda w, t: (w.abs() - t).clamp(min=0),
        "The small ones are right; the large ones move by the threshold too.": (
            lambda w, t: torch.where(w.abs() > t, w, 0.0)
        ),
        "That keeps what should go: clamp the rest instead.": lambda w, t: w.clamp(-t, t),
        "That is weight decay: it shrinks, and never gives a zero.": lambda w, t: w * (1 - t),
        "Away from zero: subtract from the size.": lambda w, t: w.sign() * (w.abs() + t),
        "|weight| - threshold, not below 0": lambda w, t: w * 2,
        CHANGED: lambda w, t: w.copy_(my_proximal(w, t)),
    },
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


def regrowing(
    size=lambda weight, gradient: weight.abs(),
    want=torch.abs,
    pool=lambda mask, left: ~left,
    start=lambda weight, gradient: torch.zeros_like(weight),
    missing=torch.inf,
):
    """The solution with one part done in another way."""

    def attempt(mask, weight, gradient, count):
        left, sizes = mask.clone().flatten(), size(weight, gradient)
        sizes = sizes if missing is None else sizes.masked_fill(~mask, missing)
        left[sizes.flatten().argsort(stable=True)[:count]] = False
        left = left.view(mask.shape)
        new = left.clone().flatten()
        wanted = want(gradient).masked_fill(~pool(mask, left), -torch.inf).flatten()
        new[wanted.argsort(descending=True, stable=True)[:count]] = True
        new = new.view(mask.shape)
        grown = start(weight, gradient)
        return new, torch.where(left, weight, torch.where(new, grown, 0.0))

    return attempt


def regrow_in_place(mask, weight, gradient, count):
    new, values = my_regrow(mask, weight, gradient, count)
    mask.copy_(new)
    return new, values


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
    ],
    given=lambda mask, weight, gradient, count: (
        f"mask {mask.int().tolist()}, weight {weight.tolist()}, gradient {gradient.tolist()} "
        f"and count {count}"
    ),
    play=leaving_alone(NONE_CHANGED),
    hint="Drop the `count` smallest there are; grow `count` where |gradient| is largest, from 0.",
    wrong={
        "What grows starts at zero, also where a weight was dropped before.": (
            lambda *given: (my_regrow(*given)[0], given[1])
        ),
        "One is dropped and grows again: it starts at zero too.": regrowing(
            start=lambda weight, gradient: weight
        ),
        "What grows starts at zero, whatever its gradient.": [
            regrowing(start=lambda weight, gradient, by=by: by * gradient)
            for by in (1, -1, -0.1, 0.1, -0.01)
        ],
        "A steep way down is wanted as well: the size of the gradient.": regrowing(
            want=lambda gradient: gradient
        ),
        "Grow where the size of the gradient is largest.": regrowing(want=torch.neg),
        "That grows where the gradient is smallest.": regrowing(want=lambda g: -g.abs()),
        "A weight of -2 is not small: drop by absolute value.": regrowing(lambda weight, g: weight),
        "The smallest weights are dropped.": regrowing(lambda weight, g: -weight.abs()),
        "That drops by |weight * gradient|; RigL drops the smallest weights.": regrowing(
            lambda weight, gradient: (weight * gradient).abs()
        ),
        "What is there cannot grow: then fewer weights come than go.": regrowing(
            pool=lambda mask, left: torch.ones_like(mask)
        ),
        "Weights that are not there are no smallest weights: drop out of those in the mask.": (
            regrowing(missing=None)
        ),
        "What is dropped may grow again, if its gradient is large enough.": regrowing(
            pool=lambda mask, left: ~mask
        ),
        "That drops only: as many weights grow.": regrowing(pool=lambda mask, left: mask & ~mask),
        "Return two tensors: the new mask and the new weight.": lambda *given: my_regrow(*given)[0],
        "The mask first, then the weight.": lambda *given: my_regrow(*given)[::-1],
        "grow `count` where |gradient| is largest": lambda mask, weight, *_: (mask, weight),
        NONE_CHANGED: regrow_in_place,
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
    cases=[
        (1000, 100, 10),
        (1200, 300, 4),
        (800, 80, 1),
        (5000, 5000, 7),
        (1003, 100, 10),
    ],
    given="weights {}, left {}, every {}",
    hint="Three parts of `left` each; in one step of `every`, one part is `weights`.",
    wrong={
        "A backward takes two parts more: three in all.": lambda w, n, e: n + (w - n) / e,
        "The dense gradient takes the place of the sparse one.": lambda w, n, e: 3 * n + w / e,
        "In a step that grows, only the gradient of the weights is dense.": (
            lambda w, n, e: 3 * n + 3 * (w - n) / e
        ),
        "The dense gradient is needed in one step of `every`, not in each.": (
            lambda w, n, e: 2 * n + w
        ),
        "In one step of `every` the gradient of all weights is needed.": lambda w, n, e: 3 * n,
        "Zeros are skipped: count the weights that are left.": lambda w, n, e: 3 * w,
        "One step of `every` grows: that counts one step more.": (
            lambda w, n, e: (3 * n * e + 2 * n + w) / (e + 1)
        ),
        "That is the work of `every` steps: divide by them.": (lambda w, n, e: 3 * n * e + w - n),
        "Divide by /: // drops the fraction.": lambda w, n, e: 3 * n + (w - n) // e,
        "Those are FLOPs: a multiply-add counts once here.": lambda w, n, e: (
            6 * n + 2 * (w - n) / e
        ),
    },
    also_right=[lambda w, n, e: sum(2 * n + (n if step % e else w) for step in range(e)) / e],
)
