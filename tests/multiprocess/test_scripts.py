"""Programs of a page: written, run in order of rank, explained when they fail, always ended."""

import subprocess

import pytest
from processes import all_gone, nothing_left

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
    scripts = Scripts()
    scripts.write("speak.py", SPEAK)
    scripts.run(f"{TWO} speak.py")
    assert capsys.readouterr().out.split("\n") == 3 * ["rank 0 of 2"] + 3 * ["rank 1 of 2"] + [""]


@pytest.mark.slow
def test_a_rank_that_fails_is_heard_and_the_others_are_ended(tmp_path, monkeypatch):
    scripts = Scripts()
    scripts.write("fail.py", FAIL)
    with nothing_left(tmp_path / "t", monkeypatch):
        with pytest.raises(RuntimeError, match=r"^KeyError: 'mine' \(fail\.py, line 4\)$"):
            scripts.run(f"{TWO} fail.py")


@pytest.mark.slow
def test_a_rank_that_ends_without_an_exception_is_named():
    scripts = Scripts()
    scripts.write(
        "dies.py",
        "import os, sys\n"
        "if os.environ['RANK'] == '1':\n"
        "    print('terminate called', file=sys.stderr)\n"
        "    os.kill(os.getpid(), 9)\n",
    )
    with pytest.raises(RuntimeError, match=r"^rank 1 ended with exit code -9: terminate called"):
        scripts.run("torchrun --standalone --nproc-per-node 2 dies.py")


@pytest.mark.slow
def test_ranks_end_well_though_threads_of_gloo_are_still_busy():
    scripts = Scripts()
    scripts.write("held.py", HELD)
    for _ in range(4):  # without the pause at the end, every other run fails
        scripts.run(f"{TWO} held.py")


def test_another_sitecustomize_is_read_too(tmp_path, monkeypatch, capsys):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.of_the_host = True")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    scripts = Scripts()
    scripts.write("ask.py", "import sys; print(sys.of_the_host)")
    scripts.run("python ask.py")
    assert capsys.readouterr().out == "True\n"


def test_a_program_that_waits_for_ever_is_ended_with_all_its_ranks(tmp_path, monkeypatch, capsys):
    scripts = Scripts()
    scripts.write("wait.py", "import time\nprint('here')\ntime.sleep(600)")
    with nothing_left(tmp_path / "t", monkeypatch) as mark:
        with pytest.raises(TimeoutError, match=r"not done after 12 s; all its processes"):
            scripts.run(f"{TWO} wait.py", time_limit_s=12)
        assert all_gone(mark, limit_s=5)
    assert capsys.readouterr().out == "here\nhere\n"


@pytest.mark.slow
@pytest.mark.parametrize(("words", "shared"), [("", "True"), ("--max-restarts 1 ", "False")])
def test_ranks_meet_where_torchrun_listens_already_but_not_after_a_restart(words, shared, capsys):
    scripts = Scripts()
    scripts.write("store.py", "import os\nprint(os.environ['TORCHELASTIC_USE_AGENT_STORE'])")
    scripts.run(f"torchrun --standalone {words}store.py")
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


def test_an_interrupt_ends_the_program(tmp_path, monkeypatch):
    scripts = Scripts()
    scripts.write("wait.py", "import time\ntime.sleep(600)")
    with nothing_left(tmp_path / "t", monkeypatch) as mark:
        monkeypatch.setattr("subprocess.Popen.wait", _interrupted())
        with pytest.raises(KeyboardInterrupt):
            scripts.run("python wait.py")
        assert all_gone(mark, limit_s=5)


def _interrupted():
    real = subprocess.Popen.wait

    def wait(process, timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt
        return real(process)

    return wait


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
