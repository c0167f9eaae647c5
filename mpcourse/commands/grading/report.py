"""What became of learners' notebooks, for people: in a terminal, as a table, as pages to read.

Behind `python -m mpcourse grade`. Each state has a sign and its word: no colour is needed. A page
for each learner holds nobody else's results and can be handed back.
"""

import csv
import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path, PurePath

from mpcourse.commands.grading.judge import Record
from mpcourse.commands.shell import write_whole

SIGNS = {"correct": "✓", "not yet": "✗", "not attempted": "…", "not judged": "?"}
COLUMNS = ("learner", "page", "exercise", "state", "message", "file")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute such a cell
HEAD = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{0}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; }}
caption {{ text-align: left; font-weight: bold; }}
th, td {{ border-bottom: 1px solid #888; padding: .3rem 1rem .3rem 0; text-align: left; }}
th, td {{ vertical-align: top; white-space: pre-wrap; overflow-wrap: anywhere; }}
</style></head><body><main><h1>{0}</h1>
"""


def counted(records: Sequence[Record]) -> str:
    """How many exercises are correct, in words."""
    states = [state for record in records for state, _ in record.judged.values()]
    return f"{states.count('correct')} of {len(states)}"


def page_of(record: Record) -> str:
    """The page's name; of what is no page, the file's."""
    return PurePath(record.page or record.file).stem


def line_of(record: Record) -> str:
    """One notebook in a terminal: a line, and one more for each exercise and note."""
    lines = [f"{record.learner}  {page_of(record)}  {counted([record])}"]
    for name, (state, message) in record.judged.items():
        words = "" if state == "not attempted" else " ".join(message.split())
        lines.append(f"    {SIGNS[state]} {state:<13} {name}  {words[:200]}")
    return "\n".join(lines + [f"    note: {note}" for note in record.notes])


def write_all(folder: Path, records: Sequence[Record], facts: str) -> None:
    """Write `results.csv`, `results.html` and in `learners/` a page for each of them."""
    (folder / "learners").mkdir(exist_ok=True)
    totals, states = [], defaultdict(Counter)
    for learner, own in groupby(records, lambda record: record.learner):
        own = list(own)
        write_whole(folder / "learners" / file_of(learner), page_for(learner, own))
        by_page = [f"{page_of(r)} {counted([r])}{'*' * bool(r.notes)}" for r in own]
        totals.append([learner, counted(own), ", ".join(by_page)])
    for record in records:
        for name, (state, _) in record.judged.items():
            states[f"{page_of(record)}: {name}"][state] += 1
    worst = sorted(states, key=lambda name: -states[name]["not yet"])
    counts = [[name, *(str(states[name][state]) for state in SIGNS)] for name in worst]
    tables = [
        _table("Correct exercises; * there is a note", ["learner", "all", "pages"], totals),
        _table("Exercises, the one that failed most first", ["exercise", *SIGNS], counts),
    ]
    write_whole(folder / "results.html", _html("Results", f"<p>{escape(facts)}</p>", *tables))
    write_whole(folder / "results.csv", csv_of(records))  # last: a spreadsheet may hold it


def file_of(learner: str) -> str:
    """A file name that any system takes, another for each learner, of whichever case."""
    kept = re.sub(r"[^A-Za-z0-9-]+", "_", learner)[:40]
    return f"{kept}-{hashlib.sha256(learner.encode()).hexdigest()[:6]}.html"


def page_for(learner: str, records: Sequence[Record]) -> str:
    """The text of a learner's own page."""
    tables = []
    for record in records:
        rows = [[name, f"{SIGNS[s]} {s}", words] for name, (s, words) in record.judged.items()]
        rows += [["", "note", note] for note in record.notes]
        title = f"{page_of(record)} ({record.file}): {counted([record])} correct"
        tables.append(_table(title, ["exercise", "state", "message"], rows))
    return _html(learner, *tables)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f'<th scope="col">{escape(head)}</th>' for head in heads)]
    for first, *others in rows:
        cells = "".join(f"<td>{escape(each)}</td>" for each in others)
        lines.append(f'<th scope="row">{escape(first)}</th>{cells}')
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f"<table><caption>{escape(title)}</caption>\n{body}</table>\n"


def _html(title: str, *parts: str) -> str:
    return HEAD.format(escape(title)) + "\n".join(parts)


def csv_of(records: Sequence[Record]) -> str:
    """The text of a CSV file; its first character tells spreadsheets that it is UTF-8."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for record in records:
        rows = [(name, *judged) for name, judged in record.judged.items()]
        for row in rows + [("", "note", note) for note in record.notes]:
            cells = record.learner, page_of(record), *row, record.file
            table.writerow(["'" + c if c.startswith(FORMULA) else c for c in cells])
    return "\N{ZERO WIDTH NO-BREAK SPACE}" + text.getvalue()
