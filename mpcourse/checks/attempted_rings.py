"""Tries an attempt at a ring all-reduce on ranks that take turns, and says what its sums lack."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpcourse.checks.turn_taking import Exchange, Stuck
from mpcourse.checks.verdict import same, short, try_out

BASE = 8  # a sum of rank r's BASE ** r shows how often each rank is in it, up to 7 times
ARRIVES = (
    "In step s = 1, 2, … rank r sends chunk r - s + 1, the one that arrived in the step before; "
    "what arrives is chunk r - s. Both rounds count on: the second begins with chunk r + 1."
)


def ring_problem(attempt: Callable[..., Tensor], count: int, numbers: int) -> Any:
    """What is wrong with the attempt; None if nothing is, `...` for a stub.

    Args:
        attempt: Runs on every rank.
        count: How many ranks.
        numbers: In each rank's tensor.
    """
    exchange = Exchange(count)
    tensors = [torch.full((numbers,), float(BASE**rank)) for rank in range(count)]
    results, problem = try_out(exchange.run, attempt, tensors)
    if exchange.stuck is not None and (problem is None or Stuck.__name__ in problem):
        return _stuck(exchange)
    if problem:
        few = "Chunks are numbered modulo the ranks; tensor_split gives one to every rank."
        return [problem, *[few] * ("IndexError" in problem)]
    if all(result is ... for result in results):
        return ...
    return (
        _wrong_sums(results, exchange, numbers)
        or _wrong_messages(exchange, numbers)
        or _mixed_up(attempt, count, numbers)
    )


def _stuck(exchange: Exchange) -> list[str]:
    waits = [f"rank {rank} for rank {source}" for rank, source in sorted(exchange.stuck.items())]
    lines = [f"It never ends: {', '.join(waits)} waits for a message that nobody sends."]
    if len(waits) == exchange.count and not exchange.sent:
        lines.append("Everybody receives first: send the piece, then receive.")
    return [*lines, *_wrong_way(exchange)]


def _wrong_way(exchange: Exchange) -> list[str]:
    for source, target, _ in exchange.sent:
        if target != (source + 1) % exchange.count:
            way = "in a ring, only to the right, (r + 1) % n."
            return [f"rank {source} sent to rank {target}: {way}"]
    return []


def _wrong_sums(results: list[Any], exchange: Exchange, numbers: int) -> list[str] | None:
    count = exchange.count
    total = sum(BASE**rank for rank in range(count))
    wanted = torch.full((numbers,), total / count)
    for rank, result in enumerate(results):
        if same(result, wanted):
            continue
        if result is None:
            return [f"rank {rank} got None: return the tensor."]
        if not isinstance(result, Tensor) or result.shape != wanted.shape:
            return [f"rank {rank} got {short(result)}", f"expected a tensor of {numbers} numbers."]
        if all(same(each, wanted * count) for each in results):
            return [f"got {short(result)}", f"That is the sum: divide by the {count} ranks."]
        if any(same(result, wanted * count / part) for part in (count**2, 2 * count)):
            return [f"got {short(result)}", "It was divided more than once: each number once."]
        return _what_is_in_it(result, wanted, rank, exchange)
    return None


def _what_is_in_it(wrong: Tensor, wanted: Tensor, rank: int, exchange: Exchange) -> list[str]:
    """Which ranks' numbers are in the first wrong sum, and how often."""
    count, messages = exchange.count, len(exchange.sent_by(rank))
    index = int((wrong - wanted).abs().gt(1e-6 * wanted.abs()).nonzero()[0])
    lines = [f"expected {short(wanted)}", f"rank {rank} got {short(wrong)}"]
    times = _times(wrong[index], count, count, 1)
    if times is None:
        return lines
    if wrong_way := _wrong_way(exchange):
        return [*lines, *wrong_way]
    own = torch.full_like(wanted, float(BASE**rank))
    if messages and (same(wrong, own / count) or same(wrong, own)):
        line = f"Rank {rank} sent {messages} messages, but its tensor is unchanged:"
        return [*lines, f"{line} `chunks[i] = …` does not write into it, `chunks[i].add_(…)` does."]
    parts = ", ".join(f"rank {other} {many} time(s)" for other, many in enumerate(times))
    lines.append(f"In number {index} on rank {rank}: {parts}.")
    passed = [
        _times(number, count, 1) or [1] for _, _, piece in exchange.sent for number in piece[:1]
    ]
    if max(times) > 1:
        line = "Something is added twice: in the second round whole sums replace what is there."
    elif messages < 2 * (count - 1):
        line = f"Rank {rank} sent {messages} messages; two rounds of {count - 1} steps have more."
        sums = [_times(number, count, count, 1) for number in wrong]
        if messages == count - 1 and [1] * count not in sums:
            line += f" And after the first it should hold one whole sum. {ARRIVES}"
    elif max(sum(each) for each in passed) == 1:
        line = "What was there is overwritten: in the first round what arrives is added."
    else:
        line = f"A sum is not complete. {ARRIVES}"
    return [*lines, line]


def _times(number: Tensor, count: int, *scales: int) -> list[int] | None:
    """How often each rank's number is in a sum, after scaling; None if it is no sum of them."""
    for scale in scales:
        value = number.item() * scale
        if abs(value - round(value)) < 1e-3 and 0 <= value < BASE**count:
            return [round(value) // BASE**other % BASE for other in range(count)]
    return None


def _wrong_messages(exchange: Exchange, numbers: int) -> list[str] | None:
    count = exchange.count
    if wrong_way := _wrong_way(exchange):
        return ["The mean is right.", *wrong_way]
    if exchange.unread:
        source, target = exchange.unread[0]
        line = f"a message from rank {source} to rank {target} was never received."
        return ["The mean is right.", line]
    largest = -(-numbers // count)
    most = 2 * (count - 1) * largest
    for rank in range(count):
        sent = exchange.sent_by(rank)
        if len(sent) > 2 * (count - 1):
            line = (
                f"rank {rank} sent {len(sent)} messages; two rounds have {2 * (count - 1)} steps."
            )
            return ["The mean is right.", line]
        if sum(sent) > most:
            line = f"rank {rank} sent {sum(sent)} numbers; a ring of chunks {most}."
            return ["The mean is right.", line, "Send a chunk in each step, not the whole tensor."]
    return None


def _mixed_up(attempt: Callable[..., Tensor], count: int, numbers: int) -> list[str] | None:
    """The same with different numbers everywhere: are the chunks where they belong?"""
    generator = torch.Generator().manual_seed(count * numbers)
    tensors = [torch.randn(numbers, generator=generator) for _ in range(count)]
    wanted = torch.stack(tensors).mean(0)
    results, problem = try_out(Exchange(count).run, attempt, [t.clone() for t in tensors])
    if problem:
        return [problem]
    for rank, result in enumerate(results):
        if not torch.allclose(result, wanted, atol=1e-5):
            lines = [f"expected {short(wanted)}", f"rank {rank} got {short(result)}"]
            return [*lines, "The right numbers are in the wrong places."]
    return None
