"""Exercises of page `pruning`: a mask by size, a scan, channels that leave a trunk."""

import copy
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from mpcourse.exercises.exercise import (
    NO_RETURN,
    Exercise,
    NotYet,
    leaving_alone,
    numbers,
    same,
    short,
)
from mpcourse.pruning import layer_masks

# 1. A mask by size

AT_ZERO = "At sparsity 0 nothing goes. (An index of -1 means the last one, the largest.)"
ROUNDED = "Asked is round(sparsity * number): int cuts off, ceil and torch.quantile may go up."
THRESHOLD = "together[going - 1] if going else -1.0"
BY_SIZE = "A weight of -2 is not small: compare absolute values."
A_SHARE = "That keeps a share of `sparsity`; asked is to prune it."
IN_ONE_ROW = "argsort counts in one row of all weights: make the mask there, then split."
AT_ENDS = "At sparsity 0 nothing goes, at 1 all do: the row has no place of that number then."
NOTHING = "At sparsity 0 nothing goes: an empty tensor has no max, and kthvalue counts from 1."
ALL_GO = "At sparsity 1 all go: what is >= the largest size keeps the largest."
OF_THE_LARGEST = "Count the weights that go: a share of the largest, a mean or std counts none."
A_MASK = "A mask is a tensor of its weight's name and shape, and says True or False (torch.bool)."
OTHER_MASKS = "Masks are asked of the `parameters` handed in, not of the page's net."
A_PAIR = "Compare with one number: sort gives a pair, its `values` are the sizes in order."


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
    mask = torch.zeros(len(row), dtype=torch.bool)
    mask[row.topk(len(row) - round(sparsity * len(row))).indices] = True
    pieces = mask.split([weight.numel() for weight in weights.values()])
    return {n: piece.view_as(w) for (n, w), piece in zip(weights.items(), pieces, strict=True)}


def masks_by_row(parameters, sparsity, rounded=round):
    """Wrong: each row of a weight loses its smallest."""
    masks = {}
    for name, weight in parameters.items():
        if name.endswith("weight"):
            places = weight.abs().flatten(1).argsort(1).argsort(1)
            masks[name] = (places >= rounded(sparsity * places.shape[1])).view_as(weight)
    return masks


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


def masking(attempt, parameters, sparsity):
    """The masks; of names that were handed in."""
    alone = leaving_alone("The weights that were handed in have changed: only look at them.")
    found = alone(attempt, parameters, sparsity)
    if isinstance(found, Mapping):
        if any(str(n).endswith(".weight") for n in {*found} - {*parameters}):
            raise NotYet(f"got masks of {', '.join(map(str, found))}", OTHER_MASKS)
        if any("bool" not in str(getattr(mask, "dtype", bool)) for mask in found.values()):
            raise NotYet(f"got {short(found)}", A_MASK)
    return found


