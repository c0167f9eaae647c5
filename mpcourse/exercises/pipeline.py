"""Exercises of page `pipeline`: a ceiling, pieces, a cut graph, two queues, the best split."""

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.devices.workers import Worker, collect
from mpcourse.exercises.exercise import (
    Exercise,
    NotAttempted,
    NotYet,
    expected_and_got,
    raised,
    same,
    short,
)
from mpcourse.exercises.turn_taking import Stuck
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule

# 1. The ceiling of unequal stages


def my_ceiling(stage_times, num_microbatches):
    """The first micro-batch needs the sum of all stages, each further one the slowest stage.

    The slowest stage never waits within the forwards, nor within the backwards: behind it the
    others wait for its next output, before it they wait for its next gradient.
    """
    one_device = num_microbatches * sum(stage_times)
    return one_device / (sum(stage_times) + (num_microbatches - 1) * max(stage_times))


def simulated_ceiling(times, count, schedule=gpipe_schedule):
    forward, backward = [t / 3 for t in times], [t * 2 / 3 for t in times]
    pipeline = simulate(schedule(len(times), count), Costs(forward, backward)).makespan
    alone = simulate(gpipe_schedule(1, count), Costs(sum(forward), sum(backward))).makespan
    return alone / pipeline


def ceiling_in_fractions(times, count):
    return Fraction(count * sum(times), sum(times) + (count - 1) * max(times))


check_ceiling = Exercise(
    my_ceiling,
    read_again='"How fast can two devices be at best?"',
    cases=[
        ([2, 6], 4),
        ([3, 3], 5),
        ([6, 3, 3], 8),
        ([2, 7, 3, 4], 6),
        ([5], 4),
        ([1, 2, 9], 1),
        ([4, 1, 1, 5, 2], 40),
    ],
    given="stages that take {} and {} micro-batches",
    hint="One device needs the sum for every piece. In the pipeline the first piece needs the sum "
    "too; how long after it does the second come out?",
    wrong={
        "That is for equal stages: here the slowest sets the pace, the others wait for it.": (
            lambda t, m: len(t) * m / (m + len(t) - 1)
        ),
        "That needs equal stages, all at work all the time.": lambda t, m: len(t),
        "That is for endless cutting: the pipeline fills up and drains too.": (
            lambda t, m: sum(t) / max(t)
        ),
        "Every slot counts as the slowest there; the first piece passes each stage in its own "
        "time.": lambda t, m: m * sum(t) / ((m + len(t) - 1) * max(t)),
        "// rounds down: divide by /.": [
            "one_device / ( => one_device // (",
            lambda t, m: round(my_ceiling(t, m)),
        ],
        "Right, but rounded: hand back all digits.": lambda t, m: round(my_ceiling(t, m), 2),
        "One piece too many: the first is in the sum already.": " - 1 => ",
        "One device computes every piece: the sum counts m times.": "num_microbatches * => ",
        "That is 1F1B; asked is the order of all forwards first, then all backwards.": (
            lambda t, m: simulated_ceiling(t, m, one_f_one_b_schedule)
        ),
        "The slowest stage sets the pace: that is the fastest.": "max => min",
        "The slowest stage need not be the first one, or the last.": [
            "max(stage_times) => stage_times[0]",
            "max(stage_times) => stage_times[-1]",
        ],
        "That is the share of the devices' time in use; times p it is the speed-up.": (
            lambda t, m: my_ceiling(t, m) / len(t)
        ),
        "That is the bubble: the idle share of the devices.": (
            lambda t, m: 1 - my_ceiling(t, m) / len(t)
        ),
        "Upside down: the time of one device over the pipeline's time.": (
            lambda t, m: 1 / my_ceiling(t, m)
        ),
        "That is the pipeline's time; one device's over it is asked.": (
            lambda t, m: sum(t) + (m - 1) * max(t)
        ),
        "how long after it does the second come out?": lambda t, m: 2.0 * len(t) * m,
    },
    also_right=[
        simulated_ceiling,
        ceiling_in_fractions,
        "one_device = => stage_times = torch.tensor(stage_times).double(); one_device =",
    ],
)

# 2 and 3. A mini-batch in pieces, through one module or through two with the graph cut between

