"""Exercises of page `does_it_fit`: largest batch, live and saved bytes, a slip, a transformer."""

import copy
import random
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from mpcourse.exercises.exercise import Exercise, NotYet, numbers, raised, short
from mpcourse.memory import ByteCounter, saved_for_backward

# 1. The largest batch


def my_largest_batch(resident, gradients, per_sample, limit):
    """Gradients come while activations go, so the larger of the two has to fit beside the rest.

    Where the gradients alone do not fit, no batch does.
    """
    room = limit - resident
    return max(0, room // per_sample) if gradients <= room else 0


def by_trying(resident, gradients, per_sample, limit):
    fits = [n for n in range(100) if resident + max(gradients, n * per_sample) <= limit]
    return max(fits, default=0)


check_largest_batch = Exercise(
    my_largest_batch,
    read_again='"What does a training step hold?"',
    cases=[(10, 2, 3, 20), (10, 4, 1, 20), (10, 8, 1, 17), (30, 0, 2, 20), (6, 11, 4, 17)],
    given="resident, gradients, per_sample, limit = {}, {}, {}, {}",
    hint="Beside `resident`, the larger of gradients and activations has to fit.",
    wrong={
        "Gradients that take all the room have it: they fit.": (
            lambda resident, gradients, each, limit: (
                (limit - resident) // each if gradients < limit - resident else 0
            )
        ),
        "Gradients come while activations go: the larger of the two has to fit, not both.": (
            lambda resident, gradients, each, limit: (limit - resident - gradients) // each
        ),
        "What is held between two steps takes its room too.": (
            lambda resident, gradients, each, limit: limit // each
        ),
        "This rounds up: the last sample does not fit.": (
            lambda resident, gradients, each, limit: -(-(limit - resident) // each)
        ),
        "Not even an empty step fits here: no batch does.": (
            lambda resident, gradients, each, limit: (limit - resident) // each
        ),
        "Samples come whole: divide by //.": [
            lambda resident, gradients, each, limit: (limit - resident) / each,
            lambda resident, gradients, each, limit: (
                round((limit - resident) / each) if gradients <= limit - resident else 0
            ),
        ],
        "the larger of gradients and activations": lambda *given: 100,
    },
    also_right=[by_trying],
)

# 2. Live bytes after each operation


def my_moments(step, held):
    """A counter that is told what was there sees what the step makes, and when it goes.

    The page's `CountBytes(*held)` does as well.
    """
    from mpcourse.memory import ByteCounter

    moments = []

    class Timeline(ByteCounter):
        def __torch_dispatch__(self, *operation):
            result = super().__torch_dispatch__(*operation)
            moments.append(self.live)
            return result

    with Timeline(held):
        step()
    return moments


class Reading(ByteCounter):
    """Reads itself after every operation, as `read(counter, result)` says."""

    def __init__(self, held, read, give_back=True):
        super().__init__(held)
        self.give_back = give_back
        self.moments, self.read, self.start, self.made = [], read, self.live, 0
        self.ahead = self.live  # what was live when the operation began

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        """Run an operation; what is no view of its arguments is made."""
        given = {leaf.data_ptr() for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        self.ahead = self.live
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        self.made += sum(t.nbytes for t in tree_leaves(result) if t.data_ptr() not in given)
        self.moments.append(self.read(self, result))
        return result if self.give_back else None


def read_by(read, told=True, of=lambda counter: counter.moments, give_back=True):
    def attempt(step, held):
        with Reading(held * told, read, give_back) as counter:
            step()
        return of(counter)

    return attempt


def live(counter, result):
    return counter.live


def not_told_but_added(step, held):
    return [sum(t.nbytes for t in held) + size for size in read_by(live, told=False)(step, held)]


def one_and_a_view():
    torch.ones(100)[:50].view(5, 10)


def in_turn():
    for _ in range(10):
        held = torch.ones(100)  # the last one goes when the next one is there
    del held


def an_early_peak():
    torch.ones(1000)
    torch.ones(10)


def thrown_away(step, held):
    class Empty(ByteCounter):
        def __torch_dispatch__(self, *operation):
            super().__torch_dispatch__(*operation)
            moments.append(self.live)

    moments = []
    with Empty(held):
        step()
    return moments


OLD = torch.ones(50)
GIVE_BACK = "`__torch_dispatch__` has to give back the operation's result: `return result`."

check_moments = Exercise(
    my_moments,
    read_again='"How do you count bytes?"',
    cases=[
        ("one tensor of 100 numbers", lambda: torch.ones(100), []),
        ("a tensor of 100 numbers and a view of it", one_and_a_view, []),
        ("a tensor of 1000 numbers, freed, then one of 10", an_early_peak, []),
        ("ten tensors of 100 numbers, one after the other", in_turn, []),
        ("50 old numbers beside 100 more", partial(Tensor.add_, OLD, 1), [OLD, torch.ones(100)]),
        ("a view of 50 old numbers", partial(Tensor.view, OLD, 5, 10), [OLD, OLD[:10]]),
    ],
    given="{0}",
    play=lambda attempt, words, step, held: numbers(attempt(step, held)),
    errors={
        "no attribute 'untyped_storage'": "Hand them over one by one: `CountBytes(*held)`.",
        "NoneType": GIVE_BACK,
    },
    hint="Read `live` after every operation, and not elsewhere.",
    wrong={
        "That is the most so far: what is freed has to go again.": read_by(lambda c, _: c.peak),
        "That is all that was ever made: what is freed has to go again.": read_by(
            lambda c, _: c.start + c.made
        ),
        "That is what each operation gives back: what else is live then?": read_by(
            lambda _, result: result.nbytes
        ),
        "These are changes: how many bytes are live in all?": read_by(
            lambda c, _: c.live - c.ahead
        ),
        "Read `live` behind the operation, not ahead of it.": read_by(lambda c, _: c.ahead),
        "What was there before counts, too: hand `held` to the counter.": [
            read_by(live, told=False),
            read_by(lambda c, _: c.live - c.start),
        ],
        "Two of the tensors held share a storage, which is there once.": not_told_but_added,
        "One number after each operation, none before the first, none behind the last.": [
            read_by(live, of=lambda c: [c.start, *c.moments]),
            read_by(live, of=lambda c: [*c.moments, c.live]),
        ],
        "These are numbers, not bytes: a float32 has four bytes.": read_by(
            lambda c, _: c.live // 4
        ),
        "That is one number: a list has one for each operation.": [
            read_by(live, of=lambda c: c.moments[-1]),
            read_by(live, of=lambda c: c.peak),
            read_by(live, of=lambda c: c.live),
        ],
        "Here is one moment: read `live` after every operation.": [
            read_by(live, of=lambda c: c.moments[-1:]),
            read_by(live, of=lambda c: [c.live]),
        ],
        GIVE_BACK: read_by(live, give_back=False),
        "Without `return result`, what an operation makes is gone at once.": thrown_away,
        "not elsewhere": lambda step, held: [123],
    },
    also_right=[read_by(live), read_by(live, of=lambda c: torch.tensor(c.moments))],
)

# 3. What autograd saves


def my_saved_bytes(model, inputs):
    """The hooks see every tensor that is saved; a dictionary keeps each storage once.

    Storages are told apart by where they begin. Those of parameters and inputs are left out.
    """
    held = {t.untyped_storage().data_ptr() for t in [*model.parameters(), inputs]}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(inputs)
    del outputs
    return sum(size for start, size in saved.items() if start not in held)


class Twice(nn.Module):
    """A result that is saved by the operation that makes it, and twice by the product."""

    def forward(self, inputs):
        """Sums of squares."""
        hidden = inputs.requires_grad_().exp()
        return (hidden * hidden).sum(0)


class Slice(nn.Module):
    """A slice is saved, and with it all of the storage that it lies in."""

    def forward(self, inputs):
        """The squares of two columns."""
        return (inputs.requires_grad_() + 1)[:, :2].square()


class Halves(nn.Module):
    """Two results that are saved lie in one storage, and begin in different places."""

    def forward(self, inputs):
        """The product of the left and the right half."""
        left, right = (inputs.requires_grad_() + 1).chunk(2, -1)
        return left * right


def by_hooks(each_time=False, nbytes=lambda saved: saved.nbytes):
    """Sizes of what is saved, each time or by where the tensors begin."""

    def attempt(model, inputs):
        held, sizes = {t.data_ptr() for t in [*model.parameters(), inputs]}, {}

        def pack(tensor):
            key = len(sizes) if each_time else tensor.data_ptr()
            sizes[key] = nbytes(tensor) * (tensor.data_ptr() not in held)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = model(inputs)
        del outputs
        return sum(sizes.values())

    return attempt


def saved_beside(left_out):
    """As the package counts, beside `left_out(model, inputs)`."""

    def attempt(model, inputs):
        with saved_for_backward(*left_out(model, inputs)) as saved:
            model(inputs)
        return saved.total

    return attempt


def all_live(model, inputs):
    with ByteCounter(list(model.parameters()), inputs) as counter:
        before = counter.live
        results = model(inputs)  # held while the bytes are read
        return counter.live - before if results is not None else 0


LAYERS = [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 16), nn.Tanh()]

check_saved_bytes = Exercise(
    my_saved_bytes,
    read_again='"What does autograd keep?"',
    cases=[
        ("Linear 4-8 and Tanh, 10 rows", nn.Sequential(*LAYERS[:2]), torch.zeros(10, 4)),
        ("two layers 4-8-16, 10 rows", nn.Sequential(*LAYERS), torch.zeros(10, 4)),
        ("a result that is saved three times", Twice(), torch.zeros(5, 6)),
        ("two columns of a table of ten, saved", Slice(), torch.zeros(5, 10)),
        ("the halves of a result, multiplied", Halves(), torch.zeros(10, 8)),
    ],
    given="{0}",
    play=lambda attempt, words, model, inputs: attempt(model, inputs),
    hint="Add up the bytes of each storage that is saved, once.",
    wrong={
        "What the net returns counts here too: does the backward need it?": all_live,
        "A slice holds its whole storage: tensor.untyped_storage().nbytes().": by_hooks(),
        "Two tensors can begin in different places of one storage: ask "
        "tensor.untyped_storage().data_ptr().": (
            by_hooks(nbytes=lambda saved: saved.untyped_storage().nbytes())
        ),
        "This counts a storage as often as it is saved: two layers can save the same.": (
            by_hooks(each_time=True)
        ),
        "These are numbers, not bytes: a float32 has four bytes.": (
            lambda model, inputs: my_saved_bytes(model, inputs) // 4
        ),
        "The inputs count here too: they are held anyway.": saved_beside(
            lambda model, inputs: [list(model.parameters())]
        ),
        "The parameters count here too: they are held anyway.": saved_beside(
            lambda model, inputs: [inputs]
        ),
        "Add up the bytes of each storage": lambda model, inputs: 0,
    },
    also_right=[saved_beside(lambda model, inputs: [list(model.parameters()), inputs])],
)

# 4. A part that must not be recomputed

CHANGES = (
    "Its second forward gives something else, but the graph keeps the first one's Python numbers: "
    "only tensors that are saved are made again."
)
IN_ITSELF = (
    "What does a module change in itself while it runs forward? And where the backward needs "
    "nothing that is saved, no forward runs again."
)
A_DROPOUT = "torch draws a dropout's numbers again as they were: it knows of this slip."
A_MODULE = "expected a module, got {}"
WITHOUT = "Without checkpoint, on inputs of shape (8, 4):"
NOTICED = "This one is noticed; find one that is silent:"


def my_slip():
    """Spectral norm divides a weight by an estimate of how far it can stretch a row.

    Each forward in training betters the estimate, and with checkpoint two run for one batch.
    """
    return nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))


