"""Exercises of page `long_sequences`: attention by tiles, a ring, its masks, a slip, time."""

from functools import partial

import torch
from torch import distributed, nn

from mpcourse.exercises.exercise import Exercise, NotYet, call_for_numbers, numbers, same, short
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import merge
from mpcourse.transformer.ring_attention import _pass_on

WAIT_S = 5.0  # for ranks that do not send the same messages


def drawn(seed, *shapes):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw).double() for shape in shapes]


def first_wrong(names, words):
    """A hint: what is said of the first number that is wrong; `words` if it is another count."""

    def why(outcome, expected):
        if not isinstance(outcome, tuple | list) or len(outcome) != len(names):
            return words
        found = zip(names.items(), outcome, expected, strict=True)
        return next(f"{name}: {said}." for (name, said), a, b in found if not same(a, b))

    return why


# 1. Merge two partial attentions

OVERFLOW = "`exp` of hundreds is inf, of minus hundreds 0: take a difference, then `exp`."
WIDE = "A log-sum (T, 1) less one of shape (T,) is (T, T): keep the dimension."
TWO = "Return two tensors: the outputs (T, c) and their log-sums (T, 1)."


def my_merge(first, second):
    """A part's sum of exponentials is `exp` of its log-sum; its share of both weighs its output.

    Only differences of log-sums are exponentiated, so nothing overflows. The log-sum of both parts
    is returned too, so that the result can be merged again.
    """
    (output_1, log_sum_1), (output_2, log_sum_2) = first, second
    log_sum = torch.logaddexp(log_sum_1, log_sum_2)
    output = (log_sum_1 - log_sum).exp() * output_1 + (log_sum_2 - log_sum).exp() * output_2
    return output, log_sum


def part(scale, seed):
    """Attention of three queries over four keys, of which one query scores high or low."""
    scores, value = drawn(seed, (3, 4), (4, 4))
    scores = scale * scores + torch.tensor([[2.0], [scale], [-scale]]).double()
    return scores.softmax(-1) @ value, scores.logsumexp(-1, keepdim=True)


def why_this_merge(outcome, expected):
    found = outcome if isinstance(outcome, tuple | list) else ()
    if [getattr(each, "shape", None) for each in found] != [each.shape for each in expected]:
        return TWO
    if not all(each.isfinite().all() for each in found):
        return OVERFLOW
    return "Weigh each output by its part's share of the sum of all exponentials."


check_merge = Exercise(
    my_merge,
    read_again='"Can a softmax be computed in two parts?"',
    cases=[(1.0, 1, 2), (1.0, 3, 4), (400.0, 5, 6)],
    given="two partial attentions whose scores are about {0:g} in size",
    play=lambda attempt, scale, one, two: attempt(part(scale, one), part(scale, two)),
    hint=why_this_merge,
    wrong={
        "A plain mean: the larger sum of exponentials weighs more.": (
            "return output => return (output_1 + output_2) / 2"
        ),
        "Added outputs: both weights together have to sum to 1.": (
            "return output => return output_1 + output_2"
        ),
        OVERFLOW: (
            "torch.logaddexp(log_sum_1, log_sum_2) => (log_sum_1.exp() + log_sum_2.exp()).log()"
        ),
        "Each output goes with its own log-sum.": (
            "(output_1, log_sum_1), (output_2, => (output_2, log_sum_1), (output_1,"
        ),
        "Log-sums are no weights: `exp` makes sums of them.": (
            "- log_sum).exp() => / (log_sum_1 + log_sum_2))"
        ),
        "Outputs right. Sums add up, not their logarithms.": (
            "output, log_sum => output, log_sum_1 + log_sum_2"
        ),
        "Outputs right. The larger log-sum is not that of both.": (
            "output, log_sum => output, torch.maximum(log_sum_1, log_sum_2)"
        ),
        "Outputs right. The log-sum lacks the maximum that was taken off.": (
            "output, log_sum => output, log_sum - torch.maximum(log_sum_1, log_sum_2)"
        ),
        "Outputs right. The second is a sum: take its `log`.": (
            "output, log_sum => output, log_sum.exp()"
        ),
        "The larger has weight 1 now: divide by the sum of both weights.": "logaddexp => maximum",
        "A log-sum keeps its shape (T, 1), so that they can be merged again.": (
            "output, log_sum => output, log_sum.squeeze(-1)"
        ),
        WIDE: "- log_sum) => - log_sum.squeeze(-1))",
        TWO: "output, log_sum => output",
    },
    errors={
        "unpack|subtract|operand type": "Each part is a pair: `output, log_sum = first`.",
        "size of tensor": WIDE,
    },
    also_right=[
        (
            "(log_sum_1 - log_sum).exp() => (log_sum_1 - log_sum_2).sigmoid()",
            "(log_sum_2 - log_sum).exp() => (log_sum_2 - log_sum_1).sigmoid()",
        ),
        "output, log_sum => [output, log_sum]",
    ],
)

