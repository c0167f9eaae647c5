"""Programs of a page: written, run in order of rank, explained when they fail, always ended."""

import subprocess
import time
from types import SimpleNamespace

import pytest
from processes import all_gone, nothing_left

from mpcourse.multiprocess import scripts as module
from mpcourse.multiprocess.scripts import Scripts

TWO = "torchrun --standalone --nproc-per-node 2"
SPEAK = """
import os, time
rank = int(os.environ["RANK"])
for _ in range(3):
    time.sleep(0.1 * (1 - rank))  # rank 1 is the first to speak
    print(f"rank {rank} of {os.environ['WORLD_SIZE']}")
"""
FAIL = """
import os, time
def f():
    raise KeyError("mine")
if os.environ["RANK"] == "1":
    f()
time.sleep(60)
"""
DIES = """
import os, sys
if os.environ["RANK"] == "1":
    print("terminate called", file=sys.stderr)
    os.kill(os.getpid(), 9)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here")
time.sleep(600)
"""
LEAVES = """
import subprocess, sys
wait = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", wait], start_new_session=True)
print("done")
"""
FAIL_AGAIN = """
import os, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {rank}, attempt {attempt}")
time.sleep(2 * (rank == "0"))  # rank 1 is the first to fail
raise ValueError(f"rank {rank}, attempt {attempt}")
"""
RANKS = [
    pytest.param("python", 1, 2, id="python"),
    pytest.param(TWO, 2, 12, id="ranks", marks=pytest.mark.slow),
]


def run(text, words="python", **options):
    scripts = Scripts()
    scripts.write("program.py", text)
    scripts.run(f"{words} program.py", **options)


def test_what_gloo_says_on_its_own_does_not_stand_among_the_lines_of_a_program(capsys):
    said = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is"
    run(f"print('[Gloo] is a library')\nprint('{said} : 1')\nprint('mine: {said} : 1')")
    assert capsys.readouterr().out == f"[Gloo] is a library\nmine: {said} : 1\n"


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """On all processes that a test starts; they end soon, and leave nothing."""
    monkeypatch.setattr(module, "GRACE_S", 1.0)
    with nothing_left(tmp_path / "t", monkeypatch) as mark:
        yield mark


HELD = """
import sys, torch
from torch import distributed
distributed.init_process_group("gloo")
held = distributed.group.WORLD  # destroy_process_group does not wait for its threads
sys.setswitchinterval(60)  # they get Python's lock only if it is given away
def reduce():
    for _ in range(20):
        distributed.all_reduce(torch.ones(3))
reduce()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_speak_one_after_the_other(capsys):
    run(SPEAK, TWO)
    assert capsys.readouterr().out.split("\n") == 3 * ["rank 0 of 2"] + 3 * ["rank 1 of 2"] + [""]


@pytest.mark.slow
def test_a_rank_that_fails_is_heard_and_the_others_are_ended(mark):
    with pytest.raises(RuntimeError, match=r"^KeyError: 'mine' \(program\.py, line 4\)$"):
        run(FAIL, TWO)


@pytest.mark.slow
def test_a_rank_that_ends_without_an_exception_is_named():
    with pytest.raises(RuntimeError, match=r"^rank 1 ended with exit code -9: terminate called"):
        run(DIES, TWO)


@pytest.mark.slow
def test_ranks_end_well_though_threads_of_gloo_are_still_busy():
    # without the pause at the end, every other rank is aborted
    run(HELD, "torchrun --standalone --nproc-per-node 4")


def test_another_sitecustomize_is_read_too(tmp_path, monkeypatch, capsys):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.of_the_host = True")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run("import sys; print(sys.of_the_host)")
    assert capsys.readouterr().out == "True\n"


@pytest.mark.parametrize(("words", "ranks", "limit_s"), RANKS)
def test_a_program_that_will_not_end_keeps_its_time_limit(words, ranks, limit_s, mark, capsys):
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=f"not done after {limit_s} s; all its processes"):
        run(STUBBORN, words, time_limit_s=limit_s)
    assert time.monotonic() - start < limit_s + 10
    assert all_gone(mark, limit_s=1)
    assert capsys.readouterr().out == "here\n" * ranks


@pytest.mark.parametrize(("words", "ranks", "limit_s"), RANKS)
def test_a_process_that_a_program_leaves_behind_is_ended_too(words, ranks, limit_s, mark, capsys):
    run(LEAVES, words)
    assert all_gone(mark, limit_s=1)
    assert capsys.readouterr().out == "done\n" * ranks


def test_who_interrupts_the_end_waits_no_longer(mark, monkeypatch):
    interrupts = iter([KeyboardInterrupt])

    def sleep(seconds):
        time.sleep(seconds)
        for interrupt in interrupts:
            raise interrupt

    monkeypatch.setattr(module, "GRACE_S", 300.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(STUBBORN, time_limit_s=2)
    assert time.monotonic() - start < 60
    assert all_gone(mark, limit_s=5)


def test_many_lines_take_no_longer_each(capsys):
    run("for line in range(300_000):\n    print(line)", time_limit_s=60)
    assert capsys.readouterr().out.count("\n") == 300_000


@pytest.mark.slow
def test_attempts_speak_in_order_and_the_last_one_says_why_it_failed(capsys):
    with pytest.raises(RuntimeError, match=r"^ValueError: rank 1, attempt 1 \(program"):
        run(FAIL_AGAIN, f"{TWO} --max-restarts 1")
    attempts = [f"rank {rank}, attempt {attempt}" for rank in range(2) for attempt in range(2)]
    assert capsys.readouterr().out.splitlines() == attempts


@pytest.mark.slow
@pytest.mark.parametrize(("words", "shared"), [("", "True"), ("--max-restarts 1", "False")])
def test_ranks_meet_where_torchrun_listens_already_but_not_after_a_restart(words, shared, capsys):
    text = "import os; print(os.environ['TORCHELASTIC_USE_AGENT_STORE'])"
    run(text, f"torchrun --standalone {words}")
    assert capsys.readouterr().out == f"{shared}\n"


def test_a_plain_python_line_runs_and_fails_in_the_same_way(capsys):
    scripts = Scripts()
    scripts.write("plain.py", "import mpcourse, sys\nprint(sys.argv[1:])")
    scripts.run("python plain.py 'one two' 3")
    assert capsys.readouterr().out == "['one two', '3']\n"
    scripts.write("plain.py", "\n\n1 / 0")
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError: .* \(plain\.py, line 3\)$"):
        scripts.run("python plain.py")
    with pytest.raises(RuntimeError, match="can't open file"):
        scripts.run("python gone.py")


def test_an_interrupt_ends_the_program(mark, monkeypatch):
    real = subprocess.Popen.wait

    def wait(process, timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt
        return real(process)

    monkeypatch.setattr("subprocess.Popen.wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run("import time\ntime.sleep(600)")
    assert all_gone(mark, limit_s=5)


def test_lines_and_names_that_cannot_be_are_refused():
    scripts = Scripts()
    with pytest.raises(ValueError, match=r"begins with torchrun or python; got 'rm -r'"):
        scripts.run("rm -r")
    for name in ("", "a/b.py", ".."):
        with pytest.raises(ValueError, match="the name of a file, without a folder"):
            scripts.write(name, "")
    folder = scripts.folder
    del scripts
    assert not folder.exists()
