"""Exercises of page `sparse_training`: a schedule, kept zeros, regrowth."""

import copy

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import Tensor, nn

from mpcourse.exercises.exercise import Exercise, NotYet, leaving_alone, same, short
from mpcourse.sparse_training import cubic_sparsity

# 1. The cubic schedule


def my_cubic(step, begin, end, initial, final):
    """Cube the share of the time that is left. Hold the step: else the cube runs on outside."""
    held = min(max(step, begin), end)
    left = (end - held) / (end - begin)
    return final + (initial - final) * left**3


check_cubic = Exercise(
    my_cubic,
    read_again='"All at once, or bit by bit?"',
    cases=[
        (140, 100, 200, 0.0, 0.8),
        (100, 100, 200, 0.2, 0.8),
        (200, 100, 200, 0.2, 0.8),
        (301, 0, 400, 0.5, 0.9),
        (40, 100, 200, 0.2, 0.8),
        (260, 100, 200, 0.2, 0.8),
    ],
    given="step {}, begin {}, end {}, initial {}, final {}",
    hint="final + (initial - final) * (share of the time that is left) ** 3",
    wrong={
        "As much in the second half as in the first: cube what is left.": "left**3 => left",
        "A cube is the share times itself, and once more times itself.": [
            f"left**3 => {power}" for power in ("left**2", "left * 3", "left ** (1 / 3)")
        ],
        "Cube what is left: no cube root of what has passed.": (
            "final + (initial - final) * left**3 => "
            "initial + (final - initial) * (1 - left) ** (1 / 3)"
        ),
        "That comes down to final from above: the sign.": "(initial - final) => (final - initial)",
        "That starts slowly and ends fast; the cubic schedule is the other way round.": (
            "final + (initial - final) * left => initial + (final - initial) * (1 - left)"
        ),
        "That falls from final to initial; the distance to final is what shrinks.": (
            "final + (initial - final) => initial + (final - initial)"
        ),
        "The time counts from begin: (step - begin) / (end - begin).": [
            f"(end - held) / (end - begin) => {left}"
            for left in ("1 - step / end", "1 - (held - begin) / end")
        ],
        "It starts at `initial`, not at 0.": "(initial - final) => -final",
        "At begin it is `initial`: the starting value is wrong.": [
            f"(initial - final) => {sign}initial" for sign in ("-", "")
        ],
        "That is the share of the time left, cubed: how much of the distance to final is left.": (
            "final + (initial - final) * left => left"
        ),
        "From initial on it rises by final - initial.": "(initial - final) * => initial - final *",
        "The share of the time is cubed, not the distance.": "final) * left => final)**3 * left",
        "Cube the time that is left, not the weights that are.": (
            "final + (initial - final) * left**3 => "
            "1 - ((1 - final)**(1/3) + ((1 - initial)**(1/3) - (1 - final)**(1/3)) * left)**3"
        ),
        "Hold the step between begin and end, and count the time from begin: `step - begin`.": [
            "end - held => end - step",
            "min(max(step, begin), end) => max(step, begin)",
            "min(max( => max(min(",
            "min(max(step, begin), end) => step if begin < step <= end else begin",
            "min(max(step, begin), end) => step if begin <= step <= end else end",
            lambda step, begin, *given: my_cubic(step, begin, *given) if step >= begin else 0.0,
        ],
        "Each step has a sparsity of its own: round neither the step nor the result.": [
            "max(step, begin) => max(step // 2 * 2, begin)",
            "max(step, begin) => max(step // 10 * 10, begin)",
            lambda *given: round(my_cubic(*given), 2),
        ],
        "An equal share of the weights left goes each time: cube the time, no power of weights.": (
            "final + (initial - final) * left**3 => "
            "1 - (1 - initial) * ((1 - final) / (1 - initial)) ** (1 - left)"
        ),
        "`//` cuts to whole numbers: a share needs `/`.": [
            "(end - held) / => (end - held) //",
            "(end - held) / (end - begin) => 1 - (held - begin) // (end - begin)",
        ],
        "A share, from 0 to 1: no percentage.": lambda *given: 100 * my_cubic(*given),
        "The share of zeros is asked, not of what is left.": lambda *given: 1 - my_cubic(*given),
    },
    also_right=[
        lambda t, b, e, s, f: s + (f - s) * (1 - (1 - min(max((t - b) / (e - b), 0), 1)) ** 3),
        lambda t, b, e, s, f: cubic_sparsity(t, final=f, begin=b, end=e, initial=s),
    ],
)

