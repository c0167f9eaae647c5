"""Exercises of page `pruning`: a mask by size, SNIP, a scan, a unit and a channel that leave."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune

from mpcourse.exercises.exercise import Exercise, NotYet, leaving_alone, numbers, same, short
from mpcourse.pruning import layer_masks, snip

# 1. A mask by size

AT_ZERO = "At sparsity 0 nothing goes. (Does an index of -1 mean the last one, the largest?)"
FROM_ONE = "At sparsity 0 nothing goes, and kthvalue counts from 1."
ROUNDED = "Asked is round(sparsity * number): int cuts off, ceil and torch.quantile may go up."
SHARE_OF_NUMBER = (
    "The sparsity is a share of the number of weights: it sets no size to compare with."
)


def my_global_masks(parameters, sparsity):
    """Put the sizes of all weights into one row, and find the largest that goes.

    Absolute values, because a large negative weight matters as well. Biases are left out of the row
    and of the result: they are few, and a layer without them loses much. The masks say what stays.
    """
    sizes = {name: p.abs() for name, p in parameters.items() if name.endswith("weight")}
    together = torch.cat([size.flatten() for size in sizes.values()]).sort().values
    going = round(sparsity * len(together))
    threshold = together[going - 1] if going else -1.0
    return {name: size > threshold for name, size in sizes.items()}


def masks_by_topk(parameters, sparsity):
    weights = {name: p for name, p in parameters.items() if p.dim() > 1}
    row = torch.cat([weight.abs().reshape(-1) for weight in weights.values()])
    mask = torch.zeros_like(row)  # 0 and 1 will do as well
    mask[row.topk(len(row) - round(sparsity * len(row))).indices] = 1
    pieces = mask.split([weight.numel() for weight in weights.values()])
    return {n: piece.view_as(w) for (n, w), piece in zip(weights.items(), pieces, strict=True)}


NET = {
    "fc1.weight": torch.tensor([[0.1, -0.2, 0.3], [-0.4, 0.5, 0.6]]),
    "fc1.bias": torch.tensor([0.01, 3.0]),
    "fc2.weight": torch.tensor([[-4.0, 5.0, 0.7, -0.8]]),
    "fc2.bias": torch.tensor([0.02]),
}
CONV = {
    "conv.weight": torch.tensor([[[[0.3, -0.9]]], [[[0.05, 0.6]]]]),
    "conv.bias": torch.tensor([0.001, 0.002]),
    "fc.weight": torch.tensor([[0.01, -0.02], [0.03, 2.0]]),
}

check_global_masks = Exercise(
    my_global_masks,
    read_again='"Which weights are small?"',
    cases=[
        ({"fc.weight": torch.tensor([[0.05, -0.2], [0.1, 0.025]])}, 0.5),
        (NET, 0.5),
        (NET, 0.28),  # 2.8 of 10 weights
        (CONV, 0.3),  # 2.4 of 8, where a quantile has gone past 2
        (NET, 0.0),
    ],
    given=lambda parameters, sparsity: (
        ", ".join(f"{name} {short(value.tolist())}" for name, value in parameters.items())
        + f" and sparsity {sparsity}"
    ),
    play=leaving_alone("The weights that were handed in have changed: only look at them."),
    hint="The smallest by absolute value go, round(sparsity * number of all weights) of them, "
    "wherever they are; all else is True.",
    errors={"k out of range": FROM_ONE},
    wrong={
        AT_ZERO: [
            " if going else -1.0 => ",
            "[going - 1] if going else -1.0 => [max(going - 1, 0)]",
        ],
        FROM_ONE: "together[going - 1] if going else -1.0 => together.kthvalue(going).values",
        ROUNDED: [
            "round( => int(",
            "round( => int(0.99 + ",
            (
                "together[going - 1] if going else -1.0 => together.quantile(sparsity)",
                "size > threshold => size >= threshold",
            ),
        ],
        "Sort upwards: the smallest go.": ".sort() => .sort(descending=True)",
        "True stays: these are the ones that go.": "size > threshold => size <= threshold",
        "That keeps the small weights.": "p.abs() => 1 / p.abs()",
        "A weight of -2 is not small: compare absolute values.": "p.abs() => p",
        "Each layer has a threshold of its own there; asked is one for all weights.": (
            lambda parameters, sparsity: layer_masks(
                {name: p.abs() for name, p in parameters.items() if p.dim() > 1}, sparsity
            )
        ),
        "The biases are counted in the threshold: leave them out.": (
            ' if name.endswith("weight") => ',
            'sizes.items() => sizes.items() if name.endswith("weight")',
        ),
        "The number of weights is len(row), not len(row) - 1.": (
            "[going - 1] if going else -1.0 => [round(sparsity * (len(together) - 1))]",
            "size > threshold => size >= threshold",
        ),
        "The weight of a convolution has four dimensions: go by the name.": (
            'name.endswith("weight") => p.dim() == 2'
        ),
        "Masks for the weights only: biases are few, and stay.": ' if name.endswith("weight") => ',
        "The weights are right; return no masks for biases.": (
            "return => return {name: p == p for name, p in parameters.items()} |"
        ),
        SHARE_OF_NUMBER: [
            "size > threshold => size > sparsity",
            "size > threshold => size > sparsity * together[-1]",
        ],
        "That keeps a share of `sparsity`; asked is to prune it.": (
            "round(sparsity => round((1 - sparsity)"
        ),
        "One too few goes: the largest of those that go goes, too.": (
            "size > threshold => size >= threshold"
        ),
        "One too many goes: of n that go, the largest has index n - 1.": (
            "[going - 1] if going else -1.0 => [going]"
        ),
        "A mask has the shape of its weight.": "size > threshold => (size > threshold).flatten()",
        "Those are the weights; a mask says True or False.": (
            "size > threshold => parameters[name] * (size > threshold)"
        ),
        "The names are those of the parameters, whole.": (
            'return {name: => return {name.removesuffix(".weight"):'
        ),
        "Return a dictionary: name of each weight -> its mask.": [
            lambda *given: list(my_global_masks(*given).values()),
            lambda *given: list(my_global_masks(*given).items()),
            lambda *given: torch.cat([m.flatten() for m in my_global_masks(*given).values()]),
        ],
        "A mask is a tensor, as its weight is: no list.": (
            "size > threshold => (size > threshold).tolist()"
        ),
        "have changed: only look at them": (
            "size > threshold => parameters[name].mul_(size > threshold) != 0"
        ),
    },
    also_right=[masks_by_topk, "size > threshold => (size > threshold).numpy()"],
)

# 2. SNIP's scores

SCORE_WEIGHTS = "Biases stay: score weights only."
A_DICTIONARY = "Return a dictionary: name of each weight -> its scores."
OF_ITS_OWN = "Every weight has a score of its own."
LOOK_ONLY = "the model's weights have changed: only look at them."


def my_snip(model, images, labels):
    """Ask for the gradients of the weights alone, and take the size of weight times gradient.

    `torch.autograd.grad` gives the gradients without touching `.grad`, where those of an earlier
    batch may lie: a backward would be added to them. The sign does not matter, because a loss that
    falls when a weight goes is a change as well.
    """
    weights = {name: p for name, p in model.named_parameters() if name.endswith("weight")}
    loss = nn.functional.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss, list(weights.values()))
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: (weight * gradient).abs().detach() for (name, weight), gradient in pairs}


def net_to_score(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A net with numbers in it that are the same every time, images and labels."""
    model = {
        "a net of two Linear layers": nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)),
        "a net with a convolution": nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
        ),
        "a net that still has the gradients of another batch": nn.Sequential(nn.Linear(4, 3)),
    }[name]
    for index, parameter in enumerate(model.parameters()):
        values = torch.sin(torch.arange(1.0, parameter.numel() + 1) * (index + 1.3))
        parameter.data.copy_(values.view(parameter.shape))
    images = torch.cos(torch.arange(24.0)).view(6, 4)
    if "convolution" in name:
        images = torch.cos(torch.arange(45.0) * 0.7).view(5, 1, 3, 3)
    if "another batch" in name:
        model(images.flip(1)).square().sum().backward()
    return model, images, torch.arange(len(images)) % 3


