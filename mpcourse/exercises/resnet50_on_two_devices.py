"""Exercises of page `resnet50_on_two_devices`: the network, the share in use, the best cuts."""

import functools

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
from mpcourse.schedules.actions import Action
from mpcourse.schedules.timeline import Event, Timeline
from mpcourse.splitting.placement import try_placement
from mpcourse.splitting.pretended import gpu_name

# 1. The split network

FEATURES = (2, 512, 4, 4)  # what layer2 makes of two pictures
TWICE = "Layers that are registered twice count twice."
DO_NOT_FIT = "The weights of torchvision's resnet50 do not fit:"
OTHER_OUTPUTS = "the outputs differ from those of torchvision's resnet50"
FLATTEN = "What comes between avgpool and fc in a ResNet?"
ORDER = "All parts are called: in which order does torchvision's forward call them?"
LEFT_BEHIND = "Parts, pictures, features: what is where it was? Keep what x.to(place) returns."
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
    """The network as it should be, two pictures, and what it makes of them."""
    network = resnet50(num_classes=3).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # a fresh one hands its input on
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    images = torch.randn(2, 3, 32, 32)
    return network, images, network(images)


def built_on(attempt, first, second):
    """Build the network in one place and compare it, or count copies over two pretended GPUs."""
    torch.default_generator.manual_seed(5005)
    reference, images, expected = torchvision_s()
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
    called = set()
    for name, child in network.named_children():
        child.register_forward_pre_hook(lambda *_, name=name: called.add(name))
    outputs = network.eval()(images)
    if outputs is ...:
        raise NotAttempted
    if not isinstance(outputs, Tensor):
        raise NotYet(f"expected a tensor, got {short(outputs)}")
    if outputs.shape != expected.shape or not torch.allclose(outputs, expected, atol=1e-4):
        never = [name for name, _ in reference.named_children() if name not in called]
        raise NotYet(OTHER_OUTPUTS, f"It never calls {', '.join(never)}." if never else ORDER)


def copies_made(attempt, images, first, second):
    saw = []  # what each part was given, and where the part is

    def look(name, part, args):
        places = {gpu_name(parameter.device) for parameter in part.parameters()}
        if places - {gpu_name(args[0].device)}:
            saw.append(f"{name} is on {' and '.join(sorted(places))}, ")
            saw[-1] += f"what it is given on {gpu_name(args[0].device)}."

    def program(images):
        network = attempt(first, second, 3)
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
    if error:
        raise NotYet(*saw[:1] or [error], LEFT_BEHIND)
    held = list(placement.parameter_bytes)
    if held != sorted([first, second]):
        raise NotYet(f"The parameters are on {', '.join(held)}; {A_HALF}")
    found = [(t.source, t.target, t.shape, t.backward) for t in placement.transfers]
    wanted = [("cpu", first, (2, 3, 32, 32), False), (first, second, FEATURES, False)]
    if found == [*wanted, (second, first, FEATURES, True)]:
        return
    over = [shape for *way, shape, backward in found if "cpu" not in way and not backward]
    why = NOTHING_ELSE if any(backward for *_, backward in found) else NO_WAY_BACK
    went = "; ".join(" ".join(str(transfer).split()) for transfer in placement.transfers)
    raise NotYet(f"copied: {went}", BEHIND_LAYER2 if over and over[0] != FEATURES else why)


def network_with(
    images=lambda n, x: x.to(n.first),
    stem=lambda n, x: n.maxpool(n.relu(n.bn1(n.conv1(x)))),
    front=lambda n, x: n.layer2(n.layer1(x)),
    cut=lambda n, x: x.to(n.second),
    back=lambda n, x: n.layer4(n.layer3(x)),
    head=lambda n, x: n.fc(torch.flatten(n.avgpool(x), 1)),
    places=lambda *places: places,
    more=lambda n: None,
):
    """The solution, with a hook at each place where people go wrong."""

    class Variant(MySplitResNet50):
        def __init__(self, first, second, num_classes):
            super().__init__(*places(first, second), num_classes)
            more(self)

        def forward(self, x):
            return head(self, back(self, cut(self, front(self, stem(self, images(self, x))))))

    return Variant


