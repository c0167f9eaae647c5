"""Exercises of page `pipeline`: a ceiling, a cut graph, two queues and a step's time."""

import queue
import threading
from collections.abc import Callable, Sequence
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
    leaving_alone,
    same,
)
from mpcourse.exercises.turn_taking import Stuck
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule, one_f_one_b_schedule

# 1. The ceiling of unequal stages


def my_ceiling(stage_times, num_microbatches):
    """The first piece takes the sum of all stages. Each further one adds the slowest one's time."""
    one_device = num_microbatches * sum(stage_times)
    return one_device / (sum(stage_times) + (num_microbatches - 1) * max(stage_times))


SORTED = "The caller's list has changed: sorted() makes a new one, .sort() does not."


def simulated_ceiling(times, count, schedule=gpipe_schedule):
    costs = Costs([t / 3 for t in times], [t * 2 / 3 for t in times])
    return count * sum(times) / simulate(schedule(len(times), count), costs).makespan


check_ceiling = Exercise(
    my_ceiling,
    read_again='"How fast can two devices be at best?"',
    cases=[([2, 6], 6), ([6, 3, 3], 8), ([2, 7, 3, 4], 6), ([1, 2, 9], 1), ([4, 1, 1, 5, 2], 40)],
    given="stages that take {} and {} micro-batches",
    play=leaving_alone(SORTED),
    hint="One device needs the sum for every piece. In the pipeline the first piece needs the sum "
    "too; how long after it does the second come out?",
    wrong={
        "That is for equal stages: here the slowest sets the pace, the others wait for it.": (
            lambda t, m: len(t) * m / (m + len(t) - 1)
        ),
        SORTED: lambda t, m: (t.sort(), my_ceiling(t, m))[1],
        "The slowest stage sets the pace, wherever it stands.": [
            f"max(stage_times) => {a}"
            for a in ("stage_times[0]", "stage_times[-1]", "min(stage_times)")
        ],
        "That is the limit for endlessly many pieces: a pipeline fills and drains.": lambda t, m: (
            sum(t) / max(t)
        ),
        "So fast only if nothing ever waits.": [lambda t, m, f=f: f(m, len(t)) for f in (min, max)],
        "After the first piece come m - 1, not p - 1.": "num_microbatches - => len(stage_times) -",
        "Every slot counts as the slowest there; the first piece passes each stage in its own "
        "time.": lambda t, m: m * sum(t) / ((m + len(t) - 1) * max(t)),
        "One piece too many: the first is in the sum already.": " - 1 => ",
        "One device computes every piece: the sum counts m times.": [
            f"num_microbatches * => {times}" for times in ("", "(num_microbatches - 1) *")
        ],
        "That is 1F1B; asked is the order of all forwards first, then all backwards.": (
            lambda t, m: simulated_ceiling(t, m, one_f_one_b_schedule)
        ),
        "A stage takes stage_times[s] forward and backward together: on one device as well.": [
            lambda t, m, of=of: my_ceiling(t, m) * of for of in (3, 1 / 3, 1.5, 2 / 3, 2, 1 / 2)
        ],
        "Filling and draining make one wait together.": [
            f"s) + ( => s) * 2 {less}+ (" for less in ("- max(stage_times) ", "")
        ],
        "Asked is the speed-up, not how long, or in which share, a device works or waits.": [
            *(lambda t, m, of=of: abs(of - my_ceiling(t, m) / len(t)) for of in (0, 1)),
            lambda t, m: (len(t) - 1) / (m + len(t) - 1),
            lambda t, m: sum(t) - max(t),
            lambda t, m: (sum(t) - max(t)) / (sum(t) + (m - 1) * max(t)),
        ],
        "stage_times[s] is for a piece, not for the mini-batch: divide nothing by m.": (
            lambda t, m: m * my_ceiling(t, m)
        ),
        "The first piece passes each stage once: besides the slowest, all the others count.": [
            lambda t, m: m * sum(t) / (m * max(t) + t[0]),
            lambda t, m: m * sum(t) / (m * max(t) + t[-1]),
            lambda t, m: m * sum(t) / (m * max(t) + (len(t) - 1) * min(t)),
            lambda t, m: m * sum(t) / (m * max(t) + (0, *sorted(t))[-2]),
            lambda t, m: m * sum(t) / (m * max(t) + sum(t) * (1 - 1 / len(t))),
            lambda t, m: my_ceiling(t[:2], m),
        ],
        "Return one number: the quotient of the two times.": [
            lambda t, m: (m * sum(t), sum(t) + (m - 1) * max(t)),
            *(lambda t, m, n=n: f"{my_ceiling(t, m):.{n}f}" for n in (1, 2, 3)),
        ],
        "Asked is the time of one device over the pipeline's, and nothing is rounded.": [
            lambda t, m: 1 / my_ceiling(t, m),
            lambda t, m: m * sum(t) / my_ceiling(t, m),
            lambda t, m: m * sum(t) * (1 - 1 / my_ceiling(t, m)),
            lambda t, m: my_ceiling(t, m) * 100,
            *(lambda t, m, n=n: round(my_ceiling(t, m), n) for n in (0, 1, 2)),
            "one_device / => one_device //",
        ],
    },
    also_right=[simulated_ceiling],
)

