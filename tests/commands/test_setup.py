"""The environment is made when absent, left alone when sound, and mended when broken."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import packaging
import pytest

from mpcourse.commands import setup
from mpcourse.commands.setup import (
    COURSE,
    LAST_LINES,
    ROOT,
    STAMP,
    TESTS,
    Environment,
    SetupError,
    call_in_one_line,
    find_environment,
    locked,
)


class Commands:
    """In the place of what calls venv and pip: makes real, bare environments, empty packages."""

    def __init__(self, bare: Path) -> None:
        self.bare = bare
        self.pip, self.venv, self.pip_env = [], [], {}
        self.pip_status = self.venv_status = self.pip_seconds = 0
        self.pip_installs = True

    def __call__(self, command, *, cwd=None, env=None) -> int:
        words = [str(word) for word in command]
        if words[2] == "venv":
            self.venv.append(words)
            if self.venv_status == 0:
                shutil.copytree(self.bare, words[-1], symlinks=True, dirs_exist_ok=True)
            return self.venv_status
        assert words[1:4] == ["-m", "pip", "install"]
        time.sleep(self.pip_seconds)
        self.pip.append([words[0], *words[4:]])
        self.pip_env = env
        if isinstance(self.pip_status, BaseException):
            raise self.pip_status
        if self.pip_installs:
            for requirement in setup.read_requirements(words[5::2], cwd):
                name, _, version = requirement.partition(">=")
                package(Path(words[0]).parents[1], name, version)
        return self.pip_status


def package(folder: Path, name: str, version: str = "1", *, installer: bool = True) -> Path:
    """Put an empty package into an environment, with what pip says about it."""
    [site] = folder.glob("Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages")
    for earlier in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(earlier)
    (site / name).mkdir(exist_ok=True)
    (site / name / "__init__.py").touch()
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if installer:
        (info / "INSTALLER").write_text("pip\n")
    return site / name


@pytest.fixture(scope="session")
def bare(tmp_path_factory) -> Path:
    """A real environment, to be copied: its pip has nothing but the rules of versions."""
    folder = tmp_path_factory.mktemp("bare") / "environment"
    options = ["--without-pip", str(folder)]
    subprocess.run([sys._base_executable, "-m", "venv", *options], check=True)
    rules = package(folder, "pip") / "_vendor" / "packaging"
    shutil.copytree(packaging.__path__[0], rules)
    return folder


@pytest.fixture
def commands(monkeypatch, bare) -> Commands:
    commands = Commands(bare)
    monkeypatch.setattr(subprocess, "call", commands)
    monkeypatch.setattr(setup, "call_in_one_line", commands)
    return commands


@pytest.fixture
def clone(tmp_path) -> Path:
    """A folder that looks like a clone of the course, with little to install."""
    root = tmp_path / "a clone"  # a space, as in many a user's folder
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "requirements.txt").write_text("tiny>=1  # all\n-e .\n")
    (root / "more.txt").write_text("more>=2\n")
    (root / "tests" / "requirements.txt").write_text("-r ../more.txt\n")
    return root


@pytest.fixture
def filled(clone, commands) -> Environment:
    """An environment after a first start, with `commands` empty again."""
    environment = find_environment(root=clone)
    environment.ensure(COURSE)
    commands.pip.clear()
    commands.venv.clear()
    return environment


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("place", ["absent", "empty", "link to an empty folder"])
def test_an_environment_is_made_and_filled_where_there_is_none(clone, commands, capsys, place):
    environment = find_environment(root=clone)
    if place == "empty":
        environment.folder.mkdir()
    elif place != "absent":
        (clone / "scratch").mkdir()
        environment.folder.symlink_to(clone / "scratch")
    environment.ensure(COURSE)
    assert environment.folder == clone / ".venv"
    assert [words[1:] for words in commands.venv] == [
        ["-m", "venv", str(environment.folder.resolve())]
    ]
    assert commands.pip == [[str(environment.python), "-r", "requirements.txt"]]
    assert "there is none yet" in capsys.readouterr().out
    environment.ensure(COURSE)
    assert capsys.readouterr().out == ""
    lack_something(environment)
    environment.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 2)
    remove_python(environment)
    if place.startswith("link"):
        with pytest.raises(SetupError, match="It was left alone"):
            environment.ensure(COURSE)
    else:
        environment.ensure(COURSE)
    made = (1, 2) if place.startswith("link") else (2, 3)
    assert (len(commands.venv), len(commands.pip)) == made


def test_tests_add_their_requirements_once_and_the_course_stays_current(filled, commands):
    filled.ensure(TESTS)
    assert [words[1:] for words in commands.pip] == [
        ["-r", "requirements.txt", "-r", "tests/requirements.txt"]
    ]
    filled.ensure(TESTS)
    filled.ensure(COURSE)
    assert len(commands.pip) == 1
    (filled.root / "more.txt").write_text("more>=2\nyet_more>=1\n")
    filled.ensure(COURSE)
    assert len(commands.pip) == 1
    commands.pip_status, commands.pip_installs = 1, False
    with pytest.raises(SetupError, match="exit status 1"):
        filled.ensure(TESTS)
    filled.ensure(COURSE)  # what it needs is there
    assert len(commands.pip) == 2


def write(name: str, text: str):
    return lambda environment: (environment.root / name).write_text(text)


def remove(pattern: str):
    def remove_from(environment: Environment) -> None:
        for path in environment.folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove_from


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (write("requirements.txt", "tiny>=2\n-e .\n"), 1),
        (write("requirements.txt", "tiny>=1\nother>=1\n"), 1),
        (write("requirements.txt", "# only a word\ntiny>=0.5\n"), 0),
        (write("pyproject.toml", '[project.urls]\nRepository = "https://github.com/ME/it"\n'), 0),
        (remove("**/tiny-1.dist-info"), 1),
        (remove("**/tiny-1.dist-info/METADATA"), 1),
        (remove("**/pip"), 0),
    ],
    ids=["newer", "added", "lower", "address", "uninstalled", "damaged", "pip"],
)
def test_pip_looks_again_only_for_what_is_missing(filled, commands, change, times):
    use_packaging_of_its_own(filled)
    change(filled)
    filled.ensure(COURSE)
    filled.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (0, times)


remove_pip = remove("**/site-packages/pip*")
be_made_by_others = remove(STAMP)


def remove_python(environment: Environment) -> None:
    for path in environment.python.parent.glob("python*"):
        path.unlink()


def break_python(environment: Environment) -> None:
    remove_python(environment)
    environment.python.write_text("#!/bin/sh\nexit 1\n")
    environment.python.chmod(0o755)


def cut_installation_off(environment: Environment) -> None:
    package(environment.folder, "torch", installer=False)


def remove_pip_and_a_package(environment: Environment) -> None:
    remove_pip(environment)
    use_packaging_of_its_own(environment)
    remove("**/tiny*")(environment)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (remove_python, "does not run"),
        (break_python, "does not run"),
        (remove_pip_and_a_package, "no pip"),
        (cut_installation_off, "cut off at torch-1"),
    ],
)
def test_a_broken_environment_is_made_anew(filled, commands, capsys, damage, reason):
    damage(filled)
    filled.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 1)
    assert reason in capsys.readouterr().out
    filled.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 1)


def test_a_clone_may_be_moved(filled, commands):
    moved = find_environment(root=filled.root.rename(filled.root.with_name("elsewhere")))
    moved.ensure(COURSE)
    lack_something(moved)
    moved.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (0, 1)


def be_too_old(environment: Environment) -> None:
    [site] = environment.folder.glob("**/site-packages")
    (site / "old.pth").write_text("import sys; sys.version_info = (3, 8, 18)\n")


def be_no_environment(environment: Environment) -> None:
    shutil.rmtree(environment.folder)
    environment.folder.mkdir()


lack_something = write("requirements.txt", "tiny>=1\nother>=3\n")


def lack_something_and_pip(environment: Environment) -> None:
    lack_something(environment)
    remove_pip(environment)
    use_packaging_of_its_own(environment)


def use_packaging_of_its_own(environment: Environment) -> None:
    """As jupyterlab brings it; uv's environments have no pip."""
    place = package(environment.folder, "packaging", packaging.__version__)
    shutil.copytree(packaging.__path__[0], place, dirs_exist_ok=True)