check_split_resnet50 = Exercise(
    MySplitResNet50,
    read_again='"One network, cut once"',
    cases=[("cpu", "cpu"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")],
    given="two pictures, 3 classes, first {!r} and second {!r}",
    play=built_on,
    same=None,
    correct="Torchvision's weights fit, the outputs are its own, and one tensor crosses each way.",
    wrong={
        FLATTEN: network_with(head=lambda n, x: n.fc(n.avgpool(x))),
        "It never calls maxpool.": network_with(stem=lambda n, x: n.relu(n.bn1(n.conv1(x)))),
        "It never calls bn1.": network_with(stem=lambda n, x: n.maxpool(n.relu(n.conv1(x)))),
        ORDER: [
            network_with(stem=lambda n, x: n.relu(n.bn1(n.conv1(n.maxpool(x))))),
            network_with(back=lambda n, x: n.layer3(n.layer4(x))),
        ],
        NO_WAY_BACK: network_with(cut=lambda n, x: x.detach().to(n.second)),
        f"layer3 is on cuda:1, what it is given on cuda:0.\n{LEFT_BEHIND}": [
            network_with(cut=lambda n, x: x),
            network_with(cut=lambda n, x: (x.to(n.second), x)[1]),
        ],
        "conv1 is on cuda:0, what it is given on cpu.": network_with(images=lambda n, x: x),
        "bn1 is on cpu, what it is given on cuda:0.": network_with(
            more=lambda n: n.add_module("bn1", nn.BatchNorm2d(64))
        ),
        NOTHING_ELSE: [
            network_with(cut=lambda n, x: x.cpu().to(n.second)),
            network_with(head=lambda n, x: n.fc(torch.flatten(n.avgpool(x), 1)).to(n.first)),
        ],
        TWICE: network_with(more=lambda n: n.add_module("twin", n.conv1)),
        BEHIND_LAYER2: network_with(
            front=lambda n, x: n.layer1(x),
            back=lambda n, x: n.layer4(n.layer3(n.layer2(x))),
            more=lambda n: n.layer2.to(n.second),
        ),
        f"The parameters are on cuda:0; {A_HALF}": network_with(places=lambda a, b: (a, a)),
        "first 'cuda:1' and second 'cuda:0'": (
            network_with(places=lambda a, b: (a, b) if a == "cpu" else ("cuda:0", "cuda:1"))
        ),
        DO_NOT_FIT: lambda *given: nn.ModuleDict({"model": MySplitResNet50(*given)}),
        "expected a tensor, got None": network_with(head=lambda n, x: None),
        "expected a module, got None": lambda *given: None,
        "as it was built": lambda *given: 1 / 0,
    },
    errors={"shapes cannot be multiplied": FLATTEN, r"to have \d+ channels": ORDER},
    also_right=[network_with(head=lambda n, x: n.fc(n.avgpool(x).mean((2, 3)).view(len(x), -1)))],
)

# 2. The share of the devices' time in use

F0, F1, B0, B1 = Action(0, "F", 0), Action(1, "F", 0), Action(0, "B", 0), Action(1, "B", 0)
NEXT = Action(0, "F", 1)


def one_by_one(num_devices, *jobs):
    """One job after the other, whichever device has it; at last a backward on device 0."""
    events, now = [], 0.0
    for device, action, duration in (*jobs, (0, B0, 8)):
        events.append(Event(device, action, now, now + duration))
        now += duration
    return Timeline(tuple(events), num_devices)


def exercise_timeline() -> Timeline:
    """The timeline of the exercise: a step over two devices, with its two copies."""
    return one_by_one(2, (0, F0, 4), (0, "copy", 1), (1, F1, 4), (1, B1, 8), (1, "copy", 1))


def my_used_share(timeline):
    """Add up what is computed, and divide by what all devices could have computed.

    A copy keeps a queue busy and computes nothing, so it is left out above the line. Below the
    line it stays: the step lasts as long as it does. `1 - timeline.bubble_fraction` counts every
    event as work.
    """
    work = sum(event.duration for event in timeline.events if event.action != "copy")
    return work / (timeline.num_devices * timeline.makespan)


def work(timeline):
    return sum(event.duration for event in timeline.events if event.action != "copy")


def every(timeline):
    return sum(event.duration for event in timeline.events)


def per_device(timeline):
    spans = [[0.0] for _ in range(timeline.num_devices)]
    for event in timeline.events:
        spans[event.device_index].append((event.end - event.start) * (event.action != "copy"))
    return torch.tensor([sum(span) / timeline.makespan for span in spans]).mean()


BESIDE = Event(0, F0, 0, 4), Event(1, F1, 5, 8)
NO_KIND = 'The action of a copy is the text "copy", and a text has no kind: compare it whole.'

check_used_share = Exercise(
    my_used_share,
    read_again='"Who works when?"',
    cases=[
        (Timeline((BESIDE[0], Event(0, "copy", 4, 5), BESIDE[1], Event(0, NEXT, 5, 10)), 2),),
        (exercise_timeline(),),
        (Timeline((BESIDE[0], Event(0, NEXT, 4, 10), BESIDE[1]), 2),),
        (one_by_one(3, (0, F0, 4), (1, "copy", 2)),),
    ],
    given=lambda timeline: (
        f"{timeline.num_devices} devices, "
        + ", ".join(
            f"{e.action} from {e.start:g} to {e.end:g} on device {'ABC'[e.device_index]}"
            for e in timeline.events
        )
    ),
    play=call_for_numbers,
    hint="(time in which devices compute) / (devices × time of the whole step)",
    wrong={
        "Copies count as work there: nothing is computed meanwhile.": (
            lambda t: every(t) / (t.num_devices * t.makespan)
        ),
        "That is the idle share; asked is the share in use.": lambda t: 1 - my_used_share(t),
        "That is idle, not in use, and copies count as work in it.": lambda t: t.bubble_fraction,
        "Each device has the whole step: divide by the number of devices too.": (
            lambda t: work(t) / t.makespan
        ),
        "Divide by the number of devices too, and leave the copies out.": (
            lambda t: every(t) / t.makespan
        ),
        "Waiting is time as well: divide by devices × the time of the step.": (
            lambda t: work(t) / every(t)
        ),
        "The step lasts as long as it does: copies are in it.": (
            lambda t: work(t) / (t.num_devices * (t.makespan - every(t) + work(t)))
        ),
        "There may be other than two devices: timeline.num_devices.": (
            lambda t: work(t) / (2 * t.makespan)
        ),
        "That is the first device alone.": lambda t: (
            sum(e.duration for e in t.events if e.action != "copy" and e.device_index == 0)
            / t.makespan
        ),
        "The last event to begin may end before another.": (
            lambda t: work(t) / (t.num_devices * t.events[-1].end)
        ),
        "Those are units of time; a share has none.": work,
        "That is in percent; give a share between 0 and 1.": lambda t: 100 * my_used_share(t),
        "(time in which devices compute)": lambda t: t.events[0].duration / 9,
        NO_KIND: lambda t: sum(e.duration for e in t.events if e.action.kind in "FB"),
    },
    errors={"'str' object has no attribute 'kind'": NO_KIND},
    also_right=[per_device],
)

# 3. The best cut by time


def my_cut_by_time(forward, backward):
    """Try every cut, and keep the one whose busier device has the least work.

    A device does the forward and the backward of its blocks, so both are added up first. Both
    devices need a block, so k runs from 1 to one less than there are. Stopping when half of the
    work is reached can miss the better neighbour.
    """
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    return min(range(1, len(both)), key=lambda k: max(sum(both[:k]), sum(both[k:])))


def busier(times, k):
    return max(sum(times[:k]), sum(times[k:]))


def both_of(forward, backward):
    return [f + b for f, b in zip(forward, backward, strict=True)]


def cut_where(key, turned=False):
    """The first cut, or the last, at which key(forward, backward, k) is least."""

    def attempt(forward, backward):
        cuts = list(range(1, len(forward)))
        return min(cuts[::-1] if turned else cuts, key=lambda k: key(forward, backward, k))

    return attempt


def until_half(forward, backward):
    both = both_of(forward, backward)
    return next(k for k in range(1, len(both) + 1) if 2 * sum(both[:k]) >= sum(both))


def before_half(forward, backward):
    both = both_of(forward, backward)
    return max(k for k in range(len(both)) if 2 * sum(both[:k]) <= sum(both))


SMALLEST = "That cut is as good; asked is the smallest one."
FORWARD_ALONE = "Forward alone says this; the backward counts as well."

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
        ([1, 1, 2, 3, 5], [5, 1, 3, 1, 1]),  # forward and backward busiest on different devices
    ],
    given="forward {} and backward {}",
    play=call_for_numbers,
    hint="Add up each block's forward and backward; look at the busier device behind every cut.",
    wrong={
        "Add up forward and backward of each device first, then take the busier device.": (
            cut_where(lambda f, b, k: busier(f, k) + busier(b, k))
        ),
        SMALLEST: cut_where(lambda f, b, k: busier(both_of(f, b), k), turned=True),
        "The first device would have no block.": lambda f, b: torch.tensor(0),
        "The second device would have no block.": lambda f, b: len(f),
        "That is half of the blocks; blocks take different times.": lambda f, b: len(f) // 2,
        FORWARD_ALONE: cut_where(lambda f, b, k: busier(f, k)),
        "Backward alone says this; the forward counts as well.": (
            cut_where(lambda f, b, k: busier(b, k))
        ),
        "You stop when half is reached; with one block fewer the busier device has less to do.": (
            until_half
        ),
        "You stop before half is passed; with one more block the busier device has less to do.": (
            before_half
        ),
        "That is the position of the first device's last block; count its blocks.": (
            lambda f, b: my_cut_by_time(f, b) - 1
        ),
        "That is the work of the busier device; return the number of blocks.": (
            lambda f, b: busier(both_of(f, b), my_cut_by_time(f, b))
        ),
        "None is what a function without return": lambda f, b: None,
    },
    also_right=[lambda *given: np.array(my_cut_by_time(*given))],
)