def by_weight(found, model, what, why, no_biases, *each_layer):
    """What was found for each weight of the model; the names of layers will do, too."""
    weights = [name for name, _ in model.named_parameters() if name.endswith("weight")]
    if not isinstance(found, Mapping):
        raise NotYet(f"got {short(found)}", why)
    names = {name.removesuffix(".weight"): name for name in weights}
    found = {names.get(name, name): value for name, value in found.items()}
    got = ", ".join(map(str, found))
    if any(str(name).endswith("bias") for name in found):
        raise NotYet(f"got {what} {got}", no_biases)
    if set(found) != set(weights):
        wanted = f"expected {what} {', '.join(weights)}"
        raise NotYet(wanted, f"got {got or 'none'}", *each_layer)
    return found


def scoring(attempt, name):
    """The scores that the attempt gives to a net, by the names of its parameters."""
    model, images, labels = net_to_score(name)
    before = copy.deepcopy(model.state_dict())
    scores = attempt(model, images, labels)
    if not same(dict(model.state_dict()), dict(before)):
        raise NotYet(LOOK_ONLY)
    scores = by_weight(scores, model, "scores of", A_DICTIONARY, SCORE_WEIGHTS)
    for name, value in scores.items():
        scores[name] = torch.as_tensor(value) if hasattr(value, "__array__") else value
        shape = model.get_parameter(name).shape
        if not isinstance(scores[name], Tensor) or scores[name].shape != shape:
            wanted = f"expected for {name} a tensor of shape {tuple(shape)}"
            raise NotYet(wanted, f"got {short(scores[name])}", OF_ITS_OWN)
    return scores