COUNTS_BY = "A piece of n rows out of N counts by n / N, its loss and so its gradient."
NO_GRADIENT = "no gradient arrived in {}: call backward() on every piece's loss."
NOT_CUT = "The graph is not cut: what back gets still hangs on front's graph. detach() it."
NO_LEAF = "What back gets asks for no gradient, so none arrives there: requires_grad_() it."
A_COPY = "What back gets is a copy of the leaf: clone() before detach().requires_grad_()."
NOTHING_HANDED_ON = (
    "front got no gradient. Keep its output, from before detach(), beside the leaf, and hand it "
    "what arrives there: output.backward(leaf.grad)."
)
LEAF_IS_EMPTY = "leaf.grad is None until loss.backward() has run: hand it to output.backward after."
AGAIN = "A graph serves one backward: back's begins at the loss, front's at its own output."
FROM_A_NUMBER = "A backward begins at a number, or is handed a gradient: out.backward(leaf.grad)."
OPTIMIZER = "the weights have changed: an optimizer's step is not part of this."
DTYPE = "the weights are {} now: leave the model as precise as it is."
ROWS_A_PIECE = "split_size counts the rows of a piece, as in inputs.split(split_size)."
CALL_IT = "Call {} itself on every piece, not the layers in it."
LOST_ROWS = "The last piece may be smaller, but its rows count."
ONCE = "Each piece goes through once."
UNSCALED = "len(piece) / len(inputs) => 1"
ALIKE = UNSCALED + " / len(inputs.split(split_size))"
ADDED_UP = "Each loss is a mean: added up they count too much. Scale before backward()."
MEAN_OF_MEANS = "Mean of means: a short piece counts as much as a full one."
TOO_LATE = (
    "A piece's graph is kept while the next piece is computed. "
    "Run each piece's backward before the next one's forward."
)
CLEARED = "You cleared what stood in `.grad` before: the gradients are to be added to it."
OLD_TOO = "What stood in `.grad` before has changed too: leave it, scale each loss, add to it."
FLOAT32 = "Right to seven digits only: somewhere the numbers pass through float32."
HAND_OVER = (
    "back's gradients are right. Each output.backward(...) gets its own leaf.grad as it is: "
    "scaling the loss scales it, too."
)
OWN_LOSS = "Here loss_fn is no squared error: call the loss_fn that is handed in."


PIECES = [(4, 2, nn.MSELoss()), (5, 2, nn.MSELoss()), (9, 4, nn.L1Loss()), (3, 8, nn.MSELoss())]


def in_pieces(*modules: nn.Module) -> Callable:
    """The world of an attempt: small modules in double precision that note what goes in.

    The outcome is the loss and the gradient of each module, which has one weight.
    """

    def play(attempt: Callable, rows: int, size: int, loss_fn: Callable) -> dict:
        names = ["front", "back"] if len(modules) > 1 else ["model"]
        generator = torch.Generator().manual_seed(rows)
        own = copy.deepcopy(modules)
        weights = [next(module.double().parameters()) for module in own]
        for weight in weights:
            weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.double)
            weight.grad = torch.ones_like(weight)  # of a mini-batch before
        before = [weight.detach().clone() for weight in weights]
        inputs = torch.randn(rows, 3, generator=generator, dtype=torch.double)
        targets = inputs.sum(1, keepdim=True) * torch.arange(1.0, rows + 1)[:, None]
        seen: dict[str, list[Tensor]] = {name: [] for name in names}
        backwards: dict[str, list[int]] = {name: [] for name in names}  # pieces in by then
        late: list[str] = []  # where a piece came in while another one's backward was due

        def came(name: str, forward: Callable, input: Tensor) -> Tensor:
            late.extend([name] * (len(backwards[name]) < len(seen[name])))
            seen[name].append(input)
            return forward(input)

        for name, module, weight in zip(names, own, weights, strict=True):
            weight.register_hook(lambda _, name=name: backwards[name].append(len(seen[name])))
            module.forward = partial(came, name, module.forward)  # model.forward(x) will do
        try:
            loss = attempt(*own, loss_fn, inputs, targets, size)
        except RuntimeError as error:
            if "implicitly created" not in str(error):
                raise
            at_cut = seen.get("back", [])  # without a leaf its .grad was handed on: None
            empty = len(own) > 1 and all(leaf.grad is None for leaf in at_cut if leaf.is_leaf)
            why = not_cut(at_cut) or (LEAF_IS_EMPTY if empty else FROM_A_NUMBER)
            raise NotYet(raised(error), why) from None
        for weight, old in zip(weights, before, strict=True):
            if weight.dtype != old.dtype:
                raise NotYet(DTYPE.format(weight.dtype))
            if not torch.equal(weight.detach(), old):
                raise NotYet(OPTIMIZER)
        wanted = [len(piece) for piece in inputs.split(size)]
        for name, pieces in seen.items():
            sizes = [len(piece) for piece in pieces]
            if sizes != wanted:
                line = f"expected pieces of {wanted} rows, the {name} saw {sizes}"
                why = ONCE if sum(sizes) > rows else ROWS_A_PIECE
                why = LOST_ROWS if sum(sizes) < rows else why
                raise NotYet(line, why if sizes else CALL_IT.format(name))
        if words := not_cut(seen.get("back", [])):
            raise NotYet(words)
        for name, weight in zip(names, weights, strict=True):
            if weight.grad is None:
                raise NotYet(CLEARED)
            if torch.equal(weight.grad, torch.ones_like(weight)):
                raise NotYet(NOTHING_HANDED_ON if name == "front" else NO_GRADIENT.format(name))
        if backwards[names[-1]][:1] == [len(wanted)] != [1]:
            raise NotYet(TOO_LATE)
        gradients = {f"gradient of {name}": w.grad for name, w in zip(names, weights, strict=True)}
        return {**gradients, "loss": loss, "late": bool(late)}

    return play


