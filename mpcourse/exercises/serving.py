"""Exercises of page `serving`: a cache whose rows have heights, who runs when, two groups."""

import threading
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from itertools import islice, zip_longest
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention

from mpcourse.exercises.exercise import (
    NO_RETURN,
    Exercise,
    NotYet,
    first_difference,
    leaving_alone,
    numbers,
    same,
    short,
)
from mpcourse.splitting.placement import works_on_a_gpu
from mpcourse.transformer import attention_weights

# 1. Attention over a cache whose rows have heights


def my_look_back(query, keys, values, heights):
    """The first new token stands in the column that is its row's height.

    Columns behind a token's own are hidden, in all heads alike.
    """
    new, columns = (torch.arange(each.shape[2], device=query.device) for each in (query, keys))
    own = heights[:, None] + new
    ahead = columns > own[:, None, :, None]
    scores = query @ keys.mT / query.shape[-1] ** 0.5
    return scores.masked_fill(ahead, float("-inf")).softmax(dim=-1) @ values


SHAPES = "Weights @ values: weights are (rows, heads, new, columns), mask (rows, 1, new, columns)."


def over_a_cache(attempt, heights, new, heads):
    """What the new tokens collect; above them lies what others have left."""
    chance = torch.Generator().manual_seed(new)
    shape = len(heights), heads, max(heights) + new + 2, heads + 1
    keys, values = 2 * torch.randn(2, *shape, generator=chance, dtype=torch.double)
    query = 2 * torch.randn(*shape[:2], new, shape[3], generator=chance, dtype=torch.double)
    given = query, keys, values, torch.tensor(heights)
    before = [each.clone() for each in given]
    found = attempt(*given)
    if not all(map(torch.equal, given, before)):
        raise NotYet("Do not change a given tensor in place: make a new one.")
    if isinstance(found, tuple | list):
        raise NotYet("One tensor is asked: what the new tokens collect. The cache is filled.")
    if hasattr(found, "__array__") and not torch.is_tensor(found):
        raise NotYet("This is an array of numpy: return a tensor, the model goes on with it.")
    if not torch.is_tensor(found):
        return found
    if found.isnan().any():
        raise NotYet("nan: a softmax had -inf alone. Take it along the last dimension.")
    swapped = found.dim() == 4 and found.shape != query.shape == found.transpose(1, 2).shape
    if swapped:
        raise NotYet(
            "Heads and new tokens have changed places: as `query`, (rows, heads, new, numbers)."
        )
    if found.shape != query.shape:
        raise NotYet(f"The shape is {tuple(found.shape)}, not that of `query`. {SHAPES}")
    if found.dtype != query.dtype:
        raise NotYet("Return the dtype that you are given: the model goes on in it, here double.")
    last = len(heights) == 3 and same(found, one_token_at_a_time(*given))  # of the cases
    if last and not works_on_a_gpu(attempt, *given):
        raise NotYet("On a GPU this raises: make new tensors there, `device=query.device`.")
    return found


def one_token_at_a_time(query, keys, values, heights):
    found = torch.zeros_like(query)
    for row, height in enumerate(heights.tolist()):
        for place in range(query.shape[2]):
            one, seen = slice(place, place + 1), slice(height + place + 1)
            found[row, :, one] = scaled_dot_product_attention(
                query[row, :, one], keys[row, :, seen], values[row, :, seen]
            )
    return found


def with_torchs_own(query, keys, values, heights):
    table = torch.ones(query.shape[2], keys.shape[2], dtype=torch.bool, device=query.device)
    seen = torch.stack([table.tril(int(height)) for height in heights])
    return scaled_dot_product_attention(query, keys, values, seen[:, None])


