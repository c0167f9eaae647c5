"""Exercises of page `split_a_model`: a step over two devices, balanced stages, places, parts."""

import copy
import re
from functools import cache
from itertools import accumulate, chain, combinations, pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpcourse.exercises.exercise import NO_RETURN, Exercise, NotYet, numbers, same, short
from mpcourse.splitting.cuts import crossing_bytes
from mpcourse.splitting.placement import try_placement
from mpcourse.splitting.pretended import gpu_name
from mpcourse.splitting.splits import balanced_bounds, split_sequential

# 1. A training step over two places

NO_LOSS = "expected the loss, a tensor of 0 dimensions; got "
THE_LOSS = "It is cross_entropy of the outputs and the labels."
CUT_OFF = "It is cut off: detach(), .data, no_grad(), deepcopy() and requires_grad_(False) do that."
WHO = "They come from loss.backward(), on the parts that came in, with no zero_grad() after it."
INPUTS = "The inputs have to be on {}, beside the first part."
FIRST_PART = "The first part has to be on {} too: a module is moved by .to as well."
HIDDEN = "The hidden rows have to be brought to {}."
SECOND_PART = "The second part has to be on {} too: a module is moved by .to as well."
LABELS = "The labels are on {}; the outputs come out on {}."
NOT_KEPT = "They were copied there, but x.to(place) leaves x where it is: keep what it returns."
USE_BOTH = "All layers are on {}: use both."
NOT_NEEDED = "This copy is not needed: {}."
TO_OUTPUTS = "Bring the labels to the outputs, not the outputs to the labels."
PARTS = "gradient of front", "gradient of back"
SWAPPED = "The places are swapped: front belongs on {}, back on {}."
BACKWARD_TWICE = "The gradients are twice as large: one backward, of the loss itself, is enough."
PLAIN = "`.item()` makes a plain number of it: return the tensor itself."
NO_UPDATE = "The weights have changed: forward and backward are asked, no optimizer's step."
STAY = "At the end, a part is back on the host: leave it where it was moved to."
AGAIN_IN_BACKWARD = "backward was called twice: once is enough."


def my_training_step(front, back, inputs, labels, first, second):
    """Each thing goes to where it is needed next.

    The outputs come out on the second place, so the labels go there as well. The backward needs no
    `.to`: that of `hidden.to(second)` brings the gradient back. Moving the outputs to the first
    place would work too, but costs two more copies.
    """
    hidden = front.to(first)(inputs.to(first))
    outputs = back.to(second)(hidden.to(second))
    loss = cross_entropy(outputs, labels.to(second))
    loss.backward()
    return loss


def step_on(attempt, first, second):
    """A step for real on the CPU, or one over two pretended GPUs, whose copies are counted."""
    torch.default_generator.manual_seed(4004)
    front, back = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)
    given = front, back, torch.randn(7, 6), torch.randint(0, 3, (7,)), first, second
    if first != "cpu":
        return copies_made(attempt, *given)
    weights = copy.deepcopy([*front.parameters(), *back.parameters()])
    loss = attempt(*given)
    if not isinstance(loss, Tensor) or loss.dim():
        why = NO_RETURN if loss is None else PLAIN * isinstance(loss, float)
        raise NotYet(f"{NO_LOSS}{short(loss)}", why)
    gradients = [[p.grad for p in part.parameters()] for part in (front, back)]
    for name, held in zip(("front", "back"), gradients, strict=True):
        if None in held:
            why = WHO if None in gradients[1] else CUT_OFF
            raise NotYet(f"There is a loss, but {name} has no gradient.", why)
    if not same([*front.parameters(), *back.parameters()], weights):
        raise NotYet(NO_UPDATE)
    return {"loss": loss.detach(), **dict(zip(PARTS, gradients, strict=True))}


