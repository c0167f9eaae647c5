"""Exercises of page `context_parallelism`: trade, gather, grid, bytes sent, keys without a mask."""

from functools import partial

import torch
import torch._dynamo  # an optimizer needs it: seconds that no attempt is to be charged for
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    call_for_numbers,
    expected_and_got,
    leaving_alone,
    same,
    short,
)
from mpcourse.exercises.long_sequences import WAIT_S, drawn
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import Counted, copy_to_ranks
from mpcourse.transformer.cut_tokens import _Trade

SAME_MESSAGES = "Do all ranks send the same messages, in one order?"
ONE_TENSOR = "Return one tensor, of the given dtype."

# 1. Tokens for heads

FIRST = "The n pieces lie along the first dimension: `torch.stack(x.chunk(n, cut))` (not `split`)."
FILLS = "`all_to_all_single` fills its first argument, and returns None."
KIND = "What receives needs the dtype of `x`: `torch.empty_like`."
GROUP = "Pass `group=group` to each message."
CUT_AND_JOIN = (
    "Cut along `cut`, send piece r to rank r alone, receive into another tensor than the one that "
    "is sent, and join what came along `join`."
)
OWN_TYPE = "The numbers have another dtype than `x`: send and return them in its own."
BYTES = "The result is right, the bytes are not: send each number once, only to the rank it is for."
CHANGED = "A given tensor was changed in place: leave it as it is."
NEVER_SENT = "Nobody sent these numbers: receive into the first argument, and wait for it."
STACKED = "torch.stack(x.chunk(group.size(), cut)) => "
VIEW = (
    "[*received], join) => [*received]).view([size * group.size() if d == join else "
    "size // group.size() if d == cut else size for d, size in enumerate(x.shape)])"
)
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
                found.append(attempt(mine := x[group.rank()].double(), group, *dimensions))
            sent += counted.sent(ranks)
            if not torch.equal(mine, x[group.rank()].double()):
                raise NotYet(CHANGED)
        if not all(isinstance(one, torch.Tensor) for one in found):
            raise NotYet(f"got {short(found[0])}", ONE_TENSOR)
        if any(one.dtype != torch.float64 for one in found):
            raise NotYet(OWN_TYPE)
        return [*found, sent]

    traded, back, sent = zip(*ranks_in_threads(program, ranks, timeout_s=WAIT_S), strict=True)
    return {"traded": [*traded], "traded back": [*back], "bytes sent": [*sent]}


def of_numbers(outcome, expected):
    """What is wrong: the bytes, or what came."""
    if all(same(outcome[key], expected[key]) for key in ("traded", "traded back")):
        less = sum(outcome["bytes sent"]) < sum(expected["bytes sent"])
        return OWN_TYPE if less else BYTES
    known, found = (torch.cat([x.flatten() for x in y["traded"]]) for y in (expected, outcome))
    return CUT_AND_JOIN if torch.isin(found.double(), known).all() else NEVER_SENT