# 2. A mini-batch in pieces, with the graph cut between two modules
NOT_CUT = "The graph is not cut: what back gets still hangs on front's graph. detach() it."
NO_LEAF = "What back gets asks for no gradient, so none arrives there: requires_grad_() it."
IN_PLACE = "front's output has lost its graph, by detach_() or no_grad(): detach() leaves it."
HANDED = "output is no loss. Hand it a gradient, after loss.backward(): output.backward(leaf.grad)."
SHAPE = "A gradient has the shape of its output: front gets what arrived at the leaf."
MSE, SHARE, ONES = nn.MSELoss(), "len(piece) / len(inputs)", "torch.ones_like(output)"
UNSCALED, SCALED_TWICE = f"{SHARE} => 1", f"leaf.grad => leaf.grad * {SHARE}"
OF_ONE = "loss.item() * len(inputs) / len(piece)"
RETAINED = ", retain_graph=True"
SECOND = "kept: => kept: loss.backward();"
NO_BACK = "        loss.backward()\n => "
LATER = (
    "total = 0.0 => total, kept = 0.0, []",
    "output.backward(leaf.grad) => kept.append((output, leaf))",
    "return total => for output, leaf in kept: output.backward(leaf.grad)\n    return total",
)
A_PIECE, CLEARED = " / len(inputs.split(split_size))", "front.zero_grad(); back.zero_grad()"
DIVIDED = (
    "return total => k = len(inputs.split(split_size))\n"
    "    for w in [*front.parameters(), *back.parameters()]: w.grad /= k\n    return total"
)
WHOLE_ONLY = (
    "total = 0.0 => n = len(inputs) // split_size * split_size\n"
    "    total, inputs, targets = 0.0, inputs[:n], targets[:n]"
)