def same_order(scores, expected):
    """Equal but for a common positive factor: only the order counts."""
    rows = [
        torch.cat([each[name].detach().double().flatten() for name in expected])
        for each in (scores, expected)
    ]
    sizes = [row.abs().sum() for row in rows]
    if not all(size.isfinite() and size > 0 for size in sizes):
        return False
    return torch.allclose(rows[0] / sizes[0], rows[1] / sizes[1], rtol=1e-4, atol=1e-7)


def first_scores(scores, expected):
    alone = ({name: scores[name]} for name in expected)
    odd = (one for one in alone if not same_order(one, {name: expected[name] for name in one}))
    name = next(iter(next(odd, expected)))  # where all are right alone, the factors differ
    return [f"expected for {name} {short(expected[name])}", f"got {short(scores[name])}"]


def snip_by_backward(model, images, labels):
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    return snip(model)  # by the names of the layers


def snip_normalised(model, images, labels):
    scores = my_snip(model, images, labels)
    total = sum(score.sum() for score in scores.values())  # as in the paper
    return {name: score / total for name, score in scores.items()}


check_snip = Exercise(
    my_snip,
    read_again='"Which criterion?"',
    cases=[
        ("a net of two Linear layers",),
        ("a net with a convolution",),
        ("a net that still has the gradients of another batch",),
    ],
    given="{}",
    play=scoring,
    same=same_order,
    compared=first_scores,
    hint="Multiply each weight by its gradient; take the size.",
    correct="All three nets agree. (Names of layers and a common factor will do: no mask changes.)",
    errors={
        "NoneType": "No gradient is there: loss.backward() or torch.autograd.grad makes them.",
        "a second time": "One call of torch.autograd.grad takes the list of all weights.",
        "does not require grad": "Under torch.no_grad() nothing has a gradient.",
    },
    wrong={
        "That is the size of the gradient alone.": "weight * gradient => gradient",
        "That is the size of the weight alone.": "weight * gradient => weight",
        "Some are negative: a loss that falls is a change as well.": [
            ".abs() => ",
            "(weight * gradient).abs() => (-weight * gradient)",
            "(weight * gradient).abs() => (weight * gradient.abs())",
            "(weight * gradient).abs() => (weight.abs() * gradient)",
        ],
        "Those are squares; |w * gradient| itself is asked.": ".abs() => .square()",
        "A change that is below 0 counts as much: take its size, do not cut it off.": [
            ".abs() => .relu()",
            ".abs() => .neg().relu()",
        ],
        "Each layer is divided by a number of its own: no threshold fits all layers then.": [
            ".detach() => .detach() / (weight * gradient).abs().sum()",
            ".detach() => .detach() / (weight * gradient).abs().max()",
        ],
        "The gradients of another batch are in it: clear them, or use torch.autograd.grad.": (
            "torch.autograd.grad(loss, list(weights.values())) => "
            "loss.backward() or [p.grad for p in weights.values()]"
        ),
        "Weights and gradients are out of step: ask for the gradients of the weights alone.": (
            "list(weights.values()) => list(model.parameters())",
            ", strict=True => ",
        ),
        "That is the gradient of the outputs: take that of the loss, cross_entropy.": (
            "nn.functional.cross_entropy(model(images), labels) => model(images).sum()"
        ),
        "cross_entropy takes the outputs as they are: the softmax is in it.": [
            "model(images) => model(images).softmax(1)",
            ("model(images) => model(images).softmax(1)", ".abs() => "),
            ("model(images) => model(images).softmax(1)", "weight * gradient => gradient"),
        ],
        "That is another loss: take cross_entropy(model(images), labels).": [
            "cross_entropy => nll_loss",
            (
                "cross_entropy => mse_loss",
                "(images), labels => (images), nn.functional.one_hot(labels, 3).float()",
            ),
        ],
        SCORE_WEIGHTS: ' if name.endswith("weight") => ',
        OF_ITS_OWN: [".abs() => .abs().mean()", lambda *batch: {"0.weight": 3, "2.weight": "x"}],
        "expected scores of 0.weight, 2.weight": ['"weight" => "0.weight"', lambda *batch: {}],
        A_DICTIONARY: lambda *batch: None,
        LOOK_ONLY: "pairs = => [p.data.sub_(0.1) for p in weights.values()]; pairs =",
        "Multiply each weight by its gradient": [
            "weight * gradient => gradient * 0",
            "weight * gradient => gradient * torch.nan",
        ],
    },
    also_right=[
        snip_by_backward,
        snip_normalised,
        ("(images), labels => (images), labels, reduction='sum'", ".detach() => "),  # with a graph
        ".detach() => .detach().numpy()",
    ],
)

