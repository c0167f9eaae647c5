"""The checks accept right answers however they are written and explain wrong ones."""

import pytest
import torch
from solutions import pruning as solutions
from torch import nn

from mpcourse.checks import check_global_masks, check_remove, check_snip
from mpcourse.pruning import layer_masks, snip


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


CHECKS = {
    "my_global_masks": check_global_masks,
    "my_snip": check_snip,
    "my_remove": check_remove,
}


@pytest.mark.parametrize("name", CHECKS)
def test_stubs_are_not_attempted_and_solutions_are_correct(name):
    assert CHECKS[name](lambda *_: ...).state == "not attempted"
    assert CHECKS[name](...).state == "not attempted"
    assert CHECKS[name](getattr(solutions, name)).state == "correct"
    assert "takes a function" in said(CHECKS[name](5))
    assert "TypeError" in said(CHECKS[name](lambda: None))


# Other right answers


def masks_by_topk(parameters, sparsity):
    weights = {name: p for name, p in parameters.items() if p.dim() > 1}
    row = torch.cat([weight.abs().reshape(-1) for weight in weights.values()])
    mask = torch.zeros_like(row)  # 0 and 1 will do as well
    mask[row.topk(len(row) - round(sparsity * len(row))).indices] = 1
    pieces = mask.split([weight.numel() for weight in weights.values()])
    return {n: piece.view_as(w) for (n, w), piece in zip(weights.items(), pieces, strict=True)}


def snip_by_backward(model, images, labels):
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    return snip(model)  # by the names of the layers


def snip_normalised(model, images, labels):
    scores = solutions.my_snip(model, images, labels)
    total = sum(score.sum() for score in scores.values())  # as in the paper
    return {name: score / total for name, score in scores.items()}


def snip_of_the_sum(model, images, labels):
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels, reduction="sum").backward()
    weights = {n: p for n, p in model.named_parameters() if p.dim() > 1}
    return {name: (p * p.grad).abs() for name, p in weights.items()}  # with a graph


def remove_by_cat(first, second, unit):
    with torch.no_grad():
        smaller = nn.Linear(first.in_features, first.out_features - 1, dtype=torch.float64)
        reader = nn.Linear(first.out_features - 1, second.out_features, dtype=torch.float64)
        for old, new in ((first.weight, smaller.weight), (first.bias, smaller.bias)):
            new.copy_(torch.cat([old[:unit], old[unit + 1 :]]))
        columns = second.weight
        reader.weight.copy_(torch.cat([columns[:, :unit], columns[:, unit + 1 :]], dim=1))
        constant = torch.zeros_like(first.bias)
        constant[unit] = first.bias[unit].clamp(min=0)
        reader.bias.copy_(second(constant))
    return [smaller, reader]


def remove_in_float32(first, second, unit):
    smaller, reader = (
        nn.Linear(each.in_features, each.out_features)
        for each in solutions.my_remove(first, second, unit)
    )
    right = solutions.my_remove(first, second, unit)
    smaller.load_state_dict(right[0].state_dict())
    reader.load_state_dict(right[1].state_dict())
    return smaller, reader


@pytest.mark.parametrize("attempt", [snip_by_backward, snip_normalised, snip_of_the_sum])
def test_other_right_scores_are_correct(attempt):
    assert check_snip(attempt).state == "correct"


def test_other_right_answers_are_correct():
    assert check_global_masks(masks_by_topk).state == "correct"
    assert check_remove(remove_by_cat).state == "correct"
    assert check_remove(remove_in_float32).state == "correct"


# Wrong answers


def weights_of(parameters):
    return {name: p for name, p in parameters.items() if name.endswith("weight")}


def solve(parameters, sparsity):
    return solutions.my_global_masks(parameters, sparsity)


def biases_counted(parameters, sparsity):
    renamed = {f"{name}.weight": p for name, p in parameters.items()}
    found = {n.removesuffix(".weight"): m for n, m in solve(renamed, sparsity).items()}
    return {name: found[name] for name in weights_of(parameters)}


def biases_pruned(parameters, sparsity):
    renamed = {f"{name}.weight": p for name, p in parameters.items()}
    return {n.removesuffix(".weight"): m for n, m in solve(renamed, sparsity).items()}


def biases_kept(parameters, sparsity):
    whole = {n: torch.ones_like(p).bool() for n, p in parameters.items() if n.endswith("bias")}
    return solve(parameters, sparsity) | whole


def signed(parameters, sparsity):
    lowest = min(p.min() for p in parameters.values())
    return solve({name: p - lowest for name, p in weights_of(parameters).items()}, sparsity)


def per_layer(parameters, sparsity):
    return layer_masks({name: p.abs() for name, p in weights_of(parameters).items()}, sparsity)


def index_minus_one(parameters, sparsity):
    sizes = {name: p.abs() for name, p in weights_of(parameters).items()}
    order = torch.cat([size.flatten() for size in sizes.values()]).sort().values
    threshold = order[round(sparsity * len(order)) - 1]
    return {name: size > threshold for name, size in sizes.items()}


