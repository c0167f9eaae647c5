"""The checks accept right answers however they are written and explain wrong ones."""

import pytest
from solutions import resnet50_on_two_devices as solutions

from mpcourse.checks import check_cut_by_time, check_cut_within, check_used_share
from mpcourse.checks.resnet50_on_two_devices import exercise_timeline


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_cut_by_time(lambda forward, backward: ...).state == "not attempted"
    assert check_cut_within(lambda *lists: ...).state == "not attempted"
    assert check_used_share(lambda timeline: ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_cut_by_time(solutions.my_cut_by_time).state == "correct"
    assert check_cut_within(solutions.my_cut_within).state == "correct"
    assert check_used_share(solutions.my_used_share).state == "correct"


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


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
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


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
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


def test_another_right_share_is_correct():
    assert check_used_share(per_device).state == "correct"


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
        (lambda t: 100 * solutions.my_used_share(t), "in percent"),
        (lambda t: t.events[0].duration / 9, "(time in which devices compute) / (devices"),
    ],
)
def test_wrong_shares_are_explained(attempt, words):
    assert words in said(check_used_share(attempt))