def copies_made(attempt, front, back, inputs, labels, first, second):
    # part -> where its rows and its weights were
    saw = {"front": [first, first], "back": [second, second]}
    for name, part in (("front", front), ("back", back)):

        def look(part, args, name=name):
            saw[name] = [gpu_name(t.device) for t in (args[0], next(part.parameters()))]

        part.register_forward_pre_hook(look)
    placement = try_placement(attempt, front, back, inputs, labels, first, second)
    found = [(t.source, t.target, t.shape) for t in placement.transfers]
    if placement.error:
        copied = {shape: target for _, target, shape in found}
        raise NotYet(
            f"at: {placement.line}",
            placement.error,
            *unmoved(saw, copied, placement.error, first, second),
        )
    wanted = [("cpu", first, (7, 6)), ("cpu", second, (7,))]
    wanted += [(first, second, (7, 5)), (second, first, (7, 5))]
    if sorted(found) == sorted(wanted):
        if "cpu" in placement.parameter_bytes:
            raise NotYet(STAY)
        return [(source, target, tuple(shape)) for source, target, shape in sorted(found)]
    if [saw["front"][1], saw["back"][1]] == [second, first]:
        raise NotYet(SWAPPED.format(first, second))
    if len(placement.parameter_bytes) < 2:
        raise NotYet(USE_BOTH.format(*placement.parameter_bytes))
    more = [t for t, way in zip(placement.transfers, found, strict=True) if way not in wanted]
    words = NOT_NEEDED.format(" ".join(str(more[0]).split())) if more else "One copy is made twice."
    to_outputs = TO_OUTPUTS if more and more[0].shape == (7, 3) else ""
    raise NotYet(f"expected 4 copies, got {len(found)}", words, to_outputs)


def unmoved(saw, copied, error, first, second):
    """What was in the wrong place when something was computed with it."""
    rows, weights = saw["front"]
    if rows != first:
        return INPUTS.format(first), NOT_KEPT * (copied.get((7, 6)) == first)
    if weights != first:
        return [FIRST_PART.format(first)]
    rows, weights = saw["back"]
    if rows != second:
        return HIDDEN.format(second), NOT_KEPT * (copied.get((7, 5)) == second)
    if weights != second:
        return [SECOND_PART.format(second)]
    where = {*re.findall(r"cpu|cuda:\d", error)} - {second}
    where = " or ".join(sorted(where)).replace("cpu", "the host")
    return LABELS.format(where, second), NOT_KEPT * (copied.get((7,)) == second)


def where_numbers_differ(outcome, expected):
    loss, right = (float(each["loss"]) for each in (outcome, expected))
    if not same(loss, right):
        return [f"expected a loss of {right:.6f}, got {loss:.6f}"]
    name = next(name for name in expected if not same(outcome[name], expected[name]))
    if all(same(outcome[each], [2 * g for g in expected[each]]) for each in PARTS):
        return [BACKWARD_TWICE]
    return [f"The loss is right, but the {name} is not."]