def small_kept(parameters, sparsity):
    inverse = {name: 1 / p for name, p in weights_of(parameters).items()}
    return solve(inverse, sparsity)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (per_layer, "a threshold of its own"),
        (index_minus_one, "At sparsity 0 nothing goes"),
        (biases_counted, "The biases are counted in the threshold"),
        (biases_pruned, "biases"),
        (biases_kept, "return no masks for biases"),
        (signed, "compare absolute values"),
        (small_kept, "True stays"),
        (lambda p, s: {n: ~m for n, m in solve(p, s).items()}, "True stays"),
        (lambda p, s: solve(p, 1 - s) if s != 0.5 else solve(p, s), "asked is to prune it"),
        (lambda p, s: {n: w.abs() > s for n, w in weights_of(p).items()}, "not the size"),
        (lambda p, s: None, "without return"),
        (lambda p: p, "TypeError"),
        (3, "takes a function"),
    ],
)
def test_wrong_masks_are_explained(attempt, words):
    assert words in said(check_global_masks(attempt))


def scored(change):
    """The solution, each score changed."""
    return lambda *given: {n: change(s) for n, s in solutions.my_snip(*given).items()}


def by_gradient(combine):
    def attempt(model, images, labels):
        model.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        return {n: combine(p, p.grad) for n, p in model.named_parameters() if p.dim() > 1}

    return attempt


def with_old_gradients(model, images, labels):
    nn.functional.cross_entropy(model(images), labels).backward()
    return snip(model)


def of_the_outputs(model, images, labels):
    model.zero_grad()
    model(images).sum().backward()
    return snip(model)


def biases_too(model, images, labels):
    found = solutions.my_snip(model, images, labels)
    return found | {n: p.abs() for n, p in model.named_parameters() if n.endswith("bias")}


def one_for_each_layer(model, images, labels):
    return {n: s.mean() for n, s in solutions.my_snip(model, images, labels).items()}


def a_layer_less(model, images, labels):
    scores = solutions.my_snip(model, images, labels)
    return {"0.weight": scores["0.weight"]}


def after_a_step(model, images, labels):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    return {n: (p * p.grad).abs() for n, p in model.named_parameters() if n.endswith("weight")}


@torch.no_grad()
def zeroing(model, images, labels):
    with torch.enable_grad():
        scores = solutions.my_snip(model, images, labels)
    next(model.parameters()).zero_()
    return scores


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (by_gradient(lambda w, g: g.abs()), "gradient alone"),
        (by_gradient(lambda w, g: w.abs()), "weight alone"),
        (by_gradient(lambda w, g: w * g), "Some are negative"),
        (by_gradient(lambda w, g: -w * g), "Some are negative"),
        (scored(torch.square), "squares"),
        (scored(lambda s: s / s.sum()), "divided by its own sum"),
        (scored(lambda s: s * torch.nan), "take the size"),
        (scored(lambda s: s * 0), "take the size"),
        (with_old_gradients, "gradients of another batch"),
        (of_the_outputs, "cross_entropy"),
        (biases_too, "Biases stay"),
        (one_for_each_layer, "a score of its own"),
        (a_layer_less, "expected scores of 0.weight, 2.weight"),
        (zeroing, "weights have changed"),
        (after_a_step, "weights have changed"),
        (lambda m, i, t: None, "Return a dictionary"),
        (lambda m, i, t: {}, "got none"),
        (lambda m, i, t: {"0.weight": 3, "2.weight": "x"}, "a score of its own"),
        (lambda m, i, t: m.weight, "AttributeError"),
    ],
)
def test_wrong_scores_are_explained(attempt, words):
    assert words in said(check_snip(attempt))


def removing(bias_of_reader=None, row=False, column=False):
    """The solution with one part done in another way."""

    def attempt(first, second, unit):
        smaller, reader = solutions.my_remove(first, second, unit)
        with torch.no_grad():
            if bias_of_reader is not None:
                reader.bias.copy_(bias_of_reader(first, second, unit))
        return (first if row else smaller), (second if column else reader)

    return attempt


def in_place(first, second, unit):
    result = solutions.my_remove(first, second, unit)
    first.bias.data.zero_()
    return result


def without_the_bias(first, second, unit):
    smaller, reader = solutions.my_remove(first, second, unit)
    smaller.bias = first.bias
    return smaller, reader


def columns_of_the_first(first, second, unit):
    smaller = nn.Linear(2, 4, dtype=torch.float64)
    return smaller, solutions.my_remove(first, second, unit)[1]


def without_any_bias(first, second, unit):
    smaller, reader = solutions.my_remove(first, second, unit)
    smaller.bias = None
    return smaller, reader


def last_unit(first, second, unit):
    return solutions.my_remove(first, second, 3)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (removing(lambda f, s, u: s.bias), "a constant, and that is missing"),
        (removing(lambda f, s, u: s.bias + s.weight[:, u] * f.bias[u]), "through the ReLU first"),
        (removing(lambda f, s, u: s.bias + f.bias[u].clamp(min=0)), "through the unit's column"),
        (removing(column=True), "it loses a column"),
        (removing(row=True), "The first layer loses a row"),
        (columns_of_the_first, "Rows of a weight are outputs"),
        (without_the_bias, "Cut the bias as well"),
        (in_place, "have changed"),
        (last_unit, "keep their weights and biases"),
        (lambda f, s, u: (nn.ReLU(), s), "two new Linear layers"),
        (without_any_bias, "keep their weights and biases"),
        (lambda f, s, u: f, "Return the two new Linear layers"),
    ],
)
def test_wrong_removals_are_explained(attempt, words):
    assert words in said(check_remove(attempt))
