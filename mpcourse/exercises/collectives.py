"""Exercises of page `collectives`: a ring, a deadlock, doubling."""

from contextlib import suppress

import torch
from torch import Tensor

from mpcourse.exercises.exercise import NO_RETURN, Exercise, NotYet, short
from mpcourse.exercises.turn_taking import Exchange, Stuck

# 1. All-reduce as a ring

RECEIVES_FIRST = "Everybody receives first: send the piece, then receive."
TO_THE_RIGHT = "in a ring, only to the right, (r + 1) % n."
OVERWRITTEN = "Sums are overwritten: add in the first round, begin the second with chunk r."
CHUNKS_ONLY = "Send a chunk in each step, not the whole tensor."
A_TUPLE = "tensor_split gives a tuple, whose items cannot be set: `chunks[i].add_(…)` writes."
NO_VIEW = "Not every tensor divides by the ranks; tensor_split cuts any."
ROUND = (
    "After the last rank comes rank 0: to (rank + 1) % count, from (rank - 1) % count. "
    "And `count` is not always 4."
)
FROM_LEFT = "In a ring, receive only from the left: from rank (r - 1) % n."
ONE_EACH = "In each step a rank sends once and receives once; here one receives more often."
FIVE = "The function takes five arguments: tensor, rank, count, send, recv."
PIECE_FIRST = "Here it is `send(piece, target)`, and `recv(source)` returns the piece."
ONE_CHUNK = "That is a reduce-scatter: a second round gives everybody all chunks."
PADDED = "More numbers than came in: what a chunk was filled up with has to go again."
NO_GROUP = "No processes are connected here: build it out of the given send and recv."
NUMBER_BY_NUMBER = "Add over the ranks, number by number: no `sum()` or `mean()` of a tensor."
A_LIST = "A list is no tensor: torch.cat joins chunks, torch.tensor takes numbers."
TOO_FEW = "Chunks are numbered modulo `count`, not 4; tensor_split gives one to every rank."
A_FLOAT = "`range` takes whole numbers: `log2` and `/` give floats, `int(…)` makes one whole."
NOTHING_SENT = "What other ranks have comes by `send` and `recv` alone: variables are not shared."
GIVEN = {
    "TypeError: 'float' object cannot be": A_FLOAT,
    "process group": NO_GROUP,
    r"TypeError: .*(send|recv\(\)) takes": PIECE_FIRST,
    r"takes \d positional arguments? but 5 were given": FIVE,
}


def my_all_reduce(tensor, rank, count, send, recv):
    """Two rounds of count - 1 steps: add what arrives, then replace by what arrives.

    In step s = 1, 2, … rank r sends chunk r - s and gets chunk r - s - 1. The division comes last.
    """
    chunks = tensor.tensor_split(count)  # views: changing a chunk changes the tensor
    for step in range(1, count):
        send(chunks[(rank - step) % count], (rank + 1) % count)
        chunks[(rank - step - 1) % count].add_(recv((rank - 1) % count))
    for step in range(count, 2 * count - 1):
        send(chunks[(rank - step) % count], (rank + 1) % count)
        chunks[(rank - step - 1) % count].copy_(recv((rank - 1) % count))
    return tensor / count


def on_ranks(attempt, count, numbers):
    """What each rank returns; then the messages, or the ranks that wait for ever."""
    exchange, results = Exchange(count), []
    own = torch.arange(1.0, numbers + 1)  # times 8**rank: up to 8 ranks, a sum shows each
    with suppress(Stuck):
        results = exchange.run(attempt, [own * 8**rank for rank in range(count)])
    return [torch.as_tensor(r) if hasattr(r, "__array__") else r for r in results], exchange


def refuse_unfinished(results, exchange, numbers, waits_for):
    if exchange.stuck is not None:
        waits = [f"rank {rank} waits for rank {source}" for rank, source in exchange.stuck.items()]
        line = f"It never ends: {', '.join(waits)}; no such message comes."
        raise NotYet(line, waits_for if exchange.sent else RECEIVES_FIRST)
    for rank, result in enumerate(results):
        if not isinstance(result, Tensor) or result.shape != (numbers,):
            line = f"Rank {rank} returned {short(result)}"
            why = NO_RETURN if result is None else A_LIST * isinstance(result, list | tuple)
            if getattr(result, "ndim", 1) == 0:
                why = NUMBER_BY_NUMBER
            if getattr(result, "ndim", 0) == 1:
                why = ONE_CHUNK if len(result) < numbers else PADDED
            raise NotYet(line, f"expected the tensor of {numbers} numbers.", why)
    for source, target in exchange.unread:
        raise NotYet(f"A message from rank {source} to rank {target} was never received.")


