"""Exercises of page `does_it_fit`: largest batch, live and saved bytes, a slip, two accounts."""

import copy
import random
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mpcourse.exercises.exercise import Exercise, NotYet, numbers, raised, short
from mpcourse.memory import ByteCounter, saved_for_backward

# 1. The largest batch


def my_largest_batch(resident, gradients, per_sample, limit):
    """The larger of gradients and activations has to fit beside the rest.

    Where the gradients alone do not fit, no batch does.
    """
    room = limit - resident
    return room // per_sample if gradients <= room else 0


def by_trying(resident, gradients, per_sample, limit):
    fits = [n for n in range(100) if resident + max(gradients, n * per_sample) <= limit]
    return max(fits, default=0)


check_largest_batch = Exercise(
    my_largest_batch,
    read_again='"What does a training step hold?"',
    cases=[(10, 2, 3, 20), (10, 1, 12, 20), (10, 8, 1, 17), (30, 0, 2, 20), (6, 11, 4, 17)],
    given="resident, gradients, per_sample, limit = {}, {}, {}, {}",
    hint="Beside `resident`, the larger of gradients and activations has to fit.",
    wrong={
        "Gradients that take all the room have it: they fit.": "<= => <",
        "Gradients come while activations go: the larger of the two has to fit, not both.": (
            "room // => (room - gradients) //"
        ),
        "What is held between two steps takes its room too.": " - resident => ",
        "This rounds up: the last sample does not fit.": "// per_sample => // per_sample + 1",
        "Not even an empty step fits here: no batch does.": " if gradients <= room else 0 => ",
        "No sample fits here: the answer is 0.": "room // per_sample => max(1, room // per_sample)",
        "Gradients do not grow with the batch.": "// per_sample => // max(per_sample, gradients)",
        "What stays is there once, not once for each sample.": (
            "room // per_sample => limit // (resident + per_sample)"
        ),
        "Gradients stand beside what stays, not in its place.": (
            "limit - resident => limit - max(resident, gradients)",
            " if gradients <= room else 0 => ",
        ),
        "Samples come whole: divide by //.": [
            "// => /",
            "room // per_sample => round(room / per_sample)",
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


def one_and_a_view():
    torch.ones(100)[:50].view(5, 10)


def in_turn():
    for _ in range(10):
        held = torch.ones(100)  # the last one goes when the next one is there
    del held


def an_early_peak():
    torch.ones(1000)
    torch.ones(10)


OLD = torch.ones(50)
GIVE_BACK = "`__torch_dispatch__` has to give back the operation's result: `return result`."
AHEAD = "result = super() => ahead, result = self.live, super()"
COUNTER = "(held): => (held) as counter:"

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
        ("the item of a sum", lambda: torch.ones(100).chunk(2)[0].sum().item(), []),
    ],
    given="{0}",
    play=lambda attempt, words, step, held: numbers(attempt(step, held)),
    errors={
        "no attribute 'untyped_storage'": "Hand them over one by one: `CountBytes(*held)`.",
        "NoneType": GIVE_BACK,
    },
    hint="Read `live` after every operation, and not elsewhere.",
    wrong={
        "That is the most so far: what is freed has to go again.": "self.live => self.peak",
        "That is all that was ever made: what is freed has to go again.": (
            AHEAD,
            "append(self.live) => append((moments or [ahead])[-1] + self.live - ahead)",
        ),
        "That is what an operation gives back: what else is live?": "self.live => result.nbytes",
        "These are changes: how many bytes are live in all?": (
            AHEAD,
            "append(self.live) => append(self.live - ahead)",
        ),
        "Read `live` behind the operation, not ahead of it.": (
            AHEAD,
            "append(self.live) => append(ahead)",
        ),
        "What was there before counts, too: hand `held` to the counter.": [
            "Timeline(held) => Timeline()",
            "self.live => self.live - ByteCounter(held).live",
        ],
        "Two of the tensors held share a storage, which is there once.": (
            "Timeline(held) => Timeline()",
            "self.live => sum(tensor.nbytes for tensor in held) + self.live",
        ),
        "One number after each operation, none before the first, none behind the last.": [
            "moments = [] => moments = [ByteCounter(held).live]",
            (COUNTER, "return moments => return [*moments, counter.live]"),
        ],
        "These are numbers, not bytes: a float32 has four bytes.": "self.live => self.live // 4",
        "That is one number: a list has one for each operation.": [
            "return moments => return moments[-1]",
            (COUNTER, "return moments => return counter.peak"),
            (COUNTER, "return moments => return counter.live"),
        ],
        "Here is one moment: read `live` after every operation.": [
            "return moments => return moments[-1:]",
            (COUNTER, "return moments => return [counter.live]"),
        ],
        GIVE_BACK: "return result => ",
        "Without `return result`, what an operation makes is gone at once.": (
            "result = super() => super()",
            "return result => ",
        ),
        "Nothing counts what is made: call `super().__torch_dispatch__(…)`.": (
            "super().__torch_dispatch__(*operation) => operation[0](*operation[2], **operation[3])"
        ),
        "Keep no result: what is kept is not freed.": (
            "moments = [] => moments, kept = [], []",
            "moments.append( => kept.append(result), moments.append(",
        ),
        "No operation was seen: call `step()` within `with`.": "with Timeline => if Timeline",
        "`.item()` is an operation, too.": "moments. => isinstance(result, Tensor) and moments.",
        "not elsewhere": lambda step, held: [123],
    },
    also_right=[
        (
            "*operation): => function, types, args=(), kwargs=None):",
            "(*operation) => (function, types, args, kwargs)",
        ),
        "return moments => return torch.tensor(moments)",
    ],
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
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs)
    return sum(size for start, size in saved.items() if start not in held)


def doing(forward):
    """A module that does this."""
    module = nn.Module()
    module.forward = forward
    return module


def saved_thrice(inputs):
    hidden = inputs.requires_grad_().exp()
    return (hidden * hidden).sum(0)


def two_columns(inputs):
    return (inputs.requires_grad_() + 1)[:, :2].square()


def both_halves(inputs):
    left, right = (inputs.requires_grad_() + 1).chunk(2, -1)
    return left * right


def by_the_package(model, inputs):
    with saved_for_backward(list(model.parameters()), inputs) as saved:
        model(inputs)
    return saved.total


def all_results(model, inputs):
    """What the layers give, whoever needs it."""
    found = []
    for module in model.modules():
        if not [*module.children()]:
            module.register_forward_hook(lambda layer, given, result: found.append(result.nbytes))
    model(inputs)
    return sum(found)


def all_live(model, inputs):
    with ByteCounter(list(model.parameters()), inputs) as counter:
        before = counter.live
        results = model(inputs)  # held while the bytes are read
        return counter.live - before if results is not None else 0


LAYERS = [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 16), nn.Tanh()]

