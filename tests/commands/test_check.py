"""`check` finds what is really broken, and the line that it gives mends it."""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from forks import commit_all, copy_course

from mpcourse.commands import check as command
from mpcourse.commands.check import GIB
from mpcourse.commands.clean_copies import find_pages, write_copies

pytestmark = pytest.mark.skipif(os.name == "nt", reason="makes an environment out of links")
RUN = """
from mpcourse.commands import check
check.CHECKS = {name: check.CHECKS[name] for name in [NAMES]} or check.CHECKS
check.main()"""


class Place:
    """A clone and an environment that may be broken: its packages are found behind those put in."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.venv = folder / "clone", folder / "environment"
        self.python = self.venv / "bin/python"

    def make(self) -> "Place":
        names = ("mpcourse", "notebooks", "data", "requirements.txt", "pyproject.toml")
        commit_all(copy_course(self.clone, *names))
        self.hand_out()
        bare = [sys._base_executable, "-m", "venv", "--without-pip", self.venv]
        subprocess.run(bare, check=True)
        here = [path for path in sys.path if path.endswith("site-packages")]
        (self.site / "behind.pth").write_text("\n".join(here))
        shutil.copytree(Path(sys.prefix, "share/jupyter/kernels"), self.share / "kernels")
        (self.share / "labextensions").symlink_to(Path(sys.prefix, "share/jupyter/labextensions"))
        self.hide("sphinx")  # only `site` installs it
        return self

    def hand_out(self) -> None:
        pages = find_pages([], folder=self.clone / "notebooks")
        write_copies(pages, self.clone / "my_notebooks")

    @property
    def site(self) -> Path:
        [site] = self.venv.glob("lib/python*/site-packages")
        return site

    @property
    def share(self) -> Path:
        return self.venv / "share/jupyter"

    def look(self, *names: str) -> str:
        """What these checks say, or all."""
        code = RUN.replace("NAMES", ", ".join(map(repr, names)))
        env = {**os.environ, "PYTHONPATH": "", "JUPYTER_DATA_DIR": str(self.venv / "nobody")}
        run = [self.python, "-c", code]
        answer = subprocess.run(run, cwd=self.clone, env=env, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def follow(self, remedy: str) -> None:
        """Do what a remedy says, unless that takes a network."""
        line = re.search(r"git checkout .*|\S+ -m (ipykernel|ensurepip)[^,]*", remedy)
        if line:
            words = shlex.split(line[0])
            subprocess.run(words, cwd=self.clone, capture_output=True, check=True)
        elif "another name" in remedy:
            (self.clone / "my_notebooks/random.py").rename(self.clone / "my_notebooks/mine.py")
        elif "delete it" in remedy:
            (self.clone / "my_notebooks/01_scatter_and_gather.ipynb").unlink()
            self.hand_out()

    def hide(self, package: str, source: str = "raise OSError('libdraw.so: cannot open')") -> None:
        (self.site / package).mkdir()
        (self.site / package / "__init__.py").write_text(source)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("check")).make()


@pytest.fixture
def place(sound, tmp_path) -> Place:
    """A copy that a test may break."""
    shutil.copytree(sound.clone.parent, tmp_path / "copy", symlinks=True)
    return Place(tmp_path / "copy")


def cut(name: str):
    def cut_off(place: Place) -> None:
        path = place.clone / name
        path.write_bytes(path.read_bytes()[:5000])

    return cut_off


def append(name: str, text: str):
    return lambda place: (place.clone / name).open("a").write(text)


def remove(name: str):
    return lambda place: (place.clone / name).unlink()


def lose_the_kernel(place: Place) -> None:
    spec = place.share / "kernels/python3/kernel.json"
    spec.write_text(re.sub(r'"argv": \[\s*"[^"]*"', '"argv": ["/nowhere/python"', spec.read_text()))


NO_NMS = "raise RuntimeError('operator torchvision::nms does not exist')"
MNIST = "data/MNIST/raw/t10k-images-idx3-ubyte"
PIP, GIT = "python -m pip install --force-reinstall", "git checkout -- mpcourse"


# Of each check: how a place is broken, what is said of that, and what to do about it.
BREAKAGES = {
    "Imports": [
        (lambda p: p.hide("ipywidgets"), "ipywidgets: OSError: libdraw", f'{PIP} "ipywidgets>=7.7'),
        (lambda p: p.hide("matplotlib", "import lost"), "matplotlib: .*'lost'", f'{PIP} "lost"'),
        (lambda p: p.hide("jupyterlab", "1 / 0"), "jupyterlab: ZeroDiv", f'{PIP} "jupyterlab>=4"'),
        (lambda p: p.hide("torchvision", NO_NMS), "nms does not exist", f"{PIP} torch=="),
        (append("mpcourse/schedules/actions.py", "def (\n"), "SyntaxError: .*actions.py", GIT),
    ],
    "This machine": [
        (lambda p: p.hide("psutil", "from . import gone"), "cannot import name", f'{PIP} "psutil"')
    ],
    "Course": [
        (append("mpcourse/devices/timing.py", "# mine\n"), "timing.py was changed", f"{GIT}/dev"),
        (remove("notebooks/08_schedules.ipynb"), "08_.* is missing", "-- notebooks/08"),
        (cut("notebooks/07_pipeline.ipynb"), "notebooks/07_.* is damaged", "-- notebooks/07"),
        (cut("my_notebooks/01_scatter_and_gather.ipynb"), "my_notebooks/01_.* is damaged", "lab"),
        (append("my_notebooks/random.py", ""), "/random.py hides Python's own", "another name"),
    ],
    "MNIST sample": [(remove(MNIST), "FileNotFoundError: .* is missing", "checkout -- data")],
    "MNIST sample ": [(cut(MNIST), "RuntimeError: .* is damaged", "checkout -- data")],
    "Sliders in JupyterLab": [(lambda p: (p.share / "labextensions").unlink(), "missing", PIP)],
    "Jupyter kernel": [(lose_the_kernel, "/nowhere/python", "ipykernel install --sys-prefix")],
    "Python": [(lambda p: (p.site / "behind.pth").unlink(), "it has no pip", "-m ensurepip")],
}


@pytest.mark.slow
@pytest.mark.parametrize("check", BREAKAGES)
def test_what_is_broken_is_found_and_what_is_typed_mends_it(place, check):
    for damage, _, _ in BREAKAGES[check]:
        damage(place)
    check, breakages = check.strip(), BREAKAGES[check]
    said = place.look(check)
    for _, words, remedy in breakages:
        found = re.search(rf"(?:FAIL|note)  {check}: .*{words}.*\n +what to do: (.*)", said)
        assert found, said
        assert remedy in found[1]
        place.follow(found[1])
    said = place.look(check)
    for _, words, remedy in breakages:
        takes_a_network = "pip install" in remedy
        assert bool(re.search(words, said)) == takes_a_network, said


@pytest.mark.slow
def test_of_a_sound_place_nothing_is_said_but_what_it_is(sound):
    said = sound.look()
    assert said.count("ok  ") == said.count("\n") - 2, said
    assert said.splitlines()[-1] == "Nothing failed."
    for words in ("torch 2", "the course", "nothing is missing", "CPU worker", "4,000 and 1,000"):
        assert words in said


def test_without_git_what_is_damaged_is_still_named(place):
    cut("notebooks/07_pipeline.ipynb")(place)
    shutil.rmtree(place.clone / ".git")
    assert place.look("Course").startswith("FAIL  Course: notebooks/07_pipeline.ipynb is damaged")


def explode() -> list[command.Finding]:
    raise OSError("libtorch.so: cannot open")


def test_a_check_that_raises_fails_and_the_others_go_on(monkeypatch, capsys):
    checks = {"Devices": explode, "GPU": explode, "Disk": lambda: [("note", "little", "delete")]}
    monkeypatch.setattr(command, "CHECKS", checks)
    assert command.main() == 1
    said = capsys.readouterr().out
    assert "FAIL  Devices: OSError: libtorch.so: cannot open\n      what to do: mend" in said
    assert said.endswith("to do: delete\n\nFAILED: 2; each line says what to do.\n")


def test_what_is_not_as_asked_for_is_named(monkeypatch):
    facts = {"missing": ["torch>=2.9"], "has_pip": True}
    found = SimpleNamespace(probe=lambda files: facts)
    monkeypatch.setattr(command, "find_environment", lambda **_: found)
    failed = [detail for word, detail, _ in command.check_versions() if word == "FAIL"]
    assert failed == ["torch>=2.9 is not installed, or in another version"]


INDEX = "--index-url https://download.pytorch.org/whl"


@pytest.mark.parametrize(
    ("torch", "install"),
    [
        ("2.13.0+cpu", f"torch==2.13.0 torchvision {INDEX}/cpu"),
        ("2.9.1+cu128", f"torch==2.9.1 torchvision {INDEX}/cu128"),
        ("2.15.0", "torch==2.15.0 torchvision"),
        ("2.15.0a0+git1a2b3c", "torch==2.15.0a0 torchvision"),
    ],
)
def test_operators_that_do_not_load_are_mended_from_torchs_own_index(monkeypatch, torch, install):
    monkeypatch.setattr(importlib.metadata, "version", {"torch": torch}.__getitem__)
    assert command.mend_operators().endswith(f"-m pip install --force-reinstall {install}")


def test_a_torch_that_torchvision_lacks_is_installed_anew():
    error = ModuleNotFoundError("No module named 'torch'", name="torch")
    assert command.mend(error, "torchvision").endswith('--force-reinstall "torch>=2.9"')


def test_a_kernel_that_never_answers_ends_in_time(monkeypatch):
    monkeypatch.setattr(command, "LIMIT_S", 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        list(command.check_kernel())


@pytest.mark.parametrize(("free", "word"), [(GIB, "ok"), (GIB - 1, "FAIL")])
def test_memory_is_judged_by_what_a_page_needs(monkeypatch, free, word):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    [found] = [finding for finding in command.check_machine() if "memory free" in finding[1]]
    assert found[0] == word
    assert bool(found[2]) == (word != "ok")