def around(attempt, count, numbers):
    """What each rank returns, if the messages are those of a ring."""
    results, exchange = on_ranks(attempt, count, numbers)
    for source, target, _ in exchange.sent:
        if target != (source + 1) % count:
            raise NotYet(f"Rank {source} sent to rank {target}: {TO_THE_RIGHT}")
    stuck = exchange.stuck or {}
    from_left = all(source == (rank - 1) % count for rank, source in stuck.items())
    refuse_unfinished(results, exchange, numbers, waits_for=ONE_EACH if from_left else FROM_LEFT)
    if count > 1 and not exchange.sent:
        raise NotYet("No rank sent a message.", NOTHING_SENT)
    steps, most = 2 * (count - 1), 2 * (count - 1) * -(-numbers // count)
    for rank in range(count):
        sent = [piece.numel() for source, _, piece in exchange.sent if source == rank]
        if len(sent) > steps:
            line = (
                f"Rank {rank} sent {len(sent)} messages; two rounds of count - 1 steps are {steps}."
            )
            raise NotYet(line)
        if sum(sent) > most:
            line = f"Rank {rank} sent {sum(sent)} numbers; a ring of chunks sends {most}."
            raise NotYet(line, CHUNKS_ONLY)
    return results


def whole_tensors(tensor, rank, count, send, recv):
    pieces = [tensor]
    for _ in range(count - 1):
        send(pieces[-1], (rank + 1) % count)
        pieces.append(recv((rank - 1) % count))
    return sum(pieces) / count


SECOND_ROUND = "range(count, 2 * count - 1)"
DIVIDED = "It was divided more than once: divide once, at the end."
DIVIDED_AS_IT_ADDS = "add_(recv((rank - 1) % count)) => add_(recv((rank - 1) % count)).div_(count)"
IN_EACH_STEP = "add_(recv((rank - 1) % count)) => lerp_(recv((rank - 1) % count), 0.5)"

check_ring = Exercise(
    my_all_reduce,
    read_again='"What does rank 0 hold after two steps?"',
    cases=[(3, 3), (2, 4), (4, 4), (3, 7), (4, 2), (1, 3)],
    given="{} rank(s), {} numbers each; rank r begins with 8**r times 1, 2, …",
    play=around,
    hint="A sum is not complete, or in the wrong place. In step s = 1, 2, … rank r sends chunk "
    "r - s, the last that came, and gets chunk r - s - 1; the second round begins with chunk r.",
    correct="The mean on every rank in {count} cases, to the right only, and never more than a "
    "ring has to send.",
    wrong={
        "That is the sum: divide by the {0} ranks.": "tensor / count => tensor",
        DIVIDED: [
            "/ count => / count / count",
            (IN_EACH_STEP, "tensor / count => tensor"),
            ("% count)) => % count)).div_(count)", "tensor / count => tensor"),
            (DIVIDED_AS_IT_ADDS, "tensor / count => tensor"),
            DIVIDED_AS_IT_ADDS,
        ],
        "The sum is whole: divide it by `count`.": [
            f"/ count => / {n}"
            for n in ("4", "count / 2", "2", "3", "len(tensor)", "(count - 1 or 1)")
        ],
        NUMBER_BY_NUMBER: "return tensor / count => return (tensor / count).mean()",
        "`//` drops what is left over: divide by `/`.": "tensor / count => tensor // count",
        NOTHING_SENT: [
            lambda tensor, *_: tensor,
            "chunks = => return tensor / 8**rank * sum(8**r for r in range(count)) / count\n"
            "    chunks =",
        ],
        OVERWRITTEN: ["add_ => copy_", f"{SECOND_ROUND} => range(1, count)"],
        "One round of {0} - 1 steps: a second hands the sums on.": f"{SECOND_ROUND} => ()",
        "Each chunk has one rank's numbers: add in place (`add_`, not `add`), and begin the second "
        "round with the chunk that is whole.": "add_ => add",
        "The second round has {0} - 1 steps, too.": "2 * count - 1) => 2 * count - 2)",
        "Only the division arrived: `chunks[i] = …` does not write into the tensor, "
        "`chunks[i].add_(…)` does, if the chunks are views.": (
            "tensor.tensor_split => tensor.clone().tensor_split"
        ),
        "The second round replaces what is there: whole sums are not added again.": "copy_ => add_",
        "rank r sends chunk": "chunks[(rank - step - 1) => chunks[(rank - step)",
        "Pass on what has arrived, not your own chunk in each step.": (
            "send(chunks[(rank - step) % count] => send(chunks[rank]"
        ),
        TO_THE_RIGHT: (
            f"{SECOND_ROUND} => ()",
            ", (rank + 1) => , (rank - 1)",
            "recv((rank - 1) => recv((rank + 1)",
        ),
        CHUNKS_ONLY: whole_tensors,
        RECEIVES_FIRST: "send( => recv((rank - 1) % count); send(",
        "sent 5 messages; two rounds of count - 1 steps are 4.": (
            "range(1, count) => range(1, count + 1)"
        ),
        FROM_LEFT: [
            "recv((rank - 1) => recv((rank + 1)",
            lambda t, r, c, s, v: (s(t[:1], (r + 1) % c), v((r + 1) % c)) and t,
        ],
        ONE_EACH: "return => recv((rank - 1) % count); return",
        FIVE: [lambda t, r, c, s: t, lambda t: t],
        "was never received.": "return => send(tensor[:1], (rank + 1) % count); return",
        NO_RETURN: "return tensor => tensor",
        ONE_CHUNK: "return tensor => return chunks[rank]",
        PADDED: "return tensor => return torch.cat([tensor, tensor[:1]])",
        A_LIST: "return tensor / count => return list(chunks)",
        NO_GROUP: "chunks = => torch.distributed.all_reduce(tensor); chunks =",
        ROUND: [", (rank + 1) % count) => , rank + 1)", ", (rank + 1) % count => , (rank + 1) % 4"],
        PIECE_FIRST: ["send( => (lambda a, b: send(b, a))(", "recv( => recv(tensor, "],
        TOO_FEW: ["tensor_split => chunk", "% count => % 4"],
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
        **GIVEN,
    },
    also_right=[
        (  # shifted by one, in chunks of its own, divided between the rounds
            "step - 1) => step)",
            "send(chunks[(rank - step) => send(chunks[(rank - step + 1)",
            "tensor.tensor_split(count) => [*tensor.clone().split(-(-len(tensor) // count)), "
            "*[tensor[:0]] * count]",
            "for step in range(count, => chunks[(rank + 1) % count].div_(count)\n"
            "    for step in range(count,",
            "return tensor / count => return torch.cat(chunks)",
        ),
        "tensor / count => (tensor / count).numpy()",
    ],
)

# 2. Programs of sends and receives, where a send waits for its receive: who never ends?


def my_stuck(programs):
    """A send goes on only together with its receive, so both ranks move by one.

    Who is not at the end when no pair can move waits for ever.
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
A_DICT = "Say also where: a dict, rank -> index of the operation."
RANKS_AS_KEYS = "The keys are ranks: numbers, no strings."
AT_ITS_END = "A program may be empty, or at its end: look before you read its next operation."


def as_a_dict(attempt, programs):
    """What the attempt returns, if it is None or has numbers as keys."""
    stuck = attempt(programs)
    if stuck is not None and not isinstance(stuck, dict):
        raise NotYet(f"got {short(stuck)}", A_DICT)
    if any(isinstance(rank, str) for rank in stuck or ()):
        raise NotYet(f"got {short(stuck)}", RANKS_AS_KEYS)
    return stuck


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
        ([[(S, 0), (R, 0)], []],),
        ([[(R, 4), (S, 1)], *([(S, (r + 1) % 5), (R, r - 1)] for r in range(1, 5))],),
        (  # the last rank begins, and hands on: a pass over the ranks can move one pair only
            [[(R, r + 1)] * 3 * (r < 5) + [(S, r - 1)] * 3 * (r > 0) for r in range(6)],
        ),
    ],
    given="programs {}",
    play=as_a_dict,
    hint="Two ranks go on when one is at a send to the other, which is at a recv from it; "
    "operations can meet at different indices.",
    wrong={
        "Here a send waits for its receive: sending first does not end it.": lambda programs: {},
        "Not all of them end: some wait for somebody who has ended, or who waits too.": (
            lambda p: stuck if len(stuck := my_stuck(p)) == len(p) else {}
        ),
        "A rank that waited may go on later: repeat until nothing moves.": [
            "while => if",
            (  # each rank once, and then as far as it can
                "while => if",
                'kind, other = next_of(rank) or ("ended", rank) => gets = {"send": "recv"}',
                'if kind == "send" and next_of(other) == ("recv", rank) => while (op := next_of('
                'rank)) and next_of(other := op[1]) == (gets.get(op[0], "send"), rank)',
            ),
        ],
        "A fixed number of passes can be too few: repeat until nothing moves.": [
            f"while moved => for _ in {passes}"
            for passes in (
                "programs",
                *(f"range({n})" for n in range(2, 15)),
                "range(max(map(len, programs), default=0))",
                "range(len(programs) + max(map(len, programs), default=0))",
            )
        ],
        "A send to oneself waits for a receive that stands behind it.": (
            'next_of(other) == ("recv", rank) => '
            '(other == rank or next_of(other) == ("recv", rank))'
        ),
        "A recv names its sender: it meets a send from no other rank.": (
            'next_of(other) == ("recv", rank) => (next_of(other) or "e")[0] == "recv"'
        ),
        "A send and its receive end together: move both on.": "at[other] += 1 => pass",
        "The first operation of a program has index 0.": "rank: index => rank: index + 1",
        NO_RETURN + " If all end, return {{}}.": "])} => ])} or None",
        A_DICT: [
            *(lambda p, form=form: form(my_stuck(p)) for form in (list, set, bool)),
            *(lambda p, given=given: given for given in ([0, 1], True)),
        ],
        RANKS_AS_KEYS: [
            lambda p: {str(rank): index for rank, index in my_stuck(p).items()},
            lambda p: {"0": 0},
        ],
        "Count also the operations that are done.": lambda p: dict.fromkeys(my_stuck(p), 0),
        "The value is the operation's index.": [
            f"rank: index => rank: programs[rank][index{part}]" for part in ("", "][1", ":")
        ],
        "Leave out the ranks that end.": [
            " if index < len(programs[rank])} => }",
            lambda p: {rank: my_stuck(p).get(rank) for rank in range(len(p))},
        ],
        "Count the operations that are done, not those that are left.": (
            lambda p: {rank: len(p[rank]) - index for rank, index in my_stuck(p).items()}
        ),
        AT_ITS_END: " if at[rank] < len(programs[rank]) else None => ",
    },
    errors={"IndexError": AT_ITS_END, "had not returned": "Stop when nothing moves any more."},
)

# 3. All-reduce by doubling

OWN_PARTNER = "A rank is no partner of itself: the bits are 1, 2, 4, …; `rank ^ 0` is the rank."
TOO_FAR = "The partners of n ranks are 0 to n - 1: the bits are 1, 2, 4, … while they are below n."
IN_PAIRS = "The two of a pair swap with each other: of ranks 0 and 1, each is the other's partner."
NO_PAIRS = (
    "Without pairs a sum can be right, too, but doubling is asked for: "
    "of ranks 0 and 1, each is the other's partner."
)
EACH_STEP = "In every step each rank swaps with one partner, and 1, 2, 4, … ranks share a sum."
WHOLE = "Whole tensors are swapped; no chunks."
TURNS = "Both of a pair send first: if they take turns, each step takes twice as long."


def my_doubling(tensor, rank, count, send, recv):
    """Each step doubles how many ranks have the same sum.

    `rank ^ bit` changes one bit of a rank's number. Each step changes another, so a partner's sum
    has only numbers that are new to this rank. What is sent is the sum so far.
    """
    bit = 1
    while bit < count:
        send(tensor, rank ^ bit)
        tensor = tensor + recv(rank ^ bit)
        bit *= 2
    return tensor


def in_pairs(attempt, count, numbers):
    """What each rank returns, if each has sent log2(count) whole tensors; who received first."""
    received_first = set()

    def watched(tensor, rank, count, given_send, given_recv):
        partners = set()

        def send(piece, target):
            given_send(piece, target)
            partners.add(int(target))

        def recv(source):
            piece = given_recv(source)
            if int(source) not in partners:
                received_first.add(rank)
            return piece

        return attempt(tensor, rank, count, send, recv)

    results, exchange = on_ranks(watched, count, numbers)
    steps, sources = count.bit_length() - 1, [source for source, *_ in exchange.sent]
    if any(piece.numel() != numbers for *_, piece in exchange.sent):
        raise NotYet("A message had not all numbers.", WHOLE)
    for rank in range(count if exchange.stuck is None else 0):
        if (sent := sources.count(rank)) != steps:
            line = f"Rank {rank} sent {sent} message(s); in doubling each of {count} sends {steps}."
            raise NotYet(line, EACH_STEP)
    refuse_unfinished(results, exchange, numbers, waits_for=IN_PAIRS)
    pairs = {(source, target) for source, target, _ in exchange.sent}
    for source, target in sorted(pairs):
        if (target, source) not in pairs:
            raise NotYet(f"Rank {source} sent to rank {target}, which sent nothing back.", NO_PAIRS)
    if received_first:
        return {"returned": results, "received before they sent": sorted(received_first)}
    return results


def as_a_tree(tensor, rank, count, send, recv):
    halves = [2**k for k in range(count.bit_length() - 1)]
    for half in reversed(halves):
        if half <= rank < 2 * half:
            send(tensor, rank - half)
        tensor = tensor + recv(rank + half) if rank < half else tensor
    for half in halves:
        if rank < half:
            send(tensor, rank + half)
        tensor = recv(rank - half) if half <= rank < 2 * half else tensor
    return tensor


OWN = "bit = 1 => bit, own = 1, tensor", "send(tensor => send(own"

check_doubling = Exercise(
    my_doubling,
    read_again='"Fewer steps than a ring?"',
    cases=[(2, 3), (4, 2), (8, 1), (1, 2), (16, 1)],
    given="{} rank(s), {} numbers each; rank r begins with 8**r times 1, 2, …",
    play=in_pairs,
    hint="A rank's numbers are not in a sum, or more than once. After step 1 the two of a pair "
    "hold the same sum; in step 2 each swaps with a rank of another pair.",
    correct="The sum on every rank in {count} cases: 24 messages of whole tensors for 8 ranks.",
    wrong={
        "in doubling each of 16 sends 4": "bit < count => bit < min(count, 8)",
        "That is the mean: here the sum is asked for.": "return tensor => return tensor / count",
        "What arrives is added; it does not replace the sum.": "tensor + recv => recv",
        "The tensors are as they were: add what arrives.": "tensor = tensor + recv => recv",
        "Add what arrives, not your own sum again.": "tensor + recv => tensor + tensor + 0 * recv",
        "The same partner in each step: its numbers are counted again.": "rank ^ bit => rank ^ 1",
        "Send the sum so far, not your first numbers again.": OWN,
        "Send before you add: a partner's own numbers came back to it, and count twice.": (
            "send(tensor => late = rank & bit and recv(rank ^ bit); send(tensor + late",
            "+ recv(rank ^ bit) => + (late if rank & bit else recv(rank ^ bit))",
        ),
        "Partners differ in one bit: 1, 2, 4, and not 1, 2, 3.": (
            "bit < count => 2**bit <= count",
            "bit *= 2 => bit += 1",
        ),
        EACH_STEP: ["bit < count => bit < count // 2", as_a_tree, (*OWN, "bit *= 2 => bit += 1")],
        WHOLE: [my_all_reduce, "send(tensor => send(tensor[: len(tensor) // 2]"],
        RECEIVES_FIRST: "send( => recv(rank ^ bit); send(",
        IN_PAIRS: "rank ^ bit => (rank + bit) % count",
        NO_PAIRS: (  # the right sum, but around a ring
            "send(tensor, rank ^ bit => send(tensor, (rank + bit) % count",
            "recv(rank ^ bit => recv((rank - bit) % count",
        ),
        TURNS: (
            "send(tensor => late = rank & bit and recv(rank ^ bit); send(tensor",
            "+ recv(rank ^ bit) => + (late if rank & bit else recv(rank ^ bit))",
        ),
        OWN_PARTNER: "rank ^ bit => rank ^ (bit - 1)",
        TOO_FAR: "bit < count => bit <= count",
        A_FLOAT: "bit = 1 => bit = range(count / 2) and 1",
        NO_GROUP: "bit = 1 => bit = 1; torch.distributed.all_reduce(tensor)",
        FIVE: [lambda t, r, c, s: t, lambda t: t],
        NO_RETURN: "return tensor => tensor",
        PIECE_FIRST: ["send( => (lambda a, b: send(b, a))(", "recv( => recv(tensor, "],
    },
    errors={
        r"ValueError: rank (\d+) of \d+ cannot \w+ \w+ rank \1\b": OWN_PARTNER,
        "ValueError: rank . of . cannot": TOO_FAR,
        **GIVEN,
        "had not returned": "The loop never ends: `bit` has to grow.",
    },
    also_right=[
        ("bit = 1 => bit = count // 2", "bit < count => bit", "bit *= 2 => bit //= 2"),
        "tensor = tensor + recv => tensor += recv",
        "return tensor => return tensor.numpy()",
    ],
)