check_training_step = Exercise(
    my_training_step,
    read_again='"Two pretended GPUs"',
    cases=[("cpu", "cpu"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")],
    given="first {!r} and second {!r}",
    play=step_on,
    compared=where_numbers_differ,
    hint=lambda outcome, expected: "" if same(outcome["loss"], expected["loss"]) else THE_LOSS,
    correct="Loss and gradients are right, and four copies are made.",
    wrong={
        INPUTS.format("cuda:0"): "inputs.to(first) => inputs",
        f"{INPUTS.format('cuda:0')}\n{NOT_KEPT}": (
            "(inputs.to(first)) => (inputs)",
            "hidden = => inputs.to(first); hidden =",
        ),
        FIRST_PART.format("cuda:0"): "front.to(first) => front",
        HIDDEN.format("cuda:1"): "hidden.to(second) => hidden",
        f"{HIDDEN.format('cuda:1')}\n{NOT_KEPT}": (
            "(hidden.to(second)) => (hidden)",
            "outputs = => hidden.to(second); outputs =",
        ),
        SECOND_PART.format("cuda:1"): "back.to(second) => back",
        LABELS.format("the host", "cuda:1"): "labels.to(second) => labels",
        LABELS.format("cuda:0", "cuda:1"): "labels.to(second) => labels.to(first)",
        f"{LABELS.format('the host', 'cuda:1')}\n{NOT_KEPT}": (
            "labels.to(second) => labels",
            "loss = => labels.to(second); loss =",
        ),
        TO_OUTPUTS: "outputs, labels.to(second) => outputs.to(first), labels.to(first)",
        USE_BOTH.format("cuda:0"): ".to(second) => .to(first)",
        NOT_NEEDED.format("forward cpu -> cuda:0 (7,) 56 bytes"): "labels. => labels.to(first).",
        "This copy is not needed": "return loss => return loss.cpu()",
        PLAIN: "return loss => return loss.item()",
        f"{NO_LOSS}None\n{NO_RETURN}": "return loss => ",
        CUT_OFF: ["hidden.to => hidden.detach().to", "front.to => front.requires_grad_(False).to"],
        WHO: ["loss.backward() => ", "back.to => copy.deepcopy(back).to"],
        NO_UPDATE: "return loss => torch.optim.SGD(back.parameters(), lr=0.1).step(); return loss",
        STAY: "return loss => front.to('cpu'); return loss",
        "Leave out the softmax: cross_entropy has it inside.": "(outputs, => (outputs.softmax(1),",
        "That is the sum over the rows: leave out reduction, the mean is asked.": (
            "labels.to(second) => labels.to(second), reduction='sum'"
        ),
        THE_LOSS: "return loss => return loss * 2",
        BACKWARD_TWICE: [
            "loss.backward() => loss.backward(retain_graph=True); loss.backward()",
            "loss.backward() => (2 * loss).backward()",
            lambda *given: [my_training_step(*given), my_training_step(*given)][-1],
        ],
        AGAIN_IN_BACKWARD: "return loss => return loss.backward()",
        SWAPPED.format("cuda:0", "cuda:1"): "first, second): => second, first):",
        "the gradient of front is not.": "return loss => front.zero_grad(False); return loss",
        "Given first 'cuda:1'": ".to(second) => .to(second.replace('0', '1'))",
        "The order is cross_entropy(": (
            "(outputs, labels.to(second)) => (labels.to(second), outputs)"
        ),
        "a pretended tensor has no numbers": "return loss => return loss if loss.item() > 0 else 0",
        "Use the places that come in": ".to(first) => .to('cuda:98')",
    },
    errors={
        "for 'Long'|does not require grad": "The order is cross_entropy(outputs, labels).",
        "(?i)with cuda|nvidia|cuda error|no cuda": "Use the places that come in, first and second.",
        "backward through the graph a second time": AGAIN_IN_BACKWARD,
    },
    also_right=[
        ("(inputs.to(first)) => (inputs)", "hidden = => inputs = inputs.to(first); hidden ="),
        (
            "outputs = => leaf = hidden.detach().to(second).requires_grad_(); outputs =",
            "(hidden.to(second)) => (leaf)",
            "loss.backward() => loss.backward(); hidden.backward(leaf.grad.to(first))",
        ),
    ],
)

# 2. Stages of one model, balanced by parameters

NO_WEIGHT = "A layer may have no weight, as a ReLU: go through layer.parameters()."
NO_STAGES = "expected a list of nn.Sequential, got "
EMPTY = "A stage is empty: its device would have nothing to do."
EMPTIED = "The model itself has lost layers: slice it, and it stays whole."
BIASES = "That balances the weights alone: biases are parameters too."
FROZEN = "A frozen layer takes room too: count it, whatever requires_grad says."
NOT_ITS_OWN = "A layer in it is not the model's own: cut the model, do not copy it."
IN_ORDER = "each once, in the order of the model."


def my_split(model, num_stages):
    """Try every end of the first stage; what is left is the same question with one stage fewer.

    Each stage gets at least one layer, and enough are left for the stages to come, so none is empty
    and no layer is lost. Filling one stage after the other cannot work: whether a layer still
    belongs in this stage depends on the layers to come. For hundreds of layers,
    `balanced_bounds` finds the same faster.
    """
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in model]

    @cache  # each question is answered once
    def best(start, stages):  # the largest stage, and where the stages end, from `start` on
        if stages == 1:
            return sum(sizes[start:]), [len(sizes)]
        found = []
        for end in range(start + 1, len(sizes) - stages + 2):
            largest, ends = best(end, stages - 1)
            found.append((max(sum(sizes[start:end]), largest), [end, *ends]))
        return min(found)

    _, ends = best(0, num_stages)
    return [model[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def made_of(sizes):
    """Layers of so many weights (0: a ReLU, below: frozen), or (inputs, outputs) with biases."""

    def layer(size):
        if isinstance(size, tuple):
            return nn.Linear(*size)
        free = nn.Linear(1, abs(size), bias=False) if size else nn.ReLU()
        return free.requires_grad_(size > 0)

    return nn.Sequential(*map(layer, sizes))


def parameters_of(layers):
    return [sum(p.numel() for p in layer.parameters()) for layer in layers]


def cut_into_stages(attempt, sizes, num_stages):
    """Where the stages begin and end, what they hold, and what the largest can be at best."""
    model = made_of(sizes)
    number = {id(layer): index for index, layer in enumerate(model)}
    stages = attempt(model, num_stages)
    is_list = isinstance(stages, list | tuple | nn.ModuleList | nn.Sequential)
    if not is_list or not all(isinstance(stage, nn.Sequential) for stage in stages):
        raise NotYet(f"{NO_STAGES}{short(stages)}")
    if len(model) < len(sizes):
        raise NotYet(EMPTIED)
    found = [number.get(id(layer)) for stage in stages for layer in stage]
    lost, words = sorted({*range(len(model))} - {*found}), ""
    if len(stages) != num_stages:
        words = f"That makes {len(stages)} stages."
    elif not all(map(len, stages)):
        words = EMPTY
    elif None in found:
        words = NOT_ITS_OWN
    elif lost:
        words = f"Layer {lost[-1]}{', the last,' * (lost[-1] == len(model) - 1)} is in no stage."
    elif found != sorted({*found}):
        words = f"The layers are {found}: {IN_ORDER}"
    if words:
        raise NotYet(f"got stages of {[len(stage) for stage in stages]} layers", words)
    costs = parameters_of(model)
    best = max(sum(costs[a:b]) for a, b in pairwise(balanced_bounds(costs, num_stages)))
    return [*accumulate(map(len, stages))], parameters_of(stages), best


def as_good(outcome, expected):
    """The same choice, or both as good as can be."""
    (choice, held, best), (other, theirs, _) = outcome, expected
    return choice == other or max(held) == max(theirs) == best


def stages_of(model, bounds):
    return [model[a:b] for a, b in pairwise(bounds)]


def most_alike(model, num_stages):
    cuts = combinations(range(1, len(model)), num_stages - 1)
    found = [stages_of(model, [0, *cut, len(model)]) for cut in cuts]
    return min(found, key=lambda stages: max(parameters_of(stages)) - min(parameters_of(stages)))


def filled_up(beyond):
    """Each stage filled up to the average before the next is opened, or a layer `beyond` it."""

    def attempt(model, num_stages):
        costs, bounds = parameters_of(model), [0]
        average = sum(costs) / num_stages
        for index in range(1, len(costs)):
            held = sum(costs[bounds[-1] : index])
            full = held >= average if beyond else held + costs[index] > average
            if full or len(costs) - index == num_stages - len(bounds):
                bounds += [index] * (len(bounds) < num_stages)
        return stages_of(model, [*bounds, len(costs)])

    return attempt


def halving(model, num_stages):
    """The right answer for two stages, asked of the largest stage until there are enough."""
    parts = [model]
    while len(parts) < num_stages:
        held = parameters_of(parts)
        index = max(range(len(parts)), key=lambda i: (len(parts[i]) > 1, held[i]))
        parts[index : index + 1] = my_split(parts[index], 2)
    return parts


check_split = Exercise(
    my_split,
    read_again='"Half of the layers, half of the parameters?"',
    cases=[
        ([1, 1, 1, 1], 2),
        ([5, 1, 1, 1], 2),
        ([2, 2, 2, 6, 1], 2),
        ([4, 3, 3], 2),
        ([9, 1, 1], 3),
        ([(6, 1), 3, 3], 2),
        ([-6, 2, 2, 2], 2),
        ([3, 0, (1, 2), 0, 5], 2),
        ([0, (1, 6), 0, (5, 1), (7, 1)], 2),
        ([4, 4, 4, 4, 4, 4], 3),
        ([1, 8, 3, 2, 1, 1], 3),
        ([1, 1, 1, 10, 1, 1], 3),
        ([2, 3, 4, 5, 6], 1),
        ([3, 7, 2, 6, 5, 1, 4], 4),
    ],
    given=lambda sizes, stages: (
        f"layers of {parameters_of(made_of(sizes))} parameters and {stages} stages"
        + ", the first layer frozen" * (sizes[0] in range(-99, 0))
    ),
    play=cut_into_stages,
    same=as_good,
    compared=lambda outcome, expected: [
        f"got stages of {outcome[1]} parameters; the largest can have {expected[2]} parameters"
    ],
    hint="Compare all cuts by their largest stage.",
    wrong={
        "That shares out the layers evenly, not their parameters.": lambda m, n: stages_of(
            m, [round(len(m) * i / n) for i in range(n + 1)]
        ),
        "Filling each stage up before opening the next is greedy: compare all cuts.": [
            filled_up(beyond=True),
            filled_up(beyond=False),
        ],
        BIASES: "in layer.parameters() => in layer.parameters() if p.dim() > 1",
        "Those stages are as alike as can be; asked is that the largest be small.": most_alike,
        "Halving the largest stage again and again is greedy, too: compare all cuts.": halving,
        "`p.numel()` counts all numbers of a parameter, not its rows.": "p.numel() => len(p)",
        EMPTIED: "ends = best(0, num_stages) => ends = best(0, num_stages); model.pop(-1)",
        FROZEN: "in layer.parameters() => in layer.parameters() if p.requires_grad",
        "Compare all cuts": "min(found) => found[0]",
        "Layer 3, the last, is in no stage": "for layer in model] => for layer in model][:-1]",
        EMPTY: lambda m, n: [*my_split(m, n - 1), nn.Sequential()],
        "That makes 1 stages": lambda m, n: [m],
        NOT_ITS_OWN: lambda m, n: my_split(copy.deepcopy(m), n),
        IN_ORDER: lambda m, n: my_split(m, n)[::-1],
        NO_STAGES: ["model[a:b] => list(model[a:b])", lambda m, n: None],
        NO_WEIGHT: "sum(p.numel() for p in layer.parameters()) => layer.weight.numel()",
    },
    errors={"attribute 'weight'": NO_WEIGHT},
    also_right=[split_sequential, lambda model, n: nn.ModuleList(my_split(model, n))],
)

# 3. Places under a limit

ONE_GPU = "One GPU has all the layers: use both."
FROM_GPU_0 = "The first layer goes to GPU 0."
ONE_CUT = "tensors cross between the GPUs: one cut is enough."
DOUBLE, FROZEN_RELU = "in double precision", "frozen, with a ReLU behind it"
RUN_IT = "A layer may be no Linear: go through its parameters(), run it and look at the output."
TOO_MANY_BYTES = "bytes cross, more than the limit."


def my_places(net, inputs, limit):
    """Run the net layer by layer: each output that is small enough is a possible cut.

    Of these, take the one whose fuller GPU holds the fewest bytes of parameters. The last output
    is no cut: behind it there is no layer for the other GPU.
    """
    held = [sum(p.nbytes for p in layer.parameters()) for layer in net]
    fuller = {}
    for cut in range(1, len(net)):
        inputs = net[cut - 1](inputs)
        if inputs.nbytes <= limit:
            fuller[cut] = max(sum(held[:cut]), sum(held[cut:]))
    cut = min(fuller, key=fuller.get)
    return [0] * cut + [1] * (len(net) - cut)


class Casting(nn.Linear):
    """Takes rows of any precision and computes in its own."""

    def forward(self, rows):
        """The outputs, in the weights' precision."""
        return super().forward(rows.to(self.weight.dtype))


def placed(attempt, widths, rows, limit, what="", where=0):
    """The cut, what each GPU then holds, and what the fuller one can hold at best."""
    net = nn.Sequential(*(Casting(a, b) for a, b in pairwise(widths)))
    if what == DOUBLE:
        net[where].double()
    elif what:
        net[where].requires_grad_(False)
        net.insert(where + 1, nn.ReLU())
    inputs = torch.zeros(rows, widths[0])
    held = [sum(p.nbytes for p in layer.parameters()) for layer in net]
    sent = crossing_bytes(net, inputs)
    places = numbers(attempt(net, inputs, limit))
    if not isinstance(places, list) or len(places) != len(net):
        raise NotYet(f"expected {len(net)} places, one per layer; got {short(places)}")
    if any(place not in (0, 1) for place in places):
        raise NotYet(f"a place is 0 or 1; got {short(places)}")
    got = f"got {short([int(place) for place in places])}"
    cuts = [index for index, (a, b) in enumerate(pairwise(places), 1) if a != b]
    if len(cuts) != 1 or places[0] == 1:
        crossing = f"{len(cuts)} {ONE_CUT}" if cuts and places[0] == 0 else FROM_GPU_0
        raise NotYet(got, crossing if cuts else ONE_GPU)
    (cut,) = cuts
    if sent[cut - 1] > limit:
        raise NotYet(got, f"Behind layer {cut}, {sent[cut - 1]} {TOO_MANY_BYTES}")
    fuller = {c: max(sum(held[:c]), sum(held[c:])) for c in range(1, len(net))}
    best = min(m for c, m in fuller.items() if sent[c - 1] <= limit)
    return cut, [fuller[cut]], best


check_places = Exercise(
    my_places,
    read_again='"Where does a cut cost least?"',
    cases=[
        ([8, 8, 8, 8], 4, 128),
        ([4, 64, 2, 32, 4], 10, 80),
        ([4, 2, 40, 3, 50, 8], 10, 120),
        ([50, 2, 40, 60, 30], 5, 800),
        ([6, 30, 6, 20, 6, 30, 4], 10, 240),
        ([10, 8, 20, 59, 43, 6, 60], 5, 860),
        ([6, 6, 6, 1, 8, 12], 5, 160, DOUBLE, 1),
        ([30, 4, 6, 4, 20], 5, 120, FROZEN_RELU, 0),
    ],
    given=lambda widths, rows, limit, what="", where=0: (
        f"the net {'-'.join(map(str, widths))}, {rows} rows of float32 and a limit of {limit} bytes"
        + f", layer {where} {what}" * bool(what)
    ),
    play=placed,
    same=as_good,
    compared=lambda outcome, expected: [
        f"got a cut behind {outcome[0]} layer(s)",
        f"The fuller GPU has {outcome[1][0]} bytes of parameters; "
        f"{expected[2]} are possible within the limit.",
    ],
    hint="A tensor of exactly {2} bytes may cross. Of all cuts allowed, which is best balanced?",
    wrong={
        TOO_MANY_BYTES: ["inputs.nbytes <= limit => True", "<= limit => <= 2 * limit"],
        "Behind layer 2, 240 bytes cross": "inputs.nbytes <= => 4 * inputs.numel() <=",
        RUN_IT: "sum(p.nbytes for p in layer.parameters()) => layer.weight.nbytes",
        BIASES: "in layer.parameters() => in layer.parameters() if p.dim() > 1",
        FROZEN: "in layer.parameters() => in layer.parameters() if p.requires_grad",
        "Another cut balances better: compare all.": [
            f"min(fuller, key=fuller.get) => {m}(fuller)" for m in ("min", "max")
        ],
        "That is the smallest tensor; any within the limit may cross.": (
            "max(sum(held[:cut]), sum(held[cut:])) => inputs.nbytes"
        ),
        "That is nearest to the middle by layers; their bytes of parameters count.": (
            "max(sum(held[:cut]), sum(held[cut:])) => abs(2 * cut - len(net))"
        ),
        "Bytes, not numbers: one in double precision has 8.": "p.nbytes => p.numel()",
        "A tensor of exactly 128 bytes may cross.": "<= => <",
        ONE_GPU: lambda net, inputs, limit: [0] * len(net),
        ONE_CUT: lambda net, inputs, limit: [index % 2 for index in range(len(net))],
        FROM_GPU_0: "[0] * cut + [1] => [1] * cut + [0]",
        "one per layer": lambda *given: my_places(*given)[1:],
        "a place is 0 or 1": "[0] * cut + [1] => [1] * cut + [2]",
    },
    also_right=[
        lambda *given: tuple(place == 1 for place in my_places(*given)),
        lambda *given: np.array(my_places(*given)),
        lambda *given: list(torch.tensor(my_places(*given))),
    ],
    errors={"attribute '(weight|bias|in_features|out_features)'": RUN_IT},
)

# 4. Two parts of one model

TWO_MODULES = "expected two modules, got "
COPIES = "These are copies: training the parts would leave the model as it was."
NEW_MODEL = "None of their parameters is the model's: use its own layers, make no new model."
NOTHING_LEFT = "One part has no parameters: the other has all, or a plain list hides them."
IN_BOTH = "A parameter is in both parts: two devices cannot both update it."
IN_NONE = "parameters are in no part of yours."
EXTRA = "The parts have parameters that the model has not."
OTHER_CUT = "The first part holds fc1, the second fc2 and fc3."
BEFORE_FC1 = "In the model, what happens to an image before fc1?"
DROPOUT = "A Dropout changes numbers at random: the model's forward has none."
ONE_OF_SEVERAL = "nn.Sequential(a, b) makes one module of several."
NO_BRACKETS = "Brackets are missing: nn.ReLU is a class, nn.ReLU() is a module."
NO_FUNCTION = "That relu is a function: nn.ReLU() is the module."
NO_MOVE = "Leave the layers where they are: nothing has to be moved here."
NO_WAY_BACK = "No gradient can flow back from the outputs."


class Net(nn.Module):
    """Built like the model of the page, smaller."""

    def __init__(self, pixels=12):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(pixels, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, images):
        """All that the parts have to do."""
        return self.fc3(self.fc2(self.fc1(images.flatten(1)).relu()).relu())


def my_parts(model):
    """Write down all that `forward` does, in order, with the layers of this one model.

    Flattening and the two ReLUs have no parameters and are no attributes of the model, so they are
    lost when only its layers are collected. Nothing follows fc3. The parts share the model's
    parameters, so training them trains the model.
    """
    first = nn.Sequential(nn.Flatten(), model.fc1, nn.ReLU())
    return [first, nn.Sequential(model.fc2, nn.ReLU(), model.fc3)]


def outputs_of_parts(attempt, count, height, width):
    torch.default_generator.manual_seed(4004)
    model = Net(height * width).double()
    images = 9 * torch.randn(count, 1, height, width).double()
    parts = attempt(model)
    is_list = isinstance(parts, list | tuple | nn.Sequential | nn.ModuleList)
    if not is_list or [isinstance(part, nn.Module) for part in parts] != [True, True]:
        raise NotYet(f"{TWO_MODULES}{short(parts)}", ONE_OF_SEVERAL)
    if words := wrong_parameters(model, parts):
        raise NotYet(words)
    outputs = parts[1](parts[0](images))
    if not isinstance(outputs, Tensor):
        raise NotYet(f"expected a tensor out of the second module, got {short(outputs)}")
    is_right = same(outputs, model(images))
    if not is_right and any(isinstance(m, nn.Dropout) for part in parts for m in part.modules()):
        raise NotYet(DROPOUT)
    if is_right and (words := untrained(model, outputs)):
        raise NotYet("the outputs are right", words)
    return outputs


def wrong_parameters(model, parts):
    held, own = [list(part.parameters()) for part in parts], list(model.parameters())
    found, ours = [id(p) for p in chain(*held)], {id(p) for p in own}
    if all(held) and not {*found} & ours:
        equal = len(found) == len(own) and all(map(torch.equal, chain(*held), own))
        return COPIES if equal else NEW_MODEL
    if not all(held):
        return NOTHING_LEFT
    if len({*found}) < len(found):
        return IN_BOTH
    if {*found} != ours:
        lost = len(ours - {*found})
        return f"{lost} of the model's {len(own)} {IN_NONE}" if lost else EXTRA
    return OTHER_CUT * ({*map(id, held[0])} != {*map(id, model.fc1.parameters())})


def untrained(model, outputs):
    """Whether training the parts would leave a parameter of the model as it is."""
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if frozen:
        return f"{frozen[0]} is frozen: its requires_grad is False now."
    if not outputs.requires_grad:
        return NO_WAY_BACK
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
    lost = [name for name, gradient in zip(names, found, strict=True) if gradient is None]
    return f"{lost[0]} gets no gradient: something is cut off by detach()." if lost else ""


DETACHED = "return => {}.register_forward_hook(lambda *given: given[-1].detach()); return"

check_parts = Exercise(
    my_parts,
    read_again='"Snippets you will meet"',
    cases=[(50, 3, 4), (20, 2, 5)],
    given="{} images of {} x {} and a model for them",
    play=outputs_of_parts,
    compared=lambda outcome, expected: ["the outputs differ from the model's"],
    hint="Write down, in order, all that forward does, then cut that list in two.",
    wrong={
        "Both ReLUs are lost: they were in forward, not among the layers.": ", nn.ReLU() => ",
        "A ReLU is lost: the one between fc2 and fc3.": "model.fc2, nn.ReLU() => model.fc2",
        "A ReLU is lost: the one between fc1 and fc2.": "model.fc1, nn.ReLU() => model.fc1",
        "No ReLU follows fc3: outputs may be negative.": "model.fc3 => model.fc3, nn.ReLU()",
        "No softmax follows fc3: cross_entropy has it inside.": [
            f"model.fc3 => model.fc3, nn.{softmax}(1)" for softmax in ("Softmax", "LogSoftmax")
        ],
        "The model bends with ReLU alone.": [
            f"nn.ReLU => nn.{a}" for a in ("GELU", "ReLU6", "Tanh", "LeakyReLU")
        ],
        "Each ReLU stands before its layer: it comes after it.": (
            "model.fc1, nn.ReLU() => nn.ReLU(), model.fc1",
            "model.fc2, nn.ReLU() => nn.ReLU(), model.fc2",
        ),
        DROPOUT: "model.fc3 => nn.Dropout(), model.fc3",
        NO_BRACKETS: "nn.ReLU() => nn.ReLU",
        NO_FUNCTION: ["nn.ReLU() => torch.relu", "nn.ReLU() => nn.functional.relu"],
        NO_MOVE: "nn.Flatten() => nn.Flatten().to('cuda:0'), nn.Linear(9, 9).to('cuda:0')",
        "Write down, in order": (
            "model.fc1, nn.ReLU() => model.fc1",
            "model.fc3 => model.fc3, nn.ReLU()",
        ),
        BEFORE_FC1: "nn.Flatten(), => ",
        NEW_MODEL: lambda m: my_parts(Net().double()),
        EXTRA: "model.fc3 => nn.LayerNorm(6).double(), model.fc3",
        COPIES: lambda m: my_parts(copy.deepcopy(m)),
        NOTHING_LEFT: lambda m: [m, nn.Identity()],
        IN_BOTH: lambda m: [m, m.fc3],
        f"2 of the model's 6 {IN_NONE}": lambda m: [m.fc1, m.fc3],
        OTHER_CUT: [lambda m: [nn.Sequential(m.fc1, m.fc2), m.fc3], lambda m: my_parts(m)[::-1]],
        ONE_OF_SEVERAL: [
            lambda m: [[m.fc1], [m.fc2, m.fc3]],
            lambda m: nn.Sequential(*my_parts(m)[0]),
        ],
        TWO_MODULES: [lambda m: [m.fc1, m.fc2, m.fc3], lambda m: None],
        "fc1.weight gets no gradient": DETACHED.format("first"),
        "fc1.weight is frozen": lambda m: my_parts(m.requires_grad_(False)),
        NO_WAY_BACK: DETACHED.format("model.fc3"),
    },
    errors={
        "shapes cannot be multiplied": BEFORE_FC1,
        "relu is not a Module subclass": NO_FUNCTION,
        "not a Module subclass": NO_BRACKETS,
        "(?i)with cuda|nvidia|cuda error|no cuda": NO_MOVE,
    },
    also_right=[
        ("model.fc1, nn.ReLU() => model.fc1", "(model.fc2 => (nn.ReLU(), model.fc2"),
        lambda m: tuple(my_parts(m)),
    ],
)
