"""The checks accept right answers however they are written and explain wrong ones."""

import itertools
import math
import random
import threading
import time

import numpy as np
import pytest
import torch
from solutions import collectives as solutions

from mpcourse.checks import (
    check_deadlock,
    check_fit,
    check_ring,
    check_tree_and_ring,
    verdict,
)
from mpcourse.checks.attempted_programs import stuck_at
from mpcourse.checks.turn_taking import Exchange, Stuck


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    for check in (check_ring, check_deadlock, check_fit, check_tree_and_ring):
        assert check(lambda *arguments: ...).state == "not attempted"
        assert check(...).state == "not attempted"
        assert "takes a function" in said(check(5))


def test_solutions_are_correct():
    assert check_ring(solutions.my_all_reduce).state == "correct"
    assert check_deadlock(solutions.my_stuck).state == "correct"
    assert check_fit(solutions.my_fit).state == "correct"
    assert check_tree_and_ring(solutions.my_seconds).state == "correct"


# Other right answers


def other_ring(tensor, rank, count, send, recv):
    """Shifted by one, divided in between, even ranks send first and odd ones receive first."""
    size = -(-len(tensor) // count)
    pieces = [tensor[i * size : (i + 1) * size].clone() for i in range(count)]
    right, left = (rank + 1) % count, (rank - 1) % count
    for step in range(2 * count - 2):
        out, into = (rank - 1 - step) % count, (rank - 2 - step) % count
        send(pieces[out], right)
        arrived = recv(left)
        pieces[into] = pieces[into] + arrived if step < count - 1 else arrived
        if step == count - 2:
            pieces[into] = pieces[into] / count
    return torch.cat(pieces)


def stuck_by_pairs(programs):
    left = {rank: list(enumerate(map(tuple, program))) for rank, program in enumerate(programs)}
    while True:
        for a, b in itertools.permutations(left, 2):
            heads = [left[rank][0][1] if left[rank] else None for rank in (a, b)]
            if heads == [("send", b), ("recv", a)]:
                left[a].pop(0), left[b].pop(0)
                break
        else:
            return {rank: rest[0][0] for rank, rest in left.items() if rest}


def through_two_points(sizes, seconds):
    (small, quick), *_, (large, slow) = sorted(zip(sizes, seconds, strict=True))
    bandwidth = (large - small) / (slow - quick)
    return quick - small / bandwidth, bandwidth


def test_other_right_answers_are_correct():
    assert check_ring(other_ring).state == "correct"
    assert check_deadlock(stuck_by_pairs).state == "correct"
    assert check_fit(through_two_points).state == "correct"
    assert check_fit(lambda *a: torch.tensor(through_two_points(*a))).state == "correct"
    assert check_fit(lambda *a: np.array(through_two_points(*a))).state == "correct"
    assert check_tree_and_ring(lambda *a: list(solutions.my_seconds(*a))).state == "correct"
    in_double = torch.float64
    assert (
        check_tree_and_ring(
            lambda *a: torch.tensor(solutions.my_seconds(*a), dtype=in_double)
        ).state
        == "correct"
    )


# Rings that people write


def ring(add=lambda chunk, arrived: chunk.add_(arrived), first=0, second=1, steps=-1, over=True):
    def attempt(tensor, rank, count, send, recv):
        chunks = tensor.tensor_split(count)
        for step in range(count + steps):
            send(chunks[(rank - step + first) % count], (rank + 1) % count)
            add(chunks[(rank - step - 1 + first) % count], recv((rank - 1) % count))
        for step in range(count - 1):
            send(chunks[(rank + second - step) % count], (rank + 1) % count)
            chunks[(rank + second - 1 - step) % count].copy_(recv((rank - 1) % count))
        return tensor / count if over else tensor

    return attempt


def chunks_that_are_too_few(tensor, rank, count, send, recv):
    chunks = tensor.chunk(count)
    for step in range(2 * count - 2):
        send(chunks[(rank - step) % count], (rank + 1) % count)
        chunk = chunks[(rank - step - 1) % count]
        chunk.copy_(recv((rank - 1) % count) + (chunk if step < count - 1 else 0))
    return tensor / count


def passes_the_sum_on(tensor, rank, count, send, recv):
    for _ in range(count - 1):
        send(tensor, (rank + 1) % count)
        tensor = tensor + recv((rank - 1) % count)
    return tensor / count


def whole_tensors(tensor, rank, count, send, recv):
    total, piece = tensor.clone(), tensor
    for _ in range(count - 1):
        send(piece, (rank + 1) % count)
        piece = recv((rank - 1) % count)
        total += piece
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


def receives_first(tensor, rank, count, send, recv):
    if count > 1:
        arrived = recv((rank - 1) % count)
        send(tensor, (rank + 1) % count)
        tensor = tensor + arrived
    return tensor / count


def one_too_many(tensor, rank, count, send, recv):
    result = solutions.my_all_reduce(tensor, rank, count, send, recv)
    if count > 1:
        send(result[:1], (rank + 1) % count)
    return result


def equal_chunks_only(tensor, rank, count, send, recv):
    size = len(tensor) // count
    solutions.my_all_reduce(tensor[: size * count], rank, count, send, recv)
    return tensor / count


def shuffled_chunks(tensor, rank, count, send, recv):
    return solutions.my_all_reduce(tensor, rank, count, send, recv).flip(0)


def in_a_list(tensor, rank, count, send, recv):
    chunks = list(tensor.tensor_split(count))
    for step in range(1, 2 * count - 1):
        send(chunks[(rank - step + 1) % count], (rank + 1) % count)
        old, arrived = chunks[(rank - step) % count], recv((rank - 1) % count)
        chunks[(rank - step) % count] = old + arrived if step < count else arrived
    return tensor / count


def forgets_what_arrives(tensor, rank, count, send, recv):
    for step in range(1, 2 * count - 1):
        send(tensor.tensor_split(count)[(rank - step + 1) % count], (rank + 1) % count)
        recv((rank - 1) % count)
    return tensor / count


def one_round(into=0, way=1):
    def attempt(tensor, rank, count, send, recv):
        chunks = tensor.tensor_split(count)
        for step in range(1, count):
            send(chunks[(rank - step + 1) % count], (rank + way) % count)
            chunks[(rank - step + into) % count].add_(recv((rank - way) % count))
        return tensor / count

    return attempt


def adds_to_what_it_sent(tensor, rank, count, send, recv):
    chunks = tensor.tensor_split(count)
    for step in range(1, 2 * count - 1):
        mine = chunks[(rank - step + 1) % count]
        send(mine, (rank + 1) % count)
        arrived = recv((rank - 1) % count)
        mine.add_(arrived) if step < count else mine.copy_(arrived)
    return tensor / count


def sends_left_and_receives_from_left(tensor, rank, count, send, recv):
    if count > 1:
        send(tensor, (rank - 1) % count)
        tensor = tensor + recv((rank - 1) % count)
    return tensor / count


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (in_a_list, "its tensor is unchanged: `chunks[i] = …` does not write into it"),
        (forgets_what_arrives, "4 messages, but its tensor is unchanged"),
        (lambda tensor, rank, count, send, recv: tensor / count, "sent 0 messages"),
        (one_round(), "sent 2 messages; two rounds of 2 steps have more."),
        (one_round(into=1), "it should hold one whole sum. In step s = 1, 2"),
        (one_round(way=-1), "rank 0 sent to rank 2: in a ring, only to the right"),
        (adds_to_what_it_sent, "what arrives is chunk r - s. Both rounds"),
        (sends_left_and_receives_from_left, "rank 0 sent to rank 2: in a ring, only to the right"),
        (ring(over=False), "That is the sum: divide by the 3 ranks"),
        (ring(add=lambda chunk, arrived: chunk.copy_(arrived)), "what arrives is added"),
        (ring(first=1), "is not complete"),
        (ring(second=0), "is not complete"),
        (ring(steps=-2), "sent 3 messages"),
        (ring(steps=0), "sent 5 messages; two rounds have 4 steps"),
        (passes_the_sum_on, "is added twice"),
        (whole_tensors, "not the whole tensor"),
        (star, "only to the right"),
        (receives_first, "Everybody receives first"),
        (one_too_many, "was never received"),
        (shuffled_chunks, "in the wrong places"),
        (chunks_that_are_too_few, "tensor_split gives one to every rank"),
        (lambda *a: solutions.my_all_reduce(*a) / a[2], "divided more than once"),
        (lambda *a: solutions.my_all_reduce(*a) and None, "RuntimeError"),
        (lambda *a: None, "return the tensor"),
        (lambda *a: 1 / 0, "ZeroDivisionError"),
        (lambda tensor, rank, count, send, recv: send(tensor, count), "cannot send to rank 3"),
        (lambda tensor, rank, count, send, recv: recv(rank), "cannot receive from rank 0"),
        (lambda tensor, rank, count, send, recv: send(1.0, 1 - rank), "send takes a tensor"),
    ],
)
def test_wrong_rings_are_explained(attempt, words):
    assert words in said(check_ring(attempt))