check_look_back = Exercise(
    my_look_back,
    read_again='"What does a cache save?"',
    cases=[
        ([1], 1, 1),
        ([0], 2, 1),
        ([2, 0], 1, 1),
        ([1, 2], 2, 3),
        ([20], 1, 1),
        ([3, 0, 1], 3, 2),
    ],
    given="heights: {}, new tokens in each row: {}, heads: {}",
    play=over_a_cache,
    hint="Compare the columns, `torch.arange(columns, device=query.device)`, with the "
    "column of each new token: the row's height, and 1 more for each new token before it. Divide "
    "the scores by the root of `query.shape[-1]`; -inf hides the columns behind a token's own; "
    "softmax along -1, sum values.",
    errors={
        "size|shape|broadcast|dimension": f"{SHAPES} `heights[:, None, None, None]`, "
        "`torch.arange(new)[:, None]`, `torch.arange(columns)`, both with `device=query.device`."
    },
    wrong={
        "On a GPU this raises": ", device=query.device => ",
        "A new token sees itself, too: its own column counts.": "columns > own => columns >= own",
        "Columns count from 0: the first new token stands in column `heights`, not behind it.": [
            "[:, None] + new => [:, None] + new + 1",
            "[:, None] + new => [:, None] + new + len(new) - 1",
            "[:, None] + new => [:, None] + 0 * new + len(new)",
        ],
        "Do not change a given": [
            "scores = query => query /= 1.5; scores = 1.5 * query",
            "own = heights[:, None] => own = heights.add_(1)[:, None] - 1",
        ],
        "A token sees no column behind its own: there stand later tokens, or what others have "
        "left. A single new token needs this mask, too.": [
            "masked_fill(ahead, => masked_fill(ahead & False,",
            "masked_fill(ahead, => masked_fill(ahead & (len(new) > 1),",
        ],
        "Each row has a height of its own.": "heights[:, None] + new => heights.max() + new[None]",
        "New tokens stand from their row's height on, not in the last columns.": [
            "heights[:, None] => 0 * heights[:, None] + len(columns) - len(new)",
            lambda query, keys, values, heights: attention_weights(query, keys) @ values,
        ],
        "The old tokens are hidden: the first new token stands in the column of its row's height, "
        "not in column 0, as with `is_causal=True`.": "heights[:, None] => 0 * heights[:, None]",
        "A new token sees no new token behind it.": "+ new => + 0 * new + len(new) - 1",
        "Each new token sees one column more than the one before.": "+ new => + 0 * new",
        "The mask is upside down: `masked_fill` hides where it is True, torch's attention where it "
        "is False.": [
            "columns > own => columns <= own",
            'scores.masked_fill(ahead, float("-inf")).softmax(dim=-1) @ values => '
            "scaled_dot_product_attention(query, keys, values, ahead)",
        ],
        "A mask of numbers is added to the scores: give torch's attention one of True and False.": (
            'scores.masked_fill(ahead, float("-inf")) => (scores + ~ahead)'
        ),
        "A token sees all columns up to its own.": "columns > own => columns != own",
        "A token sees all earlier ones of its row, however many they are.": [
            "ahead = columns > own[:, None, :, None] => ahead = (columns > own[:, None, :, None]) "
            f"| (columns <= own[:, None, :, None] - {window})"
            for window in (4, 8, 16)
        ],
        "A new token sees the new ones before it, too.": (
            "ahead = columns > => ahead = (columns >= heights[:, None, None, None]) & (columns != ",
            "own[:, None, :, None] => own[:, None, :, None])",
        ),
        "The old tokens are missing: the new ones saw themselves alone.": (
            "ahead = => ahead = (columns < heights[:, None, None, None]) +"
            " (columns > own[:, None, :, None]); old ="
        ),
        "New tokens see the old ones alone: each sees itself and new ones before it, too.": (
            "own[:, None, :, None] => heights[:, None, None, None] - 1"
        ),
        "Divide the scores by the square root of `query.shape[-1]`, the numbers of a key.": [
            " / query.shape[-1] ** 0.5 => ",
            "query.shape[-1] ** 0.5 => query.shape[-1]",
            "keys.mT / query => keys.mT * query",
            "query.shape[-1] ** 0.5 => (query.shape[1] * query.shape[3]) ** 0.5",
        ],
        "Hide with -inf, and before the softmax: then what is seen sums to 1.": [
            'float("-inf") => 0.0',
            'float("-inf") => -1.0',
            'float("-inf") => -10.0',
            ('float("-inf") => 0.0', "@ values => @ (values * ~ahead[:, :, -1, :, None])"),
            'masked_fill(ahead, float("-inf")).softmax(dim=-1) => '
            "softmax(dim=-1).masked_fill(ahead, 0.0)",
        ],
        "along the last dimension": "softmax(dim=-1) => softmax(dim=-2)",
        "not that of `query`": [
            "@ values => ",
            "own[:, None, :, None] => own[:, :, None]",
        ],
        "Heads and new tokens have changed places": (
            "return scores => return (scores",
            "@ values => @ values).transpose(1, 2)",
        ),
        "an array of numpy": ("return scores => return (scores", "@ values => @ values).numpy()"),
        "Keys are compared with the query, values are summed.": [
            "@ values => @ keys",
            ("@ values => @ keys", "keys.mT => values.mT"),
        ],
        "One tensor is asked": "@ values => @ values, keys, values",
        "Return the dtype": (
            "return scores => return (scores",
            "softmax(dim=-1) @ values => softmax(dim=-1) @ values).float()",
        ),
    },
    also_right=[one_token_at_a_time, with_torchs_own],
)