check_saved_bytes = Exercise(
    my_saved_bytes,
    read_again='"What does autograd keep?"',
    cases=[
        ("Linear 4-8 and Tanh, 10 rows", nn.Sequential(*LAYERS[:2]), torch.zeros(10, 4)),
        ("Flatten, layers 4-8-8-16", nn.Sequential(nn.Flatten(), *LAYERS), torch.zeros(10, 2, 2)),
        ("a result that is saved three times", doing(saved_thrice), torch.zeros(5, 6)),
        ("two columns of a table of ten, saved", doing(two_columns), torch.zeros(5, 10)),
        ("the halves of a result, multiplied", doing(both_halves), torch.zeros(10, 8)),
    ],
    given="{0}",
    play=lambda attempt, words, model, inputs: attempt(model, inputs),
    hint="Add up the bytes of each storage that is saved, once.",
    wrong={
        "What the net returns counts here too: does the backward need it?": all_live,
        "Not every result is saved: which one does the backward of Tanh need?": all_results,
        "Not all that is held is saved: leave it out, do not subtract it.": (
            " if start not in held) => ) - sum(t.nbytes for t in [*model.parameters(), inputs])"
        ),
        "A slice holds its whole storage: tensor.untyped_storage().nbytes().": (
            "saved[storage. => saved[tensor.",
            "storage.nbytes() => tensor.nbytes",
        ),
        "Two tensors can begin in different places of one storage: ask "
        "tensor.untyped_storage().data_ptr().": "saved[storage. => saved[tensor.",
        "This counts a storage as often as it is saved: two layers can save the same.": (
            "saved[storage.data_ptr()] => saved[len(saved), storage.data_ptr()]",
            "for start, => for (_, start),",
        ),
        "Two results of one shape have two storages.": (
            "saved[storage.data_ptr()] => if storage.data_ptr() not in held: saved[tensor.shape]"
        ),
        "These are numbers, not bytes: a float32 has four bytes.": "nbytes() => nbytes() // 4",
        "The inputs count here too: they are held anyway.": ", inputs] => ]",
        "A view of the inputs has their storage: compare storages, not tensors.": [
            (", inputs] => ]", "saved[ => if tensor is not inputs: saved["),
            (
                "{t.untyped_storage().data_ptr() => {id(t)",
                "saved[ => if id(tensor) not in held: saved[",
            ),
        ],
        "The parameters count here too: they are held anyway.": "*model.parameters(), => ",
        "Add up the bytes of each storage": lambda model, inputs: 0,
    },
    also_right=[by_the_package, "tensor.detach() => tensor"],
)