# 2. Kept zeros

TRUE_STAYS = "The mask is True where a weight stays."
IN_PLACE = "Pruned weights are not zero: change weight itself, in place."
EXACT = "Exactly 0 is asked: a tiny number is a weight still."
STAYING = "Weights that stay keep the values that the step gave them."
MEMORY = "{} still remembers the pruned weights: zero there all that has the weight's shape."
ENTRIES_ONLY = "Weights that stay keep their memory: zero the pruned entries only."
COUNTS = "{} has another shape than the weight: it is not of single weights; keep it."
ANOTHER_TENSOR = "{} is gone, or another tensor now: change the one that is there, in place."
OTHER_DATA = "{}.data is another tensor now: change the values in place, as with mul_."
MASK_CHANGED = "The mask has changed: the next step needs it as it was."
NOTHING_ELSE = "Only weight and optimizer.state[weight] are asked: something else has changed."
GRADIENT = "The gradient stays as it is: regrowth looks at it, also where no weight is."
NO_GRAD = "Changing a parameter in place needs torch.no_grad()."
NO_ENTRY = "Without momentum the optimizer remembers nothing: there may be no such entry."
SHAPE = "Adafactor has a number for each row, one for each column: ask for the weight's shape."
RETURN_NOTHING = "Nothing is to be returned: the optimizer goes on with what you changed in place."


def my_keep(optimizer, weight, mask):
    """Zero the pruned weights and what is remembered of each. Else the next step moves them."""
    with torch.no_grad():
        weight.mul_(mask)
        for value in optimizer.state.get(weight, {}).values():
            if isinstance(value, torch.Tensor) and value.shape == mask.shape:
                value.mul_(mask)


OPTIMIZERS = {
    "SGD without momentum": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adam with amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adam, with one weight, pruned": lambda p: torch.optim.Adam(p, lr=0.01),
}


def three_steps(attempt, name):
    """Three steps of an optimizer, the attempt after each: all that is left has to be right."""
    weight = nn.Parameter(torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]))
    other = nn.Parameter(torch.ones(2, 3))  # of the same shape: which memory belongs to whom?
    mask = torch.tensor([[True, False, True], [False, True, True]])
    slope = torch.tensor([[0.5, 1.0, -1.0], [2.0, -0.25, 1.5]])
    if "one weight" in name:  # its count of steps has as many numbers
        weight, mask, slope = nn.Parameter(weight[:1, 1:2].detach()), mask[:1, 1:2], slope[:1, 1:2]
    optimizer, seen = OPTIMIZERS[name]([other, weight]), []
    for step in range(3):
        weight.grad, other.grad = slope * (1 + step), torch.ones(2, 3)
        optimizer.step()
        weight.data[-1, 1:2] *= step  # a weight that stays may be zero
        wanted, remembered = weight.detach() * mask, memory(optimizer, weight)
        masked = {k: v * mask if v.shape == mask.shape else 1 * v for k, v in remembered.items()}
        before = copy.deepcopy(beside(optimizer, weight, mask, other))
        places = {name: value.data_ptr() for name, value in remembered.items()}
        places["weight"] = weight.data_ptr()
        result = attempt(optimizer, weight, mask)
        if not same(mask, before[3]):
            raise NotYet(MASK_CHANGED)
        look_at_weight(weight.detach(), wanted, mask)
        look_at_memory(memory(optimizer, weight), remembered, masked, mask)
        for name, value in {"weight": weight, **remembered}.items():
            if value.data_ptr() != places[name]:  # as after `weight.data = weight.data * mask`
                raise NotYet(OTHER_DATA.format(name))
        if not same(beside(optimizer, weight, mask, other), before):
            raise NotYet(NOTHING_ELSE if same(weight.grad, before[0]) else GRADIENT)
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
    if same(weight, wanted) and not weight[~mask].any():
        return
    why = STAYING
    if same(weight, wanted):
        why = EXACT
    elif weight[~mask].any():
        why = IN_PLACE if weight[mask].any() else TRUE_STAYS
    raise NotYet(f"expected weight {short(wanted)}", f"got {short(weight)}", why)


