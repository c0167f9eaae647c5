"""Exercises of page `pruning`: a mask by size, SNIP's scores, a scan, a unit that leaves."""

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, nll_loss, one_hot
from torch.nn.utils import prune

from mpcourse.exercises.exercise import Exercise, NotYet, leaving_alone, numbers, same, short
from mpcourse.pruning import layer_masks, snip

# 1. A mask by size

SHARE = "sparsity is the share of the weights that goes, not the size at which they go."


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


def weights_of(parameters):
    return {name: p for name, p in parameters.items() if name.endswith("weight")}


def sizes_of(parameters):
    return {name: p.abs() for name, p in weights_of(parameters).items()}


def masks_by(score):
    """Masks of all weights by a positive score of each."""
    return lambda parameters, sparsity: my_global_masks(
        {name: score(weight) for name, weight in weights_of(parameters).items()}, sparsity
    )


def changed_masks(change):
    """The right masks, each changed by `change(mask, weight)`."""
    return lambda parameters, sparsity: {
        name: change(mask, parameters[name])
        for name, mask in my_global_masks(parameters, sparsity).items()
    }


def biases_pruned(parameters, sparsity):
    masks = my_global_masks({f"{name}.weight": p for name, p in parameters.items()}, sparsity)
    return {name.removesuffix(".weight"): mask for name, mask in masks.items()}


def biases_kept(parameters, sparsity):
    whole = {name: torch.ones_like(p).bool() for name, p in parameters.items()}
    return whole | my_global_masks(parameters, sparsity)


def by_index(position, compare=torch.gt):
    """The threshold taken from the sorted sizes at `position(number that goes)`."""

    def attempt(parameters, sparsity):
        sizes = sizes_of(parameters)
        order = torch.cat([size.flatten() for size in sizes.values()]).sort().values
        threshold = order[position(round(sparsity * len(order)))]
        return {name: compare(size, threshold) for name, size in sizes.items()}

    return attempt


def weights_zeroed(parameters, sparsity):
    masks = my_global_masks(parameters, sparsity)
    for name, mask in masks.items():
        parameters[name] *= mask
    return masks


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
        (NET, 0.2),
        (CONV, 0.75),
        (NET, 0.0),
    ],
    given=lambda parameters, sparsity: (
        ", ".join(f"{name} {short(value.tolist())}" for name, value in parameters.items())
        + f" and sparsity {sparsity}"
    ),
    play=leaving_alone("The weights that were handed in have changed: only look at them."),
    hint="The smallest by absolute value go, round(sparsity * number of all weights) of them, "
    "wherever they are; all else is True.",
    wrong={
        "At sparsity 0 nothing goes. (Does an index of -1 mean the last one, the largest?)": (
            by_index(lambda going: going - 1)
        ),
        "True stays: these are the ones that go.": changed_masks(lambda mask, weight: ~mask),
        "That keeps the small weights.": masks_by(lambda weight: 1 / weight),
        "A weight of -2 is not small: compare absolute values.": masks_by(lambda w: w + 10),
        "Each layer has a threshold of its own there; asked is one for all weights.": (
            lambda parameters, sparsity: layer_masks(sizes_of(parameters), sparsity)
        ),
        "The biases are counted in the threshold: leave them out.": (
            lambda parameters, sparsity: weights_of(biases_pruned(parameters, sparsity))
        ),
        "Masks for the weights only: biases are few, and stay.": biases_pruned,
        "The weights are right; return no masks for biases.": biases_kept,
        SHARE: lambda p, sparsity: {name: size > sparsity for name, size in sizes_of(p).items()},
        "That keeps a share of `sparsity`; asked is to prune it.": (
            lambda parameters, sparsity: my_global_masks(parameters, 1 - sparsity)
        ),
        "One too few goes: the largest of those that go goes, too.": by_index(
            lambda going: max(going - 1, 0), torch.ge
        ),
        "One too many goes: of n that go, the largest has index n - 1.": by_index(lambda n: n),
        "A mask has the shape of its weight.": changed_masks(lambda mask, weight: mask.flatten()),
        "Those are the weights; a mask says True or False.": changed_masks(torch.mul),
        "The names are those of the parameters, whole.": lambda *given: {
            name.removesuffix(".weight"): mask for name, mask in my_global_masks(*given).items()
        },
        "Return a dictionary: name of each weight -> its mask.": [
            lambda *given: list(my_global_masks(*given).values()),
            lambda *given: list(my_global_masks(*given).items()),
            lambda *given: torch.cat([m.flatten() for m in my_global_masks(*given).values()]),
        ],
        "A mask is a tensor, as its weight is: no list.": changed_masks(
            lambda mask, weight: mask.tolist()
        ),
        "At sparsity 0 nothing goes; here the smallest does.": by_index(
            lambda going: max(going - 1, 0)
        ),
        "have changed: only look at them": weights_zeroed,
    },
    also_right=[masks_by_topk, changed_masks(lambda mask, weight: mask.numpy())],
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