def all_of_all_ranks(x, group, cut, join):
    found = [torch.empty_like(x) for _ in range(group.size())]
    distributed.all_gather(found, x.contiguous(), group=group)
    return torch.cat(found, join)


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
    hint=of_numbers,
    wrong={
        "These pieces are this rank's own: use what was received.": "[*received] => [*pieces]",
        "Nothing was traded: cut, send, join.": [
            lambda x, *_: x,
            "distributed.all_to_all_single(received, pieces, group=group) => received = pieces",
        ],
        "Rank r gets neighbours, part r: `chunk` cuts so, and `unflatten` into (n, -1).": (
            "x.chunk(group.size(), cut) => x.unflatten(cut, (-1, group.size())).unbind(cut + 1)"
        ),
        OWN_TYPE: [
            "], join) => ], join).float()",
            ("x.chunk => x.float().chunk", "], join) => ], join).double()"),
        ],
        BYTES: [
            "received, pieces, group=group) => received, pieces, group=group); "
            "distributed.all_to_all_single(received, pieces, group=group)",
            lambda x, group, cut, join: torch.cat(
                [
                    one.chunk(group.size(), cut)[group.rank()]
                    for one in all_of_all_ranks(x, group, 0, 0).chunk(group.size())
                ],
                join,
            ),
        ],
        CHANGED: "return torch.cat => x.zero_(); return torch.cat",
        JOINED: ["*received => *received.flip(0)", "*received => *received.roll(-group.rank(), 0)"],
        "The pieces still lie on a dimension of their own: join them along `join`.": [
            "torch.cat([*received], join) => received",
            "torch.cat([*received], join) => torch.stack([*received], join)",
        ],
        "`torch.cat` without a dimension joins along the first: give it `join`.": "], join => ]",
        "A view or reshape keeps the order in memory, and so mixes pieces: use `torch.cat`.": VIEW,
        "`reshape` cuts memory, not a dimension: `chunk` cuts heads or tokens, as `cut` says.": [
            (STACKED + "x.reshape(group.size(), -1)", VIEW),
            STACKED + "x.reshape(group.size(), *x.chunk(group.size(), cut)[0].shape)",
        ],
        "Here ranks take turns. First comes all from rank 0, then all from rank 1, and so on.": (
            "torch.cat([*received], join) => received.movedim(0, join + 1).flatten(join, join + 1)"
        ),
        "This is one piece. All that came belongs to this rank: join all pieces.": (
            "torch.cat([*received], join) => received[group.rank()]"
        ),
        "All tokens, and all heads: keep this rank's part of the cut dimension.": all_of_all_ranks,
        "Right from tokens to heads. The way back has `cut` and `join` elsewhere: use both.": (
            "), cut) => ), 1)",
            "], join => ], 2",
        ),
        "Join along `join`, not along `cut`.": "], join => ], cut",
        "`cut` and `join` are exchanged.": ("), cut) => ), join)", "], join => ], cut"),
        FIRST[:-1]: (  # torch 2.11 raises no error of `errors`
            "torch.stack(x.chunk(group.size(), cut)) => x",
            "[*received] => received.chunk(group.size())",
        ),
        FILLS: "distributed.all => received = distributed.all",
        NEVER_SENT: (
            "empty_like(pieces) => full_like(pieces, -1.0)",
            "(received, p => (pieces, p",
            "pieces, pieces, => pieces, received,",
        ),
        GROUP: ", group=group => ",
        KIND: "empty_like(pieces) => empty(pieces.shape)",
    },
    errors={
        "Default process group": GROUP,
        "NoneType": FILLS,
        "dtypes": KIND,
        "contiguous": "A message lies in one piece in memory: `.contiguous()` makes it so.",
        "divide equally|Split sizes|Expected parameter": FIRST,
        "is invalid for input of size": "All pieces together are one `x`: `x.chunk(n, cut)` cuts.",
        "is not counted|is not registered": "Use `distributed.all_to_all_single`, with one tensor.",
        "equal size": "Cut into as many pieces as `group` has ranks.",
        "gloo|had not returned": SAME_MESSAGES,
    },
    also_right=[
        STACKED + "x.unflatten(cut, (group.size(), -1)).movedim(cut, 0).contiguous()",
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
NO_HOME = "Nothing brings gradients home: gather keys and values by `everywhere`."
BOOLEAN = "torch refuses a mask of whole numbers: pass `seen` as it is, true or false."
GRADIENTS = "The output is right, not each gradient: each query, key and value needs its own."
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


def over_ranks(attempt, axes, order, causal):
    """Outputs and gradients of all ranks, or of a grid's (rows, columns), and bytes sent."""
    rows, columns = axes if isinstance(axes, tuple) else (axes, 1)
    ranks = rows * columns
    pieces = torch.arange(4 * ranks).view(2 * ranks, 2)
    own = [[r, -1 - r] if order == "zigzag" else [2 * r, 2 * r + 1] for r in range(ranks)]
    places = [pieces[each].flatten() for each in own]
    if order == "any order":
        shuffled = torch.randperm(4 * ranks, generator=torch.Generator().manual_seed(0))
        places = [*shuffled.chunk(ranks)]
    heads = [2 * columns * each for each in (3, 1, 1, 3)]  # of each of the four
    *whole, gradient = drawn(ranks, *[(1, each, 4 * ranks, 3) for each in heads])

    def program(group, row=None):
        own = places[group.rank() * columns + row.rank() if row else group.rank()]
        mine = [each[:, :, own].clone().requires_grad_() for each in whole]
        with Counted() as counted:
            output = attempt(*mine, [*places], (group, row) if row else group, causal)
            if (kind := getattr(output, "dtype", output)) is not torch.float64:
                raise NotYet(f"got {short(kind)}", ONE_TENSOR)
            if output.shape != mine[0].shape:
                in_fewer_heads = output.shape[1] < mine[0].shape[1]
                words = STAY if not row else BACK if in_fewer_heads else TRADED
                raise NotYet(f"got {short(output)}", words)
            found = torch.autograd.grad(output, mine, gradient[:, :, own], allow_unused=True)
        pairs = zip(mine, found, strict=True)
        found = [torch.zeros_like(x) if each is None else each for x, each in pairs]
        sizes = [columns if each.kind == "all-to-all" else rows for each in counted.messages]
        sent = sum(each.sent(size) for each, size in zip(counted.messages, sizes, strict=True))
        return output.detach(), *found, torch.tensor(float(sent))

    found = zip(*ranks_in_threads(program, axes, timeout_s=WAIT_S), strict=True)
    names = "output", "query's gradient", "key's gradient", "value's gradient", "bytes sent"
    return dict(zip(names, map(torch.stack, found), strict=True))


def first_other(outcome, expected):
    pairs = {name: (outcome[name], right) for name, right in expected.items()}
    far = [each for each, (a, b) in pairs.items() if not same(a, b) or (a - b).abs().max() > 1e-10]
    return [f"wrong by more than 1e-10: {', '.join(far)}"] if far else []


def right_but(words, else_words):
    """What to say if only the bytes are wrong, if gradients are, or the output."""

    def hint(found, right):
        wrong = first_other(found, right)[0].split(": ")[1]
        return else_words if "output" in wrong else words if wrong == "bytes sent" else GRADIENTS

    return hint


NO_LIST = "list' and 'T|r' and 'list|list indices|'list' object has no attribute '(un|arg|sort|to)"
BY_NAME = {"compared": first_other, "same": lambda *both: not first_other(*both)}

check_gathered_keys = Exercise(
    my_gather,
    read_again='"Gathered keys"',
    cases=[
        (2, "order", False),
        (2, "order", True),
        (3, "zigzag", True),
        (2, "any order", True),
        (1, "order", True),
    ],
    given="{} rank(s), tokens in {}, causal={}",
    play=over_ranks,
    **BY_NAME,
    hint=right_but(ONCE, SEEN),
    wrong={
        "Where `causal` is true a token sees itself and those before it: that takes a mask.": (
            "attn_mask=seen => attn_mask=None"
        ),
        "Where `causal` is false a query sees all keys: pass no mask, or one that is all true.": (
            " if causal else None =>  if causal else theirs < -mine.unsqueeze(1)"
        ),
        "Values have to come from all ranks, as the keys do.": (
            "everywhere(value, group) => value.repeat(1, 1, group.size(), 1)"
        ),
        "The mask has to follow the keys: sort both into the order of the text, or none.": (
            "return attention(query, keys, values => "
            "order = theirs.argsort(); return attention(query, keys[:, :, order], "
            "values[:, :, order]"
        ),
        "Values belong to their keys: sort both, or none.": (
            "return attention(query, keys, values => order = theirs.argsort(); "
            "theirs = theirs[order]; return attention(query, keys[:, :, order], values"
        ),
        "Tokens go into the order of the text by `argsort`: index keys by `theirs.argsort()`.": (
            "return attention(query, keys, values => theirs = torch.cat(places); "
            "return attention(query, keys[:, :, theirs], values[:, :, theirs]",
            "(places)\n => (places).sort()[0]\n",
        ),
        "A triangle at the right edge of all keys fits the last rank alone: use `places`.": (
            "theirs <= mine.unsqueeze(1) => torch.ones("
            "len(mine), len(theirs), dtype=torch.bool).tril(len(theirs) - len(mine))"
        ),
        "In zigzag order later ranks hold early tokens, too: keep the keys of all ranks.": (
            "(query, keys, values, attn_mask=seen) => "
            "(query, *([keys, values] if seen is None else "
            "[each[:, :, : (group.rank() + 1) * len(mine)] for each in (keys, values)]), "
            "attn_mask=seen if seen is None else seen[:, : (group.rank() + 1) * len(mine)])"
        ),
        "A mask from token 0 on, as of `is_causal=True`, fits rank 0 alone: use `places`.": [
            "attn_mask=seen => is_causal=causal",
            "places[group.rank()] => places[0]",
        ],
        "Right while tokens lie in order: `torch.cat(places)` says where each key stands.": [
            COUNTED,
            (COUNTED, "mine, theirs = places[group.rank()]" + IN_A_ROW),
            "mine, theirs = places[group.rank()]" + IN_A_ROW,
            "theirs <= mine.unsqueeze(1) => torch.ones(len(mine), len(theirs)).tril(mine[0]) == 1",
        ],
        "`seen` is true or false. Numbers in a mask are added to the scores.": (
            "attn_mask=seen => attn_mask=seen if seen is None else seen.double()"
        ),
        BOOLEAN: "attn_mask=seen => attn_mask=seen if seen is None else seen.long()",
        "A row of the mask for each query, in their order: leave `mine` unsorted.": (
            "theirs <= mine.unsqueeze(1) => theirs <= mine.sort().values.unsqueeze(1)"
        ),
        "True is where a query sees a key.": "theirs <= mine => theirs > mine",
        "A query sees what stands before it, not after it.": "theirs <= mine => theirs >= mine",
        "Divide scores by the root of c, as `attention` does.": "n(query, k => n(query * 3**0.5, k",
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
        "Copies of a shared head lie side by side: `repeat_interleave`, not `repeat`.": [
            BOTH + "*(everywhere(x, group).repeat(1, 3, 1, 1) for x in (key, value)),",
            BOTH + "*(everywhere(x.repeat(1, 3, 1, 1), group) for x in (key, value)),",
        ],
        A_ROW: "theirs <= mine.unsqueeze(1) => theirs.unsqueeze(1) <= mine",
        GROUP: "everywhere(key, group) => everywhere(key, None)",
        "Scores are of queries with keys: keys come before values.": (
            "(query, keys, values, => (query, values, keys,"
        ),
        "Values are gathered from `value`, not from `key`.": (
            "everywhere(value, group) => everywhere(key, group)"
        ),
        "Keys come from `key`, not from `value`.": (
            "everywhere(key, group) => everywhere(value, group)"
        ),
        ONE_TENSOR: "attn_mask=seen) => attn_mask=seen).float()",
        HOME: "everywhere(key, group) => everywhere(key.detach(), group)",
        NO_HOME: lambda query, key, value, places, group, causal: my_gather(
            query.detach(), key.detach(), value.detach(), places, group, causal
        ),
        "`torch.cat` joins it": "mine.unsqueeze(1) => places.unsqueeze(1)",
    },
    errors={
        "does not require grad|is not counted": NO_HOME,
        "attn_mask dtype": BOOLEAN,
        "dimension 1": "Heads of queries share heads of keys: `attention` knows, `sdpa` does not.",
        "the size of tensor|expanded size|broadcast": A_ROW,
        "Default process group|'NoneType' object has no attribute 'size'": GROUP,
        "Explicit attn_mask": "Pass `seen` alone: torch takes a mask or `is_causal`, never both.",
        NO_LIST: "`places` is a list: own ones are at `group.rank()`, `torch.cat` joins it.",
        "gloo|had not returned": SAME_MESSAGES,
    },
    also_right=["mine.unsqueeze(1) => mine[:, None]"],
)

# 3. A grid of ranks

Trade, gather = _Trade, my_gather
OF_ROWS = "A rank of a column holds the tokens of its whole row: the mask needs all their places."
TRADED = "Trade queries, keys and values along the row, all three."
FEWEST = "The result is right. Other bytes travel: first trade along the row, then gather."
IN_TURN = "Trade along the row, gather along the column with the places of rows, trade back."
PAIR = "`groups` is (column, row): ranks of a row trade, ranks of a column gather."
WITHIN = "Messages stay in a row or in a column: pass these groups, not the one of all ranks."
BACK = "Trade the output back along the row: cut tokens (2), join heads (1)."


def my_grid(query, key, value, places, groups, causal):
    """After the trade a rank has all tokens of its row, in the order of the row's ranks.

    So for the gather along a column each row counts as one rank, with the places of all its tokens.
    """
    column, row = groups
    rows = [torch.cat(places[i : i + row.size()]) for i in range(0, len(places), row.size())]
    inside = [Trade.apply(each, row, 1, 2) for each in (query, key, value)]
    return Trade.apply(gather(*inside, rows, column, causal), row, 2, 1)


check_grid = Exercise(
    my_grid,
    read_again='"More ranks than heads"',
    cases=[
        ((2, 2), "order", False),
        ((2, 2), "order", True),
        ((2, 3), "order", True),
        ((3, 2), "zigzag", True),
    ],
    given="a grid of {} (rows, columns), tokens in {}, causal={}",
    play=over_ranks,
    **BY_NAME,
    hint=right_but(FEWEST, IN_TURN),
    wrong={
        "Pass `causal` on.": [
            "column, causal) => column, False)",
            "column, causal) => column, True)",
        ],
        "A row is ranks i to i + row.size() - 1: list their places, for each row its own.": [
            "places[i : i + row.size()]) for i in range(0, len(places), row.size()) => "
            "places[i :: column.size()]) for i in range(column.size())",
            "places[i : i + row.size()]) for i in range(0, len(places), row.size()) => "
            "places[i :: row.size()]) for i in range(row.size())",
            "rows, column => column.size() * [rows[column.rank()]], column",
        ],
        PAIR: "column, row = groups => row, column = groups",
        "Right while tokens lie in order: take what `places` says.": (
            "rows = [ => rows = [*torch.arange(sum(map(len, places))).chunk(column.size())]; _ = ["
        ),
        "The places of a row stay in the order of its ranks, as the trade joins the tokens.": (
            "torch.cat(places[i : i + row.size()]) => "
            "torch.cat(places[i : i + row.size()]).sort()[0]"
        ),
        OF_ROWS: [
            "rows, column => places, column",
            "rows, column => places[row.rank() :: row.size()], column",
        ],
        "First cut heads (1) and join tokens (2); the way back has them exchanged.": (
            "each, row, 1, 2) => each, row, 2, 1)",
            "causal), row, 2, 1) => causal), row, 1, 2)",
        ),
        "A row begins every row.size() ranks: that is the step of the range.": (
            "range(0, len(places), row.size()) => range(column.size())"
        ),
        "Queries have to meet the keys of all rows: trade along the row first.": (
            lambda query, key, value, places, groups, causal: my_gather(
                query, key, value, places[: groups[0].size()], groups[0], causal
            )
        ),
        TRADED: ("(*inside, => (*inside[:2], value,", "inside[:2] => inside[:2]"),
        BACK: [
            "return Trade.apply(gather(*inside, rows, column, causal), row, 2, 1) => "
            "return gather(*inside, rows, column, causal)",
            "row, 2, 1) => column, 2, 1)",
            "row, 2, 1) => row, 1, 2)",
        ],
        WITHIN: "rows, column, causal) => rows, distributed.group.WORLD, causal)",
        "`is_causal` fits the first row alone: leave the mask to `gather`, with places.": (
            "gather(*inside, rows, column, causal) => attention(inside[0], "
            "*(everywhere(each, column) for each in inside[1:]), is_causal=causal)"
        ),
        "Nothing was gathered: queries meet keys of the other rows, too.": (
            "gather(*inside, rows, column, causal) => attention(*inside, is_causal=causal)"
        ),
    },
    errors={
        "Expected size for": TRADED,
        "Default process group|'NoneType' object has no attribute 'size'": WITHIN,
        "require grad|Trade' object": "Call `Trade.apply`: it alone trades gradients, too.",
        "must match the size|the size of tensor|expanded size|broadcast|out of range": OF_ROWS,
        "dimension 1|must divide the number": TRADED,
        "tuple of Tensors|as element 0": "`gather` takes a list: for each row one `torch.cat`.",
        "'tuple' object": "`groups` is a pair: `column, row = groups`.",
        "divide equally|invalid gradient": "First cut heads (1), join tokens (2); then back.",
        "gloo|had not returned": SAME_MESSAGES,
    },
    also_right=[
        "[torch.cat(places[i : i + row.size()]) for i in range(0, len(places), row.size())] => "
        "torch.stack([*places]).view(column.size(), -1).unbind()",
    ],
)

# 4. What a rank sends

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
        "The order is ring, trade, gather.": [
            "return ring, trade, 2 * others * block => return 2 * others * block, trade, ring",
            "return ring, trade => return trade, ring",
            "return ring, trade, 2 * others * block => return ring, 2 * others * block, trade",
        ],
        "Ring: a block's gradients go home at last, n times.": "3 * ranks - 2 => 3 * others",
        "Ring: keys and values travel n - 1 times each way.": "3 * ranks - 2 => 3 * ranks",
        "Ring: backward, too, keys and values travel n - 1 times.": "ranks - 2 => ranks - 1",
        "Ring: backward, keys and values go round again, too.": "3 * ranks - 2 => 2 * ranks - 1",
        "Ring: backward both go round, a block and its gradients.": [
            "3 * ranks - 2 => 2 * others",
            "3 * ranks - 2 => others",
        ],
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
            "- 2) * block => - 2) * 2 * rows * width",
            "2 * rows * width + block => 4 * rows * width",
            "2 * others * block => 4 * others * rows * width",
        ],
        "Trade: a rank keeps an n-th of each tensor, and sends the rest.": [
            " * others / ranks => ",
            "others / ranks => others",
        ],
        "Trade: backward the gradients of all four tensors travel.": "trade = 2 * => trade = ",
        "Trade: the output is traded back, too.": "2 * rows * width => rows * width",
        "Trade: queries and outputs travel, too.": "2 * rows * width + block => block",
        "Trade: keys and values, both.": "width + block => width + block / 2",
        "Gather: a rank has its own block: n - 1 travel each way.": "2 * others => 2 * ranks",
        "Gather: keys and values, and backward their gradients.": "2 * others => others",
    },
    also_right=[lambda *sizes: torch.tensor(my_sent(*sizes)).long()],
)

