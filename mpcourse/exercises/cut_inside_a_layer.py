"""Exercises of page `cut_inside_a_layer`: MLP, its ends, heads, bytes sent, a loss, bytes kept."""

import math
from types import SimpleNamespace

import torch
from torch import Tensor, distributed, nn

from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, same, short
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer.tensor_parallel_functions import reduce_from_ranks

WAIT_S = 5.0  # for ranks that do not send the same messages

# 1. Which part is mine?


def my_parts(up_weight, up_bias, down_weight, rank, ranks):
    """A rank owns some inner numbers: what makes them, and what takes them.

    `nn.Linear` stores W as (out, in), so a column of W is a row of `weight`. Up gives its rows and
    their biases, down the columns that belong to the same inner numbers. The bias of down is
    nobody's part: it is added once, after the sum.
    """
    inner = len(up_bias)
    own = slice(rank * inner // ranks, (rank + 1) * inner // ranks)
    return up_weight[own], up_bias[own], down_weight[:, own]


def mlp(rank, ranks):
    """A case: weights whose numbers are all different."""
    up = torch.arange(24.0).reshape(6, 4)
    return up, torch.arange(100.0, 106), up.T + 200, rank, ranks


UP_COLUMNS = "up_weight[own] => up_weight.tensor_split(ranks, 1)[rank]"
DOWN_ROWS = "down_weight[:, own] => down_weight.tensor_split(ranks)[rank]"

check_mlp_parts = Exercise(
    my_parts,
    read_again='"Which cut may come before GELU?"',
    cases=[mlp(0, 2), mlp(1, 2), mlp(2, 3), mlp(0, 1)],
    given=lambda up, bias, down, rank, ranks: (
        f"width {up.shape[1]}, {len(bias)} inner numbers, rank {rank} of {ranks}"
    ),
    hint="Return three tensors: what a rank's inner numbers need of up, of its bias, of down.",
    wrong={
        "nn.Linear stores W transposed: the columns of W are the rows of `weight`.": [
            (UP_COLUMNS, DOWN_ROWS),
            (UP_COLUMNS, "up_bias[own] => up_bias", DOWN_ROWS),
            UP_COLUMNS,
            "up_weight[own] => up_weight[:, own]",
            ("[:, own] => [own]", "up_weight[own] => up_weight[:, own]"),
        ],
        "Down is cut by rows of W: these are columns of its stored `weight`.": [
            DOWN_ROWS,
            "[:, own] => [:3]",
            "[:, own] => [own]",
        ],
        "These are halves: there may be more ranks than two, or one alone.": "// ranks => // 2",
        "Each output of `up` has its own number of the bias.": "up_bias[own] => up_bias",
        "A bias is cut like the outputs, not divided.": [
            "up_bias[own] => up_bias / ranks",
            "up_bias[own] => up_bias[own] / ranks",
        ],
        "The sum would be right, but neighbours belong together here: one day they are a head.": (
            "slice(rank * inner // ranks, (rank + 1) * inner // ranks) => slice(rank, None, ranks)"
        ),
        "Down is cut, too: it takes the numbers that are here.": "[:, own] => ",
        "That is rank 0's part, on each rank.": "inner = => rank = 0; inner =",
        "Return three tensors": lambda up, *rest: up,
    },
    also_right=[
        lambda up, bias, down, r, n: [
            each.chunk(n, dim)[r].clone() for each, dim in ((up, 0), (bias, 0), (down, 1))
        ]
    ],
)

# 2. The two ends of a cut layer

NAMES = "output", *(f"gradient of {each}" for each in ("x", "up", "the bias of up", "down"))
NO_GROUP = "Hand on the group: without it the message goes to a default group, and there is none."
IN_PLACE = "`all_reduce` replaces what it is given: sum a copy, as others may still hold the {}."
NOT_WRITTEN = "A `backward` is still `...`."
ONE_EACH = "A `backward` returns one thing for each argument of `forward` after ctx: here two."
NOTHING_BACK = "`all_reduce` returns None: it replaces the tensor it is given. Return that tensor."
NO_FUNCTION = "Nothing flows back through a message: autograd needs a Function with a `backward`."
KEEP_GROUP = "In `forward`, keep the group for the backward: `ctx.group = group`."
ORDER = "In the order of `forward`'s arguments: the gradient first, then None for the group."
WHOLE_X = "Each rank takes all of x: only the weights are cut."
JOINED = "The addends are summed, not joined: the output has the shape of each."
TWO = "This check takes both: check_ends(MyEnter, MyLeave)."


def my_ends():
    """What all ranks are given alike is summed backward; what is summed is given back alike.

    x went into every rank's part, so its gradient is the sum of what comes back from all. Each
    addend goes into the sum once, so its gradient is that of the sum. So each of the two does
    backward what the other does forward.
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
    draw = torch.Generator().manual_seed(ranks)
    inner = 6 // ranks
    shapes = (1, 2), (1, 2), *((inner, 2), (inner,), (2, inner)) * ranks
    x, dy, *parts_of_all = (torch.randn(*shape, generator=draw).double() for shape in shapes)

    def program(group):
        parts = parts_of_all[3 * group.rank() :][:3]
        leaves = [t.clone().requires_grad_() for t in (x, *parts)]
        entered = into.apply(leaves[0], group)
        if entered is ...:
            raise NotAttempted
        addend = nn.functional.gelu(entered @ leaves[1].T + leaves[2]) @ leaves[3].T
        handed_in = [("addend", addend, addend.detach().clone())]
        if entered.requires_grad:
            entered.register_hook(
                lambda g: None if g is None else handed_in.append(("gradient", g, g.clone()))
            )
        output = out_of.apply(addend, group)
        if output is ...:
            raise NotAttempted
        found = [output.detach(), *torch.autograd.grad(output, leaves, dy, allow_unused=True)]
        for what, now, before in handed_in:
            if not torch.equal(now, before):
                raise NotYet(IN_PLACE.format(what))
        return zip(NAMES, found, strict=True)

    by_rank = enumerate(ranks_in_threads(program, ranks, timeout_s=WAIT_S))
    return {f"rank {rank}, {name}": each for rank, found in by_rank for name, each in found}


def first_difference(outcome, expected):
    name = next(name for name in expected if not same(outcome[name], expected[name]))
    return [f"{name}: expected {short(expected[name])}, got {short(outcome[name])}"]


LIKE_FORWARD = (
    "total = => ctx.group = group; total =",
    "return gradient, => return MyLeave.apply(gradient, ctx.group),",
)
NOT_SUMMED = "MyLeave.apply(gradient, ctx.group) => gradient.clone()"
OWN_SUM = "MyLeave.apply => reduce_from_ranks"  # whatever MyLeave does forward
ADDEND = "return total => return x.view_as(x)"
MEAN = "return total => return total / group.size()"

check_ends = Exercise(
    my_ends,
    values=True,
    read_again='"The output is right. Is the gradient?"',
    cases=[(1,), (2,), (3,)],
    given="a cut MLP on {} rank(s)",
    play=in_a_cut_mlp,
    compared=first_difference,
    hint="What is copied in the forward is summed in the backward, and the other way round.",
    correct="Output and all gradients are those of the uncut MLP, on 1, 2 and 3 ranks.",
    wrong={
        "The two are exchanged: x is whole when it enters; what leaves are addends.": (
            "MyEnter, MyLeave => MyLeave, MyEnter"
        ),
        "The gradients are n times too large: each addend goes into the sum once, so on the way "
        "out its gradient is that of the sum, as it is.": [
            LIKE_FORWARD,
            (NOT_SUMMED, *LIKE_FORWARD),
        ],
        "Each rank's gradient of x is a part of a sum: on the way in, the backward adds them.": (
            NOT_SUMMED
        ),
        "On the way in nothing is summed forward: x is whole on each rank.": [
            "x.view_as(x) => MyLeave.apply(x, group)",
            (NOT_SUMMED, "x.view_as(x) => MyLeave.apply(x, group)"),
        ],
        "What leaves are addends: the output is their sum, on all ranks.": [
            (ADDEND, OWN_SUM),
            (ADDEND, *LIKE_FORWARD, OWN_SUM),
        ],
        "On the way out is a sum of addends, not their mean.": [
            (MEAN, OWN_SUM),
            (MEAN, OWN_SUM, *LIKE_FORWARD),
        ],
        "The parts of x's gradient make a sum, not a mean.": (
            "ctx.group), None => ctx.group) / ctx.group.size(), None"
        ),
        "Do not divide the gradient: each addend goes into the sum once, whole.": (
            "total = => ctx.group = group; total =",
            "return gradient, => return gradient / ctx.group.size(),",
        ),
        "Nothing flows back: a `backward` returns the gradient first, then None for the group.": [
            "MyLeave.apply(gradient, ctx.group) => None",
            "return gradient, => return None,",
        ],
        IN_PLACE.format("addend"): "x.clone() => x",
        IN_PLACE.format("gradient"): (
            "MyLeave.apply(gradient, ctx.group) => "
            "distributed.all_reduce(gradient, group=ctx.group) or gradient"
        ),
        NO_GROUP: ", group=group => ",
        ONE_EACH: "ctx.group), None => ctx.group)",
        NOTHING_BACK: "distributed.all_reduce => total = distributed.all_reduce",
        NO_FUNCTION: (
            my_ends()[0],
            SimpleNamespace(apply=lambda x, group: reduce_from_ranks(x.detach(), group)),
        ),
        ORDER: "return gradient, None => return None, gradient",
        WHOLE_X: "x.view_as(x) => x.chunk(group.size(), -1)[group.rank()]",
        KEEP_GROUP: "ctx.group = group => ",
        JOINED: "return total => return x.repeat(group.size(), 1)",
        "The way out multiplies by 1: its gradient is the one that comes in, not ones.": (
            "return gradient, => return torch.ones_like(gradient),"
        ),
        "All ranks go on with the output: the sum on rank 0 alone is not enough.": (
            "return total => return x.clone() if group.rank() else total",
            OWN_SUM,
        ),
        NOT_WRITTEN: "MyLeave.apply(gradient, ctx.group) => ...",
        TWO: my_ends()[0],
    },
    errors={
        "efault process group": NO_GROUP,
        "number of gradients": ONE_EACH,
        "different than None": ORDER,
        "cannot be multiplied": WHOLE_X,
        "NoneType": NOTHING_BACK,
        "not require grad": NO_FUNCTION,
        "attribute 'group'|save_for_backward": KEEP_GROUP,
        "Mismatch in shape": JOINED,
        "gloo": "Do all ranks send the same messages, in one order?",
        "llipsis": NOT_WRITTEN,
        "unpack": TWO,
        "": "",  # of a wrong name the error says enough
    },
    also_right=[
        OWN_SUM,
        ("x.view_as(x) => x", "MyLeave.apply(gradient => reduce_from_ranks(gradient.detach()"),
    ],
)

# 3. Attention as it is stored


def my_attention_parts(fused, out_weight, heads, key_heads, rank, ranks):
    """A rank owns some query heads: their rows, the key and value heads that they read.

    Neighbouring query heads share a key head: head h reads key head h // (heads // key_heads). If
    there are more ranks than key heads, several ranks hold the same one. Queries, keys and values
    are cut each by itself. The output layer gives the columns of the rank's query heads.
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
EVEN = "rank * key_heads // ranks, (rank + 1) * key_heads // ranks"
OUT_WEIGHT = "out_weight.unflatten(1, (-1, columns))[:, own].flatten(1)"


PAIR = "Return two matrices: rows of `fused`, and columns of `out_weight`."
NO_KEY = "With fewer key heads than ranks, several ranks hold the same key head, and it is whole."


def two_matrices(attempt, *case):
    outcome = attempt(*case)
    try:
        rows, columns = map(torch.as_tensor, outcome)
    except (RuntimeError, TypeError, ValueError):
        raise NotYet(f"got {short(outcome)}", PAIR) from None
    if not rows.ndim == columns.ndim == 2 or 0 in (*rows.shape, *columns.shape):
        raise NotYet(f"got {short(outcome)}", PAIR)
    return rows, columns


def in_numbers(said, rows, columns):
    """Which rows and columns these are: the cases have their numbers in them."""
    lists = (" ".join(f"{number:g}" for number in each) for each in (rows.T[0], columns[0]))
    return "{}: rows {}, columns {}".format(said, *lists)


check_attention_parts = Exercise(
    my_attention_parts,
    read_again='"Exercise 3. Attention as it is stored"',
    cases=[
        heads_of(2, 2, 1, 2),
        heads_of(4, 2, 1, 2),
        heads_of(4, 2, 1, 4),
        heads_of(8, 2, 2, 4),
        heads_of(3, 1, 1, 3),
        heads_of(4, 2, 0, 1),
    ],
    given="{2} query heads of 2 columns, {3} key head(s), rank {4} of {5}",
    play=two_matrices,
    compared=lambda got, right: [in_numbers("expected", *right), in_numbers("got", *got)],
    hint="Which query heads are this rank's, and which key heads do they read?",
    wrong={
        "One slice of all rows mixes queries, keys and values: cut each of the three by itself.": [
            "return mine => return fused.chunk(ranks)[rank]",
            (
                "return mine => return fused.chunk(ranks)[rank]",
                f"{OUT_WEIGHT} => out_weight.chunk(ranks)[rank]",
            ),
        ],
        "There are fewer key heads than query heads: the three are not thirds of the rows.": (
            "return mine => return torch.cat([t.chunk(ranks)[rank] for t in fused.chunk(3)])"
        ),
        "`nn.Linear` stores W transposed: the columns of a head are rows of `fused`.": (
            "return mine => return fused.chunk(ranks, 1)[rank]"
        ),
        NO_KEY: [
            f"{READ} => {EVEN}",
            f"{READ} => own.start // sharing, own.stop // sharing",
            "return mine => return torch.cat([t.flatten(0, 1).tensor_split(ranks)[rank] "
            "for t in (query, key, value)])",
        ],
        "There are fewer key heads than query heads: which of them do this rank's queries read?": (
            f"{READ} => own.start, own.stop"
        ),
        "Query heads that share a key head are neighbours: with 4 heads on 2, 0 and 1 read the "
        "first.": [
            f"slice({READ}) => sorted({{h % key_heads for h in range(heads)[own]}})",
            f"slice({READ}) => [h % key_heads for h in range(heads)[own]]",
            f"{READ} => rank % key_heads, rank % key_heads + 1",
        ],
        "A rank keeps only the key and value heads that its own queries read.": (
            "key[read], value[read] => key, value"
        ),
        "A key head is stored once, however many queries read it: it is repeated in the forward.": (
            f"slice({READ}) => [h // sharing for h in range(heads)[own]]"
        ),
        "The output layer takes what this rank's heads give: columns of its stored `weight`.": [
            f"{OUT_WEIGHT} => out_weight.chunk(ranks)[rank]",
            f"{OUT_WEIGHT} => out_weight",
        ],
        "`fused` gives three pieces: of the queries, of the keys and of the values.": [
            ", value[read] => ",
            ", key[read], value[read] => ",
        ],
        "Keep the order of the whole matrix: queries, then keys, then values.": [
            "query[own], key[read], value[read] => key[read], query[own], value[read]",
            "query[own], key[read], value[read] => query[own], value[read], key[read]",
        ],
        "A head has several rows: count them, not the heads.": (
            "fused.unflatten(0, (-1, columns)).split([heads, key_heads, key_heads]) => "
            "fused.split([columns * each for each in (heads, key_heads, key_heads)])",
            ".flatten(0, 1) => ",
        ),
        "Neighbouring heads belong together: the first ranks get the first heads.": (
            "slice(rank * heads // ranks, (rank + 1) * heads // ranks) => "
            "slice(rank, heads - ranks + rank + 1, ranks)"
        ),
        "That is rank 0's part, on each rank.": "columns = => rank = 0; columns =",
        "There may be more ranks than two, or one alone.": "* heads // ranks => * heads // 2",
        PAIR: lambda *given: my_attention_parts(*given)[0],
    },
    also_right=[
        lambda fused, out_weight, heads, key_heads, rank, ranks: (
            torch.stack(
                [
                    fused[first + row]
                    for first, number in (
                        (0, heads),
                        (2 * heads, key_heads),
                        (2 * heads + 2 * key_heads, key_heads),
                    )
                    for row in range(
                        2 * (rank * number // ranks),
                        2 * -(-(rank + 1) * number // ranks),
                    )
                ]
            ),
            out_weight.tensor_split(ranks, dim=1)[rank].numpy(),
        )
    ],
)

# 4. The bytes of a block


def my_block_bytes(tokens, width, itemsize, ranks):
    """Attention and MLP each sum once forward and once backward: four all-reduces.

    Each is of a tensor of the width between the layers, and a ring sends 2 (n - 1) / n of it. With
    one rank that is nothing.
    """
    return 4 * 2 * (ranks - 1) / ranks * tokens * width * itemsize


check_block_bytes = Exercise(
    my_block_bytes,
    read_again='"What does a block send?"',
    cases=[(10, 12, 8, 6), (512, 256, 4, 4), (100, 30, 2, 3), (512, 256, 4, 1)],
    given="{} tokens, width {}, {} bytes per number, {} rank(s)",
    hint="All-reduces of a block, times what a ring sends of each, times the tensor's bytes.",
    wrong={
        "Half of it: count attention and MLP, each forward and backward; and a ring sends twice "
        "(n - 1) / n.": "4 * 2 => 4",
        "Count attention and MLP, and the backward of each.": "4 * 2 => 2",
        "That is one pass of a ring: count the sums, and a ring sends 2 (n - 1) / n.": (
            "4 * 2 => 1"
        ),
        "Half too much: the three gradients are added before they are sent.": "4 * 2 => 12",
        "What is sent are the tokens between the layers, not weights.": [
            "* tokens => * width",
            "* tokens => * 12 * width",
            "4 * 2 * (ranks - 1) / ranks * tokens => 12 * width",
        ],
        "The sums are whole tensors on every rank, not the ranks' parts.": "/ ranks => / ranks**2",
        "Query, key and value share one way in: one sum, not three.": "4 * 2 => 16",
        "What is sent has the width between the layers, not that inside.": [
            "4 * 2 => 20",
            "4 * 2 => 32",
        ],
        "These are the tensors summed: a ring sends 2 (n - 1) / n of each; `//` makes it 1.": [
            "2 * (ranks - 1) / ranks => (ranks > 1)",
            "2 * (ranks - 1) / ranks => (2 * (ranks - 1) // ranks)",
        ],
        "`//` rounds: (n - 1) / n of a tensor need not be whole.": [
            "(ranks - 1) / ranks => ((ranks - 1) // ranks)",
            "/ => //",
        ],
        "In a ring each rank sends 2 (n - 1) / n, not 2.": "(ranks - 1) / ranks => (ranks > 1)",
        "One rank has nobody to send to.": [
            "(ranks - 1) / ranks => ((ranks - 1) / ranks or 1)",
            "2 * (ranks - 1) / ranks => (2 * (ranks - 1) / ranks or 1)",
        ],
        "A ring passes on parts: 2 (n - 1) / n of each sum, not n - 1.": (
            "2 * (ranks - 1) / ranks => (ranks - 1)"
        ),
        "A ring sends n - 1 parts twice, each 1 / n of the tensor: n - 1 is a factor only once.": (
            "2 * (ranks - 1) => (ranks - 1) ** 2"
        ),
        "Count bytes: each number has `itemsize` of them.": "* itemsize => ",
        "That is the sum over all ranks; the question is what one rank sends.": "/ ranks => ",
        "times what a ring sends of each": lambda *sizes: 1,
    },
    also_right=[lambda t, w, i, n: sum(2 * t * w * i / n * (n - 1) for _ in range(4))],
)

# 5. A loss without whole logits

TOKENS, PER_RANK = 5, 4
WHICH_PLACE = "Only one rank has a token's right logit: which place do the others read?"
EQUALLY_OFTEN = "All ranks have to call all_max and all_sum equally often, in one order."
ONE_NUMBER = "Return one number: the mean over the tokens."
TOO_LARGE = "An exponential is too large to be written down: subtract a maximum before."
THREE = "Three are enough: a maximum, a sum of exponentials, the right logit."
NO_GRADIENT = (
    "The loss is right, but no gradient reaches the logits: return a tensor with its graph."
)
GRADIENT = "The loss is right, its gradient at the logits is not: a detached part gives none."
NAN = "The loss is right, its gradient is nan: `where` hides an infinite log, not its derivative. "
NAN += "Choose what is finite before you take the logarithm."
COLUMN = "One number for each token: `unsqueeze(1)` makes a column of these, for `gather`, too."


def my_cut_loss(logits, targets, first, all_max, all_sum):
    """One maximum for all ranks, then two sums: of the exponentials, and of the right logit.

    Only one rank has the right token; the others add zero. With its own maximum on each rank the
    exponentials would be in different units; where the maxima are equal, nobody would see it.
    """
    shifted = logits - all_max(logits.amax(dim=1)).unsqueeze(1)
    place = targets - first
    here = (place >= 0) & (place < logits.shape[1])
    right = shifted.gather(1, place.where(here, 0).unsqueeze(1)).squeeze(1).where(here, 0.0)
    return (all_sum(shifted.exp().sum(dim=1)).log() - all_sum(right)).mean()


def with_a_part(attempt, words, scale, ranks):
    """Each rank's loss (a thread with its part) and its gradient, and numbers sent per token."""
    draw = torch.Generator().manual_seed(ranks)
    logits = scale * torch.randn(TOKENS, ranks * PER_RANK, generator=draw).double()
    logits[:, 1] += 3 * scale  # of rank 0, so that the maxima of the ranks differ
    logits[0] -= 10 * scale  # and those of the tokens
    targets = torch.tensor([4, 1, 0, 7, 5])  # both ends of a slice; of three ranks one has none
    sent = []

    def program(group):
        def reduced(operation):
            def reduce(tensor):
                sent.append(tensor.numel() * (group.rank() == 0))
                if operation == distributed.ReduceOp.SUM:
                    return reduce_from_ranks(tensor.clone().contiguous(), group)
                total = tensor.detach().clone().contiguous()
                distributed.all_reduce(total, operation, group)
                return total

            return reduce

        first = group.rank() * PER_RANK
        part = logits[:, first : first + PER_RANK].clone().requires_grad_()
        operations = (distributed.ReduceOp.MAX, distributed.ReduceOp.SUM)
        loss, gradient = attempt(part, targets.clone(), first, *map(reduced, operations)), None
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
            (gradient,) = torch.autograd.grad(loss.sum(), part, allow_unused=True)
            if gradient is not None and not loss.isfinite().all():
                gradient = gradient.nan_to_num()  # nan is never the same
        return loss, gradient

    losses, gradients = zip(*ranks_in_threads(program, ranks, timeout_s=WAIT_S), strict=True)
    for rank, loss in enumerate(losses):
        number = loss.numel() == 1 if isinstance(loss, Tensor) else isinstance(loss, float | int)
        if not number:
            raise NotYet(f"got {short(loss)} on rank {rank}", ONE_NUMBER)
    return [torch.as_tensor(loss).item() for loss in losses], sum(sent) / TOKENS, list(gradients)


def right_loss(losses, right):
    return all(
        math.isclose(*pair, rel_tol=1e-7, abs_tol=1e-7) for pair in zip(losses, right, strict=True)
    )


def same_losses(outcome, expected):
    (losses, sent, gradients), (right, allowed, wanted) = outcome, expected
    few = sent <= 4 or sent == allowed
    return right_loss(losses, right) and few and same(gradients, wanted)


def losses_in_words(outcome, expected):
    (losses, sent, _), (right, *_) = outcome, expected
    if right_loss(losses, right) and sent > 4:
        return [f"The loss is right, but {sent:g} numbers were sent for each token."]
    if right_loss(losses, right):
        return []
    return [f"expected {short(right[0])} on every rank, got {short(losses)}"]


def why_this_loss(outcome, expected):
    if right_loss(outcome[0], expected[0]):
        without = any(gradient is None for gradient in outcome[2])
        wrong = NAN if not without and torch.cat(outcome[2]).isnan().any() else GRADIENT
        return THREE if outcome[1] > 4 else NO_GRADIENT if without else wrong
    if not all(map(math.isfinite, outcome[0])):
        return TOO_LARGE
    return "The loss of a token is log(sum of exp(logit - max)) - (right logit - max)."


def whole_logits(logits, targets, first, all_max, all_sum):
    ranks = int(all_sum(torch.ones(1)))
    whole = logits.new_zeros(len(logits), ranks * PER_RANK)
    whole[:, first : first + PER_RANK] = logits
    return nn.functional.cross_entropy(all_sum(whole), targets)


def in_one_sum(logits, targets, first, all_max, all_sum):
    highest = all_max(logits.max(dim=-1).values)
    sums = []
    for row, top, target in zip(logits, highest, targets - first, strict=True):
        right = row[target] if 0 <= target < len(row) else 0.0
        sums.append(torch.stack([(row - top).exp().sum(), torch.as_tensor(right).double()]))
    total, right = all_sum(torch.stack(sums)).T
    return (total.log() + highest - right).mean()


ALONE = "all_sum(right) => right"
OWN_LOSS = "nn.functional.cross_entropy(logits, place.where(here, -100)"
NO_MASK = ".where(here, 0.0) => "
CLAMPED = "place.where(here, 0) => place.clamp(0, PER_RANK - 1)"

check_cut_loss = Exercise(
    my_cut_loss,
    read_again='"What is a loss made of?"',
    cases=[("small", 1.0, 2), ("large", 300.0, 2), ("small", 1.0, 3)],
    given="{0} logits of 5 tokens on {2} ranks",
    play=with_a_part,
    same=same_losses,
    compared=losses_in_words,
    hint=why_this_loss,
    correct="The loss is that of the whole logits, and few numbers per token are sent.",
    wrong={
        "Each rank subtracts its own maximum: take that of all ranks.": "all_max( => (",
        "Sums of exponentials add up only with one maximum for all.": (
            "shifted.exp() => (logits - logits.amax(dim=1, keepdim=True)).exp()"
        ),
        "The maximum was subtracted in the sum, but not from the right logit.": (
            "shifted.gather => logits.gather"
        ),
        "The maximum comes off both or neither of the two.": "shifted.exp => logits.exp",
        "One maximum for all tokens: the exponentials of a token with low logits are all 0. Each "
        "token has its own.": "amax(dim=1)).unsqueeze(1) => amax(dim=1)).max()",
        TOO_LARGE: "- all_max(logits.amax(dim=1)).unsqueeze(1) => ",
        "The sum of the exponentials is missing.": "all_sum(shifted.exp().sum(dim=1)).log() => 0",
        "A rank without the right token adds 0 to the right logit, not another token's.": [
            (CLAMPED, NO_MASK),
            ("place.where(here, 0) => (place % PER_RANK)", NO_MASK),
            NO_MASK,
            ("(place >= 0) & => ", "place.where(here, 0) => (place.where(here, 0) % PER_RANK)"),
        ],
        "Column 0 is here, too: `>= 0`, not `> 0`.": ">= 0 => > 0",
        "The slice ends before column V / n: `<`, not `<=`.": (
            "< logits => <= logits",
            "place.where(here, 0) => place.where(here, 0).clamp(max=PER_RANK - 1)",
        ),
        "This rank's exponentials only: the sum goes over all.": "all_sum(shifted => (shifted",
        "Only one rank has the right logit of a token; the others get it by a sum.": [
            ALONE,
            (ALONE, CLAMPED, NO_MASK),
            (
                "shifted.gather => logits.gather",
                "- all_sum(right) => + all_max(logits.amax(dim=1)) - right",
            ),
        ],
        "Only this rank's logits are in this loss: where are the other ranks' exponentials?": (
            lambda logits, targets, first, *rest: nn.functional.cross_entropy(
                logits, (targets - first).clamp(0, PER_RANK - 1)
            )
        ),
        "This is the sum over the tokens: take the mean.": ".mean() => .sum()",
        "Sum the exponentials over the ranks first, then take the logarithm.": [
            "sum(dim=1)).log() => sum(dim=1).log())",
            f"return ( => return all_sum({OWN_LOSS}))  # (",
            f"return ( => return all_sum({OWN_LOSS}, reduction='none')).mean()  # (",
        ],
        "The probability of a far lower logit is rounded to 0: subtract logits, and take no "
        "logarithm of it.": (
            "return ( => return -(all_sum(right.exp().where(here, 0.0)) / "
            "all_sum(shifted.exp().sum(dim=1))).log().mean()  # ("
        ),
        "Every rank has the whole loss already: all_sum counts it once for each rank.": (
            lambda *given: given[4](my_cut_loss(*given))
        ),
        "A loss is not negative: it is the logarithm minus the right logit.": "return => return -",
        "Tokens are counted over all ranks, columns from here: subtract `first`.": (
            "targets - first => targets"
        ),
        NO_GRADIENT: [".mean() => .mean().detach()", ".mean() => .mean().item()"],
        GRADIENT: "all_sum(right) => all_sum(right.detach())",
        NAN: (
            "shifted.gather(1, place.where(here, 0).unsqueeze(1)).squeeze(1) => "
            "(shifted.exp() * (place.unsqueeze(1) == torch.arange(PER_RANK))).sum(dim=1).log()"
        ),
        THREE: whole_logits,
        WHICH_PLACE: ["place.where(here, 0) => place", "< logits => <= logits"],
        EQUALLY_OFTEN: [
            "shifted = => if first > 0: return 0.0\n    shifted =",
            "all_sum(right)) => (all_sum(right) if here.any() else right))",
        ],
        COLUMN: "amax(dim=1)).unsqueeze(1) => amax(dim=1))",
        "A column minus a row is a table: `squeeze(1)` what `gather` returns.": ".squeeze(1) => ",
        ONE_NUMBER: lambda logits, *rest: logits,
        "The loss of a token is": ".mean() => .mean() + 1",
    },
    errors={"out of": WHICH_PLACE, "size of tensor|dimensions": COLUMN, "gloo": EQUALLY_OFTEN},
    also_right=[in_one_sum],
)

# 6. The bytes that are kept


def my_kept_bytes(tokens, width, ranks, sequence):
    """Heads and inner numbers, 24 of the 34 bytes, are divided; the other 10 are whole.

    These are the norms' inputs, the cut layers' inputs and the masks. Cut tokens divide all but the
    cut layers' inputs, 4 bytes: these are gathered.
    """
    whole = 4 if sequence else 10
    return (whole + (34 - whole) / ranks) * tokens * width


check_kept_bytes = Exercise(
    my_kept_bytes,
    read_again='"Exercise 6. Predict the bytes that are kept"',
    cases=[
        (8, 10, 2, False),
        (8, 10, 2, True),
        (40, 64, 5, False),
        (48, 64, 4, True),
        (8, 10, 1, True),
    ],
    given="{} tokens, width {}, {} rank(s), sequence={}",
    hint="Go through the table: which lines does each rank keep for all tokens and all columns?",
    wrong={
        "Not all is divided: between the cut layers each rank holds all tokens.": [
            "4 if sequence else 10 => 0",
            "10 => 0",
        ],
        "Heads and inner numbers are cut, and so is all that is made of them.": [
            "4 if sequence else 10 => 34",
            "4 if sequence else 10 => 12 if sequence else 18",
            "4 if sequence else 10 => 20 if sequence else 26",
        ],
        "The norms' inputs and the inputs of the cut layers are whole, 4 bytes each.": [
            "10 => 6",
            "4 if sequence else 10 => 0 if sequence else 2",
        ],
        "The masks come after the sums, where each rank holds all tokens.": "10 => 8",
        "Cut tokens divide the norms' inputs and the masks, too.": "4 if sequence else 10 => 10",
        "That is right if the inputs are gathered again in the backward; here they stay whole.": (
            "4 if => 0 if"
        ),
        "With cut tokens each rank draws the masks of its own tokens.": "4 if => 6 if",
        "With cut tokens the cut layers' inputs are gathered: these are of all tokens.": (
            "return => tokens = tokens / ranks if sequence else tokens; whole = 10; return"
        ),
        "With cut tokens a norm takes this rank's tokens.": "4 if => 8 if",
        "The other way round: `sequence` divides more.": "if sequence => if not sequence",
        "With whole tokens the norms' inputs and the masks are whole, too.": "10 => 4",
        "Do not round: bytes per token and number need not be whole.": "/ ranks => // ranks",
        "The masks are missing: a byte for each place, twice.": ("34 => 32", "10 => 8"),
        "The two parts are exchanged: 10 bytes are whole, 24 are divided.": (
            "4 if sequence else 10 => 24"
        ),
        "Count bytes: a number has 2, a place of a mask 1.": "* width => * width / 2",
        "Bytes for each token and each number of the width: multiply by both.": [
            "* tokens * width => ",
            "* width => ",
            "* tokens => ",
        ],
        "There may be more ranks than two, or one alone.": "/ ranks => / 2",
        "That is what all ranks keep together; the question is one.": "* width => * width * ranks",
    },
    also_right=[
        lambda t, w, n, s: t * w * (34 + (n - 1) * (4 if s else 10)) / n,
        lambda t, w, n, s: torch.tensor(t * w * (10 + 24 / n - s * (6 - 6 / n))).double(),
    ],
)
