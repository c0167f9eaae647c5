"""Exercises of page `capstone`: a counted step, a new cut, an open task."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import SimpleNamespace

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for

from mpcourse.capstone import Forecast, Plan, Task, measure_plans, run_plan
from mpcourse.capstone.plans import NUM_DEVICES
from mpcourse.capstone.trials import PlanRun
from mpcourse.devices import get_devices
from mpcourse.exercises.exercise import (
    Elsewhere,
    Exercise,
    NotAttempted,
    NotYet,
    leaving_alone,
    numbers,
    short,
)
from mpcourse.schedules import Costs
from mpcourse.schedules.simulation import recompute_flags
from mpcourse.splitting.splits import balanced_bounds
from mpcourse.training import deep_conv_net

CHANGED = "Your function has changed the list that it was given: copy it first."

NO_DICT = "Return two lists, no dictionary."
NO_QUOTES = "Return a number, no text."
ONE_NUMBER = "One number, neither list nor tuple: the cut alone."

# 1. What blocks cost


def my_counted(work, size, price):
    """Each way of a block costs its price, and its multiply-adds for all samples.

    The backward does the forward's work twice; the first block's does it once, as nobody asks for
    gradients of the images.
    """
    forward = [price + each * size for each in work]
    backward = [price + 2 * each * size for each in work]
    backward[0] = price + work[0] * size
    return forward, backward


def call_for_rows(attempt, *case):
    """As `call_for_numbers`; rows may also come in `Costs`, from a generator, or from maps."""
    outcome = attempt(*case)
    if isinstance(outcome, dict):
        raise NotYet(NO_DICT)
    if isinstance(outcome, Costs):
        outcome = outcome.forward, outcome.backward
    return numbers(drawn(outcome))


def drawn(rows):
    """With lists for iterators, cut where one has no end."""
    rows = [*islice(rows, MOST_ROWS)] if isinstance(rows, Iterator) else rows
    return [*map(drawn, rows)] if isinstance(rows, list | tuple) else rows


MOST_ROWS = 100  # more than any case has

check_counted = Exercise(
    my_counted,
    read_again='"Where is half?"',
    cases=[([3.0, 2.0], 4, 5.0), ([2.5, 1.0, 2.5], 16, 1.0), ([0.5, 0.25, 3.0, 1.0], 1, 0.0)],
    given="blocks of {} M multiply-adds a sample, {} samples, and a price of {} M",
    play=leaving_alone(CHANGED, call_for_rows),
    hint="Two lists, forward and backward, each with price + factor * work * size for every block.",
    wrong={
        "The first block's backward does the work once: nobody asks for gradients of images.": [
            "backward[0] = price + work[0] * size => ",
            "backward[0] = price + => backward[0] = price + 3 *",
            (
                "price + 2 * each * size => 2 * (price + each * size)",
                "backward[0] = price + work[0] * size => ",
            ),
        ],
        "The first block's backward costs price + work * size: its weights need gradients.": [
            "price + work[0] * size => 0.0",
            "price + work[0] * size => price",
            "price + work[0] * size => work[0] * size",
            "price + work[0] * size => price + work[0] * size / 2",
        ],
        "The first block reads the images: entry 0 is special, not the last.": "[0] => [-1]",
        "Only entry 0 is special, and no other block with as much work.": (
            "price + 2 * each => price + (2 - (each == work[0])) * each"
        ),
        "The forward does the work once: the factor two is the backward's.": (
            "forward = [price + => forward = [price + 2 *"
        ),
        "A backward does the forward's work twice: for the inputs and for the weights.": [
            "2 * => ",
            ("2 * each => 3 * each", "price + work[0] => price + 2 * work[0]"),
            "2 * each => 3 * each",
        ],
        "Twice the work, but one price: price + 2 * work * size.": [
            "price + 2 * each * size => 2 * (price + each * size)",
            ("price + 2 * => 2 * price + 2 *", "= price + work => = 2 * price + work"),
        ],
        "For one micro-batch, a block pays one price each way, however many samples it has.": [
            "price + => 8 * price +",
            *(f"price + => price {other} size +" for other in "*/"),
            ("price + => price * size +", "backward[0] = price * size + work[0] * size => "),
        ],
        "The price is paid once for a block, not for every sample; and entry 0 of the backward is "
        "special.": (
            "forward = [price + => forward = [price * size +",
            "backward[0] = price + work[0] * size => ",
        ),
        NO_DICT: "return forward, backward => return dict(forward=forward, backward=backward)",
        "The price is missing.": "price + => ",
        "A backward's own cost: it does not contain the forward.": (
            "return => backward = [f + b for f, b in zip(forward, backward)]; return"
        ),
        "Every block pays a price.": ("[price + => [", "return => forward[0] += price; return"),
        "Every block pays the whole price: do not share it out.": [
            *(f"price + => price / {parts} +" for parts in ("len(work)", "2")),
            "price + work[0] * size => (price + 2 * work[0] * size) / 2",
        ],
        "The backward has its price, too.": ("[price + 2 => [2", "= price + work => = work"),
        "The price is an argument: it is not always 8.": "price + => 8.0 +",
        "`work` is that of one sample: the micro-batch has `size` of them.": [
            f" * size => {other}" for other in ("", "* 16", "* 128")
        ],
        CHANGED: "return => work.reverse(); return",
        "Two lists, no pair for each block.": "forward, backward => [*zip(forward, backward)]",
        "Return both lists, the forward's and the backward's.": [
            "return forward, backward => return forward",
            "return forward, backward => return [f + b for f, b in zip(forward, backward)]",
        ],
        "The backward's list begins with block 1, too.": "return => backward.reverse(); return",
        "The forward's list comes first.": "forward, backward => backward, forward",
        "A number a block, no sum of all.": "forward, backward => sum(forward), sum(backward)",
    },
    also_right=[
        "forward, backward => [torch.tensor(forward), torch.tensor(backward)]",
        "forward, backward => Costs(forward, backward)",
        "forward, backward => map(float, forward), map(float, backward)",
        "return forward, backward => yield forward; yield backward",
    ],
)

# 2. A new cut


def my_new_cut(work, keep):
    """A block's work goes with the channels that it reads times those that it writes.

    What it reads is what the block before it keeps, so the block behind a pruned one gets cheaper
    too. Then every cut is tried, and min takes the first of those that are equally good.
    """
    read = [1.0, *keep[:-1]]
    left = [each * i * o for each, i, o in zip(work, read, keep, strict=True)]
    return min(range(1, len(left)), key=lambda cut: max(sum(left[:cut]), sum(left[cut:])))


def left_of(work, keep):
    return [w * i * o for w, i, o in zip(work, [1.0, *keep], keep, strict=False)]


def call_for_cut(attempt, *case):
    """As `call`; a cut comes as one number."""
    outcome = attempt(*case)
    if isinstance(outcome, str):
        raise NotYet(NO_QUOTES)
    if isinstance(outcome, list | tuple):
        raise NotYet(ONE_NUMBER)
    return outcome


check_new_cut = Exercise(
    my_new_cut,
    read_again='"Where is half now?"',
    cases=[  # in the first, most wrong answers differ; no sum is rounded
        ([8, 8, 8, 8, 2, 2, 2, 2, 4, 6], [0.25, 1, 0.25, 0.5, 0.5, 0.5, 0.5, 1, 1, 1]),
        ([8, 4, 6, 2, 2, 4, 4, 8], [0.5, 0.5, 0.5, 0.75, 0.5, 0.5, 0.25, 1.0]),
        ([8] * 13, [0.5] * 8 + [1.0] * 5),
        ([2, 9], [0.5, 1.0]),
        ([2, 2, 2.03125], [1.0, 1.0, 1.0]),
        ([2, 4, 9], [0.5, 1.0, 1.0]),
        ([4.5, 2, 7], [1.0, 0.5, 1.0]),
        ([8, 2, 3], [0.5, 1.0, 1.0]),
        ([6, 6, 6, 2, 2, 8], [1.0, 0.5, 1.0, 1.0, 1.0, 0.25]),
    ],
    given="blocks with work {} that keep {}",
    play=leaving_alone(CHANGED, call_for_cut),
    hint="work * share of inputs * share of outputs; then the cut whose busier side is least busy.",
    wrong={
        "Two cuts are equally good by forward work: asked is the smaller one.": (
            "range(1, len(left)) => reversed(range(1, len(left)))"
        ),
        "That is the old cut: the pruned blocks have less work now.": "each * i * o => each",
        "A block that reads pruned channels has fewer inputs, too.": "each * i * o => each * o",
        "A block that keeps fewer channels has fewer outputs, too.": "each * i * o => each * i",
        "Both devices count: make the work of the busier one small.": [
            f"max(sum(left[:cut]), sum(left[cut:])) => sum(left[{part}])"
            for part in (":cut", "cut:")
        ],
        "Compare the cuts on both sides of half: either may be the better one.": [
            "max(sum(left[:cut]), sum(left[cut:])) => sum(left[:cut]) < sum(left) / 2",
            "max(sum(left[:cut]), sum(left[cut:])) => "
            "-sum(left[:cut]) * (sum(left[:cut]) <= sum(left) / 2)",
        ],
        "A block reads what the one right before it keeps, no other share and no product of all.": [
            "[1.0, *keep[:-1]] => keep",
            "[1.0, *keep[:-1]] => [*keep[1:], 1.0]",
            "[1.0, *keep[:-1]] => [math.prod(keep[:n]) for n in range(len(keep))]",
        ],
        "The first block reads the image, which is never pruned.": [
            f"[1.0, => [keep[{at}]," for at in (-1, 0)
        ],
        "Without prices: compare forward work alone.": [
            *(f"each * i * o => 8 + {more} * each * i * o" for more in (1, 16)),
            "return => left[0] *= 2 / 3; return",  # forward and backward
        ],
        "No block is on both devices.": "max(sum(left[:cut]) => max(sum(left[: cut + 1])",
        "`keep` is the share that stays.": [
            "read = => keep = [1 - each for each in keep]; read =",
            "each * i * o => each * (1 - o)",
            "each * i * o => each * (1 - i) * (1 - o)",
        ],
        "One off: the cut is how many blocks the first device has.": [
            f"return => return {off} +" for off in (-1, 1)
        ],
        "That is how many blocks the second device gets.": "return => return len(work) -",
        "No fixed number, and no half of the blocks: work the cut out of `work` and `keep`.": [
            *(lambda *case, at=at: at for at in range(2, 10)),
            lambda work, keep: len(work) // 2,
        ],
        "Do not round the work that is left.": [
            "[each * i * o => [int(each * i * o)",
            "max(sum(left[:cut]), sum(left[cut:])) => "
            "round(max(sum(left[:cut]), sum(left[cut:])), 1)",
            *(
                f"max(sum(left[:cut]), sum(left[cut:])) => {rounded}(max(sum(left[:cut]), "
                "sum(left[cut:])))"
                for rounded in ("round", "int")
            ),
        ],
        ONE_NUMBER: [
            "return => return 0, ",
            ("return min => return [min", "sum(left[cut:]))) => sum(left[cut:])))]"),
        ],
        NO_QUOTES: "return min => return '%d' % min",
        "Asked is the cut, no work: return where, not how much.": (
            "return => at =",
            "sum(left[cut:]))) => sum(left[cut:]))); return max(sum(left[:at]), sum(left[at:]))",
        ),
        "Try every cut from 1 to len(work) - 1.": [
            "range(1, len(left)) => range(2, len(left) + 1)",
            "range(1, len(left)) => range(1, len(left) - 1) or [1]",
        ],
        "Not every list has nine blocks.": "range(1, len(left)) => range(1, 9)",
        CHANGED: "left = => left = work[:] =",
    },
    errors={
        "iterable argument is empty|empty sequence": "Two blocks have a cut, too: "
        "`range(1, len(work))` has all cuts.",
    },
    also_right=[
        "max(sum(left[:cut]), sum(left[cut:])) => abs(sum(left[:cut]) - sum(left[cut:]))",
        lambda *case: balanced_bounds(left_of(*case), 2)[1],
    ],
)

# 3. The open task: what it takes to pass is counted, simulated or learnt; no clock decides

# of our plan, so that no solution is needed to tell them
OUR_STEP = 2345.141184  # M multiply-adds, counted
OUR_MICROBATCHES = 13
OUR_COPIES = 2140.38272  # the step of the fastest copies of its net, messages free
# (step, messages): its copies that are fastest at some price of a message
OUR_RIVALS = [(OUR_COPIES, 160), (2261.932032, 63), (2295.988224, 54), (2613.932032, 18)]
SLACK = 1.03  # a step as long as ours, and a little more, will do
MIB = 2**20
ROOM, FIXED = int(2.43 * MIB), tuple(f"block{number}" for number in range(5, 9))
MOST_TIMES = 10  # as fast, or as slow: what is predicted beyond it is meant in percent or seconds
ROUNDS = 25  # in which the start and a plan take turns on the clock
NO_FUNCTION = "This check takes a Plan, not a function."
THREE = "Call check_plan(my_plan, task, my_prediction), in this order."
MADE_UP = f"This was judged on a small task with made-up digits. {THREE}"
RULE = "must stay whole: that is a rule of this task."
CANNOT_RUN = "The plan cannot run:"
OTHER_TASK = (
    'This is another task than the page\'s: run the cell below "The open task" again. Its devices '
    "have 2.43 MiB, and blocks 5 to 8 stay whole."
)
NO_TEXT = "my_prediction is a number, no text: write 1.3 without quotes; got {}."
FAR_OFF = (
    "It is off by a factor of two or more: compute it by your lines, as shown above `my_plan`."
)
INVERTED = "It fits better the other way round: the start's step over yours."
WRITE_IT_DOWN = "Write your prediction down before the plan runs."
NO_PERCENT = (
    "my_prediction is how many times as fast, a number such as 1.3: no percent, no seconds; got {}."
)
HOLDS_ALL = "GPipe holds the whole mini-batch, or all its inputs, however small the pieces are."
HOLDS = "Micro-batches held there: {}. Make them smaller, prune more, or move the cut."
ONE_WAITS = "One device always waits: choose another schedule."
FEWER = "Every micro-batch pays its prices in every block: fewer of them. Prune until they fit."
KEEP_MORE = "Blocks 1 to 4 keep too few of their channels."
DISAGREE = "Cut and uncut net disagree: a device fails?"


def my_plan_and_prediction():
    """Found by a loop over shares, cuts and micro-batches, then a few trainings.

    Equal quarters in 12 micro-batches take 2,220 M by count, this plan 2,345 M: it leaves block 1,
    which reads a single channel, more channels as a margin for accuracy. Copies of its net are
    ahead where a message costs up to 1 M, and behind from 4 to 25 M; between, it is a tie. In four
    recorded orders of the images it had 92.7 to 93.9% of the held-out digits right.
    """
    keep = {"block1": 0.5, "block2": 0.25, "block3": 0.25, "block4": 0.25}
    my_plan = Plan(cut=6, schedule="1f1b", num_microbatches=13, keep=keep)
    my_prediction = 1.2  # by the lines of our machine: take yours
    return my_plan, my_prediction


def plan_target() -> tuple[float, float]:
    """The simulated step of the course's own plan and the longest that passes, in M."""
    return OUR_STEP, SLACK * OUR_STEP