def be_a_link(environment: Environment) -> None:
    """To the environment of another clone."""
    environment.folder.rename(environment.root.with_name("scratch"))
    environment.folder.symlink_to(environment.root.with_name("scratch"))
    be_of_another_clone(environment)


def be_of_another_clone(environment: Environment) -> None:
    other = environment.root.with_name("another")
    other.mkdir()
    (environment.folder / STAMP).write_text(json.dumps({"clone": str(other)}))


NOT_OURS = [be_a_link, be_made_by_others, be_of_another_clone]


@pytest.mark.parametrize("become", NOT_OURS)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (remove_python, "does not run"),
        (be_no_environment, "does not run"),
        (be_too_old, "is too old"),
        (lack_something, r"it lacks other>=3.*-m pip install -r requirements.txt"),
        (lack_something_and_pip, r"it lacks other>=3.*uv pip install --python .* -r require"),
    ],
)
def test_what_the_course_did_not_make_is_named_and_left_alone(
    filled, commands, become, damage, reason
):
    damage(filled)
    become(filled)
    (filled.folder / "precious.txt").write_text("a thesis")
    before = contents(filled.folder.resolve())
    with pytest.raises(SetupError, match=f"(?s){re.escape(str(filled.folder))}.*{reason}"):
        filled.ensure(COURSE)
    assert contents(filled.folder.resolve()) == before
    assert (commands.venv, commands.pip) == ([], [])