check_global_masks = Exercise(
    my_global_masks,
    read_again='"Which weights are small?"',
    cases=[
        ({"fc.weight": torch.tensor([[0.05, -0.2], [0.025, 0.1]])}, 0.5),
        (NET, 0.5),
        (NET, 0.28),  # 2.8 of 10 weights
        (CONV, 0.3),  # 2.4 of 8, where a quantile has gone past 2
        (NET, 0.0),
        (NET, 1.0),
    ],
    given=lambda parameters, sparsity: (
        ", ".join(f"{name} {short(value.tolist())}" for name, value in parameters.items())
        + f" and sparsity {sparsity}"
    ),
    play=masking,
    hint="The smallest by absolute value go, round(sparsity * number of all weights) of them, "
    "wherever they are; all else is True.",
    errors={
        r"k out of range|max\(\): Exp": NOTHING,
        "size of tensor a": A_PAIR,
        r"index 10 is out of bounds.*size 10": AT_ENDS,
        "of bound": IN_ONE_ROW,
    },
    wrong={
        AT_ZERO: " if going else -1.0 => ",
        OTHER_MASKS: lambda _, share: my_global_masks({"fc1.weight": torch.ones(3, 4)}, share),
        NOTHING: f"{THRESHOLD} => together[:going].max()",
        A_PAIR: ".sort().values => .sort()",
        AT_ENDS: [
            (f"{THRESHOLD} => together[going]", "> threshold => >= threshold"),
            (
                ".sort() => .sort(descending=True)",
                f"{THRESHOLD} => together[-going + len(together)]",
            ),
        ],
        "Too few go: sparsity is a share of all weights.": "len(together) => len(sizes)",
        ROUNDED: [
            "round( => int(",
            (f"{THRESHOLD} => together.quantile(sparsity)", "> threshold => >= threshold"),
        ],
        "Sort upwards: the smallest go.": ".sort() => .sort(descending=True)",
        "Of the sorted sizes the first round(sparsity * number) go, the last of these, too.": [
            "going - 1 => going",
            "> threshold => >= threshold",
        ],
        OF_THE_LARGEST: [
            f"{THRESHOLD} => {it}" for it in ("sparsity * together[-1]", "together.mean()")
        ],
        "Places in sorted order are not those of the weights: index the mask with argsort.": [
            f"size > threshold => ({order} >= going).view_as(size)"
            for order in ("size.flatten().argsort()", "torch.arange(size.numel())")
        ],
        IN_ONE_ROW: (
            "size > threshold => (torch.ones(size.numel()).index_put((torch.cat([s.flatten() for s "
            "in sizes.values()]).argsort()[:going],), torch.tensor(0.0)) > 0).view_as(size)"
        ),
        ALL_GO: (
            f"{THRESHOLD} => together[min(going, len(together) - 1)]",
            "> threshold => >= threshold",
        ),
        A_MASK: [
            "size > threshold => (size > threshold).tolist()",
            "size > threshold => size.flatten() > threshold",
            "{name: size > => {name[:-7]: size >",
            "size > threshold => (size > threshold).float()",
            ("return { => return [*{", "sizes.items()} => sizes.items()}.values()]"),
            "return { => return torch.cat([s.flatten() > threshold for s in sizes.values()]); {",
        ],
        "True stays: these are the ones that go.": "size > threshold => size <= threshold",
        BY_SIZE: ["p.abs() => p", "size > threshold => parameters[name] > threshold"],
        "A convolution's weight counts, too.": "name.ends => p.dim() == 2 and name.ends",
        "Each layer has a threshold of its own there; asked is one for all weights.": (
            lambda ps, share: layer_masks({n: p.abs() for n, p in ps.items() if p.dim() > 1}, share)
        ),
        "Each row has a threshold of its own there; asked is one for all weights.": [
            partial(masks_by_row, rounded=rounded) for rounded in (round, int)
        ],
        "Biases are few, and stay: they have no masks, and do not count.": [
            ' if name.endswith("weight") => ',
            "return { => return {name: p > -9 for name, p in parameters.items()} | {",
            "len(together)) => sum(p.numel() for p in parameters.values()))",
            (' if name.endswith("weight") => ', "sizes.items() => [*sizes.items()][::2]"),
        ],
        A_SHARE: "round(sparsity => round((1 - sparsity)",
        "Each weight has a mask, not one alone.": "sizes.items()} => [*sizes.items()][:1]}",
    },
    also_right=[masks_by_topk, "size > threshold => (size > threshold).numpy()"],
)

# 2. A scan, layer by layer

OF_EACH_LAYER = "Return a dictionary: name of each weight -> a list, one accuracy a sparsity."
HANDED_IN = "Scan `model` with the `accuracy` handed in, not the page's net or digits."
OTHER_NAMES = "The names are those of model.named_parameters(): nets differ in them."
ONE_LAYER = "row[row.abs().argsort()[: round(sparsity * len(row))]]"
PRUNE_A_COPY = "The model that was handed in has changed: prune a copy."


def with_values(model):
    """Put numbers into a net that are the same every time."""
    for index, (name, each) in enumerate(model.state_dict().items()):
        values = torch.sin(torch.arange(1.0, each.numel() + 1) * (index + 1.3))
        each.copy_((values.abs() + 0.1 if name.endswith("var") else values).view(each.shape))


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


def pruning_also(which):
    """The slip of a scan in which the weights or biases n, p of `which` lose their smallest."""
    rows = f"[p.data.view(-1) for n, p in pruned.named_parameters() if {which}]"
    one = "row = pruned.get_parameter(name).data.view(-1)"
    return f"{one} => for row in {rows}:", "row[row =>     row[row"