def judge_plan(plan, task, prediction):
    """Forecast a plan, hold it against the limits, run it; return its score, in lines."""
    if task.most_bytes != ROOM or sorted(task.fixed) != sorted(FIXED):
        raise NotYet(OTHER_TASK)
    try:
        found = task.forecast(plan)
    except (TypeError, ValueError) as error:
        raise NotYet(CANNOT_RUN, str(error)[:160]) from None
    said = number_above_0(prediction)
    broken = limits_broken(plan, found, task)
    if broken:
        where = '"What does a device hold?"' if too_much_held(plan, found, task) else ""
        raise NotYet(*broken, "It was not run.", read_again=where)
    run = run_plan(plan, task)
    if not run.same_answer:
        raise NotYet(DISAGREE)
    if run.accuracy < task.least_accuracy:
        missing = task.least_accuracy - run.accuracy
        line = (
            f"After its epochs {run.accuracy:.1%} of the held-out digits are right; the limit is "
            f"{task.least_accuracy:.0%}: {100 * missing:.1f} points short."
        )
        raise NotYet(line, KEEP_MORE, read_again='"The open task"')
    return score(plan, found, run, said, task)


def limits_broken(plan, found, task):
    """What a plan breaks before it runs, in lines; none if it may run."""
    narrow = ", ".join(name for name in task.fixed if plan.keep.get(name, 1.0) < 1)
    broken = [f"{narrow} {RULE}"] if narrow else []
    return broken + too_much_held(plan, found, task) + too_slow(plan, found, task)


