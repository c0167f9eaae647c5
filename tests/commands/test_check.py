"""Each check says "ok" on a sound machine, and what to do on one that is not."""

import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from forks import commit_all, copy_course

from mpcourse.commands import check as command
from mpcourse.commands.check import GIB, Finding
from mpcourse.training import mnist


def explode() -> list[Finding]:
    raise OSError("libtorch.so: cannot open")


EXPLODED = "FAIL  Devices: OSError: libtorch.so: cannot open\n      what to do: mend"


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({}, 0, "Nothing failed."),
        ({"Devices": explode, "GPU": explode}, 1, "FAILED: 2; each line says what to do."),
    ],
)
def test_a_check_that_raises_fails_and_the_others_go_on(monkeypatch, capsys, more, status, said):
    findings = [Finding("Disk", word, "free") for word in ("ok", "note")]
    monkeypatch.setattr(command, "CHECKS", {**more, "Disk": lambda: findings})
    assert command.main() == status
    printed = capsys.readouterr().out
    assert (EXPLODED in printed) == bool(more)
    assert "ok    Disk: free\nnote  Disk: free\n" in printed
    assert printed.splitlines()[-1] == said


@pytest.mark.parametrize(
    ("check", "detail"),
    [
        (command.check_python, ""),
        (command.check_imports, "modules of the pages"),
        (command.check_devices, ""),
        (command.check_operators, "nms computes"),
        (command.check_kernel, "it starts, and 1 + 1 = 2"),
        (command.check_widgets, "@jupyter-widgets/jupyterlab-manager"),
        (command.check_data, "4,000 and 1,000 images"),
    ],
)
def test_this_installation_is_sound_as_far_as_no_clock_is_involved(check: Callable, detail: str):
    [finding] = check()
    assert finding.word == "ok"
    assert detail in finding.detail


def test_every_range_of_requirements_txt_is_looked_at():
    items = [finding.item for finding in command.check_versions()]
    assert items == ["torch", "torchvision", "jupyterlab", "ipywidgets", "matplotlib", "nbval"]


@pytest.mark.parametrize(
    ("requirement", "installed", "variable", "word"),
    [
        ("torch>=2.9", "2.9.0", "", "ok"),
        ("torch>=2.9", "2.13.0+cpu", "", "ok"),
        ("torch>=2.9", "2.16.0.dev20261101+cu132", "", "ok"),
        ("torch>=2.9", "2.8.0", "", "FAIL"),
        ("ipywidgets>=7.7,<9", "7.7.1", "", "ok"),
        ("ipywidgets>=7.7,<9", "9.0.0", "", "FAIL"),
        ("ipywidgets>=7.7,<9", "7.6.5", "", "FAIL"),
        ("jupyterlab>=1", "not installed", "", "FAIL"),
        ("jupyterlab>=1", "not installed", "COLAB_RELEASE_TAG", "note"),
        ("nbval>=1", "not installed", "KAGGLE_KERNEL_RUN_TYPE", "note"),
        ("torch>=1", "not installed", "COLAB_RELEASE_TAG", "FAIL"),
    ],
)
def test_versions_are_compared_with_ranges_and_hosted_notebooks_do_without_a_server_of_ours(
    monkeypatch, requirement, installed, variable, word
):
    def version(name: str) -> str:
        if installed == "not installed":
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    monkeypatch.setenv(variable or "NOTHING", "1")
    monkeypatch.setattr(command.importlib.metadata, "version", version)
    finding = command.judge_version(requirement)
    assert finding.word == word
    assert installed in finding.detail
    assert bool(finding.remedy) == (word == "FAIL")


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
    versions = {"torch": torch, "torchvision": "0.28.0"}
    monkeypatch.setattr(command.importlib.metadata, "version", versions.__getitem__)

    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    # What `from torchvision.ops import nms` does when the two were built apart.
    monkeypatch.setitem(sys.modules, "torchvision.ops", types.ModuleType("torchvision.ops"))
    sys.modules["torchvision.ops"].__getattr__ = broken
    [finding] = command.check_operators()
    assert finding.word == "FAIL"
    assert finding.detail == "operator torchvision::nms does not exist"
    assert finding.remedy.endswith(f"-m pip install --force-reinstall {install}")
    assert f"torch {torch} and torchvision 0.28.0 do not belong together" in finding.remedy


def test_a_kernel_that_never_answers_fails_in_time(monkeypatch):
    monkeypatch.setattr(command, "KERNEL_CODE", "import time; time.sleep(20)")
    monkeypatch.setattr(command, "LIMIT_S", 3.0)  # too short for a start on a slow machine, too
    [finding] = command.run_check("Jupyter kernel", command.check_kernel)
    assert finding.word == "FAIL"
    assert re.search("Timeout|didn't respond", finding.detail)


def test_a_kernel_whose_python_is_gone_is_told_how_to_get_another(monkeypatch):
    def start(**settings: object) -> None:
        raise FileNotFoundError("/nowhere/python")

    monkeypatch.setattr("jupyter_client.manager.start_new_kernel", start)
    [finding] = command.check_kernel()
    assert (finding.word, finding.remedy) == ("FAIL", command.KERNEL)