# 2. Back through a tile

SHAPES = "Look at shapes: scores and `gradient @ value.mT` are (T, S), and `inner` stays (T, 1)."
GRADIENTS = {
    "Of the query": "go back through the values to the weights, then through the softmax",
    "Of the key": "the scores' gradient turned round, times the queries",
    "Of the value": "the weights turned round, times the gradient of the output",
}
ALL_THREE = "Return three tensors: the gradients of query, key and value."


def my_attend_backward(query, key, value, masked, gradient, log_sum, inner):
    """The scores are made again; the log-sum of all keys makes the whole softmax's weights of them.

    A score moves its own weight by P (1 - P) and each other one by minus both weights' product. So
    its gradient is P times what its weight's gradient exceeds their mean by, weighed by P. That
    mean is `inner`: it is made of all keys, also those that are elsewhere.
    """
    scale = query.shape[-1] ** -0.5
    scores = (query @ key.mT * scale).masked_fill(masked, -1e30)
    weights = (scores - log_sum).exp()
    of_scores = weights * (gradient @ value.mT - inner) * scale
    return of_scores @ key, of_scores.mT @ query, weights.mT @ gradient


def tile(queries, keys, elsewhere, columns=3):
    """Of attention over more keys, what a tile has of it; all queries but one miss its last key."""
    counts = queries, keys + elsewhere, keys + elsewhere, queries
    query, key, value, gradient = drawn(keys, *[(count, columns) for count in counts])
    masked = torch.zeros(queries, keys + elsewhere, dtype=torch.bool)
    masked[1:, keys - 1] = True
    scores = (query @ key.mT / columns**0.5).masked_fill(masked, -1e30)
    inner = (gradient * (scores.softmax(-1) @ value)).sum(-1, keepdim=True)
    here = query, key[:keys], value[:keys], masked[:, :keys]
    return *here, gradient, scores.logsumexp(-1, keepdim=True), inner


def by_autograd(query, key, value, masked, gradient, log_sum, inner):
    leaves = [each.clone().requires_grad_() for each in (query, key, value)]
    scores = leaves[0] @ leaves[1].mT / query.shape[-1] ** 0.5
    weights = (scores.masked_fill(masked, -1e30) - log_sum).exp()
    ends = weights @ leaves[2], weights.sum(-1, keepdim=True)
    return torch.autograd.grad(ends, leaves, (gradient, -inner))


