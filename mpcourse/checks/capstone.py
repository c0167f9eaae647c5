"""Checks of page `capstone`: a pipeline's speed-up, a new cut, and a plan that is run."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import mean
from typing import Any

from mpcourse.capstone.plans import Forecast, Plan, prunable_blocks
from mpcourse.capstone.trials import Task, measure_plans, run_plan
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    not_attempted,
    not_yet,
)
from mpcourse.splitting.splits import balanced_bounds

Known = list[tuple[Any, str]]
SLACK = 1.05  # a step as long as ours, and a little more, will do
MIB = 2**20


def check_pipeline_speedup(
    attempt: Callable[[Sequence[float], Sequence[float], int], float],
) -> Verdict:
    """Check `my_pipeline_speedup(before, after, num_microbatches)`.

    Args:
        attempt: Takes the forward times of the stages before and after pruning, and a count;
            returns how many times as fast the pipeline's step becomes.
    """
    cases = [
        _speedup_case([6, 5], [2, 5], 8),
        _speedup_case([4, 4, 4], [4, 1, 4], 4),
        _speedup_case([6, 2], [3, 2], 1),
        _speedup_case([5, 5], [5, 5], 3),
        _speedup_case([2, 8, 3, 1], [2, 2, 3, 1], 16),
        _speedup_case([10, 1], [1, 1], 100),
    ]
    return check_cases(attempt, cases, where='"By how much does the pipeline speed up?"')


def _speedup_case(before: list[float], after: list[float], m: int) -> Case:
    def step(times: list[float]) -> float:
        return sum(times) + (m - 1) * max(times)

    each = [old / new for old, new in zip(before, after, strict=True)]
    right = step(before) / step(after)
    known: Known = [
        (max(each), "That is the pruned stage's own speed-up; the others are as slow as before."),
        (mean(each), "Speed-ups of stages cannot be averaged: the slowest stage sets the pace."),
        (sum(each), "Speed-ups cannot be added up: work out both steps, divide once."),
        (sum(before) / sum(after), "That is what one device gains: here the stages overlap."),
        (
            max(before) / max(after),
            "That is the ratio of the slowest times: right for endless micro-batches. A pipeline "
            "also fills and drains, and there every stage takes its own time.",
        ),
        (1 / right, "Upside down: the time before over the time after."),
        (step(before) - step(after), "That is the time saved; asked is before over after."),
        (right - 1, "That is how much faster it becomes; asked is how many times as fast."),
    ]
    hint = "GPipe takes sum(times) + (m - 1) * max(times), for forwards and backwards alike."
    given = f"stages of {before}, then {after}, and {m} micro-batches"
    return Case(given, (before, after, m), right, known, hint)


def check_new_cut(attempt: Callable[[Sequence[float], Sequence[float]], int]) -> Verdict:
    """Check `my_new_cut(work, keep)`: where to cut after pruning.

    Args:
        attempt: Takes the forward work of every block before pruning and the share of its channels
            that each keeps; returns how many blocks the first device gets.
    """
    cases = [  # in the first, all wrong answers differ
        _cut_case([8, 8, 8, 8, 2, 2, 2, 2, 4, 6], [0.25, 1, 0.25, 0.5, 0.5, 0.5, 0.5, 1, 1, 1]),
        _cut_case([8, 4, 6, 2, 2, 4, 4, 8], [0.5, 0.5, 0.5, 0.75, 0.5, 0.5, 0.25, 1.0]),
        _cut_case([8, 8, 8, 8, 8, 8, 8, 8], [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]),
        _cut_case([3, 3, 3, 3, 3], [1.0] * 5),
        _cut_case([4, 4, 4, 4, 4, 4, 4], [1.0, 1.0, 0.25, 0.25, 0.25, 1.0, 1.0]),
        _cut_case([9, 6, 6, 5, 5, 4], [0.5, 1.0, 0.5, 0.5, 1.0, 1.0]),
        _cut_case([2, 9], [0.5, 1.0]),
    ]
    return check_cases(attempt, cases, where='"Where is half now?"')


def _cut_case(work: list[float], keep: list[float]) -> Case:
    read = [1.0, *keep[:-1]]  # the share of its inputs that a block still reads
    after = [w * i * o for w, i, o in zip(work, read, keep, strict=True)]

    def best(times: Sequence[float]) -> int:
        return balanced_bounds(times, 2)[1]

    right = best(after)
    outputs = [w * o for w, o in zip(work, keep, strict=True)]
    squares = [w * o * o for w, o in zip(work, keep, strict=True)]
    past_half = 1 + sum(total < sum(after) / 2 for total in accumulate(after))
    known: Known = [
        (best(work), "That is the old cut: the pruned blocks have less work now."),
        (best(outputs), "A block that reads pruned channels has fewer inputs, too."),
        (best(squares), "A block reads what the block before it keeps, not what it keeps itself."),
        (len(work) // 2, "Half of the blocks is not half of the work."),
        (past_half, "The first cut past half may be worse than the one before: compare them."),
        (right - 1, "One off: the answer is how many blocks the first device gets."),
        (len(work) - right, "That is how many blocks the second device gets."),
        (after, "That is the work that is left; asked is the cut."),
    ]
    hint = "work * share of inputs * share of outputs; then the cut whose busier side is least busy"
    given = f"blocks with work {work} that keep {keep}"
    return Case(given, (work, keep), right, known, hint)


def our_plan(task: Task) -> Plan:
    """The course's own plan, for comparison."""
    return Plan(5, "1f1b", 8, dict.fromkeys(prunable_blocks(task.net), 0.5))