@pytest.mark.parametrize(
    ("total", "prefix", "detail", "remedy"),
    [
        (3, sys.prefix, "it computes 1 + 1 = 3", "mpcourse lab"),
        (2, "/elsewhere", "runs in /elsewhere, not in", "-m ipykernel install --sys-prefix"),
    ],
)
def test_a_kernel_that_is_not_the_course_s_fails(total, prefix, detail, remedy):
    finding = command.judge_kernel(total, prefix)
    assert finding.word == "FAIL"
    assert detail in finding.detail
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("free", "word"),
    [(5 * GIB, "ok"), (2 * GIB, "ok"), (2 * GIB - 1, "note"), (GIB, "note"), (GIB - 1, "FAIL")],
)
def test_room_is_judged_by_what_a_page_needs(free, word):
    finding = command.judge_room("Memory", free, least=GIB, enough=2 * GIB)
    assert finding.word == word
    assert bool(finding.remedy) == (word != "ok")


@pytest.mark.parametrize(
    ("ratio", "kind", "cores", "word", "said"),
    [
        (1.02, "cpu core", 2, "ok", "1.02 x"),
        (1.50, "cpu core", 2, "ok", "1.50 x"),
        (1.51, "cpu core", 2, "note", "close other programs"),
        (2.00, "gpu share", 1, "note", "close other programs"),
        (1.00, "gpu", 1, "ok", "1.00 x"),
        (1.99, "cpu core", 1, "note", "with one core they cannot overlap"),
    ],
)
def test_overlap_is_judged_but_never_a_failure(ratio, kind, cores, word, said):
    finding = command.judge_overlap(ratio, kind=kind, cores=cores)
    assert finding.word == word
    assert said in str(finding)


def test_a_missing_sample_fails_and_names_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(mnist, "DATA_FOLDER", tmp_path)
    [finding] = command.check_data()
    assert finding.word == "FAIL"
    assert str(tmp_path) in finding.detail
    assert "git checkout -- data" in finding.remedy


@pytest.mark.parametrize("is_there", [(), ("package.json",), ("package.json", "static.js")])
def test_the_extension_of_jupyterlab_is_looked_for_on_the_disk(monkeypatch, tmp_path, is_there):
    folder = tmp_path / command.WIDGETS
    folder.mkdir(parents=True)
    about = {"version": "5.0", "jupyterlab": {"_build": {"load": "static.js"}}}
    for name in is_there:
        (folder / name).write_text(json.dumps(about))
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [str(tmp_path)])
    [finding] = command.check_widgets()
    assert finding.word == ("ok" if "static.js" in is_there else "FAIL")
    assert ("jupyterlab_widgets" in finding.remedy) == (finding.word == "FAIL")


@pytest.fixture
def clone(tmp_path) -> Path:
    """The package, the pages and a repository around them."""
    return commit_all(copy_course(tmp_path / "clone", "mpcourse", "notebooks", "requirements.txt"))


def look(root: Path, *names: str, packages: Path | None = None) -> str:
    """What some of the checks say in a clone."""
    code = f"""
from mpcourse.commands import check
check.CHECKS = {{name: check.CHECKS[name] for name in {names!r}}}
check.main()"""
    env = {**os.environ, "PYTHONPATH": str(packages or "")}
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=True
    )
    return answer.stdout


def test_a_page_or_a_copy_that_is_missing_or_damaged_and_an_edited_course_are_named(clone):
    assert look(clone, "Course").startswith("ok    Course: nothing is missing")
    (clone / "notebooks/08_schedules.ipynb").unlink()
    page = clone / "notebooks/07_pipeline.ipynb"
    page.write_bytes(page.read_bytes()[:5000])
    (clone / "my_notebooks").mkdir()
    (clone / "my_notebooks/01_scatter_and_gather.ipynb").write_text("{}")
    (clone / "my_notebooks/random.py").touch()
    with (clone / "mpcourse/devices/timing.py").open("a") as file:
        file.write("# mine\n")
    said = look(clone, "Course")
    for words in (
        r"FAIL  .*08_schedules.ipynb is missing\n.*git checkout -- notebooks/08_schedules.ipynb",
        r"FAIL  .*07_pipeline.ipynb is damaged\n.*git checkout -- notebooks/07_pipeline.ipynb",
        r"FAIL  .*my_notebooks/01_.*ipynb is damaged\n.*delete it: python3 -m mpcourse lab",
        r"FAIL  .*random.py hides Python's own module random.*\n.*another name",
        r"note  .*changed: mpcourse/devices/timing.py\n.*git diff",
    ):
        assert re.search(words, said), words
    shutil.rmtree(clone / ".git")
    assert "FAIL  Page: notebooks/07" in look(clone, "Course")


def test_what_cannot_be_imported_is_named_with_what_mends_it(clone, tmp_path):
    with (clone / "mpcourse/pipeline/engine.py").open("a") as file:
        file.write("def (\n")
    broken = {
        "ipywidgets": "raise OSError('libdraw.so: cannot open')",
        "nbval": "import nowhere_to_be_found",
    }
    for name, source in broken.items():
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(source)
    said = look(clone, "Imports", packages=tmp_path / "packages")
    for words in (
        r'import ipywidgets: OSError: libdraw.*\n.*--force-reinstall "ipywidgets>=7.7,<9"',
        r'import nbval: .*nowhere_to_be_found.*\n.*--force-reinstall "nowhere_to_be_found"',
        r"SyntaxError: .*engine.py.*\n.*git checkout -- mpcourse/pipeline/engine.py",
    ):
        assert re.search(f"FAIL  .*{words}", said), words
    assert said.count("FAIL ") == 3, said
