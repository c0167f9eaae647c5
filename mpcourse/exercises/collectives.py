"""Exercises of page `collectives`: a ring, a deadlock, a line through messages, tree and ring."""

import math

import numpy as np
import torch
from torch import Tensor

from mpcourse.exercises.exercise import Exercise, NotYet, call_for_numbers, same, short, slip
from mpcourse.exercises.turn_taking import Exchange, Messages, Stuck

# 1. All-reduce as a ring

BASE = 8  # a sum of rank r's BASE ** r shows how often each rank is in it, up to 7 times
ARRIVES = (
    "In step s = 1, 2, … rank r sends chunk r - s + 1, the one that arrived in the step before; "
    "what arrives is chunk r - s. Both rounds count on: the second begins with chunk r + 1."
)
RECEIVES_FIRST = "Everybody receives first: send the piece, then receive."
TO_THE_RIGHT = "in a ring, only to the right, (r + 1) % n."
NO_TENSOR = "return the tensor."
A_SUM = "That is the sum: divide by the {} ranks."
DIVIDED_TWICE = "It was divided more than once: each number once."
UNCHANGED = (
    "messages, but its tensor is unchanged: `chunks[i] = …` does not write into it, "
    "`chunks[i].add_(…)` does, if the chunks are views."
)
UNTOUCHED = "sent no message, and its tensor is unchanged: all that a ring does is missing."
FLOORED = "`//` drops what is left over: divide by `/`."
TWICE = "Something is added twice: in the second round whole sums replace what is there."
TWO_ROUNDS = "messages; two rounds of {} steps have more."
ONE_SUM = "And after the first it should hold one whole sum."
OVERWRITTEN = "What was there is overwritten: in the first round what arrives is added."
INCOMPLETE = f"A sum is not complete. {ARRIVES}"
NOT_RECEIVED = "was never received."
TOO_MANY = "messages; two rounds have {} steps."
CHUNKS_ONLY = "Send a chunk in each step, not the whole tensor."
WRONG_PLACES = "The right numbers are in the wrong places."
A_TUPLE = "tensor_split gives a tuple, whose items cannot be set: `chunks[i].add_(…)` writes."
NO_VIEW = "Not every tensor divides by the ranks; tensor_split cuts any."
TOO_FEW = "Chunks are numbered modulo the ranks; tensor_split gives one to every rank."