check_attend_backward = Exercise(
    my_attend_backward,
    read_again='"Scores that nobody keeps"',
    cases=[tile(2, 4, 0), tile(2, 3, 4), tile(3, 5, 6, columns=7)],
    given="a tile of {0.shape[0]} queries and {1.shape[0]} keys, c = {1.shape[1]}",
    hint=first_wrong(GRADIENTS, ALL_THREE),
    wrong={
        "Go back through the softmax, too.": (
            "weights * (gradient @ value.mT - inner) => gradient @ value.mT"
        ),
        "More of one weight is less of others: `inner`.": " - inner => ",
        "A score moves its weight by P times as much.": "weights * => ",
        "The weights multiply `inner`, too.": (
            "weights * (gradient @ value.mT => (weights * (gradient @ value.mT)"
        ),
        "The sign of `inner` is changed over.": "- inner => + inner",
        "The sign is changed over.": "weights * => -weights *",
        "A score moves all of its row.": (
            "(gradient @ value.mT - inner) => (1 - weights) * (gradient @ value.mT)"
        ),
        "Right for a whole row. In a tile this sum lacks the keys that are elsewhere: take"
        " `inner`.": [
            "- inner => - (weights * (gradient @ value.mT)).sum(-1, keepdim=True)",
            "- inner => - (gradient * (weights @ value)).sum(-1, keepdim=True)",
        ],
        "With `inner` no (1 - P).": "weights * => weights * (1 - weights) *",
        "Scores are divided by the root of c, as in `attend`: so is their gradient.": [
            "inner) * scale => inner)",
            "inner) * scale => inner) / scale",
            "query.shape[-1] ** -0.5 => 1",
            "key.mT * scale => key.mT",
            "inner) * scale => inner) * scale**2",
            "query.shape[-1] ** -0.5 => 1 / query.shape[-1]",
            "query.shape[-1] => key.shape[0]",
        ],
        "In the tile these weights sum to 1.": "(scores - log_sum).exp() => scores.softmax(-1)",
        "The weights are `exp(score - log_sum)`.": " - log_sum => ",
        "`masked` is true where a query does not see a key.": "fill(masked => fill(~masked",
        "A masked key weighs nothing: fill the scores as `attend` does.": (
            ".masked_fill(masked, -1e30) => "
        ),
        "Return them in this order: of query, key, value.": (
            "of_scores @ key, of_scores.mT @ query => of_scores.mT @ query, of_scores @ key"
        ),
        GRADIENTS["Of the value"]: "weights.mT @ gradient => value",
        ALL_THREE: lambda *given: torch.cat(my_attend_backward(*given)),
        SHAPES: [
            "- inner => - inner.squeeze(-1)",
            "gradient @ value.mT - inner => value @ gradient.mT",
            "return => of_scores = of_scores.mT; return",
            "gradient @ value.mT => gradient * value",
        ],
    },
    errors={"dimension 1|shapes cannot be multiplied|size of tensor|broadcast": SHAPES},
    also_right=[by_autograd, lambda *given: [*my_attend_backward(*given)]],
)

# 3. The loop of a ring

WHOSE = "What is here in a step comes from rank `(rank - step) % ranks`: compute with that block."
NEXT = "Send the block that is here, so that each visits all ranks, and go on with what arrived."
AGAIN = "This block was here before: go on with what arrived, `block = arrived()`."
LAST = "Nobody needs a block after the last step: send n - 1 times; with one rank, never."
LATE = "Start the message before you compute: else nothing arrives meanwhile."
WAITS = "Compute between start and wait: call what `send` returned when you have computed."
EVERY = "Compute with each of the n blocks once. What is masked there, `attend_to` knows."
NOTHING = "After the last step nothing arrives: there is no `arrived` to call."
CALL = "`send` returns a function: call it for the block."
MOVED = "This is no rank's block: leave blocks as they are."


def my_ring(block, rank, ranks, send, attend_to):
    """A block moves on by one rank in each step, so the one that is here comes from `step` back.

    Its message starts first: so it travels while this rank computes. After the last step nobody
    needs it. Parts merge by their log-sums, in whatever order they come.
    """
    found = None
    for step in range(ranks):
        arrived = send(block) if step < ranks - 1 else None
        part = attend_to(block, (rank - step) % ranks)
        found = merge(found, part) if found else part
        block = arrived() if arrived else block
    return found


