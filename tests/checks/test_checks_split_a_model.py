"""The checks accept right answers however they are written and explain wrong ones."""

import copy
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from solutions import split_a_model as solutions
from torch import nn
from torch.nn.functional import cross_entropy

from mpcourse.checks import check_parts, check_places, check_split, check_training_step
from mpcourse.checks.attempted_cuts import split_trial
from mpcourse.splitting.splits import split_sequential

CHECKS = (check_training_step, check_split, check_parts, check_places)


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_training_step(lambda *arguments: ...).state == "not attempted"
    assert check_split(lambda model, num_stages: ...).state == "not attempted"
    assert check_parts(lambda model: ...).state == "not attempted"
    assert check_places(lambda net, inputs, limit: ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_training_step(solutions.my_training_step).state == "correct"
    assert check_split(solutions.my_split).state == "correct"
    assert check_parts(solutions.my_parts).state == "correct"
    assert check_places(solutions.my_places).state == "correct"


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_no_function_is_refused(check):
    assert "takes a function" in said(check(5))
    assert check(...).state == "not attempted"


@pytest.mark.parametrize("check", CHECKS)
def test_an_error_in_the_attempt_is_shown(check):
    assert "ZeroDivisionError" in said(check(lambda *arguments: 1 / 0))
    assert "got None" in said(check(lambda *arguments: None))


# A training step


def step(front_on=0, hidden_on=1, back_on=1, labels_on=1, loss_on=None, rows_on=0):
    """A step that puts each thing on places[number]; 2 is the host."""

    def attempt(front, back, inputs, labels, first, second):
        places = first, second, "cpu"
        hidden = front.to(places[front_on])(inputs.to(places[rows_on]))
        outputs = back.to(places[back_on])(hidden.to(places[hidden_on]))
        if loss_on is not None:
            outputs = outputs.to(places[loss_on])
        loss = cross_entropy(outputs, labels.to(places[labels_on]))
        loss.backward()
        return loss

    return attempt


def with_a_module_for_the_loss(front, back, inputs, labels, first, second):
    labels, inputs = labels.to(second), inputs.to(device=first)
    model = nn.ModuleList([front.to(first), back.to(second)])
    loss = nn.CrossEntropyLoss()(model[1](model[0](inputs).to(second)), labels)
    torch.autograd.backward(loss)
    return loss


def hard_coded(front, back, inputs, labels, first, second):
    return solutions.my_training_step(front, back, inputs, labels, "cuda:0", "cuda:1")


def hard_coded_second(front, back, inputs, labels, first, second):
    second = second if second == "cpu" else "cuda:1"
    return solutions.my_training_step(front, back, inputs, labels, first, second)


def cut_off(front, back, inputs, labels, first, second):
    hidden = front.to(first)(inputs.to(first)).detach()
    loss = cross_entropy(back.to(second)(hidden.to(second)), labels.to(second))
    loss.backward()
    return loss


def no_backward(front, back, inputs, labels, first, second):
    outputs = back.to(second)(front.to(first)(inputs.to(first)).to(second))
    return cross_entropy(outputs, labels.to(second))


def twice(front, back, inputs, labels, first, second):
    solutions.my_training_step(front, back, inputs, labels, first, second)
    return solutions.my_training_step(front, back, inputs, labels, first, second)


def summed(front, back, inputs, labels, first, second):
    outputs = back.to(second)(front.to(first)(inputs.to(first)).to(second))
    loss = cross_entropy(outputs, labels.to(second), reduction="sum")
    loss.backward()
    return loss


@pytest.mark.parametrize("attempt", [step(), with_a_module_for_the_loss])
def test_other_right_steps_are_correct(attempt):
    assert check_training_step(attempt).state == "correct"


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (step(hidden_on=0), "The hidden rows have to be brought to cuda:1"),
        (step(labels_on=2), "The labels are on the host; the outputs come out on cuda:1"),
        (step(labels_on=0), "The labels are on cuda:0; the outputs come out on cuda:1"),
        (step(rows_on=2), "The inputs have to be on cuda:0"),
        (step(front_on=2), "The first part has to be on cuda:0 too"),
        (step(back_on=2), "The second part has to be on cuda:1 too"),
        (step(loss_on=0, labels_on=0), "Bring the labels to the outputs"),
        (step(back_on=0, hidden_on=0, labels_on=0), "All layers are on cuda:0: use both"),
        (
            lambda f, b, x, y, *p: solutions.my_training_step(f, b, x, y.to(p[0]), *p),
            "This copy is not needed: forward cpu -> cuda:0 (7,) 56 bytes",
        ),
        (lambda *a: solutions.my_training_step(*a).cpu(), "This copy is not needed"),
        (lambda *a: solutions.my_training_step(*a).item(), "a tensor of 0 dimensions; got 1."),
        (cut_off, "cut off from it: detach()"),
        (no_backward, "Who calls backward?"),
        (twice, "the gradient of front is not"),
        (summed, "It is cross_entropy of the outputs and the labels"),
        (hard_coded_second, "Given first 'cuda:1' and second 'cuda:0'"),
    ],
)
def test_wrong_steps_are_explained(attempt, words):
    assert words in said(check_training_step(attempt))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the first case passes")
