"""What became of learners' notebooks, for people: in a terminal, as a table, as a page to read.

Behind `python -m mpcourse grade`. Each state has a sign and its word: no colour is needed.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePath

from mpcourse.commands.grading.watch import Record

SIGNS = {"correct": "✓", "not yet": "✗", "not attempted": "…", "not judged": "?"}
COLUMNS = ("learner", "page", "exercise", "state", "message", "file")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute such a cell
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
h2 { border-bottom: 1px solid #888; }
table { border-collapse: collapse; width: 100%; }
.wide { overflow-x: auto; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { border-bottom: 1px solid #8886; padding: .3rem .8rem .3rem 0; text-align: left; }
th, td { vertical-align: top; overflow-wrap: anywhere; }
.all { width: auto; } .all th, .all td { white-space: nowrap; }
.state { white-space: nowrap; width: 9rem; } .name { width: 12rem; }
.state b { display: inline-block; width: 1.4em; text-align: center; margin-right: .3em; }
.correct b { background: #009e73; color: #000; } .not-yet b { background: #d55e00; color: #000; }
.not-attempted b { background: #ccc; color: #000; }
.not-judged b { background: #f0e442; color: #000; }
.message { white-space: pre-wrap; }
.file { opacity: .75; font-weight: normal; }
@media (max-width: 45rem) {
  .one tr { display: block; border-bottom: 1px solid #8886; padding: .3rem 0; }
  .one th, .one td { display: block; width: auto; border: 0; padding: 0; }
}
"""


def page_of(record: Record) -> str:
    """The page's name; of what is no page, the file's."""
    return PurePath(record.page or record.file).stem


def count(record: Record) -> str:
    """How many exercises are correct, in words."""
    states = [state for state, _ in record.judged.values()]
    return f"{states.count('correct')} of {len(states)}"


def line_of(record: Record) -> str:
    """One notebook in a terminal: a line, and one more for each exercise and note."""
    lines = [
        f"{record.learner}  {page_of(record)}  {count(record) if record.page else ''}".rstrip()
    ]
    for name, (state, message) in record.judged.items():
        first = "" if state in ("correct", "not attempted") else " ".join(message.split())
        if len(first) > 200:
            first = first[:199] + "…"
        lines.append(f"    {SIGNS[state]} {state:<13} {name}  {first}".rstrip())
    lines += [f"    note: {' '.join(note.split())}" for note in record.notes]
    return "\n".join(lines)


def in_words(records: Sequence[Record]) -> str:
    """The end of it all in a terminal: how many exercises are in which state."""
    states = [state for record in records for state, _ in record.judged.values()]
    counts = [f"{states.count(state)} {state}" for state in SIGNS if state in states]
    learners = counted(len({record.learner for record in records}), "learner")
    notebooks = counted(len(records), "notebook")
    return f"{learners}, {notebooks}: {', '.join(counts) or 'no exercises'}."


def counted(number: int, what: str) -> str:
    """A number and what there is of it: 1 notebook, 2 notebooks."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def rows_of(record: Record) -> Iterable[tuple[str, ...]]:
    """The rows of a notebook, in the order of `COLUMNS`; a note is in a row of its own."""
    page = page_of(record)
    for name, (state, message) in record.judged.items():
        yield record.learner, page, name, state, message, record.file
    for note in record.notes:
        yield record.learner, page, "", "note", note, record.file


def write_csv(records: Sequence[Record]) -> str:
    """The text of a CSV file; its first character tells spreadsheets that it is UTF-8."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for record in records:
        table.writerows([list(map(_no_formula, row)) for row in rows_of(record)])
    return "\N{ZERO WIDTH NO-BREAK SPACE}" + text.getvalue()


def _no_formula(text: str) -> str:
    return "'" + text if text.startswith(FORMULA) else text


def write_html(records: Sequence[Record], facts: str) -> str:
    """The text of a page that stands alone: an overview, then each notebook."""
    learners = list(dict.fromkeys(record.learner for record in records))
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Results</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body><main><h1>Results</h1>",
        f"<p>{escape(in_words(records))} Graded with {escape(facts)}.</p>",
        _overview(learners, records),
    ]
    for number, learner in enumerate(learners):
        parts.append(f'<section id="l{number}"><h2>{escape(learner)}</h2>')
        parts += [_notebook(record) for record in records if record.learner == learner]
        parts.append("</section>")
    return "\n".join([*parts, "</main></body></html>"]) + "\n"


def _overview(learners: Sequence[str], records: Sequence[Record]) -> str:
    pages = sorted({record.page for record in records if record.page})
    head = "".join(f'<th scope="col">{escape(PurePath(page).stem)}</th>' for page in pages)
    rows = []
    for number, learner in enumerate(learners):
        theirs = [record for record in records if record.learner == learner]
        cells = "".join(
            f"<td>{', '.join(map(_in_short, (r for r in theirs if r.page == page)))}</td>"
            for page in pages
        )
        name = f'<th scope="row"><a href="#l{number}">{escape(learner)}</a></th>'
        rows.append(f"<tr>{name}{cells}</tr>")
    caption = "Correct exercises; with * not all could be judged, or there is a note."
    return (
        f'<div class="wide"><table class="all"><caption>{caption}</caption>'
        f'<thead><tr><th scope="col">learner</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _in_short(record: Record) -> str:
    return count(record) + ("*" if record.stopped or record.notes else "")


def _notebook(record: Record) -> str:
    title = f'{escape(page_of(record))} <span class="file">{escape(record.file)}</span>'
    rows = "".join(
        f'<tr><th scope="row" class="name">{escape(name)}</th>'
        f'<td class="state {state.replace(" ", "-")}"><b>{SIGNS[state]}</b>{state}</td>'
        f'<td class="message">{escape(message)}</td></tr>'
        for name, (state, message) in record.judged.items()
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in record.notes)
    return "".join(
        [
            f"<h3>{title}</h3>",
            f'<table class="one"><tbody>{rows}</tbody></table>' if rows else "",
            f"<ul>{notes}</ul>" if notes else "",
        ]
    )
