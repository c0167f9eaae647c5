"""The checks accept right answers however they are written and explain wrong ones."""

import re

import numpy as np
import pytest
from solutions import ranks_and_hosts as solutions

from mpcourse.checks import check_culprit, check_overlaps, check_resume

CHECKS = (check_culprit, check_resume, check_overlaps)


def said(found) -> str:
    assert found.state == "not yet", found
    assert found.lines[-1].startswith("Read again: ")
    return "\n".join(found.lines)


def test_stubs_are_not_attempted():
    assert check_culprit(lambda ends: ...).state == "not attempted"
    assert check_resume(lambda names, world_size: ...).state == "not attempted"
    assert check_overlaps(lambda saved, start, stop: ...).state == "not attempted"
    for check in CHECKS:
        assert check(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_culprit(solutions.my_culprit).state == "correct"
    assert check_resume(solutions.my_resume_step).state == "correct"
    assert check_overlaps(solutions.my_overlaps).state == "correct"


def culprit_by_score(ends):
    """The least excusable: killed or raised, then lost, then ended."""
    suspects = [e for e in ends if e[1] and e[1] != -15 and "peer" not in e[2]]
    return suspects[0][0] if suspects else None


def resume_by_trying(names, world_size):
    steps = {int(re.search(r"step(\d+)", name)[1]) for name in names}
    for step in sorted(steps, reverse=True):
        if all(f"rank{rank}-step{step:06d}.pt" in names for rank in range(world_size)):
            return step
    return None


def rows_by_rows(saved, start, stop):
    """Row by row: which file, and where in it."""
    places = [(file, row) for file, rows in enumerate(saved) for row in range(rows)]
    wanted = {}
    for file, row in places[start:stop]:
        wanted.setdefault(file, []).append(row)
    return [[file, rows[0], rows[-1] + 1] for file, rows in wanted.items()]


def test_other_right_answers_are_correct():
    assert check_culprit(culprit_by_score).state == "correct"
    assert check_resume(resume_by_trying).state == "correct"
    assert check_overlaps(rows_by_rows).state == "correct"
    assert check_overlaps(lambda *a: [np.array(p) for p in rows_by_rows(*a)]).state == "correct"


def first_who(is_meant):
    return lambda ends: next((end[0] for end in ends if is_meant(*end)), None)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (first_who(lambda rank, code, words: code != 0), "speak of another one"),
        (first_who(lambda rank, code, words: words), "speak of another one"),
        (first_who(lambda rank, code, words: code < 0 or "Value" in words), "from the launcher"),
        (lambda ends: min(ends, key=lambda end: end[1])[0], "from the launcher"),
        (lambda ends: None, "Somebody failed: rank 1"),
        (lambda ends: solutions.my_culprit(ends[::-1]), "it ended first"),
        (lambda ends: solutions.my_culprit(ends) or 0, "Exit code 0 is a rank that ended well"),
        (lambda ends: 77, "Leave out who ended well"),
        (lambda ends: ends[5][0], "IndexError"),
        (5, "takes a function"),
    ],
)
def test_a_wrong_culprit_is_explained(attempt, words):
    assert words in said(check_culprit(attempt))


def pieces_but(change):
    def pieces(saved, start, stop):
        return change(solutions.my_overlaps(saved, start, stop), saved, start, stop)

    return pieces


def in_the_whole(pieces, saved, start, stop):
    return [(f, a + sum(saved[:f]), b + sum(saved[:f])) for f, a, b in pieces]


