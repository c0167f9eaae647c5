"""Exercises of page `cut_inside_a_layer`: parts of an MLP, its ends, heads, bytes sent."""

import time

import torch
from torch import distributed, nn

from mpcourse.exercises.exercise import (
    Exercise,
    NotAttempted,
    NotYet,
    first_difference,
    leaving_alone,
    same,
    short,
)
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import Counted
from mpcourse.transformer.tensor_parallel_functions import reduce_from_ranks  # noqa: F401


# 1. Which part is mine?
def my_parts(up_weight, up_bias, down_weight, rank, ranks):
    """A rank owns some inner numbers: what makes them, and what takes them.

    `nn.Linear` stores W as (out, in): a column of W is a row of `weight`. Down's bias comes last.
    """
    inner = len(up_bias)
    own = slice(rank * inner // ranks, (rank + 1) * inner // ranks)
    return up_weight[own], up_bias[own], down_weight[:, own]


def mlp(rank, ranks):
    up = torch.arange(24.0).reshape(6, 4)  # all numbers differ
    return up, torch.arange(100.0, 106), up.T + 200, rank, ranks


UP_COLUMNS = "up_weight[own] => up_weight.tensor_split(ranks, 1)[rank]"
DOWN_ROWS = "down_weight[:, own] => down_weight.tensor_split(ranks)[rank]"
BIAS = "up_bias[own] => up_bias"
UNCHANGED = "An input was changed: take parts, and leave what you are given as it is."

check_mlp_parts = Exercise(
    my_parts,
    read_again='"Which cut may come before GELU?"',
    cases=[mlp(0, 2), mlp(1, 2), mlp(2, 3), mlp(0, 1)],
    given="width 4, 6 inner numbers, rank {3} of {4}",
    play=leaving_alone(UNCHANGED),
    same=lambda got, right: same(got, right) and "array(" not in repr(got),
    hint="Three tensors, each of this rank's inner numbers alone (numpy loses gradients).",
    wrong={
        "nn.Linear stores W transposed: the columns of W are the rows of `weight`.": [
            (UP_COLUMNS, *more) for more in ((DOWN_ROWS,), (), (DOWN_ROWS, BIAS), (BIAS,))
        ],
        "Down is cut by rows of W: these are columns of its stored `weight`.": DOWN_ROWS,
        "These are halves: there may be more ranks than two, or one alone.": "// ranks => // 2",
        "Each output of `up` has its own number of the bias.": BIAS,
        "A rank has len(up_bias) // ranks inner numbers.": "len(up_bias) => up_weight.shape[1]",
        "Inner numbers are columns of `down_weight`: count `shape[1]`; `len` counts rows.": (
            "_weight[:, own] => _weight[:, slice(*(n * len(down_weight) // ranks "
            "for n in (rank, rank + 1)))]"
        ),
        UNCHANGED: (
            "return up_weight => given, up_weight = up_weight, up_weight.clone()\n    "
            "given.zero_()\n    return up_weight"
        ),
        "A bias is cut like the outputs, not divided.": [f"{BIAS} / ranks", f"{BIAS}[own] / ranks"],
        "The sum would be right, but neighbours belong together here: one day they are a head.": (
            "slice(rank * inner // ranks, (rank + 1) * inner // ranks) => slice(rank, None, ranks)"
        ),
        "Down is cut, too: it takes the numbers that are here.": "[:, own] => ",
        "Each rank adds the bias of its own numbers.": "up_bias[own] => up_bias[own] * (rank == 0)",
        "Down is cut, not divided: addends add up.": "_weight[:, own] => _weight[:, own] / ranks",
        "As the arguments come: up's weight, up's bias, down's weight.": [
            "return up_weight[own], up_bias[own], => return up_bias[own], up_weight[own],",
            "up_bias[own], down_weight[:, own] => down_weight[:, own], up_bias[own]",
            "return => return down_weight[:, own], up_bias[own], up_weight[own]\n    return",
        ],
        "One part of each: of all `ranks` parts, that of this rank.": (
            *("[own] => .chunk(ranks)", "[:, own] => .chunk(ranks, 1)"),
        ),
        "A rank begins where the one before it ends: after `rank` whole parts.": (
            "slice(rank * inner // ranks, (rank + 1) * => slice(rank, rank +"
        ),
        "Leave the parts as they are stored, (outputs, inputs): do not transpose them.": (
            *("up_weight[own] => up_weight[own].T", "down_weight[:, own] => down_weight[:, own].T"),
        ),
        "Down's part alone is transposed: leave it as it is stored.": "[:, own] => [:, own].T",
        "Three parts: the bias of `up` is cut, too.": "up_bias[own], => ",
    },
)

# 2. The two ends of a cut layer
NAMES = "output", *(f"gradient of {each}" for each in ("x", "up", "the bias of up", "down"))
IN_PLACE = "`all_reduce` replaces what it is given: sum a copy, as others may still hold the {}."
ONE_EACH = "A `backward` returns one thing for each argument of `forward` after ctx: here two."
ORDER = "In the order of `forward`'s arguments: the gradient first, then None for the group."
BACK = "MyLeave.apply => reduce_from_ranks"
MEAN = "return total => return total / group.size()"
NOT_SENT = "On the way in, nothing is sent: all have `x`. On the way out, all get the sum."
LATE = "With async_op=True the sum comes later: call `wait()` on what it returns, then go on."
BY_NAME = "`all_reduce` takes the operation second: name the group, as in `group=group`."
ENOUGH = "Right numbers, but one message forward and one backward are enough."
TO_ONE = "`reduce` gives the sum to one rank alone: here all ranks need it."
KEEP_GROUP = "In `forward`, keep the group for the backward: `ctx.group = group`."


def my_ends():
    """What all ranks are given alike is summed backward; what is summed is given back alike.

    x went into all parts: its gradient is a sum. An addend went in once: it gets that of the sum.
    """

    class MyEnter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            ctx.group = group
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return MyLeave.apply(gradient, ctx.group), None

    class MyLeave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            total = x.clone()
            distributed.all_reduce(total, group=group)
            return total

        @staticmethod
        def backward(ctx, gradient):
            return gradient, None

    return MyEnter, MyLeave


def in_a_cut_mlp(ends, ranks):
    """Of each rank, by name: the output, the gradients of x and of the parts."""
    into, out_of = ends
    if not all(torch.autograd.Function in getattr(each, "__mro__", ()) for each in ends):
        raise NotYet("Both are classes: each is a `torch.autograd.Function`.")
    draw, inner = torch.Generator().manual_seed(ranks), 6 // ranks
    shapes = (1, 2), (1, 2), *((inner, 2), (inner,), (2, inner)) * ranks
    x, dy, *parts_of_all = (torch.randn(*shape, generator=draw).double() for shape in shapes)

    def program(group):
        parts = parts_of_all[3 * group.rank() :][:3]
        leaves = [t.clone().requires_grad_() for t in (x, *parts)]
        with Counted() as counted:
            entered = into.apply(leaves[0], group)
            if entered is ...:
                raise NotAttempted
            addend = nn.functional.gelu(entered @ leaves[1].T + leaves[2]) @ leaves[3].T
            seen, last = [], group.rank() == ranks - 1 > 0  # the others would go on before it sends

            def note(words, tensor):
                time.sleep(0.1 * last)
                if tensor is not None:
                    seen.append((words, tensor, tensor.detach().clone()))

            note(IN_PLACE.format("addend"), addend)
            if entered.requires_grad:
                entered.register_hook(lambda g: note(IN_PLACE.format("gradient"), g))
            output = out_of.apply(addend, group)
            if output is ...:
                raise NotAttempted
            note(LATE, output)
            found = torch.autograd.grad(output, leaves, dy, allow_unused=True)
            note(LATE, found[0])
        distributed.barrier(group)
        for words, now, before in seen:
            if not torch.equal(now, before):
                raise NotYet(words)
        found = [output.detach(), *found, max(2, len(counted.messages))]  # one rank may send none
        return zip([*NAMES, "messages"], found, strict=True)

    by_rank = enumerate(ranks_in_threads(program, ranks, timeout_s=5.0))  # some may not send
    return {f"rank {rank}, {name}": each for rank, found in by_rank for name, each in found}


check_ends = Exercise(
    my_ends,
    values=True,
    read_again='"The output is right. Is the gradient?"',
    cases=[(2,), (1,), (3,)],
    given="a cut MLP on {} rank(s)",
    play=in_a_cut_mlp,
    compared=first_difference,
    hint="What is copied in the forward is summed in the backward, and the other way round.",
    correct="Output and all gradients are those of the uncut MLP, on 1, 2 and 3 ranks.",
    wrong={
        "The two are exchanged: x is whole when it enters; what leaves are addends.": (
            "MyEnter, MyLeave => MyLeave, MyEnter"
        ),
        "`x` is whole on each rank already: the forward of `MyEnter` only hands it on.": (
            "return x.view_as(x) => return MyLeave.apply(x, group)"
        ),
        "Sum once, there and back: the sum of sums is n times too large.": [
            "MyLeave.apply(gradient, ctx.group) => "
            "MyLeave.apply(MyLeave.apply(gradient, ctx.group), ctx.group)",
            ("return total => distributed.all_reduce(total, group=group); return total", BACK),
        ],
        "Gradients n times too large: that of an addend is that of the sum, as it is.": (
            "total = => ctx.group = group; total =",
            "return gradient, => return MyLeave.apply(gradient, ctx.group),",
        ),
        "The ranks' gradients of x differ, as parts of a sum: on the way in, backward adds them.": [
            f"MyLeave.apply(gradient, ctx.group) => gradient{more}"
            for more in (".clone()", " * ctx.group.size()")
        ],
        "A sum, no mean, no maximum: each rank has another part of it.": [
            *(MEAN, (MEAN, BACK), ("total, g => total, distributed.ReduceOp.MAX, g", BACK)),
            "ctx.group), None => ctx.group) / ctx.group.size(), None",
            (
                "return MyLeave.apply(gradient, ctx.group) => total = gradient.clone(); "
                "distributed.all_reduce(total, distributed.ReduceOp.MAX, ctx.group); return total"
            ),
        ],
        "An addend's gradient is that of the sum, as it is: a sum divides nothing.": (
            *("total = => ctx.n = group.size(); total =", "gradient, N => gradient / ctx.n, N"),
        ),
        "What leaves are addends: all ranks get their sum.": ("return total => return x * 1", BACK),
        "Nothing flows back: return the gradient, then None; `all_reduce` itself returns None.": [
            *("return gradient, => return None,", "MyLeave.apply(gradient, ctx.group), => None,")
        ],
        IN_PLACE.format("addend"): "x.clone() => x",
        IN_PLACE.format("gradient"): (
            "MyLeave.apply(gradient, ctx.group) => "
            "distributed.all_reduce(gradient, group=ctx.group) or gradient"
        ),
        TO_ONE: ("all_reduce(total, group=group) => reduce(total, group=group, group_dst=0)", BACK),
        LATE: "all_reduce(total, group=group) => all_reduce(total, group=group, async_op=True)",
        ONE_EACH: "ctx.group), None => ctx.group)",
        ORDER: "return gradient, None => return None, gradient",
        KEEP_GROUP: "ctx.group = group => ",
        BY_NAME: "all_reduce(total, group=group) => all_reduce(total, group)",
        ENOUGH: [
            "return x.view_as(x) => return MyLeave.apply(x, group) / group.size()",
            (
                "total = => ctx.group = group; total =",
                "gradient, N => MyLeave.apply(gradient, ctx.group) / ctx.group.size(), N",
            ),
        ],
        NOT_SENT: "return x.view_as(x) => distributed.broadcast(x, 0, group); return x",
    },
    errors={
        "number of gradients": ONE_EACH,
        "different than None": ORDER,
        "(attribute|name) 'group'|save_for_backward": KEEP_GROUP,
        "_c10d_functional": "Functional collectives are not counted: use `distributed.all_reduce`.",
        "resolve the process group": "Call `distributed.all_reduce(tensor, group=group)` itself.",
        "AllreduceOptions": BY_NAME,
        "Default process group": "Each message goes to a group: `group=group`, or `ctx.group`.",
        r"c10d\.reduce_ ": TO_ONE,
        "'NoneType'": "`all_reduce` returns None: return the tensor that it has replaced.",
        "not registered": NOT_SENT,
        "[Ss]hapes? ": "`x` enters whole; what leaves is a sum, as large as an addend.",
        "gloo": "Do all ranks send the same messages, in one order?",
    },
    also_right=[BACK],
)


# 3. Attention as it is stored
def my_attention_parts(fused, out_weight, heads, key_heads, rank, ranks):
    """A rank owns some query heads: their rows, the key and value heads that they read.

    Head h reads key head h // (heads // key_heads): neighbours share one, and so may ranks.
    """
    columns = out_weight.shape[1] // heads
    own = slice(rank * heads // ranks, (rank + 1) * heads // ranks)
    sharing = heads // key_heads
    read = slice(own.start // sharing, (own.stop - 1) // sharing + 1)
    query, key, value = fused.unflatten(0, (-1, columns)).split([heads, key_heads, key_heads])
    mine = torch.cat([query[own], key[read], value[read]]).flatten(0, 1)
    return mine, out_weight.unflatten(1, (-1, columns))[:, own].flatten(1)


def heads_of(heads, key_heads, rank, ranks):
    """A case: heads of two columns; a row of `fused` is its number, a column of out_weight, too."""
    rows, columns = torch.arange(2.0 * (heads + 2 * key_heads)), torch.arange(2.0 * heads)
    fused, out_weight = torch.stack([rows, rows + 50], dim=1), torch.stack([columns, columns + 50])
    return fused, out_weight, heads, key_heads, rank, ranks


READ = "own.start // sharing, (own.stop - 1) // sharing + 1"
QUOTIENT = "Ranks may be more than key heads, or fewer: a quotient of the two (`//`) may be 0."
PER_KEY_HEAD = (
    "return mine => each = query[own].chunk(len(key[read])), key[read], value[read]\n    return "
    "torch.cat([t.reshape(-1, fused.shape[1]) for group in zip(*each) for t in group])"
)
EVERY_NTH = "query[own] => query[rank::ranks]"
HEAD = "A head is `columns` rows of `fused`, not one row: count rows, or unflatten into heads."
THREE = "query[own], key[read], value[read]"
JOINED = f"torch.cat([{THREE}]).flatten(0, 1)"
TWO = "Two matrices, first of `fused`, then of `out_weight`; rows stay rows."
OUT_WEIGHT = "out_weight.unflatten(1, (-1, columns))[:, own].flatten(1)"


def in_numbers(outcome, expected):
    """Which rows and columns these are: the cases have their numbers in them."""
    try:
        return [
            f"{word} rows {rows[:, 0].tolist()}, columns {columns[0].tolist()}"
            for word, (rows, columns) in (("expected", expected), ("got", outcome))
        ]
    except Exception:  # no two matrices
        return [f"got {short(outcome)}", TWO]


check_attention_parts = Exercise(
    my_attention_parts,
    read_again='"Exercise 3. Attention as it is stored"',
    cases=[heads_of(*map(int, case)) for case in "2212 4212 4214 8224 3113 4201".split()],
    given="{2} query heads of 2 columns, {3} key head(s), rank {4} of {5}",
    play=leaving_alone(UNCHANGED),
    compared=in_numbers,
    hint="Which query heads are here? Which key heads do they read? How large is a head?",
    wrong={
        "One slice of all rows mixes queries, keys and values: cut each of the three by itself.": (
            "return mine => return fused.chunk(ranks)[rank]"
        ),
        "There are fewer key heads than query heads: the three are not thirds of the rows.": [
            "return mine => return torch.cat([t.chunk(ranks)[rank] for t in fused.chunk(3)])",
            "value[read]] => fused.unflatten(0, (-1, columns))[2 * heads :][read]]",
        ],
        "With fewer key heads than ranks, several ranks hold the same key head, and it is whole.": [
            f"{READ} => rank * key_heads // ranks, (rank + 1) * key_heads // ranks",
            f"{READ} => rank * (key_heads // ranks), (rank + 1) * (key_heads // ranks)",
            f"{READ} => own.start // sharing, own.stop // sharing",
            "return mine => t = query, key, value\n    return "
            "torch.cat([each.flatten(0, 1).chunk(ranks)[rank] for each in t])",
        ],
        "Keep the order of `fused`: all queries, then all keys, then all values.": [
            "key[read], value[read] => value[read], key[read]",
            "query[own], key[read] => key[read], query[own]",
            "key[read], value[read] => torch.stack([key[read], value[read]], 1).flatten(0, 1)",
            "query[own], key[read], value[read] => key[read], value[read], query[own]",
            PER_KEY_HEAD,
        ],
        TWO: [
            *(".flatten(0, 1)\n => \n", "mine, => mine.T,", f"{OUT_WEIGHT} => {OUT_WEIGHT}.T"),
            f"mine, {OUT_WEIGHT} => {OUT_WEIGHT}, mine",
            ("mine, => mine.T,", f"{OUT_WEIGHT} => {OUT_WEIGHT}.T"),
            (".flatten(0, 1)\n => \n", "[:, own].flatten(1) => [:, own]"),
            "[:, own].flatten(1) => [:, own]",
        ],
        "Rows stay rows of `fused`: put the three parts below each other.": (
            f"{JOINED} => torch.cat([t.flatten(0, 1) for t in ({THREE})], 1)"
        ),
        "A head is several rows, `columns` of them: multiply where you slice rows.": [
            f"mine = {JOINED} => "
            "query, key, value = (t.flatten(0, 1) for t in (query, key, value))\n    "
            f"mine = torch.cat([{each}, key[read], value[read]])"
            for each in ("query.unflatten(0, (heads, -1))[own].flatten(0, 1)", "query[own]")
        ],
        "Cut rows of `fused`: its columns meet the input, and each rank has all of that.": (
            "return mine => return fused.chunk(ranks, 1)[rank]"
        ),
        QUOTIENT: f"{READ} => rank // (ranks // key_heads), rank // (ranks // key_heads) + 1",
        HEAD: "fused.unflatten(0, (-1, columns)).split => fused.split",
        "Neighbouring query heads share a key head: of 4 heads on 2, 0 and 1 read the first.": [
            f"slice({READ}) => sorted({{h % key_heads for h in range(heads)[own]}})",
            f"{READ} => rank % key_heads, rank % key_heads + max(1, key_heads // ranks)",
            f"{READ} => own.start, own.stop",
        ],
        "A rank keeps only the key and value heads that its own queries read.": [
            *("key[read], value[read] => key, value", "(own.stop - 1) // => own.stop //"),
        ],
        "Heads stay whole, for softmax needs the sum over all columns of a head.": (
            "return mine => return fused.view(-1, columns, 2).chunk(ranks, 1)[rank].flatten(0, 1)"
        ),
        "Each rank has query heads of its own.": "rank * heads // ranks, (rank + 1) => 0, 1",
        "Keys or values are missing.": [", value[read] => ", ", key[read], value[read] => "],
        "One rank's queries may read several key heads.": "(own.stop - 1) => own.start",
        "Rank 0 keeps the first query heads: neighbours, not every n-th head.": [
            (
                f"slice({READ}) => [*{{h // sharing: 0 for h in range(rank, heads, ranks)}}]",
                *(EVERY_NTH, "[:, own] => [:, rank::ranks]"),
            ),
            EVERY_NTH,
            (EVERY_NTH, "[:, own] => [:, rank::ranks]"),
            (EVERY_NTH, *(f"{each}[read] => {each}[rank::ranks]" for each in ("key", "value"))),
            (
                EVERY_NTH,
                *(f"{each}[read] => {each}[rank::ranks]" for each in ("key", "value")),
                "[:, own] => [:, rank::ranks]",
            ),
        ],
        "A head's columns are those of `out_weight`: the columns of `fused` meet the input.": (
            "columns = out_weight.shape[1] // heads => columns = fused.shape[1] // heads",
            "    query, key, value = fused => "
            "    fused = fused[: (heads + 2 * key_heads) * columns]\n"
            "    query, key, value = fused",
        ),
        "A key head is stored once, however many queries read it: it is repeated in the forward.": (
            f"slice({READ}) => [h // sharing for h in range(heads)[own]]"
        ),
        "The output layer takes what this rank's heads give: columns of its stored `weight`.": [
            f"{OUT_WEIGHT} => {each}" for each in ("out_weight.chunk(ranks)[rank]", "out_weight")
        ],
    },
    errors={
        "split_sizes": HEAD,
        "ZeroDivisionError": QUOTIENT,
        "Sizes of tensors must match": "Join the parts along dimension 0: rows below rows.",
    },
    also_right=[
        f"slice({READ}) => sorted({{h // sharing for h in range(heads)[own]}})",
        lambda *given: [part.numpy() for part in my_attention_parts(*given)],
    ],
)


# 4. The bytes of a step
def my_step_bytes(tokens, width, layers, itemsize, ranks):
    """A block sums four times, the lookup once forward, what enters the output once backward.

    Each sum is of the tensor between the layers, and the loss adds three numbers per token.
    """
    return 2 * (ranks - 1) / ranks * tokens * itemsize * ((4 * layers + 2) * width + 3)


check_step_bytes = Exercise(
    my_step_bytes,
    read_again='"What does a step send?"',
    cases=[(10, 12, 1, 4, 6), (512, 256, 2, 2, 4), (90, 30, 3, 8, 3), (512, 256, 2, 4, 1)],
    given="{} tokens, width {}, {} block(s), {} bytes per number, {} rank(s)",
    hint="All-reduces of blocks, ends and loss, times what a ring sends of each, times its bytes.",
    wrong={
        "Attention and MLP each sum forward and backward.": [
            *("4 * l => 2 * l", "4 * l => 3 * l", "4 * l => 8 * l", "layers + 2 => layers / 2 + 1"),
        ],
        "Query, key and value share one way in: one sum backward, not three.": "4 * l => 6 * l",
        "Lookup and output layer each send one sum more.": [f"+ 2 => + {n}" for n in (0, 1)],
        "Lookup and output layer send one sum each, not two: one forward, the other backward.": [
            f"+ 2 => + {n}" for n in (3, 4)
        ],
        "The tensor between the layers has its whole width on every rank: do not divide it.": (
            "+ 2) * width => + 2) * width / ranks"
        ),
        "The ends send, too: lookup, output layer, loss.": "+ 2) * width + 3 => ) * width",
        "The loss sends 3 numbers per token, forward.": [
            *(f"+ 3 => + {n}" for n in (0, 1, 2, 5, 6, "3 / tokens")),
            *(f"2) * width + 3 => {n}) * width" for n in (3, 5)),
            "itemsize * ((4 * layers + 2) * width + 3) => itemsize * (4 * layers + 2) * width + 3",
        ],
        "Each block sends; the ends and the loss send once, however many blocks.": [
            *("+ 2) * => + 2 * layers) *", "+ 3 => + 3 * layers", "4 * layers + 2 => 6"),
        ],
        "These are gradients of weights, which data parallel sends: a cut sends rows of tokens.": [
            f"{old} * ((4 * layers + 2) * width + 3) => 12 * width * width * layers * itemsize"
            for old in ("tokens * itemsize", "2 * (ranks - 1) / ranks * tokens * itemsize")
        ],
        "Tokens are sent, not weights.": ["tokens * => width *", "tokens * => 12 * width *"],
        "The width between the layers is sent, not that inside.": [
            *("(4 => (10", "(4 => (16", "(4 * layers + 2) => 4 * (4 * layers + 2)"),
        ],
        "Each rank has an addend for every token: do not divide them.": "/ ranks => / ranks**2",
        "This is what all ranks send together.": "/ ranks => ",
        "In a ring each rank sends 2 (n - 1) / n of a tensor: not 1, 2 or n - 1.": [
            f"2 * (ranks - 1) / ranks => {each}"
            for each in (
                "1",
                "2 * (ranks > 1)",
                "(ranks - 1)",
                "(ranks - 1) / ranks",
                "2 * ranks / (ranks - 1)",
            )
        ],
        "Twice too many: 2 (n - 1) / n counts both halves of an all-reduce.": (
            "2 * (ranks - 1) => 4 * (ranks - 1)"
        ),
        "`//` rounds: (n - 1) / n of a tensor need not be whole.": "/ ranks => // ranks",
        "Count bytes: a number has `itemsize`.": [
            *(f"itemsize * ( => {n} * (" for n in (1, 4, 8, "8 * itemsize")),
            "itemsize * ((4 * layers + 2) * width + 3) => "
            "(itemsize * (4 * layers + 2) * width + 12)",
        ],
    },
    also_right=[lambda t, w, b, i, n: 2 * (n - 1) * t * i * (4 * b * w + 2 * w + 3) / n],
)