def not_cut(pieces: list[Tensor]) -> str:
    for piece in pieces:
        if not piece.is_leaf:
            [before, _], *_ = piece.grad_fn.next_functions
            return A_COPY if "AccumulateGrad" in str(before) else NOT_CUT
        if not piece.requires_grad:
            return NO_LEAF
    return ""


def exactly_same(outcome: dict, expected: dict) -> bool:
    """Gradients to nine digits, so that a detour through float32 shows."""
    alike = all(same(outcome[name], expected[name]) for name in ("loss", "late"))
    return alike and not wrong_gradients(outcome, expected)


def wrong_gradients(outcome: dict, expected: dict) -> list[str]:
    return [
        name
        for name, right in expected.items()
        if "gradient" in name and not torch.allclose(outcome[name], right, rtol=1e-9, atol=1e-12)
    ]


def first_difference(outcome: dict, expected: dict) -> list[str]:
    name, *_ = [*wrong_gradients(outcome, expected), "loss"]
    if same(outcome[name], expected[name]) and name == "loss":
        return []
    right_so_far = "the gradients are right; " if name == "loss" else ""
    line = f"{right_so_far}expected the {name} {short(expected[name])}"
    return [line, f"got {short(outcome[name])}"]


def what_counts(outcome: dict, expected: dict) -> str:
    wrong = wrong_gradients(outcome, expected)
    if not wrong:
        return TOO_LATE * outcome["late"]
    if same(outcome, expected):
        return FLOAT32
    gaps = [outcome[name] - expected[name] for name in wrong]
    if all(torch.allclose(gap, gap.mean(), rtol=1e-6, atol=0) for gap in gaps):  # it was 1
        return OLD_TOO
    if wrong == ["gradient of front"]:
        return HAND_OVER
    return COUNTS_BY


def my_step(model, loss_fn, inputs, targets, split_size):
    """Scale each piece's mean loss by its share of the rows. Then let the gradients add up."""
    total = 0.0
    pieces = zip(inputs.split(split_size), targets.split(split_size), strict=True)
    for piece, answer in pieces:
        loss = loss_fn(model(piece), answer) * len(piece) / len(inputs)
        loss.backward()
        total += loss.item()
    return total


def by_the_engine(model, loss_fn, inputs, targets, size):
    pipeline = Pipeline([nn.Sequential(model)], ["cpu"], microbatch_size=size)
    return pipeline.step(inputs, targets, loss_fn, reduction="mean")


