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
from pathlib import Path, PurePath

from mpcourse.commands.shell import write_whole

SIGNS = {"correct": "✓", "not yet": "✗", "not attempted": "…", "not judged": "?"}
COLUMNS = ("learner", "page", "exercise", "state", "message", "file")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute such a cell
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  background: Canvas; color: CanvasText; }
table { border-collapse: collapse; margin: 1rem 0; }
.wide { overflow-x: auto; }
caption { text-align: left; font-weight: bold; padding-bottom: .4rem; }
th, td { border-bottom: 1px solid #888; padding: .3rem 1rem .3rem 0; text-align: left; }
th, td { vertical-align: top; }
.message { white-space: pre-wrap; overflow-wrap: anywhere; }
.state { white-space: nowrap; }
"""


def page_of(record) -> str:
    """The page's name; of what is no page, the file's."""
    return PurePath(record.page or record.file).stem


def count(records: Sequence) -> str:
    """How many exercises are correct, in words."""
    states = [state for record in records for state, _ in record.judged.values()]
    return f"{states.count('correct')} of {len(states)}"


def counted(number: int, what: str) -> str:
    """A number and what there is of it: 1 notebook, 2 notebooks."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def line_of(record) -> str:
    """One notebook in a terminal: a line, and one more for each exercise and note."""
    lines = [f"{record.learner}  {page_of(record)}  {count([record]) if record.page else ''}"]
    for name, (state, message) in record.judged.items():
        words = "" if state in ("correct", "not attempted") else " ".join(message.split())
        words = words if len(words) <= 200 else words[:199] + "…"
        lines.append(f"    {SIGNS[state]} {state:<13} {name}  {words}")
    lines += [f"    note: {' '.join(note.split())}" for note in record.notes]
    return "\n".join(line.rstrip() for line in lines)


def in_words(records: Sequence) -> str:
    """The end of it all in a terminal: how many exercises are in which state."""
    states = Counter(state for record in records for state, _ in record.judged.values())
    counts = [f"{states[state]} {state}" for state in SIGNS if states[state]]
    learners = counted(len({record.learner for record in records}), "learner")
    notebooks = counted(len(records), "notebook")
    return f"{learners}, {notebooks}: {', '.join(counts) or 'no exercises'}."


def write_all(folder: Path, records: Sequence, facts: str) -> None:
    """Write `results.csv`, `results.html` and in `learners/` a page for each of them."""
    (folder / "learners").mkdir(exist_ok=True)
    write_whole(folder / "results.html", overview(records, facts))
    for learner, own in grouped(records).items():
        parts = [f"<p>{escape(count(own))} exercises are correct.</p>", *map(_notebook, own)]
        write_whole(folder / "learners" / file_of(learner), _html(learner, parts))
    write_whole(folder / "results.csv", write_csv(records))  # last: a spreadsheet may hold it


def grouped(records: Sequence) -> dict[str, list]:
    """The records of each learner."""
    found = defaultdict(list)
    for record in records:
        found[record.learner].append(record)
    return found


def file_of(learner: str) -> str:
    """A file name that any system takes, another for each learner, of whichever case."""
    kept = re.sub(r"[^A-Za-z0-9-]+", "_", learner)[:40]
    short = hashlib.sha256(learner.encode()).hexdigest()[:6]
    return f"{kept}-{short}.html"


def write_csv(records: Sequence) -> str:
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


def overview(records: Sequence, facts: str) -> str:
    """The text of a page: totals by learner and by exercise, and answers that are the same."""
    pages = sorted({record.page for record in records if record.page})
    rows = []
    for learner, own in grouped(records).items():
        name = f'<a href="learners/{file_of(learner)}">{escape(learner)}</a>'
        by_page = [", ".join(map(_in_short, (r for r in own if r.page == p))) for p in pages]
        rows.append([name, count(own), *by_page, _in_short(*[r for r in own if not r.page][:1])])
    heads = ["learner", "correct", *(escape(PurePath(page).stem) for page in pages), "unknown"]
    parts = [
        f"<p>{escape(in_words(records))} {escape(facts)}</p>",
        _table("Correct exercises; * there is a note, or not all could be judged", heads, rows),
        _table(
            "Exercises, the one that failed most first", ["exercise", *SIGNS], exercises(records)
        ),
        _table("Identical answers", ["exercise", "learners"], identical(records)),
    ]
    return _html("Results", parts)


def exercises(records: Sequence) -> list[list[str]]:
    """For each exercise in how many notebooks it is in which state."""
    found = defaultdict(Counter)
    for record in records:
        for name, (state, _) in record.judged.items():
            found[f"{page_of(record)}: {name}"][state] += 1
    names = sorted(found, key=lambda name: -found[name]["not yet"])
    return [[escape(name), *(str(found[name][state]) for state in SIGNS)] for name in names]


def identical(records: Sequence) -> list[list[str]]:
    """Exercises to which several learners gave one answer, word for word; no stub, no solution."""
    found = defaultdict(set)
    for record in records:
        for name, answer in record.answers.items():
            if answer and record.judged[name][0] != "not attempted":
                found[f"{page_of(record)}: {name}", answer].add(record.learner)
    same = [(name, learners) for (name, _), learners in found.items() if len(learners) > 1]
    return [[escape(name), escape(", ".join(sorted(learners)))] for name, learners in same]


def _in_short(record=None) -> str:
    marked = record and (record.stopped or record.notes)
    return "" if record is None else count([record]) + "*" * bool(marked)


def _notebook(record) -> str:
    rows = [
        [
            escape(name),
            f'<span class="state">{SIGNS[state]} {state}</span>',
            f'<span class="message">{escape(message)}</span>',
        ]
        for name, (state, message) in record.judged.items()
    ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in record.notes)
    title = f"{page_of(record)} ({record.file})"
    table = _table(escape(title), ["exercise", "state", "message"], rows)
    return table + (f"<ul>{notes}</ul>" if notes else "")


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{each}</td>" for each in rest) + "</tr>"
        for first, *rest in rows
    )
    table = (
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    )
    return f'<div class="wide" tabindex="0">{table}</table></div>'


def _html(title: str, parts: Sequence[str]) -> str:
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head>'
    )
    return (
        f"{head}<body><main><h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )
