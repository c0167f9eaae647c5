"""Ranks that die, raise, sleep or find no room: an error names them, and nothing is lost."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from processes import alive, all_gone, nothing_left

from mpcourse.multiprocess import RankError, launch
from mpcourse.multiprocess.launch import GRACE_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]
SMALL = {"samples": 128, "batch_size": 16, "epochs": 2, "test_samples": 50}  # 4 steps an epoch
STEPS = 8


@pytest.fixture
def mark(monkeypatch, tmp_path):
    """Marks all processes of a test; at its end none may be left, and nothing may lie about."""
    with nothing_left(tmp_path / "temporary", monkeypatch) as name:
        yield name


@pytest.fixture(scope="module")
def undisturbed():
    return launch("ddp", on_line=None, **SMALL)


def weights(outcome):
    return {result["digest"] for result in outcome.results}


FAULTS = {
    "kill:1:start": "rank 1 was killed (SIGKILL) at its start",
    "kill:1:forward:2": "rank 1 was killed (SIGKILL) in forward of step 2",
    "kill:0:all-reduce:1": "rank 0 was killed (SIGKILL) in all-reduce of step 1",
    "raise:1:backward:1": "rank 1 failed in backward of step 1",
    "sleep:1:forward:1": "rank 1 did not answer; it was last seen in forward of step 1",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_at_fault_is_named_soon_after(fault, mark):
    with pytest.raises(RankError) as caught:
        launch("ddp", fault=fault, timeout=5 if "sleep" in fault else 60, on_line=None, **SMALL)
    now = time.time()
    assert str(caught.value).startswith(FAULTS[fault])
    assert caught.value.rank == int(fault.split(":")[1])
    assert now - caught.value.last_seen < (30 if "sleep" in fault else 10)
    if "raise" in fault:
        assert "RuntimeError: a fault was planted in rank 1, backward" in str(caught.value)


def test_a_killed_run_goes_on_by_itself_and_loses_nothing(mark, tmp_path, undisturbed):
    lines = []
    again = launch(
        "ddp",
        restarts=1,
        fault="kill:1:all-reduce:5",
        checkpoints=tmp_path / "saved",
        on_line=lines.append,
        **SMALL,
    )
    assert again.restarts == 1
    assert "rank 0: goes on after step 5" in lines
    assert [r["losses"] for r in again.results] == [r["losses"] for r in undisturbed.results]
    assert weights(again) == weights(undisturbed)
    assert len(weights(again)) == 1


def test_a_full_disk_leaves_the_last_checkpoint_whole(mark, tmp_path, undisturbed):
    saved = tmp_path / "saved"
    with pytest.raises(RankError, match=r"rank 1 failed in checkpoint of step 6") as caught:
        launch("ddp", fault="full:1:checkpoint:6", checkpoints=saved, on_line=None, **SMALL)
    assert "No space left on device" in str(caught.value)
    names = sorted(path.name for path in saved.iterdir())
    assert "rank1-step000005.pt" in names
    assert "rank1-step000006.pt" not in names
    assert not [name for name in names if name.endswith(".part")]
    again = launch("ddp", checkpoints=saved, on_line=None, **SMALL)
    assert [result["resumed_at"] for result in again.results] == [5, 5]
    assert weights(again) == weights(undisturbed)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_says_so(mark, small_disk):
    (small_disk / "other").write_bytes(b"x" * 2_600_000)  # a checkpoint has about 0.65 MB
    with pytest.raises(RankError) as caught:
        launch("ddp", checkpoints=small_disk, on_line=None, **SMALL)
    assert "No space left on device" in str(caught.value)
    assert f"rank {caught.value.rank} could not save step 1" in str(caught.value)
    assert [p.name for p in small_disk.iterdir() if p.suffix == ".part"] == []


def test_the_time_limit_says_where_everybody_was(mark):
    words = r"not done after 6 s: rank 0 .*; rank 1 (at its start|before its first word)"
    with pytest.raises(TimeoutError, match=words):
        launch("hello", fault="sleep:1:start", time_limit_s=6, on_line=None)


ASLEEP = """
from mpcourse.multiprocess import launch
launch("hello", fault="sleep:1:all-reduce", on_line=lambda line: None)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_an_interrupted_or_killed_launcher(how, mark, tmp_path):
    launcher = subprocess.Popen([sys.executable, "-c", ASLEEP], stderr=subprocess.PIPE, text=True)
    temporary = tmp_path / "temporary"
    end = time.monotonic() + 120
    while len(list(temporary.glob("mpcourse-*/note-*"))) < 2:
        assert time.monotonic() < end
        assert launcher.poll() is None
        time.sleep(0.1)
    launcher.send_signal(how)
    _, words = launcher.communicate(timeout=60)
    assert all_gone(mark)
    if how is signal.SIGINT:
        assert "KeyboardInterrupt" in words


LIMIT_S = 20
LATE = f"""
from mpcourse.multiprocess import launch
launch("hello", fault="sleep:1:all-reduce", time_limit_s={LIMIT_S}, on_line=None)
"""


def test_a_rank_that_refuses_to_die_holds_nobody_up(mark, tmp_path):
    """It is stopped, so it neither reads its input nor minds a polite signal."""
    begin = time.monotonic()
    launcher = subprocess.Popen([sys.executable, "-c", LATE], stderr=subprocess.PIPE, text=True)
    try:
        note = wait_for(lambda: list((tmp_path / "temporary").glob("mpcourse-*/note-1")), launcher)
        pid = wait_for(
            lambda: re.search(r'all-reduce.*"pid": (\d+)', note[0].read_text()), launcher
        )
        os.kill(int(pid[1]), signal.SIGSTOP)
        _, words = launcher.communicate(timeout=LIMIT_S + 40)
        assert "TimeoutError: the run is not done after 20 s" in words
        assert time.monotonic() - begin < LIMIT_S + 3 * GRACE_S + 20  # 20: to import torch, twice
        assert all_gone(mark)
    finally:
        launcher.kill()
        for left in alive(mark):
            os.kill(left, signal.SIGKILL)


def wait_for(look, launcher):
    """What `look` finds, while the launcher runs."""
    while not (found := look()):
        assert launcher.poll() is None
        time.sleep(0.05)
    return found