def without_leaving_out(saved, start, stop):
    firsts = [sum(saved[:file]) for file in range(len(saved))]
    return [
        (file, max(start - first, 0), min(stop - first, rows))
        for file, (first, rows) in enumerate(zip(firsts, saved, strict=True))
    ]


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (pieces_but(in_the_whole), "Count the rows within each file"),
        (pieces_but(lambda p, *_: [(f, a, b - 1) for f, a, b in p]), "The end is not included"),
        (pieces_but(lambda p, *_: [(f, a, b - a) for f, a, b in p]), "not how many rows"),
        (pieces_but(lambda p, s, *_: [(f, 0, s[f]) for f, _, _ in p]), "Whole files hold rows"),
        (pieces_but(lambda p, *_: p[:1]), "more than one file"),
        (without_leaving_out, "Leave out a file of which nothing is wanted"),
        (pieces_but(lambda p, *_: p or None), "an empty list"),
        (pieces_but(lambda p, *_: p[::-1]), "The overlap of two ranges"),
        (lambda saved, start, stop: 3, "The overlap of two ranges"),
        (5, "takes a function"),
    ],
)
def test_wrong_pieces_are_explained(attempt, words):
    assert words in said(check_overlaps(attempt))


COMPLETE = re.compile(r"rank(\d+)-step(\d+)\.pt")


def rows_of(names):
    return [(int(m[1]), int(m[2])) for m in map(COMPLETE.fullmatch, names) if m]


def oldest_common(names, world_size):
    sets = [{s for r, s in rows_of(names) if r == rank} for rank in range(world_size)]
    return min(set.intersection(*sets), default=None)


def newest_of_all(names, world_size):
    return max((step for _, step in rows_of(names)), default=None)


def oldest_newest(names, world_size):
    rows = rows_of(names)
    newest = [max((s for r, s in rows if r == rank), default=None) for rank in range(world_size)]
    return None if None in newest else min(newest)


def with_parts(names, world_size):
    return solutions.my_resume_step([n.replace(".part", ".pt") for n in names], world_size)


def of_those_there(names, world_size):
    ranks = {rank for rank, _ in rows_of(names)}
    sets = [{s for r, s in rows_of(names) if r == rank} for rank in ranks]
    return max(set.intersection(*sets), default=None) if sets else None


def as_texts(names, world_size):
    sets = [
        {n.split("step")[1] for n in names if n.startswith(f"rank{r}-") and n.endswith(".pt")}
        for r in range(world_size)
    ]
    shared = set.intersection(*sets)
    return int(max(shared).split(".")[0]) if shared else None


def as_text(names, world_size):
    step = solutions.my_resume_step(names, world_size)
    return None if step is None else f"{step:06d}"


def by_beginning(names, world_size):
    sets = [
        {
            int(n.split("step")[1][:-3])
            for n in names
            if n.startswith(f"rank{r}") and n[-3:] == ".pt"
        }
        for r in range(world_size)
    ]
    return max(set.intersection(*sets), default=None)


def without_default(names, world_size):
    sets = [{s for r, s in rows_of(names) if r == rank} for rank in range(world_size)]
    return max(set.intersection(*sets))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (oldest_common, "An older step; the last is asked"),
        (newest_of_all, "Not every rank has a file of that step"),
        (oldest_newest, "The oldest of the newest is not common"),
        (with_parts, "A .part is a file that was never finished"),
        (of_those_there, "world_size says how many"),
        (as_text, "int(...) makes a number"),
        (as_texts, "Compare steps as numbers"),
        (by_beginning, "rank10 begins like rank1"),
        (without_default, "ValueError: max()"),
        (
            lambda n, w: solutions.my_resume_step(n, w) or 0,
            "return None, and the run begins anew",
        ),
        (
            lambda n, w: (solutions.my_resume_step(n, w) or 0) + 1 if n else None,
            "not one later",
        ),
        (lambda n, w: 5_000_000, "For each rank the set of its complete steps"),
        (lambda names, world_size: None, "None says that no step is common to all ranks; 2 is one"),
        (5, "takes a function"),
    ],
)
def test_wrong_steps_are_explained(attempt, words):
    assert words in said(check_resume(attempt))


def test_none_is_a_legal_step_so_nothing_is_said_about_a_missing_return():
    assert "without return" not in said(check_resume(lambda names, world_size: None))