check_pieces = Exercise(
    my_step,
    read_again='"What does a short piece count?"',
    cases=PIECES,
    given=lambda rows, size, loss_fn: f"{rows} rows and split_size {size}",
    play=in_pieces(nn.Linear(3, 1, bias=False)),
    same=exactly_same,
    compared=first_difference,
    hint=what_counts,
    correct="Loss and gradients are those of the whole mini-batch, ragged or not.",
    wrong={
        ADDED_UP: UNSCALED,
        MEAN_OF_MEANS: ALIKE,
        "Only the last piece is left: do not clear the gradients between pieces.": [
            ("loss = => total and model.zero_grad(); loss =", UNSCALED),
            "loss = => total and model.zero_grad(); loss =",
            "loss = => model.zero_grad(); loss =",
        ],
        CLEARED: "total = 0.0 => total = 0.0; model.zero_grad()",
        OLD_TOO: (UNSCALED, "return total => next(model.parameters()).grad /= 2; return total / 2"),
        TOO_LATE: [
            ("loss.backward() => ", "loss.item() => loss", "return => total.backward(); return"),
            (
                "total = 0.0 => total, kept = 0.0, []",
                "loss.backward() => kept.append(loss); len(kept) > 1 and kept.pop(0).backward()",
                "return total => kept[0].backward(); return total",
            ),
        ],
        "Only the first piece is there: call backward() for every piece.": [
            "loss.backward() => total or loss.backward()",
            ("loss.backward() => total or loss.backward()", UNSCALED),
        ],
        OWN_LOSS: "loss_fn(model(piece), answer) => ((model(piece) - answer) ** 2).mean()",
        LOST_ROWS: "in pieces => in list(pieces)[:-1]",
        ROWS_A_PIECE: [
            ".split(split_size) => .split(len(inputs))",
            ".split(split_size) => .chunk(split_size)",
        ],
        NO_GRADIENT.format("model"): "loss.backward() => ",
        "the gradients are right; expected the loss": [
            "return total => return 2 * total",
            "return total => ",
        ],
        OPTIMIZER: "return => torch.optim.SGD(model.parameters(), lr=0.1).step(); return",
        DTYPE.format(torch.float32): (
            "total = 0.0 => total = 0.0; model.float()",
            "model(piece), answer => model(piece.float()), answer.float()",
        ),
        FLOAT32: "model(piece), answer => model(piece).float(), answer.float()",
        COUNTS_BY: "/ len(inputs) => * 0.3",
    },
    also_right=[by_the_engine, "model(piece) => model.forward(piece)"],
)


def my_cut_step(front, back, loss_fn, inputs, targets, split_size):
    """The leaf ends back's graph and catches the gradient. With it front's own backward begins."""
    total = 0.0
    pieces = zip(inputs.split(split_size), targets.split(split_size), strict=True)
    for piece, answer in pieces:
        output = front(piece)
        leaf = output.detach().requires_grad_()
        loss = loss_fn(back(leaf), answer) * len(piece) / len(inputs)
        loss.backward()
        output.backward(leaf.grad)
        total += loss.item()
    return total


def by_asking_for_gradients(front, back, loss_fn, inputs, targets, size):
    total = 0.0
    for x, y in zip(inputs.split(size), targets.split(size), strict=True):
        output, share = front(x), len(x) / len(inputs)
        leaf = output.clone().detach().requires_grad_(True)
        weights = list(back.parameters())
        loss = loss_fn(back(leaf), y)
        at_the_cut, *gradients = torch.autograd.grad(loss, [leaf, *weights])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = share * gradient + (0 if weight.grad is None else weight.grad)
        output.backward(share * at_the_cut)
        total += share * loss.item()
    return total


def cut_by_the_engine(front, back, loss_fn, inputs, targets, size):
    stages = [nn.Sequential(front), back]
    pipeline = Pipeline(stages, ["cpu:0", "cpu:1"], "naive", microbatch_size=size)
    return pipeline.step(inputs, targets, loss_fn, reduction="mean")