def look_at_memory(found, remembered, wanted, mask):
    for key, expected in wanted.items():
        there = found.get(key)
        if there is not None and same(there, expected) and there[expected == 0].any():
            raise NotYet(f"in {key}:", EXACT)
        if there is not None and not same(there, expected):
            why = MEMORY.format(key) if (found[key] * ~mask).any() else ENTRIES_ONLY
            why = why if expected.shape == mask.shape else COUNTS.format(key)
            raise NotYet(f"expected {key} {short(expected)}", f"got {short(found[key])}", why)
        if found.get(key) is not remembered[key]:
            raise NotYet(ANOTHER_TENSOR.format(key))


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
        EXACT: [
            "weight.mul_(mask) => weight[~mask] = 1e-12",
            "value.mul_(mask) => value[~mask] = 1e-12",
        ],
        OTHER_DATA.format("weight"): "weight.mul_(mask) => weight.data = weight.data * mask",
        OTHER_DATA.format("momentum_buffer"): "value.mul_(mask) => value.data = value.data * mask",
        STAYING: "weight.mul_(mask) => weight.zero_()",
        MEMORY.format("momentum_buffer"): [
            "value.mul_(mask) => pass",
            "state.get(weight, => state_dict()['state'].get(0,",  # of the first parameter
        ],
        **{
            MEMORY.format(n): f"if is => if value is not optimizer.state[weight].get({n!r}) and is"
            for n in ("square_avg", "max_exp_avg_sq")
        },
        ENTRIES_ONLY: "e.mul_(mask) => e.zero_()",
        COUNTS.format("step"): [
            (
                " and value.shape == mask.shape => ",
                "value.mul_(mask) => value.mul_(mask if value.dim() else 0)",
            ),
            (
                "value.shape == mask.shape => value.numel() == mask.numel()",
                "value.mul_(mask) => value.mul_(mask.view(value.shape))",
            ),
        ],
        ANOTHER_TENSOR.format("momentum_buffer"): [
            "weight.mul_(mask) => weight.mul_(mask); optimizer.state.clear()",
            'value.mul_(mask) => optimizer.state[weight]["momentum_buffer"] = value * mask',
        ],
        NO_ENTRY: (
            "optimizer.state.get(weight, {}).values() => "
            "[optimizer.state[weight]['momentum_buffer']]"
        ),
        GRADIENT: "weight.mul_(mask) => weight.mul_(mask); weight.grad.mul_(mask)",
        NO_GRAD: "with torch.no_grad() => if True",
        NOTHING_ELSE: (
            "weight.mul_(mask) => [p.mul_(mask) for p in optimizer.param_groups[0]['params']]"
        ),
        SHAPE: [
            "value.shape == mask.shape => value.dim()",
            "value.shape == mask.shape => value.numel() > 1",
        ],
        MASK_CHANGED: "weight.mul_(mask) => weight.mul_(mask); mask.zero_()",
        RETURN_NOTHING: lambda o, weight, mask: my_keep(o, weight, mask) or (weight, o),
        "Three are handed in": lambda optimizer, weight: None,
    },
    errors={
        "leaf": NO_GRAD,
        "but 3 were given": "Three are handed in: the optimizer, the weight, the mask.",
        "KeyError": NO_ENTRY,
        r"with shape \[\d|does not match": SHAPE,
        "broadcast shape|too many indices|0-d tensor": (
            "The count of steps has no dimensions: it stays."
        ),
    },
    also_right=[
        ("weight.mul_(mask) => weight[~mask] = 0", "value.mul_(mask) => value[~mask] = 0"),
    ],
)

# 3. One regrowth step

NONE_CHANGED = "A tensor that was handed in has changed: return new ones."
CHANCE = "Each call grows others: no chance, the gradient says what grows."
NO_THRESHOLD = "With count 0 nothing goes: there is no smallest of none for a threshold."
MASK_OF_BOOL = "The next exchange gets the new mask: torch.bool, as the old one; `~` needs it."


def my_regrow(mask, weight, gradient, count):
    """First drop the smallest weights that there are, then grow where the gradient is largest.

    Only what has stayed keeps its value, also where a weight goes and comes back at once.
    """
    left = mask.clone().flatten()
    sizes = weight.abs().masked_fill(~mask, torch.inf)
    left[sizes.flatten().argsort(stable=True)[:count]] = False
    new = left.clone()
    wanted = gradient.abs().flatten().masked_fill(left, -torch.inf)
    new[wanted.argsort(descending=True, stable=True)[:count]] = True
    return new.view(mask.shape), weight * left.view(mask.shape)


