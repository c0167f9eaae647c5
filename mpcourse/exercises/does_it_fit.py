"""Exercises of page `does_it_fit`: live bytes, what blocks save, the account of a step."""

from functools import partial
from itertools import product
from numbers import Real

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import Tensor

from mpcourse.exercises.exercise import Exercise, numbers

UNIT = "Bytes are asked for, no larger unit."


def unit_or(words):
    """A hint: these words, unless the outcome is kilobytes or more."""

    def hint(found, expected):
        small = isinstance(found, Real) and 0 < 900 * found < expected
        return UNIT if small else words

    return hint


# 1. Live bytes after each operation


def my_moments(step, held):
    """Let `super()` count, then write down `live`.

    `ByteCounter` is the package's `CountBytes`: on this page, leave the import out.
    """
    from mpcourse.memory import ByteCounter as CountBytes

    moments = []

    class Timeline(CountBytes):
        def __torch_dispatch__(self, *operation):
            result = super().__torch_dispatch__(*operation)
            moments.append(self.live)
            return result

    with Timeline(*held):
        step()
    return moments


def once(step):
    left = [step]

    def run(*given):
        if given:
            raise TypeError("step takes nothing")
        return left.pop()()

    return run


def in_turn():
    for _ in range(10):
        held = torch.ones(100)  # the last one goes when the next one is there
    del held


OLD = torch.ones(50)
ONCE = "Call `step()` once: it may change what it uses."
GIVE_BACK = "`__torch_dispatch__` has to give back the operation's result: `return result`."
AS_THEY_ARE = "Hand `args` and `kwargs` on as they are, without stars."
SELF = "`super()` hands `self` on by itself: leave it out."
FOUR = "`__torch_dispatch__` takes four things: operation, types, args and kwargs."
INIT = "An `__init__` of your own has to call `super().__init__(*held)`."
SUMS = "moments = [] => moments, parts = [], []"
SUM = "append(self.live) => append(sum(parts))"
RETURN = "A list is asked for: `return` it, in place of `yield`."
AHEAD = "result = super() => ahead, result = self.live, super()"


def not_as_many(found, expected):
    if hasattr(found, "__next__"):
        return RETURN
    more = len(found) - len(expected) if isinstance(found, list) else 2
    if more == 1:
        return "One number too many: before the first operation, nothing is written down."
    if more:
        return "One number for each operation, in a list that begins anew with each call."
    why = "Count all that an operation gives back, then write down `live` alone."
    return unit_or(why)(found[0], expected[0])