def test_a_round_that_is_right_is_not_blamed_for_the_one_that_lacks():
    assert "whole sum" not in said(check_ring(one_round()))


def test_a_rest_that_is_left_out_is_noticed():
    assert "3 rank(s), 7 numbers each" in said(check_ring(equal_chunks_only))


def test_a_ring_that_never_returns_is_stopped(monkeypatch):
    monkeypatch.setattr(verdict, "TIME_LIMIT_S", 0.3)

    def endless(tensor, rank, count, send, recv):
        while True:
            time.sleep(0.001)

    before = threading.active_count()
    assert "had not returned after 0.3 seconds" in said(check_ring(endless))
    assert threading.active_count() <= before + 5
    assert check_ring(solutions.my_all_reduce).state == "correct"


def test_ranks_that_take_turns_run_the_same_way_every_time():
    def program(tensor, rank, count, send, recv):
        send(tensor, (rank + 1) % count)
        return recv((rank - 1) % count).item()

    runs = []
    for _ in range(3):
        exchange = Exchange(3)
        assert exchange.run(program, [torch.tensor(float(r)) for r in range(3)]) == [2, 0, 1]
        assert not exchange.unread
        runs.append(exchange.sent)
    assert runs[0] == runs[1] == runs[2]


def test_ranks_that_all_wait_are_known_at_once():
    exchange = Exchange(3)
    start = time.monotonic()
    with pytest.raises(Stuck):
        exchange.run(lambda t, rank, n, send, recv: recv((rank + 1) % n), [torch.ones(1)] * 3)
    assert exchange.stuck == {0: 1, 1: 2, 2: 0}
    assert time.monotonic() - start < 5


