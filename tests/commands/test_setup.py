"""The environment is made when absent, left alone when sound, and mended when broken."""

import importlib.util
import os
import platform
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from mpcourse.commands import setup
from mpcourse.commands.setup import COURSE, TESTS, Environment, SetupError, find_environment


class Commands:
    """Stands in for `setup.call`: makes real, bare environments, and records what pip is asked."""

    def __init__(self) -> None:
        self.pip = []
        self.pip_env = {}
        self.venv = []
        self.pip_status = 0
        self.venv_status = 0
        self.pip_seconds = 0.0

    def __call__(self, command, *, cwd, env=None) -> int:
        words = [str(word) for word in command]
        if words[2] == "venv":
            self.venv.append(words)
            if self.venv_status == 0:
                make_bare(Path(words[-1]))
            return self.venv_status
        assert words[1:4] == ["-m", "pip", "install"]
        time.sleep(self.pip_seconds)
        self.pip.append([words[0], *words[4:]])
        self.pip_env = env
        if isinstance(self.pip_status, BaseException):
            raise self.pip_status
        return self.pip_status


def make_bare(folder: Path) -> None:
    """Make a real environment in a moment: with a package named pip that does nothing."""
    options = ["--clear", "--without-pip", str(folder)]
    subprocess.run([sys._base_executable, "-m", "venv", *options], check=True)
    package(folder, "pip")


def package(folder: Path, name: str, *, installer: bool = True) -> Path:
    """Put an empty package into an environment, with what pip says about it."""
    [site] = folder.glob("Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages")
    (site / name).mkdir()
    (site / name / "__init__.py").touch()
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    if installer:
        (info / "INSTALLER").write_text("pip\n")
    return site / name


@pytest.fixture
def commands(monkeypatch) -> Commands:
    commands = Commands()
    monkeypatch.setattr(setup, "call", commands)
    return commands


@pytest.fixture
def clone(tmp_path) -> Path:
    """A folder that looks like a clone of the course, with nothing to install."""
    root = tmp_path / "a clone"  # a space, as in many a user's folder
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "requirements.txt").write_text("# nothing\n")
    (root / "tests" / "requirements.txt").write_text("# nothing\n")
    return root


@pytest.fixture
def filled(clone, commands) -> Environment:
    """An environment after a first start, with `commands` empty again."""
    environment = find_environment(root=clone)
    environment.ensure(COURSE)
    commands.pip.clear()
    commands.venv.clear()
    return environment


def test_environment_is_made_and_filled_when_there_is_none(clone, commands, capsys):
    environment = find_environment(root=clone)
    environment.ensure(COURSE)
    assert environment.folder == clone / ".venv"
    assert [words[1:] for words in commands.venv] == [
        ["-m", "venv", "--clear", str(environment.folder)]
    ]
    assert commands.pip == [[str(environment.python), "-r", "requirements.txt"]]
    assert "there is none yet" in capsys.readouterr().out
    environment.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 1)
    assert capsys.readouterr().out == ""


def test_tests_add_their_requirements_once_and_the_course_stays_current(filled, commands):
    filled.ensure(TESTS)
    assert [words[1:] for words in commands.pip] == [
        ["-r", "requirements.txt", "-r", "tests/requirements.txt"]
    ]
    filled.ensure(TESTS)
    filled.ensure(COURSE)
    assert len(commands.pip) == 1
    (filled.root / "tests" / "requirements.txt").write_text("something\n")
    filled.ensure(COURSE)
    assert len(commands.pip) == 1
    commands.pip_status = 1
    with pytest.raises(SetupError):
        filled.ensure(TESTS)
    filled.ensure(COURSE)
    assert len(commands.pip) == 2


def stamp_of(environment: Environment) -> Path:
    [stamp] = environment.folder.glob("mpcourse-*.json")
    return stamp


def add_a_line(environment: Environment, name: str) -> None:
    with (environment.root / name).open("a") as file:
        file.write("# one more line\n")


def use_another_python(environment: Environment) -> None:
    stamp = stamp_of(environment)
    stamp.write_text(stamp.read_text().replace(platform.python_version(), "3.14.159"))


@pytest.mark.parametrize(
    "change",
    [
        lambda filled: add_a_line(filled, "requirements.txt"),
        lambda filled: add_a_line(filled, "pyproject.toml"),
        lambda filled: stamp_of(filled).unlink(),
        lambda filled: stamp_of(filled).write_text("{half"),
        use_another_python,
        Environment.forget,
    ],
)
def test_after_a_change_pip_looks_again_once_in_the_same_environment(filled, commands, change):
    change(filled)
    filled.ensure(COURSE)
    filled.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (0, 1)


def remove_python(environment: Environment) -> None:
    for path in environment.python.parent.glob("python*"):
        path.unlink()


def break_python(environment: Environment) -> None:
    remove_python(environment)
    environment.python.write_text("#!/bin/sh\nexit 1\n")
    environment.python.chmod(0o755)


def remove_pip(environment: Environment) -> None:
    [module] = environment.folder.glob("**/site-packages/pip/__init__.py")
    module.unlink()
    module.parent.rmdir()


def cut_installation_off(environment: Environment) -> None:
    package(environment.folder, "torch", installer=False)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (remove_python, "does not run"),
        (break_python, "does not run"),
        (remove_pip, "no pip"),
        (cut_installation_off, "cut off at torch-1.0"),
    ],
)
def test_a_broken_environment_is_made_anew(filled, commands, capsys, damage, reason):
    damage(filled)
    filled.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 1)
    assert reason in capsys.readouterr().out
    filled.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 1)


