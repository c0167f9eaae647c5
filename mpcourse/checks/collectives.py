"""Checks: a ring, a deadlock, a line through measured messages, a tree beside a ring."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mpcourse.checks.attempted_programs import Programs, deadlock_case
from mpcourse.checks.attempted_rings import ring_problem
from mpcourse.checks.verdict import (
    Case,
    Verdict,
    check_cases,
    correct,
    no_function,
    not_attempted,
    not_yet,
    same,
    short,
    try_out,
)

RING = '"What does rank 0 hold after two steps?"'
SENDS = '"Everybody sends first"'
LINE = '"How long does a message take?"'
TREE = '"Is a ring always the fastest?"'


def check_ring(attempt: Callable[..., Tensor]) -> Verdict:
    """Check `my_all_reduce(tensor, rank, count, send, recv)`: the mean over all ranks, as a ring.

    Args:
        attempt: Runs on every rank. `send(piece, target)` returns at once, `recv(source)` waits.
    """
    if not callable(attempt):
        return no_function(attempt, RING)
    cases = [(3, 3), (2, 4), (4, 4), (3, 7), (4, 2), (1, 3)]
    for count, numbers in cases:
        lines = ring_problem(attempt, count, numbers)
        if lines is ...:
            return not_attempted()
        if lines:
            return not_yet([f"{count} rank(s), {numbers} numbers each:", *lines], RING)
    return correct(
        f"The mean on every rank in {len(cases)} cases, to the right only, "
        "and never more than a ring has to send."
    )


def check_deadlock(attempt: Callable[[Programs], dict[int, int]]) -> Verdict:
    """Check `my_stuck(programs)`: which ranks wait for ever, and at which operation?

    Args:
        attempt: Takes a list of ("send", to) and ("recv", from) per rank. A send waits for its
            receive. Returns rank -> index of the operation, {} if all end.
    """
    send, recv = "send", "recv"
    programs: list[Programs] = [
        [[(send, 1)], [(recv, 0)]],
        [[(send, 1), (recv, 1)], [(send, 0), (recv, 0)]],
        [[(send, 1), (recv, 1)], [(recv, 0), (send, 0)]],
        [[(send, 1), (send, 2)], [(recv, 0)], [(recv, 0)]],
        [[(send, 1)], [(recv, 0), (recv, 0)]],
        [[(send, 1), (send, 2)], [(recv, 2), (recv, 0)], [(recv, 0), (send, 1)]],
        [[(send, 1), (recv, 2)], [(recv, 0), (send, 2)], [(recv, 1), (send, 0)]],
        [[(recv, 1), (send, 1)], [(recv, 2), (send, 0)], [(send, 1)], []],
        [[(send, 1)], [(recv, 0), (send, 2)], [(recv, 3), (recv, 1)], []],
        [[(recv, 1)], [(recv, 0)], [(send, 3)], [(recv, 2)]],
        [[(send, (r + 1) % 5), (recv, (r - 1) % 5)] for r in range(5)],
        [[(recv, 4), (send, 1)], *([(send, (r + 1) % 5), (recv, r - 1)] for r in range(1, 5))],
    ]
    cases = [deadlock_case(each) for each in programs]
    return check_cases(attempt, cases, where=SENDS)


def check_fit(attempt: Callable[[list[float], list[float]], Any]) -> Verdict:
    """Check `my_fit(sizes, seconds)`: latency and bandwidth from messages on a straight line.

    Args:
        attempt: Takes sizes in bytes and times in seconds; returns latency (seconds) and bandwidth
            (bytes per second). Any way to lay the line will do.
    """
    if not callable(attempt):
        return no_function(attempt, LINE)
    cases = [
        ([100, 200, 400], 2.0, 50.0),
        ([2**10, 2**16, 2**22], 5e-5, 2e9),
        ([4096, 1024, 65536, 16384], 1e-3, 1e6),
        ([10, 1000], 0.0, 4.0),
    ]
    for sizes, latency, bandwidth in cases:
        seconds = [latency + size / bandwidth for size in sizes]
        given = f"Given sizes {short(sizes)} and seconds {short(seconds)}:"
        result, problem = try_out(attempt, list(sizes), list(seconds))
        if result is ...:
            return not_attempted()
        lines = [problem] if problem else _wrong_line(result, sizes, seconds, latency, bandwidth)
        if lines:
            return not_yet([given, *lines], LINE)
    return correct(f"Latency and bandwidth of {len(cases)} lines, in any order of the sizes.")


def _wrong_line(
    result: Any,
    sizes: Sequence[int],
    seconds: Sequence[float],
    latency: float,
    bandwidth: float,
) -> list[str] | None:
    found = _numbers(result)
    if found is None or len(found) != 2:
        return [f"got {short(result)}", "expected two numbers: latency, bandwidth."]
    small, large = sizes.index(min(sizes)), sizes.index(max(sizes))

    def near(value: float, wanted: float) -> bool:
        return math.isclose(value, wanted, rel_tol=1e-3, abs_tol=1e-3 * seconds[small])

    if near(found[0], latency) and math.isclose(found[1], bandwidth, rel_tol=1e-3):
        return None
    lines = [f"expected latency {latency:g}, bandwidth {bandwidth:g}", f"got {short(found)}"]
    naive = sizes[large] / seconds[large]
    known = [
        (math.isclose(found[0], bandwidth, rel_tol=1e-3), "The latency comes first."),
        (
            math.isclose(found[1], 1 / bandwidth, rel_tol=1e-3),
            "The slope is seconds per byte; the bandwidth is bytes per second.",
        ),
        (
            math.isclose(found[1], naive, rel_tol=1e-3) and latency > 0,
            "Size by time of one message has the latency in it: take the difference of two.",
        ),
        (
            math.isclose(found[0], seconds[small], rel_tol=1e-3),
            "The shortest message's time has the way of its own bytes in it.",
        ),
    ]
    return [*lines, *[words for fits, words in known if fits][:1]]


def _numbers(result: Any) -> list[float] | None:
    """The numbers of a tuple, list, tensor or array; None if it is something else."""
    try:
        return [float(number) for number in result]
    except (TypeError, ValueError):
        return None


def check_tree_and_ring(attempt: Callable[[int, float, float, float], Any]) -> Verdict:
    """Check `my_seconds(count, nbytes, latency, bandwidth)`: an all-reduce as a tree, as a ring.

    Args:
        attempt: Takes a number of ranks that is a power of two, bytes of the tensor, seconds and
            bytes per second. Returns the seconds of the tree and of the ring.
    """
    given = [(2, 100, 1.0, 10.0), (8, 4000, 2.0, 1000.0), (64, 1e6, 0.5, 1e5), (1, 10, 1.0, 1.0)]
    return check_cases(attempt, [_tree_case(*each) for each in given], where=TREE)


def _tree_case(count: int, nbytes: float, latency: float, bandwidth: float) -> Case:
    def message(part: float) -> float:
        return latency + nbytes * part / bandwidth

    rounds = math.log2(count)
    tree, ring = 2 * rounds * message(1), 2 * (count - 1) * message(1 / count)
    known = [
        ((ring, tree), "The tree comes first."),
        ((tree / 2, ring), "The tree has to bring the sum back, too: as many rounds again."),
        ((tree, ring / 2), "The ring has two rounds: one adds, one hands the sums out."),
        ((tree / 2, ring / 2), "Both have two rounds: one adds, one hands the sums out."),
        (
            (tree, 2 * (count - 1) * message(1)),
            "In a ring each message is one chunk: the bytes divided by the ranks.",
        ),
        (
            (tree, 2 * (count - 1) / count * message(1)),
            "Fewer bytes do not divide the latency: each of the 2 (n - 1) steps has all of it.",
        ),
        ((tree, 2 * count * message(1 / count)), "A round of the ring has n - 1 steps, not n."),
        (
            (2 * math.log(count) * message(1), ring),
            "log2: a round doubles the ranks that are done. math.log is another logarithm.",
        ),
        (
            (2 * (count - 1) * message(1), ring),
            "That is a star. In a tree the messages of one round travel at the same time.",
        ),
    ]
    words = f"{count} ranks, {nbytes:g} bytes, latency {latency:g}, bandwidth {bandwidth:g}"
    hint = "Rounds times (latency + bytes of one message / bandwidth), for each of the two."
    return Case(words, (count, nbytes, latency, bandwidth), (tree, ring), known, hint, _same_pair)


def _same_pair(result: Any, expected: tuple[float, float]) -> bool:
    numbers = _numbers(result)
    return numbers is not None and same(numbers, list(expected))