def test_gpus_written_into_a_step_are_explained():
    assert "Use the places that come in" in said(check_training_step(hard_coded))


def test_a_step_that_asks_for_numbers_is_told_that_there_are_none():
    def attempt(*arguments):
        loss = solutions.my_training_step(*arguments)
        assert loss.item() > 0
        return loss

    assert "a pretended tensor has no numbers" in said(check_training_step(attempt))


def sizes_of(model):
    return [sum(p.numel() for p in layer.parameters()) for layer in model]


def cut(model, bounds):
    return [model[a:b] for a, b in pairwise(bounds)]


# Stages


def least(cost):
    """The split for which cost(stages) is least."""

    def attempt(model, num_stages):
        inner = combinations(range(1, len(model)), num_stages - 1)
        return min((cut(model, [0, *each, len(model)]) for each in inner), key=cost)

    return attempt


def weights_alone(stages):
    return max(sum(p.numel() for p in stage.parameters() if p.dim() > 1) for stage in stages)


def spread(stages):
    held = [sum(sizes_of(stage)) for stage in stages]
    return max(held) - min(held)


def by_layers(model, num_stages):
    bounds = [round(len(model) * i / num_stages) for i in range(num_stages + 1)]
    return cut(model, bounds)


def fill_past_the_average(model, num_stages):
    sizes, stages = sizes_of(model), [[]]
    for layer, size in zip(model, sizes, strict=True):
        stages[-1].append((layer, size))
        if sum(s for _, s in stages[-1]) >= sum(sizes) / num_stages and len(stages) < num_stages:
            stages.append([])
    return [nn.Sequential(*(layer for layer, _ in stage)) for stage in stages]


def fill_below_the_average(model, num_stages):
    sizes, bounds, total = sizes_of(model), [0], 0
    for index, size in enumerate(sizes):
        if (
            index > bounds[-1]
            and total + size > sum(sizes) / num_stages
            and len(bounds) < num_stages
        ):
            bounds.append(index)
            total = 0
        total += size
    left = num_stages - len(bounds)
    return cut(model, [*bounds, *range(len(model) - left, len(model) + 1)])


def without_the_last(model, num_stages):
    return (
        solutions.my_split(model[:-1], min(num_stages, len(model) - 1))
        if num_stages > 1
        else [model]
    )


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (by_layers, "shares out the layers evenly"),
        (fill_past_the_average, "greedy"),
        (fill_below_the_average, "greedy"),
        (without_the_last, "Layer 3, the last, is in no stage"),
        (
            lambda m, n: [*solutions.my_split(m, n - 1), nn.Sequential()] if n > 1 else [m],
            "empty",
        ),
        (lambda m, n: [m], "That makes 1 stages"),
        (lambda m, n: solutions.my_split(copy.deepcopy(m), n), "not the model's own"),
        (lambda m, n: solutions.my_split(m, n)[::-1], "in the order of the model"),
        (
            lambda m, n: [list(stage) for stage in solutions.my_split(m, n)],
            "a list of nn.Sequential",
        ),
        (lambda m, n: cut(m, [*range(n), len(m)]), "Compare all cuts"),
        (least(weights_alone), "biases are parameters too"),
        (least(spread), "as alike as can be"),
        (
            lambda m, n: [solutions.my_split(m, n), [layer.weight.numel() for layer in m]][0],
            "A layer may have no weight, as a ReLU",
        ),
    ],
)
def test_wrong_splits_are_explained(attempt, words):
    assert words in said(check_split(attempt))


def test_one_parameter_too_many_is_too_many():
    lines = split_trial(lambda model, n: cut(model, [0, 2, 3]), [4, 3, 3], 2)
    assert "got stages of [7, 3] parameters; the largest can have 6 parameters" in lines


def test_stages_may_come_in_other_containers():
    for kind in (tuple, nn.ModuleList, lambda stages: nn.Sequential(*stages)):
        attempt = lambda m, n, kind=kind: kind(solutions.my_split(m, n))  # noqa: E731
        assert check_split(attempt).state == "correct"


def test_the_course_s_own_split_is_correct():
    assert check_split(lambda model, n: split_sequential(model, n)).state == "correct"


# Parts


def fresh(model):
    widths = [(model.fc1, 1), (model.fc2, 1), (model.fc3, 1)]
    first, second, third = (
        nn.Linear(layer.in_features, layer.out_features).double() for layer, _ in widths
    )
    return [
        nn.Sequential(nn.Flatten(), first, nn.ReLU()),
        nn.Sequential(second, nn.ReLU(), third),
    ]