# 4. A part that must not be recomputed

CHANGES = (
    "Its second forward gives something else, but the graph keeps the first one's Python numbers: "
    "only tensors that are saved are made again."
)
IN_ITSELF = (
    "What does a module change in itself while it runs forward? A second forward stops where all "
    "that the backward needs is made; where it needs nothing, none runs."
)
A_DROPOUT = (
    "torch draws its own numbers again as they were, also for a dropout: it knows this slip."
)
BATCH_NORM = "The page has the batch norm already: find a module without one."
OUTSIDE = "Without checkpoint, two copies differ, too: keep in the module what changes."
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
        if not alike(plain, again):
            break
    return plain, again, why


def both_ways(part):
    """Gradients and buffers without checkpoint and with it, and why they might be equal."""
    if not isinstance(part, nn.Module):
        raise NotYet(A_MODULE.format(short(part)))
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in part.modules()):
        raise NotYet(BATCH_NORM)
    twin, first, other = (copy.deepcopy(part) for _ in range(3))
    try:
        plain, control = (one_step(each, nn.Module.__call__) for each in (first, other))
    except Exception as error:
        raise NotYet(WITHOUT, raised(error)) from None
    try:
        again = one_step(twin, partial(checkpoint, use_reentrant=False))
    except Exception as error:
        raise NotYet(NOTICED, raised(error)) from None
    if not alike(plain, control):
        raise NotYet(OUTSIDE)
    why = A_DROPOUT if draws(first) else CHANGES if changes(part) else IN_ITSELF
    return plain, again, why


def alike(some, others):
    """Whether all tensors are the same; nan twice is no difference."""
    some, others = ([tensor.nan_to_num() for tensor in each] for each in (some, others))
    return len(some) == len(others) and all(map(torch.equal, some, others))


def slipped(outcome):
    """Nothing, where the module has slipped; else what it does instead is said."""
    plain, again, why = outcome
    shapes = [a.shape == b.shape == (8, 4) for a, b in zip(plain[:1], again[:1], strict=True)]
    if shapes != [True] or len(plain) != len(again):
        raise NotYet(A_MODULE.format(short(outcome)))
    if alike(plain, again):
        raise NotYet("Gradients and buffers are the same with checkpoint as without.", why)


def changes(part):
    """Whether a second forward gives something else, where torch draws the same."""
    results = []
    for _ in range(2):
        torch.default_generator.manual_seed(7)
        results.append(part(torch.ones(8, 4)).nan_to_num())
    return not torch.equal(*results)