check_moments = Exercise(
    my_moments,
    read_again='"How do you count bytes?"',
    cases=[
        ("100 numbers, half of them, a view", lambda: torch.ones(100)[:50].view(2, 25), []),
        ("100 numbers, the last half of them", lambda: torch.ones(100)[50:], []),
        ("100 numbers of float64", partial(torch.ones, 100, dtype=torch.float64), []),
        ("1000 numbers, freed, then 10", lambda: [len(torch.ones(n)) for n in (1000, 10)], []),
        ("ten times 100 numbers, in turn", in_turn, []),
        ("50 old numbers beside 100 more", partial(Tensor.add_, OLD, 1), [OLD, torch.ones(100)]),
        ("a view of 50 old numbers", partial(Tensor.view, OLD, 5, 10), [OLD, OLD[:10]]),
        ("as many as a sum", lambda: torch.ones(int(torch.ones(2, 9).max(0)[0].sum().mul_(2))), []),
    ],
    given="{0}",
    play=lambda attempt, words, step, held: numbers(attempt(once(step), held)),
    errors={
        "takes nothing": "Call `step()` with nothing: it has what it uses.",
        "no attribute 'untyped_storage'": "Hand them over one by one: `CountBytes(*held)`.",
        "known'": INIT,
        **dict.fromkeys(("NoneType", "Unable to cast"), GIVE_BACK),
        **dict.fromkeys(("keyword argument", "Expected a value of type"), AS_THEY_ARE),
        "maximum recursion": "Call the method of `super()`, not that of `self`.",
        "3 to 5 positional arguments but 6": SELF,
        "positional arguments but 5 were": FOUR,
        "pop from empty list": ONCE,
    },
    hint=not_as_many,
    wrong={
        "That is the most so far, or a sum: what is freed goes.": [
            "self.live => self.peak",
            (AHEAD, SUMS, "moments.app => parts.append(self.live - ahead); moments.app", SUM),
        ],
        "A view has no bytes of its own: count its storage, once.": [
            (SUMS, f"moments.app => parts.append(result{of}.nbytes{call}); moments.app", SUM)
            for of, call in (("", ""), (".untyped_storage()", "()"))
        ],
        "A view may begin later: its `data_ptr` differs, its storage's `_cdata` does not.": (
            (
                SUMS,
                "moments.app => parts.append((result.data_ptr(), "
                "result.untyped_storage().nbytes())); moments.app",
                "append(self.live) => append(sum(dict(parts).values()))",
            )
        ),
        "Call `step()` inside `with`.": "with Timeline(*held): => if True:",
        "Call `step()` with nothing": ["step() => step(held)", "step() => step(*held, 1)"],
        "That is what an operation gives back: what else is live?": "self.live => result.nbytes",
        ONCE: [f"{at} => step()\n    {at}" for at in ("return moments", "with Timeline")],
        "These are changes: how many bytes are live in all?": (AHEAD, "live) => live - ahead)"),
        "Run each operation once.": "= super => = operation[0](*operation[2]); result = super",
        "Read `live` behind the operation, not ahead of it.": (AHEAD, "(self.live) => (ahead)"),
        "What was there before counts, too: hand `held` to the counter.": [
            "Timeline(*held) => Timeline()",
            "self.live => self.live - sum(old.nbytes for old in held)",
            ("*held) => )", "self.live => self.live + sum(old.nbytes for old in held)"),
        ],
        "These are numbers, not bytes: a float32 has four bytes.": "self.live => self.live // 4",
        UNIT: "self.live => self.live / 1e6",
        "That is one number: a list has one for each operation.": "moments\n => moments[-1]\n",
        RETURN: "return moments => yield from moments",
        "Keep no result: what is kept is not freed.": (
            "moments.append( => vars(self).setdefault(0, []).append(result), moments.append("
        ),
        "Nothing was counted: `super().__torch_dispatch__` does that.": "(self.live) => (0)",
        AS_THEY_ARE: [
            ("*operation): => f, t, a=(), k=None):", "*operation) => f, t, a, **(k or {}))"),
            ("*operation): => f, t, a=(), k=None):", "*operation) => f, t, *a)"),
        ],
        SELF: "_(*operation)\n => _(self, *operation)\n",
        FOUR: [f"*operation): => f, t{args}):" for args in ("", ", args", ", args=()")],
        "Hand `kwargs` on, too.": "(*operation)\n => (*operation[:3])\n",
        INIT: "(CountBytes): => (CountBytes):\n        __init__ = lambda self, *held: None\n",
        GIVE_BACK: ["return result => ", ("result = super => super", "return result => ")],
    },
    also_right=[("*operation): => f, t, args, kw=None):", "*operation) => f, t, args, kw)")],
)

# 2. What the blocks of a transformer save


def my_activation_bytes(tokens, width, layers, heads=0):
    """In widths, the inputs of the norms make 2. Those of `qkv`, `out` and `up` make 3.

    `out` reads what `attend` gives. Queries, keys and values make 3 more, and the inputs of GELU
    and `down` 4 each. These 16 have two bytes a number, the two masks one.
    """
    block = (2 * 16 + 2) * tokens * width
    scores = 5 * heads * tokens**2
    return layers * (block + scores)


def block_of(*wrong):
    return [f"2 * 16 + 2 => {size}" for size in wrong]


HEADS = "Keep the four arguments of the stub: the last is `heads=0`."
NO_HEADS = "`heads` is 0 where no scores are stored: do not divide by it."