check_cut_graph = Exercise(
    my_cut_step,
    read_again='"Can each device run its own backward?"',
    cases=PIECES,
    given=check_pieces.given,
    play=in_pieces(
        nn.Linear(3, 4, bias=False), nn.Sequential(nn.Tanh(), nn.Linear(4, 1, bias=False))
    ),
    same=exactly_same,
    compared=first_difference,
    hint=what_counts,
    correct="No graph crosses the cut, and loss and gradients are those of the whole mini-batch.",
    wrong={
        NOT_CUT: [
            (".detach().requires_grad_() => ", "output.backward(leaf.grad) => "),
            "detach().requires_grad_() => clone()",
        ],
        A_COPY: ".requires_grad_() => .requires_grad_().clone()",
        CLEARED: "total = 0.0 => total = 0.0; front.zero_grad(); back.zero_grad()",
        NO_LEAF: [
            (".requires_grad_() => ", "output.backward(leaf.grad) => "),
            ".requires_grad_() => ",
        ],
        NOTHING_HANDED_ON: ["output.backward(leaf.grad) => ", "leaf = => leaf = output ="],
        "Only the last piece is there: keep one output per piece.": (
            "output.backward(leaf.grad) => ",
            "return total => output.backward(leaf.grad); return total",
        ),
        ADDED_UP: UNSCALED,
        MEAN_OF_MEANS: ALIKE,
        FROM_A_NUMBER: "leaf.grad => ",
        AGAIN: "output.backward(leaf.grad) => loss.backward()",
        LEAF_IS_EMPTY: [
            "loss.backward() => output.backward(leaf.grad); loss.backward()",
            ".requires_grad_() => .requires_grad_(); output.backward(leaf.grad)",
        ],
        HAND_OVER: ["leaf.grad => torch.ones_like(output)", "leaf.grad => leaf.grad / 2"],
        CALL_IT.format("back"): "back(leaf) => back[1](back[0](leaf))",
        ONCE: "total = 0.0 => total = 0.0; front(inputs)",
        TOO_LATE: (
            "total = 0.0 => outputs, total = [front(x) for x in inputs.split(split_size)], 0.0",
            "front(piece) => outputs.pop(0)",
        ),
        ROWS_A_PIECE: lambda front, back, loss_fn, x, y, size: loss_fn(back(front(x)), y),
        "expected pieces of [2, 2] rows, the front saw []": lambda *_: None,
    },
    errors={"a second time": AGAIN},
    also_right=[by_asking_for_gradients, cut_by_the_engine],
)

# 4. Two programs and two queues

OVERLAP_GONE = "The answer is right, but nothing overlaps: A waits for each gradient at once."
ALL_FORWARDS = "That keeps all the pieces: device A may keep at most `ahead`."
ONE_TOO_MANY = "One piece too many: at `ahead` kept pieces, first run the oldest one's backward."
ONE_TOO_FEW = "One piece too few: device A runs a backward though it may go one further ahead."
SAME_SHARES = "A piece counts by its rows, not as one of so many pieces."
NO_LOSS = "my_second_device returns nothing: the loss of the mini-batch is asked."
NEEDS_GRADIENT = "A's backward begins at what B has sent: stage.backward(number, gradients.get())."
IS_A_LOSS = "B's output is a loss: its backward takes no gradient."
NEEDS_ANSWER = "B's forward also needs the answer and its share: forward(number, x, answer, share)."
NOT_FEATURES = "Into `features` goes what A's forward returns, and nothing else."
DETACHED = "What a stage's forward returns is detached: call stage.backward(number)."
NOT_A_GRADIENT = "Into `gradients` goes what B's backward returns, the gradient at its leaf."
OWN_QUEUE = "A program gets from the queue that the other one puts into, not from its own."
NO_WAIT = "get() waits until something is there: call it plainly, and look for nothing before."
NO_DIVISION = "Each loss is scaled by its share already: add them up as they are."
ROWS_NOT_PIECES = (
    "len(answers) counts pieces: the share is len(answer) over the rows of all pieces."
)
SHORT_LAST = "The last piece may be short: add up the rows of all pieces, sum(map(len, answers))."
STUCK = "Each get() needs a put() of the other program: who puts in what is waited for?"
TWO_FUNCTIONS = "Two functions: check_two_queues(my_first_device, my_second_device)."
FEW_PIECES = "There may be fewer pieces than `ahead`: go no further than len(pieces)."
SWAPPED = "check_two_queues takes the first device's program first; each has the stub's arguments."
OTHER_PIECE = "That belongs to another piece: a queue hands out what was put in first."


class Post:
    """A queue that knows of the other one, so that a wait without end is no wait."""

    def __init__(self, world: SimpleNamespace) -> None:
        self.world, self.items, self.senders = world, deque(), set()

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        """Hand over, and wake who waits."""
        with self.world.changed:
            self.senders.add(threading.current_thread())
            self.items.append(item)
            self.world.changed.notify_all()

    put_nowait = put

    def task_done(self) -> None:
        """Nobody waits until all is done."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for an item; raise `Stuck` where nobody is left to send one."""
        if not block:
            raise NotYet(NO_WAIT)
        world = self.world
        with world.changed:
            if threading.current_thread() in self.senders:
                raise NotYet(OWN_QUEUE)
            world.awaited.append(self)
            while not self.items:
                if sum(not post.items for post in world.awaited) >= world.running:
                    world.changed.notify_all()
                    raise Stuck
                world.changed.wait()
            world.awaited.remove(self)
            return self.items.popleft()

    def get_nowait(self) -> Any:
        """Whoever does not wait, or looks first, depends on how fast the other one is."""
        raise NotYet(NO_WAIT)

    empty = qsize = full = get_nowait


