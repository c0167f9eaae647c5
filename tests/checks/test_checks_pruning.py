"""The checks accept right answers however they are written and explain wrong ones."""

from statistics import mean

import pytest
import torch
from solutions import pruning as solutions
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from mpcourse.checks import check_choice, check_global_masks, check_nonzeros
from mpcourse.pruning import count_nonzeros, layer_masks


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_global_masks(lambda parameters, sparsity: ...).state == "not attempted"
    assert check_nonzeros(lambda model: ...).state == "not attempted"
    assert check_choice(lambda rows, least: ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_global_masks(solutions.my_global_masks).state == "correct"
    assert check_nonzeros(solutions.my_nonzeros).state == "correct"
    assert check_choice(solutions.my_choice).state == "correct"


# Other right answers


def masks_by_topk(parameters, sparsity):
    weights = {name: p for name, p in parameters.items() if p.dim() > 1}
    row = torch.cat([weight.abs().reshape(-1) for weight in weights.values()])
    mask = torch.zeros_like(row)  # 0 and 1 will do as well
    mask[row.topk(len(row) - round(sparsity * len(row))).indices] = 1
    pieces = mask.split([weight.numel() for weight in weights.values()])
    return {n: piece.view_as(w) for (n, w), piece in zip(weights.items(), pieces, strict=True)}


def count_all(model):
    return sum(left for left, _ in count_nonzeros(model).values())


def choice_by_sorting(rows, least):
    ways = {(row["sparsity"], row["criterion"]) for row in rows}
    found = []
    for sparsity, criterion in ways:
        of_way = [
            r["tuned"] for r in rows if (r["sparsity"], r["criterion"]) == (sparsity, criterion)
        ]
        if mean(of_way) >= least:
            found.append((sparsity, mean(of_way), criterion))
    return (sorted(found)[-1][2], sorted(found)[-1][0]) if found else None


def test_other_right_answers_are_correct():
    assert check_global_masks(masks_by_topk).state == "correct"
    assert check_nonzeros(count_all).state == "correct"
    assert check_choice(choice_by_sorting).state == "correct"


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


def small_kept(parameters, sparsity):
    inverse = {name: 1 / p for name, p in weights_of(parameters).items()}
    return solve(inverse, sparsity)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (per_layer, "a threshold of its own"),
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


def linears(model):
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


def by_masks(model):
    return sum(int(m.sum()) for m in model.buffers()) or solutions.my_nonzeros(model)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda m: sum(p.count_nonzero().item() for p in m.parameters()), "and the biases"),
        (
            lambda m: sum(p.count_nonzero().item() for p in m.parameters() if p.dim() > 1),
            "weight_orig is whole",
        ),
        (
            lambda m: sum(v.count_nonzero().item() for v in m.state_dict().values()),
            "weight_mask and biases",
        ),
        (
            lambda m: sum(v.count_nonzero().item() for v in m.state_dict().values() if v.dim() > 1),
            "state_dict() has",
        ),
        (lambda m: sum(layer.weight.numel() for layer in linears(m)), "Every weight counts"),
        (
            lambda m: sum((layer.weight == 0).sum().item() for layer in linears(m)),
            "Those are the zeros",
        ),
        (lambda m: sum(int(b.sum()) for b in m.buffers()), "Only masks are counted"),
        (by_masks, "Only masks are counted"),
        (
            lambda m: sum(
                c.weight.count_nonzero().item() for c in m.children() if isinstance(c, nn.Linear)
            ),
            "Layers may lie deeper",
        ),
        (
            lambda m: solutions.my_nonzeros(m) / sum(layer.weight.numel() for layer in linears(m)),
            "That is a share",
        ),
        (lambda m: m[0].weight.count_nonzero().item(), "Add up"),
    ],
)
def test_wrong_counts_are_explained(attempt, words):
    assert words in said(check_nonzeros(attempt))


def choose(value, column="tuned", key=None, pick=max):
    def attempt(rows, least):
        seeds = {}
        for row in rows:
            seeds.setdefault((row["criterion"], row["sparsity"]), []).append(row[column])
        fine = [way for way, values in seeds.items() if value(values) >= least]
        order = key or (lambda way, values: (way[1], value(values)))
        return pick(fine, key=lambda way: order(way, seeds[way]), default=None)

    return attempt


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (choose(mean, "pruned"), "before fine-tuning"),
        (choose(max), "A lucky seed"),
        (choose(min), "Every seed has to reach it"),
        (choose(mean, key=lambda way, values: (-way[1], mean(values))), "fewer weights"),
        (choose(mean, key=lambda way, values: mean(values)), "most accurate"),
        (choose(mean, key=lambda way, values: (way[1], -mean(values))), "another criterion"),
        (lambda rows, least: solutions.my_choice(rows, least) or ("random", 0.9), "return None"),
        (lambda rows, least: (solutions.my_choice(rows, least) or (0, 0))[::-1], "in this order"),
        (lambda rows, least: None, "A way exists"),
        (lambda rows, least: solutions.my_choice(rows, least)[0], "of these the sparsest"),
    ],
)
def test_wrong_choices_are_explained(attempt, words):
    assert words in said(check_choice(attempt))


def test_a_check_leaves_its_cases_as_they_were():
    def spoil(model):
        vector = parameters_to_vector(model.parameters())
        vector_to_parameters(torch.zeros_like(vector), model.parameters())
        return 0

    said(check_nonzeros(spoil))
    assert check_nonzeros(solutions.my_nonzeros).state == "correct"