# 3. A scan, layer by layer

BEGIN_AGAIN = "What was pruned before is still gone: begin each time with a copy of the whole net."
OF_EACH_LAYER = (
    "Return a dictionary: name of each weight -> a list, one accuracy for each sparsity."
)
NO_BIASES = "Biases stay: prune weights only."
PRUNE_A_COPY = "The model that was handed in has changed: prune a copy."


def my_scan(model, sparsities, accuracy):
    """Prune one layer of a copy, look at the accuracy, and begin again with the next copy.

    The sparsity counts within the layer: a fc3 of 1,000 weights loses 500 of them at 50%. As
    everything else stays whole, what is lost is what this layer alone cannot bear.
    """
    found = {}
    for name in dict(model.named_parameters()):
        if not name.endswith("weight"):
            continue
        found[name] = []
        for sparsity in sparsities:
            pruned = copy.deepcopy(model)
            row = pruned.get_parameter(name).data.view(-1)  # the copy's own numbers, in a row
            row[row.abs().argsort()[: round(sparsity * len(row))]] = 0
            found[name].append(accuracy(pruned))
    return found


def scan_by_torch(model, sparsities, accuracy):
    def at(name, sparsity):
        pruned = copy.deepcopy(model)
        prune.l1_unstructured(pruned.get_submodule(name), "weight", amount=sparsity)
        return accuracy(pruned)

    layers = [name for name, layer in model.named_modules() if hasattr(layer, "weight")]
    return {name: [at(name, sparsity) for sparsity in sparsities] for name in layers}


def scanning(attempt, name, sparsities):
    """The scan of a net; its accuracy is a number made from the outputs, different for each net."""
    model, images, _ = net_to_score(name)

    def accuracy(net):
        with torch.no_grad():
            outputs = net(images).flatten()
        return float(outputs @ torch.arange(1.0, len(outputs) + 1))

    next(model.parameters()).data *= 3  # a threshold of the whole net would spare this layer
    before = copy.deepcopy(dict(model.state_dict()))
    found = attempt(model, sparsities, accuracy)
    if not same(dict(model.state_dict()), before):
        raise NotYet(PRUNE_A_COPY)
    words = "lists for", OF_EACH_LAYER, NO_BIASES, "Each layer has its turn."
    found = {name: numbers(each) for name, each in by_weight(found, model, *words).items()}
    if not all(isinstance(v, list) and len(v) == len(sparsities) for v in found.values()):
        raise NotYet(f"got {short(found)}", OF_EACH_LAYER)
    return found