def through_two(attempt: Callable, rows: int, size: int, loss_fn: Callable) -> dict:
    """The world of an attempt: what two small modules and their weights went through."""
    torch.manual_seed(rows)
    front = nn.Linear(3, 4, bias=False).double()
    back = nn.Sequential(nn.Tanh(), nn.Linear(4, 1, bias=False)).double()
    inputs = torch.randn(rows, 3).double()
    targets = inputs.sum(1, keepdim=True) * torch.arange(1.0, rows + 1)[:, None]
    weights = {"back": back[1].weight, "front": front.weight}
    before = [weight.detach().clone() for weight in weights.values()]
    order: list[str] = []
    made: list[Tensor] = []

    def noted(name: str, forward: Callable, value: Tensor) -> Tensor:
        order.append(f"{len(value)} rows in {name}")
        if name == "back" and not (value.is_leaf and value.requires_grad):
            raise NotYet(NO_LEAF if value.is_leaf else NOT_CUT)
        if any(value is output for output in made):
            raise NotYet(IN_PLACE)
        made.append(forward(value))
        return made[-1]

    for (name, weight), module in zip(weights.items(), (back, front), strict=True):
        module.train(rows % 2 > 0)
        weight.grad = torch.ones_like(weight)  # of a mini-batch before
        weight.register_hook(lambda _, name=name: order.append(f"backward of {name}"))
        module.forward = partial(noted, name, module.forward)
    loss = attempt(front, back, loss_fn, inputs, targets, size)
    if not all(map(torch.equal, weights.values(), before)):
        raise NotYet("the weights have changed: an optimizer's step is not part of this.")
    gradients = {f"gradient of {name}": weight.grad for name, weight in weights.items()}
    done = [*order]  # the hooks of has_graph go on with the other

    def has_graph(output: Tensor) -> bool:
        try:  # a backward once more
            torch.autograd.grad(output.sum(), [*weights.values()], allow_unused=True)
        except RuntimeError:
            return False
        return True

    left = {
        "the returned loss keeps a graph": getattr(loss, "requires_grad", False),
        "graphs that are kept after their backward": sum(map(has_graph, made)),
        "the inputs ask for a gradient": inputs.requires_grad,
        "stages in training mode": [front.training, back.training],
    }
    return {"order": done, **gradients, "loss": one_number(loss), **left}


def one_number(loss: Any) -> Any:
    return loss.item() if hasattr(loss, "item") else loss  # of a tensor or an array


def first_difference(outcome: dict, expected: dict) -> list[str]:
    name = next(name for name, right in expected.items() if not same(outcome[name], right))
    return [f"{name}:", *expected_and_got(outcome[name], expected[name])]


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