def my_all_reduce(tensor, rank, count, send, recv):
    """Two rounds of count - 1 steps: add what arrives, then replace by what arrives.

    In step s = 1, 2, … rank r sends chunk r - s + 1, which has arrived in the step before, and gets
    chunk r - s. In the first round it adds what arrives, so a sum grows as it goes round; then it
    has the whole sum of chunk r + 1. The second round hands the whole sums on, and the division
    comes last.
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
    """Results and messages of every rank: with numbers that show who is in a sum, then any."""
    exchange, found = Exchange(count), []
    try:
        results = exchange.run(attempt, who_is_in_it(count, numbers))
        if not any(result is None for result in results):
            found = Exchange(count).run(attempt, any_numbers(count, numbers))
    except Stuck:
        results = []
    return results, exchange.sent, exchange.unread, exchange.stuck, found


def who_is_in_it(count, numbers):
    return [torch.full((numbers,), float(BASE**rank)) for rank in range(count)]


def any_numbers(count, numbers):
    generator = torch.Generator().manual_seed(count * numbers)
    return [torch.randn(numbers, generator=generator) for _ in range(count)]


def as_a_ring(outcome, count, numbers):
    results, sent, unread, stuck, found = outcome
    exchange = Messages(count, sent, unread, stuck)
    if exchange.stuck is not None:
        waits = [
            f"rank {rank} for rank {source}" for rank, source in sorted(exchange.stuck.items())
        ]
        first = len(waits) == count and not exchange.sent
        line = f"It never ends: {', '.join(waits)} waits for a message that nobody sends."
        raise NotYet(line, RECEIVES_FIRST * first, wrong_way(exchange))
    wanted = torch.stack(who_is_in_it(count, numbers)).mean(0)
    for rank, result in zip(range(count), results, strict=True):
        if not same(result, wanted):
            raise NotYet(*wrong_result(results, rank, wanted, exchange))
    if words := wrong_messages(exchange, numbers):
        raise NotYet("The mean is right.", *words)
    wanted = torch.stack(any_numbers(count, numbers)).mean(0)
    for rank, result in zip(range(count), found, strict=True):
        if not torch.allclose(result, wanted, atol=1e-5):
            raise NotYet(
                f"expected {short(wanted)}", f"rank {rank} got {short(result)}", WRONG_PLACES
            )


def wrong_way(exchange):
    for source, target, _ in exchange.sent:
        if target != (source + 1) % exchange.count:
            return f"rank {source} sent to rank {target}: {TO_THE_RIGHT}"
    return ""


def wrong_result(results, rank, wanted, exchange):
    result, count = results[rank], exchange.count
    if result is None:
        return [f"rank {rank} got None: {NO_TENSOR}"]
    if not isinstance(result, Tensor) or result.shape != wanted.shape:
        return [f"rank {rank} got {short(result)}", f"expected a tensor of {len(wanted)} numbers."]
    if all(same(each, wanted * count) for each in results):
        return [f"got {short(result)}", A_SUM.format(count)]
    if any(same(result, wanted * count / part) for part in (count**2, 2 * count)):
        return [f"got {short(result)}", DIVIDED_TWICE]
    if all(same(each, wanted.floor()) for each in results):
        return [f"expected {short(wanted)}", f"got {short(result)}", FLOORED]
    lines = [f"expected {short(wanted)}", f"rank {rank} got {short(result)}"]
    index = int((result - wanted).abs().gt(1e-6 * wanted.abs()).nonzero()[0])
    times = times_in(result[index], count, count, 1)
    return (
        lines if times is None else [*lines, *what_is_in_it(result, rank, index, times, exchange)]
    )


def what_is_in_it(result, rank, index, times, exchange):
    """Which ranks' numbers are in the first wrong sum, and how often."""
    if words := wrong_way(exchange):
        return [words]
    count, messages = exchange.count, len(exchange.sent_by(rank))
    own = torch.full_like(result, float(BASE**rank))
    if same(result, own) or (messages and same(result, own / count)):
        return [
            f"Rank {rank} sent {messages} {UNCHANGED}" if messages else f"Rank {rank} {UNTOUCHED}"
        ]
    parts = ", ".join(f"rank {other} {many} time(s)" for other, many in enumerate(times))
    sums = [times_in(number, count, count, 1) for number in result]
    firsts = [piece[0] for _, _, piece in exchange.sent if piece.numel()]
    most_passed_on = max((sum(times_in(n, count, 1) or [1]) for n in firsts), default=0)
    why = INCOMPLETE
    if max(times) > 1:
        why = TWICE
    elif messages < 2 * (count - 1):
        why = f"Rank {rank} sent {messages} {TWO_ROUNDS.format(count - 1)}"
        if messages == count - 1 and [1] * count not in sums:
            why += f" {ONE_SUM} {ARRIVES}"
    elif most_passed_on == 1:
        why = OVERWRITTEN
    return [f"In number {index} on rank {rank}: {parts}.", why]