def scoring(attempt, name):
    """The scores that the attempt gives to a net, by the names of its parameters."""
    model, images, labels = net_to_score(name)
    shapes = {name: p.shape for name, p in model.named_parameters() if name.endswith("weight")}
    before = copy.deepcopy(model.state_dict())
    scores = attempt(model, images, labels)
    if not same(dict(model.state_dict()), dict(before)):
        raise NotYet(LOOK_ONLY)
    if not isinstance(scores, Mapping):
        raise NotYet(f"got {short(scores)}", A_DICTIONARY)
    layers = {name.removesuffix(".weight"): name for name in shapes}  # these will do, too
    scores = {
        layers.get(name, name): torch.as_tensor(value) if hasattr(value, "__array__") else value
        for name, value in scores.items()
    }
    if any(str(name).endswith("bias") for name in scores):
        raise NotYet(f"got scores of {', '.join(map(str, scores))}", SCORE_WEIGHTS)
    if set(scores) != set(shapes):
        names = f"got {', '.join(map(str, scores)) or 'none'}"
        raise NotYet(f"expected scores of {', '.join(shapes)}", names)
    for name, value in scores.items():
        if not isinstance(value, Tensor) or value.shape != shapes[name]:
            wanted = f"expected for {name} a tensor of shape {tuple(shapes[name])}"
            raise NotYet(wanted, f"got {short(value)}", OF_ITS_OWN)
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
    name = next(iter(expected))
    return [f"expected for {name} {short(expected[name])}", f"got {short(scores[name])}"]


def scores_by(combine=lambda w, g: (w * g).abs(), loss=cross_entropy, clear=True):
    """Scores from a backward: of another loss, combined in another way, or with old gradients."""

    def attempt(model, images, labels):
        if clear:
            model.zero_grad()
        loss(model(images), labels).backward()
        weights = weights_of(dict(model.named_parameters()))
        return {name: combine(p, p.grad) for name, p in weights.items()}

    return attempt


def biases_scored(model, images, labels):
    return my_snip(model, images, labels) | {
        name: p.abs() for name, p in model.named_parameters() if name.endswith("bias")
    }