def on_a_ring(attempt, rank, blocks, gives, pass_on=None):
    """The loop on one rank, to which the others, who do right, send the blocks.

    `gives(owner)` is what a block gives. `pass_on` sends gradients; without it a rank has to use
    each block, while the next one travels.
    """
    ranks, sent, here, used = len(blocks), [], [], []  # steps: started, arrived, computed with

    def step_of(block):
        if callable(block):
            raise NotYet("a function stands for a block", CALL)
        steps = [step for step in range(ranks) if torch.equal(block, blocks[rank - step])]
        if not steps:
            raise NotYet(f"got {short(block)}", MOVED)
        return steps[0]

    def send(tensor):
        if pass_on and not any(torch.equal(tensor, block) for block in blocks):
            return pass_on(tensor)
        step = step_of(tensor)
        if step != len(sent) or step == ranks - 1:
            raise NotYet(f"message {len(sent)} of step {step}", NEXT if step != len(sent) else LAST)
        sent.append(step)
        return lambda: here.append(step) or blocks[rank - step - 1].clone()

    def use(block, owner):
        step = step_of(block)
        if owner % ranks != (rank - step) % ranks:
            why = AGAIN if step in used else WHOSE
            raise NotYet(f"the block of step {step} is not that of rank {owner}", why)
        if not pass_on and step < ranks - 1 and (step in here or step not in sent):
            raise NotYet(f"step {step}", WAITS if step in here else LATE)
        used.append(step)
        return gives(owner % ranks)

    found = attempt(blocks[rank].clone(), rank, ranks, send, use)
    if not pass_on and sorted(used) != [*range(ranks)]:
        raise NotYet(f"computed in steps {used} of {ranks}", EVERY)
    return found


def one_rank(attempt, rank, ranks):
    query, blocks = drawn(ranks, (3, 4), (ranks, 2, 2, 4))

    def gives(owner):
        scores = query @ blocks[owner][0].mT
        return scores.softmax(-1) @ blocks[owner][1], scores.logsumexp(-1, keepdim=True)

    return on_a_ring(attempt, rank, blocks, gives)


check_ring_loop = Exercise(
    my_ring,
    read_again='"Keys and values go round"',
    cases=[(0, 1), (1, 2), (0, 3), (2, 5)],
    given="rank {} of {}",
    play=one_rank,
    hint="Parts of other keys merge as in exercise 1: `merge(found, part)`.",
    wrong={
        WHOSE: ["rank - step => rank + step", "(rank - step) % ranks => rank"],
        NEXT: ("found = None => own, found = block, None", "send(block) => send(own)"),
        AGAIN: "arrived() if arrived else block => block",
        NOTHING: "arrived() if arrived else block => arrived()",
        LAST: " if step < ranks - 1 else None => ",
        LATE: (
            "arrived = send(block) if step < ranks - 1 else None => ",
            "arrived() if arrived => send(block)() if step < ranks - 1",
        ),
        WAITS: ("send(block) => send(block)()", "arrived() if arrived else block => arrived"),
        EVERY: ["range(ranks) => range(max(1, ranks - 1))", "range(ranks) => range(rank + 1)"],
        CALL: "arrived() if => arrived if",
        "Added outputs: merge them by their log-sums.": (
            "merge(found, part) => (found[0] + part[0], merge(found, part)[1])"
        ),
        "A sum of log-sums is not the log-sum of both: `merge` returns it.": (
            "merge(found, part) => (merge(found, part)[0], found[1] + part[1])"
        ),
        "This is the last part alone: merge each part with what was found before.": (
            "merge(found, part) if found else part => part"
        ),
        TWO: "return found => return found[0]",
    },
    errors={"'NoneType' object is not callable|local variable 'arrived'": NOTHING},
    also_right=["return found => return [*found]", "(rank - step) % ranks => rank - step"],
)

# 4. Gradients on their way home

EARLY = "In step 0 no gradient is on its way to you yet."
NEVER = "A rank waits for what is never sent: each sends as often, whatever is masked."
BOTH = "Return two tensors: the gradients of the queries and of the block."


def my_way_home(block, rank, ranks, send, backward_of):
    """Blocks go round as in the forward; the gradients of each follow it, one step behind.

    What comes is the sum of the ranks before. This rank adds its own part, and sends the sum on.
    After the last step that sum is on the rank before the block's owner: one trip more.
    """
    of_query, coming = 0, None
    for step in range(ranks):
        arrived = send(block) if step < ranks - 1 else None
        part, of_block = backward_of(block, (rank - step) % ranks)
        of_query = of_query + part
        of_block = of_block + coming() if coming else of_block
        coming = send(of_block)
        block = arrived() if arrived else block
    return of_query, coming()