def draws(part):
    """Whether a forward draws from torch's generator."""
    before = torch.default_generator.get_state()
    part(torch.ones(8, 4))
    return not torch.equal(before, torch.default_generator.get_state())


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
        A_DROPOUT: [
            lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
            lambda: doing(nn.functional.dropout),
        ],
        A_MODULE.format("<class 'torch.nn"): lambda: nn.BatchNorm1d,
        WITHOUT: lambda: nn.Linear(5, 4),
        NOTICED: lambda: Once(4, 4),
        BATCH_NORM: lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        OUTSIDE: lambda: doing(lambda rows: rows * random.SystemRandom().random()),
    },
    also_right=[
        lambda: nn.Sequential(nn.InstanceNorm1d(8, track_running_stats=True), nn.Tanh()),
        lambda: Counting() if torch.rand(()) < 0.3 else nn.Linear(4, 4),  # in some draws
        Counting,
        lambda: Drawing(mask=True),
    ],
)

# 5. What the blocks of a transformer save


def my_activation_bytes(tokens, width, layers, heads=0):
    """For each token a block saves 16 numbers of two bytes a width, and two masks of one.

    Inputs of the norms 2, of `qkv`, `out` (what the attention gives) and `up` 3; queries, keys and
    values 3; inputs of GELU 4, of `down` 4. Stored scores go with the square of the tokens.
    """
    block = (2 * 16 + 2) * tokens * width
    scores = 5 * heads * tokens**2
    return layers * (block + scores)


check_activation_bytes = Exercise(
    my_activation_bytes,
    read_again='"What does a transformer keep?"',
    cases=[(1, 1, 1, 0), (3, 8, 1, 0), (10, 16, 3, 0), (10, 16, 1, 2), (10, 16, 3, 2)],
    given="tokens, width, layers, heads = {}, {}, {}, {}",
    hint="Go down the lines of `forward`: what does each operation save?",
    wrong={
        "These are numbers, not bytes: in 16 bits each has two, in a mask one.": [
            f"2 * 16 + 2 => {size}" for size in (16, 17, 18)
        ],
        "In 16 bits a number takes two bytes, not four.": ["2 * 16 + 2 => 66", "2 * 16 + 2 => 68"],
        "A dropout's mask takes one byte a number, and what the attention gives is the input of "
        "`out`: one tensor.": "2 * 16 + 2 => 36",
        "What GELU gives is the input of `down`: one tensor.": "2 * 16 + 2 => 42",
        "A score is one number, whatever the width.": "tokens**2 => tokens**2 * width",
        "An addition saves nothing, and the input of `qkv` is one tensor.": "2 * 16 + 2 => 38",
        "Each dropout saves its mask, each Linear layer its input.": [
            f"2 * 16 + 2 => {size}" for size in (32, 33)
        ],
        "Each of the two norms saves its input, and the attention three tensors and its result.": [
            f"2 * 16 + 2 => {size}" for size in (30, 31)
        ],
        "Between `up` and `down` a token has four widths: GELU's input and its result.": [
            f"2 * 16 + 2 => {size}" for size in (22, 26)
        ],
        "Attention saves queries, keys and values, and GELU's input has four widths.": (
            "2 * 16 + 2 => 28"
        ),
        "Each token has its own: times the tokens.": "* tokens * width => * width",
        "What stands for a token has `width` numbers.": " * width => ",
        "That is one block: there are {2}.": "layers * => ",
        "Each block stores its scores.": "(block + scores) => block + scores",
        "Each pair of tokens has a score: the square of the tokens.": "tokens**2 => tokens",
        "What a causal mask hides is stored, too.": "tokens**2 => (tokens**2 + tokens) / 2",
        "With 0 heads no score is stored.": "* heads => * max(heads, 1)",
        "Heads concern the scores alone.": "block + scores => block * max(heads, 1)",
        "Each head has scores of its own.": "* heads => * min(heads, 1)",
        "A score takes five bytes: two, a mask of one, two.": [
            f"5 * heads => {size} * heads" for size in (1, 2, 3, 4, 6, 7, 8, 10)
        ],
        "Stored scores come on top.": " + scores => ",
        "Go down the lines": lambda *sizes: 7,
    },
    also_right=["return layers => return 1.0 * layers"],
)