check_scan = Exercise(
    my_scan,
    read_again='"Which layer can bear it?"',
    cases=[
        ("a net of two Linear layers", [1 / 3]),  # no layer loses half a weight
        ("a net of two Linear layers", [2 / 3, 1 / 3]),
        ("a net of two Linear layers", [0.3, 0.1]),  # 3.6 and 2.7 weights, 1.2 and 0.9
        ("a net with a convolution", [0, 0.25, 0.75]),
    ],
    given=lambda name, sparsities: f"{name} and sparsities {short(sparsities)}",
    play=scanning,
    hint="Of the layer's weights the round(sparsity * number) smallest by absolute value go; "
    "every other layer stays whole.",
    errors={
        "k out of range": FROM_ONE,
        "leaf Variable": "autograd watches a parameter: change the numbers of its .data.",
        "out of bounds": "A weight is a matrix: sort and index one row of its numbers, .view(-1).",
    },
    wrong={
        AT_ZERO: "row[row.abs().argsort()[: round(sparsity * len(row))]] => "
        "row[row.abs() <= row.abs().sort().values[round(sparsity * len(row)) - 1]]",
        BEGIN_AGAIN: [
            (
                "pruned = copy.deepcopy(model) => ",
                "found = {} => found, pruned = {}, copy.deepcopy(model)",
            ),
            (
                "pruned = copy.deepcopy(model) => ",
                "found[name] = [] => found[name], pruned = [], copy.deepcopy(model)",
            ),
        ],
        ROUNDED: ["round( => int(", "round( => int(0.99 + "],
        "Keep the order of the sparsities.": "in sparsities => in sorted(sparsities)",
        "All layers are pruned there: only one at a time loses weights.": (
            "row = pruned.get_parameter(name).data.view(-1) => "
            "for row in [p.data.view(-1) for p in pruned.parameters() if p.dim() > 1]:",
            "row[row =>     row[row",
        ),
        "The threshold there is one of the whole net: the layer loses its own smallest.": (
            "row[row.abs().argsort()[: round(sparsity * len(row))]] = 0 => "
            "row *= my_global_masks(dict(model.named_parameters()), sparsity)[name].flatten()"
        ),
        "That prunes all layers but the one that is named.": (
            "row = pruned.get_parameter(name).data.view(-1) => for row in "
            "[p.data.view(-1) for n, p in pruned.named_parameters() if p.dim() > 1 and n != name]:",
            "row[row =>     row[row",
        ),
        "That keeps a share of `sparsity`; the scan prunes it.": (
            "round(sparsity => round((1 - sparsity)"
        ),
        "The large weights go there, the small ones stay.": [
            ".argsort() => .argsort(descending=True)",
            "[: round(sparsity * len(row))] => [round(sparsity * len(row)) :]",
        ],
        "The layer is its mask there: multiply the weights by it.": (
            "row[row.abs().argsort()[: round(sparsity * len(row))]] = 0 => "
            "row.copy_(layer_masks({name: row.abs()}, sparsity)[name])"
        ),
        "A weight of -2 is not a small one: sort by size.": "row.abs() => row",
        SHARE_OF_NUMBER: [
            "row.abs().argsort()[: round(sparsity * len(row))] => row.abs() <= sparsity",
            "row.abs().argsort()[: round(sparsity * len(row))] => "
            "row.abs() <= sparsity * row.abs().max()",
        ],
        "Nothing is pruned: every accuracy is that of the whole net.": (
            "accuracy(pruned) => accuracy(model)"
        ),
        PRUNE_A_COPY: "copy.deepcopy(model) => model",
        OF_EACH_LAYER: [
            "return found => return list(found.values())",
            "return found => return {name: each[0] for name, each in found.items()}",
            "append(accuracy(pruned)) => append((sparsity, accuracy(pruned)))",
        ],
        NO_BIASES: [
            'not name.endswith("weight") => False',
            (
                "row = pruned.get_parameter(name).data.view(-1) => "
                "for row in [p.data.view(-1) for p in pruned[int(name[0])].parameters()]:",
                "row[row =>     row[row",
            ),
        ],
        "Each layer has its turn.": '"weight" => "0.weight"',
        "One too few goes: of n that go, the largest goes, too.": "len(row)) => len(row)) - 1",
        "One too many goes: of n that go, the largest has index n - 1.": (
            "len(row)) => len(row)) + 1"
        ),
        "Those are the points that are lost: asked is the accuracy that is left.": (
            "accuracy(pruned) => accuracy(model) - accuracy(pruned)"
        ),
    },
    also_right=[
        scan_by_torch,
        "row[row.abs().argsort()[: round(sparsity * len(row))]] = 0 => "
        "row *= layer_masks({name: row.abs()}, sparsity)[name]",
    ],
)

# 4. A unit that leaves