def after_a_step(model, images, labels):
    scores = my_snip(model, images, labels)
    for parameter in model.parameters():
        parameter.data -= 0.1
    return scores


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
    wrong={
        "That is the size of the gradient alone.": scores_by(lambda w, g: g.abs()),
        "That is the size of the weight alone.": scores_by(lambda w, g: w.abs()),
        "Some are negative: a loss that falls is a change as well.": [
            scores_by(lambda w, g: w * g),
            scores_by(lambda w, g: -w * g),
            scores_by(lambda w, g: w * g.abs()),
        ],
        "Those are squares; |w * gradient| itself is asked.": scores_by(lambda w, g: (w * g) ** 2),
        "Each layer is divided by its own sum: one threshold for all would mean nothing then.": (
            scores_by(lambda w, g: (w * g).abs() / (w * g).abs().sum())
        ),
        "The gradients of another batch are in it: clear them, or use torch.autograd.grad.": (
            scores_by(clear=False)
        ),
        "That is the gradient of the outputs: take that of the loss, cross_entropy.": scores_by(
            loss=lambda outputs, labels: outputs.sum()
        ),
        "cross_entropy takes the outputs as they are: the softmax is in it.": [
            scores_by(combine, lambda outputs, labels: cross_entropy(outputs.softmax(1), labels))
            for combine in (lambda w, g: (w * g).abs(), lambda w, g: w * g, lambda w, g: g.abs())
        ],
        "That is another loss: take cross_entropy(model(images), labels).": [
            scores_by(loss=nll_loss),
            scores_by(loss=lambda o, labels: mse_loss(o, one_hot(labels, o.shape[1]).float())),
        ],
        SCORE_WEIGHTS: biases_scored,
        OF_ITS_OWN: [
            lambda *batch: {name: score.mean() for name, score in my_snip(*batch).items()},
            lambda *batch: {"0.weight": 3, "2.weight": "x"},
        ],
        "expected scores of 0.weight, 2.weight": [
            lambda *batch: {"0.weight": my_snip(*batch)["0.weight"]},
            lambda *batch: {},
        ],
        A_DICTIONARY: lambda *batch: None,
        LOOK_ONLY: after_a_step,
        "Multiply each weight by its gradient": [
            scores_by(lambda w, g: g * 0),
            scores_by(lambda w, g: g * torch.nan),
        ],
    },
    also_right=[
        snip_by_backward,
        snip_normalised,
        scores_by(loss=lambda o, labels: cross_entropy(o, labels, reduction="sum")),  # with a graph
        lambda *batch: {name: score.numpy() for name, score in my_snip(*batch).items()},
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


def scan_by(masks_for, begin=copy.deepcopy):
    """A scan that zeroes in `begin(model)` what `masks_for(parameters, name, sparsity)` says."""

    def attempt(model, sparsities, accuracy):
        mine = copy.deepcopy(model)

        def at(name, sparsity):
            pruned = begin(mine)
            for each, mask in masks_for(dict(mine.named_parameters()), name, sparsity).items():
                pruned.get_parameter(each).data.mul_(mask)
            return accuracy(pruned)

        names = weights_of(dict(mine.named_parameters()))
        return {name: [at(name, sparsity) for sparsity in sparsities] for name in names}

    return attempt


def in_one_layer(masks):
    return scan_by(lambda given, name, sparsity: masks({name: given[name]}, sparsity))


def rounded_by(rounding):
    """Masks with the number of weights that go made whole in another way."""

    def masks(parameters, sparsity):
        (size,) = sizes_of(parameters).values()
        return my_global_masks(parameters, rounding(sparsity * size.numel()) / size.numel())

    return masks


def all_but_one(given, name, sparsity):
    others = {each: size for each, size in sizes_of(given).items() if each != name}
    return layer_masks(others, sparsity)


def one_copy_a_layer(model, sparsities, accuracy):
    """What went at a high sparsity is gone at the next, lower one."""
    found = {}
    for name in weights_of(dict(model.named_parameters())):
        pruned = copy.deepcopy(model)
        weight = pruned.get_parameter(name).data
        found[name] = []
        for sparsity in sparsities:
            weight *= layer_masks({name: weight.abs()}, sparsity)[name]
            found[name].append(accuracy(pruned))
    return found


def scan_in_place(model, sparsities, accuracy):
    found = my_scan(model, sparsities, accuracy)
    for weight in weights_of(dict(model.named_parameters())).values():
        weight.data *= 0
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
    if not isinstance(found, Mapping):
        raise NotYet(f"got {short(found)}", OF_EACH_LAYER)
    weights = weights_of(dict(model.named_parameters()))
    layers = {each.removesuffix(".weight"): each for each in weights}  # these will do, too
    found = {layers.get(each, each): numbers(values) for each, values in found.items()}
    if any(str(each).endswith("bias") for each in found):
        raise NotYet(f"got {', '.join(map(str, found))}", NO_BIASES)
    if set(found) != set(weights):
        names = f"got {', '.join(map(str, found)) or 'none'}"
        raise NotYet(f"expected lists for {', '.join(weights)}", names, "Each layer has its turn.")
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
        ("a net with a convolution", [0.25, 0.75]),
    ],
    given=lambda name, sparsities: f"{name} and sparsities {short(sparsities)}",
    play=scanning,
    hint="Of the layer's weights the round(sparsity * number) smallest by absolute value go; "
    "every other layer stays whole.",
    wrong={
        BEGIN_AGAIN: [
            scan_by(lambda p, name, s: my_global_masks({name: p[name]}, s), lambda net: net),
            one_copy_a_layer,
        ],
        "Asked is round(sparsity * number): int cuts off, ceil goes up.": [
            in_one_layer(rounded_by(int)),
            in_one_layer(rounded_by(math.ceil)),
        ],
        "All layers are pruned there: only one at a time loses weights.": scan_by(
            lambda given, name, sparsity: layer_masks(sizes_of(given), sparsity)
        ),
        "The threshold there is one of the whole net: the layer loses its own smallest.": scan_by(
            lambda given, name, sparsity: {name: my_global_masks(given, sparsity)[name]}
        ),
        "That prunes all layers but the one that is named.": scan_by(all_but_one),
        "That keeps a share of `sparsity`; the scan prunes it.": in_one_layer(
            lambda weight, sparsity: my_global_masks(weight, 1 - sparsity)
        ),
        "The large weights go there, the small ones stay.": in_one_layer(masks_by(lambda w: 1 / w)),
        "A weight of -2 is not a small one: sort by size.": in_one_layer(
            masks_by(lambda w: w + 10)
        ),
        "The sparsity is a share of the layer's weights, not the size below which they go.": (
            in_one_layer(lambda p, sparsity: {n: w.abs() > sparsity for n, w in p.items()})
        ),
        "Nothing is pruned: every accuracy is that of the whole net.": in_one_layer(
            lambda weight, sparsity: {}
        ),
        PRUNE_A_COPY: scan_in_place,
        OF_EACH_LAYER: [
            lambda *given: list(my_scan(*given).values()),
            lambda *given: {name: found[0] for name, found in my_scan(*given).items()},
        ],
        NO_BIASES: lambda *given: my_scan(*given) | {"0.bias": [0.0] * len(given[1])},
        "Each layer has its turn.": lambda *given: {"0.weight": my_scan(*given)["0.weight"]},
        "One too few goes: of n that go, the largest goes, too.": in_one_layer(
            by_index(lambda going: going - 1, torch.ge)
        ),
        "One too many goes: of n that go, the largest has index n - 1.": in_one_layer(
            by_index(lambda going: going)
        ),
        "Those are the points that are lost: asked is the accuracy that is left.": (
            lambda model, sparsities, accuracy: {
                name: [accuracy(model) - each for each in found]
                for name, found in my_scan(model, sparsities, accuracy).items()
            }
        ),
    },
    also_right=[
        scan_by_torch,
        scan_by(lambda p, name, sparsity: layer_masks({name: p[name].abs()}, sparsity)),
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
    """The outputs of the two smaller layers, made from 3-4-2 with a unit that reads nothing."""
    first, second = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    for index, parameter in enumerate([*first.parameters(), *second.parameters()]):
        values = torch.sin(torch.arange(1.0, parameter.numel() + 1) * (index + 1)).double()
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
    if shapes != [(3, 3), (2, 3)]:
        lines = ["expected weights of shapes (3, 3) and (2, 3)", f"got {shapes[0]} and {shapes[1]}"]
        why = ROWS_ARE_OUTPUTS if shapes[0] == (4, 2) else A_ROW
        raise NotYet(*lines, A_COLUMN if shapes[1] == (2, 4) else why)
    for name, layer, outputs in zip(("first", "second"), result, (3, 2), strict=True):
        if layer.bias is not None and len(layer.bias) != outputs:
            line = f"the {name} layer has {outputs} outputs and {len(layer.bias)} biases"
            raise NotYet(line, CUT_THE_BIAS)
    if any(p.dtype != first.weight.dtype for each in result for p in each.parameters()):
        raise NotYet(f"expected {first.weight.dtype}, as the layers are", AS_THEY_WERE)
    smaller, reader = result
    rows = torch.linspace(-2, 2, 15, dtype=torch.float64).view(5, 3)
    return reader(smaller(rows).relu()).detach()


def removing_with(bias_of_reader):
    """The solution with another bias in the second layer."""

    def attempt(first, second, unit):
        smaller, reader = my_remove(first, second, unit)
        reader.bias.data.copy_(bias_of_reader(first, second, unit))
        return smaller, reader

    return attempt


def with_first_bias(bias):
    """The solution with another bias in the first layer."""

    def attempt(first, second, unit):
        smaller, reader = my_remove(first, second, unit)
        smaller.bias = bias(first)
        return smaller, reader

    return attempt


def in_place(first, second, unit):
    result = my_remove(first, second, unit)
    first.bias.data.zero_()
    return result


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


check_remove = Exercise(
    my_remove,
    read_again='"A channel of zeros does not write zero"',
    cases=[(0.0, 1), (-0.75, 3), (0.5, 0), (2.0, 2)],
    given="Linear(3, 4), Linear(4, 2) and unit {1}, whose bias is {0:g}",
    play=removing,
    same=lambda outputs, expected: torch.allclose(outputs, expected, rtol=1e-4, atol=1e-5),
    compared=lambda outputs, expected: [
        f"expected outputs that begin with {short(expected[0])}",
        f"got {short(outputs[0])}",
    ],
    hint="All others keep their weights and biases, in order.",
    correct="The same outputs with a unit less, whatever its bias was.",
    wrong={
        "The unit wrote relu(bias), a constant, and that is missing.": removing_with(
            lambda first, second, unit: second.bias
        ),
        "The constant goes through the ReLU first: a negative bias writes 0.": removing_with(
            lambda first, second, unit: second.bias + second.weight[:, unit] * first.bias[unit]
        ),
        "The constant reaches each output through the unit's column of the weight.": removing_with(
            lambda first, second, unit: second.bias + first.bias[unit].relu()
        ),
        "All others keep their weights and biases": [
            lambda first, second, unit: my_remove(first, second, 3),
            with_first_bias(lambda first: None),
        ],
        A_COLUMN: lambda first, second, unit: (my_remove(first, second, unit)[0], second),
        ROWS_ARE_OUTPUTS: lambda *given: (nn.Linear(2, 4).double(), my_remove(*given)[1]),
        A_ROW: lambda first, second, unit: (first, my_remove(first, second, unit)[1]),
        AS_THEY_WERE: lambda *given: [layer.float() for layer in my_remove(*given)],
        CUT_THE_BIAS: with_first_bias(lambda first: first.bias),
        NEW_ONES: in_place,
        TWO_LAYERS: [lambda first, second, unit: (nn.ReLU(), second), lambda first, *_: first],
    },
    also_right=[remove_by_cat],
)
