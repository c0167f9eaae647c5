"""The last check: a plan is forecast, run and scored, and so is its author's prediction.

Page `capstone`.
"""

import math
from dataclasses import replace
from typing import Any

from mpcourse.capstone.plans import (
    Forecast,
    Plan,
    block_work,
    prunable_blocks,
    pruned,
    simulate_plan,
)
from mpcourse.capstone.trials import Task, measure_plans, run_plan
from mpcourse.checks.verdict import Verdict, not_attempted, not_yet, short

SLACK = 1.05  # a step as long as ours, and a little more, will do
MIB = 2**20
PLAN = '"Exercise 3. Your own plan"'


def our_plan(task: Task) -> Plan:
    """The course's own plan, for comparison."""
    able = [name for name in prunable_blocks(task.net) if name not in task.fixed]
    return Plan(6, "1f1b", 8, dict.fromkeys(able, 0.375))


def plan_target(task: Task) -> tuple[float, float]:
    """The simulated step of the course's own plan, and the longest that passes.

    Args:
        task: What the plans are for.

    Returns:
        Both in millions of multiply-adds.
    """
    ours = task.forecast(our_plan(task)).timeline.makespan
    return ours, SLACK * ours


def check_plan(plan: Any, task: Task, prediction: Any) -> Verdict:
    """Check a plan: forecast it, hold it against the limits, run it, and score it against ours.

    What it takes to pass is counted, simulated or learnt: no clock decides. By the clock the
    prediction is scored.

    Args:
        plan: A `Plan`, or the stub's `...`.
        task: What the plan is for.
        prediction: How many times as fast as the whole net it is said to be, by the clock.
    """
    if plan is ...:
        return not_attempted()
    if callable(plan):
        return not_yet(["This check takes a Plan, not a function."], PLAN)
    try:
        found = task.forecast(plan)
    except (TypeError, ValueError) as error:
        return not_yet(["The plan cannot run:", str(error)], PLAN)
    said = _number(prediction)
    if said is None:
        got = "it is still ..." if prediction is ... else f"got {short(prediction)}"
        line = f"my_prediction is a number above 0, such as 1.3; {got}."
        return not_yet(["Write your prediction down before the plan runs.", line], PLAN)
    ours = our_plan(task)
    ours_step, longest = plan_target(task)
    broken = [
        *_not_whole(plan, task),
        *_too_much_held(plan, found, task),
        *_too_slow(plan, found, task, ours_step, longest),
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
    return Verdict("correct", _score(plan, found, run.accuracy, said, task))


def _number(value: Any) -> float | None:
    """A positive number, whatever its type; `None` where it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if 0 < number < math.inf else None


def _not_whole(plan: Plan, task: Task) -> list[str]:
    cut = [name for name in task.fixed if plan.keep.get(name, 1.0) < 1]
    return [f"{', '.join(cut)} must stay whole: another model uses them as well."] if cut else []


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
    plan: Plan, found: Forecast, task: Task, ours_step: float, longest: float
) -> list[str]:
    ours, step = our_plan(task), found.timeline.makespan
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
    elif plan.cut != _best_cut(plan, task):
        why = f"The devices work {busy[0]:,.0f} and {busy[1]:,.0f} M: move the cut."
    elif plan.num_microbatches < ours.num_microbatches / 2:
        why = f"{found.timeline.bubble_fraction:.0%} is idle: more micro-batches."
    else:
        why = f"{_kept(plan, ours)}: prune more of them."
    return [line, why]


def _best_cut(plan: Plan, task: Task) -> int:
    """Where the plan's step would be the shortest, all else as it is."""
    image = task.data.all_train[0][:1].cpu()
    work = block_work(pruned(task.net, plan.keep), image)  # the same for all cuts
    cuts = [replace(plan, cut=cut) for cut in range(1, len(task.net))]
    return min(cuts, key=lambda each: simulate_plan(each, work, task.batch_size).makespan).cut


def _kept(plan: Plan, ours: Plan) -> str:
    """Which shares of their channels the blocks keep that may be pruned; ours names all of them."""
    shares = sorted({plan.keep.get(name, 1.0) for name in ours.keep})
    ends = f"{shares[0]:.0%}" if len(shares) == 1 else f"{shares[0]:.0%} to {shares[-1]:.0%}"
    return f"{', '.join(ours.keep)} keep {ends} of their channels"


def _score(
    plan: Plan, found: Forecast, accuracy: float, said: float, task: Task
) -> tuple[str, ...]:
    """What is said of a plan that keeps all limits: its score, and what the clock says."""
    ours = our_plan(task)
    plans = {"start": Plan(5), "yours": plan, "ours": ours}
    times = measure_plans(plans, task, repeats=9)
    gains = {name: times["start"].median_s / timing.median_s for name, timing in times.items()}
    step, ours_step = found.timeline.makespan, task.forecast(ours).timeline.makespan
    held = " and ".join(f"{each / MIB:.2f}" for each in found.held_bytes)
    return (
        f"Score of the step {100 * ours_step / step:.0f}, where ours has 100: it takes {step:,.0f} "
        f"M multiply-adds, ours {ours_step:,.0f} M.",
        f"Score of the prediction {_closeness(said, gains['yours']):.0f} of 100: you said "
        f"{said:.2f} times as fast as the start, measured here {gains['yours']:.2f}.",
        f"It holds {held} MiB; {accuracy:.1%} of the test digits are right; the cut net agrees "
        f"with the uncut one. By the clock ours is {gains['ours']:.2f} times as fast as the start.",
    )


def _closeness(said: float, measured: float) -> float:
    """100 where both agree, 0 where one is twice the other or more."""
    return 100 * max(0.0, 1 - abs(math.log2(said / measured)))