# 4. The best cut under a transfer limit


def my_cut_within(forward, backward, crossing, limit):
    """The same among the cuts that are allowed.

    The output crosses in the forward and a gradient of its size in the backward, so a step sends
    twice what `crossing` says. The list begins with the cut after the first block, which is k = 1.
    """
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    allowed = [k for k in range(1, len(both)) if 2 * crossing[k - 1] <= limit]
    return min(allowed, key=lambda k: max(sum(both[:k]), sum(both[k:])), default=None)


def cut_within(
    fits=lambda size, limit: 2 * size <= limit,
    pick=lambda cuts, work: min(cuts, key=work),
    times=both_of,
    behind=lambda crossing, k: crossing[k - 1],
    none=None,
):
    """pick(cuts, work) among the cuts that fit, where work(k) is that of the busier device."""

    def attempt(forward, backward, crossing, limit):
        cuts = [k for k in range(1, len(forward)) if fits(behind([*crossing, 1e9], k), limit)]
        return pick(cuts, lambda k: busier(times(forward, backward), k)) if cuts else none

    return attempt


def least_traffic(forward, backward, crossing, limit):
    return crossing.index(min(crossing)) + 1 if 2 * min(crossing) <= limit else None


EVEN = [2, 2, 2, 2, 2, 2, 3], [4, 4, 4, 4, 4, 4, 6]

