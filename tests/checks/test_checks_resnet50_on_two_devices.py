"""The checks accept right answers however they are written and explain wrong ones."""

import numpy as np
import pytest
import torch
from solutions import resnet50_on_two_devices as solutions
from torch import nn

from mpcourse.checks import (
    check_cut_by_time,
    check_cut_within,
    check_split_resnet50,
    check_used_share,
)
from mpcourse.checks.attempted_shares import exercise_timeline


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


class Stub(solutions.MySplitResNet50):
    def forward(self, images):
        return ...


def test_stubs_are_not_attempted():
    assert check_split_resnet50(Stub).state == "not attempted"
    assert check_split_resnet50(lambda *arguments: ...).state == "not attempted"
    assert check_cut_by_time(lambda forward, backward: ...).state == "not attempted"
    assert check_cut_within(lambda *lists: ...).state == "not attempted"
    assert check_used_share(lambda timeline: ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_split_resnet50(solutions.MySplitResNet50).state == "correct"
    assert check_cut_by_time(solutions.my_cut_by_time).state == "correct"
    assert check_cut_within(solutions.my_cut_within).state == "correct"
    assert check_used_share(solutions.my_used_share).state == "correct"


# A split ResNet50


class Variant(solutions.MySplitResNet50):
    """The solution, with a hook at each place where people go wrong."""

    def stem(self, images):
        return self.maxpool(self.relu(self.bn1(self.conv1(images))))

    def carry(self, features):
        return features.to(self.second)

    def head(self, features):
        return self.fc(torch.flatten(self.avgpool(features), 1))

    def forward(self, images):
        features = self.layer2(self.layer1(self.stem(images.to(self.first))))
        return self.head(self.layer4(self.layer3(self.carry(features))))


class WithView(Variant):
    def head(self, features):
        return self.fc(self.avgpool(features).mean((2, 3)).view(len(features), -1))


class NoFlatten(Variant):
    def head(self, features):
        return self.fc(self.avgpool(features))


class NoPooling(Variant):
    def stem(self, images):
        return self.relu(self.bn1(self.conv1(images)))


class NoNorm(Variant):
    def stem(self, images):
        return self.maxpool(self.relu(self.conv1(images)))


class PooledFirst(Variant):
    def stem(self, images):
        return self.relu(self.bn1(self.conv1(self.maxpool(images))))


class CutOff(Variant):
    def carry(self, features):
        return features.detach().to(self.second)


class StaysThere(Variant):
    def carry(self, features):
        return features


class OverTheHost(Variant):
    def carry(self, features):
        return features.cpu().to(self.second)


class BackAgain(Variant):
    def head(self, features):
        return super().head(features).to(self.first)


class Doubled(Variant):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seq1 = nn.Sequential(self.conv1, self.bn1)


class CutEarly(Variant):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.layer2.to(self.second)

    def forward(self, images):
        features = self.layer1(self.stem(images.to(self.first))).to(self.second)
        return self.head(self.layer4(self.layer3(self.layer2(features))))


class AllOnOne(Variant):
    def __init__(self, first, second, num_classes):
        super().__init__(first, first, num_classes)


class HardCoded(Variant):
    def __init__(self, first, second, num_classes):
        gpus = (first, second) if first == "cpu" else ("cuda:0", "cuda:1")
        super().__init__(*gpus, num_classes)


class Renamed(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        self.model = Variant(*arguments)

    def forward(self, images):
        return self.model(images)


class NoOutput(Variant):
    def forward(self, images):
        super().forward(images)


@pytest.mark.parametrize("attempt", [Variant, WithView, lambda *a: Variant(*a)])
def test_other_right_networks_are_correct(attempt):
    assert check_split_resnet50(attempt).state == "correct"


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (NoFlatten, "What comes between avgpool and fc"),
        (NoPooling, "It never calls maxpool"),
        (NoNorm, "It never calls bn1"),
        (PooledFirst, "in which order"),
        (CutOff, "No gradient comes back over the cut"),
        (StaysThere, "what is where it was?"),
        (OverTheHost, "nothing else moves"),
        (BackAgain, "nothing else moves"),
        (Doubled, "Layers that are registered twice count twice"),
        (CutEarly, "The cut lies behind layer2"),
        (AllOnOne, "The parameters are on cuda:0; each device gets a half"),
        (HardCoded, "Given first 'cuda:1' and second 'cuda:0'"),
        (Renamed, "The weights of torchvision's resnet50 do not fit"),
        (NoOutput, "expected a tensor, got None"),
        (lambda *a: 1 / 0, "as it was built, it raised ZeroDivisionError"),
        (lambda *a: None, "expected a module, got None"),
        (5, "takes a function"),
    ],
)
def test_wrong_networks_are_explained(attempt, words):
    assert words in said(check_split_resnet50(attempt))


