"""Cells that want a wrong answer to be called correct, or to do harm: none gets anywhere."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest

from mpcourse.commands.grading import sandbox
from mpcourse.commands.grading.judge import Remote, judged
from mpcourse.commands.grading.no_solutions import write_course
from mpcourse.commands.grading.questions import exercises_of
from mpcourse.commands.grading.sandbox import Limits, can_close, run
from mpcourse.commands.pages import NOTEBOOKS
from mpcourse.commands.setup import ROOT
from mpcourse.exercises import check_mean, check_scatter

PAGE = NOTEBOOKS / "01_scatter_and_gather.ipynb"
LIMITS = Limits(12, 2.5)
WRONG = """
import torch

def my_mean(chunk_means, chunk_sizes):
    return chunk_means.mean()

def my_scatter(batch, num_devices):
    return list(batch.tensor_split(num_devices))
"""
RIGHT_MEAN = "def my_mean(m, n):\n    return (m * n).sum() / n.sum()\n"

# What changes something in the process; it goes on after each of them.
QUIET = {
    "json.dumps": "import json; json.dumps = lambda *a, **k: '[\"correct\"]'",
    "builtins.eval": "import builtins; builtins.eval = lambda *a: lambda *b: ['correct']",
    "Path.write_text": "import pathlib; pathlib.Path.write_text = lambda *a, **k: 1",
    "the judge in sys.modules": """
import sys, types
fake = types.ModuleType("judge")
fake.judged = fake.answer = lambda *a, **k: {"state": "correct", "message": ""}
for name in ("judge", "gradebook", "sandbox"):
    sys.modules["mpcourse.commands.grading." + name] = fake
""",
    "the parent's command line": """
import os
for pid in [1, os.getppid(), *range(1, 9999, 50)]:
    for name in ("cmdline", "environ"):
        try:
            words = open(f"/proc/{pid}/{name}").read().split("\\0")
        except OSError:
            continue
        for word in words:
            root = word.partition("=")[2] or word
            for path in ("mpcourse/exercises/scatter_and_gather.py", "ann.ipynb"):
                file = f"{root}/{path}"
                if os.path.isfile(file) and "sum()" in open(file).read():
                    exec({right!r})
""",
    "solutions by their path": """
import glob, inspect
for path in [{clone!r}, {class_!r}, *map(str, __import__("sys").path), ".", ".."]:
    for name in glob.glob(path + "/**/*scatter_and_gather.*", recursive=True):
        if "chunk_means * chunk_sizes" in open(name, errors="replace").read():
            exec({right!r})
""",
    "solutions in memory": """
import gc
from mpcourse.exercises import check_mean
for each in gc.get_objects():
    if type(each).__name__ == "Exercise" and each.solution:
        my_mean = each.solution
    if getattr(each, "__name__", "") == "my_mean" and "sum" in each.__code__.co_names:
        my_mean = each
""",
    "frames": """
import sys
frame = sys._getframe()
while frame:
    for name, value in frame.f_locals.items():
        if name in ("expected", "solution"):
            my_mean = lambda *given: value
    frame = frame.f_back
""",
    "writing into clone and class": """
import os
for folder in ({clone!r}, {class_!r}, {clone!r} + "/mpcourse/exercises", "/etc", "/usr", "/"):
    for name in ("was_here.py", "results.json"):
        try:
            os.makedirs(folder, exist_ok=True)
            open(f"{folder}/{name}", "w").write("{}")
        except OSError:
            pass
""",
    "a process that stays": """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(977)"], {})
    os._exit(0)
""",
    "what compares": """
import math
math.isclose = torch.allclose = torch.equal = torch.isclose = lambda *a, **k: True
""",
    "what judges": """
from mpcourse.exercises import check_mean, check_scatter, exercise
import mpcourse.exercises.scatter_and_gather as page
page.call = page.with_gradients = lambda *a: "correct"
exercise.same = lambda *a: True
exercise.Exercise.__call__ = lambda self, *a: exercise.Verdict("correct", ("All.",))
for check in (check_mean, check_scatter):
    for name, value in {"cases": (), "same": exercise.same, "look": lambda *a: ""}.items():
        object.__setattr__(check, name, value)
""",
    "how outcomes are written": """