class NotingStage:
    """A stage of no layers: it checks what it is handed, and notes in which order."""

    def __init__(self, pieces: Sequence[Tensor], is_first: bool) -> None:
        self.pieces, self.is_first, self.noted, self.shares = pieces, is_first, [], []
        self.kept: dict[int, Tensor] = {}

    def forward(self, number: int, value: Any, answer: Any = None, share: float = 1.0) -> Tensor:
        """Features for device B; on B the loss."""
        self.noted.append(f"F{number}")
        due = [piece * (2 - self.is_first) for piece in self.pieces]
        known = [isinstance(value, Tensor) and torch.equal(value, each) for each in due]
        if not known[number]:
            line = f"F{number} got other rows than piece {number}'s."
            raise NotYet(line, OTHER_PIECE if self.is_first or any(known) else NOT_FEATURES)
        self.kept[number] = value
        if self.is_first:
            return value * 2
        if answer is None:
            raise NotYet(NEEDS_ANSWER)
        self.shares.append(float(share))
        return share * (value.sum(1) - answer).abs().mean()

    def backward(self, number: int, gradient: Any = None) -> Tensor:
        """On B, the gradient for device A."""
        if self.kept.pop(number, None) is None:
            raise NotYet(f"B{number} needs F{number} before it, and runs once.")
        self.noted.append(f"B{number}")
        sent = [piece * 3 for piece in self.pieces]
        if not self.is_first and gradient is not None:
            raise NotYet(IS_A_LOSS)
        if self.is_first and gradient is None:
            raise NotYet(NEEDS_GRADIENT)
        known = [isinstance(gradient, Tensor) and torch.equal(gradient, each) for each in sent]
        if self.is_first and not known[number]:
            line = f"B{number} of device A got no gradient of piece {number}."
            raise NotYet(line, OTHER_PIECE if any(known) else NOT_A_GRADIENT)
        return sent[number]


BENCH = [Worker("device A of the check"), Worker("device B of the check")]


def on_two_devices(programs: Any, rows: int, size: int, ahead: int) -> dict:
    """What each device did in which order, how each piece counted, and the loss."""
    if not isinstance(programs, tuple) or not all(map(callable, programs)):
        raise NotYet(TWO_FUNCTIONS)
    world = SimpleNamespace(changed=threading.Condition(), awaited=[], running=2)
    failed: list[Exception] = []

    def carry_out(program: Callable, *given: Any) -> Any:
        try:
            return program(*given)
        except Exception as error:
            failed.append(error)
        finally:
            with world.changed:  # whoever waits for this program looks up
                world.running -= 1
                world.changed.notify_all()

    queues = Post(world), Post(world)
    pieces = torch.arange(1.0, 2 * rows + 1).reshape(rows, 2).split(size)
    answers = (torch.arange(rows) ** 2).split(size)
    a, b = NotingStage(pieces, is_first=True), NotingStage(pieces, is_first=False)
    first = BENCH[0].submit(carry_out, programs[0], a, pieces, *queues, ahead)
    second = BENCH[1].submit(carry_out, programs[1], b, answers, *queues)
    results = collect([first, second])
    if ... in results:
        raise NotAttempted
    did = {"device A": " ".join(a.noted), "device B": " ".join(b.noted)}
    for error in failed:
        if "does not require grad" in str(error):
            raise NotYet(raised(error), DETACHED) from None
        if not isinstance(error, Stuck):
            raise error
    if failed:
        line = "; ".join(f"{name}: {order or 'nothing'}" for name, order in did.items())
        raise NotYet(f"It waits for ever. Done so far: {line}.", STUCK)
    loss = results[1]
    return {**did, "shares": b.shares, "loss": loss.item() if isinstance(loss, Tensor) else loss}