def times_in(number, count, *scales):
    """How often each rank's number is in a sum, after scaling; None if it is no sum of them."""
    for scale in scales:
        value = number.item() * scale
        if abs(value - round(value)) < 1e-3 and 0 <= value < BASE**count:
            return [round(value) // BASE**other % BASE for other in range(count)]
    return None


def wrong_messages(exchange, numbers):
    steps = 2 * (exchange.count - 1)
    most = steps * -(-numbers // exchange.count)
    if words := wrong_way(exchange):
        return [words]
    if exchange.unread:
        source, target = exchange.unread[0]
        return [f"a message from rank {source} to rank {target} {NOT_RECEIVED}"]
    for rank in range(exchange.count):
        sent = exchange.sent_by(rank)
        if len(sent) > steps:
            return [f"rank {rank} sent {len(sent)} {TOO_MANY.format(steps)}"]
        if sum(sent) > most:
            return [f"rank {rank} sent {sum(sent)} numbers; a ring of chunks {most}.", CHUNKS_ONLY]
    return []


def whole_tensors(tensor, rank, count, send, recv):
    total = piece = tensor.clone()
    for _ in range(count - 1):
        send(piece, (rank + 1) % count)
        piece = recv((rank - 1) % count)
        total = total + piece
    return total / count


def star(tensor, rank, count, send, recv):
    if rank == 0:
        for other in range(1, count):
            tensor += recv(other)
        for other in range(1, count):
            send(tensor, other)
    else:
        send(tensor, 0)
        tensor = recv(0)
    return tensor / count


def other_ring(tensor, rank, count, send, recv):
    """Shifted by one, in chunks of its own, divided between the rounds."""
    size = -(-len(tensor) // count)
    pieces = [tensor[i * size : (i + 1) * size].clone() for i in range(count)]
    for step in range(2 * count - 2):
        into = (rank - 2 - step) % count
        send(pieces[(rank - 1 - step) % count], (rank + 1) % count)
        arrived = recv((rank - 1) % count)
        pieces[into] = pieces[into] + arrived if step < count - 1 else arrived
        if step == count - 2:
            pieces[into] = pieces[into] / count
    return torch.cat(pieces)


SECOND_ROUND = "range(count, 2 * count - 1)"

check_ring = Exercise(
    my_all_reduce,
    read_again='"What does rank 0 hold after two steps?"',
    cases=[(3, 3), (2, 4), (4, 4), (3, 7), (4, 2), (1, 3)],
    given="{} rank(s), {} numbers each",
    play=around,
    look=as_a_ring,
    correct="The mean on every rank in {count} cases, to the right only, and never more than a "
    "ring has to send.",
    wrong={
        A_SUM.format(3): "tensor / count => tensor",
        DIVIDED_TWICE: "tensor / count => tensor / count / count",
        FLOORED: [
            "tensor / count => tensor // count",
            "tensor / count => (tensor / count).floor()",
        ],
        UNTOUCHED: lambda tensor, *_: tensor,
        OVERWRITTEN: "add_ => copy_",
        INCOMPLETE: [
            "range(1, count) => range(count - 1)",
            f"{SECOND_ROUND} => range(1, count)",
            "chunks[(rank - step) => chunks[(rank - step + 1)",
        ],
        TWO_ROUNDS.format(2): [
            "range(1, count) => range(1, count - 1)",
            f"{SECOND_ROUND} => ()",
            lambda tensor, rank, count, send, recv: tensor / count,
        ],
        f"sent 2 {TWO_ROUNDS.format(2)} {ONE_SUM}": (
            f"{SECOND_ROUND} => ()",
            "chunks[(rank - step) => chunks[(rank - step + 1)",
        ),
        f"sent 5 {TOO_MANY.format(4)}": "range(1, count) => range(1, count + 1)",
        TWICE: slip(whole_tensors, "send(piece => send(total"),
        UNCHANGED: [
            (
                "tensor.tensor_split(count) => [*tensor.tensor_split(count)]",
                ".add_( => = chunks[(rank - step) % count] + (",
                ".copy_( => = (",
            ),
            (
                "tensor.tensor_split => tensor.clone().tensor_split",
                ".add_( => .equal(",
                f"{SECOND_ROUND} => range(1, count)",
            ),
        ],
        TO_THE_RIGHT: [
            star,
            (
                f"{SECOND_ROUND} => ()",
                ", (rank + 1) => , (rank - 1)",
                "recv((rank - 1) => recv((rank + 1)",
            ),
            slip(whole_tensors, "(rank + 1) => (rank - 1)"),
        ],
        CHUNKS_ONLY: whole_tensors,
        RECEIVES_FIRST: lambda tensor, rank, n, send, recv: (
            recv((rank - 1) % n),
            send(tensor, (rank + 1) % n),
        ),
        NOT_RECEIVED: "return => send(tensor[:1], (rank + 1) % count); return",
        "3 rank(s), 7 numbers each": (
            "tensor.tensor_split => tensor[: len(tensor) // count * count].tensor_split"
        ),
        WRONG_PLACES: "return tensor => return tensor.flip(0)",
        TOO_FEW: "tensor_split => chunk",
        A_TUPLE: "].add_(recv((rank - 1) % count)) => ] += recv((rank - 1) % count)",
        NO_VIEW: "tensor.tensor_split(count) => tensor.view(count, -1)",
        NO_TENSOR: "return tensor => tensor",
        # not hidden by the ranks that wait for it
        "it raised KeyError: 1": lambda t, rank, n, send, recv: {}[1] if rank == 1 else recv(1),
        "cannot send to rank 3": lambda tensor, rank, count, send, recv: send(tensor, count),
        "cannot receive from rank 0": lambda tensor, rank, count, send, recv: recv(rank),
        "send takes a tensor": lambda tensor, rank, count, send, recv: send(1.0, 1 - rank),
    },
    errors={"IndexError": TOO_FEW, "TypeError: 'tuple'": A_TUPLE, "RuntimeError: shape": NO_VIEW},
    also_right=[other_ring],
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


def sends_never_wait(programs):
    at, sent, moved = [0] * len(programs), [], True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while at[rank] < len(program):
                kind, other = program[at[rank]]
                if kind == "recv" and (other, rank) not in sent:
                    break
                sent.remove((other, rank)) if kind == "recv" else sent.append((rank, other))
                at[rank] += 1
                moved = True
    return {rank: index for rank, index in enumerate(at) if index < len(programs[rank])}


def at_equal_indices(programs):
    found = {}
    for rank, program in enumerate(programs):
        for index, (kind, other) in enumerate(program):
            if programs[other][index : index + 1] != [(MEETS[kind], rank)]:
                found.setdefault(rank, index)
    return found


S, R = "send", "recv"
MEETS = {S: R, R: S}
ONCE, A_FEW_TIMES = "while moved => if moved", "while moved => for _ in programs"
RANK_BY_RANK = "in range(len(programs)) => in [r for r, p in enumerate(programs) for _ in p]"
EITHER_KIND = 'kind == "send" and next_of(other) == ("recv" => next_of(other) == (MEETS.get(kind)'
AT_ITS_END = "A program may be empty, or at its end: look before you read its next operation."
AGAIN = "A rank that waited may go on later: repeat until nothing moves."

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
    hint="Two ranks go on when one is at a send to the other, which is at a recv from it.",
    wrong={
        "Here a send waits for its receive: sending first does not end it.": [
            sends_never_wait,
            lambda programs: {},
        ],
        "Not all of them end: some wait for somebody who has ended, or who waits too.": (
            lambda p: stuck if len(stuck := my_stuck(p)) == len(p) else {}
        ),
        "Two operations can meet at different indices in the two programs. " + AGAIN: (
            at_equal_indices
        ),
        AGAIN: [
            ONCE,
            (ONCE, EITHER_KIND),
            (ONCE, RANK_BY_RANK),
            (ONCE, RANK_BY_RANK, EITHER_KIND),
        ],
        "One pass a rank is too few for long programs: repeat until nothing moves.": [
            A_FEW_TIMES,
            (A_FEW_TIMES, EITHER_KIND),
        ],
        "The first operation of a program has index 0.": "rank: index => rank: index + 1",
        "If all end, return {{}}; None is what a function without return gives back.": (
            "])} => ])} or None"
        ),
        "Ranks whose operations meet go on to their next ones.": slip(
            at_equal_indices, "enumerate(program) => enumerate(program[:1])"
        ),
        "Say also where: a dict, rank -> index of the operation.": lambda p: list(my_stuck(p)),
        "Say who and where: a dict, rank -> index of the operation.": lambda p: bool(my_stuck(p)),
        "The value is the index of the operation, not the operation.": (
            "rank: index => rank: programs[rank][index]"
        ),
        "Leave out the ranks that end.": " if index < len(programs[rank])} => }",
        AT_ITS_END: " if at[rank] < len(programs[rank]) else None => ",
        "Count how far each rank gets before it waits for ever.": "rank: index => rank: 0",
        "Two ranks go on when one is at a send to the other": lambda programs: {99: 1},
    },
    errors={"IndexError": AT_ITS_END},
)

# 3. Latency and bandwidth of messages


def my_fit(sizes, seconds):
    """Lay the line through the shortest and the longest message.

    The difference of their bytes by the difference of their times is the bandwidth. The shortest
    message's time without that of its bytes is the latency.
    """
    (small, quick), *_, (large, slow) = sorted(zip(sizes, seconds, strict=True))
    bandwidth = (large - small) / (slow - quick)
    return quick - small / bandwidth, bandwidth


TWO_NUMBERS = "expected two numbers: latency, bandwidth."


def fitted(attempt, sizes, latency, bandwidth):
    """Latency, bandwidth, and the latency as a part of what the shortest message took."""
    seconds = [latency + size / bandwidth for size in sizes]
    found = attempt(list(sizes), list(seconds))
    try:
        first, second = (float(number) for number in found)
    except (TypeError, ValueError):
        raise NotYet(f"got {short(found)}", TWO_NUMBERS) from None
    return first, second, first / min(seconds)


def same_line(outcome, expected):
    pairs = zip(outcome[1:], expected[1:], strict=True)
    return all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3 * (b < 1e-9)) for a, b in pairs)


def least_squares(sizes, seconds):
    columns = torch.tensor([[1.0, size] for size in sizes], dtype=torch.float64)
    wanted = torch.tensor(seconds, dtype=torch.float64)
    latency, per_byte = torch.linalg.lstsq(columns, wanted[:, None]).solution
    return latency, 1 / per_byte


LATENCY = "quick - small / bandwidth"

check_fit = Exercise(
    my_fit,
    read_again='"How long does a message take?"',
    cases=[
        ([100, 200, 400], 2.0, 50.0),
        ([2**10, 2**16, 2**22], 5e-5, 2e9),
        ([4096, 1024, 65536, 16384], 1e-3, 1e6),
        ([10, 1000], 0.0, 4.0),
    ],
    given=lambda sizes, latency, bandwidth: (
        f"sizes {sizes} and seconds {short([latency + size / bandwidth for size in sizes])}"
    ),
    play=fitted,
    same=same_line,
    compared=lambda outcome, expected: [
        f"expected latency {expected[0]:g}, bandwidth {expected[1]:g}",
        f"got {short(outcome[:2])}",
    ],
    hint="seconds = latency + size / bandwidth, for each message.",
    correct="Latency and bandwidth of {count} lines, in any order of the sizes.",
    wrong={
        "The latency comes first.": f"{LATENCY}, bandwidth => bandwidth, {LATENCY}",
        "The slope is seconds per byte; the bandwidth is bytes per second.": (
            ", bandwidth => , 1 / bandwidth"
        ),
        "Size by time of one message has the latency in it: take the difference of two.": [
            f"{LATENCY}, bandwidth => quick, large / slow",
            "(large - small) / (slow - quick) => large / slow",
            ", bandwidth => , large / slow",
        ],
        "The shortest message's time has the way of its own bytes in it.": f"{LATENCY} => quick",
        "Single precision is too coarse for such sizes and times: take dtype=torch.float64.": slip(
            least_squares, "float64 => float32"
        ),
        "Both in seconds: that latency is in microseconds.": f"{LATENCY} => 1e6 * ({LATENCY})",
        "Both in seconds: that latency is in milliseconds.": f"{LATENCY} => 1e3 * ({LATENCY})",
        "In bytes per second: those are gigabytes.": ", bandwidth => , bandwidth / 1e9",
        "In bytes per second: those are megabytes.": [
            ", bandwidth => , bandwidth / 1e6",
            ", bandwidth => , bandwidth / 2**20",
        ],
        "Slope, then latency, as polyfit has them: return latency, then bytes per second.": (
            f"{LATENCY}, bandwidth => 1 / bandwidth, {LATENCY}"
        ),
        "In bytes per second: those are bits.": ", bandwidth => , bandwidth * 8",
        "expected latency 2, bandwidth 50": f"{LATENCY} => math.nan",
        "for each message": lambda s, t: (
            min(t) - min(s) / 1e9,
            (s[-1] - s[0]) / (t[-1] - t[0]),
        ),
        TWO_NUMBERS: [
            f"{LATENCY}, => ",
            ", bandwidth => , bandwidth, 1.0",
            lambda sizes, seconds: ("a", "b"),
            lambda sizes, seconds: None,
        ],
    },
    also_right=[least_squares, lambda *given: np.array(my_fit(*given))],
)

# 4. An all-reduce as a tree, and as a ring

TWO_TIMES = "expected two numbers: the seconds as a tree, and as a ring."


def my_seconds(count, nbytes, latency, bandwidth):
    """Rounds times what one message takes.

    The tree has log2(count) rounds up and as many down, each with whole tensors. The ring has
    count - 1 steps in each of its two rounds, and a message is one chunk.
    """
    tree = 2 * math.log2(count) * (latency + nbytes / bandwidth)
    ring = 2 * (count - 1) * (latency + nbytes / count / bandwidth)
    return tree, ring


def two_seconds(attempt, *case):
    outcome = call_for_numbers(attempt, *case)
    if not isinstance(outcome, list | tuple) or len(outcome) != 2:
        raise NotYet(f"got {short(outcome)}", TWO_TIMES)
    return outcome


LATENCY_ONCE = (
    "* (latency + nbytes / bandwidth) => * nbytes / bandwidth + latency",
    "* (latency + nbytes / count / bandwidth) => * nbytes / count / bandwidth + latency",
)

check_tree_and_ring = Exercise(
    my_seconds,
    read_again='"Is a ring always the fastest?"',
    cases=[(2, 100, 1.0, 10.0), (8, 4000, 2.0, 1000.0), (64, 1e6, 0.5, 1e5), (1, 10, 1.0, 1.0)],
    given="{} ranks, {:g} bytes, latency {:g}, bandwidth {:g}",
    play=two_seconds,
    hint="Rounds times (latency + bytes of one message / bandwidth), for each of the two.",
    wrong={
        "The tree comes first.": "return tree, ring => return ring, tree",
        "The tree has to bring the sum back, too: as many rounds again.": "2 * math => math",
        "The ring has two rounds: one adds, one hands the sums out.": "2 * (count => (count",
        "Both have two rounds: one adds, one hands the sums out.": "2 * => ",
        "In a ring each message is one chunk: the bytes divided by the ranks.": "/ count => ",
        "Fewer bytes do not divide the latency: each of the 2 (n - 1) steps has all of it.": (
            "/ count => ",
            "(count - 1) => (count - 1) / count",
        ),
        "A round of the ring has n - 1 steps, not n.": "(count - 1) => count",
        "log2: a round doubles the ranks that are done. math.log is another logarithm.": (
            "log2 => log"
        ),
        "That is a star. In a tree the messages of one round travel at the same time.": (
            "math.log2(count) => (count - 1)"
        ),
        "Every round has its latency: multiply it by the rounds, as the bytes.": [
            LATENCY_ONCE,
            *LATENCY_ONCE,
            "latency + => ",
            "latency + nbytes / count => nbytes / count",
        ],
        "This tree sends whole tensors in every round; no message of it is smaller.": [
            "nbytes / bandwidth => nbytes / 2 / bandwidth",
            # halves, quarters, …; and the whole, halves, …
            "+ nbytes / bandwidth) => ) + 2 * (1 - 1 / count) * nbytes / bandwidth",
            "+ nbytes / bandwidth) => ) + 4 * (1 - 1 / count) * nbytes / bandwidth",
        ],
        "for each of the two": lambda *given: (1.0, 2.0),
        TWO_TIMES: [
            lambda *given: 1.0,
            lambda *given: "ring",
            "return tree, ring => return 'tree' if tree < ring else 'ring'",
            lambda *given: None,
        ],
    },
    also_right=[lambda *given: torch.tensor(my_seconds(*given), dtype=torch.float64)],
)