@pytest.mark.parametrize("become", NOT_OURS)
@pytest.mark.parametrize("oddity", [remove_pip, cut_installation_off])
def test_what_the_course_did_not_make_is_used_as_it_is(filled, commands, become, oddity):
    use_packaging_of_its_own(filled)
    oddity(filled)
    become(filled)
    before = contents(filled.folder.resolve())
    filled.ensure(COURSE)
    assert contents(filled.folder.resolve()) == before
    assert (commands.venv, commands.pip) == ([], [])


@pytest.mark.parametrize("place", ["link to no folder", "file"])
def test_a_place_that_is_no_folder_is_left_alone(clone, commands, place):
    environment = find_environment(root=clone)
    if place == "file":
        environment.folder.write_text("the name of an environment elsewhere")
    else:
        environment.folder.symlink_to(clone / "scratch")
    with pytest.raises(SetupError, match="It was left alone"):
        environment.ensure(COURSE)
    assert (commands.venv, commands.pip) == ([], [])
    assert os.path.lexists(environment.folder)
    assert not (clone / "scratch").exists()


def test_what_was_half_deleted_is_still_the_course_s(filled, commands, monkeypatch):
    remove_python(filled)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            filled.ensure(COURSE)
    filled.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 1)


@pytest.mark.parametrize("status", [1, KeyboardInterrupt()])
def test_an_installation_that_fails_or_is_interrupted_is_taken_up_again(clone, commands, status):
    environment = find_environment(root=clone)
    commands.pip_status, commands.pip_installs = status, False
    with pytest.raises(SetupError if status == 1 else KeyboardInterrupt) as raised:
        environment.ensure(TESTS)
    if status == 1:
        said = str(raised.value)
        for word in ("exit status 1", "No space left", "GB are free", "PIP_INDEX_URL", "HTTPS"):
            assert word in said
    commands.pip_status, commands.pip_installs = 0, True
    environment.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 2)


@pytest.mark.parametrize("asked", ["1", "2"])
def test_pip_that_fails_keeps_nobody_out_of_what_is_there(filled, commands, capsys, asked):
    (filled.root / "requirements.txt").write_text(f"tiny>={asked}\nother>=3\n")
    package(filled.folder, "tiny", "0.9")
    package(filled.folder, "other", "3")
    commands.pip_status, commands.pip_installs = 1, asked == "1"
    filled.ensure(COURSE)
    assert "exit status 1. All packages are there: going on.\n" in capsys.readouterr().out
    assert len(commands.pip) == 1


def test_where_nothing_can_be_made_it_says_what_to_do(clone, commands, monkeypatch):
    environment = find_environment(root=clone)
    commands.venv_status = 1
    with pytest.raises(SetupError, match=r"(?s)venv.*status 1.*a clone.\.venv.*GB are free"):
        environment.ensure(COURSE)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", lambda *_, **__: os.mkdir("/dev/null/environment"))
        with pytest.raises(SetupError, match=r"Not a directory.*May you write there.*--here"):
            environment.ensure(COURSE)
    (clone / "requirements.txt").unlink()
    with pytest.raises(SetupError, match=r"requirements.txt is missing: start in a clone"):
        environment.ensure(COURSE)
    assert commands.pip == []


def test_two_starts_at_the_same_time_install_once(clone, commands):
    commands.pip_seconds = 0.5
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(find_environment(root=clone).ensure, COURSE) for _ in range(2)]
    assert [start.result() for start in starts] == [None, None]
    assert (len(commands.venv), len(commands.pip)) == (1, 1)


