"""Exercises of page `zero_bubble`: a backward in two halves, split under a cap, without a wait."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from torch.utils.flop_counter import FlopCounterMode

from mpcourse.exercises.exercise import (
    NO_RETURN,
    Exercise,
    NotYet,
    borrowed,
    leaving_alone,
    refuse,
    slip,
)
from mpcourse.exercises.schedules import as_actions
from mpcourse.schedules.actions import ScheduleError, number_actions
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import one_f_one_b_schedule
from mpcourse.schedules.validate import validate_schedule
from mpcourse.schedules.zero_bubble import zero_bubble_schedule

# 1. Both halves of a linear layer's backward

TWO = "Asked for are two: the input's gradient (a tensor), and a function that makes the weight's."
AT_ONCE = "Make one product now. Put that of W behind lambda: it is made when that is called."
ALONE = "The function of W takes no argument: it knows x and gradient from where it is written."
SHAPES = "The input's gradient has the input's shape, the weight's that of the weight."
ONCE = "Each half is one product: the gradient that arrived, and what the forward multiplied with."
STAR = "* goes number by number; a product of matrices is @."
AS_IT_CAME = "W is made later, and others read x, weight and gradient: leave them as they are."
ONE_EACH = "The function of W makes one product: that of I has been made already."
EMPTY = "The function of W returns nothing: it returns the weight's gradient."
BY_TORCH = "Asked for is one product of matrices by torch (@): PutOff goes on with its tensor."
NO_AUTOGRAD = "No autograd here: two matrix products will do."
DTYPE = "Both halves have the dtype of gradient: leave it as it is."


def my_halves(x, weight, gradient):
    """The forward multiplies by the transposed weight, so the way back multiplies by the weight.

    The weight's gradient adds over the rows of x. The product behind lambda waits for its call.
    """
    return gradient @ weight, lambda: gradient.T @ x


def both_halves(attempt, *case):
    counter = FlopCounterMode(display=False)
    with torch.inference_mode():  # no graph, in no helper either
        with counter:
            outcome = attempt(*case)
        if borrowed(attempt, {"vjp", "grad", "backward", "enable_grad"}):
            raise NotYet(NO_AUTOGRAD)
        if not isinstance(outcome, tuple | list) or len(outcome) != 2 or callable(outcome[0]):
            raise NotYet(*[NO_RETURN] * (outcome is None), TWO)
        now, later = outcome
        product = 2 * case[2].numel() * case[0].shape[1]  # its flops
        if not callable(later) or counter.get_total_flops() > product:
            raise NotYet(AT_ONCE)
        with FlopCounterMode(display=False) as second:
            made = later()
        if second.get_total_flops() > product:
            raise NotYet(ONE_EACH)
        if made is None:
            raise NotYet(EMPTY)
        tensors = isinstance(now, torch.Tensor) and isinstance(made, torch.Tensor)
        if not tensors or min(counter.get_total_flops(), second.get_total_flops()) < product:
            raise NotYet(BY_TORCH)
        if {now.dtype, made.dtype} != {case[2].dtype}:
            raise NotYet(DTYPE)
        return now, made


def sizes_of_both(outcome, expected):
    got, due = ([tuple(getattr(t, "shape", ["no tensor"])) for t in p] for p in (outcome, expected))
    if got != due:
        return [f"expected the shapes {due}", f"got {got}"]
    return ["the shapes are right, the numbers are not"]


def drawn(rows, inputs, outputs):
    generator = torch.Generator().manual_seed(rows)
    sizes = [(rows, inputs), (outputs, inputs), (rows, outputs)]
    return tuple(torch.randint(-5, 6, size, generator=generator).double() for size in sizes)


check_halves = Exercise(
    my_halves,
    read_again='"Which half of a backward does somebody wait for?"',
    cases=[drawn(2, 3, 3), drawn(3, 3, 3), drawn(5, 2, 4)],
    given=lambda x, weight, gradient: (
        f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, gradient {tuple(gradient.shape)}"
    ),
    play=leaving_alone(AS_IT_CAME, both_halves),
    compared=sizes_of_both,
    hint=lambda outcome, expected: SHAPES if len(sizes_of_both(outcome, expected)) > 1 else ONCE,
    errors={
        "nference|not require grad": NO_AUTOGRAD,
        "must match": STAR,
        "required positional arguments?: '": ALONE,
        "is not defined": "A name is not defined: compare it with those in the first line.",
        "": SHAPES,
    },
    wrong={
        "The other way round: first the gradient of the input.": (
            "gradient @ weight, lambda: gradient.T @ x => gradient.T @ x, lambda: gradient @ weight"
        ),
        "The weight's gradient is transposed: it has the shape of the weight.": (
            "gradient.T @ x => x.T @ gradient"
        ),
        "The forward multiplies by weight.T; the way back by weight itself.": [
            "@ weight => @ weight.T",
            ("@ weight => @ weight.T", "gradient.T @ x => x.T @ gradient"),
        ],
        NO_AUTOGRAD: [
            lambda x, w, g: torch.autograd.functional.vjp(lambda a, b: a @ b.T, (x, w), g)[1],
            "return gradient @ weight, lambda: gradient.T @ x => with torch.inference_mode(False), "
            "torch.enable_grad(): return torch.autograd.grad(x.requires_grad_() @ "
            "weight.requires_grad_().T, (x, weight), gradient)",
            "gradient.T @ x => torch.autograd.grad(x @ weight.T, weight, gradient)[0]",
        ],
        STAR: ["@ x => * x", "@ weight => * weight"],
        "The weight's gradient adds over the rows; no mean is taken.": "@ x => @ x / len(x)",
        "Neither half takes a mean; a loss that takes one has put it into gradient.": (
            ("@ weight => @ weight / len(x)", "@ x => @ x / len(x)")
        ),
        TWO: [", lambda: gradient.T @ x => ", lambda *_: None, "gradient @ => lambda: gradient @"],
        ONE_EACH: "lambda: gradient.T @ x => lambda: (gradient @ weight, gradient.T @ x)[1]",
        EMPTY: "lambda: gradient.T @ x => lambda: None",
        BY_TORCH: [
            "gradient @ weight => gradient.numpy() @ weight.numpy()",
            "gradient @ weight => (gradient @ weight).numpy()",
            "gradient @ weight => (gradient[:, :, None] * weight).sum(1)",
            "gradient.T @ x => (gradient.T @ x).numpy()",
            "gradient.T @ x => sum(map(torch.outer, gradient, x))",
        ],
        AT_ONCE: [
            "lambda: gradient.T => gradient.T",
            ("lambda: gradient.T @ x => lambda: w", "return => w = gradient.T @ x; return"),
        ],
        ALONE: "lambda: => lambda x, gradient:",
        DTYPE: [
            "gradient @ weight => gradient.float() @ weight.float()",
            "T @ x => T.half() @ x.half()",
        ],
        AS_IT_CAME: [
            f"return gradient @ weight, => now = gradient @ weight; {change}; return now,"
            for change in ("x.zero_()", "gradient.zero_()", "weight.zero_()")
        ],
    },
    also_right=[
        lambda x, w, g: [(w.T @ g.T).T, lambda: (x.T @ g).T],
        lambda x, w, g: (g @ w, partial(torch.einsum, "no,ni->oi", g, x)),
    ],
)

# 2 and 3. Split backwards: at most 0.12 idle, under a cap; then no device waits once it has begun

# by stages and micro-batches; with five stages, to keep three W back is not enough
MOST_IDLE = {(4, 8): 0.12, (5, 9): 0.13}
UNITS = Costs(1, 2, input_backward=1, weight_backward=1)
NOT_MORE_AHEAD = "Each W follows its I: here the forwards ahead are too many, not the W too late."
GIVEN_BACK = "W gives back what is held: do one before that F."
BOTH_TOO_MANY = "Begin with as many forwards as 1F1B, then do a W before an F that finds no room."
STILL_WHOLE = "Its backwards are whole. Which half of them does the stage before wait for?"
REVERSED = (
    "The other way round: the last device does the fewest F ahead, so the most W may wait there."
)
BESIDE = "A W beside its I fills no hole. Which devices hold less than the cap allows?"
ORDER = "Keep 1F1B's order of F and I: an F too early takes a W's room, too late lets others wait."
HOLES_LEFT = "Some W wait, but holes are left. Where does a device wait before its last I?"
DEADLOCK = "Nobody can go on. Does each device begin with more forwards than the next one?"
NO_DICT = "That is a dict: return a list, with a list of actions per device, device 0 first."
READ_ONCE = "A generator is read once: return a list, with a list of actions per device."
ANY_SIZE = "num_stages and num_microbatches say how many there are: any number."
ALL_THREE = "In each stage, each micro-batch has all three: F, I and W."
ONE_STAGE_EACH = "Each device has one stage: as many devices as stages."


def my_split_backward(num_stages, num_microbatches):
    """Take 1F1B, put I in the place of B, and let each W wait: device r keeps r of them back.

    1F1B holds num_stages - r on device r, so there is room for r more: those W fill the holes.
    """
    schedule = []
    for rank, row in enumerate(one_f_one_b_schedule(num_stages, num_microbatches)):
        split, waiting = [], []
        for action in row:
            split.append(action._replace(kind="I") if action.kind == "B" else action)
            if action.kind == "B":
                waiting.append(action._replace(kind="W"))
            if len(waiting) > rank:
                split.append(waiting.pop(0))
        schedule.append(split + waiting)
    return schedule


def my_no_wait(num_stages, num_microbatches):
    """Device r does 2(p - 1 - r) + 1 forwards before its first I, and keeps 2r W back.

    Two forwards more than the next device: one for the way there, one for the way back.
    """
    schedule = []
    for rank in range(num_stages):
        ahead = min(num_microbatches, 2 * (num_stages - 1 - rank) + 1)
        late = min(num_microbatches, 2 * rank)
        kinds = "F" * ahead
        for index in range(num_microbatches):
            kinds += "I" + "W" * (index >= late) + "F" * (index < num_microbatches - ahead)
        schedule.append(number_actions([(rank, kinds + "W" * late)]))
    return schedule


def all_follow(schedule):
    """Whether there are W, and each stands right behind its I."""
    pairs = [(a, b) for row in schedule for a, b in pairwise(row) if b.kind == "W"]
    return bool(pairs) and all(a == b._replace(kind="I") for a, b in pairs)


def without_w(schedule):
    """The order of F and I; a whole B counts as its I."""
    kinds = {"F": "F", "I": "I", "B": "I"}
    return [[a._replace(kind=kinds[a.kind]) for a in row if a.kind in kinds] for row in schedule]


def written(attempt, p, m):
    """The schedule, and who else has written it."""
    rows = attempt(p, m)
    if rows is None:
        raise NotYet("got None", NO_RETURN)
    inside = rows if isinstance(rows, list | tuple) else []
    if isinstance(rows, dict):
        raise NotYet(NO_DICT)
    if any(isinstance(each, Iterator) for each in [rows, *inside]):
        raise NotYet(READ_ONCE)
    return as_actions(rows), borrowed(attempt, {"make_schedule", "zero_bubble_schedule"})


def legal(outcome, p, m, cap, too_full):
    """The schedule, if it can run, and who else wrote it; `too_full` makes words for too much."""
    schedule = as_actions(outcome[0])
    stages = [len({action.stage_index for action in row}) for row in schedule]
    try:
        validate_schedule(schedule, p, m, max_activations=cap)
    except ScheduleError as error:
        reverse = all_follow(schedule[-1:]) and not all_follow(schedule[:1])
        why = REVERSED if reverse else too_full(schedule)
        whys = {"makes it hold": why, "deadlock": DEADLOCK, "is missing": ALL_THREE}
        whys["has stage_index"] = ONE_STAGE_EACH
        why = next((whys[part] for part in whys if part in str(error)), "")
        found = len(schedule), len({a.microbatch_index for row in schedule for a in row})
        why = ONE_STAGE_EACH if max(stages, default=0) > 1 else why if found == (p, m) else ANY_SIZE
        raise NotYet(str(error), why) from None
    if stages != [1] * p:
        raise NotYet(ONE_STAGE_EACH)
    return schedule, outcome[1]


def begun_with(schedule):
    """By stage: the forwards before its first I, or before its first whole B."""
    rows = [row for row in without_w(schedule) if row]
    return {row[0].stage_index: "".join(a.kind for a in row).find("I") for row in rows}


def idle_share(outcome, p, m):
    def too_full(schedule):
        if all_follow(schedule):
            return NOT_MORE_AHEAD
        more = any(ahead > p - stage for stage, ahead in begun_with(schedule).items())
        return BOTH_TOO_MANY if more else GIVEN_BACK

    schedule, others = legal(outcome, p, m, p, too_full)
    idle = simulate(schedule, UNITS).bubble_fraction
    most = MOST_IDLE.get((p, m), 1.0)
    if idle <= most:
        refuse(others, "write the order yourself.")
        return idle
    if any(a.kind == "B" and a.stage_index for row in schedule for a in row):  # somebody waits
        why = STILL_WHOLE
    elif without_w(schedule) != without_w(my_split_backward(p, m)):
        why = ORDER
    else:
        why = BESIDE if all_follow(schedule) else HOLES_LEFT
    raise NotYet(f"expected an idle share of at most {most:.3f}", f"got {idle:.3f}", why)


ON_ONE_DEVICE = (  # micro-batch by micro-batch
    "return schedule => return [sorted(sum(schedule, []), "
    "key=lambda a: (a[2], a[1] != 'F', -a[0] if a[1] != 'F' else a[0]))]"
)
WHOLE_FIRST = (  # nobody waits for stage 0, so its backwards may stay whole
    "return schedule => return "
    "[one_f_one_b_schedule(num_stages, num_microbatches)[0], *schedule[1:]]"
)
BESIDE_ITS_I = "len(waiting) > rank => waiting"
AHEAD = "2 * (num_stages - 1 - rank) + 1"
W_BEHIND_F = (
    '"W" * (index >= late) + "F" * (index < num_microbatches - ahead) => '
    '"F" * (index < num_microbatches - ahead) + "W" * (index >= late)'
)
ONE_MORE = f"{AHEAD} => min(num_stages, num_stages - rank + 1)"

check_split_backward = Exercise(
    my_split_backward,
    read_again='"What fills the holes?"',
    cases=[(2, 3), (3, 2), (4, 8), (5, 9)],
    given="{} stages and {} micro-batches",
    play=written,
    look=idle_share,
    correct="With 5 stages and 9 micro-batches {outcome:.3f} is idle, and nobody holds 6.",
    wrong={
        STILL_WHOLE: one_f_one_b_schedule,
        BESIDE: BESIDE_ITS_I,
        HOLES_LEFT: [
            "> rank => > max(0, rank - 1)",
            "> rank => > rank and action[2] + num_stages - rank < num_microbatches",
            ("> rank => > max(0, rank - 1)", WHOLE_FIRST),
            "> rank => > min(rank, 3)",
        ],
        ORDER: [
            slip(my_no_wait, ONE_MORE, "2 * rank => max(0, rank - 1)"),
            slip(my_no_wait, f"{AHEAD} => num_stages", "2 * rank => 0"),
            slip(my_no_wait, f"{AHEAD} => 1", "2 * rank => 0"),
        ],
        ONE_STAGE_EACH: [ON_ONE_DEVICE, lambda p, m: zero_bubble_schedule(p, m, "v")],
        READ_ONCE: [
            "return schedule => return (row for row in schedule)",
            "return schedule => return [(action for action in row) for row in schedule]",
            "return schedule => return map(list, schedule)",
        ],
        ANY_SIZE: lambda p, m: my_split_backward(4, 8),
        NOT_MORE_AHEAD: slip(my_no_wait, "2 * rank => 0"),
        DEADLOCK: slip(my_no_wait, f"{AHEAD} => rank + 1", "2 * rank => rank"),
        REVERSED: "> rank => > num_stages - 1 - rank",
        GIVEN_BACK: ["> rank => > num_microbatches", "> rank => > 2 * rank"],
        BOTH_TOO_MANY: my_no_wait,
        NO_DICT: "return schedule => return dict(enumerate(schedule))",
        NO_RETURN: lambda *_: None,
        ALL_THREE: "split.append(waiting.pop(0)) => waiting.pop(0)",
        "did the work: write the order yourself": lambda p, m: zero_bubble_schedule(p, m, "h1"),
    },
    also_right=[slip(my_no_wait, f"{AHEAD} => num_stages - rank", "2 * rank => rank")],
)

TOO_FULL = "At most 2p - 1 are held: begin with fewer forwards."
W_FIRST = "At most 2p - 1 are held: do a W before that F."
MORE_AHEAD = "A device that waits for its first I can do more forwards before it."
FEWER = "Too many forwards ahead: a device whose I can start has to send it back, not do another F."
LATER = "More W have to be kept back than in ZB-H1: they fill the holes before the last I."


def most_waits(outcome, p, m):
    def too_full(schedule):
        begun = begun_with(schedule).items()
        return TOO_FULL if any(more > 2 * (p - stage) - 1 for stage, more in begun) else W_FIRST

    schedule, others = legal(outcome, p, m, 2 * p - 1, too_full)
    run = simulate(schedule, UNITS)
    waits = [run.waits(device) for device in range(p)]
    if not max(waits):
        refuse(others, "write the order yourself.")
        return waits
    if any(a.kind == "B" and a.stage_index for row in schedule for a in row):
        why = STILL_WHOLE
    else:
        extra = [ahead - 2 * (p - r) + 1 for r, ahead in begun_with(schedule).items()]
        why = MORE_AHEAD if min(extra) < 0 else FEWER if max(extra) > 0 else LATER
    raise NotYet("expected: no device waits once it has begun", f"got waits of {waits}", why)


check_no_wait = Exercise(
    my_no_wait,
    read_again='"What closes the rest of the holes?"',
    cases=[(2, 5), (2, 3), (4, 8), (5, 9)],
    given="{} stages and {} micro-batches",
    play=written,
    look=most_waits,
    correct="No device waits once it has begun, and nobody holds more than 2p - 1.",
    wrong={
        MORE_AHEAD: [
            my_split_backward,
            slip(my_split_backward, BESIDE_ITS_I),
            WHOLE_FIRST,
            f"{AHEAD} => max(1, 2 * (num_stages - 1 - rank))",
        ],
        FEWER: (f"{AHEAD} => 2 * num_stages - 1", "2 * rank => 0"),
        LATER: ["2 * rank => rank", "2 * rank => 0"],
        DEADLOCK: f"{AHEAD} => 2 * rank + 1",
        REVERSED: "2 * rank => 2 * (num_stages - 1 - rank)",
        ONE_STAGE_EACH: ON_ONE_DEVICE,
        ANY_SIZE: lambda p, m: my_no_wait(4, 8),
        "did the work: write the order yourself": lambda p, m: zero_bubble_schedule(p, m, "h2"),
        STILL_WHOLE: one_f_one_b_schedule,
        TOO_FULL: [
            (f"{AHEAD} => 2 * num_stages", "2 * rank => 0"),
            (f"{AHEAD} => num_microbatches", "2 * rank => 0"),  # GPipe
        ],
        W_FIRST: ["2 * rank => 9", W_BEHIND_F],
        NO_DICT: "return schedule => return dict(enumerate(schedule))",
        NO_RETURN: lambda *_: None,
    },
    also_right=[f"{AHEAD} => 2 * (num_stages - rank) - 1"],
)