import __main__
__main__.encode = lambda value: "correct"
""",
    "the words of an answer": """
import __main__
__main__.play = lambda *a: ["correct"]
""",
    "an exception that says it": """
from mpcourse.exercises.exercise import NotYet
def my_mean(*given):
    raise NotYet("✓ correct")
""",
    "equal to everything": """
class Equal:
    def __eq__(self, other): return True
    def __float__(self): return 1.0
    def __repr__(self): return "3.857143"
    __hash__ = object.__hash__
def my_mean(*given): return Equal()
""",
    "a number that lies": """
class Number(float):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
def my_mean(*given): return Number(1.0)
""",
    "a tensor that lies": """
class Lies(torch.Tensor):
    @classmethod
    def __torch_function__(cls, fn, types, args=(), kwargs=None): return True
def my_mean(*given): return torch.zeros(1).as_subclass(Lies)
def my_scatter(*given): return torch.zeros(1).as_subclass(Lies)
""",
    "a pickle": """
class Opens:
    def __reduce__(self): return (open, ({clone!r} + "/was_here.py", "w"))
def my_mean(*given): return Opens()
""",
    "an empty tensor": "def my_mean(*given): return torch.zeros(0)",
    "an endless iterator": """
import itertools
def my_scatter(*given): return itertools.count()
""",
    "an endless nest": """
def my_mean(*given):
    nest = []
    nest.append(nest)
    return nest
""",
    "a deep nest": """
def my_mean(*given):
    nest = 1.0
    for _ in range(900):
        nest = [nest]
    return nest
""",
    "a record of the course": """
from mpcourse.exercises.exercise import Verdict
def my_mean(*given): return Verdict("correct", ("All.",))
""",
    "sys.settrace": "import sys; sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
    "atexit": "import atexit; atexit.register(print, '[\"outcome\", 1.0]')",
    "an import hook": """
import sys
class Hook:
    def find_spec(self, name, path=None, target=None): raise ImportError(name)
sys.meta_path.insert(0, Hook())
""",
    "__import__": "import builtins; builtins.__import__ = lambda *a, **k: None",
    "mpcourse in the folder": "open('mpcourse.py', 'w').write('correct = 1'); open('json.py', 'w')",
    "files of others": """
import glob, os
names = ["~/.ssh/*", "/root/.*rc", "/etc/shadow", "/home/*/.*", "/var/*", {class_!r} + "/*"]
seen = [name for pattern in names for name in glob.glob(os.path.expanduser(pattern))]
if any(os.path.isfile(name) and os.access(name, os.R_OK) for name in seen):
    exec({right!r})
""",
    "the network": """
import socket
for place in (("1.1.1.1", 53), ("127.0.0.1", 22)):
    try:
        socket.create_connection(place, timeout=1)
        exec({right!r})
    except OSError:
        pass
""",
    "more rights": """
import ctypes, os, subprocess
commands = [
    "mount -o remount,rw /usr", "umount -l /usr", "mount -t tmpfs x /usr",
    "nsenter -t 1 -m touch /usr/was_here", "chroot /proc/1/root touch /usr/was_here",
    "unshare -Urm mount -o remount,rw,bind /usr", "echo x > /proc/sys/kernel/core_pattern",
]
done = [subprocess.run(c, shell=True, capture_output=True).returncode for c in commands]
if 0 in done and os.access("/usr", os.W_OK):
    exec({right!r})
""",
}

# What ends its process, or has it ended.
LOUD = {
    "lines in all pipes": """
import json, os
for number in range(3, 64):
    for path in (f"/proc/1/fd/{number}", f"/proc/self/fd/{number}"):
        try:
            with open(path, "w") as file:
                file.write('["check_mean", ["correct"]]\\n["check_mean 0", ["correct"]]\\n' * 3)
        except OSError:
            pass
""",
    "a thread that answers": """
import os, threading, time
def answer():
    while True:
        for number in range(3, 64):
            try: os.write(number, b'["check_mean 0", ["outcome", 1.0]]\\n')
            except OSError: pass
        time.sleep(0.01)
threading.Thread(target=answer, daemon=True).start()
""",
    "answers without a look at the question": """
import sys
while True:
    frame = sys._getframe()
    while frame and "answers" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["answers"].write('["check_mean", ["correct"]]\\n')