check_cut_graph = Exercise(
    my_cut_step,
    read_again='"Can each device run its own backward?"',
    cases=[(4, 2, MSE), (5, 2, MSE), (9, 4, nn.PoissonNLLLoss()), (3, 8, MSE)],
    given="{} rows and split_size {}",
    play=through_two,
    compared=first_difference,
    hint="Each piece goes through front and back, then back's backward, then front's. A piece of "
    "n rows out of N counts by n / N, its loss and so its gradient.",
    correct="No graph crosses the cut, and loss and gradients are those of the whole mini-batch.",
    wrong={
        "Each loss is a mean: added up they count too much. Scale before backward().": [
            UNSCALED,
            (UNSCALED, f"item() => item() * {SHARE}"),
            (UNSCALED, SCALED_TWICE),
        ],
        "Back's gradients lack the share: scale the loss, and front's gradients follow.": (
            (UNSCALED, SCALED_TWICE, f"item() => item() * {SHARE}")
        ),
        "A piece counts by its own rows, len(piece): the last may be short.": [
            UNSCALED + A_PIECE,
            "len(piece) / => split_size /",
        ],
        "chunk() takes the number of pieces, split() the rows of one.": ".split( => .chunk(",
        "The leaf's gradient carries the share already: hand it on as it is.": SCALED_TWICE,
        "Some pieces are missing: each counts, also a short last one.": [
            "    return total => " + 8 * " " + "return total",
            "output = f => if len(piece) < split_size: continue\n        output = f",
            WHOLE_ONLY,
            (WHOLE_ONLY, UNSCALED + A_PIECE),
        ],
        "zip() over targets gives single rows: split them as the inputs.": (
            "targets.split(split_size), strict=True => targets, strict=False"
        ),
        "loss_fn takes outputs first, then targets.": "back(leaf), answer => answer, back(leaf)",
        "Return the loss of the mini-batch: each piece's loss times its share, added up.": [
            "return total => return",
            "total += => total =",
            "return total => return total / len(inputs)",
            ("0.0 => []", "total += loss.item() => total.append(loss.item())"),
            f"+= loss.item() => = {OF_ONE}",
            "        total += loss.item()\n => ",
            *(f"loss.item() => {it}" for it in (OF_ONE, OF_ONE + A_PIECE, "loss.item()" + A_PIECE)),
        ],
        NOT_CUT: ".detach().requires_grad_() => ",
        NO_LEAF: ".requires_grad_() => ",
        IN_PLACE: [
            ".detach() => .detach_()",
            ("output = f => with torch.no_grad(): output = f", ".detach() => "),
        ],
        "Both backwards of a piece run before the next piece goes through front.": [
            LATER,
            (
                NO_BACK,
                *LATER,
                "loss.item() => loss",
                "for output => total.backward()\n    for output",
            ),
            (NO_BACK, *LATER, "leaf)) => leaf, loss))", "leaf in => leaf, loss in", SECOND),
            (
                "total = 0.0 => total, kept = 0.0, None",
                "output = f => new = f",
                "leaf = out => if kept: kept[0].backward(kept[1].grad)\n        output = new\n"
                "        leaf = out",
                "output.backward(leaf.grad) => kept = output, leaf",
                "return total => output.backward(leaf.grad)\n    return total",
            ),
        ],
        "A graph serves one backward: retain_graph=True keeps it in memory for nothing.": [
            "loss.backward() => loss.backward(retain_graph=True)",
            f"leaf.grad => leaf.grad{RETAINED}",
            ("s.backward() => s.backward(retain_graph=True)", f"leaf.grad => leaf.grad{RETAINED}"),
        ],
        "The inputs need no gradient: leave them as they are.": (
            "total = 0.0 => inputs.requires_grad_(); total = 0.0"
        ),
        "Leave the mode, train() or eval(), to the caller.": [
            f"total = 0.0 => {modes}; total = 0.0"
            for mode in ("eval()", "train()")
            for modes in (f"front.{mode}; back.{mode}", f"front.{mode}", f"back.{mode}")
        ],
        "Nothing is cut into pieces: split(split_size) gives pieces of so many rows.": (
            "inputs.split(split_size), targets.split(split_size) => [inputs], [targets]"
        ),
        "torch.autograd.grad() fills the .grad of no weight: loss.backward() does.": (
            "loss.backward() => (gradient,) = torch.autograd.grad(loss, leaf)",
            "leaf.grad => gradient",
        ),
        "The share is upside down: a piece's rows over the rows of all.": (
            f"{SHARE} => len(inputs) / len(piece)"
        ),
        "All shares add up to 1: each is a piece's rows over the rows of all.": [
            *(f"{SHARE} => {share}" for share in ("1 / len(inputs)", "len(piece)")),
            (f"{SHARE} => len(piece)", "return total => return total / len(inputs)"),
        ],
        "front runs once for each piece: go on with its output.": "output.b => front(piece).b",
        "front's backward begins with what arrived at the leaf: output.backward(leaf.grad).": [
            "output.backward(leaf.grad) => ",
            *(f"leaf.grad => {it}" for it in (ONES, f"{ONES} / output.numel()", "leaf")),
        ],
        "You cleared what stood in `.grad` before: the gradients are to be added to it.": [
            f"{at} => {cleared}; {at}"
            for at in ("total = 0.0", "output = f", "total +=")
            for cleared in (CLEARED, "front.zero_grad()", "back.zero_grad()")
        ],
        "At the end you also scaled what stood in `.grad` before: scale each loss instead.": [
            (UNSCALED, DIVIDED),
            (UNSCALED, DIVIDED + A_PIECE),
        ],
        "A loss that you add as a tensor keeps its graph in memory: add loss.item().": (
            "loss.item() => loss"
        ),
        HANDED: "leaf.grad => ",
        SHAPE: "leaf.grad => loss",
    },
    errors={
        "implicitly created": HANDED,
        "Mismatch in shape": SHAPE,
        "does not require grad": "A backward needs a graph: use no no_grad(), and detach once.",
        "size of tensor a": "Each piece has targets of its own: split them as the inputs.",
        "a second time": "A graph serves one backward: back's starts at loss, front's at output.",
    },
    also_right=[
        "output.detach() => output.clone().detach()",
        "return total => return torch.tensor(total).numpy()",
    ],
)