def test_commands_run_as_if_the_environment_were_active(filled, monkeypatch):
    seen = {}
    monkeypatch.setenv("PIP_INDEX_URL", "file:///my/index")  # kept
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "execve", lambda *given: seen.update(words=given[1], env=given[2]))
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: 3)
    assert filled.run("something", "--loud") == 3
    command = [filled.python, "-m", "mpcourse.commands", "something", "--loud"]
    assert seen["words"] == command
    assert Path.cwd() == filled.root
    assert seen["env"]["PATH"].split(os.pathsep)[0] == str(filled.python.parent)
    assert seen["env"]["VIRTUAL_ENV"] == str(filled.folder)
    assert (seen["env"]["PIP_INDEX_URL"], seen["env"]["PIP_USER"]) == ("file:///my/index", "0")


@pytest.fixture
def foreign(filled) -> Environment:
    """An environment of the user's own, in which mpcourse is a guest."""
    be_made_by_others(filled)
    lack_something(filled)
    here = find_environment(here=True, root=filled.root)
    assert (here.python, here.folder) == (Path(sys.executable), Path(sys.prefix))
    return replace(here, folder=filled.folder, python=filled.python)


def test_here_installs_what_is_missing_once(foreign, commands):
    foreign.ensure(COURSE)
    foreign.ensure(COURSE)
    assert commands.pip == [[str(foreign.python), "-r", "requirements.txt"]]
    assert commands.venv == []
    for name in ("VIRTUAL_ENV", "PIP_USER"):
        assert commands.pip_env.get(name) == os.environ.get(name)


@pytest.mark.parametrize(
    ("become", "reason"),
    [
        (remove_python, "does not run"),
        (lack_something_and_pip, "it lacks other>=3.*uv pip install"),
    ],
)
def test_here_never_makes_anything_anew(foreign, commands, become, reason):
    cut_installation_off(foreign)
    become(foreign)
    with pytest.raises(SetupError, match=f"(?s){reason}.*leave out --here"):
        foreign.ensure(COURSE)
    assert (commands.venv, commands.pip) == ([], [])


def test_a_real_installation_from_a_real_wheel(clone):
    wheel = clone / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "ANSWER = 42\n")
        info = "tiny-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    lines = ["--no-index", f"--find-links {clone.as_uri()}", "tiny>=1  # the test"]
    (clone / "requirements.txt").write_text("\n".join(lines))
    (clone / "mpcourse").symlink_to(ROOT / "mpcourse")
    environment = find_environment(root=clone)
    environment.ensure(COURSE)
    answer = subprocess.run([environment.python, "-c", "import tiny; exit(tiny.ANSWER)"])
    assert answer.returncode == 42
    # What pip really leaves behind when it is done counts as whole, not as cut off.
    facts = environment.probe(COURSE)
    assert (environment.problem(facts), facts["missing"]) == ("", [])


def test_of_what_pip_says_a_terminal_shows_one_line_and_the_end_if_it_fails(tmp_path, capsys):
    code = "print('one', 'x' * 200, flush=True); print('two'); raise SystemExit({})"
    assert call_in_one_line([sys.executable, "-c", code.format(0)], cwd=tmp_path) == 0
    assert capsys.readouterr().out.split() == []
    failing = f"print('early\\n' * {LAST_LINES}); " + code.format(3)
    assert call_in_one_line([sys.executable, "-c", failing], cwd=tmp_path) == 3
    said = capsys.readouterr().out.split()
    assert (len(said), said[-3:]) == (LAST_LINES, ["one", "x" * 200, "two"])
    pexpect = pytest.importorskip("pexpect", reason="pexpect makes the terminal")
    caller = "from pathlib import Path; from mpcourse.commands.setup import call_in_one_line; "
    caller += f"call_in_one_line({[sys.executable, '-c', code.format(0)]!r}, cwd=Path.cwd())"
    command, env = shlex.join([sys.executable, "-c", caller]), {**os.environ, "COLUMNS": "40"}
    said = pexpect.run(command, encoding="utf-8", env=env, cwd=ROOT)
    assert [line.strip() for line in said.split("\r")] == [f"one {'x' * 35}", "two", "", ""]


HOLD = """
import sys, time
from pathlib import Path
from mpcourse.commands.setup import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lock_is_waited_for_and_a_killed_holder_does_not_keep_it(tmp_path, capsys):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        start, release = time.monotonic(), threading.Timer(0.3, holder.kill)
        release.start()
        with locked(path):
            assert 0.3 <= time.monotonic() - start < 30
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