def test_the_environment_of_a_moved_clone_is_made_anew(filled, commands, capsys):
    moved = filled.root.rename(filled.root.with_name("elsewhere"))
    find_environment(root=moved).ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (1, 1)
    assert "moved" in capsys.readouterr().out


def test_an_environment_of_a_python_too_old_is_not_used(filled):
    facts = {**filled.probe(), "is_supported": False, "version": "3.8.18"}
    assert filled.problem(facts) == "its Python 3.8.18 is too old"


def test_an_interrupted_installation_does_not_count_and_is_taken_up_again(filled, commands):
    commands.pip_status = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        filled.ensure(TESTS)
    assert list(filled.folder.glob("mpcourse-*.json")) == []
    commands.pip_status = 0
    filled.ensure(COURSE)
    assert (len(commands.venv), len(commands.pip)) == (0, 2)


def test_pip_that_fails_says_what_to_do_and_is_called_again(clone, commands):
    environment = find_environment(root=clone)
    commands.pip_status = 1
    with pytest.raises(SetupError) as raised:
        environment.ensure(COURSE)
    said = str(raised.value)
    for word in ("exit status 1", "No space left", "GB are free", "PIP_INDEX_URL", "HTTPS_PROXY"):
        assert word in said
    assert str(environment.folder) in said
    commands.pip_status = 0
    environment.ensure(COURSE)
    assert len(commands.pip) == 2


def test_a_python_without_ensurepip_names_the_package(clone, commands, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ensurepip" else find_spec(name)
    )
    with pytest.raises(SetupError, match="apt install python3-venv"):
        find_environment(root=clone).ensure(COURSE)
    assert (commands.venv, commands.pip) == ([], [])


def test_an_environment_that_cannot_be_made_says_what_to_do(clone, commands):
    commands.venv_status = 1
    with pytest.raises(SetupError, match=r"(?s)exit status 1.*GB are free.*--here") as raised:
        find_environment(root=clone).ensure(COURSE)
    assert str(clone / ".venv") in str(raised.value)
    assert commands.pip == []


def test_outside_a_clone_the_missing_file_is_named(clone, commands):
    (clone / "requirements.txt").unlink()
    with pytest.raises(SetupError, match=r"requirements.txt is missing: start in a clone"):
        find_environment(root=clone).ensure(COURSE)
    assert commands.pip == []


def test_two_starts_at_the_same_time_install_once(clone, commands):
    commands.pip_seconds = 0.5
    starts = [
        threading.Thread(target=find_environment(root=clone).ensure, args=[COURSE])
        for _ in range(2)
    ]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert (len(commands.venv), len(commands.pip)) == (1, 1)


def test_commands_run_as_if_the_environment_were_active(filled, monkeypatch):
    seen = {}
    monkeypatch.setenv("PIP_INDEX_URL", "file:///my/index")  # kept
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setattr(setup, "call", lambda command, **settings: seen.update(settings) or 3)
    assert filled.run("-m", "something") == 3
    assert seen["cwd"] == filled.root
    assert seen["env"]["PATH"].split(os.pathsep)[0] == str(filled.python.parent)
    assert seen["env"]["VIRTUAL_ENV"] == str(filled.folder)
    assert (seen["env"]["PIP_INDEX_URL"], seen["env"]["PIP_USER"]) == ("file:///my/index", "0")


@pytest.fixture
def foreign(filled) -> Environment:
    """An environment of the user's own, in which mpcourse is a guest."""
    stamp_of(filled).unlink()
    here = find_environment(here=True, root=filled.root)
    assert (here.python, here.folder) == (Path(sys.executable), Path(sys.prefix))
    return replace(here, folder=filled.folder, python=filled.python)


def test_here_installs_into_it_once(foreign, commands):
    foreign.ensure(COURSE)
    foreign.ensure(COURSE)
    assert commands.pip == [[str(foreign.python), "-r", "requirements.txt"]]
    assert commands.venv == []
    for name in ("VIRTUAL_ENV", "PIP_USER"):
        assert commands.pip_env.get(name) == os.environ.get(name)


def test_here_never_makes_anything_anew(foreign, commands):
    cut_installation_off(foreign)
    foreign.ensure(COURSE)
    remove_pip(foreign)
    with pytest.raises(SetupError, match=r"it has no pip. Leave out --here"):
        foreign.ensure(COURSE)
    assert commands.venv == []


def test_here_works_where_no_stamp_can_be_written(foreign, commands):
    (foreign.folder / "mpcourse-requirements.txt.json").mkdir()
    foreign.ensure(COURSE)
    foreign.ensure(COURSE)
    assert len(commands.pip) == 2


def test_a_real_installation_from_a_real_wheel(clone):
    wheel = clone / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "ANSWER = 42\n")
        info = "tiny-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    (clone / "requirements.txt").write_text(f"./{wheel.name}  # the test\n")
    environment = find_environment(root=clone)
    environment.ensure(COURSE)
    assert environment.run("-c", "import tiny; raise SystemExit(tiny.ANSWER)") == 42
    # What pip really leaves behind when it is done counts as whole, not as cut off.
    assert environment.problem(environment.probe()) == ""