def all_ranks(attempt, ranks):
    """The loop on all ranks, which send each other gradients; what each returns."""
    blocks, *parts = drawn(ranks, *(1 + 2 * ranks) * [(ranks, 2, 3)])

    def program(group):
        def gives(owner):
            return parts[group.rank()][owner], parts[group.rank() - ranks][owner]

        found = on_a_ring(attempt, group.rank(), blocks, gives, partial(_pass_on, group=group))
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise NotYet(f"got {short(found)}", BOTH)
        return tuple(found)

    return ranks_in_threads(program, ranks, timeout_s=WAIT_S)


def in_one_message(block, rank, ranks, send, backward_of):
    of_query, of_block = 0, torch.zeros_like(block)
    for step in range(ranks):
        part, own = backward_of(block, rank - step)
        of_query = of_query + part
        block, of_block = send(torch.stack([block, of_block + own]))()
    return of_query, of_block


def from_the_next(block, rank, ranks, send, backward_of):
    """A sum starts on the rank after its owner, who adds its own part: n - 1 trips."""
    (of_query, own), coming = backward_of(block, rank), None
    for step in range(1, ranks):
        block = send(block)()
        part, of_block = backward_of(block, rank - step)
        of_query, coming = of_query + part, send(of_block + coming() if coming else of_block)
    return of_query, own + (coming() if coming else 0)


MINE = "+ part => + part; mine = mine if step else of_block"

check_way_home = Exercise(
    my_way_home,
    read_again='"Where does a key\'s gradient go?"',
    cases=[(1,), (2,), (3,), (4,)],
    given="{} rank(s)",
    play=all_ranks,
    hint="Follow one block: which ranks add to its gradient, and where is the sum after each step?",
    wrong={
        "This is the gradient of the next rank's block: send it on once more, home.": (
            "of_query, coming() => of_query, of_block"
        ),
        "Other ranks have found gradients for your block, too: these have to come to you.": [
            (MINE, "of_query, coming() => of_query, mine"),
            (
                "+ part => + part; mine = of_block + (mine if step else 0)",
                "of_query, coming() => of_query, mine",
            ),
        ],
        "What comes home has this rank's own part in it: do not add it again.": (
            MINE,
            "of_query, coming() => of_query, coming() + mine",
        ),
        "What came is what the ranks before have found for the block that is here: add your own "
        "part.": "+ coming() => + 0 * coming()",
        "Queries stay: add up what all blocks give for them.": "of_query + part => part",
        "One trip too many: what came before was at home.": (
            "of_query, coming() => of_query, send(coming())()"
        ),
        WHOSE: "rank - step => rank + step",
        LAST: " if step < ranks - 1 else None => ",
        CALL: "arrived() if => arrived if",
        EARLY: " if coming else of_block => ",
        NEVER: "range(ranks) => range(rank + 1)",
        "Add what this rank has found for its own block, too.": (
            "else of_block => else 0 * of_block"
        ),
        "Changed over: first the gradient of the queries, then that of the block.": (
            "of_query, coming() => coming(), of_query"
        ),
        BOTH: "return of_query, => return",
    },
    errors={"'NoneType' object is not|local variable 'coming'": EARLY, "gloo|not returned": NEVER},
    also_right=[
        in_one_message,
        from_the_next,
        "return of_query, coming() => return [of_query, coming()]",
    ],
)

# 5. An order in which all ranks work alike

EXACTLY = "Each piece belongs to exactly one rank."
MANY = "Which piece has as many tiles too many as the other has too few?"
NUMBERS = "Return two numbers of pieces."


def my_pieces(rank, ranks):
    """The first piece sees least and the last sees most, so they go together, and so on inwards.

    Piece i sees i + 1 pieces: those of pieces r and 2 n - 1 - r are always 2 n + 1 tiles.
    """
    return rank, 2 * ranks - 1 - rank


def of_all(attempt, ranks):
    pairs = [attempt(rank, ranks) for rank in range(ranks)]
    return [sorted(pair) if isinstance(pair, set) else numbers(pair) for pair in pairs]