# 2. Who runs in which step


def my_continuous(lengths, places):
    """Before each step, fill every place whose request has ended, or that was never filled.

    That a request has ended is all that this asks of a length: a server can see it, too.
    """
    left, waiting = [*lengths], [*range(len(lengths))]
    here, plan = [None] * places, []
    while waiting or any(left):
        for place, request in enumerate(here):
            if request is None or left[request] == 0:
                here[place] = waiting.pop(0) if waiting else None
        plan.append([*here])
        for request in here:
            if request is not None:
                left[request] -= 1
    return plan


ONE_LIST = "All rows are one list, as it was at the end: append a copy."
ENDLESS = (
    "Fill every free place. The plan ends when nobody waits and nobody has steps left. (For "
    "request 0, too, `if request` is false: ask `is None`.)"
)


def as_rows(attempt, lengths, places):
    """The plan as lists, whose numbers are Python's own."""
    most = 10 * sum(lengths)
    plan = attempt(lengths, places)
    if isinstance(plan, Iterator):  # of a function that yields its rows
        plan = [*islice(plan, most + 2)]
    several = isinstance(plan, list) and len(plan) > 1 and len(lengths) > 1
    if several and all(row is plan[0] for row in plan):
        raise NotYet(ONE_LIST)
    if several and len(plan) > most > 0:
        raise NotYet(f"The plan has {len(plan)} steps. {ENDLESS}")
    plan = numbers(plan)
    if plan is None:
        return None
    for each in [plan, *plan] if isinstance(plan, list | tuple) else [plan]:
        if not isinstance(each, list | tuple):
            raise NotYet(
                "A row for each step is asked, in it for each place a request's number, or None; "
                f"got {short(each)}."
            )
    return [[*row] for row in plan]


def first_step_that_differs(plan, expected):
    if plan is None:
        return [f"step 0: expected {expected[0]}, got no plan"]
    for step, (row, right) in enumerate(zip_longest(plan, expected)):
        if not same(row, right):
            ended = "nothing: all have ended"
            return [f"step {step}: expected {right or ended}, got {row or ended}"]


def in_static_batches(lengths, places):
    plan = []
    for first in range(0, len(lengths), places):
        batch = range(first, min(first + places, len(lengths)))
        for step in range(max(lengths[each] for each in batch)):
            row = [each if step < lengths[each] else None for each in batch]
            plan.append(row + [None] * (places - len(row)))
    return plan


def a_queue_for_each_place(lengths, places, neighbours=False):
    queues = [[] for _ in range(places)]
    for request, steps in enumerate(lengths):
        place = request * places // len(lengths) if neighbours else request % places
        queues[place] += [request] * steps
    return [[*row] for row in zip_longest(*queues)]


def one_place_a_step(lengths, places):
    """After the first step, only one free place is filled in each."""
    left, waiting = [*lengths], [*range(places, len(lengths))]
    here, plan = [*range(len(lengths))][:places], []
    here += [None] * (places - len(here))
    while any(left):
        plan.append([*here])
        for request in {*here} - {None}:
            left[request] -= 1
        here = [None if each is None or left[each] == 0 else each for each in here]
        if waiting and None in here:
            here[here.index(None)] = waiting.pop(0)
    return plan


def in_the_order_of_ending(lengths, places):
    """Free places are filled as their requests stand in a list of who runs."""
    free, running, waiting, plan = [*range(places)], [], [*enumerate(lengths)], []
    while waiting or running:
        while free and waiting:
            running.append([free.pop(0), *waiting.pop(0)])
        plan.append([None] * places)
        for place, request, _ in running:
            plan[-1][place] = request
        running = [[place, request, steps - 1] for place, request, steps in running]
        free += [place for place, _, steps in running if steps == 0]
        running = [each for each in running if each[2]]
    return plan


def never_ending(lengths, places):
    """As an attempt that counts no steps of request 0, and gives up at last."""
    return my_continuous(lengths, places) + [[0] + [None] * (places - 1)] * 2000


