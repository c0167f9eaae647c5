"""Programs of sends and receives, one per rank: who waits for ever, and what people think."""

from collections.abc import Sequence
from typing import Any

from mpcourse.checks.verdict import Case

# A rank's program: ("send", to) and ("recv", from), in order. A send waits for its receive.
Programs = Sequence[Sequence[tuple[str, int]]]

AGAIN = "A rank that waited may go on later: repeat until nothing moves."


def stuck_at(programs: Programs) -> dict[int, int]:
    """Rank -> index of the operation at which it waits for ever, for the ranks that do."""
    at = [0] * len(programs)
    waiting = {rank for rank, program in enumerate(programs) if program}
    moved = True
    while moved:
        moved = False
        for rank in sorted(waiting):
            kind, other = programs[rank][at[rank]]
            meets = other in waiting and programs[other][at[other]] == ("recv", rank)
            if kind == "send" and meets:
                for each in (rank, other):
                    at[each] += 1
                    waiting -= {each} if at[each] == len(programs[each]) else set()
                moved = True
                break
    return {rank: at[rank] for rank in sorted(waiting)}


def deadlock_case(programs: Programs) -> Case:
    """One case of the check, with the wrong answers that people give for it."""
    right = stuck_at(programs)
    known: list[tuple[Any, str]] = [
        (_buffered(programs), "Here a send waits for its receive: sending first does not end it."),
        ({}, "Not all of them end: some wait for somebody who has ended, or who waits too."),
        (
            _lockstep(programs),
            f"Two operations can meet at different indices in the two programs. {AGAIN}",
        ),
        (_one_pass(programs), AGAIN),
        (_one_pass(programs, many=True), AGAIN),
        (_never_moved(programs), "Ranks whose operations meet go on to their next ones."),
        (list(right), "Say also where: a dict, rank -> index of the operation."),
        (bool(right), "Say who and where: a dict, rank -> index of the operation."),
        (
            {rank: tuple(programs[rank][index]) for rank, index in right.items()},
            "The value is the index of the operation, not the operation.",
        ),
    ]
    if right:
        known.append(
            ({r: 0 for r in right}, "Count how far each rank gets before it waits for ever.")
        )
    hint = "Two ranks go on when one is at a send to the other, which is at a recv from it."
    return Case(f"programs {[list(p) for p in programs]}", (programs,), right, known, hint)


def _buffered(programs: Programs) -> dict[int, int]:
    """What it would be if no send had to wait."""
    at, sent = [0] * len(programs), []
    moved = True
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
    return {r: i for r, i in enumerate(at) if i < len(programs[r])}


def _lockstep(programs: Programs) -> dict[int, int]:
    """What it would be if operations met only at equal indices."""
    found = {}
    for rank, program in enumerate(programs):
        for index, (kind, other) in enumerate(program):
            partner = ("recv" if kind == "send" else "send", rank)
            if list(programs[other])[index : index + 1] != [partner]:
                found[rank] = index
                break
    return found


def _one_pass(programs: Programs, *, many: bool = False) -> dict[int, int]:
    """What it would be if each rank were looked at once, for one operation or for `many`."""
    at = [0] * len(programs)

    def next_of(rank: int) -> tuple[str, int] | None:
        return tuple(programs[rank][at[rank]]) if at[rank] < len(programs[rank]) else None

    for rank in range(len(programs)):
        while operation := next_of(rank):
            kind, other = operation
            if next_of(other) != ("recv" if kind == "send" else "send", rank):
                break
            at[rank] += 1
            at[other] += 1
            if not many:
                break
    return {r: i for r, i in enumerate(at) if i < len(programs[r])}


def _never_moved(programs: Programs) -> dict[int, int]:
    """What it would be if only the first operations counted."""
    found = {}
    for rank, program in enumerate(programs):
        if program:
            kind, other = program[0]
            partner = ("recv" if kind == "send" else "send", rank)
            if list(programs[other])[:1] != [partner]:
                found[rank] = 0
    return found