check_activation_bytes = Exercise(
    my_activation_bytes,
    read_again='"What does a transformer keep?"',
    cases=[
        (1, 1, 1, 0),
        (3, 8, 1, 0),
        (10, 16, 3, 0),
        (10, 16, 1, 4),
        (10, 16, 3, 4),
        (10, 64, 1, 4),
    ],
    given="tokens, width, layers, heads = {}, {}, {}, {}",
    play=lambda attempt, *sizes: attempt(*(sizes if sizes[0] != 3 else sizes[:3])),
    hint=unit_or("Go down the lines of `forward`: what does each operation save?"),
    errors={"positional argument": HEADS, "ZeroDivisionError": NO_HEADS},
    wrong={
        UNIT: "(block + scores) => (block + scores) / 1e6",
        "These are numbers: in 16 bits each has two bytes, in a mask one.": block_of(16, 17, 18),
        "In 16 bits a number takes two bytes.": block_of(66, 68, 272),
        "A mask has one byte a number; what `attend` gives is the input of `out`.": block_of(36),
        "A mask has one byte a number, not one bit.": [
            "(2 * 16 + 2) * tokens * width => 32 * tokens * width + 2 * tokens * width // 8",
            *block_of(32.25),
        ],
        "What GELU gives is the input of `down`: one tensor.": block_of(42),
        "An addition saves nothing, and the input of `qkv` is one tensor.": block_of(38),
        "Each dropout saves its mask, each norm and each Linear layer its input.": block_of(32, 33),
        "GELU's input and result have four widths each; q, k, v one each.": block_of(22, 26, 28),
        "Each norm saves its input; a query, a key and a value are three widths.": block_of(24, 30),
        HEADS: ("layers, heads=0 => layers", "5 * heads => 0"),
        "Without `heads`, no scores are stored: its default is 0.": "heads=0 => heads=1",
        NO_HEADS: "5 * heads => 5 * heads * (width // heads) / width",
        "Two masks and `up`'s input have one width each; q, k, v count once.": block_of(35, 37, 40),
        "A block saves so much for each token, and no weights: tokens times width.": [
            "block = => block = 24 * width**2 +",
            "* tokens * => * ",
            "* width => * width**2",
            "tokens * width => (tokens * width)**2",
        ],
        "Each block saves its share, scores as well.": [
            f"layers * (block + scores) => {each}block + scores" for each in ("", "layers * ")
        ],
        "Each head has a score for each pair of tokens, on top.": [
            "block + scores => (scores if heads else block)",
            "block + scores => block * max(heads, 1)",
            "tokens**2 => tokens",
            "heads * => 0 *",
            "heads * => ",
            "heads * => (heads > 0) *",
            "heads * => (heads and 1 / heads) *",
        ],
        "Each token has a score with each token: tokens times tokens.": [
            f"tokens**2 => tokens * (tokens + {end}"
            for end in ("-1) / 2", "0) / 2", "1) / 2", "-1)", "1)")
        ],
        "A score is one number, whatever the width.": [
            *(f"**2 => {size}" for size in ("**2 * width", "* width")),
            "heads * tokens => (heads > 0) * width * tokens",
            "5 * heads => 5 * (width // heads if heads else 0)",
        ],
        "The heads share the width: their number counts for scores alone.": [
            f"block = => block = max(heads, 1) ** {power} *" for power in (1, -1)
        ],
        "A plain attention has queries, keys, values and a result, too.": [
            f"+ scores => + scores - {size} * tokens * width * (heads > 0)" for size in (2, 6, 8)
        ],
        "A score takes five bytes: two, a mask of one, two.": [
            f"5 * heads => {size} * heads" for size in (1, 2, 3, 4, 6, 7, 10)
        ],
    },
    also_right=["return layers => return 1.0 * layers"],
)

# 3. The account of a whole step


def my_account(states, tokens, width, layers, words, kept, chunks):
    """Every block keeps its share. On top comes the largest of three.

    It is a chunk's logits in float32, its two gradients in 16 bits, or what a block makes again.
    """
    numbers = tokens * width
    logits = tokens * words / chunks
    of_last = 2 * (logits + words * width)
    again = (34 - kept) * numbers
    return states + layers * kept * numbers + max(12 * logits, of_last, again)


PEAK = "max(12 * logits, of_last, again)"
LOSS = "max(12 * logits, of_last)"
STAY = "layers * kept * numbers"
ALL = f"{STAY} + {PEAK}"
WHOLE = "(kept < 34) * 34 * numbers"


