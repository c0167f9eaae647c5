"""Exercises of page `resnet50_on_two_devices`: the network, its memory, its time, its cut."""

import copy
import functools
import re

import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet, resnet50

from mpcourse.exercises.exercise import (
    NO_RETURN,
    Exercise,
    NotAttempted,
    NotYet,
    call_for_numbers,
    leaving_alone,
    short,
)
from mpcourse.splitting.placement import try_placement
from mpcourse.splitting.pretended import gpu_name

# 1. The split network

SHAPE = (2, 3, 33, 33)  # of 32 would leave avgpool a single number
FEATURES = (2, 512, 5, 5)  # what layer2 makes of them
LAYERS = ("layer1", "layer2", "layer3", "layer4")
EARLY = ("conv1", "bn1", *LAYERS[:2])
FLATTEN = "Is every part before fc called, and does flatten come between avgpool and fc?"
ORDER = "Are all parts called once, in torchvision's order, and with nothing else in between?"
ONE = "The outputs for one picture differ: keep the first dimension, whatever its size."
TRAINED = "In training mode the outputs or running statistics differ."
UNTRAINED = "gets no gradient: is something detached, or computed under no_grad?"
DETACHED = "The outputs have no gradient: return them without detach(), and without no_grad."
GIVEN = "Move to the two devices that __init__ is given, whatever they are."
IN_INIT = "when __init__ returns; by then conv1 to layer2 belong on first, the others on second."
KEPT = "__init__ keeps the devices, and in the forward they are self.first and self.second."
MOVE = (
    "Move the pictures to self.first before conv1, and what layer2 gives to self.second before "
    "layer3. `x.to(place)` leaves x where it was and returns what is moved: x = x.to(place)."
)
NAMES = (
    "The inherited parts keep their names. A part that becomes an attribute once more, as in "
    "self.seq1 = nn.Sequential(self.conv1, …), has a second name in the state_dict."
)
SUPER = "Call super().__init__(…) first: it makes the layers that are moved after it."
CLASSES = (
    "__init__ takes first, second and num_classes, and hands num_classes on to super().__init__."
)
GIVE_CLASS = "Give the check the class itself, and not a network that is built from it."
MODE = "The forward calls eval() or train(): leave the mode to the caller."
AGAIN = (
    "The backward runs a part once more (checkpoint?): batch norm then collects its statistics "
    "twice. Call each part once, without checkpoint."
)
BLOCKS = "They are Bottleneck blocks: 3, 4, 6 and 3 of them in layer1 to layer4."
ROUNDED = "Nearly right, but rounded: move the tensors in their own dtype, without half()."
EACH = "Each picture given has its own row of outputs: take all of them, in their order."
COPIES = (
    "The pictures go to the first device, the features behind layer2 to the second, their gradient "
    "comes back; nothing else moves."
)


class MySplitResNet50(ResNet):
    """The inherited layers stay under their own names, so torchvision's weights fit.

    Each layer with parameters is moved once. The pictures go to the first device, the features to
    the second, and between pooling and `fc` the two empty dimensions are flattened away.
    """

    def __init__(self, first, second, num_classes=1000):
        super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=num_classes)
        self.first, self.second = first, second
        for part in (self.conv1, self.bn1, self.layer1, self.layer2):
            part.to(first)
        for part in (self.layer3, self.layer4, self.fc):
            part.to(second)

    def forward(self, images):  # noqa: D102
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images.to(self.first)))))
        features = self.layer2(self.layer1(stem))
        features = self.layer4(self.layer3(features.to(self.second)))
        return self.fc(torch.flatten(self.avgpool(features), 1))


@functools.cache
def torchvision_s():
    """The network as it should be, two pictures, and what it makes of them, and in training."""
    network = resnet50(num_classes=3).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # a fresh one hands its input on
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    images = torch.randn(SHAPE)
    trained = copy.deepcopy(network).double().train()  # two numbers a channel: their norm may flip
    with torch.no_grad():  # what is kept here would keep all weights
        return network, images, network(images), trained(images.double())