def balanced(pairs, ranks):
    last = 2 * ranks - 1
    for rank, pair in enumerate(pairs):
        if not isinstance(pair, list | tuple | set) or len(pair) != 2:
            raise NotYet(f"got {short(pair)} on rank {rank}", NUMBERS)
        if not all(0 <= piece <= last for piece in pair):
            raise NotYet(f"rank {rank}: {short(pair)}", f"The pieces are number 0 to {last}.")
    if sorted(piece for pair in pairs for piece in pair) != [*range(last + 1)]:
        raise NotYet(f"the ranks have {short(pairs)}", EXACTLY)
    made = [sum(pair) + 2 for pair in pairs]
    if len({*made}) > 1:
        raise NotYet(f"the ranks have {short(pairs)} and compute {made} tiles", MANY)
    return f"{made[0]} tiles"


check_zigzag = Exercise(
    my_pieces,
    read_again='"Who waits in a causal ring?"',
    cases=[(1,), (2,), (3,), (5,)],
    given="{} rank(s)",
    play=of_all,
    look=balanced,
    hint="Pair the piece that sees least with the one that sees most.",
    correct="All ranks compute as many tiles: {outcome} each, with 5 ranks.",
    wrong={
        MANY: [lambda r, n: (2 * r, 2 * r + 1), lambda r, n: (r, r + n)],
        "The pieces are number 0 to": " - 1 => ",
        EXACTLY: ["2 * => ", lambda r, n: (0, 2 * n - 1)],
        NUMBERS: lambda r, n: r,
    },
    also_right=[
        lambda r, n: [2 * n - 1 - r, r],
        lambda r, n: (n - 1 - r, n + r),
        lambda r, n: torch.tensor([r, 2 * n - 1 - r]),
        lambda r, n: {r, 2 * n - 1 - r},
    ],
)

# 6. Halves that need no mask

HALVES = "Return two slices: of this rank's queries, then of the owner's keys."
PIECES = "Write down which pieces both ranks have: which of these keys lie before which queries?"


def my_seen(rank, owner, half):
    """A lower rank's first piece lies before both pieces of this rank, its last one behind both.

    Both pieces of a higher rank lie between this rank's: the last piece sees them, the first none.
    """
    if owner == rank:
        return slice(None), slice(None)
    return (slice(None), slice(half)) if owner < rank else (slice(half, None), slice(None))


def rows_and_columns(attempt, rank, owner, half):
    found = attempt(rank, owner, half)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise NotYet(f"got {short(found)}", HALVES)
    found = tuple(torch.arange(2 * half)[each] for each in found)
    if any(each.dim() != 1 for each in found):
        raise NotYet(f"got {short(found)}", HALVES)
    return tuple(each.tolist() for each in found)


LOWER, HIGHER = "(slice(None), slice(half))", "(slice(half, None), slice(None))"

check_seen = Exercise(
    my_seen,
    read_again='"Is a ring faster than one device?"',
    cases=[(0, 0, 2), (1, 0, 2), (0, 1, 3), (2, 1, 3), (1, 3, 2)],
    given="rank {}, a block of rank {}, half = {}",
    play=rows_and_columns,
    compared=lambda outcome, expected: ["queries {}, keys {}".format(*outcome)],
    hint=PIECES,
    wrong={
        "The owner's first piece lies before all of your queries, its last one behind them.": [
            f"{LOWER} => (slice(None), slice(half, None))",
            "owner < rank => owner > rank",
        ],
        "Your first piece lies before all of these keys: it sees none of them.": [
            f"{HIGHER} => (slice(half), slice(None))",
            f"{HIGHER} => (slice(None), slice(half))",
        ],
        "Half of these scores is masked, and the call has no mask.": [
            f"{LOWER} => (slice(None), slice(None))",
            f"{HIGHER} => (slice(None), slice(None))",
        ],
        "This is one piece by one piece. Two of the four pairs are seen.": [
            f"{LOWER} => (slice(half), slice(half))",
            f"{LOWER} => (slice(half, None), slice(half))",
            f"{HIGHER} => (slice(half, None), slice(half, None))",
            f"{HIGHER} => (slice(half, None), slice(half))",
        ],
        "So it is in a row. In zigzag order your last piece lies behind these keys.": [
            f"{HIGHER} => (slice(0), slice(0))",
            f"{HIGHER} => (slice(0), slice(None))",
        ],
        "Its own block a rank needs whole: the causal mask does the rest.": [
            "owner == rank => owner is None",
            ("owner == rank => owner is None", "owner < rank => owner <= rank"),
            lambda rank, owner, half: (slice(half), slice(half)),
        ],
        "Changed over: first the queries, then the keys.": lambda *given: my_seen(*given)[::-1],
        HALVES: [
            lambda rank, owner, half: slice(half),
            lambda rank, owner, half: (half, half),
        ],
    },
    errors={"indices|index|range": HALVES},
    also_right=[
        lambda rank, owner, half: [
            torch.arange(half * (owner > rank), 2 * half),
            slice(0, half if owner < rank else 2 * half),
        ],
    ],
)