# 6. The account of a whole step


def my_account(states, tokens, width, layers, words, again, chunks):
    """Every block keeps its share, and two moments compete for the room above.

    At the loss these are the logits of a chunk. Later the last block runs again: what it has more
    than its input is live then, and the logits are gone.
    """
    block = 34 * tokens * width
    kept = 2 * tokens * width if again else block
    logits = 12 * tokens * words / chunks
    return states + layers * kept + max(logits, block - kept)


def two_moments(states, tokens, width, layers, words, again, chunks):
    """The same, moment by moment."""
    share = 2 if again else 34
    at_loss = layers * share * tokens * width + 12 * (tokens // chunks) * words
    in_block = ((layers - 1) * share + 34) * tokens * width
    return states + (at_loss if at_loss > in_block else in_block)


PEAK = "max(logits, block - kept)"

check_account = Exercise(
    my_account,
    read_again='"Does it fit?"',
    cases=[
        (100, 2, 1, 1, 1, False, 1),
        (1000, 4, 8, 3, 10, False, 1),
        (1000, 4, 8, 3, 10, False, 2),
        (1000, 4, 8, 3, 10, True, 1),
        (1000, 4, 8, 3, 10, True, 2),
        (1000, 4, 8, 3, 100, True, 1),
        (1000, 4, 8, 3, 100, True, 4),
    ],
    given="states, tokens, width, layers, words, again, chunks = {}, {}, {}, {}, {}, {}, {}",
    hint="What is live when the loss is made, and what when the last block has run again?",
    wrong={
        "The logits are gone before a block runs again: the larger of the two has to fit.": [
            f"{PEAK} => logits + block - kept",
            f"{PEAK} => logits + again * block",
        ],
        "The input of the block that runs again is one of those kept: it is there once.": (
            f"{PEAK} => max(logits, again * block)"
        ),
        "A block that runs again is whole until it has gone back.": f"{PEAK} => logits",
        "When the loss is made, every block keeps something, and the logits come on top.": [
            f"{PEAK} => block - kept",
            f"{PEAK} => (block - kept if again else logits)",
            f"layers * kept + {PEAK} => max(layers * kept, logits)",
            f"layers * kept + {PEAK} => max(layers * kept + block - kept, logits)",
            f"layers * kept + {PEAK} => (layers - 1) * kept + max(logits, block)",
        ],
        "One block at a time runs again.": "block - kept => layers * (block - kept)",
        "Without `again`, each block keeps all of its 34 bytes.": [
            " if again else block => ",
            "if again => if not again",
        ],
        "With `again`, a block keeps its input alone.": "2 * tokens * width if again else => ",
        "In 16 bits, an input takes two bytes a number.": [
            "2 * tokens * width if => tokens * width if",
            "2 * tokens * width if => 4 * tokens * width if",
        ],
        "An input has `width` numbers for each token.": "2 * tokens * width if => 2 * tokens if",
        "At its peak, the loss has three tensors of float32 for the logits: 12 bytes each.": [
            f"12 * => {size} * " for size in (1, 2, 4, 6, 8, 16)
        ],
        "Each token has a logit for each word.": "tokens * words => words",
        "The width is no factor of the logits.": "tokens * words => tokens * words * width",
        "One chunk at a time has its logits.": " / chunks => ",
        "The loss goes in chunks, the blocks do not.": [
            "layers * kept => layers * kept / chunks",
            "block - kept) => (block - kept) / chunks)",
        ],
        "There are {3} blocks: each keeps something.": "layers * kept => kept",
        "`states` stay all the time.": "states + => ",
        "`states` are bytes already.": ["states + => 16 * states +", "states + => 4 * states +"],
        "What is live when": lambda *sizes: 7,
    },
    also_right=[two_moments, " / chunks => // chunks"],
)