def two_queues():
    """A's loop is `ahead` turns longer than there are pieces: backwards lag by that many.

    With `ahead` as large as the number of pieces all forwards come first; with 2 a backward
    follows each further forward. B has no reason to wait: its backward follows its forward.
    """

    def my_first_device(stage, pieces, features, gradients, ahead):
        for number in range(len(pieces) + ahead):
            if number >= ahead:
                stage.backward(number - ahead, gradients.get())
            if number < len(pieces):
                features.put(stage.forward(number, pieces[number]))

    def my_second_device(stage, answers, features, gradients):
        rows, total = sum(map(len, answers)), 0.0
        for number, answer in enumerate(answers):
            total += stage.forward(number, features.get(), answer, len(answer) / rows)
            gradients.put(stage.backward(number))
        return total

    return my_first_device, my_second_device


def first_by_what_is_kept(stage, pieces, features, gradients, ahead):
    for number, piece in enumerate(pieces):
        if len(stage.kept) == ahead:
            stage.backward(number - ahead, gradient=gradients.get(timeout=60))
        features.put(stage.forward(number, piece))
    while stage.kept:
        stage.backward(min(stage.kept), gradients.get())


check_two_queues = Exercise(
    two_queues,
    read_again='"Two programs and two queues"',
    cases=[(6, 2, 2), (4, 2, 5), (9, 2, 3), (6, 2, 1), (12, 3, 4)],
    given="{} rows in pieces of {}, and ahead = {}",
    play=on_two_devices,
    compared=lambda outcome, expected: [
        line
        for name in expected
        if not same(outcome[name], expected[name])
        for line in (f"{name}:", *expected_and_got(outcome[name], expected[name]))
    ][:3],
    hint=lambda outcome, expected: (
        "How many pieces does A keep before it runs the oldest one's backward?"
        * (outcome["device A"] != expected["device A"])
    ),
    correct="Order, loss and gradients are right, and device A never keeps more than `ahead`.",
    wrong={
        OVERLAP_GONE: "gradients, ahead): => gradients, _):\n        ahead = 1",
        ALL_FORWARDS: "gradients, ahead): => gradients, _):\n        ahead = len(pieces)",
        ONE_TOO_MANY: ", ahead): => , ahead):\n        ahead += 1",
        ONE_TOO_FEW: ", ahead): => , ahead):\n        ahead = max(1, ahead - 1)",
        "Pieces are left: after the last forward device A still has gradients to fetch.": [
            "+ ahead) => + ahead - 1)",
            ("+ ahead) => )", "if number >= ahead: => if False:"),
        ],
        NEEDS_GRADIENT: ", gradients.get()) => )",
        NOT_A_GRADIENT: (
            "features.get(), answer => came := features.get(), answer",
            "gradients.put(stage.backward(number)) => stage.backward(number), gradients.put(came)",
        ),
        NOT_FEATURES: [
            "features.put(stage.forward(number, pieces[number])) => "
            "stage.forward(number, pieces[number]), features.put(pieces[number])",
            "pieces[number])) => pieces[number]).tolist())",
        ],
        DETACHED: "gradients.put(stage => total.backward(), gradients.put(stage",
        OWN_QUEUE: "gradients.get() => features.get()",
        OTHER_PIECE: (
            "number - ahead => len(pieces) - 1 - (number - ahead)",
            ", ahead): => , ahead):\n        ahead = len(pieces)",
        ),
        "Hand stage.forward the share, len(answer) / rows: the gradient has to be scaled too.": [
            "len(answer) / rows => 1",
            ", len(answer) / rows) => ) * len(answer) / rows",
        ],
        ROWS_NOT_PIECES: "/ rows => / len(answers)",
        NO_DIVISION: [
            "return total => return total / len(answers)",
            "return total => return total / rows",
            ", len(answer) / rows) => , len(answer) / rows) * len(answer) / rows",
        ],
        SHORT_LAST: "sum(map(len, answers)) => len(answers) * len(answers[0])",
        NO_WAIT: [
            "gradients.get() => gradients.get(block=False)",
            "gradients.get() => gradients.get_nowait()",
            "gradients.get() => gradients.empty() or gradients.get()",
        ],
        SAME_SHARES: "len(answer) / rows => 1 / len(answers)",
        "That is the loss of one piece: add all of them up.": "total +=  => total = ",
        NO_LOSS: "return total => ",
        NEEDS_ANSWER: ", answer, len(answer) / rows => ",
        IS_A_LOSS: "stage.backward(number)) => stage.backward(number, 1.0))",
        STUCK: [
            "features.put( => (",
            "gradients.put( => (",
            "    gradients.put( => for number in range(number + 1):\n            gradients.put(",
        ],
        TWO_FUNCTIONS: two_queues()[0],
        FEW_PIECES: "if number < len( => if number < ahead or number < len(",
        SWAPPED: two_queues()[::-1],
    },
    errors={"IndexError": FEW_PIECES, "argument: 'ahead'|takes 4 .* but 5": SWAPPED},
    also_right=[
        (first_by_what_is_kept, two_queues()[1]),
        ("+= stage.forward( => += 1 * stage.forward(", "return total => return total.item()"),
        (".put(stage => .put_nowait(stage", "return total => features.task_done(); return total"),
    ],
    values=True,
)