TWO_LAYERS = "Return the two new Linear layers."
A_COLUMN = "The second layer still reads the unit: it loses a column."
ROWS_ARE_OUTPUTS = "Rows of a weight are outputs, columns are inputs."
A_ROW = "The first layer loses a row, the second a column."
CUT_THE_BIAS = "Cut the bias as well."
AS_THEY_WERE = (
    "Give the new layers the dtype and device of the old: nn.Linear(...).to(first.weight)."
)
IN_THEN_OUT = "nn.Linear(inputs, outputs) has a weight of shape (outputs, inputs)."
NEW_ONES = "the layers that were handed in have changed: return new ones."


def my_remove(first, second, unit):
    """Take the unit's row out of the first layer and its column out of the second.

    With no weights coming in, the unit writes `relu(bias)` for every input: a constant. Added to
    the second layer's bias by way of the column that goes, it is not lost, and the outputs stay.
    """
    kept = [index for index in range(first.out_features) if index != unit]
    smaller = nn.Linear(first.in_features, len(kept)).to(first.weight)
    reader = nn.Linear(len(kept), second.out_features).to(second.weight)
    with torch.no_grad():
        smaller.weight.copy_(first.weight[kept])
        smaller.bias.copy_(first.bias[kept])
        reader.weight.copy_(second.weight[:, kept])
        reader.bias.copy_(second.bias + second.weight[:, unit] * first.bias[unit].relu())
    return smaller, reader


def removing(attempt, bias, unit):
    """The outputs of the two smaller layers, made from 5-4-2 with a unit that reads nothing."""
    first, second = nn.Linear(5, 4).double(), nn.Linear(4, 2).double()
    for index, parameter in enumerate([*first.parameters(), *second.parameters()]):
        values = torch.sin(torch.arange(1.0, parameter.numel() + 1).double() * (index + 1))
        parameter.data.copy_(values.view(parameter.shape))
    first.weight.data[unit] = 0
    first.bias.data[unit] = bias
    before = copy.deepcopy([*first.parameters(), *second.parameters()])
    result = attempt(first, second, unit)
    if not same([*first.parameters(), *second.parameters()], before):
        raise NotYet(NEW_ONES)
    pair = isinstance(result, tuple | list) and len(result) == 2
    if not pair or not all(isinstance(each, nn.Linear) for each in result):
        raise NotYet(f"got {short(result)}", TWO_LAYERS)
    shapes = [tuple(each.weight.shape) for each in result]
    if shapes != [(3, 5), (2, 3)]:
        lines = ["expected weights of shapes (3, 5) and (2, 3)", f"got {shapes[0]} and {shapes[1]}"]
        why = ROWS_ARE_OUTPUTS if shapes[0] == (4, 4) else A_ROW
        raise NotYet(*lines, A_COLUMN if shapes[1] == (2, 4) else why)
    for name, layer, outputs in zip(("first", "second"), result, (3, 2), strict=True):
        if layer.bias is not None and len(layer.bias) != outputs:
            line = f"the {name} layer has {outputs} outputs and {len(layer.bias)} biases"
            raise NotYet(line, CUT_THE_BIAS)
    if any(p.dtype != first.weight.dtype for each in result for p in each.parameters()):
        raise NotYet(f"expected {first.weight.dtype}, as the layers are", AS_THEY_WERE)
    smaller, reader = result
    rows = 2 * torch.sin(torch.arange(60.0)).double().view(12, 5)
    return reader(smaller(rows).relu()).detach()


def remove_by_cat(first, second, unit):
    smaller, reader = copy.deepcopy(first), copy.deepcopy(second)
    for layer, name, dim in ((smaller, "weight", 0), (smaller, "bias", 0), (reader, "weight", 1)):
        whole = getattr(layer, name)
        rest = torch.cat([whole.narrow(dim, 0, unit), whole.narrow(dim, unit + 1, 3 - unit)], dim)
        setattr(layer, name, nn.Parameter(rest))
    constant = torch.zeros_like(first.bias)
    constant[unit] = first.bias[unit].clamp(min=0)
    reader.bias.data.copy_(second(constant))
    return [smaller, reader]


def what_is_off(outputs, expected):
    gap = outputs - expected
    if torch.allclose(gap, gap[:1].expand_as(gap)):
        return "Every input is off by the same amount: look at the second layer's bias."
    return "All others keep their weights and biases, in order."