# 3. Two programs and two queues
NO_WAIT = "get() waits until something is there: call it plainly, and look for nothing before."
HANDED_ON = (
    "`features` carries what A's forward returns, `gradients` what B's backward returns; a queue "
    "hands out what was put in first, the oldest. Both devices number the pieces from 0."
)
NUMBER_FIRST = "stage.backward takes the piece's number first, then the gradient (on A)."
SWAPPED = "check_two_queues takes the first device's program first; each has the stub's arguments."
B_WAITS = (
    "A waits for a gradient, and B has sent none: B runs each backward right after its forward."
)
B_GETS = (
    "B waits for a gradient, but gradients go from B to A: its backward takes the number alone."
)
A_GETS = "B puts what its backward returns; hand what gradients.get() returns to A's backward."
BENCH = [Worker("device A of the check"), Worker("device B of the check")]
AT_ONCE = "A puts each output before it does anything else: B waits for it meanwhile."
OLDEST = "The first gradient is piece 0's: A's first backward is B0, once `ahead` pieces are kept."
FEWER = "Pieces are numbered 0 to len(pieces) - 1; there may be fewer of them than `ahead`."
NEWEST = "min(number, len(pieces)) - 1"
B_LAST = (
    "            gradients.put(stage.backward(number))\n => ",
    "return total => for number in range(len(answers)): gradients.put(stage.backward(number))\n"
    "        return total",
)
DO = "gradients, ahead): => gradients, ahead):\n        "