# 5. Choose the split without running


def my_split_size(sizes, num_samples, fixed, per_sample):
    """M micro-batches take m + 1 slots, each as long as one micro-batch in one stage.

    The best size lies near the square root of num_samples * fixed / per_sample.
    """

    def step(size):
        return (num_samples / size + 1) * (fixed + per_sample * size)

    return min(sizes, key=step)


def by_simulation(sizes, rows, fixed, each):
    def step(size):
        costs = Costs((fixed + each * size) / 3, (fixed + each * size) * 2 / 3)
        return simulate(one_f_one_b_schedule(2, rows // size), costs).makespan

    return sorted(sizes, key=step)[0]


check_split_size = Exercise(
    my_split_size,
    read_again='"What does a micro-batch cost?" and the curve',
    cases=[
        ([3, 6, 12, 24, 48], 48, 3.0, 1.0),
        ([6, 12, 24, 48, 96], 96, 0.0, 1.0),
        ([1, 3, 12], 12, 0.3, 1.0),  # the nearest to the square root is 1
        ([5, 10, 20, 40], 40, 250.0, 1.0),
        ([5, 10, 20, 40, 60, 120], 120, 12.0, 2.0),
        ([60, 20, 30, 10], 60, 0.5, 0.1),
        ([6, 8, 10, 12, 15, 20], 120, 1.2, 1.0),  # with another wait: 8 or 15
    ],
    given="sizes {}, {} samples, fixed cost {:g}, {:g} per sample",
    hint="m micro-batches through two equal stages take m + 1 slots of fixed + per_sample * size.",
    wrong={
        "That is the longest step; asked is the shortest.": "min => max",
        "The rule m >= 4p looks at the bubble only: what does a micro-batch cost?": (
            lambda sizes, rows, f, e: max((n for n in sizes if rows // n >= 8), default=min(sizes))
        ),
        "The smallest has the smallest bubble, but every micro-batch has its cost.": (
            lambda sizes, *_: min(sizes)
        ),
        "Best for one device: it pays the fixed cost least often. Nothing overlaps.": [
            lambda sizes, *_: max(sizes),
            " + 1 => ",
        ],
        "That is the number of micro-batches; asked is their size.": (
            lambda s, rows, f, e: rows // my_split_size(s, rows, f, e)
        ),
        "That is the time of the step; asked is the size that has it.": (
            "min(sizes, key=step) => min(map(step, sizes))"
        ),
        "That is the position in the list, not the size.": (
            lambda s, *costs: s.index(my_split_size(s, *costs))
        ),
        "One slot too many: each of two devices waits for one slot, not for two.": "+ 1 => + 2",
        "The fixed cost counted twice, or half a slot too few: each device waits for one slot.": [
            "+ 1 => + 0.5",
            "(fixed + => (2 * fixed +",
        ],
        "Nearest to the square root by difference; the curve is even in ratios: compare the steps "
        "themselves.": lambda sizes, rows, f, e: min(
            sizes, key=lambda size: abs(size - (rows * f / e) ** 0.5)
        ),
        "The square root lies between two sizes, and either may be better: compare the steps.": [
            lambda s, n, f, e: min((z for z in s if z * z * e >= n * f), default=max(s)),
            lambda s, n, f, e: max((z for z in s if z * z * e <= n * f), default=min(s)),
        ],
        "m micro-batches through two equal stages": lambda s, rows, f, e: (
            100 + (rows * f / e) ** 0.5
        ),
    },
    also_right=[by_simulation],
)