def test_the_error_of_one_rank_is_not_hidden_by_those_that_wait_for_it():
    def program(tensor, rank, count, send, recv):
        if rank == 2:
            raise KeyError("mine")
        return recv(2)

    with pytest.raises(KeyError, match="mine"):
        Exchange(3).run(program, [torch.ones(1)] * 3)


# Deadlocks

S, R = "send", "recv"


@pytest.mark.parametrize(
    ("programs", "stuck"),
    [
        ([], {}),
        ([[], []], {}),
        ([[(S, 1)], [(R, 0)]], {}),
        ([[(S, 1), (R, 1)], [(S, 0), (R, 0)]], {0: 0, 1: 0}),
        ([[(S, 1), (S, 1)], [(R, 0)]], {0: 1}),
        ([[(S, 1), (S, 2)], [(R, 2), (R, 0)], [(R, 0), (S, 1)]], {0: 0, 1: 0, 2: 0}),
    ],
)
def test_who_waits_for_ever(programs, stuck):
    assert stuck_at(programs) == solutions.my_stuck(programs) == stuck


def test_the_order_in_which_pairs_meet_does_not_matter():
    generator = random.Random(0)
    for _ in range(300):
        count = generator.randint(1, 4)
        programs = [[] for _ in range(count)]
        for rank, other in itertools.permutations(range(count), 2):
            for _ in range(generator.randint(0, 2)):
                place = generator.randint(0, len(programs[rank]))
                programs[rank].insert(place, (generator.choice([S, R]), other))
        assert stuck_at(programs) == solutions.my_stuck(programs) == stuck_by_pairs(programs)


def sends_never_wait(programs):
    from mpcourse.checks.attempted_programs import _buffered

    return _buffered(programs)


def only_first(programs):
    from mpcourse.checks.attempted_programs import _never_moved

    return _never_moved(programs)


def only_when_all_wait(programs):
    stuck = solutions.my_stuck(programs)
    return stuck if len(stuck) == len(programs) else {}


def same_index(programs):
    from mpcourse.checks.attempted_programs import _lockstep

    return _lockstep(programs)


