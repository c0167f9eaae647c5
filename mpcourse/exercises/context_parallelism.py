"""Exercises of page `context_parallelism`: tokens traded for heads, keys gathered, bytes sent."""

from functools import partial

import torch
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

FIRST = (
    "`all_to_all_single` cuts along the first dimension: the n pieces have to lie there, as "
    "`torch.stack(x.chunk(n, cut))` puts them (`split` takes a size, `chunk` a number)."
)
FILLS = "`all_to_all_single` fills its first argument, and returns None."
KIND = "What receives needs the dtype of `x`: `torch.empty_like`."
GROUP = "Pass `group=group` to each message."
JOINED = "Join what came along `join`, in the order of the ranks."


def my_trade(x, group, cut, join):
    """Piece r is for rank r. An all-to-all takes the r-th entry of its input to rank r.

    So the pieces are stacked along a first dimension of their own. What comes from rank r is entry
    r of the result; these entries are joined along the other dimension.
    """
    pieces = torch.stack(x.chunk(group.size(), cut))
    received = torch.empty_like(pieces)
    distributed.all_to_all_single(received, pieces, group=group)
    return torch.cat([*received], join)


def there_and_back(attempt, ranks, batch, heads, rows, columns):
    """What all ranks hold after a trade, and after a trade back of other numbers; bytes sent."""
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
    """Of what differs, the first on rank 0."""
    name = next(name for name, right in expected.items() if not same(outcome[name], right))
    lines = expected_and_got(outcome[name][0], expected[name][0])
    return [f"{name}, rank 0:", *lines]


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
        JOINED: "[*received], join => [*received.flip(0)], join",
        "The pieces still lie on a dimension of their own: join them along `join`.": (
            "torch.cat([*received], join) => received"
        ),
        "Right from tokens to heads. The way back has `cut` and `join` elsewhere: use both.": (
            "), cut) => ), 1)",
            "], join => ], 2",
        ),
        "`cut` and `join` are changed over.": ("), cut) => ), join)", "], join => ], cut"),
        FIRST: (
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
        "is not counted": "Use `distributed.all_to_all_single`, with one tensor.",
        "gloo|had not returned": SAME_MESSAGES,
    },
    also_right=[
        "torch.stack(x.chunk(group.size(), cut)) => "
        "x.unflatten(cut, (group.size(), -1)).movedim(cut, 0).contiguous()",
        "torch.cat([*received], join) => received.movedim(0, join).flatten(join, join + 1)",
    ],
)

# 2. Gathered keys

A_ROW = "A mask has a row for each query and a column for each key: (T / n, T)."
COUNTED = "torch.cat(places) => torch.arange(keys.shape[2])"
IN_A_ROW = " => mine, theirs = group.rank() * len(places[0]) + torch.arange(len(places[0]))"
HOME = "Keys and values need their gradients, from all ranks: gather them by `everywhere`."
sdpa = nn.functional.scaled_dot_product_attention
attention = partial(sdpa, enable_gqa=True)  # heads of queries may share a head of keys


def everywhere(x, group):
    """All ranks' tokens, in the order of the ranks; the backward adds gradients up at home."""
    return copy_to_ranks(x, group, sequence=True)


def my_gather(query, key, value, places, group, causal):
    """All keys and values come here, in the order of the ranks, and queries stay.

    The rank's queries are a part of the text, so the mask has to compare places in the text. A
    query sees a key that stands at its own place or before.
    """
    keys, values = everywhere(key, group), everywhere(value, group)
    mine, theirs = places[group.rank()], torch.cat(places)
    seen = theirs <= mine.unsqueeze(1) if causal else None
    return attention(query, keys, values, attn_mask=seen)