def furthest_apart(outputs, expected):
    row = (outputs - expected).abs().sum(1).argmax()
    return [f"expected for one of the inputs {short(expected[row])}", f"got {short(outputs[row])}"]


check_remove = Exercise(
    my_remove,
    read_again='"A channel of zeros does not write zero"',
    cases=[(0.0, 1), (-0.75, 3), (0.5, 0), (2.0, 2)],
    given="Linear(5, 4), Linear(4, 2) and unit {1}, whose bias is {0:g}",
    play=removing,
    same=lambda outputs, expected: torch.allclose(outputs, expected, rtol=1e-9, atol=1e-9),
    compared=furthest_apart,
    hint=what_is_off,
    correct="The same outputs with a unit less, whatever its bias was.",
    errors={"size of tensor a": IN_THEN_OUT},
    wrong={
        "The unit wrote relu(bias), a constant, and that is missing.": (
            " + second.weight[:, unit] * first.bias[unit].relu() => "
        ),
        "The constant goes through the ReLU first: a negative bias writes 0.": ".relu() => ",
        "The constant reaches each output through the unit's column of the weight.": (
            "second.weight[:, unit] * => "
        ),
        "Only the unit that goes writes a constant: the others read the inputs.": (
            "second.weight[:, unit] * first.bias[unit].relu() => second.weight @ first.bias.relu()"
        ),
        "look at the second layer's bias": [
            "bias + second => bias - second",
            "second.weight[:, unit] * => second.weight[0, unit] *",
            ".relu() => .abs()",
            "second.bias + => ",
        ],
        "All others keep their weights and biases": [
            "index != unit => index != 3",
            "return => smaller.bias = None; return",
        ],
        A_COLUMN: "return smaller, reader => return smaller, second",
        ROWS_ARE_OUTPUTS: "return smaller, reader => return nn.Linear(4, 4), reader",
        IN_THEN_OUT: "(first.in_features, len(kept)) => (len(kept), first.in_features)",
        A_ROW: "return smaller, reader => return first, reader",
        AS_THEY_WERE: [
            (".to(first.weight) => ", ".to(second.weight) => "),
            "return smaller, reader => "  # rounded on the way
            "return smaller.float().double(), reader.float().double()",
        ],
        CUT_THE_BIAS: "smaller.bias.copy_(first.bias[kept]) => smaller.bias = first.bias",
        NEW_ONES: "return => first.bias.data.zero_(); return",
        TWO_LAYERS: [
            "return smaller, reader => return nn.ReLU(), reader",
            "return smaller, reader => return smaller",
        ],
    },
    also_right=[remove_by_cat],
)

# 5. Channels of a trunk

WRITERS = "The stem and the last layer of each block write the trunk: all of them lose rows."
READERS = "The first layer of each block and the head read the trunk: all of them lose columns."
ITS_BIAS = (
    "The bias goes with the rows: who writes the trunk loses entries of it, who reads does not."
)
INSIDE = "Inside a block nothing leaves: its last layer still reads all that its first one writes."
SMALLER = "The layers are not all smaller: index weights and biases with `kept`."
A_PARAMETER = "Make it a parameter again: nn.Parameter(layer.weight.detach()[...])."
NET_AS_IT_WAS = "The net that was handed in has changed: cut a copy."
A_NET = "Return the smaller net."


