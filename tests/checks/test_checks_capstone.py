"""The checks accept right answers however they are written and explain wrong ones."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from solutions import capstone as solutions

from mpcourse.capstone.plans import Plan, block_work, pruned
from mpcourse.capstone.trials import PlanRun, Task
from mpcourse.checks import capstone as checks_module
from mpcourse.checks import (
    check_new_cut,
    check_pipeline_speedup,
    check_plan,
    judged_plans,
    plan_target,
)
from mpcourse.devices.devices import get_devices
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule
from mpcourse.splitting.splits import balanced_bounds
from mpcourse.training.nets import deep_conv_net

BLOCKS = [f"block{number}" for number in range(1, 9)]


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_pipeline_speedup(lambda before, after, m: ...).state == "not attempted"
    assert check_new_cut(lambda work, keep: ...).state == "not attempted"
    assert check_plan(..., None, ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_pipeline_speedup(solutions.my_pipeline_speedup).state == "correct"
    assert check_new_cut(solutions.my_new_cut).state == "correct"


def simulated(before, after, m):
    def step(times):
        costs = Costs(list(times), [2 * time for time in times])
        return simulate(gpipe_schedule(len(times), m), costs).makespan

    return step(before) / step(after)


def left_of(work, keep):
    shares = [1.0, *keep]
    return [work[k] * shares[k] * shares[k + 1] for k in range(len(work))]


def by_dynamic_programming(work, keep):
    return balanced_bounds(left_of(work, keep), 2)[1]


def by_sums_from_behind(work, keep):
    """Other sums, other roundings: what is equally good must stay so."""
    left = left_of(work, keep)
    behind = [sum(reversed(left[cut:])) for cut in range(len(left))]
    busier = [max(behind[0] - behind[cut], behind[cut]) for cut in range(1, len(left))]
    return 1 + busier.index(min(busier))


def test_other_right_answers_are_correct():
    assert check_pipeline_speedup(simulated).state == "correct"
    assert check_new_cut(by_dynamic_programming).state == "correct"
    assert check_new_cut(by_sums_from_behind).state == "correct"


def test_no_sum_of_a_new_cut_is_rounded():
    def exactly(work, keep):
        assert all(float(32 * each).is_integer() for each in left_of(work, keep))
        return solutions.my_new_cut(work, keep)

    assert check_new_cut(exactly).state == "correct"


def ratios(before, after):
    return [old / new for old, new in zip(before, after, strict=True)]


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda b, a, m: max(ratios(b, a)), "pruned stage's own speed-up"),
        (lambda b, a, m: sum(ratios(b, a)) / len(b), "cannot be averaged"),
        (lambda b, a, m: sum(ratios(b, a)), "work out both steps, divide once"),
        (lambda b, a, m: sum(b) / sum(a), "one device gains"),
        (lambda b, a, m: max(b) / max(a), "right for endless micro-batches"),
        (lambda b, a, m: (len(b) + m - 1) * max(b) / ((len(a) + m - 1) * max(a)), "its own time"),
        (lambda b, a, m: 1 / simulated(b, a, m), "Upside down"),
        (lambda b, a, m: simulated(b, a, m) - 1, "how many times as fast"),
        (lambda b, a, m: 7.0, "GPipe takes"),
        (lambda b, a, m: None, "got None"),
        (lambda b, a: 1.0, "TypeError"),
        (3, "takes a function"),
    ],
)
def test_wrong_speed_ups_are_explained(attempt, words):
    assert words in said(check_pipeline_speedup(attempt))


def first_past_half(times):
    return next(k for k in range(1, len(times)) if 2 * sum(times[:k]) >= sum(times))


def best(times):
    return balanced_bounds(times, 2)[1]


def changes_its_list(work, keep):
    work[:] = left_of(work, keep)
    return best(work)


def last_of_the_best(work, keep):
    return len(work) - best(left_of(work, keep)[::-1])


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda work, keep: best(work), "the old cut"),
        (last_of_the_best, "asked is the smaller one"),
        (lambda work, keep: best([w * k for w, k in zip(work, keep, strict=True)]), "fewer inputs"),
        (
            lambda work, keep: best([w * k * k for w, k in zip(work, keep, strict=True)]),
            "what the block before it keeps",
        ),
        (
            lambda work, keep: solutions.my_new_cut([work[0] * keep[-1], *work[1:]], keep),
            "reads the image",
        ),
        (changes_its_list, "has changed the list"),
        (lambda work, keep: len(work) // 2, "not half of the work"),
        (lambda work, keep: first_past_half(left_of(work, keep)), "first cut past half"),
        (lambda work, keep: solutions.my_new_cut(work, keep) - 1, "One off"),
        (lambda work, keep: len(work) - solutions.my_new_cut(work, keep), "second device"),
        (lambda work, keep: 100, "least busy"),
    ],
)
def test_wrong_cuts_are_explained(attempt, words):
    assert words in said(check_new_cut(attempt))


def test_the_work_that_the_check_expects_is_what_pruning_leaves():
    net, image = deep_conv_net(), torch.zeros(1, 1, 28, 28)
    keep = [0.5, 0.25, 1.0, 0.75, 0.5, 1.0, 0.5, 0.25, 1.0]
    left = block_work(pruned(net, dict(zip(BLOCKS, keep, strict=False))), image)
    work = block_work(net, image)
    expected = checks_module._cut_case(work, keep).expected
    assert expected == best(left) == solutions.my_new_cut(work, keep)


# The plan; what is trained and measured is tested in test_plan_trials


@pytest.fixture
def task(monkeypatch):
    """A task whose runs cost nothing: nine of ten digits right, both halves as fast as ever."""
    data = SimpleNamespace(all_train=[torch.zeros(1, 1, 28, 28)])
    monkeypatch.setattr(judged_plans, "run_plan", lambda plan, task: PlanRun(0.9, True))
    names = ("start", "yours", "ours")
    times = {name: SimpleNamespace(median_s=1 / n) for n, name in enumerate(names, start=1)}
    monkeypatch.setattr(judged_plans, "measure_plans", lambda plans, task, repeats: times)
    return Task(deep_conv_net(), data, get_devices(2), 9 * 2**18, 0.85, fixed=tuple(BLOCKS[4:]))


def test_the_solution_and_our_own_plan_keep_all_limits_and_are_scored(task):
    verdict = check_plan(solutions.my_plan, task, 2.0)
    assert verdict.state == "correct", verdict
    assert "Score of the step 100, where ours has 100" in verdict.lines[0]
    assert "Score of the prediction 100 of 100" in verdict.lines[1]
    assert "you said 2.00 times as fast as the start, measured here 2.00" in verdict.lines[1]
    assert "ours is 3.00 times" in verdict.lines[2]
    narrower = check_plan(Plan(6, "1f1b", 7, dict.fromkeys(BLOCKS[:4], 0.25)), task, 2.0)
    assert narrower.state == "correct"
    assert "Score of the step 107" in narrower.lines[0]


@pytest.mark.parametrize(
    ("said_", "score"), [(2.0, 100), (1.0, 0), (4.0, 0), (9.0, 0), (2.0 * 2**0.5, 50)]
)
def test_a_prediction_is_scored_by_how_far_it_is_off(task, said_, score):
    verdict = check_plan(solutions.my_plan, task, said_)
    assert verdict.state == "correct"
    assert f"Score of the prediction {score} of 100" in verdict.lines[1]


@pytest.mark.parametrize("number", [np.float32(1.5), torch.tensor(1.5), Fraction(3, 2), 2, "1.5"])
def test_a_prediction_may_have_any_type_of_number(task, number):
    assert check_plan(solutions.my_plan, task, number).state == "correct"


@pytest.mark.parametrize("number", [..., None, 0, -1.5, float("nan"), float("inf"), "fast", []])
def test_a_plan_without_a_prediction_is_not_run(task, number, monkeypatch):
    monkeypatch.setattr(judged_plans, "run_plan", None)
    sentences = said(check_plan(solutions.my_plan, task, number))
    assert "Write your prediction down" in sentences
    assert "a number above 0" in sentences
    assert "Ellipsis" not in sentences


def test_the_target_that_the_page_prints_is_the_one_that_decides(task, monkeypatch):
    ours, longest = plan_target(task)
    assert ours == task.forecast(judged_plans.our_plan(task)).timeline.makespan
    plan = Plan(6, "1f1b", 9, NARROW)
    step = task.forecast(plan).timeline.makespan
    assert ours < step <= longest
    verdict = check_plan(plan, task, 1)
    assert verdict.state == "correct"
    assert f"Score of the step {100 * ours / step:.0f}," in verdict.lines[0]
    monkeypatch.setattr(judged_plans, "SLACK", 0.999 * step / ours)
    words = f"ours takes {ours:,.0f}, and {0.999 * step:,.0f} will do"
    assert words in said(check_plan(plan, task, 1))


NARROW = dict.fromkeys(BLOCKS[:4], 0.375)


@pytest.mark.parametrize("share", [0.25, 0.375, 0.5, 0.75])
def test_pruning_everything_alike_is_refused(task, share, monkeypatch):
    monkeypatch.setattr(judged_plans, "run_plan", None)
    plan = Plan(5, "1f1b", 8, dict.fromkeys(BLOCKS, share))
    assert "block5, block6, block7, block8 must stay whole" in said(check_plan(plan, task, 1))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(6, "gpipe", 8, NARROW), ["8.90 MiB", "limit is 2.25 MiB", "GPipe holds"]),
        (Plan(6, "1f1b", 4, NARROW), ["4.45 MiB", "up to 2 micro-batches"]),
        (Plan(6, "naive", 8, NARROW), ["too long", "One device always waits"]),
        (Plan(5, "1f1b", 8, NARROW), ["too long", "move the cut"]),
        (Plan(6, "1f1b", 40, NARROW), ["Every micro-batch costs"]),
        (Plan(6, "1f1b", 11, dict.fromkeys(BLOCKS[:4], 0.5)), ["block4 keep 50%", "prune more"]),
        (Plan(5, "1f1b", 2), ["too much", "too long"]),
        (Plan(9), ["cannot run", "cut is a whole number from 1 to 8"]),
        (Plan(5, keep={"head": 0.5}), ["cannot run", "keep names blocks out of block1"]),
        (Plan(5, "1F1B"), ["schedule is one of naive, gpipe, 1f1b"]),
        ({"cut": 5}, ["a plan is a Plan"]),
        (lambda: None, ["takes a Plan, not a function"]),
    ],
)
def test_plans_that_break_a_limit_hear_which_and_by_how_much(task, plan, words, monkeypatch):
    monkeypatch.setattr(judged_plans, "run_plan", None)  # nothing is run
    sentences = said(check_plan(plan, task, 1.5))
    for each in words:
        assert each in sentences


def test_a_plan_that_forgets_the_digits_hears_how_many_points_are_missing(task, monkeypatch):
    monkeypatch.setattr(judged_plans, "run_plan", lambda plan, task: PlanRun(0.3, True))
    plan = Plan(6, "1f1b", 7, dict.fromkeys(BLOCKS[:4], 0.25))
    sentences = said(check_plan(plan, task, 1.5))
    assert "30.0% of the test digits are right; the limit is 85%: 55.0 points short" in sentences
    assert "keep 25% of their channels: keep more" in sentences


def test_a_net_that_answers_differently_when_cut_does_not_pass(task, monkeypatch):
    monkeypatch.setattr(judged_plans, "run_plan", lambda plan, task: PlanRun(0.95, False))
    assert "disagree" in said(check_plan(solutions.my_plan, task, 1.5))


def test_a_slow_clock_cannot_fail_a_plan(task, monkeypatch):
    same = {name: SimpleNamespace(median_s=1.0) for name in ("start", "yours", "ours")}
    monkeypatch.setattr(judged_plans, "measure_plans", lambda plans, task, repeats: same)
    assert check_plan(solutions.my_plan, task, 1.5).state == "correct"