def scan_by_torch(model, sparsities, accuracy):
    def at(name, sparsity):
        pruned = copy.deepcopy(model)
        prune.l1_unstructured(pruned.get_submodule(name), "weight", amount=sparsity)
        return accuracy(pruned)

    layers = [name for name, layer in model.named_modules() if hasattr(layer, "weight")]
    return {name: [at(name, sparsity) for sparsity in sparsities] for name in layers}


def scanning(attempt, layers, sparsities):
    """The scan of a net; its accuracy is a number made from the outputs, different for each net."""
    dense = nn.Linear(4, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3))
    convolution = nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    model = nn.Sequential(*(convolution if layers == "a convolution" else dense))
    with_values(model)
    images = torch.cos(torch.arange(36.0) * 0.7)
    images = images.view((4, 1, 3, 3) if layers == "a convolution" else (9, 4))

    def accuracy(net):
        return float(net(images).detach().flatten().cumsum(0).sum())

    next(model.parameters()).data *= 3  # a threshold of the whole net would spare this layer
    before = copy.deepcopy(dict(model.state_dict()))
    found = attempt(model, sparsities, accuracy)
    if not same(dict(model.state_dict()), before):
        raise NotYet(PRUNE_A_COPY)
    if found is None:
        raise NotYet("got None", NO_RETURN)
    if not isinstance(found, Mapping):
        raise NotYet(f"got {short(found)}", OF_EACH_LAYER)
    found = {str(n).removesuffix(".weight"): numbers(each) for n, each in found.items()}
    numbered = [float] * len(sparsities)
    if not all(isinstance(v, list) and [*map(type, v)] == numbered for v in found.values()):
        raise NotYet(f"got {short(found)}", OF_EACH_LAYER)
    if set(found) - {n.removesuffix(".weight") for n in before}:
        raise NotYet(f"got {short(found)}", OTHER_NAMES)
    return found


check_scan = Exercise(
    my_scan,
    read_again='"Which layer can bear it?"',
    cases=[
        ("two Linear layers", [1 / 3]),  # no layer loses half a weight
        ("two Linear layers", [2 / 3, 1 / 3]),
        ("two Linear layers", [0.3, 0.1]),  # 3.6 and 2.7 weights, 1.2 and 0.9
        ("a convolution", [0, 0.25, 0.75, 1.0]),  # at 1 all go
    ],
    given=lambda layers, sparsities: (
        f"a net with {layers}, sparsities {short(sparsities)}, and a stand-in for `accuracy`, "
        "which gives any number"
    ),
    play=scanning,
    hint="Of the layer's weights (no biases) the round(sparsity * number) smallest by absolute "
    "value go; every other layer stays whole. Lists in the order of the sparsities.",
    errors={
        "leaf Variable": "autograd watches a parameter: change the numbers of its .data.",
        "shapes cannot be multiplied": HANDED_IN,
        "index 8 is out of bounds.*size 8": AT_ENDS,
        "out of bounds": "A weight is a matrix: sort and index one row of its numbers, .view(-1).",
    },
    wrong={
        AT_ZERO: f"{ONE_LAYER} => "
        "row[row.abs() <= row.abs().sort().values[round(sparsity * len(row)) - 1]]",
        AT_ENDS: "row[row.abs().argsort()[: round(sparsity * len(row))]] => "
        "row[row.abs() < row.abs().sort().values[round(sparsity * len(row))]]",
        HANDED_IN: [
            "(accuracy(pruned)) => (accuracy(nn.Linear(784, 10)))",
            "accuracy(pruned) => pruned(torch.zeros(9, 784))",
        ],
        "What was pruned before is still gone: begin each time with a copy of the whole net.": [
            ("pruned = copy => copy", "found = {} => found, pruned = {}, copy.deepcopy(model)"),
            ("pruned = copy => copy", "me] = [] => me], pruned = [], copy.deepcopy(model)"),
        ],
        ROUNDED: ["round( => int(", "len(row)) => len(row) + 0.499)"],
        A_SHARE: "round(sparsity => round((1 - sparsity)",
        OF_THE_LARGEST: f"{ONE_LAYER} => row[row.abs() <= sparsity * row.abs().max()]",
        "Every weight is asked for: a convolution's, too, and those of a net inside the net.": [
            f'if not name.endswith("weight") => if not name.endswith("weight") or {other}'
            for other in ("model.get_parameter(name).dim() > 2", 'name.count(".") > 1')
        ],
        "A threshold of the whole net is used there; the sparsity counts within one layer.": (
            f"{ONE_LAYER} => row[row.abs() <= torch.cat([p.detach().abs().flatten() for p in "
            "model.parameters() if p.dim() > 1]).quantile(sparsity)]"
        ),
        "Whole rows go there; asked are single weights.": (
            *(".data.view(-1) => .data", "row.abs() => row.flatten(1).norm(dim=1)"),
        ),
        "Other layers are pruned there: only the one in question loses weights.": [
            *map(pruning_also, ("p.dim() > 1", "p.dim() > 1 and n != name"))
        ],
        "Biases stay: scan weights only.": [
            *(pruning_also("n[0] == name[0]"), '.endswith("weight") => ')
        ],
        "Asked are accuracies as they come: not what is lost, no percent, not rounded.": [
            f"(accuracy( => ({slip} accuracy(" for slip in ("accuracy(model) -", "100 *")
        ],
        "The net handed to `accuracy` is whole: hand it the cut one.": "(pruned) => (model)",
        "Keep the order in which the sparsities come.": "in sparsities => in sorted(sparsities)",
        "Sizes say which go; weights that stay keep their signs.": "data.view => data.abs_().view",
        "The large weights go there: keep them.": [
            *(".argsort() => .argsort(descending=True)", ("[: round => [round", "))]] => )) :]]")),
        ],
        "Each row has a threshold of its own there: compare all weights of the layer.": (
            *("row = pruned => for row in pruned", ".view(-1) => .flatten(1):"),
            "row[row =>     row[row",
        ),
        BY_SIZE: "row.abs() => row",
        PRUNE_A_COPY: "copy.deepcopy(model) => model",
        OTHER_NAMES: "return found => return {f'fc{i}': v for i, v in enumerate(found.values())}",
        NO_RETURN: "return found => ",
        OF_EACH_LAYER: ["return found => return [*found.values()]", "append( => append([0]) or ("],
    },
    also_right=[scan_by_torch],
)