# The best cut by time


def busier(forward, backward, k):
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    return max(sum(both[:k]), sum(both[k:]))


def with_a_loop(forward, backward):
    best, least = None, float("inf")
    first, second = 0, sum(forward) + sum(backward)
    for k, (f, b) in enumerate(zip(forward[:-1], backward[:-1], strict=True), start=1):
        first, second = first + f + b, second - f - b
        if max(first, second) < least:
            best, least = k, max(first, second)
    return best


def until_half(forward, backward):
    done, k = 0, 0
    while 2 * done < sum(forward) + sum(backward):
        done, k = done + forward[k] + backward[k], k + 1
    return k


def before_half(forward, backward):
    done, k = 0, 0
    while 2 * (done + forward[k] + backward[k]) <= sum(forward) + sum(backward):
        done, k = done + forward[k] + backward[k], k + 1
    return k


def least_work(forward, backward):
    return min(busier(forward, backward, k) for k in range(1, len(forward)))


def last_of_the_best(forward, backward):
    cuts = range(len(forward) - 1, 0, -1)
    return min(cuts, key=lambda k: busier(forward, backward, k))


def without(times):
    return [0] * len(times)


def test_another_right_cut_by_time_is_correct():
    assert check_cut_by_time(with_a_loop).state == "correct"


def apart(forward, backward):
    """The busiest forward and the busiest backward, whichever device has them."""

    def most(times, k):
        return max(sum(times[:k]), sum(times[k:]))

    return min(range(1, len(forward)), key=lambda k: most(forward, k) + most(backward, k))


@pytest.mark.parametrize("kind", [torch.tensor, np.array, np.int64])
def test_a_number_may_come_as_a_tensor_or_an_array(kind):
    assert check_cut_by_time(lambda *g: kind(solutions.my_cut_by_time(*g))).state == "correct"
    assert "no block" in said(check_cut_by_time(lambda *g: kind(0)))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (apart, "of each device first"),
        (lambda f, b: len(f) // 2, "That is half of the blocks"),
        (lambda f, b: with_a_loop(f, without(f)), "Forward alone says this"),
        (lambda f, b: with_a_loop(without(b), b), "Backward alone says this"),
        (until_half, "You stop when half is reached"),
        (before_half, "You stop before half is passed"),
        (lambda f, b: with_a_loop(f, b) - 1, "the position of the first device's last block"),
        (last_of_the_best, "That cut is as good; asked is the smallest one"),
        (least_work, "the work of the busier device; return the number"),
        (lambda f, b: 0, "The first device would have no block"),
        (lambda f, b: len(f), "The second device would have no block"),
        (lambda f, b: None, "function without return"),
        (lambda f, b: f[9], "it raised IndexError"),
    ],
)
def test_wrong_cuts_by_time_are_explained(attempt, words):
    assert words in said(check_cut_by_time(attempt))


# The best cut under a limit


def chosen(fits, fallback=None, pick=min):
    """An attempt that takes the best cut among those that fit."""

    def attempt(forward, backward, crossing, limit):
        cuts = [k for k in range(1, len(forward)) if fits(crossing[k - 1], limit)]
        if pick is not min:
            return pick(cuts) if cuts else fallback
        return min(cuts, key=lambda k: busier(forward, backward, k), default=fallback)

    return attempt


