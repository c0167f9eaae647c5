"""Run learners' copies of the pages, let the course's checks judge them, report for each exercise.

Behind `python -m mpcourse grade`, for whoever teaches with the course. A copy runs from top to
bottom in a kernel of its own; outputs that it was saved with count for nothing.
"""

import argparse
import contextlib
import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import nbformat
import psutil

from mpcourse.commands.arguments import grade_arguments
from mpcourse.commands.grading.network import closed_network
from mpcourse.commands.grading.questions import exercises_of
from mpcourse.commands.grading.report import counted, in_words, line_of, write_csv, write_html
from mpcourse.commands.grading.submissions import Submission, digest, find_submissions
from mpcourse.commands.grading.watch import GIB, Limits, Record, grade_one
from mpcourse.commands.pages import find_pages
from mpcourse.commands.setup import ROOT
from mpcourse.commands.shell import show_progress, write_whole

RESULTS = "results.json"
MOST_TIME_S = 86400.0
MOST_JOBS = 64
NO_PAGE = "of no page of the course: NN_page has to be in the name of the file"


def check_limits(options: argparse.Namespace) -> None:
    """Raise a `ValueError` that names a limit and its range, before anything has run."""
    here = psutil.virtual_memory().total / GIB
    ranges = {
        "time-limit-s": (options.time_limit_s, 5, MOST_TIME_S),
        "memory-gb": (options.memory_gb, 1, here),
        "jobs": (options.jobs, 1, MOST_JOBS),
    }
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:
            raise ValueError(f"--{name} is {value:g}: from {least} to {most:.4g} is allowed")


class Gradebook:
    """The records, kept in a folder: written anew after each page, so that nothing is lost."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.earlier: dict[str, Record] = {}
        self._records: dict[str, Record] = {}
        probe = folder / f"{RESULTS}.probe"
        probe.touch()
        probe.unlink()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
            self.earlier = {record["file"]: Record(**record) for record in found}

    def keep(self, record: Record, facts: str) -> None:
        """Take a record in and write all files; `facts` stands at the top of the page to read."""
        self._records[record.file] = record
        kept = {**self.earlier, **self._records}
        words = json.dumps([each.as_dict() for each in kept.values()], indent=1, ensure_ascii=False)
        write_whole(self._folder / RESULTS, words)
        write_whole(self._folder / "results.csv", write_csv(self.records))
        write_whole(self._folder / "results.html", write_html(self.records, facts))

    @property
    def records(self) -> list[Record]:
        """Those of this call, in the order of learners and files."""
        return sorted(self._records.values(), key=lambda r: (r.learner.casefold(), r.file))


def grade(
    submissions: Sequence[Submission],
    book: Gradebook,
    limits: Limits,
    *,
    jobs: int = 1,
    again: bool = False,
    show: Callable[[str], None] = lambda words: None,
) -> None:
    """Grade notebooks; what was graded before and is as it was is taken from the book."""
    network = "without network" if closed_network() else "with the network open"
    facts = f"at most {limits.time_s:g} s and {limits.memory_gib:g} GB for a page, {network}"
    waiting = []
    for submission in submissions:
        key, before = _key(submission), book.earlier.get(submission.file)
        if submission.page is None:
            record = Record(submission.learner, submission.file, "", notes=[NO_PAGE])
        elif key and before and before.holds_for(key, limits) and not again:
            record = before
        else:
            waiting.append((submission, key))
            continue
        book.keep(record, facts)
        _print(line_of(record) + ("" if not record.page else "\n    as graded before"))
    stop = threading.Event()
    pool = ThreadPoolExecutor(jobs)
    try:
        tasks = [pool.submit(_grade, *each, limits, stop, show) for each in waiting]
        for count, task in enumerate(tasks, start=1):
            record = task.result()
            book.keep(record, facts)
            _print(f"{line_of(record)}\n    {count} of {len(tasks)}, {record.seconds:.0f} s")
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _grade(
    submission: Submission,
    key: str,
    limits: Limits,
    stop: threading.Event,
    show: Callable[[str], None],
) -> Record:
    def show_where(words: str) -> None:
        show(f"{submission.learner}, {submission.page.stem}: {words}")

    names = [e.name for e in exercises_of(nbformat.read(submission.page, as_version=4))]
    record = grade_one(submission, names, limits, stop, show_where)
    record.key = key
    return record


def _key(submission: Submission) -> str:
    try:
        parts = [submission.path.read_bytes(), submission.page.read_bytes()]
    except (OSError, AttributeError):  # no page, or it cannot be read: nothing is known of it
        return ""
    return digest(*parts, _course().encode())


@cache
def _course() -> str:
    return digest(*(path.read_bytes() for path in sorted((ROOT / "mpcourse").rglob("*.py"))))


def _print(words: str) -> None:
    """Print over the line of progress."""
    width = shutil.get_terminal_size().columns - 1
    clear = "\r" + " " * width + "\r" if sys.stdout.isatty() else ""
    print(clear + words, flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str], *, here: str = ".") -> int:
    """Run `python -m mpcourse grade FOLDER`, typed in the folder `here`; return its status.

    0: all has been graded, however well, 2: there was nothing to grade, 130: interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m mpcourse grade", parents=[grade_arguments()], allow_abbrev=False
    )
    options = parser.parse_args(argv)
    folder = (Path(here) / options.folder).resolve()
    out = Path(here) / (options.out or folder.with_name(f"{folder.name}-results"))
    sys.stdout.reconfigure(errors="replace")  # a terminal may not know all names and signs
    try:
        check_limits(options)
        submissions = find_submissions(folder, find_pages([]))
        book = Gradebook(out)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    previous = signal.signal(signal.SIGTERM, _interrupt)
    limits = Limits(options.time_limit_s, options.memory_gb)
    print(f"{counted(len(submissions), 'notebook')}; results go to {out}", flush=True)
    try:
        settings = {"jobs": options.jobs, "again": options.again, "show": show_progress}
        grade(submissions, book, limits, **settings)
    except KeyboardInterrupt:
        _print("What was graded is kept; the same command goes on from there.")
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    _print(in_words(book.records))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], here=sys.argv[1]))