# 7. A loss that is wrong and falls

ZERO = "A rank that judges no token has 0 / 0 for a mean: take its sum."
EMPTY = "A rank that judges no token, too, computes its loss, 0, from the logits: not a new tensor."
IN_PLACE = "`all_reduce` changes its tensor and returns None: go on with that tensor."
CUT_OFF = "`detach` or `item` cuts the loss off from the logits: compute it from them as they are."


def my_loss(logits, targets, group):
    """Each rank takes the sum over its own tokens, and divides it by the number judged on all.

    Then the ranks' losses, and their gradients, add up to those of the whole. A mean on each rank
    would weigh a token more the fewer are judged beside it.
    """
    judged = (targets >= 0).sum()
    distributed.all_reduce(judged, group=group)
    total = nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    return total / judged


def on_ranks(attempt, words, judged):
    """The sum of the losses, and gradients; rank r judges `judged[r]` of its four tokens."""
    [logits] = drawn(len(judged), (len(judged), 4, 6))
    targets = torch.arange(4 * len(judged)).view(-1, 4) % 6
    targets[torch.arange(4) >= torch.tensor(judged).unsqueeze(1)] = -100

    def program(group):
        own = logits[group.rank()].clone().requires_grad_()
        loss = attempt(own, targets[group.rank()].clone(), group)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise NotYet(f"got {short(loss)}", "Return one number, a tensor.")
        if not loss.isfinite():
            raise NotYet(f"got {short(loss)} on a rank", ZERO)
        if loss.requires_grad:
            loss.backward()
        if own.grad is None:
            words = "The loss has no gradient for `logits`: nothing learns from it."
            raise NotYet(words, CUT_OFF if judged[group.rank()] else EMPTY)
        return loss.item(), own.grad

    losses, gradients = zip(*ranks_in_threads(program, len(judged), timeout_s=WAIT_S), strict=True)
    largest = max(each.abs().max().item() for each in gradients)
    return {"sum": sum(losses), "largest gradient": largest, "gradients": torch.stack(gradients)}


def by_hand(logits, targets, group):
    judged = targets >= 0
    count = judged.sum().float().view(1)
    distributed.all_reduce(count, group=group)
    return -logits.log_softmax(-1)[judged, targets[judged]].sum() / count[0]


OF_ALL = "return => distributed.all_reduce(total.data, group=group); return"

