"""Exercises of page `split_a_model`: a step over two devices, balanced stages, parts."""

import copy
import warnings
from collections.abc import Iterator
from itertools import chain, combinations, pairwise
from unittest import mock

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import nn
from torch.nn.functional import cross_entropy

from mpcourse.exercises.exercise import Exercise, NotYet, same, short
from mpcourse.splitting.placement import try_placement
from mpcourse.splitting.splits import split_sequential

# 1. A training step over two places


def my_training_step(front, back, inputs, labels, first, second):
    """Each thing goes to where it is needed next.

    The outputs come out on the second place, so the labels go there as well.
    """
    hidden = front.to(first)(inputs.to(first))
    outputs = back.to(second)(hidden.to(second))
    loss = cross_entropy(outputs, labels.to(second))
    loss.backward()
    return loss


def step_on(attempt, first, second):
    """A step for real, or over pretended GPUs; the same in words; what to say if nothing fits."""
    torch.default_generator.manual_seed(4004)
    front, back = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)
    given = front, back, torch.randn(7, 6), torch.randint(0, 3, (7,)), first, second
    if first != "cpu":
        printed = mock.patch("torch.Tensor.item", return_value=0.0)  # a pretended one has none
        with warnings.catch_warnings(action="ignore"), printed:  # torch's, where a part is copied
            placement = try_placement(attempt, *given)
        copies = sorted((t.source, t.target, tuple(t.shape)) for t in placement.transfers)
        held = sorted(placement.parameter_bytes)
        lines = [f"at: {placement.line}", placement.error] if placement.error else []
        lines += [f"copies: {len(copies)}; parameters on {', '.join(held)}"]
        return {"copies": copies, "held": held, "error": placement.error}, lines, FOUR
    before = copy.deepcopy([*front.parameters(), *back.parameters()])
    right = cross_entropy(back(front(given[2])), given[3])
    loss = attempt(*given)
    after = [*front.parameters(), *back.parameters()]
    gradients = [short(p.grad) if p.grad is None else p.grad for p in after]
    # beside 1: rows one by one are right, but rounded otherwise
    near = [each if isinstance(each, str) else 1 + each for each in gradients]
    found = {"loss": loss, "gradients": near, "weights as before": same(after, before)}
    found["bits"] = [str(parameter.dtype) for parameter in after]
    if not same(loss, right):
        hint = ALONE if isinstance(loss, tuple | list) else PLAIN
        return found, [f"expected the loss, {short(right)}; got {short(loss)}"], hint
    return found, [f"The loss is right; gradients: {short(gradients)}"], PLAIN


FOUR = """Four copies: inputs to first; hidden rows and labels to second; a gradient back. \
Move each part once, and leave it there. x.to(place) gives a copy, x stays where it \
is: keep what it returns."""
PLAIN = "The loss is cross_entropy(back(front(inputs)), labels); only one backward follows."
ALONE = "Return the loss alone."
OTHERS = "Copies of the parts were trained; their own parameters have no gradients."

