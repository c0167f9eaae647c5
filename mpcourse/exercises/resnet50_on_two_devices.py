"""Exercises of page `resnet50_on_two_devices`: the network, its memory, its time, the best cut."""

import copy
import functools
import re

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet, resnet50

from mpcourse.exercises.exercise import (
    Exercise,
    NotAttempted,
    NotYet,
    call_for_numbers,
    during,
    short,
)
from mpcourse.splitting.placement import try_placement
from mpcourse.splitting.pretended import gpu_name

# 1. The split network

SHAPE = (2, 3, 33, 33)  # of 32 would leave avgpool a single number to average
FEATURES = (2, 512, 5, 5)  # what layer2 makes of them
TWICE = "Layers that are registered twice count twice."
DO_NOT_FIT = "The weights of torchvision's resnet50 do not fit:"
OTHER_OUTPUTS = "the outputs differ from those of torchvision's resnet50"
FLATTEN = "What comes between avgpool and fc in a ResNet?"
ENDS = "What fc gives is right: return it as it is; the loss brings its own softmax."
ORDER = "All parts are called: in torchvision's order, and with nothing else in between?"
ONE = "The outputs for one picture differ: keep the first dimension, whatever its size."
TRAINED = "In training mode the outputs differ; in evaluation mode they are right."
ONCE = "In training, the forward leaves batch norms in that mode and calls each of them once."
IN_INIT = "is still on the CPU when __init__ returns: move it there, not in the forward."
KEEP = "`x.to(place)` leaves x where it was and returns what is moved: x = x.to(place)."
PICTURES = f"Move the pictures to self.first before conv1. {KEEP}"
CROSSING = f"Move what layer2 gives to self.second before layer3 gets it. {KEEP}"
GIVEN = {"conv1": "the pictures", "layer3": "features", "fc": "what is flattened"}
ON_FIRST = {"conv1", "bn1", "layer1", "layer2"}  # and the others on the second
A_HALF = "each device gets a half."
BEHIND_LAYER2 = f"The cut lies behind layer2: features of shape {FEATURES} cross there."
NO_WAY_BACK = "No gradient comes back over the cut."
NOTHING_ELSE = (
    "The pictures go to the first device, the features to the second; nothing else moves."
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
    return network, images, network(images), trained(images.double())


def built_on(attempt, first, second):
    """The outputs in one place and who was called, or the copies over two pretended GPUs."""
    torch.default_generator.manual_seed(5005)
    reference, images, *_ = torchvision_s()
    images = images.clone()  # an attempt may change them
    if first != "cpu":
        return copies_made(attempt, images, first, second)
    with during("as it was built"):
        network = attempt(first, second, 3)
    if not isinstance(network, nn.Module):
        raise NotYet(f"expected a module, got {short(network)}")
    wanted, found = len(reference.state_dict()), len(network.state_dict())
    if found != wanted:
        line = f"expected a state_dict of {wanted} entries, got {found}"
        raise NotYet(line, TWICE * (found > wanted))
    try:
        network.load_state_dict(reference.state_dict())
    except RuntimeError as problem:
        raise NotYet(DO_NOT_FIT, str(problem)[:200]) from None
    called, of_fc = set(), []
    for name, child in network.named_children():
        child.register_forward_pre_hook(lambda *_, name=name: called.add(name))
    network.fc.register_forward_hook(lambda *given: of_fc.append(given[-1]))
    outputs = network.eval()(images)
    if outputs is ...:
        raise NotAttempted
    if not isinstance(outputs, Tensor):
        raise NotYet(f"expected a tensor, got {short(outputs)}")
    try:
        alone = network(images[:1])
    except (IndexError, RuntimeError):  # it counts on two
        alone = images
    trained = network.double().train()(images.double())
    once = all(n == 1 for name, n in network.named_buffers() if name.endswith("tracked"))
    return outputs, called, of_fc[:1], alone, trained, once


def close(outputs, expected):
    return outputs.shape == expected.shape and torch.allclose(outputs, expected, atol=1e-4)


def as_torchvision_s(outcome, first, second):
    """Compare the outputs, or the copies."""
    if first != "cpu":
        return two_copies(*outcome, first, second)
    torch.default_generator.manual_seed(5005)
    reference, _, expected, in_training = torchvision_s()
    outputs, called, of_fc, alone, trained, once = outcome
    if not close(outputs, expected):
        if of_fc and close(of_fc[0], expected):
            raise NotYet(OTHER_OUTPUTS, ENDS)
        never = [name for name, _ in reference.named_children() if name not in called]
        raise NotYet(OTHER_OUTPUTS, f"It never calls {', '.join(never)}." if never else ORDER)
    if not close(alone, expected[:1]):
        raise NotYet(ONE)
    if not once:
        raise NotYet(ONCE)
    if not close(trained, in_training):
        raise NotYet(TRAINED)


def copies_made(attempt, images, first, second):
    saw = []  # the first part that is given something from another device, and the cure
    late = []  # parameters that have no GPU yet when the network is built

    def look(name, part, args):
        places = sorted({gpu_name(parameter.device) for parameter in part.parameters()})
        got = gpu_name(args[0].device)
        if saw or not set(places) - {got}:
            return
        what = GIVEN.get(name, "its input")
        saw.append(f"{name} got {what} on {got}, and is itself on {' and '.join(places)}.")
        home, word = (first, "first") if name in ON_FIRST else (second, "second")
        moved = CROSSING if name == "layer3" else PICTURES if name == "conv1" else KEEP
        placed = f"It belongs on {home}: in __init__ write self.{name}.to({word})."
        saw.append(moved if places == [home] else placed)

    def program(images):
        network = attempt(first, second, 3)
        late.extend(n for n, p in network.named_parameters() if gpu_name(p.device) == "cpu")
        for name, child in network.named_children():
            child.register_forward_pre_hook(functools.partial(look, name))
        network(images).sum().backward()

    try:
        placement = try_placement(program, images)
        error = placement.error
    except RuntimeError as problem:  # convolutions have other words for it
        error = str(problem)
        if "same device" not in error:
            raise
    if saw or error:
        # outside of named parts torch's words stand, with the names of the pretended GPUs
        raise NotYet(*saw or [re.sub(r"cpu:(\d)", r"cuda:\1", error), KEEP])
    if late:
        raise NotYet(f"{late[0]} {IN_INIT}")
    found = [(t.source, t.target, tuple(t.shape), t.backward) for t in placement.transfers]
    went = "; ".join(" ".join(str(transfer).split()) for transfer in placement.transfers)
    return list(placement.parameter_bytes), found, went


def two_copies(held, found, went, first, second):
    if held != sorted([first, second]):
        raise NotYet(f"The parameters are on {', '.join(held)}; {A_HALF}")
    wanted = [("cpu", first, SHAPE, False), (first, second, FEATURES, False)]
    if found == [*wanted, (second, first, FEATURES, True)]:
        return
    over = [shape for *way, shape, backward in found if "cpu" not in way and not backward]
    why = NOTHING_ELSE if any(backward for *_, backward in found) else NO_WAY_BACK
    raise NotYet(f"copied: {went}", BEHIND_LAYER2 if over and over[0] != FEATURES else why)


check_split_resnet50 = Exercise(
    MySplitResNet50,
    read_again='"One network, cut once"',
    cases=[("cpu", "cpu"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")],
    given="two pictures, 3 classes, first {!r} and second {!r}",
    play=built_on,
    look=as_torchvision_s,
    correct="Torchvision's weights fit, the outputs are its own, and one tensor crosses each way.",
    wrong={
        FLATTEN: [
            "torch.flatten(self.avgpool(features), 1) => self.avgpool(features)",
            "self.avgpool(features) => features",
        ],
        ENDS: [f"features), 1)) => features), 1)).{end}" for end in ("softmax(1)", "relu()")],
        ONE: [
            "torch.flatten(self.avgpool(features), 1) => self.avgpool(features).squeeze()",
            "torch.flatten(self.avgpool(features), 1) => self.avgpool(features).view(2, -1)",
        ],
        TRAINED: "features), 1)) => features), 1).mul(1 + self.training))",
        ONCE: ["stem = => self.eval(); stem =", "stem) => (self.layer1(stem), stem)[1])"],
        IN_INIT: ("layer4, self.fc) => layer4)", "self.fc( => self.fc.to(self.second)("),
        "It never calls maxpool.": "self.maxpool( => (",
        "It never calls bn1.": "self.bn1( => (",
        ORDER: [
            ("self.maxpool( => (", "images.to(self.first) => self.maxpool(images.to(self.first))"),
            "self.layer4(self.layer3( => self.layer3(self.layer4(",
        ],
        NO_WAY_BACK: "features.to( => features.detach().to(",
        f"layer3 got features on cuda:0, and is itself on cuda:1.\n{CROSSING}": [
            "features.to(self.second) => features",
            "features.to(self.second) => (features.to(self.second), features)[1]",
        ],
        f"conv1 got the pictures on cpu, and is itself on cuda:0.\n{PICTURES}": [
            "images.to(self.first) => images",
            "images.to(self.first) => (images.to(self.first), images)[1]",
        ],
        "It belongs on cuda:0: in __init__ write self.conv1.to(first).": "(self.conv1, => (",
        "bn1 got its input on cuda:0, and is itself on cpu.": "self.bn1, => ",
        "It belongs on cuda:1: in __init__ write self.fc.to(second).": (
            ", self.fc) => )",
            "self.layer2) => self.layer2, self.fc)",
        ),
        NOTHING_ELSE: [
            "features.to( => features.cpu().to(",
            "features), 1)) => features), 1)).to(self.first)",
        ],
        TWICE: "self.first, => self.twin = self.conv1\n        self.first,",
        BEHIND_LAYER2: (
            "(self.layer3, => (self.layer2, self.layer3,",
            "self.layer1(stem) => self.layer1(stem).to(self.second)",
        ),
        f"The parameters are on cuda:0; {A_HALF}": (
            "num_classes=1000): => num_classes=1000):\n        second = first"
        ),
        "first 'cuda:1' and second 'cuda:0'": (
            "num_classes=1000): => num_classes=1000):\n"
            "        first, second = sorted([first, second])"
        ),
        DO_NOT_FIT: lambda *given: nn.ModuleDict({"model": MySplitResNet50(*given)}),
        "expected a tensor, got None": "return self.fc => self.fc",
        "expected a module, got None": lambda *given: None,
        "as it was built": lambda *given: 1 / 0,
    },
    errors={"shapes cannot be multiplied": FLATTEN, r"to have \d+ channels": ORDER},
    also_right=["torch.flatten(self.avgpool(features), 1) => self.avgpool(features).mean((2, 3))"],
)

# 2. The largest batch


def my_largest_batch(weights, kept, limit):
    """Each device has a largest batch of its own, and the smaller of them is the step's.

    A weight takes its bytes three times: for itself, its gradient and its momentum. What is left of
    the limit goes to pictures, and only whole ones count.
    """
    most = [(limit - 3 * w) // k for w, k in zip(weights, kept, strict=True)]
    return max(0, int(min(most)))


def by_trying(weights, kept, limit):
    pictures = 0
    while all(3 * w + (pictures + 1) * k <= limit for w, k in zip(weights, kept, strict=True)):
        pictures += 1
    return pictures


check_batch_over_devices = Exercise(
    my_largest_batch,
    read_again='"What does each device hold?"',
    cases=[
        ([10], [7], 100),
        ([5, 10], [20, 10], 100),
        ([4, 20], [6, 11], 100),
        ([10, 4], [7, 8], 100),
        ([3, 5, 2], [10, 9, 4], 109),
        ([3, 5, 2], [9, 14, 10], 109),  # the middle device is full first
        ([3, 2, 5], [8, 9, 20], 109),  # the last one is
        ([10, 40], [5, 5], 100),
    ],
    given="weights {}, kept {} and limit {}",
    play=call_for_numbers,
    hint="3 * weights + pictures * kept must be at most limit, on each device.",
    wrong={
        "A weight has a gradient and a momentum as well: three times its bytes.": "3 * w => w",
        "The optimizer's state is missing: momentum is one more number for each weight.": (
            "3 * => 2 *"
        ),
        "That is Adam, with two more numbers for each weight; momentum is one.": "3 * => 4 *",
        "Every device must fit: the one that is full first decides.": [
            "min => max",
            "min(most) => min([m for m in most if m > 0] or [0])",
        ],
        "The devices do not share their memory: each has a limit of its own.": (
            lambda w, k, limit: max(0, int((len(w) * limit - 3 * sum(w)) // sum(k)))
        ),
        "The largest batches of the devices do not add up: all pictures visit each device.": [
            "min => sum",
            "int(min(most)) => int(min(most)) * len(most)",
        ],
        "A device holds its weights once, however many pictures there are.": (
            "(limit - 3 * w) // k => limit // (3 * w + k)"
        ),
        "That is the mean of the devices; the one that is full first decides.": "min => np.mean",
        "That is the first device alone.": "min(most) => most[0]",
        "That is the first two devices alone.": "min(most) => min(most[:2])",
        "The devices between the first and the last have to fit as well.": (
            "min(most) => min(most[0], most[-1])"
        ),
        "That is the last device alone.": "min(most) => most[-1]",
        "A part of a picture cannot be trained on: round down.": [
            ("// k => / k", "int => float"),
            ("// k => / k", "int => round"),
            "(limit - 3 * w) // k => -((3 * w - limit) // k)",
        ],
        "That many fit, and one more does too.": "int(min(most)) => int(min(most)) - 1",
        "With one picture less it fits; with this many it does not.": "return => return 1 +",
        "A batch of less than 0 pictures: if not one fits, return 0.": "max(0, => (",
        "If not one picture fits, return 0.": ["max(0 => max(1", "max(0 => max(-1"],
        "The weights take room as well.": " - 3 * w => ",
    },
    also_right=[by_trying, lambda w, k, limit: torch.tensor(my_largest_batch(w, k, limit))],
)

# 3. The time of a naive step


def my_naive_time(forward, backward, copy):
    """Nothing overlaps, so the times add up.

    Between p stages there are p - 1 cuts, and a tensor crosses each of them twice: the output on
    its way forward, the gradient on its way back.
    """
    return sum(forward) + sum(backward) + 2 * (len(forward) - 1) * copy


def stage_by_stage(forward, backward, copy):
    now = -copy
    for time in forward:
        now += copy + time
    now -= copy
    for time in reversed(backward):
        now += copy + time
    return torch.tensor(now)


check_naive_time = Exercise(
    my_naive_time,
    read_again='"Who works when?"',
    cases=[
        ([2], [5], 3),
        ([1, 3], [2, 7], 0),
        ([1, 3], [2, 7], 2),
        ([1, 3, 2], [2, 5, 4], 0.3),
        ([2, 1, 1, 4], [3, 9, 2, 2], 1),
    ],
    given="forward {}, backward {} and copy {}",
    play=call_for_numbers,
    hint="Write down what happens one after the other: stages, and what crosses between them.",
    wrong={
        "Gradients cross the cut as well, on their way back.": "2 * => ",
        "Copies take time as well.": lambda f, b, c: sum(f) + sum(b),
        "Between p stages there are p - 1 cuts.": [" - 1 => ", ("2 * => ", " - 1 => ")],
        "There may be other than two stages.": " * (len(forward) - 1) => ",
        "Nothing overlaps in a naive step: the others wait while one stage works.": [
            "sum => max",
            lambda f, b, c: max(f) + max(b),
            lambda f, b, c: max(map(sum, zip(f, b, strict=True))),
        ],
        "The backward is a part of the step.": lambda f, b, c: sum(f) + (len(f) - 1) * c,
        "The stages work one after the other: add up, no mean.": "sum => np.mean",
        "Times have fractions: do not round.": lambda *given: int(my_naive_time(*given)),
        "None is what a function without return": lambda *_: None,
    },
    also_right=[stage_by_stage],
)

# 4. The best cut by time


def my_cut_by_time(forward, backward):
    """Try every cut, and keep the one whose busier device has the least work.

    A device does the forward and the backward of its blocks, so both are added up first. Both
    devices need a block, so k runs from 1 to one less than there are. Stopping when half of the
    work is reached can miss the better neighbour.
    """
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    return min(range(1, len(both)), key=lambda k: max(sum(both[:k]), sum(both[k:])))


def until_half(forward, backward):
    half = (sum(forward) + sum(backward)) / 2
    return next(k for k in range(len(forward) + 1) if sum(forward[:k]) + sum(backward[:k]) >= half)


def past_half(forward, backward):
    half = (sum(forward) + sum(backward)) / 2
    return next(k for k in range(len(forward) + 1) if sum(forward[:k]) + sum(backward[:k]) > half)


def before_half(forward, backward):
    half = (sum(forward) + sum(backward)) / 2
    return max(k for k in range(len(forward)) if sum(forward[:k]) + sum(backward[:k]) <= half)


check_cut_by_time = Exercise(
    my_cut_by_time,
    read_again='"And the time?"',
    cases=[
        ([1, 1, 1, 1], [2, 2, 2, 2]),
        ([4, 1, 1, 1], [3, 2, 1, 1]),
        ([3, 1, 1, 1], [2, 2, 3, 3]),
        ([2, 2, 5, 1], [3, 1, 1, 1]),
        ([1, 1, 3, 1], [2, 1, 1, 2]),
        ([1, 2, 1, 1], [2, 2, 1, 2]),
        ([9, 1, 1, 1], [18, 2, 2, 2]),
        ([1, 1, 1, 9], [2, 2, 2, 18]),
        ([1, 2, 1], [0, 0, 0]),  # two cuts are as good
        ([0, 5], [0, 7]),  # behind no block would be as good
        ([1, 1, 2, 3, 5], [5, 1, 3, 1, 1]),  # forward and backward busiest on different devices
        ([1, 1, 3], [2, 3, 1]),  # one of the two is busiest alone
    ],
    given="forward {} and backward {}",
    play=call_for_numbers,
    hint="Add up each block's forward and backward; look at the busier device behind every cut.",
    wrong={
        "Add up forward and backward of each device first, then take the busier device.": [
            "max(sum(both[:k]), sum(both[k:])) => "
            f"{both}(max(sum(times[:k]), sum(times[k:])) for times in (forward, backward))"
            for both in ("sum", "max")
        ],
        "That cut is as good; asked is the smallest one.": (
            "range(1, len(both)) => range(len(both) - 1, 0, -1)"
        ),
        "The first device would have no block.": [
            "range(1, => range(",
            lambda f, b: torch.tensor(0),
        ],
        "The second device may have one block alone: try that cut, too.": (
            "range(1, len(both)) => range(1, len(both) - 1)"
        ),
        "The second device would have no block.": lambda f, b: len(f),
        "That is half of the blocks; blocks take different times.": lambda f, b: len(f) // 2,
        "There the less busy device has the least work; asked is the busier one.": "max => min",
        "Forward alone says this; the backward counts as well.": "f + b => f",
        "Backward alone says this; the forward counts as well.": "f + b => b",
        "You stop when half is reached; with one block fewer the busier device has less to do.": [
            until_half,
            past_half,
        ],
        "You stop before half is passed; with one more block the busier device has less to do.": (
            before_half
        ),
        "That is the position of the first device's last block; count its blocks.": (
            "return => return -1 +"
        ),
        "That is the work of the busier device; return the number of blocks.": (
            "range(1, len(both)), key=lambda k: => ",
            "both[k:])) => both[k:])) for k in range(1, len(both))",
        ),
        "None is what a function without return": lambda *_: None,
    },
    also_right=[lambda *given: np.array(my_cut_by_time(*given))],
)
