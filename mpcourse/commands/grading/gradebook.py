"""Grade learners' copies of the pages, keep what became of each, report for each exercise.

Behind `python -m mpcourse grade`, for whoever teaches with the course. Processes of `judge` do the
work; outputs that a copy was saved with count for nothing.
"""

import argparse
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import psutil

from mpcourse.commands.arguments import grade_arguments
from mpcourse.commands.grading import CUT
from mpcourse.commands.grading.no_solutions import write_course
from mpcourse.commands.grading.questions import exercises_of, read_copy
from mpcourse.commands.grading.report import counted, in_words, line_of, write_all
from mpcourse.commands.grading.sandbox import GIB, START_LIMIT_S, Limits, can_close
from mpcourse.commands.grading.submissions import Submission, clean, digest, find_submissions
from mpcourse.commands.pages import find_pages
from mpcourse.commands.setup import ROOT
from mpcourse.commands.shell import show_progress, write_whole

RESULTS, KEY = "results.json", ".grading.key"
MOST_TIME_S, MOST_JOBS = 86400.0, 64
USUAL_S, USUAL_GIB = 15.0, 2.0  # of a notebook, before one has been seen
NO_PAGE = "of no page of the course, neither by its name nor by what is in it"
CLOSED = "in a process that sees neither network nor files but its own"
OPEN = (
    "on a system that gives no namespaces: the cells could read what you can read, and write it; "
    "the judge did not run them, but look at the cells of whoever you do not trust"
)
ROOT_ONLY = (
    "You are root, and this system gives no namespaces: learners' cells could change everything. "
    "Grade as another user, or on a Linux machine that allows them."
)


@dataclass
class Record:
    """What became of one notebook."""

    learner: str
    file: str  # its place in the folder
    page: str  # the page's file; empty when it is of no page of the course
    judged: dict[str, tuple[str, str]] = field(default_factory=dict)  # exercise -> state, words
    answers: dict[str, str] = field(default_factory=dict)  # exercise -> digest of what was written
    notes: list[str] = field(default_factory=list)  # what an instructor should know besides
    stopped: str = ""  # why not all was judged
    seconds: float = 0.0
    key: str = ""  # digest of copy and course: with the same one, nothing would come out otherwise

    def holds_for(self, key: str) -> bool:
        """Whether grading again would say the same: what limits have cut short may not."""
        return self.key == key and not self.stopped and not any(CUT in note for note in self.notes)


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