def meets_targets(plan: Plan, found: Forecast, run: PlanRun, task: Task) -> bool:
    """Whether the check takes a plan that has run, with any prediction that is a number."""
    learnt = run.same_answer and run.accuracy >= task.least_accuracy
    return learnt and not limits_broken(plan, found, task)


def number_above_0(prediction):
    """A positive number, whatever its type."""
    if isinstance(prediction, str) and prediction.replace(".", "", 1).isdecimal():
        raise NotYet(NO_TEXT.format(short(prediction)))
    try:
        number = 0.0 if isinstance(prediction, bool) else float(prediction)
    except (TypeError, ValueError, RuntimeError):
        number = 0.0
        if isinstance(prediction, str) and any(map(str.isdigit, prediction)):  # such as "40%"
            raise NotYet(NO_PERCENT.format(short(prediction))) from None
    if not 0 < number < math.inf:
        got = "it is still ..." if prediction is ... else f"got {short(prediction)}"
        raise NotYet(WRITE_IT_DOWN, f"my_prediction is a number above 0, such as 1.3; {got}.")
    if not 1 / MOST_TIMES <= number <= MOST_TIMES:
        raise NotYet(NO_PERCENT.format(short(prediction)))
    return number


def too_much_held(plan, found, task):
    full = {n: held for n, held in enumerate(found.held_bytes) if held > task.most_bytes}
    lines = [
        f"Device {device} would hold {held / MIB:.3f} MiB; the limit is "
        f"{task.most_bytes / MIB:.3f} MiB: {held / task.most_bytes - 1:.1%} too much."
        for device, held in full.items()
    ]
    if lines and plan.schedule == "gpipe":
        lines.append(HOLDS_ALL)
    elif lines:
        peaks = found.timeline.peak_activations
        lines.append(HOLDS.format(" and ".join(str(peaks[device]) for device in full)))
    return lines