def both_ways(size, limit):
    return 2 * size <= limit


def least_traffic(forward, backward, crossing, limit):
    k = crossing.index(min(crossing))
    return k + 1 if both_ways(crossing[k], limit) else None


def position(*arguments):
    k = solutions.my_cut_within(*arguments)
    return None if k is None else k - 1


def shifted(forward, backward, crossing, limit):
    cuts = [k for k in range(1, len(forward)) if both_ways(crossing[k], limit)]
    return min(cuts, key=lambda k: busier(forward, backward, k))


def test_another_right_cut_within_a_limit_is_correct():
    assert check_cut_within(chosen(both_ways)).state == "correct"


def last_of_ties(forward, backward, crossing, limit):
    cuts = [k for k in range(len(forward) - 1, 0, -1) if both_ways(crossing[k - 1], limit)]
    return min(cuts, key=lambda k: busier(forward, backward, k), default=None)


def forward_only(forward, backward, crossing, limit):
    return solutions.my_cut_within(forward, without(forward), crossing, limit)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (last_of_ties, "asked is the smallest one"),
        (forward_only, "Forward alone says this"),
        (chosen(lambda size, limit: True), "it sends more than the limit"),
        (chosen(lambda size, limit: size <= limit), "The gradient comes back"),
        (chosen(lambda size, limit: 2 * size < limit), "Exactly the limit is still allowed"),
        (chosen(both_ways, fallback=0), "When no cut is within the limit, return None"),
        (chosen(both_ways, pick=lambda cuts: cuts[0]), "the first cut within the limit"),
        (chosen(both_ways, pick=lambda cuts: cuts[-1]), "That cut sends the least"),
        (least_traffic, "That cut sends the least"),
        (position, "That is a position in the list"),
        (shifted, "crossing[k - 1] belongs to the cut after k blocks"),
        (lambda *lists: None, "A cut within the limit exists"),
    ],
)
def test_wrong_cuts_within_a_limit_are_explained(attempt, words):
    assert words in said(check_cut_within(attempt))


# The share in use


def work(timeline):
    return sum(event.duration for event in timeline.events if event.action != "copy")


def per_device(timeline):
    spans = {}
    for event in timeline.events:
        if event.action != "copy":
            spans.setdefault(event.device_index, []).append(event.end - event.start)
    shares = [sum(span) / timeline.makespan for span in spans.values()]
    return sum(shares) / timeline.num_devices


def all_events(timeline):
    return sum(event.duration for event in timeline.events)


@pytest.mark.parametrize("kind", [float, torch.tensor, np.array, np.float32, lambda x: [x][0]])
def test_another_right_share_is_correct(kind):
    assert check_used_share(lambda timeline: kind(per_device(timeline))).state == "correct"


def test_counting_copies_as_work_calls_the_exercise_s_devices_half_used():
    timeline = exercise_timeline()
    assert 1 - timeline.bubble_fraction == pytest.approx(0.5)
    assert solutions.my_used_share(timeline) < 0.47


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda t: 1 - t.bubble_fraction, "Copies count as work there"),
        (lambda t: t.bubble_fraction, "That is idle, not in use, and copies count"),
        (lambda t: 1 - solutions.my_used_share(t), "That is the idle share"),
        (lambda t: work(t) / t.makespan, "divide by the number of devices too"),
        (lambda t: all_events(t) / t.makespan, "and leave the copies out"),
        (lambda t: work(t) / all_events(t), "Waiting is time as well"),
        (lambda t: work(t) / 2 / t.makespan, "other than two devices"),
        (lambda t: work(t) / 2 / (t.makespan - all_events(t) + work(t)), "copies are in it"),
        (work, "units of time"),
        (lambda t: work(t) / t.num_devices / t.events[-1].end, "The last event to begin"),
        (lambda t: 100 * solutions.my_used_share(t), "in percent"),
        (lambda t: t.events[0].duration / 9, "(time in which devices compute) / (devices"),
    ],
)
def test_wrong_shares_are_explained(attempt, words):
    assert words in said(check_used_share(attempt))