# 3. Channels of a trunk

WRITERS = "The stem and the last layer of each block write the trunk: all of them lose rows."
READERS = "The first layer of each block and the head read the trunk: all of them lose columns."
ITS_BIAS = "A norm goes with the rows before it: who writes the trunk loses entries, who reads not."
ROWS = "Who writes the trunk loses rows, weight[kept]; who reads it loses columns, weight[:, kept]."
INSIDE = "Channels inside a block leave there: cut the trunk alone."
STATISTICS = "running_mean and running_var lose the same entries as the rows of the weight."
ITS_OWN = "norm.running_mean[kept], norm.running_var[kept]"
WHO_WRITES = "[slim.stem, *(block[3:] for block in slim.blocks)]"
WHO_READS = "[slim.head, *(block[0] for block in slim.blocks)]"
ALL_LAYERS = (
    "*(block[3:] for => *(block[i : i + 2] for i in (0, 3) for",
    "*(block[0] for => *(block[i] for i in (0, 3) for",
)
SHARED = "The copy shares tensors with the net, which training would change: copy.deepcopy first."
REFRESHED = "A forward in training mode changes running_mean and running_var: keep the old ones."
STILL_THERE = "No channel has left, and zeros are channels: cut rows, entries of norms and columns."
MODE = "The net comes in evaluation mode: leave it so, and hand back the smaller one so."
FROZEN = "The smaller net cannot train on: a parameter of it has requires_grad=False."
ANOTHER_NET = "That is a part of another net: cut the `net` that is handed in."
NEW_HEAD = "The head keeps its weights: columns of the old one, not new numbers."
NET_AS_IT_WAS = "The net that was handed in has changed: cut a copy."