class Post(queue.Queue):
    """A queue that knows of the other one, so that a wait without end is no wait."""

    def __init__(self, world: SimpleNamespace) -> None:
        super().__init__()
        self.world, self.puts = world, 0
        self.not_full = self.not_empty = world.changed  # which put() notifies

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for an item; raise `Stuck` where nobody is left to send one."""
        if not block or timeout is not None:
            raise NotYet(NO_WAIT)
        world = self.world
        with world.changed:
            world.awaited.append(self)
            world.changed.notify_all()
            world.changed.wait_for(
                lambda: self.queue or sum(not post.queue for post in world.awaited) >= world.running
            )
            if not self.queue:
                raise Stuck(self)
            world.awaited.remove(self)
            return super().get()

    def _put(self, item: Any) -> None:
        self.puts += 1
        super()._put(item)

    def empty(self) -> bool:
        """Whoever looks first depends on how fast the other one is."""
        raise NotYet(NO_WAIT)

    qsize = full = empty


class NotingStage:
    """A stage of no layers: it checks what it is handed, and notes in which order."""

    def __init__(self, pieces: Sequence[Tensor], is_first: bool, features: Post) -> None:
        self.pieces, self.is_first, self.noted, self.shares = pieces, is_first, [], []
        self.features, self.late = features, False
        self.kept: dict[int, Tensor] = {}

    def forward(self, number: int, value: Any, answer: Any = None, share: float = 1.0) -> Tensor:
        """Features for device B; on B the loss."""
        self._look_for_late_features()
        self.noted.append(f"F{number}")
        self._refuse_other(f"F{number}", value, self.pieces[number] * (2 - self.is_first))
        self.kept[number] = value
        if self.is_first:
            return value * 2
        if answer is None:
            raise NotYet("B's forward also needs the answer and its share.")
        self.shares.append(float(share))
        return share * (value.sum(1) - answer).abs().mean()

    def backward(self, number: int, gradient: Any = None) -> Tensor:
        """On B, the gradient for device A."""
        self._look_for_late_features()
        if isinstance(number, Tensor):
            raise NotYet(NUMBER_FIRST)
        if self.is_first and number < 0:
            raise NotYet(FEWER)
        if self.noted.count(f"F{number}") <= self.noted.count(f"B{number}"):
            raise NotYet(f"B{number} needs F{number} before it, and runs once.")
        if self.is_first and gradient is None:
            raise NotYet(A_GETS)
        if self.is_first and number and "B0" not in self.noted:
            raise NotYet(f"B{number} runs before B0.", OLDEST)
        self.noted.append(f"B{number}")
        self.kept.pop(number, None)
        sent = self.pieces[number] * 3
        if self.is_first:
            self._refuse_other(f"B{number} of device A", gradient, sent)
        elif gradient is not None:
            raise NotYet("B's output is a loss: its backward takes no gradient.")
        return sent

    def _look_for_late_features(self) -> None:
        made = sum(did.startswith("F") for did in self.noted)
        self.late |= self.is_first and self.features.puts < made

    @staticmethod
    def _refuse_other(what: str, value: Any, due: Tensor) -> None:
        if not isinstance(value, Tensor) or not torch.equal(value, due):
            raise NotYet(f"{what} did not get what belongs to this piece.", HANDED_ON)


def on_two_devices(programs: Any, rows: int, size: int, ahead: int) -> dict:
    """What each device did in which order, how each piece counted, and the loss."""
    if not isinstance(programs, tuple) or not all(map(callable, programs)):
        raise NotYet("Two functions: check_two_queues(my_first_device, my_second_device).")
    world = SimpleNamespace(changed=threading.Condition(), awaited=[], running=2)

    def carry_out(program: Callable, *given: Any) -> tuple:
        try:
            return program(*given), None
        except Exception as error:
            return None, error
        finally:
            with world.changed:  # whoever waits for this program looks up
                world.running -= 1
                world.changed.notify_all()

    queues = Post(world), Post(world)
    pieces = torch.arange(1.0, 2 * rows + 1).reshape(rows, 2).split(size)
    answers = (torch.arange(rows) ** 2).split(size)
    a, b = (NotingStage(pieces, is_first, queues[0]) for is_first in (True, False))
    first = BENCH[0].submit(carry_out, programs[0], a, pieces, *queues, ahead)
    second = BENCH[1].submit(carry_out, programs[1], b, answers, *queues)
    results, errors = zip(*collect([first, second]), strict=True)
    stubs = [result is ... for result in results]
    if all(stubs):
        raise NotAttempted
    did = {"device A": " ".join(a.noted), "device B": " ".join(b.noted)}
    if real := [error for error in errors if error and not isinstance(error, Stuck)]:
        raise real[0]
    if any(stubs):
        name, other = sorted(did, reverse=stubs[1])
        start = " ".join(f"F{number}" for number in range(min(ahead, len(pieces))))
        raise NotYet(
            f"The program of {name} is not written yet; {other} did: {did[other] or 'nothing'}.",
            f"Asked of A before its first gradient: {start}.",
        )
    if any(errors):
        if b.noted and errors[1] and queues[1] in errors[1].args:
            raise NotYet(B_GETS)
        if b.noted and all(did.startswith("F") for did in b.noted):
            raise NotYet(B_WAITS)
        line = "; ".join(f"{name}: {order or 'nothing'}" for name, order in did.items())
        why = "Each get() needs a put() of the other: is one missing, or does a loop not end?"
        raise NotYet(f"It waits for ever. Done so far: {line}.", why)
    if a.late:
        raise NotYet(AT_ONCE)
    left = {"items left in the queues": sum(len(post.queue) for post in queues)}
    return {**did, "shares": b.shares, "loss": one_number(results[1]), **left}


def two_queues():
    """Backwards lag by `ahead` pieces. So A's loop is that many turns longer than its pieces."""

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