def one_step(part, forward):
    """Gradients and buffers after a step; every step draws the same, whoever draws."""
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.default_generator.manual_seed(7)
    rows = torch.randn(8, 4, requires_grad=True)
    forward(part, rows).square().sum().backward()
    gradients = [rows.grad, *(p.grad for p in part.parameters())]
    found = [tensor for tensor in [*gradients, *part.buffers()] if tensor is not None]
    return [tensor.detach().clone() for tensor in found]


def with_checkpoint_and_without(attempt):
    """Gradients and buffers of a module without checkpoint and with it, and why they are equal.

    Of several modules, differently drawn, the first whose are not: an estimate that happens to be
    exact already stays what it is.
    """
    for seed in range(8):
        torch.default_generator.manual_seed(seed)
        plain, again, why = both_ways(attempt())
        if len(plain) != len(again) or not all(map(torch.equal, plain, again)):
            break
    return plain, again, why


def both_ways(part):
    """Gradients and buffers without checkpoint and with it, and why they might be equal."""
    if not isinstance(part, nn.Module):
        raise NotYet(A_MODULE.format(short(part)))
    twin = copy.deepcopy(part)
    try:
        plain = one_step(part, nn.Module.__call__)
    except Exception as error:
        raise NotYet(WITHOUT, raised(error)) from None
    try:
        again = one_step(twin, partial(checkpoint, use_reentrant=False))
    except Exception as error:
        raise NotYet(NOTICED, raised(error)) from None
    dropout = any(isinstance(module, nn.Dropout) for module in part.modules())
    return plain, again, A_DROPOUT if dropout else CHANGES if changes(part) else IN_ITSELF