def plan_target(task: Task) -> tuple[float, float]:
    """The simulated step of the course's own plan, and the longest that passes.

    Args:
        task: What the plans are for.

    Returns:
        Both in millions of multiply-adds.
    """
    ours = task.forecast(our_plan(task)).timeline.makespan
    return ours, SLACK * ours


def check_plan(plan: Any, task: Task) -> Verdict:
    """Check a plan: forecast it, hold it against the limits, run it, and score it against ours.

    What it takes to pass is counted, simulated or learnt: no clock decides.

    Args:
        plan: A `Plan`, or the stub's `...`.
        task: What the plan is for.
    """
    if plan is ...:
        return not_attempted()
    if callable(plan):
        return not_yet(["This check takes a Plan, not a function."], '"Your own plan"')
    try:
        found = task.forecast(plan)
    except (TypeError, ValueError) as error:
        return not_yet(["The plan cannot run:", str(error)], '"Your own plan"')
    ours = our_plan(task)
    ours_step, longest = plan_target(task)
    broken = [
        *_too_much_held(plan, found, task),
        *_too_slow(plan, found, ours, ours_step, longest),
    ]
    if broken:
        where = '"Where is half now?" and "What does a device hold?"'
        return not_yet([*broken, "It was not run."], where)
    run = run_plan(plan, task)
    if not run.same_answer:
        return not_yet(["Cut and uncut net disagree: a device fails?"], '"The same answer?"')
    if run.accuracy < task.least_accuracy:
        missing = task.least_accuracy - run.accuracy
        lines = [
            f"After its epoch {run.accuracy:.1%} of the test digits are right; the limit is "
            f"{task.least_accuracy:.0%}: {100 * missing:.1f} points short.",
            f"{_kept(plan, ours)}: keep more.",
        ]
        return not_yet(lines, '"What does it cost in accuracy?"')
    return Verdict("correct", _score(plan, found, run.accuracy, ours, ours_step, task))


def _too_much_held(plan: Plan, found: Forecast, task: Task) -> list[str]:
    lines = []
    for device, held in enumerate(found.held_bytes):
        if held > task.most_bytes:
            over = held / task.most_bytes - 1
            lines.append(
                f"Device {device} would hold {held / MIB:.2f} MiB of activations; the limit is "
                f"{task.most_bytes / MIB:.2f} MiB: {over:.0%} too much."
            )
    if lines and plan.schedule == "gpipe":
        lines.append("GPipe holds the whole mini-batch, however small the pieces are.")
    elif lines:
        count = max(found.timeline.peak_activations)
        lines.append(f"It holds up to {count} micro-batches: make them smaller, or prune more.")
    return lines


def _too_slow(
    plan: Plan, found: Forecast, ours: Plan, ours_step: float, longest: float
) -> list[str]:
    step = found.timeline.makespan
    if step <= longest:
        return []
    busy = [found.timeline.busy(device) for device in range(found.timeline.num_devices)]
    line = (
        f"Its simulated step takes {step:,.0f} M multiply-adds; ours takes {ours_step:,.0f}, and "
        f"{longest:,.0f} will do: {step / longest - 1:.0%} too long."
    )
    if plan.schedule == "naive":
        why = "One device always waits: choose another schedule."
    elif plan.num_microbatches > 2 * ours.num_microbatches:
        why = "Every micro-batch costs something in every block: fewer of them."
    elif max(busy) > 1.2 * min(busy):
        why = f"The devices work {busy[0]:,.0f} and {busy[1]:,.0f} M: move the cut."
    elif plan.num_microbatches < ours.num_microbatches / 2:
        why = f"{found.timeline.bubble_fraction:.0%} is idle: more micro-batches."
    else:
        why = f"{_kept(plan, ours)}: prune more, in both stages."
    return [line, why]


def _kept(plan: Plan, ours: Plan) -> str:
    """Which shares of their channels the blocks keep; ours names all of them."""
    shares = sorted({plan.keep.get(name, 1.0) for name in ours.keep})
    ends = f"{shares[0]:.0%}" if len(shares) == 1 else f"{shares[0]:.0%} to {shares[-1]:.0%}"
    return f"The blocks keep {ends} of their channels"


def _score(
    plan: Plan, found: Forecast, accuracy: float, ours: Plan, ours_step: float, task: Task
) -> tuple[str, ...]:
    """What is said of a plan that keeps all limits: its score, and what the clock says."""
    start = Plan(ours.cut)
    step, began = found.timeline.makespan, task.forecast(start).timeline.makespan
    times = measure_plans({"start": start, "yours": plan, "ours": ours}, task, repeats=5)
    gains = {name: times["start"].median_s / timing.median_s for name, timing in times.items()}
    held = " and ".join(f"{each / MIB:.2f}" for each in found.held_bytes)
    return (
        f"Score {100 * ours_step / step:.0f}, where ours has 100: a simulated step of "
        f"{step:,.0f} M multiply-adds, ours {ours_step:,.0f} M.",
        f"It holds {held} MiB; {accuracy:.1%} of the test digits are right; the cut net agrees "
        "with the uncut one.",
        f"Predicted {began / step:.2f} times as fast as the whole net cut after block "
        f"{start.cut}; measured here {gains['yours']:.2f} times, ours {gains['ours']:.2f}.",
    )