check_loss = Exercise(
    my_loss,
    read_again='"A decoder on n ranks"',
    cases=[("4 and 4", [4, 4]), ("4 and 2", [4, 2]), ("1, 4 and 0", [1, 4, 0])],
    given="ranks on which {0} tokens are judged",
    play=on_ranks,
    hint="The sum of the ranks' losses has to be the mean over all tokens that are judged.",
    wrong={
        "Here all ranks judge as many tokens. Where they do not, a mean of means is another number."
        " Count over all ranks.": ('"sum" => "mean"', "/ judged => / group.size()"),
        "The ranks' gradients are added, so a mean on each counts everything n times.": (
            '"sum" => "mean"',
            " / judged => ",
        ),
        "A target of -100 is not judged, and is not counted.": (
            "/ judged => / targets.numel() / group.size()"
        ),
        "This is a sum over tokens: divide it.": " / judged => ",
        "Divided by this rank's tokens: count those of all ranks.": (
            "distributed.all_reduce(judged, group=group) => judged.clamp_(min=1)"
        ),
        "0 is a token, too: judged is each target that is not -100.": [
            "targets >= 0 => targets > 0",
            "judged = => targets[targets == 0] = -100; judged =",
        ],
        EMPTY: "/ judged => / judged if (targets >= 0).any() else torch.tensor(0.0)",
        IN_PLACE: "distributed.all_reduce( => judged = distributed.all_reduce(",
        "This is the loss of all ranks. Each rank returns its own share.": OF_ALL,
        ZERO: ('"sum" => "mean"', "/ judged => / judged * (targets >= 0).sum()"),
        CUT_OFF: "cross_entropy(logits => cross_entropy(logits.detach().requires_grad_()",
        "Divided by n, the gradient is, too: the ranks' gradients are added.": (
            OF_ALL,
            "/ judged => / judged / group.size()",
        ),
        "Pass `group=group`": ", group=group => ",
    },
    errors={
        "Default process group": "Pass `group=group` to each message.",
        "'NoneType'": IN_PLACE,
        "Expected parameter `tensor`": "A message takes a tensor, no number: leave `item` out.",
        "gloo|had not returned": "Do all ranks send the same messages, in one order?",
    },
    also_right=[by_hand, (OF_ALL, "; return => ; total.data /= group.size(); return")],
)

# 8. How long computing and sending a block take

SECONDS = "Return three numbers: computing, sending, equal."
TIMES = {
    "Computing": "4 t t w operations, by operations a second",
    "Sending": "2 t w numbers of `itemsize` bytes each, by bytes a second",
    "Equal": "4 t t w operations take as long as 2 t w numbers on their way; solve for t",
}


def my_block_times(tokens, width, operations, speed, itemsize):
    """A whole block of t tokens is two matmuls of 2 t t w operations; 2 t w numbers are sent.

    Where both take as long, `4 t t w / operations = 2 t w itemsize / speed`. The width drops out.
    """
    computing = 4 * tokens**2 * width / operations
    sending = 2 * tokens * width * itemsize / speed
    return computing, sending, itemsize * operations / (2 * speed)


check_block_times = Exercise(
    my_block_times,
    read_again='"When is a message hidden?"',
    cases=[(5, 3, 600, 45, 3), (8, 10, 1280, 40, 2), (100, 7, 7000, 3000, 8)],
    given="{} tokens of width {}, {} operations and {} bytes a second, {} bytes per number",
    play=call_for_numbers,
    hint=first_wrong(TIMES, SECONDS),
    wrong={
        "Computing: 2 t t w multiply-adds, each two operations.": [
            ("4 * => 2 *", "(2 * speed) => speed"),
            ("4 * => 1 *", "(2 * speed) => (speed / 2)"),
        ],
        "Twice this: two matmuls; keys and values.": ("4 * => 2 *", "sending = 2 * => sending = "),
        "Computing: each of t queries meets each of t keys.": (
            "tokens**2 => tokens",
            "itemsize * operations => tokens * itemsize * operations",
        ),
        "Sending: keys and values, 2 t w numbers.": (
            "sending = 2 * => sending = ",
            "2 * speed => 4 * speed",
        ),
        "Seconds are work, divided by work a second.": (
            "return computing, sending => return 1 / computing, 1 / sending"
        ),
        "Changed over: computing comes first.": "computing, sending => sending, computing",
        "Upside down: a faster link hides earlier.": (
            "itemsize * operations / (2 * speed) => 2 * speed / (itemsize * operations)"
        ),
        "Bytes a second, not bits: no factor of 8.": (
            "sending = 2 => sending = 16",
            "itemsize * operations / (2 => 8 * itemsize * operations / (2",
        ),
        "No root: one t of 4 t t w cancels.": (
            "itemsize * operations / (2 * speed) => (itemsize * operations / (2 * speed)) ** 0.5"
        ),
        "Do not round: divide by `/`, not by `//`.": [
            "operations / (2 => operations // (2",
            " / => // ",
            "itemsize * operations / (2 * speed) => round(itemsize * operations / (2 * speed))",
        ],
        SECONDS: "return computing, sending, => return",
    },
    also_right=[lambda *g: [*my_block_times(*g)], lambda *g: torch.tensor(my_block_times(*g))],
)
