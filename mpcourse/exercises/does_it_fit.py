"""Exercises of page `does_it_fit`: live bytes, what blocks save, the account of a step."""

from functools import partial

import torch
from torch import Tensor

from mpcourse.exercises.exercise import Exercise, numbers

# 1. Live bytes after each operation


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
        "That is what an operation gives back: what else is live?": "self.live => result.nbytes",
        "These are changes: how many bytes are live in all?": (
            AHEAD,
            "append(self.live) => append(self.live - ahead)",
        ),
        "Read `live` behind the operation, not ahead of it.": (
            AHEAD,
            "append(self.live) => append(ahead)",
        ),
        "What was there before counts, too: hand `held` to the counter.": (
            "Timeline(held) => Timeline()"
        ),
        "These are numbers, not bytes: a float32 has four bytes.": "self.live => self.live // 4",
        "That is one number: a list has one for each operation.": (
            "return moments => return moments[-1]"
        ),
        "Keep no result: what is kept is not freed.": (
            "moments = [] => moments, kept = [], []",
            "moments.append( => kept.append(result), moments.append(",
        ),
        GIVE_BACK: "return result => ",
    },
    also_right=[
        (
            "*operation): => function, types, args=(), kwargs=None):",
            "(*operation) => (function, types, args, kwargs)",
        ),
    ],
)

# 2. What the blocks of a transformer save


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
            "2 * 16 + 2 => 16",
            "2 * 16 + 2 => 18",
        ],
        "In 16 bits a number takes two bytes, not four.": "2 * 16 + 2 => 66",
        "A dropout's mask takes one byte a number, and what the attention gives is the input of "
        "`out`: one tensor.": "2 * 16 + 2 => 36",
        "What GELU gives is the input of `down`: one tensor.": "2 * 16 + 2 => 42",
        "An addition saves nothing, and the input of `qkv` is one tensor.": "2 * 16 + 2 => 38",
        "Each dropout saves its mask, each Linear layer its input.": "2 * 16 + 2 => 32",
        "Between `up` and `down` a token has four widths: GELU's input and its result.": (
            "2 * 16 + 2 => 22"
        ),
        "Each pair of tokens has a score: the square of the tokens.": "tokens**2 => tokens",
        "A score takes five bytes: two, a mask of one, two.": [
            "5 * heads => 2 * heads",
            "5 * heads => 4 * heads",
        ],
    },
    also_right=["return layers => return 1.0 * layers"],
)

# 3. The account of a whole step


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
        "The logits are gone before a block runs again: the larger of the two has to fit.": (
            f"{PEAK} => logits + block - kept"
        ),
        "The input of the block that runs again is one of those kept: it is there once.": (
            f"{PEAK} => max(logits, again * block)"
        ),
        "A block that runs again is whole until it has gone back.": f"{PEAK} => logits",
        "When the loss is made, every block keeps something, and the logits come on top.": [
            f"{PEAK} => (block - kept if again else logits)",
            f"layers * kept + {PEAK} => max(layers * kept + block - kept, logits)",
        ],
        "One block at a time runs again.": "block - kept => layers * (block - kept)",
        "At its peak, the loss has three tensors of float32 for the logits: 12 bytes each.": (
            "12 * => 4 * "
        ),
        "One chunk at a time has its logits.": " / chunks => ",
        "The loss goes in chunks, the blocks do not.": "layers * kept => layers * kept / chunks",
    },
    also_right=[two_moments, " / chunks => // chunks"],
)