check_training_step = Exercise(
    my_training_step,
    read_again='"Two pretended GPUs"',
    cases=[("cpu", "cpu"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")],
    given="first {!r} and second {!r}",
    play=step_on,
    same=lambda outcome, expected: same(outcome[0], expected[0]),
    compared=lambda outcome, expected: outcome[1],
    hint=lambda outcome, expected: outcome[2],
    correct="Loss and gradients are right, and four copies are made.",
    wrong={
        "The labels have to be where the outputs are, and those come out on {1}.": [
            "labels.to(second) => labels",
            "labels.to(second) => labels.to(first)",
        ],
        "The hidden rows have to be brought to {1}.": "hidden.to(second) => hidden",
        "The inputs have to be on {0}, beside the first part.": "inputs.to(first) => inputs",
        "Each part has to be moved, and its inputs with it.": [
            "front.to(first) => front",
            "back.to(second) => back",
            "front.to(first)(inputs.to(first)) => front(inputs)",
        ],
        "Bring the labels to the outputs, not the outputs to the labels.": [
            "outputs, labels.to(second) => outputs.to(first), labels.to(first)",
            "outputs, labels.to(second) => outputs.cpu(), labels",
        ],
        "The front belongs on {0}.": [
            lambda *a: my_training_step(*a[:4], a[5], a[4]),
            "(first) => (second)",
        ],
        "The back belongs on {1}.": "(second) => (first)",
        "The hidden rows go straight to {1}, without the host.": "hidden.to => hidden.cpu().to",
        "The labels go straight to {1}, without {0}.": "labels.to => labels.to(first).to",
        "Leave the loss where it is: a move is a copy.": [
            "return loss => return loss.cpu()",
            "return loss => return loss.to(first)",
        ],
        "Call backward once: a second one finds no graph.": (
            "return loss => loss.backward(); return loss"
        ),
        "The inputs go straight to {0}.": "inputs.to => inputs.to(second).to",
        "The inputs need no gradient: it would be one more copy.": (
            "inputs.to => inputs.requires_grad_().to"
        ),
        "Leave the parts where they are when the step ends.": (
            "return loss => front.cpu(); back.cpu(); return loss"
        ),
        "None comes from backward() or a bare return: return the loss.": "return loss => return",
        "No optimizer's step is asked for.": "return => front[0].bias.data += 1; return",
        "`.item()` makes a plain number: return the tensor.": "return loss => return loss.item()",
        "They come from loss.backward(), and stay for the optimizer.": [
            "loss.backward() => ",
            "return loss => front.zero_grad(); back.zero_grad(); return loss",
        ],
        OTHERS: ("front.to => copy.deepcopy(front).to", "back.to => copy.deepcopy(back).to"),
        "Cut off by detach(), .data, no_grad(), torch.tensor().": "hidden.to => hidden.detach().to",
        "Leave the parts in their 32 bits: .double() changes them.": (
            "front.to(first)(inputs.to => front.double().to(first)(inputs.double().to",
            "back. => back.double().",
        ),
        "Leave out the softmax: cross_entropy has it inside.": "(outputs, => (outputs.softmax(1),",
        "The loss is a mean over the rows.": "s.to(second)) => s.to(second), reduction='sum')",
        ALONE: [
            f"return loss => return {all_of_it}"
            for all_of_it in ("loss, outputs", "loss, front, back", "[loss, hidden]")
        ],
        "nn.CrossEntropyLoss is a class": "cross_entropy( => nn.CrossEntropyLoss(",
        "Doubled gradients: call backward once.": "loss.backward() => (2 * loss).backward()",
        "The order is cross_entropy": "outputs, labels.to(second) => labels.to(second), outputs",
        "The loss needs its graph": torch.no_grad()(my_training_step),
        "cross_entropy takes both": "outputs, labels.to(second) => outputs",
        "Call a part with rows": "(inputs.to(first)) => (front)",
        "Six arguments come in": [lambda front, back: ..., "(hidden.to => (labels, hidden.to"],
    },
    errors={
        "Boolean value of Tensor": (
            "nn.CrossEntropyLoss is a class: nn.CrossEntropyLoss()(outputs, labels) works."
        ),
        "for 'Long'": "The order is cross_entropy(outputs, labels).",
        "does not require grad": "The loss needs its graph: no no_grad() here, no detach().",
        "a second time": "Call backward once: a second one finds no graph.",
        r"linear\(\): argument 'input'": "Call a part with rows: front(inputs), back(hidden).",
        "'target'": "cross_entropy takes both, outputs and labels.",
        "positional argument": "Six arguments come in, from front to second; a part takes one.",
        "(?i)with cuda|nvidia|cuda error|no cuda": "Use the places that come in, first and second.",
    },
    also_right=[
        ("(inputs.to => (1 * inputs.to", "return => print(loss.item()); return"),
        "front.to(first)( => (lambda x: torch.stack([*map(front.to(first), x)]))(",
    ],
)

# 2. Stages of one model, balanced by parameters


def my_split(model, num_stages):
    """Try every way to cut, and take the one whose largest stage is smallest.

    Filling one stage after the other cannot work: where it ends depends on the layers to come.
    """
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in model]
    cuts = combinations(range(1, len(sizes)), num_stages - 1)
    ways = [[0, *cut, len(sizes)] for cut in cuts]
    best = min(ways, key=lambda way: max(sum(sizes[a:b]) for a, b in pairwise(way)))
    return [model[a:b] for a, b in pairwise(best)]


NORM = "norm"


def made_of(sizes):
    """Layers of so many weights (0: a ReLU, below: frozen), or (inputs, outputs) with biases.

    2.0 makes a layer of 2 weights, in 64 bits.
    A list makes one layer of layers, NORM a batch norm: 12 parameters, and as many buffers.
    """
    layers = []
    for size in sizes:
        if size == NORM or isinstance(size, list):
            layers.append(nn.BatchNorm1d(6) if size == NORM else made_of(size))
            continue
        pair = size if isinstance(size, tuple) else (1, int(abs(size)))
        layer = nn.Linear(*pair, bias=pair is size) if size else nn.ReLU()
        layer.requires_grad_(pair is size or size > 0)
        layers.append(layer.double() if isinstance(size, float) else layer)
    return nn.Sequential(*layers)


def parameters_of(layers):
    return [sum(p.numel() for p in layer.parameters()) for layer in layers]


def cut_into_stages(attempt, sizes, num_stages):
    """The numbers of the layers in each stage, and its parameters."""
    model = made_of(sizes)
    number = {id(layer): index for index, layer in enumerate(model)}
    stages = attempt(model, num_stages)
    stages = [*stages] if isinstance(stages, Iterator) else stages
    listed = isinstance(stages, list | tuple | nn.ModuleList | nn.Sequential)
    if not listed or not all(isinstance(stage, nn.Sequential) for stage in stages):
        raise NotYet(f"expected a list of nn.Sequential, like model[0:2]; got {short(stages)}")
    if len(model) < len(sizes):
        raise NotYet("the model has lost layers: leave it as it is, a slice takes none away")
    layers = [[number.get(id(layer), "not the model's own") for layer in stage] for stage in stages]
    if len(stages) != num_stages:
        raise NotYet(f"{num_stages} stages are asked for; got layers {layers}")
    numbers = [*chain(*layers)]
    if "not the model's own" not in numbers and numbers != [*range(len(sizes))]:
        raise NotYet(f"got layers {layers}: keep each layer once, and their order")
    if any(p.is_meta for stage in stages for p in stage.parameters()):
        raise NotYet("the layers have lost their numbers: leave them where they are")
    return layers, parameters_of(stages)


def as_good(outcome, expected):
    """The same layers in order, none empty, and the largest as small."""
    (layers, held), (others, theirs) = outcome, expected
    alike = [*chain(*layers)] == [*chain(*others)] and max(held) == max(theirs)
    return layers == others or (alike and all(layers))


def first_cut_only(model, num_stages):
    first, rest = my_split(model, 2)
    return [first, *(first_cut_only(rest, num_stages - 1) if num_stages > 2 else [rest])]


def in_halves(model, num_stages):
    """The best cut for half of the stages, then each side by itself."""
    if num_stages == 1:
        return [model]
    costs, few = parameters_of(model), num_stages // 2
    many = num_stages - few
    cut = min(
        range(few, len(costs) - many + 1),
        key=lambda cut: max(sum(costs[:cut]) / few, sum(costs[cut:]) / many),
    )
    return in_halves(model[:cut], few) + in_halves(model[cut:], many)


def filled_up(model, num_stages, late=0):
    """Each stage is filled up to the average (late: until it has it)."""
    costs, bounds = parameters_of(model), [0]
    for index in range(1, len(costs)):
        full = sum(costs[bounds[-1] : index + 1 - late]) > sum(costs) / num_stages - late / 99
        if full or len(costs) - index == num_stages - len(bounds):
            bounds += [index] * (len(bounds) < num_stages)
    return [model[a:b] for a, b in pairwise([*bounds, len(costs)])]


BUFFERS, NESTED = [NORM, (5, 2), (5, 2), 6], [[3, 3], 5, 1]
IN_64_BITS = [2.0, 2, 3]
BIASED = [0, (1, 6), 0, (5, 1), (7, 1)]
IN_TWO = (
    [5, 1, 1, 1],
    [1, 1, 5],
    [2, 2, 2, 6, 1],
    [4, 3, 3],
    [(6, 1), 3, 3],
    [-6, 2, 2, 2],
    BIASED,
    BUFFERS,
    NESTED,
    IN_64_BITS,
)
IN_THREE = [4, 4, 4, 4, 4, 4], [1, 8, 3, 2, 1, 1], [1, 1, 1, 10, 1, 1], [2, 1, 3, 1]

check_split = Exercise(
    my_split,
    read_again='"Half of the layers, half of the parameters?"',
    cases=[*((s, 2) for s in IN_TWO), *((s, 3) for s in IN_THREE), ([3, 7, 2, 6, 5, 1, 4], 4)],
    given=lambda sizes, stages: (
        f"layers of {parameters_of(made_of(sizes))} parameters and {stages} stages"
        + ", the first layer frozen" * (sizes[0] in range(-99, 0))
        + ", the first layer in 64 bits" * isinstance(sizes[0], float)
    ),
    play=cut_into_stages,
    same=as_good,
    compared=lambda outcome, expected: [
        f"got layers {outcome[0]}: {outcome[1]} parameters; the largest can have {max(expected[1])}"
    ],
    hint="Compare all cuts into {1} stages by the largest: each layer once, in order, none empty.",
    wrong={
        "That shares out the layers evenly, not their parameters.": lambda m, n: [
            m[round(len(m) * i / n) : round(len(m) * (i + 1) / n)] for i in range(n)
        ],
        "Filling each stage up before opening the next is greedy: compare all cuts.": filled_up,
        "Closing a stage once it has its share is greedy.": lambda m, n: filled_up(m, n, late=1),
        "{1} stages are asked for": [lambda m, n: my_split(m, n + 1), lambda m, n: my_split(m, 2)],
        "keep each layer once, and their order": lambda m, n: my_split(m, n)[::-1],
        "Cut the model's own layers, not copies.": lambda m, n: my_split(copy.deepcopy(m), n),
        "Stages need not be alike, nor near the average: the largest has to be small.": (
            "way: max( => way: -min(sum(sizes[a:b]) for a, b in pairwise(way)) + max("
        ),
        "The last layer, too, may be a stage of its own.": "len(sizes)), => len(sizes) - 1),",
        "Biases are parameters too.": "parameters() => parameters() if p.dim() > 1",
        "Buffers are no parameters.": "layer.parameters()) => layer.state_dict().values())",
        "A layer of layers stays whole: go through the model itself.": lambda m, n: my_split(
            nn.Sequential(*(each for each in m.modules() if not [*each.children()])), n
        ),
        "A frozen layer takes room too.": "parameters() => parameters() if p.requires_grad",
        "`p.numel()` counts all numbers of a parameter, not its rows.": "p.numel() => len(p)",
        "Asked are parameters, not their bytes.": "p.numel() => p.nbytes",
        "The first cut is not the only one.": first_cut_only,
        "Halves of halves may miss the best: compare all cuts at once.": in_halves,
        "No stage may be empty: cuts differ, and none is at an end.": "range(1, => range(0,",
        "expected a list of nn.Sequential": "model[a:b] => list(model[a:b])",
        "have lost their numbers": lambda m, n: my_split(m.to("meta"), n),
        "the model has lost layers": lambda m, n: [my_split(m, n), m.pop(0)][0],
        "A layer may have no weight": "in layer.parameters() => in [layer.weight]",
        "It takes two arguments": lambda m: [m],
    },
    errors={
        "attribute 'weight'": "A layer may have no weight: go through layer.parameters().",
        "positional argument": "It takes two arguments: the model and the number of stages.",
    },
    also_right=[split_sequential, lambda m, n: iter(my_split(m, n))],
)

# 3. Two parts of one model


class _Net(nn.Module):  # built like the model of the page, smaller
    def __init__(self, pixels=12):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(pixels, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, images):
        return self.fc3(self.fc2(self.fc1(images.flatten(1)).relu()).relu())


def my_parts(model):
    """Write down all that `forward` does, in order, with the layers of this one model.

    Flattening and the ReLUs are no attributes, and lost when only the layers are collected.
    Three layers without a ReLU are one linear map. It can learn digits too, so the loss falls.
    """
    first = nn.Sequential(nn.Flatten(), model.fc1, nn.ReLU())
    return [first, nn.Sequential(model.fc2, nn.ReLU(), model.fc3)]


def outputs_of_parts(attempt, count, height, width):
    """Outputs, and the gradients in the model; each part has to hold its layers of the model."""
    torch.default_generator.manual_seed(4004)
    model = _Net(height * width).double()
    images = 30 * torch.randn(count, 1, height, width).double()
    parts = attempt(model)
    listed = isinstance(parts, list | tuple | nn.Sequential | nn.ModuleList)
    if not listed or [isinstance(part, nn.Module) for part in parts] != [True, True]:
        raise NotYet(f"expected two modules, got {short(parts)}", ONE)
    names = {id(p): name[:3] for name, p in model.named_parameters()}
    held = [sorted({names.get(id(p), "new") for p in part.parameters()}) for part in parts]
    if not any(held):
        raise NotYet("the parts hold no layers: keep them as attributes, else `.to` misses them")
    if held != [["fc1"], ["fc2", "fc3"]]:
        found = "new or copied layers" if "new" in held[0] + held[1] else f"the parts hold {held}"
        raise NotYet(f"{found}; asked are the model's own, to train it: fc1, then fc2 and fc3")
    outputs = parts[1](parts[0](images))
    if not same(outputs, parts[1](parts[0](images))):
        raise NotYet("called twice, the parts give two answers: the model drops nothing")
    gradients = [None]
    if outputs.requires_grad:
        gradients = torch.autograd.grad(outputs.sum(), [*model.parameters()], allow_unused=True)
    return {"outputs": outputs, "gradients": [*gradients]}


def first_difference(outcome, expected):
    if any(gradient is None for gradient in outcome["gradients"]):
        return ["no gradient comes to some layers of the model: it is cut off on the way"]
    right = same(outcome["outputs"], expected["outputs"])
    return [f"the {'gradients' if right else 'outputs'} differ from the model's"]


def calling(model, *names):
    """A module that calls layers, and has none."""
    part = nn.Module()
    part.forward = lambda values: [values := getattr(model, name)(values) for name in names][-1]
    return part


ONE = "Return two modules, no functions; nn.Sequential(a, b) makes one module of several layers."
BEFORE_FC1 = "In the model, what happens to an image before fc1?"

check_parts = Exercise(
    my_parts,
    read_again='"Snippets you will meet"',
    cases=[(50, 3, 4), (20, 2, 5)],
    given="{} images of {} x {} and a model for them",
    play=outputs_of_parts,
    compared=first_difference,
    hint="Write down, in order, all that forward does, with the model's own layers; cut it in two.",
    wrong={
        "Both ReLUs are lost: they were in forward, not among the layers.": ", nn.ReLU() => ",
        "A ReLU is lost: the one between fc2 and fc3.": "model.fc2, nn.ReLU() => model.fc2",
        "A ReLU is lost: the one between fc1 and fc2.": "model.fc1, nn.ReLU() => model.fc1",
        "No ReLU follows fc3: outputs may be negative.": "model.fc3 => model.fc3, nn.ReLU()",
        "No softmax follows fc3.": ["fc3 => fc3, nn.Softmax(1)", "fc3 => fc3, nn.LogSoftmax(1)"],
        "new or copied": [lambda m: my_parts(copy.deepcopy(m)), "model.fc1 => nn.Linear(784, 128)"],
        "the parts hold": [lambda m: my_parts(m)[::-1], lambda m: [m, nn.Identity()]],
        "keep them as attributes": lambda m: [calling(m, "fc1"), calling(m, "fc2", "fc3")],
        "cut off": "return => first.register_forward_hook(lambda *g: g[-1].detach()); return",
        BEFORE_FC1: "nn.Flatten(), => ",
        "nn.ReLU is a class": ["nn.ReLU() => nn.ReLU", "nn.ReLU() => torch.relu"],
        "The model has ReLU there, nothing else.": [
            f"{where}nn.ReLU() => {where}nn.{name}()"
            for name in ("GELU", "LeakyReLU", "Tanh", "Sigmoid", "SiLU", "ELU", "ReLU6")
            for where in ("", "model.fc1, ", "model.fc2, ")
        ],
        "the parts give two answers": "model.fc1, nn.ReLU() => model.fc1, nn.ReLU(), nn.Dropout()",
        "Freeze nothing": ", model.fc1, => , model.fc1.requires_grad_(False),",
        "keeps the rows": "Flatten() => Flatten(0)",
        "Leave model and images in their 64 bits": "model.fc1, => model.float().fc1,",
        "The order is fc2, ReLU, fc3.": "fc2, nn.ReLU(), model.fc3 => fc3, nn.ReLU(), model.fc2",
        "The first ReLU follows fc1; none comes before it.": [
            "model.fc1, nn.ReLU() => nn.ReLU(), model.fc1",
            (
                "model.fc1, nn.ReLU() => nn.ReLU(), model.fc1",
                "(model.fc2, => (nn.ReLU(), model.fc2,",
            ),
            (
                "model.fc1, nn.ReLU() => nn.ReLU(), model.fc1",
                "(model.fc2, nn.ReLU() => (nn.ReLU(), model.fc2",
            ),
        ],
    },
    errors={
        r"\(1x": "Flatten each image, not the batch: nn.Flatten() keeps the rows.",
        "same dtype": "Leave model and images in their 64 bits: no .float().",
        "x8 and 6x3": "The order is fc2, ReLU, fc3.",
        "shapes cannot be multiplied": BEFORE_FC1,
        "does not require grad": "Freeze nothing: training the parts has to train the model.",
        "is invalid for input": "Images and layers come in any widths: flatten(1) needs none.",
        "not a Module subclass": "A Sequential takes modules: nn.ReLU(). nn.ReLU is a class.",
    },
    also_right=[("model.fc1, nn.ReLU() => model.fc1", "(model.fc2 => (nn.ReLU(), model.fc2")],
)