def slipped(outcome):
    """Nothing, where the module has slipped; else what it does instead is said."""
    plain, again, why = outcome
    alike = [a.shape == b.shape == (8, 4) for a, b in zip(plain[:1], again[:1], strict=True)]
    if alike != [True] or len(plain) != len(again):
        raise NotYet(A_MODULE.format(short(outcome)))
    pairs = (map(torch.nan_to_num, pair) for pair in zip(plain, again, strict=True))
    if all(torch.equal(*pair) for pair in pairs):  # nan twice is no slip
        raise NotYet("Gradients and buffers are the same with checkpoint as without.", why)


def changes(part):
    """Whether a second forward gives something else, where torch draws the same."""
    results = []
    for _ in range(2):
        torch.default_generator.manual_seed(7)
        results.append(part(torch.ones(8, 4)).nan_to_num())
    return not torch.equal(*results)


class Counting(nn.Module):
    """Grows with every forward, so its second one gives another gradient."""

    calls = 0

    def forward(self, rows):
        """The sine of larger and larger rows."""
        self.calls += 1
        return (rows * self.calls).sin()


class Growing(Counting):
    """Its factor is a Python number, which the graph keeps."""

    def forward(self, rows):
        """Larger and larger rows."""
        self.calls += 1
        return rows * self.calls