def parts(*second):
    def attempt(model):
        names = [getattr(model, name) if name.startswith("fc") else nn.ReLU() for name in second]
        return [nn.Sequential(nn.Flatten(), model.fc1), nn.Sequential(*names)]

    return attempt


class CutOff(nn.Sequential):
    def forward(self, hidden):
        return super().forward(hidden.detach())


def cut_off_parts(model):
    first, second = solutions.my_parts(model)
    return [first, CutOff(*second)]


def frozen_parts(model):
    model.fc1.requires_grad_(False)
    return solutions.my_parts(model)


class Silent(nn.Sequential):
    @torch.no_grad()
    def forward(self, hidden):
        return super().forward(hidden)


class Half(nn.Module):
    def __init__(self, fc2, fc3):
        super().__init__()
        self.fc2, self.fc3 = fc2, fc3

    def forward(self, hidden):
        return self.fc3(torch.relu(self.fc2(torch.relu(hidden))))


def test_parts_with_a_forward_of_their_own_are_correct():
    def attempt(model):
        return nn.Sequential(nn.Flatten(), model.fc1), Half(model.fc2, model.fc3)

    assert check_parts(attempt).state == "correct"


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (fresh, "make no new model"),
        (lambda m: solutions.my_parts(copy.deepcopy(m)), "These are copies"),
        (parts("fc2", "fc3"), "Both ReLUs are lost"),
        (parts("relu", "fc2", "fc3"), "between fc2 and fc3"),
        (parts("fc2", "relu", "fc3"), "between fc1 and fc2"),
        (parts("relu", "fc2", "relu", "fc3", "relu"), "no ReLU after the last"),
        (parts("fc2", "relu", "relu", "fc3", "relu"), "Write down, in order"),
        (lambda m: [m.fc1, nn.Sequential(m.fc2, m.fc3)], "before fc1"),
        (lambda m: [m, nn.Identity()], "nothing left to share out"),
        (lambda m: [m, m.fc3], "in both parts"),
        (lambda m: [m.fc1, m.fc3], "2 of the model's 6 parameters"),
        (lambda m: [m.fc1, m.fc2, m.fc3], "expected two modules"),
        (cut_off_parts, "fc1.weight gets no gradient"),
        (frozen_parts, "fc1.weight is frozen"),
        (lambda m: [Silent(*part) for part in solutions.my_parts(m)], "No gradient can flow"),
    ],
)
def test_wrong_parts_are_explained(attempt, words):
    assert words in said(check_parts(attempt))


# Places


def at(cut):
    return lambda net, inputs, limit: [0] * cut(net) + [1] * (len(net) - cut(net))


def balanced(net, inputs, limit):
    first = len(split_sequential(net, 2)[0])
    return [0] * first + [1] * (len(net) - first)


def first_allowed(net, inputs, limit):
    for index, layer in enumerate(net, start=1):
        inputs = layer(inputs)
        if inputs.nbytes <= limit:
            return [0] * index + [1] * (len(net) - index)


def strictly_below(net, inputs, limit):
    return solutions.my_places(net, inputs, limit - 1)


def smallest(net, inputs, limit):
    sent = {}
    for index, layer in enumerate(net[:-1], start=1):
        inputs = layer(inputs)
        sent[index] = inputs.nbytes
    best = min(sent, key=sent.get)
    return [0] * best + [1] * (len(net) - best)


def test_the_places_may_come_as_a_tuple_of_truths():
    def attempt(net, inputs, limit):
        return tuple(place == 1 for place in solutions.my_places(net, inputs, limit))

    assert check_places(attempt).state == "correct"


@pytest.mark.parametrize("kind", [torch.tensor, np.array, lambda places: list(np.array(places))])
def test_the_places_may_come_as_a_tensor_or_an_array(kind):
    assert check_places(lambda *given: kind(solutions.my_places(*given))).state == "correct"
    assert "goes to GPU 0" in said(check_places(lambda *g: kind([1, 1, 0])[: len(g[0])]))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (balanced, "bytes are too many"),
        (lambda n, i, limit: solutions.my_places(n, i, 2 * limit), "1200 bytes are too many"),
        (first_allowed, "compare all of them"),
        (strictly_below, "of exactly 128 bytes may cross"),
        (smallest, "are possible within the limit"),
        (at(len), "use both"),
        (lambda net, inputs, limit: [i % 2 for i in range(len(net))], "one cut is enough"),
        (
            lambda n, i, limit: [1 - p for p in solutions.my_places(n, i, limit)],
            "goes to GPU 0",
        ),
        (
            lambda net, inputs, limit: solutions.my_places(net, inputs, limit)[1:],
            "one per layer",
        ),
        (lambda n, i, limit: [p + 1 for p in solutions.my_places(n, i, limit)], "is 0 or 1"),
    ],
)
def test_wrong_places_are_explained(attempt, words):
    assert words in said(check_places(attempt))
