"""What the check of a plan says of its run and of the clock; what the new cut is held against."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mpcourse.capstone import (
    Plan,
    block_work,
    count_copies,
    pruned,
)
from mpcourse.capstone.trials import PlanRun
from mpcourse.exercises import capstone
from mpcourse.exercises.capstone import (
    check_new_cut,
    check_plan,
    left_of,
    meets_targets,
    plan_target,
)
from mpcourse.splitting.splits import balanced_bounds
from mpcourse.training import deep_conv_net

PLAN, _ = capstone.my_plan_and_prediction()
NARROW = PLAN.keep


@pytest.fixture
def task(monkeypatch):
    """A task whose runs cost nothing: nine of ten digits right, both halves as fast as ever."""
    times = {name: clocked(1 / n) for n, name in enumerate(NAMES, start=1)}
    monkeypatch.setattr(capstone, "run_plan", lambda plan, task: PlanRun(0.95, True, None))
    monkeypatch.setattr(capstone, "measure_plans", lambda plans, task, repeats: times)
    return capstone.small_task()


NAMES = ("start", "yours")


def clocked(*times_s):
    return SimpleNamespace(times_s=times_s * (capstone.ROUNDS // len(times_s)))


def test_a_plan_that_keeps_all_limits_is_scored(task):
    verdict = check_plan(PLAN, task, 2.0)
    assert verdict.state == "correct", verdict
    assert "Score of the step 100, where ours has 100" in verdict.lines[0]
    assert "Score of the prediction 100 of 100" in verdict.lines[1]
    assert "you said 2.00 times as fast as the start, measured here 2.00" in verdict.lines[1]
    assert "Test digits: 94.0% right. That is your result" in verdict.lines[3]
    assert verdict.lines[-1] != capstone.MADE_UP == check_plan(PLAN, 2.0).lines[-1]
    assert check_plan(PLAN).lines[0] == capstone.THREE
    narrower = check_plan(Plan(6, "1f1b", 12, dict.fromkeys(NARROW, 0.25)), task, 2.0)
    assert int(narrower.lines[0].split()[4].rstrip(",")) > 100
    task.data.shown = 2
    try:
        again = check_plan(PLAN, task, 2.0)
    finally:
        task.data.shown = 1
    assert "You have asked them 2 times" in again.lines[3]


@pytest.mark.parametrize(
    ("prediction", "score"), [(2.0, 100), (1.0, 0), (4.0, 0), (9.0, 0), (2.0 * 2**0.5, 50)]
)
def test_a_prediction_is_scored_by_how_far_it_is_off(task, prediction, score):
    verdict = check_plan(PLAN, task, prediction)
    assert verdict.state == "correct"
    assert f"Score of the prediction {score} of 100" in verdict.lines[1]


def test_a_prediction_within_the_spread_has_all_points(task, monkeypatch):
    slow = [3.0] * 7 + [2.5] + [2.2] * 9 + [2.0] + [1.5] * 7  # the 8th ratio is 2, the 18th 2.5
    times = {"start": clocked(*slow), "yours": clocked(1.0)}
    monkeypatch.setattr(capstone, "measure_plans", lambda plans, task, repeats: times)
    for said, score in {2.05: 100, 2.45: 100, 2.5 * 2**0.5: 50, 2.0 / 2**0.5: 50}.items():
        line = check_plan(PLAN, task, said).lines[1]
        assert f"Score of the prediction {score} of 100" in line
        assert "measured here 2.20, from 2.00 to 2.50 by 25 rounds" in line


@pytest.mark.parametrize("number", [np.float32(1.5), torch.tensor(1.5), Fraction(3, 2), 2])
def test_a_prediction_may_have_any_type_of_number(task, number):
    assert check_plan(PLAN, task, number).state == "correct"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (0.5, capstone.INVERTED),
        (0.6, capstone.INVERTED),
        (0.9, capstone.FAR_OFF),
        (4.1, capstone.FAR_OFF),
        *((near, None) for near in (1.1, 2.0, 3.9)),
    ],
)
def test_what_is_not_about_the_measured_is_told_in_words(task, said, words):
    lines = check_plan(PLAN, task, said).lines
    assert {capstone.INVERTED, capstone.FAR_OFF} & {*lines} == {words} - {None}


def test_the_target_that_the_page_prints_is_the_one_that_decides(task, monkeypatch):
    (ours, _), (our_plan, _) = plan_target(), check_plan.solution()
    assert ours == pytest.approx(task.forecast(our_plan).timeline.makespan, rel=1e-9)
    assert capstone.OUR_MICROBATCHES == our_plan.num_microbatches
    image = torch.zeros(1, 1, 28, 28)
    copies = count_copies(pruned(task.net, our_plan.keep), image, task.most_bytes)
    assert pytest.approx(min(each.step for each in copies), rel=1e-9) == capstone.OUR_COPIES
    for price in (0.0, 3.0, 9.0, 64.0):
        fastest = min(each.step + price * each.messages for each in copies)
        rivals = (step + price * messages for step, messages in capstone.OUR_RIVALS)
        assert min(rivals) == pytest.approx(fastest, rel=1e-9)
    plan = replace(PLAN, num_microbatches=14)
    monkeypatch.setattr(capstone, "SLACK", 1.1)
    longest = plan_target()[1]
    step = task.forecast(plan).timeline.makespan
    assert ours < step <= longest
    assert f"Score of the step {100 * ours / step:.0f}," in check_plan(plan, task, 1).lines[0]
    monkeypatch.setattr(capstone, "SLACK", 0.999 * step / ours)
    words = f"ours takes {ours:,.0f}, and {0.999 * step:,.0f} will do"
    assert words in repr(check_plan(plan, task, 1))


def test_the_board_stars_the_plans_that_the_check_takes(task):
    behind = replace(PLAN, keep=NARROW | {"block6": 0.5})
    slow = replace(PLAN, num_microbatches=20)
    for plan, star in [(PLAN, True), (behind, False), (slow, False)]:
        assert meets_targets(plan, task.forecast(plan), capstone.run_plan(plan, task), task) is star
        assert (check_plan(plan, task, 1.5).state == "correct") is star
    for run in (PlanRun(0.95, False, None), PlanRun(0.9, True, None)):
        assert not meets_targets(PLAN, task.forecast(PLAN), run, task)


@pytest.mark.parametrize("count", [16, 20])
def test_where_fewer_micro_batches_fit_and_are_enough_it_is_said(task, count):
    verdict = check_plan(replace(PLAN, num_microbatches=count), task, 1.5)
    assert capstone.FEWER in verdict.lines, verdict
    assert "The open task" in verdict.lines[-1]


@pytest.mark.parametrize(
    "answer", [Plan(5, keep=dict.fromkeys(NARROW | {"block5": 1.0}, 0.5)), Plan(6, "naive"), None]
)
def test_what_breaks_a_limit_or_has_no_prediction_is_not_run(task, monkeypatch, answer):
    monkeypatch.setattr(capstone, "run_plan", None)
    verdict = check_plan(answer or PLAN, task, 1.5 if answer else ...)
    assert verdict.state == "not yet"
    assert ("What does a device hold?" in verdict.lines[-1]) is (answer is not None)


@pytest.mark.parametrize("other", [{"most_bytes": 2**24}, {"fixed": ()}])
def test_another_task_than_that_of_the_page_is_noticed(task, other):
    assert check_plan(PLAN, replace(task, **other), 1.5).lines[0] == capstone.OTHER_TASK


def test_a_net_that_answers_differently_when_cut_does_not_pass(task, monkeypatch):
    monkeypatch.setattr(capstone, "run_plan", lambda plan, task: PlanRun(0.95, False, None))
    verdict = check_plan(PLAN, task, 1.5)
    assert verdict.lines == (capstone.DISAGREE, 'Read again: "The open task".')


def test_a_slow_clock_cannot_fail_a_plan(task, monkeypatch):
    same = dict.fromkeys(NAMES, clocked(1.0))
    monkeypatch.setattr(capstone, "measure_plans", lambda plans, task, repeats: same)
    assert check_plan(PLAN, task, 1.5).state == "correct"


def test_no_sum_of_a_new_cut_is_rounded():
    for case in check_new_cut.cases:
        assert all(float(32 * each).is_integer() for each in left_of(*case))


def test_the_new_cut_is_that_of_the_work_that_pruning_leaves():
    net, image = deep_conv_net(), torch.zeros(1, 1, 28, 28)
    keep = [0.5, 0.25, 1.0, 0.75, 0.5, 1.0, 0.5, 0.25, 1.0]
    names = [f"block{number}" for number in range(1, 9)]
    left = block_work(pruned(net, dict(zip(names, keep, strict=False))), image)
    assert capstone.my_new_cut(block_work(net, image), keep) == balanced_bounds(left, 2)[1]