def usual_jobs() -> int:
    """Half of the cores, where memory allows."""
    memory = psutil.virtual_memory().available / GIB
    return int(max(1, min((os.cpu_count() or 1) // 2, memory // USUAL_GIB, MOST_JOBS)))


class Gradebook:
    """The records, kept in a folder: written anew after each page that is finished.

    Those of earlier calls are believed only with their seal, whose key lies in the clone.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.earlier: dict[str, Record] = {}
        self.is_changed = False
        self.problem = ""  # why the last writing has failed
        self._records: dict[str, Record] = {}
        (folder / f"{RESULTS}.probe").touch()
        (folder / f"{RESULTS}.probe").unlink()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            found = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
            self.is_changed = not hmac.compare_digest(found["seal"], seal(found["records"]))
            if not self.is_changed:
                self.earlier = {each["file"]: Record(**each) for each in found["records"]}

    def keep(self, record: Record, facts: str) -> None:
        """Take a record in and write all files; `facts` stands at the top of the page to read."""
        self._records[record.file] = record
        kept = [asdict(each) for each in {**self.earlier, **self._records}.values()]
        sealed = {"seal": seal(kept), "records": kept}
        self.problem = ""
        try:
            write_whole(self.folder / RESULTS, json.dumps(sealed, indent=1, ensure_ascii=False))
            write_all(self.folder, self.records, facts)
        except OSError as error:  # open in another program, say: the next page may find it closed
            self.problem = f"Not all results are written: {error}. Mend it and run this again."

    @property
    def records(self) -> list[Record]:
        """Those of this call, in the order of learners and files."""
        return sorted(self._records.values(), key=lambda r: (r.learner.casefold(), r.file))


def seal(records: list[dict]) -> str:
    """What only this clone can say of the records."""
    words = json.dumps(records, sort_keys=True).encode()
    return hmac.new(_key(), words, hashlib.sha256).hexdigest()


@cache
def _key() -> bytes:
    """A secret of this clone; where it cannot be kept, one of this call."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            number = os.open(ROOT / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "wb") as file:
                file.write(secrets.token_bytes(32))
        return (ROOT / KEY).read_bytes()
    return secrets.token_bytes(32)


class Judge:
    """A process of `judge`, made when it is first needed, and again when it had to be ended."""

    def __init__(self):
        self._process: subprocess.Popen | None = None

    def grade(
        self, submission: Submission, course: Path, limits: Limits, at: Callable[[str], None]
    ) -> Record:
        """Let one notebook be judged."""
        record = Record(submission.learner, submission.file, submission.page.name)
        start = time.monotonic()
        paths = {"copy": submission.path.resolve(), "page": submission.page, "course": course}
        task = {name: str(path) for name, path in paths.items()}
        task |= {"limits": limits, "closed": can_close()}
        process = self._started(course.parent)
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
        watchdog = threading.Timer(limits.time_s * 1.5 + 2 * START_LIMIT_S, process.kill)
        watchdog.start()
        record.stopped = "its judge took too long, or has ended"
        with contextlib.suppress(ValueError):  # it was ended in the middle of a line
            for line in process.stdout:
                found = json.loads(line)
                if "end" in found:
                    record.stopped = clean(found["end"])
                    break
                if "note" in found:
                    record.notes.append(clean(found["note"]))
                elif "exercise" in found:
                    name = found["exercise"]
                    record.judged[name] = found["state"], clean(found["message"])
                    record.answers[name] = found["answer"]
                at(found.get("at", ""))
        watchdog.cancel()
        for question in exercises_of(read_copy(submission.page)):
            record.judged.setdefault(question.name, ("not judged", record.stopped))
        record.seconds = round(time.monotonic() - start, 1)
        return record

    def _started(self, room: Path) -> subprocess.Popen:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mpcourse.commands.grading.judge"],
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE},
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(room)},  # as a sandbox
                cwd=ROOT,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for whoever waits, which then ends this
                text=True,
            )
        return self._process

    def end(self) -> None:
        """End it, and with it what it has started."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # it notices, and ends a sandbox without namespaces
            self._process.wait()


def grade(
    submissions: Sequence[Submission],
    book: Gradebook,
    limits: Limits,
    *,
    jobs: int = 1,
    again: bool = False,
) -> None:
    """Grade notebooks; what was graded before and is as it was is taken from the book."""
    facts = (
        f"as of {time.strftime('%Y-%m-%d %H:%M')}, by the course's edition {course_edition()[:12]},"
        f" at most {limits.time_s:g} s and {limits.memory_gib:g} GB for a page, "
        + (CLOSED if can_close() else OPEN)
    )
    waiting = []
    for submission in submissions:
        key, before = key_of(submission), book.earlier.get(submission.file)
        if submission.page is None:
            words = submission.problem or NO_PAGE
            record = Record(submission.learner, submission.file, "", notes=[words])
        elif key and before and before.holds_for(key) and not again:
            record = before
        else:
            waiting.append((submission, key))
            continue
        book.keep(record, facts)
        say(line_of(record) + ("" if not record.page else "\n    as graded before"))
    seen = [record.seconds for record in book.earlier.values() if record.seconds] or [USUAL_S]
    if waiting:
        say(f"{counted(len(waiting), 'notebook')} to grade, {how_long(len(waiting), seen, jobs)}.")
    judges = [Judge() for _ in range(jobs)]
    free, pool = list(judges), ThreadPoolExecutor(jobs)
    with tempfile.TemporaryDirectory(prefix="courses-", ignore_cleanup_errors=True) as folder:

        @cache
        def course_for(page: Path) -> Path:
            write_course(Path(folder) / page.stem, page)
            return Path(folder) / page.stem

        def one(submission: Submission, key: str) -> Record:
            judge, where = free.pop(), f"{submission.learner}, {submission.page.stem}"
            with writing:
                course = course_for(submission.page)
            record = judge.grade(submission, course, limits, lambda at: show(f"{where}: {at}"))
            record.key = key
            free.append(judge)
            return record

        writing = threading.Lock()
        show = show_progress
        try:
            tasks = [pool.submit(one, *each) for each in waiting]
            seen = []
            for count, task in enumerate(as_completed(tasks), start=1):
                record = task.result()
                seen.append(record.seconds)
                book.keep(record, facts)
                left = how_long(len(tasks) - count, seen, jobs) if count < len(tasks) else "the end"
                say(f"{line_of(record)}\n    {count} of {len(tasks)}; {left}")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for judge in judges:
                judge.end()
            pool.shutdown()


def how_long(notebooks: int, seen: Sequence[float], jobs: int) -> str:
    """How long so many notebooks take, by the seconds that others took."""
    each = sum(seen) / len(seen)
    minutes = notebooks * each / min(jobs, max(notebooks, 1)) / 60
    return f"about {minutes:.0f} min left" if minutes >= 1.5 else f"about {60 * minutes:.0f} s left"


def key_of(submission: Submission) -> str:
    """Digest of all that a result hangs on; empty where that cannot be read."""
    try:
        parts = [submission.path.read_bytes(), submission.page.read_bytes()]
    except (OSError, AttributeError):
        return ""
    return digest(*parts, course_edition().encode(), str(can_close()).encode())


@cache
def course_edition() -> str:
    """A digest of the course's programs."""
    return digest(*(path.read_bytes() for path in sorted((ROOT / "mpcourse").rglob("*.py"))))