def exchanged(attempt, *case):
    """A world whose next exchange takes the mask that this one returns; no chance decides."""
    others = [short(attempt(*copy.deepcopy(case))) for _ in range(5)]
    result = attempt(*case)
    if {*others} != {short(result)}:
        raise NotYet(CHANCE)
    mask = result[0] if isinstance(result, tuple | list) and result else None
    if isinstance(mask, Tensor) and mask.dtype != torch.bool and same(mask, mask.bool()):
        raise NotYet(MASK_OF_BOOL)
    return result


def regrow_by_sorting(mask, weight, gradient, count):
    """With numbers in place of masks, and a list as the result."""
    there = [i for i, kept in enumerate(mask.flatten().tolist()) if kept]
    sizes, slopes = weight.abs().flatten().tolist(), gradient.abs().flatten().tolist()
    left = sorted(there, key=lambda i: sizes[i])[count:]
    others = [i for i in range(mask.numel()) if i not in left]
    grown = sorted(others, key=lambda i: -slopes[i])[:count]
    new, values = torch.zeros_like(mask).flatten(), torch.zeros_like(weight).flatten()
    new[left + grown] = True
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
        exchange([1, 1, 1, 1, 0, 0], [0.9, -0.05, 0.1, -0.6, 0, 0], [1, -2, 1, 3, -7, 1.5], 2),
        exchange(
            [[0, 1], [1, 0], [1, 1]], [[0, 5], [-4, 0], [1, -2]], [[-9, 1], [2, 8], [3, 4]], 1
        ),
        exchange([0, 1, 1, 1], [0, -3, 2, 1], [4, 1, -2, 3], 0),
        exchange([1, 1, 1, 1, 0], [0.2, 0.5, -0.3, 0.9, 0], [9, 0.1, 0.2, 3, 10], 1),
        exchange([1, 1, 1, 0], [0, 0, 0.9, 0], [5, 4, 1, 2], 1),  # whichever goes, comes back
        exchange([1, 1, 1, 1], [0.9, -0.05, 0.1, -0.6], [3, 0, 0, 1], 2),  # no slope, and back
        exchange([1, 1, 1, 0, 0], [0.9, -0.2, 0.5, 0.4, 0], [1, 2, 1, -5, 3], 1),  # 0.4: of before
    ],
    given=lambda mask, weight, gradient, count: (
        f"mask {mask.int().tolist()}, weight {weight.tolist()}, gradient {gradient.tolist()} "
        f"and count {count}"
    ),
    play=leaving_alone(NONE_CHANGED, exchanged),
    hint="Drop the `count` smallest there are; grow `count` where |gradient| is largest, from 0.",
    wrong={
        "What is dropped becomes zero in the new weight.": (
            "weight * left.view(mask.shape) => weight"
        ),
        "One is dropped and grows again: it starts at zero too.": "weight * left => weight * new",
        "Steep ways up and down are both wanted: the size of the gradient.": [
            f"gradient.abs() => ({sign}gradient)" for sign in ("", "-")
        ],
        "The weight says what goes, the gradient what grows.": [
            f"weight.abs() => {size}" for size in ("gradient.abs()", "(weight * gradient).abs()")
        ],
        "Where no weight is, weight * gradient is zero, and a masked gradient, too.": [
            "gradient.abs() => (gradient * mask).abs()",
            "t.abs() => t.abs() * weight.abs()",
        ],
        CHANCE: "gradient.abs() => torch.rand_like(gradient)",
        "The mask is True where a weight is.": (
            "mask.clone() => (~mask)",
            "(~mask, torch.inf) => (mask, torch.inf)",
        ),
        "A weight of the mask may be zero: ask the mask what is there.": [
            "~mask => weight == 0",
            ("mask.clone() => (weight != 0)", "~mask => weight == 0"),
            "left[sizes.flatten().argsort(stable=True)[:count]] = False => left[:] = False; "
            "left[(weight * mask).abs().flatten().topk(int(mask.sum()) - count).indices] = True",
        ],
        "`weight[mask]` counts its places anew.": [
            "sizes.flatten() => weight[mask].abs()",
            (
                "sizes.flatten() => weight[mask].abs()",
                ".masked_fill(left, -torch.inf) => [~left]",
            ),
        ],
        "`gradient[~left]` counts its places anew.": ".masked_fill(left, -torch.inf) => [~left]",
        "`argsort` sorts each row by itself: flatten before.": [
            ".flatten() => ",
            "left[sizes.flatten().argsort(stable=True)[:count]] = False => "
            "left.view(mask.shape).scatter_(-1, sizes.argsort(-1)[..., :count], False)",
        ],
        "-2 is not small: drop by absolute value.": ["weight.abs() => weight", "t.abs() => t"],
        "What is there cannot grow: then fewer weights come than go.": [
            *(f".masked_fill(left, -torch.inf) => {kept_out}" for kept_out in ("", "* ~left")),
            "wanted.argsort(descending=True, stable=True)[:count] => "
            "(gradient.abs().flatten() * ~left).topk(count).indices",
        ],
        "Dropped, and nothing has grown: as many come as go.": "] = True => ] = False",
        "Grown, and nothing has gone: as many go as come.": "[:count]] = False => [:count]]",
        MASK_OF_BOOL: [
            f"new.view(mask.shape), => new.view(mask.shape).{kind}()," for kind in ("float", "int")
        ],
        "Two are asked: the new mask and the new weight.": lambda *given: my_regrow(*given)[0],
        "First the new mask, then the new weight.": lambda *given: my_regrow(*given)[::-1],
        "What grows starts at zero, also where an old value stands outside the mask.": (
            "weight * left.view(mask.shape) => weight * (left.view(mask.shape) | ~mask)"
        ),
        "What grows starts at zero, not at its gradient: the optimizer moves it.": [
            "weight * left.view(mask.shape) => "
            f"weight * left.view(mask.shape) {sign} gradient * (new & ~left).view(mask.shape)"
            for sign in ("+", "-", "+ 0.1 *", "- 0.1 *")
        ],
        "The smallest go, not the largest.": "weight.abs() => (1 / weight.abs())",
        "The steepest grow, not the flattest.": "gradient.abs() => (1 / gradient.abs())",
        "Both have the shape of the mask.": lambda *given: [t.flatten() for t in my_regrow(*given)],
        "With count 0 nothing goes or grows; `[-0:]` is everything, and `[0 - 1]` the last.": [
            "wanted.argsort(descending=True, stable=True)[:count] => wanted.argsort()[-count:]",
            "argsort(stable=True)[:count] => argsort(descending=True)[-count:]",
            (
                "left[sizes.flatten().argsort(stable=True)[:count]] = False => "
                "left &= sizes.flatten() > sizes.flatten().sort()[0][count - 1]"
            ),
            lambda m, w, g, count: my_regrow(m, w, g, count) if count else (m | True, w * 0),
        ],
        NO_THRESHOLD: [
            "left[sizes.flatten().argsort(stable=True)[:count]] = False => "
            f"left &= sizes.flatten() > sizes.flatten().{threshold}"
            for threshold in ("kthvalue(count)[0]", "sort()[0][:count][-1]")
        ],
        "Exactly `count` go: others stay, even if they are as small, or zero.": (
            "left[sizes.flatten().argsort(stable=True)[:count]] = False => "
            "left &= sizes.flatten() > max([-1, *sizes.flatten().sort()[0][:count]])"
        ),
        "Exactly `count` go, and as many grow: not one more.": [
            f"[:count]]{new} => [: count + 1]]{new}" for new in ("", " = False", " = True")
        ],
        "Weights that are not there are no smallest weights: drop out of those in the mask.": (
            ".masked_fill(~mask, torch.inf) => "
        ),
        "What is dropped may grow again, if its gradient is large enough.": (
            "masked_fill(left, => masked_fill(mask.flatten(),"
        ),
        "Nothing changes: drop first, as what grows is zero.": lambda m, w, *_: (m.clone(), w * m),
        NONE_CHANGED: "mask.clone() => mask",
    },
    errors={
        "Dimension out of range": "Not along one dimension, but out of all: flatten before.",
        "number k out of range|index -1 is out of bounds": NO_THRESHOLD,
    },
    also_right=[regrow_by_sorting],
)