class Drawing(nn.Module):
    """Draws a factor (which the graph keeps) or a mask (which is saved) with Python's generator."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, rows):
        """The rows, multiplied by what is drawn."""
        drawn = random.random()
        return rows * torch.full_like(rows, drawn) if self.mask else rows * drawn


class Once(nn.Linear):
    """Refuses a second forward."""

    ran = False

    def forward(self, rows):
        """The outputs, once."""
        if self.ran:
            raise RuntimeError("a second forward")
        self.ran = True
        return super().forward(rows)


check_slip = Exercise(
    my_slip,
    read_again='"Which slips does a second forward make?"',
    play=with_checkpoint_and_without,
    look=slipped,
    correct="With checkpoint, its gradients or its buffers differ, and nothing is said.",
    wrong={
        IN_ITSELF: lambda: nn.Linear(4, 4),
        CHANGES: [lambda: Drawing(mask=False), Growing],
        A_DROPOUT: lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
        A_MODULE.format("<class 'torch.nn"): lambda: nn.BatchNorm1d,
        WITHOUT: lambda: nn.Linear(5, 4),
        NOTICED: lambda: Once(4, 4),
    },
    also_right=[
        lambda: nn.BatchNorm1d(4),
        lambda: nn.BatchNorm1d(4) if torch.rand(()) < 0.3 else nn.Linear(4, 4),  # in some draws
        Counting,
        lambda: Drawing(mask=True),
    ],
)

# 5. What the blocks of a transformer save


def my_activation_bytes(tokens, width, layers, heads=0):
    """For each token a block saves 16 numbers of two bytes a width, and two masks of one.

    Inputs of the norms 2, of `qkv` 1, queries, keys and values 3, the result of the attention 1
    (it is the input of `out`), of `up` 1, of GELU 4, of `down` 4. Stored scores go with the square
    of the tokens.
    """
    block = (2 * 16 + 2) * tokens * width
    scores = 5 * heads * tokens**2
    return layers * (block + scores)


def of_blocks(bytes_of_a_block=34, of_a_score=5, pairs=lambda tokens: tokens**2):
    def attempt(tokens, width, layers, heads=0):
        scores = of_a_score * heads * pairs(tokens)
        return layers * (bytes_of_a_block * tokens * width + scores)

    return attempt


check_activation_bytes = Exercise(
    my_activation_bytes,
    read_again='"What does a transformer keep?"',
    cases=[(1, 1, 1, 0), (3, 8, 1, 0), (10, 16, 3, 0), (10, 16, 1, 2), (10, 16, 3, 2)],
    given="tokens, width, layers, heads = {}, {}, {}, {}",
    hint="Go down the lines of `forward`: what does each operation save?",
    wrong={
        "These are numbers, not bytes: in 16 bits each has two, in a mask one.": [
            of_blocks(16),
            of_blocks(17),
            of_blocks(18),
        ],
        "In 16 bits a number takes two bytes, not four.": [of_blocks(66), of_blocks(68)],
        "A dropout's mask takes one byte a number, and what the attention gives is the input of "
        "`out`: one tensor.": of_blocks(36),
        "An addition saves nothing, and the input of `qkv` is one tensor.": of_blocks(38),
        "Each dropout saves its mask, and the attention its result.": [
            of_blocks(32),
            of_blocks(33),
        ],
        "Each of the two norms saves its input, and the attention three tensors and its result.": [
            of_blocks(30),
            of_blocks(31),
        ],
        "Between `up` and `down` a token has four widths: GELU's input and its result.": [
            of_blocks(22),
            of_blocks(26),
        ],
        "Attention saves queries, keys and values, and GELU's input has four widths.": (
            of_blocks(28)
        ),
        "Each token has its own: times the tokens.": lambda tokens, width, layers, heads=0: (
            of_blocks()(1, width, layers)
        ),
        "What stands for a token has `width` numbers.": lambda tokens, width, layers, heads=0: (
            of_blocks()(tokens, 1, layers, heads)
        ),
        "That is one block: there are {2}.": lambda tokens, width, layers, heads=0: of_blocks()(
            tokens, width, 1, heads
        ),
        "Each block stores its scores.": lambda tokens, width, layers, heads=0: (
            of_blocks()(tokens, width, layers) + of_blocks(0)(tokens, width, 1, heads)
        ),
        "Each pair of tokens has a score: the square of the tokens.": of_blocks(pairs=int),
        "With 0 heads no score is stored.": lambda tokens, width, layers, heads=0: of_blocks()(
            tokens, width, layers, max(heads, 1)
        ),
        "Heads concern the scores alone.": lambda tokens, width, layers, heads=0: (
            of_blocks()(tokens, width, layers) * max(heads, 1)
        ),
        "Each head has scores of its own.": lambda tokens, width, layers, heads=0: of_blocks()(
            tokens, width, layers, min(heads, 1)
        ),
        "A score takes five bytes: two, a mask of one, two.": [
            of_blocks(of_a_score=size) for size in (1, 2, 3, 4, 6)
        ],
        "Stored scores come on top.": lambda tokens, width, layers, heads=0: of_blocks()(
            tokens, width, layers
        ),
        "Go down the lines": lambda *sizes: 7,
    },
    also_right=[lambda *sizes: float(of_blocks()(*sizes))],
)