def built_on(attempt, first, second):
    """The outputs in one place, or the copies over two pretended GPUs."""
    torch.default_generator.manual_seed(5005)
    reference, images, *_ = torchvision_s()
    images = images.clone()  # an attempt may change them
    if first != "cpu":
        return copies_made(attempt, images, first, second)
    network = attempt(first, second, 3)
    if not isinstance(network, nn.Module):
        raise NotYet(f"expected a module, got {short(network)}")
    try:
        network.load_state_dict(reference.state_dict())
    except RuntimeError as problem:
        line = "The weights of torchvision's resnet50 do not fit, by name or size:"
        raise NotYet(line, str(problem)[:200], why_not(network, reference)) from None
    called = set()
    for name, child in network.named_children():
        child.register_forward_pre_hook(lambda *_, name=name: called.add(name))
    outputs = network.eval()(images)
    modes = {module.training for module in network.modules()}
    if outputs is ...:
        raise NotAttempted
    if not isinstance(outputs, Tensor):
        why = NO_RETURN if outputs is None else "Return the outputs themselves, alone."
        raise NotYet(f"expected a tensor, got {short(outputs)}", why)
    try:
        alone = network(images[:1])
    except (IndexError, RuntimeError, ValueError):  # it counts on two
        alone = images
    try:
        trained = network.double().train()(images.double())
    except RuntimeError:  # it makes them float
        for name, buffer in network.named_buffers():
            if name.endswith("tracked"):
                buffer.zero_()
        trained = network.float()(images).double()
    kept = modes == {False} and all(module.training for module in network.modules())
    times = passes(network)
    if trained.requires_grad:
        trained.sum().backward()
    why = [MODE] * (not kept) + [AGAIN] * (passes(network) != times)
    return outputs, called, alone, trained, times == {1}, "".join(why[:1])


def passes(network):
    """How often batch norms have collected statistics: a set of numbers."""
    return {int(n) for name, n in network.named_buffers() if name.endswith("tracked")}


def why_not(network, reference):
    """What to say if the weights of the one do not fit the other."""
    mine, its = network.state_dict(), reference.state_dict()
    elsewhere = {name.split(".")[0] for name in mine.keys() ^ its.keys()}
    if not elsewhere:
        return BLOCKS if mine["fc.bias"].shape == its["fc.bias"].shape else CLASSES
    return BLOCKS if all(name in LAYERS for name in elsewhere) else NAMES


def close(outputs, expected, atol=1e-4):
    return outputs.shape == expected.shape and torch.allclose(outputs, expected, atol=atol)


def as_torchvision_s(outcome, first, second):
    """Compare the outputs, or the copies."""
    if first != "cpu":
        return two_copies(*outcome, first, second)
    reference, _, expected, in_training = torchvision_s()
    outputs, called, alone, trained, once, wrong = outcome
    if not close(outputs, expected):
        if outputs.ndim == 2 and len(outputs) != len(expected):
            raise NotYet(f"expected 2 rows, got {len(outputs)}", EACH)
        never = [name for name, _ in reference.named_children() if name not in called]
        why = ROUNDED if close(outputs, expected, atol=0.02) else wrong or ORDER
        why = f"It never calls {', '.join(never)}." if never else why
        raise NotYet("the outputs differ from those of torchvision's resnet50", why)
    if not close(alone, expected[:1]):
        raise NotYet(ONE)
    # another dtype rounds
    if wrong == AGAIN or not once or not close(trained, in_training, atol=1e-2):
        raise NotYet(TRAINED, wrong or ORDER)


def copies_made(attempt, images, first, second):
    wrong = []  # parameters elsewhere when built, or without gradient

    def program(images):
        network = attempt(first, second, 3)
        places = {name: gpu_name(p.device) for name, p in network.named_parameters()}
        for name, place in places.items():
            if place != (first if name.startswith(EARLY) else second):
                wrong.append(f"{name} is on {place} {IN_INIT}")
        network(images).sum().backward()
        named = network.named_parameters()
        wrong.extend(f"{name} {UNTRAINED}" for name, p in named if p.grad is None)

    try:
        placement = try_placement(program, images)
        error = placement.error
    except RuntimeError as problem:  # convolutions have other words for it
        error = str(problem)
        if "same device" not in error:
            raise
    if wrong:
        raise NotYet(wrong[0])
    if error:  # torch's words, with the names of the pretended GPUs
        raise NotYet(re.sub(r"cpu:(\d)", r"cuda:\1", error), MOVE)
    found = [(t.source, t.target, tuple(t.shape), t.backward) for t in placement.transfers]
    went = "; ".join(" ".join(str(transfer).split()) for transfer in placement.transfers)
    return found, went


