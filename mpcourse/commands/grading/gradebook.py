"""Grade learners' copies of the pages, keep what became of each, report for each exercise.

Behind `python -m mpcourse grade`, for whoever teaches with the course. Learners' processes run some
at a time; here is judged what came out. Outputs that a copy was saved with count for nothing.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from mpcourse.commands.clean_copies import HANDED_IN, find_pages, page_key
from mpcourse.commands.grading.judge import Record, clean, judge, play
from mpcourse.commands.grading.no_solutions import write_course
from mpcourse.commands.grading.report import counted, lines_of, read_kept, write_all
from mpcourse.commands.grading.sandbox import Limits, can_close, stopping
from mpcourse.commands.setup import ROOT
from mpcourse.exercises import PAGES

LARGEST = 2**27  # bytes of a notebook
USUAL_S = 15  # for a notebook, until one has been graded
CLOSED = "in processes that see neither network nor files but their own"
OPEN = (
    "on a system that gives no namespaces: the cells could read what you can read, and write it; "
    "the judge did not run them, but look at the cells of whoever you do not trust"
)
ROOT_ONLY = (
    "You are root, and this system gives no namespaces: learners' cells could change everything. "
    "Grade as another user, or on a Linux machine that allows them."
)


def find_submissions(folder: Path) -> list[tuple[Path, Record]]:
    """The notebooks of a folder and of those in it, which no link leads out of.

    Of whom each is says the folder in which it lies, or the name before the page's. Of which page
    says its name, whatever the number, or else the checks that it calls.
    """
    names = {page_key(page.name): page.stem for page in find_pages([])}
    any_name = "|".join(sorted(names, key=len, reverse=True))
    named = re.compile(rf"(.*?)(?<!\d)\d\d_({any_name})(?![A-Za-z0-9])", re.DOTALL)
    found = []
    for file in sorted(folder.rglob("*.ipynb")):
        path = file.relative_to(folder)
        if any(part.startswith(".") for part in path.parts):
            continue
        match = named.match(path.stem)
        before = match[1].strip(" _-.") if match else path.stem
        learner = path.parts[0] if len(path.parts) > 1 else before or folder.name
        whose = (clean(each.replace("\n", "\r")) for each in (learner, str(path)))  # a line each
        found.append((file, record := Record(*whose)))
        is_plain = file.is_file() and os.access(file, os.R_OK) and not file.is_symlink()
        if not is_plain or file.stat().st_size > LARGEST:
            record.notes = ["a link, no file to be read, or more than 128 MB: it was not read"]
        elif match:
            record.page = names[match[2]]
        elif key := page_asked(file.read_text("utf-8", "replace")):
            record.page, record.notes = names[key], ["renamed: the page is known by its checks"]
        else:
            record.notes = [f"of no page of the course: {HANDED_IN} is looked for"]
    if not found:
        raise ValueError(f"{folder} holds no notebooks: {HANDED_IN} is what is looked for")
    return found


def page_asked(text: str) -> str:
    """The page most of whose checks a notebook calls; empty where it is less than half of them."""
    called = {k: sum(f"{check}(" in text for check in own) / len(own) for k, own in PAGES.items()}
    return max(called, key=called.get) if max(called.values()) >= 0.5 else ""


def grade(folder: Path, out: Path, limits: Limits, jobs: int) -> None:
    """Grade the notebooks of a folder; all results are written anew after each of them."""
    submissions = find_submissions(folder)
    if not can_close() and hasattr(os, "geteuid") and os.geteuid() == 0:
        raise ValueError(ROOT_ONLY)
    out.mkdir(parents=True, exist_ok=True)
    facts = (
        f"As of {time.strftime('%Y-%m-%d %H:%M')}, at most {limits.time_s:g} s and "
        f"{limits.memory_gib:g} GB for a page, {CLOSED if can_close() else OPEN}."
    )
    print(f"{len(submissions)} notebooks; results go to {out}\n{facts}", flush=True)
    earlier, records, waiting = read_kept(out), [], []
    course = [path.read_bytes() for path in sorted((ROOT / "mpcourse").rglob("*.py"))]
    course.append(str(can_close()).encode())
    for path, record in submissions:
        if record.page:
            parts = [record.file.encode(), path.read_bytes(), page_of(record).read_bytes()]
            record.key = hashlib.sha256(b"\0".join(parts + course)).hexdigest()
        if record.page and record.key not in earlier:
            waiting.append((path, record))
        else:  # what was graded before is as it was
            records.append(earlier.get(record.key, record))
    print("".join(map(lines_of, records)), end="")
    write_all(out, records, facts)
    start, usual_s = time.monotonic(), USUAL_S / jobs
    with contextlib.closing(_judged(waiting, limits, jobs)) as judged:
        for left in range(len(waiting), 0, -1):
            minutes = f"about {left * usual_s / 60:.1f} min left"
            print(f"{left} of {len(waiting)} to grade; {minutes}", flush=True)
            records.append(next(judged))
            usual_s = (time.monotonic() - start) / (len(waiting) - left + 1)
            write_all(out, records, facts)
            print(lines_of(records[-1]), end="")
    print(f"{counted(records)} exercises are correct.")


def page_of(record: Record) -> Path:
    """The page of the course that a notebook is a copy of."""
    return ROOT / f"notebooks/{record.page}.ipynb"


def _judged(waiting: Sequence[tuple[Path, Record]], limits: Limits, jobs: int) -> Iterator[Record]:
    """The records of notebooks as they are judged; no process stays."""
    with tempfile.TemporaryDirectory(prefix="courses-", ignore_cleanup_errors=True) as room:
        pool, tasks = ThreadPoolExecutor(jobs), {}
        stopping.clear()
        try:
            for path, record in waiting:
                page, course = page_of(record), Path(room, record.page)
                if not course.exists():
                    write_course(course, page)
                tasks[pool.submit(play, path, page, course, limits)] = record
            for task in as_completed(tasks):
                record = tasks.pop(task)  # its answers may be large
                judge(record, page_of(record), *task.result())
                yield record
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)


def main(asked: dict) -> int:
    """Run `python -m mpcourse grade` as `asked`; return its status.

    0: all is graded, however well, 2: bad input, or not all could be graded, 130: interrupted.
    """
    folder = Path(asked["folder"])
    out = Path(asked["out"] or folder.with_name(f"{folder.name}-results"))
    sys.stdout.reconfigure(errors="replace")  # a terminal may not know all names and signs
    os.umask(0o077)  # marks are nobody else's business
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the judge, as sandboxes, computes on the CPU
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        grade(folder, out, Limits(asked["time_limit_s"], asked["memory_gb"]), asked["jobs"])
        return 0
    except KeyboardInterrupt:
        print("What was graded is kept; the same command goes on from there.", flush=True)
        return 130
    except (ValueError, OSError) as error:  # a table that another program holds open, say
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