check_continuous = Exercise(
    my_continuous,
    read_again='"Must all wait for the longest?"',
    cases=[
        ([2, 1, 1], 2),
        ([2], 3),
        ([1, 4, 1, 1], 2),
        ([1, 2, 1], 1),
        ([1, 1, 1, 1], 2),
        ([1, 2, 2, 1, 1], 3),
        ([3, 1, 2, 2, 1, 4], 3),
    ],
    given="lengths: {}, places: {}",
    play=leaving_alone("`lengths` belongs to the caller: count down in a copy.", as_rows),
    compared=first_step_that_differs,
    hint="Before each step, go over the places: if one is empty, or its request has had all its "
    "steps, the first that waits takes it. Go on until nobody waits and nobody has steps left.",
    errors={
        "had not returned": ENDLESS,
        "empty|out of range": "No entry is there. If nobody waits any more, the place stays None.",
        "NoneType": "An empty place has no steps to count down: ask `is None` first.",
    },
    wrong={
        "A static batch: its places wait for its longest. Fill a place once its request ends.": [
            in_static_batches,
            lambda lengths, places: in_static_batches(sorted(lengths), places),
            (  # who has ended stays in the row
                "enumerate(here): => "
                "enumerate(here * all(r is None or left[r] < 1 for r in here)):",
                "== 0 => < 1",
                "any(left) => max(left) > 0",
            ),
        ],
        "A place stands empty for a step after its request: fill it before the next step.": (
            "if waiting else => if waiting and request is None else"
        ),
        "When nobody waits any more, places still have steps left.": [
            " or any(left) => ",
            "return plan => return [row for row in plan if None not in row]",
        ],
        ONE_LIST: [
            "[*here]) => here)",
            (  # who has ended leaves the row: at the end nobody is there
                "[*here]) => here)",
                "-= 1 => -= 1; here[here.index(request)] = request if left[request] else None",
            ),
        ],
        "First come, first served: the lowest number that waits is next.": "pop(0) => pop()",
        "Nobody knows beforehand how long a text will be: first come, first served.": [
            "[*range(len(lengths))] => sorted(range(len(lengths)), key=lambda n: lengths[n])",
            "[*range(len(lengths))] => sorted(range(len(lengths)), key=lambda n: -lengths[n])",
        ],
        "Once its request has ended and nobody waits, a place is empty: None.": (
            "any(left) => max(left) > 0",
            "if waiting else None => if waiting else request",
        ),
        "A request of length n has n steps, neither more nor fewer.": [
            ("any(left) => max(left) >= 0", "== 0 => < 0"),
            ("any(left) => max(left) > 1", "== 0 => < 2"),
            "return plan => return plan[:-1]",
            ("any(left) => max(left) > 0", "== 0 => < 0"),
        ],
        "Request 0 is a request, too: ask `is None`.": [
            (
                "request is None or => not request or",
                "any(left) => any(left[r] for r in here if r)",
                *counting,
            )
            for counting in ((), ("if request is not None => if request",))
        ],
        "`lengths` belongs to the caller": "left, waiting = [*lengths] => left, waiting = lengths",
        "The first free place is filled first.": [
            "enumerate(here) => reversed([*enumerate(here)])",
            in_the_order_of_ending,
        ],
        "Two places are free: fill both before this step.": one_place_a_step,
        "One queue for all: a free place takes whoever waits the longest.": [
            a_queue_for_each_place,
            lambda *given: a_queue_for_each_place(*given, neighbours=True),
        ],
        "A request stays in its place until it ends: its cache lies there.": [
            "[*here] => sorted(here, key=lambda each: each is None)",
            "[*here] => sorted(here, key=lambda each: (each is None, each))",
            (  # a step for each in turn
                "if request is None or left[request] == 0: => if True:",
                "-= 1 => -= 1; waiting += [request] * (left[request] > 0)",
            ),
        ],
        "The first row is the first step, not the empty places before it.": (
            "* places, [] => * places, [[None] * places]"
        ),
        ENDLESS: never_ending,
        "None is what a function without return gives back.": "return plan => return None",
        "When all have ended, the plan ends.": "return plan => return plan + [[None] * places]",
        "Several places may be free: fill each of them before the step.": (
            "if waiting else => if waiting and waiting[0] <= len(plan) else"
        ),
        "A row for each step, not for each place.": "return plan => return [*zip(*plan)]",
        "A row has an entry for each place, None for an empty one.": [
            "[*here] => [each for each in here if each is not None]",
            "[*here] => [-1 if each is None else each for each in here]",
            "[*here] => [each or 0 for each in here]",
            "[*here] => ['' if each is None else each for each in here]",
        ],
        "In a row stand the numbers of the requests, from 0.": [
            *[
                f"[*here] => [each if each is None else {one} for each in here]"
                for one in ("left[each]", "lengths[each]", "each + 1", "str(each)")
            ],
            "[*here] => [each is not None for each in here]",
        ],
    },
    also_right=[
        ("plan.append([*here]) => yield [*here]", "return plan => "),
        "[*here] => tuple(here)",
        "pop(0) => pop(waiting.index(min(waiting)))",
    ],
)