def say(words: str) -> None:
    """Print over the line of progress."""
    width = shutil.get_terminal_size().columns - 1
    clear = "\r" + " " * width + "\r" if sys.stdout.isatty() else ""
    print(clear + words, flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str], *, here: str = ".") -> int:
    """Run `python -m mpcourse grade FOLDER`, typed in the folder `here`; return its status.

    0: all is graded, however well, 1: not all was written, 2: nothing to grade, 130: interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m mpcourse grade", parents=[grade_arguments()], allow_abbrev=False
    )
    options = parser.parse_args(argv)
    options.jobs = usual_jobs() if options.jobs is None else options.jobs
    folder = (Path(here) / options.folder).resolve()
    out = Path(here) / (options.out or folder.with_name(f"{folder.name}-results"))
    sys.stdout.reconfigure(errors="replace")  # a terminal may not know all names and signs
    os.umask(0o077)  # marks are nobody else's business
    try:
        check_limits(options)
        submissions = find_submissions(folder, find_pages([]))
        if not can_close() and hasattr(os, "geteuid") and os.geteuid() == 0:
            raise ValueError(ROOT_ONLY)
        book = Gradebook(out)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    previous = signal.signal(signal.SIGTERM, _interrupt)
    limits = Limits(options.time_limit_s, options.memory_gb)
    print(f"{counted(len(submissions), 'notebook')}; results go to {out}", flush=True)
    if book.is_changed:
        print(f"{RESULTS} was not written so by this clone: all is graded anew.", flush=True)
    if not can_close():
        print(f"Graded {OPEN}.", flush=True)
    try:
        grade(submissions, book, limits, jobs=options.jobs, again=options.again)
    except KeyboardInterrupt:
        say("What was graded is kept; the same command goes on from there.")
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    say(in_words(book.records))
    if book.problem:
        print(book.problem, file=sys.stderr)
    return 1 if book.problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], here=sys.argv[1]))