def one_pass(many=False, either=False):
    """Looks at each rank once; the partner of a send, or with `either` also that of a receive."""

    def attempt(programs):
        at = [0] * len(programs)

        def heads(rank):
            return programs[rank][at[rank]] if at[rank] < len(programs[rank]) else (None, rank)

        for rank in range(len(programs)):
            while True:
                kind, other = heads(rank)
                fits = kind == "send" and heads(other) == ("recv", rank)
                if not fits and not (either and (kind, *heads(other)) == ("recv", "send", rank)):
                    break
                at[rank] += 1
                at[other] += 1
                if not many:
                    break
        return {rank: index for rank, index in enumerate(at) if index < len(programs[rank])}

    return attempt


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("either", [False, True])
def test_a_single_pass_is_told_to_repeat(many, either):
    words = said(check_deadlock(one_pass(many, either)))
    assert "A rank that waited may go on later: repeat until nothing moves." in words


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (sends_never_wait, "a send waits for its receive"),
        (same_index, "at different indices"),
        (only_first, "go on to their next ones"),
        (lambda programs: list(solutions.my_stuck(programs)), "Say also where"),
        (lambda programs: bool(solutions.my_stuck(programs)), "Say who and where"),
        (
            lambda p: {r: p[r][i] for r, i in solutions.my_stuck(p).items()},
            "not the operation",
        ),
        (lambda programs: {}, "a send waits for its receive"),
        (only_when_all_wait, "Not all of them end"),
        (
            lambda programs: dict.fromkeys(solutions.my_stuck(programs), 0),
            "how far each rank gets",
        ),
        (lambda programs: {99: 1}, "Two ranks go on when"),
        (lambda programs: None, "None is what a function"),
    ],
)
def test_wrong_deadlocks_are_explained(attempt, words):
    assert words in said(check_deadlock(attempt))


# Lines and trees


def smallest_and_largest(sizes, seconds):
    large = sizes.index(max(sizes))
    return min(seconds), sizes[large] / seconds[large]


def good(*arguments):
    return through_two_points(*arguments)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (smallest_and_largest, "Size by time of one message has the latency in it"),
        (lambda s, t: (good(s, t)[0], 1 / good(s, t)[1]), "the bandwidth is bytes per second"),
        (lambda s, t: good(s, t)[::-1], "The latency comes first"),
        (lambda s, t: (min(t), good(s, t)[1]), "the way of its own bytes"),
        (lambda s, t: (float("nan"), good(s, t)[1]), "expected latency 2"),
        (lambda s, t: good(s, t)[1], "expected two numbers"),
        (lambda s, t: (*good(s, t), 1.0), "expected two numbers"),
        (lambda s, t: ("a", "b"), "expected two numbers"),
        (lambda s, t: None, "expected two numbers"),
        (lambda s, t: 1 / 0, "ZeroDivisionError"),
        (lambda s: s, "TypeError"),
    ],
)
def test_wrong_lines_are_explained(attempt, words):
    assert words in said(check_fit(attempt))


def test_a_line_through_the_first_and_last_of_unsorted_sizes_is_wrong():
    def first_and_last(sizes, seconds):
        return min(seconds) - min(sizes) / 1e9, (sizes[-1] - sizes[0]) / (seconds[-1] - seconds[0])

    assert check_fit(first_and_last).state == "not yet"


def message(nbytes, latency, bandwidth):
    return latency + nbytes / bandwidth


def pair(tree=lambda n: 2 * math.log2(n), ring=lambda n: 2 * (n - 1), part=lambda n: 1 / n):
    def attempt(count, nbytes, latency, bandwidth):
        whole = message(nbytes, latency, bandwidth)
        return tree(count) * whole, ring(count) * message(nbytes * part(count), latency, bandwidth)

    return attempt


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda *a: pair()(*a)[::-1], "The tree comes first"),
        (pair(tree=math.log2), "bring the sum back"),
        (pair(ring=lambda n: n - 1), "one adds, one hands"),
        (pair(tree=math.log2, ring=lambda n: n - 1), "Both have two rounds"),
        (pair(part=lambda n: 1), "each message is one chunk"),
        (pair(ring=lambda n: 2 * (n - 1) / n, part=lambda n: 1), "do not divide the latency"),
        (pair(ring=lambda n: 2 * n), "n - 1 steps, not n"),
        (pair(tree=lambda n: 2 * math.log(n)), "another logarithm"),
        (pair(tree=lambda n: 2 * (n - 1)), "That is a star"),
        (lambda *a: 1.0, "for each of the two"),
        (lambda *a: None, "None is what a function"),
        (lambda *a: "ab", "for each of the two"),
        (lambda count: count, "TypeError"),
    ],
)
def test_wrong_trees_and_rings_are_explained(attempt, words):
    assert words in said(check_tree_and_ring(attempt))