class Residual(nn.Module):
    """As on the page, with few channels."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 5, stride=3, padding=1)
        blocks = [
            nn.Sequential(
                nn.Conv2d(width, inner, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(inner, width, 3, padding=1),
            )
            for _ in range(2)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """From images to ten outputs each."""
        trunk = self.stem(images)
        for block in self.blocks:
            trunk = trunk + block(trunk.relu())
        return self.head(trunk.relu().amax((2, 3)))


def my_trunk(net, kept):
    """Cut the rows of all that write the trunk, and the columns of all that read it.

    Two tensors that are added need the same channels, so the stem and the last layer of each block
    lose the same rows, with their biases. Whoever reads the trunk loses the same columns. Between
    the two layers of a block nothing changes.
    """
    slim = copy.deepcopy(net)
    for layer in [slim.stem, *(block[2] for block in slim.blocks)]:  # who writes the trunk
        layer.weight = nn.Parameter(layer.weight.detach()[kept])
        layer.bias = nn.Parameter(layer.bias.detach()[kept])
    for layer in [slim.head, *(block[0] for block in slim.blocks)]:  # who reads it
        layer.weight = nn.Parameter(layer.weight.detach()[:, kept])
    return slim


def cut_inside_too(net, kept):
    slim = my_trunk(net, kept)
    for first, _, last in slim.blocks:
        for name in ("weight", "bias"):
            setattr(first, name, nn.Parameter(getattr(first, name).detach()[kept]))
        last.weight = nn.Parameter(last.weight.detach()[:, kept])
    return slim


def thinning(attempt, width, inner, kept):
    """The outputs of the smaller net, and how many numbers it holds."""
    net = Residual(width, inner)
    for index, parameter in enumerate(net.parameters()):
        values = torch.sin(torch.arange(1.0, parameter.numel() + 1) * (index + 1.3))
        parameter.data.copy_(values.view(parameter.shape))
    before = copy.deepcopy(dict(net.state_dict()))
    slim = attempt(net, torch.tensor(kept))
    if not same(dict(net.state_dict()), before):
        raise NotYet(NET_AS_IT_WAS)
    if not isinstance(slim, nn.Module):
        raise NotYet(f"got {short(slim)}", A_NET)
    images = torch.cos(torch.arange(3 * 14 * 14) * 0.7).view(3, 1, 14, 14)
    return slim(images).detach(), sum(p.numel() for p in slim.parameters())


def same_net(outcome, expected):
    return outcome[1] == expected[1] and torch.allclose(outcome[0], expected[0], 1e-4, 1e-4)


def rows_or_numbers(outcome, expected):
    if outcome[1] != expected[1]:
        return [f"expected {expected[1]:,} weights and biases in all", f"got {outcome[1]:,}"]
    right, found = short(expected[0][0]), short(outcome[0][0])
    return [f"expected outputs of the first image {right}", f"got {found}"]


check_trunk = Exercise(
    my_trunk,
    read_again='"Which channels can leave a residual net?"',
    cases=[(4, 3, [0, 2]), (3, 3, [1, 2]), (5, 4, [1, 3, 4])],
    given="a net with a trunk of {0} channels, {1} inside each block, and kept {2}",
    play=thinning,
    same=same_net,
    compared=rows_or_numbers,
    hint=lambda outcome, expected: (
        SMALLER
        if outcome[1] > expected[1]
        else "What a channel wrote is dropped, and no bias makes up for it; all else stays."
    ),
    correct="The trunk is smaller, and the outputs are those of a trunk with zeros there.",
    errors={
        "size of tensor a": WRITERS,
        "expected bias|size of tensor b|expanded size": ITS_BIAS,
        "cannot assign": A_PARAMETER,
        r"channels, but got|shapes cannot be multiplied": READERS,
    },
    wrong={
        WRITERS: "[slim.stem, *(block[2] for block in slim.blocks)] => [slim.stem]",
        READERS: [
            "[slim.head, *(block[0] for block in slim.blocks)] => [slim.head]",
            "[slim.head, *(block[0] for block in slim.blocks)] => "
            "[block[0] for block in slim.blocks]",
            "[slim.head, *(block[0] for block in slim.blocks)] => []",
        ],
        ITS_BIAS: "layer.bias = nn.Parameter(layer.bias.detach()[kept]) => pass",
        INSIDE: cut_inside_too,
        A_PARAMETER: "nn.Parameter(layer.weight.detach()[kept]) => layer.weight[kept]",
        "What a channel wrote is dropped": (
            "return slim => slim.head.bias.data += net.head(net.stem.bias.relu()); return slim"
        ),
        SMALLER: ("[kept] => ", "[:, kept] => "),
        "kept says which channels stay; there they leave.": (
            "slim = copy.deepcopy(net) => slim = copy.deepcopy(net); kept = torch.tensor("
            "[c for c in range(len(net.stem.bias)) if c not in kept])"
        ),
        "Those are the first channels: take the ones that kept names.": (
            "slim = copy.deepcopy(net) => slim = copy.deepcopy(net); kept = range(len(kept))"
        ),
        "The biases of the layers that write are lost: keep theirs, too.": (
            "layer.bias.detach()[kept] => layer.bias.detach()[kept] * 0"
        ),
        NET_AS_IT_WAS: "copy.deepcopy(net) => net",
        A_NET: "return slim => return slim.state_dict()",
    },
    also_right=[
        (
            "layer.weight = nn.Parameter( => layer.weight.data = (",
            "layer.bias = nn.Parameter( => layer.bias.data = (",
        )
    ],
)