class Residual(nn.Module):
    """As on the page, with few channels."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        conv = partial(nn.Conv2d, padding=1, bias=False)
        self.stem = nn.Sequential(conv(1, width, 5, stride=3), nn.BatchNorm2d(width))
        self.blocks = nn.ModuleList()
        for _ in range(2):
            first = conv(width, inner, 3), nn.BatchNorm2d(inner), nn.ReLU()
            self.blocks.append(nn.Sequential(*first, conv(inner, width, 3), nn.BatchNorm2d(width)))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """From images to ten outputs each."""
        trunk = self.stem(images).relu()
        for block in self.blocks:
            trunk = (trunk + block(trunk)).relu()
        return self.head(trunk.mean((2, 3)))


def my_trunk(net, kept):
    """Cut the rows of all that write the trunk, and the columns of all that read it.

    Two tensors that are added need the same channels, so the stem and the last convolution of each
    block lose the same rows. Their norms keep four numbers of a channel: two learned, two measured.
    """
    slim = copy.deepcopy(net)
    for conv, norm in [slim.stem, *(block[3:] for block in slim.blocks)]:  # who writes the trunk
        conv.weight = nn.Parameter(conv.weight.detach()[kept])
        norm.weight, norm.bias = (nn.Parameter(p.detach()[kept]) for p in norm.parameters())
        norm.running_mean, norm.running_var = norm.running_mean[kept], norm.running_var[kept]
    for layer in [slim.head, *(block[0] for block in slim.blocks)]:  # who reads it
        layer.weight = nn.Parameter(layer.weight.detach()[:, kept])
    return slim


def thinning(attempt, width, inner, kept):
    """The outputs of the smaller net, and how many numbers it holds."""
    net = Residual(width, inner).eval()
    with_values(net)
    before = copy.deepcopy(dict(net.state_dict()))
    slim = attempt(net, torch.tensor(kept))
    if not same(dict(net.state_dict()), before):
        raise NotYet(NET_AS_IT_WAS)
    if not isinstance(slim, nn.Module):
        raise NotYet(f"got {short(slim)}", "Return the smaller net.")
    if not all(p.requires_grad for p in slim.parameters()):
        raise NotYet(FROZEN)
    owned = {p.data_ptr() for p in net.state_dict().values()}
    if slim is not net and owned & {p.data_ptr() for p in slim.state_dict().values()}:
        raise NotYet(SHARED)
    images = torch.cos(torch.arange(3 * 14 * 14) * 0.7).view(3, 1, 14, 14)
    count, whole = (sum(p.numel() for p in each.parameters()) for each in (slim, net))
    if count == whole:
        raise NotYet(STILL_THERE)
    if any(len(block[0].weight) > inner for block in getattr(slim, "blocks", [])):
        raise NotYet(ANOTHER_NET)
    if any(int(each) for name, each in slim.named_buffers() if name.endswith("tracked")):
        raise NotYet(REFRESHED)  # in the net that was handed in they are 0
    norms = (m for m in (*net.modules(), *slim.modules()) if isinstance(m, nn.BatchNorm2d))
    if any(norm.training for norm in norms):
        raise NotYet(MODE)
    outputs = slim(images).detach()
    if any(len(block[0].weight) < inner for block in getattr(slim, "blocks", [])):
        raise NotYet(INSIDE)
    head = slim.state_dict().get("head.weight")
    if head is not None and head.shape == (10, len(kept)):  # does a column point where one did?
        old, new = (nn.functional.normalize(each, dim=0) for each in (net.head.weight, head))
        if (old.T @ new).abs().max() < 0.99:
            raise NotYet(NEW_HEAD)
    return outputs, count


check_trunk = Exercise(
    my_trunk,
    read_again='"Which channels can leave a residual net?"',
    cases=[(4, 3, [0, 2]), (3, 3, [1, 2]), (5, 4, [1, 3, 4]), (6, 4, [0, 1, 3, 5])],
    given="a net with a trunk of {0} channels, {1} inside each block, and kept {2}",
    play=thinning,
    same=lambda ours, right: (
        ours[1] == right[1] and torch.allclose(ours[0], right[0], 1e-4, 1e-4, True)
    ),
    compared=lambda ours, right: (
        [f"expected {right[1]:,} parameters, zeros counted", f"got {ours[1]:,}"]
        if ours[1] != right[1]
        else [f"expected outputs of an image {short(right[0][0])}", f"got {short(ours[0][0])}"]
    ),
    hint="kept says which channels stay, with their weights and biases. What a channel wrote is "
    "dropped, and no bias makes up for it; inside the blocks nothing leaves.",
    correct="The trunk is smaller, and the outputs are those of a trunk with zeros there.",
    errors={
        "should contain 4 elements not 2|index 2 is out of bounds.*with size 1": ROWS,
        "have (3 channels, but got 2|2 channels, but got 3)|contain 2 elements not 3": INSIDE,
        "should contain 3 elements not 2": ITS_BIAS,
        "running_(mean|var) should": STATISTICS,
        "size of tensor a|to have 2 channels, but got 4": WRITERS,
        "(weight|bias) should contain|expected bias|size of tensor b|expanded size": ITS_BIAS,
        "not differentiable": "Statistics are measured, not learned: plain tensors, no Parameter.",
        "cannot assign": "Make it a parameter again: nn.Parameter(layer.weight.detach()[...]).",
        r"channels, but got|shapes cannot be multiplied": READERS,
    },
    wrong={
        WRITERS: [f"{WHO_WRITES} => [slim.stem]", f"{WHO_WRITES} => []"],
        READERS: f"{WHO_READS} => [slim.head]",
        SHARED: "return slim => slim.head.bias = net.head.bias; return slim",
        ROWS: [".detach()[kept]) => .detach())", ".detach()[kept]) => .detach()[:, kept])"],
        STILL_THERE: "slim = copy.deepcopy(net) => return copy.deepcopy(net)",
        "Take the columns and the entries of norms that kept names, not the first ones.": [
            *("[:, kept] => [:, : len(kept)]", "p.detach()[kept] => p.detach()[: len(kept)]"),
            "[:, kept] => [:, range(len(kept)) if layer is slim.head else kept]",
        ],
        ITS_BIAS: ["nn.Parameter(p.detach()[kept]) => p", "weight, norm.bias => weight, _"],
        STATISTICS: f"{ITS_OWN} => norm.running_mean, norm.running_var",
        "A channel that stays keeps its own running_mean and running_var.": [
            f"{ITS_OWN} => norm.running_mean[: len(kept)], norm.running_var[: len(kept)]",
            f"{ITS_OWN} => norm.running_mean[: len(kept)], norm.running_var[kept]",
            f"{ITS_OWN} => norm.running_mean[kept], norm.running_var[: len(kept)]",
            f"{ITS_OWN} => torch.zeros(len(kept)), torch.ones(len(kept))",
            "return slim => return slim.apply(lambda m: getattr(m, 'reset_running_stats', int)())",
        ],
        "running_mean and running_var have changed places: the mean stands first.": (
            f"{ITS_OWN} => norm.running_var[kept], norm.running_mean[kept]"
        ),
        "Every channel that kept names stays, however many these are.": [
            f"slim = => kept = kept[:{most}]; slim =" for most in (2, 3)
        ],
        "A new BatchNorm knows nothing of the old one: take the four numbers of each channel.": [
            f"return slim => [norm.reset_parameters() for _, norm in {WHO_WRITES}]; return slim",
            "(p.detach()[kept]) => (p.detach()[kept] ** (p is norm.bias))",  # its weight is 1
        ],
        "Those are other channels: take the ones that kept names.": [
            "slim = => kept = range(len(kept)); slim =",
            "slim = => kept = [c for c in range(net.head.in_features) if c not in kept]; slim =",
        ],
        "Keep the norms' biases, too.": "p.detach()[kept] => p.detach()[kept] * (p is norm.weight)",
        INSIDE: [
            (f"{WHO_WRITES} => [b[:2] for b in slim.blocks]", "slim.head, *(block[0 => *(block[3"),
            ALL_LAYERS,
            *ALL_LAYERS,
            "detach()[:, kept] => detach()[:, kept][... if layer is slim.head else kept]",
        ],
        "Nothing makes up for what left: the numbers that stay are as they were.": (
            "return slim => slim.head.weight.data *= net.head.in_features / len(kept); return slim"
        ),
        REFRESHED: "return slim => slim.train()(torch.ones(2, 1, 14, 14)); return slim.eval()",
        ANOTHER_NET: "slim = copy.deepcopy(net) => slim = Residual(16, 16)",
        NEW_HEAD: "return slim => slim.head = nn.Linear(len(kept), 10); return slim",
        FROZEN: "weight.detach()[kept]) => weight.detach()[kept], requires_grad=False)",
        NET_AS_IT_WAS: "copy.deepcopy(net) => net",
        MODE: [
            "return slim => return slim.train()",
            "slim = => net.train(); slim =",
            "return slim => net.train(); return slim",
        ],
    },
    also_right=[
        ("weight = nn.Parameter( => weight.data = (", "norm.bias = => norm.bias.data ="),
        f"{ITS_OWN} => (buffer[kept] for buffer in list(norm.buffers())[:2])",
    ],
)
