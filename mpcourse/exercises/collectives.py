"""Exercises of page `collectives`: a ring, a deadlock, tree and ring predicted."""

import math

import torch
from torch import Tensor

from mpcourse.exercises.exercise import NO_RETURN, Exercise, NotYet, call_for_numbers, short
from mpcourse.exercises.turn_taking import Exchange, Stuck

# 1. All-reduce as a ring

RECEIVES_FIRST = "Everybody receives first: send the piece, then receive."
TO_THE_RIGHT = "in a ring, only to the right, (r + 1) % n."
OVERWRITTEN = "Sums are overwritten: add in the first round, begin the second with chunk r + 1."
CHUNKS_ONLY = "Send a chunk in each step, not the whole tensor."
A_TUPLE = "tensor_split gives a tuple, whose items cannot be set: `chunks[i].add_(…)` writes."
NO_VIEW = "Not every tensor divides by the ranks; tensor_split cuts any."
ROUND = "After the last rank comes rank 0: to (rank + 1) % count, from (rank - 1) % count."
PIECE_FIRST = "Both as above: `send(piece, target)`, and `recv(source)` returns the piece."
ONE_CHUNK = "That is a reduce-scatter: a second round gives everybody all chunks."
TOO_FEW = "Chunks are numbered modulo the ranks; tensor_split gives one to every rank."


def my_all_reduce(tensor, rank, count, send, recv):
    """Two rounds of count - 1 steps: add what arrives, then replace by what arrives.

    In step s = 1, 2, … rank r sends chunk r - s + 1 and gets chunk r - s. The division comes last.
    """
    chunks = tensor.tensor_split(count)  # views: changing a chunk changes the tensor
    for step in range(1, count):
        send(chunks[(rank - step + 1) % count], (rank + 1) % count)
        chunks[(rank - step) % count].add_(recv((rank - 1) % count))
    for step in range(count, 2 * count - 1):
        send(chunks[(rank - step + 1) % count], (rank + 1) % count)
        chunks[(rank - step) % count].copy_(recv((rank - 1) % count))
    return tensor / count