def two_copies(found, went, first, second):
    there = [("cpu", first, SHAPE, False), (first, second, FEATURES, False)]
    if found != [*there, (second, first, FEATURES, True)]:
        raise NotYet(f"copied: {went}", COPIES)


check_split_resnet50 = Exercise(
    MySplitResNet50,
    read_again='"One network, cut once"',
    cases=[("cpu", "cpu"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")],
    given="two pictures, 3 classes, first {!r} and second {!r}",
    play=built_on,
    look=as_torchvision_s,
    correct="Torchvision's weights fit, the outputs are its own, and one tensor crosses each way.",
    wrong={
        FLATTEN: ["features), 1)) => features), -1))", "self.layer4( => ("],
        ONE: "torch.flatten(self.avgpool(features), 1) => self.avgpool(features).squeeze()",
        EACH: "images.to(self.first) => images[:1].to(self.first)",
        ROUNDED: "features.to(self.second) => features.half().to(self.second).float()",
        MODE: ["stem = => self.eval(); stem =", "stem = => self.train(); stem ="],
        TRAINED: "features), 1)) => features), 1)) * (1 + self.training)",
        AGAIN: (
            "self.layer2(self.layer1(stem)) => "
            "torch.utils.checkpoint.checkpoint("
            "lambda x: self.layer2(self.layer1(x)), stem, use_reentrant=False)"
        ),
        GIVE_CLASS: lambda *given: MySplitResNet50("cpu", "cpu")(*given),
        IN_INIT: [
            ("layer4, self.fc) => layer4)", "self.fc( => self.fc.to(self.second)("),
            "to(second) => to(first)",
            ("self.layer2) => )", "(self.layer3, => (self.layer2, self.layer3,"),
        ],
        "It never calls maxpool.": "self.maxpool( => (",
        "Call `relu` once": (
            "features = self.layer4( => features = self.relu(self.layer4(",
            "(self.second))) => (self.second))))",
        ),
        ORDER: [
            "features), 1)) => features), 1)).softmax(1)",
            "self.bn1(self.conv1( => self.conv1(self.bn1(",
        ],
        MOVE: [
            "features.to(self.second) => features",
            "images.to(self.first) => (images.to(self.first), images)[1]",
        ],
        DETACHED: "features), 1)) => features), 1)).detach()",
        UNTRAINED: ["features.to => features.data.to", "stem = => with torch.no_grad(): stem ="],
        COPIES: "features), 1)) => features), 1)).to(self.first)",
        "do not fit": "self.first, => self.twin = self.conv1\n        self.first,",
        BLOCKS: ["[3, 4, 6, 3] => [3, 4, 4, 3]", "[3, 4, 6, 3] => [3, 4, 23, 3]"],
        CLASSES: [", num_classes=num_classes) => )", ", num_classes=1000 => "],
        SUPER: "super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=num_classes) => pass",
        NAMES: "self.first, => self.seq1 = nn.Sequential(self.conv1)\n        self.first,",
        NO_RETURN: "return => images =",
        GIVEN: 'part.to(first) => part.to("cuda:0")',
        KEPT: ["first, self.second = first, second => first = first", "self.first)) => first))"],
    },
    errors={
        r"__init__\(\).*positional argument": CLASSES,
        r"forward\(\) takes \d+ positional arguments? but 4": GIVE_CLASS,
        r"(?<!Tensor' object has )no attribute '(conv1|bn1|layer[1-4]|fc|_[a-z_]+s)'": SUPER,
        r"__init__\(\) call": SUPER,
        "(name|attribute) '(first|second)'": KEPT,
        "does not require grad": DETACHED,
        "cannot be multiplied": FLATTEN,
        r"\d channels|running_mean": ORDER,
        "(?i)cuda|nvidia": GIVEN,
        "no numbers": "Move tensors with to(place); no print or if on values, tolist() or item().",
        "inplace operation": "Call `relu` once, behind bn1: it works in place, as do += and *=.",
    },
    also_right=[
        "torch.flatten(self.avgpool(features), 1) => self.avgpool(features).mean((2, 3))",
        "images.to(self.first) => images.to(self.first).float()",
        "features.to( => features.float().to(",
    ],
)

# 2. The largest batch

CHANGED = "The caller's lists have other contents afterwards: leave them as they are."


def my_largest_batch(weights, kept, limit):
    """Each device has a largest batch of its own, and the smaller of them is the step's.

    A weight takes its bytes three times: for itself, its gradient and its momentum. What is left of
    the limit goes to pictures, and only whole ones count.
    """
    most = [(limit - 3 * w) // k for w, k in zip(weights, kept, strict=True)]
    return max(0, int(min(most)))


check_batch_over_devices = Exercise(
    my_largest_batch,
    read_again='"What does each device hold?"',
    cases=[
        ([10], [7], 100),
        ([10], [80], 100),  # the weights fit, and no picture does
        ([5, 10], [20, 10], 100),
        ([4, 20], [6, 11], 100),
        ([10, 4], [7, 8], 100),
        ([3, 5, 2], [9, 14, 10], 109),  # the middle device is full first
        ([3, 2, 5], [8, 9, 20], 109),  # the last one is
        ([10, 40], [5, 5], 100),
    ],
    given="weights {}, kept {} and limit {}",
    play=leaving_alone(CHANGED, call_for_numbers),
    hint="Return a number: the most pictures with 3 * weights + pictures * kept <= limit on each.",
    wrong={
        "A weight has a gradient and a momentum as well: three times its bytes.": [
            "3 * w => w",
            "- 3 * w => ",
        ],
        "Momentum is one more number for each weight.": ["3 * => 2 *", "3 * => 4 *"],
        "Activations count only once.": [
            ("3 * w => w", "// k => / 3 // k"),
            *("// k => / 3 // k", "// k => / 2 // k"),
        ],
        "Full to the last byte is allowed.": "(limit - => (limit - 1 -",
        "Every device must fit: the one that is full first decides.": [
            f"min(most) => {x}"
            for x in ("max(most)", "min(most[:2])", "most[0]", "sum(most) / len(most)")
        ],
        "The device that keeps most for a picture need not be full first: look at all.": (
            "min(most) => most[kept.index(max(kept))]"
        ),
        "One number is asked: the batch that all devices hold.": "max(0, int(min(most))) => most",
        "Each device has weights, activations and a limit of its own: do not mix them.": [
            lambda w, k, limit: max(0, int((len(w) * limit - 3 * sum(w)) // sum(k))),
            lambda w, k, limit: max(0, int((limit - 3 * max(w)) // max(k))),
            lambda w, k, limit: max(0, int((limit - 3 * min(w)) // min(k))),
            *("limit - => limit / len(weights) -", "3 * w => 3 * sum(weights)"),
            "3 * w => 3 * (weights[0] + weights[-1])",
        ],
        "The largest batches of the devices do not add up: all pictures visit each device.": [
            f"min => {x}" for x in ("sum", "len(most) * min")
        ],
        "A device holds its weights once, however many pictures there are.": [
            f"(limit - 3 * w) // k => limit // {x}" for x in ("(3 * w + k)", "(3 * (w + k))")
        ],
        "Only whole pictures, and no more than fit: round down.": [
            ("// k => / k", f"int( => {x} + ") for x in ("float(0", "int(0.5", "int(0.99", "int(1")
        ],
        CHANGED: "most = => w = weights.pop(0); weights.insert(0, w + 1); most =",
        "Weights count three times, and not for each picture; what is kept counts for each.": (
            lambda w, k, limit: my_largest_batch(k, w, limit)
        ),
        "A device without room for its weights holds no picture: then return 0.": (
            "strict=True)] => strict=True) if 3 * w <= limit] or [0]"
        ),
        "Return 0 if none fits.": [f"max(0, => {x}" for x in ("(", "max(1,", "max(-1,", "abs(")],
    },
    errors={
        "IndexError": "There may be any number of devices: go through all of them.",
        "'list'": "weights and kept are lists, a number for each device: go through both.",
    },
    also_right=[lambda w, k, limit: torch.tensor(my_largest_batch(w, k, limit))],
)

# 3. The time of a naive step


def my_naive_time(forward, backward, copy):
    """Nothing overlaps, so the times add up.

    Between p stages there are p - 1 cuts, and a tensor crosses each of them twice: the output on
    its way forward, the gradient on its way back.
    """
    return sum(forward) + sum(backward) + 2 * (len(forward) - 1) * copy


check_naive_time = Exercise(
    my_naive_time,
    read_again='"Half the layers each: faster, the same, slower?"',
    cases=[
        ([2], [5], 3),
        ([1, 3], [2, 7], 0),
        ([1, 3], [2, 7], 2),
        ([1, 3, 2], [2, 5, 4], 0.3),
    ],
    given="forward {}, backward {} and copy {}",
    play=leaving_alone(CHANGED, call_for_numbers),
    hint="Return one number: add what happens one after the other, stages and what crosses.",
    wrong={
        "Gradients cross the cut as well, on their way back.": "2 * => ",
        "Copies take time as well.": lambda f, b, c: sum(f) + sum(b),
        "Each of the copies takes the time `copy`: multiply by it.": "1) * copy => 1)",
        "Between p stages are p - 1 cuts, so 2 * (p - 1) copies.": [
            *(f"- 1) => {x})" for x in ("", "- 0.5", "/ 2", "- 2")),
            "(len(forward) - 1) => len(forward) - 1",
            *(f"2 * (len => {x} * (len" for x in (3, 4, "len(forward)")),
        ],
        "Every stage has a backward: add up all of them.": [
            f"sum(backward) => sum(backward[{some}])" for some in ("1:", ":-1")
        ],
        "There may be other than two stages.": " * (len(forward) - 1) => ",
        "Add the backward's own times.": [
            f"sum(backward) => {x} * sum(forward)" for x in (0, 1, 2)
        ],
        "Each stage works twice, in the forward and in the backward: add both.": (
            lambda f, b, c: sum(map(max, f, b)) + 2 * (len(f) - 1) * c
        ),
        "Nothing overlaps in a naive step: the others wait while one stage works.": [
            "sum => max",
            "sum(backward) => max(backward)",
            "sum(forward) => max(forward)",
        ],
        "Copies hide behind no work here: add them to the stages' times.": (
            lambda f, b, c: sum(max(x, c) for x in [*f, *b])
        ),
        "The stages that wait add no time of their own.": "sum => len(forward) * sum",
        "Each stage has times of its own: add them all.": "sum => len(forward) * max",
        "A mean is the time of one stage: add up all.": "sum( => 1 / len(forward) * sum(",
        CHANGED: lambda f, b, c: [my_naive_time(f, b, c), f.clear()][0],
    },
    errors={
        "IndexError": "There may be any number of stages, one as well.",
        "concatenate|'list'": "These are lists, a time for each stage: add up what is in them.",
    },
    also_right=[lambda *given: torch.tensor(my_naive_time(*given))],
)

# 4. The cut


def my_best_cut(room, sent, work, batch, rate):
    """First what must be: a cut that allows the batch. Of these, the least time decides.

    The busier device sets the pace. The activations cross the link, and their gradient comes back.
    """

    def seconds(k):
        busier = max(sum(work[: k + 1]), sum(work[k + 1 :]))
        return busier + 2 * sent[k] / rate

    enough = [k for k in range(len(room)) if room[k] >= batch]
    return min(enough, key=seconds, default=None)


FRONT, BACK = "sum(work[: k + 1])", "sum(work[k + 1 :])"
BUSIER = f"max({FRONT}, {BACK})"
check_best_cut = Exercise(
    my_best_cut,
    read_again='"Which cut, over which link?"',
    cases=[
        ([4], [10], [3, 5], 4, 5),
        ([4, 5], [6, 11], [1, 4, 9], 2, 5),
        ([3, 6], [8, 5], [5, 3, 1], 2, 4),
        ([4, 5], [6, 8], [3, 3, 4], 2, 5),
        ([3, 2, 9, 4, 3, 2, 8, 5], [9, 2, 9, 10, 9, 9, 8, 14], [2, 6, 6, 9, 3, 6, 3, 5, 7], 3, 0.5),
        ([3, 3, 6, 6, 7, 9, 5, 6], [3, 5, 13, 8, 5, 5, 10, 4], [6, 9, 8, 1, 5, 4, 5, 7, 2], 5, 2),
        ([6, 4, 6, 6, 9], [13, 7, 9, 9, 3], [1, 5, 7, 6, 7, 4], 4, 0.5),
        ([3, 3], [12, 1], [6, 5, 3], 3, 1),
        ([1, 2], [5, 3], [2, 2, 2], 3, 2),
    ],
    given="room {}, sent {}, work {}, batch {} and rate {}",
    play=leaving_alone(CHANGED, call_for_numbers),
    hint="Keep the k whose room is enough. Compare work of the busier device + 2 * sent[k] / rate.",
    wrong={
        "k is asked, not its time.": [
            "min(enough, key=seconds => min(map(seconds, enough)",
            "min(enough, key=seconds => min(((seconds(k), k) for k in enough)",
            "(enough, key=seconds => (((k, seconds(k)) for k in enough), key=lambda way: way[1]",
        ],
        "A batch as large as the room fits.": ">= batch => > batch",
        "A cut with more room than the batch needs will do as well.": ">= batch => == batch",
        "The last cut counts as well: there are len(room) of them.": (
            "range(len(room)) => range(len(room) - 1)"
        ),
        "Count k from the first block, also past the cuts that do not allow the batch.": [
            ("min(enough => [*enough, None].index(min(enough", "=None) => =None))"),
        ],
        "The cut is *behind* block k: it is the first device's last.": [
            *("k + 1 => k", "k + 1 => k + 2", "min(enough => 1 + min(enough"),
            *("work[: k + 1] => work[:k]", "work[k + 1 :] => work[k + 2 :]"),
        ],
        "k = 0 is a cut as well (and `or` and `if` take 0 for false).": [
            "=None) => =None) or None",
            "return min(enough, key=seconds, default=None) => best = None\n    for k in enough:\n"
            "        best = k if not best or seconds(k) < seconds(best) else best\n    return best",
        ],
        "Take the fastest of the cuts that allow the batch, not of all.": (
            ">= batch => >= batch and seconds(k) == min(map(seconds, range(len(room))))"
        ),
        "Leave out the cuts that do not allow the batch.": " if room[k] >= batch => ",
        "k ends at len(room) - 1": "range(len(room)) => range(len(work))",
        "More room than the batch needs is no gain.": [
            f"=seconds => =lambda k: ({x}room[k], seconds(k))" for x in ("-", "")
        ],
        "Of the cuts that allow the batch, the fastest is asked.": [
            "min(enough, key=seconds, default=None) => next(iter(enough), None)",
            "min(enough, key=seconds => max(enough, key=seconds",
            "min(enough, key=seconds => max(enough",
        ],
        "What is sent is not all: the work of the busier device changes with the cut, too.": [
            *("busier + => ", "=seconds => =lambda k: (sent[k], seconds(k))"),
        ],
        "Copies take time as well.": " + 2 * sent[k] / rate => ",
        "Add two copies, of activations and their gradient, to the busier device's whole work, "
        "not to the difference between the two.": [
            *("2 * => ", f"{BUSIER} => abs({FRONT} - {BACK})"),  # both choose the same
        ],
        "Two tensors cross: the activations, and their gradient on its way back.": "2 * => 4 *",
        "Work and bytes are those of one picture: `batch` only says which cuts are allowed.": [
            *("2 * => 2 * batch *", "2 * => 2 / batch *"),
        ],
        "A copy takes bytes / rate: rate is in bytes a second.": [
            *("/ rate => * rate", " / rate => ", "/ rate => // rate", "2 * => 16 *"),
        ],
        "The busier device waits for its copies here: add the two times.": [
            "busier + 2 * sent[k] / rate => max(busier, 2 * sent[k] / rate)",
            "busier + 2 * sent[k] / rate => max(busier, sent[k] / rate)",
        ],
        "The copies come after the busier device's work, whichever device that is.": (
            (f"{BUSIER} => 0", f"busier + => max({FRONT}, {BACK} - 2 * sent[k] / rate) +")
        ),
        "The busier device is the one with more work: the larger sum.": [
            f"{BUSIER} => {x}" for x in (FRONT, BACK, f"min({FRONT}, {BACK})")
        ],
        "Behind block k, sent[k] crosses.": "sent[k] => sent[min(k + 1, len(sent) - 1)]",
        "Half of the blocks is not half of the work.": (
            f"{BUSIER} => sum(work) * max(k + 1, len(room) - k) / len(work)"
        ),
        "Return None if no cut allows the batch.": ["default=None => default=0", "None => -1"],
        CHANGED: "return min(enough => room.clear(); return min(enough",
    },
    errors={
        "empty": "min of nothing: there may be no cut that allows the batch.",
        "IndexError": "k ends at len(room) - 1 (`work` has one entry more), and perhaps no cut "
        "allows the batch.",
    },
    also_right=["key=seconds => key=lambda k: float(seconds(k))"],
)
