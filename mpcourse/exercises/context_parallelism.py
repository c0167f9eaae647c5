"""Exercises of page `context_parallelism`: tokens traded for heads, keys gathered, bytes sent."""

from functools import partial

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import distributed, nn

from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    call_for_numbers,
    expected_and_got,
    same,
    short,
)
from mpcourse.exercises.long_sequences import WAIT_S, drawn
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import Counted, copy_to_ranks

SAME_MESSAGES = "Do all ranks send the same messages, in one order?"
ONE_TENSOR = "Return one tensor."

# 1. Tokens for heads

FIRST = "The n pieces lie along the first dimension: `torch.stack(x.chunk(n, cut))` (not `split`)."
FILLS = "`all_to_all_single` fills its first argument, and returns None."
KIND = "What receives needs the dtype of `x`: `torch.empty_like`."
GROUP = "Pass `group=group` to each message."
JOINED = "Join what came along `join`, in the order of the ranks."


def my_trade(x, group, cut, join):
    """Piece r is for rank r, so the pieces are stacked along a first dimension of their own.

    What comes from rank r is entry r of the result; these are joined along the other dimension.
    """
    pieces = torch.stack(x.chunk(group.size(), cut))
    received = torch.empty_like(pieces)
    distributed.all_to_all_single(received, pieces, group=group)
    return torch.cat([*received], join)