def around(attempt, count, numbers):
    """What each rank returns, if the messages are those of a ring."""
    exchange, results = Exchange(count), []
    try:
        own = torch.arange(1.0, numbers + 1)  # times 8**rank: a sum shows how often each is in it
        results = exchange.run(attempt, [own * 8**rank for rank in range(count)])
        results = [torch.as_tensor(r) if hasattr(r, "__array__") else r for r in results]
    except Stuck:
        pass
    for source, target, _ in exchange.sent:
        if target != (source + 1) % count:
            raise NotYet(f"Rank {source} sent to rank {target}: {TO_THE_RIGHT}")
    if exchange.stuck is not None:
        waits = [f"rank {rank} for rank {source}" for rank, source in exchange.stuck.items()]
        line = f"It never ends: {', '.join(waits)} waits for a message that nobody sends."
        raise NotYet(line, RECEIVES_FIRST * (not exchange.sent))
    for rank, result in enumerate(results):
        if not isinstance(result, Tensor) or result.shape != own.shape:
            line = f"Rank {rank} returned {short(result)}"
            why = NO_RETURN if result is None else ONE_CHUNK * isinstance(result, Tensor)
            raise NotYet(line, f"expected the tensor of {numbers} numbers.", why)
    for source, target in exchange.unread:
        raise NotYet(f"A message from rank {source} to rank {target} was never received.")
    steps = 2 * (count - 1)
    for rank in range(count):
        sent = [piece.numel() for source, _, piece in exchange.sent if source == rank]
        most = steps * -(-numbers // count)
        if len(sent) > steps:
            raise NotYet(f"Rank {rank} sent {len(sent)} messages; two rounds have {steps} steps.")
        if sum(sent) > most:
            line = f"Rank {rank} sent {sum(sent)} numbers; a ring of chunks sends {most}."
            raise NotYet(line, CHUNKS_ONLY)
    return results


def whole_tensors(tensor, rank, count, send, recv):
    piece = tensor
    for _ in range(count - 1):
        send(piece, (rank + 1) % count)
        tensor = tensor + (piece := recv((rank - 1) % count))
    return tensor / count


SECOND_ROUND = "range(count, 2 * count - 1)"

check_ring = Exercise(
    my_all_reduce,
    read_again='"What does rank 0 hold after two steps?"',
    cases=[(3, 3), (2, 4), (4, 4), (3, 7), (4, 2), (1, 3)],
    given="{} rank(s), {} numbers each; rank r begins with 8**r times 1, 2, …",
    play=around,
    hint="A sum is not complete, or in the wrong place. In step s = 1, 2, … rank r sends chunk "
    "r - s + 1, the one that arrived in the step before; what arrives is chunk r - s. Both rounds "
    "count on: the second begins with chunk r + 1.",
    correct="The mean on every rank in {count} cases, to the right only, and never more than a "
    "ring has to send.",
    wrong={
        "That is the sum: divide by the {0} ranks.": "tensor / count => tensor",
        "It was divided more than once: each number once.": "/ count => / count / count",
        "`//` drops what is left over: divide by `/`.": "tensor / count => tensor // count",
        "The tensors are as they were: all that a ring does is missing.": lambda tensor, *_: tensor,
        OVERWRITTEN: ["add_ => copy_", f"{SECOND_ROUND} => range(1, count)"],
        "One round of {0} - 1 steps: a second hands the sums on.": f"{SECOND_ROUND} => ()",
        "The second round has {0} - 1 steps, too.": "2 * count - 1) => 2 * count - 2)",
        "Only the division arrived: `chunks[i] = …` does not write into the tensor, "
        "`chunks[i].add_(…)` does, if the chunks are views.": (
            "tensor.tensor_split => tensor.clone().tensor_split"
        ),
        "The second round replaces what is there: whole sums are not added again.": "copy_ => add_",
        "rank r sends chunk": "chunks[(rank - step) => chunks[(rank - step + 1)",
        TO_THE_RIGHT: (
            f"{SECOND_ROUND} => ()",
            ", (rank + 1) => , (rank - 1)",
            "recv((rank - 1) => recv((rank + 1)",
        ),
        CHUNKS_ONLY: whole_tensors,
        RECEIVES_FIRST: "send( => recv((rank - 1) % count); send(",
        "sent 5 messages; two rounds have 4 steps.": "range(1, count) => range(1, count + 1)",
        "was never received.": "return => send(tensor[:1], (rank + 1) % count); return",
        NO_RETURN: "return tensor => tensor",
        ONE_CHUNK: "return tensor => return chunks[(rank + 1) % count]",
        ROUND: ", (rank + 1) % count) => , rank + 1)",
        PIECE_FIRST: ["send( => (lambda a, b: send(b, a))(", "recv( => recv(tensor, "],
        TOO_FEW: "tensor_split => chunk",
        A_TUPLE: "].add_(recv((rank - 1) % count)) => ] += recv((rank - 1) % count)",
        NO_VIEW: "tensor.tensor_split(count) => tensor.view(count, -1)",
        "The last numbers are in no chunk; tensor_split takes all.": (
            "tensor.tensor_split => tensor[: len(tensor) // count * count].tensor_split"
        ),
    },
    errors={
        "IndexError": TOO_FEW,
        "TypeError: 'tuple'": A_TUPLE,
        "RuntimeError: shape": NO_VIEW,
        "ValueError: rank . of . cannot": ROUND,
        "had not returned": "Two loops, of count - 1 steps each: one of yours never ends.",
        r"TypeError: .*(send|recv\(\)) takes": PIECE_FIRST,
    },
    also_right=[
        (  # shifted by one, in chunks of its own, divided between the rounds
            "[(rank - step) => [(rank - step - 1)",
            "step + 1 => step",
            "tensor.tensor_split(count) => [*tensor.clone().split(-(-len(tensor) // count)), "
            "*[tensor[:0]] * count]",
            "for step in range(count, => chunks[rank].div_(count)\n    for step in range(count,",
            "return tensor / count => return torch.cat(chunks)",
        ),
        "tensor / count => (tensor / count).numpy()",
    ],
)

# 2. Programs of sends and receives, where a send waits for its receive: who never ends?


def my_stuck(programs):
    """Let pairs meet for as long as any pair can.

    A send goes on only together with its receive, so both ranks move by one. Who is not at the end
    when nothing moves any more waits for ever: for somebody who has ended, or who waits too.
    """
    at = [0] * len(programs)

    def next_of(rank):
        return tuple(programs[rank][at[rank]]) if at[rank] < len(programs[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank in range(len(programs)):
            kind, other = next_of(rank) or ("ended", rank)
            if kind == "send" and next_of(other) == ("recv", rank):
                at[rank] += 1
                at[other] += 1
                moved = True
    return {rank: index for rank, index in enumerate(at) if index < len(programs[rank])}


S, R = "send", "recv"
AT_ITS_END = "A program may be empty, or at its end: look before you read its next operation."

check_deadlock = Exercise(
    my_stuck,
    read_again='"Everybody sends first"',
    cases=[
        ([[(S, 1)], [(R, 0)]],),
        ([[(S, 1), (R, 1)], [(S, 0), (R, 0)]],),
        ([[(S, 1), (R, 1)], [(R, 0), (S, 0)]],),
        ([[(S, 1), (S, 2)], [(R, 0)], [(R, 0)]],),
        ([[(S, 1)], [(R, 0), (R, 0)]],),
        ([[(S, 1)] * 5, [(R, 0)] * 5],),
        ([[(S, 1), (S, 2)], [(R, 2), (R, 0)], [(R, 0), (S, 1)]],),
        ([[(S, 1), (R, 2)], [(R, 0), (S, 2)], [(R, 1), (S, 0)]],),
        ([[(R, 1), (S, 1)], [(R, 2), (S, 0)], [(S, 1)], []],),
        ([[(S, 1)], [(R, 0), (S, 2)], [(R, 3), (R, 1)], []],),
        ([[(R, 1)], [(R, 0)], [(S, 3)], [(R, 2)]],),
        ([[(S, (r + 1) % 5), (R, (r - 1) % 5)] for r in range(5)],),
        ([[(R, 4), (S, 1)], *([(S, (r + 1) % 5), (R, r - 1)] for r in range(1, 5))],),
    ],
    given="programs {}",
    hint="Two ranks go on when one is at a send to the other, which is at a recv from it; "
    "operations can meet at different indices.",
    wrong={
        "Here a send waits for its receive: sending first does not end it.": lambda programs: {},
        "Not all of them end: some wait for somebody who has ended, or who waits too.": (
            lambda p: stuck if len(stuck := my_stuck(p)) == len(p) else {}
        ),
        "A rank that waited may go on later: repeat until nothing moves.": "while => if",
        "One pass each is too few: repeat until nothing moves.": "while moved => for _ in programs",
        "A send and its receive end together: move both on.": "at[other] += 1 => pass",
        "The first operation of a program has index 0.": "rank: index => rank: index + 1",
        "If all end, return {{}}; None is what a function without return gives back.": (
            "])} => ])} or None"
        ),
        "Say also where: a dict, rank -> index of the operation.": [
            lambda p, form=form: form(my_stuck(p)) for form in (list, set, bool)
        ],
        "Count also the operations that are done.": lambda p: dict.fromkeys(my_stuck(p), 0),
        "The value is the operation's index.": "rank: index => rank: programs[rank][index]",
        "Leave out the ranks that end.": " if index < len(programs[rank])} => }",
        AT_ITS_END: " if at[rank] < len(programs[rank]) else None => ",
    },
    errors={"IndexError": AT_ITS_END, "had not returned": "Stop when nothing moves any more."},
)

# 3. An all-reduce as a tree, and as a ring


def my_seconds(count, nbytes, latency, bandwidth):
    """Rounds times what one message takes.

    The tree has log2(count) rounds up and as many down, each with whole tensors. The ring has
    count - 1 steps in each of its two rounds, and a message is one chunk.
    """
    tree = 2 * math.log2(count) * (latency + nbytes / bandwidth)
    ring = 2 * (count - 1) * (latency + nbytes / count / bandwidth)
    return tree, ring


TREE_ONCE = "* (latency + nbytes / bandwidth) => * nbytes / bandwidth + latency"
RING_ONCE = "* (latency + nbytes / count / bandwidth) => * nbytes / count / bandwidth + latency"

check_tree_and_ring = Exercise(
    my_seconds,
    read_again='"Is a ring always the fastest?"',
    cases=[(4, 100, 1.0, 10.0), (8, 4100, 2.0, 1000.0), (64, 1e6, 0.5, 1e5), (1, 10, 1.0, 1.0)],
    given="{} ranks, {:g} bytes, latency {:g}, bandwidth {:g}",
    play=call_for_numbers,
    hint="Return two numbers: the seconds as a tree, and as a ring. Each is the rounds times "
    "(latency + bytes of one message / bandwidth).",
    wrong={
        "The tree comes first.": "return tree, ring => return ring, tree",
        "The tree has to bring the sum back, too: as many rounds again.": "2 * math => math",
        "The ring has two rounds: one adds, one hands the sums out.": "2 * (count => (count",
        "Both have two rounds: one adds, one hands the sums out.": "2 * => ",
        "A message of a ring is one of n chunks.": ["/ count => ", "/ count => / (count - 1)"],
        "A round of the ring has n - 1 steps, not n.": "(count - 1) => count",
        "log2: a round doubles the ranks that are done.": ["log2 => log", "log2 => log10"],
        "That is a star. In a tree many messages go at once.": "math.log2(count) => (count - 1)",
        "log2(n) rounds up and as many back, none more.": "log2(count) => log2(2 * count)",
        "Every round has its latency.": [(TREE_ONCE, RING_ONCE), TREE_ONCE, RING_ONCE],
        "Fractions count, too: divide by `/`.": [
            f"{old} => {old.replace('/', '//')}"
            for old in ("nbytes / count", "nbytes / bandwidth", "/ bandwidth", "/")
        ],
        "Bytes divided by bytes per second are seconds.": "/ bandwidth => * bandwidth",
        "The bandwidth is in bytes per second: no factor 8.": "/ bandwidth => * 8 / bandwidth",
        "This tree sends whole tensors in every round; no message of it is smaller.": [
            f"nbytes / bandwidth => nbytes / {parts} / bandwidth" for parts in ("2", "count")
        ],
        "Return two numbers": "return tree, ring => return 'tree' if tree < ring else 'ring'",
    },
    also_right=[lambda *given: torch.tensor(my_seconds(*given), dtype=torch.float64)],
)