check_two_queues = Exercise(
    two_queues,
    read_again='"Two programs and two queues"',
    cases=[(6, 2, 2), (4, 2, 5), (9, 2, 3), (6, 2, 1), (12, 3, 4)],
    given="{} rows in pieces of {}, and ahead = {}",
    play=on_two_devices,
    compared=first_difference,
    hint="A runs the oldest piece's backward when it keeps `ahead` of them, B each backward right "
    "after its forward. A share is len(answer) over the rows of all pieces; losses are added up.",
    correct="Order, loss and gradients are right, and device A never keeps more than `ahead`.",
    wrong={
        "The answer is right, but nothing overlaps: A waits for each gradient.": DO + "ahead = 1",
        "That keeps all the pieces: A may keep at most `ahead`.": DO + "ahead = len(pieces)",
        "One piece too many: with `ahead` kept, first run the oldest backward.": DO + "ahead += 1",
        "`ahead` is an argument: it is not always 2.": DO + "ahead = 2",
        "Pieces are left: after the last forward device A still has gradients to fetch.": [
            f"+ ahead) => {turns})" for turns in ("", "+ ahead - 1")
        ],
        "Hand stage.forward the share, len(answer) / rows: the gradient has to be scaled too.": [
            *(f"len(answer) / rows => {share}" for share in ("1", "len(answer)")),
            ", len(answer) / rows) => ) * len(answer) / rows",
        ],
        "A share is the rows of a piece over those of all: the last piece may be smaller.": [
            "len(answer) / rows => 1 / len(answers)",
            "len(answer) / => len(answers[0]) /",
            "sum(map(len, answers)) => len(answers[0]) * len(answers)",
        ],
        "len(answers) counts pieces, not rows: add up each len(answer).": (
            "sum(map(len, answers)) => len(answers)"
        ),
        "The loss that stage.forward returns is scaled by its share already: add it as it is.": (
            "/ rows) => / rows) * len(answer) / rows"
        ),
        "Return one number: the losses of all pieces, added up.": [
            "total +=  => total = ",
            "return total => return",
            ("0.0 => []", "+= stage => += [stage", "/ rows) => / rows)]"),
        ],
        "Device B runs each backward in the turn of its forward.": (
            "gradients.put( => if number: gradients.put(",
            "backward(number)) => backward(number - 1))",
            "return total => gradients.put(stage.backward(number)); return total",
        ),
        B_WAITS: B_LAST,
        B_GETS: "stage.backward(number)) => stage.backward(number, gradients.get()))",
        "That is GPipe: A keeps all pieces, and B begins its backwards after its last forward.": (
            DO + "ahead = len(pieces)",
            *B_LAST,
        ),
        NO_WAIT: [
            *(f"gradients.get() => gradients.get(timeout={wait})" for wait in (0.01, 5)),
            ".get( => .get_nowait(",
        ],
        AT_ONCE: (
            DO + "late = []",
            "features.put(stage.forward(number, pieces[number])) => "
            "late.append(stage.forward(number, pieces[number]))\n"
            "                if len(late) == ahead or number == len(pieces) - 1:\n"
            "                    while late: features.put(late.pop(0))",
        ),
        "One backward makes room for one forward: do not empty the pipeline in between.": (
            "if number >= ahead => turn = range(number - ahead, min(number, len(pieces)))\n"
            "            for old in turn if number and number % ahead == 0 else ()",
            "number - ahead, gradients.get() => old, gradients.get()",
        ),
        "Each put() needs a get(): something is left in a queue.": (
            "return total => gradients.put(None); return total"
        ),
        OLDEST: [f"number - ahead => {NEWEST}", "number >= ahead => number > ahead"],
        HANDED_ON: (
            "features.put(stage.forward(number, pieces[number])) => "
            "stage.forward(number, pieces[number]); features.put(pieces[number])"
        ),
        A_GETS: [
            ", gradients.get()) => )",
            (
                "stage.backward(number - ahead, gradients.get()) => "
                "try: g = gradients.get(timeout=0.01)\n"
                "                except Exception: g = None\n"
                "                stage.backward(number - ahead, g)"
            ),
        ],
        "is not written yet;": [
            (lambda *_: ..., two_queues()[1]),
            (two_queues()[0], lambda *_: ...),
        ],
        NUMBER_FIRST: "number - ahead, gradients.get() => gradients.get()",
        FEWER: "number >= ahead => number >= min(ahead, len(pieces))",
        "It waits for ever.": "features.put( => (",
    },
    errors={
        "an index|argument: 'value'": "stage.forward takes the number first, then the piece.",
        "IndexError": FEWER,
        "argument: 'ahead'|takes 4 .* but 5": SWAPPED,
        "does not require grad": "A forward's result is detached: call stage.backward(number).",
        "no attribute 'layers'": "Call stage.forward and stage.backward, not the layers.",
    },
    also_right=[
        (".put(stage => .put_nowait(stage", "return total => features.task_done(); return total"),
        "return total => return total.numpy()",
        "number - ahead, => min(stage.kept),",
    ],
    values=True,
)