def too_slow(plan, found, task):
    ours_step, longest = plan_target()
    timeline = found.timeline
    if timeline.makespan <= longest:
        return []
    line = (
        f"Its simulated step takes {timeline.makespan:,.0f} M; ours takes {ours_step:,.0f}, and "
        f"{longest:,.0f} will do: {timeline.makespan / longest - 1:.0%} too long."
    )
    if plan.schedule == "naive":
        return [line, ONE_WAITS]
    fewer = (replace(plan, num_microbatches=count) for count in range(1, plan.num_microbatches))
    fits = (each for each in map(task.forecast, fewer) if max(each.held_bytes) <= task.most_bytes)
    too_many = plan.num_microbatches > 2 * OUR_MICROBATCHES
    if too_many or any(each.timeline.makespan <= longest for each in fits):
        return [line, FEWER]
    busy = " and ".join(f"{timeline.busy(device):,.0f}" for device in (0, 1))
    works = f"The devices work {busy} M, {timeline.bubble_fraction:.0%} is idle."
    less = "recompute less, " * any(recompute_flags(plan.recompute, NUM_DEVICES))
    more = f"Move the cut, change the number of micro-batches, {less}or prune more."
    return [line, works, more]


def score(plan, found, run, said, task):
    """What is said of a plan that keeps all limits.

    The true median lies between the 8th and the 18th of 25 ratios in 95 of 100 cases; only what a
    prediction is off beyond them counts: 0 at twice or half.
    """
    times = measure_plans({"start": Plan(5), "yours": plan}, task, repeats=ROUNDS)
    pairs = zip(times["start"].times_s, times["yours"].times_s, strict=True)
    ratios = sorted(start / yours for start, yours in pairs)
    low, gain, high = (ratios[place * len(ratios) // ROUNDS] for place in (7, 12, 17))
    off, other_way = (
        math.log2(max(each / high, max(low, 1e-9) / each, 1.0)) for each in (said, 1 / said)
    )
    takes, ours = found.timeline.makespan, plan_target()[0]
    why = ""
    if other_way < off / 2:
        why = INVERTED + "\n"
    elif off >= 1:
        why = FAR_OFF + "\n"
    held = " and ".join(f"{each / MIB:.2f}" for each in found.held_bytes)
    test = task.data.test_accuracy(run.net)
    asked = task.data.shown
    return (
        f"Score of the step {100 * ours / takes:.0f}, where ours has 100: it takes "
        f"{takes:,.0f} M multiply-adds, ours {ours:,.0f} M.\n"
        f"Score of the prediction {100 * max(0.0, 1 - off):.0f} of 100: you said {said:.2f} times "
        f"as fast as the start, measured here {gain:.2f}, from {low:.2f} to {high:.2f} by "
        f"{ROUNDS} rounds.\n{why}"
        f"It holds {held} MiB; {run.accuracy:.1%} of the held-out digits are right.\n"
        f"Test digits: {test:.1%} right. " + (FIRST if asked == 1 else AGAIN.format(asked))
    )


FIRST = "That is your result: no plan was chosen by them."
AGAIN = "You have asked them {} times: the first result is honest, later ones may be chosen."


@functools.cache
def small_task():
    """A task whose epoch is one mini-batch; a net that has lost too many weights forgets."""
    batch = torch.linspace(0, 1, 128 * 784).view(128, 1, 28, 28), torch.arange(128) % 10
    data = SimpleNamespace(all_train=[*batch], shuffled=[batch], shown=1)
    # the first parameter's length is how many channels block 1 has
    data.accuracy = lambda pipeline: 0.95 if len(next(pipeline.parameters())) >= 12 else 0.3
    data.test_accuracy = lambda net: 0.94
    return Task(deep_conv_net(), data, get_devices(2), ROOM, 0.92, FIXED)


@dataclass(frozen=True, eq=False)
class PlanExercise(Exercise):
    """The plan and the prediction are asked for; the task that stands between them is given.

    A plan is trained and timed, which takes as long as it takes: without a thread and a time limit.
    Where no task is given, it is a small one.
    """

    def taken(self, attempt):
        """Plan, task if there is one, prediction; of one that runs elsewhere nothing yet."""
        if isinstance(attempt[0], Elsewhere):
            return super().taken(attempt)
        if attempt[0] is ...:
            raise NotAttempted
        if callable(attempt[0]):
            raise NotYet(NO_FUNCTION)
        unpredicted = len(attempt) == 1 or isinstance(attempt[-1], Task)
        if unpredicted or (len(attempt) > 2 and not isinstance(attempt[1], Task)):
            raise NotYet(THREE)
        return attempt

    def _judge(self, attempt):
        if isinstance(attempt, Elsewhere):
            plan, prediction = attempt.outcome_of(0)
            attempt = plan, attempt.given("task"), prediction
        if len(attempt) == 2:
            return f"{self.look(attempt[0], small_task(), attempt[1])}\n{MADE_UP}"
        return self.look(*attempt)


def kept_by_all(share, *plan, blocks=range(1, 5), again=False):
    """A plan under which blocks keep a share of their channels, and a prediction."""
    return Plan(*plan, {f"block{number}": share for number in blocks}, again), 1.5


check_plan = PlanExercise(
    my_plan_and_prediction,
    read_again='"The open task"',
    play=lambda attempt: (attempt[0], attempt[-1]),
    look=judge_plan,
    correct="{outcome}",
    values=True,
    wrong={
        NO_FUNCTION: (lambda: None, 1.5),
        THREE: [(Plan(6), 1.2, 1.5), (Plan(6), Task(None, None, (), 0, 0.0))],
        CANNOT_RUN: [(Plan(9), 1.5), (Plan(5, keep={"head": 0.5}), 1.5), (Plan(5, "1F1B"), 1.5)],
        "a plan is a Plan": ({"cut": 5}, 1.5),
        WRITE_IT_DOWN: [(Plan(6), prediction) for prediction in (None, 0, "fast", True)],
        "it is still ...": (Plan(6), ...),
        "no percent, no seconds": [
            (Plan(6), prediction) for prediction in (120, 0.04, "40%", "1.4x", "0.8 s")
        ],
        "a number, no text": [(Plan(6), prediction) for prediction in ("1.4", "2")],
        "block5, block6 must stay whole": kept_by_all(0.5, 5, "1f1b", 8, blocks=range(1, 7)),
        HOLDS_ALL: kept_by_all(0.375, 6, "gpipe", 8),
        HOLDS.format(2): kept_by_all(0.5, 6, "1f1b", 13),
        HOLDS.format(1): [
            kept_by_all(0.5, 6, "1f1b", 10, again=[True, False]),
            kept_by_all(0.25, 5, "1f1b", 13),  # device 1 is full: its own micro-batches count
        ],
        HOLDS.format("2 and 1"): [kept_by_all(share, 6, "1f1b", 4) for share in (0.375, 0.5)],
        ONE_WAITS: kept_by_all(0.375, 6, "naive", 8),
        FEWER: [kept_by_all(0.375, 6, "1f1b", 40), kept_by_all(0.25, 6, "1f1b", 20)],
        "Move the cut, change the number": [
            kept_by_all(0.375, 6, "1f1b", 20),  # fewer would be fast enough, and hold too much
            kept_by_all(0.375, 4, "1f1b", 1),
        ],
        "62.0 points short": kept_by_all(0.25, 6, "1f1b", 14),
        KEEP_MORE: kept_by_all(0.25, 6, "1f1b", 14),
    },
    also_right=["keep=keep => keep=keep, recompute=[False, False]"],
)