check_account = Exercise(
    my_account,
    read_again='"Does it fit?"',
    cases=[
        (100, 2, 1, 2, 1, 34, 1),
        *((1000, 4, 8, 3, *rest) for rest in product((10, 100), (34, 22, 2), (1, 4))),
    ],
    given="states, tokens, width, layers, words, kept, chunks = {}, {}, {}, {}, {}, {}, {}",
    hint=unit_or("What is live when the loss is made, `last` goes back, a block has run again?"),
    errors={"positional argument": "Keep the seven arguments of the stub, in their order."},
    wrong={
        UNIT: f"states + {ALL} => (states + {ALL}) / 1e6",
        "The logits are gone before a block runs again: the largest has to fit.": [
            *(f"{PEAK} => {LOSS} + {more}" for more in ("again", WHOLE)),
            "of_last, => of_last +",
        ],
        "What the block that runs again has kept is there already: it is there once.": [
            f"{PEAK} => max({LOSS}, {WHOLE})",
            "layers * kept => (layers - (kept < 34)) * kept",
            f"{ALL} => (layers + (kept < 34)) * kept * numbers + max({LOSS}, {WHOLE})",
            f"{ALL} => (layers - (kept < 34)) * kept * numbers + max({LOSS}, {WHOLE})",
        ],
        "A block that runs again is whole until it has gone back.": f"{PEAK} => {LOSS}",
        "What all blocks keep is there, also while one runs again.": [
            f"{ALL} => (max({WHOLE}, {LOSS}) if kept < 34 else layers * 34 * numbers + {LOSS})",
            f"{ALL} => ((34 if kept < 34 else layers * 34) * numbers + {LOSS})",
            f"{ALL} => max({WHOLE}, {STAY} + {LOSS})",
            f"{ALL} => max({STAY} + again, {LOSS} + (kept > 33) * {STAY})",
        ],
        "When the loss is made, every block keeps something, and the logits come on top.": [
            f"{PEAK} => (again if kept < 34 else {LOSS})",
            f"{ALL} => max({STAY} + again, {LOSS})",
            "layers * kept => kept",
        ],
        "One block at a time runs again.": f"{PEAK} => max({LOSS}, layers * again)",
        "`kept` of the 34 bytes a token and width stay, in each block.": [
            *(f"layers * kept => layers * {size}" for size in (2, 34, "kept * 2", "(34 - kept)")),
            "layers * kept => layers * kept / 34",
        ],
        "Where `kept` is 34, nothing runs again; else 34 - `kept` bytes are made again.": [
            f"34 - kept => {size}" for size in (34, 32, "kept")
        ],
        "A whole block has 34 bytes a token and width: its two masks count, too.": "34 => 32",
        "A block keeps its share for each token and each number of the width.": [
            f"tokens * width => {size}" for size in ("tokens", "width", "tokens * width**2")
        ],
        "At its peak, the loss has three tensors of float32: 12 bytes a logit.": [
            f"12 * => {size} *" for size in (2, 3, 4, 6, 8, 16)
        ],
        "Each token has a logit for each word.": [
            f"tokens * words => {size}"
            for size in ("tokens", "words", "width * words", "tokens * width")
        ],
        "One chunk at a time has its logits.": [f" / chunks => {end}" for end in ("", "* chunks")],
        "The loss goes in chunks, the blocks do not.": [
            "kept * numbers => kept * numbers / chunks",
            f"{PEAK} => max(chunks * {LOSS}, again) / chunks",
        ],
        "The loss is made once, not in each block.": f"{ALL} => layers * (kept * numbers + {PEAK})",
        "The states are there all the time.": [
            "states + => ",
            "states + => (kept > 33) * states +",
            f"states + {ALL} => max(states, {STAY}, {LOSS})",
        ],
        "When a chunk goes back, there are two 16-bit gradients: of its logits, of `last`.": [
            f"of_last, => {of}" for of in ("", "2 * logits,", "2 * words * width,")
        ],
        "Leave out `hidden`, 16-bit logits.": [f"{PEAK} => {PEAK} + 2 * numbers", "12 * => 14 *"],
        "`states` are bytes already.": [f"states + => {each} * states +" for each in (2, 16)],
    },
    also_right=[
        " / chunks => // chunks",
        "tokens * words / chunks => words * (tokens // chunks)",
        f"{ALL} => max({STAY} + {LOSS}, numbers * (kept * layers + 34 - kept))",
    ],
)