# 4. The time of a step, with two equal stages


def my_step_time(rows, size, fixed, per_sample):
    """A slot is half of a piece's time. Each device works in one slot a piece, and waits in one."""
    slot = (fixed + per_sample * size) / 2
    return (rows / size + 1) * slot


check_step_time = Exercise(
    my_step_time,
    read_again='"Which split size is best?"',
    cases=[(12, 2, 7, 2), (96, 16, 36.0, 18.0), (60, 60, 5, 1), (40, 2, 0.5, 0.1)],
    given="{} rows in pieces of {}, fixed {} and per_sample {}",
    hint="How many slots does each device need, with the one in which it waits? How long is one?",
    wrong={
        "Two stages share the time of a piece: all of it counts half in each.": [
            *(f" / 2 => {other}" for other in ("", " / 3")),
            "(fixed + per_sample * size) / 2 => fixed + per_sample * size / 2",
            "(fixed + per_sample * size) / 2 => fixed / 2 + per_sample * size",
        ],
        "A device has one slot a piece, and one in which it waits: rows / size + 1.": (
            "rows / size + 1 => 2 * rows / size + 1"
        ),
        "A time is no whole number: round nothing.": [
            *(
                f"(rows / size + 1) * slot => {cut}((rows / size + 1) * slot)"
                for cut in ("int", "round")
            ),
            " / 2 => // 2",
        ],
        "So fast only if nothing ever waits: each device waits in one slot.": " + 1) => )",
        "That is one device: two share the work.": [
            (" / 2 => ", " + 1) => )"),
            lambda rows, size, fixed, per_sample: fixed + per_sample * rows,
        ],
        "That pays the fixed time once, and waits in no slot: each piece pays it, and a device "
        "waits in one slot.": lambda rows, size, fixed, per_sample: (fixed + per_sample * rows) / 2,
        "Filling and draining make one slot of waiting together.": "+ 1 => + 2",
        "The slot of waiting comes on top of the work: one slot more, not one less.": "+ 1 => - 1",
        "Each piece pays the fixed time again, and so does the slot of waiting.": [
            "fixed + => 0 +",
            ("fixed + => 0 +", "1) * slot => 1) * slot + fixed"),
            ("fixed + => 0 +", "1) * slot => 1) * slot + fixed / 2"),
            "1) * slot => 1) * slot - fixed / 2",
        ],
        "A slot has the samples of one piece: `size` of them.": [
            f"per_sample * size => per_sample{rows}" for rows in ("", " * rows")
        ],
        "`size` is the rows of a piece: there are rows / size pieces.": [
            "rows / size => size",
            ("rows / size => size", "per_sample * size => per_sample * rows / size"),
        ],
        "Mind the brackets: a number of slots, times all of a slot's time.": [
            "(rows / size + 1) => rows / size + 1",
            "rows / size + 1 => rows / (size + 1)",
            lambda rows, size, fixed, per_sample: (rows / size + 1) * fixed + per_sample * size / 2,
        ],
        "Asked is the time of a step, not the speed-up.": lambda rows, size, *_: my_ceiling(
            [1, 1], rows / size
        ),
    },
    also_right=[lambda n, size, f, c: (n / size) * (f + c * size) / my_ceiling([1, 1], n / size)],
)