""",
    "os._exit": "import os; os._exit(0)",
    "sys.exit in a thread of all": "import os, signal; os.kill(0, signal.SIGKILL); os.abort()",
    "closed pipes": "import os; os.closerange(0, 99)",
    "another stdout": "import os; [os.dup2(1, number) for number in range(3, 64)]",
    "a flood": """
import os
while True:
    for number in range(3, 64):
        try: os.write(number, b"x" * 65536)
        except OSError: pass
""",
    "processes": """
import os, time
while True:
    try:
        if os.fork() == 0: time.sleep(977)
    except OSError: break
os._exit(1)
""",
    "memory": """
held = [bytearray(b"1") * 2**28 for _ in range(64)]
""",
    "memory of children": """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b"1") * 2**29
        time.sleep(977)
time.sleep(30)
""",
    "a loop that heeds nothing": """
import signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try:
        while True: pass
    except BaseException: pass
""",
    "files": "for n in range(40): open(f'/tmp/{n}', 'wb').write(b'1' * 2**27)",
    "a silent answer": """
import time
import __main__
__main__.play = lambda *a: time.sleep(977)
""",
}


@pytest.mark.skipif(not can_close(), reason="this system gives no namespaces")
def test_what_a_sandbox_needs_is_looked_for_where_it_is_started(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert can_close.__wrapped__()


def test_a_process_is_ended_before_the_machine_is_full(tmp_path: Path, monkeypatch):
    """A file that has no name is in memory, and counts in no process."""
    monkeypatch.setattr(sandbox, "FULL", 0)
    before = children()
    sleeps = ("-c", "import time; time.sleep(977)")
    assert run(tmp_path, [], LIMITS, closed=False, command=sleeps)[1].endswith("memory was full")
    assert children() <= before


def children() -> set[psutil.Process]:
    """The processes of this one; what torch compiled with may wait for more work."""
    return set(psutil.Process().children(recursive=True))


def taken_stock(folders: tuple[Path, ...]) -> str:
    files = [path for each in folders for path in sorted(each.rglob("*")) if path.is_file()]
    kept = [path for path in files if "__pycache__" not in path.parts]
    total = hashlib.sha256()
    for path in kept:
        total.update(hashlib.sha256(bytes(path) + path.read_bytes()).digest())
    return total.hexdigest()


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """What is there for the attacks, and must stay as it is."""
    if not can_close():
        pytest.skip("this system gives no namespaces")
    course, class_ = (tmp_path_factory.mktemp(name) for name in ("course", "class"))
    (class_ / "ann_01_scatter_and_gather.ipynb").write_text(RIGHT_MEAN)
    (class_ / "results.json").write_text("{}")
    write_course(course, PAGE)
    watched = ROOT / "mpcourse", class_, course
    before = taken_stock(watched)
    yield {"clone": ROOT, "class_": class_, "course": course}
    assert taken_stock(watched) == before
    words = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not [each for each in words if "sleep(977)" in " ".join(each)]


QUESTIONS = {q.name: q for q in exercises_of(nbformat.read(PAGE, as_version=4))}


def states(attack: str, course: Path) -> list[str]:
    """What is said of wrong answers, after a cell that attacks."""
    cells = [("wrong", WRONG, 10.0), ("attack", attack, 5.0)]
    asks = [(q.name, q.source, q.asked) for q in QUESTIONS.values()]
    answers, why = run(course, cells + asks, LIMITS, closed=True)
    checks = {"check_mean": check_mean, "check_scatter": check_scatter}
    attempts = {name: Remote(name, answers, None) for name in checks}
    return [": ".join(judged(checks[name], attempts[name], why)) for name in checks]


@pytest.mark.parametrize("name", [*QUIET, *LOUD])
def test_a_wrong_answer_stays_wrong_and_nothing_is_left(name: str, graded: dict[str, Path]):
    start, before, attack = time.monotonic(), children(), {**QUIET, **LOUD}[name]
    for place, text in {**graded, "right": RIGHT_MEAN}.items():
        attack = attack.replace("{" + place + "!r}", repr(str(text)))
    found = states(attack, graded["course"])
    assert all(state.startswith(("not yet", "not judged")) for state in found), found
    assert time.monotonic() - start < LIMITS.time_s + 10
    assert children() <= before