# 5. Attention without a mask

TWO = "Return two tensors of the given dtype: the output, and the log-sum of all keys met."
LAST = "Own keys are the last ones, as many as queries: from key.shape[2] - query.shape[2] on."
NO_KEYS = "The first piece has no earlier keys: there one call is all."
WEIGHTS = "A block's weight is exp(its own log-sum - the log-sum of both)."
LARGE = "exp(a log-sum) is no number for large scores: first subtract the log-sum of both."
HELD = "Scores or a mask of all keys were held: call `flash` for two blocks; it holds neither."
ALONG = "Tokens lie along dimension 2: `key[:, :, first:]`, values alike; queries stay whole."
BROAD = "A log-sum has no dimension for the c numbers of an output: `.unsqueeze(-1)` gives it one."


def flash(query, key, value, causal):
    """(output, log_sum) of torch's kernel for CPUs."""
    shapes = [tuple(x.shape) for x in (query, key, value)]
    assert all(x.numel() for x in (query, key, value)), f"this would end the process: {shapes}"
    assert key.shape == value.shape, f"keys and values differ in shape: {shapes}"
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, causal)


def my_no_mask(query, key, value):
    """A query sees all keys before the piece, and of the piece's own keys those up to itself.

    So the kernel is called twice: with `causal` for the own keys, without it for the earlier ones.
    The log-sums merge both outputs, as in a ring. The first piece has no earlier keys.
    """
    first = key.shape[2] - query.shape[2]
    output, log_sum = flash(query, key[:, :, first:], value[:, :, first:], True)
    if first:
        earlier, log_earlier = flash(query, key[:, :, :first], value[:, :, :first], False)
        both = torch.logaddexp(log_sum, log_earlier)
        output = output * (log_sum - both).exp().unsqueeze(-1)
        output = output + earlier * (log_earlier - both).exp().unsqueeze(-1)
        log_sum = both
    return output, log_sum