# 3. Two groups in flight


def my_alternate(devices, first, second, starts, count):
    """Hand over all groups; hand each new token back at once.

    While you wait for one group at device 1, device 0 has another in its queue.
    """
    hidden = [devices[0].submit(first, group, tokens) for group, tokens in enumerate(starts)]
    written = [[] for _ in starts]
    for step in range(count):
        for group in range(len(starts)):
            new = devices[1].submit(second, group, hidden[group].result()).result()
            written[group].append(new)
            if step < count - 1:
                hidden[group] = devices[0].submit(first, group, new)
    return written


class World:
    """Two devices on a clock; a part takes one unit. Work runs late, when a result is asked for."""

    def __init__(self) -> None:
        self.now, self.here, self.free, self.end = 0, "the caller", [0, 0], 0
        self.threads, self.one_at_a_time = {threading.get_ident()}, threading.RLock()
        self.jobs, self.seen = Counter(), Counter()
        self.queues = deque(), deque()
        self.devices = [
            SimpleNamespace(submit=partial(self.submit, n), run=partial(self.run, n))
            for n in range(2)
        ]

    def submit(self, number, fn, /, *given):
        """Put it in the device's queue."""
        self.threads.add(threading.get_ident())
        job = Result(ready=self.now, work=partial(fn, *given), end=None)
        job.result = partial(self.wait, number, job)
        self.queues[number].append(job)
        return job

    def run(self, number, fn, /, *given):
        """Submit, then wait."""
        return self.submit(number, fn, *given).result()

    def wait(self, number, job, timeout=None):
        """Run the device's queue up to this job; the caller's clock moves to the job's end."""
        with self.one_at_a_time:
            while job.end is None:
                self.work(number)
            self.now = max(self.now, job.end)
            return job.value

    def work(self, number):
        """The device runs the first job of its queue."""
        caller, job = (self.now, self.here), self.queues[number].popleft()
        self.now, self.here = max(self.free[number], job.ready), f"device {number}"
        job.value = job.work()
        self.free[number] = job.end = self.now
        self.now, self.here = caller

    def part(self, name, factor, group, value):
        """What a device runs of the model: a unit of time, and numbers that tell the order."""
        self.jobs[f"{name} by {self.here}"] += 1
        self.seen[name, group] += 1
        self.now += 1
        self.end = max(self.end, self.now)
        return (value * factor + 7 * group + self.seen[name, group]) % 97


class Result(SimpleNamespace):
    """What a device will have computed, from when it was handed over."""


ANY_NUMBER = "There may be any number of groups: go over `starts`."


def in_flight(attempt, groups, count, requests):
    """The tokens of each group, who ran what how often, and when the last part ended."""
    world = World()
    starts = tuple(torch.arange(requests)[:, None] + 10 * group for group in range(groups))
    parts = partial(world.part, "first", 5), partial(world.part, "second", 3)
    written = attempt(world.devices, *parts, starts, count)
    for number in (0, 1):
        while world.queues[number]:
            world.work(number)
    if len(world.threads) > 1:
        raise NotYet("Write it in one thread: `submit` returns at once, so none has to wait.")
    if written is None:
        return None
    if isinstance(written, list | tuple) and len(written) > groups:
        raise NotYet(ANY_NUMBER)
    if astray := [*world.jobs.keys() - {"first by device 0", "second by device 1"}]:
        raise NotYet(
            f"There was: {', '.join(sorted(astray))}.",
            "Hand `first` to device 0, `second` to device 1: each has the weights of its part.",
        )
    try:
        joined = [torch.cat([*each], dim=1) for each in written]
    except (TypeError, ValueError, RuntimeError, IndexError):
        raise NotYet(
            "For each group a list of its `count` new tokens is asked, not one fewer: tensors as "
            "`second` gives them, after `.result()`."
        ) from None
    tokens = [each.tolist() for each in joined]
    return {"tokens": tokens, "who ran what": dict(world.jobs), "units of time": world.end}