check_cut_within = Exercise(
    my_cut_within,
    read_again='"Which cut sends the most?" and "And the time?"',
    cases=[
        (*EVEN, [64, 16, 64, 64, 64, 8], 50),
        (*EVEN, [64, 16, 64, 40, 64, 8], 50),
        (*EVEN, [64, 16, 64, 40, 64, 8], 32),
        (*EVEN, [64, 16, 64, 40, 64, 8], 1000),
        (*EVEN, [64, 16, 64, 40, 64, 8], 10),
        # behind three blocks as behind four; then the backward pulls the cut to the end
        ([1, 1, 1, 0, 1, 1, 1], [2, 2, 2, 0, 2, 2, 2], [8, 8, 8, 8, 8, 8], 16),
        ([5, 5, 1, 1, 1, 1, 1], [1, 1, 1, 1, 5, 5, 10], [8, 8, 8, 8, 8, 8], 16),
    ],
    given="forward {}, backward {}, crossing {}, limit {}",
    play=call_for_numbers,
    hint="crossing[k - 1] belongs to the cut after k blocks.",
    wrong={
        FORWARD_ALONE: cut_within(times=lambda f, b: f),
        SMALLEST: cut_within(pick=lambda cuts, work: min(cuts[::-1], key=work)),
        "The gradient comes back: as many bytes once more.": (
            cut_within(lambda size, limit: size <= limit)
        ),
        "The best by time alone; it sends more than the limit.": (
            cut_within(lambda size, limit: True)
        ),
        "Exactly the limit is still allowed.": cut_within(lambda size, limit: 2 * size < limit),
        "That cut sends the least; asked is the one with the best time within the limit.": (
            least_traffic
        ),
        "When no cut is within the limit, return None.": cut_within(none=0),
        "A cut within the limit exists; None is for when there is none.": lambda *given: None,
        "That is the first cut within the limit, not the fastest.": (
            cut_within(pick=lambda cuts, work: cuts[0])
        ),
        "That is the last cut within the limit, not the fastest.": (
            cut_within(pick=lambda cuts, work: cuts[-1])
        ),
        "That is a position in the list; return the number of blocks.": (
            lambda *given: (k := my_cut_within(*given)) and k - 1
        ),
        "crossing[k - 1] belongs": cut_within(behind=lambda crossing, k: crossing[k]),
    },
    also_right=[lambda *given: (k := my_cut_within(*given)) and torch.tensor(k)],
)
