"""What became of learners' notebooks, for people: as lines to read, and as a table.

Behind `python -m mpcourse grade`. Each state has a sign and its word: no colour is needed.
"""

import contextlib
import csv
import hashlib
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from mpcourse.commands.clean_copies import write_whole
from mpcourse.commands.grading.judge import Record
from mpcourse.exercises.exercise import SIGNS as VERDICTS

SIGNS = {**VERDICTS, "not judged": "?"}
KEPT = "results.json"
COLUMNS = ("learner", "page", "exercise", "state", "message", "file")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute such a cell


def counted(records: Sequence[Record]) -> str:
    """How many exercises are correct, in words; one handed in twice counts once."""
    states = [((r.learner, r.page, c), s) for r in records for c, (s, _) in r.judged.items()]
    right = {asked for asked, state in states if state == "correct"}
    return f"{len(right)} of {len(dict(states))}"


def lines_of(record: Record) -> str:
    """One notebook: a line, and more for each exercise and note."""
    page = record.page or record.file
    lines = [f"{record.learner}  {page}  {counted([record])} correct  ({record.file})"]
    for name, (state, message) in record.judged.items():
        words = "" if state == "not attempted" else message
        lines += ["\n      ".join([f"  {SIGNS[state]} {state}: {name}", *words.splitlines()])]
    lines += ["\n      ".join(f"  note: {note}".splitlines()) for note in record.notes]
    return "\n".join(lines) + "\n"


def read_kept(folder: Path) -> dict[str, Record]:
    """What an earlier call has kept in a folder, by its key."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads((folder / KEPT).read_text(encoding="utf-8"))
        return {each["key"]: Record(**each) for each in found}
    return {}


def write_all(folder: Path, records: Sequence[Record], facts: str) -> None:
    """Write `results` as json, txt and csv, and in `learners/` a text for each of them."""
    kept = [asdict(record) for record in records if record.key]
    write_whole(folder / KEPT, json.dumps(kept, indent=1, ensure_ascii=False))
    (folder / "learners").mkdir(exist_ok=True)
    records = sorted(records, key=lambda record: (record.learner, record.file))
    lines = [facts, "", "Correct exercises (* there is a note)"]
    for learner, own in groupby(records, lambda record: record.learner):
        own = list(own)
        write_whole(folder / "learners" / file_of(learner), "\n".join(map(lines_of, own)))
        pages = (f"{r.page or r.file} {counted([r])}{'*' * bool(r.notes)}" for r in own)
        lines.append(f"  {learner}: {counted(own)}; {', '.join(pages)}")
    found, same = defaultdict(Counter), defaultdict(dict)
    for record in records:
        for check, (state, _) in record.judged.items():
            name = f"{record.page or record.file}, {check}"
            found[name][state] += 1
            if state != "not attempted" and record.answers.get(check):
                same[name, record.answers[check]][record.learner] = None
    lines += ["", "Exercises, the one that failed most first"]
    for name, n in sorted(found.items(), key=lambda each: -each[1]["not yet"]):
        lines.append(f"  {name}: {', '.join(f'{n[state]} {state}' for state in SIGNS if n[state])}")
    lines += ["", "Answers that are the same, letter by letter"]
    lines += sorted(f"  {n}: {', '.join(who)}" for (n, _), who in same.items() if len(who) > 1)
    write_whole(folder / "results.txt", "\n".join(lines) + "\n")
    write_whole(folder / "results.csv", csv_of(records))  # last: a spreadsheet may hold it


def file_of(learner: str) -> str:
    """A file name that any system takes, another for each learner, of whichever case."""
    kept = re.sub(r"[^\w-]+", "_", learner)[:40]
    return f"{kept}-{hashlib.sha256(learner.encode()).hexdigest()[:6]}.txt"


def csv_of(records: Sequence[Record]) -> str:
    """The text of a CSV file; its first character tells spreadsheets that it is UTF-8."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for record in records:
        rows = [(name, *judged) for name, judged in record.judged.items()]
        for row in rows + [("", "note", note) for note in record.notes]:
            cells = record.learner, record.page or record.file, *row, record.file
            table.writerow(["'" + c if c.startswith(FORMULA) else c for c in cells])
    return "\N{ZERO WIDTH NO-BREAK SPACE}" + text.getvalue()