check_alternate = Exercise(
    my_alternate,
    read_again='"Who works when?"',
    cases=[(2, 1, 1), (2, 3, 1), (1, 3, 2), (3, 2, 2), (2, 5, 3)],
    given="groups: {}, count: {}, requests in a group: {}",
    play=in_flight,
    compared=first_difference,
    hint="Go round the groups: each hands its newest tokens back before you wait for the next. "
    "The answer has, for each group, the `count` tokens that `second` gives.",
    errors={
        "'Result'": "`submit` gives a Result at once; the next part needs its `.result()`.",
        "unpack|out of range": ANY_NUMBER,
        "item assignment": "`starts` is the caller's: keep the newest tokens in a list of yours.",
        "missing|positional|callable": "It is `submit(first, group, tokens)`: the function itself.",
    },
    wrong={
        "One device waits while the other works: hand over another group before you wait, and hand "
        "hidden vectors on as they come, not when all are there.": [
            (
                "devices[0].submit(first, group, tokens) for => tokens for",
                "hidden[group].result() => devices[0].submit(first, group, hidden[group]).result()",
                "devices[0].submit(first, group, new) => new",
            ),
            "hidden[group].result() => [each.result() for each in hidden][group]",
        ],
        "Write it in one thread": (
            "hidden = [devices[0].submit(first, group, tokens) for group, tokens in "
            "enumerate(starts)] => hidden = []; thread = threading.Thread(target=lambda: "
            "hidden.extend(devices[0].submit(first, *each) for each in enumerate(starts))); "
            "thread.start(); thread.join()",
        ),
        "A device calls a function later, and a `lambda` reads its variables only then, when the "
        "loop has changed them. Hand over the values: `submit(first, group, tokens)`.": [
            "submit(first, group, tokens) for => submit(lambda: first(group, tokens)) for",
            "submit(first, group, new) => submit(lambda: first(group, new))",
        ],
        "Device 1 runs `second` once for each token.": (
            "return written => devices[1].submit(second, 0, hidden[0].result()); return written"
        ),
        NO_RETURN: "return written => return None",
        "`starts` is the caller's": "hidden = [ => starts[0] = starts[-1]; hidden = [",
        "All groups wait for the last one of each round: hand a new token back as it comes.": (
            "            if step < count - 1: =>         if step < count - 1:",
            "                hidden[group] = devices[0].submit(first, group, new) => "
            "            hidden = [devices[0].submit(first, *each) for each in enumerate(latest)]",
            "written[group].append(new) => written[group].append(new); "
            "latest = [each[-1] for each in written if each]",
        ),
        "After the last token nobody needs another `first`.": "if step < count - 1: => if True:",
        "Hand `first` to device 0, `second` to device 1": [
            "devices[1] => devices[0]",
            "devices[1].submit(second, group, hidden[group].result()).result() => "
            "second(group, hidden[group].result())",
        ],
        "Each group has a cache of its own: both parts need the group's number.": (
            "second, group, => second, 0,",
            "(first, group, => (first, 0,",
        ),
        "What goes in next is the new token that `second` gave, alone: caches have the others.": [
            "first, group, new => first, group, torch.cat([starts[group], *written[group]], dim=1)",
            "first, group, new => first, group, starts[group]",
            "first, group, new => first, group, hidden[group].result()",
            "first, group, new => first, group, torch.cat(written[group], dim=1)",
        ],
        ANY_NUMBER: "[[] for _ in starts] => [[], []]",
        "Each group has a list of its own, with all of its tokens.": [
            "return written => return [*zip(*written)]",
            "[[] for _ in starts] => [[]] * len(starts)",
            "return written => return [each[-1:] for each in written]",
        ],
        "Go round: one token of each group in turn, not one group to its end.": (
            "for step in range(count): => for each in starts:",
            "for group in range(len(starts)): => for step in range(count):",
            "for each in starts: => for group in range(len(starts)):",
        ),
        "Each group has `count` tokens, not one more.": [
            "(count): => (count + 1):",
            ("(count): => (count + 1):", "count - 1 => count"),
        ],
        "New tokens alone, not those that a group began with.": "[[] for _ => [[_] for _",
        "after `.result()`": [
            "return written => return [[hidden[g]] for g in range(len(starts))]",
            "range(count): => range(count - 1):",
        ],
    },
    also_right=[
        (  # device 1 waits itself for what device 0 will have computed
            "(second, group, hidden[group].result()) => "
            "(lambda g, coming: second(g, coming.result()), group, hidden[group])",
            "return written => return tuple(written)",
        )
    ],
)