def over_ranks(attempt, ranks, order, causal):
    """Outputs and gradients of all ranks."""
    tokens, heads = 4 * ranks, 4
    places = torch.arange(tokens).chunk(ranks)
    if order == "zigzag":
        pieces = torch.arange(tokens).chunk(2 * ranks)
        places = [torch.cat([pieces[r], pieces[-1 - r]]) for r in range(ranks)]
    counts = heads, 2, 2, heads  # of queries, keys, values, gradients
    *whole, gradient = drawn(ranks, *[(1, count, tokens, 3) for count in counts])

    def program(group):
        own = places[group.rank()]
        mine = [each[:, :, own].clone().requires_grad_() for each in whole]
        output = attempt(*mine, [*places], group, causal)
        if not isinstance(output, torch.Tensor):
            raise NotYet(f"got {short(output)}", ONE_TENSOR)
        if output.shape != mine[0].shape:
            words = f"got {short(output)}, and the queries have {tuple(mine[0].shape)}"
            raise NotYet(words, "Queries stay: a rank returns what its own tokens collect.")
        found = torch.autograd.grad(output, mine, gradient[:, :, own])
        return output.detach(), *found

    found = zip(*ranks_in_threads(program, ranks, timeout_s=WAIT_S), strict=True)
    names = "output", "query's gradient", "key's gradient", "value's gradient"
    return dict(zip(names, map(torch.stack, found), strict=True))


def first_other(outcome, expected):
    wrong = [name for name, right in expected.items() if not torch.allclose(outcome[name], right)]
    return [f"right: {', '.join(expected.keys() - {*wrong}) or 'nothing'}", f"wrong: {wrong[0]}"]


check_gathered_keys = Exercise(
    my_gather,
    read_again='"Gathered keys"',
    cases=[(2, "order", False), (2, "order", True), (3, "zigzag", True), (1, "order", True)],
    given="{} rank(s), tokens in {}, causal={}",
    play=over_ranks,
    compared=first_other,
    hint="Gather keys and values, both. A query sees a key whose place is not after its own.",
    wrong={
        "`is_causal=True` starts at this rank's first query: give a mask of places, `attn_mask`.": (
            "attn_mask=seen => is_causal=causal"
        ),
        "Right while tokens lie in order. `places` says where each rank's stand; keys come in the "
        "order of the ranks: `torch.cat(places)` says where each stands.": [
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
            "everywhere(key, group), everywhere(value, group) => key, value",
            "torch.cat(places) => places[group.rank()]",
        ),
        "Queries stay: a rank returns what its own tokens collect.": (
            "attention(query, => attention(everywhere(query, group),",
            "mine, theirs = places[group.rank()] => mine, theirs = torch.cat(places)",
        ),
        A_ROW: "theirs <= mine.unsqueeze(1) => theirs.unsqueeze(1) <= mine",
        HOME: "everywhere(key, group) => everywhere(key.detach(), group)",
    },
    errors={
        "used in the graph|does not require grad": HOME,
        "dimension 1": "Heads of queries share heads of keys: `attention` knows, `sdpa` does not.",
        "the size of tensor|expanded size|broadcast": A_ROW,
        "gloo|had not returned": SAME_MESSAGES,
    },
    also_right=["mine.unsqueeze(1) => mine[:, None]"],
)

# 3. What a rank sends

THREE = "Return three numbers: ring, trade, gather."
WAYS = {
    "The ring": "blocks of tokens / n rows, times how often they and their gradients are passed on",
    "The trade": "of each tensor a rank keeps an n-th; count tensors, and the trades back",
    "The gather": "every other rank's block comes round once, and its gradients go round once",
}


def first_wrong(outcome, expected):
    """What is said of the first number that is wrong."""
    if not isinstance(outcome, list) or len(outcome) != len(WAYS):
        return THREE
    found = zip(WAYS.items(), outcome, expected, strict=True)
    return next(f"{name}: {said}." for (name, said), a, b in found if not same(a, b))


def my_sent(tokens, width, key_width, itemsize, ranks):
    """A block is keys and values of tokens / n rows; in a ring it is passed on n - 1 times forward.

    Backward so is it, and its gradients n times, since they have to come home. A gather passes
    blocks on n - 1 times, and so does the reduce-scatter of its backward. A trade keeps an n-th of
    query, block and output, and its backward trades their gradients. One rank sends nothing.
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
        "Ring: in `way_home`, on page `long_sequences`, the gradients of a block go n times.": (
            "3 * ranks - 2 => 3 * others"
        ),
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
        "A block is keys and values, both.": "block, others = 2 * => block, others = ",
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