class Seen(TorchDispatchMode):
    """The shapes, in their last two dimensions, of the tensors that were made."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.shapes.add(tuple(found.shape[-2:]))
        return found


def of_the_last(attempt, queries, tokens, scale):
    """Output and log-sum of the queries of the last of these tokens."""
    shapes = [(2, 3, count, 4) for count in (queries, tokens, tokens)]
    given = [scale * each for each in drawn(tokens, *shapes)]
    with Seen() as seen:
        found = leaving_alone(CHANGED)(attempt, *given)
    kinds = isinstance(found, tuple | list) and [getattr(x, "dtype", x) for x in found]
    if kinds != 2 * [torch.float64]:
        raise NotYet(f"got {short(kinds or found)}", TWO)
    if (queries, tokens) in seen.shapes:
        raise NotYet(HELD)
    if scale > 1 and any(not x.isfinite().all() for x in found):
        raise NotYet(LARGE)
    return dict(zip(("output", "log_sum"), found, strict=True))


def by_softmax(query, key, value):
    first = key.shape[2] - query.shape[2]
    blocks = [(slice(first), False)] * (first > 0) + [(slice(first, None), True)]
    found = [flash(query, key[:, :, k], value[:, :, k], own) for k, own in blocks]
    outputs, log_sums = map(torch.stack, zip(*found, strict=True))
    return (log_sums.softmax(0).unsqueeze(-1) * outputs).sum(0), log_sums.logsumexp(0)


def with_a_mask(query, key, value):
    last = torch.arange(key.shape[2])
    hidden = last > last[-query.shape[2] :].unsqueeze(1)
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


ONCE_FOR_ALL = "first = key.shape[2] - query.shape[2] => first = 0"
UNWEIGHTED = (
    "output * (log_sum - both).exp().unsqueeze(-1) => output",
    "earlier * (log_earlier - both).exp().unsqueeze(-1) => earlier",
)

check_no_mask = Exercise(
    my_no_mask,
    read_again='"What does a mask cost?"',
    cases=[(2, 5, 1), (3, 12, 1), (5, 5, 1), (3, 12, 40)],
    given="queries of the last {} of {} tokens, numbers drawn and multiplied by {}",
    play=of_the_last,
    **BY_NAME,
    hint="Own keys with `causal`, earlier ones without; merge by log-sums: weights of sum 1.",
    wrong={
        "A triangle from key 0 on fits the first piece alone: call the kernel for two blocks.": (
            ONCE_FOR_ALL
        ),
        "Among the piece's own keys a query sees itself and those before it: `causal` there.": [
            ", True) => , False)",
            (ONCE_FOR_ALL, ", True) => , False)"),
        ],
        "All queries of the piece see all earlier keys: no `causal` there.": ", False) => , True)",
        "`causal` is exchanged: it belongs to the piece's own keys.": (
            ", True) => , 1 == 0)",
            ", False) => , True)",
        ),
        "The keys before the piece are missing.": "if first: => if False:",
        "Earlier keys end before place `first`: no key is met twice.": ":first] => : first + 1]",
        "A sum of two outputs is none: each needs its weight, exp(own log-sum - both's).": (
            UNWEIGHTED
        ),
        "Half of each is right only if both log-sums are equal: weigh the outputs by them.": (
            *UNWEIGHTED,
            "        log_sum = both =>         log_sum, output = both, output / 2",
        ),
        "The weights are exchanged: each output goes with its own log-sum.": (
            "output * (log_sum - => output * (log_earlier -",
            "earlier * (log_earlier - => earlier * (log_sum -",
        ),
        WEIGHTS: [
            "both).exp() => both)",
            (
                "(log_sum - both).exp() => (log_sum / (log_sum + log_earlier))",
                "(log_earlier - both).exp() => (log_earlier / (log_sum + log_earlier))",
            ),
            " - both).exp() => ).exp()",
            " - both).exp() =>  - both + 1e-8).exp()",
            (
                "(log_sum - both).exp() => (both - log_sum).exp()",
                "(log_earlier - both).exp() => (both - log_earlier).exp()",
            ),
        ],
        LARGE: (
            "= torch.logaddexp(log_sum, log_earlier) => = (log_sum.exp() + log_earlier.exp()).log()"
        ),
        HELD: with_a_mask,
        "The log-sum of both blocks is log(exp(a) + exp(b)): `torch.logaddexp(a, b)`.": [
            "torch.logaddexp(log_sum, log_earlier) => log_sum + log_earlier",
            "torch.logaddexp(log_sum, log_earlier) => torch.maximum(log_sum, log_earlier)",
        ],
        "The output is right; its log-sum is that of both blocks.": [
            "        log_sum = both => ",
            "        log_sum = both =>         log_sum = log_earlier",
            "        log_sum = both =>         log_sum = log_sum + log_earlier",
        ],
        "The output comes first, then the log-sum.": "output, log_sum\n => log_sum, output\n",
        "Return the log-sum as (N, heads, queries).": "log_sum\n => log_sum.unsqueeze(-1)\n",
        TWO: [f"return output, log_sum => return output{it}" for it in ("", ".float(), log_sum")],
        CHANGED: "return output, => key.zero_(); return output,",
        "Return the logarithm of the sum, not the sum itself.": (
            "return output, log_sum => return output, log_sum.exp()"
        ),
        LAST: ["first:] => : query.shape[2]]", "first:] => :]", "key.shape[2] - query => query"],
        "Values belong to their keys: cut both at the same place.": [
            "value[:, :, first:] => value[:, :, : query.shape[2]]",
            "key[:, :, first:] => key[:, :, : query.shape[2]]",
        ],
        NO_KEYS: "if first: => if True:",
        ALONG: "[:, :, first => [:, first",
        BROAD: ".unsqueeze(-1) => ",
    },
    errors={
        "the size of tensor": BROAD,
        r"\[\(2, 3, 5, 4\), \(2, 3, 0, 4\)": NO_KEYS,
        "would end the process|same head size": ALONG,
        "differ in shape": "A value belongs to its key: cut both alike.",
        "too many values|not enough values": "The kernel returns two: the output, and its log-sum.",
    },
    also_right=[by_softmax],
)