def there_and_back(attempt, ranks, batch, heads, rows, columns):
    """What all ranks hold after a trade, after a trade back of other numbers; bytes sent."""
    shapes = (batch, heads, rows, columns), (batch, heads // ranks, rows * ranks, columns)
    each = [torch.arange(1.0, 1 + ranks * torch.Size(s).numel()).view(ranks, *s) for s in shapes]

    def program(group):
        found, sent = [], 0
        for x, dimensions in zip(each, ((1, 2), (2, 1)), strict=True):
            with Counted() as counted:
                found.append(attempt(x[group.rank()].double(), group, *dimensions))
            sent += counted.sent(ranks)
        if not all(isinstance(one, torch.Tensor) for one in found):
            raise NotYet(f"got {short(found[0])}", ONE_TENSOR)
        return [*found, sent]

    traded, back, sent = zip(*ranks_in_threads(program, ranks, timeout_s=WAIT_S), strict=True)
    return {"traded": [*traded], "traded back": [*back], "bytes sent": [*sent]}


def first_rank(outcome, expected):
    """Of what differs, the first, on its first rank."""
    for name, right in expected.items():
        for rank, pair in enumerate(zip(outcome[name], right, strict=True)):
            if not same(*pair):
                return [f"{name}, rank {rank}:", *expected_and_got(*pair)]


check_trade = Exercise(
    my_trade,
    read_again='"Tokens for heads"',
    cases=[(2, 1, 4, 2, 1), (3, 1, 9, 3, 2), (4, 3, 4, 5, 3), (1, 1, 2, 3, 1)],
    given="{} rank(s), batch {}, {} heads, {} tokens on each rank, {} numbers each; there and back",
    play=there_and_back,
    compared=first_rank,
    hint="Cut along `cut`, send piece r to rank r alone, and join what came along `join`.",
    wrong={
        "These pieces are this rank's own: go on with what was received.": (
            "[*received] => [*pieces]"
        ),
        "Nothing was traded: cut, send, join.": lambda x, *_: x,
        JOINED: ["*received => *received.flip(0)", "*received => *received.roll(-group.rank(), 0)"],
        "The pieces still lie on a dimension of their own: join them along `join`.": (
            "torch.cat([*received], join) => received"
        ),
        "Right from tokens to heads. The way back has `cut` and `join` elsewhere: use both.": (
            "), cut) => ), 1)",
            "], join => ], 2",
        ),
        "`cut` and `join` are changed over.": ("), cut) => ), join)", "], join => ], cut"),
        FIRST[:-1]: (  # torch 2.11 raises no error of `errors`
            "torch.stack(x.chunk(group.size(), cut)) => x",
            "[*received] => received.chunk(group.size())",
        ),
        FILLS: "distributed.all => received = distributed.all",
        GROUP: ", group=group => ",
        KIND: "empty_like(pieces) => empty(pieces.shape)",
    },
    errors={
        "Default process group": GROUP,
        "NoneType": FILLS,
        "dtypes": KIND,
        "contiguous": "A message lies in one piece in memory: `.contiguous()` makes it so.",
        "divide equally|Split sizes|Expected parameter": FIRST,
        "is not counted|is not registered": "Use `distributed.all_to_all_single`, with one tensor.",
        "gloo|had not returned": SAME_MESSAGES,
    },
    also_right=[
        "torch.stack(x.chunk(group.size(), cut)) => "
        "x.unflatten(cut, (group.size(), -1)).movedim(cut, 0).contiguous()",
        "torch.cat([*received], join) => received.movedim(0, join).flatten(join, join + 1)",
    ],
)

# 2. Gathered keys

SEEN = "Gather keys and values, both. A query sees a key whose place is not after its own."
ONCE = "Keys and values travel once, and their gradients: no more, in no other form."
STAY = "Queries stay: a rank returns what its own tokens collect."
A_ROW = "A mask has a row for each query and a column for each key: (T / n, T)."
COUNTED = "torch.cat(places) => torch.arange(keys.shape[2])"
ALL = "on(query, => on(everywhere(query, group),", "places[group.rank()] => torch.cat(places)"
IN_A_ROW = " => mine, theirs = group.rank() * len(places[0]) + torch.arange(len(places[0]))"
BOTH = "everywhere(key, group), everywhere(value, group) => "
HOME = "Keys and values need their gradients, from all ranks: gather them by `everywhere`."
sdpa = nn.functional.scaled_dot_product_attention
attention = partial(sdpa, enable_gqa=True)
everywhere = partial(copy_to_ranks, sequence=True)  # backward, gradients add up at home


def my_gather(query, key, value, places, group, causal):
    """All keys and values come here, in the order of the ranks; queries stay.

    So the mask compares places in the text.
    """
    keys, values = everywhere(key, group), everywhere(value, group)
    mine, theirs = places[group.rank()], torch.cat(places)
    seen = theirs <= mine.unsqueeze(1) if causal else None
    return attention(query, keys, values, attn_mask=seen)


def over_ranks(attempt, ranks, order, causal):
    """Outputs and gradients of all ranks, and bytes sent."""
    pieces = torch.arange(4 * ranks).view(2 * ranks, 2)
    own = [[r, -1 - r] if order == "zigzag" else [2 * r, 2 * r + 1] for r in range(ranks)]
    places = [pieces[each].flatten() for each in own]
    *whole, gradient = drawn(ranks, *[(1, heads, 4 * ranks, 3) for heads in (6, 2, 2, 6)])

    def program(group):
        own = places[group.rank()]
        mine = [each[:, :, own].clone().requires_grad_() for each in whole]
        with Counted() as counted:
            output = attempt(*mine, [*places], group, causal)
            if not isinstance(output, torch.Tensor):
                raise NotYet(f"got {short(output)}", ONE_TENSOR)
            if output.shape != mine[0].shape:
                raise NotYet(f"got {short(output)}", STAY)
            found = torch.autograd.grad(output, mine, gradient[:, :, own])
        return output.detach(), *found, torch.tensor(float(counted.sent(ranks)))

    found = zip(*ranks_in_threads(program, ranks, timeout_s=WAIT_S), strict=True)
    names = "output", "query's gradient", "key's gradient", "value's gradient", "bytes sent"
    return dict(zip(names, map(torch.stack, found), strict=True))


def first_other(outcome, expected):
    wrong = [name for name, right in expected.items() if not same(outcome[name], right)]
    return [f"wrong: {', '.join(wrong)}"]


check_gathered_keys = Exercise(
    my_gather,
    read_again='"Gathered keys"',
    cases=[(2, "order", False), (2, "order", True), (3, "zigzag", True), (1, "order", True)],
    given="{} rank(s), tokens in {}, causal={}",
    play=over_ranks,
    compared=first_other,
    hint=lambda found, right: ONCE if same(found["output"], right["output"]) else SEEN,
    wrong={
        "A mask from token 0 on, as of `is_causal=True`, fits rank 0 alone: use `places`.": [
            "attn_mask=seen => is_causal=causal",
            "places[group.rank()] => places[0]",
        ],
        "Right while tokens lie in order: `torch.cat(places)` says where each key stands.": [
            COUNTED,
            (COUNTED, "mine, theirs = places[group.rank()]" + IN_A_ROW),
        ],
        "`seen` is true or false. Numbers in a mask are added to the scores.": (
            "attn_mask=seen => attn_mask=seen if seen is None else seen.double()"
        ),
        "True is where a query sees a key.": "theirs <= mine => theirs > mine",
        "A token sees itself, too.": "theirs <= mine => theirs < mine",
        "Without `causal` each token sees all.": " if causal else None => ",
        "Queries meet the keys of all ranks: gather them.": (
            BOTH + "key, value",
            "torch.cat(places) => places[group.rank()]",
        ),
        STAY: ALL,
        "The result is right, and queries travelled for it: they stay.": [
            "return => everywhere(query, group); return",
            (*ALL, "=seen) => =seen).chunk(group.size(), 2)[group.rank()]"),
        ],
        "Copy shared heads after the gather: here copies travelled.": (
            BOTH + "*(everywhere(x.repeat_interleave(3, 1), group) for x in (key, value)),"
        ),
        "Copies of a shared head lie side by side: `repeat_interleave`, not `repeat`.": (
            BOTH + "*(everywhere(x, group).repeat(1, 3, 1, 1) for x in (key, value)),"
        ),
        A_ROW: "theirs <= mine.unsqueeze(1) => theirs.unsqueeze(1) <= mine",
        HOME: "everywhere(key, group) => everywhere(key.detach(), group)",
    },
    errors={
        "used in the graph|does not require grad|is not counted": HOME,
        "dimension 1": "Heads of queries share heads of keys: `attention` knows, `sdpa` does not.",
        "the size of tensor|expanded size|broadcast": A_ROW,
        "gloo|had not returned": SAME_MESSAGES,
    },
    also_right=["mine.unsqueeze(1) => mine[:, None]"],
)

# 3. What a rank sends

WAYS = {
    "The ring": "blocks of tokens / n rows, times how often they and their gradients are passed on",
    "The trade": "of each tensor a rank keeps an n-th; count tensors, and the trades back",
    "The gather": "others' blocks come once, and their gradients go once; queries and outputs stay",
}


def first_wrong(outcome, expected):
    """What is said of the first number that is wrong."""
    if not isinstance(outcome, list) or len(outcome) != len(WAYS):
        return "Return three numbers: ring, trade, gather."
    found = zip(WAYS.items(), outcome, expected, strict=True)
    return next(f"{name}: {said}." for (name, said), a, b in found if not same(a, b))


def my_sent(tokens, width, key_width, itemsize, ranks):
    """A ring passes a block on n - 1 times, backward again, and its gradients n times, home.

    A gather passes it on n - 1 times, and backward its gradients. A trade keeps an n-th of query,
    block and output, and backward of their gradients. One rank sends nothing.
    """
    rows = tokens / ranks * itemsize
    block, others = 2 * rows * key_width, ranks - 1
    ring = (3 * ranks - 2) * block if ranks > 1 else 0
    trade = 2 * (2 * rows * width + block) * others / ranks
    return ring, trade, 2 * others * block


check_sent = Exercise(
    my_sent,
    read_again='"What does each way send?"',
    cases=[(15, 10, 10, 8, 5), (100, 60, 20, 2, 5), (512, 64, 16, 4, 4), (512, 64, 16, 4, 1)],
    given="{} tokens, width {}, key width {}, {} bytes per number, {} rank(s)",
    play=call_for_numbers,
    hint=first_wrong,
    wrong={
        "Ring: a block's gradients go home at last, n times.": "3 * ranks - 2 => 3 * others",
        "Ring: backward, keys and values go round again, too.": "3 * ranks - 2 => 2 * ranks - 1",
        "Ring: backward both go round, a block and its gradients.": "3 * ranks - 2 => 2 * others",
        "Forward and backward together: in the backward the gradients travel, too.": (
            "3 * ranks - 2 => others",
            "trade = 2 * => trade = ",
            "2 * others => others",
        ),
        "Count what one rank sends: a block has its tokens, not all.": "tokens / ranks => tokens",
        "Each number has `itemsize` bytes.": [" * itemsize => ", " * itemsize => * itemsize * 8"],
        "One rank alone sends nothing.": " if ranks > 1 else 0 => ",
        "A block: keys and values.": [
            "block, others = 2 * => block, others = ",
            ("- 2) * block => - 2) * block / 2", "2 * others => others"),
        ],
        "With grouped keys a key and a value are `key_width` numbers each.": [
            "rows * key_width => rows * width",
            "2 * rows * width + block => 4 * rows * width",
        ],
        "Trade: a rank keeps an n-th of each tensor, and sends the rest.": " * others / ranks => ",
        "Trade: the output is traded back, too.": "2 * rows * width => rows * width",
        "Trade: keys and values, both.": "width + block => width + block / 2",
        "Gather: keys and values, and backward their gradients.": "2 * others => others",
    },
    also_right=[lambda *sizes: torch.tensor(my_sent(*sizes)).long()],
)
