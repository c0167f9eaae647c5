"""`call` ends as the command does; `locked` lets one process in at a time."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mpcourse.commands.shell import call, locked, write_whole

needs_posix_signals = pytest.mark.skipif(os.name == "nt", reason="Windows has no POSIX signals")

# Runs `call` on a command that takes half a second to end well after an interrupt.
WRAPPED = """
import sys, time
from pathlib import Path
from mpcourse.commands.shell import call
command = '''
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)
    print("saved", flush=True)
'''
status = call([sys.executable, "-c", command], cwd=Path.cwd())
print("status", status, flush=True)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_gets_folder_and_environment_and_gives_its_status(tmp_path):
    code = "import os, pathlib; pathlib.Path('said').write_text(os.environ['SAY']); os._exit(5)"
    assert call(python(code), cwd=tmp_path, env={**os.environ, "SAY": "hello"}) == 5
    assert (tmp_path / "said").read_text() == "hello"
    if os.name != "nt":
        code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        assert call(python(code), cwd=tmp_path) == 128 + 9


def test_with_a_log_a_terminal_shows_one_line_and_a_file_has_all(tmp_path):
    command = python("print('one', 'x' * 200, flush=True); print('two')")
    call(command, cwd=tmp_path, log=tmp_path / "log")
    assert (tmp_path / "log").read_text().split() == ["one", "x" * 200, "two"]
    pexpect = pytest.importorskip("pexpect", reason="pexpect makes the terminal")
    code = f"from pathlib import Path; from mpcourse.commands.shell import call; call({command!r}, "
    code += f"cwd=Path.cwd(), log=Path({str(tmp_path)!r}, 'log'))"
    command, env = shlex.join([sys.executable, "-c", code]), {**os.environ, "COLUMNS": "40"}
    said = pexpect.run(command, encoding="utf-8", env=env)
    assert [line.strip() for line in said.split("\r")] == [f"one {'x' * 35}", "two", "", ""]


@needs_posix_signals
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGINT, "saved\nstatus 0\n"), (signal.SIGTERM, "status 7\n")],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_to_this_process_alone_is_passed_on_and_waited_for(number, said):
    process = subprocess.Popen(
        python(WRAPPED), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=30)[0] == said
    assert process.returncode == 0


@needs_posix_signals
def test_a_signal_while_the_command_is_being_started_reaches_it(monkeypatch):
    def started_slowly(*args, **kwargs) -> subprocess.Popen:
        os.kill(os.getpid(), signal.SIGTERM)
        return subprocess_popen(*args, **kwargs)

    subprocess_popen = subprocess.Popen
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(subprocess, "Popen", started_slowly)
    assert call(python("import time; time.sleep(60)"), cwd=Path.cwd()) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


@needs_posix_signals
def test_control_c_in_a_terminal_lets_the_command_end_in_its_own_way():
    pexpect = pytest.importorskip("pexpect", reason="pexpect makes the terminal")
    terminal = pexpect.spawn(sys.executable, ["-c", WRAPPED], encoding="utf-8", timeout=30)
    terminal.expect_exact("ready")
    terminal.sendintr()
    terminal.expect_exact("saved")
    terminal.expect_exact("status 0")
    terminal.expect(pexpect.EOF)
    assert "Traceback" not in terminal.before


@needs_posix_signals
def test_an_interrupt_that_the_command_does_not_survive_is_raised():
    code = WRAPPED.replace('print("saved", flush=True)', "raise SystemExit(1)")
    process = subprocess.Popen(
        python(code), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1].splitlines()[-1] == b"KeyboardInterrupt"


def test_a_full_disk_leaves_neither_half_a_file_nor_another_one(tmp_path, monkeypatch):
    def fail(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "page").write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "page", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def hold_elsewhere(path: Path) -> subprocess.Popen:
    """Return a process that holds the lock until it is killed."""
    code = f"""
import time
from pathlib import Path
from mpcourse.commands.shell import locked
with locked(Path({str(path)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_lock_is_waited_for_and_a_killed_holder_does_not_keep_it(tmp_path, capsys):
    path = tmp_path / "lock"
    holder = hold_elsewhere(path)
    entered = threading.Event()

    def enter() -> None:
        with locked(path):
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.3)
    holder.kill()
    holder.communicate()
    assert entered.wait(30)
    thread.join()
    said = capsys.readouterr().out
    assert said.count("Another start is at work") == 1
    assert str(path) in said


def test_a_lock_is_free_after_an_error_and_where_it_cannot_be_written(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        1 / 0  # noqa: B018
    for path in (tmp_path / "lock", tmp_path / "no such folder" / "lock"):
        with locked(path):
            pass
    assert (tmp_path / "lock").exists()
